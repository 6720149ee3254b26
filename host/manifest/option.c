/* SPDX-License-Identifier: BSD-3-Clause */
/* option - typed values out of manifest text, by table.
 *
 * Thread: any; no state. Owns: nothing but the values it hands out. Keeps: MAN-1, MAN-3. */
#include <config.h> /* not "…": this directory has a config.h of its own */

#include "host/manifest/option.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define VALUE_SHOWN 80	 /* bytes of a refused value that an error repeats */
#define ACCEPTS_MAX 320	 /* bytes of an "accepted" text with its NUL */
#define NAME_COMPARED 64 /* longer names have no nearest */

enum verdict { VERDICT_FINE, VERDICT_MALFORMED, VERDICT_OUT_OF_RANGE };

struct unit {
	const char *name;
	int64_t factor;
};

static const struct unit size_units[] = {
	{ "", 1 },
	{ "KiB", INT64_C(1) << 10 },
	{ "MiB", INT64_C(1) << 20 },
	{ "GiB", INT64_C(1) << 30 },
	{ "TiB", INT64_C(1) << 40 },
};

static const struct unit duration_units[] = {
	{ "ns", 1 },
	{ "us", 1000 },
	{ "ms", INT64_C(1000000) },
	{ "s", INT64_C(1000000000) },
	{ "m", INT64_C(60000000000) },
	{ "h", INT64_C(3600000000000) },
};

struct limits {
	int64_t min, max;
};

/* Appends to `buffer`, which stays NUL-terminated; what does not fit is left out. */
static void append(char *buffer, size_t size, const char *format, ...) BH_PRINTF(3, 4);
static void append(char *buffer, size_t size, const char *format, ...)
{
	size_t used = strlen(buffer);
	va_list args;

	va_start(args, format);
	vsnprintf(buffer + used, size - used, format, args);
	va_end(args);
}

static struct limits option_limits(const struct bh_option *option)
{
	bool is_signed = option->type == BH_OPT_INT;

	if (option->min == 0 && option->max == 0)
		return (struct limits){ is_signed ? INT64_MIN : 0, INT64_MAX };
	return (struct limits){ option->min, option->max };
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Digits at `*text`, which moves behind them. A number too big for the type is well-formed all the
 * same: the range is what is wrong with it. */
static enum verdict digits_read(const char **text, uint64_t *ret)
{
	enum verdict verdict = VERDICT_FINE;
	uint64_t number = 0;

	if (!isdigit((unsigned char)**text))
		return VERDICT_MALFORMED;
	for (; isdigit((unsigned char)**text); (*text)++)
		if (__builtin_mul_overflow(number, 10u, &number) ||
		    __builtin_add_overflow(number, (uint64_t)(**text - '0'), &number))
			verdict = VERDICT_OUT_OF_RANGE;
	*ret = number;
	return verdict;
}

static enum verdict int_read(const char *text, int64_t *ret)
{
	bool negative = *text == '-';
	uint64_t magnitude = 0;
	enum verdict verdict;

	text += negative;
	verdict = digits_read(&text, &magnitude);
	if (verdict == VERDICT_MALFORMED || *text)
		return VERDICT_MALFORMED;
	if (verdict == VERDICT_OUT_OF_RANGE || magnitude > (uint64_t)INT64_MAX + negative)
		return VERDICT_OUT_OF_RANGE;
	*ret = (int64_t)(negative ? 0 - magnitude : magnitude);
	return VERDICT_FINE;
}

/* Digits and one of `units`, nothing between them; 0 needs no unit. */
static enum verdict amount_read(const char *text, const struct unit *units, size_t n_units,
				int64_t *ret)
{
	uint64_t number = 0;
	enum verdict verdict = digits_read(&text, &number);

	if (verdict == VERDICT_MALFORMED)
		return verdict;
	for (size_t i = 0; i < n_units; i++) {
		if (strcmp(text, units[i].name) != 0 && !(number == 0 && *text == '\0'))
			continue;
		if (verdict == VERDICT_OUT_OF_RANGE ||
		    __builtin_mul_overflow(number, units[i].factor, ret))
			return VERDICT_OUT_OF_RANGE;
		return VERDICT_FINE;
	}
	return VERDICT_MALFORMED;
}

static enum verdict bool_read(const char *text, int64_t *ret)
{
	static const char *const words[] = { "no", "yes", "false", "true", "off", "on", "0", "1" };

