/* SPDX-License-Identifier: BSD-3-Clause */
/* test_option - host/manifest/option.c: typed values, their refusals, the nearest name. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "host/manifest/option.h"
#include "tests/unit/tap.h"

#define MS INT64_C(1000000)
#define S INT64_C(1000000000)

static const struct bh_option int_row = { .name = "n", .type = BH_OPT_INT, .min = -5, .max = 1024 };
static const struct bh_option any_int_row = { .name = "n", .type = BH_OPT_INT };
static const struct bh_option bool_row = { .name = "b", .type = BH_OPT_BOOL };
static const struct bh_option str_row = { .name = "s", .type = BH_OPT_STR };
static const struct bh_option size_row = {
	.name = "z", .type = BH_OPT_SIZE, .min = 4096, .max = INT64_C(1) << 30
};
static const struct bh_option any_size_row = { .name = "z", .type = BH_OPT_SIZE };
static const struct bh_option time_row = {
	.name = "d", .type = BH_OPT_DURATION, .min = 100 * MS, .max = 3600 * S
};
static const struct bh_option zero_time_row = {
	.name = "d", .type = BH_OPT_DURATION, .min = 0, .max = 10 * S
};
static const struct bh_option least_time_row = {
	.name = "d", .type = BH_OPT_DURATION, .min = S, .max = INT64_MAX
};
static const struct bh_option enum_row = { .name = "e",
					   .type = BH_OPT_ENUM,
					   .choices = "count|log|abort" };
static const struct bh_option path_row = { .name = "p", .type = BH_OPT_PATH };
static const struct bh_option future_row = { .name = "x", .type = 99 };

static void good_values(void)
{
	static const struct {
		const struct bh_option *option;
		const char *text;
		int64_t number;
	} rows[] = {
		{ &int_row, "0", 0 },
		{ &int_row, "-5", -5 },
		{ &int_row, "1024", 1024 },
		{ &int_row, "007", 7 },
		{ &any_int_row, "9223372036854775807", INT64_MAX },
		{ &any_int_row, "-9223372036854775808", INT64_MIN },
		{ &bool_row, "yes", 1 },
		{ &bool_row, "off", 0 },
		{ &bool_row, "true", 1 },
		{ &bool_row, "0", 0 },
		{ &size_row, "4096", 4096 },
		{ &size_row, "64KiB", 65536 },
		{ &size_row, "1GiB", INT64_C(1) << 30 },
		{ &any_size_row, "3TiB", INT64_C(3) << 40 },
		{ &time_row, "250ms", 250 * MS },
		{ &time_row, "10s", 10 * S },
		{ &time_row, "2m", 120 * S },
		{ &time_row, "1h", 3600 * S },
		{ &time_row, "100000us", 100 * MS },
		{ &time_row, "100000000ns", 100 * MS },
		{ &zero_time_row, "0", 0 },
		{ &zero_time_row, "0ms", 0 },
		{ &enum_row, "count", 0 },
		{ &enum_row, "abort", 2 },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_option_value value = { .number = -99 };
		struct bh_error err = { 0 };

		CU_ASSERT_EQUAL(bh_option_parse(rows[i].option, rows[i].text, &value, &err), 0);
		CU_ASSERT_EQUAL(value.number, rows[i].number);
		CU_ASSERT_EQUAL(value.text != NULL, rows[i].option->type == BH_OPT_ENUM);
		bh_option_value_fini(&value);
	}
}

static void good_texts(void)
{
	static const struct {
		const struct bh_option *option;
		const char *text;
	} rows[] = {
		{ &str_row, "" },
		{ &str_row, " a ; b # c " },
		{ &path_row, "/opt/a;b/t#1.so" },
		{ &enum_row, "log" },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_option_value value = { 0 };

		CU_ASSERT_EQUAL(bh_option_parse(rows[i].option, rows[i].text, &value, NULL), 0);
		CU_ASSERT_STRING_EQUAL(value.text, rows[i].text);
		CU_ASSERT_PTR_NOT_EQUAL(value.text, rows[i].text);
		bh_option_value_fini(&value);
		CU_ASSERT_PTR_NULL(value.text);
	}
}

static void bad_values(void)
{
	static const struct {
		const struct bh_option *option;
		const char *text, *reason, *accepted;
	} rows[] = {
		{ &int_row, "", "is not a number", "a number from -5 to 1024" },
		{ &int_row, "-", "is not a number", "a number from -5 to 1024" },
		{ &int_row, "+1", "is not a number", "a number from -5 to 1024" },
		{ &int_row, "1x", "is not a number", "a number from -5 to 1024" },
		{ &int_row, "1.5", "is not a number", "a number from -5 to 1024" },
		{ &int_row, "0x10", "is not a number", "a number from -5 to 1024" },
		{ &int_row, "1 ", "is not a number", "a number from -5 to 1024" },
		{ &int_row, "-6", "is out of range", "a number from -5 to 1024" },
		{ &int_row, "1025", "is out of range", "a number from -5 to 1024" },
		{ &any_int_row, "9223372036854775808", "is out of range", "a number" },
		{ &any_int_row, "-9223372036854775809", "is out of range", "a number" },
		{ &any_int_row, "18446744073709551617", "is out of range", "a number" },
		{ &bool_row, "Yes", "is neither yes nor no",
		  "yes, no, true, false, on, off, 1 or 0" },
		{ &bool_row, "2", "is neither yes nor no",
		  "yes, no, true, false, on, off, 1 or 0" },
		{ &size_row, "64kb", "is not a size",
		  "a size such as 4096, 64KiB or 1MiB, from 4KiB to 1GiB" },
		{ &size_row, "64 KiB", "is not a size",
		  "a size such as 4096, 64KiB or 1MiB, from 4KiB to 1GiB" },
		{ &size_row, "-1", "is not a size",
		  "a size such as 4096, 64KiB or 1MiB, from 4KiB to 1GiB" },
		{ &size_row, "4095", "is out of range",
		  "a size such as 4096, 64KiB or 1MiB, from 4KiB to 1GiB" },
		{ &any_size_row, "9007199254740992TiB", "is out of range",
		  "a size such as 4096, 64KiB or 1MiB" },
		{ &time_row, "soon", "is not a duration",
		  "a duration such as 250ms, 10s or 2m, from 100ms to 1h" },
		{ &time_row, "10", "is not a duration",
		  "a duration such as 250ms, 10s or 2m, from 100ms to 1h" },
		{ &time_row, "10sec", "is not a duration",
		  "a duration such as 250ms, 10s or 2m, from 100ms to 1h" },
		{ &time_row, "0", "is out of range",
		  "a duration such as 250ms, 10s or 2m, from 100ms to 1h" },
		{ &time_row, "2h", "is out of range",
		  "a duration such as 250ms, 10s or 2m, from 100ms to 1h" },
		{ &time_row, "99999999999h", "is out of range",
		  "a duration such as 250ms, 10s or 2m, from 100ms to 1h" },
		{ &zero_time_row, "11s", "is out of range",
		  "a duration such as 250ms, 10s or 2m, from 0 to 10s" },
		{ &least_time_row, "0", "is out of range",
		  "a duration such as 250ms, 10s or 2m, of at least 1s" },
		{ &enum_row, "cou", "is not one of the choices", "count, log or abort" },
		{ &enum_row, "count|log", "is not one of the choices", "count, log or abort" },
		{ &enum_row, "", "is not one of the choices", "count, log or abort" },
		{ &path_row, "lib/x.so", "is not an absolute path", "an absolute path" },
		{ &path_row, "", "is not an absolute path", "an absolute path" },
		{ &future_row, "x", "has a type that this host does not know", "" },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_option_value value = { .number = -99 };
		struct bh_error err = { 0 };

		CU_ASSERT_EQUAL(bh_option_parse(rows[i].option, rows[i].text, &value, &err),
				-EINVAL);
		CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "value"), rows[i].text);
		CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "reason"), rows[i].reason);
		CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "accepted"), rows[i].accepted);
		CU_ASSERT_EQUAL(value.number, -99);
	}
}

static void long_value_is_cut(void)
{
	char text[3000];
	struct bh_error err = { 0 };
	struct bh_option_value value;
	const char *shown;

	for (size_t i = 0; i + 2 < sizeof(text); i += 2)
		memcpy(text + i, "é", 2);
	text[sizeof(text) - 2] = '\0';
	CU_ASSERT_EQUAL(bh_option_parse(&int_row, text, &value, &err), -EINVAL);
	shown = bh_error_fact(&err, "value");
	CU_ASSERT_PTR_NOT_NULL_FATAL(shown);
	CU_ASSERT_TRUE(strlen(shown) < 80);
	CU_ASSERT_STRING_EQUAL(shown + strlen(shown) - 3, "…");
	CU_ASSERT_EQUAL((strlen(shown) - 3) % 2, 0);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "accepted"), "a number from -5 to 1024");
}

static void accepts_fits(void)
{
	char buffer[12];

	CU_ASSERT_EQUAL(bh_option_accepts(&time_row, buffer, sizeof(buffer)), sizeof(buffer) - 1);
	CU_ASSERT_STRING_EQUAL(buffer, "a duration ");
	CU_ASSERT_EQUAL(bh_option_accepts(&time_row, buffer, 0), 0);
}

static void nearest_names(void)
{
	static const char *const names[] = { "workers", "queue", "optional", "drain_timeout" };
	static const struct {
		const char *name, *nearest;
	} rows[] = {
		{ "worker", "workers" },
		{ "Workers", "workers" },
		{ "wokrers", "workers" },
		{ "qeue", "queue" },
		{ "drain-timeout", "drain_timeout" },
		{ "optionnal", "optional" },
		{ "library", NULL },
		{ "q", NULL },
		{ "", NULL },
		{ "wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww"
		  "wwwwwwwww",
		  NULL },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		const char *nearest = bh_option_nearest(rows[i].name, names, BH_ARRAY_LEN(names));

		CU_ASSERT_STRING_EQUAL(nearest ? nearest : "none",
				       rows[i].nearest ? rows[i].nearest : "none");
	}
	CU_ASSERT_PTR_NULL(bh_option_nearest("workers", NULL, 0));
}

static const struct bh_test tests[] = {
	{ "MAN-1: values of every type are read to their limits", good_values },
	{ "MAN-3: text is kept whole, and as a copy", good_texts },
	{ "MAN-1: a refusal says value, reason and what is accepted; nothing is written",
	  bad_values },
	{ "MAN-1: a long value is shown in part, with room left for what is accepted",
	  long_value_is_cut },
	{ "MAN-1: what is accepted is cut to its buffer", accepts_fits },
	{ "MAN-1: a misspelt name finds its nearest, a strange one none", nearest_names },
};

BH_TAP_MAIN("option", tests)
