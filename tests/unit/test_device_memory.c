/* SPDX-License-Identifier: BSD-3-Clause */
/* test_device_memory - host/core/device_memory.c. The "device" memory is malloc'ed and freed as soon as
 * a revoke allows it, so that the sanitizers see who uses it too late. */
#include "config.h"

#include "host/core/device_memory.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/tap.h"

struct owner {
	struct bh_slot_owner slots;
	int n_released;
	void *value;
	struct bh_buffer *buffer; /* with the reference that came with it, where kept */
	bool keeps;
};

static void call_owner(struct bh_slot_owner *slots, bh_slot_fn release, void *value,
		       struct bh_buffer *buffer)
{
	struct owner *owner = bh_container_of(slots, struct owner, slots);

	release(value, buffer);
	owner->n_released++;
	owner->value = value;
	owner->buffer = buffer;
	if (!owner->keeps)
		bh_buffer_unref(buffer);
}

static void nothing(void *value, struct bh_buffer *buffer)
{
	(void)value;
	(void)buffer;
}

static struct bh_buffer_info bytes(void *data, int64_t n)
{
	return (struct bh_buffer_info){ .size = sizeof(struct bh_buffer_info),
					.kind = BH_BUFFER_CUDA,
					.flags = BH_BUFFER_WRITABLE,
					.n_dims = 1,
					.data = data,
					.dtype_code = BH_DTYPE_UINT,
					.dtype_bits = 8,
					.shape = { n } };
}

static struct bh_buffer *wrap(struct owner *owner, void *data)
{
	struct bh_buffer_info info = bytes(data, 8);
	struct bh_buffer *buffer = NULL;

	owner->slots.call = call_owner;
	if (bh_device_memory_new(&info, &owner->slots, data, nothing, &buffer) < 0)
		abort();
	return buffer;
}

static void what_was_asked_for_is_described(void)
{
	struct owner owner = { .slots.call = call_owner };
	struct bh_buffer_info info = { .size = sizeof(info),
				       .kind = BH_BUFFER_CUDA,
				       .flags = BH_BUFFER_WRITABLE | BH_BUFFER_SHARED,
				       .n_dims = 2,
				       .data = &owner,
				       .length = 3,
				       .dtype_code = BH_DTYPE_FLOAT,
				       .dtype_bits = 32,
				       .device = 3,
				       .shape = { 4, 5 },
				       .strides = { 7, 7 } };
	struct bh_buffer *buffer;

	CU_ASSERT_EQUAL_FATAL(bh_device_memory_new(&info, &owner.slots, &info, nothing, &buffer),
			      0);
	CU_ASSERT_EQUAL(buffer->info.kind, BH_BUFFER_CUDA);
	CU_ASSERT_EQUAL(buffer->info.flags, BH_BUFFER_WRITABLE);
	CU_ASSERT_EQUAL(buffer->info.device, 3);
	CU_ASSERT_EQUAL(buffer->info.length, 80);
	CU_ASSERT_PTR_EQUAL(buffer->info.data, &owner);
	CU_ASSERT_EQUAL(buffer->info.strides[0], 20);
	CU_ASSERT_EQUAL(buffer->info.strides[1], 4);
	CU_ASSERT(bh_device_memory_is(buffer) && bh_buffer_is_contiguous(buffer));
	CU_ASSERT_PTR_EQUAL(bh_slot_get(&owner.slots, buffer), &info);
	bh_buffer_unref(buffer);
	CU_ASSERT_EQUAL(owner.n_released, 1);
	CU_ASSERT_PTR_EQUAL(owner.value, &info);
	CU_ASSERT_EQUAL(owner.slots.n_set, 0);

	/* DLPack's codes beyond the ABI's: opaque to plugins, told apart by Python. */
	info.dtype_code = 4;
	info.dtype_bits = 16;
	info.shape[0] = 0;
	info.data = NULL;
	CU_ASSERT_EQUAL_FATAL(bh_device_memory_new(&info, &owner.slots, &info, nothing, &buffer),
			      0);
	CU_ASSERT_EQUAL(buffer->info.dtype_code, BH_DTYPE_OPAQUE);
	CU_ASSERT_EQUAL(buffer->element, 4);
	CU_ASSERT_EQUAL(buffer->info.length, 0);
	bh_buffer_unref(buffer);
}

