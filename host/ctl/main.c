/* SPDX-License-Identifier: BSD-3-Clause */
/* main - bulkheadctl: asks a running host over its admin socket, and shows the answer. */
#include "config.h"

#include <curl/curl.h>
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/ctl/client.h"
#include "host/ctl/ctl.h"
#include "host/ctl/find.h"
#include "host/ctl/show.h"
#include "host/ctl/watch.h"
#include "host/manifest/option.h"

#define QUERY_TIMEOUT_NS                                                                           \
	(5 * BH_NS_PER_S) /* the host promises 250 ms (CP-1); the machine may be busy */
#define STOP_TIMEOUT_NS (60 * BH_NS_PER_S)
#define TIMEOUT_MAX_NS (1000 * 3600 * (int64_t)BH_NS_PER_S)
#define DATA_MAX_BYTES (16u << 20) /* a host refuses a longer body (docs/admin-api.md) */
#define WATCH_PRESET_NS BH_NS_PER_S
#define WATCH_MIN_NS (100 * (int64_t)BH_NS_PER_MS)
#define WATCH_MAX_NS (3600 * (int64_t)BH_NS_PER_S)
#define CLEAR_SCREEN "\x1b[H\x1b[2J"

struct arguments {
	const char *socket, *name;
	bool json;
	bool has_timeout;
	uint64_t timeout_ns;
	bool threads, watch;
	const char *data, *output; /* files; "-": standard input */
	uint64_t watch_ns;
	char **words; /* behind the command's own */
	int n_words;
};

struct command {
	const char *name, *words, *doc;
	int min_words, max_words;
	enum bh_ctl_exit (*run)(const struct command *command, const struct arguments *arguments,
				const char *socket);
	/* For the commands that only look. */
	const char *path;
	void (*show)(FILE *out, const json_t *reply);
	bool may_watch; /* takes --threads and --watch */
};

/* ---- answers --------------------------------------------------------------------------------- */

static void body_print(const struct bh_reply *reply)
{
	fwrite(reply->body, 1, reply->length, stdout);
	if (reply->length == 0 || reply->body[reply->length - 1] != '\n')
		putchar('\n');
}

/* From here on standard output is that file. Only once there is something to write: an error leaves
 * it as it was. */
static enum bh_ctl_exit output_open(const char *path)
{
	if (freopen(path, "we", stdout))
		return BH_CTL_OK;
	bh_ctl_complain("cannot write %s: %s", path, strerror(errno));
	return BH_CTL_INTERNAL;
}

static enum bh_ctl_exit octets_print(const struct bh_reply *reply)
{
	if (isatty(STDOUT_FILENO)) {
		bh_ctl_complain("the answer is %zu bytes that are no text: write them to a file "
				"with -o FILE",
				reply->length);
		return BH_CTL_INTERNAL;
	}
	fwrite(reply->body, 1, reply->length, stdout);
	return BH_CTL_OK;
}

/* Asks; complains of a refusal by itself. There is a reply then, too, to be passed on in JSON. */
static enum bh_ctl_exit ask(const char *socket, const char *path, const struct bh_post *post,
			    uint64_t timeout_ns, struct bh_reply *ret_reply, json_t **ret_json)
{
	enum bh_ctl_exit result = bh_client_request(socket, path, post, timeout_ns, ret_reply);

	if (result != BH_CTL_OK)
		return result;
	*ret_json = json_loadb(ret_reply->body, ret_reply->length, JSON_ALLOW_NUL, NULL);
	if (ret_reply->status < 400)
		return BH_CTL_OK;
	if (!bh_show_error(*ret_json))
		bh_ctl_complain("the host answered with HTTP status %ld", ret_reply->status);
	return BH_CTL_REFUSED;
}

/* Asks and shows. In JSON the host's bytes are passed on, errors too, so that scripts see what
 * it said. */
static enum bh_ctl_exit ask_and_show(const struct arguments *arguments, const char *socket,
				     const char *path, const struct bh_post *post,
				     uint64_t timeout_ns,
				     void (*show)(FILE *out, const json_t *reply))
{
	struct bh_reply reply = { 0 };
	json_t *json = NULL;
	enum bh_ctl_exit result = ask(socket, path, post, timeout_ns, &reply, &json);

	if (result == BH_CTL_OK && arguments->output)
		result = output_open(arguments->output);
	if (result == BH_CTL_OK && reply.is_octets)
		result = octets_print(&reply);
	else if (reply.body && arguments->json)
		body_print(&reply);
	else if (result == BH_CTL_OK && json && show)
		show(stdout, json);
	else if (result == BH_CTL_OK && show)
		body_print(&reply); /* JSON beyond this parser, such as a number of 30 digits */
	json_decref(json);
	bh_reply_fini(&reply);
	return result;
}

