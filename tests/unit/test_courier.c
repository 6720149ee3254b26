/* SPDX-License-Identifier: BSD-3-Clause */
/* test_courier - the suite of host/gil/courier.c, with a real interpreter. Each test starts a
 * courier and ends it. */
#include "config.h"

#include <Python.h>

#include "host/gil/courier.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/core/sync.h"
#include "host/gil/internal.h"
#include "tests/unit/tap.h"

#ifndef BH_PYTHON
#define BH_PYTHON "/usr/bin/python3"
#endif

/* Generous: only a test that fails waits for so long. */
#define PATIENCE bh_deadline_after(20 * BH_NS_PER_S)

/* True once `condition` holds; false when it did not within the test's patience. */
#define EVENTUALLY(condition)                                                                      \
	({                                                                                         \
		struct bh_deadline until_ = PATIENCE;                                              \
		bool held_;                                                                        \
		while (!(held_ = (condition)) && !bh_deadline_passed(until_))                      \
			nap();                                                                     \
		held_;                                                                             \
	})

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
}

/* On threads, where CUnit is not to be used. */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);    \
			_exit(9);                                                                  \
		}                                                                                  \
	} while (0)

static void host_up(void)
{
	PyPreConfig pre;
	PyConfig config;
	PyStatus status;

	MUST(bh_gil_init(NULL) == 0);
	bh_gil_adopt_main();
	PyPreConfig_InitIsolatedConfig(&pre);
	pre.utf8_mode = 1;
	status = Py_PreInitialize(&pre);
	MUST(!PyStatus_Exception(status));
	PyConfig_InitIsolatedConfig(&config);
	config.install_signal_handlers = 0;
	config.parse_argv = 0;
	config.write_bytecode = 0;
	status = PyConfig_SetBytesString(&config, &config.program_name, BH_PYTHON);
	MUST(!PyStatus_Exception(status));
	status = Py_InitializeFromConfig(&config);
	MUST(!PyStatus_Exception(status));
	PyConfig_Clear(&config);
	bh_gil_interpreter_up();
	bh_gil_main_leave();
}

/* ---- what is posted -------------------------------------------------------------------------- */

/* One job: by whom, which, how often it ran and where. */
struct job {
	unsigned poster, number;
	_Atomic unsigned ran;
	_Atomic pid_t tid;
	_Atomic bool raised; /* an exception was set when it began */
};

/* G: in the order in which they ran. */
static struct job *order[8192];
static _Atomic size_t n_order;

static void run_job(void *arg)
{
	struct job *job = arg;
	size_t n = atomic_load(&n_order);

	MUST(PyGILState_Check());
	job->tid = gettid();
	job->raised = PyErr_Occurred() != NULL;
	atomic_fetch_add(&job->ran, 1);
	if (n < BH_ARRAY_LEN(order))
		order[n] = job;
	atomic_store(&n_order, n + 1);
}

static void leave_exception(void *arg)
{
	run_job(arg);
	PyErr_SetString(PyExc_ValueError, "left behind");
}

static struct {
	_Atomic bool in, go;
} stay;

/* Keeps the courier busy, the GIL let go of, until told. */
static void run_stay(void *arg)
{
	(void)arg;
	Py_BEGIN_ALLOW_THREADS atomic_store(&stay.in, true);
	while (!atomic_load(&stay.go))
		nap();
	Py_END_ALLOW_THREADS
}

static void up(void)
{
	atomic_store(&n_order, 0);
	atomic_store(&stay.in, false);
	atomic_store(&stay.go, false);
	CU_ASSERT_EQUAL_FATAL(bh_courier_start(NULL), 0);
}

static void down(void)
{
	struct bh_error err = { 0 };

	bh_courier_close();
	CU_ASSERT_EQUAL(bh_courier_join(PATIENCE, &err), 0);
}

static double courier_says(const char *field)
{
	json_t *view = bh_courier_render();
	double number = json_number_value(json_object_get(view, field));

	json_decref(view);
	return number;
}

/* Rows of /v1/gil in a state; of one thread, or of all with NULL. */
static int rows_in(const char *state, const char *thread)
{
	json_t *view = bh_gil_render(NULL), *row;
	size_t i;
	int n = 0;

	json_array_foreach(json_object_get(view, "threads"), i, row)
	{
		const char *name = json_string_value(json_object_get(row, "thread"));

		if (thread && strcmp(name, thread) != 0)
			continue;
		n += strcmp(json_string_value(json_object_get(row, "state")), state) == 0;
	}
	json_decref(view);
	return n;
}

