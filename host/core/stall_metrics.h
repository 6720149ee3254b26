/* SPDX-License-Identifier: BSD-3-Clause */
/* stall_metrics - episodes by kind, and how long the loops take to answer, as metrics. */
#ifndef BH_HOST_CORE_STALL_METRICS_H
#define BH_HOST_CORE_STALL_METRICS_H

#include "host/core/metrics.h"
#include "host/core/stall.h"

struct bh_stall_loop {
	const char *name; /* "asyncio", "control" */
	struct bh_stall_lag lag;
	struct bh_histogram_counts answers;
};

/* Whole families, so there may be one call a page. */
void bh_stall_metrics_render(struct bh_metrics_text *text, const struct bh_stall_counts *counts,
			     const struct bh_stall_loop *loops, size_t n_loops);

#endif
