/* SPDX-License-Identifier: BSD-3-Clause */
/* engine - transfers between regions: links made on demand and kept, flow control, splitting, order of
 * errors, reconnection, revocation, and the end of it all. Knows transports only by transport.h.
 *
 * One thread, the one in bh_rdma_engine_run(), owns links and transfers; others hand it requests
 * through one queue under one lock, and wake it by an eventfd when it sleeps.
 *
 * What it promises of a transfer: exactly one done() call; when that has been called nothing reads or
 * writes its local memory any more (SUP-10); what a broken link gave back unfinished is done again on a
 * new one, one by one, so that the one that broke it fails and the others do not; a write may therefore
 * be carried out more than once, but never behind a done() that says 0. One that failed or was cancelled
 * may have been carried out in part, and what had left already may still arrive. */
#ifndef BH_PLUGINS_RDMA_ENGINE_H
#define BH_PLUGINS_RDMA_ENGINE_H

#include <stdint.h>

#include <bulkhead/plugin.h>

#include "host/core/list.h"
#include "plugins/rdma/timers.h"
#include "plugins/rdma/transport.h"

struct bh_rdma_engine;
struct bh_rdma_peer;

struct bh_rdma_part {
	uint64_t remote; /* from the descriptor's base */
	void *local;
	uint64_t length;		     /* 0 is fine: nothing to do */
	const struct bh_rdma_memory *memory; /* of `local`; NULL unless the transport needs it */
};

/* One task's transfer. The caller fills the upper part; storage is the caller's until done(). All parts
 * lie within the region: the caller has checked. */
struct bh_rdma_transfer {
	enum bh_rdma_op op;
	struct bh_rdma_descriptor target;
	const struct bh_rdma_part *parts;
	uint32_t n_parts;
	uint64_t id;	     /* for bh_rdma_engine_cancel() */
	int64_t deadline_ns; /* services->now_ns(); INT64_MAX: none */
	/* On the engine's thread, no lock held. `status`: 0; -EACCES: the peer refused: the region is
	 * closed, was never there, or does not allow this; -ESTALE: the peer is another process than
	 * the descriptor's; -EHOSTUNREACH, -ECONNREFUSED, -ETIMEDOUT, -ECONNRESET: no link, after
	 * the retries that the options allow; -EPROTO: another version, or another transport's
	 * descriptor; -ECANCELED: cancelled, past its deadline, or the engine ends; -ENOMEM; others:
	 * the transport's own.
	 * `fault` says what, with the provider's text; `failed`: which part, for its address and
	 * length. */
	void (*done)(struct bh_rdma_transfer *transfer, bh_status status,
		     const struct bh_rdma_fault *fault, uint32_t failed);
	void *user;

	/* The engine's; need not be set before. */
	struct bh_list in_ring;	  /* to be posted from, or the queue of what was submitted (M) */
	struct bh_list in_peer;	  /* all of a peer */
	struct bh_list in_cancel; /* M: to be cancelled */
	struct bh_list works;	  /* posted, or to be posted again */
	struct bh_rdma_transfer *next_id;
	struct bh_rdma_timer timer; /* its deadline; once it ends: how long that may take */
	struct bh_rdma_peer *peer;
	uint64_t bytes, bytes_left;
	uint64_t offset; /* of the next byte to be posted, within part `part` */
	uint32_t part, n_posted, n_lost, n_refused;
	uint32_t failed;
	bool ending;
	bh_status status;
	struct bh_rdma_fault fault;
};

/* What engines tell their owner; all on the engine's thread but for `now_ns`. Any may be NULL but now_ns. */
struct bh_rdma_engine_calls {
	void *user;
	uint64_t (*now_ns)(void);
	void (*log)(void *user, uint32_t level, const char *message, const struct bh_fact *facts,
		    uint32_t n_facts);
	/* Port down and up again; status as of BH_RDMA_HEALTH. */
	void (*health)(void *user, bh_status status, const struct bh_rdma_fault *fault);
	/* The counts are other ones than at the last call: before the thread sleeps, and every
	 * 100 ms while it does not. */
	void (*counted)(void *user);
};

struct bh_rdma_engine_options {
	int64_t connect_timeout_ns; /* of one attempt */
	uint32_t
		connect_retries; /* further attempts, each after twice the pause of the one before */
	int64_t retry_pause_ns;	 /* the first pause; at most 2 s in the end, and 20 % either way */
	int64_t abort_timeout_ns;  /* a posted transfer that should end is given so long before its
				     * link is cut */
	int64_t revoke_timeout_ns; /* peers are given so long to confirm; then their links are cut */
	int64_t idle_timeout_ns;   /* a link without work is closed after that; 0: kept */
	int64_t spin_ns;	   /* polls so long before it sleeps; INT64_MAX: always */
};

/* Atomic counters; read by anyone with relaxed order: each is a number of its own. */
struct bh_rdma_counts {
	uint64_t links, in_flight, queued;		   /* now: of transfers */
	uint64_t bytes_read, bytes_written, reads, writes; /* ended well */
	uint64_t errors, cancelled, reconnects, cut; /* `cut`: links ended by a timeout of ours */
	uint64_t links_in;			     /* now: made by peers */
};

bh_status bh_rdma_engine_new(struct bh_rdma_transport *transport, uint64_t instance,
			     const struct bh_rdma_engine_options *options,
			     const struct bh_rdma_engine_calls *calls,
			     struct bh_rdma_engine **ret_engine);
/* After run() has returned, or never ran. Every transfer has had its done() by then, but for those that
 * the transport never gave back even when their link was cut: they never have it, are counted in the
 * return value, and their storage and memory must stay (SUP-10). */
uint32_t bh_rdma_engine_free(struct bh_rdma_engine *engine);

/* The thread's body: until `stop_fd` is readable. Then: links cut, transfers done with -ECANCELED. */
void bh_rdma_engine_run(struct bh_rdma_engine *engine, int stop_fd);

/* Any thread, GIL or not; never blocks but for the queue's lock. -ESHUTDOWN: run() is over (or ends):
 * done() is not called. */
bh_status bh_rdma_engine_submit(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer);
/* One that is unknown or done is fine. */
void bh_rdma_engine_cancel(struct bh_rdma_engine *engine, uint64_t id);

/* After memory has been deregistered: done() is called when no peer's access that had begun before can
 * touch it any more: each peer with a link here has answered a message, or its link has been cut. On the
 * engine's thread; or at once on the caller's when run() is over (-ESHUTDOWN is returned: no links are
 * left, nothing can touch it). */
struct bh_rdma_revoke {
	void (*done)(struct bh_rdma_revoke *revoke);
	void *user;
	/* The engine's; need not be set before. */
	struct bh_list in_engine;
	struct bh_rdma_timer timer;
	uint64_t epoch;
	uint32_t n_waiting;
};
bh_status bh_rdma_engine_revoke(struct bh_rdma_engine *engine, struct bh_rdma_revoke *revoke);

void bh_rdma_engine_counts(const struct bh_rdma_engine *engine, struct bh_rdma_counts *ret_counts);

#endif
