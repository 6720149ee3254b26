/* SPDX-License-Identifier: BSD-3-Clause */
/* test_frames - the suite of host/gil/frames.c, with a real interpreter in its own process. */
#include "config.h"

#include <Python.h>

#include "host/gil/frames.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/core/sync.h"
#include "host/gil/gil.h"
#include "tests/unit/tap.h"

#ifndef BH_PYTHON
#define BH_PYTHON "/usr/bin/python3"
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define DUMPS 2000
#else
#define DUMPS 20000
#endif

/* Generous: only a test that fails waits for so long. */
#define PATIENCE bh_deadline_after(60 * BH_NS_PER_S)

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

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);    \
			_exit(9);                                                                  \
		}                                                                                  \
	} while (0)

/* ---- what Python code can call ---------------------------------------------------------------
 */

static _Atomic bool held, let_go;
static _Atomic unsigned n_compared, n_different;

/* hold(): keeps the GIL, in C, until told. */
static PyObject *py_hold(PyObject *self, PyObject *none)
{
	(void)self;
	(void)none;
	atomic_store(&held, true);
	while (!atomic_load(&let_go))
		nap();
	Py_RETURN_NONE;
}

static const json_t *find_thread(const json_t *threads, uint32_t tid)
{
	const json_t *thread;
	size_t i;

	json_array_foreach(threads, i, thread)
	{
		if (json_integer_value(json_object_get(thread, "tid")) == tid)
			return thread;
	}
	return NULL;
}

/* "FILE:LINE in NAME" as Python itself has it. */
static void describe(PyFrameObject *frame, char *out, size_t size)
{
	PyCodeObject *code = PyFrame_GetCode(frame);
	int line = PyFrame_GetLineNumber(frame);
	char text[16] = "?";

	if (line > 0)
		snprintf(text, sizeof(text), "%d", line);
	snprintf(out, size, "%s:%s in %s", PyUnicode_AsUTF8(code->co_filename), text,
		 PyUnicode_AsUTF8(code->co_qualname));
	Py_DECREF(code);
}

