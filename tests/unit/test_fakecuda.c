/* SPDX-License-Identifier: BSD-3-Clause */
/* test_fakecuda - what the CUDA driver API documents, as far as the plugin builds on it.
 *
 * `make check` holds the double to it; tests/device/run holds a real driver to it. So nothing is used here that is
 * not documented, and no two gates are closed at a time: a driver may call all host functions on one thread. */
#include "config.h"

#include "tests/unit/libcuda.h"
#include "tests/unit/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define START()                                                                                    \
	do {                                                                                       \
		const char *why_ = libcuda_start();                                                \
                                                                                                   \
		if (why_) {                                                                        \
			fprintf(stderr, "# %s\n", why_);                                           \
			CU_FAIL_FATAL("the driver can be started");                                \
		}                                                                                  \
	} while (0)

#define SIZE ((size_t)1 << 20)

static CUdeviceptr device_memory(size_t size)
{
	CUdeviceptr address = 0;

	OK_FATAL(cuda.cuMemAlloc_(&address, size));
	return address;
}

static CUstream new_stream(void)
{
	CUstream stream = NULL;

	OK_FATAL(cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, 0));
	return stream;
}

static CUevent new_event(void)
{
	CUevent event = NULL;

	OK_FATAL(cuda.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING));
	return event;
}

static bool all_are(CUdeviceptr address, size_t size, unsigned char value)
{
	unsigned char *host = malloc(size);
	bool same = host && cuda.cuMemcpyDtoH_(host, address, size) == CUDA_SUCCESS;

	for (size_t i = 0; same && i < size; i++)
		same = host[i] == value;
	free(host);
	return same;
}

/* ---- the table, devices, contexts ------------------------------------------------------------------------ */

static void before_init(void)
{
	const char *why = NULL;
	int n;

	CU_ASSERT_FATAL(libcuda_load(&why));
	GIVES(CUDA_ERROR_NOT_INITIALIZED, cuda.cuDeviceGetCount_(&n));
}

static void functions_by_version(void)
{
	void *function = NULL;
	CUdriverProcAddressQueryResult found;
	const char *why = NULL;
	int version = 0;

	CU_ASSERT_FATAL(libcuda_load(&why));
#define THERE(name, version) CU_ASSERT_PTR_NOT_NULL(cuda.name##_);
	BH_CUDA_FUNCTIONS(THERE, THERE)
	LIBCUDA_MORE(THERE)
#undef THERE
	OK(cuda.cuDriverGetVersion_(&version));
	CU_ASSERT(version >= BH_CUDA_DRIVER_MIN);
	OK(cuda.get("cuMemFreeAsync", &function, 11010, 0, &found));
	CU_ASSERT_EQUAL(found, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	CU_ASSERT_PTR_NULL(function);
	OK(cuda.get("cuNoSuchFunction", &function, 12000, 0, &found));
	CU_ASSERT_EQUAL(found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	CU_ASSERT_PTR_NULL(function);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.get("cuInit", &function, version + 1000, 0, &found));
}

static void errors_have_names(void)
{
	const char *name = NULL, *text = NULL;

	START();
	OK(cuda.cuGetErrorName_(CUDA_ERROR_ILLEGAL_ADDRESS, &name));
	CU_ASSERT_STRING_EQUAL(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
	OK(cuda.cuGetErrorString_(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
	CU_ASSERT(text && text[0]);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuGetErrorName_((CUresult)12345, &name));
	CU_ASSERT_PTR_NULL(name);
}

static void devices(void)
{
	int n = 0, value = -1;
	CUdevice device = -1, same = -1;
	char name[96] = "", pci[32] = "";
	CUuuid uuid, none = { { 0 } };
	size_t total = 0;

	START();
	OK(cuda.cuDeviceGetCount_(&n));
	CU_ASSERT(n >= 1);
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuda.cuDeviceGet_(&device, n));
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuda.cuDeviceGet_(&device, -1));
	for (int i = 0; i < n; i++) {
		memset(&uuid, 0, sizeof(uuid));
		OK_FATAL(cuda.cuDeviceGet_(&device, i));
		OK(cuda.cuDeviceGetName_(name, sizeof(name), device));
		CU_ASSERT(name[0] != '\0');
		if (i == 0)
			printf("# device: %s\n", name);
		OK(cuda.cuDeviceGetUuid_(&uuid, device));
		CU_ASSERT(memcmp(&uuid, &none, sizeof(uuid)) != 0);
		OK(cuda.cuDeviceGetPCIBusId_(pci, sizeof(pci), device));
		OK(cuda.cuDeviceGetByPCIBusId_(&same, pci));
		CU_ASSERT_EQUAL(same, device);
		OK(cuda.cuDeviceTotalMem_(&total, device));
		CU_ASSERT(total > 0);
		OK(cuda.cuDeviceGetAttribute_(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
					      device));
		CU_ASSERT(value >= 7);
		OK(cuda.cuDeviceGetAttribute_(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
					      device));
		CU_ASSERT_EQUAL(value, 1);
	}
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuDeviceGetByPCIBusId_(&same, "nonsense"));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuda.cuDeviceGetAttribute_(&value, (CUdevice_attribute)100000, device));
}

