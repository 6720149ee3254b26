/* SPDX-License-Identifier: BSD-3-Clause */
/* signals - see signals.h.
 *
 * Thread: handlers run on any thread that has the signal unblocked, whatever it holds: they touch
 *         only lock-free atomics and the eventfd. State is file-scope because a handler has no
 *         argument. */
#include "config.h"

#include "host/control/signals.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "host/core/log.h"

#define COMPONENT "signals"

static int wake_fd = -1;	     /* I: after install */
static pid_t owner;		     /* I: the process that installed */
static _Atomic uint32_t n_term;	     /* A: relaxed; the eventfd's write and read order it */
static _Atomic uint32_t n_interrupt; /* A: as n_term */
static _Atomic uint32_t n_hangup;    /* A: as n_term */
static_assert(ATOMIC_INT_LOCK_FREE == 2, "a signal handler may use only lock-free atomics");

static _Atomic uint32_t *count_of(int number)
{
	return number == SIGTERM ? &n_term : number == SIGINT ? &n_interrupt : &n_hangup;
}

static void on_signal(int number)
{
	const int saved = errno;
	const uint64_t one = 1;

	if (getpid() != owner) {
		/* EXIT-5: a forked child, which nobody would stop. The signal is blocked until the
		 * handler returns and then takes its default way. */
		signal(number, SIG_DFL);
		raise(number);
		errno = saved;
		return;
	}
	atomic_fetch_add_explicit(count_of(number), 1, memory_order_relaxed);
	while (write(wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		; /* EAGAIN: the counter is full, hence readable, and nothing is lost */
	errno = saved;
}

static void any_handler(int number)
{
	(void)number;
}

/* A row says what is restored, and what is tolerated besides. */
struct owned {
	int number;
	const char *name;
	void (*want)(int number);
	bool handler_tolerated;
	bool ignoring_tolerated; /* also by who has started the host */
};

static const struct owned owned[] = {
	{ SIGTERM, "SIGTERM", on_signal, false, false },
	{ SIGINT, "SIGINT", on_signal, false, false },
	{ SIGHUP, "SIGHUP", on_signal, true, true },
	{ SIGPIPE, "SIGPIPE", SIG_IGN, false, false },
	{ SIGCHLD, "SIGCHLD", SIG_DFL, true, false }, /* asyncio's child watchers may have a handler */
};

/* SA_SIGINFO puts its handler where sa_handler lies: compared as one, told apart by the flag. */
static void (*handler_of(const struct sigaction *action))(int)
{
	return action->sa_flags & SA_SIGINFO ? any_handler : action->sa_handler;
}

static bool is_as_wanted(const struct owned *row, const struct sigaction *now)
{
	void (*handler)(int) = handler_of(now);

	if (row->number == SIGCHLD && (now->sa_flags & SA_NOCLDWAIT))
		return false;
	if (handler == SIG_IGN)
		return row->want == SIG_IGN || row->ignoring_tolerated;
	if (handler != SIG_DFL && row->handler_tolerated)
		return true;
	return handler == row->want;
}

static int put(const struct owned *row, struct sigaction *ret_before)
{
	struct sigaction action = { .sa_handler = row->want, .sa_flags = SA_RESTART };

	sigemptyset(&action.sa_mask);
	return sigaction(row->number, &action, ret_before);
}

/* "default", "ignored", or the object that holds the handler. dladdr would block while another
 * thread is inside a dlopen constructor. */
static void describe(const struct sigaction *action, char *buffer, size_t size)
{
	struct dl_find_object found;
	const char *path, *slash;
	void *address;

	if (handler_of(action) == SIG_DFL || handler_of(action) == SIG_IGN) {
		snprintf(buffer, size, "%s%s",
			 handler_of(action) == SIG_DFL ? "default" : "ignored",
			 action->sa_flags & SA_NOCLDWAIT ? " with SA_NOCLDWAIT" : "");
		return;
	}
	memcpy(&address, &action->sa_handler, sizeof(address));
	if (_dl_find_object(address, &found) != 0) {
		snprintf(buffer, size, "a handler at %p", address);
		return;
	}
	path = found.dlfo_link_map->l_name;
	slash = strrchr(path, '/');
	snprintf(buffer, size, "a handler in %s",
		 *path ? (slash ? slash + 1 : path) : "the host's executable");
}

bh_status bh_signals_install(struct bh_error *err)
{
	if (wake_fd < 0) {
		wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		if (wake_fd < 0)
			return bh_raise(err, -errno, "signals.eventfd",
					BH_STR("reason", strerror(errno)));
	}
	owner = getpid();
	for (size_t i = 0; i < BH_ARRAY_LEN(owned); i++) {
		struct sigaction found;

		if (owned[i].ignoring_tolerated && sigaction(owned[i].number, NULL, &found) == 0 &&
		    handler_of(&found) == SIG_IGN)
			continue;
		if (put(&owned[i], NULL) < 0)
			return bh_raise(err, -errno, "signals.install",
					BH_STR("signal", owned[i].name),
					BH_STR("reason", strerror(errno)));
	}
	return 0;
}

int bh_signals_fd(void)
{
	return wake_fd;
}

void bh_signals_take(struct bh_signal_counts *ret_counts)
{
	uint64_t n;

	/* Emptied before the counts are taken: a signal in between makes it readable again. */
	while (read(wake_fd, &n, sizeof(n)) < 0 && errno == EINTR)
		;
	ret_counts->term = atomic_exchange_explicit(&n_term, 0, memory_order_relaxed);
	ret_counts->interrupt = atomic_exchange_explicit(&n_interrupt, 0, memory_order_relaxed);
	ret_counts->hangup = atomic_exchange_explicit(&n_hangup, 0, memory_order_relaxed);
}

unsigned bh_signals_check(void)
{
	unsigned n_restored = 0;

	for (size_t i = 0; i < BH_ARRAY_LEN(owned); i++) {
		struct sigaction found;
		char text[128];

		if (sigaction(owned[i].number, NULL, &found) < 0 || is_as_wanted(&owned[i], &found))
			continue;
		/* What is told is what was replaced, should it have changed once more since. */
		if (put(&owned[i], &found) < 0)
			continue;
		n_restored++;
		describe(&found, text, sizeof(text));
		bh_log(BH_LOG_WARNING, COMPONENT,
		       "somebody changed a signal that the host owns; restored",
		       BH_STR("signal", owned[i].name), BH_STR("found", text));
	}
	return n_restored;
}
