/* SPDX-License-Identifier: BSD-3-Clause */
/* test_kernels - plugins/stream/kernels.c in both types and every layout, against plain
 * loops in more precision and a full sort. Built twice: with CBLAS and without. */
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

static double random_real(uint64_t *seed)
{
	return (double)(random_bits(seed) >> 11) / (double)(UINT64_C(1) << 52) - 1.0;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* An array in memory of its own, at both ends of which nothing lies: ASan sees what is touched. */
struct owned {
	struct bh_stream_array array;
	char *memory;
};

static int64_t item_of(enum bh_stream_real real)
{
	return real == BH_STREAM_FLOAT32 ? 4 : 8;
}

static size_t count_of(const struct bh_stream_array *array)
{
	size_t n = 1;

	for (uint32_t i = 0; i < array->n_dims; i++)
		n *= (size_t)array->shape[i];
	return n;
}

/* How elements lie, one bit each. */
enum { REVERSED = 1, GAPS = 2, TRANSPOSED = 4, BROADCAST = 8, LAYOUTS = 16 };

/* All zeros. `layout` bits apply to every dimension, BROADCAST to the first one alone. */
static struct owned array_new(enum bh_stream_real real, uint32_t n_dims, const int64_t *shape,
			      unsigned layout)
{
	struct owned o = { .array = { .real = real, .n_dims = n_dims } };
	int64_t item = item_of(real), span = item, first = 0;

	for (uint32_t i = 0; i < n_dims; i++) {
		uint32_t dim = layout & TRANSPOSED ? i : n_dims - 1 - i;
		int64_t length = shape[dim] > 0 ? shape[dim] : 1;

		o.array.shape[dim] = shape[dim];
		if (layout & BROADCAST && dim == 0)
			continue;
		/* A gap of one element behind each, and one more behind each row. */
		o.array.strides[dim] =
			span * (layout & GAPS ? 2 : 1) + (layout & GAPS && i ? item : 0);
		span = o.array.strides[dim] * (length - 1) + span;
		if (layout & REVERSED) {
			first += o.array.strides[dim] * (length - 1);
			o.array.strides[dim] = -o.array.strides[dim];
		}
	}
	o.memory = calloc(1, (size_t)span);
	CU_ASSERT_PTR_NOT_NULL_FATAL(o.memory);
	o.array.data = o.memory + first;
	return o;
}

static void array_free(struct owned *o)
{
	free(o->memory);
}

static char *at(const struct bh_stream_array *array, size_t index)
{
	char *where = array->data;

	for (uint32_t i = array->n_dims; i-- > 0;) {
		where += (int64_t)(index % (size_t)array->shape[i]) * array->strides[i];
		index /= (size_t)array->shape[i];
	}
	return where;
}

/* The element with this number in the order of the dimensions. */
static double get(const struct bh_stream_array *array, size_t index)
{
	void *where = at(array, index);

	return array->real == BH_STREAM_FLOAT32 ? (double)*(float *)where : *(double *)where;
}

static void set(const struct bh_stream_array *array, size_t index, double value)
{
	void *where = at(array, index);

	if (array->real == BH_STREAM_FLOAT32)
		*(float *)where = (float)value;
	else
		*(double *)where = value;
}

static struct owned random_array(uint64_t *seed, enum bh_stream_real real, uint32_t n_dims,
				 const int64_t *shape, unsigned layout)
{
	struct owned o = array_new(real, n_dims, shape, layout);

	for (size_t i = 0; i < count_of(&o.array); i++)
		set(&o.array, i, random_real(seed));
	return o;
}

static struct owned random_vector(uint64_t *seed, enum bh_stream_real real, int64_t n,
				  unsigned layout)
{
	return random_array(seed, real, 1, &n, layout);
}

static struct owned random_matrix(uint64_t *seed, enum bh_stream_real real, int64_t rows,
				  int64_t columns, unsigned layout)
{
	return random_array(seed, real, 2, (int64_t[]){ rows, columns }, layout);
}

static double epsilon(enum bh_stream_real real)
{
	return real == BH_STREAM_FLOAT32 ? (double)FLT_EPSILON : DBL_EPSILON;
}

static double rounded(enum bh_stream_real real, double x)
{
	return real == BH_STREAM_FLOAT32 ? (double)(float)x : x;
}

#define EACH_REAL(real)                                                                            \
	enum bh_stream_real real = BH_STREAM_FLOAT32;                                              \
	(int)real <= (int)BH_STREAM_FLOAT64;                                                       \
	real++

/* ---- sums ------------------------------------------------------------------------------------ */

/* The sum of `n` products in twice the precision, near enough; and how far the type's may be off. */
static double reference_dot(const struct bh_stream_array *a, const struct bh_stream_array *b,
			    double *ret_bound)
{
	long double sum = 0, magnitude = 0;

	for (size_t i = 0; i < count_of(a); i++) {
		long double product = (long double)get(a, i) * (b ? get(b, i) : 1);

		sum += product;
		magnitude += fabsl(product);
	}
	*ret_bound = (double)magnitude * epsilon(a->real) * BH_STREAM_SUM_ERROR + (double)FLT_MIN;
	return (double)sum;
}

static void check_sums(uint64_t *seed, enum bh_stream_real real, int64_t n, unsigned layout)
{
	struct owned a = random_vector(seed, real, n, layout);
	struct owned b = random_vector(seed, real, n, layout & BROADCAST ? GAPS : layout / 2);
	double got = NAN, bound, want = reference_dot(&a.array, &b.array, &bound);

	CU_ASSERT_TRUE(bh_stream_dot(&a.array, &b.array, &go_on, &got));
	CU_ASSERT_TRUE(fabs(got - want) <= bound);
	want = reference_dot(&a.array, NULL, &bound);
	got = NAN;
	CU_ASSERT_TRUE(bh_stream_sum(&a.array, &go_on, &got));
	CU_ASSERT_TRUE(fabs(got - want) <= bound);
	array_free(&a);
	array_free(&b);
}

static void sums_match_reference(void)
{
	static const int64_t sizes[] = { 0,  1,	  2,	15,   16,   17,	  31,	  63,
					 64, 255, 1024, 4095, 4096, 4097, 100003, 1000001 };
	uint64_t seed = 7;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (unsigned layout = 0; layout < LAYOUTS; layout++)
			for (EACH_REAL(real))
				if (sizes[s] < 50000 || layout % 3 == 0)
					check_sums(&seed, real, sizes[s], layout);
}

static void sum_error_does_not_grow(void)
{
	const int64_t n = 20000000; /* one float32 sum of so many ones stops at 2^24 */
	struct owned ones = array_new(BH_STREAM_FLOAT32, 1, &n, 0);
	double got = 0;

	CU_ASSERT_TRUE(bh_stream_fill(&ones.array, 1, &go_on));
	CU_ASSERT_TRUE(bh_stream_dot(&ones.array, &ones.array, &go_on, &got));
	CU_ASSERT_EQUAL(got, 20000000.0);
	CU_ASSERT_TRUE(bh_stream_sum(&ones.array, &go_on, &got));
	CU_ASSERT_EQUAL(got, 20000000.0);
	array_free(&ones);
}

/* What a sum of doubles would lose at each block: 2^53 + 1 is 2^53. */
static void sum_of_doubles_is_compensated(void)
{
	const int64_t n = 40 * (int64_t)BH_STREAM_BLOCK;
	struct owned a = array_new(BH_STREAM_FLOAT64, 1, &n, 0);
	double got = 0;

	set(&a.array, 0, 9007199254740992.0);
	for (int64_t i = 1; i < 40; i++)
		set(&a.array, (size_t)i * BH_STREAM_BLOCK, 1);
	CU_ASSERT_TRUE(bh_stream_sum(&a.array, &go_on, &got));
	CU_ASSERT_EQUAL(got, 9007199254740992.0 + 40); /* 39, rounded to even */
	array_free(&a);
}

static void sums_keep_nan_and_infinity(void)
{
	for (EACH_REAL(real)) {
		const int64_t n = 3 * (int64_t)BH_STREAM_BLOCK;
		struct owned a = array_new(real, 1, &n, 0), b = array_new(real, 1, &n, GAPS);
		double got = 0;

		set(&a.array, 19, INFINITY);
		set(&b.array, 19, 2);
		CU_ASSERT_TRUE(bh_stream_dot(&a.array, &b.array, &go_on, &got));
		CU_ASSERT_TRUE(isinf(got) && got > 0);
		CU_ASSERT_TRUE(bh_stream_sum(&a.array, &go_on, &got));
		CU_ASSERT_TRUE(isinf(got) && got > 0);
		set(&b.array, 3, NAN);
		CU_ASSERT_TRUE(bh_stream_dot(&a.array, &b.array, &go_on, &got));
		CU_ASSERT_TRUE(isnan(got));
		CU_ASSERT_TRUE(bh_stream_sum(&b.array, &go_on, &got));
		CU_ASSERT_TRUE(isnan(got));
		set(&b.array, 3, 0);
		set(&b.array, 19, 0);
		CU_ASSERT_TRUE(bh_stream_dot(&a.array, &b.array, &go_on, &got));
		CU_ASSERT_TRUE(isnan(got));
		set(&a.array, (size_t)n - 1, -INFINITY);
		CU_ASSERT_TRUE(bh_stream_sum(&a.array, &go_on, &got));
		CU_ASSERT_TRUE(isnan(got));
		array_free(&a);
		array_free(&b);
	}
}

static void check_max(uint64_t *seed, enum bh_stream_real real, int64_t n, unsigned layout)
{
	struct owned a = random_vector(seed, real, n, layout);
	double got = NAN, want = -INFINITY;

	for (size_t i = 0; i < (size_t)n; i++)
		want = fmax(want, get(&a.array, i));
	CU_ASSERT_TRUE(bh_stream_max(&a.array, &go_on, &got));
	CU_ASSERT_EQUAL(got, want);
	set(&a.array, random_bits(seed) % (size_t)n, NAN);
	CU_ASSERT_TRUE(bh_stream_max(&a.array, &go_on, &got));
	CU_ASSERT_TRUE(isnan(got));
	array_free(&a);
}

static void max_is_the_greatest_or_nan(void)
{
	static const int64_t sizes[] = { 1, 2, 15, 16, 17, 64, 100, 4096, 5000, 9999 };
	const int64_t two = 2;
	uint64_t seed = 17;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (unsigned layout = 0; layout < LAYOUTS; layout++)
			for (EACH_REAL(real))
				check_max(&seed, real, sizes[s], layout);
	for (EACH_REAL(real)) {
		struct owned a = array_new(real, 1, &two, 0);
		double got = 0;

		set(&a.array, 0, -INFINITY);
		set(&a.array, 1, -INFINITY);
		CU_ASSERT_TRUE(bh_stream_max(&a.array, &go_on, &got));
		CU_ASSERT_EQUAL(got, -INFINITY);
		array_free(&a);
	}
}

/* ---- matrices -------------------------------------------------------------------------------- */

static void check_matvec(uint64_t *seed, enum bh_stream_real real, int64_t rows, int64_t columns,
			 unsigned layout)
{
	unsigned of_x = (unsigned)random_bits(seed) % LAYOUTS,
		 of_out = (unsigned)random_bits(seed) % BROADCAST;
	struct owned m = random_matrix(seed, real, rows, columns, layout);
	struct owned x = random_vector(seed, real, columns, of_x);
	struct owned out = random_vector(seed, real, rows, of_out);

	CU_ASSERT_TRUE(bh_stream_matvec(&out.array, &m.array, &x.array, &go_on));
	for (int64_t r = 0; r < rows; r++) {
		struct bh_stream_array row = { .real = real,
					       .n_dims = 1,
					       .data = m.array.data + r * m.array.strides[0],
					       .shape = { columns },
					       .strides = { m.array.strides[1] } };
		double bound, want = reference_dot(&row, &x.array, &bound);

		bound += bound * (double)columns / BH_STREAM_SUM_ERROR + fabs(want) * epsilon(real);
		CU_ASSERT_TRUE(fabs(get(&out.array, (size_t)r) - want) <= bound);
	}
	array_free(&m);
	array_free(&x);
	array_free(&out);
}

static void matvec_matches_reference(void)
{
	uint64_t seed = 11;

	for (unsigned layout = 0; layout < LAYOUTS; layout++)
		for (EACH_REAL(real)) {
			for (int i = 0; i < 12; i++)
				check_matvec(&seed, real, (int64_t)(random_bits(&seed) % 40),
					     (int64_t)(random_bits(&seed) % 90), layout);
			check_matvec(&seed, real, 0, 5, layout);
			check_matvec(&seed, real, 5, 1, layout);
			check_matvec(&seed, real, 1, 1, layout);
			check_matvec(&seed, real, 3, 4097, layout);
			check_matvec(&seed, real, 700, 100, layout);
		}
	check_matvec(&seed, BH_STREAM_FLOAT32, 2, 1500000, 0);
}

static void products_without_columns_are_zero(void)
{
	for (EACH_REAL(real)) {
		struct bh_stream_array m = { .real = real, .n_dims = 2, .shape = { 3, 0 } };
		struct bh_stream_array none = { .real = real, .n_dims = 1, .shape = { 0 } };
		struct bh_stream_array wide = { .real = real, .n_dims = 2, .shape = { 0, 2 } };
		uint64_t seed = 1;
		struct owned v = random_vector(&seed, real, 3, GAPS);
		struct owned product = random_matrix(&seed, real, 3, 2, TRANSPOSED);
		void *scratch = malloc(bh_stream_matmul_scratch());

		CU_ASSERT_TRUE(bh_stream_matvec(&v.array, &m, &none, &go_on));
		for (size_t i = 0; i < 3; i++)
			CU_ASSERT_EQUAL(get(&v.array, i), 0);
		CU_ASSERT_TRUE(bh_stream_matmul(&product.array, &m, &wide, scratch, &go_on));
		for (size_t i = 0; i < 6; i++)
			CU_ASSERT_EQUAL(get(&product.array, i), 0);
		free(scratch);
		array_free(&v);
		array_free(&product);
	}
}

static void check_matmul(uint64_t *seed, enum bh_stream_real real, int64_t m, int64_t n, int64_t k,
			 const unsigned *layouts)
{
	struct owned a = random_matrix(seed, real, m, k, layouts[0]);
	struct owned b = random_matrix(seed, real, k, n, layouts[1]);
	struct owned out = random_matrix(seed, real, m, n, layouts[2]);
	void *scratch = malloc(bh_stream_matmul_scratch());
	bool right = true;

	if (m * n > 0)
		set(&out.array, 0, NAN); /* what was there does not count */
	CU_ASSERT_TRUE(bh_stream_matmul(&out.array, &a.array, &b.array, scratch, &go_on));
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++) {
			double want = 0, magnitude = 0;

			for (int64_t p = 0; p < k; p++) {
				double x = get(&a.array, (size_t)(i * k + p)),
				       y = get(&b.array, (size_t)(p * n + j));

				want += x * y;
				magnitude += fabs(x * y);
			}
			right = right && fabs(get(&out.array, (size_t)(i * n + j)) - want) <=
						 magnitude * epsilon(real) * (double)(k + 2);
		}
	CU_ASSERT_TRUE(right);
	free(scratch);
	array_free(&a);
	array_free(&b);
	array_free(&out);
}

