/* SPDX-License-Identifier: BSD-3-Clause */
/* view - what the control plane shows and does of the other modules without knowing them.
 *
 * Modules register before the control loop starts serving them and never unregister; the tables are
 * fixed-size. Callbacks run on the control loop: they must not block, nor touch the GIL (CP-1). */
#ifndef BH_HOST_CORE_VIEW_H
#define BH_HOST_CORE_VIEW_H

#include <jansson.h>

#include "host/core/error.h"

#define BH_VIEWS_MAX 32

struct bh_view {
	const char *name; /* "gil" is GET /v1/gil */
	/* One of the two. */
	json_t *(*render)(void *arg); /* a new reference; NULL without memory */
	/* JSON as a line of text with its newline, the caller's to free; NULL without memory. */
	char *(*write)(size_t *ret_length, void *arg);
	void *arg;
};

struct bh_views {
	_Atomic uint32_t n; /* A: release after the row is written */
	struct bh_view rows[BH_VIEWS_MAX];
};

/* Thread: any one at a time. Ends the process when the table is full: our own fault. */
void bh_views_add(struct bh_views *views, const char *name, json_t *(*render)(void *), void *arg);
/* The same for a view that is too large to be put together on the control loop: it has its text at
 * hand. */
void bh_views_add_text(struct bh_views *views, const char *name, char *(*write)(size_t *, void *),
		       void *arg);
const struct bh_view *bh_views_find(const struct bh_views *views, const char *name);

#endif
