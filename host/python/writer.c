/* SPDX-License-Identifier: BSD-3-Clause */
/* writer - see writer.h. Thread: any of Python's. GIL: held. Keeps: CP-1. */
#include "config.h"

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "host/python/writer.h"

#include <string.h>
#include <structmember.h>
#include <unistd.h>

#include "host/python/state.h"

#define COMPONENT "python"
#define LINE_MAX_CHARS 1000 /* a longer line is written in pieces: the log would cut it */

struct writer {
	PyObject_HEAD int fd;	 /* I: what it stands for, told by fileno() */
	enum bh_log_level level; /* I */
	/* G: { thread id: the text of its line so far }, so that the lines of two threads do not
	 * mix */
	PyObject *begun;
};

static void write_line(const struct writer *self, PyObject *line)
{
	Py_ssize_t length;
	const char *text = PyUnicode_AsUTF8AndSize(line, &length);
	PyObject *bytes, *whole = NULL;

	if (text && strlen(text) == (size_t)length) {
		bh_log(self->level, COMPONENT, text);
		return;
	}
	PyErr_Clear(); /* surrogates are written as \udc80, NUL as \0 */
	bytes = PyUnicode_AsEncodedString(line, "utf-8", "backslashreplace");
	if (bytes)
		whole = PyObject_CallMethod(bytes, "replace", "y#y", "\0", (Py_ssize_t)1, "\\0");
	if (whole)
		bh_log(self->level, COMPONENT, PyBytes_AS_STRING(whole));
	else
		PyErr_Clear();
	Py_XDECREF(whole);
	Py_XDECREF(bytes);
}

/* What the calling thread has begun, a new reference, taken out; NULL when nothing, or with an
 * exception raised. */
static PyObject *take_begun(struct writer *self, PyObject *thread)
{
	PyObject *text = PyDict_GetItemWithError(self->begun, thread);

	if (!text)
		return NULL;
	Py_INCREF(text);
	if (PyDict_DelItem(self->begun, thread) < 0)
		Py_CLEAR(text);
	return text;
}

/* Writes the whole lines of `text` and keeps the rest for the thread. */
static int write_text(struct writer *self, PyObject *thread, PyObject *text)
{
	Py_ssize_t length = PyUnicode_GET_LENGTH(text), start = 0;

	while (start < length) {
		Py_ssize_t end = PyUnicode_FindChar(text, '\n', start, length, 1);
		bool whole = end >= 0, too_long = (whole ? end : length) - start > LINE_MAX_CHARS;
		PyObject *line;
		int result = 0;

		if (end == -2)
			return -1;
		if (too_long)
			end = start + LINE_MAX_CHARS;
		else if (!whole)
			end = length;
		line = PyUnicode_Substring(text, start, end);
		if (!line)
			return -1;
		if (whole || too_long)
			write_line(self, line);
		else
			result = PyDict_SetItem(self->begun, thread, line);
		Py_DECREF(line);
		if (result < 0)
			return -1;
		start = too_long || !whole ? end : end + 1;
	}
	return 0;
}

static PyObject *writer_write(PyObject *object, PyObject *text)
{
	struct writer *self = (struct writer *)object;
	PyObject *thread, *begun, *all;
	int result = -1;

	if (!PyUnicode_Check(text))
		return PyErr_Format(PyExc_TypeError, "write() argument must be str, not %.200s",
				    Py_TYPE(text)->tp_name);
	thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
	if (!thread)
		return NULL;
	begun = take_begun(self, thread);
	if (begun || !PyErr_Occurred()) {
		all = begun ? PyUnicode_Concat(begun, text) : Py_NewRef(text);
		result = all ? write_text(self, thread, all) : -1;
		Py_XDECREF(all);
	}
	Py_XDECREF(begun);
	Py_DECREF(thread);
	return result < 0 ? NULL : PyLong_FromSsize_t(PyUnicode_GET_LENGTH(text));
}

