/* SPDX-License-Identifier: BSD-3-Clause */
/* math - arithmetic on device memory: the ops of plugins/stream that the plugin has kernels for, with their names,
 * arguments and results.
 *
 * An op checks everything that can be known here, queues, and is pending: no worker waits for the device. What it
 * finds comes back through pinned memory.
 *
 * Thread: workers; give and cleanup on the flight's progress thread, or on the worker.
 * Fails:  cuda.dtype, .kind, .alignment, .shape, .overlap, .range: parameter, what was given and what is accepted.
 *         cuda.kernels: there are none, and why.
 * Keeps:  SUP-10: scratch memory is used again when the device is done with it, not before. */
#include "config.h"

#include "plugins/cuda/math.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/cuda/kernels.h"

struct bh_cuda_math {
	struct bh_cuda *cuda;		 /* I */
	pthread_mutex_t lock;		 /* held while the kernels are loaded, once */
	struct bh_cuda_kernels *kernels; /* M: set once, then I */
	struct bh_cuda_fault fault;	 /* M: status not 0: why there are none; set once */
};

bh_status bh_cuda_math_new(struct bh_cuda *cuda, struct bh_cuda_math **ret_math)
{
	struct bh_cuda_math *math = calloc(1, sizeof(*math));

	if (!math)
		return -ENOMEM;
	math->cuda = cuda;
	pthread_mutex_init(&math->lock, NULL);
	*ret_math = math;
	return 0;
}

void bh_cuda_math_free(struct bh_cuda_math *math, bool alive)
{
	if (!math)
		return;
	bh_cuda_kernels_free(math->kernels, alive);
	pthread_mutex_destroy(&math->lock);
	free(math);
}

/* What lack of memory has prevented is tried again the next time. */
static void load_locked(struct bh_cuda_math *math)
{
	if (math->kernels || (math->fault.status && math->fault.status != -ENOMEM))
		return;
	memset(&math->fault, 0, sizeof(math->fault));
	math->fault.status = bh_cuda_kernels_new(&math->cuda->device, &math->kernels, &math->fault);
}

static bh_status kernels_of(const struct bh_cuda_call *call, struct bh_cuda_kernels **ret_kernels)
{
	struct bh_cuda_math *math = call->cuda->math;
	struct bh_cuda_fault fault;

	pthread_mutex_lock(&math->lock);
	load_locked(math);
	*ret_kernels = math->kernels;
	fault = math->fault;
	pthread_mutex_unlock(&math->lock);
	if (*ret_kernels)
		return 0;
	bh_cuda_note_result(call->cuda, fault.result, "the plugin's kernels");
	return bh_cuda_fail_by(call, &fault);
}

/* ---- arguments ------------------------------------------------------------------------------------ */

/* float32 or float64 in memory of this device. */
struct tensor {
	struct bh_cuda_operand operand;
	enum bh_cuda_real real;
	CUdeviceptr at;
	uint64_t n;
};

