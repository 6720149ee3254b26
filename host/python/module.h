/* SPDX-License-Identifier: BSD-3-Clause */
/* module - the built-in module `_bulkhead`: what the Python package stands on. Nothing in it is
 * meant for apps; the package `bulkhead` is (docs/python-api.md). */
#ifndef BH_HOST_PYTHON_MODULE_H
#define BH_HOST_PYTHON_MODULE_H

/* For PyImport_AppendInittab. */
PyObject *bh_pymodule_create(void);

#endif
