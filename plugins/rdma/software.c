/* SPDX-License-Identifier: BSD-3-Clause */
/* software - the transport over libfabric's `tcp` provider: any machine, no device.
 *
 * Links are connected endpoints (FI_EP_MSG), one TCP connection each, so that a link can be cut
 * without the others. libfabric checks keys, bounds and rights of what peers ask for, in the process
 * that owns the memory, and only while that process polls: the engine's thread is what serves peers.
 * A peer that breaks the rules has its whole link ended, and nobody is told which request it was.
 *
 * It is for networks whose members trust each other: there is no encryption, and on a link that was
 * accepted the provider does not survive every frame that its own side would never send (seen with
 * 1.17: an acknowledgement that nobody waits for, a tagged message). Who accepts must therefore know
 * from the hello that the peer holds a descriptor of ours.
 *
 * Thread: as transport.h says. libfabric starts none of its own for this provider as it is used here.
 * Owns:   all of libfabric's objects. A work's memory is the caller's until its DONE.
 * Keeps:  SUP-10: an endpoint is closed before DONE is said of what was posted on it. */
#include "config.h"

#include "plugins/rdma/transport.h"

#include <arpa/inet.h>
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define API FI_VERSION(1, 12) /* what configure asks for */
#define RECEIVES 8u	      /* posted on each link; past it TCP holds the peer back */
#define SENDS 16u	      /* on the way on each link: a peer that reads nothing costs no more */
#define BATCH 32u	      /* completions read at once */
#define POLLS_A_LOOK 64u      /* polls between two looks for connections while none is expected */
#define NONE UINT32_MAX	      /* no slot */
#define PRESET_MESSAGE (1u << 20)
#define STRANGERS 64u	    /* watched at a time */
#define CLOSING_SWEEPS 1000 /* far more than it takes: libfabric sees some at each look */

/* What libfabric is given as context says which slot, and which use of it: a completion that comes
 * late, or twice, for one that is over means nothing, whoever uses the slot by then. */
enum slot_kind { SLOT_FREE = 0, SLOT_READ, SLOT_WRITE, SLOT_RECEIVE, SLOT_SEND };
struct slot {
	struct bh_rdma_link *link;
	uint64_t cookie;	 /* of a work; of a receive which buffer */
	uint32_t generation;	 /* of this use */
	uint32_t next, previous; /* on the link, or next that is free */
	enum slot_kind kind;
};
static_assert(sizeof(void *) == sizeof(uint64_t), "a context holds a slot and its use");

enum link_state {
	LINK_CONNECTING = 1,
	LINK_REQUESTED, /* a peer waits for accept() or reject() */
	LINK_ACCEPTED,	/* UP is to be said */
	LINK_UP,
	LINK_ENDING, /* closed; DONE for what is left, and DOWN or REFUSED, are to be said */
	LINK_OVER
};

/* T: engine's thread. */
struct bh_rdma_link {
	struct software *software;
	struct bh_rdma_link *next, *previous;
	struct bh_rdma_link *next_ending;
	enum link_state state;
	bool refused;		 /* with a hello: REFUSED is to be said */
	bh_status status;	 /* DOWN's */
	struct fid_ep *endpoint; /* NULL: closed, or not yet made */
	struct fi_info *request; /* REQUESTED: libfabric's handle of it */
	int64_t deadline_ns;	 /* CONNECTING */
	uint64_t ready_at;	 /* ENDING: completions read by then are all of its own */
	uint32_t first;		 /* of its slots */
	uint32_t n_works, n_reads, n_sends;
	uint32_t n_early; /* messages that came before UP could be said */
	uint8_t early[RECEIVES];
	struct bh_rdma_address peer;
	struct bh_rdma_fault fault;
	uint8_t hello[BH_RDMA_HELLO_SIZE];
	uint8_t receives[RECEIVES][BH_RDMA_MESSAGE_SIZE];
};

struct registration {
	struct registration *next, **link;
	struct fid_mr *mr;
};

struct software {
	struct bh_rdma_transport transport; /* I: but for what open() fills */
	int64_t connect_timeout_ns;	    /* I */
	bool source;			    /* I: connections leave from our own address */
	struct fi_info *info;		    /* I */
	struct fid_fabric *fabric;	    /* I */
	struct fid_domain *domain;	    /* I; locks for itself */
	struct fid_eq *eq;		    /* T: connections */
	struct fid_cq *cq;		    /* T: completions of all links */
	struct fid_pep *listener;	    /* T */

	struct bh_rdma_link *links;			/* T */
	struct bh_rdma_link *endings, **endings_behind; /* T */
	struct slot *slots;				/* T */
	uint32_t n_slots, free, n_live;			/* T */
	uint32_t n_expecting; /* T: links that are not up yet: look for events at each poll */
	uint32_t n_early;     /* T: messages of all links that wait for UP */
	uint32_t n_polls;     /* T */
	bool look;	      /* T: for connections, at the next poll */
	bool drained;	      /* T: the last poll looked everywhere, and left nothing */
	uint64_t n_read;      /* T: completions read ever */

	int64_t sweep_ns; /* T: when to look for strangers; INT64_MAX: nobody has come since */
	struct bh_rdma_address strangers[STRANGERS]; /* T: those of the last sweep */
	uint32_t n_strangers;			     /* T */

	pthread_mutex_t lock;		    /* guards the M field; held for a few instructions */
	struct registration *registrations; /* M */
};

static struct software *software_of(struct bh_rdma_transport *transport)
{
	return (struct software *)((char *)transport - offsetof(struct software, transport));
}

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ---- addresses ------------------------------------------------------------------------------- */

struct address_text {
	char text[INET6_ADDRSTRLEN + 10];
};

static struct address_text text_of(const struct sockaddr_storage *at, bool with_port)
{
	struct address_text text = { "an unknown address" };
	char host[INET6_ADDRSTRLEN] = "?";
	const struct sockaddr_in *in = (const void *)at;
	const struct sockaddr_in6 *in6 = (const void *)at;

	if (at->ss_family == AF_INET) {
		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		if (with_port)
			snprintf(text.text, sizeof(text.text), "%s:%u", host, ntohs(in->sin_port));
		else
			snprintf(text.text, sizeof(text.text), "%s", host);
	} else if (at->ss_family == AF_INET6) {
		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		if (with_port)
			snprintf(text.text, sizeof(text.text), "[%s]:%u", host,
				 ntohs(in6->sin6_port));
		else
			snprintf(text.text, sizeof(text.text), "%s", host);
	}
	return text;
}

