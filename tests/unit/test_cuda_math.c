/* SPDX-License-Identifier: BSD-3-Clause */
/* test_cuda_math - the arithmetic ops of plugins/cuda: what each accepts, what it returns, what its refusals say. What
 * the kernels compute is tests/device/test_kernels.c's. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/cuda/kernels.h"
#include "plugins/stream/kernels.h"
#include "tests/unit/cuda_host.h"
#include "tests/unit/tap.h"

static struct bh_task task;

static bool never_asked(const void *arg)
{
	(void)arg;
	return false;
}

static void matrix_of(struct bh_buffer *buffer, int64_t rows, int64_t columns)
{
	int64_t item = buffer->info.dtype_bits / 8;

	buffer->info.n_dims = 2;
	buffer->info.shape[0] = rows;
	buffer->info.shape[1] = columns;
	buffer->info.strides[0] = columns * item;
	buffer->info.strides[1] = item;
}

/* ---- results -------------------------------------------------------------------------------------------- */

static void element_by_element(void)
{
	const float from[] = { 1, 2, 3, 4 };
	struct bh_buffer a = cuda_host_vector(from, 4, 32), out = cuda_host_vector(NULL, 4, 32);
	float got[4];

	cuda_host_must(&task, "fill",
		       (const struct bh_value[]){ BUFFER(out), FLOAT(0.5), NOTHING });
	cuda_host_must(&task, "axpy",
		       (const struct bh_value[]){ BUFFER(out), FLOAT(2), BUFFER(a), NOTHING });
	cuda_host_must(&task, "scale",
		       (const struct bh_value[]){ BUFFER(out), FLOAT(-1), NOTHING });
	cuda_host_get(&out, got);
	for (int i = 0; i < 4; i++)
		CU_ASSERT_EQUAL(got[i], -(0.5f + 2 * from[i]));
	cuda_host_must(&task, "add",
		       (const struct bh_value[]){ BUFFER(out), BUFFER(a), BUFFER(a), NOTHING });
	cuda_host_must(&task, "mul",
		       (const struct bh_value[]){ BUFFER(out), BUFFER(out), BUFFER(a), NOTHING });
	CU_ASSERT_EQUAL(task.value.type, BH_TYPE_NONE);
	cuda_host_get(&out, got);
	for (int i = 0; i < 4; i++)
		CU_ASSERT_EQUAL(got[i], 2 * from[i] * from[i]);
	cuda_host_free(&a);
	cuda_host_free(&out);
}

static void reductions(void)
{
	const double from[] = { 1, -2, 3.5 };
	struct bh_buffer a = cuda_host_vector(from, 3, 64);

	cuda_host_must(&task, "sum", (const struct bh_value[]){ BUFFER(a), NOTHING });
	CU_ASSERT_EQUAL(task.value.type, BH_TYPE_FLOAT);
	CU_ASSERT_EQUAL(task.value.as.real, 2.5);
	cuda_host_must(&task, "max", (const struct bh_value[]){ BUFFER(a), NOTHING });
	CU_ASSERT_EQUAL(task.value.as.real, 3.5);
	cuda_host_must(&task, "dot", (const struct bh_value[]){ BUFFER(a), BUFFER(a), NOTHING });
	CU_ASSERT_EQUAL(task.value.as.real, 17.25);
	cuda_host_free(&a);
}

static void a_matrix_times_a_vector(void)
{
	const double from[] = { 1, 2, 3, 4, 5, 6 }, by[] = { 1, 10, 100 };
	struct bh_buffer m = cuda_host_vector(from, 6, 64), x = cuda_host_vector(by, 3, 64);
	struct bh_buffer out = cuda_host_vector(NULL, 2, 64);
	double got[2];

	matrix_of(&m, 2, 3);
	cuda_host_must(&task, "matvec",
		       (const struct bh_value[]){ BUFFER(out), BUFFER(m), BUFFER(x), NOTHING });
	cuda_host_get(&out, got);
	CU_ASSERT_EQUAL(got[0], 321);
	CU_ASSERT_EQUAL(got[1], 654);
	cuda_host_free(&m);
	cuda_host_free(&x);
	cuda_host_free(&out);
}

