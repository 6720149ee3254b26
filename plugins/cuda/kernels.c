/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels - see kernels.h. */
#include "config.h"

#include "plugins/cuda/kernels.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks a multiprocessor: enough to hide the memory's latency, few enough that each thread has some work. */
#define BLOCKS_EACH 16u
/* Columns from which on a row of a matrix is summed by so many threads. */
#define LANES_FEW 8u
#define LANES_WARP 32u
#define COLUMNS_WARP 64u
#define COLUMNS_BLOCK 2048u
/* top_k: tiles that a block takes at least, and candidates that all blocks leave at most. */
#define TILES_MIN 16u
#define CANDIDATES_MAX 16384u

/* ---- the kernels ---------------------------------------------------------------------------- */

enum kernel {
	KERNEL_FILL,
	KERNEL_SCALE,
	KERNEL_AXPY,
	KERNEL_ADD,
	KERNEL_MUL,
	KERNEL_SUM,
	KERNEL_DOT,
	KERNEL_MAX,
	KERNEL_MATVEC,
	KERNEL_TOP_K
};
#define KERNELS 10u
#define REALS 2u

static const char *const kernel_names[KERNELS] = {
	[KERNEL_FILL] = "fill",	  [KERNEL_SCALE] = "scale", [KERNEL_AXPY] = "axpy",
	[KERNEL_ADD] = "add",	  [KERNEL_MUL] = "mul",	    [KERNEL_SUM] = "sum",
	[KERNEL_DOT] = "dot",	  [KERNEL_MAX] = "max",	    [KERNEL_MATVEC] = "matvec",
	[KERNEL_TOP_K] = "top_k",
};

/* Scratch memory comes in two sizes, many at once, and is used again and again. */
enum size { SIZE_SMALL, SIZE_LARGE };
#define SIZES 2u

static const struct {
	size_t device, host; /* bytes of one scratch */
	uint32_t at_once;
} sizes[SIZES] = {
	[SIZE_SMALL] = { BH_KERNEL_PARTS_MAX * sizeof(double), BH_KERNEL_PARTS_MAX * sizeof(double),
			 64 },
	[SIZE_LARGE] = { (CANDIDATES_MAX + BH_KERNEL_K_MAX) * sizeof(struct bh_kernel_ranked),
			 BH_KERNEL_K_MAX * sizeof(struct bh_kernel_ranked), 4 },
};

/* M: under the kernels' lock while it is free, else its user's. */
struct bh_cuda_scratch {
	enum size size;		      /* I */
	CUdeviceptr device;	      /* I */
	void *host;		      /* I: pinned */
	uint32_t count;		      /* M: parts, or entries of top_k's */
	struct bh_cuda_scratch *next; /* M */
};

struct slab {
	struct slab *next;
	CUdeviceptr device;
	void *host;
	struct bh_cuda_scratch scratches[];
};

struct bh_cuda_kernels {
	const struct bh_cuda_device *device;  /* I */
	CUmodule module;		      /* I */
	CUfunction functions[KERNELS][REALS]; /* I */
	CUfunction merge;		      /* I */
	pthread_mutex_t lock;		      /* guards what follows */
	struct bh_cuda_scratch *free[SIZES];
	struct slab *slabs;
};

static bh_status find_functions(struct bh_cuda_kernels *kernels, struct bh_cuda_fault *fault)
{
	const struct bh_cuda_driver *driver = kernels->device->driver;
	CUresult result =
		driver->cuModuleGetFunction_(&kernels->merge, kernels->module, "bh_top_k_merge");
	char name[32];

	for (uint32_t i = 0; i < KERNELS * REALS && result == CUDA_SUCCESS; i++) {
		snprintf(name, sizeof(name), "bh_%s_%s", kernel_names[i / REALS],
			 i % REALS == BH_CUDA_FLOAT32 ? "f32" : "f64");
		result = driver->cuModuleGetFunction_(&kernels->functions[i / REALS][i % REALS],
						      kernels->module, name);
	}
	return bh_cuda_result(driver, result, "cuModuleGetFunction", fault);
}

/* Takes the kernels' place in the id: that of a call of the driver's says nothing of what cannot be done now. */
static bh_status not_loaded(const struct bh_cuda_device *device, bh_status status,
			    struct bh_cuda_fault *fault)
{
	const struct bh_cuda_fault cause = *fault;

	bh_cuda_fault(fault, status, "cuda.kernels",
		      "the plugin's kernels (code for compute capability 9.0, PTX for 7.5 and "
		      "later, CUDA %d.%d) "
		      "cannot be loaded on %s, capability %d.%d: %s",
		      CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10, device->name, device->major,
		      device->minor, cause.text);
	fault->result = cause.result;
	memcpy(fault->name, cause.name, sizeof(fault->name));
	return status;
}

