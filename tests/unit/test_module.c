/* SPDX-License-Identifier: BSD-3-Clause */
/* test_module - real libraries, found, loaded, refused, run and taken down. */
#include "config.h"

#include "host/plugin/module.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/gil/gil.h"
#include "host/plugin/find.h"
#include "host/plugin/service.h"
#include "host/plugin/surroundings.h"
#include "tests/unit/tap.h"

#ifndef BH_PYTHON
#define BH_PYTHON "/usr/bin/python3"
#endif
#define WAIT bh_deadline_after(30 * BH_NS_PER_S) /* generous: only a hang gets there */

static char origin_file[] = "node.ini";

/* ---- helpers -------------------------------------------------------------------------------- */

static char *plugin_path(const char *name)
{
	const char *dir = getenv("BH_TEST_PLUGINS");
	char *path = NULL;

	CU_ASSERT_FATAL(asprintf(&path, "%s/%s.so", dir ? dir : ".", name) > 0);
	return path;
}

/* A section as the manifest would have read it. The label must be new: GIL sites stay for life. */
static struct bh_config_plugin section(const char *label, char *library)
{
	return (struct bh_config_plugin){
		.label = (char *)(uintptr_t)label,
		.origin = { origin_file, 10 },
		.library = library,
		.progress_threads = -1,
		.queue = 64,
		.nice = BH_NICE_KEEP,
		.drain_timeout_ns = 10 * (int64_t)BH_NS_PER_S,
	};
}

static struct bh_module *load(const struct bh_config_plugin *config)
{
	struct bh_module *module = NULL;
	struct bh_error err = { 0 };
	char text[1200];

	if (bh_module_load(config, &module, &err) < 0) {
		bh_error_render(&err, text, sizeof(text));
		printf("# %s\n", text);
	}
	CU_ASSERT_PTR_NOT_NULL_FATAL(module);
	return module;
}

static void assert_load_fails(const char *name, bh_status status, const char *id,
			      struct bh_error *err)
{
	bh_auto_mem char *library = plugin_path(name);
	struct bh_config_plugin config = section(name, library);
	struct bh_module *module = NULL;

	bh_error_clear(err);
	CU_ASSERT_EQUAL(bh_module_load(&config, &module, err), status);
	CU_ASSERT_PTR_NULL(module);
	CU_ASSERT_STRING_EQUAL(err->id, id);
	CU_ASSERT_PTR_NOT_NULL(bh_error_fact(err, "plugin"));
}

static bool says(const struct bh_error *err, const char *key, const char *text)
{
	const char *value = bh_error_fact(err, key);

	return value && strstr(value, text);
}

static bh_status start(struct bh_module *module, struct bh_error *err)
{
	bh_status st = bh_pool_start(bh_module_pool(module), err);

	return st < 0 ? st : bh_pool_wait_started(bh_module_pool(module), WAIT, err);
}

/* Returns the state the pool ended in; the module is gone. */
static enum bh_pool_state stop(struct bh_module *module)
{
	struct bh_pool *pool = bh_module_pool(module);
	enum bh_pool_state state;

	bh_pool_stop(pool, WAIT, WAIT);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(pool, WAIT, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(bh_pool_join(pool, WAIT, NULL), 0);
	state = bh_pool_state(pool);
	bh_module_free(module);
	return state;
}

static struct bh_module *started(const char *name, const char *label)
{
	bh_auto_mem char *library = plugin_path(name);
	struct bh_config_plugin config = section(label, library);
	struct bh_module *module = load(&config);
	struct bh_error err = { 0 };

	CU_ASSERT_EQUAL_FATAL(start(module, &err), 0);
	return module;
}

static uint32_t find_op(struct bh_module *module, const char *name)
{
	uint32_t n;
	const struct bh_module_op *ops = bh_module_ops(module, &n);

	for (uint32_t i = 0; i < n; i++)
		if (strcmp(ops[i].op->name, name) == 0)
			return i;
	CU_FAIL_FATAL("no such op");
	return 0;
}

static void no_free(struct bh_ticket *ticket)
{
	(void)ticket; /* on the test's stack */
}

static void submit(struct bh_module *module, const char *op, const struct bh_value *args,
		   uint32_t n, struct bh_ticket *ticket)
{
	struct bh_args *own = bh_args_new(n);
	struct bh_error err = { 0 };

	CU_ASSERT_PTR_NOT_NULL_FATAL(own);
	for (uint32_t i = 0; i < n; i++)
		CU_ASSERT_EQUAL(bh_value_copy(&args[i], &own->v[i]), 0);
	bh_ticket_init(ticket, NULL, no_free);
	const struct bh_submission submission = {
		.op = find_op(module, op),
		.args = own,
		.deadline = BH_NEVER,
		.ticket = ticket,
	};
	CU_ASSERT_EQUAL_FATAL(bh_pool_submit(bh_module_pool(module), &submission, &err),
			      BH_ACCEPTED);
}

static enum bh_outcome wait_for(struct bh_ticket *ticket)
{
	CU_ASSERT_EQUAL_FATAL(bh_ticket_wait(ticket, WAIT, NULL), 0);
	/* The pool lets go of it a moment after the outcome is set; it lies on the test's stack. */
	while (atomic_load(&ticket->refs) > 1)
		sched_yield();
	return bh_ticket_outcome(ticket);
}

static enum bh_outcome run(struct bh_module *module, const char *op, const struct bh_value *args,
			   uint32_t n, struct bh_ticket *ticket)
{
	submit(module, op, args, n, ticket);
	return wait_for(ticket);
}

/* Submits a task that turns pending for good, and waits until it has. */
static void submit_pending(struct bh_module *module, const char *op, struct bh_ticket *ticket)
{
	const struct bh_value never = { .type = BH_TYPE_INT, .as.integer = 1000000 };
	struct bh_deadline until = WAIT;
	struct bh_pool_books books;

	submit(module, op, &never, strcmp(op, "pend") == 0, ticket);
	do {
		sched_yield();
		bh_pool_books(bh_module_pool(module), &books);
	} while (books.pending == 0 && !bh_deadline_passed(until));
	CU_ASSERT_EQUAL_FATAL(books.pending, 1);
}

static struct bh_value number(int64_t n)
{
	return (struct bh_value){ .type = BH_TYPE_INT, .as.integer = n };
}

/* ---- PLG-1 ---------------------------------------------------------------------------------- */

struct folders {
	char root[64], first[80], second[80];
};

static void folders_init(struct folders *f)
{
	snprintf(f->root, sizeof(f->root), "/tmp/bh-test-module-XXXXXX");
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(f->root));
	snprintf(f->first, sizeof(f->first), "%s/first", f->root);
	snprintf(f->second, sizeof(f->second), "%s/second", f->root);
	CU_ASSERT_EQUAL_FATAL(mkdir(f->first, 0700), 0);
	CU_ASSERT_EQUAL_FATAL(mkdir(f->second, 0700), 0);
}

