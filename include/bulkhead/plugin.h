/* SPDX-License-Identifier: BSD-3-Clause */
/* bulkhead/plugin.h - the contract between the Bulkhead host and a plugin.
 *
 * A plugin is one shared object that exports one descriptor (`bh_plugin`, written with BH_PLUGIN)
 * and carries one ELF note, which the host reads before it runs any code of the object. It links to
 * nothing of the host: services arrive as a table of function pointers in open().
 *
 * Valid C11 and C++17 (designated initialisers in declaration order; in C++ they need C++20 or a
 * compiler that accepts them as an extension). Needs only <stddef.h>, <stdint.h>.
 *
 * Every struct that crosses begins with its size, or lies in a table that carries its rows' size.
 * Fields are only ever appended, and neither side reads past the other's size.
 *
 * Words: a `task` is one submitted run of an `op`; a `lane` is tasks that run in order, one at a
 * time; a `site` is a named reason to take the GIL. All text is UTF-8, NUL-terminated. */
#ifndef BULKHEAD_PLUGIN_H
#define BULKHEAD_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define BH_ABI_ASSERT static_assert
#else
#define BH_ABI_ASSERT _Static_assert
#endif

#define BH_ABI_MAJOR 1u
#define BH_ABI_MINOR 0u
/* What a plugin was built against: equal major, and a minor not newer than the host's (PLG-2). */
#define BH_ABI (BH_ABI_MAJOR << 16 | BH_ABI_MINOR)

#define BH_LABEL_MAX 32u   /* bytes of a label with its NUL; a label is [a-z][a-z0-9_-]* */
#define BH_VERSION_MAX 24u /* bytes of a version with its NUL */

/* 0, or a negative errno. BH_PENDING is what run() alone may return besides. */
typedef int32_t bh_status;
#define BH_PENDING ((bh_status)1)

struct bh_context; /* one opened plugin; valid until the process ends, even after close() */
struct bh_task;	   /* one accepted task; valid inside the callback that received it */
struct bh_buffer;  /* reference counted memory */
struct bh_object;  /* an opaque Python reference: hold it, call it, or drop it */

/* ---- facts: key and value on an error or a log line ------------------------------------------ */

enum bh_fact_kind { BH_FACT_STR = 0, BH_FACT_INT = 1 };

struct bh_fact {
	const char *key;   /* [a-z_]+; borrowed for the call */
	const char *text;  /* BH_FACT_STR; borrowed for the call; NULL reads as "" */
	int64_t number;	   /* BH_FACT_INT */
	uint32_t kind;	   /* enum bh_fact_kind */
	uint32_t reserved; /* 0 */
};

static inline struct bh_fact bh_fact_str(const char *key, const char *text)
{
	struct bh_fact fact = { key, text, 0, BH_FACT_STR, 0 };

	return fact;
}

static inline struct bh_fact bh_fact_int(const char *key, int64_t number)
{
	struct bh_fact fact = { key, NULL, number, BH_FACT_INT, 0 };

	return fact;
}

/* ---- values ---------------------------------------------------------------------------------- */

enum bh_type {
	BH_TYPE_NONE = 0,
	BH_TYPE_BOOL = 1,
	BH_TYPE_INT = 2,
	BH_TYPE_FLOAT = 3,
	BH_TYPE_STR = 4,
	BH_TYPE_BYTES = 5,
	BH_TYPE_BUFFER = 6,
	BH_TYPE_LIST = 7,
	BH_TYPE_HANDLE = 8,
	BH_TYPE_OBJECT = 9
};

struct bh_value;

struct bh_text {
	const char *data; /* a BH_TYPE_STR is followed by a NUL, which `length` does not count */
	uint64_t length;  /* bytes */
};

struct bh_items {
	const struct bh_value *items;
	uint64_t count;
};