static const char *real_name(enum bh_cuda_real real)
{
	return real == BH_CUDA_FLOAT32 ? "float32" : "float64";
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

static struct shape_text shape_text(const struct tensor *tensor)
{
	const struct bh_buffer_info *info = &tensor->operand.info;
	struct shape_text out = { "[" };
	size_t used = 1;

	for (uint32_t i = 0; i < info->n_dims; i++)
		used += (size_t)snprintf(out.text + used, sizeof(out.text) - used, "%s%" PRId64,
					 i > 0 ? ", " : "", info->shape[i]);
	snprintf(out.text + used, sizeof(out.text) - used, "]");
	return out;
}

static bh_status refuse_shape(const struct bh_cuda_call *call, const struct tensor *tensor,
			      const char *accepted)
{
	return bh_cuda_refuse(call, "cuda.shape", tensor->operand.name, shape_text(tensor).text,
			      accepted);
}

static bh_status tensor_of(const struct bh_cuda_call *call, const char *name,
			   const struct bh_value *arg, struct tensor *ret_tensor)
{
	struct tensor tensor;
	const struct bh_buffer_info *info = &tensor.operand.info;
	char given[32];
	bh_status st;

	st = bh_cuda_device_operand(call, name, arg, &tensor.operand);
	if (st < 0)
		return st;
	if (info->dtype_code != BH_DTYPE_FLOAT ||
	    (info->dtype_bits != 32 && info->dtype_bits != 64)) {
		snprintf(given, sizeof(given), "%s%u", dtype_name(info->dtype_code),
			 info->dtype_bits);
		return bh_cuda_refuse(call, "cuda.dtype", name, given, "float32 or float64");
	}
	tensor.real = info->dtype_bits == 32 ? BH_CUDA_FLOAT32 : BH_CUDA_FLOAT64;
	tensor.at = tensor.operand.address;
	tensor.n = info->length / (info->dtype_bits / 8u);
	if (tensor.n > 0 && tensor.at % (info->dtype_bits / 8u) != 0)
		return bh_cuda_refuse(call, "cuda.alignment", name,
				      "an address that is no multiple of its element's size",
				      "elements at multiples of their size: copy it first");
	*ret_tensor = tensor;
	return 0;
}

static bh_status vector_of(const struct bh_cuda_call *call, const char *name,
			   const struct bh_value *arg, struct tensor *ret_tensor)
{
	bh_status st = tensor_of(call, name, arg, ret_tensor);

	if (st == 0 && ret_tensor->operand.info.n_dims != 1)
		return refuse_shape(call, ret_tensor, "one dimension");
	return st;
}

static bh_status matrix_of(const struct bh_cuda_call *call, const char *name,
			   const struct bh_value *arg, struct tensor *ret_tensor)
{
	bh_status st = tensor_of(call, name, arg, ret_tensor);

	if (st == 0 && ret_tensor->operand.info.n_dims != 2)
		return refuse_shape(call, ret_tensor, "two dimensions: rows, columns");
	return st;
}

/* All buffers of an op have one type: nothing is rounded unasked. */
static bh_status check_same_real(const struct bh_cuda_call *call, const struct tensor *tensor,
				 const struct tensor *model)
{
	char accepted[96];

	if (tensor->real == model->real)
		return 0;
	snprintf(accepted, sizeof(accepted), "%s, as %s has: convert one of them first",
		 real_name(model->real), model->operand.name);
	return bh_cuda_refuse(call, "cuda.dtype", tensor->operand.name, real_name(tensor->real),
			      accepted);
}

static bh_status check_same_shape(const struct bh_cuda_call *call, const struct tensor *tensor,
				  const struct tensor *model)
{
	const struct bh_buffer_info *a = &tensor->operand.info, *b = &model->operand.info;

	if (a->n_dims == b->n_dims &&
	    memcmp(a->shape, b->shape, a->n_dims * sizeof(a->shape[0])) == 0)
		return 0;
	return refuse_shape(call, tensor, shape_text(model).text);
}

static bh_status check_length(const struct bh_cuda_call *call, const struct tensor *tensor,
			      int64_t n, const char *because)
{
	char accepted[64];

	if (tensor->operand.info.shape[0] == n)
		return 0;
	snprintf(accepted, sizeof(accepted), "[%" PRId64 "], %s", n, because);
	return refuse_shape(call, tensor, accepted);
}

static bool are_apart(const struct tensor *a, const struct tensor *b)
{
	return a->n == 0 || b->n == 0 || a->at + a->operand.info.length <= b->at ||
	       b->at + b->operand.info.length <= a->at;
}

/* `same`: it may be the very same array, since each element is read before it is written. */
static bh_status check_apart(const struct bh_cuda_call *call, const struct tensor *out,
			     const struct tensor *in, bool same)
{
	char given[64], accepted[64];

	if (are_apart(out, in) || (same && out->at == in->at))
		return 0;
	snprintf(given, sizeof(given), "memory that %s lies in too", in->operand.name);
	if (same)
		snprintf(accepted, sizeof(accepted), "memory of its own, or exactly that of %s",
			 in->operand.name);
	else
		snprintf(accepted, sizeof(accepted), "memory of its own");
	return bh_cuda_refuse(call, "cuda.overlap", out->operand.name, given, accepted);
}

/* A double that a float32 cannot hold would become an infinity unasked. */
static bh_status check_range(const struct bh_cuda_call *call, const char *name, double value,
			     const struct tensor *tensor)
{
	char given[32];

	if (tensor->real == BH_CUDA_FLOAT64 || !isfinite(value) || fabs(value) <= (double)FLT_MAX)
		return 0;
	snprintf(given, sizeof(given), "%g", value);
	return bh_cuda_refuse(call, "cuda.range", name, given,
			      "-3.4028235e38 to 3.4028235e38, inf, or nan");
}

/* What is read to compute `out` element by element. */
static bh_status like_of(const struct bh_cuda_call *call, const char *name,
			 const struct bh_value *arg, const struct tensor *out,
			 struct tensor *ret_tensor)
{
	bh_status st = tensor_of(call, name, arg, ret_tensor);

	if (st == 0)
		st = check_same_real(call, ret_tensor, out);
	if (st == 0)
		st = check_same_shape(call, ret_tensor, out);
	if (st == 0)
		st = check_apart(call, out, ret_tensor, true);
	return st;
}

/* ---- element by element, and matvec ------------------------------------------------------------------ */

/* What an op queues, once its arguments have been checked. */
struct job {
	struct bh_cuda_call *call;
	struct bh_cuda_kernels *kernels;
	CUstream stream;
	struct bh_cuda_pending *pending;
};

static bh_status job_begin(struct job *job, struct bh_cuda_call *call,
			   const struct bh_value *stream)
{
	*job = (struct job){ .call = call };
	bh_status st = kernels_of(call, &job->kernels);

	return st < 0 ? st : bh_cuda_stream_of(call, stream, &job->stream);
}

static void count_launch(const struct bh_cuda_call *call)
{
	call->cuda->services->metric_add(call->cuda->ctx, BH_CUDA_METRIC_LAUNCHES, 1);
}

/* As job_begin(), for an op without a value. */
static bh_status job_plain(struct job *job, struct bh_cuda_call *call,
			   const struct bh_value *stream)
{
	bh_status st = job_begin(job, call, stream);

	if (st < 0)
		return st;
	job->pending = bh_cuda_pending_new(call, sizeof(*job->pending));
	return job->pending ? 0 : -ENOMEM;
}

/* One launch: when that is refused nothing was queued. */
static bh_status job_end(const struct job *job, CUresult result)
{
	bh_status st = bh_cuda_check(job->call, result, "cuLaunchKernel");

	if (st < 0) {
		bh_cuda_pending_drop(job->pending);
		return st;
	}
	count_launch(job->call);
	return bh_cuda_post(job->pending, job->stream);
}

static bh_status op_fill(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor out;
	struct job job;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "fill");
	if (st == 0)
		st = tensor_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = check_range(&call, "value", args[1].as.real, &out);
	if (st == 0)
		st = job_plain(&job, &call, &args[2]);
	if (st != 0)
		return st;
	return job_end(&job, out.n == 0 ? CUDA_SUCCESS
					: bh_cuda_fill(job.kernels, job.stream, out.real, out.at,
						       args[1].as.real, out.n));
}

