/* SPDX-License-Identifier: BSD-3-Clause */
/* test_exit - host/core/exit.c: the registry of pools. */
#include "config.h"

#include "host/core/exit.h"
#include "tests/unit/pool_fixture.h"

static void make(struct fixture *fx, const char *label)
{
	fixture_init(fx, 1, 1);
	fx->config.label = label;
	fixture_make(fx);
}

static void ri7_drained_in_reverse(void)
{
	struct bh_exit_registry *registry;
	struct fixture a, b, c;

	make(&a, "a");
	make(&b, "b");
	make(&c, "c");
	CU_ASSERT_EQUAL_FATAL(bh_exit_registry_new(&registry, NULL), 0);
	CU_ASSERT_EQUAL(bh_exit_registry_add(registry, a.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_exit_registry_add(registry, b.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_exit_registry_add(registry, c.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_exit_registry_count(registry), 3);
	bh_exit_registry_remove(registry, b.pool);
	bh_exit_registry_remove(registry, b.pool); /* again: nothing happens */
	CU_ASSERT_PTR_EQUAL(bh_exit_registry_take_last(registry), c.pool);
	CU_ASSERT_PTR_EQUAL(bh_exit_registry_take_last(registry), a.pool);
	CU_ASSERT_PTR_NULL(bh_exit_registry_take_last(registry)); /* a second drain finds nothing */
	CU_ASSERT_EQUAL(bh_exit_registry_count(registry), 0);
	bh_exit_registry_remove(registry, a.pool);
	registry = bh_exit_registry_free(registry);
	CU_ASSERT_PTR_NULL(bh_exit_registry_free(NULL));
	bh_pool_free(a.pool);
	bh_pool_free(b.pool);
	bh_pool_free(c.pool);
}

static void ri5_labels_are_unique(void)
{
	struct bh_exit_registry *registry;
	struct bh_error err = { .status = 0 };
	struct fixture first, second;

	make(&first, "same");
	make(&second, "same");
	CU_ASSERT_EQUAL_FATAL(bh_exit_registry_new(&registry, NULL), 0);
	CU_ASSERT_EQUAL(bh_exit_registry_add(registry, first.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_exit_registry_add(registry, second.pool, &err), -EEXIST);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "pool"), "same");
	bh_exit_registry_remove(registry, second.pool); /* not the one that is in */
	CU_ASSERT_EQUAL(bh_exit_registry_count(registry), 1);
	bh_exit_registry_remove(registry, first.pool);
	CU_ASSERT_EQUAL(bh_exit_registry_add(registry, second.pool, NULL), 0);
	bh_exit_registry_remove(registry, second.pool);
	bh_exit_registry_free(registry);
	bh_pool_free(first.pool);
	bh_pool_free(second.pool);
}

struct drain {
	struct bh_exit_registry *registry;
	_Atomic int taken;
};

static void *drain_and_stop(void *arg)
{
	struct drain *drain = arg;
	struct bh_pool *pool;

	while ((pool = bh_exit_registry_take_last(drain->registry))) {
		bh_pool_stop(pool, PATIENCE, PATIENCE); /* outside the registry's lock */
		atomic_fetch_add(&drain->taken, 1);
	}
	return NULL;
}

static void ri7_two_drains(void)
{
	static const char *const labels[] = { "p0", "p1", "p2", "p3", "p4", "p5" };
	struct fixture fx[BH_ARRAY_LEN(labels)];
	struct drain drain = { .taken = 0 };
	pthread_t threads[2];

	CU_ASSERT_EQUAL_FATAL(bh_exit_registry_new(&drain.registry, NULL), 0);
	for (size_t i = 0; i < BH_ARRAY_LEN(labels); i++) {
		make(&fx[i], labels[i]);
		fixture_start(&fx[i]);
		CU_ASSERT_EQUAL(bh_exit_registry_add(drain.registry, fx[i].pool, NULL), 0);
	}
	for (int i = 0; i < 2; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, drain_and_stop, &drain), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CU_ASSERT_EQUAL(drain.taken, (int)BH_ARRAY_LEN(labels));
	for (size_t i = 0; i < BH_ARRAY_LEN(labels); i++)
		CU_ASSERT_EQUAL(fixture_end(&fx[i]), BH_POOL_CLEAN);
	bh_exit_registry_free(drain.registry);
}

static void exit1_leaves_when_joined(void)
{
	struct bh_exit_registry *registry;
	struct bh_error err = { .status = 0 };
	struct fixture a, b, late;

	make(&a, "a");
	make(&b, "b");
	make(&late, "late");
	CU_ASSERT_EQUAL_FATAL(bh_exit_registry_new(&registry, NULL), 0);
	CU_ASSERT_PTR_NULL(bh_exit_registry_last(registry));
	CU_ASSERT_EQUAL(bh_exit_registry_add(registry, a.pool, NULL), 0);
	CU_ASSERT_EQUAL(bh_exit_registry_add(registry, b.pool, NULL), 0);
	CU_ASSERT_PTR_EQUAL(bh_exit_registry_take_last(registry), b.pool);
	CU_ASSERT_EQUAL(bh_exit_registry_count(registry), 1);
	/* Somebody stops b; who ends the process still finds it. */
	CU_ASSERT_PTR_EQUAL(bh_exit_registry_last(registry), b.pool);
	bh_exit_registry_remove(registry, b.pool);
	CU_ASSERT_PTR_EQUAL(bh_exit_registry_last(registry), a.pool);
	bh_exit_registry_close(registry);
	CU_ASSERT_EQUAL(bh_exit_registry_add(registry, late.pool, &err), -ESHUTDOWN);
	CU_ASSERT_STRING_EQUAL(err.id, "exit.closed");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "pool"), "late");
	CU_ASSERT_PTR_EQUAL(bh_exit_registry_take_last(registry), a.pool);
	bh_exit_registry_free(registry); /* a was taken, and not joined: forgotten */
	bh_pool_free(a.pool);
	bh_pool_free(b.pool);
	bh_pool_free(late.pool);
}

