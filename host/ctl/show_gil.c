/* SPDX-License-Identifier: BSD-3-Clause */
/* show_gil - the GIL's account as tables: by site, and by thread. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "host/ctl/columns.h"
#include "host/ctl/members.h"
#include "host/ctl/show.h"

/* ---- the head -------------------------------------------------------------------------------- */

static void show_holder(FILE *out, const json_t *reply)
{
	const json_t *holder = json_object_get(reply, "holder");
	bool by_library = bh_member_has_string(holder, "library");

	if (json_is_object(holder))
		bh_columns_wrap(
			out, 0, "holder: %s (tid %s, %s) at %s for %s%s%s",
			bh_member_string(holder, "thread"), bh_member_id(holder, "tid").bytes,
			bh_member_plane(holder).bytes, bh_member_string(holder, "site"),
			bh_member_time(holder, "since_s").bytes, by_library ? ", taken by " : "",
			by_library ? bh_member_string(holder, "library") : "");
	else
		fputs("holder: nobody\n", out);
	bh_columns_wrap(
		out, 0, "gate %s, %s unsanctioned, %s parked, sampled for %s%s%s",
		bh_member_string(reply, "gate"), bh_member_count(reply, "unsanctioned").bytes,
		bh_member_count(reply, "parked").bytes, bh_member_time(reply, "sampled_s").bytes,
		bh_member_has_string(reply, "ledger") ? ", ledger " : "",
		bh_member_has_string(reply, "ledger") ? bh_member_string(reply, "ledger") : "");
}

static void show_courier(FILE *out, const json_t *reply)
{
	const json_t *courier = json_object_get(reply, "courier");

	if (json_is_object(courier))
		bh_columns_wrap(out, 0, "courier: %s ran, %s inline, %s queued, %s refused",
				bh_member_count(courier, "ran").bytes,
				bh_member_count(courier, "inline").bytes,
				bh_member_count(courier, "queued").bytes,
				bh_member_count(courier, "refused").bytes);
}

/* ---- by site --------------------------------------------------------------------------------- */

struct row {
	const json_t *site;
	double held_s, share, rate; /* of the time looked at; NAN: not known */
	size_t index;
};

/* What is not known comes last. */
static double or_zero(double number)
{
	return isnan(number) ? 0 : number;
}

static int row_compare(const void *a, const void *b)
{
	const struct row *one = a, *two = b;
	double by_held = or_zero(two->held_s) - or_zero(one->held_s);
	double by_entries = or_zero(bh_member_number(two->site, "entries")) -
			    or_zero(bh_member_number(one->site, "entries"));

	if (by_held != 0)
		return by_held > 0 ? 1 : -1;
	if (by_entries != 0)
		return by_entries > 0 ? 1 : -1;
	return one->index < two->index ? -1 : 1;
}

/* A site that nobody has come by yet says nothing to people; --json has it. */
static bool was_used(const json_t *site)
{
	static const char *const keys[] = { "entries", "nested", "unsanctioned", "held_s" };

	for (size_t i = 0; i < BH_ARRAY_LEN(keys); i++)
		if (!(bh_member_number(site, keys[i]) <= 0)) /* also what is not there: NAN */
			return true;
	return false;
}

static const json_t *site_find(const json_t *reply, const char *name)
{
	const json_t *sites = json_object_get(reply, "sites"), *site;
	size_t i;

	json_array_foreach(sites, i,
			   site) if (strcmp(bh_member_string(site, "site"), name) == 0) return site;
	return NULL;
}

/* How much more it is now; NAN where it is less: that host has been started anew meanwhile. */
static double increase(const json_t *now, const json_t *before, const char *key)
{
	double from = before ? bh_member_number(before, key) : 0;
	double by = bh_member_number(now, key) - from;

	return by >= 0 ? by : NAN;
}

