/* SPDX-License-Identifier: BSD-3-Clause */
/* test_supervisor - build, stop, failure, giving up and join of host/core/supervisor.c and
 * worker.c. */
#include "config.h"

#include "tests/unit/pool_fixture.h"

#include <sys/resource.h>
#include <sys/wait.h>

static bool was_announced(struct fixture *fx, enum bh_pool_state state)
{
	return atomic_load(&fx->announced) & (1u << state);
}

/* ---- SUP-1, SUP-2 ---------------------------------------------------------------------------- */

static void sup1_owner_thread(void)
{
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	CU_ASSERT_TRUE(UNTIL(was_announced(&fx, BH_POOL_READY)));
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	CU_ASSERT_STRING_EQUAL(fx.open_thread, "fixture/sup");
	CU_ASSERT_STRING_EQUAL(fx.close_thread, "fixture/sup");
	CU_ASSERT_EQUAL(fx.n_open, 1);
	CU_ASSERT_EQUAL(fx.n_close, 1);
	CU_ASSERT_TRUE(was_announced(&fx, BH_POOL_CLEAN));
	CU_ASSERT_TRUE(UNTIL(fixture_threads() == 0));
}

static void sup2_open_fails(void)
{
	struct fixture fx;
	struct bh_error err = { .status = 0 }, cause;

	fixture_init(&fx, 2, 8);
	fx.open_fails = true;
	fixture_make(&fx);
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_wait_started(fx.pool, PATIENCE, &err), -ENODEV);
	CU_ASSERT_STRING_EQUAL(err.id, "fixture.no-device");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "device"), "7");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "pool"), "fixture");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "step"), "open");
	CU_ASSERT_TRUE(bh_pool_cause(fx.pool, &cause));
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_BUILD_FAILED);
	CU_ASSERT_TRUE(was_announced(&fx, BH_POOL_BUILD_FAILED) &&
		       !was_announced(&fx, BH_POOL_READY));
	CU_ASSERT_EQUAL(fx.n_close, 0); /* what never opened is not closed */
	CU_ASSERT_EQUAL(fx.n_started, 0);
	CU_ASSERT_TRUE(UNTIL(fixture_threads() == 0));
}

static void sup2_third_worker_fails(void)
{
	struct fixture fx;
	struct bh_error err = { .status = 0 };

	fixture_init(&fx, 5, 8);
	fx.config.n_progress = 2;
	fx.start_fails_at = 2;
	fixture_make(&fx);
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_wait_started(fx.pool, PATIENCE, &err), -ENXIO);
	CU_ASSERT_STRING_EQUAL(err.id, "fixture.start");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "step"), "worker_start");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "worker"), "2");
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_BUILD_FAILED);
	CU_ASSERT_EQUAL(fx.n_close, 1);
	CU_ASSERT_EQUAL(fx.n_started,
			fx.n_stopped); /* each that started was stopped, the failed one not */
	CU_ASSERT_EQUAL(fx.n_progress, 0);
	CU_ASSERT_TRUE(UNTIL(fixture_threads() == 0));
}

static void end_this_thread(struct fixture *fx)
{
	(void)fx;
	pthread_exit(NULL);
}

static void sup2_supervisor_vanishes(void)
{
	struct fixture fx;
	struct bh_error err = { .status = 0 };

	fixture_init(&fx, 2, 8);
	fx.on_open = end_this_thread;
	fixture_make(&fx);
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_wait_started(fx.pool, PATIENCE, &err), -ECHILD);
	CU_ASSERT_STRING_EQUAL(err.id, "pool.supervisor-lost");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "step"), "open");
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_BUILD_FAILED);

	fixture_init(&fx, 2, 8);
	fx.on_close = end_this_thread;
	fixture_start(&fx);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_nop, NULL)), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_FAILED);
	CU_ASSERT_EQUAL(fx.n_close, 1); /* not called again */
	CU_ASSERT_EQUAL(fx.n_stopped, 2);
}

static void end_this_worker(struct fixture *fx, uint32_t worker)
{
	(void)fx;
	if (worker == 1)
		pthread_exit(NULL);
}

static void sup2_worker_vanishes_in_start(void)
{
	struct fixture fx;
	struct bh_error err = { .status = 0 };

	fixture_init(&fx, 3, 8);
	fx.on_start = end_this_worker;
	fixture_make(&fx);
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_wait_started(fx.pool, PATIENCE, &err), -ECHILD);
	CU_ASSERT_STRING_EQUAL(err.id, "pool.thread-lost");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "thread"), "fixture/1");
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_BUILD_FAILED);
	CU_ASSERT_EQUAL(fx.n_close, 1);
}

/* ---- where the threads run ------------------------------------------------------------------- */

struct placement {
	struct bh_cpus cpus; /* what each thread of the pool should be pinned to */
	int nice;
	_Atomic int as_asked, otherwise;
};

/* On the thread itself, from the kernel's own account of it. */
static void look_at_placement(struct fixture *fx)
{
	struct placement *placement = fx->arg;
	char path[64], line[512], wanted[128], field[160] = "", stat[512];
	int nice = 99;
	const char *at;
	FILE *file;

	bh_cpus_format(&placement->cpus, wanted, sizeof(wanted));
	snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)gettid());
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		(void)sscanf(line, "Cpus_allowed_list: %159s", field);
	if (file)
		fclose(file);
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)gettid());
	file = fopen(path, "re");
	/* Field 19; the second, in parentheses, may hold anything. */
	at = file && fgets(stat, sizeof(stat), file) ? strrchr(stat, ')') : NULL;
	if (at)
		(void)sscanf(at,
			     ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %d",
			     &nice);
	if (file)
		fclose(file);
	if (strcmp(field, wanted) == 0 && nice == placement->nice)
		atomic_fetch_add(&placement->as_asked, 1);
	else
		atomic_fetch_add(&placement->otherwise, 1);
}

static void look_in_start(struct fixture *fx, uint32_t worker)
{
	(void)worker;
	look_at_placement(fx);
}

static void look_in_progress(struct fixture *fx, uint32_t thread, int stop_fd)
{
	struct pollfd fd = { .fd = stop_fd, .events = POLLIN };

	(void)thread;
	look_at_placement(fx);
	while (poll(&fd, 1, -1) < 0)
		;
}

