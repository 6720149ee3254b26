/* SPDX-License-Identifier: BSD-3-Clause */
/* stalls - see stalls.h.
 *
 * On the watchdog: the sampling of the GIL, the pulses, the gauges, and what is collected about an
 * episode. On the control loop: the view. Keeps: CP-3, GIL-6 (the sampling). */
#include "config.h"

#include "host/stalls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/control/watchdog.h"
#include "host/core/format.h"
#include "host/core/log.h"
#include "host/core/pulse.h"
#include "host/core/stack.h"
#include "host/core/sync.h"
#include "host/gil/frames.h"
#include "host/gil/gil.h"
#include "host/gil/probe.h"
#include "host/plugin/module.h"
#include "host/python/python.h"

#define COMPONENT "watchdog"
#define PULSE_MIN_NS (100 * BH_NS_PER_MS) /* as the probe's preset */
#define PULSE_MAX_NS BH_NS_PER_S
#define STACK_NS (200 * BH_NS_PER_MS)	 /* for one native stack */
#define FRAMES_KEPT 300			 /* of all Python stacks of one report */
#define FULL_EVERY_NS (10 * BH_NS_PER_S) /* on average, a report with all stacks, */
#define FULL_BURST 6			 /* and so many at once */
#define LOG_STACKS 36			 /* lines for the Python stacks of one report */
#define SHARE_MAX_NS BH_NS_PER_S	 /* of one sample, unless the interval is long */
#define FREE_FOR_NS BH_NS_PER_S /* after which a GIL that nobody takes is sampled less often, */
#define FREE_LEFT_OUT 4		/* namely at every fifth beat */
#define LOOP_GAUGES 3		/* the GIL's, asyncio's and the control loop's */

struct bh_stalls {
	struct bh_stalls_config config; /* I */
	struct bh_stall_book *book;	/* I */
	/* Guards `control`; held across posts to it, which do not block, and what these need: memory
	 * and the log. */
	struct bh_mutex lock;
	struct bh_control *control; /* M: NULL once stop has been asked for: it goes soon */
	struct bh_pulse asyncio, native;
	struct bh_watchdog *watchdog; /* T: main */
	uint64_t full_after_ns;	      /* T: watchdog; see may_be_full() */
	uint64_t free_ns; /* T: watchdog; for how long samples have found the GIL free */
	struct task_gauge {
		struct bh_stalls *stalls;
		size_t index; /* of the plugin */
	} * tasks;	      /* I: one a plugin */
};

/* ---- gauges, on the watchdog ----------------------------------------------------------------- */

/* The wake-ups are what sampling costs, and an idle host should cost nothing. A share is as long as
 * the time since the sample before, so the books stay right on average, only coarser for the first
 * moment after a quiet time. */
static uint32_t sample(uint64_t elapsed_ns, void *arg)
{
	struct bh_stalls *stalls = arg;
	const struct bh_config *config = stalls->config.config;

	/* In a process that was stopped or had no CPU for so long nobody knows whose it was. */
	if (elapsed_ns > SHARE_MAX_NS &&
	    elapsed_ns > 2 * (1 + FREE_LEFT_OUT) * (uint64_t)config->sample_interval_ns)
		elapsed_ns = 0;
	stalls->free_ns = bh_gil_sample(elapsed_ns) ? 0 : stalls->free_ns + elapsed_ns;
	return stalls->free_ns >= FREE_FOR_NS ? FREE_LEFT_OUT : 0;
}

static uint32_t pulse_control(uint64_t elapsed_ns, void *arg)
{
	struct bh_stalls *stalls = arg;

	(void)elapsed_ns;
	bh_mutex_lock(&stalls->lock);
	if (stalls->control)
		bh_pulse_ask(&stalls->native);
	bh_mutex_unlock(&stalls->lock);
	return 0;
}

