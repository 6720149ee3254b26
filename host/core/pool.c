/* SPDX-License-Identifier: BSD-3-Clause */
/* pool - makes and frees pools, admits submissions, and shows what is going on. See pool.h; the
 * other files of a pool are listed in pool_private.h.
 *
 * Keeps: RI-4 (admission looks at nothing of its caller and changes nothing), RI-5, SUP-4,
 *        SUP-8, EXIT-5. */
#include "config.h"

#include "host/core/pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/core/log.h"
#include "host/core/pool_private.h"

#define WORKERS_MAX 1024u
#define PROGRESS_MAX 64u
#define QUEUE_MAX (1u << 20)
#define POOLS_MAX INT16_MAX /* ids have 16 bits in a task's number, which stays positive */

/* Ids are the process's, so this has no object to hang off. A: relaxed, only uniqueness matters. */
static _Atomic uint32_t last_id;
/* Set once, in a forked child, from a fork handler, which has no argument. A: relaxed. */
static _Atomic bool forked;
/* Pools that could not be freed, see bh_pool_free(). A: a stack that is only pushed to. */
static _Atomic(struct bh_pool *) kept;

const char *bh_pool_state_name(enum bh_pool_state state)
{
	switch (state) {
	case BH_POOL_NEW:
		return "new";
	case BH_POOL_BUILDING:
		return "building";
	case BH_POOL_READY:
		return "ready";
	case BH_POOL_DRAINING:
		return "draining";
	case BH_POOL_EXITING:
		return "exiting";
	case BH_POOL_CLEAN:
		return "clean";
	case BH_POOL_FAILED:
		return "failed";
	case BH_POOL_BUILD_FAILED:
		return "build-failed";
	case BH_POOL_WEDGED:
		return "wedged";
	}
	bh_unreachable();
}

const char *bh_outcome_name(enum bh_outcome outcome)
{
	switch (outcome) {
	case BH_OUTCOME_NONE:
		return "none";
	case BH_OUTCOME_DONE:
		return "done";
	case BH_OUTCOME_FAILED:
		return "failed";
	case BH_OUTCOME_CANCELLED:
		return "cancelled";
	case BH_OUTCOME_DEADLINE:
		return "deadline";
	case BH_OUTCOME_ABANDONED:
		return "abandoned";
	}
	bh_unreachable();
}

/* ---- fork ------------------------------------------------------------------------------------ */

void bh_pool_forked(void)
{
	atomic_store_explicit(&forked, true, memory_order_relaxed);
}

/* Looked at before any lock of a pool is touched: the thread that held it does not exist here. */
bool bh_pool_is_forked(void)
{
	return atomic_load_explicit(&forked, memory_order_relaxed);
}

bh_status bh_pool_raise_forked(const struct bh_pool *pool, struct bh_error *err)
{
	return bh_raise(err, -ECHILD, "pool.forked", BH_STR("pool", pool->label),
			BH_STR("hint", "pools do not survive a fork; start a new process instead"));
}

/* ---- make and free --------------------------------------------------------------------------- */

