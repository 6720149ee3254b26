/* SPDX-License-Identifier: BSD-3-Clause */
/* test_fakecuda_faults - what the double does that no driver does: faults on request, its log, what it finds. */
#include "config.h"

#include "tests/fakecuda/fakecuda.h"
#include "tests/unit/libcuda.h"
#include "tests/unit/tap.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE ((size_t)1 << 16)
#define N_HAMMERS 6

static fakecuda_inject_fn *inject;
static fakecuda_clear_fn *clear;
static fakecuda_count_fn *count;
static fakecuda_calls_fn *calls_of;

static bool hooks(void)
{
	const char *why = NULL;

	if (!libcuda_load(&why))
		return false;
	inject = (fakecuda_inject_fn *)dlsym(cuda.library, "fakecuda_inject");
	clear = (fakecuda_clear_fn *)dlsym(cuda.library, "fakecuda_clear");
	count = (fakecuda_count_fn *)dlsym(cuda.library, "fakecuda_count");
	calls_of = (fakecuda_calls_fn *)dlsym(cuda.library, "fakecuda_calls");
	return inject && clear && count && calls_of;
}

#define START()                                                                                    \
	do {                                                                                       \
		CU_ASSERT_FATAL(libcuda_start() == NULL);                                          \
		CU_ASSERT_FATAL(hooks());                                                          \
	} while (0)
/* In cases, which end with the line that went wrong told. */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "# %s:%d: %s\n", __FILE__, __LINE__, #condition);          \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)
#define BEGIN() MUST(libcuda_start() == NULL && hooks())

static struct fakecuda_counts counts(void)
{
	struct fakecuda_counts now = { .size = sizeof(now) };

	count(&now);
	return now;
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static CUstream new_stream(void)
{
	CUstream stream = NULL;

	OK_FATAL(cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, 0));
	return stream;
}

static CUdeviceptr device_memory(void)
{
	CUdeviceptr address = 0;

	OK_FATAL(cuda.cuMemAlloc_(&address, SIZE));
	return address;
}

/* ---- files of a child ---------------------------------------------------------------------------------------- */

struct place {
	char dir[64], log[96], violations[96], control[96];
	char log_is[128], violations_are[128], control_is[128];
	const char *environment[8];
};

static void place_init(struct place *place, const char *more, const char *and_more)
{
	snprintf(place->dir, sizeof(place->dir), "/tmp/fakecuda-XXXXXX");
	CU_ASSERT_FATAL(mkdtemp(place->dir) != NULL);
	snprintf(place->log, sizeof(place->log), "%s/log", place->dir);
	snprintf(place->violations, sizeof(place->violations), "%s/violations", place->dir);
	snprintf(place->control, sizeof(place->control), "%s/control", place->dir);
	snprintf(place->log_is, sizeof(place->log_is), "FAKECUDA_LOG=%s", place->log);
	snprintf(place->violations_are, sizeof(place->violations_are), "FAKECUDA_VIOLATIONS=%s",
		 place->violations);
	snprintf(place->control_is, sizeof(place->control_is), "FAKECUDA_CONTROL=%s",
		 place->control);
	place->environment[0] = place->log_is;
	place->environment[1] = place->violations_are;
	place->environment[2] = place->control_is;
	place->environment[3] = more;
	place->environment[4] = and_more;
	place->environment[5] = NULL;
}

static void place_fini(struct place *place)
{
	unlink(place->log);
	unlink(place->violations);
	unlink(place->control);
	rmdir(place->dir);
}

/* Number, from 1, of the first line that has both texts; 0: none. */
static int line_with(const char *path, const char *text, const char *also)
{
	char line[512];
	FILE *file = fopen(path, "re");
	int n = 0, found = 0;

	while (file && !found && fgets(line, sizeof(line), file)) {
		n++;
		if (strstr(line, text) && strstr(line, also))
			found = n;
	}
	if (file)
		fclose(file);
	return found;
}

/* ---- rules ------------------------------------------------------------------------------------------------------ */

static void nth_call_fails(void)
{
	CUdeviceptr a = 0;

	START();
	CU_ASSERT_EQUAL(inject("fail cuMemAlloc 2 CUDA_ERROR_OUT_OF_MEMORY"), 0);
	OK(cuda.cuMemAlloc_(&a, SIZE));
	OK(cuda.cuMemFree_(a));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuda.cuMemAlloc_(&a, SIZE));
	OK(cuda.cuMemAlloc_(&a, SIZE));
	OK(cuda.cuMemFree_(a));
	clear();
	CU_ASSERT_EQUAL(inject("fail cuMemAlloc 0 999; fail cuMemGetInfo 1 2 2"), 0);
	for (int i = 0; i < 3; i++)
		GIVES(CUDA_ERROR_UNKNOWN, cuda.cuMemAlloc_(&a, SIZE));
	clear();
	OK(cuda.cuMemAlloc_(&a, SIZE));
	OK(cuda.cuMemFree_(a));
}

