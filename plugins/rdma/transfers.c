/* SPDX-License-Identifier: BSD-3-Clause */
/* transfers - from submission to done(): turns, chunks, what comes back, and who broke a link.
 *
 * A transfer is posted in chunks, one at a time in turn with the other transfers of its peer. What a
 * link that broke had not done is posted again. Where nothing says what broke it, each of those requests
 * is a suspect: they are posted one by one with nothing beside, so that a link that breaks again names
 * the one that was on it. Breaking SOLO_MAX links that way is taken for proof; once may be chance.
 *
 * Thread: the engine's.
 * Owns:   the work requests. Keeps: SUP-10: no done() while anything of a transfer may be posted. */
#include "config.h"

#include "plugins/rdma/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- work requests ------------------------------------------------------------------------------- */

static bool works_grow(struct bh_rdma_engine *engine)
{
	struct work **blocks = reallocarray(engine->blocks, engine->n_blocks + 1, sizeof(*blocks));
	struct work *block;

	if (!blocks)
		return false;
	engine->blocks = blocks;
	block = calloc(WORK_BLOCK, sizeof(*block));
	if (!block)
		return false;
	for (uint32_t i = 0; i < WORK_BLOCK; i++) {
		block[i].index = engine->n_blocks * WORK_BLOCK + i;
		bh_list_init(&block[i].of);
		bh_list_push_back(&engine->free_works, &block[i].in);
	}
	blocks[engine->n_blocks++] = block;
	return true;
}

static struct work *work_new(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer)
{
	struct work *work;

	if (bh_list_empty(&engine->free_works) && !works_grow(engine))
		return NULL;
	work = bh_container_of(bh_list_pop_front(&engine->free_works), struct work, in);
	work->transfer = transfer;
	work->n_solo = 0;
	work->suspect = false;
	bh_list_push_back(&transfer->works, &work->of);
	return work;
}

static void work_free(struct bh_rdma_engine *engine, struct work *work)
{
	bh_list_remove(&work->in);
	bh_list_remove(&work->of);
	work->state = WORK_FREE;
	work->transfer = NULL;
	work->link = NULL;
	work->generation++; /* a second DONE for it is a stray */
	bh_list_push_back(&engine->free_works, &work->in);
}

static uint64_t work_cookie(const struct work *work)
{
	return (uint64_t)work->generation << 32 | work->index;
}

static struct work *work_find(struct bh_rdma_engine *engine, uint64_t cookie)
{
	uint32_t index = (uint32_t)cookie;
	struct work *work;

	if (index / WORK_BLOCK >= engine->n_blocks)
		return NULL;
	work = &engine->blocks[index / WORK_BLOCK][index % WORK_BLOCK];
	return work->generation == (uint32_t)(cookie >> 32) ? work : NULL;
}

void bh_rdma_works_free(struct bh_rdma_engine *engine)
{
	for (uint32_t i = 0; i < engine->n_blocks; i++)
		free(engine->blocks[i]);
	free(engine->blocks);
}

/* ---- the end of a transfer ----------------------------------------------------------------------- */

static bool is_read(const struct bh_rdma_transfer *transfer)
{
	return transfer->op == BH_RDMA_OP_READ;
}

static void transfer_count(struct bh_rdma_engine *engine, const struct bh_rdma_transfer *transfer)
{
	struct counters *counts = &engine->counts;

	if (transfer->status == -ECANCELED) {
		count(&counts->cancelled, 1);
	} else if (transfer->status) {
		count(&counts->errors, 1);
	} else if (is_read(transfer)) {
		count(&counts->reads, 1);
		count(&counts->bytes_read, (int64_t)transfer->bytes);
	} else {
		count(&counts->writes, 1);
		count(&counts->bytes_written, (int64_t)transfer->bytes);
	}
}

