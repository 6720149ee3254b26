/* SPDX-License-Identifier: BSD-3-Clause */
/* frames - every Python thread's stack, read from outside and without the GIL (CP-3).
 *
 * The threads go on meanwhile: a stack that moves while it is read may be cut or mixed, and says so
 * where that was noticed; nothing crashes, nobody is interrupted, and no lock is taken. Works while
 * the interpreter is up (bh_gil_interpreter_up … bh_gil_interpreter_down); otherwise there are no
 * stacks. */
#ifndef BH_HOST_GIL_FRAMES_H
#define BH_HOST_GIL_FRAMES_H

#include <jansson.h>

#include "host/core/error.h"

/* Tries whether the kernel lets us copy our own memory (process_vm_readv): where a system call
 * filter forbids it, that is logged, and there are no stacks. Once, after bh_log_start(). */
bh_status bh_gil_frames_init(struct bh_error *err) BH_MUST_CHECK;
/* [{tid, thread, holds, cut, frames: ["FILE:LINE in NAME", …]}], the GIL's holder (`holds`) first,
 * then the newest thread first; innermost frame first. `cut`: frames are missing, or it moved. At
 * most 256 threads, main and the holder among them, and 100 frames each. Valid UTF-8 without
 * control characters; FILE is the last 200 bytes, NAME the first 100 of the qualified name, with
 * "…" where something was left out; LINE is "?" where there is none. NULL without memory.
 *
 * Thread: any; keep it off the control loop, since it takes a few µs a frame. GIL: either way. */
json_t *bh_gil_frames_read(void);

#endif
