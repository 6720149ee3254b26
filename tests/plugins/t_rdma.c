/* SPDX-License-Identifier: BSD-3-Clause */
/* t_rdma - plugins/rdma, whole, over a transport that does what no real one can be made to do.
 *
 * Its one host is itself: whatever it connects to, it is there at once. `device` says what goes wrong:
 *   loses  of what is posted on a link the first is done; the others come back flushed when the link is
 *          cut, but for the last, which never does (H14)
 *   gone   with the 20th request of a link the device is gone: health -ENODEV
 *
 * Thread: as transport.h has it; only register_memory and deregister may run beside the others. */
#include "config.h"

#include "plugins/rdma/transport.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 256u
#define EVENTS 1024u

struct bh_rdma_link {
	struct bh_rdma_link *other; /* NULL: released */
	bool over;
	uint32_t n_posted, n_held;
	uint64_t held[DEPTH]; /* cookies */
};

struct t_rdma {
	struct bh_rdma_transport transport;
	bool loses, gone;
	_Atomic uint64_t next_key;
	struct bh_rdma_event events[EVENTS]; /* a ring */
	uint32_t first, n;
};

static struct t_rdma *t_rdma_of(struct bh_rdma_transport *transport)
{
	return (struct t_rdma *)transport;
}

static struct bh_rdma_event *tell(struct t_rdma *t, enum bh_rdma_event_kind kind,
				  struct bh_rdma_link *link, bh_status status)
{
	struct bh_rdma_event *event = &t->events[(t->first + t->n) % EVENTS];

	assert(t->n < EVENTS);
	t->n++;
	*event = (struct bh_rdma_event){ .kind = kind, .link = link, .status = status };
	return event;
}

static bh_status t_open(const struct bh_rdma_config *config,
			struct bh_rdma_transport **ret_transport, struct bh_rdma_fault *fault)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(1) };
	struct t_rdma *t = calloc(1, sizeof(*t));

	if (!t)
		return bh_rdma_fault(fault, -ENOMEM, "rdma.memory", "no memory");
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	t->transport.ops = &bh_rdma_software;
	t->transport.kind = BH_RDMA_SOFTWARE;
	t->transport.max_message = 1u << 20;
	t->transport.max_outstanding = DEPTH;
	t->transport.max_reads = DEPTH;
	t->transport.needs_memory = true;
	t->transport.address.length = sizeof(address);
	memcpy(t->transport.address.bytes, &address, sizeof(address));
	snprintf(t->transport.device, sizeof(t->transport.device), "%s", config->device);
	t->loses = strcmp(config->device, "loses") == 0;
	t->gone = strcmp(config->device, "gone") == 0;
	*ret_transport = &t->transport;
	return 0;
}

static void t_close(struct bh_rdma_transport *transport)
{
	free(t_rdma_of(transport));
}

static bh_status t_register(struct bh_rdma_transport *transport, void *data, uint64_t length,
			    uint32_t access, struct bh_rdma_memory *ret_memory,
			    struct bh_rdma_fault *fault)
{
	(void)access;
	(void)fault;
	*ret_memory = (struct bh_rdma_memory){
		.data = data,
		.length = length,
		.base = (uintptr_t)data,
		.key = atomic_fetch_add(&t_rdma_of(transport)->next_key, 1) + 1,
	};
	return 0;
}

static bool t_deregister(struct bh_rdma_transport *transport, struct bh_rdma_memory *memory)
{
	(void)transport;
	(void)memory;
	return true;
}

static bh_status t_connect(struct bh_rdma_transport *transport,
			   const struct bh_rdma_address *address,
			   const uint8_t hello[BH_RDMA_HELLO_SIZE], struct bh_rdma_link **ret_link,
			   struct bh_rdma_fault *fault)
{
	struct bh_rdma_link *link = calloc(1, sizeof(*link)), *other = calloc(1, sizeof(*other));
	struct bh_rdma_event *event;

	if (!link || !other) {
		free(link);
		free(other);
		return bh_rdma_fault(fault, -ENOMEM, "rdma.memory", "no memory");
	}
	link->other = other;
	other->other = link;
	event = tell(t_rdma_of(transport), BH_RDMA_REQUEST, other, 0);
	event->peer = *address;
	memcpy(event->bytes, hello, BH_RDMA_HELLO_SIZE);
	*ret_link = link;
	return 0;
}

