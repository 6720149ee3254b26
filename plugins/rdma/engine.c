/* SPDX-License-Identifier: BSD-3-Clause */
/* engine - requests from other threads, the loop, sleep, and the end of it all; see engine.h.
 *
 * Thread: bh_rdma_engine_run() is the engine's; what engine.h says of any thread goes through the
 *         queue under the lock.
 * Owns:   peers, links and work requests. Borrows: the transport, and transfers until their done(). */
#include "config.h"

#include "plugins/rdma/engine.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "plugins/rdma/engine_private.h"

#define EVENTS 64u
#define TELL_NS INT64_C(100000000)
#define STOP_LOOK_NS INT64_C(1000000) /* busy, it looks at stop_fd so often */

int64_t bh_rdma_engine_after(const struct bh_rdma_engine *engine, int64_t ns)
{
	return ns < INT64_MAX - engine->now_ns ? engine->now_ns + ns : INT64_MAX;
}

static void engine_clock(struct bh_rdma_engine *engine)
{
	engine->now_ns = (int64_t)engine->calls.now_ns();
}

void bh_rdma_engine_log(struct bh_rdma_engine *engine, uint32_t level, const char *message,
			const struct bh_rdma_address *address, bh_status status,
			const struct bh_rdma_fault *fault)
{
	struct bh_rdma_address_text peer = { "" };
	struct bh_fact facts[4];
	uint32_t n = 0;

	if (!engine->calls.log)
		return;
	if (address) {
		peer = bh_rdma_address_text(address);
		facts[n++] = bh_fact_str("peer", peer.text);
	}
	if (status)
		facts[n++] = bh_fact_str("error", strerror(-status));
	if (fault && fault->text[0])
		facts[n++] = bh_fact_str("reason", fault->text);
	if (fault && fault->status[0])
		facts[n++] = bh_fact_str("provider", fault->status);
	engine->calls.log(engine->calls.user, level, message, facts, n);
}

/* ---- requests ------------------------------------------------------------------------------------ */

static struct bh_rdma_transfer **id_bucket(struct bh_rdma_engine *engine, uint64_t id)
{
	return &engine->by_id[(id * UINT64_C(0x9e3779b97f4a7c15)) >> 52];
}
static_assert(N_IDS == 1u << 12, "id_bucket takes 12 bits");

