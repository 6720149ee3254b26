/* SPDX-License-Identifier: BSD-3-Clause */
/* test_kernels - plugins/stream/kernels.c against sums in double precision and a full sort. */
#include "config.h"

#include "plugins/stream/kernels.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/tap.h"

static bool never_asked(const void *arg)
{
	(void)arg;
	return false;
}

static const struct bh_stream_stop go_on = { never_asked, NULL };

/* Says stop at the n-th question, and how many were asked. */
struct counted_stop {
	int at;
	int asked;
};

static bool stop_at(const void *arg)
{
	struct counted_stop *counted = (void *)arg;

	return ++counted->asked >= counted->at;
}

/* xorshift: the same numbers in every run, so that a failure can be looked at again. */
static uint64_t random_bits(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static float random_float(uint64_t *seed)
{
	return (float)((double)(random_bits(seed) >> 11) / (double)(UINT64_C(1) << 52) - 1.0);
}

/* One element more than asked for, so that 0 gives memory too; ASan sees what lies behind. */
static float *random_vector(uint64_t *seed, size_t n)
{
	float *v = malloc((n + 1) * sizeof(*v));

	CU_ASSERT_PTR_NOT_NULL_FATAL(v);
	for (size_t i = 0; i < n; i++)
		v[i] = random_float(seed);
	return realloc(v, n ? n * sizeof(*v) : 1);
}

/* The exact sum, near enough, and how large the rounding may make the difference. */
static double reference_dot(const float *a, const float *b, size_t n, double *ret_bound)
{
	double sum = 0, magnitude = 0;

	for (size_t i = 0; i < n; i++) {
		sum += (double)a[i] * (double)b[i];
		magnitude += fabs((double)a[i] * (double)b[i]);
	}
	/* A block adds at most 4096 / 16 products to a lane, then 4 times two lanes. */
	*ret_bound = magnitude * (double)FLT_EPSILON * (4096 / 16 + 5) + (double)FLT_MIN;
	return sum;
}

static void dot_matches_reference(void)
{
	static const size_t sizes[] = { 0,   1,	   2,	 15,   16,   17,     31,
					255, 4095, 4096, 4097, 8192, 100003, 3000001 };
	uint64_t seed = 7;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		float *a = random_vector(&seed, sizes[s]), *b = random_vector(&seed, sizes[s]);
		double got = NAN, bound, want = reference_dot(a, b, sizes[s], &bound);

		CU_ASSERT_TRUE(bh_stream_dot(a, b, sizes[s], &go_on, &got));
		CU_ASSERT_TRUE(fabs(got - want) <= bound);
		free(a);
		free(b);
	}
}

static void dot_error_does_not_grow(void)
{
	const size_t n = 20000000; /* one float32 sum of so many ones stops at 2^24 */
	float *ones = malloc(n * sizeof(*ones));
	double got = 0;

	CU_ASSERT_PTR_NOT_NULL_FATAL(ones);
	CU_ASSERT_TRUE(bh_stream_fill(ones, 1.0f, n, &go_on));
	CU_ASSERT_TRUE(bh_stream_dot(ones, ones, n, &go_on, &got));
	CU_ASSERT_EQUAL(got, 20000000.0);
	free(ones);
}

static void dot_keeps_nan_and_infinity(void)
{
	float a[20] = { 0 }, b[20] = { 0 };
	double got = 0;

	a[19] = INFINITY;
	b[19] = 2;
	CU_ASSERT_TRUE(bh_stream_dot(a, b, 20, &go_on, &got));
	CU_ASSERT_TRUE(isinf(got) && got > 0);
	b[3] = NAN;
	CU_ASSERT_TRUE(bh_stream_dot(a, b, 20, &go_on, &got));
	CU_ASSERT_TRUE(isnan(got));
	b[3] = 0;
	b[19] = 0;
	CU_ASSERT_TRUE(bh_stream_dot(a, b, 20, &go_on, &got));
	CU_ASSERT_TRUE(isnan(got));
}

static void check_matvec(uint64_t *seed, size_t rows, size_t cols)
{
	float *m = random_vector(seed, rows * cols), *x = random_vector(seed, cols);
	float *out = random_vector(seed, rows);

	CU_ASSERT_TRUE(bh_stream_matvec(out, m, x, rows, cols, &go_on));
	for (size_t row = 0; row < rows; row++) {
		double bound, want = reference_dot(m + row * cols, x, cols, &bound);

		CU_ASSERT_TRUE(fabs((double)out[row] - want) <=
			       bound + fabs(want) * (double)FLT_EPSILON);
	}
	free(m);
	free(x);
	free(out);
}

