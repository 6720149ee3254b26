/* SPDX-License-Identifier: BSD-3-Clause */
/* t_device - needs its device set on each worker's own thread, and records where that was done
 * (H12). With `leave`, what a library leaves on a thread that ends, and a thread that outlives
 * close (H19). */
#define _GNU_SOURCE 1
#include <bulkhead/plugin.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define WORKERS_MAX 16

struct device {
	struct bh_context *ctx;
	const struct bh_services *host;
	pthread_key_t key;
	int64_t linger_ms;    /* how long a thread outlives close */
	pthread_mutex_t lock; /* guards what follows */
	int64_t tid[WORKERS_MAX];
	int64_t started[WORKERS_MAX], stopped[WORKERS_MAX];
	int64_t strangers; /* tasks, stops, progress on a thread that has not its own device */
};

static _Thread_local struct device *current; /* as a CUDA context: a thread's own */
static _Thread_local int64_t current_worker;

static void leave_key(void *value)
{
	free(value);
}

static bh_status worker_start(void *state, uint32_t worker)
{
	struct device *d = state;
	const struct bh_fact fact = bh_fact_int("worker", worker);
	int64_t bad = d->host->option_int(d->ctx, "fail_worker");

	if (bad >= 0 && bad == (int64_t)worker)
		return d->host->fail(d->ctx, -ENODEV, "t_device.set", &fact, 1);
	pthread_mutex_lock(&d->lock);
	d->started[worker]++;
	d->strangers += current != NULL;
	d->tid[worker] = gettid();
	pthread_mutex_unlock(&d->lock);
	current = d;
	current_worker = worker;
	pthread_setspecific(d->key, malloc(16));
	return 0;
}

static bh_status worker_stop(void *state, uint32_t worker)
{
	struct device *d = state;

	pthread_mutex_lock(&d->lock);
	d->stopped[worker]++;
	d->strangers +=
		current != d || current_worker != (int64_t)worker || d->tid[worker] != gettid();
	pthread_mutex_unlock(&d->lock);
	current = NULL;
	return 0;
}

static void progress(void *state, uint32_t thread, int stop_fd)
{
	struct device *d = state;

	struct pollfd fd = { stop_fd, POLLIN, 0 };

	(void)thread;
	pthread_mutex_lock(&d->lock);
	d->strangers += current != NULL; /* the hook is the workers' only */
	pthread_mutex_unlock(&d->lock);
	while (poll(&fd, 1, -1) < 1)
		;
}

static void sleep_ms(int64_t ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&ts, &ts) < 0 && errno == EINTR)
		;
}

/* The worker that runs it, -1 where the hook has not run on this thread. */
static bh_status run_where(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct device *d = state;
	struct bh_value n = { .type = BH_TYPE_INT };

	sleep_ms(args[0].as.integer);
	pthread_mutex_lock(&d->lock);
	n.as.integer = current == d && d->tid[current_worker] == gettid() ? current_worker : -1;
	pthread_mutex_unlock(&d->lock);
	return d->host->result(task, &n);
}

static bh_status device_open(struct bh_context *ctx, const struct bh_services *host,
			     void **ret_state)
{
	struct device *d = calloc(1, sizeof(*d));

	if (!d)
		return host->fail(ctx, -ENOMEM, "t_device.alloc", NULL, 0);
	d->ctx = ctx;
	d->host = host;
	d->linger_ms = host->option_int(ctx, "linger_ms");
	pthread_mutex_init(&d->lock, NULL);
	if (pthread_key_create(&d->key, leave_key) != 0) {
		free(d);
		return host->fail(ctx, -EAGAIN, "t_device.key", NULL, 0);
	}
	*ret_state = d;
	return 0;
}

struct leaver {
	struct bh_context *ctx;
	const struct bh_services *host;
	int64_t ms;
};

/* Runs code of this library, and calls the host, after close has returned. */
static void *outlive(void *arg)
{
	struct leaver *leaver = arg;

	sleep_ms(leaver->ms);
	leaver->host->log(leaver->ctx, BH_LOG_INFO, "a thread outlived close", NULL, 0);
	free(leaver);
	return NULL;
}

static bh_status start_leaver(const struct device *d)
{
	struct leaver *leaver = malloc(sizeof(*leaver));
	pthread_t thread;

	if (!leaver)
		return -ENOMEM;
	*leaver = (struct leaver){ d->ctx, d->host, d->linger_ms };
	if (pthread_create(&thread, NULL, outlive, leaver) != 0) {
		free(leaver);
		return -EAGAIN;
	}
	pthread_detach(thread);
	return 0;
}

static bh_status device_close(void *state)
{
	struct device *d = state;
	struct bh_fact facts[3];
	bh_status st = 0;
	int64_t threads = 0, unequal = 0;

	for (int i = 0; i < WORKERS_MAX; i++) {
		threads += d->started[i];
		unequal += d->started[i] != d->stopped[i] || d->started[i] > 1;
	}
	facts[0] = bh_fact_int("threads", threads);
	facts[1] = bh_fact_int("unequal", unequal);
	facts[2] = bh_fact_int("strangers", d->strangers);
	d->host->log(d->ctx, BH_LOG_INFO, "devices", facts, 3);
	if (d->linger_ms > 0)
		st = start_leaver(d);
	pthread_mutex_destroy(&d->lock);
	free(d);
	return st;
}

static const struct bh_option options[] = {
	{ .name = "fail_worker",
	  .type = BH_OPT_INT,
	  .preset = "-1",
	  .min = -1,
	  .max = WORKERS_MAX,
	  .doc = "the worker whose start fails" },
	{ .name = "linger_ms",
	  .type = BH_OPT_INT,
	  .preset = "0",
	  .min = 0,
	  .max = 60000,
	  .doc = "a thread of the plugin's own ends so long after close" },
};

static const struct bh_op ops[] = {
	{ .name = "where",
	  .args = "ms:int",
	  .ret = "int",
	  .run = run_where,
	  .doc = "The worker whose device is set on this thread, after a sleep." },
};

BH_PLUGIN("t_device", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 4, .max = WORKERS_MAX },
	.progress_threads = 1,
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = device_open,
	.close = device_close,
	.worker_start = worker_start,
	.worker_stop = worker_stop,
	.progress = progress,
};
