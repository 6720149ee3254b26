/* SPDX-License-Identifier: BSD-3-Clause */
/* test_value - host/core/value.c. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "host/core/value.h"
#include "tests/unit/tap.h"

struct counted_object {
	struct bh_object object;
	int freed;
};

static void object_free(struct bh_object *object)
{
	((struct counted_object *)object)->freed++;
}

struct counted_buffer {
	struct bh_buffer buffer;
	int freed;
};

static void buffer_free(struct bh_buffer *buffer)
{
	((struct counted_buffer *)buffer)->freed++;
}

static struct bh_value of_text(const char *data, size_t length)
{
	return (struct bh_value){ .type = BH_TYPE_STR, .as.text = { data, length } };
}

static void copies_are_deep(void)
{
	char text[] = "abc\0def";
	struct bh_value items[3] = { of_text(text, 7),
				     { .type = BH_TYPE_INT, .as.integer = -1 },
				     { .type = BH_TYPE_LIST } };
	struct bh_value list = { .type = BH_TYPE_LIST, .as.list = { items, 3 } };
	struct bh_value copy;

	CU_ASSERT_EQUAL(bh_value_copy(&list, &copy), 0);
	memset(text, 'x', sizeof(text));
	items[1].as.integer = 5;
	CU_ASSERT_EQUAL(copy.as.list.count, 3);
	CU_ASSERT_EQUAL(memcmp(copy.as.list.items[0].as.text.data, "abc\0def", 8),
			0); /* the NUL behind it too */
	CU_ASSERT_EQUAL(copy.as.list.items[1].as.integer, -1);
	CU_ASSERT_EQUAL(copy.as.list.items[2].as.list.count, 0);
	bh_value_clear(&copy);
	CU_ASSERT_EQUAL(copy.type, BH_TYPE_NONE);
	bh_value_clear(&copy);
}

static void copy_takes_references(void)
{
	struct counted_object object = { .object = { .refs = 1, .free = object_free } };
	struct counted_buffer buffer = { .buffer = { .refs = 1, .free = buffer_free } };
	struct bh_value items[2] = { { .type = BH_TYPE_OBJECT, .as.object = &object.object },
				     { .type = BH_TYPE_BUFFER, .as.buffer = &buffer.buffer } };
	struct bh_value list = { .type = BH_TYPE_LIST, .as.list = { items, 2 } }, copy;

	CU_ASSERT_EQUAL(bh_value_copy(&list, &copy), 0);
	CU_ASSERT_EQUAL(object.object.refs, 2);
	CU_ASSERT_EQUAL(buffer.buffer.refs, 2);
	bh_object_unref(&object.object);
	CU_ASSERT_EQUAL(object.freed, 0);
	bh_value_clear(&copy);
	CU_ASSERT_EQUAL(object.freed, 1);
	CU_ASSERT_EQUAL(buffer.freed, 0);
	bh_buffer_unref(bh_buffer_ref(&buffer.buffer));
	bh_buffer_unref(&buffer.buffer);
	CU_ASSERT_EQUAL(buffer.freed, 1);
	bh_buffer_unref(NULL);
	bh_object_unref(NULL);
}

static void take_passes_references_on(void)
{
	struct counted_object object = { .object = { .refs = 2, .free = object_free } };
	struct bh_value inner = { .type = BH_TYPE_OBJECT, .as.object = &object.object };
	struct bh_value bad[2] = { inner, { .type = 77 } };
	struct bh_value list = { .type = BH_TYPE_LIST, .as.list = { &inner, 1 } }, taken;

	CU_ASSERT_EQUAL(bh_value_take(&list, &taken), 0);
	CU_ASSERT_EQUAL(object.object.refs, 2);
	bh_value_clear(&taken);
	CU_ASSERT_EQUAL(object.object.refs, 1);
	list.as.list = (struct bh_items){ bad, 2 };
	CU_ASSERT_EQUAL(bh_value_take(&list, &taken), -EINVAL); /* also on failure */
	CU_ASSERT_EQUAL(taken.type, BH_TYPE_NONE);
	CU_ASSERT_EQUAL(object.freed, 1);
}

