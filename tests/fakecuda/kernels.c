/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels - those of the double's own suites, and the list of all tables. */
#include "config.h"

#include "tests/fakecuda/kernels.h"

#include "tests/fakecuda/kernels_bulkhead.h"

/* add_one(u32 *data, u32 n): each data[i] grows by one. */
static int add_one(const struct fake_launch *launch)
{
	CUdeviceptr data;
	uint32_t n, *values;
	uint64_t threads = (uint64_t)launch->grid[0] * launch->block[0];

	if (!fake_param(launch, 0, &data, sizeof(data)) || !fake_param(launch, 1, &n, sizeof(n)))
		return CUDA_ERROR_LAUNCH_FAILED;
	if (n > threads)
		n = (uint32_t)threads;
	values = fake_pointer(launch, data, n * sizeof(*values));
	if (!values)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint32_t i = 0; i < n; i++)
		values[i]++;
	return CUDA_SUCCESS;
}

/* spin(u64 ns): takes so long. */
static int spin(const struct fake_launch *launch)
{
	uint64_t ns;

	if (!fake_param(launch, 0, &ns, sizeof(ns)))
		return CUDA_ERROR_LAUNCH_FAILED;
	fake_spin(launch, (int64_t)ns);
	return CUDA_SUCCESS;
}

static int empty(const struct fake_launch *launch)
{
	(void)launch;
	return CUDA_SUCCESS;
}

/* trap(): touches what it must not. */
static int trap(const struct fake_launch *launch)
{
	(void)launch;
	return CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* store(u32 *where, u32 value): for stray addresses. */
static int store(const struct fake_launch *launch)
{
	CUdeviceptr where;
	uint32_t value, *memory;

	if (!fake_param(launch, 0, &where, sizeof(where)) ||
	    !fake_param(launch, 1, &value, sizeof(value)))
		return CUDA_ERROR_LAUNCH_FAILED;
	memory = fake_pointer(launch, where, sizeof(*memory));
	if (!memory)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	*memory = value;
	return CUDA_SUCCESS;
}

static const struct fake_kernel test_kernels[] = {
	{ "add_one", add_one, { 8, 4 } }, { "spin", spin, { 8 } },	{ "empty", empty, { 0 } },
	{ "trap", trap, { 0 } },	  { "store", store, { 8, 4 } }, { 0 },
};

const struct fake_kernel *const fake_kernel_tables[] = {
	test_kernels,
	fake_kernels_bulkhead,
	NULL,
};
