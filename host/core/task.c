/* SPDX-License-Identifier: BSD-3-Clause */
/* task - the records of a pool's tasks, from acceptance to outcome and end.
 *
 * Thread: any, under the pool's lock where a name ends in _locked.
 * Owns:   a record's arguments, its references to lane and ticket; what it lets go of leaves
 *         through a bh_aftermath, which is worked off without the lock.
 * Keeps:  SUP-4 (one outcome, exact books), SUP-8 (places), SUP-10 (memory outlives doubt). */
#include "config.h"

#include "host/core/pool_private.h"

#include <errno.h>

#include "host/core/log.h"

/* A task's number: the pool's id, and below it use count × records + record. So it is never used
 * again, and a number that has gone stale is told from a live one without touching anything but
 * the records, which live as long as the pool. 2^48 tasks a pool are nine years at a million a
 * second. */
#define ID_POOL_SHIFT 48

static uint64_t make_id(const struct bh_pool *pool, const struct bh_task *task)
{
	uint64_t record = (uint64_t)(task - pool->tasks);

	return (uint64_t)pool->id << ID_POOL_SHIFT | (task->generation * pool->n_tasks + record);
}

struct bh_task *bh_task_find_locked(struct bh_pool *pool, uint64_t id)
{
	uint64_t number = id & ((UINT64_C(1) << ID_POOL_SHIFT) - 1);
	struct bh_task *task = &pool->tasks[number % pool->n_tasks];

	return id != 0 && task->id == id ? task : NULL;
}

static void move_to_locked(struct bh_task *task, struct bh_list *list)
{
	bh_list_remove(&task->all);
	bh_list_push_back(list, &task->all);
}

static void give_back_place_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
static void give_back_place_locked(struct bh_pool *pool, struct bh_task *task)
{
	if (!task->has_place)
		return;
	task->has_place = false;
	pool->n_places--;
	/* All of them: who may use the reserve and who may not wait for the same places. */
	if (pool->n_room_waiters > 0)
		bh_cond_broadcast(&pool->room);
}

/* ---- beginning ------------------------------------------------------------------------------- */

void bh_task_accept_locked(struct bh_pool *pool, const struct bh_submission *submission,
			   const char *op_name, uint64_t now_ns, struct bh_deps *deps,
			   struct bh_aftermath *after)
{
	struct bh_ticket *ticket = submission->ticket;
	struct bh_task *task;

	assert(!bh_list_empty(&pool->free));
	task = bh_container_of(pool->free.next, struct bh_task, all);
	move_to_locked(task, &pool->queued);
	task->generation++;
	task->id = make_id(pool, task);
	task->state = BH_TASK_QUEUED;
	task->told = BH_OUTCOME_NONE;
	task->completed = task->cancel_asked = false;
	task->has_place = true;
	atomic_store_explicit(&task->cancelled, false, memory_order_relaxed);
	task->op = submission->op;
	task->op_name = op_name;
	task->deadline = submission->deadline;
	task->args = submission->args;
	task->lane = submission->lane ? bh_lane_ref(submission->lane) : NULL;
	task->outer = NULL;
	task->deps = deps;
	task->blocked = false;
	task->submitted_ns = now_ns;
	task->started_ns = 0;
	task->ticket = ticket ? bh_ticket_ref(ticket) : NULL;
	if (ticket) {
		ticket->pool = pool;
		ticket->op = task->op;
		ticket->op_name = op_name;
		ticket->task_id = task->id;
		ticket->submitted_ns = now_ns;
	}
	pool->n_live++;
	pool->n_places++;
	pool->books.submitted++;
	pool->books.queued++;
	if (task->lane)
		bh_lane_count_in_locked(pool, task->lane);
	if (task->deadline.at_ns != UINT64_MAX) {
		bh_heap_push_locked(pool, task);
		if (task->heap_index == 0)
			bh_cond_signal(&pool->attention);
	}
	if (deps) {
		task->blocked = true;
		pool->n_blocked++;
	}
	bh_ready_add_locked(pool, task);
	if (deps)
		bh_deps_arm_locked(pool, task, after);
}

