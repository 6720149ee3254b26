/* SPDX-License-Identifier: BSD-3-Clause */
/* admin - see admin.h. Requests come in by route(); calls come back from main by call_done(). */
#include "config.h"

#include "host/control/admin.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host/control/clients.h"
#include "host/core/list.h"
#include "host/core/log.h"

#define COMPONENT "admin"
#define JSON "application/json"
#define OCTETS "application/octet-stream"
#define TEXT "text/plain; charset=utf-8"
#define METRICS "text/plain; version=0.0.4; charset=utf-8" /* Prometheus' */

#define APPS "/v1/apps/"
#define VIEWS "/v1/"

/* Up to here a body is parsed on the loop, so that a slip of the pen is answered exactly and at
 * once. A bigger one would hold up health (CP-1): it is parsed by the application's side alone,
 * which has to do it anyway, and which answers what it finds in the same form. */
#define CHECKED_BODY_MAX (64 << 10)
#define READ_AHEAD_MAX (64 << 10) /* of further requests, while one is worked on */

struct bh_admin {
	struct bh_admin_config config; /* I */
	uint64_t started_ns;	       /* I */
	struct evhttp *http;	       /* owned; owns the evconnlistener, not its descriptor */
	struct bh_clients *clients;    /* owned */
	struct bh_list calls;	       /* T: loop; struct call, by link */
};

/* An endpoint call under way: main has the request, the client waits. It outlives its client and,
 * at the end, the admin API: whoever has the request lets it go through call_done(). */
struct call {
	struct bh_list link;
	struct bh_admin *admin;		      /* NULL once that is gone */
	struct evhttp_request *http;	      /* NULL once the client is gone */
	struct evhttp_connection *connection; /* as http */
	struct bh_request *request;	      /* borrowed: main's until done */
};

/* ---- replies --------------------------------------------------------------------------------- */

/* jansson tells of a lack of memory by a NULL that the next call passes on, so that a list quietly
 * lacks a row. Whoever renders need not look: a reply during which memory was refused is none. */
static _Thread_local bool json_lacks_memory;

static void *json_malloc(size_t size)
{
	void *memory = malloc(size);

	if (!memory)
		json_lacks_memory = true;
	return memory;
}

static int fd_of(struct evhttp_request *http)
{
	struct evhttp_connection *connection = evhttp_request_get_connection(http);

	return connection ? (int)bufferevent_getfd(evhttp_connection_get_bufferevent(connection))
			  : -1;
}

static void on_replied(struct evhttp_request *http, void *arg)
{
	struct bh_admin *admin = arg;

	bh_clients_enter(admin->clients, fd_of(http), BH_CLIENT_READING);
}

static void add_header(struct evhttp_request *http, const char *key, const char *value)
{
	evhttp_add_header(evhttp_request_get_output_headers(http), key, value);
}

static void free_referenced(const void *data, size_t length, void *arg)
{
	(void)data;
	(void)length;
	free(arg);
}

/* `owned`, or NULL: the memory that `body` lies in, taken over. An endpoint's reply may be big, and
 * a copy of it would hold up the loop. */
static void reply_owned(struct bh_admin *admin, struct evhttp_request *http, int code,
			const char *type, const char *body, size_t length, char *owned)
{
	struct evbuffer *buffer = evbuffer_new();
	char digits[24];
	bool referenced = false;

	add_header(http, "Content-Type", type);
	if (evhttp_request_get_command(http) == EVHTTP_REQ_HEAD) {
		/* evhttp would send the body, and no length. */
		snprintf(digits, sizeof(digits), "%zu", length);
		add_header(http, "Content-Length", digits);
	} else if (owned && length && buffer) {
		referenced =
			evbuffer_add_reference(buffer, body, length, free_referenced, owned) == 0;
		code = referenced ? code : 500;
	} else if (!buffer || evbuffer_add(buffer, body, length) < 0) {
		code = 500; /* no memory: an empty body */
	}
	if (!referenced)
		free(owned);
	bh_clients_enter(admin->clients, fd_of(http), BH_CLIENT_WRITING);
	evhttp_request_set_on_complete_cb(http, on_replied, admin);
	evhttp_send_reply(http, code, NULL, buffer);
	if (buffer)
		evbuffer_free(buffer);
}

