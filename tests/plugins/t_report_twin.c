/* SPDX-License-Identifier: BSD-3-Clause */
/* t_report_twin - has t_report's name, but its frames_total is a gauge, and another idea of the
 * environment. */
#include <bulkhead/plugin.h>

static bh_status twin_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	host->metric_set(ctx, 0, 77);
	host->metric_set(ctx, 1, -5);
	*ret_state = 0;
	return 0;
}

static bh_status twin_close(void *state)
{
	(void)state;
	return 0;
}

static const struct bh_metric metrics[] = {
	{ .name = "frames_total", .kind = BH_METRIC_GAUGE, .doc = "Frames, all told." },
	{ .name = "depth", .kind = BH_METRIC_GAUGE, .doc = "Another text." },
};

BH_PLUGIN("t-report", "2.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE,
	.options = BH_NO_TABLE,
	.ops = BH_NO_TABLE,
	.open = twin_open,
	.close = twin_close,
	.metrics = BH_TABLE(metrics),
};
BH_PLUGIN_ENV("T_REPORT_SHARED=second\nT_REPORT_B=twin's");
