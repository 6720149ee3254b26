/* SPDX-License-Identifier: BSD-3-Clause */
/* launch - the op that launches a kernel of a module: its grid, its block and its arguments, checked.
 *
 * Thread: workers. */
#ifndef BH_PLUGINS_CUDA_LAUNCH_H
#define BH_PLUGINS_CUDA_LAUNCH_H

#include "plugins/cuda/cuda.h"

/* The `user` of a module's handle: what has been found out of its kernels. One block, for free(). NULL: no memory. */
struct bh_cuda_module;
struct bh_cuda_module *bh_cuda_module_new(void);

#define BH_CUDA_LAUNCH_ARGS                                                                        \
	"module:handle name:str grid:list block:list args:list@ shared:int=0 stream:handle=none"
bh_status bh_cuda_op_launch(void *state, struct bh_task *task, const struct bh_value *args);

#endif
