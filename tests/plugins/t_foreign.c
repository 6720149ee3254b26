/* SPDX-License-Identifier: BSD-3-Clause */
/* t_foreign - a thread of its own that takes and releases the GIL by the C API, past the host's
 * services.
 *
 * The functions are looked up at run time, as a plugin links no libpython; the host's own, which it
 * exports to account for such calls, come first. */
#define _GNU_SOURCE
#include <bulkhead/plugin.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct foreign {
	const struct bh_services *host;
	struct bh_context *ctx;
	int adopt;
	pthread_t thread;
	atomic_int stop;
	atomic_llong rounds;
	int (*ensure)(void);
	void (*release)(int state);
};

static void *loop(void *arg)
{
	struct foreign *f = arg;
	const struct timespec pause = { 0, 300000 };

	pthread_setname_np(pthread_self(), "t_foreign");
	/* Twice: the second time is fine too. */
	if (f->adopt && (f->host->adopt_thread(f->ctx) < 0 || f->host->adopt_thread(f->ctx) < 0))
		return NULL;
	while (!atomic_load(&f->stop)) {
		int state = f->ensure();

		f->release(state);
		atomic_fetch_add(&f->rounds, 1);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static int find(void *to, const char *name)
{
	void *symbol = dlsym(RTLD_DEFAULT, name);

	memcpy(to, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static bh_status foreign_open(struct bh_context *ctx, const struct bh_services *host,
			      void **ret_state)
{
	struct foreign *f = calloc(1, sizeof(*f));
	int error;

	if (!f)
		return host->fail(ctx, -ENOMEM, "t_foreign.alloc", NULL, 0);
	f->host = host;
	f->ctx = ctx;
	f->adopt = (int)host->option_int(ctx, "adopt");
	if (!find(&f->ensure, "PyGILState_Ensure") || !find(&f->release, "PyGILState_Release")) {
		free(f);
		return host->fail(ctx, -ENOSYS, "t_foreign.no-python", NULL, 0);
	}
	error = pthread_create(&f->thread, NULL, loop, f);
	if (error) {
		free(f);
		return host->fail(ctx, -error, "t_foreign.thread", NULL, 0);
	}
	*ret_state = f;
	return 0;
}

static bh_status foreign_close(void *state)
{
	struct foreign *f = state;

	atomic_store(&f->stop, 1);
	pthread_join(f->thread, NULL);
	free(f);
	return 0;
}

static bh_status run_rounds(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct foreign *f = state;
	struct bh_value n = { .type = BH_TYPE_INT };

	(void)args;
	n.as.integer = atomic_load(&f->rounds);
	return f->host->result(task, &n);
}

static const struct bh_option options[] = {
	{ .name = "adopt",
	  .type = BH_OPT_BOOL,
	  .preset = "no",
	  .doc = "Have the host adopt the thread." },
};

static const struct bh_op ops[] = {
	{ .name = "rounds",
	  .ret = "int",
	  .run = run_rounds,
	  .doc = "How often the thread has had the GIL." },
};

BH_PLUGIN("t_foreign", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE,
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = foreign_open,
	.close = foreign_close,
};