static void what_is_no_device_memory_is_refused(void)
{
	struct owner owner = { .slots.call = call_owner };
	struct bh_buffer *buffer = NULL;
	char data[8];
	const struct {
		uint32_t kind, n_dims;
		void *data;
		uint8_t code, bits;
		int32_t device;
		int64_t extent;
		bh_status expected;
	} rows[] = {
		{ BH_BUFFER_HOST, 1, data, 1, 8, 0, 8, -EINVAL },
		{ BH_BUFFER_PINNED, 1, data, 1, 8, 0, 8, -EINVAL },
		{ 0, 1, data, 1, 8, 0, 8, -EINVAL },
		{ BH_BUFFER_CUDA, 9, data, 1, 8, 0, 8, -EINVAL },
		{ BH_BUFFER_CUDA, 1, NULL, 1, 8, 0, 8, -EINVAL },
		{ BH_BUFFER_CUDA, 1, data, 7, 8, 0, 8, -EINVAL },
		{ BH_BUFFER_CUDA, 1, data, 1, 0, 0, 8, -EINVAL },
		{ BH_BUFFER_CUDA, 1, data, 1, 4, 0, 8, -EINVAL },
		{ BH_BUFFER_CUDA, 1, data, 1, 8, -1, 8, -EINVAL },
		{ BH_BUFFER_CUDA, 1, data, 1, 8, 0, -8, -EINVAL },
		{ BH_BUFFER_CUDA, 1, data, 1, 64, 0, INT64_MAX, -ENOMEM },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_buffer_info info = bytes(rows[i].data, rows[i].extent);

		info.kind = rows[i].kind;
		info.n_dims = rows[i].n_dims;
		info.dtype_code = rows[i].code;
		info.dtype_bits = rows[i].bits;
		info.device = rows[i].device;
		CU_ASSERT_EQUAL(bh_device_memory_new(&info, &owner.slots, &info, nothing, &buffer),
				rows[i].expected);
	}
	CU_ASSERT_PTR_NULL(buffer);
	CU_ASSERT_EQUAL(owner.slots.n_set, 0);
	bh_slot_close(&owner.slots);
	{
		struct bh_buffer_info info = bytes(data, 8);

		CU_ASSERT_EQUAL(bh_device_memory_new(&info, &owner.slots, &info, nothing, &buffer),
				-ESHUTDOWN);
	}
	CU_ASSERT_EQUAL(owner.n_released, 0);
}

static void taken_back_while_only_python_and_the_caller_have_it(void)
{
	struct owner owner = { .keeps = false };
	char data[8];

	/* In the hands of nobody but the caller; of Python as well; of Python alone. */
	for (int shown = 0; shown < 2; shown++) {
		for (uint32_t held = 0; held < 3; held++) {
			struct bh_buffer *buffer = wrap(&owner, data);

			if (shown)
				bh_buffer_show(buffer);
			for (uint32_t i = 1; i < held; i++)
				bh_buffer_ref(buffer);
			if (held == 0 && !shown) {
				bh_buffer_unref(buffer);
				continue;
			}
			if (held == 0)
				bh_buffer_unref(buffer);
			CU_ASSERT(!bh_buffer_is_revoked(buffer));
			CU_ASSERT_EQUAL(bh_device_memory_revoke(&owner.slots, buffer, held), 0);
			CU_ASSERT(bh_buffer_is_revoked(buffer));
			CU_ASSERT(!bh_buffer_share(buffer));
			CU_ASSERT_PTR_NULL(bh_slot_get(&owner.slots, buffer));
			CU_ASSERT_EQUAL(bh_device_memory_revoke(&owner.slots, buffer, held),
					-ENOENT);
			for (uint32_t i = 0; i < held; i++)
				bh_buffer_unref(buffer);
			if (shown)
				bh_buffer_unref_shown(buffer);
		}
	}
	CU_ASSERT_EQUAL(owner.n_released, 1); /* of the one that nobody had */
	CU_ASSERT_EQUAL(owner.slots.n_set, 0);
}