static void put_file(const char *dir, const char *name, mode_t mode)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	CU_ASSERT_FATAL(fd >= 0);
	fchmod(fd, mode);
	close(fd);
}

static void folders_fini(struct folders *f)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", f->root);
	CU_ASSERT_EQUAL(system(command), 0);
}

static void plg1_search_order(void)
{
	struct bh_error err = { 0 };
	char *path = NULL, here[4096];
	struct folders f;

	folders_init(&f);
	const char *const dirs[] = { f.first, f.second, NULL };
	put_file(f.second, "a.so", 0600);
	put_file(f.second, "b.so", 0600);
	put_file(f.first, "b.so", 0600);
	CU_ASSERT_EQUAL(bh_find_library("a", dirs, &path, &err), 0);
	CU_ASSERT(path && strstr(path, "/second/a.so"));
	free(bh_steal(&path));
	CU_ASSERT_EQUAL(bh_find_library("b.so", dirs, &path, &err), 0);
	CU_ASSERT(path && strstr(path, "/first/b.so"));
	free(bh_steal(&path));

	/* Neither the working directory nor a folder relative to it. */
	CU_ASSERT_PTR_NOT_NULL_FATAL(getcwd(here, sizeof(here)));
	CU_ASSERT_EQUAL_FATAL(chdir(f.root), 0);
	put_file(f.root, "c.so", 0600);
	put_file(f.first, "d.so", 0600);
	CU_ASSERT_EQUAL(bh_find_library("c", dirs, &path, &err), -ENOENT);
	CU_ASSERT_EQUAL(
		bh_find_library("d", (const char *const[]){ "first", ".", NULL }, &path, NULL),
		-ENOENT);
	CU_ASSERT_EQUAL(chdir(here), 0);
	CU_ASSERT_STRING_EQUAL(err.id, "find.missing");
	CU_ASSERT(says(&err, "tried", "/first/c.so: No such file"));
	CU_ASSERT(says(&err, "tried", "/second/c.so: No such file"));
	folders_fini(&f);
}

static void plg1_names(void)
{
	static const struct {
		const char *library;
		bh_status status;
		const char *id;
	} rows[] = {
		{ "", -EINVAL, "find.name" },
		{ "./t_count.so", -EINVAL, "find.name" },
		{ "../t_count.so", -EINVAL, "find.name" },
		{ "dir/t_count", -EINVAL, "find.name" },
		{ "t_count", -ENOENT, "find.missing" }, /* no folder is set */
		{ "/nonexistent/x.so", -ENOENT, "find.missing" },
		{ "/etc/hostname/x.so", -ENOTDIR, "find.missing" },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_error err = { 0 };
		char *path = NULL;

		CU_ASSERT_EQUAL(bh_find_library(rows[i].library, NULL, &path, &err),
				rows[i].status);
		CU_ASSERT_STRING_EQUAL(err.id, rows[i].id);
		CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "library"), rows[i].library);
		CU_ASSERT_PTR_NULL(path);
	}
}

static void plg1_symbolic_links(void)
{
	struct bh_error err = { 0 };
	char link[128], target[128], *path = NULL;
	struct folders f;

	folders_init(&f);
	put_file(f.second, "real.so", 0600);
	snprintf(link, sizeof(link), "%s/alias.so", f.first);
	snprintf(target, sizeof(target), "%s/real.so", f.second);
	CU_ASSERT_EQUAL_FATAL(symlink(target, link), 0);
	CU_ASSERT_EQUAL(bh_find_library(link, NULL, &path, &err), 0);
	CU_ASSERT(path && strstr(path, "/second/real.so"));
	free(path);
	folders_fini(&f);
}

static void plg1_writable_by_others(void)
{
	struct bh_error err = { 0 };
	char path[128];
	struct folders f;

	folders_init(&f);
	put_file(f.first, "a.so", 0600);
	snprintf(path, sizeof(path), "%s/a.so", f.first);
	/* /tmp above it is writable by all, and sticky. */
	CU_ASSERT_EQUAL(bh_find_check(path, true, &err), 0);

	chmod(path, 0606);
	CU_ASSERT_EQUAL(bh_find_check(path, false, &err), 0);
	CU_ASSERT_EQUAL(bh_find_check(path, true, &err), -EPERM);
	CU_ASSERT_STRING_EQUAL(err.id, "find.unsafe");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "writable"), path);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "mode"), "0606");

	chmod(path, 0600);
	chmod(f.root, 0703);
	bh_error_clear(&err);
	CU_ASSERT_EQUAL(bh_find_check(path, true, &err), -EPERM);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "writable"), f.root);
	chmod(f.root, 0700);

	bh_error_clear(&err);
	CU_ASSERT_EQUAL(bh_find_check(f.first, true, &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(err.id, "find.not-file");
	folders_fini(&f);
}

/* ---- PLG-2, PLG-3: refusals ----------------------------------------------------------------- */

static void plg2_refuses_before_dlopen(void)
{
	struct bh_error err;

	assert_load_fails("bad_abi", -ENOEXEC, "note.abi", &err); /* its constructor would abort */
	CU_ASSERT_PTR_NOT_NULL(bh_error_fact(&err, "path"));
	assert_load_fails("not_plugin", -ENOEXEC, "note.missing", &err);
	assert_load_fails("absent", -ENOENT, "find.missing", &err);
}

static void plg3_lists_every_fault(void)
{
	struct bh_error err;

	assert_load_fails("bad_null", -EINVAL, "descriptor.invalid", &err);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "faults"), "3");
	CU_ASSERT(says(&err, "list", "close is NULL"));
	CU_ASSERT(says(&err, "list", "progress is NULL"));
	CU_ASSERT(says(&err, "list", "ops[0] hollow: run is NULL"));
}

static void gil3_refuses_an_unclassified_site(void)
{
	struct bh_error err;

	assert_load_fails("bad_site", -EINVAL, "descriptor.invalid", &err);
	CU_ASSERT(says(&err, "list", "sites[0] somewhere: no policy"));
}

/* Copies a plugin with each `from` in it, a name that its dynamic string table has, made `to`. */
static char *patched(const struct folders *f, const char *plugin, const char *from, const char *to)
{
	bh_auto_mem char *source = plugin_path(plugin);
	char *path = NULL, *data;
	struct stat st;
	int fd = open(source, O_RDONLY | O_CLOEXEC);

	CU_ASSERT_FATAL(fd >= 0 && fstat(fd, &st) == 0 && strlen(from) == strlen(to));
	data = malloc((size_t)st.st_size);
	CU_ASSERT_FATAL(data && read(fd, data, (size_t)st.st_size) == st.st_size);
	close(fd);
	CU_ASSERT_FATAL(asprintf(&path, "%s/%s.so", f->first, plugin) > 0);
	for (char *at = data;
	     (at = memmem(at, (size_t)(data + st.st_size - at), from, strlen(from) + 1));)
		memcpy(at, to, strlen(to));
	fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0700);
	CU_ASSERT_FATAL(fd >= 0 && write(fd, data, (size_t)st.st_size) == st.st_size);
	close(fd);
	free(data);
	return path;
}

