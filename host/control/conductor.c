/* SPDX-License-Identifier: BSD-3-Clause */
/* conductor - the state machine that runs start and stop.
 *
 * Thread: the control loop. GIL: never. Owns: the phase, the requests in flight, the exit status.
 * Keeps:  PLG-4, PLG-7, CP-2, EXIT-4 (see docs/architecture.md).
 *
 * Every step is asked for (a request to main, a word to a supervisor) and answered by a callback; a
 * timer stands behind each answer, and one timer stands behind the whole stop. */
#include "config.h"

#include "host/control/conductor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/core/log.h"
#include "host/core/stack.h"
#include "host/core/wedge.h"

#define COMPONENT "conductor"

#define JOIN_RETRY_NS (1 * BH_NS_PER_MS)
#define NUDGES_MAX 3 /* interrupts of main before it counts as stuck */
#define NUDGE_EVERY_NS (300 * BH_NS_PER_MS)
#define ANSWER_GRACE_NS                                                                            \
	(250 * BH_NS_PER_MS) /* for a main that is not stuck to cancel what was given up */
#define LEAVE_GRACE_NS (2 * BH_NS_PER_S)
#define ASIDE_GRACE_NS (3 * BH_NS_PER_S) /* the hook's last steps and words */

enum phase {
	PHASE_BOOT,	   /* main brings up the interpreter */
	PHASE_PLUGIN_LOAD, /* main loads plugin `at` */
	PHASE_PLUGIN_OPEN, /* its supervisor opens it and builds the pool */
	PHASE_APP_LOAD,	   /* main imports app `at` */
	PHASE_APP_START,   /* its start() runs */
	PHASE_READY,
	PHASE_APP_STOP,	  /* stop() of app `at` runs; from here on the host is stopping */
	PHASE_POOL_STOP,  /* the pool `stopping` drains and ends */
	PHASE_LEAVE,	  /* main leaves the asyncio loop */
	PHASE_PYTHON_END, /* threading._shutdown and the atexit functions */
	PHASE_GATE,	  /* the gate closes */
	PHASE_FINALIZE,	  /* Py_FinalizeEx */
	PHASE_OVER,
};

enum part_state {
	PART_WAITING,
	PART_STARTING,
	PART_UP,
	PART_SKIPPED,
	PART_FAILED,
	PART_STOPPING,
	PART_DOWN
};

/* A plugin or an app of the manifest, as far as the conductor knows it. */
struct part {
	enum part_state state;
	bool asked; /* app: load was asked for, so that stop() is owed if it was constructed */
	bool constructed;      /* app */
	struct bh_error cause; /* SKIPPED, FAILED */
	struct bh_pool *pool;  /* plugin; borrowed from its module */
	bool pool_running;     /* started and not yet joined */
	bool pool_failed_seen;
	char *path, *version;	/* plugin; owned */
	json_t *raw_gil;	/* plugin; owned: names of raw GIL functions that it imports */
	struct bh_error health; /* plugin: what it reports; status 0: as it should be */
	uint64_t health_at_ns;	/* plugin: since when, monotonic; 0: it has said nothing yet */
	json_t *endpoints;	/* app; owned: what it offers, NULL until it has been loaded */
};

struct bh_conductor {
	struct bh_conductor_config config; /* I */
	const struct bh_config *manifest;  /* I: borrowed */
	enum phase phase;
	bool stopping; /* a stop was asked for; also before the phase follows */
	bool aside;    /* exit() was called: the end is not conducted from here (EXIT-3) */
	bool hurry;
	bool main_up;	   /* main serves requests */
	bool main_answers; /* it has carried out the step's GIVE_UP: it is the app that does not end */
	bool main_stuck;	     /* it did not react to interrupts, nor answer since */
	uint32_t at;		     /* the plugin or app that the phase is about */
	struct part *plugins, *apps; /* owned, manifest order */
	struct bh_request *waiting;  /* borrowed: the request that the phase waits for, NULL when
					main owes none */
	struct bh_request *leave;    /* owned: LEAVE, made beforehand, so that the stop can end
					without memory; NULL once it is posted */
	unsigned nudges;
	struct bh_pool *stopping_pool; /* the pool that PHASE_POOL_STOP is about */
	struct event *step_timer;      /* behind the present step */
	struct event *join_timer;      /* ended supervisors to be joined */
	struct event *total_timer;     /* behind the whole stop */
	struct bh_deadline total;      /* when the process must be gone */
	/* what the exit status is made of */
	bool wedged, bad_setup, unavailable, abandoned;
	int app_status;
};

static void next_step(struct bh_conductor *c);

/* ---- names ----------------------------------------------------------------------------------- */

static const char *phase_name(enum phase phase)
{
	switch (phase) {
	case PHASE_BOOT:
		return "python-start";
	case PHASE_PLUGIN_LOAD:
		return "plugin-load";
	case PHASE_PLUGIN_OPEN:
		return "plugin-open";
	case PHASE_APP_LOAD:
		return "app-load";
	case PHASE_APP_START:
		return "app-start";
	case PHASE_READY:
		return "ready";
	case PHASE_APP_STOP:
		return "app-stop";
	case PHASE_POOL_STOP:
		return "pool-stop";
	case PHASE_LEAVE:
		return "leave-loop";
	case PHASE_PYTHON_END:
		return "python-end";
	case PHASE_GATE:
		return "gate-close";
	case PHASE_FINALIZE:
		return "finalize";
	case PHASE_OVER:
		return "over";
	}
	bh_unreachable();
}

static const char *part_state_name(enum part_state state)
{
	switch (state) {
	case PART_WAITING:
		return "waiting";
	case PART_STARTING:
		return "starting";
	case PART_UP:
		return "up";
	case PART_SKIPPED:
		return "skipped";
	case PART_FAILED:
		return "failed";
	case PART_STOPPING:
		return "stopping";
	case PART_DOWN:
		return "down";
	}
	bh_unreachable();
}

/* What the present step is about: a plugin's label, an app's name, or "main". */
static const char *subject(const struct bh_conductor *c)
{
	switch (c->phase) {
	case PHASE_PLUGIN_LOAD:
	case PHASE_PLUGIN_OPEN:
		return c->manifest->plugins[c->at].label;
	case PHASE_APP_LOAD:
	case PHASE_APP_START:
	case PHASE_APP_STOP:
		return c->manifest->apps[c->at].name;
	case PHASE_POOL_STOP:
		return c->stopping_pool ? bh_pool_label(c->stopping_pool) : "";
	case PHASE_BOOT:
	case PHASE_READY:
	case PHASE_LEAVE:
	case PHASE_PYTHON_END:
	case PHASE_GATE:
	case PHASE_FINALIZE:
	case PHASE_OVER:
		return "main";
	}
	bh_unreachable();
}