/* What any thread has begun: flush() is asked for when nothing may stay behind. */
static PyObject *writer_flush(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct writer *self = (struct writer *)object;
	PyObject *begun = self->begun, *fresh = PyDict_New(), *line;
	Py_ssize_t at = 0;

	if (!fresh)
		return NULL;
	self->begun = fresh;
	while (PyDict_Next(begun, &at, NULL, &line))
		write_line(self, line);
	Py_DECREF(begun);
	Py_RETURN_NONE;
}

static PyObject *writer_fileno(PyObject *object, PyObject *Py_UNUSED(none))
{
	return PyLong_FromLong(((struct writer *)object)->fd);
}

static PyObject *writer_false(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(none))
{
	Py_RETURN_FALSE;
}

static PyObject *writer_true(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(none))
{
	Py_RETURN_TRUE;
}

static PyObject *get_encoding(PyObject *Py_UNUSED(object), void *Py_UNUSED(closure))
{
	return PyUnicode_FromString("utf-8");
}

static PyObject *get_errors(PyObject *Py_UNUSED(object), void *Py_UNUSED(closure))
{
	return PyUnicode_FromString("backslashreplace");
}

static PyObject *get_closed(PyObject *Py_UNUSED(object), void *Py_UNUSED(closure))
{
	Py_RETURN_FALSE;
}

static void writer_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	Py_XDECREF(((struct writer *)object)->begun);
	type->tp_free(object);
	Py_DECREF(type);
}

static PyMethodDef writer_methods[] = {
	{ "write", writer_write, METH_O,
	  "Write text; each whole line becomes one line of the host's log." },
	{ "flush", writer_flush, METH_NOARGS,
	  "Write what has no newline yet as lines of its own." },
	{ "fileno", writer_fileno, METH_NOARGS,
	  "The descriptor it stands for; it is not written to." },
	{ "isatty", writer_false, METH_NOARGS, NULL },
	{ "readable", writer_false, METH_NOARGS, NULL },
	{ "seekable", writer_false, METH_NOARGS, NULL },
	{ "writable", writer_true, METH_NOARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

static PyGetSetDef writer_getset[] = {
	{ "encoding", get_encoding, NULL, NULL, NULL },
	{ "errors", get_errors, NULL, NULL, NULL },
	{ "closed", get_closed, NULL, NULL, NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot writer_slots[] = {
	{ Py_tp_doc, "Text stream whose lines go to the host's log." },
	{ Py_tp_dealloc, writer_dealloc },
	{ Py_tp_methods, writer_methods },
	{ Py_tp_getset, writer_getset },
	{ 0, NULL },
};

static PyType_Spec writer_spec = {
	.name = "_bulkhead.Writer",
	.basicsize = sizeof(struct writer),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = writer_slots,
};

int bh_writer_init(PyObject *module)
{
	PyObject *type = PyType_FromModuleAndSpec(module, &writer_spec, NULL);

	bh_python_state()->writer_type = (PyTypeObject *)type;
	return type ? PyModule_AddObjectRef(module, "Writer", type) : -1;
}

static int install(const char *name, const char *saved_name, int fd, enum bh_log_level level)
{
	PyTypeObject *type = bh_python_state()->writer_type;
	struct writer *self = (struct writer *)type->tp_alloc(type, 0);
	int result = -1;

	if (!self)
		return -1;
	self->fd = fd;
	self->level = level;
	self->begun = PyDict_New();
	if (self->begun && PySys_SetObject(name, (PyObject *)self) == 0)
		result = PySys_SetObject(saved_name, (PyObject *)self);
	Py_DECREF(self);
	return result;
}

int bh_writer_install(void)
{
	if (install("stdout", "__stdout__", STDOUT_FILENO, BH_LOG_INFO) < 0)
		return -1;
	return install("stderr", "__stderr__", STDERR_FILENO, BH_LOG_WARNING);
}
