/* SPDX-License-Identifier: BSD-3-Clause */
/* test_control - the suite of host/control/control.c, admin.c and clients.c, over real sockets.
 *
 * The conductor is a test double (below), and the test's own thread plays main: it takes requests
 * out of main's postbox and replies when it likes. A `host` runs the loop as bulkheadd does; a
 * `rig` runs the admin API alone, with limits small enough to be met. */
#include "config.h"

#include "host/control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "host/control/admin.h"
#include "host/control/conductor.h"
#include "host/control/health.h"
#include "host/control/listener.h"
#include "host/control/signals.h"
#include "host/core/log.h"
#include "tests/unit/tap.h"

#define AMPLE_MS 20000
#define STATUS_OF_FAKE 42

/* ---- the test double of the conductor -------------------------------------------------------- */

/* What the loop has told it, and what it shall answer. Atomics: the test looks while the loop
 * runs. */
struct fake {
	_Atomic bool ready, stopping;
	_Atomic bool finish_on_stop;
	_Atomic unsigned n_stops, n_hurries;
	_Atomic unsigned n_milestones, n_pool_events, n_exits, sum_of_exits;
	_Atomic int cause_status;
	char why[64];	   /* of the first stop; valid once n_stops is not 0 */
	char cause_id[48]; /* valid once cause_status is not 0 */
	char exit_app[64]; /* valid once n_exits is not 0 */
	_Atomic unsigned n_healths;
	struct {
		size_t index;
		bh_status status;
	} healths[512]; /* valid below n_healths */
};

struct bh_conductor {
	struct bh_conductor_config config;
	struct fake *fake;
};

static struct fake fake; /* the one under test: bh_conductor_new has no argument for it */

bh_status bh_conductor_new(const struct bh_conductor_config *config,
			   struct bh_conductor **ret_conductor, struct bh_error *err)
{
	struct bh_conductor *conductor = calloc(1, sizeof(*conductor));

	if (!conductor)
		return bh_raise(err, -ENOMEM, "fake.alloc");
	conductor->config = *config;
	conductor->fake = &fake;
	*ret_conductor = conductor;
	return 0;
}

struct bh_conductor *bh_conductor_free(struct bh_conductor *conductor)
{
	free(conductor);
	return NULL;
}

void bh_conductor_milestone(struct bh_conductor *conductor, enum bh_milestone milestone,
			    const struct bh_error *cause)
{
	if (cause) {
		snprintf(fake.cause_id, sizeof(fake.cause_id), "%s", cause->id);
		atomic_store(&fake.cause_status, cause->status);
	}
	atomic_fetch_add(&fake.n_milestones, 1);
	if (milestone == BH_MILESTONE_FINALIZED)
		conductor->config.finished(conductor->config.arg);
}

void bh_conductor_pool_event(struct bh_conductor *conductor, struct bh_pool *pool,
			     enum bh_pool_state state)
{
	(void)conductor;
	(void)pool;
	(void)state;
	atomic_fetch_add(&fake.n_pool_events, 1);
}

void bh_conductor_plugin_health(struct bh_conductor *conductor, size_t index,
				const struct bh_error *cause)
{
	unsigned n = atomic_load(&fake.n_healths);

	(void)conductor;
	if (n < BH_ARRAY_LEN(fake.healths)) {
		fake.healths[n].index = index;
		fake.healths[n].status = cause->status;
	}
	atomic_store(&fake.n_healths, n + 1);
}

void bh_conductor_exit_asked(struct bh_conductor *conductor, int status, const char *app)
{
	(void)conductor;
	snprintf(fake.exit_app, sizeof(fake.exit_app), "%s", app);
	atomic_fetch_add(&fake.sum_of_exits, (unsigned)status);
	atomic_fetch_add(&fake.n_exits, 1);
}

bool bh_conductor_stop(struct bh_conductor *conductor, const char *why, bool hurry)
{
	bool first = !atomic_exchange(&fake.stopping, true);

	if (first)
		snprintf(fake.why, sizeof(fake.why), "%s", why);
	if (hurry)
		atomic_fetch_add(&fake.n_hurries, 1);
	atomic_fetch_add(&fake.n_stops, 1);
	if (first && atomic_load(&fake.finish_on_stop))
		conductor->config.finished(conductor->config.arg);
	return first;
}

void bh_conductor_stand_back(struct bh_conductor *conductor, struct bh_deadline until)
{
	(void)conductor;
	(void)until;
}

bool bh_conductor_is_ready(const struct bh_conductor *conductor)
{
	(void)conductor;
	return atomic_load(&fake.ready);
}

bool bh_conductor_is_stopping(const struct bh_conductor *conductor)
{
	(void)conductor;
	return atomic_load(&fake.stopping);
}

bool bh_conductor_has_started(const struct bh_conductor *conductor)
{
	(void)conductor;
	return atomic_load(&fake.ready);
}

bool bh_conductor_main_serves(const struct bh_conductor *conductor)
{
	(void)conductor;
	return !atomic_load(&fake.stopping);
}

json_t *bh_conductor_unready_reasons(const struct bh_conductor *conductor)
{
	(void)conductor;
	return json_pack("[s]", "python: starting");
}

json_t *bh_conductor_render(const struct bh_conductor *conductor)
{
	(void)conductor;
	return json_pack("{s:s, s:[]}", "state", "starting", "plugins");
}

json_t *bh_conductor_render_plugins(const struct bh_conductor *conductor)
{
	(void)conductor;
	return json_pack("{s:[{s:s}]}", "plugins", "label", "stream");
}

json_t *bh_conductor_render_apps(const struct bh_conductor *conductor)
{
	(void)conductor;
	return json_pack("{s:[{s:s}]}", "apps", "name", "echo");
}

int bh_conductor_exit_status(const struct bh_conductor *conductor)
{
	(void)conductor;
	return STATUS_OF_FAKE;
}

int bh_conductor_call(struct bh_conductor *conductor, struct bh_request *request,
		      struct bh_error *err)
{
	if (strcmp(request->app, "echo") != 0) {
		bh_raise(err, -ENOENT, "app.unknown", BH_STR("app", request->app));
		return 404;
	}
	if (atomic_load(&fake.stopping)) {
		bh_raise(err, -EAGAIN, "host.stopping", BH_STR("app", request->app));
		return 503;
	}
	bh_postbox_post(conductor->config.control->main, &request->message);
	return 0;
}

/* ---- a host ---------------------------------------------------------------------------------- */

struct host {
	char dir[64], socket[96];
	struct bh_config config;
	struct bh_views views;
	struct bh_postbox main; /* main's: the test takes from it */
	_Atomic uint64_t stop_deadline_ns;
	struct bh_control_config control_config;
	struct bh_control *control;
};

static void host_prepare(struct host *host)
{
	struct bh_signal_counts counts;

	CU_ASSERT_FATAL(bh_signals_install(NULL) == 0); /* as main does, before all else: SIGPIPE */
	bh_signals_take(&counts);
	memset(host, 0, sizeof(*host));
	memset(&fake, 0, sizeof(fake));
	snprintf(host->dir, sizeof(host->dir), "/tmp/bh-control-XXXXXX");
	CU_ASSERT_FATAL(mkdtemp(host->dir) != NULL);
	snprintf(host->socket, sizeof(host->socket), "%s/host.sock", host->dir);
	host->config.name = "test";
	host->config.socket_mode = "0660";
	host->config.n_plugins = 2;
	CU_ASSERT_FATAL(bh_postbox_init(&host->main, NULL) == 0);
	host->control_config = (struct bh_control_config){
		.config = &host->config,
		.socket_path = host->socket,
		.version = "1.2.3",
		.views = &host->views,
		.main = &host->main,
		.stop_deadline_ns = &host->stop_deadline_ns,
	};
}

