/* SPDX-License-Identifier: BSD-3-Clause */
/* object - see object.h. Keeps: GIL-8, GIL-9. */
#include "config.h"

#include <Python.h>

#include "host/python/object.h"

#include "host/python/convert.h"
#include "host/python/state.h"

struct pyobject {
	struct bh_object base;
	struct bh_message
		message;   /* its way to main once nobody holds it: no memory is needed for that */
	PyObject *object;  /* G: strong; NULL until `value` has been needed */
	PyObject *context; /* G: strong; NULL: none */
	struct bh_value value; /* G: what the object is to be made from; then none */
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

	/* Who holds the last reference is behind all others (acquire). */
	if (!self->object) { /* never needed: no Python object was made */
		bh_value_clear(&self->value);
		free(self);
		return;
	}
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

struct bh_object *bh_pyobject_wrap(struct bh_value *value)
{
	struct pyobject *self = calloc(1, sizeof(*self));

	if (!self)
		return NULL;
	self->base.refs = 1;
	self->base.free = pyobject_free;
	self->value = bh_value_steal(value);
	return &self->base;
}

/* The value stays as it is when no object can be made of it. Making one lets no other Python code
 * run but, at most, the collector's: so what is looked at after it is looked at anew. */
static PyObject *unwrap(struct pyobject *self)
{
	PyObject *object;

	if (self->object)
		return self->object;
	object = bh_convert_value(&self->value);
	if (self->object) {
		Py_XDECREF(object);
	} else if (object) {
		self->object = object;
		bh_value_clear(&self->value);
	}
	return self->object;
}

PyObject *bh_pyobject_get(struct bh_object *object)
{
	if (!object || object->free != pyobject_free) {
		PyErr_SetString(PyExc_SystemError,
				"an object value that this interpreter did not make");
		return NULL;
	}
	return unwrap(bh_container_of(object, struct pyobject, base));
}

PyObject *bh_pyobject_context(struct bh_object *object)
{
	return bh_container_of(object, struct pyobject, base)->context;
}
