/* SPDX-License-Identifier: BSD-3-Clause */
/* cuda_host - see cuda_host.h. */
#include "config.h"

#include "tests/unit/cuda_host.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "plugins/cuda/handles.h"
#include "plugins/cuda/math.h"
#include "plugins/cuda/reaper.h"
#include "tests/unit/tap.h"

#define END_S 120 /* a task that has not ended by then never will */

struct bh_cuda cuda_host;
struct bh_cuda_driver cuda_host_driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static pthread_t threads[2];
static int stop_fd;

/* ---- services ------------------------------------------------------------------------------------------ */

static void write_error(struct bh_task *task, const char *id, const struct bh_fact *facts,
			uint32_t n_facts)
{
	size_t used = (size_t)snprintf(task->error, sizeof(task->error), "%s", id ? id : "");

	for (uint32_t i = 0; i < n_facts && used < sizeof(task->error); i++) {
		char number[24];

		snprintf(number, sizeof(number), "%lld", (long long)facts[i].number);
		used += (size_t)snprintf(task->error + used, sizeof(task->error) - used, " %s=%s",
					 facts[i].key,
					 facts[i].kind == BH_FACT_STR ? facts[i].text : number);
	}
}

static void keep_value(struct bh_task *task, const struct bh_value *value)
{
	task->value = *value;
	if (value->type != BH_TYPE_LIST)
		return;
	task->n_pairs = value->as.list.count;
	for (uint64_t i = 0; i < task->n_pairs && i < 1024; i++) {
		const struct bh_items *pair = &value->as.list.items[i].as.list;

		task->pairs[i][0] = (double)pair->items[0].as.integer;
		task->pairs[i][1] = pair->items[1].as.real;
	}
}

static bh_status task_fail(struct bh_task *task, bh_status status, const char *id,
			   const struct bh_fact *facts, uint32_t n_facts)
{
	if (!task->error[0])
		write_error(task, id, facts, n_facts);
	return status;
}

static bh_status result(struct bh_task *task, const struct bh_value *value)
{
	keep_value(task, value);
	return 0;
}

static uint64_t task_id(const struct bh_task *task)
{
	return (uint64_t)(uintptr_t)task;
}

static bh_status complete(struct bh_context *ctx, uint64_t id, bh_status status,
			  const struct bh_value *value, const char *error,
			  const struct bh_fact *facts, uint32_t n_facts)
{
	struct bh_task *task = (struct bh_task *)(uintptr_t)id;

	(void)ctx;
	pthread_mutex_lock(&lock);
	if (value)
		keep_value(task, value);
	if (status < 0)
		write_error(task, error, facts, n_facts);
	task->status = status;
	task->ended = true;
	pthread_cond_broadcast(&ended);
	pthread_mutex_unlock(&lock);
	return 0;
}

static bh_status buffer_info(const struct bh_buffer *buffer, struct bh_buffer_info *ret_info)
{
	*ret_info = buffer->info;
	return 0;
}

static void metric_add(struct bh_context *ctx, uint32_t row, int64_t delta)
{
	(void)ctx;
	(void)row;
	(void)delta;
}

static void report_failed(struct bh_context *ctx, bh_status status, const char *id,
			  const struct bh_fact *facts, uint32_t n_facts)
{
	struct bh_task said = { .ended = true };

	(void)ctx;
	write_error(&said, id, facts, n_facts);
	printf("# the pool fails: %s (%d)\n", said.error, status);
}

static const struct bh_services services = {
	.size = sizeof(services),
	.abi = BH_ABI,
	.task_fail = task_fail,
	.result = result,
	.task_id = task_id,
	.complete = complete,
	.buffer_info = buffer_info,
	.metric_add = metric_add,
	.report_failed = report_failed,
};

/* ---- the section ---------------------------------------------------------------------------------------- */

