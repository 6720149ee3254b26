/* SPDX-License-Identifier: BSD-3-Clause */
/* test_rdma_engine - the suite of plugins/rdma/engine.c and its parts, over a network in memory.
 *
 * First what must hold whatever happens, over thousands of random schedules on a clock that the test
 * moves; then each promise by itself; then threads. RDMA_ENGINE_SEED=n runs that schedule alone,
 * RDMA_ENGINE_SCHEDULES=n so many. */
#include "config.h"

#include "plugins/rdma/engine.h"

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "plugins/rdma/engine_private.h"
#include "tests/unit/rdma_net.h"
#include "tests/unit/tap.h"

#define MS INT64_C(1000000)
#define S INT64_C(1000000000)

static int64_t clock_ns; /* of the tests that have no threads */

static uint64_t virtual_now(void)
{
	return (uint64_t)clock_ns;
}

static const struct bh_rdma_engine_options presets = {
	.connect_timeout_ns = 300 * MS,
	.connect_retries = 3,
	.retry_pause_ns = 10 * MS,
	.abort_timeout_ns = 200 * MS,
	.revoke_timeout_ns = 500 * MS,
};

/* ---- a world of engines ---------------------------------------------------------------------------- */

#define HOSTS 4u
#define REGION 4096u /* bytes of a region */
#define REGIONS 64u  /* of a host, over its life */
#define TRANSFERS 400u
#define SLOT 512u /* bytes of a transfer's local memory */
#define PARTS 4u

enum region_state { REGION_NONE, REGION_OPEN, REGION_CLOSING, REGION_CLOSED };

struct region {
	struct bh_rdma_revoke revoke;
	struct bh_rdma_memory memory;
	uint32_t access;
	enum region_state state;
	uint32_t used; /* bytes given to transfers */
	uint32_t n_done;
	struct world *world;
	bool killed; /* with its host: the network ends what is under way, not the revocation */
};

struct host {
	struct net_node *node;
	struct bh_rdma_engine *engine;
	uint64_t instance;
	struct region regions[REGIONS];
	uint32_t n_regions;
	uint32_t n_lives;
};

struct job {
	struct bh_rdma_transfer transfer;
	struct bh_rdma_part parts[PARTS];
	struct world *world;
	struct host *to;
	struct region *region;
	uint32_t host, remote, bytes;
	bool guilty, cancelled, timed, stale;
	uint32_t n_done;
	bh_status status;
	char words[256];
	int64_t done_ns;
};

struct world {
	struct net *net;
	struct host hosts[HOSTS];
	uint32_t n_hosts;
	struct job *jobs;
	uint32_t n_jobs;
	uint8_t *local;	 /* SLOT bytes a job */
	uint8_t *memory; /* REGION bytes a region, REGIONS a host */
	uint64_t random, seed, instance;
	bool killed; /* any host, or links may fail for other reasons than drops */
	bool may_lose;
	uint32_t n_faults;
	char fault[256];
};

static uint64_t world_random(struct world *world)
{
	world->random ^= world->random << 13;
	world->random ^= world->random >> 7;
	world->random ^= world->random << 17;
	return world->random;
}

static uint32_t pick(struct world *world, uint32_t n)
{
	return (uint32_t)(world_random(world) % n);
}

__attribute__((format(printf, 2, 3))) static void breach(struct world *world, const char *format,
							 ...)
{
	va_list arguments;

	if (world->n_faults++ > 0)
		return;
	va_start(arguments, format);
	vsnprintf(world->fault, sizeof(world->fault), format, arguments);
	va_end(arguments);
}

/* Whatever the network reads or writes must still be somebody's. */
static void world_touch(void *user, const struct net_node *node, const void *data, uint64_t length,
			bool written, bool remote)
{
	struct world *world = user;
	const uint8_t *at = data;
	const struct job *job;

	(void)node;
	if (!remote) {
		if (at < world->local || at + length > world->local + TRANSFERS * SLOT) {
			breach(world, "local memory outside of all");
			return;
		}
		job = &world->jobs[(uint32_t)(at - world->local) / SLOT];
		if (job->n_done)
			breach(world,
			       "SUP-10: local memory of job %u was touched behind its done()",
			       (uint32_t)(job - world->jobs));
		return;
	}
	uint32_t index = (uint32_t)(at - world->memory) / REGION;
	struct region *region = &world->hosts[index / REGIONS].regions[index % REGIONS];
	uint32_t offset = (uint32_t)(at - world->memory) % REGION;

	if (region->state == REGION_CLOSED || region->state == REGION_NONE)
		breach(world, "a region was touched behind its revocation's done()");
	for (uint32_t i = 0; written && i < world->n_jobs; i++) {
		job = &world->jobs[i];
		if (job->region == region && !job->guilty && job->n_done && job->status == 0 &&
		    offset < job->remote + job->bytes && offset + length > job->remote)
			breach(world, "a write of job %u was carried out again behind its done()",
			       i);
	}
}

static void world_log(void *user, uint32_t level, const char *message, const struct bh_fact *facts,
		      uint32_t n_facts)
{
	(void)user;
	if (!getenv("RDMA_ENGINE_LOG"))
		return;
	printf("# %lld level %u %s", (long long)clock_ns, level, message);
	for (uint32_t i = 0; i < n_facts; i++)
		printf(" %s=%s", facts[i].key, facts[i].text ? facts[i].text : "");
	printf("\n");
}

static void host_start(struct world *world, uint32_t index,
		       const struct bh_rdma_engine_options *options)
{
	struct host *host = &world->hosts[index];
	struct bh_rdma_engine_calls calls = { .now_ns = virtual_now, .log = world_log };
	bh_status status;

	host->node = net_node_new(world->net, index);
	host->instance = ++world->instance;
	host->n_lives++;
	status = bh_rdma_engine_new(net_transport(host->node), host->instance, options, &calls,
				    &host->engine);
	CU_ASSERT_EQUAL_FATAL(status, 0);
}

static void world_new(struct world *world, uint64_t seed, uint32_t n_hosts, struct net_options net,
		      const struct bh_rdma_engine_options *options)
{
	memset(world, 0, sizeof(*world));
	clock_ns = 1000 * S;
	world->seed = seed;
	world->random = seed * UINT64_C(0xd1342543de82ef95) | 1;
	world->jobs = calloc(TRANSFERS, sizeof(*world->jobs));
	world->local = calloc(TRANSFERS, SLOT);
	world->memory = calloc(HOSTS * REGIONS, REGION);
	net.seed = seed;
	net.now_ns = virtual_now;
	net.touch = world_touch;
	net.user = world;
	world->net = net_new(&net);
	world->n_hosts = n_hosts;
	world->instance = 100;
	for (uint32_t i = 0; i < n_hosts; i++)
		host_start(world, i, options);
}

/* Turns every engine as long as anything happens at this moment. */
static void world_settle(struct world *world)
{
	bool any = true;

	for (uint32_t rounds = 0; any && rounds < 100000; rounds++) {
		any = false;
		for (uint32_t i = 0; i < world->n_hosts; i++)
			if (world->hosts[i].engine)
				any |= bh_rdma_engine_turn(world->hosts[i].engine);
	}
}

static int64_t world_next(struct world *world)
{
	int64_t next = net_next_ns(world->net);

	for (uint32_t i = 0; i < world->n_hosts; i++) {
		int64_t at = world->hosts[i].engine ? bh_rdma_engine_next_ns(world->hosts[i].engine)
						    : INT64_MAX;

		next = at < next ? at : next;
	}
	return next;
}

/* false: nothing will ever happen any more. */
static bool world_step(struct world *world)
{
	int64_t next = world_next(world);

	if (next == INT64_MAX)
		return false;
	clock_ns = next > clock_ns ? next : clock_ns + 1;
	world_settle(world);
	return true;
}

static void world_run(struct world *world, int64_t ns)
{
	int64_t until = clock_ns + ns;

	world_settle(world);
	while (world_next(world) <= until && world_step(world))
		;
	clock_ns = until > clock_ns ? until : clock_ns;
	world_settle(world);
}

static uint32_t world_waiting(const struct world *world)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < world->n_jobs; i++)
		n += world->jobs[i].n_done == 0;
	return n;
}

