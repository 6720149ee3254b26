/* SPDX-License-Identifier: BSD-3-Clause */
/* reader - one manifest file, line by line, through inih.
 *
 * The rules of the format (docs/bulkhead-ini.md tells them to users):
 * - UTF-8, with or without a byte-order mark; lines end in LF or CR LF, the last one may lack
 *   it. NUL, other control characters (a tab is fine) and bytes that are no UTF-8 are refused.
 * - A comment is a line whose first non-blank character is ; or #. There is no other comment: a
 *   value is never cut at ; or #, and nothing may follow the ] of a header.
 * - A header is [word] or [word name], at most 49 bytes; blanks around and between its words do
 *   not count.
 * - Everything else is `key = value`. Blanks around key and value do not count; the value goes
 *   to the end of the line. A value in "double quotes" keeps the blanks within; there \" is a
 *   quote and \\ a backslash. A value that does not begin with a quote is taken as it stands,
 *   backslashes and all.
 * - Indentation means nothing; no value continues on the next line.
 * What inih would cut, split or misread is refused here with its line (MAN-3), and so are lines
 * that the inih at hand has no room for.
 *
 * Thread: main before any other thread: Debian's inih takes its settings from globals. */
#ifndef BH_HOST_MANIFEST_READER_H
#define BH_HOST_MANIFEST_READER_H

#include "host/core/common.h"

/* A negative return ends the reading and becomes its result (out of memory). All text is
 * borrowed. */
struct bh_reader_sink {
	/* `name`: the words of the header, one blank between them. */
	bh_status (*section)(void *arg, uint32_t line, const char *name);
	/* In the section that came last; the quotes are off. */
	bh_status (*entry)(void *arg, uint32_t line, const char *key, const char *value);
	/* What is wrong with a line, or with the whole file (line 0). Reading goes on, without
	 * the line; the entries below a header with a fault are left out. `key` may be NULL. */
	bh_status (*fault)(void *arg, uint32_t line, const char *key, const char *what);
	void *arg;
};

/* 0 also when there were faults. */
bh_status bh_reader_file(const char *path, const struct bh_reader_sink *sink) BH_MUST_CHECK;

/* The byte and quote rules for text from elsewhere (--set). On success `*ret_fault` is NULL and
 * `*ret_value` the caller's, or `*ret_fault` says what is wrong (static) and `*ret_value` is
 * NULL. */
bh_status bh_reader_value(const char *text, char **ret_value, const char **ret_fault) BH_MUST_CHECK;

#endif
