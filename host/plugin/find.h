/* SPDX-License-Identifier: BSD-3-Clause */
/* find - which file a plugin's library is, and whether it may be loaded (PLG-1).
 *
 * Thread: main. Blocks: on the file system. The working directory and the loader's own search never
 *         count. */
#ifndef BH_HOST_PLUGIN_FIND_H
#define BH_HOST_PLUGIN_FIND_H

#include "host/core/error.h"

/* `library` is an absolute path, or a name looked for in `dirs` (NULL-terminated; may be NULL) as
 * NAME.so. On success an absolute path without symbolic links, owned by the caller.
 * Errors: find.name (-EINVAL), find.missing (-ENOENT, with each place tried). */
bh_status bh_find_library(const char *library, const char *const *dirs, char **ret_path,
			  struct bh_error *err) BH_MUST_CHECK;

/* A regular file; for root also: neither it nor a folder above it is writable by others (a sticky
 * folder protects what root owns in it). `path` is as bh_find_library gives it. Errors: find.unsafe
 * (-EPERM). */
bh_status bh_find_check(const char *path, bool as_root, struct bh_error *err) BH_MUST_CHECK;

#endif
