/* SPDX-License-Identifier: BSD-3-Clause */
/* supervisor - builds a pool, serves it, takes it down; the state machine that others ask through.
 *
 * Thread: supervisor_main() and what it calls run on "<label>/sup"; the public functions on any.
 * Owns:   the pool's threads (made and joined here only) and the backend between open and close.
 * Fails:  a step that fails leaves a cause with facts; what was built is undone, the end is
 *         published.
 * Keeps:  SUP-1 (owner thread), SUP-2 (handshake), SUP-3 (asking never blocks), SUP-4 (closed
 *         before the exit takes effect), SUP-5 (published before the thread ends), SUP-6 (join). */
#include "config.h"

#include "host/core/pool_private.h"

#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "host/core/log.h"

/* How long what runs or is pending may take to obey, when a pool fails and nobody has set a
 * deadline. */
#define FAIL_GRACE_NS (5 * BH_NS_PER_S)

/* The pool that the calling thread supervises. Not told from its pthread_t: that of a joined
 * supervisor may be the caller's by now. */
static _Thread_local struct bh_pool *supervised;

const struct bh_pool *bh_supervisor_self(void)
{
	return supervised;
}

/* ---- the state machine ----------------------------------------------------------------------- */

enum event {
	EVENT_START, /* the supervisor is being made */
	EVENT_BUILT,
	EVENT_BUILT_STOPPED, /* built, and asked to stop meanwhile */
	EVENT_BUILD_FAILED,  /* and what was built is undone */
	EVENT_STOP,
	EVENT_FAIL,
	EVENT_DRAINED, /* nothing is left to do, or the deadlines say so */
	EVENT_ENDED_CLEAN,
	EVENT_ENDED_FAILED,
	EVENT_GIVE_UP,
};
#define EVENTS (EVENT_GIVE_UP + 1)

struct edge {
	bool exists;
	enum bh_pool_state to;
};
#define TO(state)                                                                                  \
	{                                                                                          \
		true, (state)                                                                      \
	}

static const struct edge edges[][EVENTS] = {
	[BH_POOL_NEW] = {
		[EVENT_START] = TO(BH_POOL_BUILDING),
		[EVENT_STOP] = TO(BH_POOL_CLEAN),	/* nothing was built */
		[EVENT_FAIL] = TO(BH_POOL_FAILED),
	},
	[BH_POOL_BUILDING] = {
		[EVENT_BUILT] = TO(BH_POOL_READY),
		[EVENT_BUILT_STOPPED] = TO(BH_POOL_EXITING),
		[EVENT_BUILD_FAILED] = TO(BH_POOL_BUILD_FAILED),
		[EVENT_GIVE_UP] = TO(BH_POOL_WEDGED),
	},
	[BH_POOL_READY] = {
		[EVENT_STOP] = TO(BH_POOL_DRAINING),
		[EVENT_FAIL] = TO(BH_POOL_DRAINING),
	},
	[BH_POOL_DRAINING] = {
		[EVENT_DRAINED] = TO(BH_POOL_EXITING),
		[EVENT_GIVE_UP] = TO(BH_POOL_WEDGED),
	},
	[BH_POOL_EXITING] = {
		[EVENT_ENDED_CLEAN] = TO(BH_POOL_CLEAN),
		[EVENT_ENDED_FAILED] = TO(BH_POOL_FAILED),
		[EVENT_GIVE_UP] = TO(BH_POOL_WEDGED),
	},
	[BH_POOL_CLEAN] = {},
	[BH_POOL_FAILED] = {},
	[BH_POOL_BUILD_FAILED] = {},
	[BH_POOL_WEDGED] = {},
};
static_assert(BH_ARRAY_LEN(edges) == BH_POOL_STATES, "one row per pool state");

bool bh_pool_state_is_end(enum bh_pool_state state)
{
	switch (state) {
	case BH_POOL_NEW:
	case BH_POOL_BUILDING:
	case BH_POOL_READY:
	case BH_POOL_DRAINING:
	case BH_POOL_EXITING:
		return false;
	case BH_POOL_CLEAN:
	case BH_POOL_FAILED:
	case BH_POOL_BUILD_FAILED:
	case BH_POOL_WEDGED:
		return true;
	}
	bh_unreachable();
}

/* The one writer of the state. */
static void move_locked(struct bh_pool *pool, enum event event) BH_NEEDS(pool->lock);
static void move_locked(struct bh_pool *pool, enum event event)
{
	enum bh_pool_state from = bh_pool_state_now(pool);
	const struct edge *edge = &edges[from][event];

	if (!edge->exists) {
		bh_log(BH_LOG_ERROR, "pool", "no such edge in the state machine",
		       BH_STR("pool", pool->label), BH_STR("state", bh_pool_state_name(from)),
		       BH_INT("event", event));
		assert(edge->exists);
		return;
	}
	atomic_store_explicit(&pool->state, (int)edge->to, memory_order_release);
	bh_cond_broadcast(&pool->changed);
	bh_cond_broadcast(&pool->room); /* whoever waits for room there is told it has closed */
	bh_cond_signal(&pool->attention);
	bh_log(BH_LOG_DEBUG, "pool", "state", BH_STR("pool", pool->label),
	       BH_STR("from", bh_pool_state_name(from)),
	       BH_STR("to", bh_pool_state_name(edge->to)));
}

