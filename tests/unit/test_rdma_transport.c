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

#include "tests/unit/rdma_ends.h"
#include "tests/unit/tap.h"

static const struct bh_rdma_transport_ops *const ops = &TRANSPORT;

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

static struct bh_rdma_transport *transport_of(const struct end *end)
{
	return end->transport;
}

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

/* ---- what a peer may not do ------------------------------------------------------------------ */

struct offence {
	enum bh_rdma_op op;
	uint32_t access; /* of the region */
	int64_t offset;	 /* of 64 bytes, from the region's begin */
	bool gone, wrong_key;
};

/* `innocents` before it are fine; what was posted behind it may share its fate. */
static void commit(const struct offence *offence)
{
	struct end a = end_open(), b = end_open();
	uint8_t *there = pages(3 * 4096, 7), *here = pages(4096, 9), good[64] = { 1 };
	struct bh_rdma_memory target = registered(&b, there + 4096, 4096, offence->access);
	struct bh_rdma_memory fine = registered(&b, good, sizeof(good), BH_RDMA_READ);
	struct bh_rdma_memory local = local_memory(&a, here, 4096);
	struct bh_rdma_memory aim = target;

	CU_ASSERT_FATAL(join_ends(&a, &b));
	CU_ASSERT(post_at(&a, BH_RDMA_OP_READ, here + 64, &local, fine.base, fine.key, 64, 0) == 0);
	CU_ASSERT(UNTIL(a.n_done == 1, &a, &b) && a.n_well == 1);
	if (offence->gone)
		forget(&b, &target);
	if (offence->wrong_key)
		aim.key ^= 0x100;
	CU_ASSERT(post_at(&a, offence->op, here, &local, aim.base + (uint64_t)offence->offset,
			  aim.key, 64, 1) == 0);
	CU_ASSERT(UNTIL(a.n_down_out == 1, &a, &b));
	CU_ASSERT(a.n_done == 2 && a.n_well == 1 && a.n_twice == 0);
	CU_ASSERT(a.status[1] == -EACCES || a.status[1] == -ECANCELED);
	CU_ASSERT(a.down_out == -ECONNRESET && a.fault.text[0] != '\0');
	CU_ASSERT(is_all(there, 3 * 4096, 7));
	CU_ASSERT(is_all(here, 64, 9));
	/* Neither side is worse for it. */
	CU_ASSERT(join_ends(&a, &b));
	CU_ASSERT(post_at(&a, BH_RDMA_OP_READ, here + 64, &local, fine.base, fine.key, 64, 2) == 0);
	CU_ASSERT(UNTIL(a.n_done == 3, &a, &b) && a.n_well == 2);
	forget(&a, &local);
	forget(&b, &fine);
	if (!offence->gone)
		forget(&b, &target);
	end_close(&a);
	end_close(&b);
	munmap(there, 3 * 4096);
	munmap(here, 4096);
}

static void test_offences(void)
{
	static const struct offence offences[] = {
		{ BH_RDMA_OP_WRITE, BH_RDMA_READ, 0, false, false },
		{ BH_RDMA_OP_READ, BH_RDMA_WRITE, 0, false, false },
		{ BH_RDMA_OP_WRITE, BH_RDMA_READ | BH_RDMA_WRITE, 4096 - 63, false, false },
		{ BH_RDMA_OP_READ, BH_RDMA_READ | BH_RDMA_WRITE, 4096 - 63, false, false },
		{ BH_RDMA_OP_WRITE, BH_RDMA_READ | BH_RDMA_WRITE, -1, false, false },
		{ BH_RDMA_OP_READ, BH_RDMA_READ | BH_RDMA_WRITE, -64, false, false },
		{ BH_RDMA_OP_WRITE, BH_RDMA_READ | BH_RDMA_WRITE, INT64_MAX - 63, false, false },
		{ BH_RDMA_OP_READ, BH_RDMA_READ | BH_RDMA_WRITE, -32, false, false },
		{ BH_RDMA_OP_WRITE, BH_RDMA_READ | BH_RDMA_WRITE, 0, true, false },
		{ BH_RDMA_OP_READ, BH_RDMA_READ | BH_RDMA_WRITE, 0, true, false },
		{ BH_RDMA_OP_WRITE, BH_RDMA_READ | BH_RDMA_WRITE, 0, false, true },
		{ BH_RDMA_OP_READ, BH_RDMA_READ | BH_RDMA_WRITE, 0, false, true },
	};

	for (size_t i = 0; i < sizeof(offences) / sizeof(offences[0]); i++)
		commit(&offences[i]);
}

/* Another peer's link does not notice. */
static void test_offence_is_private(void)
{
	struct end bad = end_open(), good = end_open(), b = end_open();
	uint8_t *there = pages(MIB, 1), *here = pages(MIB, 2);
	struct bh_rdma_memory target = registered(&b, there, MIB, BH_RDMA_READ);
	struct bh_rdma_memory local = local_memory(&good, here, MIB);
	struct bh_rdma_memory of_bad = local_memory(&bad, here, MIB);

	CU_ASSERT_FATAL(join_ends(&good, &b));
	CU_ASSERT_FATAL(join_ends(&bad, &b));
	for (uint32_t i = 0; i < 50; i++) {
		CU_ASSERT(post_at(&good, BH_RDMA_OP_READ, here, &local, target.base, target.key,
				  65536, i) == 0);
		if (i == 10)
			CU_ASSERT(post_at(&bad, BH_RDMA_OP_WRITE, here + 65536, &of_bad,
					  target.base, target.key, 64, 0) == 0);
	}
	CU_ASSERT(UNTIL(good.n_done == 50 && bad.n_down_out == 1, &good, &bad, &b));
	CU_ASSERT(good.n_well == 50 && good.n_down_out == 0);
	CU_ASSERT(is_all(here, 65536, 1));
	forget(&good, &local);
	forget(&bad, &of_bad);
	forget(&b, &target);
	end_close(&good);
	end_close(&bad);
	end_close(&b);
	munmap(there, MIB);
	munmap(here, MIB);
}

