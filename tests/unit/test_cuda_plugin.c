/* SPDX-License-Identifier: BSD-3-Clause */
/* test_cuda_plugin - the whole cuda plugin, by its descriptor, on the test double of libcuda.so.1: its own threads, three
 * workers, works on several streams, a fault, works that never end. The sanitizers see all of it; the host is the
 * suite's own. */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/fakecuda/fakecuda.h"
#include "tests/unit/cuda_fake.h"
#include "tests/unit/tap.h"

#define WORKERS 3

extern const struct bh_plugin bh_plugin;

static fakecuda_inject_fn *inject;
static fakecuda_clear_fn *clear;
static fakecuda_count_fn *count;
static void *state;
static int stop_fd;
static pthread_t threads[BH_CUDA_THREADS];
static const char *device = "0";
static char ended[512]; /* the facts of the line that close() logs */

/* ---- what the host says ----------------------------------------------------------------------------- */

static int64_t option_int(struct bh_context *ctx, const char *name)
{
	(void)ctx;
	return strcmp(name, "pool_keep") == 0 ? 1 << 20 : 20000;
}

static const char *option_text(struct bh_context *ctx, const char *name)
{
	(void)ctx;
	CU_ASSERT_STRING_EQUAL(name, "device");
	return device;
}

static const char *label(struct bh_context *ctx)
{
	(void)ctx;
	return "cuda";
}

static bh_status fail(struct bh_context *ctx, bh_status status, const char *id,
		      const struct bh_fact *facts, uint32_t n_facts)
{
	snprintf(ctx->failed_id, sizeof(ctx->failed_id), "%s", id);
	for (uint32_t i = 0; i < n_facts; i++)
		if (strcmp(facts[i].key, "accepted") == 0)
			snprintf(ended, sizeof(ended), "%s", facts[i].text);
	return status;
}

static void describe(struct bh_context *ctx, const struct bh_fact *facts, uint32_t n_facts)
{
	(void)ctx;
	(void)facts;
	CU_ASSERT(n_facts <= 16);
}

static void note_log(struct bh_context *ctx, uint32_t level, const char *message,
		     const struct bh_fact *facts, uint32_t n_facts)
{
	size_t length = 0;

	(void)ctx;
	(void)level;
	if (strcmp(message, "cuda has ended") != 0)
		return;
	for (uint32_t i = 0; i < n_facts && length < sizeof(ended); i++)
		if (facts[i].kind == BH_FACT_INT)
			length +=
				(size_t)snprintf(ended + length, sizeof(ended) - length, "%s=%lld ",
						 facts[i].key, (long long)facts[i].number);
}

static void refresh(struct bh_context *ctx)
{
	(void)ctx;
}

static bh_status no_object(struct bh_task *task, uint32_t site, struct bh_object *object,
			   uint32_t flags, struct bh_cuda_use *use, struct bh_buffer **ret_buffer)
{
	(void)task;
	(void)site;
	(void)object;
	(void)flags;
	(void)use;
	(void)ret_buffer;
	return -EREMOTEIO;
}

static bool double_is_there(void)
{
	void *library = dlopen(BH_TEST_FAKECUDA, RTLD_NOW | RTLD_LOCAL);
	void *found[3];

	if (!library) {
		fprintf(stderr, "# %s\n", dlerror());
		return false;
	}
	found[0] = dlsym(library, "fakecuda_inject");
	found[1] = dlsym(library, "fakecuda_clear");
	found[2] = dlsym(library, "fakecuda_count");
	memcpy(&inject, &found[0], sizeof(inject));
	memcpy(&clear, &found[1], sizeof(clear));
	memcpy(&count, &found[2], sizeof(count));
	return inject && clear && count;
}

static bh_status try_open(void)
{
	fake_begin();
	fake.services.option_int = option_int;
	fake.services.option_text = option_text;
	fake.services.label = label;
	fake.services.fail = fail;
	fake.services.describe = describe;
	fake.services.log = note_log;
	fake.services.exit_hook_refresh = refresh;
	fake.services.object_cuda_buffer = no_object;
	CU_ASSERT_FATAL(double_is_there());
	return bh_plugin.open(&fake.ctx, &fake.services, &state);
}

static void *run_progress(void *which)
{
	bh_plugin.progress(state, (uint32_t)(uintptr_t)which, stop_fd);
	return NULL;
}

static void begin(void)
{
	CU_ASSERT_EQUAL_FATAL(try_open(), 0);
	stop_fd = eventfd(0, EFD_CLOEXEC);
	for (uintptr_t i = 0; i < BH_CUDA_THREADS; i++)
		CU_ASSERT_FATAL(pthread_create(&threads[i], NULL, run_progress, (void *)i) == 0);
}

static void end(void)
{
	const uint64_t one = 1;

	CU_ASSERT(write(stop_fd, &one, sizeof(one)) == sizeof(one));
	for (uint32_t i = 0; i < BH_CUDA_THREADS; i++)
		pthread_join(threads[i], NULL);
	close(stop_fd);
	CU_ASSERT_EQUAL(bh_plugin.close(state), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.metrics[BH_CUDA_METRIC_BUFFERS]), 0);
	fake_end();
}