static void plg7_a_missing_dependency_has_the_loaders_words(void)
{
	struct bh_module *module = NULL;
	struct bh_error err = { 0 };
	struct folders f;

	folders_init(&f);
	bh_auto_mem char *library = patched(&f, "t_count", "libc.so.6", "libx.so.6");
	struct bh_config_plugin config = section("needs_x", library);
	CU_ASSERT_EQUAL(bh_module_load(&config, &module, &err), -ENOEXEC);
	CU_ASSERT_STRING_EQUAL(err.id, "module.load");
	CU_ASSERT(says(&err, "reason", "libx.so.6"));
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "path"), library);
	folders_fini(&f);
}

/* "libc.so.6" has as many letters as "libpython". */
static void plg5_another_libpython_is_refused(void)
{
	struct bh_module *module = NULL;
	struct bh_error err = { 0 };
	struct folders f;

	folders_init(&f);
	bh_auto_mem char *library = patched(&f, "t_count", "libc.so.6", "libpython");
	struct bh_config_plugin config = section("brings", library);
	CU_ASSERT_EQUAL(bh_module_load(&config, &module, &err), -ENOEXEC);
	CU_ASSERT_STRING_EQUAL(err.id, "plugin.libpython");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "library"), library);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "needs"), "libpython");
	CU_ASSERT(says(&err, "host", "libpython3."));
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "plugin"), "brings");
	/* Before dlopen: the loader has never seen the file. */
	CU_ASSERT_PTR_NULL(dlopen(library, RTLD_LAZY | RTLD_NOLOAD));
	folders_fini(&f);
}

static void plg2_a_descriptor_must_be_there(void)
{
	struct bh_error err;

	assert_load_fails("bad_descriptor", -ENOEXEC, "module.descriptor", &err);
	CU_ASSERT(says(&err, "reason", "no symbol bh_plugin"));
}

/* ---- the manifest's values ------------------------------------------------------------------ */

static struct bh_config_entry entry(char *key, char *value, uint32_t line)
{
	return (struct bh_config_entry){ key, value, { origin_file, line } };
}

static void man1_bad_options_are_all_listed(void)
{
	bh_auto_mem char *library = plugin_path("t_count");
	struct bh_config_plugin config = section("options_bad", library);
	char greting[] = "greting", hi[] = "hi", limit[] = "limit", much[] = "1000",
	     mode[] = "mode", odd[] = "odd", worker[] = "worker", two[] = "2";
	struct bh_config_entry own[] = { entry(greting, hi, 3), entry(limit, much, 4),
					 entry(mode, odd, 5), entry(worker, two, 6) };
	struct bh_module *module = NULL;
	struct bh_error err = { 0 };

	config.own = own;
	config.n_own = BH_ARRAY_LEN(own);
	CU_ASSERT_EQUAL(bh_module_load(&config, &module, &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(err.id, "option.invalid");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "faults"), "4");
	CU_ASSERT(says(
		&err, "list",
		"node.ini:3: [plugin options_bad] greting: unknown key; did you mean greeting?"));
	CU_ASSERT(says(&err, "list", "node.ini:4: [plugin options_bad] limit: \"1000\""));
	CU_ASSERT(says(&err, "list", "node.ini:5: [plugin options_bad] mode: \"odd\""));
	CU_ASSERT(says(
		&err, "list",
		"node.ini:6: [plugin options_bad] worker: unknown key; did you mean workers?"));
}

static void man1_options_reach_the_plugin(void)
{
	bh_auto_mem char *library = plugin_path("t_count");
	struct bh_config_plugin config = section("options_good", library);
	char greeting[] = "greeting", hi[] = "hi; there # all of it";
	struct bh_config_entry own[] = { entry(greeting, hi, 3) };
	struct bh_module *module;
	struct bh_context *ctx;
	struct bh_ticket ticket;
	struct bh_error err = { 0 };

	config.own = own;
	config.n_own = 1;
	module = load(&config);
	CU_ASSERT_EQUAL_FATAL(start(module, &err), 0);
	CU_ASSERT_EQUAL(run(module, "option", NULL, 0, &ticket), BH_OUTCOME_DONE);
	CU_ASSERT_STRING_EQUAL(ticket.result.as.text.data, "hi; there # all of it");
	bh_value_clear(&ticket.result);

	ctx = bh_pool_backend_self(bh_module_pool(module));
	CU_ASSERT_EQUAL(bh_service_table.option_int(ctx, "limit"), 7);
	CU_ASSERT_STRING_EQUAL(bh_service_table.option_text(ctx, "mode"), "calm");
	CU_ASSERT_STRING_EQUAL(bh_service_table.label(ctx), "options_good");
	/* What the table lacks, or has with another type, is logged and gives nothing. */
	CU_ASSERT_EQUAL(bh_service_table.option_int(ctx, "mode"), 0);
	CU_ASSERT_PTR_NULL(bh_service_table.option_text(ctx, "limit"));
	CU_ASSERT_PTR_NULL(bh_service_table.option_text(ctx, "nothing"));
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
}

static void plg3_worker_counts(void)
{
	static const struct {
		const char *plugin, *workers;
		int64_t progress;
		const char *id;
	} rows[] = {
		{ "t_count", "65", -1, "option.workers" },
		{ "t_hold", "17", -1, "option.workers" },
		{ "bad_start", "1", -1, "option.workers" },
		{ "t_hold", NULL, 1, "option.progress-threads" },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		bh_auto_mem char *library = plugin_path(rows[i].plugin);
		struct bh_config_plugin config = section("counts", library);
		struct bh_module *module = NULL;
		struct bh_error err = { 0 };

		config.workers = (char *)(uintptr_t)rows[i].workers;
		config.progress_threads = rows[i].progress;
		CU_ASSERT_EQUAL(bh_module_load(&config, &module, &err), -EINVAL);
		CU_ASSERT_STRING_EQUAL(err.id, rows[i].id);
		CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "section"), "node.ini:10");
		CU_ASSERT_PTR_NOT_NULL(bh_error_fact(&err, "accepted"));
	}
}

static void plg3_auto_workers(void)
{
	bh_auto_mem char *library = plugin_path("t_count");
	struct bh_config_plugin config = section("auto_workers", library);
	struct bh_module *module;
	char automatic[] = "auto";
	cpu_set_t before, one;
	int cpu = 0;

	CU_ASSERT_EQUAL_FATAL(sched_getaffinity(0, sizeof(before), &before), 0);
	while (!CPU_ISSET(cpu, &before))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	config.workers = automatic;
	CU_ASSERT_EQUAL_FATAL(sched_setaffinity(0, sizeof(one), &one), 0);
	module = load(&config);
	CU_ASSERT_EQUAL(bh_pool_workers(bh_module_pool(module)), 1);
	CU_ASSERT_EQUAL(sched_setaffinity(0, sizeof(before), &before), 0);
	bh_module_free(module);
}

