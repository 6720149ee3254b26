/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_abi - a plugin of the next ABI: its note says so, and its constructor must never run. */
#include <bulkhead/plugin.h>

#include <stdlib.h>

#undef BH_ABI_MAJOR
#define BH_ABI_MAJOR 2u

__attribute__((constructor)) static void too_late(void)
{
	abort(); /* the note is read before dlopen (PLG-2) */
}

static bh_status bad_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	(void)ctx;
	(void)host;
	(void)ret_state;
	return 0;
}

static bh_status bad_close(void *state)
{
	(void)state;
	return 0;
}

BH_PLUGIN("bad_abi", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.open = bad_open,
	.close = bad_close,
};
