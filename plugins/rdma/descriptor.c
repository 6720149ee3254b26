/* SPDX-License-Identifier: BSD-3-Clause */
/* descriptor - see descriptor.h. */
#include "config.h"

#include "plugins/rdma/descriptor.h"

#include <arpa/inet.h>
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define VERSION 1u

/* Where each field lies. The address is as long as its family's, and the checksum follows it. */
enum place {
	AT_MAGIC = 0,
	AT_VERSION = 4,
	AT_KIND = 5,
	AT_ACCESS = 6,
	AT_ADDRESS_LENGTH = 7,
	AT_INSTANCE = 8,
	AT_BASE = 16,
	AT_LENGTH = 24,
	AT_KEY = 32,
	AT_ADDRESS = 40
};
#define CHECKSUM_SIZE 4u

static const uint8_t magic[4] = { 'B', 'H', 'R', 'D' };

static_assert(sizeof(struct sockaddr_in) == 16 && sizeof(struct sockaddr_in6) == 28,
	      "the lengths that tell the two families apart");
static_assert(AT_ADDRESS + BH_RDMA_ADDRESS_MAX + CHECKSUM_SIZE <= BH_RDMA_DESCRIPTOR_MAX,
	      "the longest one fits");

/* CRC-32C by half bytes: each transfer checks one, so it is quick, and the table is one cache line. */
static const uint32_t crc_table[16] = {
	0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
	0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
	0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

static uint32_t checksum(const uint8_t *bytes, size_t length)
{
	uint32_t crc = UINT32_MAX;

	for (size_t i = 0; i < length; i++) {
		crc ^= bytes[i];
		crc = crc >> 4 ^ crc_table[crc & 15];
		crc = crc >> 4 ^ crc_table[crc & 15];
	}
	return ~crc;
}

static void put64(uint8_t *at, uint64_t value)
{
	value = htole64(value);
	memcpy(at, &value, sizeof(value));
}

static uint64_t get64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return le64toh(value);
}

static void put32(uint8_t *at, uint32_t value)
{
	value = htole32(value);
	memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return le32toh(value);
}

/* The family is the one field of a sockaddr that is not in network order. */
static void put_address(uint8_t *at, const struct bh_rdma_address *address)
{
	sa_family_t family;

	memcpy(at, address->bytes, address->length);
	memcpy(&family, address->bytes, sizeof(family));
	family = htole16(family);
	memcpy(at, &family, sizeof(family));
}

static sa_family_t get_family(const uint8_t *at)
{
	sa_family_t family;

	memcpy(&family, at, sizeof(family));
	return le16toh(family);
}

size_t bh_rdma_descriptor_encode(const struct bh_rdma_descriptor *descriptor,
				 uint8_t out[BH_RDMA_DESCRIPTOR_MAX])
{
	size_t end = AT_ADDRESS + descriptor->address.length;

	assert(descriptor->address.length <= BH_RDMA_ADDRESS_MAX);
	memcpy(out + AT_MAGIC, magic, sizeof(magic));
	out[AT_VERSION] = VERSION;
	out[AT_KIND] = (uint8_t)descriptor->kind;
	out[AT_ACCESS] = (uint8_t)descriptor->access;
	out[AT_ADDRESS_LENGTH] = descriptor->address.length;
	put64(out + AT_INSTANCE, descriptor->instance);
	put64(out + AT_BASE, descriptor->base);
	put64(out + AT_LENGTH, descriptor->length);
	put64(out + AT_KEY, descriptor->key);
	put_address(out + AT_ADDRESS, &descriptor->address);
	put32(out + end, checksum(out, end));
	return end + CHECKSUM_SIZE;
}

/* What is wrong with bytes whose checksum is right: somebody made them so. NULL: nothing. */
static const char *fault_of_fields(const uint8_t *bytes)
{
	uint8_t address_length = bytes[AT_ADDRESS_LENGTH];
	uint64_t base = get64(bytes + AT_BASE), length = get64(bytes + AT_LENGTH);

	if (bytes[AT_KIND] != BH_RDMA_VERBS && bytes[AT_KIND] != BH_RDMA_SOFTWARE)
		return "it is for a transport that this version does not know";
	if (bytes[AT_ACCESS] == 0 || bytes[AT_ACCESS] & ~(BH_RDMA_READ | BH_RDMA_WRITE))
		return "it gives rights that this version does not know";
	if (get_family(bytes + AT_ADDRESS) != (address_length == 16 ? AF_INET : AF_INET6))
		return "its address is of no family that its length goes with";
	if (length > UINT64_MAX - base)
		return "its length leads past the end of memory";
	return NULL;
}

static const char *fault_of(const uint8_t *bytes, size_t length)
{
	size_t end;

	if (length < AT_ADDRESS)
		return "it is too short";
	if (memcmp(bytes + AT_MAGIC, magic, sizeof(magic)) != 0)
		return "it does not begin with BHRD";
	if (bytes[AT_VERSION] != VERSION)
		return "it is of a version that this one does not know";
	if (bytes[AT_ADDRESS_LENGTH] != 16 && bytes[AT_ADDRESS_LENGTH] != 28)
		return "its address has a length that none has";
	end = AT_ADDRESS + bytes[AT_ADDRESS_LENGTH];
	if (length != end + CHECKSUM_SIZE)
		return length < end + CHECKSUM_SIZE ? "it is cut short"
						    : "bytes follow behind its end";
	if (get32(bytes + end) != checksum(bytes, end))
		return "its checksum is wrong: bytes of it have changed";
	return fault_of_fields(bytes);
}

bh_status bh_rdma_descriptor_decode(const void *bytes, size_t length,
				    struct bh_rdma_descriptor *ret_descriptor, const char **ret_why)
{
	const uint8_t *at = bytes;
	const char *why = fault_of(at, length);
	struct bh_rdma_descriptor descriptor;
	sa_family_t family;

	if (why) {
		*ret_why = why;
		return -EINVAL;
	}
	memset(&descriptor, 0, sizeof(descriptor));
	descriptor.kind = (enum bh_rdma_kind)at[AT_KIND];
	descriptor.access = at[AT_ACCESS];
	descriptor.instance = get64(at + AT_INSTANCE);
	descriptor.base = get64(at + AT_BASE);
	descriptor.length = get64(at + AT_LENGTH);
	descriptor.key = get64(at + AT_KEY);
	descriptor.address.length = at[AT_ADDRESS_LENGTH];
	memcpy(descriptor.address.bytes, at + AT_ADDRESS, descriptor.address.length);
	family = get_family(at + AT_ADDRESS);
	memcpy(descriptor.address.bytes, &family, sizeof(family));
	*ret_descriptor = descriptor;
	return 0;
}

struct bh_rdma_address_text bh_rdma_address_text(const struct bh_rdma_address *address)
{
	struct bh_rdma_address_text text = { "(no address)" };
	char host[INET6_ADDRSTRLEN];
	struct sockaddr_in in;
	struct sockaddr_in6 in6;

	if (address->length == sizeof(in)) {
		memcpy(&in, address->bytes, sizeof(in));
		if (inet_ntop(AF_INET, &in.sin_addr, host, sizeof(host)))
			snprintf(text.text, sizeof(text.text), "%s:%u", host, ntohs(in.sin_port));
	} else if (address->length == sizeof(in6)) {
		memcpy(&in6, address->bytes, sizeof(in6));
		if (inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof(host)))
			snprintf(text.text, sizeof(text.text), "[%s]:%u", host,
				 ntohs(in6.sin6_port));
	}
	return text;
}