/* A failed pool is more than degraded, and one that has ended is no longer. */
static bool is_degraded(const struct part *part)
{
	return (part->state == PART_STARTING || part->state == PART_UP ||
		part->state == PART_STOPPING) &&
	       bh_error_is_set(&part->health);
}

static enum bh_plugin_health health_of(const struct part *part)
{
	switch (part->state) {
	case PART_WAITING:
	case PART_SKIPPED:
		return BH_PLUGIN_NOT_UP;
	case PART_STARTING:
	case PART_UP:
	case PART_STOPPING:
	case PART_DOWN:
		return is_degraded(part) ? BH_PLUGIN_UNHEALTHY : BH_PLUGIN_HEALTHY;
	case PART_FAILED:
		return BH_PLUGIN_UNHEALTHY;
	}
	bh_unreachable();
}

/* For /metrics, which others render. */
static void show_health(struct bh_conductor *c, const struct part *part)
{
	if (c->config.control->plugin_health)
		atomic_store_explicit(&c->config.control->plugin_health[part - c->plugins],
				      health_of(part), memory_order_relaxed);
}

/* ---- timers and requests --------------------------------------------------------------------- */

static void arm(struct event *timer, struct bh_deadline until)
{
	uint64_t left = bh_deadline_left_ns(until);
	struct timeval tv = { (time_t)(left / BH_NS_PER_S),
			      (suseconds_t)(left % BH_NS_PER_S / 1000) };

	/* The loop's clock stands still in a callback, and one that takes stacks is a long one: a
	 * timer armed by that clock would fire early. */
	event_base_update_cache_time(event_get_base(timer));
	event_add(timer, &tv);
}

static void enter_phase(struct bh_conductor *c, enum phase phase)
{
	event_del(c->step_timer);
	c->nudges = 0;
	c->main_answers = false;
	c->phase = phase;
}

static void on_reply(struct bh_request *request);

static void post_to_main(struct bh_conductor *c, struct bh_request *request)
{
	if (request->kind != BH_REQUEST_GIVE_UP)
		c->waiting = request;
	bh_postbox_post(c->config.control->main, &request->message);
}

/* Posts a request that the present phase waits for. No answer will come to one that failed. */
static BH_MUST_CHECK bh_status ask_main(struct bh_conductor *c, enum bh_request_kind kind,
					uint32_t index, struct bh_error *err)
{
	struct bh_request *request = bh_request_new(kind, c->config.replies, on_reply, c);

	if (!request)
		return bh_raise(err, -ENOMEM, "conductor.request",
				BH_STR("phase", phase_name(c->phase)),
				BH_STR("subject", subject(c)));
	request->index = index;
	post_to_main(c, request);
	return 0;
}

/* ---- the end of the process ------------------------------------------------------------------ */

int bh_conductor_exit_status(const struct bh_conductor *c)
{
	if (c->wedged)
		return 70;
	if (c->bad_setup)
		return 78;
	if (c->unavailable)
		return 69;
	if (c->abandoned)
		return 75;
	return c->app_status;
}

/* All stacks together are worth this: the loop takes them, and nothing else goes on meanwhile. */
#define STACKS_NS (200 * BH_NS_PER_MS)

static void log_wedge(const struct bh_pool *pool, const json_t *report, struct bh_deadline stacks)
{
	json_t *threads = report ? json_object_get(report, "threads") : NULL;
	const char *step = "";
	json_t *row;
	size_t i;

	if (report)
		json_unpack((json_t *)report, "{s?s}", "step", &step);
	bh_log(BH_LOG_ERROR, COMPONENT, "pool is wedged", BH_STR("pool", bh_pool_label(pool)),
	       BH_STR("step", step), BH_INT("threads", json_array_size(threads)));
	json_array_foreach(threads, i, row) bh_wedge_log_thread(COMPONENT, pool, row, stacks);
}

/* Names what main was doing for whom, who holds the GIL, and main's stack. */
static void report_overdue(struct bh_conductor *c)
{
	const struct bh_view *view = bh_views_find(c->config.control->views, "gil");
	json_t *gil = view ? view->render(view->arg) : NULL;
	const char *thread = "", *site = "";
	json_int_t tid = 0;
	char stack[2048];

	if (gil)
		json_unpack(gil, "{s:{s?s, s?I, s?s}}", "holder", "thread", &thread, "tid", &tid,
			    "site", &site);
	/* main's kernel id is the process id */
	bh_stack_render((uint32_t)getpid(), bh_deadline_after(200 * BH_NS_PER_MS), stack,
			sizeof(stack));
	bh_log(BH_LOG_ERROR, COMPONENT, "shutdown_timeout has passed: leaving by _exit",
	       BH_STR("phase", phase_name(c->phase)), BH_STR("waiting_for", subject(c)),
	       BH_STR("gil_holder", thread), BH_INT("gil_holder_tid", tid),
	       BH_STR("gil_site", site), BH_STR("main_stack", stack));
	json_decref(gil);
}

/* EXIT-4: nothing of ours or of a library may run any more. */
static _Noreturn void leave_hard(struct bh_conductor *c)
{
	bh_log(BH_LOG_INFO, COMPONENT, "stopped", BH_INT("status", 70));
	if (c->config.last_rites)
		c->config.last_rites(c->config.arg);
	bh_log_flush(bh_deadline_after(500 * BH_NS_PER_MS));
	_exit(70);
}

static void give_up_overdue(struct bh_pool *pool, struct bh_deadline stacks)
{
	json_t *report = NULL;

	if (bh_pool_give_up(pool, &report))
		log_wedge(pool, report, stacks);
	json_decref(report);
}

static void on_total_timer(evutil_socket_t fd, short what, void *arg)
{
	struct bh_deadline stacks = bh_deadline_after(STACKS_NS);
	struct bh_conductor *c = arg;

	(void)fd;
	(void)what;
	c->wedged = true;
	/* Pools that are still up are given up, so that every task has its outcome in the books. */
	if (c->stopping_pool)
		give_up_overdue(c->stopping_pool, stacks);
	for (struct bh_pool *pool;
	     (pool = bh_exit_registry_take_last(c->config.control->registry));)
		give_up_overdue(pool, stacks);
	report_overdue(c);
	leave_hard(c);
}

static void over(struct bh_conductor *c)
{
	enter_phase(c, PHASE_OVER);
	event_del(c->total_timer);
	event_del(c->join_timer);
	c->config.finished(c->config.arg);
}

/* ---- start: plugins -------------------------------------------------------------------------- */

static void start_failed(struct bh_conductor *c, const char *why)
{
	bh_conductor_stop(c, why, false);
}

/* PLG-7: a missing library or missing hardware may be skipped, a faulty plugin or manifest may not.
 */
static bool may_skip(const struct bh_config_plugin *plugin, const struct bh_error *cause,
		     bool opening)
{
	if (!plugin->optional)
		return false;
	return opening || cause->status == -ENOENT || strcmp(cause->id, "module.load") == 0;
}

