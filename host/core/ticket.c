/* SPDX-License-Identifier: BSD-3-Clause */
/* ticket - the submitter's side of a task: its storage, asking for its end, waiting for its
 * outcome.
 *
 * Thread: any that holds a reference. Keeps: SUP-7 (a pool does not deadlock on itself), SUP-9. */
#include "config.h"

#include "host/core/pool_private.h"

#include <errno.h>

void bh_ticket_init(struct bh_ticket *ticket, void (*notify)(struct bh_ticket *),
		    void (*free_fn)(struct bh_ticket *))
{
	atomic_init(&ticket->refs, 1);
	atomic_init(&ticket->outcome, BH_OUTCOME_NONE);
	ticket->task_id = 0;
	ticket->pool = NULL;
	ticket->op = 0;
	ticket->result = (struct bh_value){ .type = BH_TYPE_NONE };
	ticket->cause = NULL;
	bh_error_clear(&ticket->error);
	ticket->notify = notify;
	ticket->free = free_fn;
	ticket->next = NULL;
	ticket->submitted_ns = ticket->started_ns = ticket->ended_ns = 0;
}

struct bh_ticket *bh_ticket_ref(struct bh_ticket *ticket)
{
	atomic_fetch_add_explicit(&ticket->refs, 1, memory_order_relaxed);
	return ticket;
}

