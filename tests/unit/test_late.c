/* SPDX-License-Identifier: BSD-3-Clause */
/* test_late - what comes after a task was given up: a device that still writes, completions that
 * come late, twice or for nobody (SUP-10, SUP-4, RI-5).
 *
 * The device is a thread that knows addresses and task numbers only, as hardware does. Under ASan
 * each of its writes would be a report if anything had been freed before its true end. */
#include "config.h"

#include "tests/unit/pool_fixture.h"

#include <fcntl.h>

#define BYTES 4096
#define WRITES 64

/* ---- stderr, to be read back: a log that was not started writes its lines at once ------------- */

struct capture {
	int saved, file;
	char text[8192];
};

static void capture_begin(struct capture *capture)
{
	char path[] = "/tmp/bh-test-late-XXXXXX";

	capture->file = mkostemp(path, O_CLOEXEC);
	CU_ASSERT_FATAL(capture->file >= 0);
	unlink(path);
	fflush(stderr);
	capture->saved = dup(STDERR_FILENO);
	dup2(capture->file, STDERR_FILENO);
	bh_log_set_level(BH_LOG_INFO);
}

static const char *capture_end(struct capture *capture)
{
	ssize_t n;

	bh_log_set_level(BH_LOG_ERROR + 1);
	dup2(capture->saved, STDERR_FILENO);
	close(capture->saved);
	n = pread(capture->file, capture->text, sizeof(capture->text) - 1, 0);
	capture->text[n > 0 ? n : 0] = '\0';
	close(capture->file);
	return capture->text;
}

/* How many lines have all of these in them; a NULL ends the list. */
static int lines_with(const char *text, const char *const what[])
{
	int n = 0;

	while (*text) {
		size_t length = strcspn(text, "\n");
		bh_auto_mem char *line = strndup(text, length);
		bool all = true;

		for (size_t i = 0; line && what[i]; i++)
			all &= strstr(line, what[i]) != NULL;
		n += all;
		text += length + (text[length] == '\n');
	}
	return n;
}
#define LINES(text, ...) lines_with((text), (const char *const[]){ __VA_ARGS__, NULL })

static const char *task_fact(char *buffer, size_t size, uint64_t id)
{
	snprintf(buffer, size, "task=%llu", (unsigned long long)id);
	return buffer;
}

/* ---- memory whose end is seen ---------------------------------------------------------------- */

struct memory {
	struct bh_buffer buffer;
	_Atomic int freed;
};

static void memory_free(struct bh_buffer *buffer)
{
	free(buffer->info.data);
	atomic_fetch_add(&bh_container_of(buffer, struct memory, buffer)->freed, 1);
}

static void memory_init(struct memory *memory)
{
	*memory = (struct memory){ .buffer = { .refs = 1, .free = memory_free } };
	memory->buffer.info = (struct bh_buffer_info){ .size = sizeof(memory->buffer.info),
						       .kind = BH_BUFFER_HOST,
						       .flags = BH_BUFFER_WRITABLE,
						       .data = calloc(1, BYTES),
						       .length = BYTES };
	CU_ASSERT_PTR_NOT_NULL_FATAL(memory->buffer.info.data);
}

/* ---- the device ------------------------------------------------------------------------------ */

struct device {
	struct gate gate; /* in each transfer: begun, and waiting to be let on */
	/* Set by the op before `task_id`, whose store is the release. */
	struct bh_pool *pool;
	volatile unsigned char *target;
	_Atomic uint64_t task_id;
	/* What it was told. */
	bh_status first, second;
	pthread_t thread;
};

/* The op: hands address and number over, keeps no reference, as a driver does. */
static bh_status fn_transfer(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct device *device = arg;

	device->pool = fx->pool;
	device->target = bh_task_args(task)->v[2].as.buffer->info.data;
	atomic_store(&device->task_id, bh_task_id(task));
	return BH_PENDING;
}

static void write_late(volatile unsigned char *target)
{
	for (int i = 1; i <= WRITES; i++) {
		for (size_t at = 0; at < BYTES; at++)
			target[at] = (unsigned char)i;
		for (size_t at = 0; at < BYTES; at++)
			if (target[at] != (unsigned char)i)
				abort(); /* it was somebody else's by then */
	}
}

static void *device_main(void *arg)
{
	struct device *device = arg;

	CU_ASSERT_TRUE(UNTIL(atomic_load(&device->task_id) != 0));
	gate_pass(&device->gate);
	write_late(device->target);
	device->first = bh_pool_complete(device->pool, device->task_id, 0, NULL, NULL);
	device->second = bh_pool_complete(device->pool, device->task_id, 0, NULL, NULL);
	return NULL;
}

static void device_begin(struct device *device)
{
	memset(device, 0, sizeof(*device));
	CU_ASSERT_EQUAL_FATAL(pthread_create(&device->thread, NULL, device_main, device), 0);
}

