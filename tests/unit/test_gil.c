/* SPDX-License-Identifier: BSD-3-Clause */
/* test_gil - the suite of host/gil, with a real interpreter.
 *
 * The suite's own process embeds Python once; whatever closes the gate, ends the interpreter or
 * dies runs in a child: this very binary with `--child NAME SEED`, which exits 0 when all was
 * well. */
#include "config.h"

#include <Python.h>

#include "host/gil/gil.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/core/log.h"
#include "host/core/sync.h"
#include "host/gil/internal.h"
#include "tests/unit/gil_fixture.h"
#include "tests/unit/tap.h"

static void enter_nested(struct job *job)
{
	struct bh_gil_scope outer, inner;

	CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &outer, NULL) == 0);
	CHILD_CHECK(bh_gil_enter(job->inner, BH_HERE, &inner, NULL) == 0);
	job->number = outer.outermost && !inner.outermost;
	bh_gil_leave(&inner);
	bh_gil_leave(&outer);
}

static void raw_ensure(struct job *job)
{
	PyGILState_STATE state = PyGILState_Ensure();

	job->number = python_long("40 + 2");
	PyGILState_Release(state);
}

/* ---- GIL-1 … GIL-4: sites and policy --------------------------------------------------------- */

static void gil1_outermost(void)
{
	struct job job = { .run = enter_nested, .plane = BH_PLANE_DATA };

	job.site = add_site("outer", BH_SITE_DATA_ONLY);
	job.inner = add_site("inner", BH_SITE_DATA_ONLY);
	job_run(&job, "nest");
	CU_ASSERT_TRUE(job.number);
	CU_ASSERT_EQUAL(site_number("unit.outer", "entries"), 1);
	CU_ASSERT_EQUAL(site_number("unit.outer", "nested"), 1);
	CU_ASSERT_EQUAL(site_number("unit.inner", "entries"), 0);
	CU_ASSERT_EQUAL(site_number("unit.inner", "nested"), 0);
}

static void raw_in_scope(struct job *job)
{
	struct bh_gil_scope scope;
	PyGILState_STATE state;

	CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
	state = PyGILState_Ensure();
	PyGILState_Release(state);
	Py_BEGIN_ALLOW_THREADS state = PyGILState_Ensure();
	job->number = PyGILState_Check();
	PyGILState_Release(state);
	Py_END_ALLOW_THREADS bh_gil_leave(&scope);
}

static void gil1_raw_nested(void)
{
	struct job job = { .run = raw_in_scope, .plane = BH_PLANE_DATA };
	double raw = site_number("raw:host", "entries"), nested = site_number("raw:host", "nested");

	job.site = add_site("mixed", BH_SITE_DATA_ONLY);
	job_run(&job, "mixed");
	CU_ASSERT_TRUE(job.number);
	CU_ASSERT_EQUAL(site_number("unit.mixed", "entries"), 1);
	CU_ASSERT_EQUAL(site_number("unit.mixed", "nested"), 2);
	CU_ASSERT_EQUAL(site_number("raw:host", "entries"), raw);
	/* By library as well (GIL-6), but the executable is none: tests/e2e/test_raw.py has libraries. */
	CU_ASSERT_EQUAL(site_number("raw:host", "nested"), nested);
}

static void leave_unbalanced(struct job *job)
{
	struct bh_gil_scope scope;

	CHILD_CHECK(bh_gil_worker_start(NULL) == 0);
	CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
	(void)PyGILState_Ensure(); /* and no Release */
	bh_gil_leave(&scope);
	job->number = bh_gil_thread_is_in((uint32_t)gettid());
	bh_gil_worker_stop();
}

static void gil1_unbalanced(void)
{
	struct job job = { .run = leave_unbalanced, .site = BH_SITE_TEST, .number = -1 };

	job_run(&job, "unbalanced");
	CU_ASSERT_EQUAL(job.number, 0);
}

static void gil1_main_scopes(void)
{
	double dispatch = site_number("host.dispatch", "entries"),
	       drain = site_number("host.drain", "entries");

	bh_gil_main_enter(BH_SITE_DISPATCH);
	CU_ASSERT_TRUE(PyGILState_Check());
	bh_gil_main_enter(BH_SITE_DRAIN); /* the next site without a wait */
	CU_ASSERT_EQUAL(python_long("1"), 1);
	bh_gil_main_leave();
	CU_ASSERT_EQUAL(site_number("host.dispatch", "entries"), dispatch + 1);
	CU_ASSERT_EQUAL(site_number("host.drain", "entries"), drain + 1);
	CU_ASSERT_FALSE(bh_gil_thread_is_in((uint32_t)gettid()));
}

/* Returns by how much the counter went up. */
static uint64_t unsanctioned_by(struct job *job)
{
	uint64_t before = bh_gil_unsanctioned_count();

	bh_gil_set_unsanctioned(BH_GIL_COUNT);
	job_run(job, "policed");
	bh_gil_set_unsanctioned(BH_GIL_LOG);
	return bh_gil_unsanctioned_count() - before;
}

static void gil2_control_policed(void)
{
	bh_gil_site data = add_site("policed", BH_SITE_DATA_ONLY),
		    both = add_site("allowed", BH_SITE_CONTROL_ALLOWED);
	struct job bad = { .run = enter_and_leave, .plane = BH_PLANE_CONTROL, .site = data };
	struct job good = { .run = enter_and_leave, .plane = BH_PLANE_CONTROL, .site = both };
	struct job nested = {
		.run = enter_nested, .plane = BH_PLANE_CONTROL, .site = both, .inner = data
	};
	struct job outer = {
		.run = enter_nested, .plane = BH_PLANE_CONTROL, .site = data, .inner = data
	};
	struct job raw = { .run = raw_ensure, .plane = BH_PLANE_CONTROL };

	CU_ASSERT_EQUAL(unsanctioned_by(&bad), 1);
	CU_ASSERT_EQUAL(bad.status, 0); /* counted, and let in */
	CU_ASSERT_EQUAL(unsanctioned_by(&good), 0);
	CU_ASSERT_EQUAL(unsanctioned_by(&nested), 0);
	CU_ASSERT_EQUAL(unsanctioned_by(&outer), 1);
	CU_ASSERT_EQUAL(unsanctioned_by(&raw), 1);
	CU_ASSERT_EQUAL(site_number("unit.policed", "unsanctioned"), 2);
	CU_ASSERT_EQUAL(site_number("unit.allowed", "unsanctioned"), 0);
	CU_ASSERT_EQUAL(site_number("raw:host", "unsanctioned"), 1);
}

