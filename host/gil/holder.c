/* SPDX-License-Identifier: BSD-3-Clause */
/* holder - the interpreter's own record of who holds the GIL.
 *
 * With frames.c the only file that sees CPython's internal headers, and all that may break with a
 * new version: the record is `locked`, `last_holder` and `switch_number` in the GIL of the main
 * interpreter, which lies in static memory in 3.11, 3.12 and 3.13, so that a late reader reads
 * stale bytes, never freed ones. The thread state it points to has no such promise and is read
 * through the kernel.
 *
 * Thread: any. GIL: held or not. Keeps: GIL-6. */
#include "config.h"

#define Py_BUILD_CORE 1
#include <Python.h>

#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#include "host/gil/internal.h"

#include <stdatomic.h>
#include <sys/uio.h>
#include <unistd.h>

#include "host/core/log.h"

/* The GIL while it may be read, else NULL. A: release when opened, so that its readers see it
 * made. */
static _Atomic(struct _gil_runtime_state *) record_gil;

static struct _gil_runtime_state *main_gil(void)
{
#if PY_VERSION_HEX >= 0x030c0000
	return PyInterpreterState_Main()->ceval.gil;
#else
	return &PyInterpreterState_Main()->runtime->ceval.gil;
#endif
}

/* CPython wraps the two fields in structs of its own up to 3.12 and not from 3.13 on. */
static int gil_locked(const struct _gil_runtime_state *gil)
{
	static_assert(sizeof(gil->locked) == sizeof(int), "the GIL's `locked` is an int");
	return __atomic_load_n((const int *)(const void *)&gil->locked, __ATOMIC_SEQ_CST);
}

static uintptr_t gil_last_holder(const struct _gil_runtime_state *gil)
{
	static_assert(sizeof(gil->last_holder) == sizeof(uintptr_t),
		      "the GIL's `last_holder` is a pointer");
	return __atomic_load_n((const uintptr_t *)(const void *)&gil->last_holder,
			       __ATOMIC_SEQ_CST);
}

/* A thread that takes the GIL after another one counts as a switch. */
static uint64_t gil_switches(const struct _gil_runtime_state *gil)
{
	return __atomic_load_n(&gil->switch_number, __ATOMIC_SEQ_CST);
}

void bh_gil_record_open(void)
{
	struct bh_gil_record record;

	atomic_store_explicit(&record_gil, main_gil(), memory_order_release);
	if (bh_gil_record_read(&record) &&
	    record.state == (uintptr_t)PyGILState_GetThisThreadState())
		return;
	bh_gil_record_close();
	bh_log(BH_LOG_ERROR, "gil",
	       "the interpreter's record of the holder is not understood; it will not be shown",
	       BH_STR("python", Py_GetVersion()), BH_STR("built_for", PY_VERSION));
}

void bh_gil_record_close(void)
{
	atomic_store_explicit(&record_gil, NULL, memory_order_release);
}

bool bh_gil_record_is_open(void)
{
	return atomic_load_explicit(&record_gil, memory_order_acquire) != NULL;
}

bool bh_gil_record_read(struct bh_gil_record *ret_record)
{
	const struct _gil_runtime_state *gil =
		atomic_load_explicit(&record_gil, memory_order_acquire);
	struct bh_gil_record record;

	if (!gil)
		return false;
	/* Three words that are not written as one: read until the holder has stayed the same, but
	 * never for long, since the control loop is among the readers. */
	for (int tries = 0; tries < 4; tries++) {
		record.state = gil_last_holder(gil);
		record.switches = gil_switches(gil);
		/* -1: destroyed. Zero lock words and no holder are a free GIL. */
		if (gil_locked(gil) != 1 || record.state == 0)
			return false;
		if (gil_last_holder(gil) == record.state)
			break;
	}
	*ret_record = record;
	return true;
}

uint64_t bh_gil_record_left_by(const struct _ts *state)
{
	const struct _gil_runtime_state *gil =
		atomic_load_explicit(&record_gil, memory_order_acquire);
	uint64_t switches;

	if (!gil || !state)
		return 0;
	switches = gil_switches(gil);
	/* In this order: whoever takes it after the count was read changes the count, be it before
	 * or after the look at the holder. */
	if (gil_last_holder(gil) != (uintptr_t)state || gil_locked(gil) != 0)
		return 0;
	return switches + 1;
}

bool bh_gil_record_still_left(uint64_t left)
{
	const struct _gil_runtime_state *gil =
		atomic_load_explicit(&record_gil, memory_order_acquire);

	return left && gil && gil_switches(gil) + 1 == left;
}

uint32_t bh_gil_record_tid(const struct bh_gil_record *record)
{
	/* The thread may have let go, ended and freed its state since the record was read. The
	 * kernel refuses an address that is gone, where a load would be a fault. */
	PyThreadState *state = (PyThreadState *)record->state;
	unsigned long tid = 0;
	struct iovec to = { &tid, sizeof(tid) };
	struct iovec from = { &state->native_thread_id, sizeof(tid) };

	if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)sizeof(tid))
		return 0;
	return (uint32_t)tid;
}