static void matmul_matches_reference(void)
{
	static const int64_t shapes[][3] = { { 1, 1, 1 },   { 1, 5, 3 },    { 5, 1, 3 },
					     { 4, 6, 1 },   { 0, 4, 3 },    { 4, 0, 3 },
					     { 17, 9, 33 }, { 96, 96, 96 }, { 97, 98, 195 },
					     { 1, 300, 2 }, { 300, 1, 140 } };
	uint64_t seed = 23;

	for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
		for (unsigned i = 0; i < 24; i++) {
			const unsigned layouts[] = { (unsigned)random_bits(&seed) % LAYOUTS,
						     (unsigned)random_bits(&seed) % LAYOUTS,
						     (unsigned)random_bits(&seed) % BROADCAST };

			check_matmul(&seed, i % 2 ? BH_STREAM_FLOAT64 : BH_STREAM_FLOAT32,
				     shapes[s][0], shapes[s][1], shapes[s][2],
				     i < 2 ? (const unsigned[]){ 0, 0, 0 } : layouts);
		}
}

/* Windows that slide over a vector: rows that lie on each other, as only what is read may. */
static void matmul_reads_rows_that_overlap(void)
{
	for (EACH_REAL(real)) {
		uint64_t seed = 31;
		struct owned v = random_vector(&seed, real, 40, 0);
		struct owned b = random_matrix(&seed, real, 30, 2, 0);
		struct owned out = random_matrix(&seed, real, 11, 2, 0);
		const struct bh_stream_array windows = {
			real, 2, v.array.data, { 11, 30 }, { item_of(real), item_of(real) }
		};
		void *scratch = malloc(bh_stream_matmul_scratch());

		CU_ASSERT_TRUE(bh_stream_matmul(&out.array, &windows, &b.array, scratch, &go_on));
		for (size_t i = 0; i < 11; i++) {
			double want = 0;

			for (size_t p = 0; p < 30; p++)
				want += get(&v.array, i + p) * get(&b.array, 2 * p);
			CU_ASSERT_TRUE(fabs(get(&out.array, 2 * i) - want) <=
				       30 * 30 * epsilon(real));
		}
		free(scratch);
		array_free(&v);
		array_free(&b);
		array_free(&out);
	}
}

