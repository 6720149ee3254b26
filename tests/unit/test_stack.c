/* SPDX-License-Identifier: BSD-3-Clause */
/* test_stack - the suite of host/core/stack.c. */
#include "config.h"

#include "host/core/stack.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "host/core/sync.h"
#include "tests/unit/tap.h"

#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#ifndef WITH_TSAN
#define WITH_TSAN 0
#endif

/* Generous: only a test that fails waits for so long. */
#define PATIENCE bh_deadline_after(20 * BH_NS_PER_S)

typedef void callback_fn(void *);
typedef void enter_fn(callback_fn *, void *);

static struct {
	pthread_t thread;
	enter_fn *enter;
	_Atomic uint32_t tid;
	_Atomic bool there, leave;
} stuck;

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
}

static __attribute__((noinline)) void stay_here(void *arg)
{
	(void)arg;
	atomic_store(&stuck.there, true);
	while (!atomic_load(&stuck.leave))
		nap();
}

static void *stuck_main(void *arg)
{
	(void)arg;
	atomic_store(&stuck.tid, (uint32_t)gettid());
	stuck.enter(stay_here, NULL);
	return NULL;
}

static const char *library_path(void)
{
	static char path[4096];
	const char *build = getenv("BH_TEST_BUILDDIR");

	snprintf(path, sizeof(path), "%s/tests/shims/.libs/statics.so", build ? build : ".");
	return path;
}

static enter_fn *open_library(void)
{
	void *library = dlopen(library_path(), RTLD_NOW | RTLD_LOCAL);
	void *symbol = library ? dlsym(library, "statics_enter") : NULL;
	enter_fn *enter = NULL;

	if (!library)
		printf("# %s\n", dlerror());
	memcpy(&enter, &symbol, sizeof(enter));
	return enter;
}

/* The stack of a thread that has come to stay_here() by way of the library. */
static bool render_stuck(char *text, size_t size)
{
	struct bh_deadline until = PATIENCE;

	stuck.enter = open_library();
	atomic_store(&stuck.there, false);
	atomic_store(&stuck.leave, false);
	if (!stuck.enter || bh_thread_create(&stuck.thread, "stuck", stuck_main, NULL, NULL) < 0)
		return false;
	while (!atomic_load(&stuck.there) && !bh_deadline_passed(until))
		nap();
	bh_stack_render(stuck.tid, PATIENCE, text, size);
	atomic_store(&stuck.leave, true);
	return bh_thread_join(stuck.thread, PATIENCE, NULL) == 0;
}

static void exit4_exported(void)
{
	char text[4096], first[4096];

	CU_ASSERT_TRUE_FATAL(render_stuck(text, sizeof(text)));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "statics.so:statics_enter+0x"));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "statics.so+0x"));
	CU_ASSERT_PTR_NULL(strstr(text, "static_step"));
	/* The executable is known from the start, with all it has. */
	snprintf(first, sizeof(first), "%s:stay_here+0x", program_invocation_short_name);
	CU_ASSERT_PTR_NOT_NULL(strstr(text, first));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, ":stuck_main+0x"));
}

static void exit4_learnt(void)
{
	char text[4096];
	const char *step, *enter;

	stuck.enter = open_library();
	CU_ASSERT_PTR_NOT_NULL_FATAL(stuck.enter);
	bh_stack_learn((void *)(uintptr_t)stuck.enter, library_path());
	CU_ASSERT_TRUE_FATAL(render_stuck(text, sizeof(text)));
	step = strstr(text, "statics.so:static_step+0x");
	enter = strstr(text, "statics.so:statics_enter+0x");
	CU_ASSERT_PTR_NOT_NULL(step);
	CU_ASSERT_PTR_NOT_NULL(enter);
	CU_ASSERT_TRUE(step && enter && step < enter);
	CU_ASSERT_PTR_NULL(strstr(text, "statics.so+0x"));
#ifdef __x86_64__
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "statics.so:bare_step+0x"));
#endif
}

/* ---- from outside ---------------------------------------------------------------------------- */

static struct {
	_Atomic bool there;
	struct timespec left; /* of its sleep: none, unless it was disturbed */
	int result;
} sleeper;

static __attribute__((noinline)) void sleep_here(void *arg)
{
	const struct timespec long_while = { .tv_nsec = 600 * 1000 * 1000 };

	(void)arg;
	atomic_store(&sleeper.there, true);
	sleeper.result = clock_nanosleep(CLOCK_MONOTONIC, 0, &long_while, &sleeper.left);
}

static void *sleeper_main(void *arg)
{
	(void)arg;
	atomic_store(&stuck.tid, (uint32_t)gettid());
	stuck.enter(sleep_here, NULL);
	return NULL;
}

