/* SPDX-License-Identifier: BSD-3-Clause */
/* t_drv - a plugin over the pretend driver of tests/drv, which it opens at run time.
 *
 * It keeps to the manual: never calls the driver with the GIL held, since the driver's thread takes
 * the GIL with the driver's inner lock held. */
#include <bulkhead/plugin.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/drv/fakedrv.h"

enum { SITE_CALLBACK, N_SITES };

struct drv {
	struct bh_context *ctx;
	const struct bh_services *host;
	int adopt;
	atomic_llong n_callbacks, n_refused;
	int (*init)(void);
	int (*set_device)(int device);
	int (*alloc)(size_t size, void **ret_memory);
	int (*free)(void *memory);
	int (*copy)(void *to, const void *from, size_t size);
	int (*callback)(void (*fn)(void *arg), void *arg);
	int (*synchronize)(void);
	int (*fault)(void);
};

static void count(void *arg)
{
	struct drv *drv = arg;

	atomic_fetch_add(&drv->n_callbacks, 1);
}

/* On the driver's thread, its inner lock held. */
static void on_callback(void *arg)
{
	struct drv *drv = arg;

	if (drv->adopt)
		(void)drv->host->adopt_thread(drv->ctx);
	if (drv->host->run_gil(drv->ctx, SITE_CALLBACK, count, drv) < 0)
		atomic_fetch_add(&drv->n_refused, 1);
}

static bh_status failed(struct drv *drv, struct bh_task *task, const char *call, int status)
{
	const struct bh_fact facts[] = { bh_fact_str("call", call), bh_fact_int("code", status) };

	if (status == FD_STICKY)
		drv->host->report_failed(drv->ctx, -EIO, "t_drv.sticky", facts, 2);
	return drv->host->task_fail(task, -EIO, "t_drv.call", facts, 2);
}

/* Waits while the driver's queue is full; without the GIL, as for every call of the driver. */
static int enqueue(struct drv *drv)
{
	int status = drv->callback(on_callback, drv);

	while (status == FD_MEMORY) {
		status = drv->synchronize();
		if (status == FD_OK)
			status = drv->callback(on_callback, drv);
	}
	return status;
}

/* n rounds of a copy and a callback, then until all have run. Returns how many ran in all. */
static bh_status run_work(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_value value = { .type = BH_TYPE_INT };
	struct drv *drv = state;
	char from[64] = "device memory";
	void *memory = NULL;
	int status = drv->alloc(sizeof(from), &memory), ended;

	for (int64_t i = 0; status == FD_OK && i < args[0].as.integer; i++) {
		status = drv->copy(memory, from, sizeof(from));
		if (status == FD_OK)
			status = enqueue(drv);
	}
	ended = drv->synchronize(); /* after a failure too: the callbacks use `drv` */
	if (status == FD_OK)
		status = ended;
	if (memory && drv->free(memory) != FD_OK && status == FD_OK)
		status = FD_INVALID;
	if (status != FD_OK)
		return failed(drv, task, "work", status);
	value.as.integer = atomic_load(&drv->n_callbacks);
	return drv->host->result(task, &value);
}

static bh_status run_fault(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct drv *drv = state;
	int status = drv->fault();

	(void)args;
	return status == FD_OK ? 0 : failed(drv, task, "fault", status);
}

static bh_status drv_worker_start(void *state, uint32_t worker)
{
	struct drv *drv = state;

	if (drv->set_device((int)worker % FD_DEVICES) != FD_OK)
		return drv->host->fail(drv->ctx, -EIO, "t_drv.set_device", NULL, 0);
	return 0;
}

static int find(void *library, void *to, const char *name)
{
	void *symbol = dlsym(library, name);

	memcpy(to, &symbol, sizeof(symbol));
	return symbol != NULL;
}

static bh_status open_driver(struct drv *drv)
{
	const char *path = drv->host->option_text(drv->ctx, "driver");
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* for good, as drivers are */

	if (!library) {
		const struct bh_fact fact = bh_fact_str("reason", dlerror());

		return drv->host->fail(drv->ctx, -ENOENT, "t_drv.open", &fact, 1);
	}
	if (!find(library, &drv->init, "fd_init") ||
	    !find(library, &drv->set_device, "fd_set_device") ||
	    !find(library, &drv->alloc, "fd_alloc") || !find(library, &drv->free, "fd_free") ||
	    !find(library, &drv->copy, "fd_copy") ||
	    !find(library, &drv->callback, "fd_callback") ||
	    !find(library, &drv->synchronize, "fd_synchronize") ||
	    !find(library, &drv->fault, "fd_fault"))
		return drv->host->fail(drv->ctx, -ENOSYS, "t_drv.symbol", NULL, 0);
	if (drv->init() != FD_OK)
		return drv->host->fail(drv->ctx, -EIO, "t_drv.init", NULL, 0);
	return 0;
}

static bh_status drv_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	struct drv *drv = calloc(1, sizeof(*drv));
	bh_status st;

	if (!drv)
		return host->fail(ctx, -ENOMEM, "t_drv.alloc", NULL, 0);
	drv->ctx = ctx;
	drv->host = host;
	drv->adopt = (int)host->option_int(ctx, "adopt");
	st = open_driver(drv);
	if (st < 0) {
		free(drv);
		return st;
	}
	*ret_state = drv;
	return 0;
}

static bh_status drv_close(void *state)
{
	struct drv *drv = state;
	const struct bh_fact facts[] = {
		bh_fact_int("callbacks", atomic_load(&drv->n_callbacks)),
		bh_fact_int("refused", atomic_load(&drv->n_refused)),
	};

	drv->host->log(drv->ctx, BH_LOG_INFO, "t_drv is closed", facts, 2);
	free(drv);
	return 0;
}

static const struct bh_site sites[] = {
	[SITE_CALLBACK] = { .name = "callback",
			    .policy = BH_SITE_DATA_ONLY,
			    .doc = "a completion, on the driver's thread" },
};
_Static_assert(sizeof(sites) / sizeof(sites[0]) == N_SITES, "one row a site");

static const struct bh_option options[] = {
	{ .name = "driver", .type = BH_OPT_PATH, .preset = "/", .doc = "The driver's library." },
	{ .name = "adopt",
	  .type = BH_OPT_BOOL,
	  .preset = "no",
	  .doc = "Have the host adopt the driver's thread." },
};

static const struct bh_op ops[] = {
	{ .name = "work",
	  .args = "n:int",
	  .ret = "int",
	  .run = run_work,
	  .doc = "n copies with a callback each; returns how many callbacks have run." },
	{ .name = "fault", .run = run_fault, .doc = "Succeeds, and breaks the device for good." },
};

BH_PLUGIN("t_drv", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 16 },
	.progress_threads = 0,
	.sites = BH_TABLE(sites),
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = drv_open,
	.close = drv_close,
	.worker_start = drv_worker_start,
};
