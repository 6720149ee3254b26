/* SPDX-License-Identifier: BSD-3-Clause */
/* exit_hook - what happens when something calls exit(): the pools are taken down before any
 * handler or destructor of a plugin's libraries runs (EXIT-2, EXIT-3).
 *
 * The executable exports exit() and __cxa_atexit(), which atexit() and C++ statics call
 * (host/core/exit_exports.c). exit() acts first and then goes on to the C library's. What ends the
 * process without calling ours (err(), a return from main, a library that binds to the C library's
 * own) comes to a handler that is registered again behind every foreign registration, for handlers
 * run in reverse order and a library may register at its first use.
 *
 * One thread owns the end of the process, the first that asks for it; any other that comes later is
 * parked for good, since the C library's exit() is not safe to call twice at once.
 *
 * Thread: any. GIL: held or not. State is process-wide: a handler has nothing to hang it on. Keeps:
 * EXIT-1, EXIT-2, EXIT-3, EXIT-5. */
#ifndef BH_HOST_CORE_EXIT_HOOK_H
#define BH_HOST_CORE_EXIT_HOOK_H

#include <stdatomic.h>

#include "host/core/exit.h"

struct bh_exit_hook_config {
	struct bh_exit_registry *registry; /* borrowed for good */
	uint64_t timeout_ns;		   /* for all the pools together */
	/* A: relaxed; when a stop that has begun already must be over, UINT64_MAX before. May be
	 * NULL. */
	_Atomic uint64_t *stop_deadline_ns;
	/* On a thread that will not come back: lets go of the GIL if it holds it. May be NULL. */
	void (*let_go)(void);
};

/* Once, in the process whose end it is about, when there is something to take down. */
void bh_exit_hook_arm(const struct bh_exit_hook_config *config);
/* The calling thread ends the process in order; from now on an exit() of another one parks it.
 * Does not return when another one is ending the process already. */
void bh_exit_hook_claim(void);
/* A library may have registered handlers in a way that is not seen: ours goes behind them. Never
 * blocks; nothing in a forked child or when the hook is not armed. */
void bh_exit_hook_refresh(void);
/* exit() has been called with this status. Returns when the C library may go on. */
void bh_exit_hook_act(int status);

#endif