static double entries_at(const char *site)
{
	json_t *view = bh_gil_render(NULL), *row;
	double n = 0;
	size_t i;

	json_array_foreach(json_object_get(view, "sites"), i,
			   row) if (strcmp(json_string_value(json_object_get(row, "site")), site) ==
				    0) n = json_number_value(json_object_get(row, "entries"));
	json_decref(view);
	return n;
}

/* ---- threads --------------------------------------------------------------------------------- */

static struct {
	pthread_t thread;
	_Atomic bool in, go;
} holder;

static void *hold(void *arg)
{
	struct bh_gil_scope scope;

	(void)arg;
	MUST(bh_gil_enter(BH_SITE_TEST, BH_HERE, &scope, NULL) == 0);
	atomic_store(&holder.in, true);
	while (!atomic_load(&holder.go))
		nap();
	bh_gil_leave(&scope);
	return NULL;
}

/* Somebody holds the GIL, in C, until hold_end(). */
static void hold_begin(void)
{
	atomic_store(&holder.in, false);
	atomic_store(&holder.go, false);
	CU_ASSERT_EQUAL_FATAL(bh_thread_create(&holder.thread, "holder", hold, NULL, NULL), 0);
	CU_ASSERT_TRUE_FATAL(EVENTUALLY(atomic_load(&holder.in)));
}

static void hold_end(void)
{
	atomic_store(&holder.go, true);
	CU_ASSERT_EQUAL(bh_thread_join(holder.thread, PATIENCE, NULL), 0);
}

struct poster {
	pthread_t thread;
	unsigned number, n_jobs;
	struct job *jobs;
	bool *accepted;
};

static void *post_all(void *arg)
{
	struct poster *poster = arg;

	for (unsigned i = 0; i < poster->n_jobs; i++) {
		struct job *job = &poster->jobs[i];
		bh_status st;

		job->poster = poster->number;
		job->number = i;
		do
			st = bh_courier_post(BH_SITE_TEST, run_job, job, NULL);
		while (st == -EAGAIN && (nap(), true));
		MUST(st == 0 || st == -ESHUTDOWN);
		poster->accepted[i] = st == 0;
	}
	return NULL;
}

static void posters_start(struct poster *posters, unsigned n, unsigned n_jobs)
{
	for (unsigned i = 0; i < n; i++) {
		posters[i] = (struct poster){ .number = i, .n_jobs = n_jobs };
		posters[i].jobs = calloc(n_jobs, sizeof(struct job));
		posters[i].accepted = calloc(n_jobs, sizeof(bool));
		MUST(posters[i].jobs && posters[i].accepted);
		MUST(bh_thread_create(&posters[i].thread, "poster", post_all, &posters[i], NULL) ==
		     0);
	}
}

static void posters_join(struct poster *posters, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		CU_ASSERT_EQUAL(bh_thread_join(posters[i].thread, PATIENCE, NULL), 0);
}

static void posters_free(struct poster *posters, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		free(posters[i].jobs);
		free(posters[i].accepted);
	}
}

/* ---- GIL-7 ----------------------------------------------------------------------------------- */

static void gil7_in_order(void)
{
	struct poster posters[3];
	unsigned next[3] = { 0 };

	up();
	posters_start(posters, 3, 1000);
	posters_join(posters, 3);
	down();
	CU_ASSERT_EQUAL_FATAL(atomic_load(&n_order), 3000);
	for (size_t i = 0; i < 3000; i++)
		CU_ASSERT_EQUAL(order[i]->number, next[order[i]->poster]++);
	posters_free(posters, 3);
}

static void gil7_bounded(void)
{
	static struct job jobs[BH_COURIER_QUEUE + 1];
	struct bh_error err = { 0 };
	double refused = courier_says("refused");

	memset(jobs, 0, sizeof(jobs));
	up();
	hold_begin();
	for (unsigned i = 0; i < BH_COURIER_QUEUE; i++)
		CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, run_job, &jobs[i], NULL), 0);
	CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, run_job, &jobs[BH_COURIER_QUEUE], &err),
			-EAGAIN);
	CU_ASSERT_STRING_EQUAL(err.id, "gil.courier_full");
	CU_ASSERT_EQUAL(courier_says("queued"), BH_COURIER_QUEUE);
	hold_end();
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&n_order) == BH_COURIER_QUEUE));
	CU_ASSERT_TRUE(EVENTUALLY(courier_says("queued") == 0));
	CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, run_job, &jobs[BH_COURIER_QUEUE], NULL), 0);
	down();
	CU_ASSERT_EQUAL(atomic_load(&n_order), BH_COURIER_QUEUE + 1);
	CU_ASSERT_EQUAL(courier_says("refused") - refused, 1);
}

