/* SPDX-License-Identifier: BSD-3-Clause */
/* show - GET /v1/gil, and its parts for reports.
 *
 * Thread: any; never blocks and never takes the GIL (CP-1). Fails: NULL without memory.
 * Keeps: GIL-6. */
#include "config.h"

#include "host/core/format.h"
#include "host/gil/courier.h"
#include "host/gil/internal.h"

#include <stdio.h>
#include <string.h>

#define WAITERS_MAX 1024 /* as many as there can be rows */

static json_t *json_seconds(uint64_t ns)
{
	return json_real((double)ns / (double)BH_NS_PER_S);
}

static json_t *json_age(uint64_t now, uint64_t since_ns)
{
	if (since_ns == 0)
		return json_null();
	return json_seconds(now > since_ns ? now - since_ns : 0);
}

/* Moments are monotonic inside and wall time outside. */
static json_t *json_moment(uint64_t at_ns)
{
	uint64_t now = bh_now_ns();
	struct timespec wall;

	if (at_ns == 0)
		return json_null();
	clock_gettime(CLOCK_REALTIME, &wall);
	return json_real((double)wall.tv_sec + (double)wall.tv_nsec / 1e9 -
			 ((double)now - (double)at_ns) / 1e9);
}

/* A thread's name is bytes of anybody's choice. */
static json_t *json_thread_name(const char *name)
{
	char plain[16];

	snprintf(plain, sizeof(plain), "%s", name);
	bh_text_make_plain(plain);
	return json_string(plain);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* What holders, waiters and rows have in common. */
static json_t *render_view(const struct bh_gil_view *view, uint64_t now)
{
	return json_pack("{s:o, s:i, s:s, s:s, s:s?, s:o}", "thread",
			 json_thread_name(view->thread), "tid", (int)view->tid, "plane",
			 bh_plane_name(view->identity.plane), "label", view->identity.label, "site",
			 view->state == BH_GIL_OUTSIDE ? NULL : bh_gil_account_name(view->account),
			 "since_s", json_age(now, view->since_ns));
}

json_t *bh_gil_render_holder(void)
{
	struct bh_gil_view view;
	json_t *holder;
	const char *raw;

	if (!bh_gil_holder_view(&view))
		return json_null();
	holder = render_view(&view, bh_now_ns());
	raw = view.account >= BH_GIL_ACCOUNT_RAW ? bh_gil_account_name(view.account) : NULL;
	json_object_set_new(holder, "library",
			    raw ? json_string(raw + strlen("raw:")) : json_null());
	return holder;
}

json_t *bh_gil_render_waiters(void)
{
	json_t *list = json_array();
	uint64_t since[WAITERS_MAX], now = bh_now_ns();
	uint32_t cursor = 0;
	size_t n = 0, at;
	struct bh_gil_view view;

	while (list && n < WAITERS_MAX && bh_gil_row_view(&cursor, &view)) {
		if (view.state != BH_GIL_WAITING)
			continue;
		for (at = n; at > 0 && since[at - 1] > view.since_ns; at--)
			;
		if (json_array_insert_new(list, at, render_view(&view, now)) < 0)
			break;
		memmove(&since[at + 1], &since[at], (n - at) * sizeof(since[0]));
		since[at] = view.since_ns;
		n++;
	}
	return list;
}

static const char *state_name(enum bh_gil_row_state state)
{
	switch (state) {
	case BH_GIL_OUTSIDE:
		return "outside";
	case BH_GIL_WAITING:
		return "waiting";
	case BH_GIL_INSIDE:
		return "inside";
	case BH_GIL_PARKED:
		return "parked";
	}
	bh_unreachable();
}

static void append_thread(json_t *list, const struct bh_gil_view *view, uint64_t now)
{
	json_t *row = render_view(view, now);

	json_object_set_new(row, "state", json_string(state_name(view->state)));
	json_object_set_new(row, "coarse", json_boolean(view->coarse));
	json_array_append_new(list, row);
}

/* A thread of Python's opens no scope: that it holds the GIL is known from the record alone. */
static json_t *render_threads(uint64_t now)
{
	json_t *list = json_array();
	uint32_t cursor = 0;
	struct bh_gil_view view, holder = { 0 };
	bool seen = !bh_gil_holder_view(&holder) || holder.tid == 0;

	while (list && bh_gil_row_view(&cursor, &view)) {
		if (view.tid == holder.tid) {
			seen = true;
			if (view.state == BH_GIL_OUTSIDE) {
				holder.coarse = view.coarse;
				view = holder;
			}
		}
		append_thread(list, &view, now);
	}
	if (list && !seen)
		append_thread(list, &holder, now);
	return list;
}

/* ---- the books ------------------------------------------------------------------------------- */

struct sum {
	uint64_t entries, nested, unsanctioned, held_ns;
	struct sum_times {
		struct bh_histogram_counts counts;
		struct bh_gil_times times; /* but for its histogram */
	} wait, inside;
};

static void sum_times(struct sum_times *sum, const struct bh_gil_times *times)
{
	bh_histogram_collect(times->histogram, &sum->counts);
	sum->times.total_ns += times->total_ns;
	if (times->max_ns <= sum->times.max_ns)
		return;
	sum->times.max_ns = times->max_ns;
	sum->times.max_at_ns = times->max_at_ns;
	sum->times.max_tid = times->max_tid;
	memcpy(sum->times.max_thread, times->max_thread, sizeof(sum->times.max_thread));
}

static void sum_stats(struct sum *sum, const struct bh_gil_stats *stats)
{
	sum->entries += stats->entries;
	sum->nested += stats->nested;
	sum->unsanctioned += stats->unsanctioned;
	sum->held_ns += stats->held_ns;
	sum_times(&sum->wait, &stats->wait);
	sum_times(&sum->inside, &stats->inside);
}

static void set_times(json_t *site, const char *what, const struct sum_times *sum)
{
	static const struct {
		const char *name;
		double q;
	} quantiles[] = { { "p50_s", 0.5 }, { "p90_s", 0.9 }, { "p99_s", 0.99 } };
	const struct bh_gil_times *times = &sum->times;
	char key[32];

#define SET(name, value)                                                                           \
	(snprintf(key, sizeof(key), "%s_%s", what, name), json_object_set_new(site, key, value))
	SET("s", json_seconds(times->total_ns));
	SET("count", json_integer((json_int_t)sum->counts.n));
	for (size_t i = 0; i < BH_ARRAY_LEN(quantiles); i++) {
		uint64_t ns = bh_histogram_quantile(&sum->counts, quantiles[i].q);

		/* A bucket's middle may lie above all that is in it. */
		SET(quantiles[i].name, json_seconds(ns < times->max_ns ? ns : times->max_ns));
	}
	SET("max_s", json_seconds(times->max_ns));
	SET("max_at", json_moment(times->max_at_ns));
	SET("max_thread",
	    times->max_at_ns && times->max_tid ? json_thread_name(times->max_thread) : json_null());
#undef SET
}

static json_t *render_plane(const struct bh_gil_stats *stats)
{
	return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o}", "entries", (json_int_t)stats->entries,
			 "nested", (json_int_t)stats->nested, "unsanctioned",
			 (json_int_t)stats->unsanctioned, "held_s", json_seconds(stats->held_ns),
			 "wait_s", json_seconds(stats->wait.total_ns), "inside_s",
			 json_seconds(stats->inside.total_ns));
}

