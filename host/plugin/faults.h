/* SPDX-License-Identifier: BSD-3-Clause */
/* faults - many faults of one input, made into one error.
 *
 * Whoever wrote the input wants to see all of them at once. An error's storage is fixed, so it
 * holds the first ones and says how many there are; those that did not fit are logged in full
 * (MAN-3).
 * Thread: its holder. Owns: its text. Fails: without memory the count stays right, text is
 * missing. */
#ifndef BH_HOST_PLUGIN_FAULTS_H
#define BH_HOST_PLUGIN_FAULTS_H

#include "host/core/error.h"

struct bh_faults {
	char *text; /* one line each, each ended by a newline; NULL when there is none */
	size_t length;
	unsigned n;
};

void bh_faults_add(struct bh_faults *faults, const char *format, ...) BH_PRINTF(2, 3);
void bh_faults_fini(struct bh_faults *faults);
/* 0 without a fault; else raises `id` with facts `faults` (how many) and `list`, and returns
 * -EINVAL. */
bh_status bh_faults_raise(const struct bh_faults *faults, const char *id,
			  struct bh_error *err) BH_MUST_CHECK;

#endif