static void threads_are_placed(void)
{
	struct placement placement = { .nice = getpriority(PRIO_PROCESS, 0) };
	struct bh_cpus allowed, mine;
	char text[128], one[16];
	struct fixture fx;

	/* The last CPU alone, and a nice value that is allowed and, where there is room, new. */
	CU_ASSERT_EQUAL_FATAL(bh_cpus_allowed(&allowed, NULL), 0);
	bh_cpus_format(&allowed, text, sizeof(text));
	for (unsigned cpu = 0; cpu < BH_CPUS_MAX; cpu++) {
		snprintf(one, sizeof(one), "%u", cpu);
		CU_ASSERT_EQUAL_FATAL(bh_cpus_parse(one, &mine), 0);
		mine = bh_cpus_without(&mine, &allowed);
		if (bh_cpus_count(&mine) == 0)
			CU_ASSERT_EQUAL_FATAL(bh_cpus_parse(one, &placement.cpus), 0);
	}
	if (placement.nice < 19)
		placement.nice++;
	fixture_init(&fx, 3, 8);
	fx.config.n_progress = 2;
	fx.config.cpus = &placement.cpus;
	fx.config.has_nice = true;
	fx.config.nice = placement.nice;
	fx.on_start = look_in_start;
	fx.on_progress = look_in_progress;
	fx.arg = &placement;
	fixture_start(&fx);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&placement.as_asked) == 5));
	CU_ASSERT_EQUAL(placement.otherwise, 0);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
	/* Nobody else was moved. */
	CU_ASSERT_EQUAL_FATAL(bh_cpus_allowed(&mine, NULL), 0);
	CU_ASSERT_TRUE(CPU_EQUAL_S(sizeof(mine.set), mine.set, allowed.set));
	CU_ASSERT_NOT_EQUAL(getpriority(PRIO_PROCESS, 0), placement.nice + (placement.nice == 19));
}

/* A CPU that is not there: worker and progress threads cannot be pinned. */
static void unplaced_thread_fails_the_build(void)
{
	struct bh_error err = { .status = 0 };
	struct bh_cpus far;
	struct fixture fx;

	CU_ASSERT_EQUAL_FATAL(bh_cpus_parse("8191", &far), 0);
	fixture_init(&fx, 2, 8);
	fx.config.n_progress = 1;
	fx.config.cpus = &far;
	fixture_make(&fx);
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_wait_started(fx.pool, PATIENCE, &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(err.id, "cpus.pin");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "cpus"), "8191");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "pool"), "fixture");
	CU_ASSERT_PTR_NOT_NULL(bh_error_fact(&err, "thread"));
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_BUILD_FAILED);
	CU_ASSERT_EQUAL(fx.n_started, 0);
	CU_ASSERT_EQUAL(fx.n_progress, 0);
	CU_ASSERT_EQUAL(fx.n_close, 1);
}

/* How many threads of the pool whose name begins with `prefix` run on `cpus` and nowhere else. */
static int count_pinned(const char *prefix, const char *cpus)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int n = 0;

	while (dir && (entry = readdir(dir))) {
		char path[300], line[512], name[32] = "", field[160] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		file = fopen(path, "re");
		while (file && fgets(line, sizeof(line), file)) {
			(void)sscanf(line, "Name: %31s", name);
			(void)sscanf(line, "Cpus_allowed_list: %159s", field);
		}
		if (file)
			fclose(file);
		n += strncmp(name, prefix, strlen(prefix)) == 0 && strcmp(field, cpus) == 0;
	}
	if (dir)
		closedir(dir);
	return n;
}

/* Ready must not be said while one of them is still on its way: often, because what this is after
 * is a matter of who comes first. */
static void ready_means_every_thread(void)
{
	struct bh_cpus allowed, first;
	char text[128], one[16];

	CU_ASSERT_EQUAL_FATAL(bh_cpus_allowed(&allowed, NULL), 0);
	bh_cpus_format(&allowed, text, sizeof(text));
	snprintf(one, sizeof(one), "%d", atoi(text));
	CU_ASSERT_EQUAL_FATAL(bh_cpus_parse(one, &first), 0);
	for (int i = 0; i < 20; i++) {
		struct fixture fx;

		fixture_init(&fx, 2, 8);
		fx.config.n_progress = 8;
		fx.config.cpus = &first;
		fixture_start(&fx);
		CU_ASSERT_EQUAL(fx.n_started, 2);
		CU_ASSERT_EQUAL(count_pinned("fixture/p", one), 8);
		CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
		CU_ASSERT_TRUE(UNTIL(fixture_threads() == 0)); /* none of it lingers in the count */
	}
}

/* In a child that gave up every privilege: 0 when the refusal is as it should be. */
static int refused_nice(void)
{
	const struct rlimit none = { 0, 0 };
	struct bh_error err = { .status = 0 };
	struct fixture fx;
	bool good;

	if (setrlimit(RLIMIT_NICE, &none) < 0 ||
	    (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0))
		return 2;
	fixture_init(&fx, 2, 8);
	fx.config.has_nice = true;
	fx.config.nice = getpriority(PRIO_PROCESS, 0) - 1;
	if (bh_pool_new(&fx.config, &fx.pool, NULL) < 0 || bh_pool_start(fx.pool, NULL) < 0)
		return 3;
	good = bh_pool_wait_started(fx.pool, PATIENCE, &err) == -EACCES &&
	       strcmp(err.id, "pool.nice") == 0 && bh_error_fact(&err, "nice") &&
	       strcmp(bh_error_fact(&err, "RLIMIT_NICE"), "0") == 0 &&
	       strstr(bh_error_fact(&err, "hint"), "CAP_SYS_NICE") && fx.n_started == 0;
	if (bh_pool_wait_ended(fx.pool, PATIENCE, NULL) < 0 ||
	    bh_pool_join(fx.pool, PATIENCE, NULL) < 0)
		return 5;
	return good ? 0 : 4;
}

static void nice_needs_permission(void)
{
	pid_t child;
	int status = -1;

	if (getpriority(PRIO_PROCESS, 0) <= -20)
		BH_SKIP("nothing is below the nice value of this process");
	fflush(NULL);
	child = fork();
	CU_ASSERT_FATAL(child >= 0);
	if (child == 0)
		_exit(refused_nice());
	CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
	CU_ASSERT_TRUE(WIFEXITED(status));
	CU_ASSERT_EQUAL(WEXITSTATUS(status), 0);
}

static struct gate build_gate;

static void wait_at_build_gate(struct fixture *fx)
{
	(void)fx;
	gate_pass(&build_gate);
}