static void host_start(struct host *host)
{
	host_prepare(host);
	CU_ASSERT_FATAL(bh_control_start(&host->control_config, &host->control, NULL) == 0);
}

/* After the loop has ended by itself. */
static void host_join(struct host *host)
{
	CU_ASSERT(bh_control_join(host->control) == STATUS_OF_FAKE);
	CU_ASSERT(access(host->socket, F_OK) < 0);
	bh_postbox_fini(&host->main);
	CU_ASSERT(rmdir(host->dir) == 0); /* neither the socket nor its lock is left */
}

static void host_end(struct host *host)
{
	bh_control_report(host->control, BH_MILESTONE_FINALIZED, NULL);
	host_join(host);
}

static bool readable(int fd, int timeout_ms)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };
	int n;

	do
		n = poll(&wanted, 1, timeout_ms);
	while (n < 0 && errno == EINTR);
	return n == 1;
}

/* Spins gently until the loop has brought it about. */
#define EVENTUALLY(condition)                                                                      \
	do {                                                                                       \
		uint64_t until_ = bh_now_ns() + AMPLE_MS * BH_NS_PER_MS;                           \
		while (!(condition) && bh_now_ns() < until_)                                       \
			usleep(1000);                                                              \
		CU_ASSERT(condition);                                                              \
	} while (0)

/* The next request that main gets. */
static struct bh_request *main_take(struct bh_postbox *box)
{
	struct bh_message *message;

	CU_ASSERT_FATAL(readable(box->fd, AMPLE_MS));
	message = bh_postbox_take(box);
	CU_ASSERT_FATAL(message != NULL);
	CU_ASSERT_PTR_NULL(message->next);
	return bh_container_of(message, struct bh_request, message);
}

static void main_reply(struct bh_request *request, int http_status, const char *reply)
{
	request->http_status = http_status;
	request->reply = reply ? strdup(reply) : NULL;
	request->reply_len = reply ? strlen(reply) : 0;
	bh_request_reply(request);
}

struct gate {
	_Atomic bool entered;
	int fd;
};

/* Holds the loop up until the test opens the gate: what a view must never do. */
static json_t *render_gate(void *arg)
{
	struct gate *gate = arg;

	atomic_store(&gate->entered, true);
	readable(gate->fd, AMPLE_MS);
	return json_object();
}

/* ---- a client -------------------------------------------------------------------------------- */

struct answer {
	int code;	  /* 0: the connection was closed without one */
	char text[65536]; /* header and body */
	const char *body;
	json_t *json; /* NULL when the body is none */
};

static int client_try_open(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static int client_open(const char *path)
{
	int fd = client_try_open(path);

	CU_ASSERT_FATAL(fd >= 0);
	return fd;
}

/* False when the other side has closed. */
static bool client_send(int fd, const char *text, size_t length)
{
	while (length) {
		ssize_t n = send(fd, text, length, MSG_NOSIGNAL);

		if (n < 0)
			return false;
		text += n;
		length -= (size_t)n;
	}
	return true;
}

static bool BH_PRINTF(2, 3) client_say(int fd, const char *format, ...)
{
	va_list args;
	char *text;
	bool sent;
	int n;

	va_start(args, format);
	n = vasprintf(&text, format, args);
	va_end(args);
	CU_ASSERT_FATAL(n >= 0);
	sent = client_send(fd, text, (size_t)n);
	free(text);
	return sent;
}

static void answer_parse(struct answer *answer)
{
	const char *end = strstr(answer->text, "\r\n\r\n");

	answer->body = end ? end + 4 : "";
	if (sscanf(answer->text, "HTTP/1.%*d %d", &answer->code) != 1)
		answer->code = 0;
	answer->json = json_loads(answer->body, JSON_DECODE_ANY, NULL);
}

/* Reads until the other side closes. */
static void client_read(int fd, struct answer *answer)
{
	size_t used = 0;
	ssize_t n;

	memset(answer, 0, sizeof(*answer));
	while (readable(fd, AMPLE_MS)) {
		n = read(fd, answer->text + used, sizeof(answer->text) - 1 - used);
		if (n <= 0)
			break;
		used += (size_t)n;
	}
	answer_parse(answer);
}

static void answer_fini(struct answer *answer)
{
	json_decref(answer->json);
}

static void ask(const char *path, struct answer *answer, const char *method, const char *uri,
		const char *body)
{
	int fd = client_open(path);

	client_say(
		fd,
		"%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
		method, uri, strlen(body), body);
	client_read(fd, answer);
	close(fd);
}

static const char *error_code(const struct answer *answer)
{
	const char *code = "";

	json_unpack(answer->json, "{s:{s:s, s:s, s:o}}", "error", "code", &code, "message",
		    &(const char *){ NULL }, "facts", &(json_t *){ NULL });
	return code;
}

static json_t *error_fact(const struct answer *answer, const char *key)
{
	json_t *facts = NULL;

	json_unpack(answer->json, "{s:{s:o}}", "error", "facts", &facts);
	return json_object_get(facts, key);
}

static int start_call(const char *path, const char *body)
{
	int fd = client_open(path);

	client_say(fd,
		   "POST /v1/apps/echo/say HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
		   "Content-Length: %zu\r\n\r\n%s",
		   strlen(body), body);
	return fd;
}

/* ---- routes ---------------------------------------------------------------------------------- */

static void livez_answers(void)
{
	struct answer answer;
	struct host host;

	host_start(&host);
	ask(host.socket, &answer, "GET", "/livez", "");
	CU_ASSERT(answer.code == 200);
	CU_ASSERT_STRING_EQUAL(answer.body, "ok\n");
	CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, "Content-Type: text/plain"));
	answer_fini(&answer);
	host_end(&host);
}

static void readyz_says_why_not(void)
{
	struct answer answer;
	struct host host;

	host_start(&host);
	ask(host.socket, &answer, "GET", "/readyz", "");
	CU_ASSERT(answer.code == 503);
	CU_ASSERT_STRING_EQUAL(error_code(&answer), "not-ready");
	CU_ASSERT_STRING_EQUAL(json_string_value(json_array_get(error_fact(&answer, "reasons"), 0)),
			       "python: starting");
	answer_fini(&answer);

	atomic_store(&fake.ready, true);
	ask(host.socket, &answer, "GET", "/readyz", "");
	CU_ASSERT(answer.code == 200);
	CU_ASSERT_STRING_EQUAL(answer.body, "ready\n");
	answer_fini(&answer);

	atomic_store(&fake.ready, false);
	atomic_store(&fake.stopping, true);
	ask(host.socket, &answer, "GET", "/readyz", "");
	CU_ASSERT(answer.code == 503);
	CU_ASSERT_STRING_EQUAL(error_code(&answer), "stopping");
	answer_fini(&answer);
	host_end(&host);
}

static json_t *render_python(void *arg)
{
	return json_pack("{s:s}", "version", arg);
}

static json_t *render_nothing(void *arg)
{
	(void)arg;
	return NULL;
}

static void status_is_made_of_both(void)
{
	const char *name = "", *version = "", *state = "", *python = "";
	int pid = 0;
	double uptime = -1;
	struct answer answer;
	struct host host;

	host_prepare(&host);
	bh_views_add(&host.views, "python", render_python, "3.11.2");
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	ask(host.socket, &answer, "GET", "/v1/status?pretty=1", "");
	CU_ASSERT(answer.code == 200);
	CU_ASSERT(json_unpack(answer.json, "{s:s, s:s, s:s, s:s, s:i, s:F, s:[]}", "name", &name,
			      "version", &version, "state", &state, "python", &python, "pid", &pid,
			      "uptime_s", &uptime, "plugins") == 0);
	CU_ASSERT_STRING_EQUAL(name, "test");
	CU_ASSERT_STRING_EQUAL(version, "1.2.3");
	CU_ASSERT_STRING_EQUAL(state, "starting");
	CU_ASSERT_STRING_EQUAL(python, "3.11.2");
	CU_ASSERT(pid == getpid());
	CU_ASSERT(uptime >= 0);
	answer_fini(&answer);
	host_end(&host);

	host_start(&host);
	ask(host.socket, &answer, "GET", "/v1/status", "");
	CU_ASSERT(json_is_null(json_object_get(answer.json, "python")));
	answer_fini(&answer);
	host_end(&host);
}

