/* SPDX-License-Identifier: BSD-3-Clause */
/* control - see control.h. Owns the loop and everything on it; the conductor decides, this carries.
 *
 * Reports from other threads travel as messages in nodes that are made in advance, so that a report
 * can neither block nor fail nor be lost. */
#include "config.h"

#include "host/control/control.h"

#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "host/control/admin.h"
#include "host/control/conductor.h"
#include "host/control/health.h"
#include "host/control/listener.h"
#include "host/control/signals.h"
#include "host/core/identity.h"
#include "host/core/log.h"
#include "host/core/sync.h"

#define COMPONENT "control"
#define NICE -5 /* with busy workers on every CPU health answers sooner (CP-1) */
#define TICK_MS 1000
#define FAREWELL_MS 250 /* to hand out replies that are written when the end comes */
#define FAREWELL_STEP_MS 10
#define TELLINGS_MAX 256 /* events for the apps that main has not answered yet */
#define SPARE_REPORTS 16 /* milestones and exits; pool events have places of their own */

enum report_kind {
	REPORT_MILESTONE,
	REPORT_POOL,
	REPORT_EXIT,
	REPORT_STAND_BACK,
	REPORT_LAST_RITES,
};

struct report {
	struct bh_message message;
	struct bh_control *control; /* I */
	atomic_bool in_use;	    /* A: acquire to fill, release when delivered */
	bool extra;		    /* I: made when no node was free; freed when delivered */
	enum report_kind kind;
	enum bh_milestone milestone;
	struct bh_error cause; /* milestone; status 0: none */
	struct bh_pool *pool;
	enum bh_pool_state state;
	int status;		  /* exit */
	char app[64];		  /* exit; may be cut, it is for the log */
	struct bh_deadline until; /* stand back */
};

/* One plugin's way to the loop: one message, which is under way while there is something to take. */
struct health {
	struct bh_message message;
	struct bh_control *control; /* I */
	size_t index;		    /* I */
	struct bh_health_box box;
	atomic_bool posted; /* A: acq_rel: who sees it set has pushed before it is taken */
};

struct bh_control {
	struct bh_control_config config; /* I */
	struct bh_postbox box;		 /* any posts, the loop takes */
	struct report *reports;		 /* I: the array; any thread claims a node in it */
	size_t n_reports;		 /* I */
	struct health *health;		 /* I: the array; one for each plugin of the manifest */
	pthread_t thread;		 /* I: after start */
	/* T: the loop, once it runs; start makes them before, join finds them freed. */
	struct event_base *base;
	struct event *box_event, *signal_event, *tick;
	struct bh_listener *listener;
	struct bh_conductor *conductor;
	struct bh_admin *admin;
	_Atomic bool started;	     /* A: relaxed; written by the loop, for good */
	_Atomic uint32_t n_tellings; /* A: relaxed; on their way, or with main */
	_Atomic bool tellings_lost;  /* A: relaxed; that was said, until there is room again */
	uint32_t n_signals;	     /* SIGTERM and SIGINT so far */
	int status;		     /* the process's exit status, when over */
	struct bh_mutex lock;	     /* guards the M field; a leaf */
	struct bh_cond changed;
	bool socket_gone; /* M */
};

/* ---- reports --------------------------------------------------------------------------------- */

static void socket_is_gone(struct bh_control *control)
{
	bh_mutex_lock(&control->lock);
	control->socket_gone = true;
	bh_cond_broadcast(&control->changed);
	bh_mutex_unlock(&control->lock);
}

/* The process ends soon: nobody who comes now would be answered. */
static void last_rites(void *arg)
{
	struct bh_control *control = arg;

	control->listener = bh_listener_close(control->listener);
	socket_is_gone(control);
}

static void report_act(struct bh_conductor *conductor, const struct report *report)
{
	switch (report->kind) {
	case REPORT_MILESTONE:
		bh_conductor_milestone(conductor, report->milestone,
				       bh_error_is_set(&report->cause) ? &report->cause : NULL);
		break;
	case REPORT_POOL:
		bh_conductor_pool_event(conductor, report->pool, report->state);
		break;
	case REPORT_EXIT:
		bh_conductor_exit_asked(conductor, report->status, report->app);
		break;
	case REPORT_STAND_BACK:
		bh_conductor_stand_back(conductor, report->until);
		break;
	case REPORT_LAST_RITES:
		last_rites(report->control);
		break;
	}
}

