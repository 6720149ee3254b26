/* SPDX-License-Identifier: BSD-3-Clause */
/* test_histogram - the suite of host/core/histogram.c. */
#include "config.h"

#include "host/core/histogram.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/core/common.h"
#include "tests/unit/tap.h"

#define N 50000

static uint64_t seed = 20261130;

static double chance(void) /* 0 … 1 */
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (double)(seed >> 11) / (double)(UINT64_C(1) << 53);
}

/* From 1 µs to 100 s, each decade as likely as any other. */
static uint64_t any_duration(void)
{
	return (uint64_t)(1e3 * pow(10.0, 8 * chance()));
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint32_t bucket_with(const struct bh_histogram *histogram)
{
	uint32_t i = 0;

	while (i < BH_HISTOGRAM_BUCKETS && atomic_load(&histogram->buckets[i]) == 0)
		i++;
	return i;
}

static uint64_t read_back(uint64_t ns)
{
	struct bh_histogram histogram = { 0 };
	struct bh_histogram_counts counts = { 0 };

	bh_histogram_add(&histogram, ns);
	bh_histogram_collect(&histogram, &counts);
	return bh_histogram_quantile(&counts, 0.5);
}

static void gil6_error(void)
{
	double worst = 0;

	for (int i = 0; i < N; i++) {
		uint64_t ns = any_duration();
		double error = fabs((double)read_back(ns) - (double)ns) / (double)ns;

		/* Below 1024 ns there is one bucket: a microsecond is read as half of one. */
		if (ns >= 1024 && error > worst)
			worst = error;
	}
	CU_ASSERT(worst > 0);
	CU_ASSERT(worst <= 0.0625);
}

static void gil6_bounds(void)
{
	for (uint32_t i = 1; i < BH_HISTOGRAM_BUCKETS; i++)
		CU_ASSERT(bh_histogram_bound_ns(i) > bh_histogram_bound_ns(i - 1));
	CU_ASSERT_EQUAL(bh_histogram_bound_ns(0), 1024);
	CU_ASSERT_EQUAL(bh_histogram_bound_ns(BH_HISTOGRAM_STEPS), 2048);
	CU_ASSERT_EQUAL(bh_histogram_bound_ns(BH_HISTOGRAM_BUCKETS - 2), UINT64_C(1) << 37);
	CU_ASSERT_EQUAL(bh_histogram_bound_ns(BH_HISTOGRAM_BUCKETS - 1), UINT64_MAX);
}

/* A bound is exclusive: it and the value before it are neighbours in different buckets. */
static void gil6_buckets_meet(void)
{
	for (uint32_t i = 0; i < BH_HISTOGRAM_BUCKETS - 1; i++) {
		uint64_t bound = bh_histogram_bound_ns(i);
		struct bh_histogram below = { 0 }, at = { 0 };

		bh_histogram_add(&below, bound - 1);
		bh_histogram_add(&at, bound);
		CU_ASSERT_EQUAL(bucket_with(&below), i);
		CU_ASSERT_EQUAL(bucket_with(&at), i + 1);
	}
}

static void gil6_quantiles(void)
{
	static const double quantiles[] = { 0, 0.01, 0.5, 0.9, 0.99, 0.999, 1 };
	static uint64_t values[N];
	struct bh_histogram histogram = { 0 };
	struct bh_histogram_counts counts = { 0 };

	for (size_t i = 0; i < N; i++) {
		values[i] = any_duration() + 24;
		bh_histogram_add_alone(&histogram, values[i]);
	}
	qsort(values, N, sizeof(values[0]), by_value);
	bh_histogram_collect(&histogram, &counts);
	CU_ASSERT_EQUAL(counts.n, N);
	for (size_t i = 0; i < BH_ARRAY_LEN(quantiles); i++) {
		size_t rank = (size_t)(quantiles[i] * N);
		double is = (double)values[rank < N ? rank : N - 1];
		double read = (double)bh_histogram_quantile(&counts, quantiles[i]);

		CU_ASSERT(fabs(read - is) / is <= 0.0625);
	}
}

static void gil6_extremes(void)
{
	struct bh_histogram histogram = { 0 };
	struct bh_histogram_counts counts = { 0 };

	CU_ASSERT_EQUAL(bh_histogram_quantile(&counts, 0.5), 0);
	bh_histogram_add(&histogram, 0);
	bh_histogram_add(&histogram, UINT64_MAX);
	CU_ASSERT_EQUAL(atomic_load(&histogram.buckets[0]), 1);
	CU_ASSERT_EQUAL(atomic_load(&histogram.buckets[BH_HISTOGRAM_BUCKETS - 1]), 1);
	bh_histogram_collect(&histogram, &counts);
	bh_histogram_collect(&histogram, &counts); /* adds to what is there */
	CU_ASSERT_EQUAL(counts.n, 4);
	CU_ASSERT(bh_histogram_quantile(&counts, 0.1) < 1024);
	CU_ASSERT_EQUAL(bh_histogram_quantile(&counts, 1), UINT64_C(1) << 37);
}

static void gil6_alone(void)
{
	struct bh_histogram shared = { 0 }, alone = { 0 };

	for (int i = 0; i < 1000; i++) {
		uint64_t ns = any_duration();

		bh_histogram_add(&shared, ns);
		bh_histogram_add_alone(&alone, ns);
	}
	CU_ASSERT_EQUAL(memcmp(&shared, &alone, sizeof(shared)), 0);
}

static const struct bh_test tests[] = {
	{ "GIL-6: a duration is read back with at most 6.25 % of error", gil6_error },
	{ "GIL-6: bounds rise, and octaves begin at powers of two", gil6_bounds },
	{ "GIL-6: buckets have no gap and no overlap", gil6_buckets_meet },
	{ "GIL-6: quantiles are those of the sorted values", gil6_quantiles },
	{ "GIL-6: nothing, everything and what is past the ends", gil6_extremes },
	{ "GIL-6: a histogram's only writer counts the same", gil6_alone },
};

BH_TAP_MAIN("histogram", tests)
