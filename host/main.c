/* SPDX-License-Identifier: BSD-3-Clause */
/* main - bulkheadd: reads the command line, wires the modules, and walks Python's main thread
 * through its life. What happens when is the conductor's business (host/control/conductor.c). */
#include "config.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "host/control/control.h"
#include "host/control/signals.h"
#include "host/core/crash.h"
#include "host/core/exit_hook.h"
#include "host/core/fault.h"
#include "host/core/identity.h"
#include "host/core/log.h"
#include "host/core/pool_metrics.h"
#include "host/core/process_metrics.h"
#include "host/core/stack.h"
#include "host/core/stall_metrics.h"
#include "host/gil/courier.h"
#include "host/gil/frames.h"
#include "host/gil/gil.h"
#include "host/gil/metrics.h"
#include "host/gil/probe.h"
#include "host/plugin/boundary.h"
#include "host/plugin/environment.h"
#include "host/plugin/imports.h"
#include "host/plugin/module.h"
#include "host/plugin/note.h"
#include "host/plugin/report.h"
#include "host/python/python.h"
#include "host/stalls.h"

#define COMPONENT "main"
#define EX_WEDGED 70 /* DESIGN's exit statuses are sysexits' where those fit */
#define LAST_WORDS_NS (500 * BH_NS_PER_MS)
#define PROBE_GRACE_NS (100 * BH_NS_PER_MS)
#define WATCHDOG_GRACE_NS (2 * BH_NS_PER_S) /* it may be taking stacks */
#define LIST_MAX 64
#define HEALTH_CLOSED (1u << 31)
#ifdef BH_FAULTS
#define FAULTS ", faults on"
#else
#define FAULTS ""
#endif

/* The manifest's table numbers its choices without knowing of host/gil. */
static_assert(BH_GIL_COUNT == 0 && BH_GIL_LOG == 1 && BH_GIL_ABORT == 2,
	      "[gil] unsanctioned = count | log | abort");
static_assert(BH_GIL_LEDGER_FULL == 0 && BH_GIL_LEDGER_SITES == 1 && BH_GIL_LEDGER_OFF == 2,
	      "[gil] ledger = full | sites | off");

struct options {
	const char *files[LIST_MAX], *sets[LIST_MAX], *plugin_dirs[LIST_MAX + 1];
	size_t n_files, n_sets, n_plugin_dirs;
	bool check;
};

/* What a plugin's report of its health needs; it may come from a thread that outlives all else. */
struct healthway {
	struct host *host; /* I */
	size_t index;	   /* I: in the manifest */
};

struct host {
	struct bh_config *config;
	struct bh_views views;
	struct bh_metrics metrics;
	struct bh_postbox inbox; /* main's */
	struct bh_exit_registry *registry;
	struct bh_exit_step stand_back, settle, last_rites;
	struct bh_control *control;
	struct bh_stalls *stalls;
	_Atomic(struct bh_module *) *modules; /* manifest order; A: release by main, once each */
	_Atomic int *plugin_health;	      /* one a plugin; A: relaxed, by the conductor */
	struct healthway *healthways; /* I: one a plugin; never freed while a plugin may call */
	/* Who is reporting; HEALTH_CLOSED is added for good before the control loop's handle goes (A:
	 * acquire in, release out). */
	_Atomic uint32_t health_users;
	_Atomic uint64_t stop_deadline_ns;
	char *socket_path;
	char **search; /* NULL-terminated, for bh_module_set_search */
};

/* ---- the command line ------------------------------------------------------------------------ */

static void usage(FILE *out)
{
	fputs("Usage: bulkheadd -c FILE [-c FILE]… [--set SECTION.KEY=VALUE]…\n"
	      "                 [--plugin-dir DIR]… [--check] [--version] [--help]\n"
	      "\n"
	      "  -c, --config FILE        read this manifest; later files override earlier ones\n"
	      "      --set S.K=V          override one value, such as \"plugin stream.workers=4\"\n"
	      "      --plugin-dir DIR     look here first for plugins that are given by name\n"
	      "      --check              check the manifests and the plugins' notes, then exit\n"
	      "\n"
	      "Runs in the foreground. SIGTERM and SIGINT stop it in order; a second one at once.\n"
	      "Exit status: 0 stopped; 64 usage; 69 a plugin or its device is unavailable;\n"
	      "70 wedged or internal; 75 tasks were abandoned; 78 manifest, Python or app set-up;\n"
	      "1 to 63 an app's own sys.exit().\n",
	      out);
}

