/* SPDX-License-Identifier: BSD-3-Clause */
/* stream - the plugin of ordered tensor streams: Python callables, and kernels off the GIL.
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

/* Elements of float32 or float64 in host memory. */
struct tensor {
	const char *parameter;
	struct bh_stream_array array;
	uint64_t n;
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

static const char *real_name(enum bh_stream_real real)
{
	return real == BH_STREAM_FLOAT32 ? "float32" : "float64";
}

static int64_t item_size(const struct bh_stream_array *array)
{
	return array->real == BH_STREAM_FLOAT32 ? 4 : 8;
}

static bh_status refuse_dtype(const struct call *call, const char *parameter,
			      const struct bh_buffer_info *info)
{
	char given[32];

	snprintf(given, sizeof(given), "%s%u", dtype_name(info->dtype_code), info->dtype_bits);
	return refuse(call, "stream.dtype", parameter, given,
		      "float32 or float64, such as array.array('f') or numpy.float64");
}

/* Every element lies where this CPU can read it as a number. */
static bool is_aligned(const struct bh_stream_array *array)
{
	int64_t item = item_size(array);

	if ((uintptr_t)array->data % (uintptr_t)item != 0)
		return false;
	for (uint32_t i = 0; i < array->n_dims; i++)
		if (array->shape[i] > 1 && array->strides[i] % item != 0)
			return false;
	return true;
}

/* What is computed with must be float32 or float64, in memory that this CPU can read so. */
static bh_status tensor_of(const struct call *call, const char *parameter,
			   const struct bh_value *value, struct tensor *ret_tensor)
{
	struct tensor tensor = { .parameter = parameter, .info = { .size = sizeof(tensor.info) } };
	struct bh_buffer_info *info = &tensor.info;
	bh_status st;

	st = call->services->buffer_info(value->as.buffer, info);
	if (st < 0)
		return fail_plainly(call, st, "stream.buffer",
				    "the buffer does not say what it is");
	if (info->kind != BH_BUFFER_HOST && info->kind != BH_BUFFER_PINNED)
		return refuse(call, "stream.kind", parameter, "device memory",
			      "host memory: copy it there first");
	if (info->dtype_code != BH_DTYPE_FLOAT ||
	    (info->dtype_bits != 32 && info->dtype_bits != 64))
		return refuse_dtype(call, parameter, info);
	tensor.array = (struct bh_stream_array){
		.real = info->dtype_bits == 32 ? BH_STREAM_FLOAT32 : BH_STREAM_FLOAT64,
		.n_dims = info->n_dims,
		.data = info->data,
	};
	memcpy(tensor.array.shape, info->shape, sizeof(info->shape));
	memcpy(tensor.array.strides, info->strides, sizeof(info->strides));
	tensor.n = info->length / (info->dtype_bits / 8u);
	if (tensor.n > 0 && !is_aligned(&tensor.array))
		return refuse(call, "stream.alignment", parameter,
			      "an address or a stride that is no multiple of its element's size",
			      "elements at multiples of their size: copy it first");
	*ret_tensor = tensor;
	return 0;
}

static bh_status check_dims(const struct call *call, const struct tensor *tensor, uint32_t n_dims,
			    const char *accepted)
{
	return tensor->info.n_dims == n_dims ? 0 : refuse_shape(call, tensor, accepted);
}

static bh_status vector_of(const struct call *call, const char *parameter,
			   const struct bh_value *value, struct tensor *ret_tensor)
{
	bh_status st = tensor_of(call, parameter, value, ret_tensor);

	return st < 0 ? st : check_dims(call, ret_tensor, 1, "one dimension");
}

static bh_status matrix_of(const struct call *call, const char *parameter,
			   const struct bh_value *value, struct tensor *ret_tensor)
{
	bh_status st = tensor_of(call, parameter, value, ret_tensor);

	return st < 0 ? st : check_dims(call, ret_tensor, 2, "two dimensions: rows, columns");
}

/* All buffers of an op have one type: nothing is rounded unasked. */
static bh_status check_same_real(const struct call *call, const struct tensor *tensor,
				 const struct tensor *model)
{
	char accepted[96];

	if (tensor->array.real == model->array.real)
		return 0;
	snprintf(accepted, sizeof(accepted), "%s, as %s has: convert one of them first",
		 real_name(model->array.real), model->parameter);
	return refuse(call, "stream.dtype", tensor->parameter, real_name(tensor->array.real),
		      accepted);
}

static bh_status check_length(const struct call *call, const struct tensor *tensor, int64_t n,
			      const char *because)
{
	char accepted[64];

	if (tensor->info.shape[0] == n)
		return 0;
	snprintf(accepted, sizeof(accepted), "[%" PRId64 "], %s", n, because);
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

/* ---- who lies where -------------------------------------------------------------------------- */

/* From the first byte of any element to behind the last. */
struct extent {
	uintptr_t low;
	uint64_t length;
};

/* Of the elements that dimensions lead to whose strides are no multiple of `modulus`; 0: of all. */
static struct extent extent_of(const struct bh_stream_array *array, int64_t modulus)
{
	struct extent extent = { (uintptr_t)array->data, (uint64_t)item_size(array) };

	for (uint32_t i = 0; i < array->n_dims; i++) {
		int64_t span = array->strides[i] * (array->shape[i] - 1);

		if (modulus && array->strides[i] % modulus == 0)
			continue;
		extent.length += (uint64_t)(span < 0 ? -span : span);
		if (span < 0)
			extent.low += (uintptr_t)span;
	}
	return extent;
}

/* Whether the two are apart within every stretch of `modulus` bytes, as columns of a matrix are
 * within its rows. */
static bool apart_within(const struct bh_stream_array *a, const struct bh_stream_array *b,
			 int64_t modulus)
{
	struct extent x = extent_of(a, modulus), y = extent_of(b, modulus);
	uint64_t between;

	if (x.low <= y.low)
		between = (y.low - x.low) % (uint64_t)modulus;
	else
		between = ((uint64_t)modulus - (x.low - y.low) % (uint64_t)modulus) %
			  (uint64_t)modulus;
	return x.length <= between && y.length <= (uint64_t)modulus - between;
}

/* No byte of one is a byte of the other. It may say no where they only interlock in an odd way. */
static bool are_apart(const struct bh_stream_array *a, const struct bh_stream_array *b)
{
	struct extent x = extent_of(a, 0), y = extent_of(b, 0);

	if (x.low + x.length <= y.low || y.low + y.length <= x.low)
		return true;
	for (uint32_t i = 0; i < a->n_dims; i++) {
		int64_t stride = a->strides[i] < 0 ? -a->strides[i] : a->strides[i];

		if (a->shape[i] > 1 && stride > 0 && apart_within(a, b, stride))
			return true;
	}
	return false;
}

/* No two elements of what is written share memory. */
static bool is_apart_in_itself(const struct bh_stream_array *array)
{
	bool counted[BH_STREAM_DIMS] = { false };
	int64_t covered = item_size(array); /* by the dimensions counted */

	for (uint32_t n = 0; n < array->n_dims; n++) {
		uint32_t least = BH_STREAM_DIMS;

		for (uint32_t i = 0; i < array->n_dims; i++)
			if (!counted[i] &&
			    (least == BH_STREAM_DIMS ||
			     llabs(array->strides[i]) < llabs(array->strides[least])))
				least = i;
		counted[least] = true;
		if (array->shape[least] == 1)
			continue;
		if (llabs(array->strides[least]) < covered)
			return false;
		covered += llabs(array->strides[least]) * (array->shape[least] - 1);
	}
	return true;
}

static bool is_same_array(const struct bh_stream_array *a, const struct bh_stream_array *b)
{
	for (uint32_t i = 0; i < a->n_dims; i++)
		if (a->shape[i] > 1 && a->strides[i] != b->strides[i])
			return false;
	return a->data == b->data;
}

static bh_status check_written(const struct call *call, const struct tensor *out)
{
	if (out->n == 0 || is_apart_in_itself(&out->array))
		return 0;
	return refuse(call, "stream.overlap", out->parameter,
		      "memory in which elements lie on one another",
		      "an element of memory for each, such as numpy.empty() gives");
}

/* The kernels read ahead of what they write: a result in its own input's memory would be wrong. */
static bh_status check_apart(const struct call *call, const struct tensor *out,
			     const struct tensor *in)
{
	char given[64];

	if (out->n == 0 || in->n == 0 || are_apart(&out->array, &in->array))
		return 0;
	snprintf(given, sizeof(given), "memory that %s lies in too", in->parameter);
	return refuse(call, "stream.overlap", out->parameter, given, "memory of its own");
}

/* Element by element it may be the very same array, for each is read before it is written. Of the
 * same shape. */
static bh_status check_apart_or_same(const struct call *call, const struct tensor *out,
				     const struct tensor *in)
{
	char given[64], accepted[64];

	if (out->n == 0 || is_same_array(&out->array, &in->array) ||
	    are_apart(&out->array, &in->array))
		return 0;
	snprintf(given, sizeof(given), "memory that %s lies in too", in->parameter);
	snprintf(accepted, sizeof(accepted), "memory of its own, or exactly that of %s",
		 in->parameter);
	return refuse(call, "stream.overlap", out->parameter, given, accepted);
}

/* A double that a float32 cannot hold would become an infinity unasked. */
static bh_status check_range(const struct call *call, const char *parameter, double value,
			     const struct tensor *tensor)
{
	char given[32];

	if (tensor->array.real == BH_STREAM_FLOAT64 || !isfinite(value) ||
	    fabs(value) <= (double)FLT_MAX)
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

/* What is written by an op that works element by element. */
static bh_status written_of(const struct call *call, const char *parameter,
			    const struct bh_value *value, struct tensor *ret_tensor)
{
	bh_status st = tensor_of(call, parameter, value, ret_tensor);

	return st < 0 ? st : check_written(call, ret_tensor);
}

/* What is read to compute `out` element by element. */
static bh_status operand_of(const struct call *call, const char *parameter,
			    const struct bh_value *value, const struct tensor *out,
			    struct tensor *ret_tensor)
{
	bh_status st = tensor_of(call, parameter, value, ret_tensor);

	if (st == 0)
		st = check_same_real(call, ret_tensor, out);
	if (st == 0)
		st = check_same_shape(call, ret_tensor, out);
	if (st == 0)
		st = check_apart_or_same(call, out, ret_tensor);
	return st;
}

static bh_status op_fill(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor out;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "fill");
	st = written_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = check_range(&call, "value", args[1].as.real, &out);
	if (st != 0)
		return st;
	return ended(bh_stream_fill(&out.array, args[1].as.real, &call.stop));
}

static bh_status op_copy(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor out, a;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "copy");
	st = written_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = operand_of(&call, "a", &args[1], &out, &a);
	if (st != 0)
		return st;
	return ended(bh_stream_copy(&out.array, &a.array, &call.stop));
}

static bh_status op_scale(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor y;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "scale");
	st = written_of(&call, "y", &args[0], &y);
	if (st == 0)
		st = check_range(&call, "a", args[1].as.real, &y);
	if (st != 0)
		return st;
	return ended(bh_stream_scale(&y.array, args[1].as.real, &call.stop));
}

