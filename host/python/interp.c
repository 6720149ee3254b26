/* SPDX-License-Identifier: BSD-3-Clause */
/* interp - the embedded interpreter from its first to its last moment, on main (see python.h).
 *
 * Thread: main, but for bh_python_interrupt_main(). GIL: main has a scope for each of its lives:
 * bootstrap, one wake-up of the asyncio loop after the other (GIL-1), stop. Keeps: GIL-1, GIL-9,
 * CP-1, CP-2, EXIT-5. */
#include "config.h"

#include <Python.h>

#include "host/python/python.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "host/core/log.h"
#include "host/gil/gil.h"
#include "host/plugin/module.h"
#include "host/python/call.h"
#include "host/python/error.h"
#include "host/python/module.h"
#include "host/python/setup.h"
#include "host/python/state.h"
#include "host/python/writer.h"

#define COMPONENT "python"

#if defined(__SANITIZE_ADDRESS__)
#define SEE_EVERY_ALLOCATION 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SEE_EVERY_ALLOCATION 1
#endif
#endif

static struct bh_python python; /* see state.h for why there is one */

struct bh_python *bh_python_state(void)
{
	return &python;
}

const char *bh_python_version(void)
{
	return Py_GetVersion();
}

/* ---- initialization -------------------------------------------------------------------------- */

static bh_status raise_status(struct bh_error *err, const char *step, PyStatus status)
{
	if (PyStatus_IsExit(status))
		return bh_raise(err, -EINVAL, "python.init", BH_STR("step", step),
				BH_INT("exit", status.exitcode));
	return bh_raise(err, -EINVAL, "python.init", BH_STR("step", step),
			BH_STR("in", status.func), BH_STR("reason", status.err_msg));
}

/* The headers' version and the library's: a host that runs with another libpython than it was built
 * for would crash in structures that it thinks it knows. */
static bh_status check_version(struct bh_error *err)
{
	size_t n = strlen(PY_VERSION);
	const char *version = Py_GetVersion();

	if (strncmp(version, PY_VERSION, n) == 0 && version[n] == ' ')
		return 0;
	return bh_raise(
		err, -EINVAL, "python.version", BH_STR("given", version),
		BH_STR("accepted", PY_VERSION),
		BH_STR("reason",
		       "the libpython at hand is not the one that this host was built for"));
}

/* EXIT-5: a forked child has the locks of threads that it does not have. subprocess does not fork
 * from Python, and spawned processes begin anew. Called with the GIL held, also by other
 * interpreters. */
static int refuse_fork(const char *event, PyObject *Py_UNUSED(args), void *Py_UNUSED(user))
{
	struct bh_error err = { 0 };

	if (strcmp(event, "os.fork") != 0 && strcmp(event, "os.forkpty") != 0)
		return 0;
	bh_raise(&err, -EPERM, "python.fork", BH_STR("call", event),
		 BH_STR("reason",
			"a forked child of this process has its locks but not its threads"),
		 BH_STR("accepted", "subprocess, or multiprocessing with the start method spawn"));
	bh_pyerror_set("forked", &err);
	return -1;
}

/* FACTS that cost days: without utf8_mode an isolated interpreter has ASCII file names; without
 * program_name, sys.executable is another Python. */
static bh_status initialize(const struct bh_python_setup *setup, struct bh_error *err)
{
	char *argv[] = { (char *)"bulkheadd", NULL };
	PyPreConfig before;
	PyConfig config;
	PyStatus status;

	PyPreConfig_InitIsolatedConfig(&before);
	before.utf8_mode = 1;
#ifdef SEE_EVERY_ALLOCATION
	before.allocator = PYMEM_ALLOCATOR_MALLOC;
#endif
	status = Py_PreInitialize(&before);
	if (PyStatus_Exception(status))
		return raise_status(err, "preinitialize", status);

	PyConfig_InitIsolatedConfig(&config);
	config.install_signal_handlers = 0; /* the host has its own */
	config.parse_argv = 0;
	config.site_import = 1;
	config.write_bytecode = 0;
#ifdef BH_DEBUG
	config.dev_mode = 1;
	config.faulthandler = 0; /* its handlers are not ours to have */
#endif
	status = PyConfig_SetBytesArgv(&config, 1, argv);
	if (!PyStatus_Exception(status))
		status = PyConfig_SetBytesString(&config, &config.program_name, setup->program);
	if (!PyStatus_Exception(status) && setup->home[0])
		status = PyConfig_SetBytesString(&config, &config.home, setup->home);
	if (!PyStatus_Exception(status))
		status = Py_InitializeFromConfig(&config);
	PyConfig_Clear(&config);
	return PyStatus_Exception(status) ? raise_status(err, "initialize", status) : 0;
}