static bool label_is_good(const char *label)
{
	static const char accepted[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
	size_t length = label ? strlen(label) : 0;

	return length > 0 && length < BH_LABEL_MAX && label[0] >= 'a' && label[0] <= 'z' &&
	       strspn(label, accepted) == length;
}

static bh_status check_range(const struct bh_pool_config *config, const char *key, uint32_t value,
			     uint32_t min, uint32_t max, struct bh_error *err)
{
	if (value >= min && value <= max)
		return 0;
	return bh_raise(err, -EINVAL, "pool.config", BH_STR("pool", config->label),
			BH_STR("key", key), BH_INT("value", value), BH_INT("min", min),
			BH_INT("max", max));
}

static bh_status check_config(const struct bh_pool_config *config, struct bh_error *err)
{
	const struct bh_backend *backend = config->backend;
	bh_status st;

	if (!label_is_good(config->label))
		return bh_raise(err, -EINVAL, "pool.config", BH_STR("key", "label"),
				BH_STR("value", config->label),
				BH_STR("accepted", "a-z, then a-z 0-9 _ -, at most 31 bytes"));
	st = check_range(config, "workers", config->n_workers, 1, WORKERS_MAX, err);
	if (st == 0)
		st = check_range(config, "progress_threads", config->n_progress, 0, PROGRESS_MAX,
				 err);
	if (st == 0)
		st = check_range(config, "queue", config->queue, 1, QUEUE_MAX, err);
	if (st == 0)
		st = check_range(config, "reserve", config->reserve, 0, QUEUE_MAX, err);
	if (st < 0)
		return st;
	if (config->has_nice && (config->nice < -20 || config->nice > 19))
		return bh_raise(err, -EINVAL, "pool.config", BH_STR("pool", config->label),
				BH_STR("key", "nice"), BH_INT("value", config->nice),
				BH_INT("min", -20), BH_INT("max", 19));
	if (config->cpus && bh_cpus_count(config->cpus) == 0)
		return bh_raise(err, -EINVAL, "pool.config", BH_STR("pool", config->label),
				BH_STR("key", "cpus"), BH_STR("accepted", "at least one CPU"));
	if (!backend || !backend->open || !backend->close || !backend->run || !backend->op_name ||
	    (config->n_progress > 0 && !backend->progress))
		return bh_raise(err, -EINVAL, "pool.backend", BH_STR("pool", config->label),
				BH_STR("reason", "a callback that is required is missing"));
	return 0;
}

static bh_status take_id(uint32_t *ret_id)
{
	uint32_t id = atomic_load_explicit(&last_id, memory_order_relaxed);

	do
		if (id == POOLS_MAX)
			return -EOVERFLOW;
	while (!atomic_compare_exchange_weak_explicit(&last_id, &id, id + 1, memory_order_relaxed,
						      memory_order_relaxed));
	*ret_id = id + 1;
	return 0;
}

static void init_threads(struct bh_pool *pool)
{
	for (uint32_t i = 0; i < pool->n_threads; i++) {
		struct bh_pool_thread *thread = &pool->threads[i];
		char suffix[16];

		thread->pool = pool;
		thread->is_worker = i < pool->n_workers;
		thread->index = thread->is_worker ? i : i - pool->n_workers;
		snprintf(suffix, sizeof(suffix), "%s%u", thread->is_worker ? "" : "p",
			 thread->index);
		bh_thread_name_pool(thread->name, pool->label, pool->id, suffix);
	}
}

static void init_tasks(struct bh_pool *pool)
{
	for (uint32_t i = 0; i < pool->n_tasks; i++) {
		struct bh_task *task = &pool->tasks[i];

		task->pool = pool;
		task->heap_index = BH_NOT_IN_HEAP;
		bh_list_init(&task->ready.link);
		bh_list_init(&task->all);
		bh_list_init(&task->cancel_link);
		bh_list_init(&task->waiters);
		bh_list_push_back(&pool->free, &task->all);
	}
}

static void init_lists(struct bh_pool *pool)
{
	bh_list_init(&pool->ready);
	bh_list_init(&pool->free);
	bh_list_init(&pool->queued);
	bh_list_init(&pool->active);
	bh_list_init(&pool->lost);
	bh_list_init(&pool->cancels);
	bh_list_init(&pool->helpers);
}

static void init_sync(struct bh_pool *pool)
{
	bh_mutex_init(&pool->lock);
	bh_cond_init(&pool->work);
	bh_cond_init(&pool->attention);
	bh_cond_init(&pool->changed);
	bh_cond_init(&pool->room);
}

static struct bh_pool *release(struct bh_pool *pool)
{
	free(pool->threads);
	free(pool->op_times);
	free(pool->tasks);
	free(pool->heap);
	free(pool);
	return NULL;
}

bh_status bh_pool_new(const struct bh_pool_config *config, struct bh_pool **ret_pool,
		      struct bh_error *err)
{
	bh_status st = check_config(config, err);
	struct bh_pool *pool;

	if (st < 0)
		return st;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return bh_raise(err, -ENOMEM, "pool.alloc", BH_STR("pool", config->label));
	snprintf(pool->label, sizeof(pool->label), "%s", config->label);
	pool->n_workers = config->n_workers;
	pool->n_progress = config->n_progress;
	pool->n_threads = config->n_workers + config->n_progress;
	pool->queue = config->queue;
	pool->reserve = config->reserve;
	pool->has_cpus = config->cpus;
	if (config->cpus)
		pool->cpus = *config->cpus;
	pool->has_nice = config->has_nice;
	pool->nice = config->nice;
	/* Places are bounded by queue + reserve at admission; beyond them there are only the
	 * outermost tasks of the workers, one each (see bh_task_start_locked). */
	pool->n_tasks = config->queue + config->reserve + config->n_workers;
	pool->backend = config->backend;
	pool->backend_self = config->backend_self;
	pool->announce = config->announce;
	pool->announce_arg = config->announce_arg;
	pool->drain_until = pool->cancel_until = BH_NEVER; /* nobody has asked for the end yet */
	pool->stop_fd = -1;
	pool->step = "new";
	pool->threads = calloc(pool->n_threads, sizeof(*pool->threads));
	pool->tasks = calloc(pool->n_tasks, sizeof(*pool->tasks));
	pool->heap = calloc(pool->n_tasks, sizeof(*pool->heap));
	pool->n_ops = config->n_ops;
	if (pool->n_ops > 0)
		pool->op_times = calloc(pool->n_ops, sizeof(*pool->op_times));
	if (!pool->threads || !pool->tasks || !pool->heap || (pool->n_ops > 0 && !pool->op_times)) {
		release(pool);
		return bh_raise(err, -ENOMEM, "pool.alloc", BH_STR("pool", config->label),
				BH_INT("queue", config->queue));
	}
	st = take_id(&pool->id);
	if (st < 0) {
		release(pool);
		return bh_raise(err, st, "pool.ids", BH_STR("pool", config->label),
				BH_INT("max", POOLS_MAX));
	}
	init_sync(pool);
	init_lists(pool);
	init_threads(pool);
	init_tasks(pool);
	*ret_pool = pool;
	return 0;
}

/* Something of the pool may still be used: its memory outlives the doubt (SUP-10). */
static void keep_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static void keep_locked(struct bh_pool *pool)
{
	/* The one that was given up first is named; the others differ in little. */
	const struct bh_task *lost =
		bh_list_empty(&pool->lost) ? NULL
					   : bh_container_of(pool->lost.next, struct bh_task, all);

	bh_log(BH_LOG_WARNING, "pool", "a pool's memory is kept: not all of it has ended",
	       BH_STR("pool", pool->label),
	       BH_STR("state", bh_pool_state_name(bh_pool_state_now(pool))),
	       BH_INT("joined", pool->joined), BH_INT("tasks", pool->n_live),
	       BH_INT("abandoned_alive", pool->books.abandoned_alive),
	       BH_STR("op", lost ? lost->op_name : ""), BH_INT("task", lost ? lost->id : 0),
	       BH_INT("lanes", atomic_load(&pool->n_lanes)));
	/* Reachable, so that a leak checker sees that it is meant. */
	pool->next_kept = atomic_load(&kept);
	while (!atomic_compare_exchange_weak(&kept, &pool->next_kept, pool))
		;
}

static bool nobody_uses_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static bool nobody_uses_locked(struct bh_pool *pool)
{
	enum bh_pool_state state = bh_pool_state_now(pool);
	bool ended = state == BH_POOL_NEW ||
		     (bh_pool_state_is_end(state) && (!pool->has_supervisor || pool->joined));

	return ended && pool->n_live == 0 && atomic_load(&pool->n_lanes) == 0 &&
	       atomic_load_explicit(&pool->n_deps, memory_order_acquire) == 0;
}

struct bh_pool *bh_pool_free(struct bh_pool *pool)
{
	bool unused;

	if (!pool || bh_pool_is_forked())
		return NULL;
	bh_mutex_lock(&pool->lock);
	unused = nobody_uses_locked(pool);
	if (!unused)
		keep_locked(pool);
	bh_mutex_unlock(&pool->lock);
	if (!unused)
		return NULL;
	bh_cond_fini(&pool->room);
	bh_cond_fini(&pool->changed);
	bh_cond_fini(&pool->attention);
	bh_cond_fini(&pool->work);
	bh_mutex_fini(&pool->lock);
	return release(pool);
}

/* ---- admission ------------------------------------------------------------------------------- */

/* What a refusal is explained with; taken under the lock, put into words without it. */
struct refusal {
	enum bh_pool_state state;
	uint32_t queued, pending;
	char cause[sizeof(((struct bh_error *)NULL)->id)];
};

/* What a submission needs besides the lock. `deps` passes to the task on acceptance. */
struct request {
	const struct bh_submission *submission;
	const char *op_name;
	struct bh_deps *deps;
	struct refusal refusal;
	struct bh_aftermath after; /* of a task that came after one that had failed */
};

static enum bh_admission admit_locked(struct bh_pool *pool, struct request *request)
	BH_NEEDS(pool->lock);
static enum bh_admission admit_locked(struct bh_pool *pool, struct request *request)
{
	const struct bh_submission *submission = request->submission;
	struct refusal *refusal = &request->refusal;
	uint32_t places = pool->queue + (submission->flags & BH_SUBMIT_CLEANUP ? pool->reserve : 0);

	if (bh_pool_state_now(pool) == BH_POOL_READY && pool->n_places < places) {
		bh_task_accept_locked(pool, submission, request->op_name, bh_now_ns(),
				      bh_steal(&request->deps), &request->after);
		return BH_ACCEPTED;
	}
	refusal->state = bh_pool_state_now(pool);
	refusal->queued = pool->books.queued;
	refusal->pending = pool->books.pending;
	memcpy(refusal->cause, pool->cause.id, sizeof(refusal->cause));
	return refusal->state == BH_POOL_READY ? BH_OVERLOADED : BH_CLOSED;
}

static void explain(const struct bh_pool *pool, const struct bh_submission *submission,
		    enum bh_admission admission, const struct refusal *refusal,
		    struct bh_error *err)
{
	bool cleanup = submission->flags & BH_SUBMIT_CLEANUP;

	switch (admission) {
	case BH_ACCEPTED:
		return;
	case BH_OVERLOADED:
		(void)bh_raise(err, -EAGAIN, "pool.overloaded", BH_STR("pool", pool->label),
			       BH_INT("queue", pool->queue),
			       BH_INT("reserve", cleanup ? pool->reserve : 0),
			       BH_INT("queued", refusal->queued),
			       BH_INT("pending", refusal->pending),
			       BH_STR("hint", "wait for room, or submit less"));
		return;
	case BH_CLOSED:
		(void)bh_raise(err, -ESHUTDOWN, "pool.closed", BH_STR("pool", pool->label),
			       BH_STR("state", bh_pool_state_name(refusal->state)));
		if (refusal->cause[0])
			(void)bh_note(err, -ESHUTDOWN, BH_STR("cause", refusal->cause));
		return;
	case BH_FORKED:
		(void)bh_pool_raise_forked(pool, err);
		return;
	case BH_BUSY:
		(void)bh_raise(err, -EAGAIN, "pool.busy", BH_STR("pool", pool->label),
			       BH_STR("hint", "submit again where waiting for a lock is allowed"));
		return;
	}
	bh_unreachable();
}

static const char *op_name_of(const struct bh_pool *pool, uint32_t op)
{
	const char *name = pool->backend->op_name(pool->backend_self, op);

	return name ? name : "unknown";
}

/* False: refused already, as `*ret_admission` and the error say. */
static bool request_begin(struct bh_pool *pool, const struct bh_submission *submission,
			  struct request *request, enum bh_admission *ret_admission,
			  struct bh_error *err)
{
	assert(!submission->lane || submission->lane->pool == pool);
	*request = (struct request){ .submission = submission,
				     .op_name = op_name_of(pool, submission->op) };
	*ret_admission = BH_FORKED;
	if (bh_pool_is_forked()) { /* EXIT-5 */
		explain(pool, submission, BH_FORKED, &request->refusal, err);
		return false;
	}
	*ret_admission = BH_OVERLOADED; /* no memory is no room */
	return bh_deps_new(pool, submission, &request->deps, err) == 0;
}

/* Without the lock. */
static enum bh_admission request_end(struct bh_pool *pool, struct request *request,
				     enum bh_admission admission, struct bh_error *err)
{
	bh_deps_release(request->deps);
	if (admission == BH_ACCEPTED)
		bh_aftermath_run(&request->after); /* takes no lock: nobody knows the task yet */
	else
		explain(pool, request->submission, admission, &request->refusal, err);
	return admission;
}

enum bh_admission bh_pool_submit(struct bh_pool *pool, const struct bh_submission *submission,
				 struct bh_error *err)
{
	struct request request;
	enum bh_admission admission;

	if (!request_begin(pool, submission, &request, &admission, err))
		return admission;
	if (!(submission->flags & BH_SUBMIT_TRYLOCK))
		bh_mutex_lock(&pool->lock);
	else if (!bh_mutex_trylock(&pool->lock))
		return request_end(pool, &request, BH_BUSY, err);
	admission = admit_locked(pool, &request);
	pool->books.refused += admission == BH_OVERLOADED;
	bh_mutex_unlock(&pool->lock);
	return request_end(pool, &request, admission, err);
}

enum bh_admission bh_pool_submit_wait(struct bh_pool *pool, const struct bh_submission *submission,
				      struct bh_deadline until, struct bh_error *err)
{
	struct request request;
	enum bh_admission admission;
	bool in_time = true;

	if (!request_begin(pool, submission, &request, &admission, err))
		return admission;
	bh_mutex_lock(&pool->lock);
	for (;;) {
		admission = admit_locked(pool, &request);
		if (admission != BH_OVERLOADED || !in_time)
			break;
		pool->n_room_waiters++;
		in_time = bh_cond_wait(&pool->room, &pool->lock,
				       until); /* once too late: one more try */
		pool->n_room_waiters--;
	}
	pool->books.refused += admission == BH_OVERLOADED;
	bh_mutex_unlock(&pool->lock);
	return request_end(pool, &request, admission, err);
}

/* ---- looking --------------------------------------------------------------------------------- */

const char *bh_pool_label(const struct bh_pool *pool)
{
	return pool->label;
}

uint32_t bh_pool_id(const struct bh_pool *pool)
{
	return pool->id;
}

uint32_t bh_pool_workers(const struct bh_pool *pool)
{
	return pool->n_workers;
}

void *bh_pool_backend_self(const struct bh_pool *pool)
{
	return pool->backend_self;
}

enum bh_pool_state bh_pool_state(struct bh_pool *pool)
{
	return bh_pool_state_now(pool);
}

uint64_t bh_pool_op_times(const struct bh_pool *pool, uint32_t op,
			  struct bh_histogram_counts *counts)
{
	assert(op < pool->n_ops);
	bh_histogram_collect(&pool->op_times[op].histogram, counts);
	return atomic_load_explicit(&pool->op_times[op].total_ns, memory_order_relaxed);
}

void bh_pool_books(struct bh_pool *pool, struct bh_pool_books *ret_books)
{
	*ret_books = (struct bh_pool_books){ .submitted = 0 };
	if (bh_pool_is_forked())
		return;
	bh_mutex_lock(&pool->lock);
	*ret_books = pool->books;
	bh_mutex_unlock(&pool->lock);
}

bool bh_pool_cause(struct bh_pool *pool, struct bh_error *ret_cause)
{
	bool found;

	if (bh_pool_is_forked())
		return false;
	bh_mutex_lock(&pool->lock);
	found = bh_error_is_set(&pool->cause);
	if (found)
		*ret_cause = pool->cause;
	bh_mutex_unlock(&pool->lock);
	return found;
}

/* A task may have taken others in, which its thread runs now. */
static const struct bh_pool_thread *thread_of_locked(const struct bh_pool *pool,
						     const struct bh_task *task)
	BH_NEEDS(pool->lock);
static const struct bh_pool_thread *thread_of_locked(const struct bh_pool *pool,
						     const struct bh_task *task)
{
	if (task->state != BH_TASK_RUNNING)
		return NULL;
	for (uint32_t i = 0; i < pool->n_threads; i++)
		for (const struct bh_task *at = pool->threads[i].task; at; at = at->outer)
			if (at == task)
				return &pool->threads[i];
	return NULL;
}

static void see_task(const struct bh_task *task, const struct bh_pool_thread *thread,
		     struct bh_task_sight *ret_sight)
{
	*ret_sight = (struct bh_task_sight){ .task_id = task->id,
					     .started_ns = task->started_ns,
					     .op = task->op_name,
					     .tid = thread ? thread->tid : 0 };
	if (thread)
		memcpy(ret_sight->thread, thread->name, sizeof(ret_sight->thread));
}

uint32_t bh_pool_overdue_tasks(struct bh_pool *pool, uint64_t before_ns,
			       struct bh_task_sight *ret_sights, uint32_t room)
{
	uint32_t n = 0;

	if (bh_pool_is_forked())
		return 0;
	bh_mutex_lock(&pool->lock);
	/* They are in the order of their starts: one that is young ends the search. */
	for (const struct bh_list *link = pool->active.next; link != &pool->active && n < room;
	     link = link->next) {
		const struct bh_task *task = bh_container_of(link, struct bh_task, all);

		if (task->started_ns >= before_ns)
			break;
		see_task(task, thread_of_locked(pool, task), &ret_sights[n++]);
	}
	bh_mutex_unlock(&pool->lock);
	return n;
}

bool bh_pool_task_of_thread(struct bh_pool *pool, uint32_t tid, struct bh_task_sight *ret_sight)
{
	bool found = false;

	if (bh_pool_is_forked())
		return false;
	bh_mutex_lock(&pool->lock);
	for (uint32_t i = 0; i < pool->n_threads && !found; i++) {
		const struct bh_pool_thread *thread = &pool->threads[i];

		found = tid != 0 && thread->tid == tid && thread->task;
		if (found)
			see_task(thread->task, thread, ret_sight);
	}
	bh_mutex_unlock(&pool->lock);
	return found;
}

/* A thread is worth showing while it is in code of the backend that it should come back from. */
static bool is_inside_locked(const struct bh_pool *pool, const struct bh_pool_thread *thread)
	BH_NEEDS(pool->lock);
static bool is_inside_locked(const struct bh_pool *pool, const struct bh_pool_thread *thread)
{
	switch (thread->step) {
	case BH_THREAD_NONE:
	case BH_THREAD_ENDED:
		return false;
	case BH_THREAD_STARTING:
	case BH_THREAD_STOPPING:
		return true;
	case BH_THREAD_SERVING:
		return thread->task || (!thread->is_worker && pool->progress_told);
	}
	bh_unreachable();
}

/* Workers first. `sights` has room for every thread. */
uint32_t bh_pool_see_threads_locked(struct bh_pool *pool, struct bh_thread_sight *sights)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < pool->n_threads; i++) {
		const struct bh_pool_thread *thread = &pool->threads[i];
		const struct bh_task *task = thread->task;
		struct bh_thread_sight *sight;

		if (!is_inside_locked(pool, thread))
			continue;
		sight = &sights[n++];
		*sight = (struct bh_thread_sight){ .tid = thread->tid,
						   .index = thread->index,
						   .is_worker = thread->is_worker,
						   .step = thread->step,
						   .since_ns = thread->since_ns };
		memcpy(sight->name, thread->name, sizeof(sight->name));
		if (!task)
			continue;
		sight->op = task->op_name;
		sight->task_id = task->id;
		sight->cancelled = atomic_load_explicit(&task->cancelled, memory_order_relaxed);
	}
	return n;
}

