/* SPDX-License-Identifier: BSD-3-Clause */
/* report - see report.h. */
#include "config.h"

#include "host/plugin/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/core/format.h"
#include "host/core/log.h"

#define COMPONENT "plugin"
#define PREFIX "bulkhead_plugin_"
#define FAMILY_BYTES (sizeof(PREFIX) + 2 * (size_t)BH_LABEL_MAX + 1)

bh_status bh_report_init(struct bh_report *report, const struct bh_descriptor *descriptor,
			 const char *plugin, const char *note_label, struct bh_error *err)
{
	size_t n = descriptor->n_metrics ? descriptor->n_metrics : 1;

	report->metrics = descriptor->metrics;
	report->plugin = plugin;
	snprintf(report->stem, sizeof(report->stem), "%s", note_label);
	for (char *p = report->stem; *p; p++)
		if (*p == '-')
			*p = '_';
	report->values = calloc(n, sizeof(*report->values));
	report->hidden = calloc(n, sizeof(*report->hidden));
	if (!report->values || !report->hidden)
		return bh_raise(err, -ENOMEM, "report.alloc");
	report->n_metrics = descriptor->n_metrics;
	return 0;
}

void bh_report_fini(struct bh_report *report)
{
	json_decref(atomic_exchange_explicit(&report->told, NULL, memory_order_acquire));
	json_decref(report->facts);
	free(report->values);
	free(report->hidden);
	*report = (struct bh_report){ 0 };
}

/* ---- what the plugin says -------------------------------------------------------------------- */

const char *bh_report_add(struct bh_report *report, uint32_t row, int64_t delta)
{
	if (row >= report->n_metrics)
		return "the descriptor has no such metric";
	if (delta < 0 && report->metrics[row].kind == BH_METRIC_COUNTER)
		return "a counter only grows";
	atomic_fetch_add_explicit(&report->values[row], delta, memory_order_relaxed);
	return NULL;
}

const char *bh_report_set(struct bh_report *report, uint32_t row, int64_t value)
{
	if (row >= report->n_metrics)
		return "the descriptor has no such metric";
	if (report->metrics[row].kind == BH_METRIC_COUNTER)
		return "a counter is not set, it only grows";
	atomic_store_explicit(&report->values[row], value, memory_order_relaxed);
	return NULL;
}

static json_t *fact_value(const struct bh_fact *fact)
{
	char text[BH_REPORT_FACT_BYTES + sizeof(BH_ELLIPSIS)];
	size_t length, kept;

	if (fact->kind == BH_FACT_INT)
		return json_integer(fact->number);
	length = strlen(fact->text);
	kept = bh_text_prefix(fact->text, length, BH_REPORT_FACT_BYTES);
	memcpy(text, fact->text, kept);
	strcpy(text + kept, kept < length ? BH_ELLIPSIS : "");
	return json_string(text);
}

bh_status bh_report_describe(struct bh_report *report, const struct bh_fact *facts, uint32_t n)
{
	json_t *object = json_object();

	for (uint32_t i = 0; i < n && i < BH_REPORT_FACTS; i++) {
		if (json_object_set_new(object, facts[i].key, fact_value(&facts[i])) < 0) {
			json_decref(object);
			return -ENOMEM;
		}
	}
	if (!object)
		return -ENOMEM;
	json_decref(atomic_exchange_explicit(&report->told, object, memory_order_acq_rel));
	return 0;
}

/* ---- what operators see ---------------------------------------------------------------------- */

/* As its samples have it. The label and the name may meet in more than one way (a, b_c and a_b, c),
 * so that only the whole is compared. */
static void family_name(const struct bh_report *report, uint32_t row, char name[FAMILY_BYTES])
{
	snprintf(name, FAMILY_BYTES, PREFIX "%s_%s", report->stem, report->metrics[row].name);
}

/* The row of that family, shown or not; -1: none. */
static int64_t find_family(const struct bh_report *report, const char *family)
{
	char name[FAMILY_BYTES];

	for (uint32_t row = 0; row < report->n_metrics; row++) {
		family_name(report, row, name);
		if (strcmp(name, family) == 0)
			return row;
	}
	return -1;
}

