/* SPDX-License-Identifier: BSD-3-Clause */
/* cuda - the plugin of GPU work: its options, its device, its threads and its end.
 *
 * A worker gives work to the device and goes on; one progress thread sees when it is over (flight.c), another
 * releases what has been let go of (reaper.c), since the driver may block there.
 *
 * Thread: open and close on the supervisor; progress on its own two.
 * Fails:  open: option.cuda (status 78: the manifest names no device that is here), cuda.no_driver, .driver_old,
 *         .no_device, .init and what the driver says (69: nothing here to work with).
 * Keeps:  SUP-10, PLG-7, EXIT-2, H12 (see docs/architecture.md). */
#include "config.h"

#include "plugins/cuda/cuda.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/cuda/handles.h"
#include "plugins/cuda/math.h"
#include "plugins/cuda/memory.h"
#include "plugins/cuda/reaper.h"

#define NS_PER_MS INT64_C(1000000)
#define N_FACTS(facts) ((uint32_t)(sizeof(facts) / sizeof((facts)[0])))

/* How often the device is asked for its memory while there is work. */
#define TELL_MS 1000

static const struct bh_site sites[] = {
	[BH_CUDA_SITE_IMPORT] = { .name = "import",
				  .policy = BH_SITE_DATA_ONLY,
				  .doc = "get at the device memory of a Python object" },
};

static const struct bh_option options[] = {
	{ .name = "device",
	  .type = BH_OPT_STR,
	  .preset = "0",
	  .doc = "an ordinal, as CUDA_VISIBLE_DEVICES leaves them; a uuid (GPU-...) or its "
		 "beginning; or a "
		 "PCI address (0000:3b:00.0)" },
	{ .name = "inline_wait",
	  .type = BH_OPT_DURATION,
	  .preset = "20us",
	  .min = 0,
	  .max = 10 * NS_PER_MS,
	  .doc = "how long a worker itself looks for the end of what it has given to an idle "
		 "device; 0s: it "
		 "never does" },
	{ .name = "spin",
	  .type = BH_OPT_DURATION,
	  .preset = "50us",
	  .min = 0,
	  .max = 1000 * NS_PER_MS,
	  .doc = "how long the progress thread polls for the end of a work before it sleeps "
		 "between looks" },
	{ .name = "pool_keep",
	  .type = BH_OPT_SIZE,
	  .preset = "64MiB",
	  .min = 0,
	  .max = INT64_MAX,
	  .doc = "freed device memory that is kept for the next alloc() instead of being given "
		 "back" },
};

static const struct bh_metric metrics[] = {
	[BH_CUDA_METRIC_IN_FLIGHT] = { "in_flight", BH_METRIC_GAUGE, 0,
				       "Works that the device has been given and that are not "
				       "over." },
	[BH_CUDA_METRIC_ALLOCATED_BYTES] = { "allocated_bytes", BH_METRIC_GAUGE, 0,
					     "Bytes of device memory that this plugin has "
					     "allocated." },
	[BH_CUDA_METRIC_BUFFERS] = { "buffers", BH_METRIC_GAUGE, 0,
				     "Buffers of device memory that this plugin has allocated." },
	[BH_CUDA_METRIC_PINNED_BYTES] = { "pinned_bytes", BH_METRIC_GAUGE, 0,
					  "Bytes of host memory that this plugin has pinned." },
	[BH_CUDA_METRIC_DEVICE_USED] = { "device_used_bytes", BH_METRIC_GAUGE, 0,
					 "Bytes of the device's memory that anybody uses." },
	[BH_CUDA_METRIC_DEVICE_TOTAL] = { "device_total_bytes", BH_METRIC_GAUGE, 0,
					  "Bytes of the device's memory." },
	[BH_CUDA_METRIC_LAUNCHES] = { "launches_total", BH_METRIC_COUNTER, 0, "Kernels launched." },
	[BH_CUDA_METRIC_COPIED_IN] = { "copied_in_bytes_total", BH_METRIC_COUNTER, 0,
				       "Bytes copied from the host to devices." },
	[BH_CUDA_METRIC_COPIED_OUT] = { "copied_out_bytes_total", BH_METRIC_COUNTER, 0,
					"Bytes copied from devices to the host." },
	[BH_CUDA_METRIC_COPIED_WITHIN] = { "copied_within_bytes_total", BH_METRIC_COUNTER, 0,
					   "Bytes copied on one device or between two." },
	[BH_CUDA_METRIC_ERRORS] = { "errors_total", BH_METRIC_COUNTER, 0,
				    "Ops that the driver has failed." },
};
static_assert(sizeof(metrics) / sizeof(metrics[0]) == BH_CUDA_METRICS, "one row per metric");