/* Lets it write and complete, and waits until it has. */
static void device_finish(struct device *device)
{
	gate_open(&device->gate);
	pthread_join(device->thread, NULL);
}

/* The caller keeps no reference of its own: only the task's are left. */
static struct bh_ticket *submit_transfer(struct fixture *fx, fixture_fn fn, void *arg,
					 struct memory *memory)
{
	struct bh_submission s = { .deadline = BH_NEVER,
				   .ticket = fixture_ticket(),
				   .args = bh_args_new(3) };

	memory_init(memory);
	s.args->v[0] =
		(struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = (uint64_t)(uintptr_t)fn };
	s.args->v[1] =
		(struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = (uint64_t)(uintptr_t)arg };
	s.args->v[2] = (struct bh_value){ .type = BH_TYPE_BUFFER, .as.buffer = &memory->buffer };
	CU_ASSERT_EQUAL_FATAL(bh_pool_submit(fx->pool, &s, NULL), BH_ACCEPTED);
	return s.ticket;
}

static uint32_t alive(struct bh_pool *pool)
{
	struct bh_pool_books books;

	bh_pool_books(pool, &books);
	return books.abandoned_alive;
}

/* ---- SUP-10 ---------------------------------------------------------------------------------- */

static void sup10_device_writes_after_the_end(void)
{
	struct capture capture;
	struct memory memory;
	struct device device;
	struct bh_ticket *ticket;
	struct fixture fx;
	char task[32];
	uint64_t id;
	const char *text;

	fixture_init(&fx, 2, 8);
	device_begin(&device);
	fixture_start(&fx);
	ticket = submit_transfer(&fx, fn_transfer, &device, &memory);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&device.gate.arrived) == 1));
	capture_begin(&capture);
	bh_pool_stop(fx.pool, PAST, PAST);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_ABANDONED); /* lets go of the ticket */
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_state(fx.pool), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(bh_pool_join(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(alive(fx.pool), 1);
	CU_ASSERT_EQUAL(memory.freed, 0);

	id = device.task_id;
	device_finish(&device);
	CU_ASSERT_EQUAL(device.first, 0); /* its true end */
	CU_ASSERT_EQUAL(device.second, -ESRCH);
	CU_ASSERT_EQUAL(memory.freed, 1);
	CU_ASSERT_EQUAL(alive(fx.pool), 0);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
	text = capture_end(&capture);
	task_fact(task, sizeof(task), id);
	CU_ASSERT_EQUAL(LINES(text, "tasks are abandoned", "pool=fixture", "op=call", task), 1);
	CU_ASSERT_EQUAL(LINES(text, "has ended after all", "pool=fixture", "op=call", task), 1);
	CU_ASSERT_EQUAL(LINES(text, "completed a task that has ended already", "pool=fixture",
			      "op=call", task),
			1);
	CU_ASSERT_EQUAL(LINES(text, "memory is kept"), 0);
}

/* Nobody could free the pool yet, so it is kept, with what is left of it named. */
static void sup10_device_writes_into_a_freed_pool(void)
{
	struct capture capture;
	static struct memory memory;
	struct device device;
	struct bh_ticket *ticket;
	struct bh_pool *pool;
	struct fixture fx;
	char task[32];
	const char *text;

	fixture_init(&fx, 1, 8);
	device_begin(&device);
	fixture_start(&fx);
	pool = fx.pool;
	ticket = submit_transfer(&fx, fn_transfer, &device, &memory);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&device.gate.arrived) == 1));
	bh_pool_stop(fx.pool, PAST, PAST);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_ABANDONED);
	capture_begin(&capture);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN); /* frees it */
	text = capture_end(&capture);
	task_fact(task, sizeof(task), device.task_id);
	CU_ASSERT_EQUAL(LINES(text, "memory is kept", "pool=fixture", "tasks=1", "op=call", task),
			1);
	CU_ASSERT_EQUAL(memory.freed, 0);
	device_finish(&device);
	CU_ASSERT_EQUAL(device.first, 0);
	CU_ASSERT_EQUAL(device.second, -ESRCH);
	CU_ASSERT_EQUAL(memory.freed, 1);
	CU_ASSERT_EQUAL(alive(pool), 0);
}

struct stuck {
	struct gate gate;
	bh_status first;
};

/* A worker that comes back from its driver long after everybody has given up on it. */
static bh_status fn_stuck_then_writes(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct stuck *stuck = arg;

	(void)fx;
	gate_pass(&stuck->gate);
	write_late(bh_task_args(task)->v[2].as.buffer->info.data);
	return 0;
}

