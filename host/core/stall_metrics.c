/* SPDX-License-Identifier: BSD-3-Clause */
/* stall_metrics - see stall_metrics.h. */
#include "config.h"

#include "host/core/stall_metrics.h"

#include "host/core/clock.h"

static double seconds(uint64_t ns)
{
	return (double)ns / BH_NS_PER_S;
}

static void put_counts(struct bh_metrics_text *text, const struct bh_stall_counts *counts)
{
	bh_metrics_family(text, BH_METRICS_COUNTER, "bulkhead_stalls",
			  "Stalls that have begun, by what was stuck.");
	for (int kind = 0; kind < BH_STALL_KINDS; kind++) {
		const struct bh_metric_label labels[] = {
			{ "kind", bh_stall_kind_name((enum bh_stall_kind)kind) }
		};

		bh_metrics_sample(text, labels, BH_ARRAY_LEN(labels), (double)counts->n[kind]);
	}
}

static void put_lags(struct bh_metrics_text *text, const struct bh_stall_loop *loops, size_t n)
{
	bh_metrics_family(
		text, BH_METRICS_GAUGE, "bulkhead_loop_lag_seconds",
		"For how long the loop has not answered by now, or took to the last time.");
	for (size_t i = 0; i < n; i++) {
		const struct bh_metric_label labels[] = { { "loop", loops[i].name } };
		const struct bh_stall_lag *lag = &loops[i].lag;

		/* A question that is just out must not hide that the last one took long. */
		bh_metrics_sample(text, labels, BH_ARRAY_LEN(labels),
				  seconds(lag->now_ns > lag->last_ns ? lag->now_ns : lag->last_ns));
	}
	bh_metrics_family(text, BH_METRICS_HISTOGRAM, "bulkhead_loop_answer_seconds",
			  "How long the loop took to answer a sign of life.");
	for (size_t i = 0; i < n; i++) {
		const struct bh_metric_label labels[] = { { "loop", loops[i].name } };

		bh_metrics_histogram(text, labels, BH_ARRAY_LEN(labels), &loops[i].answers,
				     seconds(loops[i].lag.total_ns));
	}
}

void bh_stall_metrics_render(struct bh_metrics_text *text, const struct bh_stall_counts *counts,
			     const struct bh_stall_loop *loops, size_t n_loops)
{
	put_counts(text, counts);
	put_lags(text, loops, n_loops);
}