/* While main imports, constructs and starts apps it is silent for good reasons. */
static uint32_t pulse_asyncio(uint64_t elapsed_ns, void *arg)
{
	struct bh_stalls *stalls = arg;

	(void)elapsed_ns;
	bh_mutex_lock(&stalls->lock);
	if (stalls->control && bh_control_has_started(stalls->control))
		bh_pulse_ask(&stalls->asyncio);
	bh_mutex_unlock(&stalls->lock);
	return 0;
}

/* Often enough to notice in time, and no oftener: each wakes a loop that may be idle. Without a
 * limit of its own a loop's lag is still shown, as long as anything is looked at. */
static uint64_t pulse_interval(int64_t limit_ns, bool any)
{
	uint64_t every = (uint64_t)limit_ns / 5;

	if (!any)
		return 0;
	if (limit_ns == 0 || every > PULSE_MAX_NS)
		return PULSE_MAX_NS;
	return every < PULSE_MIN_NS ? PULSE_MIN_NS : every;
}

static uint32_t overdue(uint64_t since_ns, uint64_t before_ns, const char *thread, uint32_t tid,
			struct bh_stall_subject *ret)
{
	if (since_ns == 0 || since_ns >= before_ns)
		return 0;
	*ret = (struct bh_stall_subject){ .since_ns = since_ns, .tid = tid };
	snprintf(ret->thread, sizeof(ret->thread), "%s", thread);
	return 1;
}

static uint32_t look_gil(uint64_t before_ns, struct bh_stall_subject *ret, void *arg)
{
	(void)arg;
	return overdue(bh_gil_probe_waiting_since(), before_ns, "", 0, ret);
}

static uint32_t look_asyncio(uint64_t before_ns, struct bh_stall_subject *ret, void *arg)
{
	struct bh_stalls *stalls = arg;

	/* main's kernel id is the process id */
	return overdue(bh_pulse_silent_since(&stalls->asyncio), before_ns, "bulkheadd",
		       (uint32_t)getpid(), ret);
}

static uint32_t look_native(uint64_t before_ns, struct bh_stall_subject *ret, void *arg)
{
	struct bh_stalls *stalls = arg;

	return overdue(bh_pulse_silent_since(&stalls->native), before_ns, "bh-control",
		       atomic_load_explicit(&stalls->native.tid, memory_order_relaxed), ret);
}

static void subject_of(const struct bh_pool *pool, const struct bh_task_sight *sight,
		       struct bh_stall_subject *ret)
{
	*ret = (struct bh_stall_subject){ .key = sight->task_id,
					  .since_ns = sight->started_ns,
					  .tid = sight->tid,
					  .task = sight->task_id };
	snprintf(ret->pool, sizeof(ret->pool), "%s", bh_pool_label(pool));
	snprintf(ret->thread, sizeof(ret->thread), "%s", sight->thread);
	snprintf(ret->op, sizeof(ret->op), "%s", sight->op);
}

static struct bh_pool *pool_at(const struct bh_stalls *stalls, size_t index)
{
	struct bh_module *module = stalls->config.module_at(index, stalls->config.arg);

	return module ? bh_module_pool(module) : NULL;
}

static uint32_t look_tasks(uint64_t before_ns, struct bh_stall_subject *ret, void *arg)
{
	const struct task_gauge *gauge = arg;
	struct bh_pool *pool = pool_at(gauge->stalls, gauge->index);
	struct bh_task_sight sights[BH_SUBJECTS_MAX];
	uint32_t n = pool ? bh_pool_overdue_tasks(pool, before_ns, sights, BH_SUBJECTS_MAX) : 0;

	for (uint32_t i = 0; i < n; i++)
		subject_of(pool, &sights[i], &ret[i]);
	return n;
}

/* ---- what is collected about an episode ------------------------------------------------------ */

static uint32_t tid_of(const json_t *row)
{
	return (uint32_t)json_integer_value(json_object_get(row, "tid"));
}