static bh_status op_scale(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor y;
	struct job job;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "scale");
	if (st == 0)
		st = tensor_of(&call, "y", &args[0], &y);
	if (st == 0)
		st = check_range(&call, "a", args[1].as.real, &y);
	if (st == 0)
		st = job_plain(&job, &call, &args[2]);
	if (st != 0)
		return st;
	return job_end(&job, y.n == 0 ? CUDA_SUCCESS
				      : bh_cuda_scale(job.kernels, job.stream, y.real, y.at,
						      args[1].as.real, y.n));
}

static bh_status op_axpy(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor y, x;
	struct job job;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "axpy");
	if (st == 0)
		st = tensor_of(&call, "y", &args[0], &y);
	if (st == 0)
		st = check_range(&call, "a", args[1].as.real, &y);
	if (st == 0)
		st = like_of(&call, "x", &args[2], &y, &x);
	if (st == 0)
		st = job_plain(&job, &call, &args[3]);
	if (st != 0)
		return st;
	return job_end(&job, y.n == 0 ? CUDA_SUCCESS
				      : bh_cuda_axpy(job.kernels, job.stream, y.real, y.at,
						     args[1].as.real, x.at, y.n));
}

static bh_status
run_binary(void *state, struct bh_task *task, const struct bh_value *args, const char *op,
	   CUresult (*queue)(const struct bh_cuda_kernels *, CUstream, enum bh_cuda_real,
			     CUdeviceptr, CUdeviceptr, CUdeviceptr, uint64_t))
{
	struct tensor out, a, b;
	struct job job;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, op);
	if (st == 0)
		st = tensor_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = like_of(&call, "a", &args[1], &out, &a);
	if (st == 0)
		st = like_of(&call, "b", &args[2], &out, &b);
	if (st == 0)
		st = job_plain(&job, &call, &args[3]);
	if (st != 0)
		return st;
	return job_end(&job, out.n == 0 ? CUDA_SUCCESS
					: queue(job.kernels, job.stream, out.real, out.at, a.at,
						b.at, out.n));
}

