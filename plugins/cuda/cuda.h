/* SPDX-License-Identifier: BSD-3-Clause */
/* cuda - what the plugin's own files share: the state of one section, and what each op needs.
 *
 * One struct bh_cuda a section of the manifest; several may be on one device, or on several, over one copy of
 * this library: there is no other state than the driver's table.
 *
 * Thread: as each function says. GIL: only `import_memory` takes it, at the site `import`.
 * Owns:   device, flight, streams, events, modules and memory, from open() to close(); close() releases them
 *         in the reverse order of their making, on the pool's threads, before the driver's own exit handler
 *         (EXIT-2). */
#ifndef BH_PLUGINS_CUDA_CUDA_H
#define BH_PLUGINS_CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "plugins/cuda/device.h"
#include "plugins/cuda/flight.h"

enum bh_cuda_site { BH_CUDA_SITE_IMPORT };

/* Progress threads: one watches the device, the other frees memory, which may block. */
enum bh_cuda_thread { BH_CUDA_THREAD_FLIGHT, BH_CUDA_THREAD_REAPER };
#define BH_CUDA_THREADS 2u

enum bh_cuda_metric {
	BH_CUDA_METRIC_IN_FLIGHT,	/* gauge: works under way */
	BH_CUDA_METRIC_ALLOCATED_BYTES, /* gauge: device memory of this section's buffers */
	BH_CUDA_METRIC_BUFFERS,		/* gauge */
	BH_CUDA_METRIC_PINNED_BYTES,	/* gauge: host memory that this section has pinned */
	BH_CUDA_METRIC_DEVICE_USED,	/* gauge: bytes used of the device, by anybody */
	BH_CUDA_METRIC_DEVICE_TOTAL,	/* gauge */
	BH_CUDA_METRIC_LAUNCHES,	/* counter */
	BH_CUDA_METRIC_COPIED_IN,	/* counter: bytes, host to device */
	BH_CUDA_METRIC_COPIED_OUT,	/* counter: bytes, device to host */
	BH_CUDA_METRIC_COPIED_WITHIN,	/* counter: bytes, between devices or on one */
	BH_CUDA_METRIC_ERRORS,		/* counter: ops that the driver failed */
	BH_CUDA_METRICS
};

struct bh_cuda_memory;	/* memory.h: device memory, pinned memory, and their end */
struct bh_cuda_handles; /* handles.h: streams, events, modules by number */
struct bh_cuda_math;	/* math.h: the plugin's own kernels */
struct bh_cuda_reaper;	/* reaper.h: what is released away from those who have let go of it */
struct bh_cuda_held;	/* handles.h: one of these, in use */

/* I: fixed after open(). A: atomic. */
struct bh_cuda {
	struct bh_context *ctx;		    /* I */
	const struct bh_services *services; /* I */
	struct bh_cuda_device device;	    /* I */
	struct bh_cuda_flight *flight;	    /* I */
	struct bh_cuda_reaper *reaper;	    /* I */
	struct bh_cuda_memory *memory;	    /* I */
	struct bh_cuda_handles *handles;    /* I */
	struct bh_cuda_math *math;	    /* I */
	CUstream stream; /* I: what an op without a stream uses; never the legacy one */
	_Atomic int
		dead; /* A: CUresult that killed the context; relaxed: a hint, the driver says the same */
	_Atomic uint64_t activity; /* A: ops begun; relaxed: whether there is work */
	_Atomic uint32_t threads;  /* A: bit n: progress thread n has come; relaxed */
	struct bh_cuda *next_kept; /* of those that close() could not let go */
};

/* ---- one run of an op -------------------------------------------------------------------------- */

#define BH_CUDA_HELD_MAX 4u /* streams, events and modules that one op may use */

struct bh_cuda_call {
	struct bh_cuda *cuda;
	struct bh_task *task;
	const char *op;
	/* What the op has looked up by number: not destroyed before bh_cuda_call_end(), whoever closes it
	 * meanwhile; a pending that is made later holds it too, until it ends. */
	struct bh_cuda_held *held[BH_CUDA_HELD_MAX];
	uint32_t n_held;
};

/* An op declares `BH_CUDA_CALL call;`, so that what it has looked up is let go on every way out. */
#define BH_CUDA_CALL struct bh_cuda_call __attribute__((cleanup(bh_cuda_call_end)))
void bh_cuda_call_end(struct bh_cuda_call *call);

/* First thing in each op. -EIO: the context is dead, -ENOSYS: this is a forked child; the task has been told.
 * `call` is filled in any case. */
