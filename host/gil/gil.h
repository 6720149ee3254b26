/* SPDX-License-Identifier: BSD-3-Clause */
/* gil - every way into the interpreter: sites, the gate, the account, and who truly holds it.
 *
 * No Python type appears here: this header is for files that must not include Python.h. State is
 * process-wide, because interposed C-API functions have nothing to hang it on.
 *
 * Thread: any unless said otherwise. Blocks: only bh_gil_enter, bh_gil_worker_* and the gate's
 * close. Keeps:  GIL-1…GIL-6, GIL-8 (docs/architecture.md). */
#ifndef BH_HOST_GIL_GIL_H
#define BH_HOST_GIL_GIL_H

#include <jansson.h>

#include "host/core/clock.h"
#include "host/core/error.h"
#include "host/core/histogram.h"
#include "host/core/identity.h"

/* The GIL as a capability for clang's analysis. It is never locked by name. */
extern struct BH_CAPABILITY("gil") bh_gil_capability {
	int unused;
} bh_gil;

/* Host sites; plugin sites follow with numbers of their own. */
enum bh_gil_host_site {
	BH_SITE_BOOTSTRAP,     /* main: the interpreter comes up, the package is imported */
	BH_SITE_APP_CONSTRUCT, /* main: an app's module is imported, its object is made */
	BH_SITE_DISPATCH,      /* main: one wake-up of the asyncio loop */
	BH_SITE_DRAIN,	       /* main: a wake-up that resolves outcomes */
	BH_SITE_SUPERVISE,     /* main: the apps are told of an event */
	BH_SITE_RELEASE,       /* main or the courier: references are dropped (GIL-9) */
	BH_SITE_WORKER_INIT,   /* a worker makes or destroys its thread state */
	BH_SITE_ARGUMENT, /* a worker: what a callable returned becomes a native op's argument */
	BH_SITE_PROBE,	  /* the probe measures how long the GIL takes to get */
	BH_SITE_STOP,	  /* main: Python's own end: threads are joined, atexit functions run */
	BH_SITE_CLEANUP,  /* main: the interpreter is taken down */
	BH_SITE_TEST,	  /* tests */
};
#define BH_GIL_HOST_SITES 12

typedef uint32_t bh_gil_site; /* a host site, or what bh_gil_site_add gave */
#define BH_GIL_SITES_MAX 1024
#define BH_GIL_SITE_NONE UINT32_MAX

/* Resolves the real functions behind the interposed ones, finds libpython's text range and checks
 * that the holder record can be read. First thing in main(); idempotent. */
bh_status bh_gil_init(struct bh_error *err) BH_MUST_CHECK;
/* The calling thread is Python's main thread: never stopped by the gate (finalization re-enters).
 */
void bh_gil_adopt_main(void);

/* "plugin.site"; labels are unique, so are names within one. -EEXIST, -ENOSPC. Sites stay for life.
 */
bh_status bh_gil_site_add(const char *label, const char *name, enum bh_site_policy policy,
			  bh_gil_site *ret_site, struct bh_error *err) BH_MUST_CHECK;
const char *bh_gil_site_name(bh_gil_site site);

/* [gil] ledger. FULL: sites and raw calls, these by library. SITES: raw calls pass the gate and the
 * policy but are not booked. OFF: nothing is booked and no clock is read; the gate, the policy
 * (unsanctioned entries are counted and logged) and the holder's name remain. Before threads are
 * made. */
enum bh_gil_ledger { BH_GIL_LEDGER_FULL, BH_GIL_LEDGER_SITES, BH_GIL_LEDGER_OFF };
void bh_gil_set_ledger(enum bh_gil_ledger ledger);

enum bh_gil_unsanctioned { BH_GIL_COUNT, BH_GIL_LOG, BH_GIL_ABORT };
void bh_gil_set_unsanctioned(enum bh_gil_unsanctioned what);
/* For fitness tests (GIL-4). force: main, inside its scope: leaves it, takes the GIL once where it
 * may not, and goes back to where it was: counted and logged, but never an abort. reset: the count
 * and each account's begin at 0 again. */
void bh_gil_force_unsanctioned(void);
void bh_gil_reset_unsanctioned(void);

/* One scope under the GIL; lives on the stack of its thread; strictly nested. */
struct bh_gil_scope {
	bh_gil_site site;
	bool outermost; /* a nested scope is counted as such and attributed to the outermost (GIL-1)
			 */
	bool attached;	/* this scope attached the thread state, its leave detaches */
	uint32_t ensure;   /* PyGILState_STATE when the thread keeps no state of its own */
	uint64_t since_ns; /* by the ledger's own clock; 0 with [gil] ledger = off */
};

/* Enters the interpreter. -ESHUTDOWN once the gate has closed (GIL-5). A control-plane thread whose
 * outermost entry is at a data-only site is counted as unsanctioned (GIL-2, GIL-4) and let in.
 * `caller`: "file:line" of a host's, or NULL to have the return address. */
bh_status bh_gil_enter(bh_gil_site site, const char *caller, struct bh_gil_scope *scope,
		       struct bh_error *err) BH_MUST_CHECK;