static json_t *render_pools(void *arg)
{
	(void)arg;
	return json_pack("{s:[]}", "pools");
}

static char *write_some(size_t *ret_length, void *arg)
{
	char *text = strdup("{\"some\":[1,2]}\n");

	(void)arg;
	*ret_length = strlen(text);
	return text;
}

static char *write_nothing(size_t *ret_length, void *arg)
{
	(void)ret_length;
	(void)arg;
	return NULL;
}

static void views_are_paths(void)
{
	struct answer answer;
	struct host host;

	host_prepare(&host);
	bh_views_add(&host.views, "pools", render_pools, NULL);
	bh_views_add(&host.views, "broke", render_nothing, NULL);
	bh_views_add_text(&host.views, "text", write_some, NULL);
	bh_views_add_text(&host.views, "broke-text", write_nothing, NULL);
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	ask(host.socket, &answer, "GET", "/v1/pools", "");
	CU_ASSERT(answer.code == 200);
	CU_ASSERT_STRING_EQUAL(answer.body, "{\"pools\":[]}\n");
	answer_fini(&answer);
	ask(host.socket, &answer, "GET", "/v1/broke", "");
	CU_ASSERT(answer.code == 500);
	CU_ASSERT_STRING_EQUAL(error_code(&answer), "no-memory");
	answer_fini(&answer);
	ask(host.socket, &answer, "GET", "/v1/text", "");
	CU_ASSERT(answer.code == 200);
	CU_ASSERT_STRING_EQUAL(answer.body, "{\"some\":[1,2]}\n");
	answer_fini(&answer);
	ask(host.socket, &answer, "GET", "/v1/broke-text", "");
	CU_ASSERT(answer.code == 500);
	CU_ASSERT_STRING_EQUAL(error_code(&answer), "no-memory");
	answer_fini(&answer);
	host_end(&host);
}

static bool lists(const json_t *array, const char *text)
{
	json_t *item;
	size_t i;

	json_array_foreach(array, i,
			   item) if (strcmp(json_string_value(item), text) == 0) return true;
	return false;
}

static void unknown_paths_list_the_known(void)
{
	static const char *const uris[] = { "/",	   "/nothing", "/v1/",
					    "/v1/pools/x", "/livez/",  "/v1/app" };
	struct answer answer;
	struct host host;

	host_prepare(&host);
	bh_views_add(&host.views, "pools", render_pools, NULL);
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	for (size_t i = 0; i < BH_ARRAY_LEN(uris); i++) {
		ask(host.socket, &answer, "GET", uris[i], "");
		CU_ASSERT(answer.code == 404);
		CU_ASSERT_STRING_EQUAL(error_code(&answer), "not-found");
		CU_ASSERT_STRING_EQUAL(json_string_value(error_fact(&answer, "path")), uris[i]);
		CU_ASSERT(lists(error_fact(&answer, "paths"), "GET /livez"));
		CU_ASSERT(lists(error_fact(&answer, "paths"), "GET /v1/pools"));
		CU_ASSERT(lists(error_fact(&answer, "paths"), "POST /v1/apps/{app}/{endpoint}"));
		answer_fini(&answer);
	}
	host_end(&host);
}

static void wrong_methods_say_the_right_one(void)
{
	static const struct {
		const char *method, *uri, *allow;
	} cases[] = {
		{ "POST", "/livez", "Allow: GET, HEAD\r\n" },
		{ "DELETE", "/v1/status", "Allow: GET, HEAD\r\n" },
		{ "GET", "/v1/stop", "Allow: POST\r\n" },
		{ "PUT", "/v1/apps/echo/say", "Allow: POST\r\n" },
	};
	struct answer answer;
	struct host host;

	host_start(&host);
	for (size_t i = 0; i < BH_ARRAY_LEN(cases); i++) {
		ask(host.socket, &answer, cases[i].method, cases[i].uri, "");
		CU_ASSERT(answer.code == 405);
		CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, cases[i].allow));
		CU_ASSERT_STRING_EQUAL(error_code(&answer), "bad-method");
		answer_fini(&answer);
	}
	CU_ASSERT(!atomic_load(&fake.stopping));
	host_end(&host);
}

static void head_has_no_body(void)
{
	struct answer answer;
	struct host host;

	host_start(&host);
	ask(host.socket, &answer, "HEAD", "/livez", "");
	CU_ASSERT(answer.code == 200);
	CU_ASSERT_STRING_EQUAL(answer.body, "");
	CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, "Content-Length: 3\r\n"));
	answer_fini(&answer);
	host_end(&host);
}

static void stop_is_asked_for(void)
{
	struct answer answer;
	struct host host;

	host_start(&host);
	ask(host.socket, &answer, "POST", "/v1/stop", "");
	CU_ASSERT(answer.code == 202);
	CU_ASSERT_STRING_EQUAL(answer.body, "{\"state\":\"stopping\"}\n");
	CU_ASSERT(atomic_load(&fake.n_stops) == 1 && atomic_load(&fake.n_hurries) == 0);
	CU_ASSERT_STRING_EQUAL(fake.why, "POST /v1/stop");
	answer_fini(&answer);
	host_end(&host);
}

static void last_reply_arrives(void)
{
	struct answer answer;
	struct host host;

	host_start(&host);
	atomic_store(&fake.finish_on_stop, true);
	ask(host.socket, &answer, "POST", "/v1/stop", "");
	CU_ASSERT(answer.code == 202);
	answer_fini(&answer);
	host_join(&host);
}

/* The reply and the end lie in the loop's postbox together. */
static void last_call_is_answered(void)
{
	struct gate gate = { .fd = eventfd(0, EFD_CLOEXEC) };
	struct bh_request *request;
	struct answer answer;
	struct host host;
	int fd, other;

	host_prepare(&host);
	bh_views_add(&host.views, "gate", render_gate, &gate);
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	fd = start_call(host.socket, "{}");
	request = main_take(&host.main);
	other = client_open(host.socket);
	client_say(other, "GET /v1/gate HTTP/1.1\r\nHost: x\r\n\r\n");
	EVENTUALLY(atomic_load(&gate.entered));
	bh_control_report(host.control, BH_MILESTONE_FINALIZED, NULL);
	main_reply(request, 200, "{\"result\": 9}");
	eventfd_write(gate.fd, 1);
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	close(fd);
	close(other);
	host_join(&host);
	close(gate.fd);
}

