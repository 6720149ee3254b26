/* SPDX-License-Identifier: BSD-3-Clause */
/* format - builds one line of key=value text in fixed storage, for errors and log lines.
 *
 * Thread: any; a line belongs to its builder. Never allocates and takes no lock (it runs in forked
 * children and under other modules' locks). What does not fit is cut between two characters and the
 * line then ends in "…", so that nothing is shortened unnoticed. */
#ifndef BH_HOST_CORE_FORMAT_H
#define BH_HOST_CORE_FORMAT_H

#include "host/core/common.h"

struct bh_line {
	char *out;
	size_t size; /* of `out`; at least 8 */
	size_t used; /* without the NUL */
	bool cut;
};

void bh_line_init(struct bh_line *line, char *out, size_t size);
void bh_line_put(struct bh_line *line, const char *text);
void bh_line_put_int(struct bh_line *line, int64_t number);
/* `text` in double quotes; quotes, backslashes and control characters are escaped. */
void bh_line_put_quoted(struct bh_line *line, const char *text);
/* As it is where that cannot be misread, else quoted. */
void bh_line_put_value(struct bh_line *line, const char *text);
/* " key=value", the separating blank included. */
void bh_line_put_fact(struct bh_line *line, const struct bh_fact *fact);
/* Marks a cut; returns the length. */
size_t bh_line_end(struct bh_line *line);

/* The longest prefix of `text` that has at most `max` bytes and splits no UTF-8 character. */
size_t bh_text_prefix(const char *text, size_t length, size_t max);

/* `length` bytes of well-formed UTF-8: no overlong form, no surrogate, nothing past U+10FFFF. */
bool bh_utf8_valid(const char *text, size_t length);
/* Bytes of anybody's choice become printable ASCII, with a '?' for each other one: JSON takes no text
 * that is not UTF-8, not even a character that was cut. */
void bh_text_make_plain(char *text);

#define BH_ELLIPSIS "\xe2\x80\xa6" /* … in UTF-8 */

#endif
