/* SPDX-License-Identifier: BSD-3-Clause */
/* heap - a pool's deadlines as a binary heap of its task records; its size is fixed with theirs.
 *
 * Thread: any, under the pool's lock. A task knows its index, so that it can be taken out when
 *         it ends. */
#include "config.h"

#include "host/core/pool_private.h"

static void place(struct bh_pool *pool, uint32_t at, struct bh_task *task)
{
	pool->heap[at] = task;
	task->heap_index = at;
}

static bool earlier(const struct bh_task *a, const struct bh_task *b)
{
	return a->deadline.at_ns < b->deadline.at_ns;
}

static void sift_up(struct bh_pool *pool, uint32_t at, struct bh_task *task)
{
	while (at > 0 && earlier(task, pool->heap[(at - 1) / 2])) {
		place(pool, at, pool->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	place(pool, at, task);
}

static void sift_down(struct bh_pool *pool, uint32_t at, struct bh_task *task)
{
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child + 1 < pool->n_heap && earlier(pool->heap[child + 1], pool->heap[child]))
			child++;
		if (child >= pool->n_heap || !earlier(pool->heap[child], task))
			break;
		place(pool, at, pool->heap[child]);
		at = child;
	}
	place(pool, at, task);
}

void bh_heap_push_locked(struct bh_pool *pool, struct bh_task *task)
{
	assert(task->heap_index == BH_NOT_IN_HEAP && pool->n_heap < pool->n_tasks);
	sift_up(pool, pool->n_heap++, task);
}

void bh_heap_remove_locked(struct bh_pool *pool, struct bh_task *task)
{
	uint32_t at = task->heap_index;
	struct bh_task *last;

	if (at == BH_NOT_IN_HEAP)
		return;
	task->heap_index = BH_NOT_IN_HEAP;
	last = pool->heap[--pool->n_heap];
	if (last == task)
		return;
	if (earlier(last, task))
		sift_up(pool, at, last);
	else
		sift_down(pool, at, last);
}