static void somebody_else_makes_it_busy(void)
{
	struct owner owner = { .keeps = false };
	char data[8];
	struct bh_buffer *buffer = wrap(&owner, data);

	bh_buffer_ref(buffer); /* a task of another pool */
	CU_ASSERT_EQUAL(bh_device_memory_revoke(&owner.slots, buffer, 1), -EBUSY);
	CU_ASSERT(bh_buffer_is_revoked(buffer));
	CU_ASSERT_EQUAL(bh_device_memory_revoke(&owner.slots, buffer, 1), -ENOENT);
	bh_buffer_unref(buffer);
	bh_buffer_unref(buffer);

	buffer = wrap(&owner, data);
	CU_ASSERT(bh_buffer_share(buffer)); /* Python code has the address */
	CU_ASSERT_EQUAL(bh_device_memory_revoke(&owner.slots, buffer, 1), -EBUSY);
	bh_buffer_unref(buffer);

	buffer = wrap(&owner, data);
	bh_buffer_show(buffer);
	bh_buffer_hide(buffer); /* the object is going: a reference as any other */
	CU_ASSERT_EQUAL(bh_device_memory_revoke(&owner.slots, buffer, 1), -EBUSY);
	bh_buffer_unref(buffer);
	bh_buffer_unref(buffer);

	buffer = wrap(&owner, data); /* more than there are: the caller is wrong */
	CU_ASSERT_EQUAL(bh_device_memory_revoke(&owner.slots, buffer, 2), -EBUSY);
	bh_buffer_unref(buffer);
	CU_ASSERT_EQUAL(owner.n_released, 0);
	CU_ASSERT_EQUAL(owner.slots.n_set, 0);
}

static void after_release_there_is_nothing_to_take_back(void)
{
	struct owner owner = { .keeps = true };
	char data[8];
	struct bh_buffer *buffer = wrap(&owner, data);

	bh_buffer_show(buffer);
	bh_buffer_unref(buffer);
	bh_buffer_unref_shown(buffer);
	CU_ASSERT_EQUAL_FATAL(owner.n_released, 1);
	CU_ASSERT_EQUAL(buffer->refs, 1);
	CU_ASSERT_EQUAL(bh_device_memory_revoke(&owner.slots, buffer, 1), -ENOENT);
	CU_ASSERT(!bh_buffer_is_revoked(buffer)); /* nothing was changed */
	bh_buffer_unref(owner.buffer);
	CU_ASSERT_EQUAL(owner.n_released, 1);
}

/* ---- threads --------------------------------------------------------------------------------- */

#define ROUNDS 4000
#define STEP 20 /* by how much the next round's head start differs */

struct race {
	struct owner owner;
	struct bh_buffer *buffer; /* between two meetings: fixed */
	_Atomic(uint64_t) *data;  /* device memory; of whoever may use it */
	_Atomic(uint32_t) arrived;
	_Atomic(bool) over; /* the revoke has returned */
	int exports;	    /* between two meetings: fixed; this round's other thread exports */
	int ahead;	    /* between two meetings: fixed; how much later the revoke comes */
	int n_used, n_refused, n_late;
};

static void meet(struct race *race, uint32_t n)
{
	uint32_t tries = 0;

	atomic_fetch_add(&race->arrived, 1);
	while (atomic_load(&race->arrived) < 2 * n)
		if (++tries % 1024 == 0)
			sched_yield();
}

static void dawdle(int n)
{
	_Atomic(int) steps = 0;

	while (n-- > 0)
		atomic_fetch_add(&steps, 1);
}

