/* SPDX-License-Identifier: BSD-3-Clause */
/* module - see module.h.
 *
 * Loading is a row of checks, each before the step that would be too late for it: the file, its
 * note, dlopen (constructors run), the descriptor, the manifest's values for it, and only then
 * anything that others can see: the sites and the pool.
 *
 * Thread: main, GIL not held (PLG-5). Blocks: on the file system and in the library's constructors.
 * Owns:   the module; the library stays mapped for ever, also when a later step refuses it. */
#include "config.h"

#include "host/plugin/module.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/core/log.h"
#include "host/core/stack.h"
#include "host/plugin/backend.h"
#include "host/plugin/descriptor.h"
#include "host/plugin/environment.h"
#include "host/plugin/faults.h"
#include "host/plugin/find.h"
#include "host/plugin/imports.h"
#include "host/plugin/note.h"
#include "host/plugin/service.h"
#include "host/plugin/surroundings.h"

#define COMPONENT "plugin"
#define RESERVE 16u /* SUP-8: places for clean-up tasks, in the pools whose plugin has any */

struct bh_module {
	const struct bh_config_plugin *config; /* I: borrowed, outlives the module */
	char *path;			       /* I: owned */
	struct bh_note note;		       /* I */
	struct bh_imports imports;	       /* I */
	struct bh_context *context;	       /* I: owned until it is retired */
	uint32_t n_workers, n_progress;	       /* I */
	struct bh_cpus cpus;		       /* I: with config->cpus */
	/* I: set before the pool starts. */
	void (*announce)(struct bh_module *module, enum bh_pool_state state, void *arg);
	void *announce_arg;
};

/* Set by main before the first load, read on main (module.h). */
static const char *const *search_dirs;

void bh_module_set_search(const char *const *dirs)
{
	search_dirs = dirs;
}

bh_status bh_module_find(const struct bh_config_plugin *config, char **ret_path,
			 struct bh_error *err)
{
	return bh_find_library(config->library, search_dirs, ret_path, err);
}

/* ---- the library ---------------------------------------------------------------------------- */

/* PLG-5: another libpython must not even be mapped. The host's own, named once more, does no harm
 * today; a plugin built for the next Python would be refused, so it is worth a word. */
static bh_status check_imports(struct bh_module *module, struct bh_error *err)
{
	const char *host = bh_imports_host_libpython();
	bh_status st;

	st = bh_imports_read(module->path, &module->imports, err);
	if (st == 0)
		st = bh_imports_check(&module->imports, host, err);
	if (st < 0)
		return bh_note(err, st, BH_STR("library", module->path));
	if (module->imports.libpython[0])
		bh_log(BH_LOG_WARNING, COMPONENT,
		       "plugins must not link libpython: the host brings Python's functions",
		       BH_STR("plugin", module->config->label), BH_STR("library", module->path),
		       BH_STR("needs", module->imports.libpython));
	return 0;
}

/* GIL-6: such calls have no site; who looks for them in the books must know the name. */
static void tell_raw(const struct bh_module *module)
{
	const char *slash = strrchr(module->path, '/');
	char names[320], account[PATH_MAX];

	if (!module->imports.raw)
		return;
	bh_imports_list(&module->imports, names, sizeof(names));
	snprintf(account, sizeof(account), "raw:%s", slash ? slash + 1 : module->path);
	bh_log(BH_LOG_INFO, COMPONENT,
	       "plugin uses the raw GIL functions; what they do is booked under their library",
	       BH_STR("plugin", module->config->label), BH_STR("library", module->path),
	       BH_STR("names", names), BH_STR("site", account));
}

static bh_status check_file(struct bh_module *module, struct bh_error *err)
{
	char env[BH_NOTE_ENV_MAX];
	bh_status st;

	st = bh_find_check(module->path, geteuid() == 0, err); /* PLG-1 */
	if (st == 0) /* PLG-2: before any of its code can run */
		st = bh_note_read(module->path, &module->note, err);
	if (st == 0)
		st = bh_note_check(&module->note, err);
	if (st == 0)
		st = bh_note_read_env(module->path, env, err);
	if (st == 0)
		st = bh_environment_check(env, err);
	if (st == 0)
		st = check_imports(module, err);
	return st;
}

