/* SPDX-License-Identifier: BSD-3-Clause */
/* service - see service.h.
 *
 * What a plugin passes in is checked as far as it can be: a wrong site, type, name or thread gets
 * an error and a log line that names the plugin, never a crash of the host.
 *
 * Thread: any. GIL: held or not, but not in run_gil, call_object, object_buffer and
 *         object_cuda_buffer, which take it.
 * Blocks: those until they have the GIL; the others no, post least of all (GIL-7). */
#include "config.h"

#include "host/plugin/service.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "host/core/clock.h"
#include "host/core/device_memory.h"
#include "host/core/exit_hook.h"
#include "host/core/format.h"
#include "host/core/log.h"
#include "host/core/memory.h"
#include "host/gil/courier.h"
#include "host/plugin/boundary.h"
#include "host/plugin/name.h"

#define COMPONENT "plugin"
#define BUFFER_INFO_SIZE_MIN 104u /* without strides: never changes */
#define STRIDES_END                                                                                \
	(offsetof(struct bh_buffer_info, strides) + sizeof(((struct bh_buffer_info *)0)->strides))
#define LIST_DEPTH_MAX 16 /* of a value's lists; the host's own walks recurse */

/* A: release by set, acquire by use. Set once, before the first load (module.h). */
static _Atomic(const struct bh_python_services *) python_services;

/* Contexts that the plugins may still call with; kept reachable for good. A: release push. */
static _Atomic(struct bh_context *) retired;

struct call {
	struct bh_context *context;
	struct bh_error *err;
};
static _Thread_local struct call current_call;
static _Thread_local struct bh_service_run *innermost_run;

void bh_module_set_python(const struct bh_python_services *services)
{
	atomic_store_explicit(&python_services, services, memory_order_release);
}

const struct bh_python_services *bh_service_python(void)
{
	return atomic_load_explicit(&python_services, memory_order_acquire);
}

void bh_service_begin(struct bh_context *context, struct bh_error *err)
{
	assert(!current_call.context);
	current_call = (struct call){ context, err };
}

void bh_service_end(void)
{
	current_call = (struct call){ NULL, NULL };
}

void bh_service_run_begin(struct bh_service_run *run)
{
	run->outer = innermost_run;
	innermost_run = run;
}

void bh_service_run_end(struct bh_service_run *run)
{
	assert(innermost_run == run);
	innermost_run = run->outer;
}

/* The run of `task` on this thread; NULL when another thread runs it, or none. */
static struct bh_service_run *find_run(const struct bh_task *task)
{
	struct bh_service_run *run = innermost_run;

	while (run && run->task != task)
		run = run->outer;
	return run;
}

/* ---- the pool behind a context -------------------------------------------------------------- */

/* NULL once the module is gone and the last user with it. */
static struct bh_pool *pool_take(struct bh_context *context)
{
	uint32_t refs = atomic_load_explicit(&context->pool_refs, memory_order_relaxed);

	do {
		if (refs == 0)
			return NULL;
	} while (!atomic_compare_exchange_weak_explicit(
		&context->pool_refs, &refs, refs + 1, memory_order_acquire, memory_order_relaxed));
	return context->pool;
}

static void pool_drop(struct bh_context *context)
{
	if (atomic_fetch_sub_explicit(&context->pool_refs, 1, memory_order_acq_rel) == 1)
		bh_pool_free(context->pool);
}

struct bh_context *bh_context_retire(struct bh_context *context)
{
	if (!context)
		return NULL;
	if (context->pool)
		pool_drop(context);
	if (context->seen) {
		context->next = atomic_load_explicit(&retired, memory_order_relaxed);
		while (!atomic_compare_exchange_weak_explicit(&retired, &context->next, context,
							      memory_order_release,
							      memory_order_relaxed))
			;
		return NULL;
	}
	for (uint32_t i = 0; context->options && i < context->descriptor->n_options; i++)
		bh_option_value_fini(&context->options[i]);
	free(context->options);
	free(context->sites);
	bh_report_fini(&context->report);
	bh_descriptor_free(context->descriptor);
	free(context);
	return NULL;
}

