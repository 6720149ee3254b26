/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_real - the part of kernels.c that depends on the type of an element. No header: kernels.c
 * includes it once for each type, with REAL the type, OF(name) its name for a function, GEMM what
 * CBLAS calls its product. */

/* ---- chunks ---------------------------------------------------------------------------------- */

/* The next `n` elements of operand `k`: where they are, or copied into `scratch`. */
static REAL *OF(take)(const struct walk *w, uint32_t k, size_t n, REAL *scratch)
{
	struct cursor cursor = w->cursor[k];
	int64_t stride = w->strides[k][w->n_dims - 1] / (int64_t)sizeof(REAL);
	size_t done = 0;

	if (walk_in_place(w, k, n))
		return (REAL *)(void *)cursor.at;
	while (done < n) {
		const REAL *from = (const REAL *)(const void *)cursor.at;
		size_t run = cursor_run(w, k, &cursor, n - done);

		for (size_t i = 0; i < run; i++)
			scratch[done + i] = from[(int64_t)i * stride];
		done += run;
	}
	return scratch;
}

/* Where the next `n` elements of operand `k` are to be written: give() puts them into their places.
 */
static REAL *OF(place)(const struct walk *w, uint32_t k, size_t n, REAL *scratch)
{
	return walk_in_place(w, k, n) ? (REAL *)(void *)w->cursor[k].at : scratch;
}

static void OF(give)(const struct walk *w, uint32_t k, size_t n, const REAL *from)
{
	struct cursor cursor = w->cursor[k];
	int64_t stride = w->strides[k][w->n_dims - 1] / (int64_t)sizeof(REAL);
	size_t done = 0;

	if ((const void *)from == (const void *)cursor.at)
		return;
	while (done < n) {
		REAL *to = (REAL *)(void *)cursor.at;
		size_t run = cursor_run(w, k, &cursor, n - done);

		for (size_t i = 0; i < run; i++)
			to[(int64_t)i * stride] = from[done + i];
		done += run;
	}
}

/* ---- element by element ---------------------------------------------------------------------- */

static bool OF(fill)(const struct bh_stream_array *out, double value,
		     const struct bh_stream_stop *stop)
{
	struct pace pace = pace_begin(stop);
	REAL scratch[SCRATCH], real = (REAL)value;
	struct walk w;

	walk_begin(&w, &out, 1);
	for (size_t n; (n = walk_next(&w)) > 0; walk_advance(&w, n)) {
		REAL *to = OF(place)(&w, 0, n, scratch);

		for (size_t i = 0; i < n; i++)
			to[i] = real;
		OF(give)(&w, 0, n, to);
		if (!pace_goes_on(&pace, n))
			return false;
	}
	return true;
}

static bool OF(copy)(const struct bh_stream_array *out, const struct bh_stream_array *a,
		     const struct bh_stream_stop *stop)
{
	const struct bh_stream_array *operands[] = { out, a };
	struct pace pace = pace_begin(stop);
	REAL scratch[SCRATCH];
	struct walk w;

	walk_begin(&w, operands, 2);
	for (size_t n; (n = walk_next(&w)) > 0; walk_advance(&w, n)) {
		OF(give)(&w, 0, n, OF(take)(&w, 1, n, scratch));
		if (!pace_goes_on(&pace, n))
			return false;
	}
	return true;
}

static bool OF(scale)(const struct bh_stream_array *y, double a, const struct bh_stream_stop *stop)
{
	struct pace pace = pace_begin(stop);
	REAL scratch[SCRATCH], factor = (REAL)a;
	struct walk w;

	walk_begin(&w, &y, 1);
	for (size_t n; (n = walk_next(&w)) > 0; walk_advance(&w, n)) {
		REAL *to = OF(take)(&w, 0, n, scratch);

		for (size_t i = 0; i < n; i++)
			to[i] *= factor;
		OF(give)(&w, 0, n, to);
		if (!pace_goes_on(&pace, n))
			return false;
	}
	return true;
}