static void stopped_while_building(void)
{
	struct fixture fx;
	struct bh_error err = { .status = 0 };

	build_gate = (struct gate){ 0 };
	fixture_init(&fx, 2, 8);
	fx.on_open = wait_at_build_gate;
	fixture_make(&fx);
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), -EALREADY);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&build_gate.arrived) == 1));
	CU_ASSERT_EQUAL(bh_pool_wait_started(fx.pool, SOON_MS(5), &err), -ETIMEDOUT);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "step"), "open");
	bh_pool_stop(fx.pool, PAST, PAST); /* returns while open still hangs (SUP-3) */
	CU_ASSERT_EQUAL(bh_pool_state(fx.pool), BH_POOL_BUILDING);
	gate_open(&build_gate);
	bh_error_clear(&err);
	CU_ASSERT_EQUAL(bh_pool_wait_started(fx.pool, PATIENCE, &err), -ECANCELED);
	CU_ASSERT_STRING_EQUAL(err.id, "pool.stopped");
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fx.n_close, 1);
	CU_ASSERT_FALSE(was_announced(&fx, BH_POOL_READY));
}

static void never_started(void)
{
	struct fixture fx;
	json_t *report = NULL;

	fixture_init(&fx, 2, 8);
	fixture_make(&fx);
	CU_ASSERT_EQUAL(bh_pool_wait_started(fx.pool, PATIENCE, NULL), -EINVAL);
	CU_ASSERT_EQUAL(bh_pool_wait_ended(fx.pool, PAST, NULL), -ETIMEDOUT);
	bh_pool_stop(fx.pool, PAST, PAST);
	CU_ASSERT_TRUE(was_announced(&fx, BH_POOL_CLEAN));
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), -EALREADY);
	CU_ASSERT_FALSE(bh_pool_give_up(fx.pool, &report));
	CU_ASSERT_PTR_NULL(report);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
	CU_ASSERT_EQUAL(fx.n_open, 0);
	CU_ASSERT_PTR_NULL(bh_pool_free(NULL));
}

/* ---- SUP-3 ----------------------------------------------------------------------------------- */

static bh_status fn_stop(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)task;
	(void)arg;
	bh_pool_stop(fx->pool, PATIENCE, PATIENCE);
	bh_pool_stop(fx->pool, PATIENCE, PATIENCE);
	return fixture_try(fx, fn_nop, NULL, NULL, NULL, NULL) == BH_CLOSED ? 0 : -EINVAL;
}

static void sup3_from_a_worker(void)
{
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL(fixture_outcome(fixture_submit(&fx, fn_stop, NULL)), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

static void sup3_earliest_deadline(void)
{
	struct gate gate = { 0 };
	struct bh_ticket *running, *queued;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	running = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	queued = fixture_submit(&fx, fn_nop, NULL);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	bh_pool_stop(fx.pool, PAST, PATIENCE);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE); /* does not give time back */
	CU_ASSERT_EQUAL(fixture_outcome(queued), BH_OUTCOME_CANCELLED);
	CU_ASSERT_EQUAL(bh_ticket_outcome(running), BH_OUTCOME_NONE);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(running), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

static void drains_what_it_has(void)
{
	struct gate gate = { 0 };
	struct bh_pool_books books;
	struct bh_ticket *last = NULL;
	struct fixture fx;

	fixture_init(&fx, 2, 64);
	fixture_start(&fx);
	bh_ticket_unref(fixture_submit(&fx, fn_gate, &gate));
	bh_ticket_unref(fixture_submit(&fx, fn_gate, &gate));
	for (int i = 0; i < 40; i++) {
		bh_ticket_unref(last);
		last = fixture_submit(&fx, fn_nop, NULL);
	}
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(last), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	bh_pool_books(fx.pool, &books);
	CU_ASSERT_EQUAL(books.done, 42);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

static void running_are_told_at_the_drain_deadline(void)
{
	_Atomic int running = 0;
	struct bh_ticket *ticket;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_until_cancelled, &running);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&running) == 1));
	bh_pool_stop(fx.pool, SOON_MS(5), PATIENCE);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_CANCELLED);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

/* ---- SUP-5 ----------------------------------------------------------------------------------- */

static void sup5_close_fails(void)
{
	struct fixture fx;
	struct bh_error cause;

	fixture_init(&fx, 1, 8);
	fx.close_fails = true;
	fixture_start(&fx);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(bh_pool_cause(fx.pool, &cause));
	CU_ASSERT_STRING_EQUAL(cause.id, "fixture.close");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "reason"), "still busy");
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_FAILED);
	CU_ASSERT_TRUE(was_announced(&fx, BH_POOL_FAILED));
}

static void sup5_worker_stop_fails(void)
{
	struct fixture fx;
	struct bh_error cause;

	fixture_init(&fx, 3, 8);
	fx.stop_fails_at = 1;
	fixture_start(&fx);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(bh_pool_cause(fx.pool, &cause));
	CU_ASSERT_STRING_EQUAL(cause.id, "fixture.stop");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "worker"), "1");
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_FAILED);
	CU_ASSERT_EQUAL(fx.n_stopped, 3);
	CU_ASSERT_EQUAL(fx.n_close, 1);
}

static bh_status fn_end_thread(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	(void)arg;
	bh_task_set_result(
		task, (struct bh_value){ .type = BH_TYPE_STR, .as.text = { strdup("lost"), 4 } });
	pthread_exit(NULL);
}

struct nested {
	struct bh_ticket *inner;
};

static bh_status fn_end_thread_inside(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct nested *nested = arg;

	nested->inner = fixture_submit(fx, fn_end_thread, NULL);
	return bh_ticket_wait(nested->inner, PATIENCE, bh_task_error(task));
}

static void sup5_worker_vanishes(void)
{
	struct gate gate = { 0 };
	struct nested nested = { 0 };
	struct bh_ticket *outer, *running;
	struct bh_error cause;
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	running = fixture_submit(&fx, fn_gate, &gate); /* keeps the other worker busy */
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	outer = fixture_submit(&fx, fn_end_thread_inside, &nested);
	CU_ASSERT_EQUAL(bh_ticket_wait(outer, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(outer), BH_OUTCOME_FAILED);
	CU_ASSERT_STRING_EQUAL(outer->error.id, "pool.thread-lost");
	CU_ASSERT_EQUAL(fixture_outcome(nested.inner), BH_OUTCOME_FAILED);
	bh_ticket_unref(outer);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(running), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(bh_pool_cause(fx.pool, &cause));
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "op"), "call");
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_FAILED);
	CU_ASSERT_EQUAL(fx.n_stopped, 1);
	CU_ASSERT_EQUAL(fx.n_close, 1);
}

static void end_in_cancel(struct fixture *fx, uint64_t task_id)
{
	(void)fx;
	(void)task_id;
	pthread_exit(NULL);
}

