/* SPDX-License-Identifier: BSD-3-Clause */
/* setup - see setup.h. */
#include "config.h"

#include <Python.h>

#include "host/python/setup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define VERSION_XY_(major, minor) #major "." #minor
#define VERSION_XY__(major, minor) VERSION_XY_(major, minor)
#define VERSION_XY VERSION_XY__(PY_MAJOR_VERSION, PY_MINOR_VERSION)
#define LIBRARY "/lib/python" VERSION_XY "/os.py"

/* "a" "b" "c" into `out`; false when it does not fit. */
static bool join(char out[PATH_MAX], const char *a, const char *b, const char *c)
{
	int n = snprintf(out, PATH_MAX, "%s%s%s", a, b, c);

	return n >= 0 && n < PATH_MAX;
}

static bool is_readable(const char *directory, const char *name)
{
	char path[PATH_MAX];

	return join(path, directory, name, "") && access(path, R_OK) == 0;
}

/* Cuts the last `n` components off. */
static void go_up(char *path, int n)
{
	for (char *slash; n-- && (slash = strrchr(path, '/')) && slash != path;)
		*slash = '\0';
}

/* ---- [python] home --------------------------------------------------------------------------- */

static bh_status check_home(const char *home, struct bh_python_setup *setup, struct bh_error *err)
{
	if (home[0] != '/' || !is_readable(home, LIBRARY) || !realpath(home, setup->prefix) ||
	    !join(setup->home, home, "", ""))
		return bh_raise(err, -EINVAL, "python.home", BH_STR("home", home),
				BH_STR("accepted",
				       "a prefix such as /usr that has lib/python" VERSION_XY
				       "/os.py"));
	/* Its own interpreter is what children run; without one, this host's does. */
	if (join(setup->program, home, "/bin/python" VERSION_XY, "") &&
	    access(setup->program, X_OK) == 0)
		return 0;
	setup->program[0] = '\0';
	return 0;
}

/* ---- [python] venv --------------------------------------------------------------------------- */

/* The value of `key` in a line "key = value", trimmed in place; NULL when it is another line. */
static const char *cfg_value(char *line, const char *key)
{
	char *at = strchr(line, '='), *end;

	if (!at)
		return NULL;
	for (end = at; end > line && (end[-1] == ' ' || end[-1] == '\t');)
		end--;
	if ((size_t)(end - line) != strlen(key) || strncmp(line, key, strlen(key)) != 0)
		return NULL;
	at++;
	at += strspn(at, " \t");
	at[strcspn(at, "\r\n")] = '\0';
	for (end = at + strlen(at); end > at && (end[-1] == ' ' || end[-1] == '\t');)
		*--end = '\0';
	return at;
}

struct venv_cfg {
	char home[PATH_MAX]; /* the directory of the interpreter that it was made by */
	char version[64];    /* "3.11.2", perhaps with more behind it */
};

static bool read_cfg(const char *venv, struct venv_cfg *cfg)
{
	char path[PATH_MAX], line[PATH_MAX + 64];
	FILE *file = join(path, venv, "/pyvenv.cfg", "") ? fopen(path, "re") : NULL;
	const char *value;

	*cfg = (struct venv_cfg){ 0 };
	while (file && fgets(line, sizeof(line), file)) {
		if ((value = cfg_value(line, "home")))
			snprintf(cfg->home, sizeof(cfg->home), "%s", value);
		else if ((value = cfg_value(line, "version")) ||
			 (value = cfg_value(line, "version_info")))
			snprintf(cfg->version, sizeof(cfg->version), "%s", value);
	}
	if (file)
		fclose(file);
	return file != NULL;
}

static bh_status refuse_venv(struct bh_error *err, const char *venv, const char *given,
			     const char *accepted)
{
	return bh_raise(err, -EINVAL, "python.venv", BH_STR("venv", venv), BH_STR("given", given),
			BH_STR("accepted", accepted));
}