static void many_on_one_connection(void)
{
	char buffer[4096];
	struct host host;
	unsigned n = 0;
	int fd;

	host_start(&host);
	fd = client_open(host.socket);
	for (int i = 0; i < 3; i++)
		client_say(fd, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
	for (size_t used = 0; n < 3 && readable(fd, AMPLE_MS);) {
		ssize_t got = read(fd, buffer + used, sizeof(buffer) - 1 - used);

		if (got <= 0)
			break;
		used += (size_t)got;
		buffer[used] = '\0';
		n = 0;
		for (char *at = buffer; (at = strstr(at, "\r\n\r\nok\n")); at++)
			n++;
	}
	CU_ASSERT(n == 3);
	close(fd);
	host_end(&host);
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * BH_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void call_goes_to_main_and_back(void)
{
	struct bh_request *request;
	struct answer answer;
	struct host host;
	int fd;

	host_start(&host);
	fd = start_call(host.socket, "{\"query\": \"x\"}");
	request = main_take(&host.main);
	CU_ASSERT(request->kind == BH_REQUEST_APP_CALL);
	CU_ASSERT_STRING_EQUAL(request->app, "echo");
	CU_ASSERT_STRING_EQUAL(request->endpoint, "say");
	CU_ASSERT(request->body_len == 14);
	CU_ASSERT_STRING_EQUAL(request->body, "{\"query\": \"x\"}");
	CU_ASSERT(!readable(fd, 0));
	main_reply(request, 200, "{\"result\": [1]}");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 200);
	CU_ASSERT_STRING_EQUAL(answer.body, "{\"result\": [1]}");
	CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, "Content-Type: application/json\r\n"));
	answer_fini(&answer);
	close(fd);

	/* health answers while a call waits (CP-1); main's own status is passed on */
	fd = start_call(host.socket, "");
	request = main_take(&host.main);
	CU_ASSERT(request->body_len == 0);
	ask(host.socket, &answer, "GET", "/livez", "");
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	main_reply(request, 504, "{\"error\": {}}");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 504);
	answer_fini(&answer);
	close(fd);

	/* a request that main could not carry out at all */
	fd = start_call(host.socket, "[]");
	request = main_take(&host.main);
	request->status = bh_raise(&request->error, -EIO, "python.broken", BH_STR("what", "all"));
	main_reply(request, 0, NULL);
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 500);
	CU_ASSERT_STRING_EQUAL(error_code(&answer), "python.broken");
	CU_ASSERT_STRING_EQUAL(json_string_value(error_fact(&answer, "what")), "all");
	answer_fini(&answer);
	close(fd);
	host_end(&host);
}

/* Bytes that are no JSON, a NUL among them, go to main and back as they are. */
static void octets_pass_as_they_are(void)
{
	static const char body[] = "{\0\xff";
	struct bh_request *request;
	struct answer answer;
	struct host host;
	int fd;

	host_start(&host);
	fd = client_open(host.socket);
	client_say(fd, "POST /v1/apps/echo/say?k=a%%20b&k=2 HTTP/1.1\r\nHost: x\r\n"
		       "Content-Type: Application/Octet-Stream; x=y\r\n"
		       "Connection: close\r\nAccept: application/octet-stream\r\nContent-Length: "
		       "3\r\n\r\n");
	CU_ASSERT(write(fd, body, 3) == 3);
	request = main_take(&host.main);
	CU_ASSERT(request->body_len == 3 && memcmp(request->body, body, 3) == 0);
	CU_ASSERT_STRING_EQUAL(request->content_type, "Application/Octet-Stream; x=y");
	CU_ASSERT_STRING_EQUAL(request->accept, "application/octet-stream");
	CU_ASSERT_STRING_EQUAL(request->query, "k=a%20b&k=2");
	request->reply_is_octets = true;
	main_reply(request, 200, "bytes");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 200);
	CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, "Content-Type: application/octet-stream\r\n"));
	CU_ASSERT_PTR_NOT_NULL(strstr(answer.text, "Content-Length: 5\r\n"));
	CU_ASSERT_STRING_EQUAL(answer.body, "bytes");
	answer_fini(&answer);
	close(fd);

	/* no headers: none are made up; an empty reply is one */
	fd = start_call(host.socket, "");
	request = main_take(&host.main);
	CU_ASSERT_PTR_NULL(request->content_type);
	CU_ASSERT_PTR_NULL(request->accept);
	CU_ASSERT_PTR_NULL(request->query);
	main_reply(request, 200, "");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	close(fd);

	ask(host.socket, &answer, "GET", "/v1/apps", "");
	CU_ASSERT(answer.code == 200);
	CU_ASSERT_PTR_NOT_NULL(strstr(answer.body, "echo"));
	answer_fini(&answer);
	host_end(&host);
}

static void refused_calls_say_why(void)
{
	struct answer answer;
	struct host host;

	host_start(&host);
	ask(host.socket, &answer, "POST", "/v1/apps/nobody/say", "");
	CU_ASSERT(answer.code == 404);
	CU_ASSERT_STRING_EQUAL(error_code(&answer), "app.unknown");
	CU_ASSERT_STRING_EQUAL(json_string_value(error_fact(&answer, "app")), "nobody");
	answer_fini(&answer);

	atomic_store(&fake.stopping, true);
	ask(host.socket, &answer, "POST", "/v1/apps/echo/say", "{}");
	CU_ASSERT(answer.code == 503);
	CU_ASSERT_STRING_EQUAL(error_code(&answer), "host.stopping");
	answer_fini(&answer);
	CU_ASSERT(!readable(host.main.fd, 0));
	host_end(&host);
}

