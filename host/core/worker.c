/* SPDX-License-Identifier: BSD-3-Clause */
/* worker - the threads of a pool, and the running of one task on one of them.
 *
 * Thread: bh_worker_main() and bh_progress_main() are the threads; the rest is for the thread
 *         itself.
 * Keeps:  RI-3 (tagged before any code of the backend), SUP-2 (a thread that cannot be set up
 *         fails the build), SUP-5 (a thread that vanishes is noticed). */
#include "config.h"

#include "host/core/pool_private.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "host/core/identity.h"
#include "host/core/log.h"

static _Thread_local struct bh_pool_thread *self; /* NULL on threads that are no pool's */
static _Thread_local struct bh_frame *innermost;

struct bh_pool_thread *bh_worker_self(void)
{
	return self;
}

struct bh_frame *bh_worker_frame(void)
{
	return innermost;
}

/* ---- running a task -------------------------------------------------------------------------- */

static void frame_fini(struct bh_frame *frame)
{
	bh_value_clear(&frame->result);
	bh_object_unref(frame->cause);
}

static void raise_lost(struct bh_error *err, const struct bh_pool_thread *thread)
{
	bh_error_clear(err);
	(void)bh_raise(err, -ECHILD, "pool.thread-lost", BH_STR("pool", thread->pool->label),
		       BH_STR("thread", thread->name),
		       BH_STR("reason", "it ended itself, as by pthread_exit"));
}

/* Runs when the op ends its own thread; the frame is still on the stack, the ones below are
 * gone. */
static void frame_lost(void *arg)
{
	struct bh_frame *frame = arg;
	struct bh_task *task = frame->task;
	struct bh_pool *pool = task->pool;
	struct bh_aftermath after = { .args = NULL };
	struct bh_error cause;

	innermost = frame->outer;
	raise_lost(&cause, self);
	(void)bh_note(&cause, cause.status, BH_STR("op", task->op_name), BH_INT("task", task->id));
	bh_mutex_lock(&pool->lock);
	bh_task_lost_locked(pool, task, &cause, &after);
	bh_pool_fail_locked(pool, &cause);
	bh_mutex_unlock(&pool->lock);
	bh_aftermath_run(&after);
	frame_fini(frame);
}

static bh_status frame_run(struct bh_frame *frame)
{
	struct bh_pool *pool = frame->task->pool;
	volatile bh_status st; /* pthread_cleanup_push may be a setjmp */

	innermost = frame;
	pthread_cleanup_push(frame_lost, frame);
	st = pool->backend->run(pool->backend_self, frame->task);
	pthread_cleanup_pop(0);
	innermost = frame->outer;
	if (st > BH_PENDING)
		st = bh_raise(&frame->error, -EPROTO, "task.bad-status", BH_INT("returned", st),
			      BH_STR("accepted", "0, BH_PENDING or a negative errno"));
	return st;
}

static void run_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
static void run_locked(struct bh_pool *pool, struct bh_task *task)
{
	struct bh_frame frame = { .task = task,
				  .outer = innermost,
				  .depth = innermost ? innermost->depth + 1 : 1 };
	struct bh_aftermath after = { .args = NULL };
	bh_status st;

	task->frame = &frame;
	bh_task_start_locked(pool, task, self, bh_now_ns());
	bh_mutex_unlock(&pool->lock);
	st = frame_run(&frame);
	bh_mutex_lock(&pool->lock);
	bh_task_ran_locked(pool, task, st, &frame, &after);
	bh_mutex_unlock(&pool->lock);
	bh_aftermath_run(&after);
	frame_fini(&frame);
	bh_mutex_lock(&pool->lock);
}

void bh_worker_run_locked(struct bh_pool *pool, struct bh_task *task)
{
	struct bh_verdict verdict = { .outcome = BH_OUTCOME_DEADLINE };
	struct bh_aftermath after = { .args = NULL };
	struct bh_lane *lane = task->lane;

	if (!bh_deadline_passed(task->deadline)) {
		run_locked(pool, task);
		return;
	}
	bh_task_drop_locked(pool, task, &verdict, &after);
	if (lane)
		bh_lane_release_locked(pool, lane); /* the aftermath still holds it */
	bh_mutex_unlock(&pool->lock);
	bh_aftermath_run(&after);
	bh_mutex_lock(&pool->lock);
}

/* ---- the threads ----------------------------------------------------------------------------- */

static void enter_step_locked(struct bh_pool *pool, struct bh_pool_thread *thread,
			      enum bh_thread_step step) BH_NEEDS(pool->lock);
static void enter_step_locked(struct bh_pool *pool, struct bh_pool_thread *thread,
			      enum bh_thread_step step)
{
	thread->step = step;
	thread->since_ns = bh_now_ns();
	bh_cond_signal(&pool->attention);
	if (step == BH_THREAD_ENDED)
		bh_cond_broadcast(&pool->changed); /* bh_pool_wait_rest() may wait for it */
}

static void enter_step(struct bh_pool_thread *thread, enum bh_thread_step step)
{
	struct bh_pool *pool = thread->pool;

	bh_mutex_lock(&pool->lock);
	enter_step_locked(pool, thread, step);
	bh_mutex_unlock(&pool->lock);
}

/* `err` is why the thread, and so the pool, has failed. */
static void fail_and_end(struct bh_pool_thread *thread, const struct bh_error *err)
{
	struct bh_pool *pool = thread->pool;

	bh_mutex_lock(&pool->lock);
	bh_pool_fail_locked(pool, err);
	enter_step_locked(pool, thread, BH_THREAD_ENDED);
	bh_mutex_unlock(&pool->lock);
}

