/* SPDX-License-Identifier: BSD-3-Clause */
/* members - see members.h. */
#include "config.h"

#include "host/ctl/members.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *bh_member_string(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text && *text ? text : "-";
}

bool bh_member_has_string(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text && *text;
}

double bh_member_number(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Whole to seven digits, then in millions: the exact number is in --json. */
struct bh_cell bh_cell_count(double count)
{
	static const struct {
		double least, factor;
		const char *unit;
	} units[] = { { 1e13, 1e12, "T" }, { 1e10, 1e9, "G" }, { 1e7, 1e6, "M" } };
	struct bh_cell text = { "-" };

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

struct bh_cell bh_member_count(const json_t *object, const char *key)
{
	return bh_cell_count(bh_member_number(object, key));
}

/* Every digit: what is looked up elsewhere by it. */
struct bh_cell bh_member_id(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);
	struct bh_cell text = { "-" };

	if (json_is_integer(value))
		snprintf(text.bytes, sizeof(text.bytes), "%" PRId64,
			 (int64_t)json_integer_value(value));
	return text;
}

/* Five or six characters: 0, 12us, 3.4ms, 1.23s, 12m03s, 3h05m, 12d. */
struct bh_cell bh_cell_time(double s)
{
	struct bh_cell text = { "-" };
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

struct bh_cell bh_member_time(const json_t *object, const char *key)
{
	return bh_cell_time(bh_member_number(object, key));
}

/* "data stream", "control", "none". */
struct bh_cell bh_member_plane(const json_t *thread)
{
	struct bh_cell text;

	snprintf(text.bytes, sizeof(text.bytes), "%.10s%s%.20s", bh_member_string(thread, "plane"),
		 bh_member_has_string(thread, "label") ? " " : "",
		 bh_member_has_string(thread, "label") ? bh_member_string(thread, "label") : "");
	return text;
}

struct bh_cell bh_member_clock(const json_t *object, const char *key, const char *format)
{
	double at = bh_member_number(object, key);
	struct bh_cell text = { "-" };
	struct tm parts;
	time_t whole;

	if (!(at > 0 && at < 1e12))
		return text;
	whole = (time_t)at;
	if (!localtime_r(&whole, &parts) ||
	    strftime(text.bytes, sizeof(text.bytes), format, &parts) == 0)
		text = (struct bh_cell){ "-" };
	return text;
}
