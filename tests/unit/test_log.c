/* SPDX-License-Identifier: BSD-3-Clause */
/* test_log - host/core/log.c. stderr goes to a pipe or a file while a test logs. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/core/log.h"
#include "tests/unit/tap.h"

#define PATIENCE bh_deadline_after(60 * BH_NS_PER_S)

/* stderr as a file that can be read back. */
struct capture {
	int saved, file;
	char *text;
};

static void capture_begin(struct capture *capture)
{
	char path[] = "/tmp/bh-test-log-XXXXXX";

	capture->file = mkstemp(path);
	CU_ASSERT_TRUE_FATAL(capture->file >= 0);
	unlink(path);
	fflush(stderr);
	capture->saved = dup(STDERR_FILENO);
	dup2(capture->file, STDERR_FILENO);
}

static const char *capture_end(struct capture *capture)
{
	off_t length;

	dup2(capture->saved, STDERR_FILENO);
	close(capture->saved);
	length = lseek(capture->file, 0, SEEK_END);
	capture->text = calloc(1, (size_t)length + 1);
	CU_ASSERT_EQUAL(pread(capture->file, capture->text, (size_t)length, 0), length);
	close(capture->file);
	return capture->text;
}

static int count_of(const char *text, const char *what)
{
	int n = 0;

	for (; (text = strstr(text, what)); text += strlen(what))
		n++;
	return n;
}

static void one_call_is_one_line(void)
{
	struct capture capture;
	struct bh_error err = { .status = 0 };
	const char *text;
	int year, month, day, hour, minute, second, ms, at = 0;

	bh_log_set_level(BH_LOG_INFO);
	capture_begin(&capture);
	bh_log(BH_LOG_INFO, "pool", "two\nlines \"quoted\"", BH_STR("path", "/a b"),
	       BH_INT("n", -7), BH_STR("none", NULL));
	bh_log(BH_LOG_DEBUG, "pool", "not wanted");
	bh_raise(&err, -ENOENT, "module.load", BH_STR("path", "/x.so"));
	bh_log_error(BH_LOG_ERROR, "plugin", "cannot load", &err);
	text = capture_end(&capture);
	CU_ASSERT_EQUAL(count_of(text, "\n"), 2);
	CU_ASSERT_PTR_NOT_NULL(strstr(
		text,
		" level=info component=pool msg=\"two\\nlines \\\"quoted\\\"\" path=\"/a b\" n=-7 "
		"none=\"\"\n"));
	CU_ASSERT_PTR_NOT_NULL(
		strstr(text, " level=error component=plugin msg=\"cannot load\" error=module.load "
			     "path=/x.so errno=ENOENT\n"));
	CU_ASSERT_EQUAL(sscanf(text, "time=%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &year, &month, &day,
			       &hour, &minute, &second, &ms, &at),
			7);
	CU_ASSERT_EQUAL(at, (int)strlen("time=2026-01-02T03:04:05.678Z"));
	free(capture.text);
}

static void time_is_the_wall_clocks(void)
{
	struct capture capture;
	struct timespec before, after;
	struct tm tm;
	char first[32], last[32];
	const char *text;

	/* Not time(): that is the coarse clock, which lags behind. */
	clock_gettime(CLOCK_REALTIME, &before);
	capture_begin(&capture);
	bh_log(BH_LOG_ERROR, "test", "now");
	text = capture_end(&capture);
	clock_gettime(CLOCK_REALTIME, &after);
	strftime(first, sizeof(first), "time=%Y-%m-%dT%H:%M:%S", gmtime_r(&before.tv_sec, &tm));
	strftime(last, sizeof(last), "time=%Y-%m-%dT%H:%M:%S", gmtime_r(&after.tv_sec, &tm));
	CU_ASSERT_TRUE(strncmp(text, first, strlen(first)) >= 0 &&
		       strncmp(text, last, strlen(last)) <= 0);
	free(capture.text);
}

static void long_lines_are_marked(void)
{
	static char big[20000];
	struct capture capture;
	const char *text;

	memset(big, 'x', sizeof(big) - 1);
	capture_begin(&capture);
	bh_log(BH_LOG_ERROR, "test", "big", BH_STR("text", big), BH_STR("lost", "yes"));
	text = capture_end(&capture);
	CU_ASSERT_EQUAL(count_of(text, "\n"), 1);
	CU_ASSERT_EQUAL(strcmp(text + strlen(text) - 4, "\xe2\x80\xa6\n"), 0);
	CU_ASSERT_TRUE(strlen(text) <= 4096);
	free(capture.text);
}

#define WRITERS 4
#define LINES 300

static void *log_lines(void *arg)
{
	for (int i = 0; i < LINES; i++) {
		bh_log(BH_LOG_INFO, "test", "line", BH_INT("writer", (intptr_t)arg),
		       BH_INT("i", i));
		if (i % 50 == 49)
			bh_log_flush(PATIENCE); /* so that the ring never fills up */
	}
	return NULL;
}

/* Every line whole, every writer's lines in order, nothing lost; and twice, for start after
 * stop. */
