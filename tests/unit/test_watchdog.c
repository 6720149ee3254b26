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
#include <time.h>
#include <unistd.h>

#include "host/core/clock.h"
#include "host/core/pulse.h"
#include "host/core/sync.h"
#include "tests/unit/tap.h"

#define MS BH_NS_PER_MS
#define AMPLE bh_deadline_after(20 * BH_NS_PER_S)

struct ticks {
	_Atomic unsigned n;
	_Atomic uint64_t elapsed_ns;
	uint64_t work_ns;  /* how long a tick takes */
	unsigned wake_at;  /* writes `fd` with this tick */
	uint32_t left_out; /* what a tick returns */
	int fd;
	int hold_fd;	 /* -1, or waits until it is readable */
	char thread[16]; /* valid once that tick is over */
};

static uint32_t on_tick(uint64_t elapsed_ns, void *arg)
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
	return ticks->left_out;
}

/* One beat and no gauge. */
static bh_status start(uint64_t interval_ns, struct ticks *ticks, struct bh_watchdog **ret_watchdog)
{
	const struct bh_beat beat = { interval_ns, on_tick, ticks };
	const struct bh_watchdog_config config = { .beats = &beat, .n_beats = 1 };

	return bh_watchdog_start(&config, ret_watchdog, NULL);
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
	CU_ASSERT_FATAL(start(2 * MS, &ticks, &watchdog) == 0);
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
	CU_ASSERT_FATAL(start(1 * MS, &ticks, &watchdog) == 0);
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

static void beats_are_left_out(void)
{
	struct bh_watchdog *watchdog = NULL;
	uint64_t began = bh_now_ns(), took;
	struct ticks ticks;
	unsigned n;

	ticks_init(&ticks, 5);
	ticks.left_out = 4;
	CU_ASSERT_FATAL(start(2 * MS, &ticks, &watchdog) == 0);
	CU_ASSERT(wait_readable(ticks.fd));
	bh_watchdog_stop(watchdog);
	CU_ASSERT_FATAL(bh_watchdog_join(watchdog, AMPLE, NULL) == 0);
	took = bh_now_ns() - began;
	n = atomic_load(&ticks.n);
	CU_ASSERT(n <= 1 + took / (5 * 2 * MS)); /* the first comes after one interval */
	CU_ASSERT(atomic_load(&ticks.elapsed_ns) >= (1 + 4 * 5) * 2 * MS);
	CU_ASSERT(atomic_load(&ticks.elapsed_ns) <= took);
	close(ticks.fd);
}

static void zero_is_off(void)
{
	struct bh_watchdog *watchdog = (struct bh_watchdog *)&watchdog;

	CU_ASSERT(start(0, NULL, &watchdog) == 0);
	CU_ASSERT_PTR_NULL(watchdog);
	bh_watchdog_stop(watchdog);
	CU_ASSERT(bh_watchdog_join(watchdog, AMPLE, NULL) == 0);
}

static void stop_does_not_wait_for_the_interval(void)
{
	struct bh_watchdog *watchdog = NULL;
	struct ticks ticks;

	ticks_init(&ticks, 1);
	CU_ASSERT_FATAL(start(3600 * BH_NS_PER_S, &ticks, &watchdog) == 0);
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
	CU_ASSERT_FATAL(start(1 * MS, &ticks, &watchdog) == 0);
	CU_ASSERT(wait_readable(ticks.fd));
	bh_watchdog_stop(watchdog);
	CU_ASSERT(bh_watchdog_join(watchdog, bh_deadline_after(10 * MS), &err) == -ETIMEDOUT);
	eventfd_write(ticks.hold_fd, 1);
	CU_ASSERT(bh_watchdog_join(watchdog, AMPLE, NULL) == 0);
	close(ticks.fd);
	close(ticks.hold_fd);
}

/* ---- gauges ---------------------------------------------------------------------------------- */

#define LIMIT (40 * MS)
#define EVENTUALLY(condition)                                                                      \
	({                                                                                         \
		struct bh_deadline until_ = AMPLE;                                                 \
		bool held_;                                                                        \
		while (!(held_ = (condition)) && !bh_deadline_passed(until_))                      \
			nanosleep(&(struct timespec){ .tv_nsec = 500000 }, NULL);                  \
		held_;                                                                             \
	})

/* Two subjects, each with a lag that the test sets, and what was told of them. */
struct dial {
	_Atomic uint64_t lag_ns[2], n_looks;
	_Atomic unsigned n_begun[2], n_ended[2];
	_Atomic uint64_t lag_at_end[2];
	_Atomic bool wrong;	    /* an end without its beginning, or another's */
	_Atomic uint64_t before_ns; /* as the last look was asked */
	int hold_fd;		    /* -1, or a beginning waits until it is readable */
	struct bh_gauge gauge;
	struct bh_watchdog *watchdog;
};

static uint32_t dial_look(uint64_t before_ns, struct bh_stall_subject *ret, void *arg)
{
	struct dial *dial = arg;
	uint64_t now = bh_now_ns();
	uint32_t n = 0;

	for (unsigned i = 0; i < 2; i++) {
		uint64_t since = now - atomic_load(&dial->lag_ns[i]);

		if (since < before_ns)
			ret[n++] = (struct bh_stall_subject){ .key = i, .since_ns = since };
	}
	atomic_store(&dial->before_ns, before_ns);
	atomic_fetch_add(&dial->n_looks, 1);
	return n;
}

static uint64_t dial_begin(const struct bh_gauge *gauge, const struct bh_stall_subject *subject,
			   void *arg)
{
	struct dial *dial = arg;

	if (gauge->arg != dial || subject->key > 1)
		atomic_store(&dial->wrong, true);
	atomic_fetch_add(&dial->n_begun[subject->key], 1);
	if (dial->hold_fd >= 0)
		wait_readable(dial->hold_fd);
	return 100 + subject->key;
}

static void dial_end(const struct bh_gauge *gauge, uint64_t id, uint64_t lag_ns, void *arg)
{
	struct dial *dial = arg;
	uint64_t key = id - 100;

	if (gauge->arg != dial || key > 1) {
		atomic_store(&dial->wrong, true);
		return;
	}
	atomic_store(&dial->lag_at_end[key], lag_ns);
	if (atomic_fetch_add(&dial->n_ended[key], 1) + 1 > atomic_load(&dial->n_begun[key]))
		atomic_store(&dial->wrong, true);
}

static void dial_init(struct dial *dial)
{
	memset(dial, 0, sizeof(*dial));
	dial->hold_fd = -1;
}

static void dial_go(struct dial *dial, uint64_t limit_ns)
{
	dial->gauge = (struct bh_gauge){ BH_STALL_TASK, limit_ns, dial_look, dial };
	const struct bh_watchdog_config config = { .gauges = &dial->gauge,
						   .n_gauges = 1,
						   .begin = dial_begin,
						   .end = dial_end,
						   .arg = dial };

	CU_ASSERT_FATAL(bh_watchdog_start(&config, &dial->watchdog, NULL) == 0);
}

static void dial_start(struct dial *dial, uint64_t limit_ns)
{
	dial_init(dial);
	dial_go(dial, limit_ns);
}

static bool looked(struct dial *dial, unsigned more)
{
	uint64_t n = atomic_load(&dial->n_looks) + more + 1; /* one may be under way */

	return EVENTUALLY(atomic_load(&dial->n_looks) >= n);
}

static void dial_stop(struct dial *dial)
{
	bh_watchdog_stop(dial->watchdog);
	CU_ASSERT_FATAL(bh_watchdog_join(dial->watchdog, AMPLE, NULL) == 0);
	CU_ASSERT(!atomic_load(&dial->wrong));
}

static void an_episode_is_told_once(void)
{
	struct dial dial;

	dial_start(&dial, LIMIT);
	atomic_store(&dial.lag_ns[0], LIMIT * 9 / 10);
	CU_ASSERT(looked(&dial, 3));
	CU_ASSERT(atomic_load(&dial.n_begun[0]) == 0);
	atomic_store(&dial.lag_ns[0], LIMIT + MS);
	CU_ASSERT(EVENTUALLY(atomic_load(&dial.n_begun[0]) == 1));
	/* it moves about the limit: still the same one */
	for (unsigned i = 0; i < 4; i++) {
		atomic_store(&dial.lag_ns[0], i % 2 ? 3 * LIMIT : LIMIT * 6 / 10);
		CU_ASSERT(looked(&dial, 2));
	}
	CU_ASSERT(atomic_load(&dial.n_begun[0]) == 1 && atomic_load(&dial.n_ended[0]) == 0);
	atomic_store(&dial.lag_ns[0], 0);
	CU_ASSERT(EVENTUALLY(atomic_load(&dial.n_ended[0]) == 1));
	CU_ASSERT(atomic_load(&dial.lag_at_end[0]) >= LIMIT);
	CU_ASSERT(looked(&dial, 3));
	CU_ASSERT(atomic_load(&dial.n_begun[0]) == 1 && atomic_load(&dial.n_ended[0]) == 1);
	/* and the next one is another */
	atomic_store(&dial.lag_ns[0], 2 * LIMIT);
	CU_ASSERT(EVENTUALLY(atomic_load(&dial.n_begun[0]) == 2));
	CU_ASSERT(atomic_load(&dial.n_begun[1]) == 0);
	dial_stop(&dial);
}

static void two_stall_at_once(void)
{
	struct dial dial;

	dial_start(&dial, LIMIT);
	atomic_store(&dial.lag_ns[0], 2 * LIMIT);
	CU_ASSERT(EVENTUALLY(atomic_load(&dial.n_begun[0]) == 1));
	atomic_store(&dial.lag_ns[1], 2 * LIMIT);
	CU_ASSERT(EVENTUALLY(atomic_load(&dial.n_begun[1]) == 1));
	atomic_store(&dial.lag_ns[0], 0);
	CU_ASSERT(EVENTUALLY(atomic_load(&dial.n_ended[0]) == 1));
	CU_ASSERT(looked(&dial, 2));
	CU_ASSERT(atomic_load(&dial.n_ended[1]) == 0);
	atomic_store(&dial.lag_ns[1], 0);
	CU_ASSERT(EVENTUALLY(atomic_load(&dial.n_ended[1]) == 1));
	CU_ASSERT(atomic_load(&dial.n_begun[0]) == 1 && atomic_load(&dial.n_begun[1]) == 1);
	dial_stop(&dial);
}

static void no_report_after_a_stop(void)
{
	struct dial dial;

	dial_init(&dial);
	dial.hold_fd = eventfd(0, EFD_CLOEXEC);
	CU_ASSERT_FATAL(dial.hold_fd >= 0);
	atomic_store(&dial.lag_ns[0], 2 * LIMIT);
	atomic_store(&dial.lag_ns[1], 2 * LIMIT); /* both at the same look */
	dial_go(&dial, LIMIT);
	CU_ASSERT(EVENTUALLY(atomic_load(&dial.n_begun[0]) == 1));
	bh_watchdog_stop(dial.watchdog);
	eventfd_write(dial.hold_fd, 1);
	dial_stop(&dial);
	CU_ASSERT(atomic_load(&dial.n_begun[1]) == 0);
	close(dial.hold_fd);
}

static void a_limit_above_the_uptime(void)
{
	struct dial dial;

	dial_start(&dial, UINT64_MAX / 2);
	CU_ASSERT(looked(&dial, 1));
	CU_ASSERT(atomic_load(&dial.before_ns) == 0);
	CU_ASSERT(atomic_load(&dial.n_begun[0]) == 0 && atomic_load(&dial.n_begun[1]) == 0);
	dial_stop(&dial);
}

static void no_limit_no_look(void)
{
	const struct bh_gauge gauge = { BH_STALL_GIL, 0, dial_look, NULL };
	const struct bh_watchdog_config config = { .gauges = &gauge, .n_gauges = 1 };
	struct bh_watchdog *watchdog = (struct bh_watchdog *)&watchdog;

	CU_ASSERT(bh_watchdog_start(&config, &watchdog, NULL) == 0);
	CU_ASSERT_PTR_NULL(watchdog);
}

static void beats_and_gauges_together(void)
{
	struct dial dial = { .lag_ns = { 3 * LIMIT } };
	struct ticks ticks;

	ticks_init(&ticks, 20);
	dial.gauge = (struct bh_gauge){ BH_STALL_GIL, LIMIT, dial_look, &dial };
	const struct bh_beat beats[] = { { 2 * MS, on_tick, &ticks }, { 0, on_tick, NULL } };
	const struct bh_watchdog_config config = { .beats = beats,
						   .n_beats = 2,
						   .gauges = &dial.gauge,
						   .n_gauges = 1,
						   .begin = dial_begin,
						   .end = dial_end,
						   .arg = &dial };

	CU_ASSERT_FATAL(bh_watchdog_start(&config, &dial.watchdog, NULL) == 0);
	CU_ASSERT(wait_readable(ticks.fd));
	CU_ASSERT(EVENTUALLY(atomic_load(&dial.n_begun[0]) == 1));
	dial_stop(&dial);
	close(ticks.fd);
}

/* A loop that answers, then does not, then does: its pulse as the gauge, as in the host. */
struct silent {
	struct bh_postbox box;
	struct bh_pulse pulse;
	struct dial told;
	_Atomic bool stuck, over;
};

static void silent_post(struct bh_message *message, void *arg)
{
	struct silent *silent = arg;

	bh_postbox_post(&silent->box, message);
}

static uint32_t silent_ask(uint64_t elapsed_ns, void *arg)
{
	struct silent *silent = arg;

	(void)elapsed_ns;
	bh_pulse_ask(&silent->pulse);
	return 0;
}

static uint32_t silent_look(uint64_t before_ns, struct bh_stall_subject *ret, void *arg)
{
	struct silent *silent = bh_container_of(arg, struct silent, told);
	uint64_t since = bh_pulse_silent_since(&silent->pulse);

	*ret = (struct bh_stall_subject){ .since_ns = since };
	return since != 0 && since < before_ns;
}

static void *silent_loop(void *arg)
{
	struct silent *silent = arg;

	while (!atomic_load(&silent->over)) {
		struct pollfd ready = { .fd = silent->box.fd, .events = POLLIN };

		poll(&ready, 1, 5);
		if (!atomic_load(&silent->stuck))
			bh_postbox_deliver(&silent->box);
	}
	bh_postbox_deliver(&silent->box);
	return NULL;
}

static void a_silent_loop_is_a_stall(void)
{
	struct silent silent = { .stuck = false };
	struct dial *told = &silent.told;
	pthread_t loop;

	CU_ASSERT_FATAL(bh_postbox_init(&silent.box, NULL) == 0);
	bh_pulse_init(&silent.pulse, silent_post, &silent);
	told->gauge = (struct bh_gauge){ BH_STALL_CONTROL, 2 * BH_NS_PER_S, silent_look, told };
	const struct bh_beat beat = { 2 * MS, silent_ask, &silent };
	const struct bh_watchdog_config config = { .beats = &beat,
						   .n_beats = 1,
						   .gauges = &told->gauge,
						   .n_gauges = 1,
						   .begin = dial_begin,
						   .end = dial_end,
						   .arg = told };

	CU_ASSERT_FATAL(bh_thread_create(&loop, "silent", silent_loop, &silent, NULL) == 0);
	CU_ASSERT_FATAL(bh_watchdog_start(&config, &told->watchdog, NULL) == 0);
	CU_ASSERT(EVENTUALLY(atomic_load(&silent.pulse.n) >= 10));
	CU_ASSERT(atomic_load(&told->n_begun[0]) == 0);
	atomic_store(&silent.stuck, true);
	CU_ASSERT(EVENTUALLY(atomic_load(&told->n_begun[0]) == 1));
	CU_ASSERT(atomic_load(&told->n_ended[0]) == 0);
	atomic_store(&silent.stuck, false);
	CU_ASSERT(EVENTUALLY(atomic_load(&told->n_ended[0]) == 1));
	CU_ASSERT(atomic_load(&told->lag_at_end[0]) >= 2 * BH_NS_PER_S);
	CU_ASSERT(atomic_load(&told->n_begun[0]) == 1);
	dial_stop(told);
	bh_pulse_close(&silent.pulse);
	atomic_store(&silent.over, true);
	CU_ASSERT(bh_thread_join(loop, AMPLE, NULL) == 0);
	bh_pulse_fini(&silent.pulse);
	bh_postbox_fini(&silent.box);
}

/* As many as there are rows for, each of another number. */
static uint32_t crowd_look(uint64_t before_ns, struct bh_stall_subject *ret, void *arg)
{
	(void)arg;
	for (uint32_t i = 0; i < BH_SUBJECTS_MAX; i++)
		ret[i] = (struct bh_stall_subject){ .key = i, .since_ns = before_ns / 2 };
	return BH_SUBJECTS_MAX;
}

static uint32_t lone_look(uint64_t before_ns, struct bh_stall_subject *ret, void *arg)
{
	*ret = (struct bh_stall_subject){ .since_ns = before_ns / 2 };
	return atomic_load((_Atomic bool *)arg);
}

static _Atomic unsigned crowd_begun, lone_begun;

static uint64_t crowd_begin(const struct bh_gauge *gauge, const struct bh_stall_subject *subject,
			    void *arg)
{
	(void)subject;
	(void)arg;
	return atomic_fetch_add(gauge->look == lone_look ? &lone_begun : &crowd_begun, 1);
}

static void crowd_end(const struct bh_gauge *gauge, uint64_t id, uint64_t lag_ns, void *arg)
{
	(void)gauge;
	(void)id;
	(void)lag_ns;
	(void)arg;
}

static void a_crowd_leaves_room(void)
{
	_Atomic bool lonely = false;
	const struct bh_gauge gauges[] = { { BH_STALL_TASK, LIMIT, crowd_look, NULL },
					   { BH_STALL_TASK, LIMIT, crowd_look, NULL },
					   { BH_STALL_TASK, LIMIT, crowd_look, NULL },
					   { BH_STALL_GIL, LIMIT, lone_look, &lonely } };
	const struct bh_watchdog_config config = { .gauges = gauges,
						   .n_gauges = BH_ARRAY_LEN(gauges),
						   .begin = crowd_begin,
						   .end = crowd_end };
	struct bh_watchdog *watchdog = NULL;

	CU_ASSERT_FATAL(bh_watchdog_start(&config, &watchdog, NULL) == 0);
	CU_ASSERT(EVENTUALLY(atomic_load(&crowd_begun) == 3 * BH_SUBJECTS_MAX));
	atomic_store(&lonely, true);
	CU_ASSERT(EVENTUALLY(atomic_load(&lone_begun) == 1));
	bh_watchdog_stop(watchdog);
	CU_ASSERT_FATAL(bh_watchdog_join(watchdog, AMPLE, NULL) == 0);
	CU_ASSERT(atomic_load(&crowd_begun) == 3 * BH_SUBJECTS_MAX);
}

static const struct bh_test tests[] = {
	{ "GIL-6: the watchdog ticks at its pace until it is stopped", ticks_until_stopped },
	{ "GIL-6: a watchdog that is late does not catch up in a burst", late_ticks_do_not_burst },
	{ "GIL-6: beats that a tick leaves out do not wake the watchdog, and count as elapsed",
	  beats_are_left_out },
	{ "an interval of 0 is a watchdog that is off", zero_is_off },
	{ "CP-2: a stop does not wait for the interval", stop_does_not_wait_for_the_interval },
	{ "SUP-9: a join during a tick that hangs times out, and can be asked again",
	  join_is_bounded },
	{ "CP-3: an episode is told once and ended once, also when its lag moves about the limit",
	  an_episode_is_told_once },
	{ "CP-3: two of one gauge stall at once, each an episode of its own", two_stall_at_once },
	{ "CP-2: a stop waits for the present report, and for no other", no_report_after_a_stop },
	{ "CP-3: a limit longer than the machine has been up accuses nobody",
	  a_limit_above_the_uptime },
	{ "CP-3: many that stall do not keep another kind of stall from being told",
	  a_crowd_leaves_room },
	{ "CP-3: a gauge without a limit is never looked at", no_limit_no_look },
	{ "CP-3: beats go on beside gauges", beats_and_gauges_together },
	{ "CP-3: a loop that does not answer its pulse is a stall until it does",
	  a_silent_loop_is_a_stall },
};

BH_TAP_MAIN("watchdog", tests)