/* The interpreter that the venv was made by, resolved; false when it cannot be found. */
static bool venv_base(const struct venv_cfg *cfg, char resolved[PATH_MAX])
{
	char path[PATH_MAX];

	return (join(path, cfg->home, "/python" VERSION_XY, "") && realpath(path, resolved)) ||
	       (join(path, cfg->home, "/python3", "") && realpath(path, resolved));
}

static bh_status check_venv(const char *venv, const char *python, struct bh_python_setup *setup,
			    struct bh_error *err)
{
	char base[PATH_MAX], own[PATH_MAX];
	struct venv_cfg cfg;
	size_t n = strlen(VERSION_XY);

	if (!read_cfg(venv, &cfg))
		return refuse_venv(err, venv, "no pyvenv.cfg in it",
				   "a directory that `python3 -m venv` made");
	if (strncmp(cfg.version, VERSION_XY, n) != 0 ||
	    (cfg.version[n] != '.' && cfg.version[n] != '\0'))
		return refuse_venv(err, venv,
				   cfg.version[0] ? cfg.version : "no version in its pyvenv.cfg",
				   "a venv of Python " VERSION_XY);
	if (!realpath(python, own))
		own[0] = '\0';
	if (!venv_base(&cfg, base) || strcmp(base, own) != 0)
		return refuse_venv(err, venv, cfg.home[0] ? cfg.home : "no home in its pyvenv.cfg",
				   python);
	if (!join(setup->program, venv, "/bin/python", "") || access(setup->program, X_OK) != 0)
		return refuse_venv(err, venv, "no bin/python in it",
				   "a directory that `python3 -m venv` made");
	return 0;
}

/* ---- both ------------------------------------------------------------------------------------ */

static bh_status check_executable(const char *python, struct bh_python_setup *setup,
				  struct bh_error *err)
{
	char resolved[PATH_MAX];

	if (access(python, X_OK) != 0 || !realpath(python, resolved))
		return bh_raise(err, -EINVAL, "python.executable", BH_STR("path", python),
				BH_STR("reason", strerror(errno)),
				BH_STR("accepted", "the interpreter that this host was built for"));
	if (!setup->program[0] && !join(setup->program, python, "", ""))
		return bh_raise(err, -EINVAL, "python.executable", BH_STR("path", python),
				BH_STR("reason", "too long"));
	if (!setup->prefix[0]) {
		strcpy(setup->prefix, resolved); /* both PATH_MAX */
		go_up(setup->prefix, 2);	 /* /usr/bin/python3.11 */
	}
	return 0;
}

/* CPython passes over what is not there in silence, and the import that fails then names another
 * fault. */
static bh_status check_path(const struct bh_config *config, struct bh_error *err)
{
	for (size_t i = 0; i < config->n_python_path; i++)
		if (access(config->python_path[i], R_OK) != 0)
			return bh_raise(err, -EINVAL, "python.path",
					BH_STR("path", config->python_path[i]),
					BH_STR("reason", strerror(errno)),
					BH_STR("accepted", "directories with Python modules"));
	return 0;
}

bh_status bh_python_setup(const struct bh_config *config, const char *python,
			  struct bh_python_setup *ret_setup, struct bh_error *err)
{
	struct bh_python_setup setup = { 0 };
	bh_status st = 0;

	if (config->python_home && config->python_venv)
		return bh_raise(err, -EINVAL, "python.home", BH_STR("home", config->python_home),
				BH_STR("venv", config->python_venv),
				BH_STR("accepted", "one of the two"));
	if (config->python_home)
		st = check_home(config->python_home, &setup, err);
	if (st == 0 && config->python_venv)
		st = check_venv(config->python_venv, python, &setup, err);
	if (st == 0)
		st = check_executable(python, &setup, err);
	if (st == 0)
		st = check_path(config, err);
	if (st == 0)
		*ret_setup = setup;
	return st;
}