static char steps_run[8];

static void run_step(void *arg, struct bh_deadline until)
{
	CU_ASSERT_EQUAL(until.at_ns, 7);
	strncat(steps_run, arg, sizeof(steps_run) - strlen(steps_run) - 1);
}

static void exit1_phases(void)
{
	struct bh_exit_step a = { .run = run_step, .arg = (void *)"a" },
			    b = { .run = run_step, .arg = (void *)"b" },
			    l = { .run = run_step, .arg = (void *)"l" };
	const struct bh_deadline until = { 7 };
	struct bh_exit_registry *registry;

	steps_run[0] = '\0';
	CU_ASSERT_EQUAL_FATAL(bh_exit_registry_new(&registry, NULL), 0);
	bh_exit_registry_add_step(registry, BH_EXIT_LIBRARIES, &l);
	bh_exit_registry_add_step(registry, BH_EXIT_APPS, &a);
	bh_exit_registry_add_step(registry, BH_EXIT_APPS, &b);
	bh_exit_registry_run(registry, BH_EXIT_APPS, until);
	CU_ASSERT_STRING_EQUAL(steps_run, "ba");
	bh_exit_registry_run(registry, BH_EXIT_APPS, until);
	CU_ASSERT_STRING_EQUAL(steps_run, "ba");
	bh_exit_registry_run(registry, BH_EXIT_LIBRARIES, until);
	CU_ASSERT_STRING_EQUAL(steps_run, "bal");
	bh_exit_registry_free(registry);
}

static const struct bh_test tests[] = {
	{ "RI-7: drained in reverse order, a second drain finds nothing", ri7_drained_in_reverse },
	{ "RI-5: two pools cannot have the same label", ri5_labels_are_unique },
	{ "RI-7: two drains at once take each pool once", ri7_two_drains },
	{ "EXIT-1: an entry leaves when its pool has been joined, not when it is taken",
	  exit1_leaves_when_joined },
	{ "EXIT-1: steps run once, in the order of the phases, the last one first", exit1_phases },
};

BH_TAP_MAIN("exit", tests)
