/* SPDX-License-Identifier: BSD-3-Clause */
/* test_ledger - the suite of host/gil's books and views, with a real interpreter.
 *
 * What closes the gate, changes [gil] ledger or makes system calls deadly runs in a child. */
#include "config.h"

#include <Python.h>

#include "host/gil/gil.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "host/core/log.h"
#include "host/gil/internal.h"
#include "tests/unit/gil_fixture.h"
#include "tests/unit/tap.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* ---- what is shown --------------------------------------------------------------------------- */

static bool is_text(const json_t *object, const char *key, const char *text)
{
	const char *value = json_string_value(json_object_get(object, key));

	return value && strcmp(value, text) == 0;
}

/* A site of a fresh view, which the caller lets go of. */
static const json_t *show_site(json_t **ret_view, const char *site)
{
	*ret_view = bh_gil_render(NULL);
	return find_by(json_object_get(*ret_view, "sites"), "site", site);
}

static double plane_number(const char *site, const char *plane, const char *field)
{
	json_t *view;
	const json_t *row = show_site(&view, site);
	const json_t *value =
		json_object_get(json_object_get(json_object_get(row, "planes"), plane), field);
	double number = value ? json_number_value(value) : -1;

	json_decref(view);
	return number;
}

/* Whether /v1/gil shows the thread `tid` in `state` at `site`. */
static bool shows_thread(uint32_t tid, const char *state, const char *site)
{
	json_t *view = bh_gil_render(NULL);
	size_t i;
	json_t *row;
	bool shown = false;

	json_array_foreach(json_object_get(view, "threads"), i,
			   row) if (json_integer_value(json_object_get(row, "tid")) == tid) shown |=
		is_text(row, "state", state) && is_text(row, "site", site);
	json_decref(view);
	return shown;
}

static bool find_stats(const char *account, enum bh_plane plane, struct bh_gil_stats *ret_stats)
{
	uint32_t cursor = 0;

	while (bh_gil_stats_next(&cursor, ret_stats))
		if (strcmp(ret_stats->account, account) == 0 && ret_stats->plane == plane)
			return true;
	return false;
}

static uint64_t times_count(const struct bh_gil_times *times)
{
	struct bh_histogram_counts counts = { 0 };

	bh_histogram_collect(times->histogram, &counts);
	return counts.n;
}

/* ---- books ----------------------------------------------------------------------------------- */

static void gil1_planes(void)
{
	struct job data = { .run = enter_and_leave, .plane = BH_PLANE_DATA };
	struct job none = { .run = enter_and_leave, .plane = BH_PLANE_NONE };
	struct job control = { .run = enter_and_leave, .plane = BH_PLANE_CONTROL };
	struct bh_gil_stats stats;

	data.site = none.site = control.site = add_site("planes", BH_SITE_CONTROL_ALLOWED);
	CU_ASSERT_FALSE(find_stats("unit.planes", BH_PLANE_DATA, &stats));
	job_run(&data, "data");
	job_run(&none, "none");
	job_run(&none, "none");
	CU_ASSERT_EQUAL(plane_number("unit.planes", "data", "entries"), 1);
	CU_ASSERT_EQUAL(plane_number("unit.planes", "none", "entries"), 2);
	CU_ASSERT_EQUAL(plane_number("unit.planes", "control", "entries"), -1); /* not in use */
	job_run(&control, "control");
	CU_ASSERT_EQUAL(plane_number("unit.planes", "control", "entries"), 1);
	CU_ASSERT_EQUAL(site_number("unit.planes", "entries"), 4);

	CU_ASSERT_TRUE(find_stats("unit.planes", BH_PLANE_NONE, &stats));
	CU_ASSERT_EQUAL(stats.entries, 2);
	CU_ASSERT_STRING_EQUAL(stats.policy, "control-allowed");
	CU_ASSERT_EQUAL(times_count(&stats.wait), 2);
	CU_ASSERT_EQUAL(times_count(&stats.inside), 2);
	CU_ASSERT_TRUE(stats.inside.max_ns <= stats.inside.total_ns);
}

/* Books go from a thread that has ended to the next one, with what is in them. */
static void gil1_books_handed_over(void)
{
	bh_gil_site site = add_site("relay", BH_SITE_DATA_ONLY);
	uint32_t books = bh_gil_books_begun();

	for (int i = 0; i < 500; i++) {
		struct job job = { .run = enter_and_leave, .site = site };

		job_run(&job, "relay");
	}
	CU_ASSERT_EQUAL(site_number("unit.relay", "entries"), 500);
	CU_ASSERT_EQUAL(site_number("unit.relay", "inside_count"), 500);
	CU_ASSERT_EQUAL(bh_gil_books_begun(), books + 1);
}

