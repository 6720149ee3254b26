/* SPDX-License-Identifier: BSD-3-Clause */
/* test_report - a plugin's numbers and facts, told by many threads and shown by one. */
#include "config.h"

#include "host/plugin/report.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/tap.h"

static const struct bh_metric rows[] = {
	{ .name = "sent_total", .kind = BH_METRIC_COUNTER, .doc = "Sent." },
	{ .name = "depth", .kind = BH_METRIC_GAUGE, .doc = "Depth." },
};

static struct bh_descriptor descriptor_of(const struct bh_metric *metrics, uint32_t n)
{
	return (struct bh_descriptor){ .metrics = (struct bh_metric *)metrics, .n_metrics = n };
}

/* The reports that page() shows; bh_metrics_render() has one argument for it. */
struct shown {
	struct bh_report *const *reports;
	size_t n;
};

static void render_shown(struct bh_metrics_text *text, void *arg)
{
	const struct shown *shown = arg;

	bh_report_render_metrics(text, shown->reports, shown->n);
}

static char *page(struct bh_report *const *reports, size_t n)
{
	struct bh_metrics metrics = { .n = 0 };
	struct shown shown = { reports, n };
	size_t length = 0;

	bh_metrics_add(&metrics, render_shown, &shown);
	return bh_metrics_render(&metrics, &length);
}

static void numbers_are_refused_by_their_kind(void)
{
	const struct bh_descriptor d = descriptor_of(rows, 2);
	struct bh_report report = { .n_metrics = 0 };
	json_t *all, *shown;

	CU_ASSERT_EQUAL(bh_report_init(&report, &d, "a", "x", NULL), 0);
	CU_ASSERT_PTR_NULL(bh_report_add(&report, 0, 3));
	CU_ASSERT_PTR_NULL(bh_report_add(&report, 0, 0));
	CU_ASSERT_PTR_NOT_NULL(bh_report_add(&report, 0, -1));
	CU_ASSERT_PTR_NOT_NULL(bh_report_set(&report, 0, 9));
	CU_ASSERT_PTR_NULL(bh_report_set(&report, 1, -4));
	CU_ASSERT_PTR_NULL(bh_report_add(&report, 1, -4));
	CU_ASSERT_PTR_NOT_NULL(bh_report_add(&report, 2, 1));
	CU_ASSERT_PTR_NOT_NULL(bh_report_set(&report, UINT32_MAX, 1));
	all = bh_report_render(&report);
	shown = json_object_get(all, "metrics");
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(json_array_get(shown, 0), "value")), 3);
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(json_array_get(shown, 1), "value")), -8);
	json_decref(all);
	bh_report_fini(&report);
}

static void a_report_without_metrics(void)
{
	const struct bh_descriptor d = descriptor_of(NULL, 0);
	struct bh_report zeroed = { .n_metrics = 0 }, empty = { .n_metrics = 0 };
	struct bh_report *const both[] = { &zeroed, &empty };
	char *text;

	CU_ASSERT_EQUAL(bh_report_init(&empty, &d, "a", "x", NULL), 0);
	CU_ASSERT_PTR_NOT_NULL(bh_report_add(&zeroed, 0, 1));
	CU_ASSERT_PTR_NOT_NULL(bh_report_set(&empty, 0, 1));
	text = page(both, 2);
	CU_ASSERT_PTR_NOT_NULL_FATAL(text);
	CU_ASSERT_STRING_EQUAL(text, "");
	free(text);
	bh_report_fini(&empty);
	bh_report_fini(&zeroed);
}

/* Label and name can meet in two ways; it is one family all the same, and told of once. */
static void families_are_what_is_written(void)
{
	static const struct bh_metric one[] = {
		{ .name = "b_c", .kind = BH_METRIC_GAUGE, .doc = "First\\text." },
	};
	static const struct bh_metric other[] = {
		{ .name = "c", .kind = BH_METRIC_GAUGE, .doc = "Second text." },
	};
	const struct bh_descriptor d1 = descriptor_of(one, 1), d2 = descriptor_of(other, 1);
	struct bh_report r1 = { .n_metrics = 0 }, r2 = { .n_metrics = 0 };
	struct bh_report *const both[] = { &r1, &r2 };
	char *text;

	CU_ASSERT_EQUAL(bh_report_init(&r1, &d1, "p1", "a", NULL), 0);
	CU_ASSERT_EQUAL(bh_report_init(&r2, &d2, "p2", "a-b", NULL), 0);
	bh_report_admit(&r2, both, 1);
	bh_report_set(&r1, 0, 1);
	bh_report_set(&r2, 0, 2);
	text = page(both, 2);
	CU_ASSERT_PTR_NOT_NULL_FATAL(text);
	CU_ASSERT_STRING_EQUAL(text, "# HELP bulkhead_plugin_a_b_c First\\\\text.\n"
				     "# TYPE bulkhead_plugin_a_b_c gauge\n"
				     "bulkhead_plugin_a_b_c{plugin=\"p1\"} 1\n"
				     "bulkhead_plugin_a_b_c{plugin=\"p2\"} 2\n");
	free(text);
	bh_report_fini(&r1);
	bh_report_fini(&r2);
}

