/* SPDX-License-Identifier: BSD-3-Clause */
/* stream - the plugin of ordered tensor streams: Python callables, and float32 kernels off the GIL.
 *
 * A stream is a lane of the pool: who submits says which one, and the host keeps the order. What is
 * here has therefore no state between tasks and needs no lock.
 *
 * Thread: the pool's workers; open and close on its supervisor. GIL: only `run` takes it, at the
 *         site `compute`.
 * Owns:   nothing beyond a task, whose buffers the host holds until it has ended.
 * Fails:  stream.dtype, .kind, .alignment, .shape, .overlap and .range name op, parameter, what was
 *         given and what is accepted; stream.memory, .buffer and .shutdown what could not be had.
 * Keeps:  GIL-3, SUP-10 (see docs/architecture.md). */
#include "config.h"

#include <bulkhead/plugin.h>

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/stream/kernels.h"

enum stream_site { SITE_COMPUTE };
#define STREAM_SITES 1

static const struct bh_site stream_sites[] = {
	[SITE_COMPUTE] = { .name = "compute",
			   .policy = BH_SITE_DATA_ONLY,
			   .doc = "run a Python callable" },
};
static_assert(sizeof(stream_sites) / sizeof(stream_sites[0]) == STREAM_SITES, "one row per site");

/* One run of an op: what every check and every error of it needs. */
struct call {
	const struct bh_services *services;
	struct bh_task *task;
	const char *op;
	struct bh_stream_stop stop;
};

/* float32 elements in host memory. */
struct tensor {
	const char *parameter;
	float *data;
	size_t n;
	struct bh_buffer_info info;
};

/* ---- errors ---------------------------------------------------------------------------------- */

static bh_status refuse(const struct call *call, const char *id, const char *parameter,
			const char *given, const char *accepted)
{
	const struct bh_fact facts[] = {
		bh_fact_str("op", call->op),
		bh_fact_str("parameter", parameter),
		bh_fact_str("given", given),
		bh_fact_str("accepted", accepted),
	};

	call->services->task_fail(call->task, -EINVAL, id, facts, sizeof(facts) / sizeof(facts[0]));
	return -EINVAL;
}

static bh_status fail_plainly(const struct call *call, bh_status status, const char *id,
			      const char *reason)
{
	const struct bh_fact facts[] = { bh_fact_str("op", call->op),
					 bh_fact_str("reason", reason) };

	call->services->task_fail(call->task, status, id, facts, sizeof(facts) / sizeof(facts[0]));
	return status;
}

static const char *dtype_name(uint8_t code)
{
	switch ((int)code) { /* DLPack may add codes */
	case BH_DTYPE_INT:
		return "int";
	case BH_DTYPE_UINT:
		return "uint";
	case BH_DTYPE_FLOAT:
		return "float";
	default:
		return "opaque";
	}
}

/* "[3, 4]"; long enough for BH_NDIM_MAX numbers of 64 bits. */
struct shape_text {
	char text[BH_NDIM_MAX * 22 + 3];
};

static struct shape_text shape_text(const struct bh_buffer_info *info)
{
	struct shape_text out = { "[" };
	size_t used = 1;

	for (uint32_t i = 0; i < info->n_dims; i++)
		used += (size_t)snprintf(out.text + used, sizeof(out.text) - used, "%s%" PRId64,
					 i > 0 ? ", " : "", info->shape[i]);
	snprintf(out.text + used, sizeof(out.text) - used, "]");
	return out;
}

static bh_status refuse_shape(const struct call *call, const struct tensor *tensor,
			      const char *accepted)
{
	struct shape_text given = shape_text(&tensor->info);

	return refuse(call, "stream.shape", tensor->parameter, given.text, accepted);
}

/* ---- arguments ------------------------------------------------------------------------------- */

static bool cancelled(const void *arg)
{
	const struct call *call = arg;

	return call->services->cancelled(call->task) != 0;
}