static void nest_and_count(struct job *job)
{
	struct bh_gil_scope outer, inner;

	CHILD_CHECK(bh_gil_worker_start(NULL) == 0);
	for (int i = 0; i < job->number; i++) {
		CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &outer, NULL) == 0);
		CHILD_CHECK(bh_gil_enter(job->inner, BH_HERE, &inner, NULL) == 0);
		bh_gil_leave(&inner);
		bh_gil_leave(&outer);
	}
	bh_gil_worker_stop();
}

static void gil1_several_writers(void)
{
	struct job jobs[4];

	for (size_t i = 0; i < 4; i++)
		jobs[i] = (struct job){ .run = nest_and_count, .number = 3000 };
	jobs[0].site = add_site("many", BH_SITE_DATA_ONLY);
	for (size_t i = 0; i < 4; i++) {
		jobs[i].site = jobs[i].inner = jobs[0].site;
		job_start(&jobs[i], "many");
	}
	for (size_t i = 0; i < 4; i++)
		job_join(&jobs[i]);
	CU_ASSERT_EQUAL(site_number("unit.many", "entries"), 12000);
	CU_ASSERT_EQUAL(site_number("unit.many", "nested"), 12000);
	CU_ASSERT_EQUAL(site_number("unit.many", "wait_count"), 12000);
	CU_ASSERT_EQUAL(site_number("unit.many", "inside_count"), 12000);
	CU_ASSERT_TRUE(site_number("unit.many", "wait_p50_s") <=
		       site_number("unit.many", "wait_p99_s"));
	CU_ASSERT_TRUE(site_number("unit.many", "wait_p99_s") <=
		       site_number("unit.many", "wait_max_s"));
	CU_ASSERT_TRUE(site_number("unit.many", "inside_max_s") <=
		       site_number("unit.many", "inside_s"));
}

/* A thread without a row has no books of its own: all such share one. */
static void book_without_row(struct job *job)
{
	struct bh_gil_thread self = { .account = job->site, .plane = BH_PLANE_NONE };

	for (int i = 0; i < 50000; i++) {
		bh_gil_books_entry(&self, job->site, 10);
		bh_gil_books_inside(&self, 5000);
	}
}

static void gil1_shared_writers(void)
{
	struct job jobs[4];
	bh_gil_site site = add_site("shared", BH_SITE_DATA_ONLY);
	struct bh_gil_stats stats;

	for (size_t i = 0; i < 4; i++) {
		jobs[i] = (struct job){ .run = book_without_row, .site = site };
		job_start(&jobs[i], "shared");
	}
	for (size_t i = 0; i < 4; i++)
		job_join(&jobs[i]);
	CU_ASSERT_TRUE(find_stats("unit.shared", BH_PLANE_NONE, &stats));
	CU_ASSERT_EQUAL(stats.entries, 200000);
	CU_ASSERT_EQUAL(stats.wait.total_ns, 2000000);
	CU_ASSERT_EQUAL(times_count(&stats.inside), 200000);
	CU_ASSERT_EQUAL(stats.inside.max_ns, 5000);
	CU_ASSERT_EQUAL(stats.inside.max_tid, 0); /* nobody's */
}

/* ---- maxima ---------------------------------------------------------------------------------- */

struct climber {
	struct job job;
	struct bh_gil_peak *peak;
	uint32_t id;
};

/* What belongs to a value can be told from it. */
static void raise_peak(struct bh_gil_peak *peak, uint64_t ns)
{
	char name[16] = "";

	snprintf(name, sizeof(name), "climber %u", (unsigned)(ns % 4));
	bh_gil_peak_raise(peak, ns, ns + 1, ns % 4 + 100, name);
}

static void climb(struct job *job)
{
	struct climber *climber = bh_container_of(job, struct climber, job);

	for (uint64_t i = 1; i <= 50000; i++)
		raise_peak(climber->peak, i * 4 + climber->id);
}

static bool is_whole_or_unknown(const struct bh_gil_peak *peak, bool *ret_known)
{
	struct bh_gil_times times;
	char name[16];

	bh_gil_peak_read(peak, &times);
	*ret_known = times.max_at_ns != 0;
	if (!*ret_known)
		return times.max_tid == 0 && times.max_thread[0] == '\0';
	snprintf(name, sizeof(name), "climber %u", (unsigned)(times.max_ns % 4));
	return times.max_at_ns == times.max_ns + 1 && times.max_tid == times.max_ns % 4 + 100 &&
	       strcmp(times.max_thread, name) == 0;
}

