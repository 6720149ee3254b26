/* SPDX-License-Identifier: BSD-3-Clause */
/* memory - allocation, pinning and their end; see memory.h. The ops over them are in copies.c.
 *
 * One record a buffer lies in the buffer's slot: what it stands for is undone when the buffer's last reference
 * goes (release(), which leaves it to the reaper), by free(), or when the section ends. A pin() holds a reference of
 * its own instead, until unpin() or the end.
 *
 * Thread: see the header.
 * Fails:  cuda.out_of_memory with asked, free and total; cuda.pin, .pin_overlap, .pinned, .not_pinned; cuda.foreign,
 *         .shared, .in_use.
 * Keeps:  SUP-10: memory that somebody may still use stays. */
#include "config.h"

#include "plugins/cuda/memory.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugins/cuda/memory_private.h"
#include "plugins/cuda/reaper.h"

/* How long the end waits for releases that have begun elsewhere. */
#define RELEASE_WAIT_MS 1000

/* How long an allocation waits for what is being freed before it says that the device is full. */
#define FREE_WAIT_MS 1000u

static bool is_dead(const struct bh_cuda_memory *memory)
{
	return atomic_load_explicit(&memory->cuda->dead, memory_order_relaxed) != CUDA_SUCCESS;
}

static const struct bh_cuda_driver *driver_of(const struct bh_cuda_memory *memory)
{
	return memory->cuda->device.driver;
}

static void count(const struct bh_cuda_memory *memory, const struct bh_cuda_record *record, int by)
{
	const struct bh_services *services = memory->cuda->services;
	struct bh_context *ctx = memory->cuda->ctx;

	if (record->range)
		return; /* counted where its pages are pinned */
	services->metric_add(ctx, BH_CUDA_METRIC_ALLOCATED_BYTES, by * (int64_t)record->bytes);
	services->metric_add(ctx, BH_CUDA_METRIC_BUFFERS, by);
}

static void link_record(struct bh_cuda_memory *memory, struct bh_cuda_record *record)
{
	pthread_mutex_lock(&memory->lock);
	record->older = memory->records;
	if (record->older)
		record->older->newer = record;
	memory->records = record;
	pthread_mutex_unlock(&memory->lock);
	count(memory, record, 1);
}

static void unlink_record(struct bh_cuda_memory *memory, struct bh_cuda_record *record)
{
	pthread_mutex_lock(&memory->lock);
	if (record->newer)
		record->newer->older = record->older;
	else
		memory->records = record->older;
	if (record->older)
		record->older->newer = record->newer;
	pthread_mutex_unlock(&memory->lock);
	count(memory, record, -1);
}

/* ---- device memory --------------------------------------------------------------------------------- */

static CUresult allocate(struct bh_cuda_memory *memory, uint64_t bytes, CUdeviceptr *ret_address)
{
	if (memory->pool)
		return driver_of(memory)->cuMemAllocFromPoolAsync_(ret_address, bytes, memory->pool,
								   memory->stream);
	return driver_of(memory)->cuMemAlloc_(ret_address, bytes);
}

/* Whoever used it has ended. */
static void deallocate(struct bh_cuda_memory *memory, CUdeviceptr address)
{
	CUresult result;

	if (address == 0 || is_dead(memory))
		return;
	result = memory->pool ? driver_of(memory)->cuMemFreeAsync_(address, memory->stream)
			      : driver_of(memory)->cuMemFree_(address);
	bh_cuda_note_result(memory->cuda, result, "freeing device memory");
}

static bh_status fail_out_of_memory(const struct bh_cuda_call *call, uint64_t asked)
{
	const struct bh_cuda *cuda = call->cuda;
	size_t free_bytes = 0, total = 0;

	(void)cuda->device.driver->cuMemGetInfo_(&free_bytes, &total);
	const struct bh_fact facts[] = {
		bh_fact_int("asked", (int64_t)asked),
		bh_fact_int("free", (int64_t)free_bytes),
		bh_fact_int("total", (int64_t)total),
		bh_fact_int("device", cuda->device.ordinal),
		bh_fact_str("reason", "the device has no such memory in one piece"),
		bh_fact_str("advice", "free buffers that are not needed; others may use the device "
				      "too (nvidia-smi)"),
	};

	cuda->services->metric_add(cuda->ctx, BH_CUDA_METRIC_ERRORS, 1);
	return cuda->services->task_fail(call->task, -ENOMEM, "cuda.out_of_memory", facts, 6);
}

