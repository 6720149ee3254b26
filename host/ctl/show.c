/* SPDX-License-Identifier: BSD-3-Clause */
/* show - the host's answers for people: at most 80 columns wide, in units that people read. */
#include "config.h"

#include "host/ctl/show.h"

#include <string.h>

#include "host/ctl/columns.h"
#include "host/ctl/members.h"

/* ---- status ---------------------------------------------------------------------------------- */

static void show_errors(FILE *out, const json_t *parts, const char *name_key)
{
	const json_t *part;
	size_t i;

	json_array_foreach(parts, i, part) if (bh_member_has_string(part, "error"))
		bh_columns_wrap(out, 0, "%s: %s", bh_member_string(part, name_key),
				bh_member_string(part, "error"));
}

static void show_host(FILE *out, const json_t *reply)
{
	const char *python = bh_member_string(reply, "python");
	const char *state = bh_member_string(reply, "state");
	bool between = bh_member_has_string(reply, "phase") &&
		       strcmp(state, bh_member_string(reply, "phase")) != 0;
	bool waits = between && bh_member_has_string(reply, "waiting_for");

	bh_columns_wrap(out, 0, "%s: %s%s%s%s%s%s, up %s", bh_member_string(reply, "name"), state,
			between ? " (" : "", between ? bh_member_string(reply, "phase") : "",
			waits ? " " : "", waits ? bh_member_string(reply, "waiting_for") : "",
			between ? ")" : "", bh_member_time(reply, "uptime_s").bytes);
	bh_columns_wrap(out, 0, "pid %s, bulkhead %s, Python %.*s",
			bh_member_id(reply, "pid").bytes, bh_member_string(reply, "version"),
			(int)strcspn(python, " "), python);
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
		bh_columns_cell(&table, "%s", bh_member_string(part, "label"));
		bh_columns_cell(&table, "%s", bh_member_string(part, "version"));
		bh_columns_cell(&table, "%s", bh_member_string(part, "state"));
		bh_columns_cell(&table, "%s", bh_member_string(part, "pool"));
		bh_columns_cell(&table, "%s", bh_member_string(part, "path"));
	}
	fputs(json_array_size(plugins) ? "\n" : "", out);
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
	show_errors(out, plugins, "label");

	bh_columns_init(&table, app_columns, BH_ARRAY_LEN(app_columns));
	json_array_foreach(apps, i, part)
	{
		bh_columns_cell(&table, "%s", bh_member_string(part, "name"));
		bh_columns_cell(&table, "%s", bh_member_string(part, "state"));
		bh_columns_cell(&table, "%s", bh_member_string(part, "object"));
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
	const char *label = bh_member_string(pool, "label");
	size_t i;

	if (bh_member_number(pool, "cancelled") > 0 || bh_member_number(pool, "deadline") > 0 ||
	    bh_member_number(pool, "abandoned") > 0)
		bh_columns_wrap(out, 2, "%s: %s cancelled, %s past their deadline, %s abandoned",
				label, bh_member_count(pool, "cancelled").bytes,
				bh_member_count(pool, "deadline").bytes,
				bh_member_count(pool, "abandoned").bytes);
	if (json_is_object(cause))
		bh_columns_wrap(out, 2, "%s: %s", label,
				bh_member_has_string(cause, "text")
					? bh_member_string(cause, "text")
					: bh_member_string(cause, "id"));
	json_array_foreach(running, i, task) bh_columns_wrap(
		out, 2, "%s runs %s, task %s, for %s%s", bh_member_string(task, "thread"),
		bh_member_string(task, "op"), bh_member_id(task, "task").bytes,
		bh_member_time(task, "since_s").bytes,
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
		bh_columns_cell(&table, "%s", bh_member_string(pool, "label"));
		bh_columns_cell(&table, "%s", bh_member_string(pool, "state"));
		bh_columns_cell(&table, "%s/%s", bh_member_count(pool, "busy").bytes,
				bh_member_count(pool, "workers").bytes);
		bh_columns_cell(&table, "%s/%s", bh_member_count(pool, "queued").bytes,
				bh_member_count(pool, "queue").bytes);
		bh_columns_cell(&table, "%s", bh_member_count(pool, "pending").bytes);
		bh_columns_cell(&table, "%s", bh_member_count(pool, "submitted").bytes);
		bh_columns_cell(&table, "%s", bh_member_count(pool, "done").bytes);
		bh_columns_cell(&table, "%s", bh_member_count(pool, "failed").bytes);
		bh_columns_cell(&table, "%s", bh_member_count(pool, "refused").bytes);
	}
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
	if (json_array_size(pools) == 0)
		fputs("no pools\n", out);
	json_array_foreach(pools, i, pool) show_pool_notes(out, pool);
}

/* ---- plugins --------------------------------------------------------------------------------- */

/* Text as it is, whatever else as JSON; "-" for what is not there. */
static char *value_dup(const json_t *value)
{
	if (!value)
		return bh_ctl_must(strdup("-"));
	if (json_is_string(value))
		return bh_ctl_must(strdup(json_string_value(value)));
	return bh_ctl_must(json_dumps(value, JSON_ENCODE_ANY));
}

static void plugin_facts_show(FILE *out, const json_t *plugin)
{
	json_t *facts = json_object_get(plugin, "facts"), *value;
	const char *key;

	json_object_foreach(facts, key, value)
	{
		bh_auto_mem char *text = value_dup(value);

		bh_columns_wrap(out, 4, "%s: %s", key, text);
	}
}

