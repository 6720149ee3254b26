/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_rdma_register - microseconds of registering 1 GiB for peers, the first time and again, with the
 * book and the software transport as the plugin has them, beneath a host of nothing but buffers.
 *
 * The last line is for machines: "ratio NAME VALUE OP LIMIT ok|short", VALUE the median of ROUNDS. What an
 * await of it costs in Python is bench_rdma_app.py's to say. */
#include "config.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "plugins/rdma/book.h"

#define ROUNDS 1001
#define SIZE ((uint64_t)1 << 30)
#define LIMIT_US 10.0

struct bh_buffer {
	struct bh_buffer_info info;
	void *slot;
};

bh_status bh_rdma_engine_revoke(struct bh_rdma_engine *engine, struct bh_rdma_revoke *revoke)
{
	(void)engine;
	revoke->done(revoke); /* there are no peers */
	return -ESHUTDOWN;
}

static bh_status buffer_info(const struct bh_buffer *buffer, struct bh_buffer_info *ret_info)
{
	*ret_info = buffer->info;
	return 0;
}

static struct bh_buffer *buffer_ref(struct bh_buffer *buffer)
{
	return buffer;
}

static void buffer_unref(struct bh_buffer *buffer)
{
	(void)buffer;
}

static void *slot_get(struct bh_context *ctx, struct bh_buffer *buffer)
{
	(void)ctx;
	return buffer->slot;
}

static bh_status slot_set(struct bh_context *ctx, struct bh_buffer *buffer, void *value,
			  void (*release)(void *value, struct bh_buffer *buffer))
{
	(void)ctx;
	(void)release;
	buffer->slot = value;
	return 0;
}

static void *slot_clear(struct bh_context *ctx, struct bh_buffer *buffer)
{
	void *value = buffer->slot;

	(void)ctx;
	buffer->slot = NULL;
	return value;
}

static const struct bh_services services = {
	.size = sizeof(services),
	.abi = BH_ABI,
	.buffer_info = buffer_info,
	.buffer_ref = buffer_ref,
	.buffer_unref = buffer_unref,
	.buffer_slot_get = slot_get,
	.buffer_slot_set = slot_set,
	.buffer_slot_clear = slot_clear,
};

static void must(bh_status st, const struct bh_rdma_fault *fault)
{
	if (st >= 0)
		return;
	fprintf(stderr, "bench_rdma_register: %s\n", fault->text);
	exit(1);
}

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static double register_once(struct bh_rdma_book *book, struct bh_buffer *buffer,
			    struct bh_rdma_region_facts *ret_facts)
{
	struct bh_rdma_fault fault = { .text = "" };
	double began = now_us();

	must(bh_rdma_book_register(book, buffer, BH_RDMA_READ, ret_facts, &fault), &fault);
	return now_us() - began;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(void)
{
	struct bh_rdma_config config = { .label = "bench",
					 .queue_depth = 64,
					 .connect_timeout_ns = INT64_C(10000000000) };
	struct bh_buffer buffer = {
		.info = { .size = sizeof(buffer.info), .kind = BH_BUFFER_HOST, .length = SIZE }
	};
	struct bh_rdma_region_facts first, again;
	struct bh_rdma_transport *transport;
	static double took[ROUNDS];
	struct bh_rdma_book *book;
	struct bh_rdma_fault fault;
	double begin;

	buffer.info.data = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (buffer.info.data == MAP_FAILED)
		return 1;
	must(bh_rdma_software.open(&config, &transport, &fault), &fault);
	must(bh_rdma_book_new(NULL, &services, transport, NULL, 1, &book), &fault);
	begin = register_once(book, &buffer, &first);
	for (int i = 0; i < ROUNDS; i++) {
		took[i] = register_once(book, &buffer, &again);
		if (bh_rdma_book_close(book, again.handle, NULL, NULL) != 0)
			return 1; /* the first one keeps the registration */
	}
	if (bh_rdma_book_close(book, first.handle, NULL, NULL) >= 0)
		bh_rdma_book_reap(book);
	if (bh_rdma_book_free(book) != 0)
		return 1;
	bh_rdma_software.close(transport);
	qsort(took, ROUNDS, sizeof(took[0]), by_value);
	printf("register 1 GiB: first %.2f us; again %.2f us, best %.2f, worst %.2f\n", begin,
	       took[ROUNDS / 2], took[0], took[ROUNDS - 1]);
	printf("ratio rdma_register_again_us %.3f <= %.1f %s\n", took[ROUNDS / 2], LIMIT_US,
	       took[ROUNDS / 2] <= LIMIT_US ? "ok" : "short");
	return took[ROUNDS / 2] > LIMIT_US;
}
