/* SPDX-License-Identifier: BSD-3-Clause */
/* memory - device memory, pinned host memory, copies between them, and the end of both.
 *
 * Device memory belongs to its buffer: when the last reference to that goes it is freed, by the reaper. So is what
 * alloc_host() has pinned; a pin() lasts until unpin(). Where the device has pools memory is stream-ordered, on a
 * stream of its own: neither waits for kernels.
 *
 * Thread: any of the pool's, with the context current, as each function says. Two locks: `lock` guards the
 *         lists and is not held while the driver is called; `pinning` is held while host memory is pinned or
 *         unpinned, which blocks: workers and the reaper alone take it. Neither is taken under the GIL
 *         (GIL-9). */
#ifndef BH_PLUGINS_CUDA_MEMORY_H
#define BH_PLUGINS_CUDA_MEMORY_H

#include "plugins/cuda/cuda.h"

/* `keep`: bytes of freed memory that the pool keeps for later. Thread: a supervisor. */
bh_status bh_cuda_memory_new(struct bh_cuda *cuda, uint64_t keep,
			     struct bh_cuda_memory **ret_memory, struct bh_cuda_fault *fault);

/* What is left when the section ends. */
struct bh_cuda_left {
	uint32_t
		buffers; /* whose memory somebody may still use: it stays for the rest of the process */
	uint64_t bytes;
	uint32_t pins;
};
/* After all threads. `lost`: works have never ended, so nothing is freed, for the driver may wait for them; all
 * memory is taken back from Python in any case. The memory object goes unless something is left. */
void bh_cuda_memory_free(struct bh_cuda_memory *memory, bool lost, struct bh_cuda_left *ret_left);

/* Frees what has been let go of. `wait`: for another thread that is doing so, and for the device where other code
 * may have queued work on the memory; else such memory is left to the reaper, and false says that somebody else
 * is at it. */
bool bh_cuda_memory_reap(struct bh_cuda_memory *memory, bool wait);
/* Brings the metrics of the device's memory up to date. */
void bh_cuda_memory_tell(struct bh_cuda_memory *memory);

#endif
