/* SPDX-License-Identifier: BSD-3-Clause */
/* test_stall - the suite of host/core/stall.c and host/core/pulse.c, and of what a pool tells about
 * tasks that run for long. */
#include "config.h"

#include "host/core/stall.h"

#include "host/core/pulse.h"
#include "tests/unit/pool_fixture.h"

#define LIMIT (100 * BH_NS_PER_MS)

/* ---- the book -------------------------------------------------------------------------------- */

static struct bh_stall_book *book_new(void)
{
	struct bh_stall_book *book = NULL;

	CU_ASSERT_FATAL(bh_stall_book_new(&book, NULL) == 0);
	return book;
}

static uint64_t book_begin(struct bh_stall_book *book, enum bh_stall_kind kind, uint64_t task)
{
	struct bh_stall_subject subject = { .key = task,
					    .since_ns = bh_now_ns() - 2 * LIMIT,
					    .task = task };

	return bh_stall_book_begin(
		book, kind, LIMIT, &subject,
		json_pack("{s:{s:s}, s:[{}]}", "holder", "thread", "t/0", "waiters"));
}

static json_t *book_list(struct bh_stall_book *book)
{
	size_t length = 0;
	char *text = bh_stall_book_render(book, "{\"list\":", "}\n", &length);
	json_t *list = NULL, *object = text ? json_loads(text, 0, NULL) : NULL;

	CU_ASSERT(json_unpack(object, "{s:O}", "list", &list) == 0 && json_is_array(list));
	CU_ASSERT(text && length == strlen(text));
	json_decref(object);
	free(text);
	return list;
}

static double number(const json_t *object, const char *key)
{
	CU_ASSERT_PTR_NOT_NULL(json_object_get(object, key));
	return json_number_value(json_object_get(object, key));
}

static void an_entry_is_whole(void)
{
	struct bh_stall_book *book = book_new();
	struct bh_stall_subject subject = { .since_ns = bh_now_ns() - 2 * LIMIT,
					    .pool = "count",
					    .thread = "count/0",
					    .tid = 7,
					    .op = "sleep",
					    .task = 9 };
	uint64_t id = bh_stall_book_begin(book, BH_STALL_TASK, LIMIT, &subject, NULL);
	json_t *entry = bh_stall_book_render_one(book, id);
	static const char *const keys[] = { "id",      "kind",	 "began",   "ended",  "lag_s",
					    "limit_s", "pool",	 "thread",  "tid",    "op",
					    "task",    "holder", "waiters", "native", "python" };

	CU_ASSERT_PTR_NOT_NULL_FATAL(entry);
	for (size_t i = 0; i < BH_ARRAY_LEN(keys); i++)
		CU_ASSERT_PTR_NOT_NULL(json_object_get(entry, keys[i]));
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(entry, "kind")), "task");
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(entry, "pool")), "count");
	CU_ASSERT(number(entry, "tid") == 7 && number(entry, "task") == 9);
	CU_ASSERT(number(entry, "lag_s") >= 0.2 && number(entry, "limit_s") == 0.1);
	CU_ASSERT(json_is_null(json_object_get(entry, "ended")));
	CU_ASSERT(json_is_null(json_object_get(entry, "holder")));
	json_decref(entry);

	bh_stall_book_end(book, id, 5 * LIMIT);
	bh_stall_book_end(book, id, 9 * LIMIT); /* the first end counts */
	entry = bh_stall_book_render_one(book, id);
	CU_ASSERT(number(entry, "lag_s") == 0.5);
	CU_ASSERT_DOUBLE_EQUAL(number(entry, "ended") - number(entry, "began"), 0.5, 1e-3);
	json_decref(entry);
	CU_ASSERT_PTR_NULL(bh_stall_book_render_one(book, id + 1));
	CU_ASSERT_PTR_NULL(bh_stall_book_render_one(book, 0));
	bh_stall_book_free(book);
}

