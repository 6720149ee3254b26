/* SPDX-License-Identifier: BSD-3-Clause */
/* watchdog - a thread ("bh-watch") that does some things at a steady pace, the GIL's sampling among
 * them, and looks at gauges: what exceeds its limit is a stall, told once when it begins and once
 * when it is over (CP-3).
 *
 * Thread: any starts, stops and joins; everything that the configuration names runs on the
 * watchdog. Owns: its thread. Lives: from start to a join that returned 0. NULL is a watchdog that
 * is off. */
#ifndef BH_HOST_CONTROL_WATCHDOG_H
#define BH_HOST_CONTROL_WATCHDOG_H

#include "host/core/clock.h"
#include "host/core/error.h"
#include "host/core/stall.h"

struct bh_watchdog;

/* Done every `interval_ns`; 0: never. `tick` is given the monotonic time since the call before (or
 * since the start), as it truly was: a late one makes up for what it missed in its number, not by
 * being called more often. It returns how many beats are to be left out before the next, 0 for
 * none: a thread that has nothing to see need not wake up for it. */
struct bh_beat {
	uint64_t interval_ns;
	uint32_t (*tick)(uint64_t elapsed_ns, void *arg);
	void *arg;
};

#define BH_SUBJECTS_MAX 32 /* of one gauge at once; what comes on top is told when there is room */

/* Something that can be stuck, or several such (the tasks of a pool). */
struct bh_gauge {
	enum bh_stall_kind kind;
	uint64_t limit_ns; /* 0: never a stall */
	/* Whatever has been stuck since before `before_ns`: how many are in `ret`, which has
	 * BH_SUBJECTS_MAX rows; the longest first when there are more. Must not wait for what it
	 * looks at. */
	uint32_t (*look)(uint64_t before_ns, struct bh_stall_subject *ret, void *arg);
	void *arg;
};

struct bh_watchdog_config {
	const struct bh_beat *beats; /* copied */
	size_t n_beats;
	const struct bh_gauge *gauges; /* copied */
	size_t n_gauges;
	/* An episode begins: the subject has been stuck for the gauge's limit. May take a while, but
	 * not for ever, or stop does not end it; none begins once that was asked. Returns what `end`
	 * is to be given. */
	uint64_t (*begin)(const struct bh_gauge *gauge, const struct bh_stall_subject *subject,
			  void *arg);
	/* It is over, after `lag_ns` in all. */
	void (*end)(const struct bh_gauge *gauge, uint64_t id, uint64_t lag_ns, void *arg);
	void *arg;
};

/* Nothing to do: off, `*ret_watchdog` is NULL. */
bh_status bh_watchdog_start(const struct bh_watchdog_config *config,
			    struct bh_watchdog **ret_watchdog, struct bh_error *err) BH_MUST_CHECK;
void bh_watchdog_stop(struct bh_watchdog *watchdog); /* asks; any number of times */
/* 0: ended, and the watchdog is freed. -ETIMEDOUT: something still runs; it may be asked again. */
bh_status bh_watchdog_join(struct bh_watchdog *watchdog, struct bh_deadline until,
			   struct bh_error *err) BH_MUST_CHECK;

#endif
