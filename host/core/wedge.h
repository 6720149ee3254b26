/* SPDX-License-Identifier: BSD-3-Clause */
/* wedge - tells the log what a given-up pool is stuck in (EXIT-4). Thread: any; blocks for a stack. */
#ifndef BH_HOST_CORE_WEDGE_H
#define BH_HOST_CORE_WEDGE_H

#include <jansson.h>

#include "host/core/clock.h"

struct bh_pool;

/* One line for one row of the `threads` in bh_pool_give_up()'s report: thread, step, op, task, since
 * when, and its stack where it can be had by `stack_until`. */
void bh_wedge_log_thread(const char *component, const struct bh_pool *pool, const json_t *row,
			 struct bh_deadline stack_until);

#endif