static uint64_t timeout_or(const struct arguments *arguments, uint64_t preset_ns)
{
	return arguments->has_timeout ? arguments->timeout_ns : preset_ns;
}

static enum bh_ctl_exit run_look(const struct command *command, const struct arguments *arguments,
				 const char *socket)
{
	return ask_and_show(arguments, socket, command->path, NULL,
			    timeout_or(arguments, QUERY_TIMEOUT_NS), command->show);
}

/* ---- call ------------------------------------------------------------------------------------ */

/* The whole of a file, or of standard input; the caller frees it. */
static enum bh_ctl_exit data_read(const char *name, char **ret_data, size_t *ret_length)
{
	bool is_stdin = strcmp(name, "-") == 0;
	FILE *file = is_stdin ? stdin : fopen(name, "re");
	bh_auto_mem char *data = bh_ctl_must(malloc(DATA_MAX_BYTES + 1));
	size_t length = file ? fread(data, 1, DATA_MAX_BYTES + 1, file) : 0;
	bool failed = !file || ferror(file);
	int number = errno;

	if (file && !is_stdin)
		fclose(file);
	if (failed) {
		bh_ctl_complain("cannot read %s: %s", name, strerror(number));
		return BH_CTL_USAGE;
	}
	if (length > DATA_MAX_BYTES) {
		bh_ctl_complain("%s: longer than the %u MiB that a host takes", name,
				DATA_MAX_BYTES >> 20);
		return BH_CTL_USAGE;
	}
	*ret_data = bh_steal(&data);
	*ret_length = length;
	return BH_CTL_OK;
}

/* Where the body is a file the other arguments, a JSON object, go as a query string: strings as
 * they are, the rest as JSON. NULL for none. */
static enum bh_ctl_exit query_make(const char *json, char **ret_query)
{
	json_t *arguments = *json ? json_loads(json, 0, NULL) : json_object();
	bh_auto_mem char *query = NULL;
	const char *name, *separator = "?";
	json_t *value;

	if (!json_is_object(arguments)) {
		json_decref(arguments);
		bh_ctl_complain("with --data-binary the other arguments are a JSON object, such as "
				"'{\"width\": 64}'");
		return BH_CTL_USAGE;
	}
	json_object_foreach(arguments, name, value)
	{
		bh_auto_mem char *text =
			json_is_string(value) ? strdup(json_string_value(value))
					      : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
		bh_auto_mem char *key = bh_client_escape(name);
		bh_auto_mem char *escaped = bh_client_escape(bh_ctl_must(text));
		char *longer = NULL;

		bh_ctl_must(asprintf(&longer, "%s%s%s=%s", query ? query : "", separator, key,
				     escaped) < 0
				    ? NULL
				    : longer);
		free(query);
		query = longer;
		separator = "&";
	}
	json_decref(arguments);
	*ret_query = bh_steal(&query);
	return BH_CTL_OK;
}

/* Without an endpoint: what the app has. */
static enum bh_ctl_exit list_endpoints(const struct arguments *arguments, const char *socket)
{
	const char *name = arguments->words[0];
	struct bh_reply reply = { 0 };
	json_t *json = NULL, *app, *found = NULL;
	enum bh_ctl_exit result = ask(socket, "/v1/apps", NULL,
				      timeout_or(arguments, QUERY_TIMEOUT_NS), &reply, &json);
	size_t i;

	json_array_foreach(json_object_get(json, "apps"), i, app)
	{
		const char *has = json_string_value(json_object_get(app, "name"));

		if (has && strcmp(has, name) == 0)
			found = app;
	}
	if (result == BH_CTL_OK && !found) {
		bh_ctl_complain("there is no app \"%s\"; \"bulkheadctl status\" lists them", name);
		result = BH_CTL_REFUSED;
	} else if (result == BH_CTL_OK && arguments->json) {
		json_dumpf(found, stdout, JSON_COMPACT);
		putchar('\n');
	} else if (result == BH_CTL_OK) {
		bh_show_app(stdout, found);
	} else if (reply.body && arguments->json) {
		body_print(&reply);
	}
	json_decref(json);
	bh_reply_fini(&reply);
	return result;
}