static void reply(struct bh_admin *admin, struct evhttp_request *http, int code, const char *type,
		  const char *body, size_t length)
{
	reply_owned(admin, http, code, type, body, length, NULL);
}

static void reply_text(struct bh_admin *admin, struct evhttp_request *http, int code,
		       const char *text)
{
	reply(admin, http, code, TEXT, text, strlen(text));
}

static void reply_no_memory(struct bh_admin *admin, struct evhttp_request *http, int instead_of)
{
	static const char no_memory[] =
		"{\"error\":{\"code\":\"no-memory\",\"message\":\"the host is out of memory\","
		"\"facts\":{}}}\n";

	bh_log(BH_LOG_WARNING, COMPONENT, "no memory for a reply: answered 500",
	       BH_INT("instead_of", instead_of));
	reply(admin, http, 500, JSON, no_memory, sizeof(no_memory) - 1);
}

/* Takes `body` over; NULL stands for "no memory", and so does what lacks something. */
static void reply_json(struct bh_admin *admin, struct evhttp_request *http, int code, json_t *body)
{
	bh_auto_mem char *text = body ? json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	bh_auto_mem char *line = NULL;
	int length = text ? asprintf(&line, "%s\n", text) : -1;

	json_decref(body);
	if (length < 0 || json_lacks_memory) {
		if (length < 0)
			line = NULL;
		reply_no_memory(admin, http, code);
		return;
	}
	reply(admin, http, code, JSON, line, (size_t)length);
}

/* Takes `facts` over; NULL: none. */
static void reply_error(struct bh_admin *admin, struct evhttp_request *http, int code,
			const char *id, const char *message, json_t *facts)
{
	reply_json(admin, http, code,
		   json_pack("{s:{s:s, s:s, s:o}}", "error", "code", id, "message", message,
			     "facts", facts ? facts : json_object()));
}

/* A log line and a reply are made of the same facts. */
static void reply_bh_error(struct bh_admin *admin, struct evhttp_request *http, int code,
			   const struct bh_error *err)
{
	json_t *facts = json_object();
	char message[BH_ERROR_TEXT + 256];

	for (unsigned i = 0; i < err->n_facts; i++)
		json_object_set_new(facts, bh_error_key(err, i),
				    json_string(bh_error_value(err, i)));
	bh_error_render(err, message, sizeof(message));
	reply_error(admin, http, code, err->id, message, facts);
}

/* ---- health ---------------------------------------------------------------------------------- */

static void serve_livez(struct bh_admin *admin, struct evhttp_request *http)
{
	reply_text(admin, http, 200, "ok\n");
}

static void serve_readyz(struct bh_admin *admin, struct evhttp_request *http)
{
	struct bh_conductor *conductor = admin->config.conductor;
	bool stopping = bh_conductor_is_stopping(conductor);

	if (bh_conductor_is_ready(conductor))
		reply_text(admin, http, 200, "ready\n");
	else
		reply_error(admin, http, 503, stopping ? "stopping" : "not-ready",
			    stopping ? "the host is stopping" : "the host is not ready",
			    json_pack("{s:o}", "reasons", bh_conductor_unready_reasons(conductor)));
}

/* ---- status, views, stop --------------------------------------------------------------------- */

/* Of the view "python" the status shows the version; null until the interpreter is up. */
static json_t *python_version(const struct bh_views *views)
{
	const struct bh_view *view = bh_views_find(views, "python");
	json_t *python = view ? view->render(view->arg) : NULL;
	json_t *version = json_object_get(python, "version");

	version = version ? json_incref(version) : json_null();
	json_decref(python);
	return version;
}

