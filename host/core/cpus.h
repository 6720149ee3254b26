/* SPDX-License-Identifier: BSD-3-Clause */
/* cpus - a set of CPUs, as text and as what the kernel takes. Thread: any; no state. */
#ifndef BH_HOST_CORE_CPUS_H
#define BH_HOST_CORE_CPUS_H

#include <sched.h>

#include "host/core/error.h"

#define BH_CPUS_MAX 8192 /* the most that Linux is built for on any machine we know */

struct bh_cpus {
	cpu_set_t set[BH_CPUS_MAX / CPU_SETSIZE];
};

/* "0-3,8": numbers and ranges, in any order, without blanks; at least one. -EINVAL for anything
 * else. The words for a refusal are BH_CPUS_REASON and BH_CPUS_ACCEPTED. */
bh_status bh_cpus_parse(const char *text, struct bh_cpus *ret_cpus) BH_MUST_CHECK;
#define BH_CPUS_REASON "is not a list of CPUs"
#define BH_CPUS_ACCEPTED "numbers and ranges from 0 to 8191 such as 0-3,8"

/* The shortest text that parses to the set; "" for an empty one. What does not fit is left out, and
 * the text then ends in "…". Returns the length written, less than `size`, which is at least 8. */
size_t bh_cpus_format(const struct bh_cpus *cpus, char *buffer, size_t size);

/* What the calling thread may run on; for main before it has pinned anything, the process. */
bh_status bh_cpus_allowed(struct bh_cpus *ret_cpus, struct bh_error *err) BH_MUST_CHECK;
/* Pins the calling thread. */
bh_status bh_cpus_pin(const struct bh_cpus *cpus, struct bh_error *err) BH_MUST_CHECK;

unsigned bh_cpus_count(const struct bh_cpus *cpus);
/* Those of `cpus` that are not in `allowed`. */
struct bh_cpus bh_cpus_without(const struct bh_cpus *cpus, const struct bh_cpus *allowed);

#endif