/* Static functions in reports of stacks; a file is read now, so that none is when one is due. */
static void learn_names(void *library, const char *path)
{
	struct link_map *map;

	if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0)
		bh_stack_learn(map->l_ld, path);
}

static bh_status open_library(struct bh_module *module, void **ret_library, struct bh_error *err)
{
	struct bh_surroundings before;
	void *library;

	bh_surroundings_save(&before);
	library = dlopen(module->path, RTLD_NOW | RTLD_LOCAL);
	bh_surroundings_restore(&before, module->config->label, "load"); /* PLG-6 */
	if (!library)
		return bh_raise(err, -ENOEXEC, "module.load", BH_STR("reason", dlerror()));
	learn_names(library, module->path);
	*ret_library = library;
	return 0;
}

/* The descriptor must lie in the library itself: dlsym also finds a name in what the library needs.
 * And the symbol's own size bounds what may be read, whatever the descriptor says of itself. */
static bh_status find_descriptor(void *library, const struct bh_plugin **ret_raw,
				 size_t *ret_available, struct bh_error *err)
{
	const struct bh_plugin *raw = dlsym(library, "bh_plugin");
	const ElfW(Sym) *symbol = NULL;
	struct dl_find_object place;
	struct link_map *map;
	Dl_info info;

	if (!raw)
		return bh_raise(err, -ENOEXEC, "module.descriptor",
				BH_STR("reason", "no symbol bh_plugin"),
				BH_STR("accepted", "a descriptor written with BH_PLUGIN"));
	if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 ||
	    _dl_find_object((void *)(uintptr_t)raw, &place) != 0 || place.dlfo_link_map != map)
		return bh_raise(err, -ENOEXEC, "module.descriptor",
				BH_STR("reason", "bh_plugin lies in another library"),
				BH_STR("accepted", "a descriptor in the plugin itself"));
	if (!dladdr1(raw, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol ||
	    info.dli_saddr != raw || ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT ||
	    (uintptr_t)raw % _Alignof(struct bh_plugin) != 0)
		return bh_raise(err, -ENOEXEC, "module.descriptor",
				BH_STR("reason", "bh_plugin is no data object"),
				BH_STR("accepted", "a descriptor written with BH_PLUGIN"));
	*ret_raw = raw;
	*ret_available = symbol->st_size;
	return 0;
}

static bh_status read_descriptor(struct bh_module *module, void *library, struct bh_error *err)
{
	struct bh_faults faults = { 0 };
	const struct bh_plugin *raw = NULL;
	size_t available = 0;
	bh_status st;

	st = find_descriptor(library, &raw, &available, err);
	if (st < 0)
		return st;
	st = bh_descriptor_read(raw, available, &module->note, &faults,
				&module->context->descriptor, err);
	if (st == 0)
		st = bh_faults_raise(&faults, "descriptor.invalid", err); /* PLG-3 */
	bh_faults_fini(&faults);
	return st;
}

/* ---- what the manifest says ----------------------------------------------------------------- */

static const struct bh_option *find_option(const struct bh_descriptor *d, const char *key,
					   uint32_t *ret_row)
{
	for (uint32_t i = 0; i < d->n_options; i++) {
		if (strcmp(d->options[i].name, key) == 0) {
			*ret_row = i;
			return &d->options[i];
		}
	}
	return NULL;
}

static const char *nearest_key(const struct bh_descriptor *d, const char *key)
{
	size_t n = bh_descriptor_n_host_keys + d->n_options;
	bh_auto_mem const char **names = calloc(n, sizeof(*names));

	if (!names)
		return NULL;
	memcpy(names, bh_descriptor_host_keys, bh_descriptor_n_host_keys * sizeof(*names));
	for (uint32_t i = 0; i < d->n_options; i++)
		names[bh_descriptor_n_host_keys + i] = d->options[i].name;
	return bh_option_nearest(key, names, n);
}

