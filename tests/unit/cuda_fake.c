/* SPDX-License-Identifier: BSD-3-Clause */
/* cuda_fake - see cuda_fake.h. */
#include "config.h"

#include "tests/unit/cuda_fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plugins/cuda/handles.h"
#include "plugins/cuda/memory.h"
#include "plugins/cuda/reaper.h"
#include "tests/unit/tap.h"

struct fake fake = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Everything that the driver makes, so that what a dead context keeps is no leak of the test's. */
struct object {
	struct object *next, *previous;
	char memory[];
};

static struct object objects = { &objects, &objects };

static void *make(size_t size)
{
	struct object *object = calloc(1, sizeof(*object) + size);

	pthread_mutex_lock(&fake.lock);
	object->next = objects.next;
	object->previous = &objects;
	object->next->previous = object;
	objects.next = object;
	pthread_mutex_unlock(&fake.lock);
	return object->memory;
}

static void unmake(void *memory)
{
	struct object *object = (struct object *)((char *)memory - offsetof(struct object, memory));

	pthread_mutex_lock(&fake.lock);
	object->previous->next = object->next;
	object->next->previous = object->previous;
	pthread_mutex_unlock(&fake.lock);
	free(object);
}

struct fake_event {
	struct fake_stream *stream;
	uint64_t at;
};

/* Where driver.c is not linked. */
__attribute__((weak)) bool bh_cuda_driver_usable(void)
{
	return true;
}

static CUresult result(void)
{
	int once = atomic_exchange(&fake.once, 0);

	return (CUresult)(once ? once : atomic_load(&fake.sticky));
}

#define CHECK()                                                                                    \
	do {                                                                                       \
		CUresult result_ = result();                                                       \
		if (result_ != CUDA_SUCCESS)                                                       \
			return result_;                                                            \
	} while (0)

static CUresult error_name(CUresult error, const char **text)
{
	*text = error == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
	return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *stream, unsigned flags, int priority)
{
	(void)priority;
	CHECK();
	CU_ASSERT(flags == CU_STREAM_NON_BLOCKING);
	*stream = (CUstream)make(sizeof(struct fake_stream));
	atomic_fetch_add(&fake.streams, 1);
	return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream)
{
	CHECK();
	atomic_fetch_sub(&fake.streams, 1);
	unmake(stream);
	return CUDA_SUCCESS;
}

static void give(CUstream stream)
{
	struct fake_stream *s = (struct fake_stream *)stream;

	pthread_mutex_lock(&fake.lock);
	s->given++;
	if (!atomic_load(&fake.manual))
		s->done = s->given;
	pthread_mutex_unlock(&fake.lock);
}

void fake_finish(CUstream stream)
{
	struct fake_stream *s = (struct fake_stream *)stream;

	pthread_mutex_lock(&fake.lock);
	s->done = s->given;
	pthread_mutex_unlock(&fake.lock);
}

