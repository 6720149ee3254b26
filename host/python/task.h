/* SPDX-License-Identifier: BSD-3-Clause */
/* task - _bulkhead.Task: one submission, from Python, and its outcome.
 *
 * GIL: held. The outcome is told off the GIL by whoever ended the task: a push onto the queue of
 * what returns to main, which resolves the whole batch under one entry; no worker takes the GIL for
 * it. */
#ifndef BH_HOST_PYTHON_TASK_H
#define BH_HOST_PYTHON_TASK_H

int bh_pytask_init(PyObject *module);

#endif