static void nothing_is_left(void)
{
	struct fakecuda_counts counts = { .size = sizeof(counts) };

	count(&counts);
	CU_ASSERT_EQUAL(counts.streams, 0);
	CU_ASSERT_EQUAL(counts.events, 0);
	CU_ASSERT_EQUAL(counts.allocations, 0);
	CU_ASSERT_EQUAL(counts.pools, 0);
	CU_ASSERT_EQUAL(counts.registrations, 0);
	CU_ASSERT_EQUAL(counts.violations, 0);
}

/* ---- ops ------------------------------------------------------------------------------------------------ */

static bh_status op(const char *name, const struct bh_value *args, struct bh_task *ret_task)
{
	return fake_run(state, bh_plugin.ops.rows, bh_plugin.ops.count, name, args, ret_task);
}

static struct fake_outcome await(const struct bh_task *task)
{
	struct fake_outcome outcome = fake_outcome(task->id);

	for (int i = 0; i < 60000 && outcome.n == 0; i++) {
		(void)poll(NULL, 0, 1);
		outcome = fake_outcome(task->id);
	}
	CU_ASSERT_EQUAL(outcome.n, 1);
	return outcome;
}

static struct bh_buffer *alloc(int64_t n)
{
	const struct bh_value shape = { .type = BH_TYPE_INT, .as.integer = n };
	const struct bh_value args[] = {
		{ .type = BH_TYPE_LIST, .as.list = { &shape, 1 } },
		{ .type = BH_TYPE_STR, .as.text = { "uint8", 5 } },
		{ .type = BH_TYPE_BOOL, .as.boolean = 1 },
	};
	struct bh_task task;

	CU_ASSERT_EQUAL(op("alloc", args, &task), BH_PENDING);
	return await(&task).buffer;
}

/* Gives `to`, as a result does. */
static bh_status copy(struct bh_buffer *to, struct bh_buffer *from, uint64_t stream,
		      struct bh_task *task)
{
	struct bh_value args[6] = {
		{ .type = BH_TYPE_BUFFER, .as.buffer = to },
		{ .type = BH_TYPE_BUFFER, .as.buffer = from },
		{ .type = BH_TYPE_INT },
		{ .type = BH_TYPE_INT },
	};

	if (stream)
		args[5] = (struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = stream };
	return op("copy", args, task);
}

static bh_status set(struct bh_buffer *memory, int64_t value, uint64_t stream, struct bh_task *task)
{
	struct bh_value args[3] = {
		{ .type = BH_TYPE_BUFFER, .as.buffer = memory },
		{ .type = BH_TYPE_INT, .as.integer = value },
	};

	if (stream)
		args[2] = (struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = stream };
	return op("memset", args, task);
}

static struct bh_buffer *host_memory(void *data, uint64_t length)
{
	struct bh_buffer *buffer = fake_buffer(length);

	buffer->info.data = data;
	return buffer;
}

/* One worker: memory goes to the device, is set there on a stream of its own, and comes back. */
static void *work(void *which)
{
	unsigned char data[256], back[256];
	struct bh_buffer *from, *to;

	CU_ASSERT_EQUAL(bh_plugin.worker_start(state, (uint32_t)(uintptr_t)which), 0);
	from = host_memory(data, sizeof(data));
	to = host_memory(back, sizeof(back));
	for (int i = 0; i < 40; i++) {
		const struct bh_value priority = { .type = BH_TYPE_INT };
		struct bh_value stream;
		struct bh_buffer *memory = alloc(sizeof(data));
		struct bh_task first, second, third;

		CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
		memset(data, i, sizeof(data));
		CU_ASSERT_EQUAL(op("stream", &priority, &first), 0);
		stream = first.result;
		CU_ASSERT_EQUAL(copy(memory, from, stream.as.handle, &first), BH_PENDING);
		if (i % 2)
			CU_ASSERT_EQUAL(set(memory, 200, stream.as.handle, &second), BH_PENDING);
		CU_ASSERT_EQUAL(copy(to, memory, stream.as.handle, &third), BH_PENDING);
		CU_ASSERT_EQUAL(op("stream_close", &stream, &(struct bh_task){ 0 }), 0);
		fake.services.buffer_unref(await(&first).buffer);
		if (i % 2)
			(void)await(&second);
		fake.services.buffer_unref(await(&third).buffer);
		CU_ASSERT_EQUAL(back[0], i % 2 ? 200 : i);
		CU_ASSERT_EQUAL(back[255], i % 2 ? 200 : i);
		fake.services.buffer_unref(memory);
	}
	CU_ASSERT_EQUAL(bh_plugin.worker_stop(state, (uint32_t)(uintptr_t)which), 0);
	return NULL;
}

