/* SPDX-License-Identifier: BSD-3-Clause */
/* device - what devices there are, what they say of themselves, and their primary contexts. */
#include "config.h"

#include "tests/fakecuda/fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONTEXTS_MAX 16 /* of one thread's stack */
#define ATTRIBUTES_MAX 64
/* Addresses for each byte of memory, so that freed ones lie idle for long. */
#define ADDRESSES_PER_BYTE 16

static _Thread_local struct fake_context *stack[CONTEXTS_MAX];
static _Thread_local unsigned depth; /* stack[depth - 1] is current */

/* ---- the environment ------------------------------------------------------------------------------ */

/* "number or name"; what is missing is 0. The figures are of no card in particular. */
static const struct {
	CUdevice_attribute attribute;
	const char *name;
	int value;
} attributes[] = {
	{ CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, "max_threads_per_block", 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, "max_block_dim_x", 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, "max_block_dim_y", 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, "max_block_dim_z", 64 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, "max_grid_dim_x", 2147483647 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, "max_grid_dim_y", 65535 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, "max_grid_dim_z", 65535 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, "max_shared_memory_per_block", 49152 },
	{ CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, "total_constant_memory", 65536 },
	{ CU_DEVICE_ATTRIBUTE_WARP_SIZE, "warp_size", 32 },
	{ CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, "max_registers_per_block", 65536 },
	{ CU_DEVICE_ATTRIBUTE_CLOCK_RATE, "clock_rate", 1000000 },
	{ CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, "gpu_overlap", 1 },
	{ CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessor_count", 4 },
	{ CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, "can_map_host_memory", 1 },
	{ CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, "concurrent_kernels", 1 },
	{ CU_DEVICE_ATTRIBUTE_ECC_ENABLED, "ecc_enabled", 0 },
	{ CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "l2_cache_size", 1 << 20 },
	{ CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, "max_threads_per_multiprocessor",
	  2048 },
	{ CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, "async_engine_count", 2 },
	{ CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "unified_addressing", 1 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "compute_capability_major", 9 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "compute_capability_minor", 0 },
	{ CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, "stream_priorities", 1 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
	  "max_shared_memory_per_block_optin", 232448 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
	  "max_shared_memory_per_multiprocessor", 233472 },
	{ CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, "can_use_host_pointer", 1 },
	{ CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "host_register", 1 },
	{ CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, "read_only_host_register", 1 },
	{ CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, "memory_pools", 1 },
};
#define N_ATTRIBUTES (sizeof(attributes) / sizeof(attributes[0]))

static struct {
	int device; /* -1: all */
	int attribute, value;
} overrides[ATTRIBUTES_MAX];
static unsigned n_overrides;

static int attribute_number(const char *name)
{
	char *end;
	long number = strtol(name, &end, 10);

	if (end != name && !*end)
		return (int)number;
	for (size_t i = 0; i < N_ATTRIBUTES; i++)
		if (strcmp(attributes[i].name, name) == 0)
			return attributes[i].attribute;
	fake_violation("fakecuda:attributes", "FAKECUDA_ATTRIBUTES names an unknown one");
	return -1;
}

static void read_attributes(const char *text)
{
	char *copy = strdup(text ? text : ""), *save = NULL;

	for (char *word = copy ? strtok_r(copy, ", ", &save) : NULL;
	     word && n_overrides < ATTRIBUTES_MAX; word = strtok_r(NULL, ", ", &save)) {
		char *colon = strchr(word, ':'), *equals = strchr(word, '=');

		if (!equals)
			continue;
		*equals = '\0';
		overrides[n_overrides].device = colon ? atoi(word) : -1;
		overrides[n_overrides].attribute = attribute_number(colon ? colon + 1 : word);
		overrides[n_overrides++].value = atoi(equals + 1);
	}
	free(copy);
}

int fake_device_attribute(const struct fake_device *device, CUdevice_attribute attribute)
{
	for (unsigned i = 0; i < n_overrides; i++)
		if (overrides[i].attribute == (int)attribute &&
		    (overrides[i].device < 0 || overrides[i].device == device->index))
			return overrides[i].value;
	if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
		return device->index + 1;
	for (size_t i = 0; i < N_ATTRIBUTES; i++)
		if (attributes[i].attribute == attribute)
			return attributes[i].value;
	return 0;
}

static size_t read_size(const char **text)
{
	char *end;
	size_t size = strtoull(*text, &end, 0);

	switch (*end) {
	case 'k':
	case 'K':
		size <<= 10;
		end++;
		break;
	case 'm':
	case 'M':
		size <<= 20;
		end++;
		break;
	case 'g':
	case 'G':
		size <<= 30;
		end++;
		break;
	default:
		break;
	}
	if (*end == ',')
		*text = end + 1;
	return size;
}

void fake_devices_setup(void)
{
	const char *text = getenv("FAKECUDA_DEVICES"), *memory = getenv("FAKECUDA_MEMORY"),
		   *peer = getenv("FAKECUDA_PEER");

	fake.n_devices = text && *text ? atoi(text) : 2;
	if (fake.n_devices < 0)
		fake.n_devices = 0;
	if (fake.n_devices > FAKE_DEVICES_MAX)
		fake.n_devices = FAKE_DEVICES_MAX;
	fake.peer = !peer || strcasecmp(peer, "no") != 0;
	read_attributes(getenv("FAKECUDA_ATTRIBUTES"));
	if (!memory || !*memory)
		memory = "1G";
	for (int i = 0; i < fake.n_devices; i++) {
		struct fake_device *device = &fake.devices[i];
		const unsigned char uuid[16] = { 0xfa, 0x6e, 0xcd, 0xa0,
						 0,    0,    0x40, 0,
						 0x80, 0,    0,	   0,
						 0,    0,    0,	   (unsigned char)i };

		device->index = i;
		memcpy(device->uuid, uuid, sizeof(uuid));
		device->uuid[4] = (unsigned char)(0x10 * (i + 1)); /* prefixes differ early */
		snprintf(device->pci, sizeof(device->pci), "0000:%02x:00.0",
			 (unsigned)(i + 1) & 0xffu);
		device->total = read_size(&memory);
		device->memory_fd = -1;
		device->primary.device = device;
	}
}

/* "GPU-fa6ecda0-1000-…" */
static void uuid_text(const struct fake_device *device, char text[48])
{
	const unsigned char *u = device->uuid;

	snprintf(text, 48,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
		 u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
		 u[14], u[15]);
}

/* The device that one word of CUDA_VISIBLE_DEVICES means. */
static struct fake_device *device_by_word(const char *word)
{
	struct fake_device *found = NULL;
	char *end, text[48];
	long number;

	if (strncasecmp(word, "GPU-", 4) == 0) {
		for (int i = 0; i < fake.n_devices; i++) {
			uuid_text(&fake.devices[i], text);
			if (strncasecmp(text, word, strlen(word)) != 0)
				continue;
			if (found)
				return NULL; /* it means more than one */
			found = &fake.devices[i];
		}
		return found;
	}
	number = strtol(word, &end, 10);
	return end != word && !*end && number >= 0 && number < fake.n_devices
		       ? &fake.devices[number]
		       : NULL;
}

/* An invalid entry ends the list, one that comes twice empties it. */
CUresult fake_devices_visible(void)
{
	const char *text = getenv("CUDA_VISIBLE_DEVICES");
	char *copy, *save = NULL;

	fake.n_visible = 0;
	if (!text) {
		for (int i = 0; i < fake.n_devices; i++)
			fake.visible[fake.n_visible++] = &fake.devices[i];
		return fake.n_visible ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
	}
	copy = strdup(text);
	for (char *word = copy ? strtok_r(copy, ", ", &save) : NULL; word;
	     word = strtok_r(NULL, ", ", &save)) {
		struct fake_device *device = device_by_word(word);

		if (!device)
			break;
		for (int i = 0; i < fake.n_visible; i++)
			if (fake.visible[i] == device)
				device = NULL;
		if (!device) {
			fake.n_visible = 0;
			break;
		}
		fake.visible[fake.n_visible++] = device;
	}
	free(copy);
	return fake.n_visible ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

struct fake_device *fake_device_get(CUdevice device)
{
	return device >= 0 && device < fake.n_visible ? fake.visible[device] : NULL;
}

int fake_device_ordinal(const struct fake_device *device)
{
	for (int i = 0; i < fake.n_visible; i++)
		if (fake.visible[i] == device)
			return i;
	return -1;
}

/* ---- devices --------------------------------------------------------------------------------------- */

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetCount(int *count)
{
	FAKE_BEGIN(cuDeviceGetCount, FAKE_INIT);
	if (!count)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*count = fake.n_visible;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
	FAKE_BEGIN(cuDeviceGet, FAKE_INIT);
	if (!device)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	if (!fake_device_get(ordinal))
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	*device = ordinal;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device)
{
	FAKE_BEGIN(cuDeviceGetName, FAKE_INIT);
	if (!fake_device_get(device))
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	if (!name || length <= 0)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	snprintf(name, (size_t)length, "%s", FAKECUDA_DEVICE_NAME);
	FAKE_END(CUDA_SUCCESS);
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
	FAKE_BEGIN(cuDeviceGetUuid, FAKE_INIT);
	if (!fake_device_get(device))
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	if (!uuid)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	memcpy(uuid->bytes, fake_device_get(device)->uuid, sizeof(uuid->bytes));
	FAKE_END(CUDA_SUCCESS);
}

#undef cuDeviceGetUuid
CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
FAKE_EXPORT CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	return get_uuid(uuid, device);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	return get_uuid(uuid, device);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
	FAKE_BEGIN(cuDeviceGetPCIBusId, FAKE_INIT);
	if (!fake_device_get(device))
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	if (!id || length < (int)sizeof("0000:00:00.0"))
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	snprintf(id, (size_t)length, "%s", fake_device_get(device)->pci);
	FAKE_END(CUDA_SUCCESS);
}

/* [domain]:[bus]:[device].[function], [domain]:[bus]:[device] or [bus]:[device].[function], hexadecimal. */
FAKE_EXPORT CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	unsigned domain = 0, bus = 0, slot = 0, function = 0;
	char text[32];

	FAKE_BEGIN(cuDeviceGetByPCIBusId, FAKE_INIT);
	if (!device || !id)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4 &&
	    (function = 0, sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) &&
	    (domain = 0, sscanf(id, "%x:%x.%x", &bus, &slot, &function) != 3))
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	snprintf(text, sizeof(text), "%04x:%02x:%02x.%x", domain, bus, slot, function);
	for (int i = 0; i < fake.n_visible; i++)
		if (strcmp(fake.visible[i]->pci, text) == 0) {
			*device = i;
			FAKE_END(CUDA_SUCCESS);
		}
	FAKE_END(CUDA_ERROR_INVALID_DEVICE);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
						  CUdevice device)
{
	FAKE_BEGIN(cuDeviceGetAttribute, FAKE_INIT);
	if (!fake_device_get(device))
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	if (!value || (int)attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*value = fake_device_attribute(fake_device_get(device), attribute);
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	FAKE_BEGIN(cuDeviceTotalMem, FAKE_INIT);
	if (!fake_device_get(device))
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	if (!bytes)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*bytes = fake_device_get(device)->total;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	FAKE_BEGIN(cuDeviceCanAccessPeer, FAKE_INIT);
	if (!fake_device_get(device) || !fake_device_get(peer))
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	if (!can)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*can = device != peer && fake.peer;
	FAKE_END(CUDA_SUCCESS);
}

/* ---- contexts ---------------------------------------------------------------------------------------- */

struct fake_context *fake_context_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

bool fake_context_known(const struct fake_context *ctx)
{
	for (int i = 0; i < fake.n_devices; i++)
		if (ctx == &fake.devices[i].primary)
			return true;
	return false;
}

void fake_context_kill(struct fake_context *ctx, CUresult code)
{
	if (ctx->sticky == CUDA_SUCCESS) {
		const char *name = NULL;

		ctx->sticky = code;
		cuGetErrorName(code, &name);
		fake_note("fakecuda:sticky", name);
	}
	pthread_cond_broadcast(&fake.progress);
}

/* Twice the same memory: at the addresses that programs see nobody can touch it. */
static bool arena_make(struct fake_device *device)
{
	size_t size = (device->total + 4095) / 4096 * 4096 * ADDRESSES_PER_BYTE;

	if (device->base)
		return true;
	device->memory_fd = memfd_create("fakecuda", MFD_CLOEXEC);
	if (device->memory_fd < 0 || ftruncate(device->memory_fd, (off_t)size) < 0)
		goto fail;
	device->base =
		mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	device->alias = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
			     device->memory_fd, 0);
	if (device->base == MAP_FAILED || device->alias == MAP_FAILED)
		goto fail;
	madvise(device->alias, size, MADV_DONTDUMP);
	madvise(device->alias, size, MADV_DONTFORK);
	device->arena = size;
	return true;
fail:
	if (device->base && device->base != MAP_FAILED)
		munmap(device->base, size);
	device->base = device->alias = NULL;
	if (device->memory_fd >= 0)
		close(device->memory_fd);
	device->memory_fd = -1;
	return false;
}

