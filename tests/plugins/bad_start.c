/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_start - worker_start fails on worker 1; what was built before it is to be undone (SUP-2). */
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
		return host->fail(ctx, -ENOMEM, "bad_start.alloc", NULL, 0);
	bad->ctx = ctx;
	bad->host = host;
	*ret_state = bad;
	return 0;
}

static bh_status bad_close(void *state)
{
	free(state);
	return 0;
}

static bh_status bad_worker_start(void *state, uint32_t worker)
{
	const struct bh_fact fact = bh_fact_int("worker", worker);
	struct bad *bad = state;

	return worker == 1 ? bad->host->fail(bad->ctx, -EAGAIN, "bad_start.worker", &fact, 1) : 0;
}

BH_PLUGIN("bad_start", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 2, .preset = 3, .max = 8 },
	.open = bad_open,
	.close = bad_close,
	.worker_start = bad_worker_start,
};
