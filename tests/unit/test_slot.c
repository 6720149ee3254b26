/* SPDX-License-Identifier: BSD-3-Clause */
/* test_slot - host/core/slot.c, and what bh_buffer_unref() makes of it. The records are real memory, so
 * that the sanitizers see who touches one that is gone. */
#include "config.h"

#include "host/core/slot.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "host/core/memory.h"
#include "host/core/value.h"
#include "tests/unit/tap.h"

/* An owner that notes what is released, and perhaps keeps the reference that came with it. */
struct holder {
	struct bh_slot_owner owner; /* first: see released() */
	int n_called;
	bool keeps;
	void *value;
	struct bh_buffer *buffer;
};

static _Atomic(int) n_freed;
static void (*free_memory)(struct bh_buffer *buffer);

static void counted_free(struct bh_buffer *buffer)
{
	atomic_fetch_add(&n_freed, 1);
	free_memory(buffer);
}

static struct bh_buffer *buffer_new(void)
{
	struct bh_buffer_info info = { .size = sizeof(info),
				       .n_dims = 1,
				       .shape = { 64 },
				       .dtype_code = BH_DTYPE_UINT,
				       .dtype_bits = 8,
				       .flags = BH_BUFFER_WRITABLE };
	struct bh_buffer *buffer = NULL;

	if (bh_memory_new(&info, 64, &buffer) < 0)
		abort();
	free_memory = buffer->free;
	buffer->free = counted_free;
	memset(buffer->info.data, 0x5a, 64);
	return buffer;
}

static void call_noting(struct bh_slot_owner *owner, bh_slot_fn release, void *value,
			struct bh_buffer *buffer)
{
	struct holder *holder = (struct holder *)owner;

	holder->n_called++;
	holder->value = value;
	holder->buffer = buffer;
	release(value, buffer);
	if (!holder->keeps)
		bh_buffer_unref(buffer);
}

static void nothing(void *value, struct bh_buffer *buffer)
{
	(void)value;
	(void)buffer;
}

static void nothing_else(void *value, struct bh_buffer *buffer)
{
	(void)value;
	(void)buffer;
}

static void one_slot_an_owner_and_buffer(void)
{
	struct holder a = { .owner.call = call_noting }, b = { .owner.call = call_noting };
	struct bh_buffer *buffer = buffer_new(), *other = buffer_new();
	int x, y;

	n_freed = 0;
	CU_ASSERT_PTR_NULL(bh_slot_get(&a.owner, buffer));
	CU_ASSERT_PTR_NULL(bh_slot_clear(&a.owner, buffer));
	CU_ASSERT_EQUAL(bh_slot_set(&a.owner, buffer, &x, nothing), 0);
	CU_ASSERT_EQUAL(bh_slot_set(&a.owner, buffer, &y, nothing), -EEXIST);
	CU_ASSERT_PTR_EQUAL(bh_slot_get(&a.owner, buffer), &x);
	CU_ASSERT_PTR_NULL(bh_slot_get(&a.owner, other));
	CU_ASSERT_PTR_NULL(bh_slot_get(&b.owner, buffer));
	CU_ASSERT_EQUAL(bh_slot_set(&b.owner, buffer, &y, nothing), 0);
	CU_ASSERT_PTR_EQUAL(bh_slot_get(&b.owner, buffer), &y);
	CU_ASSERT_EQUAL(a.owner.n_set, 1);
	CU_ASSERT_PTR_EQUAL(bh_slot_clear(&a.owner, buffer), &x);
	CU_ASSERT_PTR_NULL(bh_slot_clear(&a.owner, buffer));
	CU_ASSERT_PTR_NULL(bh_slot_get(&a.owner, buffer));
	CU_ASSERT_EQUAL(a.owner.n_set, 0);
	CU_ASSERT_EQUAL(bh_slot_set(&a.owner, buffer, &y, nothing_else), -EINVAL);
	CU_ASSERT_EQUAL(a.owner.n_set, 0);
	CU_ASSERT_EQUAL(bh_slot_set(&a.owner, buffer, &y, nothing), 0);
	CU_ASSERT_PTR_EQUAL(bh_slot_clear(&a.owner, buffer), &y);
	CU_ASSERT_PTR_EQUAL(bh_slot_clear(&b.owner, buffer), &y);
	bh_buffer_unref(buffer);
	bh_buffer_unref(other);
	CU_ASSERT_EQUAL(n_freed, 2);
	CU_ASSERT_EQUAL(a.n_called + b.n_called, 0); /* what was cleared is not released */
}