static bh_status op_add(void *state, struct bh_task *task, const struct bh_value *args)
{
	return run_binary(state, task, args, "add", bh_cuda_add);
}

static bh_status op_mul(void *state, struct bh_task *task, const struct bh_value *args)
{
	return run_binary(state, task, args, "mul", bh_cuda_mul);
}

static bh_status check_matvec(const struct bh_cuda_call *call, const struct tensor *out,
			      const struct tensor *m, const struct tensor *x)
{
	bh_status st = check_same_real(call, m, out);

	if (st == 0)
		st = check_same_real(call, x, out);
	if (st == 0)
		st = check_length(call, x, m->operand.info.shape[1], "a column of m each");
	if (st == 0)
		st = check_length(call, out, m->operand.info.shape[0], "a row of m each");
	if (st == 0)
		st = check_apart(call, out, m, false);
	if (st == 0)
		st = check_apart(call, out, x, false);
	return st;
}

static bh_status op_matvec(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct tensor out, m, x;
	struct job job;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "matvec");
	if (st == 0)
		st = vector_of(&call, "out", &args[0], &out);
	if (st == 0)
		st = matrix_of(&call, "m", &args[1], &m);
	if (st == 0)
		st = vector_of(&call, "x", &args[2], &x);
	if (st == 0)
		st = check_matvec(&call, &out, &m, &x);
	if (st == 0)
		st = job_plain(&job, &call, &args[3]);
	if (st != 0)
		return st;
	return job_end(&job, out.n == 0 ? CUDA_SUCCESS
					: bh_cuda_matvec(job.kernels, job.stream, out.real, out.at,
							 m.at, x.at, out.n, x.n));
}

/* ---- what gives a result -------------------------------------------------------------------------------- */

struct result {
	struct bh_cuda_pending pending;
	struct bh_cuda_kernels *kernels;
	struct bh_cuda_scratch *scratch;
	double (*read)(const struct bh_cuda_scratch *scratch); /* of a reduction */
};

static void result_cleanup(struct bh_cuda_pending *pending)
{
	struct result *result = (struct result *)pending;

	if (result->scratch)
		bh_cuda_scratch_give(result->kernels, result->scratch);
}

/* `n`, `k`: see bh_cuda_scratch_take(). */
static struct result *result_new(const struct job *job, size_t size, uint64_t n, uint32_t k)
{
	struct result *result = (struct result *)bh_cuda_pending_new(job->call, size);
	bh_status st;

	if (!result)
		return NULL;
	result->kernels = job->kernels;
	result->pending.cleanup = result_cleanup;
	st = bh_cuda_check(job->call, bh_cuda_scratch_take(job->kernels, n, k, &result->scratch),
			   "cuMemAlloc");
	if (st == 0)
		return result;
	bh_cuda_pending_drop(&result->pending);
	return NULL;
}

/* Several calls: when one fails, what went before it still runs on the task's memory, so the task ends after it. */
static bh_status result_post(struct result *result, const struct job *job, CUresult queued)
{
	bh_cuda_note_result(job->call->cuda, queued, job->call->op);
	result->pending.failed = queued;
	count_launch(job->call);
	return bh_cuda_post(&result->pending, job->stream);
}

static bh_status give_real(struct bh_cuda_pending *pending, struct bh_value *value)
{
	const struct result *result = (const struct result *)pending;

	*value = (struct bh_value){ .type = BH_TYPE_FLOAT,
				    .as.real = result->read(result->scratch) };
	return 0;
}

static bh_status give_now(const struct bh_cuda_call *call, const struct bh_value *value)
{
	return call->cuda->services->result(call->task, value);
}

static struct result *reduction_new(const struct job *job,
				    double (*read)(const struct bh_cuda_scratch *))
{
	struct result *result = result_new(job, sizeof(*result), 0, 0);

	if (!result)
		return NULL;
	result->pending.give = give_real;
	result->read = read;
	return result;
}

