/* SPDX-License-Identifier: BSD-3-Clause */
/* t_report - tells operators of itself whatever a test asks for: numbers, facts, health; and wants
 * environment variables before it is loaded. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* For the thread that goes on when all else has ended: it outlives every state. */
static struct {
	const struct bh_services *host;
	struct bh_context *ctx;
} late;

struct report {
	const struct bh_services *host;
	struct bh_context *ctx;
};

enum { FRAMES, DEPTH };

static bh_status report_open(struct bh_context *ctx, const struct bh_services *host,
			     void **ret_state)
{
	const struct bh_fact facts[] = { bh_fact_str("device", "sim0"), bh_fact_int("lanes", 4) };
	struct report *r = calloc(1, sizeof(*r));

	if (!r)
		return host->fail(ctx, -ENOMEM, "t_report.alloc", NULL, 0);
	r->host = host;
	r->ctx = ctx;
	host->describe(ctx, facts, 2);
	if (host->option_int(ctx, "degraded"))
		host->report_health(ctx, -ENETDOWN, "t_report.slow-start", NULL, 0);
	*ret_state = r;
	return 0;
}

static bh_status report_close(void *state)
{
	struct report *r = state;

	r->host->metric_add(r->ctx, FRAMES, 1000);
	free(r);
	return 0;
}

static bh_status run_add(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct report *r = state;

	(void)task;
	r->host->metric_add(r->ctx, (uint32_t)args[0].as.integer, args[1].as.integer);
	return 0;
}

static bh_status run_set(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct report *r = state;

	(void)task;
	r->host->metric_set(r->ctx, (uint32_t)args[0].as.integer, args[1].as.integer);
	return 0;
}

/* `n` facts with one text, their keys k_a, k_b … */
static bh_status run_describe(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct report *r = state;
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
	char keys[26][4];
	struct bh_fact facts[26];
	int64_t n = args[1].as.integer;

	(void)task;
	for (int64_t i = 0; i < n && i < 26; i++) {
		memcpy(keys[i], "k_?", 4);
		keys[i][2] = letters[i];
		facts[i] = bh_fact_str(keys[i], args[0].as.text.data);
	}
	r->host->describe(r->ctx, facts, (uint32_t)n);
	memset(keys, 'x', sizeof(keys)); /* the host has copied them, or has them no more */
	return 0;
}

/* Bytes that are no UTF-8, and keys that are none. */
static bh_status run_describe_badly(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct bh_fact facts[] = { bh_fact_str("text", "\xff\xfe"), bh_fact_str(NULL, NULL) };
	struct report *r = state;

	(void)task;
	(void)args;
	r->host->describe(r->ctx, facts, 2);
	return 0;
}

static bh_status run_degrade(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct report *r = state;
	const struct bh_fact facts[] = { bh_fact_str("port", args[0].as.text.data) };

	(void)task;
	r->host->report_health(r->ctx, -ENETDOWN, "t_report.port-down", facts, 1);
	return 0;
}

static bh_status run_recover(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct report *r = state;

	(void)task;
	(void)args;
	r->host->report_health(r->ctx, 0, NULL, NULL, 0);
	return 0;
}

/* Down and up again, `n` times, and down at last. */
static bh_status run_storm(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct report *r = state;

	(void)task;
	for (int64_t i = 0; i < args[0].as.integer; i++) {
		r->host->report_health(r->ctx, -EIO, "t_report.flaps", NULL, 0);
		r->host->report_health(r->ctx, 0, NULL, NULL, 0);
	}
	r->host->report_health(r->ctx, -EIO, "t_report.last", NULL, 0);
	return 0;
}

static bh_status run_fail(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct report *r = state;

	(void)task;
	(void)args;
	r->host->report_failed(r->ctx, -EIO, "t_report.failed", NULL, 0);
	return 0;
}

/* What comes behind a failure is nothing any more. */
static bh_status run_fail_and_degrade(void *state, struct bh_task *task,
				      const struct bh_value *args)
{
	const struct timespec pause = { 0, 1000000 };
	const char *path = args[0].as.text.data;
	struct report *r = state;
	char here[256];
	FILE *file;

	run_fail(state, task, args);
	r->host->report_health(r->ctx, -EIO, "t_report.too-late", NULL, 0);
	snprintf(here, sizeof(here), "%s.here", path);
	file = fopen(here, "we");
	if (file)
		fclose(file);
	/* The pool has failed and cannot end before its worker does. */
	for (int i = 0; i < 60000 && access(path, F_OK) != 0; i++)
		nanosleep(&pause, NULL);
	return 0;
}

static void *report_for_ever(void *arg)
{
	(void)arg;
	for (unsigned n = 0; late.host; n++)
		late.host->report_health(late.ctx, n % 2 ? -EIO : 0, "t_report.for-ever", NULL, 0);
	return NULL;
}

static bh_status run_never_stop(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct report *r = state;
	pthread_t thread;

	(void)task;
	(void)args;
	late.host = r->host;
	late.ctx = r->ctx;
	if (pthread_create(&thread, NULL, report_for_ever, NULL) != 0)
		return -EAGAIN;
	pthread_detach(thread);
	return 0;
}

static bh_status run_environment(void *state, struct bh_task *task, const struct bh_value *args)
{
	const char *text = getenv(args[0].as.text.data);
	struct report *r = state;
	struct bh_value value = { .type = BH_TYPE_STR };

	value.as.text.data = text ? text : "(unset)";
	value.as.text.length = strlen(value.as.text.data);
	return r->host->result(task, &value);
}

static const struct bh_op ops[] = {
	{ .name = "add", .args = "row:int delta:int", .run = run_add, .doc = "metric_add()" },
	{ .name = "set", .args = "row:int value:int", .run = run_set, .doc = "metric_set()" },
	{ .name = "describe",
	  .args = "text:str n:int",
	  .run = run_describe,
	  .doc = "describe() with n facts" },
	{ .name = "describe_badly", .run = run_describe_badly, .doc = "describe() with no UTF-8" },
	{ .name = "degrade", .args = "port:str", .run = run_degrade, .doc = "report_health()" },
	{ .name = "recover", .run = run_recover, .doc = "report_health() with 0" },
	{ .name = "storm", .args = "n:int", .run = run_storm, .doc = "many changes" },
	{ .name = "fail", .run = run_fail, .doc = "report_failed()" },
	{ .name = "fail_and_degrade",
	  .args = "path:str",
	  .run = run_fail_and_degrade,
	  .doc = "report_failed(), then report_health(); returns when the file is there" },
	{ .name = "never_stop",
	  .run = run_never_stop,
	  .doc = "a thread that reports until the process has ended" },
	{ .name = "environment",
	  .args = "name:str",
	  .ret = "str",
	  .run = run_environment,
	  .doc = "getenv()" },
};

static const struct bh_metric metrics[] = {
	[FRAMES] = { .name = "frames_total", .kind = BH_METRIC_COUNTER, .doc = "Frames sent." },
	[DEPTH] = { .name = "depth",
		    .kind = BH_METRIC_GAUGE,
		    .doc = "Depth of the queue, frames." },
};

static const struct bh_option options[] = {
	{ .name = "degraded",
	  .type = BH_OPT_BOOL,
	  .preset = "no",
	  .doc = "whether open() reports that something is amiss" },
};

BH_PLUGIN_ENV("T_REPORT_A=from the note\nT_REPORT_SHARED=first\n");
BH_PLUGIN("t-report", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE,
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = report_open,
	.close = report_close,
	.metrics = BH_TABLE(metrics),
};