static bh_status t_accept(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			  const uint8_t hello[BH_RDMA_HELLO_SIZE], struct bh_rdma_fault *fault)
{
	struct t_rdma *t = t_rdma_of(transport);

	(void)fault;
	(void)tell(t, BH_RDMA_UP, link, 0);
	if (link->other)
		memcpy(tell(t, BH_RDMA_UP, link->other, 0)->bytes, hello, BH_RDMA_HELLO_SIZE);
	return 0;
}

static void part(struct bh_rdma_link *link)
{
	if (link->other)
		link->other->other = NULL;
	free(link);
}

static void t_reject(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
		     const uint8_t hello[BH_RDMA_HELLO_SIZE])
{
	struct bh_rdma_event *event;

	if (link->other) {
		link->other->over = true;
		event = tell(t_rdma_of(transport), BH_RDMA_REFUSED, link->other, -ECONNREFUSED);
		memcpy(event->bytes, hello, BH_RDMA_HELLO_SIZE);
	}
	part(link);
}

static void carry_out(const struct bh_rdma_work *work)
{
	void *remote = (void *)(uintptr_t)work->remote;

	if (work->op == BH_RDMA_OP_READ)
		memcpy(work->local, remote, work->length);
	else
		memcpy(remote, work->local, work->length);
}

static bh_status t_post(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			const struct bh_rdma_work *work)
{
	static const struct bh_rdma_fault lost = { "rdma.device", "the device is gone", "fatal" };
	struct t_rdma *t = t_rdma_of(transport);

	if (link->over)
		return -ENOTCONN;
	if (link->n_held == DEPTH)
		return -EAGAIN;
	if (link->n_posted++ == 0 || !(t->loses || t->gone)) {
		carry_out(work);
		tell(t, BH_RDMA_DONE, link, 0)->cookie = work->cookie;
		return 0;
	}
	link->held[link->n_held++] = work->cookie;
	if (t->gone && link->n_posted == 20)
		tell(t, BH_RDMA_HEALTH, NULL, -ENODEV)->fault = &lost;
	return 0;
}

static bh_status t_send(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			const uint8_t message[BH_RDMA_MESSAGE_SIZE])
{
	if (link->over || !link->other)
		return -ENOTCONN;
	memcpy(tell(t_rdma_of(transport), BH_RDMA_MESSAGE, link->other, 0)->bytes, message,
	       BH_RDMA_MESSAGE_SIZE);
	return 0;
}

/* Gives back what it held, but for the last where it loses; then it is over. */
static void end_link(struct t_rdma *t, struct bh_rdma_link *link, bh_status status)
{
	if (!link || link->over)
		return;
	for (uint32_t i = 0; i < link->n_held; i++)
		if (!t->loses || i + 1 < link->n_held)
			tell(t, BH_RDMA_DONE, link, -ECANCELED)->cookie = link->held[i];
	link->over = true;
	(void)tell(t, BH_RDMA_DOWN, link, status);
}

static void t_disconnect(struct bh_rdma_transport *transport, struct bh_rdma_link *link)
{
	end_link(t_rdma_of(transport), link->other, -ECONNRESET);
	end_link(t_rdma_of(transport), link, 0);
}

static void t_release(struct bh_rdma_transport *transport, struct bh_rdma_link *link)
{
	(void)transport;
	part(link);
}

static uint32_t t_poll(struct bh_rdma_transport *transport, struct bh_rdma_event *events,
		       uint32_t max)
{
	struct t_rdma *t = t_rdma_of(transport);
	uint32_t n = 0;

	for (; n < max && t->n > 0; t->n--) {
		events[n++] = t->events[t->first];
		t->first = (t->first + 1) % EVENTS;
	}
	return n;
}

static bool t_arm(struct bh_rdma_transport *transport)
{
	return t_rdma_of(transport)->n == 0;
}

static uint32_t t_descriptors(struct bh_rdma_transport *transport, int ret_fds[BH_RDMA_FDS])
{
	(void)transport;
	(void)ret_fds;
	return 0;
}

static int64_t t_timeout(struct bh_rdma_transport *transport)
{
	(void)transport;
	return INT64_MAX;
}

const struct bh_rdma_transport_ops bh_rdma_software = {
	.name = "software",
	.open = t_open,
	.close = t_close,
	.register_memory = t_register,
	.deregister = t_deregister,
	.connect = t_connect,
	.accept = t_accept,
	.reject = t_reject,
	.post = t_post,
	.send = t_send,
	.disconnect = t_disconnect,
	.release = t_release,
	.poll = t_poll,
	.arm = t_arm,
	.descriptors = t_descriptors,
	.timeout_ns = t_timeout,
};

/* Not asked for. */
const struct bh_rdma_transport_ops bh_rdma_verbs;