/* ---- the ops of all files ------------------------------------------------------------------------ */

static struct bh_op
	ops[BH_CUDA_MEMORY_OPS + BH_CUDA_STREAM_OPS + BH_CUDA_MODULE_OPS + BH_CUDA_KERNEL_OPS];

/* Before the host looks at the descriptor: C has no way to write one table from several. */
__attribute__((constructor)) static void join_ops(void)
{
	struct bh_op *at = ops;

	memcpy(at, bh_cuda_memory_ops, sizeof(bh_cuda_memory_ops));
	at += BH_CUDA_MEMORY_OPS;
	memcpy(at, bh_cuda_stream_ops, sizeof(bh_cuda_stream_ops));
	at += BH_CUDA_STREAM_OPS;
	memcpy(at, bh_cuda_module_ops, sizeof(bh_cuda_module_ops));
	at += BH_CUDA_MODULE_OPS;
	memcpy(at, bh_cuda_kernel_ops, sizeof(bh_cuda_kernel_ops));
	at += BH_CUDA_KERNEL_OPS;
	assert(at == ops + sizeof(ops) / sizeof(ops[0]));
}

/* ---- threads --------------------------------------------------------------------------------- */

static void reap_until(struct bh_cuda *cuda, int stop_fd)
{
	struct pollfd fds[] = {
		{ .fd = stop_fd, .events = POLLIN },
		{ .fd = bh_cuda_reaper_descriptor(cuda->reaper), .events = POLLIN },
	};
	uint64_t told = UINT64_MAX; /* the activity when the device's memory was last asked for */
	int64_t next_ns = 0;

	do {
		uint64_t activity = atomic_load_explicit(&cuda->activity, memory_order_relaxed);
		int64_t now_ns = (int64_t)cuda->services->now_ns();

		if (activity != told && now_ns >= next_ns) {
			bh_cuda_memory_tell(cuda->memory);
			told = activity;
			next_ns = now_ns + TELL_MS * NS_PER_MS;
		}
		fds[0].revents = fds[1].revents = 0;
		(void)poll(fds, 2, TELL_MS);
		if (fds[1].revents)
			bh_cuda_memory_reap(cuda->memory, true);
	} while (!fds[0].revents);
}

static void progress(void *state, uint32_t thread, int stop_fd)
{
	struct bh_cuda *cuda = state;
	struct pollfd fd = { .fd = stop_fd, .events = POLLIN };
	struct bh_cuda_fault fault;

	if (bh_cuda_device_enter(&cuda->device, &fault) < 0) {
		const struct bh_fact fact = bh_fact_str("reason", fault.text);

		cuda->services->report_failed(cuda->ctx, fault.status, "cuda.context", &fact, 1);
		return;
	}
	if (thread < BH_CUDA_THREADS)
		atomic_fetch_or_explicit(&cuda->threads, 1u << thread, memory_order_relaxed);
	if (thread == BH_CUDA_THREAD_FLIGHT)
		bh_cuda_flight_run(cuda->flight, stop_fd);
	else if (thread == BH_CUDA_THREAD_REAPER)
		reap_until(cuda, stop_fd);
	else /* the manifest's progress_threads gives more than there is work for */
		while (poll(&fd, 1, -1) < 0 && errno == EINTR)
			;
	bh_cuda_device_leave(&cuda->device);
}