static struct sockaddr_storage storage_of(const struct bh_rdma_address *address)
{
	struct sockaddr_storage at = { 0 };

	if (address->length == sizeof(struct sockaddr_in) ||
	    address->length == sizeof(struct sockaddr_in6))
		memcpy(&at, address->bytes, address->length);
	return at;
}

static struct address_text peer_text(const struct bh_rdma_link *link)
{
	struct sockaddr_storage at = storage_of(&link->peer);

	return text_of(&at, true);
}

static void address_set(struct bh_rdma_address *address, const void *bytes, size_t length)
{
	memset(address, 0, sizeof(*address));
	if (length > sizeof(address->bytes))
		return;
	memcpy(address->bytes, bytes, length);
	address->length = (uint8_t)length;
}

/* Numeric, and one that peers could use: not the wildcard, not one that means another thing on
 * each machine. */
static bool address_parse(const char *text, struct sockaddr_storage *ret_at, socklen_t *ret_length)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };

	memset(ret_at, 0, sizeof(*ret_at));
	if (inet_pton(AF_INET, text, &in.sin_addr) == 1 && in.sin_addr.s_addr != INADDR_ANY) {
		memcpy(ret_at, &in, sizeof(in));
		*ret_length = sizeof(in);
		return true;
	}
	if (inet_pton(AF_INET6, text, &in6.sin6_addr) == 1 &&
	    !IN6_IS_ADDR_UNSPECIFIED(&in6.sin6_addr) && !IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr)) {
		memcpy(ret_at, &in6, sizeof(in6));
		*ret_length = sizeof(in6);
		return true;
	}
	return false;
}

static bool address_is_loopback(const struct sockaddr_storage *at)
{
	const struct sockaddr_in *in = (const void *)at;
	const struct sockaddr_in6 *in6 = (const void *)at;

	if (at->ss_family == AF_INET)
		return ntohl(in->sin_addr.s_addr) >> 24 == 127;
	return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

static void address_set_port(struct sockaddr_storage *at, uint16_t port)
{
	if (at->ss_family == AF_INET)
		((struct sockaddr_in *)at)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)at)->sin6_port = htons(port);
}

/* Those of this machine, for a message: as many as `size` has room for. */
static void addresses_here(char *text, size_t size)
{
	struct ifaddrs *all = NULL;
	size_t used = 0;

	text[0] = '\0';
	if (getifaddrs(&all) < 0)
		return;
	for (struct ifaddrs *one = all; one; one = one->ifa_next) {
		struct sockaddr_storage at = { 0 };
		struct sockaddr_storage usable;
		struct address_text name;
		socklen_t length;

		if (!one->ifa_addr ||
		    (one->ifa_addr->sa_family != AF_INET && one->ifa_addr->sa_family != AF_INET6))
			continue;
		memcpy(&at, one->ifa_addr,
		       one->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
							   : sizeof(struct sockaddr_in6));
		name = text_of(&at, false);
		if (!address_parse(name.text, &usable, &length) ||
		    used + strlen(name.text) + 3 > size)
			continue;
		used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "",
					 name.text);
	}
	freeifaddrs(all);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static bool slots_grow(struct software *software)
{
	uint32_t n = software->n_slots ? software->n_slots * 2 : 256;
	struct slot *slots = realloc(software->slots, n * sizeof(*slots));

	if (!slots)
		return false;
	software->slots = slots;
	for (uint32_t i = n; i-- > software->n_slots;) {
		slots[i] = (struct slot){ .next = software->free };
		software->free = i;
	}
	software->n_slots = n;
	return true;
}

/* NONE: no memory. */
static uint32_t slot_take(struct bh_rdma_link *link, enum slot_kind kind, uint64_t cookie)
{
	struct software *software = link->software;
	uint32_t at = software->free;
	struct slot *slot;

	if (at == NONE && !slots_grow(software))
		return NONE;
	at = software->free;
	slot = &software->slots[at];
	software->free = slot->next;
	software->n_live++;
	*slot = (struct slot){ .link = link,
			       .cookie = cookie,
			       .generation = slot->generation + 1,
			       .next = link->first,
			       .previous = NONE,
			       .kind = kind };
	if (link->first != NONE)
		software->slots[link->first].previous = at;
	link->first = at;
	link->n_works += kind == SLOT_READ || kind == SLOT_WRITE;
	link->n_reads += kind == SLOT_READ;
	link->n_sends += kind == SLOT_SEND;
	return at;
}

static void slot_give(struct software *software, uint32_t at)
{
	struct slot *slot = &software->slots[at];
	struct bh_rdma_link *link = slot->link;

	link->n_works -= slot->kind == SLOT_READ || slot->kind == SLOT_WRITE;
	link->n_reads -= slot->kind == SLOT_READ;
	link->n_sends -= slot->kind == SLOT_SEND;
	if (slot->previous != NONE)
		software->slots[slot->previous].next = slot->next;
	else
		link->first = slot->next;
	if (slot->next != NONE)
		software->slots[slot->next].previous = slot->previous;
	*slot = (struct slot){ .generation = slot->generation, .next = software->free };
	software->free = at;
	software->n_live--;
}

static void *slot_context(const struct software *software, uint32_t at)
{
	return (void *)(uintptr_t)((uint64_t)software->slots[at].generation << 32 | at);
}

/* NONE: it was over already. */
static uint32_t slot_of(const struct software *software, const void *context)
{
	uint64_t value = (uint64_t)(uintptr_t)context;
	uint32_t at = (uint32_t)value;

	if (at >= software->n_slots || software->slots[at].kind == SLOT_FREE ||
	    software->slots[at].generation != (uint32_t)(value >> 32))
		return NONE;
	return at;
}

/* ---- links ----------------------------------------------------------------------------------- */

static struct bh_rdma_link *link_new(struct software *software, enum link_state state)
{
	struct bh_rdma_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->software = software;
	link->state = state;
	link->first = NONE;
	link->next = software->links;
	if (link->next)
		link->next->previous = link;
	software->links = link;
	return link;
}

static void link_free(struct bh_rdma_link *link)
{
	struct software *software = link->software;

	while (link->first != NONE)
		slot_give(software, link->first);
	if (link->previous)
		link->previous->next = link->next;
	else
		software->links = link->next;
	if (link->next)
		link->next->previous = link->previous;
	free(link);
}

static bool link_is_expecting(const struct bh_rdma_link *link)
{
	return link->state == LINK_CONNECTING || link->state == LINK_ACCEPTED;
}