/* 0 times NaN is NaN: nothing is left out because a factor is 0. */
static void matmul_keeps_nan(void)
{
	for (EACH_REAL(real))
		for (unsigned layout = 0; layout < BROADCAST; layout++) {
			struct owned a = array_new(real, 2, (int64_t[]){ 3, 3 }, layout);
			struct owned b = array_new(real, 2, (int64_t[]){ 3, 3 }, layout);
			struct owned out = array_new(real, 2, (int64_t[]){ 3, 3 }, 0);
			void *scratch = malloc(bh_stream_matmul_scratch());

			set(&a.array, 1, NAN);
			set(&b.array, 8, INFINITY);
			CU_ASSERT_TRUE(
				bh_stream_matmul(&out.array, &a.array, &b.array, scratch, &go_on));
			for (size_t i = 0; i < 9; i++)
				CU_ASSERT_EQUAL(isnan(get(&out.array, i)) != 0,
						i < 3 || i % 3 == 2);
			free(scratch);
			array_free(&a);
			array_free(&b);
			array_free(&out);
		}
}

/* ---- the best -------------------------------------------------------------------------------- */

static int compare_ranked(const void *a, const void *b)
{
	const struct bh_stream_ranked *x = a, *y = b;

	if (x->score != y->score)
		return x->score < y->score ? 1 : -1;
	return x->index > y->index ? 1 : -1;
}