bh_status bh_cuda_kernels_new(const struct bh_cuda_device *device,
			      struct bh_cuda_kernels **ret_kernels, struct bh_cuda_fault *fault)
{
	const struct bh_cuda_driver *driver = device->driver;
	struct bh_cuda_kernels *kernels;
	CUresult result;
	bh_status st;

	if (bh_cuda_fatbin_size == 0)
		return bh_cuda_fault(
			fault, -ENOSYS, "cuda.kernels",
			"this build has no kernels of its own, as configure found no nvcc: "
			"build with the CUDA toolkit's compiler, or load a module");
	kernels = calloc(1, sizeof(*kernels));
	if (!kernels)
		return bh_cuda_fault(fault, -ENOMEM, "cuda.kernels", "no memory");
	kernels->device = device;
	result = driver->cuModuleLoadDataEx_(&kernels->module, bh_cuda_fatbin, 0, NULL, NULL);
	st = bh_cuda_result(driver, result, "cuModuleLoadDataEx", fault);
	if (st == 0) {
		st = find_functions(kernels, fault);
		if (st < 0)
			(void)driver->cuModuleUnload_(kernels->module);
	}
	if (st < 0) {
		free(kernels);
		return not_loaded(device, st, fault);
	}
	pthread_mutex_init(&kernels->lock, NULL);
	*ret_kernels = kernels;
	return 0;
}

void bh_cuda_kernels_free(struct bh_cuda_kernels *kernels, bool alive)
{
	const struct bh_cuda_driver *driver;

	if (!kernels)
		return;
	driver = kernels->device->driver;
	for (struct slab *slab = kernels->slabs, *next; slab; slab = next) {
		next = slab->next;
		if (alive) {
			(void)driver->cuMemHostUnregister_(slab->host);
			(void)driver->cuMemFree_(slab->device);
		}
		free(slab->host);
		free(slab);
	}
	if (alive)
		(void)driver->cuModuleUnload_(kernels->module);
	pthread_mutex_destroy(&kernels->lock);
	free(kernels);
}

/* ---- launching --------------------------------------------------------------------------------- */

