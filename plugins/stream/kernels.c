/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels - see kernels.h.
 *
 * A compiler may not reorder a float sum, so a sum into one variable is never vectorised. Sums run
 * in LANES independent ones instead, which it may put side by side in registers, and which are
 * faster even where it does not. */
#include "config.h"

#include "plugins/stream/kernels.h"

#include <math.h>
#include <string.h>

#define LANES 16u
#define BLOCK 4096u		 /* elements summed in float32 before the sum is a double */
#define PACE (UINT64_C(1) << 20) /* elements between two questions whether to stop */
#define SCAN 64u		 /* scores looked at together while none of them is good enough */

/* Counts work down to the next question. */
struct pace {
	const struct bh_stream_stop *stop;
	uint64_t left;
};

static struct pace pace_begin(const struct bh_stream_stop *stop)
{
	return (struct pace){ stop, PACE };
}

/* `n` elements have been worked through: whether to go on. */
static bool pace_goes_on(struct pace *pace, size_t n)
{
	if (pace->left > n) {
		pace->left -= n;
		return true;
	}
	pace->left = PACE;
	return !pace->stop->asked(pace->stop->arg);
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static float block_dot(const float *a, const float *b, size_t n)
{
	float lanes[LANES] = { 0 };
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		for (size_t lane = 0; lane < LANES; lane++)
			lanes[lane] += a[i + lane] * b[i + lane];
	for (size_t lane = 0; i < n; i++, lane++)
		lanes[lane] += a[i] * b[i];
	for (size_t half = LANES / 2; half > 0; half /= 2)
		for (size_t lane = 0; lane < half; lane++)
			lanes[lane] += lanes[lane + half];
	return lanes[0];
}

static bool paced_dot(struct pace *pace, const float *a, const float *b, size_t n, double *ret_dot)
{
	double sum = 0;

	for (size_t i = 0; i < n; i += BLOCK) {
		size_t length = least(BLOCK, n - i);

		sum += (double)block_dot(a + i, b + i, length);
		if (!pace_goes_on(pace, length))
			return false;
	}
	*ret_dot = sum;
	return true;
}

bool bh_stream_dot(const float *a, const float *b, size_t n, const struct bh_stream_stop *stop,
		   double *ret_dot)
{
	struct pace pace = pace_begin(stop);

	return paced_dot(&pace, a, b, n, ret_dot);
}

bool bh_stream_matvec(float *restrict out, const float *m, const float *x, size_t rows, size_t cols,
		      const struct bh_stream_stop *stop)
{
	struct pace pace = pace_begin(stop);
	double sum;

	for (size_t row = 0; row < rows; row++) {
		/* An element more than the row has, so that empty rows are paced too. */
		if (!paced_dot(&pace, m + row * cols, x, cols, &sum) || !pace_goes_on(&pace, 1))
			return false;
		out[row] = (float)sum;
	}
	return true;
}

/* ---- the best -------------------------------------------------------------------------------- */

/* Whether `a` ranks behind `b`. Neither is NaN, so this is a strict total order. */
static bool ranks_behind(const struct bh_stream_ranked *a, const struct bh_stream_ranked *b)
{
	return a->score < b->score || (a->score == b->score && a->index > b->index);
}

/* `heap` holds the one that ranks last at its root; `entry` goes where it belongs below `hole`. */
static void sift_down(struct bh_stream_ranked *heap, size_t count, size_t hole,
		      struct bh_stream_ranked entry)
{
	for (size_t child; (child = 2 * hole + 1) < count; hole = child) {
		if (child + 1 < count && ranks_behind(&heap[child + 1], &heap[child]))
			child++;
		if (!ranks_behind(&heap[child], &entry))
			break;
		heap[hole] = heap[child];
	}
	heap[hole] = entry;
}

static void sift_up(struct bh_stream_ranked *heap, size_t hole, struct bh_stream_ranked entry)
{
	while (hole > 0 && ranks_behind(&entry, &heap[(hole - 1) / 2])) {
		heap[hole] = heap[(hole - 1) / 2];
		hole = (hole - 1) / 2;
	}
	heap[hole] = entry;
}

/* No branch inside, so that it is vectorised; a NaN compares false. */
static bool any_above(const float *scores, size_t n, float floor)
{
	unsigned above = 0;

	for (size_t i = 0; i < n; i++)
		above |= scores[i] > floor;
	return above != 0;
}

/* With the heap full only a score above its root's gets in: an equal one has a higher index. */
static void offer_block(const float *scores, size_t first, size_t n, size_t k,
			struct bh_stream_ranked *heap, size_t *count)
{
	for (size_t i = first; i < first + n; i++) {
		struct bh_stream_ranked entry = { scores[i], i };

		if (isnan(entry.score))
			continue;
		if (*count < k)
			sift_up(heap, (*count)++, entry);
		else if (entry.score > heap[0].score)
			sift_down(heap, k, 0, entry);
	}
}

bool bh_stream_top_k(const float *scores, size_t n, size_t k, struct bh_stream_ranked *best,
		     const struct bh_stream_stop *stop, size_t *ret_count)
{
	struct pace pace = pace_begin(stop);
	size_t count = 0;

	if (k > n)
		k = n;
	for (size_t i = 0; k > 0 && i < n; i += SCAN) {
		size_t length = least(SCAN, n - i);

		if (count < k || any_above(scores + i, length, best[0].score))
			offer_block(scores, i, length, k, best, &count);
		if (!pace_goes_on(&pace, length))
			return false;
	}
	/* The last of what remains goes behind what remains, which leaves the greatest first. */
	for (size_t left = count; left > 1; left--) {
		struct bh_stream_ranked moved = best[left - 1];

		best[left - 1] = best[0];
		sift_down(best, left - 1, 0, moved);
		if (!pace_goes_on(&pace, SCAN))
			return false;
	}
	*ret_count = count;
	return true;
}

/* ---- element by element ---------------------------------------------------------------------- */

bool bh_stream_fill(float *out, float value, size_t n, const struct bh_stream_stop *stop)
{
	struct pace pace = pace_begin(stop);

	for (size_t i = 0; i < n; i += BLOCK) {
		size_t length = least(BLOCK, n - i);

		for (size_t j = 0; j < length; j++)
			out[i + j] = value;
		if (!pace_goes_on(&pace, length))
			return false;
	}
	return true;
}

bool bh_stream_copy(float *restrict out, const float *restrict a, size_t n,
		    const struct bh_stream_stop *stop)
{
	struct pace pace = pace_begin(stop);

	for (size_t i = 0; i < n; i += BLOCK) {
		size_t length = least(BLOCK, n - i);

		memcpy(out + i, a + i, length * sizeof(*out));
		if (!pace_goes_on(&pace, length))
			return false;
	}
	return true;
}

bool bh_stream_scale(float *y, float a, size_t n, const struct bh_stream_stop *stop)
{
	struct pace pace = pace_begin(stop);

	for (size_t i = 0; i < n; i += BLOCK) {
		size_t length = least(BLOCK, n - i);

		for (size_t j = 0; j < length; j++)
			y[i + j] *= a;
		if (!pace_goes_on(&pace, length))
			return false;
	}
	return true;
}

bool bh_stream_axpy(float *restrict y, float a, const float *restrict x, size_t n,
		    const struct bh_stream_stop *stop)
{
	struct pace pace = pace_begin(stop);

	for (size_t i = 0; i < n; i += BLOCK) {
		size_t length = least(BLOCK, n - i);

		for (size_t j = 0; j < length; j++)
			y[i + j] += a * x[i + j];
		if (!pace_goes_on(&pace, length))
			return false;
	}
	return true;
}