static void call_paths_are_checked(void)
{
	static const char *const uris[] = {
		"/v1/apps/",	      "/v1/apps/echo",		"/v1/apps/echo/",
		"/v1/apps//say",      "/v1/apps/echo/say/more", "/v1/apps/echo/%00",
		"/v1/apps/echo/a%ffb"
	};
	struct bh_request *request;
	struct answer answer;
	struct host host;
	int fd;

	host_start(&host);
	for (size_t i = 0; i < BH_ARRAY_LEN(uris); i++) {
		ask(host.socket, &answer, "POST", uris[i], "");
		CU_ASSERT(answer.code == 404);
		CU_ASSERT_STRING_EQUAL(error_code(&answer), "not-found");
		answer_fini(&answer);
	}
	fd = client_open(host.socket);
	client_say(
		fd,
		"POST /v1/apps/%%65cho/gr%%C3%%B6%%C3%%9Fe HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
	request = main_take(&host.main);
	CU_ASSERT_STRING_EQUAL(request->app, "echo");
	CU_ASSERT_STRING_EQUAL(request->endpoint, "größe");
	main_reply(request, 200, "{}");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	close(fd);
	host_end(&host);
}

static void bad_json_is_located(void)
{
	static const struct {
		const char *body;
		int line, column;
	} cases[] = {
		{ "{\"a\": }", 1, 7 }, { "{\n \"a\": 1,\n oops}", 3, 5 },
		{ "3", 1, 1 },	       { "{} x", 1, 4 },
		{ "\"x\"", 1, 3 },
	};
	struct answer answer;
	struct host host;

	host_start(&host);
	for (size_t i = 0; i < BH_ARRAY_LEN(cases); i++) {
		ask(host.socket, &answer, "POST", "/v1/apps/echo/say", cases[i].body);
		CU_ASSERT(answer.code == 400);
		CU_ASSERT_STRING_EQUAL(error_code(&answer), "bad-json");
		CU_ASSERT(json_integer_value(error_fact(&answer, "line")) == cases[i].line);
		CU_ASSERT(json_integer_value(error_fact(&answer, "column")) == cases[i].column);
		answer_fini(&answer);
	}
	CU_ASSERT(!readable(host.main.fd, 0));
	host_end(&host);
}

static void pythons_json_is_let_through(void)
{
	static const char *const bodies[] = { "[123456789012345678901234567890]",
					      "{\"a\": \"\\u0000\"}", "[]" };
	struct bh_request *request;
	struct answer answer;
	struct host host;

	host_start(&host);
	for (size_t i = 0; i < BH_ARRAY_LEN(bodies); i++) {
		int fd = start_call(host.socket, bodies[i]);

		request = main_take(&host.main);
		CU_ASSERT_STRING_EQUAL(request->body, bodies[i]);
		main_reply(request, 200, "{}");
		client_read(fd, &answer);
		CU_ASSERT(answer.code == 200);
		answer_fini(&answer);
		close(fd);
	}
	host_end(&host);
}

static void hang_up_gives_the_call_up(void)
{
	struct bh_request *request, *give_up;
	struct answer answer;
	struct host host;
	int fd;

	host_start(&host);
	fd = start_call(host.socket, "{}");
	request = main_take(&host.main);
	CU_ASSERT(!atomic_load(&request->given_up));
	close(fd);
	give_up = main_take(&host.main);
	CU_ASSERT(give_up->kind == BH_REQUEST_GIVE_UP);
	CU_ASSERT(atomic_load(&request->given_up));
	bh_request_reply(give_up);
	main_reply(request, 200, "{\"result\": \"late\"}");
	ask(host.socket, &answer, "GET", "/livez", "");
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	host_end(&host);
}

/* Closing with a reply unread is a reset, which is told apart from an end by the kernel. */
static void reset_gives_the_call_up(void)
{
	struct bh_request *request, *give_up;
	struct host host;
	uint64_t cpu;
	int fd;

	host_start(&host);
	fd = client_open(host.socket);
	client_say(fd, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
		       "POST /v1/apps/echo/say HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
	request = main_take(&host.main);
	CU_ASSERT(readable(fd, AMPLE_MS));
	close(fd);
	cpu = cpu_ns();
	give_up = main_take(&host.main);
	CU_ASSERT(atomic_load(&request->given_up));
	CU_ASSERT(!readable(host.main.fd, 200)); /* a while in which the loop must not spin */
	CU_ASSERT(cpu_ns() - cpu < 100 * BH_NS_PER_MS);
	bh_request_reply(give_up);
	main_reply(request, 200, "{}");
	host_end(&host);
}

/* Further requests are kept while one is worked on, up to a limit, and answered in order. */
static void pipelined_requests_wait(void)
{
	static char many[400000];
	struct bh_request *request;
	struct host host;
	size_t used = 0;
	uint64_t cpu;
	ssize_t n;
	int fd;

	host_start(&host);
	fd = client_open(host.socket);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	client_say(fd, "POST /v1/apps/echo/say HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
		       "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
		       "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ");
	request = main_take(&host.main);
	memset(many, 'x', sizeof(many));
	do /* until neither the loop nor the kernel takes more */
		n = send(fd, many, sizeof(many), MSG_NOSIGNAL);
	while (n > 0);
	cpu = cpu_ns();
	CU_ASSERT(!readable(fd, 200));
	CU_ASSERT(cpu_ns() - cpu < 100 * BH_NS_PER_MS);
	CU_ASSERT(!atomic_load(&request->given_up));
	main_reply(request, 200, "{\"result\": 1}");
	while (readable(fd, AMPLE_MS)) { /* the last request's header is too long: closed */
		n = read(fd, many + used, sizeof(many) - 1 - used);
		if (n <= 0)
			break;
		used += (size_t)n;
	}
	many[used] = '\0';
	CU_ASSERT_PTR_NOT_NULL_FATAL(strstr(many, "{\"result\": 1}"));
	CU_ASSERT_PTR_NOT_NULL(strstr(strstr(many, "{\"result\": 1}"), "\r\n\r\nok\n"));
	close(fd);
	host_end(&host);
}

static void hang_up_during_a_stop_is_quiet(void)
{
	struct bh_request *request;
	struct host host;
	int fd;

	host_start(&host);
	fd = start_call(host.socket, "{}");
	request = main_take(&host.main);
	atomic_store(&fake.stopping, true);
	close(fd);
	EVENTUALLY(atomic_load(&request->given_up));
	CU_ASSERT(!readable(host.main.fd, 0)); /* after LEAVE no request may follow */
	main_reply(request, 200, "{}");
	host_end(&host);
}

static void end_with_a_call_under_way(void)
{
	struct bh_request *request;
	struct answer answer;
	struct host host;
	int fd;

	host_start(&host);
	fd = start_call(host.socket, "{}");
	request = main_take(&host.main);
	bh_control_report(host.control, BH_MILESTONE_FINALIZED, NULL);
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 0); /* closed */
	answer_fini(&answer);
	CU_ASSERT(atomic_load(&request->given_up));
	main_reply(request, 200, "{}"); /* nobody is there to hear it, and it does no harm */
	close(fd);
	host_join(&host);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void too_much_is_refused(void)
{
	static char chunk[65536];
	struct answer answer;
	struct host host;
	int fd;

	host_start(&host);
	fd = client_open(host.socket);
	client_say(fd, "POST /v1/apps/echo/say HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n",
		   (16 << 20) + 1);
	memset(chunk, ' ', sizeof(chunk));
	for (int i = 0; i < 256; i++)
		if (!client_send(fd, chunk, sizeof(chunk)))
			break;
	client_send(fd, " ", 1);
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 413);
	answer_fini(&answer);
	close(fd);

	fd = client_open(host.socket);
	memset(chunk, 'h', sizeof(chunk));
	client_say(fd, "GET /livez HTTP/1.1\r\nX: ");
	client_send(fd, chunk, 20000);
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 400 || answer.code == 413);
	answer_fini(&answer);
	close(fd);
	CU_ASSERT(!readable(host.main.fd, 0));
	host_end(&host);
}

/* Big enough that it is not parsed on the loop, and smaller than the limit. */
static void big_body_goes_through(void)
{
	const size_t length = 4 << 20;
	struct bh_request *request;
	struct answer answer;
	struct host host;
	char *body;
	int fd;

	host_start(&host);
	body = malloc(length + 1);
	memset(body, ' ', length);
	body[0] = '[';
	body[length - 1] = ']';
	body[length] = '\0';
	fd = start_call(host.socket, body);
	request = main_take(&host.main);
	CU_ASSERT(request->body_len == length);
	CU_ASSERT(request->body[length - 1] == ']' && request->body[length] == '\0');
	main_reply(request, 200, "{}");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	close(fd);
	free(body);
	host_end(&host);
}