static CUresult launch(const struct bh_cuda_kernels *kernels, CUfunction function, CUstream stream,
		       uint64_t blocks, void **args)
{
	return kernels->device->driver->cuLaunchKernel_(
		function, (unsigned)blocks, 1, 1, BH_KERNEL_THREADS, 1, 1, 0, stream, args, NULL);
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Of this device, at most so many at a time. */
static uint64_t blocks_for(const struct bh_cuda_kernels *kernels, uint64_t wanted)
{
	return least(wanted, (uint64_t)kernels->device->multiprocessors * BLOCKS_EACH);
}

static CUresult launch_each(const struct bh_cuda_kernels *kernels, enum kernel kernel,
			    CUstream stream, enum bh_cuda_real real, uint64_t n, void **args)
{
	return launch(kernels, kernels->functions[kernel][real], stream,
		      blocks_for(kernels, ceil_div(n, BH_KERNEL_THREADS)), args);
}

/* A number in the arrays' type, where a launch takes it from. */
union number {
	float f32;
	double f64;
};

static union number number_of(enum bh_cuda_real real, double value)
{
	union number number = { .f64 = value };

	if (real == BH_CUDA_FLOAT32)
		number.f32 = (float)value;
	return number;
}

CUresult bh_cuda_fill(const struct bh_cuda_kernels *kernels, CUstream stream,
		      enum bh_cuda_real real, CUdeviceptr out, double value, uint64_t n)
{
	union number number = number_of(real, value);

	return launch_each(kernels, KERNEL_FILL, stream, real, n, (void *[]){ &out, &number, &n });
}

CUresult bh_cuda_scale(const struct bh_cuda_kernels *kernels, CUstream stream,
		       enum bh_cuda_real real, CUdeviceptr y, double a, uint64_t n)
{
	union number number = number_of(real, a);

	return launch_each(kernels, KERNEL_SCALE, stream, real, n, (void *[]){ &y, &number, &n });
}

CUresult bh_cuda_axpy(const struct bh_cuda_kernels *kernels, CUstream stream,
		      enum bh_cuda_real real, CUdeviceptr y, double a, CUdeviceptr x, uint64_t n)
{
	union number number = number_of(real, a);

	return launch_each(kernels, KERNEL_AXPY, stream, real, n,
			   (void *[]){ &y, &number, &x, &n });
}

CUresult bh_cuda_add(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr out, CUdeviceptr a, CUdeviceptr b, uint64_t n)
{
	return launch_each(kernels, KERNEL_ADD, stream, real, n, (void *[]){ &out, &a, &b, &n });
}

CUresult bh_cuda_mul(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr out, CUdeviceptr a, CUdeviceptr b, uint64_t n)
{
	return launch_each(kernels, KERNEL_MUL, stream, real, n, (void *[]){ &out, &a, &b, &n });
}

CUresult bh_cuda_matvec(const struct bh_cuda_kernels *kernels, CUstream stream,
			enum bh_cuda_real real, CUdeviceptr out, CUdeviceptr m, CUdeviceptr x,
			uint64_t rows, uint64_t columns)
{
	uint32_t lanes = columns >= COLUMNS_BLOCK  ? BH_KERNEL_THREADS
			 : columns >= COLUMNS_WARP ? LANES_WARP
						   : LANES_FEW;

	return launch(kernels, kernels->functions[KERNEL_MATVEC][real], stream,
		      blocks_for(kernels, ceil_div(rows, BH_KERNEL_THREADS / lanes)),
		      (void *[]){ &out, &m, &x, &rows, &columns, &lanes });
}

/* ---- scratch ------------------------------------------------------------------------------------ */

static void slab_fill_locked(struct bh_cuda_kernels *kernels, struct slab *slab, enum size size)
{
	for (uint32_t i = 0; i < sizes[size].at_once; i++) {
		struct bh_cuda_scratch *scratch = &slab->scratches[i];

		*scratch = (struct bh_cuda_scratch){
			.size = size,
			.device = slab->device + i * sizes[size].device,
			.host = (char *)slab->host + i * sizes[size].host,
			.next = kernels->free[size],
		};
		kernels->free[size] = scratch;
	}
	slab->next = kernels->slabs;
	kernels->slabs = slab;
}

/* The driver may block here, so nobody waits for it with the lock. */
static CUresult slab_new(const struct bh_cuda_kernels *kernels, enum size size,
			 struct slab **ret_slab)
{
	const struct bh_cuda_driver *driver = kernels->device->driver;
	size_t n = sizes[size].at_once, host = n * sizes[size].host;
	struct slab *slab = calloc(1, sizeof(*slab) + n * sizeof(slab->scratches[0]));
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (!slab)
		return result;
	/* Whole pages: registering concerns all of a page. */
	slab->host = aligned_alloc(4096, (host + 4095) / 4096 * 4096);
	if (!slab->host)
		goto undo_slab;
	memset(slab->host, 0, host);
	result = driver->cuMemAlloc_(&slab->device, n * sizes[size].device);
	if (result != CUDA_SUCCESS)
		goto undo_host;
	result = driver->cuMemHostRegister_(slab->host, host, 0);
	if (result != CUDA_SUCCESS)
		goto undo_device;
	*ret_slab = slab;
	return CUDA_SUCCESS;

undo_device:
	(void)driver->cuMemFree_(slab->device);
undo_host:
	free(slab->host);
undo_slab:
	free(slab);
	return result;
}

/* How many blocks look for the k best of n. */
static uint64_t top_k_blocks(const struct bh_cuda_kernels *kernels, uint64_t n, uint32_t k)
{
	uint64_t tiles = ceil_div(n, BH_KERNEL_TILE);

	return least(blocks_for(kernels, ceil_div(tiles, TILES_MIN)), CANDIDATES_MAX / k);
}

/* Adds those of `slab`, if there is one, first. NULL: none is free. */
static struct bh_cuda_scratch *take_free(struct bh_cuda_kernels *kernels, struct slab *slab,
					 enum size size)
{
	struct bh_cuda_scratch *scratch;

	pthread_mutex_lock(&kernels->lock);
	if (slab)
		slab_fill_locked(kernels, slab, size);
	scratch = kernels->free[size];
	if (scratch)
		kernels->free[size] = scratch->next;
	pthread_mutex_unlock(&kernels->lock);
	return scratch;
}

CUresult bh_cuda_scratch_take(struct bh_cuda_kernels *kernels, uint64_t n, uint32_t k,
			      struct bh_cuda_scratch **ret_scratch)
{
	/* What the blocks leave, and the best of those behind. */
	uint64_t entries = k ? top_k_blocks(kernels, n, k) * k + k : 0;
	enum size size = entries * sizeof(struct bh_kernel_ranked) <= sizes[SIZE_SMALL].device
				 ? SIZE_SMALL
				 : SIZE_LARGE;
	struct bh_cuda_scratch *scratch;
	struct slab *slab;
	CUresult result;

	scratch = take_free(kernels, NULL, size);
	if (!scratch) {
		result = slab_new(kernels, size, &slab);
		if (result != CUDA_SUCCESS)
			return result;
		scratch = take_free(kernels, slab, size);
	}
	*ret_scratch = scratch;
	return CUDA_SUCCESS;
}

void bh_cuda_scratch_give(struct bh_cuda_kernels *kernels, struct bh_cuda_scratch *scratch)
{
	pthread_mutex_lock(&kernels->lock);
	scratch->next = kernels->free[scratch->size];
	kernels->free[scratch->size] = scratch;
	pthread_mutex_unlock(&kernels->lock);
}

/* ---- reductions ----------------------------------------------------------------------------------- */

/* `args` begin with the place of the parts. */
static CUresult launch_parts(const struct bh_cuda_kernels *kernels, enum kernel kernel,
			     CUstream stream, enum bh_cuda_real real, uint64_t n, void **args,
			     struct bh_cuda_scratch *scratch)
{
	uint64_t blocks = least(ceil_div(n, BH_KERNEL_PART), BH_KERNEL_PARTS_MAX);
	CUresult result;

	args[0] = &scratch->device;
	scratch->count = (uint32_t)blocks;
	result = launch(kernels, kernels->functions[kernel][real], stream, blocks, args);
	if (result != CUDA_SUCCESS)
		return result;
	return kernels->device->driver->cuMemcpyDtoHAsync_(scratch->host, scratch->device,
							   blocks * sizeof(double), stream);
}

CUresult bh_cuda_sum(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr a, uint64_t n, struct bh_cuda_scratch *scratch)
{
	return launch_parts(kernels, KERNEL_SUM, stream, real, n, (void *[]){ NULL, &a, &n },
			    scratch);
}

CUresult bh_cuda_dot(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr a, CUdeviceptr b, uint64_t n, struct bh_cuda_scratch *scratch)
{
	return launch_parts(kernels, KERNEL_DOT, stream, real, n, (void *[]){ NULL, &a, &b, &n },
			    scratch);
}

CUresult bh_cuda_max(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr a, uint64_t n, struct bh_cuda_scratch *scratch)
{
	return launch_parts(kernels, KERNEL_MAX, stream, real, n, (void *[]){ NULL, &a, &n },
			    scratch);
}

/* Neumaier's, as in the kernels: what each addition loses is kept. */
double bh_cuda_sum_result(const struct bh_cuda_scratch *scratch)
{
	const double *parts = scratch->host;
	double sum = 0, lost = 0;

	for (uint32_t i = 0; i < scratch->count; i++) {
		double next = sum + parts[i];

		lost += fabs(sum) >= fabs(parts[i]) ? (sum - next) + parts[i]
						    : (parts[i] - next) + sum;
		sum = next;
	}
	return isfinite(sum) ? sum + lost : sum;
}

double bh_cuda_max_result(const struct bh_cuda_scratch *scratch)
{
	const double *parts = scratch->host;
	double best = parts[0];

	for (uint32_t i = 1; i < scratch->count; i++)
		if (parts[i] > best || isnan(parts[i]))
			best = parts[i];
	return best;
}

/* ---- the best ------------------------------------------------------------------------------------- */

CUresult bh_cuda_top_k(const struct bh_cuda_kernels *kernels, CUstream stream,
		       enum bh_cuda_real real, CUdeviceptr scores, uint64_t n, uint32_t k,
		       struct bh_cuda_scratch *scratch)
{
	const struct bh_cuda_driver *driver = kernels->device->driver;
	uint64_t blocks = top_k_blocks(kernels, n, k), candidates = blocks * k;
	CUdeviceptr best = scratch->device;
	CUresult result;

	scratch->count = k;
	result = launch(kernels, kernels->functions[KERNEL_TOP_K][real], stream, blocks,
			(void *[]){ &scores, &n, &k, &scratch->device });
	if (result != CUDA_SUCCESS)
		return result;
	if (blocks > 1) {
		best += candidates * sizeof(struct bh_kernel_ranked);
		result = launch(kernels, kernels->merge, stream, 1,
				(void *[]){ &scratch->device, &candidates, &k, &best });
		if (result != CUDA_SUCCESS)
			return result;
	}
	return driver->cuMemcpyDtoHAsync_(scratch->host, best, k * sizeof(struct bh_kernel_ranked),
					  stream);
}

static double score_of(uint64_t key)
{
	uint64_t bits = key >> 63 ? key ^ UINT64_C(1) << 63 : ~key;
	double score;

	memcpy(&score, &bits, sizeof(score));
	return score;
}

uint32_t bh_cuda_top_k_result(const struct bh_cuda_scratch *scratch, struct bh_cuda_ranked *best)
{
	const struct bh_kernel_ranked *ranked = scratch->host;
	uint32_t count = 0;

	for (; count < scratch->count && ranked[count].key != 0; count++)
		best[count] =
			(struct bh_cuda_ranked){ score_of(ranked[count].key), ranked[count].index };
	return count;
}