/* ---- messages -------------------------------------------------------------------------------- */

static bh_status send_on(struct end *end, struct bh_rdma_link *link, uint32_t number)
{
	uint8_t message[BH_RDMA_MESSAGE_SIZE] = { 0 };

	memcpy(message, &number, sizeof(number));
	return ops->send(end->transport, link, message);
}

static uint32_t number_of(const uint8_t *message)
{
	uint32_t number;

	memcpy(&number, message, sizeof(number));
	return number;
}

static void count_in_order(struct end *end, struct bh_rdma_link *link, const uint8_t *message)
{
	uint32_t *next = end->arg;

	(void)link;
	*next += number_of(message) == *next;
}

static void test_messages(void)
{
	struct end a = end_open(), b = end_open();
	uint32_t at_a = 0, at_b = 0, sent = 0, answered = 0;

	a.on_message = b.on_message = count_in_order;
	a.arg = &at_a;
	b.arg = &at_b;
	CU_ASSERT_FATAL(join_ends(&a, &b));
	while (sent < 3000 || answered < 3000) {
		if (sent < 3000 && send_on(&a, a.out, sent) == 0)
			sent++;
		else if (answered < 3000 && send_on(&b, b.in, answered) == 0)
			answered++;
		else
			(void)(step(&a) + step(&b));
	}
	CU_ASSERT(UNTIL(at_a == 3000 && at_b == 3000, &a, &b));
	CU_ASSERT(a.n_messages == 3000 && b.n_messages == 3000);
	end_close(&a);
	end_close(&b);
}

/* A peer that sends and is not listened to: it is held back, costs no memory, loses nothing. */
static void test_flood(void)
{
	struct end a = end_open(), b = end_open();
	uint32_t next = 0, sent = 0;
	int refused = 0;

	b.on_message = count_in_order;
	b.arg = &next;
	CU_ASSERT_FATAL(join_ends(&a, &b));
	while (refused < 1000 && sent < 10000000) {
		bh_status st = send_on(&a, a.out, sent);

		CU_ASSERT_FATAL(st == 0 || st == -EAGAIN);
		sent += st == 0;
		refused = st == 0 ? 0 : refused + 1;
		if (st < 0)
			step(&a);
	}
	CU_ASSERT(refused == 1000);
	CU_ASSERT(UNTIL(next == sent, &a, &b));
	CU_ASSERT(b.n_messages == sent && a.n_down_out == 0);
	end_close(&a);
	end_close(&b);
}

struct watch {
	const uint8_t *data;
	size_t length;
	uint8_t value;
	bool seen;
};

static void look_at_data(struct end *end, struct bh_rdma_link *link, const uint8_t *message)
{
	struct watch *watch = end->arg;

	(void)link;
	(void)message;
	watch->seen = is_all(watch->data, watch->length, watch->value);
}

static void test_message_behind_writes(void)
{
	for (size_t length = 64; length <= 4 * MIB; length *= 16) {
		struct end a = end_open(), b = end_open();
		uint8_t *there = pages(length, 0), *here = pages(length, 5);
		struct bh_rdma_memory target = registered(&b, there, length, BH_RDMA_WRITE);
		struct bh_rdma_memory local = local_memory(&a, here, length);
		struct watch watch = { there, length, 5, false };
		uint32_t n = 0;

		b.on_message = look_at_data;
		b.arg = &watch;
		CU_ASSERT_FATAL(join_ends(&a, &b));
		for (size_t at = 0; at < length; n++) {
			size_t piece = length - at < a.transport->max_message
					       ? length - at
					       : a.transport->max_message;

			CU_ASSERT(post_at(&a, BH_RDMA_OP_WRITE, here + at, &local, target.base + at,
					  target.key, piece, n) == 0);
			at += piece;
		}
		CU_ASSERT(send_on(&a, a.out, 0) == 0);
		CU_ASSERT(UNTIL(b.n_messages == 1, &a, &b));
		CU_ASSERT(watch.seen);
		CU_ASSERT(UNTIL(a.n_done == n, &a, &b));
		forget(&a, &local);
		forget(&b, &target);
		end_close(&a);
		end_close(&b);
		munmap(there, length);
		munmap(here, length);
	}
}

/* ---- revocation: what the engine builds on deregister() and messages ---------------------------- */

static void answer(struct end *end, struct bh_rdma_link *link, const uint8_t *message)
{
	CU_ASSERT(ops->send(end->transport, link, message) == 0);
}

#define REVOKED_SIZE (32 * MIB)

/* B takes its region away while A is busy with it. After A's answer B's memory is B's alone. */
static void take_away(enum bh_rdma_op op, uint32_t at_least_done)
{
	struct end a = end_open(), b = end_open();
	uint8_t *there = pages(REVOKED_SIZE, 1), *here = pages(REVOKED_SIZE, 2);
	struct bh_rdma_memory target =
		registered(&b, there, REVOKED_SIZE, BH_RDMA_READ | BH_RDMA_WRITE);
	struct bh_rdma_memory local = local_memory(&a, here, REVOKED_SIZE);
	size_t piece = a.transport->max_message < MIB ? a.transport->max_message : MIB;
	uint32_t n = 0;
	bool quiet = false;

	a.on_message = answer;
	CU_ASSERT_FATAL(join_ends(&a, &b));
	for (size_t at = 0; at + piece <= REVOKED_SIZE; at += piece, n++)
		if (post_at(&a, op, here + at, &local, target.base + at, target.key, piece, n) < 0)
			break;
	CU_ASSERT_FATAL(n > at_least_done + 1);
	CU_ASSERT(UNTIL(a.n_done >= at_least_done, &a, &b));
	quiet = ops->deregister(b.transport, &target);
	if (!quiet && b.in && send_on(&b, b.in, 1) == 0)
		(void)UNTIL(b.n_messages == 1 || b.n_down_in == 1, &a, &b);
	memset(there, 3, REVOKED_SIZE);
	CU_ASSERT(UNTIL(a.n_done == n, &a, &b));
	CU_ASSERT(is_all(there, REVOKED_SIZE, 3));
	for (uint32_t i = 0; op == BH_RDMA_OP_READ && i < n; i++)
		CU_ASSERT(is_all(here + i * piece, piece, 1) || a.status[i] != 0);
	CU_ASSERT(a.n_twice == 0);
	forget(&a, &local);
	end_close(&a);
	end_close(&b);
	munmap(there, REVOKED_SIZE);
	munmap(here, REVOKED_SIZE);
}