	for (size_t i = 0; i < BH_ARRAY_LEN(words); i++) {
		if (strcmp(text, words[i]) == 0) {
			*ret = i % 2;
			return VERDICT_FINE;
		}
	}
	return VERDICT_MALFORMED;
}

static enum verdict enum_read(const char *choices, const char *text, int64_t *ret)
{
	size_t length = strlen(text);

	for (int64_t number = 0; choices; number++) {
		size_t choice = strcspn(choices, "|");

		if (choice == length && memcmp(choices, text, length) == 0) {
			*ret = number;
			return VERDICT_FINE;
		}
		choices = choices[choice] ? choices + choice + 1 : NULL;
	}
	return VERDICT_MALFORMED;
}

static enum verdict value_read(const struct bh_option *option, const char *text, int64_t *ret)
{
	switch ((enum bh_option_type)option->type) {
	case BH_OPT_INT:
		return int_read(text, ret);
	case BH_OPT_BOOL:
		return bool_read(text, ret);
	case BH_OPT_STR:
		return VERDICT_FINE;
	case BH_OPT_SIZE:
		return amount_read(text, size_units, BH_ARRAY_LEN(size_units), ret);
	case BH_OPT_DURATION:
		return amount_read(text, duration_units, BH_ARRAY_LEN(duration_units), ret);
	case BH_OPT_ENUM:
		return enum_read(option->choices, text, ret);
	case BH_OPT_PATH:
		return *text == '/' ? VERDICT_FINE : VERDICT_MALFORMED;
	}
	return VERDICT_MALFORMED; /* a type newer than this host: its own text says so */
}

static bool has_limits(uint32_t type)
{
	return type == BH_OPT_INT || type == BH_OPT_SIZE || type == BH_OPT_DURATION;
}

static bool has_text(uint32_t type)
{
	return type == BH_OPT_STR || type == BH_OPT_ENUM || type == BH_OPT_PATH;
}

static const char *malformed_reason(uint32_t type)
{
	switch ((enum bh_option_type)type) {
	case BH_OPT_INT:
		return "is not a number";
	case BH_OPT_BOOL:
		return "is neither yes nor no";
	case BH_OPT_STR:
		return "is not text";
	case BH_OPT_SIZE:
		return "is not a size";
	case BH_OPT_DURATION:
		return "is not a duration";
	case BH_OPT_ENUM:
		return "is not one of the choices";
	case BH_OPT_PATH:
		return "is not an absolute path";
	}
	return "has a type that this host does not know";
}

/* `text`, or as much of it as an error has room for; never half a character. */
static const char *value_shown(const char *text, char *buffer, size_t size)
{
	size_t length = strlen(text);
	size_t keep = size - sizeof("…");

	if (length < size)
		return text;
	while (keep > 0 && ((unsigned char)text[keep] & 0xC0) == 0x80)
		keep--;
	memcpy(buffer, text, keep);
	strcpy(buffer + keep, "…");
	return buffer;
}

bh_status bh_option_refuse(const char *text, const char *reason, const char *accepted,
			   struct bh_error *err)
{
	char shown[VALUE_SHOWN];

	return bh_raise(err, -EINVAL, "option.value",
			BH_STR("value", value_shown(text, shown, sizeof(shown))),
			BH_STR("reason", reason), BH_STR("accepted", accepted));
}

bh_status bh_option_parse(const struct bh_option *option, const char *text,
			  struct bh_option_value *ret_value, struct bh_error *err)
{
	struct limits limits = option_limits(option);
	struct bh_option_value value = { 0 };
	char accepted[ACCEPTS_MAX];
	enum verdict verdict;

