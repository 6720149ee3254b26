/* SPDX-License-Identifier: BSD-3-Clause */
/* watchdog - a thread ("bh-watch") that calls one function at a steady pace: the GIL's sampler.
 *
 * Thread: any starts, stops and joins; the tick runs on the watchdog. Owns: its thread.
 * Lives:  from start to a join that returned 0. NULL is a watchdog that is off. */
#ifndef BH_HOST_CONTROL_WATCHDOG_H
#define BH_HOST_CONTROL_WATCHDOG_H

#include "host/core/clock.h"
#include "host/core/error.h"

struct bh_watchdog;

/* `tick` is given the monotonic time since the call before (or since the start), as it truly was: a
 * late one makes up for what it missed in its number, not by being called more often. It must not
 * block, or stop does not end it. `interval_ns` 0: off, `*ret_watchdog` is NULL. */
bh_status bh_watchdog_start(uint64_t interval_ns, void (*tick)(uint64_t elapsed_ns, void *arg),
			    void *arg, struct bh_watchdog **ret_watchdog,
			    struct bh_error *err) BH_MUST_CHECK;
void bh_watchdog_stop(struct bh_watchdog *watchdog); /* asks; any number of times */
/* 0: ended, and the watchdog is freed. -ETIMEDOUT: a tick still runs; it may be asked again. */
bh_status bh_watchdog_join(struct bh_watchdog *watchdog, struct bh_deadline until,
			   struct bh_error *err) BH_MUST_CHECK;

#endif