FAKE_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	struct fake_device *d;

	FAKE_BEGIN(cuDevicePrimaryCtxRetain, FAKE_INIT);
	d = fake_device_get(device);
	if (!d)
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	if (!ctx)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	/* A process whose device faulted has to be started anew. */
	if (d->primary.sticky != CUDA_SUCCESS && d->primary.refs == 0)
		FAKE_END(d->primary.sticky);
	if (!arena_make(d))
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	if (d->primary.refs == 0) {
		result = fake_streams_begin(&d->primary);
		if (result != CUDA_SUCCESS)
			FAKE_END(result);
	}
	d->primary.refs++;
	*ctx = (CUcontext)&d->primary;
	FAKE_END(CUDA_SUCCESS);
}

static void count_one(struct fake_object *object, void *user)
{
	(void)object;
	++*(unsigned *)user;
}

/* What a program left behind: the driver frees it silently, the log tells. */
static void note_leftovers(struct fake_context *ctx)
{
	unsigned n[FAKE_KINDS] = { 0 }, n_memory = 0;
	char text[160];

	for (int kind = 0; kind < FAKE_KINDS; kind++)
		fake_object_each((enum fake_kind)kind, ctx, count_one, &n[kind]);
	for (struct fake_allocation *a = ctx->device->allocations; a; a = a->next)
		n_memory += !a->freeing;
	snprintf(text, sizeof(text),
		 "left: streams=%u events=%u modules=%u allocations=%u pools=%u", n[FAKE_STREAM],
		 n[FAKE_EVENT], n[FAKE_MODULE], n_memory, n[FAKE_POOL]);
	fake_note("fakecuda:context_end", text);
}