static void plg3_cpus_are_allowed(void)
{
	bh_auto_mem char *library = plugin_path("t_count");
	struct bh_config_plugin config = section("cpus_refused", library);
	struct bh_module *module = NULL;
	struct bh_error err = { 0 };
	struct bh_cpus allowed, one;
	char mine[128], wrong[160], first[16], automatic[] = "auto";

	CU_ASSERT_EQUAL_FATAL(bh_cpus_allowed(&allowed, NULL), 0);
	bh_cpus_format(&allowed, mine, sizeof(mine));
	CU_ASSERT_PTR_NULL_FATAL(strstr(mine, "8190"));
	snprintf(wrong, sizeof(wrong), "%s,8190", mine);
	config.cpus = wrong;
	CU_ASSERT_EQUAL(bh_module_load(&config, &module, &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(err.id, "option.cpus");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "section"), "node.ini:10");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "missing"), "8190");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "accepted"), mine);

	/* Workers that are counted are no more than the CPUs they may have. */
	snprintf(first, sizeof(first), "%d", atoi(mine));
	CU_ASSERT_EQUAL_FATAL(bh_cpus_parse(first, &one), 0);
	config = section("cpus_one", library);
	config.cpus = first;
	config.workers = automatic;
	module = load(&config);
	CU_ASSERT_EQUAL(bh_pool_workers(bh_module_pool(module)), 1);
	bh_module_free(module);
}

static void put_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	CU_ASSERT_PTR_NOT_NULL_FATAL(file);
	fputs(text, file);
	fclose(file);
}

static void plg3_cgroup_quota(void)
{
	static const struct {
		const char *outer, *inner; /* cpu.max of /a and /a/b */
		unsigned cpus;		   /* 0: what the affinity says */
	} rows[] = {
		{ "max 100000", "max 100000", 0 },
		{ "max 100000", "100000 100000", 1 },
		{ "50000 100000", "max 100000", 1 },
		{ "100000 100000", "9000000 100000", 1 },
		{ "garbage", "-", 0 },
		{ "1000 0", "max", 0 },
	};
	unsigned all = bh_surroundings_cpus("/nonexistent", "/nonexistent");
	char proc[128], path[160];
	struct folders f;

	CU_ASSERT(all >= 1);
	folders_init(&f);
	snprintf(proc, sizeof(proc), "%s/cgroup", f.root);
	put_text(proc, "1:name=systemd:/x\n0::/a/b\n");
	snprintf(path, sizeof(path), "%s/a", f.root);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/a/b", f.root);
	mkdir(path, 0700);
	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		snprintf(path, sizeof(path), "%s/a/cpu.max", f.root);
		put_text(path, rows[i].outer);
		snprintf(path, sizeof(path), "%s/a/b/cpu.max", f.root);
		put_text(path, rows[i].inner);
		CU_ASSERT_EQUAL(bh_surroundings_cpus(proc, f.root),
				rows[i].cpus ? rows[i].cpus : all);
	}
	folders_fini(&f);
}

/* ---- running -------------------------------------------------------------------------------- */

static void plg3_ops_run_with_their_arguments(void)
{
	struct bh_module *module = started("t_count", "run");
	const struct bh_value pair[] = { number(40), number(2) };
	const struct bh_value text = { .type = BH_TYPE_STR, .as.text = { "h\303\251llo", 6 } };
	const struct bh_value list = { .type = BH_TYPE_LIST, .as.list = { pair, 2 } };
	struct bh_ticket ticket;

	CU_ASSERT_STRING_EQUAL(bh_module_label(module), "run");
	CU_ASSERT_STRING_EQUAL(bh_module_version(module), "1.0");
	CU_ASSERT(strstr(bh_module_path(module), "/t_count.so") != NULL);
	CU_ASSERT_PTR_EQUAL(bh_module_of_pool(bh_module_pool(module)), module);

	CU_ASSERT_EQUAL(run(module, "nop", NULL, 0, &ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(ticket.result.type, BH_TYPE_NONE);
	CU_ASSERT_EQUAL(run(module, "add", pair, 2, &ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(ticket.result.as.integer, 42);
	CU_ASSERT_EQUAL(run(module, "echo", &text, 1, &ticket), BH_OUTCOME_DONE);
	CU_ASSERT_STRING_EQUAL(ticket.result.as.text.data, "h\303\251llo");
	bh_value_clear(&ticket.result);
	CU_ASSERT_EQUAL(run(module, "echo_list", &list, 1, &ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(ticket.result.as.list.count, 2);
	CU_ASSERT_EQUAL(ticket.result.as.list.items[0].as.integer, 40);
	bh_value_clear(&ticket.result);
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
}

static void assert_fails(struct bh_module *module, const char *op, bh_status status, const char *id)
{
	struct bh_ticket ticket;

	CU_ASSERT_EQUAL(run(module, op, NULL, 0, &ticket), BH_OUTCOME_FAILED);
	CU_ASSERT_EQUAL(ticket.error.status, status);
	CU_ASSERT_STRING_EQUAL(ticket.error.id, id);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&ticket.error, "op"), op);
}

static void sup4_failures_say_what(void)
{
	struct bh_module *module = started("t_count", "failures");
	struct bh_ticket ticket;

	assert_fails(module, "fail", -EIO, "t_count.fail");
	assert_fails(module, "fail_bare", -ENOSPC, "plugin.failed");
	assert_fails(module, "no_result", -EPROTO, "plugin.no-result");
	assert_fails(module, "wrong_result", -EINVAL, "plugin.result");
	CU_ASSERT_EQUAL(run(module, "fail", NULL, 0, &ticket), BH_OUTCOME_FAILED);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&ticket.error, "why"), "it was asked to");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&ticket.error, "code"), "42");
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
}

