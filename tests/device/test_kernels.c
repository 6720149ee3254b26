/* SPDX-License-Identifier: BSD-3-Clause */
/* test_kernels - each kernel of plugins/cuda/kernels.cu against plugins/stream/kernels.c, for many lengths.
 *
 * It runs on whatever libcuda.so.1 the loader finds: on a device, where it tests the kernels, and on the test
 * double, where it tests how they are launched and read back, with the double's twins of them in C. Where there
 * is none it says so and ends with 77. */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plugins/cuda/kernels.h"
#include "plugins/stream/kernels.h"
#include "tests/unit/tap.h"

static struct bh_cuda_device device;
static const struct bh_cuda_driver *driver;
static struct bh_cuda_kernels *kernels;
static CUstream stream;
static bool is_double; /* no GPU: what takes a GPU's speed or memory is left out */

/* Around block, tile, part and unroll sizes, and some that many blocks share. */
static const int64_t lengths[] = { 1,	 2,	3,     31,     32,	33,	255,  256,
				   257,	 511,	1000,  1023,   1024,	1025,	4095, 4096,
				   4097, 16385, 65536, 100003, 1048577, 3000017 };
/* On the double, which is there for the launching, those that take long are left out. */
#define N_LENGTHS (sizeof(lengths) / sizeof(lengths[0]) - (is_double ? 3 : 0))

static const enum bh_cuda_real reals[] = { BH_CUDA_FLOAT32, BH_CUDA_FLOAT64 };
#define N_REALS 2u

static bool never_asked(const void *arg)
{
	(void)arg;
	return false;
}

static const struct bh_stream_stop go_on = { never_asked, NULL };

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

/* ---- arrays: on the host, and the same on the device --------------------------------------------------- */

struct pair {
	struct bh_stream_array host;
	CUdeviceptr at;
	int64_t n;
	size_t bytes;
};

static void must(CUresult result)
{
	CU_ASSERT_EQUAL_FATAL(result, CUDA_SUCCESS);
}

static void finish(void)
{
	must(driver->cuCtxSynchronize_());
}

static struct pair pair_new(enum bh_cuda_real real, int64_t n)
{
	size_t item = real == BH_CUDA_FLOAT32 ? 4 : 8;
	struct pair pair = { .n = n, .bytes = (size_t)n * item };

	pair.host = (struct bh_stream_array){
		.real = real == BH_CUDA_FLOAT32 ? BH_STREAM_FLOAT32 : BH_STREAM_FLOAT64,
		.n_dims = 1,
		.data = calloc((size_t)n + 1, item),
		.shape = { n },
		.strides = { (int64_t)item },
	};
	CU_ASSERT_PTR_NOT_NULL_FATAL(pair.host.data);
	if (n > 0)
		must(driver->cuMemAlloc_(&pair.at, pair.bytes));
	return pair;
}

static void pair_free(struct pair *pair)
{
	free(pair->host.data);
	if (pair->n > 0)
		must(driver->cuMemFree_(pair->at));
}

static double get(const struct pair *pair, int64_t i)
{
	return pair->host.real == BH_STREAM_FLOAT32
		       ? (double)((const float *)(void *)pair->host.data)[i]
		       : ((const double *)(void *)pair->host.data)[i];
}

static void set(const struct pair *pair, int64_t i, double value)
{
	if (pair->host.real == BH_STREAM_FLOAT32)
		((float *)(void *)pair->host.data)[i] = (float)value;
	else
		((double *)(void *)pair->host.data)[i] = value;
}

static void to_device(const struct pair *pair)
{
	if (pair->n > 0)
		must(driver->cuMemcpyHtoDAsync_(pair->at, pair->host.data, pair->bytes, stream));
	finish();
}

static struct pair pair_random(enum bh_cuda_real real, int64_t n, uint64_t seed)
{
	struct pair pair = pair_new(real, n);

	for (int64_t i = 0; i < n; i++)
		set(&pair, i, random_real(&seed));
	to_device(&pair);
	return pair;
}