static bool OF(axpy)(const struct bh_stream_array *y, double a, const struct bh_stream_array *x,
		     const struct bh_stream_stop *stop)
{
	const struct bh_stream_array *operands[] = { y, x };
	struct pace pace = pace_begin(stop);
	REAL scratch[2][SCRATCH], factor = (REAL)a;
	struct walk w;

	walk_begin(&w, operands, 2);
	for (size_t n; (n = walk_next(&w)) > 0; walk_advance(&w, n)) {
		REAL *to = OF(take)(&w, 0, n, scratch[0]);
		const REAL *from = OF(take)(&w, 1, n, scratch[1]);

		for (size_t i = 0; i < n; i++)
			to[i] += factor * from[i];
		OF(give)(&w, 0, n, to);
		if (!pace_goes_on(&pace, n))
			return false;
	}
	return true;
}

/* `to` may be `a`, as a compiler that tells arrays apart must see: else it would not vectorise. */
static void OF(add_block)(REAL *to, const REAL *a, const REAL *b, size_t n)
{
	if (to == a)
		for (size_t i = 0; i < n; i++)
			to[i] += b[i];
	else
		for (size_t i = 0; i < n; i++)
			to[i] = a[i] + b[i];
}

static void OF(mul_block)(REAL *to, const REAL *a, const REAL *b, size_t n)
{
	if (to == a)
		for (size_t i = 0; i < n; i++)
			to[i] *= b[i];
	else
		for (size_t i = 0; i < n; i++)
			to[i] = a[i] * b[i];
}

static bool OF(binary)(const struct bh_stream_array *out, const struct bh_stream_array *a,
		       const struct bh_stream_array *b,
		       void (*block)(REAL *, const REAL *, const REAL *, size_t),
		       const struct bh_stream_stop *stop)
{
	const struct bh_stream_array *operands[] = { out, a, b };
	struct pace pace = pace_begin(stop);
	REAL scratch[3][SCRATCH];
	struct walk w;

	walk_begin(&w, operands, 3);
	for (size_t n; (n = walk_next(&w)) > 0; walk_advance(&w, n)) {
		REAL *to = OF(place)(&w, 0, n, scratch[0]);
		const REAL *x = OF(take)(&w, 1, n, scratch[1]);
		const REAL *y = OF(take)(&w, 2, n, scratch[2]);

		if (to == y) /* both commute */
			block(to, y, x, n);
		else
			block(to, x, y, n);
		OF(give)(&w, 0, n, to);
		if (!pace_goes_on(&pace, n))
			return false;
	}
	return true;
}

static bool OF(add)(const struct bh_stream_array *out, const struct bh_stream_array *a,
		    const struct bh_stream_array *b, const struct bh_stream_stop *stop)
{
	return OF(binary)(out, a, b, OF(add_block), stop);
}