static void workers_side_by_side(void)
{
	pthread_t workers[WORKERS];

	begin();
	for (uintptr_t i = 0; i < WORKERS; i++)
		CU_ASSERT_FATAL(pthread_create(&workers[i], NULL, work, (void *)i) == 0);
	for (int i = 0; i < WORKERS; i++)
		pthread_join(workers[i], NULL);
	end();
	CU_ASSERT(strstr(ended, "works_lost=0 buffers_kept=0") != NULL);
	nothing_is_left();
}

static void fault_in_the_middle(void)
{
	struct bh_buffer *memory;
	struct bh_task tasks[16];
	int n_failed = 0;

	device = "1"; /* its context is lost for this process */
	begin();
	CU_ASSERT_EQUAL(bh_plugin.worker_start(state, 0), 0);
	memory = alloc(100);
	CU_ASSERT_EQUAL(inject("fault cuMemsetD8Async 8 CUDA_ERROR_ILLEGAL_ADDRESS"), 0);
	for (int i = 0; i < 16; i++) {
		bh_status st = set(memory, i, 0, &tasks[i]);
		struct fake_outcome outcome = { .status = st };

		if (st == BH_PENDING)
			outcome = await(&tasks[i]);
		n_failed += outcome.status < 0;
		CU_ASSERT(i < 7 || outcome.status == -EIO);
	}
	CU_ASSERT_EQUAL(n_failed, 9);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.n_failed), 1);
	CU_ASSERT_EQUAL(bh_plugin.worker_stop(state, 0), 0);
	end();
	clear();
	device = "0";
}

static void refuses_what_is_not_there(void)
{
	device = "77";
	CU_ASSERT_EQUAL(try_open(), -ENODEV);
	CU_ASSERT_STRING_EQUAL(fake.ctx.failed_id, "option.cuda");
	CU_ASSERT(strstr(ended, "GPU-") != NULL);
	device = "0";
	fake.services.size -= 8; /* an older host */
	CU_ASSERT_EQUAL(bh_plugin.open(&fake.ctx, &fake.services, &state), -ENOSYS);
	CU_ASSERT_STRING_EQUAL(fake.ctx.failed_id, "cuda.host");
	fake_end();
}

/* Each call that open() makes fails once: nothing is left behind. */
static void open_undoes_what_it_has_done(void)
{
	static const char *const calls[] = {
		"cuDeviceGet",	    "cuDeviceGetName",		"cuDeviceGetAttribute",
		"cuDeviceTotalMem", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
		"cuMemPoolCreate",  "cuMemPoolSetAttribute",
	};
	char rule[128];

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		CU_ASSERT_FATAL(double_is_there());
		snprintf(rule, sizeof(rule), "fail %s 1 CUDA_ERROR_UNKNOWN", calls[i]);
		CU_ASSERT_EQUAL(inject(rule), 0);
		CU_ASSERT_EQUAL(try_open(), -EIO);
		clear();
		fake_end();
		nothing_is_left();
	}
	for (int n = 1; n <= 2; n++) {
		snprintf(rule, sizeof(rule),
			 "fail cuStreamCreateWithPriority %d CUDA_ERROR_OUT_OF_MEMORY", n);
		CU_ASSERT_EQUAL(inject(rule), 0);
		CU_ASSERT_EQUAL(try_open(), -ENOMEM);
		clear();
		fake_end();
		nothing_is_left();
	}
}

/* Last: what never ends stays for the rest of the process. */
static void work_that_never_ends(void)
{
	struct bh_buffer *memory, *other;
	struct bh_task task;

	begin();
	CU_ASSERT_EQUAL(bh_plugin.worker_start(state, 0), 0);
	memory = alloc(100);
	other = alloc(100);
	CU_ASSERT_EQUAL(inject("hang_op 1"), 0);
	fake.services.buffer_ref(memory); /* the task's, which never ends */
	CU_ASSERT_EQUAL(set(memory, 1, 0, &task), BH_PENDING);
	CU_ASSERT_EQUAL(bh_plugin.worker_stop(state, 0), 0);
	const uint64_t one = 1;

	CU_ASSERT(write(stop_fd, &one, sizeof(one)) == sizeof(one));
	for (uint32_t i = 0; i < BH_CUDA_THREADS; i++)
		pthread_join(threads[i], NULL);
	close(stop_fd);
	CU_ASSERT_EQUAL(bh_plugin.close(state), 0); /* in time */
	CU_ASSERT(strstr(ended, "works_lost=1 buffers_kept=2") != NULL);
	CU_ASSERT(memory->revoked && other->revoked);
	CU_ASSERT_EQUAL(fake_outcome(task.id).n, 0);
	clear(); /* lets it go */
}

static const struct bh_test tests[] = {
	{ "workers, streams and memory side by side; nothing is left", workers_side_by_side },
	{ "H11: a fault fails what came with it and after it, and the pool once",
	  fault_in_the_middle },
	{ "a device that is not there, and a host that is too old", refuses_what_is_not_there },
	{ "open undoes what it has done, wherever it fails", open_undoes_what_it_has_done },
	{ "EXIT-4: close does not wait for what never ends", work_that_never_ends },
};
BH_TAP_MAIN("cuda plugin", tests)
