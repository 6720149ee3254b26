/* SPDX-License-Identifier: BSD-3-Clause */
/* show - the host's answers for people: at most 80 columns wide, in units that people read. */
#include "config.h"

#include "host/ctl/show.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "host/ctl/columns.h"

/* ---- members --------------------------------------------------------------------------------- */

struct text {
	char bytes[32];
};

static const char *string_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text && *text ? text : "-";
}

static bool has_string(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text && *text;
}

static double number_of(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Whole to seven digits, then in millions: the exact number is in --json. */
static struct text count_of(const json_t *object, const char *key)
{
	static const struct {
		double least, factor;
		const char *unit;
	} units[] = { { 1e13, 1e12, "T" }, { 1e10, 1e9, "G" }, { 1e7, 1e6, "M" } };
	double count = number_of(object, key);
	struct text text = { "-" };

	for (size_t i = 0; i < BH_ARRAY_LEN(units); i++) {
		if (count >= units[i].least) {
			snprintf(text.bytes, sizeof(text.bytes), "%.1f%s", count / units[i].factor,
				 units[i].unit);
			return text;
		}
	}
	if (!isnan(count))
		snprintf(text.bytes, sizeof(text.bytes), "%.0f", count);
	return text;
}

/* Every digit: what is looked up elsewhere by it. */
static struct text id_of(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	struct text text = { "-" };

	if (json_is_integer(value))
		snprintf(text.bytes, sizeof(text.bytes), "%" PRId64,
			 (int64_t)json_integer_value(value));
	return text;
}

/* Five or six characters: 0, 12us, 3.4ms, 1.23s, 12m03s, 3h05m, 12d. */
static struct text time_text(double s)
{
	struct text text = { "-" };
	long whole = isfinite(s) && s < 1e12 ? (long)s : 0;

#define TIME(...) snprintf(text.bytes, sizeof(text.bytes), __VA_ARGS__)
	if (!isfinite(s) || s < 0 || s >= 1e12)
		return text;
	if (s < 0.5e-6)
		TIME("0");
	else if (s < 0.9995e-3)
		TIME("%.0fus", s * 1e6);
	else if (s < 9.95e-3)
		TIME("%.1fms", s * 1e3);
	else if (s < 0.9995)
		TIME("%.0fms", s * 1e3);
	else if (s < 9.995)
		TIME("%.2fs", s);
	else if (s < 99.95)
		TIME("%.1fs", s);
	else if (s < 3600)
		TIME("%ldm%02lds", whole / 60, whole % 60);
	else if (s < 100 * 3600)
		TIME("%ldh%02ldm", whole / 3600, whole / 60 % 60);
	else
		TIME("%ldd", whole / 86400);
#undef TIME
	return text;
}

static struct text time_of(const json_t *object, const char *key)
{
	return time_text(number_of(object, key));
}

/* ---- status ---------------------------------------------------------------------------------- */

static void show_errors(FILE *out, const json_t *parts, const char *name_key)
{
	const json_t *part;
	size_t i;

	json_array_foreach(parts, i, part) if (has_string(part, "error")) bh_columns_wrap(
		out, 0, "%s: %s", string_of(part, name_key), string_of(part, "error"));
}

static void show_host(FILE *out, const json_t *reply)
{
	const char *python = string_of(reply, "python");
	const char *state = string_of(reply, "state");
	bool between = has_string(reply, "phase") && strcmp(state, string_of(reply, "phase")) != 0;
	bool waits = between && has_string(reply, "waiting_for");

	bh_columns_wrap(out, 0, "%s: %s%s%s%s%s%s, up %s", string_of(reply, "name"), state,
			between ? " (" : "", between ? string_of(reply, "phase") : "",
			waits ? " " : "", waits ? string_of(reply, "waiting_for") : "",
			between ? ")" : "", time_of(reply, "uptime_s").bytes);
	bh_columns_wrap(out, 0, "pid %s, bulkhead %s, Python %.*s", id_of(reply, "pid").bytes,
			string_of(reply, "version"), (int)strcspn(python, " "), python);
}

void bh_show_status(FILE *out, const json_t *reply)
{
	static const struct bh_column plugin_columns[] = {
		{ "PLUGIN", BH_COLUMN_LEFT },  { "VERSION", BH_COLUMN_LEFT },
		{ "STATE", BH_COLUMN_LEFT },   { "POOL", BH_COLUMN_LEFT },
		{ "LIBRARY", BH_COLUMN_TAIL },
	};
	static const struct bh_column app_columns[] = {
		{ "APP", BH_COLUMN_LEFT },
		{ "STATE", BH_COLUMN_LEFT },
		{ "OBJECT", BH_COLUMN_HEAD },
	};
	const json_t *plugins = json_object_get(reply, "plugins"),
		     *apps = json_object_get(reply, "apps"), *part;
	struct bh_columns table;
	size_t i;

	show_host(out, reply);
	bh_columns_init(&table, plugin_columns, BH_ARRAY_LEN(plugin_columns));
	json_array_foreach(plugins, i, part)
	{
		bh_columns_cell(&table, "%s", string_of(part, "label"));
		bh_columns_cell(&table, "%s", string_of(part, "version"));
		bh_columns_cell(&table, "%s", string_of(part, "state"));
		bh_columns_cell(&table, "%s", string_of(part, "pool"));
		bh_columns_cell(&table, "%s", string_of(part, "path"));
	}
	fputs(json_array_size(plugins) ? "\n" : "", out);
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
	show_errors(out, plugins, "label");

	bh_columns_init(&table, app_columns, BH_ARRAY_LEN(app_columns));
	json_array_foreach(apps, i, part)
	{
		bh_columns_cell(&table, "%s", string_of(part, "name"));
		bh_columns_cell(&table, "%s", string_of(part, "state"));
		bh_columns_cell(&table, "%s", string_of(part, "object"));
	}
	fputs(json_array_size(apps) ? "\n" : "", out);
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
	show_errors(out, apps, "name");
}

/* ---- pools ----------------------------------------------------------------------------------- */

/* What the table has no room for, where there is something to say. */
static void show_pool_notes(FILE *out, const json_t *pool)
{
	const json_t *cause = json_object_get(pool, "cause");
	const json_t *running = json_object_get(pool, "running_tasks"), *task;
	const char *label = string_of(pool, "label");
	size_t i;

	if (number_of(pool, "cancelled") > 0 || number_of(pool, "deadline") > 0 ||
	    number_of(pool, "abandoned") > 0)
		bh_columns_wrap(out, 2, "%s: %s cancelled, %s past their deadline, %s abandoned",
				label, count_of(pool, "cancelled").bytes,
				count_of(pool, "deadline").bytes,
				count_of(pool, "abandoned").bytes);
	if (json_is_object(cause))
		bh_columns_wrap(out, 2, "%s: %s", label,
				has_string(cause, "text") ? string_of(cause, "text")
							  : string_of(cause, "id"));
	json_array_foreach(running, i, task) bh_columns_wrap(
		out, 2, "%s runs %s, task %s, for %s%s", string_of(task, "thread"),
		string_of(task, "op"), id_of(task, "task").bytes, time_of(task, "since_s").bytes,
		json_is_true(json_object_get(task, "cancelled")) ? ", told to end" : "");
}

void bh_show_pools(FILE *out, const json_t *reply)
{
	static const struct bh_column columns[] = {
		{ "POOL", BH_COLUMN_HEAD },	{ "STATE", BH_COLUMN_LEFT },
		{ "BUSY", BH_COLUMN_RIGHT },	{ "QUEUED", BH_COLUMN_RIGHT },
		{ "PENDING", BH_COLUMN_RIGHT }, { "SUBMITTED", BH_COLUMN_RIGHT },
		{ "DONE", BH_COLUMN_RIGHT },	{ "FAILED", BH_COLUMN_RIGHT },
		{ "REFUSED", BH_COLUMN_RIGHT },
	};
	const json_t *pools = json_object_get(reply, "pools"), *pool;
	struct bh_columns table;
	size_t i;

	bh_columns_init(&table, columns, BH_ARRAY_LEN(columns));
	json_array_foreach(pools, i, pool)
	{
		bh_columns_cell(&table, "%s", string_of(pool, "label"));
		bh_columns_cell(&table, "%s", string_of(pool, "state"));
		bh_columns_cell(&table, "%s/%s", count_of(pool, "busy").bytes,
				count_of(pool, "workers").bytes);
		bh_columns_cell(&table, "%s/%s", count_of(pool, "queued").bytes,
				count_of(pool, "queue").bytes);
		bh_columns_cell(&table, "%s", count_of(pool, "pending").bytes);
		bh_columns_cell(&table, "%s", count_of(pool, "submitted").bytes);
		bh_columns_cell(&table, "%s", count_of(pool, "done").bytes);
		bh_columns_cell(&table, "%s", count_of(pool, "failed").bytes);
		bh_columns_cell(&table, "%s", count_of(pool, "refused").bytes);
	}
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
	if (json_array_size(pools) == 0)
		fputs("no pools\n", out);
	json_array_foreach(pools, i, pool) show_pool_notes(out, pool);
}

/* ---- gil ------------------------------------------------------------------------------------- */

/* "data stream", "control", "none". */
static struct text plane_of(const json_t *thread)
{
	struct text text;

	snprintf(text.bytes, sizeof(text.bytes), "%.10s%s%.20s", string_of(thread, "plane"),
		 has_string(thread, "label") ? " " : "",
		 has_string(thread, "label") ? string_of(thread, "label") : "");
	return text;
}

static void show_holder(FILE *out, const json_t *reply)
{
	const json_t *holder = json_object_get(reply, "holder");

	if (json_is_object(holder))
		bh_columns_wrap(out, 0, "holder: %s (tid %s, %s) at %s for %s",
				string_of(holder, "thread"), id_of(holder, "tid").bytes,
				plane_of(holder).bytes, string_of(holder, "site"),
				time_of(holder, "since_s").bytes);
	else
		fputs("holder: nobody\n", out);
	bh_columns_wrap(out, 0, "gate %s, %s unsanctioned, %s parked, sampled for %s",
			string_of(reply, "gate"), count_of(reply, "unsanctioned").bytes,
			count_of(reply, "parked").bytes, time_of(reply, "sampled_s").bytes);
}

/* "data-only" as "data": the column's title says what it is. */
static int policy_length(const char *policy)
{
	return *policy == '-' ? 1 : (int)strcspn(policy, "-");
}

/* A site that nobody has come by yet says nothing to people; --json has it. */
static bool was_used(const json_t *site)
{
	static const char *const keys[] = { "entries", "nested", "unsanctioned", "held_s" };

	for (size_t i = 0; i < BH_ARRAY_LEN(keys); i++)
		if (!(number_of(site, keys[i]) <= 0)) /* also what is not there: NAN */
			return true;
	return false;
}

static void show_sites(FILE *out, const json_t *sites)
{
	static const struct bh_column columns[] = {
		{ "SITE", BH_COLUMN_HEAD },	{ "POLICY", BH_COLUMN_LEFT },
		{ "ENTRIES", BH_COLUMN_RIGHT }, { "NESTED", BH_COLUMN_RIGHT },
		{ "UNSANC", BH_COLUMN_RIGHT },	{ "WAITED", BH_COLUMN_RIGHT },
		{ "MAX", BH_COLUMN_RIGHT },	{ "INSIDE", BH_COLUMN_RIGHT },
		{ "MAX", BH_COLUMN_RIGHT },	{ "HELD", BH_COLUMN_RIGHT },
	};
	struct bh_columns table;
	const json_t *site;
	size_t i;

	bh_columns_init(&table, columns, BH_ARRAY_LEN(columns));
	json_array_foreach(sites, i, site)
	{
		const char *policy = string_of(site, "policy");

		if (!was_used(site))
			continue;
		bh_columns_cell(&table, "%s", string_of(site, "site"));
		bh_columns_cell(&table, "%.*s", policy_length(policy), policy);
		bh_columns_cell(&table, "%s", count_of(site, "entries").bytes);
		bh_columns_cell(&table, "%s", count_of(site, "nested").bytes);
		bh_columns_cell(&table, "%s", count_of(site, "unsanctioned").bytes);
		bh_columns_cell(&table, "%s", time_of(site, "wait_s").bytes);
		bh_columns_cell(&table, "%s", time_of(site, "wait_max_s").bytes);
		bh_columns_cell(&table, "%s", time_of(site, "inside_s").bytes);
		bh_columns_cell(&table, "%s", time_of(site, "inside_max_s").bytes);
		bh_columns_cell(&table, "%s", time_of(site, "held_s").bytes);
	}
	fputs(json_array_size(sites) ? "\n" : "", out);
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
}

static void show_threads(FILE *out, const json_t *threads)
{
	static const struct bh_column columns[] = {
		{ "THREAD", BH_COLUMN_HEAD }, { "TID", BH_COLUMN_RIGHT },
		{ "PLANE", BH_COLUMN_HEAD },  { "STATE", BH_COLUMN_LEFT },
		{ "FOR", BH_COLUMN_RIGHT },   { "SITE", BH_COLUMN_HEAD },
	};
	struct bh_columns table;
	const json_t *thread;
	size_t i;

	bh_columns_init(&table, columns, BH_ARRAY_LEN(columns));
	json_array_foreach(threads, i, thread)
	{
		bh_columns_cell(&table, "%s", string_of(thread, "thread"));
		bh_columns_cell(&table, "%s", id_of(thread, "tid").bytes);
		bh_columns_cell(&table, "%s", plane_of(thread).bytes);
		bh_columns_cell(&table, "%s", string_of(thread, "state"));
		bh_columns_cell(&table, "%s", time_of(thread, "since_s").bytes);
		bh_columns_cell(&table, "%s", string_of(thread, "site"));
	}
	fputs(json_array_size(threads) ? "\n" : "", out);
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
}

void bh_show_gil(FILE *out, const json_t *reply)
{
	show_holder(out, reply);
	show_sites(out, json_object_get(reply, "sites"));
	show_threads(out, json_object_get(reply, "threads"));
}

/* ---- calls and errors ------------------------------------------------------------------------ */

void bh_show_result(FILE *out, const json_t *reply)
{
	const json_t *result = json_object_get(reply, "result");

	/* 15 digits: 0.1 rather than 0.10000000000000001. The rest is in --json. */
	json_dumpf(result ? result : reply, out,
		   JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
	putc('\n', out);
}

/* A message that was made of an error's own facts says them already. */
static bool says(const char *message, const char *key)
{
	char fact[64];

	snprintf(fact, sizeof(fact), "%s=", key);
	return strstr(message, fact) != NULL;
}

static void facts_write(FILE *out, json_t *facts, const char *message)
{
	const char *key, *separator = " (";
	json_t *value;

	json_object_foreach(facts, key, value)
	{
		bh_auto_mem char *text = NULL;

		if (says(message, key))
			continue;
		if (!json_is_string(value))
			text = bh_ctl_must(json_dumps(value, JSON_ENCODE_ANY));
		fprintf(out, "%s%s=%s", separator, key, text ? text : json_string_value(value));
		separator = " ";
	}
	fputs(*separator == ' ' && separator[1] ? "" : ")", out);
}

bool bh_show_error(const json_t *reply)
{
	const json_t *error = json_object_get(reply, "error");
	bh_auto_mem char *text = NULL;
	const char *code, *message;
	size_t size;
	FILE *line;

	if (!has_string(error, "code") && !has_string(error, "message"))
		return false;
	line = bh_ctl_must(open_memstream(&text, &size));
	code = string_of(error, "code");
	message = string_of(error, "message");
	if (strncmp(message, code, strlen(code)) != 0)
		fprintf(line, "%s: ", code);
	fputs(message, line);
	facts_write(line, json_object_get(error, "facts"), message);
	bh_ctl_must(fclose(line) == 0 ? text : NULL);
	bh_ctl_complain("%s", text);
	return true;
}
