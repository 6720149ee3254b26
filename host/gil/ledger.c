/* SPDX-License-Identifier: BSD-3-Clause */
/* ledger - who is where: a row for each thread that uses the GIL, and who holds it now. How much
 * they use it is in books.c, how it is shown in show.c.
 *
 * A thread writes its own row and nobody else's. Readers take no lock and stop no writer: what a
 * thread does fits one word, who it is lies behind a sequence number.
 *
 * Thread: any; bh_gil_sample one at a time (the watchdog). Owns: the rows, for good.
 * Keeps: GIL-1, GIL-4, GIL-6, EXIT-5. */
#include "config.h"

#include "host/gil/internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/core/format.h"
#include "host/core/log.h"

/* Threads; those that come when all rows are taken are counted but not shown. */
#define ROWS_MAX 1024

/* A row's word, taken apart. */
struct doing {
	enum bh_gil_row_state state;
	bool counted; /* the closing gate waits for it */
	uint32_t account;
	uint64_t since_ns; /* rounded down to 1024 ns; written by the ledger's clock, read as
			      CLOCK_MONOTONIC */
};

/* Who a thread is. */
struct who {
	char thread[16];
	struct bh_identity identity;
};
#define WHO_WORDS ((sizeof(struct who) + 7) / 8)

struct bh_gil_row {
	_Atomic bool taken;	  /* A: seq_cst; the claim */
	_Atomic uint32_t tid;	  /* A: release once the row is filled; 0 while it is nobody's */
	_Atomic uint32_t version; /* A: seq_cst; odd while `who` is written */
	_Atomic uint64_t who[WHO_WORDS]; /* A: seq_cst; struct who, by words */
	_Atomic uint64_t doing;		 /* A: release, so that what a thread did before is done */
	_Atomic uintptr_t state;	 /* A: release; the thread state it keeps, while it does */
	_Atomic bool coarse;		 /* A: relaxed; main runs a loop that is not the host's */
} __attribute__((aligned(64)));

static struct bh_gil_row rows[ROWS_MAX];
static _Atomic uint32_t rows_used; /* A: relaxed; no row at or above it was ever taken */
static _Atomic uint32_t rowless;   /* A: relaxed; threads that have found no row, ended ones too */
static pthread_key_t row_key;	   /* I: gives a row back when its thread ends */
static _Atomic bool row_key_made;  /* A: release after row_key */

/* Since when the holder was seen to hold without a switch. Written by the sampler; a reader that
 * meets it in the middle finds no tid, or another, and does without. A: seq_cst. */
static struct {
	_Atomic uint32_t tid;
	_Atomic uint64_t switches;
	_Atomic uint64_t since_ns;
	_Atomic uint64_t sampled_ns;
} sighting;

/* ---- rows ------------------------------------------------------------------------------------ */

static struct doing row_doing(const struct bh_gil_row *row)
{
	uint64_t word = atomic_load_explicit(&row->doing, memory_order_acquire);

	return (struct doing){
		.state = (enum bh_gil_row_state)(word & 3),
		.counted = word >> 2 & 1,
		.account = word >> 3 & 0xfff,
		.since_ns = bh_gil_clock_monotonic(word >> 15 << 10),
	};
}

static void row_write_who(struct bh_gil_row *row)
{
	uint64_t words[WHO_WORDS] = { 0 };
	struct who who = { .identity = *bh_identity_get() };
	uint32_t version = atomic_load(&row->version);

	pthread_getname_np(pthread_self(), who.thread, sizeof(who.thread));
	memcpy(words, &who, sizeof(who));
	atomic_store(&row->version, version + 1);
	for (size_t i = 0; i < WHO_WORDS; i++)
		atomic_store(&row->who[i], words[i]);
	atomic_store(&row->version, version + 2);
}

/* Rows are written twice in a thread's life: a reader that meets that hardly ever meets it
 * again. */
static void row_read_who(const struct bh_gil_row *row, struct who *ret_who)
{
	uint64_t words[WHO_WORDS];

	for (int tries = 0; tries < 8; tries++) {
		uint32_t version = atomic_load(&row->version);

		for (size_t i = 0; i < WHO_WORDS; i++)
			words[i] = atomic_load(&row->who[i]);
		if ((version & 1) == 0 && atomic_load(&row->version) == version) {
			memcpy(ret_who, words, sizeof(*ret_who));
			return;
		}
	}
	*ret_who = (struct who){ .thread = "?" };
}

