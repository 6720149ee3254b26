/* SPDX-License-Identifier: BSD-3-Clause */
/* identity - which plane a thread belongs to.
 *
 * Thread: each about itself. Keeps: RI-1 (unstamped is none), RI-2 (once), RI-3, RI-4. */
#ifndef BH_HOST_CORE_IDENTITY_H
#define BH_HOST_CORE_IDENTITY_H

#include "host/core/error.h"

enum bh_plane { BH_PLANE_NONE = 0, BH_PLANE_CONTROL, BH_PLANE_DATA };
#define BH_PLANES 3

#define BH_WORKER_NONE UINT32_MAX /* a pool thread that is no worker (progress) */

struct bh_identity {
	enum bh_plane plane;
	uint32_t pool_id;	  /* data: the pool; ids begin at 1 and are never used again */
	uint32_t worker;	  /* data: index, or BH_WORKER_NONE */
	char label[BH_LABEL_MAX]; /* data: the pool's; control: "python" or "native" */
};

const char *bh_plane_name(enum bh_plane plane);
/* A second tag is refused with -EEXIST (and aborts a debug build, unless a test says otherwise). */
bh_status bh_identity_tag_control(const char *label, struct bh_error *err) BH_MUST_CHECK;
bh_status bh_identity_tag_data(const char *label, uint32_t pool_id, uint32_t worker,
			       struct bh_error *err) BH_MUST_CHECK;
/* The calling thread's own; never NULL, valid until the thread ends. */
const struct bh_identity *bh_identity_get(void);
void bh_identity_test_allow_retag_abort(bool abort_on_retag);

#endif
