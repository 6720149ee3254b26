/* SPDX-License-Identifier: BSD-3-Clause */
/* interpose - the raw C-API for threads, as plugins and extension modules see it.
 *
 * The executable exports these names (exports.list), and ELF order puts them before libpython's,
 * so that raw callers pass the gate and the ledger like everyone (GIL-5, GIL-6). Each accounts
 * and forwards to the real function. Two kinds of call are not a caller's and are forwarded
 * untouched, so that the books are the same on builds that route libpython's own calls through
 * these names and on those that do not:
 *  - calls from libpython's text;
 *  - calls made inside a real function (PyGILState_Release may tail-jump to PyEval_SaveThread,
 *    whose return address is then ours).
 *
 * Thread: any. Blocks: those that take the GIL, and for ever once the gate has closed. */
#include "config.h"

#include <Python.h>

#include "host/gil/internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "host/core/log.h"

#define BH_INTERPOSED __attribute__((visibility("default")))
/* Taken by every interposed function itself: no wrapper between it and its caller. */
#define CALLER __builtin_return_address(0)

static struct {
	PyGILState_STATE (*ensure)(void);
	void (*release)(PyGILState_STATE state);
	PyThreadState *(*save)(void);
	void (*restore)(PyThreadState *state);
	void (*acquire)(PyThreadState *state);
	void (*release_thread)(PyThreadState *state);
	PyThreadState *(*new)(PyInterpreterState *interpreter);
	void (*delete)(PyThreadState *state);
	void (*delete_current)(void);
	PyThreadState *(*swap)(PyThreadState *state);
	void (*thread_exit)(void *value) __attribute__((noreturn));
	int (*close_library)(void *handle);
} real;

/* In the same order; what ELF order must give to everybody is `ours`. */
static const struct {
	const char *name;
	void *slot; /* a function pointer in `real` */
	void *ours;
} names[] = {
	{ "PyGILState_Ensure", &real.ensure, (void *)PyGILState_Ensure },
	{ "PyGILState_Release", &real.release, (void *)PyGILState_Release },
	{ "PyEval_SaveThread", &real.save, (void *)PyEval_SaveThread },
	{ "PyEval_RestoreThread", &real.restore, (void *)PyEval_RestoreThread },
	{ "PyEval_AcquireThread", &real.acquire, (void *)PyEval_AcquireThread },
	{ "PyEval_ReleaseThread", &real.release_thread, (void *)PyEval_ReleaseThread },
	{ "PyThreadState_New", &real.new, (void *)PyThreadState_New },
	{ "PyThreadState_Delete", &real.delete, (void *)PyThreadState_Delete },
	{ "PyThreadState_DeleteCurrent", &real.delete_current,
	  (void *)PyThreadState_DeleteCurrent },
	{ "PyThreadState_Swap", &real.swap, (void *)PyThreadState_Swap },
	{ "pthread_exit", &real.thread_exit, (void *)pthread_exit },
	{ "dlclose", &real.close_library, (void *)dlclose },
};

_Atomic uint32_t bh_gil_unloads;

static uintptr_t python_text, python_text_size; /* I: after real_resolve() */
static _Atomic bool resolved;			/* A: release after everything above */

/* ---- the real functions ---------------------------------------------------------------------- */

static int find_python_text(struct dl_phdr_info *object, size_t size, void *inside)
{
	(void)size;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		uintptr_t start = object->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_LOAD && (segment->p_flags & PF_X) &&
		    (uintptr_t)inside - start < segment->p_memsz) {
			python_text = start;
			python_text_size = segment->p_memsz;
			return 1;
		}
	}
	return 0;
}

/* As a constructor, because Py_Initialize already comes through here on some builds, and dlsym
 * must not be called late: it blocks while another thread's dlopen runs a constructor.
 * Constructors of libraries run even earlier, on the only thread there is, and find it
 * unresolved. */
__attribute__((constructor)) static void real_resolve(void)
{
	if (atomic_load_explicit(&resolved, memory_order_acquire))
		return;
	for (size_t i = 0; i < BH_ARRAY_LEN(names); i++) {
		void *symbol = dlsym(RTLD_NEXT, names[i].name);

		memcpy(names[i].slot, &symbol, sizeof(symbol));
	}
	dl_iterate_phdr(find_python_text, (void *)real.ensure);
	atomic_store_explicit(&resolved, true, memory_order_release);
}

