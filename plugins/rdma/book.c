/* SPDX-License-Identifier: BSD-3-Clause */
/* book - see book.h.
 *
 * Registrations that have regions lie in an array that is sorted by address, length and rights. What is
 * asked of it is "the same bytes" and "what lies around these bytes"; a search tree of libc's answers
 * only the first, and the array is moved once a registration, which costs far less than pinning does.
 * For the second each place knows how far those up to it reach: that never falls from one place to the
 * next, so both are binary searches, whatever was ever registered. */
#include "config.h"

#include "plugins/rdma/book.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* How long bh_rdma_book_free() waits for slots whose release() is on its way on another thread. */
#define RELEASE_WAIT_MS 5000

/* I: fixed after it was made. M: under the book's lock. R: of whoever reaps, one thread. */
struct bh_rdma_use {
	struct bh_rdma_book *book;	 /* I */
	struct bh_rdma_memory memory;	 /* I */
	struct bh_buffer *buffer;	 /* I: ours; in a slot: the slot's, ours after release() */
	uint32_t access;		 /* I: 0: in a slot, for local use */
	bool known;			 /* I: to the transport; not so without a byte */
	uint32_t n_regions;		 /* M */
	uint32_t n_uses;		 /* M: transfers under way */
	bool ends;			 /* M: its last region has been closed, it is in no array */
	bool over;			 /* M: revoked: nothing is left to do but to let go */
	void (*done)(void *, bh_status); /* M: of that close; NULL: nobody waits */
	void *user;			 /* M */
	struct bh_rdma_use *next;	 /* M: in `ended`; in `released`: by release() */
	struct bh_rdma_use *newer, *older; /* M: all that are in slots */
	struct bh_rdma_revoke revoke;	   /* R, then the engine's */
};

struct place {
	struct bh_rdma_use *use;
	uint64_t reach; /* the furthest end of this one and all before it */
};

struct region {
	struct bh_rdma_use *of; /* NULL: free */
	uint32_t generation;	/* the upper half of its handle: a number is not used again soon */
	uint32_t next_free;
};
#define NO_REGION UINT32_MAX

struct bh_rdma_book {
	struct bh_context *ctx;
	const struct bh_services *services;
	struct bh_rdma_transport *transport;
	struct bh_rdma_engine *engine;
	uint64_t instance;
	int wake_fd;
	_Atomic(struct bh_rdma_use *) released; /* A: pushed by release(), taken by reap */
	/* A: threads in release(), whose last step on the book is to leave: the release orders what they
	 * did before the end that acquires it at 0. */
	_Atomic uint32_t n_releasing;

	pthread_mutex_t lock; /* a leaf */
	struct place *sorted; /* M */
	uint32_t n_sorted, sorted_size;
	struct region *regions; /* M */
	uint32_t regions_size, first_free;
	struct bh_rdma_use *ended;			/* M: to deregister, no use any more */
	struct bh_rdma_use *slots;			/* M */
	uint64_t n_regions, n_known, bytes, n_revoking; /* M */
};

/* ---- small things ---------------------------------------------------------------------------- */

static void wake(struct bh_rdma_book *book)
{
	const uint64_t one = 1;

	/* It can fail only when the counter is full, and then the reader has been woken. */
	if (write(book->wake_fd, &one, sizeof(one)) < 0)
		return;
}

static bh_status no_memory(struct bh_rdma_fault *fault)
{
	return bh_rdma_fault(fault, -ENOMEM, "rdma.memory",
			     "the host has no memory for its books; end other programs");
}

static int compare(const struct bh_rdma_use *use, uint64_t address, uint64_t length,
		   uint32_t access)
{
	uint64_t at = (uintptr_t)use->memory.data;

	if (at != address)
		return at < address ? -1 : 1;
	if (use->memory.length != length)
		return use->memory.length < length ? -1 : 1;
	if (use->access != access)
		return use->access < access ? -1 : 1;
	return 0;
}

