/* SPDX-License-Identifier: BSD-3-Clause */
/* test_rdma_descriptor - plugins/rdma/descriptor.c: what it writes, and all that it must refuse. */
#include "config.h"

#include "plugins/rdma/descriptor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/tap.h"

static struct bh_rdma_descriptor sample_v4(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(4791) };
	struct bh_rdma_descriptor descriptor = {
		.kind = BH_RDMA_SOFTWARE,
		.access = BH_RDMA_READ,
		.instance = UINT64_C(0x0102030405060708),
		.base = UINT64_C(0x7f0012345000),
		.length = 4096,
		.key = UINT64_C(0xfedcba9876543210),
	};

	inet_pton(AF_INET, "192.0.2.1", &in.sin_addr);
	memcpy(descriptor.address.bytes, &in, sizeof(in));
	descriptor.address.length = sizeof(in);
	return descriptor;
}

static struct bh_rdma_descriptor sample_v6(void)
{
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6,
				    .sin6_port = htons(4791),
				    .sin6_scope_id = 3 };
	struct bh_rdma_descriptor descriptor = sample_v4();

	inet_pton(AF_INET6, "2001:db8::1", &in6.sin6_addr);
	descriptor.kind = BH_RDMA_VERBS;
	descriptor.access = BH_RDMA_READ | BH_RDMA_WRITE;
	memcpy(descriptor.address.bytes, &in6, sizeof(in6));
	descriptor.address.length = sizeof(in6);
	return descriptor;
}

/* The bytes lie at the end of a block of their own, so that a sanitizer sees a read past them. */
static bh_status decode(const uint8_t *bytes, size_t length, struct bh_rdma_descriptor *ret,
			const char **ret_why)
{
	uint8_t *copy = malloc(length ? length : 1);
	bh_status st;

	CU_ASSERT_FATAL(copy != NULL);
	memcpy(copy, bytes, length);
	st = bh_rdma_descriptor_decode(copy, length, ret, ret_why);
	free(copy);
	return st;
}

static void assert_refused(const uint8_t *bytes, size_t length)
{
	struct bh_rdma_descriptor untouched, ret;
	const char *why = NULL;

	memset(&untouched, 0xa5, sizeof(untouched));
	ret = untouched;
	CU_ASSERT_EQUAL(decode(bytes, length, &ret, &why), -EINVAL);
	CU_ASSERT(why && *why);
	CU_ASSERT_EQUAL(memcmp(&ret, &untouched, sizeof(ret)), 0);
}

static void comes_back(const struct bh_rdma_descriptor *descriptor, size_t expected)
{
	uint8_t bytes[BH_RDMA_DESCRIPTOR_MAX];
	struct bh_rdma_descriptor ret;
	const char *why = NULL;
	size_t length = bh_rdma_descriptor_encode(descriptor, bytes);

	CU_ASSERT_EQUAL(length, expected);
	CU_ASSERT_EQUAL_FATAL(decode(bytes, length, &ret, &why), 0);
	CU_ASSERT_EQUAL(ret.kind, descriptor->kind);
	CU_ASSERT_EQUAL(ret.access, descriptor->access);
	CU_ASSERT_EQUAL(ret.instance, descriptor->instance);
	CU_ASSERT_EQUAL(ret.base, descriptor->base);
	CU_ASSERT_EQUAL(ret.length, descriptor->length);
	CU_ASSERT_EQUAL(ret.key, descriptor->key);
	CU_ASSERT_EQUAL(memcmp(&ret.address, &descriptor->address, sizeof(ret.address)), 0);
}

static void what_is_written_is_read(void)
{
	struct bh_rdma_descriptor v4 = sample_v4(), v6 = sample_v6();

	comes_back(&v4, 60);
	comes_back(&v6, 72);
}

/* The bytes as they are written down: a change of them is a change of the version. */
static void the_layout_is_fixed(void)
{
	static const uint8_t expected[60] = {
		'B',  'H',  'R',  'D',	1,    2,    1,	  16, /* magic, version, transport, access, length */
		0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, /* instance */
		0x00, 0x50, 0x34, 0x12, 0x00, 0x7f, 0x00, 0x00, /* base */
		0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, /* length */
		0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, /* key */
		2,    0,    0x12, 0xb7, 192,  0,    2,	  1,	0,
		0,    0,    0,	  0,	0,    0,    0, /* address */
	};
	struct bh_rdma_descriptor v4 = sample_v4();
	uint8_t bytes[BH_RDMA_DESCRIPTOR_MAX];

	CU_ASSERT_EQUAL(bh_rdma_descriptor_encode(&v4, bytes), 60);
	CU_ASSERT_EQUAL(memcmp(bytes, expected, 56), 0);
	/* CRC-32C by another program. */
	CU_ASSERT_EQUAL(bytes[56] | bytes[57] << 8 | bytes[58] << 16 | (uint32_t)bytes[59] << 24,
			UINT32_C(0xf151d169));
}