static void world_finish(struct world *world, int64_t most_ns)
{
	int64_t until = clock_ns + most_ns;

	world_settle(world);
	while (world_waiting(world) > 0 && clock_ns < until && world_step(world))
		;
}

/* Ends an engine as run() does, while the others live on. Returns what was lost. */
static uint32_t host_end(struct world *world, struct host *host)
{
	uint32_t lost;
	int64_t until = clock_ns + 10 * S;

	bh_rdma_engine_end(host->engine);
	while (!bh_rdma_engine_ended(host->engine) && clock_ns < until) {
		world_settle(world);
		if (!bh_rdma_engine_ended(host->engine))
			world_step(world);
	}
	if (clock_ns >= until)
		breach(world, "the end of an engine took more than 10 s");
	lost = bh_rdma_engine_free(host->engine);
	host->engine = NULL;
	return lost;
}

static void world_free(struct world *world)
{
	for (uint32_t i = 0; i < world->n_hosts; i++)
		if (world->hosts[i].engine)
			host_end(world, &world->hosts[i]);
	net_free(world->net);
	free(world->jobs);
	free(world->local);
	free(world->memory);
}

static struct region *region_open(struct world *world, uint32_t index, uint32_t access)
{
	struct host *host = &world->hosts[index];
	struct region *region = &host->regions[host->n_regions];
	uint8_t *data = world->memory + (uint64_t)(index * REGIONS + host->n_regions) * REGION;
	struct bh_rdma_transport *transport = net_transport(host->node);

	if (host->n_regions == REGIONS)
		return NULL;
	host->n_regions++;
	*region = (struct region){ .access = access, .state = REGION_OPEN, .world = world };
	for (uint32_t i = 0; i < REGION; i++)
		data[i] = (uint8_t)world_random(world);
	if (transport->ops->register_memory(transport, data, REGION, access, &region->memory, NULL))
		breach(world, "register_memory failed");
	return region;
}

static void region_closed(struct bh_rdma_revoke *revoke)
{
	struct region *region = bh_container_of(revoke, struct region, revoke);

	if (region->n_done++ > 0)
		breach(region->world, "a revocation's done() came twice");
	region->state = REGION_CLOSED;
}

static void region_close(struct world *world, struct host *host, struct region *region)
{
	struct bh_rdma_transport *transport = net_transport(host->node);

	(void)world;
	region->state = REGION_CLOSING;
	region->revoke.done = region_closed;
	transport->ops->deregister(transport, &region->memory);
	(void)bh_rdma_engine_revoke(host->engine, &region->revoke);
}

static void job_done(struct bh_rdma_transfer *transfer, bh_status status,
		     const struct bh_rdma_fault *fault, uint32_t failed)
{
	struct job *job = bh_container_of(transfer, struct job, transfer);
	struct world *world = job->world;
	uint32_t offset = 0;

	if (job->n_done++ > 0)
		breach(world, "done() came twice");
	job->status = status;
	job->done_ns = clock_ns;
	if (status && (!fault || !fault->text[0] || !fault->id[0]))
		breach(world, "a failure without words");
	if (status && failed >= transfer->n_parts)
		breach(world, "a failed part that there is not");
	if (fault)
		memcpy(job->words, fault->text, sizeof(job->words));
	if (status == 0 && job->guilty)
		breach(world, "a guilty transfer ended well");
	for (uint32_t i = 0; status == 0 && !job->guilty && i < transfer->n_parts; i++) {
		const struct bh_rdma_part *part = &transfer->parts[i];

		if (memcmp(part->local, (char *)job->region->memory.data + part->remote,
			   part->length) != 0)
			breach(world, "job %u ended well and its bytes differ",
			       (uint32_t)(job - world->jobs));
		offset += (uint32_t)part->length;
	}
	(void)offset;
}

enum guilt { INNOCENT, WRONG_KEY, PAST_END, NO_RIGHT };

/* A transfer between `from` and a region, at memory of its own on both sides. */
static struct job *job_submit(struct world *world, uint32_t from, uint32_t to,
			      struct region *region, enum bh_rdma_op op, uint32_t bytes,
			      enum guilt guilt, int64_t deadline)
{
	uint32_t index = world->n_jobs, done = 0;
	struct job *job = &world->jobs[index];
	uint8_t *local = world->local + (uint64_t)index * SLOT;

	if (index == TRANSFERS || !world->hosts[from].engine || region->used + bytes > REGION)
		return NULL;
	world->n_jobs++;
	*job = (struct job){
		.world = world,
		.host = from,
		.to = &world->hosts[to],
		.region = region,
		.remote = region->used,
		.bytes = bytes,
		.guilty = guilt != INNOCENT,
		.timed = deadline != INT64_MAX,
	};
	region->used += bytes;
	job->transfer = (struct bh_rdma_transfer){
		.op = op,
		.target = { .kind = BH_RDMA_SOFTWARE,
			    .access = region->access,
			    .instance = world->hosts[to].instance,
			    .base = region->memory.base,
			    .length = REGION,
			    .key = region->memory.key,
			    .address = net_address(to) },
		.parts = job->parts,
		.id = index + 1,
		.deadline_ns = deadline,
		.done = job_done,
	};
	for (uint32_t i = 0; i < bytes; i++)
		local[i] = (uint8_t)world_random(world);
	for (uint32_t n = 1 + pick(world, PARTS); job->transfer.n_parts < n;) {
		uint32_t i = job->transfer.n_parts++, left = bytes - done;
		uint32_t length = i + 1 == n ? left : pick(world, left + 1);

		job->parts[i] = (struct bh_rdma_part){ .remote = job->remote + done,
						       .local = local + done,
						       .length = length };
		done += length;
	}
	if (guilt == WRONG_KEY)
		job->transfer.target.key ^= 1;
	if (guilt == PAST_END)
		job->transfer.target.base += REGION - job->remote;
	(void)NO_RIGHT;
	if (bh_rdma_engine_submit(world->hosts[from].engine, &job->transfer)) {
		breach(world, "a submission was refused");
		job->n_done = 1;
	}
	return job;
}

/* ---- whatever happens ------------------------------------------------------------------------------ */

static bool status_of_links(bh_status status)
{
	return status == -ECONNREFUSED || status == -ECONNRESET || status == -ETIMEDOUT ||
	       status == -EHOSTUNREACH;
}

static void judge(struct world *world, const struct job *job)
{
	uint32_t index = (uint32_t)(job - world->jobs);
	bool closed = job->region->state != REGION_OPEN;

	if (job->n_done != 1) {
		breach(world, "job %u: done() came %u times", index, job->n_done);
		return;
	}
	if (job->status == 0)
		return;
	if (job->status == -ECANCELED && !job->cancelled && !job->timed)
		breach(world, "job %u was cancelled by nobody: %s", index, job->words);
	else if (job->status == -EACCES && !job->guilty && !closed)
		breach(world, "job %u is innocent and was found guilty: %s", index, job->words);
	else if (job->status == -ESTALE && job->to->n_lives == 1)
		breach(world, "job %u: stale, and its peer is as it was", index);
	else if (status_of_links(job->status) && !world->killed)
		breach(world, "job %u failed for want of a link (%d): %s", index, job->status,
		       job->words);
	else if (job->status != -ECANCELED && job->status != -EACCES && job->status != -ESTALE &&
		 !status_of_links(job->status))
		breach(world, "job %u: status %d", index, job->status);
}

