/* SPDX-License-Identifier: BSD-3-Clause */
/* test_metrics - host/core/metrics.c, pool_metrics.c, process_metrics.c and stall_metrics.c. What a
 * scraper makes of a whole page is tests/e2e/test_metrics.py's. */
#include "config.h"

#include <locale.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "host/core/metrics.h"
#include "host/core/pool_metrics.h"
#include "host/core/process_metrics.h"
#include "host/core/stall_metrics.h"
#include "tests/unit/pool_fixture.h"
#include "tests/unit/tap.h"

/* A page of one render function; the caller frees it. */
static char *page_of(void (*render)(struct bh_metrics_text *text, void *arg), void *arg)
{
	struct bh_metrics metrics = { 0 };
	size_t length = 0;
	char *page;

	bh_metrics_add(&metrics, render, arg);
	page = bh_metrics_render(&metrics, &length);
	CU_ASSERT_PTR_NOT_NULL_FATAL(page);
	CU_ASSERT_EQUAL(length, strlen(page));
	return page;
}

static void expect_page(void (*render)(struct bh_metrics_text *text, void *arg), void *arg,
			const char *expected)
{
	bh_auto_mem char *page = page_of(render, arg);

	CU_ASSERT_STRING_EQUAL(page, expected);
	if (strcmp(page, expected) != 0)
		fprintf(stderr, "# got:\n%s", page);
}

static void expect_line(const char *page, const char *line)
{
	bh_auto_mem char *whole = NULL;
	bool found;

	CU_ASSERT_FATAL(asprintf(&whole, "\n%s\n", line) > 0);
	found = strstr(page, whole) != NULL;
	CU_ASSERT_TRUE(found);
	if (!found)
		fprintf(stderr, "# no line \"%s\" in:\n%s", line, page);
}

/* ---- the text -------------------------------------------------------------------------------- */

static void render_both(struct bh_metrics_text *text, void *arg)
{
	const struct bh_metric_label labels[] = { { "a", "x" }, { "b", "" } };

	(void)arg;
	bh_metrics_family(text, BH_METRICS_COUNTER, "bulkhead_things", "What there was.");
	bh_metrics_sample(text, NULL, 0, 3);
	bh_metrics_family(text, BH_METRICS_GAUGE, "bulkhead_now", "What there is.");
	bh_metrics_sample(text, labels, 2, -0.25);
	bh_metrics_sample(text, labels, 1, 0);
}

static void whole_families(void)
{
	expect_page(render_both, NULL,
		    "# HELP bulkhead_things_total What there was.\n"
		    "# TYPE bulkhead_things_total counter\n"
		    "bulkhead_things_total 3\n"
		    "# HELP bulkhead_now What there is.\n"
		    "# TYPE bulkhead_now gauge\n"
		    "bulkhead_now{a=\"x\",b=\"\"} -0.25\n"
		    "bulkhead_now{a=\"x\"} 0\n");
}

static void render_label(struct bh_metrics_text *text, void *arg)
{
	const struct bh_metric_label label = { "l", arg };

	bh_metrics_family(text, BH_METRICS_GAUGE, "g", "one \\ two\n\"three\"");
	bh_metrics_sample(text, &label, 1, 1);
}

static void expect_label(const char *value, const char *expected)
{
	bh_auto_mem char *page = page_of(render_label, (void *)(uintptr_t)value);
	bh_auto_mem char *line = NULL;

	CU_ASSERT_FATAL(asprintf(&line, "g{l=\"%s\"} 1", expected) > 0);
	expect_line(page, line);
	CU_ASSERT_PTR_NOT_NULL(strstr(page, "# HELP g one \\\\ two\\n\"three\"\n"));
}