static bh_status worker_start(void *state, uint32_t worker)
{
	struct bh_cuda *cuda = state;
	struct bh_cuda_fault fault;

	if (bh_cuda_device_enter(&cuda->device, &fault) == 0)
		return 0;
	const struct bh_fact facts[] = {
		bh_fact_int("worker", worker),
		bh_fact_str("reason", fault.text),
		bh_fact_str("status", fault.name),
	};

	return cuda->services->fail(cuda->ctx, fault.status, "cuda.context", facts, N_FACTS(facts));
}

static bh_status worker_stop(void *state, uint32_t worker)
{
	struct bh_cuda *cuda = state;

	(void)worker;
	bh_cuda_device_leave(&cuda->device);
	return 0;
}

/* ---- what the flight asks and tells ------------------------------------------------------------ */

static int64_t now_ns(void *user)
{
	const struct bh_cuda *cuda = user;

	return (int64_t)cuda->services->now_ns();
}

static void counted(void *user, int by)
{
	const struct bh_cuda *cuda = user;

	cuda->services->metric_add(cuda->ctx, BH_CUDA_METRIC_IN_FLIGHT, by);
}

/* ---- open ------------------------------------------------------------------------------------ */

/* What came into the ABI with this plugin; a host that lacks it would be called at NULL. */
static bool host_is_complete(const struct bh_services *services)
{
	return services->size >= sizeof(*services) && services->buffer_alloc &&
	       services->buffer_slot_set && services->buffer_slot_get &&
	       services->buffer_slot_clear && services->metric_add && services->metric_set &&
	       services->describe && services->buffer_wrap && services->buffer_revoke &&
	       services->object_cuda_buffer;
}

static bh_status refuse_by(const struct bh_cuda *cuda, const struct bh_cuda_fault *fault)
{
	char section[BH_LABEL_MAX + 16];
	const struct bh_fact facts[] = {
		bh_fact_str("section", section),
		bh_fact_str("reason", fault->text),
		bh_fact_str("status", fault->name),
	};

	snprintf(section, sizeof(section), "[plugin %s]", cuda->services->label(cuda->ctx));
	return cuda->services->fail(cuda->ctx, fault->status, fault->id, facts,
				    fault->name[0] ? 3 : 2);
}

/* An option whose value cannot be; "option." makes it a fault of the manifest's (status 78). */
static bh_status refuse_device(const struct bh_cuda *cuda, const struct bh_cuda_fault *fault)
{
	char section[BH_LABEL_MAX + 16];
	const struct bh_fact facts[] = {
		bh_fact_str("section", section),
		bh_fact_str("key", "device"),
		bh_fact_str("value", cuda->services->option_text(cuda->ctx, "device")),
		bh_fact_str("accepted", fault->text),
	};

	snprintf(section, sizeof(section), "[plugin %s]", cuda->services->label(cuda->ctx));
	return cuda->services->fail(cuda->ctx, fault->status, "option.cuda", facts, N_FACTS(facts));
}

static bh_status open_device(struct bh_cuda *cuda)
{
	const struct bh_cuda_driver *driver = NULL;
	struct bh_cuda_fault fault;
	bh_status st;

	st = bh_cuda_driver_get(&driver, &fault);
	/* EXIT-2: whatever the driver has registered by now, also when it failed. */
	cuda->services->exit_hook_refresh(cuda->ctx);
	if (st < 0)
		return refuse_by(cuda, &fault);
	st = bh_cuda_device_open(driver, cuda->services->option_text(cuda->ctx, "device"),
				 &cuda->device, &fault);
	cuda->services->exit_hook_refresh(cuda->ctx);
	if (st == 0)
		return 0;
	if (strcmp(fault.id, "cuda.device") == 0)
		return refuse_device(cuda, &fault);
	return refuse_by(cuda, &fault);
}

/* What has been made of it, in reverse; the context is current. */
static void undo_parts(struct bh_cuda *cuda)
{
	struct bh_cuda_left left;

	bh_cuda_memory_free(cuda->memory, false, &left);
	bh_cuda_math_free(cuda->math, true);
	bh_cuda_handles_free(cuda->handles);
	(void)bh_cuda_flight_free(cuda->flight);
	if (cuda->stream)
		(void)cuda->device.driver->cuStreamDestroy_(cuda->stream);
	(void)bh_cuda_reaper_free(cuda->reaper);
}

