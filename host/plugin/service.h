/* SPDX-License-Identifier: BSD-3-Clause */
/* service - what the host does for a plugin: the table given to open(), and the context behind it.
 *
 * One context a loaded plugin. It outlives its module: the plugin's own threads may call with it
 * until the process ends (bulkhead/plugin.h), so it is freed only when the plugin never saw it.
 *
 * Thread: the table from any; the context is fixed before its pool starts but for the fields
 *         marked.
 * Keeps:  PLG-3 (nothing from a plugin is taken on trust), RI-5 (a late completion is refused). */
#ifndef BH_HOST_PLUGIN_SERVICE_H
#define BH_HOST_PLUGIN_SERVICE_H

#include <stdatomic.h>

#include "host/core/slot.h"
#include "host/gil/gil.h"
#include "host/manifest/option.h"
#include "host/plugin/descriptor.h"
#include "host/plugin/report.h"

struct bh_context {
	char label[BH_LABEL_MAX];	  /* I */
	struct bh_module *module;	  /* I: borrowed; not read once the module is freed */
	struct bh_descriptor *descriptor; /* I: owned */
	struct bh_option_value *options;  /* I: owned; one a row of the descriptor's */
	bh_gil_site *sites;		  /* I: owned; one a row of the descriptor's */
	uint32_t n_workers;		  /* I */
	struct bh_report report;	  /* its own; lives as the context does */
	/* I: set before the pool starts; NULL: nobody wants to know. As bh_module_set_health(). */
	void (*health)(const struct bh_error *cause, void *arg);
	void *health_arg;
	void *state; /* T: supervisor, in open; read by threads made after it */
	bool seen;   /* T: supervisor; the plugin has been given this context */
	/* The pool lives as long as this is not 0: the module's reference, and one for each service
	 * that uses the pool at the moment (A: acquire on take, acq_rel on drop). */
	_Atomic uint32_t pool_refs;
	struct bh_pool *pool;	    /* I: owned through pool_refs */
	struct bh_backend backend;  /* I: the pool's table */
	struct bh_slot_owner slots; /* of its slots on buffers */
	struct bh_context *next;    /* among those that outlived their module */
};

extern const struct bh_services bh_service_table;

/* What host/python has given; NULL in a host without an interpreter. Thread: any. */
const struct bh_python_services *bh_service_python(void);

/* Frees the tables and, when the plugin has never seen it, the context; drops the module's
 * reference to the pool. NULL is fine. */
struct bh_context *bh_context_retire(struct bh_context *context);

/* Makes the owner of the slots; before the plugin sees the context. */
void bh_service_slots_init(struct bh_context *context);
/* The plugin has returned from close(), or from an open() that failed: no release() of its is called
 * any more. Slots that are left are told of in the log. Supervisor, once. */
void bh_service_slots_end(struct bh_context *context, const char *step);

/* Around a callback that may call services->fail(): what it says goes to `err`. Same thread; no
 * nesting. */
void bh_service_begin(struct bh_context *context, struct bh_error *err);
void bh_service_end(void);

/* Around run(): the task's services know it by this. On the stack of the thread that runs it;
 * nests, because a waiting thread runs queued tasks inline (SUP-7). */
struct bh_service_run {
	struct bh_context *context;
	struct bh_task *task;
	const struct bh_module_op *op;
	bool has_result;
	struct bh_service_run *outer;
};
void bh_service_run_begin(struct bh_service_run *run);
void bh_service_run_end(struct bh_service_run *run);

#endif
