/* SPDX-License-Identifier: BSD-3-Clause */
/* device_memory - see device_memory.h.
 *
 * Taking memory back while others have the buffer is decided by two words of it, and nobody waits:
 *
 *	who uses it			who takes it back
 *	1. a reference: refs += 1	1. use |= REVOKED
 *	2. looks at use: REVOKED?	2. looks at refs: anybody's left?
 *
 * Both are Dekker's: each writes its own word and then reads the other's. All four are sequentially
 * consistent, so they lie in one order, and whichever write comes first in it is seen by the other
 * side's read. So it cannot be that a user misses REVOKED and its reference is missed too. With anything
 * weaker both reads may come before both writes, on x86 as well. That both see each other is possible: the
 * user is refused, and its reference, gone in a moment, makes -EBUSY of what could have been freed.
 *
 * An export of the address ends no reference that could be counted, so it leaves SHARED, in the word
 * that REVOKED is in: of two changes of one word one comes first, and the second is told of it. */
#include "config.h"

#include "host/core/device_memory.h"

#include <errno.h>
#include <stdlib.h>

#include "host/core/memory.h"

#define DL_CODE_MAX 6 /* DLPack's bool; those above BH_DTYPE_OPAQUE are opaque to plugins */

static void device_free(struct bh_buffer *buffer)
{
	free(buffer); /* the memory has gone with the slot, or stays */
}

static bool is_sound(const struct bh_buffer_info *info, uint64_t length)
{
	return info->kind == BH_BUFFER_CUDA && info->device >= 0 &&
	       info->dtype_code <= DL_CODE_MAX && (info->data || length == 0);
}

bh_status bh_device_memory_new(const struct bh_buffer_info *info, struct bh_slot_owner *owner,
			       void *value, bh_slot_fn release, struct bh_buffer **ret_buffer)
{
	struct bh_buffer *buffer;
	uint64_t length;
	bh_status st = bh_memory_length(info, &length);

	if (st < 0)
		return st;
	if (!is_sound(info, length))
		return -EINVAL;
	buffer = calloc(1, sizeof(*buffer));
	if (!buffer)
		return -ENOMEM;
	bh_memory_describe(buffer, info, BH_BUFFER_CUDA, info->data, length);
	buffer->free = device_free;
	buffer->info.device = info->device;
	if (info->dtype_code > BH_DTYPE_OPAQUE)
		buffer->info.dtype_code = BH_DTYPE_OPAQUE;
	st = bh_slot_set(owner, buffer, value, release);
	if (st < 0) {
		bh_buffer_unref(buffer);
		return st;
	}
	*ret_buffer = buffer;
	return 0;
}

bool bh_device_memory_is(const struct bh_buffer *buffer)
{
	return buffer->free == device_free;
}

/* One look at the word: how many references there are, and whether Python's object is among them. Were
 * the object told of elsewhere, one that came or went between two looks would stand for a user. */
static bool is_used(struct bh_buffer *buffer, uint32_t held)
{
	uint32_t refs = atomic_load(&buffer->refs);
	uint64_t n = refs & ~BH_REF_SHOWN, shown = refs & BH_REF_SHOWN ? 1 : 0;

	return n != held + shown;
}

bh_status bh_device_memory_revoke(struct bh_slot_owner *owner, struct bh_buffer *buffer,
				  uint32_t held)
{
	uint32_t before;
	bool used;

	if (!bh_slot_get(owner, buffer))
		return -ENOENT;
	before = atomic_fetch_or(&buffer->use, BH_USE_REVOKED);
	used = before & BH_USE_SHARED || is_used(buffer, held);
	/* Last: with the value the buffer may go, where the caller has no reference. What somebody
	 * else has taken meanwhile was dropped by all, so that the mark is seen by nobody. */
	if (!bh_slot_clear(owner, buffer))
		return -ENOENT;
	return used ? -EBUSY : 0;
}
