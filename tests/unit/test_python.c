/* SPDX-License-Identifier: BSD-3-Clause */
/* test_python - the embedded interpreter, driven as main.c and the conductor drive it.
 *
 * There is one interpreter a process and it has one life, on the main thread: so main() is main.c's
 * part, and the suite runs on a thread that plays the control loop. It posts requests and waits for
 * their replies. The tests are in the order of that life; the first that needs the interpreter
 * brings it up. What an app sees is checked in probe_app.py, an endpoint a test. */
#include "config.h"

#include "host/python/python.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/core/exit.h"
#include "host/core/log.h"
#include "host/core/sync.h"
#include "host/gil/gil.h"
#include "host/plugin/module.h"
#include "tests/unit/tap.h"

#define PATIENCE_NS (60 * BH_NS_PER_S) /* for what is certain to come, on a busy machine */
#define PROBE_DIR BH_TEST_PACKAGEDIR "/../tests/unit"

enum order {
	ORDER_NONE,
	ORDER_START,
	ORDER_SERVE,
	ORDER_END,
	ORDER_CLOSE,
	ORDER_FINALIZE,
	ORDER_QUIT
};

/* What the main thread is to do next, one at a time. */
static struct {
	struct bh_mutex lock;
	struct bh_cond changed;
	enum order order;      /* M */
	bool carried_out;      /* M */
	bh_status status;      /* M */
	struct bh_error error; /* M */
} orders;

static struct {
	char dir[64]; /* private */
	struct bh_config *config;
	struct bh_python_config python;
	struct bh_postbox inbox, replies;
	struct bh_module *modules[3];
	bool up, serving, ended;
	bool load_held_gil;	 /* the plugin was loaded with the GIL held */
	_Atomic int exit_status; /* A: relaxed; what exit_asked last said, -1: nothing */
	_Atomic unsigned exits;	 /* A: release after the above */
} host = { .exit_status = -1 };

/* ---- the main thread ------------------------------------------------------------------------- */

static bh_status carry_out(enum order order, struct bh_error *err)
{
	switch (order) {
	case ORDER_START:
		return bh_python_start(&host.python, err);
	case ORDER_SERVE:
		return bh_python_serve(err);
	case ORDER_END:
		bh_python_end(BH_NEVER);
		return 0;
	case ORDER_CLOSE:
		return bh_gil_gate_close(bh_deadline_after(PATIENCE_NS), err);
	case ORDER_FINALIZE:
		return bh_python_finalize(err);
	case ORDER_NONE:
	case ORDER_QUIT:
		return 0;
	}
	bh_unreachable();
}

static void obey(void)
{
	bh_mutex_lock(&orders.lock);
	while (orders.order != ORDER_QUIT) {
		struct bh_error err = { 0 };
		enum order order = orders.order;
		bh_status st;

		if (order == ORDER_NONE || orders.carried_out) {
			bh_cond_wait(&orders.changed, &orders.lock,
				     BH_NEVER); /* the suite always quits */
			continue;
		}
		bh_mutex_unlock(&orders.lock);
		st = carry_out(order, &err);
		bh_mutex_lock(&orders.lock);
		orders.status = st;
		orders.error = err;
		orders.carried_out = true;
		bh_cond_broadcast(&orders.changed);
	}
	bh_mutex_unlock(&orders.lock);
}

static void give_order(enum order order)
{
	bh_mutex_lock(&orders.lock);
	orders.order = order;
	orders.carried_out = false;
	bh_cond_broadcast(&orders.changed);
	bh_mutex_unlock(&orders.lock);
}

static bh_status await_order(struct bh_error *err)
{
	struct bh_deadline until = bh_deadline_after(PATIENCE_NS);
	bh_status st = -ETIMEDOUT;

	bh_mutex_lock(&orders.lock);
	while (!orders.carried_out && bh_cond_wait(&orders.changed, &orders.lock, until))
		;
	if (orders.carried_out) {
		st = orders.status;
		if (err)
			*err = orders.error;
	}
	bh_mutex_unlock(&orders.lock);
	return st;
}

static bh_status order(enum order what, struct bh_error *err)
{
	give_order(what);
	return await_order(err);
}

/* ---- main.c's callbacks ---------------------------------------------------------------------- */

static void load_plugin(struct bh_request *request, void *arg)
{
	struct bh_gil_holder holder;

	(void)arg;
	bh_gil_holder_read(&holder);
	host.load_held_gil |= holder.held && holder.tid == (uint32_t)getpid();
	request->status = bh_module_load(&host.config->plugins[request->index],
					 &host.modules[request->index], &request->error);
	if (request->status == 0)
		request->pool = bh_module_pool(host.modules[request->index]);
	bh_request_reply(request);
}

static struct bh_module *find_module(const char *label, void *arg)
{
	(void)arg;
	for (size_t i = 0; i < BH_ARRAY_LEN(host.modules); i++)
		if (host.modules[i] && strcmp(bh_module_label(host.modules[i]), label) == 0)
			return host.modules[i];
	return NULL;
}