/* With all that is special among the numbers, where there is room. */
static struct pair pair_special(enum bh_cuda_real real, int64_t n, uint64_t seed)
{
	static const double special[] = { NAN, INFINITY, -INFINITY, -0.0,
					  0.0, 1e-310,	 1e-42,	    FLT_MAX };
	struct pair pair = pair_random(real, n, seed);

	for (int64_t i = 0; i < n; i += 1 + (int64_t)(random_bits(&seed) % 37))
		set(&pair, i, special[random_bits(&seed) % (sizeof(special) / sizeof(special[0]))]);
	to_device(&pair);
	return pair;
}

static double eps_of(enum bh_cuda_real real)
{
	return real == BH_CUDA_FLOAT32 ? (double)FLT_EPSILON : DBL_EPSILON;
}

/* What the device has, against the host's array: how many elements differ by more than `tolerance` times the
 * magnitude in `scale` (NULL: at all). */
static int64_t differing(const struct pair *pair, const struct pair *scale, double tolerance)
{
	struct pair found = *pair;
	int64_t n = 0;

	found.host.data = malloc(pair->bytes + 1);
	CU_ASSERT_PTR_NOT_NULL_FATAL(found.host.data);
	must(driver->cuMemcpyDtoHAsync_(found.host.data, pair->at, pair->bytes, stream));
	finish();
	for (int64_t i = 0; i < pair->n; i++) {
		double is = get(&found, i), should = get(pair, i);

		if (isnan(is) && isnan(should))
			continue;
		if (is == should && signbit(is) == signbit(should))
			continue;
		if (scale && fabs(is - should) <= tolerance * get(scale, i))
			continue;
		if (n++ == 0)
			printf("# element %lld of %lld: %.17g, and not %.17g\n", (long long)i,
			       (long long)pair->n, is, should);
	}
	free(found.host.data);
	return n;
}

/* ---- element by element --------------------------------------------------------------------------------- */

static void fill_writes_every_element_and_no_other(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++) {
			struct pair out = pair_random(reals[r], lengths[i] + 2, i + 1);

			must(bh_cuda_fill(kernels, stream, reals[r],
					  out.at + (CUdeviceptr)out.host.strides[0], 1.1,
					  (uint64_t)lengths[i]));
			for (int64_t j = 1; j <= lengths[i]; j++)
				set(&out, j, 1.1);
			CU_ASSERT_EQUAL(differing(&out, NULL, 0), 0);
			pair_free(&out);
		}
}

static void scale_is_what_the_cpu_makes(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++) {
			struct pair y = pair_special(reals[r], lengths[i], i + 1);

			must(bh_cuda_scale(kernels, stream, reals[r], y.at, -1.7, (uint64_t)y.n));
			CU_ASSERT_TRUE(bh_stream_scale(&y.host, -1.7, &go_on));
			CU_ASSERT_EQUAL(differing(&y, NULL, 0), 0);
			pair_free(&y);
		}
}

/* A CPU that fuses rounds once where the kernel rounds twice. */
static void axpy_is_what_the_cpu_makes(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++) {
			struct pair y = pair_special(reals[r], lengths[i], i + 1);
			struct pair x = pair_special(reals[r], lengths[i], i + 99);
			struct pair scale = pair_new(reals[r], lengths[i]);

			for (int64_t j = 0; j < y.n; j++)
				set(&scale, j, fabs(get(&y, j)) + 0.3 * fabs(get(&x, j)));
			must(bh_cuda_axpy(kernels, stream, reals[r], y.at, 0.3, x.at,
					  (uint64_t)y.n));
			CU_ASSERT_TRUE(bh_stream_axpy(&y.host, 0.3, &x.host, &go_on));
			CU_ASSERT_EQUAL(differing(&y, &scale, eps_of(reals[r])), 0);
			pair_free(&scale);
			pair_free(&x);
			pair_free(&y);
		}
}