FAKE_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	struct fake_device *d;

	FAKE_BEGIN(cuDevicePrimaryCtxRelease, FAKE_INIT);
	d = fake_device_get(device);
	if (!d)
		FAKE_END(CUDA_ERROR_INVALID_DEVICE);
	if (d->primary.refs == 0)
		FAKE_END(CUDA_ERROR_INVALID_CONTEXT);
	if (d->primary.refs == 1) {
		fake_context_wait(&d->primary);
		if (d->primary.refs != 1) { /* somebody else was quicker, or has retained it */
			d->primary.refs -= d->primary.refs > 0;
			FAKE_END(CUDA_SUCCESS);
		}
		note_leftovers(&d->primary);
		d->primary.refs = 0;
		fake_streams_end(&d->primary);
		fake_modules_end(&d->primary);
		fake_memory_drop(&d->primary);
		memset(d->primary.peers, 0, sizeof(d->primary.peers));
		pthread_cond_broadcast(&fake.progress);
	} else {
		d->primary.refs--;
	}
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx)
{
	struct fake_context *wanted = (struct fake_context *)ctx;

	FAKE_BEGIN(cuCtxSetCurrent, FAKE_INIT);
	if (wanted && (!fake_context_known(wanted) || wanted->refs == 0))
		FAKE_END(CUDA_ERROR_INVALID_CONTEXT);
	if (!wanted)
		depth -= depth > 0;
	else if (depth == 0)
		stack[depth++] = wanted;
	else
		stack[depth - 1] = wanted;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext *ctx)
{
	FAKE_BEGIN(cuCtxGetCurrent, FAKE_INIT);
	if (!ctx)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*ctx = (CUcontext)fake_context_current();
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext ctx)
{
	struct fake_context *wanted = (struct fake_context *)ctx;

	FAKE_BEGIN(cuCtxPushCurrent, FAKE_INIT);
	if (!wanted || !fake_context_known(wanted) || wanted->refs == 0)
		FAKE_END(CUDA_ERROR_INVALID_CONTEXT);
	if (depth == CONTEXTS_MAX)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	stack[depth++] = wanted;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *ctx)
{
	FAKE_BEGIN(cuCtxPopCurrent, FAKE_INIT);
	if (depth == 0)
		FAKE_END(CUDA_ERROR_INVALID_CONTEXT);
	depth--;
	if (ctx)
		*ctx = (CUcontext)stack[depth];
	FAKE_END(CUDA_SUCCESS);
}

