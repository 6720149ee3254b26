/* SPDX-License-Identifier: BSD-3-Clause */
/* streams - ops over streams and events: order among what is given to the device.
 *
 * What is given to one stream runs in the order in which it was given; streams go side by side, unless one waits
 * for an event of another. All are non-blocking ones: none waits for the legacy stream of other libraries.
 *
 * Thread: workers.
 * Fails:  cuda.priority, cuda.handle, and what the driver says. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "plugins/cuda/cuda.h"
#include "plugins/cuda/handles.h"

/* ---- streams --------------------------------------------------------------------------------------- */

static bh_status check_priority(const struct bh_cuda_call *call, int64_t priority)
{
	char given[32], accepted[96];
	int least = 0, greatest = 0;
	bh_status st;

	st = bh_cuda_check(
		call, call->cuda->device.driver->cuCtxGetStreamPriorityRange_(&least, &greatest),
		"cuCtxGetStreamPriorityRange");
	if (st < 0 || (priority <= least && priority >= greatest))
		return st;
	snprintf(given, sizeof(given), "%" PRId64, priority);
	snprintf(accepted, sizeof(accepted), "%d to %d on this device; the lower the more urgent",
		 greatest, least);
	return bh_cuda_refuse(call, "cuda.priority", "priority", given, accepted);
}

static bh_status run_stream(void *state, struct bh_task *task, const struct bh_value *args)
{
	BH_CUDA_CALL call;
	CUstream stream = NULL;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "stream");
	if (st == 0)
		st = check_priority(&call, args[0].as.integer);
	if (st < 0)
		return st;
	st = bh_cuda_check(&call,
			   call.cuda->device.driver->cuStreamCreateWithPriority_(
				   &stream, CU_STREAM_NON_BLOCKING, (int)args[0].as.integer),
			   "cuStreamCreateWithPriority");
	if (st < 0)
		return st;
	return bh_cuda_handle_give(&call, BH_CUDA_STREAM, stream, NULL);
}

static bh_status run_stream_close(void *state, struct bh_task *task, const struct bh_value *args)
{
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "stream_close");
	if (st == 0)
		st = bh_cuda_handle_close(&call, BH_CUDA_STREAM, "stream", &args[0]);
	return st;
}

static bh_status run_synchronize(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_cuda_pending *pending;
	BH_CUDA_CALL call;
	CUstream stream;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "synchronize");
	if (st == 0)
		st = bh_cuda_stream_of(&call, &args[0], &stream);
	if (st < 0)
		return st;
	pending = bh_cuda_pending_new(&call, sizeof(*pending));
	return pending ? bh_cuda_post(pending, stream) : -EIO;
}

/* ---- events ---------------------------------------------------------------------------------------- */

static bh_status run_record(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct bh_cuda_driver *driver;
	BH_CUDA_CALL call;
	CUevent event = NULL;
	CUstream stream;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "record");
	if (st == 0)
		st = bh_cuda_stream_of(&call, &args[0], &stream);
	if (st < 0)
		return st;
	driver = call.cuda->device.driver;
	st = bh_cuda_check(&call, driver->cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING),
			   "cuEventCreate");
	if (st < 0)
		return st;
	st = bh_cuda_check(&call, driver->cuEventRecord_(event, stream), "cuEventRecord");
	if (st == 0)
		return bh_cuda_handle_give(&call, BH_CUDA_EVENT, event, NULL);
	(void)driver->cuEventDestroy_(event);
	return st;
}

static bh_status run_wait(void *state, struct bh_task *task, const struct bh_value *args)
{
	BH_CUDA_CALL call;
	void *event = NULL;
	CUstream stream;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "wait");
	if (st == 0)
		st = bh_cuda_stream_of(&call, &args[0], &stream);
	if (st == 0)
		st = bh_cuda_handle_of(&call, BH_CUDA_EVENT, "event", &args[1], &event, NULL);
	if (st < 0)
		return st;
	return bh_cuda_check(
		&call,
		call.cuda->device.driver->cuStreamWaitEvent_(stream, event, CU_EVENT_WAIT_DEFAULT),
		"cuStreamWaitEvent");
}

static bh_status run_event_close(void *state, struct bh_task *task, const struct bh_value *args)
{
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "event_close");
	if (st == 0)
		st = bh_cuda_handle_close(&call, BH_CUDA_EVENT, "event", &args[0]);
	return st;
}

const struct bh_op bh_cuda_stream_ops[BH_CUDA_STREAM_OPS] = {
	{ .name = "stream",
	  .args = "priority:int=0",
	  .ret = "handle",
	  .run = run_stream,
	  .doc = "A new stream. What is given to one stream runs in the order in which the pool's "
		 "workers "
		 "give it; with one worker, the preset, that is the order of submission." },
	{ .name = "stream_close",
	  .args = "stream:handle",
	  .run = run_stream_close,
	  .flags = BH_OP_CLEANUP,
	  .doc = "Closes a stream. What it has been given before goes on." },
	{ .name = "record",
	  .args = "stream:handle=none",
	  .ret = "handle",
	  .run = run_record,
	  .doc = "An event that has happened when the stream has done all that it has been given "
		 "so "
		 "far." },
	{ .name = "wait",
	  .args = "stream:handle event:handle",
	  .run = run_wait,
	  .doc = "What the stream is given from now on begins after the event. Returns at once: "
		 "the "
		 "device waits, no worker does." },
	{ .name = "synchronize",
	  .args = "stream:handle=none",
	  .run = run_synchronize,
	  .doc = "Ends when the stream has done all that it has been given so far. No worker "
		 "waits." },
	{ .name = "event_close",
	  .args = "event:handle",
	  .run = run_event_close,
	  .flags = BH_OP_CLEANUP,
	  .doc = "Closes an event. Streams that wait for it go on waiting." },
};