static void engine_wake(struct bh_rdma_engine *engine)
{
	ssize_t n;

	/* A full counter wakes as well as one more does. */
	do
		n = write(engine->wake_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
	while (n < 0 && errno == EINTR);
}

/* Under the lock; the caller wakes behind it, and only once a sleep. */
static bool engine_rouse_locked(struct bh_rdma_engine *engine)
{
	bool asleep = engine->asleep;

	engine->asleep = false;
	return asleep;
}

bh_status bh_rdma_engine_submit(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer)
{
	struct bh_rdma_transfer **bucket = id_bucket(engine, transfer->id);
	bool wake = false, closed;

	bh_list_init(&transfer->in_ring);
	bh_list_init(&transfer->in_peer);
	bh_list_init(&transfer->in_cancel);
	bh_list_init(&transfer->works);
	transfer->timer = (struct bh_rdma_timer){ 0 };
	transfer->peer = NULL;
	transfer->bytes = 0;
	for (uint32_t i = 0; i < transfer->n_parts; i++)
		transfer->bytes += transfer->parts[i].length;
	transfer->bytes_left = transfer->bytes;
	transfer->offset = 0;
	transfer->part = transfer->n_posted = transfer->n_lost = transfer->failed = 0;
	transfer->n_refused = 0;
	transfer->ending = false;
	transfer->status = 0;

	pthread_mutex_lock(&engine->lock);
	closed = engine->closed;
	if (!closed) {
		bh_list_push_back(&engine->submitted, &transfer->in_ring);
		transfer->next_id = *bucket;
		*bucket = transfer;
		count(&engine->counts.queued, 1);
		wake = engine_rouse_locked(engine);
	}
	pthread_mutex_unlock(&engine->lock);
	if (wake)
		engine_wake(engine);
	return closed ? -ESHUTDOWN : 0;
}

void bh_rdma_engine_cancel(struct bh_rdma_engine *engine, uint64_t id)
{
	bool wake = false;

	pthread_mutex_lock(&engine->lock);
	for (struct bh_rdma_transfer *t = *id_bucket(engine, id); t; t = t->next_id) {
		if (t->id != id || !bh_list_empty(&t->in_cancel))
			continue;
		bh_list_push_back(&engine->cancels, &t->in_cancel);
		wake = true;
	}
	wake = wake && engine_rouse_locked(engine);
	pthread_mutex_unlock(&engine->lock);
	if (wake)
		engine_wake(engine);
}

bh_status bh_rdma_engine_revoke(struct bh_rdma_engine *engine, struct bh_rdma_revoke *revoke)
{
	bool wake = false, over;

	bh_list_init(&revoke->in_engine);
	revoke->timer = (struct bh_rdma_timer){ 0 };
	pthread_mutex_lock(&engine->lock);
	over = engine->over;
	if (!over) {
		bh_list_push_back(&engine->revokes_in, &revoke->in_engine);
		wake = engine_rouse_locked(engine);
	}
	pthread_mutex_unlock(&engine->lock);
	if (wake)
		engine_wake(engine);
	if (!over)
		return 0;
	revoke->done(revoke);
	return -ESHUTDOWN;
}

/* Before done(): from its return on nobody finds the transfer any more. */
void bh_rdma_engine_forget(struct bh_rdma_engine *engine, struct bh_rdma_transfer *transfer)
{
	struct bh_rdma_transfer **at = id_bucket(engine, transfer->id);

	pthread_mutex_lock(&engine->lock);
	while (*at && *at != transfer)
		at = &(*at)->next_id;
	if (*at)
		*at = transfer->next_id;
	bh_list_remove(&transfer->in_cancel);
	pthread_mutex_unlock(&engine->lock);
}

static bool engine_requests(struct bh_rdma_engine *engine)
{
	struct bh_list submitted, cancels, revokes, *in;
	bool any;

	pthread_mutex_lock(&engine->lock);
	list_move(&engine->submitted, &submitted);
	list_move(&engine->cancels, &cancels);
	list_move(&engine->revokes_in, &revokes);
	pthread_mutex_unlock(&engine->lock);
	any = !bh_list_empty(&submitted) || !bh_list_empty(&revokes);

	while ((in = bh_list_pop_front(&submitted))) {
		struct bh_rdma_transfer *t = bh_container_of(in, struct bh_rdma_transfer, in_ring);

		engine->n_transfers++;
		bh_rdma_transfer_begin(engine, t);
	}
	/* Together with what was submitted, since a cancel may be right behind its transfer; then one at
	 * a time: with done() others may leave the list, and cancel() looks at its links. */
	for (;;) {
		pthread_mutex_lock(&engine->lock);
		in = bh_list_pop_front(&cancels);
		pthread_mutex_unlock(&engine->lock);
		if (!in)
			break;
		bh_rdma_transfer_cancel(engine,
					bh_container_of(in, struct bh_rdma_transfer, in_cancel));
		any = true;
	}
	bh_rdma_revoke_begin(engine, &revokes);
	return any;
}

/* ---- the loop ------------------------------------------------------------------------------------ */

static void engine_health(struct bh_rdma_engine *engine, const struct bh_rdma_event *event)
{
	bh_rdma_engine_log(engine, event->status ? BH_LOG_WARNING : BH_LOG_INFO,
			   event->status ? "rdma: the device is not well"
					 : "rdma: the device is well again",
			   NULL, event->status, event->fault);
	if (engine->calls.health)
		engine->calls.health(engine->calls.user, event->status, event->fault);
}

static void engine_event(struct bh_rdma_engine *engine, const struct bh_rdma_event *event)
{
	switch (event->kind) {
	case BH_RDMA_DONE:
		bh_rdma_work_done(engine, event);
		return;
	case BH_RDMA_HEALTH:
		engine_health(engine, event);
		return;
	case BH_RDMA_REQUEST:
	case BH_RDMA_UP:
	case BH_RDMA_REFUSED:
	case BH_RDMA_DOWN:
	case BH_RDMA_MESSAGE:
		bh_rdma_link_event(engine, event);
		return;
	}
	bh_unreachable();
}

static void engine_pump(struct bh_rdma_engine *engine)
{
	struct bh_list now, *in;

	list_move(&engine->ready, &now);
	while ((in = bh_list_pop_front(&now)))
		bh_rdma_peer_pump(engine, bh_container_of(in, struct bh_rdma_peer, in_ready));
}

bool bh_rdma_engine_turn(struct bh_rdma_engine *engine)
{
	struct bh_rdma_event events[EVENTS];
	struct bh_rdma_timer *timer;
	uint32_t n;
	bool any;

	engine_clock(engine);
	engine->retry = false;
	any = engine_requests(engine);
	n = engine->transport->ops->poll(engine->transport, events, EVENTS);
	any = any || n > 0;
	for (uint32_t i = 0; i < n; i++)
		engine_event(engine, &events[i]);
	while ((timer = bh_rdma_timers_take(&engine->timers, engine->now_ns))) {
		timer->fire(engine, timer);
		any = true;
	}
	engine_pump(engine);
	bh_rdma_links_talk(engine);
	bh_rdma_peers_tend(engine);
	return any;
}

int64_t bh_rdma_engine_next_ns(const struct bh_rdma_engine *engine)
{
	int64_t next = bh_rdma_timers_next(&engine->timers);

	if (engine->retry && next > bh_rdma_engine_after(engine, RETRY_NS))
		next = bh_rdma_engine_after(engine, RETRY_NS);
	if (engine->ending && next > engine->ending_until_ns)
		next = engine->ending_until_ns;
	return next;
}

static bool fd_readable(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLIN };

	return poll(&look, 1, 0) > 0;
}

