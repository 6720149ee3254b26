/* SPDX-License-Identifier: BSD-3-Clause */
/* test_error - host/core/error.c, format.c, and the names and joins of sync.c. */
#include "config.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "host/core/format.h"
#include "host/core/sync.h"
#include "tests/unit/tap.h"

static void renders_id_facts_and_meaning(void)
{
	struct bh_error err = { .status = 0 };
	char text[256];

	CU_ASSERT_EQUAL(bh_raise(&err, -ENOENT, "module.load", BH_STR("path", "/opt/x.so"),
				 BH_INT("tries", -3)),
			-ENOENT);
	CU_ASSERT_EQUAL(bh_note(&err, -ENOENT, BH_STR("hint", "two \"words\"\n")), -ENOENT);
	CU_ASSERT_EQUAL(bh_error_render(&err, text, sizeof(text)), strlen(text));
	CU_ASSERT_STRING_EQUAL(text,
			       "module.load: path=/opt/x.so tries=-3 hint=\"two \\\"words\\\"\\n\" "
			       "(No such file or directory)");
	CU_ASSERT_EQUAL(err.n_facts, 3);
	CU_ASSERT_STRING_EQUAL(bh_error_key(&err, 1), "tries");
	CU_ASSERT_STRING_EQUAL(bh_error_value(&err, 1), "-3");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "path"), "/opt/x.so");
	CU_ASSERT_PTR_NULL(bh_error_fact(&err, "nothing"));
}

static void renders_without_facts(void)
{
	struct bh_error err = { .status = 0 };
	char text[64];

	bh_error_render(&err, text, sizeof(text));
	CU_ASSERT_STRING_EQUAL(text, "no error");
	bh_raise(&err, -ENOMEM, "pool.alloc");
	bh_error_render(&err, text, sizeof(text));
	CU_ASSERT_STRING_EQUAL(text, "pool.alloc (Cannot allocate memory)");
}

static void first_raise_wins(void)
{
	struct bh_error err = { .status = 0 };

	bh_raise(&err, -EIO, "first", BH_STR("who", "callee"));
	CU_ASSERT_EQUAL(bh_raise(&err, -ENOENT, "second"), -ENOENT);
	bh_note(&err, -EIO, BH_STR("who", "caller"), BH_STR("more", "yes"));
	CU_ASSERT_STRING_EQUAL(err.id, "first");
	CU_ASSERT_EQUAL(err.status, -EIO);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "who"), "callee");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "more"), "yes");
	bh_error_clear(&err);
	CU_ASSERT_FALSE(bh_error_is_set(&err));
	CU_ASSERT_PTR_NULL(bh_error_fact(&err, "who"));
}

static void a_silent_failure_keeps_the_callers_facts(void)
{
	struct bh_error err = { .status = 0 };

	bh_note(&err, -EIO, BH_STR("step", "open"));
	CU_ASSERT_STRING_EQUAL(err.id, "error.unexplained");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "step"), "open");
}

static void null_is_accepted(void)
{
	CU_ASSERT_EQUAL(bh_raise(NULL, -EIO, "x", BH_INT("n", 1)), -EIO);
	CU_ASSERT_EQUAL(bh_note(NULL, -EIO, BH_INT("n", 1)), -EIO);
	bh_error_clear(NULL);
	CU_ASSERT_FALSE(bh_error_is_set(NULL));
	CU_ASSERT_PTR_NULL(bh_error_fact(NULL, "n"));
}

static void what_does_not_fit_is_marked(void)
{
	struct bh_error err = { .status = 0 };
	char big[3000], text[5000];
	char key[16];

	for (size_t i = 0; i + 2 < sizeof(big); i += 2)
		memcpy(big + i, "\xc3\xa4", 3); /* ä: two bytes, must not be split */
	big[sizeof(big) - 2] = '\0';
	bh_raise(&err, -EIO, "big", BH_STR("reason", big), BH_STR("lost", "yes"));
	CU_ASSERT_TRUE(err.cut);
	CU_ASSERT_EQUAL(err.n_facts, 1);
	CU_ASSERT_TRUE(err.used <= BH_ERROR_TEXT);
	bh_error_render(&err, text, sizeof(text));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "\xc3\xa4" BH_ELLIPSIS));
	CU_ASSERT_PTR_NULL(strstr(text, "\xc3" BH_ELLIPSIS));
	bh_error_clear(&err);
	bh_raise(&err, -EIO, "many");
	for (int i = 0; i < BH_ERROR_FACTS + 3; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		bh_note(&err, -EIO, BH_INT(key, i));
	}
	CU_ASSERT_TRUE(err.cut);
	CU_ASSERT_EQUAL(err.n_facts, BH_ERROR_FACTS);
	bh_error_render(&err, text, sizeof(text));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, BH_ELLIPSIS));
}