static void schedule_act(struct world *world, const struct bh_rdma_engine_options *options)
{
	uint32_t from = pick(world, world->n_hosts), to = pick(world, world->n_hosts);
	struct host *target = &world->hosts[to];
	struct region *region =
		target->n_regions ? &target->regions[pick(world, target->n_regions)] : NULL;
	uint32_t what = pick(world, 100);

	if (what < 60 && region && region->state != REGION_NONE && target->engine) {
		enum bh_rdma_op op = pick(world, 2) ? BH_RDMA_OP_READ : BH_RDMA_OP_WRITE;
		bool right =
			region->access & (op == BH_RDMA_OP_READ ? BH_RDMA_READ : BH_RDMA_WRITE);
		uint32_t bytes = pick(world, 8) == 0 ? pick(world, SLOT + 1) : pick(world, 64);
		enum guilt guilt = !right		  ? NO_RIGHT
				   : pick(world, 25) == 0 ? (pick(world, 2) ? WRONG_KEY : PAST_END)
							  : INNOCENT;
		int64_t deadline = pick(world, 12) == 0
					   ? clock_ns + (int64_t)pick(world, 40) * MS / 4
					   : INT64_MAX;

		if (region->state == REGION_OPEN && (bytes > 0 || guilt == INNOCENT))
			job_submit(world, from, to, region, op, bytes, guilt, deadline);
	} else if (what < 70) {
		if (target->engine)
			region_open(world, to, pick(world, 4) ? 3 : 1 + pick(world, 2));
	} else if (what < 76) {
		if (target->engine && region && region->state == REGION_OPEN)
			region_close(world, target, region);
	} else if (what < 82) {
		struct job *job = world->n_jobs ? &world->jobs[pick(world, world->n_jobs)] : NULL;

		if (job && world->hosts[job->host].engine) {
			job->cancelled = true;
			bh_rdma_engine_cancel(world->hosts[job->host].engine, job->transfer.id);
		}
	} else if (what < 84 && world->killed) {
		/* The host ends as a whole; another may come back at its place. */
		if (target->engine) {
			for (uint32_t i = 0; i < world->n_jobs; i++)
				world->jobs[i].cancelled |= world->jobs[i].host == to;
			host_end(world, target);
			for (uint32_t i = 0; i < target->n_regions; i++)
				if (target->regions[i].state == REGION_OPEN)
					target->regions[i].state = REGION_CLOSING;
			net_kill(target->node, pick(world, 3) == 0);
		}
		if (pick(world, 2)) {
			world_run(world, pick(world, 30) * MS);
			host_start(world, to, options);
		}
	} else if (what < 86) {
		if (world->hosts[from].engine && target->engine)
			net_drop_links(world->net, world->hosts[from].node, target->node, false);
	} else if (what < 96) {
		world_run(world, (int64_t)pick(world, 3000) * 1000);
	} else {
		/* One engine alone for a while: the others are slow. */
		for (uint32_t i = 0; i < 20 && target->engine; i++) {
			bh_rdma_engine_turn(target->engine);
			clock_ns += MS / 20;
		}
	}
}

static void revocations_judge(struct world *world)
{
	for (uint32_t h = 0; h < world->n_hosts; h++)
		for (uint32_t i = 0; i < world->hosts[h].n_regions; i++) {
			const struct region *region = &world->hosts[h].regions[i];

			if (region->revoke.done && region->n_done != 1)
				breach(world, "a revocation's done() came %u times",
				       region->n_done);
		}
}

static bool schedule(uint64_t seed)
{
	struct world world;
	struct bh_rdma_engine_options options = presets;
	struct net_options net = { .delay_ns = MS / 10 };
	const char *what;
	uint64_t r = seed * UINT64_C(0x9e3779b97f4a7c15);

	net.max_message = 16u << (r >> 60 & 3);
	net.max_outstanding = 1u + (r >> 56 & 15);
	net.max_reads = 1u + (r >> 52 & 3);
	net.names_guilty = r >> 51 & 1;
	net.strict_deregister = r >> 50 & 1;
	net.twice_percent = (r >> 39 & 3) == 0 ? 20 : 0;
	net.full_percent = (r >> 48 & 3) == 0 ? 30 : 0;
	net.drop_per_mille = (r >> 46 & 3) == 0 ? 10 : 0;
	options.idle_timeout_ns = (r >> 45 & 1) ? 5 * MS : 0;
	world_new(&world, seed, 2 + (r >> 44 & 1) + (r >> 43 & 1), net, &options);
	world.killed = (r >> 41 & 3) == 0;
	for (uint32_t i = 0; i < world.n_hosts; i++)
		region_open(&world, i, 3);
	for (uint32_t i = 0; i < 250 && world.n_faults == 0; i++)
		schedule_act(&world, &options);
	world_finish(&world, 600 * S);
	world_run(&world, 2 * S);
	for (uint32_t i = 0; i < world.n_jobs; i++)
		judge(&world, &world.jobs[i]);
	for (uint32_t i = 0; i < world.n_hosts; i++)
		if (world.hosts[i].engine && host_end(&world, &world.hosts[i]) != 0)
			breach(&world, "transfers were lost");
	revocations_judge(&world);
	if (net_violations(world.net, &what) > 0)
		breach(&world, "%s", what);
	if (world.n_faults > 0)
		printf("# seed %llu: %s\n", (unsigned long long)seed, world.fault);
	bool good = world.n_faults == 0;

	world_free(&world);
	return good;
}

static uint64_t from_environment(const char *name, uint64_t preset)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : preset;
}

static void whatever_happens(void)
{
	uint64_t first = from_environment("RDMA_ENGINE_SEED", 1);
	uint64_t n =
		getenv("RDMA_ENGINE_SEED") ? 1 : from_environment("RDMA_ENGINE_SCHEDULES", 2000);
	uint64_t n_bad = 0;

	for (uint64_t i = 0; i < n && n_bad < 5; i++)
		n_bad += !schedule(first + i);
	CU_ASSERT_EQUAL(n_bad, 0);
}

/* ---- each promise by itself -------------------------------------------------------------------------- */

static const struct net_options plain_net = {
	.delay_ns = MS / 10, .max_message = 64, .max_outstanding = 8, .max_reads = 4
};

/* Two hosts, one region on the second. */
static void pair_new(struct world *world, struct net_options net,
		     const struct bh_rdma_engine_options *options, struct region **ret_region)
{
	world_new(world, 7, 2, net, options);
	*ret_region = region_open(world, 1, 3);
}

static void pair_free(struct world *world)
{
	const char *what;

	CU_ASSERT_EQUAL(net_violations(world->net, &what), 0);
	if (world->n_faults)
		printf("# %s\n", world->fault);
	CU_ASSERT_EQUAL(world->n_faults, 0);
	world_free(world);
}

static struct job *put(struct world *world, struct region *region, uint32_t bytes)
{
	return job_submit(world, 0, 1, region, BH_RDMA_OP_WRITE, bytes, INNOCENT, INT64_MAX);
}

static struct job *fetch(struct world *world, struct region *region, uint32_t bytes)
{
	return job_submit(world, 0, 1, region, BH_RDMA_OP_READ, bytes, INNOCENT, INT64_MAX);
}

static struct bh_rdma_counts counts_of(const struct world *world, uint32_t host)
{
	struct bh_rdma_counts counts;

	bh_rdma_engine_counts(world->hosts[host].engine, &counts);
	return counts;
}

static void one_link_is_kept(void)
{
	struct world world;
	struct region *region;
	struct bh_rdma_counts counts;

	pair_new(&world, plain_net, &presets, &region);
	for (uint32_t i = 0; i < 10; i++) {
		put(&world, region, 100);
		fetch(&world, region, 100);
		world_finish(&world, S);
		CU_ASSERT_EQUAL(world_waiting(&world), 0);
	}
	CU_ASSERT_EQUAL(net_connects(world.hosts[0].node), 1);
	CU_ASSERT_EQUAL(net_connects(world.hosts[1].node), 0);
	counts = counts_of(&world, 0);
	CU_ASSERT_EQUAL(counts.links, 1);
	CU_ASSERT_EQUAL(counts.writes, 10);
	CU_ASSERT_EQUAL(counts.bytes_written, 1000);
	CU_ASSERT_EQUAL(counts.reads, 10);
	CU_ASSERT_EQUAL(counts.bytes_read, 1000);
	CU_ASSERT_EQUAL(counts.in_flight, 0);
	CU_ASSERT_EQUAL(counts.queued, 0);
	CU_ASSERT_EQUAL(counts_of(&world, 1).links_in, 1);
	pair_free(&world);
}

static void nothing_to_do_is_done(void)
{
	struct world world;
	struct region *region;
	struct job *job;

	pair_new(&world, plain_net, &presets, &region);
	job = put(&world, region, 0);
	bh_rdma_engine_turn(world.hosts[0].engine);
	CU_ASSERT_EQUAL(job->n_done, 1);
	CU_ASSERT_EQUAL(job->status, 0);
	CU_ASSERT_EQUAL(net_connects(world.hosts[0].node), 0);
	pair_free(&world);
}

