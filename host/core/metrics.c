/* SPDX-License-Identifier: BSD-3-Clause */
/* metrics - see metrics.h. */
#include "config.h"

#include "host/core/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/core/clock.h"

#define FIRST_ROOM 16384
#define NAME_MAX_BYTES 96
#define NUMBER_MAX_BYTES 32

/* Every second octave: a page with a hundred histograms stays small, and whoever needs it finer has
 * /v1/gil's quantiles. A duration of a bound's very nanosecond counts as longer. */
#define BOUND_STEP (2 * BH_HISTOGRAM_STEPS)
#define N_BOUNDS ((BH_HISTOGRAM_BUCKETS - 2) / BOUND_STEP + 1)

struct bh_metrics_text {
	char *bytes; /* owned */
	size_t used, size;
	bool failed; /* memory was refused once: then there is no page at all */
	enum bh_metric_type type;
	char name[NAME_MAX_BYTES];		 /* of the present family, as its samples have it */
	char bounds[N_BOUNDS][NUMBER_MAX_BYTES]; /* of histograms; made at the first one */
};

/* ---- text ------------------------------------------------------------------------------------ */

/* Room for `length` bytes more, counted as used; NULL without memory. */
static char *put_room(struct bh_metrics_text *text, size_t length)
{
	size_t size = text->size ? text->size : FIRST_ROOM;
	char *grown;

	if (text->failed)
		return NULL;
	while (text->used + length + 1 > size)
		size *= 2;
	if (size != text->size) {
		grown = realloc(text->bytes, size);
		if (!grown) {
			text->failed = true;
			return NULL;
		}
		text->bytes = grown;
		text->size = size;
	}
	text->used += length;
	text->bytes[text->used] = '\0';
	return text->bytes + text->used - length;
}

static void put_bytes(struct bh_metrics_text *text, const char *bytes, size_t length)
{
	char *room = put_room(text, length);

	if (room)
		memcpy(room, bytes, length);
}

static void put(struct bh_metrics_text *text, const char *string)
{
	put_bytes(text, string, strlen(string));
}

/* How many bytes the UTF-8 character at `bytes` has; 0 when there is none. */
static size_t character_length(const unsigned char *bytes)
{
	static const struct {
		unsigned char mask, lead, second_min, second_max;
	} forms[] = {
		{ 0x80, 0x00, 0, 0 },	    { 0xE0, 0xC0, 0x80, 0xBF }, { 0xFF, 0xE0, 0xA0, 0xBF },
		{ 0xFF, 0xED, 0x80, 0x9F }, { 0xF0, 0xE0, 0x80, 0xBF }, { 0xFF, 0xF0, 0x90, 0xBF },
		{ 0xFF, 0xF4, 0x80, 0x8F }, { 0xFC, 0xF0, 0x80, 0xBF },
	};
	size_t length = *bytes < 0x80 ? 1 : *bytes < 0xE0 ? 2 : *bytes < 0xF0 ? 3 : 4;

	if (*bytes == 0xC0 || *bytes == 0xC1)
		return 0; /* two bytes for what fits into one */
	for (size_t i = 0; i < BH_ARRAY_LEN(forms); i++) {
		if ((*bytes & forms[i].mask) != forms[i].lead)
			continue;
		if (length > 1 &&
		    (bytes[1] < forms[i].second_min || bytes[1] > forms[i].second_max))
			return 0;
		for (size_t k = 2; k < length; k++)
			if ((bytes[k] & 0xC0) != 0x80) /* also the NUL */
				return 0;
		return length;
	}
	return 0;
}

/* How many bytes from here on stand for themselves. */
static size_t plain_length(const char *value)
{
	size_t n = 0;

	while (value[n] >= ' ' && value[n] <= '~' && value[n] != '\\' && value[n] != '"')
		n++;
	return n;
}

/* A label's value: any text, as a scraper takes it. A library's file name may be any bytes; a page
 * with one that is no UTF-8 would be refused as a whole. */
