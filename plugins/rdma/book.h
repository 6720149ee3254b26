/* SPDX-License-Identifier: BSD-3-Clause */
/* book - who has registered what: regions that peers may reach, and memory registered for local use.
 *
 * A registration is one run of bytes that the transport knows, with one set of rights. Regions on the
 * same bytes with the same rights share it; it goes with the last of them, so that a descriptor means
 * nothing from then on. What is registered for local use alone stays with its buffer, in the buffer's
 * slot, for as long as the buffer lives.
 *
 * Thread: any. One lock guards the whole book; it is never held while memory is pinned or freed, nor
 *         while services of the host are called. What may run under the GIL, the release of a buffer's
 *         slot, takes no lock (GIL-9).
 * Owns:   a reference to the buffer of each registration that a region or a transfer uses. */
#ifndef BH_PLUGINS_RDMA_BOOK_H
#define BH_PLUGINS_RDMA_BOOK_H

#include <stdint.h>

#include <bulkhead/plugin.h>

#include "plugins/rdma/engine.h"
#include "plugins/rdma/transport.h"

struct bh_rdma_book;
struct bh_rdma_region;

struct bh_rdma_region_facts {
	uint64_t handle;
	uint64_t address, length;
	uint32_t access;
	uint32_t n_sharing; /* regions on this registration, this one too */
	uint32_t n_uses;    /* of it by transfers that are under way here */
	uint8_t descriptor[BH_RDMA_DESCRIPTOR_MAX];
	uint32_t descriptor_length;
};

bh_status bh_rdma_book_new(struct bh_context *ctx, const struct bh_services *services,
			   struct bh_rdma_transport *transport, struct bh_rdma_engine *engine,
			   uint64_t instance, struct bh_rdma_book **ret_book);
/* Releases what is left, after the engine has ended and before it is freed; returns how many registrations
 * could not be (their buffers stay, SUP-10). Regions that nobody closed are logged, in one line. */
uint32_t bh_rdma_book_free(struct bh_rdma_book *book);

/* May block as long as pinning takes. Takes its own reference to `buffer`. -ENOMEM, others: fault. */
bh_status bh_rdma_book_register(struct bh_rdma_book *book, struct bh_buffer *buffer,
				uint32_t access, struct bh_rdma_region_facts *ret_facts,
				struct bh_rdma_fault *fault);
/* Begins the end of a region: from its return on the handle is unknown. When it was the last one on its
 * registration: waits for local uses, deregisters, revokes; then done() on some thread. 1: done() will
 * be called; 0: over already, it will not be; -ENOENT: no such region. */
bh_status bh_rdma_book_close(struct bh_rdma_book *book, uint64_t handle,
			     void (*done)(void *user, bh_status status), void *user);
bh_status bh_rdma_book_facts(struct bh_rdma_book *book, uint64_t handle,
			     struct bh_rdma_region_facts *ret_facts);

/* Memory for a transfer's local side: that of an open region around it, whose end then waits for it, else
 * the buffer's slot, else a new registration, which blocks. Each use is ended with bh_rdma_book_unuse().
 * Where the transport needs no local memory `*ret_memory` is NULL, and `*ret_use` is unless a region is
 * around it. The caller holds `buffer`. */
struct bh_rdma_use;
bh_status bh_rdma_book_use(struct bh_rdma_book *book, struct bh_buffer *buffer,
			   struct bh_rdma_use **ret_use, const struct bh_rdma_memory **ret_memory,
			   struct bh_rdma_fault *fault);
/* NULL is fine. */
void bh_rdma_book_unuse(struct bh_rdma_book *book, struct bh_rdma_use *use);

/* All deregistration, which may block, is done by bh_rdma_book_reap(), on one thread: that of closed
 * regions, and of buffers whose last reference went. When the descriptor is readable there is something
 * to do; what is left at the end is bh_rdma_book_free()'s. */
int bh_rdma_book_descriptor(const struct bh_rdma_book *book);
void bh_rdma_book_reap(struct bh_rdma_book *book);

struct bh_rdma_book_counts {
	uint64_t regions; /* open */
	uint64_t
		registrations; /* known to the transport, those for local use and those that end too */
	uint64_t bytes;	       /* of the latter */
};
void bh_rdma_book_counts(struct bh_rdma_book *book, struct bh_rdma_book_counts *ret_counts);

#endif