static void test_revoke(void)
{
	for (uint32_t done = 0; done < 24; done += 6) {
		take_away(BH_RDMA_OP_WRITE, done);
		take_away(BH_RDMA_OP_READ, done);
	}
}

/* ---- queues ---------------------------------------------------------------------------------- */

static void test_full(void)
{
	struct end a = end_open(), b = end_open();
	uint8_t *there = pages(MIB, 0), *here = pages(MIB, 5);
	struct bh_rdma_memory target = registered(&b, there, MIB, BH_RDMA_READ | BH_RDMA_WRITE);
	struct bh_rdma_memory local = local_memory(&a, here, MIB);
	uint32_t n = 0, reads = 0;
	bh_status st;

	CU_ASSERT_FATAL(join_ends(&a, &b));
	while ((st = post_at(&a,
			     reads < a.transport->max_reads && n % 2 ? BH_RDMA_OP_READ
								     : BH_RDMA_OP_WRITE,
			     here + n % 64 * 64, &local, target.base + n % 64 * 64, target.key, 64,
			     n)) == 0)
		reads += reads < a.transport->max_reads && n % 2, n++;
	CU_ASSERT(st == -EAGAIN);
	CU_ASSERT(n == a.transport->max_outstanding);
	CU_ASSERT(UNTIL(a.n_done == n, &a, &b));
	CU_ASSERT(a.n_well == n && a.n_twice == 0);
	CU_ASSERT(post_at(&a, BH_RDMA_OP_WRITE, here, &local, target.base, target.key, 64, n) == 0);
	CU_ASSERT(UNTIL(a.n_done == n + 1, &a, &b));
	forget(&a, &local);
	forget(&b, &target);
	end_close(&a);
	end_close(&b);
	munmap(there, MIB);
	munmap(here, MIB);
}

/* ---- peers in other processes ------------------------------------------------------------------ */

#define TARGET_SIZE (64 * MIB)

enum word { NOTHING, READY, GO, STOPPED_BUSY, DONE_IT, LEAVE };
struct shared {
	_Atomic int word;
	_Atomic uint32_t n_down, n_done, n_well, n_up, n_messages;
	struct bh_rdma_address address;
	uint64_t base, key;
	uint8_t region[TARGET_SIZE]; /* the child's, or what it fills its own from */
};

static struct shared *shared_new(void)
{
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (shared == MAP_FAILED)
		abort();
	return shared;
}

static void publish(struct shared *shared, const struct end *end)
{
	shared->n_down = end->n_down_in + end->n_down_out;
	shared->n_done = end->n_done;
	shared->n_well = end->n_well;
	shared->n_up = end->n_up_in + end->n_up_out;
	shared->n_messages = end->n_messages;
}

/* Serves its region until it is told to leave. Its child's child dies with this process's parent. */
static void serve(struct shared *shared)
{
	struct end end = end_open();
	struct end *ends[] = { &end };
	struct bh_rdma_memory memory =
		registered(&end, shared->region, TARGET_SIZE, BH_RDMA_READ | BH_RDMA_WRITE);

	end.on_message = answer;
	shared->address = end.transport->address;
	shared->base = memory.base;
	shared->key = memory.key;
	shared->word = READY;
	while (shared->word != LEAVE && getppid() != 1) {
		if (!step(&end))
			rest(ends, 1);
		publish(shared, &end);
	}
	end_close(&end);
	_exit(0);
}

static pid_t child_new(void (*body)(struct shared *shared), struct shared *shared)
{
	pid_t child = fork();

	if (child == 0) {
		body(shared);
		_exit(0);
	}
	return child;
}

