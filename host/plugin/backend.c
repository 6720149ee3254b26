/* SPDX-License-Identifier: BSD-3-Clause */
/* backend - see backend.h.
 *
 * Thread: as struct bh_backend says for each. GIL: not held. Blocks: as long as the plugin does.
 * Keeps:  GIL-8 (a worker's thread state exists before and after the plugin's part of its life),
 *         PLG-6, SUP-5 (what a callback returns or throws becomes an error that names plugin and
 *         step). */
#include "config.h"

#include "host/plugin/backend.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/core/exit_hook.h"
#include "host/core/fault.h"
#include "host/core/format.h"
#include "host/core/log.h"
#include "host/gil/gil.h"
#include "host/plugin/boundary.h"
#include "host/plugin/name.h"
#include "host/plugin/surroundings.h"

#define COMPONENT "plugin"

static const struct bh_plugin *plugin_of(const struct bh_context *context)
{
	return &context->descriptor->plugin;
}

/* What the plugin said by fail() before it threw stays the error; the exception joins it. */
static bh_status raise_thrown(const struct bh_thrown *thrown, struct bh_error *err)
{
	const char *what =
		bh_utf8_valid(thrown->what, strlen(thrown->what)) ? thrown->what : "(not UTF-8)";

	bh_raise(err, -EPROTO, "plugin.exception");
	return bh_note(err, -EPROTO, BH_STR("exception", thrown->type), BH_STR("what", what));
}

/* A fault point that is hit makes a callback fail: one that builds or runs is not called at all, one
 * that undoes has undone and says that it has not. */
static bool fault(const char *step)
{
	return bh_fault_hit(BH_FAULT_CALLBACK, step, __builtin_return_address(0));
}

/* What a callback returned, and what it said by fail(), made one: either both or neither. */
static bh_status finish(const struct bh_context *context, const char *step, bh_status st,
			const struct bh_thrown *thrown, struct bh_error *err)
{
	if (thrown->thrown)
		st = raise_thrown(thrown, err);
	if (st == 0) {
		if (bh_error_is_set(err)) {
			bh_note(err, err->status, BH_STR("plugin", context->label),
				BH_STR("step", step));
			bh_log_error(BH_LOG_WARNING, COMPONENT,
				     "plugin called fail() and then returned 0", err);
			bh_error_clear(err);
		}
		return 0;
	}
	if (st > 0) {
		bh_raise(err, -EPROTO, "plugin.status", BH_INT("status", st),
			 BH_STR("accepted", "0 or a negative errno"));
		st = -EPROTO;
	}
	bh_raise(err, st, "plugin.failed"); /* does nothing where the plugin said more by fail() */
	return bh_note(err, st, BH_STR("plugin", context->label), BH_STR("step", step));
}

static bh_status backend_open(void *self, struct bh_error *err)
{
	struct bh_context *context = self;
	struct bh_surroundings before;
	struct bh_thrown thrown = { .thrown = false };
	bh_status st;

	bh_surroundings_save(&before);
	context->seen = true;
	bh_service_begin(context, err);
	st = fault("open") ? -EIO
			   : bh_boundary_open(plugin_of(context), context, &bh_service_table,
					      &context->state, &thrown);
	bh_service_end();
	bh_exit_hook_refresh(); /* EXIT-2: behind what open registered unseen */
	bh_surroundings_restore(&before, context->label, "open"); /* PLG-6 */
	st = finish(context, "open", st, &thrown, err);
	if (st < 0)
		bh_service_slots_end(context, "open"); /* close() will not be called */
	return st;
}

static bh_status backend_close(void *self, struct bh_error *err)
{
	struct bh_context *context = self;
	struct bh_thrown thrown = { .thrown = false };
	bh_status st;

	bh_service_begin(context, err);
	st = bh_boundary_close(plugin_of(context), context->state, &thrown);
	if (fault("close"))
		st = -EIO;
	bh_service_end();
	bh_service_slots_end(context, "close");
	return finish(context, "close", st, &thrown, err);
}

static bool takes_gil(const struct bh_context *context)
{
	return context->descriptor->n_sites > 0;
}

static bh_status backend_worker_start(void *self, uint32_t worker, struct bh_error *err)
{
	struct bh_context *context = self;
	struct bh_thrown thrown = { .thrown = false };
	bh_status st;

	if (takes_gil(context)) {
		st = bh_gil_worker_start(err); /* GIL-8 */
		if (st < 0)
			return bh_note(err, st, BH_STR("plugin", context->label),
				       BH_STR("step", "worker_start"));
	}
	if (!plugin_of(context)->worker_start)
		return 0;
	bh_service_begin(context, err);
	st = fault("worker_start") ? -EIO
				   : bh_boundary_worker(plugin_of(context)->worker_start,
							context->state, worker, &thrown);
	bh_service_end();
	st = finish(context, "worker_start", st, &thrown, err);
	if (st < 0 && takes_gil(context))
		bh_gil_worker_stop();
	return st;
}

