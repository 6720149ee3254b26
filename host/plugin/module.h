/* SPDX-License-Identifier: BSD-3-Clause */
/* module - a loaded plugin: its library, its checked descriptor, its options, its pool.
 *
 * Thread: load on main without the GIL (PLG-5); the rest is fixed afterwards, readable by any.
 * Owns:   its copy of the tables, its option values, its pool. Lives: until the process ends; the
 *         library is never unmapped.
 * Fails:  load returns -EPERM, -ENOENT, -ENOEXEC, -EINVAL with every fault of the descriptor
 *         listed.
 * Keeps:  PLG-1, PLG-2, PLG-3, PLG-5, PLG-6. */
#ifndef BH_HOST_PLUGIN_MODULE_H
#define BH_HOST_PLUGIN_MODULE_H

#include "host/core/pool.h"
#include "host/gil/gil.h"
#include "host/manifest/config.h"
#include "host/plugin/signature.h"

struct bh_module_op {
	const struct bh_op *op; /* the plugin's own row */
	struct bh_signature signature;
};

struct bh_module;
struct bh_report;

/* What host/python gives to the service table; set once before the first load. */
struct bh_python_services {
	/* As services->call_object; `site` is a host-wide number here. */
	bh_status (*call_object)(struct bh_task *task, bh_gil_site site, struct bh_object *callable,
				 const struct bh_value *args, uint32_t n_args,
				 struct bh_value *ret_value);
	/* As services->object_cuda_buffer, or with `use` NULL as object_buffer; `site` is a host-wide number
	 * here, the rest has been checked. */
	bh_status (*object_buffer)(struct bh_task *task, bh_gil_site site, struct bh_object *object,
				   uint32_t flags, struct bh_cuda_use *use,
				   struct bh_buffer **ret_buffer);
	/* A value as an object, for a parameter that takes any. The value passes over; the Python
	 * object is made by who first needs it. Thread: any. GIL: not needed. NULL without memory,
	 * and the value is the caller's still. */
	struct bh_object *(*wrap)(struct bh_value *value);
	/* An object as a value of `type` and with enum bh_mark, by the same rules as an argument that is given directly;
	 * None as BH_TYPE_NONE where `or_none`. Waits for the GIL, at host.argument. -EINVAL: it does
	 * not fit, and `given` (`size` bytes) says what it is; else what `err` says. */
	bh_status (*unwrap)(struct bh_object *object, uint32_t type, uint32_t marks, bool or_none,
			    struct bh_value *ret_value, char *given, size_t size,
			    struct bh_error *err);
};
void bh_module_set_python(const struct bh_python_services *services);

/* Where names are looked up, in order (PLG-1): --plugin-dir, BULKHEAD_PLUGIN_PATH, the installed
 * one. NULL-terminated, borrowed for the life of the process. */
void bh_module_set_search(const char *const *dirs);
/* The absolute path of config->library. Errors name each path tried. */
bh_status bh_module_find(const struct bh_config_plugin *config, char **ret_path,
			 struct bh_error *err) BH_MUST_CHECK;

/* Finds, reads the note, dlopens, validates, parses the options, registers the sites, makes the
 * pool (not started). `config` is borrowed and outlives the module. */
bh_status bh_module_load(const struct bh_config_plugin *config, struct bh_module **ret_module,
			 struct bh_error *err) BH_MUST_CHECK;
/* Only a module whose pool never started or has been joined; the library stays mapped. */
struct bh_module *bh_module_free(struct bh_module *module);
BH_DEFINE_AUTO(struct bh_module, bh_module_free)

const char *bh_module_label(const struct bh_module *module);
const char *bh_module_path(const struct bh_module *module);
const char *bh_module_version(const struct bh_module *module);
/* The raw GIL functions that its file imports, as a list of names; NULL without memory. */
json_t *bh_module_render_raw(const struct bh_module *module);
struct bh_pool *bh_module_pool(const struct bh_module *module);
const struct bh_module_op *bh_module_ops(const struct bh_module *module, uint32_t *ret_n);
/* The module whose pool this is; NULL when there is none. */
struct bh_module *bh_module_of_pool(const struct bh_pool *pool);
/* What it tells of itself; the module's own, and lives as long as that. */
struct bh_report *bh_module_report(const struct bh_module *module);
/* Called when the plugin reports its health, at any time from its open() to the end of the process, on
 * any thread, perhaps with the GIL: `cause` (borrowed; status 0: as it should be). Must not block. Set
 * before bh_pool_start. */
void bh_module_set_health(struct bh_module *module,
			  void (*health)(const struct bh_error *cause, void *arg), void *arg);
/* Called on the supervisor when the pool is ready or has ended; set before bh_pool_start. */
void bh_module_set_announce(struct bh_module *module,
			    void (*announce)(struct bh_module *, enum bh_pool_state, void *),
			    void *arg);

#endif
