/* SPDX-License-Identifier: BSD-3-Clause */
/* call - see call.h.
 *
 * Thread: the one that runs the task. Blocks: for the GIL, at the plugin's site. Keeps: GIL-8,
 * GIL-9. */
#include "config.h"

#include <Python.h>

#include "host/python/call.h"

#include <errno.h>

#include "host/core/identity.h"
#include "host/python/convert.h"
#include "host/python/cuda_array.h"
#include "host/python/error.h"
#include "host/python/object.h"

/* Calls in a copy of the submitter's context, made anew for each call: what a callable sets stays
 * its own, and two calls of one callable may overlap (GIL-8). */
static PyObject *call_in_context(struct bh_object *callable, PyObject *args)
{
	PyObject *function = bh_pyobject_get(callable);
	PyObject *submitters = function ? bh_pyobject_context(callable) : NULL;
	PyObject *context, *result;

	if (!function)
		return NULL;
	context = submitters ? PyContext_Copy(submitters) : PyContext_New();
	if (!context || PyContext_Enter(context) < 0) {
		Py_XDECREF(context);
		return NULL;
	}
	result = PyObject_CallObject(function, args);
	if (PyContext_Exit(context) < 0)
		Py_CLEAR(result);
	Py_DECREF(context);
	return result;
}

/* What was raised, SystemExit and KeyboardInterrupt included, is the task's failure and nobody
 * else's. */
static bh_status keep_exception(struct bh_task *task)
{
	struct bh_error *err = bh_task_error(task);
	PyObject *exception = bh_pyerror_take();
	struct bh_object *cause;

	if (!exception)
		return bh_raise(err, -EREMOTEIO, "python.raised",
				BH_STR("reason", "no exception was set"));
	bh_pyerror_raise(err, -EREMOTEIO, "python.raised", exception);
	cause = bh_pyobject_new(exception, false);
	if (cause)
		bh_task_set_cause(task, cause);
	else
		PyErr_Clear(); /* no memory: the facts say what it was */
	Py_DECREF(exception);
	return -EREMOTEIO;
}

static bh_status call_held(struct bh_task *task, struct bh_object *callable,
			   const struct bh_value *args, uint32_t n_args, struct bh_value *ret_value)
{
	PyObject *tuple = bh_convert_tuple(args, n_args);
	PyObject *result = tuple ? call_in_context(callable, tuple) : NULL;
	struct bh_object *object = result ? bh_pyobject_new(result, false) : NULL;

	Py_XDECREF(tuple);
	Py_XDECREF(result);
	if (!object)
		return keep_exception(task);
	*ret_value = (struct bh_value){ .type = BH_TYPE_OBJECT, .as.object = object };
	return 0;
}

static bh_status call_object(struct bh_task *task, bh_gil_site site, struct bh_object *callable,
			     const struct bh_value *args, uint32_t n_args,
			     struct bh_value *ret_value)
{
	struct bh_gil_scope scope;
	bh_status st = bh_gil_enter(site, BH_HERE, &scope, bh_task_error(task));

	if (st < 0)
		return st;
	st = call_held(task, callable, args, n_args, ret_value);
	bh_gil_leave(&scope);
	return st;
}

static uint32_t marks_of(uint32_t flags)
{
	return (flags & BH_BUFFER_WRITABLE ? BH_MARK_WRITABLE : 0) |
	       (flags & BH_BUFFER_STRIDED ? BH_MARK_STRIDED : 0);
}

/* The exception says what is wrong with "its memory"; whose, and who asked, is told by a note. */
static void note_asked(PyObject *object, const char *accepted)
{
	PyObject *exception = bh_pyerror_take(), *none;

	if (!exception)
		return;
	none = PyObject_CallMethod(
		exception, "add_note", "N",
		PyUnicode_FromFormat("(pool %s asked this %s for its memory; accepted: %s)",
				     bh_identity_get()->label, Py_TYPE(object)->tp_name, accepted));
	if (!none)
		PyErr_Clear(); /* it goes without */
	Py_XDECREF(none);
	bh_pyerror_restore(exception);
}

static const char *accepts_cuda(uint32_t flags)
{
	if (flags & BH_BUFFER_WRITABLE)
		return "writable memory that a CUDA device reaches, by DLPack or "
		       "__cuda_array_interface__";
	return "memory that a CUDA device reaches, by DLPack or __cuda_array_interface__";
}

static bh_status buffer_held(struct bh_task *task, struct bh_object *object, uint32_t flags,
			     struct bh_cuda_use *use, struct bh_buffer **ret_buffer)
{
	PyObject *python = bh_pyobject_get(object);
	struct bh_buffer *buffer = NULL;

	if (python) {
		buffer = use ? bh_pycuda_new(python, flags, use)
			     : bh_convert_buffer(python, marks_of(flags));
		if (!buffer)
			note_asked(python,
				   use ? accepts_cuda(flags)
				       : bh_convert_accepts(BH_TYPE_BUFFER, marks_of(flags)));
	}
	if (!buffer)
		return keep_exception(task);
	*ret_buffer = buffer;
	return 0;
}

static bh_status object_buffer(struct bh_task *task, bh_gil_site site, struct bh_object *object,
			       uint32_t flags, struct bh_cuda_use *use,
			       struct bh_buffer **ret_buffer)
{
	struct bh_gil_scope scope;
	bh_status st = bh_gil_enter(site, BH_HERE, &scope, bh_task_error(task));

	if (st < 0)
		return st;
	st = buffer_held(task, object, flags, use, ret_buffer);
	bh_gil_leave(&scope);
	return st;
}

static bh_status unwrap(struct bh_object *object, uint32_t type, uint32_t marks, bool or_none,
			struct bh_value *ret_value, char *given, size_t size, struct bh_error *err)
{
	struct bh_gil_scope scope;
	PyObject *python;
	bh_status st = bh_gil_enter(BH_SITE_ARGUMENT, BH_HERE, &scope, err);

	if (st < 0)
		return st;
	python = bh_pyobject_get(object);
	st = python ? bh_convert_one(python, type, marks, or_none, ret_value, given, size)
		    : -EINVAL;
	PyErr_Clear(); /* what does not fit is told by `given` */
	bh_gil_leave(&scope);
	return st;
}

const struct bh_python_services *bh_call_services(void)
{
	static const struct bh_python_services services = { .call_object = call_object,
							    .object_buffer = object_buffer,
							    .wrap = bh_pyobject_wrap,
							    .unwrap = unwrap };

	return &services;
}
