/* SPDX-License-Identifier: BSD-3-Clause */
/* python - the embedded interpreter and what main does in it, seen from main.c (no Python.h here).
 *
 * Thread: main for everything but bh_python_interrupt_main and the postbox. Keeps: GIL-8, GIL-9,
 * CP-2. */
#ifndef BH_HOST_PYTHON_PYTHON_H
#define BH_HOST_PYTHON_PYTHON_H

#include "host/core/clock.h"
#include "host/core/post.h"
#include "host/manifest/config.h"

struct bh_module;

struct bh_python_config {
	const struct bh_config *config; /* borrowed for good */
	struct bh_postbox *inbox;	/* main's: requests arrive here */
	const char *package_dir;	/* where the `bulkhead` package lies */
	/* BH_REQUEST_PLUGIN_LOAD is passed on to this, without the GIL. */
	void (*plugin_load)(struct bh_request *request, void *arg);
	/* The modules that are loaded, for bulkhead.pool(): NULL when the label is unknown. */
	struct bh_module *(*find_module)(const char *label, void *arg);
	/* An app asked for the end: SystemExit with this status (0 … 255). */
	void (*exit_asked)(int status, const char *app, void *arg);
	void *arg;
};

/* Checks home and venv, initializes (isolated, UTF-8), imports the package. On return main holds no
 * GIL. Errors: python.home, python.venv, python.init, python.version, python.package,
 * python.event_loop …; never ends the process by itself. -EINVAL: the set-up is wrong (exit status 78). */
bh_status bh_python_start(const struct bh_python_config *config,
			  struct bh_error *err) BH_MUST_CHECK;
/* Runs the asyncio loop and serves the inbox until BH_REQUEST_LEAVE. */
bh_status bh_python_serve(struct bh_error *err) BH_MUST_CHECK;
/* Python's own end: threading._shutdown, atexit functions. The release queue goes to the courier, to
 * be closed and joined afterwards (host/gil/courier.h). May hang on user
 * code: the conductor's deadline covers it, and shortly before `until` the log names what it waits
 * for. */
void bh_python_end(struct bh_deadline until);
/* Py_FinalizeEx, after the gate has closed. 0, or -EIO when it reported an error. */
bh_status bh_python_finalize(struct bh_error *err) BH_MUST_CHECK;
/* Main, once, at the very end: how many references have been dropped since the interpreter ended. It
 * cannot take them any more, so they stay (GIL-9). */
uint64_t bh_python_left_behind(void);

/* Any thread: makes whatever Python code main runs raise bulkhead.Interrupted (a real-time signal).
 */
void bh_python_interrupt_main(void);

/* Delivers the message on main, under the GIL, when its loop next takes what has come back to it
 * (host.drain). Any thread, never blocks. After Python's end nothing is delivered any more. */
void bh_python_post(struct bh_message *message);

/* For tests and status: "3.11.2 (main, …)". Static after start. */
const char *bh_python_version(void);

#endif
