/* SPDX-License-Identifier: BSD-3-Clause */
/* What the verbs transport promises beyond test_rdma_transport.c: how a device is chosen, what the
 * kernel's limits say, and what devices do to links. Runs beside a Soft-RoCE device (scripts/rdma-vm);
 * everything skips where there is none. Root's tools are used: ip. */
#include "config.h"

#include "plugins/rdma/transport.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/rdma_ends.h"
#include "tests/unit/tap.h"

static const struct bh_rdma_transport_ops *const ops = &bh_rdma_verbs;

#define NEED_DEVICE()                                                                              \
	do {                                                                                       \
		if (!getenv("RDMA_VM_DEVICE"))                                                     \
			BH_SKIP("no RDMA device; scripts/rdma-vm has one");                        \
	} while (0)

/* A card that never gives anything back: the queue pair is not told that it is in error. */
static bool keep_all;
int __real_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int __wrap_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int __wrap_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (keep_all && attr->qp_state == IBV_QPS_ERR)
		return 0;
	return __real_ibv_modify_qp(qp, attr, mask);
}

/* ---- one end: counts what it is told ------------------------------------------------------------ */

struct end {
	struct bh_rdma_transport *transport;
	struct bh_rdma_link *out, *in;
	uint32_t n_up, n_down, n_done, n_well, n_health;
	bh_status done, down, health; /* the latest */
	struct bh_rdma_fault fault, health_fault;
};

static struct bh_rdma_transport *transport_of(const struct end *end)
{
	return end->transport;
}

static struct bh_rdma_config config_here(void)
{
	return (struct bh_rdma_config){ .label = "rdma",
					.device = "auto",
					.gid_index = -1,
					.address = "",
					.queue_depth = 64,
					.connect_timeout_ns = 10 * SECOND };
}

static struct end end_open(void)
{
	struct bh_rdma_config config = config_here();
	struct bh_rdma_fault fault = { 0 };
	struct end end = { 0 };

	if (ops->open(&config, &end.transport, &fault) < 0) {
		fprintf(stderr, "open: %s: %s\n", fault.id, fault.text);
		abort();
	}
	return end;
}

static void on_event(struct end *end, const struct bh_rdma_event *event)
{
	static const uint8_t hello[BH_RDMA_HELLO_SIZE];
	struct bh_rdma_fault fault;

	switch (event->kind) {
	case BH_RDMA_REQUEST:
		end->in = event->link;
		(void)ops->accept(end->transport, event->link, hello, &fault);
		break;
	case BH_RDMA_UP:
		end->n_up++;
		break;
	case BH_RDMA_DONE:
		end->n_done++;
		end->n_well += event->status == 0;
		end->done = event->status;
		break;
	case BH_RDMA_REFUSED:
	case BH_RDMA_DOWN:
		end->n_down++;
		end->down = event->status;
		if (event->fault)
			end->fault = *event->fault;
		if (event->link == end->in)
			end->in = NULL;
		else
			end->out = NULL;
		ops->release(end->transport, event->link);
		break;
	case BH_RDMA_HEALTH:
		end->n_health++;
		end->health = event->status;
		if (event->fault)
			end->health_fault = *event->fault;
		break;
	case BH_RDMA_MESSAGE:
		break;
	}
}

static bool join_ends(struct end *a, struct end *b)
{
	static const uint8_t hello[BH_RDMA_HELLO_SIZE];
	uint32_t up_a = a->n_up, up_b = b->n_up;
	struct bh_rdma_fault fault;

	return ops->connect(a->transport, &b->transport->address, hello, &a->out, &fault) == 0 &&
	       UNTIL(a->n_up > up_a && b->n_up > up_b, a, b);
}

static bh_status post(struct end *end, enum bh_rdma_op op, const struct bh_rdma_memory *local,
		      const struct bh_rdma_memory *target, size_t offset, uint32_t length)
{
	struct bh_rdma_work work = { .op = op,
				     .length = length,
				     .local = (uint8_t *)local->data + offset,
				     .memory = local,
				     .remote = target->base + offset,
				     .key = target->key };

	return ops->post(end->transport, end->out, &work);
}

