/* SPDX-License-Identifier: BSD-3-Clause */
/* object - a Python reference as a bh_object that any thread may hold and drop without the GIL.
 *
 * Dropping the last reference posts it to the release queue: main lets go of the Python object at
 * host.release, or the courier does once main's loop is gone (GIL-9). What is dropped after
 * bh_python_finalize has begun stays where it is. */
#ifndef BH_HOST_PYTHON_OBJECT_H
#define BH_HOST_PYTHON_OBJECT_H

#include "host/core/value.h"

/* GIL: held. A strong reference to `object`; with `in_context`, also a copy of the caller's context
 * for it to be called in (GIL-8). NULL with an exception raised. */
struct bh_object *bh_pyobject_new(PyObject *object, bool in_context);
/* An object that is made from the value by who first asks for it; the value passes over. Thread: any.
 * GIL: not needed. NULL without memory, and the value is the caller's still. */
struct bh_object *bh_pyobject_wrap(struct bh_value *value);
/* What it refers to, borrowed. NULL with an exception raised when it is not one of ours. */
PyObject *bh_pyobject_get(struct bh_object *object);
/* Its context, borrowed; NULL when it has none. Only for one of ours. */
PyObject *bh_pyobject_context(struct bh_object *object);

#endif
