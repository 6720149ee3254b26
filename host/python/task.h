/* SPDX-License-Identifier: BSD-3-Clause */
/* task - _bulkhead.Task: one submission, from Python, and its outcome.
 *
 * GIL: held. The outcome is told off the GIL by whoever ended the task: a push onto the queue of
 * what returns to main, which resolves the whole batch under one entry; no worker takes the GIL for
 * it. */
#ifndef BH_HOST_PYTHON_TASK_H
#define BH_HOST_PYTHON_TASK_H

#include "host/core/pool.h"

int bh_pytask_init(PyObject *module);

/* What a task that is given as an argument is worth. */
enum bh_pytask_use {
	BH_PYTASK_TICKET,  /* its ticket: a reference and a claim pass to the caller */
	BH_PYTASK_SEEN,	   /* what it returned, a new reference */
	BH_PYTASK_WAITS,   /* nothing yet: it has not been accepted */
	BH_PYTASK_REFUSED, /* nothing: it never was, and never will be */
	BH_PYTASK_ERROR,   /* an exception is raised: no memory */
};
/* `object` is a _bulkhead.Task. */
enum bh_pytask_use bh_pytask_use(PyObject *object, struct bh_ticket **ret_ticket,
				 PyObject **ret_value);

#endif
