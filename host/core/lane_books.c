/* SPDX-License-Identifier: BSD-3-Clause */
/* lane_books - what became of the tasks of one lane, as pool->books has it for all of them.
 *
 * Thread: any. Lock: the pool's, which those who count hold. */
#include "config.h"

#include "host/core/pool_private.h"

#include <stdio.h>

void bh_lane_count_in_locked(struct bh_pool *pool, struct bh_lane *lane)
{
	(void)pool;
	lane->books.submitted++;
	lane->books.queued++;
}

void bh_lane_count_start_locked(struct bh_pool *pool, struct bh_lane *lane)
{
	(void)pool;
	lane->books.queued--;
	lane->books.running++;
}

/* Why it failed: a task that says nothing is told the same. */
static void note_failure(struct bh_lane_books *books, const struct bh_error *error)
{
	books->failed++;
	snprintf(books->last_error, sizeof(books->last_error), "%s",
		 bh_error_is_set(error) ? error->id : "task.failed");
}

void bh_lane_count_out_locked(struct bh_pool *pool, struct bh_task *task, enum bh_outcome outcome,
			      const struct bh_error *error)
{
	struct bh_lane_books *books = &task->lane->books;

	(void)pool;
	if (task->state == BH_TASK_QUEUED)
		books->queued--;
	else
		books->running--;
	switch (outcome) {
	case BH_OUTCOME_DONE:
		books->done++;
		return;
	case BH_OUTCOME_FAILED:
		note_failure(books, error);
		return;
	case BH_OUTCOME_CANCELLED:
		books->cancelled++;
		return;
	case BH_OUTCOME_DEADLINE:
		books->deadline++;
		return;
	case BH_OUTCOME_ABANDONED:
		books->abandoned++;
		return;
	case BH_OUTCOME_NONE:
		break;
	}
	bh_unreachable();
}

void bh_lane_books(struct bh_lane *lane, struct bh_lane_books *ret_books)
{
	bh_mutex_lock(&lane->pool->lock);
	*ret_books = lane->books;
	bh_mutex_unlock(&lane->pool->lock);
}
