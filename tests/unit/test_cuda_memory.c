/* SPDX-License-Identifier: BSD-3-Clause */
/* test_cuda_memory - the ops over memory, streams and events, and their end, against a driver and a host of our own:
 * nothing is freed that somebody may still use, nothing is kept that nobody does, and what is wrong is said. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugins/cuda/handles.h"
#include "plugins/cuda/memory.h"
#include "plugins/cuda/memory_private.h"
#include "tests/unit/cuda_fake.h"
#include "tests/unit/tap.h"

static struct bh_cuda *cuda;
static struct bh_task task; /* the last op's */

/* `inline_ns` 0: works stay pending, as nobody looks. */
static void begin_with(int64_t inline_ns)
{
	fake_begin();
	cuda = fake_cuda(inline_ns);
}

static void begin(void)
{
	begin_with(INT64_C(1000000000)); /* ops end inline */
}

static void end(void)
{
	CU_ASSERT(fake_cuda_free(cuda));
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.metrics[BH_CUDA_METRIC_ALLOCATED_BYTES]), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.metrics[BH_CUDA_METRIC_BUFFERS]), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.metrics[BH_CUDA_METRIC_PINNED_BYTES]), 0);
	fake_end();
}

static bh_status memory_op(const char *name, const struct bh_value *args)
{
	return fake_run(cuda, bh_cuda_memory_ops, BH_CUDA_MEMORY_OPS, name, args, &task);
}

static bh_status stream_op(const char *name, const struct bh_value *args)
{
	return fake_run(cuda, bh_cuda_stream_ops, BH_CUDA_STREAM_OPS, name, args, &task);
}

static struct bh_value an_int(int64_t n)
{
	return (struct bh_value){ .type = BH_TYPE_INT, .as.integer = n };
}

static struct bh_value a_buffer(struct bh_buffer *buffer)
{
	return (struct bh_value){ .type = BH_TYPE_BUFFER, .as.buffer = buffer };
}

static struct bh_value a_handle(uint64_t handle)
{
	return (struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = handle };
}

static bh_status alloc_as(const char *dtype, const struct bh_value *shape, uint64_t n)
{
	const struct bh_value args[] = {
		{ .type = BH_TYPE_LIST, .as.list = { shape, n } },
		{ .type = BH_TYPE_STR, .as.text = { dtype, strlen(dtype) } },
		{ .type = BH_TYPE_BOOL, .as.boolean = 1 },
	};

	return memory_op("alloc", args);
}

/* A buffer of `n` floats, whose only reference is Python's. */
static struct bh_buffer *alloc(int64_t n)
{
	const struct bh_value shape = an_int(n);
	struct fake_outcome outcome;

	CU_ASSERT_EQUAL(alloc_as("float32", &shape, 1), BH_PENDING);
	outcome = fake_outcome(task.id);
	CU_ASSERT_EQUAL_FATAL(outcome.n, 1);
	CU_ASSERT_EQUAL(outcome.status, 0);
	CU_ASSERT_PTR_NOT_NULL_FATAL(outcome.buffer);
	return outcome.buffer;
}

/* As the host: the task's arguments are held while it runs. */
static bh_status with_argument(const char *name, struct bh_buffer *buffer)
{
	const struct bh_value args[] = { a_buffer(buffer) };
	bh_status st;

	fake.services.buffer_ref(buffer);
	st = memory_op(name, args);
	fake.services.buffer_unref(buffer);
	return st;
}

static void drop(struct bh_buffer *buffer)
{
	fake.services.buffer_unref(buffer);
}

/* ---- device memory ------------------------------------------------------------------------------------ */

static void freed_with_the_last_reference(void)
{
	struct bh_buffer *buffer;

	begin();
	buffer = alloc(100);
	CU_ASSERT_EQUAL(buffer->info.length, 400);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.metrics[BH_CUDA_METRIC_ALLOCATED_BYTES]), 400);
	drop(buffer);
	CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 1); /* whoever let go did not wait for it */
	bh_cuda_memory_reap(cuda->memory, true);
	CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 0);
	CU_ASSERT(buffer->freed);
	CU_ASSERT_EQUAL(atomic_load(&fake.n_synchronized), 0);
	end();
}