static bool child_left(pid_t child)
{
	int status = 0;

	return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void await_word(const struct shared *shared, int word)
{
	for (int64_t until = now_ns() + PATIENCE_NS; shared->word != word && now_ns() < until;)
		(void)poll(NULL, 0, 1);
}

static uint32_t post_many(struct end *a, enum bh_rdma_op op, uint8_t *here,
			  const struct bh_rdma_memory *local, const struct shared *shared,
			  uint32_t first)
{
	uint32_t n = 0, most = 64 * MIB / a->transport->max_message;
	size_t piece = a->transport->max_message;

	while (n < most && post_at(a, op, here + n * piece, local, shared->base + n * piece,
				   shared->key, piece, first + n) == 0)
		n++;
	return n;
}

static void test_killed(void)
{
	uint8_t *here = pages(TARGET_SIZE, 5);

	for (int round = 0; round < 6; round++) {
		struct shared *shared = shared_new();
		pid_t child = child_new(serve, shared);
		struct end a = end_open();
		struct bh_rdma_memory local = local_memory(&a, here, TARGET_SIZE);
		uint32_t n;

		await_word(shared, READY);
		connect_out(&a, &shared->address);
		CU_ASSERT_FATAL(UNTIL(a.n_up_out, &a));
		n = post_many(&a, round % 2 ? BH_RDMA_OP_READ : BH_RDMA_OP_WRITE, here, &local,
			      shared, 0);
		CU_ASSERT(UNTIL(a.n_done >= (uint32_t)round, &a));
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		CU_ASSERT(UNTIL(a.n_down_out, &a));
		CU_ASSERT(a.n_done == n && a.n_twice == 0 && a.n_after_down == 0);
		CU_ASSERT(a.down_out == -ECONNRESET);
		forget(&a, &local);
		end_close(&a);
		munmap(shared, sizeof(*shared));
	}
	munmap(here, TARGET_SIZE);
}

/* We connected, the peer stands still in the middle: disconnect() and our memory is ours. */
static void disconnect_from_stopped(enum bh_rdma_op op)
{
	uint8_t *here = pages(TARGET_SIZE, 5);
	struct shared *shared = shared_new();
	pid_t child;
	struct end a;
	struct bh_rdma_memory local;
	uint32_t n;

	memset(shared->region, 6, TARGET_SIZE);
	child = child_new(serve, shared);
	a = end_open();
	local = local_memory(&a, here, TARGET_SIZE);
	await_word(shared, READY);
	connect_out(&a, &shared->address);
	CU_ASSERT_FATAL(UNTIL(a.n_up_out, &a));
	n = post_many(&a, op, here, &local, shared, 0);
	CU_ASSERT(UNTIL(a.n_done >= 1, &a));
	kill(child, SIGSTOP);
	/* Whatever is on its way comes in; what waits for the peer does not, but where its kernel or card
	 * serves us while it stands still. */
	for (int i = 0; i < 1000 && a.transport->kind == BH_RDMA_SOFTWARE; i++)
		step(&a);
	CU_ASSERT(a.n_done < n || a.transport->kind == BH_RDMA_VERBS);
	ops->disconnect(a.transport, a.out);
	memset(here, 9, TARGET_SIZE);
	CU_ASSERT(UNTIL(a.n_down_out, &a));
	CU_ASSERT(a.n_done == n && a.n_twice == 0 && a.down_out == 0);
	kill(child, SIGCONT);
	CU_ASSERT(UNTIL(shared->n_down == 1, &a));
	CU_ASSERT(is_all(here, TARGET_SIZE, 9));		   /* no read came in late */
	CU_ASSERT(memchr(shared->region, 9, TARGET_SIZE) == NULL); /* no write took it from here */
	shared->word = LEAVE;
	CU_ASSERT(child_left(child));
	forget(&a, &local);
	end_close(&a);
	munmap(shared, sizeof(*shared));
	munmap(here, TARGET_SIZE);
}

/* The child connects to us, and is busy with our memory. */
static void attack(struct shared *shared, enum bh_rdma_op op)
{
	struct end end = end_open();
	struct end *ends[] = { &end };
	struct bh_rdma_memory local = local_memory(&end, shared->region, TARGET_SIZE);

	connect_out(&end, &shared->address);
	if (UNTIL(end.n_up_out, &end)) {
		(void)post_many(&end, op, shared->region, &local, shared, 0);
		while (shared->word != LEAVE && getppid() != 1) {
			if (!step(&end))
				rest(ends, 1);
			publish(shared, &end);
		}
	}
	forget(&end, &local);
	end_close(&end);
	_exit(0);
}

static void attack_by_writing(struct shared *shared)
{
	attack(shared, BH_RDMA_OP_WRITE);
}

static void attack_by_reading(struct shared *shared)
{
	attack(shared, BH_RDMA_OP_READ);
}

static void disconnect_a_stopped_guest(void (*body)(struct shared *shared), enum bh_rdma_op op)
{
	uint8_t *here = pages(TARGET_SIZE, 5);
	struct shared *shared = shared_new();
	struct end b = end_open();
	struct bh_rdma_memory memory =
		registered(&b, here, TARGET_SIZE, BH_RDMA_READ | BH_RDMA_WRITE);
	pid_t child;

	memset(shared->region, 6, TARGET_SIZE);
	shared->address = b.transport->address;
	shared->base = memory.base;
	shared->key = memory.key;
	child = child_new(body, shared);
	CU_ASSERT(UNTIL(shared->n_done >= 1, &b));
	kill(child, SIGSTOP);
	for (int i = 0; i < 1000; i++)
		step(&b);
	CU_ASSERT_FATAL(b.in != NULL);
	ops->disconnect(b.transport, b.in);
	memset(here, 9, TARGET_SIZE);
	CU_ASSERT(UNTIL(b.n_down_in, &b));
	kill(child, SIGCONT);
	CU_ASSERT(UNTIL(shared->n_down == 1, &b));
	CU_ASSERT(is_all(here, TARGET_SIZE, 9));
	if (op == BH_RDMA_OP_READ)
		CU_ASSERT(memchr(shared->region, 9, TARGET_SIZE) == NULL);
	shared->word = LEAVE;
	CU_ASSERT(child_left(child));
	forget(&b, &memory);
	end_close(&b);
	munmap(shared, sizeof(*shared));
	munmap(here, TARGET_SIZE);
}

static void test_disconnect(void)
{
	disconnect_from_stopped(BH_RDMA_OP_WRITE);
	disconnect_from_stopped(BH_RDMA_OP_READ);
	disconnect_a_stopped_guest(attack_by_writing, BH_RDMA_OP_WRITE);
	disconnect_a_stopped_guest(attack_by_reading, BH_RDMA_OP_READ);
}

/* ---- threads and descriptors ------------------------------------------------------------------- */

static uint32_t count_in(const char *path)
{
	DIR *folder = opendir(path);
	uint32_t n = 0;

	while (folder && readdir(folder))
		n++;
	closedir(folder);
	return n;
}

static void test_leaves_nothing(void)
{
	uint32_t threads = 0, fds = 0, in_use;

	for (int round = 0; round < 20; round++) {
		struct end a = end_open(), b = end_open();
		uint8_t here[64] = { 1 }, there[64] = { 0 };
		struct bh_rdma_memory target = registered(&b, there, 64, BH_RDMA_WRITE);
		struct bh_rdma_memory local = local_memory(&a, here, 64);

		CU_ASSERT(join_ends(&a, &b));
		CU_ASSERT(post_at(&a, BH_RDMA_OP_WRITE, here, &local, target.base, target.key, 64,
				  0) == 0);
		CU_ASSERT(UNTIL(a.n_done, &a, &b));
		in_use = count_in("/proc/self/task");
		CU_ASSERT(round == 0 || in_use == threads);
		threads = in_use;
		/* Half of the rounds leave links, work and memory to close(). */
		if (round % 2) {
			forget(&a, &local);
			forget(&b, &target);
			ops->disconnect(a.transport, a.out);
			CU_ASSERT(UNTIL(a.n_down_out && b.n_down_in, &a, &b));
		}
		end_close(&a);
		end_close(&b);
		CU_ASSERT(round == 0 || count_in("/proc/self/fd") == fds);
		fds = count_in("/proc/self/fd");
	}
}

static void test_no_threads(void)
{
	uint32_t before = count_in("/proc/self/task");
	struct end a = end_open(), b = end_open();

	CU_ASSERT(join_ends(&a, &b));
	CU_ASSERT(count_in("/proc/self/task") == before);
	end_close(&a);
	end_close(&b);
	CU_ASSERT(count_in("/proc/self/task") == before);
}

static void test_keys(void)
{
	struct end a = end_open(), b = end_open();
	static uint8_t data[256][64];
	struct bh_rdma_memory some[256];
	uint64_t ones = 0, zeros = 0;

	for (uint32_t i = 0; i < 256; i++) {
		some[i] = registered(i % 2 ? &a : &b, data[i], 64, BH_RDMA_READ);
		for (uint32_t j = 0; j < i; j++)
			CU_ASSERT(i % 2 != j % 2 || some[i].key != some[j].key);
		ones |= some[i].key;
		zeros |= ~some[i].key;
	}
	if (a.transport->kind == BH_RDMA_SOFTWARE)
		CU_ASSERT(ones == UINT64_MAX && zeros == UINT64_MAX);
	for (uint32_t i = 0; i < 256; i++)
		(void)ops->deregister(i % 2 ? a.transport : b.transport, &some[i]);
	end_close(&a);
	end_close(&b);
}

struct registrar {
	pthread_t thread;
	struct end *end;
	_Atomic bool *stop;
	uint32_t n;
	uint8_t data[4096];
};

static void *register_again_and_again(void *arg)
{
	struct registrar *registrar = arg;

	while (!*registrar->stop) {
		struct bh_rdma_memory memory =
			registered(registrar->end, registrar->data, 4096, BH_RDMA_READ);

		(void)ops->deregister(registrar->end->transport, &memory);
		registrar->n++;
	}
	return NULL;
}

static void test_register_while_busy(void)
{
	struct end a = end_open(), b = end_open();
	static struct registrar registrars[3];
	_Atomic bool stop = false;
	uint8_t *there = pages(MIB, 3), *here = pages(MIB, 0);
	struct bh_rdma_memory target = registered(&b, there, MIB, BH_RDMA_READ);
	struct bh_rdma_memory local = local_memory(&a, here, MIB);

	CU_ASSERT_FATAL(join_ends(&a, &b));
	for (int i = 0; i < 3; i++) {
		registrars[i] = (struct registrar){ .end = i % 2 ? &a : &b, .stop = &stop };
		CU_ASSERT_FATAL(pthread_create(&registrars[i].thread, NULL,
					       register_again_and_again, &registrars[i]) == 0);
	}
	for (uint32_t i = 0; i < 2000; i++) {
		uint32_t done = a.n_done;

		CU_ASSERT(post_at(&a, BH_RDMA_OP_READ, here, &local, target.base, target.key, 4096,
				  i) == 0);
		CU_ASSERT_FATAL(UNTIL(a.n_done > done, &a, &b));
	}
	stop = true;
	for (int i = 0; i < 3; i++) {
		pthread_join(registrars[i].thread, NULL);
		CU_ASSERT(registrars[i].n > 0);
	}
	CU_ASSERT(a.n_well == 2000);
	forget(&a, &local);
	forget(&b, &target);
	end_close(&a);
	end_close(&b);
	munmap(there, MIB);
	munmap(here, MIB);
}

/* ---- sleeping ----------------------------------------------------------------------------------- */

/* Sleeps without a limit: only the descriptors wake it. */
static bool sleep_until_something(struct end *end)
{
	struct pollfd fds[BH_RDMA_FDS];
	int some[BH_RDMA_FDS];
	uint32_t n = ops->descriptors(end->transport, some);

	while (!step(end))
		if (ops->arm(end->transport)) {
			for (uint32_t i = 0; i < n; i++)
				fds[i] = (struct pollfd){ .fd = some[i], .events = POLLIN };
			if (poll(fds, n, (int)(PATIENCE_NS / 1000000)) == 0)
				return false;
		}
	return true;
}

static void *serve_asleep(void *arg)
{
	struct end *end = arg;

	while (end->n_down_in == 0)
		if (!sleep_until_something(end))
			return "slept through it";
	return NULL;
}

static void test_wakes(void)
{
	struct end a = end_open(), b = end_open();
	uint8_t *there = pages(MIB, 3), *here = pages(MIB, 0);
	struct bh_rdma_memory target = registered(&b, there, MIB, BH_RDMA_READ | BH_RDMA_WRITE);
	struct bh_rdma_memory local = local_memory(&a, here, MIB);
	pthread_t thread;
	void *why = NULL;
	bool woken = true;

	b.on_message = answer;
	CU_ASSERT_FATAL(pthread_create(&thread, NULL, serve_asleep, &b) == 0);
	for (int round = 0; round < 3 && woken; round++) {
		connect_out(&a, &b.transport->address);
		while (a.n_up_out == (uint32_t)round && woken)
			woken = sleep_until_something(&a);
		for (uint32_t i = 0; i < 500 && woken; i++) {
			uint32_t done = a.n_done, messages = a.n_messages;
			size_t length = i % 50 ? 64 : 65536;

			CU_ASSERT(post_at(&a, i % 2 ? BH_RDMA_OP_READ : BH_RDMA_OP_WRITE, here,
					  &local, target.base, target.key, length, i) == 0);
			while (a.n_done == done && woken)
				woken = sleep_until_something(&a);
			CU_ASSERT(send_on(&a, a.out, i) == 0);
			while (a.n_messages == messages && woken)
				woken = sleep_until_something(&a);
		}
		memset(a.seen, 0, sizeof(a.seen));
		if (round < 2) { /* a second link beside it; the first stays until close() */
			a.out = NULL;
			continue;
		}
	}
	CU_ASSERT(woken);
	end_close(&a);
	pthread_join(thread, &why);
	CU_ASSERT(why == NULL);
	forget(&b, &target);
	end_close(&b);
	munmap(there, MIB);
	munmap(here, MIB);
}

/* With nothing to do it sleeps: a wait on the descriptors lasts. */
static void test_idles(void)
{
	struct end a = end_open(), b = end_open();
	struct pollfd fds[BH_RDMA_FDS];
	int some[BH_RDMA_FDS];
	uint32_t n = ops->descriptors(b.transport, some);
	int64_t began;
	int woken = 0;

	CU_ASSERT_FATAL(join_ends(&a, &b));
	began = now_ns();
	while (now_ns() - began < 200 * INT64_C(1000000)) {
		while (step(&b) || !ops->arm(b.transport))
			;
		for (uint32_t i = 0; i < n; i++)
			fds[i] = (struct pollfd){ .fd = some[i], .events = POLLIN };
		woken += poll(fds, n, 200) > 0;
	}
	CU_ASSERT(woken < 10);
	end_close(&a);
	end_close(&b);
}

/* ---- options -------------------------------------------------------------------------------- */

struct bad_option {
	const char *address;
	int64_t listen_port, queue_depth, max_message, connect_timeout_ns;
	const char *says[3];
};

static void test_options(void)
{
	static const struct bad_option bad[] = {
		{ "localhost", 0, 256, 0, 1, { "address = localhost", "digits", "" } },
		{ "0.0.0.0", 0, 256, 0, 1, { "address = 0.0.0.0", "wildcard", "" } },
		{ "192.0.2.77",
		  0,
		  256,
		  0,
		  1,
		  { "address = 192.0.2.77", "not of this machine", "127.0.0.1" } },
		{ "2001:db8::77",
		  0,
		  256,
		  0,
		  1,
		  { "address = 2001:db8::77", "not of this machine", "" } },
		{ "127.0.0.1", 65536, 256, 0, 1, { "listen_port = 65536", "0 … 65535", "" } },
		{ "127.0.0.1", -1, 256, 0, 1, { "listen_port = -1", "0 … 65535", "" } },
		{ "127.0.0.1", 0, 15, 0, 1, { "queue_depth = 15", "16 … 4096", "" } },
		{ "127.0.0.1", 0, 4097, 0, 1, { "queue_depth = 4097", "16 … 4096", "" } },
		{ "127.0.0.1", 0, 256, 4095, 1, { "max_message = 4095", "4096 … ", "" } },
		{ "127.0.0.1", 0, 256, 0, 0, { "connect_timeout", "more than 0", "" } },
	};
	uint32_t fds = count_in("/proc/self/fd");

	if (strcmp(ops->name, "software") != 0)
		BH_SKIP("the device's options are tried where there is one");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct bh_rdma_config config = { .label = "rdma",
						 .address = bad[i].address,
						 .listen_port = bad[i].listen_port,
						 .queue_depth = bad[i].queue_depth,
						 .max_message = bad[i].max_message,
						 .connect_timeout_ns = bad[i].connect_timeout_ns };
		struct bh_rdma_transport *transport = NULL;
		struct bh_rdma_fault fault = { 0 };

		CU_ASSERT(ops->open(&config, &transport, &fault) == -EINVAL);
		CU_ASSERT(transport == NULL);
		for (int j = 0; j < 3; j++)
			CU_ASSERT(strstr(fault.text, bad[i].says[j]) != NULL);
	}
	CU_ASSERT(count_in("/proc/self/fd") == fds);
}

