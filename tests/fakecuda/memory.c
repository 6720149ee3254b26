/* SPDX-License-Identifier: BSD-3-Clause */
/* memory - allocations of devices, pools, host memory that the driver knows, copies and fills.
 *
 * A copy or fill whose range does not lie in one live allocation is refused with CUDA_ERROR_INVALID_VALUE, as
 * the driver does, which knows its ranges; when the memory goes between the call and the work, the context
 * dies of CUDA_ERROR_ILLEGAL_ADDRESS. */
#include "config.h"

#include "tests/fakecuda/fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(__SANITIZE_ADDRESS__) && defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(address, size) __asan_poison_memory_region(address, size)
#define UNPOISON(address, size) __asan_unpoison_memory_region(address, size)
#else
#define POISON(address, size) ((void)(address), (void)(size))
#define UNPOISON(address, size) ((void)(address), (void)(size))
#endif

#define PAGE ((size_t)4096)
#define ALIGNMENT ((size_t)512)
/* New memory is not zero, at both ends of it. */
#define DIRTY_BYTES ((size_t)65536)
#define DIRTY 0xa5

struct fake_pool {
	struct fake_object object;
	struct fake_device *device;
	size_t used, reserved; /* of the device's memory */
	size_t used_high, reserved_high, max;
	uint64_t threshold;
	int reuse[3];
	bool destroyed; /* and freed with its last allocation */
};

struct host_range {
	char *base;
	size_t size;
	unsigned int flags;
	bool allocated; /* by cuMemHostAlloc: ours to unmap */
	struct fake_context *ctx;
	uint64_t id;
	struct host_range *next;
};
static struct host_range *host_ranges; /* the lock guards it */
static uint64_t next_id = 1;

static size_t round_up(size_t size, size_t to)
{
	return (size + to - 1) / to * to;
}

/* ---- finding ---------------------------------------------------------------------------------------- */

static struct fake_device *device_of(CUdeviceptr address)
{
	for (int i = 0; i < fake.n_devices; i++) {
		struct fake_device *device = &fake.devices[i];

		if (device->base && address >= (CUdeviceptr)device->base &&
		    address < (CUdeviceptr)device->base + device->arena)
			return device;
	}
	return NULL;
}

static struct fake_allocation *allocation_of(struct fake_device *device, CUdeviceptr address,
					     size_t size)
{
	for (struct fake_allocation *a = device ? device->allocations : NULL; a; a = a->next)
		if (address >= a->base && address - a->base < a->size &&
		    size <= a->size - (address - a->base))
			return a;
	return NULL;
}

bool fake_memory_is_device(CUdeviceptr address)
{
	return device_of(address) != NULL;
}

void *fake_memory_of_device(CUdeviceptr address, size_t size, struct fake_device **ret_device)
{
	struct fake_device *device = device_of(address);

	if (!allocation_of(device, address, size))
		return NULL;
	if (ret_device)
		*ret_device = device;
	return device->alias + (address - (CUdeviceptr)device->base);
}

static struct host_range *host_range_of(const void *address, size_t size)
{
	for (struct host_range *r = host_ranges; r; r = r->next)
		if ((const char *)address >= r->base &&
		    (size_t)((const char *)address - r->base) < r->size &&
		    size <= r->size - (size_t)((const char *)address - r->base))
			return r;
	return NULL;
}

bool fake_memory_is_pinned(const void *address, size_t size)
{
	return host_range_of(address, size) != NULL;
}

/* ---- allocations -------------------------------------------------------------------------------------- */

/* Free addresses from `from` on; `*ret_link` is where the allocation goes in. */
static bool find_gap(struct fake_device *device, size_t from, size_t reserved, size_t *ret_offset,
		     struct fake_allocation ***ret_link)
{
	struct fake_allocation **link = &device->allocations;
	size_t offset = from;

