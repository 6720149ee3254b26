/* SPDX-License-Identifier: BSD-3-Clause */
/* test_stream - the ops of plugins/stream/stream.c through its descriptor, against services of our
 * own: what each accepts, what it returns, and what its refusals say. */
#include "config.h"

#include <bulkhead/plugin.h>

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/tap.h"

extern const struct bh_plugin bh_plugin;

/* ---- a host of our own ----------------------------------------------------------------------- */

struct bh_buffer {
	struct bh_buffer_info info;
	bh_status refuses;
};

struct bh_task {
	bool cancelled;
	bh_status call_status; /* what call_object() returns */
	uint32_t n_called_with;
	const struct bh_value *called_with;
	struct bh_object *called;
	uint32_t site;
	struct bh_value result;
	double scores[8][2]; /* a list result, copied out: it lies in the plugin's memory */
	uint64_t n_scores;
	bh_status failed;
	char error[512]; /* "id key=value key=value" */
};

static bh_status host_task_fail(struct bh_task *task, bh_status status, const char *id,
				const struct bh_fact *facts, uint32_t n_facts)
{
	int used = snprintf(task->error, sizeof(task->error), "%s", id);

	for (uint32_t i = 0; i < n_facts; i++)
		used += snprintf(task->error + used, sizeof(task->error) - (size_t)used, " %s=%s",
				 facts[i].key, facts[i].text);
	task->failed = status;
	return status;
}

static int32_t host_cancelled(const struct bh_task *task)
{
	return task->cancelled;
}

static bh_status host_result(struct bh_task *task, const struct bh_value *value)
{
	task->result = *value;
	if (value->type != BH_TYPE_LIST)
		return 0;
	task->n_scores = value->as.list.count;
	for (uint64_t i = 0; i < task->n_scores && i < 8; i++) {
		const struct bh_items *pair = &value->as.list.items[i].as.list;

		CU_ASSERT_EQUAL_FATAL(pair->count, 2);
		CU_ASSERT_EQUAL(pair->items[0].type, BH_TYPE_INT);
		CU_ASSERT_EQUAL(pair->items[1].type, BH_TYPE_FLOAT);
		task->scores[i][0] = (double)pair->items[0].as.integer;
		task->scores[i][1] = pair->items[1].as.real;
	}
	return 0;
}

static bh_status host_buffer_info(const struct bh_buffer *buffer, struct bh_buffer_info *ret_info)
{
	if (buffer->refuses)
		return buffer->refuses;
	*ret_info = buffer->info;
	return 0;
}

static bh_status host_call_object(struct bh_task *task, uint32_t site, struct bh_object *callable,
				  const struct bh_value *args, uint32_t n_args,
				  struct bh_value *ret_value)
{
	task->site = site;
	task->called = callable;
	task->called_with = args;
	task->n_called_with = n_args;
	if (task->call_status == 0)
		*ret_value = (struct bh_value){ .type = BH_TYPE_OBJECT, .as.object = callable };
	return task->call_status;
}

static const struct bh_services services = {
	.size = sizeof(services),
	.abi = BH_ABI,
	.task_fail = host_task_fail,
	.cancelled = host_cancelled,
	.result = host_result,
	.buffer_info = host_buffer_info,
	.call_object = host_call_object,
};

static const struct bh_op *find_op(const char *name)
{
	const struct bh_op *ops = bh_plugin.ops.rows;

	for (uint32_t i = 0; i < bh_plugin.ops.count; i++)
		if (strcmp(ops[i].name, name) == 0)
			return &ops[i];
	CU_FAIL_FATAL("no such op");
	return NULL;
}