static void escapes(void)
{
	expect_label("a\\b\"c\nd", "a\\\\b\\\"c\\nd");
	expect_label("grüße €𝄞", "grüße €𝄞");
	expect_label("x\xff\xc0\xafy", "x\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDy");
	/* A surrogate, beyond the last character, more bytes than needed, cut short. */
	expect_label("\xed\xa0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
	expect_label("\xf4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
	expect_label("\xe0\x80\xaf", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
	expect_label("\xf0\x9d\x84", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
	expect_label("\xe2", "\xEF\xBF\xBD");
}

static void render_number(struct bh_metrics_text *text, void *arg)
{
	bh_metrics_family(text, BH_METRICS_GAUGE, "g", "h");
	bh_metrics_sample(text, NULL, 0, *(const double *)arg);
}

static void expect_number(double value, const char *expected)
{
	bh_auto_mem char *page = page_of(render_number, &value);

	CU_ASSERT_STRING_EQUAL(strrchr(page, 'g'), expected);
	if (strcmp(strrchr(page, 'g'), expected) != 0)
		fprintf(stderr, "# got %s", strrchr(page, 'g'));
}

static void numbers(void)
{
	expect_number(0, "g 0\n");
	expect_number(123456789012345, "g 123456789012345\n");
	expect_number(1e21, "g 1e+21\n");
	expect_number(0.1, "g 0.1\n");
	expect_number(-1.5e-7, "g -1.5e-07\n");
	expect_number(NAN, "g NaN\n");
	expect_number(INFINITY, "g +Inf\n");
	expect_number(-INFINITY, "g -Inf\n");
}

static void any_locale(void)
{
	static const char *const commas[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8",
					      "ps_AF.UTF-8" };
	bool found = false;

	for (size_t i = 0; i < BH_ARRAY_LEN(commas); i++) {
		if (!setlocale(LC_NUMERIC, commas[i]))
			continue;
		found = true;
		expect_number(0.25, "g 0.25\n");
		expect_number(1.5e-7, "g 1.5e-07\n");
	}
	setlocale(LC_NUMERIC, "C");
	if (!found)
		BH_SKIP("no locale here has a comma");
}

/* ---- histograms ------------------------------------------------------------------------------ */

static void render_histogram(struct bh_metrics_text *text, void *arg)
{
	const struct bh_metric_label label = { "site", "s" };
	struct bh_histogram_counts counts = { 0 };

	bh_histogram_collect(arg, &counts);
	bh_metrics_family(text, BH_METRICS_HISTOGRAM, "h_seconds", "h");
	bh_metrics_histogram(text, &label, 1, &counts, 200.5);
}

static void histograms(void)
{
	struct bh_histogram histogram = { 0 };
	bh_auto_mem char *page = NULL;

	bh_histogram_add(&histogram, 0);
	bh_histogram_add(&histogram, 1023);
	bh_histogram_add(&histogram, 1024); /* a bound's own nanosecond: longer */
	bh_histogram_add(&histogram, 5 * BH_NS_PER_MS);
	bh_histogram_add(&histogram, UINT64_MAX);
	page = page_of(render_histogram, &histogram);
	CU_ASSERT_EQUAL(strncmp(page, "# HELP h_seconds h\n# TYPE h_seconds histogram\n", 46), 0);
	expect_line(page, "h_seconds_bucket{site=\"s\",le=\"1.024e-06\"} 2");
	expect_line(page, "h_seconds_bucket{site=\"s\",le=\"4.096e-06\"} 3");
	expect_line(page, "h_seconds_bucket{site=\"s\",le=\"0.004194304\"} 3");
	expect_line(page, "h_seconds_bucket{site=\"s\",le=\"0.016777216\"} 4");
	expect_line(page, "h_seconds_bucket{site=\"s\",le=\"68.719476736\"} 4");
	expect_line(page, "h_seconds_bucket{site=\"s\",le=\"+Inf\"} 5");
	expect_line(page, "h_seconds_sum{site=\"s\"} 200.5");
	expect_line(page, "h_seconds_count{site=\"s\"} 5");
}

/* ---- the page -------------------------------------------------------------------------------- */

static void render_failing(struct bh_metrics_text *text, void *arg)
{
	render_both(text, arg);
	bh_metrics_fail(text);
}

static void no_half_page(void)
{
	struct bh_metrics metrics = { 0 };
	size_t length = 17;

	bh_metrics_add(&metrics, render_both, NULL);
	bh_metrics_add(&metrics, render_failing, NULL);
	CU_ASSERT_PTR_NULL(bh_metrics_render(&metrics, &length));
	CU_ASSERT_EQUAL(length, 17);
}

static void empty_page(void)
{
	struct bh_metrics metrics = { 0 };
	size_t length = 17;
	bh_auto_mem char *page = bh_metrics_render(&metrics, &length);

	CU_ASSERT_PTR_NOT_NULL_FATAL(page);
	CU_ASSERT_STRING_EQUAL(page, "");
	CU_ASSERT_EQUAL(length, 0);
}

static void render_many(struct bh_metrics_text *text, void *arg)
{
	(void)arg;
	bh_metrics_family(text, BH_METRICS_GAUGE, "many", "m");
	for (int i = 0; i < 20000; i++) {
		char number[16];
		const struct bh_metric_label label = { "i", number };

		snprintf(number, sizeof(number), "%d", i);
		bh_metrics_sample(text, &label, 1, i);
	}
}

static void grows(void)
{
	bh_auto_mem char *page = page_of(render_many, NULL);

	expect_line(page, "many{i=\"0\"} 0");
	expect_line(page, "many{i=\"19999\"} 19999");
}

/* ---- families of modules --------------------------------------------------------------------- */

static void process(void)
{
	bh_auto_mem char *page = page_of(bh_process_metrics_render, NULL);
	static const char *const names[] = {
		"process_start_time_seconds",
		"bulkhead_uptime_seconds",
		"process_threads",
		"process_resident_memory_bytes",
		"process_virtual_memory_bytes",
		"process_cpu_seconds_total",
		"process_open_fds",
		"bulkhead_log_dropped_lines_total",
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(names); i++) {
		bh_auto_mem char *start = NULL;
		const char *found;

		CU_ASSERT_FATAL(asprintf(&start, "\n%s ", names[i]) > 0);
		found = strstr(page, start);
		CU_ASSERT_PTR_NOT_NULL(found);
		if (!found)
			fprintf(stderr, "# no %s in:\n%s", names[i], page);
		else if (i < 5)
			CU_ASSERT_TRUE(strtod(found + strlen(start), NULL) > 0);
	}
}

static double value_of(const char *page, const char *name)
{
	bh_auto_mem char *start = NULL;
	const char *found;

	CU_ASSERT_FATAL(asprintf(&start, "\n%s ", name) > 0);
	found = strstr(page, start);
	CU_ASSERT_PTR_NOT_NULL_FATAL(found);
	return strtod(found + strlen(start), NULL);
}

static int entries_of(const char *path)
{
	DIR *dir = opendir(path);
	int n = -2; /* "." and ".." */

	CU_ASSERT_PTR_NOT_NULL_FATAL(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void counts_threads(void)
{
	bh_auto_mem char *page = page_of(bh_process_metrics_render, NULL);

	/* A sanitizer may have one of its own. */
	CU_ASSERT_EQUAL(value_of(page, "process_threads"), entries_of("/proc/self/task"));
}

static void counts_fds(void)
{
	bh_auto_mem char *before = page_of(bh_process_metrics_render, NULL);
	int fd = dup(0);
	bh_auto_mem char *after = page_of(bh_process_metrics_render, NULL);

	CU_ASSERT_EQUAL(value_of(after, "process_open_fds"),
			value_of(before, "process_open_fds") + (fd >= 0));
	if (fd >= 0)
		close(fd);
}

static void render_stalls(struct bh_metrics_text *text, void *arg)
{
	const struct bh_stall_counts counts = { .n = { [BH_STALL_TASK] = 2 } };
	static struct bh_stall_loop loops[] = {
		{ .name = "asyncio", .lag = { .now_ns = 3000000000, .n = 1, .last_ns = 2000000 } },
		{ .name = "control", .lag = { .now_ns = 1000, .n = 2, .last_ns = 5000000 } },
	};

	(void)arg;
	bh_stall_metrics_render(text, &counts, loops, 2);
}

static void stalls(void)
{
	bh_auto_mem char *page = page_of(render_stalls, NULL);

	expect_line(page, "bulkhead_stalls_total{kind=\"gil\"} 0");
	expect_line(page, "bulkhead_stalls_total{kind=\"task\"} 2");
	expect_line(page, "bulkhead_loop_lag_seconds{loop=\"asyncio\"} 3");
	expect_line(page, "bulkhead_loop_lag_seconds{loop=\"control\"} 0.005");
	expect_line(page, "bulkhead_loop_answer_seconds_count{loop=\"control\"} 0");
}

static void render_pool(struct bh_metrics_text *text, void *arg)
{
	struct fixture *fx = arg;

	bh_pool_metrics_render(text, &fx->pool, 1);
}

static void pools(void)
{
	bh_auto_mem char *page = NULL, *later = NULL;
	struct bh_ticket *blocker, *waiting;
	struct gate gate = { 0 };
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fx.config.n_ops = 2; /* the second is never used */
	fixture_make(&fx);
	fixture_start(&fx);
	page = page_of(render_pool, &fx);
	CU_ASSERT_PTR_NULL(strstr(page, "bulkhead_op_seconds_count"));
	free(page);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_nop, NULL)), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_fail, NULL)), BH_OUTCOME_FAILED);
	blocker = fixture_submit(&fx, fn_gate, &gate);
	waiting = fixture_submit(&fx, fn_nop, NULL);
	CU_ASSERT_TRUE_FATAL(UNTIL(atomic_load(&gate.arrived) == 1));
	page = page_of(render_pool, &fx);
	expect_line(page, "bulkhead_pool_tasks_total{pool=\"fixture\",outcome=\"done\"} 1");
	expect_line(page, "bulkhead_pool_tasks_total{pool=\"fixture\",outcome=\"failed\"} 1");
	expect_line(page, "bulkhead_pool_tasks_total{pool=\"fixture\",outcome=\"abandoned\"} 0");
	expect_line(page, "bulkhead_pool_submitted_total{pool=\"fixture\"} 4");
	expect_line(page, "bulkhead_pool_running{pool=\"fixture\"} 1");
	expect_line(page, "bulkhead_pool_queued{pool=\"fixture\"} 1");
	expect_line(page, "bulkhead_pool_workers{pool=\"fixture\"} 1");
	expect_line(page, "bulkhead_pool_queue_limit{pool=\"fixture\"} 8");
	expect_line(page, "bulkhead_pool_state{pool=\"fixture\",state=\"ready\"} 1");
	expect_line(page, "bulkhead_pool_state{pool=\"fixture\",state=\"wedged\"} 0");
	expect_line(page, "bulkhead_op_seconds_count{pool=\"fixture\",op=\"call\"} 2");
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(blocker), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(waiting), BH_OUTCOME_DONE);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	later = page_of(render_pool, &fx);
	expect_line(later, "bulkhead_pool_tasks_total{pool=\"fixture\",outcome=\"done\"} 3");
	expect_line(later, "bulkhead_pool_state{pool=\"fixture\",state=\"clean\"} 1");
	expect_line(later,
		    "bulkhead_op_seconds_bucket{pool=\"fixture\",op=\"call\",le=\"+Inf\"} 4");
	expect_line(later, "bulkhead_op_seconds_count{pool=\"fixture\",op=\"call\"} 4");
	CU_ASSERT_PTR_NULL(strstr(strstr(later, "bulkhead_op_seconds_count") + 1,
				  "bulkhead_op_seconds_count"));
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

static const struct bh_test tests[] = {
	{ "a family is said once, and all of its samples stand behind it", whole_families },
	{ "any text can be a label's value, and a page is always UTF-8", escapes },
	{ "counts are exact, times are in C's notation", numbers },
	{ "a locale with a comma changes nothing", any_locale },
	{ "a histogram's buckets add up to its count", histograms },
	{ "without memory there is no page rather than half of one", no_half_page },
	{ "a page of nothing is empty", empty_page },
	{ "a long page is whole", grows },
	{ "the process is shown under the usual names", process },
	{ "threads are counted", counts_threads },
	{ "open descriptors are counted", counts_fds },
	{ "CP-3: stalls are counted by kind, and a loop that is stuck now shows", stalls },
	{ "SUP-4: a pool's books are shown as they are", pools },
};

BH_TAP_MAIN("metrics", tests)