static void add_and_mul_are_what_the_cpu_makes_in_place_too(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++) {
			struct pair out = pair_new(reals[r], lengths[i]);
			struct pair a = pair_special(reals[r], lengths[i], i + 1);
			struct pair b = pair_special(reals[r], lengths[i], i + 99);

			must(bh_cuda_add(kernels, stream, reals[r], out.at, a.at, b.at,
					 (uint64_t)a.n));
			CU_ASSERT_TRUE(bh_stream_add(&out.host, &a.host, &b.host, &go_on));
			CU_ASSERT_EQUAL(differing(&out, NULL, 0), 0);
			must(bh_cuda_mul(kernels, stream, reals[r], out.at, a.at, b.at,
					 (uint64_t)a.n));
			CU_ASSERT_TRUE(bh_stream_mul(&out.host, &a.host, &b.host, &go_on));
			CU_ASSERT_EQUAL(differing(&out, NULL, 0), 0);
			must(bh_cuda_mul(kernels, stream, reals[r], a.at, a.at, a.at,
					 (uint64_t)a.n));
			CU_ASSERT_TRUE(bh_stream_mul(&a.host, &a.host, &a.host, &go_on));
			CU_ASSERT_EQUAL(differing(&a, NULL, 0), 0);
			pair_free(&out);
			pair_free(&a);
			pair_free(&b);
		}
}

/* ---- reductions ----------------------------------------------------------------------------------------- */

static struct bh_cuda_scratch *scratch_new(uint64_t n, uint32_t k)
{
	struct bh_cuda_scratch *scratch = NULL;

	must(bh_cuda_scratch_take(kernels, n, k, &scratch));
	return scratch;
}

static double sum_on_device(const struct pair *a)
{
	struct bh_cuda_scratch *scratch = scratch_new(0, 0);
	double sum;

	must(bh_cuda_sum(kernels, stream, (enum bh_cuda_real)a->host.real, a->at, (uint64_t)a->n,
			 scratch));
	finish();
	sum = bh_cuda_sum_result(scratch);
	bh_cuda_scratch_give(kernels, scratch);
	return sum;
}

static double dot_on_device(const struct pair *a, const struct pair *b)
{
	struct bh_cuda_scratch *scratch = scratch_new(0, 0);
	double dot;

	must(bh_cuda_dot(kernels, stream, (enum bh_cuda_real)a->host.real, a->at, b->at,
			 (uint64_t)a->n, scratch));
	finish();
	dot = bh_cuda_sum_result(scratch);
	bh_cuda_scratch_give(kernels, scratch);
	return dot;
}

static double max_on_device(const struct pair *a)
{
	struct bh_cuda_scratch *scratch = scratch_new(0, 0);
	double max;

	must(bh_cuda_max(kernels, stream, (enum bh_cuda_real)a->host.real, a->at, (uint64_t)a->n,
			 scratch));
	finish();
	max = bh_cuda_max_result(scratch);
	bh_cuda_scratch_give(kernels, scratch);
	return max;
}

static void sums_keep_their_error_and_repeat(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++) {
			struct pair a = pair_random(reals[r], lengths[i], i + 1);
			struct pair b = pair_random(reals[r], lengths[i], i + 99);
			long double sum = 0, dot = 0, sum_scale = 0, dot_scale = 0;
			double cpu, gpu;

			for (int64_t j = 0; j < a.n; j++) {
				long double x = get(&a, j), y = get(&b, j);

				sum += x;
				sum_scale += fabsl(x);
				dot += x * y;
				dot_scale += fabsl(x * y);
			}
			gpu = sum_on_device(&a);
			CU_ASSERT_TRUE(fabsl((long double)gpu - sum) <= 64 * 0x1p-53L * sum_scale);
			CU_ASSERT_EQUAL(gpu, sum_on_device(&a));
			CU_ASSERT_TRUE(bh_stream_sum(&a.host, &go_on, &cpu));
			CU_ASSERT_TRUE(fabs(gpu - cpu) <= (BH_STREAM_SUM_ERROR + 64) *
								  eps_of(reals[r]) *
								  (double)sum_scale);
			gpu = dot_on_device(&a, &b);
			CU_ASSERT_TRUE(fabsl((long double)gpu - dot) <= 64 * 0x1p-53L * dot_scale);
			CU_ASSERT_EQUAL(gpu, dot_on_device(&a, &b));
			CU_ASSERT_TRUE(bh_stream_dot(&a.host, &b.host, &go_on, &cpu));
			CU_ASSERT_TRUE(fabs(gpu - cpu) <= (BH_STREAM_SUM_ERROR + 64) *
								  eps_of(reals[r]) *
								  (double)dot_scale);
			pair_free(&a);
			pair_free(&b);
		}
}

