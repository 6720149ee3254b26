/* SPDX-License-Identifier: BSD-3-Clause */
/* config - the manifest: ini files and --set, read into one typed, immutable structure.
 *
 * Thread: made on main before any other thread, read by all afterwards. Owns: every string in it.
 * Keeps: MAN-1, MAN-3. Later files and --set override earlier ones (MAN-2). */
#ifndef BH_HOST_MANIFEST_CONFIG_H
#define BH_HOST_MANIFEST_CONFIG_H

#include <stdio.h>

#include "host/manifest/option.h"

/* Where a value was written: "node.ini:12" or "--set". */
struct bh_origin {
	char *file;    /* NULL: preset */
	uint32_t line; /* 0 for --set */
};

struct bh_config_entry { /* an app's option.KEY, or a plugin's own key, as written */
	char *key;
	char *value;
	struct bh_origin origin;
};

struct bh_config_app {
	char *name;
	struct bh_origin origin;
	char *object;			 /* "module:Attribute" */
	int64_t start_timeout_ns;	 /* preset 60 s */
	int64_t stop_timeout_ns;	 /* [host] app_stop_timeout unless the app says */
	struct bh_config_entry *options; /* option.KEY, keys without the prefix */
	size_t n_options;
};

#define BH_NICE_KEEP INT64_MIN

struct bh_config_plugin {
	char *label;
	struct bh_origin origin;
	char *library; /* absolute path, or a name to look up (PLG-1) */
	bool optional;
	char *workers;		  /* "auto", a number, or NULL: the plugin's preset */
	int64_t progress_threads; /* -1: the plugin's */
	int64_t queue;
	char *cpus;   /* a list that bh_cpus_parse() takes, or NULL: those of the process */
	int64_t nice; /* -20 … 19, or BH_NICE_KEEP: that of the process */
	int64_t drain_timeout_ns;
	int64_t stall_after_ns; /* a task that runs for longer is a stall; preset 0: never */
	struct bh_config_entry
		*own; /* keys that are not the host's: checked against the descriptor */
	size_t n_own;
};

struct bh_config_env {
	char *name, *value;
	struct bh_origin origin;
};

enum bh_on_pool_failure { BH_KEEP_GOING, BH_EXIT_HOST };

struct bh_config {
	/* [host] */
	char *name;
	char *runtime_dir; /* preset: as docs/operations.md says, resolved */
	char *socket_mode; /* octal text, preset 0660 */
	int64_t shutdown_timeout_ns, app_stop_timeout_ns;
	int64_t stall_after_ns;	   /* of the control loop; preset 250 ms, 0 never */
	uint32_t log_level;	   /* enum bh_log_level */
	uint32_t on_pool_failure;  /* enum bh_on_pool_failure */
	struct bh_config_env *env; /* env.NAME = value */
	size_t n_env;
	/* [python] */
	char *python_home, *python_venv; /* NULL: none */
	char **python_path; /* `path`, ':'-separated, absolute or relative to its manifest */
	size_t n_python_path;
	char *python_loop;	       /* `event_loop` MODULE:CALLABLE, or NULL: the host's own */
	int64_t python_stall_after_ns; /* of the asyncio loop; preset 1 s, 0 never */
	/* [gil] */
	int64_t sample_interval_ns; /* preset 10 ms, 0 off */
	uint32_t unsanctioned;	    /* enum bh_gil_unsanctioned: count log abort */
	uint32_t ledger;	    /* enum bh_gil_ledger: full sites off */
	int64_t probe_interval_ns;  /* preset 100 ms, 0 off */
	int64_t gil_stall_after_ns; /* of a wait for the GIL; preset 1 s, 0 never */
	struct bh_config_app *apps;
	size_t n_apps;
	struct bh_config_plugin *plugins;
	size_t n_plugins;
};

/* Reads `files` in order, then `sets` ("section.key=value"; a section may hold a blank: "plugin
 * stream.workers=2"). Every fault is written to `faults`, one line each: "FILE:LINE: [section] key:
 * what; accepted: …". Returns how many there were; 0: `*ret_config` is complete. A negative errno:
 * out of memory. */
int bh_config_load(const char *const *files, size_t n_files, const char *const *sets, size_t n_sets,
		   FILE *faults, struct bh_config **ret_config) BH_MUST_CHECK;
struct bh_config *bh_config_free(struct bh_config *config);
BH_DEFINE_AUTO(struct bh_config, bh_config_free)

#endif
