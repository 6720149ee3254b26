/* SPDX-License-Identifier: BSD-3-Clause */
/* view - see view.h. */
#include "config.h"

#include "host/core/view.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static void add(struct bh_views *views, struct bh_view view)
{
	uint32_t n = atomic_load_explicit(&views->n, memory_order_relaxed);

	if (n == BH_VIEWS_MAX) {
		fprintf(stderr, "bulkhead: no room for view %s: raise BH_VIEWS_MAX (%d)\n",
			view.name, BH_VIEWS_MAX);
		abort();
	}
	views->rows[n] = view;
	atomic_store_explicit(&views->n, n + 1, memory_order_release);
}

void bh_views_add(struct bh_views *views, const char *name, json_t *(*render)(void *), void *arg)
{
	add(views, (struct bh_view){ .name = name, .render = render, .arg = arg });
}

void bh_views_add_text(struct bh_views *views, const char *name, char *(*write)(size_t *, void *),
		       void *arg)
{
	add(views, (struct bh_view){ .name = name, .write = write, .arg = arg });
}

const struct bh_view *bh_views_find(const struct bh_views *views, const char *name)
{
	uint32_t n = atomic_load_explicit(&views->n, memory_order_acquire);

	for (uint32_t i = 0; i < n; i++)
		if (strcmp(views->rows[i].name, name) == 0)
			return &views->rows[i];
	return NULL;
}