static void test_environment(void)
{
	static const char *const names[] = { "FI_TCP_ZEROCOPY_SIZE", "FI_TCP_IO_URING" };
	struct bh_rdma_config config = config_here();

	if (strcmp(ops->name, "software") != 0)
		BH_SKIP("settings of libfabric");
	for (size_t i = 0; i < 2; i++) {
		struct bh_rdma_transport *transport = NULL;
		struct bh_rdma_fault fault = { 0 };

		setenv(names[i], "1", 1);
		CU_ASSERT(ops->open(&config, &transport, &fault) == -EINVAL);
		CU_ASSERT(strstr(fault.text, names[i]) != NULL);
		unsetenv(names[i]);
	}
}

static void test_port_in_use(void)
{
	struct bh_rdma_config config = config_here();
	struct bh_rdma_transport *transport = NULL;
	struct bh_rdma_fault fault = { 0 };
	struct end a = end_open();
	struct sockaddr_in in;
	char expected[64];

	if (strcmp(ops->name, "software") != 0) {
		end_close(&a);
		BH_SKIP("ports of the kernel's TCP");
	}
	memcpy(&in, a.transport->address.bytes, sizeof(in));
	config.listen_port = ntohs(in.sin_port);
	snprintf(expected, sizeof(expected), "listen_port = %u", ntohs(in.sin_port));
	CU_ASSERT(ops->open(&config, &transport, &fault) == -EADDRINUSE);
	CU_ASSERT(strstr(fault.text, expected) != NULL);
	end_close(&a);
	/* A restarted host gets its port back at once. */
	CU_ASSERT(ops->open(&config, &transport, &fault) == 0);
	if (transport) {
		CU_ASSERT(memcmp(transport->address.bytes, &in, sizeof(in)) == 0);
		ops->close(transport);
	}
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void test_fault_text(void)
{
	struct bh_rdma_fault fault;
	char text[300];

	for (size_t n = 250; n < 260; n++) {
		size_t length;

		memset(text, 'x', sizeof(text));
		snprintf(text + n, sizeof(text) - n, "…ü𝄞");
		CU_ASSERT(bh_rdma_fault(&fault, -EIO, "rdma.test", "%s", text) == -EIO);
		length = strlen(fault.text);
		CU_ASSERT(length >= 252 - 4 && length < sizeof(fault.text));
		CU_ASSERT(strncmp(fault.text, text, length) == 0);
		CU_ASSERT(((unsigned char)text[length] & 0xc0) != 0x80);
	}
	CU_ASSERT(bh_rdma_fault(NULL, -EIO, "rdma.test", "%s", text) == -EIO);
}

/* ---- strangers: whoever can reach the port ------------------------------------------------------ */

static int tcp_to(const struct bh_rdma_address *address)
{
	struct sockaddr_in in;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(&in, address->bytes, sizeof(in));
	if (connect(fd, (const struct sockaddr *)&in, sizeof(in)) < 0)
		abort();
	return fd;
}

static int tcp_listener(struct bh_rdma_address *ret_address)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(fd, (const struct sockaddr *)&in, length) < 0 || listen(fd, 8) < 0 ||
	    getsockname(fd, (struct sockaddr *)&in, &length) < 0)
		abort();
	memset(ret_address, 0, sizeof(*ret_address));
	memcpy(ret_address->bytes, &in, sizeof(in));
	ret_address->length = sizeof(in);
	return fd;
}