void bh_gil_leave(struct bh_gil_scope *scope);
#define BH_HERE_(line) __FILE__ ":" #line
#define BH_HERE__(line) BH_HERE_(line)
#define BH_HERE BH_HERE__(__LINE__)

/* Main's wait (GIL-1): leave the present outermost scope and let go of the GIL, then enter at
 * another site. For the asyncio selector. Main only. */
void bh_gil_main_leave(void);
void bh_gil_main_enter(bh_gil_site site);

/* Main, inside a scope and holding the GIL: its outermost scope ends and one at `site` begins,
 * without letting go of the GIL. Returns the site that it was at (BH_GIL_SITE_NONE: none), to go
 * back to. */
bh_gil_site bh_gil_main_switch(bh_gil_site site);

/* Main runs a loop that does not leave and enter by these: its row says so from now on. */
void bh_gil_main_is_coarse(void);

/* The interpreter is up, main holds the GIL: main's scope at host.bootstrap begins, and the
 * holder's record may be read. Main, right after the initialization. A record that does not name
 * main as the holder is not one we understand: it is logged and never read. */
void bh_gil_interpreter_up(void);
/* The record must not be read any longer. Main, right before Py_FinalizeEx, after the gate has
 * closed. */
void bh_gil_interpreter_down(void);

/* A pool worker keeps one thread state from start to stop (GIL-8). On the worker itself.
 * start: -ESHUTDOWN once the gate has closed. stop: leaves the state to finalization then. */
bh_status bh_gil_worker_start(struct bh_error *err) BH_MUST_CHECK;
void bh_gil_worker_stop(void);

/* ---- the gate -------------------------------------------------------------------------------- */

/* Closes it for good and waits until nobody is inside or waiting. Main, without the GIL.
 * -ETIMEDOUT names who is still in: then the interpreter must not be finalized. */
bh_status bh_gil_gate_close(struct bh_deadline until, struct bh_error *err) BH_MUST_CHECK;
bool bh_gil_gate_closed(void);
/* The calling thread is in exit(): lets go of the GIL if it holds it, and is counted no more. Raw
 * calls of exit handlers come in as anybody's. */
void bh_gil_let_go(void);
/* Whether the thread `tid` is inside or waiting for the interpreter (EXIT-4). */
bool bh_gil_thread_is_in(uint32_t tid);
uint64_t bh_gil_parked(void); /* raw callers parked for ever after the gate closed */
uint64_t bh_gil_unsanctioned_count(void);

/* ---- who holds it ---------------------------------------------------------------------------- */

struct bh_gil_holder {
	bool held;
	uint32_t tid;	     /* kernel id of the holder's thread; 0 unknown */
	bh_gil_site site;    /* its outermost site, or BH_GIL_SITE_NONE (Python's own, raw) */
	const char *account; /* what it is booked under: "label.site", "python", "raw:libx.so";
				for good */
	uint64_t since_ns;   /* monotonic; when the watchdog first saw it, or its scope began; 0:
				unknown ([gil] ledger = off) */
	struct bh_identity identity; /* plane none when the host does not know the thread */
	char thread[16];
};

/* The interpreter's own record, read without the GIL (GIL-6). */
void bh_gil_holder_read(struct bh_gil_holder *ret_holder);
/* One sample, by the watchdog every `elapsed_ns`: adds that share to the holder's site.
 * False: nobody held it. */
bool bh_gil_sample(uint64_t elapsed_ns);
/* GET /v1/gil; any thread; never blocks. */
json_t *bh_gil_render(void *arg);
/* Its parts, for reports. Thread: any; never block. NULL without memory.
 * holder: {thread, tid, plane, label, site, since_s, library}, or null when nobody holds it;
 * `library` is there for raw callers. waiters: [{thread, tid, plane, label, site, since_s}], the
 * one that has waited for the longest first. */
json_t *bh_gil_render_holder(void);
json_t *bh_gil_render_waiters(void);

/* ---- the books ------------------------------------------------------------------------------- */

struct bh_gil_times {
	const struct bh_histogram *histogram; /* its n is the number of times; lives in `sum` */
	uint64_t total_ns, max_ns;
	uint64_t max_at_ns;  /* monotonic; 0: unknown (two maxima met) */
	char max_thread[16]; /* whose it was; "" unknown */
	uint32_t max_tid;
	struct bh_histogram sum; /* of all threads, at the moment of reading */
};

/* One account on one plane. Not to be copied: its histograms point into it. */
struct bh_gil_stats {
	const char *account; /* "label.site", "host.site", "python", "raw:libx.so"; for good */
	const char *policy;  /* "control-allowed", "data-only", "python" */
	enum bh_plane plane;
	uint64_t entries, nested, unsanctioned, held_ns;
	struct bh_gil_times wait, inside;
};
/* What has been used so far, one after the other; `*cursor` begins at 0. Thread: any; never blocks.
 */
bool bh_gil_stats_next(uint32_t *cursor, struct bh_gil_stats *ret_stats);

#endif