bh_status bh_gil_real_init(struct bh_error *err)
{
	real_resolve();
	for (size_t i = 0; i < BH_ARRAY_LEN(names); i++) {
		if (!dlsym(RTLD_NEXT, names[i].name))
			return bh_raise(
				err, -ENOSYS, "gil.symbol_missing", BH_STR("symbol", names[i].name),
				BH_STR("want",
				       "a shared libpython that the executable is linked with"));
		/* Not exported: a plugin's calls would bind to libpython's and go round the
		 * gate. */
		if (dlsym(RTLD_DEFAULT, names[i].name) != names[i].ours)
			return bh_raise(
				err, -ENOSYS, "gil.symbol_not_interposed",
				BH_STR("symbol", names[i].name),
				BH_STR("want",
				       "an executable linked with --export-dynamic-symbol"));
	}
	if (!python_text)
		return bh_raise(err, -ENOSYS, "gil.python_text_unknown");
	/* The holder's record has the layout of the headers: that of one minor version. */
	if (Py_Version >> 16 != PY_VERSION_HEX >> 16)
		return bh_raise(err, -EINVAL, "gil.python_version",
				BH_STR("python", Py_GetVersion()), BH_STR("built_for", PY_VERSION));
	return 0;
}

uint32_t bh_gil_real_ensure(void)
{
	PyGILState_STATE state;

	bh_gil_self.forwarding = true;
	state = real.ensure();
	bh_gil_self.forwarding = false;
	return (uint32_t)state;
}

void bh_gil_real_release(uint32_t state)
{
	bh_gil_self.forwarding = true;
	real.release((PyGILState_STATE)state);
	bh_gil_self.forwarding = false;
}

static void forward_attach(PyThreadState *state, void (*attach)(PyThreadState *))
{
	bh_gil_self.forwarding = true;
	attach(state);
	bh_gil_self.forwarding = false;
}

void bh_gil_real_restore(struct _ts *state)
{
	forward_attach(state, real.restore);
}

struct _ts *bh_gil_real_save(void)
{
	PyThreadState *state;

	bh_gil_self.forwarding = true;
	state = real.save();
	bh_gil_self.forwarding = false;
	return state;
}

struct _ts *bh_gil_real_new(void)
{
	PyThreadState *state;

	bh_gil_self.forwarding = true;
	state = real.new(PyInterpreterState_Main());
	bh_gil_self.forwarding = false;
	return state;
}

void bh_gil_real_delete_current(void)
{
	bh_gil_self.forwarding = true;
	real.delete_current();
	bh_gil_self.forwarding = false;
}

static PyThreadState *current_state(void)
{
#if PY_VERSION_HEX >= 0x030d0000
	return PyThreadState_GetUnchecked();
#else
	return _PyThreadState_UncheckedGet();
#endif
}

#if PY_VERSION_HEX >= 0x030c0000
bool bh_gil_holds(void)
{
	/* The thread's own, whichever interpreter it is of; set only while it holds. */
	return current_state() != NULL;
}
#else
/* In another interpreter a thread has another state than the one that is known as its own. Whose the
 * current one is, the kernel is asked to read: unless it is ours it may be freed at any moment. */
static bool holds_elsewhere(const PyThreadState *current)
{
	const struct bh_gil_record record = { .state = (uintptr_t)current };
	PyInterpreterState *newest = PyInterpreterState_Head();

	return newest && newest != PyInterpreterState_Main() &&
	       bh_gil_record_tid(&record) == (uint32_t)gettid();
}

bool bh_gil_holds(void)
{
	/* The holder's. (PyGILState_Check says yes to all once there is a second interpreter.) */
	PyThreadState *current = current_state();

	if (!current)
		return false;
	return current == PyGILState_GetThisThreadState() || holds_elsewhere(current);
}
#endif

/* ---- what raw calls do ----------------------------------------------------------------------- */

static inline bool is_pythons_own(const void *caller)
{
	if (__builtin_expect(!atomic_load_explicit(&resolved, memory_order_acquire), 0))
		real_resolve();
	return bh_gil_self.forwarding || (uintptr_t)caller - python_text < python_text_size;
}

/* GIL-5: a raw caller cannot be given an error, so after the gate has closed it gets nothing at
 * all. Ended instead, it would unwind (and abort in) C++ frames; let in, it would crash the
 * finalization. */
static void raw_begin(struct bh_gil_entry *entry, bool by_attach, const void *caller)
{
	struct bh_gil_thread *self = &bh_gil_self;
	const struct bh_gil_caller who = { .site = BH_GIL_SITE_NONE,
					   .address = caller,
					   .by_attach = by_attach };

	if (!bh_gil_entry_begin(self, entry, &who))
		bh_gil_park(self, caller);
}

static void raw_attach(PyThreadState *state, void (*attach)(PyThreadState *), const void *caller)
{
	struct bh_gil_entry entry;

	raw_begin(&entry, true, caller);
	forward_attach(state, attach);
	bh_gil_entry_end(&bh_gil_self, &entry);
}

/* The thread has let go of the GIL by the opposite of an attach. */
static void raw_detached(void)
{
	struct bh_gil_thread *self = &bh_gil_self;

	if (self->depth == 1 && self->by_attach)
		bh_gil_scope_close(self);
	else if (self->depth == 0 && !self->exempt)
		self->pythons = true; /* it held the GIL without having come through here */
}