/* What has been let go of, and what the pool keeps, may be enough. The worker does not wait for the device. */
static CUresult allocate_again(struct bh_cuda_memory *memory, uint64_t bytes,
			       CUdeviceptr *ret_address)
{
	unsigned ms = 0;

	for (; ms < FREE_WAIT_MS && !bh_cuda_memory_reap(memory, false); ms++)
		(void)poll(NULL, 0, 1); /* the reaper is at it */
	if (memory->pool) {
		/* What was freed counts as that when the host has seen it done. */
		for (; ms < FREE_WAIT_MS &&
		       driver_of(memory)->cuStreamQuery_(memory->stream) == CUDA_ERROR_NOT_READY;
		     ms++)
			(void)poll(NULL, 0, 1);
		(void)driver_of(memory)->cuMemPoolTrimTo_(memory->pool, 0);
	}
	return allocate(memory, bytes, ret_address);
}

/* The last reference to a buffer with a record went; the one that was passed is ours. Any thread, perhaps with
 * the GIL. */
static void release(void *value, struct bh_buffer *buffer)
{
	struct bh_cuda_record *record = value;

	assert(buffer == record->buffer);
	(void)buffer;
	bh_cuda_reaper_push(record->memory->cuda->reaper, &record->reap);
}

/* Python code that was given the address may have queued work that is not over. All that is released in one round
 * was let go of before it. False: it cannot be waited for, as while another library captures a graph. */
static bool wait_for_strangers(struct bh_cuda_memory *memory)
{
	CUresult result;

	if (memory->synchronized || is_dead(memory))
		return true;
	result = driver_of(memory)->cuCtxSynchronize_();
	bh_cuda_note_result(memory->cuda, result, "cuCtxSynchronize");
	memory->synchronized = result == CUDA_SUCCESS;
	return memory->synchronized || is_dead(memory);
}

static void reap_device(struct bh_cuda_reap *reap)
{
	struct bh_cuda_record *record = (struct bh_cuda_record *)reap;
	struct bh_cuda_memory *memory = record->memory;
	const struct bh_services *services = memory->cuda->services;
	struct bh_buffer_info info = { .size = sizeof(info) };
	struct bh_buffer *buffer = record->buffer;

	if (services->buffer_info(buffer, &info) < 0 || info.flags & BH_BUFFER_SHARED) {
		if (!memory->may_wait && !memory->synchronized && !is_dead(memory)) {
			bh_cuda_reaper_push(memory->cuda->reaper, reap);
			return;
		}
		if (!wait_for_strangers(memory)) { /* SUP-10; close() tells of it */
			record->stays = true;
			return;
		}
	}
	deallocate(memory, record->address);
	unlink_record(memory, record);
	free(record);
	services->buffer_unref(buffer);
}

bh_status bh_cuda_memory_alloc(const struct bh_cuda_call *call, const struct bh_buffer_info *info,
			       uint64_t bytes, struct bh_cuda_record **ret_record)
{
	struct bh_cuda_memory *memory = call->cuda->memory;
	struct bh_buffer_info wanted = *info;
	struct bh_cuda_record *record = calloc(1, sizeof(*record));
	struct bh_cuda_fault fault;
	CUresult result = CUDA_SUCCESS;
	bh_status st = record ? 0 : -ENOMEM;

	if (st == 0 && bytes > 0) {
		result = allocate(memory, bytes, &record->address);
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			result = allocate_again(memory, bytes, &record->address);
	}
	if (result != CUDA_SUCCESS) {
		free(record);
		return result == CUDA_ERROR_OUT_OF_MEMORY
			       ? fail_out_of_memory(call, bytes)
			       : bh_cuda_check(call, result, "allocating device memory");
	}
	if (st == 0) {
		record->reap.reap = reap_device;
		record->memory = memory;
		record->bytes = bytes;
		wanted.data = (void *)(uintptr_t)record->address;
		link_record(memory, record);
		st = call->cuda->services->buffer_wrap(call->cuda->ctx, &wanted, record, release,
						       &record->buffer);
		if (st < 0) {
			deallocate(memory, record->address);
			unlink_record(memory, record);
			free(record);
		}
	}
	if (st < 0) {
		(void)bh_cuda_fault(&fault, st, "cuda.host_memory",
				    "the host has no memory for a buffer; end other programs");
		return bh_cuda_fail_by(call, &fault);
	}
	*ret_record = record;
	return 0;
}

