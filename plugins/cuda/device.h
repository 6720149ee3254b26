/* SPDX-License-Identifier: BSD-3-Clause */
/* device - which device a section of the manifest means, and its primary context.
 *
 * The primary context is the one that the CUDA runtime uses too: pointers of PyTorch and CuPy are valid in
 * it. It is retained from open to close and made current on every thread of the pool by bh_cuda_device_enter()
 * (H12). */
#ifndef BH_PLUGINS_CUDA_DEVICE_H
#define BH_PLUGINS_CUDA_DEVICE_H

#include "plugins/cuda/driver.h"

struct bh_cuda_device {
	const struct bh_cuda_driver *driver;
	CUdevice device;
	CUcontext context;
	int32_t ordinal; /* as the driver counts them, CUDA_VISIBLE_DEVICES considered */
	char name[96];
	char uuid[48];	  /* "GPU-…", as nvidia-smi writes it */
	char pci[32];	  /* "0000:3b:00.0" */
	int major, minor; /* compute capability */
	int multiprocessors;
	int max_threads; /* of a block */
	int max_block[3], max_grid[3];
	int max_shared;	 /* bytes of shared memory a block, opted in */
	bool has_pools;	 /* stream-ordered allocation */
	uint64_t memory; /* bytes */
};

/* `wanted`: "0", "GPU-…" or any unambiguous beginning of it, "0000:3b:00.0" (or without the domain). -ENODEV: there
 * is no such device; -EINVAL: not one of these forms (id cuda.device): the text lists those that are there.
 * Retains the primary context. Leaves nothing behind when it fails. Thread: a supervisor. */
bh_status bh_cuda_device_open(const struct bh_cuda_driver *driver, const char *wanted,
			      struct bh_cuda_device *ret_device, struct bh_cuda_fault *fault);
/* Releases the context. All that was made in it has been released before. */
void bh_cuda_device_close(struct bh_cuda_device *device);
/* Makes the context current on the calling thread, or none. */
bh_status bh_cuda_device_enter(const struct bh_cuda_device *device, struct bh_cuda_fault *fault);
void bh_cuda_device_leave(const struct bh_cuda_device *device);

#endif