static uint8_t *pages(size_t length, int protection, uint8_t fill)
{
	uint8_t *data =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (data == MAP_FAILED)
		abort();
	memset(data, fill, length);
	mprotect(data, length, protection);
	return data;
}

/* ---- options: H13 ----------------------------------------------------------------------------- */

struct option_case {
	struct bh_rdma_config config;
	bh_status status;
	const char *id, *says[3];
};
#define CASE(status_, id_, a, b, c, ...)                                                           \
	{                                                                                          \
		.config = { .label = "rdma",                                                       \
			    .device = "auto",                                                      \
			    .gid_index = -1,                                                       \
			    .address = "",                                                         \
			    .queue_depth = 64,                                                     \
			    .connect_timeout_ns = SECOND,                                          \
			    __VA_ARGS__ },                                                         \
		.status = (status_), .id = (id_), .says = {                                        \
			(a),                                                                       \
			(b),                                                                       \
			(c)                                                                        \
		}                                                                                  \
	}

static uint32_t count_in(const char *path)
{
	DIR *folder = opendir(path);
	uint32_t n = 0;

	while (folder && readdir(folder))
		n++;
	closedir(folder);
	return n;
}

static void test_options(void)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
	static const struct option_case cases[] = {
		CASE(-EINVAL, "rdma.device", "device = mlx5_7", "there is", "rxe0",
		     .device = "mlx5_7"),
		CASE(-EINVAL, "rdma.port", "port = 2", "rxe0", "1 port", .port = 2),
		CASE(-EINVAL, "rdma.port", "port = -1", "rxe0", "1 port", .port = -1),
		CASE(-EINVAL, "rdma.gid_index", "gid_index = 99", "port 1 of rxe0", "0, 1",
		     .gid_index = 99),
		CASE(-EINVAL, "rdma.address", "address = localhost", "numeric", "192.0.2.1",
		     .address = "localhost"),
		CASE(-EINVAL, "rdma.address", "address = 198.51.100.7", "no interface here", "",
		     .address = "198.51.100.7"),
		CASE(-EINVAL, "rdma.gid_index", "gid_index = 0", "192.0.2.1", "another index",
		     .gid_index = 0, .address = "192.0.2.1"),
		CASE(-ENODEV, "rdma.address", "address = 127.0.0.1", "no RDMA device", "",
		     .address = "127.0.0.1"),
		CASE(-EINVAL, "rdma.queue_depth", "queue_depth = 40000", "rxe0", "1 … ",
		     .queue_depth = 40000),
		CASE(-EINVAL, "rdma.max_message", "max_message = 16777216", "8388608", "rxe0",
		     .max_message = 16777216),
		CASE(-EINVAL, "rdma.listen_port", "listen_port = 65536", "0 … 65535", "",
		     .listen_port = 65536),
	};
#pragma GCC diagnostic pop
	struct end warm; /* what librdmacm keeps for good is open from here on */
	uint32_t fds;

	NEED_DEVICE();
	warm = end_open();
	ops->close(warm.transport);
	fds = count_in("/proc/self/fd");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bh_rdma_transport *transport = NULL;
		struct bh_rdma_fault fault = { 0 };
		bh_status status = ops->open(&cases[i].config, &transport, &fault);
		bool right = status == cases[i].status && strcmp(fault.id, cases[i].id) == 0;

		for (int j = 0; j < 3; j++)
			right = right && strstr(fault.text, cases[i].says[j]);
		if (!right)
			printf("# case %zu: %d %s: %s\n", i, status, fault.id, fault.text);
		CU_ASSERT(right);
		CU_ASSERT(transport == NULL);
	}
	CU_ASSERT(count_in("/proc/self/fd") == fds);
}

