/* SPDX-License-Identifier: BSD-3-Clause */
/* test_pool - admission, outcomes, lanes, waiting and the books of host/core/pool.c and its
 * parts. */
#include "config.h"

#include <sys/wait.h>

#include "host/core/pool_private.h"
#include "tests/unit/pool_fixture.h"

/* ---- identity and lifetime ------------------------------------------------------------------- */

static bh_status fn_check_tag(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)task;
	fixture_check_tag(fx, bh_identity_get()->worker);
	return bh_identity_get()->worker < *(uint32_t *)arg ? 0 : -EINVAL;
}

static void ri3_workers_tagged(void)
{
	struct fixture fx;
	uint32_t workers = 3;

	fixture_init(&fx, workers, 8);
	fx.config.n_progress = 1;
	fixture_start(&fx);
	for (int i = 0; i < 6; i++)
		CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_check_tag, &workers)),
				BH_OUTCOME_DONE);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&fx.n_progress) == 1));
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fx.n_started, 3);
	CU_ASSERT_EQUAL(fx.n_stopped, 3);
	CU_ASSERT_EQUAL(fx.untagged, 0);
}

static void *submit_as_control(void *arg)
{
	struct fixture *fx = arg;
	bool same;

	CU_ASSERT_EQUAL(bh_identity_tag_control("native", NULL), 0);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(fx, fn_nop, NULL)), BH_OUTCOME_DONE);
	same = bh_identity_get()->plane == BH_PLANE_CONTROL &&
	       strcmp(bh_identity_get()->label, "native") == 0;
	return same ? fx : NULL;
}

static void ri4_no_leak(void)
{
	struct fixture fx;
	pthread_t thread;
	void *same = NULL;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_nop, NULL)), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(bh_identity_get()->plane, BH_PLANE_NONE);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, submit_as_control, &fx), 0);
	pthread_join(thread, &same);
	CU_ASSERT_PTR_NOT_NULL(same);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void ri5_lifetime(void)
{
	struct fixture fx;
	struct bh_error err = { .status = 0 };
	char label[] = "short-lived";

	fixture_init(&fx, 1, 8);
	fx.config.label = label;
	fixture_make(&fx);
	memset(label, 'x', sizeof(label) - 1);
	CU_ASSERT_STRING_EQUAL(bh_pool_label(fx.pool), "short-lived");
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, NULL, NULL, &err), BH_CLOSED);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "state"), "new");
	fixture_start(&fx);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	bh_error_clear(&err);
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, NULL, NULL, &err), BH_CLOSED);
	CU_ASSERT_STRING_EQUAL(err.id, "pool.closed");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "pool"), "short-lived");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "state"), "clean");
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

static void config_is_checked(void)
{
	static const struct {
		const char *label;
		uint32_t workers, progress, queue;
		const char *key;
	} rows[] = {
		{ "", 1, 0, 1, "label" },
		{ "Upper", 1, 0, 1, "label" },
		{ "9lives", 1, 0, 1, "label" },
		{ "a b", 1, 0, 1, "label" },
		{ "abcdefghijklmnopqrstuvwxyz-abcdef", 1, 0, 1, "label" },
		{ "a", 0, 0, 1, "workers" },
		{ "a", 1025, 0, 1, "workers" },
		{ "a", 1, 65, 1, "progress_threads" },
		{ "a", 1, 0, 0, "queue" },
		{ "a", 1, 0, (1 << 20) + 1, "queue" },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_error err = { .status = 0 };
		struct fixture fx;

		fixture_init(&fx, rows[i].workers, rows[i].queue);
		fx.config.label = rows[i].label;
		fx.config.n_progress = rows[i].progress;
		CU_ASSERT_EQUAL(bh_pool_new(&fx.config, &fx.pool, &err), -EINVAL);
		CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "key"), rows[i].key);
		CU_ASSERT_PTR_NULL(fx.pool);
	}
}

static void placement_is_checked(void)
{
	struct bh_error err = { .status = 0 };
	struct bh_cpus none;
	struct fixture fx;

	memset(&none, 0, sizeof(none));
	fixture_init(&fx, 1, 1);
	fx.config.cpus = &none;
	CU_ASSERT_EQUAL(bh_pool_new(&fx.config, &fx.pool, &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "key"), "cpus");
	fixture_init(&fx, 1, 1);
	fx.config.has_nice = true;
	fx.config.nice = 20;
	bh_error_clear(&err);
	CU_ASSERT_EQUAL(bh_pool_new(&fx.config, &fx.pool, &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "key"), "nice");
	CU_ASSERT_PTR_NULL(fx.pool);
}

static void cpus_as_text(void)
{
	static const char *const bad[] = {
		"",	  ",",	 "1,",	"1,,2",	 "-1",
		"1-",	  "3-1", "1 2", " 1",	 "8192",
		"0-8192", "a",	 "0x1", "1-2-3", "99999999999999999999"
	};
	static const struct {
		const char *text, *canonical;
		unsigned n;
	} good[] = {
		{ "0", "0", 1 },
		{ "8,0-3", "0-3,8", 5 },
		{ "1,2,3,2-4", "1-4", 4 },
		{ "0-8191", "0-8191", 8192 },
		{ "8191,1023-1024", "1023-1024,8191", 3 },
	};
	struct bh_cpus cpus, other;
	char text[64];

	for (size_t i = 0; i < BH_ARRAY_LEN(bad); i++)
		CU_ASSERT_EQUAL(bh_cpus_parse(bad[i], &cpus), -EINVAL);
	for (size_t i = 0; i < BH_ARRAY_LEN(good); i++) {
		CU_ASSERT_EQUAL_FATAL(bh_cpus_parse(good[i].text, &cpus), 0);
		CU_ASSERT_EQUAL(bh_cpus_count(&cpus), good[i].n);
		CU_ASSERT_EQUAL(bh_cpus_format(&cpus, text, sizeof(text)),
				strlen(good[i].canonical));
		CU_ASSERT_STRING_EQUAL(text, good[i].canonical);
	}
	CU_ASSERT_EQUAL_FATAL(bh_cpus_parse("1-9", &cpus), 0);
	CU_ASSERT_EQUAL_FATAL(bh_cpus_parse("0-3,8", &other), 0);
	cpus = bh_cpus_without(&cpus, &other);
	bh_cpus_format(&cpus, text, sizeof(text));
	CU_ASSERT_STRING_EQUAL(text, "4-7,9");
	/* What does not fit says so, and never in the middle of a number. */
	CU_ASSERT_EQUAL_FATAL(bh_cpus_parse("1000,1002,1004", &cpus), 0);
	bh_cpus_format(&cpus, text, 12);
	CU_ASSERT_STRING_EQUAL(text, "1000…");
}