/* The place of the first that is not below; n_sorted: none is. */
static uint32_t place_of_locked(const struct bh_rdma_book *book, uint64_t address, uint64_t length,
				uint32_t access)
{
	uint32_t low = 0, high = book->n_sorted;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (compare(book->sorted[middle].use, address, length, access) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct bh_rdma_use *find_same_locked(const struct bh_rdma_book *book, uint64_t address,
					    uint64_t length, uint32_t access)
{
	uint32_t at = place_of_locked(book, address, length, access);

	if (at < book->n_sorted && compare(book->sorted[at].use, address, length, access) == 0)
		return book->sorted[at].use;
	return NULL;
}

/* The first that reaches as far as these bytes do, if it begins before them: where `reach` gets there, it
 * is by that place's own end, and when that one begins too late then so does each behind it. At least
 * one byte, so that what the transport does not know, being empty, is never found. */
static struct bh_rdma_use *find_around_locked(const struct bh_rdma_book *book, uint64_t address,
					      uint64_t length)
{
	uint32_t low = 0, high = book->n_sorted;
	struct bh_rdma_use *use;

	assert(length > 0);
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (book->sorted[middle].reach < address + length)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == book->n_sorted)
		return NULL;
	use = book->sorted[low].use;
	return (uintptr_t)use->memory.data <= address ? use : NULL;
}

/* ---- registrations --------------------------------------------------------------------------- */

/* Tells the transport; blocks. Whoever gets it owns it, and may forget() it as long as no peer knows it. */
static bh_status learn(struct bh_rdma_book *book, const struct bh_buffer_info *info,
		       uint32_t access, struct bh_rdma_use **ret_use, struct bh_rdma_fault *fault)
{
	struct bh_rdma_use *use = calloc(1, sizeof(*use));
	bh_status st;

	if (!use)
		return no_memory(fault);
	use->book = book;
	use->access = access;
	use->memory.data = info->data;
	if (info->length > 0) {
		st = book->transport->ops->register_memory(
			book->transport, info->data, info->length, access, &use->memory, fault);
		if (st < 0) {
			free(use);
			return st;
		}
		use->known = true;
	}
	*ret_use = use;
	return 0;
}

static void forget(struct bh_rdma_book *book, struct bh_rdma_use *use)
{
	if (use->known)
		(void)book->transport->ops->deregister(book->transport, &use->memory);
	free(use);
}

static void count_locked(struct bh_rdma_book *book, const struct bh_rdma_use *use, int by)
{
	if (!use->known)
		return;
	if (by > 0) {
		book->n_known++;
		book->bytes += use->memory.length;
	} else {
		book->n_known--;
		book->bytes -= use->memory.length;
	}
}

/* Makes room for one more registration and one more region, so that what follows cannot fail. */
static bool reserve_locked(struct bh_rdma_book *book)
{
	uint32_t size;
	void *grown;

	if (book->n_sorted == book->sorted_size) {
		size = book->sorted_size ? 2 * book->sorted_size : 16;
		grown = reallocarray(book->sorted, size, sizeof(struct place));
		if (!grown)
			return false;
		book->sorted = grown;
		book->sorted_size = size;
	}
	if (book->first_free == NO_REGION) {
		size = book->regions_size ? 2 * book->regions_size : 16;
		grown = reallocarray(book->regions, size, sizeof(struct region));
		if (!grown)
			return false;
		book->regions = grown;
		for (uint32_t i = size; i-- > book->regions_size;) {
			book->regions[i] = (struct region){ .next_free = book->first_free };
			book->first_free = i;
		}
		book->regions_size = size;
	}
	return true;
}

/* Says again how far places reach, from `at` on, whose registration is new there; ends where nothing
 * changes any more, for then it does not behind that either. */
static void settle_locked(struct bh_rdma_book *book, uint32_t at)
{
	uint64_t reach = at > 0 ? book->sorted[at - 1].reach : 0;

	for (uint32_t i = at; i < book->n_sorted; i++) {
		struct place *place = &book->sorted[i];
		uint64_t end = (uintptr_t)place->use->memory.data + place->use->memory.length;

		if (end > reach)
			reach = end;
		if (i > at && place->reach == reach)
			break;
		place->reach = reach;
	}
}

static void insert_locked(struct bh_rdma_book *book, struct bh_rdma_use *use)
{
	uint32_t at =
		place_of_locked(book, (uintptr_t)use->memory.data, use->memory.length, use->access);

	memmove(book->sorted + at + 1, book->sorted + at,
		(book->n_sorted - at) * sizeof(struct place));
	book->sorted[at].use = use;
	book->n_sorted++;
	settle_locked(book, at);
	count_locked(book, use, 1);
}

static void remove_locked(struct bh_rdma_book *book, const struct bh_rdma_use *use)
{
	uint32_t at =
		place_of_locked(book, (uintptr_t)use->memory.data, use->memory.length, use->access);

	assert(at < book->n_sorted && book->sorted[at].use == use);
	book->n_sorted--;
	memmove(book->sorted + at, book->sorted + at + 1,
		(book->n_sorted - at) * sizeof(struct place));
	settle_locked(book, at);
}

static uint64_t add_region_locked(struct bh_rdma_book *book, struct bh_rdma_use *use)
{
	uint32_t index = book->first_free;
	struct region *region = &book->regions[index];

	book->first_free = region->next_free;
	region->of = use;
	region->generation++;
	if (region->generation == 0) /* a handle is never 0 */
		region->generation = 1;
	use->n_regions++;
	book->n_regions++;
	return (uint64_t)region->generation << 32 | index;
}

static struct region *find_region_locked(const struct bh_rdma_book *book, uint64_t handle)
{
	uint32_t index = (uint32_t)handle;

	if (index >= book->regions_size || !book->regions[index].of ||
	    book->regions[index].generation != handle >> 32)
		return NULL;
	return &book->regions[index];
}

static void tell_facts_locked(const struct bh_rdma_book *book, uint64_t handle,
			      const struct bh_rdma_use *use, struct bh_rdma_region_facts *ret_facts)
{
	struct bh_rdma_descriptor descriptor = {
		.kind = book->transport->kind,
		.access = use->access,
		.instance = book->instance,
		.base = use->memory.base,
		.length = use->memory.length,
		.key = use->memory.key,
		.address = book->transport->address,
	};

	memset(ret_facts, 0, sizeof(*ret_facts));
	ret_facts->handle = handle;
	ret_facts->address = (uintptr_t)use->memory.data;
	ret_facts->length = use->memory.length;
	ret_facts->access = use->access;
	ret_facts->n_sharing = use->n_regions;
	ret_facts->n_uses = use->n_uses;
	ret_facts->descriptor_length =
		(uint32_t)bh_rdma_descriptor_encode(&descriptor, ret_facts->descriptor);
}

/* A region on bytes that are registered so already. */
static bool share_locked(struct bh_rdma_book *book, const struct bh_buffer_info *info,
			 uint32_t access, struct bh_rdma_region_facts *ret_facts)
{
	struct bh_rdma_use *use =
		find_same_locked(book, (uintptr_t)info->data, info->length, access);

	if (!use)
		return false;
	tell_facts_locked(book, add_region_locked(book, use), use, ret_facts);
	return true;
}

bh_status bh_rdma_book_register(struct bh_rdma_book *book, struct bh_buffer *buffer,
				uint32_t access, struct bh_rdma_region_facts *ret_facts,
				struct bh_rdma_fault *fault)
{
	struct bh_buffer_info info = { .size = sizeof(info) };
	struct bh_rdma_use *use = NULL;
	bool room, shared = false;
	bh_status st;

	st = book->services->buffer_info(buffer, &info);
	if (st < 0)
		return bh_rdma_fault(fault, st, "rdma.buffer",
				     "the buffer does not say where it lies");
	pthread_mutex_lock(&book->lock);
	room = reserve_locked(book);
	if (room)
		shared = share_locked(book, &info, access, ret_facts);
	pthread_mutex_unlock(&book->lock);
	if (!room)
		return no_memory(fault);
	if (shared)
		return 0;
	st = learn(book, &info, access, &use, fault);
	if (st < 0)
		return st;
	use->buffer = book->services->buffer_ref(buffer);
	pthread_mutex_lock(&book->lock);
	room = reserve_locked(book); /* again: others have registered meanwhile */
	if (room)
		shared = share_locked(book, &info, access, ret_facts);
	if (room && !shared) {
		insert_locked(book, use);
		tell_facts_locked(book, add_region_locked(book, use), use, ret_facts);
	}
	pthread_mutex_unlock(&book->lock);
	if (room && !shared)
		return 0;
	/* Another worker was quicker with the same bytes, or there is no memory: nobody knows ours. */
	forget(book, use);
	book->services->buffer_unref(buffer);
	return room ? 0 : no_memory(fault);
}

bh_status bh_rdma_book_facts(struct bh_rdma_book *book, uint64_t handle,
			     struct bh_rdma_region_facts *ret_facts)
{
	struct region *region;

	pthread_mutex_lock(&book->lock);
	region = find_region_locked(book, handle);
	if (region)
		tell_facts_locked(book, handle, region->of, ret_facts);
	pthread_mutex_unlock(&book->lock);
	return region ? 0 : -ENOENT;
}

/* ---- the end of a registration ---------------------------------------------------------------- */

static void end_locked(struct bh_rdma_book *book, struct bh_rdma_use *use)
{
	use->next = book->ended;
	book->ended = use;
}

/* Nothing can touch its memory any more. */
static void finish(struct bh_rdma_use *use)
{
	struct bh_rdma_book *book = use->book;
	void (*done)(void *, bh_status) = use->done;
	void *user = use->user;

	pthread_mutex_lock(&book->lock);
	count_locked(book, use, -1);
	pthread_mutex_unlock(&book->lock);
	/* Before anybody is told: who has closed a region finds its memory free again. */
	book->services->buffer_unref(use->buffer);
	free(use);
	if (done)
		done(user, 0);
}

/* On the engine's thread, which is not to unmap what may be gigabytes: that is the reaper's too. */
static void revoked(struct bh_rdma_revoke *revoke)
{
	struct bh_rdma_use *use = revoke->user;
	struct bh_rdma_book *book = use->book;

	pthread_mutex_lock(&book->lock);
	book->n_revoking--;
	use->over = true;
	end_locked(book, use);
	pthread_mutex_unlock(&book->lock);
	wake(book); /* `use` may be gone by now */
}

bh_status bh_rdma_book_close(struct bh_rdma_book *book, uint64_t handle,
			     void (*done)(void *user, bh_status status), void *user)
{
	struct bh_rdma_use *use = NULL;
	struct region *region;
	bool last = false;

	pthread_mutex_lock(&book->lock);
	region = find_region_locked(book, handle);
	if (region) {
		use = region->of;
		region->of = NULL;
		region->next_free = book->first_free;
		book->first_free = (uint32_t)handle;
		book->n_regions--;
		last = --use->n_regions == 0;
	}
	if (last) {
		remove_locked(book, use);
		use->ends = true;
		use->done = done;
		use->user = user;
		if (use->n_uses == 0)
			end_locked(book, use);
	}
	pthread_mutex_unlock(&book->lock);
	if (last)
		wake(book);
	return !region ? -ENOENT : last;
}

/* ---- local use ------------------------------------------------------------------------------- */

/* The last reference to a buffer with a slot went; the one that was passed is ours. Any thread, perhaps
 * with the GIL. */
static void release(void *value, struct bh_buffer *buffer)
{
	struct bh_rdma_use *use = value;
	struct bh_rdma_book *book = use->book;

	assert(buffer == use->buffer);
	(void)buffer;
	atomic_fetch_add_explicit(&book->n_releasing, 1, memory_order_relaxed);
	use->next = atomic_load_explicit(&book->released, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&book->released, &use->next, use,
						      memory_order_release, memory_order_relaxed))
		;
	wake(book); /* `use` may be gone by now, but the book is not */
	atomic_fetch_sub_explicit(&book->n_releasing, 1, memory_order_release);
}