/* Whose pool it is, and what it is at. */
static void add_task(const struct bh_stalls *stalls, json_t *holder)
{
	static const char *const keys[] = { "pool", "op", "task", "library" };
	uint32_t tid = tid_of(holder);
	struct bh_task_sight sight;

	for (size_t i = 0; i < stalls->config.config->n_plugins; i++) {
		struct bh_pool *pool = pool_at(stalls, i);

		if (!pool || !bh_pool_task_of_thread(pool, tid, &sight))
			continue;
		json_object_set_new(holder, "pool", json_string(bh_pool_label(pool)));
		json_object_set_new(holder, "op", json_string(sight.op));
		json_object_set_new(holder, "task", json_integer((json_int_t)sight.task_id));
		if (!json_is_string(json_object_get(holder, "library"))) {
			struct bh_module *module = stalls->config.module_at(i, stalls->config.arg);

			json_object_set_new(holder, "library",
					    json_string(basename(bh_module_path(module))));
		}
		break;
	}
	for (size_t i = 0; i < BH_ARRAY_LEN(keys); i++)
		if (!json_object_get(holder, keys[i]))
			json_object_set_new(holder, keys[i], json_null());
}

static void add_stack(json_t *native, const char *thread, uint32_t tid)
{
	char stack[2048];

	if (tid == 0 || tid == (uint32_t)gettid())
		return;
	bh_stack_observe(tid, bh_deadline_after(STACK_NS), stack, sizeof(stack));
	bh_text_make_plain(stack);
	json_array_append_new(native, json_pack("{s:s, s:I, s:s}", "thread", thread ? thread : "",
						"tid", (json_int_t)tid, "stack", stack));
}

/* Keeps a book of many reports of a big process within bounds. */
static json_t *trim_frames(json_t *python)
{
	size_t i, left = FRAMES_KEPT;
	json_t *row;

	json_array_foreach(python, i, row)
	{
		json_t *frames = json_object_get(row, "frames");

		if (json_array_size(frames) > left)
			json_object_set_new(row, "cut", json_true());
		while (json_array_size(frames) > left)
			json_array_remove(frames, json_array_size(frames) - 1);
		left -= json_array_size(frames);
	}
	return python;
}

static void keep_frames_of(json_t *python, uint32_t holder, uint32_t subject)
{
	for (size_t i = json_array_size(python); i-- > 0;) {
		uint32_t tid = tid_of(json_array_get(python, i));

		if (tid != holder && tid != subject)
			json_array_remove(python, i);
	}
}

/* The holder first, for it is what goes away first; then the stacks, Python's before the native ones,
 * for these may disturb; and whether they are still that holder's. */
static json_t *collect(const struct bh_stalls *stalls, const struct bh_stall_subject *subject,
		       bool full)
{
	json_t *holder = bh_gil_render_holder(), *waiters = bh_gil_render_waiters();
	json_t *native = json_array(), *python = bh_gil_frames_read();
	struct bh_gil_holder later;
	uint32_t tid = 0;

	if (json_is_object(holder)) {
		tid = tid_of(holder);
		add_task(stalls, holder);
		add_stack(native, json_string_value(json_object_get(holder, "thread")), tid);
	}
	if (subject->tid != tid)
		add_stack(native, subject->thread, subject->tid);
	if (json_is_object(holder)) {
		bh_gil_holder_read(&later);
		json_object_set_new(holder, "changed",
				    json_boolean(!later.held || later.tid != tid));
	}
	if (!full)
		keep_frames_of(python, tid, subject->tid);
	return json_pack("{s:o, s:o, s:o, s:o, s:b}", "holder", holder ? holder : json_null(),
			 "waiters", waiters ? waiters : json_array(), "native", native, "python",
			 python ? trim_frames(python) : json_array(), "brief", !full);
}

/* ---- what is told of it ---------------------------------------------------------------------- */