/* Integers sum exactly: an element that is left out, or taken twice, shows. */
static void sums_take_every_element_once(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++) {
			struct pair a = pair_new(reals[r], lengths[i]);
			double sum = 0, squares = 0;

			for (int64_t j = 0; j < a.n; j++) {
				double value = (double)(j % 4093);

				set(&a, j, value);
				sum += value;
				squares += value * value;
			}
			to_device(&a);
			CU_ASSERT_EQUAL(sum_on_device(&a), sum);
			CU_ASSERT_EQUAL(dot_on_device(&a, &a), squares);
			pair_free(&a);
		}
}

static void sums_of_infinities_and_nan_are_what_they_should_be(void)
{
	struct pair a = pair_random(BH_CUDA_FLOAT64, 100003, 1);

	set(&a, 70000, INFINITY);
	to_device(&a);
	CU_ASSERT_EQUAL(sum_on_device(&a), INFINITY);
	set(&a, 3, -INFINITY);
	to_device(&a);
	CU_ASSERT_TRUE(isnan(sum_on_device(&a)));
	pair_free(&a);
}

static void max_is_what_the_cpu_finds(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++) {
			struct pair a = pair_random(reals[r], lengths[i], i + 1);
			double cpu, gpu = max_on_device(&a);

			CU_ASSERT_TRUE(bh_stream_max(&a.host, &go_on, &cpu));
			CU_ASSERT_EQUAL(gpu, cpu);
			set(&a, (lengths[i] - 1) * 2 / 3, NAN);
			to_device(&a);
			CU_ASSERT_TRUE(isnan(max_on_device(&a)));
			for (int64_t j = 0; j < a.n; j++)
				set(&a, j, -INFINITY);
			to_device(&a);
			CU_ASSERT_EQUAL(max_on_device(&a), -INFINITY);
			set(&a, lengths[i] - 1, -1e30);
			to_device(&a);
			CU_ASSERT_EQUAL(max_on_device(&a),
					(reals[r] == BH_CUDA_FLOAT32) ? (double)-1e30f : -1e30);
			pair_free(&a);
		}
}

/* ---- matrix and vector ---------------------------------------------------------------------------------- */

static void check_matvec(enum bh_cuda_real real, int64_t rows, int64_t columns, uint64_t seed)
{
	struct pair m = pair_random(real, rows * columns, seed);
	struct pair x = pair_random(real, columns, seed + 1);
	struct pair out = pair_random(real, rows, seed + 2), scale = pair_new(real, rows);
	double error = (double)columns * 0x1p-52 + eps_of(real);

	for (int64_t row = 0; row < rows; row++) {
		long double sum = 0, magnitude = 0;

		for (int64_t i = 0; i < columns; i++) {
			long double term = (long double)get(&m, row * columns + i) * get(&x, i);

			sum += term;
			magnitude += fabsl(term);
		}
		set(&out, row, (double)sum);
		set(&scale, row, (double)magnitude);
	}
	must(bh_cuda_matvec(kernels, stream, real, out.at, m.at, x.at, (uint64_t)rows,
			    (uint64_t)columns));
	CU_ASSERT_EQUAL(differing(&out, &scale, error), 0);
	pair_free(&m);
	pair_free(&x);
	pair_free(&out);
	pair_free(&scale);
}

static void matvec_keeps_its_error_for_all_shapes(void)
{
	static const int64_t rows[] = { 1, 2, 7, 8, 9, 32, 33, 257, 5000 };
	static const int64_t columns[] = { 0, 1, 7, 8, 9, 63, 64, 65, 300, 2047, 2048, 2049, 5000 };

	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
			for (size_t j = 0; j < sizeof(columns) / sizeof(columns[0]); j++)
				if (rows[i] * columns[j] <= 3000000)
					check_matvec(reals[r], rows[i], columns[j],
						     i * 100 + j + 1);
	check_matvec(BH_CUDA_FLOAT32, 200000, 3, 5);
}

/* ---- the best ------------------------------------------------------------------------------------------- */