/* Everything sorted, then cut: slow and plainly right. */
static size_t reference_top_k(const struct bh_stream_array *scores, size_t k,
			      struct bh_stream_ranked *all)
{
	size_t count = 0;

	for (size_t i = 0; i < count_of(scores); i++)
		if (!isnan(get(scores, i)))
			all[count++] = (struct bh_stream_ranked){ get(scores, i), i };
	qsort(all, count, sizeof(*all), compare_ranked);
	return count < k ? count : k;
}

static void check_top_k(const struct bh_stream_array *scores, size_t k)
{
	size_t n = count_of(scores), count = SIZE_MAX, want;
	struct bh_stream_ranked *best = calloc((k < n ? k : n) + 1, sizeof(*best));
	struct bh_stream_ranked *all = calloc(n + 1, sizeof(*all));

	CU_ASSERT_PTR_NOT_NULL_FATAL(best);
	CU_ASSERT_PTR_NOT_NULL_FATAL(all);
	want = reference_top_k(scores, k, all);
	CU_ASSERT_TRUE(bh_stream_top_k(scores, k, best, &go_on, &count));
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

	for (unsigned round = 0; round < 96; round++) {
		int64_t n = (int64_t)(random_bits(&seed) % 400);
		struct owned scores =
			random_vector(&seed, round % 2 ? BH_STREAM_FLOAT64 : BH_STREAM_FLOAT32, n,
				      round / 6 % LAYOUTS);

		/* A third of the rounds has few different values, so that ties abound; a third NaN.
		 */
		for (size_t i = 0; i < (size_t)n && round % 3 == 1; i++)
			set(&scores.array, i, floor(get(&scores.array, i) * 3));
		for (size_t i = 0; i < (size_t)n && round % 3 == 2; i++)
			if (random_bits(&seed) % 4 == 0)
				set(&scores.array, i, NAN);
		for (size_t i = 0; i < sizeof(ks) / sizeof(ks[0]); i++)
			check_top_k(&scores.array, ks[i]);
		array_free(&scores);
	}
}

