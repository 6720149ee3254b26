/* SPDX-License-Identifier: BSD-3-Clause */
/* stall - see stall.h.
 *
 * What a report says does not change once it is in the book: it is written out when it comes in, on
 * the watchdog, and readers take a reference under the lock and copy its text without it. So the
 * control loop, which is one of them, neither waits for a copy nor goes through the thousands of
 * frames that a full book has (CP-1). */
#include "config.h"

#include "host/core/stall.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/core/clock.h"
#include "host/core/sync.h"

struct report {
	_Atomic uint32_t refs; /* A: acquire-release, the last one frees */
	char *text;	       /* I: owned; the members of a JSON object; NULL: nothing is known */
};

/* What a report lacks, for whatever reason, is null or empty: every entry has every key. */
static const char no_report[] =
	"\"holder\":null,\"waiters\":[],\"native\":[],\"python\":[],\"brief\":false";

struct episode {
	uint64_t id; /* 0: an empty row */
	enum bh_stall_kind kind;
	struct bh_stall_subject subject;
	uint64_t limit_ns, lag_ns;
	double began, ended; /* unix times; 0: not yet */
	struct report *report;
};

struct bh_stall_book {
	struct bh_mutex lock;			 /* guards the M fields; a leaf */
	struct episode episodes[BH_STALLS_KEPT]; /* M: number `id` is in row id % BH_STALLS_KEPT */
	uint64_t last_id;			 /* M */
	struct bh_stall_counts counts;		 /* M */
};

const char *bh_stall_kind_name(enum bh_stall_kind kind)
{
	switch (kind) {
	case BH_STALL_GIL:
		return "gil";
	case BH_STALL_ASYNCIO:
		return "asyncio";
	case BH_STALL_CONTROL:
		return "control";
	case BH_STALL_TASK:
		return "task";
	}
	bh_unreachable();
}

static char *report_text(json_t *json)
{
	json_t *whole = json ? json_pack("{s:n, s:[], s:[], s:[], s:b}", "holder", "waiters",
					 "native", "python", "brief", 0)
			     : NULL;
	char *text = NULL;

	if (whole && json_object_update(whole, json) == 0)
		text = json_dumps(whole, JSON_COMPACT | JSON_EMBED);
	json_decref(whole);
	return text;
}

static struct report *report_new(json_t *json)
{
	struct report *report = calloc(1, sizeof(*report));

	if (report) {
		atomic_init(&report->refs, 1);
		report->text = report_text(json);
	}
	json_decref(json);
	return report;
}

static struct report *report_ref(struct report *report)
{
	if (report)
		atomic_fetch_add_explicit(&report->refs, 1, memory_order_relaxed);
	return report;
}

static void report_unref(struct report *report)
{
	if (!report || atomic_fetch_sub_explicit(&report->refs, 1, memory_order_acq_rel) != 1)
		return;
	free(report->text);
	free(report);
}

bh_status bh_stall_book_new(struct bh_stall_book **ret_book, struct bh_error *err)
{
	struct bh_stall_book *book = calloc(1, sizeof(*book));

	if (!book)
		return bh_raise(err, -ENOMEM, "stall.alloc");
	bh_mutex_init(&book->lock);
	*ret_book = book;
	return 0;
}

struct bh_stall_book *bh_stall_book_free(struct bh_stall_book *book)
{
	if (!book)
		return NULL;
	for (size_t i = 0; i < BH_STALLS_KEPT; i++)
		report_unref(book->episodes[i].report);
	bh_mutex_fini(&book->lock);
	free(book);
	return NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

static double unix_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / BH_NS_PER_S;
}

static double seconds(uint64_t ns)
{
	return (double)ns / BH_NS_PER_S;
}

static struct episode *find_locked(struct bh_stall_book *book, uint64_t id) BH_NEEDS(book->lock);
static struct episode *find_locked(struct bh_stall_book *book, uint64_t id)
{
	struct episode *episode = &book->episodes[id % BH_STALLS_KEPT];

	return id != 0 && episode->id == id ? episode : NULL;
}

uint64_t bh_stall_book_begin(struct bh_stall_book *book, enum bh_stall_kind kind, uint64_t limit_ns,
			     const struct bh_stall_subject *subject, json_t *report)
{
	struct episode episode = {
		.kind = kind,
		.subject = *subject,
		.limit_ns = limit_ns,
		.report = report_new(report),
		.began = unix_now() - seconds(bh_now_ns() - subject->since_ns),
	};
	struct report *oldest;

	bh_mutex_lock(&book->lock);
	episode.id = ++book->last_id;
	book->counts.n[kind]++;
	oldest = book->episodes[episode.id % BH_STALLS_KEPT].report;
	book->episodes[episode.id % BH_STALLS_KEPT] = episode;
	bh_mutex_unlock(&book->lock);
	report_unref(oldest);
	return episode.id;
}

void bh_stall_book_end(struct bh_stall_book *book, uint64_t id, uint64_t lag_ns)
{
	struct episode *episode;

	bh_mutex_lock(&book->lock);
	episode = find_locked(book, id);
	if (episode && episode->ended == 0.0) {
		episode->lag_ns = lag_ns;
		/* By the monotonic clock: a step of the other one must not make it end before it
		 * began. */
		episode->ended = episode->began + seconds(lag_ns);
	}
	bh_mutex_unlock(&book->lock);
}

/* ---- reading --------------------------------------------------------------------------------- */

