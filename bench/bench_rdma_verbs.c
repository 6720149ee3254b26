/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_rdma_verbs - one figure of the verbs transport, between two processes on one device.
 *
 * bench_rdma_verbs KIND ITERATIONS [events]: write_bw and read_bw: MB/s (10^6) of transfers of 1 MiB, as
 * many at once as perftest has; write_lat: microseconds (the median) of a write of 8 bytes until the peer sees it in
 * its memory, as ib_write_lat does it: both write in turn; read_lat: microseconds of a read of 8 bytes
 * until its DONE. `events`: sleeps until the descriptors say that there is something; without it, polls.
 * bench/bench_rdma_verbs.sh compares these with perftest's. */
#include "config.h"

#include "plugins/rdma/transport.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE ((size_t)1 << 20)
#define DEPTH 128 /* perftest's */

static const struct bh_rdma_transport_ops *const ops = &bh_rdma_verbs;
static const uint8_t hello[BH_RDMA_HELLO_SIZE];

struct side {
	struct bh_rdma_address address;
	uint64_t base, key;
	_Atomic bool ready, over;
};

struct end {
	struct bh_rdma_transport *transport;
	struct bh_rdma_link *out;
	struct bh_rdma_memory memory;
	uint8_t *data;
	uint64_t n_done;
	bool up, events;
};

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* The processor's counter, as perftest reads it: in an emulated machine the clock takes microseconds. */
static int64_t ticks(void)
{
#if defined(__x86_64__)
	return (int64_t)__builtin_ia32_rdtsc();
#else
	return now_ns();
#endif
}

static void stop(const char *what, const struct bh_rdma_fault *fault)
{
	fprintf(stderr, "bench_rdma_verbs: %s: %s\n", what, fault ? fault->text : "");
	exit(1);
}

static void step(struct end *end)
{
	struct bh_rdma_event events[64];
	struct bh_rdma_fault fault;
	uint32_t n = ops->poll(end->transport, events, 64);

	for (uint32_t i = 0; i < n; i++) {
		if (events[i].kind == BH_RDMA_DONE && events[i].status == 0)
			end->n_done++;
		else if (events[i].kind == BH_RDMA_UP)
			end->up |= events[i].link == end->out;
		else if (events[i].kind == BH_RDMA_REQUEST)
			(void)ops->accept(end->transport, events[i].link, hello, &fault);
		else if (events[i].kind == BH_RDMA_DOWN && events[i].link != end->out)
			ops->release(end->transport, events[i].link);
		else
			stop("a link ended or a transfer failed", events[i].fault);
	}
}

static void rest(struct end *end)
{
	struct pollfd fds[BH_RDMA_FDS];
	int some[BH_RDMA_FDS];
	uint32_t n = ops->descriptors(end->transport, some);

	if (!ops->arm(end->transport))
		return;
	for (uint32_t i = 0; i < n; i++)
		fds[i] = (struct pollfd){ .fd = some[i], .events = POLLIN };
	(void)poll(fds, n, 100);
}

static void step_or_rest(struct end *end)
{
	uint64_t before = end->n_done;

	step(end);
	if (end->events && end->n_done == before)
		rest(end);
}

static void open_end(struct end *end, struct side *mine)
{
	struct bh_rdma_config config = { .label = "bench",
					 .device = getenv("RDMA_VM_DEVICE") ?: "",
					 .gid_index = -1,
					 .address = "",
					 .queue_depth = DEPTH,
					 .connect_timeout_ns = INT64_C(10000000000) };
	struct bh_rdma_fault fault;

	end->data = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (end->data == MAP_FAILED || ops->open(&config, &end->transport, &fault) < 0)
		stop("open", &fault);
	if (ops->register_memory(end->transport, end->data, SIZE, BH_RDMA_READ | BH_RDMA_WRITE,
				 &end->memory, &fault) < 0)
		stop("register", &fault);
	mine->address = end->transport->address;
	mine->base = end->memory.base;
	mine->key = end->memory.key;
	mine->ready = true;
}

static void join_peer(struct end *end, const struct side *peer)
{
	struct bh_rdma_fault fault;

	while (!peer->ready)
		sched_yield();
	if (ops->connect(end->transport, &peer->address, hello, &end->out, &fault) < 0)
		stop("connect", &fault);
	while (!end->up) {
		step(end);
		rest(end);
	}
}