static void serve_status(struct bh_admin *admin, struct evhttp_request *http)
{
	const struct bh_admin_config *config = &admin->config;
	double uptime = (double)(bh_now_ns() - admin->started_ns) / (double)BH_NS_PER_S;
	json_t *conducted = bh_conductor_render(config->conductor);
	json_t *status = json_pack("{s:s, s:s, s:i, s:o, s:f}", "name", config->name, "version",
				   config->version, "pid", (int)getpid(), "python",
				   python_version(config->views), "uptime_s", uptime);

	if (json_object_update(status, conducted) < 0) {
		json_decref(status);
		status = NULL;
	}
	json_decref(conducted);
	reply_json(admin, http, 200, status);
}

static void serve_view(struct bh_admin *admin, struct evhttp_request *http,
		       const struct bh_view *view)
{
	bh_auto_mem char *text = NULL;
	size_t length = 0;

	if (view->render) {
		reply_json(admin, http, 200, view->render(view->arg));
		return;
	}
	text = view->write(&length, view->arg);
	if (text && !json_lacks_memory)
		reply(admin, http, 200, JSON, text, length);
	else
		reply_no_memory(admin, http, 200);
}

static void serve_apps(struct bh_admin *admin, struct evhttp_request *http)
{
	reply_json(admin, http, 200, bh_conductor_render_apps(admin->config.conductor));
}

static void serve_plugins(struct bh_admin *admin, struct evhttp_request *http)
{
	reply_json(admin, http, 200, bh_conductor_render_plugins(admin->config.conductor));
}

static void serve_metrics(struct bh_admin *admin, struct evhttp_request *http)
{
	static const struct bh_metrics none = { 0 };
	const struct bh_metrics *metrics = admin->config.metrics;
	size_t length = 0;
	bh_auto_mem char *page = bh_metrics_render(metrics ? metrics : &none, &length);

	if (page && !json_lacks_memory)
		reply(admin, http, 200, METRICS, page, length);
	else
		reply_no_memory(admin, http, 200);
}

static void serve_stop(struct bh_admin *admin, struct evhttp_request *http)
{
	static const char stopping[] = "{\"state\":\"stopping\"}\n";

	bh_conductor_stop(admin->config.conductor, "POST /v1/stop", false);
	reply(admin, http, 202, JSON, stopping, sizeof(stopping) - 1);
}

/* ---- calls of endpoints ---------------------------------------------------------------------- */

static void request_dropped(struct bh_request *request)
{
	bh_request_free(request);
}

/* Main looks at given_up when it sees such a request. Once the stop has begun the conductor sends
 * one of its own, and none may follow its LEAVE. Without memory the endpoint runs on, unheard. */
static void tell_main_to_give_up(struct bh_admin *admin)
{
	struct bh_request *request;

	if (bh_conductor_is_stopping(admin->config.conductor))
		return;
	request = bh_request_new(BH_REQUEST_GIVE_UP, admin->config.replies, request_dropped, NULL);
	if (request)
		bh_postbox_post(admin->config.main, &request->message);
}

/* evhttp is freeing the connection: the client has closed it, or it has failed. */
static void on_connection_closed(struct evhttp_connection *connection, void *arg)
{
	struct call *call = arg;

	(void)connection;
	/* After an error evhttp has let go of the request and leaves it to us; else it frees it. */
	if (!evhttp_request_get_connection(call->http))
		evhttp_request_free(call->http);
	call->http = NULL;
	call->connection = NULL;
	atomic_store_explicit(&call->request->given_up, true, memory_order_relaxed);
	bh_log(BH_LOG_INFO, COMPONENT, "client hung up during a call",
	       BH_STR("app", call->request->app), BH_STR("endpoint", call->request->endpoint));
	tell_main_to_give_up(call->admin);
}

/* While a request is worked on evhttp does not look at its connection, and would not see the client
 * go. So it is made to read on as it does while it writes a reply: what comes is kept for later, up
 * to a limit, and an end or an error goes to evhttp, which frees the connection. No idle time
 * runs. */
