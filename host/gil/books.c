/* SPDX-License-Identifier: BSD-3-Clause */
/* books - how often, for how long and by whom the GIL was used, by account and plane.
 *
 * A book is one thread's at one account: it alone writes there, by plain loads and stores, and a
 * reader adds up all books of an account. A thread that ends leaves its books, with what is in
 * them, to the next one that comes to the same account on the same plane. When all books are taken
 * threads share one for each account and plane, by atomic additions: slower, never wrong.
 *
 * Thread: any about itself; any reads. Owns: the books, for good; no path allocates or calls the
 * system. Keeps: GIL-1, GIL-4. */
#include "config.h"

#include "host/gil/internal.h"

#include <string.h>

/* 4 KiB each, of which a thread touches what it uses. */
#define BOOKS_MAX 2048

struct times {
	_Atomic uint64_t total_ns; /* A: relaxed, statistics only */
	struct bh_gil_peak peak;
	struct bh_histogram histogram;
};

/* A: counters are relaxed, statistics only. */
struct bh_gil_book {
	uint32_t account;    /* I: once on its chain */
	enum bh_plane plane; /* I: likewise */
	bool exclusive;	     /* I: likewise; one thread at a time writes here */
	_Atomic bool
		owned; /* A: acquire by the taker, release by who leaves: hands over all else */
	uint32_t next; /* I: once on its chain; in it, see `chains` */
	struct bh_gil_book *others;	  /* T: owner; its books at other accounts */
	_Atomic uint64_t entries, nested; /* outermost ones, and those inside of them (GIL-1) */
	struct times wait, inside;
} __attribute__((aligned(64)));

static struct bh_gil_book books[BOOKS_MAX];
static _Atomic uint32_t books_used; /* A: relaxed; only claims numbers */
/* The books of an account on a plane: number + 1 of the first, 0 none. A: release after the book. */
static _Atomic uint32_t chains[BH_GIL_ACCOUNTS][BH_PLANES];

/* For those who came when all books were taken. Pages that nobody wrote to cost nothing, so readers
 * ask `used` first. */
static struct bh_gil_book shared_books[BH_GIL_ACCOUNTS][BH_PLANES];
static _Atomic bool shared_used[BH_GIL_ACCOUNTS][BH_PLANES]; /* A: relaxed, never unset */

/* What others than the threads themselves count. A: relaxed, statistics only. */
static struct {
	_Atomic uint64_t unsanctioned; /* whatever [gil] ledger says (GIL-4) */
	_Atomic uint64_t held_ns;      /* from samples of the interpreter's record (GIL-6) */
} tallies[BH_GIL_ACCOUNTS][BH_PLANES];

enum bh_gil_ledger bh_gil_mode = BH_GIL_LEDGER_FULL;

void bh_gil_set_ledger(enum bh_gil_ledger ledger)
{
	bh_gil_mode = ledger;
}

