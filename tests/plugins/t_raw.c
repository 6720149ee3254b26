/* SPDX-License-Identifier: BSD-3-Clause */
/* t_raw - takes the GIL by the C API's own names, which its file imports: on a thread of its own, and
 * on the worker outside of any site. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* As Python.h has them; a plugin brings neither its headers nor its library. */
extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int state);

struct raw {
	const struct bh_services *host;
	struct bh_context *ctx;
};

static void *take(void *arg)
{
	const long long *n = arg;

	for (long long i = 0; i < *n; i++)
		PyGILState_Release(PyGILState_Ensure());
	return NULL;
}

static bh_status raw_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	struct raw *r = calloc(1, sizeof(*r));

	if (!r)
		return host->fail(ctx, -ENOMEM, "t_raw.alloc", NULL, 0);
	r->host = host;
	r->ctx = ctx;
	*ret_state = r;
	return 0;
}

static bh_status raw_close(void *state)
{
	free(state);
	return 0;
}

static bh_status run_thread(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct raw *r = state;
	long long n = args[0].as.integer;
	pthread_t thread;
	int error = pthread_create(&thread, NULL, take, &n);

	(void)task;
	if (error)
		return r->host->fail(r->ctx, -error, "t_raw.thread", NULL, 0);
	pthread_join(thread, NULL);
	return 0;
}

static bh_status run_here(void *state, struct bh_task *task, const struct bh_value *args)
{
	long long n = args[0].as.integer;

	(void)state;
	(void)task;
	take(&n);
	return 0;
}

static const struct bh_op ops[] = {
	{ .name = "thread",
	  .args = "n:int",
	  .run = run_thread,
	  .doc = "Has a thread of its own take the GIL n times." },
	{ .name = "here",
	  .args = "n:int",
	  .run = run_here,
	  .doc = "Has the worker take the GIL n times." },
};

BH_PLUGIN("t_raw", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE,
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(ops),
	.open = raw_open,
	.close = raw_close,
};