static struct bh_gil_row *row_claim(void)
{
	for (uint32_t i = 0; i < ROWS_MAX; i++) {
		uint32_t used = atomic_load_explicit(&rows_used, memory_order_relaxed);

		/* A look first: an exchange would take the line from its thread, at each entry of
		 * those that have found no row. */
		if (atomic_load_explicit(&rows[i].taken, memory_order_relaxed) ||
		    atomic_exchange(&rows[i].taken, true))
			continue;
		while (used <= i && !atomic_compare_exchange_weak_explicit(&rows_used, &used, i + 1,
									   memory_order_relaxed,
									   memory_order_relaxed))
			;
		return &rows[i];
	}
	return NULL;
}

static void row_give_back(struct bh_gil_row *row)
{
	atomic_store_explicit(&row->tid, 0, memory_order_release);
	atomic_store_explicit(&row->doing, 0, memory_order_release);
	atomic_store_explicit(&row->state, 0, memory_order_release);
	atomic_store_explicit(&row->coarse, false, memory_order_relaxed);
	atomic_store(&row->taken, false);
}

static struct bh_gil_row *row_next(uint32_t *cursor, uint32_t *ret_tid)
{
	while (*cursor < atomic_load_explicit(&rows_used, memory_order_relaxed)) {
		struct bh_gil_row *row = &rows[(*cursor)++];

		*ret_tid = atomic_load_explicit(&row->tid, memory_order_acquire);
		if (*ret_tid)
			return row;
	}
	return NULL;
}

static struct bh_gil_row *row_find(uint32_t tid)
{
	uint32_t cursor = 0, other;
	struct bh_gil_row *row;

	while ((row = row_next(&cursor, &other)))
		if (other == tid)
			return row;
	return NULL;
}

/* A thread ends. Ended inside a scope (by pthread_exit), it would keep the gate open for ever;
 * only when it took the GIL with it is that right, and then its row stays to say so. */
static void thread_ended(void *own_row)
{
	struct bh_gil_thread *self = &bh_gil_self;
	uint32_t tid = atomic_load_explicit(&self->row->tid, memory_order_relaxed);
	struct bh_gil_holder holder;
	char thread[16];

	(void)own_row;
	if (self->counted || self->depth > 0) {
		bh_gil_holder_read(&holder);
		bh_log(BH_LOG_ERROR, "gil", "a thread ended inside the interpreter",
		       BH_STR("thread", bh_gil_ledger_thread_name(self, thread)),
		       BH_INT("tid", tid), BH_STR("site", bh_gil_account_name(self->account)),
		       BH_STR("gil",
			      holder.held && holder.tid == tid ? "lost with it" : "not held"));
		if (holder.held && holder.tid == tid)
			return;
		bh_gil_gate_forget(self);
	}
	bh_gil_books_leave(self);
	row_give_back(self->row);
	self->row = NULL;
	self->doing = NULL;
}

bh_status bh_gil_ledger_init(struct bh_error *err)
{
	int error = pthread_key_create(&row_key, thread_ended);

	if (error)
		return bh_raise(err, -error, "gil.thread_key");
	atomic_store_explicit(&row_key_made, true, memory_order_release);
	return 0;
}

uint32_t bh_gil_rowless(void)
{
	return atomic_load_explicit(&rowless, memory_order_relaxed);
}

static void row_open(struct bh_gil_thread *self)
{
	struct bh_gil_row *row;

	if (!atomic_load_explicit(&row_key_made, memory_order_acquire))
		return; /* a raw call before main() */
	row = row_claim();
	if (!row) {
		if (!self->rowless)
			atomic_fetch_add_explicit(&rowless, 1, memory_order_relaxed);
		self->rowless = true;
		return;
	}
	if (pthread_setspecific(row_key, row) != 0) {
		row_give_back(row);
		return;
	}
	row_write_who(row);
	atomic_store_explicit(&row->tid, (uint32_t)gettid(), memory_order_release);
	self->row = row;
	self->doing = &row->doing;
}

void bh_gil_ledger_know(struct bh_gil_thread *self)
{
	enum bh_plane plane = self->plane == BH_PLANE_NONE ? bh_identity_get()->plane : self->plane;

	if (self->row && self->plane == plane)
		return;
	self->plane = plane;
	if (self->row)
		row_write_who(self->row); /* tagged since */
	else
		row_open(self);
}

void bh_gil_ledger_keeps(struct bh_gil_thread *self)
{
	if (self->row)
		atomic_store_explicit(&self->row->state, (uintptr_t)self->kept,
				      memory_order_release);
}

void bh_gil_ledger_forked(struct bh_gil_thread *self)
{
	uint32_t used = atomic_load_explicit(&rows_used, memory_order_relaxed);

	for (uint32_t i = 0; i < used; i++)
		if (&rows[i] != self->row)
			row_give_back(&rows[i]);
	if (self->row)
		atomic_store_explicit(&self->row->tid, (uint32_t)gettid(), memory_order_release);
	bh_gil_books_forked(self);
}