static void matvec_matches_reference(void)
{
	uint64_t seed = 11;

	for (int i = 0; i < 60; i++)
		check_matvec(&seed, random_bits(&seed) % 40, random_bits(&seed) % 90);
	check_matvec(&seed, 0, 5);
	check_matvec(&seed, 5, 0);
	check_matvec(&seed, 1, 1);
	check_matvec(&seed, 3, 4097);
	check_matvec(&seed, 700, 1024);
	check_matvec(&seed, 2, 1500000);
}

static void matvec_of_no_columns_is_zero(void)
{
	float out[3] = { 1, NAN, 3 };

	CU_ASSERT_TRUE(bh_stream_matvec(out, NULL, NULL, 3, 0, &go_on));
	for (int i = 0; i < 3; i++)
		CU_ASSERT_EQUAL(out[i], 0.0f);
}

static int compare_ranked(const void *a, const void *b)
{
	const struct bh_stream_ranked *x = a, *y = b;

	if (x->score != y->score)
		return x->score < y->score ? 1 : -1;
	return x->index > y->index ? 1 : -1;
}

/* Everything sorted, then cut: slow and plainly right. */
static size_t reference_top_k(const float *scores, size_t n, size_t k, struct bh_stream_ranked *all)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++)
		if (!isnan(scores[i]))
			all[count++] = (struct bh_stream_ranked){ scores[i], i };
	qsort(all, count, sizeof(*all), compare_ranked);
	return count < k ? count : k;
}

static void check_top_k(const float *scores, size_t n, size_t k)
{
	struct bh_stream_ranked *best = calloc((k < n ? k : n) + 1, sizeof(*best));
	struct bh_stream_ranked *all = calloc(n + 1, sizeof(*all));
	size_t count = SIZE_MAX, want;

	CU_ASSERT_PTR_NOT_NULL_FATAL(best);
	CU_ASSERT_PTR_NOT_NULL_FATAL(all);
	want = reference_top_k(scores, n, k, all);
	CU_ASSERT_TRUE(bh_stream_top_k(scores, n, k, best, &go_on, &count));
	CU_ASSERT_EQUAL_FATAL(count, want);
	for (size_t i = 0; i < count; i++) {
		CU_ASSERT_EQUAL(best[i].index, all[i].index);
		CU_ASSERT_EQUAL(best[i].score, all[i].score);
	}
	free(best);
	free(all);
}

static void top_k_matches_sort(void)
{
	static const size_t ks[] = { 0, 1, 2, 5, 63, 64, 65, 1000, SIZE_MAX };
	uint64_t seed = 3;

	for (int round = 0; round < 40; round++) {
		size_t n = random_bits(&seed) % 400;
		float *scores = random_vector(&seed, n);

		/* A third of the rounds has few different values, so that ties abound; a third NaN.
		 */
		for (size_t i = 0; i < n && round % 3 == 1; i++)
			scores[i] = floorf(scores[i] * 3);
		for (size_t i = 0; i < n && round % 3 == 2; i++)
			if (random_bits(&seed) % 4 == 0)
				scores[i] = NAN;
		for (size_t i = 0; i < sizeof(ks) / sizeof(ks[0]); i++)
			check_top_k(scores, n, ks[i]);
		free(scores);
	}
}

static void top_k_of_large_input(void)
{
	const size_t n = 300007;
	uint64_t seed = 5;
	float *scores = random_vector(&seed, n);

	check_top_k(scores, n, 10);
	check_top_k(scores, n, 5000);
	check_top_k(scores, n, n);
	for (size_t i = 0; i < n; i++) /* ascending: every score gets in */
		scores[i] = (float)i;
	check_top_k(scores, n, 7);
	free(scores);
}

static void top_k_ranks_special_values(void)
{
	const float scores[] = {
		NAN, -INFINITY, 0.0f, -0.0f, INFINITY, NAN, 1, INFINITY, 0.0f, -NAN
	};
	const uint64_t order[] = { 4, 7, 6, 2, 3, 8, 1 };
	struct bh_stream_ranked best[10];
	size_t count;

	CU_ASSERT_TRUE(bh_stream_top_k(scores, 10, 10, best, &go_on, &count));
	CU_ASSERT_EQUAL_FATAL(count, 7);
	for (size_t i = 0; i < count; i++)
		CU_ASSERT_EQUAL(best[i].index, order[i]);
	CU_ASSERT_TRUE(bh_stream_top_k(scores, 1, 1, best, &go_on, &count));
	CU_ASSERT_EQUAL(count, 0);
	CU_ASSERT_TRUE(bh_stream_top_k(NULL, 0, 3, best, &go_on, &count));
	CU_ASSERT_EQUAL(count, 0);
}

