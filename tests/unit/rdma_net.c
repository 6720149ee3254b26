/* SPDX-License-Identifier: BSD-3-Clause */
/* rdma_net - see rdma_net.h. */
#include "config.h"

#include "tests/unit/rdma_net.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "host/core/list.h"

#define NODES 16u
#define CONNECT_TIMEOUT_NS INT64_C(200000000)

enum packet_kind {
	PACKET_REQUEST,
	PACKET_ACCEPTED,
	PACKET_REFUSED,
	PACKET_HEADER, /* of a write: its rights are checked */
	PACKET_WRITE,
	PACKET_READ,
	PACKET_DATA, /* answers READ */
	PACKET_DONE, /* answers WRITE */
	PACKET_GUILTY,
	PACKET_TWICE, /* the completion of what has had one */
	PACKET_MESSAGE,
	PACKET_CLOSE
};

struct packet {
	struct bh_list in;
	int64_t at_ns;
	enum packet_kind kind;
	uint64_t number;
	struct bh_rdma_work work;
	bh_status status;
	uint8_t *bytes; /* WRITE, DATA: as they were when they left */
	uint8_t hello[BH_RDMA_HELLO_SIZE];
};

struct request {
	struct bh_list in;
	struct bh_rdma_work work;
	uint64_t number;
};

enum state { CONNECTING, REQUESTED, ACCEPTED, UP, OVER };

struct bh_rdma_link {
	struct bh_list in_node;
	struct net_node *node; /* NULL: killed */
	struct bh_rdma_link *other;
	enum state state;
	bool mine; /* made by this side */
	bool released, doomed, refused;
	struct bh_list packets; /* to here, in order */
	int64_t last_ns;
	struct bh_list requests; /* posted, not done */
	uint32_t n_requests, n_reads;
	struct bh_rdma_address peer;
};

struct queued_event {
	struct bh_list in;
	struct bh_rdma_event event;
	struct bh_rdma_fault fault;
};

struct net_node {
	struct bh_rdma_transport transport;
	struct net *net;
	uint32_t where;
	bool dead, silent;
	struct bh_list links, events, memories;
	int wake_fd;
	uint32_t most_outstanding;
	uint64_t n_connects, n_messages;
};

struct memory {
	struct bh_list in;
	struct bh_rdma_memory of;
	uint32_t access;
};

struct net {
	struct net_options options;
	pthread_mutex_t lock;
	uint64_t random, next;
	struct net_node *nodes[NODES]; /* alive */
	struct net_node *all[256];
	uint32_t n_all;
	struct bh_list graves; /* links that nobody needs any more */
	uint32_t n_violations, n_solo_drops;
	const char *last_violation;
};

static uint64_t net_random(struct net *net)
{
	net->random ^= net->random << 13;
	net->random ^= net->random >> 7;
	net->random ^= net->random << 17;
	return net->random;
}

static bool net_chance(struct net *net, uint32_t n, uint32_t of)
{
	return n > 0 && net_random(net) % of < n;
}

static void violation(struct net *net, const char *what)
{
	net->n_violations++;
	net->last_violation = what;
}

static int64_t net_now(const struct net *net)
{
	return (int64_t)net->options.now_ns();
}

static void touch(struct net_node *node, const void *data, uint64_t length, bool written,
		  bool remote)
{
	if (node->net->options.touch)
		node->net->options.touch(node->net->options.user, node, data, length, written,
					 remote);
}

static void node_wake(struct net_node *node)
{
	ssize_t n = write(node->wake_fd, &(uint64_t){ 1 }, sizeof(uint64_t));

	(void)n;
}

static struct packet *packet_send(struct bh_rdma_link *to, enum packet_kind kind, int64_t delay_ns)
{
	struct packet *packet = calloc(1, sizeof(*packet));
	struct net *net = to->node ? to->node->net : NULL;

