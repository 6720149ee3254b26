/* SPDX-License-Identifier: BSD-3-Clause */
/* ledger - the account of the GIL's use, by account and plane and by thread, and who holds it
 * now.
 *
 * A thread writes its own row and nobody else's; all else are counters. Readers take no lock and
 * stop no writer: what a thread does fits one word, who it is lies behind a sequence number.
 *
 * Thread: any; bh_gil_sample one at a time (the watchdog). Owns: rows and counters, for good.
 * Keeps: GIL-1, GIL-4, GIL-6, EXIT-5. */
#include "config.h"

#include "host/gil/internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/core/log.h"

/* Threads; those that come when all rows are taken are counted but not shown. */
#define ROWS_MAX 1024

/* One account on one plane. A: all relaxed, statistics only. A cache line, so that two never
 * share one. */
struct cell {
	_Atomic uint64_t entries; /* outermost */
	_Atomic uint64_t nested;
	_Atomic uint64_t unsanctioned;
	_Atomic uint64_t wait_ns, wait_max_ns;
	_Atomic uint64_t inside_ns, inside_max_ns;
	_Atomic uint64_t held_ns; /* from samples of the interpreter's record */
} __attribute__((aligned(64)));

enum row_state { ROW_OUTSIDE, ROW_WAITING, ROW_INSIDE, ROW_PARKED };

/* What a thread does, as one word, so that a reader never mixes two moments. */
struct doing {
	enum row_state state;
	bool counted; /* the closing gate waits for it */
	uint32_t account;
	uint64_t since_ns; /* rounded down to 1024 ns */
};

static_assert(BH_GIL_ACCOUNTS <= 1 << 12, "an account fits the 12 bits of struct doing's word");

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
} __attribute__((aligned(64)));

static struct cell cells[BH_GIL_ACCOUNTS][BH_PLANES];
static struct bh_gil_row rows[ROWS_MAX];
static _Atomic uint32_t rows_used; /* A: relaxed; no row at or above it was ever taken */
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

static enum bh_gil_ledger books = BH_GIL_LEDGER_FULL; /* I: once threads are made */