/* ---- what plugins say, made safe ------------------------------------------------------------ */

struct facts {
	/* One more than an error holds: it then knows, and shows, that it was cut. */
	struct bh_fact rows[BH_ERROR_FACTS + 1];
	uint32_t n;
};

static bool is_fact_key(const char *key)
{
	if (!key || !*key)
		return false;
	return key[strspn(key, "abcdefghijklmnopqrstuvwxyz_")] == '\0';
}

static const char *clean_text(const char *text)
{
	if (!text)
		return "";
	return bh_utf8_valid(text, strlen(text)) ? text : "(not UTF-8)";
}

static struct bh_fact take_fact(const struct bh_fact *from)
{
	const char *key = is_fact_key(from->key) ? from->key : "fact";

	return from->kind == BH_FACT_INT ? bh_fact_int(key, from->number)
					 : bh_fact_str(key, clean_text(from->text));
}

static void take_facts(struct facts *facts, const struct bh_fact *from, uint32_t n)
{
	facts->n = 0;
	if (!from)
		return;
	for (uint32_t i = 0; i < n && facts->n < BH_ARRAY_LEN(facts->rows); i++)
		facts->rows[facts->n++] = take_fact(&from[i]);
}

/* A failure needs a negative errno; anything else would end in a success that never was. */
static bh_status take_status(bh_status status)
{
	return status < 0 ? status : -EPROTO;
}

static void raise_for_plugin(struct bh_error *err, bh_status status, const char *id,
			     const struct bh_fact *from, uint32_t n)
{
	struct facts facts;

	take_facts(&facts, from, n);
	bh_error_raise(err, status, id && *id ? clean_text(id) : "plugin.failed", facts.rows,
		       facts.n);
}

static void complain(const struct bh_context *context, const char *service, const char *reason)
{
	bh_log(BH_LOG_ERROR, COMPONENT, "plugin misuses a service",
	       BH_STR("plugin", context->label), BH_STR("service", service),
	       BH_STR("reason", reason));
}

/* As complain(), for services that are given a task. Without a run `task` may be anything, a record
 * that serves another by now included: it is not looked into, the thread says whose it is. */
static void complain_task(const struct bh_service_run *run, const char *service, const char *reason)
{
	bh_log(BH_LOG_ERROR, COMPONENT, "plugin misuses a service",
	       BH_STR("plugin", run ? run->context->label : bh_identity_get()->label),
	       BH_STR("op", run ? run->op->op->name : ""),
	       BH_INT("task", run ? bh_task_id(run->task) : 0), BH_STR("service", service),
	       BH_STR("reason", reason));
}

/* Whether the host can walk, copy and release it. Pointers that lead nowhere cannot be told. */
static bool value_is_sound(const struct bh_value *value, unsigned depth)
{
	switch ((int)value->type) {
	case BH_TYPE_NONE:
	case BH_TYPE_BOOL:
	case BH_TYPE_INT:
	case BH_TYPE_FLOAT:
	case BH_TYPE_HANDLE:
		return true;
	case BH_TYPE_STR:
		return value->as.text.length == 0 ||
		       (value->as.text.data &&
			bh_utf8_valid(value->as.text.data, value->as.text.length));
	case BH_TYPE_BYTES:
		return value->as.text.length == 0 || value->as.text.data;
	case BH_TYPE_BUFFER:
		return value->as.buffer;
	case BH_TYPE_OBJECT:
		return value->as.object;
	case BH_TYPE_LIST:
		if (depth == LIST_DEPTH_MAX || (!value->as.list.items && value->as.list.count > 0))
			return false;
		for (uint64_t i = 0; i < value->as.list.count; i++)
			if (!value_is_sound(&value->as.list.items[i], depth + 1))
				return false;
		return true;
	default:
		return false;
	}
}

/* ---- about the plugin ----------------------------------------------------------------------- */