static void test_silent_listener(void)
{
	struct bh_rdma_config config = config_here();
	struct bh_rdma_address address;
	struct end a = { 0 };
	int listener;
	int64_t began, took;

	if (strcmp(ops->name, "software") != 0)
		BH_SKIP("a listener that is plain TCP");
	listener = tcp_listener(&address);
	config.connect_timeout_ns = 150 * INT64_C(1000000);
	a.transport = opened(&config);
	began = now_ns();
	connect_out(&a, &address);
	CU_ASSERT(ops->timeout_ns(a.transport) <= config.connect_timeout_ns);
	CU_ASSERT(UNTIL(a.n_down_out, &a));
	took = now_ns() - began;
	CU_ASSERT(a.down_out == -ETIMEDOUT);
	CU_ASSERT(took >= config.connect_timeout_ns && took < PATIENCE_NS / 2);
	CU_ASSERT(strstr(a.fault.text, "0.150 s") != NULL);
	end_close(&a);
	close(listener);
}

/* What a real peer says first: taken from one. */
static size_t first_words(uint8_t *words, size_t size)
{
	struct bh_rdma_address address;
	int listener = tcp_listener(&address), fd;
	struct end a = end_open();
	size_t n = 0;

	connect_out(&a, &address);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	for (int64_t until = now_ns() + PATIENCE_NS; n == 0 && now_ns() < until;) {
		ssize_t got;

		step(&a);
		got = recv(fd, words, size, 0);
		n = got > 0 ? (size_t)got : 0;
	}
	close(fd);
	close(listener);
	end_close(&a);
	return n;
}

