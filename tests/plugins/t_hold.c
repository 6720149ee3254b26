/* SPDX-License-Identifier: BSD-3-Clause */
/* t_hold - takes the GIL at declared sites: in C without letting go of it, and to run a
 * callable. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <stdlib.h>

enum { SITE_HOLD, SITE_CALL, N_SITES };

struct hold {
	struct bh_context *ctx;
	const struct bh_services *host;
};

struct span {
	const struct bh_services *host;
	uint64_t ns;
};

/* Under the GIL, which it keeps: neither sleeps nor calls Python. */
static void spin(void *arg)
{
	const struct span *span = arg;
	uint64_t until = span->host->now_ns() + span->ns;

	while (span->host->now_ns() < until)
		;
}

static bh_status run_hold(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct hold *h = state;
	struct span span = { h->host, (uint64_t)args[0].as.integer * 1000000u };

	(void)task;
	return h->host->run_gil(h->ctx, SITE_HOLD, spin, &span);
}

static bh_status run_call(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct hold *h = state;
	struct bh_value value;
	bh_status st =
		h->host->call_object(task, SITE_CALL, args[0].as.object, args[1].as.list.items,
				     (uint32_t)args[1].as.list.count, &value);

	return st < 0 ? st : h->host->result(task, &value);
}

/* A site that the descriptor does not have. */
static bh_status run_stray(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct hold *h = state;
	struct span span = { h->host, 0 };

	(void)task;
	(void)args;
	return h->host->run_gil(h->ctx, N_SITES, spin, &span);
}

static bh_status hold_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	struct hold *h = calloc(1, sizeof(*h));

	if (!h)
		return host->fail(ctx, -ENOMEM, "t_hold.alloc", NULL, 0);
	h->ctx = ctx;
	h->host = host;
	*ret_state = h;
	return 0;
}

static bh_status hold_close(void *state)
{
	free(state);
	return 0;
}

static const struct bh_site sites[] = {
	[SITE_HOLD] = { .name = "hold",
			.policy = BH_SITE_DATA_ONLY,
			.doc = "keep the GIL in C for a while" },
	[SITE_CALL] = { .name = "call", .policy = BH_SITE_DATA_ONLY, .doc = "run a callable" },
};
_Static_assert(sizeof(sites) / sizeof(sites[0]) == N_SITES, "one row a site");

static const struct bh_op ops[] = {
	{ .name = "hold",
	  .args = "ms:int",
	  .run = run_hold,
	  .doc = "Holds the GIL in C, without letting go." },
	{ .name = "call",
	  .args = "fn:object *args:object",
	  .ret = "object",
	  .run = run_call,
	  .doc = "fn(*args)" },
	{ .name = "stray",
	  .run = run_stray,
	  .doc = "Asks for the GIL at a site that is not declared." },
};

BH_PLUGIN("t_hold", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 16 },
	.progress_threads = 0,
	.sites = BH_TABLE(sites),
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(ops),
	.open = hold_open,
	.close = hold_close,
};