static void link_set_state(struct bh_rdma_link *link, enum link_state state)
{
	struct software *software = link->software;

	software->n_expecting -= link_is_expecting(link);
	link->state = state;
	software->n_expecting += link_is_expecting(link);
}

static void request_reject(struct bh_rdma_link *link, const uint8_t *hello)
{
	if (!link->request)
		return;
	(void)fi_reject(link->software->listener, link->request->handle, hello,
			hello ? BH_RDMA_HELLO_SIZE : 0);
	fi_freeinfo(link->request);
	link->request = NULL;
}

/* From its return on nothing of the link touches memory: the socket is closed, what was queued is
 * given back as an error that waits in the completion queue. The kernel has copies of what it still
 * sends. */
static void link_close(struct bh_rdma_link *link)
{
	if (link->endpoint)
		(void)fi_close(&link->endpoint->fid);
	link->endpoint = NULL;
	request_reject(link, NULL);
}

/* The caller has filled `link->fault` if there is something to say. */
static void link_end(struct bh_rdma_link *link, bh_status status)
{
	struct software *software = link->software;

	if (link->state == LINK_ENDING || link->state == LINK_OVER)
		return;
	link_close(link);
	link_set_state(link, LINK_ENDING);
	software->n_early -= link->n_early;
	link->n_early = 0;
	link->status = status;
	link->ready_at = software->n_read + software->n_live;
	link->next_ending = NULL;
	*software->endings_behind = link;
	software->endings_behind = &link->next_ending;
}

static bh_status link_receive(struct bh_rdma_link *link, uint32_t buffer)
{
	struct software *software = link->software;
	uint32_t at = slot_take(link, SLOT_RECEIVE, buffer);
	ssize_t got;

	if (at == NONE)
		return -ENOMEM;
	got = fi_recv(link->endpoint, link->receives[buffer], BH_RDMA_MESSAGE_SIZE, NULL,
		      FI_ADDR_UNSPEC, slot_context(software, at));
	if (got < 0)
		slot_give(software, at);
	return (bh_status)got;
}

