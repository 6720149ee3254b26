/* SPDX-License-Identifier: BSD-3-Clause */
/* config - the manifest: ini files and --set, read into one typed, immutable structure.
 *
 * Three steps: the draft (all text, merged), the sections in order with their tables, then what
 * follows from several keys. Each step goes on past a fault, so that all are found.
 *
 * Thread: main, before any other. Owns: every string in the result. Keeps: MAN-1, MAN-2, MAN-3. */
#include <config.h> /* not "…": this directory has a config.h of its own */

#include "host/manifest/config.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "host/core/cpus.h"
#include "host/manifest/draft.h"
#include "host/manifest/runtime_dir.h"

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
#define NS_PER_H (3600 * NS_PER_S)
#define HOST_NAME_BYTES 63

struct builder {
	struct bh_draft draft;
	struct bh_config *config;
};

struct key_row {
	struct bh_option_row row;
	bool required;
	/* Where the type does not say it all: the rule, how its breach reads, and what it
	 * accepts. */
	bool (*check)(const char *text);
	const char *reason, *accepted;
	/* Instead of the row's offset. */
	bh_status (*store)(struct builder *builder, const struct bh_draft_entry *entry);
};

enum kind { KIND_HOST, KIND_PYTHON, KIND_GIL, KIND_APP, KIND_PLUGIN };
#define KINDS 5

struct section_kind {
	const char *word;
	const char *shown; /* in messages */
	bool named;
	const struct key_row *rows;
	size_t n_rows;
	/* Keys that are not in the table but free: their prefix, how they are shown, the rule
	 * for the rest of the name. NULL: none. */
	const char *prefix, *free_shown;
	bool (*free_name)(const char *name);
};

/* ---- rules that a type does not express ------------------------------------------------------ */

static bool made_of(const char *text, bool (*first)(char), bool (*rest)(char), size_t max)
{
	size_t length = strlen(text);

	if (length == 0 || length > max || !first(text[0]))
		return false;
	for (size_t i = 1; i < length; i++)
		if (!rest(text[i]))
			return false;
	return true;
}

static bool is_small(char c)
{
	return islower((unsigned char)c);
}

static bool is_small_or_digit(char c)
{
	return is_small(c) || isdigit((unsigned char)c) || c == '_';
}

static bool is_label_char(char c)
{
	return is_small_or_digit(c) || c == '-';
}

static bool is_letter(char c)
{
	return isalpha((unsigned char)c) || c == '_';
}

static bool is_letter_or_digit(char c)
{
	return is_letter(c) || isdigit((unsigned char)c);
}

static bool is_option_char(char c)
{
	return is_letter_or_digit(c) || c == '-' || c == '.';
}

static bool label_ok(const char *text)
{
	return made_of(text, is_small, is_label_char, BH_LABEL_MAX - 1);
}

static bool host_name_ok(const char *text)
{
	return made_of(text, is_label_char, is_label_char, HOST_NAME_BYTES);
}

static bool env_name_ok(const char *text)
{
	return made_of(text, is_letter, is_letter_or_digit, SIZE_MAX);
}

static bool option_key_ok(const char *text)
{
	return made_of(text, is_letter, is_option_char, SIZE_MAX);
}

static bool own_key_ok(const char *text)
{
	return made_of(text, is_small, is_small_or_digit, SIZE_MAX);
}

static bool socket_mode_ok(const char *text)
{
	size_t length = strlen(text);

	return strspn(text, "01234567") == length && (length == 3 || (length == 4 && *text == '0'));
}

static bool workers_ok(const char *text)
{
	static const struct bh_option number = { .type = BH_OPT_INT, .min = 1, .max = 1024 };
	struct bh_option_value value;

	return strcmp(text, "auto") == 0 || bh_option_parse(&number, text, &value, NULL) == 0;
}

static bool cpus_ok(const char *text)
{
	struct bh_cpus cpus;

	return bh_cpus_parse(text, &cpus) == 0;
}