static void link_slot_locked(struct bh_rdma_book *book, struct bh_rdma_use *use)
{
	use->older = book->slots;
	if (use->older)
		use->older->newer = use;
	book->slots = use;
	count_locked(book, use, 1);
}

static void unlink_slot_locked(struct bh_rdma_book *book, struct bh_rdma_use *use)
{
	if (use->newer)
		use->newer->older = use->older;
	else
		book->slots = use->older;
	if (use->older)
		use->older->newer = use->newer;
	count_locked(book, use, -1);
}

/* What the buffer's slot has; blocks when it has nothing. */
static bh_status slot_of(struct bh_rdma_book *book, struct bh_buffer *buffer,
			 const struct bh_buffer_info *info, struct bh_rdma_use **ret_use,
			 struct bh_rdma_fault *fault)
{
	struct bh_rdma_use *use;
	bh_status st;

	for (;;) {
		use = book->services->buffer_slot_get(book->ctx, buffer);
		if (use)
			break;
		st = learn(book, info, 0, &use, fault);
		if (st < 0)
			return st;
		use->buffer = buffer;
		st = book->services->buffer_slot_set(book->ctx, buffer, use, release);
		if (st == 0) {
			pthread_mutex_lock(&book->lock);
			link_slot_locked(book, use);
			pthread_mutex_unlock(&book->lock);
			break;
		}
		forget(book, use);
		if (st != -EEXIST) /* else another worker was quicker */
			return bh_rdma_fault(fault, st, "rdma.slot",
					     "the host does not keep the registration");
	}
	*ret_use = use;
	return 0;
}