static json_t *text_or_null(const char *text)
{
	return text[0] ? json_string(text) : json_null();
}

static json_t *number_or_null(uint64_t number)
{
	return number ? json_integer((json_int_t)number) : json_null();
}

json_t *bh_stall_render_time(uint64_t at_ns)
{
	return at_ns ? json_real(unix_now() - seconds(bh_now_ns() - at_ns)) : json_null();
}

/* All but the report. */
static json_t *render_head(const struct episode *episode, uint64_t now_ns)
{
	const struct bh_stall_subject *subject = &episode->subject;
	uint64_t lag = episode->ended != 0.0 ? episode->lag_ns : now_ns - subject->since_ns;

	return json_pack("{s:I, s:s, s:f, s:o, s:f, s:f, s:o, s:o, s:o, s:o, s:o}", "id",
			 (json_int_t)episode->id, "kind", bh_stall_kind_name(episode->kind),
			 "began", episode->began, "ended",
			 episode->ended != 0.0 ? json_real(episode->ended) : json_null(), "lag_s",
			 seconds(lag), "limit_s", seconds(episode->limit_ns), "pool",
			 text_or_null(subject->pool), "thread", text_or_null(subject->thread),
			 "tid", number_or_null(subject->tid), "op", text_or_null(subject->op),
			 "task", number_or_null(subject->task));
}

/* An episode that is being shown. */
struct copy {
	struct episode episode; /* with a reference to its report */
	char *head;		/* owned */
};

static const char *copy_report(const struct copy *copy)
{
	const struct report *report = copy->episode.report;

	return report && report->text ? report->text : no_report;
}

static void copy_fini(struct copy *copy)
{
	report_unref(copy->episode.report);
	free(copy->head);
}

/* False without memory. */
static bool copy_prepare(struct copy *copy, uint64_t now_ns)
{
	json_t *head = render_head(&copy->episode, now_ns);

	copy->head = head ? json_dumps(head, JSON_COMPACT | JSON_EMBED) : NULL;
	json_decref(head);
	return copy->head != NULL;
}

static size_t copy_length(const struct copy *copy)
{
	return strlen("{,}") + strlen(copy->head) + strlen(copy_report(copy));
}

/* stdio takes ten times as long for as much. */
static char *copy_put(char *at, const struct copy *copy)
{
	at = stpcpy(stpcpy(at, "{"), copy->head);
	at = stpcpy(stpcpy(at, ","), copy_report(copy));
	return stpcpy(at, "}");
}

static bool copy_take(struct bh_stall_book *book, uint64_t id, struct copy *ret_copy)
{
	const struct episode *found;

	bh_mutex_lock(&book->lock);
	found = find_locked(book, id);
	if (found) {
		*ret_copy = (struct copy){ .episode = *found };
		report_ref(found->report);
	}
	bh_mutex_unlock(&book->lock);
	return found != NULL;
}

json_t *bh_stall_book_render_one(struct bh_stall_book *book, uint64_t id)
{
	bh_auto_mem char *text = NULL;
	json_t *object = NULL;
	struct copy copy;

	if (!copy_take(book, id, &copy))
		return NULL;
	if (copy_prepare(&copy, bh_now_ns()))
		text = malloc(copy_length(&copy) + 1);
	if (text) {
		copy_put(text, &copy);
		object = json_loads(text, 0, NULL);
	}
	copy_fini(&copy);
	return object;
}

static size_t copy_all(struct bh_stall_book *book, struct copy copies[BH_STALLS_KEPT])
{
	size_t n = 0;

	bh_mutex_lock(&book->lock);
	for (uint64_t id = book->last_id; id > 0 && n < BH_STALLS_KEPT; id--, n++) {
		copies[n].episode = book->episodes[id % BH_STALLS_KEPT];
		report_ref(copies[n].episode.report);
	}
	bh_mutex_unlock(&book->lock);
	return n;
}

/* NULL without memory: a list that lacks one would be untrue. */
static char *render_all(struct copy *copies, size_t n, const char *before, const char *after,
			size_t *ret_length)
{
	size_t length = strlen(before) + strlen(after) + strlen("[]") + n; /* a comma each */
	uint64_t now = bh_now_ns();
	char *text, *at;

	for (size_t i = 0; i < n; i++) {
		if (!copy_prepare(&copies[i], now))
			return NULL;
		length += copy_length(&copies[i]);
	}
	text = malloc(length + 1);
	if (!text)
		return NULL;
	at = stpcpy(stpcpy(text, before), "[");
	for (size_t i = 0; i < n; i++)
		at = copy_put(i ? stpcpy(at, ",") : at, &copies[i]);
	at = stpcpy(stpcpy(at, "]"), after);
	*ret_length = (size_t)(at - text);
	return text;
}

char *bh_stall_book_render(struct bh_stall_book *book, const char *before, const char *after,
			   size_t *ret_length)
{
	bh_auto_mem struct copy *copies = calloc(BH_STALLS_KEPT, sizeof(*copies));
	size_t n = copies ? copy_all(book, copies) : 0;
	char *text = copies ? render_all(copies, n, before, after, ret_length) : NULL;

	for (size_t i = 0; i < n; i++)
		copy_fini(&copies[i]);
	return text;
}

void bh_stall_book_count(struct bh_stall_book *book, struct bh_stall_counts *ret_counts)
{
	bh_mutex_lock(&book->lock);
	*ret_counts = book->counts;
	bh_mutex_unlock(&book->lock);
}
