/* SPDX-License-Identifier: BSD-3-Clause */
/* surroundings - what loading or opening a plugin must leave as it was (PLG-6).
 *
 * Signal dispositions belong to the process; the signal mask and the CPU affinity to the calling
 * thread, from which the threads it makes inherit them. Thread: save and restore on the same
 * one. */
#ifndef BH_HOST_PLUGIN_SURROUNDINGS_H
#define BH_HOST_PLUGIN_SURROUNDINGS_H

#include <sched.h>
#include <signal.h>

#include "host/core/cpus.h"

struct bh_surroundings {
	struct sigaction actions[NSIG];
	bool has_action[NSIG]; /* the kernel and libc keep a few for themselves */
	sigset_t mask;
	cpu_set_t cpus[BH_CPUS_MAX / CPU_SETSIZE];
	bool has_cpus;
};

void bh_surroundings_save(struct bh_surroundings *surroundings);
/* Puts back what has changed and logs each with `label` and `step`. Returns how many there were. */
unsigned bh_surroundings_restore(const struct bh_surroundings *before, const char *label,
				 const char *step);

/* How many CPUs this process may use: its affinity, and its cgroup's quota where that can be read.
 * At least 1. `proc` and `cgroup` are "/proc/self/cgroup" and "/sys/fs/cgroup" but for tests. */
unsigned bh_surroundings_cpus(const char *proc, const char *cgroup);

#endif