	for (; *link; link = &(*link)->next) {
		size_t begin = (size_t)((*link)->base - (CUdeviceptr)device->base);

		if (begin >= offset && begin - offset >= reserved)
			break;
		if (begin + (*link)->reserved > offset)
			offset = begin + (*link)->reserved;
	}
	if (offset > device->arena || device->arena - offset < reserved)
		return false;
	*ret_offset = offset;
	*ret_link = link;
	return true;
}

/* The memory has been charged. NULL: no memory of the process, or no addresses. */
static struct fake_allocation *allocate(struct fake_device *device, size_t size, size_t charged)
{
	struct fake_allocation *allocation = calloc(1, sizeof(*allocation)), **link = NULL;
	size_t reserved = round_up(size, PAGE) + PAGE, offset = 0;
	char *memory;

	if (!allocation || (!find_gap(device, device->next, reserved, &offset, &link) &&
			    !find_gap(device, 0, reserved, &offset, &link))) {
		free(allocation);
		return NULL;
	}
	allocation->base = (CUdeviceptr)device->base + offset;
	allocation->size = size;
	allocation->reserved = reserved;
	allocation->charged = charged;
	allocation->id = next_id++;
	allocation->next = *link;
	*link = allocation;
	device->next = offset + reserved;
	memory = device->alias + offset;
	UNPOISON(memory, size);
	POISON(memory + size, reserved - size);
	memset(memory, DIRTY, size < DIRTY_BYTES ? size : DIRTY_BYTES);
	if (size > 2 * DIRTY_BYTES)
		memset(memory + size - DIRTY_BYTES, DIRTY, DIRTY_BYTES);
	fake.counts.allocations++;
	fake.counts.allocated_bytes += size;
	return allocation;
}

static void pool_end_if_done(struct fake_pool *pool)
{
	if (!pool->destroyed || pool->used > 0)
		return;
	pool->device->used -= pool->reserved;
	free(pool);
}

void fake_memory_free(struct fake_device *device, struct fake_allocation *allocation)
{
	size_t offset = (size_t)(allocation->base - (CUdeviceptr)device->base);

	for (struct fake_allocation **link = &device->allocations; *link; link = &(*link)->next)
		if (*link == allocation) {
			*link = allocation->next;
			break;
		}
	UNPOISON(device->alias + offset, allocation->reserved);
	fallocate(device->memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
		  (off_t)allocation->reserved);
	POISON(device->alias + offset, allocation->reserved);
	if (allocation->pool) {
		allocation->pool->used -= allocation->charged;
		pool_end_if_done(allocation->pool);
	} else {
		device->used -= allocation->charged;
	}
	fake.counts.allocations--;
	fake.counts.allocated_bytes -= allocation->size;
	free(allocation);
}

FAKE_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	struct fake_allocation *allocation;
	struct fake_device *device;
	size_t charged = round_up(size, ALIGNMENT);

	FAKE_BEGIN(cuMemAlloc, FAKE_CONTEXT);
	if (!address || size == 0)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	device = call.ctx->device;
	if (charged < size || charged > device->total - device->used)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	allocation = allocate(device, size, charged);
	if (!allocation)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	device->used += charged;
	*address = allocation->base;
	FAKE_END(CUDA_SUCCESS);
}

/* As the real one it waits for the device. */
FAKE_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address)
{
	struct fake_device *device;
	struct fake_allocation *allocation;

	FAKE_BEGIN(cuMemFree, FAKE_CONTEXT);
	if (address == 0)
		FAKE_END(CUDA_SUCCESS);
	device = device_of(address);
	allocation = allocation_of(device, address, 1);
	if (!allocation || allocation->base != address || allocation->freeing) {
		fake_violation("cuMemFree", "no live allocation begins at the address");
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	}
	result = fake_context_wait(&device->primary);
	if (result != CUDA_SUCCESS)
		FAKE_END(result);
	allocation = allocation_of(device, address, 1);
	if (!allocation || allocation->base != address)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	fake_memory_free(device, allocation);
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	FAKE_BEGIN(cuMemGetInfo, FAKE_CONTEXT);
	if (!free_bytes || !total)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*free_bytes = call.ctx->device->total - call.ctx->device->used;
	*total = call.ctx->device->total;
	FAKE_END(CUDA_SUCCESS);
}