static void gil1_maxima_meet(void)
{
	static struct bh_gil_peak peak;
	struct climber climbers[4];
	struct bh_gil_times times;
	bool known, whole = true;

	for (uint32_t i = 0; i < 4; i++) {
		climbers[i] = (struct climber){ .job.run = climb, .peak = &peak, .id = i };
		job_start(&climbers[i].job, "climber");
	}
	for (size_t i = 0; i < 4; i++)
		while (!atomic_load(&climbers[i].job.done))
			whole &= is_whole_or_unknown(&peak, &known);
	for (size_t i = 0; i < 4; i++)
		job_join(&climbers[i].job);
	CU_ASSERT_TRUE(whole);
	CU_ASSERT_TRUE(is_whole_or_unknown(&peak, &known));
	bh_gil_peak_read(&peak, &times);
	CU_ASSERT_EQUAL(times.max_ns, 50000 * 4 + 3);
	/* Alone, a maximum is never lost. */
	raise_peak(&peak, 1000000);
	CU_ASSERT_TRUE(is_whole_or_unknown(&peak, &known) && known);
	raise_peak(&peak, 999);
	bh_gil_peak_read(&peak, &times);
	CU_ASSERT_EQUAL(times.max_ns, 1000000);
}

static void gil1_maximum_is_someones(void)
{
	struct job quick = { .run = enter_and_leave, .plane = BH_PLANE_DATA };
	struct job slow = { .run = hold, .plane = BH_PLANE_DATA };
	struct timespec before, after;
	struct bh_gil_stats stats;
	const json_t *site;
	json_t *view;
	double at;

	quick.site = slow.site = add_site("slowest", BH_SITE_DATA_ONLY);
	job_run(&quick, "quick");
	job_start(&slow, "slow");
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&slow.in)));
	for (int i = 0; i < 50; i++)
		nap();
	clock_gettime(CLOCK_REALTIME, &before);
	job_join(&slow);
	clock_gettime(CLOCK_REALTIME, &after);
	job_run(&quick, "quick");

	site = show_site(&view, "unit.slowest");
	at = json_real_value(json_object_get(site, "inside_max_at"));
	CU_ASSERT_TRUE(is_text(site, "inside_max_thread", "slow"));
	CU_ASSERT_TRUE(at >= (double)before.tv_sec + (double)before.tv_nsec / 1e9 - 0.01);
	CU_ASSERT_TRUE(at <= (double)after.tv_sec + (double)after.tv_nsec / 1e9 + 0.01);
	json_decref(view);
	CU_ASSERT_TRUE(find_stats("unit.slowest", BH_PLANE_DATA, &stats));
	CU_ASSERT_EQUAL(stats.inside.max_tid, slow.tid);
	CU_ASSERT_STRING_EQUAL(stats.inside.max_thread, "slow");
}

/* ---- states and views ------------------------------------------------------------------------ */

/* Lets go inside its scope and comes back when told. */
static void come_back(struct job *job)
{
	struct bh_gil_scope scope;
	PyThreadState *state;

	CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
	state = PyEval_SaveThread();
	atomic_store(&job->in, true);
	while (!atomic_load(&job->go))
		nap();
	PyEval_RestoreThread(state);
	bh_gil_leave(&scope);
}

static void gil1_waits_inside(void)
{
	struct job back = { .run = come_back }, holder = { .run = hold, .site = BH_SITE_TEST };
	struct job early = { .run = enter_and_leave }, late = { .run = enter_and_leave };
	json_t *waiters, *who;
	bool shown;

	back.site = add_site("back", BH_SITE_DATA_ONLY);
	early.site = add_site("early", BH_SITE_DATA_ONLY);
	late.site = add_site("late", BH_SITE_DATA_ONLY);
	job_start(&back, "back");
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&back.in)));
	CU_ASSERT_TRUE(shows_thread(back.tid, "inside", "unit.back"));
	job_start(&holder, "holder");
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&holder.in)));
	job_start(&early, "early");
	CU_ASSERT_TRUE(EVENTUALLY(shows_thread(atomic_load(&early.tid), "waiting", "unit.early")));
	atomic_store(&back.go, true);
	CU_ASSERT_TRUE(EVENTUALLY(shows_thread(back.tid, "waiting", "unit.back")));
	job_start(&late, "late");
	CU_ASSERT_TRUE(EVENTUALLY(shows_thread(atomic_load(&late.tid), "waiting", "unit.late")));

	waiters = bh_gil_render_waiters();
	shown = json_array_size(waiters) == 3 &&
		is_text(json_array_get(waiters, 0), "thread", "early") &&
		is_text(json_array_get(waiters, 1), "site", "unit.back") &&
		is_text(json_array_get(waiters, 2), "site", "unit.late") &&
		is_text(json_array_get(waiters, 2), "plane", "none");
	CU_ASSERT_TRUE(shown);
	json_decref(waiters);
	who = bh_gil_render_holder();
	CU_ASSERT_TRUE(is_text(who, "thread", "holder") && is_text(who, "site", "host.test"));
	CU_ASSERT_TRUE(json_is_null(json_object_get(who, "library")));
	CU_ASSERT_TRUE(json_real_value(json_object_get(who, "since_s")) > 0);
	json_decref(who);

	job_join(&holder);
	job_join(&back);
	job_join(&early);
	job_join(&late);
	/* One entry, two waits. */
	CU_ASSERT_EQUAL(site_number("unit.back", "entries"), 1);
	CU_ASSERT_EQUAL(site_number("unit.back", "wait_count"), 2);
	CU_ASSERT_EQUAL(site_number("unit.back", "inside_count"), 1);
	who = bh_gil_render_holder();
	CU_ASSERT_TRUE(json_is_null(who));
	json_decref(who);
}

