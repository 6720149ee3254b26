/* SPDX-License-Identifier: BSD-3-Clause */
/* listener - the admin socket's file: made safely, taken over from the dead, left to the living.
 *
 * Thread: one at a time. Blocks: opening touches the file system, closing only unlinks.
 * Owns:   the listening descriptor, the file `path`, and `path`.lock, which is locked for life so
 *         that of two starts at once exactly one wins. */
#ifndef BH_HOST_CONTROL_LISTENER_H
#define BH_HOST_CONTROL_LISTENER_H

#include "host/core/error.h"

struct bh_listener;

/* Makes missing directories (0755), takes over a socket that nobody listens on, and never has the
 * file open wider than `mode` ("0660", octal). Errors: -ENAMETOOLONG socket.path, -EINVAL
 * socket.mode, socket.directory, socket.lock, -EADDRINUSE socket.in-use (another host, or whoever
 * answers there, or a socket that cannot be told to be dead), -EEXIST socket.not-a-socket,
 * socket.bind. */
bh_status bh_listener_open(const char *path, const char *mode, struct bh_listener **ret_listener,
			   struct bh_error *err) BH_MUST_CHECK;
int bh_listener_fd(const struct bh_listener *listener);
/* Removes the file, if it is still the one made here. Idempotent. The descriptor stays open. */
void bh_listener_unlink(struct bh_listener *listener);
/* Unlinks, closes, and gives the lock up. */
struct bh_listener *bh_listener_close(struct bh_listener *listener);
BH_DEFINE_AUTO(struct bh_listener, bh_listener_close)

#endif