static void report_deliver(struct bh_message *message)
{
	struct report *report = bh_container_of(message, struct report, message);
	struct bh_conductor *conductor = report->control->conductor;

	if (conductor) /* else the loop has ended, and with it what there was to conduct */
		report_act(conductor, report);
	if (report->extra)
		free(report);
	else
		atomic_store_explicit(&report->in_use, false, memory_order_release);
}

/* There is a node for each state of each pool of the manifest, and some to spare; more can be under
 * way only when a loop that hangs lets one sender report again and again. Then memory is asked for,
 * and its lack ends the process: a report that is lost would leave the host waiting for ever. */
static struct report *report_claim(struct bh_control *control, enum report_kind kind)
{
	struct report *report = NULL;

	for (size_t i = 0; i < control->n_reports && !report; i++) {
		bool expected = false;

		if (atomic_compare_exchange_strong_explicit(&control->reports[i].in_use, &expected,
							    true, memory_order_acquire,
							    memory_order_relaxed))
			report = &control->reports[i];
	}
	if (!report) {
		report = calloc(1, sizeof(*report));
		if (!report) {
			bh_log(BH_LOG_ERROR, COMPONENT,
			       "no memory for a report to the control loop");
			abort();
		}
		report->control = control;
		report->extra = true;
	}
	report->message.deliver = report_deliver;
	report->kind = kind;
	return report;
}

void bh_control_report(struct bh_control *control, enum bh_milestone milestone,
		       const struct bh_error *cause)
{
	struct report *report = report_claim(control, REPORT_MILESTONE);

	report->milestone = milestone;
	if (cause)
		report->cause = *cause;
	else
		bh_error_clear(&report->cause);
	bh_postbox_post(&control->box, &report->message);
}

void bh_control_pool_announce(struct bh_control *control, struct bh_pool *pool,
			      enum bh_pool_state state)
{
	struct report *report = report_claim(control, REPORT_POOL);

	report->pool = pool;
	report->state = state;
	bh_postbox_post(&control->box, &report->message);
}

/* Without a conductor the loop has ended: they are only freed. */
static void health_deliver(struct bh_message *message)
{
	struct health *health = bh_container_of(message, struct health, message);
	struct bh_conductor *conductor = health->control->conductor;
	struct bh_health_change *change;

	atomic_exchange_explicit(&health->posted, false, memory_order_acq_rel);
	change = bh_health_take(&health->box);
	while (change) {
		struct bh_health_change *next = change->next;

		if (conductor)
			bh_conductor_plugin_health(conductor, health->index, &change->cause);
		free(change);
		change = next;
	}
}

void bh_control_plugin_health(struct bh_control *control, size_t index,
			      const struct bh_error *cause)
{
	struct health *health = &control->health[index];
	const char *label = control->config.config->plugins[index].label;

	switch (bh_health_push(&health->box, cause)) {
	case BH_HEALTH_NO_MEMORY:
		bh_log(BH_LOG_ERROR, COMPONENT, "no memory for what a plugin reports of its health",
		       BH_STR("plugin", label));
		return;
	case BH_HEALTH_FORGOT:
		bh_log(BH_LOG_WARNING, COMPONENT,
		       "a plugin's health changes faster than it is read: only the last one counts",
		       BH_STR("plugin", label));
		break;
	case BH_HEALTH_KEPT:
		break;
	}
	if (atomic_exchange_explicit(&health->posted, true, memory_order_acq_rel))
		return;
	health->message.deliver = health_deliver;
	bh_postbox_post(&control->box, &health->message);
}

/* Main's answer, or that it is not told after all. Control loop, or its last owner. */
static void tell_done(struct bh_request *request)
{
	struct bh_control *control = request->done_arg;

	atomic_fetch_sub_explicit(&control->n_tellings, 1, memory_order_relaxed);
	atomic_store_explicit(&control->tellings_lost, false, memory_order_relaxed);
	bh_request_free(request);
}

/* On the loop, since only the conductor knows whether main still takes requests: none may follow
 * the one to leave. */
static void tell_deliver(struct bh_message *message)
{
	struct bh_request *request = bh_container_of(message, struct bh_request, message);
	struct bh_control *control = request->done_arg;

	if (!control->conductor || !bh_conductor_main_serves(control->conductor)) {
		tell_done(request);
		return;
	}
	message->deliver = NULL;
	bh_postbox_post(control->config.main, message);
}