static void shared_waits_for_strangers(void)
{
	struct bh_buffer *a, *b;

	begin();
	a = alloc(1);
	b = alloc(1);
	a->info.flags |= BH_BUFFER_SHARED;
	b->info.flags |= BH_BUFFER_SHARED;
	drop(a);
	drop(b);
	bh_cuda_memory_reap(cuda->memory, true);
	CU_ASSERT_EQUAL(atomic_load(&fake.n_synchronized), 1); /* once a round */
	CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 0);
	end();
}

static void out_of_memory_says_how_much(void)
{
	const struct bh_value shape = an_int(1 << 20);
	struct bh_buffer *buffer;

	begin();
	CU_ASSERT_EQUAL(alloc_as("float64", &shape, 1), -ENOMEM);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.out_of_memory");
	CU_ASSERT(strstr(task.text, "asked=8388608 free=1048576 total=1073741824") != NULL);
	CU_ASSERT_EQUAL(atomic_load(&fake.n_trimmed), 1);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.n_failed), 0); /* the task alone */
	/* What has been let go of is had first. */
	buffer = alloc(200000);
	drop(buffer);
	drop(alloc(200000));
	end();
}

static void refuses_wrong_shapes(void)
{
	struct bh_value nine[9], shape;

	begin();
	for (int i = 0; i < 9; i++)
		nine[i] = an_int(1);
	CU_ASSERT_EQUAL(alloc_as("float32", nine, 9), -EINVAL);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.shape");
	shape = an_int(-1);
	CU_ASSERT_EQUAL(alloc_as("float32", &shape, 1), -EINVAL);
	shape = an_int(INT64_MAX);
	CU_ASSERT_EQUAL(alloc_as("float64", &shape, 1), -EINVAL);
	nine[0] = nine[1] = nine[2] = an_int(INT64_C(1) << 31);
	CU_ASSERT_EQUAL(alloc_as("uint8", nine, 3), -EINVAL);
	shape = (struct bh_value){ .type = BH_TYPE_STR, .as.text = { "x", 1 } };
	CU_ASSERT_EQUAL(alloc_as("float32", &shape, 1), -EINVAL);
	shape = an_int(1);
	CU_ASSERT_EQUAL(alloc_as("float33", &shape, 1), -EINVAL);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.dtype");
	CU_ASSERT(strstr(task.text, "given=float33") != NULL);
	drop(alloc(0)); /* nothing is something */
	CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 0);
	end();
}

static void free_now(void)
{
	struct bh_buffer *buffer, *host;

	begin();
	buffer = alloc(10);
	CU_ASSERT_EQUAL(with_argument("free", buffer), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 0);
	CU_ASSERT(buffer->revoked);
	drop(buffer);
	CU_ASSERT(buffer->freed);

	host = fake_buffer(10);
	CU_ASSERT_EQUAL(with_argument("free", host), -EINVAL);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.foreign");

	buffer = alloc(10);
	buffer->info.flags |= BH_BUFFER_SHARED;
	CU_ASSERT_EQUAL(with_argument("free", buffer), -EBUSY);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.shared");
	CU_ASSERT(!buffer->revoked);
	drop(buffer);
	end();
}

static void free_of_what_is_in_use(void)
{
	struct bh_buffer *buffer;

	begin();
	buffer = alloc(10);
	fake.services.buffer_ref(buffer); /* another task's */
	CU_ASSERT_EQUAL(with_argument("free", buffer), -EBUSY);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.in_use");
	CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 1);
	drop(buffer);
	drop(buffer);
	bh_cuda_memory_reap(cuda->memory, true);
	CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 0);
	end();
}

/* ---- pins ------------------------------------------------------------------------------------------------- */

static struct bh_buffer *pages(uintptr_t at, uint64_t length)
{
	struct bh_buffer *buffer = fake_buffer(length);

	buffer->info.data = (void *)at;
	return buffer;
}