static void exit_asked(int status, const char *app, void *arg)
{
	(void)app;
	(void)arg;
	atomic_store_explicit(&host.exit_status, status, memory_order_relaxed);
	atomic_fetch_add_explicit(&host.exits, 1, memory_order_release);
}

/* ---- the control loop's part ----------------------------------------------------------------- */

/* On the suite's thread, in await_reply(). Nobody waits for the reply to GIVE_UP. */
static void reply_is_here(struct bh_request *request)
{
	if (request->kind == BH_REQUEST_GIVE_UP)
		bh_request_free(request);
	else
		request->done_arg = NULL;
}

static bool has_reply(const struct bh_request *request)
{
	return request->done_arg == NULL;
}

/* False after much too long; the request stays main's then. */
static bool await_reply(const struct bh_request *request)
{
	struct bh_deadline until = bh_deadline_after(PATIENCE_NS);
	struct pollfd readable = { .fd = host.replies.fd, .events = POLLIN };

	while (!has_reply(request) && !bh_deadline_passed(until)) {
		poll(&readable, 1, 1000);
		bh_postbox_deliver(&host.replies);
	}
	return has_reply(request);
}

static struct bh_request *ask(enum bh_request_kind kind, uint32_t index)
{
	struct bh_request *request = bh_request_new(kind, &host.replies, reply_is_here, &host);

	request->index = index;
	return request;
}

static void post(struct bh_request *request)
{
	bh_postbox_post(&host.inbox, &request->message);
}

static bh_status do_request(enum bh_request_kind kind, uint32_t index, struct bh_error *err)
{
	struct bh_request *request = ask(kind, index);
	bh_status st = -ETIMEDOUT;

	post(request);
	if (await_reply(request)) {
		st = request->status;
		if (err)
			*err = request->error;
		bh_request_free(request);
	}
	return st;
}

static struct bh_request *new_call(const char *endpoint, const char *json)
{
	struct bh_request *request = ask(BH_REQUEST_APP_CALL, 0);

	request->app = strdup("probe");
	request->endpoint = strdup(endpoint);
	request->body = strdup(json);
	request->body_len = strlen(json);
	return request;
}

/* Compares the reply's status and, if given, looks for `text` in its body; says what it was if not.
 */
static bool reply_has(const struct bh_request *request, int status, const char *text)
{
	bool good = request->http_status == status && request->reply &&
		    (!text || strstr(request->reply, text));

	if (!good)
		printf("# %s(%s): %d %s\n", request->endpoint, request->body, request->http_status,
		       request->reply ? request->reply : "(no reply)");
	return good;
}