/* Nothing of it is posted any more; from done() on it is its owner's. */
static void transfer_finish(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer)
{
	struct bh_rdma_peer *peer = transfer->peer;

	assert(transfer->n_posted == 0 && bh_list_empty(&transfer->works)); /* SUP-10 */
	if (transfer->bytes_left == 0) /* what came too late to stop it is well all the same */
		transfer->status = 0;
	bh_rdma_timers_clear(&engine->timers, &transfer->timer);
	bh_list_remove(&transfer->in_ring);
	bh_list_remove(&transfer->in_peer);
	bh_rdma_engine_forget(engine, transfer);
	engine->n_transfers--;
	count(&engine->counts.queued, -1);
	transfer_count(engine, transfer);
	if (peer)
		bh_rdma_peer_sweep(engine, peer);
	transfer->done(transfer, transfer->status, transfer->status ? &transfer->fault : NULL,
		       transfer->failed);
}

static void transfer_settle(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer)
{
	if (transfer->n_posted == 0 && (transfer->ending || transfer->bytes_left == 0))
		transfer_finish(engine, transfer);
}

static void transfer_unposted(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer)
{
	if (--transfer->n_posted == 0) {
		count(&engine->counts.in_flight, -1);
		count(&engine->counts.queued, 1);
	}
}

/* What was posted of a transfer that should end has not come back. */
static void transfer_late(void *owner, struct bh_rdma_timer *timer)
{
	struct bh_rdma_engine *engine = owner;
	struct bh_rdma_transfer *transfer = bh_container_of(timer, struct bh_rdma_transfer, timer);

	if (transfer->peer->link && transfer->n_posted > transfer->n_lost)
		bh_rdma_link_cut(
			engine, transfer->peer->link,
			"rdma: a peer has not finished what was cancelled: its link is cut");
}

void bh_rdma_transfer_fail(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer,
			   bh_status status, const struct bh_rdma_fault *fault, uint32_t part)
{
	struct bh_list *in = transfer->works.next;

	if (transfer->ending)
		return;
	transfer->ending = true;
	transfer->status = status;
	transfer->failed = part < transfer->n_parts ? part : transfer->n_parts - 1;
	transfer->fault = *fault;
	bh_list_remove(&transfer->in_ring);
	while (in != &transfer->works) {
		struct work *work = bh_container_of(in, struct work, of);

		in = in->next;
		if (work->state != WORK_POSTED && work->state != WORK_LOST)
			work_free(engine, work);
	}
	if (transfer->peer)
		bh_rdma_peer_ready(engine, transfer->peer); /* it may have kept others waiting */
	transfer->timer.fire = transfer_late;
	if (transfer->n_posted > 0)
		bh_rdma_timers_set(&engine->timers, &transfer->timer,
				   bh_rdma_engine_after(engine, engine->options.abort_timeout_ns));
	transfer_settle(engine, transfer);
}

static const char *op_name(const struct bh_rdma_transfer *transfer)
{
	return is_read(transfer) ? "read" : "write";
}

void bh_rdma_transfer_cancel(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer)
{
	struct bh_rdma_fault fault = { 0 };

	bh_rdma_fault(&fault, -ECANCELED, "rdma.cancelled",
		      "the %s was cancelled with %llu of %llu bytes done", op_name(transfer),
		      (unsigned long long)(transfer->bytes - transfer->bytes_left),
		      (unsigned long long)transfer->bytes);
	bh_rdma_transfer_fail(engine, transfer, -ECANCELED, &fault, transfer->part);
}

static void transfer_expired(void *owner, struct bh_rdma_timer *timer)
{
	struct bh_rdma_transfer *transfer = bh_container_of(timer, struct bh_rdma_transfer, timer);
	const struct bh_rdma_peer *peer = transfer->peer;
	struct bh_rdma_fault fault = { 0 };
	bool linked = peer->link && peer->link->state == LINK_UP;

	bh_rdma_fault(&fault, -ECANCELED, "rdma.deadline",
		      "the deadline has passed with %llu of %llu bytes of the %s done%s%.160s",
		      (unsigned long long)(transfer->bytes - transfer->bytes_left),
		      (unsigned long long)transfer->bytes, op_name(transfer),
		      linked	     ? ""
		      : peer->status ? "; no link: "
				     : "; no link yet",
		      linked || !peer->status ? "" : peer->fault.text);
	if (!linked && peer->status)
		memcpy(fault.status, peer->fault.status, sizeof(fault.status));
	bh_rdma_transfer_fail(owner, transfer, -ECANCELED, &fault, transfer->part);
}

