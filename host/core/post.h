/* SPDX-License-Identifier: BSD-3-Clause */
/* post - requests from one thread to another, and their replies: how the control loop and main
 * talk.
 *
 * A postbox belongs to one receiving thread, which watches its fd. Any thread posts; posting never
 * blocks and never allocates, so it works with locks or the GIL held. Messages are intrusive and
 * keep their order. */
#ifndef BH_HOST_CORE_POST_H
#define BH_HOST_CORE_POST_H

#include <stdatomic.h>

#include "host/core/error.h"

struct bh_pool;

struct bh_message {
	struct bh_message *next;
	void (*deliver)(
		struct bh_message *message); /* on the receiver; owns the message from here on */
};

struct bh_postbox {
	_Atomic(struct bh_message *)
		head;		 /* A: release push, acquire take: a stack that take() reverses */
	int fd;			 /* I: eventfd, readable while there may be messages */
	struct bh_message *kept; /* T: the receiver's: taken, and more than it asked for */
};

/* Makes an eventfd readable. Never blocks: its owner has made it so. Any thread. */
void bh_wake_fd(int fd);

bh_status bh_postbox_init(struct bh_postbox *box, struct bh_error *err) BH_MUST_CHECK;
void bh_postbox_fini(struct bh_postbox *box);
void bh_postbox_post(struct bh_postbox *box, struct bh_message *message);
/* All messages there are, oldest first, NULL for none; clears the fd. Receiver only. */
struct bh_message *bh_postbox_take(struct bh_postbox *box);
/* The `n` oldest, or all there are; the fd stays readable while there are more. Receiver only. */
struct bh_message *bh_postbox_take_some(struct bh_postbox *box, uint32_t n);
/* Receiver only. */
bool bh_postbox_is_empty(const struct bh_postbox *box);
/* take() and deliver() each. */
void bh_postbox_deliver(struct bh_postbox *box);

/* ---- requests to main -------------------------------------------------------------------------
 */

enum bh_request_kind {
	BH_REQUEST_PLUGIN_LOAD, /* note, dlopen, validate plugin `index` of the manifest */
	BH_REQUEST_APP_LOAD,	/* import and construct app `index` */
	BH_REQUEST_APP_START,	/* await its start() */
	BH_REQUEST_APP_STOP,	/* await its stop() */
	BH_REQUEST_APP_CALL,	/* run an endpoint */
	BH_REQUEST_SUPERVISE,	/* tell the apps of the event in `body` (JSON); no index */
	BH_REQUEST_GIVE_UP,	/* cancel what runs for requests that are given up; no index */
	BH_REQUEST_LEAVE,	/* leave the asyncio loop; no request follows */
};

/* Made by the control loop, carried out on main, comes back to the control loop. Exactly one reply.
 */
struct bh_request {
	struct bh_message message;
	enum bh_request_kind kind;
	uint32_t index; /* plugin or app, in manifest order */
	char *endpoint; /* APP_CALL: "app/endpoint" split: app name and endpoint name … */
	char *app;	/* … owned, NUL-terminated */
	char *body;	/* APP_CALL: as `content_type` says; SUPERVISE: JSON text; owned */
	size_t body_len;
	char *content_type, *accept, *query; /* APP_CALL: as the client sent them, or NULL; owned */
	/* A: relaxed; the asker no longer cares (client gone, deadline): main cancels what runs for
	 * it when it next sees a BH_REQUEST_GIVE_UP. */
	_Atomic bool given_up;
	/* the reply */
	bh_status status;
	struct bh_error error;
	struct bh_pool *pool; /* PLUGIN_LOAD: made and registered, not started; borrowed */
	int http_status;      /* APP_CALL */
	/* APP_CALL, PLUGIN_LOAD {"path","version"}, APP_LOAD [endpoint, …]: JSON text; owned */
	char *reply;
	size_t reply_len;
	bool reply_is_octets; /* APP_CALL: no JSON, but bytes as they are */
	/* control loop: takes the request over and frees it */
	void (*done)(struct bh_request *request);
	void *done_arg;
	struct bh_postbox *reply_to;
};

/* message.deliver stays NULL: main takes requests, bh_request_reply() sets it for the way back. */
struct bh_request *bh_request_new(enum bh_request_kind kind, struct bh_postbox *reply_to,
				  void (*done)(struct bh_request *), void *done_arg);
struct bh_request *bh_request_free(struct bh_request *request);
/* Main: the reply fields are set; `done` will run on the control loop. */
void bh_request_reply(struct bh_request *request);

#endif
