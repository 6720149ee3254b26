/* SPDX-License-Identifier: BSD-3-Clause */
/* module - see module.h. Keeps: GIL-1, GIL-9. */
#include "config.h"

#include <Python.h>

#include "host/python/module.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "host/core/log.h"
#include "host/gil/courier.h"
#include "host/gil/gil.h"
#include "host/python/memory.h"
#include "host/python/pool.h"
#include "host/python/request.h"
#include "host/python/state.h"
#include "host/python/task.h"
#include "host/python/writer.h"

#define EVENTS_MAX 1024	   /* a wake-up; what is beyond it comes with the next */
#define RETURNS_AT_ONCE 32 /* outcomes; what then runs takes some 20 us each */

/* ---- the loop's wait ------------------------------------------------------------------------- */

static PyObject *event_list(const struct epoll_event *events, int n)
{
	PyObject *list = PyList_New(n > 0 ? n : 0);

	for (int i = 0; list && i < n; i++) {
		PyObject *pair =
			Py_BuildValue("(iI)", events[i].data.fd, (unsigned)events[i].events);

		if (!pair) {
			Py_DECREF(list);
			return NULL;
		}
		PyList_SET_ITEM(list, i, pair);
	}
	return list;
}

/* What the wake-up is for. Outcomes come first: whoever awaits them acts on them in it, and the
 * releases beside them have a scope of their own. */
static bh_gil_site wakeup_site(const struct epoll_event *events, int n)
{
	const struct bh_python *python = bh_python_state();
	bool releases = false, others = false;

	for (int i = 0; i < n; i++) {
		if (events[i].data.fd == python->returns.fd)
			return BH_SITE_DRAIN;
		if (events[i].data.fd == python->releases.fd)
			releases = true;
		else
			others = true;
	}
	return releases && !others ? BH_SITE_RELEASE : BH_SITE_DISPATCH;
}

/* epoll_wait(fd, timeout in ms or -1, max events): GIL-1, main's scope ends here and the next one
 * begins with what woke it. EINTR is an empty list: a signal's Python handler runs on return, then
 * the loop waits again. Blocks: as long as the loop has nothing to do; requests, outcomes and
 * signals end it. */
static PyObject *epoll_wait_off_gil(PyObject *Py_UNUSED(module), PyObject *args)
{
	struct bh_python *python = bh_python_state();
	struct epoll_event events[EVENTS_MAX];
	int fd, timeout_ms, max_events, n, error;

	if (!PyArg_ParseTuple(args, "iii", &fd, &timeout_ms, &max_events))
		return NULL;
	max_events = max_events < 1 ? 1 : max_events > EVENTS_MAX ? EVENTS_MAX : max_events;
	bh_gil_main_leave();
	n = epoll_wait(fd, events, max_events, timeout_ms);
	error = errno;
	python->woken_at = wakeup_site(events, n);
	bh_gil_main_enter(python->woken_at);
	if (n < 0 && error != EINTR) {
		errno = error;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	return event_list(events, n);
}

/* The loop is not the host's: it waits where it likes, and main's one scope lasts as long as it. */
static PyObject *main_is_coarse(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	bh_gil_main_is_coarse();
	Py_RETURN_NONE;
}

/* Drops references, all there are, at host.release. */
static void drop_released(struct bh_python *python)
{
	bool switches = python->woken_at != BH_SITE_RELEASE;
	bh_gil_site before = switches ? bh_gil_main_switch(BH_SITE_RELEASE) : BH_SITE_RELEASE;

	bh_postbox_deliver(&python->releases);
	if (switches)
		bh_gil_main_switch(before == BH_GIL_SITE_NONE ? BH_SITE_DISPATCH : before);
}

/* Resolves outcomes. Not all there are: each has Python run that waited for it, and what else the loop
 * has to do must not wait for a thousand of these. What was let go before one of them was told is dropped first: who
 * awaits it finds its buffers free. The descriptor of the releases does not promise that, as another
 * thread may be between its push and its wake-up. */
static PyObject *drain(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	struct bh_python *python = bh_python_state();
	struct bh_message *message = bh_postbox_take_some(&python->returns, RETURNS_AT_ONCE);

	if (atomic_load_explicit(&python->releases.head, memory_order_relaxed))
		drop_released(python);
	while (message) {
		struct bh_message *next = message->next; /* deliver() owns the message */

		message->deliver(message);
		message = next;
	}
	Py_RETURN_NONE;
}

static PyObject *release(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	drop_released(bh_python_state());
	Py_RETURN_NONE;
}

/* The loop has been closed: nobody on main looks for releases any more, and what follows is Python's
 * own end, whatever the loop's last wake-ups were for. */
static PyObject *loop_closed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	bh_gil_main_switch(BH_SITE_STOP);
	bh_courier_take_over(&bh_python_state()->releases);
	Py_RETURN_NONE;
}