void bh_rdma_peer_fail(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer, bh_status status,
		       const struct bh_rdma_fault *fault)
{
	struct bh_list *in = peer->transfers.next;

	while (in != &peer->transfers) {
		struct bh_rdma_transfer *transfer =
			bh_container_of(in, struct bh_rdma_transfer, in_peer);

		in = in->next; /* done() can only add to the engine's queue */
		bh_rdma_transfer_fail(engine, transfer, status, fault, transfer->part);
	}
}

/* ---- the beginning ------------------------------------------------------------------------------- */

/* Skips what is empty. false: all has been posted. */
static bool transfer_has_more(struct bh_rdma_transfer *transfer)
{
	while (transfer->part < transfer->n_parts &&
	       transfer->offset >= transfer->parts[transfer->part].length) {
		transfer->part++;
		transfer->offset = 0;
	}
	return transfer->part < transfer->n_parts;
}

void bh_rdma_transfer_begin(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer)
{
	struct bh_rdma_fault fault = { 0 };
	struct bh_rdma_peer *peer;

	if (transfer->bytes == 0) {
		transfer_settle(engine, transfer);
		return;
	}
	if (transfer->target.kind != engine->transport->kind) {
		bh_rdma_fault(&fault, -EPROTO, "rdma.kind",
			      "the region is reached by another transport than %s, the one here",
			      engine->transport->ops->name);
		bh_rdma_transfer_fail(engine, transfer, -EPROTO, &fault, 0);
		return;
	}
	peer = bh_rdma_peer_get(engine, &transfer->target.address, transfer->target.instance);
	if (!peer) {
		bh_rdma_fault(&fault, -ENOMEM, "rdma.memory", "no memory for a peer");
		bh_rdma_transfer_fail(engine, transfer, -ENOMEM, &fault, 0);
		return;
	}
	transfer->peer = peer;
	bh_list_push_back(&peer->transfers, &transfer->in_peer);
	transfer_has_more(transfer);
	bh_list_push_back(&peer->ring[is_read(transfer) ? 0 : 1], &transfer->in_ring);
	bh_rdma_peer_ready(engine, peer);
	transfer->timer.fire = transfer_expired;
	if (transfer->deadline_ns <= engine->now_ns)
		transfer_expired(engine, &transfer->timer);
	else if (transfer->deadline_ns != INT64_MAX)
		bh_rdma_timers_set(&engine->timers, &transfer->timer, transfer->deadline_ns);
}

/* ---- posting ------------------------------------------------------------------------------------- */

static bool peer_has_work(const struct bh_rdma_peer *peer)
{
	return !bh_list_empty(&peer->ring[0]) || !bh_list_empty(&peer->ring[1]) ||
	       !bh_list_empty(&peer->again) || !bh_list_empty(&peer->suspects);
}

static bool link_has_room(const struct bh_rdma_engine *engine, const struct link *link)
{
	return link->n_outstanding < engine->transport->max_outstanding &&
	       (link->n_outstanding == 0 || link->n_bytes < WINDOW_MAX);
}

static bool link_may_read(const struct bh_rdma_engine *engine, const struct link *link)
{
	return link->n_reads < engine->transport->max_reads;
}

/* Of the link, rather than of the request: it may be done again on another. */
static bool status_is_link(bh_status status)
{
	switch (status) {
	case -ECANCELED:
	case -ECONNRESET:
	case -ECONNABORTED:
	case -ENOTCONN:
	case -EPIPE:
	case -ESHUTDOWN:
	case -ETIMEDOUT:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -ENETDOWN:
		return true;
	default:
		return false;
	}
}

