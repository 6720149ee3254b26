/* SPDX-License-Identifier: BSD-3-Clause */
/* internal - what the files of host/gil share: one thread as the gate sees it, the ways in and
 * out, the real functions behind the interposed ones, and the ledger's entries. Nobody else
 * includes this.
 *
 * Thread: each about itself unless said otherwise. */
#ifndef BH_HOST_GIL_INTERNAL_H
#define BH_HOST_GIL_INTERNAL_H

#include <stdatomic.h>

#include "host/gil/gil.h"

struct _ts; /* PyThreadState, for files that do not include Python.h */
struct bh_gil_row;
struct bh_gil_book;

/* What an entry is booked under. Numbers below BH_GIL_SITES_MAX are sites. */
/* Threads that Python made, and main before its first scope. */
#define BH_GIL_ACCOUNT_PYTHON BH_GIL_SITES_MAX
/* Whoever holds the GIL without a row, once there are threads that have found none. */
#define BH_GIL_ACCOUNT_UNKNOWN (BH_GIL_SITES_MAX + 1)
/* Scopes opened by the raw C-API, one number a library. */
#define BH_GIL_ACCOUNT_RAW (BH_GIL_SITES_MAX + 2)
#define BH_GIL_RAW_LIBRARIES 63
#define BH_GIL_ACCOUNTS (BH_GIL_ACCOUNT_RAW + BH_GIL_RAW_LIBRARIES)

/* ---- one thread ------------------------------------------------------------------------------ */

struct bh_gil_thread {
	struct bh_gil_row *row;	   /* its line in the ledger; NULL before its first entry */
	_Atomic uint64_t *doing;   /* in its row, see bh_gil_doing_pack(); A: release */
	struct bh_gil_book *book;  /* the one it wrote to last */
	struct bh_gil_book *books; /* all of its own */
	struct _ts *kept;	/* the thread state it keeps for life (GIL-8); main: the main one */
	uint64_t since_ns;	/* when the outermost scope got in */
	uint32_t account;	/* the outermost scope's (GIL-1); valid while depth > 0 */
	uint32_t raw_account;	/* what its last raw call was booked under, */
	const void *raw_caller; /* and where that came from, */
	uint32_t raw_unloads;	/* and bh_gil_unloads at that time */
	uint32_t depth;		/* open scopes, the outermost first */
	uint32_t left_depth; /* main, between its leave and its enter: the depth to come back to */
	enum bh_plane plane; /* as far as known: a thread is tagged at most once (RI-2) */
	bool by_attach;	 /* the outermost scope was opened by an attach: its opposite closes it */
	bool counted;	 /* it is in the gate's count */
	bool exempt;	 /* main: never stopped, never counted */
	bool rowless;	 /* it has found all rows taken */
	bool forced;	 /* an unsanctioned entry that a test asked for */
	bool pythons;	 /* Python made this thread: CPython's own rules hold for it */
	bool forwarding; /* inside a real function: what arrives from there is not a caller of ours
			  */
};

extern __thread struct bh_gil_thread bh_gil_self;

/* ---- gate.c: the ways in and out ------------------------------------------------------------- */

enum bh_gil_admission {
	BH_GIL_PASS,	/* nothing to undo: exempt, counted already, or holding the GIL */
	BH_GIL_SCOPE,	/* counted from now until its outermost scope ends */
	BH_GIL_WAIT,	/* a thread of Python's: counted until it has the GIL */
	BH_GIL_REFUSED, /* the gate has closed */
};

/* Every BH_GIL_SCOPE or BH_GIL_WAIT is undone by a dismissal, or by the end of the scope it
 * opened. */
enum bh_gil_admission bh_gil_admit(struct bh_gil_thread *self) BH_MUST_CHECK;
void bh_gil_dismiss(struct bh_gil_thread *self, enum bh_gil_admission admission);

/* One entry under way: between the two calls its thread asks the real function for the GIL. */
struct bh_gil_entry {
	enum bh_gil_admission admission;
	enum { BH_GIL_OPENS, BH_GIL_NESTS, BH_GIL_BARE } kind;
	uint64_t asked_ns; /* 0 with [gil] ledger = off */
	uint32_t account;
	uint64_t left; /* see bh_gil_record_left_by() */
	bool waits;    /* false: it holds the GIL already */
	bool booked;   /* as [gil] ledger says */
	bool by_attach;
};

struct bh_gil_caller {
	bh_gil_site site;  /* BH_GIL_SITE_NONE: raw, booked under the library of `address` */
	const char *where; /* "file:line", or NULL */
	const void *address;
	bool by_attach; /* Restore, Acquire or Swap rather than Ensure or a host's scope */
};

/* false: the gate has closed; nothing was begun. */
bool bh_gil_entry_begin(struct bh_gil_thread *self, struct bh_gil_entry *entry,
			const struct bh_gil_caller *caller) BH_MUST_CHECK;
void bh_gil_entry_end(struct bh_gil_thread *self, const struct bh_gil_entry *entry);
/* The innermost scope ends; when it is the outermost, the GIL has been let go of. */
void bh_gil_scope_close(struct bh_gil_thread *self);
/* Stops a raw caller for ever, with all signals blocked: it can be given neither the GIL nor an
 * error. */