static void check_top_k(const struct pair *scores, uint32_t k)
{
	struct bh_stream_ranked *cpu = calloc(k + 1, sizeof(*cpu));
	struct bh_cuda_ranked *gpu = calloc(k + 1, sizeof(*gpu));
	struct bh_cuda_scratch *scratch;
	size_t n_cpu = 0;
	uint32_t n_gpu;
	int64_t wrong = 0;

	if ((int64_t)k > scores->n)
		k = (uint32_t)scores->n;
	scratch = scratch_new((uint64_t)scores->n, k);
	must(bh_cuda_top_k(kernels, stream, (enum bh_cuda_real)scores->host.real, scores->at,
			   (uint64_t)scores->n, k, scratch));
	finish();
	n_gpu = bh_cuda_top_k_result(scratch, gpu);
	bh_cuda_scratch_give(kernels, scratch);
	CU_ASSERT_TRUE(bh_stream_top_k(&scores->host, k, cpu, &go_on, &n_cpu));
	CU_ASSERT_EQUAL(n_gpu, n_cpu);
	for (uint32_t i = 0; i < n_gpu && i < n_cpu; i++)
		if (cpu[i].score != gpu[i].score || cpu[i].index != gpu[i].index) {
			if (wrong++ == 0)
				printf("# place %u of %u among %lld: [%llu, %.17g], and not [%llu, "
				       "%.17g]\n",
				       i, k, (long long)scores->n, (unsigned long long)gpu[i].index,
				       gpu[i].score, (unsigned long long)cpu[i].index,
				       cpu[i].score);
		}
	CU_ASSERT_EQUAL(wrong, 0);
	free(cpu);
	free(gpu);
}

static const uint32_t ks[] = { 1, 2, 5, 100, 512, 1023, 1024 };

static void check_all_k(const struct pair *scores)
{
	for (size_t i = 0; i < sizeof(ks) / sizeof(ks[0]); i++)
		check_top_k(scores, ks[i]);
}

static void top_k_is_what_the_cpu_finds(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++) {
			struct pair scores = pair_special(reals[r], lengths[i], i + 1);

			check_all_k(&scores);
			pair_free(&scores);
		}
}

static void top_k_ranks_equal_scores_by_index(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++) {
			struct pair scores = pair_new(reals[r], lengths[i]);
			uint64_t seed = i + 1;

			for (int64_t j = 0; j < scores.n; j++)
				set(&scores, j,
				    (double)(random_bits(&seed) % 7) * (j % 2 ? 1 : -1));
			to_device(&scores);
			check_all_k(&scores);
			pair_free(&scores);
		}
}

/* Each score better than all before it, worse, all the same, and none at all. */
static void top_k_survives_every_order(void)
{
	for (size_t r = 0; r < N_REALS; r++)
		for (size_t i = 0; i < N_LENGTHS; i++)
			for (unsigned order = 0; order < 5; order++) {
				struct pair scores = pair_new(reals[r], lengths[i]);

				for (int64_t j = 0; j < scores.n; j++)
					set(&scores, j,
					    order == 0	 ? (double)j
					    : order == 1 ? -(double)j
					    : order == 2 ? 3.5
					    : order == 3 ? -(double)INFINITY
							 : (double)NAN);
				to_device(&scores);
				check_all_k(&scores);
				pair_free(&scores);
			}
}

/* ---- scratch -------------------------------------------------------------------------------------------- */

static void results_under_way_at_once_do_not_mix(void)
{
	struct bh_cuda_scratch *scratch[200];
	struct pair a[200];

	for (size_t i = 0; i < 200; i++) {
		a[i] = pair_new(BH_CUDA_FLOAT32, 1000);
		must(bh_cuda_fill(kernels, stream, BH_CUDA_FLOAT32, a[i].at, (double)i, 1000));
		scratch[i] = scratch_new(1000, i % 2 ? 1024 : 0);
		must(bh_cuda_sum(kernels, stream, BH_CUDA_FLOAT32, a[i].at, 1000, scratch[i]));
	}
	finish();
	for (size_t i = 0; i < 200; i++) {
		CU_ASSERT_EQUAL(bh_cuda_sum_result(scratch[i]), 1000.0 * (double)i);
		bh_cuda_scratch_give(kernels, scratch[i]);
		pair_free(&a[i]);
	}
}

