/* SPDX-License-Identifier: BSD-3-Clause */
/* test_identity - host/core/identity.c. Each test tags a thread of its own. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/core/identity.h"
#include "tests/unit/tap.h"

static void on_new_thread(void *(*fn)(void *))
{
	pthread_t thread;

	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, fn, NULL), 0);
	pthread_join(thread, NULL);
}

static void *reads_none(void *arg)
{
	CU_ASSERT_EQUAL(bh_identity_get()->plane, BH_PLANE_NONE);
	CU_ASSERT_EQUAL(bh_identity_get()->pool_id, 0);
	return arg;
}

static void *tags_itself(void *arg)
{
	CU_ASSERT_EQUAL(bh_identity_tag_data("rdma", 4, 2, NULL), 0);
	CU_ASSERT_EQUAL(bh_identity_get()->plane, BH_PLANE_DATA);
	CU_ASSERT_EQUAL(bh_identity_get()->pool_id, 4);
	CU_ASSERT_EQUAL(bh_identity_get()->worker, 2);
	CU_ASSERT_STRING_EQUAL(bh_identity_get()->label, "rdma");
	return arg;
}

static void ri1_unstamped_is_none(void)
{
	on_new_thread(reads_none);
	on_new_thread(tags_itself);
	on_new_thread(reads_none); /* another thread's tag does not stick to the next */
	reads_none(NULL);
}

static void *tags_twice(void *arg)
{
	struct bh_error err = { .status = 0 };

	CU_ASSERT_EQUAL(bh_identity_tag_control("native", NULL), 0);
	CU_ASSERT_EQUAL(bh_identity_tag_data("rdma", 4, 2, &err), -EEXIST);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "label"), "native");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "asked"), "data");
	CU_ASSERT_EQUAL(bh_identity_tag_control("native", NULL), -EEXIST);
	CU_ASSERT_EQUAL(bh_identity_get()->plane, BH_PLANE_CONTROL);
	CU_ASSERT_STRING_EQUAL(bh_identity_get()->label, "native");
	return arg;
}

static void ri2_once(void)
{
	bh_identity_test_allow_retag_abort(false);
	on_new_thread(tags_twice);
	reads_none(NULL); /* it changed that thread alone */
}

static void ri2_aborts(void)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		/* What it prints and dumps is of no interest here. */
		fclose(stderr);
		bh_identity_test_allow_retag_abort(true);
		(void)!bh_identity_tag_control("native", NULL);
		(void)!bh_identity_tag_control("native", NULL);
		_exit(0);
	}
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void *label_too_long(void *arg)
{
	char label[BH_LABEL_MAX + 1];
	struct bh_error err = { .status = 0 };

	memset(label, 'a', BH_LABEL_MAX);
	label[BH_LABEL_MAX] = '\0';
	CU_ASSERT_EQUAL(bh_identity_tag_data(label, 1, 0, &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(err.id, "identity.label");
	CU_ASSERT_EQUAL(bh_identity_get()->plane, BH_PLANE_NONE);
	label[BH_LABEL_MAX - 1] = '\0';
	CU_ASSERT_EQUAL(bh_identity_tag_data(label, 1, 0, NULL), 0);
	return arg;
}

static void labels_are_bounded(void)
{
	on_new_thread(label_too_long);
	CU_ASSERT_STRING_EQUAL(bh_plane_name(BH_PLANE_NONE), "none");
	CU_ASSERT_STRING_EQUAL(bh_plane_name(BH_PLANE_CONTROL), "control");
	CU_ASSERT_STRING_EQUAL(bh_plane_name(BH_PLANE_DATA), "data");
}

static const struct bh_test tests[] = {
	{ "RI-1: a thread that nobody tagged reads as none", ri1_unstamped_is_none },
	{ "RI-2: a second tag is refused and changes nothing", ri2_once },
	{ "RI-2: a second tag aborts a debug build", ri2_aborts },
	{ "a label that is too long is refused, not cut", labels_are_bounded },
};

BH_TAP_MAIN("identity", tests)