static void sup5_supervisor_vanishes_in_cancel(void)
{
	_Atomic uint64_t id = 0;
	_Atomic int running = 0;
	struct bh_ticket *pending, *other;
	struct bh_error cause;
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	fx.config.n_progress = 1;
	fx.on_cancel = end_in_cancel;
	fixture_start(&fx);
	pending = fixture_submit(&fx, fn_pend, &id);
	other = fixture_submit(&fx, fn_until_cancelled, &running);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0 && atomic_load(&running) == 1));
	bh_ticket_cancel(pending, false);
	CU_ASSERT_EQUAL(fixture_outcome(pending), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(fixture_outcome(other), BH_OUTCOME_CANCELLED);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_TRUE(bh_pool_cause(fx.pool, &cause));
	CU_ASSERT_STRING_EQUAL(cause.id, "pool.supervisor-lost");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "step"), "cancel");
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_FAILED);
	CU_ASSERT_EQUAL(fx.n_close, 1);
	CU_ASSERT_EQUAL(fx.n_progress, 0);
}

/* What was queued is told at once, also while a worker keeps the rest of the end waiting. */
static void sup4_lost_supervisor_tells_the_queue(void)
{
	_Atomic uint64_t id = 0;
	struct gate gate = { 0 };
	struct bh_ticket *pending, *running, *queued;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fx.on_cancel = end_in_cancel;
	fixture_start(&fx);
	pending = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	running = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	queued = fixture_submit(&fx, fn_nop, NULL);
	bh_ticket_cancel(pending, false);
	CU_ASSERT_EQUAL(bh_ticket_wait(queued, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(queued), BH_OUTCOME_CANCELLED);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&queued->error, "cause"), "pool.supervisor-lost");
	CU_ASSERT_EQUAL(bh_ticket_outcome(running), BH_OUTCOME_NONE);
	bh_ticket_unref(queued);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(running), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_outcome(pending), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_FAILED);
}

static void failed_at_run_time(void)
{
	struct gate gate = { 0 };
	struct bh_error cause = { .status = 0 }, err = { .status = 0 };
	struct bh_ticket *running, *queued;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	running = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	queued = fixture_submit(&fx, fn_nop, NULL);
	bh_raise(&cause, -EIO, "fixture.poisoned", BH_INT("device", 2));
	bh_pool_fail(fx.pool, &cause);
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, NULL, NULL, &err), BH_CLOSED);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "cause"), "fixture.poisoned");
	CU_ASSERT_EQUAL(bh_ticket_wait(queued, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(queued), BH_OUTCOME_CANCELLED);
	CU_ASSERT_STRING_EQUAL(queued->error.id, "pool.failed");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&queued->error, "cause"), "fixture.poisoned");
	bh_ticket_unref(queued);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(running), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_FAILED);
	CU_ASSERT_EQUAL(fx.n_close, 1);
}

static bh_status fn_report_failed(struct fixture *fx, struct bh_task *task, void *arg)
{
	struct bh_error cause = { .status = 0 };

	(void)task;
	gate_pass(arg);
	bh_raise(&cause, -EIO, "fixture.poisoned");
	bh_pool_fail(fx->pool, &cause);
	return 0;
}

static void nothing_runs_after_a_failure(void)
{
	for (int round = 0; round < 20; round++) {
		struct gate gate = { 0 };
		struct bh_ticket *first, *queued[4];
		struct fixture fx;

		fixture_init(&fx, 1, 8);
		fixture_start(&fx);
		first = fixture_submit(&fx, fn_report_failed, &gate);
		for (int i = 0; i < 4; i++)
			queued[i] = fixture_submit(&fx, fn_nop, NULL);
		gate_open(&gate);
		CU_ASSERT_EQUAL(fixture_outcome(first), BH_OUTCOME_DONE);
		for (int i = 0; i < 4; i++)
			CU_ASSERT_EQUAL(fixture_outcome(queued[i]), BH_OUTCOME_CANCELLED);
		CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_FAILED);
		CU_ASSERT_EQUAL(fx.n_run, 1);
	}
}

static bh_status fn_complete_then_gate(struct fixture *fx, struct bh_task *task, void *arg)
{
	bh_status st = bh_pool_complete(fx->pool, bh_task_id(task), 0, NULL, NULL);

	gate_pass(arg);
	return st < 0 ? st : BH_PENDING;
}

static void told_is_not_cancelled(void)
{
	struct gate gate = { 0 };
	_Atomic int running = 0;
	struct bh_ticket *told, *other;
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	told = fixture_submit(&fx, fn_complete_then_gate, &gate);
	other = fixture_submit(&fx, fn_until_cancelled, &running);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1 && atomic_load(&running) == 1));
	CU_ASSERT_EQUAL(bh_ticket_outcome(told), BH_OUTCOME_DONE);
	bh_pool_stop(fx.pool, PAST, PATIENCE);
	CU_ASSERT_EQUAL(fixture_outcome(other), BH_OUTCOME_CANCELLED);
	CU_ASSERT_NOT_EQUAL(fx.cancelled_id, told->task_id);
	CU_ASSERT_EQUAL(bh_pool_state(fx.pool), BH_POOL_DRAINING); /* run() has not come back */
	gate_open(&gate);
	bh_ticket_unref(told);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

/* ---- SUP-6 ----------------------------------------------------------------------------------- */

static void sup6_join(void)
{
	struct fixture fx;
	struct bh_error err = { .status = 0 };

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	CU_ASSERT_EQUAL(bh_pool_join(fx.pool, PATIENCE, &err), -EBUSY);
	CU_ASSERT_STRING_EQUAL(err.id, "pool.join-early");
	CU_ASSERT_EQUAL(bh_pool_wait_ended(fx.pool, SOON_MS(5), NULL), -ETIMEDOUT);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_join(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_join(fx.pool, PAST, NULL), 0); /* replayed */
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

struct self_join {
	struct bh_error err;
	bh_status joined;
	struct gate gate;
};

static void join_myself(struct bh_pool *pool, enum bh_pool_state state, void *arg)
{
	struct self_join *self = arg;

	/* Only a test calls the pool from here: to be on the supervisor after its end is
	 * published. */
	if (state == BH_POOL_CLEAN) {
		self->joined = bh_pool_join(pool, PATIENCE, &self->err);
		gate_pass(&self->gate);
	}
}

static void sup6_not_by_itself(void)
{
	struct self_join self = { .joined = 0 };
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fx.config.announce = join_myself;
	fx.config.announce_arg = &self;
	fixture_start(&fx);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&self.gate.arrived) == 1));
	CU_ASSERT_EQUAL(self.joined, -EDEADLK);
	CU_ASSERT_STRING_EQUAL(self.err.id, "pool.join-self"); /* not attempted */
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&self.err, "pool"), "fixture");
	CU_ASSERT_EQUAL(bh_pool_join(fx.pool, SOON_MS(5), NULL),
			-ETIMEDOUT); /* published, not ended */
	gate_open(&self.gate);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