/* switch_site(site) -> the site before: main goes on at another host site without letting go of the
 * GIL. */
static PyObject *switch_site(PyObject *Py_UNUSED(module), PyObject *number)
{
	unsigned long site = PyLong_AsUnsignedLong(number);
	bh_gil_site before;

	if (site == (unsigned long)-1 && PyErr_Occurred())
		return NULL;
	if (site >= BH_GIL_HOST_SITES)
		return PyErr_Format(PyExc_ValueError, "no such host site: %lu", site);
	if (!pthread_equal(pthread_self(), bh_python_state()->main_thread))
		return PyErr_Format(PyExc_RuntimeError, "only main has a site to switch");
	before = bh_gil_main_switch((bh_gil_site)site);
	/* A way back always exists: what has no host site of its own is a wake-up like any. */
	return PyLong_FromUnsignedLong(before < BH_GIL_HOST_SITES ? before : BH_SITE_DISPATCH);
}

/* ---- the books of the GIL -------------------------------------------------------------------- */

/* GET /v1/gil as text. */
static PyObject *gil_stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	json_t *stats = bh_gil_render(NULL);
	char *text = stats ? json_dumps(stats, JSON_COMPACT) : NULL;
	PyObject *result = text ? PyUnicode_FromString(text) : PyErr_NoMemory();

	free(text);
	json_decref(stats);
	return result;
}

static PyObject *gil_unsanctioned(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	return PyLong_FromUnsignedLongLong(bh_gil_unsanctioned_count());
}

/* bulkhead.gil has seen to it that the loop runs here; main's scopes are main's alone. */
static bool is_main(void)
{
	if (pthread_equal(pthread_self(), bh_python_state()->main_thread))
		return true;
	PyErr_SetString(PyExc_RuntimeError, "only on the host's main thread");
	return false;
}

static PyObject *gil_reset_unsanctioned(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	if (!is_main())
		return NULL;
	bh_gil_reset_unsanctioned();
	Py_RETURN_NONE;
}

static PyObject *gil_force_unsanctioned(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	if (!is_main())
		return NULL;
	bh_gil_force_unsanctioned();
	Py_RETURN_NONE;
}

/* ---- the manifest ---------------------------------------------------------------------------- */

static PyObject *app_options(const struct bh_config_app *app)
{
	PyObject *options = PyDict_New();

	for (size_t i = 0; options && i < app->n_options; i++) {
		PyObject *value = PyUnicode_FromString(app->options[i].value);

		if (!value || PyDict_SetItemString(options, app->options[i].key, value) < 0)
			Py_CLEAR(options);
		Py_XDECREF(value);
	}
	return options;
}

/* [(name, object, options)], in manifest order. */
static PyObject *apps(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	const struct bh_config *config = bh_python_state()->config.config;
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < config->n_apps; i++) {
		PyObject *options = app_options(&config->apps[i]);
		PyObject *app = options ? Py_BuildValue("(ssN)", config->apps[i].name,
							config->apps[i].object, options)
					: NULL;

		if (!app || PyList_Append(list, app) < 0)
			Py_CLEAR(list);
		Py_XDECREF(app);
	}
	return list;
}

/* Labels of the manifest's plugins, loaded or not. */
static PyObject *pool_labels(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	const struct bh_config *config = bh_python_state()->config.config;
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < config->n_plugins; i++) {
		PyObject *label = PyUnicode_FromString(config->plugins[i].label);

		if (!label || PyList_Append(list, label) < 0)
			Py_CLEAR(list);
		Py_XDECREF(label);
	}
	return list;
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* log(level, component, message) */
static PyObject *log_line(PyObject *Py_UNUSED(module), PyObject *args)
{
	const char *component, *message;
	int level;

	if (!PyArg_ParseTuple(args, "iss", &level, &component, &message))
		return NULL;
	if (level < BH_LOG_DEBUG || level > BH_LOG_ERROR)
		return PyErr_Format(PyExc_ValueError, "no such level: %d", level);
	bh_log((enum bh_log_level)level, component, message);
	Py_RETURN_NONE;
}

