/* SPDX-License-Identifier: BSD-3-Clause */
/* frames - every Python thread's stack, read from outside and without the GIL (CP-3).
 *
 * The threads go on meanwhile: a stack that moves while it is read may be cut or mixed, and says so
 * where that was noticed; nothing crashes, nobody is interrupted. Works while the interpreter is up
 * (bh_gil_interpreter_up … bh_gil_interpreter_down); otherwise there are no stacks. */
#ifndef BH_HOST_GIL_FRAMES_H
#define BH_HOST_GIL_FRAMES_H

#include <jansson.h>

#include "host/core/error.h"

/* Installs what catches a read of memory that has just gone. Before threads are made, after
 * bh_crash_init(), whose handlers go on to work. */
bh_status bh_gil_frames_init(struct bh_error *err) BH_MUST_CHECK;
/* [{tid, thread, holds, cut, frames: ["FILE:LINE in NAME", …]}], innermost frame first; `holds`: it
 * is the GIL's holder. At most 256 threads and 100 frames each. NULL without memory. Thread: any
 * but the control loop (it may wait for another reader). */
json_t *bh_gil_frames_read(void);

#endif
