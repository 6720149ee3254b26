/* SPDX-License-Identifier: BSD-3-Clause */
/* test_exit_hook - host/core/exit_hook.c: each test forks a process that arms the hook and ends,
 * and looks at what it left in shared memory and at its status. */
#include "config.h"

#include "host/core/exit_hook.h"

#include <err.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "host/core/stack.h"
#include "tests/unit/pool_fixture.h"

/* What happened, one letter each, in order. */
static struct {
	_Atomic int n;
	_Atomic char what[64];
} * seen; /* shared with the child */

static struct fixture fx, other;
static struct bh_exit_registry *registry;
static _Atomic int arrived;

/* gcc's TSan has an atexit() of its own, which goes past every export: libraries are not built with
 * it, so here is what theirs does. */
int __cxa_atexit(void (*fn)(void *), void *arg, void *dso);
extern void *__dso_handle;

static void at_exit(void (*fn)(void *))
{
	CU_ASSERT_EQUAL_FATAL(__cxa_atexit(fn, NULL, &__dso_handle), 0);
}

/* A pool that is left open has threads that nobody joins, on purpose. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
	return "report_thread_leaks=0";
}

static void note(char what)
{
	int i = atomic_fetch_add(&seen->n, 1);

	if (i < 63)
		atomic_store(&seen->what[i], what);
}

static bool saw(const char *want)
{
	char have[64];

	for (int i = 0; i < 64; i++)
		have[i] = atomic_load(&seen->what[i]);
	have[63] = '\0';
	if (strcmp(have, want) == 0)
		return true;
	fprintf(stderr, "# saw \"%s\", not \"%s\"\n", have, want);
	return false;
}

static void closes(struct fixture *f)
{
	note(f == &fx ? 'c' : 'd');
}

static void handler(void *unused)
{
	(void)unused;
	note('h');
}

static void step(void *arg, struct bh_deadline until)
{
	(void)until;
	note(*(const char *)arg);
}

static void let_go(void)
{
	note('g');
}

static void arm(uint64_t timeout_ns)
{
	static struct bh_exit_step apps = { .run = step, .arg = (void *)"a" },
				   libraries = { .run = step, .arg = (void *)"l" };
	struct bh_exit_hook_config config = { .timeout_ns = timeout_ns, .let_go = let_go };

	CU_ASSERT_EQUAL_FATAL(bh_exit_registry_new(&registry, NULL), 0);
	bh_exit_registry_add_step(registry, BH_EXIT_APPS, &apps);
	bh_exit_registry_add_step(registry, BH_EXIT_LIBRARIES, &libraries);
	config.registry = registry;
	bh_exit_hook_arm(&config);
}

static void add(struct fixture *f, const char *label, uint32_t workers)
{
	fixture_init(f, workers, 16);
	f->config.label = label;
	f->config.n_progress = 1;
	f->on_close = closes;
	fixture_start(f);
	CU_ASSERT_EQUAL_FATAL(bh_exit_registry_add(registry, f->pool, NULL), 0);
}

/* The status of a child that runs `fn`, or minus the signal that ended it. */
static int in_child(void (*fn)(void))
{
	int status = 0;
	pid_t child;

	if (!seen)
		seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			    -1, 0);
	CU_ASSERT_FATAL(seen != MAP_FAILED);
	memset((void *)seen, 0, sizeof(*seen));
	fflush(NULL); /* it ends by exit(), which would write what is buffered again */
	child = fork();
	CU_ASSERT_FATAL(child >= 0);
	if (child == 0) {
		alarm(120); /* a child that hangs is a failure, not a hanging suite */
		fn();
		_exit(99);
	}
	CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ---- the order ------------------------------------------------------------------------------- */

static void exit_in_c(void)
{
	arm(60 * BH_NS_PER_S);
	add(&fx, "first", 2);
	add(&other, "second", 1);
	at_exit(handler); /* as a library does at its first use: after the hook */
	exit(5);
}

static void exit_inside_libc(void)
{
	arm(60 * BH_NS_PER_S);
	add(&fx, "first", 2);
	at_exit(handler);
	at_exit(handler);
	fclose(stderr); /* errx() writes there */
	errx(6, "the end");
}

static void exit2_before_handlers(void)
{
	CU_ASSERT_EQUAL(in_child(exit_in_c), 5);
	CU_ASSERT_TRUE(saw("gadclh"));
}

