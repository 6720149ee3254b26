/* SPDX-License-Identifier: BSD-3-Clause */
/* clients - see clients.h. */
#include "config.h"

#include "host/control/clients.h"

#include <errno.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "host/core/log.h"

#define COMPONENT "admin"
#define ARRIVALS_MAX 64 /* accepted in one go, then others get their turn */
#define PAUSE_US 50000	/* without accepting, when descriptors have run out */
#define COMPLAIN_EVERY_NS (10 * BH_NS_PER_S)

#define REFUSAL_BODY                                                                               \
	"{\"error\":{\"code\":\"too-many-connections\","                                           \
	"\"message\":\"as many clients as allowed are connected; try again "                       \
	"later\",\"facts\":{}}}\n"

struct client {
	int fd;	     /* -1: a free row */
	ino_t inode; /* tells this socket from a later one on the same descriptor */
	enum bh_client_phase phase;
	uint64_t since_ns;
};

struct bh_clients {
	struct bh_clients_config config;	    /* I */
	struct client *rows;			    /* T: loop; config.max of them */
	struct bufferevent *arrivals[ARRIVALS_MAX]; /* T: loop; referenced until settled */
	unsigned n_arrivals;
	bool throttled;	      /* T: loop; the listener is off until arrivals settle */
	struct event *settle; /* runs right after the listener's callback */
	struct event *resume; /* ends the pause after an accept error */
	uint64_t n_accept_errors, complained_ns; /* T: loop */
};

/* evhttp puts itself where a listener keeps its callbacks' argument, so the error callback cannot
 * be told whose it is. Set on the loop, before it first accepts. */
static _Thread_local struct bh_clients *clients_of_loop;

/* ---- the table ------------------------------------------------------------------------------- */

static struct client *find_row(struct bh_clients *clients, int fd)
{
	for (uint32_t i = 0; i < clients->config.max; i++)
		if (clients->rows[i].fd == fd)
			return &clients->rows[i];
	return NULL;
}

static bool is_gone(const struct client *client)
{
	struct stat st;

	return fstat(client->fd, &st) < 0 || !S_ISSOCK(st.st_mode) || st.st_ino != client->inode;
}

static void forget_gone(struct bh_clients *clients)
{
	for (uint32_t i = 0; i < clients->config.max; i++)
		if (clients->rows[i].fd >= 0 && is_gone(&clients->rows[i]))
			clients->rows[i].fd = -1;
}

/* A row for `fd`: its own old one, whose socket must be gone, or a free one. */
static struct client *take_row(struct bh_clients *clients, int fd)
{
	struct client *row = find_row(clients, fd);

	if (!row)
		row = find_row(clients, -1);
	if (row)
		return row;
	forget_gone(clients);
	return find_row(clients, -1);
}

/* ---- arrivals -------------------------------------------------------------------------------- */

/* Runs before evhttp has read anything, so that what is refused is not carried out. */
static void refuse(struct bufferevent *bev, int fd)
{
	static const char reply[] = "HTTP/1.1 503 Service Unavailable\r\n"
				    "Content-Type: application/json\r\n"
				    "Connection: close\r\n\r\n" REFUSAL_BODY;

	/* Its send buffer is empty, so this fits; a client that is gone does not care. */
	if (send(fd, reply, sizeof(reply) - 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		bh_log(BH_LOG_DEBUG, COMPONENT, "cannot tell a client that it is refused",
		       BH_STR("reason", strerror(errno)));
	bufferevent_disable(bev, EV_READ);
	bufferevent_trigger_event(bev, BEV_EVENT_READING | BEV_EVENT_EOF, 0); /* evhttp closes it */
}

static void settle_one(struct bh_clients *clients, struct bufferevent *bev)
{
	int fd = bufferevent_getfd(bev);
	struct client *row;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode))
		return; /* evhttp had no memory for it and has closed it */
	row = take_row(clients, fd);
	if (!row) {
		refuse(bev, fd);
		return;
	}
	*row = (struct client){
		.fd = fd, .inode = st.st_ino, .phase = BH_CLIENT_READING, .since_ns = bh_now_ns()
	};
}

static void on_settle(evutil_socket_t fd, short what, void *arg)
{
	struct bh_clients *clients = arg;

	(void)fd;
	(void)what;
	clients_of_loop = clients;
	for (unsigned i = 0; i < clients->n_arrivals; i++) {
		settle_one(clients, clients->arrivals[i]);
		bufferevent_decref(clients->arrivals[i]);
	}
	clients->n_arrivals = 0;
	if (clients->throttled) {
		clients->throttled = false;
		evconnlistener_enable(clients->config.listener);
	}
}

/* evhttp asks for the bufferevent of a connection that it has just accepted; the descriptor is put
 * into it afterwards. NULL lets evhttp make its own, which only its idle time bounds then. */