static unsigned count_fds(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void crowd_comes_and_goes(void)
{
	struct answer answer;
	struct host host;
	unsigned before;

	host_start(&host);
	ask(host.socket, &answer, "GET", "/livez", "");
	answer_fini(&answer);
	before = count_fds();
	for (int i = 0; i < 200; i++)
		close(client_open(host.socket));
	for (int i = 0; i < 200; i++) {
		int fd = client_open(host.socket);

		client_say(fd, "GET /liv");
		close(fd);
	}
	ask(host.socket, &answer, "GET", "/livez", "");
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	EVENTUALLY(count_fds() <= before);
	host_end(&host);
}

static void garbage_is_survived(void)
{
	static const char *const texts[] = {
		"\r\n\r\n",
		"\x16\x03\x01\x02",
		"GET\r\n\r\n",
		"GET / HTTP/9.9\r\n\r\n",
		"BREW /pot HTTP/1.1\r\n\r\n",
		"POST /v1/stop HTTP/1.1\r\nContent-Length: -5\r\n\r\n"
	};
	struct answer answer;
	struct host host;

	host_start(&host);
	for (size_t i = 0; i < BH_ARRAY_LEN(texts); i++) {
		int fd = client_open(host.socket);

		client_say(fd, "%s", texts[i]);
		shutdown(fd, SHUT_WR);
		client_read(fd, &answer);
		CU_ASSERT(answer.code == 0 || answer.code >= 400);
		answer_fini(&answer);
		close(fd);
	}
	CU_ASSERT(!atomic_load(&fake.stopping));
	ask(host.socket, &answer, "GET", "/livez", "");
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	host_end(&host);
}

/* ---- the admin API alone, with limits of the test's ------------------------------------------ */

struct rig {
	struct host host; /* its place and postboxes; no control runs */
	struct bh_postbox replies;
	struct event_base *base;
	struct event *tick, *quit;
	struct bh_listener *listener;
	struct bh_conductor *conductor;
	struct bh_admin *admin;
	pthread_t thread;
	int quit_fd;
};

static void rig_tick(evutil_socket_t fd, short what, void *arg)
{
	struct rig *rig = arg;

	(void)fd;
	(void)what;
	bh_admin_tick(rig->admin);
	bh_postbox_deliver(&rig->replies);
}

static void rig_quit(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	event_base_loopbreak(arg);
}

static void *rig_run(void *arg)
{
	struct rig *rig = arg;

	event_base_dispatch(rig->base);
	bh_admin_free(rig->admin);
	return NULL;
}

static void rig_start(struct rig *rig, const struct bh_admin_limits *limits)
{
	const struct timeval every = { 0, 10000 };
	struct bh_conductor_config conductor = { .control = &rig->host.control_config };
	struct bh_admin_config admin;

	host_prepare(&rig->host);
	CU_ASSERT_FATAL(bh_postbox_init(&rig->replies, NULL) == 0);
	rig->quit_fd = eventfd(0, EFD_CLOEXEC);
	rig->base = event_base_new();
	CU_ASSERT_FATAL(bh_listener_open(rig->host.socket, "0600", &rig->listener, NULL) == 0);
	CU_ASSERT_FATAL(bh_conductor_new(&conductor, &rig->conductor, NULL) == 0);
	admin = (struct bh_admin_config){ .base = rig->base,
					  .listener = rig->listener,
					  .conductor = rig->conductor,
					  .views = &rig->host.views,
					  .replies = &rig->replies,
					  .main = &rig->host.main,
					  .name = "rig",
					  .version = "0",
					  .limits = *limits };
	CU_ASSERT_FATAL(bh_admin_new(&admin, &rig->admin, NULL) == 0);
	rig->tick = event_new(rig->base, -1, EV_PERSIST, rig_tick, rig);
	event_add(rig->tick, &every);
	rig->quit = event_new(rig->base, rig->quit_fd, EV_READ, rig_quit, rig->base);
	event_add(rig->quit, NULL);
	CU_ASSERT_FATAL(pthread_create(&rig->thread, NULL, rig_run, rig) == 0);
}

static void rig_end(struct rig *rig)
{
	eventfd_write(rig->quit_fd, 1);
	pthread_join(rig->thread, NULL);
	bh_postbox_deliver(&rig->replies);
	bh_conductor_free(rig->conductor);
	bh_listener_close(rig->listener);
	event_free(rig->tick);
	event_free(rig->quit);
	event_base_free(rig->base);
	bh_postbox_fini(&rig->replies);
	bh_postbox_fini(&rig->host.main);
	close(rig->quit_fd);
	CU_ASSERT(rmdir(rig->host.dir) == 0);
}

/* Says a byte every few milliseconds until it is cut off; false when nobody did. */
static bool drips_until_cut(int fd, const char *text)
{
	uint64_t until = bh_now_ns() + AMPLE_MS * BH_NS_PER_MS;

	client_say(fd, "%s", text);
	while (bh_now_ns() < until) {
		if (!client_send(fd, "x", 1))
			return true;
		if (readable(fd, 5))
			return true;
	}
	return false;
}

static void slow_drip_is_cut(void)
{
	struct bh_admin_limits limits = BH_ADMIN_LIMITS;
	struct rig rig;
	int fd;

	limits.patience_s = 1;
	rig_start(&rig, &limits);
	fd = client_open(rig.host.socket);
	CU_ASSERT(drips_until_cut(fd, "GET /livez HTTP/1.1\r\nX-Slow: "));
	close(fd);
	rig_end(&rig);
}

static void silent_client_is_cut(void)
{
	struct bh_admin_limits limits = BH_ADMIN_LIMITS;
	struct answer answer;
	struct rig rig;
	int fd;

	limits.idle_s = 1;
	rig_start(&rig, &limits);
	fd = client_open(rig.host.socket);
	client_say(fd, "GET /livez HTTP/1.1\r\nHo");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 0);
	answer_fini(&answer);
	close(fd);
	rig_end(&rig);
}

static json_t *render_much(void *arg)
{
	char *text = malloc(4 << 20);
	json_t *json;

	(void)arg;
	memset(text, 'm', 4 << 20);
	json = json_stringn(text, 4 << 20);
	free(text);
	return json;
}

/* Asks for much and reads a little now and then, so that no idle time passes. */
static void slow_reader_is_cut(void)
{
	struct bh_admin_limits limits = BH_ADMIN_LIMITS;
	uint64_t until;
	size_t total = 0;
	struct rig rig;
	char some[64];
	ssize_t n = 1;
	int fd;

	limits.patience_s = 1;
	rig_start(&rig, &limits);
	bh_views_add(&rig.host.views, "much", render_much, NULL);
	fd = client_open(rig.host.socket);
	client_say(fd, "GET /v1/much HTTP/1.1\r\nHost: x\r\n\r\n");
	CU_ASSERT(readable(fd, AMPLE_MS) && read(fd, some, 12) == 12);
	CU_ASSERT(memcmp(some, "HTTP/1.1 200", 12) == 0);
	until = bh_now_ns() + AMPLE_MS * BH_NS_PER_MS;
	while (bh_now_ns() < until && n > 0) {
		struct pollfd gone = { .fd = fd, .events = 0 };

		if (poll(&gone, 1, 5) == 1 && (gone.revents & POLLHUP))
			break;
		n = read(fd, some, sizeof(some));
		total += n > 0 ? (size_t)n : 0;
	}
	CU_ASSERT(bh_now_ns() < until);
	CU_ASSERT(total < 4 << 20);
	close(fd);
	rig_end(&rig);
}

static void long_call_is_not_cut(void)
{
	struct bh_admin_limits limits = BH_ADMIN_LIMITS;
	struct bh_request *request;
	struct answer answer;
	struct rig rig;
	int fd, other;

	limits.patience_s = 1;
	limits.idle_s = 1;
	rig_start(&rig, &limits);
	fd = start_call(rig.host.socket, "{}");
	request = main_take(&rig.host.main);
	/* another client's fate shows that idle time and patience have passed */
	for (int i = 0; i < 2; i++) {
		other = client_open(rig.host.socket);
		CU_ASSERT(drips_until_cut(other, "GET /livez HTTP/1.1\r\nX-Slow: "));
		close(other);
	}
	CU_ASSERT(!atomic_load(&request->given_up));
	CU_ASSERT(!readable(fd, 0));
	main_reply(request, 200, "{}");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	close(fd);
	rig_end(&rig);
}

