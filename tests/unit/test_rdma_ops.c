/* SPDX-License-Identifier: BSD-3-Clause */
/* test_rdma_ops - plugins/rdma/ops.c between a host, a book and an engine of our own: each close() has one
 * outcome, whoever cancels it and whenever it ends; and parts whose sum is more than a number holds are
 * not taken for none. */
#include "config.h"

#include "plugins/rdma/rdma.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "host/core/common.h"
#include "tests/unit/tap.h"

#define TASK UINT64_C(77)
#define ROUNDS 2000u

/* ---- a host, a book and an engine of our own ------------------------------------------------------- */

struct bh_task {
	uint64_t id;
};

struct bh_buffer {
	struct bh_buffer_info info;
};

struct bh_rdma_engine {
	unsigned n_cancelled, n_submitted;
};

struct bh_rdma_book {
	bh_status status;     /* what close() returns */
	void (*within)(void); /* before it does */
	void (*done)(void *user, bh_status status);
	void *user;
};

static struct bh_rdma_book book;
static struct bh_rdma_engine engine;
static struct bh_rdma rdma;

/* What was told of the task, by complete() and by what run() returned. */
static struct {
	unsigned n;
	bh_status status;
	char id[32];
	char reason[128];
} outcome;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void tell(bh_status status, const char *id, const struct bh_fact *facts, uint32_t n_facts)
{
	pthread_mutex_lock(&lock);
	outcome.n++;
	outcome.status = status;
	snprintf(outcome.id, sizeof(outcome.id), "%s", id ? id : "");
	for (uint32_t i = 0; i < n_facts; i++)
		if (strcmp(facts[i].key, "reason") == 0)
			snprintf(outcome.reason, sizeof(outcome.reason), "%s", facts[i].text);
	pthread_mutex_unlock(&lock);
}

static bh_status host_complete(struct bh_context *ctx, uint64_t task_id, bh_status status,
			       const struct bh_value *value, const char *id,
			       const struct bh_fact *facts, uint32_t n_facts)
{
	(void)ctx;
	(void)value;
	CU_ASSERT_EQUAL(task_id, TASK);
	tell(status, id, facts, n_facts);
	return 0;
}

static struct bh_fact failed_with; /* the id, until run() has returned */

static bh_status host_task_fail(struct bh_task *task, bh_status status, const char *id,
				const struct bh_fact *facts, uint32_t n_facts)
{
	(void)task;
	failed_with = (struct bh_fact){ .key = id };
	for (uint32_t i = 0; i < n_facts; i++)
		if (strcmp(facts[i].key, "reason") == 0)
			failed_with.text = facts[i].text;
	return status;
}

static uint64_t host_task_id(const struct bh_task *task)
{
	return task->id;
}

static bh_status host_buffer_info(const struct bh_buffer *buffer, struct bh_buffer_info *ret_info)
{
	*ret_info = buffer->info;
	return 0;
}

static int64_t host_remaining(const struct bh_task *task)
{
	(void)task;
	return INT64_MAX;
}

static uint64_t host_now(void)
{
	return 1;
}

static const struct bh_services services = {
	.size = sizeof(services),
	.abi = BH_ABI,
	.complete = host_complete,
	.task_fail = host_task_fail,
	.task_id = host_task_id,
	.remaining_ns = host_remaining,
	.now_ns = host_now,
	.buffer_info = host_buffer_info,
};

bh_status bh_rdma_book_close(struct bh_rdma_book *of, uint64_t handle,
			     void (*done)(void *user, bh_status status), void *user)
{
	(void)handle;
	of->done = done;
	of->user = user;
	if (of->within)
		of->within();
	return of->status;
}

bh_status bh_rdma_book_use(struct bh_rdma_book *of, struct bh_buffer *buffer,
			   struct bh_rdma_use **ret_use, const struct bh_rdma_memory **ret_memory,
			   struct bh_rdma_fault *fault)
{
	(void)of;
	(void)buffer;
	(void)fault;
	*ret_use = NULL;
	*ret_memory = NULL;
	return 0;
}

void bh_rdma_engine_cancel(struct bh_rdma_engine *of, uint64_t id)
{
	CU_ASSERT_EQUAL(id, TASK);
	of->n_cancelled++;
}

bh_status bh_rdma_engine_submit(struct bh_rdma_engine *of, struct bh_rdma_transfer *transfer)
{
	of->n_submitted++;
	transfer->done(transfer, 0, NULL, 0);
	return 0;
}

/* Not called here. */
bh_status bh_rdma_book_register(struct bh_rdma_book *of, struct bh_buffer *buffer, uint32_t access,
				struct bh_rdma_region_facts *ret_facts, struct bh_rdma_fault *fault)
{
	(void)of;
	(void)buffer;
	(void)access;
	(void)ret_facts;
	(void)fault;
	abort();
}