static bh_status open_parts(struct bh_cuda *cuda, struct bh_cuda_fault *fault)
{
	const struct bh_cuda_flight_options flight = {
		.inline_ns = cuda->services->option_int(cuda->ctx, "inline_wait"),
		.spin_ns = cuda->services->option_int(cuda->ctx, "spin"),
		.now_ns = now_ns,
		.counted = counted,
		.user = cuda,
	};
	uint64_t keep = (uint64_t)cuda->services->option_int(cuda->ctx, "pool_keep");
	bh_status st;

	st = bh_cuda_result(cuda->device.driver,
			    cuda->device.driver->cuStreamCreateWithPriority_(
				    &cuda->stream, CU_STREAM_NON_BLOCKING, 0),
			    "cuStreamCreateWithPriority", fault);
	if (st < 0)
		return st;
	st = bh_cuda_reaper_new(&cuda->reaper);
	if (st == 0)
		st = bh_cuda_flight_new(&cuda->device, &flight, &cuda->flight);
	if (st == 0)
		st = bh_cuda_handles_new(cuda, &cuda->handles);
	if (st == 0)
		st = bh_cuda_math_new(cuda, &cuda->math);
	if (st < 0)
		return bh_cuda_fault(fault, st, "cuda.host_memory",
				     "the host has no memory, or no descriptor, for the plugin");
	return bh_cuda_memory_new(cuda, keep, &cuda->memory, fault);
}

static bh_status open_all(struct bh_cuda *cuda)
{
	struct bh_cuda_fault fault;
	bh_status st;

	st = open_device(cuda);
	if (st < 0)
		return st;
	st = bh_cuda_device_enter(&cuda->device, &fault);
	if (st == 0) {
		st = open_parts(cuda, &fault);
		if (st < 0)
			undo_parts(cuda);
		bh_cuda_device_leave(&cuda->device);
	}
	if (st < 0) {
		bh_cuda_device_close(&cuda->device);
		return refuse_by(cuda, &fault);
	}
	return 0;
}

static void describe(const struct bh_cuda *cuda)
{
	const struct bh_cuda_device *device = &cuda->device;
	char capability[32], driver[32];
	const struct bh_fact facts[] = {
		bh_fact_int("device", device->ordinal),
		bh_fact_str("name", device->name),
		bh_fact_str("uuid", device->uuid),
		bh_fact_str("pci", device->pci),
		bh_fact_int("memory", (int64_t)device->memory),
		bh_fact_str("capability", capability),
		bh_fact_str("driver", driver),
		bh_fact_str("allocation", device->has_pools ? "stream-ordered" : "blocking"),
	};

	snprintf(capability, sizeof(capability), "%d.%d", device->major, device->minor);
	snprintf(driver, sizeof(driver), "CUDA %d.%d", device->driver->version / 1000,
		 device->driver->version % 1000 / 10);
	cuda->services->describe(cuda->ctx, facts, N_FACTS(facts));
	cuda->services->log(cuda->ctx, BH_LOG_INFO, "cuda is ready", facts, N_FACTS(facts));
}

static bh_status cuda_open(struct bh_context *ctx, const struct bh_services *services,
			   void **ret_state)
{
	struct bh_cuda *cuda;
	bh_status st;

	if (!host_is_complete(services)) {
		const struct bh_fact facts[] = {
			bh_fact_str("reason", "this host is older than the plugin"),
			bh_fact_str("accepted", "host and plugin of one version"),
		};

		return services->fail(ctx, -ENOSYS, "cuda.host", facts, N_FACTS(facts));
	}
	cuda = calloc(1, sizeof(*cuda));
	if (!cuda)
		return services->fail(ctx, -ENOMEM, "cuda.host_memory", NULL, 0);
	cuda->ctx = ctx;
	cuda->services = services;
	st = open_all(cuda);
	if (st < 0) {
		free(cuda);
		return st;
	}
	describe(cuda);
	*ret_state = cuda;
	return 0;
}