/* One use by way of Python's object, whose reference stands for the one that it starts from. */
static bool use(struct race *race)
{
	bool over = atomic_load_explicit(&race->over, memory_order_acquire), may;

	bh_buffer_ref(race->buffer);
	may = race->exports ? bh_buffer_share(race->buffer) : !bh_buffer_is_revoked(race->buffer);
	if (may) {
		atomic_fetch_add_explicit(race->data, 1, memory_order_relaxed);
		race->n_late += over;
	}
	bh_buffer_unref(race->buffer);
	return may;
}

static void *use_until_refused(void *arg)
{
	struct race *race = arg;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		meet(race, 2 * i + 1);
		dawdle(-race->ahead);
		while (use(race))
			race->n_used++;
		race->n_refused++;
		meet(race, 2 * i + 2);
	}
	return NULL;
}

static void no_use_and_no_export_outlives_a_revoke_that_says_free(void)
{
	struct race race = { .exports = 0 };
	int n_free = 0, n_busy = 0, wrong = 0;
	pthread_t thread;

	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, use_until_refused, &race), 0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		bh_status st;
		int used;

		race.data = calloc(1, sizeof(*race.data));
		race.buffer = wrap(&race.owner, (void *)race.data);
		race.exports = i % 2;
		atomic_store(&race.over, false);
		bh_buffer_show(race.buffer);
		bh_buffer_unref(race.buffer);
		used = race.n_used;
		meet(&race, 2 * i + 1);
		dawdle(race.ahead);
		st = bh_device_memory_revoke(&race.owner.slots, race.buffer, 0);
		if (st == 0)
			free((void *)race.data); /* a user that is left is found out here */
		atomic_store_explicit(&race.over, true, memory_order_release);
		meet(&race, 2 * i + 2);
		wrong += st != 0 && st != -EBUSY;
		if (st != 0)
			free((void *)race.data);
		n_free += st == 0;
		n_busy += st == -EBUSY;
		/* An export leaves its mark: once there was one, the memory never goes. Without one
		 * it may be busy all the same, by a reference that is about to be refused. */
		if (race.exports)
			wrong += st == 0 && race.n_used != used;
		/* So that neither always comes first; the next two rounds go by this one. */
		if (race.exports)
			race.ahead += race.n_used == used ? STEP : -STEP;
		bh_buffer_unref_shown(race.buffer);
	}
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(wrong, 0);
	CU_ASSERT_EQUAL(race.n_late, 0);
	CU_ASSERT_EQUAL(race.n_refused, ROUNDS);
	CU_ASSERT_EQUAL(race.owner.n_released, 0);
	CU_ASSERT_EQUAL(race.owner.slots.n_set, 0);
	printf("# free %d, busy %d, uses %d\n", n_free, n_busy, race.n_used);
}

/* Python's object comes and goes, as a result is looked at again and again. */
static void *show_and_drop(void *arg)
{
	struct race *race = arg;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		meet(race, 2 * i + 1);
		do {
			bh_buffer_show(race->buffer);
			bh_buffer_unref_shown(race->buffer);
		} while (!atomic_load_explicit(&race->over, memory_order_relaxed));
		meet(race, 2 * i + 2);
	}
	return NULL;
}

static void pythons_object_is_told_from_users_while_it_comes_and_goes(void)
{
	struct race race = { .exports = 0 };
	int wrong = 0;
	char data[8];
	pthread_t thread;

	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, show_and_drop, &race), 0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		bool used = i % 2;

		race.buffer = wrap(&race.owner, data);
		atomic_store(&race.over, false);
		if (used)
			bh_buffer_ref(race.buffer);
		meet(&race, 2 * i + 1);
		dawdle((int)i % 50);
		wrong += bh_device_memory_revoke(&race.owner.slots, race.buffer, 1) !=
			 (used ? -EBUSY : 0);
		atomic_store(&race.over, true);
		meet(&race, 2 * i + 2);
		if (used)
			bh_buffer_unref(race.buffer);
		bh_buffer_unref(race.buffer);
	}
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(wrong, 0);
	CU_ASSERT_EQUAL(race.owner.n_released, 0);
}

