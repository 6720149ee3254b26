/* SPDX-License-Identifier: BSD-3-Clause */
/* metrics - see metrics.h.
 *
 * A family's samples stand together on the page, and going through the books of many threads takes a
 * while: they are read once, into rows that every family is written from. */
#include "config.h"

#include "host/gil/metrics.h"

#include "host/gil/internal.h"
#include "host/gil/probe.h"

static double seconds(uint64_t ns)
{
	return (double)ns / BH_NS_PER_S;
}

/* ---- by site and plane ----------------------------------------------------------------------- */

static double entries(const struct bh_gil_stats *stats)
{
	return (double)stats->entries;
}

static double nested(const struct bh_gil_stats *stats)
{
	return (double)stats->nested;
}

static double unsanctioned(const struct bh_gil_stats *stats)
{
	return (double)stats->unsanctioned;
}

static double held(const struct bh_gil_stats *stats)
{
	return seconds(stats->held_ns);
}

static double wait_max(const struct bh_gil_stats *stats)
{
	return seconds(stats->wait.max_ns);
}

static double inside_max(const struct bh_gil_stats *stats)
{
	return seconds(stats->inside.max_ns);
}

static const struct {
	enum bh_metric_type type;
	const char *name, *help;
	double (*value)(const struct bh_gil_stats *stats);
} rows[] = {
	{ BH_METRICS_COUNTER, "bulkhead_gil_entries", "Outermost entries into the interpreter.",
	  entries },
	{ BH_METRICS_COUNTER, "bulkhead_gil_nested_entries",
	  "Entries of threads that were inside already.", nested },
	{ BH_METRICS_COUNTER, "bulkhead_gil_unsanctioned_entries",
	  "Entries of control-plane threads at sites that are for data only.", unsanctioned },
	{ BH_METRICS_COUNTER, "bulkhead_gil_held_seconds",
	  "How long the GIL was held, sampled from the interpreter's own record.", held },
	{ BH_METRICS_GAUGE, "bulkhead_gil_wait_max_seconds",
	  "The longest time from asking for the GIL to getting it.", wait_max },
	{ BH_METRICS_GAUGE, "bulkhead_gil_inside_max_seconds",
	  "The longest time from entry to leave, whoever held the GIL in between.", inside_max },
};

#define LABELS(stats)                                                                              \
	{                                                                                          \
		{ "site", (stats)->account }, { "plane", bh_plane_name((stats)->plane) },          \
	}

struct reading {
	struct bh_gil_stats stats;
	struct reading *next;
};

static struct reading *readings_free(struct reading *all)
{
	while (all) {
		struct reading *next = all->next;

		free(all);
		all = next;
	}
	return NULL;
}
BH_DEFINE_AUTO(struct reading, readings_free)

/* In the books' order. False without memory. */
static bool read_books(struct reading **ret_all)
{
	bh_auto(readings_free) struct reading *all = NULL;
	struct reading **end = &all;
	uint32_t cursor = 0;

	do {
		*end = calloc(1, sizeof(**end));
		if (!*end)
			return false;
		if (!bh_gil_stats_next(&cursor, &(*end)->stats))
			break;
		end = &(*end)->next;
	} while (true);
	free(*end);
	*end = NULL;
	*ret_all = bh_steal(&all);
	return true;
}

static void put_rows(struct bh_metrics_text *text, const struct reading *all)
{
	for (size_t r = 0; r < BH_ARRAY_LEN(rows); r++) {
		bh_metrics_family(text, rows[r].type, rows[r].name, rows[r].help);
		for (const struct reading *one = all; one; one = one->next) {
			const struct bh_metric_label labels[] = LABELS(&one->stats);

			bh_metrics_sample(text, labels, BH_ARRAY_LEN(labels),
					  rows[r].value(&one->stats));
		}
	}
}

static void put_times(struct bh_metrics_text *text, const struct reading *all, const char *name,
		      const char *help,
		      const struct bh_gil_times *(*times_of)(const struct bh_gil_stats *stats))
{
	bh_metrics_family(text, BH_METRICS_HISTOGRAM, name, help);
	for (; all; all = all->next) {
		const struct bh_metric_label labels[] = LABELS(&all->stats);
		const struct bh_gil_times *times = times_of(&all->stats);
		struct bh_histogram_counts counts = { 0 };

		if (times->histogram)
			bh_histogram_collect(times->histogram, &counts);
		bh_metrics_histogram(text, labels, BH_ARRAY_LEN(labels), &counts,
				     seconds(times->total_ns));
	}
}

