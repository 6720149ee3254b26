/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_close - close fails and says why. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <stdlib.h>

struct bad {
	struct bh_context *ctx;
	const struct bh_services *host;
};

static bh_status bad_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	struct bad *bad = calloc(1, sizeof(*bad));

	if (!bad)
		return host->fail(ctx, -ENOMEM, "bad_close.alloc", NULL, 0);
	bad->ctx = ctx;
	bad->host = host;
	*ret_state = bad;
	return 0;
}

static bh_status bad_close(void *state)
{
	const struct bh_fact fact = bh_fact_str("reason", "the device does not answer");
	struct bad *bad = state;
	bh_status st = bad->host->fail(bad->ctx, -EIO, "bad_close.device", &fact, 1);

	free(bad);
	return st;
}

static bh_status run_nop(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return 0;
}

static const struct bh_op ops[] = { { .name = "nop", .run = run_nop } };

BH_PLUGIN("bad_close", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.ops = BH_TABLE(ops),
	.open = bad_open,
	.close = bad_close,
};