/* `info` says which way: it has the handle of a request, or none. */
static bh_status link_make_endpoint(struct bh_rdma_link *link, struct fi_info *info)
{
	struct software *software = link->software;
	int st = fi_endpoint(software->domain, info, &link->endpoint, link);

	if (st < 0) {
		link->endpoint = NULL;
		return st;
	}
	st = fi_ep_bind(link->endpoint, &software->eq->fid, 0);
	if (st == 0)
		st = fi_ep_bind(link->endpoint, &software->cq->fid, FI_TRANSMIT | FI_RECV);
	if (st == 0)
		st = fi_enable(link->endpoint);
	for (uint32_t i = 0; st == 0 && i < RECEIVES; i++)
		st = link_receive(link, i);
	return st;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static bh_status status_of_connecting(int error)
{
	switch (error) {
	case ETIMEDOUT:
		return -ETIMEDOUT;
	case EHOSTUNREACH:
	case ENETUNREACH:
	case EADDRNOTAVAIL:
	case EINVAL: /* what the kernel says of a way from the loopback address to elsewhere */
		return -EHOSTUNREACH;
	default:
		return -ECONNREFUSED;
	}
}

static void fault_add_status(struct bh_rdma_fault *fault, int error)
{
	if (fault)
		snprintf(fault->status, sizeof(fault->status), "%s", fi_strerror(error));
}

/* From the address that was asked for, so that peers see where we are; but from the loopback
 * address no way leads elsewhere. */
static struct fi_info *info_towards(const struct software *software,
				    const struct sockaddr_storage *to)
{
	struct fi_info *info = fi_dupinfo(software->info);
	struct sockaddr_storage own = storage_of(&software->transport.address);

	if (!info)
		return NULL;
	if (!software->source || own.ss_family != to->ss_family) {
		free(info->src_addr);
		info->src_addr = NULL;
		info->src_addrlen = 0;
		info->addr_format = to->ss_family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
	}
	return info;
}

static bh_status software_connect(struct bh_rdma_transport *transport,
				  const struct bh_rdma_address *address,
				  const uint8_t hello[BH_RDMA_HELLO_SIZE],
				  struct bh_rdma_link **ret_link, struct bh_rdma_fault *fault)
{
	struct software *software = software_of(transport);
	struct sockaddr_storage to = storage_of(address);
	struct fi_info *info;
	struct bh_rdma_link *link;
	int st;

	if (to.ss_family != AF_INET && to.ss_family != AF_INET6)
		return bh_rdma_fault(fault, -EINVAL, "rdma.address",
				     "a peer's address is neither IPv4 nor IPv6");
	info = info_towards(software, &to);
	link = info ? link_new(software, LINK_REQUESTED) : NULL;
	if (!link) {
		fi_freeinfo(info);
		return bh_rdma_fault(fault, -ENOMEM, "rdma.memory",
				     "no memory for a connection to %s", text_of(&to, true).text);
	}
	link->peer = *address;
	st = link_make_endpoint(link, info);
	if (st == 0)
		st = fi_connect(link->endpoint, &to, hello, BH_RDMA_HELLO_SIZE);
	fi_freeinfo(info);
	if (st < 0) {
		bh_rdma_fault(fault, st, "rdma.connect", "cannot connect to %s from %s: %s",
			      peer_text(link).text, software->transport.device, fi_strerror(-st));
		fault_add_status(fault, -st);
		link_close(link);
		link_free(link);
		return st == -FI_ENOMEM || st == -FI_EMFILE ? st : status_of_connecting(-st);
	}
	link->deadline_ns = now_ns() + software->connect_timeout_ns;
	link_set_state(link, LINK_CONNECTING);
	*ret_link = link;
	return 0;
}

static bh_status software_accept(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
				 const uint8_t hello[BH_RDMA_HELLO_SIZE],
				 struct bh_rdma_fault *fault)
{
	int st;

	(void)transport;
	if (link->state != LINK_REQUESTED)
		return bh_rdma_fault(fault, -EINVAL, "rdma.accept", "no peer waits on this link");
	st = link_make_endpoint(link, link->request);
	if (st == 0)
		st = fi_accept(link->endpoint, hello, BH_RDMA_HELLO_SIZE);
	if (st == 0) {
		fi_freeinfo(link->request);
		link->request = NULL;
		link_set_state(link, LINK_ACCEPTED);
		return 0;
	}
	/* The peer may have gone meanwhile: no fault of the caller's, so DOWN says it. */
	bh_rdma_fault(&link->fault, st, "rdma.accept", "cannot accept %s: %s", peer_text(link).text,
		      fi_strerror(-st));
	fault_add_status(&link->fault, -st);
	link_end(link, -ECONNRESET);
	return 0;
}

static void software_reject(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			    const uint8_t hello[BH_RDMA_HELLO_SIZE])
{
	(void)transport;
	request_reject(link, hello);
	link_free(link);
}

static void software_disconnect(struct bh_rdma_transport *transport, struct bh_rdma_link *link)
{
	(void)transport;
	link_end(link, 0);
}

static void software_release(struct bh_rdma_transport *transport, struct bh_rdma_link *link)
{
	(void)transport;
	link_free(link);
}

/* ---- work ------------------------------------------------------------------------------------ */

static bh_status post_as(struct bh_rdma_link *link, enum slot_kind kind, uint64_t cookie,
			 ssize_t (*give)(struct bh_rdma_link *link, const void *what,
					 void *context),
			 const void *what)
{
	struct software *software = link->software;
	uint32_t at = slot_take(link, kind, cookie);
	ssize_t given;

	if (at == NONE)
		return -EAGAIN;
	given = give(link, what, slot_context(software, at));
	if (given == 0)
		return 0;
	slot_give(software, at);
	if (given == -FI_EAGAIN)
		return -EAGAIN;
	bh_rdma_fault(&link->fault, (bh_status)given, "rdma.post", "cannot post to %s: %s",
		      peer_text(link).text, fi_strerror((int)-given));
	fault_add_status(&link->fault, (int)-given);
	link_end(link, -ECONNRESET);
	return (bh_status)given;
}

/* Delivery, not transmission: a write that is done is in the peer's memory. */
static ssize_t give_work(struct bh_rdma_link *link, const void *what, void *context)
{
	const struct bh_rdma_work *work = what;
	struct iovec local = { .iov_base = work->local, .iov_len = work->length };
	struct fi_rma_iov remote = { .addr = work->remote, .len = work->length, .key = work->key };
	struct fi_msg_rma message = { .msg_iov = &local,
				      .iov_count = 1,
				      .rma_iov = &remote,
				      .rma_iov_count = 1,
				      .context = context };

	if (work->op == BH_RDMA_OP_READ)
		return fi_readmsg(link->endpoint, &message, FI_COMPLETION);
	return fi_writemsg(link->endpoint, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

static bh_status software_post(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			       const struct bh_rdma_work *work)
{
	if (link->state != LINK_UP)
		return -ENOTCONN;
	if (link->n_works >= transport->max_outstanding)
		return -EAGAIN;
	return post_as(link, work->op == BH_RDMA_OP_READ ? SLOT_READ : SLOT_WRITE, work->cookie,
		       give_work, work);
}

/* It is copied: FI_INJECT. With a completion all the same, as what is on the way must be counted. */
static ssize_t give_message(struct bh_rdma_link *link, const void *what, void *context)
{
	struct iovec local = { .iov_base = (void *)(uintptr_t)what,
			       .iov_len = BH_RDMA_MESSAGE_SIZE };
	struct fi_msg message = { .msg_iov = &local, .iov_count = 1, .context = context };

	return fi_sendmsg(link->endpoint, &message, FI_COMPLETION | FI_INJECT);
}

static bh_status software_send(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			       const uint8_t message[BH_RDMA_MESSAGE_SIZE])
{
	(void)transport;
	if (link->state != LINK_UP)
		return -ENOTCONN;
	if (link->n_sends >= SENDS)
		return -EAGAIN;
	return post_as(link, SLOT_SEND, 0, give_message, message);
}

/* ---- events ---------------------------------------------------------------------------------- */

struct collector {
	struct bh_rdma_event *events;
	uint32_t n, max;
};

static struct bh_rdma_event *event_add(struct collector *into, enum bh_rdma_event_kind kind,
				       struct bh_rdma_link *link)
{
	struct bh_rdma_event *event = &into->events[into->n++];

	memset(event, 0, sizeof(*event));
	event->kind = kind;
	event->link = link;
	return event;
}

static void message_add(struct collector *into, struct bh_rdma_link *link, uint32_t buffer)
{
	struct bh_rdma_event *event = event_add(into, BH_RDMA_MESSAGE, link);

	memcpy(event->bytes, link->receives[buffer], BH_RDMA_MESSAGE_SIZE);
	if (link->endpoint && link_receive(link, buffer) < 0) {
		bh_rdma_fault(&link->fault, -ENOMEM, "rdma.memory",
			      "no memory to receive messages from %s", peer_text(link).text);
		link_end(link, -ECONNRESET);
	}
}

/* `error`: 0: well. Takes room for one event at most. */
static void on_completion(struct software *software, struct collector *into, const void *context,
			  int error)
{
	uint32_t at = slot_of(software, context);
	struct slot slot;

	software->n_read++;
	if (at == NONE)
		return;
	slot = software->slots[at];
	slot_give(software, at);
	switch (slot.kind) {
	case SLOT_READ:
	case SLOT_WRITE: {
		struct bh_rdma_event *event = event_add(into, BH_RDMA_DONE, slot.link);

		event->cookie = slot.cookie;
		event->status = error == FI_EACCES ? -EACCES : -error;
		return;
	}
	case SLOT_RECEIVE:
		if (error) /* the link ends; that is said apart */
			return;
		if (slot.link->state == LINK_UP || slot.link->state == LINK_ENDING) {
			message_add(into, slot.link, (uint32_t)slot.cookie);
			return;
		}
		/* The buffer is not posted again before UP has been said: so there is a place. */
		slot.link->early[slot.link->n_early++] = (uint8_t)slot.cookie;
		software->n_early++;
		return;
	case SLOT_SEND:
	case SLOT_FREE:
		return;
	}
}

/* True: the queue was asked and had nothing. Not asked again after it gave less than it might have:
 * that would be a system call a completion. */
static bool read_completions(struct software *software, struct collector *into)
{
	struct fi_cq_entry entries[BATCH];
	struct fi_cq_err_entry error;

	while (into->n < into->max) {
		uint32_t room = into->max - into->n < BATCH ? into->max - into->n : BATCH;
		ssize_t n = fi_cq_read(software->cq, entries, room);

		if (n == -FI_EAVAIL) {
			memset(&error, 0, sizeof(error));
			if (fi_cq_readerr(software->cq, &error, 0) == 1)
				on_completion(software, into, error.op_context,
					      error.err ? error.err : EIO);
			continue;
		}
		if (n <= 0)
			return true;
		for (ssize_t i = 0; i < n; i++)
			on_completion(software, into, entries[i].op_context, 0);
		if (n < (ssize_t)room)
			return false;
	}
	return false;
}

static struct bh_rdma_link *link_find(struct software *software, const struct fid *fid)
{
	for (struct bh_rdma_link *link = software->links; link; link = link->next)
		if (link->endpoint && &link->endpoint->fid == fid)
			return link;
	return NULL;
}

static void on_request(struct software *software, struct collector *into, struct fi_info *info,
		       const uint8_t *data, size_t length)
{
	struct bh_rdma_link *link =
		length == BH_RDMA_HELLO_SIZE ? link_new(software, LINK_REQUESTED) : NULL;
	struct bh_rdma_event *event;

	if (!link) { /* no memory, or none of ours */
		(void)fi_reject(software->listener, info->handle, NULL, 0);
		fi_freeinfo(info);
		return;
	}
	link->request = info;
	if (info->dest_addr)
		address_set(&link->peer, info->dest_addr, info->dest_addrlen);
	event = event_add(into, BH_RDMA_REQUEST, link);
	event->peer = link->peer;
	memcpy(event->bytes, data, BH_RDMA_HELLO_SIZE);
}

static void on_connected(struct collector *into, struct bh_rdma_link *link, const uint8_t *data,
			 size_t length)
{
	struct bh_rdma_event *event;

	if (!link || !link_is_expecting(link))
		return;
	if (link->state == LINK_CONNECTING && length != BH_RDMA_HELLO_SIZE) {
		bh_rdma_fault(&link->fault, -ECONNREFUSED, "rdma.hello",
			      "%s is not a Bulkhead: its answer has %zu bytes, not %u",
			      peer_text(link).text, length, BH_RDMA_HELLO_SIZE);
		link_end(link, -ECONNREFUSED);
		return;
	}
	event = event_add(into, BH_RDMA_UP, link);
	if (link->state == LINK_CONNECTING)
		memcpy(event->bytes, data, BH_RDMA_HELLO_SIZE);
	link_set_state(link, LINK_UP);
}

static void on_shutdown(struct bh_rdma_link *link)
{
	if (!link)
		return;
	bh_rdma_fault(&link->fault, -ECONNRESET, "rdma.link",
		      "%s ended the link: its process ended, or it refused a request, which ends "
		      "all of a link's requests",
		      peer_text(link).text);
	fault_add_status(&link->fault, ECONNRESET);
	link_end(link, link->state == LINK_CONNECTING ? -ECONNREFUSED : -ECONNRESET);
}

static void on_failure(struct bh_rdma_link *link, int error, const uint8_t *data, size_t length)
{
	if (!link)
		return;
	if (link->state != LINK_CONNECTING) {
		on_shutdown(link);
		fault_add_status(&link->fault, error);
		return;
	}
	link->refused = error == FI_ECONNREFUSED && length == BH_RDMA_HELLO_SIZE;
	if (link->refused)
		memcpy(link->hello, data, BH_RDMA_HELLO_SIZE);
	bh_rdma_fault(&link->fault, status_of_connecting(error), "rdma.connect",
		      "cannot connect to %s: %s%s", peer_text(link).text,
		      link->refused ? "it refused: " : "", fi_strerror(error));
	fault_add_status(&link->fault, error);
	link_end(link, status_of_connecting(error));
}

/* Takes room for one event. False: there was nothing. */
static bool read_event(struct software *software, struct collector *into)
{
	union {
		struct fi_eq_cm_entry entry;
		uint8_t bytes[sizeof(struct fi_eq_cm_entry) + 512];
	} got;
	const size_t head = offsetof(struct fi_eq_cm_entry, data);
	uint8_t data[512];
	struct fi_eq_err_entry error = { .err_data = data, .err_data_size = sizeof(data) };
	uint32_t event = 0;
	ssize_t n;

	/* libfabric takes an errno of before for the reason why a peer's request came short. */
	errno = 0;
	n = fi_eq_read(software->eq, &event, &got, sizeof(got), 0);
	if (n == -FI_EAVAIL) {
		if (fi_eq_readerr(software->eq, &error, 0) < 0)
			return false;
		on_failure(link_find(software, error.fid), error.err, error.err_data,
			   error.err_data_size);
		return true;
	}
	if (n < (ssize_t)head)
		return false;
	if (event == FI_CONNREQ)
		on_request(software, into, got.entry.info, got.entry.data, (size_t)n - head);
	else if (event == FI_CONNECTED)
		on_connected(into, link_find(software, got.entry.fid), got.entry.data,
			     (size_t)n - head);
	else if (event == FI_SHUTDOWN)
		on_shutdown(link_find(software, got.entry.fid));
	return true;
}

static bool read_events(struct software *software, struct collector *into)
{
	while (into->n < into->max)
		if (!read_event(software, into))
			return true;
	return false;
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* libfabric accepts whoever connects and waits for their first words without a limit, nor does it give
 * them back when the listener is closed; and it does not say which descriptors those are. They are the
 * sockets at our listener's address that no link has. Only shut down here: libfabric then finds them at
 * their end, and closes them itself. */

static bool is_at_our_address(const struct software *software, int fd)
{
	struct sockaddr_storage own = { 0 };
	socklen_t length = sizeof(own);
	const struct bh_rdma_address *ours = &software->transport.address;

	return getsockname(fd, (struct sockaddr *)&own, &length) == 0 && length == ours->length &&
	       memcmp(&own, ours->bytes, length) == 0;
}

static bool stranger_at(const struct software *software, int fd, struct bh_rdma_address *ret_peer)
{
	struct sockaddr_storage peer = { 0 };
	socklen_t length = sizeof(peer);

	if (getpeername(fd, (struct sockaddr *)&peer, &length) < 0)
		return false;
	address_set(ret_peer, &peer, length);
	for (const struct bh_rdma_link *link = software->links; link; link = link->next)
		if (memcmp(&link->peer, ret_peer, sizeof(*ret_peer)) == 0)
			return false;
	return true;
}

static bool stranger_is_known(const struct software *software, const struct bh_rdma_address *peer)
{
	for (uint32_t i = 0; i < software->n_strangers; i++)
		if (memcmp(&software->strangers[i], peer, sizeof(*peer)) == 0)
			return true;
	return false;
}

/* Sends away those who were there at the last sweep too; or all, and ends the listener, which lets
 * nobody in from then on. Returns how many it found. */
static uint32_t sweep(struct software *software, bool all)
{
	struct bh_rdma_address found[STRANGERS], peer;
	uint32_t n = 0, n_kept = 0;
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;

	while (folder && (entry = readdir(folder))) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] == '.' || !is_at_our_address(software, fd))
			continue;
		if (!stranger_at(software, fd, &peer)) {
			if (all)
				(void)shutdown(fd, SHUT_RDWR);
			continue;
		}
		n++;
		if (all || stranger_is_known(software, &peer))
			(void)shutdown(fd, SHUT_RDWR);
		else if (n_kept < STRANGERS)
			found[n_kept++] = peer;
	}
	if (folder)
		closedir(folder);
	memcpy(software->strangers, found, n_kept * sizeof(found[0]));
	software->n_strangers = n_kept;
	return n;
}

/* Whoever has said nothing for connect_timeout, once or twice over, is sent away. */
static void sweep_when_due(struct software *software)
{
	int64_t now;

	if (software->sweep_ns == INT64_MAX)
		return;
	now = now_ns();
	if (now < software->sweep_ns)
		return;
	software->sweep_ns =
		sweep(software, false) ? now + software->connect_timeout_ns : INT64_MAX;
}

/* ---- polling --------------------------------------------------------------------------------- */

static void time_out(struct software *software)
{
	int64_t now = software->n_expecting ? now_ns() : 0;
	struct bh_rdma_link *next;

	for (struct bh_rdma_link *link = software->n_expecting ? software->links : NULL; link;
	     link = next) {
		next = link->next;
		if (link->state != LINK_CONNECTING || link->deadline_ns > now)
			continue;
		bh_rdma_fault(&link->fault, -ETIMEDOUT, "rdma.connect",
			      "%s did not answer within %.3f s (connect_timeout)",
			      peer_text(link).text, (double)software->connect_timeout_ns / 1e9);
		fault_add_status(&link->fault, ETIMEDOUT);
		link_end(link, -ETIMEDOUT);
	}
}

/* Messages that came with the answer to connect(), now that UP has been said. */
static void say_early(struct software *software, struct collector *into)
{
	for (struct bh_rdma_link *link = software->n_early ? software->links : NULL; link;
	     link = link->next)
		while (link->n_early && link->state == LINK_UP && into->n < into->max) {
			uint8_t buffer = link->early[0];

			software->n_early--;
			memmove(link->early, link->early + 1, --link->n_early);
			message_add(into, link, buffer);
		}
}

/* What is left of links that were closed. Nothing more is known of it, so it is canceled. */
static void say_endings(struct software *software, struct collector *into, bool drained)
{
	struct bh_rdma_link *link;

	while ((link = software->endings) && (drained || software->n_read >= link->ready_at)) {
		struct bh_rdma_event *event;

		while (link->first != NONE && into->n < into->max) {
			struct slot slot = software->slots[link->first];

			slot_give(software, link->first);
			if (slot.kind != SLOT_READ && slot.kind != SLOT_WRITE)
				continue;
			event = event_add(into, BH_RDMA_DONE, link);
			event->cookie = slot.cookie;
			event->status = -ECANCELED;
		}
		if (into->n == into->max)
			return;
		event = event_add(into, link->refused ? BH_RDMA_REFUSED : BH_RDMA_DOWN, link);
		event->status = link->status;
		if (link->refused)
			memcpy(event->bytes, link->hello, BH_RDMA_HELLO_SIZE);
		if (link->fault.id[0])
			event->fault = &link->fault;
		link->state = LINK_OVER;
		software->endings = link->next_ending;
		if (!software->endings)
			software->endings_behind = &software->endings;
	}
}

static uint32_t software_poll(struct bh_rdma_transport *transport, struct bh_rdma_event *events,
			      uint32_t max)
{
	struct software *software = software_of(transport);
	struct collector into = { events, 0, max };
	bool drained, looked = false;

	say_early(software, &into);
	/* Looking costs two system calls. What is not seen here is seen before a sleep. */
	if (software->n_expecting || software->look || ++software->n_polls % POLLS_A_LOOK == 0) {
		looked = read_events(software, &into);
		if (software->look && software->sweep_ns == INT64_MAX) /* somebody may have come */
			software->sweep_ns = now_ns() + software->connect_timeout_ns;
		software->look = !looked;
		sweep_when_due(software);
	}
	drained = read_completions(software, &into);
	time_out(software);
	say_endings(software, &into, drained);
	software->drained = looked && drained && !software->endings && !software->n_early;
	return into.n;
}

static bool software_arm(struct bh_rdma_transport *transport)
{
	struct software *software = software_of(transport);
	struct fid *fids[] = { &software->eq->fid, &software->cq->fid };

	software->look = true; /* now, or after the sleep, which a connection may end */
	return software->drained && !software->endings &&
	       fi_trywait(software->fabric, fids, 2) == FI_SUCCESS;
}

static uint32_t software_descriptors(struct bh_rdma_transport *transport, int ret_fds[BH_RDMA_FDS])
{
	struct software *software = software_of(transport);
	uint32_t n = 0;

	if (fi_control(&software->eq->fid, FI_GETWAIT, &ret_fds[n]) == 0)
		n++;
	if (fi_control(&software->cq->fid, FI_GETWAIT, &ret_fds[n]) == 0)
		n++;
	return n;
}

static int64_t software_timeout_ns(struct bh_rdma_transport *transport)
{
	struct software *software = software_of(transport);
	int64_t nearest = software->sweep_ns, now;

	for (struct bh_rdma_link *link = software->n_expecting ? software->links : NULL; link;
	     link = link->next)
		if (link->state == LINK_CONNECTING && link->deadline_ns < nearest)
			nearest = link->deadline_ns;
	if (nearest == INT64_MAX)
		return nearest;
	now = now_ns();
	return nearest > now ? nearest - now : 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* 64 bits that nobody guesses. */
static bool key_new(uint64_t *ret_key)
{
	return getrandom(ret_key, sizeof(*ret_key), 0) == (ssize_t)sizeof(*ret_key);
}

static uint64_t fabric_access(uint32_t access)
{
	return (access & BH_RDMA_READ ? FI_REMOTE_READ : 0) |
	       (access & BH_RDMA_WRITE ? FI_REMOTE_WRITE : 0);
}

static bh_status software_register(struct bh_rdma_transport *transport, void *data, uint64_t length,
				   uint32_t access, struct bh_rdma_memory *ret_memory,
				   struct bh_rdma_fault *fault)
{
	struct software *software = software_of(transport);
	struct registration *registration;
	uint64_t key = 0;
	int st;

	/* Offsets, not addresses, are what peers name: descriptors tell nobody where memory lies. */
	*ret_memory = (struct bh_rdma_memory){ .data = data, .length = length, .base = 0 };
	if (access == 0 || length == 0) /* nothing that peers could reach */
		return key_new(&ret_memory->key)
			       ? 0
			       : bh_rdma_fault(fault, -errno, "rdma.random", "no random numbers");
	registration = calloc(1, sizeof(*registration));
	if (!registration)
		return bh_rdma_fault(fault, -ENOMEM, "rdma.memory", "no memory for a region");
	do
		st = key_new(&key)
			     ? fi_mr_reg(software->domain, data, length, fabric_access(access), 0,
					 key, 0, &registration->mr, NULL)
			     : -errno;
	while (st == -FI_ENOKEY);
	if (st < 0) {
		free(registration);
		bh_rdma_fault(fault, st, "rdma.register",
			      "libfabric does not register %" PRIu64 " bytes: %s", length,
			      fi_strerror(-st));
		fault_add_status(fault, -st);
		return st;
	}
	pthread_mutex_lock(&software->lock);
	registration->next = software->registrations;
	registration->link = &software->registrations;
	if (registration->next)
		registration->next->link = &registration->next;
	software->registrations = registration;
	pthread_mutex_unlock(&software->lock);
	ret_memory->key = fi_mr_key(registration->mr);
	ret_memory->handle = registration;
	return 0;
}

/* Closing stops no write or read that libfabric has begun: false. */
static bool software_deregister(struct bh_rdma_transport *transport, struct bh_rdma_memory *memory)
{
	struct software *software = software_of(transport);
	struct registration *registration = memory->handle;

	if (!registration)
		return true;
	pthread_mutex_lock(&software->lock);
	*registration->link = registration->next;
	if (registration->next)
		registration->next->link = registration->link;
	pthread_mutex_unlock(&software->lock);
	(void)fi_close(&registration->mr->fid);
	free(registration);
	memory->handle = NULL;
	return false;
}

/* ---- open and close -------------------------------------------------------------------------- */

static bh_status check_range(const char *name, int64_t value, int64_t least, int64_t most,
			     struct bh_rdma_fault *fault)
{
	if (value >= least && value <= most)
		return 0;
	return bh_rdma_fault(fault, -EINVAL, "rdma.option",
			     "%s = %" PRId64 ": takes %" PRId64 " … %" PRId64, name, value, least,
			     most);
}

/* One that peers can reach, of an interface here: told by the kernel, which lets a socket have it. */
static bh_status check_address(const char *text, struct sockaddr_storage *ret_at,
			       socklen_t *ret_length, struct bh_rdma_fault *fault)
{
	char here[128];
	int fd, error = 0;

	if (!address_parse(text, ret_at, ret_length))
		return bh_rdma_fault(fault, -EINVAL, "rdma.option",
				     "address = %.64s: takes one IPv4 or IPv6 address in digits, "
				     "neither a wildcard nor link-local",
				     text);
	fd = socket(ret_at->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return bh_rdma_fault(fault, -errno, "rdma.socket", "no socket: %s",
				     strerror(errno));
	if (bind(fd, (const struct sockaddr *)ret_at, *ret_length) < 0)
		error = errno;
	close(fd);
	if (!error)
		return 0;
	addresses_here(here, sizeof(here));
	return bh_rdma_fault(fault, -EINVAL, "rdma.option",
			     "address = %.64s: not of this machine (%s), which has %s", text,
			     strerror(error), here);
}

static bh_status check_config(const struct bh_rdma_config *config, struct bh_rdma_fault *fault)
{
	bh_status st = check_range("listen_port", config->listen_port, 0, 65535, fault);

	if (st == 0)
		st = check_range("queue_depth", config->queue_depth, 16, 4096, fault);
	if (st == 0 && config->max_message)
		st = check_range("max_message", config->max_message, 4096, 1 << 30, fault);
	if (st == 0 && config->connect_timeout_ns <= 0)
		st = bh_rdma_fault(fault, -EINVAL, "rdma.option",
				   "connect_timeout: must be more than 0");
	return st;
}

/* With either of these the kernel still reads memory of a connection that has been closed. */
static bh_status check_environment(struct bh_rdma_fault *fault)
{
	static const struct {
		const char *name, *off;
	} settings[] = { { "FI_TCP_ZEROCOPY_SIZE", "-1" }, { "FI_TCP_IO_URING", "0" } };

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		const char *value = getenv(settings[i].name);

		if (value && strcmp(value, settings[i].off) != 0)
			return bh_rdma_fault(fault, -EINVAL, "rdma.environment",
					     "%s = %.32s in the environment: a link that is cut "
					     "would not let go of memory at once; unset it, or set "
					     "it to %s",
					     settings[i].name, value, settings[i].off);
	}
	return 0;
}

static bh_status open_failed(struct bh_rdma_fault *fault, int st, const char *what)
{
	bh_rdma_fault(fault, st, "rdma.fabric", "libfabric (tcp): no %s: %s", what,
		      fi_strerror(-st));
	fault_add_status(fault, -st);
	return st;
}

static bh_status open_info(struct software *software, const struct sockaddr_storage *at,
			   struct bh_rdma_fault *fault)
{
	struct fi_info *hints = fi_allocinfo();
	struct address_text node = text_of(at, false);
	int st = -FI_ENOMEM;

	if (hints)
		hints->fabric_attr->prov_name = strdup("tcp");
	if (hints && hints->fabric_attr->prov_name) {
		hints->ep_attr->type = FI_EP_MSG;
		hints->caps = FI_MSG | FI_RMA;
		hints->mode = 0;
		hints->addr_format = at->ss_family == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
		hints->domain_attr->mr_mode = 0; /* our keys; offsets from a region's begin */
		hints->domain_attr->threading = FI_THREAD_SAFE; /* workers register */
		hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
		hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
		st = fi_getinfo(API, node.text, "0", FI_SOURCE | FI_NUMERICHOST, hints,
				&software->info);
	}
	fi_freeinfo(hints);
	if (st == 0 && software->info->domain_attr->mr_key_size < sizeof(uint64_t))
		st = -FI_ENODATA;
	if (st == 0)
		return 0;
	bh_rdma_fault(fault, -ENODEV, "rdma.fabric",
		      "libfabric offers no provider `tcp` with connected endpoints at %s (%s); "
		      "FI_PROVIDER is %s",
		      node.text, fi_strerror(-st),
		      getenv("FI_PROVIDER") ? getenv("FI_PROVIDER") : "not set");
	fault_add_status(fault, -st);
	return -ENODEV;
}

static bh_status open_queues(struct software *software, struct bh_rdma_fault *fault)
{
	struct fi_eq_attr eq = { .size = 256, .wait_obj = FI_WAIT_FD };
	struct fi_cq_attr cq = { .size = 4096,
				 .format = FI_CQ_FORMAT_CONTEXT,
				 .wait_obj = FI_WAIT_FD };
	int st = fi_fabric(software->info->fabric_attr, &software->fabric, NULL);

	if (st < 0)
		return open_failed(fault, st, "fabric");
	st = fi_eq_open(software->fabric, &eq, &software->eq, NULL);
	if (st < 0)
		return open_failed(fault, st, "event queue");
	st = fi_domain(software->fabric, software->info, &software->domain, NULL);
	if (st < 0)
		return open_failed(fault, st, "domain");
	st = fi_cq_open(software->domain, &cq, &software->cq, NULL);
	if (st < 0)
		return open_failed(fault, st, "completion queue");
	return 0;
}

static bh_status open_listener(struct software *software, const struct bh_rdma_config *config,
			       struct sockaddr_storage at, socklen_t length,
			       struct bh_rdma_fault *fault)
{
	struct fi_info *info = fi_dupinfo(software->info);
	size_t size = sizeof(at);
	int st = -FI_ENOMEM;

	address_set_port(&at, (uint16_t)config->listen_port);
	if (info) {
		free(info->src_addr);
		info->src_addr = malloc(length);
		info->src_addrlen = length;
	}
	if (info && info->src_addr) {
		memcpy(info->src_addr, &at, length);
		st = fi_passive_ep(software->fabric, info, &software->listener, NULL);
	}
	fi_freeinfo(info);
	if (st == 0)
		st = fi_pep_bind(software->listener, &software->eq->fid, 0);
	if (st == 0)
		st = fi_listen(software->listener);
	if (st == 0)
		st = fi_getname(&software->listener->fid, &at, &size);
	if (st == -FI_EADDRINUSE || st == -FI_EACCES) {
		bh_rdma_fault(fault, st, "rdma.option",
			      "listen_port = %" PRId64 ": cannot be had at %s: %s",
			      config->listen_port, text_of(&at, false).text, fi_strerror(-st));
		fault_add_status(fault, -st);
		return st;
	}
	if (st < 0)
		return open_failed(fault, st, "listener");
	address_set(&software->transport.address, &at, length);
	snprintf(software->transport.device, sizeof(software->transport.device), "tcp %s",
		 text_of(&at, false).text);
	return 0;
}

/* Lets libfabric see who has gone; requests that come up yet are refused. */
static void drop_events(struct software *software)
{
	struct bh_rdma_event events[BATCH];
	struct collector into = { events, 0, BATCH };

	while (into.n < into.max && read_event(software, &into))
		;
	while (software->links) {
		link_close(software->links);
		link_free(software->links);
	}
}

static void software_close(struct bh_rdma_transport *transport)
{
	struct software *software = software_of(transport);

	while (software->links) {
		link_close(software->links);
		link_free(software->links);
	}
	for (int i = 0; software->listener && sweep(software, true) && i < CLOSING_SWEEPS; i++)
		drop_events(software);
	while (software->registrations) {
		struct registration *registration = software->registrations;

		software->registrations = registration->next;
		(void)fi_close(&registration->mr->fid);
		free(registration);
	}
	if (software->listener)
		(void)fi_close(&software->listener->fid);
	if (software->cq)
		(void)fi_close(&software->cq->fid);
	if (software->domain)
		(void)fi_close(&software->domain->fid);
	if (software->eq)
		(void)fi_close(&software->eq->fid);
	if (software->fabric)
		(void)fi_close(&software->fabric->fid);
	fi_freeinfo(software->info);
	pthread_mutex_destroy(&software->lock);
	free(software->slots);
	free(software);
}

static bh_status software_open(const struct bh_rdma_config *config,
			       struct bh_rdma_transport **ret_transport,
			       struct bh_rdma_fault *fault)
{
	const char *address = config->address && config->address[0] ? config->address : "127.0.0.1";
	struct sockaddr_storage at;
	socklen_t length;
	struct software *software;
	bh_status st = check_config(config, fault);

	if (st == 0)
		st = check_environment(fault);
	if (st == 0)
		st = check_address(address, &at, &length, fault);
	if (st < 0)
		return st;
	software = calloc(1, sizeof(*software));
	if (!software)
		return bh_rdma_fault(fault, -ENOMEM, "rdma.memory", "no memory for a transport");
	pthread_mutex_init(&software->lock, NULL);
	software->free = NONE;
	software->sweep_ns = INT64_MAX;
	software->endings_behind = &software->endings;
	software->connect_timeout_ns = config->connect_timeout_ns;
	software->source = !address_is_loopback(&at);
	software->transport.ops = &bh_rdma_software;
	software->transport.kind = BH_RDMA_SOFTWARE;
	software->transport.max_message =
		config->max_message ? (uint32_t)config->max_message : PRESET_MESSAGE;
	software->transport.max_outstanding = (uint32_t)config->queue_depth;
	software->transport.max_reads = (uint32_t)config->queue_depth;
	st = open_info(software, &at, fault);
	if (st == 0)
		st = open_queues(software, fault);
	if (st == 0)
		st = open_listener(software, config, at, length, fault);
	if (st < 0) {
		software_close(&software->transport);
		return st;
	}
	*ret_transport = &software->transport;
	return 0;
}

const struct bh_rdma_transport_ops bh_rdma_software = {
	.name = "software",
	.open = software_open,
	.close = software_close,
	.register_memory = software_register,
	.deregister = software_deregister,
	.connect = software_connect,
	.accept = software_accept,
	.reject = software_reject,
	.post = software_post,
	.send = software_send,
	.disconnect = software_disconnect,
	.release = software_release,
	.poll = software_poll,
	.arm = software_arm,
	.descriptors = software_descriptors,
	.timeout_ns = software_timeout_ns,
};