	assert(packet);
	packet->kind = kind;
	if (!net) { /* nobody is there; kept so that it is freed */
		packet->at_ns = INT64_MAX;
	} else {
		int64_t mean = net->options.delay_ns;

		packet->at_ns = net_now(net) + delay_ns + mean / 10 +
				(int64_t)(net_random(net) % (uint64_t)(mean * 19 / 10 + 1));
		if (packet->at_ns < to->last_ns)
			packet->at_ns = to->last_ns;
		to->last_ns = packet->at_ns;
		node_wake(to->node);
	}
	bh_list_push_back(&to->packets, &packet->in);
	return packet;
}

static void packet_free(struct packet *packet)
{
	bh_list_remove(&packet->in);
	free(packet->bytes);
	free(packet);
}

static struct bh_rdma_event *event_new(struct net_node *node, enum bh_rdma_event_kind kind,
				       struct bh_rdma_link *link, bh_status status)
{
	struct queued_event *event = calloc(1, sizeof(*event));

	assert(event);
	event->event.kind = kind;
	event->event.link = link;
	event->event.status = status;
	bh_list_push_back(&node->events, &event->in);
	node_wake(node);
	return &event->event;
}

static struct bh_rdma_link *link_new(struct net_node *node, enum state state, bool mine)
{
	struct bh_rdma_link *link = calloc(1, sizeof(*link));

	assert(link);
	link->node = node;
	link->state = state;
	link->mine = mine;
	bh_list_init(&link->packets);
	bh_list_init(&link->requests);
	bh_list_push_back(&node->links, &link->in_node);
	return link;
}

static struct request *request_find(struct bh_rdma_link *link, uint64_t number)
{
	for (struct bh_list *in = link->requests.next; in != &link->requests; in = in->next) {
		struct request *request = bh_container_of(in, struct request, in);

		if (request->number == number)
			return request;
	}
	return NULL;
}

static void request_end(struct bh_rdma_link *link, struct request *request, bh_status status)
{
	const struct net_options *options = &link->node->net->options;

	event_new(link->node, BH_RDMA_DONE, link, status)->cookie = request->work.cookie;
	if (net_chance(link->node->net, options->twice_percent, 100))
		packet_send(link, PACKET_TWICE, 0)->number = request->work.cookie;
	link->n_requests--;
	link->n_reads -= request->work.op == BH_RDMA_OP_READ;
	bh_list_remove(&request->in);
	free(request);
}

/* This side of a link is over: all is given back, but for what the options lose, then DOWN. */
static void link_over(struct bh_rdma_link *link, bh_status status)
{
	struct net_node *node = link->node;
	struct net *net = node->net;
	struct bh_list *in = link->requests.next;
	uint64_t late[64];
	uint32_t n_late = 0;
	bool refused = link->refused;

	if (link->state == OVER)
		return;
	link->state = OVER;
	while (in != &link->requests) {
		struct request *request = bh_container_of(in, struct request, in);

		in = in->next;
		if (net_chance(net, net->options.lose_percent, 100)) {
			if (n_late < 64 && net_chance(net, net->options.late_percent, 100))
				late[n_late++] = request->work.cookie;
			bh_list_remove(&request->in);
			free(request);
			continue;
		}
		request_end(link, request, -ECANCELED);
	}
	if (!refused)
		event_new(node, BH_RDMA_DOWN, link, status);
	for (uint32_t i = 0; i < n_late; i++)
		event_new(node, BH_RDMA_DONE, link, -ECANCELED)->cookie = late[i];
}

