/* SPDX-License-Identifier: BSD-3-Clause */
/* pulse - asks a loop for a sign of life: a message through the loop's own queue, answered when it
 * is delivered.
 *
 * Thread: one asks; the loop's thread answers by delivering; any reads, and any closes. GIL: never.
 * Blocks: no. Lives: storage is the caller's, and must outlive the loop: a question may be on its
 * way for as long as the loop is stuck. */
#ifndef BH_HOST_CORE_PULSE_H
#define BH_HOST_CORE_PULSE_H

#include <stdatomic.h>

#include "host/core/histogram.h"
#include "host/core/post.h"
#include "host/core/stall.h"
#include "host/core/sync.h"

struct bh_pulse {
	struct bh_message message;			     /* out while asked_ns is not 0 */
	void (*post)(struct bh_message *message, void *arg); /* I: never blocks */
	void *arg;					     /* I */
	/* Guards `closed`; held across the post: after a close nothing is posted any more. A leaf
	 * but for what a post needs, which is nothing. */
	struct bh_mutex lock;
	bool closed;		     /* M */
	_Atomic bool ignored;	     /* A: relaxed; closed, for readers */
	_Atomic uint64_t asked_ns;   /* A: release by the answer, acquire by the next question */
	_Atomic uint32_t tid;	     /* A: relaxed; the loop's thread, from its first answer on */
	struct bh_histogram answers; /* how long they took */
	_Atomic uint64_t n, last_ns, total_ns, max_ns, max_at_ns; /* A: relaxed, statistics only */
};

void bh_pulse_init(struct bh_pulse *pulse, void (*post)(struct bh_message *message, void *arg),
		   void *arg);
/* Nothing is out any more. */
void bh_pulse_fini(struct bh_pulse *pulse);
/* Nothing, while a question is out: there is one at a time. */
void bh_pulse_ask(struct bh_pulse *pulse);
/* No question follows once this has returned, and one that is out counts no more. For good. */
void bh_pulse_close(struct bh_pulse *pulse);
/* Since when a question has been waiting for its answer (monotonic); 0: none is out. */
uint64_t bh_pulse_silent_since(const struct bh_pulse *pulse);
/* `counts` may be NULL; it is added to. */
void bh_pulse_read(const struct bh_pulse *pulse, struct bh_stall_lag *ret_lag,
		   struct bh_histogram_counts *counts);

#endif