static void wrong_rules(void)
{
	CUdeviceptr a = 0;

	START();
	CU_ASSERT_EQUAL(inject("fail cuMemAlloc 1"), -1);
	CU_ASSERT_EQUAL(inject("fail cuMemAlloc 1 CUDA_ERROR_NO_SUCH"), -1);
	CU_ASSERT_EQUAL(inject("fail cuMemAlloc 1 2; nonsense"), -1); /* then none of them */
	OK(cuda.cuMemAlloc_(&a, SIZE));
	OK(cuda.cuMemFree_(a));
}

static void latency(void)
{
	CUstream stream;
	CUdeviceptr a;
	int64_t began;

	START();
	stream = new_stream();
	a = device_memory();
	CU_ASSERT_EQUAL(inject("latency cuStreamQuery 20000000"), 0);
	began = now_ns();
	cuda.cuStreamQuery_(stream);
	CU_ASSERT(now_ns() - began >= 20000000);
	clear();
	CU_ASSERT_EQUAL(inject("op_latency 20000000"), 0);
	began = now_ns();
	OK(cuda.cuMemsetD8Async_(a, 0, SIZE, stream));
	OK(cuda.cuMemsetD8Async_(a, 0, SIZE, stream));
	OK(cuda.cuStreamSynchronize_(stream));
	CU_ASSERT(now_ns() - began >= 40000000);
	clear();
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuMemFree_(a));
}

static _Atomic int came_back;

static void *hangs(void *user)
{
	size_t free_bytes, total;

	(void)user;
	cuda.cuMemGetInfo_(&free_bytes, &total);
	atomic_store(&came_back, 1);
	return NULL;
}

static void call_hangs(void)
{
	uint64_t before;
	pthread_t thread;

	START();
	atomic_store(&came_back, 0);
	before = calls_of("cuMemGetInfo");
	CU_ASSERT_EQUAL(inject("hang cuMemGetInfo 1"), 0);
	CU_ASSERT_FATAL(pthread_create(&thread, NULL, hangs, NULL) == 0);
	while (calls_of("cuMemGetInfo") == before)
		usleep(1000);
	usleep(20000);
	CU_ASSERT_EQUAL(atomic_load(&came_back), 0);
	OK(cuda.cuCtxSynchronize_()); /* others go on */
	clear();
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(atomic_load(&came_back), 1);
}

static void op_hangs(void)
{
	CUstream stream, other;
	CUevent event = NULL;
	CUdeviceptr a;

	START();
	stream = new_stream();
	other = new_stream();
	a = device_memory();
	OK_FATAL(cuda.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING));
	CU_ASSERT_EQUAL(inject("hang_op 1"), 0);
	OK(cuda.cuMemsetD8Async_(a, 1, SIZE, stream));
	OK(cuda.cuEventRecord_(event, stream));
	usleep(20000);
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuEventQuery_(event));
	OK(cuda.cuMemsetD8Async_(a, 2, SIZE, other));
	OK(cuda.cuStreamSynchronize_(other));
	GIVES(CUDA_ERROR_NOT_READY, cuda.cuEventQuery_(event));
	clear();
	OK(cuda.cuEventSynchronize_(event));
	OK(cuda.cuEventDestroy_(event));
	OK(cuda.cuStreamDestroy_(other));
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuMemFree_(a));
}

