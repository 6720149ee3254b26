/* SPDX-License-Identifier: BSD-3-Clause */
/* rdma_net - a network in memory for the engine's suite: some transports, links between them, and all
 * that goes wrong: delays, drops, refusals, access errors that flush the link, full queues, lost
 * completions, peers that are silent, that die and that come back as another instance.
 *
 * What happens is settled by the seed, on a clock that the test moves; or, with threads, by real time.
 * Like the real ones it is lax where they are: a write whose header was accepted lands though its
 * region is deregistered meanwhile, and what was under way when a link ended may still land.
 *
 * Thread: any; one lock guards the whole. */
#ifndef BH_TESTS_UNIT_RDMA_NET_H
#define BH_TESTS_UNIT_RDMA_NET_H

#include "plugins/rdma/transport.h"

struct net;
struct net_node;

struct net_options {
	uint64_t seed;
	uint64_t (*now_ns)(void);
	int64_t delay_ns; /* the mean of one way; from a tenth to twice as much */
	uint32_t max_message, max_outstanding, max_reads;
	bool names_guilty;	 /* as verbs does; software does not */
	bool strict_deregister;	 /* as verbs */
	uint32_t full_percent;	 /* posts and sends that find no room */
	uint32_t drop_per_mille; /* packets with which their link breaks */
	uint32_t lose_percent;	 /* of what a break should give back */
	uint32_t late_percent;	 /* of that, given back behind DOWN after all */
	uint32_t twice_percent;	 /* of DONE that come once more */
	/* Under the net's lock, whenever memory is read or written. `remote`: by a peer's request. */
	void (*touch)(void *user, const struct net_node *node, const void *data, uint64_t length,
		      bool written, bool remote);
	void *user;
};

struct net *net_new(const struct net_options *options);
void net_free(struct net *net);

/* A transport at address number `where`; none may be there already. */
struct net_node *net_node_new(struct net *net, uint32_t where);
struct bh_rdma_transport *net_transport(struct net_node *node);
struct bh_rdma_address net_address(uint32_t where);
/* Its links end: peers are told, or (`silent`) never hear of it again. Its engine must not run any more. */
void net_kill(struct net_node *node, bool silent);
/* Whoever connects there is not answered at all; links that are up go silent. */
void net_silence(struct net_node *node, bool silent);

/* `alone`: also where at most one request is posted, which is taken for that one's guilt when it happens
 * twice running; else once a net. */
void net_drop_links(struct net *net, struct net_node *a, struct net_node *b, bool alone);
int64_t net_next_ns(struct net *net); /* when a packet arrives; INT64_MAX: none is under way */
uint32_t net_violations(const struct net *net,
			const char **ret_last); /* of transport.h, by the engine */
/* What the links of `node` have posted now and have had at most. */
uint32_t net_outstanding(const struct net_node *node);
uint32_t net_most_outstanding(const struct net_node *node);
uint64_t net_connects(const struct net_node *node); /* attempts made by it so far */
uint64_t net_messages(const struct net_node *node); /* messages sent by it so far */
uint32_t net_links_up(const struct net_node *node);

#endif
