/* SPDX-License-Identifier: BSD-3-Clause */
/* t_exit - a library with exit handlers and a destructor, and every way to end the process from
 * inside a plugin.
 *
 * Option `log`: a file to which each event appends one word: open, close, worker-stop, handler-load
 * (registered by a constructor), handler-open (in open), handler-late (at first use, by an op),
 * destructor. `at`: where exit(`status`) is called. */
#include <bulkhead/plugin.h>

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct exiting {
	struct bh_context *ctx;
	const struct bh_services *host;
	const char *at;
	int status;
	atomic_int go; /* its own thread and its progress thread may call exit() */
	pthread_t own;
	int has_own;
};

/* Outlives close(): the handlers write to it. */
static int log_fd = -1;
static pid_t host_pid;
static atomic_int used_late, used_burst;

static void note(const char *what)
{
	char line[64];
	size_t n = strlen(what);

	if (log_fd < 0 || n + 2 > sizeof(line))
		return;
	memcpy(line, what, n);
	line[n] = '\n';
	while (write(log_fd, line, n + 1) < 0 && errno == EINTR)
		;
}

static void handler_load(void)
{
	note("handler-load");
}

static void handler_open(void)
{
	note("handler-open");
}

static void handler_late(void)
{
	note("handler-late");
}

static void handler_hang(void)
{
	note("handler-hang");
	for (;;)
		pause();
}

/* Comes after the host's hook. What follows in a child of many threads may be a sanitizer's own
 * handlers, which can wait there for a lock that nobody holds. */
static void end_child(int status, void *unused)
{
	(void)unused;
	if (getpid() != host_pid)
		_exit(status);
}

__attribute__((constructor)) static void loaded(void)
{
	host_pid = getpid();
	on_exit(end_child, NULL);
	atexit(handler_load);
}

__attribute__((destructor)) static void unloaded(void)
{
	note("destructor");
}

static int is_at(const struct exiting *e, const char *where)
{
	return strcmp(e->at, where) == 0;
}

static void *own_thread(void *arg)
{
	struct exiting *e = arg;

	while (!atomic_load(&e->go))
		poll(NULL, 0, 1);
	if (is_at(e, "own") || is_at(e, "own-joined"))
		exit(e->status);
	return NULL;
}

static bh_status exit_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	struct exiting *e = calloc(1, sizeof(*e));

	if (!e)
		return host->fail(ctx, -ENOMEM, "t_exit.alloc", NULL, 0);
	e->ctx = ctx;
	e->host = host;
	e->at = host->option_text(ctx, "at");
	e->status = (int)host->option_int(ctx, "status");
	if (log_fd < 0)
		log_fd = open(host->option_text(ctx, "log"),
			      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	note("open");
	atexit(handler_open);
	if (is_at(e, "open"))
		exit(e->status);
	if (is_at(e, "own") || is_at(e, "own-joined"))
		e->has_own = pthread_create(&e->own, NULL, own_thread, e) == 0;
	*ret_state = e;
	return 0;
}

static bh_status exit_close(void *state)
{
	struct exiting *e = state;

	note("close");
	if (is_at(e, "close"))
		exit(e->status);
	atomic_store(&e->go, 1);
	if (is_at(e, "own"))
		return 0; /* its thread may be in exit(), and reads *e before */
	if (e->has_own)
		pthread_join(e->own, NULL);
	free(e);
	return 0;
}

static bh_status exit_worker_stop(void *state, uint32_t worker)
{
	(void)state;
	(void)worker;
	note("worker-stop");
	return 0;
}

static void exit_progress(void *state, uint32_t thread, int stop_fd)
{
	struct exiting *e = state;
	struct pollfd fd = { .fd = stop_fd, .events = POLLIN };

	while (poll(&fd, 1, 1) == 0)
		if (thread == 0 && is_at(e, "progress") && atomic_load(&e->go))
			exit(e->status);
	note("progress-stop");
}