static uint64_t get(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* ---- maxima ---------------------------------------------------------------------------------- */

/* A reader must never see one maximum's value with another's owner: so the record says which value
 * it belongs to, and is skipped rather than waited for when another is being written. */
static void peak_record(struct bh_gil_peak *peak, uint64_t ns, uint64_t at_ns, uint32_t tid,
			const char thread[16])
{
	uint32_t version = atomic_load(&peak->version);
	uint64_t words[2];

	if ((version & 1) || !atomic_compare_exchange_strong(&peak->version, &version, version + 1))
		return;
	if (atomic_load(&peak->of_ns) < ns) {
		memcpy(words, thread, sizeof(words));
		atomic_store(&peak->of_ns, ns);
		atomic_store(&peak->at_ns, at_ns);
		atomic_store(&peak->tid, tid);
		atomic_store(&peak->thread[0], words[0]);
		atomic_store(&peak->thread[1], words[1]);
	}
	atomic_store(&peak->version, version + 2);
}

void bh_gil_peak_raise(struct bh_gil_peak *peak, uint64_t ns, uint64_t at_ns, uint32_t tid,
		       const char thread[16])
{
	uint64_t seen = get(&peak->max_ns);

	do {
		if (seen >= ns)
			return;
	} while (!atomic_compare_exchange_weak(&peak->max_ns, &seen, ns));
	peak_record(peak, ns, at_ns, tid, thread);
}

void bh_gil_peak_read(const struct bh_gil_peak *peak, struct bh_gil_times *ret_times)
{
	uint64_t words[2], of_ns, at_ns;
	uint32_t version, tid;

	ret_times->max_ns = atomic_load(&peak->max_ns);
	ret_times->max_at_ns = 0;
	ret_times->max_tid = 0;
	ret_times->max_thread[0] = '\0';
	version = atomic_load(&peak->version);
	of_ns = atomic_load(&peak->of_ns);
	at_ns = atomic_load(&peak->at_ns);
	tid = atomic_load(&peak->tid);
	words[0] = atomic_load(&peak->thread[0]);
	words[1] = atomic_load(&peak->thread[1]);
	if ((version & 1) || atomic_load(&peak->version) != version || of_ns != ret_times->max_ns)
		return;
	ret_times->max_at_ns = at_ns;
	ret_times->max_tid = tid;
	memcpy(ret_times->max_thread, words, sizeof(words));
	ret_times->max_thread[15] = '\0';
}

/* ---- a thread's books ------------------------------------------------------------------------ */

static struct bh_gil_book *book_take_left(uint32_t account, enum bh_plane plane)
{
	uint32_t link = atomic_load_explicit(&chains[account][plane], memory_order_acquire);

	for (; link; link = books[link - 1].next) {
		struct bh_gil_book *book = &books[link - 1];

		if (!atomic_load_explicit(&book->owned, memory_order_relaxed) &&
		    !atomic_exchange_explicit(&book->owned, true, memory_order_acquire))
			return book;
	}
	return NULL;
}

static struct bh_gil_book *book_begin(uint32_t account, enum bh_plane plane)
{
	uint32_t n = atomic_load_explicit(&books_used, memory_order_relaxed), link;
	struct bh_gil_book *book;

	do {
		if (n == BOOKS_MAX)
			return NULL;
	} while (!atomic_compare_exchange_weak_explicit(
		&books_used, &n, n + 1, memory_order_relaxed, memory_order_relaxed));
	book = &books[n];
	book->account = account;
	book->plane = plane;
	book->exclusive = true;
	atomic_store_explicit(&book->owned, true, memory_order_relaxed);
	link = atomic_load_explicit(&chains[account][plane], memory_order_relaxed);
	do
		book->next = link;
	while (!atomic_compare_exchange_weak_explicit(&chains[account][plane], &link, n + 1,
						      memory_order_release, memory_order_relaxed));
	return book;
}

/* The first time that a thread comes by an account, or when it goes from one to another. */
static __attribute__((noinline)) struct bh_gil_book *book_find(struct bh_gil_thread *self,
							       uint32_t account)
{
	struct bh_gil_book *book = self->books;

	while (book && (book->account != account || book->plane != self->plane))
		book = book->others;
	/* Only a thread with a row is noticed when it ends, and then gives its books back. */
	if (!book && self->row) {
		book = book_take_left(account, self->plane);
		if (!book)
			book = book_begin(account, self->plane);
		if (book) {
			book->others = self->books;
			self->books = book;
		}
	}
	if (book) {
		self->book = book;
		return book;
	}
	atomic_store_explicit(&shared_used[account][self->plane], true, memory_order_relaxed);
	return &shared_books[account][self->plane];
}

static struct bh_gil_book *book_of(struct bh_gil_thread *self, uint32_t account)
{
	struct bh_gil_book *book = self->book;

	if (__builtin_expect(book && book->account == account && book->plane == self->plane, 1))
		return book;
	return book_find(self, account);
}

void bh_gil_books_leave(struct bh_gil_thread *self)
{
	struct bh_gil_book *book = self->books;

	self->books = self->book = NULL;
	while (book) {
		struct bh_gil_book *other = book->others;

		book->others = NULL;
		atomic_store_explicit(&book->owned, false, memory_order_release);
		book = other;
	}
}

void bh_gil_books_forked(struct bh_gil_thread *self)
{
	uint32_t used = atomic_load_explicit(&books_used, memory_order_relaxed);

	for (uint32_t i = 0; i < used; i++)
		atomic_store_explicit(&books[i].owned, false, memory_order_relaxed);
	for (struct bh_gil_book *book = self->books; book; book = book->others)
		atomic_store_explicit(&book->owned, true, memory_order_relaxed);
}

/* ---- booking --------------------------------------------------------------------------------- */

static void add(const struct bh_gil_book *book, _Atomic uint64_t *counter, uint64_t n)
{
	if (__builtin_expect(book->exclusive, 1))
		atomic_store_explicit(counter, get(counter) + n, memory_order_relaxed);
	else
		atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void add_times(struct bh_gil_thread *self, const struct bh_gil_book *book,
		      struct times *times, uint64_t ns)
{
	char thread[16];

	add(book, &times->total_ns, ns);
	if (__builtin_expect(book->exclusive, 1))
		bh_histogram_add_alone(&times->histogram, ns);
	else
		bh_histogram_add(&times->histogram, ns);
	if (__builtin_expect(ns > get(&times->peak.max_ns), 0))
		bh_gil_peak_raise(&times->peak, ns, bh_now_ns(), bh_gil_ledger_who(self, thread),
				  thread);
}

void bh_gil_books_entry(struct bh_gil_thread *self, uint32_t account, uint64_t waited_ns)
{
	struct bh_gil_book *book = book_of(self, account);

	add(book, &book->entries, 1);
	add_times(self, book, &book->wait, waited_ns);
}

void bh_gil_books_nested(struct bh_gil_thread *self, uint32_t account)
{
	struct bh_gil_book *book = book_of(self, account);

	add(book, &book->nested, 1);
}

void bh_gil_books_return(struct bh_gil_thread *self, uint64_t waited_ns)
{
	struct bh_gil_book *book = book_of(self, self->account);

	add_times(self, book, &book->wait, waited_ns);
}

void bh_gil_books_inside(struct bh_gil_thread *self, uint64_t inside_ns)
{
	struct bh_gil_book *book = book_of(self, self->account);

	add_times(self, book, &book->inside, inside_ns);
}

void bh_gil_books_unsanctioned(const struct bh_gil_thread *self, uint32_t account)
{
	atomic_fetch_add_explicit(&tallies[account][self->plane].unsanctioned, 1,
				  memory_order_relaxed);
}

void bh_gil_books_reset_unsanctioned(void)
{
	for (uint32_t account = 0; account < BH_GIL_ACCOUNTS; account++)
		for (int plane = 0; plane < BH_PLANES; plane++)
			if (get(&tallies[account][plane].unsanctioned))
				atomic_store_explicit(&tallies[account][plane].unsanctioned, 0,
						      memory_order_relaxed);
}

void bh_gil_books_held(uint32_t account, enum bh_plane plane, uint64_t ns)
{
	if (bh_gil_mode == BH_GIL_LEDGER_OFF ||
	    (bh_gil_mode == BH_GIL_LEDGER_SITES && account >= BH_GIL_ACCOUNT_RAW))
		return;
	atomic_fetch_add_explicit(&tallies[account][plane].held_ns, ns, memory_order_relaxed);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void collect_times(struct bh_gil_times *sum, const struct times *times)
{
	struct bh_gil_times one;

	sum->total_ns += get(&times->total_ns);
	for (uint32_t i = 0; i < BH_HISTOGRAM_BUCKETS; i++) {
		uint64_t n = get(&times->histogram.buckets[i]);

		if (n)
			atomic_store_explicit(&sum->sum.buckets[i], get(&sum->sum.buckets[i]) + n,
					      memory_order_relaxed);
	}
	if (get(&times->peak.max_ns) <= sum->max_ns)
		return;
	bh_gil_peak_read(&times->peak, &one);
	sum->max_ns = one.max_ns;
	sum->max_at_ns = one.max_at_ns;
	sum->max_tid = one.max_tid;
	memcpy(sum->max_thread, one.max_thread, sizeof(sum->max_thread));
}

static void collect(struct bh_gil_stats *stats, const struct bh_gil_book *book)
{
	stats->entries += get(&book->entries);
	stats->nested += get(&book->nested);
	collect_times(&stats->wait, &book->wait);
	collect_times(&stats->inside, &book->inside);
}

static bool in_use(uint32_t account, enum bh_plane plane)
{
	return atomic_load_explicit(&chains[account][plane], memory_order_relaxed) ||
	       atomic_load_explicit(&shared_used[account][plane], memory_order_relaxed) ||
	       get(&tallies[account][plane].held_ns) || get(&tallies[account][plane].unsanctioned);
}

bool bh_gil_books_read(uint32_t account, enum bh_plane plane, struct bh_gil_stats *ret_stats)
{
	uint32_t link;

	if (!in_use(account, plane))
		return false;
	memset(ret_stats, 0, sizeof(*ret_stats));
	ret_stats->account = bh_gil_account_name(account);
	ret_stats->policy = bh_gil_account_policy(account);
	ret_stats->plane = plane;
	ret_stats->unsanctioned = get(&tallies[account][plane].unsanctioned);
	ret_stats->held_ns = get(&tallies[account][plane].held_ns);
	ret_stats->wait.histogram = &ret_stats->wait.sum;
	ret_stats->inside.histogram = &ret_stats->inside.sum;
	link = atomic_load_explicit(&chains[account][plane], memory_order_acquire);
	for (; link; link = books[link - 1].next)
		collect(ret_stats, &books[link - 1]);
	if (atomic_load_explicit(&shared_used[account][plane], memory_order_relaxed))
		collect(ret_stats, &shared_books[account][plane]);
	return true;
}

uint32_t bh_gil_books_begun(void)
{
	return atomic_load_explicit(&books_used, memory_order_relaxed);
}

bool bh_gil_stats_next(uint32_t *cursor, struct bh_gil_stats *ret_stats)
{
	while (*cursor < BH_GIL_ACCOUNTS * BH_PLANES) {
		uint32_t at = (*cursor)++;

		if (bh_gil_books_read(at / BH_PLANES, (enum bh_plane)(at % BH_PLANES), ret_stats))
			return true;
	}
	return false;
}
