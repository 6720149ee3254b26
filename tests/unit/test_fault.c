/* SPDX-License-Identifier: BSD-3-Clause */
/* The fault points' counting; what they do to the host is tests/e2e/test_faults.py's. */
#include "config.h"

#include "host/core/fault.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/tap.h"

/* bh_fault_start() with this choice; what it says on stderr is of no interest. */
static bool start(const char *choice)
{
	int kept = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	bool started;

	setenv("BULKHEAD_FAULT", choice, 1);
	dup2(null, STDERR_FILENO);
	started = bh_fault_start();
	dup2(kept, STDERR_FILENO);
	close(kept);
	close(null);
	return started;
}

static bool hit(enum bh_fault_kind kind)
{
	return bh_fault_hit(kind, "test", __builtin_return_address(0));
}

static void nth_fails_once(void)
{
	CU_ASSERT_FATAL(start("alloc:3"));
	CU_ASSERT_FALSE(hit(BH_FAULT_ALLOC));
	CU_ASSERT_FALSE(hit(BH_FAULT_ALLOC));
	CU_ASSERT_FALSE(hit(BH_FAULT_THREAD)); /* counted apart */
	CU_ASSERT_TRUE(hit(BH_FAULT_ALLOC));
	CU_ASSERT_FALSE(hit(BH_FAULT_ALLOC));
}

static void plus_fails_onwards(void)
{
	CU_ASSERT_FATAL(start("thread:2+,callback:1"));
	CU_ASSERT_FALSE(hit(BH_FAULT_THREAD));
	CU_ASSERT_TRUE(hit(BH_FAULT_THREAD));
	CU_ASSERT_TRUE(hit(BH_FAULT_THREAD));
	CU_ASSERT_TRUE(hit(BH_FAULT_CALLBACK));
	CU_ASSERT_FALSE(hit(BH_FAULT_CALLBACK));
}

static void wrong_choice_is_refused(void)
{
	static const char *const wrong[] = {
		"alloc",    "alloc:",		"alloc:0",
		"alloc:-1", "alloc:1x",		"alloc:1++",
		"memory:1", "alloc:1;thread:1", "alloc:99999999999999999999"
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(wrong); i++)
		CU_ASSERT_FALSE(start(wrong[i]));
	CU_ASSERT_TRUE(start(""));
	CU_ASSERT_FALSE(hit(BH_FAULT_ALLOC));
}

static void counts_are_in_the_file(void)
{
	char path[] = "/tmp/bh-fault-XXXXXX";
	uint64_t words[2 * BH_FAULT_KINDS] = { 0 };
	int fd = mkstemp(path);

	CU_ASSERT_FATAL(fd >= 0);
	setenv("BULKHEAD_FAULT_COUNT", path, 1);
	CU_ASSERT_FATAL(start("dlopen:2"));
	unsetenv("BULKHEAD_FAULT_COUNT");
	CU_ASSERT_FALSE(hit(BH_FAULT_DLOPEN));
	CU_ASSERT_TRUE(hit(BH_FAULT_DLOPEN));
	CU_ASSERT_FALSE(hit(BH_FAULT_CALLBACK));
	CU_ASSERT_EQUAL(read(fd, words, sizeof(words)), (ssize_t)sizeof(words));
	CU_ASSERT_EQUAL(words[2 * BH_FAULT_DLOPEN], 2);
	CU_ASSERT_EQUAL(words[2 * BH_FAULT_DLOPEN + 1], 1);
	CU_ASSERT_EQUAL(words[2 * BH_FAULT_CALLBACK], 1);
	CU_ASSERT_EQUAL(words[2 * BH_FAULT_CALLBACK + 1], 0);
	CU_ASSERT_EQUAL(words[2 * BH_FAULT_ALLOC], 0);
	close(fd);
	unlink(path);
}

static const struct bh_test tests[] = {
	{ "the n-th call fails, and no other", nth_fails_once },
	{ "with a plus each call from the n-th on fails, kinds apart", plus_fails_onwards },
	{ "a wrong choice is refused", wrong_choice_is_refused },
	{ "the counts are in the file while the process lives", counts_are_in_the_file },
};

BH_TAP_MAIN("fault", tests)
