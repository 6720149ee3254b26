/* SPDX-License-Identifier: BSD-3-Clause */
/* request - what the control loop asks of main, as Python sees it: _bulkhead.Request.
 *
 * Thread: main. GIL: held. A request gets exactly one reply: the object's end is one too. */
#ifndef BH_HOST_PYTHON_REQUEST_H
#define BH_HOST_PYTHON_REQUEST_H

int bh_pyrequest_init(PyObject *module);
/* _bulkhead.take_requests(): all there are, oldest first, in a new list. */
PyObject *bh_pyrequest_take(PyObject *module, PyObject *none);

#endif
