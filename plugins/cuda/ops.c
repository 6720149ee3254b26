/* SPDX-License-Identifier: BSD-3-Clause */
/* ops - what every op of the cuda plugin does: its beginning, how it fails, its operands, and how it ends when
 * the device is done.
 *
 * Thread: workers; the end of a pending on the flight's progress thread, or on the worker within post().
 * Fails:  cuda.forked, .progress, .dead: before anything was done. cuda.driver, .memory, .fault, .shutdown: what
 *         the driver said, with its own name for it. cuda.device, .kind, .buffer, .handle: the argument.
 * Keeps:  SUP-4, SUP-10: a task that awaits the device ends once, when the device is done with its memory. */
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

#define N_FACTS(facts) ((uint32_t)(sizeof(facts) / sizeof((facts)[0])))

/* How long an op waits for the plugin's threads, which start when the workers do. */
#define START_MS 5000

/* ---- how an op fails ------------------------------------------------------------------------- */

bh_status bh_cuda_refuse(const struct bh_cuda_call *call, const char *id, const char *parameter,
			 const char *given, const char *accepted)
{
	struct bh_fact facts[3];
	uint32_t n = 0;

	if (parameter)
		facts[n++] = bh_fact_str("parameter", parameter);
	if (given)
		facts[n++] = bh_fact_str("given", given);
	if (accepted)
		facts[n++] = bh_fact_str("accepted", accepted);
	return call->cuda->services->task_fail(call->task, -EINVAL, id, facts, n);
}

bh_status bh_cuda_fail_by(const struct bh_cuda_call *call, const struct bh_cuda_fault *fault)
{
	const struct bh_fact facts[] = {
		bh_fact_str("reason", fault->text),
		bh_fact_int("device", call->cuda->device.ordinal),
		bh_fact_str("status", fault->name),
	};

	return call->cuda->services->task_fail(call->task, fault->status, fault->id, facts,
					       fault->name[0] ? 3 : 2);
}

/* The pool's failure, once: what comes later is the same context saying it again. */
static void die(struct bh_cuda *cuda, CUresult result, const struct bh_cuda_fault *fault)
{
	int none = 0;

	if (!atomic_compare_exchange_strong_explicit(&cuda->dead, &none, (int)result,
						     memory_order_relaxed, memory_order_relaxed))
		return;
	const struct bh_fact facts[] = {
		bh_fact_str("reason", fault->text),
		bh_fact_str("status", fault->name),
		bh_fact_int("device", cuda->device.ordinal),
		bh_fact_str("name", cuda->device.name),
		bh_fact_str("advice",
			    "the device's context is lost for this process, with all memory "
			    "in it: let it be started again (on_pool_failure = exit)"),
	};

	cuda->services->report_failed(cuda->ctx, -EIO, "cuda.fault", facts, N_FACTS(facts));
	if (cuda->flight)
		bh_cuda_flight_fail(cuda->flight, result);
}

void bh_cuda_note_result(struct bh_cuda *cuda, CUresult result, const char *what)
{
	struct bh_cuda_fault fault;

	if (!bh_cuda_is_sticky(result))
		return;
	(void)bh_cuda_result(cuda->device.driver, result, what, &fault);
	die(cuda, result, &fault);
}

bh_status bh_cuda_check(const struct bh_cuda_call *call, CUresult result, const char *what)
{
	struct bh_cuda *cuda = call->cuda;
	struct bh_cuda_fault fault;

	if (result == CUDA_SUCCESS)
		return 0;
	(void)bh_cuda_result(cuda->device.driver, result, what, &fault);
	cuda->services->metric_add(cuda->ctx, BH_CUDA_METRIC_ERRORS, 1);
	if (bh_cuda_is_sticky(result))
		die(cuda, result, &fault);
	return bh_cuda_fail_by(call, &fault);
}

/* ---- the beginning and the end of an op ------------------------------------------------------- */

