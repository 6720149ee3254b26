/* SPDX-License-Identifier: BSD-3-Clause */
/* gil_fixture - a real interpreter behind host/gil, threads that use it, and children: this very
 * binary with `--child NAME SEED`, which exits 0 when all was well. For suites that include
 * Python.h first. */
#ifndef BH_TESTS_UNIT_GIL_FIXTURE_H
#define BH_TESTS_UNIT_GIL_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/core/sync.h"
#include "host/gil/gil.h"
#include "tests/unit/tap.h"

#define UNUSED __attribute__((unused))

#ifndef BH_PYTHON
#define BH_PYTHON "/usr/bin/python3"
#endif

#ifdef __SANITIZE_THREAD__
/* TSan's own hook. By default it waits a second at the end of a process that still has threads:
 * there are a hundred of those here. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
	return "atexit_sleep_ms=0";
}
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

UNUSED static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
}

/* In a child there is no CUnit: a check that fails ends it. */
#define CHILD_CHECK(condition)                                                                     \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);    \
			_exit(9);                                                                  \
		}                                                                                  \
	} while (0)

/* ---- the interpreter ------------------------------------------------------------------------- */

UNUSED static void python_up(void)
{
	PyPreConfig pre;
	PyConfig config;
	PyStatus status;

	PyPreConfig_InitIsolatedConfig(&pre);
	pre.utf8_mode = 1;
	status = Py_PreInitialize(&pre);
	CHILD_CHECK(!PyStatus_Exception(status));
	PyConfig_InitIsolatedConfig(&config);
	config.install_signal_handlers = 0;
	config.parse_argv = 0;
	config.write_bytecode = 0;
	status = PyConfig_SetBytesString(&config, &config.program_name, BH_PYTHON);
	CHILD_CHECK(!PyStatus_Exception(status));
	status = Py_InitializeFromConfig(&config);
	CHILD_CHECK(!PyStatus_Exception(status));
	PyConfig_Clear(&config);
}

/* Up to the point where main holds no GIL and the gate is open. */
UNUSED static void host_up(void)
{
	struct bh_error err = { 0 };
	char text[512];

	if (bh_gil_init(&err) < 0) {
		bh_error_render(&err, text, sizeof(text));
		fprintf(stderr, "bh_gil_init: %s\n", text);
		_exit(9);
	}
	CHILD_CHECK(bh_gil_init(&err) == 0); /* idempotent */
	bh_gil_adopt_main();
	python_up();
	bh_gil_interpreter_up();
	CHILD_CHECK(PyRun_SimpleString("import threading, time\nloc = threading.local()\n") == 0);
	bh_gil_main_leave();
}

/* As host/python does it, after the gate has closed. */
UNUSED static int host_down(void)
{
	bh_gil_main_enter(BH_SITE_STOP);
	bh_gil_interpreter_down();
	return Py_FinalizeEx();
}

/* Needs the GIL. The value of a name in __main__, as a number. */
UNUSED static long python_long(const char *expression)
{
	PyObject *globals = PyModule_GetDict(PyImport_AddModule("__main__"));
	PyObject *value = PyRun_String(expression, Py_eval_input, globals, globals);
	long number = value ? PyLong_AsLong(value) : -1;

	if (!value)
		PyErr_Print();
	Py_XDECREF(value);
	return number;
}

UNUSED static long python_run(const char *code)
{
	return PyRun_SimpleString(code);
}

/* ---- what /v1/gil says ----------------------------------------------------------------------- */

UNUSED static const json_t *find_by(const json_t *list, const char *key, const char *value)
{
	size_t i;
	json_t *row;

	json_array_foreach(list, i, row) if (strcmp(json_string_value(json_object_get(row, key)),
						    value) == 0) return row;
	return NULL;
}

UNUSED static double site_number(const char *site, const char *field)
{
	json_t *view = bh_gil_render(NULL);
	double number = json_number_value(
		json_object_get(find_by(json_object_get(view, "sites"), "site", site), field));

	json_decref(view);
	return number;
}

/* ---- threads --------------------------------------------------------------------------------- */