static struct bufferevent *on_accept(struct event_base *base, void *arg)
{
	struct bh_clients *clients = arg;
	struct bufferevent *bev = bufferevent_socket_new(base, -1, 0);

	if (!bev)
		return NULL;
	bufferevent_incref(bev);
	clients->arrivals[clients->n_arrivals++] = bev;
	if (clients->n_arrivals == 1)
		event_active(clients->settle, EV_TIMEOUT, 0);
	if (clients->n_arrivals == ARRIVALS_MAX) {
		clients->throttled = true;
		evconnlistener_disable(clients->config.listener);
	}
	return bev;
}

/* ---- out of descriptors ---------------------------------------------------------------------- */

static void complain(struct bh_clients *clients, int number)
{
	uint64_t now = bh_now_ns();

	clients->n_accept_errors++;
	if (clients->complained_ns && now - clients->complained_ns < COMPLAIN_EVERY_NS)
		return;
	clients->complained_ns = now;
	bh_log(BH_LOG_WARNING, COMPONENT, "cannot accept connections; trying on every 50 ms",
	       BH_STR("reason", strerror(number)), BH_INT("errors", clients->n_accept_errors));
}

/* What cannot be accepted keeps the listener readable: without a pause the loop would spin. */
static void on_accept_error(struct evconnlistener *listener, void *http)
{
	const struct timeval pause = { 0, PAUSE_US };
	int number = errno;

	(void)http;
	if (!clients_of_loop || event_add(clients_of_loop->resume, &pause) < 0)
		return;
	evconnlistener_disable(listener);
	complain(clients_of_loop, number);
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
	struct bh_clients *clients = arg;

	(void)fd;
	(void)what;
	evconnlistener_enable(clients->config.listener);
}

/* ---- the loop's side ------------------------------------------------------------------------- */

void bh_clients_enter(struct bh_clients *clients, int fd, enum bh_client_phase phase)
{
	struct client *row = fd < 0 ? NULL : find_row(clients, fd);

	if (!row)
		return;
	row->phase = phase;
	row->since_ns = bh_now_ns();
}

static void cut(const struct client *client)
{
	bh_log(BH_LOG_INFO, COMPONENT, "cutting a client that takes too long",
	       BH_INT("fd", client->fd),
	       BH_STR("phase", client->phase == BH_CLIENT_READING ? "sending a request"
								  : "reading a reply"));
	shutdown(client->fd, SHUT_RDWR); /* evhttp sees the end and closes it */
}

void bh_clients_sweep(struct bh_clients *clients)
{
	uint64_t now = bh_now_ns();

	forget_gone(clients);
	for (uint32_t i = 0; i < clients->config.max; i++) {
		const struct client *row = &clients->rows[i];

		if (row->fd >= 0 && row->phase != BH_CLIENT_BUSY &&
		    now - row->since_ns > clients->config.patience_ns)
			cut(row);
	}
}

uint32_t bh_clients_count(struct bh_clients *clients, enum bh_client_phase phase)
{
	uint32_t n = 0;

	forget_gone(clients);
	for (uint32_t i = 0; i < clients->config.max; i++)
		n += clients->rows[i].fd >= 0 && clients->rows[i].phase == phase;
	return n;
}

bh_status bh_clients_new(const struct bh_clients_config *config, struct bh_clients **ret_clients,
			 struct bh_error *err)
{
	struct bh_clients *clients = calloc(1, sizeof(*clients));

	if (!clients)
		return bh_raise(err, -ENOMEM, "admin.alloc");
	clients->config = *config;
	clients->rows = calloc(config->max, sizeof(*clients->rows));
	clients->settle = event_new(config->base, -1, 0, on_settle, clients);
	clients->resume = evtimer_new(config->base, on_resume, clients);
	if (!clients->rows || !clients->settle || !clients->resume) {
		bh_clients_free(clients);
		return bh_raise(err, -ENOMEM, "admin.alloc");
	}
	for (uint32_t i = 0; i < config->max; i++)
		clients->rows[i].fd = -1;
	evhttp_set_bevcb(config->http, on_accept, clients);
	evconnlistener_set_error_cb(config->listener, on_accept_error);
	event_active(clients->settle, EV_TIMEOUT, 0); /* the loop's first deed: clients_of_loop */
	*ret_clients = clients;
	return 0;
}

struct bh_clients *bh_clients_free(struct bh_clients *clients)
{
	if (!clients)
		return NULL;
	if (clients_of_loop == clients)
		clients_of_loop = NULL;
	for (unsigned i = 0; i < clients->n_arrivals; i++)
		bufferevent_decref(clients->arrivals[i]);
	if (clients->settle)
		event_free(clients->settle);
	if (clients->resume)
		event_free(clients->resume);
	free(clients->rows);
	free(clients);
	return NULL;
}