static void the_book_is_bounded(void)
{
	struct bh_stall_book *book = book_new();
	struct bh_stall_counts counts;
	json_t *list;

	list = book_list(book);
	CU_ASSERT(json_array_size(list) == 0);
	json_decref(list);
	for (uint64_t i = 1; i <= 100; i++)
		CU_ASSERT(book_begin(book, i % 2 ? BH_STALL_GIL : BH_STALL_TASK, i) == i);
	bh_stall_book_end(book, 3, 1); /* not kept any more: nothing */
	list = book_list(book);
	CU_ASSERT_FATAL(json_array_size(list) == BH_STALLS_KEPT);
	for (size_t i = 0; i < BH_STALLS_KEPT; i++) {
		const json_t *entry = json_array_get(list, i);

		CU_ASSERT(number(entry, "id") == (double)(100 - i));
		CU_ASSERT(json_is_null(json_object_get(entry, "ended")));
		CU_ASSERT(json_array_size(json_object_get(entry, "waiters")) == 1);
		/* what its report lacks is empty */
		CU_ASSERT(json_is_array(json_object_get(entry, "native")));
		CU_ASSERT(json_is_array(json_object_get(entry, "python")));
	}
	json_decref(list);
	bh_stall_book_count(book, &counts);
	CU_ASSERT(counts.n[BH_STALL_GIL] == 50 && counts.n[BH_STALL_TASK] == 50);
	CU_ASSERT(counts.n[BH_STALL_ASYNCIO] == 0 && counts.n[BH_STALL_CONTROL] == 0);
	bh_stall_book_free(book);
	CU_ASSERT_PTR_NULL(bh_stall_book_free(NULL));
}

struct reader {
	struct bh_stall_book *book;
	_Atomic bool over;
	_Atomic unsigned n_read;
};

static void *read_book(void *arg)
{
	struct reader *reader = arg;

	while (!atomic_load(&reader->over)) {
		json_t *list = book_list(reader->book);

		if (!list)
			break;
		json_decref(list);
		atomic_fetch_add(&reader->n_read, 1);
	}
	return NULL;
}

/* Worth something under TSan and ASan above all. */
static void the_book_is_read_while_it_is_written(void)
{
	struct reader reader = { .book = book_new() };
	pthread_t thread;

	CU_ASSERT_FATAL(bh_thread_create(&thread, "reader", read_book, &reader, NULL) == 0);
	for (uint64_t i = 1; i <= 300 || atomic_load(&reader.n_read) < 3; i++) {
		uint64_t id = book_begin(reader.book, BH_STALL_TASK, i);
		json_t *entry = bh_stall_book_render_one(reader.book, id);

		json_decref(entry);
		bh_stall_book_end(reader.book, id, LIMIT);
	}
	atomic_store(&reader.over, true);
	CU_ASSERT(bh_thread_join(thread, PATIENCE, NULL) == 0);
	CU_ASSERT(atomic_load(&reader.n_read) >= 3);
	bh_stall_book_free(reader.book);
}

/* ---- pulses ---------------------------------------------------------------------------------- */

struct loop {
	struct bh_postbox box;
	unsigned n_posted;
};

static void post(struct bh_message *message, void *arg)
{
	struct loop *loop = arg;

	loop->n_posted++;
	bh_postbox_post(&loop->box, message);
}

static void a_pulse_measures_silence(void)
{
	struct bh_histogram_counts counts = { 0 };
	struct loop loop = { .n_posted = 0 };
	struct bh_stall_lag lag;
	struct bh_pulse pulse;
	uint64_t since;

	CU_ASSERT_FATAL(bh_postbox_init(&loop.box, NULL) == 0);
	bh_pulse_init(&pulse, post, &loop);
	CU_ASSERT(bh_pulse_silent_since(&pulse) == 0);
	bh_pulse_ask(&pulse);
	since = bh_pulse_silent_since(&pulse);
	CU_ASSERT(since != 0 && since <= bh_now_ns());
	bh_pulse_ask(&pulse); /* one at a time */
	CU_ASSERT(loop.n_posted == 1 && bh_pulse_silent_since(&pulse) == since);
	CU_ASSERT(UNTIL(bh_now_ns() - since >= 5 * BH_NS_PER_MS));
	bh_pulse_read(&pulse, &lag, NULL);
	CU_ASSERT(lag.now_ns >= 5 * BH_NS_PER_MS && lag.n == 0 && lag.max_at_ns == 0);
	bh_postbox_deliver(&loop.box);
	CU_ASSERT(bh_pulse_silent_since(&pulse) == 0);
	CU_ASSERT(atomic_load(&pulse.tid) == (uint32_t)gettid());
	bh_pulse_read(&pulse, &lag, &counts);
	CU_ASSERT(lag.now_ns == 0 && lag.n == 1 && counts.n == 1);
	CU_ASSERT(lag.last_ns >= 5 * BH_NS_PER_MS);
	CU_ASSERT(lag.max_ns == lag.last_ns && lag.total_ns == lag.last_ns && lag.max_at_ns != 0);
	bh_pulse_ask(&pulse);
	bh_postbox_deliver(&loop.box);
	bh_pulse_read(&pulse, &lag, NULL);
	CU_ASSERT(loop.n_posted == 2 && lag.n == 2);

	bh_pulse_ask(&pulse);
	bh_pulse_close(&pulse); /* the one that is out counts no more */
	CU_ASSERT(bh_pulse_silent_since(&pulse) == 0);
	bh_postbox_deliver(&loop.box);
	bh_pulse_ask(&pulse);
	CU_ASSERT(loop.n_posted == 3 && bh_pulse_silent_since(&pulse) == 0);
	bh_pulse_fini(&pulse);
	bh_postbox_fini(&loop.box);
}