/* ---- pools ------------------------------------------------------------------------------------------- */

static void pool_release(struct fake_pool *pool, uint64_t keep)
{
	size_t to = pool->used > keep ? pool->used : (size_t)keep;

	if (pool->reserved <= to)
		return;
	pool->device->used -= pool->reserved - to;
	pool->reserved = to;
}

static void release_object(struct fake_object *object, void *user)
{
	struct fake_pool *pool = (struct fake_pool *)object;

	(void)user;
	pool_release(pool, pool->threshold);
}

void fake_pools_release(struct fake_context *ctx)
{
	fake_object_each(FAKE_POOL, ctx, release_object, NULL);
}

FAKE_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *ret_pool, const CUmemPoolProps *props)
{
	struct fake_pool *pool;
	struct fake_device *device;

	FAKE_BEGIN(cuMemPoolCreate, FAKE_INIT);
	if (!ret_pool || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	device = fake_device_get(props->location.id);
	if (!device)
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	if (device->primary.refs == 0)
		FAKE_END(CUDA_ERROR_INVALID_CONTEXT);
	if (device->primary.sticky != CUDA_SUCCESS)
		FAKE_END(device->primary.sticky);
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	pool->device = device;
	pool->max = props->maxSize;
	pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
	fake_object_add(&pool->object, FAKE_POOL, &device->primary);
	fake.counts.pools++;
	*ret_pool = (CUmemoryPool)pool->object.handle;
	FAKE_END(CUDA_SUCCESS);
}

static void pool_destroy(struct fake_pool *pool)
{
	fake_object_remove(&pool->object);
	fake.counts.pools--;
	pool->destroyed = true;
	pool_release(pool, 0);
	pool_end_if_done(pool);
}

FAKE_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle)
{
	struct fake_pool *pool;

	FAKE_BEGIN(cuMemPoolDestroy, FAKE_INIT);
	pool = fake_object_find(handle, FAKE_POOL);
	if (!pool)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	pool_destroy(pool);
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	struct fake_pool *pool;

	FAKE_BEGIN(cuMemPoolTrimTo, FAKE_INIT);
	pool = fake_object_find(handle, FAKE_POOL);
	if (!pool)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	pool_release(pool, keep);
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle,
						   CUmemPool_attribute attribute, void *value)
{
	struct fake_pool *pool;

	FAKE_BEGIN(cuMemPoolSetAttribute, FAKE_INIT);
	pool = fake_object_find(handle, FAKE_POOL);
	if (!pool || !value)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	switch ((int)attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] =
			*(int *)value;
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold = *(cuuint64_t *)value;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		if (*(cuuint64_t *)value != 0) /* it can be reset only */
			FAKE_END(CUDA_ERROR_INVALID_VALUE);
		pool->reserved_high = pool->reserved;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(cuuint64_t *)value != 0)
			FAKE_END(CUDA_ERROR_INVALID_VALUE);
		pool->used_high = pool->used;
		break;
	default:
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	}
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle,
						   CUmemPool_attribute attribute, void *value)
{
	struct fake_pool *pool;

	FAKE_BEGIN(cuMemPoolGetAttribute, FAKE_INIT);
	pool = fake_object_find(handle, FAKE_POOL);
	if (!pool || !value)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	switch ((int)attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value =
			pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = pool->threshold;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = pool->reserved;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = pool->reserved_high;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = pool->used;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = pool->used_high;
		break;
	default:
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	}
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size,
						     CUmemoryPool handle, CUstream stream)
{
	struct fake_pool *pool;
	struct fake_device *device;
	struct fake_allocation *allocation;
	size_t charged = round_up(size, ALIGNMENT), grows;

	FAKE_BEGIN(cuMemAllocFromPoolAsync, FAKE_CONTEXT);
	pool = fake_object_find(handle, FAKE_POOL);
	if (!pool || !address || size == 0)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	if (!fake_stream_find(call.ctx, stream))
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	device = pool->device;
	if (charged < size || charged > device->total ||
	    (pool->max && pool->used + charged > pool->max))
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	grows = pool->used + charged > pool->reserved ? pool->used + charged - pool->reserved : 0;
	if (grows > device->total - device->used)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	allocation = allocate(device, size, charged);
	if (!allocation)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	allocation->pool = pool;
	pool->used += charged;
	pool->reserved += grows;
	device->used += grows;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
	*address = allocation->base;
	FAKE_END(CUDA_SUCCESS);
}