static int64_t now_ns(void *user)
{
	struct timespec now;

	(void)user;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void counted(void *user, int by)
{
	(void)user;
	(void)by;
}

static void *run_flight(void *arg)
{
	(void)arg;
	(void)bh_cuda_device_enter(&cuda_host.device, NULL);
	bh_cuda_flight_run(cuda_host.flight, stop_fd);
	bh_cuda_device_leave(&cuda_host.device);
	return NULL;
}

static void *run_reaper(void *arg)
{
	struct pollfd fds[] = { { .fd = stop_fd, .events = POLLIN },
				{ .fd = bh_cuda_reaper_descriptor(cuda_host.reaper),
				  .events = POLLIN } };

	(void)arg;
	(void)bh_cuda_device_enter(&cuda_host.device, NULL);
	while (!(fds[0].revents & POLLIN)) {
		(void)poll(fds, 2, -1);
		bh_cuda_reaper_run(cuda_host.reaper);
	}
	bh_cuda_device_leave(&cuda_host.device);
	return NULL;
}

const char *cuda_host_start(void)
{
	static struct bh_cuda_fault fault;
	const struct bh_cuda_flight_options options = { .now_ns = now_ns, .counted = counted };
	const struct bh_cuda_driver *driver;
	const char *path = getenv("BH_TEST_FAKECUDA");

	/* What is loaded is found by its name, libcuda.so.1, before any folder is looked into. */
	if (path && !dlopen(path, RTLD_NOW | RTLD_LOCAL))
		return dlerror();
	if (bh_cuda_driver_get(&driver, &fault) < 0 ||
	    bh_cuda_device_open(driver, "0", &cuda_host.device, &fault) < 0 ||
	    bh_cuda_device_enter(&cuda_host.device, &fault) < 0)
		return fault.text;
	cuda_host_driver = *driver;
	cuda_host.device.driver = &cuda_host_driver;
	cuda_host.services = &services;
	if (bh_cuda_flight_new(&cuda_host.device, &options, &cuda_host.flight) < 0 ||
	    bh_cuda_reaper_new(&cuda_host.reaper) < 0 ||
	    bh_cuda_handles_new(&cuda_host, &cuda_host.handles) < 0 ||
	    bh_cuda_math_new(&cuda_host, &cuda_host.math) < 0)
		return "no memory";
	if (driver->cuStreamCreateWithPriority_(&cuda_host.stream, CU_STREAM_NON_BLOCKING, 0) !=
	    CUDA_SUCCESS)
		return "no stream";
	stop_fd = eventfd(0, EFD_CLOEXEC);
	pthread_create(&threads[0], NULL, run_flight, NULL);
	pthread_create(&threads[1], NULL, run_reaper, NULL);
	atomic_store(&cuda_host.threads, (1u << BH_CUDA_THREADS) - 1);
	return NULL;
}

bool cuda_host_stop(void)
{
	const uint64_t one = 1;
	bool over;

	if (write(stop_fd, &one, sizeof(one)) != sizeof(one))
		return false;
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	over = bh_cuda_flight_free(cuda_host.flight) == 0;
	bh_cuda_math_free(cuda_host.math, true);
	bh_cuda_reaper_run(cuda_host.reaper);
	for (int kind = BH_CUDA_MODULE; kind >= 0; kind--)
		(void)bh_cuda_handles_drain(cuda_host.handles, (enum bh_cuda_handle_kind)kind,
					    true);
	bh_cuda_handles_free(cuda_host.handles);
	over = bh_cuda_reaper_free(cuda_host.reaper) && over;
	(void)cuda_host.device.driver->cuStreamDestroy_(cuda_host.stream);
	bh_cuda_device_leave(&cuda_host.device);
	bh_cuda_device_close(&cuda_host.device);
	close(stop_fd);
	if (!over)
		printf("# works or releases have not ended\n");
	return over;
}

/* ---- ops ------------------------------------------------------------------------------------------------ */

static const struct bh_op *find_op(const char *name)
{
	for (uint32_t i = 0; i < BH_CUDA_KERNEL_OPS; i++)
		if (strcmp(bh_cuda_kernel_ops[i].name, name) == 0)
			return &bh_cuda_kernel_ops[i];
	for (uint32_t i = 0; i < BH_CUDA_MODULE_OPS; i++)
		if (strcmp(bh_cuda_module_ops[i].name, name) == 0)
			return &bh_cuda_module_ops[i];
	CU_FAIL_FATAL("no such op");
	return NULL;
}

bh_status cuda_host_run(struct bh_task *task, const char *op, const struct bh_value *args)
{
	struct timespec until;
	bh_status st;

	memset(task, 0, sizeof(*task));
	st = find_op(op)->run(&cuda_host, task, args);
	if (st != BH_PENDING)
		return st;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += END_S;
	pthread_mutex_lock(&lock);
	while (!task->ended && pthread_cond_timedwait(&ended, &lock, &until) == 0)
		;
	st = task->ended ? task->status : -ETIMEDOUT;
	pthread_mutex_unlock(&lock);
	CU_ASSERT_NOT_EQUAL_FATAL(st, -ETIMEDOUT);
	return st;
}

void cuda_host_must(struct bh_task *task, const char *op, const struct bh_value *args)
{
	bh_status st = cuda_host_run(task, op, args);

	CU_ASSERT_EQUAL(st, 0);
	if (st != 0)
		printf("# %s: %d, %s\n", op, st, task->error);
}

void cuda_host_refused(const char *op, const struct bh_value *args, bh_status status,
		       const char *error)
{
	static struct bh_task task;
	bh_status st = cuda_host_run(&task, op, args);

	CU_ASSERT_EQUAL(st, status);
	CU_ASSERT_EQUAL(strncmp(task.error, error, strlen(error)), 0);
	if (st != status || strncmp(task.error, error, strlen(error)) != 0)
		printf("# %s: %d, %s\n#   and not %d, %s\n", op, st, task.error, status, error);
}

/* ---- memory --------------------------------------------------------------------------------------------- */

struct bh_buffer cuda_host_vector(const void *from, int64_t n, uint8_t bits)
{
	const struct bh_cuda_driver *driver = cuda_host.device.driver;
	size_t bytes = (size_t)n * bits / 8;
	struct bh_buffer buffer = { .info = { .size = sizeof(buffer.info),
					      .kind = BH_BUFFER_CUDA,
					      .flags = BH_BUFFER_WRITABLE,
					      .n_dims = 1,
					      .length = bytes,
					      .dtype_code = BH_DTYPE_FLOAT,
					      .dtype_bits = bits,
					      .shape = { n },
					      .strides = { bits / 8 } } };
	CUdeviceptr at = 0;

	if (bytes == 0)
		return buffer;
	CU_ASSERT_EQUAL_FATAL(driver->cuMemAlloc_(&at, bytes), CUDA_SUCCESS);
	buffer.info.data = (void *)(uintptr_t)at;
	CU_ASSERT_EQUAL(from ? driver->cuMemcpyHtoDAsync_(at, from, bytes, cuda_host.stream)
			     : driver->cuMemsetD8Async_(at, 0, bytes, cuda_host.stream),
			CUDA_SUCCESS);
	CU_ASSERT_EQUAL(driver->cuCtxSynchronize_(), CUDA_SUCCESS);
	return buffer;
}

void cuda_host_get(const struct bh_buffer *buffer, void *to)
{
	const struct bh_cuda_driver *driver = cuda_host.device.driver;

	CU_ASSERT_EQUAL(driver->cuMemcpyDtoHAsync_(to, (CUdeviceptr)(uintptr_t)buffer->info.data,
						   buffer->info.length, cuda_host.stream),
			CUDA_SUCCESS);
	CU_ASSERT_EQUAL(driver->cuCtxSynchronize_(), CUDA_SUCCESS);
}

void cuda_host_free(struct bh_buffer *buffer)
{
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)buffer->info.data;

	CU_ASSERT_EQUAL(at ? cuda_host.device.driver->cuMemFree_(at) : CUDA_SUCCESS, CUDA_SUCCESS);
}