/* `call` stays where it is: its `stop` refers to it. */
static void call_begin(struct call *call, const struct bh_services *services, struct bh_task *task,
		       const char *op)
{
	*call = (struct call){ .services = services, .task = task, .op = op };
	call->stop = (struct bh_stream_stop){ cancelled, call };
}

/* What is computed with must be float32, in memory that this CPU can read as float. */
static bh_status tensor_of(const struct call *call, const char *parameter,
			   const struct bh_value *value, struct tensor *ret_tensor)
{
	struct bh_buffer_info info = { .size = sizeof(info) };
	char given[32];
	bh_status st;

	st = call->services->buffer_info(value->as.buffer, &info);
	if (st < 0)
		return fail_plainly(call, st, "stream.buffer",
				    "the buffer does not say what it is");
	if (info.kind != BH_BUFFER_HOST && info.kind != BH_BUFFER_PINNED)
		return refuse(call, "stream.kind", parameter, "device memory",
			      "host memory: copy it there first");
	if (info.dtype_code != BH_DTYPE_FLOAT || info.dtype_bits != 32) {
		snprintf(given, sizeof(given), "%s%u", dtype_name(info.dtype_code),
			 info.dtype_bits);
		return refuse(call, "stream.dtype", parameter, given,
			      "float32, such as array.array('f') or numpy.float32");
	}
	if ((uintptr_t)info.data % alignof(float) != 0)
		return refuse(call, "stream.alignment", parameter,
			      "an address that is no multiple of 4",
			      "elements at multiples of 4 bytes: copy it first");
	*ret_tensor = (struct tensor){ parameter, info.data, info.length / sizeof(float), info };
	return 0;
}

static bh_status vector_of(const struct call *call, const char *parameter,
			   const struct bh_value *value, struct tensor *ret_tensor)
{
	bh_status st = tensor_of(call, parameter, value, ret_tensor);

	if (st < 0)
		return st;
	return ret_tensor->info.n_dims == 1 ? 0 : refuse_shape(call, ret_tensor, "one dimension");
}

static bh_status check_length(const struct call *call, const struct tensor *tensor, size_t n,
			      const char *because)
{
	char accepted[64];

	if (tensor->n == n)
		return 0;
	snprintf(accepted, sizeof(accepted), "[%zu], %s", n, because);
	return refuse_shape(call, tensor, accepted);
}

static bh_status check_same_shape(const struct call *call, const struct tensor *tensor,
				  const struct tensor *model)
{
	const struct bh_buffer_info *a = &tensor->info, *b = &model->info;
	struct shape_text accepted = shape_text(b);

	if (a->n_dims == b->n_dims &&
	    memcmp(a->shape, b->shape, a->n_dims * sizeof(a->shape[0])) == 0)
		return 0;
	return refuse_shape(call, tensor, accepted.text);
}

/* The kernels read ahead of what they write: a result in its own input's memory would be wrong. */
static bh_status check_apart(const struct call *call, const struct tensor *out,
			     const struct tensor *in)
{
	uintptr_t a = (uintptr_t)out->data, b = (uintptr_t)in->data;
	char given[64];

	if (out->n == 0 || in->n == 0 || a + out->info.length <= b || b + in->info.length <= a)
		return 0;
	snprintf(given, sizeof(given), "memory that %s lies in too", in->parameter);
	return refuse(call, "stream.overlap", out->parameter, given, "memory of its own");
}

/* A double that a float32 cannot hold would become an infinity unasked. */
static bh_status check_range(const struct call *call, const char *parameter, double value)
{
	char given[32];

	if (!isfinite(value) || fabs(value) <= (double)FLT_MAX)
		return 0;
	snprintf(given, sizeof(given), "%g", value);
	return refuse(call, "stream.range", parameter, given,
		      "-3.4028235e38 to 3.4028235e38, inf, or nan");
}

static bh_status ended(bool whole)
{
	return whole ? 0 : -ECANCELED;
}

/* ---- ops ------------------------------------------------------------------------------------- */

