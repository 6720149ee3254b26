/* SPDX-License-Identifier: BSD-3-Clause */
/* What every transport of the rdma plugin promises (plugins/rdma/transport.h), asked of one of them:
 * compiled with -DTRANSPORT=bh_rdma_software or -DTRANSPORT=bh_rdma_verbs, against transport.h alone.
 *
 * Most tests have both ends in this process, on one thread, so that what happens between two polls is
 * known. Where a peer must stop or die it is a child, with which words are exchanged in shared memory.
 * BH_TEST_ADDRESS: the address option (preset: the transport's own choice). */
#include "config.h"

#include "plugins/rdma/transport.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/tap.h"

#define MIB ((size_t)1 << 20)
#define PATIENCE_NS (60 * INT64_C(1000000000)) /* how long a broken build takes to fail */
#define EVENTS 16u

static const struct bh_rdma_transport_ops *const ops = &TRANSPORT;

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ---- one end --------------------------------------------------------------------------------- */

struct end {
	struct bh_rdma_transport *transport;
	struct bh_rdma_link *out, *in; /* the latest; gone once DOWN has been seen */
	bool rejects;
	uint32_t n_up_out, n_up_in, n_requests, n_refused;
	uint32_t n_down_out, n_down_in;
	bh_status down_out, down_in; /* the latest one's */
	struct bh_rdma_fault fault;  /* of the latest DOWN or REFUSED */
	struct bh_rdma_address peer; /* of the latest REQUEST */
	uint8_t hello[BH_RDMA_HELLO_SIZE];
	uint32_t n_done, n_well, n_after_down;
	uint32_t n_messages;
	uint8_t message[BH_RDMA_MESSAGE_SIZE];
	uint64_t seen[8192 / 64]; /* cookies */
	bh_status status[8192];
	uint32_t n_twice; /* DONE for one cookie */
	void (*on_message)(struct end *end, struct bh_rdma_link *link, const uint8_t *message);
	void (*on_done)(struct end *end, uint64_t cookie, bh_status status);
	void *arg;
};

static struct bh_rdma_config config_here(void)
{
	const char *address = getenv("BH_TEST_ADDRESS");

	return (struct bh_rdma_config){ .label = "rdma",
					.device = "",
					.gid_index = -1,
					.address = address ? address : "",
					.queue_depth = 256,
					.connect_timeout_ns = 10 * INT64_C(1000000000) };
}

static const uint8_t hello_out[BH_RDMA_HELLO_SIZE] = "from who connects",
		     hello_in[BH_RDMA_HELLO_SIZE] = "from who accepts";

static struct bh_rdma_transport *opened(const struct bh_rdma_config *config)
{
	struct bh_rdma_transport *transport = NULL;
	struct bh_rdma_fault fault = { 0 };

	if (ops->open(config, &transport, &fault) < 0) {
		fprintf(stderr, "%s: %s: %s\n", ops->name, fault.id, fault.text);
		abort();
	}
	return transport;
}

static struct end end_open(void)
{
	struct bh_rdma_config config = config_here();

	return (struct end){ .transport = opened(&config) };
}

static void on_down(struct end *end, const struct bh_rdma_event *event)
{
	if (event->link == end->out) {
		end->n_down_out++;
		end->down_out = event->status;
		end->out = NULL;
	} else {
		end->n_down_in++;
		end->down_in = event->status;
		if (event->link == end->in)
			end->in = NULL;
	}
	memset(&end->fault, 0, sizeof(end->fault));
	if (event->fault)
		end->fault = *event->fault;
	ops->release(end->transport, event->link);
}

static void on_done(struct end *end, const struct bh_rdma_event *event)
{
	uint64_t cookie = event->cookie % 8192;

	end->n_done++;
	end->n_well += event->status == 0;
	end->n_after_down += event->link != end->out;
	end->n_twice += end->seen[cookie / 64] >> cookie % 64 & 1;
	end->seen[cookie / 64] |= (uint64_t)1 << cookie % 64;
	end->status[cookie] = event->status;
	if (end->on_done)
		end->on_done(end, cookie, event->status);
}

static void on_request(struct end *end, const struct bh_rdma_event *event)
{
	struct bh_rdma_fault fault;

	end->n_requests++;
	end->peer = event->peer;
	memcpy(end->hello, event->bytes, sizeof(end->hello));
	if (end->rejects) {
		ops->reject(end->transport, event->link, hello_in);
		return;
	}
	if (ops->accept(end->transport, event->link, hello_in, &fault) == 0)
		end->in = event->link;
}

static void on_event(struct end *end, const struct bh_rdma_event *event)
{
	switch (event->kind) {
	case BH_RDMA_DONE:
		on_done(end, event);
		return;
	case BH_RDMA_REQUEST:
		on_request(end, event);
		return;
	case BH_RDMA_UP:
		if (event->link == end->out) {
			end->n_up_out++;
			memcpy(end->hello, event->bytes, sizeof(end->hello));
		} else {
			end->n_up_in++;
		}
		return;
	case BH_RDMA_REFUSED:
		end->n_refused++;
		memcpy(end->hello, event->bytes, sizeof(end->hello));
		on_down(end, event);
		return;
	case BH_RDMA_DOWN:
		on_down(end, event);
		return;
	case BH_RDMA_MESSAGE:
		end->n_messages++;
		memcpy(end->message, event->bytes, sizeof(end->message));
		if (end->on_message)
			end->on_message(end, event->link, event->bytes);
		return;
	case BH_RDMA_HEALTH:
		return;
	}
}

