/* SPDX-License-Identifier: BSD-3-Clause */
/* show_stalls - what was stuck: all episodes in a line each, and one with its stacks. */
#include "config.h"

#include <stdarg.h>
#include <string.h>

#include "host/ctl/columns.h"
#include "host/ctl/members.h"
#include "host/ctl/show.h"

#define WHEN "%m-%d %H:%M:%S"
#define SEPARATOR " < " /* between the frames of a native stack */

static char *text_make(const char *format, ...) BH_PRINTF(1, 2);

static char *text_make(const char *format, ...)
{
	char *text = NULL;
	va_list args;

	va_start(args, format);
	bh_ctl_must(vasprintf(&text, format, args) < 0 ? NULL : text);
	va_end(args);
	return text;
}

/* ", KEY VALUE" of what there is; an empty text otherwise. The caller frees it. */
static char *part_of(const json_t *object, const char *key)
{
	if (bh_member_has_string(object, key))
		return text_make(", %s %s", key, bh_member_string(object, key));
	if (json_is_integer(json_object_get(object, key)))
		return text_make(", %s %s", key, bh_member_id(object, key).bytes);
	return text_make("%s", "");
}

/* ---- all ------------------------------------------------------------------------------------- */

static void show_lags(FILE *out, const json_t *reply)
{
	static const struct bh_column columns[] = {
		{ "WHAT", BH_COLUMN_LEFT },    { "NOW", BH_COLUMN_RIGHT },
		{ "LAST", BH_COLUMN_RIGHT },   { "P50", BH_COLUMN_RIGHT },
		{ "P99", BH_COLUMN_RIGHT },    { "MAX", BH_COLUMN_RIGHT },
		{ "MAX WAS", BH_COLUMN_LEFT }, { "LIMIT", BH_COLUMN_RIGHT },
		{ "STALLS", BH_COLUMN_RIGHT },
	};
	/* Tasks have neither a lag nor a limit that is the same for all. */
	static const char *const kinds[] = { "gil", "asyncio", "control", "task" };
	const json_t *lags = json_object_get(reply, "lags");
	const json_t *limits = json_object_get(reply, "limits");
	const json_t *counts = json_object_get(reply, "counts");
	struct bh_columns table;

	bh_columns_init(&table, columns, BH_ARRAY_LEN(columns));
	for (size_t i = 0; i < BH_ARRAY_LEN(kinds); i++) {
		const json_t *lag = json_object_get(lags, kinds[i]);
		bh_auto_mem char *limit = text_make("%s_s", kinds[i]);

		bh_columns_cell(&table, "%s", kinds[i]);
		bh_columns_cell(&table, "%s", bh_member_time(lag, "now_s").bytes);
		bh_columns_cell(&table, "%s", bh_member_time(lag, "last_s").bytes);
		bh_columns_cell(&table, "%s", bh_member_time(lag, "p50_s").bytes);
		bh_columns_cell(&table, "%s", bh_member_time(lag, "p99_s").bytes);
		bh_columns_cell(&table, "%s", bh_member_time(lag, "max_s").bytes);
		bh_columns_cell(&table, "%s", bh_member_clock(lag, "max_at", WHEN).bytes);
		bh_columns_cell(&table, "%s", bh_member_time(limits, limit).bytes);
		bh_columns_cell(&table, "%s", bh_member_count(counts, kinds[i]).bytes);
	}
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
}

/* "hold/0 at hold.hold: hold 5629": whoever held the GIL, and else what is stuck itself. The caller
 * frees it. */
static char *who_of(const json_t *stall)
{
	const json_t *holder = json_object_get(stall, "holder");
	bool of_task = strcmp(bh_member_string(stall, "kind"), "task") == 0;
	const json_t *who = json_is_object(holder) && !of_task ? holder : stall;
	bool at = bh_member_has_string(who, "site"), runs = bh_member_has_string(who, "op");

	return text_make("%s%s%s%s%s%s%s", bh_member_string(who, "thread"), at ? " at " : "",
			 at ? bh_member_string(who, "site") : "", runs ? ": " : "",
			 runs ? bh_member_string(who, "op") : "", runs ? " " : "",
			 runs ? bh_member_id(who, "task").bytes : "");
}

void bh_show_stalls(FILE *out, const json_t *reply)
{
	static const struct bh_column columns[] = {
		{ "ID", BH_COLUMN_RIGHT },  { "BEGAN", BH_COLUMN_LEFT }, { "KIND", BH_COLUMN_LEFT },
		{ "FOR", BH_COLUMN_RIGHT }, { "", BH_COLUMN_LEFT },	 { "WHO", BH_COLUMN_HEAD },
	};
	const json_t *stalls = json_object_get(reply, "stalls"), *stall;
	struct bh_columns table;
	size_t i;

	show_lags(out, reply);
	bh_columns_init(&table, columns, BH_ARRAY_LEN(columns));
	json_array_foreach(stalls, i, stall)
	{
		bh_auto_mem char *who = who_of(stall);

		bh_columns_cell(&table, "%s", bh_member_id(stall, "id").bytes);
		bh_columns_cell(&table, "%s", bh_member_clock(stall, "began", WHEN).bytes);
		bh_columns_cell(&table, "%s", bh_member_string(stall, "kind"));
		bh_columns_cell(&table, "%s", bh_member_time(stall, "lag_s").bytes);
		bh_columns_cell(&table, "%s",
				json_is_null(json_object_get(stall, "ended")) ? "on" : "");
		bh_columns_cell(&table, "%s", who);
	}
	putc('\n', out);
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
	if (json_array_size(stalls) == 0)
		fputs("no stalls\n", out);
}

