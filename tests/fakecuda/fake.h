/* SPDX-License-Identifier: BSD-3-Clause */
/* fake - what the files of the double share.
 *
 * One lock guards all of it. Calls hold it between FAKE_BEGIN() and fake_leave(), but for waits; threads of
 * streams hold it but for what an operation does to memory. Handles are numbers, not pointers, so that a stale
 * one is found and never followed. */
#ifndef BH_TESTS_FAKECUDA_FAKE_H
#define BH_TESTS_FAKECUDA_FAKE_H

#include "tests/fakecuda/fakecuda.h"

#include <pthread.h>
#include <sys/types.h>

#define FAKE_DEVICES_MAX 16
#define FAKE_EXPORT __attribute__((visibility("default")))

/* ---- objects by number ----------------------------------------------------------------------------- */

enum fake_kind { FAKE_STREAM, FAKE_EVENT, FAKE_MODULE, FAKE_FUNCTION, FAKE_POOL };
#define FAKE_KINDS 5

/* First member of each. */
struct fake_object {
	enum fake_kind kind;
	uintptr_t handle;
	struct fake_context *ctx;
	struct fake_object *next; /* in its bucket */
};
/* The lock is held. */
void fake_object_add(struct fake_object *object, enum fake_kind kind, struct fake_context *ctx);
void fake_object_remove(struct fake_object *object);
/* NULL: there is no such object, or no more; then it is reported when the number was one once. */
void *fake_object_find(const void *handle, enum fake_kind kind);
/* Calls fn for each of them; fn may remove the one that it is given. */
void fake_object_each(enum fake_kind kind, struct fake_context *ctx,
		      void (*fn)(struct fake_object *object, void *user), void *user);

/* ---- devices and contexts ------------------------------------------------------------------------ */

struct fake_allocation {
	CUdeviceptr base;
	size_t size;	 /* asked for */
	size_t reserved; /* addresses taken, a guard behind it included */
	size_t charged;	 /* of the device's memory */
	uint64_t id;
	struct fake_pool *pool; /* NULL: cuMemAlloc */
	bool freeing;		/* cuMemFreeAsync has been called */
	struct fake_allocation *next;
};

struct fake_context {
	struct fake_device *device;
	uint32_t refs; /* 0: not there */
	CUresult sticky;
	struct fake_stream *legacy, *per_thread; /* while there */
	uint32_t draining;			 /* streams that were destroyed with work in them */
	bool peers[FAKE_DEVICES_MAX];		 /* whose memory its kernels may use */
};

struct fake_device {
	int index; /* among all; not the ordinal */
	unsigned char uuid[16];
	char pci[16];
	size_t total, used; /* bytes */
	struct fake_context primary;
	char *base;  /* addresses of its memory: not accessible */
	char *alias; /* the same memory, for the double */
	size_t arena;
	size_t next; /* offset where the search for free addresses begins: none is used again soon */
	int memory_fd;
	struct fake_allocation *allocations; /* by address */
};

struct fake {
	pthread_mutex_t lock;
	pthread_cond_t progress; /* something ended, or died */
	bool initialized;
	int version;
	int n_devices, n_visible;
	bool peer;
	struct fake_device devices[FAKE_DEVICES_MAX];
	struct fake_device *visible[FAKE_DEVICES_MAX];
	struct fakecuda_counts counts;
};
extern struct fake fake;

struct fake_device *fake_device_get(CUdevice device); /* NULL: no such */
int fake_device_ordinal(const struct fake_device *device);
int fake_device_attribute(const struct fake_device *device, CUdevice_attribute attribute);
void fake_devices_setup(void);	     /* environment, at the first call */
CUresult fake_devices_visible(void); /* at cuInit */

/* The calling thread's; NULL: none. */
struct fake_context *fake_context_current(void);
bool fake_context_known(const struct fake_context *ctx);
/* All that is queued is dropped, who waits is woken. */
void fake_context_kill(struct fake_context *ctx, CUresult code);

/* ---- one call --------------------------------------------------------------------------------------- */

enum fake_needs { FAKE_NOTHING, FAKE_INIT, FAKE_CONTEXT };

struct fake_call {
	const char *name;
	int64_t began_ns;
	bool locked;
	CUresult fault; /* what its context dies of when it has succeeded */
	struct fake_context *ctx;
	const char *remark; /* static; for the log */
};
/* CUDA_SUCCESS: the lock is held, call->ctx is the current context if one was needed. Else return fake_leave(). */
CUresult fake_enter(struct fake_call *call, const char *name, enum fake_needs needs);
CUresult fake_leave(struct fake_call *call, CUresult result);
/* cuda.h renames functions: `name` is taken before that. */
#define FAKE_BEGIN(name, needs)                                                                    \
	struct fake_call call;                                                                     \
	CUresult result = fake_enter(&call, #name, needs);                                         \
	if (result != CUDA_SUCCESS)                                                                \
	return fake_leave(&call, result)
#define FAKE_END(result) return fake_leave(&call, (result))

int64_t fake_now_ns(void);
/* The lock is not held. On a stream's thread, before each operation; ends early when its context has died. */
void fake_before_op(const struct fake_context *ctx);
/* A line in the log that is no call. Any thread, lock or not. */
void fake_note(const char *function, const char *remark);
/* What no sound program does. */
void fake_violation(const char *function, const char *remark);
/* Threads of streams, for which calls are forbidden. */
extern _Thread_local bool fake_is_stream_thread;

/* ---- memory ----------------------------------------------------------------------------------------- */

/* The memory behind [address, address + size), which must lie in one live allocation of a device. NULL: it does not. */
void *fake_memory_of_device(CUdeviceptr address, size_t size, struct fake_device **ret_device);
/* The address belongs to a device, whether something lives there or not. */
bool fake_memory_is_device(CUdeviceptr address);
/* Host memory that the driver knows: registered, or of cuMemHostAlloc. */
bool fake_memory_is_pinned(const void *address, size_t size);
void fake_memory_free(struct fake_device *device, struct fake_allocation *allocation);
/* The context goes: so does all of its memory. */
void fake_memory_drop(struct fake_context *ctx);
void fake_pool_drop(struct fake_object *object, void *user);
/* A synchronisation: pools give back what they need not keep. */
void fake_pools_release(struct fake_context *ctx);

/* ---- streams ---------------------------------------------------------------------------------------- */

/* A point in a stream's order. */
struct fake_marker {
	uint32_t refs;
	bool done;
	int64_t done_ns;
};
struct fake_op {
	/* Lock not held. Anything but CUDA_SUCCESS kills the context. */
	CUresult (*run)(struct fake_op *op, struct fake_context *ctx);
	/* Lock held, when it has run or has been dropped: frees it. NULL: free(). */
	void (*end)(struct fake_op *op, bool ran);
	struct fake_marker *awaits, *reaches; /* either may be NULL */
	struct fake_op *next;
};
struct fake_stream *fake_stream_find(struct fake_context *ctx, CUstream handle);
struct fake_context *fake_stream_context(const struct fake_stream *stream);
/* Queues it; takes it over. The lock is held. */
void fake_stream_push(struct fake_stream *stream, struct fake_op *op);
/* Waits until all that is queued now is over. The lock is held, and given up meanwhile. */
CUresult fake_stream_wait(struct fake_stream *stream);
/* The same of all streams of the context. */
CUresult fake_context_wait(struct fake_context *ctx);
CUresult fake_streams_begin(struct fake_context *ctx);
void fake_streams_end(struct fake_context *ctx);
void fake_modules_end(struct fake_context *ctx);

#endif
