/* SPDX-License-Identifier: BSD-3-Clause */
/* math - the state behind the ops of bh_cuda_kernel_ops: the plugin's kernels, loaded at their first use.
 *
 * Thread: new() and free() the supervisor, in open() and close(). */
#ifndef BH_PLUGINS_CUDA_MATH_H
#define BH_PLUGINS_CUDA_MATH_H

#include "plugins/cuda/cuda.h"

struct bh_cuda_math;

/* Loads nothing yet. The device is that of `cuda`, which outlives it. -ENOMEM. */
bh_status bh_cuda_math_new(struct bh_cuda *cuda, struct bh_cuda_math **ret_math);
/* After all threads and works. `alive`: see bh_cuda_kernels_free(). NULL is fine. */
void bh_cuda_math_free(struct bh_cuda_math *math, bool alive);

#endif
