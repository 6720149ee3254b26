/* SPDX-License-Identifier: BSD-3-Clause */
/* t_rogue - asks for the GIL from places that may and from places that may not: at a site that
 * control threads may use (a), at one for workers (b), at none of its own, and past the services.
 *
 * A plugin exports its descriptor alone, so what Python's main thread is to call by ctypes is
 * handed out as an address. */
#define _GNU_SOURCE
#include <bulkhead/plugin.h>

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

enum { SITE_A, SITE_B, N_SITES };

static struct rogue {
	struct bh_context *ctx;
	const struct bh_services *host;
	int (*ensure)(void);
	void (*release)(int state);
} rogue; /* one in a process: the functions below have no argument for it */

static void nothing(void *arg)
{
	(void)arg;
}

/* Takes the GIL at the `n` sites listed, the next inside the one before. */
struct nest {
	const uint32_t *sites;
	uint32_t n;
	bh_status status; /* of the first that was refused */
};

static void nest_enter(void *arg)
{
	struct nest *nest = arg;
	bh_status st;

	if (nest->n == 0)
		return;
	nest->n--;
	st = rogue.host->run_gil(rogue.ctx, *nest->sites++, nest_enter, nest);
	if (st < 0)
		nest->status = st;
}

/* By ctypes: at `site`, on the calling thread. */
static int32_t enter_at(int32_t site)
{
	return rogue.host->run_gil(rogue.ctx, (uint32_t)site, nothing, NULL);
}

/* By ctypes: the plain C-API call. */
static int32_t enter_raw(void)
{
	rogue.release(rogue.ensure());
	return 0;
}

static bh_status give_address(struct bh_task *task, const void *function, size_t size)
{
	struct bh_value value = { .type = BH_TYPE_INT };
	uintptr_t address;

	memcpy(&address, function, size);
	value.as.integer = (int64_t)address;
	return rogue.host->result(task, &value);
}

static bh_status run_address_of_at(void *state, struct bh_task *task, const struct bh_value *args)
{
	int32_t (*function)(int32_t) = enter_at;

	(void)state;
	(void)args;
	return give_address(task, &function, sizeof(function));
}

static bh_status run_address_of_raw(void *state, struct bh_task *task, const struct bh_value *args)
{
	int32_t (*function)(void) = enter_raw;

	(void)state;
	(void)args;
	return give_address(task, &function, sizeof(function));
}

static bh_status run_b(void *state, struct bh_task *task, const struct bh_value *args)
{
	static const uint32_t sites[] = { SITE_B };
	struct nest nest = { sites, 1, 0 };

	(void)state;
	(void)task;
	(void)args;
	nest_enter(&nest);
	return nest.status;
}

static bh_status run_b_in_a(void *state, struct bh_task *task, const struct bh_value *args)
{
	static const uint32_t sites[] = { SITE_A, SITE_B };
	struct nest nest = { sites, 2, 0 };

	(void)state;
	(void)task;
	(void)args;
	nest_enter(&nest);
	return nest.status;
}

static bh_status run_raw(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return enter_raw();
}

/* A site that the descriptor does not have. */
static bh_status run_stray(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return enter_at(N_SITES);
}

static int find(void *to, const char *name)
{
	void *symbol = dlsym(RTLD_DEFAULT, name);

	memcpy(to, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static bh_status rogue_open(struct bh_context *ctx, const struct bh_services *host,
			    void **ret_state)
{
	rogue.ctx = ctx;
	rogue.host = host;
	if (!find(&rogue.ensure, "PyGILState_Ensure") ||
	    !find(&rogue.release, "PyGILState_Release"))
		return host->fail(ctx, -ENOSYS, "t_rogue.no-python", NULL, 0);
	*ret_state = &rogue;
	return 0;
}

static bh_status rogue_close(void *state)
{
	(void)state;
	return 0;
}

static const struct bh_site sites[] = {
	[SITE_A] = { .name = "a",
		     .policy = BH_SITE_CONTROL_ALLOWED,
		     .doc = "where control threads may come" },
	[SITE_B] = { .name = "b", .policy = BH_SITE_DATA_ONLY, .doc = "for workers" },
};
_Static_assert(sizeof(sites) / sizeof(sites[0]) == N_SITES, "one row a site");

static const struct bh_op ops[] = {
	{ .name = "address_of_at",
	  .ret = "int",
	  .run = run_address_of_at,
	  .doc = "Of int32_t f(int32_t site), which takes the GIL there." },
	{ .name = "address_of_raw",
	  .ret = "int",
	  .run = run_address_of_raw,
	  .doc = "Of int32_t f(void), which takes the GIL by the plain C-API." },
	{ .name = "b", .run = run_b, .doc = "On the worker, at b." },
	{ .name = "b_in_a", .run = run_b_in_a, .doc = "On the worker, at b inside a." },
	{ .name = "raw", .run = run_raw, .doc = "On the worker, by the plain C-API." },
	{ .name = "stray", .run = run_stray, .doc = "On the worker, at a site not declared." },
};

BH_PLUGIN("t_rogue", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 4 },
	.progress_threads = 0,
	.sites = BH_TABLE(sites),
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(ops),
	.open = rogue_open,
	.close = rogue_close,
};