/* The end serves a good peer as if nothing were. */
static void serves(struct end *b)
{
	struct end a = end_open();
	uint8_t here[64] = { 0 }, there[64] = { 4 };
	struct bh_rdma_memory target = registered(b, there, 64, BH_RDMA_READ);
	struct bh_rdma_memory local = local_memory(&a, here, 64);

	CU_ASSERT(join_ends(&a, b));
	CU_ASSERT(post_at(&a, BH_RDMA_OP_READ, here, &local, target.base, target.key, 64, 0) == 0);
	CU_ASSERT(UNTIL(a.n_done, &a, b));
	CU_ASSERT(a.n_well == 1 && here[0] == 4);
	forget(b, &target);
	end_close(&a);
	CU_ASSERT(UNTIL(b->in == NULL, b));
}

/* The stranger's connections are gone, and the transport can sleep. */
static bool has_forgotten(struct end *b, uint32_t fds)
{
	return UNTIL(count_in("/proc/self/fd") <= fds, b);
}

static void test_garbage(void)
{
	uint8_t words[512];
	struct end b;
	uint32_t fds;

	if (strcmp(ops->name, "software") != 0)
		BH_SKIP("strangers that speak plain TCP");
	b = end_open();
	serves(&b);
	fds = count_in("/proc/self/fd");
	for (uint32_t i = 0; i < 60; i++) {
		int fd = tcp_to(&b.transport->address);

		pattern(words, sizeof(words), i);
		(void)!send(fd, words, i == 0 ? 1 : i * 8, MSG_NOSIGNAL);
		if (i % 3 == 0)
			shutdown(fd, SHUT_WR);
		for (int j = 0; j < 20; j++)
			step(&b);
		close(fd);
		for (int j = 0; j < 20; j++)
			step(&b);
	}
	CU_ASSERT(b.n_requests == 1 && b.n_up_in == 1);
	serves(&b);
	CU_ASSERT(has_forgotten(&b, fds));
	end_close(&b);
}

/* Right words, but cut at every length; then whole ones with another hello size, and then nonsense
 * instead of requests. */
