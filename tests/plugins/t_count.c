/* SPDX-License-Identifier: BSD-3-Clause */
/* t_count - trivial ops for tests: ones that end at once, late, twice, never, or fail.
 *
 * A pending task waits in a list under the mutex until its time has come or it is cancelled; the
 * progress thread takes it out and completes it without the lock. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS 1000000ull

struct pending {
	struct pending *next;
	uint64_t task_id;
	uint64_t due_ns;
	int cancelled;
	int twice;
};

struct note {
	struct note *next;
	char text[];
};

struct counter {
	struct bh_context *ctx;
	const struct bh_services *host;
	int wake_fd;	      /* the progress thread looks at the list again */
	pthread_mutex_t lock; /* guards what follows */
	struct pending *pending;
	struct note *notes, **last_note;
	uint64_t n_notes;
	int64_t refused;	   /* completions that the host refused */
	uint32_t started, stopped; /* workers */
};

/* ---- ops that end inside run() -------------------------------------------------------------- */

static bh_status run_nop(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return 0;
}

static void sleep_ms(int64_t ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&ts, &ts) < 0 && errno == EINTR)
		;
}

/* In slices, so that a cancelled task ends soon. */
static bh_status run_sleep(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;
	uint64_t until = c->host->now_ns() + (uint64_t)args[0].as.integer * NS_PER_MS;

	while (c->host->now_ns() < until) {
		uint64_t left_ms = (until - c->host->now_ns()) / NS_PER_MS;

		if (c->host->cancelled(task))
			return -ECANCELED;
		sleep_ms(left_ms < 2 ? 1 : 2);
	}
	return 0;
}

static bh_status run_fail(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;
	const struct bh_fact facts[] = { bh_fact_str("why", "it was asked to"),
					 bh_fact_int("code", 42) };

	(void)args;
	return c->host->task_fail(task, -EIO, "t_count.fail", facts, 2);
}

static bh_status run_fail_bare(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return -ENOSPC;
}

static bh_status run_echo(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;

	if (args[0].type == BH_TYPE_BUFFER)
		c->host->buffer_ref(args[0].as.buffer);
	else if (args[0].type == BH_TYPE_OBJECT)
		c->host->object_ref(args[0].as.object);
	return c->host->result(task, &args[0]);
}

/* Buffers and objects inside the list need references of their own; the ops below take no such
 * list. */
static bh_status run_echo_list(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;

	return c->host->result(task, &args[0]);
}

static bh_status run_add(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;
	struct bh_value sum = { .type = BH_TYPE_INT };

	if (__builtin_add_overflow(args[0].as.integer, args[1].as.integer, &sum.as.integer))
		return c->host->task_fail(task, -ERANGE, "t_count.overflow", NULL, 0);
	return c->host->result(task, &sum);
}

static bh_status run_never(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	while (pause() < 0)
		;
	return 0;
}

/* Promises an int and gives none. */
static bh_status run_no_result(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return 0;
}

/* Promises an int and gives text. */
static bh_status run_wrong_result(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;
	struct bh_value text = { .type = BH_TYPE_STR };

	(void)args;
	text.as.text.data = "text";
	text.as.text.length = 4;
	(void)c->host->result(task, &text);
	return 0;
}

/* The plugin declares itself broken. */
static bh_status run_break(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;
	const struct bh_fact fact = bh_fact_str("why", "it was asked to");

	(void)task;
	(void)args;
	c->host->report_failed(c->ctx, -EIO, "t_count.broken", &fact, 1);
	return 0;
}

/* ---- the recorder: in which order tasks ran ------------------------------------------------- */