static const struct bh_option_value *find_option(struct bh_context *context, const char *name,
						 bool text, const char *service)
{
	const struct bh_descriptor *d = context->descriptor;

	for (uint32_t i = 0; name && i < d->n_options; i++) {
		uint32_t type = d->options[i].type;
		bool is_text = type == BH_OPT_STR || type == BH_OPT_ENUM || type == BH_OPT_PATH;

		if (strcmp(d->options[i].name, name) != 0)
			continue;
		if (is_text == text)
			return &context->options[i];
		complain(context, service, "the option has another type");
		return NULL;
	}
	complain(context, service, "the descriptor has no such option");
	return NULL;
}

static int64_t service_option_int(struct bh_context *ctx, const char *name)
{
	const struct bh_option_value *value = find_option(ctx, name, false, "option_int");

	return value ? value->number : 0;
}

static const char *service_option_text(struct bh_context *ctx, const char *name)
{
	const struct bh_option_value *value = find_option(ctx, name, true, "option_text");

	return value ? value->text : NULL;
}

static const char *service_label(struct bh_context *ctx)
{
	return ctx->label;
}

static uint32_t service_workers(struct bh_context *ctx)
{
	return ctx->n_workers;
}

/* ---- errors, log, time ---------------------------------------------------------------------- */

static bh_status service_fail(struct bh_context *ctx, bh_status status, const char *id,
			      const struct bh_fact *facts, uint32_t n_facts)
{
	struct bh_error stray = { 0 };

	status = take_status(status);
	if (current_call.context == ctx) {
		raise_for_plugin(current_call.err, status, id, facts, n_facts);
		return status;
	}
	raise_for_plugin(&stray, status, id, facts, n_facts);
	bh_note(&stray, status, BH_STR("plugin", ctx->label));
	bh_log_error(BH_LOG_ERROR, COMPONENT,
		     "fail() outside open, close, worker_start, worker_stop", &stray);
	return status;
}

static bh_status service_task_fail(struct bh_task *task, bh_status status, const char *id,
				   const struct bh_fact *facts, uint32_t n_facts)
{
	status = take_status(status);
	if (find_run(task))
		raise_for_plugin(bh_task_error(task), status, id, facts, n_facts);
	else
		complain_task(NULL, "task_fail", "called on a thread that does not run the task");
	return status;
}

static void service_log(struct bh_context *ctx, uint32_t level, const char *message,
			const struct bh_fact *from, uint32_t n_facts)
{
	struct facts facts;

	take_facts(&facts, from, n_facts);
	bh_log_write(level <= BH_LOG_ERROR ? (enum bh_log_level)level : BH_LOG_ERROR, ctx->label,
		     clean_text(message), facts.rows, facts.n);
}

static uint64_t service_now_ns(void)
{
	return bh_now_ns();
}

/* ---- tasks ---------------------------------------------------------------------------------- */

static uint64_t service_task_id(const struct bh_task *task)
{
	return bh_task_id(task);
}

static int32_t service_cancelled(const struct bh_task *task)
{
	return bh_task_cancelled(task);
}

static int64_t service_remaining_ns(const struct bh_task *task)
{
	uint64_t left = bh_deadline_left_ns(bh_task_deadline(task));

	return left > INT64_MAX ? INT64_MAX : (int64_t)left;
}

static bh_status service_result(struct bh_task *task, const struct bh_value *value)
{
	struct bh_service_run *run = find_run(task);
	struct bh_value own = { .type = BH_TYPE_NONE };
	bh_status st;

	if (!run || !value || !value_is_sound(value, 0)) {
		complain_task(run, "result",
			      run ? "the value is not well formed"
				  : "called on a thread that does not run the task");
		return -EINVAL;
	}
	st = bh_value_take(value, &own);
	if (st < 0)
		return st;
	if (!bh_signature_returns(&run->op->signature, &own)) {
		complain_task(run, "result", "the value is not of the type that `ret` promises");
		bh_raise(bh_task_error(task), -EINVAL, "plugin.result",
			 BH_STR("have", bh_type_name(own.type)),
			 BH_STR("want", bh_type_name(run->op->signature.ret)));
		bh_value_clear(&own);
		return -EINVAL;
	}
	bh_task_set_result(task, own);
	run->has_result = true;
	return 0;
}

