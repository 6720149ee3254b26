/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_fixture - a pool over a backend that runs C functions and misbehaves on request.
 *
 * A task is a function and an argument, passed as two handles. Tests wait for conditions;
 * PATIENCE only bounds how long a broken build takes to fail. */
#ifndef BH_TESTS_UNIT_POOL_FIXTURE_H
#define BH_TESTS_UNIT_POOL_FIXTURE_H

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/core/identity.h"
#include "host/core/log.h"
#include "host/core/pool.h"
#include "host/core/sync.h"
#include "tests/unit/tap.h"

#define PATIENCE bh_deadline_after(60 * BH_NS_PER_S)
#define SOON_MS(ms) bh_deadline_after((ms)*BH_NS_PER_MS)
#define PAST ((struct bh_deadline){ 1 })

/* Waits until `condition`; false when patience ran out. */
#define UNTIL(condition)                                                                           \
	({                                                                                         \
		struct bh_deadline until_ = PATIENCE;                                              \
		while (!(condition) && !bh_deadline_passed(until_))                                \
			fixture_pause();                                                           \
		(condition);                                                                       \
	})

struct fixture;
typedef bh_status (*fixture_fn)(struct fixture *fixture, struct bh_task *task, void *arg);

struct fixture {
	struct bh_pool_config config; /* set before fixture_make() */
	struct bh_pool *pool;
	/* Misbehaviour, set before the pool starts. -1: no worker. */
	bool open_fails, close_fails;
	int start_fails_at, stop_fails_at;
	void (*on_open)(struct fixture *);
	void (*on_close)(struct fixture *);
	void (*on_start)(struct fixture *, uint32_t worker);
	void (*on_progress)(struct fixture *, uint32_t thread, int stop_fd);
	void (*on_cancel)(struct fixture *, uint64_t task_id);
	void *arg;
	/* What happened. */
	_Atomic int n_open, n_close, n_started, n_stopped, n_progress, n_cancel, n_run, n_notified;
	_Atomic uint64_t cancelled_id;
	_Atomic uint32_t announced; /* bit per enum bh_pool_state */
	_Atomic int untagged;	    /* calls that found the wrong identity (RI-3) */
	char open_thread[16], close_thread[16], cancel_thread[16];
};

static inline void fixture_pause(void)
{
	struct timespec pause = { .tv_nsec = BH_NS_PER_MS / 4 };

	nanosleep(&pause, NULL);
}

/* ---- gates: where a task waits until the test lets it on ------------------------------------- */

struct gate {
	_Atomic int arrived;
	_Atomic bool open;
};

static inline bool gate_pass(struct gate *gate)
{
	atomic_fetch_add(&gate->arrived, 1);
	return UNTIL(atomic_load(&gate->open));
}

static inline void gate_open(struct gate *gate)
{
	atomic_store(&gate->open, true);
}

/* ---- the backend ----------------------------------------------------------------------------- */

static inline void fixture_thread_name(char out[16])
{
	pthread_getname_np(pthread_self(), out, 16);
}

static inline void fixture_check_tag(struct fixture *fx, uint32_t worker)
{
	const struct bh_identity *id = bh_identity_get();

	if (id->plane != BH_PLANE_DATA || id->pool_id != bh_pool_id(fx->pool) ||
	    id->worker != worker || strcmp(id->label, bh_pool_label(fx->pool)) != 0)
		atomic_fetch_add(&fx->untagged, 1);
}

static inline bh_status fixture_open(void *self, struct bh_error *err)
{
	struct fixture *fx = self;

	fixture_thread_name(fx->open_thread);
	atomic_fetch_add(&fx->n_open, 1);
	if (fx->on_open)
		fx->on_open(fx);
	return fx->open_fails ? bh_raise(err, -ENODEV, "fixture.no-device", BH_INT("device", 7))
			      : 0;
}

static inline bh_status fixture_close(void *self, struct bh_error *err)
{
	struct fixture *fx = self;

	fixture_thread_name(fx->close_thread);
	atomic_fetch_add(&fx->n_close, 1);
	if (fx->on_close)
		fx->on_close(fx);
	return fx->close_fails
		       ? bh_raise(err, -EIO, "fixture.close", BH_STR("reason", "still busy"))
		       : 0;
}

