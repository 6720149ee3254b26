/* SPDX-License-Identifier: BSD-3-Clause */
/* report - what a plugin tells operators of itself: the numbers of its metrics table, and facts.
 *
 * The numbers are atomics in the host's memory: the plugin changes them, the control loop reads them,
 * and neither waits for the other (CP-1). They are relaxed: each is a number for itself, nothing else
 * is told by it. They stay after the plugin has closed.
 *
 * Thread: add, set and describe any; admit main, while plugins are loaded; render the control loop,
 *         one at a time. GIL: not needed. Blocks: no. */
#ifndef BH_HOST_PLUGIN_REPORT_H
#define BH_HOST_PLUGIN_REPORT_H

#include <jansson.h>
#include <stdatomic.h>

#include "host/core/metrics.h"
#include "host/plugin/descriptor.h"

#define BH_REPORT_FACTS 16	 /* of describe() */
#define BH_REPORT_FACT_BYTES 240 /* of one text; what is longer is cut, and ends in "…" */

struct bh_report {
	const struct bh_metric *metrics; /* I: borrowed from the descriptor */
	uint32_t n_metrics;		 /* I */
	const char *plugin;		 /* I: the manifest's label, borrowed */
	char stem[BH_LABEL_MAX];	 /* I: the note's label with - as _ */
	_Atomic int64_t *values;	 /* A: relaxed; one a row */
	bool *hidden;			 /* I: left out of /metrics; one a row; set by admit */
	_Atomic(json_t *) told;		 /* A: acq_rel; what describe() left, until it is taken */
	json_t *facts;			 /* T: control loop, the last one that it took */
};

/* `descriptor` and `plugin` are borrowed and outlive the report. A zeroed report is one without
 * metrics. */
bh_status bh_report_init(struct bh_report *report, const struct bh_descriptor *descriptor,
			 const char *plugin, const char *note_label,
			 struct bh_error *err) BH_MUST_CHECK;
void bh_report_fini(struct bh_report *report);

/* NULL, or why it was refused: no such row, a counter that would shrink or be set. Wait-free. */
const char *bh_report_add(struct bh_report *report, uint32_t row, int64_t delta);
const char *bh_report_set(struct bh_report *report, uint32_t row, int64_t value);
/* `facts` are clean (valid keys and text); those past BH_REPORT_FACTS are not looked at. -ENOMEM: what
 * was said before stays. */
bh_status bh_report_describe(struct bh_report *report, const struct bh_fact *facts, uint32_t n);

/* A family of /metrics has one kind: rows whose family an `earlier` plugin has with the other kind are
 * left out of the page, which is logged. Before the report is rendered for the first time. */
void bh_report_admit(struct bh_report *report, struct bh_report *const *earlier, size_t n);
/* The families of all of them, each once. */
void bh_report_render_metrics(struct bh_metrics_text *text, struct bh_report *const *reports,
			      size_t n);
/* {"facts": {…}, "metrics": [{"name", "kind", "value", "doc"}, …]}; NULL without memory. */
json_t *bh_report_render(struct bh_report *report);

#endif
