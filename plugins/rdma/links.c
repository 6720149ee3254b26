/* SPDX-License-Identifier: BSD-3-Clause */
/* links - peers, the link to each of them, the links that they have here, and the first words on both.
 *
 * Thread: the engine's.
 * Owns:   peers and links. A peer goes when it has neither transfers nor a link; so does what is known
 *         of it, and the next transfer begins anew. */
#include "config.h"

#include "plugins/rdma/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the hello ----------------------------------------------------------------------------------- */

/* "BR", version, flags, seq of 4 bytes, then instance, expected and slot of 8 bytes each; little
 * endian. A request says who calls, whom it expects, which of the caller's links this is (slot) and
 * which attempt at it (seq); the answer says who is there, and repeats the rest. To expect the right
 * one is to hold a descriptor of its: nobody else gets a link, nor hears the instance in a refusal. */
#define HELLO_VERSION 1u
enum hello_flag {
	HELLO_STALE = 1,    /* rejected: another instance than the expected one is here */
	HELLO_VERSIONS = 2, /* rejected: the version is not spoken here */
	HELLO_BUSY = 4	    /* rejected: the engine ends, or has no memory, or links enough */
};

struct hello {
	uint8_t version, flags;
	uint32_t seq;
	uint64_t instance, expected, slot;
};

static void put(uint8_t *bytes, uint32_t n, uint64_t value)
{
	for (uint32_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *bytes, uint32_t n)
{
	uint64_t value = 0;

	for (uint32_t i = 0; i < n; i++)
		value |= (uint64_t)bytes[i] << (8 * i);
	return value;
}

static void hello_encode(const struct hello *hello, uint8_t bytes[BH_RDMA_HELLO_SIZE])
{
	bytes[0] = 'B';
	bytes[1] = 'R';
	bytes[2] = hello->version;
	bytes[3] = hello->flags;
	put(bytes + 4, 4, hello->seq);
	put(bytes + 8, 8, hello->instance);
	put(bytes + 16, 8, hello->expected);
	put(bytes + 24, 8, hello->slot);
}
static_assert(BH_RDMA_HELLO_SIZE == 32, "hello_encode fills it");

static bool hello_decode(const uint8_t bytes[BH_RDMA_HELLO_SIZE], struct hello *ret_hello)
{
	if (bytes[0] != 'B' || bytes[1] != 'R')
		return false;
	*ret_hello = (struct hello){
		.version = bytes[2],
		.flags = bytes[3],
		.seq = (uint32_t)get(bytes + 4, 4),
		.instance = get(bytes + 8, 8),
		.expected = get(bytes + 16, 8),
		.slot = get(bytes + 24, 8),
	};
	return true;
}

/* ---- peers --------------------------------------------------------------------------------------- */

static uint64_t address_hash(const struct bh_rdma_address *address)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (uint32_t i = 0; i < address->length && i < BH_RDMA_ADDRESS_MAX; i++)
		hash = (hash ^ address->bytes[i]) * UINT64_C(0x100000001b3);
	return hash;
}

