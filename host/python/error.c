/* SPDX-License-Identifier: BSD-3-Clause */
/* error - see error.h. */
#include "config.h"

#include <Python.h>

#include "host/python/error.h"

#include <stdio.h>
#include <string.h>

#include "host/core/log.h"
#include "host/python/state.h"

#define COMPONENT "python"
/* Bytes of an exception's text in a fact: a longer fact would be left out whole. */
#define MESSAGE_MAX 400

PyObject *bh_pyerror_take(void)
{
#if PY_VERSION_HEX >= 0x030c0000
	return PyErr_GetRaisedException();
#else
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (!type)
		return NULL;
	PyErr_NormalizeException(&type, &value, &traceback);
	if (traceback)
		PyException_SetTraceback(value, traceback);
	Py_DECREF(type);
	Py_XDECREF(traceback);
	return value;
#endif
}

void bh_pyerror_restore(PyObject *exception)
{
#if PY_VERSION_HEX >= 0x030c0000
	PyErr_SetRaisedException(exception);
#else
	PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exception)), exception,
		      PyException_GetTraceback(exception));
#endif
}

/* str(object), cut between characters. Never fails and leaves nothing raised. */
static void text_of(PyObject *object, char *buffer, size_t size)
{
	PyObject *text = object ? PyObject_Str(object) : NULL;
	Py_ssize_t length = 0;
	const char *utf8 = text ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;

	if (!utf8) {
		PyErr_Clear();
		snprintf(buffer, size, "(no text)");
	} else if ((size_t)length < size) {
		memcpy(buffer, utf8, (size_t)length + 1);
	} else {
		length = (Py_ssize_t)size - 4; /* room for "…" and its NUL */
		while (length > 0 && ((unsigned char)utf8[length] & 0xc0) == 0x80)
			length--;
		memcpy(buffer, utf8, (size_t)length);
		memcpy(buffer + length, "…", sizeof("…"));
	}
	Py_XDECREF(text);
}

/* `object`.`name`, a new reference; NULL with nothing raised. */
static PyObject *look(PyObject *object, const char *name)
{
	PyObject *found = object ? PyObject_GetAttrString(object, name) : NULL;

	if (!found)
		PyErr_Clear();
	return found;
}

/* "file:line" of the innermost frame of its traceback; "" without one. */
static void place_of(PyObject *exception, char *buffer, size_t size)
{
	PyObject *traceback = PyException_GetTraceback(exception);
	PyObject *frame, *code, *file, *line;
	char path[256];

	buffer[0] = '\0';
	if (!traceback)
		return;
	for (PyObject *next; (next = look(traceback, "tb_next")) && next != Py_None;) {
		Py_DECREF(traceback);
		traceback = next;
	}
	frame = look(traceback, "tb_frame");
	code = look(frame, "f_code");
	file = look(code, "co_filename");
	line = look(traceback, "tb_lineno");
	if (file && line) {
		text_of(file, path, sizeof(path));
		snprintf(buffer, size, "%s:%ld", path, PyLong_AsLong(line));
		PyErr_Clear();
	}
	Py_XDECREF(line);
	Py_XDECREF(file);
	Py_XDECREF(code);
	Py_XDECREF(frame);
	Py_DECREF(traceback);
}

bh_status bh_pyerror_raise(struct bh_error *err, bh_status status, const char *id,
			   PyObject *exception)
{
	char message[MESSAGE_MAX], at[300];

	text_of(exception, message, sizeof(message));
	place_of(exception, at, sizeof(at));
	bh_raise(err, status, id, BH_STR("type", Py_TYPE(exception)->tp_name),
		 BH_STR("message", message));
	return at[0] ? bh_note(err, status, BH_STR("at", at)) : status;
}

bh_status bh_pyerror_raise_taken(struct bh_error *err, bh_status status, const char *id)
{
	PyObject *exception = bh_pyerror_take();

	if (!exception)
		return bh_raise(err, status, id, BH_STR("reason", "no exception was set"));
	bh_pyerror_raise(err, status, id, exception);
	Py_DECREF(exception);
	return status;
}

void bh_pyerror_note(struct bh_error *err, PyObject *facts)
{
	PyObject *key, *value;
	Py_ssize_t at = 0;

	while (PyDict_Next(facts, &at, &key, &value)) {
		const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : NULL;
		const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : NULL;

		if (name && text)
			bh_note(err, err->status, BH_STR(name, text));
		else
			PyErr_Clear();
	}
}

/* One log line a line of text. */
static void log_lines(PyObject *text)
{
	PyObject *lines = PyUnicode_Splitlines(text, 0);

	for (Py_ssize_t i = 0; lines && i < PyList_GET_SIZE(lines); i++) {
		const char *line = PyUnicode_AsUTF8(PyList_GET_ITEM(lines, i));

		if (line)
			bh_log(BH_LOG_ERROR, COMPONENT, line);
		else
			PyErr_Clear();
	}
	if (!lines)
		PyErr_Clear();
	Py_XDECREF(lines);
}

void bh_pyerror_log(PyObject *exception, const char *message)
{
	PyObject *traceback = PyImport_ImportModule("traceback");
	PyObject *parts =
		traceback ? PyObject_CallMethod(traceback, "format_exception", "(O)", exception)
			  : NULL;
	struct bh_error err = { 0 };

	bh_pyerror_raise(&err, -EREMOTEIO, "python.raised", exception);
	bh_log_error(BH_LOG_ERROR, COMPONENT, message, &err);
	for (Py_ssize_t i = 0; parts && i < PyList_GET_SIZE(parts); i++)
		log_lines(PyList_GET_ITEM(parts, i));
	if (!parts)
		PyErr_Clear();
	Py_XDECREF(parts);
	Py_XDECREF(traceback);
}

/* { key: value } of the error's facts, all text; NULL with an exception raised. */
static PyObject *facts_of(const struct bh_error *err)
{
	PyObject *facts = PyDict_New();

	for (unsigned i = 0; facts && i < err->n_facts; i++) {
		const char *text = bh_error_value(err, i);
		PyObject *value = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");

		if (!value || PyDict_SetItemString(facts, bh_error_key(err, i), value) < 0)
			Py_CLEAR(facts);
		Py_XDECREF(value);
	}
	return facts;
}

PyObject *bh_pyerror_new(const char *kind, const struct bh_error *err)
{
	PyObject *make = bh_python_state()->make_error;
	PyObject *facts, *exception;

	if (!make) { /* before the package is imported, or after Python's end */
		PyErr_Format(PyExc_RuntimeError, "%s: %s", kind, err->id);
		return NULL;
	}
	facts = facts_of(err);
	if (!facts)
		return NULL;
	exception = PyObject_CallFunction(make, "ssO", kind, err->id, facts);
	Py_DECREF(facts);
	return exception;
}

PyObject *bh_pyerror_set(const char *kind, const struct bh_error *err)
{
	PyObject *exception = bh_pyerror_new(kind, err);

	if (exception)
		bh_pyerror_restore(exception);
	return NULL;
}
