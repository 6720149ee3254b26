/* SPDX-License-Identifier: BSD-3-Clause */
/* ticks - the ledger's clock: the time stamp counter, where it is one clock for all CPUs.
 *
 * Three looks at the clock are most of what an entry costs, and the counter is read in half the
 * time. It is used only where the kernel itself keeps time by it, which it does after it has found
 * the counters of all CPUs in step, and where the processor says that its rate never changes. Its
 * rate is measured against CLOCK_MONOTONIC while the interpreter comes up: good for a few
 * millionths of a duration. So a moment is never kept on this clock for long and compared with
 * another clock's: readers ask how long ago it was.
 *
 * Thread: main begins and settles; any reads. */
#include "config.h"

#include "host/gil/internal.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Less would measure the rate too badly. */
#define APART_NS (2 * BH_NS_PER_MS)

struct bh_gil_ticks bh_gil_ticks;

#if defined(__x86_64__)
struct anchor {
	uint64_t ticks, ns;
};

static struct anchor first; /* T: main */

/* Of several tries the one that took the least between its two looks at the counter. */
static struct anchor anchor_now(void)
{
	struct anchor best = { 0 };
	uint64_t took, least = UINT64_MAX;

	for (int tries = 0; tries < 16; tries++) {
		uint64_t before = __builtin_ia32_rdtsc(), ns = bh_now_ns();

		took = __builtin_ia32_rdtsc() - before;
		if (took >= least)
			continue;
		least = took;
		best = (struct anchor){ .ticks = before + took / 2, .ns = ns };
	}
	return best;
}

static bool kernel_uses_it(void)
{
	char name[16] = "";
	FILE *file =
		fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");

	if (!file)
		return false;
	if (!fgets(name, sizeof(name), file))
		name[0] = '\0';
	fclose(file);
	return strcmp(name, "tsc\n") == 0;
}

static bool rate_is_constant(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);
}

void bh_gil_ticks_begin(void)
{
	if (rate_is_constant() && kernel_uses_it())
		first = anchor_now();
}

void bh_gil_ticks_settle(void)
{
	struct anchor second;
	double rate;

	if (first.ns == 0 || bh_now_ns() - first.ns < APART_NS ||
	    atomic_load_explicit(&bh_gil_ticks.scale, memory_order_relaxed))
		return;
	second = anchor_now();
	rate = (double)(second.ns - first.ns) / (double)(second.ticks - first.ticks);
	if (!(rate > 0.05 && rate < 20)) /* ns a tick: 50 MHz to 20 GHz */
		return;
	/* From here on it goes on where CLOCK_MONOTONIC is now: who is inside notices nothing. */
	bh_gil_ticks.base_ticks = second.ticks;
	bh_gil_ticks.base_ns = second.ns;
	atomic_store_explicit(&bh_gil_ticks.scale, (int64_t)(rate * 4294967296.0),
			      memory_order_release);
}
#else
void bh_gil_ticks_begin(void)
{
}

void bh_gil_ticks_settle(void)
{
}
#endif

uint64_t bh_gil_clock_monotonic(uint64_t at)
{
	uint64_t now, age;

	if (at == 0)
		return 0;
	age = bh_gil_elapsed(at, bh_gil_clock());
	now = bh_now_ns();
	return now > age ? now - age : 1;
}