bh_status bh_rdma_book_facts(struct bh_rdma_book *of, uint64_t handle,
			     struct bh_rdma_region_facts *ret_facts)
{
	(void)of;
	(void)handle;
	(void)ret_facts;
	abort();
}

void bh_rdma_book_counts(struct bh_rdma_book *of, struct bh_rdma_book_counts *ret_counts)
{
	(void)of;
	(void)ret_counts;
	abort();
}

void bh_rdma_engine_counts(const struct bh_rdma_engine *of, struct bh_rdma_counts *ret_counts)
{
	(void)of;
	(void)ret_counts;
	abort();
}

void bh_rdma_book_unuse(struct bh_rdma_book *of, struct bh_rdma_use *use)
{
	(void)of;
	CU_ASSERT_PTR_NULL(use);
}

void bh_rdma_publish(struct bh_rdma *of)
{
	CU_ASSERT_PTR_EQUAL(of, &rdma);
}

static void begin(void)
{
	static struct bh_rdma_transport transport = { .kind = BH_RDMA_SOFTWARE };

	memset(&outcome, 0, sizeof(outcome));
	memset(&book, 0, sizeof(book));
	memset(&engine, 0, sizeof(engine));
	memset(&rdma, 0, sizeof(rdma));
	rdma.services = &services;
	rdma.book = &book;
	rdma.engine = &engine;
	rdma.transport = &transport;
	atomic_store(&rdma.threads, (1u << BH_RDMA_THREADS) - 1);
	pthread_mutex_init(&rdma.lock, NULL);
}

static void end(void)
{
	CU_ASSERT_PTR_NULL(rdma.closings);
	pthread_mutex_destroy(&rdma.lock);
}

static const struct bh_op *op(const char *name)
{
	for (size_t i = 0; i < BH_RDMA_OPS; i++)
		if (strcmp(bh_rdma_ops[i].name, name) == 0)
			return &bh_rdma_ops[i];
	abort();
}

/* As the host does: what run() returns, unless it is BH_PENDING, is the task's outcome too. */
static bh_status run(const char *name, const struct bh_value *args)
{
	struct bh_task task = { .id = TASK };
	bh_status st;

	failed_with = (struct bh_fact){ 0 };
	st = op(name)->run(&rdma, &task, args);
	if (st != BH_PENDING) {
		if (failed_with.key && !failed_with.text)
			failed_with.text = "";
		tell(st, failed_with.key,
		     &(struct bh_fact){ .key = "reason", .text = failed_with.text },
		     failed_with.key ? 1 : 0);
	}
	return st;
}

static bh_status run_close(void)
{
	return run("close", &(struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = 1 });
}

/* ---- close ------------------------------------------------------------------------------------------ */

static void cancel(void)
{
	bh_rdma_cancel(&rdma, TASK);
}

static void cancel_twice(void)
{
	cancel();
	cancel();
}

static void over(void)
{
	book.done(book.user, 0);
}

static void cancel_and_over(void)
{
	cancel();
	over();
}

static void over_and_cancel(void)
{
	over();
	cancel();
}

static void a_close_has_one_outcome(void)
{
	static const struct {
		const char *what;
		void (*within)(void); /* while the book's close() runs */
		bh_status status;     /* what that returns */
		void (*then)(void);   /* behind run() */
		bh_status expected;
		const char *id;
		unsigned n_cancelled; /* told to the engine: the close was over, or is none */
	} cases[] = {
		{ "over at once", NULL, 0, NULL, 0, "", 0 },
		{ "no such region", NULL, -ENOENT, NULL, -ENOENT, "rdma.region", 0 },
		{ "over later", NULL, 1, over, 0, "", 0 },
		{ "over meanwhile", over, 1, NULL, 0, "", 0 },
		{ "cancelled, then over", NULL, 1, cancel_and_over, -ECANCELED, "rdma.closing", 0 },
		{ "over, then cancelled", NULL, 1, over_and_cancel, 0, "", 1 },
		{ "cancelled meanwhile", cancel, 1, over, -ECANCELED, "rdma.closing", 0 },
		{ "cancelled, over at once", cancel, 0, NULL, -ECANCELED, "rdma.closing", 0 },
		{ "cancelled, no region", cancel, -ENOENT, NULL, -ECANCELED, "rdma.closing", 0 },
		{ "cancelled twice", cancel_twice, 0, NULL, -ECANCELED, "rdma.closing", 1 },
		{ "both meanwhile", cancel_and_over, 1, NULL, -ECANCELED, "rdma.closing", 0 },
		{ "both the other way", over_and_cancel, 1, NULL, 0, "", 1 },
		{ "over at once, then cancelled", NULL, 0, cancel, 0, "", 1 },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(cases); i++) {
		begin();
		book.within = cases[i].within;
		book.status = cases[i].status;
		(void)run_close();
		if (cases[i].then)
			cases[i].then();
		if (outcome.n != 1 || outcome.status != cases[i].expected ||
		    strcmp(outcome.id, cases[i].id) != 0 ||
		    engine.n_cancelled != cases[i].n_cancelled) {
			printf("# %s: %u outcomes, the last %d %s; %u went to the engine\n",
			       cases[i].what, outcome.n, outcome.status, outcome.id,
			       engine.n_cancelled);
			CU_FAIL("a close() has one outcome");
		}
		end();
	}
}

