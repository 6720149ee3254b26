/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_env - wants variables of the loader's and of Python's, beside one that is harmless. */
#include <bulkhead/plugin.h>

static bh_status env_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	(void)ctx;
	(void)host;
	(void)ret_state;
	return 0;
}

static bh_status env_close(void *state)
{
	(void)state;
	return 0;
}

BH_PLUGIN("bad_env", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE,
	.options = BH_NO_TABLE,
	.ops = BH_NO_TABLE,
	.open = env_open,
	.close = env_close,
	.metrics = BH_NO_TABLE,
};
BH_PLUGIN_ENV("BAD_ENV_FINE=1\nLD_PRELOAD=/tmp/x.so\n2BAD=1\nPYTHONHOME=/");
