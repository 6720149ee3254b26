/* SPDX-License-Identifier: BSD-3-Clause */
/* test_cuda_flight - plugins/cuda/flight.c and the pendings over it, against a driver of our own: each work ends
 * once, when the device is done, and none is lost, whoever gives it and whatever breaks. */
#include "config.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/cuda_fake.h"
#include "tests/unit/tap.h"

static struct bh_cuda *cuda;
static pthread_t progress_thread;
static int stop_fd;

static void *run_flight(void *unused)
{
	(void)unused;
	bh_cuda_flight_run(cuda->flight, stop_fd);
	return NULL;
}

static void begin(int64_t inline_ns)
{
	fake_begin();
	cuda = fake_cuda(inline_ns);
	stop_fd = eventfd(0, EFD_CLOEXEC);
	CU_ASSERT_FATAL(pthread_create(&progress_thread, NULL, run_flight, NULL) == 0);
}

static void stop(void)
{
	const uint64_t one = 1;

	CU_ASSERT(write(stop_fd, &one, sizeof(one)) == sizeof(one));
	pthread_join(progress_thread, NULL);
	close(stop_fd);
}

static void end(void)
{
	stop();
	CU_ASSERT(fake_cuda_free(cuda));
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.metrics[BH_CUDA_METRIC_IN_FLIGHT]), 0);
	fake_end();
}

static _Atomic int n_cleanups;

static void cleanup(struct bh_cuda_pending *pending)
{
	(void)pending;
	atomic_fetch_add(&n_cleanups, 1);
}

/* Gives one work to `stream`, as an op does; the task's id. */
static uint64_t post(CUstream stream)
{
	struct bh_task task = fake_task();
	struct bh_cuda_pending *pending;
	BH_CUDA_CALL call;

	CU_ASSERT_FATAL(bh_cuda_call_begin(&call, cuda, &task, "test") == 0);
	pending = bh_cuda_pending_new(&call, sizeof(*pending));
	CU_ASSERT_FATAL(pending != NULL);
	pending->cleanup = cleanup;
	CU_ASSERT_EQUAL(bh_cuda_post(pending, stream), BH_PENDING);
	return task.id;
}

static void await_completed(uint32_t n)
{
	for (int i = 0; i < 60000 && atomic_load(&fake.ctx.n_completed) < n; i++)
		(void)poll(NULL, 0, 1);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.n_completed), n);
}

static CUstream new_stream(void)
{
	CUstream stream = NULL;

	CU_ASSERT_FATAL(fake.driver.cuStreamCreateWithPriority_(&stream, CU_STREAM_NON_BLOCKING,
								0) == CUDA_SUCCESS);
	return stream;
}

static void ends_when_done(void)
{
	uint64_t first, second;

	begin(0);
	atomic_store(&fake.manual, true);
	first = post(cuda->stream);
	second = post(cuda->stream);
	(void)poll(NULL, 0, 20);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.n_completed), 0);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.metrics[BH_CUDA_METRIC_IN_FLIGHT]), 2);
	fake_finish(cuda->stream);
	await_completed(2);
	CU_ASSERT_EQUAL(fake_outcome(first).n, 1);
	CU_ASSERT_EQUAL(fake_outcome(first).status, 0);
	CU_ASSERT_EQUAL(fake_outcome(second).n, 1);
	end();
}

static void ends_inline(void)
{
	uint64_t id;

	begin(INT64_C(1000000000));
	id = post(cuda->stream); /* done at once: the worker itself sees it */
	CU_ASSERT_EQUAL(fake_outcome(id).n, 1);
	end();
}

static void streams_do_not_wait_for_each_other(void)
{
	CUstream slow, fast;
	uint64_t id;

	begin(0);
	atomic_store(&fake.manual, true);
	slow = new_stream();
	fast = new_stream();
	(void)post(slow);
	(void)post(slow);
	id = post(fast);
	fake_finish(fast);
	await_completed(1);
	CU_ASSERT_EQUAL(fake_outcome(id).n, 1);
	fake_finish(slow);
	await_completed(3);
	(void)fake.driver.cuStreamDestroy_(slow);
	(void)fake.driver.cuStreamDestroy_(fast);
	end();
}

