/* SPDX-License-Identifier: BSD-3-Clause */
/* runtime_dir - where the admin sockets live when nobody says so. For the daemon and its client.
 *
 * Thread: any that nobody calls setenv() beside. */
#ifndef BH_HOST_MANIFEST_RUNTIME_DIR_H
#define BH_HOST_MANIFEST_RUNTIME_DIR_H

#include "host/core/error.h"

/* The first directory in $RUNTIME_DIRECTORY (systemd); else /run/bulkhead for root; else
 * $XDG_RUNTIME_DIR/bulkhead. The caller frees it. -ENOENT: none of these; fact: hint. */
bh_status bh_runtime_dir(char **ret_dir, struct bh_error *err) BH_MUST_CHECK;

#endif
