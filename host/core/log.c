/* SPDX-License-Identifier: BSD-3-Clause */
/* log - see log.h.
 *
 * A bounded ring of fixed slots (many producers, one consumer). Each slot carries a sequence
 * number: equal to its position when it is free for that lap, position + 1 when its line is
 * ready. Producers claim a position by compare-and-swap and never wait; the writer thread is
 * woken through a semaphore at most once per sleep. Nothing on a producer's way takes a lock, so
 * a line can be logged with the GIL or any lock held, and in a forked child. The log has no
 * handle (anything may log at any time), hence the file-scope state. Keeps: CP-1. */
#include "config.h"

#include "host/core/log.h"

#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "host/core/format.h"
#include "host/core/sync.h"

#define LINE_SIZE 4096
#define SLOTS 512u
#define PAUSE_NS (BH_NS_PER_MS / 2)

struct slot {
	_Atomic uint64_t seq; /* A: release hands the line over, acquire takes it */
	uint32_t length;
	char line[LINE_SIZE];
};

enum mode {
	MODE_DIRECT, /* no writer: the caller writes */
	MODE_RING,
	MODE_DROP, /* the writer is stuck on stderr: a caller would be too */
};

static struct {
	_Atomic int threshold;	  /* A: relaxed */
	_Atomic int mode;	  /* A: seq_cst, against `inside` (see bh_log_stop) */
	_Atomic uint32_t inside;  /* A: seq_cst; producers between reading mode and publishing */
	_Atomic uint64_t head;	  /* A: relaxed claim; the next position to fill */
	_Atomic uint64_t written; /* A: release; positions before it have reached stderr */
	_Atomic uint64_t dropped; /* A: relaxed */
	uint64_t told;		  /* T: the writer; how many of `dropped` it has told */
	_Atomic bool asleep;	  /* A: seq_cst; the writer found nothing and will wait */
	_Atomic bool stopping;	  /* A: seq_cst */
	sem_t wake;
	struct slot *slots; /* I: from the first start on; kept for late producers */
	pthread_t writer;   /* T: whoever starts and stops */
	bool child_hook;    /* T: the same */
} state = { .threshold = BH_LOG_INFO };

/* ---- rendering ------------------------------------------------------------------------------- */

static const char *level_name(enum bh_log_level level)
{
	switch (level) {
	case BH_LOG_DEBUG:
		return "debug";
	case BH_LOG_INFO:
		return "info";
	case BH_LOG_WARNING:
		return "warning";
	case BH_LOG_ERROR:
		return "error";
	}
	return "error"; /* the number may come from a plugin */
}

static void put_digits(char *out, unsigned n, uint64_t number)
{
	while (n--) {
		out[n] = (char)('0' + number % 10);
		number /= 10;
	}
}

/* 2026-01-02T03:04:05.678Z. Own arithmetic: gmtime_r() takes the C library's time zone lock,
 * which a forked child may find taken for ever. Days to date after H. Hinnant,
 * "chrono-compatible low-level date algorithms". */
static void put_time(struct bh_line *line)
{
	char text[] = "0000-00-00T00:00:00.000Z";
	struct timespec ts;
	uint64_t days, seconds, era, doe, yoe, doy, mp, year;

	clock_gettime(CLOCK_REALTIME, &ts);
	days = (uint64_t)ts.tv_sec / 86400 + 719468;
	seconds = (uint64_t)ts.tv_sec % 86400;
	era = days / 146097;
	doe = days % 146097;
	yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
	doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
	mp = (5 * doy + 2) / 153;
	year = yoe + era * 400 + (mp >= 10);
	put_digits(text, 4, year);
	put_digits(text + 5, 2, mp < 10 ? mp + 3 : mp - 9);
	put_digits(text + 8, 2, doy - (153 * mp + 2) / 5 + 1);
	put_digits(text + 11, 2, seconds / 3600);
	put_digits(text + 14, 2, seconds / 60 % 60);
	put_digits(text + 17, 2, seconds % 60);
	put_digits(text + 20, 3, (uint64_t)ts.tv_nsec / BH_NS_PER_MS);
	bh_line_put(line, text);
}

static void line_begin(struct bh_line *line, char *out, enum bh_log_level level,
		       const char *component, const char *message)
{
	/* One byte is kept for the newline. */
	bh_line_init(line, out, LINE_SIZE - 1);
	bh_line_put(line, "time=");
	put_time(line);
	bh_line_put(line, " level=");
	bh_line_put(line, level_name(level));
	bh_line_put(line, " component=");
	bh_line_put_value(line, component);
	bh_line_put(line, " msg=");
	bh_line_put_quoted(line, message);
}

