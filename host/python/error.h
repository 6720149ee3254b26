/* SPDX-License-Identifier: BSD-3-Clause */
/* error - the only place where Python exceptions become bh_errors, and the way back.
 *
 * Thread: any. GIL: held. */
#ifndef BH_HOST_PYTHON_ERROR_H
#define BH_HOST_PYTHON_ERROR_H

#include "host/core/error.h"

/* The raised exception with its traceback, no longer raised; a new reference, NULL when there is
 * none. */
PyObject *bh_pyerror_take(void);
/* Raises it again, with the traceback it has; steals the reference. */
void bh_pyerror_restore(PyObject *exception);
/* Python → host: facts type, message and at ("file:line" of where it was raised). Returns `status`.
 */
bh_status bh_pyerror_raise(struct bh_error *err, bh_status status, const char *id,
			   PyObject *exception);
/* As bh_pyerror_raise for the raised exception, which is dropped. */
bh_status bh_pyerror_raise_taken(struct bh_error *err, bh_status status, const char *id);
/* { key: text } as facts of `err`; what is not text is left out. */
void bh_pyerror_note(struct bh_error *err, PyObject *facts);
/* Writes the exception and its traceback to the log, a line each. */
void bh_pyerror_log(PyObject *exception, const char *message);

/* Host → Python: a bulkhead.BulkheadError of the class that `kind` names
 * (python/bulkhead/_errors.py) with the error's id as .code and its facts. NULL with another
 * exception raised when even that fails. */
PyObject *bh_pyerror_new(const char *kind, const struct bh_error *err);
/* Raises it; returns NULL, so that a method can end with it. */
PyObject *bh_pyerror_set(const char *kind, const struct bh_error *err);

#endif
