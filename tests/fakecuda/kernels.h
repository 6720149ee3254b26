/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels - kernels of the double: C functions by the names of entries in PTX, cubins or fatbins.
 *
 * One call of run() is a whole launch: it does what all threads of all blocks would have done. To add a kernel
 * write its function in kernels.c, or in a file of its own whose table fake_kernel_tables in kernels.c names.
 *
 * Thread: a stream's. The lock is not held. No function of the driver may be called. */
#ifndef BH_TESTS_FAKECUDA_KERNELS_H
#define BH_TESTS_FAKECUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#define FAKE_PARAMS_MAX 32

struct fake_context;

struct fake_launch {
	const char *name;
	unsigned int grid[3], block[3];
	unsigned int shared; /* bytes of dynamic shared memory */
	unsigned int n_params;
	uint32_t offset[FAKE_PARAMS_MAX], size[FAKE_PARAMS_MAX]; /* within `params` */
	const unsigned char *params;
	struct fake_context *ctx;
};

struct fake_kernel {
	const char *name;
	/* CUDA_SUCCESS, or what the context dies of: CUDA_ERROR_ILLEGAL_ADDRESS … */
	int (*run)(const struct fake_launch *launch);
	/* Size of each parameter, up to a 0, aligned as C aligns numbers: for images of which it cannot be
	 * read. PTX says it itself, and must agree. */
	unsigned char params[FAKE_PARAMS_MAX];
};
/* Ends with a row without a name. */
extern const struct fake_kernel *const fake_kernel_tables[];

/* Parameter `index`, which must have that size: else a CUDA_ERROR_LAUNCH_FAILED is due, and false comes back. */
bool fake_param(const struct fake_launch *launch, unsigned int index, void *ret_value, size_t size);
/* The memory at `address` for the double's use, all `size` bytes of it. NULL: that is no memory this kernel may
 * use, CUDA_ERROR_ILLEGAL_ADDRESS is due. A size of 0 gives a pointer that is not to be followed. */
void *fake_pointer(const struct fake_launch *launch, CUdeviceptr address, size_t size);
/* Takes `ns`; ends early, with false, when the context has died. */
bool fake_spin(const struct fake_launch *launch, int64_t ns);

#endif