static void exit_cancel(void *state, uint64_t task_id)
{
	struct exiting *e = state;

	(void)task_id;
	if (is_at(e, "cancel"))
		exit(e->status);
}

/* ---- ops ------------------------------------------------------------------------------------- */

static bh_status run_exit_now(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	exit((int)args[0].as.integer);
}

/* The C library's own call of exit(), which no export of the executable's stands before. */
static bh_status run_exit_inside(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	errx((int)args[0].as.integer, "the end");
}

static bh_status run_go(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct exiting *e = state;

	(void)task;
	(void)args;
	atomic_store(&e->go, 1);
	return 0;
}

static bh_status run_late(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	if (args[0].as.boolean)
		atexit(handler_hang);
	else if (!atomic_exchange(&used_late, 1))
		atexit(handler_late);
	return 0;
}

static void handler_unseen(int status, void *unused)
{
	(void)status;
	(void)unused;
	if (getpid() == host_pid)
		note("handler-late");
}

static bh_status run_late_unseen(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct exiting *e = state;

	(void)task;
	(void)args;
	on_exit(handler_unseen, NULL);
	e->host->exit_hook_refresh(e->ctx);
	return 0;
}

static bh_status run_burst(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	for (int64_t i = 0; i < args[0].as.integer; i++)
		if (!atomic_exchange(&used_burst, 1))
			atexit(handler_late);
		else
			atexit(handler_load);
	return 0;
}

/* Until it is cancelled. */
static bh_status run_busy(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct exiting *e = state;

	(void)args;
	while (!e->host->cancelled(task))
		poll(NULL, 0, 1);
	return -ECANCELED;
}

static bh_status run_stuck(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	for (;;)
		pause();
	return 0;
}

/* The child ends by exit(); returns its status. */
static bh_status run_fork_exit(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct exiting *e = state;
	struct bh_value value = { .type = BH_TYPE_INT };
	pid_t child = fork();
	int status = -1;

	if (child < 0)
		return e->host->task_fail(task, -errno, "t_exit.fork", NULL, 0);
	if (child == 0) {
		note("child");
		log_fd = -1; /* its handlers are not what the test is about */
		exit((int)args[0].as.integer);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	value.as.integer = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	return e->host->result(task, &value);
}

static const struct bh_option options[] = {
	{ .name = "log", .type = BH_OPT_PATH, .preset = "/dev/null", .doc = "Where to write." },
	{ .name = "at",
	  .type = BH_OPT_ENUM,
	  .preset = "nowhere",
	  .choices = "nowhere|open|close|own|own-joined|progress|cancel",
	  .doc = "Where exit() is called." },
	{ .name = "status", .type = BH_OPT_INT, .preset = "5", .min = 0, .max = 255, .doc = "…" },
};

static const struct bh_op ops[] = {
	{ .name = "exit_now", .args = "status:int", .run = run_exit_now, .doc = "exit()" },
	{ .name = "exit_inside", .args = "status:int", .run = run_exit_inside, .doc = "errx()" },
	{ .name = "go", .run = run_go, .doc = "Lets the other threads call exit()." },
	{ .name = "late", .args = "hang:bool=false", .run = run_late, .doc = "First use." },
	{ .name = "late_unseen",
	  .run = run_late_unseen,
	  .doc = "By on_exit(), and tells the host." },
	{ .name = "burst", .args = "n:int", .run = run_burst, .doc = "Registers n handlers." },
	{ .name = "busy", .run = run_busy, .doc = "Runs until it is cancelled." },
	{ .name = "stuck", .run = run_stuck, .doc = "Never returns." },
	{ .name = "fork_exit",
	  .args = "status:int",
	  .ret = "int",
	  .run = run_fork_exit,
	  .doc = "The status of a child that calls exit()." },
};

BH_PLUGIN("t_exit", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 8 },
	.progress_threads = 1,
	.sites = BH_NO_TABLE,
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = exit_open,
	.close = exit_close,
	.worker_stop = exit_worker_stop,
	.progress = exit_progress,
	.cancel = exit_cancel,
};