static int case_fault(void)
{
	CUstream stream = NULL;
	CUevent event = NULL;
	CUcontext other = NULL, again = NULL;
	CUdeviceptr a = 0;

	BEGIN();
	MUST(cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
	MUST(cuda.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
	MUST(inject("fault cuEventRecord 2 CUDA_ERROR_ECC_UNCORRECTABLE") == 0);
	MUST(cuda.cuEventRecord_(event, stream) == CUDA_SUCCESS);
	MUST(cuda.cuEventQuery_(event) == CUDA_SUCCESS);
	MUST(cuda.cuEventRecord_(event, stream) == CUDA_SUCCESS);
	MUST(cuda.cuEventQuery_(event) == CUDA_ERROR_ECC_UNCORRECTABLE);
	MUST(cuda.cuStreamDestroy_(stream) == CUDA_ERROR_ECC_UNCORRECTABLE);
	/* The other device goes on. */
	MUST(cuda.cuDevicePrimaryCtxRetain_(&other, 1) == CUDA_SUCCESS);
	MUST(cuda.cuCtxSetCurrent_(other) == CUDA_SUCCESS);
	MUST(cuda.cuMemAlloc_(&a, SIZE) == CUDA_SUCCESS);
	MUST(cuda.cuCtxSynchronize_() == CUDA_SUCCESS);
	MUST(cuda.cuMemFree_(a) == CUDA_SUCCESS);
	/* The process does not get this one back. */
	MUST(cuda.cuDevicePrimaryCtxRelease_(0) == CUDA_SUCCESS);
	MUST(cuda.cuDevicePrimaryCtxRetain_(&again, 0) == CUDA_ERROR_ECC_UNCORRECTABLE);
	MUST(inject("sticky 719 1") == 0);
	MUST(cuda.cuCtxSynchronize_() == CUDA_ERROR_LAUNCH_FAILED);
	return 0;
}

static int case_control(void)
{
	const char *path = getenv("FAKECUDA_CONTROL");
	CUdeviceptr a = 0;
	FILE *file;

	BEGIN();
	MUST(cuda.cuMemAlloc_(&a, SIZE) == CUDA_SUCCESS);
	file = fopen(path, "we");
	MUST(file && fputs("# a comment\nfail cuMemAlloc 0 2\n", file) >= 0 && fclose(file) == 0);
	MUST(cuda.cuMemAlloc_(&a, SIZE) == CUDA_ERROR_OUT_OF_MEMORY);
	MUST(cuda.cuMemAlloc_(&a, SIZE) == CUDA_ERROR_OUT_OF_MEMORY);
	file = fopen(path, "we");
	MUST(file && fclose(file) == 0);
	MUST(cuda.cuMemAlloc_(&a, SIZE) == CUDA_SUCCESS);
	return 0;
}

/* ---- what it finds ------------------------------------------------------------------------------------------------- */

static void stale_handles(void)
{
	CUstream stream;
	CUevent event = NULL;
	uint64_t before;

	START();
	stream = new_stream();
	OK_FATAL(cuda.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuEventDestroy_(event));
	before = counts().violations;
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuda.cuStreamQuery_(stream));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuda.cuEventQuery_(event));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuda.cuEventDestroy_(event));
	CU_ASSERT_EQUAL(counts().violations, before + 3);
}

static void stray_ranges(void)
{
	CUdeviceptr a;
	CUstream stream;
	char *host = calloc(1, SIZE + 1);
	uint64_t before;

	START();
	stream = new_stream();
	a = device_memory();
	before = counts().violations;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemcpyHtoDAsync_(a, host, SIZE + 1, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemcpyDtoHAsync_(host, a + SIZE - 1, 2, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemsetD8Async_(a + SIZE, 0, 1, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuda.cuMemcpyHtoDAsync_((CUdeviceptr)host, host, 1, stream));
	OK(cuda.cuMemFree_(a));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemsetD8Async_(a, 0, 1, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemFree_(a));
	CU_ASSERT_EQUAL(counts().violations, before + 6);
	OK(cuda.cuCtxSynchronize_());
	OK(cuda.cuStreamDestroy_(stream));
	free(host);
}

static void freed_in_order(void)
{
	struct libcuda_gate gate;
	CUdeviceptr a;
	CUstream stream;
	uint64_t before;

	START();
	stream = new_stream();
	a = device_memory();
	before = counts().violations;
	libcuda_gate_close(&gate, stream);
	OK(cuda.cuMemFreeAsync_(a, stream));
	/* It is still there, for what was queued before; not for what comes now. */
	CU_ASSERT(counts().allocated_bytes >= SIZE);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemFreeAsync_(a, stream));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemFree_(a));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuda.cuMemsetD8Async_(a, 0, 1, stream));
	CU_ASSERT_EQUAL(counts().violations, before + 3);
	libcuda_gate_open(&gate);
	OK(cuda.cuStreamSynchronize_(stream));
	OK(cuda.cuStreamDestroy_(stream));
}

static void images(void)
{
	unsigned char fatbin[64] = { 0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 48 };
	unsigned char cubin[128] = { 0x7f, 'E', 'L', 'F', 2, 1, 1 };
	static const unsigned char garbage[64] = { 0xff, 1, 2, 3 };
	CUmodule module = NULL;
	CUfunction function = NULL;

	START();
	/* A fatbin may be compressed: any name that the double has is taken to be in it. */
	OK(cuda.cuModuleLoadDataEx_(&module, fatbin, 0, NULL, NULL));
	OK(cuda.cuModuleGetFunction_(&function, module, "add_one"));
	GIVES(CUDA_ERROR_NOT_FOUND, cuda.cuModuleGetFunction_(&function, module, "no_such"));
	OK(cuda.cuModuleUnload_(module));
	fatbin[8] = 0; /* nothing in it */
	GIVES(CUDA_ERROR_INVALID_IMAGE, cuda.cuModuleLoadDataEx_(&module, fatbin, 0, NULL, NULL));
	cubin[18] = 190; /* the machine */
	cubin[40] = 128; /* where the section headers, none, are */
	memcpy(cubin + 64, "spin", 5);
	OK(cuda.cuModuleLoadDataEx_(&module, cubin, 0, NULL, NULL));
	OK(cuda.cuModuleGetFunction_(&function, module, "spin"));
	GIVES(CUDA_ERROR_NOT_FOUND, cuda.cuModuleGetFunction_(&function, module, "add_one"));
	OK(cuda.cuModuleUnload_(module));
	cubin[18] = 62; /* an x86 program */
	GIVES(CUDA_ERROR_INVALID_IMAGE, cuda.cuModuleLoadDataEx_(&module, cubin, 0, NULL, NULL));
	GIVES(CUDA_ERROR_INVALID_IMAGE, cuda.cuModuleLoadDataEx_(&module, garbage, 0, NULL, NULL));
}