static void pins_and_unpins(void)
{
	struct bh_buffer *buffer, *again;

	begin();
	buffer = pages(0x10010, 100);
	CU_ASSERT_EQUAL(with_argument("pin", buffer), 0);
	CU_ASSERT_EQUAL(with_argument("pin", buffer), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 1);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.metrics[BH_CUDA_METRIC_PINNED_BYTES]), 4096);
	CU_ASSERT_EQUAL(with_argument("unpin", buffer), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 1);
	CU_ASSERT_EQUAL(with_argument("unpin", buffer), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 0);
	CU_ASSERT_EQUAL(with_argument("unpin", buffer), -EINVAL);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.not_pinned");
	/* Held until it is unpinned, also by another export of the same bytes. */
	again = pages(0x10010, 100);
	CU_ASSERT_EQUAL(with_argument("pin", buffer), 0);
	drop(buffer);
	CU_ASSERT(!buffer->freed);
	CU_ASSERT_EQUAL(with_argument("unpin", again), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 0);
	CU_ASSERT(buffer->freed);
	end();
}

static void new_host_memory_is_pinned(void)
{
	const struct bh_value shape = an_int(3);
	const struct bh_value args[] = {
		{ .type = BH_TYPE_LIST, .as.list = { &shape, 1 } },
		{ .type = BH_TYPE_STR, .as.text = { "float64", 7 } },
	};
	struct bh_buffer *buffer;

	begin();
	CU_ASSERT_EQUAL(memory_op("alloc_host", args), 0);
	buffer = task.result.as.buffer;
	CU_ASSERT_EQUAL(buffer->info.length, 24);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 1);
	drop(buffer);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 1);
	CU_ASSERT(!buffer->freed);
	bh_cuda_memory_reap(cuda->memory, true); /* with its last reference */
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 0);
	CU_ASSERT(buffer->freed);
	CU_ASSERT_EQUAL(memory_op("alloc_host", args), 0); /* close takes it back */
	end();
}

static void pins_share_pages(void)
{
	struct bh_buffer *large, *small, *beyond;

	begin();
	large = pages(0x20000, 3 * 4096);
	small = pages(0x21100, 8);
	beyond = pages(0x22fff, 2);
	CU_ASSERT_EQUAL(with_argument("pin", large), 0);
	CU_ASSERT_EQUAL(with_argument("pin", small), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 1);
	CU_ASSERT_EQUAL(with_argument("pin", beyond), -EEXIST);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.pin_overlap");
	CU_ASSERT_EQUAL(with_argument("unpin", large), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 1);
	CU_ASSERT_EQUAL(with_argument("unpin", small), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 0);
	CU_ASSERT_EQUAL(with_argument("pin", beyond), 0);
	end(); /* takes it back */
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 0);
}

static void refused_pins_say_why(void)
{
	struct bh_buffer *buffer;

	begin();
	buffer = pages(0x30000, 4096);
	buffer->info.flags = 0;
	atomic_store(&fake.once, CUDA_ERROR_INVALID_VALUE);
	CU_ASSERT_EQUAL(with_argument("pin", buffer), -EIO);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.pin");
	CU_ASSERT(strstr(task.text, "read-only") != NULL);
	atomic_store(&fake.once, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	CU_ASSERT_EQUAL(with_argument("pin", buffer), -EEXIST);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.pinned");
	CU_ASSERT_PTR_NULL(atomic_load(&buffer->slot));
	end();
}

/* ---- copies ---------------------------------------------------------------------------------------------------- */

static bh_status copy(struct bh_buffer *to, struct bh_buffer *from, int64_t to_offset,
		      int64_t from_offset, int64_t length)
{
	struct bh_value args[] = {
		a_buffer(to),	     a_buffer(from), an_int(to_offset),
		an_int(from_offset), an_int(length), { .type = BH_TYPE_NONE },
	};

	if (length == INT64_MIN)
		args[4].type = BH_TYPE_NONE;
	return memory_op("copy", args);
}

static void copies_stay_within(void)
{
	static const struct {
		int64_t to_offset, from_offset, length;
		const char *parameter;
	} wrong[] = {
		{ -1, 0, 1, "to_offset" },
		{ 41, 0, 0, "to_offset" },
		{ 0, -1, INT64_MIN, "source_offset" },
		{ 0, 81, INT64_MIN, "source_offset" },
		{ INT64_MAX, 0, 1, "to_offset" },
		{ INT64_MIN, 0, 1, "to_offset" },
		{ 0, INT64_MAX, 1, "source_offset" },
		{ 0, 0, 41, "length" },
		{ 0, 0, INT64_MIN, "length" }, /* all of `source` is more than `to` has */
		{ 1, 0, 40, "length" },
		{ 0, 0, -5, "length" },
		{ 0, 0, INT64_MAX, "length" },
		{ 8, 40, 33, "length" },
	};
	struct bh_buffer *to, *from;
	char want[64];

	begin();
	to = alloc(10);
	from = alloc(20);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		CU_ASSERT_EQUAL(
			copy(to, from, wrong[i].to_offset, wrong[i].from_offset, wrong[i].length),
			-EINVAL);
		CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.range");
		snprintf(want, sizeof(want), "parameter=%s ", wrong[i].parameter);
		CU_ASSERT(strstr(task.text, want) != NULL);
	}
	CU_ASSERT_EQUAL(copy(to, to, 0, 4, 8), -EINVAL);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.overlap");
	CU_ASSERT_EQUAL(copy(to, from, 40, 80, INT64_MIN),
			BH_PENDING); /* nothing, at the very end */
	drop(fake_outcome(task.id).buffer);
	drop(to);
	drop(from);
	end();
}