/* ---- after initialization, GIL held ---------------------------------------------------------- */

static bh_status check_prefix(const struct bh_python_setup *setup, struct bh_error *err)
{
	PyObject *prefix = PySys_GetObject("base_prefix"); /* borrowed */
	const char *text = prefix ? PyUnicode_AsUTF8(prefix) : NULL;
	char resolved[PATH_MAX];

	if (text && realpath(text, resolved) && strcmp(resolved, setup->prefix) == 0)
		return 0;
	PyErr_Clear();
	return bh_raise(err, -EINVAL, "python.prefix", BH_STR("given", text ? text : "(none)"),
			BH_STR("accepted", setup->prefix),
			BH_STR("reason",
			       "Python found another installation than the one it was pointed to"));
}

static int insert_path(size_t at, const char *directory)
{
	PyObject *path = PySys_GetObject("path"); /* borrowed */
	PyObject *entry = path ? PyUnicode_DecodeFSDefault(directory) : NULL;
	int result = entry ? PyList_Insert(path, (Py_ssize_t)at, entry) : -1;

	Py_XDECREF(entry);
	return result;
}

/* In front of sys.path, behind the package, in its order. Only once the host has imported what it
 * needs itself: a json.py of an app's must not become the host's. */
static int insert_python_path(const struct bh_config *manifest)
{
	int result = 0;

	for (size_t i = 0; result == 0 && i < manifest->n_python_path; i++)
		result = insert_path(i + 1, manifest->python_path[i]);
	return result;
}

static int import_package(void)
{
	PyObject *errors = PyImport_ImportModule("bulkhead._errors");

	python.make_error = errors ? PyObject_GetAttrString(errors, "from_host") : NULL;
	Py_XDECREF(errors);
	python.host = python.make_error ? PyImport_ImportModule("bulkhead._host") : NULL;
	return python.host ? 0 : -1;
}

static bh_status raise_package(struct bh_error *err)
{
	bh_pyerror_raise_taken(err, -EINVAL, "python.package");
	return bh_note(err, -EINVAL, BH_STR("package_dir", python.config.package_dir));
}

/* The asyncio loop is made, by the manifest's callable if it names one. */
static bh_status prepare_host(struct bh_error *err)
{
	const char *loop = python.config.config->python_loop;
	PyObject *facts = PyObject_CallMethod(python.host, "prepare", "z", loop);
	bh_status st = 0;

	if (!facts)
		return raise_package(err);
	if (PyDict_Check(facts)) {
		st = bh_raise(err, -EINVAL, "python.event_loop", BH_STR("section", "python"),
			      BH_STR("key", "event_loop"), BH_STR("value", loop),
			      BH_STR("accepted",
				     "module:callable that returns an asyncio.AbstractEventLoop"));
		bh_pyerror_note(err, facts);
	}
	Py_DECREF(facts);
	return st;
}

static bh_status furnish(const struct bh_python_setup *setup, struct bh_error *err)
{
	bh_status st = check_prefix(setup, err);
	PyObject *native;

	if (st < 0)
		return st;
	native = PyImport_ImportModule("_bulkhead"); /* its types are needed for sys.stdout */
	Py_XDECREF(native);			     /* sys.modules has it */
	if (!native || insert_path(0, python.config.package_dir) < 0 || bh_writer_install() < 0)
		return bh_pyerror_raise_taken(err, -EINVAL, "python.init");
	if (import_package() < 0)
		return raise_package(err);
	if (insert_python_path(python.config.config) < 0)
		return bh_pyerror_raise_taken(err, -EINVAL, "python.init");
	st = prepare_host(err);
	if (st == 0) /* prepare() has installed the handler */
		atomic_store(&python.interruptible, true);
	return st;
}