static const char *fact_or(const struct bh_error *err, const char *key, const char *otherwise)
{
	const char *value = bh_error_fact(err, key);

	return value ? value : otherwise;
}

/* "node.ini:12" or "--set". */
static void render_origin(const struct bh_origin *origin, char *text, size_t size)
{
	if (origin->line)
		snprintf(text, size, "%s:%u", origin->file ? origin->file : "?", origin->line);
	else
		snprintf(text, size, "%s", origin->file ? origin->file : "preset");
}

static void take_entry(struct bh_context *context, const struct bh_config_entry *entry,
		       struct bh_faults *faults)
{
	const struct bh_option *option;
	struct bh_option_value value;
	struct bh_error why = { 0 };
	const char *nearest;
	char at[PATH_MAX];
	uint32_t row = 0;

	render_origin(&entry->origin, at, sizeof(at));
	option = find_option(context->descriptor, entry->key, &row);
	if (!option) {
		nearest = nearest_key(context->descriptor, entry->key);
		bh_faults_add(faults, "%s: [plugin %s] %s: unknown key%s%s%s", at, context->label,
			      entry->key, nearest ? "; did you mean " : "", nearest ? nearest : "",
			      nearest ? "?" : "");
		return;
	}
	if (bh_option_parse(option, entry->value, &value, &why) < 0) {
		bh_faults_add(faults, "%s: [plugin %s] %s: \"%s\" %s; accepted: %s", at,
			      context->label, entry->key, fact_or(&why, "value", ""),
			      fact_or(&why, "reason", "is refused"),
			      fact_or(&why, "accepted", "a value of its type"));
		return;
	}
	bh_option_value_fini(&context->options[row]);
	context->options[row] = value;
}

/* Presets first, the manifest's own over them; every bad or unknown key is listed (MAN-1). */
static bh_status read_options(struct bh_module *module, struct bh_error *err)
{
	struct bh_context *context = module->context;
	const struct bh_descriptor *d = context->descriptor;
	struct bh_faults faults = { 0 };
	bh_status st;

	context->options = calloc(d->n_options ? d->n_options : 1, sizeof(*context->options));
	if (!context->options)
		return bh_raise(err, -ENOMEM, "module.alloc");
	for (uint32_t i = 0; i < d->n_options; i++) {
		st = bh_option_parse(&d->options[i], d->options[i].preset, &context->options[i],
				     err);
		if (st < 0)
			return st;
	}
	for (size_t i = 0; i < module->config->n_own; i++)
		take_entry(context, &module->config->own[i], &faults);
	st = bh_faults_raise(&faults, "option.invalid", err);
	bh_faults_fini(&faults);
	return st;
}

/* The manifest has seen to the form; here what is asked for is held against what there is. */
static bh_status read_cpus(struct bh_module *module, struct bh_error *err)
{
	const char *text = module->config->cpus;
	struct bh_cpus allowed, missing;
	char at[PATH_MAX], accepted[128], refused[128];
	bh_status st;

	if (!text)
		return 0;
	st = bh_cpus_parse(text, &module->cpus);
	if (st == 0)
		st = bh_cpus_allowed(&allowed, err);
	if (st < 0)
		return bh_raise(err, st, "option.cpus", BH_STR("cpus", text));
	missing = bh_cpus_without(&module->cpus, &allowed);
	if (bh_cpus_count(&missing) == 0)
		return 0;
	render_origin(&module->config->origin, at, sizeof(at));
	bh_cpus_format(&missing, refused, sizeof(refused));
	bh_cpus_format(&allowed, accepted, sizeof(accepted));
	return bh_raise(err, -EINVAL, "option.cpus", BH_STR("section", at), BH_STR("cpus", text),
			BH_STR("missing", refused), BH_STR("accepted", accepted),
			BH_STR("hint", "these are the CPUs that this process may run on"));
}