void bh_task_start_locked(struct bh_pool *pool, struct bh_task *task, struct bh_pool_thread *thread,
			  uint64_t now_ns)
{
	assert(task->state == BH_TASK_QUEUED);
	task->state = BH_TASK_RUNNING;
	task->started_ns = now_ns;
	move_to_locked(task, &pool->active);
	pool->books.queued--;
	pool->books.running++;
	if (task->lane)
		bh_lane_count_start_locked(pool, task->lane);
	/* A worker's outermost task makes room for another; one that runs inline keeps its
	 * place, or nested ones would need more records than there are. */
	if (thread->is_worker && !thread->task)
		give_back_place_locked(pool, task);
	task->outer = thread->task;
	thread->task = task;
	thread->since_ns = now_ns;
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void count_out_locked(struct bh_pool *pool, const struct bh_task *task,
			     enum bh_outcome outcome) BH_NEEDS(pool->lock);
static void count_out_locked(struct bh_pool *pool, const struct bh_task *task,
			     enum bh_outcome outcome)
{
	struct bh_pool_books *books = &pool->books;

	switch (task->state) {
	case BH_TASK_QUEUED:
		books->queued--;
		break;
	case BH_TASK_RUNNING:
		books->running--;
		break;
	case BH_TASK_PENDING:
		books->pending--;
		break;
	case BH_TASK_FREE:
		bh_unreachable();
	}
	switch (outcome) {
	case BH_OUTCOME_DONE:
		books->done++;
		break;
	case BH_OUTCOME_FAILED:
		books->failed++;
		break;
	case BH_OUTCOME_CANCELLED:
		books->cancelled++;
		break;
	case BH_OUTCOME_DEADLINE:
		books->deadline++;
		break;
	case BH_OUTCOME_ABANDONED:
		books->abandoned++;
		books->abandoned_alive++;
		break;
	case BH_OUTCOME_NONE:
		bh_unreachable();
	}
}

static void raise_general(enum bh_outcome outcome, bh_status status, struct bh_error *err)
{
	switch (outcome) {
	case BH_OUTCOME_FAILED:
		(void)bh_raise(err, status < 0 ? status : -EIO, "task.failed");
		return;
	case BH_OUTCOME_CANCELLED:
		(void)bh_raise(err, -ECANCELED, "task.cancelled");
		return;
	case BH_OUTCOME_DEADLINE:
		(void)bh_raise(err, -ETIMEDOUT, "task.deadline");
		return;
	case BH_OUTCOME_ABANDONED:
		(void)bh_raise(err, -ENOTRECOVERABLE, "task.abandoned");
		return;
	case BH_OUTCOME_DONE:
	case BH_OUTCOME_NONE:
		break;
	}
	bh_unreachable();
}

static void note_task(const struct bh_task *task, struct bh_error *err)
{
	(void)bh_note(err, err->status, BH_STR("pool", task->pool->label),
		      BH_STR("op", task->op_name), BH_INT("task", task->id));
}

void bh_task_cancel_error_locked(struct bh_pool *pool, const struct bh_task *task,
				 struct bh_error *ret_error)
{
	bh_error_clear(ret_error);
	if (bh_error_is_set(&pool->cause)) {
		char text[256];

		bh_error_render(&pool->cause, text, sizeof(text));
		(void)bh_raise(ret_error, -ECANCELED, "pool.failed",
			       BH_STR("cause", pool->cause.id), BH_STR("text", text));
	} else {
		(void)bh_raise(ret_error, -ECANCELED, "task.cancelled",
			       BH_STR("reason", task->cancel_asked ? "asked" : "pool stopped"));
	}
}

static void wake_waiters_locked(struct bh_task *task)
{
	struct bh_list *link;

	/* Each is taken off: the record may be another task's before it gets to run. */
	while ((link = bh_list_pop_front(&task->waiters)))
		bh_cond_signal(&bh_container_of(link, struct bh_waiter, link)->cond);
}

/* Of what has been started: the others have taken no time but in the queue. */
static void count_time_locked(struct bh_pool *pool, const struct bh_task *task, uint64_t now_ns)
	BH_NEEDS(pool->lock);
static void count_time_locked(struct bh_pool *pool, const struct bh_task *task, uint64_t now_ns)
{
	uint64_t ns = now_ns - task->started_ns;
	struct bh_op_times *times;

	if (task->started_ns == 0 || task->op >= pool->n_ops)
		return;
	times = &pool->op_times[task->op];
	bh_histogram_add_alone(&times->histogram, ns);
	atomic_store_explicit(&times->total_ns,
			      atomic_load_explicit(&times->total_ns, memory_order_relaxed) + ns,
			      memory_order_relaxed);
}

/* Sets the outcome: the one place that does (SUP-4). */
static void tell_locked(struct bh_pool *pool, struct bh_task *task, struct bh_verdict *verdict,
			struct bh_aftermath *after) BH_NEEDS(pool->lock);
static void tell_locked(struct bh_pool *pool, struct bh_task *task, struct bh_verdict *verdict,
			struct bh_aftermath *after)
{
	struct bh_ticket *ticket = task->ticket;
	uint64_t now_ns = bh_now_ns();

	assert(task->told == BH_OUTCOME_NONE && !after->ticket);
	task->told = verdict->outcome;
	count_time_locked(pool, task, now_ns);
	count_out_locked(pool, task, verdict->outcome);
	if (task->lane)
		bh_lane_count_out_locked(pool, task, verdict->outcome, verdict->error);
	bh_heap_remove_locked(pool, task);
	bh_list_remove(&task->cancel_link);
	wake_waiters_locked(task);
	task->ticket = NULL;
	after->ticket = ticket;
	if (ticket && verdict->outcome == BH_OUTCOME_DONE) {
		ticket->result = bh_value_steal(&verdict->result);
	} else if (ticket) {
		bh_error_clear(&ticket->error);
		if (bh_error_is_set(verdict->error))
			ticket->error = *verdict->error;
		else
			raise_general(verdict->outcome, verdict->status, &ticket->error);
		note_task(task, &ticket->error);
		ticket->cause = bh_steal(&verdict->cause);
		ticket->root = bh_steal(&verdict->root);
	}
	after->root = bh_steal(&verdict->root);
	after->result = bh_value_steal(&verdict->result);
	after->cause = bh_steal(&verdict->cause);
	if (!ticket)
		return;
	ticket->started_ns = task->started_ns;
	ticket->ended_ns = now_ns;
	/* Release: who sees the outcome, with or without the lock, sees the fields above. */
	atomic_store_explicit(&ticket->outcome, (uint32_t)verdict->outcome, memory_order_release);
}

/* Nothing runs or completes it any more: lets go of its arguments and its record. */
static void end_locked(struct bh_pool *pool, struct bh_task *task, struct bh_aftermath *after)
	BH_NEEDS(pool->lock);
static void end_locked(struct bh_pool *pool, struct bh_task *task, struct bh_aftermath *after)
{
	assert(task->told != BH_OUTCOME_NONE && bh_list_empty(&task->waiters));
	assert(bh_list_empty(&task->cancel_link) && task->heap_index == BH_NOT_IN_HEAP);
	if (task->told == BH_OUTCOME_ABANDONED) { /* a late end */
		pool->books.abandoned_alive--;
		bh_log(BH_LOG_INFO, "pool", "an abandoned task has ended after all",
		       BH_STR("pool", pool->label), BH_STR("op", task->op_name),
		       BH_INT("task", task->id));
	}
	if (task->lane && task->state != BH_TASK_QUEUED) {
		task->lane->books.busy_ns += bh_now_ns() - task->started_ns;
		bh_lane_release_locked(pool, task->lane);
	}
	if (task->deps)
		bh_deps_detach_locked(pool, task);
	after->args = bh_steal(&task->args);
	after->lane = bh_steal(&task->lane);
	after->deps = bh_steal(&task->deps);
	task->state = BH_TASK_FREE;
	task->frame = NULL;
	/* To the end of the free ones: a number that has just gone stale stays recognisable
	 * longest. */
	move_to_locked(task, &pool->free);
	give_back_place_locked(pool, task);
	if (--pool->n_live == 0 || pool->exiting)
		bh_cond_signal(&pool->attention);
}

void bh_task_drop_locked(struct bh_pool *pool, struct bh_task *task, struct bh_verdict *verdict,
			 struct bh_aftermath *after)
{
	assert(task->state == BH_TASK_QUEUED);
	tell_locked(pool, task, verdict, after);
	end_locked(pool, task, after);
}

void bh_task_abandon_locked(struct bh_pool *pool, struct bh_task *task, struct bh_aftermath *after)
{
	struct bh_verdict verdict = { .outcome = BH_OUTCOME_ABANDONED };

	tell_locked(pool, task, &verdict, after);
	move_to_locked(task, &pool->lost);
}

void bh_task_request_cancel_locked(struct bh_pool *pool, struct bh_task *task, bool asked)
{
	if (task->told != BH_OUTCOME_NONE)
		return; /* completed, or given up: only its run() is still on its way out */
	task->cancel_asked |= asked;
	if (atomic_exchange_explicit(&task->cancelled, true, memory_order_relaxed))
		return;
	if (!pool->backend->cancel)
		return;
	bh_list_push_back(&pool->cancels, &task->cancel_link);
	bh_cond_signal(&pool->attention);
}

/* What run() or complete() said, as an outcome. Done is done, also after the deadline. */
static struct bh_verdict judge(const struct bh_task *task, bh_status status,
			       const struct bh_error *error)
{
	struct bh_verdict verdict = { .outcome = BH_OUTCOME_FAILED,
				      .status = status,
				      .error = error };

	if (status == 0)
		verdict.outcome = BH_OUTCOME_DONE;
	else if (status == -ECANCELED && !task->cancel_asked && bh_deadline_passed(task->deadline))
		verdict.outcome = BH_OUTCOME_DEADLINE;
	else if (status == -ECANCELED)
		verdict.outcome = BH_OUTCOME_CANCELLED;
	return verdict;
}

static void turn_pending_locked(struct bh_pool *pool, struct bh_task *task,
				struct bh_aftermath *after) BH_NEEDS(pool->lock);
static void turn_pending_locked(struct bh_pool *pool, struct bh_task *task,
				struct bh_aftermath *after)
{
	task->state = BH_TASK_PENDING;
	task->frame = NULL;
	if (!task->has_place) {
		task->has_place = true;
		pool->n_places++;
	}
	if (task->told != BH_OUTCOME_NONE)
		return; /* given up while it ran; still to be completed */
	pool->books.running--;
	pool->books.pending++;
	if (pool->abandoning)
		bh_task_abandon_locked(pool, task, after);
	else if (atomic_load_explicit(&task->cancelled, memory_order_relaxed) &&
		 pool->backend->cancel && bh_list_empty(&task->cancel_link)) {
		/* Told while it still ran, when the backend may not have known it yet: told
		 * again. */
		bh_list_push_back(&pool->cancels, &task->cancel_link);
		bh_cond_signal(&pool->attention);
	}
}

static void leave_thread_locked(struct bh_task *task, uint64_t now_ns)
{
	struct bh_pool_thread *thread = bh_worker_self();

	thread->task = task->outer;
	thread->since_ns = task->outer ? task->outer->started_ns : now_ns;
	task->outer = NULL;
}

void bh_task_ran_locked(struct bh_pool *pool, struct bh_task *task, bh_status status,
			struct bh_frame *frame, struct bh_aftermath *after)
{
	struct bh_verdict verdict;

	leave_thread_locked(task, bh_now_ns());
	if (status == BH_PENDING && !task->completed) {
		turn_pending_locked(pool, task, after);
		return;
	}
	if (task->completed && status != BH_PENDING)
		bh_log(BH_LOG_ERROR, "pool",
		       "a task was completed twice: completed, and returned by run() too",
		       BH_STR("pool", pool->label), BH_STR("op", task->op_name),
		       BH_INT("task", task->id), BH_INT("returned", status));
	if (task->told == BH_OUTCOME_NONE) {
		verdict = judge(task, status, &frame->error);
		verdict.result = bh_value_steal(&frame->result);
		verdict.cause = bh_steal(&frame->cause);
		tell_locked(pool, task, &verdict, after);
	}
	end_locked(pool, task, after);
}

void bh_task_lost_locked(struct bh_pool *pool, struct bh_task *task, const struct bh_error *cause,
			 struct bh_aftermath *after)
{
	struct bh_verdict verdict = { .outcome = BH_OUTCOME_FAILED, .error = cause };

	leave_thread_locked(task, bh_now_ns());
	if (task->told == BH_OUTCOME_NONE)
		tell_locked(pool, task, &verdict, after);
	end_locked(pool, task, after);
}

void bh_aftermath_release(struct bh_aftermath *after)
{
	/* Released before anybody is told: who awaits the outcome finds its buffers free again. */
	bh_args_free(after->args);
	bh_lane_unref(after->lane);
	bh_value_clear(&after->result);
	bh_object_unref(after->cause);
	bh_deps_release(after->deps);
	bh_ticket_unref(after->root);
	if (after->ticket && after->ticket->notify)
		after->ticket->notify(after->ticket);
}

bool bh_aftermath_run_lockless(struct bh_aftermath *after)
{
	bool all;

	bh_aftermath_release(after);
	if (!after->ticket)
		return true;
	all = bh_ticket_close(after->ticket);
	bh_ticket_unref(after->ticket);
	return all;
}

void bh_aftermath_run(struct bh_aftermath *after)
{
	bh_aftermath_release(after);
	if (!after->ticket)
		return;
	bh_ticket_fire(after->ticket);
	bh_ticket_unref(after->ticket);
}

/* ---- completion from outside ----------------------------------------------------------------- */

static bool may_complete(const struct bh_task *task)
{
	if (!task || task->completed)
		return false;
	return task->state == BH_TASK_RUNNING || task->state == BH_TASK_PENDING;
}

static bh_status complete_locked(struct bh_pool *pool, uint64_t id, bh_status status,
				 struct bh_value *value, const struct bh_error *error,
				 const char **ret_op, uint64_t *ret_late_ns,
				 struct bh_aftermath *after) BH_NEEDS(pool->lock);
static bh_status complete_locked(struct bh_pool *pool, uint64_t id, bh_status status,
				 struct bh_value *value, const struct bh_error *error,
				 const char **ret_op, uint64_t *ret_late_ns,
				 struct bh_aftermath *after)
{
	struct bh_task *task = bh_task_find_locked(pool, id);
	struct bh_verdict verdict;

	*ret_op = task ? task->op_name : "unknown";
	if (!may_complete(task))
		return -ESRCH;
	task->completed = true;
	if (status == 0 && bh_deadline_passed(task->deadline))
		*ret_late_ns = bh_now_ns() - task->deadline.at_ns;
	if (task->told == BH_OUTCOME_NONE) {
		verdict = judge(task, status, error);
		if (value)
			verdict.result = bh_value_steal(value);
		tell_locked(pool, task, &verdict, after);
	}
	/* While run() is still on its way out, its return is the end. */
	if (task->state == BH_TASK_PENDING)
		end_locked(pool, task, after);
	return 0;
}

bh_status bh_pool_complete(struct bh_pool *pool, uint64_t task_id, bh_status status,
			   struct bh_value *value, const struct bh_error *error)
{
	struct bh_aftermath after = { .args = NULL };
	const char *op = "unknown";
	bh_status st = -EINVAL;
	uint64_t late_ns = 0;

	if (status <= 0 && !bh_pool_is_forked()) {
		bh_mutex_lock(&pool->lock);
		st = complete_locked(pool, task_id, status, value, error, &op, &late_ns, &after);
		bh_mutex_unlock(&pool->lock);
		bh_aftermath_run(&after);
	}
	if (value)
		bh_value_clear(value); /* nobody wanted it, or it has passed over */
	if (late_ns) /* what is done is done, but the plugin does not heed its deadlines */
		bh_log(BH_LOG_WARNING, "pool", "completed a task after its deadline",
		       BH_STR("pool", pool->label), BH_STR("op", op), BH_INT("task", task_id),
		       BH_INT("late_ms", late_ns / BH_NS_PER_MS));
	if (st < 0)
		bh_log(BH_LOG_ERROR, "pool",
		       st == -ESRCH
			       ? "completed a task that has ended already, or never was"
			       : "completed a task with a status that is neither 0 nor an error",
		       BH_STR("pool", pool->label), BH_STR("op", op), BH_INT("task", task_id),
		       BH_INT("status", status));
	return st;
}

bh_status bh_pool_task_op(struct bh_pool *pool, uint64_t task_id, uint32_t *ret_op)
{
	const struct bh_task *task;
	bh_status st = -ESRCH;

	if (bh_pool_is_forked())
		return st;
	bh_mutex_lock(&pool->lock);
	task = bh_task_find_locked(pool, task_id);
	if (task && task->state != BH_TASK_FREE) {
		*ret_op = task->op;
		st = 0;
	}
	bh_mutex_unlock(&pool->lock);
	return st;
}

/* ---- a task, as seen by the backend that runs it --------------------------------------------- */

uint64_t bh_task_id(const struct bh_task *task)
{
	return task->id;
}

uint32_t bh_task_op(const struct bh_task *task)
{
	return task->op;
}

struct bh_pool *bh_task_pool(const struct bh_task *task)
{
	return task->pool;
}

const struct bh_args *bh_task_args(const struct bh_task *task)
{
	return task->args;
}

bool bh_task_cancelled(const struct bh_task *task)
{
	/* The supervisor may be busy: an op that asks learns of its deadline in time all the
	 * same. */
	return atomic_load_explicit(&task->cancelled, memory_order_relaxed) ||
	       bh_deadline_passed(task->deadline);
}

struct bh_deadline bh_task_deadline(const struct bh_task *task)
{
	return task->deadline;
}

struct bh_error *bh_task_error(struct bh_task *task)
{
	return &task->frame->error;
}

void bh_task_set_result(struct bh_task *task, struct bh_value value)
{
	bh_value_clear(&task->frame->result);
	task->frame->result = value;
}

void bh_task_set_cause(struct bh_task *task, struct bh_object *cause)
{
	bh_object_unref(task->frame->cause);
	task->frame->cause = cause;
}

struct bh_task *bh_task_current(void)
{
	struct bh_frame *frame = bh_worker_frame();

	return frame ? frame->task : NULL;
}
