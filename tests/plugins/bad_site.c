/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_site - a GIL site without a policy (GIL-3). */
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

static bh_status bad_close(void *state)
{
	(void)state;
	return 0;
}

static const struct bh_site sites[] = { { .name = "somewhere", .doc = "nobody said who may" } };

BH_PLUGIN("bad_site", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.sites = BH_TABLE(sites),
	.open = never_called,
	.close = bad_close,
};
