/* SPDX-License-Identifier: BSD-3-Clause */
/* stall - see stall.h.
 *
 * What a report says does not change once it is in the book, so that readers take a reference under
 * the lock and copy without it: the control loop, which is one of them, never waits for a copy
 * (CP-1). The references are counted here and not by jansson, whose counting is not atomic in every
 * build. */
#include "config.h"

#include "host/core/stall.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#include "host/core/clock.h"
#include "host/core/sync.h"

struct report {
	_Atomic uint32_t refs; /* A: acquire-release, the last one frees */
	json_t *json;	       /* I: may be NULL */
};

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

static struct report *report_new(json_t *json)
{
	struct report *report = calloc(1, sizeof(*report));

	if (!report) {
		json_decref(json);
		return NULL;
	}
	atomic_init(&report->refs, 1);
	report->json = json;
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
	json_decref(report->json);
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

/* What the report lacks, for whatever reason, is null or empty: every entry has every key. */
static bool add_report(json_t *object, const struct report *report)
{
	json_t *copy = report && report->json ? json_deep_copy(report->json) : json_object();
	bool whole = copy && json_object_update(object, copy) == 0;

	json_decref(copy);
	return whole;
}

static json_t *render(const struct episode *episode, uint64_t now_ns)
{
	const struct bh_stall_subject *subject = &episode->subject;
	uint64_t lag = episode->ended != 0.0 ? episode->lag_ns : now_ns - subject->since_ns;
	json_t *object = json_pack(
		"{s:I, s:s, s:f, s:o, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:n, s:[], s:[], s:[]}",
		"id", (json_int_t)episode->id, "kind", bh_stall_kind_name(episode->kind), "began",
		episode->began, "ended",
		episode->ended != 0.0 ? json_real(episode->ended) : json_null(), "lag_s",
		seconds(lag), "limit_s", seconds(episode->limit_ns), "pool",
		text_or_null(subject->pool), "thread", text_or_null(subject->thread), "tid",
		number_or_null(subject->tid), "op", text_or_null(subject->op), "task",
		number_or_null(subject->task), "holder", "waiters", "native", "python");

	if (object && add_report(object, episode->report))
		return object;
	json_decref(object);
	return NULL;
}

json_t *bh_stall_book_render_one(struct bh_stall_book *book, uint64_t id)
{
	const struct episode *found;
	struct episode episode = { .id = 0 };
	json_t *object;

	bh_mutex_lock(&book->lock);
	found = find_locked(book, id);
	if (found) {
		episode = *found;
		report_ref(episode.report);
	}
	bh_mutex_unlock(&book->lock);
	object = episode.id ? render(&episode, bh_now_ns()) : NULL;
	report_unref(episode.report);
	return object;
}

json_t *bh_stall_book_render(struct bh_stall_book *book)
{
	bh_auto_mem struct episode *copies = calloc(BH_STALLS_KEPT, sizeof(*copies));
	json_t *list = json_array();
	bool whole = copies && list;
	uint64_t last, now;
	size_t n = 0;

	if (!copies) {
		json_decref(list);
		return NULL;
	}
	bh_mutex_lock(&book->lock);
	last = book->last_id;
	for (uint64_t id = last; id > 0 && n < BH_STALLS_KEPT; id--, n++) {
		copies[n] = book->episodes[id % BH_STALLS_KEPT];
		report_ref(copies[n].report);
	}
	bh_mutex_unlock(&book->lock);
	now = bh_now_ns();
	for (size_t i = 0; i < n; i++) {
		if (whole)
			whole = json_array_append_new(list, render(&copies[i], now)) == 0;
		report_unref(copies[i].report);
	}
	if (whole)
		return list;
	json_decref(list); /* a list that lacks one would be untrue */
	return NULL;
}

void bh_stall_book_count(struct bh_stall_book *book, struct bh_stall_counts *ret_counts)
{
	bh_mutex_lock(&book->lock);
	*ret_counts = book->counts;
	bh_mutex_unlock(&book->lock);
}