/* ---- the end of device memory by free() --------------------------------------------------------------- */

static bh_status refuse_free(const struct bh_cuda_call *call, bh_status status, const char *id,
			     const char *reason, const char *advice)
{
	const struct bh_fact facts[] = {
		bh_fact_str("parameter", "memory"),
		bh_fact_str("reason", reason),
		bh_fact_str("advice", advice),
	};

	return call->cuda->services->task_fail(call->task, status, id, facts, 3);
}

bh_status bh_cuda_memory_free_now(const struct bh_cuda_call *call, struct bh_buffer *buffer,
				  const struct bh_buffer_info *info)
{
	struct bh_cuda *cuda = call->cuda;
	struct bh_cuda_memory *memory = cuda->memory;
	struct bh_cuda_record *record = cuda->services->buffer_slot_get(cuda->ctx, buffer);
	bh_status st;

	if (!record || record->range)
		return refuse_free(call, -EINVAL, "cuda.foreign",
				   "this is no memory of this pool's alloc()",
				   "let go of it where it is from");
	if (info->flags & BH_BUFFER_SHARED)
		return refuse_free(call, -EBUSY, "cuda.shared",
				   "other code has been given the address (DLPack, "
				   "__cuda_array_interface__) and may have queued work on it",
				   "drop the buffer and what was made of it: the memory is freed "
				   "when nothing refers to it and the device has done its work");
	st = cuda->services->buffer_revoke(cuda->ctx, buffer, 1); /* the task's argument */
	if (st == 0) {
		deallocate(memory, record->address);
		unlink_record(memory, record);
		free(record);
		return 0;
	}
	/* Whoever has it keeps it; the last one to let go of it frees it. The task holds the buffer. */
	if (st == -EBUSY)
		(void)cuda->services->buffer_slot_set(cuda->ctx, buffer, record, release);
	return refuse_free(call, -EBUSY, "cuda.in_use",
			   "another task uses this memory: it is freed when that has ended, and "
			   "nobody can use it anew",
			   "await what uses the memory before it is freed");
}

/* ---- pinned memory -------------------------------------------------------------------------------------- */

/* Whole pages, so that two buffers on one page do not disturb each other. */
static void pages_of(const struct bh_buffer_info *info, uintptr_t *ret_begin, uintptr_t *ret_end)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t data = (uintptr_t)info->data;

	*ret_begin = data & ~(page - 1);
	*ret_end = (data + info->length + page - 1) & ~(page - 1);
}

static bh_status fail_pin(const struct bh_cuda_call *call, const struct bh_buffer_info *info,
			  bh_status status, const char *id, const char *reason, const char *name)
{
	const struct bh_fact facts[] = {
		bh_fact_str("parameter", "memory"),
		bh_fact_str("reason", reason),
		bh_fact_int("bytes", (int64_t)info->length),
		bh_fact_str("status", name),
		bh_fact_str(
			"advice",
			info->flags & BH_BUFFER_WRITABLE
				? "pin memory of alloc_host(), or copy without pinning"
				: "this memory is read-only, which the driver may refuse to pin: "
				  "copy it, or copy without pinning"),
	};

	return call->cuda->services->task_fail(call->task, status, id, facts, 5);
}