static bh_status run(struct bh_task *task, const char *op, const struct bh_value *args)
{
	void *state = NULL;
	bh_status st;

	CU_ASSERT_EQUAL_FATAL(bh_plugin.open(NULL, &services, &state), 0);
	st = find_op(op)->run(state, task, args);
	CU_ASSERT_EQUAL(bh_plugin.close(state), 0);
	return st;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static struct bh_buffer matrix(float *data, int64_t rows, int64_t cols)
{
	return (struct bh_buffer){ .info = { .size = sizeof(struct bh_buffer_info),
					     .kind = BH_BUFFER_HOST,
					     .flags = BH_BUFFER_WRITABLE,
					     .n_dims = 2,
					     .data = data,
					     .length = (uint64_t)(rows * cols) * sizeof(float),
					     .dtype_code = BH_DTYPE_FLOAT,
					     .dtype_bits = 32,
					     .shape = { rows, cols },
					     .strides = { cols * 4, 4 } } };
}

static struct bh_buffer vector(float *data, int64_t n)
{
	struct bh_buffer buffer = matrix(data, n, 1);

	buffer.info.n_dims = 1;
	buffer.info.strides[0] = 4;
	return buffer;
}

/* Every `step`-th of so many doubles; `step` may be 0 or negative. */
static struct bh_buffer doubles(double *first, int64_t n, int64_t step)
{
	struct bh_buffer buffer = vector(NULL, n);

	buffer.info.data = first;
	buffer.info.length = (uint64_t)n * 8;
	buffer.info.dtype_bits = 64;
	buffer.info.strides[0] = step * 8;
	return buffer;
}

#define BUFFER(b)                                                                                  \
	{                                                                                          \
		.type = BH_TYPE_BUFFER, .as.buffer = &(b)                                          \
	}
#define FLOAT(x)                                                                                   \
	{                                                                                          \
		.type = BH_TYPE_FLOAT, .as.real = (x)                                              \
	}
#define INT(x)                                                                                     \
	{                                                                                          \
		.type = BH_TYPE_INT, .as.integer = (x)                                             \
	}

/* The op refused with exactly this, and said so in the task. */
static void check_refused(const char *op, const struct bh_value *args, const char *error)
{
	struct bh_task task = { 0 };

	CU_ASSERT_EQUAL(run(&task, op, args), -EINVAL);
	CU_ASSERT_EQUAL(task.failed, -EINVAL);
	CU_ASSERT_STRING_EQUAL(task.error, error);
	if (strcmp(task.error, error) != 0)
		printf("# it says: %s\n", task.error);
	CU_ASSERT_EQUAL(task.result.type, BH_TYPE_NONE);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void run_calls_at_its_site(void)
{
	struct bh_object *fn = (struct bh_object *)&services, *arg = (struct bh_object *)&bh_plugin;
	const struct bh_value rest[] = { { .type = BH_TYPE_OBJECT, .as.object = arg } };
	const struct bh_value args[] = { { .type = BH_TYPE_OBJECT, .as.object = fn },
					 { .type = BH_TYPE_LIST, .as.list = { rest, 1 } } };
	const struct bh_site *sites = bh_plugin.sites.rows;
	struct bh_task task = { 0 };

	CU_ASSERT_EQUAL(run(&task, "run", args), 0);
	CU_ASSERT_PTR_EQUAL(task.called, fn);
	CU_ASSERT_PTR_EQUAL(task.called_with, rest);
	CU_ASSERT_EQUAL(task.n_called_with, 1);
	CU_ASSERT_PTR_EQUAL(task.result.as.object, fn);
	CU_ASSERT_STRING_EQUAL(sites[task.site].name, "compute");
	CU_ASSERT_EQUAL(sites[task.site].policy, BH_SITE_DATA_ONLY);
}

static void run_passes_failures_on(void)
{
	const struct bh_value args[] = { { .type = BH_TYPE_OBJECT }, { .type = BH_TYPE_LIST } };
	struct bh_task task = { .call_status = -EREMOTEIO };

	CU_ASSERT_EQUAL(run(&task, "run", args), -EREMOTEIO);
	CU_ASSERT_EQUAL(task.failed, 0); /* the host has the exception: that is the error */
	task.call_status = -ESHUTDOWN;
	CU_ASSERT_EQUAL(run(&task, "run", args), -ESHUTDOWN);
	CU_ASSERT_STRING_EQUAL(task.error, "stream.shutdown op=run reason=the interpreter is going "
					   "down; nothing was run");
	CU_ASSERT_EQUAL(task.result.type, BH_TYPE_NONE);
}

static void ops_compute(void)
{
	float m[] = { 1, 2, 3, 4, 5, 6 }, x[] = { 1, 10, 100 }, out[2] = { NAN, NAN };
	struct bh_buffer bm = matrix(m, 2, 3), bx = vector(x, 3), bout = vector(out, 2);
	const struct bh_value dot[] = { BUFFER(bx), BUFFER(bx) };
	const struct bh_value matvec[] = { BUFFER(bout), BUFFER(bm), BUFFER(bx) };
	const struct bh_value fill[] = { BUFFER(bout), FLOAT(0.5) };
	const struct bh_value axpy[] = { BUFFER(bx), FLOAT(2), BUFFER(bx) };
	const struct bh_value scale[] = { BUFFER(bm), FLOAT(-1) };
	float y[] = { 7, 8, 9 };
	struct bh_buffer by = vector(y, 3);
	const struct bh_value copy[] = { BUFFER(by), BUFFER(bx) };
	struct bh_value apart[3];
	struct bh_task task = { 0 };

	CU_ASSERT_EQUAL(run(&task, "dot", dot), 0);
	CU_ASSERT_EQUAL(task.result.type, BH_TYPE_FLOAT);
	CU_ASSERT_EQUAL(task.result.as.real, 10101.0);
	CU_ASSERT_EQUAL(run(&task, "matvec", matvec), 0);
	CU_ASSERT_EQUAL(out[0], 321.0f);
	CU_ASSERT_EQUAL(out[1], 654.0f);
	CU_ASSERT_EQUAL(run(&task, "fill", fill), 0);
	CU_ASSERT_EQUAL(out[1], 0.5f);
	CU_ASSERT_EQUAL(run(&task, "scale", scale), 0);
	CU_ASSERT_EQUAL(m[5], -6.0f);
	memcpy(apart, axpy, sizeof(apart));
	apart[0].as.buffer = &by;
	CU_ASSERT_EQUAL(run(&task, "axpy", apart), 0);
	CU_ASSERT_EQUAL(y[2], 209.0f);
	CU_ASSERT_EQUAL(run(&task, "copy", copy), 0);
	CU_ASSERT_EQUAL(y[2], 100.0f);
	CU_ASSERT_EQUAL(run(&task, "axpy", axpy), 0); /* y is x */
	CU_ASSERT_EQUAL(x[2], 300.0f);
}

static void more_ops_compute(void)
{
	double a[] = { 1, 0, 2, 0, 3, 0 }, b[] = { 10, 20, 30 }, out[6] = { 0 };
	struct bh_buffer ba = doubles(a, 3, 2), bb = doubles(b + 2, 3, -1),
			 seven = doubles(b, 3, 0), bout = doubles(out, 3, 1);
	const struct bh_value add[] = { BUFFER(bout), BUFFER(ba), BUFFER(bb) };
	const struct bh_value again[] = { BUFFER(bout), BUFFER(bout), BUFFER(seven) };
	const struct bh_value one[] = { BUFFER(ba) };
	float m[] = { 1, 2, 3, 4, 5, 6 }, product[4] = { 0 };
	struct bh_buffer left = matrix(m, 2, 3), right = matrix(m, 3, 2),
			 square = matrix(product, 2, 2);
	const struct bh_value matmul[] = { BUFFER(square), BUFFER(left), BUFFER(right) };
	struct bh_task task = { 0 };

	CU_ASSERT_EQUAL(run(&task, "add", add), 0);
	CU_ASSERT(out[0] == 31 && out[1] == 22 && out[2] == 13);
	CU_ASSERT_EQUAL(run(&task, "mul", again), 0);
	CU_ASSERT(out[0] == 310 && out[1] == 220 && out[2] == 130);
	CU_ASSERT_EQUAL(run(&task, "sum", one), 0);
	CU_ASSERT_EQUAL(task.result.as.real, 6.0);
	CU_ASSERT_EQUAL(run(&task, "max", one), 0);
	CU_ASSERT_EQUAL(task.result.as.real, 3.0);
	CU_ASSERT_EQUAL(run(&task, "matmul", matmul), 0);
	CU_ASSERT(product[0] == 22 && product[1] == 28 && product[2] == 49 && product[3] == 64);
	/* The transpose of a transpose's product. */
	left.info.shape[0] = 3;
	left.info.shape[1] = 2;
	left.info.strides[0] = 4;
	left.info.strides[1] = 12;
	right.info.shape[0] = 2;
	right.info.shape[1] = 3;
	right.info.strides[0] = 4;
	right.info.strides[1] = 8;
	square.info.strides[0] = 4;
	square.info.strides[1] = 8;
	memset(product, 0, sizeof(product));
	{
		const struct bh_value turned[] = { BUFFER(square), BUFFER(right), BUFFER(left) };

		CU_ASSERT_EQUAL(run(&task, "matmul", turned), 0);
	}
	CU_ASSERT(product[0] == 22 && product[1] == 28 && product[2] == 49 && product[3] == 64);
}

static void max_of_nothing_is_refused(void)
{
	struct bh_buffer none = matrix(NULL, 0, 3);
	const struct bh_value args[] = { BUFFER(none) };
	struct bh_task task = { 0 };

	check_refused("max", args,
		      "stream.shape op=max parameter=a given=[0, 3] accepted=at least one element: "
		      "nothing has no greatest");
	CU_ASSERT_EQUAL(run(&task, "sum", args), 0);
	CU_ASSERT_EQUAL(task.result.as.real, 0.0);
}

static void refuses_two_types_in_one_op(void)
{
	float x[3] = { 0 }, y[3] = { 0 };
	double z[3] = { 0 };
	struct bh_buffer bx = vector(x, 3), by = vector(y, 3), bz = doubles(z, 3, 1);
	struct bh_buffer m = matrix(x, 1, 3), out = vector(y, 1);
	const struct bh_value add[] = { BUFFER(bx), BUFFER(by), BUFFER(bz) };
	const struct bh_value dot[] = { BUFFER(bz), BUFFER(bx) };
	const struct bh_value matvec[] = { BUFFER(out), BUFFER(m), BUFFER(bz) };

	check_refused("add", add,
		      "stream.dtype op=add parameter=b given=float64 accepted=float32, as out has: "
		      "convert one of them first");
	check_refused("dot", dot,
		      "stream.dtype op=dot parameter=b given=float32 accepted=float64, as a has: "
		      "convert one of them first");
	check_refused("matvec", matvec,
		      "stream.dtype op=matvec parameter=x given=float64 accepted=float32, as out "
		      "has: convert one of them first");
}

/* What is written and what is read may interlock as long as they share no element. */
static void knows_who_lies_where(void)
{
	double memory[64] = { 0 };
	struct bh_buffer even = doubles(memory, 8, 2), odd = doubles(memory + 1, 8, 2),
			 back = doubles(memory + 15, 8, -2), next = doubles(memory + 2, 8, 2),
			 still = doubles(memory, 8, 0), one = doubles(memory, 1, 0);
	struct bh_buffer block = doubles(memory, 4, 8), beside = block, across = block;
	const struct bh_value fine[] = { BUFFER(even), BUFFER(odd) };
	const struct bh_value fine_too[] = { BUFFER(even), BUFFER(back) };
	const struct bh_value same[] = { BUFFER(even), BUFFER(even) };
	const struct bh_value shifted[] = { BUFFER(even), BUFFER(next) };
	const struct bh_value turned[] = { BUFFER(odd), BUFFER(back) };
	const struct bh_value flat[] = { BUFFER(still), FLOAT(1) };
	const struct bh_value single[] = { BUFFER(one), FLOAT(1) };
	const struct bh_value blocks[] = { BUFFER(block), BUFFER(beside) };
	const struct bh_value crossed[] = { BUFFER(block), BUFFER(across) };
	const char *shared =
		"memory that a lies in too accepted=memory of its own, or exactly that "
		"of a";
	struct bh_task task = { 0 };
	char error[256];

	CU_ASSERT_EQUAL(run(&task, "copy", fine), 0);
	CU_ASSERT_EQUAL(run(&task, "copy", fine_too), 0);
	CU_ASSERT_EQUAL(run(&task, "copy", same), 0);
	CU_ASSERT_EQUAL(run(&task, "fill", single), 0);
	snprintf(error, sizeof(error), "stream.overlap op=copy parameter=out given=%s", shared);
	check_refused("copy", shifted, error);
	check_refused("copy", turned, error);
	check_refused("fill", flat,
		      "stream.overlap op=fill parameter=out given=memory in which elements lie on "
		      "one another accepted=an element of memory for each, such as numpy.empty() "
		      "gives");
	/* The left and the right half of a matrix of 8 columns, then two blocks that share some. */
	block.info.n_dims = beside.info.n_dims = across.info.n_dims = 2;
	block.info.shape[1] = beside.info.shape[1] = across.info.shape[1] = 4;
	block.info.strides[1] = beside.info.strides[1] = across.info.strides[1] = 8;
	block.info.length = beside.info.length = across.info.length = 4 * 4 * 8;
	beside.info.data = memory + 4;
	across.info.data = memory + 3;
	CU_ASSERT_EQUAL(run(&task, "copy", blocks), 0);
	check_refused("copy", crossed, error);
}

static void top_k_returns_pairs(void)
{
	float scores[] = { 0.25f, NAN, 4, 4, -1 };
	struct bh_buffer b = vector(scores, 5), empty = vector(NULL, 0);
	const struct bh_value three[] = { BUFFER(b), INT(3) },
			      all[] = { BUFFER(b), INT(INT64_MAX) };
	const struct bh_value none[] = { BUFFER(b), INT(0) }, nothing[] = { BUFFER(empty), INT(5) };
	struct bh_task task = { 0 };

	CU_ASSERT_EQUAL(run(&task, "top_k", three), 0);
	CU_ASSERT_EQUAL(task.n_scores, 3);
	CU_ASSERT_EQUAL(task.scores[0][0], 2.0);
	CU_ASSERT_EQUAL(task.scores[0][1], 4.0);
	CU_ASSERT_EQUAL(task.scores[1][0], 3.0);
	CU_ASSERT_EQUAL(task.scores[2][0], 0.0);
	CU_ASSERT_EQUAL(run(&task, "top_k", all), 0);
	CU_ASSERT_EQUAL(task.n_scores, 4);
	CU_ASSERT_EQUAL(run(&task, "top_k", none), 0);
	CU_ASSERT_EQUAL(task.n_scores, 0);
	CU_ASSERT_EQUAL(task.result.type, BH_TYPE_LIST);
	CU_ASSERT_EQUAL(run(&task, "top_k", nothing), 0);
	CU_ASSERT_EQUAL(task.n_scores, 0);
}

static void empty_buffers_are_fine(void)
{
	float x[1] = { 3 };
	struct bh_buffer none = vector(NULL, 0), no_rows = matrix(NULL, 0, 1), bx = vector(x, 1);
	const struct bh_value dot[] = { BUFFER(none), BUFFER(none) };
	const struct bh_value matvec[] = { BUFFER(none), BUFFER(no_rows), BUFFER(bx) };
	const struct bh_value copy[] = { BUFFER(none), BUFFER(none) };
	struct bh_task task = { 0 };

	CU_ASSERT_EQUAL(run(&task, "dot", dot), 0);
	CU_ASSERT_EQUAL(task.result.as.real, 0.0);
	CU_ASSERT_EQUAL(run(&task, "matvec", matvec), 0);
	CU_ASSERT_EQUAL(run(&task, "copy", copy), 0);
}

static void refuses_what_is_no_real(void)
{
	float x[4] = { 0 };
	struct bh_buffer good = vector(x, 4), bad = good;
	const struct bh_value args[] = { BUFFER(good), BUFFER(bad) };

	bad.info.dtype_bits = 16;
	check_refused("dot", args,
		      "stream.dtype op=dot parameter=b given=float16 accepted=float32 or float64, "
		      "such as array.array('f') or numpy.float64");
	bad.info.dtype_code = BH_DTYPE_OPAQUE;
	check_refused("dot", args,
		      "stream.dtype op=dot parameter=b given=opaque16 accepted=float32 or float64, "
		      "such as array.array('f') or numpy.float64");
	bad = good;
	bad.info.dtype_code = BH_DTYPE_UINT;
	check_refused("dot", args,
		      "stream.dtype op=dot parameter=b given=uint32 accepted=float32 or float64, "
		      "such as array.array('f') or numpy.float64");
	bad = good;
	bad.info.kind = BH_BUFFER_CUDA;
	check_refused("dot", args,
		      "stream.kind op=dot parameter=b given=device memory accepted=host "
		      "memory: copy it there first");
	bad = good;
	bad.info.data = (char *)x + 1;
	check_refused(
		"dot", args,
		"stream.alignment op=dot parameter=b given=an address or a stride that is no "
		"multiple of its element's size accepted=elements at multiples of their size: "
		"copy it first");
	bad = good;
	bad.info.strides[0] = 6;
	check_refused(
		"dot", args,
		"stream.alignment op=dot parameter=b given=an address or a stride that is no "
		"multiple of its element's size accepted=elements at multiples of their size: "
		"copy it first");
}

static void passes_on_a_buffer_without_info(void)
{
	float x[1] = { 0 };
	struct bh_buffer buffer = vector(x, 1);
	const struct bh_value args[] = { BUFFER(buffer), FLOAT(0) };
	struct bh_task task = { 0 };

	buffer.refuses = -EIO;
	CU_ASSERT_EQUAL(run(&task, "fill", args), -EIO);
	CU_ASSERT_STRING_EQUAL(task.error,
			       "stream.buffer op=fill reason=the buffer does not say what it is");
}

static void refuses_wrong_shapes(void)
{
	float x[6] = { 0 }, y[6] = { 0 }, z[6] = { 0 };
	struct bh_buffer v2 = vector(x, 2), v3 = vector(y, 3), w3 = vector(z, 3),
			 m = matrix(z, 2, 3);
	struct bh_buffer t = matrix(z, 3, 2), n = matrix(x, 2, 3);
	const struct bh_value dot[] = { BUFFER(v2), BUFFER(v3) },
			      dot2[] = { BUFFER(m), BUFFER(v3) };
	const struct bh_value flat[] = { BUFFER(v2), BUFFER(w3), BUFFER(v3) };
	const struct bh_value narrow[] = { BUFFER(v2), BUFFER(t), BUFFER(v3) };
	const struct bh_value low[] = { BUFFER(v3), BUFFER(m), BUFFER(v3) };
	const struct bh_value inner[] = { BUFFER(n), BUFFER(m), BUFFER(m) };
	const struct bh_value outer[] = { BUFFER(n), BUFFER(m), BUFFER(t) };
	const struct bh_value copy[] = { BUFFER(n), BUFFER(t) },
			      axpy[] = { BUFFER(v2), FLOAT(1), BUFFER(m) };

	check_refused("dot", dot,
		      "stream.shape op=dot parameter=b given=[3] accepted=[2], as many as a has");
	check_refused("dot", dot2,
		      "stream.shape op=dot parameter=a given=[2, 3] accepted=one dimension");
	check_refused("matvec", flat,
		      "stream.shape op=matvec parameter=m given=[3] accepted=two dimensions: rows, "
		      "columns");
	check_refused(
		"matvec", narrow,
		"stream.shape op=matvec parameter=x given=[3] accepted=[2], a column of m each");
	check_refused(
		"matvec", low,
		"stream.shape op=matvec parameter=out given=[3] accepted=[2], a row of m each");
	check_refused("copy", copy,
		      "stream.shape op=copy parameter=a given=[3, 2] accepted=[2, 3]");
	check_refused("matmul", inner,
		      "stream.shape op=matmul parameter=b given=[2, 3] accepted=[3, any], a row a "
		      "column of a");
	check_refused(
		"matmul", outer,
		"stream.shape op=matmul parameter=out given=[2, 3] accepted=[2, 2]: a's rows, "
		"b's columns");
	check_refused("axpy", axpy, "stream.shape op=axpy parameter=x given=[2, 3] accepted=[2]");
}

static void names_the_longest_shape(void)
{
	struct bh_buffer buffer = vector(NULL, 0);
	const struct bh_value args[] = { BUFFER(buffer), INT(1) };

	buffer.info.n_dims = BH_NDIM_MAX;
	for (uint32_t i = 0; i < BH_NDIM_MAX; i++)
		buffer.info.shape[i] = i ? INT64_MAX : 0;
	check_refused("top_k", args,
		      "stream.shape op=top_k parameter=scores given=[0, 9223372036854775807, "
		      "9223372036854775807, 9223372036854775807, 9223372036854775807, "
		      "9223372036854775807, 9223372036854775807, 9223372036854775807] "
		      "accepted=one dimension");
}

static void refuses_overlap(void)
{
	float memory[12] = { 0 };
	struct bh_buffer m = matrix(memory, 2, 3), x = vector(memory + 6, 3),
			 out = vector(memory, 2);
	const struct bh_value args[] = { BUFFER(out), BUFFER(m), BUFFER(x) };
	struct bh_task task = { 0 };

	check_refused("matvec", args,
		      "stream.overlap op=matvec parameter=out given=memory that m lies in "
		      "too accepted=memory of its own");
	out.info.data = memory + 8;
	check_refused("matvec", args,
		      "stream.overlap op=matvec parameter=out given=memory that x lies in "
		      "too accepted=memory of its own");
	out.info.data = memory + 9; /* just behind both */
	CU_ASSERT_EQUAL(run(&task, "matvec", args), 0);
}

static void refuses_numbers_out_of_range(void)
{
	float x[2] = { 1, 2 };
	struct bh_buffer b = vector(x, 2);
	const struct bh_value fill[] = { BUFFER(b), FLOAT(1e39) }, k[] = { BUFFER(b), INT(-1) };
	const struct bh_value most[] = { BUFFER(b), FLOAT(-(double)FLT_MAX) },
			      inf[] = { BUFFER(b), FLOAT(INFINITY) };
	struct bh_task task = { 0 };

	check_refused("fill", fill,
		      "stream.range op=fill parameter=value given=1e+39 "
		      "accepted=-3.4028235e38 to 3.4028235e38, inf, or nan");
	check_refused("top_k", k, "stream.range op=top_k parameter=k given=-1 accepted=0 or more");
	CU_ASSERT_EQUAL(x[0], 1.0f);
	CU_ASSERT_EQUAL(run(&task, "fill", most), 0);
	CU_ASSERT_EQUAL(x[1], -FLT_MAX);
	CU_ASSERT_EQUAL(run(&task, "fill", inf), 0);
	CU_ASSERT_EQUAL(x[1], INFINITY);
}

static void long_ops_see_cancellation(void)
{
	const int64_t n = 2 << 20;
	float *x = calloc((size_t)n, sizeof(*x)), *y = calloc((size_t)n, sizeof(*y));
	struct bh_buffer bx = vector(x, n), by = vector(y, n), m = matrix(x, n / 2, 2),
			 v = vector(y, n / 2);
	float two[2] = { 0 };
	struct bh_buffer b2 = vector(two, 2);
	const struct bh_value dot[] = { BUFFER(bx), BUFFER(by) }, top_k[] = { BUFFER(bx), INT(2) };
	const struct bh_value matvec[] = { BUFFER(v), BUFFER(m), BUFFER(b2) };
	const struct bh_value one[] = { BUFFER(bx), FLOAT(1) },
			      axpy[] = { BUFFER(by), FLOAT(1), BUFFER(bx) };
	struct bh_buffer square = matrix(x, 256, 256), product = matrix(y, 256, 256);
	const struct bh_value matmul[] = { BUFFER(product), BUFFER(square), BUFFER(square) };
	const struct bh_value three[] = { BUFFER(by), BUFFER(bx), BUFFER(by) };
	struct bh_task task = { .cancelled = true };

	CU_ASSERT_PTR_NOT_NULL_FATAL(x);
	CU_ASSERT_PTR_NOT_NULL_FATAL(y);
	CU_ASSERT_EQUAL(run(&task, "dot", dot), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "matvec", matvec), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "top_k", top_k), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "fill", one), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "scale", one), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "copy", dot), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "axpy", axpy), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "add", three), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "mul", three), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "sum", dot), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "max", dot), -ECANCELED);
	CU_ASSERT_EQUAL(run(&task, "matmul", matmul), -ECANCELED);
	CU_ASSERT_EQUAL(task.result.type, BH_TYPE_NONE);
	CU_ASSERT_EQUAL(task.failed, 0);
	free(x);
	free(y);
}

