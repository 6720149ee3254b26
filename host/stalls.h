/* SPDX-License-Identifier: BSD-3-Clause */
/* stalls - what watches for stalls: the watchdog with its gauges, the pulses, and what is told of an
 * episode (CP-3). Part of the wiring: beside main.c the only file that knows all modules.
 *
 * Thread: main makes, starts and stops; any reads. Lives: to the end of the process. */
#ifndef BH_HOST_STALLS_H
#define BH_HOST_STALLS_H

#include "host/control/control.h"
#include "host/core/histogram.h"
#include "host/core/stall.h"

struct bh_module;
struct bh_stalls;

struct bh_stalls_config {
	const struct bh_config *config; /* borrowed */
	struct bh_views *views;		/* borrowed: "stalls" is added to it */
	/* The plugin `index` of the manifest, NULL before it is loaded. Thread: any. */
	struct bh_module *(*module_at)(size_t index, void *arg);
	void *arg;
};

bh_status bh_stalls_new(const struct bh_stalls_config *config, struct bh_stalls **ret_stalls,
			struct bh_error *err) BH_MUST_CHECK;
/* Only after a join that returned 0, and after the control loop has ended. */
struct bh_stalls *bh_stalls_free(struct bh_stalls *stalls);
/* The interpreter is up, main is about to serve its loop. From now on the GIL is sampled and stalls
 * are looked for; with an error only some of it happens, or none, and stop is called all the same. */
bh_status bh_stalls_start(struct bh_stalls *stalls, struct bh_control *control,
			  struct bh_error *err) BH_MUST_CHECK;
/* Main has left its loop: it is asked no more. */
void bh_stalls_loop_left(struct bh_stalls *stalls);
/* Ends the watchdog; nothing is posted to the control loop once this has returned, whatever it
 * returns. Before the control loop is joined. -ETIMEDOUT: it is still at work. */
bh_status bh_stalls_stop(struct bh_stalls *stalls, struct bh_deadline until,
			 struct bh_error *err) BH_MUST_CHECK;

/* For the metrics. Thread: any; never block. */
void bh_stalls_count(struct bh_stalls *stalls, struct bh_stall_counts *ret_counts);
/* The probe's or a loop's answers; `kind` is not BH_STALL_TASK. `counts` may be NULL; it is added
 * to. */
void bh_stalls_lag(const struct bh_stalls *stalls, enum bh_stall_kind kind,
		   struct bh_stall_lag *ret_lag, struct bh_histogram_counts *counts);

#endif
