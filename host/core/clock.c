/* SPDX-License-Identifier: BSD-3-Clause */
/* clock - see clock.h. */
#include "config.h"

#include "host/core/clock.h"

uint64_t bh_deadline_left_ns(struct bh_deadline until)
{
	uint64_t now;

	if (until.at_ns == UINT64_MAX)
		return UINT64_MAX;
	now = bh_now_ns();
	return until.at_ns > now ? until.at_ns - now : 0;
}

struct timespec bh_deadline_timespec(struct bh_deadline until)
{
	return (struct timespec){ .tv_sec = (time_t)(until.at_ns / BH_NS_PER_S),
				  .tv_nsec = (long)(until.at_ns % BH_NS_PER_S) };
}