static void top_k_of_large_input(void)
{
	const int64_t n = 300007;
	uint64_t seed = 5;
	struct owned scores = random_vector(&seed, BH_STREAM_FLOAT32, n, 0);

	check_top_k(&scores.array, 10);
	check_top_k(&scores.array, 5000);
	check_top_k(&scores.array, (size_t)n);
	for (size_t i = 0; i < (size_t)n; i++) /* ascending: every score gets in */
		set(&scores.array, i, (double)i);
	check_top_k(&scores.array, 7);
	array_free(&scores);
}

static void top_k_ranks_special_values(void)
{
	const double values[] = {
		NAN, -INFINITY, 0.0, -0.0, INFINITY, NAN, 1, INFINITY, 0.0, -NAN
	};
	const uint64_t order[] = { 4, 7, 6, 2, 3, 8, 1 };
	struct bh_stream_ranked best[10];
	const int64_t n = 10;
	size_t count;

	for (EACH_REAL(real)) {
		struct owned scores = array_new(real, 1, &n, 0);

		for (size_t i = 0; i < 10; i++)
			set(&scores.array, i, values[i]);
		CU_ASSERT_TRUE(bh_stream_top_k(&scores.array, 10, best, &go_on, &count));
		CU_ASSERT_EQUAL_FATAL(count, 7);
		for (size_t i = 0; i < count; i++)
			CU_ASSERT_EQUAL(best[i].index, order[i]);
		scores.array.shape[0] = 1;
		CU_ASSERT_TRUE(bh_stream_top_k(&scores.array, 1, best, &go_on, &count));
		CU_ASSERT_EQUAL(count, 0);
		scores.array.shape[0] = 0;
		CU_ASSERT_TRUE(bh_stream_top_k(&scores.array, 3, best, &go_on, &count));
		CU_ASSERT_EQUAL(count, 0);
		array_free(&scores);
	}
}