static CUfunction load_function(const char *name)
{
	CUmodule module = NULL;
	CUfunction function = NULL;

	if (cuda.cuModuleLoadDataEx_(&module, libcuda_ptx, 0, NULL, NULL) != CUDA_SUCCESS ||
	    cuda.cuModuleGetFunction_(&function, module, name) != CUDA_SUCCESS)
		return NULL;
	return function;
}

static CUresult store_to(CUfunction store, CUdeviceptr where)
{
	unsigned int value = 77;
	void *params[] = { &where, &value };
	CUresult result = cuda.cuLaunchKernel_(store, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);

	return result == CUDA_SUCCESS ? cuda.cuStreamSynchronize_(NULL) : result;
}

static int case_stray_kernel(void)
{
	CUdeviceptr a = 0;
	CUfunction store;
	char *pinned = NULL;

	BEGIN();
	store = load_function("store");
	MUST(store);
	MUST(cuda.cuMemAlloc_(&a, SIZE) == CUDA_SUCCESS);
	MUST(cuda.cuMemHostAlloc_((void **)&pinned, 4096, 0) == CUDA_SUCCESS);
	MUST(store_to(store, a + SIZE - 4) == CUDA_SUCCESS);
	MUST(store_to(store, (CUdeviceptr)pinned) == CUDA_SUCCESS && *pinned == 77);
	MUST(cuda.cuMemFree_(a) == CUDA_SUCCESS);
	MUST(store_to(store, a) == CUDA_ERROR_ILLEGAL_ADDRESS);
	MUST(cuda.cuCtxSynchronize_() == CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}

static int case_peer_kernel(void)
{
	CUdeviceptr b = 0;
	CUcontext first = NULL, second = NULL;
	CUfunction store;

	BEGIN();
	store = load_function("store");
	MUST(cuda.cuCtxGetCurrent_(&first) == CUDA_SUCCESS);
	MUST(cuda.cuDevicePrimaryCtxRetain_(&second, 1) == CUDA_SUCCESS);
	MUST(cuda.cuCtxSetCurrent_(second) == CUDA_SUCCESS &&
	     cuda.cuMemAlloc_(&b, SIZE) == CUDA_SUCCESS);
	MUST(cuda.cuCtxSetCurrent_(first) == CUDA_SUCCESS);
	if (getenv("WITH_PEER")) {
		MUST(cuda.cuCtxEnablePeerAccess_(second, 0) == CUDA_SUCCESS);
		MUST(store_to(store, b) == CUDA_SUCCESS);
	} else {
		MUST(store_to(store, b) == CUDA_ERROR_ILLEGAL_ADDRESS);
	}
	return 0;
}

/* Work that was queued, and whose memory went before its turn came. */
static int case_freed_before(void)
{
	CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } };
	struct libcuda_gate gate;
	CUmemoryPool pool = NULL;
	CUstream stream = NULL, other = NULL;
	CUdeviceptr a = 0;

	BEGIN();
	MUST(cuda.cuMemPoolCreate_(&pool, &props) == CUDA_SUCCESS);
	MUST(cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
	MUST(cuda.cuStreamCreateWithPriority_(&other, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
	MUST(cuda.cuMemAllocFromPoolAsync_(&a, SIZE, pool, stream) == CUDA_SUCCESS);
	libcuda_gate_close(&gate, stream);
	MUST(cuda.cuMemsetD8Async_(a, 0, SIZE, stream) == CUDA_SUCCESS);
	MUST(cuda.cuMemFreeAsync_(a, other) == CUDA_SUCCESS);
	MUST(cuda.cuStreamSynchronize_(other) == CUDA_SUCCESS);
	libcuda_gate_open(&gate);
	MUST(cuda.cuStreamSynchronize_(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}

static int case_host_touches(void)
{
	CUdeviceptr a = 0;

	BEGIN();
	MUST(cuda.cuMemAlloc_(&a, SIZE) == CUDA_SUCCESS);
	*(volatile char *)a = 1;
	return 0;
}

static void device_memory_is_not_the_hosts(void)
{
	/* A sanitizer makes an exit status of the signal. */
	CU_ASSERT(libcuda_child("host_touches", NULL) != 0);
}

static CUresult from_stream;

static void CUDA_CB calls_driver(void *user)
{
	int n;

	(void)user;
	from_stream = cuda.cuDeviceGetCount_(&n);
}

static void host_function_calls(void)
{
	uint64_t before;

	START();
	before = counts().violations;
	OK(cuda.cuLaunchHostFunc_(NULL, calls_driver, NULL));
	OK(cuda.cuStreamSynchronize_(NULL));
	CU_ASSERT_EQUAL(from_stream, CUDA_ERROR_NOT_PERMITTED);
	CU_ASSERT_EQUAL(counts().violations, before + 1);
}

static int case_leftovers(void)
{
	CUstream stream = NULL;
	CUdeviceptr a = 0;
	CUcontext ctx = NULL;

	BEGIN();
	MUST(cuda.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
	MUST(cuda.cuMemAlloc_(&a, SIZE) == CUDA_SUCCESS);
	MUST(cuda.cuDevicePrimaryCtxRelease_(0) == CUDA_SUCCESS);
	MUST(cuda.cuCtxSynchronize_() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
	MUST(cuda.cuDevicePrimaryCtxRetain_(&ctx, 0) == CUDA_SUCCESS);
	MUST(cuda.cuStreamQuery_(stream) == CUDA_ERROR_INVALID_HANDLE);
	MUST(cuda.cuMemFree_(a) == CUDA_ERROR_INVALID_VALUE);
	return 0;
}

static void leftovers(void)
{
	struct place place;

	place_init(&place, NULL, NULL);
	CU_ASSERT_EQUAL(libcuda_child("leftovers", place.environment), 0);
	CU_ASSERT(line_with(place.log, "fakecuda:context_end",
			    "streams=1 events=0 modules=0 allocations=1"));
	place_fini(&place);
}

/* ---- the process ------------------------------------------------------------------------------------------------------- */

static void too_late(void)
{
	CUdeviceptr a;

	/* The driver's handler, registered after this one, has run before it. */
	_exit(cuda.cuMemAlloc_(&a, SIZE) == CUDA_ERROR_DEINITIALIZED ? 42 : 1);
}

static int case_late(void)
{
	MUST(atexit(too_late) == 0);
	BEGIN();
	MUST(cuda.cuCtxSynchronize_() == CUDA_SUCCESS);
	exit(0);
}

static void after_exit(void)
{
	struct place place;

	place_init(&place, NULL, NULL);
	CU_ASSERT_EQUAL(libcuda_child("late", place.environment), 42);
	CU_ASSERT(line_with(place.violations, "cuMemAlloc", "after the driver's exit handler"));
	CU_ASSERT(line_with(place.log, "fakecuda:exit", "handler") >
		  line_with(place.log, "cuCtxSynchronize", ""));
	CU_ASSERT(line_with(place.log, "cuMemAlloc", " 4") >
		  line_with(place.log, "fakecuda:exit", "handler"));
	place_fini(&place);
	place_init(&place, "FAKECUDA_INJECT=late abort", NULL);
	CU_ASSERT_EQUAL(libcuda_child("late", place.environment), 256 + SIGABRT);
	place_fini(&place);
}

static int case_fork(void)
{
	CUdeviceptr a;
	int status, n;
	pid_t pid;

	BEGIN();
	pid = fork();
	if (pid == 0)
		_exit(cuda.cuMemAlloc_(&a, SIZE) == CUDA_ERROR_NOT_INITIALIZED &&
				      cuda.cuDeviceGetCount_(&n) == CUDA_ERROR_NOT_INITIALIZED &&
				      cuda.cuInit_(0) == CUDA_ERROR_NOT_INITIALIZED
			      ? 0
			      : 1);
	MUST(waitpid(pid, &status, 0) == pid && status == 0);
	pid = fork(); /* its exit is not the driver's */
	if (pid == 0)
		exit(0);
	MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	MUST(cuda.cuCtxSynchronize_() == CUDA_SUCCESS);
	return 0;
}

static void forked_child(void)
{
	struct place place;

	place_init(&place, NULL, NULL);
	CU_ASSERT_EQUAL(libcuda_child("fork", place.environment), 0);
	CU_ASSERT(line_with(place.violations, "cuMemAlloc", "in a forked child"));
	CU_ASSERT(line_with(place.violations, "cuInit", "in a forked child"));
	place_fini(&place);
}

static int case_log(void)
{
	BEGIN();
	pthread_setname_np(pthread_self(), "a thread");
	MUST(cuda.cuCtxSynchronize_() == CUDA_SUCCESS);
	return 0;
}

static void log_lines(void)
{
	struct place place;
	char line[512], name[32] = "", function[64] = "";
	long long ns = 0;
	int tid = 0, pid = 0, result = -1;
	FILE *file;

	place_init(&place, NULL, NULL);
	CU_ASSERT_EQUAL(libcuda_child("log", place.environment), 0);
	file = fopen(place.log, "re");
	CU_ASSERT_PTR_NOT_NULL_FATAL(file);
	while (fgets(line, sizeof(line), file) && !strstr(line, "cuCtxSynchronize"))
		;
	fclose(file);
	CU_ASSERT_EQUAL(
		sscanf(line, "%lld %d %31s %d %63s %d", &ns, &tid, name, &pid, function, &result),
		6);
	CU_ASSERT(ns > 0 && tid > 0 && tid == pid);
	CU_ASSERT_STRING_EQUAL(name, "a_thread");
	CU_ASSERT_STRING_EQUAL(function, "cuCtxSynchronize");
	CU_ASSERT_EQUAL(result, 0);
	CU_ASSERT(line_with(place.log, "cuInit 0", ""));
	place_fini(&place);
}

/* ---- the environment ----------------------------------------------------------------------------------------------------- */

/* EXPECT is what cuInit gives and, when 0, the bus ids. */
static int case_devices(void)
{
	char text[256] = "", pci[32];
	const char *why = NULL;
	int n = 0;
	CUresult result;

	MUST(libcuda_load(&why));
	result = cuda.cuInit_(0);
	snprintf(text, sizeof(text), "%d", (int)result);
	if (result == CUDA_SUCCESS)
		MUST(cuda.cuDeviceGetCount_(&n) == CUDA_SUCCESS);
	for (int i = 0; i < n; i++) {
		MUST(cuda.cuDeviceGetPCIBusId_(pci, sizeof(pci), i) == CUDA_SUCCESS);
		strcat(strcat(text, " "), pci + 5);
	}
	MUST(getenv("EXPECT"));
	if (strcmp(text, getenv("EXPECT")) != 0) {
		fprintf(stderr, "# %s, not %s\n", text, getenv("EXPECT"));
		return 1;
	}
	return 0;
}

static void visible_devices(void)
{
	static const struct {
		const char *visible, *expect;
	} cases[] = {
		{ "CUDA_VISIBLE_DEVICES=0,1,2", "EXPECT=0 01:00.0 02:00.0 03:00.0" },
		{ "CUDA_VISIBLE_DEVICES=2,0", "EXPECT=0 03:00.0 01:00.0" },
		{ "CUDA_VISIBLE_DEVICES=1,-1,0", "EXPECT=0 02:00.0" },
		{ "CUDA_VISIBLE_DEVICES=1,9,0", "EXPECT=0 02:00.0" },
		{ "CUDA_VISIBLE_DEVICES=", "EXPECT=100" },
		{ "CUDA_VISIBLE_DEVICES=-1", "EXPECT=100" },
		{ "CUDA_VISIBLE_DEVICES=GPU-fa6ecda0-30", "EXPECT=0 03:00.0" },
		{ "CUDA_VISIBLE_DEVICES=GPU-fa6ecda0",
		  "EXPECT=100" }, /* it could be each of them */
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *environment[] = { "FAKECUDA_DEVICES=3", cases[i].visible,
					      cases[i].expect, NULL };

		CU_ASSERT_EQUAL(libcuda_child("devices", environment), 0);
	}
}

static void no_devices(void)
{
	const char *none[] = { "FAKECUDA_DEVICES=0", "EXPECT=100", NULL };
	const char *broken[] = { "FAKECUDA_INJECT=fail cuInit 1 CUDA_ERROR_UNKNOWN", "EXPECT=999",
				 NULL };

	CU_ASSERT_EQUAL(libcuda_child("devices", none), 0);
	CU_ASSERT_EQUAL(libcuda_child("devices", broken), 0);
}

static int case_old(void)
{
	void *function = NULL;
	CUdriverProcAddressQueryResult found;
	const char *why = NULL;
	int version = 0;

	MUST(libcuda_load(&why));
	MUST(cuda.cuDriverGetVersion_(&version) == CUDA_SUCCESS && version == 11020);
	MUST(cuda.cuMemPoolCreate_ && !cuda.cuFuncGetParamInfo_ && !cuda.cuDeviceGetUuid_);
	MUST(cuda.get("cuInit", &function, 12000, 0, &found) == CUDA_ERROR_INVALID_VALUE);
	return 0;
}

static void old_driver(void)
{
	const char *environment[] = { "FAKECUDA_VERSION=11020", NULL };

	CU_ASSERT_EQUAL(libcuda_child("old", environment), 0);
}

static int case_memory(void)
{
	CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } };
	cuuint64_t keep = UINT64_MAX;
	size_t free_bytes, total, half = (size_t)1 << 19;
	CUmemoryPool pool = NULL;
	CUdeviceptr a = 0, b = 0;
	int pools = -1;

	BEGIN();
	MUST(cuda.cuMemGetInfo_(&free_bytes, &total) == CUDA_SUCCESS);
	MUST(total == 1 << 20 && free_bytes == total);
	MUST(cuda.cuMemAlloc_(&a, half) == CUDA_SUCCESS);
	MUST(cuda.cuMemAlloc_(&b, half + 1) == CUDA_ERROR_OUT_OF_MEMORY);
	MUST(cuda.cuMemGetInfo_(&free_bytes, &total) == CUDA_SUCCESS && free_bytes == half);
	/* What a pool keeps is not free for others until it is trimmed. */
	MUST(cuda.cuMemPoolCreate_(&pool, &props) == CUDA_SUCCESS);
	MUST(cuda.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) ==
	     CUDA_SUCCESS);
	MUST(cuda.cuMemAllocFromPoolAsync_(&b, half, pool, NULL) == CUDA_SUCCESS);
	MUST(cuda.cuMemFreeAsync_(b, NULL) == CUDA_SUCCESS &&
	     cuda.cuCtxSynchronize_() == CUDA_SUCCESS);
	MUST(cuda.cuMemAlloc_(&b, 1) == CUDA_ERROR_OUT_OF_MEMORY);
	MUST(cuda.cuMemPoolTrimTo_(pool, 0) == CUDA_SUCCESS);
	MUST(cuda.cuMemAlloc_(&b, half) == CUDA_SUCCESS);
	MUST(cuda.cuDeviceTotalMem_(&total, 1) == CUDA_SUCCESS && total == 2 << 20);
	MUST(cuda.cuDeviceGetAttribute_(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1) ==
	     CUDA_SUCCESS);
	MUST(pools == 0);
	MUST(cuda.cuDeviceGetAttribute_(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0) ==
	     CUDA_SUCCESS);
	MUST(pools == 1);
	return 0;
}

static void memory_and_attributes(void)
{
	const char *environment[] = { "FAKECUDA_MEMORY=1M,2M",
				      "FAKECUDA_ATTRIBUTES=1:memory_pools=0", NULL };

	CU_ASSERT_EQUAL(libcuda_child("memory", environment), 0);
}

/* ---- what a driver may do, and this one does ----------------------------------------------------------------------------- */

static void pageable_memory(void)
{
	struct libcuda_gate gate;
	CUdeviceptr a;
	CUstream stream;
	unsigned char host[64], back[64] = { 0 };

	START();
	a = device_memory();
	stream = new_stream();
	memset(host, 1, sizeof(host));
	libcuda_gate_close(&gate, stream);
	OK(cuda.cuMemcpyHtoDAsync_(a, host, sizeof(host), stream));
	memset(host, 2, sizeof(host)); /* it has been read */
	libcuda_gate_open(&gate);
	OK(cuda.cuMemcpyDtoHAsync_(back, a, sizeof(back), stream));
	CU_ASSERT(back[0] == 1 && back[63] == 1); /* it has been written */
	OK(cuda.cuStreamDestroy_(stream));
	OK(cuda.cuMemFree_(a));
}

static void shared_pages(void)
{
	char *memory = aligned_alloc(4096, 8192);

	START();
	memset(memory, 0, 8192);
	OK(cuda.cuMemHostRegister_(memory, 100, 0));
	GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
	      cuda.cuMemHostRegister_(memory + 200, 100, 0));
	OK(cuda.cuMemHostRegister_(memory + 4096, 100, 0));
	OK(cuda.cuMemHostUnregister_(memory + 4096));
	OK(cuda.cuMemHostUnregister_(memory));
	free(memory);
}

/* Everything at once: for the sanitizers, and for what a lock could tie up. */
static void *hammer(void *user)
{
	CUcontext ctx = user;
	CUstream streams[2] = { NULL };
	CUevent event = NULL;
	CUdeviceptr a = 0;
	uintptr_t failed = 0;
	unsigned char back[256];

	failed += cuda.cuCtxSetCurrent_(ctx) != CUDA_SUCCESS;
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < 2; i++)
			failed += cuda.cuStreamCreateWithPriority_(&streams[i], (unsigned)i, 0) !=
				  CUDA_SUCCESS;
		failed += cuda.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS;
		failed += cuda.cuMemAlloc_(&a, sizeof(back)) != CUDA_SUCCESS;
		failed += cuda.cuMemsetD8Async_(a, (unsigned char)round, sizeof(back),
						streams[0]) != CUDA_SUCCESS;
		failed += cuda.cuEventRecord_(event, streams[0]) != CUDA_SUCCESS;
		failed += cuda.cuStreamWaitEvent_(streams[1], event, 0) != CUDA_SUCCESS;
		failed +=
			cuda.cuMemcpyDtoHAsync_(back, a, sizeof(back), streams[1]) != CUDA_SUCCESS;
		failed += back[0] != (unsigned char)round || back[255] != (unsigned char)round;
		failed += cuda.cuEventDestroy_(event) != CUDA_SUCCESS;
		for (int i = 0; i < 2; i++)
			failed += cuda.cuStreamDestroy_(streams[i]) != CUDA_SUCCESS;
		failed += cuda.cuMemFree_(a) != CUDA_SUCCESS;
	}
	return (void *)failed;
}