static bool call(const char *endpoint, const char *json, int status, const char *text)
{
	bool good = false;
	struct bh_request *request = new_call(endpoint, json);

	post(request);
	if (await_reply(request)) {
		good = reply_has(request, status, text);
		bh_request_free(request);
	} else {
		printf("# %s: no reply\n", endpoint);
	}
	return good;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void write_file(const char *name, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void write_file(const char *name, const char *format, ...)
{
	char path[256];
	va_list args;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", host.dir, name);
	file = fopen(path, "w");
	if (!file)
		abort();
	va_start(args, format);
	vfprintf(file, format, args);
	va_end(args);
	fclose(file);
}

static bool file_has(const char *name, const char *text)
{
	char path[256], content[4096] = "";
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", host.dir, name);
	file = fopen(path, "r");
	if (!file)
		return false;
	content[fread(content, 1, sizeof(content) - 1, file)] = '\0';
	fclose(file);
	return strstr(content, text) != NULL;
}

static void remove_dir(const char *path)
{
	DIR *dir = opendir(path);
	char entry[512];

	for (struct dirent *e; dir && (e = readdir(dir));) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		snprintf(entry, sizeof(entry), "%s/%s", path, e->d_name);
		if (unlink(entry) < 0)
			remove_dir(entry);
	}
	if (dir)
		closedir(dir);
	rmdir(path);
}

static const char *const app_objects[] = {
	"probe_app:Probe",	     "no_such_module:App", "probe_app:NoSuchClass",
	"probe_app:Broken",	     "bad_syntax:App",	   "probe_app:BadStart",
	"probe_app:NeverStarts",     "probe_app:Plain",	   "probe_app:Leaves",
	"probe_app:PlainSupervisor",
};
enum {
	PROBE,
	NO_MODULE,
	NO_CLASS,
	BROKEN,
	BAD_SYNTAX,
	BAD_START,
	NEVER_STARTS,
	PLAIN,
	LEAVES,
	PLAIN_SUPERVISOR
};

static void make_manifest(void)
{
	const char *plugins = getenv("BH_TEST_PLUGINS");
	char path[128], text[4096];
	const char *const files[] = { path };
	size_t used;

	used = (size_t)snprintf(text, sizeof(text),
				"[host]\nname = t\nruntime_dir = %s\n[python]\npath = %s:%s\n"
				"[plugin count]\nlibrary = %s/t_count.so\nworkers = 2\nqueue = 64\n"
				"[plugin hold]\nlibrary = %s/t_hold.so\nworkers = 2\n"
				"[plugin types]\nlibrary = %s/t_types.so\n",
				host.dir, PROBE_DIR, host.dir, plugins, plugins, plugins);
	for (size_t i = 0; i < BH_ARRAY_LEN(app_objects); i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used,
					 "[app %s%c]\nobject = %s\n%s", i ? "app" : "prob",
					 (int)(i ? 'a' + i : 'e'), app_objects[i],
					 i ? "" : "option.greeting = hello there\n");
	write_file("node.ini", "%s", text);
	write_file("bad_syntax.py", "def broken(:\n");
	snprintf(path, sizeof(path), "%s/node.ini", host.dir);
	if (bh_config_load(files, 1, NULL, 0, stderr, &host.config) != 0)
		abort();
	host.python = (struct bh_python_config){
		.config = host.config,
		.inbox = &host.inbox,
		.package_dir = BH_TEST_PACKAGEDIR,
		.plugin_load = load_plugin,
		.find_module = find_module,
		.exit_asked = exit_asked,
	};
}

static bool have_plugins(void)
{
	return getenv("BH_TEST_PLUGINS") != NULL;
}

static bool load_pools(void)
{
	struct bh_error err = { 0 };
	char text[1024];

	for (uint32_t i = 0; i < BH_ARRAY_LEN(host.modules); i++) {
		bh_status st = do_request(BH_REQUEST_PLUGIN_LOAD, i, &err);

		if (st == 0)
			st = bh_pool_start(bh_module_pool(host.modules[i]), &err);
		if (st == 0)
			st = bh_pool_wait_started(bh_module_pool(host.modules[i]),
						  bh_deadline_after(PATIENCE_NS), &err);
		if (st < 0) {
			bh_error_render(&err, text, sizeof(text));
			printf("# %s\n", text);
			return false;
		}
	}
	return true;
}

/* The interpreter is up and served, the pools are ready, the probe has started. */
static bool bring_up(void)
{
	struct bh_error err = { 0 };
	char text[1024];
	bh_status st;

	if (host.up)
		return host.serving;
	host.up = true;
	st = order(ORDER_START, &err);
	if (st == 0) {
		give_order(ORDER_SERVE);
		if (!load_pools())
			return false;
		st = do_request(BH_REQUEST_APP_LOAD, PROBE, &err);
	}
	if (st == 0)
		st = do_request(BH_REQUEST_APP_START, PROBE, &err);
	if (st < 0) {
		bh_error_render(&err, text, sizeof(text));
		printf("# %s\n", text);
	}
	host.serving = st == 0;
	return host.serving;
}

#define NEED_HOST()                                                                                \
	do {                                                                                       \
		if (!have_plugins())                                                               \
			BH_SKIP("BH_TEST_PLUGINS does not name a directory");                      \
		CU_ASSERT_TRUE_FATAL(bring_up());                                                  \
	} while (0)

/* ---- before there is an interpreter ---------------------------------------------------------- */

/* bh_python_start with this home and venv is refused with `id`, and with `text` in the fact `key`.
 */
static void check_refused(char *home, char *venv, const char *id, const char *key, const char *text)
{
	struct bh_config config = *host.config;
	struct bh_python_config python = host.python;
	struct bh_error err = { 0 };
	const char *value;

	config.python_home = home;
	config.python_venv = venv;
	host.python.config = &config;
	CU_ASSERT_EQUAL(order(ORDER_START, &err), -EINVAL);
	host.python = python;
	CU_ASSERT_STRING_EQUAL(err.id, id);
	value = bh_error_fact(&err, key);
	CU_ASSERT_TRUE(value && strstr(value, text));
}

static void refuses_home(void)
{
	char missing[] = "/nonexistent", wrong[128], relative[] = "usr";

	snprintf(wrong, sizeof(wrong), "%s", host.dir);
	check_refused(missing, NULL, "python.home", "home", "/nonexistent");
	check_refused(wrong, NULL, "python.home", "accepted", "os.py");
	check_refused(relative, NULL, "python.home", "home", "usr");
	check_refused(missing, missing, "python.home", "accepted", "one of the two");
}

static void refuses_venv(void)
{
	char venv[128], sub[160];

	snprintf(venv, sizeof(venv), "%s/venv", host.dir);
	check_refused(NULL, venv, "python.venv", "given", "no pyvenv.cfg");
	snprintf(sub, sizeof(sub), "%s/bin", venv);
	CU_ASSERT_EQUAL(mkdir(venv, 0700), 0);
	CU_ASSERT_EQUAL(mkdir(sub, 0700), 0);
	write_file("venv/pyvenv.cfg", "home = /usr/bin\n");
	check_refused(NULL, venv, "python.venv", "given", "no version");
	write_file("venv/pyvenv.cfg", "home = /usr/bin\nversion = 2.7.18\n");
	check_refused(NULL, venv, "python.venv", "given", "2.7.18");
	write_file("venv/pyvenv.cfg", "home=/nonexistent/bin\nversion = %.4s.9\n",
		   bh_python_version());
	check_refused(NULL, venv, "python.venv", "given", "/nonexistent/bin");
}

/* ---- start ----------------------------------------------------------------------------------- */

static void starts(void)
{
	NEED_HOST();
	CU_ASSERT_FALSE(host.load_held_gil); /* PLG-5 */
	CU_ASSERT_TRUE(call("identity", "", 200, "ok"));
}

static void check_load_fails(uint32_t app, const char *type, const char *message)
{
	struct bh_error err = { 0 };

	CU_ASSERT_TRUE(do_request(BH_REQUEST_APP_LOAD, app, &err) < 0);
	CU_ASSERT_STRING_EQUAL(err.id, "app.raised");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "type"), type);
	CU_ASSERT_TRUE(strstr(bh_error_fact(&err, "message"), message) != NULL);
}

