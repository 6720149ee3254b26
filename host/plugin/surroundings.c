/* SPDX-License-Identifier: BSD-3-Clause */
/* surroundings - see surroundings.h.
 *
 * Thread: main around dlopen, the supervisor around open. Blocks: no. Keeps: PLG-6. */
#include "config.h"

#include "host/plugin/surroundings.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "host/core/log.h"

#define COMPONENT "plugin"
#define PATH_SIZE 4096

#ifndef SA_RESTORER
#define SA_RESTORER 0x04000000 /* the C library's own affair */
#endif

void bh_surroundings_save(struct bh_surroundings *surroundings)
{
	memset(surroundings, 0, sizeof(*surroundings));
	for (int sig = 1; sig < NSIG; sig++)
		surroundings->has_action[sig] =
			sigaction(sig, NULL, &surroundings->actions[sig]) == 0;
	pthread_sigmask(SIG_SETMASK, NULL, &surroundings->mask);
	surroundings->has_cpus =
		sched_getaffinity(0, sizeof(surroundings->cpus), surroundings->cpus) == 0;
}

/* Field by field: the structure has padding, and bits of the mask that no signal has. */
static bool same_set(const sigset_t *a, const sigset_t *b)
{
	for (int sig = 1; sig < NSIG; sig++)
		if (sigismember(a, sig) != sigismember(b, sig))
			return false;
	return true;
}

static bool has_handler(const struct sigaction *action)
{
	return (action->sa_flags & SA_SIGINFO) ||
	       (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

/* Without a handler its mask means nothing; the flags do (SA_NOCLDWAIT). */
static bool same_action(const struct sigaction *a, const struct sigaction *b)
{
	return a->sa_sigaction == b->sa_sigaction &&
	       ((a->sa_flags ^ b->sa_flags) & ~SA_RESTORER) == 0 &&
	       (!has_handler(a) || same_set(&a->sa_mask, &b->sa_mask));
}

static const char *disposition_name(const struct sigaction *action)
{
	if (has_handler(action))
		return "a handler";
	return action->sa_handler == SIG_IGN ? "ignored" : "default";
}

static void signal_name(int sig, char *name, size_t size)
{
	const char *abbreviation = sigabbrev_np(sig);

	if (abbreviation)
		snprintf(name, size, "SIG%s", abbreviation);
	else
		snprintf(name, size, "signal %d", sig);
}

static bool restore_action(const struct bh_surroundings *before, int sig, const char *label,
			   const char *step)
{
	struct sigaction now;
	char name[24];

	if (!before->has_action[sig] || sigaction(sig, NULL, &now) < 0 ||
	    same_action(&before->actions[sig], &now))
		return false;
	sigaction(sig, &before->actions[sig], NULL);
	signal_name(sig, name, sizeof(name));
	bh_log(BH_LOG_WARNING, COMPONENT, "plugin changed a signal's disposition; restored",
	       BH_STR("plugin", label), BH_STR("step", step), BH_STR("signal", name),
	       BH_STR("found", disposition_name(&now)),
	       BH_STR("restored", disposition_name(&before->actions[sig])));
	return true;
}

static bool restore_mask(const struct bh_surroundings *before, const char *label, const char *step)
{
	sigset_t now;

	pthread_sigmask(SIG_SETMASK, NULL, &now);
	if (same_set(&before->mask, &now))
		return false;
	pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
	bh_log(BH_LOG_WARNING, COMPONENT, "plugin changed the thread's signal mask; restored",
	       BH_STR("plugin", label), BH_STR("step", step));
	return true;
}

static bool restore_cpus(const struct bh_surroundings *before, const char *label, const char *step)
{
	cpu_set_t now[BH_ARRAY_LEN(before->cpus)];
	const char *verdict = "restored";

	memset(now, 0, sizeof(now));
	if (!before->has_cpus || sched_getaffinity(0, sizeof(now), now) < 0 ||
	    CPU_EQUAL_S(sizeof(now), before->cpus, now))
		return false;
	if (sched_setaffinity(0, sizeof(before->cpus), before->cpus) < 0)
		verdict = strerrordesc_np(errno);
	bh_log(BH_LOG_WARNING, COMPONENT, "plugin changed the thread's CPU affinity",
	       BH_STR("plugin", label), BH_STR("step", step),
	       BH_INT("cpus_before", CPU_COUNT_S(sizeof(now), before->cpus)),
	       BH_INT("cpus_found", CPU_COUNT_S(sizeof(now), now)), BH_STR("restore", verdict));
	return true;
}

unsigned bh_surroundings_restore(const struct bh_surroundings *before, const char *label,
				 const char *step)
{
	unsigned changed = 0;

	for (int sig = 1; sig < NSIG; sig++)
		changed += restore_action(before, sig, label, step);
	changed += restore_mask(before, label, step);
	changed += restore_cpus(before, label, step);
	return changed;
}

/* ---- how many CPUs -------------------------------------------------------------------------- */

static unsigned affinity_cpus(void)
{
	cpu_set_t set[BH_CPUS_MAX / CPU_SETSIZE];

	memset(set, 0, sizeof(set));
	if (sched_getaffinity(0, sizeof(set), set) < 0)
		return 1;
	return (unsigned)CPU_COUNT_S(sizeof(set), set);
}

/* The process's path in the unified hierarchy, "0::/a/b" in /proc/self/cgroup. */
static bool cgroup_path(const char *proc, char *path, size_t size)
{
	char line[PATH_SIZE];
	bool found = false;
	FILE *file = fopen(proc, "re");

	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		found = strncmp(line, "0::/", 4) == 0 && strlen(line + 3) < size;
	}
	fclose(file);
	if (found)
		memcpy(path, line + 3, strlen(line + 3) + 1);
	return found;
}

/* CPUs that one group's cpu.max grants, rounded up; UINT_MAX for "max" or where it cannot be
 * read. */
static unsigned group_cpus(const char *cgroup, const char *path)
{
	char name[2 * PATH_SIZE + 16], quota[32];
	uint64_t period = 0;
	unsigned cpus = UINT32_MAX;
	FILE *file;

	snprintf(name, sizeof(name), "%s%s/cpu.max", cgroup, path);
	file = fopen(name, "re");
	if (!file)
		return cpus;
	if (fscanf(file, "%31s %" SCNu64, quota, &period) == 2 && period > 0 &&
	    strcmp(quota, "max") != 0) {
		uint64_t granted = (strtoull(quota, NULL, 10) + period - 1) / period;

		if (granted > 0 && granted < UINT32_MAX)
			cpus = (unsigned)granted;
	}
	fclose(file);
	return cpus;
}

unsigned bh_surroundings_cpus(const char *proc, const char *cgroup)
{
	unsigned cpus = affinity_cpus();
	char path[PATH_SIZE] = "/";

	if (!cgroup_path(proc, path, sizeof(path)))
		return cpus;
	/* Each group on the way up may be the tightest. The root has no quota of its own, but in a
	 * container what looks like the root is a group of the machine's. */
	for (;;) {
		unsigned granted = group_cpus(cgroup, path);
		char *slash = strrchr(path, '/');

		cpus = granted < cpus ? granted : cpus;
		if (!slash)
			return cpus;
		*slash = '\0';
	}
}