/* ---- what only a device can do -------------------------------------------------------------------------- */

static void arrays_beyond_32_bits_work(void)
{
	const uint64_t n = (UINT64_C(1) << 32) + 12345;
	struct bh_cuda_scratch *scratch;
	struct bh_cuda_ranked best[3];
	CUdeviceptr at;
	size_t free_bytes = 0, total;
	float high = 7.0f;

	if (is_double)
		BH_SKIP("the test double has no such memory");
	must(driver->cuMemGetInfo_(&free_bytes, &total));
	if (free_bytes < n * 4 + (UINT64_C(1) << 30))
		BH_SKIP("the device has less than 18 GiB free");
	must(driver->cuMemAlloc_(&at, n * 4));
	must(bh_cuda_fill(kernels, stream, BH_CUDA_FLOAT32, at, 1.0, n));
	scratch = scratch_new(0, 0);
	must(bh_cuda_sum(kernels, stream, BH_CUDA_FLOAT32, at, n, scratch));
	finish();
	CU_ASSERT_EQUAL(bh_cuda_sum_result(scratch), (double)n);
	bh_cuda_scratch_give(kernels, scratch);
	must(driver->cuMemcpyHtoDAsync_(at + (n - 2) * 4, &high, 4, stream));
	scratch = scratch_new(n, 3);
	must(bh_cuda_top_k(kernels, stream, BH_CUDA_FLOAT32, at, n, 3, scratch));
	finish();
	CU_ASSERT_EQUAL_FATAL(bh_cuda_top_k_result(scratch, best), 3);
	CU_ASSERT_EQUAL(best[0].index, n - 2);
	CU_ASSERT_EQUAL(best[1].index, 0);
	CU_ASSERT_EQUAL(best[2].index, 1);
	bh_cuda_scratch_give(kernels, scratch);
	must(driver->cuMemFree_(at));
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Of 20 runs after one that warms up. */
#define TIMED(what, bytes, call)                                                                   \
	do {                                                                                       \
		double began;                                                                      \
                                                                                                   \
		must(call);                                                                        \
		finish();                                                                          \
		began = now_s();                                                                   \
		for (int run = 0; run < 20; run++)                                                 \
			must(call);                                                                \
		finish();                                                                          \
		printf("# %s: %.0f GB/s\n", what, 20 * (double)(bytes) / (now_s() - began) / 1e9); \
	} while (0)

/* Figures to be read by a person: memory's speed as each kernel sees it. */
static void figures(void)
{
	const uint64_t n = UINT64_C(1) << 28; /* 1 GiB of float32: more than any cache */
	struct bh_cuda_scratch *scratch;
	CUdeviceptr x, y;
	struct pair noise;

	if (is_double)
		BH_SKIP("figures of a test double would mean nothing");
	must(driver->cuMemAlloc_(&x, n * 4));
	must(driver->cuMemAlloc_(&y, n * 4));
	noise = pair_random(BH_CUDA_FLOAT32, 1 << 20, 3);
	for (uint64_t at = 0; at < n * 4; at += noise.bytes)
		must(driver->cuMemcpyDtoDAsync_(x + at, noise.at, noise.bytes, stream));
	must(bh_cuda_fill(kernels, stream, BH_CUDA_FLOAT32, y, 0, n));
	TIMED("copy (the driver's)", 2 * n * 4, driver->cuMemcpyDtoDAsync_(y, x, n * 4, stream));
	TIMED("fill", n * 4, bh_cuda_fill(kernels, stream, BH_CUDA_FLOAT32, y, 1, n));
	TIMED("axpy", 3 * n * 4, bh_cuda_axpy(kernels, stream, BH_CUDA_FLOAT32, y, 0.5, x, n));
	TIMED("mul", 3 * n * 4, bh_cuda_mul(kernels, stream, BH_CUDA_FLOAT32, y, x, x, n));
	scratch = scratch_new(0, 0);
	TIMED("sum", n * 4, bh_cuda_sum(kernels, stream, BH_CUDA_FLOAT32, x, n, scratch));
	TIMED("dot", 2 * n * 4, bh_cuda_dot(kernels, stream, BH_CUDA_FLOAT32, x, y, n, scratch));
	TIMED("max", n * 4, bh_cuda_max(kernels, stream, BH_CUDA_FLOAT32, x, n, scratch));
	bh_cuda_scratch_give(kernels, scratch);
	TIMED("matvec, 65536 x 4096", n * 4,
	      bh_cuda_matvec(kernels, stream, BH_CUDA_FLOAT32, y, x, y + n * 2, 65536, 4096));
	for (uint32_t k = 1; k <= 1000; k *= 10) {
		char what[32];

		snprintf(what, sizeof(what), "top_k, k = %u", k);
		scratch = scratch_new(n, k);
		TIMED(what, n * 4,
		      bh_cuda_top_k(kernels, stream, BH_CUDA_FLOAT32, x, n, k, scratch));
		bh_cuda_scratch_give(kernels, scratch);
	}
	pair_free(&noise);
	must(driver->cuMemFree_(x));
	must(driver->cuMemFree_(y));
}

/* ---- the suite ------------------------------------------------------------------------------------------ */

static const struct bh_test tests[] = {
	{ "fill writes every element and no other", fill_writes_every_element_and_no_other },
	{ "scale is what the CPU makes", scale_is_what_the_cpu_makes },
	{ "axpy is what the CPU makes", axpy_is_what_the_cpu_makes },
	{ "add and mul are what the CPU makes, in place too",
	  add_and_mul_are_what_the_cpu_makes_in_place_too },
	{ "sums keep their error and repeat", sums_keep_their_error_and_repeat },
	{ "sums take every element once", sums_take_every_element_once },
	{ "sums of infinities and NaN are what they should be",
	  sums_of_infinities_and_nan_are_what_they_should_be },
	{ "max is what the CPU finds", max_is_what_the_cpu_finds },
	{ "matvec keeps its error for all shapes", matvec_keeps_its_error_for_all_shapes },
	{ "top_k is what the CPU finds", top_k_is_what_the_cpu_finds },
	{ "top_k ranks equal scores by index", top_k_ranks_equal_scores_by_index },
	{ "top_k survives every order", top_k_survives_every_order },
	{ "results under way at once do not mix", results_under_way_at_once_do_not_mix },
	{ "arrays beyond 32 bits work", arrays_beyond_32_bits_work },
	{ "figures", figures },
};

/* Under make check, whose driver takes the plan's word for it, a skip is no failure. */
static int skip(const char *why)
{
	printf("1..0 # SKIP %s\n", why);
	return getenv("BH_TEST_BUILDDIR") ? 0 : 77;
}

int main(int argc, char **argv)
{
	const char *path = getenv("BH_TEST_FAKECUDA");
	struct bh_cuda_fault fault = { .text = "" };
	int st;

	/* What is loaded is found by its name, libcuda.so.1, before any folder is looked into. */
	if (path && !dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
		printf("Bail out! BH_TEST_FAKECUDA: %s\n", dlerror());
		return 1;
	}

	if (bh_cuda_driver_get(&driver, &fault) < 0 ||
	    bh_cuda_device_open(driver, "0", &device, &fault) < 0)
		return skip(fault.text);
	printf("# on %s\n", device.name);
	is_double = strstr(device.name, "test double") != NULL;
	if (bh_cuda_device_enter(&device, &fault) < 0 ||
	    driver->cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, 0) !=
		    CUDA_SUCCESS) {
		printf("Bail out! no stream: %s\n", fault.text);
		return 1;
	}
	if (bh_cuda_kernels_new(&device, &kernels, &fault) < 0) {
		if (fault.status == -ENOSYS)
			return skip(fault.text);
		printf("Bail out! %s\n", fault.text);
		return 1;
	}
	st = bh_tap_main(argc, argv, is_double ? "cuda kernels on the test double" : "cuda kernels",
			 tests, sizeof(tests) / sizeof(tests[0]));
	bh_cuda_kernels_free(kernels, true);
	(void)driver->cuStreamDestroy_(stream);
	bh_cuda_device_leave(&device);
	bh_cuda_device_close(&device);
	return st;
}
