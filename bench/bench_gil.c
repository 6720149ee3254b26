/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_gil - what an uncontended way into the interpreter costs, next to the bare one.
 *
 * bench_gil [full|sites|off]: the ledger's mode, preset full. Every kind is timed in turn in each
 * round, by the thread's own time, so that a noisy neighbour meets all of them, and what is said is
 * the median of the rounds' comparisons. The last lines are for machines: "ratio NAME VALUE OP LIMIT ok|short". */
#include "config.h"

#include <Python.h>

#include "host/gil/gil.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "host/core/sync.h"
#include "host/gil/internal.h"

#define ROUNDS 201 /* odd */
#define PAIRS 2000 /* short enough that most batches are not interrupted */

static struct {
	PyGILState_STATE (*ensure)(void);
	void (*release)(PyGILState_STATE state);
	PyThreadState *(*save)(void);
	void (*restore)(PyThreadState *state);
} bare;

static void find_bare(const char *name, void *slot)
{
	void *symbol = dlsym(RTLD_NEXT, name);

	if (!symbol)
		abort();
	memcpy(slot, &symbol, sizeof(symbol));
}

/* ---- what is timed: pairs, on a thread that keeps its state ---------------------------------- */

static void bare_attach(PyThreadState *kept)
{
	bare.restore(kept);
	bare.save();
}

static void site(PyThreadState *kept)
{
	struct bh_gil_scope scope;

	(void)kept;
	if (bh_gil_enter(BH_SITE_TEST, BH_HERE, &scope, NULL) < 0)
		abort();
	bh_gil_leave(&scope);
}

static void bare_ensure(PyThreadState *kept)
{
	(void)kept;
	bare.release(bare.ensure());
}

static void raw_ensure(PyThreadState *kept)
{
	(void)kept;
	PyGILState_Release(PyGILState_Ensure());
}

static void raw_attach(PyThreadState *kept)
{
	PyEval_RestoreThread(kept);
	PyEval_SaveThread();
}

enum { BARE_ATTACH, SITE, BARE_ENSURE, RAW_ENSURE, RAW_ATTACH, KINDS };
static const struct {
	const char *name;
	void (*pair)(PyThreadState *kept);
} kinds[] = {
	[BARE_ATTACH] = { "restore, save: bare", bare_attach },
	[SITE] = { "enter, leave: a site", site },
	[BARE_ENSURE] = { "ensure, release: bare", bare_ensure },
	[RAW_ENSURE] = { "ensure, release: raw", raw_ensure },
	[RAW_ATTACH] = { "restore, save: raw", raw_attach },
};
static_assert(BH_ARRAY_LEN(kinds) == KINDS, "one row a kind");

static uint64_t own_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * BH_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static double time_pairs(void (*pair)(PyThreadState *), PyThreadState *kept)
{
	uint64_t began = own_ns();

	for (int i = 0; i < PAIRS; i++)
		pair(kept);
	return (double)(own_ns() - began) / PAIRS;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values)
{
	qsort(values, ROUNDS, sizeof(values[0]), by_value);
	return values[ROUNDS / 2];
}

static double ns[KINDS][ROUNDS];

static void say(const char *name, double (*compare)(double, double), int kind, int other,
		double limit)
{
	double rounds[ROUNDS], value;

	for (int round = 0; round < ROUNDS; round++)
		rounds[round] = compare(ns[kind][round], ns[other][round]);
	value = median(rounds);
	printf("ratio %s %.2f <= %g %s\n", name, value, limit, value <= limit ? "ok" : "short");
}

static double quotient(double a, double b)
{
	return a / b;
}

static double difference(double a, double b)
{
	return a - b;
}

static void *measure(void *arg)
{
	double sorted[ROUNDS];
	PyThreadState *kept;

	(void)arg;
	if (bh_identity_tag_data("bench", 1, 0, NULL) < 0 || bh_gil_worker_start(NULL) < 0)
		abort();
	kept = bh_gil_self.kept;
	for (int round = -1; round < ROUNDS; round++) /* the first one warms up */
		for (int kind = 0; kind < KINDS; kind++)
			ns[kind][round < 0 ? 0 : round] = time_pairs(kinds[kind].pair, kept);
	for (int kind = 0; kind < KINDS; kind++) {
		double middle;

		memcpy(sorted, ns[kind], sizeof(sorted));
		middle = median(sorted);
		printf("%-24s %6.1f ns a pair (%.1f … %.1f)\n", kinds[kind].name, middle, sorted[0],
		       sorted[ROUNDS - 1]);
	}
	say("gil_enter_leave", quotient, SITE, BARE_ATTACH, 2.2);
	say("gil_raw_added_ns", difference, RAW_ENSURE, BARE_ENSURE, 40);
	say("gil_raw_attach_added_ns", difference, RAW_ATTACH, BARE_ATTACH, 40);
	bh_gil_worker_stop();
	return NULL;
}

static void stay_on_one_cpu(void)
{
	cpu_set_t cpus;
	int cpu = sched_getcpu();

	CPU_ZERO(&cpus);
	CPU_SET(cpu < 0 ? 0 : cpu, &cpus);
	(void)!sched_setaffinity(0, sizeof(cpus), &cpus); /* only less noise */
}

static void set_mode(const char *mode)
{
	if (strcmp(mode, "sites") == 0)
		bh_gil_set_ledger(BH_GIL_LEDGER_SITES);
	else if (strcmp(mode, "off") == 0)
		bh_gil_set_ledger(BH_GIL_LEDGER_OFF);
	else
		mode = "full";
	printf("# Python %s, ledger = %s\n", PY_VERSION, mode);
}

int main(int argc, char **argv)
{
	struct bh_error err = { 0 };
	pthread_t thread;

	set_mode(argc > 1 ? argv[1] : "full");
	stay_on_one_cpu();
	if (bh_gil_init(&err) < 0) {
		fprintf(stderr, "bench_gil: %s\n", err.id);
		return 1;
	}
	find_bare("PyGILState_Ensure", &bare.ensure);
	find_bare("PyGILState_Release", &bare.release);
	find_bare("PyEval_SaveThread", &bare.save);
	find_bare("PyEval_RestoreThread", &bare.restore);
	bh_gil_adopt_main();
	Py_InitializeEx(0);
	bh_gil_interpreter_up();
	bh_gil_main_leave();
	if (bh_thread_create(&thread, "bench", measure, NULL, &err) < 0 ||
	    bh_thread_join(thread, BH_NEVER, &err) < 0) /* it is all this program does */
		return 1;
	if (bh_gil_gate_close(bh_deadline_after(BH_NS_PER_S), NULL) < 0)
		return 1;
	bh_gil_main_enter(BH_SITE_STOP);
	bh_gil_interpreter_down();
	return Py_FinalizeEx() != 0;
}