static void announce(struct bh_pool *pool, enum bh_pool_state state)
{
	if (pool->announce)
		pool->announce(pool, state, pool->announce_arg);
}

static void enter_step(struct bh_pool *pool, const char *step)
{
	bh_mutex_lock(&pool->lock);
	pool->step = step;
	pool->step_since_ns = bh_now_ns();
	bh_mutex_unlock(&pool->lock);
}

/* ---- asking for the end ---------------------------------------------------------------------- */

static void hurry_locked(struct bh_pool *pool, struct bh_deadline drain_until,
			 struct bh_deadline cancel_until) BH_NEEDS(pool->lock);
static void hurry_locked(struct bh_pool *pool, struct bh_deadline drain_until,
			 struct bh_deadline cancel_until)
{
	pool->cancel_until = bh_deadline_min(pool->cancel_until, cancel_until);
	pool->drain_until = bh_deadline_min(pool->drain_until, drain_until);
	pool->drain_until = bh_deadline_min(pool->drain_until, pool->cancel_until);
	bh_cond_signal(&pool->attention);
}

static void stop_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static void stop_locked(struct bh_pool *pool)
{
	pool->stop_asked = true;
	switch (bh_pool_state_now(pool)) {
	case BH_POOL_NEW:
	case BH_POOL_READY:
		move_locked(pool, EVENT_STOP);
		return;
	case BH_POOL_BUILDING: /* the build looks at stop_asked between its steps */
		bh_cond_signal(&pool->attention);
		return;
	case BH_POOL_DRAINING:
	case BH_POOL_EXITING:
	case BH_POOL_CLEAN:
	case BH_POOL_FAILED:
	case BH_POOL_BUILD_FAILED:
	case BH_POOL_WEDGED:
		return;
	}
	bh_unreachable();
}

void bh_pool_stop(struct bh_pool *pool, struct bh_deadline drain_until,
		  struct bh_deadline cancel_until)
{
	bool never_started;

	if (bh_pool_is_forked())
		return;
	bh_mutex_lock(&pool->lock);
	never_started = bh_pool_state_now(pool) == BH_POOL_NEW;
	hurry_locked(pool, drain_until, cancel_until);
	stop_locked(pool);
	bh_mutex_unlock(&pool->lock);
	if (never_started)
		announce(pool, BH_POOL_CLEAN);
}

/* From now on nothing queued is started; what runs or is pending is told. */
static void begin_cancelling_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static void begin_cancelling_locked(struct bh_pool *pool)
{
	if (pool->cancelling)
		return;
	pool->cancelling = true;
	for (struct bh_list *link = pool->active.next; link != &pool->active; link = link->next)
		bh_task_request_cancel_locked(pool, bh_container_of(link, struct bh_task, all),
					      true);
}

/* `level`: who is told of the end logs its cause; what happens while the pool serves is said at
 * once. */
static void keep_cause_locked(struct bh_pool *pool, const struct bh_error *cause,
			      enum bh_log_level level) BH_NEEDS(pool->lock);
static void keep_cause_locked(struct bh_pool *pool, const struct bh_error *cause,
			      enum bh_log_level level)
{
	if (bh_error_is_set(&pool->cause)) { /* the first one counts, and this one is not lost */
		bh_log_error(BH_LOG_WARNING, "pool", "a pool that has failed already fails again",
			     cause);
		return;
	}
	pool->cause = *cause;
	(void)bh_note(&pool->cause, cause->status, BH_STR("pool", pool->label));
	bh_log_error(level, "pool", "pool failed", &pool->cause);
}

void bh_pool_fail_locked(struct bh_pool *pool, const struct bh_error *cause)
{
	enum bh_pool_state state = bh_pool_state_now(pool);
	bool serving = state == BH_POOL_READY || state == BH_POOL_DRAINING;

	if (!bh_pool_state_is_end(state))
		keep_cause_locked(pool, cause, serving ? BH_LOG_ERROR : BH_LOG_DEBUG);
	switch (state) {
	case BH_POOL_NEW:
	case BH_POOL_READY:
		move_locked(pool, EVENT_FAIL);
		break;
	case BH_POOL_BUILDING: /* the build looks at the cause between its steps */
	case BH_POOL_DRAINING:
	case BH_POOL_EXITING: /* ends as FAILED, since there is a cause */
		break;
	case BH_POOL_CLEAN:
	case BH_POOL_FAILED:
	case BH_POOL_BUILD_FAILED:
	case BH_POOL_WEDGED:
		bh_log_error(BH_LOG_WARNING, "pool", "a pool that has ended is reported failed",
			     cause);
		return;
	}
	/* At once, not when the supervisor gets to it: no further task runs on what is broken. */
	begin_cancelling_locked(pool);
	hurry_locked(pool, (struct bh_deadline){ 0 }, bh_deadline_after(FAIL_GRACE_NS));
}

void bh_pool_fail(struct bh_pool *pool, const struct bh_error *cause)
{
	bool never_started;

	assert(bh_error_is_set(cause));
	if (bh_pool_is_forked())
		return;
	bh_mutex_lock(&pool->lock);
	never_started = bh_pool_state_now(pool) == BH_POOL_NEW;
	bh_pool_fail_locked(pool, cause);
	bh_mutex_unlock(&pool->lock);
	if (never_started)
		announce(pool, BH_POOL_FAILED);
}