static bh_status op_axpy(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor y, x;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "axpy");
	st = written_of(&call, "y", &args[0], &y);
	if (st == 0)
		st = check_range(&call, "a", args[1].as.real, &y);
	if (st == 0)
		st = operand_of(&call, "x", &args[2], &y, &x);
	if (st != 0)
		return st;
	return ended(bh_stream_axpy(&y.array, args[1].as.real, &x.array, &call.stop));
}

static bh_status
run_binary(struct call *call, const struct bh_value *args,
	   bool (*kernel)(const struct bh_stream_array *, const struct bh_stream_array *,
			  const struct bh_stream_array *, const struct bh_stream_stop *))
{
	struct tensor out, a, b;
	bh_status st;

	st = written_of(call, "out", &args[0], &out);
	if (st == 0)
		st = operand_of(call, "a", &args[1], &out, &a);
	if (st == 0)
		st = operand_of(call, "b", &args[2], &out, &b);
	if (st != 0)
		return st;
	return ended(kernel(&out.array, &a.array, &b.array, &call->stop));
}

static bh_status op_add(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct call call;

	call_begin(&call, state, task, "add");
	return run_binary(&call, args, bh_stream_add);
}

static bh_status op_mul(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct call call;

	call_begin(&call, state, task, "mul");
	return run_binary(&call, args, bh_stream_mul);
}