static const char *text_at(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

static json_int_t number_at(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static int64_t ms_at(const json_t *object, const char *key)
{
	return (int64_t)(json_number_value(json_object_get(object, key)) * 1e3);
}

static void log_native(const json_t *episode)
{
	json_t *rows = json_object_get(episode, "native"), *row;
	size_t i;

	json_array_foreach(rows, i, row) bh_log(
		BH_LOG_WARNING, COMPONENT, "stall: native stack",
		BH_INT("stall", number_at(episode, "id")), BH_STR("thread", text_at(row, "thread")),
		BH_INT("tid", tid_of(row)), BH_STR("stack", text_at(row, "stack")));
}

static void log_python(const json_t *episode)
{
	json_t *rows = json_object_get(episode, "python"), *row, *frame;
	size_t i, k, n_rows = json_array_size(rows);

	json_array_foreach(rows, i, row)
	{
		char text[2048] = "";
		size_t used = 0;

		if (i == LOG_STACKS) {
			bh_log(BH_LOG_WARNING, COMPONENT,
			       "stall: more Python stacks are in GET /v1/stalls",
			       BH_INT("stall", number_at(episode, "id")), BH_INT("stacks", n_rows));
			break;
		}
		json_array_foreach(json_object_get(row, "frames"), k, frame)
		{
			const char *name = json_string_value(frame);
			int n = snprintf(text + used, sizeof(text) - used, "%s%s",
					 used ? " < " : "", name ? name : "?");

			used += n > 0 ? (size_t)n : 0;
			if (used >= sizeof(text))
				break; /* cut: the innermost frames are in it */
		}
		bh_log(BH_LOG_WARNING, COMPONENT, "stall: Python stack",
		       BH_INT("stall", number_at(episode, "id")),
		       BH_STR("thread", text_at(row, "thread")), BH_INT("tid", tid_of(row)),
		       BH_INT("holds", json_is_true(json_object_get(row, "holds"))),
		       BH_STR("frames", text));
	}
}

/* What an app's author can do about it; "" where the report alone tells. */
static const char *advice(const json_t *episode)
{
	if (strcmp(text_at(episode, "kind"), bh_stall_kind_name(BH_STALL_ASYNCIO)) != 0)
		return "";
	return "main's Python stack shows what blocks the event loop: run it with await "
	       "asyncio.to_thread(f, ...) or await pool.run(f, ...), and wait with await "
	       "asyncio.sleep(s)";
}

/* Each time with the same facts, so that one search finds them all; "" or 0 is nothing. */
static void log_episode(const json_t *episode)
{
	const json_t *holder = json_object_get(episode, "holder");
	bool brief = json_is_true(json_object_get(episode, "brief"));

	bh_log(BH_LOG_WARNING, COMPONENT, "stall", BH_STR("kind", text_at(episode, "kind")),
	       BH_INT("stall", number_at(episode, "id")), BH_INT("lag_ms", ms_at(episode, "lag_s")),
	       BH_INT("limit_ms", ms_at(episode, "limit_s")),
	       BH_STR("pool", text_at(episode, "pool")),
	       BH_STR("thread", text_at(episode, "thread")), BH_STR("op", text_at(episode, "op")),
	       BH_INT("task", number_at(episode, "task")),
	       BH_STR("holder", text_at(holder, "thread")), BH_INT("holder_tid", tid_of(holder)),
	       BH_STR("holder_plane", text_at(holder, "plane")),
	       BH_STR("holder_label", text_at(holder, "label")),
	       BH_STR("holder_site", text_at(holder, "site")),
	       BH_STR("holder_library", text_at(holder, "library")),
	       BH_STR("holder_op", text_at(holder, "op")),
	       BH_INT("holder_task", number_at(holder, "task")),
	       BH_INT("holder_since_ms", ms_at(holder, "since_s")),
	       BH_INT("holder_changed", json_is_true(json_object_get(holder, "changed"))),
	       BH_INT("waiters", json_array_size(json_object_get(episode, "waiters"))),
	       BH_INT("brief", brief), BH_STR("hint", advice(episode)));
	if (brief)
		return;
	log_native(episode);
	log_python(episode);
}

static void tell_apps(struct bh_stalls *stalls, const char *kind, json_t *episode)
{
	json_t *event = episode ? json_pack("{s:s, s:o}", "kind", kind, "stall", episode) : NULL;

	bh_mutex_lock(&stalls->lock);
	if (stalls->control)
		bh_control_tell_apps(stalls->control, event);
	else
		json_decref(event);
	bh_mutex_unlock(&stalls->lock);
}

/* Many stalls at once, or a limit that is too tight, must not drown the log and the book in stacks:
 * FULL_BURST reports may have all of them at once, and then one every FULL_EVERY_NS. The others keep
 * those of the holder and of who is stuck, and have one line in the log. */
static bool may_be_full(struct bh_stalls *stalls)
{
	uint64_t now = bh_now_ns(), ahead = (FULL_BURST - 1) * FULL_EVERY_NS;

	if (stalls->full_after_ns > now + ahead)
		return false;
	if (stalls->full_after_ns < now)
		stalls->full_after_ns = now;
	stalls->full_after_ns += FULL_EVERY_NS;
	return true;
}

static uint64_t on_begin(const struct bh_gauge *gauge, const struct bh_stall_subject *subject,
			 void *arg)
{
	struct bh_stalls *stalls = arg;
	bool full = may_be_full(stalls);
	uint64_t id = bh_stall_book_begin(stalls->book, gauge->kind, gauge->limit_ns, subject,
					  collect(stalls, subject, full));
	json_t *episode = bh_stall_book_render_one(stalls->book, id);

	if (episode)
		log_episode(episode);
	else
		bh_log(BH_LOG_WARNING, COMPONENT, "stall",
		       BH_STR("kind", bh_stall_kind_name(gauge->kind)), BH_INT("stall", id),
		       BH_STR("reason", "no memory for a report"));
	tell_apps(stalls, "stall", episode);
	return id;
}

static void on_end(const struct bh_gauge *gauge, uint64_t id, uint64_t lag_ns, void *arg)
{
	struct bh_stalls *stalls = arg;

	bh_stall_book_end(stalls->book, id, lag_ns);
	bh_log(BH_LOG_WARNING, COMPONENT, "stall over",
	       BH_STR("kind", bh_stall_kind_name(gauge->kind)), BH_INT("stall", id),
	       BH_INT("lag_ms", lag_ns / BH_NS_PER_MS));
	tell_apps(stalls, "stall-over", bh_stall_book_render_one(stalls->book, id));
}

/* ---- the view, on the control loop ----------------------------------------------------------- */

static double seconds(uint64_t ns)
{
	return (double)ns / BH_NS_PER_S;
}

/* A bucket may end above the largest value in it. */
static double quantile_s(const struct bh_histogram_counts *counts, double q,
			 const struct bh_stall_lag *lag)
{
	uint64_t ns = bh_histogram_quantile(counts, q);

	return seconds(ns < lag->max_ns ? ns : lag->max_ns);
}

static json_t *render_lag(const struct bh_stalls *stalls, enum bh_stall_kind kind)
{
	struct bh_histogram_counts counts = { 0 };
	struct bh_stall_lag lag;

	bh_stalls_lag(stalls, kind, &lag, &counts);
	return json_pack("{s:f, s:I, s:f, s:f, s:f, s:f, s:o}", "now_s", seconds(lag.now_ns), "n",
			 (json_int_t)lag.n, "last_s", seconds(lag.last_ns), "p50_s",
			 quantile_s(&counts, 0.5, &lag), "p99_s", quantile_s(&counts, 0.99, &lag),
			 "max_s", seconds(lag.max_ns), "max_at",
			 bh_stall_render_time(lag.max_at_ns));
}

static json_t *render_head(struct bh_stalls *stalls)
{
	const struct bh_config *config = stalls->config.config;
	struct bh_stall_counts counts;

	bh_stalls_count(stalls, &counts);
	return json_pack("{s:{s:f, s:f, s:f}, s:{s:o, s:o, s:o}, s:{s:I, s:I, s:I, s:I}}", "limits",
			 "gil_s", seconds((uint64_t)config->gil_stall_after_ns), "asyncio_s",
			 seconds((uint64_t)config->python_stall_after_ns), "control_s",
			 seconds((uint64_t)config->stall_after_ns), "lags", "gil",
			 render_lag(stalls, BH_STALL_GIL), "asyncio",
			 render_lag(stalls, BH_STALL_ASYNCIO), "control",
			 render_lag(stalls, BH_STALL_CONTROL), "counts", "gil",
			 (json_int_t)counts.n[BH_STALL_GIL], "asyncio",
			 (json_int_t)counts.n[BH_STALL_ASYNCIO], "control",
			 (json_int_t)counts.n[BH_STALL_CONTROL], "task",
			 (json_int_t)counts.n[BH_STALL_TASK]);
}

static char *write_view(size_t *ret_length, void *arg)
{
	struct bh_stalls *stalls = arg;
	json_t *head = render_head(stalls);
	bh_auto_mem char *members = head ? json_dumps(head, JSON_COMPACT | JSON_EMBED) : NULL;
	bh_auto_mem char *before = NULL;

	json_decref(head);
	if (!members || asprintf(&before, "{%s,\"stalls\":", members) < 0) {
		before = NULL;
		return NULL;
	}
	return bh_stall_book_render(stalls->book, before, "}\n", ret_length);
}

void bh_stalls_count(struct bh_stalls *stalls, struct bh_stall_counts *ret_counts)
{
	bh_stall_book_count(stalls->book, ret_counts);
}

static void read_probe(struct bh_stall_lag *ret_lag, struct bh_histogram_counts *counts)
{
	uint64_t since = bh_gil_probe_waiting_since(), now = bh_now_ns();
	struct bh_gil_probe_stats stats;

	bh_gil_probe_read(&stats, counts);
	*ret_lag = (struct bh_stall_lag){ .now_ns = since && now > since ? now - since : 0,
					  .n = stats.n,
					  .last_ns = stats.last_ns,
					  .total_ns = stats.total_ns,
					  .max_ns = stats.max_ns,
					  .max_at_ns = stats.max_at_ns };
}

void bh_stalls_lag(const struct bh_stalls *stalls, enum bh_stall_kind kind,
		   struct bh_stall_lag *ret_lag, struct bh_histogram_counts *counts)
{
	switch (kind) {
	case BH_STALL_GIL:
		read_probe(ret_lag, counts);
		return;
	case BH_STALL_ASYNCIO:
		bh_pulse_read(&stalls->asyncio, ret_lag, counts);
		return;
	case BH_STALL_CONTROL:
		bh_pulse_read(&stalls->native, ret_lag, counts);
		return;
	case BH_STALL_TASK:
		break;
	}
	bh_unreachable();
}

/* ---- life ------------------------------------------------------------------------------------ */

static void post_to_asyncio(struct bh_message *message, void *arg)
{
	(void)arg;
	bh_python_post(message);
}

/* Under stalls->lock, see pulse(); clang does not see it through the pointer. */
static void post_to_control(struct bh_message *message, void *arg)
{
	struct bh_stalls *stalls = arg;

	bh_postbox_post(bh_control_postbox(stalls->control), message);
}

bh_status bh_stalls_new(const struct bh_stalls_config *config, struct bh_stalls **ret_stalls,
			struct bh_error *err)
{
	size_t n = config->config->n_plugins;
	struct bh_stalls *stalls = calloc(1, sizeof(*stalls));
	struct task_gauge *tasks = calloc(n + 1, sizeof(*tasks));
	bh_status st;

	if (!stalls || !tasks)
		st = bh_raise(err, -ENOMEM, "stalls.alloc");
	else
		st = bh_stall_book_new(&stalls->book, err);
	if (st < 0) {
		free(tasks);
		free(stalls);
		return st;
	}
	stalls->config = *config;
	stalls->tasks = tasks;
	for (size_t i = 0; i < n; i++)
		tasks[i] = (struct task_gauge){ stalls, i };
	bh_mutex_init(&stalls->lock);
	bh_pulse_init(&stalls->asyncio, post_to_asyncio, stalls);
	bh_pulse_init(&stalls->native, post_to_control, stalls);
	bh_views_add_text(config->views, "stalls", write_view, stalls);
	*ret_stalls = stalls;
	return 0;
}

struct bh_stalls *bh_stalls_free(struct bh_stalls *stalls)
{
	if (!stalls)
		return NULL;
	bh_pulse_fini(&stalls->native);
	bh_pulse_fini(&stalls->asyncio);
	bh_mutex_fini(&stalls->lock);
	stalls->book = bh_stall_book_free(stalls->book);
	free(stalls->tasks);
	free(stalls);
	return NULL;
}

/* All of them, also those without a limit. Returns whether any has one. */
static bool make_gauges(struct bh_stalls *stalls, struct bh_gauge *gauges)
{
	const struct bh_config *config = stalls->config.config;
	bool any = false;

	gauges[0] = (struct bh_gauge){ BH_STALL_GIL, (uint64_t)config->gil_stall_after_ns, look_gil,
				       stalls };
	gauges[1] = (struct bh_gauge){ BH_STALL_ASYNCIO, (uint64_t)config->python_stall_after_ns,
				       look_asyncio, stalls };
	gauges[2] = (struct bh_gauge){ BH_STALL_CONTROL, (uint64_t)config->stall_after_ns,
				       look_native, stalls };
	for (size_t i = 0; i < config->n_plugins; i++)
		gauges[LOOP_GAUGES + i] =
			(struct bh_gauge){ BH_STALL_TASK,
					   (uint64_t)config->plugins[i].stall_after_ns, look_tasks,
					   &stalls->tasks[i] };
	for (size_t i = 0; i < LOOP_GAUGES + config->n_plugins; i++)
		any |= gauges[i].limit_ns > 0;
	return any;
}

bh_status bh_stalls_start(struct bh_stalls *stalls, struct bh_control *control,
			  struct bh_error *err)
{
	const struct bh_config *config = stalls->config.config;
	size_t n = LOOP_GAUGES + config->n_plugins;
	bh_auto_mem struct bh_gauge *gauges = calloc(n, sizeof(*gauges));
	bh_status st;
	bool any;

	bh_mutex_lock(&stalls->lock);
	stalls->control = control;
	bh_mutex_unlock(&stalls->lock);
	if (!gauges)
		return bh_raise(err, -ENOMEM, "stalls.alloc");
	any = make_gauges(stalls, gauges);
	const struct bh_beat beats[] = {
		{ (uint64_t)config->sample_interval_ns, sample, stalls },
		{ pulse_interval(config->stall_after_ns, any), pulse_control, stalls },
		{ pulse_interval(config->python_stall_after_ns, any), pulse_asyncio, stalls },
	};
	const struct bh_watchdog_config watchdog = {
		.beats = beats,
		.n_beats = BH_ARRAY_LEN(beats),
		.gauges = gauges,
		.n_gauges = n,
		.begin = on_begin,
		.end = on_end,
		.arg = stalls,
	};

	st = bh_watchdog_start(&watchdog, &stalls->watchdog, err);
	return st < 0 ? st : bh_gil_probe_start((uint64_t)config->probe_interval_ns, err);
}

void bh_stalls_loop_left(struct bh_stalls *stalls)
{
	bh_pulse_close(&stalls->asyncio);
}

bh_status bh_stalls_stop(struct bh_stalls *stalls, struct bh_deadline until, struct bh_error *err)
{
	bh_status st;

	bh_mutex_lock(&stalls->lock);
	stalls->control = NULL;
	bh_mutex_unlock(&stalls->lock);
	bh_pulse_close(&stalls->native);
	bh_watchdog_stop(stalls->watchdog);
	st = bh_watchdog_join(stalls->watchdog, until, err);
	if (st == 0)
		stalls->watchdog = NULL;
	return st;
}
