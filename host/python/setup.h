/* SPDX-License-Identifier: BSD-3-Clause */
/* setup - which Python the interpreter is to run, checked before it is initialized.
 *
 * CPython takes a wrong path for an answer: a home that does not exist ends the process, a venv of
 * another version has no packages without a word, and one of another build of the same version has
 * this libpython run that one's standard library. So all of it is refused here, with what would be
 * right.
 *
 * Thread: main, before initialization. GIL: there is none yet. */
#ifndef BH_HOST_PYTHON_SETUP_H
#define BH_HOST_PYTHON_SETUP_H

#include <limits.h>

#include "host/manifest/config.h"

struct bh_python_setup {
	char program[PATH_MAX]; /* sys.executable: what subprocesses and multiprocessing run */
	char home[PATH_MAX];	/* "" where the program says where it is */
	char prefix[PATH_MAX];	/* what sys.base_prefix must be, resolved */
};

/* `python`: the interpreter that this host was built for (configure's PYTHON). Errors: python.home,
 * python.venv, python.executable with what was given and what would be right; -EINVAL. */
bh_status bh_python_setup(const struct bh_config *config, const char *python,
			  struct bh_python_setup *ret_setup, struct bh_error *err) BH_MUST_CHECK;

#endif
