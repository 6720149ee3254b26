/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_metrics - the pools' books as metrics. */
#ifndef BH_HOST_CORE_POOL_METRICS_H
#define BH_HOST_CORE_POOL_METRICS_H

#include "host/core/metrics.h"
#include "host/core/pool.h"

/* Whole families over `pools`, so there may be one call a page. Each pool's lock is taken for as
 * long as it takes to copy its books, which agree with each other (SUP-4). */
void bh_pool_metrics_render(struct bh_metrics_text *text, struct bh_pool *const *pools, size_t n);

#endif