/* The other side hears that it is over; some of what was under way may arrive before. */
static void link_close_other(struct bh_rdma_link *link)
{
	struct bh_rdma_link *other = link->other;
	struct net *net = link->node->net;

	if (!other || !other->node || other->state == OVER || other->doomed)
		return;
	other->doomed = true;
	if (net_chance(net, 50, 100)) {
		struct bh_list *in = other->packets.next;
		uint64_t keep = net_random(net) % 8;

		while (in != &other->packets) {
			struct packet *packet = bh_container_of(in, struct packet, in);

			in = in->next;
			if (keep > 0)
				keep--;
			else
				packet_free(packet);
		}
	}
	/* What is left may take its time, while a new link to there is quick. */
	if (net_chance(net, 30, 100)) {
		int64_t more = (int64_t)(net_random(net) % 40) * net->options.delay_ns;

		for (struct bh_list *in = other->packets.next; in != &other->packets; in = in->next)
			bh_container_of(in, struct packet, in)->at_ns += more;
		other->last_ns += more;
	}
	packet_send(other, PACKET_CLOSE, 0)->status = -ECONNRESET;
}

static void link_break(struct bh_rdma_link *link)
{
	link_close_other(link);
	link_over(link, -ECONNRESET);
}

static struct memory *memory_find(struct net_node *node, const struct bh_rdma_work *work)
{
	for (struct bh_list *in = node->memories.next; in != &node->memories; in = in->next) {
		struct memory *memory = bh_container_of(in, struct memory, in);
		uint32_t need = work->op == BH_RDMA_OP_READ ? BH_RDMA_READ : BH_RDMA_WRITE;

		if (memory->of.key == work->key)
			return memory->access & need && work->remote >= memory->of.base &&
					       work->remote - memory->of.base <=
						       memory->of.length &&
					       work->length <= memory->of.length - (work->remote -
										    memory->of.base)
				       ? memory
				       : NULL;
	}
	return NULL;
}

static void *remote_data(const struct bh_rdma_work *work)
{
	return (void *)(uintptr_t)(work->remote); /* the base is the address, as with verbs */
}

/* A peer asks for what it may not have: that ends the link. */
static void access_refused(struct bh_rdma_link *link, const struct packet *packet)
{
	struct net *net = link->node->net;

	if (net->options.names_guilty && link->other && link->other->node) {
		struct packet *word = packet_send(link->other, PACKET_GUILTY, 0);

		word->number = packet->number;
	}
	if (link->other && link->other->node && link->other->state != OVER) {
		packet_send(link->other, PACKET_CLOSE, 0)->status = -ECONNRESET;
		link->other->doomed = true;
	}
	link_over(link, -ECONNRESET);
}

static void packet_request(struct bh_rdma_link *link, const struct packet *packet)
{
	struct bh_rdma_event *event = event_new(link->node, BH_RDMA_REQUEST, link, 0);

	memcpy(event->bytes, packet->hello, sizeof(event->bytes));
	event->peer = link->peer;
}

static void packet_write(struct bh_rdma_link *link, const struct packet *packet)
{
	struct net *net = link->node->net;
	const struct bh_rdma_work *work = &packet->work;

	/* As measured: a write whose header had been accepted lands. */
	if (net->options.strict_deregister && !memory_find(link->node, work)) {
		access_refused(link, packet);
		return;
	}
	touch(link->node, remote_data(work), work->length, true, true);
	memcpy(remote_data(work), packet->bytes, work->length);
	if (link->other && link->other->node)
		packet_send(link->other, PACKET_DONE, 0)->number = packet->number;
}

static void packet_read(struct bh_rdma_link *link, const struct packet *packet)
{
	const struct bh_rdma_work *work = &packet->work;
	struct packet *answer;

	if (!memory_find(link->node, work)) {
		access_refused(link, packet);
		return;
	}
	touch(link->node, remote_data(work), work->length, false, true);
	if (!link->other || !link->other->node)
		return;
	answer = packet_send(link->other, PACKET_DATA, 0);
	answer->number = packet->number;
	answer->bytes = malloc(work->length);
	assert(answer->bytes);
	memcpy(answer->bytes, remote_data(work), work->length);
}

