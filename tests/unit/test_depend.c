/* SPDX-License-Identifier: BSD-3-Clause */
/* test_depend - tasks that come after others: order, poison, values, and every way to end while
 * blocked (host/core/depend.c and what of the pool's other files knows of it). */
#include "config.h"

#include "host/core/pool_private.h"
#include "tests/unit/pool_fixture.h"

/* ---- tools ----------------------------------------------------------------------------------- */

#define MANY 8

struct after {
	struct bh_ticket *tickets[MANY];
	uint32_t n;
};

#define AFTER(...)                                                                                 \
	((struct after){ { __VA_ARGS__ },                                                          \
			 sizeof((struct bh_ticket *[]){ __VA_ARGS__ }) / sizeof(void *) })

static struct bh_ticket *submit_after_on(struct fixture *fx, struct bh_lane *lane, fixture_fn fn,
					 void *arg, struct after after)
{
	const struct bh_submission how = {
		.lane = lane, .deadline = BH_NEVER, .after = after.tickets, .n_after = after.n
	};

	return fixture_submit_how(fx, fn, arg, &how);
}

static struct bh_ticket *submit_after(struct fixture *fx, fixture_fn fn, void *arg,
				      struct after after)
{
	return submit_after_on(fx, NULL, fn, arg, after);
}

static uint32_t queued(struct bh_pool *pool)
{
	struct bh_pool_books books;

	bh_pool_books(pool, &books);
	return books.queued;
}

static bool fact_is(const struct bh_error *err, const char *key, const char *value)
{
	const char *fact = bh_error_fact(err, key);

	return fact && strcmp(fact, value) == 0;
}

static bool fact_is_id(const struct bh_error *err, const char *key, uint64_t id)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)id);
	return fact_is(err, key, text);
}

/* Everything that nobody must touch after the end of it: refs back to the submitter's one. */
static bool is_last(struct bh_ticket *ticket)
{
	return UNTIL(atomic_load(&ticket->refs) == 1);
}

/* What ran, in order. */
struct trace {
	_Atomic int n;
	int at[MANY * 2];
};

struct step {
	struct trace *trace;
	int number;
};

static bh_status fn_step(struct fixture *fx, struct bh_task *task, void *arg)
{
	const struct step *step = arg;

	(void)fx;
	(void)task;
	step->trace->at[atomic_fetch_add(&step->trace->n, 1)] = step->number;
	return 0;
}

static bh_status fn_count(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	(void)task;
	atomic_fetch_add((_Atomic int *)arg, 1);
	return 0;
}

/* ---- order ----------------------------------------------------------------------------------- */