static bh_status op_sum(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct bh_value zero = { .type = BH_TYPE_FLOAT };
	struct result *result;
	struct tensor a;
	struct job job;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "sum");
	if (st == 0)
		st = tensor_of(&call, "a", &args[0], &a);
	if (st == 0)
		st = job_begin(&job, &call, &args[1]);
	if (st != 0)
		return st;
	if (a.n == 0)
		return give_now(&call, &zero);
	result = reduction_new(&job, bh_cuda_sum_result);
	if (!result)
		return -ENOMEM;
	return result_post(
		result, &job,
		bh_cuda_sum(job.kernels, job.stream, a.real, a.at, a.n, result->scratch));
}

static bh_status op_max(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct result *result;
	struct tensor a;
	struct job job;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "max");
	if (st == 0)
		st = tensor_of(&call, "a", &args[0], &a);
	if (st == 0 && a.n == 0)
		st = refuse_shape(&call, &a, "at least one element: nothing has no greatest");
	if (st == 0)
		st = job_begin(&job, &call, &args[1]);
	if (st != 0)
		return st;
	result = reduction_new(&job, bh_cuda_max_result);
	if (!result)
		return -ENOMEM;
	return result_post(
		result, &job,
		bh_cuda_max(job.kernels, job.stream, a.real, a.at, a.n, result->scratch));
}

static bh_status op_dot(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct bh_value zero = { .type = BH_TYPE_FLOAT };
	struct result *result;
	struct tensor a, b;
	struct job job;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "dot");
	if (st == 0)
		st = vector_of(&call, "a", &args[0], &a);
	if (st == 0)
		st = vector_of(&call, "b", &args[1], &b);
	if (st == 0)
		st = check_same_real(&call, &b, &a);
	if (st == 0)
		st = check_length(&call, &b, a.operand.info.shape[0], "as many as a has");
	if (st == 0)
		st = job_begin(&job, &call, &args[2]);
	if (st != 0)
		return st;
	if (a.n == 0)
		return give_now(&call, &zero);
	result = reduction_new(&job, bh_cuda_sum_result);
	if (!result)
		return -ENOMEM;
	return result_post(
		result, &job,
		bh_cuda_dot(job.kernels, job.stream, a.real, a.at, b.at, a.n, result->scratch));
}

/* Room for all of them comes with the task, so that nothing fails once the device is done. */
struct ranking {
	struct result result;
	uint32_t k;
	struct bh_cuda_ranked *best; /* k, behind the values */
	struct bh_value rows[];	     /* k, then the k pairs that they refer to */
};

static bh_status give_ranking(struct bh_cuda_pending *pending, struct bh_value *value)
{
	struct ranking *ranking = (struct ranking *)pending;
	struct bh_value *pairs = ranking->rows + ranking->k;
	uint32_t count = bh_cuda_top_k_result(ranking->result.scratch, ranking->best);

	for (uint32_t i = 0; i < count; i++) {
		pairs[2 * i] = (struct bh_value){ .type = BH_TYPE_INT,
						  .as.integer = (int64_t)ranking->best[i].index };
		pairs[2 * i + 1] = (struct bh_value){ .type = BH_TYPE_FLOAT,
						      .as.real = ranking->best[i].score };
		ranking->rows[i] =
			(struct bh_value){ .type = BH_TYPE_LIST, .as.list = { &pairs[2 * i], 2 } };
	}
	*value = (struct bh_value){ .type = BH_TYPE_LIST, .as.list = { ranking->rows, count } };
	return 0;
}

static struct ranking *ranking_new(const struct job *job, uint64_t n, uint32_t k)
{
	size_t values = 3 * (size_t)k * sizeof(struct bh_value);
	struct ranking *ranking = (struct ranking *)result_new(
		job, sizeof(*ranking) + values + k * sizeof(struct bh_cuda_ranked), n, k);

	if (!ranking)
		return NULL;
	ranking->k = k;
	ranking->best = (struct bh_cuda_ranked *)(void *)((char *)ranking->rows + values);
	ranking->result.pending.give = give_ranking;
	return ranking;
}

static bh_status check_k(const struct bh_cuda_call *call, int64_t given, uint64_t n,
			 uint32_t *ret_k)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRId64, given);
	if (given < 0)
		return bh_cuda_refuse(call, "cuda.range", "k", text, "0 or more");
	if ((uint64_t)given < n)
		n = (uint64_t)given;
	if (n > BH_KERNEL_K_MAX)
		return bh_cuda_refuse(
			call, "cuda.range", "k", text,
			"0 to 1024: for more, copy() the scores to the host and let the "
			"stream plugin's top_k find them");
	*ret_k = (uint32_t)n;
	return 0;
}
static_assert(BH_KERNEL_K_MAX == 1024, "the texts above and below say so");