static void load_faults(void)
{
	NEED_HOST();
	check_load_fails(NO_MODULE, "ModuleNotFoundError", "no_such_module");
	check_load_fails(NO_CLASS, "AttributeError", "NoSuchClass");
	check_load_fails(BROKEN, "OSError", "cannot be made");
	check_load_fails(BAD_SYNTAX, "SyntaxError", "bad_syntax.py");
	CU_ASSERT_TRUE(do_request(BH_REQUEST_APP_START, BROKEN, NULL) < 0); /* never loaded */
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_STOP, BROKEN, NULL), 0);  /* nothing to stop */
}

static void life_faults(void)
{
	struct bh_error err = { 0 };
	struct bh_request *request;

	NEED_HOST();
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_LOAD, BAD_START, NULL), 0);
	CU_ASSERT_TRUE(do_request(BH_REQUEST_APP_START, BAD_START, &err) < 0);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "message"), "cannot start");

	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_LOAD, PLAIN, NULL), 0);
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_START, PLAIN, NULL), 0);
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_STOP, PLAIN, NULL), 0);
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_STOP, PLAIN, NULL), 0); /* once */

	/* A stop while start() still runs ends it first, and owes it no stop(). */
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_LOAD, NEVER_STARTS, NULL), 0);
	request = ask(BH_REQUEST_APP_START, NEVER_STARTS);
	post(request);
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_STOP, NEVER_STARTS, NULL), 0);
	CU_ASSERT_TRUE_FATAL(await_reply(request));
	CU_ASSERT_STRING_EQUAL(request->error.id, "app.cancelled");
	bh_request_free(request);
}

/* ---- endpoints ------------------------------------------------------------------------------- */

static void endpoint_arguments(void)
{
	NEED_HOST();
	CU_ASSERT_TRUE(call("typed", "{\"query\":\"é\"}", 200,
			    "{\"result\": [\"é\", 5, 1.0, null, \"fast\", null]}"));
	CU_ASSERT_TRUE(call("typed", "[\"q\", 7, 2, [\"a\"], \"slow\", {\"x\": 1}]", 200,
			    "[\"q\", 7, 2.0, [\"a\"], \"slow\", {\"x\": 1}]"));
	CU_ASSERT_TRUE(call("rest", "[1, 2]", 200, "[[1, 2], {}]"));
	CU_ASSERT_TRUE(call("rest", "{\"a\": \"b\"}", 200, "[[], {\"a\": \"b\"}]"));
	CU_ASSERT_TRUE(call("typed", "", 400, "missing a required argument: 'query'"));
	CU_ASSERT_TRUE(call("typed", "{}", 400, "query: str, k: int = 5"));
	CU_ASSERT_TRUE(
		call("typed", "{\"query\": 5}", 400, "query: int 5 was given; accepted: str"));
	CU_ASSERT_TRUE(
		call("typed", "{\"query\": \"q\", \"k\": true}", 400, "\"parameter\": \"k\""));
	CU_ASSERT_TRUE(call("typed", "{\"query\": \"q\", \"k\": 1.5}", 400, "accepted: int"));
	CU_ASSERT_TRUE(call("typed", "{\"query\": \"q\", \"tags\": [\"a\", 1]}", 400,
			    "tags[1]: int 1 was given; accepted: str"));
	CU_ASSERT_TRUE(
		call("typed", "{\"query\": \"q\", \"mode\": \"odd\"}", 400, "'fast' or 'slow'"));
	CU_ASSERT_TRUE(call("typed", "{\"query\": \"q\", \"more\": {\"a\": \"b\"}}", 400,
			    "accepted: int"));
	CU_ASSERT_TRUE(call("typed", "{\"query\": \"q\", \"nope\": 1}", 400, "nope"));
	CU_ASSERT_TRUE(call("rest", "[1, \"x\"]", 400, "numbers[1]"));
	CU_ASSERT_TRUE(call("typed", "{\"query\":", 400, "bad-json"));
	CU_ASSERT_TRUE(call("typed", "17", 400, "an object of named arguments"));
}