static void sup4_pending_tasks(void)
{
	struct bh_module *module = started("t_count", "pending");
	const struct bh_value soon = number(20);
	struct bh_ticket ticket, other;
	struct bh_pool_books books;

	CU_ASSERT_EQUAL(run(module, "pend", &soon, 1, &ticket), BH_OUTCOME_DONE);
	/* A transfer in flight holds no worker: there is one, and it is free. */
	submit_pending(module, "pend", &ticket);
	CU_ASSERT_EQUAL(run(module, "nop", NULL, 0, &other), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(bh_ticket_outcome(&ticket), BH_OUTCOME_NONE);
	CU_ASSERT(bh_ticket_cancel(&ticket, false));
	CU_ASSERT_EQUAL(wait_for(&ticket), BH_OUTCOME_CANCELLED);

	CU_ASSERT_EQUAL(run(module, "twice", NULL, 0, &ticket), BH_OUTCOME_DONE);
	do { /* the second completion comes after the outcome */
		CU_ASSERT_EQUAL(run(module, "refused", NULL, 0, &ticket), BH_OUTCOME_DONE);
	} while (ticket.result.as.integer == 0);
	CU_ASSERT_EQUAL(ticket.result.as.integer, 1);
	bh_pool_books(bh_module_pool(module), &books);
	CU_ASSERT_EQUAL(books.submitted, books.done + books.cancelled);
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
}

static void sup10_a_lost_task_is_abandoned(void)
{
	struct bh_module *module = started("t_count", "lost");
	struct bh_pool *pool = bh_module_pool(module);
	struct bh_ticket ticket;

	submit_pending(module, "lost", &ticket);
	bh_pool_stop(pool, bh_deadline_after(0), bh_deadline_after(0));
	CU_ASSERT_EQUAL(wait_for(&ticket), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
}

static void sup5_a_plugin_can_report_itself_failed(void)
{
	struct bh_module *module = started("t_count", "broken");
	struct bh_pool *pool = bh_module_pool(module);
	struct bh_error cause = { 0 };
	struct bh_ticket ticket;

	(void)run(module, "break_pool", NULL, 0, &ticket);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(pool, WAIT, NULL), 0);
	CU_ASSERT(bh_pool_cause(pool, &cause));
	CU_ASSERT_STRING_EQUAL(cause.id, "t_count.broken");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "why"), "it was asked to");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "plugin"), "broken");
	CU_ASSERT_EQUAL(stop(module), BH_POOL_FAILED);
}