static bh_status op_top_k(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct bh_value none = { .type = BH_TYPE_LIST };
	struct ranking *ranking;
	struct tensor scores;
	struct job job;
	BH_CUDA_CALL call;
	uint32_t k = 0;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "top_k");
	if (st == 0)
		st = vector_of(&call, "scores", &args[0], &scores);
	if (st == 0)
		st = check_k(&call, args[1].as.integer, scores.n, &k);
	if (st == 0)
		st = job_begin(&job, &call, &args[2]);
	if (st != 0)
		return st;
	if (k == 0)
		return give_now(&call, &none);
	ranking = ranking_new(&job, scores.n, k);
	if (!ranking)
		return -ENOMEM;
	return result_post(&ranking->result, &job,
			   bh_cuda_top_k(job.kernels, job.stream, scores.real, scores.at, scores.n,
					 k, ranking->result.scratch));
}

/* ---- the table ---------------------------------------------------------------------------------------- */

/* What the docs of the ops share. */
#define REALS "float32 or float64, all buffers the same, in this device's memory"
#define IN_PLACE "may be the very same array, else it overlaps nothing that is read"
#define STREAM "stream: one of stream(); without it, the pool's own."

const struct bh_op bh_cuda_kernel_ops[BH_CUDA_KERNEL_OPS] = {
	{ .name = "fill",
	  .args = "out:buffer!@ value:float stream:handle=none",
	  .run = op_fill,
	  .doc = "Sets every element to value. float32 or float64, in this device's "
		 "memory. " STREAM },
	{ .name = "scale",
	  .args = "y:buffer!@ a:float stream:handle=none",
	  .run = op_scale,
	  .doc = "y = a y. float32 or float64, in this device's memory. " STREAM },
	{ .name = "axpy",
	  .args = "y:buffer!@ a:float x:buffer@ stream:handle=none",
	  .run = op_axpy,
	  .doc = "y = a x + y, of equal shape. " REALS "; y " IN_PLACE ". " STREAM },
	{ .name = "add",
	  .args = "out:buffer!@ a:buffer@ b:buffer@ stream:handle=none",
	  .run = op_add,
	  .doc = "out = a + b, element by element, of equal shape. " REALS "; out " IN_PLACE
		 ". " STREAM },
	{ .name = "mul",
	  .args = "out:buffer!@ a:buffer@ b:buffer@ stream:handle=none",
	  .run = op_mul,
	  .doc = "out = a b, element by element, of equal shape. " REALS "; out " IN_PLACE
		 ". " STREAM },
	{ .name = "sum",
	  .args = "a:buffer@ stream:handle=none",
	  .ret = "float",
	  .run = op_sum,
	  .doc = "The sum of all elements, of float32 or float64 in this device's memory; 0 of "
		 "none. "
		 "It is made of doubles, and the same whenever it is repeated, on any device: its "
		 "error is at most 64 times 2**-53 times the sum of the magnitudes. " STREAM },
	{ .name = "max",
	  .args = "a:buffer@ stream:handle=none",
	  .ret = "float",
	  .run = op_max,
	  .doc = "The greatest element, of float32 or float64 in this device's memory; NaN where "
		 "there is one. Of no elements: an error. " STREAM },
	{ .name = "dot",
	  .args = "a:buffer@ b:buffer@ stream:handle=none",
	  .ret = "float",
	  .run = op_dot,
	  .doc = "The dot product of two vectors of equal length. " REALS
		 ". Products are doubles too; see sum. " STREAM },
	{ .name = "matvec",
	  .args = "out:buffer!@ m:buffer@ x:buffer@ stream:handle=none",
	  .run = op_matvec,
	  .doc = "out = m x, for a matrix m of shape [rows, columns]. " REALS
		 "; out overlaps neither. Sums are doubles. " STREAM },
	{ .name = "top_k",
	  .args = "scores:buffer@ k:int stream:handle=none",
	  .ret = "list",
	  .run = op_top_k,
	  .doc = "The k greatest, at most 1024, of a vector of float32 or float64 in this device's "
		 "memory as [[index, score], ...], greatest first, equal ones by index. NaN is "
		 "left "
		 "out, so that there may be fewer than k. " STREAM },
};