static void diamond(void)
{
	struct trace trace = { .n = 0 };
	struct step steps[3] = { { &trace, 0 }, { &trace, 1 }, { &trace, 2 } };
	struct gate gate = { .open = false };
	struct bh_ticket *top, *left, *right, *bottom;
	struct fixture fx;

	fixture_init(&fx, 4, 16);
	fixture_start(&fx);
	top = fixture_submit(&fx, fn_gate, &gate);
	left = submit_after(&fx, fn_step, &steps[0], AFTER(top));
	right = submit_after(&fx, fn_step, &steps[1], AFTER(top));
	bottom = submit_after(&fx, fn_step, &steps[2], AFTER(left, right, top, left));
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	/* They are queued, hold no worker, and others go on. */
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_nop, NULL)), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(queued(fx.pool), 3);
	CU_ASSERT_EQUAL(atomic_load(&trace.n), 0);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(bottom), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(atomic_load(&trace.n), 3);
	CU_ASSERT_EQUAL(trace.at[2], 2);
	CU_ASSERT_EQUAL(fixture_outcome(top), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(left), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(right), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void after_what_is_done(void)
{
	struct bh_ticket *first, *second;
	struct fixture fx;

	fixture_init(&fx, 1, 4);
	fixture_start(&fx);
	first = fixture_submit(&fx, fn_nop, NULL);
	CU_ASSERT_EQUAL(bh_ticket_wait(first, PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(is_last(first));
	second = submit_after(&fx, fn_nop, NULL, AFTER(first));
	CU_ASSERT_EQUAL(fixture_outcome(second), BH_OUTCOME_DONE);
	CU_ASSERT_TRUE(is_last(first));
	CU_ASSERT_EQUAL(fixture_outcome(first), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

#define CHAIN 10000

static void chain(fixture_fn head_fn, enum bh_outcome expected)
{
	struct gate gate = { .open = false };
	struct bh_ticket *first, *last;
	_Atomic int ran = 0;
	struct bh_pool_books books;
	struct fixture fx;

	fixture_init(&fx, 2, CHAIN + 2);
	fixture_start(&fx);
	first = fixture_submit(&fx, fn_gate, &gate);
	last = submit_after(&fx, head_fn, &ran, AFTER(first));
	for (int i = 1; i < CHAIN; i++) {
		struct bh_ticket *next = submit_after(&fx, fn_count, &ran, AFTER(last));

		bh_ticket_unref(last);
		last = next;
	}
	CU_ASSERT_EQUAL(queued(fx.pool), CHAIN);
	gate_open(&gate);
	CU_ASSERT_EQUAL(bh_ticket_wait(last, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(last), expected);
	bh_pool_books(fx.pool, &books);
	if (expected == BH_OUTCOME_DONE) {
		CU_ASSERT_EQUAL(atomic_load(&ran), CHAIN);
	} else {
		CU_ASSERT_EQUAL(atomic_load(&ran), 0);
		CU_ASSERT_EQUAL(books.failed, CHAIN);
		CU_ASSERT_STRING_EQUAL(bh_error_fact(&last->error, "root_code"), "fixture.fail");
	}
	bh_ticket_unref(last);
	bh_ticket_unref(first);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void chain_runs(void)
{
	chain(fn_count, BH_OUTCOME_DONE);
}

static void chain_is_poisoned(void)
{
	chain(fn_fail, BH_OUTCOME_FAILED);
}

static void across_pools(void)
{
	struct gate gate = { .open = false };
	struct bh_ticket *a, *b, *c;
	struct fixture one, two;
	_Atomic int ran = 0;

	fixture_init(&one, 1, 4);
	fixture_init(&two, 1, 4);
	two.config.label = "fixture-two";
	fixture_start(&one);
	fixture_start(&two);
	a = fixture_submit(&one, fn_gate, &gate);
	b = submit_after(&two, fn_count, &ran, AFTER(a));
	c = submit_after(&one, fn_count, &ran, AFTER(a, b));
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(c), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(b), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(a), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(atomic_load(&ran), 2);
	CU_ASSERT_EQUAL(fixture_stop(&two), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fixture_stop(&one), BH_POOL_CLEAN);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void lanes_wait_for_their_head(void)
{
	struct trace trace = { .n = 0 };
	struct step steps[5];
	struct gate gate = { .open = false };
	struct bh_ticket *root, *t[5];
	struct bh_lane *x, *y;
	struct fixture fx;

	for (int i = 0; i < 5; i++)
		steps[i] = (struct step){ &trace, i };
	fixture_init(&fx, 3, 16);
	fixture_start(&fx);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "x", &x, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "y", &y, NULL), 0);
	root = fixture_submit(&fx, fn_gate, &gate);
	t[0] = submit_after_on(&fx, x, fn_step, &steps[0], AFTER(root));
	t[1] = fixture_submit_lane(&fx, x, fn_step, &steps[1]); /* behind it, blocked by nobody */
	t[2] = fixture_submit_lane(&fx, y, fn_step, &steps[2]);
	t[3] = submit_after_on(&fx, y, fn_step, &steps[3], AFTER(t[1])); /* cross lane */
	t[4] = submit_after_on(&fx, x, fn_step, &steps[4], AFTER(t[0])); /* same lane */
	CU_ASSERT_EQUAL(fixture_outcome(t[2]), BH_OUTCOME_DONE);	 /* another lane goes on */
	CU_ASSERT_EQUAL(atomic_load(&trace.n), 1);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(t[3]), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(t[4]), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(t[1]), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(t[0]), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(root), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(trace.at[1], 0);
	CU_ASSERT_EQUAL(trace.at[2], 1);
	bh_lane_unref(x);
	bh_lane_unref(y);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* The blocked head goes; its lane goes on with the next, which was not blocked. */
static void lanes_go_on_without_their_head(void)
{
	static const enum bh_outcome ends[] = { BH_OUTCOME_CANCELLED, BH_OUTCOME_DEADLINE,
						BH_OUTCOME_FAILED };

	for (size_t i = 0; i < BH_ARRAY_LEN(ends); i++) {
		struct gate gate = { .open = false };
		struct bh_ticket *root, *bad, *head, *next;
		struct bh_submission how = { .deadline = BH_NEVER };
		struct bh_lane *lane;
		struct fixture fx;

		fixture_init(&fx, 3, 16);
		fixture_start(&fx);
		CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "x", &lane, NULL), 0);
		root = fixture_submit(&fx, fn_gate, &gate);
		bad = fixture_submit(&fx, fn_until_cancelled, NULL);
		how.lane = lane;
		how.after = (struct bh_ticket *[]){ root, bad };
		how.n_after = 2;
		if (ends[i] == BH_OUTCOME_DEADLINE)
			how.deadline = SOON_MS(5);
		head = fixture_submit_how(&fx, fn_nop, NULL, &how);
		next = fixture_submit_lane(&fx, lane, fn_nop, NULL);
		if (ends[i] == BH_OUTCOME_CANCELLED)
			CU_ASSERT_TRUE(bh_ticket_cancel(head, false));
		if (ends[i] == BH_OUTCOME_FAILED) {
			CU_ASSERT_TRUE(bh_ticket_cancel(bad, false));
		}
		CU_ASSERT_EQUAL(fixture_outcome(next), BH_OUTCOME_DONE);
		CU_ASSERT_EQUAL(fixture_outcome(head), ends[i]);
		gate_open(&gate);
		CU_ASSERT_EQUAL(fixture_outcome(root), BH_OUTCOME_DONE);
		(void)bh_ticket_cancel(bad, false);
		CU_ASSERT_EQUAL(fixture_outcome(bad), BH_OUTCOME_CANCELLED);
		bh_lane_unref(lane);
		CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	}
}

/* ---- poison ---------------------------------------------------------------------------------- */

static void poison_names_its_root(void)
{
	struct gate gate = { .open = false };
	struct bh_ticket *hold, *root, *mid, *end, *late;
	struct fixture fx;

	fixture_init(&fx, 2, 16);
	fixture_start(&fx);
	hold = fixture_submit(&fx, fn_gate, &gate);
	root = submit_after(&fx, fn_fail, NULL, AFTER(hold));
	mid = submit_after(&fx, fn_nop, NULL, AFTER(root));
	end = submit_after(&fx, fn_nop, NULL, AFTER(hold, mid));
	gate_open(&gate);
	CU_ASSERT_EQUAL(bh_ticket_wait(end, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(end), BH_OUTCOME_FAILED);
	CU_ASSERT_EQUAL(end->error.status, -EPIPE);
	CU_ASSERT_STRING_EQUAL(end->error.id, "task.dependent");
	CU_ASSERT_TRUE(fact_is(&end->error, "root_code", "fixture.fail"));
	CU_ASSERT_TRUE(fact_is(&end->error, "root_outcome", "failed"));
	CU_ASSERT_TRUE(fact_is(&end->error, "root_pool", "fixture"));
	CU_ASSERT_TRUE(fact_is(&end->error, "root_op", "call"));
	CU_ASSERT_TRUE(fact_is_id(&end->error, "root_task", root->task_id));
	CU_ASSERT_TRUE(fact_is_id(&end->error, "after_task", mid->task_id));
	CU_ASSERT_TRUE(fact_is_id(&end->error, "task", end->task_id));
	CU_ASSERT_PTR_NOT_NULL(strstr(bh_error_fact(&end->error, "root_text"), "device=3"));
	CU_ASSERT_PTR_EQUAL(end->root, root);
	CU_ASSERT_PTR_EQUAL(mid->root, root);
	CU_ASSERT_PTR_NULL(bh_error_fact(&mid->error, "after_task"));
	CU_ASSERT_EQUAL(end->started_ns, 0);
	/* One that comes too late fails by the same cause: at once, or by who is just telling. */
	late = submit_after(&fx, fn_nop, NULL, AFTER(end));
	CU_ASSERT_EQUAL(bh_ticket_wait(late, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(late), BH_OUTCOME_FAILED);
	CU_ASSERT_PTR_EQUAL(late->root, root);
	CU_ASSERT_TRUE(fact_is_id(&late->error, "after_task", end->task_id));
	(void)fixture_outcome(hold);
	(void)fixture_outcome(root); /* those who name it keep it */
	(void)fixture_outcome(mid);
	CU_ASSERT_STRING_EQUAL(late->root->error.id, "fixture.fail");
	(void)fixture_outcome(end);
	(void)fixture_outcome(late);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

struct cause {
	struct bh_object object;
	_Atomic int freed;
};

static void cause_free(struct bh_object *object)
{
	atomic_fetch_add(&bh_container_of(object, struct cause, object)->freed, 1);
}

static bh_status fn_raise(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	bh_task_set_cause(task, bh_object_ref(&((struct cause *)arg)->object));
	return -EREMOTEIO;
}

static void poison_brings_the_cause(void)
{
	struct cause cause = { .object = { .refs = 1, .free = cause_free } };
	struct gate gate = { .open = false };
	struct bh_ticket *hold, *root, *end;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	hold = fixture_submit(&fx, fn_gate, &gate);
	root = submit_after(&fx, fn_raise, &cause, AFTER(hold));
	end = submit_after(&fx, fn_nop, NULL, AFTER(root));
	gate_open(&gate);
	CU_ASSERT_EQUAL(bh_ticket_wait(end, PATIENCE, NULL), 0);
	CU_ASSERT_PTR_EQUAL(end->cause, &cause.object);
	CU_ASSERT_EQUAL(bh_ticket_wait(root, PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&root->claims) == 1));
	bh_ticket_disclaim(root);
	CU_ASSERT_PTR_NULL(root->cause);
	CU_ASSERT_EQUAL(atomic_load(&cause.freed), 0);
	(void)fixture_outcome(hold);
	(void)fixture_outcome(root);
	(void)fixture_outcome(end);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	bh_object_unref(&cause.object);
	CU_ASSERT_EQUAL(atomic_load(&cause.freed), 1);
}

/* What a root may be, besides failed. */
static void cancelled_and_late_roots_poison(void)
{
	struct gate gate = { .open = false };
	struct bh_submission late = { .deadline = SOON_MS(5) };
	struct bh_ticket *hold, *cancelled, *expired, *a, *b;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	hold = fixture_submit(&fx, fn_gate, &gate);
	cancelled = fixture_submit(&fx, fn_nop, NULL);
	expired = fixture_submit_how(&fx, fn_nop, NULL, &late);
	a = submit_after(&fx, fn_nop, NULL, AFTER(cancelled));
	b = submit_after(&fx, fn_nop, NULL, AFTER(expired));
	CU_ASSERT_TRUE(bh_ticket_cancel(cancelled, false));
	CU_ASSERT_EQUAL(bh_ticket_outcome(a), BH_OUTCOME_FAILED); /* before cancel returned */
	CU_ASSERT_TRUE(fact_is(&a->error, "root_outcome", "cancelled"));
	CU_ASSERT_EQUAL(bh_ticket_wait(b, PATIENCE, NULL), 0); /* the only worker is busy */
	CU_ASSERT_TRUE(fact_is(&b->error, "root_outcome", "deadline"));
	gate_open(&gate);
	(void)fixture_outcome(hold);
	(void)fixture_outcome(cancelled);
	(void)fixture_outcome(expired);
	(void)fixture_outcome(a);
	(void)fixture_outcome(b);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- ends while blocked ---------------------------------------------------------------------- */

static void cancel_of_a_dependent(void)
{
	struct gate gate = { .open = false };
	struct bh_ticket *root, *end;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	root = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	end = submit_after(&fx, fn_nop, NULL, AFTER(root));
	CU_ASSERT_TRUE(bh_ticket_cancel(end, false));
	CU_ASSERT_EQUAL(bh_ticket_outcome(end), BH_OUTCOME_CANCELLED);
	CU_ASSERT_TRUE(is_last(end));
	CU_ASSERT_EQUAL(atomic_load(&root->claims), 1); /* it wants nothing of the root any more */
	CU_ASSERT_EQUAL(queued(fx.pool), 0);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(root), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(end), BH_OUTCOME_CANCELLED);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void deadline_while_blocked(void)
{
	struct gate gate = { .open = false };
	struct bh_submission how = { .deadline = SOON_MS(5), .n_after = 1 };
	struct bh_ticket *root, *end;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	root = fixture_submit(&fx, fn_gate, &gate);
	how.after = &root;
	end = fixture_submit_how(&fx, fn_nop, NULL, &how);
	CU_ASSERT_EQUAL(fixture_outcome(end), BH_OUTCOME_DEADLINE); /* though the worker is busy */
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(root), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void cancel_with_trylock_leaves_the_locks(void)
{
	struct gate gate = { .open = false };
	struct bh_ticket *hold, *root, *end, *alone;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	hold = fixture_submit(&fx, fn_gate, &gate);
	root = fixture_submit(&fx, fn_nop, NULL);
	end = submit_after(&fx, fn_nop, NULL, AFTER(root));
	alone = fixture_submit(&fx, fn_nop, NULL);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	CU_ASSERT_TRUE(UNTIL(bh_ticket_cancel(alone, true)));
	CU_ASSERT_EQUAL(bh_ticket_outcome(alone), BH_OUTCOME_CANCELLED);
	CU_ASSERT_TRUE(UNTIL(
		(bh_ticket_cancel(root, true), bh_ticket_outcome(root) == BH_OUTCOME_CANCELLED)));
	CU_ASSERT_EQUAL(bh_ticket_outcome(end), BH_OUTCOME_NONE); /* not under the GIL (GIL-9) */
	CU_ASSERT_TRUE(bh_ticket_cancel(root, false));
	CU_ASSERT_EQUAL(bh_ticket_outcome(end), BH_OUTCOME_FAILED);
	gate_open(&gate);
	(void)fixture_outcome(hold);
	(void)fixture_outcome(root);
	(void)fixture_outcome(end);
	(void)fixture_outcome(alone);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void drain_runs_blocked_ones(void)
{
	struct gate gate = { .open = false };
	struct bh_ticket *root, *end;
	_Atomic int ran = 0;
	struct fixture one, two;

	fixture_init(&one, 1, 8);
	fixture_init(&two, 1, 8);
	two.config.label = "fixture-two";
	fixture_start(&one);
	fixture_start(&two);
	root = fixture_submit(&one, fn_gate, &gate);
	end = submit_after(&two, fn_count, &ran, AFTER(root));
	bh_pool_stop(two.pool, PATIENCE, PATIENCE);
	CU_ASSERT_TRUE(UNTIL(bh_pool_state(two.pool) == BH_POOL_DRAINING));
	CU_ASSERT_EQUAL(queued(two.pool), 1);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(end), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(atomic_load(&ran), 1);
	CU_ASSERT_EQUAL(fixture_end(&two), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fixture_outcome(root), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&one), BH_POOL_CLEAN);
}

/* How a pool with blocked tasks ends; the one of their predecessor goes on, and tells a pool that is
 * not there any more. */
static void end_with_blocked(void (*end_pool)(struct fixture *), enum bh_pool_state state)
{
	struct gate gate = { .open = false };
	struct bh_ticket *root, *end, *next;
	struct bh_lane *lane;
	struct fixture one, two;

	fixture_init(&one, 1, 8);
	fixture_init(&two, 1, 8);
	two.config.label = "fixture-two";
	fixture_start(&one);
	fixture_start(&two);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(two.pool, "x", &lane, NULL), 0);
	root = fixture_submit(&one, fn_gate, &gate);
	end = submit_after_on(&two, lane, fn_nop, NULL, AFTER(root));
	next = submit_after_on(&two, lane, fn_nop, NULL, AFTER(end));
	end_pool(&two);
	CU_ASSERT_EQUAL(bh_ticket_wait(end, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_wait(next, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(fixture_outcome(end), BH_OUTCOME_CANCELLED);
	CU_ASSERT_EQUAL(fixture_outcome(next), BH_OUTCOME_CANCELLED); /* the end, not the poison */
	bh_lane_unref(lane);
	CU_ASSERT_EQUAL(fixture_end(&two), state);
	CU_ASSERT_PTR_NULL(two.pool);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(root), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&one), BH_POOL_CLEAN);
}

static void by_stop(struct fixture *fx)
{
	bh_pool_stop(fx->pool, PAST, PATIENCE);
}

static void by_failure(struct fixture *fx)
{
	struct bh_error err = { .status = 0 };

	(void)bh_raise(&err, -EIO, "fixture.broken");
	bh_pool_fail(fx->pool, &err);
}

static void by_giving_up(struct fixture *fx)
{
	CU_ASSERT_TRUE(bh_pool_give_up(fx->pool, NULL));
}

static void stop_cancels_blocked_ones(void)
{
	end_with_blocked(by_stop, BH_POOL_CLEAN);
}

static void failure_cancels_blocked_ones(void)
{
	end_with_blocked(by_failure, BH_POOL_FAILED);
}

static void giving_up_cancels_blocked_ones(void)
{
	end_with_blocked(by_giving_up, BH_POOL_WEDGED);
}

static void abandoned_roots_poison(void)
{
	_Atomic uint64_t id = 0;
	struct bh_ticket *root, *end;
	struct fixture one, two;

	fixture_init(&one, 1, 8);
	fixture_init(&two, 1, 8);
	two.config.label = "fixture-two";
	fixture_start(&one);
	fixture_start(&two);
	root = fixture_submit(&one, fn_pend, &id);
	end = submit_after(&two, fn_nop, NULL, AFTER(root));
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	bh_pool_stop(one.pool, PAST, PAST);
	CU_ASSERT_EQUAL(bh_ticket_wait(end, PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(fact_is(&end->error, "root_outcome", "abandoned"));
	CU_ASSERT_EQUAL(fixture_outcome(end), BH_OUTCOME_FAILED);
	CU_ASSERT_EQUAL(bh_pool_wait_ended(one.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_complete(one.pool, atomic_load(&id), 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(fixture_outcome(root), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(fixture_end(&one), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fixture_stop(&two), BH_POOL_CLEAN);
}

static void refused_ones_leave_nothing(void)
{
	struct gate gate = { .open = false };
	struct bh_error err = { .status = 0 };
	struct bh_submission how = { .deadline = BH_NEVER, .n_after = 1 };
	struct bh_ticket *root, *blocked, *refused = fixture_ticket();
	struct fixture fx;

	fixture_init(&fx, 1, 1);
	fixture_start(&fx);
	root = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	how.after = &root;
	blocked = fixture_submit_how(&fx, fn_nop, NULL, &how); /* SUP-8: it takes the one place */
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, &how, refused, &err), BH_OVERLOADED);
	CU_ASSERT_EQUAL(atomic_load(&root->claims), 2);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(blocked), BH_OUTCOME_DONE);
	CU_ASSERT_TRUE(is_last(root));
	CU_ASSERT_EQUAL(atomic_load(&root->claims), 1);
	CU_ASSERT_EQUAL(fixture_outcome(root), BH_OUTCOME_DONE);
	bh_ticket_unref(refused);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- SUP-7 ----------------------------------------------------------------------------------- */

/* Runs on the only worker: submits a chain and waits for its end. */
static bh_status fn_wait_chain(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct trace *trace = arg;
	static struct step steps[4];
	struct bh_ticket *last = NULL;
	struct bh_lane *lane;

	(void)task;
	CU_ASSERT_EQUAL(bh_lane_new(fx->pool, "inner", &lane, NULL), 0);
	for (int i = 0; i < 4; i++) {
		struct bh_ticket *next;

		steps[i] = (struct step){ trace, i };
		next = submit_after_on(fx, i % 2 ? lane : NULL, fn_step, &steps[i],
				       last ? AFTER(last) : (struct after){ .n = 0 });
		bh_ticket_unref(last);
		last = next;
	}
	bh_lane_unref(lane);
	return fixture_outcome(last) == BH_OUTCOME_DONE ? 0 : -EIO;
}

static void sup7_runs_what_it_comes_after(void)
{
	struct trace trace = { .n = 0 };
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_wait_chain, &trace)),
			BH_OUTCOME_DONE);
	for (int i = 0; i < 4; i++)
		CU_ASSERT_EQUAL(trace.at[i], i);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

struct other {
	struct bh_ticket *root;
	struct bh_lane *lane;
	_Atomic int waiting;
};

/* Waits for one of its own pool that comes after another pool's. */
static bh_status fn_wait_foreign(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct other *other = arg;
	struct bh_ticket *mine = submit_after(fx, fn_nop, NULL, AFTER(other->root));

	(void)task;
	atomic_fetch_add(&other->waiting, 1);
	return fixture_outcome(mine) == BH_OUTCOME_DONE ? 0 : -EIO;
}

static void sup7_waits_for_other_pools(void)
{
	struct gate gate = { .open = false };
	struct other other = { .root = NULL };
	struct bh_ticket *waiting;
	struct fixture one, two;

	fixture_init(&one, 1, 8);
	fixture_init(&two, 1, 8);
	two.config.label = "fixture-two";
	fixture_start(&one);
	fixture_start(&two);
	other.root = fixture_submit(&one, fn_gate, &gate);
	waiting = fixture_submit(&two, fn_wait_foreign, &other);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&other.waiting) == 1));
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(waiting), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(other.root), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&two), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fixture_stop(&one), BH_POOL_CLEAN);
}

/* On a lane: waits for one that comes after another of that lane. */
static bh_status fn_wait_own_lane(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct other *other = arg;
	struct bh_ticket *behind = fixture_submit_lane(fx, other->lane, fn_nop, NULL);
	struct bh_ticket *free = submit_after(fx, fn_nop, NULL, AFTER(behind));
	struct bh_error err = { .status = 0 };
	bh_status st = bh_ticket_wait(free, PATIENCE, &err);

	(void)task;
	CU_ASSERT_EQUAL(st, -EDEADLK);
	CU_ASSERT_STRING_EQUAL(err.id, "task.deadlock");
	bh_ticket_unref(behind);
	bh_ticket_unref(free);
	return 0;
}

static void sup7_deadlock_by_way_of_others(void)
{
	struct other other = { .root = NULL };
	struct bh_ticket *ticket;
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "own", &other.lane, NULL), 0);
	ticket = fixture_submit_lane(&fx, other.lane, fn_wait_own_lane, &other);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_DONE);
	bh_lane_unref(other.lane);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- values ---------------------------------------------------------------------------------- */

static bh_status fn_text(struct fixture *fx, struct bh_task *task, void *arg)
{
	const struct bh_value text = { .type = BH_TYPE_STR, .as.text = { arg, strlen(arg) } };
	struct bh_value own;

	(void)fx;
	CU_ASSERT_EQUAL(bh_value_copy(&text, &own), 0);
	bh_task_set_result(task, own);
	return 0;
}

static bh_status accept_text(void *arg, struct bh_task *task, uint32_t parameter, bool element,
			     const struct bh_ticket *from, struct bh_value *value)
{
	_Atomic uint64_t *seen = arg;

	atomic_store(seen, from->task_id);
	if (value->type == BH_TYPE_STR && parameter >= 2 && element == (parameter == 3))
		return 0;
	return bh_raise(bh_task_error(task), -EINVAL, "task.argument",
			BH_INT("parameter", parameter));
}

static bh_status fn_join(struct fixture *fx, struct bh_task *task, void *arg)
{
	_Atomic uint64_t *seen = arg;
	bh_status st = bh_task_fill(task, accept_text, seen);
	const struct bh_args *args = bh_task_args(task);
	char joined[64];
	struct bh_value text = { .type = BH_TYPE_STR, .as.text = { joined, 0 } }, own;

	(void)fx;
	if (st < 0)
		return st;
	CU_ASSERT_EQUAL(bh_task_fill(task, accept_text, seen), 0); /* nothing left to do */
	text.as.text.length =
		(uint64_t)snprintf(joined, sizeof(joined), "%s %s", args->v[2].as.text.data,
				   args->v[3].as.list.items[0].as.text.data);
	CU_ASSERT_EQUAL(bh_value_copy(&text, &own), 0);
	bh_task_set_result(task, own);
	return 0;
}

/* fn_join of two results, one of them in a list. */
static struct bh_ticket *submit_join(struct fixture *fx, _Atomic uint64_t *seen, struct after after)
{
	struct bh_ticket *ticket = fixture_ticket();
	struct bh_args *args = bh_args_new(4), *two = fixture_args(fn_join, seen);
	struct bh_value *items = calloc(1, sizeof(*items));
	const struct bh_submission s = { .args = args,
					 .deadline = BH_NEVER,
					 .ticket = ticket,
					 .after = after.tickets,
					 .n_after = after.n };

	args->v[0] = two->v[0];
	args->v[1] = two->v[1];
	bh_args_free(two);
	args->v[2] = (struct bh_value){ .type = BH_TYPE_AFTER, .as.handle = 0 };
	items[0] = (struct bh_value){ .type = BH_TYPE_AFTER, .as.handle = 1 };
	args->v[3] = (struct bh_value){ .type = BH_TYPE_LIST, .as.list = { items, 1 } };
	CU_ASSERT_EQUAL_FATAL(bh_pool_submit(fx->pool, &s, NULL), BH_ACCEPTED);
	return ticket;
}

static void values_are_handed_on(void)
{
	struct gate gate = { .open = false };
	struct bh_ticket *hold, *a, *b, *join, *bad;
	_Atomic uint64_t seen = 0;
	struct fixture fx;

	fixture_init(&fx, 2, 16);
	fixture_start(&fx);
	hold = fixture_submit(&fx, fn_gate, &gate);
	a = submit_after(&fx, fn_text, "first", AFTER(hold));
	b = submit_after(&fx, fn_text, "second", AFTER(hold));
	join = submit_join(&fx, &seen, AFTER(a, b));
	bad = submit_join(&fx, &seen, AFTER(a, hold)); /* hold has no result */
	gate_open(&gate);
	CU_ASSERT_EQUAL(bh_ticket_wait(join, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_wait(bad, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(join), BH_OUTCOME_DONE);
	CU_ASSERT_STRING_EQUAL(join->result.as.text.data, "first second");
	CU_ASSERT_STRING_EQUAL(a->result.as.text.data, "first"); /* still there */
	CU_ASSERT_EQUAL(bh_ticket_outcome(bad), BH_OUTCOME_FAILED);
	CU_ASSERT_STRING_EQUAL(bad->error.id, "task.argument");
	CU_ASSERT_PTR_NULL(bad->root);
	/* The holder's claim is the last. */
	CU_ASSERT_TRUE(UNTIL(atomic_load(&a->claims) == 1));
	bh_ticket_disclaim(a);
	CU_ASSERT_EQUAL(a->result.type, BH_TYPE_NONE);
	(void)fixture_outcome(hold);
	(void)fixture_outcome(a);
	(void)fixture_outcome(b);
	(void)fixture_outcome(join);
	(void)fixture_outcome(bad);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- all of it at once ----------------------------------------------------------------------- */

#define THREADS 3
#define ROUNDS 1500
#define WINDOW 12

struct counted {
	struct bh_ticket ticket;
	_Atomic int told;
	_Atomic uint64_t *by_outcome;
};

static void counted_notify(struct bh_ticket *ticket)
{
	struct counted *counted = bh_container_of(ticket, struct counted, ticket);

	CU_ASSERT_EQUAL(atomic_fetch_add(&counted->told, 1), 0);
	atomic_fetch_add(&counted->by_outcome[bh_ticket_outcome(ticket)], 1);
}

static void counted_free(struct bh_ticket *ticket)
{
	bh_value_clear(&ticket->result);
	bh_object_unref(ticket->cause);
	free(bh_container_of(ticket, struct counted, ticket));
}

struct player {
	struct fixture *pools[2];
	unsigned seed;
	uint64_t accepted;
	_Atomic uint64_t *by_outcome;
	pthread_t thread;
};

static bool play_once(struct player *player, struct bh_lane *lanes[2],
		      struct bh_ticket *window[WINDOW], int round)
{
	static const fixture_fn fns[] = { fn_nop, fn_nop, fn_nop, fn_nop, fn_nop, fn_fail };
	struct counted *counted = calloc(1, sizeof(*counted));
	struct bh_submission s = { .deadline = BH_NEVER };
	struct bh_ticket *after[3];
	int dice = rand_r(&player->seed), which = dice & 1;
	bool accepted;

	counted->by_outcome = player->by_outcome;
	bh_ticket_init(&counted->ticket, counted_notify, counted_free);
	for (int n = (dice >> 1) % 4; n > 0; n--) {
		struct bh_ticket *before = window[rand_r(&player->seed) % WINDOW];

		if (before)
			after[s.n_after++] = before;
	}
	s.after = after;
	s.lane = dice & 8 ? lanes[which] : NULL;
	s.ticket = &counted->ticket;
	s.args = fixture_args(fns[(dice >> 4) % 6], NULL);
	if ((dice >> 8) % 16 == 0)
		s.deadline = SOON_MS(1);
	accepted =
		bh_pool_submit_wait(player->pools[which]->pool, &s, PATIENCE, NULL) == BH_ACCEPTED;
	if (!accepted) {
		bh_args_free(s.args);
		bh_ticket_unref(&counted->ticket);
		return false;
	}
	player->accepted++;
	bh_ticket_unref(window[round % WINDOW]);
	window[round % WINDOW] = &counted->ticket;
	if ((dice >> 12) % 16 == 0)
		(void)bh_ticket_cancel(window[(dice >> 16) % (round < WINDOW ? round + 1 : WINDOW)],
				       false);
	return true;
}

static void *play(void *arg)
{
	struct player *player = arg;
	struct bh_ticket *window[WINDOW] = { NULL };
	struct bh_lane *lanes[2];

	for (int i = 0; i < 2; i++)
		CU_ASSERT_EQUAL(bh_lane_new(player->pools[i]->pool, "play", &lanes[i], NULL), 0);
	for (int round = 0; round < ROUNDS && play_once(player, lanes, window, round); round++)
		;
	for (int i = 0; i < WINDOW; i++)
		bh_ticket_unref(window[i]);
	bh_lane_unref(lanes[0]);
	bh_lane_unref(lanes[1]);
	return NULL;
}

/* `stop`: one of the pools is stopped in the middle. */
static void play_all(bool stop)
{
	_Atomic uint64_t by_outcome[BH_OUTCOMES] = { 0 };
	struct player players[THREADS];
	struct bh_pool_books books[2];
	uint64_t accepted = 0, told = 0;
	struct fixture one, two;

	fixture_init(&one, 2, 32);
	fixture_init(&two, 1, 32);
	two.config.label = "fixture-two";
	fixture_start(&one);
	fixture_start(&two);
	for (int i = 0; i < THREADS; i++) {
		players[i] = (struct player){ .pools = { &one, &two },
					      .seed = (unsigned)i + 7,
					      .by_outcome = by_outcome };
		CU_ASSERT_EQUAL_FATAL(pthread_create(&players[i].thread, NULL, play, &players[i]),
				      0);
	}
	if (stop) {
		CU_ASSERT_TRUE(
			UNTIL((bh_pool_books(two.pool, &books[1]), books[1].submitted > 200)));
		bh_pool_stop(two.pool, SOON_MS(1), PATIENCE);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(players[i].thread, NULL);
		accepted += players[i].accepted;
	}
	bh_pool_stop(two.pool, PATIENCE, PATIENCE);
	bh_pool_stop(one.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL(bh_pool_wait_ended(one.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_wait_ended(two.pool, PATIENCE, NULL), 0);
	bh_pool_books(one.pool, &books[0]);
	bh_pool_books(two.pool, &books[1]);
	CU_ASSERT_EQUAL(books[0].submitted + books[1].submitted, accepted);
	CU_ASSERT_EQUAL(fixture_end(&one), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fixture_end(&two), BH_POOL_CLEAN);
	for (int i = 0; i < BH_OUTCOMES; i++)
		told += by_outcome[i];
	CU_ASSERT_EQUAL(told, accepted);
	CU_ASSERT_EQUAL(by_outcome[BH_OUTCOME_DONE], books[0].done + books[1].done);
	CU_ASSERT_EQUAL(by_outcome[BH_OUTCOME_FAILED], books[0].failed + books[1].failed);
	CU_ASSERT_TRUE(books[0].done > 0 && books[0].failed > 0);
}

static void sup4_nothing_lost(void)
{
	play_all(false);
}

static void sup4_nothing_lost_during_a_stop(void)
{
	play_all(true);
}

static const struct bh_test tests[] = {
	{ "a diamond: after all it comes after, nobody's worker held meanwhile", diamond },
	{ "after what is done already it just runs", after_what_is_done },
	{ "a chain of 10000 runs", chain_runs },
	{ "a chain of 10000 is poisoned by its head, without recursion", chain_is_poisoned },
	{ "across pools and back", across_pools },
	{ "lanes: a blocked head keeps its lane's order, others go on", lanes_wait_for_their_head },
	{ "lanes: a blocked head that ends lets its lane on", lanes_go_on_without_their_head },
	{ "poison: the first cause is kept through chains and named", poison_names_its_root },
	{ "poison: the cause comes with it", poison_brings_the_cause },
	{ "poison: by cancelled and late ones too, at once", cancelled_and_late_roots_poison },
	{ "poison: by abandoned ones too", abandoned_roots_poison },
	{ "cancel: a blocked task ends at once and lets go of its root", cancel_of_a_dependent },
	{ "SUP-9: a deadline passes while blocked", deadline_while_blocked },
	{ "GIL-9: cancel with trylock waits for no pool's lock",
	  cancel_with_trylock_leaves_the_locks },
	{ "SUP-4: a draining pool runs blocked tasks when they may", drain_runs_blocked_ones },
	{ "SUP-4: a stop cancels what is blocked, and its pool may be freed",
	  stop_cancels_blocked_ones },
	{ "SUP-4: a failure cancels what is blocked", failure_cancels_blocked_ones },
	{ "SUP-4: giving up cancels what is blocked", giving_up_cancels_blocked_ones },
	{ "SUP-8: a blocked task takes a place, a refused one leaves nothing",
	  refused_ones_leave_nothing },
	{ "SUP-7: a waiting worker runs what it comes after", sup7_runs_what_it_comes_after },
	{ "SUP-7: a waiting worker waits for other pools' tasks", sup7_waits_for_other_pools },
	{ "SUP-7: waiting for what comes after one's own lane is a deadlock",
	  sup7_deadlock_by_way_of_others },
	{ "values: copied into place, in a list too, and checked", values_are_handed_on },
	{ "SUP-4: nothing is lost among random dependencies of two pools", sup4_nothing_lost },
	{ "SUP-4: nor when one of them stops meanwhile", sup4_nothing_lost_during_a_stop },
};

BH_TAP_MAIN("depend", tests)