/* ---- outcomes -------------------------------------------------------------------------------- */

static bh_status fn_sum(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	bh_task_set_result(task, (struct bh_value){ .type = BH_TYPE_INT, .as.integer = 1 });
	bh_task_set_result(task,
			   (struct bh_value){ .type = BH_TYPE_INT, .as.integer = *(int *)arg + 1 });
	return 0;
}

static void done_has_its_result(void)
{
	struct fixture fx;
	struct bh_ticket *ticket;
	int forty_one = 41;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_sum, &forty_one);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(ticket->result.as.integer, 42);
	CU_ASSERT_TRUE(ticket->submitted_ns <= ticket->started_ns &&
		       ticket->started_ns <= ticket->ended_ns);
	bh_ticket_unref(ticket);
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_sum, &forty_one, NULL, NULL, NULL),
			BH_ACCEPTED); /* nobody asks */
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static bh_status fn_fail_silently(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	(void)task;
	return *(bh_status *)arg;
}

static void failed_says_what(void)
{
	struct fixture fx;
	struct bh_ticket *ticket;
	char id[32];
	bh_status silent[] = { -ENOSPC, 17 };

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_fail, NULL);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_FAILED);
	snprintf(id, sizeof(id), "%llu", (unsigned long long)ticket->task_id);
	CU_ASSERT_STRING_EQUAL(ticket->error.id, "fixture.fail");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&ticket->error, "device"), "3");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&ticket->error, "pool"), "fixture");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&ticket->error, "op"), "call");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&ticket->error, "task"), id);
	bh_ticket_unref(ticket);
	ticket = fixture_submit(&fx, fn_fail_silently, &silent[0]);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_STRING_EQUAL(ticket->error.id, "task.failed");
	CU_ASSERT_EQUAL(ticket->error.status, -ENOSPC);
	bh_ticket_unref(ticket);
	ticket = fixture_submit(&fx, fn_fail_silently, &silent[1]);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_FAILED);
	CU_ASSERT_STRING_EQUAL(ticket->error.id, "task.bad-status");
	bh_ticket_unref(ticket);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

struct witness {
	struct bh_object object;
	_Atomic int freed;
};

static void witness_free(struct bh_object *object)
{
	atomic_fetch_add(&bh_container_of(object, struct witness, object)->freed, 1);
}

struct told {
	struct bh_ticket ticket;
	struct witness *witness;
	_Atomic int notified, freed_before;
};

static void told_notify(struct bh_ticket *ticket)
{
	struct told *told = bh_container_of(ticket, struct told, ticket);

	atomic_store(&told->freed_before, atomic_load(&told->witness->freed));
	atomic_fetch_add(&told->notified, 1);
}

static void args_go_before_the_notice(void)
{
	struct fixture fx;
	struct witness witness = { .object = { .refs = 1, .free = witness_free } };
	struct told told = { .witness = &witness };
	struct bh_submission s = { .deadline = BH_NEVER, .ticket = &told.ticket };

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	bh_ticket_init(&told.ticket, told_notify, NULL);
	s.args = bh_args_new(3);
	s.args->v[0] = (struct bh_value){ .type = BH_TYPE_HANDLE,
					  .as.handle = (uint64_t)(uintptr_t)fn_nop };
	s.args->v[2] = (struct bh_value){ .type = BH_TYPE_OBJECT, .as.object = &witness.object };
	CU_ASSERT_EQUAL(bh_pool_submit(fx.pool, &s, NULL), BH_ACCEPTED);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&told.ticket.refs) == 1));
	CU_ASSERT_EQUAL(told.notified, 1);
	CU_ASSERT_EQUAL(told.freed_before, 1);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- cancel and deadline --------------------------------------------------------------------- */

static void cancel_queued(void)
{
	struct fixture fx;
	struct gate gate = { 0 };
	struct bh_ticket *first, *second;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	first = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	second = fixture_submit(&fx, fn_nop, NULL);
	CU_ASSERT_TRUE(bh_ticket_cancel(second, false));
	CU_ASSERT_EQUAL(bh_ticket_outcome(second), BH_OUTCOME_CANCELLED);
	CU_ASSERT_STRING_EQUAL(second->error.id, "task.cancelled");
	CU_ASSERT_EQUAL(second->started_ns, 0);
	CU_ASSERT_TRUE(bh_ticket_cancel(second, false)); /* again: nothing happens */
	bh_ticket_unref(second);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(first), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fx.n_run, 1);
}

static void cancel_running(void)
{
	struct fixture fx;
	struct bh_ticket *ticket;
	_Atomic int running = 0;
	uint64_t id;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_until_cancelled, &running);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&running) == 1));
	id = ticket->task_id;
	CU_ASSERT_TRUE(bh_ticket_cancel(ticket, false));
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_CANCELLED);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	if (fx.n_cancel > 0) { /* unless the op was quicker than the supervisor */
		CU_ASSERT_EQUAL(fx.cancelled_id, id);
		CU_ASSERT_STRING_EQUAL(fx.cancel_thread, "fixture/sup");
	}
}

static bh_status fn_done_when_cancelled(struct fixture *fx, struct bh_task *task, void *arg)
{
	atomic_fetch_add((_Atomic int *)arg, 1);
	/* Waits for the backend to be told, so that this also shows that it is, and by whom. */
	return UNTIL(bh_task_cancelled(task) && atomic_load(&fx->n_cancel) > 0) ? 0 : -ETIME;
}

static void done_is_done(void)
{
	struct fixture fx;
	struct bh_ticket *ticket;
	struct bh_submission how = { .deadline = BH_NEVER };
	_Atomic int running = 0;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_done_when_cancelled, &running);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&running) == 1));
	CU_ASSERT_TRUE(bh_ticket_cancel(ticket, false) && bh_ticket_cancel(ticket, false));
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fx.n_cancel, 1); /* told once */
	CU_ASSERT_STRING_EQUAL(fx.cancel_thread, "fixture/sup");
	fx.n_cancel = 0;
	/* Late enough to start in time even on a busy machine: it starts now, and waits for it. */
	how.deadline = SOON_MS(300);
	ticket = fixture_submit_how(&fx, fn_done_when_cancelled, &running, &how);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_DONE);
	CU_ASSERT_TRUE(bh_deadline_passed(how.deadline));
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void deadline_while_queued(void)
{
	struct fixture fx;
	struct gate gate = { 0 };
	struct bh_submission how = { .deadline = SOON_MS(30) };
	struct bh_ticket *blocker, *late[3];

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	blocker = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	for (int i = 0; i < 3; i++)
		late[i] = fixture_submit_how(&fx, fn_nop, NULL, &how);
	for (int i = 0; i < 3; i++) /* the only worker is busy all the while */
		CU_ASSERT_EQUAL(fixture_outcome(late[i]), BH_OUTCOME_DEADLINE);
	CU_ASSERT_TRUE(bh_deadline_passed(how.deadline));
	CU_ASSERT_EQUAL(bh_ticket_outcome(blocker), BH_OUTCOME_NONE);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(blocker), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fx.n_run, 1);
}

