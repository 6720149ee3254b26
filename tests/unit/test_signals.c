/* SPDX-License-Identifier: BSD-3-Clause */
/* test_signals - the suite of host/control/signals.c. Every signal goes to the test itself. */
#include "config.h"

#include "host/control/signals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/tap.h"

static bool readable(int timeout_ms)
{
	struct pollfd wanted = { .fd = bh_signals_fd(), .events = POLLIN };
	int n;

	do
		n = poll(&wanted, 1, timeout_ms);
	while (n < 0 && errno == EINTR);
	return n == 1;
}

static void install(void)
{
	struct bh_signal_counts counts;

	CU_ASSERT_FATAL(bh_signals_install(NULL) == 0);
	bh_signals_take(&counts);
}

static void counts_what_comes(void)
{
	struct bh_signal_counts counts = { 7, 7, 7 };

	install();
	CU_ASSERT(!readable(0));
	kill(getpid(), SIGTERM);
	CU_ASSERT(readable(10000));
	kill(getpid(), SIGINT);
	kill(getpid(), SIGINT);
	bh_signals_take(&counts);
	CU_ASSERT(counts.term == 1);
	CU_ASSERT(counts.interrupt >= 1 &&
		  counts.interrupt <= 2); /* alike ones may merge in the kernel */
	CU_ASSERT(!readable(0));
	CU_ASSERT(counts.hangup == 0);
	bh_signals_take(&counts);
	CU_ASSERT(counts.term == 0 && counts.interrupt == 0);
	kill(getpid(), SIGHUP);
	CU_ASSERT(readable(10000));
	bh_signals_take(&counts);
	CU_ASSERT(counts.hangup == 1 && counts.term == 0 && counts.interrupt == 0);
}

static void keeps_what_came_before(void)
{
	struct bh_signal_counts counts;

	install();
	kill(getpid(), SIGTERM);
	CU_ASSERT(bh_signals_install(NULL) == 0); /* again: nothing is lost */
	CU_ASSERT(readable(10000));
	bh_signals_take(&counts);
	CU_ASSERT(counts.term == 1);
}

static bool is_ignored(int number)
{
	struct sigaction now;

	return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void blocks_nothing(void)
{
	sigset_t blocked;

	install();
	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	CU_ASSERT(sigismember(&blocked, SIGTERM) == 0);
	CU_ASSERT(sigismember(&blocked, SIGINT) == 0);
	CU_ASSERT(is_ignored(SIGPIPE));
	CU_ASSERT(!is_ignored(SIGCHLD));
}

static void foreign_handler(int number)
{
	(void)number;
}

static void foreign_info_handler(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)info;
	(void)context;
}

static void restores_what_it_owns(void)
{
	struct sigaction info = { .sa_sigaction = foreign_info_handler, .sa_flags = SA_SIGINFO };
	struct bh_signal_counts counts;

	install();
	CU_ASSERT(bh_signals_check() == 0);
	signal(SIGTERM, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	CU_ASSERT(bh_signals_check() == 2);
	signal(SIGINT, foreign_handler);
	sigaction(SIGTERM, &info, NULL);
	CU_ASSERT(bh_signals_check() == 2);
	CU_ASSERT(bh_signals_check() == 0);
	CU_ASSERT(is_ignored(SIGPIPE));
	kill(getpid(), SIGTERM); /* would end the test if it were not restored */
	kill(getpid(), SIGINT);
	CU_ASSERT(readable(10000));
	bh_signals_take(&counts);
	CU_ASSERT(counts.term == 1);
}

static void never_ignores_children(void)
{
	struct sigaction no_wait = { .sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT };

	install();
	signal(SIGCHLD, SIG_IGN);
	CU_ASSERT(bh_signals_check() == 1);
	CU_ASSERT(!is_ignored(SIGCHLD));
	sigaction(SIGCHLD, &no_wait, NULL);
	CU_ASSERT(bh_signals_check() == 1);
	signal(SIGCHLD, foreign_handler);
	CU_ASSERT(bh_signals_check() == 0);
	signal(SIGCHLD, SIG_DFL);
}

static void hangup_never_ends_the_host(void)
{
	struct bh_signal_counts counts;

	install();
	signal(SIGHUP, SIG_DFL);
	CU_ASSERT(bh_signals_check() == 1);
	kill(getpid(), SIGHUP); /* would end the test if it were not restored */
	CU_ASSERT(readable(10000));
	signal(SIGHUP, foreign_handler); /* an app's own reload */
	CU_ASSERT(bh_signals_check() == 0);
	signal(SIGHUP, SIG_IGN);
	CU_ASSERT(bh_signals_check() == 0);
	CU_ASSERT(bh_signals_install(NULL) == 0); /* started by nohup: stays ignored */
	CU_ASSERT(is_ignored(SIGHUP));
	bh_signals_take(&counts);
	CU_ASSERT(counts.hangup == 1);
	signal(SIGHUP, SIG_DFL);
	CU_ASSERT(bh_signals_install(NULL) == 0);
}

static void forked_child_ends_by_signal(void)
{
	struct bh_signal_counts counts;
	int status = 0;
	pid_t child;

	install();
	child = fork();
	CU_ASSERT_FATAL(child >= 0);
	if (child == 0) {
		alarm(30); /* should SIGTERM be swallowed */
		for (;;)
			pause();
	}
	kill(child, SIGTERM);
	CU_ASSERT(waitpid(child, &status, 0) == child);
	CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	bh_signals_take(&counts);
	CU_ASSERT(counts.term == 0);
}

static void system_calls_are_restarted(void)
{
	int pipe_fds[2], status;
	char byte = 0;
	pid_t child;

	install();
	CU_ASSERT_FATAL(pipe(pipe_fds) == 0);
	child = fork();
	CU_ASSERT_FATAL(child >= 0);
	if (child == 0) {
		kill(getppid(), SIGTERM);
		_exit(write(pipe_fds[1], "x", 1) == 1 ? 0 : 1);
	}
	errno = 0;
	CU_ASSERT(read(pipe_fds[0], &byte, 1) == 1);
	CU_ASSERT(byte == 'x');
	CU_ASSERT(errno == 0);
	CU_ASSERT(waitpid(child, &status, 0) == child);
	CU_ASSERT(readable(10000));
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

static const struct bh_test tests[] = {
	{ "SIGTERM and SIGINT are counted, and the loop's descriptor says so", counts_what_comes },
	{ "CP-2: a signal that comes before the loop runs is not lost", keeps_what_came_before },
	{ "no signal is blocked, SIGPIPE is ignored, SIGCHLD is not", blocks_nothing },
	{ "a disposition that somebody changed is restored", restores_what_it_owns },
	{ "SIGCHLD may have a handler, but is never ignored", never_ignores_children },
	{ "SIGHUP may be an app's or ignored, but never ends the host",
	  hangup_never_ends_the_host },
	{ "EXIT-5: a forked child ends by SIGTERM and does not stop the host",
	  forked_child_ends_by_signal },
	{ "system calls go on after a signal", system_calls_are_restarted },
};

BH_TAP_MAIN("signals", tests)
