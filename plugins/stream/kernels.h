/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels - float32 arithmetic on plain arrays, in plain C that compilers vectorise.
 *
 * Thread: any; no state, no allocation, no GIL. The caller has checked sizes, and that what is
 * written overlaps nothing that is read. A kernel asks its `stop` about every half millisecond of
 * work, and returns false when it was told to end early: what it was writing is then half done. */
#ifndef BH_PLUGINS_STREAM_KERNELS_H
#define BH_PLUGINS_STREAM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bh_stream_stop {
	bool (*asked)(const void *arg);
	const void *arg;
};

/* The sum of a[i] * b[i]. Products and sums of up to 4096 elements are float32, the sums of those
 * are double: the error does not grow with `n` as that of one float32 sum would. */
bool bh_stream_dot(const float *a, const float *b, size_t n, const struct bh_stream_stop *stop,
		   double *ret_dot);

/* out[r] = the dot product of row r of the row-major `rows` x `cols` matrix and `x`. */
bool bh_stream_matvec(float *restrict out, const float *m, const float *x, size_t rows, size_t cols,
		      const struct bh_stream_stop *stop);

struct bh_stream_ranked {
	float score;
	uint64_t index;
};

/* The `k` greatest of `scores` into `best`, greatest first, equal ones by index (0.0 and -0.0 are
 * equal). A NaN is no score and never among them, so that there may be fewer than min(k, n). `best`
 * has room for min(k, n). */
bool bh_stream_top_k(const float *scores, size_t n, size_t k, struct bh_stream_ranked *best,
		     const struct bh_stream_stop *stop, size_t *ret_count);

bool bh_stream_fill(float *out, float value, size_t n, const struct bh_stream_stop *stop);
bool bh_stream_copy(float *restrict out, const float *restrict a, size_t n,
		    const struct bh_stream_stop *stop);
bool bh_stream_scale(float *y, float a, size_t n, const struct bh_stream_stop *stop); /* y = a y */
bool bh_stream_axpy(float *restrict y, float a, const float *restrict x, size_t n,
		    const struct bh_stream_stop *stop); /* y = a x + y */

#endif
