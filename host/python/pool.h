/* SPDX-License-Identifier: BSD-3-Clause */
/* pool - the Python side of a pool and its lanes: _bulkhead.Pool and _bulkhead.Lane.
 *
 * GIL: held; let go of where the pool's lock is wanted (GIL-9). */
#ifndef BH_HOST_PYTHON_POOL_H
#define BH_HOST_PYTHON_POOL_H

#include "host/plugin/module.h"

struct bh_pypool {
	PyObject_HEAD struct bh_module *module; /* I: borrowed, outlives the interpreter */
	struct bh_pool *pool;			/* I: the module's */
};

struct bh_pylane {
	PyObject_HEAD struct bh_pypool *pool; /* I: strong */
	struct bh_lane *lane;		      /* I: a reference */
	PyObject *weakrefs;		      /* G */
};

int bh_pypool_init(PyObject *module);
/* _bulkhead.pool(label): a new reference, None when there is no such pool. */
PyObject *bh_pypool_find(PyObject *module, PyObject *label);

#endif
