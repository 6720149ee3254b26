/* SPDX-License-Identifier: BSD-3-Clause */
/* conductor - the state machine that runs start and stop (docs/architecture.md has its diagram).
 *
 * Thread: the control loop only. GIL: never. Owns: its phase, the requests in flight, the pools it
 * has taken from the registry, the exit status. Nothing here blocks: it posts, sets timers, and is
 * called back. Keeps: PLG-4, PLG-7, CP-2, EXIT-4. */
#ifndef BH_HOST_CONTROL_CONDUCTOR_H
#define BH_HOST_CONTROL_CONDUCTOR_H

#include <event2/event.h>
#include <jansson.h>

#include "host/control/control.h"

struct bh_conductor;

struct bh_conductor_config {
	const struct bh_control_config *control; /* borrowed */
	struct event_base *base;
	struct bh_postbox *replies; /* the loop's */
	/* The end: nothing is left to conduct; leave the loop. */
	void (*finished)(void *arg);
	/* The process is about to be ended by _exit: remove what must not stay (the socket). */
	void (*last_rites)(void *arg);
	/* As bh_control_tell_apps(). */
	void (*tell_apps)(json_t *event, void *arg);
	void *arg;
};

bh_status bh_conductor_new(const struct bh_conductor_config *config,
			   struct bh_conductor **ret_conductor, struct bh_error *err) BH_MUST_CHECK;
struct bh_conductor *bh_conductor_free(struct bh_conductor *conductor);

void bh_conductor_milestone(struct bh_conductor *conductor, enum bh_milestone milestone,
			    const struct bh_error *cause);
void bh_conductor_pool_event(struct bh_conductor *conductor, struct bh_pool *pool,
			     enum bh_pool_state state);
/* `cause` with status 0: as it should be. The same as before is no change. */
void bh_conductor_plugin_health(struct bh_conductor *conductor, size_t index,
				const struct bh_error *cause);
void bh_conductor_exit_asked(struct bh_conductor *conductor, int status, const char *app);
/* Begins the orderly stop; `why` is logged ("SIGTERM", "POST /v1/stop"). `hurry`: every drain
 * deadline is now (a second signal). Returns false when it was under way already (and hurries it if
 * asked to). */
bool bh_conductor_stop(struct bh_conductor *conductor, const char *why, bool hurry);

/* exit() was called: its hook takes the pools down. From now on nothing is started, stopped or
 * concluded here; a while after `until` the process is ended by _exit(70). */
void bh_conductor_stand_back(struct bh_conductor *conductor, struct bh_deadline until);

bool bh_conductor_is_ready(const struct bh_conductor *conductor);
bool bh_conductor_is_stopping(const struct bh_conductor *conductor);
/* The start is over: everything is up, or a stop has begun. */
bool bh_conductor_has_started(const struct bh_conductor *conductor);
/* Main takes requests: it has begun, and has not been asked to leave. */
bool bh_conductor_main_serves(const struct bh_conductor *conductor);
/* GET /readyz's reasons: one line each, in a new JSON array. */
json_t *bh_conductor_unready_reasons(const struct bh_conductor *conductor);
/* GET /v1/status without what the loop adds (pid, uptime_s, version, name). */
json_t *bh_conductor_render(const struct bh_conductor *conductor);
/* GET /v1/plugins. */
json_t *bh_conductor_render_plugins(const struct bh_conductor *conductor);
/* GET /v1/apps: each app with its endpoints, as its load has told them. */
json_t *bh_conductor_render_apps(const struct bh_conductor *conductor);
int bh_conductor_exit_status(const struct bh_conductor *conductor);

/* POST /v1/apps/{app}/{endpoint}. Takes `request` (APP_CALL, app, endpoint, body, done set) and
 * posts it to main. Returns 0 when it was posted; else an HTTP status (404 no such app, 503 not
 * ready or stopping) with `err` set, and the request stays the caller's. */
int bh_conductor_call(struct bh_conductor *conductor, struct bh_request *request,
		      struct bh_error *err) BH_MUST_CHECK;

#endif