static inline bh_status fixture_worker_start(void *self, uint32_t worker, struct bh_error *err)
{
	struct fixture *fx = self;

	fixture_check_tag(fx, worker);
	if (fx->on_start)
		fx->on_start(fx, worker);
	if ((int)worker == fx->start_fails_at)
		return bh_raise(err, -ENXIO, "fixture.start");
	atomic_fetch_add(&fx->n_started, 1);
	return 0;
}

static inline bh_status fixture_worker_stop(void *self, uint32_t worker, struct bh_error *err)
{
	struct fixture *fx = self;

	fixture_check_tag(fx, worker);
	atomic_fetch_add(&fx->n_stopped, 1);
	return (int)worker == fx->stop_fails_at ? bh_raise(err, -EIO, "fixture.stop") : 0;
}

static inline bh_status fixture_run(void *self, struct bh_task *task)
{
	struct fixture *fx = self;
	const struct bh_args *args = bh_task_args(task);
	fixture_fn fn = (fixture_fn)(uintptr_t)args->v[0].as.handle;

	atomic_fetch_add(&fx->n_run, 1);
	return fn(fx, task, (void *)(uintptr_t)args->v[1].as.handle);
}

static inline void fixture_cancel(void *self, uint64_t task_id)
{
	struct fixture *fx = self;

	fixture_thread_name(fx->cancel_thread);
	atomic_store(&fx->cancelled_id, task_id);
	atomic_fetch_add(&fx->n_cancel, 1);
	if (fx->on_cancel)
		fx->on_cancel(fx, task_id);
}

static inline void fixture_progress(void *self, uint32_t thread, int stop_fd)
{
	struct fixture *fx = self;
	struct pollfd fd = { .fd = stop_fd, .events = POLLIN };

	fixture_check_tag(fx, BH_WORKER_NONE);
	atomic_fetch_add(&fx->n_progress, 1);
	if (fx->on_progress)
		fx->on_progress(fx, thread, stop_fd);
	else
		while (poll(&fd, 1, -1) < 0)
			;
	atomic_fetch_sub(&fx->n_progress, 1);
}

static inline const char *fixture_op_name(void *self, uint32_t op)
{
	(void)self;
	return op == 0 ? "call" : NULL;
}

static inline void fixture_announce(struct bh_pool *pool, enum bh_pool_state state, void *arg)
{
	struct fixture *fx = arg;

	(void)pool;
	atomic_fetch_or(&fx->announced, 1u << state);
}

static const struct bh_backend fixture_backend = {
	.open = fixture_open,
	.close = fixture_close,
	.worker_start = fixture_worker_start,
	.worker_stop = fixture_worker_stop,
	.run = fixture_run,
	.cancel = fixture_cancel,
	.progress = fixture_progress,
	.op_name = fixture_op_name,
};

/* ---- life ------------------------------------------------------------------------------------ */

static inline void fixture_init(struct fixture *fx, uint32_t workers, uint32_t queue)
{
	memset(fx, 0, sizeof(*fx));
	fx->start_fails_at = fx->stop_fails_at = -1;
	fx->config = (struct bh_pool_config){
		.label = "fixture",
		.n_workers = workers,
		.queue = queue,
		.backend = &fixture_backend,
		.backend_self = fx,
		.announce = fixture_announce,
		.announce_arg = fx,
	};
	bh_log_set_level(BH_LOG_ERROR + 1); /* provoked faults are not news */
}

static inline void fixture_make(struct fixture *fx)
{
	struct bh_error err = { .status = 0 };

	CU_ASSERT_EQUAL_FATAL(bh_pool_new(&fx->config, &fx->pool, &err), 0);
}

static inline void fixture_start(struct fixture *fx)
{
	if (!fx->pool)
		fixture_make(fx);
	CU_ASSERT_EQUAL_FATAL(bh_pool_start(fx->pool, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_started(fx->pool, PATIENCE, NULL), 0);
}

static inline bool fixture_balances(struct bh_pool *pool)
{
	struct bh_pool_books b;

	bh_pool_books(pool, &b);
	return b.submitted == b.done + b.failed + b.cancelled + b.deadline + b.abandoned +
				      b.queued + b.running + b.pending + b.in_transit;
}

/* Waits for the end, joins, frees. */
static inline enum bh_pool_state fixture_end(struct fixture *fx)
{
	enum bh_pool_state state;

	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx->pool, PATIENCE, NULL), 0);
	state = bh_pool_state(fx->pool);
	CU_ASSERT_TRUE(fixture_balances(fx->pool));
	CU_ASSERT_EQUAL_FATAL(bh_pool_join(fx->pool, PATIENCE, NULL), 0);
	fx->pool = bh_pool_free(fx->pool);
	return state;
}

