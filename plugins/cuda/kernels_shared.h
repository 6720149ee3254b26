/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_shared - what kernels.cu and its launchers agree on. C and CUDA C++; the test double's twins of the
 * kernels read it too. */
#ifndef BH_PLUGINS_CUDA_KERNELS_SHARED_H
#define BH_PLUGINS_CUDA_KERNELS_SHARED_H

#include <stdint.h>

/* Threads of every block. A power of two. */
#define BH_KERNEL_THREADS 256u
/* Elements that a thread of an element-wise kernel reads before it writes the first. */
#define BH_KERNEL_UNROLL 4u

/* A reduction leaves one double a block, at most so many. The number of blocks comes from the length alone,
 * so that a sum is the same on every device. */
#define BH_KERNEL_PARTS_MAX 1024u
#define BH_KERNEL_PART 4096u /* elements from which on there is another block */
/* Terms that a thread adds up before it makes a compensated sum of them. */
#define BH_KERNEL_RUN 16u

/* top_k: scores that a block looks at together, and the most that it can be asked for. Both fit its list at
 * once. */
#define BH_KERNEL_TILE (4u * BH_KERNEL_THREADS)
#define BH_KERNEL_K_MAX 1024u
#define BH_KERNEL_LIST (BH_KERNEL_TILE + BH_KERNEL_K_MAX)

/* A score in a form that integers compare: of two scores the greater has the greater key, 0.0 and -0.0 have the
 * same one, and 0 is none at all. */
struct bh_kernel_ranked {
	uint64_t key;
	uint64_t index;
};

#endif