static void packet_arrived(struct bh_rdma_link *link, struct packet *packet)
{
	struct net_node *node = link->node;
	struct request *request;

	if (link->state == OVER)
		return;
	switch (packet->kind) {
	case PACKET_REQUEST:
		packet_request(link, packet);
		return;
	case PACKET_ACCEPTED:
		link->state = UP;
		memcpy(event_new(node, BH_RDMA_UP, link, 0)->bytes, packet->hello,
		       BH_RDMA_HELLO_SIZE);
		return;
	case PACKET_REFUSED:
		link->refused = true;
		link_over(link, 0);
		memcpy(event_new(node, BH_RDMA_REFUSED, link, -ECONNREFUSED)->bytes, packet->hello,
		       BH_RDMA_HELLO_SIZE);
		return;
	case PACKET_HEADER:
		if (!memory_find(node, &packet->work))
			access_refused(link, packet);
		return;
	case PACKET_WRITE:
		packet_write(link, packet);
		return;
	case PACKET_READ:
		packet_read(link, packet);
		return;
	case PACKET_DATA:
		request = request_find(link, packet->number);
		if (!request)
			return;
		touch(node, request->work.local, request->work.length, true, false);
		memcpy(request->work.local, packet->bytes, request->work.length);
		request_end(link, request, 0);
		return;
	case PACKET_DONE:
		request = request_find(link, packet->number);
		if (request)
			request_end(link, request, 0);
		return;
	case PACKET_GUILTY:
		request = request_find(link, packet->number);
		if (request)
			request_end(link, request, -EACCES);
		return;
	case PACKET_TWICE:
		event_new(node, BH_RDMA_DONE, link, 0)->cookie = packet->number;
		return;
	case PACKET_MESSAGE:
		memcpy(event_new(node, BH_RDMA_MESSAGE, link, 0)->bytes, packet->hello,
		       BH_RDMA_MESSAGE_SIZE);
		return;
	case PACKET_CLOSE:
		link_over(link, packet->status);
		return;
	}
	abort();
}

/* A drop that meets a request alone on its link, or comes just before it is posted, looks like that
 * request's guilt; twice running it is taken for it. Chance may do that once a net. */
static bool packet_drops(struct bh_rdma_link *link)
{
	struct net *net = link->node->net;
	struct bh_rdma_link *poster = link->mine ? link : link->other;

	if (link->state != UP || !net_chance(net, net->options.drop_per_mille, 1000))
		return false;
	if (poster && poster->n_requests <= 1 && net->n_solo_drops++ > 0)
		return false;
	return true;
}

static void node_receive(struct net_node *node)
{
	int64_t now = net_now(node->net);
	struct bh_list *in = node->links.next;

	while (in != &node->links) {
		struct bh_rdma_link *link = bh_container_of(in, struct bh_rdma_link, in_node);

		in = in->next;
		while (!bh_list_empty(&link->packets)) {
			struct packet *packet =
				bh_container_of(link->packets.next, struct packet, in);

			if (packet->at_ns > now)
				break;
			bh_list_remove(&packet->in);
			/* Whoever is silent hears nothing, and what was sent is gone. */
			if (!node->silent && packet_drops(link))
				link_break(link);
			else if (!node->silent)
				packet_arrived(link, packet);
			packet_free(packet);
		}
	}
}

/* ---- struct bh_rdma_transport_ops ------------------------------------------------------------------ */

static struct net_node *node_of(struct bh_rdma_transport *transport)
{
	return bh_container_of(transport, struct net_node, transport);
}

static void lock(struct net_node *node)
{
	pthread_mutex_lock(&node->net->lock);
}

static void unlock(struct net_node *node)
{
	pthread_mutex_unlock(&node->net->lock);
}

static bh_status net_register(struct bh_rdma_transport *transport, void *data, uint64_t length,
			      uint32_t access, struct bh_rdma_memory *ret_memory,
			      struct bh_rdma_fault *fault)
{
	struct net_node *node = node_of(transport);
	struct memory *memory = calloc(1, sizeof(*memory));

