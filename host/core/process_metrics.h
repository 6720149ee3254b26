/* SPDX-License-Identifier: BSD-3-Clause */
/* process_metrics - what the process uses, under the names that every exporter gives it
 * (process_*), and how many log lines were lost. */
#ifndef BH_HOST_CORE_PROCESS_METRICS_H
#define BH_HOST_CORE_PROCESS_METRICS_H

#include "host/core/metrics.h"

/* For bh_metrics_add(); `arg` is not used. A family whose number cannot be had is left out. */
void bh_process_metrics_render(struct bh_metrics_text *text, void *arg);

#endif