static void hold_raw(struct job *job)
{
	PyGILState_STATE state = PyGILState_Ensure();

	atomic_store(&job->in, true);
	while (!atomic_load(&job->go))
		nap();
	PyGILState_Release(state);
}

static void gil6_library(void)
{
	struct job job = { .run = hold_raw, .plane = BH_PLANE_DATA };
	struct bh_gil_holder holder;
	json_t *who;

	job_start(&job, "rawhide");
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&job.in)));
	who = bh_gil_render_holder();
	CU_ASSERT_TRUE(is_text(who, "library", "host") && is_text(who, "site", "raw:host"));
	json_decref(who);
	bh_gil_holder_read(&holder);
	CU_ASSERT_STRING_EQUAL(holder.account, "raw:host");
	job_join(&job);
	CU_ASSERT_TRUE(plane_number("raw:host", "data", "entries") >= 1);
}

/* Python made it, and it has never come by. */
static void gil6_pythons_thread(void)
{
	uint32_t tid;

	bh_gil_main_enter(BH_SITE_TEST);
	CU_ASSERT_EQUAL(python_run("spin = True\ntid = 0\n"
				   "def spinner():\n"
				   "    global tid\n"
				   "    tid = threading.get_native_id()\n"
				   "    while spin: pass\n"
				   "thread = threading.Thread(target=spinner)\n"
				   "thread.start()\n"
				   "while not tid: time.sleep(0.001)\n"),
			0);
	tid = (uint32_t)python_long("tid");
	bh_gil_main_leave();
	CU_ASSERT_TRUE(EVENTUALLY(shows_thread(tid, "inside", "python")));
	bh_gil_main_enter(BH_SITE_TEST);
	python_run("spin = False\nthread.join()\n");
	bh_gil_main_leave();
	CU_ASSERT_FALSE(shows_thread(tid, "inside", "python"));
}

static void gil1_main_coarse(void)
{
	json_t *view = bh_gil_render(NULL);
	const json_t *row = json_array_get(json_object_get(view, "threads"), 0);

	CU_ASSERT_TRUE(json_is_false(json_object_get(row, "coarse")));
	json_decref(view);
	bh_gil_main_is_coarse();
	view = bh_gil_render(NULL);
	row = json_array_get(json_object_get(view, "threads"), 0);
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(row, "tid")), gettid());
	CU_ASSERT_TRUE(json_is_true(json_object_get(row, "coarse")));
	json_decref(view);
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Pure Python, in one scope, until this thread itself has run for long enough. */
static void spin_for(struct job *job)
{
	struct bh_gil_scope scope;
	char code[128];

	snprintf(code, sizeof(code),
		 "end = time.thread_time() + %ld / 1000\n"
		 "while time.thread_time() < end: pass\n",
		 job->number);
	CHILD_CHECK(bh_gil_worker_start(NULL) == 0);
	atomic_store(&job->in, true);
	while (!atomic_load(&job->go))
		nap();
	CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
	{
		PyObject *globals = PyDict_Copy(PyModule_GetDict(PyImport_AddModule("__main__")));
		PyObject *done = PyRun_String(code, Py_file_input, globals, globals);

		CHILD_CHECK(done);
		Py_DECREF(done);
		Py_DECREF(globals);
	}
	bh_gil_leave(&scope);
	bh_gil_worker_stop();
}

static double held_in_all(void)
{
	json_t *view = bh_gil_render(NULL), *site;
	double sum = 0;
	size_t i;

	json_array_foreach(json_object_get(view, "sites"), i, site) sum +=
		json_number_value(json_object_get(site, "held_s"));
	json_decref(view);
	return sum;
}

static void gil6_inside_and_held(void)
{
	struct job spinners[2];
	const double quota = 0.4;
	double before = held_in_all(), wall, inside;
	uint64_t began, last, now;

	for (int i = 0; i < 2; i++) {
		spinners[i] = (struct job){ .run = spin_for, .plane = BH_PLANE_DATA };
		spinners[i].number = (long)(quota * 1000);
	}
	spinners[0].site = add_site("spinner-a", BH_SITE_DATA_ONLY);
	spinners[1].site = add_site("spinner-b", BH_SITE_DATA_ONLY);
	for (int i = 0; i < 2; i++) {
		job_start(&spinners[i], "spinner");
		CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&spinners[i].in)));
	}
	began = last = bh_now_ns();
	for (int i = 0; i < 2; i++)
		atomic_store(&spinners[i].go, true);
	while (!atomic_load(&spinners[0].done) || !atomic_load(&spinners[1].done)) {
		nap();
		now = bh_now_ns();
		bh_gil_sample(now - last);
		last = now;
	}
	wall = (double)(bh_now_ns() - began) / 1e9;
	for (int i = 0; i < 2; i++) {
		job_join(&spinners[i]);
		inside = site_number(bh_gil_site_name(spinners[i].site), "inside_s");
		/* Nearly all of the other's time is its own too: they take turns. */
		CU_ASSERT_TRUE(inside >= 1.6 * quota);
		CU_ASSERT_TRUE(inside <= wall);
		CU_ASSERT_TRUE(site_number(bh_gil_site_name(spinners[i].site), "held_s") >=
			       0.5 * quota);
	}
	CU_ASSERT_TRUE(held_in_all() - before <= wall * 1.05);
}