bh_status bh_rdma_book_use(struct bh_rdma_book *book, struct bh_buffer *buffer,
			   struct bh_rdma_use **ret_use, const struct bh_rdma_memory **ret_memory,
			   struct bh_rdma_fault *fault)
{
	struct bh_buffer_info info = { .size = sizeof(info) };
	bool needs_memory = book->transport->needs_memory;
	struct bh_rdma_use *use = NULL;
	bh_status st;

	st = book->services->buffer_info(buffer, &info);
	if (st < 0)
		return bh_rdma_fault(fault, st, "rdma.buffer",
				     "the buffer does not say where it lies");
	if (info.length > 0) {
		pthread_mutex_lock(&book->lock);
		use = find_around_locked(book, (uintptr_t)info.data, info.length);
		if (use)
			use->n_uses++;
		pthread_mutex_unlock(&book->lock);
	}
	if (!use && needs_memory && info.length > 0) {
		st = slot_of(book, buffer, &info, &use, fault);
		if (st < 0)
			return st;
		/* The use keeps the buffer, and so the slot. */
		book->services->buffer_ref(buffer);
		pthread_mutex_lock(&book->lock);
		use->n_uses++;
		pthread_mutex_unlock(&book->lock);
	}
	*ret_use = use;
	*ret_memory = use && needs_memory ? &use->memory : NULL;
	return 0;
}