/* Takes `value` over and says with what the task ends: a value that the op has not promised makes
 * it fail. */
static bh_status judge_completion(struct bh_context *context, struct bh_pool *pool,
				  uint64_t task_id, bh_status status, const struct bh_value *value,
				  struct bh_error *err)
{
	const struct bh_value none = { .type = BH_TYPE_NONE };
	const struct bh_module_op *op;
	uint32_t number;

	if (status > 0)
		return bh_raise(err, -EPROTO, "plugin.status", BH_INT("status", status),
				BH_STR("accepted", "0 or a negative errno"));
	if (value && !value_is_sound(value, 0))
		return bh_raise(err, -EPROTO, "plugin.result",
				BH_STR("reason", "the value is not well formed"));
	if (status < 0 || bh_pool_task_op(pool, task_id, &number) < 0)
		return status; /* a task that has ended is refused, and logged, by the pool */
	op = &context->descriptor->ops[number];
	if (bh_signature_returns(&op->signature, value ? value : &none))
		return 0;
	return bh_raise(err, -EPROTO, "plugin.result",
			BH_STR("have", bh_type_name(value ? value->type : BH_TYPE_NONE)),
			BH_STR("want", bh_type_name(op->signature.ret)));
}

static bh_status complete_in(struct bh_context *context, struct bh_pool *pool, uint64_t task_id,
			     bh_status status, const struct bh_value *value, struct bh_error *err)
{
	struct bh_value own = { .type = BH_TYPE_NONE };
	bh_status asked = status, st = 0;

	status = judge_completion(context, pool, task_id, asked, value, err);
	if (value && value_is_sound(value, 0))
		st = bh_value_take(value, &own);
	if (st < 0 && status == 0)
		status = bh_raise(err, st, "plugin.result",
				  BH_STR("reason", "no memory to copy the value"));
	if (status < 0)
		bh_value_clear(&own);
	st = bh_pool_complete(pool, task_id, status, &own, bh_error_is_set(err) ? err : NULL);
	bh_value_clear(&own);
	if (st == 0 && status != asked) {
		complain(context, "complete", "the task has failed: wrong status or value");
		return -EINVAL;
	}
	return st;
}

static bh_status service_complete(struct bh_context *ctx, uint64_t task_id, bh_status status,
				  const struct bh_value *value, const char *id,
				  const struct bh_fact *facts, uint32_t n_facts)
{
	struct bh_pool *pool = pool_take(ctx);
	struct bh_error err = { 0 };
	bh_status st;

	if (!pool) {
		bh_log(BH_LOG_ERROR, COMPONENT, "plugin misuses a service",
		       BH_STR("plugin", ctx->label), BH_INT("task", task_id),
		       BH_STR("service", "complete"), BH_STR("reason", "the pool is gone"));
		return -ESRCH;
	}
	if (status < 0 && (id || status != -ECANCELED))
		raise_for_plugin(&err, status, id, facts, n_facts);
	st = complete_in(ctx, pool, task_id, status, value, &err);
	pool_drop(ctx);
	return st;
}

/* ---- buffers and objects -------------------------------------------------------------------- */

static bh_status service_buffer_info(const struct bh_buffer *buffer,
				     struct bh_buffer_info *ret_info)
{
	uint32_t size = ret_info->size;

	if (size < BUFFER_INFO_SIZE_MIN)
		return -EINVAL;
	if (size < STRIDES_END && !bh_buffer_is_contiguous(buffer))
		return -EINVAL; /* it would take what lies between the elements for elements */
	if (size > sizeof(*ret_info))
		size = sizeof(*ret_info);
	memcpy(ret_info, &buffer->info, size); /* an older plugin has no room for more */
	ret_info->size = size;
	if (atomic_load(&buffer->use) & BH_USE_SHARED)
		ret_info->flags |= BH_BUFFER_SHARED;
	return 0;
}