static enum bh_ctl_exit call_endpoint(const struct command *command,
				      const struct arguments *arguments, const char *socket)
{
	bh_auto_mem char *app = bh_client_escape(arguments->words[0]);
	bh_auto_mem char *endpoint = bh_client_escape(arguments->words[1]);
	const char *json = arguments->n_words > 2 ? arguments->words[2] : "";
	struct bh_post post = { .type = BH_TYPE_JSON, .body = json, .length = strlen(json) };
	bh_auto_mem char *path = NULL, *query = NULL, *data = NULL;
	enum bh_ctl_exit result;

	if (arguments->data) {
		result = query_make(json, &query);
		if (result == BH_CTL_OK)
			result = data_read(arguments->data, &data, &post.length);
		if (result != BH_CTL_OK)
			return result;
		post.type = BH_TYPE_OCTETS;
		post.body = data;
	}
	bh_ctl_must(asprintf(&path, "/v1/apps/%s/%s%s", app, endpoint, query ? query : "") < 0
			    ? NULL
			    : path);
	return ask_and_show(arguments, socket, path, &post, timeout_or(arguments, 0),
			    command->show);
}

static enum bh_ctl_exit run_call(const struct command *command, const struct arguments *arguments,
				 const char *socket)
{
	if (arguments->n_words > 1)
		return call_endpoint(command, arguments, socket);
	if (arguments->data || arguments->output) {
		bh_ctl_complain("call APP lists its endpoints and takes no -d and no -o; "
				"to call one name it: call APP ENDPOINT");
		return BH_CTL_USAGE;
	}
	return list_endpoints(arguments, socket);
}

static enum bh_ctl_exit run_stop(const struct command *command, const struct arguments *arguments,
				 const char *socket)
{
	uint64_t timeout_ns = timeout_or(arguments, STOP_TIMEOUT_NS);
	struct bh_deadline until = bh_deadline_after(timeout_ns);
	const struct bh_post nothing = { .type = BH_TYPE_JSON, .body = "" };
	struct bh_socket_mark mark;
	bool marked =
		bh_client_mark(socket, &mark); /* before it is told: afterwards it may be gone */
	enum bh_ctl_exit result =
		ask_and_show(arguments, socket, "/v1/stop", &nothing, timeout_ns, command->show);

	if (result != BH_CTL_OK || !marked)
		return result;
	return bh_client_wait_gone(socket, &mark, until);
}

/* ---- gil ------------------------------------------------------------------------------------- */

static void show_gil(FILE *out, const json_t *reply)
{
	bh_show_gil(out, reply, NULL, 0);
}

/* One look of a watch; `*before` is the look before and becomes this one. */
static enum bh_ctl_exit gil_look(const struct arguments *arguments, const char *socket,
				 const char *path, json_t **before, uint64_t *before_ns)
{
	struct bh_reply reply = { 0 };
	json_t *json = NULL;
	enum bh_ctl_exit result =
		ask(socket, path, NULL, timeout_or(arguments, QUERY_TIMEOUT_NS), &reply, &json);
	uint64_t now = bh_now_ns();
	bool first = *before_ns == 0;

	if (reply.body && arguments->json) {
		body_print(&reply);
	} else if (result == BH_CTL_OK) {
		if (isatty(STDOUT_FILENO))
			fputs(CLEAR_SCREEN, stdout);
		else if (!first)
			putchar('\n');
		if (arguments->threads)
			bh_show_gil_threads(stdout, json);
		else
			bh_show_gil(stdout, json, *before,
				    (double)(now - *before_ns) / BH_NS_PER_S);
	}
	json_decref(*before);
	*before = json;
	*before_ns = now;
	bh_reply_fini(&reply);
	return result;
}

