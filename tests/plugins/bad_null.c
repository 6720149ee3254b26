/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_null - callbacks that are NULL where one is required. Nothing of it may be called (PLG-3). */
#include <bulkhead/plugin.h>

#include <stdlib.h>

static bh_status never_called(struct bh_context *ctx, const struct bh_services *host,
			      void **ret_state)
{
	(void)ctx;
	(void)host;
	(void)ret_state;
	abort();
}

static const struct bh_op ops[] = { { .name = "hollow", .run = NULL } };

BH_PLUGIN("bad_null", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.progress_threads = 2,
	.ops = BH_TABLE(ops),
	.open = never_called,
	.close = NULL,
};
