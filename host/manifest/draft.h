/* SPDX-License-Identifier: BSD-3-Clause */
/* draft - what manifests and --set say, merged but still text, and every fault found on the way.
 *
 * Sections stand in the order of their first appearance, so do the keys in each; of a key
 * written more than once the last value stays (MAN-2). Within one file a second time is a fault
 * (MAN-1).
 *
 * Thread: main. Owns: all of its text. */
#ifndef BH_HOST_MANIFEST_DRAFT_H
#define BH_HOST_MANIFEST_DRAFT_H

#include <stdio.h>

#include "host/core/common.h"

/* Where something was written. `file` is the caller's, "--set" for those, NULL for nowhere. */
struct bh_place {
	const char *file;
	uint32_t source; /* the order of faults: files, then --sets, then what is in neither */
	uint32_t line;
};

struct bh_draft_entry {
	char *key, *value;
	struct bh_place place; /* of the last one */
};

struct bh_draft_section {
	char *name;		     /* "plugin stream" */
	struct bh_place first, last; /* headers */
	struct bh_draft_entry *entries;
	size_t n_entries;
};

struct bh_draft_fault {
	struct bh_place place;
	char *text;
};

struct bh_draft {
	struct bh_draft_section *sections;
	size_t n_sections;
	struct bh_draft_fault *faults;
	size_t n_faults;
};

/* 0 also with faults; -ENOMEM. `draft` begins zeroed. */
bh_status bh_draft_add_file(struct bh_draft *draft, const char *path,
			    uint32_t source) BH_MUST_CHECK;
bh_status bh_draft_add_set(struct bh_draft *draft, const char *set, uint32_t source) BH_MUST_CHECK;
/* "FILE:LINE: [section] key: what"; section and key may be NULL. */
bh_status bh_draft_fault(struct bh_draft *draft, struct bh_place place, const char *section,
			 const char *key, const char *format, ...) BH_PRINTF(5, 6) BH_MUST_CHECK;
/* One line each, in the order of files and lines. Returns how many. */
size_t bh_draft_print_faults(struct bh_draft *draft, FILE *out);
void bh_draft_fini(struct bh_draft *draft);

/* `array` with room for one element more than the `n` it has; NULL without memory (`array`
 * stays). */
void *bh_draft_grow(void *array, size_t n, size_t element_size) BH_MUST_CHECK;

#endif