static const struct bh_test tests[] = {
	{ "GIL-3: run calls its object at the site compute, which is data-only",
	  run_calls_at_its_site },
	{ "GIL-5: run passes on what was raised, and says that the interpreter is going down",
	  run_passes_failures_on },
	{ "each kernel op computes what its doc says", ops_compute },
	{ "top_k returns pairs of index and score, NaN left out, k clipped to what there is",
	  top_k_returns_pairs },
	{ "buffers without elements are fine", empty_buffers_are_fine },
	{ "the kernels of float64 and of strided memory compute what their docs say",
	  more_ops_compute },
	{ "the max of nothing is refused, its sum is 0", max_of_nothing_is_refused },
	{ "a buffer that is no float in host memory is refused by name", refuses_what_is_no_real },
	{ "buffers of two types in one op are refused, with the one that differs",
	  refuses_two_types_in_one_op },
	{ "memory that is written may interlock with what is read, and not more",
	  knows_who_lies_where },
	{ "a buffer that cannot say what it is fails the task", passes_on_a_buffer_without_info },
	{ "wrong shapes are refused with the right one", refuses_wrong_shapes },
	{ "the longest possible shape is named whole", names_the_longest_shape },
	{ "a result that overlaps an input is refused, one beside it is not", refuses_overlap },
	{ "numbers that do not fit are refused", refuses_numbers_out_of_range },
	{ "every long op ends as cancelled when its task is", long_ops_see_cancellation },
};

BH_TAP_MAIN("stream", tests)