/* ---- children -------------------------------------------------------------------------------- */

static bh_gil_site child_site(const char *name, enum bh_site_policy policy)
{
	bh_gil_site site;

	CHILD_CHECK(bh_gil_site_add("unit", name, policy, &site, NULL) == 0);
	return site;
}

static void raw_pair(struct job *job)
{
	PyGILState_STATE state = PyGILState_Ensure();

	job->number = 1;
	PyGILState_Release(state);
}

static void raw_inside(struct job *job)
{
	struct bh_gil_scope scope;

	CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
	PyGILState_Release(PyGILState_Ensure());
	Py_BEGIN_ALLOW_THREADS;
	Py_END_ALLOW_THREADS;
	bh_gil_leave(&scope);
}

static int child_sites(unsigned seed)
{
	struct job mixed = { .run = raw_inside, .plane = BH_PLANE_DATA };
	struct job raw = { .run = raw_pair, .plane = BH_PLANE_CONTROL };
	struct job holder = { .run = hold_raw };
	struct bh_gil_holder who;
	struct bh_error err = { 0 };

	(void)seed;
	bh_gil_set_ledger(BH_GIL_LEDGER_SITES);
	host_up();
	mixed.site = child_site("mixed", BH_SITE_DATA_ONLY);
	job_run(&mixed, "mixed");
	CHILD_CHECK(site_number("unit.mixed", "entries") == 1);
	CHILD_CHECK(site_number("unit.mixed", "nested") == 0); /* the raw ones */
	CHILD_CHECK(site_number("unit.mixed", "wait_count") == 1);
	CHILD_CHECK(site_number("unit.mixed", "inside_count") == 1);
	/* Policy and names are as ever. */
	job_run(&raw, "raw");
	CHILD_CHECK(bh_gil_unsanctioned_count() == 1);
	CHILD_CHECK(site_number("raw:host", "unsanctioned") == 1);
	CHILD_CHECK(site_number("raw:host", "entries") == 0);
	CHILD_CHECK(site_number("raw:host", "inside_count") == 0);
	job_start(&holder, "rawhide");
	CHILD_CHECK(EVENTUALLY(atomic_load(&holder.in)));
	bh_gil_sample(BH_NS_PER_MS);
	bh_gil_holder_read(&who);
	CHILD_CHECK(strcmp(who.account, "raw:host") == 0 && who.tid == holder.tid);
	CHILD_CHECK(shows_thread(holder.tid, "inside", "raw:host"));
	CHILD_CHECK(site_number("raw:host", "held_s") == 0);
	CHILD_CHECK(bh_gil_gate_close(bh_deadline_after(BH_NS_PER_MS), &err) == -ETIMEDOUT);
	CHILD_CHECK(strcmp(bh_error_fact(&err, "site"), "raw:host") == 0);
	job_join(&holder);
	CHILD_CHECK(bh_gil_gate_close(PATIENCE, NULL) == 0);
	return host_down();
}

static int child_off(unsigned seed)
{
	struct job pair = { .run = enter_and_leave, .plane = BH_PLANE_CONTROL };
	struct job holder = { .run = hold };
	struct bh_gil_holder who;
	struct bh_error err = { 0 };
	json_t *view, *row;
	size_t i;

	(void)seed;
	bh_gil_set_ledger(BH_GIL_LEDGER_OFF);
	host_up();
	pair.site = holder.site = child_site("off", BH_SITE_DATA_ONLY);
	job_run(&pair, "pair");
	job_start(&holder, "holder");
	CHILD_CHECK(EVENTUALLY(atomic_load(&holder.in)));
	CHILD_CHECK(bh_gil_unsanctioned_count() == 1);
	bh_gil_holder_read(&who);
	CHILD_CHECK(who.tid == holder.tid && who.site == holder.site && who.since_ns == 0);
	CHILD_CHECK(shows_thread(holder.tid, "inside", "unit.off"));
	view = bh_gil_render(NULL);
	CHILD_CHECK(is_text(view, "ledger", "off"));
	CHILD_CHECK(json_is_null(json_object_get(json_object_get(view, "holder"), "since_s")));
	json_array_foreach(json_object_get(view, "threads"), i, row)
		CHILD_CHECK(json_is_null(json_object_get(row, "since_s")));
	json_decref(view);
	bh_gil_sample(BH_NS_PER_MS); /* from now on it is known since when */
	bh_gil_holder_read(&who);
	CHILD_CHECK(who.since_ns != 0);
	CHILD_CHECK(held_in_all() == 0);
	CHILD_CHECK(bh_gil_gate_close(bh_deadline_after(BH_NS_PER_MS), &err) == -ETIMEDOUT);
	CHILD_CHECK(strcmp(bh_error_fact(&err, "thread"), "holder") == 0);
	CHILD_CHECK(!bh_error_fact(&err, "since_ms"));
	job_join(&holder);
	CHILD_CHECK(site_number("unit.off", "entries") == 0);
	CHILD_CHECK(site_number("unit.off", "inside_count") == 0);
	CHILD_CHECK(site_number("unit.off", "unsanctioned") == 1);
	CHILD_CHECK(bh_gil_gate_close(PATIENCE, NULL) == 0);
	return host_down();
}