void bh_gil_ledger_coarse(struct bh_gil_thread *self)
{
	if (self->row)
		atomic_store_explicit(&self->row->coarse, true, memory_order_relaxed);
}

uint32_t bh_gil_ledger_who(struct bh_gil_thread *self, char out[16])
{
	struct who who = { .thread = "" };

	if (self->row)
		row_read_who(self->row, &who);
	memcpy(out, who.thread, 16);
	return self->row ? atomic_load_explicit(&self->row->tid, memory_order_relaxed) : 0;
}

const char *bh_gil_ledger_thread_name(struct bh_gil_thread *self, char out[16])
{
	struct who who = { .thread = "?" };

	if (self->row)
		row_read_who(self->row, &who);
	else
		pthread_getname_np(pthread_self(), who.thread, sizeof(who.thread));
	memcpy(out, who.thread, 16);
	return out;
}

/* ---- who is in ------------------------------------------------------------------------------- */

void bh_gil_ledger_parked(struct bh_gil_thread *self, uint32_t account, uint64_t now_ns)
{
	bh_gil_ledger_know(self);
	bh_gil_ledger_does(self, BH_GIL_PARKED, account, now_ns);
}

bool bh_gil_ledger_find_inmate(struct bh_gil_inmate *ret_inmate)
{
	uint32_t cursor = 0, tid;
	struct bh_gil_row *row;
	struct who who;
	bool found = false;

	while ((row = row_next(&cursor, &tid))) {
		struct doing doing = row_doing(row);

		/* Who waits is counted, unless it is main, which is the closer. */
		if (doing.state != BH_GIL_WAITING &&
		    !(doing.state == BH_GIL_INSIDE && doing.counted))
			continue;
		if (found && ret_inmate->since_ns <= doing.since_ns)
			continue;
		row_read_who(row, &who);
		*ret_inmate = (struct bh_gil_inmate){
			.tid = tid,
			.account = doing.account,
			.waiting = doing.state == BH_GIL_WAITING,
			.since_ns = doing.since_ns,
		};
		memcpy(ret_inmate->thread, who.thread, sizeof(ret_inmate->thread));
		found = true;
	}
	return found;
}

/* ---- the holder ------------------------------------------------------------------------------ */

/* The interpreter's record, and what the ledger knows of the thread it names. */
struct holding {
	struct bh_gil_record record;
	struct bh_gil_row *row; /* NULL: a thread that the ledger does not know */
	uint32_t tid;		/* 0: unknown */
	uint32_t account;
	bool in_scope;
	uint64_t since_ns; /* of its scope */
};

static void holding_find_row(struct holding *holding)
{
	uint32_t cursor = 0, tid;
	struct bh_gil_row *row;

	/* A state that a thread keeps is its own and alive: no need to ask the kernel. */
	while ((row = row_next(&cursor, &tid)))
		if (atomic_load_explicit(&row->state, memory_order_acquire) ==
		    holding->record.state) {
			holding->row = row;
			holding->tid = tid;
			return;
		}
	holding->tid = bh_gil_record_tid(&holding->record);
	holding->row = holding->tid ? row_find(holding->tid) : NULL;
}

static bool holding_read(struct holding *ret_holding)
{
	struct holding holding = { .account = BH_GIL_ACCOUNT_PYTHON };
	struct doing doing;

	if (!bh_gil_record_read(&holding.record))
		return false;
	holding_find_row(&holding);
	if (holding.row) {
		doing = row_doing(holding.row);
		/* Waiting and yet the holder: it has just got it. */
		holding.in_scope = doing.state == BH_GIL_INSIDE || doing.state == BH_GIL_WAITING;
		if (holding.in_scope)
			holding.account = doing.account;
		holding.since_ns = doing.since_ns;
	} else if (bh_gil_rowless() > 0) {
		holding.account = BH_GIL_ACCOUNT_UNKNOWN; /* perhaps one of Python's */
	}
	*ret_holding = holding;
	return true;
}

/* When the sampler first saw this very tenure; 0 when it has not yet. */
static uint64_t holding_sighted_ns(const struct holding *holding)
{
	uint64_t since;

	if (atomic_load(&sighting.tid) != holding->tid ||
	    atomic_load(&sighting.switches) != holding->record.switches)
		return 0;
	since = atomic_load(&sighting.since_ns);
	return atomic_load(&sighting.tid) == holding->tid ? since : 0;
}

