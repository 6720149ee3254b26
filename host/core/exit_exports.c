/* SPDX-License-Identifier: BSD-3-Clause */
/* exit_exports - exit() and __cxa_atexit() as every library sees them (EXIT-2).
 *
 * The executable exports both (exit_exports.list), and ELF order puts them before the C library's.
 * Only bulkheadd does: this file is linked into it by name, not from the archive.
 *
 * Thread: any. Blocks: exit() until the pools are down; for good when another thread ends the
 * process. Constructors of libraries come here before anything of ours has run, sanitizers
 * included: hence no instrumentation, and the real functions are looked up at first use. */
#include "config.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "host/core/exit_hook.h"

#define BH_EXPORTED __attribute__((visibility("default")))
#define BH_BARE __attribute__((no_sanitize("thread", "address", "undefined")))

/* glibc's, in no header of its. */
int __cxa_atexit(void (*fn)(void *), void *arg, void *dso);

static struct {
	/* A: relaxed; whoever looks them up finds the same. */
	_Atomic(void *) atexit, exit;
} real;

static BH_BARE void *resolve(_Atomic(void *) *slot, const char *name)
{
	void *symbol = atomic_load_explicit(slot, memory_order_relaxed);

	if (!symbol) {
		symbol = dlsym(RTLD_NEXT, name);
		atomic_store_explicit(slot, symbol, memory_order_relaxed);
	}
	return symbol;
}

/* Not later: dlsym() blocks while another thread's dlopen() runs a constructor. */
__attribute__((constructor)) static void resolve_all(void)
{
	resolve(&real.atexit, "__cxa_atexit");
	resolve(&real.exit, "exit");
}

BH_EXPORTED BH_BARE int __cxa_atexit(void (*fn)(void *), void *arg, void *dso)
{
	int (*forward)(void (*)(void *), void *, void *);
	void *symbol = resolve(&real.atexit, "__cxa_atexit");
	int rc;

	memcpy(&forward, &symbol, sizeof(forward));
	rc = forward(fn, arg, dso);
	if (rc == 0)
		bh_exit_hook_refresh(); /* handlers run in reverse order: ours before this one */
	return rc;
}

BH_EXPORTED _Noreturn void exit(int status)
{
	void (*forward)(int) __attribute__((noreturn));
	void *symbol = resolve(&real.exit, "exit");

	bh_exit_hook_act(status);
	memcpy(&forward, &symbol, sizeof(forward));
	forward(status);
}
