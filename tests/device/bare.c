/* SPDX-License-Identifier: BSD-3-Clause */
/* bare - what the driver does without the plugin: the figures that the plugin's are ratios of.
 *
 * Prints one line a figure, `figure NAME VALUE UNIT`: the median of rounds, after one that is not counted. Takes some
 * seconds. On the test double it ends with 77: figures of that say nothing of a GPU, and only `--plumbing` prints them.
 *
 *   h2d, d2h          64 MiB between pinned host memory and the device, one copy at a time, by an event's end
 *   launch            an empty kernel: from the launch until an event behind it is seen to be over
 *   launches_in_64    empty kernels a second, 64 launched before the event behind them is awaited */
#include "config.h"

#include "tests/unit/libcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BYTES ((size_t)64 << 20)
#define COPY_ROUNDS 31
#define LAUNCH_ROUNDS 2001
#define BATCH 64
#define BATCH_ROUNDS 301

/* All that follows is of the driver alone, so what fails ends it. */
#define MUST(call)                                                                                 \
	do {                                                                                       \
		CUresult result_ = (call);                                                         \
                                                                                                   \
		if (result_ != CUDA_SUCCESS) {                                                     \
			fprintf(stderr, "bare: %s gave %d\n", #call, (int)result_);                \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static CUstream stream;
static CUevent event;

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Looks at the event as the plugin does; the driver's own wait may sleep. */
static void await_all(void)
{
	CUresult result;

	MUST(cuda.cuEventRecord_(event, stream));
	do
		result = cuda.cuEventQuery_(event);
	while (result == CUDA_ERROR_NOT_READY);
	MUST(result);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, int n)
{
	qsort(values, (size_t)n, sizeof(*values), compare);
	return values[n / 2];
}

static double copy_us(bool in, CUdeviceptr device, void *host)
{
	double took[COPY_ROUNDS];

	for (int round = -1; round < COPY_ROUNDS; round++) {
		double began = now_us();

		if (in)
			MUST(cuda.cuMemcpyHtoDAsync_(device, host, BYTES, stream));
		else
			MUST(cuda.cuMemcpyDtoHAsync_(host, device, BYTES, stream));
		await_all();
		if (round >= 0)
			took[round] = now_us() - began;
	}
	return median(took, COPY_ROUNDS);
}

static double launch_us(CUfunction empty, int batch, int rounds)
{
	static double took[LAUNCH_ROUNDS];

	for (int round = -1; round < rounds; round++) {
		double began = now_us();

		for (int i = 0; i < batch; i++)
			MUST(cuda.cuLaunchKernel_(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
		await_all();
		if (round >= 0)
			took[round] = now_us() - began;
	}
	return median(took, rounds);
}

int main(int argc, char **argv)
{
	const char *why = libcuda_start();
	CUdeviceptr device = 0;
	CUmodule module = NULL;
	CUfunction empty = NULL;
	void *host = NULL;

	if (why) {
		printf("skipped: %s\n", why);
		return 77;
	}
	if (libcuda_is_double()) {
		if (argc != 2 || strcmp(argv[1], "--plumbing") != 0) {
			printf("skipped: the library is the test double\n");
			return 77;
		}
		printf("on the test double, no GPU: these say nothing\n");
	}
	MUST(cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, 0));
	MUST(cuda.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING));
	MUST(cuda.cuMemAlloc_(&device, BYTES));
	MUST(cuda.cuMemHostAlloc_(&host, BYTES, CU_MEMHOSTALLOC_PORTABLE));
	memset(host, 1, BYTES);
	MUST(cuda.cuModuleLoadDataEx_(&module, libcuda_ptx, 0, NULL, NULL));
	MUST(cuda.cuModuleGetFunction_(&empty, module, "empty"));

	printf("figure h2d %.2f GB/s\n", (double)BYTES / copy_us(true, device, host) / 1e3);
	printf("figure d2h %.2f GB/s\n", (double)BYTES / copy_us(false, device, host) / 1e3);
	printf("figure launch %.2f us\n", launch_us(empty, 1, LAUNCH_ROUNDS));
	printf("figure launches_in_64 %.0f 1/s\n",
	       BATCH * 1e6 / launch_us(empty, BATCH, BATCH_ROUNDS));

	MUST(cuda.cuModuleUnload_(module));
	MUST(cuda.cuMemFreeHost_(host));
	MUST(cuda.cuMemFree_(device));
	MUST(cuda.cuEventDestroy_(event));
	MUST(cuda.cuStreamDestroy_(stream));
	return 0;
}
