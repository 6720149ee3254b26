/* SPDX-License-Identifier: BSD-3-Clause */
/* slot - one pointer of each plugin's on a buffer, and what becomes of it when the buffer is dropped.
 *
 * A slot holds no reference. When the last reference is dropped while slots are set, each of them is
 * emptied and its release() is called with the value and with one reference of its own: the buffer
 * lives again, until the last of those has been dropped. Nobody else may make a reference out of a
 * pointer that it has kept: between the last unref and release() the count is 0, and what was 0 a
 * moment ago may be freed.
 *
 * What changes is one atomic pointer a slot, so that nobody waits for anybody (GIL-9): the drop of a
 * reference may come with the GIL and from a thread that holds locks. Thread: any. GIL: held or not.
 * Blocks: no. In a forked child no release() is called (EXIT-5). Owns: a slot belongs to its buffer and goes with it. */
#ifndef BH_HOST_CORE_SLOT_H
#define BH_HOST_CORE_SLOT_H

#include <stdatomic.h>

#include "host/core/common.h"

typedef void (*bh_slot_fn)(void *value, struct bh_buffer *buffer);

/* Whose slots they are. Outlives every buffer that it has a slot on. */
struct bh_slot_owner {
	/* I: calls release(value, buffer), which has been given a reference. */
	void (*call)(struct bh_slot_owner *owner, bh_slot_fn release, void *value,
		     struct bh_buffer *buffer);
	_Atomic uint64_t n_set; /* A: relaxed; who has cleared or released all sees its own steps */
	_Atomic bool closed;	/* A: release by close, acquire by the others */
};

/* The caller holds a reference; value and release are not NULL. -EEXIST: the owner has a slot there
 * already. -EINVAL: it has given this buffer another release() before, which it may not. -ENOMEM.
 * -ESHUTDOWN: the owner has been closed. What lies behind `value` is seen by who gets it. */
bh_status bh_slot_set(struct bh_slot_owner *owner, struct bh_buffer *buffer, void *value,
		      bh_slot_fn release) BH_MUST_CHECK;
/* NULL: none. The caller holds a reference. */
void *bh_slot_get(const struct bh_slot_owner *owner, struct bh_buffer *buffer);
/* Takes the value back; NULL: there is none. The caller holds a reference, or is the only one that may
 * clear this slot and knows that release() has not returned for the value. Once the value is taken
 * the buffer is not touched any more: it may be gone. */
void *bh_slot_clear(struct bh_slot_owner *owner, struct bh_buffer *buffer);
/* From now on no release() of the owner's is called: what is still set is forgotten when its buffer
 * goes. Once. Returns how many slots are set. */
uint64_t bh_slot_close(struct bh_slot_owner *owner);

/* For bh_buffer_unref(): the caller has dropped the last reference. False: no slot was set, and the
 * buffer may be freed. True: each that was set has been released, and the caller has a reference
 * again, which it must drop. */
bool bh_slot_release(struct bh_buffer *buffer);
/* Frees the slots of a buffer that is being freed. */
void bh_slot_free(struct bh_buffer *buffer);

#endif