static bh_status count_threads(struct bh_module *module, struct bh_error *err)
{
	const struct bh_plugin *plugin = &module->context->descriptor->plugin;
	const struct bh_worker_range *range = &plugin->workers;
	const char *text = module->config->workers;
	unsigned long n = range->preset;
	char at[PATH_MAX], accepted[64];

	render_origin(&module->config->origin, at, sizeof(at));
	if (text && strcmp(text, "auto") != 0)
		n = strtoul(text, NULL, 10); /* a number: the manifest has seen to it */
	else if (text || n == 0) {
		n = bh_surroundings_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
		if (module->config->cpus && n > bh_cpus_count(&module->cpus))
			n = bh_cpus_count(&module->cpus);
		n = n < range->min ? range->min : n > range->max ? range->max : n;
	}
	if (n < range->min || n > range->max) {
		snprintf(accepted, sizeof(accepted), "auto, or %u to %u", range->min, range->max);
		return bh_raise(err, -EINVAL, "option.workers", BH_STR("section", at),
				BH_STR("workers", text), BH_STR("accepted", accepted));
	}
	module->n_workers = module->context->n_workers = (uint32_t)n;
	module->n_progress = plugin->progress_threads;
	if (module->config->progress_threads >= 0)
		module->n_progress = (uint32_t)module->config->progress_threads;
	if (module->n_progress > 0 && !plugin->progress)
		return bh_raise(err, -EINVAL, "option.progress-threads", BH_STR("section", at),
				BH_INT("progress_threads", module->n_progress),
				BH_STR("accepted", "0: the plugin has no progress function"));
	return 0;
}

/* ---- what others can see -------------------------------------------------------------------- */

static void module_announce(struct bh_pool *pool, enum bh_pool_state state, void *arg)
{
	struct bh_module *module = arg;

	(void)pool;
	if (module->announce)
		module->announce(module, state, module->announce_arg);
}

static bool has_cleanup(const struct bh_descriptor *d)
{
	for (uint32_t i = 0; i < d->n_ops; i++)
		if (d->op_rows[i].flags & BH_OP_CLEANUP)
			return true;
	return false;
}

static bh_status make_pool(struct bh_module *module, struct bh_error *err)
{
	struct bh_context *context = module->context;
	const struct bh_pool_config config = {
		.label = context->label,
		.n_workers = module->n_workers,
		.n_progress = module->n_progress,
		.queue = (uint32_t)module->config->queue,
		.reserve = has_cleanup(context->descriptor) ? RESERVE : 0,
		.cpus = module->config->cpus ? &module->cpus : NULL,
		.has_nice = module->config->nice != BH_NICE_KEEP,
		.nice = module->config->nice != BH_NICE_KEEP ? (int)module->config->nice : 0,
		.backend = &context->backend,
		.backend_self = context,
		.n_ops = context->descriptor->n_ops,
		.announce = module_announce,
		.announce_arg = module,
	};
	bh_status st;

	context->backend = bh_backend_for(context->descriptor);
	st = bh_pool_new(&config, &context->pool, err);
	if (st < 0)
		return st;
	atomic_store_explicit(&context->pool_refs, 1, memory_order_release);
	return 0;
}

/* Last of all, because sites stay for life: a refused plugin leaves none. */
static bh_status add_sites(struct bh_context *context, struct bh_error *err)
{
	const struct bh_descriptor *d = context->descriptor;

	context->sites = calloc(d->n_sites ? d->n_sites : 1, sizeof(*context->sites));
	if (!context->sites)
		return bh_raise(err, -ENOMEM, "module.alloc");
	for (uint32_t i = 0; i < d->n_sites; i++) {
		bh_status st = bh_gil_site_add(context->label, d->sites[i].name,
					       (enum bh_site_policy)d->sites[i].policy,
					       &context->sites[i], err);

		if (st < 0)
			return bh_note(err, st, BH_STR("site", d->sites[i].name));
	}
	return 0;
}

/* ---- load and free -------------------------------------------------------------------------- */

static bh_status module_new(const struct bh_config_plugin *config, struct bh_module **ret_module,
			    struct bh_error *err)
{
	bh_auto(bh_module_free) struct bh_module *module = calloc(1, sizeof(*module));