/* ---- streams and events ---------------------------------------------------------------------------------------- */

static uint64_t new_stream(void)
{
	const struct bh_value priority = an_int(-1);

	CU_ASSERT_EQUAL(stream_op("stream", &priority), 0);
	return task.result.as.handle;
}

static void handles_have_generations(void)
{
	struct bh_value first, second, event, args[2];

	begin();
	first = a_handle(new_stream());
	CU_ASSERT_EQUAL(stream_op("stream_close", &first), 0);
	second = a_handle(new_stream());
	CU_ASSERT_NOT_EQUAL(first.as.handle, second.as.handle);
	CU_ASSERT_EQUAL((uint32_t)first.as.handle, (uint32_t)second.as.handle); /* the same place */
	CU_ASSERT_EQUAL(stream_op("stream_close", &first), -ENOENT);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.handle");
	CU_ASSERT(strstr(task.text, "it has been closed") != NULL);
	CU_ASSERT_EQUAL(stream_op("event_close", &second), -ENOENT);
	CU_ASSERT(strstr(task.text, "a stream") != NULL);
	event = a_handle(0);
	CU_ASSERT_EQUAL(stream_op("event_close", &event), -ENOENT);
	CU_ASSERT(strstr(task.text, "a number that this pool has not given") != NULL);
	event = a_handle(UINT64_MAX);
	CU_ASSERT_EQUAL(stream_op("event_close", &event), -ENOENT);
	CU_ASSERT_EQUAL(stream_op("record", &second), 0);
	event = task.result;
	args[0] = second;
	args[1] = event;
	CU_ASSERT_EQUAL(stream_op("wait", args), 0);
	CU_ASSERT_EQUAL(stream_op("synchronize", &second), BH_PENDING);
	CU_ASSERT_EQUAL(fake_outcome(task.id).n, 1);
	CU_ASSERT_EQUAL(stream_op("event_close", &event), 0);
	end(); /* closes the other */
}

static void closed_while_in_use(void)
{
	struct bh_value stream;
	uint64_t id;

	begin_with(0);
	stream = a_handle(new_stream());
	atomic_store(&fake.manual, true);
	CU_ASSERT_EQUAL(stream_op("synchronize", &stream), BH_PENDING);
	id = task.id;
	CU_ASSERT_EQUAL(stream_op("stream_close", &stream), 0);
	bh_cuda_memory_reap(cuda->memory, true);
	CU_ASSERT_EQUAL(atomic_load(&fake.streams), 3); /* it lives: a work is on it */
	CU_ASSERT_EQUAL(fake_outcome(id).n, 0);
	atomic_store(&fake.sticky, CUDA_ERROR_LAUNCH_FAILED);
	end();
	CU_ASSERT_EQUAL(fake_outcome(id).n, 1);
}

static void refuses_priorities(void)
{
	const struct bh_value low = an_int(1), high = an_int(-6);

	begin();
	CU_ASSERT_EQUAL(stream_op("stream", &low), -EINVAL);
	CU_ASSERT_EQUAL(stream_op("stream", &high), -EINVAL);
	CU_ASSERT(strstr(task.text, "accepted=-5 to 0") != NULL);
	end();
}

