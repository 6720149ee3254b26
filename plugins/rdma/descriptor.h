/* SPDX-License-Identifier: BSD-3-Clause */
/* descriptor - the bytes that let a peer reach a region: small, versioned, checked as a whole.
 *
 * Little endian, whatever the machine: "BHRD", version, transport, access, the address's length, then
 * instance, base, length and key of 8 bytes each, the address, and a CRC-32C of all before it.
 *
 * Thread: any; nothing is kept. */
#ifndef BH_PLUGINS_RDMA_DESCRIPTOR_H
#define BH_PLUGINS_RDMA_DESCRIPTOR_H

#include <stddef.h>
#include <stdint.h>

#include <bulkhead/plugin.h>

#define BH_RDMA_ADDRESS_MAX 28u /* bytes: a struct sockaddr_in6 */
#define BH_RDMA_DESCRIPTOR_MAX 80u

enum bh_rdma_kind { BH_RDMA_VERBS = 1, BH_RDMA_SOFTWARE = 2 };

/* What a peer may do. */
#define BH_RDMA_READ 1u
#define BH_RDMA_WRITE 2u

/* Where a process's transport can be reached. Family and port are in network order within `bytes`. */
struct bh_rdma_address {
	uint8_t bytes[BH_RDMA_ADDRESS_MAX]; /* a struct sockaddr_in or sockaddr_in6; rest 0 */
	uint8_t length;
};

struct bh_rdma_descriptor {
	enum bh_rdma_kind kind;
	uint32_t access;   /* BH_RDMA_READ | BH_RDMA_WRITE */
	uint64_t instance; /* of the transport that made it: a restarted peer has another */
	uint64_t base;	   /* the address that a transfer's offset is added to */
	uint64_t length;   /* bytes */
	uint64_t key;
	struct bh_rdma_address address;
};

/* Returns how many bytes of `out` it took. */
size_t bh_rdma_descriptor_encode(const struct bh_rdma_descriptor *descriptor,
				 uint8_t out[BH_RDMA_DESCRIPTOR_MAX]);

/* -EINVAL: `*ret_why` says what is wrong with the bytes: static text. Any bytes are fine to ask. */
bh_status bh_rdma_descriptor_decode(const void *bytes, size_t length,
				    struct bh_rdma_descriptor *ret_descriptor,
				    const char **ret_why);

/* "192.0.2.1:4791", "[2001:db8::1]:4791". */
struct bh_rdma_address_text {
	char text[64];
};
struct bh_rdma_address_text bh_rdma_address_text(const struct bh_rdma_address *address);

#endif