/* compare(): what is read from outside is what Python says of its own stack. */
static PyObject *py_compare(PyObject *self, PyObject *none)
{
	json_t *threads = bh_gil_frames_read();
	const json_t *thread = find_thread(threads, (uint32_t)gettid());
	const json_t *frames = json_object_get(thread, "frames");
	PyFrameObject *frame = PyEval_GetFrame();
	char expected[1024];
	size_t i = 0;

	(void)self;
	(void)none;
	Py_INCREF(frame);
	for (; frame; i++) {
		const char *read = json_string_value(json_array_get(frames, i));
		PyFrameObject *back = PyFrame_GetBack(frame);

		describe(frame, expected, sizeof(expected));
		if (!read || strcmp(read, expected) != 0) {
			if (atomic_fetch_add(&n_different, 1) < 10)
				printf("# read \"%s\", Python says \"%s\"\n",
				       read ? read : "nothing", expected);
		}
		Py_DECREF(frame);
		frame = back;
	}
	if (json_array_size(frames) != i || json_is_true(json_object_get(thread, "cut")) ||
	    !json_is_true(json_object_get(thread, "holds")))
		atomic_fetch_add(&n_different, 1);
	atomic_fetch_add(&n_compared, 1);
	json_decref(threads);
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = { { "hold", py_hold, METH_NOARGS, NULL },
				 { "compare", py_compare, METH_NOARGS, NULL },
				 { NULL, NULL, 0, NULL } };

/* ---- the interpreter ------------------------------------------------------------------------- */

static bool python_is_up;
static size_t n_read_between; /* after the interpreter was given up, before it was taken down */

static void host_up(void)
{
	PyPreConfig pre;
	PyConfig config;

	MUST(bh_gil_init(NULL) == 0);
	bh_gil_adopt_main();
	PyPreConfig_InitIsolatedConfig(&pre);
	pre.utf8_mode = 1;
	MUST(!PyStatus_Exception(Py_PreInitialize(&pre)));
	PyConfig_InitIsolatedConfig(&config);
	config.install_signal_handlers = 0;
	config.parse_argv = 0;
	config.write_bytecode = 0;
	MUST(!PyStatus_Exception(
		PyConfig_SetBytesString(&config, &config.program_name, BH_PYTHON)));
	MUST(!PyStatus_Exception(Py_InitializeFromConfig(&config)));
	PyConfig_Clear(&config);
	bh_gil_interpreter_up();
	MUST(bh_gil_frames_init(NULL) == 0);
	MUST(PyModule_AddFunctions(PyImport_AddModule("__main__"), methods) == 0);
	python_is_up = true;
	bh_gil_main_leave();
}

static bool host_down(void)
{
	json_t *threads;

	if (!python_is_up)
		return true;
	python_is_up = false;
	if (bh_gil_gate_close(PATIENCE, NULL) < 0)
		return false;
	bh_gil_main_enter(BH_SITE_STOP);
	bh_gil_interpreter_down();
	threads = bh_gil_frames_read();
	n_read_between = json_array_size(threads);
	json_decref(threads);
	return Py_FinalizeEx() == 0;
}

/* Needs the GIL. */
static bool run_code(const char *code, const char *file)
{
	PyObject *globals = PyModule_GetDict(PyImport_AddModule("__main__"));
	PyObject *compiled = Py_CompileString(code, file, Py_file_input);
	PyObject *value = compiled ? PyEval_EvalCode(compiled, globals, globals) : NULL;
	bool ok = value != NULL;

	if (!ok)
		PyErr_Print();
	Py_XDECREF(value);
	Py_XDECREF(compiled);
	return ok;
}

/* On main. */
static bool run(const char *code, const char *file)
{
	bool ok;

	bh_gil_main_enter(BH_SITE_TEST);
	ok = run_code(code, file);
	bh_gil_main_leave();
	return ok;
}

/* ---- a thread of the host's that calls Python and is held there -------------------------------
 */

struct worker {
	const char *call;
	pthread_t thread;
	_Atomic uint32_t tid;
	_Atomic bool done;
	bool ok;
};

static void *worker_main(void *arg)
{
	struct worker *worker = arg;
	struct bh_gil_scope scope;

	atomic_store(&worker->tid, (uint32_t)gettid());
	MUST(bh_gil_enter(BH_SITE_TEST, BH_HERE, &scope, NULL) == 0);
	worker->ok = run_code(worker->call, "<call>");
	bh_gil_leave(&scope);
	atomic_store(&worker->done, true);
	return NULL;
}

/* The stacks at the moment when `call` has come to hold(). */
static json_t *read_while_held(struct worker *worker)
{
	json_t *threads;

	atomic_store(&held, false);
	atomic_store(&let_go, false);
	CU_ASSERT_EQUAL_FATAL(
		bh_thread_create(&worker->thread, "holder", worker_main, worker, NULL), 0);
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&held) || atomic_load(&worker->done)));
	threads = bh_gil_frames_read();
	atomic_store(&let_go, true);
	CU_ASSERT_EQUAL(bh_thread_join(worker->thread, PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(worker->ok);
	return threads;
}

static const char *frame_at(const json_t *thread, size_t i)
{
	const char *frame = json_string_value(json_array_get(json_object_get(thread, "frames"), i));

	return frame ? frame : "";
}

static size_t n_frames(const json_t *thread)
{
	return json_array_size(json_object_get(thread, "frames"));
}

/* ---- CP-3: what is shown ---------------------------------------------------------------------- */

static void cp3_holder(void)
{
	/* A thread that comes later is shown after it all the same. */
	struct worker worker = {
		.call = "import threading\n"
			"latch = threading.Lock(); latch.acquire()\n"
			"later = threading.Thread(target=latch.acquire); later.start()\n"
			"one()\n"
			"latch.release(); later.join()\n",
	};
	const json_t *thread;
	json_t *threads;

	CU_ASSERT_TRUE(run("def five():\n\n    hold()\n"
			   "def four():\n    five()\n"
			   "def three(): four()\n"
			   "class Two:\n    def two(self):\n        three()\n"
			   "def one():\n    Two().two()\n",
			   "/opt/app/deep.py"));
	threads = read_while_held(&worker);
	thread = find_thread(threads, worker.tid);
	CU_ASSERT_PTR_EQUAL(thread, json_array_get(threads, 0)); /* the holder comes first */
	CU_ASSERT_TRUE(json_is_true(json_object_get(thread, "holds")));
	CU_ASSERT_TRUE(json_is_false(json_object_get(thread, "cut")));
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(thread, "thread")), "holder");
	CU_ASSERT_EQUAL(n_frames(thread), 6);
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 0), "/opt/app/deep.py:3 in five");
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 1), "/opt/app/deep.py:5 in four");
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 2), "/opt/app/deep.py:6 in three");
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 3), "/opt/app/deep.py:9 in Two.two");
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 4), "/opt/app/deep.py:11 in one");
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 5), "<call>:4 in <module>");
	CU_ASSERT_TRUE(json_array_size(threads) >= 3);
	for (size_t i = 1; i < json_array_size(threads); i++)
		CU_ASSERT_TRUE(json_is_false(json_object_get(json_array_get(threads, i), "holds")));
	json_decref(threads);
}

