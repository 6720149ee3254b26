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
#define NUMBER_MAX_BYTES 48

struct bh_metrics_text {
	char *bytes; /* owned */
	size_t used, size;
	bool failed; /* memory was refused once: then there is no page at all */
	enum bh_metric_type type;
	char name[NAME_MAX_BYTES]; /* of the present family, as its samples have it */
};

/* ---- text ------------------------------------------------------------------------------------ */

static void put_bytes(struct bh_metrics_text *text, const char *bytes, size_t length)
{
	size_t size = text->size ? text->size : FIRST_ROOM;
	char *grown;

	if (text->failed)
		return;
	while (text->used + length + 1 > size)
		size *= 2;
	if (size != text->size) {
		grown = realloc(text->bytes, size);
		if (!grown) {
			text->failed = true;
			return;
		}
		text->bytes = grown;
		text->size = size;
	}
	memcpy(text->bytes + text->used, bytes, length);
	text->used += length;
	text->bytes[text->used] = '\0';
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

/* A label's value: any text, as a scraper takes it. A library's file name may be any bytes; a page
 * with one that is no UTF-8 would be refused as a whole. */
static void put_escaped(struct bh_metrics_text *text, const char *value, bool quotes)
{
	while (*value) {
		size_t length = character_length((const unsigned char *)value);

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
static void put_number(struct bh_metrics_text *text, double value)
{
	char printed[NUMBER_MAX_BYTES], number[NUMBER_MAX_BYTES];
	size_t n = 0;

	if (isnan(value)) {
		put(text, "NaN");
		return;
	}
	if (isinf(value)) {
		put(text, value < 0 ? "-Inf" : "+Inf");
		return;
	}
	/* A count to its last digit; a time in ns steps over more than a week. */
	snprintf(printed, sizeof(printed),
		 value == floor(value) && fabs(value) < 1e15 ? "%.0f" : "%.15g", value);
	for (const char *p = printed; *p; p++) {
		if (strchr("0123456789+-e", *p))
			number[n++] = *p;
		else if (n == 0 || number[n - 1] != '.')
			number[n++] = '.';
	}
	put_bytes(text, number, n);
}

void bh_metrics_fail(struct bh_metrics_text *text)
{
	text->failed = true;
}

/* ---- families and samples -------------------------------------------------------------------- */

static const char *type_name(enum bh_metric_type type)
{
	switch (type) {
	case BH_METRIC_COUNTER:
		return "counter";
	case BH_METRIC_GAUGE:
		return "gauge";
	case BH_METRIC_HISTOGRAM:
		return "histogram";
	}
	bh_unreachable();
}

void bh_metrics_family(struct bh_metrics_text *text, enum bh_metric_type type, const char *name,
		       const char *help)
{
	int length = snprintf(text->name, sizeof(text->name), "%s%s", name,
			      type == BH_METRIC_COUNTER ? "_total" : "");

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

/* One line; `le` NULL: no bucket. */
static void put_sample(struct bh_metrics_text *text, const char *suffix,
		       const struct bh_metric_label *labels, size_t n_labels, const char *le,
		       double value)
{
	const char *separator = "{";

	put(text, text->name);
	put(text, suffix);
	for (size_t i = 0; i < n_labels; i++) {
		put(text, separator);
		put(text, labels[i].name);
		put(text, "=\"");
		put_escaped(text, labels[i].value, true);
		put(text, "\"");
		separator = ",";
	}
	if (le) {
		put(text, separator);
		put(text, "le=\"");
		put(text, le);
		put(text, "\"");
		separator = ",";
	}
	put(text, *separator == ',' ? "} " : " ");
	put_number(text, value);
	put(text, "\n");
}

void bh_metrics_sample(struct bh_metrics_text *text, const struct bh_metric_label *labels,
		       size_t n_labels, double value)
{
	assert(text->type != BH_METRIC_HISTOGRAM);
	put_sample(text, "", labels, n_labels, NULL, value);
}

/* Every second octave: a page with a hundred of these stays small, and whoever needs it finer has
 * /v1/gil's quantiles. A duration of a bound's very nanosecond counts as longer. */
#define BOUND_STEP (2 * BH_HISTOGRAM_STEPS)

void bh_metrics_histogram(struct bh_metrics_text *text, const struct bh_metric_label *labels,
			  size_t n_labels, const struct bh_histogram_counts *counts, double sum_s)
{
	uint64_t seen = 0;

	assert(text->type == BH_METRIC_HISTOGRAM);
	for (uint32_t i = 0; i < BH_HISTOGRAM_BUCKETS; i++) {
		struct bh_metrics_text bound = { 0 };
		char bytes[NUMBER_MAX_BYTES];

		seen += counts->buckets[i];
		if (i % BOUND_STEP != 0 || i == BH_HISTOGRAM_BUCKETS - 1)
			continue;
		bound.bytes = bytes; /* room enough for a number: it is not grown */
		bound.size = sizeof(bytes);
		put_number(&bound, (double)bh_histogram_bound_ns(i) / BH_NS_PER_S);
		put_sample(text, "_bucket", labels, n_labels, bytes, (double)seen);
	}
	/* Not counts->n, which may be the caller's own idea: these three must agree. */
	put_sample(text, "_bucket", labels, n_labels, "+Inf", (double)seen);
	put_sample(text, "_sum", labels, n_labels, NULL, sum_s);
	put_sample(text, "_count", labels, n_labels, NULL, (double)seen);
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
