/* SPDX-License-Identifier: BSD-3-Clause */
/* fakedrv - a pretend device driver, with what makes real ones hard to live with:
 *  - one inner lock, held in every call and while a callback runs;
 *  - a current device that belongs to the calling thread, which has none at first;
 *  - callbacks on a thread of the driver's own;
 *  - it remembers the process that called init: a child gets FD_FORKED;
 *  - a fault that stays: the call that causes it succeeds, every later one fails;
 *  - an exit handler of its own, after which every call fails with FD_UNLOADING.
 * Users look the functions up by dlsym. With FAKEDRV_LOG in the environment each call appends one
 * line to that file: "NAME thread=TID pid=PID device=N status=N". */
#ifndef FAKEDRV_H
#define FAKEDRV_H

#include <stddef.h>

enum fd_status {
	FD_OK = 0,
	FD_INVALID = 1,	  /* a bad argument */
	FD_MEMORY = 2,	  /* no memory, or the callback queue is full */
	FD_NO_INIT = 3,	  /* fd_init has not been called */
	FD_UNLOADING = 4, /* the driver's exit handler has run */
	FD_FORKED = 5,	  /* not the process that called fd_init */
	FD_NO_DEVICE = 6, /* the calling thread has set none */
	FD_STICKY = 700	  /* a fault of before; only the end of the process clears it */
};

#define FD_DEVICES 2
#define FD_CALLBACKS_MAX 64 /* that may wait */

int fd_init(void);
int fd_device_count(int *ret_n);
int fd_set_device(int device);
int fd_get_device(int *ret_device);
int fd_alloc(size_t size, void **ret_memory);
int fd_free(void *memory);
int fd_copy(void *to, const void *from, size_t size);
/* `fn` runs on the driver's thread, with the inner lock held, as often as this was called. It must
 * not call the driver. */
int fd_callback(void (*fn)(void *arg), void *arg);
int fd_synchronize(void); /* until no callback waits or runs */
int fd_fault(void);	  /* succeeds; nothing does after it */

#endif