/* ---- element by element ---------------------------------------------------------------------- */

enum kernel { FILL, COPY, SCALE, AXPY, ADD, MUL, KERNELS };

static bool run_kernel(enum kernel kernel, const struct bh_stream_array *out,
		       const struct bh_stream_array *a, const struct bh_stream_array *b)
{
	switch (kernel) {
	case FILL:
		return bh_stream_fill(out, 0.1, &go_on);
	case COPY:
		return bh_stream_copy(out, a, &go_on);
	case SCALE:
		return bh_stream_scale(out, 0.1, &go_on);
	case AXPY:
		return bh_stream_axpy(out, 0.1, a, &go_on);
	case ADD:
		return bh_stream_add(out, a, b, &go_on);
	case MUL:
		return bh_stream_mul(out, a, b, &go_on);
	case KERNELS:
		break;
	}
	return false;
}

static double reference(enum kernel kernel, enum bh_stream_real real, double out, double a,
			double b)
{
	double factor = rounded(real, 0.1);

	switch (kernel) {
	case FILL:
		return factor;
	case COPY:
		return a;
	case SCALE:
		return rounded(real, factor * out);
	case AXPY:
		return rounded(real, out + rounded(real, factor * a));
	case ADD:
		return rounded(real, a + b);
	case MUL:
		return rounded(real, a * b);
	case KERNELS:
		break;
	}
	return NAN;
}

/* Every element is what it should be, and what lies between them is as it was: zeros. */
static void check_kernel(uint64_t *seed, enum kernel kernel, enum bh_stream_real real,
			 uint32_t n_dims, const int64_t *shape, const unsigned *layouts)
{
	struct owned out = random_array(seed, real, n_dims, shape, layouts[0]);
	struct owned before = array_new(real, n_dims, shape, 0);
	struct owned a = random_array(seed, real, n_dims, shape, layouts[1]);
	struct owned b = random_array(seed, real, n_dims, shape, layouts[2]);
	bool right = true;

	CU_ASSERT_TRUE(bh_stream_copy(&before.array, &out.array, &go_on));
	CU_ASSERT_TRUE(run_kernel(kernel, &out.array, &a.array, &b.array));
	for (size_t i = 0; i < count_of(&out.array); i++) {
		double want = reference(kernel, real, get(&before.array, i), get(&a.array, i),
					get(&b.array, i));

		/* A processor may round an axpy once instead of twice. */
		right = right &&
			fabs(get(&out.array, i) - want) <= (kernel == AXPY ? 2 * epsilon(real) : 0);
	}
	CU_ASSERT_TRUE(right);
	for (size_t i = 0; i < count_of(&out.array); i++)
		set(&out.array, i, 0);
	array_free(&before);
	before = array_new(real, n_dims, shape, layouts[0]);
	if (count_of(&out.array) > 0) {
		int64_t span = item_of(real);

		for (uint32_t i = 0; i < n_dims; i++)
			span += llabs(out.array.strides[i]) * (shape[i] - 1);
		CU_ASSERT_EQUAL(memcmp(out.memory, before.memory, (size_t)span), 0);
	}
	array_free(&out);
	array_free(&before);
	array_free(&a);
	array_free(&b);
}