/* A scope that began without a look at the clock is as old as its first sample. */
static uint64_t holding_since_ns(const struct holding *holding)
{
	uint64_t since = holding->in_scope ? holding->since_ns : 0;

	if (!since)
		since = holding_sighted_ns(holding);
	if (!since && bh_gil_mode != BH_GIL_LEDGER_OFF)
		since = bh_now_ns();
	return since;
}

void bh_gil_ledger_read_name(uint32_t tid, char out[16])
{
	char path[48];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%u/comm", tid);
	fd = tid ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd >= 0) {
		n = read(fd, out, 15);
		close(fd);
	}
	out[n > 0 ? n : 0] = '\0';
	out[strcspn(out, "\n")] = '\0';
	bh_text_make_plain(out);
}

static void holding_describe(const struct holding *holding, struct bh_gil_holder *ret_holder)
{
	struct who who = { 0 };

	if (holding->row)
		row_read_who(holding->row, &who);
	else if (holding->tid)
		bh_gil_ledger_read_name(holding->tid, who.thread);
	*ret_holder = (struct bh_gil_holder){
		.held = true,
		.tid = holding->tid,
		.site = holding->account < BH_GIL_SITES_MAX ? holding->account : BH_GIL_SITE_NONE,
		.account = bh_gil_account_name(holding->account),
		.since_ns = holding_since_ns(holding),
		.identity = who.identity,
	};
	memcpy(ret_holder->thread, who.thread, sizeof(ret_holder->thread));
}

void bh_gil_holder_read(struct bh_gil_holder *ret_holder)
{
	struct holding holding;

	if (holding_read(&holding))
		holding_describe(&holding, ret_holder);
	else
		*ret_holder = (struct bh_gil_holder){ .held = false, .site = BH_GIL_SITE_NONE };
}

static void sighting_update(const struct holding *holding)
{
	if (atomic_load(&sighting.tid) == holding->tid &&
	    atomic_load(&sighting.switches) == holding->record.switches)
		return;
	atomic_store(&sighting.tid, 0);
	atomic_store(&sighting.switches, holding->record.switches);
	atomic_store(&sighting.since_ns, bh_now_ns());
	atomic_store(&sighting.tid, holding->tid);
}

bool bh_gil_sample(uint64_t elapsed_ns)
{
	struct holding holding;
	struct who who = { 0 };

	if (bh_gil_mode != BH_GIL_LEDGER_OFF)
		atomic_fetch_add(&sighting.sampled_ns, elapsed_ns);
	if (!holding_read(&holding)) {
		atomic_store(&sighting.tid, 0);
		return false;
	}
	sighting_update(&holding);
	if (holding.row)
		row_read_who(holding.row, &who);
	bh_gil_books_held(holding.account, who.identity.plane, elapsed_ns);
	return true;
}

uint64_t bh_gil_sampled_ns(void)
{
	return atomic_load(&sighting.sampled_ns);
}

bool bh_gil_row_view(uint32_t *cursor, struct bh_gil_view *ret_view)
{
	uint32_t tid;
	const struct bh_gil_row *row = row_next(cursor, &tid);
	struct doing doing;
	struct who who;

	if (!row)
		return false;
	doing = row_doing(row);
	row_read_who(row, &who);
	*ret_view = (struct bh_gil_view){
		.identity = who.identity,
		.tid = tid,
		.state = doing.state,
		.account = doing.account,
		.since_ns = doing.since_ns,
		.coarse = atomic_load_explicit(&row->coarse, memory_order_relaxed),
	};
	memcpy(ret_view->thread, who.thread, sizeof(ret_view->thread));
	return true;
}

bool bh_gil_holder_view(struct bh_gil_view *ret_view)
{
	struct holding holding;
	struct bh_gil_holder holder;

	if (!holding_read(&holding))
		return false;
	holding_describe(&holding, &holder);
	*ret_view = (struct bh_gil_view){
		.identity = holder.identity,
		.tid = holder.tid,
		.state = BH_GIL_INSIDE,
		.account = holding.account,
		.since_ns = holder.since_ns,
	};
	memcpy(ret_view->thread, holder.thread, sizeof(ret_view->thread));
	return true;
}

bool bh_gil_thread_is_in(uint32_t tid)
{
	const struct bh_gil_row *row = row_find(tid);
	struct doing doing = row ? row_doing(row) : (struct doing){ .state = BH_GIL_OUTSIDE };
	struct bh_gil_holder holder;

	if (doing.state == BH_GIL_INSIDE || doing.state == BH_GIL_WAITING)
		return true;
	bh_gil_holder_read(&holder);
	return holder.held && holder.tid == tid;
}