static void engine_awake(struct bh_rdma_engine *engine)
{
	uint64_t n;

	pthread_mutex_lock(&engine->lock);
	engine->asleep = false;
	pthread_mutex_unlock(&engine->lock);
	if (read(engine->wake_fd, &n, sizeof(n)) < 0)
		n = 0; /* nobody had woken it */
}

static struct timespec engine_nap(const struct bh_rdma_engine *engine)
{
	struct bh_rdma_transport *transport = engine->transport;
	int64_t now = (int64_t)engine->calls.now_ns();
	int64_t next = bh_rdma_engine_next_ns(engine);
	int64_t nap = next == INT64_MAX ? INT64_MAX : next > now ? next - now : 0;
	int64_t most = transport->ops->timeout_ns(transport);

	if (most < nap)
		nap = most < 0 ? 0 : most;
	if (nap > INT64_C(3600000000000))
		nap = INT64_C(3600000000000);
	return (struct timespec){ .tv_sec = nap / 1000000000, .tv_nsec = nap % 1000000000 };
}

/* Until there is something to do. `stop_fd` -1: is not waited for. */
static void engine_sleep(struct bh_rdma_engine *engine, int stop_fd)
{
	struct bh_rdma_transport *transport = engine->transport;
	struct pollfd fds[BH_RDMA_FDS + 2];
	int own[BH_RDMA_FDS];
	struct timespec nap;
	nfds_t n = 0;
	bool asked;

	pthread_mutex_lock(&engine->lock);
	asked = !bh_list_empty(&engine->submitted) || !bh_list_empty(&engine->cancels) ||
		!bh_list_empty(&engine->revokes_in);
	engine->asleep = !asked;
	pthread_mutex_unlock(&engine->lock);
	if (asked)
		return;

	if (transport->ops->arm(transport)) {
		uint32_t n_own = transport->ops->descriptors(transport, own);

		for (uint32_t i = 0; i < n_own && i < BH_RDMA_FDS; i++)
			fds[n++] = (struct pollfd){ .fd = own[i], .events = POLLIN };
		fds[n++] = (struct pollfd){ .fd = engine->wake_fd, .events = POLLIN };
		if (stop_fd >= 0)
			fds[n++] = (struct pollfd){ .fd = stop_fd, .events = POLLIN };
		nap = engine_nap(engine);
		ppoll(fds, n, &nap, NULL); /* whatever it says, a turn finds out */
	}
	engine_awake(engine);
}

/* How long the loop polls before it sleeps: all of spin_ns while that pays, less and less while it does
 * not: a peer that takes milliseconds should not cost a CPU of ours. */