_Noreturn void bh_gil_park(struct bh_gil_thread *self, const void *caller);
_Noreturn void bh_gil_hang(void);
/* Whoever ended while it was counted is counted no more. */
void bh_gil_gate_forget(struct bh_gil_thread *self);

/* ---- interpose.c: the real functions, called so that they are told from raw calls -------------
 */

bh_status bh_gil_real_init(struct bh_error *err) BH_MUST_CHECK;
/* How often a library was closed: an address may be another library's since. A: relaxed; whoever
 * calls from a new library was handed its address by a thread that had seen the old one close. */
extern _Atomic uint32_t bh_gil_unloads;
uint32_t bh_gil_real_ensure(void);
void bh_gil_real_release(uint32_t state);
void bh_gil_real_restore(struct _ts *state);
struct _ts *bh_gil_real_save(void);
struct _ts *bh_gil_real_new(void); /* of the main interpreter; NULL without memory */
void bh_gil_real_delete_current(void);
/* Whether the calling thread holds the GIL. Also right while the interpreter comes up and goes. */
bool bh_gil_holds(void);

/* ---- sites.c --------------------------------------------------------------------------------- */

bool bh_gil_site_exists(bh_gil_site site);
const char *bh_gil_account_name(uint32_t account);
const char *bh_gil_account_policy(uint32_t account);
/* What is in use: sites first, then Python's, then the raw libraries. `*cursor` begins at 0. */
bool bh_gil_account_next(uint32_t *cursor, uint32_t *ret_account);
uint32_t bh_gil_account_raw(const void *address); /* Blocks: no. */
/* "libx.so+0x1234" */
void bh_gil_describe_address(const void *address, char *out, size_t size);
/* GIL-2, GIL-4: before the thread waits for the GIL, at its outermost entry. */
void bh_gil_police(struct bh_gil_thread *self, uint32_t account,
		   const struct bh_gil_caller *caller);

/* ---- ledger.c -------------------------------------------------------------------------------- */

bh_status bh_gil_ledger_init(struct bh_error *err) BH_MUST_CHECK;
/* Makes sure that the thread has a row that says who it is now. */
void bh_gil_ledger_know(struct bh_gil_thread *self);
void bh_gil_ledger_keeps(struct bh_gil_thread *self); /* self->kept has changed */
void bh_gil_ledger_parked(struct bh_gil_thread *self, uint32_t account, uint64_t now_ns);
void bh_gil_ledger_coarse(struct bh_gil_thread *self);
void bh_gil_ledger_forked(struct bh_gil_thread *self); /* in the child: only this thread is left */
const char *bh_gil_ledger_thread_name(struct bh_gil_thread *self, char out[16]);
/* The same as its row has it, without asking the system; returns its kernel id, 0 without a row. */
uint32_t bh_gil_ledger_who(struct bh_gil_thread *self, char out[16]);

/* The name of a thread that need not have a row, from procfs, which does not block; plain, "" when it
 * cannot be had. Thread: any. */
void bh_gil_ledger_read_name(uint32_t tid, char out[16]);

enum bh_gil_row_state { BH_GIL_OUTSIDE, BH_GIL_WAITING, BH_GIL_INSIDE, BH_GIL_PARKED };

static_assert(BH_GIL_ACCOUNTS <= 1 << 12, "an account fits the 12 bits of a row's word");

/* What a thread does, as one word, so that a reader never mixes two moments: the state, whether the
 * closing gate waits for it, the account, and since when, rounded down to 1024 ns. */
static inline uint64_t bh_gil_doing_pack(enum bh_gil_row_state state, bool counted,
					 uint32_t account, uint64_t since_ns)
{
	return (uint64_t)state | (uint64_t)counted << 2 | (uint64_t)account << 3 |
	       since_ns >> 10 << 15;
}

static inline void bh_gil_ledger_does(struct bh_gil_thread *self, enum bh_gil_row_state state,
				      uint32_t account, uint64_t now_ns)
{
	if (self->doing)
		atomic_store_explicit(self->doing,
				      bh_gil_doing_pack(state, self->counted, account, now_ns),
				      memory_order_release);
}

/* What a row says at one moment. */
struct bh_gil_view {
	char thread[16];
	struct bh_identity identity;
	uint32_t tid;
	enum bh_gil_row_state state;
	uint32_t account;  /* unless outside */
	uint64_t since_ns; /* 0: unknown */
	bool coarse;
};
bool bh_gil_row_view(uint32_t *cursor, struct bh_gil_view *ret_view); /* Thread: any. */
/* The holder, as a row would say it. False: nobody holds the GIL. */
bool bh_gil_holder_view(struct bh_gil_view *ret_view); /* Thread: any. */
uint64_t bh_gil_sampled_ns(void);
uint32_t bh_gil_rowless(void); /* threads that have found all rows taken, so far */