/* One poll. Returns how many events there were. */
static uint32_t step(struct end *end)
{
	struct bh_rdma_event events[EVENTS];
	uint32_t n = ops->poll(end->transport, events, EVENTS);

	for (uint32_t i = 0; i < n; i++)
		on_event(end, &events[i]);
	return n;
}

/* Sleeps until one of `ends` has something, if none has at once; at most 20 ms, for conditions that
 * others make true. */
static void rest(struct end *const *ends, uint32_t n_ends)
{
	struct pollfd fds[2 * BH_RDMA_FDS];
	int timeout = 20;
	nfds_t n = 0;

	for (uint32_t i = 0; i < n_ends; i++) {
		int some[BH_RDMA_FDS];
		uint32_t n_some = ops->descriptors(ends[i]->transport, some);

		if (!ops->arm(ends[i]->transport))
			return;
		for (uint32_t j = 0; j < n_some; j++)
			fds[n++] = (struct pollfd){ .fd = some[j], .events = POLLIN };
		if (ops->timeout_ns(ends[i]->transport) < timeout * INT64_C(1000000))
			timeout = (int)(ops->timeout_ns(ends[i]->transport) / 1000000);
	}
	(void)poll(fds, n, timeout);
}

#define UNTIL(condition, ...)                                                                      \
	({                                                                                         \
		struct end *const ends_[] = { __VA_ARGS__ };                                       \
		const uint32_t n_ends_ = sizeof(ends_) / sizeof(ends_[0]);                         \
		int64_t until_ = now_ns() + PATIENCE_NS;                                           \
		while (!(condition) && now_ns() < until_) {                                        \
			uint32_t n_ = 0;                                                           \
			for (uint32_t i_ = 0; i_ < n_ends_; i_++)                                  \
				n_ += step(ends_[i_]);                                             \
			if (!n_ && !(condition))                                                   \
				rest(ends_, n_ends_);                                              \
		}                                                                                  \
		(condition);                                                                       \
	})

static void connect_out(struct end *end, const struct bh_rdma_address *address)
{
	struct bh_rdma_fault fault = { 0 };

	if (ops->connect(end->transport, address, hello_out, &end->out, &fault) < 0) {
		fprintf(stderr, "connect: %s: %s\n", fault.id, fault.text);
		end->out = NULL;
	}
}

/* a -> b */
static bool join_ends(struct end *a, struct end *b)
{
	uint32_t up = a->n_up_out, in = b->n_up_in;

	connect_out(a, &b->transport->address);
	return UNTIL(a->n_up_out > up && b->n_up_in > in, a, b);
}

static struct bh_rdma_memory registered(struct end *end, void *data, uint64_t length,
					uint32_t access)
{
	struct bh_rdma_memory memory = { 0 };
	struct bh_rdma_fault fault = { 0 };

	if (ops->register_memory(end->transport, data, length, access, &memory, &fault) < 0) {
		fprintf(stderr, "register: %s: %s\n", fault.id, fault.text);
		abort();
	}
	return memory;
}

/* `data` of `end`'s own, for transfers; nothing where the transport needs nothing. */
static struct bh_rdma_memory local_memory(struct end *end, void *data, uint64_t length)
{
	if (!end->transport->needs_memory)
		return (struct bh_rdma_memory){ .data = data, .length = length };
	return registered(end, data, length, 0);
}

static void forget(struct end *end, struct bh_rdma_memory *memory)
{
	if (memory->handle)
		(void)ops->deregister(end->transport, memory);
}

static bh_status post_at(struct end *end, enum bh_rdma_op op, void *local,
			 const struct bh_rdma_memory *memory, uint64_t remote, uint64_t key,
			 size_t length, uint64_t cookie)
{
	struct bh_rdma_work work = { .op = op,
				     .length = (uint32_t)length,
				     .local = local,
				     .memory = end->transport->needs_memory ? memory : NULL,
				     .remote = remote,
				     .key = key,
				     .cookie = cookie };

	return ops->post(end->transport, end->out, &work);
}

static uint8_t *pages(size_t length, uint8_t fill)
{
	uint8_t *data =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (data == MAP_FAILED)
		abort();
	memset(data, fill, length);
	return data;
}

static bool is_all(const uint8_t *data, size_t length, uint8_t value)
{
	return length == 0 || (data[0] == value && memcmp(data, data + 1, length - 1) == 0);
}

static void end_close(struct end *end)
{
	ops->close(end->transport);
}

/* ---- transfers ------------------------------------------------------------------------------- */