static bool post(struct end *end, const struct side *peer, enum bh_rdma_op op, size_t length)
{
	struct bh_rdma_work work = { .op = op,
				     .length = (uint32_t)length,
				     .local = end->data,
				     .memory = &end->memory,
				     .remote = peer->base,
				     .key = peer->key };
	bh_status status = ops->post(end->transport, end->out, &work);

	if (status < 0 && status != -EAGAIN)
		stop("post", NULL);
	return status == 0;
}

static double bandwidth(struct end *end, const struct side *peer, enum bh_rdma_op op, uint64_t n)
{
	uint64_t posted = 0, until = end->n_done + n;
	int64_t began = now_ns();

	while (end->n_done < until) {
		while (posted < n && post(end, peer, op, SIZE))
			posted++;
		step_or_rest(end);
	}
	return (double)(n * SIZE) / ((double)(now_ns() - began) / 1e9) / 1e6;
}

static int by_value(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* In microseconds: what perftest calls typical. `ns` and `all` are of one span, to know what a tick is. */
static double median(int64_t *times, uint64_t n, int64_t ns, int64_t all)
{
	qsort(times, n, sizeof(*times), by_value);
	return (double)times[n / 2] * (double)ns / (double)all / 1e3;
}

/* Both sides write a number into the other's first byte in turn; the peer's is awaited in memory. Half
 * of a round is one way. */
static double ping_pong(struct end *end, const struct side *peer, int64_t *times, uint64_t n,
			bool begins)
{
	volatile uint8_t *here = end->data + 8; /* what is sent lies before it */
	int64_t first_ns = now_ns(), first = ticks();
	struct side there = *peer;

	there.base += 8;
	for (uint64_t i = 0; i < n; i++) {
		uint8_t number = (uint8_t)(i % 250 + 1);
		int64_t began = ticks();

		for (int turn = 0; turn < 2; turn++) {
			if ((turn == 0) == begins) {
				memset(end->data, number, 8);
				while (!post(end, &there, BH_RDMA_OP_WRITE, 8))
					step(end);
				step(end);
			} else {
				while (here[0] != number)
					step(end);
			}
		}
		times[i] = (ticks() - began) / 2;
	}
	return median(times, n, now_ns() - first_ns, ticks() - first);
}

static double latency(struct end *end, const struct side *peer, int64_t *times, uint64_t n)
{
	int64_t first_ns = now_ns(), first = ticks();

	for (uint64_t i = 0; i < n; i++) {
		uint64_t until = end->n_done + 1;
		int64_t began = ticks();

		while (!post(end, peer, BH_RDMA_OP_READ, 8))
			step(end);
		while (end->n_done < until)
			step_or_rest(end);
		times[i] = ticks() - began;
	}
	return median(times, n, now_ns() - first_ns, ticks() - first);
}

/* A processor for each side, where there are two: two that poll on one wait for the scheduler's tick. */
static void stay_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
}

int main(int argc, char **argv)
{
	struct side *sides = mmap(NULL, 2 * sizeof(*sides), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const char *kind = argc > 2 ? argv[1] : "";
	uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	bool pong = strcmp(kind, "write_lat") == 0, serves;
	struct end end = { .events = argc > 3 };
	int64_t *times = calloc(n ? n : 1, sizeof(*times));
	struct side *mine, *peer;
	double value;
	pid_t child;

	if (sides == MAP_FAILED || !times || n == 0) {
		fprintf(stderr, "usage: bench_rdma_verbs write_bw|read_bw|write_lat|read_lat "
				"ITERATIONS [events]\n");
		return 64;
	}
	child = fork();
	serves = child == 0;
	stay_on(serves);
	mine = &sides[serves];
	peer = &sides[!serves];
	open_end(&end, mine);
	if (serves && !pong) {
		while (!peer->over) {
			step(&end);
			rest(&end);
		}
		_exit(0);
	}
	join_peer(&end, peer);
	if (pong) {
		value = ping_pong(&end, peer, times, n, !serves);
		mine->over = true;
		while (!peer->over)
			step(&end);
		if (serves)
			_exit(0);
	} else if (strcmp(kind, "read_lat") == 0) {
		value = latency(&end, peer, times, n);
	} else {
		value = bandwidth(&end, peer,
				  strcmp(kind, "read_bw") == 0 ? BH_RDMA_OP_READ : BH_RDMA_OP_WRITE,
				  n);
	}
	mine->over = true;
	printf("%.3f\n", value);
	fflush(stdout);
	ops->close(end.transport);
	waitpid(child, NULL, 0);
	return 0;
}
