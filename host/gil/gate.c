/* SPDX-License-Identifier: BSD-3-Clause */
/* gate - counts who is in the interpreter or waiting for it, and once closed lets nobody in.
 *
 * A thread is counted from before it asks for the GIL until its outermost scope has ended.
 * Inside a counted scope everything passes, also after the closing, also while the scope has let
 * go of the GIL: the closer waits for that thread, so it must not be stopped. Threads that
 * Python made may run for ever and are counted only while they wait: then nobody sits in the
 * interpreter's own take-the-GIL when finalization begins. Main is exempt: finalization comes
 * back in on it.
 *
 * Thread: any. Owns: the count. Keeps: GIL-1, GIL-5, GIL-8, EXIT-5. */
#include "config.h"

#include <Python.h>

#include "host/gil/internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/core/log.h"

extern const char __executable_start, etext; /* the linker's: where the executable's code lies */

/* On the way in and out of every scope: its helpers become part of it. */
#define HOT __attribute__((flatten))

struct bh_gil_capability bh_gil;
__thread struct bh_gil_thread bh_gil_self;

/* A: seq_cst, all of it. A thread counts itself, then looks whether the gate has closed; the
 * closer closes, then looks at the count: whichever is second sees the other. Looking before
 * counting would be a race (as is asking whether Python finalizes). */
static struct {
	_Atomic uint32_t inside; /* counted threads; a futex, on which the closer sleeps */
	_Atomic bool closed;
	_Atomic uint64_t parked;
} gate;

