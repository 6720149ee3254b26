/* SPDX-License-Identifier: BSD-3-Clause */
/* exit_hook - see exit_hook.h. */
#include "config.h"

#include "host/core/exit_hook.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/core/log.h"
#include "host/core/wedge.h"

#define COMPONENT "exit"
#define STATUS_WEDGED 70
#define LAST_WORDS_NS (500 * BH_NS_PER_MS)
#define STACK_NS (200 * BH_NS_PER_MS)
#define STEP_NS BH_NS_PER_S /* for the last steps, where the pools have used up all the time */

/* Not a thread id. */
#define UNARMED 0
#define ARMED (-1)

static struct {
	struct bh_exit_hook_config config; /* I: written before `owner` is ARMED */
	pid_t pid;			   /* I: the same */
	/* A: release when armed, acq_rel when taken: UNARMED, ARMED, or the id of the thread that
	 * ends the process. */
	_Atomic pid_t owner;
} hook;

/* ---- who ends the process -------------------------------------------------------------------- */

static _Noreturn void park(void)
{
	sigset_t all;

	(void)bh_pool_exits(); /* whoever ends the process does not wait for this thread */
	if (hook.config.let_go)
		hook.config.let_go();
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (;;)
		pause();
}

/* True: the end is the caller's, as of now. False: nothing is to be done, because the hook is not
 * armed, this is a forked child (EXIT-5), or the caller ends the process already. */
static bool take(void)
{
	pid_t owner = atomic_load_explicit(&hook.owner, memory_order_acquire), self = gettid();

	if (owner == UNARMED || getpid() != hook.pid)
		return false;
	if (owner == ARMED &&
	    atomic_compare_exchange_strong_explicit(&hook.owner, &owner, self, memory_order_acq_rel,
						    memory_order_acquire))
		return true;
	if (owner == self)
		return false;
	park();
}

void bh_exit_hook_claim(void)
{
	(void)take(); /* false: there is no hook, so nobody else can be ending the process */
}

/* ---- taking down ----------------------------------------------------------------------------- */

/* EXIT-4, as the conductor does it: which threads are stuck in what, and their stacks. */
static void report_stuck(struct bh_pool *pool)
{
	struct bh_error cause = { .status = 0 };
	json_t *report = NULL, *row;
	size_t i;

	if (!bh_pool_give_up(pool, &report))
		return;
	(void)bh_pool_cause(pool, &cause);
	bh_log_error(BH_LOG_ERROR, COMPONENT, "pool did not end in time", &cause);
	json_array_foreach(json_object_get(report, "threads"), i, row)
		bh_wedge_log_thread(COMPONENT, pool, row, bh_deadline_after(STACK_NS));
	json_decref(report);
}

/* Half of what is left, so that the pools loaded before it have their turn as well. What runs has
 * half of that to obey; nothing queued is started. */
static enum bh_pool_rest end_pool(struct bh_pool *pool, struct bh_deadline until)
{
	uint64_t left_ns = bh_deadline_left_ns(until);
	struct bh_deadline share = bh_deadline_after(left_ns / 2);
	enum bh_pool_rest rest;

	bh_pool_stop(pool, bh_deadline_after(0), bh_deadline_after(left_ns / 4));
	rest = bh_pool_wait_rest(pool, share);
	switch (rest) {
	case BH_POOL_REST_NONE:
		if (bh_pool_join(pool, share, NULL) < 0) {
			report_stuck(pool); /* published, but its thread has not ended */
			rest = BH_POOL_REST_STUCK;
		}
		break;
	case BH_POOL_REST_EXITING:
		break;
	case BH_POOL_REST_STUCK:
		report_stuck(pool);
		break;
	}
	bh_log(rest == BH_POOL_REST_NONE ? BH_LOG_INFO : BH_LOG_WARNING, COMPONENT,
	       rest == BH_POOL_REST_NONE      ? "pool closed"
	       : rest == BH_POOL_REST_EXITING ? "pool left open: a thread of it called exit()"
					      : "pool left as it is",
	       BH_STR("pool", bh_pool_label(pool)),
	       BH_STR("state", bh_pool_state_name(bh_pool_state(pool))));
	return rest;
}

/* The worst that was found. PLG-4: in reverse load order, also those that the orderly stop has
 * begun with. */
static enum bh_pool_rest end_pools(struct bh_exit_registry *registry, struct bh_deadline until)
{
	enum bh_pool_rest worst = BH_POOL_REST_NONE;
	struct bh_pool *pool;

	while ((pool = bh_exit_registry_last(registry))) {
		enum bh_pool_rest rest = end_pool(pool, until);

		worst = rest > worst ? rest : worst;
		bh_exit_registry_remove(registry, pool);
	}
	return worst;
}

static struct bh_deadline total_deadline(const struct bh_exit_hook_config *config)
{
	struct bh_deadline until = bh_deadline_after(config->timeout_ns), stop = BH_NEVER;

	if (config->stop_deadline_ns)
		stop.at_ns = atomic_load_explicit(config->stop_deadline_ns, memory_order_relaxed);
	return bh_deadline_min(until, stop);
}

void bh_exit_hook_act(int status)
{
	const struct bh_exit_hook_config *config = &hook.config;
	struct bh_deadline until;
	enum bh_pool_rest rest;
	char thread[16] = "";
	bool pools_own;

	if (!take())
		return;
	if (config->let_go)
		config->let_go(); /* who is to end may need it (EXIT-2) */
	pools_own = bh_pool_exits();
	until = total_deadline(config);
	pthread_getname_np(pthread_self(), thread, sizeof(thread));
	bh_log(BH_LOG_WARNING, COMPONENT, "exit() was called: closing the pools",
	       BH_INT("status", status), BH_STR("thread", thread), BH_INT("tid", gettid()));
	bh_exit_registry_close(config->registry);
	bh_exit_registry_run(config->registry, BH_EXIT_APPS, until);
	rest = end_pools(config->registry, until);
	if (rest == BH_POOL_REST_STUCK)
		status = STATUS_WEDGED;
	bh_exit_registry_run(config->registry, BH_EXIT_LIBRARIES, bh_deadline_after(STEP_NS));
	bh_log(BH_LOG_INFO, COMPONENT, "stopped", BH_INT("status", status & 0xff));
	bh_log_flush(bh_deadline_after(LAST_WORDS_NS));
	/* EXIT-3: no handler of a library runs while a thread is inside it, this one included. */
	if (rest != BH_POOL_REST_NONE || pools_own)
		_exit(status);
}

/* ---- the handler ----------------------------------------------------------------------------- */

/* As on_exit() calls it: it has the status, and no need of an argument (which gcc's TSan loses on
 * the way of __cxa_atexit()). */
static void on_process_exit(int status, void *unused)
{
	(void)unused;
	bh_exit_hook_act(status);
}

void bh_exit_hook_refresh(void)
{
	if (atomic_load_explicit(&hook.owner, memory_order_acquire) != ARMED ||
	    getpid() != hook.pid)
		return;
	/* Its failure (no memory) leaves the registration before this one, and exit() itself. */
	(void)on_exit(on_process_exit, NULL);
}

void bh_exit_hook_arm(const struct bh_exit_hook_config *config)
{
	assert(atomic_load_explicit(&hook.owner, memory_order_relaxed) == UNARMED);
	hook.config = *config;
	hook.pid = getpid();
	atomic_store_explicit(&hook.owner, ARMED, memory_order_release);
	bh_exit_hook_refresh();
}