static void sup10_given_up_worker_writes(void)
{
	struct stuck stuck = { .gate = { 0 } };
	struct memory in_worker, in_device;
	struct device device;
	struct bh_ticket *running, *pending;
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	device_begin(&device);
	fixture_start(&fx);
	running = submit_transfer(&fx, fn_stuck_then_writes, &stuck, &in_worker);
	pending = submit_transfer(&fx, fn_transfer, &device, &in_device);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&stuck.gate.arrived) == 1));
	CU_ASSERT_TRUE(UNTIL(atomic_load(&device.gate.arrived) == 1));
	CU_ASSERT_TRUE(bh_pool_give_up(fx.pool, NULL));
	CU_ASSERT_EQUAL(fixture_outcome(running), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(fixture_outcome(pending), BH_OUTCOME_ABANDONED);
	CU_ASSERT_TRUE(fixture_balances(fx.pool));
	CU_ASSERT_EQUAL(alive(fx.pool), 2);
	CU_ASSERT_EQUAL(in_worker.freed + in_device.freed, 0);

	device_finish(&device);
	CU_ASSERT_EQUAL(device.first, 0);
	CU_ASSERT_EQUAL(in_device.freed, 1);
	CU_ASSERT_EQUAL(in_worker.freed, 0);
	CU_ASSERT_EQUAL(alive(fx.pool), 1);
	gate_open(&stuck.gate);
	CU_ASSERT_EQUAL(bh_pool_join(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(in_worker.freed, 1);
	CU_ASSERT_EQUAL(alive(fx.pool), 0);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_WEDGED);
}

/* Told, but run() is still on its way out and may still write. */
static bh_status fn_completes_then_writes(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct stuck *stuck = arg;

	stuck->first = bh_pool_complete(fx->pool, bh_task_id(task), 0, NULL, NULL);
	gate_pass(&stuck->gate);
	write_late(bh_task_args(task)->v[2].as.buffer->info.data);
	return BH_PENDING;
}

static void sup10_told_but_still_running(void)
{
	struct stuck stuck = { .gate = { 0 }, .first = -1 };
	struct memory memory;
	struct bh_ticket *ticket;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = submit_transfer(&fx, fn_completes_then_writes, &stuck, &memory);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_DONE);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&stuck.gate.arrived) == 1));
	CU_ASSERT_EQUAL(stuck.first, 0);
	CU_ASSERT_EQUAL(memory.freed, 0);
	gate_open(&stuck.gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&memory.freed) == 1));
	bh_ticket_unref(ticket);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(memory.freed, 1);
}

/* The buffer of a task whose deadline passed is the task's until the device says so too. */
static void sup10_device_writes_after_the_deadline(void)
{
	struct capture capture;
	struct bh_submission how = { .deadline = SOON_MS(1) };
	struct bh_pool_books books;
	struct memory memory;
	struct device device;
	struct bh_ticket *late, *pending;
	struct fixture fx;
	char task[32];
	const char *text;

	fixture_init(&fx, 1, 8);
	device_begin(&device);
	fixture_start(&fx);
	pending = submit_transfer(&fx, fn_transfer, &device, &memory);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&device.gate.arrived) == 1));

	/* One that has ended by its deadline cannot be completed any more. */
	late = fixture_submit_how(&fx, fn_until_cancelled, NULL, &how);
	CU_ASSERT_EQUAL(bh_ticket_wait(late, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(late), BH_OUTCOME_DEADLINE);
	capture_begin(&capture);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, late->task_id, 0, NULL, NULL), -ESRCH);
	text = capture_end(&capture);
	task_fact(task, sizeof(task), late->task_id);
	CU_ASSERT_EQUAL(LINES(text, "level=error", "pool=fixture", "op=call", task), 1);
	CU_ASSERT_EQUAL(bh_ticket_outcome(late), BH_OUTCOME_DEADLINE);

	/* One that is pending is completed, whenever that is. */
	CU_ASSERT_TRUE(bh_ticket_cancel(pending, false));
	CU_ASSERT_TRUE(UNTIL(atomic_load(&fx.n_cancel) >= 1));
	CU_ASSERT_EQUAL(bh_ticket_outcome(pending), BH_OUTCOME_NONE);
	CU_ASSERT_EQUAL(memory.freed, 0);
	device_finish(&device);
	CU_ASSERT_EQUAL(device.first, 0);
	CU_ASSERT_EQUAL(device.second, -ESRCH);
	CU_ASSERT_EQUAL(bh_ticket_outcome(pending), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(memory.freed, 1);
	bh_pool_books(fx.pool, &books);
	CU_ASSERT_EQUAL(books.done, 1);
	CU_ASSERT_EQUAL(books.deadline, 1);
	bh_ticket_unref(late);
	bh_ticket_unref(pending);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* Nobody has given it up: it is done, and the log says how late. */
static void sup4_completed_after_its_deadline(void)
{
	struct capture capture;
	struct bh_submission how = { .deadline = SOON_MS(1500) };
	_Atomic uint64_t id = 0;
	struct bh_ticket *ticket;
	struct fixture fx;
	char task[32];
	const char *text;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit_how(&fx, fn_pend, &id, &how);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	CU_ASSERT_TRUE(UNTIL(atomic_load(&fx.n_cancel) >= 1)); /* the deadline has passed */
	capture_begin(&capture);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	text = capture_end(&capture);
	task_fact(task, sizeof(task), id);
	CU_ASSERT_EQUAL(LINES(text, "level=warning", "pool=fixture", "op=call", task), 1);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_DONE);
	bh_ticket_unref(ticket);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- who completes what nobody waits for ------------------------------------------------------ */

static void sup4_stray_completions_change_nothing(void)
{
	struct capture capture;
	struct bh_value value = { .type = BH_TYPE_STR, .as.text = { strdup("late"), 4 } };
	struct bh_pool_books before, after;
	_Atomic uint64_t id = 0;
	struct bh_ticket *ticket;
	struct fixture fx;
	char task[32];
	const char *text;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, -EIO, NULL, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_FAILED);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	bh_pool_books(fx.pool, &before);
	capture_begin(&capture);
	/* After the pool has ended; its value is released all the same. */
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, &value, NULL), -ESRCH);
	text = capture_end(&capture);
	CU_ASSERT_EQUAL(value.type, BH_TYPE_NONE);
	CU_ASSERT_EQUAL(LINES(text, "level=error", "pool=fixture", "op=call",
			      task_fact(task, sizeof(task), id)),
			1);
	bh_pool_books(fx.pool, &after);
	CU_ASSERT_EQUAL(memcmp(&before, &after, sizeof(before)), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_FAILED);
	bh_ticket_unref(ticket);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