static void nothing_is_lost_or_mixed(void)
{
	pthread_t threads[WRITERS];
	struct capture capture;

	for (int round = 0; round < 2; round++) {
		int next[WRITERS] = { 0 }, wrong = 0, writer, i;
		char *line, *rest;

		capture_begin(&capture);
		CU_ASSERT_EQUAL_FATAL(bh_log_start(BH_LOG_INFO, NULL), 0);
		CU_ASSERT_EQUAL(bh_log_start(BH_LOG_INFO, NULL), -EALREADY);
		for (intptr_t t = 0; t < WRITERS; t++)
			CU_ASSERT_EQUAL_FATAL(
				pthread_create(&threads[t], NULL, log_lines, (void *)t), 0);
		for (int t = 0; t < WRITERS; t++)
			pthread_join(threads[t], NULL);
		bh_log_stop(PATIENCE);
		capture_end(&capture);
		for (line = strtok_r(capture.text, "\n", &rest); line;
		     line = strtok_r(NULL, "\n", &rest)) {
			char *facts = strstr(line, "writer=");

			if (!facts || sscanf(facts, "writer=%d i=%d", &writer, &i) != 2 ||
			    next[writer]++ != i)
				wrong++;
		}
		CU_ASSERT_EQUAL(wrong, 0);
		for (int t = 0; t < WRITERS; t++)
			CU_ASSERT_EQUAL(next[t], LINES);
		free(capture.text);
	}
	CU_ASSERT_EQUAL(bh_log_dropped(), 0);
}

/* Reads all of the pipe until its writers have closed it. */
static void *read_all(void *arg)
{
	FILE *out = fdopen(((int *)arg)[0], "r");
	char *line = NULL;
	size_t size = 0;
	intptr_t told = 0;
	long n;

	while (getline(&line, &size, out) > 0) {
		const char *dropped = strstr(line, "lines were dropped");

		if (dropped && sscanf(strstr(dropped, "lines="), "lines=%ld", &n) == 1)
			told += n;
	}
	free(line);
	fclose(out);
	return (void *)told;
}

static void never_blocks_and_counts_what_it_drops(void)
{
	int saved = dup(STDERR_FILENO), fds[2];
	uint64_t before = bh_log_dropped();
	struct bh_deadline until;
	pthread_t reader;
	void *told = NULL;

	CU_ASSERT_EQUAL_FATAL(pipe2(fds, O_CLOEXEC), 0);
	dup2(fds[1], STDERR_FILENO);
	close(fds[1]);
	CU_ASSERT_EQUAL_FATAL(bh_log_start(BH_LOG_INFO, NULL), 0);
	until = PATIENCE;
	for (int i = 0; i < 5000; i++) /* nobody reads: pipe and ring fill up */
		bh_log(BH_LOG_INFO, "test", "a line that is long enough to fill a pipe",
		       BH_INT("i", i));
	CU_ASSERT_FALSE(bh_deadline_passed(until));
	CU_ASSERT_TRUE(bh_log_dropped() > before);
	bh_log_flush(bh_deadline_after(5 * BH_NS_PER_MS)); /* bounded */
	CU_ASSERT_EQUAL_FATAL(pthread_create(&reader, NULL, read_all, fds), 0);
	bh_log_stop(PATIENCE);
	dup2(saved, STDERR_FILENO); /* the last writer of the pipe is gone */
	close(saved);
	pthread_join(reader, &told);
	CU_ASSERT_EQUAL((uint64_t)(intptr_t)told, bh_log_dropped() - before);
}

static void forked_child_can_log(void)
{
	struct capture capture;
	const char *text;
	int status = -1;
	pid_t pid;

	capture_begin(&capture);
	CU_ASSERT_EQUAL_FATAL(bh_log_start(BH_LOG_INFO, NULL), 0);
	bh_log(BH_LOG_INFO, "test", "from the parent");
	pid = fork();
	if (pid == 0) {
		alarm(30);
		bh_log(BH_LOG_INFO, "test", "from the child");
		bh_log_flush(PATIENCE);
		bh_log_stop(PATIENCE);
		_exit(0);
	}
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	CU_ASSERT_EQUAL(status, 0);
	bh_log(BH_LOG_INFO, "test", "from the parent");
	bh_log_stop(PATIENCE);
	text = capture_end(&capture);
	CU_ASSERT_EQUAL(count_of(text, "from the parent"), 2);
	CU_ASSERT_EQUAL(count_of(text, "from the child"), 1);
	free(capture.text);
}

static void *log_until(void *arg)
{
	while (!atomic_load((_Atomic bool *)arg))
		bh_log(BH_LOG_INFO, "test", "on and on");
	return NULL;
}

static void starts_and_stops_under_fire(void)
{
	_Atomic bool enough = false;
	struct capture capture;
	pthread_t threads[2];
	char *line, *rest;
	int wrong = 0;

	capture_begin(&capture);
	for (int t = 0; t < 2; t++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[t], NULL, log_until, &enough), 0);
	for (int i = 0; i < 20; i++) {
		CU_ASSERT_EQUAL(bh_log_start(BH_LOG_INFO, NULL), 0);
		bh_log_stop(PATIENCE);
	}
	atomic_store(&enough, true);
	for (int t = 0; t < 2; t++)
		pthread_join(threads[t], NULL);
	capture_end(&capture);
	for (line = strtok_r(capture.text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		wrong += strncmp(line, "time=", 5) != 0 || (!strstr(line, "msg=\"on and on\"") &&
							    !strstr(line, "lines were dropped"));
	CU_ASSERT_EQUAL(wrong, 0);
	free(capture.text);
}

static const struct bh_test tests[] = {
	{ "one call is one line of logfmt, with the error's facts", one_call_is_one_line },
	{ "the time is the wall clock's, in UTC", time_is_the_wall_clocks },
	{ "MAN-3: a line that does not fit is marked", long_lines_are_marked },
	{ "four threads lose and mix nothing, also after a restart", nothing_is_lost_or_mixed },
	{ "CP-1: a full ring drops and counts, and tells how many",
	  never_blocks_and_counts_what_it_drops },
	{ "EXIT-5: a forked child can log", forked_child_can_log },
	{ "start and stop while others log", starts_and_stops_under_fire },
};

BH_TAP_MAIN("log", tests)