/* One argument or result. The size is fixed for ever. */
struct bh_value {
	uint32_t type;	   /* enum bh_type */
	uint32_t reserved; /* 0 */
	union {
		int32_t boolean;	  /* BH_TYPE_BOOL: 0 or 1 */
		int64_t integer;	  /* BH_TYPE_INT */
		double real;		  /* BH_TYPE_FLOAT */
		struct bh_text text;	  /* BH_TYPE_STR, BH_TYPE_BYTES */
		struct bh_items list;	  /* BH_TYPE_LIST */
		struct bh_buffer *buffer; /* BH_TYPE_BUFFER */
		struct bh_object *object; /* BH_TYPE_OBJECT */
		uint64_t handle;	  /* BH_TYPE_HANDLE: the plugin's own number */
	} as;
};
BH_ABI_ASSERT(sizeof(struct bh_value) == 24, "ABI 1: struct bh_value");

enum bh_buffer_kind { BH_BUFFER_HOST = 1, BH_BUFFER_PINNED = 2, BH_BUFFER_CUDA = 3 };

/* Element type, with DLPack's codes. */
enum bh_dtype_code { BH_DTYPE_INT = 0, BH_DTYPE_UINT = 1, BH_DTYPE_FLOAT = 2, BH_DTYPE_OPAQUE = 3 };

#define BH_BUFFER_WRITABLE 1u /* flag */
#define BH_BUFFER_STRIDED 2u  /* flag of object_buffer() alone */
/* Flag, told by buffer_info(): Python code has been given the address (DLPack, __cuda_array_interface__), and
 * may have queued work of its own on it that is not over when the last reference goes. */
#define BH_BUFFER_SHARED 4u
#define BH_NDIM_MAX 8u

struct bh_buffer_info {
	uint32_t size;		    /* in: sizeof of the caller's; out: what was filled */
	uint32_t kind;		    /* enum bh_buffer_kind */
	uint32_t flags;		    /* BH_BUFFER_* */
	uint32_t n_dims;	    /* 0 … BH_NDIM_MAX */
	void *data;		    /* the first element; may be NULL when `length` is 0 */
	uint64_t length;	    /* bytes of all elements, without what lies between them */
	uint8_t dtype_code;	    /* enum bh_dtype_code */
	uint8_t dtype_bits;	    /* of one element */
	uint16_t reserved0;	    /* 0 */
	int32_t device;		    /* BH_BUFFER_CUDA: the device's ordinal; else 0 */
	int64_t shape[BH_NDIM_MAX]; /* elements per dimension; the product is the element count */
	/* Bytes from one element to the next of each dimension. Memory is C-contiguous, and these
	 * need not be looked at, unless the op's parameter says that it takes strided memory
	 * (`buffer~`, struct bh_op): then they may be anything, 0 and negative too, as numpy's are. */
	int64_t strides[BH_NDIM_MAX];
};

/* ---- the descriptor's tables ----------------------------------------------------------------- */

enum bh_site_policy {
	BH_SITE_UNCLASSIFIED = 0, /* refused at load (GIL-3) */
	BH_SITE_CONTROL_ALLOWED = 1,
	BH_SITE_DATA_ONLY = 2
};

struct bh_site {
	const char *name;  /* [a-z][a-z0-9_-]*, unique in the plugin */
	uint32_t policy;   /* enum bh_site_policy */
	uint32_t reserved; /* 0 */
	const char *doc;   /* why the GIL is taken here, one line */
};

enum bh_option_type {
	BH_OPT_INT = 1,	     /* decimal, `min` … `max` */
	BH_OPT_BOOL = 2,     /* yes no true false on off 1 0 */
	BH_OPT_STR = 3,	     /* any text */
	BH_OPT_SIZE = 4,     /* bytes: 4096, 64KiB, 1MiB, 2GiB; `min` … `max` */
	BH_OPT_DURATION = 5, /* ns inside; written 250ms, 10s, 2m; `min` … `max` in ns */
	BH_OPT_ENUM = 6,     /* one of `choices`, separated by '|' */
	BH_OPT_PATH = 7	     /* an absolute path */
};

