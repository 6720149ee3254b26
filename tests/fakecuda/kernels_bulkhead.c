/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_bulkhead - twins in C of the kernels of plugins/cuda/kernels.cu, with the same arguments and results.
 *
 * What they show is that the plugin launches, orders and reads back as it should. Of the kernels themselves they
 * show nothing: that takes a device (tests/device/). */
#include "config.h"

#include "tests/fakecuda/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/cuda/kernels_shared.h"
#include "tests/fakecuda/kernels_bulkhead.h"

/* ---- arguments ------------------------------------------------------------------------------------------- */

/* One launch while its arguments are taken, one behind the other; the first that cannot be had decides. */
struct taking {
	const struct fake_launch *launch;
	unsigned int next;
	int status;
};

static struct taking take_begin(const struct fake_launch *launch)
{
	struct taking t = { .launch = launch };

	if (launch->block[0] != BH_KERNEL_THREADS || launch->block[1] != 1 || launch->block[2] != 1)
		t.status = CUDA_ERROR_LAUNCH_FAILED;
	return t;
}

static uint64_t take_u64(struct taking *t)
{
	uint64_t value = 0;

	if (!fake_param(t->launch, t->next++, &value, sizeof(value)) && !t->status)
		t->status = CUDA_ERROR_LAUNCH_FAILED;
	return value;
}

static uint32_t take_u32(struct taking *t)
{
	uint32_t value = 0;

	if (!fake_param(t->launch, t->next++, &value, sizeof(value)) && !t->status)
		t->status = CUDA_ERROR_LAUNCH_FAILED;
	return value;
}

/* A number of the arrays' type. */
static double take_real(struct taking *t, size_t item)
{
	float f32 = 0;
	double f64 = 0;
	bool is_f32 = item == sizeof(f32);

	if (!fake_param(t->launch, t->next++, is_f32 ? (void *)&f32 : &f64, item) && !t->status)
		t->status = CUDA_ERROR_LAUNCH_FAILED;
	return is_f32 ? (double)f32 : f64;
}

/* The memory behind an address that has been taken. */
static void *memory_at(struct taking *t, CUdeviceptr address, uint64_t bytes)
{
	void *memory;

	if (t->status)
		return NULL;
	memory = fake_pointer(t->launch, address, bytes);
	if (!memory)
		t->status = CUDA_ERROR_ILLEGAL_ADDRESS;
	return memory;
}

/* ---- both types -------------------------------------------------------------------------------------------- */

static double get(const void *array, size_t item, uint64_t i)
{
	return item == sizeof(float) ? (double)((const float *)array)[i]
				     : ((const double *)array)[i];
}

static void set(void *array, size_t item, uint64_t i, double value)
{
	if (item == sizeof(float))
		((float *)array)[i] = (float)value;
	else
		((double *)array)[i] = value;
}

/* Rounded to the arrays' type after each step, as kernels without contraction do. */
static double rounded(size_t item, double value)
{
	return item == sizeof(float) ? (double)(float)value : value;
}

enum shape { FILL, SCALE, AXPY, ADD, MUL };

/* The product of two floats is exact in a double, and so is rounded once. */
static double element(enum shape shape, size_t item, double factor, double a, double b)
{
	switch (shape) {
	case FILL:
		return factor;
	case SCALE:
		return a * factor;
	case AXPY:
		return a + rounded(item, factor * b);
	case ADD:
		return a + b;
	case MUL:
		return a * b;
	}
	return 0;
}

/* (out, number, n), (y, a, x, n) or (out, a, b, n). */
static int each(const struct fake_launch *launch, enum shape shape, size_t item)
{
	struct taking t = take_begin(launch);
	CUdeviceptr at_out = take_u64(&t), at_a = at_out, at_b = at_out;
	double factor = 0;
	void *out, *a, *b;
	uint64_t n;

	if (shape == ADD || shape == MUL)
		at_a = take_u64(&t);
	else
		factor = take_real(&t, item);
	if (shape != FILL && shape != SCALE)
		at_b = take_u64(&t);
	n = take_u64(&t);
	out = memory_at(&t, at_out, n * item);
	a = memory_at(&t, at_a, n * item);
	b = memory_at(&t, at_b, n * item);
	if (t.status)
		return t.status;
	for (uint64_t i = 0; i < n; i++)
		set(out, item, i, element(shape, item, factor, get(a, item, i), get(b, item, i)));
	return CUDA_SUCCESS;
}

enum reduction { SUM, DOT, MAX };