static void deadline_before_start(void)
{
	struct fixture fx;
	struct bh_submission how = { .deadline = PAST };
	struct bh_ticket *ticket;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit_how(&fx, fn_nop, NULL, &how);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_DEADLINE);
	CU_ASSERT_STRING_EQUAL(ticket->error.id, "task.deadline");
	bh_ticket_unref(ticket);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fx.n_run, 0);
}

static void deadline_while_running(void)
{
	struct fixture fx;
	struct bh_submission how = { .deadline = BH_NEVER };

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	how.deadline = SOON_MS(100);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit_how(&fx, fn_until_cancelled, NULL, &how)),
			BH_OUTCOME_DEADLINE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* White box: the heap gives deadlines in order, whatever is taken out of its middle. */
static void heap_is_ordered(void)
{
	struct fixture fx;
	struct bh_pool *pool;
	unsigned seed = 7;
	uint64_t last = 0;

	fixture_init(&fx, 1, 400);
	fixture_make(&fx);
	pool = fx.pool;
	bh_mutex_lock(&pool->lock);
	for (uint32_t i = 0; i < 400; i++) {
		pool->tasks[i].deadline.at_ns = (uint64_t)rand_r(&seed) % 100;
		bh_heap_push_locked(pool, &pool->tasks[i]);
	}
	for (uint32_t i = 0; i < 400; i += 3) {
		bh_heap_remove_locked(pool, &pool->tasks[i]);
		bh_heap_remove_locked(pool, &pool->tasks[i]); /* not in it: nothing happens */
	}
	for (uint32_t n = pool->n_heap; n > 0; n--) {
		struct bh_task *first = bh_heap_first(pool);

		CU_ASSERT_TRUE(first->deadline.at_ns >= last && (first - pool->tasks) % 3 != 0);
		last = first->deadline.at_ns;
		bh_heap_remove_locked(pool, first);
	}
	CU_ASSERT_PTR_NULL(bh_heap_first(pool));
	bh_mutex_unlock(&pool->lock);
	fx.pool = bh_pool_free(fx.pool);
}

/* ---- pending --------------------------------------------------------------------------------- */

static void pending_completed_elsewhere(void)
{
	struct fixture fx;
	_Atomic uint64_t id = 0;
	struct bh_value value = { .type = BH_TYPE_INT, .as.integer = 9 };
	struct bh_error error = { .status = 0 };
	struct bh_pool_books books;
	struct bh_ticket *ticket;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL((bh_pool_books(fx.pool, &books), books.pending == 1)));
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_nop, NULL)),
			BH_OUTCOME_DONE); /* worker is free */
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, &value, NULL), 0);
	CU_ASSERT_EQUAL(value.type, BH_TYPE_NONE);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PAST, NULL), 0); /* told before complete() returns */
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(ticket->result.as.integer, 9);
	bh_ticket_unref(ticket);

	id = 0;
	ticket = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	bh_raise(&error, -EIO, "fixture.flush", BH_INT("qp", 5));
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, -EIO, NULL, &error), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_FAILED);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&ticket->error, "qp"), "5");
	bh_ticket_unref(ticket);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* What is pending takes its time; what waits, or is cancelled in the queue, takes none. */
static void times_of_ops(void)
{
	struct bh_histogram_counts counts = { 0 };
	struct bh_ticket *ticket, *waiting;
	struct gate gate = { 0 };
	_Atomic uint64_t id = 0;
	struct fixture fx;
	uint64_t before_ns, pending_ns, total_ns;

	fixture_init(&fx, 1, 8);
	fx.config.n_ops = 1;
	fixture_start(&fx);
	CU_ASSERT_EQUAL(bh_pool_op_times(fx.pool, 0, &counts), 0);
	CU_ASSERT_EQUAL(counts.n, 0);
	ticket = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	before_ns = bh_now_ns();
	CU_ASSERT_TRUE(UNTIL(bh_now_ns() - before_ns > 3 * BH_NS_PER_MS));
	CU_ASSERT_EQUAL(bh_pool_op_times(fx.pool, 0, &counts), 0);
	pending_ns = bh_now_ns() - before_ns;
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	total_ns = bh_pool_op_times(fx.pool, 0, &counts);
	CU_ASSERT_EQUAL(counts.n, 1);
	CU_ASSERT_TRUE(total_ns >= pending_ns);
	CU_ASSERT_EQUAL(counts.buckets[0], 0);
	bh_ticket_unref(ticket);

	ticket = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	waiting = fixture_submit(&fx, fn_nop, NULL);
	CU_ASSERT_TRUE(bh_ticket_cancel(waiting, false));
	CU_ASSERT_EQUAL(fixture_outcome(waiting), BH_OUTCOME_CANCELLED);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_DONE);
	counts = (struct bh_histogram_counts){ 0 };
	CU_ASSERT_TRUE(bh_pool_op_times(fx.pool, 0, &counts) > total_ns);
	CU_ASSERT_EQUAL(counts.n, 2);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

struct early {
	bh_status returns;
	bh_status completed, completed_again;
	struct gate gate;
};

static bh_status fn_complete_early(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct early *early = arg;

	early->completed = bh_pool_complete(fx->pool, bh_task_id(task), 0, NULL, NULL);
	early->completed_again = bh_pool_complete(fx->pool, bh_task_id(task), -EIO, NULL, NULL);
	gate_pass(&early->gate);
	return early->returns;
}

static void completed_before_run_returns(void)
{
	static const bh_status returns[] = { BH_PENDING, 0, -EIO };

	for (size_t i = 0; i < BH_ARRAY_LEN(returns); i++) {
		struct early early = { .returns = returns[i] };
		struct bh_pool_books books;
		struct bh_ticket *ticket;
		struct fixture fx;

		fixture_init(&fx, 1, 8);
		fixture_start(&fx);
		ticket = fixture_submit(&fx, fn_complete_early, &early);
		CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
		CU_ASSERT_EQUAL(bh_ticket_outcome(ticket),
				BH_OUTCOME_DONE); /* the first one counts */
		CU_ASSERT_TRUE(UNTIL(atomic_load(&early.gate.arrived) == 1));
		bh_pool_books(fx.pool, &books);
		CU_ASSERT_EQUAL(books.running, 0);
		CU_ASSERT_TRUE(fixture_balances(fx.pool));
		gate_open(&early.gate);
		bh_ticket_unref(ticket);
		CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
		CU_ASSERT_EQUAL(early.completed, 0);
		CU_ASSERT_EQUAL(early.completed_again, -ESRCH);
	}
}