static void gil7_one_waits(void)
{
	static struct job jobs[100];
	struct poster poster = { .n_jobs = 100, .jobs = jobs };
	bool accepted[100];

	poster.accepted = accepted;
	memset(jobs, 0, sizeof(jobs));
	up();
	CU_ASSERT_TRUE(EVENTUALLY(rows_in("outside", "bh-courier") == 1));
	hold_begin();
	/* None of the posts blocks: the GIL is held until after the join. */
	CU_ASSERT_EQUAL(bh_thread_create(&poster.thread, "poster", post_all, &poster, NULL), 0);
	CU_ASSERT_EQUAL(bh_thread_join(poster.thread, PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(EVENTUALLY(rows_in("waiting", "bh-courier") == 1));
	CU_ASSERT_EQUAL(rows_in("waiting", NULL), 1);
	CU_ASSERT_EQUAL(courier_says("queued"), 100);
	CU_ASSERT_TRUE(EVENTUALLY(courier_says("waiting_s") > 0));
	CU_ASSERT_EQUAL(atomic_load(&n_order), 0);
	hold_end();
	down();
	CU_ASSERT_EQUAL(atomic_load(&n_order), 100);
	CU_ASSERT_EQUAL(courier_says("waiting_s"), 0);
}

struct inliner {
	pthread_t thread;
	struct job first, second, third;
	pid_t tid;
	bool kept_exception;
};

static void *post_inside(void *arg)
{
	struct inliner *inliner = arg;
	struct bh_gil_scope scope;
	PyThreadState *off;

	inliner->tid = gettid();
	MUST(bh_gil_enter(BH_SITE_TEST, BH_HERE, &scope, NULL) == 0);
	MUST(bh_courier_post(BH_SITE_TEST, run_job, &inliner->first, NULL) == 0);
	MUST(inliner->first.ran == 1); /* by the time that post returns */
	PyErr_SetString(PyExc_KeyError, "the caller's own");
	MUST(bh_courier_post(BH_SITE_TEST, leave_exception, &inliner->second, NULL) == 0);
	inliner->kept_exception = PyErr_ExceptionMatches(PyExc_KeyError);
	PyErr_Clear();
	off = PyEval_SaveThread();
	MUST(bh_courier_post(BH_SITE_TEST, run_job, &inliner->third, NULL) == 0);
	MUST(EVENTUALLY(inliner->third.ran == 1));
	PyEval_RestoreThread(off);
	bh_gil_leave(&scope);
	return NULL;
}

static void gil7_inline_in_scope(void)
{
	struct inliner inliner = { 0 };
	double ran_inline = courier_says("inline");

	up();
	CU_ASSERT_EQUAL(bh_thread_create(&inliner.thread, "inliner", post_inside, &inliner, NULL),
			0);
	CU_ASSERT_EQUAL(bh_thread_join(inliner.thread, PATIENCE, NULL), 0);
	down();
	CU_ASSERT_EQUAL(inliner.first.tid, inliner.tid);
	CU_ASSERT_EQUAL(inliner.second.tid, inliner.tid);
	CU_ASSERT_FALSE(inliner.second.raised);
	CU_ASSERT_TRUE(inliner.kept_exception);
	/* The scope had let go of the GIL. */
	CU_ASSERT_NOT_EQUAL(inliner.third.tid, inliner.tid);
	CU_ASSERT_EQUAL(courier_says("inline") - ran_inline, 2);
}

static void *post_raw(void *arg)
{
	struct inliner *inliner = arg;
	PyGILState_STATE state = PyGILState_Ensure();

	inliner->tid = gettid();
	MUST(bh_courier_post(BH_SITE_TEST, run_job, &inliner->first, NULL) == 0);
	MUST(inliner->first.ran == 1);
	MUST(PyGILState_Check());
	PyGILState_Release(state);
	return NULL;
}

static void gil7_inline_in_raw(void)
{
	struct inliner inliner = { 0 };

	up();
	CU_ASSERT_EQUAL(bh_thread_create(&inliner.thread, "inliner", post_raw, &inliner, NULL), 0);
	CU_ASSERT_EQUAL(bh_thread_join(inliner.thread, PATIENCE, NULL), 0);
	down();
	CU_ASSERT_EQUAL(inliner.first.tid, inliner.tid);
}

static void gil7_close_works_off(void)
{
	static struct job jobs[51];
	struct bh_error err = { 0 };

	memset(jobs, 0, sizeof(jobs));
	up();
	hold_begin();
	for (unsigned i = 0; i < 50; i++)
		CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, run_job, &jobs[i], NULL), 0);
	bh_courier_close();
	CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, run_job, &jobs[50], &err), -ESHUTDOWN);
	CU_ASSERT_STRING_EQUAL(err.id, "gil.courier_closed");
	CU_ASSERT_EQUAL(atomic_load(&n_order), 0);
	hold_end();
	CU_ASSERT_EQUAL(bh_courier_join(PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(atomic_load(&n_order), 50);
	CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, run_job, &jobs[50], NULL), -ESHUTDOWN);
	CU_ASSERT_EQUAL(bh_courier_join(PATIENCE, NULL), 0); /* again is fine */
	CU_ASSERT_EQUAL(jobs[50].ran, 0);
}