/* A manifest may give the pool fewer threads than it needs, and they may just be starting. */
static bh_status check_threads(const struct bh_cuda_call *call)
{
	const uint32_t all = (1u << BH_CUDA_THREADS) - 1;
	const struct bh_fact facts[] = {
		bh_fact_str("reason", "the plugin's progress threads do not run"),
		bh_fact_str("accepted", "progress_threads = 2 in the manifest, or nothing"),
	};

	for (unsigned ms = 0; ms < START_MS; ms++) {
		if (atomic_load_explicit(&call->cuda->threads, memory_order_relaxed) == all)
			return 0;
		(void)poll(NULL, 0, 1);
	}
	return call->cuda->services->task_fail(call->task, -EINVAL, "cuda.progress", facts,
					       N_FACTS(facts));
}

static bh_status refuse_dead(const struct bh_cuda_call *call, CUresult result)
{
	struct bh_cuda_fault fault, dead;

	(void)bh_cuda_result(call->cuda->device.driver, result, "an earlier one", &fault);
	(void)bh_cuda_fault(&dead, -EIO, "cuda.dead",
			    "the device's context is lost since %s: nothing can be done with it "
			    "in this process",
			    fault.name);
	snprintf(dead.name, sizeof(dead.name), "%s", fault.name);
	return bh_cuda_fail_by(call, &dead);
}

bh_status bh_cuda_call_begin(struct bh_cuda_call *call, void *state, struct bh_task *task,
			     const char *op)
{
	struct bh_cuda *cuda = state;
	int dead;

	memset(call, 0, sizeof(*call));
	call->cuda = cuda;
	call->task = task;
	call->op = op;
	if (!bh_cuda_driver_usable()) { /* H10 */
		const struct bh_fact facts[] = {
			bh_fact_str("reason", "this is a forked child: the driver works in the "
					      "process that opened it alone"),
			bh_fact_str("accepted", "a process that is started anew, as "
						"multiprocessing's `spawn` does"),
		};

		return cuda->services->task_fail(task, -ENOSYS, "cuda.forked", facts,
						 N_FACTS(facts));
	}
	atomic_fetch_add_explicit(&cuda->activity, 1, memory_order_relaxed);
	dead = atomic_load_explicit(&cuda->dead, memory_order_relaxed);
	if (dead)
		return refuse_dead(call, (CUresult)dead);
	return check_threads(call);
}

void bh_cuda_call_end(struct bh_cuda_call *call)
{
	for (uint32_t i = 0; i < call->n_held; i++)
		bh_cuda_held_unref(call->held[i]);
	call->n_held = 0;
}

/* ---- a task that awaits the device ------------------------------------------------------------ */

static void pending_free(struct bh_cuda_pending *pending)
{
	if (pending->cleanup)
		pending->cleanup(pending);
	for (uint32_t i = 0; i < pending->n_held; i++)
		bh_cuda_held_unref(pending->held[i]);
	free(pending);
}

static void complete_failed(struct bh_cuda_pending *pending, CUresult result)
{
	const struct bh_cuda *cuda = pending->cuda;
	struct bh_cuda_fault fault;

	(void)bh_cuda_result(cuda->device.driver, result, pending->op, &fault);
	const struct bh_fact facts[] = {
		bh_fact_str("op", pending->op),
		bh_fact_str("reason", fault.text),
		bh_fact_str("status", fault.name),
		bh_fact_int("device", cuda->device.ordinal),
	};

	cuda->services->metric_add(cuda->ctx, BH_CUDA_METRIC_ERRORS, 1);
	(void)cuda->services->complete(cuda->ctx, pending->task_id, fault.status, NULL, fault.id,
				       facts, N_FACTS(facts));
}

static void complete_done(struct bh_cuda_pending *pending)
{
	const struct bh_cuda *cuda = pending->cuda;
	struct bh_value value = { .type = BH_TYPE_NONE };
	bh_status st = 0;

	if (pending->give)
		st = pending->give(pending, &value);
	if (st < 0)
		(void)cuda->services->complete(cuda->ctx, pending->task_id, st, NULL, "cuda.result",
					       NULL, 0);
	else
		(void)cuda->services->complete(cuda->ctx, pending->task_id, 0,
					       pending->give ? &value : NULL, NULL, NULL, 0);
}