static const char *kind_name(uint32_t kind)
{
	return kind == BH_METRIC_COUNTER ? "counter" : "gauge";
}

/* The first plugin that shows the family decides its kind. */
static void admit_row(struct bh_report *report, uint32_t row, struct bh_report *const *earlier,
		      size_t n)
{
	char family[FAMILY_BYTES];

	family_name(report, row, family);
	for (size_t i = 0; i < n; i++) {
		int64_t other = find_family(earlier[i], family);

		if (other < 0 || earlier[i]->hidden[other] ||
		    earlier[i]->metrics[other].kind == report->metrics[row].kind)
			continue;
		report->hidden[row] = true;
		bh_log(BH_LOG_WARNING, COMPONENT,
		       "a metric is left out of /metrics: another plugin's has its name and "
		       "another "
		       "kind",
		       BH_STR("plugin", report->plugin), BH_STR("metric", family),
		       BH_STR("kind", kind_name(report->metrics[row].kind)),
		       BH_STR("other_plugin", earlier[i]->plugin),
		       BH_STR("other_kind", kind_name(earlier[i]->metrics[other].kind)));
		return;
	}
}

void bh_report_admit(struct bh_report *report, struct bh_report *const *earlier, size_t n)
{
	for (uint32_t row = 0; row < report->n_metrics; row++)
		admit_row(report, row, earlier, n);
}

static void put_value(struct bh_metrics_text *text, const struct bh_report *report, uint32_t row)
{
	const struct bh_metric_label labels[] = { { "plugin", report->plugin } };

	bh_metrics_sample(text, labels, BH_ARRAY_LEN(labels),
			  (double)atomic_load_explicit(&report->values[row], memory_order_relaxed));
}

/* bh_metrics_family() puts a counter's _total itself. */
static void put_family(struct bh_metrics_text *text, const struct bh_metric *metric, char *family)
{
	bool counter = metric->kind == BH_METRIC_COUNTER;

	if (counter)
		family[strlen(family) - strlen("_total")] = '\0';
	bh_metrics_family(text, counter ? BH_METRICS_COUNTER : BH_METRICS_GAUGE, family,
			  metric->doc);
	if (counter)
		strcat(family, "_total");
}

static bool was_put(struct bh_report *const *reports, size_t n, const char *family)
{
	for (size_t i = 0; i < n; i++) {
		int64_t row = find_family(reports[i], family);

		if (row >= 0 && !reports[i]->hidden[row])
			return true;
	}
	return false;
}

void bh_report_render_metrics(struct bh_metrics_text *text, struct bh_report *const *reports,
			      size_t n)
{
	char family[FAMILY_BYTES];

	for (size_t i = 0; i < n; i++) {
		for (uint32_t row = 0; row < reports[i]->n_metrics; row++) {
			family_name(reports[i], row, family);
			if (reports[i]->hidden[row] || was_put(reports, i, family))
				continue;
			put_family(text, &reports[i]->metrics[row], family);
			put_value(text, reports[i], row);
			for (size_t j = i + 1; j < n; j++) {
				int64_t same = find_family(reports[j], family);

				if (same >= 0 && !reports[j]->hidden[same])
					put_value(text, reports[j], (uint32_t)same);
			}
		}
	}
}

json_t *bh_report_render(struct bh_report *report)
{
	json_t *told = atomic_exchange_explicit(&report->told, NULL, memory_order_acquire);
	json_t *metrics = json_array();

	if (told) {
		json_decref(report->facts);
		report->facts = told;
	}
	for (uint32_t row = 0; row < report->n_metrics; row++) {
		const struct bh_metric *metric = &report->metrics[row];

		json_array_append_new(
			metrics, json_pack("{s:s, s:s, s:I, s:s}", "name", metric->name, "kind",
					   kind_name(metric->kind), "value",
					   (json_int_t)atomic_load_explicit(&report->values[row],
									    memory_order_relaxed),
					   "doc", metric->doc));
	}
	return json_pack("{s:o, s:o}", "facts",
			 report->facts ? json_incref(report->facts) : json_object(), "metrics",
			 metrics);
}