/* The frame at which a thread of Python's waits, with the tid that it says it has. */
static void cp3_waiting(void)
{
	const char *frame = "";
	bool found = false;
	json_t *threads;

	CU_ASSERT_TRUE(run("import threading\n"
			   "waits = threading.Event()\n"
			   "lock = threading.Lock(); lock.acquire()\n"
			   "def wait_for_it():\n"
			   "    waits.set()\n"
			   "    with lock:\n"
			   "        pass\n"
			   "waiter = threading.Thread(target=wait_for_it); waiter.start()\n",
			   "/opt/app/wait.py"));
	for (struct bh_deadline until = PATIENCE; !found && !bh_deadline_passed(until); nap()) {
		const json_t *thread;
		size_t i;

		threads = bh_gil_frames_read();
		json_array_foreach(threads, i, thread)
		{
			frame = frame_at(thread, 0);
			found |= strcmp(frame, "/opt/app/wait.py:6 in wait_for_it") == 0 &&
				 n_frames(thread) == 4 &&
				 strstr(frame_at(thread, 1), "threading.py:") &&
				 strstr(frame_at(thread, 1), " in Thread.run") &&
				 json_is_false(json_object_get(thread, "holds"));
		}
		json_decref(threads);
	}
	CU_ASSERT_TRUE(found);
	CU_ASSERT_TRUE(run("lock.release(); waiter.join()\n", "<end>"));
}

static void cp3_generators(void)
{
	struct worker worker = { .call = "walk()\n" };
	const json_t *thread;
	json_t *threads;

	CU_ASSERT_TRUE(run("class Later:\n"
			   "    def __await__(self):\n"
			   "        yield from inner()\n"
			   "def inner():\n"
			   "    yield 1\n"
			   "    hold()\n"
			   "    yield 2\n"
			   "async def outer():\n"
			   "    await Later()\n"
			   "def walk():\n"
			   "    coro = outer()\n"
			   "    for _ in range(2):\n"
			   "        coro.send(None)\n"
			   "    coro.close()\n",
			   "gen.py"));
	threads = read_while_held(&worker);
	thread = find_thread(threads, worker.tid);
	CU_ASSERT_EQUAL(n_frames(thread), 5);
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 0), "gen.py:6 in inner");
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 1), "gen.py:3 in Later.__await__");
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 2), "gen.py:9 in outer");
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 3), "gen.py:13 in walk");
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 4), "<call>:1 in <module>");
	json_decref(threads);
}

static void cp3_deep(void)
{
	struct worker fits = { .call = "down(98)\n" }, deep = { .call = "down(150)\n" };
	const json_t *thread;
	json_t *threads;

	CU_ASSERT_TRUE(run("def down(n):\n    down(n - 1) if n else hold()\n", "deep.py"));
	threads = read_while_held(&fits);
	thread = find_thread(threads, fits.tid);
	CU_ASSERT_EQUAL(n_frames(thread), 100);
	CU_ASSERT_TRUE(json_is_false(json_object_get(thread, "cut")));
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 99), "<call>:1 in <module>");
	json_decref(threads);
	threads = read_while_held(&deep);
	thread = find_thread(threads, deep.tid);
	CU_ASSERT_EQUAL(n_frames(thread), 100);
	CU_ASSERT_TRUE(json_is_true(json_object_get(thread, "cut")));
	CU_ASSERT_STRING_EQUAL(frame_at(thread, 99), "deep.py:2 in down");
	json_decref(threads);
}

static _Atomic bool kept, part;

static void *keep_state(void *arg)
{
	*(_Atomic uint32_t *)arg = (uint32_t)gettid();
	MUST(bh_gil_worker_start(NULL) == 0);
	atomic_store(&kept, true);
	while (!atomic_load(&part))
		nap();
	bh_gil_worker_stop();
	return NULL;
}