static void endpoint_errors(void)
{
	NEED_HOST();
	CU_ASSERT_TRUE(call("nope", "", 404, "unknown-endpoint"));
	CU_ASSERT_TRUE(
		call("start", "", 404, "typed")); /* not marked; the error lists what there is */
	CU_ASSERT_TRUE(call("raise_value_error", "", 500, "ValueError: no good: äöü"));
	CU_ASSERT_TRUE(call("raise_value_error", "", 500, "probe_app.py:"));
	CU_ASSERT_TRUE(call("unspeakable", "", 500, "JSON cannot express"));
	CU_ASSERT_TRUE(call("refuse", "[\"Overloaded\"]", 429, "\"why\": \"asked to\""));
	CU_ASSERT_TRUE(call("refuse", "[\"Shutdown\"]", 503, "test.shutdown"));
	CU_ASSERT_TRUE(call("refuse", "[\"Deadline\"]", 504, "test.deadline"));
	CU_ASSERT_TRUE(call("refuse", "[\"PluginError\"]", 500, "PluginError"));
}

/* One endpoint of the probe that checks for itself. */
#define PROBE_TEST(name)                                                                           \
	static void name(void)                                                                     \
	{                                                                                          \
		NEED_HOST();                                                                       \
		CU_ASSERT_TRUE(call(#name, "", 200, "ok"));                                        \
	}

PROBE_TEST(round_trips)
PROBE_TEST(bad_arguments)
PROBE_TEST(looks)
PROBE_TEST(buffers)
PROBE_TEST(lane_stats)
PROBE_TEST(own_memory)
PROBE_TEST(references)
PROBE_TEST(contexts)
PROBE_TEST(thread_states)
PROBE_TEST(exceptions)
PROBE_TEST(cycles)
PROBE_TEST(native_failures)
PROBE_TEST(cancelling)
PROBE_TEST(ordering)
PROBE_TEST(room)
PROBE_TEST(threads)
PROBE_TEST(inlined)
PROBE_TEST(forks)
PROBE_TEST(prints)

/* How often the GIL was entered at a site so far. */
static json_int_t entries_at(const char *site)
{
	json_t *gil = bh_gil_render(NULL), *row;
	json_int_t entries = 0;
	size_t i;

	json_array_foreach(json_object_get(gil, "sites"), i,
			   row) if (strcmp(json_string_value(json_object_get(row, "site")), site) ==
				    0) entries =
		json_integer_value(json_object_get(row, "entries"));
	json_decref(gil);
	return entries;
}

static void batches(void)
{
	json_int_t drains, workers;

	NEED_HOST();
	drains = entries_at("host.drain");
	workers = entries_at("host.worker-init");
	CU_ASSERT_TRUE(call("batches", "", 200, "ok"));
	drains = entries_at("host.drain") - drains;
	CU_ASSERT_TRUE(drains > 0 && drains < 2200); /* fewer entries than outcomes */
	CU_ASSERT_EQUAL(entries_at("host.worker-init"), workers);
	/* The workers of a pool without sites have never been inside. */
	CU_ASSERT_FALSE(bh_gil_unsanctioned_count());
}

PROBE_TEST(gil_stats)
PROBE_TEST(unsanctioned)

/* ---- what the apps are told ------------------------------------------------------------------ */

/* Posts it; the reply comes at once, whatever the apps do with it. */
static bh_status tell(const char *json)
{
	struct bh_request *request = ask(BH_REQUEST_SUPERVISE, 0);
	bh_status st = -ETIMEDOUT;

	request->body = strdup(json);
	request->body_len = strlen(json);
	post(request);
	if (await_reply(request)) {
		st = request->status;
		bh_request_free(request);
	}
	return st;
}

static void supervises(void)
{
	json_int_t entries;

	NEED_HOST();
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_LOAD, PLAIN_SUPERVISOR, NULL), 0);
	CU_ASSERT_EQUAL(tell("{\"kind\": \"early\"}"), 0);
	CU_ASSERT_TRUE(call("was_told", "[2]", 200, "[[\"begins\", \"early\", {}], [\"ends\", "));
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_START, PLAIN_SUPERVISOR, NULL), 0);
	entries = entries_at("host.supervise");
	CU_ASSERT_EQUAL(tell("{\"kind\": \"stall\", \"stall\": {\"id\": 7, \"kind\": \"gil\"}}"),
			0);
	CU_ASSERT_EQUAL(
		tell("{\"kind\": \"pool-failed\", \"pool\": \"p\", \"facts\": {\"a\": \"b\"}}"), 0);
	/* Only the one that had started by then, at its site; each app has its own order. */
	CU_ASSERT_TRUE(
		call("plainly_told", "[2]", 200,
		     "[[\"stall\", \"host.supervise\"], [\"pool-failed\", \"host.supervise\"]]"));
	CU_ASSERT_EQUAL(entries_at("host.supervise"), entries + 4);
	CU_ASSERT_TRUE(call(
		"was_told", "[4]", 200,
		"[[\"begins\", \"stall\", {\"id\": 7, \"kind\": \"gil\"}], [\"ends\", \"stall\"], "
		"[\"begins\", \"pool-failed\", {\"pool\": \"p\", \"facts\": {\"a\": \"b\"}}], "));
}