struct bh_option {
	const char *name;   /* [a-z][a-z0-9_]*, unique in the plugin, no key of the host's */
	uint32_t type;	    /* enum bh_option_type */
	uint32_t reserved;  /* 0 */
	const char *preset; /* as it would be written in a manifest */
	int64_t min;	    /* `min` and `max` both 0: no limits */
	int64_t max;
	const char *choices; /* BH_OPT_ENUM only */
	const char *doc;
};

/* One operation.
 *
 * `args`: parameters separated by blanks, each `name:type`, with the types bool int float str bytes
 * buffer list handle object. `buffer!` is written to. `buffer~` takes strided memory too, see the
 * strides of bh_buffer_info. Without `~` the host refuses memory that is not C-contiguous. `buffer@`
 * takes device memory too (BH_BUFFER_CUDA): without `@` the host refuses it, so that nobody reads it
 * through a host pointer by mistake. The marks stand in this order: `buffer!~@`. `list@`: the list may have
 * device memory in it. `=literal` gives a preset to a bool, int, float or str (`n:int=0`), `=none` to any
 * type, which the op then sees as BH_TYPE_NONE. A last `*name:type` takes what is left, as one list. At most
 * 16; those with a preset come last. Names are [a-z][a-z0-9_]*, no keyword of Python, nor timeout, lane or wait,
 * which every op takes from its caller. `ret`: a type, or NULL for none. The host checks every
 * argument against this before the plugin sees it. */
struct bh_op {
	const char *name; /* [a-z][a-z0-9_]*, unique in the plugin */
	const char *args; /* NULL or "": none */
	const char *ret;
	/* Thread: a worker of the plugin's pool, or a thread of it that waits (SUP-7). GIL: not
	 * held. May block. `args` holds one value a parameter and is valid until the task has
	 * ended. Returns 0 (done), a negative errno (failed, or cancelled with -ECANCELED), or
	 * BH_PENDING: it will be completed later, once, with services->complete(). */
	bh_status (*run)(void *state, struct bh_task *task, const struct bh_value *args);
	uint32_t flags;	   /* BH_OP_* */
	uint32_t reserved; /* 0 */
	const char *doc;   /* becomes the method's docstring */
};

/* The op releases something: it may use the pool's reserve when the queue is full (SUP-8). */
#define BH_OP_CLEANUP 1u

/* A number of the plugin's that operators see, in /v1/plugins and in /metrics as
 * bulkhead_plugin_<the note's label, - as _>_<name>{plugin="<the manifest's label>"}. */
enum bh_metric_kind { BH_METRIC_COUNTER = 1, BH_METRIC_GAUGE = 2 };

struct bh_metric {
	const char *name;  /* [a-z][a-z0-9_]*, unique in the plugin; a counter's ends in _total */
	uint32_t kind;	   /* enum bh_metric_kind */
	uint32_t reserved; /* 0 */
	const char *doc;   /* one line, with the unit */
};

struct bh_table {
	const void *rows;
	uint32_t count;
	uint32_t row_size; /* bytes of one row as the plugin was built */
};

#define BH_TABLE(array)                                                                            \
	{                                                                                          \
		(array), (uint32_t)(sizeof(array) / sizeof((array)[0])),                           \
			(uint32_t)sizeof((array)[0])                                               \
	}
#define BH_NO_TABLE                                                                                \
	{                                                                                          \
		NULL, 0, 0                                                                         \
	}

struct bh_worker_range {
	uint32_t min;	 /* at least 1 */
	uint32_t preset; /* where the manifest is silent; 0 is `auto` */
	uint32_t max;	 /* at most 1024 */
};

/* Of object_cuda_buffer(): who will use the memory, and what it must wait for. */
struct bh_cuda_use {
	uint32_t size;	/* sizeof */
	int32_t device; /* in: the ordinal that the memory must be on; -1: any */
	/* In: the CUstream that will use the memory, as a number; 1 and 2 are the driver's legacy and
	 * per-thread ones, 0 is refused. A DLPack exporter makes it wait for what it has queued itself. */
	uint64_t stream;
	/* Out: the stream that __cuda_array_interface__ names: order yourself behind it; 0: nothing to
	 * wait for. */
	uint64_t after;
};
BH_ABI_ASSERT(sizeof(struct bh_cuda_use) == 24, "ABI 1: struct bh_cuda_use");

