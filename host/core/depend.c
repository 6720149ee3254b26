/* SPDX-License-Identifier: BSD-3-Clause */
/* depend - tasks that come after others: what they wait for, what lets them on, what poisons them.
 *
 * Each ticket has a stack of edges, one for each task that waits for its outcome. Who sets the
 * outcome then swaps the stack for a mark that closes it, and goes through what was in it, without a
 * lock but that of one waiting task's pool at a time. A push that finds the mark knows the outcome.
 *
 *   - outcome: release by its teller before the swap; who finds the mark, or was in the stack, is
 *     behind the swap and sees outcome, result, error and cause.
 *   - the stack: release by a push (the edge's fields), acquire and release by the swap.
 *   - n_open: acquire and release, so that who takes it to 0 is behind all other predecessors'
 *     tellers; the lock of the task's pool then hands all that to the worker that starts it.
 *   - inside: see enter().
 *
 * There are no cycles, so nothing waits for ever: a task comes after tasks that had been accepted
 * when it was submitted, and on its lane stands behind tasks that were accepted before it. So with
 * all tasks of the process in the order of their acceptance, each waits for earlier ones only, in
 * whatever pools and lanes, and the first without an outcome waits for none. (A task that waits
 * while it runs is another matter: SUP-7, ticket.c.)
 *
 * Thread: any. Blocks: no.
 * Keeps:  SUP-4 (what is accepted ends, also when what it comes after does not succeed), SUP-10. */
#include "config.h"

#include "host/core/pool_private.h"

#include <errno.h>

#define ROOT_TEXT 400		     /* bytes of a root's error in its dependents' errors */
#define DETACHED (UINT32_C(1) << 31) /* in bh_deps.inside */

static struct bh_edge closed; /* never looked into: an address that is nobody's edge */

/* ---- the block ------------------------------------------------------------------------------- */

static void deps_unref(struct bh_deps *deps)
{
	if (atomic_fetch_sub_explicit(&deps->refs, 1, memory_order_acq_rel) == 1)
		free(deps);
}

/* What it comes after is of no more interest: results may go. */
static void let_go(struct bh_deps *deps)
{
	if (!deps->held)
		return;
	deps->held = false;
	for (uint32_t i = 0; i < deps->n; i++) {
		struct bh_ticket *before = bh_steal(&deps->edges[i].before);

		bh_ticket_disclaim(before);
		bh_ticket_unref(before);
	}
}

bh_status bh_deps_new(struct bh_pool *pool, const struct bh_submission *submission,
		      struct bh_deps **ret_deps, struct bh_error *err)
{
	uint32_t n = submission->n_after;
	struct bh_deps *deps;

	*ret_deps = NULL;
	if (n == 0)
		return 0;
	deps = calloc(1, sizeof(*deps) + n * sizeof(deps->edges[0]));
	if (!deps)
		return bh_raise(err, -ENOMEM, "pool.alloc", BH_STR("pool", pool->label),
				BH_INT("after", n));
	atomic_init(&deps->refs, 1);
	atomic_init(&deps->n_open, n + 1);
	deps->pool = pool;
	deps->held = true;
	deps->n = n;
	for (uint32_t i = 0; i < n; i++) {
		assert(submission->after[i]
			       ->pool); /* accepted, or it would never have an outcome */
		deps->edges[i].deps = deps;
		deps->edges[i].before = bh_ticket_ref(submission->after[i]);
		bh_ticket_claim(submission->after[i]);
	}
	*ret_deps = deps;
	return 0;
}

void bh_deps_release(struct bh_deps *deps)
{
	if (!deps)
		return;
	let_go(deps);
	deps_unref(deps);
}

/* ---- the pool behind it ---------------------------------------------------------------------- */

/* A predecessor, of another pool perhaps, may end long after the task and its pool are gone. So who
 * comes from there may look into the pool only while the task has not ended; and one that is inside
 * when it does end keeps the pool: it is not freed while it is counted in n_deps, which whoever is
 * last takes back, the task's end or the one inside. */
static bool enter(struct bh_deps *deps)
{
	uint32_t inside = atomic_load_explicit(&deps->inside, memory_order_relaxed);

	do
		if (inside & DETACHED)
			return false;
	while (!atomic_compare_exchange_weak_explicit(&deps->inside, &inside, inside + 1,
						      memory_order_acquire, memory_order_relaxed));
	return true;
}

static void drop_pool(struct bh_pool *pool)
{
	atomic_fetch_sub_explicit(&pool->n_deps, 1, memory_order_release);
}

static void leave(struct bh_deps *deps)
{
	if (atomic_fetch_sub_explicit(&deps->inside, 1, memory_order_acq_rel) == (DETACHED | 1))
		drop_pool(deps->pool);
}