static void *cancel_beside(void *user)
{
	pthread_barrier_wait(user);
	cancel();
	return NULL;
}

static void *end_beside(void *user)
{
	pthread_barrier_wait(user);
	over();
	return NULL;
}

/* The supervisor cancels while the reaper's thread ends it. */
static void at_the_same_moment(void)
{
	unsigned n_cancelled = 0, n_wrong = 0;
	pthread_t canceller, ender;
	pthread_barrier_t barrier;

	pthread_barrier_init(&barrier, NULL, 2);
	for (unsigned i = 0; i < ROUNDS; i++) {
		begin();
		book.status = 1;
		CU_ASSERT_EQUAL_FATAL(run_close(), BH_PENDING);
		CU_ASSERT_EQUAL_FATAL(pthread_create(&canceller, NULL, cancel_beside, &barrier), 0);
		CU_ASSERT_EQUAL_FATAL(pthread_create(&ender, NULL, end_beside, &barrier), 0);
		pthread_join(canceller, NULL);
		pthread_join(ender, NULL);
		n_cancelled += outcome.status == -ECANCELED;
		n_wrong += outcome.n != 1 ||
			   engine.n_cancelled != (outcome.status == -ECANCELED ? 0 : 1);
		end();
	}
	pthread_barrier_destroy(&barrier);
	CU_ASSERT_EQUAL(n_wrong, 0);
	printf("# %u of %u closes were cancelled just before their end\n", n_cancelled, ROUNDS);
}

/* ---- many parts ------------------------------------------------------------------------------------- */

#define HUGE_PARTS 4u

static void parts_are_added_up_without_overflow(void)
{
	const uint64_t huge = UINT64_C(1) << 62;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(1) };
	struct bh_rdma_descriptor descriptor = { .kind = BH_RDMA_SOFTWARE,
						 .access = BH_RDMA_READ | BH_RDMA_WRITE,
						 .length = huge,
						 .address.length = sizeof(address) };
	struct bh_buffer buffer = {
		.info = { .size = sizeof(buffer.info), .kind = BH_BUFFER_HOST, .length = huge }
	};
	struct bh_value ints[3 * HUGE_PARTS], args[3];
	uint8_t bytes[BH_RDMA_DESCRIPTOR_MAX];

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	memcpy(descriptor.address.bytes, &address, sizeof(address));
	for (size_t i = 0; i < BH_ARRAY_LEN(ints); i++)
		ints[i] = (struct bh_value){ .type = BH_TYPE_INT,
					     .as.integer = i % 3 == 2 ? (int64_t)huge : 0 };
	args[0] = (struct bh_value){ .type = BH_TYPE_BYTES, .as.text.data = (const char *)bytes };
	args[0].as.text.length = bh_rdma_descriptor_encode(&descriptor, bytes);
	args[1] = (struct bh_value){ .type = BH_TYPE_BUFFER, .as.buffer = &buffer };
	/* All four together have 2^64 bytes; two have 2^63, which is no int either. One is fine. */
	for (uint32_t n = 1; n <= HUGE_PARTS; n++) {
		for (unsigned write = 0; write < 2; write++) {
			begin();
			args[2] = (struct bh_value){ .type = BH_TYPE_LIST,
						     .as.list = { ints, 3ull * n } };
			if (n == 1 && write) {
				CU_ASSERT_EQUAL(run("write_many", args), BH_PENDING);
				CU_ASSERT_EQUAL(engine.n_submitted, 1);
			} else if (n > 1) {
				CU_ASSERT_EQUAL(run(write ? "write_many" : "read_many", args),
						-EINVAL);
				CU_ASSERT_STRING_EQUAL(outcome.id, "rdma.parts");
				CU_ASSERT_PTR_NOT_NULL(strstr(outcome.reason, "2^63 - 1"));
				CU_ASSERT_EQUAL(engine.n_submitted, 0);
			}
			end();
		}
	}
}

static const struct bh_test tests[] = {
	{ "a close() has one outcome, wherever a cancellation finds it", a_close_has_one_outcome },
	{ "a close() cancelled at the moment it ends has one outcome", at_the_same_moment },
	{ "parts of 2^64 bytes together are refused, not taken for none",
	  parts_are_added_up_without_overflow },
};

BH_TAP_MAIN("rdma ops", tests)