/* ---- build ----------------------------------------------------------------------------------- */

static void fail_build(struct bh_pool *pool, bh_status st, const char *step, struct bh_error *err)
{
	(void)bh_note(err, st, BH_STR("pool", pool->label), BH_STR("step", step));
	bh_mutex_lock(&pool->lock);
	keep_cause_locked(pool, err, BH_LOG_DEBUG);
	bh_mutex_unlock(&pool->lock);
}

static bool build_is_wanted_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static bool build_is_wanted_locked(struct bh_pool *pool)
{
	return bh_pool_state_now(pool) == BH_POOL_BUILDING && !pool->stop_asked &&
	       !pool->giving_up && !bh_error_is_set(&pool->cause);
}

static bool build_open(struct bh_pool *pool)
{
	struct bh_error err = { .status = 0 };
	bh_status st;

	enter_step(pool, "open");
	st = pool->backend->open(pool->backend_self, &err);
	if (st < 0)
		fail_build(pool, st, "open", &err);
	pool->opened = st == 0;
	return st == 0;
}

static bool make_threads(struct bh_pool *pool, uint32_t from, uint32_t to, void *(*main_fn)(void *))
{
	for (uint32_t i = from; i < to; i++) {
		struct bh_pool_thread *thread = &pool->threads[i];
		struct bh_error err = { .status = 0 };
		bh_status st;

		bh_mutex_lock(&pool->lock);
		thread->step = BH_THREAD_STARTING;
		thread->since_ns = bh_now_ns();
		bh_mutex_unlock(&pool->lock);
		st = bh_thread_create(&thread->handle, thread->name, main_fn, thread, &err);
		if (st < 0) {
			bh_mutex_lock(&pool->lock);
			thread->step = BH_THREAD_NONE;
			bh_mutex_unlock(&pool->lock);
			fail_build(pool, st, "thread", &err);
			return false;
		}
		thread->joinable = true;
	}
	return true;
}

static bool all_have_begun_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static bool all_have_begun_locked(struct bh_pool *pool)
{
	for (uint32_t i = 0; i < pool->n_threads; i++)
		if (pool->threads[i].step == BH_THREAD_STARTING)
			return false;
	return true;
}

/* SUP-2: ready only once every thread says so; a failed one leaves the cause. */
static bool wait_begun(struct bh_pool *pool)
{
	bool wanted;

	bh_mutex_lock(&pool->lock);
	/* No deadline: the conductor has one for the whole start, and gives the pool up when it
	 * passes. */
	while (!all_have_begun_locked(pool) && build_is_wanted_locked(pool))
		(void)bh_cond_wait(&pool->attention, &pool->lock, BH_NEVER);
	wanted = build_is_wanted_locked(pool);
	bh_mutex_unlock(&pool->lock);
	return wanted;
}

static bool build_workers(struct bh_pool *pool)
{
	enter_step(pool, "worker_start");
	return make_threads(pool, 0, pool->n_workers, bh_worker_main) && wait_begun(pool);
}

static bool build_progress(struct bh_pool *pool)
{
	struct bh_error err = { .status = 0 };

	if (pool->n_progress == 0)
		return true;
	enter_step(pool, "progress");
	pool->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (pool->stop_fd < 0) {
		fail_build(pool, bh_raise(&err, -errno, "pool.eventfd"), "progress", &err);
		return false;
	}
	return make_threads(pool, pool->n_workers, pool->n_threads, bh_progress_main) &&
	       wait_begun(pool);
}

static bool build_is_wanted(struct bh_pool *pool)
{
	bool wanted;

	bh_mutex_lock(&pool->lock);
	wanted = build_is_wanted_locked(pool);
	bh_mutex_unlock(&pool->lock);
	return wanted;
}

/* True: published as ready. Else what was built is to be taken down: with a cause the build has
 * failed (still BUILDING), without one it was asked to stop (EXITING). */
static bool build(struct bh_pool *pool)
{
	bool built = build_open(pool) && build_is_wanted(pool) && build_workers(pool) &&
		     build_progress(pool);
	bool ready = false;

	bh_mutex_lock(&pool->lock);
	if (built && build_is_wanted_locked(pool)) {
		pool->was_ready = ready = true;
		move_locked(pool, EVENT_BUILT);
	} else if (bh_pool_state_now(pool) == BH_POOL_BUILDING && !bh_error_is_set(&pool->cause) &&
		   !pool->giving_up) {
		move_locked(pool, EVENT_BUILT_STOPPED);
	}
	bh_mutex_unlock(&pool->lock);
	if (ready)
		announce(pool, BH_POOL_READY);
	return ready;
}

/* ---- serve ----------------------------------------------------------------------------------- */

/* Lets go of the lock to tell; so do the ones below that say "relocks". */
static void finish_relocks(struct bh_pool *pool, struct bh_aftermath *after) BH_NEEDS(pool->lock);
static void finish_relocks(struct bh_pool *pool, struct bh_aftermath *after)
{
	bh_mutex_unlock(&pool->lock);
	bh_aftermath_run(after);
	bh_mutex_lock(&pool->lock);
}

