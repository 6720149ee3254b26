/* SPDX-License-Identifier: BSD-3-Clause */
/* object - see object.h. Keeps: GIL-8, GIL-9. */
#include "config.h"

#include <Python.h>

#include "host/python/object.h"

#include "host/python/state.h"

struct pyobject {
	struct bh_object base;
	struct bh_message
		message;   /* its way to main once nobody holds it: no memory is needed for that */
	PyObject *object;  /* G: strong */
	PyObject *context; /* G: strong; NULL: none */
};

/* Main, or the courier once the loop is gone; GIL held. */
static void release(struct bh_message *message)
{
	struct pyobject *self = bh_container_of(message, struct pyobject, message);

	Py_XDECREF(self->context);
	Py_DECREF(self->object);
	free(self);
}

/* Any thread, with or without the GIL, perhaps under a lock: so only a push and a write to an
 * eventfd. */
static void pyobject_free(struct bh_object *object)
{
	struct pyobject *self = bh_container_of(object, struct pyobject, base);

	self->message.deliver = release;
	bh_postbox_post(&bh_python_state()->releases, &self->message);
}

struct bh_object *bh_pyobject_new(PyObject *object, bool in_context)
{
	PyObject *context = NULL;
	struct pyobject *self;

	if (in_context) {
		context = PyContext_CopyCurrent();
		if (!context)
			return NULL;
	}
	self = calloc(1, sizeof(*self));
	if (!self) {
		Py_XDECREF(context);
		PyErr_NoMemory();
		return NULL;
	}
	self->base.refs = 1;
	self->base.free = pyobject_free;
	self->object = Py_NewRef(object);
	self->context = context;
	return &self->base;
}

PyObject *bh_pyobject_get(struct bh_object *object)
{
	if (!object || object->free != pyobject_free) {
		PyErr_SetString(PyExc_SystemError,
				"an object value that this interpreter did not make");
		return NULL;
	}
	return bh_container_of(object, struct pyobject, base)->object;
}

PyObject *bh_pyobject_context(struct bh_object *object)
{
	return bh_container_of(object, struct pyobject, base)->context;
}
