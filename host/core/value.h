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

struct bh_buffer {
	/* A: release on drop, acquire by the last. 0 only for a moment, which nobody may see: the
	 * buffer is freed then, or has slots and is given to them (slot.h). */
	_Atomic uint32_t refs;
	struct bh_buffer_info info;		/* I */
	void (*free)(struct bh_buffer *buffer); /* I */
	_Atomic(struct bh_slot *)
		slots;	 /* A: release push, acquire walk; see slot.h. Starts NULL. */
	uint8_t element; /* I: DLPack's code of an element; tells apart what `info` calls opaque */
	/* G: the Python object that it came from, or that shows it; NULL: none. Borrowed: the object
	 * clears it, or is held by whoever made the buffer. */
	void *python;
};

struct bh_object {
	_Atomic uint32_t refs;
	void (*free)(struct bh_object *object);
};

/* The caller has a reference. A pointer that was kept without one makes none. */
struct bh_buffer *bh_buffer_ref(struct bh_buffer *buffer);
/* NULL is fine. The last one gives the buffer to its slots where some are set, else frees it. */
void bh_buffer_unref(struct bh_buffer *buffer);
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