/* Two sections may name one library: the state is the plugin's to keep apart. */
static void plg4_one_library_under_two_labels(void)
{
	struct bh_module *a = started("t_count", "twin-a"), *b = started("t_count", "twin-b");
	const struct bh_value text = { .type = BH_TYPE_STR, .as.text = { "x", 1 } };
	struct bh_ticket ticket;

	CU_ASSERT_EQUAL(run(a, "note", &text, 1, &ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(run(b, "notes", NULL, 0, &ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(ticket.result.as.list.count, 0);
	bh_value_clear(&ticket.result);
	CU_ASSERT_EQUAL(stop(b), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(stop(a), BH_POOL_CLEAN);
}

/* ---- misuse --------------------------------------------------------------------------------- */

static void ri5_late_calls_are_refused(void)
{
	struct bh_module *module = started("t_count", "late");
	struct bh_context *ctx = bh_pool_backend_self(bh_module_pool(module));
	const struct bh_services *host = &bh_service_table;
	struct bh_ticket ticket;
	char line[1024], task[32];
	FILE *file;
	int saved;

	CU_ASSERT_EQUAL(run(module, "nop", NULL, 0, &ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(host->complete(ctx, ticket.task_id, 0, NULL, NULL, NULL, 0), -ESRCH);
	CU_ASSERT_EQUAL(host->complete(ctx, 0, 0, NULL, NULL, NULL, 0), -ESRCH);
	CU_ASSERT_EQUAL(host->complete(ctx, UINT64_MAX, -EIO, NULL, "x.y", NULL, 0), -ESRCH);
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);

	/* The module is gone; the context is not, since the plugin has seen it. */
	file = tmpfile();
	saved = dup(STDERR_FILENO);
	CU_ASSERT_PTR_NOT_NULL_FATAL(file);
	dup2(fileno(file), STDERR_FILENO);
	CU_ASSERT_EQUAL(host->complete(ctx, ticket.task_id, 0, NULL, NULL, NULL, 0), -ESRCH);
	dup2(saved, STDERR_FILENO);
	close(saved);
	rewind(file);
	CU_ASSERT_PTR_NOT_NULL(fgets(line, sizeof(line), file));
	fclose(file);
	snprintf(task, sizeof(task), "task=%llu", (unsigned long long)ticket.task_id);
	CU_ASSERT_PTR_NOT_NULL(strstr(line, "plugin=late"));
	CU_ASSERT_PTR_NOT_NULL(strstr(line, task));
	CU_ASSERT_PTR_NOT_NULL(strstr(line, "the pool is gone"));
	host->report_failed(ctx, -EIO, "x.late", NULL, 0);
	host->log(ctx, BH_LOG_WARNING, "a late line", NULL, 0);
	CU_ASSERT_EQUAL(host->fail(ctx, -EIO, "x.late", NULL, 0), -EIO);
	CU_ASSERT_EQUAL(host->workers(ctx), 1);
	CU_ASSERT_STRING_EQUAL(host->option_text(ctx, "greeting"), "hello");
}

/* A plugin that was built before there were strides. */
static void plg2_without_room_for_strides_only_contiguous_memory_is_shown(void)
{
	const struct bh_services *host = &bh_service_table;
	struct bh_buffer buffer = { .refs = 1,
				    .info = { .size = sizeof(buffer.info),
					      .kind = BH_BUFFER_HOST,
					      .n_dims = 2,
					      .length = 24,
					      .dtype_code = BH_DTYPE_FLOAT,
					      .dtype_bits = 32,
					      .shape = { 2, 3 },
					      .strides = { 12, 4 } } };
	struct bh_buffer_info old = { .size = 104, .strides = { 77 } };
	struct bh_buffer_info whole = { .size = sizeof(whole) };

	CU_ASSERT_EQUAL(host->buffer_info(&buffer, &old), 0);
	CU_ASSERT_EQUAL(old.size, 104);
	CU_ASSERT_EQUAL(old.shape[1], 3);
	CU_ASSERT_EQUAL(old.strides[0], 77); /* what lies behind its size is its own */
	buffer.info.strides[0] = 16;
	CU_ASSERT_EQUAL(host->buffer_info(&buffer, &old), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_info(&buffer, &whole), 0);
	CU_ASSERT_EQUAL(whole.size, sizeof(whole));
	CU_ASSERT_EQUAL(whole.strides[0], 16);
	buffer.info.shape[0] = 1; /* a stride that leads nowhere */
	buffer.info.length = 12;
	CU_ASSERT_EQUAL(host->buffer_info(&buffer, &old), 0);
	buffer.info.shape[1] = 0;
	buffer.info.length = 0;
	buffer.info.strides[1] = -8;
	CU_ASSERT_EQUAL(host->buffer_info(&buffer, &old), 0);
}

static int n_calls;

static void never_called(void *value, struct bh_buffer *buffer)
{
	(void)value;
	(void)buffer;
	n_calls++;
}

/* A pool that has ended: its plugin's memory is not to be trusted any more. */
static void slots_that_a_closed_plugin_has_left_are_told_of_and_never_released(void)
{
	struct bh_module *module = started("t_count", "litter");
	struct bh_context *ctx = bh_pool_backend_self(bh_module_pool(module));
	const struct bh_services *host = &bh_service_table;
	struct bh_buffer_info info = { .size = sizeof(info),
				       .kind = BH_BUFFER_HOST,
				       .dtype_bits = 8 };
	struct bh_buffer *buffers[3] = { NULL };
	FILE *file = tmpfile();
	char line[512], all[4096] = "";
	int saved = dup(STDERR_FILENO), told = 0;

	CU_ASSERT_PTR_NOT_NULL_FATAL(file);
	for (int i = 0; i < 3; i++) {
		CU_ASSERT_EQUAL_FATAL(host->buffer_alloc(ctx, &info, 1, &buffers[i]), 0);
		CU_ASSERT_EQUAL(host->buffer_slot_set(ctx, buffers[i], &buffers[i], never_called),
				0);
	}
	CU_ASSERT_PTR_EQUAL(host->buffer_slot_clear(ctx, buffers[2]), &buffers[2]);
	dup2(fileno(file), STDERR_FILENO);
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(host->buffer_slot_set(ctx, buffers[2], ctx, never_called), -ESHUTDOWN);
	for (int i = 0; i < 3; i++)
		host->buffer_unref(buffers[i]); /* ASan sees that they go */
	dup2(saved, STDERR_FILENO);
	close(saved);
	rewind(file);
	while (fgets(line, sizeof(line), file)) {
		if (strstr(line, "plugin has left slots on buffers")) {
			told++;
			snprintf(all, sizeof(all), "%s", line);
		}
	}
	fclose(file);
	CU_ASSERT_EQUAL(told, 1);
	CU_ASSERT_PTR_NOT_NULL(strstr(all, "plugin=litter"));
	CU_ASSERT_PTR_NOT_NULL(strstr(all, "step=close"));
	CU_ASSERT_PTR_NOT_NULL(strstr(all, "slots=2"));
	CU_ASSERT_EQUAL(n_calls, 0);
}

static void plg3_services_take_nothing_on_trust(void)
{
	struct bh_module *module = started("t_count", "misuse");
	struct bh_context *ctx = bh_pool_backend_self(bh_module_pool(module));
	const struct bh_services *host = &bh_service_table;
	struct bh_task *nobody = (struct bh_task *)(uintptr_t)8; /* must not be looked into */
	const struct bh_value n = number(1), odd = { .type = 77 };
	const struct bh_fact facts[] = { { NULL, "no key", 0, BH_FACT_STR, 0 },
					 { "Bad Key", NULL, 0, BH_FACT_STR, 0 },
					 { "text", "\xff\xfe", 0, BH_FACT_STR, 0 } };
	struct bh_buffer_info small = { .size = 8 };
	struct bh_buffer_info wanted = { .size = sizeof(wanted),
					 .kind = BH_BUFFER_HOST,
					 .dtype_bits = 8 };
	struct bh_buffer_info told = { .size = sizeof(told) };
	struct bh_buffer buffer = { .refs = 1 }, *made = NULL;
	struct bh_ticket ticket;
	struct bh_value out;

	CU_ASSERT_EQUAL(host->result(nobody, &n), -EINVAL);
	CU_ASSERT_EQUAL(host->task_fail(nobody, -EIO, "x.y", NULL, 0), -EIO);
	CU_ASSERT_EQUAL(host->call_object(nobody, 0, NULL, NULL, 0, &out), -EINVAL);
	CU_ASSERT_EQUAL(host->run_gil(ctx, 0, NULL, NULL), -EINVAL);
	CU_ASSERT_EQUAL(host->post(ctx, 0, NULL, NULL), -EINVAL);
	CU_ASSERT_EQUAL(host->post(ctx, 0xffff, free, NULL), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_info(&buffer, &small), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_alloc(ctx, NULL, 64, &made), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_alloc(ctx, &wanted, 64, NULL), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_alloc(ctx, &small, 64, &made), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_alloc(ctx, &wanted, 3, &made), -EINVAL);
	wanted.dtype_code = BH_DTYPE_OPAQUE + 1;
	CU_ASSERT_EQUAL(host->buffer_alloc(ctx, &wanted, 64, &made), -EINVAL);
	wanted.dtype_code = BH_DTYPE_UINT;
	wanted.kind = BH_BUFFER_CUDA;
	CU_ASSERT_EQUAL(host->buffer_alloc(ctx, &wanted, 64, &made), -EINVAL);
	wanted.kind = BH_BUFFER_HOST;
	wanted.n_dims = BH_NDIM_MAX + 1;
	CU_ASSERT_EQUAL(host->buffer_alloc(ctx, &wanted, 64, &made), -EINVAL);
	wanted.n_dims = 0;
	CU_ASSERT_PTR_NULL(made);
	wanted.data = ctx; /* not read */
	CU_ASSERT_EQUAL_FATAL(host->buffer_alloc(ctx, &wanted, 64, &made), 0);
	CU_ASSERT_TRUE(made->info.data != (void *)ctx && made->info.length == 1);
	CU_ASSERT_EQUAL(host->object_buffer(nobody, 0, NULL, 0, &made), -EINVAL);
	CU_ASSERT_EQUAL(host->object_cuda_buffer(nobody, 0, NULL, 0, NULL, &made), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_slot_set(ctx, NULL, ctx, never_called), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_slot_set(ctx, made, NULL, never_called), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_slot_set(ctx, made, ctx, NULL), -EINVAL);
	CU_ASSERT_PTR_NULL(host->buffer_slot_get(ctx, NULL));
	CU_ASSERT_PTR_NULL(host->buffer_slot_clear(ctx, NULL));
	CU_ASSERT_PTR_NULL(host->buffer_slot_get(ctx, made));
	CU_ASSERT_EQUAL(host->buffer_wrap(ctx, &wanted, ctx, never_called, &made), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_wrap(ctx, NULL, ctx, never_called, &made), -EINVAL);
	wanted.kind = BH_BUFFER_CUDA;
	CU_ASSERT_EQUAL(host->buffer_wrap(ctx, &wanted, NULL, never_called, &made), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_wrap(ctx, &wanted, ctx, NULL, &made), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_wrap(ctx, &wanted, ctx, never_called, NULL), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_wrap(ctx, &small, ctx, never_called, &made), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_revoke(ctx, NULL, 0), -EINVAL);
	CU_ASSERT_EQUAL(host->buffer_revoke(ctx, made, 1), -EINVAL); /* of buffer_alloc() */
	host->buffer_unref(made);
	CU_ASSERT_EQUAL_FATAL(host->buffer_wrap(ctx, &wanted, ctx, never_called, &made), 0);
	CU_ASSERT_EQUAL(host->buffer_info(made, &told), 0);
	CU_ASSERT(told.kind == BH_BUFFER_CUDA && told.data == ctx && told.flags == 0);
	CU_ASSERT_TRUE(bh_buffer_share(made));
	told.size = sizeof(told);
	CU_ASSERT_EQUAL(host->buffer_info(made, &told), 0);
	CU_ASSERT_EQUAL(told.flags, BH_BUFFER_SHARED);
	CU_ASSERT_EQUAL(host->buffer_revoke(ctx, made, 1), -EBUSY);
	CU_ASSERT_EQUAL(host->buffer_revoke(ctx, made, 1), -ENOENT);
	host->buffer_unref(made);
	CU_ASSERT_EQUAL(host->fail(ctx, 0, NULL, facts, 3), -EPROTO); /* a failure that is none */
	host->log(ctx, 99, NULL, facts, 3);
	host->log(ctx, BH_LOG_INFO, "facts that are not there", NULL, 5);

	/* A pending task completed with what it has not promised fails: it is not left hanging. */
	submit_pending(module, "pend", &ticket);
	CU_ASSERT_EQUAL(host->complete(ctx, ticket.task_id, 0, &n, NULL, NULL, 0), -EINVAL);
	CU_ASSERT_EQUAL(wait_for(&ticket), BH_OUTCOME_FAILED);
	CU_ASSERT_STRING_EQUAL(ticket.error.id, "plugin.result");
	submit_pending(module, "pend", &ticket);
	CU_ASSERT_EQUAL(host->complete(ctx, ticket.task_id, BH_PENDING, NULL, NULL, NULL, 0),
			-EINVAL);
	CU_ASSERT_EQUAL(wait_for(&ticket), BH_OUTCOME_FAILED);
	CU_ASSERT_STRING_EQUAL(ticket.error.id, "plugin.status");
	submit_pending(module, "pend", &ticket);
	CU_ASSERT_EQUAL(host->complete(ctx, ticket.task_id, 0, &odd, NULL, NULL, 0), -EINVAL);
	CU_ASSERT_EQUAL(wait_for(&ticket), BH_OUTCOME_FAILED);
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
}

/* ---- start and end that fail ---------------------------------------------------------------- */

static void assert_start_fails(const char *name, bh_status status, const char *id, const char *step)
{
	bh_auto_mem char *library = plugin_path(name);
	struct bh_config_plugin config = section(name, library);
	struct bh_module *module = load(&config);
	struct bh_pool *pool = bh_module_pool(module);
	struct bh_error err = { 0 };

	CU_ASSERT_EQUAL(start(module, &err), status);
	CU_ASSERT_STRING_EQUAL(err.id, id);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "plugin"), name);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "step"), step);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(pool, WAIT, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_state(pool), BH_POOL_BUILD_FAILED);
	CU_ASSERT_EQUAL_FATAL(bh_pool_join(pool, WAIT, NULL), 0);
	bh_module_free(module);
}

static void sup2_a_failed_start_says_what(void)
{
	assert_start_fails("bad_open", -ENODEV, "bad_open.device", "open");
	assert_start_fails("bad_start", -EAGAIN, "bad_start.worker", "worker_start");
}

static void sup5_a_failed_close_is_the_cause(void)
{
	struct bh_module *module = started("bad_close", "bad_close");
	struct bh_pool *pool = bh_module_pool(module);
	struct bh_error cause = { 0 };

	bh_pool_stop(pool, WAIT, WAIT);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(pool, WAIT, NULL), 0);
	CU_ASSERT(bh_pool_cause(pool, &cause));
	CU_ASSERT_STRING_EQUAL(cause.id, "bad_close.device");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "step"), "close");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "reason"), "the device does not answer");
	CU_ASSERT_EQUAL(stop(module), BH_POOL_FAILED);
}