struct job {
	void (*run)(struct job *job);
	enum bh_plane plane;
	bh_gil_site site, inner;
	pthread_t thread;
	_Atomic uint32_t tid;
	_Atomic bool in, go, done; /* handshakes: job is in; it may go on; it is done */
	bh_status status;
	long number;
};

UNUSED static void *job_main(void *arg)
{
	struct job *job = arg;

	if (job->plane == BH_PLANE_CONTROL)
		CHILD_CHECK(bh_identity_tag_control("native", NULL) == 0);
	if (job->plane == BH_PLANE_DATA)
		CHILD_CHECK(bh_identity_tag_data("pool", 7, 0, NULL) == 0);
	atomic_store(&job->tid, (uint32_t)gettid());
	job->run(job);
	atomic_store(&job->done, true);
	return NULL;
}

UNUSED static void job_start(struct job *job, const char *name)
{
	CHILD_CHECK(bh_thread_create(&job->thread, name, job_main, job, NULL) == 0);
}

UNUSED static void job_join(struct job *job)
{
	atomic_store(&job->go, true);
	CHILD_CHECK(bh_thread_join(job->thread, PATIENCE, NULL) == 0);
}

UNUSED static void job_run(struct job *job, const char *name)
{
	job_start(job, name);
	job_join(job);
}

UNUSED static bh_gil_site add_site(const char *name, enum bh_site_policy policy)
{
	bh_gil_site site = BH_GIL_SITE_NONE;

	CU_ASSERT_EQUAL(bh_gil_site_add("unit", name, policy, &site, NULL), 0);
	return site;
}

/* Enters, lets go of the GIL inside, and stays until told. */
UNUSED static void stay_in_scope(struct job *job)
{
	struct bh_gil_scope scope;

	job->status = bh_gil_enter(job->site, BH_HERE, &scope, NULL);
	if (job->status < 0)
		return;
	Py_BEGIN_ALLOW_THREADS atomic_store(&job->in, true);
	while (!atomic_load(&job->go))
		nap();
	Py_END_ALLOW_THREADS job->number = PyGILState_Check();
	bh_gil_leave(&scope);
}

/* Holds the GIL in C, never letting go, until told. */
UNUSED static void hold(struct job *job)
{
	struct bh_gil_scope scope;

	job->status = bh_gil_enter(job->site, BH_HERE, &scope, NULL);
	if (job->status < 0)
		return;
	atomic_store(&job->in, true);
	while (!atomic_load(&job->go))
		nap();
	bh_gil_leave(&scope);
}

UNUSED static void enter_and_leave(struct job *job)
{
	struct bh_gil_scope scope;

	job->status = bh_gil_enter(job->site, BH_HERE, &scope, NULL);
	if (job->status == 0)
		bh_gil_leave(&scope);
}

/* ---- children -------------------------------------------------------------------------------- */

/* Runs a child to its end; what it wrote on stderr goes to `output`, cut at its size. */
UNUSED static int run_child(const char *name, unsigned seed, char *output, size_t size)
{
	char seed_text[16], rest[512];
	size_t used = 0;
	int fds[2], status;
	ssize_t n;
	pid_t pid;

	snprintf(seed_text, sizeof(seed_text), "%u", seed);
	if (pipe(fds) < 0)
		return -1;
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], STDERR_FILENO);
		close(fds[0]);
		close(fds[1]);
		execl("/proc/self/exe", "test_gil", "--child", name, seed_text, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	while (used < size - 1 && (n = read(fds[0], output + used, size - 1 - used)) > 0)
		used += (size_t)n;
	output[used] = '\0';
	while (read(fds[0], rest, sizeof(rest)) > 0)
		; /* a writer whose pipe is full would hang */
	close(fds[0]);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return status;
}

UNUSED static void child_succeeds(const char *name, unsigned seed)
{
	char output[16384];
	int status = run_child(name, seed, output, sizeof(output));

	CU_ASSERT_EQUAL(status, 0);
	if (status != 0)
		fprintf(stderr, "# child %s %u: status 0x%x\n%s", name, seed, (unsigned)status,
			output);
}

#endif