static void the_last_reference_is_handed_to_release(void)
{
	struct holder a = { .owner.call = call_noting, .keeps = true };
	struct bh_buffer *buffer = buffer_new();
	int x;

	n_freed = 0;
	CU_ASSERT_EQUAL(bh_slot_set(&a.owner, buffer, &x, nothing), 0);
	bh_buffer_unref(bh_buffer_ref(buffer));
	CU_ASSERT_EQUAL(a.n_called, 0);
	bh_buffer_unref(buffer);
	CU_ASSERT_EQUAL(a.n_called, 1);
	CU_ASSERT_PTR_EQUAL(a.value, &x);
	CU_ASSERT_EQUAL(a.owner.n_set, 0);
	CU_ASSERT_EQUAL_FATAL(n_freed, 0);
	CU_ASSERT_EQUAL(buffer->refs, 1);
	CU_ASSERT_EQUAL(((unsigned char *)buffer->info.data)[63], 0x5a);
	CU_ASSERT_PTR_NULL(bh_slot_get(&a.owner, buffer));
	bh_buffer_unref(buffer);
	CU_ASSERT_EQUAL(n_freed, 1);
	CU_ASSERT_EQUAL(a.n_called, 1);
}

static void each_owner_gets_a_reference_of_its_own(void)
{
	struct holder drops = { .owner.call = call_noting };
	struct holder keeps = { .owner.call = call_noting, .keeps = true };
	struct holder last = { .owner.call = call_noting };
	struct bh_buffer *buffer = buffer_new();
	int x;

	n_freed = 0;
	CU_ASSERT_EQUAL(bh_slot_set(&last.owner, buffer, &x, nothing), 0);
	CU_ASSERT_EQUAL(bh_slot_set(&keeps.owner, buffer, &x, nothing), 0);
	CU_ASSERT_EQUAL(bh_slot_set(&drops.owner, buffer, &x, nothing), 0);
	bh_buffer_unref(buffer);
	CU_ASSERT_EQUAL(drops.n_called + keeps.n_called + last.n_called, 3);
	CU_ASSERT_EQUAL_FATAL(n_freed, 0);
	CU_ASSERT_EQUAL(buffer->refs, 1);
	bh_buffer_unref(keeps.buffer);
	CU_ASSERT_EQUAL(n_freed, 1);
}

static struct holder again;
static int n_again;

/* Uses the buffer in every way that a holder of a reference may. */
static void release_that_sets_anew(void *value, struct bh_buffer *buffer)
{
	CU_ASSERT_PTR_NULL(bh_slot_get(&again.owner, buffer));
	CU_ASSERT_PTR_NULL(bh_slot_clear(&again.owner, buffer));
	bh_buffer_unref(bh_buffer_ref(buffer));
	if (++n_again > 3)
		return;
	CU_ASSERT_EQUAL(
		bh_slot_set(&again.owner, buffer, (char *)value + 1, release_that_sets_anew), 0);
	if (n_again == 2) { /* and takes it back once */
		CU_ASSERT_PTR_EQUAL(bh_slot_clear(&again.owner, buffer), (char *)value + 1);
		CU_ASSERT_EQUAL(bh_slot_set(&again.owner, buffer, value, release_that_sets_anew),
				0);
	}
}