void bh_rdma_book_unuse(struct bh_rdma_book *book, struct bh_rdma_use *use)
{
	struct bh_buffer *buffer;
	bool ended;

	if (!use)
		return;
	pthread_mutex_lock(&book->lock);
	ended = --use->n_uses == 0 && use->ends;
	buffer = use->access == 0 ? use->buffer : NULL;
	if (ended)
		end_locked(book, use);
	pthread_mutex_unlock(&book->lock);
	if (ended)
		wake(book);
	if (buffer)
		book->services->buffer_unref(buffer);
}

/* ---- deregistration --------------------------------------------------------------------------- */

int bh_rdma_book_descriptor(const struct bh_rdma_book *book)
{
	return book->wake_fd;
}

/* Only this side has ever used it, and no transfer does: each would hold the buffer. */
static void reap_released(struct bh_rdma_book *book)
{
	struct bh_rdma_use *use =
		atomic_exchange_explicit(&book->released, NULL, memory_order_acquire);

	while (use) {
		struct bh_rdma_use *next = use->next;
		struct bh_buffer *buffer = use->buffer;

		pthread_mutex_lock(&book->lock);
		unlink_slot_locked(book, use);
		pthread_mutex_unlock(&book->lock);
		forget(book, use);
		book->services->buffer_unref(buffer);
		use = next;
	}
}

static struct bh_rdma_use *take_ended(struct bh_rdma_book *book)
{
	struct bh_rdma_use *use;

	pthread_mutex_lock(&book->lock);
	use = book->ended;
	book->ended = NULL;
	pthread_mutex_unlock(&book->lock);
	return use;
}

static void reap_ended(struct bh_rdma_book *book)
{
	struct bh_rdma_use *use = take_ended(book);

	while (use) {
		struct bh_rdma_use *next = use->next;

		if (use->over || !use->known ||
		    book->transport->ops->deregister(book->transport, &use->memory)) {
			finish(use);
		} else {
			pthread_mutex_lock(&book->lock);
			book->n_revoking++;
			pthread_mutex_unlock(&book->lock);
			use->revoke = (struct bh_rdma_revoke){ .done = revoked, .user = use };
			/* -ESHUTDOWN: revoked() has been called, and it comes here again. */
			(void)bh_rdma_engine_revoke(book->engine, &use->revoke);
		}
		use = next;
	}
}

