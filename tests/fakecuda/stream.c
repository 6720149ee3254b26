/* SPDX-License-Identifier: BSD-3-Clause */
/* stream - streams as threads, made when they have something to do, and events. */
#include "config.h"

#include "tests/fakecuda/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_BUCKETS 1024u

struct fake_stream {
	struct fake_object object; /* of no table: the two default streams */
	unsigned int flags;
	int priority;
	struct fake_op *first, **last;
	uint64_t pending; /* queued or running */
	bool started;	  /* it has a thread, which frees it */
	bool ending, draining;
	pthread_cond_t wake;
};

struct event {
	struct fake_object object;
	unsigned int flags;
	struct fake_marker *marker; /* NULL: never recorded */
};

/* ---- objects by number ------------------------------------------------------------------------------------ */

static struct fake_object *buckets[N_BUCKETS];
static uintptr_t next_handle = 0x1000;

static struct fake_object **bucket_of(uintptr_t handle)
{
	return &buckets[(handle >> 4) % N_BUCKETS];
}

void fake_object_add(struct fake_object *object, enum fake_kind kind, struct fake_context *ctx)
{
	next_handle += 16;
	object->kind = kind;
	object->ctx = ctx;
	object->handle = next_handle;
	object->next = *bucket_of(object->handle);
	*bucket_of(object->handle) = object;
}

void fake_object_remove(struct fake_object *object)
{
	for (struct fake_object **link = bucket_of(object->handle); *link; link = &(*link)->next)
		if (*link == object) {
			*link = object->next;
			return;
		}
}

void *fake_object_find(const void *handle, enum fake_kind kind)
{
	uintptr_t number = (uintptr_t)handle;

	for (struct fake_object *o = *bucket_of(number); o; o = o->next)
		if (o->handle == number && o->kind == kind)
			return o;
	if (number > 0x1000 && number <= next_handle)
		fake_violation("fakecuda:handle", "a handle is used that has been destroyed");
	return NULL;
}

void fake_object_each(enum fake_kind kind, struct fake_context *ctx,
		      void (*fn)(struct fake_object *object, void *user), void *user)
{
	for (unsigned i = 0; i < N_BUCKETS; i++)
		for (struct fake_object *o = buckets[i], *next; o; o = next) {
			next = o->next;
			if (o->kind == kind && o->ctx == ctx)
				fn(o, user);
		}
}

/* ---- markers ------------------------------------------------------------------------------------------- */

static struct fake_marker *marker_new(void)
{
	struct fake_marker *marker = calloc(1, sizeof(*marker));

	if (!marker)
		abort(); /* the double of a driver, in a test */
	marker->refs = 1;
	return marker;
}

static struct fake_marker *marker_ref(struct fake_marker *marker)
{
	if (marker)
		marker->refs++;
	return marker;
}

static void marker_unref(struct fake_marker *marker)
{
	if (marker && --marker->refs == 0)
		free(marker);
}

static void marker_reach(struct fake_marker *marker)
{
	if (!marker)
		return;
	marker->done = true;
	marker->done_ns = fake_now_ns();
}

/* ---- a stream's thread --------------------------------------------------------------------------------------- */

static bool context_over(const struct fake_context *ctx)
{
	return ctx->sticky != CUDA_SUCCESS || ctx->refs == 0;
}

static void op_end(struct fake_stream *stream, struct fake_op *op, bool ran)
{
	marker_reach(op->reaches);
	marker_unref(op->reaches);
	marker_unref(op->awaits);
	stream->pending--;
	if (op->end)
		op->end(op, ran);
	else
		free(op);
	pthread_cond_broadcast(&fake.progress);
}

static void stream_free(struct fake_stream *stream)
{
	pthread_cond_destroy(&stream->wake);
	free(stream);
}

static void *stream_thread(void *user)
{
	struct fake_stream *stream = user;
	struct fake_context *ctx = stream->object.ctx;

	fake_is_stream_thread = true;
	pthread_setname_np(pthread_self(), "fake-stream");
	pthread_mutex_lock(&fake.lock);
	for (;;) {
		struct fake_op *op = stream->first;
		CUresult result = CUDA_SUCCESS;
		bool ran = false;

		if (!op) {
			if (stream->ending)
				break;
			pthread_cond_wait(&stream->wake, &fake.lock);
			continue;
		}
		while (op->awaits && !op->awaits->done && !context_over(ctx))
			pthread_cond_wait(&fake.progress, &fake.lock);
		stream->first = op->next;
		if (!stream->first)
			stream->last = &stream->first;
		if (op->run && !context_over(ctx)) {
			pthread_mutex_unlock(&fake.lock);
			fake_before_op(ctx);
			result = op->run(op, ctx);
			pthread_mutex_lock(&fake.lock);
			ran = true;
		}
		if (result != CUDA_SUCCESS)
			fake_context_kill(ctx, result);
		op_end(stream, op, ran);
	}
	if (stream->draining) {
		ctx->draining--;
		pthread_cond_broadcast(&fake.progress);
	}
	pthread_mutex_unlock(&fake.lock);
	stream_free(stream);
	return NULL;
}