static void queues_are_filled_and_not_overrun(void)
{
	struct world world;
	struct region *region;

	pair_new(&world, plain_net, &presets, &region);
	for (uint32_t i = 0; i < 6; i++) {
		put(&world, region, 512);
		if (i % 2)
			fetch(&world, region, 100);
	}
	world_finish(&world, S);
	CU_ASSERT_EQUAL(world_waiting(&world), 0);
	CU_ASSERT_EQUAL(net_most_outstanding(world.hosts[0].node), plain_net.max_outstanding);
	pair_free(&world);
}

static void a_small_one_overtakes_a_large_one(void)
{
	struct world world;
	struct region *region;
	struct net_options net = plain_net;
	struct job *large, *small;

	net.max_message = 4;
	pair_new(&world, net, &presets, &region);
	large = put(&world, region, 512);
	world_run(&world, MS);
	CU_ASSERT_EQUAL(large->n_done, 0);
	small = put(&world, region, 8);
	world_finish(&world, S);
	CU_ASSERT(large->n_done && small->n_done && small->done_ns < large->done_ns);
	pair_free(&world);
}

static void the_guilty_one_is_found(bool named, uint64_t most_links)
{
	struct world world;
	struct region *region;
	struct net_options net = plain_net;
	struct job *guilty;

	net.names_guilty = named;
	pair_new(&world, net, &presets, &region);
	for (uint32_t i = 0; i < 20; i++)
		put(&world, region, 40);
	guilty = job_submit(&world, 0, 1, region, BH_RDMA_OP_WRITE, 40, WRONG_KEY, INT64_MAX);
	for (uint32_t i = 0; i < 20; i++)
		fetch(&world, region, 40);
	world_finish(&world, 10 * S);
	for (uint32_t i = 0; i < world.n_jobs; i++)
		CU_ASSERT_EQUAL(world.jobs[i].status, &world.jobs[i] == guilty ? -EACCES : 0);
	CU_ASSERT(strstr(guilty->words, "write of") && strstr(guilty->words, "192.0.2.1:1"));
	CU_ASSERT(net_connects(world.hosts[0].node) <= most_links);
	CU_ASSERT_EQUAL(counts_of(&world, 0).errors, 1);
	pair_free(&world);
}

static void suspects_run_alone(void)
{
	struct world world;
	struct region *region;
	struct job *guilty;

	pair_new(&world, plain_net, &presets, &region);
	for (uint32_t i = 0; i < 10; i++)
		put(&world, region, 40);
	guilty = job_submit(&world, 0, 1, region, BH_RDMA_OP_WRITE, 40, WRONG_KEY, INT64_MAX);
	for (uint32_t i = 0; i < 10; i++) /* these are behind it when the link breaks */
		put(&world, region, 40);
	world_settle(&world);
	while (net_connects(world.hosts[0].node) < 2 && world_step(&world))
		;
	CU_ASSERT_EQUAL(net_connects(world.hosts[0].node), 2);
	CU_ASSERT_EQUAL(guilty->n_done, 0);
	/* What comes meanwhile waits. */
	while (!guilty->n_done && world_step(&world)) {
		put(&world, region, 8);
		CU_ASSERT(net_outstanding(world.hosts[0].node) <= 1);
	}
	world_finish(&world, S);
	for (uint32_t i = 0; i < world.n_jobs; i++)
		CU_ASSERT_EQUAL(world.jobs[i].status, &world.jobs[i] == guilty ? -EACCES : 0);
	pair_free(&world);
}

/* A request that was not alone all the time on the link that broke: nothing is proved. */
static void who_had_company_is_not_guilty_yet(void)
{
	struct world world;
	struct region *region;
	struct net_options net = plain_net;
	struct job *job;

	net.max_reads = 8;
	pair_new(&world, net, &presets, &region);
	put(&world, region, 1);
	world_finish(&world, S);
	do {
		put(&world, region, 1);
		job = put(&world, region, 1);
		world_settle(&world);
		while (net_outstanding(world.hosts[0].node) > 1 && world_step(&world))
			;
	} while (world_waiting(&world) != 1 && world.n_jobs < 100);
	CU_ASSERT_EQUAL(world_waiting(&world), 1);
	for (uint32_t i = 0; i < 2; i++) {
		net_drop_links(world.net, world.hosts[0].node, world.hosts[1].node, true);
		world_settle(&world);
		while (net_outstanding(world.hosts[0].node) == 0 && world_waiting(&world) > 0 &&
		       world_step(&world))
			;
	}
	world_finish(&world, S);
	CU_ASSERT_EQUAL(job->n_done, 1);
	CU_ASSERT_EQUAL(job->status, 0);
	pair_free(&world);
}

static void who_breaks_links_alone_is_guilty(void)
{
	/* The first link, and the two that it broke when it was alone on them; one more for the rest. */
	the_guilty_one_is_found(false, 4);
}

static void who_is_named_is_guilty_at_once(void)
{
	the_guilty_one_is_found(true, 2);
}

static void stale_descriptors_harm_nobody(void)
{
	struct world world;
	struct region *region;
	struct job *old[3], *now[3];

	pair_new(&world, plain_net, &presets, &region);
	for (uint32_t i = 0; i < 3; i++) {
		world.hosts[1].instance -= 50;
		old[i] = put(&world, region, 40);
		world.hosts[1].instance += 50;
		now[i] = put(&world, region, 40);
	}
	world.hosts[1].n_lives = 2;
	world_finish(&world, 3 * MS); /* no pause, no retry */
	for (uint32_t i = 0; i < 3; i++) {
		CU_ASSERT_EQUAL(old[i]->status, -ESTALE);
		CU_ASSERT_EQUAL(old[i]->n_done, 1);
		CU_ASSERT_EQUAL(now[i]->status, 0);
		CU_ASSERT_EQUAL(now[i]->n_done, 1);
	}
	CU_ASSERT_PTR_NOT_NULL(strstr(old[0]->words, "another process"));
	pair_free(&world);
}

static void a_peer_that_comes_back_is_reached(void)
{
	struct world world;
	struct region *region;
	struct job *job, *stale;

	pair_new(&world, plain_net, &presets, &region);
	put(&world, region, 40);
	world_finish(&world, S);

	/* Nobody there: as many attempts as the options say, then an end with the cause. */
	host_end(&world, &world.hosts[1]);
	region->state = REGION_CLOSED;
	net_kill(world.hosts[1].node, false);
	world_run(&world, 10 * MS);
	job = put(&world, region, 40);
	world_finish(&world, 10 * S);
	CU_ASSERT_EQUAL(job->status, -ECONNREFUSED);
	CU_ASSERT_EQUAL(net_connects(world.hosts[0].node), 1 + 1 + presets.connect_retries);

	/* Another instance: what is old is told so, what is new goes on. */
	host_start(&world, 1, &presets);
	world.hosts[1].instance--;
	stale = put(&world, region, 40);
	world.hosts[1].instance++;
	region = region_open(&world, 1, 3);
	job = put(&world, region, 40);
	world_finish(&world, 10 * S);
	CU_ASSERT_EQUAL(stale->status, -ESTALE);
	CU_ASSERT_EQUAL(job->status, 0);
	pair_free(&world);
}

/* A process that was replaced without a word: the link to it looks well. Only the one at its address
 * can tell. */
static void a_replaced_peer_is_noticed(void)
{
	struct world world;
	struct region *region, *new_region;
	struct job *old, *new;

	pair_new(&world, plain_net, &presets, &region);
	put(&world, region, 40);
	world_finish(&world, S);
	host_end(&world, &world.hosts[1]);
	CU_ASSERT_EQUAL(world_waiting(&world), 0);
	world_run(&world, 10 * MS);

	host_start(&world, 2, &presets); /* a third one, so that a link of ours stays up to it */
	world.n_hosts = 3;
	region = region_open(&world, 2, 3);
	old = job_submit(&world, 0, 2, region, BH_RDMA_OP_WRITE, 40, INNOCENT, INT64_MAX);
	world_finish(&world, S);
	CU_ASSERT_EQUAL(old->status, 0);
	net_kill(world.hosts[2].node, true); /* nobody hears of it */
	bh_rdma_engine_free(world.hosts[2].engine);
	world.hosts[2].engine = NULL;
	region->state = REGION_CLOSED;
	old = job_submit(&world, 0, 2, region, BH_RDMA_OP_WRITE, 40, INNOCENT, INT64_MAX);
	world_run(&world, 10 * MS);
	CU_ASSERT_EQUAL(old->n_done, 0); /* in flight into nowhere */
	host_start(&world, 2, &presets);
	new_region = region_open(&world, 2, 3);
	new = job_submit(&world, 0, 2, new_region, BH_RDMA_OP_WRITE, 40, INNOCENT, INT64_MAX);
	world_run(&world, 10 * MS);
	CU_ASSERT_EQUAL(new->n_done, 1);
	CU_ASSERT_EQUAL(new->status, 0);
	CU_ASSERT_EQUAL(old->n_done, 1);
	CU_ASSERT_EQUAL(old->status, -ESTALE);
	pair_free(&world);
}