static bool append(const char **list, size_t *n, const char *value)
{
	if (*n == LIST_MAX) {
		fprintf(stderr, "bulkheadd: at most %d of each option are accepted\n", LIST_MAX);
		return false;
	}
	list[(*n)++] = value;
	return true;
}

/* An exit status to leave with at once, or -1 to go on. */
static int parse_options(int argc, char **argv, struct options *o)
{
	enum { OPT_SET = 256, OPT_PLUGIN_DIR, OPT_CHECK, OPT_VERSION };
	static const struct option longs[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "set", required_argument, NULL, OPT_SET },
		{ "plugin-dir", required_argument, NULL, OPT_PLUGIN_DIR },
		{ "check", no_argument, NULL, OPT_CHECK },
		{ "version", no_argument, NULL, OPT_VERSION },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	bool room = true;

	for (int opt; room && (opt = getopt_long(argc, argv, "c:h", longs, NULL)) != -1;) {
		switch (opt) {
		case 'c':
			room = append(o->files, &o->n_files, optarg);
			break;
		case OPT_SET:
			room = append(o->sets, &o->n_sets, optarg);
			break;
		case OPT_PLUGIN_DIR:
			if (*optarg != '/') { /* PLG-1: never the working directory */
				fprintf(stderr,
					"bulkheadd: --plugin-dir \"%s\": an absolute path is "
					"accepted\n",
					optarg);
				return EX_USAGE;
			}
			room = append(o->plugin_dirs, &o->n_plugin_dirs, optarg);
			break;
		case OPT_CHECK:
			o->check = true;
			break;
		case OPT_VERSION:
			printf("bulkheadd %s (plugin ABI %u.%u; C++ exceptions of plugins "
			       "%s)" FAULTS "\n",
			       PACKAGE_VERSION, BH_ABI_MAJOR, BH_ABI_MINOR,
			       bh_boundary_catches() ? "are caught" : "end the process");
			return 0;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return EX_USAGE;
		}
	}
	if (!room)
		return EX_USAGE;
	if (optind < argc) {
		fprintf(stderr, "bulkheadd: unexpected argument \"%s\"\n", argv[optind]);
		usage(stderr);
		return EX_USAGE;
	}
	if (o->n_files == 0) {
		fputs("bulkheadd: no manifest: -c FILE is required\n", stderr);
		usage(stderr);
		return EX_USAGE;
	}
	return -1;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

/* PLG-1: --plugin-dir, BULKHEAD_PLUGIN_PATH, the installed one. */
static bool set_search(struct host *host, const struct options *o)
{
	const char *env = getenv("BULKHEAD_PLUGIN_PATH");
	size_t room = o->n_plugin_dirs + 2, n = 0;
	char *copy, *save = NULL;
	bool whole = true; /* a copy that fails would end the list early */

	for (const char *p = env; p && *p; p++)
		room += *p == ':';
	host->search = calloc(room + 1, sizeof(*host->search));
	copy = strdup(env ? env : "");
	if (!host->search || !copy) {
		free(copy);
		return false;
	}
	for (size_t i = 0; i < o->n_plugin_dirs && whole; i++)
		whole = (host->search[n++] = strdup(o->plugin_dirs[i])) != NULL;
	for (char *dir = strtok_r(copy, ":", &save); dir && whole; dir = strtok_r(NULL, ":", &save))
		whole = (host->search[n++] = strdup(dir)) != NULL;
	whole = whole && (host->search[n] = strdup(BH_PLUGINDIR)) != NULL;
	free(copy);
	bh_module_set_search((const char *const *)host->search);
	return whole;
}

/* Not a fault: children may want it. */
static void remark_environment(const struct bh_config *config)
{
	for (size_t i = 0; i < config->n_env; i++) {
		const struct bh_config_env *env = &config->env[i];
		const char *remark = bh_environment_remark(env->name);

		if (remark)
			fprintf(stderr, "%s:%u: [host] env.%s: remark: %s\n",
				env->origin.file ? env->origin.file : "--set", env->origin.line,
				env->name, remark);
	}
}

static int check_plugins(const struct bh_config *config)
{
	int status = 0;

	remark_environment(config);

	for (size_t i = 0; i < config->n_plugins; i++) {
		const struct bh_config_plugin *plugin = &config->plugins[i];
		bh_auto_mem char *path = NULL;
		struct bh_error err = { 0 };
		struct bh_imports imports;
		struct bh_note note;
		char text[1024], env[BH_NOTE_ENV_MAX];

		if (bh_module_find(plugin, &path, &err) == 0 &&
		    bh_note_read(path, &note, &err) == 0 && bh_note_check(&note, &err) == 0 &&
		    bh_note_read_env(path, env, &err) == 0 &&
		    bh_environment_check(env, &err) == 0 &&
		    bh_imports_read(path, &imports, &err) == 0 &&
		    bh_imports_check(&imports, bh_imports_host_libpython(), &err) == 0) {
			printf("plugin %s: %s, version %s, ABI %u.%u: ok\n", plugin->label, path,
			       note.version, note.abi >> 16, note.abi & 0xffff);
			continue;
		}
		bh_error_render(&err, text, sizeof(text));
		fprintf(stderr, "%s:%u: [plugin %s]: %s\n",
			plugin->origin.file ? plugin->origin.file : "--set", plugin->origin.line,
			plugin->label, text);
		if (!plugin->optional || err.status != -ENOENT)
			status = EX_UNAVAILABLE;
	}
	return status;
}

/* On the pool's supervisor, after it has published. */
static void announce(struct bh_module *module, enum bh_pool_state state, void *arg)
{
	struct host *host = arg;

	bh_control_pool_announce(host->control, bh_module_pool(module), state);
}

/* On any thread of a plugin's, at any time. */
static void health_reported(const struct bh_error *cause, void *arg)
{
	const struct healthway *way = arg;
	struct host *host = way->host;

	if (!(atomic_fetch_add_explicit(&host->health_users, 1, memory_order_acquire) &
	      HEALTH_CLOSED))
		bh_control_plugin_health(host->control, way->index, cause);
	atomic_fetch_sub_explicit(&host->health_users, 1, memory_order_release);
}

/* Whoever is inside leaves without waiting for anything. False: somebody is there still, and what he
 * uses must stay. */
static bool close_healthways(struct host *host)
{
	const struct bh_deadline until = bh_deadline_after(LAST_WORDS_NS);
	const struct timespec pause = { 0, 100000 };

	atomic_fetch_or_explicit(&host->health_users, HEALTH_CLOSED, memory_order_acq_rel);
	while (atomic_load_explicit(&host->health_users, memory_order_acquire) != HEALTH_CLOSED) {
		if (bh_deadline_passed(until))
			return false;
		nanosleep(&pause, NULL);
	}
	return true;
}

/* All reports of loaded plugins, manifest order. False: no memory, an empty list. */
static bool list_reports(struct host *host, struct bh_report ***ret_reports, size_t *ret_n)
{
	struct bh_report **reports = calloc(host->config->n_plugins + 1, sizeof(*reports));
	size_t n = 0;

	for (size_t i = 0; reports && i < host->config->n_plugins; i++) {
		struct bh_module *module =
			atomic_load_explicit(&host->modules[i], memory_order_acquire);

		if (module)
			reports[n++] = bh_module_report(module);
	}
	*ret_reports = reports;
	*ret_n = n;
	return reports != NULL;
}

static bh_status admit_metrics(struct host *host, struct bh_module *module, struct bh_error *err)
{
	struct bh_report **earlier = NULL;
	size_t n;

	if (!list_reports(host, &earlier, &n))
		return bh_raise(err, -ENOMEM, "main.alloc");
	bh_report_admit(bh_module_report(module), earlier, n);
	free(earlier);
	return 0;
}

static void load_plugin(struct bh_request *request, void *arg)
{
	struct host *host = arg;
	struct bh_module *module = NULL;
	json_t *reply;

	request->status =
		bh_module_load(&host->config->plugins[request->index], &module, &request->error);
	bh_exit_hook_refresh(); /* EXIT-2: behind what its libraries registered unseen */
	if (request->status == 0)
		request->status = admit_metrics(host, module, &request->error);
	if (request->status == 0)
		request->status = bh_exit_registry_add(host->registry, bh_module_pool(module),
						       &request->error);
	if (request->status < 0) {
		bh_module_free(module);
		bh_request_reply(request);
		return;
	}
	bh_module_set_announce(module, announce, host);
	bh_module_set_health(module, health_reported, &host->healthways[request->index]);
	reply = json_pack("{s:s, s:s, s:o}", "path", bh_module_path(module), "version",
			  bh_module_version(module), "raw_gil", bh_module_render_raw(module));
	request->reply = reply ? json_dumps(reply, JSON_COMPACT) : NULL;
	json_decref(reply);
	request->pool = bh_module_pool(module);
	atomic_store_explicit(&host->modules[request->index], module, memory_order_release);
	bh_request_reply(request);
}

static struct bh_module *find_module(const char *label, void *arg)
{
	struct host *host = arg;

	for (size_t i = 0; i < host->config->n_plugins; i++) {
		struct bh_module *module =
			atomic_load_explicit(&host->modules[i], memory_order_acquire);

		if (module && strcmp(bh_module_label(module), label) == 0)
			return module;
	}
	return NULL;
}

static void exit_asked(int status, const char *app, void *arg)
{
	struct host *host = arg;

	bh_control_exit_asked(host->control, status, app);
}

static void render_pool_metrics(struct bh_metrics_text *text, void *arg)
{
	struct host *host = arg;
	bh_auto_mem struct bh_pool **pools =
		calloc(host->config->n_plugins + 1, sizeof(struct bh_pool *));
	size_t n = 0;

	for (size_t i = 0; pools && i < host->config->n_plugins; i++) {
		struct bh_module *module =
			atomic_load_explicit(&host->modules[i], memory_order_acquire);

		if (module)
			pools[n++] = bh_module_pool(module);
	}
	if (pools)
		bh_pool_metrics_render(text, pools, n);
	else
		bh_metrics_fail(text);
}

static void render_plugin_metrics(struct bh_metrics_text *text, void *arg)
{
	struct host *host = arg;
	struct bh_report **reports = NULL;
	size_t n;

	bh_metrics_family(
		text, BH_METRICS_GAUGE, "bulkhead_plugin_healthy",
		"1 for a plugin that is as it should be, 0 for one that reports otherwise "
		"or has failed.");
	for (size_t i = 0; i < host->config->n_plugins; i++) {
		int health = atomic_load_explicit(&host->plugin_health[i], memory_order_relaxed);
		const struct bh_metric_label labels[] = {
			{ "plugin", host->config->plugins[i].label },
		};

		if (health != BH_PLUGIN_NOT_UP)
			bh_metrics_sample(text, labels, BH_ARRAY_LEN(labels),
					  health == BH_PLUGIN_HEALTHY);
	}
	if (list_reports(host, &reports, &n))
		bh_report_render_metrics(text, reports, n);
	else
		bh_metrics_fail(text);
	free(reports);
}

static void render_build_metrics(struct bh_metrics_text *text, void *arg)
{
	const char *python = bh_python_version();
	char number[32]; /* "3.11.2" of "3.11.2 (main, …)" */
	const struct bh_metric_label labels[] = { { "version", PACKAGE_VERSION },
						  { "python", number } };

	(void)arg;
	snprintf(number, sizeof(number), "%.*s", (int)strcspn(python, " "), python);
	bh_metrics_family(text, BH_METRICS_GAUGE, "bulkhead_build_info",
			  "1; its labels say which Bulkhead and which Python this is.");
	bh_metrics_sample(text, labels, BH_ARRAY_LEN(labels), 1);
}

static void render_stall_metrics(struct bh_metrics_text *text, void *arg)
{
	const struct host *host = arg;
	struct bh_stall_loop loops[] = { { .name = "asyncio" }, { .name = "control" } };
	struct bh_stall_counts counts;

	bh_stalls_count(host->stalls, &counts);
	bh_stalls_lag(host->stalls, BH_STALL_ASYNCIO, &loops[0].lag, &loops[0].answers);
	bh_stalls_lag(host->stalls, BH_STALL_CONTROL, &loops[1].lag, &loops[1].answers);
	bh_stall_metrics_render(text, &counts, loops, BH_ARRAY_LEN(loops));
}

static json_t *render_pools(void *arg)
{
	struct host *host = arg;
	json_t *pools = json_array();

	for (size_t i = 0; i < host->config->n_plugins; i++) {
		struct bh_module *module =
			atomic_load_explicit(&host->modules[i], memory_order_acquire);

		if (module &&
		    json_array_append_new(pools, bh_pool_render(bh_module_pool(module))) < 0) {
			json_decref(pools);
			return NULL; /* a list that lacks a pool would be untrue */
		}
	}
	return json_pack("{s:o}", "pools", pools);
}

static struct bh_module *module_at(size_t index, void *arg)
{
	struct host *host = arg;

	return atomic_load_explicit(&host->modules[index], memory_order_acquire);
}

static json_t *render_plugin(size_t index, void *arg)
{
	struct bh_module *module = module_at(index, arg);

	return module ? bh_report_render(bh_module_report(module)) : NULL;
}

static json_t *render_python(void *arg)
{
	(void)arg;
	return json_pack("{s:s}", "version", bh_python_version());
}

static bh_status prepare(struct host *host, struct bh_error *err)
{
	const struct bh_stalls_config stalls = {
		.config = host->config,
		.views = &host->views,
		.module_at = module_at,
		.arg = host,
	};
	bh_status st;

	/* What libraries and Python read from the environment must be there before the first thread,
	 * which is the log's (PLG-6). */
	bh_log_set_level((enum bh_log_level)host->config->log_level);
	st = bh_environment_set(host->config, err);
	if (st < 0)
		return st;
	host->modules = calloc(host->config->n_plugins + 1, sizeof(*host->modules));
	host->plugin_health = calloc(host->config->n_plugins + 1, sizeof(*host->plugin_health));
	host->healthways = calloc(host->config->n_plugins + 1, sizeof(*host->healthways));
	for (size_t i = 0; host->healthways && i < host->config->n_plugins; i++)
		host->healthways[i] = (struct healthway){ .host = host, .index = i };
	if (!host->modules || !host->plugin_health || !host->healthways ||
	    asprintf(&host->socket_path, "%s/%s.sock", host->config->runtime_dir,
		     host->config->name) < 0)
		return bh_raise(err, -ENOMEM, "main.alloc");
	st = bh_log_start((enum bh_log_level)host->config->log_level, err);
	if (st == 0)
		st = bh_crash_init(err);
	if (st == 0)
		st = bh_gil_frames_init(err);
	if (st == 0)
		st = bh_stack_init(err);
	if (st == 0)
		st = bh_signals_install(err);
	if (st == 0)
		st = bh_identity_tag_control("python", err);
	if (st == 0)
		st = bh_postbox_init(&host->inbox, err);
	if (st == 0)
		st = bh_exit_registry_new(&host->registry, err);
	if (st == 0 && pthread_atfork(NULL, NULL, bh_pool_forked) != 0)
		st = bh_raise(err, -ENOMEM, "main.atfork");
	if (st == 0)
		st = bh_stalls_new(&stalls, &host->stalls, err);
	bh_gil_set_ledger((enum bh_gil_ledger)host->config->ledger);
	bh_gil_set_unsanctioned((enum bh_gil_unsanctioned)host->config->unsanctioned);
	bh_views_add(&host->views, "pools", render_pools, host);
	bh_views_add(&host->views, "gil", bh_gil_render, NULL);
	bh_metrics_add(&host->metrics, bh_gil_metrics_render, NULL);
	bh_metrics_add(&host->metrics, render_pool_metrics, host);
	bh_metrics_add(&host->metrics, render_plugin_metrics, host);
	bh_metrics_add(&host->metrics, bh_process_metrics_render, NULL);
	bh_metrics_add(&host->metrics, render_build_metrics, NULL);
	if (host->stalls)
		bh_metrics_add(&host->metrics, render_stall_metrics, host);
	return st;
}

static bh_status start_control(struct host *host, struct bh_error *err)
{
	const struct bh_control_config config = {
		.config = host->config,
		.socket_path = host->socket_path,
		.version = PACKAGE_VERSION,
		.views = &host->views,
		.metrics = &host->metrics,
		.registry = host->registry,
		.main = &host->inbox,
		.interrupt_main = bh_python_interrupt_main,
		.stop_deadline_ns = &host->stop_deadline_ns,
		.render_plugin = render_plugin,
		.plugin_health = host->plugin_health,
		.arg = host,
	};

	return bh_control_start(&config, &host->control, err);
}

static void stand_back(void *arg, struct bh_deadline until)
{
	struct host *host = arg;

	bh_control_stand_back(host->control, until);
}

static void last_rites(void *arg, struct bh_deadline until)
{
	struct host *host = arg;

	bh_control_last_rites(host->control, until);
}

/* No posted work of a plugin's may run while its library's exit handlers do. */
static void settle(void *arg, struct bh_deadline until)
{
	(void)arg;
	if (!bh_courier_settle(bh_deadline_min(until, bh_deadline_after(LAST_WORDS_NS))))
		bh_log(BH_LOG_WARNING, COMPONENT, "posted work has not ended");
}

/* EXIT-1: what an exit() from anywhere finds to do. Before the first plugin is loaded. */
static void arm_exit_hook(struct host *host)
{
	const struct bh_exit_hook_config config = {
		.registry = host->registry,
		.timeout_ns = (uint64_t)host->config->shutdown_timeout_ns,
		.stop_deadline_ns = &host->stop_deadline_ns,
		.let_go = bh_gil_let_go,
	};

	host->stand_back = (struct bh_exit_step){ .run = stand_back, .arg = host };
	host->settle = (struct bh_exit_step){ .run = settle };
	host->last_rites = (struct bh_exit_step){ .run = last_rites, .arg = host };
	bh_exit_registry_add_step(host->registry, BH_EXIT_APPS, &host->stand_back);
	bh_exit_registry_add_step(host->registry, BH_EXIT_LIBRARIES, &host->last_rites);
	bh_exit_registry_add_step(host->registry, BH_EXIT_LIBRARIES, &host->settle);
	bh_exit_hook_arm(&config);
}

/* ---- Python's main thread -------------------------------------------------------------------- */

/* Without its loop main can do nothing for the apps, but the stop goes on in order: every request has
 * its reply until the conductor lets main go. The wait has no deadline of its own: the conductor's
 * stands behind the whole stop. */
static void refuse_requests(struct bh_postbox *inbox)
{
	struct pollfd ready = { .fd = inbox->fd, .events = POLLIN };
	bool leave = false;

	while (!leave) {
		struct bh_message *message;

		poll(&ready, 1, -1);
		message = bh_postbox_take(inbox);
		while (message) {
			struct bh_request *request =
				bh_container_of(message, struct bh_request, message);

			message = message->next;
			leave |= request->kind == BH_REQUEST_LEAVE;
			request->status = bh_raise(&request->error, -ESHUTDOWN, "python.loop");
			request->http_status = 503;
			bh_request_reply(request);
		}
	}
}

/* A little before the conductor leaves without main, so that it hears from main whom it waits for. */
static struct bh_deadline ahead_of(struct bh_deadline until)
{
	uint64_t left = bh_deadline_left_ns(until), margin = left / 4;

	if (margin > LAST_WORDS_NS)
		margin = LAST_WORDS_NS;
	return left == UINT64_MAX ? until : (struct bh_deadline){ until.at_ns - margin };
}

/* Before the gate closes, so that it is not a probe that the gate waits for; one that does not get
 * the GIL is named there like any other. */
static void end_probe(struct bh_deadline until)
{
	until = bh_deadline_min(until, bh_deadline_after(PROBE_GRACE_NS));
	bh_gil_probe_stop();
	if (bh_gil_probe_join(until, NULL) < 0)
		bh_log(BH_LOG_WARNING, COMPONENT, "the probe still waits for the GIL");
}

/* From the interpreter's first to its last moment. Returns false when it must not be left by
 * exit(): something of it may still run. */
static bool live_in_python(struct host *host)
{
	const struct bh_python_config config = {
		.config = host->config,
		.inbox = &host->inbox,
		.package_dir = getenv("BULKHEAD_PACKAGE_DIR") ? getenv("BULKHEAD_PACKAGE_DIR")
							      : BH_PACKAGEDIR,
		.plugin_load = load_plugin,
		.find_module = find_module,
		.exit_asked = exit_asked,
		.arg = host,
	};
	struct bh_error err = { 0 };
	struct bh_deadline until;
	bool clean;

	if (bh_python_start(&config, &err) < 0 || bh_courier_start(&err) < 0) {
		bh_control_report(host->control, BH_MILESTONE_PYTHON_FAILED, &err);
		return false;
	}
	bh_views_add(&host->views, "python", render_python, NULL);
	if (bh_stalls_start(host->stalls, host->control, &err) < 0) {
		bh_log_error(BH_LOG_WARNING, COMPONENT, "GIL use is not watched, or not in full",
			     &err);
		bh_error_clear(&err);
	}
	bh_control_report(host->control, BH_MILESTONE_PYTHON_UP, NULL);
	if (bh_python_serve(&err) < 0) {
		bh_control_report(host->control, BH_MILESTONE_LOOP_FAILED, &err);
		bh_error_clear(&err);
		refuse_requests(&host->inbox);
	}
	bh_stalls_loop_left(host->stalls);
	bh_control_report(host->control, BH_MILESTONE_LEFT_LOOP, NULL);
	until.at_ns = atomic_load_explicit(&host->stop_deadline_ns, memory_order_relaxed);
	bh_python_end(until);
	bh_control_report(host->control, BH_MILESTONE_PYTHON_ENDED, NULL);
	until = ahead_of(until);
	end_probe(until);
	bh_courier_close();
	if (bh_courier_join(until, &err) < 0 || bh_gil_gate_close(until, &err) < 0) {
		bh_control_report(host->control, BH_MILESTONE_GATE_STUCK, &err);
		return false;
	}
	bh_control_report(host->control, BH_MILESTONE_GATE_CLOSED, NULL);
	clean = bh_python_finalize(&err) == 0;
	bh_control_report(host->control, BH_MILESTONE_FINALIZED, &err);
	return clean;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* What was posted to main after it had left its loop: the asker is gone too. */
static void drain_inbox(struct bh_postbox *inbox)
{
	struct bh_message *message = bh_postbox_take(inbox);

	while (message) {
		struct bh_request *request = bh_container_of(message, struct bh_request, message);

		message = message->next;
		bh_request_free(request);
	}
}

static void release_modules(struct host *host)
{
	for (size_t i = 0; host->modules && i < host->config->n_plugins; i++)
		bh_module_free(atomic_exchange(&host->modules[i], NULL));
}

static void release(struct host *host)
{
	if (host->registry) { /* the last that prepare() makes */
		drain_inbox(&host->inbox);
		bh_postbox_fini(&host->inbox);
		/* A plugin whose load ended after the stop had begun: its pool was never started. */
		while (bh_exit_registry_take_last(host->registry))
			;
		bh_exit_registry_free(host->registry);
	}
	host->stalls = bh_stalls_free(host->stalls);
	release_modules(host);
	free(host->modules);
	free(host->plugin_health);
	free(host->socket_path);
	for (size_t i = 0; host->search && host->search[i]; i++)
		free(host->search[i]);
	free(host->search);
	host->config = bh_config_free(host->config);
}

/* GIL-9: the interpreter that would let go of them is gone; they stay until the process ends. */
static void log_left_behind(void)
{
	uint64_t n = bh_python_left_behind();

	if (n > 0)
		bh_log(BH_LOG_DEBUG, COMPONENT,
		       "references to Python objects were dropped after the interpreter's end",
		       BH_INT("references", n));
}

static int run(struct host *host)
{
	struct bh_error err = { 0 };
	bool clean;
	int status;

	if (prepare(host, &err) < 0) {
		bh_log_error(BH_LOG_ERROR, COMPONENT, "start failed", &err);
		bh_log_flush(bh_deadline_after(LAST_WORDS_NS));
		return EX_WEDGED;
	}
	bh_log(BH_LOG_INFO, COMPONENT, "starting", BH_STR("name", host->config->name),
	       BH_STR("version", PACKAGE_VERSION), BH_INT("pid", getpid()));
	if (start_control(host, &err) < 0) {
		bh_log_error(BH_LOG_ERROR, COMPONENT, "the control loop did not start", &err);
		bh_log_flush(bh_deadline_after(LAST_WORDS_NS));
		return err.status == -ENOMEM || err.status == -EAGAIN ? EX_WEDGED : EX_CONFIG;
	}
	arm_exit_hook(host);
	clean = live_in_python(host);
	/* The control loop, which they post to, is gone after its join. */
	if (bh_stalls_stop(host->stalls, bh_deadline_after(WATCHDOG_GRACE_NS), &err) < 0)
		clean = false;
	bh_gil_probe_stop();
	if (bh_gil_probe_join(bh_deadline_after(PROBE_GRACE_NS), &err) < 0)
		clean = false;
	/* Nothing is left for the hook. If it is at work on another thread, that one ends the
	 * process, and still uses what would be freed below. */
	bh_exit_hook_claim();
	if (!close_healthways(host))
		clean = false;
	status = bh_control_join(host->control);
	clean = clean && status != EX_WEDGED;
	if (clean) {
		release_modules(host); /* what that has to say comes before the last line */
		log_left_behind();
	}
	bh_log(BH_LOG_INFO, COMPONENT, "stopped", BH_INT("status", status));
	bh_log_stop(bh_deadline_after(LAST_WORDS_NS));
	/* EXIT-3, EXIT-4: a thread that did not end must not meet the destructors of its libraries.
	 */
	if (!clean)
		_exit(status);
	return status;
}

int main(int argc, char **argv)
{
	static struct host host = { .stop_deadline_ns = UINT64_MAX };
	struct options options = { 0 };
	struct bh_error err = { 0 };
	int status = parse_options(argc, argv, &options);
	int faults;

	if (status >= 0)
		return status;
#ifdef BH_FAULTS
	if (!bh_fault_start())
		return EX_USAGE;
#endif
	if (bh_gil_init(&err) < 0) {
		bh_log_error(BH_LOG_ERROR, COMPONENT, "this interpreter cannot be hosted", &err);
		return EX_CONFIG;
	}
	faults = bh_config_load(options.files, options.n_files, options.sets, options.n_sets,
				stderr, &host.config);
	if (faults != 0) {
		if (faults > 0)
			fprintf(stderr, "bulkheadd: %d fault%s in the manifest\n", faults,
				faults == 1 ? "" : "s");
		else
			fprintf(stderr, "bulkheadd: the manifest was not read: %s\n",
				strerror(-faults));
		/* Memory may be there the next time, and it is not the manifest's fault. */
		return faults == -ENOMEM ? EX_WEDGED : EX_CONFIG;
	}
	if (!set_search(&host, &options)) {
		fputs("bulkheadd: out of memory for the plugin directories\n", stderr);
		return EX_WEDGED;
	}
	if (options.check) {
		status = check_plugins(host.config);
		if (status == 0)
			puts("ok");
	} else {
		status = run(&host);
	}
	if (host.config)
		release(&host);
	return status;
}
