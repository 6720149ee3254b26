/* SPDX-License-Identifier: BSD-3-Clause */
/* soak_pool - many short lives of a pool: submit one, or a few that come after each other, wait, let
 * it go idle, and stop somewhere.
 *
 * usage: soak_pool [ROUNDS [SEED]]. Each round is one task. What it is after is the wake-up that is
 * missed, the task that is lost at a stop, and the stop that never ends: a watch ends the process
 * with the seed and the pool's own account when nothing has moved for HUNG_S. At the end of each
 * pool the books must balance and must be what the submitter saw (SUP-4). Prints TAP. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/core/log.h"
#include "host/core/pool.h"
#include "host/core/sync.h"

#define ROUNDS_SHORT 3000 /* in `make check`; `make soak` says 100000 */
#define HUNG_S 120
#define LIFE_MAX 400 /* rounds of one pool, at most */
#define QUEUE 4
#define OP_FAIL 100 /* below: microseconds */

struct soak {
	uint64_t seed, random;
	uint32_t n_workers;
	unsigned long rounds, pools;	/* done so far */
	_Atomic uint64_t moved;		/* A: relaxed; the watch looks whether it changes */
	_Atomic(struct bh_pool *) pool; /* A: release by its maker; the one that lives now */
	_Atomic bool over;		/* A: relaxed; the watch is to end */
};

static struct soak soak; /* the watch has it while main waits somewhere */

static uint64_t draw(uint64_t below)
{
	soak.random = soak.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (soak.random >> 33) % below;
}

static void fail(const char *what)
{
	fprintf(stderr, "soak_pool: %s; workers %u, round %lu, pool %lu, seed %" PRIu64 "\n", what,
		soak.n_workers, soak.rounds, soak.pools, soak.seed);
	abort();
}