static void put_escaped(struct bh_metrics_text *text, const char *value, bool quotes)
{
	while (*value) {
		size_t plain = plain_length(value);
		size_t length = character_length((const unsigned char *)value);

		if (plain) { /* as nearly all are */
			put_bytes(text, value, plain);
			value += plain;
			continue;
		}

		if (*value == '\\')
			put(text, "\\\\");
		else if (*value == '\n')
			put(text, "\\n");
		else if (*value == '"' && quotes)
			put(text, "\\\"");
		else if (length == 0)
			put(text, "\xEF\xBF\xBD"); /* U+FFFD */
		else
			put_bytes(text, value, length);
		value += length ? length : 1;
	}
}

/* The format's point is a point, whatever locale an app has set: what is not of a number in C's
 * notation is the locale's decimal point, which may have several bytes. */
static size_t real_print(char out[NUMBER_MAX_BYTES], double value)
{
	char printed[NUMBER_MAX_BYTES];
	size_t n = 0;

	/* Times in ns steps over more than a week. */
	snprintf(printed, sizeof(printed), "%.15g", value);
	for (const char *p = printed; *p; p++) {
		if (strchr("0123456789+-e", *p))
			out[n++] = *p;
		else if (n == 0 || out[n - 1] != '.')
			out[n++] = '.';
	}
	return n;
}

/* Most of a page are counts: printf would take most of its time for them. */
static size_t count_print(char out[NUMBER_MAX_BYTES], uint64_t value)
{
	char digits[NUMBER_MAX_BYTES];
	size_t n = 0;

	do
		digits[n++] = (char)('0' + value % 10);
	while (value /= 10);
	for (size_t i = 0; i < n; i++)
		out[i] = digits[n - 1 - i];
	return n;
}

static void put_number(struct bh_metrics_text *text, double value)
{
	char number[NUMBER_MAX_BYTES];

	if (isnan(value))
		put(text, "NaN");
	else if (isinf(value))
		put(text, value < 0 ? "-Inf" : "+Inf");
	else if (value >= 0 && value < 1e15 && value == (double)(uint64_t)value)
		put_bytes(text, number, count_print(number, (uint64_t)value));
	else
		put_bytes(text, number, real_print(number, value));
}

void bh_metrics_fail(struct bh_metrics_text *text)
{
	text->failed = true;
}

/* ---- families and samples -------------------------------------------------------------------- */

static const char *type_name(enum bh_metric_type type)
{
	switch (type) {
	case BH_METRICS_COUNTER:
		return "counter";
	case BH_METRICS_GAUGE:
		return "gauge";
	case BH_METRICS_HISTOGRAM:
		return "histogram";
	}
	bh_unreachable();
}

void bh_metrics_family(struct bh_metrics_text *text, enum bh_metric_type type, const char *name,
		       const char *help)
{
	int length = snprintf(text->name, sizeof(text->name), "%s%s", name,
			      type == BH_METRICS_COUNTER ? "_total" : "");

	assert(length > 0 && (size_t)length < sizeof(text->name));
	(void)length;
	text->type = type;
	put(text, "# HELP ");
	put(text, text->name);
	put(text, " ");
	put_escaped(text, help, false);
	put(text, "\n# TYPE ");
	put(text, text->name);
	put(text, " ");
	put(text, type_name(type));
	put(text, "\n");
}

/* "{a="…",b="…"", left open for one more; nothing without labels. */
static void put_labels(struct bh_metrics_text *text, const struct bh_metric_label *labels,
		       size_t n_labels)
{
	for (size_t i = 0; i < n_labels; i++) {
		put(text, i ? "," : "{");
		put(text, labels[i].name);
		put(text, "=\"");
		put_escaped(text, labels[i].value, true);
		put(text, "\"");
	}
}

