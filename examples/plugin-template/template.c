/* SPDX-License-Identifier: BSD-3-Clause */
/* template - a plugin to copy: one option, one op on a buffer, errors that say what to do.
 *
 * Compiles as C11 and as C++17 (hence the casts, and every field of a row in its order). To make it
 * yours: rename "template" in BH_PLUGIN, change struct state, replace the op. The contract is in
 * <bulkhead/plugin.h>; docs/writing-a-plugin.md has it on a page. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <stdlib.h>

/* What open() makes and every other callback gets. Several workers use it at once: what they change
 * needs a lock, or is kept per worker. */
struct state {
	struct bh_context *ctx;
	const struct bh_services *host;
	int64_t block; /* elements between two looks at cancelled() */
};

/* Thread: a worker. The GIL is not held, and need not be: this touches no Python object. */
static bh_status run_sum(void *opaque, struct bh_task *task, const struct bh_value *args)
{
	struct state *state = (struct state *)opaque;
	struct bh_buffer_info info;
	struct bh_value total;
	const float *data;
	uint64_t n;

	/* The host has checked that there is one argument and that it is a buffer, not of what. */
	info.size = (uint32_t)sizeof(info);
	if (state->host->buffer_info(args[0].as.buffer, &info) < 0)
		return -EPROTO;
	if (info.kind == BH_BUFFER_CUDA || info.dtype_code != BH_DTYPE_FLOAT ||
	    info.dtype_bits != 32) {
		const struct bh_fact facts[] = {
			bh_fact_str("parameter", "data"),
			bh_fact_int("bits", info.dtype_bits),
			bh_fact_str("accepted", "float32 in host memory"),
		};
		return state->host->task_fail(task, -EINVAL, "template.dtype", facts, 3);
	}

	data = (const float *)info.data;
	n = info.length / sizeof(float);
	total.type = BH_TYPE_FLOAT;
	total.reserved = 0;
	total.as.real = 0;
	for (uint64_t i = 0; i < n; i++) {
		if (i % (uint64_t)state->block == 0 && state->host->cancelled(task))
			return -ECANCELED;
		total.as.real += (double)data[i];
	}
	return state->host->result(task, &total);
}

/* Thread: the pool's supervisor. May block: health and stop go on without it. */
static bh_status template_open(struct bh_context *ctx, const struct bh_services *host,
			       void **ret_state)
{
	struct state *state = (struct state *)calloc(1, sizeof(*state));

	if (!state)
		return host->fail(ctx, -ENOMEM, "template.alloc", NULL, 0);
	state->ctx = ctx;
	state->host = host;
	state->block = host->option_int(ctx, "block");
	*ret_state = state;
	return 0;
}

/* Thread: the supervisor. No worker and no progress thread is left. */
static bh_status template_close(void *opaque)
{
	free(opaque);
	return 0;
}

static const struct bh_option options[] = {
	{ .name = "block",
	  .type = BH_OPT_INT,
	  .reserved = 0,
	  .preset = "65536",
	  .min = 1,
	  .max = 1 << 30,
	  .choices = NULL,
	  .doc = "elements summed between two looks for cancellation" },
};

static const struct bh_op ops[] = {
	{ .name = "sum",
	  .args = "data:buffer",
	  .ret = "float",
	  .run = run_sum,
	  .flags = 0,
	  .reserved = 0,
	  .doc = "The sum of a float32 buffer." },
};

BH_PLUGIN("template", "0.1") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 64 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE, /* it never takes the GIL */
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = template_open,
	.close = template_close,
	.worker_start = NULL,
	.worker_stop = NULL,
	.progress = NULL,
	.cancel = NULL,
	.metrics = BH_NO_TABLE,
};
