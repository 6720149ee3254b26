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
	ticket->op_name = NULL;
	atomic_init(&ticket->claims, 1);
	ticket->result = (struct bh_value){ .type = BH_TYPE_NONE };
	ticket->cause = NULL;
	bh_error_clear(&ticket->error);
	ticket->root = NULL;
	atomic_init(&ticket->dependents, NULL);
	ticket->next_fired = NULL;
	ticket->notify = notify;
	ticket->free = free_fn;
	ticket->next = NULL;
	ticket->submitted_ns = ticket->started_ns = ticket->ended_ns = 0;
}

void bh_ticket_init_replay(struct bh_ticket *ticket, struct bh_ticket *ended,
			   struct bh_object *cause, void (*free_fn)(struct bh_ticket *))
{
	enum bh_outcome outcome = bh_ticket_outcome(ended);

	assert(outcome != BH_OUTCOME_NONE && outcome != BH_OUTCOME_DONE);
	bh_ticket_init(ticket, NULL, free_fn);
	ticket->task_id = ended->task_id;
	ticket->pool = ended->pool;
	ticket->op = ended->op;
	ticket->op_name = ended->op_name;
	ticket->cause = cause;
	ticket->error = ended->error;
	ticket->root = bh_ticket_ref(ended->root ? ended->root : ended);
	ticket->submitted_ns = ended->submitted_ns;
	ticket->started_ns = ended->started_ns;
	ticket->ended_ns = ended->ended_ns;
	atomic_store_explicit(&ticket->outcome, (uint32_t)outcome, memory_order_release);
	(void)!bh_ticket_close(ticket); /* nobody knows it yet: nothing comes after it */
}

struct bh_ticket *bh_ticket_ref(struct bh_ticket *ticket)
{
	atomic_fetch_add_explicit(&ticket->refs, 1, memory_order_relaxed);
	return ticket;
}

void bh_ticket_unref(struct bh_ticket *ticket)
{
	struct bh_ticket *root;

	/* Release on every drop, acquire by the last: `free` sees what all holders did. */
	if (!ticket || atomic_fetch_sub_explicit(&ticket->refs, 1, memory_order_acq_rel) != 1)
		return;
	root = bh_steal(&ticket->root);
	if (ticket->free)
		ticket->free(ticket);
	bh_ticket_unref(root); /* no deeper than this: a root is not poisoned itself */
}

void bh_ticket_claim(struct bh_ticket *ticket)
{
	/* Relaxed: who takes a claim has one already. */
	atomic_fetch_add_explicit(&ticket->claims, 1, memory_order_relaxed);
}