/* The transport has refused the request itself. Once may be the link's end that was not told yet. */
static void post_refused(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer,
			 bh_status status)
{
	struct bh_rdma_fault fault = { 0 };

	if (++transfer->n_refused < SOLO_MAX)
		return;
	bh_rdma_fault(&fault, status, "rdma.post", "the transport does not take this %s: %s",
		      op_name(transfer), strerror(-status));
	bh_rdma_transfer_fail(engine, transfer, status, &fault, transfer->part);
}

/* 0: posted. Else it is where it was, and the link is full, or broken. */
static bh_status work_post(struct bh_rdma_engine *engine, struct link *link, struct work *work)
{
	struct bh_rdma_transfer *transfer = work->transfer;
	const struct bh_rdma_part *part = &transfer->parts[work->part];
	struct bh_rdma_work request = {
		.op = transfer->op,
		.length = work->length,
		.local = (char *)part->local + work->offset,
		.memory = part->memory,
		.remote = transfer->target.base + part->remote + work->offset,
		.key = transfer->target.key,
		.cookie = work_cookie(work),
	};
	bh_status status = engine->transport->ops->post(engine->transport, link->handle, &request);

	if (status == -EAGAIN) {
		link->full = true;
		return status;
	}
	if (status < 0) {
		link->status = link->status ? link->status : status;
		bh_rdma_link_broke(engine, link);
		return status;
	}
	bh_list_remove(&work->in);
	bh_list_push_back(&link->posted, &work->in);
	work->state = WORK_POSTED;
	work->link = link;
	link->n_company = link->n_outstanding++ == 0 ? 1 : link->n_company + 1;
	link->n_reads += is_read(transfer);
	link->n_bytes += work->length;
	if (transfer->n_posted++ == 0) {
		count(&engine->counts.in_flight, 1);
		count(&engine->counts.queued, -1);
	}
	return 0;
}

static bool work_repost(struct bh_rdma_engine *engine, struct link *link, struct work *work)
{
	bh_status status = work_post(engine, link, work);

	if (status < 0 && !status_is_link(status) && status != -EAGAIN)
		post_refused(engine, work->transfer, status);
	return status == 0;
}

/* The next chunk of a transfer; stays behind when it cannot be posted. */
static bool transfer_post(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer,
			  struct bh_rdma_transfer *transfer)
{
	struct work *work = work_new(engine, transfer);
	uint32_t most = engine->transport->max_message < CHUNK_MAX ? engine->transport->max_message
								   : CHUNK_MAX;
	bh_status status;
	uint64_t left;

	if (!work) {
		peer->link->full = true;
		return false;
	}
	left = transfer->parts[transfer->part].length - transfer->offset;
	work->part = transfer->part;
	work->offset = transfer->offset;
	work->length = left < most ? (uint32_t)left : most;
	status = work_post(engine, peer->link, work);
	if (status < 0) {
		work_free(engine, work);
		if (!status_is_link(status) && status != -EAGAIN)
			post_refused(engine, transfer, status);
		return false;
	}
	transfer->offset += work->length;
	bh_list_remove(&transfer->in_ring);
	if (transfer_has_more(transfer))
		bh_list_push_back(&peer->ring[is_read(transfer) ? 0 : 1], &transfer->in_ring);
	return true;
}

static struct work *again_next(const struct bh_rdma_engine *engine, const struct bh_rdma_peer *peer)
{
	bool reads = link_may_read(engine, peer->link);

	for (struct bh_list *in = peer->again.next; in != &peer->again; in = in->next) {
		struct work *work = bh_container_of(in, struct work, in);

		if (reads || !is_read(work->transfer))
			return work;
	}
	return NULL;
}

/* Reads and writes in turn, as far as there are any and reads have room. */
static struct bh_rdma_transfer *ring_next(const struct bh_rdma_engine *engine,
					  struct bh_rdma_peer *peer)
{
	for (uint32_t i = 0; i < 2; i++) {
		struct bh_list *ring = &peer->ring[peer->turn++ % 2];
		bool reads = ring == &peer->ring[0];

		if (!bh_list_empty(ring) && (!reads || link_may_read(engine, peer->link)))
			return bh_container_of(ring->next, struct bh_rdma_transfer, in_ring);
	}
	return NULL;
}