static void *without_context(void *user)
{
	CUresult *results = user;
	CUdeviceptr address = 0;
	CUcontext ctx = (CUcontext)user;
	CUstream stream = NULL;

	results[0] = cuda.cuCtxGetCurrent_(&ctx);
	results[1] = ctx ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
	results[2] = cuda.cuMemAlloc_(&address, 16);
	results[3] = cuda.cuCtxSynchronize_();
	results[4] = cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, 0);
	return NULL;
}

static void context_is_the_threads(void)
{
	CUresult results[5];
	pthread_t thread;

	START();
	CU_ASSERT_FATAL(pthread_create(&thread, NULL, without_context, results) == 0);
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(results[0], CUDA_SUCCESS);
	CU_ASSERT_EQUAL(results[1], CUDA_SUCCESS);
	CU_ASSERT_EQUAL(results[2], CUDA_ERROR_INVALID_CONTEXT);
	CU_ASSERT_EQUAL(results[3], CUDA_ERROR_INVALID_CONTEXT);
	CU_ASSERT_EQUAL(results[4], CUDA_ERROR_INVALID_CONTEXT);
}

static void primary_context(void)
{
	CUcontext current = NULL, again = NULL, popped = NULL;
	CUdevice device = -1;

	START();
	OK(cuda.cuCtxGetCurrent_(&current));
	OK(cuda.cuDevicePrimaryCtxRetain_(&again, 0));
	CU_ASSERT_PTR_EQUAL(current, again);
	OK(cuda.cuDevicePrimaryCtxRelease_(0));
	OK(cuda.cuCtxSynchronize_());
	OK(cuda.cuCtxGetDevice_(&device));
	CU_ASSERT_EQUAL(device, 0);
	OK(cuda.cuCtxPushCurrent_(current));
	OK(cuda.cuCtxPopCurrent_(&popped));
	CU_ASSERT_PTR_EQUAL(popped, current);
	OK(cuda.cuCtxSetCurrent_(NULL));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuda.cuCtxSynchronize_());
	OK(cuda.cuCtxSetCurrent_(current));
	OK(cuda.cuCtxSynchronize_());
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

static void allocations(void)
{
	CUdeviceptr a = 0, b = 0;
	size_t free_bytes = 0, total = 0;

	START();
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemAlloc_(&a, 0));
	OK(cuda.cuMemGetInfo_(&free_bytes, &total));
	CU_ASSERT(free_bytes <= total);
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuda.cuMemAlloc_(&a, total + ((size_t)1 << 30)));
	a = device_memory(1000);
	b = device_memory(1000);
	CU_ASSERT(a % 256 == 0 && b % 256 == 0);
	CU_ASSERT(a + 1000 <= b || b + 1000 <= a);
	OK(cuda.cuMemFree_(a));
	OK(cuda.cuMemFree_(b));
	OK(cuda.cuMemFree_(0));
}