static void set_count(json_t *object, const char *key, uint64_t count)
{
	json_object_set_new(object, key, json_integer((json_int_t)count));
}

static const char *step_name(enum bh_thread_step step, bool is_worker)
{
	switch (step) {
	case BH_THREAD_NONE:
		return "none";
	case BH_THREAD_STARTING:
		return is_worker ? "worker_start" : "progress";
	case BH_THREAD_SERVING:
		return is_worker ? "run" : "progress";
	case BH_THREAD_STOPPING:
		return "worker_stop";
	case BH_THREAD_ENDED:
		return "ended";
	}
	bh_unreachable();
}

const char *bh_thread_step_name(const struct bh_pool_thread *thread)
{
	return step_name(thread->step, thread->is_worker);
}

/* What does not apply is left out: "worker" of a progress thread, "op" and "task" outside of a
 * task. */
json_t *bh_pool_render_sight(const struct bh_thread_sight *sight, uint64_t now_ns)
{
	double since_s =
		now_ns > sight->since_ns ? (double)(now_ns - sight->since_ns) / BH_NS_PER_S : 0.0;
	json_t *object =
		json_pack("{s:s, s:i, s:s, s:f, s:b}", "thread", sight->name, "tid",
			  (int)sight->tid, "step", step_name(sight->step, sight->is_worker),
			  "since_s", since_s, "cancelled", (int)sight->cancelled);

	if (sight->is_worker)
		set_count(object, "worker", sight->index);
	if (sight->op) {
		json_object_set_new(object, "op", json_string(sight->op));
		set_count(object, "task", sight->task_id);
	}
	return object;
}

