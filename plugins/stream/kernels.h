/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels - arithmetic on arrays of float32 or float64, in plain C that compilers vectorise.
 *
 * Thread: any; no state, no allocation, no GIL. The caller has checked sizes, alignment and where
 * the arrays lie: all of one call have the same type, and unless it says otherwise the same shape;
 * no two elements of what is written share memory; and what is written shares none with what is
 * read, except that element by element (scale, axpy, add, mul, copy) it may be the very same array.
 *
 * A kernel asks its `stop` about every half millisecond of work, and returns false when it was told
 * to end early: what it was writing is then half done, what it returns is not set. */
#ifndef BH_PLUGINS_STREAM_KERNELS_H
#define BH_PLUGINS_STREAM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BH_STREAM_DIMS 8u

struct bh_stream_stop {
	bool (*asked)(const void *arg);
	const void *arg;
};

enum bh_stream_real { BH_STREAM_FLOAT32, BH_STREAM_FLOAT64 };

struct bh_stream_array {
	enum bh_stream_real real;
	uint32_t n_dims;	       /* 0 … BH_STREAM_DIMS; 0 is one element */
	char *data;		       /* the first element; aligned; anything when there is none */
	int64_t shape[BH_STREAM_DIMS]; /* elements; 0 or more */
	int64_t strides[BH_STREAM_DIMS]; /* bytes, whole elements; of what is read also 0 */
};

/* Element by element. A number is rounded to the arrays' type first. */
bool bh_stream_fill(const struct bh_stream_array *out, double value,
		    const struct bh_stream_stop *stop);
bool bh_stream_copy(const struct bh_stream_array *out, const struct bh_stream_array *a,
		    const struct bh_stream_stop *stop);
/* y = a y */
bool bh_stream_scale(const struct bh_stream_array *y, double a, const struct bh_stream_stop *stop);
/* y = a x + y */
bool bh_stream_axpy(const struct bh_stream_array *y, double a, const struct bh_stream_array *x,
		    const struct bh_stream_stop *stop);
bool bh_stream_add(const struct bh_stream_array *out, const struct bh_stream_array *a,
		   const struct bh_stream_array *b, const struct bh_stream_stop *stop);
bool bh_stream_mul(const struct bh_stream_array *out, const struct bh_stream_array *a,
		   const struct bh_stream_array *b, const struct bh_stream_stop *stop);

/* Sums of up to BH_STREAM_BLOCK elements or products are made in the arrays' type, in 16 parts; the
 * sum of those is a compensated double. So the error does not grow with the length: it is at most
 * BH_STREAM_SUM_ERROR times the type's epsilon times the sum of the magnitudes. Nothing sums to 0.
 * A product beyond the type's range is an infinity. */
#define BH_STREAM_BLOCK 4096u
#define BH_STREAM_SUM_ERROR (BH_STREAM_BLOCK / 16 + 6)
bool bh_stream_sum(const struct bh_stream_array *a, const struct bh_stream_stop *stop,
		   double *ret_sum);
bool bh_stream_dot(const struct bh_stream_array *a, const struct bh_stream_array *b,
		   const struct bh_stream_stop *stop, double *ret_dot);
/* The greatest, NaN where there is one; `a` has elements. Of 0.0 and -0.0 either one. */
bool bh_stream_max(const struct bh_stream_array *a, const struct bh_stream_stop *stop,
		   double *ret_max);

struct bh_stream_ranked {
	double score;
	uint64_t index;
};

/* The `k` greatest of the vector `scores` into `best`, greatest first, equal ones by index (0.0 and
 * -0.0 are equal). A NaN is no score and never among them, so that there may be fewer than
 * min(k, n). `best` has room for min(k, n). */
bool bh_stream_top_k(const struct bh_stream_array *scores, size_t k, struct bh_stream_ranked *best,
		     const struct bh_stream_stop *stop, size_t *ret_count);

/* out[rows] = m[rows, cols] x[cols]. The error of each is at most that of a sum, or `cols` times
 * 2^-52 times the sum of the magnitudes where that is more, and half a unit of the type. */
bool bh_stream_matvec(const struct bh_stream_array *out, const struct bh_stream_array *m,
		      const struct bh_stream_array *x, const struct bh_stream_stop *stop);

/* out[m, n] = a[m, k] b[k, n], in blocks, through CBLAS where it was built with it. The error of
 * each is at most `k` times the type's epsilon times the sum of the magnitudes. `scratch`: for the
 * blocks of what does not lie as it must; bh_stream_matmul_scratch() bytes, aligned as malloc does.
 */
bool bh_stream_matmul(const struct bh_stream_array *out, const struct bh_stream_array *a,
		      const struct bh_stream_array *b, void *scratch,
		      const struct bh_stream_stop *stop);
size_t bh_stream_matmul_scratch(void); /* bytes, below 1 MiB */
/* "CBLAS" or "built-in": who multiplies the blocks. */
const char *bh_stream_matmul_by(void);

#endif
