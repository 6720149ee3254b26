/* SPDX-License-Identifier: BSD-3-Clause */
/* test_config - host/manifest: what manifests mean, and how each bad one is refused. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/manifest/config.h"
#include "tests/unit/tap.h"

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

/* ---- a directory with one or two manifests --------------------------------------------------- */

struct scene {
	char dir[64];
	char *files[2];
	size_t n_files;
	char *faults; /* all lines, without "DIR/" */
	int n_faults;
	struct bh_config *config;
};

static void scene_init(struct scene *scene)
{
	*scene = (struct scene){ .dir = "/tmp/bulkhead-config-XXXXXX" };
	if (!mkdtemp(scene->dir))
		abort();
}

static void scene_write(struct scene *scene, const char *name, const void *bytes, size_t length)
{
	char *path;
	FILE *file;

	if (asprintf(&path, "%s/%s", scene->dir, name) < 0)
		abort();
	file = fopen(path, "w");
	if (!file || fwrite(bytes, 1, length, file) != length || fclose(file) != 0)
		abort();
	scene->files[scene->n_files++] = path;
}

/* The scene's directory has a fresh name each time: leave it out of what is compared. */
static void scene_strip(struct scene *scene)
{
	size_t length = strlen(scene->dir) + 1;

	for (char *at = scene->faults; (at = strstr(at, scene->dir));)
		memmove(at, at + length, strlen(at + length) + 1);
}

static void scene_load(struct scene *scene, const char *const *sets, size_t n_sets)
{
	size_t size;
	FILE *out = open_memstream(&scene->faults, &size);

	if (!out)
		abort();
	scene->n_faults = bh_config_load((const char *const *)scene->files, scene->n_files, sets,
					 n_sets, out, &scene->config);
	fclose(out);
	scene_strip(scene);
}

static void scene_fini(struct scene *scene)
{
	for (size_t i = 0; i < scene->n_files; i++) {
		unlink(scene->files[i]);
		free(scene->files[i]);
	}
	rmdir(scene->dir);
	free(scene->faults);
	bh_config_free(scene->config);
}

static void scene_load_text(struct scene *scene, const char *text)
{
	scene_init(scene);
	scene_write(scene, "node.ini", text, strlen(text));
	scene_load(scene, NULL, 0);
	if (scene->n_faults)
		printf("# %s\n", scene->faults);
}

/* ---- bad manifests --------------------------------------------------------------------------- */

#define BYTES(text) (text), sizeof(text) - 1

struct bad_row {
	const char *bytes;
	size_t length;
	const char *faults;
};

