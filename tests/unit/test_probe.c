/* SPDX-License-Identifier: BSD-3-Clause */
/* test_probe - the suite of host/gil/probe.c, with a real interpreter. The test's thread is Python's
 * main thread; what closes the gate runs last, for it cannot be opened again. */
#include "config.h"

#include <Python.h>

#include "host/gil/probe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/tap.h"

#ifndef BH_PYTHON
#define BH_PYTHON "/usr/bin/python3"
#endif
#define MS BH_NS_PER_MS
#define AMPLE bh_deadline_after(20 * BH_NS_PER_S)

#define EVENTUALLY(condition)                                                                      \
	({                                                                                         \
		struct bh_deadline until_ = AMPLE;                                                 \
		bool held_;                                                                        \
		while (!(held_ = (condition)) && !bh_deadline_passed(until_))                      \
			nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);                  \
		held_;                                                                             \
	})

static void host_up(void)
{
	PyPreConfig pre;
	PyConfig config;

	CU_ASSERT_FATAL(bh_gil_init(NULL) == 0);
	bh_gil_adopt_main();
	PyPreConfig_InitIsolatedConfig(&pre);
	pre.utf8_mode = 1;
	CU_ASSERT_FATAL(!PyStatus_Exception(Py_PreInitialize(&pre)));
	PyConfig_InitIsolatedConfig(&config);
	config.install_signal_handlers = 0;
	config.parse_argv = 0;
	config.write_bytecode = 0;
	CU_ASSERT_FATAL(!PyStatus_Exception(
		PyConfig_SetBytesString(&config, &config.program_name, BH_PYTHON)));
	CU_ASSERT_FATAL(!PyStatus_Exception(Py_InitializeFromConfig(&config)));
	PyConfig_Clear(&config);
	bh_gil_interpreter_up();
	bh_gil_main_leave();
}

static uint64_t n_answers(void)
{
	struct bh_gil_probe_stats stats;

	bh_gil_probe_read(&stats, NULL);
	return stats.n;
}

static void zero_is_off(void)
{
	struct bh_gil_probe_stats stats;

	CU_ASSERT(bh_gil_probe_start(0, NULL) == 0);
	CU_ASSERT(bh_gil_probe_waiting_since() == 0);
	bh_gil_probe_read(&stats, NULL);
	CU_ASSERT(stats.n == 0 && stats.max_ns == 0 && stats.max_at_ns == 0);
	bh_gil_probe_stop();
	CU_ASSERT(bh_gil_probe_join(AMPLE, NULL) == 0);
}

static void a_hold_is_measured(void)
{
	struct bh_histogram_counts counts = { 0 };
	struct bh_gil_probe_stats stats;
	uint64_t held_from, waits_from, n;

	CU_ASSERT_FATAL(bh_gil_probe_start(2 * MS, NULL) == 0);
	CU_ASSERT(EVENTUALLY(n_answers() >= 3));
	bh_gil_main_enter(BH_SITE_TEST);
	held_from = bh_now_ns();
	CU_ASSERT(EVENTUALLY(bh_gil_probe_waiting_since() != 0));
	waits_from = bh_gil_probe_waiting_since();
	/* Main holds the GIL, so the probe stays where it is. */
	CU_ASSERT(EVENTUALLY(bh_now_ns() - waits_from >= 60 * MS));
	CU_ASSERT(bh_gil_probe_waiting_since() == waits_from);
	n = n_answers();
	bh_gil_main_leave();
	CU_ASSERT(EVENTUALLY(n_answers() > n));
	bh_gil_probe_read(&stats, &counts);
	CU_ASSERT(stats.max_ns >= 60 * MS);
	CU_ASSERT(stats.max_at_ns >= held_from + 60 * MS && stats.max_at_ns <= bh_now_ns());
	CU_ASSERT(stats.total_ns >= stats.max_ns && counts.n >= n + 1);
	CU_ASSERT(bh_histogram_quantile(&counts, 1.0) >= 55 * MS);
	bh_gil_probe_stop();
	bh_gil_probe_stop();
	CU_ASSERT(bh_gil_probe_join(AMPLE, NULL) == 0);
	CU_ASSERT(bh_gil_probe_waiting_since() == 0);
}

static void stop_is_bounded_while_the_gil_is_held(void)
{
	struct bh_error err = { 0 };

	CU_ASSERT_FATAL(bh_gil_probe_start(1 * MS, NULL) == 0);
	bh_gil_main_enter(BH_SITE_TEST);
	CU_ASSERT(EVENTUALLY(bh_gil_probe_waiting_since() != 0));
	bh_gil_probe_stop();
	CU_ASSERT(bh_gil_probe_join(bh_deadline_after(10 * MS), &err) == -ETIMEDOUT);
	CU_ASSERT(bh_gil_probe_waiting_since() != 0);
	bh_gil_main_leave();
	CU_ASSERT(bh_gil_probe_join(AMPLE, NULL) == 0);
}

static void stop_does_not_wait_for_the_interval(void)
{
	CU_ASSERT_FATAL(bh_gil_probe_start(3600 * BH_NS_PER_S, NULL) == 0);
	bh_gil_probe_stop();
	CU_ASSERT(bh_gil_probe_join(AMPLE, NULL) == 0);
}

static void a_closed_gate_ends_it(void)
{
	CU_ASSERT_FATAL(bh_gil_probe_start(1 * MS, NULL) == 0);
	CU_ASSERT(bh_gil_gate_close(AMPLE, NULL) == 0);
	CU_ASSERT(bh_gil_probe_join(AMPLE, NULL) == 0); /* nobody has asked it to */
	CU_ASSERT(bh_gil_probe_waiting_since() == 0);
	bh_gil_main_enter(BH_SITE_STOP);
	bh_gil_interpreter_down();
	CU_ASSERT(Py_FinalizeEx() == 0);
}

static const struct bh_test tests[] = {
	{ "the interpreter comes up", host_up },
	{ "CP-3: an interval of 0 is a probe that is off", zero_is_off },
	{ "CP-3: the probe measures how long the GIL takes to get", a_hold_is_measured },
	{ "SUP-9: a join while the GIL is held times out, and can be asked again",
	  stop_is_bounded_while_the_gil_is_held },
	{ "CP-2: a stop does not wait for the interval", stop_does_not_wait_for_the_interval },
	{ "GIL-5: the probe ends once the gate has closed", a_closed_gate_ends_it },
};

BH_TAP_MAIN("probe", tests)
