/* SPDX-License-Identifier: BSD-3-Clause */
/* columns - a table on a terminal of 80 columns.
 *
 * Cells are as wide as their text where that fits; where it does not, the columns marked so give
 * way and end in "…". Control characters are shown as '?': the text may come from anybody. */
#ifndef BH_HOST_CTL_COLUMNS_H
#define BH_HOST_CTL_COLUMNS_H

#include <stdio.h>

#include "host/ctl/ctl.h"

#define BH_COLUMNS_MAX 12
#define BH_LINE_WIDTH 80

enum bh_column_kind {
	BH_COLUMN_LEFT,
	BH_COLUMN_RIGHT,
	BH_COLUMN_HEAD, /* left, gives way: keeps its beginning */
	BH_COLUMN_TAIL, /* left, gives way: keeps its end, as paths should */
};

struct bh_column {
	const char *title;
	enum bh_column_kind kind;
};

struct bh_columns {
	const struct bh_column *columns; /* borrowed */
	size_t n_columns;
	char **cells; /* row by row, the titles first */
	size_t n_cells;
};

void bh_columns_init(struct bh_columns *table, const struct bh_column *columns, size_t n_columns);
void bh_columns_cell(struct bh_columns *table, const char *format, ...) BH_PRINTF(2, 3);
/* Nothing when there are only the titles. */
void bh_columns_print(const struct bh_columns *table, FILE *out);
void bh_columns_fini(struct bh_columns *table);

/* Text of any length in lines of 80 columns, each behind `indent` blanks. */
void bh_columns_wrap(FILE *out, size_t indent, const char *format, ...) BH_PRINTF(3, 4);

#endif