/* What a peer that speaks the protocol by itself says, and what it hears: links.c. */
static void hello_make(uint8_t hello[BH_RDMA_HELLO_SIZE], uint64_t expected, uint64_t slot)
{
	const uint64_t words[3] = { 4711, expected, slot };

	memset(hello, 0, BH_RDMA_HELLO_SIZE);
	memcpy(hello, "BR\001\000\001", 5);
	for (uint32_t i = 0; i < 24; i++)
		hello[8 + i] = (uint8_t)(words[i / 8] >> (i % 8 * 8));
}

static uint32_t stranger_hears(struct world *world, struct net_node *stranger, uint64_t expected,
			       uint64_t slot, struct bh_rdma_event *ret_event)
{
	struct bh_rdma_transport *transport = net_transport(stranger);
	uint8_t hello[BH_RDMA_HELLO_SIZE];
	struct bh_rdma_address address = net_address(1);
	struct bh_rdma_link *link;
	uint32_t n = 0;

	hello_make(hello, expected, slot);
	CU_ASSERT_EQUAL_FATAL(transport->ops->connect(transport, &address, hello, &link, NULL), 0);
	for (uint32_t i = 0; n == 0 && i < 100; i++) {
		world_step(world);
		n = transport->ops->poll(transport, ret_event, 1);
	}
	if (n && ret_event->kind == BH_RDMA_REFUSED)
		transport->ops->release(transport, link);
	return n;
}

static void who_holds_no_descriptor_gets_no_link(void)
{
	static const uint64_t guesses[] = { 0, 1, UINT64_MAX };
	struct world world;
	struct region *region;
	struct net_node *stranger;
	struct bh_rdma_event event;
	uint64_t instance;

	pair_new(&world, plain_net, &presets, &region);
	instance = htole64(world.hosts[1].instance);
	stranger = net_node_new(world.net, 9);
	for (uint32_t i = 0; i < 3; i++) {
		CU_ASSERT_EQUAL(stranger_hears(&world, stranger, guesses[i], 0, &event), 1);
		CU_ASSERT_EQUAL(event.kind, BH_RDMA_REFUSED);
		CU_ASSERT_PTR_NULL(memmem(event.bytes, BH_RDMA_HELLO_SIZE, &instance, 8));
	}
	CU_ASSERT_EQUAL(counts_of(&world, 1).links_in, 0);
	CU_ASSERT_EQUAL(stranger_hears(&world, stranger, world.hosts[1].instance, 0, &event), 1);
	CU_ASSERT_EQUAL(event.kind, BH_RDMA_UP);
	CU_ASSERT_EQUAL(counts_of(&world, 1).links_in, 1);
	pair_free(&world);
}

static void links_of_peers_are_bounded(void)
{
	enum { MOST = 4096 };
	struct world world;
	struct region *region;
	struct net_node *stranger;
	struct bh_rdma_event event;
	uint32_t n_up = 0;

	pair_new(&world, plain_net, &presets, &region);
	stranger = net_node_new(world.net, 9);
	for (uint32_t i = 0; i < MOST + 2; i++)
		if (stranger_hears(&world, stranger, world.hosts[1].instance, i, &event))
			n_up += event.kind == BH_RDMA_UP;
	CU_ASSERT_EQUAL(n_up, MOST);
	CU_ASSERT_EQUAL(counts_of(&world, 1).links_in, MOST);
	/* With one that goes there is room for one. */
	net_kill(stranger, false);
	world_run(&world, 10 * MS);
	CU_ASSERT_EQUAL(counts_of(&world, 1).links_in, 0);
	put(&world, region, 40);
	world_finish(&world, S);
	CU_ASSERT_EQUAL(world.jobs[0].status, 0);
	pair_free(&world);
}

static void what_is_queued_ends_at_once(void)
{
	struct world world;
	struct region *region;
	struct job *cancelled, *late;
	int64_t at;

	pair_new(&world, plain_net, &presets, &region);
	net_silence(world.hosts[1].node, true);
	cancelled = put(&world, region, 40);
	at = clock_ns + 5 * MS;
	late = job_submit(&world, 0, 1, region, BH_RDMA_OP_WRITE, 40, INNOCENT, at);
	world_run(&world, MS);
	CU_ASSERT_EQUAL(cancelled->n_done + late->n_done, 0);
	bh_rdma_engine_cancel(world.hosts[0].engine, cancelled->transfer.id);
	bh_rdma_engine_cancel(world.hosts[0].engine, 12345);
	bh_rdma_engine_turn(world.hosts[0].engine);
	CU_ASSERT_EQUAL(cancelled->n_done, 1);
	CU_ASSERT_EQUAL(cancelled->status, -ECANCELED);
	world_run(&world, 4 * MS);
	CU_ASSERT_EQUAL(late->n_done, 1);
	CU_ASSERT_EQUAL(late->status, -ECANCELED);
	CU_ASSERT(late->done_ns <= at + MS / 10);
	CU_ASSERT(strstr(late->words, "deadline") && strstr(late->words, "0 of 40 bytes"));
	CU_ASSERT_EQUAL(counts_of(&world, 0).cancelled, 2);
	pair_free(&world);
}

static void what_is_posted_ends_with_its_link(void)
{
	struct world world;
	struct region *region;
	struct job *cancelled, *other;
	int64_t begin;

	pair_new(&world, plain_net, &presets, &region);
	put(&world, region, 40);
	world_finish(&world, S);
	net_silence(world.hosts[1].node, true);
	cancelled = put(&world, region, 40);
	other = put(&world, region, 40);
	world_run(&world, 5 * MS);
	CU_ASSERT(net_outstanding(world.hosts[0].node) >= 2);
	begin = clock_ns;
	bh_rdma_engine_cancel(world.hosts[0].engine, cancelled->transfer.id);
	world_run(&world, presets.abort_timeout_ns - MS);
	CU_ASSERT_EQUAL(cancelled->n_done, 0); /* SUP-10 */
	net_silence(world.hosts[1].node, false);
	world_finish(&world, 10 * S);
	CU_ASSERT_EQUAL(cancelled->status, -ECANCELED);
	CU_ASSERT(cancelled->done_ns <= begin + presets.abort_timeout_ns + MS);
	CU_ASSERT_EQUAL(other->status, 0);
	CU_ASSERT_EQUAL(counts_of(&world, 0).cut, 1);
	CU_ASSERT_EQUAL(counts_of(&world, 0).reconnects, 1);
	pair_free(&world);
}

static void what_comes_too_late_to_stop_is_well(void)
{
	struct world world;
	struct region *region;
	struct job *job;

	pair_new(&world, plain_net, &presets, &region);
	put(&world, region, 40);
	world_finish(&world, S);
	job = put(&world, region, 40);
	bh_rdma_engine_turn(world.hosts[0].engine);
	bh_rdma_engine_cancel(world.hosts[0].engine, job->transfer.id);
	world_finish(&world, S);
	CU_ASSERT_EQUAL(job->status, 0);
	pair_free(&world);
}

static void lost(uint32_t late_percent)
{
	struct world world;
	struct region *region;
	struct net_options net = plain_net;
	struct job *job[3];

	net.lose_percent = 100;
	net.late_percent = late_percent;
	pair_new(&world, net, &presets, &region);
	put(&world, region, 40);
	world_finish(&world, S);
	net_silence(world.hosts[1].node, true);
	for (uint32_t i = 0; i < 3; i++)
		job[i] = put(&world, region, 40);
	bh_rdma_engine_turn(world.hosts[0].engine);
	net_drop_links(world.net, world.hosts[0].node, world.hosts[1].node, false);
	net_silence(world.hosts[1].node, false);
	world_run(&world, 5 * S);
	for (uint32_t i = 0; i < 3; i++) {
		CU_ASSERT_EQUAL(job[i]->n_done, late_percent ? 1 : 0);
		CU_ASSERT_EQUAL(job[i]->status, late_percent ? -ECONNRESET : 0);
	}
	/* The link is made anew for what comes then. */
	CU_ASSERT_EQUAL(put(&world, region, 40)->n_done, 0);
	world_run(&world, S);
	CU_ASSERT_EQUAL(world.jobs[world.n_jobs - 1].n_done, 1);
	CU_ASSERT_EQUAL(host_end(&world, &world.hosts[0]), late_percent ? 0 : 3);
	pair_free(&world);
}

