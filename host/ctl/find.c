/* SPDX-License-Identifier: BSD-3-Clause */
/* find - which host's admin socket is meant. */
#include "config.h"

#include "host/ctl/find.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "host/manifest/runtime_dir.h"

static const char suffix[] = ".sock";

static int is_socket_name(const struct dirent *entry)
{
	size_t length = strlen(entry->d_name);

	return length > sizeof(suffix) - 1 &&
	       strcmp(entry->d_name + length - (sizeof(suffix) - 1), suffix) == 0;
}

static bool is_socket(const char *path)
{
	struct stat info;

	return stat(path, &info) == 0 && S_ISSOCK(info.st_mode);
}

static char *path_join(const char *dir, const char *name, const char *end)
{
	char *path = NULL;

	return bh_ctl_must(asprintf(&path, "%s/%s%s", dir, name, end) < 0 ? NULL : path);
}

/* How many sockets there are in `dir`: the last one's path, and the names of all. -1 and errno. */
static int sockets_list(const char *dir, char **ret_path, char **ret_names)
{
	struct dirent **entries = NULL;
	int n = scandir(dir, &entries, is_socket_name, alphasort), n_found = 0;
	char *path, *names = NULL;
	size_t size;
	FILE *out;

	if (n < 0)
		return -1;
	out = bh_ctl_must(open_memstream(&names, &size));
	for (int i = 0; i < n; i++) {
		path = path_join(dir, entries[i]->d_name, "");
		if (is_socket(path)) {
			int length = (int)(strlen(entries[i]->d_name) - (sizeof(suffix) - 1));

			fprintf(out, "%s%.*s", n_found++ ? ", " : "", length, entries[i]->d_name);
			free(*ret_path);
			*ret_path = bh_steal(&path);
		}
		free(path);
		free(entries[i]);
	}
	free(entries);
	bh_ctl_must(fclose(out) == 0 ? names : NULL);
	*ret_names = names;
	return n_found;
}

static enum bh_ctl_exit only_one(const char *dir, char **ret_path)
{
	bh_auto_mem char *path = NULL, *names = NULL;
	int n = sockets_list(dir, &path, &names);

	if (n == 1) {
		*ret_path = bh_steal(&path);
		return BH_CTL_OK;
	}
	if (n > 1)
		bh_ctl_complain("several hosts in %s: %s; choose one with -H NAME", dir, names);
	else
		bh_ctl_complain("no host in %s%s%s; is bulkheadd running? If elsewhere, say where "
				"with -s SOCKET or "
				"BULKHEAD_SOCKET",
				dir, n < 0 ? ": " : "", n < 0 ? strerror(errno) : "");
	return BH_CTL_UNREACHABLE;
}

enum bh_ctl_exit bh_find_socket(const char *socket, const char *name, char **ret_path)
{
	const char *env = getenv("BULKHEAD_SOCKET");
	bh_auto_mem char *dir = NULL;
	struct bh_error err = { 0 };

	if (!socket && !name && env && *env)
		socket = env;
	if (socket) {
		*ret_path = bh_ctl_must(strdup(socket));
		return BH_CTL_OK;
	}
	if (bh_runtime_dir(&dir, &err) < 0) {
		bh_ctl_complain(
			"the environment does not say where hosts are: %s, or use -s SOCKET",
			bh_error_fact(&err, "hint") ? bh_error_fact(&err, "hint")
						    : "out of memory");
		return BH_CTL_UNREACHABLE;
	}
	if (!name)
		return only_one(dir, ret_path);
	*ret_path = path_join(dir, name, suffix);
	return BH_CTL_OK;
}