static int child_force(unsigned seed)
{
	struct job rogue = { .run = enter_and_leave, .plane = BH_PLANE_CONTROL };
	double dispatches;

	(void)seed;
	CHILD_CHECK(bh_identity_tag_control("python", NULL) == 0);
	host_up();
	rogue.site = child_site("forbidden", BH_SITE_DATA_ONLY);
	CHILD_CHECK(bh_gil_unsanctioned_count() == 0);
	bh_gil_set_unsanctioned(BH_GIL_COUNT);
	job_run(&rogue, "rogue");
	CHILD_CHECK(bh_gil_unsanctioned_count() == 1);
	bh_gil_set_unsanctioned(BH_GIL_ABORT);
	bh_gil_main_enter(BH_SITE_DISPATCH);
	dispatches = site_number("host.dispatch", "entries");
	bh_gil_force_unsanctioned();
	CHILD_CHECK(bh_gil_holds());
	CHILD_CHECK(shows_thread((uint32_t)gettid(), "inside", "host.dispatch"));
	CHILD_CHECK(bh_gil_unsanctioned_count() == 2);
	CHILD_CHECK(site_number("host.worker-init", "unsanctioned") == 1);
	CHILD_CHECK(plane_number("host.worker-init", "control", "entries") == 1);
	CHILD_CHECK(site_number("host.dispatch", "entries") == dispatches + 1);
	bh_gil_reset_unsanctioned();
	CHILD_CHECK(bh_gil_unsanctioned_count() == 0);
	CHILD_CHECK(site_number("host.worker-init", "unsanctioned") == 0);
	CHILD_CHECK(site_number("unit.forbidden", "unsanctioned") == 0);
	bh_gil_force_unsanctioned();
	CHILD_CHECK(bh_gil_unsanctioned_count() == 1);
	bh_gil_main_leave();
	CHILD_CHECK(bh_gil_gate_close(PATIENCE, NULL) == 0);
	return host_down();
}

/* Three threads at a thousand sites each want more books than there are. */
#define TOUR_SITES 900

static void tour(struct job *job)
{
	struct bh_gil_scope scope;

	CHILD_CHECK(bh_gil_worker_start(NULL) == 0);
	for (bh_gil_site site = job->site; site < job->site + TOUR_SITES; site++) {
		CHILD_CHECK(bh_gil_enter(site, BH_HERE, &scope, NULL) == 0);
		bh_gil_leave(&scope);
	}
	atomic_store(&job->in, true);
	while (!atomic_load(&job->go)) /* its books are its own meanwhile */
		nap();
	for (int i = 0; i < 2000; i++) {
		CHILD_CHECK(bh_gil_enter(job->site + TOUR_SITES - 1, BH_HERE, &scope, NULL) == 0);
		bh_gil_leave(&scope);
	}
	bh_gil_worker_stop();
}

static int child_shared_books(unsigned seed)
{
	struct job tourists[4];
	bh_gil_site first, last;
	char name[16];
	double entries = 0, inside = 0;

	(void)seed;
	host_up();
	first = child_site("first", BH_SITE_DATA_ONLY);
	for (int i = 1; i < TOUR_SITES; i++) {
		snprintf(name, sizeof(name), "site%d", i);
		last = child_site(name, BH_SITE_DATA_ONLY);
	}
	CHILD_CHECK(last == first + TOUR_SITES - 1);
	for (size_t i = 0; i < BH_ARRAY_LEN(tourists); i++) {
		tourists[i] = (struct job){ .run = tour, .site = first, .plane = BH_PLANE_DATA };
		job_start(&tourists[i], "tourist");
		CHILD_CHECK(EVENTUALLY(atomic_load(&tourists[i].in)));
	}
	for (size_t i = 0; i < BH_ARRAY_LEN(tourists); i++)
		atomic_store(&tourists[i].go, true);
	for (size_t i = 0; i < BH_ARRAY_LEN(tourists); i++)
		job_join(&tourists[i]);
	entries = site_number(bh_gil_site_name(last), "entries");
	inside = site_number(bh_gil_site_name(last), "inside_count");
	CHILD_CHECK(entries == 4 * 2001 && inside == 4 * 2001);
	CHILD_CHECK(site_number("unit.first", "entries") == 4);
	CHILD_CHECK(site_number("unit.site700", "inside_count") == 4);
	CHILD_CHECK(bh_gil_gate_close(PATIENCE, NULL) == 0);
	return host_down();
}