static bh_status op_sum(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_value value = { .type = BH_TYPE_FLOAT };
	struct tensor a;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "sum");
	st = tensor_of(&call, "a", &args[0], &a);
	if (st != 0)
		return st;
	if (!bh_stream_sum(&a.array, &call.stop, &value.as.real))
		return -ECANCELED;
	return call.services->result(task, &value);
}

static bh_status op_max(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_value value = { .type = BH_TYPE_FLOAT };
	struct tensor a;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "max");
	st = tensor_of(&call, "a", &args[0], &a);
	if (st != 0)
		return st;
	if (a.n == 0)
		return refuse_shape(&call, &a, "at least one element: nothing has no greatest");
	if (!bh_stream_max(&a.array, &call.stop, &value.as.real))
		return -ECANCELED;
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
		st = check_same_real(&call, &b, &a);
	if (st == 0)
		st = check_length(&call, &b, a.info.shape[0], "as many as a has");
	if (st != 0)
		return st;
	if (!bh_stream_dot(&a.array, &b.array, &call.stop, &value.as.real))
		return -ECANCELED;
	return call.services->result(task, &value);
}

static bh_status op_matvec(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor out, m, x;
	struct call call;
	bh_status st;

	call_begin(&call, state, task, "matvec");
	st = vector_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = matrix_of(&call, "m", &args[1], &m);
	if (st == 0)
		st = vector_of(&call, "x", &args[2], &x);
	if (st == 0)
		st = check_same_real(&call, &m, &out);
	if (st == 0)
		st = check_same_real(&call, &x, &out);
	if (st == 0)
		st = check_length(&call, &x, m.info.shape[1], "a column of m each");
	if (st == 0)
		st = check_length(&call, &out, m.info.shape[0], "a row of m each");
	if (st == 0)
		st = check_written(&call, &out);
	if (st == 0)
		st = check_apart(&call, &out, &m);
	if (st == 0)
		st = check_apart(&call, &out, &x);
	if (st != 0)
		return st;
	return ended(bh_stream_matvec(&out.array, &m.array, &x.array, &call.stop));
}

