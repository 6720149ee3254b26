/* SPDX-License-Identifier: BSD-3-Clause */
/* columns - a table on a terminal of 80 columns. */
#include "config.h"

#include "host/ctl/columns.h"

#include <stdarg.h>
#include <string.h>

#define WIDTH_LEAST 8 /* of a column that gives way */

static bool is_continuation(char byte)
{
	return ((unsigned char)byte & 0xC0) == 0x80;
}

/* Characters, each taken to be one column wide. */
static size_t text_width(const char *text)
{
	size_t width = 0;

	for (; *text; text++)
		width += !is_continuation(*text);
	return width;
}

static const char *text_skip(const char *text, size_t characters)
{
	for (; *text && characters; characters--)
		do
			text++;
		while (is_continuation(*text));
	return text;
}

static char *text_format(const char *format, va_list args)
{
	char *text = NULL;

	bh_ctl_must(vasprintf(&text, format, args) < 0 ? NULL : text);
	bh_ctl_defuse(text);
	return text;
}

void bh_columns_init(struct bh_columns *table, const struct bh_column *columns, size_t n_columns)
{
	assert(n_columns <= BH_COLUMNS_MAX);
	*table = (struct bh_columns){ .columns = columns, .n_columns = n_columns };
	for (size_t i = 0; i < n_columns; i++)
		bh_columns_cell(table, "%s", columns[i].title);
}

void bh_columns_cell(struct bh_columns *table, const char *format, ...)
{
	va_list args;

	table->cells =
		bh_ctl_must(reallocarray(table->cells, table->n_cells + 1, sizeof(*table->cells)));
	va_start(args, format);
	table->cells[table->n_cells++] = text_format(format, args);
	va_end(args);
}

static bool gives_way(enum bh_column_kind kind)
{
	return kind == BH_COLUMN_HEAD || kind == BH_COLUMN_TAIL;
}

/* Takes columns from the widest that gives way, until the line fits or none is left to take
 * from. */
static void widths_shrink(const struct bh_columns *table, size_t *widths, size_t total)
{
	for (; total > BH_LINE_WIDTH; total--) {
		size_t *widest = NULL;

		for (size_t i = 0; i < table->n_columns; i++)
			if (gives_way(table->columns[i].kind) && (!widest || widths[i] > *widest))
				widest = &widths[i];
		if (!widest || *widest <= WIDTH_LEAST)
			return;
		--*widest;
	}
}

/* Returns the gap between columns: two blanks where there is room for them. */
static int widths_fit(const struct bh_columns *table, size_t *widths)
{
	size_t total = 2 * (table->n_columns - 1);

	for (size_t i = 0; i < table->n_cells; i++) {
		size_t *width = &widths[i % table->n_columns];
		size_t wanted = text_width(table->cells[i]);

		*width = wanted > *width ? wanted : *width;
	}
	for (size_t i = 0; i < table->n_columns; i++)
		total += widths[i];
	if (total <= BH_LINE_WIDTH)
		return 2;
	widths_shrink(table, widths, total - (table->n_columns - 1));
	return 1;
}

static void cell_print(FILE *out, const char *text, enum bh_column_kind kind, size_t width,
		       bool last)
{
	size_t have = text_width(text);
	int padding = have < width ? (int)(width - have) : 0;

	if (kind == BH_COLUMN_RIGHT)
		fprintf(out, "%*s%s", padding, "", text);
	else if (have <= width)
		fprintf(out, "%s%*s", text, last ? 0 : padding, "");
	else if (kind == BH_COLUMN_TAIL)
		fprintf(out, "…%s", text_skip(text, have - width + 1));
	else
		fprintf(out, "%.*s…", (int)(text_skip(text, width - 1) - text), text);
}

void bh_columns_print(const struct bh_columns *table, FILE *out)
{
	size_t widths[BH_COLUMNS_MAX] = { 0 };
	int gap;

	if (table->n_cells <= table->n_columns)
		return;
	gap = widths_fit(table, widths);
	for (size_t i = 0; i < table->n_cells; i++) {
		size_t column = i % table->n_columns;
		bool last = column + 1 == table->n_columns;

		cell_print(out, table->cells[i], table->columns[column].kind, widths[column], last);
		fprintf(out, "%*s", last ? 0 : gap, "");
		if (last)
			putc('\n', out);
	}
}

void bh_columns_fini(struct bh_columns *table)
{
	for (size_t i = 0; i < table->n_cells; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = (struct bh_columns){ 0 };
}

/* Bytes of `text` for a line of `room` characters: to a blank where there is one. */
static size_t line_length(const char *text, size_t room)
{
	const char *end = text_skip(text, room);
	const char *cut = end;

	if (*end == '\0')
		return (size_t)(end - text);
	while (cut > text && *cut != ' ')
		cut--;
	return (size_t)((cut > text ? cut : end) - text);
}

void bh_columns_wrap(FILE *out, size_t indent, const char *format, ...)
{
	bh_auto_mem char *text = NULL;
	const char *rest;
	va_list args;

	va_start(args, format);
	text = text_format(format, args);
	va_end(args);
	for (rest = text; *rest; rest += strspn(rest, " ")) {
		size_t length = line_length(rest, BH_LINE_WIDTH - indent);

		fprintf(out, "%*s%.*s\n", (int)indent, "", (int)length, rest);
		rest += length;
	}
}