/* ---- services the host gives to a plugin ----------------------------------------------------- */

enum bh_log_level { BH_LOG_DEBUG = 0, BH_LOG_INFO = 1, BH_LOG_WARNING = 2, BH_LOG_ERROR = 3 };

/* All may be called with or without the GIL unless they say otherwise. Thread "own": any thread
 * that runs one of the plugin's callbacks, or that the plugin made. None blocks unless it says so.
 */
struct bh_services {
	uint32_t size;
	uint32_t abi; /* the host's */

	/* Options of the manifest, checked against the descriptor's table. Thread: own. A name that
	 * the table lacks, or another type, gives 0 or NULL and a log line at error level. Text is
	 * the host's and valid until the process ends. */
	int64_t (*option_int)(struct bh_context *ctx,
			      const char *name); /* INT BOOL SIZE DURATION */
	const char *(*option_text)(struct bh_context *ctx, const char *name); /* STR ENUM PATH */
	const char *(*label)(struct bh_context *ctx); /* the manifest's name for this plugin */
	uint32_t (*workers)(struct bh_context *ctx);  /* how many workers the pool has */

	/* Says what went wrong and returns `status`, so that a callback can end with it.
	 * fail(): open, close, worker_start, worker_stop, on their thread. task_fail(): for a task,
	 * on the thread that runs it. The first one counts. `id` is `label.reason`-like. */
	bh_status (*fail)(struct bh_context *ctx, bh_status status, const char *id,
			  const struct bh_fact *facts, uint32_t n_facts);
	bh_status (*task_fail)(struct bh_task *task, bh_status status, const char *id,
			       const struct bh_fact *facts, uint32_t n_facts);
	void (*log)(struct bh_context *ctx, uint32_t level, const char *message,
		    const struct bh_fact *facts, uint32_t n_facts);
	uint64_t (*now_ns)(void); /* the monotonic clock that deadlines use */

	/* About the task that a callback was given. remaining_ns: INT64_MAX without a deadline, 0
	 * when it has passed. task_id: a number that is never used again in this process. */
	uint64_t (*task_id)(const struct bh_task *task);
	int32_t (*cancelled)(const struct bh_task *task);
	int64_t (*remaining_ns)(const struct bh_task *task);

	/* Sets what a task that is being run will return. Text, bytes and lists are copied; a
	 * buffer's or an object's reference passes to the host (also when this fails). -EINVAL: not
	 * the type that `ret` promises. Call it before run() returns 0; a task that ends without
	 * the result it promised has failed. Thread: the one that runs it. */
	bh_status (*result)(struct bh_task *task, const struct bh_value *value);
	/* Ends a task whose run() returned BH_PENDING (or is about to). Thread: any. `status` and
	 * `value` as for run() and result(); `value` NULL: none. A task that has ended already, or
	 * never was, is refused with -ESRCH (and logged with plugin, op and task where they are
	 * known); nothing is harmed. `id` and `facts` say what failed; NULL, 0 where nothing did.
	 * -EINVAL: not what `ret` promises, or a positive status; the task has failed with that. */
	bh_status (*complete)(struct bh_context *ctx, uint64_t task_id, bh_status status,
			      const struct bh_value *value, const char *id,
			      const struct bh_fact *facts, uint32_t n_facts);

	/* Buffers and objects. A task's arguments are held for the plugin until the task has ended;
	 * take a reference to keep one longer. buffer_info: -EINVAL for a `size` that is none, or
	 * that has no room for the strides of a buffer that is not C-contiguous. Thread: any. */
	bh_status (*buffer_info)(const struct bh_buffer *buffer, struct bh_buffer_info *ret_info);
	struct bh_buffer *(*buffer_ref)(struct bh_buffer *buffer);
	void (*buffer_unref)(struct bh_buffer *buffer);
	struct bh_object *(*object_ref)(struct bh_object *object);
	void (*object_unref)(struct bh_object *object);