/* A plugin did not come up. True when the start goes on without it. */
static bool plugin_failed(struct bh_conductor *c, const struct bh_error *cause, bool opening)
{
	const struct bh_config_plugin *plugin = &c->manifest->plugins[c->at];
	struct part *part = &c->plugins[c->at];

	part->cause = *cause;
	if (may_skip(plugin, cause, opening)) {
		part->state = PART_SKIPPED;
		show_health(c, part);
		bh_error_note(&part->cause, cause->status,
			      BH_FACTS_(BH_STR("plugin", plugin->label)));
		bh_log_error(BH_LOG_WARNING, COMPONENT, "optional plugin skipped", &part->cause);
		return true;
	}
	part->state = PART_FAILED;
	show_health(c, part);
	if (strncmp(cause->id, "option.", 7) == 0 && cause->status != -ENOMEM)
		c->bad_setup = true;
	else
		c->unavailable = true;
	bh_error_note(&part->cause, cause->status, BH_FACTS_(BH_STR("plugin", plugin->label)));
	bh_log_error(BH_LOG_ERROR, COMPONENT,
		     opening ? "plugin did not open" : "plugin was not loaded", &part->cause);
	return false;
}

static void plugin_loaded(struct bh_conductor *c, const struct bh_request *reply)
{
	struct part *part = &c->plugins[reply->index];
	json_t *root = reply->reply ? json_loads(reply->reply, 0, NULL) : NULL;
	const char *path = NULL, *version = NULL;

	if (root && json_unpack(root, "{s?s, s?s}", "path", &path, "version", &version) == 0) {
		part->path = path ? strdup(path) : NULL;
		part->version = version ? strdup(version) : NULL;
		part->raw_gil = json_incref(json_object_get(root, "raw_gil"));
	}
	if (!part->path || !part->version)
		bh_log(BH_LOG_WARNING, COMPONENT,
		       "no memory for a plugin's path and version: status shows null",
		       BH_STR("plugin", c->manifest->plugins[reply->index].label));
	json_decref(root);
	part->pool = reply->pool;
	show_health(c, part);
}

/* Thread creation is the only thing that can fail here; it fails like an open. */
static void open_plugin(struct bh_conductor *c)
{
	struct part *part = &c->plugins[c->at];
	struct bh_error err = { 0 };

	enter_phase(c, PHASE_PLUGIN_OPEN);
	part->pool_running = true;
	if (bh_pool_start(part->pool, &err) == 0)
		return;
	part->pool_running = false;
	if (plugin_failed(c, &err, true)) {
		c->at++;
		next_step(c);
	} else {
		start_failed(c, "a required plugin is unavailable");
	}
}

static void on_plugin_load_reply(struct bh_conductor *c, const struct bh_request *reply)
{
	if (reply->status == 0)
		plugin_loaded(c, reply);
	if (c->stopping) {
		/* Its pool was never started: nothing is owed to it. */
		return;
	}
	if (reply->status == 0) {
		open_plugin(c);
	} else if (plugin_failed(c, &reply->error, false)) {
		c->at++;
		next_step(c);
	} else {
		start_failed(c, "a required plugin is unavailable");
	}
}

/* ---- start: apps ----------------------------------------------------------------------------- */

static void app_failed(struct bh_conductor *c, const struct bh_error *cause, const char *message)
{
	struct part *part = &c->apps[c->at];

	part->state = PART_FAILED;
	part->cause = *cause;
	bh_error_note(&part->cause, cause->status,
		      BH_FACTS_(BH_STR("app", c->manifest->apps[c->at].name),
				BH_STR("object", c->manifest->apps[c->at].object)));
	bh_log_error(BH_LOG_ERROR, COMPONENT, message, &part->cause);
	c->bad_setup = true;
	start_failed(c, message);
}

static void start_app(struct bh_conductor *c)
{
	struct bh_error err = { 0 };

	enter_phase(c, PHASE_APP_START);
	if (ask_main(c, BH_REQUEST_APP_START, c->at, &err) < 0) {
		app_failed(c, &err, "app did not start");
		return;
	}
	arm(c->step_timer, bh_deadline_after((uint64_t)c->manifest->apps[c->at].start_timeout_ns));
}

static void on_app_load_reply(struct bh_conductor *c, const struct bh_request *reply)
{
	struct part *part = &c->apps[reply->index];

	part->constructed = reply->status == 0;
	if (reply->status == 0 && reply->reply)
		part->endpoints = json_loadb(reply->reply, reply->reply_len, 0, NULL);
	if (c->stopping)
		return;
	if (reply->status == 0)
		start_app(c);
	else
		app_failed(c, &reply->error, "app did not load");
}

static void on_app_start_reply(struct bh_conductor *c, const struct bh_request *reply)
{
	if (c->stopping)
		return;
	if (reply->status < 0) {
		app_failed(c, &reply->error, "app did not start");
		return;
	}
	c->apps[reply->index].state = PART_UP;
	bh_log(BH_LOG_INFO, COMPONENT, "app started",
	       BH_STR("app", c->manifest->apps[reply->index].name));
	c->at++;
	next_step(c);
}

/* ---- start: what comes next ------------------------------------------------------------------ */

static void load_next_app(struct bh_conductor *c)
{
	struct bh_error err = { 0 };

	if (c->at == c->manifest->n_apps) {
		enter_phase(c, PHASE_READY);
		bh_log(BH_LOG_INFO, COMPONENT, "ready", BH_STR("name", c->manifest->name),
		       BH_INT("plugins", c->manifest->n_plugins),
		       BH_INT("apps", c->manifest->n_apps),
		       BH_STR("socket", c->config.control->socket_path));
		return;
	}
	enter_phase(c, PHASE_APP_LOAD);
	c->apps[c->at].state = PART_STARTING;
	if (ask_main(c, BH_REQUEST_APP_LOAD, c->at, &err) < 0) {
		app_failed(c, &err, "app did not load");
		return;
	}
	c->apps[c->at].asked = true;
	arm(c->step_timer, bh_deadline_after((uint64_t)c->manifest->apps[c->at].start_timeout_ns));
}

static void load_next_plugin(struct bh_conductor *c)
{
	struct bh_error err = { 0 };

	if (c->at == c->manifest->n_plugins) {
		c->at = 0;
		enter_phase(c, PHASE_APP_LOAD);
		load_next_app(c);
		return;
	}
	enter_phase(c, PHASE_PLUGIN_LOAD);
	c->plugins[c->at].state = PART_STARTING;
	bh_log(BH_LOG_INFO, COMPONENT, "loading plugin",
	       BH_STR("plugin", c->manifest->plugins[c->at].label));
	if (ask_main(c, BH_REQUEST_PLUGIN_LOAD, c->at, &err) == 0)
		return;
	(void)plugin_failed(c, &err, false); /* it is not the library that is missing: no skip */
	start_failed(c, "a required plugin is unavailable");
}