/* The same as the stream plugin gives, for the same scores. */
static void the_best(void)
{
	enum { N = 100000, K = 1000 };
	static float from[N];
	static struct bh_stream_ranked best[K];
	const struct bh_stream_array scores = { .real = BH_STREAM_FLOAT32,
						.n_dims = 1,
						.data = (char *)from,
						.shape = { N },
						.strides = { 4 } };
	struct bh_buffer a;
	const struct bh_stream_stop go_on = { never_asked, NULL };
	int64_t wrong = 0;
	size_t count;

	for (int i = 0; i < N; i++)
		from[i] = i % 97 == 5 ? NAN : (float)((i * 7919) % 1009);
	a = cuda_host_vector(from, N, 32);
	CU_ASSERT_TRUE(bh_stream_top_k(&scores, K, best, &go_on, &count));
	cuda_host_must(&task, "top_k", (const struct bh_value[]){ BUFFER(a), INT(K), NOTHING });
	CU_ASSERT_EQUAL(task.value.type, BH_TYPE_LIST);
	CU_ASSERT_EQUAL_FATAL(task.n_pairs, count);
	for (size_t i = 0; i < count; i++)
		wrong += task.pairs[i][0] != (double)best[i].index ||
			 task.pairs[i][1] != best[i].score;
	CU_ASSERT_EQUAL(wrong, 0);
	cuda_host_free(&a);
}

static void of_nothing_there_is_a_result_where_there_can_be_one(void)
{
	struct bh_buffer none = cuda_host_vector(NULL, 0, 32), one = cuda_host_vector(NULL, 1, 32);
	struct bh_buffer m = cuda_host_vector(NULL, 0, 32);
	float got = 1;

	cuda_host_must(&task, "fill", (const struct bh_value[]){ BUFFER(none), FLOAT(1), NOTHING });
	cuda_host_must(&task, "sum", (const struct bh_value[]){ BUFFER(none), NOTHING });
	CU_ASSERT_TRUE(task.value.type == BH_TYPE_FLOAT && task.value.as.real == 0);
	cuda_host_must(&task, "dot",
		       (const struct bh_value[]){ BUFFER(none), BUFFER(none), NOTHING });
	CU_ASSERT_TRUE(task.value.type == BH_TYPE_FLOAT && task.value.as.real == 0);
	cuda_host_must(&task, "top_k", (const struct bh_value[]){ BUFFER(none), INT(5), NOTHING });
	CU_ASSERT_TRUE(task.value.type == BH_TYPE_LIST && task.n_pairs == 0);
	cuda_host_must(&task, "top_k", (const struct bh_value[]){ BUFFER(one), INT(0), NOTHING });
	CU_ASSERT_TRUE(task.value.type == BH_TYPE_LIST && task.n_pairs == 0);
	cuda_host_must(&task, "top_k",
		       (const struct bh_value[]){ BUFFER(one), INT(5000), NOTHING });
	CU_ASSERT_EQUAL(task.n_pairs, 1);
	matrix_of(&m, 1, 0); /* the sum of nothing, for each row */
	cuda_host_must(&task, "fill", (const struct bh_value[]){ BUFFER(one), FLOAT(1), NOTHING });
	cuda_host_must(&task, "matvec",
		       (const struct bh_value[]){ BUFFER(one), BUFFER(m), BUFFER(none), NOTHING });
	cuda_host_get(&one, &got);
	CU_ASSERT_EQUAL(got, 0);
	cuda_host_refused("max", (const struct bh_value[]){ BUFFER(none), NOTHING }, -EINVAL,
			  "cuda.shape parameter=a given=[0] accepted=at least one element: nothing "
			  "has no greatest");
	cuda_host_free(&one);
}

/* ---- refusals --------------------------------------------------------------------------------------------- */

static void memory_that_is_not_the_devices_is_refused_with_what_to_do(void)
{
	struct bh_buffer a = cuda_host_vector(NULL, 4, 32), other = a, host = a;

	other.info.device = 1;
	host.info.kind = BH_BUFFER_HOST;
	cuda_host_refused("sum", (const struct bh_value[]){ BUFFER(host), NOTHING }, -EINVAL,
			  "cuda.kind parameter=a given=host memory accepted=memory of device 0, as "
			  "this pool's alloc() gives it; copy()");
	cuda_host_refused("add",
			  (const struct bh_value[]){ BUFFER(a), BUFFER(a), BUFFER(other), NOTHING },
			  -EINVAL, "cuda.kind parameter=b given=memory of device 1 accepted=");
	cuda_host_free(&a);
}

