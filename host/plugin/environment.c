/* SPDX-License-Identifier: BSD-3-Clause */
/* environment - see environment.h. */
#include "config.h"

#include "host/plugin/environment.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "host/core/format.h"
#include "host/core/log.h"
#include "host/plugin/faults.h"
#include "host/plugin/find.h"
#include "host/plugin/module.h"
#include "host/plugin/note.h"

#define COMPONENT "environment"

/* ---- names ----------------------------------------------------------------------------------- */

/* Names that begin so are not for a note to set, nor these whole ones. */
static const char *const refused_prefixes[] = {
	"LD_",	   /* the dynamic loader's, read before main and again by each child */
	"GLIBC_",  /* tunables, likewise */
	"MALLOC_", /* likewise */
	"PYTHON",  /* children that are Pythons */
	"BULKHEAD_", "LISTEN_", "WATCHDOG_", /* the host's, the service manager's */
	"EVENT_",			     /* libevent's */
	"XDG_",	     "LC_",
};
static const char *const refused_names[] = {
	"PATH",
	"HOME",
	"USER",
	"LOGNAME",
	"SHELL",
	"PWD",
	"IFS",
	"ENV",
	"BASH_ENV",
	"TMPDIR",
	"LANG",
	"LANGUAGE",
	"TZ",
	"TZDIR",
	"GCONV_PATH",
	"LOCPATH",
	"NLSPATH",
	"LOCALDOMAIN",
	"RES_OPTIONS",
	"HOSTALIASES",
	"RESOLV_HOST_CONF",
	"MAINPID",
	"NOTIFY_SOCKET",
	"INVOCATION_ID",
	"JOURNAL_STREAM",
	"RUNTIME_DIRECTORY",
};