/* The first deadline, if it has passed: queued → told so; running or pending → asked to end.
 * Relocks. */
static bool expire_one_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static bool expire_one_locked(struct bh_pool *pool)
{
	struct bh_task *task = bh_heap_first(pool);
	struct bh_verdict verdict = { .outcome = BH_OUTCOME_DEADLINE };
	struct bh_aftermath after = { .args = NULL };

	if (!task || !bh_deadline_passed(task->deadline))
		return false;
	if (task->state == BH_TASK_QUEUED) {
		bh_ready_remove_locked(pool, task);
		bh_task_drop_locked(pool, task, &verdict, &after);
		finish_relocks(pool, &after);
	} else {
		bh_heap_remove_locked(pool, task);
		bh_task_request_cancel_locked(pool, task, false);
	}
	return true;
}

/* Relocks. */
static bool cancel_one_queued_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static bool cancel_one_queued_locked(struct bh_pool *pool)
{
	struct bh_verdict verdict = { .outcome = BH_OUTCOME_CANCELLED };
	struct bh_aftermath after = { .args = NULL };
	struct bh_error error;
	struct bh_task *task;

	if (bh_list_empty(&pool->queued))
		return false;
	task = bh_container_of(pool->queued.next, struct bh_task, all);
	bh_task_cancel_error_locked(pool, task, &error);
	verdict.error = &error;
	bh_ready_remove_locked(pool, task);
	bh_task_drop_locked(pool, task, &verdict, &after);
	finish_relocks(pool, &after);
	return true;
}

/* Tells the backend about one task that should end. Relocks: it may have ended by then, which the
 * backend has to expect. */
static bool deliver_one_cancel_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static bool deliver_one_cancel_locked(struct bh_pool *pool)
{
	struct bh_list *link = bh_list_pop_front(&pool->cancels);
	uint64_t id;

	if (!link)
		return false;
	id = bh_container_of(link, struct bh_task, cancel_link)->id;
	pool->step = "cancel";
	pool->step_since_ns = bh_now_ns();
	bh_mutex_unlock(&pool->lock);
	pool->backend->cancel(pool->backend_self, id);
	bh_mutex_lock(&pool->lock);
	pool->step = "run";
	return true;
}

/* The first active task, or the first that is pending. */
static struct bh_task *first_active(struct bh_pool *pool, bool pending_only)
{
	for (struct bh_list *link = pool->active.next; link != &pool->active; link = link->next) {
		struct bh_task *task = bh_container_of(link, struct bh_task, all);

		if (task->told == BH_OUTCOME_NONE &&
		    (!pending_only || task->state == BH_TASK_PENDING))
			return task;
	}
	return NULL;
}

/* Every active task, or every pending one, is given up. Relocks. */
static void abandon_locked(struct bh_pool *pool, bool pending_only) BH_NEEDS(pool->lock);
static void abandon_locked(struct bh_pool *pool, bool pending_only)
{
	struct bh_task *task;
	uint64_t n = 0;

	pool->abandoning = true;
	while ((task = first_active(pool, pending_only))) {
		struct bh_aftermath after = { .args = NULL };

		if (n++ == 0)
			bh_log(BH_LOG_WARNING, "pool", "tasks are abandoned; this is the first",
			       BH_STR("pool", pool->label), BH_STR("op", task->op_name),
			       BH_INT("task", task->id));
		bh_task_abandon_locked(pool, task, &after);
		finish_relocks(pool, &after);
	}
	if (n > 0)
		bh_log(BH_LOG_WARNING, "pool", "tasks were abandoned", BH_STR("pool", pool->label),
		       BH_INT("tasks", n));
}

static struct bh_deadline next_deadline_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static struct bh_deadline next_deadline_locked(struct bh_pool *pool)
{
	const struct bh_task *first = bh_heap_first(pool);
	struct bh_deadline next = first ? first->deadline : BH_NEVER;

	if (bh_pool_state_now(pool) == BH_POOL_DRAINING)
		next = bh_deadline_min(next,
				       pool->cancelling ? pool->cancel_until : pool->drain_until);
	return next;
}

/* Tasks whose thread is in exit(): they never end. */
static uint32_t n_exiting_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static uint32_t n_exiting_locked(struct bh_pool *pool)
{
	uint32_t n = 0;

	for (uint32_t i = 0; pool->exiting && i < pool->n_workers; i++)
		if (pool->threads[i].exiting)
			for (struct bh_task *task = pool->threads[i].task; task; task = task->outer)
				n++;
	return n;
}

/* True: it is time to let the workers go. */
static bool served_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static bool served_locked(struct bh_pool *pool)
{
	if (bh_pool_state_now(pool) == BH_POOL_WEDGED)
		return true;
	return bh_pool_state_now(pool) == BH_POOL_DRAINING &&
	       (pool->n_live == n_exiting_locked(pool) ||
		(pool->cancelling && bh_deadline_passed(pool->cancel_until)));
}