struct joiner {
	struct bh_pool *pool;
	_Atomic int timeouts;
	bh_status result;
	pthread_t thread;
};

static void *join_it(void *arg)
{
	struct joiner *joiner = arg;

	while ((joiner->result = bh_pool_join(joiner->pool, SOON_MS(50), NULL)) == -ETIMEDOUT)
		atomic_fetch_add(&joiner->timeouts, 1);
	return NULL;
}

static void wait_when_clean(struct bh_pool *pool, enum bh_pool_state state, void *arg)
{
	(void)pool;
	if (state == BH_POOL_CLEAN)
		gate_pass(arg);
}

static void sup6_two_joiners(void)
{
	struct joiner joiners[2];
	struct gate gate = { 0 };
	struct fixture fx;

	/* Published, but its thread has not ended: both are at it when it does. */
	fixture_init(&fx, 1, 8);
	fx.config.announce = wait_when_clean;
	fx.config.announce_arg = &gate;
	fixture_start(&fx);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	for (int i = 0; i < 2; i++) {
		joiners[i] = (struct joiner){ .pool = fx.pool, .result = 1 };
		CU_ASSERT_EQUAL_FATAL(
			pthread_create(&joiners[i].thread, NULL, join_it, &joiners[i]), 0);
	}
	for (int i = 0; i < 2; i++)
		CU_ASSERT_TRUE(UNTIL(atomic_load(&joiners[i].timeouts) > 0));
	gate_open(&gate);
	for (int i = 0; i < 2; i++) {
		pthread_join(joiners[i].thread, NULL);
		CU_ASSERT_EQUAL(joiners[i].result, 0);
	}
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

/* ---- SUP-9 ----------------------------------------------------------------------------------- */

static void sup9_expired_join_tries(void)
{
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_wait_ended(fx.pool, PAST, NULL), 0);
	/* Its thread ends a moment after it has published. */
	CU_ASSERT_TRUE(UNTIL(bh_pool_join(fx.pool, PAST, NULL) == 0));
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

struct room {
	struct bh_pool *pool;
	enum bh_admission admission;
	_Atomic bool back;
};

static void *wait_for_room(void *arg)
{
	struct room *room = arg;
	const struct bh_submission s = { .deadline = BH_NEVER };

	room->admission = bh_pool_submit_wait(room->pool, &s, SOON_MS(20), NULL);
	atomic_store(&room->back, true);
	return NULL;
}

/* Clean-up tasks come and go in the reserve, and each wakes who waits for a common place: that one
 * never gets one, and its deadline must not begin anew. */
static void sup9_wake_ups_do_not_prolong(void)
{
	const struct bh_submission cleanup = { .flags = BH_SUBMIT_CLEANUP, .deadline = BH_NEVER };
	struct room room = { .back = false };
	_Atomic uint64_t id = 0;
	struct bh_ticket *pending;
	pthread_t thread;
	struct fixture fx;

	fixture_init(&fx, 1, 1);
	fx.config.reserve = 2;
	fixture_start(&fx);
	pending = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	CU_ASSERT_TRUE(UNTIL(fixture_try(&fx, fn_nop, NULL, NULL, NULL, NULL) == BH_OVERLOADED));
	room.pool = fx.pool;
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, wait_for_room, &room), 0);
	CU_ASSERT_TRUE(UNTIL(fixture_outcome(fixture_submit_how(&fx, fn_nop, NULL, &cleanup)) !=
				     BH_OUTCOME_DONE ||
			     atomic_load(&room.back)));
	CU_ASSERT_TRUE(room.back);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(room.admission, BH_OVERLOADED);
	CU_ASSERT_EQUAL(fixture_outcome(pending), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(fixture_stop(&fx), BH_POOL_CLEAN);
}

/* ---- SUP-10 and giving up -------------------------------------------------------------------- */

struct witness {
	struct bh_object object;
	_Atomic int freed;
};

static void witness_free(struct bh_object *object)
{
	atomic_fetch_add(&bh_container_of(object, struct witness, object)->freed, 1);
}

static struct bh_ticket *submit_with_witness(struct fixture *fx, fixture_fn fn, void *arg,
					     struct witness *witness)
{
	struct bh_submission s = { .deadline = BH_NEVER,
				   .ticket = fixture_ticket(),
				   .args = bh_args_new(3) };

	*witness = (struct witness){ .object = { .refs = 1, .free = witness_free } };
	s.args->v[0] =
		(struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = (uint64_t)(uintptr_t)fn };
	s.args->v[1] =
		(struct bh_value){ .type = BH_TYPE_HANDLE, .as.handle = (uint64_t)(uintptr_t)arg };
	s.args->v[2] = (struct bh_value){ .type = BH_TYPE_OBJECT, .as.object = &witness->object };
	CU_ASSERT_EQUAL_FATAL(bh_pool_submit(fx->pool, &s, NULL), BH_ACCEPTED);
	return s.ticket;
}

static void sup10_pending_is_abandoned(void)
{
	_Atomic uint64_t id = 0;
	struct bh_value late = { .type = BH_TYPE_STR, .as.text = { strdup("late"), 4 } };
	struct bh_pool_books books;
	struct bh_ticket *ticket;
	struct witness witness;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = submit_with_witness(&fx, fn_pend, &id, &witness);
	CU_ASSERT_TRUE(UNTIL((bh_pool_books(fx.pool, &books), books.pending == 1)));
	bh_pool_stop(fx.pool, SOON_MS(5), SOON_MS(10));
	CU_ASSERT_EQUAL(bh_ticket_wait(ticket, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_ABANDONED);
	CU_ASSERT_STRING_EQUAL(ticket->error.id, "task.abandoned");
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(fx.cancelled_id, id);
	bh_pool_books(fx.pool, &books);
	CU_ASSERT_EQUAL(books.abandoned, 1);
	CU_ASSERT_EQUAL(books.abandoned_alive, 1);
	CU_ASSERT_EQUAL(books.pending, 0);
	CU_ASSERT_EQUAL(witness.freed, 0); /* a late DMA lands in memory that is still ours */
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, &late, NULL), 0);
	CU_ASSERT_EQUAL(witness.freed, 1);
	CU_ASSERT_EQUAL(bh_ticket_outcome(ticket), BH_OUTCOME_ABANDONED);
	bh_pool_books(fx.pool, &books);
	CU_ASSERT_EQUAL(books.abandoned_alive, 0);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), -ESRCH);
	bh_ticket_unref(ticket);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

