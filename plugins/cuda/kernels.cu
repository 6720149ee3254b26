// SPDX-License-Identifier: BSD-3-Clause
// kernels - arithmetic on float32 and float64 in device memory: the counterpart of plugins/stream/kernels.c.
//
// Arrays are C-contiguous and seen as vectors, so that one length is enough. Each kernel is exported as
// bh_<name>_f32 and _f64 and launched by kernels.c, which says what each argument is. Blocks have
// BH_KERNEL_THREADS threads; any number of blocks gives the same result, except for the reductions, whose
// number of blocks is fixed by the length.
//
// It is compiled without contraction (-fmad=false), so that what works element by element rounds as the CPU's
// kernels do. Sums are doubles and ask for fma() themselves.

#include "plugins/cuda/kernels_shared.h"

namespace {

__device__ uint64_t thread_first()
{
	return uint64_t(blockIdx.x) * BH_KERNEL_THREADS + threadIdx.x;
}

__device__ uint64_t thread_stride()
{
	return uint64_t(gridDim.x) * BH_KERNEL_THREADS;
}

// ---- element by element -----------------------------------------------------------------------------

// out[i] = of(i) for all i. What is read may be `out` itself: each thread reads its elements before it writes
// those, and reads no others.
template <typename real, typename Of> __device__ void each(real *out, uint64_t n, Of of)
{
	const uint64_t stride = thread_stride();
	uint64_t i = thread_first();

	for (; i < n && n - i > (BH_KERNEL_UNROLL - 1) * stride; i += BH_KERNEL_UNROLL * stride) {
		real value[BH_KERNEL_UNROLL];

#pragma unroll
		for (unsigned j = 0; j < BH_KERNEL_UNROLL; j++)
			value[j] = of(i + j * stride);
#pragma unroll
		for (unsigned j = 0; j < BH_KERNEL_UNROLL; j++)
			out[i + j * stride] = value[j];
	}
	for (; i < n; i += stride)
		out[i] = of(i);
}

// ---- reductions -------------------------------------------------------------------------------------

// What each addition loses is kept (Knuth's sum), so that the error does not grow with the length.
struct Total {
	double sum = 0, lost = 0;

