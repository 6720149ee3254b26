/* SPDX-License-Identifier: BSD-3-Clause */
/* slot - see slot.h. Keeps: EXIT-5, GIL-9. */
#include "config.h"

#include "host/core/slot.h"

#include <errno.h>

#include "host/core/pool_private.h"
#include "host/core/value.h"

/* One an owner and buffer, made by the first set and kept, empty or not, as long as the buffer: who
 * walks the list never meets one that goes. */
struct bh_slot {
	struct bh_slot *next;	     /* I: once it is in the list */
	struct bh_slot_owner *owner; /* I */
	/* I: were it set along with each value there would be two words to change at once. */
	bh_slot_fn release;
	/* A: NULL: empty. Release by set, for what lies behind the value; acquire by get. Clear and
	 * the last unref take it by an exchange, acquire for that, and one of them gets it. The
	 * exchange of a clear is its last step on the buffer, and is a release; so an unref that
	 * finds the slot empty (acquire) may free it. */
	_Atomic(void *) value;
	/* T: who has dropped the last reference; from the exchange to the call. */
	void *taken;
};

/* Acquire: `next`, `owner` and `release` of what is found are seen; an older `next` was there before. */
static struct bh_slot *first(struct bh_buffer *buffer)
{
	return atomic_load_explicit(&buffer->slots, memory_order_acquire);
}

static struct bh_slot *find(struct bh_slot *slot, const struct bh_slot_owner *owner)
{
	while (slot && slot->owner != owner)
		slot = slot->next;
	return slot;
}

static bool is_closed(const struct bh_slot_owner *owner)
{
	return atomic_load_explicit(&owner->closed, memory_order_acquire);
}

/* Counted before anybody can see it, so that who takes it finds it counted. */
static void count(struct bh_slot_owner *owner)
{
	atomic_fetch_add_explicit(&owner->n_set, 1, memory_order_relaxed);
}

static void uncount(struct bh_slot_owner *owner)
{
	atomic_fetch_sub_explicit(&owner->n_set, 1, memory_order_relaxed);
}

static bh_status fill(struct bh_slot *slot, void *value, bh_slot_fn release)
{
	void *empty = NULL;

	if (slot->release != release)
		return -EINVAL;
	return atomic_compare_exchange_strong_explicit(&slot->value, &empty, value,
						       memory_order_release, memory_order_relaxed)
		       ? 0
		       : -EEXIST;
}

/* Puts `made` in front, unless its owner has got a slot meanwhile: then that one, and `made` is the
 * caller's still. NULL: it is in. */
static struct bh_slot *push(struct bh_buffer *buffer, struct bh_slot *made)
{
	struct bh_slot *other;

	made->next = first(buffer);
	do {
		other = find(made->next, made->owner);
	} while (!other && !atomic_compare_exchange_weak_explicit(&buffer->slots, &made->next, made,
								  memory_order_release,
								  memory_order_acquire));
	return other;
}

static bh_status set(struct bh_slot_owner *owner, struct bh_buffer *buffer, void *value,
		     bh_slot_fn release)
{
	struct bh_slot *slot = find(first(buffer), owner), *made;

	if (slot)
		return fill(slot, value, release);
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->owner = owner;
	made->release = release;
	atomic_init(&made->value, value);
	slot = push(buffer, made);
	if (!slot)
		return 0;
	free(made);
	return fill(slot, value, release);
}

bh_status bh_slot_set(struct bh_slot_owner *owner, struct bh_buffer *buffer, void *value,
		      bh_slot_fn release)
{
	bh_status st;

	assert(value && release);
	if (is_closed(owner))
		return -ESHUTDOWN;
	count(owner);
	st = set(owner, buffer, value, release);
	if (st < 0)
		uncount(owner);
	return st;
}

void *bh_slot_get(const struct bh_slot_owner *owner, struct bh_buffer *buffer)
{
	struct bh_slot *slot = find(first(buffer), owner);

	return slot ? atomic_load_explicit(&slot->value, memory_order_acquire) : NULL;
}

static void *take(struct bh_slot *slot)
{
	return atomic_exchange_explicit(&slot->value, NULL, memory_order_acq_rel);
}

void *bh_slot_clear(struct bh_slot_owner *owner, struct bh_buffer *buffer)
{
	struct bh_slot *slot = find(first(buffer), owner);
	void *value = slot ? take(slot) : NULL;

	/* Here the buffer may be gone, and the slot with it. */
	if (value)
		uncount(owner);
	return value;
}

uint64_t bh_slot_close(struct bh_slot_owner *owner)
{
	atomic_store_explicit(&owner->closed, true, memory_order_release);
	return atomic_load_explicit(&owner->n_set, memory_order_relaxed);
}

bool bh_slot_release(struct bh_buffer *buffer)
{
	struct bh_slot *slots = first(buffer);
	uint32_t n = 0;

	for (struct bh_slot *slot = slots; slot; slot = slot->next) {
		slot->taken = take(slot);
		n += slot->taken != NULL;
	}
	if (n == 0)
		return false;
	/* One for each release(), and the caller's: with that one the count stays above 0 as long as
	 * this loop walks the slots. All are there before the first release() is called, because it
	 * may drop its own at once. Relaxed: whoever learns of the buffer does so from release(). */
	atomic_store_explicit(&buffer->refs, n + 1, memory_order_relaxed);
	for (struct bh_slot *slot = slots; slot; slot = slot->next) {
		void *value = slot->taken;

		if (!value)
			continue;
		slot->taken = NULL;
		/* Before the call: an owner that waits in its close for this release() then finds
		 * it counted out, too. Not in a forked child (EXIT-5): it has none of the owner's
		 * threads, and its locks perhaps as one of those held them. */
		uncount(slot->owner);
		if (is_closed(slot->owner) || bh_pool_is_forked())
			bh_buffer_unref(buffer); /* never the last: the caller's is left */
		else
			slot->owner->call(slot->owner, slot->release, value, buffer);
	}
	return true;
}

void bh_slot_free(struct bh_buffer *buffer)
{
	struct bh_slot *slot = first(buffer);

	while (slot) {
		struct bh_slot *next = slot->next;

		free(slot);
		slot = next;
	}
}