static void every_changed_byte_is_refused(void)
{
	struct bh_rdma_descriptor samples[] = { sample_v4(), sample_v6() };
	uint8_t bytes[BH_RDMA_DESCRIPTOR_MAX];

	for (unsigned s = 0; s < 2; s++) {
		size_t length = bh_rdma_descriptor_encode(&samples[s], bytes);

		for (size_t i = 0; i < length; i++) {
			uint8_t was = bytes[i];

			for (unsigned value = 0; value < 256; value++) {
				if (value == was)
					continue;
				bytes[i] = (uint8_t)value;
				assert_refused(bytes, length);
			}
			bytes[i] = was;
		}
	}
}

static void every_other_length_is_refused(void)
{
	struct bh_rdma_descriptor samples[] = { sample_v4(), sample_v6() };
	uint8_t bytes[2 * BH_RDMA_DESCRIPTOR_MAX] = { 0 };

	for (unsigned s = 0; s < 2; s++) {
		size_t length = bh_rdma_descriptor_encode(&samples[s], bytes);

		for (size_t cut = 0; cut < sizeof(bytes); cut++)
			if (cut != length)
				assert_refused(bytes, cut);
	}
}

static void two_that_are_swapped_are_refused(void)
{
	struct bh_rdma_descriptor v4 = sample_v4();
	uint8_t bytes[BH_RDMA_DESCRIPTOR_MAX];
	size_t length = bh_rdma_descriptor_encode(&v4, bytes);

	for (size_t i = 0; i < length; i++)
		for (size_t j = i + 1; j < length; j++) {
			uint8_t a = bytes[i], b = bytes[j];

			if (a == b)
				continue;
			bytes[i] = b;
			bytes[j] = a;
			assert_refused(bytes, length);
			bytes[i] = a;
			bytes[j] = b;
		}
}

/* Made on purpose, with a checksum that is right. */
static void fields_that_mean_nothing_are_refused(void)
{
	uint8_t bytes[BH_RDMA_DESCRIPTOR_MAX];
	struct bh_rdma_descriptor bad;

	bad = sample_v4();
	bad.kind = (enum bh_rdma_kind)0;
	assert_refused(bytes, bh_rdma_descriptor_encode(&bad, bytes));
	bad.kind = (enum bh_rdma_kind)3;
	assert_refused(bytes, bh_rdma_descriptor_encode(&bad, bytes));
	bad = sample_v4();
	bad.access = 0;
	assert_refused(bytes, bh_rdma_descriptor_encode(&bad, bytes));
	bad.access = 4;
	assert_refused(bytes, bh_rdma_descriptor_encode(&bad, bytes));
	bad = sample_v4();
	bad.length = UINT64_MAX - bad.base + 1;
	assert_refused(bytes, bh_rdma_descriptor_encode(&bad, bytes));
	bad = sample_v4();
	bad.address.bytes[0] = AF_INET6;
	assert_refused(bytes, bh_rdma_descriptor_encode(&bad, bytes));
	bad = sample_v4();
	bad.address.length = 27;
	assert_refused(bytes, bh_rdma_descriptor_encode(&bad, bytes));
}

static void noise_is_refused(void)
{
	uint8_t bytes[96];
	unsigned seed = 1;

	for (unsigned round = 0; round < 20000; round++) {
		size_t length = (size_t)rand_r(&seed) % sizeof(bytes);

		for (size_t i = 0; i < length; i++)
			bytes[i] = (uint8_t)rand_r(&seed);
		if (round % 2 && length >= 8)
			memcpy(bytes, "BHRD\1\2\1\20", 8);
		assert_refused(bytes, length);
	}
}

static void addresses_read_well(void)
{
	struct bh_rdma_descriptor v4 = sample_v4(), v6 = sample_v6();
	struct bh_rdma_address none = { .length = 0 };

	CU_ASSERT_STRING_EQUAL(bh_rdma_address_text(&v4.address).text, "192.0.2.1:4791");
	CU_ASSERT_STRING_EQUAL(bh_rdma_address_text(&v6.address).text, "[2001:db8::1]:4791");
	CU_ASSERT_STRING_EQUAL(bh_rdma_address_text(&none).text, "(no address)");
}

static const struct bh_test tests[] = {
	{ "what is written is read again, of both families", what_is_written_is_read },
	{ "the layout and the checksum are those of version 1", the_layout_is_fixed },
	{ "every byte with every other value is refused", every_changed_byte_is_refused },
	{ "every length but its own is refused, and nothing behind it is read",
	  every_other_length_is_refused },
	{ "two bytes that have changed places are refused", two_that_are_swapped_are_refused },
	{ "fields that mean nothing are refused, though the checksum is right",
	  fields_that_mean_nothing_are_refused },
	{ "noise is refused", noise_is_refused },
	{ "addresses are shown as people write them", addresses_read_well },
};

BH_TAP_MAIN("rdma_descriptor", tests)
