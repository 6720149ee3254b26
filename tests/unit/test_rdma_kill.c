/* SPDX-License-Identifier: BSD-3-Clause */
/* test_rdma_kill - the engine over a transport, between processes, one of which is killed: compiled with
 * -DTRANSPORT=bh_rdma_software or -DTRANSPORT=bh_rdma_verbs.
 *
 * A peer is this program run again with --serve; it says on its standard output how it can be reached,
 * and serves until it is killed. RDMA_KILLS=n kills so many. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host/core/common.h"
#include "plugins/rdma/engine.h"
#include "tests/unit/tap.h"

#define MS INT64_C(1000000)
#define S INT64_C(1000000000)
#define REGION (UINT64_C(4) << 20)
#define IN_FLIGHT 1000u
#define LARGEST 65536u

static uint64_t real_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

struct side {
	struct bh_rdma_transport *transport;
	struct bh_rdma_engine *engine;
	uint64_t instance;
};

static bool side_open(struct side *side, uint64_t instance)
{
	struct bh_rdma_config config = { .label = "rdma",
					 .device = "",
					 .address = "",
					 .gid_index = -1,
					 .queue_depth = 128,
					 .connect_timeout_ns = 5 * S };
	struct bh_rdma_engine_options options = { .connect_timeout_ns = 5 * S,
						  .connect_retries = 2,
						  .retry_pause_ns = MS,
						  .abort_timeout_ns = 2 * S,
						  .revoke_timeout_ns = 2 * S };
	struct bh_rdma_engine_calls calls = { .now_ns = real_now };
	struct bh_rdma_fault fault = { 0 };

	side->instance = instance;
	if (TRANSPORT.open(&config, &side->transport, &fault) < 0) {
		fprintf(stderr, "# %s: %s (%s)\n", fault.id, fault.text, fault.status);
		return false;
	}
	return bh_rdma_engine_new(side->transport, instance, &options, &calls, &side->engine) == 0;
}

/* ---- the peer ------------------------------------------------------------------------------------ */

static int serve(void)
{
	struct bh_rdma_memory memory;
	struct bh_rdma_descriptor descriptor;
	struct side side;
	uint8_t *data = calloc(1, REGION);
	int never = eventfd(0, EFD_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!data || never < 0 || !side_open(&side, (uint64_t)getpid()) ||
	    side.transport->ops->register_memory(side.transport, data, REGION,
						 BH_RDMA_READ | BH_RDMA_WRITE, &memory, NULL) < 0)
		return 1;
	for (uint64_t i = 0; i < REGION; i++)
		data[i] = (uint8_t)(i * 31 >> 3);
	memset(&descriptor, 0, sizeof(descriptor));
	descriptor.kind = side.transport->kind;
	descriptor.access = BH_RDMA_READ | BH_RDMA_WRITE;
	descriptor.instance = side.instance;
	descriptor.base = memory.base;
	descriptor.length = REGION;
	descriptor.key = memory.key;
	descriptor.address = side.transport->address;
	if (write(STDOUT_FILENO, &descriptor, sizeof(descriptor)) != sizeof(descriptor))
		return 1;
	bh_rdma_engine_run(side.engine, never);
	return 0;
}

struct peer {
	pid_t pid;
	int out;
	struct bh_rdma_descriptor descriptor;
};