static enum bh_ctl_exit gil_watch(const struct arguments *arguments, const char *socket,
				  const char *path)
{
	enum bh_ctl_exit result = bh_watch_begin();
	uint64_t before_ns = 0;
	json_t *before = NULL;

	while (result == BH_CTL_OK) {
		result = gil_look(arguments, socket, path, &before, &before_ns);
		/* An output that fails is told by main(). */
		if (fflush(stdout) != 0 || ferror(stdout) || !bh_watch_pause(arguments->watch_ns))
			break;
	}
	json_decref(before);
	return result;
}

static enum bh_ctl_exit run_gil(const struct command *command, const struct arguments *arguments,
				const char *socket)
{
	if (arguments->watch)
		return gil_watch(arguments, socket, command->path);
	return ask_and_show(arguments, socket, command->path, NULL,
			    timeout_or(arguments, QUERY_TIMEOUT_NS),
			    arguments->threads ? bh_show_gil_threads : show_gil);
}

/* ---- stalls and metrics ---------------------------------------------------------------------- */

static const json_t *stall_find(const json_t *reply, json_int_t id)
{
	const json_t *stalls = json_object_get(reply, "stalls"), *stall;
	size_t i;

	json_array_foreach(stalls, i, stall)
	{
		const json_t *has = json_object_get(stall, "id");

		if (json_is_integer(has) && json_integer_value(has) == id)
			return stall;
	}
	return NULL;
}

static enum bh_ctl_exit stall_show(const struct arguments *arguments, const json_t *reply,
				   json_int_t id)
{
	const json_t *stall = stall_find(reply, id);

	if (!stall) {
		bh_ctl_complain("the host knows of no stall %s; it keeps the latest ones only",
				arguments->words[0]);
		return BH_CTL_REFUSED;
	}
	if (arguments->json) {
		json_dumpf(stall, stdout, JSON_COMPACT);
		putchar('\n');
	} else {
		bh_show_stall(stdout, stall);
	}
	return BH_CTL_OK;
}

static enum bh_ctl_exit run_stalls(const struct command *command, const struct arguments *arguments,
				   const char *socket)
{
	struct bh_reply reply = { 0 };
	enum bh_ctl_exit result;
	json_t *json = NULL;
	const char *word;

	if (arguments->n_words == 0)
		return run_look(command, arguments, socket);
	word = arguments->words[0];
	if (!*word || strspn(word, "0123456789") != strlen(word) || strlen(word) > 18) {
		bh_ctl_complain("\"%s\" is no stall's number; \"bulkheadctl stalls\" lists them",
				word);
		return BH_CTL_USAGE;
	}
	result = ask(socket, command->path, NULL, timeout_or(arguments, QUERY_TIMEOUT_NS), &reply,
		     &json);
	if (result == BH_CTL_OK)
		result = stall_show(arguments, json, (json_int_t)strtoll(word, NULL, 10));
	else if (reply.body && arguments->json)
		body_print(&reply);
	json_decref(json);
	bh_reply_fini(&reply);
	return result;
}