	/* Runs `fn` under the GIL at the plugin's own site number `site` (its row). Blocks until
	 * the GIL is had. -ESHUTDOWN: the interpreter is going down, `fn` was not run. -EINVAL: no
	 * such site. Thread: own. */
	bh_status (*run_gil)(struct bh_context *ctx, uint32_t site, void (*fn)(void *arg),
			     void *arg);
	/* Calls a Python callable with `n_args` values, under the GIL at `site`, in a copy of its
	 * submitter's context. 0: `ret_value` is an object the caller now owns. -EREMOTEIO: it
	 * raised; the exception is kept with the task and becomes its error. -ESHUTDOWN as
	 * run_gil(). Blocks. Thread: the one that runs `task`. */
	bh_status (*call_object)(struct bh_task *task, uint32_t site, struct bh_object *callable,
				 const struct bh_value *args, uint32_t n_args,
				 struct bh_value *ret_value);

	/* The pool fails with this cause: it takes no more work, what is queued is cancelled, the
	 * apps are told. Thread: any. Asks and returns. */
	void (*report_failed)(struct bh_context *ctx, bh_status status, const char *id,
			      const struct bh_fact *facts, uint32_t n_facts);

	/* The calling thread, which the plugin or a library of its made, belongs to the plugin's
	 * pool from now on (RI-6): its GIL use is accounted under the pool's label, and it may not
	 * be adopted by another. Call it first thing on that thread; once more is fine. -EEXIST: the
	 * thread belongs to somebody already. -ESHUTDOWN: the pool has ended. */
	bh_status (*adopt_thread)(struct bh_context *ctx);
	/* When the process calls exit(), the host takes the pools down before the exit handlers of
	 * libraries run. It sees what they register with atexit() and as C++ statics; after a
	 * library may have registered some in another way (on_exit(), a libc of its own), call
	 * this. Thread: any. */
	void (*exit_hook_refresh)(struct bh_context *ctx);
	/* Runs fn(arg) under the GIL at the plugin's own site number `site`, some time soon, on a
	 * thread of the host's; all that is posted runs in the order of the posts. A caller that
	 * holds the GIL has it run at once, on its own thread, below whatever locks it holds. Never
	 * blocks, whoever holds the GIL, and allocates nothing. Thread: any, also one that holds
	 * locks of the plugin's. GIL: held or not.
	 * 0: `fn` runs exactly once, perhaps after close() has been called, so `arg` and what it
	 * leads to must still be there; close() may wait for it. -EAGAIN: 1024 jobs of the whole
	 * host wait already. -ESHUTDOWN: the interpreter is going down. -EINVAL: no such site. Then
	 * `fn` is not run. `fn` must not end its thread, nor take long, as everything behind it
	 * waits too. A Python or C++ exception that it leaves is logged with the site. */
	bh_status (*post)(struct bh_context *ctx, uint32_t site, void (*fn)(void *arg), void *arg);
	/* Memory of the host's, zeroed and C-contiguous, for an op to fill and to return: in Python it
	 * is a bulkhead.Buffer. `info` says what is wanted: size, kind (BH_BUFFER_HOST), n_dims, shape,
	 * dtype_code, dtype_bits (a multiple of 8), and flags: without BH_BUFFER_WRITABLE Python and
	 * other ops may only read it, while the plugin fills it before it is handed out. Its other
	 * fields are not read; ask buffer_info() where the memory lies. `alignment`: of the first byte,
	 * a power of two from 1 to 2 MiB; 64 serves vector code. 0: the reference is the caller's, to
	 * pass on with result(), complete() or to drop with buffer_unref(). -EINVAL (logged): not
	 * that. -ENOMEM. Thread: any. A host whose table is shorter than this field lacks it. */
	bh_status (*buffer_alloc)(struct bh_context *ctx, const struct bh_buffer_info *info,
				  uint64_t alignment, struct bh_buffer **ret_buffer);