static void sup10_what_is_lost_is_never_done(void)
{
	lost(0);
}

static void sup10_what_comes_late_is_done_then(void)
{
	lost(100);
}

static void revocations_share_messages(void)
{
	struct world world;
	struct region *region, *closing[10];
	uint64_t before;

	pair_new(&world, plain_net, &presets, &region);
	put(&world, region, 40);
	world_finish(&world, S);
	for (uint32_t i = 0; i < 10; i++)
		closing[i] = region_open(&world, 1, 3);
	before = net_messages(world.hosts[1].node);
	for (uint32_t i = 0; i < 10; i++)
		region_close(&world, &world.hosts[1], closing[i]);
	world_run(&world, 10 * MS);
	for (uint32_t i = 0; i < 10; i++)
		CU_ASSERT_EQUAL(closing[i]->n_done, 1);
	CU_ASSERT_EQUAL(net_messages(world.hosts[1].node) - before, 1);
	CU_ASSERT_EQUAL(counts_of(&world, 1).cut, 0);
	pair_free(&world);
}

static void a_revocation_waits_for_those_who_may_write(void)
{
	struct world world;
	struct region *region, *closing;
	struct job *job;
	int64_t begin;

	pair_new(&world, plain_net, &presets, &region);
	put(&world, region, 40);
	world_finish(&world, S);
	closing = region_open(&world, 1, 3);

	/* Who does not answer is cut, and not before its time. */
	begin = clock_ns;
	region_close(&world, &world.hosts[1], closing);
	while (clock_ns < begin + presets.revoke_timeout_ns - MS) {
		bh_rdma_engine_turn(world.hosts[1].engine); /* the other one does not run */
		clock_ns += MS;
	}
	CU_ASSERT_EQUAL(closing->n_done, 0);
	for (uint32_t i = 0; i < 4; i++) {
		bh_rdma_engine_turn(world.hosts[1].engine);
		clock_ns += MS;
	}
	CU_ASSERT_EQUAL(closing->n_done, 1);
	CU_ASSERT_EQUAL(counts_of(&world, 1).cut, 1);
	job = put(&world, region, 40);
	world_finish(&world, S);
	CU_ASSERT_EQUAL(job->status, 0);
	pair_free(&world);
}

static void a_revocation_waits_for_links_that_come_up(void)
{
	struct world world;
	struct region *region;

	pair_new(&world, plain_net, &presets, &region);
	put(&world, region, 40);
	bh_rdma_engine_turn(world.hosts[0].engine);
	clock_ns += MS;
	bh_rdma_engine_turn(world.hosts[1].engine); /* accepts */
	CU_ASSERT_EQUAL(net_links_up(world.hosts[1].node), 1);
	CU_ASSERT_EQUAL(counts_of(&world, 1).links_in, 0);
	region_close(&world, &world.hosts[1], region);
	bh_rdma_engine_turn(world.hosts[1].engine);
	CU_ASSERT_EQUAL(region->n_done, 0);
	world_run(&world, 20 * MS);
	CU_ASSERT_EQUAL(region->n_done, 1);
	CU_ASSERT_EQUAL(counts_of(&world, 1).cut, 0);
	pair_free(&world);
}

static void a_message_that_finds_no_room_is_sent_again(void)
{
	struct world world;
	struct region *region, *closing[16];
	struct net_options net = plain_net;

	net.full_percent = 60;
	pair_new(&world, net, &presets, &region);
	put(&world, region, 40);
	world_finish(&world, S);
	for (uint32_t i = 0; i < 16; i++) {
		closing[i] = region_open(&world, 1, 3);
		region_close(&world, &world.hosts[1], closing[i]);
		world_run(&world, 100 * MS);
		CU_ASSERT_EQUAL(closing[i]->n_done, 1);
	}
	CU_ASSERT_EQUAL(counts_of(&world, 1).cut, 0);
	pair_free(&world);
}

static void a_revocation_without_links_is_over(void)
{
	struct world world;
	struct region *region;

	pair_new(&world, plain_net, &presets, &region);
	region_close(&world, &world.hosts[1], region);
	bh_rdma_engine_turn(world.hosts[1].engine);
	CU_ASSERT_EQUAL(region->n_done, 1);
	region = region_open(&world, 1, 3);
	bh_rdma_engine_end(world.hosts[1].engine);
	CU_ASSERT_TRUE(bh_rdma_engine_ended(world.hosts[1].engine));
	region_close(&world, &world.hosts[1], region); /* on the caller's thread */
	CU_ASSERT_EQUAL(region->n_done, 1);
	pair_free(&world);
}

static void idle_links_are_closed(void)
{
	struct world world;
	struct region *region;
	struct bh_rdma_engine_options options = presets;

	options.idle_timeout_ns = 20 * MS;
	pair_new(&world, plain_net, &options, &region);
	put(&world, region, 40);
	world_finish(&world, S);
	world_run(&world, 10 * MS);
	CU_ASSERT_EQUAL(counts_of(&world, 0).links, 1);
	world_run(&world, 20 * MS);
	CU_ASSERT_EQUAL(counts_of(&world, 0).links, 0);
	CU_ASSERT_EQUAL(counts_of(&world, 1).links_in, 0);
	put(&world, region, 40);
	world_finish(&world, S);
	CU_ASSERT_EQUAL(world_waiting(&world), 0);
	/* Waiting for a peer is not idleness. */
	world_run(&world, 10 * MS);
	put(&world, region, 40);
	bh_rdma_engine_turn(world.hosts[0].engine);
	for (uint32_t i = 0; i < 40; i++) {
		bh_rdma_engine_turn(world.hosts[0].engine);
		clock_ns += MS;
	}
	CU_ASSERT_EQUAL(counts_of(&world, 0).links, 1);
	pair_free(&world);
}

static void the_end_is_bounded(void)
{
	struct world world;
	struct region *region;
	struct job *job;
	int64_t begin;
	struct bh_rdma_transfer refused = { .op = BH_RDMA_OP_READ };

	pair_new(&world, plain_net, &presets, &region);
	put(&world, region, 40);
	world_finish(&world, S);
	net_silence(world.hosts[1].node, true);
	for (uint32_t i = 0; i < 20; i++)
		job = put(&world, region, 100);
	world_run(&world, 5 * MS);
	job = put(&world, region, 40); /* still in the queue */
	begin = clock_ns;
	bh_rdma_engine_end(world.hosts[0].engine);
	CU_ASSERT_EQUAL(bh_rdma_engine_submit(world.hosts[0].engine, &refused), -ESHUTDOWN);
	CU_ASSERT_EQUAL(host_end(&world, &world.hosts[0]), 0);
	CU_ASSERT(clock_ns - begin <= presets.abort_timeout_ns + S);
	CU_ASSERT_EQUAL(job->status, -ECANCELED);
	CU_ASSERT_EQUAL(world_waiting(&world), 0);
	pair_free(&world);
}

static void one_that_never_ran_ends_too(void)
{
	struct world world;
	struct region *region;
	struct job *job;

	pair_new(&world, plain_net, &presets, &region);
	job = put(&world, region, 40);
	region_close(&world, &world.hosts[0], region);
	CU_ASSERT_EQUAL(bh_rdma_engine_free(world.hosts[0].engine), 0);
	world.hosts[0].engine = NULL;
	CU_ASSERT_EQUAL(job->status, -ECANCELED);
	CU_ASSERT_EQUAL(job->n_done, 1);
	CU_ASSERT_EQUAL(region->n_done, 1);
	pair_free(&world);
}

static void fired(void *owner, struct bh_rdma_timer *timer)
{
	(void)owner;
	(void)timer;
}