/* Of what does not fit, or finds no memory, the first is logged. */
static void tell_lost(struct bh_control *control, const char *why)
{
	if (!atomic_exchange_explicit(&control->tellings_lost, true, memory_order_relaxed))
		bh_log(BH_LOG_WARNING, COMPONENT,
		       "an event is not told to the apps, nor those behind it",
		       BH_STR("reason", why),
		       BH_INT("unanswered",
			      atomic_load_explicit(&control->n_tellings, memory_order_relaxed)));
}

void bh_control_tell_apps(struct bh_control *control, json_t *event)
{
	struct bh_request *request = NULL;
	char *body;

	if (!event)
		return;
	if (control->config.config->n_apps == 0) {
		json_decref(event);
		return;
	}
	body = json_dumps(event, JSON_COMPACT);
	json_decref(event);
	if (body)
		request = bh_request_new(BH_REQUEST_SUPERVISE, &control->box, tell_done, control);
	if (!request) {
		free(body);
		tell_lost(control, "no memory");
		return;
	}
	request->body = body;
	request->body_len = strlen(body);
	if (atomic_fetch_add_explicit(&control->n_tellings, 1, memory_order_relaxed) >=
	    TELLINGS_MAX) {
		atomic_fetch_sub_explicit(&control->n_tellings, 1, memory_order_relaxed);
		bh_request_free(request);
		tell_lost(control, "main does not answer");
		return;
	}
	request->message.deliver = tell_deliver;
	bh_postbox_post(&control->box, &request->message);
}

void bh_control_exit_asked(struct bh_control *control, int status, const char *app)
{
	struct report *report = report_claim(control, REPORT_EXIT);

	report->status = status;
	snprintf(report->app, sizeof(report->app), "%s", app ? app : "?");
	bh_postbox_post(&control->box, &report->message);
}

void bh_control_stand_back(struct bh_control *control, struct bh_deadline until)
{
	struct report *report = report_claim(control, REPORT_STAND_BACK);

	report->until = until;
	bh_postbox_post(&control->box, &report->message);
}

void bh_control_last_rites(struct bh_control *control, struct bh_deadline until)
{
	bool in_time = true;

	if (pthread_equal(control->thread, pthread_self())) {
		last_rites(control);
		return;
	}
	bh_postbox_post(&control->box, &report_claim(control, REPORT_LAST_RITES)->message);
	bh_mutex_lock(&control->lock);
	while (!control->socket_gone && in_time)
		in_time = bh_cond_wait(&control->changed, &control->lock, until);
	bh_mutex_unlock(&control->lock);
}

bool bh_control_has_started(const struct bh_control *control)
{
	return atomic_load_explicit(&control->started, memory_order_relaxed);
}

struct bh_postbox *bh_control_postbox(struct bh_control *control)
{
	return &control->box;
}

/* ---- events of the loop ---------------------------------------------------------------------- */

static void arm_tick(struct bh_control *control, unsigned ms)
{
	const struct timeval tv = { ms / 1000, (suseconds_t)(ms % 1000) * 1000 };

	/* Its memory was allotted with the first one; a timer that is pending is moved. */
	event_add(control->tick, &tv);
}

static void on_box(evutil_socket_t fd, short what, void *arg)
{
	struct bh_control *control = arg;

	(void)fd;
	(void)what;
	bh_postbox_deliver(&control->box);
	if (bh_conductor_has_started(control->conductor))
		atomic_store_explicit(&control->started, true, memory_order_relaxed);
}

/* The first one stops the host; each further one means "faster". A stop that was asked for in
 * another way is not hurried by the first signal, which service managers send in any case. */
static void on_signal(evutil_socket_t fd, short what, void *arg)
{
	struct bh_control *control = arg;
	struct bh_signal_counts counts;
	const char *why;
	uint32_t before = control->n_signals;

	(void)fd;
	(void)what;
	bh_signals_take(&counts);
	if (counts.hangup)
		bh_log(BH_LOG_WARNING, COMPONENT,
		       "SIGHUP: the manifest is read at the start only; nothing is reloaded",
		       BH_INT("signals", counts.hangup));
	control->n_signals += counts.term + counts.interrupt;
	if (control->n_signals == before)
		return;
	why = counts.term ? "SIGTERM" : "SIGINT";
	if (before == 0)
		bh_conductor_stop(control->conductor, why, false);
	if (control->n_signals > 1)
		bh_conductor_stop(control->conductor, why, true);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct bh_control *control = arg;

	(void)fd;
	(void)what;
	arm_tick(control, TICK_MS);
	bh_signals_check();
	bh_admin_tick(control->admin);
}