static bh_status backend_worker_stop(void *self, uint32_t worker, struct bh_error *err)
{
	struct bh_context *context = self;
	struct bh_thrown thrown = { .thrown = false };
	bh_status st = 0;

	if (plugin_of(context)->worker_stop) {
		bh_service_begin(context, err);
		st = bh_boundary_worker(plugin_of(context)->worker_stop, context->state, worker,
					&thrown);
		if (fault("worker_stop"))
			st = -EIO;
		bh_service_end();
		st = finish(context, "worker_stop", st, &thrown, err);
	}
	if (takes_gil(context))
		bh_gil_worker_stop();
	return st;
}

/* What run() returned, made true: a failure has an error, a success has the result it promised. */
static bh_status finish_run(const struct bh_service_run *run, bh_status st)
{
	struct bh_error *err = bh_task_error(run->task);

	if (st == BH_PENDING || st == -ECANCELED)
		return st;
	if (st > 0)
		return bh_raise(err, -EPROTO, "plugin.status", BH_INT("status", st),
				BH_STR("accepted", "0, BH_PENDING or a negative errno"));
	if (st < 0)
		return bh_raise(err, st, "plugin.failed"); /* unless task_fail() has said more */
	if (run->has_result || run->op->signature.ret == BH_TYPE_NONE)
		return 0;
	/* A result() that was refused has raised its own error already, and that one stays. */
	return bh_raise(err, -EPROTO, "plugin.no-result",
			BH_STR("want", bh_type_name(run->op->signature.ret)));
}

/* ---- arguments that are results of other tasks ----------------------------------------------- */

static bool takes_none(const struct bh_parameter *p)
{
	return p->has_preset && p->preset.type == BH_TYPE_NONE;
}

static const char on_device[] = "buffer on a CUDA device"; /* to be told by its address */

static bh_status refuse_argument(struct bh_task *task, const struct bh_parameter *p,
				 const struct bh_ticket *from, const char *given)
{
	char accepted[64];

	snprintf(accepted, sizeof(accepted), "%s%s%s%s",
		 p->marks & BH_MARK_WRITABLE ? "writable " : "", bh_type_name(p->type),
		 given == on_device ? " of the host's memory" : "",
		 takes_none(p) ? " or none" : "");
	return bh_raise(bh_task_error(task), -EINVAL, "task.argument", BH_STR("parameter", p->name),
			BH_STR("given", given), BH_STR("accepted", accepted),
			BH_STR("from_pool", bh_pool_label(from->pool)),
			BH_STR("from_op", from->op_name), BH_INT("from_task", from->task_id));
}

/* Why a buffer does not fit; NULL: it does. The task has a reference to it already, so that memory which
 * has not been taken back by now stays until the task has ended (device_memory.c). */
static const char *misfit(const struct bh_buffer *buffer, uint32_t marks)
{
	if (bh_buffer_is_revoked(buffer))
		return "buffer whose memory has been freed";
	if (buffer->info.kind == BH_BUFFER_CUDA && !(marks & BH_MARK_DEVICE))
		return on_device;
	if (marks & BH_MARK_WRITABLE && !(buffer->info.flags & BH_BUFFER_WRITABLE))
		return "read-only buffer";
	if (!(marks & BH_MARK_STRIDED) && !bh_buffer_is_contiguous(buffer))
		return "buffer that is not C-contiguous";
	return NULL;
}

/* The same of what is in a list, at any depth: a list takes what there is, but for device memory. */
static const char *misfit_inside(const struct bh_value *value, uint32_t marks)
{
	const char *why = NULL;

	if (value->type == BH_TYPE_BUFFER)
		return misfit(value->as.buffer, (marks & BH_MARK_DEVICE) | BH_MARK_STRIDED);
	for (uint64_t i = 0; value->type == BH_TYPE_LIST && !why && i < value->as.list.count; i++)
		why = misfit_inside(&value->as.list.items[i], marks);
	return why;
}

static const char *why_not(const struct bh_parameter *p, const struct bh_value *value)
{
	if (value->type == BH_TYPE_NONE && takes_none(p))
		return NULL;
	if (value->type != p->type)
		return bh_type_name(value->type);
	return value->type == BH_TYPE_BUFFER ? misfit(value->as.buffer, p->marks)
					     : misfit_inside(value, p->marks);
}

static bool fits(const struct bh_parameter *p, const struct bh_value *value)
{
	return !why_not(p, value);
}

/* What would be the same value had it been given directly: numbers that the other type can hold. */
static void widen(const struct bh_parameter *p, struct bh_value *value)
{
	if (p->type == BH_TYPE_FLOAT && value->type == BH_TYPE_INT)
		*value = (struct bh_value){ .type = BH_TYPE_FLOAT,
					    .as.real = (double)value->as.integer };
	else if (p->type == BH_TYPE_HANDLE && value->type == BH_TYPE_INT && value->as.integer >= 0)
		*value = (struct bh_value){ .type = BH_TYPE_HANDLE,
					    .as.handle = (uint64_t)value->as.integer };
	else if (p->type == BH_TYPE_INT && value->type == BH_TYPE_HANDLE &&
		 value->as.handle <= INT64_MAX)
		*value = (struct bh_value){ .type = BH_TYPE_INT,
					    .as.integer = (int64_t)value->as.handle };
}

