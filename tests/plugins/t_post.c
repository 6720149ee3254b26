/* SPDX-License-Identifier: BSD-3-Clause */
/* t_post - posts work, keeps objects for longer than their tasks, and has code that Python calls by
 * its address: from destructors and from threads of Python's own.
 *
 * Python's functions are looked up at run time, as a plugin links no libpython. */
#define _GNU_SOURCE
#include <bulkhead/plugin.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SITE_APPEND, N_SITES };

struct post {
	const struct bh_services *host;
	struct bh_context *ctx;
	pthread_mutex_t lock;	/* its own: held while it posts, taken by what is posted */
	struct bh_object *kept; /* under lock */
};

struct append {
	struct post *post;
	int64_t number;
};

/* The library's, not one opened plugin's: Python calls these with no state. */
static struct {
	int (*ensure)(void);
	void (*release)(int state);
	int (*run)(const char *code);
	int (*finalizing)(void);
	atomic_int unblocked;
} library;

static void find(void *to, const char *name)
{
	void *symbol = dlsym(RTLD_DEFAULT, name);

	if (symbol)
		memcpy(to, &symbol, sizeof(symbol));
}

static void say(const char *text)
{
	if (write(STDERR_FILENO, text, strlen(text)) < 0)
		_exit(1);
}

static void nap(long ms)
{
	const struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&pause, NULL);
}

/* ---- posting --------------------------------------------------------------------------------- */

/* Under the GIL. It takes the lock that is held during the posts: a post that waited for the GIL
 * would never end. */
static void append(void *arg)
{
	struct append *job = arg;
	char code[64];

	pthread_mutex_lock(&job->post->lock);
	snprintf(code, sizeof(code), "import app\napp.seen.append(%lld)\n", (long long)job->number);
	library.run(code);
	pthread_mutex_unlock(&job->post->lock);
	free(job);
}

static bh_status run_burst(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct post *p = state;
	bh_status st = 0;

	(void)task;
	pthread_mutex_lock(&p->lock);
	for (int64_t i = 0; i < args[1].as.integer && st == 0; i++) {
		struct append *job = malloc(sizeof(*job));

		if (!job) {
			st = -ENOMEM;
			break;
		}
		*job = (struct append){ p, args[0].as.integer + i };
		st = p->host->post(p->ctx, SITE_APPEND, append, job);
		if (st < 0)
			free(job);
		if (i % 16 == 0)
			nap(1); /* the courier comes, and waits for the lock */
	}
	pthread_mutex_unlock(&p->lock);
	return st;
}

static void post_one(void *arg)
{
	struct append *job = malloc(sizeof(*job));

	if (!job)
		return;
	*job = *(struct append *)arg;
	job->number++;
	if (job->post->host->post(job->post->ctx, SITE_APPEND, append, job) < 0)
		free(job);
}

/* From inside a scope: it has run by the time that post() returns. */
static bh_status run_inside(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct post *p = state;
	struct append job = { p, args[0].as.integer };

	(void)task;
	return p->host->run_gil(p->ctx, SITE_APPEND, post_one, &job);
}

static void leave(void *arg)
{
	exit((int)(intptr_t)arg);
}

static bh_status run_leave(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct post *p = state;

	(void)task;
	return p->host->post(p->ctx, SITE_APPEND, leave, (void *)(intptr_t)args[0].as.integer);
}

/* Never returns, and lets go of the GIL meanwhile. */
static void stick(void *arg)
{
	(void)arg;
	say("t_post: stuck\n");
	library.run("import time\ntime.sleep(1000)\n");
}

static bh_status run_stick(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct post *p = state;

	(void)task;
	(void)args;
	return p->host->post(p->ctx, SITE_APPEND, stick, NULL);
}

/* A site that the descriptor does not have. */
static bh_status run_stray(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct post *p = state;

	(void)task;
	(void)args;
	return p->host->post(p->ctx, N_SITES, append, NULL);
}

/* ---- keeping --------------------------------------------------------------------------------- */

static bh_status run_keep(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct post *p = state;
	struct bh_object *before;

	(void)task;
	pthread_mutex_lock(&p->lock);
	before = p->kept;
	p->kept = p->host->object_ref(args[0].as.object);
	pthread_mutex_unlock(&p->lock);
	p->host->object_unref(before);
	return 0;
}