static void release_may_use_the_buffer(void)
{
	struct bh_buffer *buffer = buffer_new();
	char text[8];

	n_freed = n_again = 0;
	again = (struct holder){ .owner.call = call_noting };
	CU_ASSERT_EQUAL(bh_slot_set(&again.owner, buffer, text, release_that_sets_anew), 0);
	bh_buffer_unref(buffer);
	CU_ASSERT_EQUAL(again.n_called, 4); /* once for each value that was set and not cleared */
	CU_ASSERT_PTR_EQUAL(again.value, text + 2);
	CU_ASSERT_EQUAL(n_freed, 1);
}

static void a_closed_owner_is_never_called(void)
{
	struct holder gone = { .owner.call = call_noting }, there = { .owner.call = call_noting };
	struct bh_buffer *buffer = buffer_new(), *alone = buffer_new();
	int x;

	n_freed = 0;
	CU_ASSERT_EQUAL(bh_slot_set(&gone.owner, buffer, &x, nothing), 0);
	CU_ASSERT_EQUAL(bh_slot_set(&there.owner, buffer, &x, nothing), 0);
	CU_ASSERT_EQUAL(bh_slot_set(&gone.owner, alone, &x, nothing), 0);
	CU_ASSERT_EQUAL(bh_slot_close(&gone.owner), 2);
	CU_ASSERT_EQUAL(bh_slot_set(&gone.owner, buffer, &x, nothing), -ESHUTDOWN);
	CU_ASSERT_PTR_EQUAL(bh_slot_get(&gone.owner, buffer), &x); /* a late thread may look */
	bh_buffer_unref(alone);
	CU_ASSERT_EQUAL(n_freed, 1);
	bh_buffer_unref(buffer);
	CU_ASSERT_EQUAL(n_freed, 2);
	CU_ASSERT_EQUAL(gone.n_called, 0);
	CU_ASSERT_EQUAL(there.n_called, 1);
}

/* ---- threads --------------------------------------------------------------------------------- */

#define THREADS 4

static void run_threads(void *(*fn)(void *arg), void *arg)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, fn, arg), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

/* What is set is a record on the heap with what it says; it must be taken back exactly once. */
struct record {
	uint64_t sound;
};
#define SOUND UINT64_C(0x0123456789abcdef)

struct crowd {
	struct bh_slot_owner owner;
	struct bh_buffer *buffer;
	pthread_barrier_t barrier;
	_Atomic(int) n_made, n_gone, n_lost_sight;
};

static struct crowd *crowd_of(struct bh_slot_owner *owner)
{
	return bh_container_of(owner, struct crowd, owner);
}

static void record_end(struct crowd *crowd, struct record *record)
{
	if (record->sound != SOUND)
		abort();
	record->sound = 0;
	free(record);
	atomic_fetch_add(&crowd->n_gone, 1);
}

static void call_in_crowd(struct bh_slot_owner *owner, bh_slot_fn release, void *value,
			  struct bh_buffer *buffer)
{
	release(value, buffer);
	if (((unsigned char *)buffer->info.data)[0] != 0x5a)
		abort();
	record_end(crowd_of(owner), value);
	bh_buffer_unref(buffer);
}

static void *set_and_clear(void *arg)
{
	struct crowd *crowd = arg;

	for (int i = 0; i < 5000; i++) {
		struct record *record = malloc(sizeof(*record)), *found;
		bh_status st;

		bh_buffer_ref(crowd->buffer);
		record->sound = SOUND;
		atomic_fetch_add(&crowd->n_made, 1);
		st = bh_slot_set(&crowd->owner, crowd->buffer, record, nothing);
		if (st == -EEXIST)
			record_end(crowd, record);
		else if (st < 0)
			abort();
		if (i % 3 == 0) {
			found = bh_slot_clear(&crowd->owner, crowd->buffer);
			if (found)
				record_end(crowd, found);
		}
		bh_buffer_unref(crowd->buffer);
	}
	bh_buffer_unref(crowd->buffer); /* the thread's own */
	return NULL;
}