static void elementwise_kernels(void)
{
	static const int64_t shapes[][4] = {
		{ 0 },	     { 1 },	   { 7 },	  { 63 },	  { 64 },      { 4099 },
		{ 3, 5 },    { 5, 0 },	   { 1, 70 },	  { 70, 1 },	  { 40, 130 }, { 200, 3 },
		{ 2, 3, 4 }, { 1, 9, 65 }, { 6, 1, 200 }, { 3, 2, 4, 70 }
	};
	static const uint32_t dims[] = { 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4 };
	uint64_t seed = 13;

	for (size_t s = 0; s < sizeof(dims) / sizeof(dims[0]); s++)
		for (unsigned i = 0; i < 16 * KERNELS; i++) {
			const unsigned layouts[] = { (unsigned)random_bits(&seed) % BROADCAST,
						     (unsigned)random_bits(&seed) % LAYOUTS,
						     (unsigned)random_bits(&seed) % LAYOUTS };

			check_kernel(&seed, (enum kernel)(i % KERNELS),
				     i / KERNELS % 2 ? BH_STREAM_FLOAT64 : BH_STREAM_FLOAT32,
				     dims[s], shapes[s],
				     i < 2 * KERNELS ? (const unsigned[]){ 0, 0, 0 } : layouts);
		}
	for (EACH_REAL(real)) /* a number is an array without dimensions */
		for (unsigned k = 0; k < KERNELS; k++)
			check_kernel(&seed, (enum kernel)k, real, 0, NULL,
				     (const unsigned[]){ 0, 0, 0 });
}

static void elementwise_kernels_work_in_place(void)
{
	uint64_t seed = 29;

	for (unsigned layout = 0; layout < BROADCAST; layout++)
		for (EACH_REAL(real)) {
			struct owned y = random_matrix(&seed, real, 30, 90, layout);
			struct owned b = random_matrix(&seed, real, 30, 90, 0);
			struct owned old = array_new(real, 2, y.array.shape, 0);

			CU_ASSERT_TRUE(bh_stream_copy(&old.array, &y.array, &go_on));
			CU_ASSERT_TRUE(bh_stream_add(&y.array, &y.array, &b.array, &go_on));
			CU_ASSERT_TRUE(bh_stream_mul(&y.array, &b.array, &y.array, &go_on));
			CU_ASSERT_TRUE(bh_stream_copy(&y.array, &y.array, &go_on));
			for (size_t i = 0; i < 30 * 90; i++) {
				double sum = rounded(real, get(&old.array, i) + get(&b.array, i));

				CU_ASSERT_EQUAL(get(&y.array, i),
						rounded(real, sum * get(&b.array, i)));
			}
			CU_ASSERT_TRUE(bh_stream_fill(&y.array, 3, &go_on));
			CU_ASSERT_TRUE(bh_stream_axpy(&y.array, 2, &y.array, &go_on));
			CU_ASSERT_TRUE(bh_stream_add(&y.array, &y.array, &y.array, &go_on));
			for (size_t i = 0; i < 30 * 90; i++)
				CU_ASSERT_EQUAL(get(&y.array, i), 18);
			array_free(&y);
			array_free(&b);
			array_free(&old);
		}
}

/* ---- stops ----------------------------------------------------------------------------------- */

#define STOPS(call)                                                                                \
	do {                                                                                       \
		counted = (struct counted_stop){ .at = 2 };                                        \
		CU_ASSERT_FALSE(call);                                                             \
		CU_ASSERT_EQUAL(counted.asked, 2);                                                 \
	} while (0)