void bh_rdma_book_reap(struct bh_rdma_book *book)
{
	uint64_t count;

	/* Read first: what comes behind it is seen now, or wakes again. */
	if (read(book->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
		return;
	reap_released(book);
	reap_ended(book);
}

/* ---- the whole ------------------------------------------------------------------------------- */

void bh_rdma_book_counts(struct bh_rdma_book *book, struct bh_rdma_book_counts *ret_counts)
{
	pthread_mutex_lock(&book->lock);
	ret_counts->regions = book->n_regions;
	ret_counts->registrations = book->n_known;
	ret_counts->bytes = book->bytes;
	pthread_mutex_unlock(&book->lock);
}

bh_status bh_rdma_book_new(struct bh_context *ctx, const struct bh_services *services,
			   struct bh_rdma_transport *transport, struct bh_rdma_engine *engine,
			   uint64_t instance, struct bh_rdma_book **ret_book)
{
	struct bh_rdma_book *book = calloc(1, sizeof(*book));

	if (!book)
		return -ENOMEM;
	book->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (book->wake_fd < 0) {
		int number = errno;

		free(book);
		return -number;
	}
	book->ctx = ctx;
	book->services = services;
	book->transport = transport;
	book->engine = engine;
	book->instance = instance;
	book->first_free = NO_REGION;
	pthread_mutex_init(&book->lock, NULL);
	*ret_book = book;
	return 0;
}

/* The leak report: one line, whatever their number. */
static void report_left(const struct bh_rdma_book *book)
{
	const struct bh_rdma_use *first = book->n_sorted > 0 ? book->sorted[0].use : NULL;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < book->n_sorted; i++)
		bytes += book->sorted[i].use->memory.length;
	if (first) {
		const struct bh_fact facts[] = {
			bh_fact_str("plugin", book->services->label(book->ctx)),
			bh_fact_int("regions", (int64_t)book->n_regions),
			bh_fact_int("bytes", (int64_t)bytes),
			bh_fact_int("first_address", (int64_t)(uintptr_t)first->memory.data),
			bh_fact_int("first_length", (int64_t)first->memory.length),
			bh_fact_str("advice", "close each region, or use it with `async with`"),
		};

		book->services->log(book->ctx, BH_LOG_WARNING,
				    "regions were left open; they are released now", facts,
				    sizeof(facts) / sizeof(facts[0]));
	}
}

/* Clears each slot, or waits until its release() has been: one that has been called gives its value
 * back by `released` alone. */
static uint32_t free_slots(struct bh_rdma_book *book)
{
	struct pollfd fd = { .fd = book->wake_fd, .events = POLLIN };
	uint32_t n_left = 0;

	for (struct bh_rdma_use *use = book->slots, *older; use; use = older) {
		older = use->older;
		if (use->n_uses > 0) /* a lost transfer's: it holds the buffer, for good */
			continue;
		if (!book->services->buffer_slot_clear(book->ctx, use->buffer))
			continue;
		unlink_slot_locked(book, use);
		forget(book, use);
	}
	for (;;) {
		n_left = 0;
		bh_rdma_book_reap(book);
		for (const struct bh_rdma_use *use = book->slots; use; use = use->older)
			n_left += use->n_uses == 0;
		if (n_left == 0 || poll(&fd, 1, RELEASE_WAIT_MS) <= 0)
			break;
	}
	n_left = 0;
	for (struct bh_rdma_use *use = book->slots; use; use = use->older) {
		/* What may yet touch the memory keeps the registration and the buffer; the slot goes,
		 * for release() must not be called any more. */
		n_left++;
		if (use->n_uses > 0)
			(void)book->services->buffer_slot_clear(book->ctx, use->buffer);
	}
	return n_left;
}

/* What was released has been reaped, but who did it may not have left release() yet: a few instructions,
 * bounded all the same. */
static bool releases_are_over(const struct bh_rdma_book *book)
{
	const struct timespec nap = { .tv_nsec = 100000 };

	for (uint32_t n = 0; n < RELEASE_WAIT_MS * 10; n++) {
		if (atomic_load_explicit(&book->n_releasing, memory_order_acquire) == 0)
			return true;
		nanosleep(&nap, NULL);
	}
	return false;
}

/* Links are gone, and with them all that peers could still have been about to do. */
static uint32_t free_registrations(struct bh_rdma_book *book)
{
	struct bh_rdma_use *use = take_ended(book);
	uint32_t n_left = 0;

	while (use) {
		struct bh_rdma_use *next = use->next;

		if (use->known && !use->over)
			(void)book->transport->ops->deregister(book->transport, &use->memory);
		finish(use);
		use = next;
	}
	for (uint32_t i = 0; i < book->n_sorted; i++) {
		use = book->sorted[i].use;
		if (use->n_uses > 0) {
			n_left++;
			continue;
		}
		if (use->known)
			(void)book->transport->ops->deregister(book->transport, &use->memory);
		finish(use);
	}
	return n_left;
}

uint32_t bh_rdma_book_free(struct bh_rdma_book *book)
{
	uint32_t n_left;

	if (!book)
		return 0;
	report_left(book);
	n_left = free_slots(book);
	n_left += free_registrations(book);
	n_left += (uint32_t)book->n_revoking;
	if (n_left > 0 || !releases_are_over(book))
		return n_left; /* they refer to it */
	free(book->sorted);
	free(book->regions);
	close(book->wake_fd);
	pthread_mutex_destroy(&book->lock);
	free(book);
	return 0;
}