/* A slow one keeps its own events waiting, and the other app's not; at most 256. */
static void supervises_in_order(void)
{
	char event[64];

	NEED_HOST();
	CU_ASSERT_EQUAL(tell("{\"kind\": \"wait\"}"), 0);
	for (int i = 0; i < 300; i++) {
		snprintf(event, sizeof(event), "{\"kind\": \"n\", \"i\": %d}", i);
		CU_ASSERT_EQUAL(tell(event), 0);
	}
	CU_ASSERT_TRUE(call("plainly_told", "[301]", 200, "[[\"wait\", "));
	CU_ASSERT_TRUE(call("was_told", "[1]", 200, "[[\"begins\", \"wait\", {}]]"));
	CU_ASSERT_TRUE(call("let_supervise_go_on", "", 200, "null"));
	CU_ASSERT_TRUE(call("was_told", "[3]", 200,
			    "[[\"ends\", \"wait\"], [\"begins\", \"n\", {\"i\": 44}], "));
	CU_ASSERT_TRUE(call("was_told", "[508]", 200, "{\"i\": 298}], [\"ends\", \"n\"]"));
	CU_ASSERT_TRUE(call("was_told", "[2]", 200, "[[\"begins\", \"n\", {\"i\": 299}], "));
}

static void supervise_faults(void)
{
	unsigned exits = atomic_load_explicit(&host.exits, memory_order_acquire);

	NEED_HOST();
	CU_ASSERT_TRUE(tell("{") < 0);
	CU_ASSERT_TRUE(tell("[]") < 0);
	CU_ASSERT_EQUAL(tell("{\"kind\": \"raise\"}"), 0);
	CU_ASSERT_EQUAL(tell("{\"kind\": \"exit\", \"status\": 9}"), 0);
	CU_ASSERT_EQUAL(tell("{\"kind\": \"after\"}"), 0);
	CU_ASSERT_TRUE(
		call("was_told", "[4]", 200,
		     "[[\"begins\", \"raise\", {}], [\"begins\", \"exit\", {\"status\": 9}], "
		     "[\"begins\", \"after\", {}], [\"ends\", \"after\"]]"));
	CU_ASSERT_TRUE(call("plainly_told", "[3]", 200, "[\"after\", "));
	CU_ASSERT_EQUAL(atomic_load_explicit(&host.exits, memory_order_acquire), exits + 1);
	CU_ASSERT_EQUAL(atomic_load_explicit(&host.exit_status, memory_order_relaxed), 9);
}

/* What still runs is cancelled before stop(), and afterwards nothing is told. */
static void supervise_ends(void)
{
	NEED_HOST();
	CU_ASSERT_EQUAL(tell("{\"kind\": \"hang\"}"), 0);
	CU_ASSERT_EQUAL(tell("{\"kind\": \"never\"}"), 0);
	CU_ASSERT_TRUE(call("plainly_told", "[1]", 200, "[[\"hang\", "));
	CU_ASSERT_TRUE(call("was_told", "[4]", 200, "[[\"begins\", \"hang\", {}], "));
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_STOP, PLAIN_SUPERVISOR, NULL), 0);
	CU_ASSERT_TRUE(call("plainly_told", "[1]", 200, "[[\"cancelled\", \"\"]]"));
	CU_ASSERT_EQUAL(tell("{\"kind\": \"late\"}"), 0);
	CU_ASSERT_TRUE(call("was_told", "[2]", 200, "[[\"begins\", \"late\", {}], "));
	CU_ASSERT_TRUE(call("plainly_told", "[0]", 200, "[]"));
}

/* ---- what ends, and what does not -------------------------------------------------------------
 */

static void check_exit(const char *how, int given, int status)
{
	unsigned before = atomic_load_explicit(&host.exits, memory_order_acquire);
	char body[64];
	struct bh_request *request;

	snprintf(body, sizeof(body), "[%d, \"%s\"]", given, how);
	request = new_call("leave", body);
	post(request);
	CU_ASSERT_TRUE_FATAL(await_reply(request));
	bh_request_free(request);
	CU_ASSERT_EQUAL(atomic_load_explicit(&host.exits, memory_order_acquire),
			before + (status >= 0));
	if (status >= 0)
		CU_ASSERT_EQUAL(atomic_load_explicit(&host.exit_status, memory_order_relaxed),
				status);
	CU_ASSERT_TRUE(call("rest", "[1]", 200, "[1]")); /* the loop goes on */
}

static void system_exit(void)
{
	struct bh_error err = { 0 };

	NEED_HOST();
	check_exit("endpoint", 3, 3);
	check_exit("text", 0, 1);
	check_exit("none", 0, 0);
	check_exit("callback", 4, 4);
	check_exit("task", 5, 5);
	check_exit("callback-interrupt", 0, -1);
	check_exit("stop", 0, -1);
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_LOAD, LEAVES, NULL), 0);
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_START, LEAVES, &err), -ECANCELED);
	CU_ASSERT_STRING_EQUAL(err.id, "app.exit");
	CU_ASSERT_EQUAL(atomic_load_explicit(&host.exit_status, memory_order_relaxed), 3);
}

static struct bh_request *new_spin(const char *how)
{
	char body[128];

	snprintf(body, sizeof(body), "[\"%s\", \"%s/begun\"]", how, host.dir);
	return new_call("spin", body);
}

