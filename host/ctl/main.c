/* SPDX-License-Identifier: BSD-3-Clause */
/* main - bulkheadctl: asks a running host over its admin socket, and shows the answer. */
#include "config.h"

#include <curl/curl.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "host/ctl/client.h"
#include "host/ctl/ctl.h"
#include "host/ctl/find.h"
#include "host/ctl/show.h"
#include "host/manifest/option.h"

#define QUERY_TIMEOUT_NS                                                                           \
	(5 * BH_NS_PER_S) /* the host promises 250 ms (CP-1); the machine may be busy */
#define STOP_TIMEOUT_NS (60 * BH_NS_PER_S)
#define TIMEOUT_MAX_NS (1000 * 3600 * (int64_t)BH_NS_PER_S)

struct arguments {
	const char *socket, *name;
	bool json;
	bool has_timeout;
	uint64_t timeout_ns;
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
};

/* ---- answers --------------------------------------------------------------------------------- */

static void body_print(const struct bh_reply *reply)
{
	fwrite(reply->body, 1, reply->length, stdout);
	if (reply->length == 0 || reply->body[reply->length - 1] != '\n')
		putchar('\n');
}

/* Asks and shows. In JSON the host's bytes are passed on, errors too, so that scripts see what
 * it said. */
static enum bh_ctl_exit ask(const struct arguments *arguments, const char *socket, const char *path,
			    const char *body, uint64_t timeout_ns,
			    void (*show)(FILE *out, const json_t *reply))
{
	struct bh_reply reply;
	enum bh_ctl_exit result = bh_client_request(socket, path, body, timeout_ns, &reply);
	json_t *json;

	if (result != BH_CTL_OK)
		return result;
	json = json_loadb(reply.body, reply.length, JSON_ALLOW_NUL, NULL);
	if (reply.status >= 400) {
		result = BH_CTL_REFUSED;
		if (!bh_show_error(json))
			bh_ctl_complain("the host answered with HTTP status %ld", reply.status);
	}
	if (arguments->json)
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
	return ask(arguments, socket, command->path, NULL, timeout_or(arguments, QUERY_TIMEOUT_NS),
		   command->show);
}

static enum bh_ctl_exit run_call(const struct command *command, const struct arguments *arguments,
				 const char *socket)
{
	bh_auto_mem char *app = bh_client_escape(arguments->words[0]);
	bh_auto_mem char *endpoint = bh_client_escape(arguments->words[1]);
	const char *body = arguments->n_words > 2 ? arguments->words[2] : "";
	bh_auto_mem char *path = NULL;

	bh_ctl_must(asprintf(&path, "/v1/apps/%s/%s", app, endpoint) < 0 ? NULL : path);
	return ask(arguments, socket, path, body, timeout_or(arguments, 0), command->show);
}

static enum bh_ctl_exit run_stop(const struct command *command, const struct arguments *arguments,
				 const char *socket)
{
	uint64_t timeout_ns = timeout_or(arguments, STOP_TIMEOUT_NS);
	struct bh_deadline until = bh_deadline_after(timeout_ns);
	struct bh_socket_mark mark;
	bool marked =
		bh_client_mark(socket, &mark); /* before it is told: afterwards it may be gone */
	enum bh_ctl_exit result = ask(arguments, socket, "/v1/stop", "", timeout_ns, command->show);

	if (result != BH_CTL_OK || !marked)
		return result;
	return bh_client_wait_gone(socket, &mark, until);
}

static const struct command commands[] = {
	{ "status", "", "state of the host, its plugins and apps", 0, 0, run_look, "/v1/status",
	  bh_show_status },
	{ "pools", "", "each pool's work: queued, running, done", 0, 0, run_look, "/v1/pools",
	  bh_show_pools },
	{ "gil", "", "who holds the GIL, and the account by site", 0, 0, run_look, "/v1/gil",
	  bh_show_gil },
	{ "call", "APP ENDPOINT [JSON]", "call an app's endpoint: object of keywords or array", 2,
	  3, run_call, NULL, bh_show_result },
	{ "stop", "", "stop the host in order and wait for its end", 0, 0, run_stop, NULL, NULL },
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

static bool timeout_parse(const char *text, uint64_t *ret_ns)
{
	static const struct bh_option duration = {
		.name = "timeout",
		.type = BH_OPT_DURATION,
		.min = (int64_t)BH_NS_PER_MS,
		.max = TIMEOUT_MAX_NS,
	};
	bool plain = *text && strspn(text, "0123456789") == strlen(text);
	struct bh_option_value value;
	struct bh_error err = { 0 };
	bh_auto_mem char *with_unit = NULL;

	bh_ctl_must(asprintf(&with_unit, "%s%s", text, plain ? "s" : "") < 0 ? NULL : with_unit);
	if (bh_option_parse(&duration, with_unit, &value, &err) < 0) {
		bh_ctl_complain("--timeout: \"%s\" %s; accepted: %s", text,
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
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "host", required_argument, NULL, 'H' },
		{ "json", no_argument, NULL, 'j' },
		{ "timeout", required_argument, NULL, 't' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "s:H:jt:hV", options, NULL)) != -1) {
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
			arguments->has_timeout = timeout_parse(optarg, &arguments->timeout_ns);
			*ret_exit = BH_CTL_USAGE;
			if (!arguments->has_timeout)
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