static void plugin_metrics_show(FILE *out, const json_t *plugin)
{
	const json_t *metrics = json_object_get(plugin, "metrics"), *metric;
	size_t i;

	json_array_foreach(metrics, i, metric)
	{
		bh_auto_mem char *value = value_dup(json_object_get(metric, "value"));

		bh_columns_wrap(out, 4, "%s %s  %s", bh_member_string(metric, "name"), value,
				bh_member_string(metric, "doc"));
	}
}

static void plugin_notes_show(FILE *out, const json_t *plugin)
{
	const json_t *health = json_object_get(plugin, "health");
	const json_t *cause = json_object_get(health, "cause");

	if (!json_is_object(cause) && !bh_member_has_string(plugin, "error") &&
	    json_object_size(json_object_get(plugin, "facts")) == 0 &&
	    json_array_size(json_object_get(plugin, "metrics")) == 0)
		return;
	fputc('\n', out);
	bh_columns_wrap(out, 0, "%s", bh_member_string(plugin, "label"));
	if (json_is_object(cause) && json_is_number(json_object_get(health, "since_s")))
		bh_columns_wrap(out, 4, "%s for %s: %s", bh_member_string(health, "state"),
				bh_member_time(health, "since_s").bytes,
				bh_member_string(cause, "text"));
	else if (json_is_object(cause))
		bh_columns_wrap(out, 4, "%s: %s", bh_member_string(health, "state"),
				bh_member_string(cause, "text"));
	else if (bh_member_has_string(plugin, "error"))
		bh_columns_wrap(out, 4, "%s", bh_member_string(plugin, "error"));
	plugin_facts_show(out, plugin);
	plugin_metrics_show(out, plugin);
}

void bh_show_plugins(FILE *out, const json_t *reply)
{
	static const struct bh_column columns[] = {
		{ "PLUGIN", BH_COLUMN_HEAD }, { "VERSION", BH_COLUMN_LEFT },
		{ "STATE", BH_COLUMN_LEFT },  { "HEALTH", BH_COLUMN_LEFT },
		{ "POOL", BH_COLUMN_LEFT },
	};
	const json_t *plugins = json_object_get(reply, "plugins"), *plugin;
	struct bh_columns table;
	size_t i;

	bh_columns_init(&table, columns, BH_ARRAY_LEN(columns));
	json_array_foreach(plugins, i, plugin)
	{
		bh_columns_cell(&table, "%s", bh_member_string(plugin, "label"));
		bh_columns_cell(&table, "%s", bh_member_string(plugin, "version"));
		bh_columns_cell(&table, "%s", bh_member_string(plugin, "state"));
		bh_columns_cell(&table, "%s",
				bh_member_string(json_object_get(plugin, "health"), "state"));
		bh_columns_cell(&table, "%s", bh_member_string(plugin, "pool"));
	}
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
	if (json_array_size(plugins) == 0)
		fputs("no plugins\n", out);
	json_array_foreach(plugins, i, plugin) plugin_notes_show(out, plugin);
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

/* ---- endpoints ------------------------------------------------------------------------------- */

static void signature_write(FILE *signature, const json_t *endpoint)
{
	const json_t *parameters = json_object_get(endpoint, "parameters"), *parameter;
	const char *separator = "";
	bool keywords = false;
	size_t i;

	fprintf(signature, "%s(", bh_member_string(endpoint, "name"));
	json_array_foreach(parameters, i, parameter)
	{
		const char *kind = bh_member_string(parameter, "kind");
		bool many = strcmp(kind, "var-positional") == 0;

		if (strcmp(kind, "keyword-only") == 0 && !keywords) {
			fprintf(signature, "%s*", separator);
			separator = ", ";
		}
		keywords = keywords || many || strcmp(kind, "keyword-only") == 0;
		fprintf(signature, "%s%s%s: %s", separator,
			many				   ? "*"
			: strcmp(kind, "var-keyword") == 0 ? "**"
							   : "",
			bh_member_string(parameter, "name"), bh_member_string(parameter, "type"));
		if (bh_member_has_string(parameter, "default"))
			fprintf(signature, " = %s", bh_member_string(parameter, "default"));
		separator = ", ";
	}
	fputc(')', signature);
	if (bh_member_has_string(endpoint, "returns"))
		fprintf(signature, " -> %s", bh_member_string(endpoint, "returns"));
}

void bh_show_app(FILE *out, const json_t *app)
{
	const json_t *endpoints = json_object_get(app, "endpoints"), *endpoint;
	size_t i;

	if (json_array_size(endpoints) == 0)
		bh_columns_wrap(out, 0, "%s (%s) has no endpoints", bh_member_string(app, "name"),
				bh_member_string(app, "state"));
	json_array_foreach(endpoints, i, endpoint)
	{
		bh_auto_mem char *text = NULL;
		size_t length = 0;
		FILE *signature = bh_ctl_must(open_memstream(&text, &length));

		signature_write(signature, endpoint);
		bh_ctl_must(fclose(signature) == 0 ? text : NULL);
		bh_columns_wrap(out, 0, "%s", text);
		if (bh_member_has_string(endpoint, "doc"))
			bh_columns_wrap(out, 4, "%s", bh_member_string(endpoint, "doc"));
	}
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

	if (!bh_member_has_string(error, "code") && !bh_member_has_string(error, "message"))
		return false;
	line = bh_ctl_must(open_memstream(&text, &size));
	code = bh_member_string(error, "code");
	message = bh_member_string(error, "message");
	if (strncmp(message, code, strlen(code)) != 0)
		fprintf(line, "%s: ", code);
	fputs(message, line);
	facts_write(line, json_object_get(error, "facts"), message);
	bh_ctl_must(fclose(line) == 0 ? text : NULL);
	bh_ctl_complain("%s", text);
	return true;
}
