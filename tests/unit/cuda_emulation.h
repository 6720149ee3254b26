// SPDX-License-Identifier: BSD-3-Clause
// cuda_emulation - what kernels.cu needs of CUDA C++, on a CPU: each thread of a block is a context of its own, and
// they take turns at barriers. It shows that indices and barriers are right; it is no model of a GPU's memory, so that
// a barrier that is missing shows only where the order of turns matters (both orders are tried).
//
// Thread: one. Blocks run one behind the other.
#ifndef BH_TESTS_UNIT_CUDA_EMULATION_H
#define BH_TESTS_UNIT_CUDA_EMULATION_H

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include <ucontext.h>

#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(n)
#define __restrict__

using std::isfinite;
using std::isnan;

struct Index {
	unsigned x;
};
static Index threadIdx, blockIdx, gridDim;

namespace emulation
{

constexpr unsigned threads = 256;
constexpr size_t stack = 64 * 1024;

struct Thread {
	ucontext_t context;
	std::vector<char> stack;
	unsigned barriers; // that it has come to
	bool ended;
};

static Thread all[threads];
static ucontext_t turns;
static const std::function<void()> *body;
static bool backwards;
static int votes[2]; // of the barriers with even and odd numbers

static void enter()
{
	(*body)();
	all[threadIdx.x].ended = true;
	swapcontext(&all[threadIdx.x].context, &turns);
}

static void barrier()
{
	unsigned self = threadIdx.x;

	all[self].barriers++;
	swapcontext(&all[self].context, &turns);
}

// All threads up to their next barrier, or their end, which they must come to together.
static bool turn()
{
	for (unsigned i = 0; i < threads; i++) {
		unsigned self = backwards ? threads - 1 - i : i;

		threadIdx.x = self;
		if (!all[self].ended)
			swapcontext(&turns, &all[self].context);
	}
	for (unsigned i = 1; i < threads; i++)
		if (all[i].ended != all[0].ended || all[i].barriers != all[0].barriers) {
			printf("Bail out! threads 0 and %u of a block part at a barrier\n", i);
			exit(1);
		}
	votes[(all[0].barriers + 1) & 1] = 0; // for the next one
	return !all[0].ended;
}

static void launch(unsigned blocks, const std::function<void()> &kernel)
{
	body = &kernel;
	gridDim.x = blocks;
	for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
		for (Thread &thread : all) {
			thread.stack.resize(stack);
			thread.barriers = 0;
			thread.ended = false;
			getcontext(&thread.context);
			thread.context.uc_stack.ss_sp = thread.stack.data();
			thread.context.uc_stack.ss_size = stack;
			thread.context.uc_link = nullptr;
			makecontext(&thread.context, enter, 0);
		}
		votes[0] = votes[1] = 0;
		while (turn())
			;
	}
}

} // namespace emulation

static inline void __syncthreads()
{
	emulation::barrier();
}

static inline int __syncthreads_or(int vote)
{
	unsigned n = emulation::all[threadIdx.x].barriers + 1;

	emulation::votes[n & 1] |= vote;
	emulation::barrier();
	return emulation::votes[n & 1];
}

static inline unsigned atomicAdd(unsigned *at, unsigned by)
{
	unsigned was = *at;

	*at += by;
	return was;
}

static inline long long __double_as_longlong(double x)
{
	long long bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static inline double __longlong_as_double(long long bits)
{
	double x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

#endif