	(void)fault;
	assert(memory);
	lock(node);
	memory->access = access;
	memory->of = (struct bh_rdma_memory){ .data = data,
					      .length = length,
					      .base = (uintptr_t)data,
					      .key = net_random(node->net),
					      .handle = memory };
	bh_list_push_back(&node->memories, &memory->in);
	*ret_memory = memory->of;
	unlock(node);
	return 0;
}

static bool net_deregister(struct bh_rdma_transport *transport, struct bh_rdma_memory *given)
{
	struct net_node *node = node_of(transport);
	struct memory *memory = given->handle;

	lock(node);
	bh_list_remove(&memory->in);
	unlock(node);
	free(memory);
	return node->net->options.strict_deregister;
}

static uint32_t address_where(const struct bh_rdma_address *address)
{
	struct sockaddr_in in;

	memcpy(&in, address->bytes, sizeof(in));
	return ntohs(in.sin_port);
}

static bh_status net_connect(struct bh_rdma_transport *transport,
			     const struct bh_rdma_address *address,
			     const uint8_t hello[BH_RDMA_HELLO_SIZE],
			     struct bh_rdma_link **ret_link, struct bh_rdma_fault *fault)
{
	struct net_node *node = node_of(transport), *target;
	struct net *net = node->net;
	struct bh_rdma_link *link;

	(void)fault;
	lock(node);
	node->n_connects++;
	link = link_new(node, CONNECTING, true);
	target = address_where(address) < NODES ? net->nodes[address_where(address)] : NULL;
	if (!target) {
		packet_send(link, PACKET_CLOSE, 0)->status = -ECONNREFUSED;
	} else if (target->silent || node->silent) {
		packet_send(link, PACKET_CLOSE, CONNECT_TIMEOUT_NS)->status = -ETIMEDOUT;
	} else {
		struct bh_rdma_link *there = link_new(target, REQUESTED, false);

		there->other = link;
		link->other = there;
		there->peer = net_address(node->where);
		memcpy(packet_send(there, PACKET_REQUEST, 0)->hello, hello, BH_RDMA_HELLO_SIZE);
	}
	*ret_link = link;
	unlock(node);
	return 0;
}

static bh_status net_accept(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			    const uint8_t hello[BH_RDMA_HELLO_SIZE], struct bh_rdma_fault *fault)
{
	struct net_node *node = node_of(transport);

	(void)fault;
	lock(node);
	if (link->state == OVER) {
		/* closed meanwhile: DOWN is under way already */
	} else if (link->state != REQUESTED) {
		violation(node->net, "accept() of what is no request");
	} else if (!link->other || link->other->state == OVER) {
		link_over(link, -ECONNRESET);
	} else {
		link->state = UP;
		event_new(node, BH_RDMA_UP, link, 0);
		memcpy(packet_send(link->other, PACKET_ACCEPTED, 0)->hello, hello,
		       BH_RDMA_HELLO_SIZE);
	}
	unlock(node);
	return 0;
}

static void link_bury(struct net_node *node, struct bh_rdma_link *link)
{
	bh_list_remove(&link->in_node);
	link->released = true;
	link->node = NULL;
	bh_list_push_back(&node->net->graves, &link->in_node);
}

static void net_reject(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
		       const uint8_t hello[BH_RDMA_HELLO_SIZE])
{
	struct net_node *node = node_of(transport);
	struct bh_list *in;

	lock(node);
	if (link->other && link->other->node && link->other->state != OVER)
		memcpy(packet_send(link->other, PACKET_REFUSED, 0)->hello, hello,
		       BH_RDMA_HELLO_SIZE);
	/* No event may follow. */
	in = node->events.next;
	while (in != &node->events) {
		struct queued_event *event = bh_container_of(in, struct queued_event, in);

		in = in->next;
		if (event->event.link == link) {
			bh_list_remove(&event->in);
			free(event);
		}
	}
	link->state = OVER;
	link_bury(node, link);
	unlock(node);
}

