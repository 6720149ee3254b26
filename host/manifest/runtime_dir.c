/* SPDX-License-Identifier: BSD-3-Clause */
/* runtime_dir - where the admin sockets live when nobody says so.
 *
 * Thread: any that nobody calls setenv() beside. */
#include <config.h> /* not "…": this directory has a config.h of its own */

#include "host/manifest/runtime_dir.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bh_status bh_runtime_dir(char **ret_dir, struct bh_error *err)
{
	const char *systemd = getenv("RUNTIME_DIRECTORY");
	const char *user = getenv("XDG_RUNTIME_DIR");
	char *dir = NULL;

	if (systemd && *systemd == '/')
		dir = strndup(systemd, strcspn(systemd, ":"));
	else if (geteuid() == 0)
		dir = strdup("/run/bulkhead");
	else if (!user || *user != '/')
		return bh_raise(
			err, -ENOENT, "runtime_dir.unknown",
			BH_STR("hint",
			       "set RUNTIME_DIRECTORY or XDG_RUNTIME_DIR to an absolute path"));
	else if (asprintf(&dir, "%s/bulkhead", user) < 0)
		dir = NULL;
	if (!dir)
		return bh_raise(err, -ENOMEM, "runtime_dir.alloc");
	*ret_dir = dir;
	return 0;
}
