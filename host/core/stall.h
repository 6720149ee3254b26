/* SPDX-License-Identifier: BSD-3-Clause */
/* stall - the book of stalls: what has been stuck for longer than its limit, one entry an episode
 * (CP-3).
 *
 * Thread: one writes (the watchdog), any reads. Blocks: only for the book's own lock, under which
 * there are nothing but copies of rows. Owns: its entries; the last BH_STALLS_KEPT are kept. */
#ifndef BH_HOST_CORE_STALL_H
#define BH_HOST_CORE_STALL_H

#include <jansson.h>

#include "host/core/common.h"
#include "host/core/error.h"

/* What is stuck: a wait for the GIL, the asyncio loop, the control loop, or a task. */
enum bh_stall_kind { BH_STALL_GIL, BH_STALL_ASYNCIO, BH_STALL_CONTROL, BH_STALL_TASK };
#define BH_STALL_KINDS 4

const char *bh_stall_kind_name(enum bh_stall_kind kind); /* "gil", "asyncio", "control", "task" */

#define BH_STALLS_KEPT 64

/* What is stuck, as a gauge of the watchdog tells it. Zero where it does not apply. */
struct bh_stall_subject {
	uint64_t key;	   /* which one of the gauge's: a task's number, 0 for a loop */
	uint64_t since_ns; /* monotonic: since when it is stuck */
	char pool[BH_LABEL_MAX];
	char thread[16];
	uint32_t tid;
	char op[64]; /* may be cut */
	uint64_t task;
};

struct bh_stall_counts {
	uint64_t n[BH_STALL_KINDS]; /* episodes that have begun, by kind */
};

/* How long answers take: the GIL to the probe, a loop to its pulse. */
struct bh_stall_lag {
	uint64_t now_ns; /* for how long the present question has had no answer; 0: none is out */
	uint64_t n;	 /* answers */
	uint64_t last_ns, total_ns, max_ns;
	uint64_t max_at_ns; /* monotonic; 0: none yet */
};

struct bh_stall_book;

bh_status bh_stall_book_new(struct bh_stall_book **ret_book, struct bh_error *err) BH_MUST_CHECK;
struct bh_stall_book *bh_stall_book_free(struct bh_stall_book *book);

/* A new episode, from 1. `report`: {holder, waiters, native, python}, whose reference passes over;
 * NULL without memory for one. */
uint64_t bh_stall_book_begin(struct bh_stall_book *book, enum bh_stall_kind kind, uint64_t limit_ns,
			     const struct bh_stall_subject *subject, json_t *report);
/* It is over: it was stuck for `lag_ns` in all. */
void bh_stall_book_end(struct bh_stall_book *book, uint64_t id, uint64_t lag_ns);

/* One episode as in GET /v1/stalls (docs/admin-api.md), a copy of the caller's own; NULL without
 * memory, or when it is not kept any more. Thread: any. */
json_t *bh_stall_book_render_one(struct bh_stall_book *book, uint64_t id);
/* All that are kept, newest first: the text of a JSON array between `before` and `after`, the
 * caller's to free; NULL without memory. As long as a copy of that text takes. Thread: any. */
char *bh_stall_book_render(struct bh_stall_book *book, const char *before, const char *after,
			   size_t *ret_length);
void bh_stall_book_count(struct bh_stall_book *book, struct bh_stall_counts *ret_counts);

/* A monotonic time as unix time; null for 0. */
json_t *bh_stall_render_time(uint64_t at_ns);

#endif