/* Interrupts main once it keeps itself busy. */
static void interrupt_spin(void)
{
	struct bh_deadline until = bh_deadline_after(PATIENCE_NS);
	char path[128];

	snprintf(path, sizeof(path), "%s/begun", host.dir);
	while (unlink(path) < 0 && !bh_deadline_passed(until))
		sched_yield();
	bh_python_interrupt_main();
}

static void check_interrupt(const char *how, int status)
{
	struct bh_request *request = new_spin(how);

	post(request);
	interrupt_spin();
	CU_ASSERT_TRUE_FATAL(await_reply(request));
	CU_ASSERT_TRUE(reply_has(request, status, status == 200 ? "ok" : "interrupted"));
	bh_request_free(request);
	CU_ASSERT_TRUE(call("rest", "[1]", 200, "[1]"));
}

static void interrupts(void)
{
	NEED_HOST();
	/* Under TSan a handler runs only where the thread comes through one of its interceptors. */
#ifdef __SANITIZE_THREAD__
	check_interrupt("busy", 503);
#else
	check_interrupt("loop", 503);
#endif
	check_interrupt("sleep", 503);
	check_interrupt("event", 503);
	check_interrupt("callback", 200);
	for (unsigned i = 0; i < 100; i++)
		bh_python_interrupt_main(); /* an idle loop is not harmed */
	CU_ASSERT_TRUE(call("rest", "[1]", 200, "[1]"));
}

static void giving_up(void)
{
	struct bh_request *request;

	NEED_HOST();
	request = new_call("wait_for_ever", "");
	post(request);
	atomic_store_explicit(&request->given_up, true, memory_order_relaxed);
	post(ask(BH_REQUEST_GIVE_UP, 0));
	CU_ASSERT_TRUE_FATAL(await_reply(request));
	CU_ASSERT_TRUE(reply_has(request, 503, "cancelled"));
	bh_request_free(request);
	request = new_call("wait_for_ever", "");
	post(request);
	CU_ASSERT_TRUE(call("rest", "[1]", 200, "[1]")); /* by now it has begun */
	atomic_store_explicit(&request->given_up, true, memory_order_relaxed);
	post(ask(BH_REQUEST_GIVE_UP, 0));
	CU_ASSERT_TRUE_FATAL(await_reply(request));
	CU_ASSERT_TRUE(reply_has(request, 503, "cancelled"));
	bh_request_free(request);
	CU_ASSERT_TRUE(call("was_given_up", "", 200, "ok"));
}

/* The stop of an app that had no time because another kept main busy still gets its turn (H35). */
static void late_stop(void)
{
	struct bh_request *spin, *stop;

	NEED_HOST();
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_START, PLAIN, NULL), 0);
	spin = new_spin("sleep");
	post(spin);
	stop = ask(BH_REQUEST_APP_STOP, PLAIN);
	post(stop);
	atomic_store_explicit(&stop->given_up, true, memory_order_relaxed);
	post(ask(BH_REQUEST_GIVE_UP, 0));
	interrupt_spin();
	CU_ASSERT_TRUE_FATAL(await_reply(spin) && await_reply(stop));
	CU_ASSERT_EQUAL(stop->status, 0);
	bh_request_free(spin);
	bh_request_free(stop);
}

static bool end_pool(struct bh_module *module)
{
	struct bh_pool *pool = bh_module_pool(module);
	struct bh_deadline until = bh_deadline_after(PATIENCE_NS);
	struct bh_error err = { 0 };

	bh_pool_stop(pool, bh_deadline_after(0), until);
	return bh_pool_wait_ended(pool, until, &err) == 0 && bh_pool_join(pool, until, &err) == 0;
}

static void ends(void)
{
	struct bh_error err = { 0 };
	char body[256];
	struct bh_request *request;

	NEED_HOST();
	snprintf(body, sizeof(body), "[\"%s/left\"]", host.dir);
	CU_ASSERT_TRUE(call("leave_things_behind", body, 200, "ok"));
	request = new_call("wait_for_ever", ""); /* still runs when the loop is left */
	post(request);
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_APP_STOP, PROBE, &err), 0);
	CU_ASSERT_TRUE(call("rest", "[1]", 503, "app.not-running"));
	CU_ASSERT_EQUAL(do_request(BH_REQUEST_LEAVE, 0, &err), 0);
	CU_ASSERT_EQUAL_FATAL(await_order(&err), 0); /* bh_python_serve has returned */
	host.serving = false;
	host.ended = true;
	for (size_t i = 0; i < BH_ARRAY_LEN(host.modules); i++)
		CU_ASSERT_TRUE(end_pool(host.modules[i]));
	CU_ASSERT_EQUAL_FATAL(order(ORDER_END, &err), 0);
	CU_ASSERT_TRUE_FATAL(await_reply(request));
	CU_ASSERT_EQUAL(request->http_status, 503);
	bh_request_free(request);
	CU_ASSERT_TRUE(file_has("left", "leftover cancelled"));
	CU_ASSERT_TRUE(file_has("left", "thread joined"));
	CU_ASSERT_TRUE(file_has("left", "atexit ran\nlate submission refused"));
	CU_ASSERT_FALSE(file_has("left", "refused\nthread joined"));
	CU_ASSERT_EQUAL_FATAL(order(ORDER_CLOSE, &err), 0);
	bh_python_interrupt_main(); /* ignored by now */
	CU_ASSERT_EQUAL(order(ORDER_FINALIZE, &err), 0);
	bh_python_interrupt_main();
	CU_ASSERT_EQUAL(bh_gil_parked(), 0);
}