/* ---- stop: apps ------------------------------------------------------------------------------ */

/* At most half of what is left, so that the pools get their share: the total wins over the sum. */
static struct bh_deadline app_stop_deadline(const struct bh_conductor *c)
{
	uint64_t left = bh_deadline_left_ns(c->total);

	if (c->hurry || c->main_stuck)
		return bh_deadline_after(0);
	return bh_deadline_min(
		bh_deadline_after((uint64_t)c->manifest->apps[c->at].stop_timeout_ns),
		bh_deadline_after(left / 2));
}

static void stop_pools(struct bh_conductor *c);

/* False: it could not be asked, which has been said. */
static bool ask_app_to_stop(struct bh_conductor *c)
{
	struct bh_error err = { 0 };

	enter_phase(c, PHASE_APP_STOP);
	if (c->apps[c->at].state != PART_FAILED)
		c->apps[c->at].state = PART_STOPPING;
	if (ask_main(c, BH_REQUEST_APP_STOP, c->at, &err) < 0) {
		bh_log_error(BH_LOG_ERROR, COMPONENT, "app is not stopped: going on without it",
			     &err);
		return false;
	}
	arm(c->step_timer, app_stop_deadline(c));
	return true;
}

/* Stops the app `at` or the first one before it that is owed a stop; then the pools. */
static void stop_apps(struct bh_conductor *c)
{
	for (;; c->at--) {
		struct part *part = &c->apps[c->at];

		if (c->at < c->manifest->n_apps && part->asked && part->state != PART_DOWN &&
		    ask_app_to_stop(c))
			return;
		if (c->at == 0)
			break;
	}
	stop_pools(c);
}

static void app_is_down(struct bh_conductor *c)
{
	struct part *part = &c->apps[c->at];

	if (part->state != PART_FAILED)
		part->state = PART_DOWN;
	part->asked = false;
	if (c->at == 0) {
		stop_pools(c);
	} else {
		c->at--;
		stop_apps(c);
	}
}

static void on_app_stop_reply(struct bh_conductor *c, const struct bh_request *reply)
{
	const char *name = c->manifest->apps[reply->index].name;

	if (reply->status < 0)
		bh_log_error(BH_LOG_ERROR, COMPONENT, "app did not stop cleanly", &reply->error);
	bh_log(BH_LOG_INFO, COMPONENT, "app stopped", BH_STR("app", name));
	app_is_down(c);
}

/* The nudges of one step take less than half of what is left, so that the pools get their share. */
static struct bh_deadline nudge_deadline(const struct bh_conductor *c, uint64_t wish_ns)
{
	uint64_t share = bh_deadline_left_ns(c->total) / (2 * (NUDGES_MAX + 1));

	return bh_deadline_after(share < wish_ns ? share : wish_ns);
}

/* Main owes an answer and its time is up: have it cancelled, then interrupt it, then go on without.
 */
static void nudge_main(struct bh_conductor *c, void (*without)(struct bh_conductor *))
{
	unsigned n = c->nudges++;
	struct bh_error err = { 0 };

	if (n == 0 && c->waiting && !c->main_stuck) {
		atomic_store_explicit(&c->waiting->given_up, true, memory_order_relaxed);
		if (ask_main(c, BH_REQUEST_GIVE_UP, 0, &err) < 0)
			bh_log_error(BH_LOG_WARNING, COMPONENT,
				     "main is not asked to cancel: it is interrupted next", &err);
		arm(c->step_timer, nudge_deadline(c, ANSWER_GRACE_NS));
	} else if (c->main_answers) {
		bh_log(BH_LOG_ERROR, COMPONENT, "it ignores its cancellation: going on without it",
		       BH_STR("phase", phase_name(c->phase)), BH_STR("waiting_for", subject(c)));
		c->waiting = NULL;
		without(c);
	} else if (n <= NUDGES_MAX && !c->main_stuck) {
		bh_log(BH_LOG_WARNING, COMPONENT, "main does not answer: interrupting it",
		       BH_STR("phase", phase_name(c->phase)), BH_STR("waiting_for", subject(c)));
		c->config.control->interrupt_main();
		arm(c->step_timer, nudge_deadline(c, NUDGE_EVERY_NS));
	} else {
		if (!c->main_stuck)
			bh_log(BH_LOG_ERROR, COMPONENT, "main is stuck: going on without it",
			       BH_STR("phase", phase_name(c->phase)),
			       BH_STR("waiting_for", subject(c)));
		c->main_stuck = true;
		c->waiting = NULL; /* an answer that comes after all is a late one */
		without(c);
	}
}

/* ---- stop: pools ----------------------------------------------------------------------------- */

struct pool_times {
	struct bh_deadline drain, cancel, give_up;
};

/* A tenth of the whole, at most a second, is kept for each of: telling tasks to end, workers to
 * end, and Python's end. A pool that does not end takes no more than half of what is left: the ones
 * behind it are closed too. */
static struct pool_times pool_times(const struct bh_conductor *c, uint64_t drain_timeout_ns)
{
	uint64_t tenth = (uint64_t)c->manifest->shutdown_timeout_ns / 10;
	uint64_t grace = tenth < BH_NS_PER_S ? tenth : BH_NS_PER_S;
	uint64_t line = c->total.at_ns - grace; /* pools are over by then */
	uint64_t now = bh_now_ns(), share = bh_deadline_left_ns(c->total) / 4;
	uint64_t latest = line > now + 2 * grace ? line - 2 * grace : now;
	struct pool_times t;

	t.drain = c->hurry ? bh_deadline_after(0) : bh_deadline_after(drain_timeout_ns);
	t.drain = bh_deadline_min(t.drain, (struct bh_deadline){ latest });
	grace = share < grace ? share : grace;
	t.cancel.at_ns = t.drain.at_ns + grace;
	t.give_up.at_ns = t.cancel.at_ns + grace;
	return t;
}

static struct part *part_of_pool(struct bh_conductor *c, const struct bh_pool *pool,
				 uint32_t *ret_index)
{
	for (uint32_t i = 0; i < c->manifest->n_plugins; i++) {
		if (c->plugins[i].pool == pool) {
			*ret_index = i;
			return &c->plugins[i];
		}
	}
	return NULL;
}

static void ask_pool(struct bh_conductor *c)
{
	uint32_t index;
	struct part *part = part_of_pool(c, c->stopping_pool, &index);
	struct pool_times t =
		pool_times(c, part ? (uint64_t)c->manifest->plugins[index].drain_timeout_ns : 0);

	bh_pool_stop(c->stopping_pool, t.drain, t.cancel);
	arm(c->step_timer, t.give_up);
}

static void leave_loop(struct bh_conductor *c);