static void pattern(uint8_t *data, size_t length, uint32_t seed)
{
	for (size_t i = 0; i < length; i++)
		data[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
}

/* All of `length` by pieces that the transport takes. */
static bool carry(struct end *a, struct end *b, enum bh_rdma_op op, uint8_t *local,
		  const struct bh_rdma_memory *memory, const struct bh_rdma_memory *target,
		  uint64_t offset, size_t length)
{
	uint32_t well = a->n_well, n = 0;

	for (size_t at = 0; at < length;) {
		size_t piece = length - at;
		bh_status st;

		if (piece > a->transport->max_message)
			piece = a->transport->max_message;
		st = post_at(a, op, local + at, memory, target->base + offset + at, target->key,
			     piece, n);
		if (st == -EAGAIN) {
			step(a);
			step(b);
			continue;
		}
		if (st < 0)
			return false;
		at += piece;
		n++;
	}
	return UNTIL(a->n_well == well + n, a, b);
}

static void test_sizes(void)
{
	static const size_t sizes[] = { 1, 8, 64, 65, 4095, 4096, 65536, MIB - 1, 9 * MIB + 1 };
	struct end a = end_open(), b = end_open();
	size_t room = 10 * MIB;
	uint8_t *here = pages(room, 0), *there = pages(room, 0), *back = pages(room, 0);
	struct bh_rdma_memory target = registered(&b, there, room, BH_RDMA_READ | BH_RDMA_WRITE);
	struct bh_rdma_memory from = local_memory(&a, here, room);
	struct bh_rdma_memory to = local_memory(&a, back, room);

	CU_ASSERT_FATAL(join_ends(&a, &b));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t n = sizes[i];

		memset(there, 0xee, room);
		memset(back, 0x11, room);
		pattern(here, n, (uint32_t)i);
		CU_ASSERT(carry(&a, &b, BH_RDMA_OP_WRITE, here, &from, &target, 17, n));
		CU_ASSERT(memcmp(there + 17, here, n) == 0);
		CU_ASSERT(is_all(there, 17, 0xee) && is_all(there + 17 + n, room - 17 - n, 0xee));
		CU_ASSERT(carry(&a, &b, BH_RDMA_OP_READ, back + 3, &to, &target, 17, n));
		CU_ASSERT(memcmp(back + 3, here, n) == 0);
		CU_ASSERT(is_all(back, 3, 0x11) && is_all(back + 3 + n, room - 3 - n, 0x11));
	}
	forget(&a, &from);
	forget(&a, &to);
	forget(&b, &target);
	end_close(&a);
	end_close(&b);
	munmap(here, room);
	munmap(there, room);
	munmap(back, room);
}

/* ---- links ----------------------------------------------------------------------------------- */

static void test_hello(void)
{
	struct end a = end_open(), b = end_open();

	CU_ASSERT_FATAL(join_ends(&a, &b));
	CU_ASSERT(memcmp(a.hello, hello_in, sizeof(a.hello)) == 0);
	CU_ASSERT(memcmp(b.hello, hello_out, sizeof(b.hello)) == 0);
	CU_ASSERT(b.peer.length == b.transport->address.length);
	ops->disconnect(a.transport, a.out);
	CU_ASSERT(UNTIL(a.n_down_out && b.n_down_in, &a, &b));
	CU_ASSERT(a.down_out == 0);
	CU_ASSERT(b.down_in == -ECONNRESET);
	CU_ASSERT(b.fault.text[0] != '\0');
	CU_ASSERT_FATAL(join_ends(&a, &b));
	ops->disconnect(b.transport, b.in);
	CU_ASSERT(UNTIL(a.n_down_out == 2 && b.n_down_in == 2, &a, &b));
	CU_ASSERT(a.down_out == -ECONNRESET && b.down_in == 0);
	end_close(&a);
	end_close(&b);
}

static void test_refused(void)
{
	struct end a = end_open(), b = end_open();
	struct bh_rdma_address gone = b.transport->address;

	b.rejects = true;
	connect_out(&a, &gone);
	CU_ASSERT(UNTIL(a.n_refused, &a, &b));
	CU_ASSERT(memcmp(a.hello, hello_in, sizeof(a.hello)) == 0);
	CU_ASSERT(memcmp(b.hello, hello_out, sizeof(b.hello)) == 0);
	CU_ASSERT(a.n_up_out == 0 && b.n_up_in == 0 && b.n_down_in == 0);
	end_close(&b);
	connect_out(&a, &gone);
	CU_ASSERT(UNTIL(!a.out, &a));
	if (a.n_down_out == 2) {
		CU_ASSERT(a.down_out == -ECONNREFUSED || a.down_out == -ETIMEDOUT);
		CU_ASSERT(strstr(a.fault.text, "connect") != NULL);
		CU_ASSERT(a.fault.status[0] != '\0');
	}
	CU_ASSERT(a.n_refused == 1);
	end_close(&a);
}

static const struct bh_test tests[] = {
	{ "what is written arrives, what is read comes, and nothing beside it changes",
	  test_sizes },
	{ "both sides see the other's hello, and the link's end", test_hello },
	{ "a rejected connection says so with a hello, one to nobody without", test_refused },
};
BH_TAP_MAIN(TRANSPORT_NAME, tests)
