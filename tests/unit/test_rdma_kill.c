/* SPDX-License-Identifier: BSD-3-Clause */
/* test_rdma_kill - the engine over a transport, between processes, one of which is killed: compiled with
 * -DTRANSPORT=bh_rdma_software or -DTRANSPORT=bh_rdma_verbs.
 *
 * A peer is this program run again. With --serve it says on its standard output how it can be reached,
 * and serves until it is killed. With --load N it is told on its standard input what to reach, and does N
 * transfers one behind the other, many at a time; of each that is done it says a byte. RDMA_KILLS=n kills
 * so many of each. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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
/* Of a peer that loads. */
#define LANES 64u
#define ENDLESS "4294967295"
/* On both sides of a region that others write to. */
#define FENCE UINT64_C(65536)

static uint64_t real_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint8_t pattern(uint64_t at)
{
	return (uint8_t)(at * 31 >> 3);
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

static struct bh_rdma_descriptor descriptor_of(const struct side *side,
					       const struct bh_rdma_memory *memory)
{
	struct bh_rdma_descriptor descriptor;

	memset(&descriptor, 0, sizeof(descriptor)); /* it is sent as it lies */
	descriptor.kind = side->transport->kind;
	descriptor.access = BH_RDMA_READ | BH_RDMA_WRITE;
	descriptor.instance = side->instance;
	descriptor.base = memory->base;
	descriptor.length = memory->length;
	descriptor.key = memory->key;
	descriptor.address = side->transport->address;
	return descriptor;
}

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
		data[i] = pattern(i);
	descriptor = descriptor_of(&side, &memory);
	if (write(STDOUT_FILENO, &descriptor, sizeof(descriptor)) != sizeof(descriptor))
		return 1;
	bh_rdma_engine_run(side.engine, never);
	return 0;
}

struct peer {
	pid_t pid;
	int socket; /* its standard input and output */
	struct bh_rdma_descriptor descriptor;
};