static const struct bad_row bad_rows[] = {
	/* syntax */
	{ BYTES("name = x\n[host]\n"), "node.ini:1: a key before any [section]\n" },
	{ BYTES("a = 1\nb = 2\n[gil]\n"), "node.ini:1: a key before any [section]\n" },
	{ BYTES("[host]\nname\n"),
	  "node.ini:2: neither a [section] nor key = value; a comment begins with # "
	  "or ;\n" },
	{ BYTES("[host]\nname: x\n"),
	  "node.ini:2: a : where = is expected; accepted: key = value\n" },
	{ BYTES("[host]\n = x\n"), "node.ini:2: no key before the =; accepted: key = value\n" },
	{ BYTES("[host\nname = x\n"),
	  "node.ini:1: header without its ]; accepted: [section] or [section name]\n" },
	{ BYTES("[]\n"),
	  "node.ini:1: header without a name; accepted: [section] or [section name]\n" },
	{ BYTES("[ \t]\n"),
	  "node.ini:1: header without a name; accepted: [section] or [section name]\n" },
	{ BYTES("[host] ; tail\n"),
	  "node.ini:1: text behind the ] of a header; accepted: [section] alone, "
	  "comments on lines of their own\n" },
	{ BYTES("[host]name=x\n"),
	  "node.ini:1: text behind the ] of a header; accepted: [section] alone, "
	  "comments on lines of their own\n" },
	{ BYTES("[a]b]\n"), "node.ini:1: text behind the ] of a header; accepted: [section] alone, "
			    "comments on lines of their own\n" },
	{ BYTES("[plugin aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]\n"),
	  "node.ini:1: header too long; accepted: at most 49 bytes between [ and ]\n" },
	/* bytes */
	{ BYTES("[host]\nname = a\0b\n"), "node.ini:2: a NUL byte; accepted: UTF-8 text\n" },
	{ BYTES("[host]\nenv.A = \xff\n"), "node.ini:2: not UTF-8; accepted: UTF-8 text\n" },
	{ BYTES("[host]\nenv.A = \xc0\xaf\n"), "node.ini:2: not UTF-8; accepted: UTF-8 text\n" },
	{ BYTES("[host]\nenv.A = \xed\xa0\x80\n"),
	  "node.ini:2: not UTF-8; accepted: UTF-8 text\n" },
	{ BYTES("[host]\nenv.A = \xe2\x82"), "node.ini:2: not UTF-8; accepted: UTF-8 text\n" },
	{ BYTES("[host]\n# caf\xe9\n"), "node.ini:2: not UTF-8; accepted: UTF-8 text\n" },
	{ BYTES("[host]\nenv.A = \x1b[31m\n"),
	  "node.ini:2: a control character; accepted: UTF-8 text, with tabs\n" },
	{ BYTES("[host]\rname = x\r"),
	  "node.ini:1: a carriage return inside the line; accepted: lines that end in "
	  "LF or CR LF\n" },
	{ BYTES("[host]\n  [\xff]\nname = X\n"), "node.ini:2: not UTF-8; accepted: UTF-8 text\n" },
	/* quotes */
	{ BYTES("[host]\nname = \"x\n"),
	  "node.ini:2: [host] name: a quote that is never closed; accepted: "
	  "\"text\", with \\\" for a quote inside\n" },
	{ BYTES("[host]\nname = \"x\\\"\n"),
	  "node.ini:2: [host] name: a quote that is never closed; accepted: "
	  "\"text\", with \\\" for a quote inside\n" },
	{ BYTES("[host]\nname = \"x\" y\n"),
	  "node.ini:2: [host] name: text behind the closing quote; accepted: "
	  "the whole value in quotes, or none\n" },
	{ BYTES("[host]\nname = \"a\\nb\"\n"),
	  "node.ini:2: [host] name: a backslash in quotes that escapes "
	  "nothing; accepted: \\\" and \\\\\n" },
	/* sections */
	{ BYTES("[hots]\nname = x\n"),
	  "node.ini:1: [hots]: unknown section; did you mean [host]?\n" },
	{ BYTES("[Plugin a]\n"),
	  "node.ini:1: [Plugin a]: unknown section; did you mean [plugin LABEL]?\n" },
	{ BYTES("[weather]\n"),
	  "node.ini:1: [weather]: unknown section; accepted: [host], [python], [gil], "
	  "[app NAME], [plugin LABEL]\n" },
	{ BYTES("[host x]\n"), "node.ini:1: [host x]: takes no name; accepted: [host]\n" },
	{ BYTES("[app]\n"),
	  "node.ini:1: [app]: \"\" is not a name; accepted: [app NAME], its name a letter a-z, "
	  "then a-z, 0-9, _ or -, at most 31 bytes\n" },
	{ BYTES("[plugin 9x]\n"),
	  "node.ini:1: [plugin 9x]: \"9x\" is not a name; accepted: [plugin LABEL], its "
	  "name a letter a-z, then a-z, 0-9, _ or -, at most 31 bytes\n" },
	{ BYTES("[plugin a b]\n"),
	  "node.ini:1: [plugin a b]: \"a b\" is not a name; accepted: [plugin LABEL], its "
	  "name a letter a-z, then a-z, 0-9, _ or -, at most 31 bytes\n" },
	{ BYTES("[plugin aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]\n"),
	  "node.ini:1: [plugin "
	  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]: \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\" is not a name; "
	  "accepted: "
	  "[plugin LABEL], its name a letter a-z, then a-z, 0-9, _ or -, at most 31 bytes\n" },
	/* repeats */
	{ BYTES("[host]\nname = x\n\nname = y\n"),
	  "node.ini:4: [host] name: repeated; first on line 2\n" },
	{ BYTES("[host]\n[gil]\n[ host ]\nname = x\n"),
	  "node.ini:3: [host]: section repeated; first on line 1: "
	  "write its keys there\n" },
	{ BYTES("[plugin a]\nlibrary = a\n[plugin  a]\nlibrary = b\n"),
	  "node.ini:3: [plugin a]: section repeated; first on line 1: write its keys there\n"
	  "node.ini:4: [plugin a] library: repeated; first on line 2\n" },
	/* keys */
	{ BYTES("[host]\nnam = x\n"), "node.ini:2: [host] nam: unknown key; did you mean name?\n" },
	{ BYTES("[host]\nName = x\n"),
	  "node.ini:2: [host] Name: unknown key; did you mean name?\n" },
	{ BYTES("[gil]\nplanet = x\n"),
	  "node.ini:2: [gil] planet: unknown key; accepted: sample_interval, ledger, "
	  "probe_interval, stall_after, unsanctioned\n" },
	{ BYTES("[app a]\nobject = m:A\noptoin.paths = /\n"),
	  "node.ini:3: [app a] optoin.paths: unknown key; did "
	  "you mean option.KEY?\n" },
	{ BYTES("[app a]\nobject = m:A\noption. = /\n"),
	  "node.ini:3: [app a] option.: unknown key; did you mean "
	  "option.KEY?\n" },
	{ BYTES("[host]\nenv.1A = x\n"),
	  "node.ini:2: [host] env.1A: unknown key; did you mean env.NAME?\n" },
	{ BYTES("[plugin a]\nlibrary = a\nWorkers = 2\n"),
	  "node.ini:3: [plugin a] Workers: unknown key; did you "
	  "mean workers?\n" },
	{ BYTES("[plugin a]\nlibrary = a\nqu eue = 2\n"),
	  "node.ini:3: [plugin a] qu eue: unknown key; did you "
	  "mean queue?\n" },
	/* values */
	{ BYTES("[host]\nshutdown_timeout = soon\n"),
	  "node.ini:2: [host] shutdown_timeout: \"soon\" is not a "
	  "duration; accepted: a duration such as 250ms, 10s or 2m, from 100ms to 1h\n" },
	{ BYTES("[host]\nshutdown_timeout = 2h\n"),
	  "node.ini:2: [host] shutdown_timeout: \"2h\" is out of range; "
	  "accepted: a duration such as 250ms, 10s or 2m, from 100ms to 1h\n" },
	{ BYTES("[host]\nname = a/b\n"),
	  "node.ini:2: [host] name: \"a/b\" is not a name; accepted: 1 to 63 of "
	  "a-z, 0-9, _ and -\n" },
	{ BYTES("[host]\nname =\n"),
	  "node.ini:2: [host] name: \"\" is not a name; accepted: 1 to 63 of a-z, 0-9, "
	  "_ and -\n" },
	{ BYTES("[host]\nsocket_mode = 0999\n"),
	  "node.ini:2: [host] socket_mode: \"0999\" is not a mode; "
	  "accepted: an octal mode such as 0660\n" },
	{ BYTES("[host]\nlog_level = loud;very\n"),
	  "node.ini:2: [host] log_level: \"loud;very\" is not one of "
	  "the choices; accepted: debug, info, warning or error\n" },
	{ BYTES("[host]\nruntime_dir = run\n"),
	  "node.ini:2: [host] runtime_dir: \"run\" is not an absolute path; "
	  "accepted: an absolute path\n" },
	{ BYTES("[python]\npath = /a::/b\n"),
	  "node.ini:2: [python] path: \"/a::/b\" has an empty entry; accepted: "
	  "directories separated by ':'\n" },
	{ BYTES("[app a]\nobject = linesearch\n"),
	  "node.ini:2: [app a] object: \"linesearch\" names no object; "
	  "accepted: module:Attribute, such as linesearch:Search\n" },
	{ BYTES("[app a]\nobject = a:b:c\n"),
	  "node.ini:2: [app a] object: \"a:b:c\" names no object; "
	  "accepted: module:Attribute, such as linesearch:Search\n" },
	{ BYTES("[app a]\n"),
	  "node.ini:1: [app a] object: missing; accepted: module:Attribute, such as "
	  "linesearch:Search\n" },
	{ BYTES("[plugin a]\n"),
	  "node.ini:1: [plugin a] library: missing; accepted: a name to look up in the "
	  "plugin directories, such as stream, or an absolute path\n" },
	{ BYTES("[plugin a]\nlibrary = ./a.so\n"),
	  "node.ini:2: [plugin a] library: \"./a.so\" is neither a name "
	  "nor an absolute path; accepted: a name to look up in the plugin directories, such as "
	  "stream, or an "
	  "absolute path\n" },
	{ BYTES("[plugin a]\nlibrary = a\nworkers = 0\n"),
	  "node.ini:3: [plugin a] workers: \"0\" is not a number "
	  "of workers; accepted: auto, or a number from 1 to 1024\n" },
	{ BYTES("[plugin a]\nlibrary = a\nprogress_threads = 65\n"),
	  "node.ini:3: [plugin a] progress_threads: "
	  "\"65\" is out of range; accepted: a number from 0 to 64\n" },
	{ BYTES("[plugin a]\nlibrary = a\nqueue = many\n"),
	  "node.ini:3: [plugin a] queue: \"many\" is not a "
	  "number; accepted: a number from 1 to 1048576\n" },
	{ BYTES("[plugin a]\nlibrary = a\ncpus = 3-1\nnice = 20\n"),
	  "node.ini:3: [plugin a] cpus: \"3-1\" is not a list of CPUs; accepted: numbers and "
	  "ranges "
	  "from 0 to 8191 such as 0-3,8\n"
	  "node.ini:4: [plugin a] nice: \"20\" is out of range; accepted: a number from -20 to "
	  "19\n" },
	{ BYTES("[plugin a]\nlibrary = a\noptional = maybe\n"),
	  "node.ini:3: [plugin a] optional: \"maybe\" is "
	  "neither yes nor no; accepted: yes, no, true, false, on, off, 1 or 0\n" },
	/* all of them, in the order of the lines */
	{ BYTES("[app a]\n[gil]\nunsanctioned = x\nbroken\n[host]\nqueue = 1\n"),
	  "node.ini:1: [app a] object: missing; accepted: module:Attribute, such as "
	  "linesearch:Search\n"
	  "node.ini:3: [gil] unsanctioned: \"x\" is not one of the choices; accepted: count, log "
	  "or abort\n"
	  "node.ini:4: neither a [section] nor key = value; a comment begins with # or ;\n"
	  "node.ini:6: [host] queue: unknown key; accepted: name, runtime_dir, socket_mode, "
	  "shutdown_timeout, "
	  "app_stop_timeout, stall_after, log_level, on_pool_failure, env.NAME\n" },
	/* after a header that is none its keys are nobody's: not the section's before it */
	{ BYTES("[host]\n[gil\nname = UPPER\nunsanctioned = x\n[gil]\nunsanctioned = y\n"),
	  "node.ini:2: header without its ]; accepted: [section] or [section name]\n"
	  "node.ini:6: [gil] unsanctioned: \"y\" is not one of the choices; accepted: count, log "
	  "or abort\n" },
};

