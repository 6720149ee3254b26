/* SPDX-License-Identifier: BSD-3-Clause */
/* control - the native event loop's thread ("bh-control"): conductor, admin API, health, signals.
 *
 * Thread: start and join on main, the rest on the loop. GIL: never (CP-1). Nothing that can block
 * runs on the loop; supervisors and main report through its postbox. */
#ifndef BH_HOST_CONTROL_CONTROL_H
#define BH_HOST_CONTROL_CONTROL_H

#include <stdatomic.h>

#include "host/core/clock.h"
#include "host/core/exit.h"
#include "host/core/metrics.h"
#include "host/core/post.h"
#include "host/core/view.h"
#include "host/manifest/config.h"

struct bh_control;

/* A plugin that is not loaded, or was skipped, is neither of the two. */
enum bh_plugin_health { BH_PLUGIN_NOT_UP = 0, BH_PLUGIN_HEALTHY, BH_PLUGIN_UNHEALTHY };

/* What main.c gives to the loop: everything of the other modules that it may use. */
struct bh_control_config {
	const struct bh_config *config; /* borrowed */
	const char *socket_path;
	const char *version;
	struct bh_views *views;		   /* borrowed */
	const struct bh_metrics *metrics;  /* borrowed; NULL: none */
	struct bh_exit_registry *registry; /* borrowed: pools in load order */
	struct bh_postbox *main;	   /* main's inbox */
	void (*interrupt_main)(void);	   /* any thread */
	/* A: relaxed; written once by the conductor when a stop begins: when the process must be
	 * gone, monotonic; UINT64_MAX before. Owned by main.c. */
	_Atomic uint64_t *stop_deadline_ns;
	/* Adds to a plugin's row of GET /v1/plugins what it tells of itself: a JSON object, NULL for
	 * none. Control loop. May be NULL. */
	json_t *(*render_plugin)(size_t index, void *arg);
	void *arg;
	/* A: relaxed; one for each plugin of the manifest, an enum bh_plugin_health written by the
	 * conductor. Owned by main.c; may be NULL. */
	_Atomic int *plugin_health;
};

bh_status bh_control_start(const struct bh_control_config *config, struct bh_control **ret_control,
			   struct bh_error *err) BH_MUST_CHECK;
/* The loop's own postbox, for replies. */
struct bh_postbox *bh_control_postbox(struct bh_control *control);

/* Reports to the conductor; any thread, never block, never fail. */
enum bh_milestone {
	BH_MILESTONE_PYTHON_UP,	    /* main serves requests */
	BH_MILESTONE_PYTHON_FAILED, /* with a cause: status 78 */
	BH_MILESTONE_LOOP_FAILED,   /* with a cause; main refuses requests until LEAVE: status 70 */
	BH_MILESTONE_LEFT_LOOP,
	BH_MILESTONE_PYTHON_ENDED, /* atexit functions have run */
	BH_MILESTONE_GATE_CLOSED,
	BH_MILESTONE_GATE_STUCK, /* with a cause: finalization is skipped, status 70 */
	BH_MILESTONE_FINALIZED,	 /* with a cause when it reported an error */
};
void bh_control_report(struct bh_control *control, enum bh_milestone milestone,
		       const struct bh_error *cause);
void bh_control_pool_announce(struct bh_control *control, struct bh_pool *pool,
			      enum bh_pool_state state);
/* Plugin `index` of the manifest says how it is: `cause` (status 0: as it should be). Changes are told
 * in their order; the conductor ignores those of a pool that has ended. */
void bh_control_plugin_health(struct bh_control *control, size_t index,
			      const struct bh_error *cause);
/* Has the apps' supervise() told of `event` ({"kind": …}, see docs/python-api.md), whose reference
 * passes over; NULL is nothing. Events keep their order; those that come when main has left its loop
 * are dropped. Any thread, never blocks. */
void bh_control_tell_apps(struct bh_control *control, json_t *event);
/* The start is over: everything is up, or a stop has begun. Any thread. */
bool bh_control_has_started(const struct bh_control *control);
void bh_control_exit_asked(struct bh_control *control, int status, const char *app);

/* exit() was called: its hook takes the pools down (EXIT-3) and the conductor stands back. Any
 * thread, never blocks. If the process is still there a moment after `until`, it is ended (70). */
void bh_control_stand_back(struct bh_control *control, struct bh_deadline until);
/* The socket is removed when this returns, or `until` has passed. Any thread. */
void bh_control_last_rites(struct bh_control *control, struct bh_deadline until);

/* Main, last: the loop ends (socket removed) once FINALIZED or a failure was reported; returns the
 * exit status. The handle is gone with it, unless that is 70: a pool that was given up may still
 * report. */
int bh_control_join(struct bh_control *control);

#endif
