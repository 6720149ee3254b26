/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_signals - changes the process behind the host's back: SIGTERM when it is loaded; SIGINT, the
 * mask and the affinity when it is opened (PLG-6). */
#define _GNU_SOURCE 1
#include <bulkhead/plugin.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>

__attribute__((constructor)) static void take_sigterm(void)
{
	signal(SIGTERM, SIG_IGN);
}

static void narrow_affinity(void)
{
	cpu_set_t cpus;
	int first = 0;

	if (sched_getaffinity(0, sizeof(cpus), &cpus) < 0)
		return;
	while (first < CPU_SETSIZE && !CPU_ISSET(first, &cpus))
		first++;
	CPU_ZERO(&cpus);
	CPU_SET(first, &cpus);
	(void)sched_setaffinity(0, sizeof(cpus), &cpus);
}

static bh_status bad_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	sigset_t mask;

	(void)ctx;
	(void)host;
	(void)ret_state;
	signal(SIGINT, SIG_IGN);
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &mask, NULL);
	narrow_affinity();
	return 0;
}

static bh_status bad_close(void *state)
{
	(void)state;
	return 0;
}

static bh_status run_nop(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return 0;
}

static const struct bh_op ops[] = { { .name = "nop", .run = run_nop } };

BH_PLUGIN("bad_signals", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 4 },
	.ops = BH_TABLE(ops),
	.open = bad_open,
	.close = bad_close,
};