BH_INTERPOSED PyGILState_STATE PyGILState_Ensure(void)
{
	struct bh_gil_entry entry;
	uint32_t state;

	if (is_pythons_own(CALLER))
		return real.ensure();
	raw_begin(&entry, false, CALLER);
	state = bh_gil_real_ensure();
	bh_gil_entry_end(&bh_gil_self, &entry);
	return (PyGILState_STATE)state;
}

BH_INTERPOSED void PyGILState_Release(PyGILState_STATE state)
{
	if (is_pythons_own(CALLER)) {
		real.release(state);
		return;
	}
	bh_gil_real_release((uint32_t)state);
	bh_gil_scope_close(&bh_gil_self);
}

BH_INTERPOSED void PyEval_RestoreThread(PyThreadState *state)
{
	if (is_pythons_own(CALLER))
		real.restore(state);
	else
		raw_attach(state, real.restore, CALLER);
}

BH_INTERPOSED void PyEval_AcquireThread(PyThreadState *state)
{
	if (is_pythons_own(CALLER))
		real.acquire(state);
	else
		raw_attach(state, real.acquire, CALLER);
}

BH_INTERPOSED PyThreadState *PyEval_SaveThread(void)
{
	PyThreadState *state;

	if (is_pythons_own(CALLER))
		return real.save();
	state = bh_gil_real_save();
	raw_detached();
	return state;
}

BH_INTERPOSED void PyEval_ReleaseThread(PyThreadState *state)
{
	if (is_pythons_own(CALLER)) {
		real.release_thread(state);
		return;
	}
	forward_attach(state, real.release_thread);
	raw_detached();
}

BH_INTERPOSED void PyThreadState_DeleteCurrent(void)
{
	if (is_pythons_own(CALLER)) {
		real.delete_current();
		return;
	}
	bh_gil_real_delete_current();
	raw_detached();
}

/* Takes and drops the GIL from 3.12 on. */
BH_INTERPOSED PyThreadState *PyThreadState_Swap(PyThreadState *state)
{
	struct bh_gil_entry entry;
	PyThreadState *old;
	bool takes;

	if (PY_VERSION_HEX < 0x030c0000 || is_pythons_own(CALLER))
		return real.swap(state);
	takes = state && !current_state();
	if (takes)
		raw_begin(&entry, true, CALLER);
	bh_gil_self.forwarding = true;
	old = real.swap(state);
	bh_gil_self.forwarding = false;
	if (takes)
		bh_gil_entry_end(&bh_gil_self, &entry);
	else if (old && !state)
		raw_detached();
	return old;
}

/* Making and deleting a state need no GIL, but an interpreter: counted for as long as they take. */
BH_INTERPOSED PyThreadState *PyThreadState_New(PyInterpreterState *interpreter)
{
	enum bh_gil_admission admission;
	PyThreadState *state;

	if (is_pythons_own(CALLER))
		return real.new(interpreter);
	admission = bh_gil_admit(&bh_gil_self);
	if (admission == BH_GIL_REFUSED)
		bh_gil_park(&bh_gil_self, CALLER);
	state = real.new(interpreter);
	bh_gil_dismiss(&bh_gil_self, admission);
	return state;
}

BH_INTERPOSED void PyThreadState_Delete(PyThreadState *state)
{
	enum bh_gil_admission admission;

	if (is_pythons_own(CALLER)) {
		real.delete(state);
		return;
	}
	admission = bh_gil_admit(&bh_gil_self);
	if (admission == BH_GIL_REFUSED)
		return; /* finalization frees it */
	real.delete(state);
	bh_gil_dismiss(&bh_gil_self, admission);
}

/* Up to 3.13 CPython ends a thread that comes late by pthread_exit, which unwinds its C++ frames
 * (and aborts in a noexcept one, or in a catch-all). 3.14 hangs it; so do we. */
BH_INTERPOSED _Noreturn void pthread_exit(void *value)
{
	if (is_pythons_own(CALLER) && bh_gil_gate_closed()) {
		/* Main itself, when a second interpreter's finalization lets go of the GIL: then there
		 * is nobody left to go on, and the stop's deadline ends the process. */
		if (bh_gil_self.exempt)
			bh_log(BH_LOG_ERROR, "gil",
			       "Python gave its main thread up in the midst of finalization; was "
			       "an "
			       "interpreter left that had printed?");
		bh_gil_hang();
	}
	real.thread_exit(value);
}

/* Not the GIL's, but raw callers are known by their addresses. */
BH_INTERPOSED int dlclose(void *handle)
{
	int result;

	if (__builtin_expect(!atomic_load_explicit(&resolved, memory_order_acquire), 0))
		real_resolve();
	result = real.close_library(handle);
	atomic_fetch_add_explicit(&bh_gil_unloads, 1, memory_order_relaxed);
	return result;
}