static struct bh_buffer *service_buffer_ref(struct bh_buffer *buffer)
{
	return buffer ? bh_buffer_ref(buffer) : NULL;
}

static void service_buffer_unref(struct bh_buffer *buffer)
{
	bh_buffer_unref(buffer);
}

static bh_status service_buffer_alloc(struct bh_context *ctx, const struct bh_buffer_info *info,
				      uint64_t alignment, struct bh_buffer **ret_buffer)
{
	bh_status st = -EINVAL;

	if (info && ret_buffer && info->size >= BUFFER_INFO_SIZE_MIN &&
	    info->kind == BH_BUFFER_HOST && info->dtype_code <= BH_DTYPE_OPAQUE)
		st = bh_memory_new(info, alignment, ret_buffer);
	if (st == -EINVAL)
		complain(ctx, "buffer_alloc",
			 "it takes host memory of at most 8 dimensions, elements of whole bytes "
			 "and an alignment that is a power of two up to 2 MiB");
	return st;
}

static struct bh_object *service_object_ref(struct bh_object *object)
{
	return object ? bh_object_ref(object) : NULL;
}

static void service_object_unref(struct bh_object *object)
{
	bh_object_unref(object);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void call_release(struct bh_slot_owner *owner, bh_slot_fn release, void *value,
			 struct bh_buffer *buffer)
{
	const struct bh_context *context = bh_container_of(owner, struct bh_context, slots);
	struct bh_thrown thrown;

	bh_boundary_release(release, value, buffer, &thrown);
	if (thrown.thrown) /* its reference stays with it: nobody can tell what it has done */
		bh_log(BH_LOG_ERROR, COMPONENT, "release of a buffer's slot threw a C++ exception",
		       BH_STR("plugin", context->label), BH_STR("type", thrown.type),
		       BH_STR("what", clean_text(thrown.what)));
}

void bh_service_slots_init(struct bh_context *context)
{
	context->slots.call = call_release;
}

void bh_service_slots_end(struct bh_context *context, const char *step)
{
	uint64_t n = bh_slot_close(&context->slots);

	if (n > 0)
		bh_log(BH_LOG_ERROR, COMPONENT, "plugin has left slots on buffers",
		       BH_STR("plugin", context->label), BH_STR("step", step), BH_INT("slots", n),
		       BH_STR("effect", "their release() is not called any more"),
		       BH_STR("accepted", "each is cleared or released before the plugin closes"));
}

static bh_status service_buffer_slot_set(struct bh_context *ctx, struct bh_buffer *buffer,
					 void *value,
					 void (*release)(void *value, struct bh_buffer *buffer))
{
	bh_status st;

	if (!buffer || !value || !release) {
		complain(ctx, "buffer_slot_set",
			 !buffer  ? "no buffer"
			 : !value ? "no value"
				  : "no release function");
		return -EINVAL;
	}
	st = bh_slot_set(&ctx->slots, buffer, value, release);
	if (st == -EINVAL)
		complain(ctx, "buffer_slot_set",
			 "this buffer has been given another release function before; give it the "
			 "same one each time");
	else if (st == -ESHUTDOWN)
		complain(ctx, "buffer_slot_set", "the plugin has been closed");
	return st;
}

static void *service_buffer_slot_get(struct bh_context *ctx, struct bh_buffer *buffer)
{
	if (buffer)
		return bh_slot_get(&ctx->slots, buffer);
	complain(ctx, "buffer_slot_get", "no buffer");
	return NULL;
}

static void *service_buffer_slot_clear(struct bh_context *ctx, struct bh_buffer *buffer)
{
	if (buffer)
		return bh_slot_clear(&ctx->slots, buffer);
	complain(ctx, "buffer_slot_clear", "no buffer");
	return NULL;
}

/* ---- device memory --------------------------------------------------------------------------- */

static bh_status service_buffer_wrap(struct bh_context *ctx, const struct bh_buffer_info *info,
				     void *value,
				     void (*release)(void *value, struct bh_buffer *buffer),
				     struct bh_buffer **ret_buffer)
{
	bh_status st = -EINVAL;

	if (info && value && release && ret_buffer && info->size >= BUFFER_INFO_SIZE_MIN)
		st = bh_device_memory_new(info, &ctx->slots, value, release, ret_buffer);
	if (st == -EINVAL)
		complain(ctx, "buffer_wrap",
			 "it takes an address on a CUDA device, at most 8 dimensions, elements of "
			 "whole bytes and of a code of DLPack's, a value and a release function");
	else if (st == -ESHUTDOWN)
		complain(ctx, "buffer_wrap", "the plugin has been closed");
	return st;
}

static bh_status service_buffer_revoke(struct bh_context *ctx, struct bh_buffer *buffer,
				       uint32_t held)
{
	if (buffer && bh_device_memory_is(buffer))
		return bh_device_memory_revoke(&ctx->slots, buffer, held);
	complain(ctx, "buffer_revoke", buffer ? "it takes a buffer of buffer_wrap()" : "no buffer");
	return -EINVAL;
}

/* ---- the GIL -------------------------------------------------------------------------------- */

/* "libfoo.so+0x1234" of the plugin's call. _dl_find_object, because dladdr blocks while another
 * thread is inside a library's constructor. */
static void render_caller(void *address, char *text, size_t size)
{
	struct dl_find_object found;
	const char *name = "?", *slash;
	uintptr_t base = 0;

	if (_dl_find_object(address, &found) == 0) {
		name = found.dlfo_link_map->l_name;
		base = (uintptr_t)found.dlfo_map_start;
		slash = strrchr(name, '/');
		name = slash ? slash + 1 : name;
	}
	snprintf(text, size, "%s+0x%" PRIxPTR, name, (uintptr_t)address - base);
}

static void leave_scope(void *scope)
{
	bh_gil_leave(scope);
}

static bh_status service_run_gil(struct bh_context *ctx, uint32_t site, void (*fn)(void *arg),
				 void *arg)
{
	char caller[96] = "";
	struct bh_gil_scope scope;
	struct bh_error err = { 0 };
	bh_status st;

	if (site >= ctx->descriptor->n_sites || !fn) {
		complain(ctx, "run_gil", fn ? "the descriptor has no such site" : "no function");
		return -EINVAL;
	}
	/* Only control threads are policed (GIL-2), so only they are worth the search for a
	 * name. */
	if (bh_identity_get()->plane == BH_PLANE_CONTROL)
		render_caller(__builtin_return_address(0), caller, sizeof(caller));
	st = bh_gil_enter(ctx->sites[site], *caller ? caller : NULL, &scope, &err);
	if (st < 0)
		return st;
	bh_boundary_scoped(fn, arg, leave_scope, &scope);
	return 0;
}

/* Under the GIL, on the courier or on the thread that posted. */
static void call_posted(bh_gil_site site, void (*fn)(void *arg), void *arg)
{
	struct bh_thrown thrown;

	bh_boundary_posted(fn, arg, &thrown);
	if (thrown.thrown)
		bh_log(BH_LOG_ERROR, COMPONENT, "posted work threw a C++ exception",
		       BH_STR("site", bh_gil_site_name(site)), BH_STR("type", thrown.type),
		       BH_STR("what", clean_text(thrown.what)));
}

/* GIL-7 */
static bh_status service_post(struct bh_context *ctx, uint32_t site, void (*fn)(void *arg),
			      void *arg)
{
	if (site >= ctx->descriptor->n_sites || !fn) {
		complain(ctx, "post", fn ? "the descriptor has no such site" : "no function");
		return -EINVAL;
	}
	return bh_courier_post_guarded(ctx->sites[site], call_posted, fn, arg, NULL);
}

/* Why the task's Python side cannot be entered here, at this site; NULL: it can. */
static const char *refuse_entry(const struct bh_service_run *run, uint32_t site)
{
	if (!run || run != innermost_run)
		return "called on a thread that does not run the task";
	if (site >= run->context->descriptor->n_sites)
		return "the descriptor has no such site";
	return NULL;
}

static bh_status service_call_object(struct bh_task *task, uint32_t site,
				     struct bh_object *callable, const struct bh_value *args,
				     uint32_t n_args, struct bh_value *ret_value)
{
	const struct bh_python_services *python = bh_service_python();
	struct bh_service_run *run = find_run(task);
	const char *reason = refuse_entry(run, site);

	if (!reason && (!callable || !ret_value || (n_args > 0 && !args)))
		reason = "no callable, no arguments, or nowhere to put the result";
	for (uint32_t i = 0; !reason && i < n_args; i++)
		if (!value_is_sound(&args[i], 0))
			reason = "an argument is not well formed";
	if (reason) {
		complain_task(run, "call_object", reason);
		return -EINVAL;
	}
	if (!python) /* a host without an interpreter: the objects cannot have come from us */
		return bh_raise(bh_task_error(task), -ESHUTDOWN, "python.absent");
	return python->call_object(task, run->context->sites[site], callable, args, n_args,
				   ret_value);
}

/* What is left to check of either, and the call; `use` NULL: of the host's memory. */
static bh_status ask_object(struct bh_service_run *run, struct bh_task *task, uint32_t site,
			    struct bh_object *object, uint32_t flags, struct bh_cuda_use *use,
			    struct bh_buffer **ret_buffer, const char *service, const char *reason)
{
	const struct bh_python_services *python = bh_service_python();

	if (!reason && (flags & ~(BH_BUFFER_WRITABLE | BH_BUFFER_STRIDED)))
		reason = "flags are BH_BUFFER_WRITABLE and BH_BUFFER_STRIDED";
	if (reason) {
		complain_task(run, service, reason);
		return -EINVAL;
	}
	if (!python) /* a host without an interpreter: the object cannot have come from us */
		return bh_raise(bh_task_error(task), -ESHUTDOWN, "python.absent");
	return python->object_buffer(task, run->context->sites[site], object, flags, use,
				     ret_buffer);
}

static bh_status service_object_buffer(struct bh_task *task, uint32_t site,
				       struct bh_object *object, uint32_t flags,
				       struct bh_buffer **ret_buffer)
{
	struct bh_service_run *run = find_run(task);
	const char *reason = refuse_entry(run, site);

	if (!reason && (!object || !ret_buffer))
		reason = "no object, or nowhere to put the buffer";
	return ask_object(run, task, site, object, flags, NULL, ret_buffer, "object_buffer",
			  reason);
}

static bh_status service_object_cuda_buffer(struct bh_task *task, uint32_t site,
					    struct bh_object *object, uint32_t flags,
					    struct bh_cuda_use *use, struct bh_buffer **ret_buffer)
{
	struct bh_service_run *run = find_run(task);
	const char *reason = refuse_entry(run, site);

	if (!reason && (!object || !use || !ret_buffer))
		reason = "no object, no use, or nowhere to put the buffer";
	if (!reason && (use->size < sizeof(*use) || use->device < -1 || use->stream == 0))
		reason = "a use has its size, a device or -1, and a stream that is not 0";
	return ask_object(run, task, site, object, flags, use, ret_buffer, "object_cuda_buffer",
			  reason);
}

static void service_report_failed(struct bh_context *ctx, bh_status status, const char *id,
				  const struct bh_fact *facts, uint32_t n_facts)
{
	struct bh_pool *pool = pool_take(ctx);
	struct bh_error cause = { 0 };

	if (!pool)
		return; /* it has ended: nothing is left that could fail */
	raise_for_plugin(&cause, take_status(status), id, facts, n_facts);
	bh_note(&cause, cause.status, BH_STR("plugin", ctx->label));
	bh_pool_fail(pool, &cause);
	pool_drop(ctx);
}

/* ---- what operators should know -------------------------------------------------------------- */

static void service_metric_add(struct bh_context *ctx, uint32_t row, int64_t delta)
{
	const char *refused = bh_report_add(&ctx->report, row, delta);

	if (refused)
		complain(ctx, "metric_add", refused);
}

static void service_metric_set(struct bh_context *ctx, uint32_t row, int64_t value)
{
	const char *refused = bh_report_set(&ctx->report, row, value);

	if (refused)
		complain(ctx, "metric_set", refused);
}

static void service_describe(struct bh_context *ctx, const struct bh_fact *from, uint32_t n_facts)
{
	struct bh_fact facts[BH_REPORT_FACTS];
	uint32_t n = from ? n_facts : 0;

	if (n > BH_REPORT_FACTS) {
		complain(ctx, "describe", "more than 16 facts: the rest is left out");
		n = BH_REPORT_FACTS;
	}
	for (uint32_t i = 0; i < n; i++)
		facts[i] = take_fact(&from[i]);
	if (bh_report_describe(&ctx->report, facts, n) < 0)
		bh_log(BH_LOG_ERROR, COMPONENT, "no memory for what a plugin says of itself",
		       BH_STR("plugin", ctx->label));
}

static void service_report_health(struct bh_context *ctx, bh_status status, const char *id,
				  const struct bh_fact *facts, uint32_t n_facts)
{
	struct bh_error cause = { 0 };

	if (!ctx->health)
		return;
	if (status != 0)
		raise_for_plugin(&cause, take_status(status), id && *id ? id : "plugin.degraded",
				 facts, n_facts);
	ctx->health(&cause, ctx->health_arg);
}

/* RI-6 */
static bh_status service_adopt_thread(struct bh_context *ctx)
{
	const struct bh_identity *self = bh_identity_get();
	struct bh_pool *pool = pool_take(ctx);
	struct bh_error err = { 0 };
	bh_status st = 0;
	uint32_t id;

	if (!pool)
		return -ESHUTDOWN;
	id = bh_pool_id(pool);
	pool_drop(ctx);
	if (self->plane == BH_PLANE_DATA && self->pool_id == id)
		return 0;
	if (self->plane != BH_PLANE_NONE)
		st = bh_raise(&err, -EEXIST, "plugin.adopt", BH_STR("plugin", ctx->label),
			      BH_STR("plane", bh_plane_name(self->plane)),
			      BH_STR("owner", self->label));
	else
		st = bh_identity_tag_data(ctx->label, id, BH_WORKER_NONE, &err);
	if (st < 0)
		bh_log_error(BH_LOG_ERROR, "plugin", "a thread was not adopted", &err);
	return st;
}

static void service_exit_hook_refresh(struct bh_context *ctx)
{
	(void)ctx; /* the process has one exit */
	bh_exit_hook_refresh();
}

const struct bh_services bh_service_table = {
	.size = sizeof(struct bh_services),
	.abi = BH_ABI,
	.option_int = service_option_int,
	.option_text = service_option_text,
	.label = service_label,
	.workers = service_workers,
	.fail = service_fail,
	.task_fail = service_task_fail,
	.log = service_log,
	.now_ns = service_now_ns,
	.task_id = service_task_id,
	.cancelled = service_cancelled,
	.remaining_ns = service_remaining_ns,
	.result = service_result,
	.complete = service_complete,
	.buffer_info = service_buffer_info,
	.buffer_ref = service_buffer_ref,
	.buffer_unref = service_buffer_unref,
	.object_ref = service_object_ref,
	.object_unref = service_object_unref,
	.run_gil = service_run_gil,
	.call_object = service_call_object,
	.report_failed = service_report_failed,
	.adopt_thread = service_adopt_thread,
	.exit_hook_refresh = service_exit_hook_refresh,
	.post = service_post,
	.buffer_alloc = service_buffer_alloc,
	.object_buffer = service_object_buffer,
	.buffer_slot_set = service_buffer_slot_set,
	.buffer_slot_get = service_buffer_slot_get,
	.buffer_slot_clear = service_buffer_slot_clear,
	.metric_add = service_metric_add,
	.metric_set = service_metric_set,
	.describe = service_describe,
	.report_health = service_report_health,
	.buffer_wrap = service_buffer_wrap,
	.buffer_revoke = service_buffer_revoke,
	.object_cuda_buffer = service_object_cuda_buffer,
};
