/* SPDX-License-Identifier: BSD-3-Clause */
/* crash - the last line of a process that dies by SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT: which
 * thread, and for a pool's thread which pool, step, op and task. The process then dies by that
 * signal as it would have, core dump included. */
#ifndef BH_HOST_CORE_CRASH_H
#define BH_HOST_CORE_CRASH_H

#include "host/core/error.h"

/* After bh_log_start. A signal that has a handler already (a sanitizer's) is left alone. */
bh_status bh_crash_init(struct bh_error *err) BH_MUST_CHECK;

#endif