static struct {
	_Atomic unsigned n;
	_Atomic int last;
} announced;

static void on_announce(struct bh_module *module, enum bh_pool_state state, void *arg)
{
	CU_ASSERT_PTR_EQUAL(arg, module);
	atomic_store(&announced.last, (int)state);
	atomic_fetch_add(&announced.n, 1);
}

static void sup2_states_are_announced(void)
{
	bh_auto_mem char *library = plugin_path("t_count");
	struct bh_config_plugin config = section("announce", library);
	struct bh_module *module = load(&config);
	struct bh_error err = { 0 };

	bh_module_set_announce(module, on_announce, module);
	CU_ASSERT_EQUAL_FATAL(start(module, &err), 0);
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(atomic_load(&announced.n), 2);
	CU_ASSERT_EQUAL(atomic_load(&announced.last), BH_POOL_CLEAN);
}

/* ---- PLG-6 ---------------------------------------------------------------------------------- */

/* The line of a thread's /proc status that begins with `key`; "" when the thread has gone. */
static void status_line(const char *tid, const char *key, char line[256])
{
	char path[300];
	FILE *file;

	line[0] = '\0';
	snprintf(path, sizeof(path), "/proc/self/task/%s/status", tid);
	file = fopen(path, "re");
	while (file && fgets(line, 256, file))
		if (strncmp(line, key, strlen(key)) == 0)
			break;
	if (file)
		fclose(file);
}

static bool same_line(const char *tid, const char *key)
{
	char own[16], line[256], mine[256];

	snprintf(own, sizeof(own), "%d", (int)gettid());
	status_line(own, key, mine);
	status_line(tid, key, line);
	return strcmp(line, mine) == 0;
}

/* How many of this process's threads are the pool's; -1 if one has another signal mask or affinity
 * than the calling thread. (A sanitizer's own thread has.) */
static int count_alike(const char *label)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *task;
	int n = 0;

	while (dir && n >= 0 && (task = readdir(dir))) {
		char name[256];

		status_line(task->d_name, "Name:", name);
		if (strstr(name, label))
			n = same_line(task->d_name, "SigBlk:") &&
					    same_line(task->d_name, "Cpus_allowed:")
				    ? n + 1
				    : -1;
	}
	if (dir)
		closedir(dir);
	return n;
}

static void plg6_the_process_stays_as_it_was(void)
{
	struct sigaction term = { .sa_handler = SIG_DFL }, now;
	struct bh_surroundings before, after;
	struct bh_module *module;

	CU_ASSERT_EQUAL(sigaction(SIGTERM, &term, NULL), 0);
	bh_surroundings_save(&before);
	module = started("bad_signals", "thief");
	CU_ASSERT_EQUAL(sigaction(SIGTERM, NULL, &now), 0);
	CU_ASSERT(now.sa_handler == SIG_DFL);
	CU_ASSERT_EQUAL(sigaction(SIGINT, NULL, &now), 0);
	CU_ASSERT(now.sa_handler == before.actions[SIGINT].sa_handler);
	CU_ASSERT_EQUAL(count_alike("thief/"), 2); /* the supervisor and one worker */
	bh_surroundings_save(&after);
	CU_ASSERT(CPU_EQUAL_S(sizeof(before.cpus), before.cpus, after.cpus));
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
}