static void finished(void *arg)
{
	struct bh_control *control = arg;

	control->status = bh_conductor_exit_status(control->conductor);
	bh_listener_unlink(control->listener);
	event_base_loopbreak(control->base);
}

/* libevent's own complaints; it has one callback for the process. */
static void on_libevent_log(int severity, const char *message)
{
	static const enum bh_log_level levels[] = {
		[EVENT_LOG_DEBUG] = BH_LOG_DEBUG,
		[EVENT_LOG_MSG] = BH_LOG_INFO,
		[EVENT_LOG_WARN] = BH_LOG_WARNING,
		[EVENT_LOG_ERR] = BH_LOG_ERROR,
	};

	bh_log_write(severity >= 0 && severity <= EVENT_LOG_ERR ? levels[severity] : BH_LOG_ERROR,
		     "libevent", message, NULL, 0);
}

/* Its default, exit(1), would run the libraries' handlers under running workers (EXIT-2). */
static void on_libevent_fatal(int number)
{
	bh_log(BH_LOG_ERROR, COMPONENT, "libevent gave up", BH_INT("code", number));
	abort();
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void free_loop(struct bh_control *control)
{
	control->admin = bh_admin_free(control->admin);
	control->conductor = bh_conductor_free(control->conductor);
	control->listener = bh_listener_close(control->listener);
	if (control->box_event)
		event_free(control->box_event);
	if (control->signal_event)
		event_free(control->signal_event);
	if (control->tick)
		event_free(control->tick);
	if (control->base)
		event_base_free(control->base);
	control->box_event = control->signal_event = control->tick = NULL;
	control->base = NULL;
}

/* Replies that have been given when the end comes still reach their clients, if these read them. */
static void say_farewell(struct bh_control *control)
{
	struct bh_deadline until = bh_deadline_after(FAREWELL_MS * BH_NS_PER_MS);

	while (bh_admin_is_writing(control->admin) && !bh_deadline_passed(until)) {
		arm_tick(control, FAREWELL_STEP_MS); /* so that one turn of the loop ends */
		event_base_loop(control->base, EVLOOP_ONCE);
	}
}

static void *run(void *arg)
{
	struct bh_control *control = arg;
	struct bh_error err = { 0 };

	if (bh_identity_tag_control("native", &err) < 0)
		bh_log_error(BH_LOG_ERROR, COMPONENT, "cannot tag the control thread", &err);
	/* On Linux of this thread alone. Where it is not allowed the loop is as nice as others. */
	setpriority(PRIO_PROCESS, 0, NICE);
	arm_tick(control, TICK_MS);
	if (event_base_dispatch(control->base) < 0)
		on_libevent_fatal(errno); /* it could not wait: nothing can be conducted any more */
	bh_postbox_deliver(&control->box); /* replies that came together with the end */
	say_farewell(control);
	free_loop(control);
	socket_is_gone(control);
	return NULL;
}

/* ---- start and join -------------------------------------------------------------------------- */

static bh_status make_base(struct event_base **ret_base, struct bh_error *err)
{
	/* One thread uses it, so no locks; the environment must not choose how it waits. */
	const int flags = EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_IGNORE_ENV;
	struct event_config *config = event_config_new();
	struct event_base *base = NULL;

	if (config && event_config_set_flag(config, flags) == 0)
		base = event_base_new_with_config(config);
	if (config)
		event_config_free(config);
	if (!base)
		return bh_raise(err, -ENOMEM, "control.loop",
				BH_STR("reason", "libevent made none"));
	*ret_base = base;
	return 0;
}

static bh_status make_events(struct bh_control *control, struct bh_error *err)
{
	control->box_event =
		event_new(control->base, control->box.fd, EV_READ | EV_PERSIST, on_box, control);
	control->tick = evtimer_new(control->base, on_tick, control);
	if (!control->box_event || !control->tick || event_add(control->box_event, NULL) < 0)
		return bh_raise(err, -ENOMEM, "control.loop");
	if (bh_signals_fd() < 0)
		return 0; /* a process whose signals are another's, such as a test */
	control->signal_event =
		event_new(control->base, bh_signals_fd(), EV_READ | EV_PERSIST, on_signal, control);
	if (!control->signal_event || event_add(control->signal_event, NULL) < 0)
		return bh_raise(err, -ENOMEM, "control.loop");
	return 0;
}

static void tell_apps(json_t *event, void *arg)
{
	bh_control_tell_apps(arg, event);
}

static bh_status make_conductor(struct bh_control *control, struct bh_error *err)
{
	const struct bh_conductor_config config = {
		.control = &control->config,
		.base = control->base,
		.replies = &control->box,
		.finished = finished,
		.last_rites = last_rites,
		.tell_apps = tell_apps,
		.arg = control,
	};

	return bh_conductor_new(&config, &control->conductor, err);
}

static bh_status make_admin(struct bh_control *control, struct bh_error *err)
{
	const struct bh_admin_config config = {
		.base = control->base,
		.listener = control->listener,
		.conductor = control->conductor,
		.views = control->config.views,
		.metrics = control->config.metrics,
		.replies = &control->box,
		.main = control->config.main,
		.name = control->config.config->name,
		.version = control->config.version,
		.limits = BH_ADMIN_LIMITS,
	};

	return bh_admin_new(&config, &control->admin, err);
}

static bh_status make_loop(struct bh_control *control, struct bh_error *err)
{
	bh_status st;

	st = bh_listener_open(control->config.socket_path, control->config.config->socket_mode,
			      &control->listener, err);
	if (st < 0)
		return st;
	st = make_base(&control->base, err);
	if (st < 0)
		return st;
	st = make_events(control, err);
	if (st < 0)
		return st;
	st = make_conductor(control, err);
	if (st < 0)
		return st;
	return make_admin(control, err);
}

static bh_status control_new(const struct bh_control_config *config,
			     struct bh_control **ret_control, struct bh_error *err)
{
	struct bh_control *control = calloc(1, sizeof(*control));
	bh_status st;

	if (!control)
		return bh_raise(err, -ENOMEM, "control.alloc");
	control->config = *config;
	bh_mutex_init(&control->lock);
	bh_cond_init(&control->changed);
	control->n_reports = config->config->n_plugins * BH_POOL_STATES + SPARE_REPORTS;
	control->reports = calloc(control->n_reports, sizeof(*control->reports));
	control->health = calloc(config->config->n_plugins + 1, sizeof(*control->health));
	if (!control->reports || !control->health) {
		free(control->reports);
		free(control->health);
		free(control);
		return bh_raise(err, -ENOMEM, "control.alloc");
	}
	for (size_t i = 0; i < control->n_reports; i++)
		control->reports[i].control = control;
	for (size_t i = 0; i < config->config->n_plugins; i++) {
		control->health[i].control = control;
		control->health[i].index = i;
	}
	st = bh_postbox_init(&control->box, err);
	if (st < 0) {
		free(control->reports);
		free(control->health);
		free(control);
		return st;
	}
	*ret_control = control;
	return 0;
}

static void control_free(struct bh_control *control)
{
	free_loop(control);
	bh_postbox_deliver(&control->box); /* what came after the end is only freed */
	bh_postbox_fini(&control->box);
	free(control->reports);
	free(control->health);
	bh_cond_fini(&control->changed);
	bh_mutex_fini(&control->lock);
	free(control);
}

bh_status bh_control_start(const struct bh_control_config *config, struct bh_control **ret_control,
			   struct bh_error *err)
{
	struct bh_control *control = NULL;
	bh_status st;

	event_set_log_callback(on_libevent_log);
	event_set_fatal_callback(on_libevent_fatal);
	st = control_new(config, &control, err);
	if (st < 0)
		return st;
	st = make_loop(control, err);
	if (st == 0)
		st = bh_thread_create(&control->thread, "bh-control", run, control, err);
	if (st < 0) {
		control_free(control);
		return st;
	}
	*ret_control = control;
	return 0;
}

int bh_control_join(struct bh_control *control)
{
	int status;

	/* No deadline: the conductor has the one for the whole stop, and ends the process at it
	 * (CP-2); on_libevent_fatal() does when the loop itself fails. A join that fails for
	 * another reason would be our own fault, and the loop would still be using what follows. */
	if (bh_thread_join(control->thread, BH_NEVER, NULL) < 0)
		bh_unreachable();
	status = control->status;
	/* EXIT-4: a pool that was given up may still end, and report it: for the process's last
	 * moments there has to be somewhere to post to. */
	if (status != 70)
		control_free(control);
	return status;
}