static bh_status post_check(struct net_node *node, struct bh_rdma_link *link,
			    const struct bh_rdma_work *work)
{
	const struct bh_rdma_transport *transport = &node->transport;

	if (link->node != node || link->released)
		violation(node->net, "post() on a link that was released");
	if (!link->mine)
		violation(node->net, "post() on a link that the peer made");
	if (work->length == 0 || work->length > transport->max_message)
		violation(node->net, "post() of more than max_message, or of nothing");
	if (link->n_requests >= transport->max_outstanding)
		violation(node->net, "post() of more than max_outstanding");
	if (work->op == BH_RDMA_OP_READ && link->n_reads >= transport->max_reads)
		violation(node->net, "post() of more than max_reads");
	if (link->state == OVER)
		return -ENOTCONN; /* its DOWN is under way */
	if (link->state != UP)
		violation(node->net, "post() on a link that is not up");
	return net_chance(node->net, node->net->options.full_percent, 100) ? -EAGAIN : 0;
}

static bh_status net_post(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			  const struct bh_rdma_work *work)
{
	struct net_node *node = node_of(transport);
	struct request *request;
	struct packet *packet;
	bh_status status;

	lock(node);
	status = post_check(node, link, work);
	if (status == 0) {
		request = calloc(1, sizeof(*request));
		assert(request);
		request->work = *work;
		request->number = ++node->net->next;
		bh_list_push_back(&link->requests, &request->in);
		link->n_requests++;
		link->n_reads += work->op == BH_RDMA_OP_READ;
		if (link->n_requests > node->most_outstanding)
			node->most_outstanding = link->n_requests;
		if (work->op == BH_RDMA_OP_WRITE) {
			packet = packet_send(link->other, PACKET_HEADER, 0);
			packet->work = *work;
			packet->number = request->number;
		}
		packet = packet_send(link->other,
				     work->op == BH_RDMA_OP_WRITE ? PACKET_WRITE : PACKET_READ, 0);
		packet->work = *work;
		packet->number = request->number;
		if (work->op == BH_RDMA_OP_WRITE) {
			touch(node, work->local, work->length, false, false);
			packet->bytes = malloc(work->length);
			assert(packet->bytes);
			memcpy(packet->bytes, work->local, work->length);
		}
	}
	unlock(node);
	return status;
}

static bh_status net_send(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			  const uint8_t message[BH_RDMA_MESSAGE_SIZE])
{
	struct net_node *node = node_of(transport);
	bh_status status = 0;

	lock(node);
	if (link->state == OVER) {
		status = -ENOTCONN;
	} else if (net_chance(node->net, node->net->options.full_percent, 100)) {
		status = -EAGAIN;
	} else {
		node->n_messages++;
		memcpy(packet_send(link->other, PACKET_MESSAGE, 0)->hello, message,
		       BH_RDMA_MESSAGE_SIZE);
	}
	unlock(node);
	return status;
}

static void net_disconnect(struct bh_rdma_transport *transport, struct bh_rdma_link *link)
{
	struct net_node *node = node_of(transport);

	lock(node);
	if (node->dead) {
		/* whoever was killed says nothing any more */
	} else if (link->released) {
		violation(node->net, "disconnect() behind release()");
	} else if (link->state != OVER) {
		link_close_other(link);
		link_over(link, 0);
	}
	unlock(node);
}

static void net_release(struct bh_rdma_transport *transport, struct bh_rdma_link *link)
{
	struct net_node *node = node_of(transport);

	lock(node);
	if (link->state != OVER || link->released)
		violation(node->net, "release() before DOWN, or twice");
	else
		link_bury(node, link);
	unlock(node);
}