static void every_value_is_taken_back_once(void)
{
	struct crowd crowd = { .owner.call = call_in_crowd };

	n_freed = 0;
	for (int round = 0; round < 10; round++) {
		crowd.buffer = buffer_new();
		for (int i = 1; i < THREADS; i++)
			bh_buffer_ref(crowd.buffer);
		run_threads(set_and_clear, &crowd);
		CU_ASSERT_EQUAL(n_freed, round + 1);
		CU_ASSERT_EQUAL(crowd.n_made, crowd.n_gone);
		CU_ASSERT_EQUAL(crowd.owner.n_set, 0);
	}
}

static void *set_once(void *arg)
{
	struct crowd *crowd = arg;
	struct record *record = malloc(sizeof(*record)), *found;

	record->sound = SOUND;
	pthread_barrier_wait(&crowd->barrier);
	if (bh_slot_set(&crowd->owner, crowd->buffer, record, nothing) == 0)
		atomic_fetch_add(&crowd->n_made, 1);
	else
		free(record);
	/* Whoever has lost finds at once what the winner has set. */
	found = bh_slot_get(&crowd->owner, crowd->buffer);
	if (!found || found->sound != SOUND)
		atomic_fetch_add(&crowd->n_lost_sight, 1);
	bh_buffer_unref(crowd->buffer);
	return NULL;
}

static void of_many_that_set_one_wins_and_all_see_it(void)
{
	struct crowd crowd = { .owner.call = call_in_crowd };

	pthread_barrier_init(&crowd.barrier, NULL, THREADS);
	for (int round = 0; round < 300; round++) {
		crowd.buffer = buffer_new();
		for (int i = 1; i < THREADS; i++)
			bh_buffer_ref(crowd.buffer);
		run_threads(set_once, &crowd);
		CU_ASSERT_EQUAL(crowd.n_made, round + 1);
		CU_ASSERT_EQUAL(crowd.n_gone, round + 1);
	}
	CU_ASSERT_EQUAL(crowd.n_lost_sight, 0);
	pthread_barrier_destroy(&crowd.barrier);
}

/* As a plugin closes: it knows its buffers by pointers that hold no reference. Under its lock such a
 * pointer is good while the entry is there, because release() takes the entry out. */
struct plugin {
	struct bh_slot_owner owner;
	pthread_mutex_t lock;
	_Atomic(uint32_t) arrived;
	int ahead;		 /* between two meetings: fixed; how far the clear comes first */
	struct bh_buffer *made;	 /* between two meetings: fixed */
	struct bh_buffer *entry; /* under lock; NULL: released */
	int n_released, n_cleared;
};

static void call_plugin(struct bh_slot_owner *owner, bh_slot_fn release, void *value,
			struct bh_buffer *buffer)
{
	struct plugin *plugin = bh_container_of(owner, struct plugin, owner);

	(void)release;
	(void)value;
	pthread_mutex_lock(&plugin->lock);
	plugin->entry = NULL;
	plugin->n_released++;
	pthread_mutex_unlock(&plugin->lock);
	if (((unsigned char *)buffer->info.data)[0] != 0x5a)
		abort();
	bh_buffer_unref(buffer);
}

#define RACES 20000

/* The other thread, too, is at step `n`: both go on within nanoseconds, where there are two CPUs. */
static void meet(struct plugin *plugin, uint32_t n)
{
	uint32_t tries = 0;

	atomic_fetch_add(&plugin->arrived, 1);
	while (atomic_load(&plugin->arrived) < 2 * n)
		if (++tries % 1024 == 0)
			sched_yield();
}

static void dawdle(int n)
{
	_Atomic(int) steps = 0;

	while (n-- > 0)
		atomic_fetch_add(&steps, 1);
}

static void *drop_last(void *arg)
{
	struct plugin *plugin = arg;

	for (uint32_t i = 0; i < RACES; i++) {
		meet(plugin, 2 * i + 1); /* it has been made */
		dawdle(-plugin->ahead);
		bh_buffer_unref(plugin->made);
		meet(plugin, 2 * i + 2);
	}
	return NULL;
}