static void bad_values_are_refused(void)
{
	struct bh_value rows[] = {
		{ .type = 10 },
		{ .type = UINT32_MAX },
		{ .type = BH_TYPE_BUFFER },
		{ .type = BH_TYPE_OBJECT },
		{ .type = BH_TYPE_STR, .as.text = { "x", UINT64_MAX } },
		{ .type = BH_TYPE_LIST, .as.list = { NULL, UINT64_MAX / 8 } },
	};
	struct bh_value deep[80], copy;

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		CU_ASSERT_TRUE(bh_value_copy(&rows[i], &copy) < 0);
		CU_ASSERT_EQUAL(copy.type, BH_TYPE_NONE);
	}
	for (size_t i = 0; i < BH_ARRAY_LEN(deep); i++)
		deep[i] = (struct bh_value){ .type = BH_TYPE_LIST, .as.list = { &deep[i + 1], 1 } };
	deep[79] = (struct bh_value){ .type = BH_TYPE_NONE };
	CU_ASSERT_EQUAL(bh_value_copy(&deep[0], &copy), -EINVAL);
	CU_ASSERT_EQUAL(bh_value_copy(&deep[20], &copy), 0);
	bh_value_clear(&copy);
}

static void args_and_names(void)
{
	struct counted_object object = { .object = { .refs = 1, .free = object_free } };
	struct bh_args *args = bh_args_new(2);
	struct bh_value stolen;

	CU_ASSERT_PTR_NOT_NULL_FATAL(args);
	CU_ASSERT_EQUAL(args->n, 2);
	CU_ASSERT_EQUAL(args->v[1].type, BH_TYPE_NONE);
	args->v[1] = (struct bh_value){ .type = BH_TYPE_OBJECT, .as.object = &object.object };
	CU_ASSERT_PTR_NULL(bh_args_free(args));
	CU_ASSERT_EQUAL(object.freed, 1);
	CU_ASSERT_PTR_NULL(bh_args_free(NULL));
	args = bh_args_new(0);
	CU_ASSERT_PTR_NOT_NULL(args);
	bh_args_free(args);
	stolen = (struct bh_value){ .type = BH_TYPE_INT, .as.integer = 3 };
	CU_ASSERT_EQUAL(bh_value_steal(&stolen).as.integer, 3);
	CU_ASSERT_EQUAL(stolen.type, BH_TYPE_NONE);
	CU_ASSERT_STRING_EQUAL(bh_type_name(BH_TYPE_BUFFER), "buffer");
	CU_ASSERT_STRING_EQUAL(bh_type_name(BH_TYPE_OBJECT), "object");
	CU_ASSERT_PTR_NULL(bh_type_name(10));
	CU_ASSERT_PTR_NULL(bh_type_name(UINT32_MAX));
}

static void *ref_and_unref(void *arg)
{
	for (int i = 0; i < 20000; i++)
		bh_object_unref(bh_object_ref(arg));
	bh_object_unref(arg);
	return NULL;
}

static void references_from_many_threads(void)
{
	struct counted_object object = { .object = { .refs = 4, .free = object_free } };
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		CU_ASSERT_EQUAL_FATAL(
			pthread_create(&threads[i], NULL, ref_and_unref, &object.object), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	CU_ASSERT_EQUAL(object.freed, 1);
}

static const struct bh_test tests[] = {
	{ "a copy is deep, text keeps its NULs and gets one behind", copies_are_deep },
	{ "a copy holds references of its own", copy_takes_references },
	{ "take passes references on at any depth, also when it fails", take_passes_references_on },
	{ "what is no value is refused", bad_values_are_refused },
	{ "arguments release what they hold; types have names", args_and_names },
	{ "the last reference frees once, whoever drops it", references_from_many_threads },
};

BH_TAP_MAIN("value", tests)