static bool library_ok(const char *text)
{
	return *text == '/' ||
	       (*text && !strchr(text, '/')); /* PLG-1: never relative to anything */
}

/* Python's identifiers may have letters beyond ASCII: those bytes are left to the import. */
static bool is_identifier(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (!is_letter_or_digit(text[i]) && !((unsigned char)text[i] & 0x80))
			return false;
	return length > 0 && !isdigit((unsigned char)*text);
}

/* "package.module:Name.Attribute" */
static bool object_ok(const char *text)
{
	size_t colons = 0;

	for (;;) {
		size_t length = strcspn(text, ".:");

		if (!is_identifier(text, length))
			return false;
		colons += text[length] == ':';
		if (text[length] == '\0')
			return colons == 1;
		text += length + 1;
	}
}

/* ---- [python] path --------------------------------------------------------------------------- */

/* What a relative path in `place` is relative to: the manifest's directory; for --set the
 * working one. */
static char *place_dir(struct bh_place place)
{
	const char *slash = place.line ? strrchr(place.file, '/') : NULL;
	bh_auto_mem char *dir =
		slash ? strndup(place.file, (size_t)(slash - place.file) + 1) : strdup(".");

	return dir ? realpath(dir, NULL) : NULL;
}

static bh_status path_append(struct bh_config *config, const char *dir, const char *entry,
			     size_t length)
{
	char **path = bh_draft_grow(config->python_path, config->n_python_path, sizeof(*path));
	char *text = NULL;
	int made;

	if (!path)
		return -ENOMEM;
	config->python_path = path;
	if (*entry == '/')
		made = asprintf(&text, "%.*s", (int)length, entry);
	else
		made = asprintf(&text, "%s/%.*s", dir, (int)length, entry);
	if (made < 0)
		return -ENOMEM;
	path[config->n_python_path++] = text;
	return 0;
}