void bh_deps_detach_locked(struct bh_pool *pool, struct bh_task *task)
{
	struct bh_deps *deps = task->deps;

	if (atomic_fetch_or_explicit(&deps->inside, DETACHED, memory_order_acq_rel) == 0)
		drop_pool(pool);
}

/* ---- poison ---------------------------------------------------------------------------------- */

/* The first cause is kept: `root` failed by itself, `before` is what the task comes after directly.
 * Its error as a text comes last, so that nothing else has to make room for it. */
static void raise_dependent(const struct bh_task *task, const struct bh_ticket *before,
			    const struct bh_ticket *root, struct bh_error *ret_error)
{
	char text[ROOT_TEXT];

	bh_error_clear(ret_error);
	bh_raise(ret_error, -EPIPE, "task.dependent", BH_STR("root_code", root->error.id),
		 BH_STR("root_outcome", bh_outcome_name(bh_ticket_outcome(root))),
		 BH_STR("root_pool", root->pool->label), BH_STR("root_op", root->op_name),
		 BH_INT("root_task", root->task_id));
	if (before->task_id != root->task_id)
		bh_note(ret_error, -EPIPE, BH_STR("after_op", before->op_name),
			BH_INT("after_task", before->task_id));
	bh_error_render(&root->error, text, sizeof(text));
	bh_note(ret_error, -EPIPE, BH_STR("pool", task->pool->label), BH_STR("op", task->op_name),
		BH_INT("task", task->id), BH_STR("root_text", text));
}

static void poison_locked(struct bh_pool *pool, struct bh_task *task, struct bh_ticket *before,
			  struct bh_aftermath *after) BH_NEEDS(pool->lock);
static void poison_locked(struct bh_pool *pool, struct bh_task *task, struct bh_ticket *before,
			  struct bh_aftermath *after)
{
	struct bh_ticket *root = before->root ? before->root : before;
	struct bh_verdict verdict = { .outcome = BH_OUTCOME_FAILED };
	struct bh_error error;

	raise_dependent(task, before, root, &error);
	verdict.error = &error;
	verdict.root = bh_ticket_ref(root);
	verdict.cause = before->cause ? bh_object_ref(before->cause) : NULL; /* by our claim */
	bh_ready_remove_locked(pool, task);
	bh_task_drop_locked(pool, task, &verdict, after);
}

/* ---- arming ---------------------------------------------------------------------------------- */

/* False: the ticket has its outcome already. */
static bool push(struct bh_edge *edge)
{
	_Atomic(struct bh_edge *) *stack = &edge->before->dependents;
	struct bh_edge *head = atomic_load_explicit(stack, memory_order_acquire);

	do {
		if (head == &closed)
			return false;
		edge->next = head;
	} while (!atomic_compare_exchange_weak_explicit(stack, &head, edge, memory_order_release,
							memory_order_acquire));
	return true;
}

void bh_deps_arm_locked(struct bh_pool *pool, struct bh_task *task, struct bh_aftermath *after)
{
	struct bh_deps *deps = task->deps;
	struct bh_ticket *failed = NULL;

	atomic_fetch_add_explicit(&pool->n_deps, 1, memory_order_relaxed);
	deps->task_id = task->id;
	for (uint32_t i = 0; i < deps->n; i++) {
		struct bh_edge *edge = &deps->edges[i];

		atomic_fetch_add_explicit(&deps->refs, 1, memory_order_relaxed);
		if (push(edge))
			continue; /* from now on its teller may wait for our lock, to let it on */
		deps_unref(deps);
		if (bh_ticket_outcome(edge->before) == BH_OUTCOME_DONE)
			atomic_fetch_sub_explicit(&deps->n_open, 1, memory_order_acq_rel);
		else if (!failed)
			failed = edge->before;
	}
	if (failed)
		poison_locked(pool, task, failed, after);
	else if (atomic_fetch_sub_explicit(&deps->n_open, 1, memory_order_acq_rel) == 1)
		bh_ready_unblock_locked(pool, task);
}

/* ---- firing ---------------------------------------------------------------------------------- */

/* Tickets that were poisoned and have not been fired; a queue rather than a recursion, since chains
 * may be as long as the pools' queues. Each is told once, so it stands in one queue once. */
struct firing {
	struct bh_ticket *first, **last;
};

static void settle_locked(struct bh_pool *pool, const struct bh_deps *deps,
			  struct bh_ticket *before, struct bh_aftermath *after)
	BH_NEEDS(pool->lock);
static void settle_locked(struct bh_pool *pool, const struct bh_deps *deps,
			  struct bh_ticket *before, struct bh_aftermath *after)
{
	struct bh_task *task = bh_task_find_locked(pool, deps->task_id);