/* ---- one ------------------------------------------------------------------------------------- */

static void show_waiters(FILE *out, const json_t *stall)
{
	static const struct bh_column columns[] = {
		{ "WAITING", BH_COLUMN_HEAD }, { "TID", BH_COLUMN_RIGHT },
		{ "PLANE", BH_COLUMN_HEAD },   { "FOR", BH_COLUMN_RIGHT },
		{ "SITE", BH_COLUMN_HEAD },
	};
	const json_t *waiters = json_object_get(stall, "waiters"), *waiter;
	struct bh_columns table;
	size_t i;

	bh_columns_init(&table, columns, BH_ARRAY_LEN(columns));
	json_array_foreach(waiters, i, waiter)
	{
		bh_columns_cell(&table, "%s", bh_member_string(waiter, "thread"));
		bh_columns_cell(&table, "%s", bh_member_id(waiter, "tid").bytes);
		bh_columns_cell(&table, "%s", bh_member_plane(waiter).bytes);
		bh_columns_cell(&table, "%s", bh_member_time(waiter, "since_s").bytes);
		bh_columns_cell(&table, "%s", bh_member_string(waiter, "site"));
	}
	fputs(json_array_size(waiters) ? "\n" : "", out);
	bh_columns_print(&table, out);
	bh_columns_fini(&table);
}

static void show_native(FILE *out, const json_t *stall)
{
	const json_t *stacks = json_object_get(stall, "native"), *stack;
	size_t i;

	json_array_foreach(stacks, i, stack)
	{
		const char *rest = bh_member_string(stack, "stack");

		fputs("\n", out);
		bh_columns_wrap(out, 0,
				"native stack of %s (tid %s):", bh_member_string(stack, "thread"),
				bh_member_id(stack, "tid").bytes);
		for (const char *end = rest; end; rest = end + strlen(SEPARATOR)) {
			end = strstr(rest, SEPARATOR);
			bh_columns_wrap(out, 2, "%.*s",
					(int)(end ? (size_t)(end - rest) : strlen(rest)), rest);
			if (!end)
				break;
		}
	}
}

static void show_python(FILE *out, const json_t *stall)
{
	const json_t *stacks = json_object_get(stall, "python"), *stack;
	size_t i;

	json_array_foreach(stacks, i, stack)
	{
		const json_t *frames = json_object_get(stack, "frames"), *frame;
		size_t k;

		fputs("\n", out);
		bh_columns_wrap(
			out, 0, "Python stack of %s (tid %s%s):", bh_member_string(stack, "thread"),
			bh_member_id(stack, "tid").bytes,
			json_is_true(json_object_get(stack, "holds")) ? ", holds the GIL" : "");
		json_array_foreach(frames, k, frame) bh_columns_wrap(
			out, 2, "%s", json_is_string(frame) ? json_string_value(frame) : "-");
		if (json_is_true(json_object_get(stack, "cut")))
			fputs("  …\n", out);
	}
}

static void show_holder(FILE *out, const json_t *stall)
{
	static const char *const keys[] = { "library", "pool", "op", "task" };
	const json_t *holder = json_object_get(stall, "holder");
	bh_auto_mem char *text = NULL;

	if (!json_is_object(holder)) {
		fputs("the GIL was held by nobody\n", out);
		return;
	}
	text = text_make("%s (tid %s, %s) at %s for %s", bh_member_string(holder, "thread"),
			 bh_member_id(holder, "tid").bytes, bh_member_plane(holder).bytes,
			 bh_member_string(holder, "site"), bh_member_time(holder, "since_s").bytes);
	for (size_t i = 0; i < BH_ARRAY_LEN(keys); i++) {
		bh_auto_mem char *part = part_of(holder, keys[i]);
		char *longer = text_make("%s%s", text, part);

		free(text);
		text = longer;
	}
	bh_columns_wrap(out, 0, "the GIL was held by %s", text);
	if (json_is_true(json_object_get(holder, "changed")))
		fputs("(no longer, when the stacks were taken)\n", out);
}

/* A task is stuck on a thread; of a loop only the thread may be known. */
static void show_subject(FILE *out, const json_t *stall)
{
	bh_auto_mem char *pool = part_of(stall, "pool"), *op = part_of(stall, "op"),
			 *task = part_of(stall, "task");

	if (bh_member_has_string(stall, "thread"))
		bh_columns_wrap(out, 0, "stuck: %s (tid %s)%s%s%s",
				bh_member_string(stall, "thread"), bh_member_id(stall, "tid").bytes,
				pool, op, task);
}

void bh_show_stall(FILE *out, const json_t *stall)
{
	bool on = json_is_null(json_object_get(stall, "ended"));

	bh_columns_wrap(out, 0, "stall %s: %s, %s%s, %s%s (limit %s)",
			bh_member_id(stall, "id").bytes, bh_member_string(stall, "kind"),
			bh_member_clock(stall, "began", "%Y-%m-%d %H:%M:%S").bytes,
			on ? "" : bh_member_clock(stall, "ended", " to %H:%M:%S").bytes,
			bh_member_time(stall, "lag_s").bytes, on ? " until now" : "",
			bh_member_time(stall, "limit_s").bytes);
	show_subject(out, stall);
	show_holder(out, stall);
	show_waiters(out, stall);
	show_native(out, stall);
	show_python(out, stall);
}