static void long_work_costs_little(void)
{
	uint32_t before, after;

	begin(0);
	atomic_store(&fake.manual, true);
	(void)post(cuda->stream);
	(void)poll(NULL, 0, 100);
	before = atomic_load(&fake.n_queries);
	(void)poll(NULL, 0, 200);
	after = atomic_load(&fake.n_queries);
	CU_ASSERT(after - before <= 400); /* a look a millisecond, and room */
	fake_finish(cuda->stream);
	await_completed(1);
	end();
}

static void fault_ends_all_once(void)
{
	uint64_t ids[8];
	struct bh_task task = fake_task();
	struct bh_cuda_call call;

	begin(0);
	atomic_store(&fake.manual, true);
	for (int i = 0; i < 8; i++)
		ids[i] = post(cuda->stream);
	atomic_store(&fake.sticky, CUDA_ERROR_ILLEGAL_ADDRESS);
	await_completed(8);
	for (int i = 0; i < 8; i++) {
		struct fake_outcome outcome = fake_outcome(ids[i]);

		CU_ASSERT_EQUAL(outcome.n, 1);
		CU_ASSERT_EQUAL(outcome.status, -EIO);
		CU_ASSERT_STRING_EQUAL(outcome.id, "cuda.fault");
	}
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.n_failed), 1);
	CU_ASSERT_STRING_EQUAL(fake.ctx.failed_id, "cuda.fault");
	/* The driver would say the same; it is not asked. */
	CU_ASSERT_EQUAL(bh_cuda_call_begin(&call, cuda, &task, "test"), -EIO);
	CU_ASSERT_STRING_EQUAL(task.fail_id, "cuda.dead");
	CU_ASSERT(strstr(task.text, "CUDA_ERROR_ILLEGAL_ADDRESS") != NULL);
	end();
}

static void no_success_after_the_fault(void)
{
	uint64_t id;

	begin(0);
	atomic_store(&fake.manual, true);
	id = post(cuda->stream);
	bh_cuda_note_result(cuda, CUDA_ERROR_LAUNCH_FAILED, "another op");
	fake_finish(cuda->stream); /* its event says success by now */
	await_completed(1);
	CU_ASSERT_EQUAL(fake_outcome(id).status, -EIO);
	atomic_store(&fake.sticky, CUDA_ERROR_LAUNCH_FAILED);
	end();
}

/* Its event was asked a moment before somebody else saw the fault. */
static void no_success_that_was_seen_before_the_fault(void)
{
	struct bh_task task = fake_task();
	struct bh_cuda_pending *pending;
	BH_CUDA_CALL call;

	begin(0);
	CU_ASSERT_FATAL(bh_cuda_call_begin(&call, cuda, &task, "test") == 0);
	pending = bh_cuda_pending_new(&call, sizeof(*pending));
	CU_ASSERT_FATAL(pending != NULL);
	bh_cuda_flight_drop(cuda->flight, &pending->work);
	bh_cuda_note_result(cuda, CUDA_ERROR_LAUNCH_FAILED, "another op");
	pending->work.done(&pending->work, CUDA_SUCCESS);
	CU_ASSERT_EQUAL(fake_outcome(task.id).n, 1);
	CU_ASSERT_EQUAL(fake_outcome(task.id).status, -EIO);
	atomic_store(&fake.sticky, CUDA_ERROR_LAUNCH_FAILED);
	end();
}

static void what_never_ends_is_counted(void)
{
	begin(0);
	atomic_store(&fake.manual, true);
	atomic_store(&n_cleanups, 0);
	(void)post(cuda->stream);
	(void)post(cuda->stream);
	stop();
	CU_ASSERT_EQUAL(bh_cuda_flight_free(cuda->flight), 2);
	CU_ASSERT_EQUAL(atomic_load(&n_cleanups), 0);
	fake_finish(cuda->stream); /* late, and told all the same */
	CU_ASSERT_EQUAL(bh_cuda_flight_free(cuda->flight), 0);
	cuda->flight = NULL;
	CU_ASSERT_EQUAL(atomic_load(&n_cleanups), 2);
	CU_ASSERT(fake_cuda_free(cuda));
	fake_end();
}