struct spin {
	int64_t budget_ns, since_ns, looked_ns;
	bool spinning;
};

static bool engine_spins(struct bh_rdma_engine *engine, struct spin *spin)
{
	int64_t most = engine->options.spin_ns;
	int64_t now = (int64_t)engine->calls.now_ns();

	if (most == INT64_MAX)
		return engine->n_transfers > 0 || !bh_list_empty(&engine->links);
	if (most <= 0 || engine->n_transfers == engine->n_lost)
		return false;
	if (!spin->spinning) {
		spin->spinning = true;
		spin->since_ns = now;
	}
	if (now - spin->since_ns < spin->budget_ns)
		return true;
	if (spin->budget_ns > most / 16)
		spin->budget_ns /= 2;
	spin->spinning = false;
	return false;
}

static void spin_paid(const struct bh_rdma_engine *engine, struct spin *spin)
{
	if (spin->spinning && engine->options.spin_ns != INT64_MAX)
		spin->budget_ns = engine->options.spin_ns;
	spin->spinning = false;
}

static bool engine_stops(struct bh_rdma_engine *engine, int stop_fd, struct spin *spin)
{
	if (engine->now_ns - spin->looked_ns < STOP_LOOK_NS)
		return false;
	spin->looked_ns = engine->now_ns;
	return fd_readable(stop_fd);
}

/* When the owner was told of the counts, and whether they may have changed since. */
struct telling {
	int64_t told_ns;
	bool changed;
};

static void engine_tell(const struct bh_rdma_engine *engine, struct telling *telling)
{
	if (telling->changed && engine->calls.counted)
		engine->calls.counted(engine->calls.user);
	telling->changed = false;
	telling->told_ns = engine->now_ns;
}

void bh_rdma_engine_run(struct bh_rdma_engine *engine, int stop_fd)
{
	struct spin spin = { .budget_ns = engine->options.spin_ns };
	struct telling telling = { 0 };
	bool stop = fd_readable(stop_fd);

	engine_clock(engine);
	while (!stop) {
		if (bh_rdma_engine_turn(engine)) {
			spin_paid(engine, &spin);
			telling.changed = true;
			if (engine->now_ns - telling.told_ns > TELL_NS)
				engine_tell(engine, &telling);
			stop = engine_stops(engine, stop_fd, &spin);
		} else if (engine_spins(engine, &spin)) {
			stop = engine_stops(engine, stop_fd, &spin);
			sched_yield();
		} else {
			engine_tell(engine, &telling);
			engine_sleep(engine, stop_fd);
			stop = fd_readable(stop_fd);
		}
	}
	bh_rdma_engine_end(engine);
	while (!bh_rdma_engine_ended(engine))
		if (!bh_rdma_engine_turn(engine))
			engine_sleep(engine, -1);
}

/* ---- the end ------------------------------------------------------------------------------------- */

static void engine_fail_all(struct bh_rdma_engine *engine)
{
	struct bh_rdma_fault fault = { 0 };

	bh_rdma_fault(&fault, -ECANCELED, "rdma.shutdown",
		      "the transfer was given up: the pool stops");
	for (uint32_t i = 0; i < N_BUCKETS; i++) {
		struct bh_list *at = engine->peers[i].next;

		while (at != &engine->peers[i]) {
			struct bh_rdma_peer *peer =
				bh_container_of(at, struct bh_rdma_peer, in_bucket);

			at = at->next; /* peers are freed at the end of a turn alone */
			bh_rdma_peer_fail(engine, peer, -ECANCELED, &fault);
		}
	}
}

/* Refuses first, so that the rest is finite; then cuts, so that it is short. */
void bh_rdma_engine_end(struct bh_rdma_engine *engine)
{
	struct bh_list *at;

	engine_clock(engine);
	pthread_mutex_lock(&engine->lock);
	engine->closed = true;
	pthread_mutex_unlock(&engine->lock);
	engine->ending = true;
	engine->ending_until_ns =
		bh_rdma_engine_after(engine, engine->options.abort_timeout_ns + GUARD_NS);
	engine_requests(engine);
	engine_fail_all(engine);
	at = engine->links.next;
	while (at != &engine->links) {
		struct link *link = bh_container_of(at, struct link, in_engine);

		at = at->next;
		bh_rdma_link_end(engine, link);
	}
}

