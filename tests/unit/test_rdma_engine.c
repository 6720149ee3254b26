/* SPDX-License-Identifier: BSD-3-Clause */
/* test_rdma_engine - the suite of plugins/rdma/engine.c and its parts, over a network in memory.
 *
 * First what must hold whatever happens, over thousands of random schedules on a clock that the test
 * moves; then each promise by itself; then threads. RDMA_ENGINE_SEED=n runs that schedule alone,
 * RDMA_ENGINE_SCHEDULES=n so many. */
#include "config.h"

#include "plugins/rdma/engine.h"

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
			net_drop_links(world->net, world->hosts[from].node, target->node);
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

static const struct bh_test tests[] = {
	{ "SUP-10: whatever happens: one done() each, no touch behind it, equal bytes, no innocent "
	  "fails",
	  whatever_happens },
};

BH_TAP_MAIN("rdma engine", tests)