static void gil2_others_exempt(void)
{
	bh_gil_site data = add_site("exempt", BH_SITE_DATA_ONLY);
	struct job worker = { .run = enter_and_leave, .plane = BH_PLANE_DATA, .site = data };
	struct job untagged = { .run = enter_and_leave, .plane = BH_PLANE_NONE, .site = data };

	CU_ASSERT_EQUAL(unsanctioned_by(&worker), 0);
	CU_ASSERT_EQUAL(unsanctioned_by(&untagged), 0);
	CU_ASSERT_EQUAL(site_number("unit.exempt", "entries"), 2);
}

static void gil3_site_add_refuses(void)
{
	static const struct {
		const char *label, *name;
		int policy;
		bh_status status;
		const char *id;
	} cases[] = {
		{ "unit", "none", BH_SITE_UNCLASSIFIED, -EINVAL, "gil.site_unclassified" },
		{ "unit", "three", 3, -EINVAL, "gil.site_unclassified" },
		{ "unit", "", BH_SITE_DATA_ONLY, -EINVAL, "gil.site_name" },
		{ "unit", "Upper", BH_SITE_DATA_ONLY, -EINVAL, "gil.site_name" },
		{ "unit", "dotted.name", BH_SITE_DATA_ONLY, -EINVAL, "gil.site_name" },
		{ "unit", "a-name-that-is-longer-than-thirty-one", BH_SITE_DATA_ONLY, -EINVAL,
		  "gil.site_name" },
		{ "unit", NULL, BH_SITE_DATA_ONLY, -EINVAL, "gil.site_name" },
		{ "9unit", "x", BH_SITE_DATA_ONLY, -EINVAL, "gil.site_label" },
		{ "host", "dispatch", BH_SITE_DATA_ONLY, -EINVAL, "gil.site_label" },
		{ "unit", "twice", BH_SITE_CONTROL_ALLOWED, -EEXIST, "gil.site_duplicate" },
	};
	bh_gil_site twice = add_site("twice", BH_SITE_DATA_ONLY);

	CU_ASSERT_STRING_EQUAL(bh_gil_site_name(twice), "unit.twice");
	for (size_t i = 0; i < BH_ARRAY_LEN(cases); i++) {
		struct bh_error err = { 0 };
		bh_gil_site site = 4711;

		CU_ASSERT_EQUAL(bh_gil_site_add(cases[i].label, cases[i].name,
						(enum bh_site_policy)cases[i].policy, &site, &err),
				cases[i].status);
		CU_ASSERT_STRING_EQUAL(err.id, cases[i].id);
		CU_ASSERT_EQUAL(site, 4711);
	}
}

static void gil3_unknown_site(void)
{
	struct bh_gil_scope scope;
	struct bh_error err = { 0 };

	CU_ASSERT_EQUAL(bh_gil_enter(BH_GIL_SITES_MAX - 1, BH_HERE, &scope, &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(err.id, "gil.site_unknown");
}

static void gil3_host_sites_named(void)
{
	for (bh_gil_site site = 0; site < BH_GIL_HOST_SITES; site++)
		CU_ASSERT_EQUAL(strncmp(bh_gil_site_name(site), "host.", 5), 0);
}

/* ---- GIL-6: the holder ----------------------------------------------------------------------- */

static bool holder_is(uint32_t tid, bh_gil_site site, struct bh_gil_holder *ret_holder)
{
	bh_gil_holder_read(ret_holder);
	return ret_holder->held && ret_holder->tid == tid && ret_holder->site == site;
}

static void gil6_holder_in_scope(void)
{
	struct job job = { .run = hold, .plane = BH_PLANE_DATA };
	struct bh_gil_holder holder;

	job.site = add_site("hold", BH_SITE_DATA_ONLY);
	job_start(&job, "holding");
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&job.in)));
	CU_ASSERT_TRUE(holder_is(job.tid, job.site, &holder));
	CU_ASSERT_STRING_EQUAL(holder.thread, "holding");
	CU_ASSERT_EQUAL(holder.identity.plane, BH_PLANE_DATA);
	CU_ASSERT_STRING_EQUAL(holder.identity.label, "pool");
	CU_ASSERT_TRUE(holder.since_ns <= bh_now_ns());
	CU_ASSERT_TRUE(bh_gil_thread_is_in(job.tid));
	job_join(&job);
	bh_gil_holder_read(&holder);
	CU_ASSERT_FALSE(holder.held);
	CU_ASSERT_FALSE(bh_gil_thread_is_in(job.tid));
}

static void hold_by_worker(struct job *job)
{
	CHILD_CHECK(bh_gil_worker_start(NULL) == 0);
	hold(job);
	bh_gil_worker_stop();
}

static void gil6_holder_with_kept_state(void)
{
	struct job job = { .run = hold_by_worker, .plane = BH_PLANE_DATA, .site = BH_SITE_TEST };
	struct bh_gil_holder holder;

	job_start(&job, "keeping");
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&job.in)));
	CU_ASSERT_TRUE(holder_is(job.tid, job.site, &holder));
	job_join(&job);
}

static void hold_raw(struct job *job)
{
	PyGILState_STATE state = PyGILState_Ensure();

	atomic_store(&job->in, true);
	while (!atomic_load(&job->go))
		nap();
	PyGILState_Release(state);
}

static void gil6_holder_raw(void)
{
	struct job job = { .run = hold_raw };
	struct bh_gil_holder holder;
	json_t *view;

	job_start(&job, "rawhide");
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&job.in)));
	CU_ASSERT_TRUE(holder_is(job.tid, BH_GIL_SITE_NONE, &holder));
	view = bh_gil_render(NULL);
	CU_ASSERT_STRING_EQUAL(
		json_string_value(json_object_get(json_object_get(view, "holder"), "site")),
		"raw:host");
	CU_ASSERT_STRING_EQUAL(
		json_string_value(json_object_get(json_object_get(view, "holder"), "thread")),
		"rawhide");
	json_decref(view);
	job_join(&job);
}