/* (parts, a, n) or (parts, a, b, n): a part a block, of the elements that its threads would have read. */
static int reduce(const struct fake_launch *launch, enum reduction reduction, size_t item)
{
	struct taking t = take_begin(launch);
	CUdeviceptr at_parts = take_u64(&t), at_a = take_u64(&t);
	CUdeviceptr at_b = reduction == DOT ? take_u64(&t) : at_a;
	uint64_t n = take_u64(&t), stride = (uint64_t)launch->grid[0] * BH_KERNEL_THREADS;
	double *parts = memory_at(&t, at_parts, launch->grid[0] * sizeof(*parts));
	const void *a = memory_at(&t, at_a, n * item), *b = memory_at(&t, at_b, n * item);

	if (t.status)
		return t.status;
	for (unsigned int block = 0; block < launch->grid[0]; block++) {
		long double sum = 0;
		double best = -INFINITY;

		for (uint64_t first = (uint64_t)block * BH_KERNEL_THREADS; first < n;
		     first += stride)
			for (uint64_t i = first; i < first + BH_KERNEL_THREADS && i < n; i++) {
				double x = get(a, item, i);

				sum += reduction == DOT ? (long double)x * get(b, item, i) : x;
				best = x > best || isnan(x) ? x : best;
			}
		parts[block] = reduction == MAX ? best : (double)sum;
	}
	return CUDA_SUCCESS;
}

/* (out, m, x, rows, columns, lanes) */
static int matvec(const struct fake_launch *launch, size_t item)
{
	struct taking t = take_begin(launch);
	CUdeviceptr at_out = take_u64(&t), at_m = take_u64(&t), at_x = take_u64(&t);
	uint64_t rows = take_u64(&t), columns = take_u64(&t);
	uint32_t lanes = take_u32(&t);
	void *out = memory_at(&t, at_out, rows * item);
	const void *m = memory_at(&t, at_m, rows * columns * item);
	const void *x = memory_at(&t, at_x, columns * item);

	if (!t.status && (lanes == 0 || lanes > BH_KERNEL_THREADS || (lanes & (lanes - 1))))
		t.status = CUDA_ERROR_LAUNCH_FAILED;
	if (t.status)
		return t.status;
	for (uint64_t row = 0; row < rows; row++) {
		long double sum = 0;

		for (uint64_t i = 0; i < columns; i++)
			sum += (long double)get(m, item, row * columns + i) * get(x, item, i);
		set(out, item, row, (double)sum);
	}
	return CUDA_SUCCESS;
}

/* ---- the best ----------------------------------------------------------------------------------------------- */