static void pending_done(struct bh_cuda_work *work, CUresult result)
{
	struct bh_cuda_pending *pending = (struct bh_cuda_pending *)work;
	struct bh_cuda *cuda = pending->cuda;
	int dead;

	bh_cuda_note_result(cuda, result, pending->op);
	/* H11: what was over a moment before the fault was seen may have worked on what the fault broke. */
	dead = atomic_load_explicit(&cuda->dead, memory_order_relaxed);
	if (result == CUDA_SUCCESS && dead)
		result = (CUresult)dead;
	if (result == CUDA_SUCCESS)
		result = pending->failed;
	if (result == CUDA_SUCCESS)
		complete_done(pending);
	else
		complete_failed(pending, result);
	pending_free(pending);
}

struct bh_cuda_pending *bh_cuda_pending_new(const struct bh_cuda_call *call, size_t size)
{
	struct bh_cuda *cuda = call->cuda;
	struct bh_cuda_pending *pending;
	struct bh_cuda_fault fault;

	assert(size >= sizeof(*pending));
	pending = calloc(1, size);
	if (!pending) {
		(void)bh_cuda_fault(&fault, -ENOMEM, "cuda.host_memory",
				    "the host has no memory for the op; end other programs");
		(void)bh_cuda_fail_by(call, &fault);
		return NULL;
	}
	pending->cuda = cuda;
	pending->task_id = cuda->services->task_id(call->task);
	pending->op = call->op;
	pending->work.done = pending_done;
	if (bh_cuda_flight_begin(cuda->flight, &pending->work, &fault) < 0) {
		bh_cuda_note_result(cuda, fault.result, "cuEventCreate");
		(void)bh_cuda_fail_by(call, &fault);
		free(pending);
		return NULL;
	}
	for (uint32_t i = 0; i < call->n_held; i++) {
		bh_cuda_held_ref(call->held[i]);
		pending->held[pending->n_held++] = call->held[i];
	}
	return pending;
}

void bh_cuda_pending_drop(struct bh_cuda_pending *pending)
{
	bh_cuda_flight_drop(pending->cuda->flight, &pending->work);
	pending_free(pending);
}

bh_status bh_cuda_post(struct bh_cuda_pending *pending, CUstream stream)
{
	bh_cuda_flight_add(pending->cuda->flight, &pending->work, stream);
	return BH_PENDING;
}

/* ---- operands ---------------------------------------------------------------------------------- */

bh_status bh_cuda_operand(const struct bh_cuda_call *call, const char *name,
			  const struct bh_value *arg, struct bh_cuda_operand *ret_operand)
{
	struct bh_cuda_operand operand = { .name = name, .buffer = arg->as.buffer };
	bh_status st;

	operand.info.size = sizeof(operand.info);
	st = call->cuda->services->buffer_info(arg->as.buffer, &operand.info);
	if (st < 0)
		return bh_cuda_refuse(call, "cuda.buffer", name, "a buffer of unknown place",
				      "memory of the host or of a device");
	operand.on_device = operand.info.kind == BH_BUFFER_CUDA;
	operand.address = (CUdeviceptr)(uintptr_t)operand.info.data;
	*ret_operand = operand;
	return 0;
}

bh_status bh_cuda_device_operand(const struct bh_cuda_call *call, const char *name,
				 const struct bh_value *arg, struct bh_cuda_operand *ret_operand)
{
	char given[64], accepted[160];
	bh_status st;

	st = bh_cuda_operand(call, name, arg, ret_operand);
	if (st < 0)
		return st;
	if (ret_operand->on_device && ret_operand->info.device == call->cuda->device.ordinal)
		return 0;
	if (ret_operand->on_device)
		snprintf(given, sizeof(given), "memory of device %" PRId32,
			 ret_operand->info.device);
	else
		snprintf(given, sizeof(given), "host memory");
	snprintf(accepted, sizeof(accepted),
		 "memory of device %" PRId32 ", as this pool's alloc() gives it; copy() gets the "
		 "rest there",
		 call->cuda->device.ordinal);
	return bh_cuda_refuse(call, "cuda.kind", name, given, accepted);
}

bh_status bh_cuda_stream_of(struct bh_cuda_call *call, const struct bh_value *arg,
			    CUstream *ret_stream)
{
	void *stream = NULL;
	bh_status st;

	if (arg->type == BH_TYPE_NONE) {
		*ret_stream = call->cuda->stream;
		return 0;
	}
	st = bh_cuda_handle_of(call, BH_CUDA_STREAM, "stream", arg, &stream, NULL);
	if (st == 0)
		*ret_stream = stream;
	return st;
}