static inline enum bh_pool_state fixture_stop(struct fixture *fx)
{
	bh_pool_stop(fx->pool, PATIENCE, PATIENCE);
	return fixture_end(fx);
}

/* Threads of pools called "fixture"; a joined one may linger in /proc for a moment. */
static inline int fixture_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int n = 0;

	while (dir && (entry = readdir(dir))) {
		char path[300], name[16] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		file = fopen(path, "r");
		if (file && fgets(name, sizeof(name), file))
			n += strncmp(name, "fixture/", 8) == 0;
		if (file)
			fclose(file);
	}
	if (dir)
		closedir(dir);
	return n;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static inline void fixture_ticket_free(struct bh_ticket *ticket)
{
	bh_value_clear(&ticket->result);
	bh_object_unref(ticket->cause);
	free(ticket);
}

static inline struct bh_ticket *fixture_ticket(void)
{
	struct bh_ticket *ticket = malloc(sizeof(*ticket));

	CU_ASSERT_PTR_NOT_NULL_FATAL(ticket);
	bh_ticket_init(ticket, NULL, fixture_ticket_free);
	return ticket;
}

static inline struct bh_args *fixture_args(fixture_fn fn, void *arg)
{
	struct bh_args *args = bh_args_new(2);

	CU_ASSERT_PTR_NOT_NULL_FATAL(args);
	args->v[0] =
		(struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = (uint64_t)(uintptr_t)fn };
	args->v[1] =
		(struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = (uint64_t)(uintptr_t)arg };
	return args;
}

/* Submits whatever else `how` says (NULL: nothing special). */
static inline enum bh_admission fixture_try(struct fixture *fx, fixture_fn fn, void *arg,
					    const struct bh_submission *how,
					    struct bh_ticket *ticket, struct bh_error *err)
{
	struct bh_submission s = how ? *how : (struct bh_submission){ .deadline = BH_NEVER };
	enum bh_admission admission;

	s.args = fixture_args(fn, arg);
	s.ticket = ticket;
	if (s.deadline.at_ns == 0)
		s.deadline = BH_NEVER;
	admission = bh_pool_submit(fx->pool, &s, err);
	if (admission != BH_ACCEPTED)
		bh_args_free(s.args);
	return admission;
}

static inline struct bh_ticket *fixture_submit_how(struct fixture *fx, fixture_fn fn, void *arg,
						   const struct bh_submission *how)
{
	struct bh_ticket *ticket = fixture_ticket();

	CU_ASSERT_EQUAL_FATAL(fixture_try(fx, fn, arg, how, ticket, NULL), BH_ACCEPTED);
	return ticket;
}

static inline struct bh_ticket *fixture_submit(struct fixture *fx, fixture_fn fn, void *arg)
{
	return fixture_submit_how(fx, fn, arg, NULL);
}

static inline struct bh_ticket *fixture_submit_lane(struct fixture *fx, struct bh_lane *lane,
						    fixture_fn fn, void *arg)
{
	struct bh_submission how = { .lane = lane, .deadline = BH_NEVER };

	return fixture_submit_how(fx, fn, arg, &how);
}

/* Waits for the outcome and lets go of the ticket. */
static inline enum bh_outcome fixture_outcome(struct bh_ticket *ticket)
{
	enum bh_outcome outcome;

	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	outcome = bh_ticket_outcome(ticket);
	bh_ticket_unref(ticket);
	return outcome;
}

/* ---- task functions -------------------------------------------------------------------------- */

static inline bh_status fn_nop(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	(void)task;
	(void)arg;
	return 0;
}

static inline bh_status fn_gate(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	(void)task;
	return gate_pass(arg) ? 0 : -ETIME;
}

static inline bh_status fn_fail(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	(void)arg;
	return bh_raise(bh_task_error(task), -EIO, "fixture.fail", BH_INT("device", 3));
}

/* Leaves its id in the _Atomic uint64_t that `arg` points to. */
static inline bh_status fn_pend(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	atomic_store((_Atomic uint64_t *)arg, bh_task_id(task));
	return BH_PENDING;
}

static inline bh_status fn_until_cancelled(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	if (arg)
		atomic_fetch_add((_Atomic int *)arg, 1);
	return UNTIL(bh_task_cancelled(task)) ? -ECANCELED : -ETIME;
}

#endif