static void serve(struct bh_pool *pool)
{
	bh_mutex_lock(&pool->lock);
	pool->step = "run";
	pool->step_since_ns = bh_now_ns();
	for (;;) {
		if (expire_one_locked(pool))
			continue;
		if (bh_pool_state_now(pool) == BH_POOL_DRAINING &&
		    bh_deadline_passed(pool->drain_until))
			begin_cancelling_locked(pool);
		if (pool->cancelling && cancel_one_queued_locked(pool))
			continue;
		if (deliver_one_cancel_locked(pool))
			continue;
		if (served_locked(pool))
			break;
		/* Without a deadline only where nothing is due: every change signals. */
		(void)bh_cond_wait(&pool->attention, &pool->lock, next_deadline_locked(pool));
	}
	bh_mutex_unlock(&pool->lock);
}

/* Closed: whatever has no outcome yet and does not run gets one, then the workers are let go. */
static void leave(struct bh_pool *pool)
{
	bh_mutex_lock(&pool->lock);
	begin_cancelling_locked(pool);
	while (cancel_one_queued_locked(pool))
		;
	abandon_locked(pool, true);
	if (bh_pool_state_now(pool) == BH_POOL_DRAINING)
		move_locked(pool, EVENT_DRAINED);
	bh_mutex_unlock(&pool->lock);
}

/* ---- take down ------------------------------------------------------------------------------- */

static void join_threads(struct bh_pool *pool, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		struct bh_pool_thread *thread = &pool->threads[i];
		struct bh_error err = { .status = 0 };

		if (!thread->joinable)
			continue;
		thread->joinable = false;
		/* No deadline: the thread may be in a call that never returns, and then only
		 * bh_pool_give_up() ends the wait of those who wait for the pool. */
		if (bh_thread_join(thread->handle, BH_NEVER, &err) < 0)
			bh_log_error(BH_LOG_ERROR, "pool", "a thread of the pool cannot be joined",
				     &err);
	}
}

static void stop_progress(struct bh_pool *pool)
{
	const uint64_t one = 1;

	if (pool->stop_fd < 0)
		return;
	bh_mutex_lock(&pool->lock);
	pool->step = "progress";
	pool->step_since_ns = bh_now_ns();
	pool->progress_told = true;
	bh_mutex_unlock(&pool->lock);
	if (write(pool->stop_fd, &one, sizeof(one)) != sizeof(one))
		bh_log(BH_LOG_ERROR, "pool", "progress threads cannot be told to stop",
		       BH_STR("pool", pool->label));
	join_threads(pool, pool->n_workers, pool->n_threads);
	close(pool->stop_fd);
	pool->stop_fd = -1;
}

static void close_backend(struct bh_pool *pool)
{
	struct bh_error err = { .status = 0 };
	bh_status st;

	if (!pool->opened)
		return;
	pool->opened = false; /* before: a close that ends this thread is not called again */
	enter_step(pool, "close");
	st = pool->backend->close(pool->backend_self, &err);
	if (st == 0)
		return;
	(void)bh_note(&err, st, BH_STR("pool", pool->label), BH_STR("step", "close"));
	bh_mutex_lock(&pool->lock);
	keep_cause_locked(pool, &err, BH_LOG_DEBUG);
	bh_mutex_unlock(&pool->lock);
}

static void take_down(struct bh_pool *pool)
{
	bh_mutex_lock(&pool->lock);
	pool->step = "join";
	pool->step_since_ns = bh_now_ns();
	pool->exit_workers = true;
	bh_cond_broadcast(&pool->work);
	bh_mutex_unlock(&pool->lock);
	join_threads(pool, 0, pool->n_workers);
	/* What a worker left pending on its way out was abandoned there: leave() has said so. */
	stop_progress(pool);
	close_backend(pool);
}

/* SUP-5: before this thread ends. */
static void publish_end(struct bh_pool *pool)
{
	enum bh_pool_state state;
	bool late;

	bh_mutex_lock(&pool->lock);
	/* No deadline: telling calls nothing that may block. */
	while (pool->giving_up)
		(void)bh_cond_wait(&pool->changed, &pool->lock, BH_NEVER);
	pool->step = "ended";
	late = bh_pool_state_now(pool) == BH_POOL_WEDGED;
	if (bh_pool_state_now(pool) == BH_POOL_BUILDING)
		move_locked(pool, EVENT_BUILD_FAILED);
	else if (!late)
		move_locked(pool,
			    bh_error_is_set(&pool->cause) ? EVENT_ENDED_FAILED : EVENT_ENDED_CLEAN);
	state = bh_pool_state_now(pool);
	bh_mutex_unlock(&pool->lock);
	if (late)
		bh_log(BH_LOG_WARNING, "pool", "late: a pool that was given up has ended after all",
		       BH_STR("pool", pool->label));
	else
		announce(pool, state);
}

/* Runs when a callback of the backend ends the supervisor's thread: the rest of its work is done
 * here. */
static void supervisor_lost(void *arg)
{
	struct bh_pool *pool = arg;
	struct bh_error cause = { .status = 0 };

	bh_mutex_lock(&pool->lock);
	(void)bh_raise(&cause, -ECHILD, "pool.supervisor-lost", BH_STR("pool", pool->label),
		       BH_STR("step", pool->step),
		       BH_STR("reason", "it ended itself, as by pthread_exit"));
	bh_pool_fail_locked(pool, &cause);
	bh_mutex_unlock(&pool->lock);
	leave(pool);
	take_down(pool);
	publish_end(pool);
}

/* A nice value is a thread's own and goes to the threads it makes: a pool must not be as eager as
 * the control loop because that is where it was asked for. */