typedef void callback_fn(void *);

static bool copy_file(const char *from, const char *to)
{
	FILE *in = fopen(from, "re"), *out = fopen(to, "we");
	char block[4096];
	bool whole = in && out;
	size_t n;

	while (whole && (n = fread(block, 1, sizeof(block), in)) > 0)
		whole = fwrite(block, 1, n, out) == n;
	if (in)
		fclose(in);
	return out && fclose(out) == 0 && whole;
}

/* Opens the library, has it take the GIL `n` times, and closes it. */
static void take_through(const char *path, int n)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	void (*enter)(callback_fn *, void *);

	CU_ASSERT_PTR_NOT_NULL_FATAL(library);
	enter = (void (*)(callback_fn *, void *))dlsym(library, "statics_enter");
	CU_ASSERT_PTR_NOT_NULL_FATAL(enter);
	for (int i = 0; i < n; i++) {
		/* The state that it returns is UNLOCKED: this thread holds nothing yet. */
		enter((callback_fn *)(void *)PyGILState_Ensure, NULL);
		PyGILState_Release(PyGILState_UNLOCKED);
	}
	CU_ASSERT_EQUAL(dlclose(library), 0);
}

static char library_paths[3][128];

static void take_through_all(struct job *job)
{
	(void)job;
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < 3; i++)
			take_through(library_paths[i], 5 + i);
}

/* Two packages' modules of one name, one whose name is no UTF-8; all of them closed and opened again,
 * where the loader gives one the addresses of another. */
static void gil6_library_names(void)
{
	char dir[] = "/tmp/bh-gil-XXXXXX", folders[2][32], from[256], want[160];
	char(*paths)[128] = library_paths;
	struct job job = { .run = take_through_all };
	const char *build = getenv("BH_TEST_BUILDDIR");

	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
	for (int i = 0; i < 2; i++) {
		snprintf(folders[i], sizeof(folders[i]), "%s/%c", dir, 'a' + i);
		CU_ASSERT_EQUAL_FATAL(mkdir(folders[i], 0700), 0);
		snprintf(paths[i], sizeof(library_paths[i]), "%s/_C.so", folders[i]);
	}
	snprintf(paths[2], sizeof(library_paths[2]), "%s/b\xff\nd.so", dir);
	snprintf(from, sizeof(from), "%s/tests/shims/.libs/statics.so", build ? build : ".");
	for (int i = 0; i < 3; i++)
		CU_ASSERT_FATAL(copy_file(from, paths[i]));
	job_run(&job, "libraries");
	CU_ASSERT_EQUAL(site_number("raw:_C.so", "entries"), 15);
	snprintf(want, sizeof(want), "raw:%s", paths[1]);
	CU_ASSERT_EQUAL(site_number(want, "entries"), 18);
	CU_ASSERT_EQUAL(site_number("raw:b??d.so", "entries"), 21);
	for (int i = 0; i < 3; i++)
		unlink(paths[i]);
	for (int i = 0; i < 2; i++)
		rmdir(folders[i]);
	rmdir(dir);
}

static void gil6_raw_libraries(void)
{
	int local = 0;
	uint32_t mine = bh_gil_account_raw(python_run), libc = bh_gil_account_raw(getenv);

	CU_ASSERT_STRING_EQUAL(bh_gil_account_name(mine), "raw:host");
	CU_ASSERT_STRING_EQUAL(bh_gil_account_name(libc), "raw:libc.so.6");
	CU_ASSERT_EQUAL(bh_gil_account_raw(getpid), libc);
	CU_ASSERT_STRING_EQUAL(bh_gil_account_name(bh_gil_account_raw(&local)), "raw:(other code)");
	CU_ASSERT_EQUAL(site_number("raw:(other code)", "entries"), 0);
}

/* A copy of the C library's libm under `name`, below a folder of its own. */
static bool copy_libm(const char *name, char folder[32], char *ret_path, size_t size)
{
	void *libm = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
	struct link_map *map;
	char command[512];

	strcpy(folder, "/tmp/bh-gil-XXXXXX");
	if (!libm || dlinfo(libm, RTLD_DI_LINKMAP, &map) != 0 || !mkdtemp(folder))
		return false;
	snprintf(ret_path, size, "%s/%s", folder, name);
	snprintf(command, sizeof(command), "cp -L '%s' '%s'", map->l_name, ret_path);
	return system(command) == 0;
}

static void gil6_library_of_any_name(void)
{
	char folder[32], path[128];
	void *library, *address;
	json_t *view;

	CU_ASSERT_TRUE_FATAL(copy_libm("g\xc3\xbc\xff.so", folder, path, sizeof(path)));
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	address = library ? dlsym(library, "lgamma") : NULL;
	unlink(path);
	rmdir(folder);
	CU_ASSERT_PTR_NOT_NULL_FATAL(address);
	CU_ASSERT_STRING_EQUAL(bh_gil_account_name(bh_gil_account_raw(address)), "raw:g???.so");
	CU_ASSERT_EQUAL(site_number("raw:g???.so", "entries"), 0);
	view = bh_gil_render(NULL);
	CU_ASSERT_PTR_NOT_NULL(view);
	json_decref(view);
}

/* A thread that Python made and that the ledger never saw. */
static void gil6_holder_pythons_thread(void)
{
	struct bh_gil_holder holder = { 0 };
	uint64_t since;

	bh_gil_main_enter(BH_SITE_TEST);
	CU_ASSERT_EQUAL(python_run("spin = True\n"
				   "def spinner():\n"
				   "    global tid\n"
				   "    tid = threading.get_native_id()\n"
				   "    while spin: pass\n"
				   "thread = threading.Thread(target=spinner)\n"
				   "thread.start()\n"),
			0);
	bh_gil_main_leave();
	CU_ASSERT_TRUE(EVENTUALLY((bh_gil_holder_read(&holder), holder.held)));
	CU_ASSERT_EQUAL(holder.site, BH_GIL_SITE_NONE);
	CU_ASSERT_EQUAL(holder.identity.plane, BH_PLANE_NONE);
	CU_ASSERT_NOT_EQUAL(holder.thread[0], '\0');
	/* Held without a switch: `since` is the first sample's. */
	bh_gil_sample(BH_NS_PER_MS);
	bh_gil_holder_read(&holder);
	since = holder.since_ns;
	nap();
	bh_gil_sample(BH_NS_PER_MS);
	bh_gil_holder_read(&holder);
	CU_ASSERT_EQUAL(holder.since_ns, since);
	CU_ASSERT_TRUE(site_number("python", "held_s") > 0);
	bh_gil_main_enter(BH_SITE_TEST);
	CU_ASSERT_EQUAL(python_long("tid"), holder.tid);
	python_run("spin = False\nthread.join()\n");
	bh_gil_main_leave();
}

