/* SPDX-License-Identifier: BSD-3-Clause */
/* revoke - no peer's access that had begun may touch what has been deregistered: a message to each
 * inbound link, answered by the peer's engine behind its data; who does not answer in time is cut.
 *
 * Our message goes out behind the answers to reads that the peer had asked for; the peer's answer comes
 * in behind the writes that it had posted. So when the answer is here both are over. Epochs number
 * revocations: an answer to one covers those before, so that many at once share messages.
 *
 * Thread: the engine's. */
#include "config.h"

#include "plugins/rdma/engine_private.h"

#include <errno.h>
#include <string.h>

/* "BR", kind, 5 bytes of 0, epoch, rest 0; little endian. */
enum { MESSAGE_REVOKE = 1, MESSAGE_ANSWER = 2 };

void bh_rdma_message_encode(uint8_t bytes[BH_RDMA_MESSAGE_SIZE], bool answer, uint64_t epoch)
{
	memset(bytes, 0, BH_RDMA_MESSAGE_SIZE);
	bytes[0] = 'B';
	bytes[1] = 'R';
	bytes[2] = answer ? MESSAGE_ANSWER : MESSAGE_REVOKE;
	for (uint32_t i = 0; i < 8; i++)
		bytes[8 + i] = (uint8_t)(epoch >> (8 * i));
}

void bh_rdma_message_event(struct bh_rdma_engine *engine, struct link *link, const uint8_t *bytes)
{
	uint64_t epoch = 0;

	if (bytes[0] != 'B' || bytes[1] != 'R')
		return;
	for (uint32_t i = 0; i < 8; i++)
		epoch |= (uint64_t)bytes[8 + i] << (8 * i);
	/* Whoever is the target asks, whoever posts answers: anything else is no peer of ours. */
	if (link->outbound && bytes[2] == MESSAGE_REVOKE && epoch > link->say)
		bh_rdma_link_say(engine, link, epoch);
	else if (!link->outbound && bytes[2] == MESSAGE_ANSWER && epoch <= link->said)
		bh_rdma_revoke_acked(engine, link, epoch);
}

static void revoke_end(struct bh_rdma_engine *engine, struct bh_rdma_revoke *revoke)
{
	bh_rdma_timers_clear(&engine->timers, &revoke->timer);
	bh_list_remove(&revoke->in_engine);
	revoke->done(revoke);
}

/* `link` no longer keeps those of epochs up to `epoch` waiting. */
void bh_rdma_revoke_acked(struct bh_rdma_engine *engine, struct link *link, uint64_t epoch)
{
	uint64_t before = link->acked > link->born ? link->acked : link->born;
	struct bh_list *at = engine->revokes.next;

	if (link->outbound || epoch <= before)
		return;
	link->acked = epoch;
	while (at != &engine->revokes) {
		struct bh_rdma_revoke *revoke =
			bh_container_of(at, struct bh_rdma_revoke, in_engine);

		at = at->next;
		if (revoke->epoch > epoch)
			return;
		if (revoke->epoch > before && --revoke->n_waiting == 0)
			revoke_end(engine, revoke);
	}
}

void bh_rdma_revoke_gone(struct bh_rdma_engine *engine, struct link *link)
{
	bh_rdma_revoke_acked(engine, link, UINT64_MAX);
}

static void revoke_late(void *owner, struct bh_rdma_timer *timer)
{
	struct bh_rdma_engine *engine = owner;
	struct bh_rdma_revoke *revoke = bh_container_of(timer, struct bh_rdma_revoke, timer);
	uint64_t epoch = revoke->epoch;
	struct bh_list *at = engine->links.next;

	/* With the last of them the revocation is over and its storage gone. */
	while (at != &engine->links) {
		struct link *link = bh_container_of(at, struct link, in_engine);

		at = at->next;
		if (!link->outbound && link->born < epoch && link->acked < epoch)
			bh_rdma_link_cut(engine, link,
					 "rdma: a peer did not confirm the end of a region in "
					 "time: its link is cut");
	}
}

void bh_rdma_revoke_begin(struct bh_rdma_engine *engine, struct bh_list *batch)
{
	struct bh_list *in;
	uint32_t n_waiting = 0;

	if (bh_list_empty(batch))
		return;
	engine->epoch++;
	for (in = engine->links.next; in != &engine->links; in = in->next) {
		struct link *link = bh_container_of(in, struct link, in_engine);

		if (link->outbound || link->acked == UINT64_MAX)
			continue;
		bh_rdma_link_say(engine, link, engine->epoch);
		n_waiting++;
	}
	while ((in = bh_list_pop_front(batch))) {
		struct bh_rdma_revoke *revoke =
			bh_container_of(in, struct bh_rdma_revoke, in_engine);

		revoke->epoch = engine->epoch;
		revoke->n_waiting = n_waiting;
		revoke->timer.fire = revoke_late;
		bh_list_push_back(&engine->revokes, &revoke->in_engine);
		if (n_waiting == 0)
			revoke_end(engine, revoke);
		else
			bh_rdma_timers_set(
				&engine->timers, &revoke->timer,
				bh_rdma_engine_after(engine, engine->options.revoke_timeout_ns));
	}
}