	if (!module)
		return bh_raise(err, -ENOMEM, "module.alloc");
	module->config = config;
	module->context = calloc(1, sizeof(*module->context));
	if (!module->context)
		return bh_raise(err, -ENOMEM, "module.alloc");
	module->context->module = module;
	if (strlen(config->label) >= sizeof(module->context->label))
		return bh_raise(err, -EINVAL, "module.label",
				BH_STR("accepted", "at most 31 bytes"));
	memcpy(module->context->label, config->label, strlen(config->label) + 1);
	bh_service_slots_init(module->context);
	*ret_module = bh_steal(&module);
	return 0;
}

static bh_status load_steps(struct bh_module *module, struct bh_error *err)
{
	void *library = NULL;
	bh_status st;

	st = bh_module_find(module->config, &module->path, err);
	if (st == 0)
		st = check_file(module, err);
	if (st == 0)
		st = open_library(module, &library, err);
	if (st == 0)
		st = read_descriptor(module, library, err);
	if (st == 0)
		st = bh_report_init(&module->context->report, module->context->descriptor,
				    module->context->label, module->note.label, err);
	if (st == 0)
		st = read_options(module, err);
	if (st == 0)
		st = read_cpus(module, err);
	if (st == 0)
		st = count_threads(module, err);
	if (st == 0)
		st = make_pool(module, err);
	if (st == 0)
		st = add_sites(module->context, err);
	return st;
}

bh_status bh_module_load(const struct bh_config_plugin *config, struct bh_module **ret_module,
			 struct bh_error *err)
{
	bh_auto(bh_module_free) struct bh_module *module = NULL;
	bh_status st;

	st = module_new(config, &module, err);
	if (st == 0)
		st = load_steps(module, err);
	if (st < 0) {
		if (module && module->path && err && !bh_error_fact(err, "path") &&
		    !bh_error_fact(err, "library"))
			bh_note(err, st, BH_STR("path", module->path));
		return bh_note(err, st, BH_STR("plugin", config->label));
	}
	bh_log(BH_LOG_INFO, COMPONENT, "plugin loaded", BH_STR("plugin", config->label),
	       BH_STR("path", module->path), BH_STR("name", module->note.label),
	       BH_STR("version", module->note.version), BH_INT("workers", module->n_workers),
	       BH_INT("ops", module->context->descriptor->n_ops));
	tell_raw(module);
	*ret_module = bh_steal(&module);
	return 0;
}

struct bh_module *bh_module_free(struct bh_module *module)
{
	if (!module)
		return NULL;
	bh_context_retire(module->context);
	free(module->path);
	free(module);
	return NULL;
}

/* ---- looking -------------------------------------------------------------------------------- */

const char *bh_module_label(const struct bh_module *module)
{
	return module->context->label;
}

const char *bh_module_path(const struct bh_module *module)
{
	return module->path;
}

const char *bh_module_version(const struct bh_module *module)
{
	return module->note.version;
}

json_t *bh_module_render_raw(const struct bh_module *module)
{
	return bh_imports_render(&module->imports);
}

struct bh_pool *bh_module_pool(const struct bh_module *module)
{
	return module->context->pool;
}

const struct bh_module_op *bh_module_ops(const struct bh_module *module, uint32_t *ret_n)
{
	*ret_n = module->context->descriptor->n_ops;
	return module->context->descriptor->ops;
}

struct bh_module *bh_module_of_pool(const struct bh_pool *pool)
{
	const struct bh_context *context = bh_pool_backend_self(pool);

	return context ? context->module : NULL;
}

void bh_module_set_announce(struct bh_module *module,
			    void (*announce)(struct bh_module *, enum bh_pool_state, void *),
			    void *arg)
{
	module->announce = announce;
	module->announce_arg = arg;
}

struct bh_report *bh_module_report(const struct bh_module *module)
{
	return &module->context->report;
}

void bh_module_set_health(struct bh_module *module,
			  void (*health)(const struct bh_error *cause, void *arg), void *arg)
{
	module->context->health = health;
	module->context->health_arg = arg;
}