/* Every size of the text, and every size of the buffer: never past either, always terminated. */
static void never_past_its_storage(void)
{
	char value[BH_ERROR_TEXT + 50];

	for (size_t length = 900; length < sizeof(value) - 1; length++) {
		struct bh_error err = { .status = 0 };

		memset(value, 'v', length);
		value[length] = '\0';
		bh_raise(&err, -EIO, "x", BH_STR("k", value), BH_STR("next", "n"));
		CU_ASSERT_TRUE_FATAL(err.used <= BH_ERROR_TEXT);
		for (unsigned i = 0; i < err.n_facts; i++)
			CU_ASSERT_TRUE_FATAL(strlen(bh_error_value(&err, i)) < BH_ERROR_TEXT);
		CU_ASSERT_EQUAL(err.cut, strlen(bh_error_value(&err, 0)) < length ||
						 err.n_facts < 2 ||
						 strlen(bh_error_value(&err, 1)) < 1);
	}
	for (size_t size = 16; size < 64; size++) {
		struct bh_error err = { .status = 0 };
		char *small = malloc(size);

		bh_raise(&err, -EIO, "x",
			 BH_STR("k", "\"\xe2\x80\xa6\x01 a longer text than fits\""));
		CU_ASSERT_EQUAL(bh_error_render(&err, small, size), strlen(small));
		CU_ASSERT_TRUE(strlen(small) < size);
		if (strlen(small) + 8 < size)
			CU_ASSERT_PTR_NOT_NULL(strstr(small, "error)"));
		free(small);
	}
}

static void thread_names_fit(void)
{
	char name[16];

	bh_thread_name_pool(name, "rdma", 3, "p0");
	CU_ASSERT_STRING_EQUAL(name, "rdma/p0");
	bh_thread_name_pool(name, "elevenchars", 3, "sup");
	CU_ASSERT_STRING_EQUAL(name, "elevenchars/sup");
	bh_thread_name_pool(name, "twelve-chars", 3, "sup");
	CU_ASSERT_STRING_EQUAL(name, "twelve-c~3/sup");
	bh_thread_name_pool(name, "a-very-long-label-indeed", 65535, "1023");
	CU_ASSERT_STRING_EQUAL(name, "a-ve~65535/1023");
}

static void *return_it(void *arg)
{
	char name[16];

	pthread_getname_np(pthread_self(), name, sizeof(name));
	return strcmp(name, "bh-test") == 0 ? arg : NULL;
}

static void *wait_for_flag(void *arg)
{
	while (!atomic_load((_Atomic bool *)arg))
		sched_yield();
	return NULL;
}

static void joins_with_one_deadline(void)
{
	_Atomic bool go = false;
	struct bh_error err = { .status = 0 };
	pthread_t thread;

	CU_ASSERT_EQUAL_FATAL(bh_thread_create(&thread, "bh-test", wait_for_flag, &go, NULL), 0);
	CU_ASSERT_EQUAL(bh_thread_join(thread, (struct bh_deadline){ 1 }, &err), -ETIMEDOUT);
	CU_ASSERT_STRING_EQUAL(err.id, "thread.join-timeout");
	CU_ASSERT_EQUAL(bh_thread_join(thread, bh_deadline_after(2 * BH_NS_PER_MS), NULL),
			-ETIMEDOUT);
	atomic_store(&go, true);
	CU_ASSERT_EQUAL(bh_thread_join(thread, bh_deadline_after(60 * BH_NS_PER_S), NULL), 0);
	CU_ASSERT_EQUAL(bh_thread_join(pthread_self(), BH_NEVER, NULL), -EDEADLK);
	CU_ASSERT_EQUAL_FATAL(bh_thread_create(&thread, "bh-test", return_it, &go, NULL), 0);
	CU_ASSERT_EQUAL(bh_thread_join(thread, BH_NEVER, NULL), 0);
}

static void deadlines(void)
{
	struct bh_mutex mutex;
	struct bh_cond cond;

	CU_ASSERT_EQUAL(bh_deadline_after(UINT64_MAX).at_ns, UINT64_MAX);
	CU_ASSERT_FALSE(bh_deadline_passed(BH_NEVER));
	CU_ASSERT_EQUAL(bh_deadline_left_ns(BH_NEVER), UINT64_MAX);
	CU_ASSERT_EQUAL(bh_deadline_left_ns((struct bh_deadline){ 1 }), 0);
	CU_ASSERT_TRUE(bh_deadline_passed((struct bh_deadline){ 0 }));
	CU_ASSERT_EQUAL(bh_deadline_min(BH_NEVER, (struct bh_deadline){ 5 }).at_ns, 5);
	bh_mutex_init(&mutex);
	bh_cond_init(&cond);
	bh_mutex_lock(&mutex);
	CU_ASSERT_FALSE(bh_cond_wait(&cond, &mutex, (struct bh_deadline){ 1 }));
	CU_ASSERT_FALSE(bh_cond_wait(&cond, &mutex, bh_deadline_after(BH_NS_PER_MS)));
	bh_mutex_unlock(&mutex);
	if (bh_mutex_trylock(&mutex))
		bh_mutex_unlock(&mutex);
	else
		CU_FAIL("a free mutex was not had");
	bh_cond_fini(&cond);
	bh_mutex_fini(&mutex);
}

static const struct bh_test tests[] = {
	{ "an error renders as id, facts and meaning on one line", renders_id_facts_and_meaning },
	{ "an error without facts renders", renders_without_facts },
	{ "the first raise wins, callers only add", first_raise_wins },
	{ "a callee that says nothing still leaves its callers' facts",
	  a_silent_failure_keeps_the_callers_facts },
	{ "NULL is accepted everywhere", null_is_accepted },
	{ "MAN-3: what does not fit is marked, no character is split",
	  what_does_not_fit_is_marked },
	{ "nothing is written past an error's storage", never_past_its_storage },
	{ "H23: thread names fit into 15 bytes and stay distinct", thread_names_fit },
	{ "SUP-9: a join spends one deadline, an expired one tries once", joins_with_one_deadline },
	{ "SUP-9: deadlines and waits", deadlines },
};

BH_TAP_MAIN("error", tests)
