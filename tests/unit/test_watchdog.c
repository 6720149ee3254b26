/* SPDX-License-Identifier: BSD-3-Clause */
/* test_watchdog - the suite of host/control/watchdog.c. */
#include "config.h"

#include "host/control/watchdog.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "host/core/clock.h"
#include "tests/unit/tap.h"

#define MS BH_NS_PER_MS
#define AMPLE bh_deadline_after(20 * BH_NS_PER_S)

struct ticks {
	_Atomic unsigned n;
	_Atomic uint64_t elapsed_ns;
	uint64_t work_ns; /* how long a tick takes */
	unsigned wake_at; /* writes `fd` with this tick */
	int fd;
	int hold_fd;	 /* -1, or waits until it is readable */
	char thread[16]; /* valid once that tick is over */
};

static void on_tick(uint64_t elapsed_ns, void *arg)
{
	struct ticks *ticks = arg;
	struct pollfd held = { .fd = ticks->hold_fd, .events = POLLIN };
	uint64_t until = bh_now_ns() + ticks->work_ns;

	atomic_fetch_add(&ticks->elapsed_ns, elapsed_ns);
	while (bh_now_ns() < until)
		;
	if (atomic_fetch_add(&ticks->n, 1) + 1 == ticks->wake_at) {
		pthread_getname_np(pthread_self(), ticks->thread, sizeof(ticks->thread));
		eventfd_write(ticks->fd, 1);
		if (ticks->hold_fd >= 0)
			poll(&held, 1, 20000);
	}
}

static void ticks_init(struct ticks *ticks, unsigned wake_at)
{
	memset(ticks, 0, sizeof(*ticks));
	ticks->wake_at = wake_at;
	ticks->fd = eventfd(0, EFD_CLOEXEC);
	ticks->hold_fd = -1;
	CU_ASSERT_FATAL(ticks->fd >= 0);
}

static bool wait_readable(int fd)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };

	return poll(&wanted, 1, 20000) == 1;
}

static void ticks_until_stopped(void)
{
	struct bh_watchdog *watchdog = NULL;
	uint64_t began = bh_now_ns(), took;
	struct ticks ticks;
	unsigned n;

	ticks_init(&ticks, 10);
	CU_ASSERT_FATAL(bh_watchdog_start(2 * MS, on_tick, &ticks, &watchdog, NULL) == 0);
	CU_ASSERT(wait_readable(ticks.fd));
	bh_watchdog_stop(watchdog);
	bh_watchdog_stop(watchdog);
	CU_ASSERT_FATAL(bh_watchdog_join(watchdog, AMPLE, NULL) == 0);
	CU_ASSERT_STRING_EQUAL(ticks.thread, "bh-watch");
	took = bh_now_ns() - began;
	n = atomic_load(&ticks.n);
	CU_ASSERT(n >= 10);
	CU_ASSERT(took >= 10 * 2 * MS);
	CU_ASSERT(n <= took / (2 * MS));
	/* what the ticks were told adds up to the time that has passed, never to more */
	CU_ASSERT(atomic_load(&ticks.elapsed_ns) >= 10 * 2 * MS);
	CU_ASSERT(atomic_load(&ticks.elapsed_ns) <= took);
	close(ticks.fd);
}

static void late_ticks_do_not_burst(void)
{
	struct bh_watchdog *watchdog = NULL;
	struct ticks ticks;
	uint64_t began, took;
	unsigned n;

	ticks_init(&ticks, 8);
	ticks.work_ns = 5 * MS;
	began = bh_now_ns();
	CU_ASSERT_FATAL(bh_watchdog_start(1 * MS, on_tick, &ticks, &watchdog, NULL) == 0);
	CU_ASSERT(wait_readable(ticks.fd));
	bh_watchdog_stop(watchdog);
	CU_ASSERT_FATAL(bh_watchdog_join(watchdog, AMPLE, NULL) == 0);
	took = bh_now_ns() - began;
	n = atomic_load(&ticks.n);
	/* each takes 5 ms and has a pause of 1 ms before it */
	CU_ASSERT(n <= took / (6 * MS));
	CU_ASSERT(atomic_load(&ticks.elapsed_ns) <= took);
	close(ticks.fd);
}

static void zero_is_off(void)
{
	struct bh_watchdog *watchdog = (struct bh_watchdog *)&watchdog;

	CU_ASSERT(bh_watchdog_start(0, on_tick, NULL, &watchdog, NULL) == 0);
	CU_ASSERT_PTR_NULL(watchdog);
	bh_watchdog_stop(watchdog);
	CU_ASSERT(bh_watchdog_join(watchdog, AMPLE, NULL) == 0);
}

static void stop_does_not_wait_for_the_interval(void)
{
	struct bh_watchdog *watchdog = NULL;
	struct ticks ticks;

	ticks_init(&ticks, 1);
	CU_ASSERT_FATAL(bh_watchdog_start(3600 * BH_NS_PER_S, on_tick, &ticks, &watchdog, NULL) ==
			0);
	bh_watchdog_stop(watchdog);
	CU_ASSERT(bh_watchdog_join(watchdog, AMPLE, NULL) == 0);
	CU_ASSERT(atomic_load(&ticks.n) == 0);
	close(ticks.fd);
}

static void join_is_bounded(void)
{
	struct bh_watchdog *watchdog = NULL;
	struct bh_error err = { 0 };
	struct ticks ticks;

	ticks_init(&ticks, 1);
	ticks.hold_fd = eventfd(0, EFD_CLOEXEC);
	CU_ASSERT_FATAL(bh_watchdog_start(1 * MS, on_tick, &ticks, &watchdog, NULL) == 0);
	CU_ASSERT(wait_readable(ticks.fd));
	bh_watchdog_stop(watchdog);
	CU_ASSERT(bh_watchdog_join(watchdog, bh_deadline_after(10 * MS), &err) == -ETIMEDOUT);
	eventfd_write(ticks.hold_fd, 1);
	CU_ASSERT(bh_watchdog_join(watchdog, AMPLE, NULL) == 0);
	close(ticks.fd);
	close(ticks.hold_fd);
}

static const struct bh_test tests[] = {
	{ "GIL-6: the watchdog ticks at its pace until it is stopped", ticks_until_stopped },
	{ "GIL-6: a watchdog that is late does not catch up in a burst", late_ticks_do_not_burst },
	{ "an interval of 0 is a watchdog that is off", zero_is_off },
	{ "CP-2: a stop does not wait for the interval", stop_does_not_wait_for_the_interval },
	{ "SUP-9: a join during a tick that hangs times out, and can be asked again",
	  join_is_bounded },
};

BH_TAP_MAIN("watchdog", tests)
