/* SPDX-License-Identifier: BSD-3-Clause */
/* probe - a thread ("bh-probe") that asks for the GIL at host.probe every now and then and measures
 * how long it takes to get: what a stall of the GIL is told by, whoever caused it.
 *
 * Thread: main starts, stops and joins; any reads. */
#ifndef BH_HOST_GIL_PROBE_H
#define BH_HOST_GIL_PROBE_H

#include "host/core/histogram.h"
#include "host/gil/gil.h"

/* `interval_ns` 0: off; the others then do nothing and read zeros. */
bh_status bh_gil_probe_start(uint64_t interval_ns, struct bh_error *err) BH_MUST_CHECK;
void bh_gil_probe_stop(void); /* asks; any number of times; before the gate closes */
/* -ETIMEDOUT: it still waits for the GIL; it may be asked again. */
bh_status bh_gil_probe_join(struct bh_deadline until, struct bh_error *err) BH_MUST_CHECK;

/* Since when it has been waiting for the GIL (monotonic); 0: it is not. Thread: any. */
uint64_t bh_gil_probe_waiting_since(void);

struct bh_gil_probe_stats {
	uint64_t n; /* answers */
	uint64_t last_ns, total_ns, max_ns;
	uint64_t max_at_ns; /* monotonic; 0: none yet */
};
/* `counts` may be NULL; it is added to. */
void bh_gil_probe_read(struct bh_gil_probe_stats *ret_stats, struct bh_histogram_counts *counts);

#endif