static void completed_twice_or_never_was(void)
{
	struct fixture fx;
	_Atomic uint64_t id = 0;
	struct bh_ticket *ticket;
	uint32_t op = 9;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_nop, NULL);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_task_op(fx.pool, ticket->task_id, &op), -ESRCH);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, ticket->task_id, 0, NULL, NULL), -ESRCH);
	bh_ticket_unref(ticket);
	ticket = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	CU_ASSERT_EQUAL(bh_pool_task_op(fx.pool, id, &op), 0);
	CU_ASSERT_EQUAL(op, 0);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, BH_PENDING, NULL, NULL), -EINVAL);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), -ESRCH);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_DONE);
	for (int i = 0; i < 40; i++) /* the record is used again, the number is not */
		CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_nop, NULL)),
				BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), -ESRCH);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, 0, 0, NULL, NULL), -ESRCH);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, 1, 0, NULL, NULL), -ESRCH);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, UINT64_MAX, 0, NULL, NULL), -ESRCH);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void pending_is_cancelled_by_the_backend(void)
{
	struct fixture fx;
	_Atomic uint64_t id = 0;
	struct bh_pool_books books;
	struct bh_ticket *ticket;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL((bh_pool_books(fx.pool, &books), books.pending == 1)));
	CU_ASSERT_TRUE(bh_ticket_cancel(ticket, false));
	CU_ASSERT_TRUE(UNTIL(atomic_load(&fx.n_cancel) == 1));
	CU_ASSERT_EQUAL(fx.cancelled_id, id);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_NONE); /* the op decides */
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, -ECANCELED, NULL, NULL), 0);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_CANCELLED);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

#define LANES 3
#define PER_LANE 200

struct order {
	_Atomic int next, inside, wrong;
};

struct step {
	struct order *order;
	int number;
};

static bh_status fn_step(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct step *step = arg;

	(void)fx;
	(void)task;
	if (atomic_fetch_add(&step->order->inside, 1) != 0 ||
	    atomic_fetch_add(&step->order->next, 1) != step->number)
		atomic_fetch_add(&step->order->wrong, 1);
	atomic_fetch_sub(&step->order->inside, 1);
	return 0;
}

static void lanes_keep_order(void)
{
	static struct step steps[LANES][PER_LANE];
	struct order orders[LANES] = { 0 };
	struct bh_lane *lanes[LANES];
	struct bh_ticket *last[LANES];
	struct fixture fx;

	fixture_init(&fx, 4, LANES * PER_LANE);
	fixture_start(&fx);
	for (int l = 0; l < LANES; l++)
		CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "lane", &lanes[l], NULL), 0);
	for (int i = 0; i < PER_LANE; i++)
		for (int l = 0; l < LANES; l++) {
			steps[l][i] = (struct step){ &orders[l], i };
			last[l] = fixture_submit_lane(&fx, lanes[l], fn_step, &steps[l][i]);
			if (i < PER_LANE - 1)
				bh_ticket_unref(last[l]);
		}
	for (int l = 0; l < LANES; l++) {
		CU_ASSERT_EQUAL(fixture_outcome(last[l]), BH_OUTCOME_DONE);
		CU_ASSERT_EQUAL(orders[l].next, PER_LANE);
		CU_ASSERT_EQUAL(orders[l].wrong, 0);
		bh_lane_unref(lanes[l]); /* a lane outlives its tasks by itself */
	}
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

struct turns {
	_Atomic int n;
	char order[64];
};

static bh_status fn_turn_a(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct turns *turns = arg;

	(void)fx;
	(void)task;
	turns->order[turns->n++] = 'a';
	return 0;
}

static bh_status fn_turn_b(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct turns *turns = arg;

	(void)fx;
	(void)task;
	turns->order[turns->n++] = 'b';
	return 0;
}

static void lanes_are_fair(void)
{
	struct gate gate = { 0 };
	struct turns turns = { .n = 0 };
	struct bh_lane *long_lane, *short_lane;
	struct bh_ticket *blocker, *last = NULL;
	struct fixture fx;

	fixture_init(&fx, 1, 32);
	fixture_start(&fx);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "long", &long_lane, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "short", &short_lane, NULL), 0);
	blocker = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	for (int i = 0; i < 6; i++) {
		bh_ticket_unref(last);
		last = fixture_submit_lane(&fx, long_lane, fn_turn_a, &turns);
	}
	bh_ticket_unref(fixture_submit_lane(&fx, short_lane, fn_turn_b, &turns));
	bh_ticket_unref(fixture_submit_lane(&fx, short_lane, fn_turn_b, &turns));
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(last), BH_OUTCOME_DONE);
	CU_ASSERT_STRING_EQUAL(turns.order, "ababaaaa");
	CU_ASSERT_EQUAL(fixture_outcome(blocker), BH_OUTCOME_DONE);
	bh_lane_unref(long_lane);
	bh_lane_unref(short_lane);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void pending_keeps_its_lane(void)
{
	_Atomic uint64_t id = 0;
	struct bh_pool_books books;
	struct bh_ticket *first, *second;
	struct bh_lane *lane;
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "lane", &lane, NULL), 0);
	first = fixture_submit_lane(&fx, lane, fn_pend, &id);
	second = fixture_submit_lane(&fx, lane, fn_nop, NULL);
	CU_ASSERT_TRUE(UNTIL((bh_pool_books(fx.pool, &books), books.pending == 1)));
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_nop, NULL)), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(bh_ticket_outcome(second), BH_OUTCOME_NONE);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(fixture_outcome(second), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(first), BH_OUTCOME_DONE);
	bh_lane_unref(lane);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* In each step of a task's life, and whatever becomes of it. */