static void a_kept_pointer_may_be_cleared_while_the_last_reference_goes(void)
{
	struct plugin plugin = { .owner.call = call_plugin };
	int wrong = 0;
	bool cleared;
	pthread_t thread;

	n_freed = 0;
	pthread_mutex_init(&plugin.lock, NULL);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, drop_last, &plugin), 0);
	for (uint32_t i = 0; i < RACES; i++) {
		plugin.made = plugin.entry = buffer_new();
		wrong += bh_slot_set(&plugin.owner, plugin.made, &plugin, nothing) != 0;
		meet(&plugin, 2 * i + 1);
		dawdle(plugin.ahead);
		pthread_mutex_lock(&plugin.lock);
		cleared = plugin.entry && bh_slot_clear(&plugin.owner, plugin.entry);
		pthread_mutex_unlock(&plugin.lock);
		meet(&plugin, 2 * i + 2);
		plugin.n_cleared += cleared;
		plugin.ahead += cleared ? 1 : -1; /* so that neither always comes first */
		wrong += plugin.n_cleared + plugin.n_released != (int)i + 1;
		wrong += n_freed != (int)i + 1;
	}
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(wrong, 0);
	CU_ASSERT_EQUAL(plugin.owner.n_set, 0);
	pthread_mutex_destroy(&plugin.lock);
	printf("# cleared %d, released %d\n", plugin.n_cleared, plugin.n_released);
}

/* release() leaves the work, and the reference, to another thread. */
static void *undo_later(void *arg)
{
	bh_buffer_unref(arg);
	return NULL;
}

static void call_on_another_thread(struct bh_slot_owner *owner, bh_slot_fn release, void *value,
				   struct bh_buffer *buffer)
{
	pthread_t *thread = value;

	(void)owner;
	(void)release;
	if (pthread_create(thread, NULL, undo_later, buffer) != 0)
		abort();
}

static void the_reference_may_be_dropped_before_release_returns(void)
{
	struct bh_slot_owner a = { .call = call_on_another_thread }, b = a, c = a;

	n_freed = 0;
	for (int i = 0; i < 300; i++) {
		struct bh_buffer *buffer = buffer_new();
		pthread_t threads[3];

		CU_ASSERT_EQUAL(bh_slot_set(&a, buffer, &threads[0], nothing), 0);
		CU_ASSERT_EQUAL(bh_slot_set(&b, buffer, &threads[1], nothing), 0);
		CU_ASSERT_EQUAL(bh_slot_set(&c, buffer, &threads[2], nothing), 0);
		bh_buffer_unref(buffer);
		for (int j = 0; j < 3; j++)
			pthread_join(threads[j], NULL);
		CU_ASSERT_EQUAL(n_freed, i + 1);
	}
}

static const struct bh_test tests[] = {
	{ "an owner has one slot on a buffer, and one release()", one_slot_an_owner_and_buffer },
	{ "the last reference is handed to release(), and the memory lives until it is dropped",
	  the_last_reference_is_handed_to_release },
	{ "each owner gets a reference of its own, in whatever order they go",
	  each_owner_gets_a_reference_of_its_own },
	{ "release() may ref, get, set and clear; what it has set is released in turn",
	  release_may_use_the_buffer },
	{ "an owner that has been closed is never called, and holds nothing up",
	  a_closed_owner_is_never_called },
	{ "on several threads every value that is set is cleared or released exactly once",
	  every_value_is_taken_back_once },
	{ "of many that set at once one wins, and the others see its value",
	  of_many_that_set_one_wins_and_all_see_it },
	{ "a kept pointer may be cleared while another thread drops the last reference",
	  a_kept_pointer_may_be_cleared_while_the_last_reference_goes },
	{ "the references may be dropped by other threads before release() has returned",
	  the_reference_may_be_dropped_before_release_returns },
};

BH_TAP_MAIN("slot", tests)