static void take_nice_of_process(void)
{
	int nice = getpriority(PRIO_PROCESS, (id_t)getpid()); /* the main thread's */

	/* Without permission for a lower one it stays as eager as its maker. */
	if (nice != getpriority(PRIO_PROCESS, 0))
		(void)setpriority(PRIO_PROCESS, (id_t)gettid(), nice);
}

static void *supervisor_main(void *arg)
{
	struct bh_pool *pool = arg;

	take_nice_of_process();
	supervised = pool;
	pthread_cleanup_push(supervisor_lost, pool);
	if (build(pool)) {
		serve(pool);
		leave(pool);
	}
	take_down(pool);
	pthread_cleanup_pop(0);
	publish_end(pool);
	return NULL;
}

/* ---- life, as seen from outside -------------------------------------------------------------- */

bh_status bh_pool_start(struct bh_pool *pool, struct bh_error *err)
{
	char name[16];
	pthread_t handle;
	enum bh_pool_state state;
	bh_status st;

	bh_mutex_lock(&pool->lock);
	state = bh_pool_state_now(pool);
	if (state == BH_POOL_NEW)
		move_locked(pool, EVENT_START);
	bh_mutex_unlock(&pool->lock);
	if (state != BH_POOL_NEW)
		return bh_raise(err, -EALREADY, "pool.started", BH_STR("pool", pool->label),
				BH_STR("state", bh_pool_state_name(state)));
	bh_thread_name_pool(name, pool->label, pool->id, "sup");
	st = bh_thread_create(&handle, name, supervisor_main, pool, err);
	bh_mutex_lock(&pool->lock);
	if (st == 0) {
		pool->supervisor = handle;
		pool->has_supervisor = true;
	} else {
		(void)bh_note(err, st, BH_STR("pool", pool->label), BH_STR("step", "supervisor"));
		(void)bh_raise(&pool->cause, st, "thread.create", BH_STR("pool", pool->label),
			       BH_STR("step", "supervisor"));
		move_locked(pool, EVENT_BUILD_FAILED);
	}
	bh_mutex_unlock(&pool->lock);
	return st;
}

/* The pool's cause, or where there is none `id`, as this caller's error. */
static bh_status raise_cause_locked(struct bh_pool *pool, bh_status st, const char *id,
				    struct bh_error *err) BH_NEEDS(pool->lock);
static bh_status raise_cause_locked(struct bh_pool *pool, bh_status st, const char *id,
				    struct bh_error *err)
{
	enum bh_pool_state state = bh_pool_state_now(pool);

	if (!bh_error_is_set(&pool->cause))
		return bh_raise(err, st, id, BH_STR("pool", pool->label),
				BH_STR("state", bh_pool_state_name(state)),
				BH_STR("step", pool->step));
	if (err && !bh_error_is_set(err))
		*err = pool->cause;
	return pool->cause.status;
}

static bh_status started_locked(struct bh_pool *pool, struct bh_error *err) BH_NEEDS(pool->lock);
static bh_status started_locked(struct bh_pool *pool, struct bh_error *err)
{
	if (pool->was_ready)
		return 0;
	return raise_cause_locked(pool, -ECANCELED, "pool.stopped", err);
}

bh_status bh_pool_wait_started(struct bh_pool *pool, struct bh_deadline until, struct bh_error *err)
{
	bool in_time = true;
	bh_status st;

	if (bh_pool_is_forked())
		return bh_pool_raise_forked(pool, err);
	bh_mutex_lock(&pool->lock);
	while (in_time && (bh_pool_state_now(pool) == BH_POOL_BUILDING ||
			   (bh_pool_state_now(pool) == BH_POOL_EXITING && !pool->was_ready)))
		in_time = bh_cond_wait(&pool->changed, &pool->lock, until);
	if (bh_pool_state_now(pool) == BH_POOL_NEW)
		st = bh_raise(err, -EINVAL, "pool.not-started", BH_STR("pool", pool->label));
	else if (bh_pool_state_now(pool) == BH_POOL_BUILDING)
		st = bh_raise(err, -ETIMEDOUT, "pool.start-timeout", BH_STR("pool", pool->label),
			      BH_STR("step", pool->step));
	else
		st = started_locked(pool, err);
	bh_mutex_unlock(&pool->lock);
	return st;
}

bh_status bh_pool_wait_ended(struct bh_pool *pool, struct bh_deadline until, struct bh_error *err)
{
	bool in_time = true;
	bh_status st = 0;

	if (bh_pool_is_forked())
		return bh_pool_raise_forked(pool, err);
	bh_mutex_lock(&pool->lock);
	while (in_time && !bh_pool_state_is_end(bh_pool_state_now(pool)))
		in_time = bh_cond_wait(&pool->changed, &pool->lock, until);
	if (!bh_pool_state_is_end(bh_pool_state_now(pool)))
		st = bh_raise(err, -ETIMEDOUT, "pool.end-timeout", BH_STR("pool", pool->label),
			      BH_STR("state", bh_pool_state_name(bh_pool_state_now(pool))),
			      BH_STR("step", pool->step));
	bh_mutex_unlock(&pool->lock);
	return st;
}

/* 0: to be joined now by the caller. 1: it has been (or there is nothing to join). */
static bh_status join_begin_locked(struct bh_pool *pool, struct bh_deadline until,
				   struct bh_error *err) BH_NEEDS(pool->lock);