	__device__ void add(double x)
	{
		double next = sum + x, part = next - sum;

		lost += (sum - (next - part)) + (x - part);
		sum = next;
	}
	// An infinity or a NaN has lost nothing that could be told.
	__device__ double get() const
	{
		return isfinite(sum) ? sum + lost : sum;
	}
};

struct Plus {
	__device__ double operator()(double a, double b) const
	{
		return a + b;
	}
};

// NaN wins over all.
struct Greatest {
	__device__ double operator()(double a, double b) const
	{
		return b > a || isnan(b) ? b : a;
	}
};

// Of one value a thread; the result is thread 0's of each group of `width` threads. `shared` may be used again
// after the next barrier.
template <typename Join>
__device__ double reduce(double *shared, double value, unsigned width, Join join)
{
	const unsigned lane = threadIdx.x & (width - 1);

	shared[threadIdx.x] = value;
	__syncthreads();
	for (unsigned half = width / 2; half > 0; half /= 2) {
		if (lane < half)
			shared[threadIdx.x] =
				join(shared[threadIdx.x], shared[threadIdx.x + half]);
		__syncthreads();
	}
	return shared[threadIdx.x];
}

// parts[block] = the sum of term(i) over the block's i. `join(part, i)` adds the i-th term.
template <typename Join> __device__ void sum_parts(double *parts, uint64_t n, Join join)
{
	__shared__ double shared[BH_KERNEL_THREADS];
	const uint64_t stride = thread_stride();
	uint64_t i = thread_first();
	double part = 0;
	Total total;

	for (; i < n && n - i > (BH_KERNEL_RUN - 1) * stride; i += BH_KERNEL_RUN * stride) {
		part = 0;
#pragma unroll
		for (unsigned j = 0; j < BH_KERNEL_RUN; j++)
			part = join(part, i + j * stride);
		total.add(part);
	}
	part = 0;
	for (; i < n; i += stride)
		part = join(part, i);
	total.add(part);
	part = reduce(shared, total.get(), BH_KERNEL_THREADS, Plus());
	if (threadIdx.x == 0)
		parts[blockIdx.x] = part;
}

template <typename real> __device__ void max_parts(double *parts, const real *a, uint64_t n)
{
	__shared__ double shared[BH_KERNEL_THREADS];
	const uint64_t stride = thread_stride();
	double best = -INFINITY;

#pragma unroll 4
	for (uint64_t i = thread_first(); i < n; i += stride)
		best = Greatest()(best, double(a[i]));
	best = reduce(shared, best, BH_KERNEL_THREADS, Greatest());
	if (threadIdx.x == 0)
		parts[blockIdx.x] = best;
}

// ---- matrix and vector ------------------------------------------------------------------------------

// `lanes` threads a row, a power of two up to BH_KERNEL_THREADS. The loop is the same for all threads of a
// block: they meet at the barriers.
template <typename real>
__device__ void matvec(real *__restrict__ out, const real *__restrict__ m,
		       const real *__restrict__ x, uint64_t rows, uint64_t columns, unsigned lanes)
{
	__shared__ double shared[BH_KERNEL_THREADS];
	const unsigned lane = threadIdx.x & (lanes - 1), group = threadIdx.x / lanes,
		       groups = BH_KERNEL_THREADS / lanes;

	for (uint64_t first = uint64_t(blockIdx.x) * groups; first < rows;
	     first += uint64_t(gridDim.x) * groups) {
		const uint64_t row = first + group;
		double sum = 0;

		if (row < rows) {
			const real *from = m + row * columns;

#pragma unroll 4
			for (uint64_t i = lane; i < columns; i += lanes)
				sum = fma(double(from[i]), double(x[i]), sum);
		}
		sum = reduce(shared, sum, lanes, Plus());
		if (lane == 0 && row < rows)
			out[row] = real(sum);
		__syncthreads();
	}
}

// ---- the best ---------------------------------------------------------------------------------------

__device__ uint64_t key_of(double score)
{
	uint64_t bits = uint64_t(__double_as_longlong(score + 0.0)); // -0.0 becomes 0.0

	return bits >> 63 ? ~bits : bits | uint64_t(1) << 63;
}

__device__ double score_of(uint64_t key)
{
	return __longlong_as_double((long long)(key >> 63 ? key ^ uint64_t(1) << 63 : ~key));
}

__device__ bool ranks_before(const bh_kernel_ranked &a, const bh_kernel_ranked &b)
{
	return a.key > b.key || (a.key == b.key && a.index < b.index);
}

// A block's candidates. The first `k` of a settled list are the best so far, greatest first.
struct List {
	bh_kernel_ranked entries[BH_KERNEL_LIST];
	unsigned count;
	bool full; // settled once with k or more: what ranks behind floor is none of the best
	bh_kernel_ranked floor;
};

__device__ void list_begin(List &list)
{
	if (threadIdx.x == 0) {
		list.count = 0;
		list.full = false;
	}
	__syncthreads();
}

__device__ void list_offer(List &list, uint64_t key, uint64_t index)
{
	list.entries[atomicAdd(&list.count, 1u)] = { key, index };
}

// Sorts (bitonic) and keeps the first k. By all threads of the block, which have met at a barrier since the
// last offer; they meet at one before this returns.
__device__ void list_settle(List &list, unsigned k)
{
	const unsigned count = list.count;
	unsigned size = 1;

	while (size < count)
		size *= 2;
	for (unsigned i = count + threadIdx.x; i < size; i += BH_KERNEL_THREADS)
		list.entries[i] = { 0, 0 };
	__syncthreads();
	for (unsigned run = 2; run <= size; run *= 2)
		for (unsigned reach = run / 2; reach > 0; reach /= 2) {
			for (unsigned p = threadIdx.x; p < size / 2; p += BH_KERNEL_THREADS) {
				const unsigned a = 2 * p - (p & (reach - 1)), b = a + reach;
				const bool turned = (a & run) != 0; // the other way round
				const bh_kernel_ranked x = list.entries[a], y = list.entries[b];

				if (ranks_before(y, x) != turned) {
					list.entries[a] = y;
					list.entries[b] = x;
				}
			}
			__syncthreads();
		}
	if (threadIdx.x == 0) {
		list.count = count < k ? count : k;
		list.full = count >= k;
		if (list.full)
			list.floor = list.entries[k - 1];
	}
	__syncthreads();
}

// After a tile's offers and a barrier: there must be room for another tile's, and a floor as soon as there can
// be one.
__device__ void list_keep(List &list, unsigned k)
{
	if (list.count > BH_KERNEL_LIST - BH_KERNEL_TILE || (!list.full && list.count >= k))
		list_settle(list, k);
}

__device__ void list_end(List &list, unsigned k, bh_kernel_ranked *out)
{
	__syncthreads();
	list_settle(list, k);
	for (unsigned i = threadIdx.x; i < k; i += BH_KERNEL_THREADS)
		out[i] = i < list.count ? list.entries[i] : bh_kernel_ranked{ 0, 0 };
}

// Each block takes every gridDim.x-th tile and leaves its k best in out[block * k …]. Indices grow from tile
// to tile, so that a later score that equals the floor ranks behind it.
template <typename real>
__device__ void top_k(const real *scores, uint64_t n, unsigned k, bh_kernel_ranked *out)
{
	__shared__ List list;

	list_begin(list);
	for (uint64_t first = uint64_t(blockIdx.x) * BH_KERNEL_TILE; first < n;
	     first += uint64_t(gridDim.x) * BH_KERNEL_TILE) {
		const bool full = list.full;
		const real floor = full ? real(score_of(list.floor.key)) : real(0);
		real score[BH_KERNEL_TILE / BH_KERNEL_THREADS];
		unsigned wanted = 0;

#pragma unroll
		for (unsigned j = 0; j < BH_KERNEL_TILE / BH_KERNEL_THREADS; j++) {
			const uint64_t i = first + j * BH_KERNEL_THREADS + threadIdx.x;

			score[j] = i < n ? scores[i] : real(NAN);
			if (!isnan(score[j]) && (!full || score[j] > floor))
				wanted |= 1u << j;
		}
		if (!__syncthreads_or(int(wanted)))
			continue;
#pragma unroll
		for (unsigned j = 0; j < BH_KERNEL_TILE / BH_KERNEL_THREADS; j++)
			if (wanted & 1u << j)
				list_offer(list, key_of(double(score[j])),
					   first + j * BH_KERNEL_THREADS + threadIdx.x);
		__syncthreads();
		list_keep(list, k);
	}
	list_end(list, k, out + uint64_t(blockIdx.x) * k);
}

} // namespace

