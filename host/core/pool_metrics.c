/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_metrics - see pool_metrics.h. */
#include "config.h"

#include "host/core/pool_metrics.h"

#include "host/core/pool_private.h"

struct sight {
	struct bh_pool *pool;
	enum bh_pool_state state;
	struct bh_pool_books books;
};

static void put_one(struct bh_metrics_text *text, const struct sight *sight, double value)
{
	const struct bh_metric_label labels[] = { { "pool", bh_pool_label(sight->pool) } };

	bh_metrics_sample(text, labels, BH_ARRAY_LEN(labels), value);
}

static uint64_t outcomes_of(const struct bh_pool_books *books, enum bh_outcome outcome)
{
	switch (outcome) {
	case BH_OUTCOME_NONE:
		return 0;
	case BH_OUTCOME_DONE:
		return books->done;
	case BH_OUTCOME_FAILED:
		return books->failed;
	case BH_OUTCOME_CANCELLED:
		return books->cancelled;
	case BH_OUTCOME_DEADLINE:
		return books->deadline;
	case BH_OUTCOME_ABANDONED:
		return books->abandoned;
	}
	bh_unreachable();
}

static void put_outcomes(struct bh_metrics_text *text, const struct sight *sights, size_t n)
{
	bh_metrics_family(text, BH_METRICS_COUNTER, "bulkhead_pool_tasks",
			  "Tasks that have ended, by outcome.");
	for (size_t i = 0; i < n; i++) {
		for (int outcome = BH_OUTCOME_DONE; outcome < BH_OUTCOMES; outcome++) {
			const struct bh_metric_label labels[] = {
				{ "pool", bh_pool_label(sights[i].pool) },
				{ "outcome", bh_outcome_name((enum bh_outcome)outcome) },
			};

			bh_metrics_sample(
				text, labels, BH_ARRAY_LEN(labels),
				(double)outcomes_of(&sights[i].books, (enum bh_outcome)outcome));
		}
	}
}

static void put_states(struct bh_metrics_text *text, const struct sight *sights, size_t n)
{
	bh_metrics_family(text, BH_METRICS_GAUGE, "bulkhead_pool_state",
			  "1 for the state that the pool is in, 0 for the others.");
	for (size_t i = 0; i < n; i++) {
		for (int state = 0; state < BH_POOL_STATES; state++) {
			const struct bh_metric_label labels[] = {
				{ "pool", bh_pool_label(sights[i].pool) },
				{ "state", bh_pool_state_name((enum bh_pool_state)state) },
			};

			bh_metrics_sample(text, labels, BH_ARRAY_LEN(labels),
					  sights[i].state == (enum bh_pool_state)state);
		}
	}
}

static double submitted(const struct sight *sight)
{
	return (double)sight->books.submitted;
}

static double refused(const struct sight *sight)
{
	return (double)sight->books.refused;
}

static double queued(const struct sight *sight)
{
	return sight->books.queued;
}

static double running(const struct sight *sight)
{
	return sight->books.running;
}

static double pending(const struct sight *sight)
{
	return sight->books.pending;
}

static double abandoned_alive(const struct sight *sight)
{
	return sight->books.abandoned_alive;
}

static double workers(const struct sight *sight)
{
	return bh_pool_workers(sight->pool);
}

static double queue_limit(const struct sight *sight)
{
	return sight->pool->queue;
}

/* What there is one number of for each pool. */
static const struct {
	enum bh_metric_type type;
	const char *name, *help;
	double (*value)(const struct sight *sight);
} rows[] = {
	{ BH_METRICS_COUNTER, "bulkhead_pool_submitted", "Tasks that were accepted.", submitted },
	{ BH_METRICS_COUNTER, "bulkhead_pool_refused",
	  "Submissions that were refused because the queue was full.", refused },
	{ BH_METRICS_GAUGE, "bulkhead_pool_queued", "Tasks that wait for a worker.", queued },
	{ BH_METRICS_GAUGE, "bulkhead_pool_running", "Tasks that run on a worker.", running },
	{ BH_METRICS_GAUGE, "bulkhead_pool_pending",
	  "Tasks that have left their worker and are not completed yet.", pending },
	{ BH_METRICS_GAUGE, "bulkhead_pool_abandoned_alive",
	  "Tasks that were given up and have not truly ended.", abandoned_alive },
	{ BH_METRICS_GAUGE, "bulkhead_pool_workers", "Workers of the pool.", workers },
	{ BH_METRICS_GAUGE, "bulkhead_pool_queue_limit", "How many tasks may wait or be pending.",
	  queue_limit },
};

/* An op that has not been used is left out: most plugins have many ops, and an app uses a few. */
static void put_op_times(struct bh_metrics_text *text, const struct sight *sights, size_t n)
{
	bh_metrics_family(text, BH_METRICS_HISTOGRAM, "bulkhead_op_seconds",
			  "How long tasks took, from the start on a worker to the outcome.");
	for (size_t i = 0; i < n; i++) {
		const struct bh_pool *pool = sights[i].pool;

		for (uint32_t op = 0; op < pool->n_ops; op++) {
			struct bh_histogram_counts counts = { 0 };
			uint64_t total_ns = bh_pool_op_times(pool, op, &counts);
			const struct bh_metric_label labels[] = {
				{ "pool", bh_pool_label(pool) },
				{ "op", pool->backend->op_name(pool->backend_self, op) },
			};

			if (counts.n > 0)
				bh_metrics_histogram(text, labels, BH_ARRAY_LEN(labels), &counts,
						     (double)total_ns / BH_NS_PER_S);
		}
	}
}

void bh_pool_metrics_render(struct bh_metrics_text *text, struct bh_pool *const *pools, size_t n)
{
	bh_auto_mem struct sight *sights = calloc(n ? n : 1, sizeof(*sights));

	if (!sights) {
		bh_metrics_fail(text);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		sights[i] = (struct sight){ .pool = pools[i], .state = bh_pool_state(pools[i]) };
		bh_pool_books(pools[i], &sights[i].books);
	}
	put_outcomes(text, sights, n);
	for (size_t r = 0; r < BH_ARRAY_LEN(rows); r++) {
		bh_metrics_family(text, rows[r].type, rows[r].name, rows[r].help);
		for (size_t i = 0; i < n; i++)
			put_one(text, &sights[i], rows[r].value(&sights[i]));
	}
	put_states(text, sights, n);
	put_op_times(text, sights, n);
}
