/* SPDX-License-Identifier: BSD-3-Clause */
/* engine_private - what the parts of the engine share: engine.c (requests, the loop, sleep), links.c
 * (peers and their links), transfers.c (posting, completions, who is to blame), revoke.c.
 *
 * Thread: the engine's, but for the fields marked M.
 *
 * A peer is an address and an instance. Two instances that have lived at one address are two peers, so
 * that an old descriptor costs its own transfers a refusal and others nothing. A peer has at most one
 * link of ours; a new one is begun only when the one before is over. */
#ifndef BH_PLUGINS_RDMA_ENGINE_PRIVATE_H
#define BH_PLUGINS_RDMA_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "plugins/rdma/engine.h"

#define CHUNK_MAX (UINT32_C(1) << 20) /* bytes posted at once: what another transfer may wait for */
#define WINDOW_MAX (UINT64_C(8) << 20) /* bytes outstanding on a link, or one work request */
#define PAUSE_MAX_NS INT64_C(2000000000)
#define BREAKS_MAX 8		    /* of a link, one after another, with nothing done between */
#define SOLO_MAX 2		    /* breaks of a link by one request that was alone on it */
#define GUARD_NS INT64_C(500000000) /* a transport may be late by so much */
#define LINKS_IN_MAX 4096u /* links that peers have here: each costs a queue, or a descriptor */
#define RETRY_NS INT64_C(1000000) /* what found a transport full, and nothing will tell when not */

enum work_state {
	WORK_FREE,
	WORK_POSTED,  /* in link->posted */
	WORK_FLUSHED, /* in link->flushed: given back, the link's end will show what to make of it */
	WORK_AGAIN,   /* in peer->again */
	WORK_SUSPECT, /* in peer->suspects: may have been what broke a link */
	WORK_LOST     /* in engine->lost: the link is over, and this was never given back */
};

/* One work request, from its first posting to its success. */
struct work {
	struct bh_list in;
	struct bh_list of; /* transfer->works */
	struct bh_rdma_transfer *transfer;
	struct link *link; /* POSTED: where */
	uint64_t offset;   /* within the part */
	uint32_t part, length;
	uint32_t index, generation; /* its cookie */
	enum work_state state;
	uint8_t n_solo; /* links broken while this was alone on them */
	bool suspect;
};

enum link_state { LINK_CONNECTING, LINK_ACCEPTING, LINK_UP, LINK_ENDING };

struct link {
	struct bh_list in_engine, in_talk;
	struct link *next_handle;
	struct bh_rdma_link *handle;
	struct bh_rdma_address address;
	struct bh_rdma_peer *peer; /* outbound: until the link is over */
	enum link_state state;
	bool outbound;
	bool was_up;
	bool broken; /* nothing is posted any more; its end is near */
	bool ours;   /* ended by us while it was well: nobody's request is a suspect */
	bool known;  /* what broke it has been named */
	bool full;
	struct bh_rdma_timer timer; /* guards what the transport promised, or idleness */
	struct bh_list posted, flushed;
	uint32_t n_outstanding, n_reads, n_flushed;
	uint32_t n_company; /* posted since nothing was outstanding: 1: alone from first to last */
	uint64_t n_bytes;
	bh_status status; /* the first words about why */
	struct bh_rdma_fault fault;
	/* Who is there. */
	uint64_t instance, expected, slot;
	uint32_t seq;
	/* Messages: at most one of each kind waits, since a later epoch covers those before. */
	uint64_t born; /* inbound: the epoch when it was accepted */
	uint64_t say, said, acked;
};

struct bh_rdma_peer {
	struct bh_list in_bucket, in_ready, in_sweep;
	struct bh_rdma_address address;
	uint64_t instance; /* that descriptors expect */
	struct bh_list transfers;
	struct bh_list ring[2]; /* reads, writes: those with something to post, in turn */
	uint32_t turn;
	struct bh_list again, suspects;
	struct link *link;
	struct bh_rdma_timer timer; /* the pause before the next attempt */
	uint32_t n_attempts;	    /* failed, one after another */
	uint32_t n_breaks;	    /* of links, one after another, with nothing done between */
	bool once_linked;
	bh_status status; /* the last failure */
	struct bh_rdma_fault fault;
};

#define N_IDS 4096u
#define N_BUCKETS 256u
#define N_HANDLES 256u
#define WORK_BLOCK 256u

struct counters {
	_Atomic uint64_t links, in_flight, queued, bytes_read, bytes_written, reads, writes, errors,
		cancelled, reconnects, cut, links_in;
};

struct bh_rdma_engine {
	struct bh_rdma_transport *transport; /* I */
	uint64_t instance;		     /* I */
	struct bh_rdma_engine_options options;
	struct bh_rdma_engine_calls calls;
	int wake_fd; /* I */