static void timers_come_in_order(void)
{
	enum { N = 3000 };
	static struct bh_rdma_timer timer[N];
	struct bh_rdma_timers timers = { NULL };
	uint64_t random = 99;
	uint32_t n_set = 0, n_taken = 0;
	int64_t last = 0;

	memset(timer, 0, sizeof(timer));
	for (uint32_t i = 0; i < 20 * N; i++) {
		struct bh_rdma_timer *any = &timer[(random >> 33) % N];

		random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		any->fire = fired;
		if (random >> 62)
			bh_rdma_timers_set(&timers, any, (int64_t)(random >> 40) + 1);
		else
			bh_rdma_timers_clear(&timers, any);
	}
	for (uint32_t i = 0; i < N; i++)
		n_set += timer[i].set;
	CU_ASSERT_PTR_NULL(bh_rdma_timers_take(&timers, bh_rdma_timers_next(&timers) - 1));
	for (struct bh_rdma_timer *next; (next = bh_rdma_timers_take(&timers, INT64_MAX));) {
		CU_ASSERT(next->at_ns >= last && !next->set);
		last = next->at_ns;
		n_taken++;
	}
	CU_ASSERT_EQUAL(n_taken, n_set);
	CU_ASSERT(n_set > N / 2);
	CU_ASSERT_EQUAL(bh_rdma_timers_next(&timers), INT64_MAX);
}

/* ---- threads, and real time ------------------------------------------------------------------------ */

static uint64_t real_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

struct runner {
	struct net_node *node;
	struct bh_rdma_engine *engine;
	pthread_t thread;
	int stop_fd;
	int64_t cpu_ns; /* that run() took */
	uint8_t memory[4096];
	struct bh_rdma_memory region;
};

static void *runner_run(void *user)
{
	struct runner *runner = user;
	struct timespec used;

	bh_rdma_engine_run(runner->engine, runner->stop_fd);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	runner->cpu_ns = used.tv_sec * S + used.tv_nsec;
	return NULL;
}

static void runner_start(struct runner *runner, struct net *net, uint32_t where, int64_t spin_ns)
{
	struct bh_rdma_engine_calls calls = { .now_ns = real_now };
	struct bh_rdma_engine_options options = presets;
	struct bh_rdma_transport *transport;

	options.spin_ns = spin_ns;
	options.connect_timeout_ns = 20 * S;
	options.revoke_timeout_ns = 20 * S;
	runner->node = net_node_new(net, where);
	transport = net_transport(runner->node);
	runner->stop_fd = eventfd(0, EFD_CLOEXEC);
	CU_ASSERT_FATAL(runner->stop_fd >= 0);
	CU_ASSERT_EQUAL_FATAL(
		bh_rdma_engine_new(transport, 1 + where, &options, &calls, &runner->engine), 0);
	CU_ASSERT_EQUAL(transport->ops->register_memory(transport, runner->memory,
							sizeof(runner->memory), 3, &runner->region,
							NULL),
			0);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&runner->thread, NULL, runner_run, runner), 0);
}

/* Returns how many were lost. */
static uint32_t runner_stop(struct runner *runner)
{
	CU_ASSERT_EQUAL(write(runner->stop_fd, &(uint64_t){ 1 }, sizeof(uint64_t)),
			sizeof(uint64_t));
	pthread_join(runner->thread, NULL);
	close(runner->stop_fd);
	return bh_rdma_engine_free(runner->engine);
}

struct ticket {
	struct bh_rdma_transfer transfer;
	struct bh_rdma_part part;
	uint8_t local[64];
	struct crowd *crowd;
	_Atomic uint32_t n_done;
	_Atomic int32_t status;
	bool accepted;
};

struct crowd {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint32_t n_done;
};

static void ticket_done(struct bh_rdma_transfer *transfer, bh_status status,
			const struct bh_rdma_fault *fault, uint32_t failed)
{
	struct ticket *ticket = bh_container_of(transfer, struct ticket, transfer);
	struct crowd *crowd = ticket->crowd;

	(void)fault;
	(void)failed;
	atomic_store(&ticket->status, status);
	atomic_fetch_add(&ticket->n_done, 1);
	pthread_mutex_lock(&crowd->lock);
	crowd->n_done++;
	pthread_cond_broadcast(&crowd->changed);
	pthread_mutex_unlock(&crowd->lock);
}

/* false: they were not in half a minute. */
static bool crowd_wait(struct crowd *crowd, uint32_t n)
{
	struct timespec until;
	bool all;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 30;
	pthread_mutex_lock(&crowd->lock);
	while (crowd->n_done < n &&
	       pthread_cond_timedwait(&crowd->changed, &crowd->lock, &until) == 0)
		;
	all = crowd->n_done >= n;
	pthread_mutex_unlock(&crowd->lock);
	return all;
}

static bh_status ticket_submit(struct ticket *ticket, struct crowd *crowd, struct runner *from,
			       struct runner *to, uint32_t where, uint64_t id, uint64_t offset)
{
	*ticket = (struct ticket){ .crowd = crowd };
	ticket->part = (struct bh_rdma_part){ .remote = offset,
					      .local = ticket->local,
					      .length = sizeof(ticket->local) };
	ticket->transfer = (struct bh_rdma_transfer){
		.op = id % 2 ? BH_RDMA_OP_READ : BH_RDMA_OP_WRITE,
		.target = { .kind = BH_RDMA_SOFTWARE,
			    .instance = 1 + where,
			    .base = to->region.base,
			    .length = sizeof(to->memory),
			    .key = to->region.key,
			    .address = net_address(where) },
		.parts = &ticket->part,
		.n_parts = 1,
		.id = id,
		.deadline_ns = INT64_MAX,
		.done = ticket_done,
	};
	bh_status status = bh_rdma_engine_submit(from->engine, &ticket->transfer);

	ticket->accepted = status == 0;
	return status;
}

static const struct net_options real_net = { .seed = 5,
					     .now_ns = real_now,
					     .delay_ns = 20000,
					     .max_message = 64,
					     .max_outstanding = 16,
					     .max_reads = 4 };

/* A submission to an engine that sleeps, or is about to: each must be noticed. */
static void no_wake_up_is_lost(void)
{
	enum { ROUNDS = 1500 };
	struct runner runner[2];
	struct crowd crowd = { .lock = PTHREAD_MUTEX_INITIALIZER,
			       .changed = PTHREAD_COND_INITIALIZER };
	struct ticket ticket;
	struct net *net = net_new(&real_net);
	bool in_time = true;

	for (uint32_t i = 0; i < 2; i++)
		runner_start(&runner[i], net, i, 0);
	for (uint32_t i = 0; i < ROUNDS && in_time; i++) {
		CU_ASSERT_EQUAL(ticket_submit(&ticket, &crowd, &runner[0], &runner[1], 1, i + 1, 0),
				0);
		in_time = crowd_wait(&crowd, i + 1);
		CU_ASSERT_EQUAL(ticket.status, 0);
	}
	CU_ASSERT_TRUE(in_time);
	for (uint32_t i = 0; i < 2; i++)
		CU_ASSERT_EQUAL(runner_stop(&runner[i]), 0);
	net_free(net);
}

struct hammer {
	pthread_t thread;
	struct runner *runner;
	struct crowd *crowd;
	struct ticket tickets[300];
	uint32_t index;
};

struct gone {
	struct bh_rdma_revoke revoke;
	struct crowd *crowd;
};

static void gone_done(struct bh_rdma_revoke *revoke)
{
	struct gone *gone = bh_container_of(revoke, struct gone, revoke);
	struct crowd *crowd = gone->crowd;

	pthread_mutex_lock(&crowd->lock);
	crowd->n_done++;
	pthread_cond_broadcast(&crowd->changed);
	pthread_mutex_unlock(&crowd->lock);
}

static void *hammer_run(void *user)
{
	struct hammer *hammer = user;
	struct crowd revoked = { .lock = PTHREAD_MUTEX_INITIALIZER,
				 .changed = PTHREAD_COND_INITIALIZER };

	for (uint32_t i = 0; i < 300; i++) {
		uint32_t from = (hammer->index + i) % 3, to = (from + 1 + i % 2) % 3;
		uint64_t id = hammer->index * 1000 + i + 1;

		if (ticket_submit(&hammer->tickets[i], hammer->crowd, &hammer->runner[from],
				  &hammer->runner[to], to, id, hammer->index * 64))
			return NULL;
		if (i % 7 == 0)
			bh_rdma_engine_cancel(hammer->runner[from].engine, id);
		if (i % 50 == 0) {
			struct gone gone = { .revoke.done = gone_done, .crowd = &revoked };

			if (bh_rdma_engine_revoke(hammer->runner[to].engine, &gone.revoke) ||
			    !crowd_wait(&revoked, i / 50 + 1))
				return NULL;
		}
	}
	return hammer;
}