static bh_status join_begin_locked(struct bh_pool *pool, struct bh_deadline until,
				   struct bh_error *err)
{
	enum bh_pool_state state = bh_pool_state_now(pool);
	bool in_time = true;

	if (state == BH_POOL_NEW)
		return 1;
	if (supervised == pool)
		return bh_raise(err, -EDEADLK, "pool.join-self", BH_STR("pool", pool->label));
	if (!bh_pool_state_is_end(state)) /* SUP-6 */
		return bh_raise(err, -EBUSY, "pool.join-early", BH_STR("pool", pool->label),
				BH_STR("state", bh_pool_state_name(state)),
				BH_STR("hint", "wait for its end first"));
	while (pool->joining && in_time)
		in_time = bh_cond_wait(&pool->changed, &pool->lock, until);
	if (pool->joining)
		return bh_raise(err, -ETIMEDOUT, "pool.join-timeout", BH_STR("pool", pool->label),
				BH_STR("step", pool->step));
	return pool->joined || !pool->has_supervisor ? 1 : 0;
}

bh_status bh_pool_join(struct bh_pool *pool, struct bh_deadline until, struct bh_error *err)
{
	pthread_t supervisor;
	bh_status st;

	if (bh_pool_is_forked())
		return bh_pool_raise_forked(pool, err);
	bh_mutex_lock(&pool->lock);
	st = join_begin_locked(pool, until, err);
	pool->joining |= st == 0;
	supervisor = pool->supervisor;
	bh_mutex_unlock(&pool->lock);
	if (st != 0)
		return st < 0 ? st : 0; /* 0 is the first result, replayed */
	st = bh_thread_join(supervisor, until, err);
	bh_mutex_lock(&pool->lock);
	pool->joining = false;
	pool->joined = st == 0; /* a timeout leaves the handle in place */
	if (st < 0)
		(void)bh_note(err, st, BH_STR("pool", pool->label), BH_STR("step", pool->step));
	bh_cond_broadcast(&pool->changed);
	bh_mutex_unlock(&pool->lock);
	return st;
}

/* ---- giving up ------------------------------------------------------------------------------- */

struct stuck {
	enum bh_pool_state state;
	const char *step;
	uint64_t now_ns, step_since_ns;
	uint32_t n;
	struct bh_thread_sight *sights; /* NULL without memory */
};

static void raise_wedged(struct bh_pool *pool, const struct stuck *stuck, struct bh_error *err)
{
	(void)bh_raise(err, -ETIMEDOUT, "pool.wedged", BH_STR("pool", pool->label),
		       BH_STR("state", bh_pool_state_name(stuck->state)),
		       BH_STR("step", stuck->step), BH_INT("threads", stuck->n));
	if (stuck->n > 0 && stuck->sights)
		(void)bh_note(err, err->status, BH_STR("thread", stuck->sights[0].name),
			      BH_INT("tid", stuck->sights[0].tid));
	if (stuck->n > 0 && stuck->sights && stuck->sights[0].op)
		(void)bh_note(err, err->status, BH_STR("op", stuck->sights[0].op),
			      BH_INT("task", stuck->sights[0].task_id),
			      BH_INT("since_ms",
				     (stuck->now_ns - stuck->sights[0].since_ns) / BH_NS_PER_MS));
}

/* False: it has ended. Else submissions are closed and nobody else publishes until
 *        give_up_finish. */
static bool give_up_begin_locked(struct bh_pool *pool, struct stuck *stuck) BH_NEEDS(pool->lock);
static bool give_up_begin_locked(struct bh_pool *pool, struct stuck *stuck)
{
	/* No deadline: another caller's telling calls nothing that may block. */
	while (pool->giving_up)
		(void)bh_cond_wait(&pool->changed, &pool->lock, BH_NEVER);
	stuck->state = bh_pool_state_now(pool);
	if (stuck->state == BH_POOL_NEW)
		move_locked(pool, EVENT_STOP); /* nothing was built that could be stuck */
	if (bh_pool_state_is_end(bh_pool_state_now(pool)))
		return false;
	stuck->now_ns = bh_now_ns();
	stuck->step = pool->step;
	stuck->step_since_ns = pool->step_since_ns;
	stuck->n = stuck->sights ? bh_pool_see_threads_locked(pool, stuck->sights) : 0;
	pool->giving_up = true;
	begin_cancelling_locked(pool);
	pool->exit_workers = true;
	if (stuck->state == BH_POOL_READY)
		move_locked(pool, EVENT_STOP);
	bh_cond_broadcast(&pool->work);
	bh_cond_signal(&pool->attention);
	return true;
}

/* Every outcome is told before the state is published: the books are exact in it (SUP-4).
 * Relocks. */
static void give_up_finish_locked(struct bh_pool *pool, const struct stuck *stuck)
	BH_NEEDS(pool->lock);
static void give_up_finish_locked(struct bh_pool *pool, const struct stuck *stuck)
{
	struct bh_error wedged = { .status = 0 };

	while (cancel_one_queued_locked(pool))
		;
	abandon_locked(pool, false);
	raise_wedged(pool, stuck, &wedged);
	keep_cause_locked(pool, &wedged, BH_LOG_DEBUG);
	move_locked(pool, EVENT_GIVE_UP);
	pool->giving_up = false;
	bh_cond_broadcast(&pool->changed);
}