static int lines_of(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static void bad_manifests(void)
{
	for (size_t i = 0; i < BH_ARRAY_LEN(bad_rows); i++) {
		const struct bad_row *row = &bad_rows[i];
		struct scene scene;

		scene_init(&scene);
		scene_write(&scene, "node.ini", row->bytes, row->length);
		scene_load(&scene, NULL, 0);
		if (strcmp(scene.faults, row->faults) != 0)
			printf("# row %zu wants: %s# row %zu has: %s", i, row->faults, i,
			       scene.faults);
		CU_ASSERT_STRING_EQUAL(scene.faults, row->faults);
		CU_ASSERT_EQUAL(scene.n_faults, lines_of(row->faults));
		CU_ASSERT_PTR_NULL(scene.config);
		scene_fini(&scene);
	}
}

static void bad_files(void)
{
	struct scene scene;
	char fifo[96];
	const char *const files[] = { "/nonexistent/node.ini", "/tmp", fifo, "/dev/null" };
	size_t size;
	FILE *out;

	scene_init(&scene);
	snprintf(fifo, sizeof(fifo), "%s/fifo", scene.dir);
	CU_ASSERT_EQUAL_FATAL(mkfifo(fifo, 0600), 0);
	out = open_memstream(&scene.faults, &size);
	CU_ASSERT_EQUAL(bh_config_load(files, BH_ARRAY_LEN(files), NULL, 0, out, &scene.config), 4);
	fclose(out);
	scene_strip(&scene);
	CU_ASSERT_STRING_EQUAL(scene.faults, "/nonexistent/node.ini: No such file or directory\n"
					     "/tmp: is a directory; accepted: a regular file\n"
					     "fifo: is a FIFO; accepted: a regular file\n"
					     "/dev/null: is a device; accepted: a regular file\n");
	unlink(fifo);
	scene_fini(&scene);
}

/* ---- good manifests -------------------------------------------------------------------------- */

static const char good_text[] = "; a comment\n"
				"  # another\n"
				"[host]\n"
				"name = node-1\n"
				"runtime_dir = /run/x\n"
				"log_level = warning\n"
				"on_pool_failure = exit\n"
				"env.UCX_TLS = tcp,self\n"
				"   app_stop_timeout = 2s\n"
				"[python]\n"
				"path = lib:/opt/py\n"
				"[gil]\n"
				"unsanctioned = count\n"
				"ledger = sites\n"
				"probe_interval = 0\n"
				"stall_after = 3s\n"
				"[plugin b]\n"
				"library = stream\n"
				"workers = auto\n"
				"device = 3 ; kept\n"
				"[app search]\n"
				"object = pkg.linesearch:Search.make\n"
				"option.paths = /a b\n"
				"option.empty =\n"
				"\n"
				"[plugin a]\n"
				"library = /opt/a;b/t#1.so\n"
				"optional = yes\n"
				"workers = 4\n"
				"progress_threads = 2\n"
				"queue = 16\n"
				"cpus = 0-3,8\n"
				"nice = -5\n"
				"drain_timeout = 0\n";

static void good_check(const struct scene *scene)
{
	const struct bh_config *config = scene->config;
	const struct bh_config_plugin *plugins;
	char lib[96];

	CU_ASSERT_PTR_NOT_NULL_FATAL(config);
	snprintf(lib, sizeof(lib), "%s/lib", scene->dir);
	CU_ASSERT_STRING_EQUAL(config->name, "node-1");
	CU_ASSERT_EQUAL(config->log_level, BH_LOG_WARNING);
	CU_ASSERT_EQUAL(config->on_pool_failure, BH_EXIT_HOST);
	CU_ASSERT_EQUAL(config->unsanctioned, 0);
	CU_ASSERT_EQUAL(config->ledger, 1);
	CU_ASSERT_EQUAL(config->probe_interval_ns, 0);
	CU_ASSERT_EQUAL(config->gil_stall_after_ns, 3 * NS_PER_S);
	CU_ASSERT_EQUAL(config->stall_after_ns, 250 * (NS_PER_S / 1000));
	CU_ASSERT_EQUAL(config->python_stall_after_ns, NS_PER_S);
	CU_ASSERT_PTR_NULL(config->python_loop);
	CU_ASSERT_EQUAL_FATAL(config->n_env, 1);
	CU_ASSERT_STRING_EQUAL(config->env[0].name, "UCX_TLS");
	CU_ASSERT_STRING_EQUAL(config->env[0].value, "tcp,self");
	CU_ASSERT_EQUAL_FATAL(config->n_python_path, 2);
	CU_ASSERT_STRING_EQUAL(config->python_path[0], lib);
	CU_ASSERT_STRING_EQUAL(config->python_path[1], "/opt/py");
	CU_ASSERT_EQUAL_FATAL(config->n_apps, 1);
	CU_ASSERT_STRING_EQUAL(config->apps[0].object, "pkg.linesearch:Search.make");
	CU_ASSERT_EQUAL(config->apps[0].stop_timeout_ns, 2 * NS_PER_S);
	CU_ASSERT_EQUAL_FATAL(config->apps[0].n_options, 2);
	CU_ASSERT_STRING_EQUAL(config->apps[0].options[0].key, "paths");
	CU_ASSERT_STRING_EQUAL(config->apps[0].options[0].value, "/a b");
	CU_ASSERT_STRING_EQUAL(config->apps[0].options[1].value, "");
	CU_ASSERT_EQUAL_FATAL(config->n_plugins, 2);
	plugins = config->plugins;
	CU_ASSERT_STRING_EQUAL(plugins[0].label, "b");
	CU_ASSERT_STRING_EQUAL(plugins[0].workers, "auto");
	CU_ASSERT_EQUAL(plugins[0].progress_threads, -1);
	CU_ASSERT_EQUAL(plugins[0].drain_timeout_ns, 10 * NS_PER_S);
	CU_ASSERT_PTR_NULL(plugins[0].cpus);
	CU_ASSERT_EQUAL(plugins[0].nice, BH_NICE_KEEP);
	CU_ASSERT_EQUAL_FATAL(plugins[0].n_own, 1);
	CU_ASSERT_STRING_EQUAL(plugins[0].own[0].key, "device");
	CU_ASSERT_STRING_EQUAL(plugins[0].own[0].value, "3 ; kept");
	CU_ASSERT_EQUAL(plugins[0].own[0].origin.line, 20);
	CU_ASSERT_STRING_EQUAL(plugins[1].library, "/opt/a;b/t#1.so");
	CU_ASSERT_TRUE(plugins[1].optional);
	CU_ASSERT_EQUAL(plugins[1].queue, 16);
	CU_ASSERT_STRING_EQUAL(plugins[1].cpus, "0-3,8");
	CU_ASSERT_EQUAL(plugins[1].nice, -5);
	CU_ASSERT_EQUAL(plugins[1].progress_threads, 2);
	CU_ASSERT_EQUAL(plugins[1].drain_timeout_ns, 0);
	CU_ASSERT_EQUAL(plugins[1].stall_after_ns, 0);
}

static void good_manifest(void)
{
	struct scene scene;

#if !HAVE_DECL_INI_ALLOW_INLINE_COMMENTS
	BH_SKIP("this inih cannot keep \" ;\" in a value");
#endif
	scene_load_text(&scene, good_text);
	good_check(&scene);
	scene_fini(&scene);
}

/* The same bytes with a mark, with CR LF, without the last line end: the same meaning. */
static void line_ends_do_not_matter(void)
{
	bool crlf[] = { false, true, false }, mark[] = { true, true, false };

#if !HAVE_DECL_INI_ALLOW_INLINE_COMMENTS
	BH_SKIP("this inih cannot keep \" ;\" in a value");
#endif
	for (size_t i = 0; i < BH_ARRAY_LEN(crlf); i++) {
		char bytes[2 * sizeof(good_text) + 3];
		size_t n = 0;
		struct scene scene;

		if (mark[i])
			n = (size_t)(stpcpy(bytes, "\xEF\xBB\xBF") - bytes);
		for (const char *from = good_text; *from; from++) {
			if (*from == '\n' && crlf[i])
				bytes[n++] = '\r';
			bytes[n++] = *from;
		}
		scene_init(&scene);
		scene_write(&scene, "node.ini", bytes,
			    n - 1); /* also cuts CR LF to CR: still an end */
		scene_load(&scene, NULL, 0);
		CU_ASSERT_STRING_EQUAL(scene.faults, "");
		good_check(&scene);
		scene_fini(&scene);
	}
}

static void values_are_whole(void)
{
	static const struct {
		const char *written, *meant;
	} rows[] = {
		{ "/opt/a;b/t#1.so", "/opt/a;b/t#1.so" },
		{ "x;y;z", "x;y;z" },
		{ "5 # five", "5 # five" },
		{ "", "" },
		{ "a = b : c", "a = b : c" },
		{ "[x]", "[x]" },
		{ "  a\tb  ", "a\tb" },
		{ "\" a;b \"", " a;b " },
		{ "\"say \\\"hi\\\" \\\\ \"", "say \"hi\" \\ " },
		{ "\"\"", "" },
		{ "a \"b\"", "a \"b\"" },
		{ "C:\\new\\table", "C:\\new\\table" },
		{ "Grüße 世界 🚢", "Grüße 世界 🚢" },
#if HAVE_DECL_INI_ALLOW_INLINE_COMMENTS
		{ "a ; b", "a ; b" },
		{ "\" a ; b \"", " a ; b " },
		{ "; all of it", "; all of it" },
#endif
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct scene scene;
		char text[256];

		snprintf(text, sizeof(text), "[app a]\nobject = m:A\noption.x = %s\n",
			 rows[i].written);
		scene_load_text(&scene, text);
		CU_ASSERT_PTR_NOT_NULL_FATAL(scene.config);
		CU_ASSERT_STRING_EQUAL(scene.config->apps[0].options[0].value, rows[i].meant);
		scene_fini(&scene);
	}
}

#if HAVE_DECL_INI_MAX_LINE
#define LINE_MOST "65534"
#else
#define LINE_MOST "198"
#endif

/* Nothing is cut at the length inih is built with: whole, or refused. */
static void long_lines(void)
{
	static const size_t lengths[] = { 180, 187, 188,  197,	 198,	199,   200,
					  201, 500, 5000, 60000, 65523, 65524, 200000 };

	for (size_t i = 0; i < BH_ARRAY_LEN(lengths); i++) {
		static const char head[] = "[app a]\nobject = m:A\noption.x = ";
		size_t n = sizeof(head) - 1 + lengths[i];
		char *text = malloc(n + 1);
		struct scene scene;

		memcpy(text, head, sizeof(head));
		memset(text + sizeof(head) - 1, 'v', lengths[i]);
		scene_init(&scene);
		scene_write(&scene, "node.ini", text, n);
		scene_load(&scene, NULL, 0);
		if (scene.config)
			CU_ASSERT_EQUAL(strlen(scene.config->apps[0].options[0].value), lengths[i]);
		CU_ASSERT_STRING_EQUAL(scene.faults,
				       scene.config ? ""
						    : "node.ini:3: line too long for this build's "
						      "inih library; accepted: at most " LINE_MOST
						      " bytes\n");
#if HAVE_DECL_INI_MAX_LINE
		CU_ASSERT_EQUAL(scene.config != NULL, lengths[i] <= 65523);
#endif
		scene_fini(&scene);
		free(text);
	}
}

static void long_comment(void)
{
	char text[8000];
	struct scene scene;
	int n = snprintf(text, sizeof(text), "[host]\n# ");

	memset(text + n, 'c', 5000);
	strcpy(text + n + 5000, "\nname = after\n");
	scene_load_text(&scene, text);
	CU_ASSERT_PTR_NOT_NULL_FATAL(scene.config);
	CU_ASSERT_STRING_EQUAL(scene.config->name, "after");
	scene_fini(&scene);
}

static void presets(void)
{
	struct scene scene;

	scene_load_text(
		&scene,
		"[host]\nruntime_dir = /run/x\n[app a]\nobject = m:A\n[plugin p]\nlibrary = p\n");
	CU_ASSERT_PTR_NOT_NULL_FATAL(scene.config);
	CU_ASSERT_STRING_EQUAL(scene.config->name, "default");
	CU_ASSERT_STRING_EQUAL(scene.config->socket_mode, "0660");
	CU_ASSERT_EQUAL(scene.config->shutdown_timeout_ns, 30 * NS_PER_S);
	CU_ASSERT_EQUAL(scene.config->app_stop_timeout_ns, 10 * NS_PER_S);
	CU_ASSERT_EQUAL(scene.config->log_level, BH_LOG_INFO);
	CU_ASSERT_EQUAL(scene.config->on_pool_failure, BH_KEEP_GOING);
	CU_ASSERT_EQUAL(scene.config->sample_interval_ns, 10 * NS_PER_MS);
	CU_ASSERT_PTR_NULL(scene.config->python_home);
	CU_ASSERT_EQUAL(scene.config->apps[0].start_timeout_ns, 60 * NS_PER_S);
	CU_ASSERT_EQUAL(scene.config->apps[0].stop_timeout_ns, 10 * NS_PER_S);
	CU_ASSERT_FALSE(scene.config->plugins[0].optional);
	CU_ASSERT_PTR_NULL(scene.config->plugins[0].workers);
	CU_ASSERT_EQUAL(scene.config->plugins[0].progress_threads, -1);
	CU_ASSERT_EQUAL(scene.config->plugins[0].queue, 1024);
	CU_ASSERT_EQUAL(scene.config->plugins[0].drain_timeout_ns, 10 * NS_PER_S);
	scene_fini(&scene);
}

static void runtime_dirs(void)
{
	static const struct {
		const char *systemd, *user, *dir; /* dir as for a user who is not root */
	} rows[] = {
		{ "/run/a:/run/b", "/run/user/7", "/run/a" },
		{ NULL, "/run/user/7", "/run/user/7/bulkhead" },
		{ NULL, NULL, NULL },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		const char *dir = rows[i].systemd || geteuid() != 0 ? rows[i].dir : "/run/bulkhead";
		struct scene scene;

		unsetenv("RUNTIME_DIRECTORY");
		unsetenv("XDG_RUNTIME_DIR");
		if (rows[i].systemd)
			setenv("RUNTIME_DIRECTORY", rows[i].systemd, 1);
		if (rows[i].user)
			setenv("XDG_RUNTIME_DIR", rows[i].user, 1);
		scene_init(&scene);
		scene_write(&scene, "node.ini", "", 0);
		scene_load(&scene, NULL, 0);
		CU_ASSERT_STRING_EQUAL(
			scene.config ? scene.config->runtime_dir : scene.faults,
			dir ? dir
			    : "[host] runtime_dir: not set, and the environment does not say; set "
			      "it, or "
			      "set RUNTIME_DIRECTORY or XDG_RUNTIME_DIR to an absolute path\n");
		scene_fini(&scene);
	}
	setenv("RUNTIME_DIRECTORY", "/run/test", 1);
}

/* ---- several sources ------------------------------------------------------------------------- */

static void later_overrides(void)
{
	static const char base[] =
		"[host]\nruntime_dir = /run/x\nlog_level = error\n"
		"[plugin one]\nlibrary = a\nqueue = nonsense\n[plugin two]\nlibrary = b\n";
	static const char over[] =
		"[plugin three]\nlibrary = c\n[plugin one]\nqueue = 7\nextra = x\n";
	static const char *const sets[] = {
		"host.log_level=debug",	 "plugin two.workers = 3",
		"app search.object=m:S", "app search.option.paths=/a b:/c",
		"host.env.A=1=2",	 "host.log_level=info"
	};
	struct scene scene;
	const struct bh_config *config;

	scene_init(&scene);
	scene_write(&scene, "base.ini", base, strlen(base));
	scene_write(&scene, "over.ini", over, strlen(over));
	scene_load(&scene, sets, BH_ARRAY_LEN(sets));
	CU_ASSERT_STRING_EQUAL(scene.faults, "");
	config = scene.config;
	CU_ASSERT_PTR_NOT_NULL_FATAL(config);
	CU_ASSERT_EQUAL(config->log_level, BH_LOG_INFO);
	CU_ASSERT_EQUAL_FATAL(config->n_plugins, 3);
	CU_ASSERT_STRING_EQUAL(config->plugins[0].label, "one");
	CU_ASSERT_EQUAL(config->plugins[0].queue, 7);
	CU_ASSERT_STRING_EQUAL(config->plugins[0].library, "a");
	CU_ASSERT_STRING_EQUAL(config->plugins[0].own[0].origin.file, scene.files[1]);
	CU_ASSERT_EQUAL(config->plugins[0].own[0].origin.line, 5);
	CU_ASSERT_STRING_EQUAL(config->plugins[1].label, "two");
	CU_ASSERT_STRING_EQUAL(config->plugins[1].workers, "3");
	CU_ASSERT_STRING_EQUAL(config->plugins[2].label, "three");
	CU_ASSERT_EQUAL_FATAL(config->n_apps, 1);
	CU_ASSERT_STRING_EQUAL(config->apps[0].options[0].value, "/a b:/c");
	CU_ASSERT_STRING_EQUAL(config->apps[0].options[0].origin.file, "--set");
	CU_ASSERT_EQUAL(config->apps[0].options[0].origin.line, 0);
	CU_ASSERT_STRING_EQUAL(config->env[0].value, "1=2");
	scene_fini(&scene);
}

static void set_path_is_relative_to_cwd(void)
{
	static const char *const sets[] = { "python.path=examples" };
	struct scene scene;
	char *cwd = getcwd(NULL, 0);
	char expected[4096];

	scene_init(&scene);
	scene_write(&scene, "node.ini", BYTES("[python]\npath = gone\n"));
	scene_load(&scene, sets, 1);
	CU_ASSERT_PTR_NOT_NULL_FATAL(scene.config);
	CU_ASSERT_EQUAL(scene.config->n_python_path, 1);
	snprintf(expected, sizeof(expected), "%s/examples", cwd);
	CU_ASSERT_STRING_EQUAL(scene.config->python_path[0], expected);
	free(cwd);
	scene_fini(&scene);
}

static void bad_sets(void)
{
	static const char *const sets[] = { "host",
					    "host=x",
					    "host.=x",
					    ".name=x",
					    "host.log_level=loud",
					    "plugin x.queue=1",
					    "host.name=\"x",
					    "host.env.A=a\nb",
					    "host.nam e=x" };
	struct scene scene;

	scene_init(&scene);
	scene_load(&scene, sets, BH_ARRAY_LEN(sets));
	CU_ASSERT_EQUAL(scene.n_faults, BH_ARRAY_LEN(sets));
#define NOTHING                                                                                    \
	" sets nothing; accepted: section.key=value, such as host.log_level=debug or \"plugin "    \
	"stream.workers=2\"\n"
	CU_ASSERT_STRING_EQUAL(scene.faults,
			       "--set: \"host\"" NOTHING "--set: \"host=x\"" NOTHING
			       "--set: \"host.=x\"" NOTHING "--set: \".name=x\"" NOTHING
			       "--set: [host] log_level: \"loud\" is not one of the choices; "
			       "accepted: debug, info, warning or error\n"
			       "--set: [plugin x] library: missing; accepted: a name to look up in "
			       "the plugin directories, such as "
			       "stream, or an absolute path\n"
			       "--set: [host] name: a quote that is never closed; accepted: "
			       "\"text\", with \\\" for a quote inside\n"
			       "--set: a control character; accepted: UTF-8 text, with tabs\n"
			       "--set: [host] nam e: unknown key; did you mean name?\n");
#undef NOTHING
	scene_fini(&scene);
}

static const struct bh_test tests[] = {
	{ "MAN-1: every bad manifest is refused with its file, line, section, key and what is "
	  "accepted",
	  bad_manifests },
	{ "MAN-1: a missing file, a directory, a FIFO and a device are refused without waiting",
	  bad_files },
	{ "MAN-3: a manifest means what it says", good_manifest },
	{ "MAN-3: byte-order mark, CR LF and a missing last line end change nothing",
	  line_ends_do_not_matter },
	{ "MAN-3: a value is never cut at a comment sign; quotes keep blanks", values_are_whole },
	{ "MAN-3: a long line is read whole or refused, never split", long_lines },
	{ "MAN-3: a long comment is a comment to its end", long_comment },
	{ "MAN-1: what is not written has its preset", presets },
	{ "MAN-1: the runtime directory follows the environment, or the fault says what to set",
	  runtime_dirs },
	{ "MAN-2: later files and --set override, sections merge, order is that of first "
	  "appearance",
	  later_overrides },
	{ "MAN-2: a path from --set is relative to the working directory",
	  set_path_is_relative_to_cwd },
	{ "MAN-1: every bad --set is refused", bad_sets },
};

int main(int argc, char **argv)
{
	/* For whoever runs without one, so that only the test about it depends on it. */
	setenv("RUNTIME_DIRECTORY", "/run/test", 1);
	return bh_tap_main(argc, argv, "config", tests, BH_ARRAY_LEN(tests));
}