/* ---- no system call, no allocation ----------------------------------------------------------- */

#define PAIRS 100000
#define SKIPPED 77

static _Thread_local bool watched; /* this thread's allocations are counted */
static _Atomic uint64_t n_allocations;

static void note_allocation(void)
{
	if (watched)
		atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed);
}

#if !SANITIZED
#define EXPORTED __attribute__((visibility("default")))
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);

/* Before libc's for everybody: an executable's own come first. */
EXPORTED void *malloc(size_t size)
{
	note_allocation();
	return __libc_malloc(size);
}

EXPORTED void *calloc(size_t n, size_t size)
{
	note_allocation();
	return __libc_calloc(n, size);
}

EXPORTED void *realloc(void *old, size_t size)
{
	note_allocation();
	return __libc_realloc(old, size);
}
#endif

static PyMemAllocatorEx pythons[3]; /* by domain: raw, mem, obj */

static void *hook_malloc(void *ctx, size_t size)
{
	PyMemAllocatorEx *real = ctx;

	note_allocation();
	return real->malloc(real->ctx, size);
}

static void *hook_calloc(void *ctx, size_t n, size_t size)
{
	PyMemAllocatorEx *real = ctx;

	note_allocation();
	return real->calloc(real->ctx, n, size);
}

static void *hook_realloc(void *ctx, void *old, size_t size)
{
	PyMemAllocatorEx *real = ctx;

	note_allocation();
	return real->realloc(real->ctx, old, size);
}

static void hook_free(void *ctx, void *old)
{
	PyMemAllocatorEx *real = ctx;

	real->free(real->ctx, old);
}

static void hook_python(void)
{
	static const PyMemAllocatorDomain domains[3] = { PYMEM_DOMAIN_RAW, PYMEM_DOMAIN_MEM,
							 PYMEM_DOMAIN_OBJ };

	for (size_t i = 0; i < 3; i++) {
		PyMemAllocatorEx hook = { &pythons[i], hook_malloc, hook_calloc, hook_realloc,
					  hook_free };

		PyMem_GetAllocator(domains[i], &pythons[i]);
		PyMem_SetAllocator(domains[i], &hook);
	}
}

struct strict {
	struct job job;
	int fd; /* where it says that it came through */
};

/* From here on any call but write and exit kills this thread. Not the kernel's strict mode: that
 * one forbids the time stamp counter as well, which the clock is read from. */
static void strict_begin(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { BH_ARRAY_LEN(rules), rules };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		syscall(SYS_exit, 0); /* says nothing: not to be had */
}

static void strict_end(const struct strict *strict)
{
	char one = 1;

	if (write(strict->fd, &one, 1) == 1)
		syscall(SYS_exit, 0); /* this thread alone; glibc's own way needs more calls */
	abort();
}

static void strict_clock(struct job *job)
{
	struct strict *strict = bh_container_of(job, struct strict, job);

	strict_begin();
	for (int i = 0; i < 100; i++)
		job->number += (long)(bh_now_ns() & 1);
	strict_end(strict);
}

static void pairs(struct job *job, int n)
{
	struct bh_gil_scope scope;
	PyThreadState *kept = bh_gil_self.kept;

	for (int i = 0; i < n; i++) {
		if (bh_gil_enter(job->site, BH_HERE, &scope, NULL) != 0)
			abort();
		bh_gil_leave(&scope);
	}
	for (int i = 0; i < n; i++)
		PyGILState_Release(PyGILState_Ensure());
	for (int i = 0; i < n; i++) {
		PyEval_RestoreThread(kept);
		if (PyEval_SaveThread() != kept)
			abort();
	}
}

static void strict_pairs(struct job *job)
{
	struct strict *strict = bh_container_of(job, struct strict, job);

	CHILD_CHECK(bh_gil_worker_start(NULL) == 0);
	pairs(job, 1); /* its row and its books */
	watched = true;
	PyMem_RawFree(PyMem_RawMalloc(1)); /* proves that Python's and libc's are counted */
	strict_begin();
	pairs(job, PAIRS);
	strict_end(strict);
}

/* Whether a thread came through `run`. */
static bool survives_strict(void (*run)(struct job *))
{
	struct strict strict = { .job = { .run = run, .plane = BH_PLANE_DATA } };
	struct pollfd out;
	int fds[2];
	bool alive;

	CHILD_CHECK(pipe(fds) == 0);
	strict.fd = fds[1];
	strict.job.site = BH_SITE_TEST;
	out = (struct pollfd){ .fd = fds[0], .events = POLLIN };
	job_start(&strict.job, "strict");
	CHILD_CHECK(EVENTUALLY(atomic_load(&strict.job.tid)));
	/* A killed thread says nothing and is gone. */
	do
		alive = syscall(SYS_tgkill, getpid(), strict.job.tid, 0) == 0;
	while (poll(&out, 1, 10) == 0 && alive);
	return poll(&out, 1, 0) == 1;
}

