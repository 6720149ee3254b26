/* SPDX-License-Identifier: BSD-3-Clause */
/* clock - monotonic time and the one deadline that a wait spends (SUP-9). Thread: any. */
#ifndef BH_HOST_CORE_CLOCK_H
#define BH_HOST_CORE_CLOCK_H

#include <time.h>

#include "host/core/common.h"

#define BH_NS_PER_US UINT64_C(1000)
#define BH_NS_PER_MS UINT64_C(1000000)
#define BH_NS_PER_S UINT64_C(1000000000)

/* An absolute point on CLOCK_MONOTONIC; `BH_NEVER` needs a written reason where it is used. */
struct bh_deadline {
	uint64_t at_ns;
};

#define BH_NEVER ((struct bh_deadline){ UINT64_MAX })

static inline uint64_t bh_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * BH_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline struct bh_deadline bh_deadline_after(uint64_t ns)
{
	uint64_t now = bh_now_ns();

	return (struct bh_deadline){ ns > UINT64_MAX - now ? UINT64_MAX : now + ns };
}

static inline struct bh_deadline bh_deadline_min(struct bh_deadline a, struct bh_deadline b)
{
	return a.at_ns < b.at_ns ? a : b;
}

static inline bool bh_deadline_passed(struct bh_deadline until)
{
	return until.at_ns != UINT64_MAX && bh_now_ns() >= until.at_ns;
}

/* 0 when it has passed; UINT64_MAX for BH_NEVER. */
uint64_t bh_deadline_left_ns(struct bh_deadline until);
struct timespec bh_deadline_timespec(struct bh_deadline until);

#endif