static bool OF(mul)(const struct bh_stream_array *out, const struct bh_stream_array *a,
		    const struct bh_stream_array *b, const struct bh_stream_stop *stop)
{
	return OF(binary)(out, a, b, OF(mul_block), stop);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static double OF(lanes_sum)(REAL *lanes)
{
	for (size_t half = LANES / 2; half > 0; half /= 2)
		for (size_t lane = 0; lane < half; lane++)
			lanes[lane] += lanes[lane + half];
	return (double)lanes[0];
}

static double OF(block_dot)(const REAL *a, const REAL *b, size_t n)
{
	REAL lanes[LANES] = { 0 };
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		for (size_t lane = 0; lane < LANES; lane++)
			lanes[lane] += a[i + lane] * b[i + lane];
	for (size_t lane = 0; i < n; i++, lane++)
		lanes[lane] += a[i] * b[i];
	return OF(lanes_sum)(lanes);
}

static double OF(block_sum)(const REAL *a, size_t n)
{
	REAL lanes[LANES] = { 0 };
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		for (size_t lane = 0; lane < LANES; lane++)
			lanes[lane] += a[i + lane];
	for (size_t lane = 0; i < n; i++, lane++)
		lanes[lane] += a[i];
	return OF(lanes_sum)(lanes);
}

static bool OF(sum)(const struct bh_stream_array *a, const struct bh_stream_stop *stop,
		    double *ret_sum)
{
	struct pace pace = pace_begin(stop);
	struct total total = { 0, 0 };
	REAL scratch[SCRATCH];
	struct walk w;

	walk_begin(&w, &a, 1);
	for (size_t n; (n = walk_next(&w)) > 0; walk_advance(&w, n)) {
		total_add(&total, OF(block_sum)(OF(take)(&w, 0, n, scratch), n));
		if (!pace_goes_on(&pace, n))
			return false;
	}
	*ret_sum = total_get(&total);
	return true;
}

static bool OF(dot)(const struct bh_stream_array *a, const struct bh_stream_array *b,
		    const struct bh_stream_stop *stop, double *ret_dot)
{
	const struct bh_stream_array *operands[] = { a, b };
	struct pace pace = pace_begin(stop);
	struct total total = { 0, 0 };
	REAL scratch[2][SCRATCH];
	struct walk w;

	walk_begin(&w, operands, 2);
	for (size_t n; (n = walk_next(&w)) > 0; walk_advance(&w, n)) {
		const REAL *x = OF(take)(&w, 0, n, scratch[0]);
		const REAL *y = OF(take)(&w, 1, n, scratch[1]);

		total_add(&total, OF(block_dot)(x, y, n));
		if (!pace_goes_on(&pace, n))
			return false;
	}
	*ret_dot = total_get(&total);
	return true;
}

/* Without a branch, so that it is vectorised: a NaN is never greater, so it is told apart. */
static bool OF(block_max)(const REAL *a, size_t n, REAL *max)
{
	REAL lanes[LANES];
	unsigned nan = 0;
	size_t i = 0;

	for (size_t lane = 0; lane < LANES; lane++)
		lanes[lane] = *max;
	for (; i + LANES <= n; i += LANES)
		for (size_t lane = 0; lane < LANES; lane++) {
			nan |= isnan(a[i + lane]) != 0;
			lanes[lane] = a[i + lane] > lanes[lane] ? a[i + lane] : lanes[lane];
		}
	for (; i < n; i++) {
		nan |= isnan(a[i]) != 0;
		lanes[0] = a[i] > lanes[0] ? a[i] : lanes[0];
	}
	for (size_t lane = 0; lane < LANES; lane++)
		*max = lanes[lane] > *max ? lanes[lane] : *max;
	return nan == 0;
}

static bool OF(max)(const struct bh_stream_array *a, const struct bh_stream_stop *stop,
		    double *ret_max)
{
	struct pace pace = pace_begin(stop);
	REAL scratch[SCRATCH], max = -(REAL)INFINITY;
	struct walk w;

	walk_begin(&w, &a, 1);
	for (size_t n; (n = walk_next(&w)) > 0; walk_advance(&w, n)) {
		if (!OF(block_max)(OF(take)(&w, 0, n, scratch), n, &max)) {
			*ret_max = NAN;
			return true;
		}
		if (!pace_goes_on(&pace, n))
			return false;
	}
	*ret_max = (double)max;
	return true;
}

/* ---- the best -------------------------------------------------------------------------------- */

/* No branch inside, so that it is vectorised; a NaN compares false. */
static bool OF(any_above)(const REAL *scores, size_t n, REAL floor)
{
	unsigned above = 0;

	for (size_t i = 0; i < n; i++)
		above |= scores[i] > floor;
	return above != 0;
}

/* With the heap full only a score above its root's gets in: an equal one has a higher index. */
static void OF(offer_block)(const REAL *scores, size_t first, size_t n, size_t k,
			    struct bh_stream_ranked *heap, size_t *count)
{
	for (size_t i = 0; i < n; i++) {
		struct bh_stream_ranked entry = { (double)scores[i], first + i };

		if (isnan(entry.score))
			continue;
		if (*count < k)
			sift_up(heap, (*count)++, entry);
		else if (entry.score > heap[0].score)
			sift_down(heap, k, 0, entry);
	}
}

/* In the order of the indices, which a walk does not keep. */
static bool OF(top_k)(const struct bh_stream_array *scores, size_t k, struct bh_stream_ranked *best,
		      const struct bh_stream_stop *stop, size_t *ret_count)
{
	size_t count = 0, n = (size_t)scores->shape[0];
	struct pace pace = pace_begin(stop);
	REAL scratch[SCAN];

	if (k > n)
		k = n;
	for (size_t i = 0; k > 0 && i < n; i += SCAN) {
		size_t length = least(SCAN, n - i);
		const REAL *from = (const REAL *)(const void *)(scores->data +
								(int64_t)i * scores->strides[0]);

		if (scores->strides[0] != (int64_t)sizeof(REAL)) {
			int64_t stride = scores->strides[0] / (int64_t)sizeof(REAL);

			for (size_t j = 0; j < length; j++)
				scratch[j] = from[(int64_t)j * stride];
			from = scratch;
		}
		if (count < k || OF(any_above)(from, length, (REAL)best[0].score))
			OF(offer_block)(from, i, length, k, best, &count);
		if (!pace_goes_on(&pace, length))
			return false;
	}
	if (!sort_ranked(best, count, &pace))
		return false;
	*ret_count = count;
	return true;
}

/* ---- matrix and vector ----------------------------------------------------------------------- */

static bool OF(row_dot)(struct pace *pace, const REAL *a, const REAL *b, size_t n, double *ret_dot)
{
	struct total total = { 0, 0 };

	for (size_t i = 0; i < n; i += BLOCK) {
		size_t length = least(BLOCK, n - i);

		total_add(&total, OF(block_dot)(a + i, b + i, length));
		if (!pace_goes_on(pace, length))
			return false;
	}
	*ret_dot = total_get(&total);
	return true;
}

static bool OF(matvec_rows)(const struct bh_stream_array *out, const struct bh_stream_array *m,
			    const struct bh_stream_array *x, struct pace *pace)
{
	double sum;

	for (int64_t row = 0; row < m->shape[0]; row++) {
		const void *from = m->data + row * m->strides[0];

		if (!OF(row_dot)(pace, from, (const REAL *)(const void *)x->data,
				 (size_t)m->shape[1], &sum))
			return false;
		*(REAL *)(void *)(out->data + row * out->strides[0]) = (REAL)sum;
	}
	return true;
}

/* Rows side by side, so that columns are what is read one behind the other, if they lie so; sums
 * are doubles, and no copy is needed however m and x lie. */
static bool OF(matvec_panel)(const struct bh_stream_array *out, const struct bh_stream_array *m,
			     const struct bh_stream_array *x, int64_t first, size_t rows,
			     struct pace *pace)
{
	int64_t stride = m->strides[0] / (int64_t)sizeof(REAL);
	double sums[PANEL] = { 0 };

	for (int64_t column = 0; column < m->shape[1]; column++) {
		const REAL *from = (const REAL *)(const void *)(m->data + first * m->strides[0] +
								column * m->strides[1]);
		double factor =
			(double)*(const REAL *)(const void *)(x->data + column * x->strides[0]);

		if (stride == 1)
			for (size_t i = 0; i < rows; i++)
				sums[i] += factor * (double)from[i];
		else
			for (size_t i = 0; i < rows; i++)
				sums[i] += factor * (double)from[(int64_t)i * stride];
		if (!pace_goes_on(pace, rows))
			return false;
	}
	for (size_t i = 0; i < rows; i++)
		*(REAL *)(void *)(out->data + (first + (int64_t)i) * out->strides[0]) =
			(REAL)sums[i];
	return pace_goes_on(pace, rows);
}

static bool OF(matvec)(const struct bh_stream_array *out, const struct bh_stream_array *m,
		       const struct bh_stream_array *x, const struct bh_stream_stop *stop)
{
	struct pace pace = pace_begin(stop);
	int64_t item = (int64_t)sizeof(REAL);

	if (m->shape[1] == 1 || (m->strides[1] == item && x->strides[0] == item))
		return OF(matvec_rows)(out, m, x, &pace);
	for (int64_t row = 0; row < m->shape[0]; row += PANEL)
		if (!OF(matvec_panel)(out, m, x, row, least(PANEL, (size_t)(m->shape[0] - row)),
				      &pace))
			return false;
	return true;
}

/* ---- matrix and matrix ----------------------------------------------------------------------- */

/* A block of `m`, where it is or copied into `scratch`, row by row. */
static struct block OF(block_of)(const struct bh_stream_array *m, const struct lie *lie, size_t row,
				 size_t column, size_t rows, size_t columns, REAL *scratch)
{
	int64_t stride = m->strides[1] / (int64_t)sizeof(REAL);

	if (lie->direct)
		return (struct block){ element(m, row, column), lie->lead, lie->columns };
	for (size_t i = 0; i < rows; i++) {
		const REAL *from = (const REAL *)(const void *)element(m, row + i, column);

		for (size_t j = 0; j < columns; j++)
			scratch[i * TILE + j] = from[(int64_t)j * stride];
	}
	return (struct block){ (const char *)scratch, TILE, false };
}

static void OF(put_block)(const struct bh_stream_array *m, size_t row, size_t column, size_t rows,
			  size_t columns, const REAL *scratch)
{
	int64_t stride = m->strides[1] / (int64_t)sizeof(REAL);

	for (size_t i = 0; i < rows; i++) {
		REAL *to = (REAL *)(void *)element(m, row + i, column);

		for (size_t j = 0; j < columns; j++)
			to[(int64_t)j * stride] = scratch[i * TILE + j];
	}
}

#if USE_CBLAS
/* c = a b, or c += a b; c row by row. */
static void OF(multiply)(const struct block *a, const struct block *b, REAL *c, size_t lead,
			 size_t m, size_t n, size_t k, bool add)
{
	GEMM(CblasRowMajor, a->columns ? CblasTrans : CblasNoTrans,
	     b->columns ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, 1,
	     (const REAL *)(const void *)a->at, (int)a->lead, (const REAL *)(const void *)b->at,
	     (int)b->lead, add ? 1 : 0, c, (int)lead);
}
#else
static void OF(multiply)(const struct block *a, const struct block *b, REAL *restrict c,
			 size_t lead, size_t m, size_t n, size_t k, bool add)
{
	const REAL *restrict x = (const REAL *)(const void *)a->at;
	const REAL *restrict y = (const REAL *)(const void *)b->at;

	for (size_t i = 0; i < m; i++) {
		REAL *to = c + i * lead;

		for (size_t j = 0; !add && j < n; j++)
			to[j] = 0;
		for (size_t p = 0; p < k; p++) {
			REAL factor = x[i * a->lead + p];
			const REAL *from = y + p * b->lead;

			for (size_t j = 0; j < n; j++)
				to[j] += factor * from[j];
		}
	}
}
#endif

static bool OF(matmul)(const struct bh_stream_array *out, const struct bh_stream_array *a,
		       const struct bh_stream_array *b, void *scratch,
		       const struct bh_stream_stop *stop)
{
	size_t m = (size_t)out->shape[0], n = (size_t)out->shape[1], k = (size_t)a->shape[1];
	struct lie lie_a = lie_of(a), lie_b = lie_of(b), lie_out = lie_of(out);
	REAL *room_a = scratch, *room_b = room_a + TILE * TILE, *room_out = room_b + TILE * TILE;
	bool in_place = lie_out.direct && !lie_out.columns;
	struct pace pace = pace_begin(stop);

	/* The own product reads rows only. */
	lie_a.direct = lie_a.direct && (USE_CBLAS || !lie_a.columns);
	lie_b.direct = lie_b.direct && (USE_CBLAS || !lie_b.columns);
	for (size_t i = 0; i < m; i += TILE)
		for (size_t j = 0; j < n; j += TILE) {
			size_t rows = least(TILE, m - i), columns = least(TILE, n - j);
			REAL *to = in_place ? (REAL *)(void *)element(out, i, j) : room_out;

			for (size_t p = 0; p < k; p += TILE) {
				size_t depth = least(TILE, k - p);
				struct block x = OF(block_of)(a, &lie_a, i, p, rows, depth, room_a);
				struct block y =
					OF(block_of)(b, &lie_b, p, j, depth, columns, room_b);

				OF(multiply)
				(&x, &y, to, in_place ? lie_out.lead : TILE, rows, columns, depth,
				 p > 0);
				if (!pace_goes_on(&pace, rows * columns * depth))
					return false;
			}
			if (!in_place)
				OF(put_block)(out, i, j, rows, columns, to);
		}
	return true;
}
