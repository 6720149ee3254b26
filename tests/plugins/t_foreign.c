/* SPDX-License-Identifier: BSD-3-Clause */
/* t_foreign - a thread of its own that takes and releases the GIL in a loop, with a mutex of its own
 * held round it: by the C API, past the host's services, or by them; and, by option, longer than
 * the plugin lives.
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
	int adopt, by_service, outlive;
	pthread_t thread;
	pthread_mutex_t mutex; /* the loop's, round each take and release */
	atomic_int stop;
	atomic_llong rounds, refused;
	atomic_llong hold_ms; /* of the next round, once */
	int (*ensure)(void);
	void (*release)(int state);
};

static void under_the_gil(void *arg)
{
	struct foreign *f = arg;
	uint64_t ms = (uint64_t)atomic_exchange(&f->hold_ms, 0);
	uint64_t until = f->host->now_ns() + ms * 1000000u;

	while (ms > 0 && f->host->now_ns() < until)
		; /* as C code that keeps it: neither sleeps nor calls Python */
	atomic_fetch_add(&f->rounds, 1);
}

static void one_round(struct foreign *f)
{
	pthread_mutex_lock(&f->mutex);
	if (f->by_service) {
		bh_status st = f->host->run_gil(f->ctx, 0, under_the_gil, f);

		if (st < 0 && atomic_fetch_add(&f->refused, 1) == 0) {
			const struct bh_fact fact = bh_fact_int("errno", -st);

			f->host->log(f->ctx, BH_LOG_INFO, "t_foreign was refused", &fact, 1);
		}
	} else {
		int state = f->ensure();

		under_the_gil(f);
		f->release(state);
	}
	pthread_mutex_unlock(&f->mutex);
}

static void *loop(void *arg)
{
	struct foreign *f = arg;
	unsigned seed = (unsigned)f->host->now_ns();

	pthread_setname_np(pthread_self(), "t_foreign");
	/* Twice: the second time is fine too. */
	if (f->adopt && (f->host->adopt_thread(f->ctx) < 0 || f->host->adopt_thread(f->ctx) < 0))
		return NULL;
	while (f->outlive || !atomic_load(&f->stop)) {
		const struct timespec pause = { 0, rand_r(&seed) % 1000000 };

		one_round(f);
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
	f->outlive = (int)host->option_int(ctx, "outlive");
	f->by_service = strcmp(host->option_text(ctx, "way"), "service") == 0;
	pthread_mutex_init(&f->mutex, NULL);
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
	if (f->outlive) {
		pthread_detach(f->thread); /* `f` stays: it is the thread's */
		return 0;
	}
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

static bh_status run_hold(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct foreign *f = state;

	(void)task;
	atomic_store(&f->hold_ms, args[0].as.integer);
	return 0;
}

static const struct bh_site sites[] = {
	{ .name = "loop", .policy = BH_SITE_DATA_ONLY, .doc = "one round of the thread" },
};

static const struct bh_option options[] = {
	{ .name = "adopt",
	  .type = BH_OPT_BOOL,
	  .preset = "no",
	  .doc = "Have the host adopt the thread." },
	{ .name = "way",
	  .type = BH_OPT_ENUM,
	  .preset = "raw",
	  .choices = "raw|service",
	  .doc = "How the thread takes the GIL." },
	{ .name = "outlive",
	  .type = BH_OPT_BOOL,
	  .preset = "no",
	  .doc = "The thread goes on after close()." },
};

static const struct bh_op ops[] = {
	{ .name = "rounds",
	  .ret = "int",
	  .run = run_rounds,
	  .doc = "How often the thread has had the GIL." },
	{ .name = "hold",
	  .args = "ms:int",
	  .run = run_hold,
	  .doc = "Has the thread keep the GIL in C for that long in its next round." },
};

BH_PLUGIN("t_foreign", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.progress_threads = 0,
	.sites = BH_TABLE(sites),
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = foreign_open,
	.close = foreign_close,
};
