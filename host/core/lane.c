/* SPDX-License-Identifier: BSD-3-Clause */
/* lane - the ready queue of a pool, and the lanes that stand in it.
 *
 * The ready queue is first in, first out, over lane-less tasks and lanes. A lane stands in it
 * once, when nothing of it runs and its head does not wait for another task's outcome; when its task
 * has truly ended it goes to the end again: so its tasks keep their order, run one at a time, and no
 * lane starves the others. */
#include "config.h"

#include "host/core/pool_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bh_status bh_lane_new(struct bh_pool *pool, const char *name, struct bh_lane **ret_lane,
		      struct bh_error *err)
{
	struct bh_lane *lane;

	if (!*name || strlen(name) >= BH_LABEL_MAX)
		return bh_raise(err, -EINVAL, "lane.name", BH_STR("pool", pool->label),
				BH_STR("lane", name), BH_STR("accepted", "1 to 31 bytes"));
	lane = calloc(1, sizeof(*lane));
	if (!lane)
		return bh_raise(err, -ENOMEM, "lane.alloc", BH_STR("pool", pool->label),
				BH_STR("lane", name));
	atomic_init(&lane->refs, 1);
	lane->pool = pool;
	snprintf(lane->name, sizeof(lane->name), "%s", name);
	bh_list_init(&lane->ready.link);
	lane->ready.is_lane = true;
	bh_list_init(&lane->tasks);
	atomic_fetch_add_explicit(&pool->n_lanes, 1, memory_order_relaxed);
	*ret_lane = lane;
	return 0;
}

struct bh_lane *bh_lane_ref(struct bh_lane *lane)
{
	atomic_fetch_add_explicit(&lane->refs, 1, memory_order_relaxed);
	return lane;
}

void bh_lane_unref(struct bh_lane *lane)
{
	if (!lane || atomic_fetch_sub_explicit(&lane->refs, 1, memory_order_acq_rel) != 1)
		return;
	/* Each of its tasks holds a reference: it is empty, idle, and in no queue. */
	assert(bh_list_empty(&lane->tasks) && bh_list_empty(&lane->ready.link) && !lane->busy);
	atomic_fetch_sub_explicit(&lane->pool->n_lanes, 1, memory_order_relaxed);
	free(lane);
}

static void ready_push_locked(struct bh_pool *pool, struct bh_ready *ready) BH_NEEDS(pool->lock);
static void ready_push_locked(struct bh_pool *pool, struct bh_ready *ready)
{
	bh_list_push_back(&pool->ready, &ready->link);
	if (pool->n_idle > 0)
		bh_cond_signal(&pool->work);
}

static bool is_blocked(const struct bh_list *link)
{
	return bh_container_of(link, struct bh_task, ready.link)->blocked;
}

/* A lane stands in the ready queue exactly while its head may be run. */
static void lane_settle_locked(struct bh_pool *pool, struct bh_lane *lane) BH_NEEDS(pool->lock);
static void lane_settle_locked(struct bh_pool *pool, struct bh_lane *lane)
{
	bool ready = !lane->busy && !bh_list_empty(&lane->tasks) && !is_blocked(lane->tasks.next);

	if (!ready)
		bh_list_remove(&lane->ready.link);
	else if (bh_list_empty(&lane->ready.link))
		ready_push_locked(pool, &lane->ready);
}

/* Every worker may be waiting for what has just become ready, or for what comes after it: then one
 * of them has to run it (SUP-7). */
static void wake_helpers_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
static void wake_helpers_locked(struct bh_pool *pool)
{
	for (struct bh_list *link = pool->helpers.next; link != &pool->helpers; link = link->next)
		bh_cond_signal(&bh_container_of(link, struct bh_waiter, helper_link)->cond);
}

void bh_ready_add_locked(struct bh_pool *pool, struct bh_task *task)
{
	if (task->lane) {
		bh_list_push_back(&task->lane->tasks, &task->ready.link);
		lane_settle_locked(pool, task->lane);
	} else if (!task->blocked) {
		ready_push_locked(pool, &task->ready);
	}
}

void bh_ready_unblock_locked(struct bh_pool *pool, struct bh_task *task)
{
	assert(task->blocked && task->state == BH_TASK_QUEUED);
	task->blocked = false;
	pool->n_blocked--;
	if (task->lane)
		lane_settle_locked(pool, task->lane);
	else
		ready_push_locked(pool, &task->ready);
	wake_helpers_locked(pool);
}

struct bh_task *bh_lane_head_locked(struct bh_pool *pool, struct bh_lane *lane)
{
	(void)pool;
	return bh_list_empty(&lane->tasks)
		       ? NULL
		       : bh_container_of(lane->tasks.next, struct bh_task, ready.link);
}

struct bh_task *bh_lane_take_head_locked(struct bh_pool *pool, struct bh_lane *lane)
{
	struct bh_list *link = bh_list_pop_front(&lane->tasks);

	(void)pool;
	assert(link && !lane->busy && !is_blocked(link));
	bh_list_remove(&lane->ready.link);
	lane->busy = true;
	return bh_container_of(link, struct bh_task, ready.link);
}

struct bh_task *bh_ready_take_locked(struct bh_pool *pool)
{
	struct bh_list *link = bh_list_pop_front(&pool->ready);
	struct bh_ready *ready;

	if (!link)
		return NULL;
	ready = bh_container_of(link, struct bh_ready, link);
	if (ready->is_lane)
		return bh_lane_take_head_locked(pool,
						bh_container_of(ready, struct bh_lane, ready));
	return bh_container_of(ready, struct bh_task, ready);
}

void bh_ready_remove_locked(struct bh_pool *pool, struct bh_task *task)
{
	bh_list_remove(&task->ready.link);
	if (task->blocked) {
		task->blocked = false;
		pool->n_blocked--;
	}
	if (!task->lane)
		return;
	/* Another head: there may be none, it may be blocked, or the one before it was. */
	lane_settle_locked(pool, task->lane);
	if (!bh_list_empty(&task->lane->ready.link))
		wake_helpers_locked(pool);
}

void bh_lane_release_locked(struct bh_pool *pool, struct bh_lane *lane)
{
	assert(lane->busy);
	lane->busy = false;
	lane_settle_locked(pool, lane);
	if (!bh_list_empty(&lane->ready.link))
		wake_helpers_locked(pool);
}