/* ---- close ----------------------------------------------------------------------------------- */

struct left {
	uint32_t works; /* that never ended */
	uint32_t handles;
	struct bh_cuda_left memory;
};

/* One line for all that was left open, and for what the device has not given back. */
static void summarise(const struct bh_cuda *cuda, const struct left *left)
{
	bool kept = left->works || left->memory.buffers || left->memory.pins;
	const struct bh_fact facts[] = {
		bh_fact_int("device", cuda->device.ordinal),
		bh_fact_int("works_lost", left->works),
		bh_fact_int("buffers_kept", left->memory.buffers),
		bh_fact_int("bytes_kept", (int64_t)left->memory.bytes),
		bh_fact_int("pins_kept", left->memory.pins),
		bh_fact_int("handles_left_open", left->handles),
		bh_fact_str("reason",
			    left->works ? "the device has not ended these works: nothing that "
					  "could wait for them is released"
			    : kept	? "other code has the address of these buffers: they stay "
					  "for the rest of the process"
					: ""),
	};

	cuda->services->log(cuda->ctx, kept ? BH_LOG_WARNING : BH_LOG_INFO, "cuda has ended", facts,
			    kept ? N_FACTS(facts) : N_FACTS(facts) - 1);
}

/* SUP-10: what the device, or other code, may still use. Nobody looks at it again: it is held here so that leak
 * checkers see that it is meant to stay. */
static void keep(struct bh_cuda *cuda)
{
	static _Atomic(struct bh_cuda *) kept;

	cuda->next_kept = atomic_load_explicit(&kept, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&kept, &cuda->next_kept, cuda,
						      memory_order_release, memory_order_relaxed))
		;
}

/* In the reverse order of their making. What never ended keeps all that it may use, and nothing that could wait for
 * it is called. */
static bh_status cuda_close(void *state)
{
	struct bh_cuda *cuda = state;
	struct left left = { 0 };
	bool dead = atomic_load_explicit(&cuda->dead, memory_order_relaxed) != CUDA_SUCCESS;
	struct bh_cuda_fault fault;
	bool kept;

	(void)bh_cuda_device_enter(&cuda->device, &fault); /* a dead one says so at each call */
	left.works = bh_cuda_flight_free(cuda->flight);
	if (left.works == 0)
		cuda->flight =
			NULL; /* what follows may be the first to meet a fault, which is told to it */
	left.handles = bh_cuda_handles_drain(cuda->handles, BH_CUDA_MODULE, left.works == 0);
	if (left.works == 0)
		bh_cuda_math_free(cuda->math, !dead);
	bh_cuda_memory_free(cuda->memory, left.works > 0, &left.memory);
	left.handles += bh_cuda_handles_drain(cuda->handles, BH_CUDA_EVENT, left.works == 0);
	left.handles += bh_cuda_handles_drain(cuda->handles, BH_CUDA_STREAM, left.works == 0);
	kept = left.works || left.memory.buffers || left.memory.pins;
	if (left.works == 0) {
		bh_cuda_handles_free(cuda->handles);
		if (!dead)
			(void)cuda->device.driver->cuStreamDestroy_(cuda->stream);
	}
	bh_cuda_device_leave(&cuda->device);
	if (!kept ||
	    dead) /* a dead one has no memory that could be kept, and may be had anew without it */
		bh_cuda_device_close(&cuda->device);
	summarise(cuda, &left);
	if (kept || !bh_cuda_reaper_free(cuda->reaper))
		keep(cuda);
	else
		free(cuda);
	return 0;
}

BH_PLUGIN("cuda", "0.1") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	/* With one worker what is submitted to a stream is queued in the order of submission. */
	.workers = { .min = 1, .preset = 1, .max = 64 },
	.progress_threads = BH_CUDA_THREADS,
	.sites = BH_TABLE(sites),
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = cuda_open,
	.close = cuda_close,
	.worker_start = worker_start,
	.worker_stop = worker_stop,
	.progress = progress,
	.metrics = BH_TABLE(metrics),
};