static void cp3_no_frames(void)
{
	_Atomic uint32_t tid = 0;
	const json_t *thread;
	pthread_t idle;
	json_t *threads;

	CU_ASSERT_EQUAL_FATAL(bh_thread_create(&idle, "i\001d\377le", keep_state, &tid, NULL), 0);
	CU_ASSERT_TRUE(EVENTUALLY(atomic_load(&kept)));
	threads = bh_gil_frames_read();
	thread = find_thread(threads, tid);
	CU_ASSERT_EQUAL(n_frames(thread), 0);
	CU_ASSERT_TRUE(json_is_array(json_object_get(thread, "frames")));
	CU_ASSERT_TRUE(json_is_false(json_object_get(thread, "cut")));
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(thread, "thread")), "i?d?le");
	/* Main waits outside of Python, its state is there all the same. */
	CU_ASSERT_PTR_NOT_NULL(find_thread(threads, (uint32_t)getpid()));
	json_decref(threads);
	atomic_store(&part, true);
	CU_ASSERT_EQUAL(bh_thread_join(idle, PATIENCE, NULL), 0);
}

static void check_name(const char *call, const char *expected)
{
	struct worker worker = { .call = call };
	json_t *threads = read_while_held(&worker);

	CU_ASSERT_STRING_EQUAL(frame_at(find_thread(threads, worker.tid), 0), expected);
	json_decref(threads);
}

static void cp3_names(void)
{
	char expected[512];
	size_t n = 0;

	CU_ASSERT_TRUE(run("def call(name, file):\n"
			   "    space = {'hold': hold}\n"
			   "    exec(compile(f'def {name}(): hold()', file, 'exec'), space)\n"
			   "    space[name]()\n",
			   "names.py"));
	check_name("call('größe', '/opt/für.py')\n", "/opt/für.py:1 in größe");
	check_name("call('größe', '/opt/für/日本.py')\n", "/opt/für/日本.py:1 in größe");
	check_name("call('日', '/opt/😀.py')\n", "/opt/😀.py:1 in 日");
	/* A file name that is no UTF-8, and one that would break a line of the log. */
	check_name("call('f', '/opt/\\udc80\\n\\x85.py')\n", "/opt/???.py:1 in f");
	/* Cut at a character's end: 3 bytes each, 201 with the suffix's. */
	n = (size_t)sprintf(expected, "…");
	for (int i = 0; i < 65; i++)
		n += (size_t)sprintf(expected + n, "日");
	sprintf(expected + n, "x.py:1 in f");
	check_name("call('f', '日' * 150 + 'x.py')\n", expected);
	n = (size_t)sprintf(expected, "a.py:1 in ");
	for (int i = 0; i < 100; i++)
		expected[n++] = 'n';
	sprintf(expected + n, "…");
	check_name("call('n' * 101, 'a.py')\n", expected);
}

/* Every kind of entry of a line table, and code that Python has rewritten for a tracer. */
static void cp3_lines(void)
{
	unsigned n;

	CU_ASSERT_TRUE(
		run("def long():\n"
		    "    lines = ['def f():']\n"
		    "    for i in range(600):\n"
		    "        if i % 3:\n"
		    "            lines.append('    compare()')\n"
		    "        else:\n"
		    "            calls = 'compare(), ' * (i % 9 + 1)\n"
		    "            lines.append('\\n' * (i % 70) + f'    x = [\\n\\n{calls}\\n]')\n"
		    "    return '\\n'.join(lines)\n"
		    "space = {'compare': compare}\n"
		    "exec(compile(long(), 'long.py', 'exec'), space)\n"
		    "space['f']()\n",
		    "make.py"));
	n = atomic_load(&n_compared);
	CU_ASSERT_TRUE(n > 1000);
	CU_ASSERT_TRUE(run("import contextlib, functools, sys\n"
			   "@contextlib.contextmanager\n"
			   "def around():\n"
			   "    compare()\n"
			   "    try:\n"
			   "        yield\n"
			   "    finally:\n"
			   "        compare()\n"
			   "def decorated(f):\n"
			   "    @functools.wraps(f)\n"
			   "    def g(*a, **k):\n"
			   "        return f(*a, **k)\n"
			   "    return g\n"
			   "@decorated\n"
			   "def mixed(n):\n"
			   "    with around():\n"
			   "        [compare() for _ in range(2)]\n"
			   "        list(map(lambda _: compare(), [1, 2]))\n"
			   "        sorted([2, 1], key=lambda x: compare() or x)\n"
			   "        class Body:\n"
			   "            compare()\n"
			   "            def __del__(self): compare()\n"
			   "        Body()\n"
			   "    try:\n"
			   "        raise ValueError\n"
			   "    except ValueError:\n"
			   "        compare()\n"
			   "    return (compare(),\n"
			   "        n and\n"
			   "            mixed(n - 1))\n"
			   "for _ in range(3): mixed(8)\n"
			   "sys.settrace(lambda *a: None)\n"
			   "mixed(8)\n"
			   "sys.settrace(lambda *a: (lambda *b: None))\n"
			   "mixed(8)\n"
			   "sys.settrace(None)\n",
			   "mixed.py"));
	CU_ASSERT_TRUE(atomic_load(&n_compared) > n + 300);
	CU_ASSERT_EQUAL(atomic_load(&n_different), 0);
}