	/* The memory behind a Python object: an exporter of the buffer protocol, a DLPack tensor,
	 * or a bulkhead.Buffer, whose own buffer it then is. Taken under the GIL at `site`; the
	 * object and what it exports are held until the last reference has gone. `flags`:
	 * BH_BUFFER_WRITABLE: it must be writable; BH_BUFFER_STRIDED: it need not be C-contiguous.
	 * 0: the reference is the caller's. -EREMOTEIO: the object refused, or is none of these;
	 * the exception is kept with the task and becomes its error. -ESHUTDOWN as run_gil().
	 * -EINVAL: no such site, or flags. Blocks. Thread: the one that runs `task`. */
	bh_status (*object_buffer)(struct bh_task *task, uint32_t site, struct bh_object *object,
				   uint32_t flags, struct bh_buffer **ret_buffer);
	/* One pointer of this plugin's on a buffer, such as its registration with a device, so that
	 * it is made once. The slot holds no reference. When the last reference of all others is
	 * dropped, release() is called once with the slot's value and a reference that is now the
	 * plugin's: it undoes what the value stands for, and then drops that reference, which frees
	 * the memory. release() runs on any thread, perhaps with the GIL: it must not block, so it
	 * leaves the work to a thread of the plugin's. Never in a forked child. `value` is not NULL.
	 * set: -EEXIST: this plugin has a slot there already. -ENOMEM. -EINVAL: it has given this
	 * buffer another release() before, or something is NULL. -ESHUTDOWN: it has been closed. The
	 * caller holds a reference. get: NULL: none; the caller holds a reference. clear: gives the value back and
	 * release() will not be called; NULL: there is none, or release() has been called or is
	 * about to be. The caller of clear holds a reference, or is the one thread that may clear
	 * this slot and knows that its value's release() has not returned. A kept pointer is good for
	 * nothing else: no reference can be made of it outside release(). Every slot must be cleared or released before close() returns. Thread: any. */
	bh_status (*buffer_slot_set)(struct bh_context *ctx, struct bh_buffer *buffer, void *value,
				     void (*release)(void *value, struct bh_buffer *buffer));
	void *(*buffer_slot_get)(struct bh_context *ctx, struct bh_buffer *buffer);
	void *(*buffer_slot_clear)(struct bh_context *ctx, struct bh_buffer *buffer);
	/* Adds to, or sets, the number of a row of the descriptor's metrics. A counter only grows:
	 * set and a negative delta are refused with a log line. Wait-free. Thread: any. */
	void (*metric_add)(struct bh_context *ctx, uint32_t row, int64_t delta);
	void (*metric_set)(struct bh_context *ctx, uint32_t row, int64_t value);
	/* What operators should know of this plugin, shown in /v1/plugins and by bulkheadctl: such
	 * as which device was taken and why. Replaces what was said before; at most 16 facts. */
	void (*describe)(struct bh_context *ctx, const struct bh_fact *facts, uint32_t n_facts);
	/* The plugin works on, but not as it should (a port is down), or does again: `status` 0.
	 * Shown with the cause in /readyz, which says not ready meanwhile, and in /v1/plugins; the
	 * apps' supervise() is told of each change. A failed pool stays failed. Thread: any. Asks
	 * and returns. */
	void (*report_health)(struct bh_context *ctx, bh_status status, const char *id,
			      const struct bh_fact *facts, uint32_t n_facts);