static bool begins_with(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

static bool is_refused(const char *name)
{
	for (size_t i = 0; i < BH_ARRAY_LEN(refused_prefixes); i++)
		if (begins_with(name, refused_prefixes[i]))
			return true;
	for (size_t i = 0; i < BH_ARRAY_LEN(refused_names); i++)
		if (strcmp(name, refused_names[i]) == 0)
			return true;
	return false;
}

static bool is_name(const char *name)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
	static const char more[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";

	return *name && strchr(letters, *name) && name[strspn(name, more)] == '\0';
}

const char *bh_environment_remark(const char *name)
{
	if (begins_with(name, "LD_") || begins_with(name, "GLIBC_") || begins_with(name, "MALLOC_"))
		return "the loader and libc have read it before the host starts: it has no effect "
		       "on "
		       "the host, only on its children; set it in what starts the host";
	if (begins_with(name, "PYTHON"))
		return "the host's own Python does not read it: it has an effect only on children";
	if (begins_with(name, "BULKHEAD_"))
		return "the host has read its own variables by then: it has an effect only on "
		       "children";
	return NULL;
}

/* ---- a note's text --------------------------------------------------------------------------- */

struct row {
	const char *name, *value; /* value NULL: the line has no '=' */
	unsigned line;		  /* from 1 */
};

/* Takes the next line that is not empty out of `*text`, which is written to. */
static bool next_row(char **text, unsigned *line, struct row *ret_row)
{
	while (**text) {
		char *begin = *text, *end = strchrnul(begin, '\n'), *equals;

		++*line;
		*text = *end ? end + 1 : end;
		*end = '\0';
		if (!*begin)
			continue;
		equals = strchr(begin, '=');
		if (equals)
			*equals++ = '\0';
		*ret_row = (struct row){ .name = begin, .value = equals, .line = *line };
		return true;
	}
	return false;
}

static bool has_control(const char *value)
{
	for (; *value; value++)
		if ((unsigned char)*value < ' ' || *value == 0x7f)
			return true;
	return false;
}

static void check_row(const struct row *row, struct bh_faults *faults)
{
	char shown[48];

	snprintf(shown, sizeof(shown), "%s", row->name);
	bh_text_make_plain(shown);
	if (!row->value)
		bh_faults_add(faults, "line %u: \"%s\"; accepted: NAME=VALUE", row->line, shown);
	else if (!is_name(row->name))
		bh_faults_add(faults, "line %u: the name \"%s\"; accepted: [A-Za-z_][A-Za-z0-9_]*",
			      row->line, shown);
	else if (is_refused(row->name))
		bh_faults_add(
			faults,
			"line %u: %s is not a plugin's to set; accepted: variables of its own "
			"libraries, or [host] env.%s in the manifest",
			row->line, shown, shown);
	else if (!bh_utf8_valid(row->value, strlen(row->value)) || has_control(row->value))
		bh_faults_add(
			faults,
			"line %u: the value of %s; accepted: UTF-8 without control characters",
			row->line, shown);
}

static void check_twins(const char *text, struct bh_faults *faults)
{
	char first[BH_NOTE_ENV_MAX], second[BH_NOTE_ENV_MAX];
	char *at = strcpy(first, text);
	unsigned line = 0;
	struct row a, b;

	while (next_row(&at, &line, &a)) {
		char *other = strcpy(second, text);
		unsigned other_line = 0;

		while (next_row(&other, &other_line, &b) && b.line < a.line)
			if (a.value && b.value && is_name(a.name) && strcmp(a.name, b.name) == 0)
				bh_faults_add(faults, "lines %u and %u: both set %s", b.line,
					      a.line, a.name);
	}
}

bh_status bh_environment_check(const char *text, struct bh_error *err)
{
	struct bh_faults faults = { 0 };
	char copy[BH_NOTE_ENV_MAX];
	char *at = copy;
	unsigned line = 0;
	struct row row;
	bh_status st;

	assert(strlen(text) < sizeof(copy)); /* the note's reader has seen to it */
	strcpy(copy, text);
	while (next_row(&at, &line, &row))
		check_row(&row, &faults);
	check_twins(text, &faults);
	st = bh_faults_raise(&faults, "note.environment", err);
	bh_faults_fini(&faults);
	return st;
}

/* ---- setting --------------------------------------------------------------------------------- */

/* What notes have set so far. */
struct settled {
	struct settled *next;
	const char *plugin; /* borrowed */
	char name[BH_NOTE_ENV_MAX];
};

static const struct settled *find_settled(const struct settled *settled, const char *name)
{
	while (settled && strcmp(settled->name, name) != 0)
		settled = settled->next;
	return settled;
}

static bh_status set_preset(const struct row *row, const char *plugin, struct settled **settled,
			    struct bh_error *err)
{
	const struct settled *other = find_settled(*settled, row->name);
	const char *there = getenv(row->name);
	struct settled *mine;

	if (other) {
		if (there && strcmp(there, row->value) != 0)
			bh_log(BH_LOG_WARNING, COMPONENT,
			       "two plugins want different values: the first in the manifest has "
			       "its "
			       "way; [host] env.NAME decides otherwise",
			       BH_STR("name", row->name), BH_STR("value", there),
			       BH_STR("plugin", other->plugin), BH_STR("other_plugin", plugin),
			       BH_STR("other_value", row->value));
		return 0;
	}
	if (there) { /* the manifest's, or the process's own */
		bh_log(BH_LOG_DEBUG, COMPONENT, "a plugin's preset is not needed",
		       BH_STR("name", row->name), BH_STR("plugin", plugin));
		return 0;
	}
	mine = calloc(1, sizeof(*mine));
	if (!mine || setenv(row->name, row->value, 1) != 0) {
		free(mine);
		return bh_raise(err, -ENOMEM, "environment.set", BH_STR("name", row->name));
	}
	mine->plugin = plugin;
	strcpy(mine->name, row->name);
	mine->next = *settled;
	*settled = mine;
	bh_log(BH_LOG_INFO, COMPONENT, "environment variable set", BH_STR("name", row->name),
	       BH_STR("value", row->value), BH_STR("source", "plugin"), BH_STR("plugin", plugin));
	return 0;
}

/* Whether the plugin's file is one that would be loaded, and has such a note in order. */
static bool read_presets(const struct bh_config_plugin *plugin, char text[BH_NOTE_ENV_MAX])
{
	bh_auto_mem char *path = NULL;
	struct bh_note note;

	return bh_module_find(plugin, &path, NULL) == 0 &&
	       bh_find_check(path, geteuid() == 0, NULL) == 0 &&
	       bh_note_read(path, &note, NULL) == 0 && bh_note_check(&note, NULL) == 0 &&
	       bh_note_read_env(path, text, NULL) == 0 && bh_environment_check(text, NULL) == 0;
}

static bh_status set_presets(const struct bh_config *config, struct settled **settled,
			     struct bh_error *err)
{
	for (size_t i = 0; i < config->n_plugins; i++) {
		char text[BH_NOTE_ENV_MAX];
		char *at = text;
		unsigned line = 0;
		struct row row;

		if (!read_presets(&config->plugins[i], text))
			continue;
		while (next_row(&at, &line, &row)) {
			bh_status st = set_preset(&row, config->plugins[i].label, settled, err);

			if (st < 0)
				return st;
		}
	}
	return 0;
}

/* The value may be a secret, so that only the name is logged. */
static bh_status set_manifests(const struct bh_config_env *env, struct bh_error *err)
{
	const char *remark = bh_environment_remark(env->name);

	if (setenv(env->name, env->value, 1) != 0)
		return bh_raise(err, -ENOMEM, "environment.set", BH_STR("name", env->name));
	bh_log(BH_LOG_INFO, COMPONENT, "environment variable set", BH_STR("name", env->name),
	       BH_STR("source", "manifest"));
	if (remark)
		bh_log(BH_LOG_WARNING, COMPONENT,
		       "an environment variable of the manifest comes too late for the host",
		       BH_STR("name", env->name), BH_STR("reason", remark));
	return 0;
}

bh_status bh_environment_set(const struct bh_config *config, struct bh_error *err)
{
	struct settled *settled = NULL;
	bh_status st = 0;

	for (size_t i = 0; st == 0 && i < config->n_env; i++)
		st = set_manifests(&config->env[i], err);
	if (st == 0)
		st = set_presets(config, &settled, err);
	while (settled) {
		struct settled *next = settled->next;

		free(settled);
		settled = next;
	}
	return st;
}
