/* SPDX-License-Identifier: BSD-3-Clause */
/* find - see find.h. */
#include "config.h"

#include "host/plugin/find.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/core/log.h"

#define TRIED_SIZE 512
#define SUFFIX ".so"

/* ---- which file ----------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n > m && strcmp(text + n - m, end) == 0;
}

static void add_tried(char *tried, size_t size, const char *path, const char *why)
{
	size_t used = strlen(tried);

	snprintf(tried + used, size - used, "%s%s: %s", used ? "; " : "", path, why);
}

static bh_status resolve(const char *path, char **ret_path, struct bh_error *err)
{
	char *resolved = realpath(path, NULL);

	if (!resolved)
		return bh_raise(err, -errno, "find.missing", BH_STR("library", path),
				BH_STR("reason", strerrordesc_np(errno)));
	*ret_path = resolved;
	return 0;
}

static bh_status search(const char *name, const char *const *dirs, char **ret_path,
			struct bh_error *err)
{
	const char *suffix = ends_with(name, SUFFIX) ? "" : SUFFIX;
	char tried[TRIED_SIZE] = "";

	for (; dirs && *dirs; dirs++) {
		bh_auto_mem char *path = NULL;

		if (**dirs != '/') { /* it would depend on the working directory */
			add_tried(tried, sizeof(tried), *dirs, "left out, not an absolute path");
			continue;
		}
		if (asprintf(&path, "%s/%s%s", *dirs, name, suffix) < 0) {
			path = NULL;
			return bh_raise(err, -ENOMEM, "find.alloc");
		}
		if (access(path, F_OK) == 0)
			return resolve(path, ret_path, err);
		add_tried(tried, sizeof(tried), path, strerrordesc_np(errno));
	}
	return bh_raise(err, -ENOENT, "find.missing", BH_STR("library", name),
			BH_STR("tried", *tried ? tried : "nothing: no plugin directory is set"),
			BH_STR("accepted",
			       "an absolute path, or the name of a plugin in --plugin-dir, "
			       "BULKHEAD_PLUGIN_PATH or the installed plugin directory"));
}

bh_status bh_find_library(const char *library, const char *const *dirs, char **ret_path,
			  struct bh_error *err)
{
	if (library[0] == '/')
		return resolve(library, ret_path, err);
	if (!*library || strchr(library, '/'))
		return bh_raise(err, -EINVAL, "find.name", BH_STR("library", library),
				BH_STR("accepted", "an absolute path, or a name without a slash"));
	return search(library, dirs, ret_path, err);
}

/* ---- whether it is safe --------------------------------------------------------------------- */

static bool writable_by_others(const struct stat *st)
{
	if (S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX) && st->st_uid == 0)
		return false; /* sticky: others cannot replace what is not theirs */
	return (st->st_mode & S_IWOTH) || ((st->st_mode & S_IWGRP) && st->st_gid != 0);
}

static bh_status check_writers(const char *path, const char *library, struct bh_error *err)
{
	struct stat st;
	char mode[8];

	if (stat(path, &st) < 0)
		return bh_raise(err, -errno, "find.missing", BH_STR("library", path),
				BH_STR("reason", strerrordesc_np(errno)));
	snprintf(mode, sizeof(mode), "%04o", (unsigned)st.st_mode & 07777);
	if (writable_by_others(&st))
		return bh_raise(
			err, -EPERM, "find.unsafe", BH_STR("library", library),
			BH_STR("writable", path), BH_STR("mode", mode), BH_INT("uid", st.st_uid),
			BH_INT("gid", st.st_gid),
			BH_STR("accepted",
			       "for root: a file that only root can write to, in folders that "
			       "only root can write to (chmod go-w)"));
	/* Its owner could change the mode at any time. Trees that are mounted or unpacked as
	 * another user are common enough for this to be told and not refused. */
	if (st.st_uid != 0)
		bh_log(BH_LOG_WARNING, "plugin",
		       "running as root with a plugin that another user owns",
		       BH_STR("library", library), BH_STR("owned", path), BH_INT("uid", st.st_uid));
	return 0;
}

bh_status bh_find_check(const char *path, bool as_root, struct bh_error *err)
{
	char part[PATH_MAX];
	struct stat st;
	bh_status status;
	char *slash;

	if (stat(path, &st) < 0)
		return bh_raise(err, -errno, "find.missing", BH_STR("library", path),
				BH_STR("reason", strerrordesc_np(errno)));
	if (!S_ISREG(st.st_mode))
		return bh_raise(err, -EINVAL, "find.not-file", BH_STR("library", path),
				BH_STR("accepted", "a regular file: a shared object"));
	if (!as_root)
		return 0;
	if (strlen(path) >= sizeof(part))
		return bh_raise(err, -ENAMETOOLONG, "find.name", BH_STR("library", path));
	memcpy(part, path, strlen(path) + 1);
	do {
		status = check_writers(*part ? part : "/", path, err);
		slash = strrchr(part, '/');
		if (slash)
			*slash = '\0';
	} while (status == 0 && slash);
	return status;
}