/* As a plugin closes: it knows the buffer by a pointer without a reference, under a lock that its
 * release() takes. */
struct closing {
	struct bh_slot_owner slots;
	pthread_mutex_t lock;
	_Atomic(uint32_t) arrived;
	struct bh_buffer *buffer; /* between two meetings: fixed */
	struct bh_buffer *entry;  /* under lock; NULL: released */
	char *data;		  /* of who takes the entry out, or revokes it */
	int ahead, n_released, n_revoked;
};

static void call_closing(struct bh_slot_owner *slots, bh_slot_fn release, void *value,
			 struct bh_buffer *buffer)
{
	struct closing *c = bh_container_of(slots, struct closing, slots);

	(void)release;
	pthread_mutex_lock(&c->lock);
	c->entry = NULL;
	c->n_released++;
	pthread_mutex_unlock(&c->lock);
	free(value);
	bh_buffer_unref(buffer);
}

static void closing_meet(struct closing *c, uint32_t n)
{
	uint32_t tries = 0;

	atomic_fetch_add(&c->arrived, 1);
	while (atomic_load(&c->arrived) < 2 * n)
		if (++tries % 1024 == 0)
			sched_yield();
}

static void *drop_pythons(void *arg)
{
	struct closing *c = arg;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		closing_meet(c, 2 * i + 1);
		dawdle(-c->ahead);
		bh_buffer_unref_shown(c->buffer);
		closing_meet(c, 2 * i + 2);
	}
	return NULL;
}

static void a_close_revokes_while_the_last_reference_goes(void)
{
	struct closing c = { .slots.call = call_closing };
	int wrong = 0;
	pthread_t thread;

	pthread_mutex_init(&c.lock, NULL);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, drop_pythons, &c), 0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct bh_buffer_info info;
		bh_status st = -ENOENT;

		c.data = malloc(8);
		info = bytes(c.data, 8);
		if (bh_device_memory_new(&info, &c.slots, c.data, nothing, &c.buffer) < 0)
			abort();
		c.entry = c.buffer;
		bh_buffer_show(c.buffer);
		bh_buffer_unref(c.buffer);
		closing_meet(&c, 2 * i + 1);
		dawdle(c.ahead);
		pthread_mutex_lock(&c.lock);
		if (c.entry)
			st = bh_device_memory_revoke(&c.slots, c.entry, 0);
		pthread_mutex_unlock(&c.lock);
		closing_meet(&c, 2 * i + 2);
		if (st == 0)
			free(c.data);
		c.n_revoked += st == 0;
		c.ahead += st == 0 ? STEP : -STEP; /* so that neither always comes first */
		wrong += (st != 0 && st != -ENOENT) || c.n_revoked + c.n_released != (int)i + 1;
	}
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(wrong, 0);
	CU_ASSERT_EQUAL(c.slots.n_set, 0);
	pthread_mutex_destroy(&c.lock);
	printf("# revoked %d, released %d\n", c.n_revoked, c.n_released);
}

static const struct bh_test tests[] = {
	{ "a buffer over device memory says what it was made of, and is released with its last "
	  "reference",
	  what_was_asked_for_is_described },
	{ "what is no device memory is refused, and nothing becomes of it",
	  what_is_no_device_memory_is_refused },
	{ "memory that only the caller and Python's object have is taken back at once",
	  taken_back_while_only_python_and_the_caller_have_it },
	{ "another reference, or an export at any time, makes it busy, and it is revoked "
	  "nonetheless",
	  somebody_else_makes_it_busy },
	{ "after release() there is nothing to take back",
	  after_release_there_is_nothing_to_take_back },
	{ "no use and no export outlives a revoke that says free",
	  no_use_and_no_export_outlives_a_revoke_that_says_free },
	{ "Python's object is told from users while it comes and goes",
	  pythons_object_is_told_from_users_while_it_comes_and_goes },
	{ "a close revokes while another thread drops the last reference",
	  a_close_revokes_while_the_last_reference_goes },
};

BH_TAP_MAIN("device_memory", tests)