struct snapshot {
	enum bh_pool_state state;
	struct bh_pool_books books;
	bool has_cause;
	struct bh_error cause;
	uint32_t n_sights;
	uint64_t now_ns;
};

static json_t *render_cause(const struct snapshot *snapshot)
{
	char text[1024];
	json_t *facts;

	if (!snapshot->has_cause)
		return json_null();
	facts = json_object();
	for (unsigned i = 0; i < snapshot->cause.n_facts; i++)
		json_object_set_new(facts, bh_error_key(&snapshot->cause, i),
				    json_string(bh_error_value(&snapshot->cause, i)));
	bh_error_render(&snapshot->cause, text, sizeof(text));
	return json_pack("{s:s, s:o, s:s}", "id", snapshot->cause.id, "facts", facts, "text", text);
}

static void render_books(json_t *object, const struct bh_pool_books *books)
{
	set_count(object, "queued", books->queued);
	set_count(object, "running", books->running);
	set_count(object, "pending", books->pending);
	set_count(object, "in_transit", books->in_transit);
	set_count(object, "submitted", books->submitted);
	set_count(object, "done", books->done);
	set_count(object, "failed", books->failed);
	set_count(object, "cancelled", books->cancelled);
	set_count(object, "deadline", books->deadline);
	set_count(object, "abandoned", books->abandoned);
	set_count(object, "abandoned_alive", books->abandoned_alive);
	set_count(object, "refused", books->refused);
}