/* Asks again and again for as long as it sleeps. */
static void cp3_not_disturbed(void)
{
	char text[4096] = "", seen[4096] = "";
	struct bh_deadline until = PATIENCE;
	pthread_t thread;

	stuck.enter = open_library();
	CU_ASSERT_PTR_NOT_NULL_FATAL(stuck.enter);
	CU_ASSERT_EQUAL_FATAL(bh_thread_create(&thread, "asleep", sleeper_main, NULL, NULL), 0);
	while (!atomic_load(&sleeper.there) && !bh_deadline_passed(until))
		nap();
	for (int i = 0; i < 20 && !strstr(seen, "nanosleep"); i++) {
		nap();
		bh_stack_observe(stuck.tid, PATIENCE, text, sizeof(text));
		if (strstr(text, "nanosleep"))
			memcpy(seen, text, sizeof(seen));
	}
	CU_ASSERT_EQUAL(bh_thread_join(thread, PATIENCE, NULL), 0);
	CU_ASSERT_EQUAL(sleeper.result, 0);
	CU_ASSERT_PTR_NOT_NULL(strstr(seen, "nanosleep+0x"));
#ifdef __x86_64__
	CU_ASSERT_PTR_NOT_NULL(strstr(seen, "~statics.so:"));
#endif
	printf("# %s\n", seen);
}

/* ---- files that are not what they should be --------------------------------------------------- */

static bool write_file(const char *path, const char *bytes, size_t size)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	bool ok = fd >= 0 && write(fd, bytes, size) == (ssize_t)size;

	if (fd >= 0)
		close(fd);
	return ok;
}

static char *read_library(size_t *ret_size)
{
	FILE *file = fopen(library_path(), "re");
	struct stat st;
	char *bytes = NULL;

	if (file && fstat(fileno(file), &st) == 0) {
		bytes = malloc((size_t)st.st_size);
		*ret_size = bytes ? fread(bytes, 1, (size_t)st.st_size, file) : 0;
	}
	if (file)
		fclose(file);
	return bytes;
}

/* What is learnt stays, so each file has a process of its own. Whatever it has learnt, the stack
 * shows the callback, whose names come from another file. */
static int learn_in_child(const char *path)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		char text[4096];

		bh_stack_learn((void *)(uintptr_t)stuck.enter, path);
		_exit(render_stuck(text, sizeof(text)) && strstr(text, ":stay_here+0x") ? 0 : 1);
	}
	waitpid(pid, &status, 0);
	return status;
}

static void exit4_bad_files(void)
{
	char dir[] = "/tmp/test_stack.XXXXXX", path[64];
	unsigned seed = 20261130;
	size_t size = 0, n_sections;
	uint64_t sections;
	bh_auto_mem char *bytes = read_library(&size);

	if (WITH_TSAN)
		BH_SKIP("TSan holds back signals in a forked child");
	stuck.enter = open_library();
	CU_ASSERT_PTR_NOT_NULL_FATAL(stuck.enter);
	CU_ASSERT_PTR_NOT_NULL_FATAL(bytes);
	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/file.so", dir);
	CU_ASSERT_EQUAL(learn_in_child(path), 0); /* there is none */
	CU_ASSERT_EQUAL(learn_in_child(dir), 0);
	for (size_t length = 0; length < size; length += size / 23) {
		CU_ASSERT_TRUE(write_file(path, bytes, length));
		CU_ASSERT_EQUAL(learn_in_child(path), 0);
	}
	/* Bytes of the header and of the table of sections, which say where all the rest is. */
	memcpy(&sections, bytes + 40, sizeof(sections));
	n_sections = (size - sections) / 64;
	for (int round = 0; round < 100; round++) {
		size_t at = round % 4 == 0 ? (size_t)rand_r(&seed) % 64
					   : sections + (size_t)rand_r(&seed) % (64 * n_sections);
		char was = bytes[at];

		bytes[at] = (char)rand_r(&seed);
		CU_ASSERT_TRUE(write_file(path, bytes, size));
		CU_ASSERT_EQUAL(learn_in_child(path), 0);
		bytes[at] = was;
	}
	unlink(path);
	rmdir(dir);
}

/* ---- without a stack -------------------------------------------------------------------------- */

static void exit4_gone(void)
{
	char text[256];

	bh_stack_render(0x7ffffff0, PATIENCE, text, sizeof(text));
	CU_ASSERT_PTR_EQUAL(strstr(text, "no stack (thread is gone)"), text);
}

static const struct bh_test tests[] = {
	{ "CP-3: a thread in a system call is seen from outside and not disturbed",
	  cp3_not_disturbed },
	{ "EXIT-4: exported functions are named, the executable's static ones too",
	  exit4_exported },
	{ "EXIT-4: a file that is none, or is damaged, teaches nothing", exit4_bad_files },
	{ "EXIT-4: a library's static and hidden functions are named once learnt", exit4_learnt },
	{ "EXIT-4: a thread that is gone has no stack, and this is told", exit4_gone },
};

int main(int argc, char **argv)
{
	if (bh_stack_init(NULL) < 0)
		return 99;
	return bh_tap_main(argc, argv, "stack", tests, BH_ARRAY_LEN(tests));
}
