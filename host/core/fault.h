/* SPDX-License-Identifier: BSD-3-Clause */
/* fault - fault points: the n-th allocation, thread, dlopen or plugin callback fails.
 *
 * Only where configured with --enable-faults (BH_FAULTS); elsewhere nothing of it is in the binary
 * and bh_fault_hit() is false at compile time. Process-wide state, since the wrapped functions have
 * no other place to find it. Chosen by the environment:
 *
 *   BULKHEAD_FAULT        a comma-separated list of KIND:N (the N-th call of that kind fails) or
 *                         KIND:N+ (each from the N-th on); KIND is alloc, thread, dlopen, callback
 *   BULKHEAD_FAULT_COUNT  a file for the counts: for each kind in that order two native 64-bit
 *                         words, calls seen and calls failed. It is mapped, so that it is true
 *                         however the process ends. */
#ifndef BH_HOST_CORE_FAULT_H
#define BH_HOST_CORE_FAULT_H

#include "host/core/common.h"

enum bh_fault_kind {
	BH_FAULT_ALLOC,	   /* malloc and its kin, called by the host's own objects */
	BH_FAULT_THREAD,   /* pthread_create */
	BH_FAULT_DLOPEN,   /* dlopen */
	BH_FAULT_CALLBACK, /* a plugin's open, worker_start, run, worker_stop or close */
};
#define BH_FAULT_KINDS (BH_FAULT_CALLBACK + 1)

#ifdef BH_FAULTS
/* Reads the environment. Thread: main, before the first fault point, while there is no other
 * thread. False: a value is wrong, which has been said on stderr. */
bool bh_fault_start(void) BH_MUST_CHECK;

/* Counts one call of `kind` and says whether it is to fail; one that fails is told on stderr, with
 * `what` and the caller's place in the executable. Thread: any. Blocks: no. Allocates: no. */
bool bh_fault_hit(enum bh_fault_kind kind, const char *what, const void *caller) BH_MUST_CHECK;
#else
static inline bool bh_fault_hit(enum bh_fault_kind kind, const char *what, const void *caller)
{
	(void)kind;
	(void)what;
	(void)caller;
	return false;
}
#endif

#endif