static const struct bh_gil_times *wait_of(const struct bh_gil_stats *stats)
{
	return &stats->wait;
}

static const struct bh_gil_times *inside_of(const struct bh_gil_stats *stats)
{
	return &stats->inside;
}

/* ---- as a whole ------------------------------------------------------------------------------ */

static void put_one(struct bh_metrics_text *text, enum bh_metric_type type, const char *name,
		    const char *help, double value)
{
	bh_metrics_family(text, type, name, help);
	bh_metrics_sample(text, NULL, 0, value);
}

/* No sample while nobody holds it. */
static void put_holder(struct bh_metrics_text *text)
{
	struct bh_gil_holder holder;
	uint64_t now = bh_now_ns();

	bh_gil_holder_read(&holder);
	bh_metrics_family(text, BH_METRICS_GAUGE, "bulkhead_gil_holder_seconds",
			  "Who holds the GIL now, and for how long by now.");
	if (holder.held) {
		const struct bh_metric_label labels[] = {
			{ "site", holder.account ? holder.account : "" },
			{ "plane", bh_plane_name(holder.identity.plane) },
		};
		bool known = holder.since_ns && holder.since_ns <= now;

		bh_metrics_sample(text, labels, BH_ARRAY_LEN(labels),
				  known ? seconds(now - holder.since_ns) : 0);
	}
}

static void put_waiting(struct bh_metrics_text *text)
{
	struct bh_gil_view view;
	uint32_t cursor = 0, n = 0;

	while (bh_gil_row_view(&cursor, &view))
		n += view.state == BH_GIL_WAITING;
	put_one(text, BH_METRICS_GAUGE, "bulkhead_gil_waiting_threads",
		"Threads that wait for the GIL now.", n);
}

static void put_probe(struct bh_metrics_text *text)
{
	uint64_t now = bh_now_ns(), since = bh_gil_probe_waiting_since();
	struct bh_histogram_counts counts = { 0 };
	struct bh_gil_probe_stats stats;

	bh_gil_probe_read(&stats, &counts);
	bh_metrics_family(text, BH_METRICS_HISTOGRAM, "bulkhead_gil_probe_wait_seconds",
			  "How long the probe took to get the GIL.");
	bh_metrics_histogram(text, NULL, 0, &counts, seconds(stats.total_ns));
	put_one(text, BH_METRICS_GAUGE, "bulkhead_gil_probe_waiting_seconds",
		"For how long the probe has been waiting for the GIL by now.",
		since && since < now ? seconds(now - since) : 0);
}

void bh_gil_metrics_render(struct bh_metrics_text *text, void *arg)
{
	bh_auto(readings_free) struct reading *all = NULL;

	(void)arg;
	if (!read_books(&all)) {
		bh_metrics_fail(text);
		return;
	}
	put_rows(text, all);
	put_times(text, all, "bulkhead_gil_wait_seconds",
		  "From asking for the GIL to getting it, at an outermost entry or coming back "
		  "inside of one.",
		  wait_of);
	put_times(text, all, "bulkhead_gil_inside_seconds",
		  "From an outermost entry to its leave, whoever held the GIL in between.",
		  inside_of);
	put_one(text, BH_METRICS_COUNTER, "bulkhead_gil_unsanctioned",
		"Entries of control-plane threads at sites that are for data only, all sites "
		"together, also while the ledger is off.",
		(double)bh_gil_unsanctioned_count());
	put_one(text, BH_METRICS_GAUGE, "bulkhead_gil_parked_threads",
		"Raw callers that came after the gate had closed and are parked for good.",
		(double)bh_gil_parked());
	put_one(text, BH_METRICS_GAUGE, "bulkhead_gil_gate_closed",
		"1 once nobody may enter the interpreter any more.", bh_gil_gate_closed());
	put_holder(text);
	put_waiting(text);
	put_probe(text);
}