static void thread_lost(void *arg)
{
	struct bh_error cause;

	raise_lost(&cause, arg);
	fail_and_end(arg, &cause);
}

/* To Linux a nice value is a thread's own, and 20 - RLIMIT_NICE the lowest that it may take. */
static bh_status set_nice(int nice, struct bh_error *err)
{
	struct rlimit limit = { .rlim_cur = 0 };
	bh_status st;

	if (setpriority(PRIO_PROCESS, (id_t)gettid(), nice) == 0)
		return 0;
	st = -errno;
	(void)bh_raise(err, st, "pool.nice", BH_INT("nice", nice));
	if (st != -EACCES && st != -EPERM)
		return st;
	(void)getrlimit(RLIMIT_NICE, &limit);
	return bh_note(err, st, BH_INT("RLIMIT_NICE", limit.rlim_cur),
		       BH_STR("hint", "below its own nice value a process needs RLIMIT_NICE of at "
				      "least 20 - nice, or CAP_SYS_NICE"));
}

/* Where and how eagerly it runs. */
static bh_status place(const struct bh_pool_thread *thread, struct bh_error *err)
{
	const struct bh_pool *pool = thread->pool;
	bh_status st = 0;

	if (pool->has_cpus)
		st = bh_cpus_pin(&pool->cpus, err);
	if (st == 0 && pool->has_nice)
		st = set_nice(pool->nice, err);
	return st < 0 ? bh_note(err, st, BH_STR("thread", thread->name)) : 0;
}

static bh_status begin(struct bh_pool_thread *thread, struct bh_error *err)
{
	struct bh_pool *pool = thread->pool;
	bh_status st;

	self = thread;
	bh_mutex_lock(&pool->lock);
	thread->tid = (uint32_t)gettid();
	bh_mutex_unlock(&pool->lock);
	st = bh_identity_tag_data(pool->label, pool->id,
				  thread->is_worker ? thread->index : BH_WORKER_NONE,
				  err); /* RI-3 */
	return st == 0 ? place(thread, err) : st;
}

static bh_status worker_begin(struct bh_pool_thread *thread, struct bh_error *err)
{
	struct bh_pool *pool = thread->pool;
	bh_status st = begin(thread, err);

	if (st == 0 && pool->backend->worker_start)
		st = pool->backend->worker_start(pool->backend_self, thread->index, err);
	if (st < 0)
		(void)bh_note(err, st, BH_STR("pool", pool->label), BH_STR("step", "worker_start"),
			      BH_INT("worker", thread->index));
	return st;
}

static void worker_serve(struct bh_pool *pool)
{
	bh_mutex_lock(&pool->lock);
	while (!pool->exit_workers) {
		struct bh_task *task = pool->cancelling ? NULL : bh_ready_take_locked(pool);

		if (task) {
			bh_worker_run_locked(pool, task);
			continue;
		}
		pool->n_idle++;
		/* No deadline: whatever makes work or ends the pool signals. */
		(void)bh_cond_wait(&pool->work, &pool->lock, BH_NEVER);
		pool->n_idle--;
	}
	bh_mutex_unlock(&pool->lock);
}

static void worker_end(struct bh_pool_thread *thread)
{
	struct bh_pool *pool = thread->pool;
	struct bh_error err = { .status = 0 };
	bh_status st = 0;

	enter_step(thread, BH_THREAD_STOPPING);
	if (pool->backend->worker_stop)
		st = pool->backend->worker_stop(pool->backend_self, thread->index, &err);
	if (st < 0) {
		(void)bh_note(&err, st, BH_STR("pool", pool->label), BH_STR("step", "worker_stop"),
			      BH_INT("worker", thread->index));
		fail_and_end(thread, &err);
	} else {
		enter_step(thread, BH_THREAD_ENDED);
	}
}

static void worker_live(struct bh_pool_thread *thread)
{
	struct bh_error err = { .status = 0 };

	if (worker_begin(thread, &err) < 0) {
		fail_and_end(thread, &err);
		return;
	}
	enter_step(thread, BH_THREAD_SERVING);
	worker_serve(thread->pool);
	worker_end(thread);
}

void *bh_worker_main(void *arg)
{
	pthread_cleanup_push(thread_lost, arg);
	worker_live(arg);
	pthread_cleanup_pop(0);
	return NULL;
}

static void progress_live(struct bh_pool_thread *thread)
{
	struct bh_pool *pool = thread->pool;
	struct bh_error err = { .status = 0 };
	bh_status st;
	bool early;

	st = begin(thread, &err);
	if (st < 0) {
		(void)bh_note(&err, st, BH_STR("pool", pool->label), BH_STR("step", "progress"));
		fail_and_end(thread, &err);
		return;
	}
	enter_step(thread, BH_THREAD_SERVING);
	pool->backend->progress(pool->backend_self, thread->index, pool->stop_fd);
	bh_mutex_lock(&pool->lock);
	early = !pool->progress_told;
	enter_step_locked(pool, thread, BH_THREAD_ENDED);
	bh_mutex_unlock(&pool->lock);
	if (early)
		bh_log(BH_LOG_WARNING, "pool",
		       "a progress thread has returned before it was told to stop",
		       BH_STR("pool", pool->label), BH_STR("thread", thread->name));
}

void *bh_progress_main(void *arg)
{
	pthread_cleanup_push(thread_lost, arg);
	progress_live(arg);
	pthread_cleanup_pop(0);
	return NULL;
}