static void spin_python(struct job *job)
{
	struct bh_gil_scope scope;

	CHILD_CHECK(bh_gil_worker_start(NULL) == 0);
	while (!atomic_load(&job->go)) {
		CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
		atomic_store(&job->in, true);
		python_run("for i in range(20000): pass\n");
		bh_gil_leave(&scope);
	}
	bh_gil_worker_stop();
}

static void gil6_shares_of_held(void)
{
	struct job a = { .run = spin_python, .plane = BH_PLANE_DATA },
		   b = { .run = spin_python, .plane = BH_PLANE_DATA };
	uint64_t began = bh_now_ns(), last = began, now;
	struct bh_deadline until = PATIENCE;
	double held_a, held_b;

	a.site = add_site("spin-a", BH_SITE_DATA_ONLY);
	b.site = add_site("spin-b", BH_SITE_DATA_ONLY);
	job_start(&a, "spin-a");
	job_start(&b, "spin-b");
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&a.in) && atomic_load(&b.in)));
	do {
		nap();
		now = bh_now_ns();
		bh_gil_sample(now - last);
		last = now;
		held_a = site_number("unit.spin-a", "held_s");
		held_b = site_number("unit.spin-b", "held_s");
	} while ((held_a < 0.05 || held_b < 0.05) && !bh_deadline_passed(until));
	CU_ASSERT_TRUE(held_a >= 0.05);
	CU_ASSERT_TRUE(held_b >= 0.05);
	/* A microsecond for the rounding of three doubles. */
	CU_ASSERT_TRUE(held_a + held_b <= (double)(now - began) / 1e9 + 1e-6);
	job_join(&a);
	job_join(&b);
	CU_ASSERT_TRUE(site_number("unit.spin-a", "inside_s") > 0);
	CU_ASSERT_TRUE(site_number("unit.spin-a", "inside_max_s") <=
		       site_number("unit.spin-a", "inside_s"));
	/* Each had to wait for the other. */
	CU_ASSERT_TRUE(site_number("unit.spin-a", "wait_s") > 0 &&
		       site_number("unit.spin-b", "wait_s") > 0);
}

static void gil6_waits_are_measured(void)
{
	struct job holder = { .run = hold, .site = BH_SITE_TEST },
		   waiter = { .run = enter_and_leave };
	uint64_t began;
	json_t *view;
	const json_t *row;
	bool seen = false;
	double waited;

	waiter.site = add_site("waiter", BH_SITE_DATA_ONLY);
	job_start(&holder, "holder");
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&holder.in)));
	job_start(&waiter, "waiter");
	for (struct bh_deadline until = PATIENCE; !seen && !bh_deadline_passed(until); nap()) {
		view = bh_gil_render(NULL);
		row = find_by(json_object_get(view, "threads"), "thread", "waiter");
		seen = row &&
		       strcmp(json_string_value(json_object_get(row, "state")), "waiting") == 0 &&
		       strcmp(json_string_value(json_object_get(row, "site")), "unit.waiter") == 0;
		json_decref(view);
	}
	CU_ASSERT_TRUE(seen);
	CU_ASSERT_TRUE(bh_gil_thread_is_in(waiter.tid));
	began = bh_now_ns();
	for (int i = 0; i < 20; i++)
		nap();
	waited = (double)(bh_now_ns() - began) / 1e9;
	job_join(&holder);
	job_join(&waiter);
	CU_ASSERT_TRUE(site_number("unit.waiter", "wait_max_s") >= waited);
	CU_ASSERT_TRUE(site_number("unit.waiter", "inside_max_s") < waited);
}

/* _ctypes lets go of the GIL around a foreign call, through the interposed functions. */
static void gil6_extensions_are_seen(void)
{
	double entries = site_number("python", "entries");

	bh_gil_main_enter(BH_SITE_TEST);
	CU_ASSERT_EQUAL(
		python_run(
			"import ctypes\n"
			"thread = threading.Thread(target=ctypes.CDLL(None).usleep, args=(100,))\n"
			"thread.start()\nthread.join()\n"),
		0);
	bh_gil_main_leave();
	CU_ASSERT_EQUAL(site_number("python", "entries"), entries + 1);
}

static void *nothing(void *arg)
{
	return arg;
}

static bool row_is_gone(const char *name)
{
	json_t *view = bh_gil_render(NULL);
	bool gone = !find_by(json_object_get(view, "threads"), "thread", name);

	json_decref(view);
	return gone;
}

static void gil6_rows_end_with_threads(void)
{
	struct job job = { .run = enter_and_leave, .site = BH_SITE_TEST };
	pthread_t idle;

	job_run(&job, "mayfly");
	CU_ASSERT_TRUE(row_is_gone("mayfly"));
	/* More threads in turn than there are rows. */
	for (int i = 0; i < 1100; i++) {
		struct job next = { .run = enter_and_leave, .site = BH_SITE_TEST };

		job_run(&next, "one-of-many");
	}
	CU_ASSERT_TRUE(row_is_gone("one-of-many"));
	CU_ASSERT_EQUAL(pthread_create(&idle, NULL, nothing, NULL),
			0); /* a thread that never enters has none */
	CU_ASSERT_EQUAL(pthread_join(idle, NULL), 0);
}

/* ---- GIL-8: kept states ---------------------------------------------------------------------- */

static long count_states(void)
{
	long n = 0;

	for (PyThreadState *state = PyInterpreterState_ThreadHead(PyInterpreterState_Main()); state;
	     state = PyThreadState_Next(state))
		n++;
	return n;
}