static uint32_t net_poll(struct bh_rdma_transport *transport, struct bh_rdma_event *events,
			 uint32_t max)
{
	struct net_node *node = node_of(transport);
	uint32_t n = 0;

	lock(node);
	node_receive(node);
	while (n < max && !bh_list_empty(&node->events)) {
		struct queued_event *event =
			bh_container_of(bh_list_pop_front(&node->events), struct queued_event, in);

		events[n++] = event->event;
		free(event);
	}
	unlock(node);
	return n;
}

static int64_t node_next(const struct net_node *node)
{
	int64_t next = INT64_MAX;

	if (!bh_list_empty(&node->events))
		return 0;
	for (struct bh_list *in = node->links.next; in != &node->links; in = in->next) {
		struct bh_rdma_link *link = bh_container_of(in, struct bh_rdma_link, in_node);

		if (!bh_list_empty(&link->packets)) {
			struct packet *first =
				bh_container_of(link->packets.next, struct packet, in);

			next = first->at_ns < next ? first->at_ns : next;
		}
	}
	return next;
}

static bool net_arm(struct bh_rdma_transport *transport)
{
	struct net_node *node = node_of(transport);
	uint64_t n;
	bool armed;

	lock(node);
	if (read(node->wake_fd, &n, sizeof(n)) < 0)
		n = 0;
	armed = node_next(node) > net_now(node->net);
	unlock(node);
	return armed;
}

static uint32_t net_descriptors(struct bh_rdma_transport *transport, int ret_fds[BH_RDMA_FDS])
{
	ret_fds[0] = node_of(transport)->wake_fd;
	return 1;
}

static int64_t net_timeout(struct bh_rdma_transport *transport)
{
	struct net_node *node = node_of(transport);
	int64_t next;

	lock(node);
	next = node_next(node);
	if (next != INT64_MAX)
		next -= net_now(node->net);
	unlock(node);
	return next;
}

static const struct bh_rdma_transport_ops net_ops = {
	.name = "simulated",
	.register_memory = net_register,
	.deregister = net_deregister,
	.connect = net_connect,
	.accept = net_accept,
	.reject = net_reject,
	.post = net_post,
	.send = net_send,
	.disconnect = net_disconnect,
	.release = net_release,
	.poll = net_poll,
	.arm = net_arm,
	.descriptors = net_descriptors,
	.timeout_ns = net_timeout,
};

/* ---- for tests ------------------------------------------------------------------------------------- */

struct net *net_new(const struct net_options *options)
{
	struct net *net = calloc(1, sizeof(*net));

	assert(net);
	net->options = *options;
	net->random = options->seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
	pthread_mutex_init(&net->lock, NULL);
	bh_list_init(&net->graves);
	return net;
}

struct bh_rdma_address net_address(uint32_t where)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons((uint16_t)where) };
	struct bh_rdma_address address = { .length = sizeof(in) };

	in.sin_addr.s_addr = htonl(UINT32_C(0xc0000201));
	memcpy(address.bytes, &in, sizeof(in));
	return address;
}

struct net_node *net_node_new(struct net *net, uint32_t where)
{
	struct net_node *node = calloc(1, sizeof(*node));

	assert(node && where < NODES && !net->nodes[where] && net->n_all < 256);
	node->net = net;
	node->where = where;
	node->transport = (struct bh_rdma_transport){
		.ops = &net_ops,
		.kind = BH_RDMA_SOFTWARE,
		.address = net_address(where),
		.max_message = net->options.max_message,
		.max_outstanding = net->options.max_outstanding,
		.max_reads = net->options.max_reads,
	};
	bh_list_init(&node->links);
	bh_list_init(&node->events);
	bh_list_init(&node->memories);
	node->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_lock(&net->lock);
	net->nodes[where] = net->all[net->n_all++] = node;
	pthread_mutex_unlock(&net->lock);
	return node;
}

struct bh_rdma_transport *net_transport(struct net_node *node)
{
	return &node->transport;
}

