/* SPDX-License-Identifier: BSD-3-Clause */
/* reaper - what is released away from those who have let go of it: the driver may block there, and who lets go
 * may have the GIL, or be the thread that watches the device.
 *
 * Thread: push() any, wait-free, no lock; run() any of the pool's with the context current. */
#ifndef BH_PLUGINS_CUDA_REAPER_H
#define BH_PLUGINS_CUDA_REAPER_H

#include <stdbool.h>

#include <bulkhead/plugin.h>

struct bh_cuda_reaper;

/* Embedded in what is to be released. */
struct bh_cuda_reap {
	void (*reap)(struct bh_cuda_reap *reap); /* once, in run(); frees it */
	struct bh_cuda_reap *next;
};

bh_status bh_cuda_reaper_new(struct bh_cuda_reaper **ret_reaper);
/* Nothing may be pushed any more. False: somebody has not left push() yet; it stays. */
bool bh_cuda_reaper_free(struct bh_cuda_reaper *reaper);
void bh_cuda_reaper_push(struct bh_cuda_reaper *reaper, struct bh_cuda_reap *reap);
/* Readable when there is something to do. */
int bh_cuda_reaper_descriptor(const struct bh_cuda_reaper *reaper);
/* Releases what has been pushed before. */
void bh_cuda_reaper_run(struct bh_cuda_reaper *reaper);

#endif