static bool peer_post_next(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer)
{
	struct bh_rdma_transfer *transfer;
	struct work *work;

	if (!bh_list_empty(&peer->suspects)) {
		if (peer->link->n_outstanding == 0)
			work_repost(engine, peer->link,
				    bh_container_of(peer->suspects.next, struct work, in));
		return false; /* alone, or not at all */
	}
	work = again_next(engine, peer);
	if (work)
		return work_repost(engine, peer->link, work);
	transfer = ring_next(engine, peer);
	return transfer && transfer_post(engine, peer, transfer);
}

/* Posts what can be; makes a link first where there is none. */
void bh_rdma_peer_pump(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer)
{
	struct link *link = peer->link;

	if (!peer_has_work(peer))
		return;
	if (!link) {
		if (!peer->timer.set)
			bh_rdma_peer_connect(engine, peer);
		return;
	}
	if (link->state != LINK_UP || link->broken)
		return;
	bh_rdma_timers_clear(&engine->timers, &link->timer); /* it is not idle */
	link->full = false;
	while (!link->full && !link->broken && link_has_room(engine, link) &&
	       peer_post_next(engine, peer))
		;
	/* A DONE of its own will bring us back; without one outstanding only trying again can. */
	if (link->full && link->n_outstanding == 0) {
		engine->retry = true;
		bh_rdma_peer_ready(engine, peer);
	}
}

/* ---- what comes back ----------------------------------------------------------------------------- */

static void work_returned(struct bh_rdma_engine *engine, struct work *work)
{
	struct link *link = work->link;

	bh_list_remove(&work->in);
	link->n_outstanding--;
	link->n_reads -= is_read(work->transfer);
	link->n_bytes -= work->length;
	transfer_unposted(engine, work->transfer);
}

static void lost_returned(struct bh_rdma_engine *engine, struct work *work)
{
	struct bh_rdma_transfer *transfer = work->transfer;

	work_free(engine, work);
	transfer_unposted(engine, transfer);
	if (--transfer->n_lost == 0)
		engine->n_lost--;
	transfer_settle(engine, transfer);
}

static void work_flushed(struct bh_rdma_engine *engine, struct work *work,
			 const struct bh_rdma_event *event)
{
	struct bh_rdma_transfer *transfer = work->transfer;
	struct link *link = work->link;

	link->n_flushed++;
	if (event->status != -ECANCELED && !link->known) {
		link->known = true;
		link->status = event->status;
		link->fault = event->fault ? *event->fault : (struct bh_rdma_fault){ 0 };
	}
	if (transfer->ending) {
		work_free(engine, work);
		transfer_settle(engine, transfer);
		return;
	}
	work->state = WORK_FLUSHED;
	bh_list_push_back(&link->flushed, &work->in);
}

/* The transport itself says that it was this one. */
static void work_guilty(struct bh_rdma_engine *engine, struct work *work, bh_status status,
			const struct bh_rdma_fault *given)
{
	struct bh_rdma_transfer *transfer = work->transfer;
	const struct bh_rdma_part *part = &transfer->parts[work->part];
	struct bh_rdma_fault fault = given ? *given : (struct bh_rdma_fault){ 0 };
	uint32_t index = work->part;

	if (!fault.id[0])
		bh_rdma_fault(&fault, status, status == -EACCES ? "rdma.access" : "rdma.failed",
			      "the %s of %llu bytes at offset %llu was refused by %s: %s",
			      op_name(transfer), (unsigned long long)part->length,
			      (unsigned long long)part->remote,
			      bh_rdma_address_text(&transfer->target.address).text,
			      status == -EACCES ? "the region is closed or does not allow it"
						: strerror(-status));
	work_free(engine, work);
	if (transfer->ending)
		transfer_settle(engine, transfer);
	else
		bh_rdma_transfer_fail(engine, transfer, status, &fault, index);
}

