/* SPDX-License-Identifier: BSD-3-Clause */
/* clients - how many may be connected, and how long each may take: what evhttp does not bound.
 *
 * evhttp cuts who is silent, but not who sends a byte now and then, and it accepts without limit;
 * out of descriptors it spins. It tells neither of an accepted nor of a closed connection: the
 * first is learnt from its call for a bufferevent, the second by looking whether the descriptor is
 * still the same socket.
 *
 * Thread: new on any one, the rest on the loop. Owns: its table. Borrows: base, http, listener. */
#ifndef BH_HOST_CONTROL_CLIENTS_H
#define BH_HOST_CONTROL_CLIENTS_H

#include "host/core/error.h"

struct bh_clients;
struct event_base;
struct evconnlistener;
struct evhttp;

enum bh_client_phase {
	BH_CLIENT_READING, /* between requests, or sending one: bounded */
	BH_CLIENT_BUSY,	   /* its request is being worked on: takes as long as it takes */
	BH_CLIENT_WRITING, /* reads its reply: bounded */
};

struct bh_clients_config {
	struct event_base *base;
	struct evhttp *http;
	struct evconnlistener *listener;
	uint32_t max;	      /* connections; one more is told 503 and closed */
	uint64_t patience_ns; /* for a whole request, or for a whole reply to be read */
};

bh_status bh_clients_new(const struct bh_clients_config *config, struct bh_clients **ret_clients,
			 struct bh_error *err) BH_MUST_CHECK;
/* Before the http and the listener are freed. */
struct bh_clients *bh_clients_free(struct bh_clients *clients);

/* Where the connection on `fd` is now; its patience begins anew. */
void bh_clients_enter(struct bh_clients *clients, int fd, enum bh_client_phase phase);
/* Cuts who takes too long. To be called every second or so. */
void bh_clients_sweep(struct bh_clients *clients);
/* How many connections are in that phase. */
uint32_t bh_clients_count(struct bh_clients *clients, enum bh_client_phase phase);

#endif