static void elementwise_kernels(void)
{
	static const size_t sizes[] = { 0, 1, 7, 4096, 4099, 50000 };
	uint64_t seed = 13;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		size_t n = sizes[s];
		float *x = random_vector(&seed, n), *y = random_vector(&seed, n),
		      *old = random_vector(&seed, n);

		CU_ASSERT_TRUE(bh_stream_copy(old, y, n, &go_on));
		CU_ASSERT_TRUE(n == 0 || memcmp(old, y, n * sizeof(*y)) == 0);
		CU_ASSERT_TRUE(bh_stream_axpy(y, 2.5f, x, n, &go_on));
		for (size_t i = 0; i < n; i++)
			CU_ASSERT_TRUE(fabsf(y[i] - (old[i] + 2.5f * x[i])) <= 4 * FLT_EPSILON);
		CU_ASSERT_TRUE(bh_stream_copy(y, old, n, &go_on));
		CU_ASSERT_TRUE(bh_stream_scale(y, -3, n, &go_on));
		for (size_t i = 0; i < n; i++)
			CU_ASSERT_EQUAL(y[i], old[i] * -3);
		CU_ASSERT_TRUE(bh_stream_fill(y, INFINITY, n, &go_on));
		for (size_t i = 0; i < n; i++)
			CU_ASSERT_EQUAL(y[i], INFINITY);
		free(x);
		free(y);
		free(old);
	}
}

static void kernels_stop_when_told(void)
{
	const size_t n = 5u << 20;
	float *a = calloc(n, sizeof(*a)), *b = calloc(n, sizeof(*b));
	struct bh_stream_ranked *best = calloc(n, sizeof(*best));
	struct counted_stop counted;
	const struct bh_stream_stop stop = { stop_at, &counted };
	double dot = 42;
	size_t count = 42;

	CU_ASSERT_PTR_NOT_NULL_FATAL(a);
	CU_ASSERT_PTR_NOT_NULL_FATAL(b);
	CU_ASSERT_PTR_NOT_NULL_FATAL(best);
#define STOPS(call)                                                                                \
	do {                                                                                       \
		counted = (struct counted_stop){ .at = 2 };                                        \
		CU_ASSERT_FALSE(call);                                                             \
		CU_ASSERT_EQUAL(counted.asked, 2);                                                 \
	} while (0)
	STOPS(bh_stream_dot(a, b, n, &stop, &dot));
	STOPS(bh_stream_matvec(b, a, a, 5, 1u << 20, &stop));
	STOPS(bh_stream_matvec(b, a, a, n, 0, &stop));
	STOPS(bh_stream_top_k(a, n, 3, best, &stop, &count));
	STOPS(bh_stream_fill(b, 1, n, &stop));
	STOPS(bh_stream_copy(b, a, n, &stop));
	STOPS(bh_stream_scale(b, 1, n, &stop));
	STOPS(bh_stream_axpy(b, 1, a, n, &stop));
	/* In the sort that follows the scan, too: five questions belong to the scan. */
	counted = (struct counted_stop){ .at = 7 };
	CU_ASSERT_FALSE(bh_stream_top_k(a, n, n, best, &stop, &count));
	CU_ASSERT_EQUAL(counted.asked, 7);
	CU_ASSERT_EQUAL(dot, 42);
	CU_ASSERT_EQUAL(count, 42);
	free(a);
	free(b);
	free(best);
}

static void short_work_is_not_asked(void)
{
	const float one = 1;
	struct counted_stop counted = { .at = 1 };
	const struct bh_stream_stop stop = { stop_at, &counted };
	double dot;

	CU_ASSERT_TRUE(bh_stream_dot(&one, &one, 1, &stop, &dot));
	CU_ASSERT_EQUAL(dot, 1.0);
	CU_ASSERT_EQUAL(counted.asked, 0);
}

static const struct bh_test tests[] = {
	{ "dot is the sum in double precision, within its bound, for every kind of length",
	  dot_matches_reference },
	{ "dot of 20 million ones is exact", dot_error_does_not_grow },
	{ "dot keeps NaN and infinity", dot_keeps_nan_and_infinity },
	{ "matvec is a dot product a row, for random shapes", matvec_matches_reference },
	{ "matvec of a matrix without columns writes zeros", matvec_of_no_columns_is_zero },
	{ "top_k is the head of a sort, with ties and NaN, for every kind of k",
	  top_k_matches_sort },
	{ "top_k of a large input, sorted and not", top_k_of_large_input },
	{ "top_k leaves NaN out, ranks infinities, and takes -0.0 for 0.0",
	  top_k_ranks_special_values },
	{ "fill, copy, scale and axpy reach every element", elementwise_kernels },
	{ "every kernel ends early when it is told to, and then writes no result",
	  kernels_stop_when_told },
	{ "short work does not ask whether to stop", short_work_is_not_asked },
};

BH_TAP_MAIN("kernels", tests)