static json_t *render_site(uint32_t account)
{
	struct sum sum = { 0 };
	struct bh_gil_stats stats;
	json_t *planes = json_object(), *site;

	for (int plane = 0; plane < BH_PLANES; plane++)
		if (bh_gil_books_read(account, (enum bh_plane)plane, &stats)) {
			sum_stats(&sum, &stats);
			json_object_set_new(planes, bh_plane_name((enum bh_plane)plane),
					    render_plane(&stats));
		}
	site = json_pack("{s:s, s:s, s:I, s:I, s:I, s:o}", "site", bh_gil_account_name(account),
			 "policy", bh_gil_account_policy(account), "entries",
			 (json_int_t)sum.entries, "nested", (json_int_t)sum.nested, "unsanctioned",
			 (json_int_t)sum.unsanctioned, "held_s", json_seconds(sum.held_ns));
	set_times(site, "wait", &sum.wait);
	set_times(site, "inside", &sum.inside);
	json_object_set_new(site, "planes", planes);
	return site;
}

static json_t *render_sites(void)
{
	json_t *list = json_array();
	uint32_t cursor = 0, account;

	while (list && bh_gil_account_next(&cursor, &account))
		json_array_append_new(list, render_site(account));
	return list;
}

static const char *ledger_name(void)
{
	switch (bh_gil_mode) {
	case BH_GIL_LEDGER_FULL:
		return "full";
	case BH_GIL_LEDGER_SITES:
		return "sites";
	case BH_GIL_LEDGER_OFF:
		return "off";
	}
	bh_unreachable();
}

json_t *bh_gil_render(void *arg)
{
	uint64_t now = bh_now_ns();

	(void)arg;
	return json_pack(
		"{s:o, s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:I}", "holder",
		bh_gil_render_holder(), "gate", bh_gil_gate_closed() ? "closed" : "open", "ledger",
		ledger_name(), "unsanctioned", (json_int_t)bh_gil_unsanctioned_count(), "parked",
		(json_int_t)bh_gil_parked(), "sampled_s", json_seconds(bh_gil_sampled_ns()),
		"courier", bh_courier_render(), "sites", render_sites(), "threads",
		render_threads(now), "threads_left_out", (json_int_t)bh_gil_rowless());
}