static void stream_start(struct fake_stream *stream)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attributes, stream_thread, stream) != 0)
		abort();
	pthread_attr_destroy(&attributes);
	stream->started = true;
}

static void push_alone(struct fake_stream *stream, struct fake_op *op)
{
	op->next = NULL;
	*stream->last = op;
	stream->last = &op->next;
	stream->pending++;
	if (!stream->started)
		stream_start(stream);
	pthread_cond_signal(&stream->wake);
}

/* An op that does nothing but wait or tell. */
static void push_point(struct fake_stream *stream, struct fake_marker *awaits,
		       struct fake_marker *reaches)
{
	struct fake_op *op = calloc(1, sizeof(*op));

	if (!op)
		abort();
	op->awaits = marker_ref(awaits);
	op->reaches = marker_ref(reaches);
	push_alone(stream, op);
}

static void order_after(struct fake_stream *stream, struct fake_stream *other)
{
	struct fake_marker *marker = marker_new();

	push_point(other, NULL, marker);
	push_point(stream, marker, NULL);
	marker_unref(marker);
}

static bool is_blocking(const struct fake_stream *stream)
{
	return (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}

static void order_one(struct fake_object *object, void *user)
{
	struct fake_stream *stream = (struct fake_stream *)object, *legacy = user;

	if (is_blocking(stream) && stream->pending)
		order_after(legacy, stream);
}

/* The legacy stream and the blocking ones wait for each other. */
static void order(struct fake_stream *stream)
{
	struct fake_context *ctx = stream->object.ctx;

	if (stream == ctx->legacy) {
		fake_object_each(FAKE_STREAM, ctx, order_one, stream);
		if (ctx->per_thread->pending)
			order_after(stream, ctx->per_thread);
	} else if (is_blocking(stream) && ctx->legacy->pending) {
		order_after(stream, ctx->legacy);
	}
}

void fake_stream_push(struct fake_stream *stream, struct fake_op *op)
{
	order(stream);
	push_alone(stream, op);
}

/* A reference is the caller's. */
static struct fake_marker *stream_mark(struct fake_stream *stream)
{
	struct fake_marker *marker = marker_new();

	order(stream);
	if (stream->pending)
		push_point(stream, NULL, marker);
	else
		marker_reach(marker);
	return marker;
}

/* Takes the reference over. */
static CUresult marker_wait(struct fake_marker *marker, const struct fake_context *ctx)
{
	while (!marker->done && !context_over(ctx))
		pthread_cond_wait(&fake.progress, &fake.lock);
	marker_unref(marker);
	return ctx->sticky;
}

CUresult fake_stream_wait(struct fake_stream *stream)
{
	struct fake_context *ctx = stream->object.ctx;
	CUresult result = marker_wait(stream_mark(stream), ctx);

	fake_pools_release(ctx);
	return result;
}

struct fake_context *fake_stream_context(const struct fake_stream *stream)
{
	return stream->object.ctx;
}

struct marks {
	struct fake_marker **marker;
	unsigned n, room;
};

static void mark_one(struct fake_object *object, void *user)
{
	struct marks *marks = user;
	struct fake_stream *stream = (struct fake_stream *)object;

	if (!stream->pending)
		return;
	if (marks->n == marks->room) {
		marks->room = marks->room ? 2 * marks->room : 16;
		marks->marker = realloc(marks->marker, marks->room * sizeof(struct fake_marker *));
		if (!marks->marker)
			abort();
	}
	marks->marker[marks->n++] = stream_mark(stream);
}

CUresult fake_context_wait(struct fake_context *ctx)
{
	struct marks marks = { 0 };

	if (context_over(ctx))
		return ctx->sticky;
	mark_one(&ctx->legacy->object, &marks);
	mark_one(&ctx->per_thread->object, &marks);
	fake_object_each(FAKE_STREAM, ctx, mark_one, &marks);
	for (unsigned i = 0; i < marks.n; i++)
		marker_wait(marks.marker[i], ctx);
	free(marks.marker);
	while (ctx->draining && !context_over(ctx))
		pthread_cond_wait(&fake.progress, &fake.lock);
	fake_pools_release(ctx);
	return ctx->sticky;
}

/* ---- streams ------------------------------------------------------------------------------------------------- */

static struct fake_stream *stream_new(unsigned int flags, int priority)
{
	struct fake_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->flags = flags;
	stream->priority = priority;
	stream->last = &stream->first;
	pthread_cond_init(&stream->wake, NULL);
	return stream;
}

static void stream_end(struct fake_stream *stream)
{
	stream->ending = true;
	stream->draining = stream->pending > 0;
	stream->object.ctx->draining += stream->draining;
	if (stream->started)
		pthread_cond_signal(&stream->wake);
	else
		stream_free(stream);
}

CUresult fake_streams_begin(struct fake_context *ctx)
{
	ctx->legacy = stream_new(CU_STREAM_DEFAULT, 0);
	ctx->per_thread = stream_new(CU_STREAM_DEFAULT, 0);
	if (!ctx->legacy || !ctx->per_thread)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ctx->legacy->object.ctx = ctx->per_thread->object.ctx = ctx;
	return CUDA_SUCCESS;
}

static void stream_remove(struct fake_object *object, void *user)
{
	(void)user;
	fake_object_remove(object);
	fake.counts.streams--;
	stream_end((struct fake_stream *)object);
}

static void event_remove(struct fake_object *object, void *user)
{
	struct event *event = (struct event *)object;

	(void)user;
	fake_object_remove(object);
	fake.counts.events--;
	marker_unref(event->marker);
	free(event);
}

void fake_streams_end(struct fake_context *ctx)
{
	fake_object_each(FAKE_EVENT, ctx, event_remove, NULL);
	fake_object_each(FAKE_STREAM, ctx, stream_remove, NULL);
	stream_end(ctx->legacy);
	stream_end(ctx->per_thread);
	ctx->legacy = ctx->per_thread = NULL;
}

/* The double has one per-thread stream for all threads: it orders more than the real ones. */
struct fake_stream *fake_stream_find(struct fake_context *ctx, CUstream handle)
{
	struct fake_stream *stream;

	if (!handle || handle == CU_STREAM_LEGACY)
		return ctx->legacy;
	if (handle == CU_STREAM_PER_THREAD)
		return ctx->per_thread;
	stream = fake_object_find(handle, FAKE_STREAM);
	return stream && stream->object.ctx->refs ? stream : NULL;
}

FAKE_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *ret_stream, unsigned int flags,
							int priority)
{
	struct fake_stream *stream;

	FAKE_BEGIN(cuStreamCreateWithPriority, FAKE_CONTEXT);
	if (!ret_stream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	/* What is out of range is put into it. */
	stream = stream_new(flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
	if (!stream)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	fake_object_add(&stream->object, FAKE_STREAM, call.ctx);
	fake.counts.streams++;
	*ret_stream = (CUstream)stream->object.handle;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream *ret_stream, unsigned int flags)
{
	return cuStreamCreateWithPriority(ret_stream, flags, 0);
}

#undef cuStreamGetPriority
FAKE_EXPORT CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int *priority)
{
	struct fake_stream *stream;

	FAKE_BEGIN(cuStreamGetPriority, FAKE_CONTEXT);
	stream = fake_stream_find(call.ctx, handle);
	if (!stream)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (!priority)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*priority = stream->priority;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle)
{
	struct fake_stream *stream;

	FAKE_BEGIN(cuStreamDestroy, FAKE_CONTEXT);
	stream = fake_stream_find(call.ctx, handle);
	if (!stream || stream == call.ctx->legacy || stream == call.ctx->per_thread)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	stream_remove(&stream->object, NULL);
	FAKE_END(CUDA_SUCCESS);
}

#undef cuStreamQuery
FAKE_EXPORT CUresult CUDAAPI cuStreamQuery(CUstream handle)
{
	struct fake_stream *stream;

	FAKE_BEGIN(cuStreamQuery, FAKE_CONTEXT);
	stream = fake_stream_find(call.ctx, handle);
	if (!stream)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (stream->object.ctx->sticky != CUDA_SUCCESS)
		FAKE_END(stream->object.ctx->sticky);
	if (stream == call.ctx->legacy)
		order(stream);
	FAKE_END(stream->pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

#undef cuStreamSynchronize
FAKE_EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream handle)
{
	struct fake_stream *stream;

	FAKE_BEGIN(cuStreamSynchronize, FAKE_CONTEXT);
	stream = fake_stream_find(call.ctx, handle);
	result = stream ? fake_stream_wait(stream) : CUDA_ERROR_INVALID_HANDLE;
	FAKE_END(result);
}

struct host_op {
	struct fake_op op;
	CUhostFn fn;
	void *user;
};

static CUresult host_run(struct fake_op *op, struct fake_context *ctx)
{
	struct host_op *self = (struct host_op *)op;

	(void)ctx;
	self->fn(self->user);
	return CUDA_SUCCESS;
}

#undef cuLaunchHostFunc
FAKE_EXPORT CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *user)
{
	struct fake_stream *stream;
	struct host_op *op;

	FAKE_BEGIN(cuLaunchHostFunc, FAKE_CONTEXT);
	stream = fake_stream_find(call.ctx, handle);
	if (!stream)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (!fn)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	op = calloc(1, sizeof(*op));
	if (!op)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	*op = (struct host_op){ .op = { .run = host_run }, .fn = fn, .user = user };
	fake_stream_push(stream, &op->op);
	FAKE_END(CUDA_SUCCESS);
}

/* ---- events --------------------------------------------------------------------------------------------------- */

FAKE_EXPORT CUresult CUDAAPI cuEventCreate(CUevent *ret_event, unsigned int flags)
{
	const unsigned int known =
		CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
	struct event *event;

	FAKE_BEGIN(cuEventCreate, FAKE_CONTEXT);
	if (!ret_event || (flags & ~known) != 0 ||
	    (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	event = calloc(1, sizeof(*event));
	if (!event)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	event->flags = flags;
	fake_object_add(&event->object, FAKE_EVENT, call.ctx);
	fake.counts.events++;
	*ret_event = (CUevent)event->object.handle;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuEventDestroy_v2(CUevent handle)
{
	struct event *event;

	FAKE_BEGIN(cuEventDestroy, FAKE_CONTEXT);
	event = fake_object_find(handle, FAKE_EVENT);
	if (!event)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	event_remove(&event->object, NULL);
	FAKE_END(CUDA_SUCCESS);
}

#undef cuEventRecord
FAKE_EXPORT CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream_handle)
{
	struct event *event;
	struct fake_stream *stream;

	FAKE_BEGIN(cuEventRecord, FAKE_CONTEXT);
	event = fake_object_find(handle, FAKE_EVENT);
	stream = fake_stream_find(call.ctx, stream_handle);
	if (!event || !stream || event->object.ctx != stream->object.ctx)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	marker_unref(event->marker);
	event->marker = stream_mark(stream);
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuEventQuery(CUevent handle)
{
	struct event *event;

	FAKE_BEGIN(cuEventQuery, FAKE_INIT);
	event = fake_object_find(handle, FAKE_EVENT);
	if (!event)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (event->object.ctx->sticky != CUDA_SUCCESS)
		FAKE_END(event->object.ctx->sticky);
	FAKE_END(!event->marker || event->marker->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

FAKE_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent handle)
{
	struct event *event;

	FAKE_BEGIN(cuEventSynchronize, FAKE_INIT);
	event = fake_object_find(handle, FAKE_EVENT);
	if (!event)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (event->object.ctx->sticky != CUDA_SUCCESS)
		FAKE_END(event->object.ctx->sticky);
	if (event->marker) {
		struct fake_context *ctx = event->object.ctx;

		result = marker_wait(marker_ref(event->marker), ctx);
		fake_pools_release(ctx);
	}
	FAKE_END(result);
}

static CUresult elapsed(float *ms, CUevent from_handle, CUevent to_handle)
{
	struct event *from, *to;

	FAKE_BEGIN(cuEventElapsedTime, FAKE_INIT);
	from = fake_object_find(from_handle, FAKE_EVENT);
	to = fake_object_find(to_handle, FAKE_EVENT);
	if (!ms)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	if (!from || !to || !from->marker || !to->marker ||
	    (from->flags | to->flags) & CU_EVENT_DISABLE_TIMING)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (!from->marker->done || !to->marker->done)
		FAKE_END(CUDA_ERROR_NOT_READY);
	*ms = (float)(to->marker->done_ns - from->marker->done_ns) / 1e6f;
	FAKE_END(CUDA_SUCCESS);
}

#undef cuEventElapsedTime
FAKE_EXPORT CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent from, CUevent to);
CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	return elapsed(ms, from, to);
}

FAKE_EXPORT CUresult CUDAAPI cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to);
CUresult CUDAAPI cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to)
{
	return elapsed(ms, from, to);
}

#undef cuStreamWaitEvent
FAKE_EXPORT CUresult CUDAAPI cuStreamWaitEvent(CUstream stream_handle, CUevent handle,
					       unsigned int flags)
{
	struct event *event;
	struct fake_stream *stream;

	FAKE_BEGIN(cuStreamWaitEvent, FAKE_CONTEXT);
	event = fake_object_find(handle, FAKE_EVENT);
	stream = fake_stream_find(call.ctx, stream_handle);
	if (!event || !stream)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (flags != 0)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	if (event->marker && !event->marker->done) {
		order(stream);
		push_point(stream, event->marker, NULL);
	}
	FAKE_END(CUDA_SUCCESS);
}
