/* SPDX-License-Identifier: BSD-3-Clause */
/* writer - sys.stdout and sys.stderr of the embedded interpreter: whole lines to the host's log.
 *
 * Python's own files have a lock, which a printing daemon thread may hold while the interpreter is
 * finalized: that aborts the process (CP-1). This has none but the GIL, and bh_log never blocks. */
#ifndef BH_HOST_PYTHON_WRITER_H
#define BH_HOST_PYTHON_WRITER_H

#include "host/core/log.h"

/* GIL: held. Makes the type; 0, or -1 with an exception raised. */
int bh_writer_init(PyObject *module);
/* Puts one each in place of sys.stdout and sys.stderr (and of sys.__stdout__ and sys.__stderr__).
 */
int bh_writer_install(void);

#endif
