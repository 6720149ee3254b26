/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels - see kernels.h.
 *
 * What depends on the type of an element is in kernels_real.h, which is included once for each.
 *
 * A compiler may not reorder a sum of floats, so a sum into one variable is never vectorised. Sums
 * run in LANES independent ones instead, which it may put side by side in registers, and which are
 * faster even where it does not.
 *
 * Arrays are walked in chunks. Where a chunk's elements lie one behind the other a kernel works on
 * them in place, else on a copy in its own scratch: its loops know only contiguous memory. */
#include "config.h"

#include "plugins/stream/kernels.h"

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#if defined(HAVE_CBLAS) && !defined(BH_STREAM_NO_CBLAS)
#define USE_CBLAS 1
#include <cblas.h>
#else
#define USE_CBLAS 0
#endif

#define LANES 16u
#define BLOCK BH_STREAM_BLOCK /* elements of a chunk in place */
#define SCRATCH 1024u	      /* elements of a chunk that is copied: three fit the nearest cache */
#define ROW_MIN 64u	      /* elements of a row from which on a chunk is a part of one row */
#define PACE (UINT64_C(1) << 20) /* elements between two questions whether to stop */
#define SCAN 64u		 /* scores looked at together while none of them is good enough */
#define PANEL 256u		 /* rows of a matrix summed side by side */
#define TILE 96u		 /* rows and columns of a block of a product: about PACE products */
#define OPERANDS 3u

static_assert(SCRATCH <= BLOCK, "an error bound speaks of BLOCK");

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

static int64_t item_size(const struct bh_stream_array *array)
{
	return array->real == BH_STREAM_FLOAT32 ? (int64_t)sizeof(float) : (int64_t)sizeof(double);
}

/* ---- walking arrays of one shape side by side ------------------------------------------------ */

/* Where an operand is. */
struct cursor {
	char *at;
	size_t index[BH_STREAM_DIMS];
};

struct walk {
	uint32_t n_operands, n_dims; /* at least one dimension */
	size_t shape[BH_STREAM_DIMS];
	int64_t strides[OPERANDS][BH_STREAM_DIMS];
	struct cursor cursor[OPERANDS];
	int64_t item;
	size_t left; /* elements */
};

static void drop_dim(struct walk *w, uint32_t dim)
{
	w->n_dims--;
	for (uint32_t i = dim; i < w->n_dims; i++) {
		w->shape[i] = w->shape[i + 1];
		for (uint32_t k = 0; k < w->n_operands; k++)
			w->strides[k][i] = w->strides[k][i + 1];
	}
}

static void swap_dims(struct walk *w, uint32_t a, uint32_t b)
{
	size_t n = w->shape[a];

	w->shape[a] = w->shape[b];
	w->shape[b] = n;
	for (uint32_t k = 0; k < w->n_operands; k++) {
		int64_t stride = w->strides[k][a];

		w->strides[k][a] = w->strides[k][b];
		w->strides[k][b] = stride;
	}
}

/* Backwards in what leads becomes forwards in all. */
static void turn_dims(struct walk *w)
{
	for (uint32_t i = 0; i < w->n_dims; i++) {
		if (w->strides[0][i] >= 0)
			continue;
		for (uint32_t k = 0; k < w->n_operands; k++) {
			w->cursor[k].at += w->strides[k][i] * (int64_t)(w->shape[i] - 1);
			w->strides[k][i] = -w->strides[k][i];
		}
	}
}

/* The first operand's memory is walked in its own order, whatever the order of its dimensions. */
static void sort_dims(struct walk *w)
{
	for (uint32_t i = 1; i < w->n_dims; i++)
		for (uint32_t j = i; j > 0 && w->strides[0][j - 1] < w->strides[0][j]; j--)
			swap_dims(w, j - 1, j);
}

/* Whether dimension `i` goes on where a whole run of the next one has ended, in all operands. */
static bool joins_next(const struct walk *w, uint32_t i)
{
	for (uint32_t k = 0; k < w->n_operands; k++)
		if (w->strides[k][i] != w->strides[k][i + 1] * (int64_t)w->shape[i + 1])
			return false;
	return true;
}

static void join_dims(struct walk *w)
{
	for (uint32_t i = w->n_dims; i-- > 0;)
		if (w->shape[i] == 1 && w->n_dims > 1)
			drop_dim(w, i);
	for (uint32_t i = w->n_dims - 1; i-- > 0;) {
		if (!joins_next(w, i))
			continue;
		w->shape[i + 1] *= w->shape[i];
		drop_dim(w, i);
	}
}