static struct row row_make(const json_t *site, const json_t *reply, const json_t *before,
			   double elapsed_s)
{
	/* A site that was not there before began at nothing. */
	const json_t *was = before ? site_find(before, bh_member_string(site, "site")) : NULL;
	double sampled_s = increase(reply, before, "sampled_s");
	struct row row = { .site = site, .share = NAN, .rate = NAN };

	row.held_s = increase(site, was, "held_s");
	if (sampled_s > 0)
		row.share = row.held_s / sampled_s;
	if (before && elapsed_s > 0)
		row.rate = increase(site, was, "entries") / elapsed_s;
	return row;
}

static struct row *rows_make(const json_t *reply, const json_t *before, double elapsed_s,
			     size_t *ret_n)
{
	const json_t *sites = json_object_get(reply, "sites"), *site;
	struct row *rows = bh_ctl_must(calloc(json_array_size(sites) + 1, sizeof(*rows)));
	size_t i, n = 0;

	json_array_foreach(sites, i, site)
	{
		if (!was_used(site))
			continue;
		rows[n] = row_make(site, reply, before, elapsed_s);
		rows[n].index = i;
		n++;
	}
	qsort(rows, n, sizeof(*rows), row_compare);
	*ret_n = n;
	return rows;
}

static struct bh_cell share_text(double share)
{
	struct bh_cell text = { "-" };

	if (share >= 10)
		snprintf(text.bytes, sizeof(text.bytes), ">999%%");
	else if (isfinite(share))
		snprintf(text.bytes, sizeof(text.bytes), "%.1f%%", share * 100);
	return text;
}

static struct bh_cell rate_text(double rate)
{
	struct bh_cell text = bh_cell_count(rate);

	if (rate > 0 && rate < 9.95)
		snprintf(text.bytes, sizeof(text.bytes), "%.1f", rate);
	return text;
}

/* "data-only" as "data": the column's title says what it is. */
static int policy_length(const char *policy)
{
	return *policy == '-' ? 1 : (int)strcspn(policy, "-");
}

static void show_row(struct bh_columns *table, const struct row *row, bool rates)
{
	const char *policy = bh_member_string(row->site, "policy");

	bh_columns_cell(table, "%s", bh_member_string(row->site, "site"));
	bh_columns_cell(table, "%.*s", policy_length(policy), policy);
	if (rates)
		bh_columns_cell(table, "%s", rate_text(row->rate).bytes);
	else
		bh_columns_cell(table, "%s", bh_member_count(row->site, "entries").bytes);
	bh_columns_cell(table, "%s", bh_member_time(row->site, "wait_p50_s").bytes);
	bh_columns_cell(table, "%s", bh_member_time(row->site, "wait_p99_s").bytes);
	bh_columns_cell(table, "%s", bh_member_time(row->site, "wait_max_s").bytes);
	bh_columns_cell(table, "%s", bh_member_time(row->site, "inside_s").bytes);
	bh_columns_cell(table, "%s", bh_member_time(row->site, "held_s").bytes);
	bh_columns_cell(table, "%s", share_text(row->share).bytes);
}

static void show_sites(FILE *out, const struct row *rows, size_t n, bool rates)
{
	static const struct bh_column columns[][9] = {
		{ { "SITE", BH_COLUMN_HEAD },
		  { "POLICY", BH_COLUMN_LEFT },
		  { "ENTRIES", BH_COLUMN_RIGHT },
		  { "WAIT50", BH_COLUMN_RIGHT },
		  { "WAIT99", BH_COLUMN_RIGHT },
		  { "WAITMAX", BH_COLUMN_RIGHT },
		  { "INSIDE", BH_COLUMN_RIGHT },
		  { "HELD", BH_COLUMN_RIGHT },
		  { "SHARE", BH_COLUMN_RIGHT } },
		{ { "SITE", BH_COLUMN_HEAD },
		  { "POLICY", BH_COLUMN_LEFT },
		  { "ENTRY/S", BH_COLUMN_RIGHT },
		  { "WAIT50", BH_COLUMN_RIGHT },
		  { "WAIT99", BH_COLUMN_RIGHT },
		  { "WAITMAX", BH_COLUMN_RIGHT },
		  { "INSIDE", BH_COLUMN_RIGHT },
		  { "HELD", BH_COLUMN_RIGHT },
		  { "SHARE", BH_COLUMN_RIGHT } },
	};
	struct bh_columns table;

	bh_columns_init(&table, columns[rates], BH_ARRAY_LEN(columns[0]));
	for (size_t i = 0; i < n; i++)
		show_row(&table, &rows[i], rates);
	fputs(n ? "\n" : "", out);
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
}