static void gil7_exactly_once(void)
{
	for (int round = 0; round < 20; round++) {
		struct poster posters[4];
		size_t accepted = 0;

		up();
		posters_start(posters, 4, 500);
		CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&n_order) > (size_t)round * 50));
		down();
		posters_join(posters, 4);
		for (unsigned p = 0; p < 4; p++)
			for (unsigned i = 0; i < 500; i++) {
				accepted += posters[p].accepted[i];
				CU_ASSERT_EQUAL(posters[p].jobs[i].ran, posters[p].accepted[i]);
			}
		CU_ASSERT_EQUAL(atomic_load(&n_order), accepted);
		posters_free(posters, 4);
	}
}

static void gil7_exception_left(void)
{
	struct job jobs[2] = { { 0 } };

	up();
	CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, leave_exception, &jobs[0], NULL), 0);
	CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, run_job, &jobs[1], NULL), 0);
	down();
	CU_ASSERT_EQUAL(jobs[0].ran, 1);
	CU_ASSERT_EQUAL(jobs[1].ran, 1);
	CU_ASSERT_FALSE(jobs[1].raised);
}

static void gil7_stuck(void)
{
	struct bh_error err = { 0 };

	up();
	CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, run_stay, NULL, NULL), 0);
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&stay.in)));
	CU_ASSERT_FALSE(bh_courier_settle(bh_deadline_after(BH_NS_PER_MS)));
	CU_ASSERT_EQUAL(bh_courier_join(bh_deadline_after(BH_NS_PER_MS), &err), -ETIMEDOUT);
	CU_ASSERT_STRING_EQUAL(err.id, "gil.courier_stuck");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "site"), "host.test");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "state"), "inside");
	atomic_store(&stay.go, true);
	CU_ASSERT_TRUE(bh_courier_settle(PATIENCE));
	CU_ASSERT_EQUAL(bh_courier_join(PATIENCE, NULL), 0);
}