static void copies(void)
{
	CUdeviceptr a, b;
	CUstream stream;
	unsigned char *from = malloc(SIZE), *to = calloc(1, SIZE);

	START();
	a = device_memory(SIZE);
	b = device_memory(SIZE);
	stream = new_stream();
	for (size_t i = 0; i < SIZE; i++)
		from[i] = (unsigned char)(i * 31 + i / 256);
	OK(cuda.cuMemcpyHtoDAsync_(a, from, SIZE, stream));
	OK(cuda.cuMemcpyDtoDAsync_(b, a, SIZE, stream));
	OK(cuda.cuMemcpyDtoHAsync_(to, b, SIZE, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	CU_ASSERT(memcmp(from, to, SIZE) == 0);
	/* Unified addresses say themselves whose they are. */
	memset(to, 0, SIZE);
	OK(cuda.cuMemcpyAsync_(a + 1, (CUdeviceptr)(from + 7), 1000, stream));
	OK(cuda.cuMemcpyAsync_((CUdeviceptr)to, a, 1001, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	CU_ASSERT(to[0] == from[0] && memcmp(to + 1, from + 7, 1000) == 0);
	OK(cuda.cuMemcpyHtoD_(b, from, SIZE));
	OK(cuda.cuMemcpyDtoH_(to, b, SIZE));
	CU_ASSERT(memcmp(from, to, SIZE) == 0);
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuMemFree_(a));
	OK(cuda.cuMemFree_(b));
	free(from);
	free(to);
}

static void fills(void)
{
	CUdeviceptr a;
	CUstream stream;
	unsigned char host[4] = { 0 };

	START();
	a = device_memory(SIZE);
	stream = new_stream();
	OK(cuda.cuMemsetD8Async_(a, 0x11, SIZE, stream));
	OK(cuda.cuMemsetD8Async_(a + 1, 0x22, 2, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	OK(cuda.cuMemcpyDtoH_(host, a, 4));
	CU_ASSERT(host[0] == 0x11 && host[1] == 0x22 && host[2] == 0x22 && host[3] == 0x11);
	CU_ASSERT(all_are(a + 3, SIZE - 3, 0x11));
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuMemFree_(a));
}

struct about {
	CUmemorytype type;
	int ordinal;
	CUdeviceptr start;
	size_t size;
	CUcontext ctx;
};

static struct about about(CUdeviceptr address)
{
	struct about a = { .ordinal = -1 };
	CUpointer_attribute wanted[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
					 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
					 CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
					 CU_POINTER_ATTRIBUTE_RANGE_SIZE,
					 CU_POINTER_ATTRIBUTE_CONTEXT };
	void *data[] = { &a.type, &a.ordinal, &a.start, &a.size, &a.ctx };

	OK(cuda.cuPointerGetAttributes_(5, wanted, data, address));
	return a;
}

static void pointers(void)
{
	CUdeviceptr memory;
	CUcontext ctx = NULL;
	struct about a;
	int local = 0;

	START();
	OK(cuda.cuCtxGetCurrent_(&ctx));
	memory = device_memory(5000);
	a = about(memory + 100);
	CU_ASSERT_EQUAL(a.type, CU_MEMORYTYPE_DEVICE);
	CU_ASSERT_EQUAL(a.ordinal, 0);
	CU_ASSERT_EQUAL(a.start, memory);
	CU_ASSERT(a.size >= 5000);
	CU_ASSERT_PTR_EQUAL(a.ctx, ctx);
	OK(cuda.cuMemFree_(memory));
	/* What CUDA does not know is no error: all is zero. */
	a = about((CUdeviceptr)&local);
	CU_ASSERT_EQUAL((int)a.type, 0);
	CU_ASSERT_PTR_NULL(a.ctx);
}

static void host_registration(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *memory =
		mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *constant = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	START();
	memset(memory, 1, 4 * page);
	OK(cuda.cuMemHostRegister_(memory, 2 * page, CU_MEMHOSTREGISTER_PORTABLE));
	GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
	      cuda.cuMemHostRegister_(memory, 2 * page, 0));
	GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
	      cuda.cuMemHostRegister_(memory + page, 2 * page, 0));
	CU_ASSERT_EQUAL(about((CUdeviceptr)memory).type, CU_MEMORYTYPE_HOST);
	OK(cuda.cuMemHostUnregister_(memory));
	GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuda.cuMemHostUnregister_(memory));
	OK(cuda.cuMemHostRegister_(memory + page, page, 0));
	OK(cuda.cuMemHostUnregister_(memory + page));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemHostRegister_(memory, 0, 0));
	CU_ASSERT(cuda.cuMemHostRegister_(constant, page, 0) != CUDA_SUCCESS);
	munmap(memory, 4 * page);
	munmap(constant, page);
}