void bh_gil_set_ledger(enum bh_gil_ledger ledger)
{
	books = ledger;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static uint64_t doing_pack(const struct doing *doing)
{
	return (uint64_t)doing->state | (uint64_t)doing->counted << 2 |
	       (uint64_t)doing->account << 3 | doing->since_ns >> 10 << 15;
}

static struct doing row_doing(const struct bh_gil_row *row)
{
	uint64_t word = atomic_load_explicit(&row->doing, memory_order_acquire);

	return (struct doing){
		.state = (enum row_state)(word & 3),
		.counted = word >> 2 & 1,
		.account = word >> 3 & 0xfff,
		.since_ns = word >> 15 << 10,
	};
}

static void row_does(struct bh_gil_thread *self, enum row_state state, uint32_t account,
		     uint64_t now)
{
	struct doing doing = { state, self->counted, account, now };

	if (self->row)
		atomic_store_explicit(&self->row->doing, doing_pack(&doing), memory_order_release);
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

		if (atomic_exchange(&rows[i].taken, true))
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
	row_give_back(self->row);
	self->row = NULL;
}

bh_status bh_gil_ledger_init(struct bh_error *err)
{
	int error = pthread_key_create(&row_key, thread_ended);

	if (error)
		return bh_raise(err, -error, "gil.thread_key");
	atomic_store_explicit(&row_key_made, true, memory_order_release);
	return 0;
}

static void row_open(struct bh_gil_thread *self)
{
	struct bh_gil_row *row;

	if (!atomic_load_explicit(&row_key_made, memory_order_acquire))
		return; /* a raw call before main() */
	row = row_claim();
	if (!row)
		return;
	if (pthread_setspecific(row_key, row) != 0) {
		row_give_back(row);
		return;
	}
	row_write_who(row);
	atomic_store_explicit(&row->tid, (uint32_t)gettid(), memory_order_release);
	self->row = row;
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

/* ---- entries --------------------------------------------------------------------------------- */

static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void raise_to(_Atomic uint64_t *maximum, uint64_t value)
{
	uint64_t seen = atomic_load_explicit(maximum, memory_order_relaxed);

	while (seen < value &&
	       !atomic_compare_exchange_weak_explicit(maximum, &seen, value, memory_order_relaxed,
						      memory_order_relaxed))
		;
}

void bh_gil_ledger_waiting(struct bh_gil_thread *self, uint32_t account, uint64_t now_ns)
{
	row_does(self, ROW_WAITING, account, now_ns);
}

void bh_gil_ledger_waited(struct bh_gil_thread *self, uint32_t account, uint64_t waited_ns)
{
	struct cell *cell = &cells[account][self->plane];

	add(&cell->wait_ns, waited_ns);
	raise_to(&cell->wait_max_ns, waited_ns);
}

void bh_gil_ledger_inside(struct bh_gil_thread *self, uint64_t now_ns)
{
	row_does(self, ROW_INSIDE, self->account, now_ns);
}

void bh_gil_ledger_outside(struct bh_gil_thread *self, uint64_t now_ns)
{
	row_does(self, ROW_OUTSIDE, 0, now_ns);
}

void bh_gil_ledger_parked(struct bh_gil_thread *self, uint32_t account, uint64_t now_ns)
{
	bh_gil_ledger_know(self);
	row_does(self, ROW_PARKED, account, now_ns);
}

void bh_gil_ledger_count_entry(struct bh_gil_thread *self, uint32_t account)
{
	add(&cells[account][self->plane].entries, 1);
}

void bh_gil_ledger_count_nested(struct bh_gil_thread *self)
{
	add(&cells[self->account][self->plane].nested, 1);
}

void bh_gil_ledger_count_unsanctioned(struct bh_gil_thread *self, uint32_t account)
{
	add(&cells[account][self->plane].unsanctioned, 1);
}

void bh_gil_ledger_count_inside(struct bh_gil_thread *self, uint64_t inside_ns)
{
	struct cell *cell = &cells[self->account][self->plane];

	add(&cell->inside_ns, inside_ns);
	raise_to(&cell->inside_max_ns, inside_ns);
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
		if (doing.state != ROW_WAITING && !(doing.state == ROW_INSIDE && doing.counted))
			continue;
		if (found && ret_inmate->since_ns <= doing.since_ns)
			continue;
		row_read_who(row, &who);
		*ret_inmate = (struct bh_gil_inmate){
			.tid = tid,
			.account = doing.account,
			.waiting = doing.state == ROW_WAITING,
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
		holding.in_scope = doing.state == ROW_INSIDE || doing.state == ROW_WAITING;
		if (holding.in_scope)
			holding.account = doing.account;
		holding.since_ns = doing.since_ns;
	}
	*ret_holding = holding;
	return true;
}

/* When the sampler first saw this very tenure; now, when it has not yet. */
static uint64_t holding_sighted_ns(const struct holding *holding)
{
	uint64_t since;

	if (atomic_load(&sighting.tid) != holding->tid ||
	    atomic_load(&sighting.switches) != holding->record.switches)
		return bh_now_ns();
	since = atomic_load(&sighting.since_ns);
	return atomic_load(&sighting.tid) == holding->tid ? since : bh_now_ns();
}

/* For a thread that has no row. Reading its name from procfs does not block. */
static void read_thread_name(uint32_t tid, char out[16])
{
	char path[48];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%u/comm", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, out, 15);
		close(fd);
	}
	out[n > 0 ? n : 0] = '\0';
	out[strcspn(out, "\n")] = '\0';
}

static void holding_describe(const struct holding *holding, struct bh_gil_holder *ret_holder)
{
	struct who who = { 0 };

	if (holding->row)
		row_read_who(holding->row, &who);
	else if (holding->tid)
		read_thread_name(holding->tid, who.thread);
	*ret_holder = (struct bh_gil_holder){
		.held = true,
		.tid = holding->tid,
		.site = holding->account < BH_GIL_SITES_MAX ? holding->account : BH_GIL_SITE_NONE,
		.account = bh_gil_account_name(holding->account),
		.since_ns = holding->in_scope ? holding->since_ns : holding_sighted_ns(holding),
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

void bh_gil_sample(uint64_t elapsed_ns)
{
	struct holding holding;
	struct who who = { 0 };

	add(&sighting.sampled_ns, elapsed_ns);
	if (!holding_read(&holding)) {
		atomic_store(&sighting.tid, 0);
		return;
	}
	sighting_update(&holding);
	if (holding.row)
		row_read_who(holding.row, &who);
	add(&cells[holding.account][who.identity.plane].held_ns, elapsed_ns);
}

bool bh_gil_thread_is_in(uint32_t tid)
{
	const struct bh_gil_row *row = row_find(tid);
	struct doing doing = row ? row_doing(row) : (struct doing){ .state = ROW_OUTSIDE };
	struct bh_gil_holder holder;

	if (doing.state == ROW_INSIDE || doing.state == ROW_WAITING)
		return true;
	bh_gil_holder_read(&holder);
	return holder.held && holder.tid == tid;
}

/* ---- GET /v1/gil ----------------------------------------------------------------------------- */

static json_t *json_seconds(uint64_t ns)
{
	return json_real((double)ns / (double)BH_NS_PER_S);
}

static json_t *json_age(uint64_t now, uint64_t since_ns)
{
	return json_seconds(now > since_ns ? now - since_ns : 0);
}

/* A thread's name is bytes of anybody's choice. */
static json_t *json_thread_name(const char *name)
{
	char plain[16] = "";

	for (size_t i = 0; i < sizeof(plain) - 1 && name[i]; i++)
		plain[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
	return json_string(plain);
}

static json_t *render_holder(uint64_t now)
{
	struct bh_gil_holder holder;
	struct holding holding;

	if (!holding_read(&holding))
		return json_null();
	holding_describe(&holding, &holder);
	return json_pack("{s:o, s:i, s:s, s:s, s:s, s:o}", "thread",
			 json_thread_name(holder.thread), "tid", (int)holder.tid, "plane",
			 bh_plane_name(holder.identity.plane), "label", holder.identity.label,
			 "site", bh_gil_account_name(holding.account), "since_s",
			 json_age(now, holder.since_ns));
}

static uint64_t get(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

static uint64_t max_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static json_t *render_site(uint32_t account)
{
	uint64_t entries = 0, nested = 0, unsanctioned = 0, held = 0;
	uint64_t wait = 0, wait_max = 0, inside = 0, inside_max = 0;

	for (int plane = 0; plane < BH_PLANES; plane++) {
		const struct cell *cell = &cells[account][plane];

		entries += get(&cell->entries);
		nested += get(&cell->nested);
		unsanctioned += get(&cell->unsanctioned);
		held += get(&cell->held_ns);
		wait += get(&cell->wait_ns);
		wait_max = max_of(wait_max, get(&cell->wait_max_ns));
		inside += get(&cell->inside_ns);
		inside_max = max_of(inside_max, get(&cell->inside_max_ns));
	}
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "site",
			 bh_gil_account_name(account), "policy", bh_gil_account_policy(account),
			 "entries", (json_int_t)entries, "nested", (json_int_t)nested,
			 "unsanctioned", (json_int_t)unsanctioned, "wait_s", json_seconds(wait),
			 "wait_max_s", json_seconds(wait_max), "inside_s", json_seconds(inside),
			 "inside_max_s", json_seconds(inside_max), "held_s", json_seconds(held));
}

static const char *row_state_name(enum row_state state)
{
	switch (state) {
	case ROW_OUTSIDE:
		return "outside";
	case ROW_WAITING:
		return "waiting";
	case ROW_INSIDE:
		return "inside";
	case ROW_PARKED:
		return "parked";
	}
	bh_unreachable();
}

static json_t *render_thread(const struct bh_gil_row *row, uint32_t tid, uint64_t now)
{
	struct doing doing = row_doing(row);
	struct who who;

	row_read_who(row, &who);
	return json_pack("{s:o, s:i, s:s, s:s, s:s, s:s?, s:o}", "thread",
			 json_thread_name(who.thread), "tid", (int)tid, "plane",
			 bh_plane_name(who.identity.plane), "label", who.identity.label, "state",
			 row_state_name(doing.state), "site",
			 doing.state == ROW_OUTSIDE ? NULL : bh_gil_account_name(doing.account),
			 "since_s", json_age(now, doing.since_ns));
}

static json_t *render_sites(void)
{
	json_t *list = json_array();
	uint32_t cursor = 0, account;

	while (list && bh_gil_account_next(&cursor, &account))
		json_array_append_new(list, render_site(account));
	return list;
}

static json_t *render_threads(uint64_t now)
{
	json_t *list = json_array();
	uint32_t cursor = 0, tid;
	struct bh_gil_row *row;

	while (list && (row = row_next(&cursor, &tid)))
		json_array_append_new(list, render_thread(row, tid, now));
	return list;
}

json_t *bh_gil_render(void *arg)
{
	uint64_t now = bh_now_ns();

	(void)arg;
	return json_pack("{s:o, s:s, s:I, s:I, s:o, s:o, s:o}", "holder", render_holder(now),
			 "gate", bh_gil_gate_closed() ? "closed" : "open", "unsanctioned",
			 (json_int_t)bh_gil_unsanctioned_count(), "parked",
			 (json_int_t)bh_gil_parked(), "sampled_s",
			 json_seconds(get(&sighting.sampled_ns)), "sites", render_sites(),
			 "threads", render_threads(now));
}