static void gil7_unknown_site(void)
{
	struct bh_error err = { 0 };
	struct job job = { 0 };

	up();
	CU_ASSERT_EQUAL(bh_courier_post(BH_GIL_SITES_MAX - 1, run_job, &job, &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(err.id, "gil.site_unknown");
	down();
	CU_ASSERT_EQUAL(job.ran, 0);
}

static void exit5_forked(void)
{
	struct job job = { 0 };
	int status = -1;
	pid_t child;

	up();
	hold_begin();
	CU_ASSERT_EQUAL(bh_courier_post(BH_SITE_TEST, run_job, &job, NULL), 0);
	child = fork();
	if (child == 0) /* nor has it anything to wait for: the job is the parent's */
		_exit(bh_courier_post(BH_SITE_TEST, run_job, &job, NULL) == -ESHUTDOWN &&
				      bh_courier_settle(bh_deadline_after(0))
			      ? 0
			      : 1);
	CU_ASSERT_TRUE(child > 0 && waitpid(child, &status, 0) == child);
	CU_ASSERT_EQUAL(status, 0);
	hold_end();
	down();
	CU_ASSERT_EQUAL(job.ran, 1);
}

/* ---- GIL-9 ----------------------------------------------------------------------------------- */

struct reference {
	struct bh_message message;
	struct bh_postbox *box;
	struct reference *more; /* dropped by the dropping of this one */
	_Atomic pid_t tid;
};

static void drop(struct bh_message *message)
{
	struct reference *reference = bh_container_of(message, struct reference, message);

	MUST(PyGILState_Check());
	atomic_store(&reference->tid, gettid());
	if (reference->more)
		bh_postbox_post(reference->box, &reference->more->message);
}

static void gil9_takes_over(void)
{
	struct reference references[4] = { { .message.deliver = drop },
					   { .message.deliver = drop },
					   { .message.deliver = drop },
					   { .message.deliver = drop } };
	double entries = entries_at("host.release");
	struct bh_postbox box;

	CU_ASSERT_EQUAL_FATAL(bh_postbox_init(&box, NULL), 0);
	up();
	bh_postbox_post(&box, &references[0].message); /* nobody's yet */
	bh_courier_take_over(&box);
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&references[0].tid)));
	bh_postbox_post(&box, &references[1].message);
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&references[1].tid)));
	hold_begin(); /* what is there at the end goes too, and what that drops */
	references[2].box = &box;
	references[2].more = &references[3];
	bh_postbox_post(&box, &references[2].message);
	bh_courier_close();
	hold_end();
	CU_ASSERT_EQUAL(bh_courier_join(PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(atomic_load(&references[2].tid) && atomic_load(&references[3].tid));
	CU_ASSERT_NOT_EQUAL(atomic_load(&references[0].tid), gettid());
	CU_ASSERT_TRUE(entries_at("host.release") - entries >= 3);
	bh_postbox_fini(&box);
}

/* A release and the write to the box's fd are two steps, and the courier may come between them. */
static void gil9_none_missed(void)
{
	static struct reference references[2000];
	struct bh_postbox box;

	CU_ASSERT_EQUAL_FATAL(bh_postbox_init(&box, NULL), 0);
	up();
	bh_courier_take_over(&box);
	for (size_t i = 0; i < BH_ARRAY_LEN(references); i++) {
		references[i] = (struct reference){ .message.deliver = drop };
		bh_postbox_post(&box, &references[i].message);
		if (i % 7 == 0)
			sched_yield();
	}
	for (size_t i = 0; i < BH_ARRAY_LEN(references); i++)
		CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&references[i].tid)));
	down();
	bh_postbox_fini(&box);
}

static const struct bh_test tests[] = {
	{ "GIL-7: jobs run in the order of each poster's posts", gil7_in_order },
	{ "GIL-7: the queue is bounded, and says so", gil7_bounded },
	{ "GIL-7: one job waits for the GIL, and no post does", gil7_one_waits },
	{ "GIL-7: inside a scope a job runs inline, unless the scope has let go of the GIL",
	  gil7_inline_in_scope },
	{ "GIL-7: inside a raw PyGILState_Ensure a job runs inline", gil7_inline_in_raw },
	{ "GIL-7: closed, it takes no more and works off what it has", gil7_close_works_off },
	{ "GIL-7: what was accepted runs exactly once, also while it closes", gil7_exactly_once },
	{ "GIL-7: an exception that a job leaves is not the next one's", gil7_exception_left },
	{ "GIL-7: a join that takes too long names the site", gil7_stuck },
	{ "GIL-7: a site that nobody added is refused", gil7_unknown_site },
	{ "EXIT-5: a forked child has no courier", exit5_forked },
	{ "GIL-9: the courier drops what is released once it has taken over", gil9_takes_over },
	{ "GIL-9: no release is missed", gil9_none_missed },
};

int main(int argc, char **argv)
{
	int failed;

	host_up();
	failed = bh_tap_main(argc, argv, "courier", tests, BH_ARRAY_LEN(tests));
	if (bh_gil_gate_close(PATIENCE, NULL) < 0)
		return 1;
	bh_gil_main_enter(BH_SITE_CLEANUP);
	bh_gil_interpreter_down();
	return Py_FinalizeEx() < 0 ? 1 : failed;
}