static void count_in_local(struct job *job)
{
	struct bh_gil_scope scope;

	CHILD_CHECK(bh_gil_worker_start(NULL) == 0);
	for (int i = 0; i < 100; i++) {
		CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
		CHILD_CHECK(
			python_run(
				"loc.n = getattr(loc, 'n', 0) + 1\nthreading.current_thread()\n") ==
			0);
		job->number = python_long("loc.n");
		job->status = (bh_status)count_states();
		bh_gil_leave(&scope);
	}
	CHILD_CHECK(bh_gil_worker_start(NULL) == -EEXIST);
	bh_gil_worker_stop();
	bh_gil_worker_stop(); /* the second finds nothing */
}

static void gil8_kept_state(void)
{
	struct job job = { .run = count_in_local, .plane = BH_PLANE_DATA, .site = BH_SITE_TEST };
	long states, active;

	bh_gil_main_enter(BH_SITE_TEST);
	states = count_states();
	active = python_long("len(threading._active)");
	bh_gil_main_leave();
	job_run(&job, "keeper");
	CU_ASSERT_EQUAL(job.number, 100);
	CU_ASSERT_EQUAL(job.status, states + 1);
	bh_gil_main_enter(BH_SITE_TEST);
	CU_ASSERT_EQUAL(count_states(), states);
	CU_ASSERT_EQUAL(python_long("len(threading._active)"), active);
	bh_gil_main_leave();
}

static void come_and_go(struct job *job)
{
	struct bh_gil_scope scope;

	CHILD_CHECK(bh_gil_worker_start(NULL) == 0);
	CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
	job->status = (bh_status)count_states();
	bh_gil_leave(&scope);
	bh_gil_worker_stop();
}

/* H05: pools are built and stopped again and again. */
static void gil8_states_do_not_grow(void)
{
	long states;

	bh_gil_main_enter(BH_SITE_TEST);
	states = count_states();
	bh_gil_main_leave();
	for (int i = 0; i < 1000; i++) {
		struct job job = { .run = come_and_go,
				   .plane = BH_PLANE_DATA,
				   .site = BH_SITE_TEST };

		job_run(&job, "keeper");
		if (job.status != states + 1) {
			CU_ASSERT_EQUAL(job.status, states + 1);
			break;
		}
	}
	bh_gil_main_enter(BH_SITE_TEST);
	CU_ASSERT_EQUAL(count_states(), states);
	bh_gil_main_leave();
}

/* ---- children -------------------------------------------------------------------------------- */

/* A fact of an error, "" where it has none. */
static const char *fact(const struct bh_error *err, const char *key)
{
	const char *value = bh_error_fact(err, key);

	return value ? value : "";
}

/* GIL-5: two inside (one of them away from the GIL, one holding it), one that comes late by the
 * host, one that comes late raw. */
static int child_gate(unsigned seed)
{
	struct job inside = { .run = stay_in_scope, .plane = BH_PLANE_DATA, .site = BH_SITE_TEST };
	struct job holder = { .run = hold, .site = BH_SITE_TEST };
	struct job late = { .run = enter_and_leave, .site = BH_SITE_TEST };
	struct job raw = { .run = raw_ensure };
	struct bh_error err = { 0 };
	json_t *view;

	(void)seed;
	host_up();
	job_start(&inside, "lodger");
	CHILD_CHECK(EVENTUALLY(atomic_load(&inside.in)));
	job_start(&holder, "hoarder");
	CHILD_CHECK(EVENTUALLY(atomic_load(&holder.in)));
	CHILD_CHECK(bh_gil_gate_close(bh_deadline_after(20 * BH_NS_PER_MS), &err) == -ETIMEDOUT);
	CHILD_CHECK(strcmp(err.id, "gil.gate_timeout") == 0);
	CHILD_CHECK(strcmp(fact(&err, "inside"), "2") == 0);
	CHILD_CHECK(strcmp(fact(&err, "thread"), "lodger") == 0);
	CHILD_CHECK(strcmp(fact(&err, "site"), "host.test") == 0);
	CHILD_CHECK(strcmp(fact(&err, "state"), "inside") == 0);
	CHILD_CHECK(strtol(fact(&err, "since_ms"), NULL, 10) >= 20);
	CHILD_CHECK(strcmp(fact(&err, "holder"), "hoarder") == 0);
	CHILD_CHECK(bh_gil_gate_closed());
	job_join(&holder);

	job_run(&late, "late");
	CHILD_CHECK(late.status == -ESHUTDOWN);
	CHILD_CHECK(bh_gil_parked() == 0);
	job_start(&raw, "latecomer");
	CHILD_CHECK(EVENTUALLY(bh_gil_parked() == 1));
	view = bh_gil_render(NULL);
	CHILD_CHECK(strcmp(json_string_value(json_object_get(view, "gate")), "closed") == 0);
	CHILD_CHECK(strcmp(json_string_value(json_object_get(
				   find_by(json_object_get(view, "threads"), "thread", "latecomer"),
				   "state")),
			   "parked") == 0);
	json_decref(view);
	CHILD_CHECK(!bh_gil_thread_is_in(raw.tid));

	/* Whoever is inside comes back to the GIL and goes on to the end of its scope. */
	job_join(&inside);
	CHILD_CHECK(inside.status == 0 && inside.number == 1);
	CHILD_CHECK(bh_gil_gate_close(PATIENCE, NULL) == 0);
	CHILD_CHECK(host_down() == 0);
	CHILD_CHECK(!raw.done && raw.number == 0);
	return 0;
}

/* Leaves some time after the gate has closed, before or while the closer goes to sleep. */
static void leave_later(struct job *job)
{
	struct bh_gil_scope scope;

	CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
	atomic_store(&job->in, true);
	CHILD_CHECK(EVENTUALLY(bh_gil_gate_closed()));
	for (long i = 0; i < job->number; i++)
		nap();
	bh_gil_leave(&scope);
}