static void put_value(struct bh_metrics_text *text, double value)
{
	put(text, " ");
	put_number(text, value);
	put(text, "\n");
}

static void put_sample(struct bh_metrics_text *text, const char *suffix,
		       const struct bh_metric_label *labels, size_t n_labels, double value)
{
	put(text, text->name);
	put(text, suffix);
	put_labels(text, labels, n_labels);
	put(text, n_labels ? "}" : "");
	put_value(text, value);
}

void bh_metrics_sample(struct bh_metrics_text *text, const struct bh_metric_label *labels,
		       size_t n_labels, double value)
{
	assert(text->type != BH_METRICS_HISTOGRAM);
	put_sample(text, "", labels, n_labels, value);
}

static void bounds_make(struct bh_metrics_text *text)
{
	if (text->bounds[0][0])
		return;
	for (uint32_t i = 0; i < N_BOUNDS; i++) {
		double bound_s = (double)bh_histogram_bound_ns(i * BOUND_STEP) / BH_NS_PER_S;

		text->bounds[i][real_print(text->bounds[i], bound_s)] = '\0';
	}
}

/* What all of a histogram's buckets begin with is made once, for the first, and copied for each of
 * the others. */
static void put_bucket(struct bh_metrics_text *text, const char *bound, size_t head,
		       size_t head_length, uint64_t n)
{
	if (text->used != head + head_length) {
		char *grown = put_room(text, head_length);

		if (!grown)
			return;
		memcpy(grown, text->bytes + head, head_length);
	}
	put(text, bound);
	put(text, "\"}");
	put_value(text, (double)n);
}

void bh_metrics_histogram(struct bh_metrics_text *text, const struct bh_metric_label *labels,
			  size_t n_labels, const struct bh_histogram_counts *counts, double sum_s)
{
	size_t head = text->used, head_length;
	uint64_t seen = 0;

	assert(text->type == BH_METRICS_HISTOGRAM);
	bounds_make(text);
	put(text, text->name);
	put(text, "_bucket");
	put_labels(text, labels, n_labels);
	put(text, n_labels ? ",le=\"" : "{le=\"");
	head_length = text->used - head;
	for (uint32_t i = 0; i < BH_HISTOGRAM_BUCKETS; i++) {
		seen += counts->buckets[i];
		if (i % BOUND_STEP == 0 && i / BOUND_STEP < N_BOUNDS)
			put_bucket(text, text->bounds[i / BOUND_STEP], head, head_length, seen);
	}
	/* Not counts->n, which may be the caller's own idea: these three must agree. */
	put_bucket(text, "+Inf", head, head_length, seen);
	put_sample(text, "_sum", labels, n_labels, sum_s);
	put_sample(text, "_count", labels, n_labels, (double)seen);
}

/* ---- the page -------------------------------------------------------------------------------- */

void bh_metrics_add(struct bh_metrics *metrics,
		    void (*render)(struct bh_metrics_text *text, void *arg), void *arg)
{
	uint32_t n = atomic_load_explicit(&metrics->n, memory_order_relaxed);

	if (n == BH_METRICS_MAX) {
		fprintf(stderr, "bulkhead: no room for metrics: raise BH_METRICS_MAX (%d)\n",
			BH_METRICS_MAX);
		abort();
	}
	metrics->rows[n] = (struct bh_metrics_row){ .render = render, .arg = arg };
	atomic_store_explicit(&metrics->n, n + 1, memory_order_release);
}

char *bh_metrics_render(const struct bh_metrics *metrics, size_t *ret_length)
{
	uint32_t n = atomic_load_explicit(&metrics->n, memory_order_acquire);
	struct bh_metrics_text text = { 0 };

	put(&text, "");
	for (uint32_t i = 0; i < n; i++)
		metrics->rows[i].render(&text, metrics->rows[i].arg);
	if (text.failed) {
		free(text.bytes);
		return NULL;
	}
	*ret_length = text.used;
	return text.bytes;
}
