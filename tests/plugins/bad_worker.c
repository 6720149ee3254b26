/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_worker - a worker that blocks for ever out of reach, crashes, ends its own thread, or changes
 * what it has of the process; and, by option, one step of the pool's life that never returns. */
#define _GNU_SOURCE 1
#include <bulkhead/plugin.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bad {
	struct bh_context *ctx;
	const struct bh_services *host;
	const char *wedge; /* the callback that never returns; "none" */
};

/* As a driver call that cannot be interrupted: no signal gets through. */
static void block_for_ever(void *arg)
{
	sigset_t all;

	(void)arg;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (;;)
		pause();
}

static void wedge_if(const struct bad *bad, const char *callback)
{
	if (strcmp(bad->wedge, callback) == 0)
		block_for_ever(NULL);
}

static bh_status run_nop(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return 0;
}

static bh_status run_block(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	block_for_ever(NULL);
	return 0;
}

static bh_status run_block_gil(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bad *bad = state;

	(void)task;
	(void)args;
	return bad->host->run_gil(bad->ctx, 0, block_for_ever, NULL);
}

static bh_status run_crash(void *state, struct bh_task *task, const struct bh_value *args)
{
	static int *volatile nowhere = (int *)8; /* the compiler must not see through it */

	(void)state;
	(void)task;
	(void)args;
	*nowhere = 1;
	return 0;
}

static bh_status run_vanish(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	pthread_exit(NULL);
}

/* The device is lost: what comes after would fail too. */
static bh_status run_poison(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct bh_fact facts[] = { bh_fact_int("device", 0),
					 bh_fact_str("reason", "sticky error 700") };
	struct bad *bad = state;

	(void)task;
	(void)args;
	bad->host->report_failed(bad->ctx, -EIO, "bad_worker.poisoned", facts, 2);
	return -EIO;
}

/* SIGTERM's disposition is the process's; mask and affinity are this thread's own. */
static bh_status run_take_signals(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	signal(SIGTERM, SIG_IGN);
	return 0;
}

static bh_status bad_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	struct bad *bad = calloc(1, sizeof(*bad));

	if (!bad)
		return host->fail(ctx, -ENOMEM, "bad_worker.alloc", NULL, 0);
	bad->ctx = ctx;
	bad->host = host;
	bad->wedge = host->option_text(ctx, "wedge");
	if (strcmp(bad->wedge, "abort") == 0)
		abort();
	wedge_if(bad, "open");
	*ret_state = bad;
	return 0;
}

static bh_status bad_close(void *state)
{
	struct bad *bad = state;

	bad->host->log(bad->ctx, BH_LOG_INFO, "bad_worker is closed", NULL, 0);
	wedge_if(bad, "close");
	free(bad);
	return 0;
}

static bh_status bad_worker_start(void *state, uint32_t worker)
{
	if (worker == 1)
		wedge_if(state, "worker_start");
	return 0;
}

static bh_status bad_worker_stop(void *state, uint32_t worker)
{
	if (worker == 1)
		wedge_if(state, "worker_stop");
	return 0;
}

static const struct bh_site sites[] = {
	{ .name = "block", .policy = BH_SITE_DATA_ONLY, .doc = "keeps the GIL for ever" },
};

static const struct bh_option options[] = {
	{ .name = "wedge",
	  .type = BH_OPT_ENUM,
	  .preset = "none",
	  .choices = "none|open|abort|close|worker_start|worker_stop",
	  .doc = "the callback that never returns; abort: open aborts" },
};

static const struct bh_op ops[] = {
	{ .name = "nop", .run = run_nop },
	{ .name = "block", .run = run_block, .doc = "Blocks for ever, all signals blocked." },
	{ .name = "block_gil", .run = run_block_gil, .doc = "The same with the GIL held." },
	{ .name = "crash", .run = run_crash, .doc = "SIGSEGV." },
	{ .name = "vanish", .run = run_vanish, .doc = "Ends its own thread." },
	{ .name = "poison", .run = run_poison, .doc = "Reports the plugin as failed." },
	{ .name = "take_signals", .run = run_take_signals, .doc = "Ignores SIGTERM." },
};

BH_PLUGIN("bad_worker", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 8 },
	.sites = BH_TABLE(sites),
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = bad_open,
	.close = bad_close,
	.worker_start = bad_worker_start,
	.worker_stop = bad_worker_stop,
};