static void sup4_lane_books(void)
{
	struct fixture fx;
	struct gate gate = { 0 };
	struct bh_lane_books books;
	struct bh_ticket *first, *second, *third;
	struct bh_lane *lane;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "lane", &lane, NULL), 0);
	first = fixture_submit_lane(&fx, lane, fn_gate, &gate);
	second = fixture_submit_lane(&fx, lane, fn_fail, NULL);
	third = fixture_submit_lane(&fx, lane, fn_nop, NULL);
	bh_ticket_unref(fixture_submit(&fx, fn_nop, NULL)); /* not of the lane */
	CU_ASSERT_TRUE(UNTIL((bh_lane_books(lane, &books), books.running == 1)));
	CU_ASSERT_EQUAL(books.submitted, 3);
	CU_ASSERT_EQUAL(books.queued, 2);
	CU_ASSERT_EQUAL(books.busy_ns, 0);
	CU_ASSERT_STRING_EQUAL(books.last_error, "");
	bh_ticket_cancel(third, false);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(first), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(second), BH_OUTCOME_FAILED);
	CU_ASSERT_EQUAL(fixture_outcome(third), BH_OUTCOME_CANCELLED);
	bh_lane_books(lane, &books);
	CU_ASSERT_EQUAL(books.submitted, 3);
	CU_ASSERT(books.done == 1 && books.failed == 1 && books.cancelled == 1);
	CU_ASSERT(books.deadline == 0 && books.abandoned == 0);
	CU_ASSERT(books.queued == 0 && books.running == 0);
	CU_ASSERT(books.busy_ns > 0);
	CU_ASSERT_STRING_EQUAL(books.last_error, "fixture.fail");
	bh_lane_unref(lane);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void cancelled_ones_leave_their_lane(void)
{
	struct gate gate = { 0 };
	struct bh_ticket *blocker, *tickets[3];
	struct bh_lane *lane;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "lane", &lane, NULL), 0);
	blocker = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	for (int i = 0; i < 3; i++)
		tickets[i] = fixture_submit_lane(&fx, lane, fn_nop, NULL);
	bh_ticket_cancel(tickets[0], false);
	bh_ticket_cancel(tickets[1], false);
	bh_ticket_cancel(tickets[2], false);
	for (int i = 0; i < 3; i++)
		CU_ASSERT_EQUAL(fixture_outcome(tickets[i]), BH_OUTCOME_CANCELLED);
	tickets[0] = fixture_submit_lane(&fx, lane, fn_nop, NULL);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(tickets[0]), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(blocker), BH_OUTCOME_DONE);
	bh_lane_unref(lane);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- SUP-7 ----------------------------------------------------------------------------------- */

struct inner {
	struct bh_lane *lane; /* of the inner tasks; NULL: none */
	int n;		      /* how many; the last one is waited for */
	bh_status waited;
	enum bh_outcome outcome;
	char thread[16];
	_Atomic int on_other_thread;
};

static bh_status fn_same_thread(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct inner *inner = arg;
	char name[16];

	(void)fx;
	(void)task;
	fixture_thread_name(name);
	if (strcmp(name, inner->thread) != 0)
		atomic_fetch_add(&inner->on_other_thread, 1);
	return 0;
}

static bh_status fn_submit_and_wait(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct inner *inner = arg;
	struct bh_ticket *ticket = NULL;

	fixture_thread_name(inner->thread);
	for (int i = 0; i < inner->n; i++) {
		bh_ticket_unref(ticket);
		ticket = fixture_submit_lane(fx, inner->lane, fn_same_thread, inner);
	}
	inner->waited = bh_ticket_wait(ticket, PATIENCE, bh_task_error(task));
	inner->outcome = bh_ticket_outcome(ticket);
	bh_ticket_unref(ticket);
	return bh_task_current() == task ? inner->waited : -EINVAL;
}

static void sup7_steals(void)
{
	struct inner inner = { .n = 1 };
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_submit_and_wait, &inner)),
			BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(inner.outcome, BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(inner.on_other_thread, 0);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void sup7_lane(void)
{
	struct inner inner = {
		.n = 3
	}; /* the third is not at the head: those before it run first */
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "lane", &inner.lane, NULL), 0);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_submit_and_wait, &inner)),
			BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(inner.outcome, BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(inner.on_other_thread, 0);
	bh_lane_unref(inner.lane);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fx.n_run, 4);
}

static bh_status fn_wait_for(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	return bh_ticket_wait(arg, PATIENCE, bh_task_error(task));
}

/* Both workers wait for the same lane, whose first task is pending: when it is completed nobody
 * but a waiting worker is there to run the rest. */
