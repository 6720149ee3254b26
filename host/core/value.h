/* SPDX-License-Identifier: BSD-3-Clause */
/* value - arguments and results on the host's side of the ABI, and the memory they refer to.
 *
 * Every bh_value that the host holds is deeply owned: text and lists are its own heap memory (text
 * has a NUL behind it), buffers and objects are references. Thread: any; `free` of a buffer or an
 * object runs on the thread that drops the last reference, never needs the GIL and never blocks
 * (GIL-9). */
#ifndef BH_HOST_CORE_VALUE_H
#define BH_HOST_CORE_VALUE_H

#include <stdatomic.h>

#include "host/core/error.h"

/* No type of the ABI: an argument that stands for the result of a task that comes first.
 * `as.handle` is its index in bh_submission.after. Replaced before any backend sees it. */
#define BH_TYPE_AFTER UINT32_C(0x80000000)

struct bh_slot;

/* In bh_buffer.refs: one of them is that of the Python object which shows the buffer. In the same word
 * as the count, so that who looks sees both as they were at one moment (device_memory.c). */
#define BH_REF_SHOWN UINT32_C(0x80000000)

/* In bh_buffer.use. */
#define BH_USE_SHARED UINT32_C(1)  /* Python code has been given the address */
#define BH_USE_REVOKED UINT32_C(2) /* the memory has been taken back: nobody gets at it any more */

struct bh_buffer {
	/* A: seq_cst to take, see bh_buffer_ref(); release on drop, acquire by the last. 0 only for a
	 * moment, which nobody may see: the buffer is freed then, or has slots and is given to them
	 * (slot.h). */
	_Atomic uint32_t refs;
	_Atomic uint32_t use;	    /* A: seq_cst, see device_memory.c; bits are only set */
	struct bh_buffer_info info; /* I */
	void (*free)(struct bh_buffer *buffer); /* I */
	_Atomic(struct bh_slot *)
		slots;	 /* A: release push, acquire walk; see slot.h. Starts NULL. */
	uint8_t element; /* I: DLPack's code of an element; tells apart what `info` calls opaque */
	/* G: the Python object that it came from, or that shows it; NULL: none. Borrowed: the object
	 * clears it, or is held by whoever made the buffer. */
	void *python; /* beside it, where the object holds the reference: BH_REF_SHOWN */
};

struct bh_object {
	_Atomic uint32_t refs;
	void (*free)(struct bh_object *object);
};

/* The caller has a reference. A pointer that was kept without one makes none. */
struct bh_buffer *bh_buffer_ref(struct bh_buffer *buffer);
/* NULL is fine. The last one gives the buffer to its slots where some are set, else frees it. */
void bh_buffer_unref(struct bh_buffer *buffer);
/* The reference of the Python object that shows the buffer: one at a time. Python's side calls these
 * with the GIL. The caller of `show` has another; `hide` makes it a reference like all others. */
void bh_buffer_show(struct bh_buffer *buffer);
void bh_buffer_hide(struct bh_buffer *buffer);
void bh_buffer_unref_shown(struct bh_buffer *buffer); /* hide and unref in one step */
/* Python code is about to be given the address. False: it has been taken back, and is not to be told. */
bool bh_buffer_share(struct bh_buffer *buffer) BH_MUST_CHECK;
/* Its memory has been taken back (device_memory.h). Who is to use the memory takes a reference first, and
 * then asks: false then stays true of that reference for as long as it lives. */
static inline bool bh_buffer_is_revoked(const struct bh_buffer *buffer)
{
	return atomic_load(&buffer->use) & BH_USE_REVOKED;
}
/* The bytes that are there lie one behind the other, as a plugin that knows no strides takes it. */
bool bh_buffer_is_contiguous(const struct bh_buffer *buffer);
struct bh_object *bh_object_ref(struct bh_object *object);
void bh_object_unref(struct bh_object *object);

const char *bh_type_name(uint32_t type); /* "int"; NULL for no type */
/* Copies text and lists, takes references. -ENOMEM leaves `*ret` as BH_TYPE_NONE. */
bh_status bh_value_copy(const struct bh_value *from, struct bh_value *ret) BH_MUST_CHECK;
/* As copy, but a buffer's or object's reference passes over from `from`, at any depth, also on
 * failure. */
bh_status bh_value_take(const struct bh_value *from, struct bh_value *ret) BH_MUST_CHECK;
void bh_value_clear(struct bh_value *value); /* releases what it owns; then BH_TYPE_NONE */
static inline struct bh_value bh_value_steal(struct bh_value *value)
{
	struct bh_value out = *value;

	*value = (struct bh_value){ .type = BH_TYPE_NONE };
	return out;
}

/* Arguments of one submission: one block, `n` deeply owned values. */
struct bh_args {
	uint32_t n;
	struct bh_value v[];
};
struct bh_args *bh_args_new(uint32_t n);	    /* all BH_TYPE_NONE; NULL without memory */
struct bh_args *bh_args_free(struct bh_args *args); /* clears each; returns NULL */
BH_DEFINE_AUTO(struct bh_args, bh_args_free)

#endif