static bh_status fail_register(const struct bh_cuda_call *call, const struct bh_buffer_info *info,
			       CUresult result)
{
	struct bh_cuda_fault fault;

	if (bh_cuda_is_sticky(result))
		return bh_cuda_check(call, result, "cuMemHostRegister");
	if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
		return fail_pin(call, info, -EEXIST, "cuda.pinned",
				"some of it is pinned already, by another section or a library of "
				"this process",
				"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
	(void)bh_cuda_result(call->cuda->device.driver, result, "cuMemHostRegister", &fault);
	call->cuda->services->metric_add(call->cuda->ctx, BH_CUDA_METRIC_ERRORS, 1);
	return fail_pin(call, info, fault.status, "cuda.pin", fault.text, fault.name);
}

/* The range around these pages, or a new one. Under `pinning`. */
static bh_status pin_pages(const struct bh_cuda_call *call, const struct bh_buffer_info *info,
			   struct bh_cuda_range **ret_range)
{
	struct bh_cuda_memory *memory = call->cuda->memory;
	struct bh_cuda_range *range;
	uintptr_t begin, end;
	CUresult result;

	pages_of(info, &begin, &end);
	for (range = memory->ranges; range; range = range->next) {
		if (range->begin <= begin && end <= range->end) {
			range->n_pins++;
			*ret_range = range;
			return 0;
		}
		if (range->begin < end && begin < range->end)
			return fail_pin(
				call, info, -EEXIST, "cuda.pin_overlap",
				"some of its pages are pinned with another buffer: the driver "
				"pins no page twice, so unpin that one, and pin the larger "
				"first",
				"");
	}
	range = calloc(1, sizeof(*range));
	if (!range)
		return fail_pin(call, info, -ENOMEM, "cuda.host_memory",
				"the host has no memory for its books", "");
	result = memory->cuda->device.driver->cuMemHostRegister_((void *)begin, end - begin,
								 CU_MEMHOSTREGISTER_PORTABLE);
	if (result != CUDA_SUCCESS) {
		free(range);
		return fail_register(call, info, result);
	}
	*range = (struct bh_cuda_range){ begin, end, 1, memory->ranges };
	memory->ranges = range;
	call->cuda->services->metric_add(call->cuda->ctx, BH_CUDA_METRIC_PINNED_BYTES,
					 (int64_t)(end - begin));
	*ret_range = range;
	return 0;
}

/* Under `pinning`, or after all threads. */
static void unpin_pages(struct bh_cuda_memory *memory, struct bh_cuda_range *range)
{
	struct bh_cuda_range **at = &memory->ranges;

	if (--range->n_pins > 0)
		return;
	while (*at != range)
		at = &(*at)->next;
	*at = range->next;
	if (!is_dead(memory))
		bh_cuda_note_result(memory->cuda,
				    driver_of(memory)->cuMemHostUnregister_((void *)range->begin),
				    "cuMemHostUnregister");
	memory->cuda->services->metric_add(memory->cuda->ctx, BH_CUDA_METRIC_PINNED_BYTES,
					   -(int64_t)(range->end - range->begin));
	free(range);
}

static void reap_pin(struct bh_cuda_reap *reap)
{
	struct bh_cuda_record *record = (struct bh_cuda_record *)reap;
	struct bh_cuda_memory *memory = record->memory;
	struct bh_buffer *buffer = record->buffer;

	pthread_mutex_lock(&memory->pinning);
	unpin_pages(memory, record->range);
	pthread_mutex_unlock(&memory->pinning);
	unlink_record(memory, record);
	free(record);
	memory->cuda->services->buffer_unref(buffer);
}

/* `keep`: the pin holds the buffer; else it goes with it. Under `pinning`. */
static bh_status pin_new(const struct bh_cuda_call *call, struct bh_buffer *buffer,
			 const struct bh_buffer_info *info, bool keep)
{
	struct bh_cuda *cuda = call->cuda;
	struct bh_cuda_memory *memory = cuda->memory;
	struct bh_cuda_record *record = calloc(1, sizeof(*record));
	bh_status st;

	if (!record)
		return fail_pin(call, info, -ENOMEM, "cuda.host_memory",
				"the host has no memory for its books", "");
	st = pin_pages(call, info, &record->range);
	if (st < 0) {
		free(record);
		return st;
	}
	record->reap.reap = reap_pin;
	record->memory = memory;
	record->buffer = keep ? cuda->services->buffer_ref(buffer) : buffer;
	record->address = (CUdeviceptr)(uintptr_t)info->data;
	record->bytes = info->length;
	record->n_pins = 1;
	record->keeps = keep;
	link_record(memory, record);
	if (!keep)
		st = cuda->services->buffer_slot_set(cuda->ctx, buffer, record, release);
	if (st == 0)
		return 0;
	unlink_record(memory, record);
	unpin_pages(memory, record->range);
	free(record);
	return fail_pin(call, info, st, "cuda.pin", "the host does not keep the pin", "");
}

/* A pin() of the same bytes: an object is exported anew for each op, so that its buffer tells nothing. */
static struct bh_cuda_record *find_pin(struct bh_cuda_memory *memory,
				       const struct bh_buffer_info *info)
{
	struct bh_cuda_record *record;

	pthread_mutex_lock(&memory->lock);
	record = memory->records;
	while (record && !(record->keeps && record->address == (uintptr_t)info->data &&
			   record->bytes == info->length))
		record = record->older;
	pthread_mutex_unlock(&memory->lock);
	return record;
}

bh_status bh_cuda_memory_pin(const struct bh_cuda_call *call, struct bh_buffer *buffer,
			     const struct bh_buffer_info *info, bool keep)
{
	struct bh_cuda_memory *memory = call->cuda->memory;
	struct bh_cuda_record *record;
	bh_status st = 0;

	if (info->length == 0)
		return 0;
	pthread_mutex_lock(&memory->pinning);
	record = keep ? find_pin(memory, info) : NULL;
	if (record)
		record->n_pins++;
	else
		st = pin_new(call, buffer, info, keep);
	pthread_mutex_unlock(&memory->pinning);
	return st;
}

bh_status bh_cuda_memory_unpin(const struct bh_cuda_call *call, const struct bh_buffer_info *info)
{
	struct bh_cuda_memory *memory = call->cuda->memory;
	struct bh_buffer *buffer = NULL;
	struct bh_cuda_record *record;

	if (info->length == 0)
		return 0;
	pthread_mutex_lock(&memory->pinning);
	record = find_pin(memory, info);
	if (record && --record->n_pins == 0) {
		buffer = record->buffer;
		unlink_record(memory, record);
		unpin_pages(memory, record->range);
		free(record);
	}
	pthread_mutex_unlock(&memory->pinning);
	if (buffer)
		call->cuda->services->buffer_unref(buffer);
	if (record) /* there was one */
		return 0;
	return bh_cuda_refuse(call, "cuda.not_pinned", "memory", "memory that is not pinned here",
			      "what pin() was given, all of it, once for each time");
}

/* ---- the reaper's rounds ---------------------------------------------------------------------------------- */

bool bh_cuda_memory_reap(struct bh_cuda_memory *memory, bool wait)
{
	if (wait)
		pthread_mutex_lock(&memory->reaping);
	else if (pthread_mutex_trylock(&memory->reaping) != 0)
		return false; /* it may be waiting for the device */
	memory->may_wait = wait;
	memory->synchronized = false;
	bh_cuda_reaper_run(memory->cuda->reaper);
	pthread_mutex_unlock(&memory->reaping);
	return true;
}

void bh_cuda_memory_tell(struct bh_cuda_memory *memory)
{
	const struct bh_services *services = memory->cuda->services;
	struct bh_context *ctx = memory->cuda->ctx;
	size_t free_bytes = 0, total = 0;
	CUresult result;

	if (is_dead(memory))
		return;
	result = driver_of(memory)->cuMemGetInfo_(&free_bytes, &total);
	bh_cuda_note_result(memory->cuda, result, "cuMemGetInfo");
	if (result != CUDA_SUCCESS)
		return;
	services->metric_set(ctx, BH_CUDA_METRIC_DEVICE_USED, (int64_t)(total - free_bytes));
	services->metric_set(ctx, BH_CUDA_METRIC_DEVICE_TOTAL, (int64_t)total);
}

/* ---- the whole ------------------------------------------------------------------------------------------ */

static CUresult make_pool(struct bh_cuda_memory *memory, uint64_t keep)
{
	CUmemPoolProps props;
	cuuint64_t threshold = keep;
	CUresult result;

	memset(&props, 0, sizeof(props));
	props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	props.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	props.location.id = memory->cuda->device.device;
	result = driver_of(memory)->cuMemPoolCreate_(&memory->pool, &props);
	if (result != CUDA_SUCCESS) {
		memory->pool = NULL;
		return result;
	}
	return driver_of(memory)->cuMemPoolSetAttribute_(
		memory->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
}

bh_status bh_cuda_memory_new(struct bh_cuda *cuda, uint64_t keep,
			     struct bh_cuda_memory **ret_memory, struct bh_cuda_fault *fault)
{
	struct bh_cuda_memory *memory = calloc(1, sizeof(*memory));
	const struct bh_cuda_driver *driver = cuda->device.driver;
	const char *what = "cuStreamCreateWithPriority";
	CUresult result;

	if (!memory)
		return bh_cuda_fault(fault, -ENOMEM, "cuda.host_memory",
				     "the host has no memory for the plugin");
	memory->cuda = cuda;
	result = driver->cuStreamCreateWithPriority_(&memory->stream, CU_STREAM_NON_BLOCKING, 0);
	if (result == CUDA_SUCCESS && cuda->device.has_pools) {
		what = "cuMemPoolCreate";
		result = make_pool(memory, keep);
	}
	if (result != CUDA_SUCCESS) {
		if (memory->pool)
			(void)driver->cuMemPoolDestroy_(memory->pool);
		if (memory->stream)
			(void)driver->cuStreamDestroy_(memory->stream);
		free(memory);
		return bh_cuda_result(driver, result, what, fault);
	}
	pthread_mutex_init(&memory->lock, NULL);
	pthread_mutex_init(&memory->pinning, NULL);
	pthread_mutex_init(&memory->reaping, NULL);
	*ret_memory = memory;
	return 0;
}

/* Takes one record's memory back. False: its release() has been called, so the reaper ends it; or it stays. */
static bool take_back(struct bh_cuda_memory *memory, struct bh_cuda_record *record, bool lost)
{
	const struct bh_services *services = memory->cuda->services;
	bh_status st;

	if (record->range) {
		if (!record->keeps &&
		    !services->buffer_slot_clear(memory->cuda->ctx, record->buffer))
			return false;
		record->stays = lost;
		if (lost)
			return false;
		unpin_pages(memory, record->range);
		if (record->keeps)
			services->buffer_unref(record->buffer);
		return true;
	}
	st = services->buffer_revoke(memory->cuda->ctx, record->buffer, 0);
	if (st == -ENOENT)
		return false;
	record->stays = st < 0 || lost;
	if (record->stays)
		return false;
	deallocate(memory, record->address);
	return true;
}

/* One kind: pins before device memory. */
static void take_all_back(struct bh_cuda_memory *memory, bool pins, bool lost)
{
	struct bh_cuda_record *older;

	for (struct bh_cuda_record *record = memory->records; record; record = older) {
		older = record->older;
		if (record->stays || (record->range != NULL) != pins ||
		    !take_back(memory, record, lost))
			continue;
		unlink_record(memory, record);
		free(record);
	}
}

static bool all_settled(const struct bh_cuda_memory *memory)
{
	for (const struct bh_cuda_record *record = memory->records; record; record = record->older)
		if (!record->stays)
			return false;
	return true;
}

/* Releases that have begun on other threads come by the reaper. */
static void wait_for_releases(struct bh_cuda_memory *memory)
{
	struct pollfd fd = { .fd = bh_cuda_reaper_descriptor(memory->cuda->reaper),
			     .events = POLLIN };

	while (!all_settled(memory)) {
		if (poll(&fd, 1, RELEASE_WAIT_MS) <= 0)
			return;
		bh_cuda_memory_reap(memory, true);
	}
}

void bh_cuda_memory_free(struct bh_cuda_memory *memory, bool lost, struct bh_cuda_left *ret_left)
{
	memset(ret_left, 0, sizeof(*ret_left));
	if (!memory)
		return;
	if (!lost)
		bh_cuda_memory_reap(memory, true);
	take_all_back(memory, true, lost);
	take_all_back(memory, false, lost);
	if (!lost)
		wait_for_releases(memory);
	for (const struct bh_cuda_record *record = memory->records; record;
	     record = record->older) {
		ret_left->pins += record->range != NULL;
		ret_left->buffers += record->range == NULL;
		ret_left->bytes += record->range ? 0 : record->bytes;
	}
	if (lost)
		return;
	if (memory->pool && !is_dead(memory)) /* what is left in it stays valid */
		(void)driver_of(memory)->cuMemPoolDestroy_(memory->pool);
	if (!is_dead(memory))
		(void)driver_of(memory)->cuStreamDestroy_(memory->stream);
	if (memory->records)
		return;
	pthread_mutex_destroy(&memory->reaping);
	pthread_mutex_destroy(&memory->pinning);
	pthread_mutex_destroy(&memory->lock);
	free(memory);
}
