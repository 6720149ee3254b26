/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels - the host's side of kernels.cu: loads it into a context, chooses the launch geometry, queues.
 *
 * Nothing here waits for the device. What a reduction or top_k finds is copied into pinned memory of a scratch,
 * from where *_result() reads it once all that was queued has been done. The caller has checked sizes, types,
 * and that the arrays are C-contiguous device memory of the context, aligned to their elements; of what may lie
 * where, the rules are those of plugins/stream/kernels.h.
 *
 * Thread: any with the context current; new() and free() the supervisor. One lock guards the free scratches; the
 *         driver is called without it.
 * Owns:   the module of the kernels, and scratch memory: both until free(). */
#ifndef BH_PLUGINS_CUDA_KERNELS_H
#define BH_PLUGINS_CUDA_KERNELS_H

#include "plugins/cuda/device.h"
#include "plugins/cuda/kernels_shared.h"

struct bh_cuda_kernels;

/* What nvcc made of kernels.cu; size 0 in a build without nvcc. */
extern const unsigned char bh_cuda_fatbin[];
extern const size_t bh_cuda_fatbin_size;

enum bh_cuda_real { BH_CUDA_FLOAT32, BH_CUDA_FLOAT64 };

/* -ENOSYS: built without them; else the driver cannot load them on this device: the id is cuda.kernels and the text
 * says why. Leaves nothing behind when it fails. May take seconds where the driver compiles them. */
bh_status bh_cuda_kernels_new(const struct bh_cuda_device *device,
			      struct bh_cuda_kernels **ret_kernels, struct bh_cuda_fault *fault);
/* All that was queued is over. Not `alive`: the context has died; the driver is not called, what is in the context
 * goes with it, and pages that it has registered stay its own whatever becomes of their addresses here. NULL is
 * fine. */
void bh_cuda_kernels_free(struct bh_cuda_kernels *kernels, bool alive);

/* ---- element by element: `n` elements, at least 1 ------------------------------------------------ */

CUresult bh_cuda_fill(const struct bh_cuda_kernels *kernels, CUstream stream,
		      enum bh_cuda_real real, CUdeviceptr out, double value, uint64_t n);
CUresult bh_cuda_scale(const struct bh_cuda_kernels *kernels, CUstream stream,
		       enum bh_cuda_real real, CUdeviceptr y, double a, uint64_t n);
CUresult bh_cuda_axpy(const struct bh_cuda_kernels *kernels, CUstream stream,
		      enum bh_cuda_real real, CUdeviceptr y, double a, CUdeviceptr x, uint64_t n);
CUresult bh_cuda_add(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr out, CUdeviceptr a, CUdeviceptr b, uint64_t n);
CUresult bh_cuda_mul(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr out, CUdeviceptr a, CUdeviceptr b, uint64_t n);
/* out[rows] = m[rows, columns] x[columns]; rows at least 1. Sums are doubles. */
CUresult bh_cuda_matvec(const struct bh_cuda_kernels *kernels, CUstream stream,
			enum bh_cuda_real real, CUdeviceptr out, CUdeviceptr m, CUdeviceptr x,
			uint64_t rows, uint64_t columns);

/* ---- what gives a result: queued with a scratch of its own ------------------------------------------ */

struct bh_cuda_scratch;

/* `k` 0: has room for any reduction; else for top_k of n scores. */
CUresult bh_cuda_scratch_take(struct bh_cuda_kernels *kernels, uint64_t n, uint32_t k,
			      struct bh_cuda_scratch **ret_scratch);
/* What was queued with it is over, or the context has died. */
void bh_cuda_scratch_give(struct bh_cuda_kernels *kernels, struct bh_cuda_scratch *scratch);

/* `n` at least 1. Sums and products are doubles, compensated: the error is at most 64 times 2^-53 times the sum
 * of the magnitudes, and the same on every device. When one fails, what it had queued before may still run. */
CUresult bh_cuda_sum(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr a, uint64_t n, struct bh_cuda_scratch *scratch);
CUresult bh_cuda_dot(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr a, CUdeviceptr b, uint64_t n, struct bh_cuda_scratch *scratch);
double bh_cuda_sum_result(const struct bh_cuda_scratch *scratch); /* of sum and dot */
CUresult bh_cuda_max(const struct bh_cuda_kernels *kernels, CUstream stream, enum bh_cuda_real real,
		     CUdeviceptr a, uint64_t n, struct bh_cuda_scratch *scratch);
double bh_cuda_max_result(const struct bh_cuda_scratch *scratch);

struct bh_cuda_ranked {
	double score;
	uint64_t index;
};

/* `k` 1 … BH_KERNEL_K_MAX. */
CUresult bh_cuda_top_k(const struct bh_cuda_kernels *kernels, CUstream stream,
		       enum bh_cuda_real real, CUdeviceptr scores, uint64_t n, uint32_t k,
		       struct bh_cuda_scratch *scratch);
/* Fills `best`, which has room for k; returns how many there are. */
uint32_t bh_cuda_top_k_result(const struct bh_cuda_scratch *scratch, struct bh_cuda_ranked *best);

#endif
