/* SPDX-License-Identifier: BSD-3-Clause */
/* metrics - GET /metrics, put together from what each module registers, as Prometheus' text format.
 *
 * As views (view.h): modules register before they are first shown and never unregister; a render
 * function runs on the control loop, must not block and must not touch the GIL (CP-1). It writes
 * whole families: one bh_metrics_family(), then all of its samples. */
#ifndef BH_HOST_CORE_METRICS_H
#define BH_HOST_CORE_METRICS_H

#include <stdatomic.h>
#include <stddef.h>

#include "host/core/histogram.h"

#define BH_METRICS_MAX 32

struct bh_metrics_text; /* what has been written so far */

struct bh_metrics {
	_Atomic uint32_t n; /* A: release after the row is written */
	struct bh_metrics_row {
		void (*render)(struct bh_metrics_text *text, void *arg);
		void *arg;
	} rows[BH_METRICS_MAX];
};

/* Thread: any one at a time. Ends the process when the table is full: our own fault. */
void bh_metrics_add(struct bh_metrics *metrics,
		    void (*render)(struct bh_metrics_text *text, void *arg), void *arg);
/* The whole page, NUL-terminated, the caller's to free; NULL without memory. */
char *bh_metrics_render(const struct bh_metrics *metrics, size_t *ret_length);

/* Memory was refused to a render function: there will be no page, for half of one would be untrue. */
void bh_metrics_fail(struct bh_metrics_text *text);

enum bh_metric_type { BH_METRICS_COUNTER, BH_METRICS_GAUGE, BH_METRICS_HISTOGRAM };

struct bh_metric_label {
	const char *name;
	const char *value; /* any text; it is escaped */
};

/* `name` without suffix: a counter's samples get `_total`, as OpenMetrics wants it. */
void bh_metrics_family(struct bh_metrics_text *text, enum bh_metric_type type, const char *name,
		       const char *help);
/* A sample of the present family. */
void bh_metrics_sample(struct bh_metrics_text *text, const struct bh_metric_label *labels,
		       size_t n_labels, double value);
/* Buckets at the bounds of every second octave (seconds), count and sum. */
void bh_metrics_histogram(struct bh_metrics_text *text, const struct bh_metric_label *labels,
			  size_t n_labels, const struct bh_histogram_counts *counts, double sum_s);

#endif