static const struct bh_test tests[] = {
	{ "H32: a home that is none is refused before anything is initialized", refuses_home },
	{ "H32: a venv of another Python is refused before anything is initialized", refuses_venv },
	{ "the interpreter comes up isolated, in UTF-8, as the configured Python", starts },
	{ "an app that cannot be imported or made says why", load_faults },
	{ "start and stop may raise, be plain functions, or never end", life_faults },
	{ "an endpoint's arguments are checked against its annotations", endpoint_arguments },
	{ "an endpoint's errors have their HTTP status, code and facts", endpoint_errors },
	{ "values of every type go to a pool and come back", round_trips },
	{ "an argument that does not fit names pool, op, parameter, given and accepted",
	  bad_arguments },
	{ "a pool shows its ops to help() and inspect", looks },
	{ "a buffer is not copied, and given back through the release queue", buffers },
	{ "SUP-4: a lane says what became of its tasks", lane_stats },
	{ "memory of the host's and DLPack tensors go in and come out", own_memory },
	{ "GIL-9: references come back to main and are dropped there", references },
	{ "GIL-8: a callable runs in a copy of its submitter's context", contexts },
	{ "GIL-8: threading.local survives between tasks", thread_states },
	{ "a callable's exception is raised again as it was; SystemExit comes as a cause",
	  exceptions },
	{ "a task in a cycle with its exception is collected", cycles },
	{ "a native op's failure is a PluginError with facts", native_failures },
	{ "cancelling the coroutine cancels the task; deadlines are kept", cancelling },
	{ "tasks of a lane run in order", ordering },
	{ "outcomes come in batches and no worker takes the GIL for them", batches },
	{ "SUP-8: a full pool refuses with facts, and wait= waits without blocking the loop",
	  room },
	{ "tasks can be asked and awaited from other threads", threads },
	{ "SUP-7: workers may wait for their own pool", inlined },
	{ "EXIT-5: fork is refused with a reason, subprocess and spawn work", forks },
	{ "CP-1: print goes to the log line by line", prints },
	{ "bulkhead.gil.stats() is what the host's books say", gil_stats },
	{ "GIL-4: a forced unsanctioned entry counts one, from the host's loop only",
	  unsanctioned },
	{ "the apps that have started are told of events, at host.supervise", supervises },
	{ "a slow supervise() delays its own app only, and loses the oldest events past 256",
	  supervises_in_order },
	{ "what supervise() raises is logged, and SystemExit asks for the stop", supervise_faults },
	{ "supervise() is cancelled before stop()", supervise_ends },
	{ "SystemExit anywhere in an app asks for the stop and the loop goes on", system_exit },
	{ "CP-2: an interrupt breaks what keeps main busy, and nothing else", interrupts },
	{ "a call that is given up is cancelled", giving_up },
	{ "CP-2: a stop that is late because another app kept main busy still runs", late_stop },
	{ "the end: leftovers cancelled, threads joined, atexit run, gate closed, finalized",
	  ends },
};

/* ---- the process ----------------------------------------------------------------------------- */

struct arguments {
	int argc;
	char **argv;
};

static void *run_suite(void *arg)
{
	const struct arguments *arguments = arg;
	int result;

	make_manifest();
	result =
		bh_tap_main(arguments->argc, arguments->argv, "python", tests, BH_ARRAY_LEN(tests));
	remove_dir(host.dir);
	bh_log_stop(bh_deadline_after(BH_NS_PER_S));
	fflush(NULL);
	/* An interpreter that is still being served cannot be left in order. */
	if (host.up && !host.ended)
		_exit(result);
	give_order(ORDER_QUIT);
	return (void *)(intptr_t)result;
}

int main(int argc, char **argv)
{
	struct arguments arguments = { argc, argv };
	struct bh_error err = { 0 };
	pthread_t suite;
	void *result;

	snprintf(host.dir, sizeof(host.dir), "/tmp/bh-python-XXXXXX");
	bh_mutex_init(&orders.lock);
	bh_cond_init(&orders.changed);
	if (!mkdtemp(host.dir) || bh_gil_init(&err) < 0 || bh_log_start(BH_LOG_INFO, &err) < 0 ||
	    bh_identity_tag_control("python", &err) < 0 || bh_postbox_init(&host.inbox, &err) < 0 ||
	    bh_postbox_init(&host.replies, &err) < 0 ||
	    pthread_create(&suite, NULL, run_suite, &arguments) != 0)
		return 99;
	obey();
	pthread_join(suite, &result);
	if (host.ended)
		for (size_t i = 0; i < BH_ARRAY_LEN(host.modules); i++)
			host.modules[i] = bh_module_free(host.modules[i]);
	host.config = bh_config_free(host.config);
	return (int)(intptr_t)result;
}
