/* SPDX-License-Identifier: BSD-3-Clause */
/* identity - see identity.h. The tag is thread-local storage, so nobody else can change it
 * (RI-4). */
#include "config.h"

#include "host/core/identity.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#ifdef BH_DEBUG
#define ABORT_ON_RETAG true
#else
#define ABORT_ON_RETAG false
#endif

/* Zero is BH_PLANE_NONE: a thread that nobody tagged reads as none (RI-1). */
static _Thread_local struct bh_identity self;
static _Atomic bool abort_on_retag =
	ABORT_ON_RETAG; /* A: relaxed; a test hook, set before threads */

static_assert(BH_PLANE_NONE == 0, "zeroed thread storage reads as none");

const char *bh_plane_name(enum bh_plane plane)
{
	switch (plane) {
	case BH_PLANE_NONE:
		return "none";
	case BH_PLANE_CONTROL:
		return "control";
	case BH_PLANE_DATA:
		return "data";
	}
	bh_unreachable();
}

static bh_status tag(const struct bh_identity *identity, const char *label, struct bh_error *err)
{
	if (self.plane != BH_PLANE_NONE) { /* RI-2 */
		if (atomic_load_explicit(&abort_on_retag, memory_order_relaxed)) {
			fprintf(stderr,
				"bulkhead: RI-2: thread tagged %s(%s) is tagged again as %s(%s)\n",
				bh_plane_name(self.plane), self.label,
				bh_plane_name(identity->plane), label);
			abort();
		}
		return bh_raise(err, -EEXIST, "identity.tagged",
				BH_STR("plane", bh_plane_name(self.plane)),
				BH_STR("label", self.label),
				BH_STR("asked", bh_plane_name(identity->plane)),
				BH_STR("asked_label", label));
	}
	if (strlen(label) >= BH_LABEL_MAX)
		return bh_raise(err, -EINVAL, "identity.label", BH_STR("label", label),
				BH_INT("max_bytes", BH_LABEL_MAX - 1));
	self = *identity;
	snprintf(self.label, sizeof(self.label), "%s", label);
	return 0;
}

bh_status bh_identity_tag_control(const char *label, struct bh_error *err)
{
	struct bh_identity identity = { .plane = BH_PLANE_CONTROL, .worker = BH_WORKER_NONE };

	return tag(&identity, label, err);
}

bh_status bh_identity_tag_data(const char *label, uint32_t pool_id, uint32_t worker,
			       struct bh_error *err)
{
	struct bh_identity identity = { .plane = BH_PLANE_DATA,
					.pool_id = pool_id,
					.worker = worker };

	return tag(&identity, label, err);
}

const struct bh_identity *bh_identity_get(void)
{
	return &self;
}

void bh_identity_test_allow_retag_abort(bool abort_on_second)
{
	atomic_store_explicit(&abort_on_retag, abort_on_second, memory_order_relaxed);
}
