/* SPDX-License-Identifier: BSD-3-Clause */
/* test_memory - memory of the host's own, as a buffer. */
#include "config.h"

#include "host/core/memory.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "tests/unit/tap.h"

static struct bh_buffer_info floats(uint32_t n_dims, int64_t a, int64_t b)
{
	return (struct bh_buffer_info){ .flags = BH_BUFFER_WRITABLE,
					.n_dims = n_dims,
					.dtype_code = BH_DTYPE_FLOAT,
					.dtype_bits = 32,
					.shape = { a, b } };
}

static bool all_zero(const struct bh_buffer *buffer)
{
	const char *bytes = buffer->info.data;

	for (uint64_t i = 0; i < buffer->info.length; i++)
		if (bytes[i] != 0)
			return false;
	return true;
}

static void is_as_asked_for(void)
{
	struct bh_buffer_info info = floats(2, 3, 5);
	struct bh_buffer *buffer = NULL;

	info.shape[2] = 77; /* beyond n_dims: not read */
	CU_ASSERT_EQUAL_FATAL(bh_memory_new(&info, 64, &buffer), 0);
	CU_ASSERT_EQUAL(buffer->refs, 1);
	CU_ASSERT_EQUAL(buffer->info.size, sizeof(info));
	CU_ASSERT_EQUAL(buffer->info.kind, BH_BUFFER_HOST);
	CU_ASSERT_EQUAL(buffer->info.flags, BH_BUFFER_WRITABLE);
	CU_ASSERT_EQUAL(buffer->info.length, 60);
	CU_ASSERT_EQUAL(buffer->info.n_dims, 2);
	CU_ASSERT_EQUAL(buffer->info.shape[0], 3);
	CU_ASSERT_EQUAL(buffer->info.shape[1], 5);
	CU_ASSERT_EQUAL(buffer->info.shape[2], 0);
	CU_ASSERT_EQUAL(buffer->info.strides[0], 20);
	CU_ASSERT_EQUAL(buffer->info.strides[1], 4);
	CU_ASSERT_EQUAL(buffer->info.dtype_code, BH_DTYPE_FLOAT);
	CU_ASSERT_EQUAL(buffer->info.dtype_bits, 32);
	CU_ASSERT_PTR_NULL(buffer->python);
	CU_ASSERT_TRUE(all_zero(buffer));
	memset(buffer->info.data, 0xff, buffer->info.length); /* it is all ours: ASan looks */
	bh_buffer_unref(buffer);
}

static void every_alignment(void)
{
	for (uint64_t alignment = 1; alignment <= BH_MEMORY_ALIGNMENT_MAX; alignment *= 2) {
		struct bh_buffer_info info = floats(1, 1000, 0);
		struct bh_buffer *buffer = NULL;

		CU_ASSERT_EQUAL_FATAL(bh_memory_new(&info, alignment, &buffer), 0);
		CU_ASSERT_EQUAL((uintptr_t)buffer->info.data % alignment, 0);
		memset(buffer->info.data, 1, buffer->info.length);
		bh_buffer_unref(buffer);
	}
}

static bh_status try(struct bh_buffer_info info, uint64_t alignment)
{
	struct bh_buffer *buffer = NULL;
	bh_status st = bh_memory_new(&info, alignment, &buffer);

	CU_ASSERT_EQUAL(st == 0, buffer != NULL);
	bh_buffer_unref(buffer);
	return st;
}

static void what_cannot_be_is_refused(void)
{
	struct bh_buffer_info info = floats(1, 4, 0);

	CU_ASSERT_EQUAL(try(info, 0), -EINVAL);
	CU_ASSERT_EQUAL(try(info, 48), -EINVAL);
	CU_ASSERT_EQUAL(try(info, BH_MEMORY_ALIGNMENT_MAX * 2ull), -EINVAL);
	CU_ASSERT_EQUAL(try(info, UINT64_MAX), -EINVAL);
	info.dtype_bits = 12;
	CU_ASSERT_EQUAL(try(info, 64), -EINVAL);
	info.dtype_bits = 0;
	CU_ASSERT_EQUAL(try(info, 64), -EINVAL);
	CU_ASSERT_EQUAL(try(floats(1, -1, 0), 64), -EINVAL);
	CU_ASSERT_EQUAL(try(floats(2, 0, -1), 64), -EINVAL);
	CU_ASSERT_EQUAL(try(floats(BH_NDIM_MAX + 1, 1, 1), 64), -EINVAL);
	/* Too much is no mistake, and no wrap-around to something small. */
	CU_ASSERT_EQUAL(try(floats(1, INT64_MAX, 0), 64), -ENOMEM);
	CU_ASSERT_EQUAL(try(floats(2, INT64_MAX, INT64_MAX), 64), -ENOMEM);
	CU_ASSERT_EQUAL(try(floats(2, 1ll << 31, 1ll << 31), 64), -ENOMEM);
	CU_ASSERT_EQUAL(try(floats(1, PTRDIFF_MAX / 4, 0), 64), -ENOMEM);
}

static void empty_and_without_dimensions(void)
{
	struct bh_buffer_info info = floats(0, 0, 0);
	uint64_t length = 99;

	CU_ASSERT_EQUAL(bh_memory_length(&info, &length), 0);
	CU_ASSERT_EQUAL(length, 4); /* one element */
	info = floats(2, INT64_MAX, 0);
	CU_ASSERT_EQUAL(bh_memory_length(&info, &length), 0);
	CU_ASSERT_EQUAL(length, 0);
	CU_ASSERT_EQUAL(try(info, 4096), 0);
}

static void *drop(void *arg)
{
	memset(((struct bh_buffer *)arg)->info.data, 7, 8);
	bh_buffer_unref(arg);
	return NULL;
}

static void sup10_outlives_who_made_it(void)
{
	struct bh_buffer_info info = floats(1, 1 << 20, 0);
	struct bh_buffer *buffer = NULL;
	pthread_t thread;

	CU_ASSERT_EQUAL_FATAL(bh_memory_new(&info, 4096, &buffer), 0);
	bh_buffer_ref(buffer);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, drop, buffer), 0);
	bh_buffer_unref(buffer); /* the other thread's reference holds it */
	pthread_join(thread, NULL);
}

static const struct bh_test tests[] = {
	{ "it is zeroed, shaped and flagged as asked for", is_as_asked_for },
	{ "every power of two up to 2 MiB is an alignment", every_alignment },
	{ "what cannot be is refused, and what is too much is no small thing",
	  what_cannot_be_is_refused },
	{ "empty shapes and none", empty_and_without_dimensions },
	{ "SUP-10: the last reference frees it, on any thread", sup10_outlives_who_made_it },
};

BH_TAP_MAIN("memory", tests)