static void modules_go_too(void)
{
	uint64_t handle;

	begin();
	CU_ASSERT_EQUAL(bh_cuda_handle_add(cuda->handles, BH_CUDA_MODULE, fake_module(), malloc(1),
					   &handle),
			0);
	end();
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

static void close_takes_memory_back(void)
{
	struct bh_buffer *mine, *busy;
	struct bh_cuda_left left;

	begin();
	mine = alloc(10);
	busy = alloc(20);
	busy->busy = true;
	bh_cuda_memory_free(cuda->memory, false, &left);
	CU_ASSERT(mine->revoked && busy->revoked);
	CU_ASSERT_EQUAL(left.buffers, 1);
	CU_ASSERT_EQUAL(left.bytes, 80);
	CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 1); /* SUP-10 */
	/* What is left belongs to the process; here the test ends it. */
	atomic_store(&fake.sticky, CUDA_ERROR_UNKNOWN);
	(void)bh_cuda_flight_free(cuda->flight);
	bh_cuda_handles_free(cuda->handles);
	free(cuda->memory->records);
	free(cuda->memory);
	(void)bh_cuda_reaper_free(cuda->reaper);
	free(cuda);
	fake_end();
}

static void nothing_is_freed_while_works_are_lost(void)
{
	struct bh_cuda_left left;
	struct bh_buffer *buffer, *pinned;

	begin();
	buffer = alloc(10);
	pinned = pages(0x40000, 10);
	CU_ASSERT_EQUAL(with_argument("pin", pinned), 0);
	bh_cuda_memory_free(cuda->memory, true, &left);
	CU_ASSERT(buffer->revoked);
	CU_ASSERT(!pinned->freed);
	CU_ASSERT_EQUAL(left.buffers, 1);
	CU_ASSERT_EQUAL(left.pins, 1);
	CU_ASSERT_EQUAL(atomic_load(&fake.allocated), 1);
	CU_ASSERT_EQUAL(atomic_load(&fake.pins), 1);
	atomic_store(&fake.sticky, CUDA_ERROR_UNKNOWN);
	(void)bh_cuda_flight_free(cuda->flight);
	bh_cuda_handles_free(cuda->handles);
	for (struct bh_cuda_record *record = cuda->memory->records, *older; record;
	     record = older) {
		older = record->older;
		free(record->range);
		free(record);
	}
	free(cuda->memory);
	(void)bh_cuda_reaper_free(cuda->reaper);
	free(cuda);
	fake_end();
}

static void dead_context_is_let_go(void)
{
	struct bh_buffer *buffer, *later;

	begin();
	buffer = alloc(10);
	later = alloc(10);
	atomic_store(&fake.sticky, CUDA_ERROR_ILLEGAL_ADDRESS);
	bh_cuda_note_result(cuda, CUDA_ERROR_ILLEGAL_ADDRESS, "test");
	drop(later);
	CU_ASSERT(fake_cuda_free(cuda)); /* the driver is not asked; nothing is left behind */
	CU_ASSERT(buffer->revoked);
	CU_ASSERT(later->freed);
	fake_end();
}

/* ---- many threads --------------------------------------------------------------------------------------------------- */

static _Atomic bool over;

static void *reap_all_the_time(void *unused)
{
	(void)unused;
	while (!atomic_load(&over)) {
		bh_cuda_memory_reap(cuda->memory, true);
		(void)poll(NULL, 0, 0);
	}
	return NULL;
}