static void host_allocation(void)
{
	CUdeviceptr device;
	CUstream stream;
	unsigned char *host = NULL;

	START();
	OK_FATAL(cuda.cuMemHostAlloc_((void **)&host, SIZE, CU_MEMHOSTALLOC_PORTABLE));
	CU_ASSERT_EQUAL(about((CUdeviceptr)host).type, CU_MEMORYTYPE_HOST);
	device = device_memory(SIZE);
	stream = new_stream();
	memset(host, 0x5a, SIZE);
	OK(cuda.cuMemcpyHtoDAsync_(device, host, SIZE, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	CU_ASSERT(all_are(device, SIZE, 0x5a));
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuMemFree_(device));
	OK(cuda.cuMemFreeHost_(host));
}

static uint64_t pool_number(CUmemoryPool pool, CUmemPool_attribute attribute)
{
	cuuint64_t value = 0;

	OK(cuda.cuMemPoolGetAttribute_(pool, attribute, &value));
	return value;
}

static void pools(void)
{
	CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } };
	cuuint64_t keep = UINT64_MAX;
	CUmemoryPool pool = NULL;
	CUdeviceptr a = 0, b = 0;
	CUstream stream;
	int supported = 0;

	START();
	OK(cuda.cuDeviceGetAttribute_(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
	if (!supported)
		BH_SKIP("the device has no memory pools");
	stream = new_stream();
	OK_FATAL(cuda.cuMemPoolCreate_(&pool, &props));
	OK(cuda.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	CU_ASSERT_EQUAL(pool_number(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), UINT64_MAX);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemAllocFromPoolAsync_(&a, 0, pool, stream));
	OK_FATAL(cuda.cuMemAllocFromPoolAsync_(&a, SIZE, pool, stream));
	CU_ASSERT(pool_number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= SIZE);
	OK(cuda.cuMemsetD8Async_(a, 3, SIZE, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	CU_ASSERT(all_are(a, SIZE, 3));
	OK(cuda.cuMemFreeAsync_(a, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	/* Kept, since the threshold is so high, until it is trimmed. */
	CU_ASSERT_EQUAL(pool_number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
	CU_ASSERT(pool_number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= SIZE);
	OK(cuda.cuMemPoolTrimTo_(pool, 0));
	CU_ASSERT_EQUAL(pool_number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
	/* A pool that is destroyed lives on in its allocations. */
	OK_FATAL(cuda.cuMemAllocFromPoolAsync_(&b, SIZE, pool, stream));
	OK(cuda.cuMemPoolDestroy_(pool));
	OK(cuda.cuMemsetD8Async_(b, 4, SIZE, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	CU_ASSERT(all_are(b, SIZE, 4));
	OK(cuda.cuMemFreeAsync_(b, stream));
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuCtxSynchronize_());
}

/* ---- streams and events ----------------------------------------------------------------------------------------- */

static void stream_order(void)
{
	struct libcuda_gate gate;
	CUdeviceptr a;
	CUstream stream, other;

	START();
	a = device_memory(SIZE);
	stream = new_stream();
	other = new_stream();
	OK(cuda.cuStreamQuery_(stream));
	libcuda_gate_close(&gate, stream);
	OK(cuda.cuMemsetD8Async_(a, 1, SIZE, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuStreamQuery_(stream));
	OK(cuda.cuMemsetD8Async_(a, 2, SIZE, other)); /* does not wait */
	OK(cuda.cuStreamSynchronize_(other));
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuStreamQuery_(stream));
	libcuda_gate_open(&gate);
	OK(cuda.cuStreamSynchronize_(stream));
	OK(cuda.cuStreamQuery_(stream));
	CU_ASSERT(all_are(a, SIZE, 1));
	OK(cuda.cuStreamDestroy_(other));
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuMemFree_(a));
}

static void stream_destroyed_with_work(void)
{
	struct libcuda_gate gate;
	CUdeviceptr a;
	CUstream stream;
	CUevent event;

	START();
	a = device_memory(SIZE);
	stream = new_stream();
	event = new_event();
	libcuda_gate_close(&gate, stream);
	OK(cuda.cuMemsetD8Async_(a, 7, SIZE, stream));
	OK(cuda.cuEventRecord_(event, stream));
	OK(cuda.cuStreamDestroy_(stream)); /* returns at once */
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuEventQuery_(event));
	libcuda_gate_open(&gate);
	OK(cuda.cuEventSynchronize_(event));
	CU_ASSERT(all_are(a, SIZE, 7));
	OK(cuda.cuEventDestroy_(event));
	OK(cuda.cuMemFree_(a));
}

static void event_captures(void)
{
	struct libcuda_gate gate;
	CUstream stream, other;
	CUevent event;

	START();
	stream = new_stream();
	other = new_stream();
	event = new_event();
	OK(cuda.cuEventQuery_(event)); /* never recorded: no work */
	OK(cuda.cuEventSynchronize_(event));
	OK(cuda.cuEventRecord_(event, stream));
	OK(cuda.cuEventSynchronize_(event));
	libcuda_gate_close(&gate, stream);
	OK(cuda.cuEventQuery_(event)); /* what was queued later is not in it */
	OK(cuda.cuEventRecord_(event, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuEventQuery_(event));
	OK(cuda.cuEventRecord_(event, other)); /* the newest record counts */
	OK(cuda.cuEventSynchronize_(event));
	OK(cuda.cuEventQuery_(event));
	OK(cuda.cuEventRecord_(event, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuEventQuery_(event));
	libcuda_gate_open(&gate);
	OK(cuda.cuEventSynchronize_(event));
	OK(cuda.cuEventQuery_(event));
	OK(cuda.cuEventDestroy_(event));
	OK(cuda.cuStreamDestroy_(other));
	OK(cuda.cuStreamDestroy_(stream));
}

static void event_waits(void)
{
	struct libcuda_gate gate;
	CUdeviceptr a;
	CUstream first, second;
	CUevent event;

	START();
	a = device_memory(SIZE);
	first = new_stream();
	second = new_stream();
	event = new_event();
	OK(cuda.cuStreamWaitEvent_(second, event, 0)); /* never recorded: nothing to wait for */
	OK(cuda.cuStreamSynchronize_(second));
	libcuda_gate_close(&gate, first);
	OK(cuda.cuMemsetD8Async_(a, 1, SIZE, first));
	OK(cuda.cuEventRecord_(event, first));
	OK(cuda.cuStreamWaitEvent_(second, event, 0));
	OK(cuda.cuMemsetD8Async_(a, 2, SIZE, second));
	/* Neither a later record nor the event's end changes what is waited for. */
	OK(cuda.cuEventRecord_(event, first));
	OK(cuda.cuEventDestroy_(event));
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuStreamQuery_(second));
	libcuda_gate_open(&gate);
	OK(cuda.cuStreamSynchronize_(second));
	CU_ASSERT(all_are(a, SIZE, 2));
	OK(cuda.cuStreamSynchronize_(first));
	CU_ASSERT(all_are(a, SIZE, 2));
	OK(cuda.cuStreamDestroy_(second));
	OK(cuda.cuStreamDestroy_(first));
	OK(cuda.cuMemFree_(a));
}

static void event_times(void)
{
	struct libcuda_gate gate;
	CUstream stream;
	CUevent from = NULL, to = NULL, untimed;
	float ms = -1;

	START();
	stream = new_stream();
	untimed = new_event();
	OK_FATAL(cuda.cuEventCreate_(&from, CU_EVENT_DEFAULT));
	OK_FATAL(cuda.cuEventCreate_(&to, CU_EVENT_DEFAULT));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuda.cuEventElapsedTime_(&ms, from, to));
	OK(cuda.cuEventRecord_(from, stream));
	OK(cuda.cuEventRecord_(untimed, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	libcuda_gate_close(&gate, stream);
	OK(cuda.cuEventRecord_(to, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuEventElapsedTime_(&ms, from, to));
	libcuda_gate_open(&gate);
	OK(cuda.cuEventSynchronize_(to));
	OK(cuda.cuEventElapsedTime_(&ms, from, to));
	CU_ASSERT(ms >= 0);
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuda.cuEventElapsedTime_(&ms, untimed, to));
	OK(cuda.cuEventDestroy_(from));
	OK(cuda.cuEventDestroy_(to));
	OK(cuda.cuEventDestroy_(untimed));
	OK(cuda.cuStreamDestroy_(stream));
}

/* Time for what does not wait to be done with. */
static void let_others_work(CUdeviceptr a, CUstream stream)
{
	for (int i = 0; i < 20; i++) {
		OK(cuda.cuMemsetD8Async_(a, 1, SIZE, stream));
		OK(cuda.cuStreamSynchronize_(stream));
	}
}

static void legacy_stream(void)
{
	struct libcuda_gate gate;
	CUdeviceptr a, b;
	CUstream blocking = NULL, free_stream;

	START();
	a = device_memory(SIZE);
	b = device_memory(SIZE);
	free_stream = new_stream();
	OK_FATAL(cuda.cuStreamCreateWithPriority_(&blocking, CU_STREAM_DEFAULT, 0));
	libcuda_gate_close(&gate, CU_STREAM_LEGACY);
	OK(cuda.cuMemsetD8Async_(a, 2, SIZE, blocking));
	let_others_work(b, free_stream);
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuStreamQuery_(blocking));
	libcuda_gate_open(&gate);
	OK(cuda.cuStreamSynchronize_(blocking));
	/* And the other way round. */
	libcuda_gate_close(&gate, blocking);
	OK(cuda.cuMemsetD8Async_(a, 3, SIZE, NULL));
	let_others_work(b, free_stream);
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuStreamQuery_(NULL));
	libcuda_gate_open(&gate);
	OK(cuda.cuStreamSynchronize_(NULL));
	OK(cuda.cuStreamQuery_(blocking));
	CU_ASSERT(all_are(a, SIZE, 3));
	OK(cuda.cuStreamDestroy_(blocking));
	OK(cuda.cuStreamDestroy_(free_stream));
	OK(cuda.cuMemFree_(a));
	OK(cuda.cuMemFree_(b));
}

static void priorities(void)
{
	int least = -100, greatest = -100, priority = -100;
	CUstream stream = NULL;

	START();
	OK(cuda.cuCtxGetStreamPriorityRange_(&least, &greatest));
	CU_ASSERT(greatest <= least);
	OK_FATAL(cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, greatest));
	OK(cuda.cuStreamGetPriority_(stream, &priority));
	CU_ASSERT_EQUAL(priority, greatest);
	OK(cuda.cuStreamDestroy_(stream));
	OK_FATAL(cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, greatest - 100));
	OK(cuda.cuStreamGetPriority_(stream, &priority));
	CU_ASSERT_EQUAL(priority, greatest); /* the nearest that there is */
	OK(cuda.cuStreamDestroy_(stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuStreamCreateWithPriority_(&stream, 1u << 20, 0));
}

/* ---- modules ------------------------------------------------------------------------------------------------------ */

static CUmodule load(const char *image)
{
	CUmodule module = NULL;

	OK_FATAL(cuda.cuModuleLoadDataEx_(&module, image, 0, NULL, NULL));
	return module;
}

static CUfunction get(CUmodule module, const char *name)
{
	CUfunction function = NULL;

	OK_FATAL(cuda.cuModuleGetFunction_(&function, module, name));
	return function;
}

static void module_functions(void)
{
	const size_t offsets[] = { 0, 8, 32, 40, 48, 64 }, sizes[] = { 1, 24, 2, 8, 16, 8 };
	CUmodule module;
	CUfunction function = NULL;
	size_t offset = 0, size = 0;
	int value = 0;

	START();
	module = load(libcuda_ptx);
	GIVES(CUDA_ERROR_NOT_FOUND, cuda.cuModuleGetFunction_(&function, module, "add_two"));
	function = get(module, "odd");
	for (size_t i = 0; i < 6; i++) {
		OK(cuda.cuFuncGetParamInfo_(function, i, &offset, &size));
		CU_ASSERT_EQUAL(offset, offsets[i]);
		CU_ASSERT_EQUAL(size, sizes[i]);
	}
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuFuncGetParamInfo_(function, 6, &offset, &size));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuda.cuFuncGetParamInfo_(get(module, "empty"), 0, &offset, &size));
	OK(cuda.cuFuncGetAttribute_(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function));
	CU_ASSERT(value >= 32);
	OK(cuda.cuFuncSetAttribute_(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
				    50000));
	OK(cuda.cuFuncGetAttribute_(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
				    function));
	CU_ASSERT(value >= 50000);
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuda.cuFuncSetAttribute_(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
				       1 << 30));
	OK(cuda.cuModuleUnload_(module));
}

static void module_broken(void)
{
	char image[4096], log[2048] = "";
	CUmodule module = NULL;
	CUjit_option options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
	void *values[] = { log, (void *)(uintptr_t)sizeof(log) };

	START();
	snprintf(image, sizeof(image), "%sBROKEN\n", libcuda_ptx);
	GIVES(CUDA_ERROR_INVALID_PTX, cuda.cuModuleLoadDataEx_(&module, image, 2, options, values));
	CU_ASSERT(log[0] != '\0');
	CU_ASSERT((uintptr_t)values[1] > 0 && (uintptr_t)values[1] <= sizeof(log));
}

static void launches(void)
{
	const unsigned int n = 1000;
	unsigned int *host = malloc(n * sizeof(*host));
	CUdeviceptr data;
	CUmodule module;
	CUfunction add_one, empty;
	CUstream stream;
	void *params[] = { &data, (void *)&n };
	struct {
		CUdeviceptr data;
		unsigned int n;
	} packed;
	size_t packed_size = 12;
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
			  &packed_size, CU_LAUNCH_PARAM_END };
	bool right = true;

	START();
	data = device_memory(n * sizeof(*host));
	module = load(libcuda_ptx);
	add_one = get(module, "add_one");
	empty = get(module, "empty");
	stream = new_stream();
	packed.data = data;
	packed.n = n;
	for (unsigned int i = 0; i < n; i++)
		host[i] = i;
	OK(cuda.cuMemcpyHtoDAsync_(data, host, n * sizeof(*host), stream));
	for (int i = 0; i < 4; i++)
		OK(cuda.cuLaunchKernel_(add_one, 4, 1, 1, 256, 1, 1, 0, stream, params, NULL));
	OK(cuda.cuLaunchKernel_(add_one, 4, 1, 1, 256, 1, 1, 0, stream, NULL, extra));
	OK(cuda.cuLaunchKernel_(empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
	OK(cuda.cuMemcpyDtoHAsync_(host, data, n * sizeof(*host), stream));
	OK(cuda.cuStreamSynchronize_(stream));
	for (unsigned int i = 0; i < n; i++)
		right &= host[i] == i + 5;
	CU_ASSERT(right);
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuda.cuLaunchKernel_(empty, 0, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuda.cuLaunchKernel_(empty, 1, 1, 1, 1 << 20, 1, 1, 0, stream, NULL, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuda.cuLaunchKernel_(empty, 1, 1, 1, 1, 1, 1, 1u << 30, stream, NULL, NULL));
	OK(cuda.cuStreamSynchronize_(stream)); /* none of them has harmed the context */
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuModuleUnload_(module));
	OK(cuda.cuMemFree_(data));
	free(host);
}

static void launch_is_asynchronous(void)
{
	CUmodule module;
	CUfunction spin;
	CUstream stream;
	CUevent event;
	uint64_t ns = 300000000;
	void *params[] = { &ns };

	START();
	module = load(libcuda_ptx);
	spin = get(module, "spin");
	stream = new_stream();
	event = new_event();
	OK(cuda.cuLaunchKernel_(spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
	ns = 0; /* the value was taken at the launch */
	OK(cuda.cuEventRecord_(event, stream));
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuEventQuery_(event));
	OK(cuda.cuEventSynchronize_(event));
	OK(cuda.cuStreamQuery_(stream));
	OK(cuda.cuEventDestroy_(event));
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuModuleUnload_(module));
}

/* ---- several devices ------------------------------------------------------------------------------------------------ */

static void two_devices(void)
{
	CUcontext first = NULL, second = NULL;
	CUdeviceptr a, b;
	CUstream stream;
	int n = 0, can = -1;

	START();
	OK(cuda.cuDeviceGetCount_(&n));
	if (n < 2)
		BH_SKIP("there is one device");
	OK(cuda.cuCtxGetCurrent_(&first));
	OK_FATAL(cuda.cuDevicePrimaryCtxRetain_(&second, 1));
	CU_ASSERT(first != second);
	a = device_memory(SIZE);
	stream = new_stream();
	OK(cuda.cuMemsetD8Async_(a, 9, SIZE, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	OK(cuda.cuCtxSetCurrent_(second));
	b = device_memory(SIZE);
	CU_ASSERT_EQUAL(about(b).ordinal, 1);
	CU_ASSERT_EQUAL(about(a).ordinal, 0);
	OK(cuda.cuCtxSetCurrent_(first));
	OK(cuda.cuMemcpyAsync_(b, a, SIZE, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	OK(cuda.cuDeviceCanAccessPeer_(&can, 0, 1));
	if (can) {
		OK(cuda.cuCtxEnablePeerAccess_(second, 0));
		GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
		      cuda.cuCtxEnablePeerAccess_(second, 0));
	} else {
		GIVES(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuda.cuCtxEnablePeerAccess_(second, 0));
	}
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuda.cuCtxEnablePeerAccess_(first, 0));
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuMemFree_(a));
	OK(cuda.cuCtxSetCurrent_(second));
	CU_ASSERT(all_are(b, SIZE, 9));
	OK(cuda.cuMemFree_(b));
	OK(cuda.cuCtxSetCurrent_(first));
	OK(cuda.cuDevicePrimaryCtxRelease_(1));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuda.cuDevicePrimaryCtxRelease_(1));
}

/* ---- a fault: in a process of its own ------------------------------------------------------------------------------- */

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "# %s:%d: %s\n", __FILE__, __LINE__, #condition);          \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

static int case_sticky(void)
{
	CUmodule module = NULL;
	CUfunction store = NULL;
	CUstream stream = NULL, other = NULL;
	CUevent event = NULL;
	CUdeviceptr memory = 0, stray = 16;
	unsigned int value = 1;
	void *params[] = { &stray, &value };

	MUST(libcuda_start() == NULL);
	MUST(cuda.cuMemAlloc_(&memory, 4096) == CUDA_SUCCESS);
	MUST(cuda.cuModuleLoadDataEx_(&module, libcuda_ptx, 0, NULL, NULL) == CUDA_SUCCESS);
	MUST(cuda.cuModuleGetFunction_(&store, module, "store") == CUDA_SUCCESS);
	MUST(cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
	MUST(cuda.cuStreamCreateWithPriority_(&other, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
	MUST(cuda.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
	/* The call that causes it reports success, all later ones fail. */
	MUST(cuda.cuLaunchKernel_(store, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL) ==
	     CUDA_SUCCESS);
	MUST(cuda.cuStreamSynchronize_(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
	MUST(cuda.cuStreamQuery_(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
	MUST(cuda.cuStreamSynchronize_(other) == CUDA_ERROR_ILLEGAL_ADDRESS);
	MUST(cuda.cuCtxSynchronize_() == CUDA_ERROR_ILLEGAL_ADDRESS);
	MUST(cuda.cuMemsetD8Async_(memory, 0, 4096, other) == CUDA_ERROR_ILLEGAL_ADDRESS);
	MUST(cuda.cuMemAlloc_(&memory, 4096) == CUDA_ERROR_ILLEGAL_ADDRESS);
	MUST(cuda.cuLaunchKernel_(store, 1, 1, 1, 1, 1, 1, 0, other, params, NULL) ==
	     CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}

/* For tests/device/run: what there is, or why nothing can be tested. */
static int case_probe(void)
{
	const char *why = NULL;
	char name[96] = "";
	int version = 0, n = 0;
	CUresult result;

	if (!libcuda_load(&why)) {
		printf("no driver: %s\n", why);
		return 77;
	}
	if (libcuda_is_double()) {
		printf("the library is the test double\n");
		return 77;
	}
	result = cuda.cuInit_(0);
	if (result == CUDA_SUCCESS)
		result = cuda.cuDeviceGetCount_(&n);
	if (result != CUDA_SUCCESS || n == 0) {
		printf("a driver, but no device: cuInit and cuDeviceGetCount gave %d\n",
		       (int)result);
		return 77;
	}
	MUST(cuda.cuDeviceGetName_(name, sizeof(name), 0) == CUDA_SUCCESS);
	MUST(cuda.cuDriverGetVersion_(&version) == CUDA_SUCCESS);
	printf("%d device%s, the first is %s; the driver is of CUDA %d.%d\n", n, n == 1 ? "" : "s",
	       name, version / 1000, version % 1000 / 10);
	return 0;
}

static void sticky_fault(void)
{
	CU_ASSERT_EQUAL(libcuda_child("sticky", NULL), 0);
}

static const struct bh_test tests[] = {
	{ "nothing can be called before cuInit", before_init },
	{ "a function is found by name and version, and not when its version is too new",
	  functions_by_version },
	{ "errors have names and words, unknown ones have none", errors_have_names },
	{ "devices have names, uuids, bus ids and memory; others are refused", devices },
	{ "H12: a new thread has no context, and calls that need one say so",
	  context_is_the_threads },
	{ "the primary context is one, counted, and current where it was made so",
	  primary_context },
	{ "allocations are aligned, apart, and refused when they are empty or too large",
	  allocations },
	{ "what is copied in, on and out again is the same", copies },
	{ "fills write their bytes and no other", fills },
	{ "a pointer tells its device and range; what is not CUDA's is no error", pointers },
	{ "host memory is registered once, overlapping or unknown ranges are refused",
	  host_registration },
	{ "pinned host memory is copied from", host_allocation },
	{ "a pool keeps what was freed up to its threshold, and gives it back when trimmed",
	  pools },
	{ "a stream does things in order, and not those of another", stream_order },
	{ "a stream that is destroyed with work in it finishes that", stream_destroyed_with_work },
	{ "an event is about what was queued before it was last recorded", event_captures },
	{ "a stream waits for what an event had captured when it was told to", event_waits },
	{ "time between events: only of recorded ones, done, with timing", event_times },
	{ "the legacy stream and blocking streams wait for each other, others do not",
	  legacy_stream },
	{ "priorities lie in their range, the greatest being the least number", priorities },
	{ "PTX has its entries and their parameters", module_functions },
	{ "what is no PTX is refused, with a log", module_broken },
	{ "a kernel is launched with its arguments, and refused with impossible sizes", launches },
	{ "a launch returns before the kernel ends", launch_is_asynchronous },
	{ "two devices have contexts of their own, and memory is copied between them",
	  two_devices },
	{ "H11: after a stray store the call that made it had succeeded, and all later ones fail",
	  sticky_fault },
};

int main(int argc, char **argv)
{
	const char *why = NULL;

	if (argc == 2 && strcmp(argv[1], "--case=sticky") == 0)
		return case_sticky();
	if (argc == 2 && strcmp(argv[1], "--case=probe") == 0)
		return case_probe();
	if (!libcuda_load(&why)) {
		printf("Bail out! %s\n", why);
		return 1;
	}
	return bh_tap_main(argc, argv, libcuda_is_double() ? "double" : "driver", tests,
			   sizeof(tests) / sizeof(tests[0]));
}