/* ---- GIL-6: nothing crashes, nothing waits ----------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void gil6_stress(void)
{
	static uint64_t took_ns[DUMPS];
	size_t n_shown = 0, n_cut = 0, n_stacks = 0;

	CU_ASSERT_TRUE(
		run("import threading\n"
		    "stop = False\n"
		    "def deep(n): return deep(n - 1) + 1 if n else 0\n"
		    "def recurse():\n"
		    "    n = 0\n"
		    "    while not stop: n = (n + 7) % 300; deep(n)\n"
		    "def tree(n):\n"
		    "    yield n\n"
		    "    if n: yield from tree(n - 1)\n"
		    "def generate():\n"
		    "    while not stop: sum(tree(40))\n"
		    "def churn():\n"
		    "    while not stop:\n"
		    "        space = {}\n"
		    "        exec('def gone(n): return gone(n - 1) if n else [x for x in "
		    "range(9)]', space)\n"
		    "        t = threading.Thread(target=space['gone'], args=(30,))\n"
		    "        t.start(); t.join()\n"
		    "busy = [threading.Thread(target=f) for f in (recurse, generate, churn)]\n"
		    "for t in busy: t.start()\n",
		    "/opt/app/busy.py"));
	for (size_t i = 0; i < DUMPS; i++) {
		uint64_t before = bh_now_ns();
		json_t *threads = bh_gil_frames_read();
		const json_t *thread;
		size_t k;

		took_ns[i] = bh_now_ns() - before;
		CU_ASSERT_PTR_NOT_NULL_FATAL(threads);
		json_array_foreach(threads, k, thread)
		{
			n_stacks++;
			n_shown += n_frames(thread);
			n_cut += json_is_true(json_object_get(thread, "cut"));
		}
		json_decref(threads);
	}
	CU_ASSERT_TRUE(n_shown > DUMPS);
	qsort(took_ns, DUMPS, sizeof(took_ns[0]), by_value);
	printf("# %d dumps of threads that run: %zu stacks, %zu frames, %zu cut; median %llu µs, "
	       "longest %llu µs\n",
	       DUMPS, n_stacks, n_shown, n_cut, (unsigned long long)took_ns[DUMPS / 2] / 1000,
	       (unsigned long long)took_ns[DUMPS - 1] / 1000);
	CU_ASSERT_TRUE(run("stop = True\nfor t in busy: t.join()\n", "<end>"));
}

/* Code that starts `n` threads and has each of them wait at the end of a deep stack. */
static void write_sleepers(char *code, size_t size, int n, int depth, const char *then)
{
	snprintf(code, size,
		 "import threading\n"
		 "threading.stack_size(1 << 20)\n"
		 "ready = threading.Semaphore(0)\n"
		 "wake = threading.Lock(); wake.acquire()\n"
		 "def sleep(n):\n"
		 "    if n: return sleep(n - 1)\n"
		 "    ready.release()\n"
		 "    with wake: pass\n"
		 "sleepers = [threading.Thread(target=sleep, args=(%d,)) for _ in range(%d)]\n"
		 "for t in sleepers: t.start()\n"
		 "for t in sleepers: ready.acquire()\n"
		 "%s\n",
		 depth, n, then);
}