static json_t *render_stuck(const struct bh_pool *pool, const struct stuck *stuck)
{
	json_t *threads = json_array();

	for (uint32_t i = 0; i < stuck->n; i++)
		json_array_append_new(threads,
				      bh_pool_render_sight(&stuck->sights[i], stuck->now_ns));
	return json_pack("{s:s, s:s, s:s, s:f, s:o}", "pool", pool->label, "state",
			 bh_pool_state_name(stuck->state), "step", stuck->step, "step_since_s",
			 (double)(stuck->now_ns - stuck->step_since_ns) / BH_NS_PER_S, "threads",
			 threads);
}

bool bh_pool_give_up(struct bh_pool *pool, json_t **ret_report)
{
	struct stuck stuck = { .n = 0 };
	bool gave_up;

	if (bh_pool_is_forked())
		return false;
	stuck.sights = calloc(pool->n_threads, sizeof(*stuck.sights));
	bh_mutex_lock(&pool->lock);
	gave_up = give_up_begin_locked(pool, &stuck);
	if (gave_up)
		give_up_finish_locked(pool, &stuck);
	bh_mutex_unlock(&pool->lock);
	if (gave_up) {
		if (ret_report)
			*ret_report = render_stuck(pool, &stuck);
		announce(pool, BH_POOL_WEDGED);
	} else if (stuck.state == BH_POOL_NEW) {
		announce(pool, BH_POOL_CLEAN);
	}
	free(stuck.sights);
	return gave_up;
}

/* ---- the end of the process ------------------------------------------------------------------ */

bool bh_pool_exits(void)
{
	struct bh_pool_thread *thread = bh_worker_self();
	struct bh_pool *pool = thread ? thread->pool : supervised;

	if (!pool || bh_pool_is_forked())
		return false;
	bh_mutex_lock(&pool->lock);
	pool->exiting = true;
	if (thread)
		thread->exiting = true;
	else
		pool->supervisor_exiting = true;
	/* SUP-4: what this thread runs will not end. The chain is this thread's own. */
	for (struct bh_task *task = thread ? thread->task : NULL; task; task = task->outer) {
		struct bh_aftermath after = { .args = NULL };

		if (task->told != BH_OUTCOME_NONE)
			continue;
		bh_task_abandon_locked(pool, task, &after);
		finish_relocks(pool, &after);
	}
	bh_cond_signal(&pool->attention);
	bh_cond_broadcast(&pool->changed);
	bh_mutex_unlock(&pool->lock);
	return true;
}

static bool all_gone_locked(struct bh_pool *pool, uint32_t from, uint32_t to) BH_NEEDS(pool->lock);
static bool all_gone_locked(struct bh_pool *pool, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		if (!pool->threads[i].exiting && pool->threads[i].step != BH_THREAD_NONE &&
		    pool->threads[i].step != BH_THREAD_ENDED)
			return false;
	return true;
}

/* Does what the supervisor cannot do any more, being in exit() or joining a worker that is.
 * Relocks. */
static void stand_in_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static void stand_in_locked(struct bh_pool *pool)
{
	const uint64_t one = 1;

	if (pool->supervisor_exiting && !pool->exit_workers) {
		begin_cancelling_locked(pool);
		while (cancel_one_queued_locked(pool))
			;
		abandon_locked(pool, true);
		pool->exit_workers = true;
		bh_cond_broadcast(&pool->work);
	}
	/* The descriptor was made before the threads that use it, and is closed only once all of
	 * them and all workers have been joined, which a worker in exit() never is. */
	if (all_gone_locked(pool, 0, pool->n_workers) && !pool->progress_told &&
	    pool->stop_fd >= 0) {
		pool->progress_told = true;
		if (write(pool->stop_fd, &one, sizeof(one)) != sizeof(one))
			bh_log(BH_LOG_ERROR, "pool", "progress threads cannot be told to stop",
			       BH_STR("pool", pool->label));
	}
}

static bool worker_exits_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static bool worker_exits_locked(struct bh_pool *pool)
{
	for (uint32_t i = 0; i < pool->n_workers; i++)
		if (pool->threads[i].exiting)
			return true;
	return false;
}

enum bh_pool_rest bh_pool_wait_rest(struct bh_pool *pool, struct bh_deadline until)
{
	enum bh_pool_rest rest = BH_POOL_REST_STUCK;
	bool in_time = true;

	bh_mutex_lock(&pool->lock);
	for (;;) {
		if (pool->supervisor_exiting || worker_exits_locked(pool))
			stand_in_locked(pool);
		if (bh_pool_state_now(pool) != BH_POOL_WEDGED &&
		    bh_pool_state_is_end(bh_pool_state_now(pool)))
			rest = BH_POOL_REST_NONE;
		else if (pool->exiting && all_gone_locked(pool, 0, pool->n_threads))
			rest = BH_POOL_REST_EXITING;
		if (rest != BH_POOL_REST_STUCK || !in_time)
			break;
		in_time = bh_cond_wait(&pool->changed, &pool->lock, until);
	}
	bh_mutex_unlock(&pool->lock);
	return rest;
}