static void sup7_busy_lane(void)
{
	_Atomic uint64_t id = 0;
	struct bh_pool_books books;
	struct bh_ticket *pending, *queued[2], *waiting[2];
	struct bh_lane *lane;
	struct fixture fx;

	fixture_init(&fx, 2, 16);
	fixture_start(&fx);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "lane", &lane, NULL), 0);
	pending = fixture_submit_lane(&fx, lane, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL((bh_pool_books(fx.pool, &books), books.pending == 1)));
	for (int i = 0; i < 2; i++)
		queued[i] = fixture_submit_lane(&fx, lane, fn_nop, NULL);
	for (int i = 0; i < 2; i++)
		waiting[i] = fixture_submit(&fx, fn_wait_for, queued[i]);
	CU_ASSERT_TRUE(UNTIL((bh_pool_books(fx.pool, &books), books.running == 2)));
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	for (int i = 0; i < 2; i++) {
		CU_ASSERT_EQUAL(fixture_outcome(waiting[i]), BH_OUTCOME_DONE);
		CU_ASSERT_EQUAL(fixture_outcome(queued[i]), BH_OUTCOME_DONE);
	}
	CU_ASSERT_EQUAL(fixture_outcome(pending), BH_OUTCOME_DONE);
	bh_lane_unref(lane);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void sup7_deadlock(void)
{
	struct inner inner = { .n = 1 };
	struct bh_ticket *outer;
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL_FATAL(bh_lane_new(fx.pool, "lane", &inner.lane, NULL), 0);
	outer = fixture_submit_lane(&fx, inner.lane, fn_submit_and_wait, &inner);
	CU_ASSERT_EQUAL(bh_ticket_wait(outer, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(outer), BH_OUTCOME_FAILED);
	CU_ASSERT_EQUAL(inner.waited, -EDEADLK);
	CU_ASSERT_STRING_EQUAL(outer->error.id, "task.deadlock");
	bh_ticket_unref(outer);
	bh_lane_unref(inner.lane);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void sup7_waits_for_itself(void)
{
	struct gate gate = { 0 };
	struct bh_ticket *self = fixture_ticket(), *blocker;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	blocker = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_wait_for, self, NULL, self, NULL), BH_ACCEPTED);
	gate_open(&gate);
	CU_ASSERT_EQUAL(bh_ticket_wait(self, PATIENCE, NULL), 0);
	CU_ASSERT_STRING_EQUAL(self->error.id, "task.deadlock");
	bh_ticket_unref(self);
	CU_ASSERT_EQUAL(fixture_outcome(blocker), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

struct dig {
	_Atomic int depth;
	bh_status at_the_bottom;
};

static bh_status fn_dig(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct dig *dig = arg;
	struct bh_ticket *deeper;
	bh_status st;

	if (atomic_fetch_add(&dig->depth, 1) > 100)
		return -E2BIG;
	deeper = fixture_submit(fx, fn_dig, dig);
	st = bh_ticket_wait(deeper, PATIENCE, bh_task_error(task));
	if (st < 0) {
		dig->at_the_bottom = st;
		bh_ticket_cancel(deeper, false);
	}
	bh_ticket_unref(deeper);
	return 0;
}

static void sup7_recursion(void)
{
	struct dig dig = { .depth = 0 };
	struct fixture fx;

	fixture_init(&fx, 1, 80);
	fixture_start(&fx);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_dig, &dig)), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(dig.at_the_bottom, -ELOOP);
	CU_ASSERT_EQUAL(dig.depth, 64);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

struct late_wait {
	struct gate gate;
	struct bh_ticket *queued;
};

static bh_status fn_wait_after_gate(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct late_wait *late = arg;

	late->queued = fixture_submit(fx, fn_nop, NULL);
	gate_pass(&late->gate);
	return bh_ticket_wait(late->queued, PATIENCE, bh_task_error(task));
}

static void sup7_while_draining(void)
{
	struct late_wait late = { .queued = NULL };
	struct bh_ticket *outer;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	outer = fixture_submit(&fx, fn_wait_after_gate, &late);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&late.gate.arrived) == 1));
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL(bh_pool_state(fx.pool), BH_POOL_DRAINING);
	gate_open(&late.gate);
	CU_ASSERT_EQUAL(fixture_outcome(outer), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(late.queued), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

/* ---- SUP-8, SUP-9 ---------------------------------------------------------------------------- */

static void sup8_bounded(void)
{
	struct gate gate = { 0 };
	struct bh_submission cleanup = { .flags = BH_SUBMIT_CLEANUP, .deadline = BH_NEVER };
	struct bh_ticket *tickets[5];
	struct bh_error err = { .status = 0 };
	struct bh_pool_books books;
	struct fixture fx;

	fixture_init(&fx, 1, 3);
	fx.config.reserve = 1;
	fixture_start(&fx);
	tickets[0] = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	for (int i = 1; i < 4; i++)
		tickets[i] = fixture_submit(&fx, fn_nop, NULL);
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, NULL, NULL, &err), BH_OVERLOADED);
	CU_ASSERT_STRING_EQUAL(err.id, "pool.overloaded");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "pool"), "fixture");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "queue"), "3");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "queued"), "3");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "pending"), "0");
	tickets[4] = fixture_submit_how(&fx, fn_nop, NULL, &cleanup); /* the reserve */
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, &cleanup, NULL, NULL), BH_OVERLOADED);
	bh_ticket_cancel(tickets[1], false);
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, NULL, NULL, NULL),
			BH_OVERLOADED); /* 3 are queued */
	gate_open(&gate);
	for (int i = 0; i < 5; i++)
		CU_ASSERT_EQUAL(fixture_outcome(tickets[i]),
				i == 1 ? BH_OUTCOME_CANCELLED : BH_OUTCOME_DONE);
	bh_pool_books(fx.pool, &books);
	CU_ASSERT_EQUAL(books.refused, 3);
	CU_ASSERT_EQUAL(books.submitted, 5);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void sup8_pending_counts(void)
{
	_Atomic uint64_t ids[2] = { 0 };
	struct bh_pool_books books;
	struct bh_ticket *tickets[2];
	struct fixture fx;

	fixture_init(&fx, 1, 2);
	fixture_start(&fx);
	for (int i = 0; i < 2; i++) {
		tickets[i] = fixture_submit(&fx, fn_pend, &ids[i]);
		CU_ASSERT_TRUE(
			UNTIL((bh_pool_books(fx.pool, &books), (int)books.pending == i + 1)));
	}
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, NULL, NULL, NULL), BH_OVERLOADED);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, ids[0], 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_nop, NULL)), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, ids[1], 0, NULL, NULL), 0);
	for (int i = 0; i < 2; i++)
		CU_ASSERT_EQUAL(fixture_outcome(tickets[i]), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static bh_status fn_is_full(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)task;
	(void)arg;
	return fixture_try(fx, fn_nop, NULL, NULL, NULL, NULL) == BH_OVERLOADED ? 0 : -EINVAL;
}

static bh_status fn_wait_for_full(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct bh_ticket *inner = fixture_submit(fx, fn_is_full, NULL);

	(void)task;
	(void)arg;
	return fixture_outcome(inner) == BH_OUTCOME_DONE ? 0 : -EINVAL;
}

static void sup8_inline_counts(void)
{
	struct fixture fx;

	fixture_init(&fx, 1, 1);
	fixture_start(&fx);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_wait_for_full, NULL)),
			BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_nop, NULL)), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

struct waiting_submitter {
	struct fixture *fx;
	_Atomic int done;
	enum bh_admission admission;
};

static void *submit_and_wait_for_room(void *arg)
{
	struct waiting_submitter *waiting = arg;
	struct bh_submission s = { .deadline = BH_NEVER, .args = fixture_args(fn_nop, NULL) };

	waiting->admission = bh_pool_submit_wait(waiting->fx->pool, &s, PATIENCE, NULL);
	if (waiting->admission != BH_ACCEPTED)
		bh_args_free(s.args);
	atomic_store(&waiting->done, 1);
	return NULL;
}

static void submission_waits_for_room(void)
{
	struct gate gate = { 0 };
	struct waiting_submitter waiting = { 0 };
	struct bh_ticket *first, *second;
	struct bh_submission s = { .deadline = BH_NEVER };
	struct bh_pool_books books;
	struct fixture fx;
	pthread_t thread;

	fixture_init(&fx, 1, 1);
	fixture_start(&fx);
	first = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	second = fixture_submit(&fx, fn_nop, NULL);
	s.args = fixture_args(fn_nop, NULL);
	CU_ASSERT_EQUAL(bh_pool_submit_wait(fx.pool, &s, SOON_MS(10), NULL), BH_OVERLOADED);
	waiting.fx = &fx;
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, submit_and_wait_for_room, &waiting), 0);
	CU_ASSERT_TRUE(UNTIL(({
		bh_mutex_lock(&fx.pool->lock);
		uint32_t n = fx.pool->n_room_waiters;
		bh_mutex_unlock(&fx.pool->lock);
		n == 1;
	})));
	CU_ASSERT_EQUAL(atomic_load(&waiting.done), 0);
	gate_open(&gate);
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(waiting.admission, BH_ACCEPTED);
	CU_ASSERT_EQUAL(fixture_outcome(first), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(second), BH_OUTCOME_DONE);
	CU_ASSERT_TRUE(UNTIL((bh_pool_books(fx.pool, &books), books.done == 3)));
	CU_ASSERT_EQUAL(bh_pool_submit_wait(fx.pool, &s, PAST, NULL),
			BH_ACCEPTED); /* tries once (SUP-9) */
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void waiting_for_room_ends_with_the_pool(void)
{
	struct gate gate = { 0 };
	struct waiting_submitter waiting = { 0 };
	struct bh_ticket *first, *second;
	struct fixture fx;
	pthread_t thread;

	fixture_init(&fx, 1, 1);
	fixture_start(&fx);
	first = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	second = fixture_submit(&fx, fn_nop, NULL);
	waiting.fx = &fx;
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, submit_and_wait_for_room, &waiting), 0);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(waiting.admission, BH_CLOSED);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(first), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(second), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