static void types_are_never_mixed_or_guessed(void)
{
	struct bh_buffer a = cuda_host_vector(NULL, 4, 32), b = cuda_host_vector(NULL, 4, 64);
	struct bh_buffer half = a, ints = a, odd = a;

	half.info.dtype_bits = 16;
	ints.info.dtype_code = BH_DTYPE_INT;
	odd.info.data = (char *)odd.info.data + 2;
	cuda_host_refused("sum", (const struct bh_value[]){ BUFFER(half), NOTHING }, -EINVAL,
			  "cuda.dtype parameter=a given=float16 accepted=float32 or float64");
	cuda_host_refused("max", (const struct bh_value[]){ BUFFER(ints), NOTHING }, -EINVAL,
			  "cuda.dtype parameter=a given=int32 accepted=float32 or float64");
	cuda_host_refused(
		"dot", (const struct bh_value[]){ BUFFER(a), BUFFER(b), NOTHING }, -EINVAL,
		"cuda.dtype parameter=b given=float64 accepted=float32, as a has: convert "
		"one of them first");
	cuda_host_refused("sum", (const struct bh_value[]){ BUFFER(odd), NOTHING }, -EINVAL,
			  "cuda.alignment parameter=a ");
	cuda_host_free(&a);
	cuda_host_free(&b);
}

static void shapes_are_held_against_one_another(void)
{
	struct bh_buffer a = cuda_host_vector(NULL, 4, 32), b = cuda_host_vector(NULL, 5, 32);
	struct bh_buffer m = cuda_host_vector(NULL, 20, 32);

	matrix_of(&m, 4, 5);
	cuda_host_refused("mul",
			  (const struct bh_value[]){ BUFFER(a), BUFFER(a), BUFFER(b), NOTHING },
			  -EINVAL, "cuda.shape parameter=b given=[5] accepted=[4]");
	cuda_host_refused("dot", (const struct bh_value[]){ BUFFER(a), BUFFER(b), NOTHING },
			  -EINVAL,
			  "cuda.shape parameter=b given=[5] accepted=[4], as many as a has");
	cuda_host_refused("dot", (const struct bh_value[]){ BUFFER(m), BUFFER(b), NOTHING },
			  -EINVAL, "cuda.shape parameter=a given=[4, 5] accepted=one dimension");
	cuda_host_refused(
		"matvec", (const struct bh_value[]){ BUFFER(a), BUFFER(m), BUFFER(a), NOTHING },
		-EINVAL, "cuda.shape parameter=x given=[4] accepted=[5], a column of m each");
	cuda_host_refused(
		"matvec", (const struct bh_value[]){ BUFFER(b), BUFFER(m), BUFFER(b), NOTHING },
		-EINVAL, "cuda.shape parameter=out given=[5] accepted=[4], a row of m each");
	cuda_host_refused(
		"matvec", (const struct bh_value[]){ BUFFER(a), BUFFER(b), BUFFER(b), NOTHING },
		-EINVAL, "cuda.shape parameter=m given=[5] accepted=two dimensions: rows, columns");
	cuda_host_free(&a);
	cuda_host_free(&b);
	cuda_host_free(&m);
}

static void what_is_written_overlaps_nothing_that_is_read(void)
{
	struct bh_buffer a = cuda_host_vector(NULL, 20, 32), shifted, m, x;

	shifted = a;
	shifted.info.data = (char *)a.info.data + 4;
	m = a;
	matrix_of(&m, 4, 5);
	x = a;
	x.info.shape[0] = 5;
	x.info.length = 20;
	cuda_host_refused(
		"axpy", (const struct bh_value[]){ BUFFER(a), FLOAT(1), BUFFER(shifted), NOTHING },
		-EINVAL,
		"cuda.overlap parameter=y given=memory that x lies in too accepted=memory of "
		"its own, or exactly that of x");
	shifted.info.shape[0] = 4;
	shifted.info.length = 16;
	cuda_host_refused(
		"matvec",
		(const struct bh_value[]){ BUFFER(shifted), BUFFER(m), BUFFER(x), NOTHING },
		-EINVAL,
		"cuda.overlap parameter=out given=memory that m lies in too accepted=memory "
		"of its own");
	cuda_host_free(&a);
}