	/* A buffer over device memory that the plugin has allocated: `info` with size, kind
	 * (BH_BUFFER_CUDA), flags, data, device, n_dims, shape, dtype_code and dtype_bits; its other
	 * fields are not read. It is C-contiguous. `dtype_code` may also be DLPack's 4 (bfloat), 5 (complex)
	 * or 6 (bool), which Python sees and buffer_info() tells as BH_DTYPE_OPAQUE. It is made with the plugin's slot set to `value`, and
	 * goes as a buffer with a slot goes: release() is called with the last reference, frees the
	 * memory some time later, and then drops that reference. 0: the reference is the caller's.
	 * -EINVAL (logged), -ENOMEM, -ESHUTDOWN as buffer_alloc() and buffer_slot_set(). Thread: any. */
	bh_status (*buffer_wrap)(struct bh_context *ctx, const struct bh_buffer_info *info,
				 void *value,
				 void (*release)(void *value, struct bh_buffer *buffer),
				 struct bh_buffer **ret_buffer);
	/* Takes the memory of a buffer of buffer_wrap() back while others still have the buffer: because
	 * the plugin is being closed, or an op is to free it. `held`: how many references the caller
	 * knows to be its own or its task's. From its return on no op and no export gets at the memory:
	 * who asks is told that it has been freed. The slot is clear and release() will not be called. 0: nobody uses the
	 * memory, it may be freed. -EBUSY: somebody may still use it, as a task of another pool or code
	 * that was given the address: it must stay as it is for the rest of the process. -ENOENT:
	 * release() has been called or is about to be; nothing was changed. The caller holds a reference, or is the one
	 * thread that may clear this slot and knows that its release() has not returned. Thread: any. */
	bh_status (*buffer_revoke)(struct bh_context *ctx, struct bh_buffer *buffer, uint32_t held);
	/* As object_buffer(), for memory that a CUDA device reaches: a DLPack tensor of CUDA, of its
	 * managed or of its pinned memory, an object with __cuda_array_interface__, or a bulkhead.Buffer,
	 * whose own buffer it then is. `use`: see there. */
	bh_status (*object_cuda_buffer)(struct bh_task *task, uint32_t site,
					struct bh_object *object, uint32_t flags,
					struct bh_cuda_use *use, struct bh_buffer **ret_buffer);
};

/* ---- the descriptor -------------------------------------------------------------------------- */

struct bh_plugin {
	uint32_t abi;  /* BH_ABI */
	uint32_t size; /* sizeof(struct bh_plugin) */
	struct bh_worker_range workers;
	uint32_t progress_threads; /* threads that run progress(), 0 … 64 */
	struct bh_table sites;
	struct bh_table options;
	struct bh_table ops;

	/* Thread: the pool's supervisor, GIL not held; may block (health and stop go on without
	 * it). open: `ctx` and `services` stay valid until the process ends. `*ret_state` is passed
	 * to every other callback. When it fails, close() is not called: undo what was done. */
	bh_status (*open)(struct bh_context *ctx, const struct bh_services *services,
			  void **ret_state);
	/* close: called once, after every worker and progress thread has ended. */
	bh_status (*close)(void *state);

	/* Optional, on the worker itself, before its first and after its last task. GIL: not held.
	 */
	bh_status (*worker_start)(void *state, uint32_t worker);
	bh_status (*worker_stop)(void *state, uint32_t worker);
	/* Optional unless progress_threads is not 0. On a thread of its own, tagged as the pool's;
	 * may block; returns soon after `stop_fd` has become readable (never read from it). */
	void (*progress)(void *state, uint32_t thread, int stop_fd);
	/* Optional, on the supervisor: `task_id` of a running or pending task should end soon,
	 * because its submitter, its deadline or the stop says so. Must not block. The op decides.
	 */
	void (*cancel)(void *state, uint64_t task_id);
	struct bh_table metrics; /* of struct bh_metric */
};
BH_ABI_ASSERT(offsetof(struct bh_plugin, size) == 4, "ABI 1");
BH_ABI_ASSERT(offsetof(struct bh_plugin, workers) == 8, "ABI 1");
BH_ABI_ASSERT(offsetof(struct bh_plugin, sites) == 24, "ABI 1");
BH_ABI_ASSERT(offsetof(struct bh_plugin, open) == 72, "ABI 1");
BH_ABI_ASSERT(offsetof(struct bh_plugin, cancel) == 112, "ABI 1");
BH_ABI_ASSERT(offsetof(struct bh_plugin, metrics) == 120, "ABI 1");