void bh_rdma_work_done(struct bh_rdma_engine *engine, const struct bh_rdma_event *event)
{
	struct work *work = work_find(engine, event->cookie);
	struct bh_rdma_transfer *transfer;
	struct bh_rdma_peer *peer;

	if (!work || (work->state != WORK_POSTED && work->state != WORK_LOST)) {
		engine->n_strays++;
		return;
	}
	transfer = work->transfer;
	peer = transfer->peer;
	bh_rdma_peer_ready(engine, peer);
	if (work->state == WORK_LOST) {
		lost_returned(engine, work);
		return;
	}
	work_returned(engine, work);
	if (event->status == 0) {
		peer->n_breaks = 0;
		transfer->bytes_left -= work->length;
		work_free(engine, work);
		transfer_settle(engine, transfer);
		return;
	}
	bh_rdma_link_broke(engine, work->link);
	if (status_is_link(event->status)) {
		work_flushed(engine, work, event);
		return;
	}
	work->link->known = true;
	peer->n_breaks = 0;
	work_guilty(engine, work, event->status, event->fault);
}

/* ---- who broke the link -------------------------------------------------------------------------- */

static void work_blamed(struct bh_rdma_engine *engine, struct work *work,
			const struct bh_rdma_fault *words)
{
	struct bh_rdma_transfer *transfer = work->transfer;
	const struct bh_rdma_part *part = &transfer->parts[work->part];
	struct bh_rdma_fault fault = { 0 };

	bh_rdma_fault(&fault, -EACCES, "rdma.access",
		      "%s ends the link whenever this %s of %llu bytes at offset %llu is on it: "
		      "the region is closed, or does not allow it",
		      bh_rdma_address_text(&transfer->target.address).text, op_name(transfer),
		      (unsigned long long)part->length, (unsigned long long)part->remote);
	memcpy(fault.status, words->status, sizeof(fault.status));
	bh_rdma_transfer_fail(engine, transfer, -EACCES, &fault, work->part);
}

void bh_rdma_works_return(struct bh_rdma_engine *engine, struct bh_rdma_peer *peer,
			  struct link *link)
{
	/* In front of what was there, in the order in which they were posted. */
	struct bh_list *to_again = peer->again.next, *to_suspects = peer->suspects.next, *in;
	bool named = link->ours || link->known;
	bool alone = !named && link->n_flushed == 1 && link->n_company == 1;

	while ((in = bh_list_pop_front(&link->flushed))) {
		struct work *work = bh_container_of(in, struct work, in);

		work->link = NULL;
		work->suspect = work->suspect || !named;
		work->state = work->suspect ? WORK_SUSPECT : WORK_AGAIN;
		bh_list_push_back(work->suspect ? to_suspects : to_again, in);
		if (alone && ++work->n_solo >= SOLO_MAX) {
			peer->n_breaks = 0;
			work_blamed(engine, work, &link->fault);
		}
	}
}

/* SUP-10: what the transport has not given back may still be written to, whatever it promises of the
 * link: no done() for it, unless it comes back after all. */
void bh_rdma_works_lose(struct bh_rdma_engine *engine, struct link *link)
{
	struct bh_rdma_fault fault = { 0 };
	struct bh_list *in;

	bh_rdma_fault(&fault, -ECONNRESET, "rdma.lost",
		      "the transport has not given back what was posted on a link that is over");
	while ((in = bh_list_pop_front(&link->posted))) {
		struct work *work = bh_container_of(in, struct work, in);
		struct bh_rdma_transfer *transfer = work->transfer;

		work->state = WORK_LOST;
		work->link = NULL;
		bh_list_push_back(&engine->lost, in);
		if (transfer->n_lost++ == 0)
			engine->n_lost++;
		bh_rdma_transfer_fail(engine, transfer, -ECONNRESET, &fault, work->part);
	}
}