static bh_status op_run(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct bh_items *rest = &args[1].as.list;
	struct bh_value value = { .type = BH_TYPE_NONE };
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "run");
	st = call.services->call_object(task, SITE_COMPUTE, args[0].as.object, rest->items,
					(uint32_t)rest->count, &value);
	if (st == -ESHUTDOWN)
		return fail_plainly(&call, st, "stream.shutdown",
				    "the interpreter is going down; nothing was run");
	if (st < 0)
		return st; /* the exception that was raised is kept with the task */
	return call.services->result(task, &value);
}

static bh_status op_dot(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_value value = { .type = BH_TYPE_FLOAT };
	struct tensor a, b;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "dot");
	st = vector_of(&call, "a", &args[0], &a);
	if (st == 0)
		st = vector_of(&call, "b", &args[1], &b);
	if (st == 0)
		st = check_length(&call, &b, a.n, "as many as a has");
	if (st != 0)
		return st;
	if (!bh_stream_dot(a.data, b.data, a.n, &call.stop, &value.as.real))
		return -ECANCELED;
	return call.services->result(task, &value);
}

static bh_status op_matvec(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor out, m, x;
	size_t rows, cols;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "matvec");
	st = vector_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = tensor_of(&call, "m", &args[1], &m);
	if (st == 0)
		st = vector_of(&call, "x", &args[2], &x);
	if (st != 0)
		return st;
	if (m.info.n_dims != 2)
		return refuse_shape(&call, &m, "two dimensions: rows, columns");
	rows = (size_t)m.info.shape[0];
	cols = (size_t)m.info.shape[1];
	st = check_length(&call, &x, cols, "a column of m each");
	if (st == 0)
		st = check_length(&call, &out, rows, "a row of m each");
	if (st == 0)
		st = check_apart(&call, &out, &m);
	if (st == 0)
		st = check_apart(&call, &out, &x);
	if (st != 0)
		return st;
	return ended(bh_stream_matvec(out.data, m.data, x.data, rows, cols, &call.stop));
}

struct pair {
	struct bh_value index, score;
};
static_assert(sizeof(struct pair) == 2 * sizeof(struct bh_value), "a list of two");

/* [[index, score], ...]: lists refer to their items, which lie here until the host has a copy. */
static bh_status give_ranked(const struct call *call, const struct bh_stream_ranked *best,
			     size_t count)
{
	struct pair *pairs = calloc(count + 1, sizeof(*pairs));
	struct bh_value *rows = calloc(count + 1, sizeof(*rows));
	struct bh_value list = { .type = BH_TYPE_LIST, .as.list = { rows, count } };
	bh_status st;

	for (size_t i = 0; pairs && rows && i < count; i++) {
		pairs[i].index.type = BH_TYPE_INT;
		pairs[i].index.as.integer = (int64_t)best[i].index;
		pairs[i].score.type = BH_TYPE_FLOAT;
		pairs[i].score.as.real = (double)best[i].score;
		rows[i].type = BH_TYPE_LIST;
		rows[i].as.list = (struct bh_items){ &pairs[i].index, 2 };
	}
	if (pairs && rows)
		st = call->services->result(call->task, &list);
	else
		st = fail_plainly(call, -ENOMEM, "stream.memory", "no room for what top_k returns");
	free(rows);
	free(pairs);
	return st;
}

static bh_status op_top_k(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_stream_ranked *best;
	struct tensor scores;
	char given[24];
	struct call call;
	size_t k, count;
	bh_status st;

	call_begin(&call, state, task, "top_k");
	st = vector_of(&call, "scores", &args[0], &scores);
	if (st != 0)
		return st;
	if (args[1].as.integer < 0) {
		snprintf(given, sizeof(given), "%" PRId64, args[1].as.integer);
		return refuse(&call, "stream.range", "k", given, "0 or more");
	}
	k = (uint64_t)args[1].as.integer < scores.n ? (size_t)args[1].as.integer : scores.n;
	best = calloc(k + 1, sizeof(*best));
	if (!best)
		return fail_plainly(&call, -ENOMEM, "stream.memory", "no memory for k scores");
	st = ended(bh_stream_top_k(scores.data, scores.n, k, best, &call.stop, &count));
	if (st == 0)
		st = give_ranked(&call, best, count);
	free(best);
	return st;
}