bh_status bh_python_start(const struct bh_python_config *config, struct bh_error *err)
{
	struct bh_python_setup setup;
	bh_status st = bh_python_setup(config->config, BH_PYTHON, &setup, err);

	if (st == 0)
		st = check_version(err);
	if (st == 0)
		st = bh_postbox_init(&python.returns, err);
	if (st == 0)
		st = bh_postbox_init(&python.releases, err);
	if (st < 0)
		return st;
	python.config = *config;
	python.main_thread = pthread_self();
	if (PySys_AddAuditHook(refuse_fork, NULL) < 0 ||
	    PyImport_AppendInittab("_bulkhead", bh_pymodule_create) < 0)
		return bh_raise(err, -ENOMEM, "python.init");
	st = initialize(&setup, err);
	if (st < 0)
		return st;
	bh_gil_interpreter_up();
	st = furnish(&setup, err);
	bh_gil_main_leave();
	if (st < 0)
		return st;
	bh_module_set_python(bh_call_services());
	bh_log(BH_LOG_INFO, COMPONENT, "interpreter up", BH_STR("version", PY_VERSION),
	       BH_STR("program", setup.program));
	return 0;
}

/* ---- serving and ending ---------------------------------------------------------------------- */

bh_status bh_python_serve(struct bh_error *err)
{
	PyObject *result;
	bh_status st = 0;

	bh_gil_main_enter(BH_SITE_DISPATCH);
	result = PyObject_CallMethod(python.host, "serve", NULL);
	if (!result)
		st = bh_pyerror_raise_taken(err, -EIO, "python.loop");
	Py_XDECREF(result);
	bh_gil_main_leave();
	return st;
}

/* What is released may release more. */
static void empty(struct bh_postbox *box)
{
	while (!bh_postbox_is_empty(box))
		bh_postbox_deliver(box);
}

static void log_raised(const char *message)
{
	PyObject *exception = bh_pyerror_take();

	if (exception)
		bh_pyerror_log(exception, message);
	Py_XDECREF(exception);
}

void bh_python_end(struct bh_deadline until)
{
	PyObject *result;

	bh_gil_main_enter(BH_SITE_STOP);
	result = PyObject_CallMethod(python.host, "end", "d",
				     (double)bh_deadline_left_ns(until) / BH_NS_PER_S);
	if (!result)
		log_raised("Python's end was cut short");
	Py_XDECREF(result);
	empty(&python.returns); /* the releases are the courier's by now */
	bh_gil_main_leave();
}

bh_status bh_python_finalize(struct bh_error *err)
{
	bh_gil_main_enter(BH_SITE_CLEANUP);
	/* What threads that were still inside have dropped since the courier's end. */
	empty(&python.returns);
	empty(&python.releases);
	Py_CLEAR(python.host);
	Py_CLEAR(python.make_error);
	bh_gil_interpreter_down();
	/* Types stay: destructors that run in there may still make tasks, and are told that all is
	 * closed. */
	if (Py_FinalizeEx() < 0)
		return bh_raise(
			err, -EIO, "python.finalize",
			BH_STR("reason",
			       "Py_FinalizeEx reported an error (buffered output was lost)"));
	return 0;
}

uint64_t bh_python_left_behind(void)
{
	/* Not taken: they stay reachable, for whoever looks for leaks. */
	const struct bh_message *message =
		atomic_load_explicit(&python.releases.head, memory_order_acquire);
	uint64_t n = 0;

	for (; message; message = message->next)
		n++;
	return n;
}

void bh_python_interrupt_main(void)
{
	/* Before there is a handler the signal would end the process; after Python's end it is
	 * ignored. */
	if (atomic_load(&python.interruptible))
		pthread_kill(python.main_thread, BH_INTERRUPT_SIGNAL);
}

void bh_python_post(struct bh_message *message)
{
	bh_postbox_post(&python.returns, message);
}
