/* SPDX-License-Identifier: BSD-3-Clause */
/* courier - the thread ("bh-courier") that runs posted GIL work, and drops Python references once
 * main's loop is gone (GIL-7, GIL-9).
 *
 * Thread: any posts; main starts, closes and joins. Owns: its thread and the bounded queue. A job
 * that was accepted runs exactly once, unless the process ends by _exit. Keeps: GIL-7, GIL-9. */
#ifndef BH_HOST_GIL_COURIER_H
#define BH_HOST_GIL_COURIER_H

#include "host/core/post.h"
#include "host/gil/gil.h"

#define BH_COURIER_QUEUE 1024 /* jobs accepted that have not ended */

/* Main, once the interpreter is up. */
bh_status bh_courier_start(struct bh_error *err) BH_MUST_CHECK;
/* Runs fn(arg) under the GIL at `site`, on the courier, in the order of the posts; inline when the
 * caller holds the GIL, also once the courier takes no more. Never blocks. -EAGAIN
 * ("gil.courier_full"): the queue is full. -ESHUTDOWN: the courier takes no more. -EINVAL: no such
 * site. Whatever is returned but 0, fn does not run. */
bh_status bh_courier_post(bh_gil_site site, void (*fn)(void *arg), void *arg,
			  struct bh_error *err) BH_MUST_CHECK;
/* Calls fn(arg), and keeps to itself what must not get past. Under the GIL. */
typedef void (*bh_courier_guard_fn)(bh_gil_site site, void (*fn)(void *arg), void *arg);
/* As bh_courier_post(), for a function that may throw: `guard` (NULL: none) is what calls it. */
bh_status bh_courier_post_guarded(bh_gil_site site, bh_courier_guard_fn guard,
				  void (*fn)(void *arg), void *arg,
				  struct bh_error *err) BH_MUST_CHECK;
/* From now on the courier also delivers what is posted to `releases`, at host.release. Main, once
 * its loop is gone: nobody else waits for it any more. */
void bh_courier_take_over(struct bh_postbox *releases);
/* Takes no more posts; works off what it has, the releases too; then its thread ends. Asks and
 * returns. */
void bh_courier_close(void);
/* Main, without the GIL, before the gate closes. -ETIMEDOUT ("gil.courier_stuck"): a job still runs
 * or waits. 0 when it was never started. */
bh_status bh_courier_join(struct bh_deadline until, struct bh_error *err) BH_MUST_CHECK;
/* The process ends by exit(): close(), and wait until no job waits or runs, unless the caller is one.
 * False: not by `until`. Thread: whichever called exit(), without the GIL. */
bool bh_courier_settle(struct bh_deadline until);
/* "courier" of /v1/gil: {queued, waiting_s, ran, inline, refused, dropped}. waiting_s: for how long
 * its present job has waited for the GIL, 0 when none does. Thread: any; never blocks. */
json_t *bh_courier_render(void);

#endif