/* The operands have one type and shape. Their elements come in any order, the same in all. */
static void walk_begin(struct walk *w, const struct bh_stream_array *const *operands, uint32_t n)
{
	const struct bh_stream_array *model = operands[0];

	memset(w, 0, sizeof(*w));
	w->n_operands = n;
	w->n_dims = model->n_dims;
	w->item = item_size(model);
	w->left = 1;
	for (uint32_t i = 0; i < w->n_dims; i++) {
		w->shape[i] = (size_t)model->shape[i];
		w->left *= w->shape[i];
	}
	for (uint32_t k = 0; k < n; k++) {
		w->cursor[k].at = operands[k]->data;
		memcpy(w->strides[k], operands[k]->strides,
		       w->n_dims * sizeof(operands[k]->strides[0]));
	}
	if (w->n_dims == 0) {
		w->n_dims = 1;
		w->shape[0] = 1;
	}
	if (w->left == 0)
		return;
	turn_dims(w);
	sort_dims(w);
	join_dims(w);
}

/* How many elements of all operands are worked on next; 0 at the end. */
static size_t walk_next(const struct walk *w)
{
	uint32_t last = w->n_dims - 1;
	bool in_place = true;
	size_t n;

	for (uint32_t k = 0; k < w->n_operands; k++)
		in_place = in_place && w->strides[k][last] == w->item;
	if (w->shape[last] < ROW_MIN) /* rows are put together in the scratch */
		return least(SCRATCH, w->left);
	n = least(in_place ? BLOCK : SCRATCH, w->left);
	return least(n, w->shape[last] - w->cursor[0].index[last]);
}

/* Whether the next `n` elements of operand `k` lie one behind the other. */
static bool walk_in_place(const struct walk *w, uint32_t k, size_t n)
{
	uint32_t last = w->n_dims - 1;

	return w->strides[k][last] == w->item && n <= w->shape[last] - w->cursor[k].index[last];
}

/* Moves `cursor` of operand `k` to the end of its row, or `n` elements; returns how many. */
static size_t cursor_run(const struct walk *w, uint32_t k, struct cursor *cursor, size_t n)
{
	uint32_t dim = w->n_dims - 1;
	size_t run = least(n, w->shape[dim] - cursor->index[dim]);

	cursor->index[dim] += run;
	cursor->at += w->strides[k][dim] * (int64_t)run;
	while (dim > 0 && cursor->index[dim] == w->shape[dim]) {
		cursor->at -= w->strides[k][dim] * (int64_t)w->shape[dim];
		cursor->index[dim--] = 0;
		cursor->index[dim]++;
		cursor->at += w->strides[k][dim];
	}
	return run;
}

static void walk_advance(struct walk *w, size_t n)
{
	w->left -= n;
	for (uint32_t k = 0; k < w->n_operands; k++)
		for (size_t left = n; left > 0;)
			left -= cursor_run(w, k, &w->cursor[k], left);
}

/* ---- sums of blocks -------------------------------------------------------------------------- */

/* Neumaier's: what each addition loses is kept, so that the length does not matter. */
struct total {
	double sum, lost;
};

static void total_add(struct total *total, double x)
{
	double sum = total->sum + x;

	total->lost +=
		fabs(total->sum) >= fabs(x) ? (total->sum - sum) + x : (x - sum) + total->sum;
	total->sum = sum;
}