static bool address_same(const struct bh_rdma_address *a, const struct bh_rdma_address *b)
{
	return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

static void peer_pause_over(void *owner, struct bh_rdma_timer *timer)
{
	bh_rdma_peer_ready(owner, bh_container_of(timer, struct bh_rdma_peer, timer));
}

struct bh_rdma_peer *bh_rdma_peer_get(struct bh_rdma_engine *engine,
				      const struct bh_rdma_address *address, uint64_t instance)
{
	struct bh_list *bucket = &engine->peers[address_hash(address) % N_BUCKETS];
	struct bh_rdma_peer *peer;

	for (struct bh_list *in = bucket->next; in != bucket; in = in->next) {
		peer = bh_container_of(in, struct bh_rdma_peer, in_bucket);
		if (peer->instance == instance && address_same(&peer->address, address))
			return peer;
	}
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->address = *address;
	peer->instance = instance;
	peer->timer.fire = peer_pause_over;
	bh_list_init(&peer->in_ready);
	bh_list_init(&peer->in_sweep);
	bh_list_init(&peer->transfers);
	bh_list_init(&peer->ring[0]);
	bh_list_init(&peer->ring[1]);
	bh_list_init(&peer->again);
	bh_list_init(&peer->suspects);
	bh_list_push_back(bucket, &peer->in_bucket);
	return peer;
}

void bh_rdma_peer_ready(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer)
{
	if (bh_list_empty(&peer->in_ready))
		bh_list_push_back(&engine->ready, &peer->in_ready);
}

void bh_rdma_peer_sweep(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer)
{
	if (bh_list_empty(&peer->in_sweep))
		bh_list_push_back(&engine->sweep, &peer->in_sweep);
}

static void peer_free(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer)
{
	bh_rdma_timers_clear(&engine->timers, &peer->timer);
	bh_list_remove(&peer->in_bucket);
	bh_list_remove(&peer->in_ready);
	bh_list_remove(&peer->in_sweep);
	assert(bh_list_empty(&peer->transfers));
	free(peer);
}

/* At the end of a turn, when nobody holds a peer any more. */
void bh_rdma_peers_tend(struct bh_rdma_engine *engine)
{
	struct bh_list *in;

	while ((in = bh_list_pop_front(&engine->sweep))) {
		struct bh_rdma_peer *peer = bh_container_of(in, struct bh_rdma_peer, in_sweep);
		struct link *link = peer->link;

		if (!bh_list_empty(&peer->transfers))
			continue;
		if (!link)
			peer_free(engine, peer);
		else if (link->state == LINK_UP && !link->broken &&
			 engine->options.idle_timeout_ns > 0)
			bh_rdma_timers_set(
				&engine->timers, &link->timer,
				bh_rdma_engine_after(engine, engine->options.idle_timeout_ns));
	}
}

/* ---- links --------------------------------------------------------------------------------------- */

static struct link **handle_bucket(struct bh_rdma_engine *engine, const struct bh_rdma_link *handle)
{
	return &engine->by_handle[(((uintptr_t)handle >> 4) * UINT64_C(0x9e3779b97f4a7c15)) >> 56];
}
static_assert(N_HANDLES == 1u << 8, "handle_bucket takes 8 bits");

struct link *bh_rdma_link_find(struct bh_rdma_engine *engine, const struct bh_rdma_link *handle)
{
	struct link *link = *handle_bucket(engine, handle);

	while (link && link->handle != handle)
		link = link->next_handle;
	return link;
}

static void link_free(struct bh_rdma_engine *engine, struct link *link)
{
	struct link **at = handle_bucket(engine, link->handle);

	while (*at && *at != link)
		at = &(*at)->next_handle;
	if (*at)
		*at = link->next_handle;
	engine->n_links_in -= !link->outbound;
	bh_rdma_timers_clear(&engine->timers, &link->timer);
	bh_list_remove(&link->in_engine);
	bh_list_remove(&link->in_talk);
	free(link);
}

static void link_known(struct bh_rdma_engine *engine, struct link *link,
		       struct bh_rdma_link *handle)
{
	struct link **bucket = handle_bucket(engine, handle);

	link->handle = handle;
	link->next_handle = *bucket;
	*bucket = link;
	bh_list_push_back(&engine->links, &link->in_engine);
}

static void link_uncount(struct bh_rdma_engine *engine, struct link *link)
{
	if (link->state == LINK_UP)
		count(link->outbound ? &engine->counts.links : &engine->counts.links_in, -1);
}

/* The first words on why are kept. */
static void link_blame(struct link *link, bh_status status, const struct bh_rdma_fault *fault)
{
	if (link->status)
		return;
	link->status = status;
	if (fault)
		link->fault = *fault;
}

void bh_rdma_link_end(struct bh_rdma_engine *engine, struct link *link)
{
	if (link->state == LINK_ENDING)
		return;
	link_uncount(engine, link);
	link->state = LINK_ENDING;
	link->ours = !link->broken;
	link->broken = true;
	engine->transport->ops->disconnect(engine->transport, link->handle);
	bh_rdma_timers_set(
		&engine->timers, &link->timer,
		bh_rdma_engine_after(engine, engine->options.abort_timeout_ns + GUARD_NS));
	if (!link->outbound)
		bh_rdma_revoke_gone(engine, link);
}

void bh_rdma_link_cut(struct bh_rdma_engine *engine, struct link *link, const char *why)
{
	if (link->state == LINK_ENDING)
		return;
	count(&engine->counts.cut, 1);
	bh_rdma_engine_log(engine, BH_LOG_WARNING, why, &link->address, 0, NULL);
	bh_rdma_link_end(engine, link);
}

void bh_rdma_link_broke(struct bh_rdma_engine *engine, struct link *link)
{
	if (link->broken)
		return;
	link->broken = true;
	bh_rdma_timers_set(&engine->timers, &link->timer,
			   bh_rdma_engine_after(engine, engine->options.abort_timeout_ns));
}

void bh_rdma_link_say(struct bh_rdma_engine *engine, struct link *link, uint64_t epoch)
{
	link->say = epoch;
	if (link->state == LINK_UP && bh_list_empty(&link->in_talk))
		bh_list_push_back(&engine->talking, &link->in_talk);
}

void bh_rdma_links_talk(struct bh_rdma_engine *engine)
{
	struct bh_list now, *in;
	uint8_t message[BH_RDMA_MESSAGE_SIZE];

	list_move(&engine->talking, &now);
	while ((in = bh_list_pop_front(&now))) {
		struct link *link = bh_container_of(in, struct link, in_talk);
		bh_status status;

		if (link->state != LINK_UP || link->broken)
			continue;
		bh_rdma_message_encode(message, link->outbound, link->say);
		status = engine->transport->ops->send(engine->transport, link->handle, message);
		if (status == 0) {
			link->said = link->say;
		} else if (status == -EAGAIN) {
			bh_list_push_back(&engine->talking, &link->in_talk);
			engine->retry = true;
		} else {
			link_blame(link, status, NULL);
			bh_rdma_link_broke(engine, link);
		}
	}
}

/* ---- our own links: attempts --------------------------------------------------------------------- */

static int64_t jitter(struct bh_rdma_engine *engine, int64_t ns) /* 20 % either way */
{
	engine->random ^= engine->random << 13;
	engine->random ^= engine->random >> 7;
	engine->random ^= engine->random << 17;
	return ns - ns / 5 + (int64_t)(engine->random % (uint64_t)(ns / 5 * 2 + 1));
}

static void peer_pause(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer, uint32_t n_before)
{
	int64_t pause = engine->options.retry_pause_ns;

	while (n_before-- > 0 && pause < PAUSE_MAX_NS)
		pause *= 2;
	if (pause > PAUSE_MAX_NS)
		pause = PAUSE_MAX_NS;
	bh_rdma_timers_set(&engine->timers, &peer->timer,
			   bh_rdma_engine_after(engine, jitter(engine, pause)));
}

static void peer_cause(struct bh_rdma_peer *peer, bh_status status,
		       const struct bh_rdma_fault *fault)
{
	peer->status = status < 0 ? status : -ECONNRESET;
	peer->fault = fault ? *fault : (struct bh_rdma_fault){ 0 };
	if (!peer->fault.id[0])
		bh_rdma_fault(&peer->fault, peer->status, "rdma.connect", "no link to %s: %s",
			      bh_rdma_address_text(&peer->address).text, strerror(-peer->status));
}

static void attempt_failed(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer,
			   bh_status status, const struct bh_rdma_fault *fault)
{
	peer_cause(peer, status < 0 ? status : -ECONNREFUSED, fault);
	bh_rdma_peer_sweep(engine, peer);
	if (peer->n_attempts++ < engine->options.connect_retries) {
		peer_pause(engine, peer, peer->n_attempts - 1);
		return;
	}
	peer->n_attempts = 0;
	if (!bh_list_empty(&peer->transfers))
		bh_rdma_engine_log(engine, BH_LOG_WARNING, "rdma: a peer cannot be reached",
				   &peer->address, peer->status, &peer->fault);
	bh_rdma_peer_fail(engine, peer, peer->status, &peer->fault);
}

static void link_late(void *owner, struct bh_rdma_timer *timer);

static struct link *link_new(struct bh_rdma_engine *engine, const struct bh_rdma_address *address)
{
	struct link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->address = *address;
	link->timer.fire = link_late;
	link->born = engine->epoch;
	bh_list_init(&link->in_engine);
	bh_list_init(&link->in_talk);
	bh_list_init(&link->posted);
	bh_list_init(&link->flushed);
	return link;
}

void bh_rdma_peer_connect(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer)
{
	struct link *link = link_new(engine, &peer->address);
	struct hello hello = {
		.version = HELLO_VERSION,
		.seq = ++engine->seq,
		.instance = engine->instance,
		.expected = peer->instance,
		.slot = address_hash(&peer->address),
	};
	uint8_t bytes[BH_RDMA_HELLO_SIZE];
	struct bh_rdma_fault fault = { 0 };
	struct bh_rdma_link *handle = NULL;
	bh_status status = -ENOMEM;

	hello_encode(&hello, bytes);
	if (link)
		status = engine->transport->ops->connect(engine->transport, &peer->address, bytes,
							 &handle, &fault);
	if (status < 0) {
		free(link);
		attempt_failed(engine, peer, status, &fault);
		return;
	}
	link->outbound = true;
	link->peer = peer;
	link->state = LINK_CONNECTING;
	link_known(engine, link, handle);
	peer->link = link;
	bh_rdma_timers_set(
		&engine->timers, &link->timer,
		bh_rdma_engine_after(engine, engine->options.connect_timeout_ns + GUARD_NS));
}

/* Another instance than the one that `instance` names cannot be at its address any more. */
static void peers_replaced(struct bh_rdma_engine *engine, const struct bh_rdma_address *address,
			   uint64_t instance)
{
	struct bh_list *bucket = &engine->peers[address_hash(address) % N_BUCKETS];

	for (struct bh_list *in = bucket->next; in != bucket; in = in->next) {
		struct bh_rdma_peer *peer = bh_container_of(in, struct bh_rdma_peer, in_bucket);

		if (peer->link && peer->link->state == LINK_UP &&
		    peer->link->instance != instance && address_same(&peer->address, address))
			bh_rdma_link_end(engine, peer->link);
	}
}

static void peer_stale(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer)
{
	struct bh_rdma_fault fault = { 0 };

	bh_rdma_fault(&fault, -ESTALE, "rdma.stale",
		      "%s is another process now than the one that made the descriptor; ask for a "
		      "new descriptor",
		      bh_rdma_address_text(&peer->address).text);
	peer->n_attempts = 0;
	bh_rdma_peer_fail(engine, peer, -ESTALE, &fault);
}

static void peer_foreign(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer, uint32_t version)
{
	struct bh_rdma_fault fault = { 0 };

	bh_rdma_fault(&fault, -EPROTO, "rdma.version",
		      "%s speaks version %u of the protocol, this one %u: both sides need the same "
		      "release",
		      bh_rdma_address_text(&peer->address).text, version, HELLO_VERSION);
	peer->n_attempts = 0;
	bh_rdma_peer_fail(engine, peer, -EPROTO, &fault);
}

static void link_up(struct bh_rdma_engine *engine, struct link *link, const uint8_t *bytes)
{
	struct bh_rdma_peer *peer = link->peer;
	struct hello hello = { 0 };
	bool hers = hello_decode(bytes, &hello);

	if (link->state != LINK_CONNECTING && link->state != LINK_ACCEPTING)
		return;
	bh_rdma_timers_clear(&engine->timers, &link->timer);
	link->state = LINK_UP;
	link->was_up = true;
	count(link->outbound ? &engine->counts.links : &engine->counts.links_in, 1);
	if (!link->outbound) {
		if (link->say > link->said)
			bh_rdma_link_say(engine, link, link->say);
		return;
	}
	link->instance = hello.instance;
	peer->n_attempts = 0;
	if (!hers || hello.version != HELLO_VERSION) {
		peer_foreign(engine, peer, hello.version);
		bh_rdma_link_end(engine, link);
	} else if (hello.instance != peer->instance) {
		peer_stale(engine, peer);
		bh_rdma_link_end(engine, link);
	}
	if (hers)
		peers_replaced(engine, &peer->address, hello.instance);
	if (peer->once_linked)
		count(&engine->counts.reconnects, 1);
	peer->once_linked = true;
	bh_rdma_peer_ready(engine, peer);
	bh_rdma_peer_sweep(engine, peer);
}

/* An attempt has ended without a link. */
static void attempt_over(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer,
			 const struct bh_rdma_event *event)
{
	struct hello hello;

	if (event->kind != BH_RDMA_REFUSED || !hello_decode(event->bytes, &hello)) {
		attempt_failed(engine, peer, event->status, event->fault);
		return;
	}
	if (hello.flags & HELLO_STALE) {
		peer_stale(engine, peer);
	} else if (hello.flags & HELLO_VERSIONS || hello.version != HELLO_VERSION) {
		peer_foreign(engine, peer, hello.version);
	} else {
		attempt_failed(engine, peer, -ECONNREFUSED, event->fault);
	}
	bh_rdma_peer_sweep(engine, peer);
}

/* A link that was up has ended. One end may be chance; many, with nothing done in between, are not. */
static void break_over(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer, struct link *link)
{
	bh_rdma_peer_sweep(engine, peer);
	peer_cause(peer, link->status, &link->fault);
	bh_rdma_works_return(engine, peer, link);
	if (link->ours) {
		bh_rdma_peer_ready(engine, peer);
		return;
	}
	if (++peer->n_breaks > BREAKS_MAX) {
		peer->n_breaks = 0;
		bh_rdma_peer_fail(engine, peer, peer->status, &peer->fault);
	} else if (peer->n_breaks > 1) {
		peer_pause(engine, peer, peer->n_breaks - 2);
	} else {
		bh_rdma_peer_ready(engine, peer);
	}
}

/* What a peer has to do with `link` is over; `event` NULL: the transport has never said so. */
static void link_over(struct bh_rdma_engine *engine, struct link *link,
		      const struct bh_rdma_event *event)
{
	struct bh_rdma_peer *peer = link->peer;

	link_uncount(engine, link);
	link->state = LINK_ENDING;
	link->broken = true;
	if (event)
		link_blame(link, event->status, event->fault);
	bh_rdma_works_lose(engine, link);
	if (!link->outbound)
		bh_rdma_revoke_gone(engine, link);
	if (!peer)
		return;
	link->peer = NULL;
	peer->link = NULL;
	if (link->was_up)
		break_over(engine, peer, link);
	else if (event && !link->ours)
		attempt_over(engine, peer, event);
	else
		attempt_failed(engine, peer, -ETIMEDOUT, link->status ? &link->fault : NULL);
}

static void link_late(void *owner, struct bh_rdma_timer *timer)
{
	struct bh_rdma_engine *engine = owner;
	struct link *link = bh_container_of(timer, struct link, timer);

	switch (link->state) {
	case LINK_CONNECTING:
	case LINK_ACCEPTING:
		bh_rdma_link_cut(engine, link, "rdma: a connection has not come up in time");
		return;
	case LINK_UP:
		if (link->broken)
			bh_rdma_link_cut(engine, link, "rdma: a broken link has not ended in time");
		else /* idle */
			bh_rdma_link_end(engine, link);
		return;
	case LINK_ENDING:
		/* It stays, for what may still come; its peer goes on without it. */
		link_over(engine, link, NULL);
		return;
	}
	bh_unreachable();
}

/* ---- links that peers make ----------------------------------------------------------------------- */

static void request_reject(struct bh_rdma_engine *engine, struct bh_rdma_link *handle,
			   struct hello hello, uint8_t flags)
{
	uint8_t bytes[BH_RDMA_HELLO_SIZE];

	hello.version = HELLO_VERSION;
	hello.flags = flags;
	hello.instance = 0;
	hello_encode(&hello, bytes);
	engine->transport->ops->reject(engine->transport, handle, bytes);
}

/* A peer that makes a link anew has given the old one up, and may have posted what it had there on the
 * new one, and been told that it is done. What is left of the old one must not be carried out behind
 * that: the old one ends first. false: `hello` itself is the older one. */
static bool request_replaces(struct bh_rdma_engine *engine, const struct hello *hello)
{
	struct bh_list *in = engine->links.next;

	while (in != &engine->links) {
		struct link *link = bh_container_of(in, struct link, in_engine);

		in = in->next;
		if (link->outbound || link->state == LINK_ENDING ||
		    link->instance != hello->instance || link->expected != hello->expected ||
		    link->slot != hello->slot)
			continue;
		if ((int32_t)(hello->seq - link->seq) <= 0)
			return false;
		bh_rdma_link_end(engine, link);
	}
	return true;
}

static void link_request(struct bh_rdma_engine *engine, const struct bh_rdma_event *event)
{
	struct hello hello = { 0 };
	struct link *link = NULL;
	uint8_t bytes[BH_RDMA_HELLO_SIZE];
	struct bh_rdma_fault fault = { 0 };
	bh_status status;

	if (!hello_decode(event->bytes, &hello) || hello.version != HELLO_VERSION) {
		request_reject(engine, event->link, hello, HELLO_VERSIONS);
		return;
	}
	if (hello.expected != engine->instance) {
		request_reject(engine, event->link, hello, HELLO_STALE);
		return;
	}
	if (!engine->ending && engine->n_links_in < LINKS_IN_MAX)
		link = link_new(engine, &event->peer);
	if (!link || !request_replaces(engine, &hello)) {
		free(link);
		request_reject(engine, event->link, hello, HELLO_BUSY);
		return;
	}
	link->state = LINK_ACCEPTING;
	link->instance = hello.instance;
	link->expected = hello.expected;
	link->slot = hello.slot;
	link->seq = hello.seq;
	hello.instance = engine->instance;
	hello.flags = 0;
	hello_encode(&hello, bytes);
	status = engine->transport->ops->accept(engine->transport, event->link, bytes, &fault);
	if (status < 0) {
		bh_rdma_engine_log(engine, BH_LOG_INFO, "rdma: a connection could not be accepted",
				   &event->peer, status, &fault);
		free(link);
		request_reject(engine, event->link, hello, HELLO_BUSY);
		return;
	}
	link_known(engine, link, event->link);
	engine->n_links_in++;
	bh_rdma_timers_set(
		&engine->timers, &link->timer,
		bh_rdma_engine_after(engine, engine->options.connect_timeout_ns + GUARD_NS));
}

/* ---- events -------------------------------------------------------------------------------------- */

void bh_rdma_link_event(struct bh_rdma_engine *engine, const struct bh_rdma_event *event)
{
	struct link *link;

	if (event->kind == BH_RDMA_REQUEST) {
		link_request(engine, event);
		return;
	}
	link = bh_rdma_link_find(engine, event->link);
	if (!link)
		return;
	if (event->kind == BH_RDMA_UP) {
		link_up(engine, link, event->bytes);
	} else if (event->kind == BH_RDMA_MESSAGE) {
		if (link->state == LINK_UP)
			bh_rdma_message_event(engine, link, event->bytes);
	} else {
		link_over(engine, link, event);
		engine->transport->ops->release(engine->transport, event->link);
		link_free(engine, link);
	}
}

/* What was never said to be over is the transport's to close. */
void bh_rdma_links_free(struct bh_rdma_engine *engine)
{
	struct bh_list *in;

	while ((in = bh_list_pop_front(&engine->links))) {
		struct link *link = bh_container_of(in, struct link, in_engine);

		link_free(engine, link);
	}
	for (uint32_t i = 0; i < N_BUCKETS; i++)
		while ((in = bh_list_pop_front(&engine->peers[i]))) {
			struct bh_rdma_peer *peer =
				bh_container_of(in, struct bh_rdma_peer, in_bucket);

			bh_list_init(&peer->transfers); /* lost ones; counted */
			peer_free(engine, peer);
		}
}