static CUresult event_create(CUevent *event, unsigned flags)
{
	(void)flags;
	CHECK();
	*event = (CUevent)make(sizeof(struct fake_event));
	atomic_fetch_add(&fake.events, 1);
	return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
	CHECK();
	atomic_fetch_sub(&fake.events, 1);
	unmake(event);
	return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
	struct fake_event *e = (struct fake_event *)event;

	CHECK();
	give(stream);
	pthread_mutex_lock(&fake.lock);
	e->stream = (struct fake_stream *)stream;
	e->at = e->stream->given;
	pthread_mutex_unlock(&fake.lock);
	return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
	const struct fake_event *e = (const struct fake_event *)event;
	bool done;

	atomic_fetch_add(&fake.n_queries, 1);
	CHECK();
	pthread_mutex_lock(&fake.lock);
	done = e->stream->done >= e->at;
	pthread_mutex_unlock(&fake.lock);
	return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult stream_wait(CUstream stream, CUevent event, unsigned flags)
{
	(void)event;
	(void)flags;
	CHECK();
	give(stream);
	return CUDA_SUCCESS;
}

static CUresult priority_range(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return CUDA_SUCCESS;
}

static CUresult ctx_set(CUcontext context)
{
	(void)context;
	CHECK();
	return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

static CUresult ctx_synchronize(void)
{
	CHECK();
	atomic_fetch_add(&fake.n_synchronized, 1);
	return CUDA_SUCCESS;
}

static CUresult get_info(size_t *free_bytes, size_t *total)
{
	CHECK();
	*free_bytes = (size_t)atomic_load(&fake.memory);
	*total = 1 << 30;
	return CUDA_SUCCESS;
}

struct block {
	uint64_t bytes;
	char memory[];
};

static CUresult alloc_async(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	struct block *block;

	(void)pool;
	CHECK();
	if (atomic_load(&fake.memory) < (int64_t)bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	block = make(sizeof(*block) + bytes);
	block->bytes = bytes;
	atomic_fetch_sub(&fake.memory, (int64_t)bytes);
	atomic_fetch_add(&fake.allocated, 1);
	give(stream);
	*address = (CUdeviceptr)(uintptr_t)block->memory;
	return CUDA_SUCCESS;
}

static CUresult free_async(CUdeviceptr address, CUstream stream)
{
	struct block *block = (struct block *)((char *)(uintptr_t)address - sizeof(*block));

	CHECK();
	atomic_fetch_add(&fake.memory, (int64_t)block->bytes);
	atomic_fetch_sub(&fake.allocated, 1);
	unmake(block);
	give(stream);
	return CUDA_SUCCESS;
}

static CUresult pool_create(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CHECK();
	CU_ASSERT(props->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
	*pool = (CUmemoryPool)make(1);
	return CUDA_SUCCESS;
}

static CUresult pool_destroy(CUmemoryPool pool)
{
	unmake(pool);
	return CUDA_SUCCESS;
}

static CUresult pool_set(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	(void)pool;
	(void)attribute;
	(void)value;
	return CUDA_SUCCESS;
}

static CUresult pool_trim(CUmemoryPool pool, size_t keep)
{
	(void)pool;
	(void)keep;
	atomic_fetch_add(&fake.n_trimmed, 1);
	return CUDA_SUCCESS;
}

static CUresult memset_async(CUdeviceptr address, unsigned char value, size_t bytes,
			     CUstream stream)
{
	CHECK();
	memset((void *)(uintptr_t)address, value, bytes);
	give(stream);
	return CUDA_SUCCESS;
}

static CUresult host_register(void *address, size_t bytes, unsigned flags)
{
	CHECK();
	CU_ASSERT(flags == CU_MEMHOSTREGISTER_PORTABLE);
	CU_ASSERT(((uintptr_t)address | bytes) % 4096 == 0);
	atomic_fetch_add(&fake.pins, 1);
	return CUDA_SUCCESS;
}

static CUresult host_unregister(void *address)
{
	(void)address;
	CHECK();
	atomic_fetch_sub(&fake.pins, 1);
	return CUDA_SUCCESS;
}

static CUresult module_unload(CUmodule module)
{
	CHECK();
	atomic_fetch_sub(&fake.modules, 1);
	unmake(module);
	return CUDA_SUCCESS;
}

/* ---- the host -------------------------------------------------------------------------------------------- */

static void note_facts(char *text, size_t size, const struct bh_fact *facts, uint32_t n_facts)
{
	size_t length = 0;

	text[0] = '\0';
	for (uint32_t i = 0; i < n_facts && length < size; i++) {
		if (facts[i].kind == BH_FACT_INT)
			length += (size_t)snprintf(text + length, size - length, "%s=%lld ",
						   facts[i].key, (long long)facts[i].number);
		else
			length += (size_t)snprintf(text + length, size - length, "%s=%s ",
						   facts[i].key, facts[i].text);
	}
}

static bh_status host_task_fail(struct bh_task *task, bh_status status, const char *id,
				const struct bh_fact *facts, uint32_t n_facts)
{
	if (task->status != 0)
		return status;
	task->status = status;
	snprintf(task->fail_id, sizeof(task->fail_id), "%s", id);
	note_facts(task->text, sizeof(task->text), facts, n_facts);
	return status;
}

static bh_status host_result(struct bh_task *task, const struct bh_value *value)
{
	task->result = *value;
	task->has_result = true;
	return 0;
}

static uint64_t host_task_id(const struct bh_task *task)
{
	return task->id;
}

static bh_status host_complete(struct bh_context *ctx, uint64_t task_id, bh_status status,
			       const struct bh_value *value, const char *id,
			       const struct bh_fact *facts, uint32_t n_facts)
{
	struct fake_outcome *outcome = &ctx->outcomes[task_id];

	(void)facts;
	(void)n_facts;
	pthread_mutex_lock(&fake.lock);
	outcome->n++;
	outcome->status = status;
	snprintf(outcome->id, sizeof(outcome->id), "%s", id ? id : "");
	outcome->buffer = value && value->type == BH_TYPE_BUFFER ? value->as.buffer : NULL;
	pthread_mutex_unlock(&fake.lock);
	atomic_fetch_add(&ctx->n_completed, 1);
	return 0;
}

static void host_report_failed(struct bh_context *ctx, bh_status status, const char *id,
			       const struct bh_fact *facts, uint32_t n_facts)
{
	(void)status;
	(void)facts;
	(void)n_facts;
	atomic_fetch_add(&ctx->n_failed, 1);
	snprintf(ctx->failed_id, sizeof(ctx->failed_id), "%s", id);
}

static void host_metric_add(struct bh_context *ctx, uint32_t row, int64_t delta)
{
	atomic_fetch_add(&ctx->metrics[row], delta);
}

static void host_metric_set(struct bh_context *ctx, uint32_t row, int64_t value)
{
	atomic_store(&ctx->metrics[row], value);
}

static uint64_t host_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bh_status host_buffer_info(const struct bh_buffer *buffer, struct bh_buffer_info *ret_info)
{
	*ret_info = buffer->info;
	return 0;
}

static struct bh_buffer *host_buffer_ref(struct bh_buffer *buffer)
{
	CU_ASSERT(!buffer->freed);
	atomic_fetch_add(&buffer->n_refs, 1);
	return buffer;
}

static void host_buffer_unref(struct bh_buffer *buffer)
{
	void *value;

	CU_ASSERT_FATAL(atomic_load(&buffer->n_refs) > 0);
	if (atomic_fetch_sub(&buffer->n_refs, 1) > 1)
		return;
	value = atomic_exchange(&buffer->slot, NULL);
	if (value) {
		atomic_store(&buffer->n_refs, 1);
		buffer->release(value, buffer);
		return;
	}
	CU_ASSERT(!atomic_exchange(&buffer->freed, true));
}

static bh_status host_slot_set(struct bh_context *ctx, struct bh_buffer *buffer, void *value,
			       void (*release)(void *value, struct bh_buffer *buffer))
{
	void *none = NULL;

	(void)ctx;
	buffer->release = release;
	return atomic_compare_exchange_strong(&buffer->slot, &none, value) ? 0 : -EEXIST;
}

static void *host_slot_get(struct bh_context *ctx, struct bh_buffer *buffer)
{
	(void)ctx;
	return atomic_load(&buffer->slot);
}

static void *host_slot_clear(struct bh_context *ctx, struct bh_buffer *buffer)
{
	(void)ctx;
	return atomic_exchange(&buffer->slot, NULL);
}

static struct bh_buffer *new_buffer(const struct bh_buffer_info *info)
{
	struct bh_buffer *buffer = calloc(1, sizeof(*buffer));

	buffer->info = *info;
	atomic_init(&buffer->n_refs, 1);
	pthread_mutex_lock(&fake.lock);
	buffer->next = fake.buffers;
	fake.buffers = buffer;
	pthread_mutex_unlock(&fake.lock);
	return buffer;
}

static bh_status host_buffer_wrap(struct bh_context *ctx, const struct bh_buffer_info *info,
				  void *value,
				  void (*release)(void *value, struct bh_buffer *buffer),
				  struct bh_buffer **ret_buffer)
{
	struct bh_buffer *buffer = new_buffer(info);

	(void)ctx;
	CU_ASSERT(info->kind == BH_BUFFER_CUDA);
	buffer->info.length = info->dtype_bits / 8;
	for (uint32_t i = 0; i < info->n_dims; i++)
		buffer->info.length *= (uint64_t)info->shape[i];
	buffer->release = release;
	atomic_store(&buffer->slot, value);
	*ret_buffer = buffer;
	return 0;
}

static bh_status host_buffer_alloc(struct bh_context *ctx, const struct bh_buffer_info *info,
				   uint64_t alignment, struct bh_buffer **ret_buffer)
{
	(void)ctx;
	CU_ASSERT(alignment == 4096);
	*ret_buffer = new_buffer(info);
	(*ret_buffer)->info.length = info->dtype_bits / 8;
	for (uint32_t i = 0; i < info->n_dims; i++)
		(*ret_buffer)->info.length *= (uint64_t)info->shape[i];
	(*ret_buffer)->info.data = (void *)(uintptr_t)0x900000;
	return 0;
}

static bh_status host_buffer_revoke(struct bh_context *ctx, struct bh_buffer *buffer, uint32_t held)
{
	(void)ctx;
	if (!atomic_exchange(&buffer->slot, NULL))
		return -ENOENT;
	atomic_store(&buffer->revoked, true);
	if (buffer->busy || buffer->info.flags & BH_BUFFER_SHARED ||
	    atomic_load(&buffer->n_refs) > (int)held + 1)
		return -EBUSY;
	return 0;
}

static void host_log(struct bh_context *ctx, uint32_t level, const char *message,
		     const struct bh_fact *facts, uint32_t n_facts)
{
	(void)ctx;
	(void)level;
	(void)message;
	(void)facts;
	(void)n_facts;
}

/* ---- the whole ------------------------------------------------------------------------------------------ */

static void fill_driver(struct bh_cuda_driver *driver)
{
	driver->version = 13000;
	driver->cuGetErrorName_ = error_name;
	driver->cuGetErrorString_ = error_name;
	driver->cuCtxSetCurrent_ = ctx_set;
	driver->cuCtxSynchronize_ = ctx_synchronize;
	driver->cuStreamQuery_ = stream_query;
	driver->cuCtxGetStreamPriorityRange_ = priority_range;
	driver->cuMemGetInfo_ = get_info;
	driver->cuMemHostRegister_ = host_register;
	driver->cuMemHostUnregister_ = host_unregister;
	driver->cuMemsetD8Async_ = memset_async;
	driver->cuStreamCreateWithPriority_ = stream_create;
	driver->cuStreamDestroy_ = stream_destroy;
	driver->cuStreamWaitEvent_ = stream_wait;
	driver->cuEventCreate_ = event_create;
	driver->cuEventDestroy_ = event_destroy;
	driver->cuEventRecord_ = event_record;
	driver->cuEventQuery_ = event_query;
	driver->cuModuleUnload_ = module_unload;
	driver->cuMemPoolCreate_ = pool_create;
	driver->cuMemPoolDestroy_ = pool_destroy;
	driver->cuMemPoolSetAttribute_ = pool_set;
	driver->cuMemPoolTrimTo_ = pool_trim;
	driver->cuMemAllocFromPoolAsync_ = alloc_async;
	driver->cuMemFreeAsync_ = free_async;
}

static void fill_services(struct bh_services *services)
{
	services->size = sizeof(*services);
	services->task_fail = host_task_fail;
	services->task_id = host_task_id;
	services->result = host_result;
	services->complete = host_complete;
	services->report_failed = host_report_failed;
	services->metric_add = host_metric_add;
	services->metric_set = host_metric_set;
	services->now_ns = host_now_ns;
	services->buffer_info = host_buffer_info;
	services->buffer_ref = host_buffer_ref;
	services->buffer_unref = host_buffer_unref;
	services->buffer_slot_set = host_slot_set;
	services->buffer_slot_get = host_slot_get;
	services->buffer_slot_clear = host_slot_clear;
	services->buffer_alloc = host_buffer_alloc;
	services->buffer_wrap = host_buffer_wrap;
	services->buffer_revoke = host_buffer_revoke;
	services->log = host_log;
}

void fake_begin(void)
{
	memset(&fake.driver, 0, sizeof(fake) - offsetof(struct fake, driver));
	fill_driver(&fake.driver);
	fill_services(&fake.services);
	atomic_store(&fake.memory, 1 << 20);
}

void fake_end(void)
{
	struct bh_buffer *next;

	if (atomic_load(&fake.sticky) == 0) {
		CU_ASSERT_EQUAL(atomic_load(&fake.streams), 0);
		CU_ASSERT_EQUAL(atomic_load(&fake.events), 0);
		CU_ASSERT_EQUAL(atomic_load(&fake.modules), 0);
		CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 0);
		CU_ASSERT_EQUAL(atomic_load(&fake.pins), 0);
	}
	for (struct bh_buffer *buffer = fake.buffers; buffer; buffer = next) {
		next = buffer->next;
		free(buffer);
	}
	fake.buffers = NULL;
	while (objects.next != &objects)
		unmake(objects.next->memory);
}

void *fake_module(void)
{
	atomic_fetch_add(&fake.modules, 1);
	return make(1);
}

static int64_t now_ns(void *user)
{
	(void)user;
	return (int64_t)host_now_ns();
}

static void counted(void *user, int by)
{
	(void)user;
	atomic_fetch_add(&fake.ctx.metrics[BH_CUDA_METRIC_IN_FLIGHT], by);
}

struct bh_cuda *fake_cuda(int64_t inline_ns)
{
	const struct bh_cuda_flight_options options = {
		.inline_ns = inline_ns,
		.spin_ns = 20000,
		.now_ns = now_ns,
		.counted = counted,
	};
	struct bh_cuda *cuda = calloc(1, sizeof(*cuda));
	struct bh_cuda_fault fault;

	cuda->ctx = &fake.ctx;
	cuda->services = &fake.services;
	cuda->device.driver = &fake.driver;
	cuda->device.has_pools = true;
	atomic_store(&cuda->threads, (1u << BH_CUDA_THREADS) - 1);
	CU_ASSERT_FATAL(stream_create(&cuda->stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
	CU_ASSERT_FATAL(bh_cuda_reaper_new(&cuda->reaper) == 0);
	CU_ASSERT_FATAL(bh_cuda_flight_new(&cuda->device, &options, &cuda->flight) == 0);
	CU_ASSERT_FATAL(bh_cuda_handles_new(cuda, &cuda->handles) == 0);
	CU_ASSERT_FATAL(bh_cuda_memory_new(cuda, 0, &cuda->memory, &fault) == 0);
	return cuda;
}

bool fake_cuda_free(struct bh_cuda *cuda)
{
	struct bh_cuda_left left;
	uint32_t n_lost = bh_cuda_flight_free(cuda->flight);

	bh_cuda_handles_drain(cuda->handles, BH_CUDA_MODULE, n_lost == 0);
	bh_cuda_memory_free(cuda->memory, n_lost > 0, &left);
	bh_cuda_handles_drain(cuda->handles, BH_CUDA_EVENT, n_lost == 0);
	bh_cuda_handles_drain(cuda->handles, BH_CUDA_STREAM, n_lost == 0);
	if (n_lost || left.buffers || left.pins)
		return false;
	bh_cuda_handles_free(cuda->handles);
	(void)stream_destroy(cuda->stream);
	CU_ASSERT(bh_cuda_reaper_free(cuda->reaper));
	free(cuda);
	return true;
}

struct bh_task fake_task(void)
{
	struct bh_task task;

	memset(&task, 0, sizeof(task));
	task.id = atomic_fetch_add(&fake.ctx.next_task, 1) % FAKE_TASKS;
	return task;
}

struct bh_buffer *fake_buffer(uint64_t length)
{
	struct bh_buffer_info info;

	memset(&info, 0, sizeof(info));
	info.size = sizeof(info);
	info.kind = BH_BUFFER_HOST;
	info.flags = BH_BUFFER_WRITABLE;
	info.length = length;
	return new_buffer(&info);
}

struct fake_outcome fake_outcome(uint64_t task_id)
{
	struct fake_outcome outcome;

	pthread_mutex_lock(&fake.lock);
	outcome = fake.ctx.outcomes[task_id];
	pthread_mutex_unlock(&fake.lock);
	return outcome;
}

bh_status fake_run(struct bh_cuda *cuda, const struct bh_op *ops, uint32_t n_ops, const char *name,
		   const struct bh_value *args, struct bh_task *ret_task)
{
	*ret_task = fake_task();
	for (uint32_t i = 0; i < n_ops; i++)
		if (strcmp(ops[i].name, name) == 0)
			return ops[i].run(cuda, ret_task, args);
	CU_FAIL_FATAL("no such op");
	return -ENOSYS;
}