static size_t line_finish(struct bh_line *line)
{
	size_t length = bh_line_end(line);

	line->out[length] = '\n';
	return length + 1;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Log lines have nowhere else to go: an error of stderr is final for this line. */
static void write_all(const char *text, size_t length)
{
	int saved = errno; /* a caller that logs before it looks at errno is not surprised */

	while (length > 0) {
		ssize_t n = write(STDERR_FILENO, text, length);

		if (n >= 0) {
			text += n;
			length -= (size_t)n;
		} else if (errno == EAGAIN) {
			struct pollfd fd = { .fd = STDERR_FILENO, .events = POLLOUT };

			poll(&fd, 1, 100);
		} else if (errno != EINTR) {
			break;
		}
	}
	errno = saved;
}

static bool ring_push(const char *line, size_t length)
{
	uint64_t at = atomic_load_explicit(&state.head, memory_order_relaxed);
	struct slot *slot;

	for (;;) {
		int64_t lag;

		slot = &state.slots[at % SLOTS];
		lag = (int64_t)(atomic_load_explicit(&slot->seq, memory_order_acquire) - at);
		if (lag < 0)
			return false; /* full: the writer is a lap behind */
		if (lag > 0)
			at = atomic_load_explicit(&state.head, memory_order_relaxed);
		else if (atomic_compare_exchange_weak_explicit(&state.head, &at, at + 1,
							       memory_order_relaxed,
							       memory_order_relaxed))
			break;
	}
	memcpy(slot->line, line, length);
	slot->length = (uint32_t)length;
	/* Seq_cst together with the load of `asleep`: either we see it, or the writer sees the
	 * line. */
	atomic_store(&slot->seq, at + 1);
	if (atomic_load(&state.asleep) && atomic_exchange(&state.asleep, false))
		sem_post(&state.wake);
	return true;
}

static void emit(const char *line, size_t length)
{
	bool pushed = false;
	int mode;

	atomic_fetch_add(&state.inside, 1);
	mode = atomic_load(&state.mode);
	if (mode == MODE_RING)
		pushed = ring_push(line, length);
	atomic_fetch_sub(&state.inside, 1);
	if (mode == MODE_DIRECT)
		write_all(line, length);
	else if (!pushed)
		atomic_fetch_add_explicit(&state.dropped, 1, memory_order_relaxed);
}

static bool ring_ready(uint64_t at)
{
	return atomic_load(&state.slots[at % SLOTS].seq) == at + 1;
}

static void write_dropped(void)
{
	uint64_t dropped = bh_log_dropped();
	char out[LINE_SIZE];
	struct bh_line line;
	struct bh_fact fact = bh_fact_int("lines", (int64_t)(dropped - state.told));

	if (dropped == state.told)
		return;
	state.told = dropped;
	line_begin(&line, out, BH_LOG_WARNING, "log",
		   "lines were dropped: stderr is slower than the log");
	bh_line_put_fact(&line, &fact);
	write_all(out, line_finish(&line));
}

/* Writes what is ready; returns the position it came to. */
static uint64_t ring_drain(uint64_t at)
{
	while (ring_ready(at)) {
		struct slot *slot = &state.slots[at % SLOTS];

		write_all(slot->line, slot->length);
		atomic_store_explicit(&slot->seq, at + SLOTS, memory_order_release);
		at++;
		atomic_store_explicit(&state.written, at, memory_order_release);
		write_dropped();
	}
	return at;
}

static void *writer_main(void *arg)
{
	uint64_t at = atomic_load_explicit(&state.written, memory_order_relaxed);

	(void)arg;
	for (;;) {
		at = ring_drain(at);
		atomic_store(&state.asleep, true);
		if (!ring_ready(at) && !atomic_load(&state.stopping)) {
			/* No deadline: every line and bh_log_stop() post. */
			while (sem_wait(&state.wake) != 0)
				; /* EINTR */
			continue;
		}
		/* Somebody who took the flag has posted or will: take that too. */
		if (!atomic_exchange(&state.asleep, false))
			while (sem_wait(&state.wake) != 0)
				;
		if (!ring_ready(at) && atomic_load(&state.stopping))
			break;
	}
	write_dropped();
	return NULL;
}

/* The child has no writer, and lines that lay in the ring are the parent's (EXIT-5). */
static void forked_child(void)
{
	atomic_store(&state.mode, MODE_DIRECT);
}

/* ---- public ---------------------------------------------------------------------------------- */

static bh_status ring_make(struct bh_error *err)
{
	if (state.slots)
		return 0;
	/* calloc: pages that no line has used yet cost nothing. */
	state.slots = calloc(SLOTS, sizeof(*state.slots));
	if (!state.slots)
		return bh_raise(err, -ENOMEM, "log.alloc");
	for (uint64_t i = 0; i < SLOTS; i++)
		atomic_init(&state.slots[i].seq, i);
	if (sem_init(&state.wake, 0, 0) != 0) {
		free(state.slots);
		state.slots = NULL;
		return bh_raise(err, -errno, "log.semaphore");
	}
	return 0;
}

bh_status bh_log_start(enum bh_log_level threshold, struct bh_error *err)
{
	bh_status st;

	bh_log_set_level(threshold);
	if (atomic_load(&state.mode) != MODE_DIRECT)
		return bh_raise(err, -EALREADY, "log.started");
	st = ring_make(err);
	if (st < 0)
		return st;
	if (!state.child_hook && pthread_atfork(NULL, NULL, forked_child) != 0)
		return bh_raise(err, -ENOMEM, "log.atfork");
	state.child_hook = true;
	atomic_store(&state.stopping, false);
	st = bh_thread_create(&state.writer, "bh-log", writer_main, NULL, err);
	if (st < 0)
		return st;
	atomic_store(&state.mode, MODE_RING);
	return 0;
}

static void pause_briefly(void)
{
	struct timespec pause = { .tv_nsec = PAUSE_NS };

	nanosleep(&pause, NULL);
}

void bh_log_flush(struct bh_deadline until)
{
	uint64_t head = atomic_load_explicit(&state.head, memory_order_relaxed);

	if (atomic_load(&state.mode) != MODE_RING)
		return;
	while (atomic_load_explicit(&state.written, memory_order_acquire) < head &&
	       !bh_deadline_passed(until))
		pause_briefly();
}

void bh_log_stop(struct bh_deadline until)
{
	if (atomic_load(&state.mode) != MODE_RING)
		return;
	/* From here on lines are written directly. Producers that saw MODE_RING are counted in
	 * `inside` (counted first, mode read second), so after it has been zero once the ring
	 * gets no more. */
	atomic_store(&state.mode, MODE_DIRECT);
	while (atomic_load(&state.inside) != 0 && !bh_deadline_passed(until))
		pause_briefly();
	atomic_store(&state.stopping, true);
	if (atomic_exchange(&state.asleep, false))
		sem_post(&state.wake);
	if (bh_thread_join(state.writer, until, NULL) < 0)
		atomic_store(&state.mode, MODE_DROP); /* CP-1: nobody else gets stuck there */
}

void bh_log_set_level(enum bh_log_level threshold)
{
	atomic_store_explicit(&state.threshold, (int)threshold, memory_order_relaxed);
}

bool bh_log_wants(enum bh_log_level level)
{
	return (int)level >= atomic_load_explicit(&state.threshold, memory_order_relaxed);
}

uint64_t bh_log_dropped(void)
{
	return atomic_load_explicit(&state.dropped, memory_order_relaxed);
}

void bh_log_write(enum bh_log_level level, const char *component, const char *message,
		  const struct bh_fact *facts, size_t n_facts)
{
	char out[LINE_SIZE];
	struct bh_line line;

	if (!bh_log_wants(level))
		return;
	line_begin(&line, out, level, component, message);
	for (size_t i = 0; i < n_facts; i++)
		bh_line_put_fact(&line, &facts[i]);
	emit(out, line_finish(&line));
}

void bh_log_error(enum bh_log_level level, const char *component, const char *message,
		  const struct bh_error *err)
{
	char out[LINE_SIZE];
	struct bh_line line;

	if (!bh_log_wants(level))
		return;
	line_begin(&line, out, level, component, message);
	if (bh_error_is_set(err)) {
		struct bh_fact fact = bh_fact_str("error", err->id);
		const char *name = strerrorname_np(-err->status);

		bh_line_put_fact(&line, &fact);
		for (unsigned i = 0; i < err->n_facts; i++) {
			fact = bh_fact_str(bh_error_key(err, i), bh_error_value(err, i));
			bh_line_put_fact(&line, &fact);
		}
		fact = bh_fact_str("errno", name ? name : "unknown");
		bh_line_put_fact(&line, &fact);
	}
	emit(out, line_finish(&line));
}