bh_status bh_cuda_call_begin(struct bh_cuda_call *call, void *state, struct bh_task *task,
			     const char *op);
/* The task fails with `id` and facts; returns `status`. */
bh_status bh_cuda_refuse(const struct bh_cuda_call *call, const char *id, const char *parameter,
			 const char *given, const char *accepted);
bh_status bh_cuda_fail_by(const struct bh_cuda_call *call, const struct bh_cuda_fault *fault);
/* 0 for CUDA_SUCCESS. Else the task fails with what the driver says of the call `what`, and a sticky result
 * fails the pool (bh_cuda_note_result). */
bh_status bh_cuda_check(const struct bh_cuda_call *call, CUresult result, const char *what);
/* Looks at a result that no task is told of: a sticky one kills the section, once: report_failed() with the
 * cause, all works under way end with it. Any thread. */
void bh_cuda_note_result(struct bh_cuda *cuda, CUresult result, const char *what);

/* A task that awaits the device. Allocate `size` bytes (a struct that begins with it), queue, and post. */
struct bh_cuda_pending {
	struct bh_cuda_work work;
	struct bh_cuda *cuda;
	uint64_t task_id;
	const char *op;
	/* Set before post() where not all could be queued: what was is awaited, then the task fails with this. */
	CUresult failed;
	/* NULL: the task ends without a value. Else called when all is done, on done()'s thread: fills `value`,
	 * whose text and lists stay valid until cleanup(); a buffer's reference passes over. */
	bh_status (*give)(struct bh_cuda_pending *pending, struct bh_value *value);
	/* NULL is fine. Called last, however it ended: frees what the op kept beside the struct itself. */
	void (*cleanup)(struct bh_cuda_pending *pending);
	/* Of ops.c: see struct bh_cuda_call. */
	struct bh_cuda_held *held[BH_CUDA_HELD_MAX];
	uint32_t n_held;
};
/* NULL: the task has been told. The struct is zeroed but for its first members. Holds what `call` has looked up
 * so far: so look up first. */
struct bh_cuda_pending *bh_cuda_pending_new(const struct bh_cuda_call *call, size_t size);
/* Instead of post(): nothing was queued, or what was queued has been waited for. Calls cleanup(). */
void bh_cuda_pending_drop(struct bh_cuda_pending *pending);
/* After all has been queued on `stream`: BH_PENDING. The task ends when the device is done: its arguments are
 * held by the host until then. */
bh_status bh_cuda_post(struct bh_cuda_pending *pending, CUstream stream);

/* ---- operands ------------------------------------------------------------------------------------ */

/* Memory that an op was given. */
struct bh_cuda_operand {
	const char *name; /* the parameter's */
	struct bh_buffer_info info;
	struct bh_buffer *buffer;
	bool on_device; /* of any device */
	CUdeviceptr address;
};
/* Any memory, the host's or any device's. -EINVAL (told): the host does not know it. */
bh_status bh_cuda_operand(const struct bh_cuda_call *call, const char *name,
			  const struct bh_value *arg, struct bh_cuda_operand *ret_operand);
/* As above; -EINVAL (told) unless it is memory of this section's device. */
bh_status bh_cuda_device_operand(const struct bh_cuda_call *call, const char *name,
				 const struct bh_value *arg, struct bh_cuda_operand *ret_operand);
/* A parameter `stream:handle=none`: none is the section's own. -ENOENT (told): no such stream, or it has been
 * closed. Modules and events: bh_cuda_handle_of() in handles.h. */
bh_status bh_cuda_stream_of(struct bh_cuda_call *call, const struct bh_value *arg,
			    CUstream *ret_stream);

/* ---- the tables ------------------------------------------------------------------------------------ */

/* Each file has a table of its ops; cuda.c joins them, so their lengths are known here. */
#define BH_CUDA_MEMORY_OPS 9u
#define BH_CUDA_STREAM_OPS 6u
#define BH_CUDA_MODULE_OPS 4u
#define BH_CUDA_KERNEL_OPS 10u

/* info alloc free alloc_host pin unpin copy memset import_memory */
extern const struct bh_op bh_cuda_memory_ops[BH_CUDA_MEMORY_OPS];
/* stream stream_close record wait synchronize event_close */
extern const struct bh_op bh_cuda_stream_ops[BH_CUDA_STREAM_OPS];
/* module module_file module_close launch */
extern const struct bh_op bh_cuda_module_ops[BH_CUDA_MODULE_OPS];
/* fill scale axpy add mul sum max dot matvec top_k */
extern const struct bh_op bh_cuda_kernel_ops[BH_CUDA_KERNEL_OPS];

#endif