static bh_status op_fill(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor out;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "fill");
	st = tensor_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = check_range(&call, "value", args[1].as.real);
	if (st != 0)
		return st;
	return ended(bh_stream_fill(out.data, (float)args[1].as.real, out.n, &call.stop));
}

static bh_status op_copy(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor out, a;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "copy");
	st = tensor_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = tensor_of(&call, "a", &args[1], &a);
	if (st == 0)
		st = check_same_shape(&call, &a, &out);
	if (st == 0)
		st = check_apart(&call, &out, &a);
	if (st != 0)
		return st;
	return ended(bh_stream_copy(out.data, a.data, out.n, &call.stop));
}

static bh_status op_scale(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor y;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "scale");
	st = tensor_of(&call, "y", &args[0], &y);
	if (st == 0)
		st = check_range(&call, "a", args[1].as.real);
	if (st != 0)
		return st;
	return ended(bh_stream_scale(y.data, (float)args[1].as.real, y.n, &call.stop));
}

static bh_status op_axpy(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor y, x;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "axpy");
	st = tensor_of(&call, "y", &args[0], &y);
	if (st == 0)
		st = check_range(&call, "a", args[1].as.real);
	if (st == 0)
		st = tensor_of(&call, "x", &args[2], &x);
	if (st == 0)
		st = check_same_shape(&call, &x, &y);
	if (st == 0)
		st = check_apart(&call, &y, &x);
	if (st != 0)
		return st;
	return ended(bh_stream_axpy(y.data, (float)args[1].as.real, x.data, y.n, &call.stop));
}

static const struct bh_op stream_ops[] = {
	{ .name = "run",
	  .args = "fn:object *args:object",
	  .ret = "object",
	  .run = op_run,
	  .doc = "Calls fn(*args) on the data plane and returns what it returns. It cannot be "
		 "stopped once it runs." },
	{ .name = "dot",
	  .args = "a:buffer b:buffer",
	  .ret = "float",
	  .run = op_dot,
	  .doc = "The dot product of two float32 vectors of equal length." },
	{ .name = "matvec",
	  .args = "out:buffer! m:buffer x:buffer",
	  .run = op_matvec,
	  .doc = "out = m x, for a float32 matrix m of shape [rows, columns], row-major; out "
		 "overlaps neither." },
	{ .name = "top_k",
	  .args = "scores:buffer k:int",
	  .ret = "list",
	  .run = op_top_k,
	  .doc = "The k greatest of a float32 vector as [[index, score], ...], greatest first, "
		 "equal ones by index. NaN is left out, so that there may be fewer than k." },
	{ .name = "fill",
	  .args = "out:buffer! value:float",
	  .run = op_fill,
	  .doc = "Sets every element of a float32 buffer." },
	{ .name = "copy",
	  .args = "out:buffer! a:buffer",
	  .run = op_copy,
	  .doc = "out = a, for float32 buffers of equal shape that do not overlap." },
	{ .name = "scale",
	  .args = "y:buffer! a:float",
	  .run = op_scale,
	  .doc = "y = a y, for a float32 buffer." },
	{ .name = "axpy",
	  .args = "y:buffer! a:float x:buffer",
	  .run = op_axpy,
	  .doc = "y = a x + y, for float32 buffers of equal shape that do not overlap." },
};

/* ---- life ------------------------------------------------------------------------------------ */

/* The host's services are all the state there is: they outlive every task. */
static bh_status stream_open(struct bh_context *context, const struct bh_services *services,
			     void **ret_state)
{
	(void)context;
	*ret_state = (void *)services;
	return 0;
}

static bh_status stream_close(void *state)
{
	(void)state;
	return 0;
}

BH_PLUGIN("stream", "0.1") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 256 },
	.sites = BH_TABLE(stream_sites),
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(stream_ops),
	.open = stream_open,
	.close = stream_close,
};
