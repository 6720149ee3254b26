/* SPDX-License-Identifier: BSD-3-Clause */
/* state - what the files of host/python share about the one interpreter of the process.
 *
 * There is one interpreter a process and python.h hands out no handle, and the C functions that
 * Python and the pools call back have none to hang it on: so this state is process-wide. Field
 * letters as usual; G: under the GIL. Every PyObject in it is a strong reference, dropped in
 * bh_python_end(). */
#ifndef BH_HOST_PYTHON_STATE_H
#define BH_HOST_PYTHON_STATE_H

#include <pthread.h>

#include "host/python/python.h"

#ifdef Py_GIL_DISABLED
#error "Bulkhead accounts for the GIL: build against a Python that has one"
#endif

struct bh_python {
	struct bh_python_config config; /* I after bh_python_start */
	/* Told outcomes, on their way back to main. One eventfd wakes the asyncio loop, and one
	 * entry at host.drain takes all there is. */
	struct bh_postbox returns;
	/* References to be dropped (GIL-9): by main at host.release, by the courier once the loop is
	 * gone. A box of their own, so that it can be handed on. */
	struct bh_postbox releases;
	uint32_t woken_at;	    /* T: main; the host site of its present wake-up */
	pthread_t main_thread;	    /* I */
	_Atomic bool interruptible; /* A: seq_cst; false once the signal's Python handler is gone */
	PyObject *host;		    /* G: the module bulkhead._host */
	PyObject *make_error;	    /* G: bulkhead._errors.from_host */
	PyTypeObject *task_type, *pool_type, *lane_type, *request_type, *writer_type; /* G */
	PyTypeObject *memory_type;						      /* G */
};

struct bh_python *bh_python_state(void);

/* The signal that makes main's Python code raise Interrupted. host/core/stack.h has the next one.
 */
#define BH_INTERRUPT_SIGNAL (SIGRTMIN + 1)

#endif
