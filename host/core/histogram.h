/* SPDX-License-Identifier: BSD-3-Clause */
/* histogram - how durations are distributed: log-linear, from 1 µs to 137 s, 8 steps an octave.
 *
 * A value that is read back is off by at most 6.25 % of itself. What is below 1024 ns is in bucket
 * 0, what is above 2^37 ns in the last. Octaves begin at powers of two of 1024 ns, so that coarser
 * bounds can be told exactly.
 *
 * Thread: any adds and reads; an add is one relaxed increment, a read may miss adds that go on
 * meanwhile. Storage is the caller's, zeroed. */
#ifndef BH_HOST_CORE_HISTOGRAM_H
#define BH_HOST_CORE_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#define BH_HISTOGRAM_STEPS 8	/* an octave */
#define BH_HISTOGRAM_OCTAVES 27 /* 2^10 … 2^37 ns */
#define BH_HISTOGRAM_BUCKETS (BH_HISTOGRAM_STEPS * BH_HISTOGRAM_OCTAVES + 2)

struct bh_histogram {
	_Atomic uint64_t buckets[BH_HISTOGRAM_BUCKETS]; /* A: relaxed, statistics only */
};

/* One moment's copy, of one histogram or the sum of several. */
struct bh_histogram_counts {
	uint64_t n;
	uint64_t buckets[BH_HISTOGRAM_BUCKETS];
};

void bh_histogram_add(struct bh_histogram *histogram, uint64_t ns);
/* The same for a histogram's only writer, without a locked instruction. */
void bh_histogram_add_alone(struct bh_histogram *histogram, uint64_t ns);
/* Adds what `histogram` has to `*counts`, which begins zeroed. */
void bh_histogram_collect(const struct bh_histogram *histogram, struct bh_histogram_counts *counts);
/* The value in ns that the share `q` (0 … 1) of all lies at or below; 0 when there are none. */
uint64_t bh_histogram_quantile(const struct bh_histogram_counts *counts, double q);
/* Where a bucket ends, exclusive, in ns; UINT64_MAX for the last. */
uint64_t bh_histogram_bound_ns(uint32_t bucket);

#endif