static void sup10_freed_pool_keeps_it(void)
{
	static _Atomic uint64_t id;
	static struct witness witness; /* referenced for ever, by intention */
	struct bh_ticket *ticket;
	struct bh_pool *pool;
	struct fixture fx;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	pool = fx.pool;
	ticket = submit_with_witness(&fx, fn_pend, &id, &witness);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	bh_pool_stop(fx.pool, PAST, PAST);
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN); /* frees the pool */
	CU_ASSERT_EQUAL(witness.freed, 0);
	CU_ASSERT_EQUAL(bh_pool_complete(pool, id, 0, NULL, NULL), 0); /* and still this is safe */
	CU_ASSERT_EQUAL(witness.freed, 1);
}

static bh_status fn_gate_then_pend(struct fixture *fx, struct bh_task *task, void *arg)
{
	(void)fx;
	(void)task;
	return gate_pass(arg) ? BH_PENDING : -ETIME;
}

static void turns_pending_too_late(void)
{
	struct gate gate = { 0 };
	struct bh_ticket *ticket;
	struct fixture fx;
	uint64_t id;

	fixture_init(&fx, 1, 8);
	fixture_start(&fx);
	ticket = fixture_submit(&fx, fn_gate_then_pend, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	bh_pool_stop(fx.pool, PAST, PAST);
	CU_ASSERT_TRUE(UNTIL(bh_pool_state(fx.pool) == BH_POOL_EXITING));
	gate_open(&gate);
	id = ticket->task_id;
	CU_ASSERT_EQUAL(fixture_outcome(ticket), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL_FATAL(bh_pool_wait_ended(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

/* As above, while another worker never comes back: nobody waits for that one. */
static void turns_pending_while_a_worker_is_stuck(void)
{
	struct gate gate = { 0 }, other = { 0 };
	struct bh_ticket *late, *stuck;
	struct fixture fx;
	uint64_t id;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	late = fixture_submit(&fx, fn_gate_then_pend, &gate);
	stuck = fixture_submit(&fx, fn_gate, &other);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) + atomic_load(&other.arrived) == 2));
	bh_pool_stop(fx.pool, PAST, PAST);
	CU_ASSERT_TRUE(UNTIL(bh_pool_state(fx.pool) == BH_POOL_EXITING));
	gate_open(&gate);
	id = late->task_id;
	CU_ASSERT_EQUAL(fixture_outcome(late), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(bh_ticket_outcome(stuck), BH_OUTCOME_NONE);
	gate_open(&other);
	CU_ASSERT_EQUAL(fixture_outcome(stuck), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

static void pending_is_told_while_a_worker_is_stuck(void)
{
	struct gate gate = { 0 };
	_Atomic uint64_t id = 0;
	struct bh_ticket *stuck, *pending;
	struct bh_pool_books books;
	struct fixture fx;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	stuck = fixture_submit(&fx, fn_gate, &gate);
	pending = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL((bh_pool_books(fx.pool, &books), books.pending == 1)));
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	bh_pool_stop(fx.pool, PAST, PAST);
	CU_ASSERT_EQUAL(bh_ticket_wait(pending, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(bh_ticket_outcome(pending), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(bh_ticket_outcome(stuck), BH_OUTCOME_NONE);
	bh_ticket_unref(pending);
	gate_open(&gate);
	CU_ASSERT_EQUAL(fixture_outcome(stuck), BH_OUTCOME_DONE);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
}

static const json_t *stuck_thread(const json_t *report)
{
	const json_t *threads = json_object_get(report, "threads");

	return json_array_size(threads) == 1 ? json_array_get(threads, 0) : NULL;
}

static void wedged_worker(void)
{
	struct gate gate = { 0 };
	struct bh_ticket *stuck, *queued;
	struct bh_pool_books books;
	struct bh_error cause;
	struct witness witness;
	struct fixture fx;
	json_t *report = NULL;

	fixture_init(&fx, 2, 8);
	fixture_start(&fx);
	stuck = submit_with_witness(&fx, fn_gate, &gate, &witness);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	queued = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 2));
	bh_ticket_unref(queued);
	queued = fixture_submit(&fx, fn_nop, NULL);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_TRUE(bh_pool_give_up(fx.pool, &report));
	CU_ASSERT_EQUAL(bh_pool_state(fx.pool), BH_POOL_WEDGED);
	CU_ASSERT_TRUE(was_announced(&fx, BH_POOL_WEDGED));
	CU_ASSERT_EQUAL(bh_ticket_outcome(stuck), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(bh_ticket_outcome(queued), BH_OUTCOME_CANCELLED);
	bh_pool_books(fx.pool, &books);
	CU_ASSERT_EQUAL(books.queued + books.running + books.pending, 0);
	CU_ASSERT_EQUAL(books.abandoned, 2);
	CU_ASSERT_EQUAL(books.abandoned_alive, 2);
	CU_ASSERT_EQUAL(witness.freed, 0);
	CU_ASSERT_TRUE(bh_pool_cause(fx.pool, &cause));
	CU_ASSERT_STRING_EQUAL(cause.id, "pool.wedged");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "op"), "call");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "step"), "run");
	CU_ASSERT_EQUAL(json_array_size(json_object_get(report, "threads")), 2);
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(report, "pool")), "fixture");
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(report, "state")), "draining");
	json_decref(report);
	CU_ASSERT_EQUAL(bh_pool_wait_ended(fx.pool, PAST, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_join(fx.pool, SOON_MS(5), NULL), -ETIMEDOUT);
	CU_ASSERT_FALSE(bh_pool_give_up(fx.pool, NULL));

	gate_open(&gate); /* the late end is harmless */
	CU_ASSERT_EQUAL(bh_pool_join(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(witness.freed, 1);
	bh_pool_books(fx.pool, &books);
	CU_ASSERT_EQUAL(books.abandoned_alive, 0);
	CU_ASSERT_EQUAL(books.abandoned, 2);
	CU_ASSERT_EQUAL(bh_ticket_outcome(stuck), BH_OUTCOME_ABANDONED);
	bh_ticket_unref(stuck);
	bh_ticket_unref(queued);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_WEDGED);
	CU_ASSERT_EQUAL(fx.n_close, 1);
}

static struct gate cancel_gate;
static _Atomic bool cancel_left;

static void wait_in_cancel(struct fixture *fx, uint64_t task_id)
{
	(void)fx;
	(void)task_id;
	gate_pass(&cancel_gate);
	atomic_store(&cancel_left, true);
}

/* Nobody else can tell the queue then: who gives the pool up does, before it is published. */
static void wedged_in_cancel(void)
{
	_Atomic uint64_t id = 0;
	struct gate gate = { 0 };
	struct bh_ticket *pending, *running, *queued;
	struct bh_pool_books books;
	struct bh_error cause;
	struct fixture fx;
	json_t *report = NULL;
	uint64_t began_ns;

	cancel_gate = (struct gate){ 0 };
	atomic_store(&cancel_left, false);
	fixture_init(&fx, 1, 8);
	fx.on_cancel = wait_in_cancel;
	fixture_start(&fx);
	pending = fixture_submit(&fx, fn_pend, &id);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&id) != 0));
	running = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	queued = fixture_submit(&fx, fn_nop, NULL);
	bh_ticket_cancel(pending, false);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&cancel_gate.arrived) == 1));
	began_ns = bh_now_ns();
	CU_ASSERT_TRUE(UNTIL(bh_now_ns() - began_ns >= 5 * BH_NS_PER_MS));
	CU_ASSERT_TRUE(bh_pool_give_up(fx.pool, &report));
	CU_ASSERT_TRUE(bh_pool_cause(fx.pool, &cause));
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&cause, "thread"), "fixture/0");
	CU_ASSERT_TRUE(atoi(bh_error_fact(&cause, "since_ms")) >= 5);
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(report, "step")), "cancel");
	json_decref(report);
	CU_ASSERT_EQUAL(bh_ticket_outcome(queued), BH_OUTCOME_CANCELLED);
	CU_ASSERT_EQUAL(bh_ticket_outcome(running), BH_OUTCOME_ABANDONED);
	CU_ASSERT_EQUAL(bh_ticket_outcome(pending), BH_OUTCOME_ABANDONED);
	bh_pool_books(fx.pool, &books);
	CU_ASSERT_EQUAL(books.queued + books.running + books.pending, 0);
	CU_ASSERT_EQUAL(books.submitted, books.cancelled + books.abandoned);
	gate_open(&gate);
	/* The supervisor does not keep the worker. */
	CU_ASSERT_TRUE(UNTIL(atomic_load(&fx.n_stopped) == 1));
	CU_ASSERT_FALSE(atomic_load(&cancel_left));
	gate_open(&cancel_gate);
	CU_ASSERT_EQUAL(bh_pool_complete(fx.pool, id, 0, NULL, NULL), 0);
	CU_ASSERT_EQUAL(bh_pool_join(fx.pool, PATIENCE, NULL), 0);
	bh_ticket_unref(queued);
	bh_ticket_unref(running);
	bh_ticket_unref(pending);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_WEDGED);
}