/* The next pool in reverse load order that was started; main leaves its loop after the last. */
static void stop_pools(struct bh_conductor *c)
{
	struct bh_pool *pool;
	struct part *part;
	uint32_t index;

	while ((pool = bh_exit_registry_take_last(c->config.control->registry))) {
		part = part_of_pool(c, pool, &index);
		if (!part || !part->pool_running)
			continue;
		enter_phase(c, PHASE_POOL_STOP);
		c->stopping_pool = pool;
		if (part->state == PART_UP)
			part->state = PART_STOPPING;
		ask_pool(c);
		return;
	}
	leave_loop(c);
}

static void log_pool_end(struct bh_conductor *c, const struct bh_pool *pool,
			 const struct part *part, enum bh_pool_state state)
{
	struct bh_pool_books b;
	struct bh_error cause;

	bh_pool_books(part->pool, &b);
	if (b.abandoned)
		c->abandoned = true;
	if (bh_pool_cause(part->pool, &cause))
		bh_log_error(BH_LOG_ERROR, "pool", "pool ended with a cause", &cause);
	bh_log(BH_LOG_INFO, "pool", "pool closed", BH_STR("pool", bh_pool_label(pool)),
	       BH_STR("state", bh_pool_state_name(state)), BH_INT("submitted", b.submitted),
	       BH_INT("done", b.done), BH_INT("failed", b.failed), BH_INT("cancelled", b.cancelled),
	       BH_INT("deadline", b.deadline), BH_INT("abandoned", b.abandoned),
	       BH_INT("abandoned_alive", b.abandoned_alive));
}

static void pool_is_over(struct bh_conductor *c, struct part *part)
{
	part->pool_running = false;
	if (part->state == PART_STOPPING)
		part->state = PART_DOWN;
	if (c->stopping_pool == part->pool) {
		c->stopping_pool = NULL;
		stop_pools(c);
	}
}

static bool state_is_end(enum bh_pool_state state)
{
	return state == BH_POOL_CLEAN || state == BH_POOL_FAILED || state == BH_POOL_BUILD_FAILED;
}

/* Joins every supervisor that has published its end: no waiting here (SUP-9: an expired deadline
 * tries once); one that is not quite gone yet is tried again a moment later. */
static void join_ended(struct bh_conductor *c)
{
	bool again = false;

	for (uint32_t i = 0; i < c->manifest->n_plugins; i++) {
		struct part *part = &c->plugins[i];
		enum bh_pool_state state;
		struct bh_error err = { 0 };

		if (!part->pool_running)
			continue;
		state = bh_pool_state(part->pool);
		if (!state_is_end(state))
			continue;
		if (bh_pool_join(part->pool, bh_deadline_after(0), &err) == -ETIMEDOUT) {
			again = true;
			continue;
		}
		bh_exit_registry_remove(c->config.control->registry, part->pool);
		log_pool_end(c, part->pool, part, state);
		pool_is_over(c, part);
	}
	if (again)
		arm(c->join_timer, bh_deadline_after(JOIN_RETRY_NS));
}

static void on_join_timer(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	join_ended(arg);
}

static struct bh_deadline stacks_deadline(const struct bh_conductor *c)
{
	uint64_t half = bh_deadline_left_ns(c->total) / 2;

	return bh_deadline_after(half < STACKS_NS ? half : STACKS_NS);
}

/* EXIT-4 */
static void give_pool_up(struct bh_conductor *c)
{
	struct bh_pool *pool = c->stopping_pool;
	json_t *report = NULL;
	uint32_t index;
	struct part *part = part_of_pool(c, pool, &index);

	if (!bh_pool_give_up(pool, &report)) {
		join_ended(c); /* it ended in the same moment */
		return;
	}
	c->wedged = true;
	log_wedge(pool, report, stacks_deadline(c));
	json_decref(report);
	log_pool_end(c, pool, part, BH_POOL_WEDGED);
	pool_is_over(c, part);
}

/* ---- stop: Python ---------------------------------------------------------------------------- */

static void leave_loop(struct bh_conductor *c)
{
	enter_phase(c, PHASE_LEAVE);
	if (!c->main_up)
		return;			      /* the milestone comes, or the total timer */
	post_to_main(c, bh_steal(&c->leave)); /* once: nothing enters this phase again */
	arm(c->step_timer, bh_deadline_min(bh_deadline_after(LEAVE_GRACE_NS),
					   bh_deadline_after(bh_deadline_left_ns(c->total) / 2)));
}

static void wait_for_total(struct bh_conductor *c)
{
	(void)c; /* nothing else can be done for a main that is stuck: on_total_timer */
}

static void begin_stop(struct bh_conductor *c)
{
	if (c->manifest->n_apps && c->main_up) {
		c->at = (uint32_t)c->manifest->n_apps - 1;
		stop_apps(c);
	} else {
		stop_pools(c);
	}
}