/* ---- what pools tell ------------------------------------------------------------------------- */

static void a_pool_names_its_overdue_tasks(void)
{
	struct bh_ticket *tickets[3];
	struct bh_task_sight sights[4], sight;
	struct gate gates[2] = { { .arrived = 0 }, { .arrived = 0 } };
	_Atomic uint64_t pending = 0;
	struct fixture fx;
	uint64_t between;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	CU_ASSERT(bh_pool_overdue_tasks(fx.pool, UINT64_MAX, sights, 4) == 0);
	tickets[0] = fixture_submit(&fx, fn_pend, (void *)&pending);
	CU_ASSERT(UNTIL(atomic_load(&pending) != 0));
	tickets[1] = fixture_submit(&fx, fn_gate, &gates[0]);
	CU_ASSERT(UNTIL(atomic_load(&gates[0].arrived) == 1));
	between = bh_now_ns();
	tickets[2] = fixture_submit(&fx, fn_gate, &gates[1]);
	CU_ASSERT(UNTIL(atomic_load(&gates[1].arrived) == 1));

	CU_ASSERT_FATAL(bh_pool_overdue_tasks(fx.pool, UINT64_MAX, sights, 4) == 3);
	CU_ASSERT(sights[0].task_id == atomic_load(&pending) && sights[0].tid == 0);
	CU_ASSERT_STRING_EQUAL(sights[0].thread, "");
	CU_ASSERT(sights[1].task_id == tickets[1]->task_id);
	CU_ASSERT(sights[2].task_id == tickets[2]->task_id && sights[2].tid != sights[1].tid);
	CU_ASSERT(strncmp(sights[1].thread, "fixture/", 8) == 0);
	CU_ASSERT(sights[1].started_ns <= sights[2].started_ns);
	CU_ASSERT(bh_pool_overdue_tasks(fx.pool, between, sights, 4) == 2);
	CU_ASSERT(bh_pool_overdue_tasks(fx.pool, UINT64_MAX, sights, 1) == 1);
	CU_ASSERT(sights[0].task_id == atomic_load(&pending)); /* the oldest */

	CU_ASSERT_FATAL(bh_pool_overdue_tasks(fx.pool, UINT64_MAX, sights, 4) == 3);
	CU_ASSERT(bh_pool_task_of_thread(fx.pool, sights[2].tid, &sight));
	CU_ASSERT(sight.task_id == tickets[2]->task_id);
	CU_ASSERT_STRING_EQUAL(sight.thread, sights[2].thread);
	CU_ASSERT(!bh_pool_task_of_thread(fx.pool, (uint32_t)gettid(), &sight));
	CU_ASSERT(!bh_pool_task_of_thread(fx.pool, 0, &sight));

	gate_open(&gates[0]);
	gate_open(&gates[1]);
	CU_ASSERT(bh_pool_complete(fx.pool, atomic_load(&pending), 0, NULL, NULL) == 0);
	for (size_t i = 0; i < 3; i++)
		CU_ASSERT(fixture_outcome(tickets[i]) == BH_OUTCOME_DONE);
	CU_ASSERT(UNTIL(bh_pool_overdue_tasks(fx.pool, UINT64_MAX, sights, 4) == 0));
	CU_ASSERT(fixture_stop(&fx) == BH_POOL_CLEAN);
}

static const struct bh_test tests[] = {
	{ "CP-3: an entry of the book says what is stuck, since when and for how long",
	  an_entry_is_whole },
	{ "CP-3: the book keeps the last 64 stalls, newest first, and counts all",
	  the_book_is_bounded },
	{ "CP-1: the book is read while it is written", the_book_is_read_while_it_is_written },
	{ "CP-3: a pulse measures for how long a loop is silent", a_pulse_measures_silence },
	{ "CP-3: a pool names the tasks that run or are pending for long, and what a thread runs",
	  a_pool_names_its_overdue_tasks },
};

BH_TAP_MAIN("stall", tests)