static void exit2_behind_late_handlers(void)
{
	CU_ASSERT_EQUAL(in_child(exit_inside_libc), 6);
	CU_ASSERT_TRUE(saw("gaclhh"));
}

static void on_exit_handler(int status, void *unused)
{
	(void)unused;
	note(status == 6 ? 'o' : '?');
}

static void registers_unseen(void)
{
	arm(60 * BH_NS_PER_S);
	add(&fx, "first", 1);
	on_exit(on_exit_handler, NULL); /* not seen */
	bh_exit_hook_refresh();
	fclose(stderr);
	errx(6, "the end");
}

static void exit2_refresh(void)
{
	CU_ASSERT_EQUAL(in_child(registers_unseen), 6);
	CU_ASSERT_TRUE(saw("gaclo"));
}

static void without_hook(void)
{
	at_exit(handler);
	bh_exit_hook_refresh();
	bh_exit_hook_claim();
	exit(4);
}

static void not_armed(void)
{
	CU_ASSERT_EQUAL(in_child(without_hook), 4);
	CU_ASSERT_TRUE(saw("h"));
}

/* ---- once, and by one thread ----------------------------------------------------------------- */

static void handler_exits(void *unused)
{
	(void)unused;
	note('h');
	exit(8);
}

static void exit_again(void)
{
	arm(60 * BH_NS_PER_S);
	add(&fx, "first", 1);
	at_exit(handler_exits);
	exit(5);
}

static void exit2_once(void)
{
	CU_ASSERT_EQUAL(in_child(exit_again), 8); /* as the C library has it */
	CU_ASSERT_TRUE(saw("gaclh"));
}

static void *exits(void *arg)
{
	atomic_fetch_add(&arrived, 1);
	while (atomic_load(&arrived) < 4)
		fixture_pause();
	exit((int)(uintptr_t)arg);
}

static void exits_at_once(void)
{
	pthread_t thread;

	arm(60 * BH_NS_PER_S);
	add(&fx, "first", 1);
	at_exit(handler);
	for (int i = 0; i < 3; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, exits, (void *)9), 0);
	exits((void *)9);
}

static void exit2_at_once(void)
{
	CU_ASSERT_EQUAL(in_child(exits_at_once), 9);
	/* Each lets go of the GIL, in whichever order; the rest happens once. */
	for (int i = 0, at = 0; i < 64; i++) {
		char what = atomic_load(&seen->what[i]);

		if (what && what != 'g')
			CU_ASSERT_EQUAL(what, "aclh"[at++]);
		if (!what)
			CU_ASSERT_TRUE_FATAL(at == 4 || i > at);
	}
}

static void *exits_alone(void *arg)
{
	(void)arg;
	exit(9);
}

static void claims(void)
{
	pthread_t thread;

	arm(60 * BH_NS_PER_S);
	at_exit(handler);
	bh_exit_hook_claim();
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, exits_alone, NULL), 0);
	UNTIL(atomic_load(&seen->what[0]) == 'g'); /* the other one is parked */
	exit(3);
}

static void exit1_claimed(void)
{
	CU_ASSERT_EQUAL(in_child(claims), 3);
	CU_ASSERT_TRUE(saw("gh"));
}

/* ---- on a pool's own thread ------------------------------------------------------------------ */

static bh_status fn_exit(struct fixture *f, struct bh_task *task, void *arg)
{
	(void)f;
	(void)task;
	atomic_fetch_add(&arrived, 1);
	while (atomic_load(&arrived) < (int)(uintptr_t)arg)
		fixture_pause();
	exit(7);
}

static void abandoned(struct bh_ticket *ticket)
{
	note(bh_ticket_outcome(ticket) == BH_OUTCOME_ABANDONED ? 't' : '?');
}

static void wait_for_the_end(void)
{
	for (;;)
		pause();
}

static void worker_exits(void)
{
	static struct bh_ticket ticket;
	struct bh_submission s = { .deadline = BH_NEVER, .ticket = &ticket };

	arm(60 * BH_NS_PER_S);
	add(&other, "before", 1);
	add(&fx, "own", 2);
	at_exit(handler);
	bh_ticket_init(&ticket, abandoned, NULL);
	bh_ticket_ref(&ticket); /* static: never freed */
	s.args = fixture_args(fn_exit, (void *)1);
	CU_ASSERT_EQUAL_FATAL(bh_pool_submit(fx.pool, &s, NULL), BH_ACCEPTED);
	wait_for_the_end();
}