static void plg6_each_change_is_put_back(void)
{
	struct bh_surroundings before;
	struct sigaction now;
	sigset_t mask, found;

	bh_surroundings_save(&before);
	CU_ASSERT_EQUAL(bh_surroundings_restore(&before, "nobody", "test"), 0);
	signal(SIGUSR1, SIG_IGN);
	signal(SIGRTMIN + 5, SIG_IGN);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &mask, NULL);
	CU_ASSERT_EQUAL(bh_surroundings_restore(&before, "nobody", "test"), 3);
	sigaction(SIGUSR1, NULL, &now);
	CU_ASSERT(now.sa_handler == before.actions[SIGUSR1].sa_handler);
	pthread_sigmask(SIG_SETMASK, NULL, &found);
	CU_ASSERT_EQUAL(sigismember(&found, SIGUSR2), 0);
	CU_ASSERT_EQUAL(bh_surroundings_restore(&before, "nobody", "test"), 0);
}

/* ---- with the interpreter ------------------------------------------------------------------- */

/* Only host/gil and host/python include Python.h; these three are enough here. */
extern void Py_SetProgramName(const wchar_t *name);
extern void Py_InitializeEx(int handle_signals);
extern int Py_FinalizeEx(void);

static json_t *site_account(const char *name)
{
	json_t *gil = bh_gil_render(NULL), *found = NULL, *site;
	size_t i;

	json_array_foreach(json_object_get(gil, "sites"), i,
			   site) if (strcmp(json_string_value(json_object_get(site, "site")),
					    name) == 0) found = json_incref(site);
	json_decref(gil);
	return found;
}

static void gil8_work_at_a_plugins_site(void)
{
	const struct bh_value a_moment = number(5);
	struct bh_module *module, *foreign;
	struct bh_error err = { 0 };
	struct bh_ticket ticket;
	json_t *site;

	CU_ASSERT_EQUAL_FATAL(bh_gil_init(&err), 0);
	bh_gil_adopt_main();
	Py_SetProgramName(L"" BH_PYTHON);
	Py_InitializeEx(0);
	bh_gil_interpreter_up();
	bh_gil_main_leave();

	module = started("t_hold", "holder");
	CU_ASSERT_EQUAL(run(module, "hold", &a_moment, 1, &ticket), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(run(module, "stray", NULL, 0, &ticket), BH_OUTCOME_FAILED);
	CU_ASSERT_EQUAL(ticket.error.status, -EINVAL);
	site = site_account("holder.hold");
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(site, "entries")), 1);
	CU_ASSERT(json_number_value(json_object_get(site, "inside_s")) >= 0.005);
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(site, "policy")), "data-only");
	json_decref(site);

	/* A thread that takes the GIL without a site, past the services, harms nothing. */
	foreign = started("t_foreign", "foreign");
	do {
		CU_ASSERT_EQUAL(run(foreign, "rounds", NULL, 0, &ticket), BH_OUTCOME_DONE);
	} while (ticket.result.as.integer < 3);
	CU_ASSERT_EQUAL(stop(foreign), BH_POOL_CLEAN);

	/* Once the gate has closed a site gives an error, and the workers still end. */
	CU_ASSERT_EQUAL(bh_gil_gate_close(WAIT, &err), 0);
	CU_ASSERT_EQUAL(run(module, "hold", &a_moment, 1, &ticket), BH_OUTCOME_FAILED);
	CU_ASSERT_EQUAL(ticket.error.status, -ESHUTDOWN);
	CU_ASSERT_EQUAL(stop(module), BH_POOL_CLEAN);
	bh_gil_main_enter(BH_SITE_STOP);
	bh_gil_interpreter_down();
	CU_ASSERT_EQUAL(Py_FinalizeEx(), 0);
}

static const struct bh_test tests[] = {
	{ "PLG-1: names are looked up in the given folders, in order, and nowhere else",
	  plg1_search_order },
	{ "PLG-1: a relative path, an empty value and what is not there are refused", plg1_names },
	{ "PLG-1: a symbolic link is followed once, and the file behind it is named",
	  plg1_symbolic_links },
	{ "PLG-1: for root, what others can write to is refused", plg1_writable_by_others },
	{ "PLG-2: another ABI and what is no plugin are refused before dlopen",
	  plg2_refuses_before_dlopen },
	{ "PLG-2: a library without a descriptor is refused", plg2_a_descriptor_must_be_there },
	{ "PLG-3: every fault of a descriptor is listed", plg3_lists_every_fault },
	{ "GIL-3: an unclassified site is refused at load", gil3_refuses_an_unclassified_site },
	{ "PLG-7: a library that the plugin needs and is missing is named",
	  plg7_a_missing_dependency_has_the_loaders_words },
	{ "PLG-5: another libpython is refused before dlopen", plg5_another_libpython_is_refused },
	{ "MAN-1: bad and unknown options are all listed with file and line",
	  man1_bad_options_are_all_listed },
	{ "MAN-1: an option reaches the plugin as it was written", man1_options_reach_the_plugin },
	{ "PLG-3: worker and progress counts that the plugin cannot have are refused",
	  plg3_worker_counts },
	{ "PLG-3: auto is the number of CPUs that the process may use", plg3_auto_workers },
	{ "PLG-3: cpus that the process may not use are refused", plg3_cpus_are_allowed },
	{ "PLG-3: a cgroup's quota bounds auto", plg3_cgroup_quota },
	{ "PLG-3: ops run with their arguments and give their results",
	  plg3_ops_run_with_their_arguments },
	{ "SUP-4: a failing op says what failed", sup4_failures_say_what },
	{ "SUP-4: pending ops end from the progress thread, once", sup4_pending_tasks },
	{ "SUP-10: a task that nobody completes is abandoned at the stop",
	  sup10_a_lost_task_is_abandoned },
	{ "SUP-5: a plugin that reports itself failed is the cause",
	  sup5_a_plugin_can_report_itself_failed },
	{ "PLG-4: one library under two labels", plg4_one_library_under_two_labels },
	{ "RI-5: calls with a context that outlived its module are refused",
	  ri5_late_calls_are_refused },
	{ "PLG-2: a plugin without room for strides is shown contiguous memory only",
	  plg2_without_room_for_strides_only_contiguous_memory_is_shown },
	{ "slots that a closed plugin has left are told of, and never released",
	  slots_that_a_closed_plugin_has_left_are_told_of_and_never_released },
	{ "PLG-3: services take nothing on trust", plg3_services_take_nothing_on_trust },
	{ "SUP-2: a failed open and a failed worker_start are told with plugin and step",
	  sup2_a_failed_start_says_what },
	{ "SUP-5: a failed close is the pool's cause", sup5_a_failed_close_is_the_cause },
	{ "SUP-2: ready and the end are announced", sup2_states_are_announced },
	{ "PLG-6: a plugin that changes signals, mask and affinity changes nothing",
	  plg6_the_process_stays_as_it_was },
	{ "PLG-6: each change is put back", plg6_each_change_is_put_back },
	{ "GIL-8: work at a plugin's site, before and after the gate",
	  gil8_work_at_a_plugins_site },
};

BH_TAP_MAIN("module", tests)