static void events_free(struct net_node *node)
{
	struct bh_list *in;

	while ((in = bh_list_pop_front(&node->events)))
		free(bh_container_of(in, struct queued_event, in));
}

void net_kill(struct net_node *node, bool silent)
{
	struct bh_list *in;

	lock(node);
	if (!node->dead) {
		node->dead = true;
		node->net->nodes[node->where] = NULL;
		while ((in = bh_list_pop_front(&node->links))) {
			struct bh_rdma_link *link =
				bh_container_of(in, struct bh_rdma_link, in_node);

			if (!silent)
				link_close_other(link);
			link->state = OVER;
			link_bury(node, link);
		}
		events_free(node);
	}
	unlock(node);
}

void net_silence(struct net_node *node, bool silent)
{
	lock(node);
	node->silent = silent;
	unlock(node);
}

void net_drop_links(struct net *net, struct net_node *a, struct net_node *b, bool alone)
{
	pthread_mutex_lock(&net->lock);
	for (struct bh_list *in = a->links.next; in != &a->links; in = in->next) {
		struct bh_rdma_link *link = bh_container_of(in, struct bh_rdma_link, in_node);

		if (link->state == UP && link->other && link->other->node == b) {
			struct bh_rdma_link *poster = link->mine ? link : link->other;

			if (!alone && poster->n_requests <= 1 && net->n_solo_drops++ > 0)
				continue;
			link_break(link);
		}
	}
	pthread_mutex_unlock(&net->lock);
}

int64_t net_next_ns(struct net *net)
{
	int64_t next = INT64_MAX;

	pthread_mutex_lock(&net->lock);
	for (uint32_t i = 0; i < NODES; i++)
		if (net->nodes[i] && node_next(net->nodes[i]) < next)
			next = node_next(net->nodes[i]);
	pthread_mutex_unlock(&net->lock);
	return next;
}

uint32_t net_violations(const struct net *net, const char **ret_last)
{
	*ret_last = net->last_violation ? net->last_violation : "none";
	return net->n_violations;
}

uint32_t net_outstanding(const struct net_node *node)
{
	uint32_t n = 0;

	for (const struct bh_list *in = node->links.next; in != &node->links; in = in->next)
		n += bh_container_of(in, struct bh_rdma_link, in_node)->n_requests;
	return n;
}

uint32_t net_most_outstanding(const struct net_node *node)
{
	return node->most_outstanding;
}

uint64_t net_connects(const struct net_node *node)
{
	return node->n_connects;
}

uint64_t net_messages(const struct net_node *node)
{
	return node->n_messages;
}

uint32_t net_links_up(const struct net_node *node)
{
	uint32_t n = 0;

	for (const struct bh_list *in = node->links.next; in != &node->links; in = in->next)
		n += bh_container_of(in, struct bh_rdma_link, in_node)->state == UP;
	return n;
}

static void link_free(struct bh_rdma_link *link)
{
	struct bh_list *in;

	while (!bh_list_empty(&link->packets))
		packet_free(bh_container_of(link->packets.next, struct packet, in));
	while ((in = bh_list_pop_front(&link->requests)))
		free(bh_container_of(in, struct request, in));
	free(link);
}

void net_free(struct net *net)
{
	struct bh_list *in;

	for (uint32_t i = 0; i < net->n_all; i++) {
		struct net_node *node = net->all[i];

		events_free(node);
		while ((in = bh_list_pop_front(&node->links)))
			link_free(bh_container_of(in, struct bh_rdma_link, in_node));
		while ((in = bh_list_pop_front(&node->memories)))
			free(bh_container_of(in, struct memory, in));
		close(node->wake_fd);
		free(node);
	}
	while ((in = bh_list_pop_front(&net->graves)))
		link_free(bh_container_of(in, struct bh_rdma_link, in_node));
	pthread_mutex_destroy(&net->lock);
	free(net);
}