static int child_strict(unsigned seed)
{
	(void)seed;
	host_up();
	if (!survives_strict(strict_clock))
		_exit(SKIPPED);
	bh_gil_main_enter(BH_SITE_TEST);
	hook_python();
	bh_gil_main_leave();
	CHILD_CHECK(survives_strict(strict_pairs));
	CHILD_CHECK(site_number("host.test", "entries") > PAIRS);
	CHILD_CHECK(site_number("raw:host", "entries") > 2 * PAIRS);
	CHILD_CHECK(atomic_load(&n_allocations) ==
		    2); /* the one on purpose, and what it asked libc for */
	_exit(0);	/* threads that the system took away cannot be joined */
}

static const struct {
	const char *name;
	int (*run)(unsigned seed);
} children[] = {
	{ "sites", child_sites },   { "off", child_off },
	{ "force", child_force },   { "shared-books", child_shared_books },
	{ "strict", child_strict },
};

static int child_main(const char *name, const char *seed)
{
	alarm(120); /* one that hangs ends by SIGALRM */
	for (size_t i = 0; i < BH_ARRAY_LEN(children); i++)
		if (strcmp(children[i].name, name) == 0)
			return children[i].run((unsigned)strtoul(seed, NULL, 10));
	return 64;
}

static void gil6_ledger_sites(void)
{
	child_succeeds("sites", 0);
}

static void gil6_ledger_off(void)
{
	child_succeeds("off", 0);
}

static void gil4_forced(void)
{
	char output[16384];
	int status = run_child("force", 0, output, sizeof(output));

	CU_ASSERT_EQUAL(status, 0);
	CU_ASSERT_PTR_NOT_NULL(strstr(output, "site=host.worker-init"));
	CU_ASSERT_PTR_NULL(strstr(output, "site=unit.forbidden")); /* that one only counted */
	if (status != 0)
		fputs(output, stderr);
}

static void gil1_shared_books(void)
{
	child_succeeds("shared-books", 0);
}

static void gil6_costs_no_call(void)
{
	char output[16384];
	int status;

	if (SANITIZED)
		BH_SKIP("a sanitizer calls the system and allocates by itself");
	status = run_child("strict", 0, output, sizeof(output));
	if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
		BH_SKIP("seccomp is not to be had, or the clock is a system call here");
	CU_ASSERT_EQUAL(status, 0);
	if (status != 0)
		fputs(output, stderr);
}

static const struct bh_test tests[] = {
	{ "GIL-1: main's row says when its loop is not the host's", gil1_main_coarse },
	{ "GIL-1: planes are told apart", gil1_planes },
	{ "GIL-1: a thread's books go on with the next one", gil1_books_handed_over },
	{ "GIL-1: several threads at one site are all counted", gil1_several_writers },
	{ "GIL-1: threads that share a book are all counted", gil1_shared_writers },
	{ "GIL-1: when there are more threads and sites than books, nothing is lost",
	  gil1_shared_books },
	{ "GIL-1: when maxima meet, the highest stays, and whose it was is right or unknown",
	  gil1_maxima_meet },
	{ "GIL-1: a maximum says when and whose it was", gil1_maximum_is_someones },
	{ "GIL-1: coming back to the GIL inside a scope is a wait of that scope, and waiters are "
	  "in "
	  "order",
	  gil1_waits_inside },
	{ "GIL-4: an unsanctioned entry can be forced, which never aborts, and the count reset",
	  gil4_forced },
	{ "GIL-6: a raw holder's library is named", gil6_library },
	{ "GIL-6: a thread of Python's that holds the GIL is among the threads",
	  gil6_pythons_thread },
	{ "GIL-6: of two spinners each is inside for both, and they hold for the wall time at most",
	  gil6_inside_and_held },
	{ "GIL-6: with ledger = sites raw calls are not booked, yet named", gil6_ledger_sites },
	{ "GIL-6: with ledger = off nothing is booked and no clock read, yet all are named",
	  gil6_ledger_off },
	{ "GIL-6: an uncontended entry costs no system call and no allocation",
	  gil6_costs_no_call },
};

int main(int argc, char **argv)
{
	int failed;

	if (argc == 4 && strcmp(argv[1], "--child") == 0)
		return child_main(argv[2], argv[3]);
	host_up();
	failed = bh_tap_main(argc, argv, "ledger", tests, BH_ARRAY_LEN(tests));
	if (bh_gil_gate_close(PATIENCE, NULL) < 0 || host_down() != 0)
		return 1;
	return failed;
}