/* Many transfers, each completed by two threads at once while the pool is stopped: one of the two
 * is the end, the other is refused, whatever came first. */
#define RACES 200

struct racer {
	struct fixture *fx;
	_Atomic uint64_t *ids;
	_Atomic int *accepted;
};

static void *race(void *arg)
{
	struct racer *racer = arg;

	for (int i = 0; i < RACES; i++) {
		uint64_t id;

		CU_ASSERT_TRUE(UNTIL((id = atomic_load(&racer->ids[i])) != 0));
		if (bh_pool_complete(racer->fx->pool, id, 0, NULL, NULL) == 0)
			atomic_fetch_add(&racer->accepted[i], 1);
	}
	return NULL;
}

static void sup4_completed_from_two_sides_at_once(void)
{
	static _Atomic uint64_t ids[RACES];
	static _Atomic int accepted[RACES];
	static struct memory memory[RACES];
	struct bh_ticket *tickets[RACES];
	struct racer racer = { NULL, ids, accepted };
	pthread_t threads[2];
	struct fixture fx;

	memset((void *)ids, 0, sizeof(ids));
	memset((void *)accepted, 0, sizeof(accepted));
	fixture_init(&fx, 2, RACES);
	racer.fx = &fx;
	fixture_start(&fx);
	for (int i = 0; i < 2; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, race, &racer), 0);
	for (int i = 0; i < RACES; i++)
		tickets[i] = submit_transfer(&fx, fn_pend, &ids[i], &memory[i]);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	for (int i = 0; i < RACES; i++) {
		CU_ASSERT_EQUAL(bh_ticket_wait(tickets[i], PATIENCE, NULL), 0);
		CU_ASSERT_EQUAL(bh_ticket_outcome(tickets[i]), BH_OUTCOME_DONE);
		bh_ticket_unref(tickets[i]);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
	for (int i = 0; i < RACES; i++) {
		CU_ASSERT_EQUAL(accepted[i], 1);
		CU_ASSERT_EQUAL(memory[i].freed, 1);
	}
}

static const struct bh_test tests[] = {
	{ "SUP-10: a device writes long after its pool has ended, then completes",
	  sup10_device_writes_after_the_end },
	{ "SUP-10: a device writes into a pool that was freed, and is named",
	  sup10_device_writes_into_a_freed_pool },
	{ "SUP-10: a worker that was given up writes when it comes back",
	  sup10_given_up_worker_writes },
	{ "SUP-10: what is told keeps its memory while run() is on its way out",
	  sup10_told_but_still_running },
	{ "SUP-10: a device writes after cancel; a task past its deadline is not completed",
	  sup10_device_writes_after_the_deadline },
	{ "SUP-4: a pending task completed after its deadline is done, and named as late",
	  sup4_completed_after_its_deadline },
	{ "SUP-4: a completion after the end names pool, op and task and changes nothing",
	  sup4_stray_completions_change_nothing },
	{ "SUP-4: completed by two threads at once, one is the end",
	  sup4_completed_from_two_sides_at_once },
};

BH_TAP_MAIN("late", tests)