/* ---- the count ------------------------------------------------------------------------------- */

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Returns when woken, when `*word` is not `seen`, or when `until` has passed. */
static void futex_wait(_Atomic uint32_t *word, uint32_t seen, struct bh_deadline until)
{
	struct timespec at = bh_deadline_timespec(until);

	syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen,
		until.at_ns == UINT64_MAX ? NULL : &at, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void gate_uncount(void)
{
	if (atomic_fetch_sub(&gate.inside, 1) == 1 && atomic_load(&gate.closed))
		futex_wake(&gate.inside);
}

static bool gate_count(void)
{
	atomic_fetch_add(&gate.inside, 1);
	if (!atomic_load(&gate.closed))
		return true;
	gate_uncount();
	return false;
}

enum bh_gil_admission bh_gil_admit(struct bh_gil_thread *self)
{
	if (self->exempt || self->counted)
		return BH_GIL_PASS;
	/* A thread that nobody let in and that holds the GIL has it from Python. */
	if (!self->pythons && !self->kept && bh_gil_holds())
		self->pythons = true;
	if (self->pythons && bh_gil_holds())
		return BH_GIL_PASS; /* who holds the GIL is never stopped */
	if (!gate_count())
		return BH_GIL_REFUSED;
	if (self->pythons)
		return BH_GIL_WAIT;
	self->counted = true;
	return BH_GIL_SCOPE;
}

void bh_gil_dismiss(struct bh_gil_thread *self, enum bh_gil_admission admission)
{
	switch (admission) {
	case BH_GIL_PASS:
	case BH_GIL_REFUSED:
		return;
	case BH_GIL_SCOPE:
		self->counted = false;
		gate_uncount();
		return;
	case BH_GIL_WAIT:
		gate_uncount();
		return;
	}
	bh_unreachable();
}

void bh_gil_gate_forget(struct bh_gil_thread *self)
{
	if (self->counted)
		gate_uncount();
	self->counted = false;
	self->depth = 0;
}

_Noreturn void bh_gil_hang(void)
{
	sigset_t all;

	/* No handler may run here: this thread may be anywhere in its library's code. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (;;)
		pause();
}

_Noreturn void bh_gil_park(struct bh_gil_thread *self, const void *caller)
{
	char address[96], thread[16];

	bh_gil_ledger_parked(self,
			     self->pythons ? BH_GIL_ACCOUNT_PYTHON : bh_gil_account_raw(caller),
			     bh_gil_clock());
	bh_gil_describe_address(caller, address, sizeof(address));
	bh_log(BH_LOG_INFO, "gil",
	       "a thread came for the GIL after the gate had closed; it is parked for good",
	       BH_STR("thread", bh_gil_ledger_thread_name(self, thread)),
	       BH_STR("caller", address));
	atomic_fetch_add(&gate.parked, 1); /* last: who sees the count finds the row and the line */
	bh_gil_hang();
}

/* ---- entries and scopes ---------------------------------------------------------------------- */

/* Most threads come from one place all the time. */
static uint32_t raw_account(struct bh_gil_thread *self, const void *caller)
{
	uint32_t unloads = atomic_load_explicit(&bh_gil_unloads, memory_order_relaxed);

	if (self->raw_caller != caller || self->raw_unloads != unloads) {
		self->raw_unloads = unloads;
		self->raw_account = bh_gil_account_raw(caller);
		self->raw_caller = caller;
	}
	return self->raw_account;
}

static void entry_begin_outermost(struct bh_gil_thread *self, struct bh_gil_entry *entry,
				  const struct bh_gil_caller *caller)
{
	/* A thread is tagged at most once (RI-2): once it is, its row stays right. */
	if (!self->row || self->plane == BH_PLANE_NONE)
		bh_gil_ledger_know(self);
	/* Python's threads, and main before its first scope, do not come in by an attach: they come
	 * back, and leave next by a detach that closes nothing. */
	entry->kind =
		caller->by_attach && (self->pythons || (self->exempt && self->left_depth == 0))
			? BH_GIL_BARE
			: BH_GIL_OPENS;
	if (caller->site != BH_GIL_SITE_NONE)
		entry->account = caller->site;
	else if (self->pythons || entry->kind == BH_GIL_BARE)
		entry->account = BH_GIL_ACCOUNT_PYTHON;
	else
		entry->account = raw_account(self, caller->address);
	if (self->plane == BH_PLANE_CONTROL) /* GIL-2 */
		bh_gil_police(self, entry->account, caller);
	entry->waits = true;
	entry->left = bh_gil_record_left_by(self->kept);
	entry->asked_ns = bh_gil_clock();
	bh_gil_ledger_does(self, BH_GIL_WAITING, entry->account, entry->asked_ns);
}

/* A scope may have let go of the GIL: coming back to it is a wait on its account. */
static void entry_begin_nested(struct bh_gil_thread *self, struct bh_gil_entry *entry)
{
	entry->kind = BH_GIL_NESTS;
	entry->account = self->account;
	entry->waits = !bh_gil_holds();
	entry->asked_ns = 0;
	if (!entry->waits)
		return;
	entry->left = bh_gil_record_left_by(self->kept);
	entry->asked_ns = bh_gil_clock();
	bh_gil_ledger_does(self, BH_GIL_WAITING, entry->account, entry->asked_ns);
}

/* GIL-6: a raw call that belongs to another's scope, or to Python's own thread, is booked there
 * (GIL-1). Its library's row has it as nested too: else code that is only ever called from Python
 * would not be in the books by its name. */
static void count_by_library(struct bh_gil_thread *self, uint32_t booked_account,
			     const void *caller)
{
	uint32_t account;

	/* The host's own code lets go of the GIL inside of scopes: it is no library. */
	if ((const char *)caller >= &__executable_start && (const char *)caller < &etext)
		return;
	account = raw_account(self, caller);
	if (account != booked_account)
		bh_gil_books_nested(self, account);
}

HOT bool bh_gil_entry_begin(struct bh_gil_thread *self, struct bh_gil_entry *entry,
			    const struct bh_gil_caller *caller)
{
	entry->admission = bh_gil_admit(self);
	if (entry->admission == BH_GIL_REFUSED)
		return false;
	entry->by_attach = caller->by_attach;
	entry->booked = bh_gil_is_booked(caller->site == BH_GIL_SITE_NONE);
	if (self->depth > 0)
		entry_begin_nested(self, entry);
	else
		entry_begin_outermost(self, entry, caller);
	if (caller->site == BH_GIL_SITE_NONE && entry->booked)
		count_by_library(self, entry->account, caller->address);
	return true;
}

static void entry_end_nested(struct bh_gil_thread *self, const struct bh_gil_entry *entry,
			     uint64_t now)
{
	if (entry->waits) {
		if (entry->booked)
			bh_gil_books_return(self, bh_gil_elapsed(entry->asked_ns, now));
		bh_gil_ledger_does(self, BH_GIL_INSIDE, self->account, now);
	}
	if (entry->by_attach)
		return; /* the way back from a detach, not an entry */
	self->depth++;
	if (entry->booked)
		bh_gil_books_nested(self, self->account);
}

/* Looking at the clock is the dearest part of an entry that does not wait. */
static uint64_t entry_got_in(const struct bh_gil_entry *entry)
{
	if (!entry->waits)
		return 0;
	return bh_gil_record_still_left(entry->left) ? entry->asked_ns : bh_gil_clock();
}

HOT void bh_gil_entry_end(struct bh_gil_thread *self, const struct bh_gil_entry *entry)
{
	uint64_t now = entry_got_in(entry);

	if (entry->admission == BH_GIL_WAIT)
		bh_gil_dismiss(self, entry->admission);
	if (entry->kind == BH_GIL_NESTS) {
		entry_end_nested(self, entry, now);
		return;
	}
	if (entry->booked)
		bh_gil_books_entry(self, entry->account, bh_gil_elapsed(entry->asked_ns, now));
	if (entry->kind == BH_GIL_BARE) {
		bh_gil_ledger_does(self, BH_GIL_OUTSIDE, 0, now);
		return;
	}
	self->account = entry->account;
	self->depth = 1;
	self->by_attach = entry->by_attach;
	self->since_ns = now;
	bh_gil_ledger_does(self, BH_GIL_INSIDE, self->account, now);
}

HOT void bh_gil_scope_close(struct bh_gil_thread *self)
{
	uint64_t now;

	if (self->depth == 0 || --self->depth > 0)
		return;
	now = bh_gil_clock();
	if (bh_gil_is_booked(self->account >= BH_GIL_SITES_MAX))
		bh_gil_books_inside(self, bh_gil_elapsed(self->since_ns, now));
	bh_gil_ledger_does(self, BH_GIL_OUTSIDE, 0, now);
	if (self->counted)
		bh_gil_dismiss(self, BH_GIL_SCOPE);
}

static bh_status raise_shutdown(struct bh_error *err, bh_gil_site site)
{
	return bh_raise(err, -ESHUTDOWN, "gil.shutdown", BH_STR("site", bh_gil_site_name(site)));
}

bh_status bh_gil_enter(bh_gil_site site, const char *caller, struct bh_gil_scope *scope,
		       struct bh_error *err)
{
	struct bh_gil_thread *self = &bh_gil_self;
	const struct bh_gil_caller who = { .site = site,
					   .where = caller,
					   .address = __builtin_return_address(0) };
	struct bh_gil_entry entry;

	if (!bh_gil_site_exists(site))
		return bh_raise(err, -EINVAL, "gil.site_unknown", BH_INT("site", site));
	if (!bh_gil_entry_begin(self, &entry, &who))
		return raise_shutdown(err, site);
	scope->site = site;
	scope->outermost = entry.kind == BH_GIL_OPENS;
	scope->attached = scope->outermost && self->kept;
	scope->ensure = 0;
	if (scope->attached)
		bh_gil_real_restore(self->kept);
	else
		scope->ensure = bh_gil_real_ensure();
	bh_gil_entry_end(self, &entry);
	scope->since_ns = self->since_ns;
	return 0;
}

void bh_gil_leave(struct bh_gil_scope *scope)
{
	struct bh_gil_thread *self = &bh_gil_self;

	if (scope->attached)
		bh_gil_real_save();
	else
		bh_gil_real_release(scope->ensure);
	if (scope->outermost && self->depth != 1) {
		/* A PyGILState_Ensure without its Release, inside: it must not keep the gate
		 * open. */
		bh_log(BH_LOG_WARNING, "gil", "raw calls inside a scope were not balanced",
		       BH_STR("site", bh_gil_site_name(scope->site)), BH_INT("depth", self->depth));
		self->depth = 1;
	}
	bh_gil_scope_close(self);
}

/* ---- main ------------------------------------------------------------------------------------ */

void bh_gil_adopt_main(void)
{
	bh_gil_self.exempt = true;
	bh_gil_self.pythons = false; /* as which it was seen while the interpreter came up */
	bh_gil_ledger_know(&bh_gil_self);
}

static void main_set_kept(struct bh_gil_thread *self, struct _ts *state)
{
	if (self->kept == state)
		return;
	self->kept = state;
	bh_gil_ledger_keeps(self);
}

void bh_gil_interpreter_up(void)
{
	struct bh_gil_thread *self = &bh_gil_self;

	bh_gil_adopt_main();
	main_set_kept(self, PyThreadState_Get());
	bh_gil_record_open();
	bh_gil_ticks_settle();
	if (self->depth == 0)
		bh_gil_main_enter(BH_SITE_BOOTSTRAP);
}

void bh_gil_interpreter_down(void)
{
	bh_gil_record_close();
}

void bh_gil_main_leave(void)
{
	struct bh_gil_thread *self = &bh_gil_self;

	assert(self->exempt);
	/* A loop may run below another scope of main's; that one is there again after the enter. */
	self->left_depth = self->depth;
	if (bh_gil_holds())
		main_set_kept(self, bh_gil_real_save());
	if (self->depth > 0) {
		self->depth = 1;
		bh_gil_scope_close(self);
	}
}

void bh_gil_main_enter(bh_gil_site site)
{
	struct bh_gil_thread *self = &bh_gil_self;
	const struct bh_gil_caller who = { .site = site, .address = __builtin_return_address(0) };
	struct bh_gil_entry entry;
	uint32_t depth = self->left_depth > self->depth ? self->left_depth : self->depth;

	assert(self->exempt && self->kept);
	self->left_depth = 0;
	if (self->depth > 0) { /* from one site to the next without letting go */
		self->depth = 1;
		bh_gil_scope_close(self);
	}
	if (!bh_gil_entry_begin(self, &entry, &who))
		bh_unreachable(); /* main is exempt */
	if (!bh_gil_holds())
		bh_gil_real_restore(self->kept);
	bh_gil_entry_end(self, &entry);
	if (depth > 1)
		self->depth = depth;
}

bh_gil_site bh_gil_main_switch(bh_gil_site site)
{
	struct bh_gil_thread *self = &bh_gil_self;
	bh_gil_site before = self->depth > 0 && self->account < BH_GIL_SITES_MAX ? self->account
										 : BH_GIL_SITE_NONE;

	assert(self->exempt && bh_gil_holds());
	bh_gil_main_enter(site);
	return before;
}

void bh_gil_main_is_coarse(void)
{
	bh_gil_ledger_coarse(&bh_gil_self);
}

void bh_gil_force_unsanctioned(void)
{
	struct bh_gil_thread *self = &bh_gil_self;
	bh_gil_site before = self->account < BH_GIL_SITES_MAX ? self->account : BH_SITE_TEST;

	assert(self->exempt && self->depth > 0 && bh_gil_holds());
	bh_gil_main_leave();
	self->forced = true;
	bh_gil_main_enter(BH_SITE_WORKER_INIT); /* main is nobody's worker */
	self->forced = false;
	bh_gil_main_leave();
	bh_gil_main_enter(before);
}

/* ---- workers --------------------------------------------------------------------------------- */

bh_status bh_gil_worker_start(struct bh_error *err)
{
	struct bh_gil_thread *self = &bh_gil_self;
	const struct bh_gil_caller who = { .site = BH_SITE_WORKER_INIT,
					   .address = __builtin_return_address(0) };
	struct bh_gil_entry entry;

	if (self->kept)
		return bh_raise(err, -EEXIST, "gil.worker_started_twice");
	if (!bh_gil_entry_begin(self, &entry, &who))
		return raise_shutdown(err, BH_SITE_WORKER_INIT);
	/* Needs no GIL, but must be done by its own thread: 3.11 binds a state to its creator. */
	self->kept = bh_gil_real_new();
	bh_gil_entry_end(self, &entry);
	bh_gil_ledger_keeps(self);
	bh_gil_scope_close(self);
	if (!self->kept)
		return bh_raise(err, -ENOMEM, "gil.thread_state");
	return 0;
}

/* 3.11 and 3.12 keep an entry of `threading._active` for every native thread that ever asked for
 * threading.current_thread(), and the next thread that gets the same pthread_t inherits its
 * name. */
static void forget_in_threading(void)
{
#if PY_VERSION_HEX < 0x030d0000
	PyObject *name = PyUnicode_FromString("threading");
	PyObject *threading = name ? PyImport_GetModule(name) : NULL;
	PyObject *active = threading ? PyObject_GetAttrString(threading, "_active") : NULL;
	PyObject *gone = active ? PyObject_CallMethod(active, "pop", "kO",
						      PyThread_get_thread_ident(), Py_None)
				: NULL;

	/* A nicety: whatever is missing there, the worker ends all the same. */
	PyErr_Clear();
	Py_XDECREF(gone);
	Py_XDECREF(active);
	Py_XDECREF(threading);
	Py_XDECREF(name);
#endif
}

void bh_gil_worker_stop(void)
{
	struct bh_gil_thread *self = &bh_gil_self;
	const struct bh_gil_caller who = { .site = BH_SITE_WORKER_INIT,
					   .address = __builtin_return_address(0) };
	struct bh_gil_entry entry;
	struct _ts *state = self->kept;

	if (!state)
		return;
	if (bh_gil_entry_begin(self, &entry, &who)) {
		bh_gil_real_restore(state);
		bh_gil_entry_end(self, &entry);
		forget_in_threading();
		PyThreadState_Clear(state);
		self->kept = NULL;
		bh_gil_ledger_keeps(self); /* before its address can be another thread's */
		bh_gil_real_delete_current();
		bh_gil_scope_close(self);
		return;
	}
	self->kept = NULL; /* finalization frees it */
	bh_gil_ledger_keeps(self);
}

/* ---- the closing ----------------------------------------------------------------------------- */

/* Names the one who has been in for the longest, and who holds the GIL, for which that one may
 * wait. */
static bh_status raise_stuck(struct bh_error *err, uint32_t inside)
{
	struct bh_gil_inmate inmate = { 0 };
	struct bh_gil_holder holder;
	bh_status st;

	st = bh_raise(err, -ETIMEDOUT, "gil.gate_timeout", BH_INT("inside", inside));
	if (bh_gil_ledger_find_inmate(&inmate))
		st = bh_note(err, st, BH_STR("thread", inmate.thread), BH_INT("tid", inmate.tid),
			     BH_STR("site", bh_gil_account_name(inmate.account)),
			     BH_STR("state", inmate.waiting ? "waiting" : "inside"));
	if (inmate.since_ns)
		st = bh_note(err, st,
			     BH_INT("since_ms", (bh_now_ns() - inmate.since_ns) / BH_NS_PER_MS));
	bh_gil_holder_read(&holder);
	if (holder.held)
		st = bh_note(err, st, BH_STR("holder", holder.thread),
			     BH_INT("holder_tid", holder.tid));
	return st;
}

bh_status bh_gil_gate_close(struct bh_deadline until, struct bh_error *err)
{
	uint32_t inside;

	assert(!bh_gil_holds()); /* whom it waits for may need the GIL to leave */
	atomic_store(&gate.closed, true);
	while ((inside = atomic_load(&gate.inside)) != 0) {
		if (bh_deadline_passed(until))
			return raise_stuck(err, inside);
		futex_wait(&gate.inside, inside, until);
	}
	return 0;
}

void bh_gil_let_go(void)
{
	struct bh_gil_thread *self = &bh_gil_self;

	if (bh_gil_holds())
		bh_gil_real_save();
	if (self->depth > 0)
		bh_gil_ledger_does(self, BH_GIL_OUTSIDE, 0, bh_gil_clock());
	bh_gil_gate_forget(self);
}

bool bh_gil_gate_closed(void)
{
	return atomic_load(&gate.closed);
}

uint64_t bh_gil_parked(void)
{
	return atomic_load(&gate.parked);
}

/* EXIT-5: the other threads are gone, and with them whoever would have left. Nothing in the
 * child may wait for them or be stopped for the parent's sake. */
static void gate_forked(void)
{
	struct bh_gil_thread *self = &bh_gil_self;

	self->exempt = true;
	atomic_store(&gate.closed, false);
	atomic_store(&gate.inside, self->counted ? 1 : 0);
	bh_gil_ledger_forked(self);
}

bh_status bh_gil_init(struct bh_error *err)
{
	static bool done; /* T: main */
	bh_status st;

	if (done)
		return 0;
	st = bh_gil_real_init(err);
	if (st < 0)
		return st;
	bh_gil_ticks_begin();
	st = bh_gil_ledger_init(err);
	if (st < 0)
		return st;
	if (pthread_atfork(NULL, NULL, gate_forked) != 0)
		return bh_raise(err, -ENOMEM, "gil.atfork");
	done = true;
	return 0;
}