static bh_status wrap(struct bh_task *task, struct bh_value *value)
{
	const struct bh_python_services *python = bh_service_python();
	struct bh_object *object;

	if (!python)
		return bh_raise(bh_task_error(task), -ESHUTDOWN, "python.absent");
	object = python->wrap(value);
	if (!object)
		return bh_raise(bh_task_error(task), -ENOMEM, "task.argument",
				BH_STR("reason", "no memory for an object"));
	*value = (struct bh_value){ .type = BH_TYPE_OBJECT, .as.object = object };
	return 0;
}

/* What a callable has returned, for a parameter that does not take any object. */
static bh_status unwrap(struct bh_task *task, const struct bh_parameter *p,
			const struct bh_ticket *from, struct bh_value *value)
{
	const struct bh_python_services *python = bh_service_python();
	struct bh_value own = { .type = BH_TYPE_NONE };
	char given[64] = "object";
	bh_status st = -EINVAL;

	if (python)
		st = python->unwrap(value->as.object, p->type, p->marks, takes_none(p), &own, given,
				    sizeof(given), bh_task_error(task));
	if (st < 0)
		return bh_error_is_set(bh_task_error(task)) ? st
							    : refuse_argument(task, p, from, given);
	bh_value_clear(value);
	*value = own;
	return 0;
}

/* A bh_accept_fn: the check that the submitter made of all the other arguments. */
static bh_status accept_argument(void *arg, struct bh_task *task, uint32_t parameter, bool element,
				 const struct bh_ticket *from, struct bh_value *value)
{
	const struct bh_module_op *op = arg;
	const struct bh_parameter *p = &op->signature.p[parameter];
	const char *given;

	if (element && !p->variadic) {
		given = misfit_inside(value, p->marks);
		return given ? refuse_argument(task, p, from, given) : 0;
	}
	if (p->type == BH_TYPE_OBJECT && value->type != BH_TYPE_OBJECT && !fits(p, value))
		return wrap(task, value);
	widen(p, value);
	if (fits(p, value))
		return 0;
	if (value->type == BH_TYPE_OBJECT)
		return unwrap(task, p, from, value);
	return refuse_argument(task, p, from, why_not(p, value));
}

static bh_status backend_run(void *self, struct bh_task *task)
{
	struct bh_context *context = self;
	const struct bh_args *args = bh_task_args(task);
	struct bh_service_run run = { .context = context, .task = task };
	struct bh_thrown thrown = { .thrown = false };
	bh_status st;

	/* The submitter has checked both against the signature (host/python). */
	assert(bh_task_op(task) < context->descriptor->n_ops);
	run.op = &context->descriptor->ops[bh_task_op(task)];
	assert((args ? args->n : 0) == run.op->signature.n);

	st = bh_task_fill(task, accept_argument, (void *)run.op);
	if (st < 0)
		return st;
	bh_service_run_begin(&run);
	st = fault("run") ? -EIO
			  : bh_boundary_run(run.op->op, context->state, task, args ? args->v : NULL,
					    &thrown);
	bh_service_run_end(&run);
	if (thrown.thrown)
		return raise_thrown(&thrown, bh_task_error(task));
	return finish_run(&run, st);
}

/* A callback that has no status to fail by fails its pool. The pool outlives its own threads. */
static void fail_pool(struct bh_context *context, const char *step, const struct bh_thrown *thrown)
{
	struct bh_error cause = { .status = 0 };

	(void)finish(context, step, 0, thrown, &cause);
	bh_pool_fail(context->pool, &cause);
}

static void backend_cancel(void *self, uint64_t task_id)
{
	struct bh_context *context = self;
	struct bh_thrown thrown = { .thrown = false };

	bh_boundary_cancel(plugin_of(context), context->state, task_id, &thrown);
	if (thrown.thrown)
		fail_pool(context, "cancel", &thrown);
}

static void backend_progress(void *self, uint32_t thread, int stop_fd)
{
	struct bh_context *context = self;
	struct bh_thrown thrown = { .thrown = false };

	bh_boundary_progress(plugin_of(context), context->state, thread, stop_fd, &thrown);
	if (thrown.thrown)
		fail_pool(context, "progress", &thrown);
}

static const char *backend_op_name(void *self, uint32_t op)
{
	const struct bh_context *context = self;

	return op < context->descriptor->n_ops ? context->descriptor->ops[op].op->name : "?";
}

struct bh_backend bh_backend_for(const struct bh_descriptor *descriptor)
{
	const struct bh_plugin *plugin = &descriptor->plugin;
	bool on_worker = plugin->worker_start || plugin->worker_stop || descriptor->n_sites > 0;

	return (struct bh_backend){
		.open = backend_open,
		.close = backend_close,
		.worker_start = on_worker ? backend_worker_start : NULL,
		.worker_stop = on_worker ? backend_worker_stop : NULL,
		.run = backend_run,
		.cancel = plugin->cancel ? backend_cancel : NULL,
		.progress = plugin->progress ? backend_progress : NULL,
		.op_name = backend_op_name,
	};
}