static CUresult get_device(CUdevice *device, struct fake_context *of)
{
	struct fake_context *ctx;

	FAKE_BEGIN(cuCtxGetDevice, FAKE_INIT);
	ctx = of ? of : fake_context_current();
	if (!ctx || !fake_context_known(ctx))
		FAKE_END(CUDA_ERROR_INVALID_CONTEXT);
	if (!device)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*device = fake_device_ordinal(ctx->device);
	FAKE_END(CUDA_SUCCESS);
}

#undef cuCtxGetDevice
FAKE_EXPORT CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
	return get_device(device, NULL);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx);
CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
	return get_device(device, (struct fake_context *)ctx);
}

static CUresult synchronize(struct fake_context *of)
{
	FAKE_BEGIN(cuCtxSynchronize, FAKE_CONTEXT);
	if (of && (!fake_context_known(of) || of->refs == 0))
		FAKE_END(CUDA_ERROR_INVALID_CONTEXT);
	result = fake_context_wait(of ? of : call.ctx);
	FAKE_END(result);
}

#undef cuCtxSynchronize
FAKE_EXPORT CUresult CUDAAPI cuCtxSynchronize(void)
{
	return synchronize(NULL);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx);
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
	return synchronize((struct fake_context *)ctx);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	FAKE_BEGIN(cuCtxGetStreamPriorityRange, FAKE_CONTEXT);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = fake_device_attribute(call.ctx->device,
						  CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED)
				    ? -5
				    : 0;
	FAKE_END(CUDA_SUCCESS);
}

/* Kept for each thread, and without effect: nothing captures here. */
FAKE_EXPORT CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	static _Thread_local CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;
	CUstreamCaptureMode before = own;

	FAKE_BEGIN(cuThreadExchangeStreamCaptureMode, FAKE_INIT);
	if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	own = *mode;
	*mode = before;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	struct fake_context *other = (struct fake_context *)peer;

	FAKE_BEGIN(cuCtxEnablePeerAccess, FAKE_CONTEXT);
	if (flags != 0)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	if (!other || !fake_context_known(other) || other->refs == 0 || other == call.ctx)
		FAKE_END(CUDA_ERROR_INVALID_CONTEXT);
	if (!fake.peer)
		FAKE_END(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	if (call.ctx->peers[other->device->index])
		FAKE_END(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	call.ctx->peers[other->device->index] = true;
	FAKE_END(CUDA_SUCCESS);
}
