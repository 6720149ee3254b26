/* SPDX-License-Identifier: BSD-3-Clause */
/* book - who has registered what: regions that peers may reach, and memory registered for local use.
 *
 * A registration is one run of bytes that the transport knows, with one set of rights. Regions on the
 * same bytes with the same rights share it; it goes with the last of them, so that a descriptor means
 * nothing from then on. What is registered for local use alone stays with its buffer, in the buffer's
 * slot, for as long as the buffer lives.
 *
 * Thread: any. One lock guards the whole book; it is never held while memory is pinned or freed, nor
 *         while services of the host are called that may wait.
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
/* Releases what is left, after the engine has ended; returns how many registrations could not be
 * (their buffers stay). */
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

/* Memory for a transfer's local side: that of an open region around it, else the buffer's slot, else a
 * new registration, which blocks. Each use is ended with bh_rdma_book_unuse(). Where the transport
 * needs no local memory, `*ret_use` is NULL and all is well. */
struct bh_rdma_use;
bh_status bh_rdma_book_use(struct bh_rdma_book *book, struct bh_buffer *buffer,
			   struct bh_rdma_use **ret_use, const struct bh_rdma_memory **ret_memory,
			   struct bh_rdma_fault *fault);
void bh_rdma_book_unuse(struct bh_rdma_book *book, struct bh_rdma_use *use);

/* The body of a thread of its own: all deregistration, which may block, runs there: that of closed
 * regions, and of buffers whose last reference went. Until `stop_fd` is readable; what is left then is
 * bh_rdma_book_free()'s. */
void bh_rdma_book_reap(struct bh_rdma_book *book, int stop_fd);

#endif