static bh_status run_note(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;
	uint64_t length = args[0].as.text.length;
	struct note *note = malloc(sizeof(*note) + length + 1);

	(void)task;
	if (!note)
		return -ENOMEM;
	note->next = NULL;
	memcpy(note->text, args[0].as.text.data, length);
	note->text[length] = '\0';
	pthread_mutex_lock(&c->lock);
	*c->last_note = note;
	c->last_note = &note->next;
	c->n_notes++;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

static bh_status run_notes(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;
	struct bh_value list = { .type = BH_TYPE_LIST }, *items;
	struct note *note;
	bh_status st;

	(void)args;
	pthread_mutex_lock(&c->lock);
	items = calloc(c->n_notes + 1, sizeof(*items));
	for (note = c->notes; items && note; note = note->next) {
		struct bh_value *item = &items[list.as.list.count++];

		item->type = BH_TYPE_STR;
		item->as.text.data = note->text;
		item->as.text.length = strlen(note->text);
	}
	pthread_mutex_unlock(&c->lock);
	if (!items)
		return -ENOMEM;
	list.as.list.items = items;
	st = c->host->result(task, &list); /* copies; notes are only freed in close */
	free(items);
	return st;
}

/* ---- ops that end later --------------------------------------------------------------------- */

static void wake(const struct counter *c)
{
	const uint64_t one = 1;

	if (write(c->wake_fd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is awake already */
}

static bh_status pend(struct counter *c, struct bh_task *task, int64_t ms, int twice)
{
	struct pending *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->task_id = c->host->task_id(task);
	p->due_ns = c->host->now_ns() + (uint64_t)ms * NS_PER_MS;
	p->twice = twice;
	pthread_mutex_lock(&c->lock);
	p->next = c->pending;
	c->pending = p;
	pthread_mutex_unlock(&c->lock);
	wake(c);
	return BH_PENDING;
}

static bh_status run_pend(void *state, struct bh_task *task, const struct bh_value *args)
{
	return pend(state, task, args[0].as.integer, 0);
}

static bh_status run_twice(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)args;
	return pend(state, task, 0, 1);
}

static bh_status run_lost(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	return BH_PENDING;
}

static bh_status run_refused(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;
	struct bh_value n = { .type = BH_TYPE_INT };

	(void)args;
	pthread_mutex_lock(&c->lock);
	n.as.integer = c->refused;
	pthread_mutex_unlock(&c->lock);
	return c->host->result(task, &n);
}

static void complete(struct counter *c, struct pending *p)
{
	for (int i = 0; i <= p->twice; i++) {
		bh_status st = c->host->complete(c->ctx, p->task_id, p->cancelled ? -ECANCELED : 0,
						 NULL, NULL, NULL, 0);

		pthread_mutex_lock(&c->lock);
		c->refused += st < 0;
		pthread_mutex_unlock(&c->lock);
	}
	free(p);
}

/* One that is due, out of the list; else how long until the next is, in ms (-1: nothing waits). */
static struct pending *take_due(struct counter *c, int *ret_wait_ms)
{
	uint64_t now = c->host->now_ns(), next = UINT64_MAX;
	struct pending **at, *due = NULL;

	pthread_mutex_lock(&c->lock);
	for (at = &c->pending; *at; at = &(*at)->next) {
		if ((*at)->cancelled || (*at)->due_ns <= now) {
			due = *at;
			*at = due->next;
			break;
		}
		next = (*at)->due_ns < next ? (*at)->due_ns : next;
	}
	pthread_mutex_unlock(&c->lock);
	*ret_wait_ms = next == UINT64_MAX ? -1 : (int)((next - now) / NS_PER_MS) + 1;
	return due;
}

static void progress(void *state, uint32_t thread, int stop_fd)
{
	struct counter *c = state;
	struct pollfd fds[] = { { stop_fd, POLLIN, 0 }, { c->wake_fd, POLLIN, 0 } };
	uint64_t woken;

	(void)thread;
	for (;;) {
		struct pending *due;
		int wait_ms;

		while ((due = take_due(c, &wait_ms)))
			complete(c, due);
		if (poll(fds, 2, wait_ms) > 0 && fds[0].revents)
			return;
		while (read(c->wake_fd, &woken, sizeof(woken)) > 0)
			;
	}
}

static void cancel(void *state, uint64_t task_id)
{
	struct counter *c = state;

	pthread_mutex_lock(&c->lock);
	for (struct pending *p = c->pending; p; p = p->next)
		if (p->task_id == task_id)
			p->cancelled = 1;
	pthread_mutex_unlock(&c->lock);
	wake(c);
}

/* ---- life ----------------------------------------------------------------------------------- */

static bh_status count_open(struct bh_context *ctx, const struct bh_services *host,
			    void **ret_state)
{
	struct counter *c = calloc(1, sizeof(*c));

	if (!c)
		return host->fail(ctx, -ENOMEM, "t_count.alloc", NULL, 0);
	c->ctx = ctx;
	c->host = host;
	c->last_note = &c->notes;
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake_fd < 0) {
		free(c);
		return host->fail(ctx, -errno, "t_count.eventfd", NULL, 0);
	}
	pthread_mutex_init(&c->lock, NULL);
	*ret_state = c;
	return 0;
}

static bh_status count_close(void *state)
{
	struct counter *c = state;
	bh_status st = 0;

	while (c->pending) {
		struct pending *p = c->pending;

		c->pending = p->next;
		free(p);
	}
	while (c->notes) {
		struct note *note = c->notes;

		c->notes = note->next;
		free(note);
	}
	if (c->started != c->stopped) {
		const struct bh_fact facts[] = { bh_fact_int("started", c->started),
						 bh_fact_int("stopped", c->stopped) };

		st = c->host->fail(c->ctx, -EPROTO, "t_count.unequal", facts, 2);
	}
	close(c->wake_fd);
	pthread_mutex_destroy(&c->lock);
	free(c);
	return st;
}

static bh_status worker_start(void *state, uint32_t worker)
{
	struct counter *c = state;

	(void)worker;
	pthread_mutex_lock(&c->lock);
	c->started++;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

static bh_status worker_stop(void *state, uint32_t worker)
{
	struct counter *c = state;

	(void)worker;
	pthread_mutex_lock(&c->lock);
	c->stopped++;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

static bh_status run_option(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct counter *c = state;
	struct bh_value text = { .type = BH_TYPE_STR };

	(void)args;
	text.as.text.data = c->host->option_text(c->ctx, "greeting");
	text.as.text.length = strlen(text.as.text.data);
	return c->host->result(task, &text);
}

static const struct bh_option options[] = {
	{ .name = "greeting",
	  .type = BH_OPT_STR,
	  .preset = "hello",
	  .doc = "what `option` returns" },
	{ .name = "limit",
	  .type = BH_OPT_INT,
	  .preset = "7",
	  .min = 1,
	  .max = 100,
	  .doc = "a number" },
	{ .name = "mode",
	  .type = BH_OPT_ENUM,
	  .preset = "calm",
	  .choices = "calm|busy",
	  .doc = "a word" },
};

static const struct bh_op ops[] = {
	{ .name = "nop", .run = run_nop, .doc = "Does nothing." },
	{ .name = "sleep",
	  .args = "ms:int",
	  .run = run_sleep,
	  .doc = "Sleeps; ends early when cancelled." },
	{ .name = "fail", .run = run_fail, .doc = "Fails with -EIO and facts." },
	{ .name = "fail_bare",
	  .run = run_fail_bare,
	  .doc = "Fails with -ENOSPC and says nothing more." },
	{ .name = "echo", .args = "value:str", .ret = "str", .run = run_echo },
	{ .name = "echo_bool", .args = "value:bool", .ret = "bool", .run = run_echo },
	{ .name = "echo_int", .args = "value:int", .ret = "int", .run = run_echo },
	{ .name = "echo_float", .args = "value:float", .ret = "float", .run = run_echo },
	{ .name = "echo_bytes", .args = "value:bytes", .ret = "bytes", .run = run_echo },
	{ .name = "echo_buffer", .args = "value:buffer", .ret = "buffer", .run = run_echo },
	{ .name = "echo_handle", .args = "value:handle", .ret = "handle", .run = run_echo },
	{ .name = "echo_object", .args = "value:object", .ret = "object", .run = run_echo },
	{ .name = "echo_list", .args = "*value:int", .ret = "list", .run = run_echo_list },
	{ .name = "add", .args = "a:int b:int", .ret = "int", .run = run_add, .doc = "The sum." },
	{ .name = "never", .run = run_never, .doc = "Blocks its worker for ever." },
	{ .name = "no_result", .ret = "int", .run = run_no_result },
	{ .name = "wrong_result", .ret = "int", .run = run_wrong_result },
	{ .name = "break_pool", .run = run_break, .doc = "Reports the plugin as failed." },
	{ .name = "pend",
	  .args = "ms:int",
	  .run = run_pend,
	  .doc = "Completed from a progress thread after so long, or when cancelled." },
	{ .name = "twice", .run = run_twice, .doc = "Completed twice; see refused." },
	{ .name = "lost", .run = run_lost, .doc = "Pending, never completed." },
	{ .name = "refused",
	  .ret = "int",
	  .run = run_refused,
	  .doc = "How many completions were refused." },
	{ .name = "note", .args = "text:str", .run = run_note, .doc = "Records that it ran." },
	{ .name = "notes",
	  .ret = "list",
	  .run = run_notes,
	  .doc = "What note was given, in the order of running." },
	{ .name = "option", .ret = "str", .run = run_option, .doc = "The option `greeting`." },
	{ .name = "release",
	  .run = run_nop,
	  .flags = BH_OP_CLEANUP,
	  .doc = "Does nothing, with room kept for it." },
};

BH_PLUGIN("t_count", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 64 },
	.progress_threads = 1,
	.sites = BH_NO_TABLE,
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = count_open,
	.close = count_close,
	.worker_start = worker_start,
	.worker_stop = worker_stop,
	.progress = progress,
	.cancel = cancel,
};