static void begin_can_fail(void)
{
	struct bh_task task = fake_task();
	BH_CUDA_CALL call;

	begin(0);
	CU_ASSERT_FATAL(bh_cuda_call_begin(&call, cuda, &task, "test") == 0);
	atomic_store(&fake.once, CUDA_ERROR_OUT_OF_MEMORY);
	CU_ASSERT_PTR_NULL(bh_cuda_pending_new(&call, sizeof(struct bh_cuda_pending)));
	CU_ASSERT_EQUAL(task.status, -ENOMEM);
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.n_failed), 0); /* the task alone */
	end();
}

/* ---- many threads ------------------------------------------------------------------------------------ */

#define GIVERS 3
#define EACH 400

static CUstream streams[4];
static _Atomic bool over;

static void *give_many(void *unused)
{
	(void)unused;
	for (int i = 0; i < EACH; i++) {
		(void)post(streams[i % 4]);
		if (i % 16 == 0)
			sched_yield();
	}
	return NULL;
}

static void *work(void *unused)
{
	(void)unused;
	while (!atomic_load(&over)) {
		for (int i = 0; i < 4; i++)
			fake_finish(streams[i]);
		sched_yield();
	}
	return NULL;
}

static void many_givers(void)
{
	pthread_t givers[GIVERS], device;

	begin(5000);
	atomic_store(&fake.manual, true);
	atomic_store(&over, false);
	for (int i = 0; i < 4; i++)
		streams[i] = new_stream();
	CU_ASSERT_FATAL(pthread_create(&device, NULL, work, NULL) == 0);
	for (int i = 0; i < GIVERS; i++)
		CU_ASSERT_FATAL(pthread_create(&givers[i], NULL, give_many, NULL) == 0);
	for (int i = 0; i < GIVERS; i++)
		pthread_join(givers[i], NULL);
	await_completed(GIVERS * EACH);
	atomic_store(&over, true);
	pthread_join(device, NULL);
	for (uint64_t id = 0; id < GIVERS * EACH; id++)
		CU_ASSERT_EQUAL(fake_outcome(id).n, 1);
	for (int i = 0; i < 4; i++)
		(void)fake.driver.cuStreamDestroy_(streams[i]);
	end();
}

static void fault_among_many(void)
{
	pthread_t givers[GIVERS];

	begin(0);
	for (int i = 0; i < 4; i++)
		streams[i] = new_stream();
	atomic_store(&fake.manual, true);
	for (int i = 0; i < GIVERS; i++)
		CU_ASSERT_FATAL(pthread_create(&givers[i], NULL, give_many, NULL) == 0);
	for (int i = 0; i < GIVERS; i++)
		pthread_join(givers[i], NULL);
	atomic_store(&fake.sticky, CUDA_ERROR_LAUNCH_FAILED);
	await_completed(GIVERS * EACH);
	for (uint64_t id = 0; id < GIVERS * EACH; id++) {
		CU_ASSERT_EQUAL(fake_outcome(id).n, 1);
		CU_ASSERT_EQUAL(fake_outcome(id).status, -EIO);
	}
	CU_ASSERT_EQUAL(atomic_load(&fake.ctx.n_failed), 1);
	end();
}

static const struct bh_test tests[] = {
	{ "SUP-4: a work ends when the device is done, not before", ends_when_done },
	{ "the end of a short work is seen by the worker itself", ends_inline },
	{ "a stream's works do not wait for another stream's", streams_do_not_wait_for_each_other },
	{ "a long work is looked at about once a millisecond", long_work_costs_little },
	{ "H11: a fault ends each work once, and fails the pool once", fault_ends_all_once },
	{ "H11: nothing is reported done after the fault", no_success_after_the_fault },
	{ "H11: not even what was seen to be over just before",
	  no_success_that_was_seen_before_the_fault },
	{ "EXIT-4: works that never end are counted, and keep what they have",
	  what_never_ends_is_counted },
	{ "an op that cannot be followed fails before anything is queued", begin_can_fail },
	{ "SUP-4: works of many threads on many streams end once each", many_givers },
	{ "H11: so they do when the context dies", fault_among_many },
};
BH_TAP_MAIN("cuda flight", tests)