static void crowd_is_limited(void)
{
	struct bh_admin_limits limits = BH_ADMIN_LIMITS;
	struct answer answer;
	struct rig rig;
	int fds[4], fd;

	limits.connections = 4;
	rig_start(&rig, &limits);
	for (int i = 0; i < 4; i++) {
		char byte;

		fds[i] = client_open(rig.host.socket);
		client_say(fds[i], "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
		CU_ASSERT(readable(fds[i], AMPLE_MS) && read(fds[i], &byte, 1) == 1);
	}
	fd = client_open(rig.host.socket);
	client_say(fd, "POST /v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 503);
	CU_ASSERT_STRING_EQUAL(error_code(&answer), "too-many-connections");
	answer_fini(&answer);
	close(fd);
	close(fds[0]);
	do { /* a place becomes free as soon as the loop has seen the end */
		ask(rig.host.socket, &answer, "GET", "/livez", "");
		fd = answer.code;
		answer_fini(&answer);
	} while (fd == 503);
	CU_ASSERT(fd == 200);
	CU_ASSERT(!atomic_load(&fake.stopping)); /* what was refused has not been carried out */
	for (int i = 1; i < 4; i++)
		close(fds[i]);
	rig_end(&rig);
}

static void out_of_descriptors(void)
{
	struct rlimit before, tight;
	struct bh_admin_limits limits = BH_ADMIN_LIMITS;
	struct answer answer;
	uint64_t cpu;
	struct rig rig;
	int fds[64], fd, n = 0, spare;

	rig_start(&rig, &limits);
	/* Room for the client's own descriptor, none for the loop's side of it. */
	getrlimit(RLIMIT_NOFILE, &before);
	fd = client_open(rig.host.socket);
	client_say(fd, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
	CU_ASSERT(readable(fd, AMPLE_MS)); /* accepted: its other end has its descriptor */
	spare = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	tight = before;
	tight.rlim_cur = (rlim_t)spare + 8;
	setrlimit(RLIMIT_NOFILE, &tight);
	while (n < 64 && (fds[n] = fcntl(fd, F_DUPFD_CLOEXEC, 0)) >= 0)
		n++;
	close(fd);
	fd = client_open(rig.host.socket);
	client_say(fd, "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	cpu = cpu_ns();
	CU_ASSERT(!readable(fd, 500)); /* half a second in which the loop must not spin */
	CU_ASSERT(cpu_ns() - cpu < 250 * BH_NS_PER_MS);
	setrlimit(RLIMIT_NOFILE, &before);
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	close(fd);
	close(spare);
	while (n > 0)
		close(fds[--n]);
	rig_end(&rig);
}

/* ---- reports, signals, start ----------------------------------------------------------------- */

#define REPORTERS 4
#define REPORTS_EACH 60 /* more in all than there are nodes made in advance */

static void *reporter(void *arg)
{
	struct bh_control *control = arg;
	struct bh_error cause = { 0 };

	bh_raise(&cause, -EIO, "test.cause", BH_STR("what", "x"));
	for (int i = 0; i < REPORTS_EACH; i++) {
		bh_control_report(control, BH_MILESTONE_PYTHON_UP, i % 2 ? &cause : NULL);
		bh_control_pool_announce(control, NULL, BH_POOL_READY);
		bh_control_exit_asked(control, 3, "an-app");
	}
	return NULL;
}

static void no_report_is_lost(void)
{
	struct gate gate = { .fd = eventfd(0, EFD_CLOEXEC) };
	pthread_t threads[REPORTERS];
	struct answer answer;
	struct host host;
	int fd;

	host_prepare(&host);
	bh_views_add(&host.views, "gate", render_gate, &gate);
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	fd = client_open(host.socket);
	client_say(fd, "GET /v1/gate HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	EVENTUALLY(atomic_load(&gate.entered));
	for (int i = 0; i < REPORTERS; i++)
		CU_ASSERT_FATAL(pthread_create(&threads[i], NULL, reporter, host.control) == 0);
	for (int i = 0; i < REPORTERS; i++)
		pthread_join(threads[i], NULL); /* nobody waited for the loop */
	CU_ASSERT(atomic_load(&fake.n_milestones) == 0);
	eventfd_write(gate.fd, 1);
	EVENTUALLY(atomic_load(&fake.n_milestones) == REPORTERS * REPORTS_EACH);
	EVENTUALLY(atomic_load(&fake.n_pool_events) == REPORTERS * REPORTS_EACH);
	EVENTUALLY(atomic_load(&fake.sum_of_exits) == 3 * REPORTERS * REPORTS_EACH);
	CU_ASSERT(atomic_load(&fake.cause_status) == -EIO);
	CU_ASSERT_STRING_EQUAL(fake.cause_id, "test.cause");
	CU_ASSERT_STRING_EQUAL(fake.exit_app, "an-app");
	client_read(fd, &answer);
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	close(fd);
	close(gate.fd);
	host_end(&host);
}

static void late_reports_do_no_harm(void)
{
	struct host host;

	host_start(&host);
	bh_control_report(host.control, BH_MILESTONE_FINALIZED, NULL);
	EVENTUALLY(access(host.socket, F_OK) < 0);
	bh_control_pool_announce(host.control, NULL, BH_POOL_CLEAN);
	host_join(&host);
}

static void signals_stop_and_hurry(void)
{
	struct host host;

	host_start(&host);
	kill(getpid(), SIGTERM);
	EVENTUALLY(atomic_load(&fake.n_stops) == 1);
	CU_ASSERT(atomic_load(&fake.n_hurries) == 0);
	CU_ASSERT_STRING_EQUAL(fake.why, "SIGTERM");
	kill(getpid(), SIGINT);
	EVENTUALLY(atomic_load(&fake.n_hurries) == 1);
	kill(getpid(), SIGTERM);
	EVENTUALLY(atomic_load(&fake.n_hurries) == 2);
	host_end(&host);
}

static void signal_before_the_loop_counts(void)
{
	struct host host;

	host_prepare(&host);
	kill(getpid(), SIGINT);
	CU_ASSERT(readable(bh_signals_fd(), AMPLE_MS));
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	EVENTUALLY(atomic_load(&fake.n_stops) == 1);
	CU_ASSERT_STRING_EQUAL(fake.why, "SIGINT");
	host_end(&host);
}

static bool has_default(int number)
{
	struct sigaction now;

	return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_DFL;
}

static void loop_restores_dispositions(void)
{
	struct host host;

	host_start(&host);
	signal(SIGTERM, SIG_DFL);
	EVENTUALLY(!has_default(SIGTERM));
	kill(getpid(), SIGTERM);
	EVENTUALLY(atomic_load(&fake.n_stops) == 1);
	host_end(&host);
}

static void start_fails_cleanly(void)
{
	struct bh_control *second = NULL;
	struct bh_error err = { 0 };
	struct answer answer;
	struct host host;
	unsigned before;

	host_start(&host);
	before = count_fds();
	CU_ASSERT(bh_control_start(&host.control_config, &second, &err) == -EADDRINUSE);
	CU_ASSERT_STRING_EQUAL(err.id, "socket.in-use");
	CU_ASSERT_PTR_NULL(second);
	CU_ASSERT(count_fds() == before);
	ask(host.socket, &answer, "GET", "/livez", "");
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	host_end(&host);
}

/* ---- what the apps are told ------------------------------------------------------------------ */

#define TELLINGS 256

static void tell(struct host *host, int number)
{
	bh_control_tell_apps(host->control,
			     json_pack("{s:s, s:i}", "kind", "stall", "number", number));
}

/* Everything that main is to be told, oldest first, until `n` events are there. */
static unsigned told(struct host *host, struct bh_message **ret_list, unsigned n)
{
	struct bh_message **end = ret_list;
	unsigned seen = 0;

	*ret_list = NULL;
	while (seen < n && readable(host->main.fd, AMPLE_MS)) {
		*end = bh_postbox_take(&host->main);
		for (; *end; end = &(*end)->next)
			seen++;
	}
	return seen;
}

static void answer_all(struct bh_message *list)
{
	while (list) {
		struct bh_message *next = list->next;

		bh_request_reply(bh_container_of(list, struct bh_request, message));
		list = next;
	}
}

static void events_reach_main_in_order(void)
{
	struct bh_message *list;
	struct host host;
	int number = 0;

	host_prepare(&host);
	host.config.n_apps = 1;
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	bh_control_tell_apps(host.control, NULL); /* nothing */
	for (int i = 0; i < 10; i++)
		tell(&host, i);
	CU_ASSERT_FATAL(told(&host, &list, 10) == 10);
	for (struct bh_message *m = list; m; m = m->next) {
		struct bh_request *request = bh_container_of(m, struct bh_request, message);
		json_t *event = json_loadb(request->body, request->body_len, 0, NULL);

		CU_ASSERT(request->kind == BH_REQUEST_SUPERVISE);
		CU_ASSERT(json_integer_value(json_object_get(event, "number")) == number++);
		json_decref(event);
	}
	answer_all(list);
	host_end(&host);
}

static void events_are_bounded(void)
{
	struct bh_message *list;
	struct host host;

	host_prepare(&host);
	host.config.n_apps = 1;
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	for (int i = 0; i < TELLINGS + 50; i++)
		tell(&host, i);
	CU_ASSERT_FATAL(told(&host, &list, TELLINGS) == TELLINGS);
	tell(&host, -1); /* main has them all and has answered none */
	CU_ASSERT(!readable(host.main.fd, 50));
	answer_all(list);
	/* There is room again, as soon as the loop has the answers. */
	do
		tell(&host, 1000);
	while (!readable(host.main.fd, 10));
	list = bh_postbox_take(&host.main);
	answer_all(list);
	host_end(&host);
}

static void events_after_the_end_are_dropped(void)
{
	struct answer answer;
	struct host host;

	host_prepare(&host);
	host.config.n_apps = 1;
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	atomic_store(&fake.stopping, true); /* main takes no more requests */
	for (int i = 0; i < TELLINGS + 1; i++)
		tell(&host, i);
	ask(host.socket, &answer, "GET", "/livez", ""); /* the loop has been there */
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	CU_ASSERT(!readable(host.main.fd, 0));
	host_end(&host);
}

static void without_apps_nobody_is_told(void)
{
	struct answer answer;
	struct host host;

	host_start(&host);
	tell(&host, 1);
	ask(host.socket, &answer, "GET", "/livez", "");
	CU_ASSERT(answer.code == 200);
	answer_fini(&answer);
	CU_ASSERT(!readable(host.main.fd, 0));
	host_end(&host);
}

static void report_health(struct host *host, size_t index, bh_status status)
{
	struct bh_error cause = { .status = 0 };

	if (status)
		bh_raise(&cause, status, "fake.health");
	bh_control_plugin_health(host->control, index, &cause);
}

static void healths_keep_their_order(void)
{
	struct bh_config_plugin plugins[2] = { { .label = (char *)"a" }, { .label = (char *)"b" } };
	struct host host;

	host_prepare(&host);
	host.config.plugins = plugins;
	host.config.n_plugins = 2;
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	for (int i = 1; i <= 40; i++) {
		report_health(&host, 1, i % 2 ? -i : 0);
		if (i % 7 == 0)
			EVENTUALLY(atomic_load(&fake.n_healths) == (unsigned)i);
	}
	EVENTUALLY(atomic_load(&fake.n_healths) == 40);
	for (int i = 1; i <= 40; i++) {
		CU_ASSERT_EQUAL(fake.healths[i - 1].index, 1);
		CU_ASSERT_EQUAL(fake.healths[i - 1].status, i % 2 ? -i : 0);
	}
	report_health(&host, 0, -EIO);
	EVENTUALLY(atomic_load(&fake.n_healths) == 41);
	CU_ASSERT_EQUAL(fake.healths[40].index, 0);
	report_health(&host, 0, 0); /* perhaps not taken before the end: only freed then */
	host_end(&host);
}

/* While nobody looks they may not grow without end, and the last must come through. */
static void the_last_health_counts(void)
{
	struct bh_config_plugin plugins[1] = { { .label = (char *)"a" } };
	struct gate gate = { .entered = false };
	unsigned n = 0;
	struct host host;
	int ends[2], client;

	CU_ASSERT_FATAL(pipe(ends) == 0);
	gate.fd = ends[0];
	host_prepare(&host);
	host.config.plugins = plugins;
	host.config.n_plugins = 1;
	bh_views_add(&host.views, "gate", render_gate, &gate);
	CU_ASSERT_FATAL(bh_control_start(&host.control_config, &host.control, NULL) == 0);
	client = client_open(host.socket);
	CU_ASSERT(dprintf(client, "GET /v1/gate HTTP/1.1\r\nHost: h\r\n\r\n") > 0);
	EVENTUALLY(atomic_load(&gate.entered));
	for (int i = 1; i <= 1000; i++)
		report_health(&host, 0, -i);
	CU_ASSERT(write(ends[1], "", 1) == 1);
	EVENTUALLY((n = atomic_load(&fake.n_healths)) > 0 &&
		   fake.healths[(n - 1) % BH_ARRAY_LEN(fake.healths)].status == -1000);
	CU_ASSERT(n <= BH_HEALTH_CHANGES_MAX + 1);
	close(client);
	close(ends[0]);
	close(ends[1]);
	host_end(&host);
}

static const struct bh_test tests[] = {
	{ "a plugin's changes of health come in their order", healths_keep_their_order },
	{ "of more changes of health than are read the last one counts", the_last_health_counts },
	{ "CP-1: /livez answers with nothing up but the loop", livez_answers },
	{ "/readyz says why the host is not ready", readyz_says_why_not },
	{ "/v1/status joins the conductor's part and the loop's", status_is_made_of_both },
	{ "a view is a path", views_are_paths },
	{ "an unknown path is answered with the known ones", unknown_paths_list_the_known },
	{ "a wrong method is answered with the right one", wrong_methods_say_the_right_one },
	{ "HEAD has a length and no body", head_has_no_body },
	{ "POST /v1/stop asks the conductor, without hurry", stop_is_asked_for },
	{ "CP-2: a reply given at the very end still arrives", last_reply_arrives },
	{ "CP-2: a call that ends together with the host is answered", last_call_is_answered },
	{ "requests on one connection are all answered", many_on_one_connection },
	{ "CP-1: a call goes to main and back while health answers", call_goes_to_main_and_back },
	{ "bytes that are no JSON pass to an endpoint and back as they are",
	  octets_pass_as_they_are },
	{ "a refused call says why", refused_calls_say_why },
	{ "a call's path is checked before it goes anywhere", call_paths_are_checked },
	{ "bad JSON is answered with line and column", bad_json_is_located },
	{ "JSON that only Python can hold is let through", pythons_json_is_let_through },
	{ "a client that hangs up gives its call up, and the late reply is dropped",
	  hang_up_gives_the_call_up },
	{ "a client that resets its connection gives its call up", reset_gives_the_call_up },
	{ "SUP-8: requests behind a call wait, and not without limit", pipelined_requests_wait },
	{ "a hang-up during the stop posts nothing to main", hang_up_during_a_stop_is_quiet },
	{ "CP-2: the loop ends with a call under way", end_with_a_call_under_way },
	{ "SUP-8: a header or body that is too big is refused", too_much_is_refused },
	{ "a big body goes to main whole", big_body_goes_through },
	{ "a crowd that connects and closes leaves no descriptor behind", crowd_comes_and_goes },
	{ "garbage is refused and survived", garbage_is_survived },
	{ "a client that sends a byte now and then is cut", slow_drip_is_cut },
	{ "a client that is silent is cut", silent_client_is_cut },
	{ "a client that reads a byte now and then is cut", slow_reader_is_cut },
	{ "a client that waits for its call is not cut", long_call_is_not_cut },
	{ "SUP-8: one connection too many is told so, and does nothing", crowd_is_limited },
	{ "CP-1: without descriptors the loop pauses and comes back", out_of_descriptors },
	{ "SUP-5: no report to the loop is lost, and none waits for it", no_report_is_lost },
	{ "a report after the end does no harm", late_reports_do_no_harm },
	{ "CP-2: the first signal stops, the next ones hurry", signals_stop_and_hurry },
	{ "CP-2: a signal from before the loop is heard", signal_before_the_loop_counts },
	{ "the loop restores a disposition that somebody changed", loop_restores_dispositions },
	{ "CP-3: events for the apps reach main in order", events_reach_main_in_order },
	{ "SUP-8: events that main does not answer are bounded", events_are_bounded },
	{ "CP-2: events are dropped once main takes no more requests",
	  events_after_the_end_are_dropped },
	{ "events go nowhere in a host without apps", without_apps_nobody_is_told },
	{ "a start that fails leaves nothing behind and harms nobody", start_fails_cleanly },
};

BH_TAP_MAIN("control", tests)