static void test_choices(void)
{
	const char *name = getenv("RDMA_VM_DEVICE"), *address = getenv("RDMA_VM_ADDRESS");
	struct bh_rdma_config config = config_here();
	struct bh_rdma_transport *first = NULL, *second = NULL;
	struct bh_rdma_fault fault = { 0 };
	struct sockaddr_in in;
	char expected[64];

	NEED_DEVICE();
	CU_ASSERT_FATAL(ops->open(&config, &first, &fault) == 0);
	snprintf(expected, sizeof(expected), "%s port 1 gid 1 (RoCE v2)", name);
	CU_ASSERT_STRING_EQUAL(first->device, expected);
	memcpy(&in, first->address.bytes, sizeof(in));
	inet_ntop(AF_INET, &in.sin_addr, expected, sizeof(expected));
	CU_ASSERT_STRING_EQUAL(expected, address);
	CU_ASSERT(in.sin_port != 0);
	CU_ASSERT(first->max_message == 8 * MIB && first->max_outstanding == 64);
	CU_ASSERT(first->max_reads >= 1 && first->max_reads <= 64);

	/* A port that is taken. */
	config.listen_port = ntohs(in.sin_port);
	CU_ASSERT(ops->open(&config, &second, &fault) == -EADDRINUSE);
	snprintf(expected, sizeof(expected), "listen_port = %u", ntohs(in.sin_port));
	CU_ASSERT(strstr(fault.text, expected) != NULL);
	ops->close(first);
	/* Free again, and asked for by every name that it has. */
	config.device = name;
	config.port = 1;
	config.gid_index = 1;
	config.address = address;
	config.max_message = 65536;
	CU_ASSERT_FATAL(ops->open(&config, &second, &fault) == 0);
	CU_ASSERT(second->max_message == 65536);
	ops->close(second);
}

/* ---- memory ----------------------------------------------------------------------------------- */

struct answer {
	_Atomic bool there;
	bh_status status;
	struct bh_rdma_fault fault;
};

/* In a child: limits and capabilities do not come back. */
static void register_with_little(struct answer *answer, size_t limit, size_t length)
{
	struct rlimit little = { limit, limit };
	struct end end = end_open();
	struct bh_rdma_memory memory;

	setrlimit(RLIMIT_MEMLOCK, &little);
	if (setresuid(65534, 65534, 65534) < 0) /* CAP_IPC_LOCK goes with root */
		_exit(1);
	answer->status =
		ops->register_memory(end.transport, pages(length, PROT_READ | PROT_WRITE, 0),
				     length, BH_RDMA_READ, &memory, &answer->fault);
	answer->there = true;
	_exit(0);
}

