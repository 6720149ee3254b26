/* SPDX-License-Identifier: BSD-3-Clause */
/* option - typed values out of manifest text, by table. Used for the host's keys and for
 * plugins' own.
 *
 * Thread: any; no state. A row whose `min` and `max` are both 0 has no limits of its own. */
#ifndef BH_HOST_MANIFEST_OPTION_H
#define BH_HOST_MANIFEST_OPTION_H

#include "host/core/error.h"

/* A row of the host's own tables: the public option plus where its value goes: INT, SIZE,
 * DURATION: int64_t; BOOL: bool; ENUM: uint32_t (number of the choice); STR, PATH: char *
 * (owned). */
struct bh_option_row {
	struct bh_option option;
	size_t offset;
};

/* A parsed value. */
struct bh_option_value {
	int64_t number; /* INT BOOL SIZE DURATION, ENUM: number of the choice */
	char *text;	/* STR PATH ENUM: owned; else NULL */
};

/* Error facts: value (cut to fit), reason ("is not a duration"), accepted (what would be right).
 * The caller adds file, line, section, key. */
bh_status bh_option_parse(const struct bh_option *option, const char *text,
			  struct bh_option_value *ret_value, struct bh_error *err) BH_MUST_CHECK;
void bh_option_value_fini(struct bh_option_value *value);
/* "a number from 1 to 1048576", "a duration such as 250ms, 10s or 2m" … for messages and man pages.
 * Returns the length written, less than `size`. */
size_t bh_option_accepts(const struct bh_option *option, char *buffer, size_t size);
/* The same refusal, for rules that a row cannot express: -EINVAL. */
bh_status bh_option_refuse(const char *text, const char *reason, const char *accepted,
			   struct bh_error *err);
/* The nearest of `names` to `name`, or NULL when none is near. Case does not count. */
const char *bh_option_nearest(const char *name, const char *const *names, size_t n_names);

#endif
