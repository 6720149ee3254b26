/* SPDX-License-Identifier: BSD-3-Clause */
/* memory_private - what memory.c keeps, and what the ops over it ask of it. */
#ifndef BH_PLUGINS_CUDA_MEMORY_PRIVATE_H
#define BH_PLUGINS_CUDA_MEMORY_PRIVATE_H

#include "plugins/cuda/memory.h"
#include "plugins/cuda/reaper.h"

/* Pages that are pinned. */
struct bh_cuda_range {
	uintptr_t begin, end;
	uint32_t n_pins; /* P: records on it */
	struct bh_cuda_range *next;
};

/* A buffer's device memory, in its slot, or a pin (`range`), in the slot or in a list. I: fixed. M: under `lock`.
 * P: under `pinning`. */
struct bh_cuda_record {
	struct bh_cuda_reap reap;      /* first */
	struct bh_cuda_memory *memory; /* I */
	struct bh_buffer *buffer; /* I: a reference when it `keeps`; else the slot goes with it */
	bool keeps;		  /* I: a pin() */
	CUdeviceptr address;	  /* I */
	uint64_t bytes;		  /* I */
	struct bh_cuda_range *range;	      /* I: NULL: device memory */
	uint32_t n_pins;		      /* P: pin() less unpin() */
	bool stays;			      /* R, then the end's: for the rest of the process */
	struct bh_cuda_record *newer, *older; /* M */
};

struct bh_cuda_memory {
	struct bh_cuda *cuda;		/* I */
	CUmemoryPool pool;		/* I: NULL: the device has none */
	CUstream stream;		/* I: what is allocated and freed is in its order */
	pthread_mutex_t lock;		/* a leaf */
	struct bh_cuda_record *records; /* M */
	pthread_mutex_t pinning;	/* taken before `lock` */
	struct bh_cuda_range *ranges;	/* P */
	pthread_mutex_t reaping;	/* taken before `pinning`: one round at a time */
	bool may_wait; /* R: under `reaping`: this round is on a thread that may wait for the device */
	bool synchronized; /* R: the device has been waited for in this round */
};

/* New device memory in a new buffer, which the record's `buffer` refers to: the reference is the caller's. `info` as
 * for buffer_wrap(), without data. Usable in the order of memory->stream, from now on. Fails: the task is told. */
bh_status bh_cuda_memory_alloc(const struct bh_cuda_call *call, const struct bh_buffer_info *info,
			       uint64_t bytes, struct bh_cuda_record **ret_record);
/* The op free(): of memory of this section that nobody else uses. */
bh_status bh_cuda_memory_free_now(const struct bh_cuda_call *call, struct bh_buffer *buffer,
				  const struct bh_buffer_info *info);
/* `keep`: until unpin() of the same bytes; else with the last reference to `buffer`. */
bh_status bh_cuda_memory_pin(const struct bh_cuda_call *call, struct bh_buffer *buffer,
			     const struct bh_buffer_info *info, bool keep);
bh_status bh_cuda_memory_unpin(const struct bh_cuda_call *call, const struct bh_buffer_info *info);

#endif