static bool peer_start(struct peer *peer)
{
	int out[2];

	if (pipe(out) < 0)
		return false;
	peer->pid = fork();
	if (peer->pid ==
	    0) { /* nothing but what is safe behind the fork of a process with threads */
		dup2(out[1], STDOUT_FILENO);
		close(out[0]);
		close(out[1]);
		execl("/proc/self/exe", "test_rdma_kill", "--serve", (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	peer->out = out[0];
	return peer->pid > 0;
}

static bool peer_ready(struct peer *peer)
{
	size_t got = 0;
	ssize_t n;

	while (got < sizeof(peer->descriptor)) {
		n = read(peer->out, (char *)&peer->descriptor + got,
			 sizeof(peer->descriptor) - got);
		if (n <= 0)
			return false;
		got += (size_t)n;
	}
	return true;
}

static void peer_kill(struct peer *peer)
{
	kill(peer->pid, SIGKILL);
	waitpid(peer->pid, NULL, 0);
	close(peer->out);
}

/* ---- this side ----------------------------------------------------------------------------------- */

struct flight {
	struct bh_rdma_transfer transfer;
	struct bh_rdma_part part;
	uint32_t n_done;
	bh_status status;
};

static struct flight flights[IN_FLIGHT];
static uint8_t *local;			   /* LARGEST bytes a flight */
static struct bh_rdma_memory local_memory; /* where the transport wants to know it */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t n_done;
static struct side here;
static int stop_fd;

static void flight_done(struct bh_rdma_transfer *transfer, bh_status status,
			const struct bh_rdma_fault *fault, uint32_t failed)
{
	struct flight *flight = bh_container_of(transfer, struct flight, transfer);

	(void)fault;
	(void)failed;
	pthread_mutex_lock(&lock);
	flight->n_done++;
	flight->status = status;
	n_done++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static bool wait_done(uint32_t n)
{
	struct timespec until;
	bool enough;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	pthread_mutex_lock(&lock);
	while (n_done < n && pthread_cond_timedwait(&changed, &lock, &until) == 0)
		;
	enough = n_done >= n;
	pthread_mutex_unlock(&lock);
	return enough;
}

static uint64_t next_random(uint64_t *random)
{
	*random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return *random >> 33;
}

/* Reads of the first half, writes to the second. */
static void fly(const struct peer *peer, uint64_t *random)
{
	n_done = 0;
	for (uint32_t i = 0; i < IN_FLIGHT; i++) {
		struct flight *flight = &flights[i];
		uint64_t length = 1 + next_random(random) % (i % 10 == 0 ? LARGEST : 512);
		uint64_t half = REGION / 2 * (i % 2);

		*flight = (struct flight){ 0 };
		flight->part = (struct bh_rdma_part){
			.remote = half + next_random(random) % (REGION / 2 - length),
			.local = local + (uint64_t)i * LARGEST,
			.length = length,
			.memory = here.transport->needs_memory ? &local_memory : NULL,
		};
		flight->transfer = (struct bh_rdma_transfer){
			.op = i % 2 ? BH_RDMA_OP_WRITE : BH_RDMA_OP_READ,
			.target = peer->descriptor,
			.parts = &flight->part,
			.n_parts = 1,
			.id = i + 1,
			.deadline_ns = INT64_MAX,
			.done = flight_done,
		};
		CU_ASSERT_EQUAL_FATAL(bh_rdma_engine_submit(here.engine, &flight->transfer), 0);
	}
}

static uint32_t judge(bool killed)
{
	uint32_t n_well = 0, n_wrong = 0;

	for (uint32_t i = 0; i < IN_FLIGHT; i++) {
		const struct flight *flight = &flights[i];
		bh_status status = flight->status;
		const uint8_t *got = flight->part.local;
		uint64_t remote = flight->part.remote;

		n_wrong += flight->n_done != 1;
		n_well += status == 0;
		if (status == 0 && i % 2 == 0)
			n_wrong += got[0] != (uint8_t)(remote * 31 >> 3) ||
				   got[flight->part.length - 1] !=
					   (uint8_t)((remote + flight->part.length - 1) * 31 >> 3);
		n_wrong +=
			status != 0 && (!killed || (status != -ECONNREFUSED &&
						    status != -ECONNRESET && status != -ETIMEDOUT));
	}
	CU_ASSERT_EQUAL(n_wrong, 0);
	return n_well;
}

static void *run(void *user)
{
	(void)user;
	bh_rdma_engine_run(here.engine, stop_fd);
	return NULL;
}

static void a_killed_peer_harms_nobody(void)
{
	const char *text = getenv("RDMA_KILLS");
	uint32_t n_kills = text ? (uint32_t)strtoul(text, NULL, 10) : 10;
	uint64_t random = 20261201;
	uint32_t n_well = 0;
	struct peer peer, next;
	pthread_t thread;

	local = malloc((size_t)IN_FLIGHT * LARGEST);
	stop_fd = eventfd(0, EFD_CLOEXEC);
	CU_ASSERT_FATAL(local && stop_fd >= 0 && side_open(&here, 1));
	if (here.transport->needs_memory)
		CU_ASSERT_EQUAL_FATAL(here.transport->ops->register_memory(
					      here.transport, local, (size_t)IN_FLIGHT * LARGEST, 0,
					      &local_memory, NULL),
				      0);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, run, NULL), 0);
	CU_ASSERT_FATAL(peer_start(&next));
	for (uint32_t i = 0; i < n_kills; i++) {
		peer = next;
		CU_ASSERT_FATAL(peer_ready(&peer) && peer_start(&next));
		fly(&peer, &random);
		CU_ASSERT_TRUE_FATAL(wait_done((uint32_t)(next_random(&random) % IN_FLIGHT)));
		peer_kill(&peer);
		CU_ASSERT_TRUE_FATAL(wait_done(IN_FLIGHT));
		n_well += judge(true);
	}
	/* And the next one is served as if nothing had been. */
	CU_ASSERT_FATAL(peer_ready(&next));
	fly(&next, &random);
	CU_ASSERT_TRUE_FATAL(wait_done(IN_FLIGHT));
	CU_ASSERT_EQUAL(judge(false), IN_FLIGHT);
	peer_kill(&next);
	printf("# %u kills, %u of %u transfers ended well\n", n_kills, n_well, n_kills * IN_FLIGHT);

	CU_ASSERT_EQUAL(write(stop_fd, &(uint64_t){ 1 }, sizeof(uint64_t)), sizeof(uint64_t));
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(bh_rdma_engine_free(here.engine), 0);
	if (here.transport->needs_memory)
		(void)here.transport->ops->deregister(here.transport, &local_memory);
	here.transport->ops->close(here.transport);
	close(stop_fd);
	free(local);
}

static const struct bh_test tests[] = {
	{ "a peer killed with 1000 transfers in flight: each one outcome, and others are served",
	  a_killed_peer_harms_nobody },
};

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "--serve") == 0)
		return serve();
	return bh_tap_main(argc, argv, TRANSPORT_NAME, tests, BH_ARRAY_LEN(tests));
}