void bh_ticket_unref(struct bh_ticket *ticket)
{
	/* Release on every drop, acquire by the last: `free` sees what all holders did. */
	if (!ticket || atomic_fetch_sub_explicit(&ticket->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (ticket->free)
		ticket->free(ticket);
}

/* ---- cancel ---------------------------------------------------------------------------------- */

static void cancel_locked(struct bh_pool *pool, struct bh_ticket *ticket,
			  struct bh_aftermath *after) BH_NEEDS(pool->lock);
static void cancel_locked(struct bh_pool *pool, struct bh_ticket *ticket,
			  struct bh_aftermath *after)
{
	struct bh_task *task = bh_task_find_locked(pool, ticket->task_id);
	struct bh_verdict verdict = { .outcome = BH_OUTCOME_CANCELLED };
	struct bh_error error;

	if (!task || task->told != BH_OUTCOME_NONE)
		return;
	if (task->state != BH_TASK_QUEUED) {
		bh_task_request_cancel_locked(pool, task, true);
		return;
	}
	task->cancel_asked = true;
	bh_task_cancel_error_locked(pool, task, &error);
	verdict.error = &error;
	bh_ready_remove_locked(pool, task);
	bh_task_drop_locked(pool, task, &verdict, after);
}

bool bh_ticket_cancel(struct bh_ticket *ticket, bool trylock)
{
	struct bh_pool *pool = ticket->pool;
	struct bh_aftermath after = { .args = NULL };

	/* Never accepted, over, or the parent's: nothing to cancel. */
	if (!pool || bh_ticket_outcome(ticket) != BH_OUTCOME_NONE || bh_pool_is_forked())
		return true;
	if (trylock) {
		if (!bh_mutex_trylock(&pool->lock))
			return false;
	} else {
		bh_mutex_lock(&pool->lock);
	}
	cancel_locked(pool, ticket, &after);
	bh_mutex_unlock(&pool->lock);
	bh_aftermath_run(&after);
	return true;
}

/* ---- wait ------------------------------------------------------------------------------------ */

static bh_status raise_wait(struct bh_error *err, bh_status status, const char *id,
			    const struct bh_ticket *ticket, const char *hint)
{
	return bh_raise(err, status, id, BH_STR("pool", ticket->pool->label),
			BH_INT("task", ticket->task_id), BH_STR("hint", hint));
}

/* Whether the calling thread, a thread of this pool, would wait for itself. */
static bool waits_for_itself(const struct bh_task *task)
{
	for (const struct bh_frame *frame = bh_worker_frame(); frame; frame = frame->outer)
		if (frame->task == task || (task->lane && frame->task->lane == task->lane))
			return true;
	return false;
}

/* What the calling thread, a thread of this pool, may run so that `task` comes about (SUP-7):
 * the task itself, or on an idle lane the one at its head, which may be one before it. Off the
 * queue; NULL when there is nothing to do but wait. */
static struct bh_task *steal_locked(struct bh_pool *pool, struct bh_task *task)
	BH_NEEDS(pool->lock);
static struct bh_task *steal_locked(struct bh_pool *pool, struct bh_task *task)
{
	if (task->state != BH_TASK_QUEUED || pool->cancelling)
		return NULL;
	if (task->lane)
		return task->lane->busy ? NULL : bh_lane_take_head_locked(pool, task->lane);
	bh_ready_remove_locked(pool, task);
	return task;
}

/* false: `until` has passed. */
static bool block_locked(struct bh_pool *pool, struct bh_task *task, bool helper,
			 struct bh_deadline until) BH_NEEDS(pool->lock);
static bool block_locked(struct bh_pool *pool, struct bh_task *task, bool helper,
			 struct bh_deadline until)
{
	struct bh_waiter waiter;
	bool in_time;

	bh_cond_init(&waiter.cond);
	bh_list_push_back(&task->waiters, &waiter.link);
	bh_list_init(&waiter.helper_link);
	if (helper)
		bh_list_push_back(&pool->helpers, &waiter.helper_link);
	in_time = bh_cond_wait(&waiter.cond, &pool->lock, until);
	bh_list_remove(&waiter.link);
	bh_list_remove(&waiter.helper_link);
	bh_cond_fini(&waiter.cond);
	return in_time;
}

static bh_status wait_locked(struct bh_pool *pool, struct bh_ticket *ticket,
			     struct bh_deadline until, struct bh_error *err) BH_NEEDS(pool->lock);
static bh_status wait_locked(struct bh_pool *pool, struct bh_ticket *ticket,
			     struct bh_deadline until, struct bh_error *err)
{
	const struct bh_pool_thread *self = bh_worker_self();
	bool ours = self && self->pool == pool;

	while (bh_ticket_outcome(ticket) == BH_OUTCOME_NONE) {
		/* It has no outcome, so its record lives; looked up anew after each time without
		 * the lock. */
		struct bh_task *task = bh_task_find_locked(pool, ticket->task_id);
		struct bh_task *next;

		if (ours && waits_for_itself(task))
			return raise_wait(err, -EDEADLK, "task.deadlock", ticket,
					  "a task cannot wait for its own lane, or for itself");
		if (bh_deadline_passed(until))
			return raise_wait(err, -ETIMEDOUT, "task.wait-timeout", ticket,
					  "it has no outcome yet");
		if (ours && task->state == BH_TASK_QUEUED && bh_worker_frame() &&
		    bh_worker_frame()->depth >= BH_INLINE_DEPTH_MAX)
			return raise_wait(err, -ELOOP, "task.recursion", ticket,
					  "tasks wait for tasks more than 64 deep");
		next = ours ? steal_locked(pool, task) : NULL;
		if (next)
			bh_worker_run_locked(pool, next);
		else
			(void)block_locked(pool, task, ours,
					   until); /* the loop looks at the clock */
	}
	return 0;
}

bh_status bh_ticket_wait(struct bh_ticket *ticket, struct bh_deadline until, struct bh_error *err)
{
	struct bh_pool *pool = ticket->pool;
	bh_status st;

	if (bh_ticket_outcome(ticket) != BH_OUTCOME_NONE)
		return 0;
	if (!pool)
		return bh_raise(err, -EINVAL, "ticket.not-submitted");
	if (bh_pool_is_forked())
		return bh_pool_raise_forked(pool, err);
	bh_mutex_lock(&pool->lock);
	st = wait_locked(pool, ticket, until, err);
	bh_mutex_unlock(&pool->lock);
	return st;
}
