/* SPDX-License-Identifier: BSD-3-Clause */
/* signals - the host's signal dispositions: who stops it, and that this stays so.
 *
 * SIGTERM, SIGINT and SIGHUP have a handler that counts and writes an eventfd, which the control
 * loop reads. SIGHUP asks elsewhere for a reload, which this host has not; by default it would end
 * the process: it may be an app's, or ignored (nohup), but never default. SIGPIPE is ignored;
 * SIGCHLD is default, or a handler of an app's, but never ignored, which would lose the exit
 * statuses of children. No signal is blocked anywhere: a blocked mask is inherited by subprocesses.
 * Python and asyncio change dispositions behind the host's back, hence the check.
 *
 * Thread: install on main before Python starts, take and check on the control loop, fd any.
 * Owns:   the dispositions of those five signals, for the life of the process. */
#ifndef BH_HOST_CONTROL_SIGNALS_H
#define BH_HOST_CONTROL_SIGNALS_H

#include "host/core/error.h"

struct bh_signal_counts {
	uint32_t term, interrupt, hangup; /* SIGTERM, SIGINT, SIGHUP since the last take */
};

/* Idempotent. In a forked child that has not called exec these three act as by default. */
bh_status bh_signals_install(struct bh_error *err) BH_MUST_CHECK;
/* Readable while there is something to take; -1 before install. Never read or close it. */
int bh_signals_fd(void);
void bh_signals_take(struct bh_signal_counts *ret_counts);
/* Restores what somebody changed, and logs which signal and what was found. Returns how many. */
unsigned bh_signals_check(void);

#endif