/* Who was left out decides nothing: a third plugin goes by the first. */
static void the_first_decides_the_kind(void)
{
	static const struct bh_metric gauge[] = {
		{ .name = "sent_total", .kind = BH_METRIC_GAUGE, .doc = "Other." },
	};
	const struct bh_descriptor d1 = descriptor_of(rows, 2), d2 = descriptor_of(gauge, 1);
	struct bh_report r1 = { .n_metrics = 0 }, r2 = { .n_metrics = 0 }, r3 = { .n_metrics = 0 };
	struct bh_report *const all[] = { &r1, &r2, &r3 };
	char *text;

	CU_ASSERT_EQUAL(bh_report_init(&r1, &d1, "p1", "x", NULL), 0);
	CU_ASSERT_EQUAL(bh_report_init(&r2, &d2, "p2", "x", NULL), 0);
	CU_ASSERT_EQUAL(bh_report_init(&r3, &d1, "p3", "x", NULL), 0);
	for (size_t i = 0; i < 3; i++)
		bh_report_admit(all[i], all, i);
	text = page(all, 3);
	CU_ASSERT_PTR_NOT_NULL_FATAL(text);
	CU_ASSERT_STRING_EQUAL(text, "# HELP bulkhead_plugin_x_sent_total Sent.\n"
				     "# TYPE bulkhead_plugin_x_sent_total counter\n"
				     "bulkhead_plugin_x_sent_total{plugin=\"p1\"} 0\n"
				     "bulkhead_plugin_x_sent_total{plugin=\"p3\"} 0\n"
				     "# HELP bulkhead_plugin_x_depth Depth.\n"
				     "# TYPE bulkhead_plugin_x_depth gauge\n"
				     "bulkhead_plugin_x_depth{plugin=\"p1\"} 0\n"
				     "bulkhead_plugin_x_depth{plugin=\"p3\"} 0\n");
	free(text);
	for (size_t i = 0; i < 3; i++)
		bh_report_fini(all[i]);
}

#define THREADS 3
#define ROUNDS 2000

static void *tell(void *arg)
{
	struct bh_report *report = arg;

	for (int i = 0; i < ROUNDS; i++) {
		const struct bh_fact facts[] = { bh_fact_int("a", i), bh_fact_int("b", i) };

		bh_report_add(report, 0, 1);
		bh_report_add(report, 1, i % 2 ? 1 : -1);
		if (bh_report_describe(report, facts, 2) < 0)
			return report; /* CUnit is for one thread */
	}
	return NULL;
}

/* CP-1: whoever looks waits for nobody, sees no half of anything, and in the end nothing is lost. */
static void cp1_many_tell_and_one_shows(void)
{
	const struct bh_descriptor d = descriptor_of(rows, 2);
	struct bh_report report = { .n_metrics = 0 };
	pthread_t threads[THREADS];
	json_int_t before = 0;
	json_t *shown;

	CU_ASSERT_EQUAL(bh_report_init(&report, &d, "a", "x", NULL), 0);
	for (int i = 0; i < THREADS; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, tell, &report), 0);
	for (int i = 0; i < ROUNDS; i++) {
		json_int_t sent = 0, a = -1, b = -1;

		shown = bh_report_render(&report);
		CU_ASSERT_PTR_NOT_NULL_FATAL(shown);
		json_unpack(shown, "{s:[{s:I}, {}], s:{s?I, s?I}}", "metrics", "value", &sent,
			    "facts", "a", &a, "b", &b);
		CU_ASSERT_EQUAL(a, b);
		CU_ASSERT(sent >= before && sent <= THREADS * ROUNDS);
		before = sent;
		json_decref(shown);
	}
	for (int i = 0; i < THREADS; i++) {
		void *failed = &report;

		pthread_join(threads[i], &failed);
		CU_ASSERT_PTR_NULL(failed);
	}
	shown = bh_report_render(&report);
	CU_ASSERT_EQUAL(atomic_load(&report.values[0]), THREADS * ROUNDS);
	CU_ASSERT_EQUAL(atomic_load(&report.values[1]), 0);
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(json_object_get(shown, "facts"), "a")),
			ROUNDS - 1);
	json_decref(shown);
	bh_report_fini(&report);
}

static const struct bh_test tests[] = {
	{ "a number is refused by its kind, or by its row", numbers_are_refused_by_their_kind },
	{ "a plugin without metrics has none", a_report_without_metrics },
	{ "a family is what is written, and told of once", families_are_what_is_written },
	{ "of two kinds of one family the first plugin's stays", the_first_decides_the_kind },
	{ "CP-1: many tell and one shows, and nobody waits", cp1_many_tell_and_one_shows },
};

BH_TAP_MAIN("report", tests)
