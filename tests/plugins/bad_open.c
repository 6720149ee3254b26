/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_open - open fails and says why. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <stdlib.h>

static bh_status bad_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	const struct bh_fact facts[] = { bh_fact_int("device", 3),
					 bh_fact_str("reason", "no such device") };

	(void)ret_state;
	return host->fail(ctx, -ENODEV, "bad_open.device", facts, 2);
}

/* Not called for an open that failed. */
static bh_status never_called(void *state)
{
	(void)state;
	abort();
}

BH_PLUGIN("bad_open", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.open = bad_open,
	.close = never_called,
};
