/* SPDX-License-Identifier: BSD-3-Clause */
/* t_lock - one mutex of its own, taken by its workers and by a function that Python calls.
 *
 * `rounds` keeps to the manual: never waits for the GIL with the mutex held. `hold` breaks the rule
 * on purpose. The function is handed out as an address, as a plugin exports its descriptor alone. */
#include <bulkhead/plugin.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { SITE_NOTE, SITE_HOLD, N_SITES };

static struct lock {
	struct bh_context *ctx;
	const struct bh_services *host;
	pthread_mutex_t mutex;
	atomic_int n_takers; /* inside take(), waiting for the mutex or holding it */
	atomic_int is_held;  /* by run_hold() */
	int64_t n_taken;     /* under the mutex */
	int64_t n_noted;     /* under the GIL */
} lock = { .mutex = PTHREAD_MUTEX_INITIALIZER }; /* one in a process: take() has no state */

static uint32_t next_random(uint32_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	*seed ^= *seed << 5;
	return *seed;
}

static void nap(uint32_t us)
{
	const struct timespec span = { 0, (long)us * 1000 };

	if (us > 0)
		nanosleep(&span, NULL);
}

/* By ctypes, on whichever thread, with the GIL or without. Sleeps `us` with the mutex held. */
static int64_t take(int32_t us)
{
	int64_t n;

	atomic_fetch_add(&lock.n_takers, 1);
	pthread_mutex_lock(&lock.mutex);
	nap((uint32_t)us);
	n = ++lock.n_taken;
	pthread_mutex_unlock(&lock.mutex);
	atomic_fetch_sub(&lock.n_takers, 1);
	return n;
}

static void note(void *arg)
{
	(void)arg;
	lock.n_noted++;
}

static bh_status run_address(void *state, struct bh_task *task, const struct bh_value *args)
{
	int64_t (*function)(int32_t) = take;
	struct bh_value value = { .type = BH_TYPE_INT };
	uintptr_t address;

	(void)state;
	(void)args;
	memcpy(&address, &function, sizeof(function));
	value.as.integer = (int64_t)address;
	return lock.host->result(task, &value);
}

/* The mutex, then the GIL, which is waited for without the mutex. */
static bh_status run_rounds(void *state, struct bh_task *task, const struct bh_value *args)
{
	uint32_t seed = (uint32_t)lock.host->task_id(task) * 2654435761u | 1;
	struct bh_value value = { .type = BH_TYPE_INT };

	(void)state;
	for (; value.as.integer < args[0].as.integer; value.as.integer++) {
		bh_status st;

		if (lock.host->cancelled(task))
			break;
		pthread_mutex_lock(&lock.mutex);
		nap(next_random(&seed) % 201);
		lock.n_taken++;
		pthread_mutex_unlock(&lock.mutex);
		st = lock.host->run_gil(lock.ctx, SITE_NOTE, note, NULL);
		if (st < 0)
			return st;
	}
	return lock.host->result(task, &value);
}

/* The rule broken: waits for the GIL with the mutex held, once somebody waits for the mutex. */
static bh_status run_hold(void *state, struct bh_task *task, const struct bh_value *args)
{
	bh_status st = 0;

	(void)state;
	(void)args;
	pthread_mutex_lock(&lock.mutex);
	atomic_store(&lock.is_held, 1);
	while (atomic_load(&lock.n_takers) == 0 && !lock.host->cancelled(task))
		nap(200);
	if (!lock.host->cancelled(task))
		st = lock.host->run_gil(lock.ctx, SITE_HOLD, note, NULL);
	atomic_store(&lock.is_held, 0);
	pthread_mutex_unlock(&lock.mutex);
	return st;
}

static bh_status run_is_held(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_value value = { .type = BH_TYPE_BOOL };

	(void)state;
	(void)args;
	value.as.boolean = atomic_load(&lock.is_held);
	return lock.host->result(task, &value);
}

static bh_status lock_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	lock.ctx = ctx;
	lock.host = host;
	*ret_state = &lock;
	return 0;
}

static bh_status lock_close(void *state)
{
	(void)state;
	return 0;
}

/* `cancelled` is asked for between the rounds. */
static void lock_cancel(void *state, uint64_t task_id)
{
	(void)state;
	(void)task_id;
}

static const struct bh_site sites[] = {
	[SITE_NOTE] = { .name = "note",
			.policy = BH_SITE_DATA_ONLY,
			.doc = "count a round, with no lock held" },
	[SITE_HOLD] = { .name = "hold",
			.policy = BH_SITE_DATA_ONLY,
			.doc = "wait with the mutex held, which one must not" },
};
_Static_assert(sizeof(sites) / sizeof(sites[0]) == N_SITES, "one row a site");

static const struct bh_op ops[] = {
	{ .name = "address",
	  .ret = "int",
	  .run = run_address,
	  .doc = "Of int64_t f(int32_t us), which takes the mutex for that long." },
	{ .name = "rounds",
	  .args = "n:int",
	  .ret = "int",
	  .run = run_rounds,
	  .doc = "The mutex, then the GIL, n times." },
	{ .name = "hold", .run = run_hold, .doc = "Waits for the GIL with the mutex held." },
	{ .name = "is_held",
	  .ret = "bool",
	  .run = run_is_held,
	  .doc = "Whether hold() has the mutex." },
};

BH_PLUGIN("t_lock", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 16 },
	.progress_threads = 0,
	.sites = BH_TABLE(sites),
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(ops),
	.open = lock_open,
	.close = lock_close,
	.cancel = lock_cancel,
};