/* GIL-5: the closer sleeps until the last one leaves. */
static int child_close_waits(unsigned seed)
{
	struct job inside = { .run = leave_later, .site = BH_SITE_TEST, .number = seed };
	struct bh_deadline until = PATIENCE;

	host_up();
	job_start(&inside, "lodger");
	CHILD_CHECK(EVENTUALLY(atomic_load(&inside.in)));
	CHILD_CHECK(bh_gil_gate_close(until, NULL) == 0);
	CHILD_CHECK(!bh_deadline_passed(until)); /* woken, not run out */
	CHILD_CHECK(!bh_gil_thread_is_in(inside.tid));
	job_join(&inside);
	return host_down();
}

static void vanish(struct job *job)
{
	struct bh_gil_scope scope;

	CHILD_CHECK(bh_gil_enter(job->site, BH_HERE, &scope, NULL) == 0);
	PyEval_SaveThread();
	pthread_exit(NULL);
}

static int child_vanish(unsigned seed)
{
	struct job gone = { .run = vanish, .site = BH_SITE_TEST };

	(void)seed;
	host_up();
	job_run(&gone, "gone");
	CHILD_CHECK(bh_gil_gate_close(PATIENCE, NULL) == 0);
	return host_down();
}

/* A native frame below a daemon thread of Python's, which a pthread_exit from inside would
 * unwind. */
static struct {
	_Atomic uint32_t tid;
	_Atomic bool unwound;
} daemon_frame;

static void note_unwound(void *arg)
{
	(void)arg;
	atomic_store(&daemon_frame.unwound, true);
}

static PyObject *daemon_spin(PyObject *self, PyObject *args)
{
	(void)self;
	(void)args;
	pthread_cleanup_push(note_unwound, NULL);
	atomic_store(&daemon_frame.tid, (uint32_t)gettid());
	python_run("while True: pass\n");
	pthread_cleanup_pop(0);
	Py_RETURN_NONE;
}

/* Whether the thread has all signals blocked, as those have that were stopped for good. */
static bool is_hung(uint32_t tid)
{
	char path[64], line[256];
	unsigned long long blocked = 0;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/self/task/%u/status", tid);
	status = fopen(path, "r");
	while (status && fgets(line, sizeof(line), status))
		sscanf(line, "SigBlk: %llx", &blocked);
	if (status)
		fclose(status);
	return blocked & 1ull << (SIGTERM - 1);
}

static int child_daemon(unsigned seed)
{
	static PyMethodDef method = { "daemon_spin", daemon_spin, METH_NOARGS, NULL };
	PyObject *function;

	(void)seed;
	host_up();
	bh_gil_main_enter(BH_SITE_TEST);
	function = PyCFunction_New(&method, NULL);
	CHILD_CHECK(function && PyModule_AddObject(PyImport_AddModule("__main__"), "daemon_spin",
						   function) == 0);
	/* It has been away from the GIL and come back through an extension's raw calls before. */
	CHILD_CHECK(python_run("import ctypes\n"
			       "def run():\n    ctypes.CDLL(None).usleep(10)\n    daemon_spin()\n"
			       "threading.Thread(target=run, daemon=True).start()\n") == 0);
	bh_gil_main_leave();
	CHILD_CHECK(EVENTUALLY(atomic_load(&daemon_frame.tid)));
	CHILD_CHECK(bh_gil_gate_close(PATIENCE, NULL) ==
		    0); /* a running daemon does not hold it open */
	CHILD_CHECK(host_down() == 0);
	CHILD_CHECK(EVENTUALLY(atomic_load(&daemon_frame.unwound) || is_hung(daemon_frame.tid)));
	CHILD_CHECK(!atomic_load(&daemon_frame.unwound));
	_exit(0);
}

static int child_unsanctioned(unsigned seed)
{
	struct job bad = { .run = enter_and_leave, .plane = BH_PLANE_CONTROL };

	(void)seed;
	host_up();
	CHILD_CHECK(bh_gil_site_add("unit", "data", BH_SITE_DATA_ONLY, &bad.site, NULL) == 0);
	job_run(&bad, "rogue");
	bh_gil_set_unsanctioned(BH_GIL_ABORT);
	bad.done = false;
	job_run(&bad, "rogue");
	return 0;
}

/* EXIT-5: the fork happens while another thread is inside. */
static int child_fork(unsigned seed)
{
	struct job inside = { .run = stay_in_scope, .site = BH_SITE_TEST };
	int status;
	pid_t pid;

	(void)seed;
	host_up();
	job_start(&inside, "parental");
	CHILD_CHECK(EVENTUALLY(atomic_load(&inside.in)));
	pid = fork();
	CHILD_CHECK(pid >= 0);
	if (pid == 0) {
		alarm(30);
		CHILD_CHECK(!bh_gil_thread_is_in(inside.tid));
		CHILD_CHECK(row_is_gone("parental"));
		CHILD_CHECK(bh_gil_gate_close(bh_deadline_after(BH_NS_PER_S), NULL) == 0);
		_exit(0);
	}
	CHILD_CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	job_join(&inside);
	CHILD_CHECK(bh_gil_gate_close(PATIENCE, NULL) == 0);
	return host_down();
}

/* H06: all kinds of threads, at random, through the end of the interpreter. */
struct comer {
	struct job job;
	unsigned seed;
	_Atomic unsigned *n_in;
};

static void wander(unsigned *seed)
{
	struct timespec pause = { .tv_nsec = rand_r(seed) % 200000 };

	if (rand_r(seed) % 4 == 0)
		nanosleep(&pause, NULL);
}

static void comer_was_in(struct comer *comer)
{
	if (!atomic_exchange(&comer->job.in, true))
		atomic_fetch_add(comer->n_in, 1);
}

static void come_by_ensure(struct job *job)
{
	struct comer *comer = bh_container_of(job, struct comer, job);

	for (;;) {
		PyGILState_STATE state = PyGILState_Ensure();

		CHILD_CHECK(python_long("6 * 7") == 42);
		PyGILState_Release(state);
		comer_was_in(comer);
		wander(&comer->seed);
	}
}

/* As pybind11 does it: a state for each visit. */
static void come_by_new_state(struct job *job)
{
	struct comer *comer = bh_container_of(job, struct comer, job);

	for (;;) {
		PyThreadState *state = PyThreadState_New(PyInterpreterState_Main());

		PyEval_AcquireThread(state);
		CHILD_CHECK(python_long("6 * 7") == 42);
		PyThreadState_Clear(state);
		PyThreadState_DeleteCurrent();
		comer_was_in(comer);
		wander(&comer->seed);
	}
}