/* Off the GIL, and under a lock. */
static bh_status run_drop(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct post *p = state;

	(void)task;
	(void)args;
	pthread_mutex_lock(&p->lock);
	p->host->object_unref(p->kept);
	p->kept = NULL;
	pthread_mutex_unlock(&p->lock);
	return 0;
}

static bh_status run_nap(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	say("t_post: napping\n");
	nap((long)args[0].as.integer);
	return 0;
}

/* ---- called by address ----------------------------------------------------------------------- */

static void touch(void)
{
	int state = library.ensure();

	say(library.finalizing() ? "t_post: touched while finalizing\n" : "t_post: touched\n");
	library.release(state);
}

/* For so many ms; below 0 until unblock(), or for ever. */
static void block(int ms)
{
	say("t_post: blocking\n");
	if (ms >= 0)
		nap(ms);
	while (ms < 0 && !atomic_load(&library.unblocked))
		nap(10);
}

static void unblock(void)
{
	atomic_store(&library.unblocked, 1);
}

static bh_status run_address(void *state, struct bh_task *task, const struct bh_value *args)
{
	static void *const functions[] = { (void *)touch, (void *)block, (void *)unblock };
	struct post *p = state;
	struct bh_value value = { .type = BH_TYPE_INT };

	if (args[0].as.integer < 0 || args[0].as.integer > 2)
		return -EINVAL;
	value.as.integer = (int64_t)(intptr_t)functions[args[0].as.integer];
	return p->host->result(task, &value);
}

/* ---- the plugin ------------------------------------------------------------------------------ */

static bh_status post_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	struct post *p = calloc(1, sizeof(*p));

	find(&library.ensure, "PyGILState_Ensure");
	find(&library.release, "PyGILState_Release");
	find(&library.run, "PyRun_SimpleString");
	find(&library.finalizing, "_Py_IsFinalizing"); /* up to 3.12 */
	find(&library.finalizing, "Py_IsFinalizing");
	if (!p || !library.ensure || !library.release || !library.run || !library.finalizing) {
		free(p);
		return host->fail(ctx, -ENOSYS, "t_post.symbol", NULL, 0);
	}
	p->host = host;
	p->ctx = ctx;
	pthread_mutex_init(&p->lock, NULL);
	*ret_state = p;
	return 0;
}

static bh_status post_close(void *state)
{
	struct post *p = state;

	p->host->object_unref(p->kept);
	p->kept = NULL;
	return 0; /* the rest stays: what was posted may still run */
}

static const struct bh_site sites[] = {
	[SITE_APPEND] = { .name = "append",
			  .policy = BH_SITE_DATA_ONLY,
			  .doc = "append a number to a list of the app's" },
};
_Static_assert(sizeof(sites) / sizeof(sites[0]) == N_SITES, "one row a site");

static const struct bh_op ops[] = {
	{ .name = "burst", .args = "first:int n:int", .run = run_burst, .doc = "Posts n numbers." },
	{ .name = "inside",
	  .args = "number:int",
	  .run = run_inside,
	  .doc = "Posts number + 1 from inside a scope." },
	{ .name = "leave", .args = "status:int", .run = run_leave, .doc = "Posts an exit()." },
	{ .name = "stick", .run = run_stick, .doc = "Posts what never ends." },
	{ .name = "stray", .run = run_stray, .doc = "Posts at a site that is not declared." },
	{ .name = "keep", .args = "thing:object", .run = run_keep, .doc = "Keeps it until drop." },
	{ .name = "drop", .run = run_drop, .doc = "Drops what keep has kept." },
	{ .name = "nap", .args = "ms:int", .run = run_nap, .doc = "Sleeps." },
	{ .name = "address",
	  .args = "which:int",
	  .ret = "int",
	  .run = run_address,
	  .doc = "Where 0: touch(), 1: block(ms), 2: unblock() is." },
};

BH_PLUGIN("t_post", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 8 },
	.progress_threads = 0,
	.sites = BH_TABLE(sites),
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(ops),
	.open = post_open,
	.close = post_close,
};