	/* M. The lock orders the queue and `asleep`: the engine sets it and looks at the queue in one
	 * critical section before it sleeps, a submitter looks at it in the one in which it adds. So
	 * either the engine sees the addition, or the submitter sees the sleeper and wakes it. */
	pthread_mutex_t lock;
	struct bh_list submitted, cancels, revokes_in;
	struct bh_rdma_transfer *by_id[N_IDS];
	bool asleep;
	bool closed; /* submissions are refused */
	bool over;   /* no links are left, or ever will be */

	/* The engine's thread alone. */
	int64_t now_ns;
	struct bh_rdma_timers timers;
	struct bh_list peers[N_BUCKETS];
	struct bh_list ready, sweep;
	struct bh_list links;
	uint32_t n_links_in; /* of them those that peers have made */
	struct link *by_handle[N_HANDLES];
	struct work **blocks;
	uint32_t n_blocks;
	struct bh_list free_works, lost;
	uint32_t n_lost; /* transfers */
	uint32_t n_transfers;
	struct bh_list revokes; /* in the order of epochs */
	uint64_t epoch;
	struct bh_list talking; /* links with something to say */
	bool retry;		/* something found the transport full */
	bool ending;
	int64_t ending_until_ns;
	uint32_t seq;
	uint64_t random;
	uint64_t n_strays; /* DONE for what was not posted */
	struct counters counts;
};

static inline void list_move(struct bh_list *from, struct bh_list *to) /* `to`: as if new */
{
	bh_list_init(to);
	if (bh_list_empty(from))
		return;
	*to = *from;
	to->next->prev = to->prev->next = to;
	bh_list_init(from);
}

static inline void count(_Atomic uint64_t *counter, int64_t by)
{
	atomic_fetch_add_explicit(counter, (uint64_t)by, memory_order_relaxed);
}

/* engine.c */
bool bh_rdma_engine_turn(struct bh_rdma_engine *engine); /* true: something happened */
int64_t
bh_rdma_engine_next_ns(const struct bh_rdma_engine *engine); /* when to turn again at the latest */
void bh_rdma_engine_end(struct bh_rdma_engine *engine);	     /* begins the end */
bool bh_rdma_engine_ended(struct bh_rdma_engine *engine);
void bh_rdma_engine_log(struct bh_rdma_engine *engine, uint32_t level, const char *message,
			const struct bh_rdma_address *address, bh_status status,
			const struct bh_rdma_fault *fault);
void bh_rdma_engine_forget(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer);
int64_t bh_rdma_engine_after(const struct bh_rdma_engine *engine, int64_t ns);

/* links.c */
struct bh_rdma_peer *bh_rdma_peer_get(struct bh_rdma_engine *engine,
				      const struct bh_rdma_address *address,
				      uint64_t instance); /* NULL: no memory */
void bh_rdma_peer_ready(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer);
void bh_rdma_peer_sweep(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer);
void bh_rdma_peers_tend(struct bh_rdma_engine *engine);
void bh_rdma_peer_connect(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer);
void bh_rdma_link_say(struct bh_rdma_engine *engine, struct link *link, uint64_t epoch);
void bh_rdma_link_event(struct bh_rdma_engine *engine, const struct bh_rdma_event *event);
struct link *bh_rdma_link_find(struct bh_rdma_engine *engine, const struct bh_rdma_link *handle);
/* Nothing more is posted; when its end does not come by itself, it is cut. */
void bh_rdma_link_broke(struct bh_rdma_engine *engine, struct link *link);
void bh_rdma_link_cut(struct bh_rdma_engine *engine, struct link *link, const char *why);
void bh_rdma_link_end(struct bh_rdma_engine *engine, struct link *link); /* disconnects */
void bh_rdma_links_free(struct bh_rdma_engine *engine);
void bh_rdma_links_talk(struct bh_rdma_engine *engine);

/* transfers.c */
void bh_rdma_transfer_begin(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer);
void bh_rdma_transfer_fail(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer,
			   bh_status status, const struct bh_rdma_fault *fault, uint32_t part);
void bh_rdma_transfer_cancel(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer);
void bh_rdma_peer_fail(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer, bh_status status,
		       const struct bh_rdma_fault *fault);
void bh_rdma_peer_pump(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer);
void bh_rdma_work_done(struct bh_rdma_engine *engine, const struct bh_rdma_event *event);
/* A link of `peer` that was up is over: who is to blame, and what is done again. */
void bh_rdma_works_return(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer,
			  struct link *link);
void bh_rdma_works_lose(struct bh_rdma_engine *engine, struct link *link);
void bh_rdma_works_free(struct bh_rdma_engine *engine);

/* revoke.c */
void bh_rdma_revoke_begin(struct bh_rdma_engine *engine, struct bh_list *batch);
void bh_rdma_revoke_acked(struct bh_rdma_engine *engine, struct link *link, uint64_t epoch);
void bh_rdma_revoke_gone(struct bh_rdma_engine *engine, struct link *link);
void bh_rdma_message_encode(uint8_t bytes[BH_RDMA_MESSAGE_SIZE], bool answer, uint64_t epoch);
void bh_rdma_message_event(struct bh_rdma_engine *engine, struct link *link, const uint8_t *bytes);

#endif