#define CHECK(condition)                                                                           \
	do                                                                                         \
		if (!(condition))                                                                  \
			fail(#condition);                                                          \
	while (0)

static void moved(void)
{
	atomic_fetch_add_explicit(&soak.moved, 1, memory_order_relaxed);
}

/* ---- the watch ------------------------------------------------------------------------------- */

static void *watch_main(void *arg)
{
	uint64_t seen = 0;
	struct bh_deadline until = bh_deadline_after(HUNG_S * BH_NS_PER_S);

	(void)arg;
	while (!atomic_load_explicit(&soak.over, memory_order_relaxed)) {
		uint64_t now = atomic_load_explicit(&soak.moved, memory_order_relaxed);
		struct timespec pause = { .tv_nsec = 20 * BH_NS_PER_MS };

		if (now != seen)
			until = bh_deadline_after(HUNG_S * BH_NS_PER_S);
		seen = now;
		if (bh_deadline_passed(until)) {
			struct bh_pool *pool =
				atomic_load_explicit(&soak.pool, memory_order_acquire);
			json_t *view = pool ? bh_pool_render(pool) : NULL;

			if (view)
				(void)json_dumpf(view, stderr, JSON_INDENT(1));
			fail("hung");
		}
		nanosleep(&pause, NULL);
	}
	return NULL;
}

/* ---- a backend that does nothing, quickly or after a while ------------------------------------ */

static bh_status back_open(void *self, struct bh_error *err)
{
	(void)self;
	(void)err;
	return 0;
}

static bh_status back_run(void *self, struct bh_task *task)
{
	uint64_t until = bh_now_ns() + (uint64_t)bh_task_op(task) * BH_NS_PER_US;

	(void)self;
	if (bh_task_op(task) == OP_FAIL)
		return -EIO;
	while (bh_now_ns() < until)
		if (bh_task_cancelled(task))
			return -ECANCELED;
	return 0;
}

static const char *back_op_name(void *self, uint32_t op)
{
	(void)self;
	(void)op;
	return "spin";
}

static const struct bh_backend backend = {
	.open = back_open, .close = back_open, .run = back_run, .op_name = back_op_name
};

/* ---- who stops it ---------------------------------------------------------------------------- */

struct stopper {
	struct bh_pool *pool;
	uint64_t after_ns, drain_ns, cancel_ns;
	pthread_t thread;
};

static void *stopper_main(void *arg)
{
	const struct stopper *stopper = arg;
	struct timespec pause = { .tv_nsec = (long)stopper->after_ns };

	nanosleep(&pause, NULL); /* somewhere in the submitter's loop: any length is right */
	bh_pool_stop(stopper->pool, bh_deadline_after(stopper->drain_ns),
		     bh_deadline_after(stopper->cancel_ns));
	return NULL;
}

static void stopper_start(struct stopper *stopper, struct bh_pool *pool)
{
	*stopper = (struct stopper){ .pool = pool,
				     .after_ns = draw(3000) * BH_NS_PER_US,
				     .drain_ns = draw(3) ? BH_NS_PER_S * 60 : draw(50000),
				     .cancel_ns = BH_NS_PER_S * 60 };
	CHECK(pthread_create(&stopper->thread, NULL, stopper_main, stopper) == 0);
}

/* ---- one pool -------------------------------------------------------------------------------- */

struct seen {
	uint64_t accepted, outcomes[BH_OUTCOMES];
};

static struct bh_pool *make(void)
{
	const struct bh_pool_config config = {
		.label = "soak", .n_workers = soak.n_workers, .queue = QUEUE, .backend = &backend
	};
	struct bh_pool *pool;

	CHECK(bh_pool_new(&config, &pool, NULL) == 0);
	atomic_store_explicit(&soak.pool, pool, memory_order_release);
	CHECK(bh_pool_start(pool, NULL) == 0);
	return pool;
}

/* False: the pool has closed. */
static bool one_round(struct bh_pool *pool, struct seen *seen)
{
	struct bh_submission s = { .op = draw(4) ? 0 : (uint32_t)draw(60), .deadline = BH_NEVER };
	struct bh_ticket ticket;
	uint64_t idle_until;

	bh_ticket_init(&ticket, NULL, NULL);
	s.ticket = &ticket;
	if (bh_pool_submit(pool, &s, NULL) != BH_ACCEPTED)
		return false;
	seen->accepted++;
	soak.rounds++;
	moved();
	/* Without a deadline: the watch has one. */
	CHECK(bh_ticket_wait(&ticket, BH_NEVER, NULL) == 0);
	seen->outcomes[bh_ticket_outcome(&ticket)]++;
	/* Told, perhaps by a thread that still holds it for a moment. */
	while (atomic_load_explicit(&ticket.refs, memory_order_acquire) != 1)
		sched_yield();
	/* Long enough that the workers are asleep, or just not, or not at all. */
	idle_until = bh_now_ns() + (draw(2) ? 0 : draw(40) * BH_NS_PER_US);
	while (bh_now_ns() < idle_until)
		;
	return true;
}

/* A few tasks, each after some of those before it; one fails or is cancelled at times. False: the
 * pool has closed. */
static bool one_graph(struct bh_pool *pool, struct seen *seen)
{
	struct bh_ticket tickets[QUEUE], *after[QUEUE];
	uint32_t n = 0;
	bool open = true;

	for (; n < QUEUE && open; n += open) {
		struct bh_submission s = { .op = draw(6) ? (uint32_t)draw(20) : OP_FAIL,
					   .deadline = BH_NEVER,
					   .after = after };

		bh_ticket_init(&tickets[n], NULL, NULL);
		for (uint32_t i = 0; i < n; i++)
			if (draw(2))
				after[s.n_after++] = &tickets[i];
		s.ticket = &tickets[n];
		open = bh_pool_submit(pool, &s, NULL) == BH_ACCEPTED;
		if (open && draw(8) == 0)
			(void)bh_ticket_cancel(&tickets[draw(n + 1)], false);
	}
	seen->accepted += n;
	soak.rounds += n > 0;
	moved();
	/* The last first: the others' roots lie before them. */
	while (n-- > 0) {
		CHECK(bh_ticket_wait(&tickets[n], BH_NEVER, NULL) == 0);
		seen->outcomes[bh_ticket_outcome(&tickets[n])]++;
		while (atomic_load_explicit(&tickets[n].refs, memory_order_acquire) != 1)
			sched_yield();
		CHECK(atomic_load_explicit(&tickets[n].claims, memory_order_acquire) == 1);
		bh_ticket_unref(&tickets[n]);
	}
	return open;
}

static void check_books(struct bh_pool *pool, const struct seen *seen)
{
	struct bh_pool_books b;

	bh_pool_books(pool, &b);
	CHECK(b.queued + b.running + b.pending + b.in_transit == 0);
	CHECK(b.submitted == b.done + b.failed + b.cancelled + b.deadline + b.abandoned);
	CHECK(b.submitted == seen->accepted && b.refused == 0 && b.abandoned_alive == 0);
	CHECK(b.done == seen->outcomes[BH_OUTCOME_DONE]);
	CHECK(b.cancelled == seen->outcomes[BH_OUTCOME_CANCELLED]);
	CHECK(b.failed == seen->outcomes[BH_OUTCOME_FAILED]);
	CHECK(b.deadline + b.abandoned == 0 && seen->outcomes[BH_OUTCOME_NONE] == 0);
}

static void one_pool(unsigned long rounds)
{
	struct bh_pool *pool = make();
	struct seen seen = { .accepted = 0 };
	unsigned long life = 1 + draw(LIFE_MAX), until = soak.rounds + life;
	bool stopped_beside = draw(2), stopped_early = draw(16) == 0;
	struct stopper stopper;

	if (stopped_early) /* while it is being built, or just after */
		bh_pool_stop(pool, bh_deadline_after(0), BH_NEVER);
	else
		CHECK(bh_pool_wait_started(pool, BH_NEVER, NULL) == 0);
	if (stopped_beside)
		stopper_start(&stopper, pool);
	if (until > rounds)
		until = rounds;
	while (soak.rounds < until && (draw(3) ? one_round(pool, &seen) : one_graph(pool, &seen)))
		;
	if (stopped_beside)
		CHECK(pthread_join(stopper.thread, NULL) == 0);
	else
		bh_pool_stop(pool, BH_NEVER, BH_NEVER);
	CHECK(bh_pool_wait_ended(pool, BH_NEVER, NULL) == 0);
	CHECK(bh_pool_state(pool) == BH_POOL_CLEAN);
	check_books(pool, &seen);
	CHECK(bh_pool_join(pool, BH_NEVER, NULL) == 0);
	check_books(pool, &seen);
	atomic_store_explicit(&soak.pool, NULL, memory_order_release);
	CHECK(bh_pool_free(pool) == NULL);
	soak.pools++;
	moved();
}

int main(int argc, char **argv)
{
	static const uint32_t workers[] = { 1, 2, 8 };
	unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : ROUNDS_SHORT;
	pthread_t watch;

	setvbuf(stdout, NULL, _IOLBF, 0);
	soak.seed = soak.random = argc > 2 ? strtoull(argv[2], NULL, 10) : bh_now_ns();
	printf("1..%zu\n# seed %" PRIu64 "\n", BH_ARRAY_LEN(workers), soak.seed);
	CHECK(rounds > 0);
	CHECK(pthread_create(&watch, NULL, watch_main, NULL) == 0);
	for (size_t i = 0; i < BH_ARRAY_LEN(workers); i++) {
		uint64_t began = bh_now_ns();

		soak.n_workers = workers[i];
		soak.rounds = soak.pools = 0;
		while (soak.rounds < rounds)
			one_pool(rounds);
		printf("ok %zu - SUP-4: %lu rounds with %u workers in %lu pools, %.1f s\n", i + 1,
		       soak.rounds, workers[i], soak.pools,
		       (double)(bh_now_ns() - began) / BH_NS_PER_S);
	}
	atomic_store_explicit(&soak.over, true, memory_order_relaxed);
	pthread_join(watch, NULL);
	return 0;
}