static bh_status check_product(const struct call *call, const struct tensor *out,
			       const struct tensor *a, const struct tensor *b)
{
	const int64_t *x = a->info.shape, *y = b->info.shape;
	char accepted[96];

	if (y[0] != x[1]) {
		snprintf(accepted, sizeof(accepted), "[%" PRId64 ", any], a row a column of a",
			 x[1]);
		return refuse_shape(call, b, accepted);
	}
	if (out->info.shape[0] == x[0] && out->info.shape[1] == y[1])
		return 0;
	snprintf(accepted, sizeof(accepted), "[%" PRId64 ", %" PRId64 "]: a's rows, b's columns",
		 x[0], y[1]);
	return refuse_shape(call, out, accepted);
}

static bh_status op_matmul(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor out, a, b;
	struct call call;
	void *scratch;
	bh_status st;

	call_begin(&call, state, task, "matmul");
	st = matrix_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = matrix_of(&call, "a", &args[1], &a);
	if (st == 0)
		st = matrix_of(&call, "b", &args[2], &b);
	if (st == 0)
		st = check_same_real(&call, &a, &out);
	if (st == 0)
		st = check_same_real(&call, &b, &out);
	if (st == 0)
		st = check_product(&call, &out, &a, &b);
	if (st == 0)
		st = check_written(&call, &out);
	if (st == 0)
		st = check_apart(&call, &out, &a);
	if (st == 0)
		st = check_apart(&call, &out, &b);
	if (st != 0)
		return st;
	scratch = malloc(bh_stream_matmul_scratch());
	if (!scratch)
		return fail_plainly(&call, -ENOMEM, "stream.memory",
				    "no memory for the blocks of a matrix product");
	st = ended(bh_stream_matmul(&out.array, &a.array, &b.array, scratch, &call.stop));
	free(scratch);
	return st;
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
		pairs[i].score.as.real = best[i].score;
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
	k = (uint64_t)args[1].as.integer < scores.n ? (size_t)args[1].as.integer : (size_t)scores.n;
	best = calloc(k + 1, sizeof(*best));
	if (!best)
		return fail_plainly(&call, -ENOMEM, "stream.memory", "no memory for k scores");
	st = ended(bh_stream_top_k(&scores.array, k, best, &call.stop, &count));
	if (st == 0)
		st = give_ranked(&call, best, count);
	free(best);
	return st;
}

