/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_open_hang - open never returns, as a driver call on a dead device. */
#include <bulkhead/plugin.h>

#include <unistd.h>

static bh_status bad_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	(void)ctx;
	(void)host;
	(void)ret_state;
	while (pause() < 0)
		;
	return 0;
}

static bh_status bad_close(void *state)
{
	(void)state;
	return 0;
}

BH_PLUGIN("bad_open_hang", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.open = bad_open,
	.close = bad_close,
};