static void *use_memory(void *unused)
{
	struct bh_task mine;

	(void)unused;
	for (int i = 0; i < 200; i++) {
		const struct bh_value shape = an_int(1 + i % 7), priority = an_int(0);
		const struct bh_value args[] = {
			{ .type = BH_TYPE_LIST, .as.list = { &shape, 1 } },
			{ .type = BH_TYPE_STR, .as.text = { "uint8", 5 } },
			{ .type = BH_TYPE_BOOL, .as.boolean = 0 },
		};
		struct bh_buffer *host = fake_buffer(64);
		struct bh_value value;
		struct bh_buffer *device;

		CU_ASSERT_EQUAL(fake_run(cuda, bh_cuda_memory_ops, BH_CUDA_MEMORY_OPS, "alloc",
					 args, &mine),
				BH_PENDING);
		/* Another's work may be in the way of an inline end: then the device has to be looked at. */
		for (int n = 0; n < 60000 && fake_outcome(mine.id).n == 0; n++)
			(void)poll(NULL, 0, 1);
		device = fake_outcome(mine.id).buffer;
		CU_ASSERT_PTR_NOT_NULL_FATAL(device);
		host->info.data = (void *)(uintptr_t)(0x100000 + (i % 5) * 0x10000);
		value = a_buffer(host);
		(void)fake_run(cuda, bh_cuda_memory_ops, BH_CUDA_MEMORY_OPS, "pin", &value, &mine);
		(void)fake_run(cuda, bh_cuda_memory_ops, BH_CUDA_MEMORY_OPS, "unpin", &value,
			       &mine);
		CU_ASSERT_EQUAL(fake_run(cuda, bh_cuda_stream_ops, BH_CUDA_STREAM_OPS, "stream",
					 &priority, &mine),
				0);
		value = mine.result;
		CU_ASSERT_EQUAL(fake_run(cuda, bh_cuda_stream_ops, BH_CUDA_STREAM_OPS,
					 "stream_close", &value, &mine),
				0);
		drop(host);
		drop(device);
	}
	return NULL;
}

static int look_fd;

static void *run_flight(void *unused)
{
	(void)unused;
	bh_cuda_flight_run(cuda->flight, look_fd);
	return NULL;
}

static void many_threads(void)
{
	pthread_t users[3], reaper, progress;
	int fds[2];

	begin();
	CU_ASSERT_FATAL(pipe(fds) == 0);
	look_fd = fds[0];
	atomic_store(&over, false);
	CU_ASSERT_FATAL(pthread_create(&reaper, NULL, reap_all_the_time, NULL) == 0);
	CU_ASSERT_FATAL(pthread_create(&progress, NULL, run_flight, NULL) == 0);
	for (int i = 0; i < 3; i++)
		CU_ASSERT_FATAL(pthread_create(&users[i], NULL, use_memory, NULL) == 0);
	for (int i = 0; i < 3; i++)
		pthread_join(users[i], NULL);
	atomic_store(&over, true);
	pthread_join(reaper, NULL);
	CU_ASSERT(write(fds[1], "", 1) == 1);
	pthread_join(progress, NULL);
	close(fds[0]);
	close(fds[1]);
	end();
}

static const struct bh_test tests[] = {
	{ "device memory is freed with its last reference, by the reaper",
	  freed_with_the_last_reference },
	{ "memory whose address was given away waits for the device", shared_waits_for_strangers },
	{ "out of memory fails the task alone and says asked, free, total",
	  out_of_memory_says_how_much },
	{ "wrong shapes and types are refused with what would be right", refuses_wrong_shapes },
	{ "free() frees now, and refuses what is not its own", free_now },
	{ "SUP-10: free() of what is in use leaves it to the last user", free_of_what_is_in_use },
	{ "a pin is counted, and holds its buffer until it is undone", pins_and_unpins },
	{ "what alloc_host() has pinned goes with its buffer", new_host_memory_is_pinned },
	{ "pins on the same pages share them; what overlaps is refused", pins_share_pages },
	{ "a pin that the driver refuses says why", refused_pins_say_why },
	{ "a copy that leaves its memory is refused before the driver sees it",
	  copies_stay_within },
	{ "a number that was closed never means another", handles_have_generations },
	{ "a stream that is closed lives as long as its works", closed_while_in_use },
	{ "a priority that the device has not is refused with its range", refuses_priorities },
	{ "modules that were left open go with the section", modules_go_too },
	{ "SUP-10: close takes memory back, and leaves what is in use", close_takes_memory_back },
	{ "EXIT-4: while works are lost nothing is freed", nothing_is_freed_while_works_are_lost },
	{ "H11: a dead context is let go without asking the driver", dead_context_is_let_go },
	{ "memory, pins and streams of many threads", many_threads },
};
BH_TAP_MAIN("cuda memory", tests)