static void wedged_in_open(void)
{
	struct fixture fx;
	json_t *report = NULL;

	build_gate = (struct gate){ 0 };
	fixture_init(&fx, 2, 8);
	fx.on_open = wait_at_build_gate;
	fixture_make(&fx);
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), 0);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&build_gate.arrived) == 1));
	CU_ASSERT_TRUE(bh_pool_give_up(fx.pool, &report));
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(report, "step")), "open");
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(report, "state")), "building");
	json_decref(report);
	CU_ASSERT_NOT_EQUAL(bh_pool_wait_started(fx.pool, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(fixture_try(&fx, fn_nop, NULL, NULL, NULL, NULL), BH_CLOSED);
	gate_open(&build_gate);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_WEDGED);
	CU_ASSERT_EQUAL(fx.n_started, 0);
	CU_ASSERT_EQUAL(fx.n_close, 1); /* what opened late is closed */
	CU_ASSERT_FALSE(was_announced(&fx, BH_POOL_READY));
}

static void wait_in_start(struct fixture *fx, uint32_t worker)
{
	(void)fx;
	if (worker == 1)
		gate_pass(&build_gate);
}

static void wedged_in_worker_start(void)
{
	struct fixture fx;
	json_t *report = NULL;

	build_gate = (struct gate){ 0 };
	fixture_init(&fx, 2, 8);
	fx.on_start = wait_in_start;
	fixture_make(&fx);
	CU_ASSERT_EQUAL(bh_pool_start(fx.pool, NULL), 0);
	CU_ASSERT_TRUE(
		UNTIL(atomic_load(&build_gate.arrived) == 1 && atomic_load(&fx.n_started) == 1));
	CU_ASSERT_TRUE(bh_pool_give_up(fx.pool, &report));
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(report, "step")), "worker_start");
	CU_ASSERT_PTR_NOT_NULL_FATAL(json_array_get(json_object_get(report, "threads"), 0));
	json_decref(report);
	gate_open(&build_gate);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_WEDGED);
	CU_ASSERT_EQUAL(fx.n_started, fx.n_stopped);
}

static void wedged_in_close(void)
{
	struct fixture fx;
	json_t *report = NULL;

	build_gate = (struct gate){ 0 };
	fixture_init(&fx, 2, 8);
	fx.on_close = wait_at_build_gate;
	fixture_start(&fx);
	bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&build_gate.arrived) == 1));
	CU_ASSERT_TRUE(bh_pool_give_up(fx.pool, &report));
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(report, "step")), "close");
	CU_ASSERT_EQUAL(json_array_size(json_object_get(report, "threads")), 0);
	json_decref(report);
	gate_open(&build_gate);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_WEDGED);
}

static void one_stuck_thread_is_named(void)
{
	struct gate gate = { 0 };
	struct bh_ticket *stuck;
	const json_t *thread;
	struct fixture fx;
	json_t *report = NULL;

	fixture_init(&fx, 3, 8);
	fixture_start(&fx);
	stuck = fixture_submit(&fx, fn_gate, &gate);
	CU_ASSERT_TRUE(UNTIL(atomic_load(&gate.arrived) == 1));
	CU_ASSERT_TRUE(bh_pool_give_up(fx.pool, &report)); /* straight from ready */
	thread = stuck_thread(report);
	CU_ASSERT_PTR_NOT_NULL_FATAL(thread);
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(thread, "op")), "call");
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(thread, "task")),
			(json_int_t)stuck->task_id);
	CU_ASSERT_TRUE(json_integer_value(json_object_get(thread, "tid")) > 0);
	CU_ASSERT_TRUE(json_is_integer(json_object_get(thread, "worker")));
	CU_ASSERT_EQUAL(
		strncmp(json_string_value(json_object_get(thread, "thread")), "fixture/", 8), 0);
	json_decref(report);
	gate_open(&gate);
	bh_ticket_unref(stuck);
	CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_WEDGED);
}

/* ---- many rounds ----------------------------------------------------------------------------- */

struct stopper {
	struct bh_pool *pool;
	int delay_rounds;
};