/* Somebody whom the closing gate waits for: the one who has been in for the longest. */
struct bh_gil_inmate {
	char thread[16];
	uint32_t tid;
	uint32_t account;
	bool waiting;
	uint64_t since_ns;
};
bool bh_gil_ledger_find_inmate(struct bh_gil_inmate *ret_inmate); /* Thread: any. */

/* ---- books.c --------------------------------------------------------------------------------- */

extern enum bh_gil_ledger bh_gil_mode; /* I: once threads are made */

static inline bool bh_gil_is_booked(bool raw)
{
	return __builtin_expect(bh_gil_mode == BH_GIL_LEDGER_FULL, 1) ||
	       (bh_gil_mode == BH_GIL_LEDGER_SITES && !raw);
}

/* An outermost entry; an inner one; coming back to the GIL inside a scope, and a scope's end, both of
 * the present scope's account. */
void bh_gil_books_entry(struct bh_gil_thread *self, uint32_t account, uint64_t waited_ns);
void bh_gil_books_nested(struct bh_gil_thread *self, uint32_t account);
void bh_gil_books_return(struct bh_gil_thread *self, uint64_t waited_ns);
void bh_gil_books_inside(struct bh_gil_thread *self, uint64_t inside_ns);
void bh_gil_books_unsanctioned(const struct bh_gil_thread *self, uint32_t account);
void bh_gil_books_reset_unsanctioned(void);
void bh_gil_books_held(uint32_t account, enum bh_plane plane, uint64_t ns);
void bh_gil_books_leave(struct bh_gil_thread *self); /* the thread ends */
void bh_gil_books_forked(struct bh_gil_thread *self);
/* Thread: any. False: never used. */
bool bh_gil_books_read(uint32_t account, enum bh_plane plane, struct bh_gil_stats *ret_stats);

uint32_t bh_gil_books_begun(void); /* how many books there are by now; for tests */

/* A maximum, and whose it was. A: seq_cst; the record is odd in `version` while it is written, and
 * belongs to the maximum only if `of_ns` is that. */
struct bh_gil_peak {
	_Atomic uint64_t max_ns;
	_Atomic uint64_t of_ns, at_ns;
	_Atomic uint64_t thread[2];
	_Atomic uint32_t version, tid;
};
/* Thread: any. Blocks: no; when two maxima meet, the record of the higher one may be missing. */
void bh_gil_peak_raise(struct bh_gil_peak *peak, uint64_t ns, uint64_t at_ns, uint32_t tid,
		       const char thread[16]);
/* Fills in max_*. */
void bh_gil_peak_read(const struct bh_gil_peak *peak, struct bh_gil_times *ret_times);

/* ---- ticks.c --------------------------------------------------------------------------------- */

struct bh_gil_ticks {
	_Atomic int64_t scale; /* A: release after the others; ns a tick, times 2^32; 0: not used */
	uint64_t base_ticks, base_ns;
};
extern struct bh_gil_ticks bh_gil_ticks;

void bh_gil_ticks_begin(void);	/* main, early */
void bh_gil_ticks_settle(void); /* main, some milliseconds later */

/* The ledger's clock, in ns. Only differences mean anything, and only bh_gil_elapsed() takes them.
 * 0, and no clock is read, with [gil] ledger = off. */
static inline uint64_t bh_gil_clock(void)
{
	if (__builtin_expect(bh_gil_mode == BH_GIL_LEDGER_OFF, 0))
		return 0;
#if defined(__x86_64__)
	int64_t scale = atomic_load_explicit(&bh_gil_ticks.scale, memory_order_acquire);

	if (__builtin_expect(scale != 0, 1)) {
		int64_t ticks = (int64_t)(__builtin_ia32_rdtsc() - bh_gil_ticks.base_ticks);

		return bh_gil_ticks.base_ns + (uint64_t)((__int128)ticks * scale >> 32);
	}
#endif
	return bh_now_ns();
}

/* A counter may be a few ticks behind another CPU's. */
static inline uint64_t bh_gil_elapsed(uint64_t from, uint64_t to)
{
	return to > from ? to - from : 0;
}

/* When that was by CLOCK_MONOTONIC; 0 stays 0. */
uint64_t bh_gil_clock_monotonic(uint64_t at);

/* ---- holder.c: the interpreter's own record (GIL-6) -------------------------------------------
 */

struct bh_gil_record {
	uintptr_t state;   /* the holder's thread state; may be gone by now: never follow it */
	uint64_t switches; /* how often another thread than before took the GIL */
};

/* Thread: any, with or without the GIL. */
void bh_gil_record_open(void);
void bh_gil_record_close(void);
bool bh_gil_record_is_open(void); /* the interpreter is up, and laid out as this was built for */
bool bh_gil_record_read(
	struct bh_gil_record *ret_record); /* false: nobody holds it, or not readable */
/* Not 0: nobody holds the GIL, and `state` was the last to. After that thread has taken it again,
 * still_left says whether nobody else had it in between: then it did not have to wait. */
uint64_t bh_gil_record_left_by(const struct _ts *state);
bool bh_gil_record_still_left(uint64_t left);
/* The kernel id in a thread state that may be freed at any moment; 0 when it cannot be had. */
uint32_t bh_gil_record_tid(const struct bh_gil_record *record);

#endif