static void sup9_one_deadline(void)
{
	struct gate gate = { 0 };
	struct bh_error err = { .status = 0 };
	struct bh_ticket *ticket;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PAST, &err), -ETIMEDOUT);
	CU_ASSERT_STRING_EQUAL(err.id, "task.wait-timeout");
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, SOON_MS(5), NULL), -ETIMEDOUT);
	gate_open(&gate);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PAST, NULL), 0); /* expired, and still tries once */
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static void trylock_does_not_wait(void)
{
	struct bh_submission how = { .flags = BH_SUBMIT_TRYLOCK, .deadline = BH_NEVER };
	struct gate gate = { 0 };
	struct bh_ticket *first, *second;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	first = fixture_submit(&fx, fn_gate, &gate);
	second = fixture_submit(&fx, fn_nop, NULL);
	bh_mutex_lock(&fx.pool->lock);
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, &how, NULL, NULL), BH_BUSY);
	CU_ASSERT_FALSE(bh_ticket_cancel(second, true));
	bh_mutex_unlock(&fx.pool->lock);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(first), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(second), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- SUP-4: the books ------------------------------------------------------------------------ */

#define SUBMITTERS 4

struct mixed {
	struct fixture *fx;
	unsigned seed;
	uint64_t accepted;
	_Atomic uint64_t *notified;
	_Atomic bool *closed;
};

struct counted {
	struct bh_ticket ticket;
	_Atomic uint64_t *by_outcome;
};

static void counted_notify(struct bh_ticket *ticket)
{
	struct counted *counted = bh_container_of(ticket, struct counted, ticket);

	atomic_fetch_add(&counted->by_outcome[bh_ticket_outcome(ticket)], 1);
}

static void counted_free(struct bh_ticket *ticket)
{
	free(bh_container_of(ticket, struct counted, ticket));
}

/* Pends, and is completed by the fixture's progress thread. */
struct completions {
	_Atomic uint64_t ids[64];
};

static bh_status fn_pend_for_progress(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct completions *completions = fx->arg;

	(void)arg;
	for (size_t i = 0; i < BH_ARRAY_LEN(completions->ids); i++) {
		uint64_t none = 0;

		if (atomic_compare_exchange_strong(&completions->ids[i], &none, bh_task_id(task)))
			return BH_PENDING;
	}
	return -ENOSPC;
}

static void complete_all(struct fixture *fx, uint32_t thread, int stop_fd)
{
	struct completions *completions = fx->arg;
	struct pollfd fd = { .fd = stop_fd, .events = POLLIN };

	(void)thread;
	while (poll(&fd, 1, 0) == 0)
		for (size_t i = 0; i < BH_ARRAY_LEN(completions->ids); i++) {
			uint64_t id = atomic_exchange(&completions->ids[i], 0);

			if (id)
				(void)!bh_pool_complete(fx->pool, id, i % 3 ? 0 : -EIO, NULL, NULL);
		}
}

static void *submit_mixed(void *arg)
{
	static const fixture_fn fns[] = { fn_nop, fn_fail, fn_pend_for_progress, fn_nop };
	struct mixed *mixed = arg;
	struct bh_lane *lane;

	CU_ASSERT_EQUAL(bh_lane_new(mixed->fx->pool, "mixed", &lane, NULL), 0);
	while (!atomic_load(mixed->closed)) {
		int dice = rand_r(&mixed->seed) % 16;
		struct bh_submission s = { .deadline = BH_NEVER, .lane = dice % 2 ? lane : NULL };
		struct counted *counted = malloc(sizeof(*counted));

		counted->by_outcome = mixed->notified;
		bh_ticket_init(&counted->ticket, counted_notify, counted_free);
		s.ticket = &counted->ticket;
		s.args = fixture_args(fns[dice % 4], NULL);
		if (dice == 7)
			s.deadline = PAST;
		else if (dice == 8)
			s.deadline = SOON_MS(1);
		if (bh_pool_submit(mixed->fx->pool, &s, NULL) == BH_ACCEPTED) {
			mixed->accepted++;
			if (dice > 11)
				bh_ticket_cancel(&counted->ticket, false);
		} else {
			bh_args_free(s.args);
			if (bh_pool_state(mixed->fx->pool) != BH_POOL_READY)
				atomic_store(mixed->closed, true);
		}
		bh_ticket_unref(&counted->ticket);
	}
	bh_lane_unref(lane);
	return NULL;
}

static void sup4_nothing_lost(void)
{
	_Atomic uint64_t notified[BH_OUTCOMES] = { 0 };
	_Atomic bool closed = false;
	struct completions completions = { 0 };
	struct mixed mixed[SUBMITTERS];
	pthread_t threads[SUBMITTERS];
	struct bh_pool_books books;
	uint64_t accepted = 0;
	struct fixture fx;

	fixture_init(&fx, 2, 64);
	fx.config.n_progress = 1;
	fx.on_progress = complete_all;
	fx.arg = &completions;
	fixture_start(&fx);
	for (int i = 0; i < SUBMITTERS; i++) {
		mixed[i] = (struct mixed){
			.fx = &fx, .seed = (unsigned)i + 1, .notified = notified, .closed = &closed
		};
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, submit_mixed, &mixed[i]),
				      0);
	}
	CU_ASSERT_TRUE(UNTIL((bh_pool_books(fx.pool, &books), books.submitted > 2000)));
	CU_ASSERT_TRUE(fixture_balances(fx.pool)); /* live */
	bh_pool_stop(fx.pool, SOON_MS(2), PATIENCE);
	for (int i = 0; i < SUBMITTERS; i++) {
		pthread_join(threads[i], NULL);
		accepted += mixed[i].accepted;
	}
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	bh_pool_books(fx.pool, &books);
	CU_ASSERT_EQUAL(books.submitted, accepted);
	CU_ASSERT_EQUAL(books.queued + books.running + books.pending + books.in_transit, 0);
	CU_ASSERT_EQUAL(books.done, notified[BH_OUTCOME_DONE]);
	CU_ASSERT_EQUAL(books.failed, notified[BH_OUTCOME_FAILED]);
	CU_ASSERT_EQUAL(books.cancelled, notified[BH_OUTCOME_CANCELLED]);
	CU_ASSERT_EQUAL(books.deadline, notified[BH_OUTCOME_DEADLINE]);
	CU_ASSERT_EQUAL(books.abandoned, notified[BH_OUTCOME_ABANDONED]);
	CU_ASSERT_TRUE(books.done > 0 && books.failed > 0 && books.cancelled > 0 &&
		       books.deadline > 0);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

