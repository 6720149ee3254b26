/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_raw_ctor - takes the GIL raw, in both ways there are, in a constructor of the library: on main,
 * inside dlopen, before the host has spoken to it. */
#define _GNU_SOURCE
#include <bulkhead/plugin.h>

#include <dlfcn.h>
#include <string.h>

static int find(void *to, const char *name)
{
	void *symbol = dlsym(RTLD_DEFAULT, name);

	memcpy(to, &symbol, sizeof(symbol));
	return symbol != NULL;
}

__attribute__((constructor)) static void take(void)
{
	int (*is_up)(void), (*ensure)(void);
	void (*release)(int state), (*restore)(void *state);
	void *(*mine)(void), *(*save)(void);

	if (!find(&is_up, "Py_IsInitialized") || !is_up() || !find(&ensure, "PyGILState_Ensure") ||
	    !find(&release, "PyGILState_Release") ||
	    !find(&mine, "PyGILState_GetThisThreadState") ||
	    !find(&restore, "PyEval_RestoreThread") || !find(&save, "PyEval_SaveThread"))
		return;
	release(ensure());
	restore(mine());
	save();
}

static bh_status run_nop(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return 0;
}

static bh_status raw_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	(void)ctx;
	(void)host;
	*ret_state = NULL;
	return 0;
}

static bh_status raw_close(void *state)
{
	(void)state;
	return 0;
}

static const struct bh_op ops[] = {
	{ .name = "nop", .run = run_nop, .doc = "Nothing." },
};

BH_PLUGIN("bad_raw_ctor", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 4 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE,
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(ops),
	.open = raw_open,
	.close = raw_close,
};
