/* SPDX-License-Identifier: BSD-3-Clause */
/* stack - the native stack of another thread of this process (EXIT-4, CP-3).
 *
 * A real-time signal (SIGRTMIN+2) has the thread take its own backtrace; whoever asks waits with a
 * deadline. The signal interrupts poll and nanosleep in the thread with EINTR: render only a thread
 * that is given up, and observe others. A thread that blocks all signals gives none: then its kernel wait channel
 * and system call are told instead. Thread: any, one at a time (others wait their turn within their
 * deadline). */
#ifndef BH_HOST_CORE_STACK_H
#define BH_HOST_CORE_STACK_H

#include "host/core/clock.h"
#include "host/core/error.h"

/* Installs the handler and warms backtrace() up (it loads libgcc at first use). Before threads are
 * made. */
bh_status bh_stack_init(struct bh_error *err) BH_MUST_CHECK;
int bh_stack_signal(void);
/* Reads the names of the functions of the object that `address_in_object` lies in from its file
 * `path`, static and hidden ones too: without that only what it exports has a name. Once an object,
 * right after it was loaded, so that no file is read when a report is due; the executable's own are
 * read by bh_stack_init(). A stripped or unreadable file adds nothing. Kept for good. Thread: any.
 * Blocks: on the file system. */
void bh_stack_learn(const void *address_in_object, const char *path);
/* "libm.so.6:sin+0x12 < plugin.so:compute+0x40 < …", innermost first, cut at `size`; without a
 * stack: "no stack (signals blocked): wchan=… syscall=…". Returns the length written. */
size_t bh_stack_render(uint32_t tid, struct bh_deadline until, char *buffer, size_t size);
/* As render, but a thread that is in a system call is left in peace: the signal would cut short what
 * does not expect it (nanosleep, poll, sem_timedwait …). Its stack is then read from outside:
 * "libc.so.6:clock_nanosleep+0x40 < ~plugin.so:compute+0x20 < …", where a '~' says that an address
 * on the stack is where a call returns to, which a call that is over may have left there. */
size_t bh_stack_observe(uint32_t tid, struct bh_deadline until, char *buffer, size_t size);

#endif