/* ---- views and fork -------------------------------------------------------------------------- */

static void render_shows_what_runs(void)
{
	static const char *const keys[] = {
		"label",     "id",	"state",   "workers",	"busy",
		"queue",     "queued",	"running", "pending",	"in_transit",
		"submitted", "done",	"failed",  "cancelled", "deadline",
		"abandoned", "refused", "lanes",   "cause",	"running_tasks",
	};
	struct gate gate = { 0 };
	struct bh_ticket *ticket;
	struct fixture fx;
	json_t *view, *task;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	view = bh_pool_render(fx.pool);
	for (size_t i = 0; i < BH_ARRAY_LEN(keys); i++)
		CU_ASSERT_PTR_NOT_NULL(json_object_get(view, keys[i]));
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(view, "busy")), 1);
	CU_ASSERT_TRUE(json_is_null(json_object_get(view, "cause")));
	task = json_array_get(json_object_get(view, "running_tasks"), 0);
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(task, "op")), "call");
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(task, "task")),
			(json_int_t)ticket->task_id);
	CU_ASSERT_TRUE(json_real_value(json_object_get(task, "since_s")) >= 0);
	json_decref(view);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* In the child; every call must return at once although the parent's threads are gone. */
static bool child_is_refused(struct fixture *fx, struct bh_ticket *ticket)
{
	struct bh_error err = { .status = 0 };
	struct bh_submission s = { .deadline = BH_NEVER };

	if (bh_pool_submit(fx->pool, &s, &err) != BH_FORKED || strcmp(err.id, "pool.forked") != 0)
		return false;
	bh_pool_stop(fx->pool, PAST, PAST);
	return bh_pool_submit_wait(fx->pool, &s, PATIENCE, NULL) == BH_FORKED &&
	       bh_ticket_wait(ticket, PATIENCE, NULL) == -ECHILD &&
	       bh_ticket_cancel(ticket, false) &&
	       bh_pool_wait_ended(fx->pool, PATIENCE, NULL) == -ECHILD && !bh_pool_render(fx->pool);
}

static void exit5_forked(void)
{
	struct gate gate = { 0 };
	struct bh_ticket *ticket;
	struct fixture fx;
	int status = -1;
	pid_t pid;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_gate, &gate);
	bh_mutex_lock(&fx.pool->lock); /* as if another thread had held it at the fork */
	pid = fork();
	if (pid == 0) {
		alarm(30);
		bh_pool_forked();
		_exit(child_is_refused(&fx, ticket) ? 0 : 1);
	}
	bh_mutex_unlock(&fx.pool->lock);
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	CU_ASSERT_EQUAL(status, 0);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

static const struct bh_test tests[] = {
	{ "RI-3: every pool thread is tagged before it runs plugin code", ri3_workers_tagged },
	{ "RI-4: submitting does not change the submitter's identity", ri4_no_leak },
	{ "RI-5: the label is copied, and a pool that has ended refuses clearly", ri5_lifetime },
	{ "a bad configuration is refused with key and range", config_is_checked },
	{ "bad cpus and nice are refused with their key", placement_is_checked },
	{ "a list of CPUs is read, written and compared", cpus_as_text },
	{ "a done task has its result and its times", done_has_its_result },
	{ "a failed task says what, and names pool, op and task", failed_says_what },
	{ "arguments are released before the submitter is notified, once",
	  args_go_before_the_notice },
	{ "cancel: a queued task is cancelled before the call returns", cancel_queued },
	{ "cancel: a running task is told and ends as cancelled", cancel_running },
	{ "cancel, deadline: what the op still gets done is done", done_is_done },
	{ "deadline: a queued task gets it in time while every worker is busy",
	  deadline_while_queued },
	{ "deadline: a task that is too late is not run", deadline_before_start },
	{ "deadline: a running task that obeys ends as deadline", deadline_while_running },
	{ "deadline: the heap is ordered", heap_is_ordered },
	{ "pending: completed from another thread, worker free meanwhile",
	  pending_completed_elsewhere },
	{ "an op's times go from its start to its outcome, what is pending included",
	  times_of_ops },
	{ "pending: completed before run() returns, the first one counts",
	  completed_before_run_returns },
	{ "pending: completed twice, or after the end, is refused", completed_twice_or_never_was },
	{ "pending: cancel is passed on, the op decides", pending_is_cancelled_by_the_backend },
	{ "lanes: tasks run in order, one at a time", lanes_keep_order },
	{ "lanes: a long lane does not starve a short one", lanes_are_fair },
	{ "lanes: a pending task keeps its lane busy", pending_keeps_its_lane },
	{ "lanes: cancelled tasks leave a lane that goes on", cancelled_ones_leave_their_lane },
	{ "SUP-4: a lane's books balance, and name the last failure", sup4_lane_books },
	{ "SUP-7: a queued task of the own pool is stolen and run inline", sup7_steals },
	{ "SUP-7: on a lane only at its head, after those before it", sup7_lane },
	{ "SUP-7: a waiting worker runs a lane that becomes idle", sup7_busy_lane },
	{ "SUP-7: waiting for the own lane is a deadlock", sup7_deadlock },
	{ "SUP-7: waiting for oneself is a deadlock", sup7_waits_for_itself },
	{ "SUP-7: deeper than 64 is recursion", sup7_recursion },
	{ "SUP-7: allowed while draining", sup7_while_draining },
	{ "SUP-8: a full pool refuses with facts, clean-up has a reserve", sup8_bounded },
	{ "SUP-8: pending tasks count against the queue", sup8_pending_counts },
	{ "SUP-8: a task that runs inline keeps its place", sup8_inline_counts },
	{ "SUP-8: a submission can wait for room", submission_waits_for_room },
	{ "SUP-8: waiting for room ends when the pool closes",
	  waiting_for_room_ends_with_the_pool },
	{ "SUP-9: a wait has one deadline, and an expired one tries once", sup9_one_deadline },
	{ "GIL-9: with trylock nothing waits for the pool's lock", trylock_does_not_wait },
	{ "SUP-4: nothing is lost with four submitters during a stop", sup4_nothing_lost },
	{ "the view shows books and running tasks", render_shows_what_runs },
	{ "EXIT-5: in a forked child everything is refused and nothing hangs", exit5_forked },
};

BH_TAP_MAIN("pool", tests)