static void engine_over(struct bh_rdma_engine *engine)
{
	struct bh_list revokes, *in;
	struct bh_rdma_fault fault = { 0 };

	/* Links that are over are guaranteed not to touch memory, also those whose end was not told. */
	pthread_mutex_lock(&engine->lock);
	engine->over = true;
	list_move(&engine->revokes_in, &revokes);
	pthread_mutex_unlock(&engine->lock);
	while ((in = bh_list_pop_front(&revokes))) {
		struct bh_rdma_revoke *revoke =
			bh_container_of(in, struct bh_rdma_revoke, in_engine);

		revoke->done(revoke);
	}
	if (engine->n_transfers == 0)
		return;
	bh_rdma_fault(
		&fault, -ECANCELED, "rdma.lost",
		"the transport has not given back what %u transfers had posted; their memory stays",
		engine->n_transfers);
	bh_rdma_engine_log(engine, BH_LOG_WARNING, "rdma: transfers were lost", NULL, 0, &fault);
}

bool bh_rdma_engine_ended(struct bh_rdma_engine *engine)
{
	bool quiet = engine->n_transfers == 0 && bh_list_empty(&engine->links);

	if (!engine->ending)
		return false;
	if (engine->over)
		return true;
	engine_clock(engine);
	if (!quiet && engine->now_ns < engine->ending_until_ns)
		return false;
	engine_over(engine);
	return true;
}

/* ---- new and free -------------------------------------------------------------------------------- */

bh_status bh_rdma_engine_new(struct bh_rdma_transport *transport, uint64_t instance,
			     const struct bh_rdma_engine_options *options,
			     const struct bh_rdma_engine_calls *calls,
			     struct bh_rdma_engine **ret_engine)
{
	struct bh_rdma_engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return -ENOMEM;
	engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (engine->wake_fd < 0) {
		bh_status status = -errno;

		free(engine);
		return status;
	}
	engine->transport = transport;
	engine->instance = instance;
	engine->options = *options;
	engine->calls = *calls;
	engine->random = instance | 1;
	pthread_mutex_init(&engine->lock, NULL);
	bh_list_init(&engine->submitted);
	bh_list_init(&engine->cancels);
	bh_list_init(&engine->revokes_in);
	for (uint32_t i = 0; i < N_BUCKETS; i++)
		bh_list_init(&engine->peers[i]);
	bh_list_init(&engine->ready);
	bh_list_init(&engine->sweep);
	bh_list_init(&engine->links);
	bh_list_init(&engine->talking);
	bh_list_init(&engine->free_works);
	bh_list_init(&engine->lost);
	bh_list_init(&engine->revokes);
	*ret_engine = engine;
	return 0;
}

/* One that never ran has only what was submitted. */
static void engine_refuse_submitted(struct bh_rdma_engine *engine)
{
	if (engine->over)
		return;
	bh_rdma_engine_end(engine);
	engine_over(engine);
}

uint32_t bh_rdma_engine_free(struct bh_rdma_engine *engine)
{
	uint32_t n_lost;

	if (!engine)
		return 0;
	engine_refuse_submitted(engine);
	n_lost = engine->n_transfers;
	bh_rdma_links_free(engine);
	bh_rdma_works_free(engine);
	pthread_mutex_destroy(&engine->lock);
	close(engine->wake_fd);
	free(engine);
	return n_lost;
}

void bh_rdma_engine_counts(const struct bh_rdma_engine *engine, struct bh_rdma_counts *ret_counts)
{
	const struct counters *from = &engine->counts;

#define LOAD(name) .name = atomic_load_explicit(&from->name, memory_order_relaxed)
	*ret_counts = (struct bh_rdma_counts){
		LOAD(links),	     LOAD(in_flight),  LOAD(queued), LOAD(bytes_read),
		LOAD(bytes_written), LOAD(reads),      LOAD(writes), LOAD(errors),
		LOAD(cancelled),     LOAD(reconnects), LOAD(cut),    LOAD(links_in),
	};
#undef LOAD
}