/* A state for life, attached and detached by either pair of functions. */
static void come_by_attach(struct job *job)
{
	struct comer *comer = bh_container_of(job, struct comer, job);
	PyThreadState *state = PyThreadState_New(PyInterpreterState_Main());

	for (;;) {
		if (rand_r(&comer->seed) % 2)
			PyEval_RestoreThread(state);
		else
			PyEval_AcquireThread(state);
		CHILD_CHECK(python_long("6 * 7") == 42);
		Py_BEGIN_ALLOW_THREADS wander(&comer->seed);
		Py_END_ALLOW_THREADS if (rand_r(&comer->seed) % 2) state = PyEval_SaveThread();
		else PyEval_ReleaseThread(state);
		comer_was_in(comer);
		wander(&comer->seed);
	}
}

#if PY_VERSION_HEX >= 0x030c0000
/* Up to 3.11 a swap neither takes nor drops the GIL. */
static void come_by_swap(struct job *job)
{
	struct comer *comer = bh_container_of(job, struct comer, job);
	PyThreadState *state = PyThreadState_New(PyInterpreterState_Main());

	for (;;) {
		PyThreadState_Swap(state);
		CHILD_CHECK(python_long("6 * 7") == 42);
		PyThreadState_Swap(NULL);
		comer_was_in(comer);
		wander(&comer->seed);
	}
}
#endif

/* A library's thread that calls back into Python through _ctypes. */
static _Atomic uintptr_t callback; /* set by Python; the object behind it lives for good */

static void come_by_callback(struct job *job)
{
	struct comer *comer = bh_container_of(job, struct comer, job);
	int (*call)(void) = (int (*)(void))atomic_load(&callback);

	for (;;) {
		CHILD_CHECK(call() == 42);
		comer_was_in(comer);
		wander(&comer->seed);
	}
}

static void come_by_enter(struct job *job)
{
	struct comer *comer = bh_container_of(job, struct comer, job);
	struct bh_gil_scope scope;

	while ((job->status = bh_gil_enter(BH_SITE_TEST, BH_HERE, &scope, NULL)) == 0) {
		CHILD_CHECK(python_long("6 * 7") == 42);
		bh_gil_leave(&scope);
		comer_was_in(comer);
		wander(&comer->seed);
	}
}

static void come_as_worker(struct job *job)
{
	struct comer *comer = bh_container_of(job, struct comer, job);
	struct bh_gil_scope scope;

	if (bh_gil_worker_start(NULL) < 0)
		return;
	while ((job->status = bh_gil_enter(BH_SITE_TEST, BH_HERE, &scope, NULL)) == 0) {
		CHILD_CHECK(python_long("6 * 7") == 42);
		Py_BEGIN_ALLOW_THREADS wander(&comer->seed);
		Py_END_ALLOW_THREADS bh_gil_leave(&scope);
		comer_was_in(comer);
		wander(&comer->seed);
	}
	bh_gil_worker_stop();
}

/* Python's own threads, daemons and one that must be waited for; what else an app may leave behind:
 * exit handlers that start threads, and objects whose destructors let go of the GIL and come back
 * while the interpreter ends. */
static const char crowd[] =
	"import atexit, ctypes, socket\n"
	"usleep = ctypes.CDLL(None).usleep\n"
	"def busy():\n    while True: pass\n"
	"def sleepy():\n    while True: time.sleep(0.0001)\n"
	"def extension():\n    while True: usleep(50)\n"
	"lock, taken = threading.Lock(), threading.Lock()\n"
	"taken.acquire()\n"
	"def contend():\n"
	"    while True:\n"
	"        with lock: usleep(10)\n"
	"near, far = socket.socketpair()\n"
	"leave = threading.Event()\n"
	"def stay():\n"
	"    while not leave.wait(0.0002): usleep(20)\n"
	"def daemon(f, *args):\n"
	"    threading.Thread(target=f, args=args, daemon=True).start()\n"
	"for f in busy, sleepy, extension, contend, contend, taken.acquire: daemon(f)\n"
	"daemon(near.recv, 1)\n"
	"threading.Thread(target=stay).start()\n"
	"threading._register_atexit(leave.set)\n"
	"atexit.register(lambda: (daemon(extension), daemon(sleepy), daemon(busy)))\n"
	"class Late:\n"
	"    def __init__(self): self.me, self.usleep = self, usleep\n"
	"    def __del__(self): self.usleep(10)\n"
	"late = [Late(), Late()]\n"
	"call = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 42)\n"
	"ctypes.pythonapi.Py_IncRef(ctypes.py_object(call))\n"
	"callback = ctypes.cast(call, ctypes.c_void_p).value\n";

static int child_round(unsigned seed)
{
	static void (*const kinds[])(struct job *) = {
		come_by_ensure,
		come_by_ensure,
		come_by_new_state,
		come_by_attach,
#if PY_VERSION_HEX >= 0x030c0000
		come_by_swap,
#endif
		come_by_callback,
		come_by_enter,
		come_as_worker,
		come_as_worker,
		come_as_worker,
	};
	_Atomic unsigned n_in = 0;
	struct comer comers[BH_ARRAY_LEN(kinds)] = { 0 };

	host_up();
	bh_gil_main_enter(BH_SITE_TEST);
	CHILD_CHECK(python_run(crowd) == 0);
	atomic_store(&callback, (uintptr_t)python_long("callback"));
	bh_gil_main_leave();
	for (size_t i = 0; i < BH_ARRAY_LEN(kinds); i++) {
		comers[i].job.run = kinds[i];
		comers[i].seed = seed * 31 + (unsigned)i;
		comers[i].n_in = &n_in;
		job_start(&comers[i].job, "comer");
	}
	CHILD_CHECK(EVENTUALLY(atomic_load(&n_in) == BH_ARRAY_LEN(kinds)));
	usleep(rand_r(&seed) % 3000);
	/* Python's own end comes first, as in the host: a thread that it waits for must still get in. */
	bh_gil_main_enter(BH_SITE_STOP);
	CHILD_CHECK(python_run("threading._shutdown()\natexit._run_exitfuncs()\n") == 0);
	bh_gil_main_leave();
	CHILD_CHECK(bh_gil_gate_close(PATIENCE, NULL) == 0);
	CHILD_CHECK(host_down() == 0);
	for (size_t i = 0; i < BH_ARRAY_LEN(kinds); i++)
		if (kinds[i] == come_as_worker || kinds[i] == come_by_enter) {
			job_join(&comers[i].job);
			CHILD_CHECK(comers[i].job.status == -ESHUTDOWN);
		}
	_exit(0); /* the parked ones are still there */
}