static void check_stops(enum bh_stream_real real, unsigned layout)
{
	const int64_t n = 5 << 20;
	struct owned a = array_new(real, 1, &n, layout), b = array_new(real, 1, &n, 0);
	struct bh_stream_array m = { real, 2, a.array.data, { n / 4, 4 }, { 0 } };
	struct bh_stream_array four = { real, 1, b.array.data, { 4 }, { item_of(real) } };
	struct bh_stream_ranked *best = calloc((size_t)n, sizeof(*best));
	struct counted_stop counted;
	const struct bh_stream_stop stop = { stop_at, &counted };
	double number = 42;
	size_t count = 42;

	CU_ASSERT_PTR_NOT_NULL_FATAL(best);
	m.strides[0] = 4 * a.array.strides[0];
	m.strides[1] = a.array.strides[0];
	STOPS(bh_stream_dot(&a.array, &b.array, &stop, &number));
	STOPS(bh_stream_sum(&a.array, &stop, &number));
	STOPS(bh_stream_max(&a.array, &stop, &number));
	STOPS(bh_stream_matvec(
		&(struct bh_stream_array){ real, 1, b.array.data, { n / 4 }, { item_of(real) } },
		&m, &four, &stop));
	STOPS(bh_stream_top_k(&a.array, 3, best, &stop, &count));
	STOPS(bh_stream_fill(&a.array, 1, &stop));
	STOPS(bh_stream_copy(&b.array, &a.array, &stop));
	STOPS(bh_stream_scale(&a.array, 1, &stop));
	STOPS(bh_stream_axpy(&b.array, 1, &a.array, &stop));
	STOPS(bh_stream_add(&b.array, &a.array, &b.array, &stop));
	STOPS(bh_stream_mul(&b.array, &a.array, &b.array, &stop));
	/* In the sort that follows the scan, too: five questions belong to the scan. */
	counted = (struct counted_stop){ .at = 7 };
	CU_ASSERT_FALSE(bh_stream_top_k(&a.array, (size_t)n, best, &stop, &count));
	CU_ASSERT_EQUAL(counted.asked, 7);
	CU_ASSERT_EQUAL(number, 42);
	CU_ASSERT_EQUAL(count, 42);
	array_free(&a);
	array_free(&b);
	free(best);
}

static void kernels_stop_when_told(void)
{
	check_stops(BH_STREAM_FLOAT32, 0);
	check_stops(BH_STREAM_FLOAT64, GAPS);
}

static void matmul_stops_when_told(void)
{
	struct owned a = array_new(BH_STREAM_FLOAT32, 2, (int64_t[]){ 400, 400 }, 0);
	struct owned out = array_new(BH_STREAM_FLOAT32, 2, (int64_t[]){ 400, 400 }, TRANSPOSED);
	void *scratch = malloc(bh_stream_matmul_scratch());
	struct counted_stop counted;
	const struct bh_stream_stop stop = { stop_at, &counted };

	STOPS(bh_stream_matmul(&out.array, &a.array, &a.array, scratch, &stop));
	STOPS(bh_stream_matmul(&a.array, &out.array, &out.array, scratch, &stop));
	free(scratch);
	array_free(&a);
	array_free(&out);
}

static void short_work_is_not_asked(void)
{
	uint64_t seed = 1;
	struct owned one = random_vector(&seed, BH_STREAM_FLOAT32, 1, 0);
	struct counted_stop counted = { .at = 1 };
	const struct bh_stream_stop stop = { stop_at, &counted };
	double dot;

	CU_ASSERT_TRUE(bh_stream_dot(&one.array, &one.array, &stop, &dot));
	CU_ASSERT_EQUAL(counted.asked, 0);
	array_free(&one);
}

static const struct bh_test tests[] = {
	{ "dot and sum are right within their bound, for every kind of length and layout",
	  sums_match_reference },
	{ "sum and dot of 20 million ones are exact", sum_error_does_not_grow },
	{ "a sum of doubles does not lose what is small, block by block",
	  sum_of_doubles_is_compensated },
	{ "sum and dot keep NaN and infinity", sums_keep_nan_and_infinity },
	{ "max is the greatest, and NaN where there is one", max_is_the_greatest_or_nan },
	{ "matvec is a dot product a row, for random shapes and layouts",
	  matvec_matches_reference },
	{ "a product over no columns is zeros", products_without_columns_are_zero },
	{ "matmul is right within its bound, for every kind of shape and layout",
	  matmul_matches_reference },
	{ "matmul reads rows that overlap", matmul_reads_rows_that_overlap },
	{ "matmul keeps NaN and infinity, also where the other factor is 0", matmul_keeps_nan },
	{ "top_k is the head of a sort, with ties and NaN, for every kind of k and layout",
	  top_k_matches_sort },
	{ "top_k of a large input, sorted and not", top_k_of_large_input },
	{ "top_k leaves NaN out, ranks infinities, and takes -0.0 for 0.0",
	  top_k_ranks_special_values },
	{ "element by element, every element is reached and nothing between them",
	  elementwise_kernels },
	{ "element by element, the result may be an operand", elementwise_kernels_work_in_place },
	{ "every kernel ends early when it is told to, and then returns nothing",
	  kernels_stop_when_told },
	{ "matmul ends early when it is told to", matmul_stops_when_told },
	{ "short work does not ask whether to stop", short_work_is_not_asked },
};

BH_TAP_MAIN("kernels", tests)