void bh_ticket_disclaim(struct bh_ticket *ticket)
{
	if (atomic_fetch_sub_explicit(&ticket->claims, 1, memory_order_acq_rel) != 1)
		return;
	bh_value_clear(&ticket->result);
	bh_object_unref(bh_steal(&ticket->cause));
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

	/* Never accepted, or the parent's: nothing to cancel. */
	if (!pool || bh_pool_is_forked())
		return true;
	if (bh_ticket_outcome(ticket) != BH_OUTCOME_NONE) {
		/* Perhaps since a first call with `trylock`; who else told it does this too. */
		if (!trylock)
			bh_ticket_fire(ticket);
		return true;
	}
	if (trylock) {
		if (!bh_mutex_trylock(&pool->lock))
			return false;
	} else {
		bh_mutex_lock(&pool->lock);
	}
	cancel_locked(pool, ticket, &after);
	bh_mutex_unlock(&pool->lock);
	if (trylock)
		return bh_aftermath_run_lockless(&after);
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

/* Whether the calling thread, a thread of this pool, runs `task`, or one of its lane. */
static bool is_own(const struct bh_task *task)
{
	for (const struct bh_frame *frame = bh_worker_frame(); frame; frame = frame->outer)
		if (frame->task == task || (task->lane && frame->task->lane == task->lane))
			return true;
	return false;
}

/* Puts a task on the list of those to look at, once a search. */
static void search_add(struct bh_task *task, uint64_t search, struct bh_task **todo)
{
	if (task->search == search)
		return;
	task->search = search;
	task->search_next = *todo;
	*todo = task;
}

/* What has to end before `task`: those before it on its lane, and those it comes after. */
static void search_before_locked(struct bh_pool *pool, const struct bh_task *task,
				 struct bh_task **todo) BH_NEEDS(pool->lock);
static void search_before_locked(struct bh_pool *pool, const struct bh_task *task,
				 struct bh_task **todo)
{
	struct bh_list *end = task->lane ? &task->lane->tasks : NULL;

	if (end && pool->n_blocked == 0) /* then only the head matters */
		search_add(bh_lane_head_locked(pool, task->lane), task->search, todo);
	for (struct bh_list *link = task->ready.link.prev;
	     pool->n_blocked > 0 && end && link != end; link = link->prev) {
		struct bh_task *earlier = bh_container_of(link, struct bh_task, ready.link);

		if (earlier->search == task->search)
			break; /* it looks at those before it itself */
		search_add(earlier, task->search, todo);
	}
	for (uint32_t i = 0; task->blocked && i < task->deps->n; i++) {
		const struct bh_ticket *before = task->deps->edges[i].before;

		/* Without an outcome its record lives. Another pool's is behind another lock: what
		 * it needs, that pool's own workers bring about. */
		if (before->pool == pool && bh_ticket_outcome(before) == BH_OUTCOME_NONE)
			search_add(bh_task_find_locked(pool, before->task_id), task->search, todo);
	}
}

static bool may_run(const struct bh_task *task)
{
	return task->state == BH_TASK_QUEUED && !task->blocked &&
	       (!task->lane || (!task->lane->busy && task->lane->tasks.next == &task->ready.link));
}

/* What the calling thread, a thread of this pool, may run so that `task` comes about (SUP-7): the
 * task itself, or one of those that have to end before it, in whatever way. NULL when there is none.
 * Since all of them have to end, one that the calling thread keeps from it is a deadlock. */
static struct bh_task *search_locked(struct bh_pool *pool, struct bh_task *task, bool *ret_own)
	BH_NEEDS(pool->lock);
static struct bh_task *search_locked(struct bh_pool *pool, struct bh_task *task, bool *ret_own)
{
	struct bh_task *todo = NULL, *found = NULL;

	search_add(task, ++pool->n_searches, &todo);
	*ret_own = false;
	while (todo) {
		struct bh_task *at = todo;

		todo = at->search_next;
		*ret_own |= is_own(at);
		if (!found && may_run(at))
			found = at;
		if (at->state == BH_TASK_QUEUED)
			search_before_locked(pool, at, &todo);
	}
	return found;
}

/* Off the queue, to be run by the calling thread. */
static void steal_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
static void steal_locked(struct bh_pool *pool, struct bh_task *task)
{
	if (task->lane)
		(void)bh_lane_take_head_locked(pool, task->lane); /* it is the head */
	else
		bh_ready_remove_locked(pool, task);
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
		struct bh_task *next = NULL;
		bool own = false;

		if (ours)
			next = search_locked(pool, task, &own);
		if (own)
			return raise_wait(err, -EDEADLK, "task.deadlock", ticket,
					  "a task cannot wait for itself, for its own lane, or for "
					  "what comes after those");
		if (bh_deadline_passed(until))
			return raise_wait(err, -ETIMEDOUT, "task.wait-timeout", ticket,
					  "it has no outcome yet");
		if (ours && task->state == BH_TASK_QUEUED && bh_worker_frame() &&
		    bh_worker_frame()->depth >= BH_INLINE_DEPTH_MAX)
			return raise_wait(err, -ELOOP, "task.recursion", ticket,
					  "tasks wait for tasks more than 64 deep");
		if (next && !pool->cancelling) {
			steal_locked(pool, next);
			bh_worker_run_locked(pool, next);
			continue;
		}
		(void)block_locked(pool, task, ours, until); /* the loop looks at the clock */
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