static void call_watch(struct call *call)
{
	struct bufferevent *bev = evhttp_connection_get_bufferevent(call->connection);
	bufferevent_data_cb on_write;
	bufferevent_event_cb on_event;
	void *arg;

	bufferevent_getcb(bev, NULL, &on_write, &on_event, &arg);
	bufferevent_setcb(bev, NULL, on_write, on_event, arg);
	bufferevent_setwatermark(bev, EV_READ, 0, READ_AHEAD_MAX);
	bufferevent_set_timeouts(bev, NULL, NULL);
	evhttp_connection_set_closecb(call->connection, on_connection_closed, call);
	bh_clients_enter(call->admin->clients, fd_of(call->http), BH_CLIENT_BUSY);
	bufferevent_enable(bev, EV_READ);
}

/* Gives the connection back to evhttp, and the request to the caller, to be answered. */
static struct evhttp_request *call_unwatch(struct call *call)
{
	struct evhttp_request *http = bh_steal(&call->http);
	struct evhttp_connection *connection = bh_steal(&call->connection);

	evhttp_connection_set_closecb(connection, NULL, NULL);
	bufferevent_setwatermark(evhttp_connection_get_bufferevent(connection), EV_READ, 0, 0);
	evhttp_connection_set_timeout(connection, (int)call->admin->config.limits.idle_s);
	return http;
}

static struct call *call_free(struct call *call)
{
	if (!call)
		return NULL;
	if (call->admin)
		bh_list_remove(&call->link);
	free(call);
	return NULL;
}
BH_DEFINE_AUTO(struct call, call_free)

static void send_call_reply(struct call *call, struct bh_request *request)
{
	struct evhttp_request *http = call_unwatch(call);
	int code = request->http_status ? request->http_status : request->status < 0 ? 500 : 200;
	char *body = bh_steal(&request->reply);

	json_lacks_memory = false;
	if (body)
		reply_owned(call->admin, http, code, request->reply_is_octets ? OCTETS : JSON, body,
			    request->reply_len, body);
	else if (request->status < 0)
		reply_bh_error(call->admin, http, code, &request->error);
	else
		reply_json(call->admin, http, code, json_pack("{s:n}", "result"));
}

/* Loop: main has replied. */
static void call_done(struct bh_request *request)
{
	struct call *call = request->done_arg;

	if (call->http) /* else the late reply is dropped */
		send_call_reply(call, request);
	call_free(call);
	bh_request_free(request);
}

/* Whether a header names this media type, whatever its parameters. */
static bool is_type(const char *header, const char *type)
{
	size_t length = strlen(type);

	return header && strncasecmp(header, type, length) == 0 &&
	       (header[length] == '\0' || strchr("; \t", header[length]));
}

/* None is sent by who does not care, and the form's by curl and its like. What is of another type
 * the endpoint's side takes as it is, or refuses. */
static bool is_json(const char *content_type)
{
	return !content_type || !*content_type || is_type(content_type, JSON) ||
	       is_type(content_type, "application/x-www-form-urlencoded");
}

/* What else of the HTTP request the endpoint's side looks at. False: no memory. */
static bool take_headers(struct evhttp_request *http, struct bh_request *request)
{
	struct evkeyvalq *headers = evhttp_request_get_input_headers(http);
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(http);
	const struct {
		const char *text;
		char **copy;
	} rows[] = {
		{ evhttp_find_header(headers, "Content-Type"), &request->content_type },
		{ evhttp_find_header(headers, "Accept"), &request->accept },
		{ uri ? evhttp_uri_get_query(uri) : NULL, &request->query },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		*rows[i].copy = rows[i].text ? strdup(rows[i].text) : NULL;
		if (rows[i].text && !*rows[i].copy)
			return false;
	}
	return true;
}