/* Labels may hold what somebody named a library: a terminal gets no control characters. */
static void page_print(char *page)
{
	char *save = NULL;

	for (char *line = strtok_r(page, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		bh_ctl_defuse(line);
		puts(line);
	}
}

static enum bh_ctl_exit run_metrics(const struct command *command,
				    const struct arguments *arguments, const char *socket)
{
	struct bh_reply reply = { 0 };
	json_t *json = NULL;
	enum bh_ctl_exit result = ask(socket, command->path, NULL,
				      timeout_or(arguments, QUERY_TIMEOUT_NS), &reply, &json);

	if (reply.body && arguments->json)
		body_print(&reply);
	else if (result == BH_CTL_OK)
		page_print(reply.body);
	json_decref(json);
	bh_reply_fini(&reply);
	return result;
}

static const struct command commands[] = {
	{ "status", "", "state of the host, its plugins and apps", 0, 0, run_look, "/v1/status",
	  bh_show_status, false },
	{ "pools", "", "each pool's work: queued, running, done", 0, 0, run_look, "/v1/pools",
	  bh_show_pools, false },
	{ "plugins", "", "what plugins tell: health, facts, numbers", 0, 0, run_look, "/v1/plugins",
	  bh_show_plugins, false },
	{ "gil", "", "who holds the GIL, and the account by site", 0, 0, run_gil, "/v1/gil", NULL,
	  true },
	{ "stalls", "[ID]", "what was stuck and why; one of them with its stacks", 0, 1, run_stalls,
	  "/v1/stalls", bh_show_stalls, false },
	{ "metrics", "", "the page that Prometheus reads", 0, 0, run_metrics, "/metrics", NULL,
	  false },
	{ "call", "APP [ENDPOINT [JSON]]", "call an app's endpoint, or list what an app has", 1, 3,
	  run_call, NULL, bh_show_result, false },
	{ "stop", "", "stop the host in order and wait for its end", 0, 0, run_stop, NULL, NULL,
	  false },
};

/* ---- the command line ------------------------------------------------------------------------ */

static void help_print(void)
{
	puts("Usage: bulkheadctl [OPTION...] COMMAND [ARGUMENT...]\n"
	     "Asks a running bulkheadd over its admin socket.\n");
	for (size_t i = 0; i < BH_ARRAY_LEN(commands); i++)
		printf("  %s %-*s %s\n", commands[i].name, (int)(25 - strlen(commands[i].name)),
		       commands[i].words, commands[i].doc);
	puts("\n"
	     "  -s, --socket SOCKET      the socket to ask\n"
	     "  -H, --host NAME          ask NAME.sock in the runtime directory\n"
	     "  -j, --json               print the host's reply as it is\n"
	     "  -t, --timeout TIME       give up after TIME (500ms, 10s, 2m; a plain number is\n"
	     "                           seconds); preset: 5s, stop 60s, call waits for ever\n"
	     "  -d, --data-binary @FILE  call: the body is FILE's bytes (-: stdin), for\n"
	     "                           endpoints of bytes; JSON then has the other arguments\n"
	     "  -o, --output FILE        call: write what it returns to FILE\n"
	     "      --threads            gil: by thread instead of by site\n"
	     "      --watch[=TIME]       gil: again every TIME (preset 1s), with what has come\n"
	     "                           since, until Ctrl-C or the host's end\n"
	     "  -h, --help               this text\n"
	     "  -V, --version            the version\n"
	     "\n"
	     "Without -s and -H the socket is $BULKHEAD_SOCKET, else the only *.sock in the\n"
	     "runtime directory: $RUNTIME_DIRECTORY, else /run/bulkhead for root, else\n"
	     "$XDG_RUNTIME_DIR/bulkhead.\n"
	     "\n"
	     "Exit status: 0 done; 1 the host refused; 2 no host, or no answer in time;\n"
	     "64 usage; 70 out of memory, or the answer could not be written.");
}

static enum bh_ctl_exit usage(void)
{
	fputs("Try \"bulkheadctl --help\".\n", stderr);
	return BH_CTL_USAGE;
}

static bool duration_parse(const char *name, const char *text, int64_t min_ns, int64_t max_ns,
			   uint64_t *ret_ns)
{
	const struct bh_option duration = {
		.name = name,
		.type = BH_OPT_DURATION,
		.min = min_ns,
		.max = max_ns,
	};
	bool plain = *text && strspn(text, "0123456789") == strlen(text);
	struct bh_option_value value;
	struct bh_error err = { 0 };
	bh_auto_mem char *with_unit = NULL;

	bh_ctl_must(asprintf(&with_unit, "%s%s", text, plain ? "s" : "") < 0 ? NULL : with_unit);
	if (bh_option_parse(&duration, with_unit, &value, &err) < 0) {
		bh_ctl_complain("--%s: \"%s\" %s; accepted: %s", name, text,
				bh_error_fact(&err, "reason"), bh_error_fact(&err, "accepted"));
		return false;
	}
	*ret_ns = (uint64_t)value.number;
	return true;
}

/* False: the program ends now, with `*ret_exit`. */
static bool options_read(int argc, char **argv, struct arguments *arguments,
			 enum bh_ctl_exit *ret_exit)
{
	enum { OPTION_THREADS = 256, OPTION_WATCH };
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "host", required_argument, NULL, 'H' },
		{ "json", no_argument, NULL, 'j' },
		{ "timeout", required_argument, NULL, 't' },
		{ "data-binary", required_argument, NULL, 'd' },
		{ "output", required_argument, NULL, 'o' },
		{ "threads", no_argument, NULL, OPTION_THREADS },
		{ "watch", optional_argument, NULL, OPTION_WATCH },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "s:H:jt:d:o:hV", options, NULL)) != -1) {
		switch (option) {
		case 's':
			arguments->socket = optarg;
			break;
		case 'H':
			arguments->name = optarg;
			break;
		case 'j':
			arguments->json = true;
			break;
		case 't':
			arguments->has_timeout =
				duration_parse("timeout", optarg, (int64_t)BH_NS_PER_MS,
					       TIMEOUT_MAX_NS, &arguments->timeout_ns);
			*ret_exit = BH_CTL_USAGE;
			if (!arguments->has_timeout)
				return false;
			break;
		case 'd':
			/* As curl writes it; "-" alone is standard input, too. */
			if (*optarg != '@' && strcmp(optarg, "-") != 0) {
				bh_ctl_complain("--data-binary: \"%s\" is not @FILE or -", optarg);
				*ret_exit = usage();
				return false;
			}
			arguments->data = optarg + (*optarg == '@');
			break;
		case 'o':
			arguments->output = optarg;
			break;
		case OPTION_THREADS:
			arguments->threads = true;
			break;
		case OPTION_WATCH:
			arguments->watch = true;
			arguments->watch_ns = WATCH_PRESET_NS;
			*ret_exit = BH_CTL_USAGE;
			if (optarg && !duration_parse("watch", optarg, WATCH_MIN_NS, WATCH_MAX_NS,
						      &arguments->watch_ns))
				return false;
			break;
		case 'h':
			help_print();
			*ret_exit = BH_CTL_OK;
			return false;
		case 'V':
			puts("bulkheadctl " PACKAGE_VERSION);
			*ret_exit = BH_CTL_OK;
			return false;
		default:
			*ret_exit = usage(); /* getopt has said what is wrong */
			return false;
		}
	}
	if (arguments->socket && arguments->name) {
		bh_ctl_complain("-s and -H both say where to look; give one");
		*ret_exit = usage();
		return false;
	}
	return true;
}