static bool peer_start(struct peer *peer, const char *how, const char *much)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return false;
	peer->pid = fork();
	if (peer->pid ==
	    0) { /* nothing but what is safe behind the fork of a process with threads */
		dup2(ends[1], STDIN_FILENO);
		dup2(ends[1], STDOUT_FILENO);
		execl("/proc/self/exe", "test_rdma_kill", how, much, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	peer->socket = ends[0];
	return peer->pid > 0;
}

static bool read_whole(int fd, void *to, size_t size)
{
	size_t got = 0;
	ssize_t n;

	while (got < size) {
		n = read(fd, (char *)to + got, size - got);
		if (n <= 0)
			return false;
		got += (size_t)n;
	}
	return true;
}

static bool peer_ready(struct peer *peer)
{
	return read_whole(peer->socket, &peer->descriptor, sizeof(peer->descriptor));
}

/* Returns how it ended. */
static int peer_wait(struct peer *peer)
{
	int status = -1;

	waitpid(peer->pid, &status, 0);
	close(peer->socket);
	return status;
}

static void peer_kill(struct peer *peer)
{
	kill(peer->pid, SIGKILL);
	(void)peer_wait(peer);
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
static void aim(struct flight *flight, uint32_t i, const struct side *side,
		const struct bh_rdma_descriptor *target, uint64_t *random)
{
	uint64_t length = 1 + next_random(random) % (i % 10 == 0 ? LARGEST : 512);
	uint64_t half = REGION / 2 * (i % 2);

	*flight = (struct flight){ 0 };
	flight->part = (struct bh_rdma_part){
		.remote = half + next_random(random) % (REGION / 2 - length),
		.local = local + (uint64_t)i * LARGEST,
		.length = length,
		.memory = side->transport->needs_memory ? &local_memory : NULL,
	};
	flight->transfer = (struct bh_rdma_transfer){
		.op = i % 2 ? BH_RDMA_OP_WRITE : BH_RDMA_OP_READ,
		.target = *target,
		.parts = &flight->part,
		.n_parts = 1,
		.id = i + 1,
		.deadline_ns = INT64_MAX,
	};
}

static void fly(const struct peer *peer, uint64_t *random)
{
	n_done = 0;
	for (uint32_t i = 0; i < IN_FLIGHT; i++) {
		aim(&flights[i], i, &here, &peer->descriptor, random);
		flights[i].transfer.done = flight_done;
		CU_ASSERT_EQUAL_FATAL(bh_rdma_engine_submit(here.engine, &flights[i].transfer), 0);
	}
}

/* What was read is what is there. */
static bool is_pattern(const struct flight *flight)
{
	const uint8_t *got = flight->part.local;
	uint64_t last = flight->part.length - 1;

	return got[0] == pattern(flight->part.remote) &&
	       got[last] == pattern(flight->part.remote + last);
}

static uint32_t judge(bool killed)
{
	uint32_t n_well = 0, n_wrong = 0;

	for (uint32_t i = 0; i < IN_FLIGHT; i++) {
		const struct flight *flight = &flights[i];
		bh_status status = flight->status;

		n_wrong += flight->n_done != 1;
		n_well += status == 0;
		if (status == 0 && i % 2 == 0)
			n_wrong += !is_pattern(flight);
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

/* `n_lanes` times LARGEST bytes of local memory, and the engine's thread. */
static bool here_open(uint64_t instance, uint32_t n_lanes)
{
	const struct bh_rdma_transport_ops *ops = &TRANSPORT;

	local = calloc(n_lanes, LARGEST);
	stop_fd = eventfd(0, EFD_CLOEXEC);
	if (!local || stop_fd < 0 || !side_open(&here, instance))
		return false;
	return !here.transport->needs_memory ||
	       ops->register_memory(here.transport, local, (size_t)n_lanes * LARGEST, 0,
				    &local_memory, NULL) == 0;
}

/* Returns how many transfers the transport never gave back. */
static uint32_t here_close(void)
{
	uint32_t n_lost = bh_rdma_engine_free(here.engine);

	if (here.transport->needs_memory)
		(void)here.transport->ops->deregister(here.transport, &local_memory);
	here.transport->ops->close(here.transport);
	close(stop_fd);
	free(local);
	return n_lost;
}

static uint32_t kills(void)
{
	const char *text = getenv("RDMA_KILLS");

	return text ? (uint32_t)strtoul(text, NULL, 10) : 10;
}

static void a_killed_peer_harms_nobody(void)
{
	uint32_t n_kills = kills();
	uint64_t random = 20261201;
	uint32_t n_well = 0;
	struct peer peer, next;
	pthread_t thread;

	CU_ASSERT_FATAL(here_open(1, IN_FLIGHT));
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, run, NULL), 0);
	CU_ASSERT_FATAL(peer_start(&next, "--serve", NULL));
	for (uint32_t i = 0; i < n_kills; i++) {
		peer = next;
		CU_ASSERT_FATAL(peer_ready(&peer) && peer_start(&next, "--serve", NULL));
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
	CU_ASSERT_EQUAL(here_close(), 0);
}

/* ---- the peer that loads ------------------------------------------------------------------------ */

static struct {
	struct bh_rdma_descriptor target;
	uint64_t random;
	uint32_t n_asked, n_begun, n_ended, n_wrong;
} load;

static void load_next(struct flight *flight);

/* On the engine's thread, which is this program's only one. */
static void load_done(struct bh_rdma_transfer *transfer, bh_status status,
		      const struct bh_rdma_fault *fault, uint32_t failed)
{
	struct flight *flight = bh_container_of(transfer, struct flight, transfer);

	(void)failed;
	if (status < 0)
		fprintf(stderr, "# a transfer: %d %s\n", status, fault ? fault->text : "");
	load.n_wrong += status < 0 || (transfer->op == BH_RDMA_OP_READ && !is_pattern(flight)) ||
			write(STDOUT_FILENO, "", 1) != 1;
	if (++load.n_ended == load.n_asked || load.n_wrong > 0)
		load.n_wrong += write(stop_fd, &(uint64_t){ 1 }, sizeof(uint64_t)) < 0;
	else if (load.n_begun < load.n_asked)
		load_next(flight);
}

static void load_next(struct flight *flight)
{
	aim(flight, (uint32_t)(flight - flights), &here, &load.target, &load.random);
	flight->transfer.done = load_done;
	load.n_begun++;
	(void)bh_rdma_engine_submit(here.engine, &flight->transfer);
}

static int put_load(const char *much)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!here_open((uint64_t)getpid(), LANES) ||
	    !read_whole(STDIN_FILENO, &load.target, sizeof(load.target)))
		return 1;
	load.n_asked = (uint32_t)strtoul(much, NULL, 10);
	load.random = (uint64_t)getpid();
	for (uint32_t i = 0; i < LANES; i++)
		load_next(&flights[i]);
	bh_rdma_engine_run(here.engine, stop_fd);
	return here_close() > 0 || load.n_wrong > 0;
}

/* ---- the owner ----------------------------------------------------------------------------------- */

struct owner {
	uint8_t *whole; /* FENCE, the region, FENCE */
	struct bh_rdma_memory memory;
	uint8_t *kept; /* the region when it had ended */
};

static uint32_t entries_of(const char *directory)
{
	DIR *dir = opendir(directory);
	uint32_t n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static uint32_t mappings(void)
{
	FILE *file = fopen("/proc/self/maps", "re");
	uint32_t n = 0;
	int c;

	while (file && (c = fgetc(file)) != EOF)
		n += c == '\n';
	if (file)
		fclose(file);
	return n;
}

static uint64_t links_in(void)
{
	struct bh_rdma_counts counts;

	bh_rdma_engine_counts(here.engine, &counts);
	return counts.links_in;
}

/* Its engine notices that the peer has gone. */
static bool wait_no_links(void)
{
	uint64_t until = real_now() + 60 * (uint64_t)S;

	while (links_in() > 0) {
		if (real_now() > until)
			return false;
		nanosleep(&(struct timespec){ .tv_nsec = MS }, NULL);
	}
	return true;
}

static void owner_begin(struct owner *owner)
{
	for (uint64_t i = 0; i < REGION; i++)
		owner->whole[FENCE + i] = pattern(i);
	CU_ASSERT_EQUAL_FATAL(here.transport->ops->register_memory(
				      here.transport, owner->whole + FENCE, REGION,
				      BH_RDMA_READ | BH_RDMA_WRITE, &owner->memory, NULL),
			      0);
}

static void revoked(struct bh_rdma_revoke *revoke)
{
	(void)revoke;
	pthread_mutex_lock(&lock);
	n_done++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* As a region is closed: in bounded time, whatever its peer was about. */
static void owner_end(struct owner *owner)
{
	struct bh_rdma_revoke revoke = { .done = revoked };

	n_done = 0;
	if (!here.transport->ops->deregister(here.transport, &owner->memory)) {
		CU_ASSERT_EQUAL_FATAL(bh_rdma_engine_revoke(here.engine, &revoke), 0);
		CU_ASSERT_TRUE_FATAL(wait_done(1));
	}
	memcpy(owner->kept, owner->whole + FENCE, REGION);
}

static bool is_filled(const uint8_t *bytes, uint64_t n, uint8_t with)
{
	for (uint64_t i = 0; i < n; i++)
		if (bytes[i] != with)
			return false;
	return true;
}

/* Not a byte beside it, nor of what was only read, nor of any since its end. */
static void owner_check(const struct owner *owner)
{
	uint64_t n_wrong = 0;

	CU_ASSERT_TRUE(is_filled(owner->whole, FENCE, 0xa5));
	CU_ASSERT_TRUE(is_filled(owner->whole + FENCE + REGION, FENCE, 0xa5));
	for (uint64_t i = 0; i < REGION / 2; i++)
		n_wrong += owner->whole[FENCE + i] != pattern(i);
	CU_ASSERT_EQUAL(n_wrong, 0);
	CU_ASSERT_EQUAL(memcmp(owner->kept, owner->whole + FENCE, REGION), 0);
}

static void owner_tell(const struct owner *owner, const struct peer *peer)
{
	struct bh_rdma_descriptor descriptor = descriptor_of(&here, &owner->memory);

	CU_ASSERT_EQUAL_FATAL(send(peer->socket, &descriptor, sizeof(descriptor), MSG_NOSIGNAL),
			      sizeof(descriptor));
}

/* A random moment: before its link is there, while that is made, or after so many transfers. */
static uint32_t wait_moment(const struct peer *peer, uint64_t *random)
{
	uint32_t n = next_random(random) % 4 == 0 ? 0 : 1 + (uint32_t)(next_random(random) % 2000);
	char said[2000];

	if (n == 0)
		nanosleep(&(struct timespec){ .tv_nsec = (long)(next_random(random) % 20) * MS },
			  NULL);
	else
		CU_ASSERT_TRUE_FATAL(read_whole(peer->socket, said, n));
	return n;
}

static void a_killed_initiator_harms_nobody(void)
{
	uint32_t n_kills = kills(), n_transfers = 0, n_fds = 0, n_maps = 0;
	struct owner owner = { .whole = malloc(2 * FENCE + REGION), .kept = malloc(REGION) };
	uint64_t random = 20261202;
	struct peer peer, next;
	pthread_t thread;
	char said[1000];

	CU_ASSERT_FATAL(owner.whole && owner.kept && here_open(1, 1));
	memset(owner.whole, 0xa5, 2 * FENCE + REGION);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, run, NULL), 0);
	CU_ASSERT_FATAL(peer_start(&next, "--load", ENDLESS));
	for (uint32_t i = 0; i < n_kills; i++) {
		peer = next;
		CU_ASSERT_FATAL(peer_start(&next, "--load", i + 1 < n_kills ? ENDLESS : "1000"));
		owner_begin(&owner);
		owner_tell(&owner, &peer);
		n_transfers += wait_moment(&peer, &random);
		peer_kill(&peer);
		if (i % 2 == 0)
			CU_ASSERT_TRUE_FATAL(wait_no_links());
		owner_end(&owner);
		CU_ASSERT_TRUE_FATAL(wait_no_links());
		owner_check(&owner);
		if (i == 4) { /* by then it has what it keeps */
			n_fds = entries_of("/proc/self/fd");
			n_maps = mappings();
		}
	}
	if (n_kills > 5) {
		CU_ASSERT(entries_of("/proc/self/fd") <= n_fds + 2);
		CU_ASSERT(mappings() <= n_maps + 4);
	}
	printf("# %u initiators killed behind %u transfers; descriptors %u, then %u; mappings %u, "
	       "then %u\n",
	       n_kills, n_transfers, n_fds, entries_of("/proc/self/fd"), n_maps, mappings());
	/* And the next one finds all as if nothing had been. */
	owner_begin(&owner);
	owner_tell(&owner, &next);
	CU_ASSERT_TRUE(read_whole(next.socket, said, sizeof(said)));
	CU_ASSERT_EQUAL(peer_wait(&next), 0);
	owner_end(&owner);
	owner_check(&owner);

	CU_ASSERT_EQUAL(write(stop_fd, &(uint64_t){ 1 }, sizeof(uint64_t)), sizeof(uint64_t));
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(here_close(), 0);
	free(owner.whole);
	free(owner.kept);
}

static const struct bh_test tests[] = {
	{ "a peer killed with 1000 transfers in flight: each one outcome, and others are served",
	  a_killed_peer_harms_nobody },
	{ "an initiator killed at any moment: its links end, regions end in time, nothing is left "
	  "of it",
	  a_killed_initiator_harms_nobody },
};

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "--serve") == 0)
		return serve();
	if (argc == 3 && strcmp(argv[1], "--load") == 0)
		return put_load(argv[2]);
	return bh_tap_main(argc, argv, TRANSPORT_NAME, tests, BH_ARRAY_LEN(tests));
}