struct free_op {
	struct fake_op op;
	CUdeviceptr address;
	uint64_t id;
};

static void free_end(struct fake_op *op, bool ran)
{
	struct free_op *self = (struct free_op *)op;
	struct fake_device *device = device_of(self->address);
	struct fake_allocation *allocation = allocation_of(device, self->address, 1);

	(void)ran;
	/* The context may have gone meanwhile, with all its memory. */
	if (allocation && allocation->id == self->id)
		fake_memory_free(device, allocation);
	free(self);
}

FAKE_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
	struct fake_stream *stream;
	struct fake_allocation *allocation;
	struct free_op *op;

	FAKE_BEGIN(cuMemFreeAsync, FAKE_CONTEXT);
	stream = fake_stream_find(call.ctx, handle);
	if (!stream)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	allocation = allocation_of(device_of(address), address, 1);
	if (!allocation || allocation->base != address || allocation->freeing) {
		fake_violation("cuMemFreeAsync", "no live allocation begins at the address");
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	}
	op = calloc(1, sizeof(*op));
	if (!op)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	allocation->freeing = true;
	op->op.end = free_end;
	op->address = address;
	op->id = allocation->id;
	fake_stream_push(stream, &op->op);
	FAKE_END(CUDA_SUCCESS);
}

/* ---- host memory ----------------------------------------------------------------------------------------- */

/* All of the range is mapped, readable, and when asked for writable. Reading the map is slow, but no system call
 * tells as much without touching the memory. */
static bool host_mapped(const char *base, size_t size, bool writable)
{
	uintptr_t at = (uintptr_t)base, end = at + size;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");

	while (maps && at < end && fgets(line, sizeof(line), maps)) {
		unsigned long from, to;
		char rights[5];

		if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3 || to <= at)
			continue;
		if (from > at || rights[0] != 'r' || (writable && rights[1] != 'w'))
			break;
		at = to;
	}
	if (maps)
		fclose(maps);
	return at >= end;
}

/* Whole pages are locked: two ranges that share one overlap. */
static bool host_overlaps(const char *base, size_t size)
{
	uintptr_t begin = (uintptr_t)base / PAGE * PAGE,
		  end = round_up((uintptr_t)base + size, PAGE);

	for (struct host_range *r = host_ranges; r; r = r->next)
		if (begin < round_up((uintptr_t)r->base + r->size, PAGE) &&
		    (uintptr_t)r->base / PAGE * PAGE < end)
			return true;
	return false;
}

static CUresult host_add(struct fake_context *ctx, void *base, size_t size, unsigned int flags,
			 bool allocated)
{
	struct host_range *range = calloc(1, sizeof(*range));

	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*range = (struct host_range){ .base = base,
				      .size = size,
				      .flags = flags,
				      .allocated = allocated,
				      .ctx = ctx,
				      .id = next_id++,
				      .next = host_ranges };
	host_ranges = range;
	fake.counts.registrations += !allocated;
	return CUDA_SUCCESS;
}

static void host_remove(struct host_range *range)
{
	for (struct host_range **link = &host_ranges; *link; link = &(*link)->next)
		if (*link == range) {
			*link = range->next;
			break;
		}
	if (range->allocated)
		munmap(range->base, range->size);
	fake.counts.registrations -= !range->allocated;
	free(range);
}

