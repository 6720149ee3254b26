/* SPDX-License-Identifier: BSD-3-Clause */
/* timers - a pairing heap; see timers.h. */
#include "config.h"

#include "plugins/rdma/timers.h"

#include <stddef.h>

static struct bh_rdma_timer *meld(struct bh_rdma_timer *a, struct bh_rdma_timer *b)
{
	if (!a)
		return b;
	if (!b)
		return a;
	if (b->at_ns < a->at_ns) {
		struct bh_rdma_timer *swap = a;

		a = b;
		b = swap;
	}
	b->prev = a;
	b->next = a->child;
	if (a->child)
		a->child->prev = b;
	a->child = b;
	a->next = a->prev = NULL;
	return a;
}

/* Siblings in pairs from the first on, then the pairs from the last back: in loops, since a list of
 * thousands would overflow the stack of a recursion. */
static struct bh_rdma_timer *meld_siblings(struct bh_rdma_timer *first)
{
	struct bh_rdma_timer *pairs = NULL, *all = NULL;

	while (first) {
		struct bh_rdma_timer *a = first, *b = first->next;

		first = b ? b->next : NULL;
		a->next = a->prev = NULL;
		if (b)
			b->next = b->prev = NULL;
		a = meld(a, b);
		a->next = pairs;
		pairs = a;
	}
	while (pairs) {
		struct bh_rdma_timer *a = pairs;

		pairs = a->next;
		a->next = NULL;
		all = meld(all, a);
	}
	return all;
}

void bh_rdma_timers_clear(struct bh_rdma_timers *timers, struct bh_rdma_timer *timer)
{
	struct bh_rdma_timer *below;

	if (!timer->set)
		return;
	below = meld_siblings(timer->child);
	if (timer == timers->root) {
		timers->root = below;
	} else {
		if (timer->prev->child == timer)
			timer->prev->child = timer->next;
		else
			timer->prev->next = timer->next;
		if (timer->next)
			timer->next->prev = timer->prev;
		timers->root = meld(timers->root, below);
	}
	timer->child = timer->next = timer->prev = NULL;
	timer->set = false;
}

void bh_rdma_timers_set(struct bh_rdma_timers *timers, struct bh_rdma_timer *timer, int64_t at_ns)
{
	bh_rdma_timers_clear(timers, timer);
	timer->at_ns = at_ns;
	timer->set = true;
	timers->root = meld(timers->root, timer);
}

int64_t bh_rdma_timers_next(const struct bh_rdma_timers *timers)
{
	return timers->root ? timers->root->at_ns : INT64_MAX;
}

struct bh_rdma_timer *bh_rdma_timers_take(struct bh_rdma_timers *timers, int64_t now_ns)
{
	struct bh_rdma_timer *first = timers->root;

	if (!first || first->at_ns > now_ns)
		return NULL;
	bh_rdma_timers_clear(timers, first);
	return first;
}