static json_t *render(const struct bh_pool *pool, const struct snapshot *snapshot,
		      const struct bh_thread_sight *sights)
{
	json_t *object = json_object(), *running = json_array();
	uint32_t busy = 0;

	for (uint32_t i = 0; i < snapshot->n_sights; i++) {
		if (!sights[i].op)
			continue;
		busy += sights[i].is_worker;
		json_array_append_new(running, bh_pool_render_sight(&sights[i], snapshot->now_ns));
	}
	json_object_set_new(object, "label", json_string(pool->label));
	set_count(object, "id", pool->id);
	json_object_set_new(object, "state", json_string(bh_pool_state_name(snapshot->state)));
	set_count(object, "workers", pool->n_workers);
	set_count(object, "busy", busy);
	set_count(object, "queue", pool->queue);
	render_books(object, &snapshot->books);
	set_count(object, "lanes", atomic_load_explicit(&pool->n_lanes, memory_order_relaxed));
	json_object_set_new(object, "cause", render_cause(snapshot));
	json_object_set_new(object, "running_tasks", running);
	return object;
}

json_t *bh_pool_render(struct bh_pool *pool)
{
	bh_auto_mem struct bh_thread_sight *sights = NULL;
	struct snapshot snapshot;

	if (bh_pool_is_forked())
		return NULL;
	sights = calloc(pool->n_threads, sizeof(*sights));
	if (!sights)
		return NULL;
	bh_mutex_lock(&pool->lock);
	snapshot.state = bh_pool_state_now(pool);
	snapshot.books = pool->books;
	snapshot.has_cause = bh_error_is_set(&pool->cause);
	snapshot.cause = pool->cause;
	snapshot.n_sights = bh_pool_see_threads_locked(pool, sights);
	snapshot.now_ns = bh_now_ns();
	bh_mutex_unlock(&pool->lock);
	return render(pool, &snapshot, sights);
}