static void test_half_words(void)
{
	uint8_t words[512], more[4096];
	size_t n;
	struct end b;
	uint32_t fds;

	if (strcmp(ops->name, "software") != 0)
		BH_SKIP("strangers that speak plain TCP");
	n = first_words(words, sizeof(words));
	CU_ASSERT_FATAL(n > BH_RDMA_HELLO_SIZE && n < sizeof(words));
	b = end_open();
	fds = count_in("/proc/self/fd");
	for (size_t cut = 0; cut < n; cut++) {
		int fd = tcp_to(&b.transport->address);

		(void)!send(fd, words, cut, MSG_NOSIGNAL);
		for (int j = 0; j < 20; j++)
			step(&b);
		close(fd);
		for (int j = 0; j < 20; j++)
			step(&b);
	}
	CU_ASSERT(b.n_requests == 0);
	serves(&b);
	CU_ASSERT(has_forgotten(&b, fds));
	/* Whole, and gone before the answer; whole, and silent; whole, and nonsense. */
	for (uint32_t i = 0; i < 30; i++) {
		int fd = tcp_to(&b.transport->address);
		struct linger at_once = { 1, 0 };
		uint32_t requests = b.n_requests, down = b.n_down_in;

		(void)!send(fd, words, n, MSG_NOSIGNAL);
		if (i % 3 == 0) {
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
			close(fd);
			for (int j = 0; j < 100; j++) /* it may never have been a request */
				step(&b);
			continue;
		}
		CU_ASSERT(UNTIL(b.n_requests > requests, &b));
		if (i % 3 == 2) {
			memset(more, 0xff, sizeof(more));
			(void)!send(fd, more, sizeof(more), MSG_NOSIGNAL);
			for (int j = 0; j < 20; j++)
				step(&b);
		}
		close(fd);
		CU_ASSERT(UNTIL(b.n_down_in > down, &b));
	}
	serves(&b);
	CU_ASSERT(has_forgotten(&b, fds));
	end_close(&b);
}

/* Whoever says nothing for long is sent away, so that a full table of descriptors empties. */
static void test_sent_away(void)
{
	struct bh_rdma_config config = config_here();
	struct end b = { 0 };
	struct pollfd fds[30];
	uint32_t n_open = count_in("/proc/self/fd");

	if (strcmp(ops->name, "software") != 0)
		BH_SKIP("strangers that speak plain TCP");
	config.connect_timeout_ns = 100 * INT64_C(1000000);
	b.transport = opened(&config);
	serves(&b);
	for (int i = 0; i < 30; i++)
		fds[i] =
			(struct pollfd){ .fd = tcp_to(&b.transport->address), .events = POLLRDHUP };
	CU_ASSERT(UNTIL(poll(fds, 30, 0) == 30, &b));
	for (int i = 0; i < 30; i++)
		close(fds[i].fd);
	serves(&b);
	/* No longer looked for: the transport sleeps without a limit. */
	CU_ASSERT(UNTIL(ops->timeout_ns(b.transport) == INT64_MAX || now_ns() == 0, &b));
	end_close(&b);
	CU_ASSERT(count_in("/proc/self/fd") == n_open);
}

/* Two hundred who connect and say nothing; half of them stay. */
static void test_silence(void)
{
	uint32_t fds, before = count_in("/proc/self/fd");
	int some[200];
	struct end b;

	if (strcmp(ops->name, "software") != 0)
		BH_SKIP("strangers that speak plain TCP");
	b = end_open();
	fds = count_in("/proc/self/fd");
	for (int i = 0; i < 200; i++) {
		some[i] = tcp_to(&b.transport->address);
		step(&b);
	}
	serves(&b);
	for (int i = 0; i < 100; i++)
		close(some[i]);
	serves(&b);
	CU_ASSERT(has_forgotten(&b, fds + 200));
	for (int i = 100; i < 200; i++)
		close(some[i]);
	CU_ASSERT(has_forgotten(&b, fds));
	serves(&b);
	/* Some are there when it closes. */
	for (int i = 0; i < 10; i++)
		some[i] = tcp_to(&b.transport->address);
	for (int i = 0; i < 100; i++)
		step(&b);
	end_close(&b);
	for (int i = 0; i < 10; i++)
		close(some[i]);
	CU_ASSERT(count_in("/proc/self/fd") == before);
}

static const struct bh_test tests[] = {
	{ "what is written arrives, what is read comes, and nothing beside it changes",
	  test_sizes },
	{ "both sides see the other's hello, and the link's end", test_hello },
	{ "a rejected connection says so with a hello, one to nobody without", test_refused },
	{ "what a region does not allow touches nothing, and the link's end says so",
	  test_offences },
	{ "a peer that breaks the rules breaks its own link alone", test_offence_is_private },
	{ "messages arrive once and in order", test_messages },
	{ "a peer that floods is held back and loses nothing", test_flood },
	{ "a message arrives behind the writes before it", test_message_behind_writes },
	{ "SUP-10: after deregistration and an answer, memory is its owner's alone", test_revoke },
	{ "a full queue says so, and everything posted is done once", test_full },
	{ "a killed peer: all that was posted is done, then the link is down", test_killed },
	{ "SUP-10: after disconnect() a peer that stood still touches nothing", test_disconnect },
	{ "no threads are started", test_no_threads },
	{ "close() leaves no descriptor and no thread, whatever was left to it",
	  test_leaves_nothing },
	{ "keys differ and cannot be guessed", test_keys },
	{ "memory is registered by other threads while transfers run", test_register_while_busy },
	{ "the descriptors wake a sleeper for everything", test_wakes },
	{ "with nothing to do the descriptors stay quiet", test_idles },
	{ "a wrong option is named with its value and what is accepted", test_options },
	{ "SUP-10: settings under which a closed link reads on are refused", test_environment },
	{ "a port in use is named, and free again after close()", test_port_in_use },
	{ "a fault's text is never cut in the middle of a character", test_fault_text },
	{ "a listener that never answers: down after connect_timeout", test_silent_listener },
	{ "garbage on the port: no request, no harm", test_garbage },
	{ "half a request, a request without a peer, nonsense after it: no harm", test_half_words },
	{ "who connects and says nothing is sent away in the end", test_sent_away },
	{ "two hundred silent connections: peers are served", test_silence },
};
BH_TAP_MAIN(TRANSPORT_NAME, tests)