static bh_status path_store(struct builder *builder, const struct bh_draft_entry *entry)
{
	bh_auto_mem char *dir = place_dir(entry->place);
	const char *rest = entry->value;

	if (!dir && errno == ENOMEM)
		return -ENOMEM;
	if (!dir)
		return bh_draft_fault(&builder->draft, entry->place, "python", entry->key,
				      "the manifest's directory cannot be resolved: %s",
				      strerror(errno));
	for (;;) {
		size_t length = strcspn(rest, ":");
		bh_status st;

		if (length == 0)
			return bh_draft_fault(
				&builder->draft, entry->place, "python", entry->key,
				"\"%s\" has an empty entry; accepted: directories separated by ':'",
				entry->value);
		st = path_append(builder->config, dir, rest, length);
		if (st < 0 || rest[length] == '\0')
			return st;
		rest += length + 1;
	}
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* The option part of a row: its name, type and target, then designated fields of struct
 * bh_option. */
#define OPTION(object, key, kind, field, ...)                                                      \
	.row = { .option = { .name = key, .type = kind, __VA_ARGS__ },                             \
		 .offset = offsetof(struct object, field) }
#define HOST(...) OPTION(bh_config, __VA_ARGS__)
#define APP(...) OPTION(bh_config_app, __VA_ARGS__)
#define PLUGIN(...) OPTION(bh_config_plugin, __VA_ARGS__)

#ifdef BH_DEBUG
#define UNSANCTIONED_PRESET "abort"
#else
#define UNSANCTIONED_PRESET "log"
#endif

/* The numbers of the choices are what other modules' enums say. */
static_assert(BH_LOG_DEBUG == 0 && BH_LOG_INFO == 1 && BH_LOG_WARNING == 2 && BH_LOG_ERROR == 3,
	      "log_level");
static_assert(BH_KEEP_GOING == 0 && BH_EXIT_HOST == 1, "on_pool_failure");

static const struct key_row host_rows[] = {
	{ HOST("name", BH_OPT_STR, name, .preset = "default",
	       .doc = "Names this instance and its socket."),
	  .check = host_name_ok, .reason = "is not a name",
	  .accepted = "1 to 63 of a-z, 0-9, _ and -" },
	{ HOST("runtime_dir", BH_OPT_PATH, runtime_dir, .doc = "Where the admin socket is made.") },
	{ HOST("socket_mode", BH_OPT_STR, socket_mode, .preset = "0660",
	       .doc = "Mode of the admin socket."),
	  .check = socket_mode_ok, .reason = "is not a mode",
	  .accepted = "an octal mode such as 0660" },
	{ HOST("shutdown_timeout", BH_OPT_DURATION, shutdown_timeout_ns, .preset = "30s",
	       .min = 100 * NS_PER_MS, .max = NS_PER_H,
	       .doc = "The whole stop takes no longer (CP-2).") },
	{ HOST("app_stop_timeout", BH_OPT_DURATION, app_stop_timeout_ns, .preset = "10s",
	       .min = 100 * NS_PER_MS, .max = NS_PER_H,
	       .doc = "An app's stop() takes no longer.") },
	{ HOST("stall_after", BH_OPT_DURATION, stall_after_ns, .preset = "250ms", .min = 0,
	       .max = NS_PER_H, .doc = "The control loop's silence that is a stall; 0: none is.") },
	{ HOST("log_level", BH_OPT_ENUM, log_level, .preset = "info",
	       .choices = "debug|info|warning|error", .doc = "Lines below it are not written.") },
	{ HOST("on_pool_failure", BH_OPT_ENUM, on_pool_failure, .preset = "keep",
	       .choices = "keep|exit", .doc = "Whether a failed pool ends the host.") },
};

static const struct key_row python_rows[] = {
	{ HOST("home", BH_OPT_PATH, python_home,
	       .doc = "PYTHONHOME of the embedded interpreter.") },
	{ HOST("venv", BH_OPT_PATH, python_venv,
	       .doc = "A virtual environment of the same Python.") },
	{ HOST("path", BH_OPT_STR, python_path, .doc = "Directories put on sys.path."),
	  .store = path_store },
	{ HOST("event_loop", BH_OPT_STR, python_loop,
	       .doc = "A callable that makes main's event loop; preset: the host's own."),
	  .check = object_ok, .reason = "names no callable",
	  .accepted = "module:callable, such as uvloop:new_event_loop" },
	{ HOST("stall_after", BH_OPT_DURATION, python_stall_after_ns, .preset = "1s", .min = 0,
	       .max = NS_PER_H, .doc = "The asyncio loop's silence that is a stall; 0: none is.") },
};

static const struct key_row gil_rows[] = {
	{ HOST("sample_interval", BH_OPT_DURATION, sample_interval_ns, .preset = "10ms", .min = 0,
	       .max = 10 * NS_PER_S, .doc = "How often the holder is sampled; 0: never.") },
	{ HOST("ledger", BH_OPT_ENUM, ledger, .preset = "full", .choices = "full|sites|off",
	       .doc = "What is booked: raw calls too, sites only, nothing.") },
	{ HOST("probe_interval", BH_OPT_DURATION, probe_interval_ns, .preset = "100ms", .min = 0,
	       .max = NS_PER_H, .doc = "How often the wait for the GIL is measured; 0: never.") },
	{ HOST("stall_after", BH_OPT_DURATION, gil_stall_after_ns, .preset = "1s", .min = 0,
	       .max = NS_PER_H, .doc = "A wait for the GIL that is a stall; 0: none is.") },
	{ HOST("unsanctioned", BH_OPT_ENUM, unsanctioned, .preset = UNSANCTIONED_PRESET,
	       .choices = "count|log|abort",
	       .doc = "What an unsanctioned acquisition does (GIL-4).") },
};

static const struct key_row app_rows[] = {
	{ APP("object", BH_OPT_STR, object, .doc = "The class or factory to construct."),
	  .required = true, .check = object_ok, .reason = "names no object",
	  .accepted = "module:Attribute, such as linesearch:Search" },
	{ APP("start_timeout", BH_OPT_DURATION, start_timeout_ns, .preset = "60s",
	      .min = 100 * NS_PER_MS, .max = 24 * NS_PER_H, .doc = "start() takes no longer.") },
	{ APP("stop_timeout", BH_OPT_DURATION, stop_timeout_ns, .min = 100 * NS_PER_MS,
	      .max = NS_PER_H, .doc = "stop() takes no longer; preset: [host] app_stop_timeout.") },
};

static const struct key_row plugin_rows[] = {
	{ PLUGIN("library", BH_OPT_STR, library, .doc = "The plugin's shared object (PLG-1)."),
	  .required = true, .check = library_ok, .reason = "is neither a name nor an absolute path",
	  .accepted = "a name to look up in the plugin directories, such as stream, or an absolute "
		      "path" },
	{ PLUGIN("optional", BH_OPT_BOOL, optional, .preset = "no",
		 .doc = "A missing library or device is no failure (PLG-7).") },
	{ PLUGIN("workers", BH_OPT_STR, workers,
		 .doc = "Threads of the pool; preset: the plugin's."),
	  .check = workers_ok, .reason = "is not a number of workers",
	  .accepted = "auto, or a number from 1 to 1024" },
	{ PLUGIN("progress_threads", BH_OPT_INT, progress_threads, .min = 0, .max = 64,
		 .doc = "Threads that complete pending tasks; preset: the plugin's.") },
	{ PLUGIN("queue", BH_OPT_INT, queue, .preset = "1024", .min = 1, .max = 1 << 20,
		 .doc = "Tasks that may wait; past it a submission is refused.") },
	{ PLUGIN("cpus", BH_OPT_STR, cpus,
		 .doc = "CPUs that the pool's threads run on; preset: those of the process."),
	  .check = cpus_ok, .reason = BH_CPUS_REASON, .accepted = BH_CPUS_ACCEPTED },
	{ PLUGIN("nice", BH_OPT_INT, nice, .min = -20, .max = 19,
		 .doc = "Nice value of the pool's threads; preset: that of the process.") },
	{ PLUGIN("drain_timeout", BH_OPT_DURATION, drain_timeout_ns, .preset = "10s", .min = 0,
		 .max = NS_PER_H, .doc = "How long a stop lets accepted tasks finish.") },
	{ PLUGIN("stall_after", BH_OPT_DURATION, stall_after_ns, .preset = "0", .min = 0,
		 .max = 24 * NS_PER_H,
		 .doc = "A task that runs for longer is a stall; 0: none is.") },
};

#define ROWS(rows) (rows), BH_ARRAY_LEN(rows)

static const struct section_kind kinds[] = {
	[KIND_HOST] = { "host", "[host]", false, ROWS(host_rows), "env.", "env.NAME", env_name_ok },
	[KIND_PYTHON] = { "python", "[python]", false, ROWS(python_rows), NULL, NULL, NULL },
	[KIND_GIL] = { "gil", "[gil]", false, ROWS(gil_rows), NULL, NULL, NULL },
	[KIND_APP] = { "app", "[app NAME]", true, ROWS(app_rows), "option.", "option.KEY",
		       option_key_ok },
	[KIND_PLUGIN] = { "plugin", "[plugin LABEL]", true, ROWS(plugin_rows), "",
			  "the plugin's own", own_key_ok },
};
static_assert(BH_ARRAY_LEN(kinds) == KINDS, "one row per kind of section");

/* ---- values ---------------------------------------------------------------------------------- */

static void *row_target(const struct key_row *row, void *object)
{
	return (char *)object + row->row.offset;
}

/* `value` passes over. */
static void value_put(const struct key_row *row, void *object, struct bh_option_value *value)
{
	void *target = row_target(row, object);

	switch ((enum bh_option_type)row->row.option.type) {
	case BH_OPT_INT:
	case BH_OPT_SIZE:
	case BH_OPT_DURATION:
		*(int64_t *)target = value->number;
		break;
	case BH_OPT_BOOL:
		*(bool *)target = value->number != 0;
		break;
	case BH_OPT_ENUM:
		*(uint32_t *)target = (uint32_t)value->number;
		break;
	case BH_OPT_STR:
	case BH_OPT_PATH:
		free(*(char **)target);
		*(char **)target = bh_steal(&value->text);
		break;
	}
	bh_option_value_fini(value);
}

static bh_status row_parse(const struct key_row *row, void *object, const char *text,
			   struct bh_error *err)
{
	struct bh_option_value value;
	bh_status st;

	if (row->check && !row->check(text))
		return bh_option_refuse(text, row->reason, row->accepted, err);
	st = bh_option_parse(&row->row.option, text, &value, err);
	if (st == 0)
		value_put(row, object, &value);
	return st;
}

static bh_status presets_put(const struct section_kind *kind, void *object)
{
	for (size_t i = 0; i < kind->n_rows; i++) {
		const struct key_row *row = &kind->rows[i];
		bh_status st = row->row.option.preset
				       ? row_parse(row, object, row->row.option.preset, NULL)
				       : 0;

		assert(st != -EINVAL); /* a preset that its own row refuses */
		if (st < 0)
			return st;
	}
	return 0;
}

static bh_status row_apply(struct builder *builder, const struct bh_draft_section *section,
			   const struct key_row *row, void *object,
			   const struct bh_draft_entry *entry)
{
	struct bh_error err = { 0 };
	bh_status st;

	if (row->store)
		return row->store(builder, entry);
	st = row_parse(row, object, entry->value, &err);
	if (st != -EINVAL)
		return st;
	return bh_draft_fault(&builder->draft, entry->place, section->name, entry->key,
			      "\"%s\" %s; accepted: %s", bh_error_fact(&err, "value"),
			      bh_error_fact(&err, "reason"), bh_error_fact(&err, "accepted"));
}

/* ---- free keys: env.NAME, option.KEY, a plugin's own ----------------------------------------- */

static bh_status origin_put(struct bh_origin *origin, struct bh_place place)
{
	origin->line = place.line;
	origin->file = strdup(place.file);
	return origin->file ? 0 : -ENOMEM;
}

static bh_status env_put(struct bh_config *config, const char *name,
			 const struct bh_draft_entry *entry)
{
	struct bh_config_env *env = bh_draft_grow(config->env, config->n_env, sizeof(*env));

	if (!env)
		return -ENOMEM;
	config->env = env;
	env += config->n_env++;
	*env = (struct bh_config_env){ .name = strdup(name), .value = strdup(entry->value) };
	if (!env->name || !env->value)
		return -ENOMEM;
	return origin_put(&env->origin, entry->place);
}

static bh_status entry_put(struct bh_config_entry **array, size_t *n, const char *key,
			   const struct bh_draft_entry *entry)
{
	struct bh_config_entry *entries = bh_draft_grow(*array, *n, sizeof(*entries));

	if (!entries)
		return -ENOMEM;
	*array = entries;
	entries += (*n)++;
	*entries = (struct bh_config_entry){ .key = strdup(key), .value = strdup(entry->value) };
	if (!entries->key || !entries->value)
		return -ENOMEM;
	return origin_put(&entries->origin, entry->place);
}

static bh_status free_key_put(enum kind kind, void *object, const char *name,
			      const struct bh_draft_entry *entry)
{
	struct bh_config_app *app = object;
	struct bh_config_plugin *plugin = object;

	switch (kind) {
	case KIND_HOST:
		return env_put(object, name, entry);
	case KIND_APP:
		return entry_put(&app->options, &app->n_options, name, entry);
	case KIND_PLUGIN:
		return entry_put(&plugin->own, &plugin->n_own, name, entry);
	case KIND_PYTHON:
	case KIND_GIL:
		break;
	}
	bh_unreachable();
}

/* ---- unknown keys ---------------------------------------------------------------------------- */

/* "name, runtime_dir, …, env.NAME"; the tables are short, so there is room. */
static void known_keys_write(char *buffer, size_t size, const struct section_kind *kind)
{
	size_t used = 0;

	for (size_t i = 0; i < kind->n_rows; i++)
		used += (size_t)snprintf(buffer + used, size - used, "%s%s", i ? ", " : "",
					 kind->rows[i].row.option.name);
	if (kind->free_shown)
		used += (size_t)snprintf(buffer + used, size - used, ", %s", kind->free_shown);
	assert(used < size);
}

/* "optoin.paths": whether the part to the dot is nearly the prefix. */
static bool prefix_is_near(const struct section_kind *kind, const char *key)
{
	size_t length = strcspn(key, ".");
	bh_auto_mem char *stem = NULL;

	if (!kind->prefix || !*kind->prefix || key[length] != '.')
		return false;
	stem = strndup(key, length + 1);
	return stem && bh_option_nearest(stem, &kind->prefix, 1);
}

static bh_status unknown_key(struct builder *builder, const struct bh_draft_section *section,
			     const struct section_kind *kind, const struct bh_draft_entry *entry)
{
	const char *names[16];
	const char *nearest;
	char known[256];

	assert(kind->n_rows <= BH_ARRAY_LEN(names));
	for (size_t i = 0; i < kind->n_rows; i++)
		names[i] = kind->rows[i].row.option.name;
	nearest = prefix_is_near(kind, entry->key)
			  ? kind->free_shown
			  : bh_option_nearest(entry->key, names, kind->n_rows);
	if (nearest)
		return bh_draft_fault(&builder->draft, entry->place, section->name, entry->key,
				      "unknown key; did you mean %s?", nearest);
	known_keys_write(known, sizeof(known), kind);
	return bh_draft_fault(&builder->draft, entry->place, section->name, entry->key,
			      "unknown key; accepted: %s", known);
}

static bh_status entry_apply(struct builder *builder, const struct bh_draft_section *section,
			     enum kind number, void *object, const struct bh_draft_entry *entry)
{
	const struct section_kind *kind = &kinds[number];
	size_t prefix = kind->prefix ? strlen(kind->prefix) : 0;

	for (size_t i = 0; i < kind->n_rows; i++)
		if (strcmp(kind->rows[i].row.option.name, entry->key) == 0)
			return row_apply(builder, section, &kind->rows[i], object, entry);
	if (kind->prefix && strncmp(entry->key, kind->prefix, prefix) == 0 &&
	    kind->free_name(entry->key + prefix))
		return free_key_put(number, object, entry->key + prefix, entry);
	return unknown_key(builder, section, kind, entry);
}

/* ---- sections -------------------------------------------------------------------------------- */

static bh_status app_add(struct bh_config *config, const char *name, struct bh_place place,
			 void **ret_object)
{
	struct bh_config_app *app = bh_draft_grow(config->apps, config->n_apps, sizeof(*app));

	if (!app)
		return -ENOMEM;
	config->apps = app;
	app += config->n_apps++;
	*app = (struct bh_config_app){ .name = strdup(name), .stop_timeout_ns = -1 };
	*ret_object = app;
	return app->name ? origin_put(&app->origin, place) : -ENOMEM;
}

static bh_status plugin_add(struct bh_config *config, const char *label, struct bh_place place,
			    void **ret_object)
{
	struct bh_config_plugin *plugin =
		bh_draft_grow(config->plugins, config->n_plugins, sizeof(*plugin));

	if (!plugin)
		return -ENOMEM;
	config->plugins = plugin;
	plugin += config->n_plugins++;
	*plugin = (struct bh_config_plugin){ .label = strdup(label),
					     .progress_threads = -1,
					     .nice = BH_NICE_KEEP };
	*ret_object = plugin;
	return plugin->label ? origin_put(&plugin->origin, place) : -ENOMEM;
}

/* What the section's keys are stored in, with its presets; the one config for the unnamed kinds. */
static bh_status object_get(struct bh_config *config, enum kind kind, const char *name,
			    struct bh_place place, void **ret_object)
{
	bh_status st;

	switch (kind) {
	case KIND_HOST:
	case KIND_PYTHON:
	case KIND_GIL:
		*ret_object = config;
		return 0;
	case KIND_APP:
		st = app_add(config, name, place, ret_object);
		return st < 0 ? st : presets_put(&kinds[kind], *ret_object);
	case KIND_PLUGIN:
		st = plugin_add(config, name, place, ret_object);
		return st < 0 ? st : presets_put(&kinds[kind], *ret_object);
	}
	bh_unreachable();
}

static bh_status unknown_section(struct builder *builder, const struct bh_draft_section *section,
				 const char *word)
{
	const char *words[KINDS];
	const char *nearest;

	for (size_t i = 0; i < KINDS; i++)
		words[i] = kinds[i].word;
	nearest = bh_option_nearest(word, words, KINDS);
	for (size_t i = 0; i < KINDS; i++)
		if (nearest == kinds[i].word)
			return bh_draft_fault(&builder->draft, section->first, section->name, NULL,
					      "unknown section; did you mean %s?", kinds[i].shown);
	return bh_draft_fault(
		&builder->draft, section->first, section->name, NULL,
		"unknown section; accepted: [host], [python], [gil], [app NAME], [plugin LABEL]");
}

/* Finds the kind; a name in the header that is wrong is a fault, and then `*ret_kind` is KINDS. */
static bh_status section_kind_get(struct builder *builder, const struct bh_draft_section *section,
				  unsigned *ret_kind, const char **ret_name)
{
	size_t length = strcspn(section->name, " ");
	const char *name = section->name[length] ? section->name + length + 1 : NULL;
	bh_auto_mem char *word = strndup(section->name, length);
	unsigned kind = 0;

	*ret_kind = KINDS;
	*ret_name = name;
	if (!word)
		return -ENOMEM;
	while (kind < KINDS && strcmp(kinds[kind].word, word) != 0)
		kind++;
	if (kind == KINDS)
		return unknown_section(builder, section, word);
	if (!kinds[kind].named && name)
		return bh_draft_fault(&builder->draft, section->first, section->name, NULL,
				      "takes no name; accepted: %s", kinds[kind].shown);
	if (kinds[kind].named && (!name || !label_ok(name)))
		return bh_draft_fault(&builder->draft, section->first, section->name, NULL,
				      "\"%s\" is not a name; accepted: %s, its name a letter a-z, "
				      "then a-z, 0-9, _ "
				      "or -, at most %u bytes",
				      name ? name : "", kinds[kind].shown, BH_LABEL_MAX - 1);
	*ret_kind = kind;
	return 0;
}

static bool entry_exists(const struct bh_draft_section *section, const char *key)
{
	for (size_t i = 0; i < section->n_entries; i++)
		if (strcmp(section->entries[i].key, key) == 0)
			return true;
	return false;
}

static bh_status section_apply(struct builder *builder, size_t index)
{
	const struct bh_draft_section *section = &builder->draft.sections[index];
	const char *name;
	unsigned kind;
	void *object;
	bh_status st = section_kind_get(builder, section, &kind, &name);

	if (st < 0 || kind == KINDS)
		return st;
	st = object_get(builder->config, (enum kind)kind, name, section->first, &object);
	for (size_t i = 0; st == 0 && i < section->n_entries; i++)
		st = entry_apply(builder, section, (enum kind)kind, object, &section->entries[i]);
	for (size_t i = 0; st == 0 && i < kinds[kind].n_rows; i++) {
		const struct key_row *row = &kinds[kind].rows[i];

		if (row->required && !entry_exists(section, row->row.option.name))
			st = bh_draft_fault(&builder->draft, section->first, section->name,
					    row->row.option.name, "missing; accepted: %s",
					    row->accepted);
	}
	return st;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bh_status draft_read(struct builder *builder, const char *const *files, size_t n_files,
			    const char *const *sets, size_t n_sets)
{
	bh_status st = 0;

	for (size_t i = 0; st == 0 && i < n_files; i++)
		st = bh_draft_add_file(&builder->draft, files[i], (uint32_t)i);
	for (size_t i = 0; st == 0 && i < n_sets; i++)
		st = bh_draft_add_set(&builder->draft, sets[i], (uint32_t)(n_files + i));
	return st;
}

/* What follows from several keys or from the environment. */
static bh_status config_complete(struct builder *builder)
{
	static const struct bh_place nowhere = { .source = UINT32_MAX };
	struct bh_config *config = builder->config;
	struct bh_error err = { 0 };
	bh_status st;

	for (size_t i = 0; i < config->n_apps; i++)
		if (config->apps[i].stop_timeout_ns < 0)
			config->apps[i].stop_timeout_ns = config->app_stop_timeout_ns;
	if (config->runtime_dir)
		return 0;
	st = bh_runtime_dir(&config->runtime_dir, &err);
	if (st != -ENOENT)
		return st;
	return bh_draft_fault(&builder->draft, nowhere, "host", "runtime_dir",
			      "not set, and the environment does not say; set it, or %s",
			      bh_error_fact(&err, "hint"));
}

static bh_status config_build(struct builder *builder)
{
	bh_status st = 0;

	for (unsigned kind = KIND_HOST; st == 0 && kind <= KIND_GIL; kind++)
		st = presets_put(&kinds[kind], builder->config);
	for (size_t i = 0; st == 0 && i < builder->draft.n_sections; i++)
		st = section_apply(builder, i);
	return st == 0 ? config_complete(builder) : st;
}

int bh_config_load(const char *const *files, size_t n_files, const char *const *sets, size_t n_sets,
		   FILE *faults, struct bh_config **ret_config)
{
	bh_auto(bh_config_free) struct bh_config *config = calloc(1, sizeof(*config));
	struct builder builder = { .config = config };
	size_t n_faults = 0;
	bh_status st;

	if (!config)
		return -ENOMEM;
	st = draft_read(&builder, files, n_files, sets, n_sets);
	if (st == 0)
		st = config_build(&builder);
	if (st == 0)
		n_faults = bh_draft_print_faults(&builder.draft, faults);
	bh_draft_fini(&builder.draft);
	if (st < 0)
		return st;
	if (n_faults == 0)
		*ret_config = bh_steal(&config);
	return n_faults > INT_MAX ? INT_MAX : (int)n_faults;
}

static void entries_free(struct bh_config_entry *entries, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		free(entries[i].key);
		free(entries[i].value);
		free(entries[i].origin.file);
	}
	free(entries);
}

/* The strings that the rows of `kind` have put into `object`. */
static void values_free(const struct section_kind *kind, void *object)
{
	for (size_t i = 0; i < kind->n_rows; i++) {
		const struct key_row *row = &kind->rows[i];

		if (!row->store &&
		    (row->row.option.type == BH_OPT_STR || row->row.option.type == BH_OPT_PATH))
			free(*(char **)row_target(row, object));
	}
}

struct bh_config *bh_config_free(struct bh_config *config)
{
	if (!config)
		return NULL;
	for (size_t i = 0; i < config->n_apps; i++) {
		struct bh_config_app *app = &config->apps[i];

		values_free(&kinds[KIND_APP], app);
		entries_free(app->options, app->n_options);
		free(app->name);
		free(app->origin.file);
	}
	for (size_t i = 0; i < config->n_plugins; i++) {
		struct bh_config_plugin *plugin = &config->plugins[i];

		values_free(&kinds[KIND_PLUGIN], plugin);
		entries_free(plugin->own, plugin->n_own);
		free(plugin->label);
		free(plugin->origin.file);
	}
	for (size_t i = 0; i < config->n_env; i++) {
		free(config->env[i].name);
		free(config->env[i].value);
		free(config->env[i].origin.file);
	}
	for (size_t i = 0; i < config->n_python_path; i++)
		free(config->python_path[i]);
	for (unsigned kind = KIND_HOST; kind <= KIND_GIL; kind++)
		values_free(&kinds[kind], config);
	free(config->apps);
	free(config->plugins);
	free(config->env);
	free(config->python_path);
	free(config);
	return NULL;
}