static void workers_exit(void)
{
	arm(60 * BH_NS_PER_S);
	add(&other, "before", 1);
	add(&fx, "own", 3);
	at_exit(handler);
	fixture_submit(&fx, fn_exit, (void *)3);
	fixture_submit(&fx, fn_exit, (void *)3);
	fixture_submit(&other, fn_exit, (void *)3); /* and one of another pool */
	wait_for_the_end();
}

static void exit3_on_a_worker(void)
{
	CU_ASSERT_EQUAL(in_child(worker_exits), 7);
	/* Its own pool is not closed, no handler runs, its task has its outcome (SUP-4). */
	CU_ASSERT_TRUE(saw("gtadl"));
}

static void exit3_on_workers_at_once(void)
{
	uint64_t began = bh_now_ns();

	CU_ASSERT_EQUAL(in_child(workers_exit), 7);
	CU_ASSERT_TRUE(bh_now_ns() - began < 30 * BH_NS_PER_S); /* nobody waits for the parked */
	for (int i = 0; i < 64; i++) {
		char what = atomic_load(&seen->what[i]);

		CU_ASSERT_TRUE(what != 'c' && what != 'd' && what != 'h');
	}
}

/* ---- in time --------------------------------------------------------------------------------- */

static bh_status fn_stuck(struct fixture *f, struct bh_task *task, void *arg)
{
	(void)f;
	(void)task;
	(void)arg;
	for (;;)
		pause();
	return 0;
}

static void stuck(void)
{
	CU_ASSERT_EQUAL_FATAL(bh_stack_init(NULL), 0);
	arm(BH_NS_PER_S);
	add(&other, "before", 1);
	add(&fx, "stuck", 1);
	at_exit(handler);
	fixture_submit(&fx, fn_stuck, NULL);
	CU_ASSERT_TRUE_FATAL(UNTIL(atomic_load(&fx.n_run) == 1));
	exit(5);
}

static void exit3_stuck(void)
{
	uint64_t began = bh_now_ns();

	CU_ASSERT_EQUAL(in_child(stuck), 70);
	CU_ASSERT_TRUE(
		saw("gadl")); /* the pool before it is closed all the same, no handler runs */
	CU_ASSERT_TRUE(bh_now_ns() - began < 20 * BH_NS_PER_S);
}

/* ---- in a forked child ----------------------------------------------------------------------- */

/* Registered before the hook, so it comes after it. What follows in a child of many threads are a
 * sanitizer's own handlers, which may wait there for a lock that nobody holds. */
static void end_grandchild(int status, void *parent)
{
	if (getpid() != *(pid_t *)parent)
		_exit(status);
}

static void forks(void)
{
	static pid_t self;
	int status;
	pid_t child;

	self = getpid();
	on_exit(end_grandchild, &self);
	arm(60 * BH_NS_PER_S);
	add(&fx, "first", 1);
	at_exit(handler);
	child = fork();
	if (child == 0)
		exit(11);
	if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 11)
		note('k');
	exit(5);
}

static void exit5_forked(void)
{
	CU_ASSERT_EQUAL(in_child(forks), 5);
	CU_ASSERT_TRUE(saw("hkgaclh")); /* the child's own handlers run, as in C; ours does not */
}

static const struct bh_test tests[] = {
	{ "EXIT-2: pools are closed in reverse before the handlers of libraries",
	  exit2_before_handlers },
	{ "EXIT-2: also when the C library itself calls exit()", exit2_behind_late_handlers },
	{ "EXIT-2: a refresh puts the hook behind what was registered unseen", exit2_refresh },
	{ "EXIT-2: a hook that is not armed does nothing", not_armed },
	{ "EXIT-2: it acts once, also when a handler calls exit()", exit2_once },
	{ "EXIT-2: of several exits at once one acts, the others are parked", exit2_at_once },
	{ "EXIT-1: who ends in order is not disturbed by an exit() of another thread",
	  exit1_claimed },
	{ "EXIT-3: on a worker the other pools and threads are ended, no handler runs",
	  exit3_on_a_worker },
	{ "EXIT-3: workers of two pools that call exit() at once do not wait for each other",
	  exit3_on_workers_at_once },
	{ "EXIT-3: a pool that does not end in time: status 70, no handler runs", exit3_stuck },
	{ "EXIT-5: in a forked child the hook does nothing", exit5_forked },
};

BH_TAP_MAIN("exit_hook", tests)