static void any_thread_may_ask(void)
{
	enum { HAMMERS = 4 };
	static struct hammer hammer[HAMMERS];
	struct runner runner[3];
	struct crowd crowd = { .lock = PTHREAD_MUTEX_INITIALIZER,
			       .changed = PTHREAD_COND_INITIALIZER };
	struct net *net = net_new(&real_net);
	const char *what;

	for (uint32_t i = 0; i < 3; i++)
		runner_start(&runner[i], net, i, i == 0 ? 100000 : 0);
	for (uint32_t i = 0; i < HAMMERS; i++) {
		hammer[i].runner = runner;
		hammer[i].crowd = &crowd;
		hammer[i].index = i;
		CU_ASSERT_EQUAL_FATAL(
			pthread_create(&hammer[i].thread, NULL, hammer_run, &hammer[i]), 0);
	}
	for (uint32_t i = 0; i < HAMMERS; i++) {
		void *all = NULL;

		pthread_join(hammer[i].thread, &all);
		CU_ASSERT_PTR_NOT_NULL(all);
	}
	CU_ASSERT_TRUE(crowd_wait(&crowd, HAMMERS * 300));
	for (uint32_t i = 0; i < 3; i++)
		CU_ASSERT_EQUAL(runner_stop(&runner[i]), 0);
	for (uint32_t i = 0; i < HAMMERS; i++)
		for (uint32_t j = 0; j < 300; j++) {
			int32_t status = hammer[i].tickets[j].status;

			CU_ASSERT_EQUAL(hammer[i].tickets[j].n_done, 1);
			CU_ASSERT(status == 0 || (status == -ECANCELED && j % 7 == 0));
		}
	CU_ASSERT_EQUAL(net_violations(net, &what), 0);
	net_free(net);
}

/* Submitters do not know when it ends: each submission is either refused or done. */
static void a_stop_meets_submitters(void)
{
	static struct hammer hammer[2];

	for (uint32_t round = 0; round < 10; round++) {
		struct runner runner[3];
		struct crowd crowd = { .lock = PTHREAD_MUTEX_INITIALIZER,
				       .changed = PTHREAD_COND_INITIALIZER };
		struct net *net = net_new(&real_net);

		for (uint32_t i = 0; i < 3; i++)
			runner_start(&runner[i], net, i, 0);
		for (uint32_t i = 0; i < 2; i++) {
			hammer[i] =
				(struct hammer){ .runner = runner, .crowd = &crowd, .index = i };
			CU_ASSERT_EQUAL_FATAL(
				pthread_create(&hammer[i].thread, NULL, hammer_run, &hammer[i]), 0);
		}
		CU_ASSERT_TRUE(crowd_wait(&crowd, 10 * round));
		for (uint32_t i = 0; i < 3; i++) {
			CU_ASSERT_EQUAL(
				write(runner[i].stop_fd, &(uint64_t){ 1 }, sizeof(uint64_t)),
				sizeof(uint64_t));
			pthread_join(runner[i].thread, NULL);
		}
		for (uint32_t i = 0; i < 2; i++)
			pthread_join(hammer[i].thread, NULL);
		for (uint32_t i = 0; i < 3; i++) {
			close(runner[i].stop_fd);
			CU_ASSERT_EQUAL(bh_rdma_engine_free(runner[i].engine), 0);
		}
		for (uint32_t i = 0; i < 2; i++)
			for (uint32_t j = 0; j < 300; j++)
				CU_ASSERT_EQUAL(hammer[i].tickets[j].n_done,
						hammer[i].tickets[j].accepted);
		net_free(net);
	}
}

/* Polling is for peers that answer soon: one that does not must not cost a CPU. */
static void spinning_ends(void)
{
	struct runner runner[2];
	struct crowd crowd = { .lock = PTHREAD_MUTEX_INITIALIZER,
			       .changed = PTHREAD_COND_INITIALIZER };
	struct ticket ticket;
	struct net *net = net_new(&real_net);

	for (uint32_t i = 0; i < 2; i++)
		runner_start(&runner[i], net, i, MS);
	CU_ASSERT_EQUAL(ticket_submit(&ticket, &crowd, &runner[0], &runner[1], 1, 1, 0), 0);
	CU_ASSERT_TRUE(crowd_wait(&crowd, 1));
	net_silence(runner[1].node, true);
	CU_ASSERT_EQUAL(ticket_submit(&ticket, &crowd, &runner[0], &runner[1], 1, 2, 0), 0);
	bh_rdma_engine_cancel(runner[0].engine, 2);
	CU_ASSERT_TRUE(crowd_wait(&crowd, 2)); /* abort_timeout later, most of which it slept */
	for (uint32_t i = 0; i < 2; i++)
		CU_ASSERT_EQUAL(runner_stop(&runner[i]), 0);
	CU_ASSERT(runner[0].cpu_ns < presets.abort_timeout_ns / 2);
	net_free(net);
}

static const struct bh_test tests[] = {
	{ "SUP-10: whatever happens: one done() each, no touch behind it, equal bytes, no innocent "
	  "fails",
	  whatever_happens },
	{ "a link is made at the first transfer and kept", one_link_is_kept },
	{ "a transfer of nothing is done without a link", nothing_to_do_is_done },
	{ "queues are filled, and never overrun", queues_are_filled_and_not_overrun },
	{ "a small transfer does not wait for a large one", a_small_one_overtakes_a_large_one },
	{ "who breaks links when it is alone on them is guilty, and nobody else",
	  who_breaks_links_alone_is_guilty },
	{ "suspects run alone", suspects_run_alone },
	{ "who had company when the link broke is not guilty yet",
	  who_had_company_is_not_guilty_yet },
	{ "who is named by the transport is guilty at once", who_is_named_is_guilty_at_once },
	{ "descriptors of an instance that is gone fail at once and harm nobody",
	  stale_descriptors_harm_nobody },
	{ "attempts are counted; a peer that comes back is reached again",
	  a_peer_that_comes_back_is_reached },
	{ "a peer that was replaced without a word is noticed", a_replaced_peer_is_noticed },
	{ "who does not name our instance gets no link, and does not hear it",
	  who_holds_no_descriptor_gets_no_link },
	{ "links of peers are bounded", links_of_peers_are_bounded },
	{ "cancel and deadline: what is queued ends at once", what_is_queued_ends_at_once },
	{ "SUP-10: cancel: what is posted ends with its link; others are done again",
	  what_is_posted_ends_with_its_link },
	{ "a cancel that comes too late changes nothing", what_comes_too_late_to_stop_is_well },
	{ "SUP-10: what the transport never gives back is never done, and counted",
	  sup10_what_is_lost_is_never_done },
	{ "SUP-10: what it gives back late is done then", sup10_what_comes_late_is_done_then },
	{ "revocations at once share messages", revocations_share_messages },
	{ "a revocation waits for those who may write; who does not answer is cut",
	  a_revocation_waits_for_those_who_may_write },
	{ "a revocation waits for links that come up", a_revocation_waits_for_links_that_come_up },
	{ "a message that finds no room is sent again",
	  a_message_that_finds_no_room_is_sent_again },
	{ "a revocation without links is over", a_revocation_without_links_is_over },
	{ "a link without work is closed when the options say so", idle_links_are_closed },
	{ "the end is bounded, whatever peers do", the_end_is_bounded },
	{ "an engine that never ran ends what was submitted", one_that_never_ran_ends_too },
	{ "timers come in order", timers_come_in_order },
	{ "no wake-up is lost", no_wake_up_is_lost },
	{ "any thread may submit, cancel and revoke", any_thread_may_ask },
	{ "a stop meets submitters: each is refused or done", a_stop_meets_submitters },
	{ "polling ends when it does not pay", spinning_ends },
};

BH_TAP_MAIN("rdma engine", tests)
