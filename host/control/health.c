/* SPDX-License-Identifier: BSD-3-Clause */
/* health - see health.h. */
#include "config.h"

#include "host/control/health.h"

/* They are stacked, so the newest comes first. */
static struct bh_health_change *reversed(struct bh_health_change *change, uint32_t *ret_n)
{
	struct bh_health_change *first = NULL;

	for (*ret_n = 0; change; (*ret_n)++) {
		struct bh_health_change *next = change->next;

		change->next = first;
		first = change;
		change = next;
	}
	return first;
}

static void forget_all(struct bh_health_box *box)
{
	struct bh_health_change *change = bh_health_take(box);

	while (change) {
		struct bh_health_change *next = change->next;

		free(change);
		change = next;
	}
}

enum bh_health_pushed bh_health_push(struct bh_health_box *box, const struct bh_error *cause)
{
	struct bh_health_change *change = malloc(sizeof(*change));
	bool full;

	if (!change)
		return BH_HEALTH_NO_MEMORY;
	change->cause = *cause;
	/* A loop that hangs must not cost more memory with each report; of all that it missed, what
	 * counts in the end is the last. */
	full = atomic_fetch_add_explicit(&box->n, 1, memory_order_relaxed) >= BH_HEALTH_CHANGES_MAX;
	if (full)
		forget_all(box);
	change->next = atomic_load_explicit(&box->newest, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&box->newest, &change->next, change,
						      memory_order_release, memory_order_relaxed))
		;
	return full ? BH_HEALTH_FORGOT : BH_HEALTH_KEPT;
}

struct bh_health_change *bh_health_take(struct bh_health_box *box)
{
	struct bh_health_change *newest =
		atomic_exchange_explicit(&box->newest, NULL, memory_order_acquire);
	uint32_t n;
	struct bh_health_change *oldest = reversed(newest, &n);

	atomic_fetch_sub_explicit(&box->n, n, memory_order_relaxed);
	return oldest;
}