/* The body as the request shall own it, with a NUL behind it. False: it has been answered. */
static bool take_body(struct bh_admin *admin, struct evhttp_request *http, bool json_expected,
		      char **ret_body, size_t *ret_length)
{
	struct evbuffer *input = evhttp_request_get_input_buffer(http);
	size_t length = evbuffer_get_length(input);
	bh_auto_mem char *body = malloc(length + 1);
	json_error_t error;
	json_t *json;

	if (!body || evbuffer_remove(input, body, length) != (int)length) {
		reply_json(admin, http, 500, NULL);
		return false;
	}
	body[length] = '\0';
	if (json_expected && length != 0 && length <= CHECKED_BODY_MAX) {
		/* The form only: Python knows integers of any size and strings with NULs. */
		json = json_loadb(body, length, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
		if (!json) {
			reply_error(admin, http, 400, "bad-json", error.text,
				    json_pack("{s:i, s:i, s:s}", "line", error.line, "column",
					      error.column, "accepted",
					      "a JSON object of keyword arguments, an array of "
					      "positional ones, "
					      "or nothing"));
			return false;
		}
		json_decref(json);
	}
	*ret_body = bh_steal(&body);
	*ret_length = length;
	return true;
}

static void start_call(struct bh_admin *admin, struct evhttp_request *http, char **app,
		       char **endpoint)
{
	bh_auto(call_free) struct call *call = calloc(1, sizeof(*call));
	struct bh_request *request;
	struct bh_error err = { 0 };
	int refused;

	if (!call) {
		reply_json(admin, http, 500, NULL);
		return;
	}
	bh_list_init(&call->link);
	request = bh_request_new(BH_REQUEST_APP_CALL, admin->config.replies, call_done, call);
	if (!request) {
		reply_json(admin, http, 500, NULL);
		return;
	}
	request->app = bh_steal(app);
	request->endpoint = bh_steal(endpoint);
	if (!take_headers(http, request)) {
		reply_json(admin, http, 500, NULL);
		bh_request_free(request);
		return;
	}
	if (!take_body(admin, http, is_json(request->content_type), &request->body,
		       &request->body_len)) {
		bh_request_free(request);
		return;
	}
	call->admin = admin;
	call->request = request;
	call->http = http;
	call->connection = evhttp_request_get_connection(http);
	bh_list_push_back(&admin->calls, &call->link);
	refused = bh_conductor_call(admin->config.conductor, request, &err);
	if (!refused) {
		/* The reply is delivered by the loop, hence later: it cannot overtake this. */
		call_watch(call);
		(void)bh_steal(&call); /* request->done_arg has it now */
		return;
	}
	reply_bh_error(admin, http, refused, &err);
	bh_request_free(request);
}

/* One segment of a path, percent-decoded; NULL when it is empty, no UTF-8, or has a NUL in it, and
 * without memory. */
static char *decode_segment(const char *text, size_t length)
{
	bh_auto_mem char *raw = strndup(text, length);
	bh_auto_mem char *decoded = NULL;
	size_t n = 0;
	json_t *utf8;

	decoded = raw ? evhttp_uridecode(raw, 0, &n) : NULL;
	if (!decoded)
		json_lacks_memory = true;
	if (!decoded || n == 0 || n != strlen(decoded))
		return NULL;
	utf8 = json_string(decoded);
	if (!utf8)
		return NULL;
	json_decref(utf8);
	return bh_steal(&decoded);
}

static void serve_call(struct bh_admin *admin, struct evhttp_request *http, const char *rest)
{
	const char *slash = strchr(rest, '/');
	bh_auto_mem char *app = slash ? decode_segment(rest, (size_t)(slash - rest)) : NULL;
	bh_auto_mem char *endpoint = app && !strchr(slash + 1, '/')
					     ? decode_segment(slash + 1, strlen(slash + 1))
					     : NULL;

	if (!endpoint) {
		reply_error(admin, http, 404, "not-found",
			    "a call's path is /v1/apps/{app}/{endpoint}", NULL);
		return;
	}
	start_call(admin, http, &app, &endpoint);
}

/* ---- routes ---------------------------------------------------------------------------------- */

struct route {
	const char *path;
	enum evhttp_cmd_type method; /* GET stands for HEAD as well */
	void (*serve)(struct bh_admin *admin, struct evhttp_request *http);
};

static const struct route routes[] = {
	{ "/livez", EVHTTP_REQ_GET, serve_livez },
	{ "/readyz", EVHTTP_REQ_GET, serve_readyz },
	{ "/metrics", EVHTTP_REQ_GET, serve_metrics },
	{ "/v1/status", EVHTTP_REQ_GET, serve_status },
	{ "/v1/plugins", EVHTTP_REQ_GET, serve_plugins },
	{ "/v1/apps", EVHTTP_REQ_GET, serve_apps },
	{ "/v1/stop", EVHTTP_REQ_POST, serve_stop },
};

/* True when the method is right; else the answer has been given. */
static bool check_method(struct bh_admin *admin, struct evhttp_request *http,
			 enum evhttp_cmd_type method)
{
	enum evhttp_cmd_type given = evhttp_request_get_command(http);
	const char *allowed = method == EVHTTP_REQ_GET ? "GET, HEAD" : "POST";

	if (given == method || (method == EVHTTP_REQ_GET && given == EVHTTP_REQ_HEAD))
		return true;
	add_header(http, "Allow", allowed);
	reply_error(admin, http, 405, "bad-method", "this path does not know that method",
		    json_pack("{s:s}", "accepted", allowed));
	return false;
}

static void reply_not_found(struct bh_admin *admin, struct evhttp_request *http, const char *path)
{
	uint32_t n_views = atomic_load_explicit(&admin->config.views->n, memory_order_acquire);
	json_t *known = json_array();
	json_t *asked = json_string(path); /* NULL when it is no UTF-8 */

	for (size_t i = 0; i < BH_ARRAY_LEN(routes); i++)
		json_array_append_new(
			known,
			json_sprintf("%s %s", routes[i].method == EVHTTP_REQ_GET ? "GET" : "POST",
				     routes[i].path));
	for (uint32_t i = 0; i < n_views; i++)
		json_array_append_new(
			known, json_sprintf("GET " VIEWS "%s", admin->config.views->rows[i].name));
	json_array_append_new(known, json_string("POST " APPS "{app}/{endpoint}"));
	reply_error(admin, http, 404, "not-found", "there is no such path",
		    json_pack("{s:o*, s:o}", "path", asked, "paths", known));
}

/* Who asks for a change is on record. */
static void log_peer(struct evhttp_request *http, const char *path)
{
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);

	if (getsockopt(fd_of(http), SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
		peer = (struct ucred){ .pid = -1, .uid = (uid_t)-1, .gid = (gid_t)-1 };
	bh_log(BH_LOG_INFO, COMPONENT, "request", BH_STR("method", "POST"), BH_STR("path", path),
	       BH_INT("peer_pid", peer.pid), BH_INT("peer_uid", (int)peer.uid),
	       BH_INT("peer_gid", (int)peer.gid));
}

static void dispatch(struct bh_admin *admin, struct evhttp_request *http, const char *path)
{
	const struct bh_view *view;

	for (size_t i = 0; i < BH_ARRAY_LEN(routes); i++) {
		if (strcmp(path, routes[i].path) != 0)
			continue;
		if (check_method(admin, http, routes[i].method))
			routes[i].serve(admin, http);
		return;
	}
	if (strncmp(path, APPS, strlen(APPS)) == 0) {
		if (check_method(admin, http, EVHTTP_REQ_POST))
			serve_call(admin, http, path + strlen(APPS));
		return;
	}
	view = strncmp(path, VIEWS, strlen(VIEWS)) == 0
		       ? bh_views_find(admin->config.views, path + strlen(VIEWS))
		       : NULL;
	if (!view)
		reply_not_found(admin, http, path);
	else if (check_method(admin, http, EVHTTP_REQ_GET))
		serve_view(admin, http, view);
}

static void route(struct evhttp_request *http, void *arg)
{
	struct bh_admin *admin = arg;
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(http);
	const char *path = uri ? evhttp_uri_get_path(uri) : NULL;

	json_lacks_memory = false;
	if (!path)
		path = "";
	if (evhttp_request_get_command(http) == EVHTTP_REQ_POST)
		log_peer(http, path);
	dispatch(admin, http, path);
}

/* ---- life ------------------------------------------------------------------------------------ */

static bh_status bind_http(struct bh_admin *admin, struct evconnlistener **ret_listener,
			   struct bh_error *err)
{
	const struct bh_admin_config *config = &admin->config;
	struct evconnlistener *listener;

	admin->http = evhttp_new(config->base);
	/* Without a callback it does not accept yet; evhttp brings its own. */
	listener = evconnlistener_new(config->base, NULL, NULL, LEV_OPT_CLOSE_ON_EXEC, 0,
				      bh_listener_fd(config->listener));
	if (!admin->http || !listener || !evhttp_bind_listener(admin->http, listener)) {
		if (listener)
			evconnlistener_free(listener);
		return bh_raise(err, -ENOMEM, "admin.alloc");
	}
	evhttp_set_max_headers_size(admin->http, config->limits.header_bytes);
	evhttp_set_max_body_size(admin->http, config->limits.body_bytes);
	evhttp_set_timeout(admin->http, (int)config->limits.idle_s);
	/* Every method that may come is let through, so that the answer is ours. */
	evhttp_set_allowed_methods(admin->http, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD |
							EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
							EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
	/* Reads on what is too long, bounded by patience, so that the client sees the 413. */
	evhttp_set_flags(admin->http, EVHTTP_SERVER_LINGERING_CLOSE);
	evhttp_set_gencb(admin->http, route, admin);
	*ret_listener = listener;
	return 0;
}

bh_status bh_admin_new(const struct bh_admin_config *config, struct bh_admin **ret_admin,
		       struct bh_error *err)
{
	struct bh_admin *admin = calloc(1, sizeof(*admin));
	struct bh_clients_config clients;
	struct evconnlistener *listener = NULL;
	bh_status st;

	if (!admin)
		return bh_raise(err, -ENOMEM, "admin.alloc");
	/* jansson's own are these two as well: what it has already can be freed by either. */
	json_set_alloc_funcs(json_malloc, free);
	admin->config = *config;
	admin->started_ns = bh_now_ns();
	bh_list_init(&admin->calls);
	st = bind_http(admin, &listener, err);
	if (st == 0) {
		clients = (struct bh_clients_config){
			.base = config->base,
			.http = admin->http,
			.listener = listener,
			.max = config->limits.connections,
			.patience_ns = config->limits.patience_s * BH_NS_PER_S,
		};
		st = bh_clients_new(&clients, &admin->clients, err);
	}
	if (st < 0) {
		bh_admin_free(admin);
		return st;
	}
	*ret_admin = admin;
	return 0;
}

/* Leaves the call to its late reply; evhttp is about to free the connection and the request. */
static void call_orphan(struct call *call)
{
	if (call->http)
		call_unwatch(call);
	atomic_store_explicit(&call->request->given_up, true, memory_order_relaxed);
	call->admin = NULL;
}

struct bh_admin *bh_admin_free(struct bh_admin *admin)
{
	struct bh_list *link;

	if (!admin)
		return NULL;
	while ((link = bh_list_pop_front(&admin->calls)))
		call_orphan(bh_container_of(link, struct call, link));
	bh_clients_free(admin->clients);
	if (admin->http)
		evhttp_free(admin->http);
	free(admin);
	return NULL;
}

void bh_admin_tick(struct bh_admin *admin)
{
	bh_clients_sweep(admin->clients);
}

bool bh_admin_is_writing(struct bh_admin *admin)
{
	return bh_clients_count(admin->clients, BH_CLIENT_WRITING) != 0;
}