bool bh_conductor_stop(struct bh_conductor *c, const char *why, bool hurry)
{
	if (c->phase == PHASE_OVER || c->aside)
		return false;
	if (c->stopping) {
		if (!hurry || c->hurry)
			return false;
		bh_log(BH_LOG_WARNING, COMPONENT, "stopping at once: drain deadlines are now",
		       BH_STR("why", why));
		c->hurry = true;
		if (c->phase == PHASE_APP_STOP && !c->nudges)
			arm(c->step_timer, bh_deadline_after(0));
		else if (c->phase == PHASE_POOL_STOP)
			ask_pool(c);
		return false;
	}
	c->stopping = true;
	c->hurry = hurry;
	bh_log(BH_LOG_INFO, COMPONENT, "stopping", BH_STR("why", why),
	       BH_STR("phase", phase_name(c->phase)));
	c->total = bh_deadline_after((uint64_t)c->manifest->shutdown_timeout_ns);
	atomic_store_explicit(c->config.control->stop_deadline_ns, c->total.at_ns,
			      memory_order_relaxed);
	arm(c->total_timer, c->total);
	begin_stop(c);
	return true;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void next_step(struct bh_conductor *c)
{
	switch (c->phase) {
	case PHASE_BOOT:
	case PHASE_PLUGIN_LOAD:
	case PHASE_PLUGIN_OPEN:
		load_next_plugin(c);
		return;
	case PHASE_APP_LOAD:
	case PHASE_APP_START:
		load_next_app(c);
		return;
	case PHASE_READY:
	case PHASE_APP_STOP:
	case PHASE_POOL_STOP:
	case PHASE_LEAVE:
	case PHASE_PYTHON_END:
	case PHASE_GATE:
	case PHASE_FINALIZE:
	case PHASE_OVER:
		break;
	}
	bh_unreachable();
}

static void on_reply(struct bh_request *request)
{
	struct bh_conductor *c = request->done_arg;
	bool awaited = c->waiting == request;

	c->main_stuck = false;
	if (awaited)
		c->waiting = NULL;
	if (c->aside) {
		bh_request_free(request);
		return;
	}
	switch (request->kind) {
	case BH_REQUEST_PLUGIN_LOAD:
		on_plugin_load_reply(c, request);
		break;
	case BH_REQUEST_APP_LOAD:
		on_app_load_reply(c, request);
		break;
	case BH_REQUEST_APP_START:
		on_app_start_reply(c, request);
		break;
	case BH_REQUEST_APP_STOP:
		if (awaited) /* else it is a late one of an app that was given up */
			on_app_stop_reply(c, request);
		break;
	case BH_REQUEST_GIVE_UP:
		c->main_answers = true;
		break;
	case BH_REQUEST_LEAVE:
		break;		   /* the milestone LEFT_LOOP says it */
	case BH_REQUEST_APP_CALL:  /* answered by the admin API */
	case BH_REQUEST_SUPERVISE: /* nobody's answer */
		bh_unreachable();
	}
	bh_request_free(request);
}

static void start_is_late(struct bh_conductor *c)
{
	struct bh_error err = { 0 };

	bh_error_raise(&err, -ETIMEDOUT, "app.start-timeout",
		       BH_FACTS_(BH_INT("timeout_ms",
					c->manifest->apps[c->at].start_timeout_ns / 1000000)));
	app_failed(c, &err, "app did not start in time");
}

static void on_step_timer(evutil_socket_t fd, short what, void *arg)
{
	struct bh_conductor *c = arg;

	(void)fd;
	(void)what;
	switch (c->phase) {
	case PHASE_APP_LOAD:
	case PHASE_APP_START:
		start_is_late(c);
		return;
	case PHASE_APP_STOP:
		nudge_main(c, app_is_down);
		return;
	case PHASE_POOL_STOP:
		give_pool_up(c);
		return;
	case PHASE_LEAVE:
		nudge_main(c, wait_for_total);
		return;
	case PHASE_BOOT:
	case PHASE_PLUGIN_LOAD:
	case PHASE_PLUGIN_OPEN:
	case PHASE_READY:
	case PHASE_PYTHON_END:
	case PHASE_GATE:
	case PHASE_FINALIZE:
	case PHASE_OVER:
		break;
	}
	bh_unreachable();
}

static json_t *facts_of(const struct bh_error *cause)
{
	json_t *facts = json_object();

	for (unsigned i = 0; facts && i < cause->n_facts; i++)
		json_object_set_new(facts, bh_error_key(cause, i),
				    json_string(bh_error_value(cause, i)));
	return facts;
}

static bool same_cause(const struct bh_error *a, const struct bh_error *b)
{
	if (a->status != b->status || a->status == 0)
		return a->status == b->status;
	if (strcmp(a->id, b->id) != 0 || a->n_facts != b->n_facts)
		return false;
	for (unsigned i = 0; i < a->n_facts; i++)
		if (strcmp(bh_error_key(a, i), bh_error_key(b, i)) != 0 ||
		    strcmp(bh_error_value(a, i), bh_error_value(b, i)) != 0)
			return false;
	return true;
}

static void log_health(const char *label, const struct bh_error *cause)
{
	struct bh_error shown = *cause;

	if (!bh_error_is_set(cause)) {
		bh_log(BH_LOG_WARNING, COMPONENT, "plugin has recovered", BH_STR("plugin", label));
		return;
	}
	bh_error_note(&shown, shown.status, BH_FACTS_(BH_STR("plugin", label)));
	bh_log_error(BH_LOG_WARNING, COMPONENT, "plugin is degraded", &shown);
}

/* A pool that has ended has said its last word, whatever threads its plugin may have left. */
static bool may_report(const struct part *part)
{
	struct bh_error cause = { 0 };

	if (!part->pool || part->state == PART_FAILED || part->state == PART_SKIPPED ||
	    part->state == PART_DOWN)
		return false;
	if (bh_pool_cause(part->pool, &cause)) /* it has failed, and is about to end */
		return false;
	switch (bh_pool_state(part->pool)) {
	case BH_POOL_NEW:
	case BH_POOL_BUILDING:
	case BH_POOL_READY:
	case BH_POOL_DRAINING:
	case BH_POOL_EXITING:
		return true;
	case BH_POOL_CLEAN:
	case BH_POOL_FAILED:
	case BH_POOL_BUILD_FAILED:
	case BH_POOL_WEDGED:
		return false;
	}
	bh_unreachable();
}

void bh_conductor_plugin_health(struct bh_conductor *c, size_t index, const struct bh_error *cause)
{
	const char *label = c->manifest->plugins[index].label;
	struct part *part = &c->plugins[index];
	bool degraded = bh_error_is_set(cause);

	if (c->aside || !may_report(part))
		return;
	if (same_cause(&part->health, cause)) {
		if (part->health_at_ns == 0)
			part->health_at_ns = bh_now_ns();
		return;
	}
	part->health = *cause;
	part->health_at_ns = bh_now_ns();
	show_health(c, part);
	log_health(label, cause);
	c->config.tell_apps(json_pack("{s:s, s:s, s:s?, s:o}", "kind",
				      degraded ? "degraded" : "recovered", "pool", label, "code",
				      degraded ? cause->id : NULL, "facts", facts_of(cause)),
			    c->config.arg);
}

static void pool_failed_while_up(struct bh_conductor *c, struct part *part)
{
	if (part->pool_failed_seen || !bh_pool_cause(part->pool, &part->cause))
		return;
	part->pool_failed_seen = true;
	part->state = PART_FAILED;
	show_health(c, part);
	bh_log_error(BH_LOG_ERROR, COMPONENT, "pool failed", &part->cause);
	if (c->manifest->on_pool_failure != BH_EXIT_HOST)
		return;
	c->unavailable = true;
	bh_conductor_stop(c, "a pool failed and on_pool_failure is exit", false);
}

/* For the apps' supervise(). */
static void tell_pool_failed(struct bh_conductor *c, struct bh_pool *pool)
{
	struct bh_error cause = { 0 };

	if (!bh_pool_cause(pool, &cause))
		bh_raise(&cause, -EIO, "pool.failed");
	c->config.tell_apps(json_pack("{s:s, s:s, s:s, s:o}", "kind", "pool-failed", "pool",
				      bh_pool_label(pool), "code", cause.id, "facts",
				      facts_of(&cause)),
			    c->config.arg);
}

void bh_conductor_pool_event(struct bh_conductor *c, struct bh_pool *pool, enum bh_pool_state state)
{
	uint32_t index;
	struct part *part = part_of_pool(c, pool, &index);
	struct bh_error cause = { 0 };

	if (!part || c->aside)
		return;
	if (state == BH_POOL_READY) {
		part->state = c->stopping ? PART_STOPPING : PART_UP;
		bh_log(BH_LOG_INFO, COMPONENT, "pool ready", BH_STR("pool", bh_pool_label(pool)),
		       BH_INT("workers", bh_pool_workers(pool)));
		if (c->phase == PHASE_PLUGIN_OPEN && c->at == index && !c->stopping) {
			c->at++;
			next_step(c);
		}
		return;
	}
	if (state == BH_POOL_FAILED || state == BH_POOL_BUILD_FAILED || state == BH_POOL_WEDGED)
		tell_pool_failed(c, pool);
	if (state == BH_POOL_FAILED && !c->stopping)
		pool_failed_while_up(c, part);
	if (state == BH_POOL_BUILD_FAILED && !c->stopping && c->phase == PHASE_PLUGIN_OPEN &&
	    c->at == index) {
		bh_pool_cause(pool, &cause);
		join_ended(c);
		if (plugin_failed(c, &cause, true)) {
			c->at++;
			next_step(c);
		} else {
			start_failed(c, "a required plugin is unavailable");
		}
		return;
	}
	join_ended(c);
}

void bh_conductor_exit_asked(struct bh_conductor *c, int status, const char *app)
{
	char why[128];

	if (c->aside)
		return;
	snprintf(why, sizeof(why), "SystemExit(%d) in app %s", status, app ? app : "?");
	if (!c->stopping || c->app_status == 0)
		c->app_status = status >= 0 && status <= 63 ? status : 1;
	bh_conductor_stop(c, why, false);
}

static void log_milestone(const char *message, const struct bh_error *cause)
{
	if (bh_error_is_set(cause))
		bh_log_error(BH_LOG_ERROR, COMPONENT, message, cause);
	else
		bh_log(BH_LOG_INFO, COMPONENT, message);
}

void bh_conductor_milestone(struct bh_conductor *c, enum bh_milestone milestone,
			    const struct bh_error *cause)
{
	if (c->aside)
		return;
	switch (milestone) {
	case BH_MILESTONE_PYTHON_UP:
		c->main_up = true;
		if (!c->stopping)
			next_step(c);
		else if (c->phase == PHASE_LEAVE)
			leave_loop(c);
		return;
	case BH_MILESTONE_PYTHON_FAILED:
		log_milestone("python did not start", cause);
		c->bad_setup = true;
		over(c);
		return;
	case BH_MILESTONE_LOOP_FAILED:
		log_milestone("main's event loop has failed", cause);
		c->wedged = true; /* 70: internal */
		bh_conductor_stop(c, "main's event loop has failed", false);
		return;
	case BH_MILESTONE_LEFT_LOOP:
		enter_phase(c, PHASE_PYTHON_END);
		return;
	case BH_MILESTONE_PYTHON_ENDED:
		log_milestone("python ended: threads joined, atexit functions run", cause);
		enter_phase(c, PHASE_GATE);
		return;
	case BH_MILESTONE_GATE_CLOSED:
		log_milestone("gate closed: nobody is inside the interpreter", cause);
		enter_phase(c, PHASE_FINALIZE);
		return;
	case BH_MILESTONE_GATE_STUCK:
		log_milestone("gate stuck: the interpreter is not finalized", cause);
		c->wedged = true;
		over(c);
		return;
	case BH_MILESTONE_FINALIZED:
		log_milestone(bh_error_is_set(cause) ? "Py_FinalizeEx reported an error"
						     : "Py_FinalizeEx returned 0",
			      cause);
		if (bh_error_is_set(cause))
			c->wedged = true;
		over(c);
		return;
	}
	bh_unreachable();
}

/* ---- looking --------------------------------------------------------------------------------- */

void bh_conductor_stand_back(struct bh_conductor *c, struct bh_deadline until)
{
	if (c->phase == PHASE_OVER)
		return;
	c->aside = c->stopping = true;
	event_del(c->step_timer);
	event_del(c->join_timer);
	/* Behind the hook's own deadline, for what it does not bound: handlers of libraries. */
	c->total = bh_deadline_after(bh_deadline_left_ns(until) + ASIDE_GRACE_NS);
	arm(c->total_timer, c->total);
}

bool bh_conductor_is_ready(const struct bh_conductor *c)
{
	if (c->phase != PHASE_READY || c->stopping)
		return false;
	for (size_t i = 0; i < c->manifest->n_plugins; i++)
		if (c->plugins[i].state == PART_FAILED || is_degraded(&c->plugins[i]))
			return false;
	return true;
}

bool bh_conductor_has_started(const struct bh_conductor *c)
{
	return c->phase == PHASE_READY || c->stopping;
}

bool bh_conductor_main_serves(const struct bh_conductor *c)
{
	return c->main_up && c->leave && !c->aside;
}

bool bh_conductor_is_stopping(const struct bh_conductor *c)
{
	return c->stopping;
}

static void add_reason(json_t *reasons, const char *kind, const char *name, const struct part *part)
{
	char cause[512] = "";

	if (part->state == PART_SKIPPED || (part->state == PART_UP && !is_degraded(part)))
		return;
	if (is_degraded(part))
		bh_error_render(&part->health, cause, sizeof(cause));
	else if (bh_error_is_set(&part->cause))
		bh_error_render(&part->cause, cause, sizeof(cause));
	json_array_append_new(
		reasons,
		json_sprintf("%s %s: %s%s%s", kind, name,
			     part->state == PART_UP ? "degraded" : part_state_name(part->state),
			     cause[0] ? ": " : "", cause));
}

json_t *bh_conductor_unready_reasons(const struct bh_conductor *c)
{
	json_t *reasons = json_array();

	if (c->stopping)
		json_array_append_new(reasons, json_string("stopping"));
	else if (c->phase == PHASE_BOOT)
		json_array_append_new(reasons, json_string("python: starting"));
	for (size_t i = 0; i < c->manifest->n_plugins; i++)
		add_reason(reasons, "plugin", c->manifest->plugins[i].label, &c->plugins[i]);
	for (size_t i = 0; i < c->manifest->n_apps; i++)
		add_reason(reasons, "app", c->manifest->apps[i].name, &c->apps[i]);
	return reasons;
}

static json_t *render_cause(const struct part *part)
{
	char text[1024];

	if (!bh_error_is_set(&part->cause))
		return json_null();
	bh_error_render(&part->cause, text, sizeof(text));
	return json_string(text);
}

static json_t *render_plugin(const struct bh_conductor *c, size_t i)
{
	const struct part *part = &c->plugins[i];

	return json_pack("{s:s, s:s?, s:s?, s:s, s:s?, s:b, s:O?, s:o}", "label",
			 c->manifest->plugins[i].label, "version", part->version, "path",
			 part->path, "state", part_state_name(part->state), "pool",
			 part->pool ? bh_pool_state_name(bh_pool_state(part->pool)) : NULL,
			 "optional", c->manifest->plugins[i].optional, "raw_gil", part->raw_gil,
			 "error", render_cause(part));
}

/* As a pool's cause (docs/admin-api.md). */
static json_t *render_error(const struct bh_error *error)
{
	char text[1024];

	bh_error_render(error, text, sizeof(text));
	return json_pack("{s:s, s:o, s:s}", "id", error->id, "facts", facts_of(error), "text",
			 text);
}

/* Of a plugin that is not up, or that has closed without an error, nothing is known. */
static json_t *render_health(const struct part *part)
{
	const char *state = NULL;
	json_t *cause = json_null(), *since = json_null();

	if (part->state == PART_FAILED && part->pool_failed_seen) {
		state = "failed";
		cause = render_error(&part->cause);
	} else if (part->pool_running) {
		state = is_degraded(part) ? "degraded" : "ok";
		if (is_degraded(part))
			cause = render_error(&part->health);
		if (part->health_at_ns)
			since = json_real((double)(bh_now_ns() - part->health_at_ns) /
					  (double)BH_NS_PER_S);
	}
	return json_pack("{s:s?, s:o, s:o}", "state", state, "cause", cause, "since_s", since);
}

json_t *bh_conductor_render_plugins(const struct bh_conductor *c)
{
	json_t *plugins = json_array();

	for (size_t i = 0; i < c->manifest->n_plugins; i++) {
		const struct bh_control_config *control = c->config.control;
		json_t *row = render_plugin(c, i), *more = NULL;

		json_object_set_new(row, "health", render_health(&c->plugins[i]));
		if (control->render_plugin)
			more = control->render_plugin(i, control->arg);
		if (more)
			json_object_update(row, more);
		else {
			json_object_set_new(row, "facts", json_object());
			json_object_set_new(row, "metrics", json_array());
		}
		json_decref(more);
		json_array_append_new(plugins, row);
	}
	return json_pack("{s:o}", "plugins", plugins);
}

json_t *bh_conductor_render(const struct bh_conductor *c)
{
	const char *state = c->stopping		      ? "stopping"
			    : c->phase == PHASE_READY ? "ready"
						      : "starting";
	json_t *plugins = json_array(), *apps = json_array();

	for (size_t i = 0; i < c->manifest->n_plugins; i++)
		json_array_append_new(plugins, render_plugin(c, i));
	for (size_t i = 0; i < c->manifest->n_apps; i++)
		json_array_append_new(apps, json_pack("{s:s, s:s, s:s, s:o}", "name",
						      c->manifest->apps[i].name, "object",
						      c->manifest->apps[i].object, "state",
						      part_state_name(c->apps[i].state), "error",
						      render_cause(&c->apps[i])));
	return json_pack("{s:s, s:s, s:s, s:o, s:o}", "state", state, "phase", phase_name(c->phase),
			 "waiting_for", c->phase == PHASE_READY ? "" : subject(c), "plugins",
			 plugins, "apps", apps);
}

json_t *bh_conductor_render_apps(const struct bh_conductor *c)
{
	json_t *apps = json_array();

	for (size_t i = 0; i < c->manifest->n_apps; i++) {
		const struct part *app = &c->apps[i];
		json_t *endpoints = app->endpoints ? json_incref(app->endpoints) : json_null();

		json_array_append_new(
			apps, json_pack("{s:s, s:s, s:s, s:o}", "name", c->manifest->apps[i].name,
					"object", c->manifest->apps[i].object, "state",
					part_state_name(app->state), "endpoints", endpoints));
	}
	return json_pack("{s:o}", "apps", apps);
}

/* ---- endpoint calls -------------------------------------------------------------------------- */

static void list_apps(const struct bh_config *manifest, char *out, size_t size)
{
	size_t used = 0;

	snprintf(out, size, "%s", manifest->n_apps ? "" : "(the manifest has no app)");
	for (size_t i = 0; i < manifest->n_apps && used < size; i++)
		used += (size_t)snprintf(out + used, size - used, "%s%s", i ? " " : "",
					 manifest->apps[i].name);
}

int bh_conductor_call(struct bh_conductor *c, struct bh_request *request, struct bh_error *err)
{
	char accepted[256];

	for (uint32_t i = 0; i < c->manifest->n_apps; i++) {
		const char *name = c->manifest->apps[i].name;

		if (strcmp(name, request->app) != 0)
			continue;
		if (c->stopping || c->apps[i].state != PART_UP) {
			bh_raise(err, -EAGAIN, c->stopping ? "host.stopping" : "app.not-ready",
				 BH_STR("app", name),
				 BH_STR("state", part_state_name(c->apps[i].state)));
			return 503;
		}
		request->index = i;
		bh_postbox_post(c->config.control->main, &request->message);
		return 0;
	}
	list_apps(c->manifest, accepted, sizeof(accepted));
	bh_raise(err, -ENOENT, "app.unknown", BH_STR("app", request->app),
		 BH_STR("accepted", accepted));
	return 404;
}

/* ---- life ------------------------------------------------------------------------------------ */

bh_status bh_conductor_new(const struct bh_conductor_config *config,
			   struct bh_conductor **ret_conductor, struct bh_error *err)
{
	struct bh_conductor *c = calloc(1, sizeof(*c));
	const struct bh_config *manifest = config->control->config;

	if (!c)
		return bh_raise(err, -ENOMEM, "conductor.alloc");
	c->config = *config;
	c->manifest = manifest;
	c->total = BH_NEVER; /* until a stop begins; nothing waits on it before */
	c->plugins = calloc(manifest->n_plugins + 1, sizeof(*c->plugins));
	c->apps = calloc(manifest->n_apps + 1, sizeof(*c->apps));
	c->step_timer = evtimer_new(config->base, on_step_timer, c);
	c->join_timer = evtimer_new(config->base, on_join_timer, c);
	c->total_timer = evtimer_new(config->base, on_total_timer, c);
	c->leave = bh_request_new(BH_REQUEST_LEAVE, config->replies, on_reply, c);
	if (!c->leave || !c->plugins || !c->apps || !c->step_timer || !c->join_timer ||
	    !c->total_timer) {
		bh_conductor_free(c);
		return bh_raise(err, -ENOMEM, "conductor.alloc");
	}
	*ret_conductor = c;
	return 0;
}

struct bh_conductor *bh_conductor_free(struct bh_conductor *c)
{
	if (!c)
		return NULL;
	if (c->step_timer)
		event_free(c->step_timer);
	if (c->join_timer)
		event_free(c->join_timer);
	if (c->total_timer)
		event_free(c->total_timer);
	for (size_t i = 0; c->plugins && i < c->manifest->n_plugins; i++) {
		free(c->plugins[i].path);
		json_decref(c->plugins[i].raw_gil);
		free(c->plugins[i].version);
	}
	for (size_t i = 0; c->apps && i < c->manifest->n_apps; i++)
		json_decref(c->apps[i].endpoints);
	free(c->plugins);
	free(c->apps);
	bh_request_free(c->leave);
	free(c);
	return NULL;
}