static const struct command *command_find(const char *word)
{
	const char *names[BH_ARRAY_LEN(commands)];
	const char *nearest;

	for (size_t i = 0; i < BH_ARRAY_LEN(commands); i++) {
		if (strcmp(commands[i].name, word) == 0)
			return &commands[i];
		names[i] = commands[i].name;
	}
	nearest = bh_option_nearest(word, names, BH_ARRAY_LEN(names));
	bh_ctl_complain("\"%s\" is no command%s%s%s", word, nearest ? "; did you mean " : "",
			nearest ? nearest : "", nearest ? "?" : "");
	return NULL;
}

static enum bh_ctl_exit command_run(const struct arguments *arguments, const char *word)
{
	const struct command *command = command_find(word);
	bh_auto_mem char *socket = NULL;
	enum bh_ctl_exit result;

	if (!command)
		return usage();
	if (arguments->n_words < command->min_words || arguments->n_words > command->max_words) {
		bh_ctl_complain("%s takes %s", command->name,
				*command->words ? command->words : "no arguments");
		return usage();
	}
	if ((arguments->threads || arguments->watch) && !command->may_watch) {
		bh_ctl_complain("%s takes no --%s", command->name,
				arguments->threads ? "threads" : "watch");
		return usage();
	}
	if ((arguments->data || arguments->output) && command->run != run_call) {
		bh_ctl_complain("%s takes no --%s", command->name,
				arguments->data ? "data-binary" : "output");
		return usage();
	}
	result = bh_find_socket(arguments->socket, arguments->name, &socket);
	return result == BH_CTL_OK ? command->run(command, arguments, socket) : result;
}

int main(int argc, char **argv)
{
	struct arguments arguments = { 0 };
	enum bh_ctl_exit result;

	if (!options_read(argc, argv, &arguments, &result))
		return (int)result;
	if (optind == argc) {
		bh_ctl_complain("no command");
		return (int)usage();
	}
	arguments.words = argv + optind + 1;
	arguments.n_words = argc - optind - 1;
	if (curl_global_init(CURL_GLOBAL_NOTHING) != CURLE_OK) {
		bh_ctl_complain("libcurl cannot start");
		return BH_CTL_INTERNAL;
	}
	result = command_run(&arguments, argv[optind]);
	curl_global_cleanup();
	if ((fflush(stdout) != 0 || ferror(stdout)) && result == BH_CTL_OK) {
		bh_ctl_complain("cannot write the answer to standard output");
		result = BH_CTL_INTERNAL;
	}
	return (int)result;
}
