/* SPDX-License-Identifier: BSD-3-Clause */
/* watch - see watch.h. */
#include "config.h"

#include "host/ctl/watch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "host/core/clock.h"

static int interrupted = -1; /* an eventfd; a signal handler has no other way to get at it */

static void on_interrupt(int number)
{
	static const uint64_t one = 1;
	int saved = errno;

	(void)number;
	/* It cannot fail: the counter is far from its end. */
	if (write(interrupted, &one, sizeof(one)) < 0)
		_exit(BH_CTL_INTERNAL);
	errno = saved;
}

enum bh_ctl_exit bh_watch_begin(void)
{
	struct sigaction action = { .sa_handler = on_interrupt,
				    .sa_flags = (int)(SA_RESETHAND | SA_RESTART) };

	interrupted = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (interrupted < 0 || sigaction(SIGINT, &action, NULL) < 0) {
		bh_ctl_complain("cannot watch: %s", strerror(errno));
		return BH_CTL_INTERNAL;
	}
	return BH_CTL_OK;
}

bool bh_watch_pause(uint64_t ns)
{
	struct pollfd fd = { .fd = interrupted, .events = POLLIN };
	struct bh_deadline until = bh_deadline_after(ns);
	int n;

	do {
		uint64_t left_ms = (bh_deadline_left_ns(until) + BH_NS_PER_MS - 1) / BH_NS_PER_MS;

		n = poll(&fd, 1, (int)left_ms); /* an hour at most: it fits */
	} while (n < 0 && errno == EINTR);
	return n == 0;
}