	if (!task || task->state != BH_TASK_QUEUED || !task->blocked)
		return; /* it has ended otherwise meanwhile */
	if (bh_ticket_outcome(before) == BH_OUTCOME_DONE)
		bh_ready_unblock_locked(pool, task);
	else if (!pool->cancelling) /* else all that is queued is being cancelled, this too */
		poison_locked(pool, task, before, after);
}

static void resolve(struct bh_edge *edge, struct bh_ticket *before, struct firing *firing)
{
	struct bh_deps *deps = edge->deps;
	struct bh_aftermath after = { .args = NULL };
	bool done = bh_ticket_outcome(before) == BH_OUTCOME_DONE;

	if (done && atomic_fetch_sub_explicit(&deps->n_open, 1, memory_order_acq_rel) != 1) {
		deps_unref(deps);
		return;
	}
	if (enter(deps)) {
		struct bh_pool *pool = deps->pool;

		bh_mutex_lock(&pool->lock);
		settle_locked(pool, deps, before, &after);
		bh_mutex_unlock(&pool->lock);
		leave(deps);
	}
	deps_unref(deps);
	bh_aftermath_release(&after);
	if (!after.ticket)
		return;
	after.ticket->next_fired = NULL;
	*firing->last = after.ticket;
	firing->last = &after.ticket->next_fired;
}

/* What was in the stack, in the order of the pushes, so that tasks get ready in the order in which
 * they were submitted. */
static struct bh_edge *take(struct bh_ticket *ticket)
{
	struct bh_edge *edge =
		atomic_exchange_explicit(&ticket->dependents, &closed, memory_order_acq_rel);
	struct bh_edge *first = NULL;

	while (edge && edge != &closed) {
		struct bh_edge *next = edge->next;

		edge->next = first;
		first = edge;
		edge = next;
	}
	return first;
}

static void fire_one(struct bh_ticket *ticket, struct firing *firing)
{
	struct bh_edge *edge = take(ticket);

	while (edge) {
		struct bh_edge *next = edge->next; /* resolve() may free the block it lies in */

		resolve(edge, ticket, firing);
		edge = next;
	}
}

void bh_ticket_fire(struct bh_ticket *ticket)
{
	struct firing firing = { .first = NULL };

	firing.last = &firing.first;
	fire_one(ticket, &firing);
	while (firing.first) {
		struct bh_ticket *next = firing.first;

		fire_one(next,
			 &firing); /* may append behind `next`, so it is unlinked afterwards */
		firing.first = next->next_fired;
		if (!firing.first)
			firing.last = &firing.first;
		bh_ticket_unref(next);
	}
}

bool bh_ticket_close(struct bh_ticket *ticket)
{
	struct bh_edge *none = NULL;

	return atomic_compare_exchange_strong_explicit(&ticket->dependents, &none, &closed,
						       memory_order_acq_rel,
						       memory_order_acquire) ||
	       none == &closed;
}

/* ---- values ---------------------------------------------------------------------------------- */

struct filling {
	struct bh_task *task;
	bh_accept_fn accept;
	void *arg;
};

static bh_status fill_value(const struct filling *filling, uint32_t parameter, bool element,
			    struct bh_value *value)
{
	struct bh_task *task = filling->task;
	const struct bh_ticket *from;
	bh_status st;

	if (value->type != BH_TYPE_AFTER)
		return 0;
	assert(value->as.handle < task->deps->n);
	from = task->deps->edges[value->as.handle].before;
	st = bh_value_copy(&from->result, value);
	if (st < 0)
		return bh_raise(bh_task_error(task), st, "task.argument",
				BH_INT("parameter", parameter), BH_INT("from_task", from->task_id),
				BH_STR("reason", "no memory to copy the result"));
	return filling->accept(filling->arg, task, parameter, element, from, value);
}

static bh_status fill_argument(const struct filling *filling, uint32_t parameter,
			       struct bh_value *value)
{
	bh_status st = 0;

	if (value->type != BH_TYPE_LIST)
		return fill_value(filling, parameter, false, value);
	for (uint64_t i = 0; st == 0 && i < value->as.list.count; i++)
		/* The host's own memory: const is for those who are handed the list. */
		st = fill_value(filling, parameter, true,
				(struct bh_value *)&value->as.list.items[i]);
	return st;
}

bh_status bh_task_fill(struct bh_task *task, bh_accept_fn accept, void *arg)
{
	const struct filling filling = { .task = task, .accept = accept, .arg = arg };
	bh_status st = 0;

	if (!task->deps || !task->deps->held)
		return 0;
	for (uint32_t i = 0; st == 0 && task->args && i < task->args->n; i++)
		st = fill_argument(&filling, i, &task->args->v[i]);
	let_go(task->deps); /* it may run for long: it does not keep what it does not read */
	return st;
}