static uint64_t key_of(double score)
{
	uint64_t bits;

	score += 0.0; /* -0.0 becomes 0.0 */
	memcpy(&bits, &score, sizeof(bits));
	return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

static int by_rank(const void *left, const void *right)
{
	const struct bh_kernel_ranked *a = left, *b = right;

	if (a->key != b->key)
		return a->key > b->key ? -1 : 1;
	return a->index < b->index ? -1 : a->index > b->index;
}

/* Leaves the k best of `count`, and zeros behind them, in out. */
static void best_of(struct bh_kernel_ranked *entries, uint64_t count, uint32_t k,
		    struct bh_kernel_ranked *out)
{
	qsort(entries, count, sizeof(*entries), by_rank);
	for (uint32_t i = 0; i < k; i++)
		out[i] = i < count ? entries[i] : (struct bh_kernel_ranked){ 0, 0 };
}

/* (scores, n, k, out): k a block, of every gridDim.x-th tile. */
static int top_k(const struct fake_launch *launch, size_t item)
{
	struct taking t = take_begin(launch);
	CUdeviceptr at_scores = take_u64(&t);
	uint64_t n = take_u64(&t);
	uint32_t k = take_u32(&t);
	CUdeviceptr at_out = take_u64(&t);
	const void *scores = memory_at(&t, at_scores, n * item);
	struct bh_kernel_ranked *out = memory_at(&t, at_out,
						 (uint64_t)launch->grid[0] * k * sizeof(*out)),
				*entries;

	if (!t.status && (k == 0 || k > BH_KERNEL_K_MAX))
		t.status = CUDA_ERROR_LAUNCH_FAILED;
	if (t.status)
		return t.status;
	entries = calloc(n + 1, sizeof(*entries));
	if (!entries)
		return CUDA_ERROR_LAUNCH_FAILED;
	for (unsigned int block = 0; block < launch->grid[0]; block++) {
		uint64_t count = 0;

		for (uint64_t first = (uint64_t)block * BH_KERNEL_TILE; first < n;
		     first += (uint64_t)launch->grid[0] * BH_KERNEL_TILE)
			for (uint64_t i = first; i < first + BH_KERNEL_TILE && i < n; i++) {
				double score = get(scores, item, i);

				if (!isnan(score))
					entries[count++] =
						(struct bh_kernel_ranked){ key_of(score), i };
			}
		best_of(entries, count, k, out + (uint64_t)block * k);
	}
	free(entries);
	return CUDA_SUCCESS;
}

/* (in, n, k, out), one block */
static int top_k_merge(const struct fake_launch *launch)
{
	struct taking t = take_begin(launch);
	CUdeviceptr at_in = take_u64(&t);
	uint64_t n = take_u64(&t), count = 0;
	uint32_t k = take_u32(&t);
	CUdeviceptr at_out = take_u64(&t);
	struct bh_kernel_ranked *in = memory_at(&t, at_in, n * sizeof(*in));
	struct bh_kernel_ranked *out = memory_at(&t, at_out, k * sizeof(*out)), *entries;

	if (!t.status && launch->grid[0] != 1)
		t.status = CUDA_ERROR_LAUNCH_FAILED;
	if (t.status)
		return t.status;
	entries = calloc(n + 1, sizeof(*entries));
	if (!entries)
		return CUDA_ERROR_LAUNCH_FAILED;
	for (uint64_t i = 0; i < n; i++)
		if (in[i].key)
			entries[count++] = in[i];
	best_of(entries, count, k, out);
	free(entries);
	return CUDA_SUCCESS;
}

/* store_params(u8 *out, …): the bytes of each further parameter, 16 of `out` for each: how arguments are passed. */
static int store_params(const struct fake_launch *launch)
{
	CUdeviceptr at;
	unsigned char *out;

	if (!fake_param(launch, 0, &at, sizeof(at)))
		return CUDA_ERROR_LAUNCH_FAILED;
	out = fake_pointer(launch, at, (launch->n_params - 1) * (size_t)16);
	if (!out)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (unsigned int i = 1; i < launch->n_params; i++)
		memcpy(out + (i - 1) * (size_t)16, launch->params + launch->offset[i],
		       launch->size[i] < 16 ? launch->size[i] : 16);
	return CUDA_SUCCESS;
}

/* ---- the table ------------------------------------------------------------------------------------------------ */

#define TWINS(suffix, item)                                                                        \
	static int fill_##suffix(const struct fake_launch *launch)                                 \
	{                                                                                          \
		return each(launch, FILL, item);                                                   \
	}                                                                                          \
	static int scale_##suffix(const struct fake_launch *launch)                                \
	{                                                                                          \
		return each(launch, SCALE, item);                                                  \
	}                                                                                          \
	static int axpy_##suffix(const struct fake_launch *launch)                                 \
	{                                                                                          \
		return each(launch, AXPY, item);                                                   \
	}                                                                                          \
	static int add_##suffix(const struct fake_launch *launch)                                  \
	{                                                                                          \
		return each(launch, ADD, item);                                                    \
	}                                                                                          \
	static int mul_##suffix(const struct fake_launch *launch)                                  \
	{                                                                                          \
		return each(launch, MUL, item);                                                    \
	}                                                                                          \
	static int sum_##suffix(const struct fake_launch *launch)                                  \
	{                                                                                          \
		return reduce(launch, SUM, item);                                                  \
	}                                                                                          \
	static int dot_##suffix(const struct fake_launch *launch)                                  \
	{                                                                                          \
		return reduce(launch, DOT, item);                                                  \
	}                                                                                          \
	static int max_##suffix(const struct fake_launch *launch)                                  \
	{                                                                                          \
		return reduce(launch, MAX, item);                                                  \
	}                                                                                          \
	static int matvec_##suffix(const struct fake_launch *launch)                               \
	{                                                                                          \
		return matvec(launch, item);                                                       \
	}                                                                                          \
	static int top_k_##suffix(const struct fake_launch *launch)                                \
	{                                                                                          \
		return top_k(launch, item);                                                        \
	}

TWINS(f32, 4)
TWINS(f64, 8)

#define ROWS(suffix, item)                                                                         \
	{ "bh_fill_" #suffix, fill_##suffix, { 8, item, 8 } },                                     \
		{ "bh_scale_" #suffix, scale_##suffix, { 8, item, 8 } },                           \
		{ "bh_axpy_" #suffix, axpy_##suffix, { 8, item, 8, 8 } },                          \
		{ "bh_add_" #suffix, add_##suffix, { 8, 8, 8, 8 } },                               \
		{ "bh_mul_" #suffix, mul_##suffix, { 8, 8, 8, 8 } },                               \
		{ "bh_sum_" #suffix, sum_##suffix, { 8, 8, 8 } },                                  \
		{ "bh_dot_" #suffix, dot_##suffix, { 8, 8, 8, 8 } },                               \
		{ "bh_max_" #suffix, max_##suffix, { 8, 8, 8 } },                                  \
		{ "bh_matvec_" #suffix, matvec_##suffix, { 8, 8, 8, 8, 8, 4 } },                   \
	{                                                                                          \
		"bh_top_k_" #suffix, top_k_##suffix,                                               \
		{                                                                                  \
			8, 8, 4, 8                                                                 \
		}                                                                                  \
	}

const struct fake_kernel fake_kernels_bulkhead[] = {
	ROWS(f32, 4),
	ROWS(f64, 8),
	{ "bh_top_k_merge", top_k_merge, { 8, 8, 4, 8 } },
	{ "store_params", store_params, { 8 } },
	{ 0 },
};
