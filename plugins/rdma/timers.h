/* SPDX-License-Identifier: BSD-3-Clause */
/* timers - things to do at a time: a pairing heap of timers that lie in what they belong to.
 *
 * Setting costs a comparison, taking the nearest or clearing any one O(log n) in the long run; nothing
 * is allocated, so that no timer can fail to be set.
 *
 * Thread: its owner's. */
#ifndef BH_PLUGINS_RDMA_TIMERS_H
#define BH_PLUGINS_RDMA_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

struct bh_rdma_timer {
	int64_t at_ns;
	struct bh_rdma_timer *child, *next; /* its first child, its next sibling */
	struct bh_rdma_timer *prev;	    /* the sibling before it, or its parent */
	void (*fire)(void *owner, struct bh_rdma_timer *timer);
	bool set;
};

struct bh_rdma_timers {
	struct bh_rdma_timer *root;
};

/* One that is set already is moved. */
void bh_rdma_timers_set(struct bh_rdma_timers *timers, struct bh_rdma_timer *timer, int64_t at_ns);
/* One that is not set is fine. */
void bh_rdma_timers_clear(struct bh_rdma_timers *timers, struct bh_rdma_timer *timer);
/* INT64_MAX: none is set. */
int64_t bh_rdma_timers_next(const struct bh_rdma_timers *timers);
/* The nearest that is due, cleared; NULL: none is. */
struct bh_rdma_timer *bh_rdma_timers_take(struct bh_rdma_timers *timers, int64_t now_ns);

#endif