static void end_sleepers(void)
{
	CU_ASSERT_TRUE(run("wake.release()\nfor t in sleepers: t.join()\n", "<end>"));
}

static void time_dumps(const char *what, int n)
{
	uint64_t took_ns[100];
	size_t frames = 0, i;
	json_t *threads;
	const json_t *thread;

	for (int k = 0; k < n; k++) {
		uint64_t before = bh_now_ns();

		threads = bh_gil_frames_read();
		took_ns[k] = bh_now_ns() - before;
		if (k < n - 1)
			json_decref(threads);
	}
	json_array_foreach(threads, i, thread) frames += n_frames(thread);
	qsort(took_ns, (size_t)n, sizeof(took_ns[0]), by_value);
	printf("# a dump of %s (%zu stacks, %zu frames): median %llu µs\n", what,
	       json_array_size(threads), frames, (unsigned long long)took_ns[n / 2] / 1000);
	json_decref(threads);
}

static void gil6_bounded(void)
{
	struct worker worker = { 0 };
	json_t *threads;
	char code[1024];

	write_sleepers(code, sizeof(code), 10, 17, "");
	CU_ASSERT_TRUE(run(code, "/opt/app/package/sleepers.py"));
	time_dumps("10 threads of 20 frames", 100);
	end_sleepers();
	/* More threads than are shown, all of them newer than the one that holds the GIL. */
	write_sleepers(code, sizeof(code), 280, 120, "hold()");
	worker.call = code;
	threads = read_while_held(&worker);
	CU_ASSERT_EQUAL(json_array_size(threads), 256);
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(json_array_get(threads, 0), "tid")),
			worker.tid);
	CU_ASSERT_PTR_NOT_NULL(find_thread(threads, (uint32_t)getpid()));
	json_decref(threads);
	time_dumps("280 threads of 123 frames", 10);
	end_sleepers();
}

/* In a child: from here on the kernel answers process_vm_readv with EPERM. */
static bool forbid_reading(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = BH_ARRAY_LEN(filter), .filter = filter };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void gil6_forbidden(void)
{
	json_t *threads = bh_gil_frames_read();
	int status = -1;
	pid_t pid;

	CU_ASSERT_TRUE(json_array_size(threads) > 0);
	json_decref(threads);
	pid = fork();
	CU_ASSERT_TRUE_FATAL(pid >= 0);
	if (pid == 0) {
		if (!forbid_reading())
			_exit(77);
		if (bh_gil_frames_init(NULL) < 0)
			_exit(1);
		threads = bh_gil_frames_read();
		_exit(json_is_array(threads) && json_array_size(threads) == 0 ? 0 : 2);
	}
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		BH_SKIP("no system call filters here");
	CU_ASSERT_EQUAL(status, 0);
}

/* The last: it ends the interpreter. */
static void gil6_down(void)
{
	json_t *threads;

	CU_ASSERT_TRUE(host_down());
	CU_ASSERT_EQUAL(n_read_between, 0);
	threads = bh_gil_frames_read();
	CU_ASSERT_TRUE(json_is_array(threads));
	CU_ASSERT_EQUAL(json_array_size(threads), 0);
	json_decref(threads);
}

static const struct bh_test tests[] = {
	{ "CP-3: the holder comes first, with file, line and name of each frame", cp3_holder },
	{ "CP-3: a thread that waits for a lock shows where", cp3_waiting },
	{ "CP-3: generators and coroutines are part of the stack", cp3_generators },
	{ "CP-3: a stack of more than 100 frames is cut and says so", cp3_deep },
	{ "CP-3: a thread outside of Python has no frames, and a printable name", cp3_no_frames },
	{ "CP-3: names come as UTF-8 that JSON and the log can take", cp3_names },
	{ "CP-3: every line is the one that Python itself would name", cp3_lines },
	{ "GIL-6: stacks that move are read without a crash", gil6_stress },
	{ "GIL-6: at most 256 threads are read, main and the holder among them", gil6_bounded },
	{ "GIL-6: where the kernel forbids reading there are no stacks", gil6_forbidden },
	{ "GIL-6: once the interpreter is down there are no stacks", gil6_down },
};

int main(int argc, char **argv)
{
	int failed;

	host_up();
	failed = bh_tap_main(argc, argv, "frames", tests, BH_ARRAY_LEN(tests));
	return host_down() ? failed : 1;
}