/* An infinity or a NaN has lost nothing that could be told. */
static double total_get(const struct total *total)
{
	return isfinite(total->sum) ? total->sum + total->lost : total->sum;
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

/* The last of what remains goes behind what remains, which leaves the greatest first. */
static bool sort_ranked(struct bh_stream_ranked *best, size_t count, struct pace *pace)
{
	for (size_t left = count; left > 1; left--) {
		struct bh_stream_ranked moved = best[left - 1];

		best[left - 1] = best[0];
		sift_down(best, left - 1, 0, moved);
		if (!pace_goes_on(pace, SCAN))
			return false;
	}
	return true;
}

/* ---- products of matrices -------------------------------------------------------------------- */

/* A block for BLAS: rows one behind the other, or columns. */
struct block {
	const char *at;
	size_t lead; /* elements from one row, or column, to the next */
	bool columns;
};

/* How a matrix lies: whether its blocks can be used where they are. */
struct lie {
	bool direct, columns;
	size_t lead;
};

/* `across` has `n` elements and must be one behind the other; `along` leads from line to line. */
static bool lies_in_lines(int64_t across, int64_t n, int64_t along, int64_t lines, int64_t item)
{
	return (across == item || n <= 1) &&
	       (lines <= 1 || (along >= n * item && along >= item && along / item <= INT_MAX));
}

static struct lie lie_of(const struct bh_stream_array *m)
{
	int64_t item = item_size(m);

	if (lies_in_lines(m->strides[1], m->shape[1], m->strides[0], m->shape[0], item))
		return (struct lie){ .direct = true,
				     .lead = m->shape[0] > 1 ? (size_t)(m->strides[0] / item)
							     : TILE };
	if (lies_in_lines(m->strides[0], m->shape[0], m->strides[1], m->shape[1], item))
		return (struct lie){ .direct = true,
				     .columns = true,
				     .lead = m->shape[1] > 1 ? (size_t)(m->strides[1] / item)
							     : TILE };
	return (struct lie){ .lead = TILE };
}

static char *element(const struct bh_stream_array *m, size_t row, size_t column)
{
	return m->data + (int64_t)row * m->strides[0] + (int64_t)column * m->strides[1];
}

/* ---- once for each type ---------------------------------------------------------------------- */

#define REAL float
#define OF(name) name##_float32
#define GEMM cblas_sgemm
#include "plugins/stream/kernels_real.h"
#undef REAL
#undef OF
#undef GEMM

#define REAL double
#define OF(name) name##_float64
#define GEMM cblas_dgemm
#include "plugins/stream/kernels_real.h"
#undef REAL
#undef OF
#undef GEMM

#define CALL(array, name, ...)                                                                     \
	((array)->real == BH_STREAM_FLOAT32 ? name##_float32(__VA_ARGS__)                          \
					    : name##_float64(__VA_ARGS__))

bool bh_stream_fill(const struct bh_stream_array *out, double value,
		    const struct bh_stream_stop *stop)
{
	return CALL(out, fill, out, value, stop);
}

bool bh_stream_copy(const struct bh_stream_array *out, const struct bh_stream_array *a,
		    const struct bh_stream_stop *stop)
{
	return CALL(out, copy, out, a, stop);
}

bool bh_stream_scale(const struct bh_stream_array *y, double a, const struct bh_stream_stop *stop)
{
	return CALL(y, scale, y, a, stop);
}

bool bh_stream_axpy(const struct bh_stream_array *y, double a, const struct bh_stream_array *x,
		    const struct bh_stream_stop *stop)
{
	return CALL(y, axpy, y, a, x, stop);
}

bool bh_stream_add(const struct bh_stream_array *out, const struct bh_stream_array *a,
		   const struct bh_stream_array *b, const struct bh_stream_stop *stop)
{
	return CALL(out, add, out, a, b, stop);
}

bool bh_stream_mul(const struct bh_stream_array *out, const struct bh_stream_array *a,
		   const struct bh_stream_array *b, const struct bh_stream_stop *stop)
{
	return CALL(out, mul, out, a, b, stop);
}

bool bh_stream_sum(const struct bh_stream_array *a, const struct bh_stream_stop *stop,
		   double *ret_sum)
{
	return CALL(a, sum, a, stop, ret_sum);
}

bool bh_stream_dot(const struct bh_stream_array *a, const struct bh_stream_array *b,
		   const struct bh_stream_stop *stop, double *ret_dot)
{
	return CALL(a, dot, a, b, stop, ret_dot);
}

bool bh_stream_max(const struct bh_stream_array *a, const struct bh_stream_stop *stop,
		   double *ret_max)
{
	return CALL(a, max, a, stop, ret_max);
}

bool bh_stream_top_k(const struct bh_stream_array *scores, size_t k, struct bh_stream_ranked *best,
		     const struct bh_stream_stop *stop, size_t *ret_count)
{
	return CALL(scores, top_k, scores, k, best, stop, ret_count);
}

bool bh_stream_matvec(const struct bh_stream_array *out, const struct bh_stream_array *m,
		      const struct bh_stream_array *x, const struct bh_stream_stop *stop)
{
	if (m->shape[1] == 0) /* sums of nothing */
		return bh_stream_fill(out, 0, stop);
	return CALL(out, matvec, out, m, x, stop);
}

bool bh_stream_matmul(const struct bh_stream_array *out, const struct bh_stream_array *a,
		      const struct bh_stream_array *b, void *scratch,
		      const struct bh_stream_stop *stop)
{
	if (a->shape[1] == 0)
		return bh_stream_fill(out, 0, stop);
	return CALL(out, matmul, out, a, b, scratch, stop);
}

size_t bh_stream_matmul_scratch(void)
{
	return 3 * TILE * TILE * sizeof(double);
}

const char *bh_stream_matmul_by(void)
{
	return USE_CBLAS ? "CBLAS" : "built-in";
}