/* exit_asked(status, app or None) */
static PyObject *exit_asked(PyObject *Py_UNUSED(module), PyObject *args)
{
	const struct bh_python_config *config = &bh_python_state()->config;
	const char *app;
	int status;

	if (!PyArg_ParseTuple(args, "iz", &status, &app))
		return NULL;
	config->exit_asked(status, app, config->arg);
	Py_RETURN_NONE;
}

/* A sub-interpreter can get at this module: a copy of its names, and types that are not its own. */
static PyObject *is_main_interpreter(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	return PyBool_FromLong(PyInterpreterState_Get() == PyInterpreterState_Main());
}

static PyMethodDef module_methods[] = {
	{ "epoll_wait", epoll_wait_off_gil, METH_VARARGS, NULL },
	{ "drain", drain, METH_NOARGS, NULL },
	{ "release", release, METH_NOARGS, NULL },
	{ "loop_closed", loop_closed, METH_NOARGS, NULL },
	{ "switch_site", switch_site, METH_O, NULL },
	{ "take_requests", bh_pyrequest_take, METH_NOARGS, NULL },
	{ "apps", apps, METH_NOARGS, NULL },
	{ "pool", bh_pypool_find, METH_O, NULL },
	{ "pool_labels", pool_labels, METH_NOARGS, NULL },
	{ "log", log_line, METH_VARARGS, NULL },
	{ "exit_asked", exit_asked, METH_VARARGS, NULL },
	{ "is_main_interpreter", is_main_interpreter, METH_NOARGS, NULL },
	{ "main_is_coarse", main_is_coarse, METH_NOARGS, NULL },
	{ "gil_stats", gil_stats, METH_NOARGS, NULL },
	{ "gil_unsanctioned", gil_unsanctioned, METH_NOARGS, NULL },
	{ "gil_reset_unsanctioned", gil_reset_unsanctioned, METH_NOARGS, NULL },
	{ "gil_force_unsanctioned", gil_force_unsanctioned, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT,
	.m_name = "_bulkhead",
	.m_doc = "The host's side of the package bulkhead; not for use by apps.",
	.m_size = -1, /* one interpreter: refuses to be imported into another */
	.m_methods = module_methods,
};

static int add_constants(PyObject *module)
{
	const struct bh_python *python = bh_python_state();
	const struct {
		const char *name;
		long value;
	} constants[] = {
		{ "PLUGIN_LOAD", BH_REQUEST_PLUGIN_LOAD },
		{ "APP_LOAD", BH_REQUEST_APP_LOAD },
		{ "APP_START", BH_REQUEST_APP_START },
		{ "APP_STOP", BH_REQUEST_APP_STOP },
		{ "APP_CALL", BH_REQUEST_APP_CALL },
		{ "SUPERVISE", BH_REQUEST_SUPERVISE },
		{ "GIVE_UP", BH_REQUEST_GIVE_UP },
		{ "LEAVE", BH_REQUEST_LEAVE },
		{ "DEBUG", BH_LOG_DEBUG },
		{ "INFO", BH_LOG_INFO },
		{ "WARNING", BH_LOG_WARNING },
		{ "ERROR", BH_LOG_ERROR },
		{ "INBOX_FD", python->config.inbox->fd },
		{ "RETURNS_FD", python->returns.fd },
		{ "RELEASES_FD", python->releases.fd },
		{ "SITE_APP_CONSTRUCT", BH_SITE_APP_CONSTRUCT },
		{ "SITE_SUPERVISE", BH_SITE_SUPERVISE },
		{ "INTERRUPT_SIGNAL", BH_INTERRUPT_SIGNAL },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(constants); i++)
		if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0)
			return -1;
	return 0;
}

PyObject *bh_pymodule_create(void)
{
	PyObject *module = PyModule_Create(&module_def);

	if (module && (bh_writer_init(module) < 0 || bh_pypool_init(module) < 0 ||
		       bh_pymemory_init(module) < 0 || bh_pytask_init(module) < 0 ||
		       bh_pyrequest_init(module) < 0 || add_constants(module) < 0))
		Py_CLEAR(module);
	return module;
}