FAKE_EXPORT CUresult CUDAAPI cuMemHostRegister_v2(void *base, size_t size, unsigned int flags)
{
	const unsigned int known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
				   CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

	FAKE_BEGIN(cuMemHostRegister, FAKE_CONTEXT);
	if (!base || size == 0 || (flags & ~known) != 0 ||
	    (uintptr_t)base + size < (uintptr_t)base || fake_memory_is_device((CUdeviceptr)base))
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	if (host_overlaps(base, size))
		FAKE_END(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	if (flags & CU_MEMHOSTREGISTER_READ_ONLY &&
	    !fake_device_attribute(call.ctx->device,
				   CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED))
		FAKE_END(CUDA_ERROR_NOT_SUPPORTED);
	if (!host_mapped(base, size, !(flags & CU_MEMHOSTREGISTER_READ_ONLY)))
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	FAKE_END(host_add(call.ctx, base, size, flags, false));
}

FAKE_EXPORT CUresult CUDAAPI cuMemHostUnregister(void *base)
{
	struct host_range *range;

	FAKE_BEGIN(cuMemHostUnregister, FAKE_CONTEXT);
	range = host_range_of(base, 1);
	if (!range || range->allocated || range->base != (char *)base) {
		fake_violation("cuMemHostUnregister", "no registered memory begins at the address");
		FAKE_END(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	}
	result = fake_context_wait(call.ctx);
	range = host_range_of(base, 1);
	if (range && !range->allocated && range->base == (char *)base)
		host_remove(range);
	FAKE_END(result);
}

FAKE_EXPORT CUresult CUDAAPI cuMemHostAlloc(void **ret_base, size_t size, unsigned int flags)
{
	void *base;

	FAKE_BEGIN(cuMemHostAlloc, FAKE_CONTEXT);
	if (!ret_base || size == 0 || flags & ~7u)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	size = round_up(size, PAGE);
	base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	result = host_add(call.ctx, base, size, flags, true);
	if (result == CUDA_SUCCESS)
		*ret_base = base;
	else
		munmap(base, size);
	FAKE_END(result);
}

FAKE_EXPORT CUresult CUDAAPI cuMemFreeHost(void *base)
{
	struct host_range *range;

	FAKE_BEGIN(cuMemFreeHost, FAKE_CONTEXT);
	range = host_range_of(base, 1);
	if (!range || !range->allocated || range->base != (char *)base) {
		fake_violation("cuMemFreeHost",
			       "no memory of cuMemHostAlloc begins at the address");
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	}
	result = fake_context_wait(call.ctx);
	range = host_range_of(base, 1);
	if (range && range->allocated && range->base == (char *)base)
		host_remove(range);
	FAKE_END(result);
}

void fake_pool_drop(struct fake_object *object, void *user)
{
	(void)user;
	pool_destroy((struct fake_pool *)object);
}

void fake_memory_drop(struct fake_context *ctx)
{
	struct fake_device *device = ctx->device;
	struct host_range *range = host_ranges;

	while (device->allocations)
		fake_memory_free(device, device->allocations);
	while (range) {
		struct host_range *next = range->next;

		if (range->ctx == ctx)
			host_remove(range);
		range = next;
	}
	fake_object_each(FAKE_POOL, ctx, fake_pool_drop, NULL);
}

/* ---- what a pointer is ------------------------------------------------------------------------------------ */

struct pointer {
	struct fake_device *device; /* NULL: unknown to the driver */
	struct fake_context *ctx;
	CUmemorytype type;
	CUdeviceptr base;
	size_t size;
	uint64_t id;
	struct fake_pool *pool;
	bool host;
};

static CUresult pointer_attribute(const struct pointer *p, CUpointer_attribute attribute,
				  CUdeviceptr address, void *data)
{
	switch ((int)attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = (CUcontext)p->ctx;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(CUmemorytype *)data = p->type;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = p->device ? address : 0;
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		*(void **)data = p->host ? (void *)address : NULL;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned int *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = p->id;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = p->device ? fake_device_ordinal(p->device) : -2;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = p->base;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = p->size;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned int *)data = p->device != NULL;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(unsigned long long *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)data = p->pool ? (CUmemoryPool)p->pool->object.handle : NULL;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

/* What is no pointer of CUDA's has default values, without an error. */
FAKE_EXPORT CUresult CUDAAPI cuPointerGetAttributes(unsigned int n, CUpointer_attribute *wanted,
						    void **data, CUdeviceptr address)
{
	struct pointer p = { 0 };
	struct fake_device *device;
	struct fake_allocation *allocation;
	const struct host_range *range;

	FAKE_BEGIN(cuPointerGetAttributes, FAKE_INIT);
	if (n == 0 || !wanted || !data)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	device = device_of(address);
	allocation = allocation_of(device, address, 1);
	range = host_range_of((void *)address, 1);
	if (allocation && !allocation->freeing)
		p = (struct pointer){ .device = device,
				      .ctx = &device->primary,
				      .type = CU_MEMORYTYPE_DEVICE,
				      .base = allocation->base,
				      .size = allocation->size,
				      .id = allocation->id,
				      .pool = allocation->pool };
	else if (range)
		p = (struct pointer){ .device = range->ctx->device,
				      .ctx = range->ctx,
				      .type = CU_MEMORYTYPE_HOST,
				      .base = (CUdeviceptr)range->base,
				      .size = range->size,
				      .id = range->id,
				      .host = true };
	for (unsigned int i = 0; i < n && result == CUDA_SUCCESS; i++)
		result = data[i] ? pointer_attribute(&p, wanted[i], address, data[i])
				 : CUDA_ERROR_INVALID_VALUE;
	FAKE_END(result);
}

/* ---- copies and fills ------------------------------------------------------------------------------------- */

enum side { SIDE_ANY, SIDE_HOST, SIDE_DEVICE };

struct copy_op {
	struct fake_op op;
	CUdeviceptr to, from;
	bool to_device, from_device;
	size_t size;
	char *staged; /* what `from`, pageable, held at the call; owned */
};

/* Lock not held: what a device's addresses mean now. NULL: nothing. */
static void *look(CUdeviceptr address, bool on_device, size_t size)
{
	void *memory = (void *)address;

	if (on_device) {
		pthread_mutex_lock(&fake.lock);
		memory = fake_memory_of_device(address, size, NULL);
		pthread_mutex_unlock(&fake.lock);
	}
	return memory;
}

static CUresult copy_run(struct fake_op *op, struct fake_context *ctx)
{
	struct copy_op *self = (struct copy_op *)op;
	void *to = look(self->to, self->to_device, self->size);
	const void *from =
		self->staged ? self->staged : look(self->from, self->from_device, self->size);

	(void)ctx;
	if (!to || !from)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	memmove(to, from, self->size);
	return CUDA_SUCCESS;
}

static void copy_end(struct fake_op *op, bool ran)
{
	struct copy_op *self = (struct copy_op *)op;

	(void)ran;
	free(self->staged);
	free(self);
}

/* A live allocation has all of the range, or it is host memory. */
static bool side_is_right(CUdeviceptr address, size_t size, enum side side, bool *ret_device)
{
	struct fake_device *device = device_of(address);
	struct fake_allocation *allocation = allocation_of(device, address, size);

	*ret_device = device != NULL;
	if (device)
		return side != SIDE_HOST && allocation && !allocation->freeing;
	return side != SIDE_DEVICE && address != 0;
}

/* Pageable memory is read during the call, and has been written when it returns. */
static CUresult copy(struct fake_call *call, CUdeviceptr to, enum side to_side, CUdeviceptr from,
		     enum side from_side, size_t size, struct fake_stream *stream, bool wait)
{
	struct copy_op *op;
	bool to_device, from_device;

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (size == 0)
		return CUDA_SUCCESS;
	if (!side_is_right(to, size, to_side, &to_device) ||
	    !side_is_right(from, size, from_side, &from_device)) {
		fake_violation(call->name, "the range does not lie in one live allocation");
		return CUDA_ERROR_INVALID_VALUE;
	}
	op = calloc(1, sizeof(*op));
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*op = (struct copy_op){ .op = { .run = copy_run, .end = copy_end },
				.to = to,
				.from = from,
				.to_device = to_device,
				.from_device = from_device,
				.size = size };
	if (!from_device && !fake_memory_is_pinned((void *)from, size) && !wait) {
		op->staged = malloc(size);
		if (!op->staged) {
			free(op);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		memcpy(op->staged, (void *)from, size);
	}
	wait |= !to_device && !fake_memory_is_pinned((void *)to, size);
	fake_stream_push(stream, &op->op);
	return wait ? fake_stream_wait(stream) : CUDA_SUCCESS;
}

#undef cuMemcpyAsync
FAKE_EXPORT CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size,
					   CUstream stream)
{
	FAKE_BEGIN(cuMemcpyAsync, FAKE_CONTEXT);
	result = copy(&call, to, SIDE_ANY, from, SIDE_ANY, size, fake_stream_find(call.ctx, stream),
		      false);
	FAKE_END(result);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size,
						  CUstream stream)
{
	FAKE_BEGIN(cuMemcpyHtoDAsync, FAKE_CONTEXT);
	result = copy(&call, to, SIDE_DEVICE, (CUdeviceptr)from, SIDE_HOST, size,
		      fake_stream_find(call.ctx, stream), false);
	FAKE_END(result);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size,
						  CUstream stream)
{
	FAKE_BEGIN(cuMemcpyDtoHAsync, FAKE_CONTEXT);
	result = copy(&call, (CUdeviceptr)to, SIDE_HOST, from, SIDE_DEVICE, size,
		      fake_stream_find(call.ctx, stream), false);
	FAKE_END(result);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size,
						  CUstream stream)
{
	FAKE_BEGIN(cuMemcpyDtoDAsync, FAKE_CONTEXT);
	result = copy(&call, to, SIDE_DEVICE, from, SIDE_DEVICE, size,
		      fake_stream_find(call.ctx, stream), false);
	FAKE_END(result);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	FAKE_BEGIN(cuMemcpyHtoD, FAKE_CONTEXT);
	result = copy(&call, to, SIDE_DEVICE, (CUdeviceptr)from, SIDE_HOST, size,
		      fake_stream_find(call.ctx, NULL), true);
	FAKE_END(result);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
	FAKE_BEGIN(cuMemcpyDtoH, FAKE_CONTEXT);
	result = copy(&call, (CUdeviceptr)to, SIDE_HOST, from, SIDE_DEVICE, size,
		      fake_stream_find(call.ctx, NULL), true);
	FAKE_END(result);
}

struct fill_op {
	struct fake_op op;
	CUdeviceptr to;
	size_t size;
	unsigned char value;
};

static CUresult fill_run(struct fake_op *op, struct fake_context *ctx)
{
	struct fill_op *self = (struct fill_op *)op;
	void *to = look(self->to, true, self->size);

	(void)ctx;
	if (!to)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	memset(to, self->value, self->size);
	return CUDA_SUCCESS;
}

#undef cuMemsetD8Async
FAKE_EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size,
					     CUstream handle)
{
	struct fake_stream *stream;
	struct fill_op *op;
	bool on_device;

	FAKE_BEGIN(cuMemsetD8Async, FAKE_CONTEXT);
	stream = fake_stream_find(call.ctx, handle);
	if (!stream)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (size == 0)
		FAKE_END(CUDA_SUCCESS);
	if (!side_is_right(to, size, SIDE_DEVICE, &on_device)) {
		fake_violation("cuMemsetD8Async", "the range does not lie in one live allocation");
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	}
	op = calloc(1, sizeof(*op));
	if (!op)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	*op = (struct fill_op){ .op = { .run = fill_run }, .to = to, .size = size, .value = value };
	fake_stream_push(stream, &op->op);
	FAKE_END(CUDA_SUCCESS);
}