static void numbers_out_of_range_are_refused(void)
{
	struct bh_buffer a = cuda_host_vector(NULL, 2000, 32), b = cuda_host_vector(NULL, 4, 64);

	cuda_host_refused("fill", (const struct bh_value[]){ BUFFER(a), FLOAT(1e39), NOTHING },
			  -EINVAL,
			  "cuda.range parameter=value given=1e+39 accepted=-3.4028235e38 to");
	cuda_host_must(&task, "fill", (const struct bh_value[]){ BUFFER(b), FLOAT(1e39), NOTHING });
	cuda_host_must(&task, "fill",
		       (const struct bh_value[]){ BUFFER(a), FLOAT(INFINITY), NOTHING });
	cuda_host_refused("top_k", (const struct bh_value[]){ BUFFER(a), INT(-1), NOTHING },
			  -EINVAL, "cuda.range parameter=k given=-1 accepted=0 or more");
	cuda_host_refused("top_k", (const struct bh_value[]){ BUFFER(a), INT(1025), NOTHING },
			  -EINVAL,
			  "cuda.range parameter=k given=1025 accepted=0 to 1024: for more, ");
	cuda_host_free(&a);
	cuda_host_free(&b);
}

static void a_stream_that_is_none_is_refused(void)
{
	struct bh_buffer a = cuda_host_vector(NULL, 4, 32);
	const struct bh_value stream = { .type = BH_TYPE_HANDLE, .as.handle = 12345 };
	const struct bh_value fill[] = { BUFFER(a), FLOAT(1), stream };

	cuda_host_refused("fill", fill, -ENOENT,
			  "cuda.handle parameter=stream given=12345: a number");
	cuda_host_refused("sum", (const struct bh_value[]){ BUFFER(a), stream }, -ENOENT,
			  "cuda.handle parameter=stream");
	cuda_host_free(&a);
}

/* A build without nvcc: all else of the plugin works. */
static void without_kernels_an_op_says_what_to_do(void)
{
	struct bh_buffer a = cuda_host_vector(NULL, 4, 32);

	if (bh_cuda_fatbin_size)
		BH_SKIP("this build has kernels");
	cuda_host_refused("sum", (const struct bh_value[]){ BUFFER(a), NOTHING }, -ENOSYS,
			  "cuda.kernels reason=this build has no kernels of its own");
	cuda_host_free(&a);
}

/* ---- the suite ------------------------------------------------------------------------------------------- */

static const char without_kernels[] = "without kernels an op says what to do";

static const struct bh_test tests[] = {
	{ "fill, axpy, scale, add and mul work element by element", element_by_element },
	{ "sum, max and dot give a float", reductions },
	{ "matvec multiplies rows", a_matrix_times_a_vector },
	{ "top_k gives what the stream plugin gives", the_best },
	{ "of nothing there is a result where there can be one",
	  of_nothing_there_is_a_result_where_there_can_be_one },
	{ "memory that is not the device's is refused with what to do",
	  memory_that_is_not_the_devices_is_refused_with_what_to_do },
	{ "types are never mixed or guessed", types_are_never_mixed_or_guessed },
	{ "shapes are held against one another", shapes_are_held_against_one_another },
	{ "what is written overlaps nothing that is read",
	  what_is_written_overlaps_nothing_that_is_read },
	{ "numbers out of range are refused", numbers_out_of_range_are_refused },
	{ "a stream that is none is refused", a_stream_that_is_none_is_refused },
	{ without_kernels, without_kernels_an_op_says_what_to_do },
};

int main(int argc, char **argv)
{
	const char *why = cuda_host_start();
	char *only[] = { argv[0], (char *)without_kernels, NULL };
	int st;

	if (why) {
		printf("1..0 # SKIP %s\n", why);
		return 0;
	}
	if (bh_cuda_fatbin_size == 0) {
		argc = 2;
		argv = only;
	}
	st = bh_tap_main(argc, argv, "cuda math", tests, sizeof(tests) / sizeof(tests[0]));
	return cuda_host_stop() ? st : 1;
}