static const struct {
	const char *name;
	int (*run)(unsigned seed);
} children[] = {
	{ "gate", child_gate },
	{ "close-waits", child_close_waits },
	{ "vanish", child_vanish },
	{ "daemon", child_daemon },
	{ "unsanctioned", child_unsanctioned },
	{ "fork", child_fork },
	{ "round", child_round },
};

static int child_main(const char *name, const char *seed)
{
	alarm(60); /* one that hangs ends by SIGALRM */
	for (size_t i = 0; i < BH_ARRAY_LEN(children); i++)
		if (strcmp(children[i].name, name) == 0)
			return children[i].run((unsigned)strtoul(seed, NULL, 10));
	return 64;
}

static void gil5_gate(void)
{
	child_succeeds("gate", 0);
}

static void gil5_close_waits(void)
{
	for (unsigned i = 0; i < 7; i++)
		child_succeeds("close-waits", i);
}

static void gil5_vanished(void)
{
	child_succeeds("vanish", 0);
}

static void gil5_daemons_hang(void)
{
	child_succeeds("daemon", 0);
}

/* Many rounds take time, sanitized ones more: BH_TEST_ROUNDS sets how many. */
static unsigned round_count(void)
{
	const char *text = getenv("BH_TEST_ROUNDS");
	unsigned n = text ? (unsigned)strtoul(text, NULL, 10) : 0;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	return n ? n : 25;
#else
	return n ? n : 100;
#endif
}

static void gil5_finalization_rounds(void)
{
	unsigned n = round_count();

	for (unsigned i = 0; i < n; i++)
		child_succeeds("round", i);
	printf("# %u rounds\n", n);
}

static void gil4_unsanctioned(void)
{
	char output[16384];
	int status = run_child("unsanctioned", 0, output, sizeof(output));

	CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	CU_ASSERT_PTR_NOT_NULL(strstr(output, "site=unit.data"));
	CU_ASSERT_PTR_NOT_NULL(strstr(output, "thread=rogue"));
	CU_ASSERT_PTR_NOT_NULL(strstr(output, "plane=control"));
	CU_ASSERT_PTR_NOT_NULL(strstr(output, "gil_fixture.h:"));
}

static void exit5_forked(void)
{
	child_succeeds("fork", 0);
}

static const struct bh_test tests[] = {
	{ "GIL-1: a nested entry is counted as nested and attributed to the outermost",
	  gil1_outermost },
	{ "GIL-1: raw calls inside a scope are nested", gil1_raw_nested },
	{ "GIL-1: an unbalanced raw call ends with its scope", gil1_unbalanced },
	{ "GIL-1: main is booked at host.dispatch and host.drain", gil1_main_scopes },
	{ "GIL-2: a control thread's outermost entry is policed, raw ones too",
	  gil2_control_policed },
	{ "GIL-2: data and untagged threads are accounted, not policed", gil2_others_exempt },
	{ "GIL-3: unclassified, duplicate and badly named sites are refused",
	  gil3_site_add_refuses },
	{ "GIL-3: a site that nobody added cannot be entered", gil3_unknown_site },
	{ "GIL-3: every host site has its name", gil3_host_sites_named },
	{ "GIL-4: an unsanctioned entry is logged with site, thread and caller, and aborts on "
	  "request",
	  gil4_unsanctioned },
	{ "GIL-5: a closed gate refuses the host, parks raw callers, and names who is in",
	  gil5_gate },
	{ "GIL-5: closing waits for the one inside", gil5_close_waits },
	{ "GIL-5: a thread that ends inside a scope does not keep the gate open", gil5_vanished },
	{ "GIL-5: a daemon thread that CPython would end late is hung, not unwound",
	  gil5_daemons_hang },
	{ "GIL-5: the interpreter ends cleanly among threads that keep coming",
	  gil5_finalization_rounds },
	{ "GIL-6: the holder is the thread in its scope", gil6_holder_in_scope },
	{ "GIL-6: the holder is the worker with a kept state", gil6_holder_with_kept_state },
	{ "GIL-6: a raw holder is named with its library", gil6_holder_raw },
	{ "GIL-6: raw callers are told apart by their libraries", gil6_raw_libraries },
	{ "GIL-6: libraries of one name, of any name, and those opened again have a row each",
	  gil6_library_names },
	{ "GIL-6: a library may have any file name, and JSON takes it all the same",
	  gil6_library_of_any_name },
	{ "GIL-6: a thread of Python's that holds the GIL is named", gil6_holder_pythons_thread },
	{ "GIL-6: the shares of held of two spinners add up to at most the wall time",
	  gil6_shares_of_held },
	{ "GIL-6: waits are measured and shown", gil6_waits_are_measured },
	{ "GIL-6: an extension's raw calls are seen", gil6_extensions_are_seen },
	{ "GIL-6: a thread's row ends with it", gil6_rows_end_with_threads },
	{ "GIL-8: a kept state keeps threading.local and leaves nothing behind", gil8_kept_state },
	{ "GIL-8: a thousand workers that come and go leave as many states as there were",
	  gil8_states_do_not_grow },
	{ "EXIT-5: nobody inside in the parent holds up a forked child", exit5_forked },
};

int main(int argc, char **argv)
{
	int failed;

	if (argc == 4 && strcmp(argv[1], "--child") == 0)
		return child_main(argv[2], argv[3]);
	host_up();
	failed = bh_tap_main(argc, argv, "gil", tests, BH_ARRAY_LEN(tests));
	if (bh_gil_gate_close(PATIENCE, NULL) < 0 || host_down() != 0)
		return 1;
	return failed;
}