// ---- what is exported -------------------------------------------------------------------------------

#define KERNEL extern "C" __global__ void __launch_bounds__(BH_KERNEL_THREADS)

#define KERNELS(suffix, real)                                                                       \
	KERNEL bh_fill_##suffix(real *out, real value, uint64_t n)                                  \
	{                                                                                           \
		each(out, n, [=](uint64_t) { return value; });                                      \
	}                                                                                           \
	KERNEL bh_scale_##suffix(real *y, real a, uint64_t n)                                       \
	{                                                                                           \
		each(y, n, [=](uint64_t i) { return y[i] * a; });                                   \
	}                                                                                           \
	KERNEL bh_axpy_##suffix(real *y, real a, const real *x, uint64_t n)                         \
	{                                                                                           \
		each(y, n, [=](uint64_t i) { return y[i] + a * x[i]; });                            \
	}                                                                                           \
	KERNEL bh_add_##suffix(real *out, const real *a, const real *b, uint64_t n)                 \
	{                                                                                           \
		each(out, n, [=](uint64_t i) { return a[i] + b[i]; });                              \
	}                                                                                           \
	KERNEL bh_mul_##suffix(real *out, const real *a, const real *b, uint64_t n)                 \
	{                                                                                           \
		each(out, n, [=](uint64_t i) { return a[i] * b[i]; });                              \
	}                                                                                           \
	KERNEL bh_sum_##suffix(double *parts, const real *a, uint64_t n)                            \
	{                                                                                           \
		sum_parts(parts, n, [=](double part, uint64_t i) { return part + double(a[i]); });  \
	}                                                                                           \
	KERNEL bh_dot_##suffix(double *parts, const real *a, const real *b, uint64_t n)             \
	{                                                                                           \
		sum_parts(parts, n, [=](double part, uint64_t i) {                                  \
			return fma(double(a[i]), double(b[i]), part);                               \
		});                                                                                 \
	}                                                                                           \
	KERNEL bh_max_##suffix(double *parts, const real *a, uint64_t n)                            \
	{                                                                                           \
		max_parts(parts, a, n);                                                             \
	}                                                                                           \
	KERNEL bh_matvec_##suffix(real *out, const real *m, const real *x, uint64_t rows,           \
				  uint64_t columns, uint32_t lanes)                                 \
	{                                                                                           \
		matvec(out, m, x, rows, columns, lanes);                                            \
	}                                                                                           \
	KERNEL bh_top_k_##suffix(const real *scores, uint64_t n, uint32_t k, bh_kernel_ranked *out) \
	{                                                                                           \
		top_k(scores, n, k, out);                                                           \
	}

KERNELS(f32, float)
KERNELS(f64, double)

// The k best of what the blocks of top_k left, by one block, greatest first.
KERNEL bh_top_k_merge(const bh_kernel_ranked *in, uint64_t n, uint32_t k, bh_kernel_ranked *out)
{
	__shared__ List list;

	list_begin(list);
	for (uint64_t first = 0; first < n; first += BH_KERNEL_TILE) {
		bh_kernel_ranked entry[BH_KERNEL_TILE / BH_KERNEL_THREADS];
		unsigned wanted = 0;

#pragma unroll
		for (unsigned j = 0; j < BH_KERNEL_TILE / BH_KERNEL_THREADS; j++) {
			const uint64_t i = first + j * BH_KERNEL_THREADS + threadIdx.x;

			entry[j] = i < n ? in[i] : bh_kernel_ranked{ 0, 0 };
			if (entry[j].key && (!list.full || ranks_before(entry[j], list.floor)))
				wanted |= 1u << j;
		}
		if (!__syncthreads_or(int(wanted)))
			continue;
#pragma unroll
		for (unsigned j = 0; j < BH_KERNEL_TILE / BH_KERNEL_THREADS; j++)
			if (wanted & 1u << j)
				list_offer(list, entry[j].key, entry[j].index);
		__syncthreads();
		list_keep(list, k);
	}
	list_end(list, k, out);
}
