/* SPDX-License-Identifier: BSD-3-Clause */
/* health - changes of one plugin's health, on their way from its threads to the control loop.
 *
 * Thread: push any, also with the GIL or a lock held; take the control loop. Blocks: no.
 * Owns:   the changes that have not been taken. */
#ifndef BH_HOST_CONTROL_HEALTH_H
#define BH_HOST_CONTROL_HEALTH_H

#include <stdatomic.h>

#include "host/core/error.h"

/* That many wait; with one more all that wait are forgotten for the newest. */
#define BH_HEALTH_CHANGES_MAX 64

struct bh_health_change {
	struct bh_health_change *next; /* the one that came after it */
	struct bh_error cause;	       /* status 0: as it should be */
};

struct bh_health_box {
	_Atomic(struct bh_health_change *) newest; /* A: release push, acquire take */
	_Atomic uint32_t n;			   /* A: relaxed; those that wait, about */
};

enum bh_health_pushed {
	BH_HEALTH_KEPT,
	BH_HEALTH_FORGOT,    /* kept, and those before it were too many */
	BH_HEALTH_NO_MEMORY, /* not kept */
};
enum bh_health_pushed bh_health_push(struct bh_health_box *box, const struct bh_error *cause);
/* All that wait, oldest first, the caller's to free; NULL for none. */
struct bh_health_change *bh_health_take(struct bh_health_box *box);

#endif
