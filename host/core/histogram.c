/* SPDX-License-Identifier: BSD-3-Clause */
/* histogram - see histogram.h. */
#include "config.h"

#include "host/core/histogram.h"

#define FIRST_BITS 10 /* octave 0 begins at 2^10 ns */
#define STEP_BITS 3

_Static_assert(1 << STEP_BITS == BH_HISTOGRAM_STEPS, "the steps of an octave");

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t bits, step;

	if (ns >> FIRST_BITS == 0)
		return 0;
	bits = 63 - (uint32_t)__builtin_clzll(ns);
	if (bits >= FIRST_BITS + BH_HISTOGRAM_OCTAVES)
		return BH_HISTOGRAM_BUCKETS - 1;
	step = ns >> (bits - STEP_BITS) & (BH_HISTOGRAM_STEPS - 1);
	return 1 + (bits - FIRST_BITS) * BH_HISTOGRAM_STEPS + step;
}

uint64_t bh_histogram_bound_ns(uint32_t bucket)
{
	uint32_t octave = bucket / BH_HISTOGRAM_STEPS, step = bucket % BH_HISTOGRAM_STEPS;

	if (bucket >= BH_HISTOGRAM_BUCKETS - 1)
		return UINT64_MAX;
	return (uint64_t)(BH_HISTOGRAM_STEPS + step) << (octave + FIRST_BITS - STEP_BITS);
}

void bh_histogram_add(struct bh_histogram *histogram, uint64_t ns)
{
	atomic_fetch_add_explicit(&histogram->buckets[bucket_of(ns)], 1, memory_order_relaxed);
}

void bh_histogram_add_alone(struct bh_histogram *histogram, uint64_t ns)
{
	_Atomic uint64_t *bucket = &histogram->buckets[bucket_of(ns)];

	atomic_store_explicit(bucket, atomic_load_explicit(bucket, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

void bh_histogram_collect(const struct bh_histogram *histogram, struct bh_histogram_counts *counts)
{
	for (uint32_t i = 0; i < BH_HISTOGRAM_BUCKETS; i++) {
		uint64_t n = atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);

		counts->buckets[i] += n;
		counts->n += n;
	}
}

/* A bucket's middle, so that the error is half a step at most. */
static uint64_t middle_ns(uint32_t bucket)
{
	uint64_t from = bucket ? bh_histogram_bound_ns(bucket - 1) : 0;

	if (bucket == BH_HISTOGRAM_BUCKETS - 1)
		return from;
	return from + (bh_histogram_bound_ns(bucket) - from) / 2;
}

uint64_t bh_histogram_quantile(const struct bh_histogram_counts *counts, double q)
{
	uint64_t seen = 0, rank = (uint64_t)(q * (double)counts->n);

	if (counts->n == 0)
		return 0;
	if (rank >= counts->n)
		rank = counts->n - 1;
	for (uint32_t i = 0; i < BH_HISTOGRAM_BUCKETS; i++) {
		seen += counts->buckets[i];
		if (seen > rank)
			return middle_ns(i);
	}
	return 0;
}