static void *stop_it(void *arg)
{
	struct stopper *stopper = arg;

	for (int i = 0; i < stopper->delay_rounds; i++)
		sched_yield();
	bh_pool_stop(stopper->pool, PATIENCE, PATIENCE);
	return NULL;
}

/* Stops at any moment of build and run, with work under way: always an end, balanced, nothing
 * left. */
static void stop_at_any_moment(void)
{
	for (int round = 0; round < 100; round++) {
		struct stopper stopper = { .delay_rounds = round * 3 };
		struct fixture fx;
		pthread_t thread;

		fixture_init(&fx, 1 + (uint32_t)round % 4, 16);
		fx.config.n_progress = (uint32_t)round % 2;
		fixture_make(&fx);
		stopper.pool = fx.pool;
		CU_ASSERT_EQUAL_FATAL(bh_pool_start(fx.pool, NULL), 0);
		CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, stop_it, &stopper), 0);
		for (;;) {
			enum bh_admission admission =
				fixture_try(&fx, fn_nop, NULL, NULL, NULL, NULL);

			if (admission == BH_CLOSED && bh_pool_state(fx.pool) != BH_POOL_BUILDING)
				break;
			sched_yield();
		}
		pthread_join(thread, NULL);
		CU_ASSERT_EQUAL(fixture_end(&fx), BH_POOL_CLEAN);
		CU_ASSERT_EQUAL(fx.n_open, fx.n_close);
		CU_ASSERT_EQUAL(fx.n_started, fx.n_stopped);
	}
	CU_ASSERT_TRUE(UNTIL(fixture_threads() == 0));
}

static void *give_it_up(void *arg)
{
	struct stopper *stopper = arg;

	for (int i = 0; i < stopper->delay_rounds; i++)
		sched_yield();
	(void)bh_pool_give_up(stopper->pool, NULL);
	return NULL;
}

static void give_up_at_any_moment(void)
{
	for (int round = 0; round < 100; round++) {
		struct stopper stopper = { .delay_rounds = round * 3 };
		enum bh_pool_state state;
		struct fixture fx;
		pthread_t thread;

		fixture_init(&fx, 1 + (uint32_t)round % 4, 16);
		fixture_start(&fx);
		stopper.pool = fx.pool;
		CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, give_it_up, &stopper), 0);
		while (fixture_try(&fx, fn_nop, NULL, NULL, NULL, NULL) != BH_CLOSED) {
			if (round % 2)
				bh_pool_stop(fx.pool, PATIENCE, PATIENCE);
			sched_yield();
		}
		pthread_join(thread, NULL);
		state = fixture_end(&fx);
		CU_ASSERT_TRUE(state == BH_POOL_WEDGED || (state == BH_POOL_CLEAN && round % 2));
	}
}

static const struct bh_test tests[] = {
	{ "SUP-1: open and close run on the supervisor, no thread is left", sup1_owner_thread },
	{ "SUP-2: open fails, the cause comes back, nothing is left", sup2_open_fails },
	{ "SUP-2: the third worker fails to start, what was built is undone",
	  sup2_third_worker_fails },
	{ "SUP-2: a supervisor that ends itself has published", sup2_supervisor_vanishes },
	{ "SUP-2: a worker that ends itself in worker_start fails the build",
	  sup2_worker_vanishes_in_start },
	{ "cpus, nice: each thread of the pool has what was asked for, nobody else",
	  threads_are_placed },
	{ "SUP-2: ready means that every thread has begun, progress too",
	  ready_means_every_thread },
	{ "SUP-2: a thread that cannot be pinned fails the build",
	  unplaced_thread_fails_the_build },
	{ "SUP-2: a nice value that is not permitted fails the build and says how",
	  nice_needs_permission },
	{ "SUP-3: asked to stop while building, it ends clean", stopped_while_building },
	{ "SUP-3: a pool that was never started can be stopped", never_started },
	{ "SUP-3: a worker of the pool can stop it, twice", sup3_from_a_worker },
	{ "SUP-3: the earliest deadline counts", sup3_earliest_deadline },
	{ "stop: what was accepted is worked off", drains_what_it_has },
	{ "stop: running tasks are told at the drain deadline",
	  running_are_told_at_the_drain_deadline },
	{ "SUP-5: an error of close ends as failed with that cause", sup5_close_fails },
	{ "SUP-5: an error of worker_stop ends as failed with that cause", sup5_worker_stop_fails },
	{ "SUP-5: a worker that vanishes fails its tasks and its pool", sup5_worker_vanishes },
	{ "SUP-5: a supervisor that vanishes while serving has published",
	  sup5_supervisor_vanishes_in_cancel },
	{ "SUP-4: a supervisor that vanishes has told the queue at once",
	  sup4_lost_supervisor_tells_the_queue },
	{ "a pool reported failed cancels its queue with the cause", failed_at_run_time },
	{ "a pool reported failed runs nothing more", nothing_runs_after_a_failure },
	{ "stop: a task that was completed early is not cancelled", told_is_not_cancelled },
	{ "SUP-6: an early join is refused, a second one replayed", sup6_join },
	{ "SUP-6: the supervisor cannot join itself", sup6_not_by_itself },
	{ "SUP-6: two joiners both get the result", sup6_two_joiners },
	{ "SUP-9: an expired join tries once", sup9_expired_join_tries },
	{ "SUP-9: wake-ups do not prolong a wait", sup9_wake_ups_do_not_prolong },
	{ "SUP-10: an abandoned task keeps its arguments until it is completed",
	  sup10_pending_is_abandoned },
	{ "SUP-10: a freed pool keeps what has not ended", sup10_freed_pool_keeps_it },
	{ "SUP-4: what turns pending after the deadline is abandoned", turns_pending_too_late },
	{ "SUP-4: what turns pending too late is told while a worker is stuck",
	  turns_pending_while_a_worker_is_stuck },
	{ "SUP-4: what is pending is told in time while a worker is stuck",
	  pending_is_told_while_a_worker_is_stuck },
	{ "EXIT-4: a wedged worker is given up, its late end is harmless", wedged_worker },
	{ "EXIT-4: wedged in cancel, the queue is told by who gives it up", wedged_in_cancel },
	{ "EXIT-4: wedged in open", wedged_in_open },
	{ "EXIT-4: wedged in worker_start", wedged_in_worker_start },
	{ "EXIT-4: wedged in close", wedged_in_close },
	{ "EXIT-4: the stuck thread is named with op, task and since when",
	  one_stuck_thread_is_named },
	{ "SUP-4: stopped at any moment it ends balanced, nothing is left", stop_at_any_moment },
	{ "SUP-4: given up at any moment it ends balanced", give_up_at_any_moment },
};

BH_TAP_MAIN("supervisor", tests)