/* ---- notes ----------------------------------------------------------------------------------- */

static void show_unsanctioned(FILE *out, const struct row *rows, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (bh_member_number(rows[i].site, "unsanctioned") > 0)
			bh_columns_wrap(out, 2, "%s: %s unsanctioned",
					bh_member_string(rows[i].site, "site"),
					bh_member_count(rows[i].site, "unsanctioned").bytes);
}

/* "longest wait: 500ms by bulkheadd at host.dispatch, 21:04:05", of the site with the greatest. */
static void show_longest(FILE *out, const struct row *rows, size_t n, const char *what,
			 const char *key, const char *key_at, const char *key_thread)
{
	const json_t *most = NULL;
	double most_s = 0;

	for (size_t i = 0; i < n; i++) {
		double s = bh_member_number(rows[i].site, key);

		if (s > most_s && bh_member_has_string(rows[i].site, key_thread)) {
			most_s = s;
			most = rows[i].site;
		}
	}
	if (most)
		bh_columns_wrap(out, 2, "longest %s: %s by %s at %s, %s", what,
				bh_cell_time(most_s).bytes, bh_member_string(most, key_thread),
				bh_member_string(most, "site"),
				bh_member_clock(most, key_at, "%m-%d %H:%M:%S").bytes);
}

void bh_show_gil(FILE *out, const json_t *reply, const json_t *before, double elapsed_s)
{
	bh_auto_mem struct row *rows = NULL;
	size_t n = 0;

	show_holder(out, reply);
	show_courier(out, reply);
	rows = rows_make(reply, before, elapsed_s, &n);
	show_sites(out, rows, n, before != NULL);
	show_unsanctioned(out, rows, n);
	show_longest(out, rows, n, "wait", "wait_max_s", "wait_max_at", "wait_max_thread");
	show_longest(out, rows, n, "inside", "inside_max_s", "inside_max_at", "inside_max_thread");
}

/* ---- by thread ------------------------------------------------------------------------------- */

void bh_show_gil_threads(FILE *out, const json_t *reply)
{
	static const struct bh_column columns[] = {
		{ "THREAD", BH_COLUMN_HEAD }, { "TID", BH_COLUMN_RIGHT },
		{ "PLANE", BH_COLUMN_HEAD },  { "STATE", BH_COLUMN_LEFT },
		{ "FOR", BH_COLUMN_RIGHT },   { "SITE", BH_COLUMN_HEAD },
	};
	const json_t *threads = json_object_get(reply, "threads"), *thread;
	struct bh_columns table;
	size_t i;

	show_holder(out, reply);
	bh_columns_init(&table, columns, BH_ARRAY_LEN(columns));
	json_array_foreach(threads, i, thread)
	{
		/* Main under another event loop: its waits are not told from its work. */
		bool coarse = json_is_true(json_object_get(thread, "coarse"));

		bh_columns_cell(&table, "%s", bh_member_string(thread, "thread"));
		bh_columns_cell(&table, "%s", bh_member_id(thread, "tid").bytes);
		bh_columns_cell(&table, "%s", bh_member_plane(thread).bytes);
		bh_columns_cell(&table, "%s", bh_member_string(thread, "state"));
		bh_columns_cell(&table, "%s", bh_member_time(thread, "since_s").bytes);
		bh_columns_cell(&table, "%s%s", bh_member_string(thread, "site"),
				coarse ? " (coarse)" : "");
	}
	fputs(json_array_size(threads) ? "\n" : "", out);
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
}