/* What the docs of the ops share. */
#define REALS "float32 or float64, all buffers the same"
#define IN_PLACE "may be the very same array, else it overlaps nothing that is read"

/* A stream keeps its order by itself, and what comes after other tasks is not started before they have
 * ended (host): there is nothing left to do. */
static bh_status op_nothing(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return 0;
}

static const struct bh_op stream_ops[] = {
	{ .name = "record",
	  .run = op_nothing,
	  .doc = "An event: it is done when all that was given to this stream before has ended, "
		 "one way or another." },
	{ .name = "wait",
	  .args = "*events:object",
	  .run = op_nothing,
	  .doc = "What is given to this stream from now on is not started before the events, or "
		 "any "
		 "tasks of any pools, are done. When one of them never will be, this fails at "
		 "once, and "
		 "the stream goes on." },
	{ .name = "synchronize",
	  .run = op_nothing,
	  .doc = "Is done when all that was given to this stream before has ended: to be "
		 "awaited." },
	{ .name = "run",
	  .args = "fn:object *args:object",
	  .ret = "object",
	  .run = op_run,
	  .doc = "Calls fn(*args) on the data plane and returns what it returns. It cannot be "
		 "stopped once it runs." },
	{ .name = "fill",
	  .args = "out:buffer!~ value:float",
	  .run = op_fill,
	  .doc = "Sets every element to value. float32 or float64." },
	{ .name = "copy",
	  .args = "out:buffer!~ a:buffer~",
	  .run = op_copy,
	  .doc = "out = a, of equal shape. " REALS "; out " IN_PLACE "." },
	{ .name = "scale",
	  .args = "y:buffer!~ a:float",
	  .run = op_scale,
	  .doc = "y = a y. float32 or float64." },
	{ .name = "axpy",
	  .args = "y:buffer!~ a:float x:buffer~",
	  .run = op_axpy,
	  .doc = "y = a x + y, of equal shape. " REALS "; y " IN_PLACE "." },
	{ .name = "add",
	  .args = "out:buffer!~ a:buffer~ b:buffer~",
	  .run = op_add,
	  .doc = "out = a + b, element by element, of equal shape. " REALS "; out " IN_PLACE "." },
	{ .name = "mul",
	  .args = "out:buffer!~ a:buffer~ b:buffer~",
	  .run = op_mul,
	  .doc = "out = a b, element by element, of equal shape. " REALS "; out " IN_PLACE "." },
	{ .name = "sum",
	  .args = "a:buffer~",
	  .ret = "float",
	  .run = op_sum,
	  .doc = "The sum of all elements, of float32 or float64; 0 of none. Its error is at most "
		 "262 epsilons of the type times the sum of the magnitudes, however many there "
		 "are." },
	{ .name = "max",
	  .args = "a:buffer~",
	  .ret = "float",
	  .run = op_max,
	  .doc = "The greatest element, of float32 or float64; NaN where there is one. Of no "
		 "elements: an error." },
	{ .name = "dot",
	  .args = "a:buffer~ b:buffer~",
	  .ret = "float",
	  .run = op_dot,
	  .doc = "The dot product of two vectors of equal length. " REALS ". Its error is at most "
		 "262 epsilons of the type times the sum of the products' magnitudes." },
	{ .name = "matvec",
	  .args = "out:buffer!~ m:buffer~ x:buffer~",
	  .run = op_matvec,
	  .doc = "out = m x, for a matrix m of shape [rows, columns]. " REALS
		 "; out overlaps neither." },
	{ .name = "matmul",
	  .args = "out:buffer!~ a:buffer~ b:buffer~",
	  .run = op_matmul,
	  .doc = "out = a b, for matrices of shapes [m, n], [m, k], [k, n]. " REALS
		 "; out overlaps neither." },
	{ .name = "top_k",
	  .args = "scores:buffer~ k:int",
	  .ret = "list",
	  .run = op_top_k,
	  .doc = "The k greatest of a vector of float32 or float64 as [[index, score], ...], "
		 "greatest first, equal ones by index. NaN is left out, so that there may be "
		 "fewer than k." },
};
static_assert(BH_STREAM_SUM_ERROR == 262, "the docs of sum and dot say so");

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