static void test_memlock(void)
{
	struct answer *answer = mmap(NULL, sizeof(*answer), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child;

	NEED_DEVICE();
	child = fork();
	if (child == 0)
		register_with_little(answer, 65536, MIB);
	waitpid(child, NULL, 0);
	CU_ASSERT(answer->there);
	CU_ASSERT(answer->status == -ENOMEM);
	CU_ASSERT_STRING_EQUAL(answer->fault.id, "rdma.memlock");
	CU_ASSERT(strstr(answer->fault.text, "1048576 bytes") != NULL);
	CU_ASSERT(strstr(answer->fault.text, "RLIMIT_MEMLOCK is 65536") != NULL);
	CU_ASSERT(strstr(answer->fault.text, "LimitMEMLOCK=") != NULL);
	munmap(answer, sizeof(*answer));
}

static void test_bad_memory(void)
{
	struct bh_rdma_fault fault = { 0 };
	struct bh_rdma_memory memory, readable;
	struct end end;
	uint8_t *data;

	NEED_DEVICE();
	end = end_open();
	/* What cannot be written: peers may read it, and nothing else. */
	data = pages(4096, PROT_READ, 1);
	readable = registered(&end, data, 4096, BH_RDMA_READ);
	CU_ASSERT(ops->register_memory(end.transport, data, 4096, BH_RDMA_WRITE, &memory, &fault) ==
		  -EFAULT);
	CU_ASSERT(strstr(fault.text, "4096 bytes") != NULL);
	CU_ASSERT(ops->deregister(end.transport, &readable));
	/* What is not there any more. */
	munmap(data, 4096);
	CU_ASSERT(ops->register_memory(end.transport, data, 4096, BH_RDMA_READ, &memory, &fault) ==
		  -EFAULT);
	CU_ASSERT(ops->register_memory(end.transport, data, 0, BH_RDMA_READ, &memory, &fault) ==
		  -EINVAL);
	ops->close(end.transport);
}

static void test_fork(void)
{
	CU_ASSERT(ibv_fork_init() == 0 || ibv_is_fork_initialized() != IBV_FORK_DISABLED);
	NEED_DEVICE();
	struct end a = end_open(), b = end_open();
	uint8_t *there = pages(4096, PROT_READ | PROT_WRITE, 1);
	uint8_t *here = pages(4096, PROT_READ | PROT_WRITE, 2);
	struct bh_rdma_memory target = registered(&b, there, 4096, BH_RDMA_WRITE);
	struct bh_rdma_memory local = registered(&a, here, 4096, 0);
	int pipes[2];
	pid_t child;

	CU_ASSERT_FATAL(join_ends(&a, &b));
	CU_ASSERT_FATAL(ibv_is_fork_initialized() != IBV_FORK_DISABLED);
	/* A child is alive while this process writes to its registered pages: they must stay the ones
	 * that the device has. */
	CU_ASSERT_FATAL(pipe(pipes) == 0);
	child = fork();
	if (child == 0) {
		char byte;

		close(pipes[1]);
		(void)!read(pipes[0], &byte, 1);
		_exit(0);
	}
	memset(here, 7, 4096);
	there[0] = 0;
	CU_ASSERT(post(&a, BH_RDMA_OP_WRITE, &local, &target, 0, 4096) == 0);
	CU_ASSERT(UNTIL(a.n_done, &a, &b));
	CU_ASSERT(a.n_well == 1 && there[0] == 7 && there[4095] == 7);
	close(pipes[1]);
	close(pipes[0]);
	waitpid(child, NULL, 0);
	ops->close(a.transport);
	ops->close(b.transport);
}

/* ---- what happens to links ---------------------------------------------------------------------- */

/* H14: some cards never give back what was posted. */
static void test_never_given_back(void)
{
	uint8_t *there, *here;
	struct bh_rdma_memory target, local;
	struct end a, b;
	int64_t began;
	uint32_t n = 0;

	NEED_DEVICE();
	a = end_open();
	b = end_open();
	there = pages(MIB, PROT_READ | PROT_WRITE, 1);
	here = pages(MIB, PROT_READ | PROT_WRITE, 2);
	target = registered(&b, there, MIB, BH_RDMA_WRITE);
	local = registered(&a, here, MIB, 0);
	CU_ASSERT_FATAL(join_ends(&a, &b));
	/* Nobody takes the messages of a link whose queue pair stays as it is: its receives never come
	 * back, on this side or the other. */
	keep_all = true;
	while (n < 8 && post(&a, BH_RDMA_OP_WRITE, &local, &target, 0, MIB) == 0)
		n++;
	began = now_ns();
	ops->disconnect(b.transport, b.in);
	CU_ASSERT(UNTIL(a.n_down && b.n_down, &a, &b));
	CU_ASSERT(now_ns() - began >= 3 * SECOND / 2); /* it was waited for */
	CU_ASSERT(a.n_done == n);
	CU_ASSERT(a.down == -ECONNRESET);
	keep_all = false;
	memset(here, 3, MIB);
	CU_ASSERT(join_ends(&a, &b));
	CU_ASSERT(post(&a, BH_RDMA_OP_WRITE, &local, &target, 0, 4096) == 0);
	CU_ASSERT(UNTIL(a.n_done == n + 1, &a, &b));
	CU_ASSERT(a.done == 0 && there[0] == 3);
	ops->close(a.transport);
	ops->close(b.transport);
}

static void test_says_what_happened(void)
{
	uint8_t *there, *here;
	struct bh_rdma_memory target, local;
	struct end a, b;

	NEED_DEVICE();
	a = end_open();
	b = end_open();
	there = pages(4096, PROT_READ | PROT_WRITE, 1);
	here = pages(4096, PROT_READ | PROT_WRITE, 2);
	target = registered(&b, there, 4096, BH_RDMA_READ);
	local = registered(&a, here, 4096, 0);
	CU_ASSERT_FATAL(join_ends(&a, &b));
	CU_ASSERT(post(&a, BH_RDMA_OP_WRITE, &local, &target, 0, 64) == 0);
	CU_ASSERT(UNTIL(a.n_down && b.n_down, &a, &b));
	CU_ASSERT(a.n_done == 1 && a.done == -EACCES);
	CU_ASSERT(strstr(a.fault.text, getenv("RDMA_VM_ADDRESS")) != NULL);
	CU_ASSERT(strstr(a.fault.text, "a write") != NULL);
	CU_ASSERT_STRING_EQUAL(a.fault.status, "remote access error");
	CU_ASSERT(there[0] == 1);
	ops->close(a.transport);
	ops->close(b.transport);
}

/* More links than one completion queue can hold work for. */
#define MANY 96
static void test_many_links(void)
{
	static const uint8_t hello[BH_RDMA_HELLO_SIZE];
	struct bh_rdma_link *links[MANY];
	struct bh_rdma_memory target, local;
	struct bh_rdma_fault fault;
	uint8_t *there, *here;
	uint32_t n = 0;
	struct end a, b;

	NEED_DEVICE();
	a = end_open();
	b = end_open();
	there = pages(4096, PROT_READ | PROT_WRITE, 1);
	here = pages(4096, PROT_READ | PROT_WRITE, 2);
	target = registered(&b, there, 4096, BH_RDMA_WRITE);
	local = registered(&a, here, 4096, 0);
	for (uint32_t i = 0; i < MANY; i++) {
		CU_ASSERT_FATAL(ops->connect(a.transport, &b.transport->address, hello, &links[i],
					     &fault) == 0);
		CU_ASSERT_FATAL(UNTIL(a.n_up == i + 1 && b.n_up == i + 1, &a, &b));
	}
	/* All queues full at once, and nobody polls. */
	for (uint32_t i = 0; i < MANY; i++) {
		a.out = links[i];
		while (post(&a, BH_RDMA_OP_WRITE, &local, &target, 0, 8) == 0)
			n++;
	}
	CU_ASSERT(n == MANY * a.transport->max_outstanding);
	CU_ASSERT(UNTIL(a.n_done == n, &a, &b));
	CU_ASSERT(a.n_well == n);
	for (uint32_t i = 0; i < MANY; i++)
		ops->disconnect(a.transport, links[i]);
	CU_ASSERT(UNTIL(a.n_down == MANY && b.n_down == MANY, &a, &b));
	CU_ASSERT(join_ends(&a, &b)); /* what they had is free again */
	ops->close(a.transport);
	ops->close(b.transport);
}

/* ---- the port goes down ------------------------------------------------------------------------- */

struct transfer {
	struct end a, b;
	uint8_t *here, *there;
	struct bh_rdma_memory local, target;
	uint32_t n;
};

/* 16 MiB of writes are under way when the port goes down. */
static bool go_down_in_transfer(struct transfer *t)
{
	size_t size = 16 * MIB;

	t->a = end_open();
	t->b = end_open();
	t->there = pages(size, PROT_READ | PROT_WRITE, 1);
	t->here = pages(size, PROT_READ | PROT_WRITE, 2);
	t->target = registered(&t->b, t->there, size, BH_RDMA_WRITE);
	t->local = registered(&t->a, t->here, size, 0);
	t->n = 0;
	if (!join_ends(&t->a, &t->b))
		return false;
	for (size_t at = 0; at < size; at += MIB)
		t->n += post(&t->a, BH_RDMA_OP_WRITE, &t->local, &t->target, at, MIB) == 0;
	return UNTIL(t->a.n_done >= 1, &t->a, &t->b) && system("ip link set dummy0 down") == 0 &&
	       UNTIL(t->a.n_health && t->b.n_health, &t->a, &t->b);
}

static void close_transfer(struct transfer *t)
{
	ops->close(t->a.transport);
	ops->close(t->b.transport);
	munmap(t->here, 16 * MIB);
	munmap(t->there, 16 * MIB);
}

static void test_port_flaps(void)
{
	struct transfer t;

	NEED_DEVICE();
	CU_ASSERT_FATAL(go_down_in_transfer(&t));
	CU_ASSERT(t.a.health == -ENETDOWN && t.b.health == -ENETDOWN);
	CU_ASSERT_STRING_EQUAL(t.a.health_fault.id, "rdma.port_down");
	CU_ASSERT(strstr(t.a.health_fault.text, "rxe0 port 1") != NULL);
	CU_ASSERT_FATAL(system("ip link set dummy0 up") == 0);
	CU_ASSERT(UNTIL(t.a.health == 0 && t.b.health == 0, &t.a, &t.b));
	CU_ASSERT(UNTIL(t.a.n_done == t.n, &t.a, &t.b));
	if (t.a.n_well == t.n)
		CU_ASSERT(memcmp(t.here, t.there, 16 * MIB) == 0);
	close_transfer(&t);
}

/* It stays down: the link ends by itself. The last test: the connection manager of Soft-RoCE (Linux 6.1)
 * does not survive sending into a port that is down; not even rping connects afterwards. */
static void test_port_down(void)
{
	struct transfer t;

	NEED_DEVICE();
	CU_ASSERT_FATAL(go_down_in_transfer(&t));
	if (t.a.out)
		t.n += post(&t.a, BH_RDMA_OP_WRITE, &t.local, &t.target, 0, MIB) == 0;
	CU_ASSERT(UNTIL(t.a.n_down == 1, &t.a, &t.b));
	CU_ASSERT(t.a.n_done == t.n);
	CU_ASSERT(t.a.down == -ECONNRESET);
	CU_ASSERT(t.a.fault.text[0] != '\0');
	printf("# %s\n", t.a.fault.text);
	close_transfer(&t);
	CU_ASSERT_FATAL(system("ip link set dummy0 up") == 0);
}

static void test_no_active_port(void)
{
	struct bh_rdma_config config = config_here();
	struct bh_rdma_transport *transport = NULL;
	struct bh_rdma_fault fault = { 0 };

	NEED_DEVICE();
	CU_ASSERT_FATAL(system("ip link set dummy0 down") == 0);
	CU_ASSERT(ops->open(&config, &transport, &fault) == -ENODEV);
	CU_ASSERT(strstr(fault.text, "port 1 of rxe0") != NULL);
	CU_ASSERT_FATAL(system("ip link set dummy0 up") == 0);
}

static const struct bh_test tests[] = {
	{ "H13: a wrong option is named with its value and what is there", test_options },
	{ "the best GID is chosen, a named one taken, a port in use refused", test_choices },
	{ "H13: a small locked-memory limit is named with value, need and cure", test_memlock },
	{ "memory that is not there, or not writable, is refused or left readable",
	  test_bad_memory },
	{ "a forked child does not take registered pages away", test_fork },
	{ "H14: work that is never given back is made up after a while", test_never_given_back },
	{ "a refused access is told in the provider's words", test_says_what_happened },
	{ "many links, all full at once: no completion queue overruns", test_many_links },
	{ "without an active port another transport may do, and is told why", test_no_active_port },
	{ "a port that goes down and up in mid-transfer: told both, and all is done",
	  test_port_flaps },
	{ "a port that stays down: all is done, then the link is down", test_port_down },
};
BH_TAP_MAIN("rdma device", tests)