static void hammered(void)
{
	pthread_t threads[N_HAMMERS];
	struct fakecuda_counts before, after;
	CUcontext ctx = NULL;
	void *failed = NULL;

	START();
	before = counts();
	OK(cuda.cuCtxGetCurrent_(&ctx));
	for (int i = 0; i < N_HAMMERS; i++)
		CU_ASSERT_FATAL(pthread_create(&threads[i], NULL, hammer, ctx) == 0);
	for (int i = 0; i < N_HAMMERS; i++) {
		pthread_join(threads[i], &failed);
		CU_ASSERT_PTR_NULL(failed);
	}
	after = counts();
	CU_ASSERT_EQUAL(after.streams, before.streams);
	CU_ASSERT_EQUAL(after.events, before.events);
	CU_ASSERT_EQUAL(after.allocated_bytes, before.allocated_bytes);
	CU_ASSERT_EQUAL(after.violations, before.violations);
}

/* ---- cases ------------------------------------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	int (*run)(void);
} cases[] = {
	{ "control", case_control },
	{ "devices", case_devices },
	{ "fault", case_fault },
	{ "fork", case_fork },
	{ "freed_before", case_freed_before },
	{ "host_touches", case_host_touches },
	{ "late", case_late },
	{ "leftovers", case_leftovers },
	{ "log", case_log },
	{ "memory", case_memory },
	{ "old", case_old },
	{ "peer_kernel", case_peer_kernel },
	{ "stray_kernel", case_stray_kernel },
};

static void faulted(void)
{
	CU_ASSERT_EQUAL(libcuda_child("fault", NULL), 0);
}

static void controlled(void)
{
	struct place place;

	place_init(&place, NULL, NULL);
	CU_ASSERT_EQUAL(libcuda_child("control", place.environment), 0);
	place_fini(&place);
}

static void stray_kernels(void)
{
	const char *with_peer[] = { "WITH_PEER=yes", NULL };

	CU_ASSERT_EQUAL(libcuda_child("stray_kernel", NULL), 0);
	CU_ASSERT_EQUAL(libcuda_child("peer_kernel", NULL), 0);
	CU_ASSERT_EQUAL(libcuda_child("peer_kernel", with_peer), 0);
	CU_ASSERT_EQUAL(libcuda_child("freed_before", NULL), 0);
}

static const struct bh_test tests[] = {
	{ "the n-th call of a function fails, and does nothing", nth_call_fails },
	{ "a rule that is not understood is refused with all that came with it", wrong_rules },
	{ "calls, and what streams do, take longer when told so", latency },
	{ "a call hangs until its rule is gone, others go on", call_hangs },
	{ "work on a stream hangs until its rule is gone, other streams go on", op_hangs },
	{ "H11: after a fault each call fails, the other device goes on, the process stays without",
	  faulted },
	{ "the control file is read when it changes, and what it said before is over", controlled },
	{ "a handle that was destroyed is found out", stale_handles },
	{ "a copy or fill outside of one live allocation is found out", stray_ranges },
	{ "what is freed in a stream's order is there until its turn, and not for new work",
	  freed_in_order },
	{ "cubins and fatbins are known by their shape", images },
	{ "a kernel's stray access kills the context", stray_kernels },
	{ "device memory cannot be touched by the host", device_memory_is_not_the_hosts },
	{ "a host function that calls the driver is refused", host_function_calls },
	{ "what is left when the context goes is told, and gone", leftovers },
	{ "H09: a call after the driver's exit handler is refused and told", after_exit },
	{ "H10: a forked child has no driver, and its exit is not the driver's", forked_child },
	{ "the log has time, thread, its name, process, function and result", log_lines },
	{ "CUDA_VISIBLE_DEVICES chooses and orders, up to the first that is none",
	  visible_devices },
	{ "no device, or a driver that does not start, is what cuInit says", no_devices },
	{ "an old driver has fewer functions, and does not know newer versions", old_driver },
	{ "memory is finite, pools count, attributes are set by device", memory_and_attributes },
	{ "pageable memory has been read, or written, when the call returns", pageable_memory },
	{ "host memory is registered by whole pages", shared_pages },
	{ "many threads at once do not disturb each other", hammered },
};

int main(int argc, char **argv)
{
	const char *why = NULL;

	for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++)
		if (strncmp(argv[1], "--case=", 7) == 0 && strcmp(argv[1] + 7, cases[i].name) == 0)
			return cases[i].run();
	/* What this suite brings about on purpose is not to be read in its output. */
	setenv("FAKECUDA_VIOLATIONS", "/dev/null", 0);
	if (!libcuda_load(&why) || !libcuda_is_double()) {
		printf("Bail out! %s\n", why ? why : "this is no double");
		return 1;
	}
	return bh_tap_main(argc, argv, "double", tests, sizeof(tests) / sizeof(tests[0]));
}
