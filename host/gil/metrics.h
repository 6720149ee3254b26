/* SPDX-License-Identifier: BSD-3-Clause */
/* metrics - the GIL's account as metrics: by site and plane, the holder, the probe. */
#ifndef BH_HOST_GIL_METRICS_H
#define BH_HOST_GIL_METRICS_H

#include "host/core/metrics.h"

/* For bh_metrics_add(); `arg` is not used. Needs no GIL and waits for nobody. */
void bh_gil_metrics_render(struct bh_metrics_text *text, void *arg);

#endif
