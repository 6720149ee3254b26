/* SPDX-License-Identifier: BSD-3-Clause */
/* admin - HTTP and JSON on the admin socket: health, status, views, calls of endpoints, stop.
 *
 * docs/admin-api.md is the contract with clients. Nothing here blocks or needs the GIL: what it
 * shows it gets from the conductor and from views, what it asks of main it posts (CP-1).
 *
 * Thread: new on any one, the rest on the loop. Owns: its connections and the calls under way.
 * Borrows: everything in its configuration. */
#ifndef BH_HOST_CONTROL_ADMIN_H
#define BH_HOST_CONTROL_ADMIN_H

#include "host/control/conductor.h"
#include "host/control/listener.h"

struct bh_admin;

struct bh_admin_limits {
	uint32_t header_bytes, body_bytes;
	uint32_t idle_s;     /* a silent client, unless it waits for its call */
	uint32_t patience_s; /* a whole request, or a whole reply being read */
	uint32_t connections;
};

#define BH_ADMIN_LIMITS                                                                            \
	((struct bh_admin_limits){ .header_bytes = 16 << 10,                                       \
				   .body_bytes = 16 << 20,                                         \
				   .idle_s = 10,                                                   \
				   .patience_s = 30,                                               \
				   .connections = 256 })

struct bh_admin_config {
	struct event_base *base;
	struct bh_listener *listener;
	struct bh_conductor *conductor;
	const struct bh_views *views;
	const struct bh_metrics *metrics;
	struct bh_postbox *replies; /* the loop's */
	struct bh_postbox *main;    /* main's, to be told of calls that are given up */
	const char *name, *version; /* of the host, for GET /v1/status */
	struct bh_admin_limits limits;
};

bh_status bh_admin_new(const struct bh_admin_config *config, struct bh_admin **ret_admin,
		       struct bh_error *err) BH_MUST_CHECK;
/* Closes every connection. A call under way is given up; its reply, should it come, is dropped. */
struct bh_admin *bh_admin_free(struct bh_admin *admin);

/* Every second or so: cuts clients that take too long. */
void bh_admin_tick(struct bh_admin *admin);
/* A reply is still being written to somebody. */
bool bh_admin_is_writing(struct bh_admin *admin);

#endif