	verdict = value_read(option, text, &value.number);
	if (verdict == VERDICT_FINE && has_limits(option->type) &&
	    (value.number < limits.min || value.number > limits.max))
		verdict = VERDICT_OUT_OF_RANGE;
	if (verdict != VERDICT_FINE) {
		bh_option_accepts(option, accepted, sizeof(accepted));
		return bh_option_refuse(text,
					verdict == VERDICT_OUT_OF_RANGE
						? "is out of range"
						: malformed_reason(option->type),
					accepted, err);
	}
	if (has_text(option->type)) {
		value.text = strdup(text);
		if (!value.text)
			return bh_raise(err, -ENOMEM, "option.alloc");
	}
	*ret_value = value;
	return 0;
}

void bh_option_value_fini(struct bh_option_value *value)
{
	free(value->text);
	*value = (struct bh_option_value){ 0 };
}

/* ---- saying what is accepted ----------------------------------------------------------------- */

/* In the biggest unit that says it exactly. */
static void amount_append(char *buffer, size_t size, int64_t amount, const struct unit *units,
			  size_t n_units)
{
	size_t i = n_units - 1;

	if (amount == 0) {
		append(buffer, size, "0");
		return;
	}
	while (i > 0 && amount % units[i].factor != 0)
		i--;
	append(buffer, size, "%" PRId64 "%s", amount / units[i].factor, units[i].name);
}

static void limits_append(char *buffer, size_t size, struct limits limits, const struct unit *units,
			  size_t n_units)
{
	bool has_min = limits.min > (n_units > 1 ? 0 : INT64_MIN);
	bool has_max = limits.max < INT64_MAX;

	if (!has_min && !has_max)
		return;
	append(buffer, size, n_units > 1 ? ", " : " ");
	append(buffer, size,
	       has_max ? (has_min || n_units > 1 ? "from " : "up to ") : "of at least ");
	if (has_min || (has_max && n_units > 1))
		amount_append(buffer, size, limits.min, units, n_units);
	if (has_max) {
		append(buffer, size, has_min || n_units > 1 ? " to " : "");
		amount_append(buffer, size, limits.max, units, n_units);
	}
}

/* "a|b|c" as "a, b or c". */
static void choices_append(char *buffer, size_t size, const char *choices)
{
	const char *separator = "";

	while (choices) {
		size_t length = strcspn(choices, "|");
		const char *rest = choices[length] ? choices + length + 1 : NULL;

		append(buffer, size, "%s%.*s", separator, (int)length, choices);
		separator = rest && strchr(rest, '|') ? ", " : " or ";
		choices = rest;
	}
}

size_t bh_option_accepts(const struct bh_option *option, char *buffer, size_t size)
{
	static const struct unit plain[] = { { "", 1 } };
	struct limits limits = option_limits(option);

	if (size == 0)
		return 0;
	buffer[0] = '\0';
	switch ((enum bh_option_type)option->type) {
	case BH_OPT_INT:
		append(buffer, size, "a number");
		limits_append(buffer, size, limits, plain, BH_ARRAY_LEN(plain));
		break;
	case BH_OPT_BOOL:
		append(buffer, size, "yes, no, true, false, on, off, 1 or 0");
		break;
	case BH_OPT_STR:
		append(buffer, size, "any text");
		break;
	case BH_OPT_SIZE:
		append(buffer, size, "a size such as 4096, 64KiB or 1MiB");
		limits_append(buffer, size, limits, size_units, BH_ARRAY_LEN(size_units));
		break;
	case BH_OPT_DURATION:
		append(buffer, size, "a duration such as 250ms, 10s or 2m");
		limits_append(buffer, size, limits, duration_units, BH_ARRAY_LEN(duration_units));
		break;
	case BH_OPT_ENUM:
		choices_append(buffer, size, option->choices);
		break;
	case BH_OPT_PATH:
		append(buffer, size, "an absolute path");
		break;
	}
	return strlen(buffer);
}

/* ---- the nearest name ------------------------------------------------------------------------ */

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
	unsigned least = a < b ? a : b;

	return least < c ? least : c;
}

/* How many characters were typed wrong, left out, added or swapped with their neighbour. */
static unsigned name_distance(const char *a, const char *b)
{
	unsigned rows[3][NAME_COMPARED + 1];
	unsigned *before = rows[0], *above = rows[1], *row = rows[2];
	size_t n = strlen(b);

	for (size_t j = 0; j <= n; j++)
		above[j] = (unsigned)j;
	for (size_t i = 1; a[i - 1]; i++) {
		unsigned *spare = before;

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= n; j++) {
			int x = tolower((unsigned char)a[i - 1]),
			    y = tolower((unsigned char)b[j - 1]);

			row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y));
			if (i > 1 && j > 1 && x != y && x == tolower((unsigned char)b[j - 2]) &&
			    y == tolower((unsigned char)a[i - 2]))
				row[j] = min3(row[j], before[j - 2] + 1, row[j]);
		}
		before = above;
		above = row;
		row = spare;
	}
	return above[n];
}

const char *bh_option_nearest(const char *name, const char *const *names, size_t n_names)
{
	size_t length = strlen(name);
	unsigned best = (unsigned)(length + 1) / 3 + 1; /* a third of it may be wrong, not more */
	const char *nearest = NULL;

	if (length > NAME_COMPARED)
		return NULL;
	for (size_t i = 0; i < n_names; i++) {
		unsigned distance;

		if (strlen(names[i]) > NAME_COMPARED)
			continue;
		distance = name_distance(name, names[i]);
		if (distance < best && distance < strlen(names[i])) {
			best = distance;
			nearest = names[i];
		}
	}
	return nearest;
}