/* ---- the note -------------------------------------------------------------------------------- */

#define BH_NOTE_NAME "Bulkhead"
#define BH_NOTE_TYPE 1u

struct bh_note {
	uint32_t namesz;	  /* 9: with its NUL */
	uint32_t descsz;	  /* 64 */
	uint32_t type;		  /* BH_NOTE_TYPE */
	char name[12];		  /* "Bulkhead", padded to a multiple of 4 */
	uint32_t abi;		  /* BH_ABI */
	uint32_t plugin_size;	  /* sizeof(struct bh_plugin) */
	char label[BH_LABEL_MAX]; /* what the author calls it; a manifest may name it otherwise */
	char version[BH_VERSION_MAX];
};
BH_ABI_ASSERT(sizeof(struct bh_note) == 88, "ABI 1: struct bh_note");

#define BH_NOTE_ENV_TYPE 2u
#define BH_NOTE_ENV_MAX 256u

/* Environment that a library of the plugin's wants before it is loaded: see BH_PLUGIN_ENV. */
struct bh_note_env {
	uint32_t namesz; /* 9 */
	uint32_t descsz; /* 256 */
	uint32_t type;	 /* BH_NOTE_ENV_TYPE */
	char name[12];
	char text[BH_NOTE_ENV_MAX]; /* NAME=VALUE, one a line */
};
BH_ABI_ASSERT(sizeof(struct bh_note_env) == 280, "ABI 1: struct bh_note_env");

#if defined(__has_attribute)
#if __has_attribute(retain)
#define BH_NOTE_KEEP __attribute__((used, retain, section(".note.bulkhead"), aligned(4)))
#endif
#endif
#ifndef BH_NOTE_KEEP
#define BH_NOTE_KEEP __attribute__((used, section(".note.bulkhead"), aligned(4)))
#endif

#ifdef __cplusplus
#define BH_PLUGIN_LINKAGE extern "C"
}
#else
#define BH_PLUGIN_LINKAGE extern
#endif

/* BH_PLUGIN("label", "version") = { .abi = BH_ABI, .size = sizeof(struct bh_plugin), … }; */
#define BH_PLUGIN(LABEL, VERSION)                                                                  \
	BH_ABI_ASSERT(sizeof(LABEL) <= BH_LABEL_MAX, "plugin label too long");                     \
	BH_ABI_ASSERT(sizeof(VERSION) <= BH_VERSION_MAX, "plugin version too long");               \
	static const struct bh_note bh_plugin_note BH_NOTE_KEEP = {                                \
		9,	(uint32_t)(sizeof(struct bh_note) - 24), BH_NOTE_TYPE, BH_NOTE_NAME,       \
		BH_ABI, (uint32_t)sizeof(struct bh_plugin),	 LABEL,	       VERSION             \
	};                                                                                         \
	BH_PLUGIN_LINKAGE const struct bh_plugin bh_plugin __attribute__((visibility("default"))); \
	const struct bh_plugin bh_plugin

/* BH_PLUGIN_ENV("NAME=VALUE\nOTHER=VALUE"); beside BH_PLUGIN, once at most. The host sets these before
 * its first thread starts, unless its own environment or the manifest's `[host] env.NAME` has them
 * (PLG-6). A name is [A-Za-z_][A-Za-z0-9_]*. */
#define BH_PLUGIN_ENV(TEXT)                                                                        \
	BH_ABI_ASSERT(sizeof(TEXT) <= BH_NOTE_ENV_MAX, "plugin environment too long");             \
	static const struct bh_note_env bh_plugin_note_env BH_NOTE_KEEP = { 9, BH_NOTE_ENV_MAX,    \
									    BH_NOTE_ENV_TYPE,      \
									    BH_NOTE_NAME, TEXT }

#endif
