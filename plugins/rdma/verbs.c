/* SPDX-License-Identifier: BSD-3-Clause */
/* verbs - the transport over RDMA devices: reliable connected queue pairs that rdma_cm connects.
 *
 * The device context is our own, not the one that librdmacm keeps, so that its asynchronous events are
 * ours alone; therefore queue pairs are made and moved through their states here, and rdma_cm is asked
 * only for the attributes (rdma_init_qp_attr) and the exchange of messages. librdmacm makes no thread.
 *
 * Queues cannot overrun: a link's share of its completion queue is set aside before its queue pair is
 * made, is as large as both of its queues, and is given back only after that queue pair has been
 * destroyed and the completion queue been emptied behind it.
 *
 * A link ends in one of two ways. Of itself (an error, the peer is gone): the queue pair goes to the
 * error state, and what was posted comes back as flushed; some cards never give all of it back (H14), so
 * that after FLUSH_NS it ends in the other way. By disconnect() (or that timeout): the queue pair is
 * destroyed, after which verbs promise that the device touches no memory for it, and what has not come
 * back is made up as -ECANCELED.
 *
 * Thread: see transport.h; the M field is guarded by `lock`, all else is the engine's thread's. */
#include "config.h"

#include "plugins/rdma/transport.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "plugins/rdma/verbs_device.h"

#define MESSAGES 16u	   /* that one link may have under way, each way */
#define CQ_DEPTH 4096u	   /* entries of a completion queue; a link alone may need more */
#define CQS_MAX 256u	   /* completion queues: some million work requests */
#define LINKS_MAX 65535u   /* the index of one is 16 bits of its serial */
#define INLINE_WANTED 220u /* bytes; a device that cannot gives less or none */
#define BATCH 32	   /* completions taken at once */
#define FAULTS 64u	   /* of one poll() */
#define HEALTH_EVENTS 8u   /* that wait for poll(); the last of each kind counts */
#define IDLE_POLLS 1024u   /* empty polls, of some 30 ns each, between two looks at the other fds */
#define FLUSH_NS 2000000000LL /* H14 */
#define ACK_TIMEOUT 16u	      /* 4.096 us * 2^16 = 268 ms, tried 1 + RETRIES times: 2.1 s */
#define RETRIES 7u
#define RNR_RETRIES 7u	       /* means: without end, so that no message is lost */
#define RNR_TIMER 12u	       /* 0.64 ms between two tries */
#define MESSAGE_MAX (1u << 30) /* bytes of a work request, where the device has no lower limit */

enum link_state {
	LINK_RESOLVING = 1, /* the peer's address */
	LINK_ROUTING,	    /* the way there */
	LINK_CONNECTING,
	LINK_REQUESTED, /* by the peer: accept() or reject() follows */
	LINK_ACCEPTING, /* the peer has not said yet that it is up */
	LINK_UP,
	LINK_FLUSHING, /* broken; what was posted is coming back */
	LINK_ENDED,    /* the queue pair is gone; made-up DONEs and DOWN wait for poll() */
	LINK_OVER      /* DOWN has been told: release() */
};

enum slot_use { SLOT_FREE = 0, SLOT_READ, SLOT_WRITE };

/* What a completion is of: bits 16 and 17 of its wr_id; below is the slot, above, from bit 32, the
 * link's serial. */
enum wr_kind { WR_WORK = 0, WR_SEND = 1, WR_RECEIVE = 2 };

struct completion_queue {
	struct ibv_cq *cq;
	uint32_t depth;
	uint32_t used; /* set aside for links */
	bool armed;
};

struct bh_rdma_link {
	uint32_t serial; /* index | generation << 16; never 0 */
	enum link_state state;
	bool outbound;
	bool was_up;
	bool refused;
	struct rdma_cm_id *id;
	struct ibv_qp *qp;
	struct completion_queue *cq;
	uint32_t share; /* of `cq` */
	struct bh_rdma_address peer;
	uint8_t hello[BH_RDMA_HELLO_SIZE];  /* ours while connecting, then the peer's */
	int64_t deadline_ns;		    /* INT64_MAX: none */
	uint8_t depth_asked, depth_offered; /* of reads; of a REQUEST */

	/* Work requests. */
	uint32_t n_slots;
	uint32_t n_free;
	uint32_t n_reads;
	uint16_t *free_slots;
	uint8_t *uses; /* enum slot_use */
	uint64_t *cookies;
	uint32_t max_inline;

	/* Messages: MESSAGES to send, then as many to receive, registered. */
	uint8_t *messages;
	struct ibv_mr *messages_mr;
	uint32_t free_sends; /* a bit each */
	uint32_t n_receives; /* posted */

	bh_status status; /* of DOWN */
	bool has_fault;
	struct bh_rdma_fault fault;
	struct bh_rdma_link *next_ended;
};

struct memory {
	struct ibv_mr *mr;
	struct memory *next;
	struct memory **link;
};

struct verbs {
	struct bh_rdma_transport transport;
	struct bh_rdma_verbs_device device;
	int64_t connect_timeout_ns;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct rdma_event_channel *cm;
	struct rdma_cm_id *listener;

	struct completion_queue *cqs[CQS_MAX];
	uint32_t n_cqs;
	struct ibv_wc *taken; /* completions that were taken and not told: a ring as large as all */
	uint32_t taken_size, taken_first, n_taken;

	struct bh_rdma_link **links; /* by the low half of their serial */
	uint16_t *generations;
	uint32_t links_size, n_links;
	uint32_t n_timed; /* links with a deadline */
	struct bh_rdma_link *ended, **ended_tail;

	struct {
		bh_status status;
		struct bh_rdma_fault fault;
	} health[HEALTH_EVENTS];
	uint32_t n_health;
	bool gid_is_gone;

	bool look; /* at the descriptors, at the next poll() */
	uint32_t n_idle;
	struct bh_rdma_fault faults[FAULTS];
	uint32_t n_faults;
	struct bh_rdma_fault flushed, made_up;

	pthread_mutex_t lock;
	struct memory *memory; /* M */
};

static struct verbs *verbs_of(struct bh_rdma_transport *transport)
{
	return (struct verbs *)transport;
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static struct bh_rdma_address address_of(const struct sockaddr *address)
{
	struct bh_rdma_address result = { .length = 0 };

	if (address->sa_family == AF_INET)
		result.length = sizeof(struct sockaddr_in);
	else if (address->sa_family == AF_INET6)
		result.length = sizeof(struct sockaddr_in6);
	memcpy(result.bytes, address, result.length);
	return result;
}

/* ---- what is told ----------------------------------------------------------------------------- */

/* Room for `fault` until the next poll(). poll() stops before there is none. */
static const struct bh_rdma_fault *keep_fault(struct verbs *v, const struct bh_rdma_fault *fault)
{
	v->faults[v->n_faults] = *fault;
	return &v->faults[v->n_faults++];
}

static void tell_health(struct verbs *v, bh_status status, const char *id, const char *text)
{
	if (v->n_health == HEALTH_EVENTS) {
		memmove(&v->health[0], &v->health[1], sizeof(v->health[0]) * (HEALTH_EVENTS - 1));
		v->n_health--;
	}
	v->health[v->n_health].status = status;
	bh_rdma_fault(&v->health[v->n_health].fault, status, id, "%s: %s", v->device.text, text);
	v->n_health++;
}

/* ---- links: table, deadlines ------------------------------------------------------------------ */

static struct bh_rdma_link *find_link(const struct verbs *v, uint32_t serial)
{
	uint32_t index = serial & 0xffff;
	struct bh_rdma_link *link = index < v->links_size ? v->links[index] : NULL;

	return link && link->serial == serial ? link : NULL;
}

static void set_deadline(struct verbs *v, struct bh_rdma_link *link, int64_t deadline_ns)
{
	if ((link->deadline_ns != INT64_MAX) != (deadline_ns != INT64_MAX))
		v->n_timed += deadline_ns != INT64_MAX ? 1 : (uint32_t)-1;
	link->deadline_ns = deadline_ns;
}

static bool grow_links(struct verbs *v)
{
	uint32_t size = v->links_size ? v->links_size * 2 : 64;
	struct bh_rdma_link **links;
	uint16_t *generations;

	if (v->links_size >= LINKS_MAX)
		return false;
	if (size > LINKS_MAX)
		size = LINKS_MAX;
	links = realloc(v->links, size * sizeof(*links));
	if (!links)
		return false;
	v->links = links;
	generations = realloc(v->generations, size * sizeof(*generations));
	if (!generations)
		return false;
	v->generations = generations;
	memset(links + v->links_size, 0, (size - v->links_size) * sizeof(*links));
	memset(generations + v->links_size, 0, (size - v->links_size) * sizeof(*generations));
	v->links_size = size;
	return true;
}

static struct bh_rdma_link *new_link(struct verbs *v, enum link_state state)
{
	struct bh_rdma_link *link = calloc(1, sizeof(*link));
	uint32_t index = 0;

	if (!link)
		return NULL;
	while (index < v->links_size && v->links[index])
		index++;
	if (index == v->links_size && !grow_links(v)) {
		free(link);
		return NULL;
	}
	if (++v->generations[index] == 0)
		v->generations[index] = 1;
	link->serial = index | (uint32_t)v->generations[index] << 16;
	link->state = state;
	link->deadline_ns = INT64_MAX;
	v->links[index] = link;
	v->n_links++;
	return link;
}

/* The queue pair and the id are gone already. */
static void free_link(struct verbs *v, struct bh_rdma_link *link)
{
	set_deadline(v, link, INT64_MAX);
	v->links[link->serial & 0xffff] = NULL;
	v->n_links--;
	free(link->free_slots);
	free(link->uses);
	free(link->cookies);
	free(link);
}

/* ---- completion queues ------------------------------------------------------------------------ */

/* Takes what is there, so that what is there afterwards is younger. There is room for all of it: each
 * completion is of a work request that a share was set aside for, until poll() has told it. */
static uint32_t take_completions(struct verbs *v, struct completion_queue *queue, uint32_t most)
{
	uint32_t total = 0;

	while (total < most && v->n_taken < v->taken_size) {
		uint32_t at = (v->taken_first + v->n_taken) % v->taken_size;
		uint32_t room = (at < v->taken_first ? v->taken_first : v->taken_size) - at;
		int n = ibv_poll_cq(queue->cq, (int)(room < BATCH ? room : BATCH), v->taken + at);

		if (n <= 0)
			break;
		v->n_taken += (uint32_t)n;
		total += (uint32_t)n;
	}
	return total;
}

static bool add_cq(struct verbs *v, uint32_t depth)
{
	struct completion_queue *queue = calloc(1, sizeof(*queue));
	uint32_t size = v->taken_size;
	struct ibv_wc *taken;

	if (!queue || v->n_cqs == CQS_MAX)
		goto fail;
	if (depth < CQ_DEPTH)
		depth = CQ_DEPTH;
	if (depth > (uint32_t)v->device.device.max_cqe)
		depth = (uint32_t)v->device.device.max_cqe;
	queue->cq = ibv_create_cq(v->device.context, (int)depth, queue, v->channel, 0);
	if (!queue->cq)
		goto fail;
	queue->depth = depth;
	/* The ring is made anew in order, larger by what this queue may hold. */
	taken = calloc(size + depth, sizeof(*taken));
	if (!taken)
		goto fail;
	for (uint32_t i = 0; i < v->n_taken; i++)
		taken[i] = v->taken[(v->taken_first + i) % size];
	free(v->taken);
	v->taken = taken;
	v->taken_first = 0;
	v->taken_size = size + depth;
	v->cqs[v->n_cqs++] = queue;
	return true;
fail:
	if (queue && queue->cq)
		ibv_destroy_cq(queue->cq);
	free(queue);
	return false;
}

/* Sets `share` entries aside; NULL: errno says why there are none. */
static struct completion_queue *reserve(struct verbs *v, uint32_t share)
{
	for (int tries = 0; tries < 2; tries++) {
		for (uint32_t i = 0; i < v->n_cqs; i++)
			if (v->cqs[i]->depth - v->cqs[i]->used >= share) {
				v->cqs[i]->used += share;
				return v->cqs[i];
			}
		errno = ENOSPC;
		if (tries || !add_cq(v, share))
			break;
	}
	return NULL;
}

/* ---- queue pairs ------------------------------------------------------------------------------ */

static uint64_t wr_id_of(const struct bh_rdma_link *link, enum wr_kind kind, uint32_t slot)
{
	return (uint64_t)link->serial << 32 | (uint64_t)kind << 16 | slot;
}

static int post_receive(struct bh_rdma_link *link, uint32_t slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)(link->messages + (MESSAGES + slot) * BH_RDMA_MESSAGE_SIZE),
		.length = BH_RDMA_MESSAGE_SIZE,
		.lkey = link->messages_mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = wr_id_of(link, WR_RECEIVE, slot),
				  .sg_list = &sge,
				  .num_sge = 1 };
	struct ibv_recv_wr *bad = NULL;
	int error = ibv_post_recv(link->qp, &wr, &bad);

	if (!error)
		link->n_receives++;
	return error;
}

static int modify(struct bh_rdma_link *link, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask = 0;

	if (rdma_init_qp_attr(link->id, &attr, &mask) < 0)
		return errno;
	/* Who connected posts; the other end's memory is what is reached. */
	if (state == IBV_QPS_INIT)
		attr.qp_access_flags =
			link->outbound ? 0 : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	if (state == IBV_QPS_RTR)
		attr.min_rnr_timer = RNR_TIMER;
	if (state == IBV_QPS_RTS) {
		attr.timeout = ACK_TIMEOUT;
		attr.retry_cnt = RETRIES;
		attr.rnr_retry = RNR_RETRIES;
	}
	/* As librdmacm does: older kernels set bits here that they refuse afterwards. */
	if (link->id->verbs && !(mask & IBV_QP_AV && attr.ah_attr.is_global))
		mask &= ~0xe00000;
	return ibv_modify_qp(link->qp, &attr, mask);
}

static bool make_slots(struct bh_rdma_link *link, uint32_t n)
{
	link->free_slots = calloc(n + 1, sizeof(*link->free_slots));
	link->uses = calloc(n + 1, sizeof(*link->uses));
	link->cookies = calloc(n + 1, sizeof(*link->cookies));
	if (!link->free_slots || !link->uses || !link->cookies)
		return false;
	link->n_slots = link->n_free = n;
	for (uint32_t i = 0; i < n; i++)
		link->free_slots[i] = (uint16_t)(n - 1 - i);
	return true;
}

static bool make_messages(struct verbs *v, struct bh_rdma_link *link, struct bh_rdma_fault *fault)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t size = (2 * MESSAGES * BH_RDMA_MESSAGE_SIZE + page - 1) / page * page;

	/* Whole pages of their own: nothing else shares what is pinned. */
	link->messages = aligned_alloc(page, size);
	if (!link->messages) {
		bh_rdma_fault(fault, -ENOMEM, "rdma.alloc", "out of memory");
		return false;
	}
	memset(link->messages, 0, size);
	link->messages_mr = ibv_reg_mr(v->pd, link->messages, size, IBV_ACCESS_LOCAL_WRITE);
	if (!link->messages_mr) {
		bh_rdma_verbs_memory_fault(fault, errno, link->messages, size);
		return false;
	}
	link->free_sends = (1u << MESSAGES) - 1;
	return true;
}

/* Inline data makes work requests larger: a device that cannot have them all so has less. */
static struct ibv_qp *create_qp(struct verbs *v, struct bh_rdma_link *link)
{
	static const uint32_t inlines[] = { INLINE_WANTED, 64, 32, 0 };

	for (size_t i = 0; i < sizeof(inlines) / sizeof(inlines[0]); i++) {
		struct ibv_qp_init_attr attr = {
			.qp_context = (void *)(uintptr_t)link->serial,
			.send_cq = link->cq->cq,
			.recv_cq = link->cq->cq,
			.cap = { .max_send_wr = link->n_slots + MESSAGES,
				 .max_recv_wr = MESSAGES,
				 .max_send_sge = 1,
				 .max_recv_sge = 1,
				 .max_inline_data = inlines[i] },
			.qp_type = IBV_QPT_RC,
		};
		struct ibv_qp *qp = ibv_create_qp(v->pd, &attr);

		if (qp) {
			link->max_inline = attr.cap.max_inline_data;
			return qp;
		}
		if (errno != EINVAL && errno != ENOMEM)
			break;
	}
	return NULL;
}

/* A queue pair in the state INIT, with its receives posted. What was made when it fails goes with the
 * link (cut). */
static bh_status make_qp(struct verbs *v, struct bh_rdma_link *link, struct bh_rdma_fault *fault)
{
	uint32_t n_slots = link->outbound ? v->transport.max_outstanding : 0;
	int error;

	if (!make_slots(link, n_slots))
		return bh_rdma_fault(fault, -ENOMEM, "rdma.alloc", "out of memory");
	if (!make_messages(v, link, fault))
		return -ENOMEM;
	link->share = n_slots + 2 * MESSAGES;
	link->cq = reserve(v, link->share);
	if (!link->cq)
		return bh_rdma_fault(
			fault, -ENOMEM, "rdma.queue",
			"%s has no completion queue for one more link of %u work "
			"requests (%u links now): %s; a smaller queue_depth takes less",
			v->device.text, link->share, v->n_links - 1, strerror(errno));
	link->qp = create_qp(v, link);
	if (!link->qp)
		return bh_rdma_fault(fault, -ENOMEM, "rdma.queue",
				     "%s has no queue pair for one more link of %u work requests "
				     "(%u links now): %s; a smaller queue_depth takes less",
				     v->device.text, link->share, v->n_links - 1, strerror(errno));
	error = modify(link, IBV_QPS_INIT);
	for (uint32_t i = 0; i < MESSAGES && !error; i++)
		error = post_receive(link, i);
	if (error)
		return bh_rdma_fault(fault, -EIO, "rdma.queue",
				     "a queue pair of %s could not be readied: %s", v->device.text,
				     strerror(error));
	return 0;
}

/* ---- the end of a link ------------------------------------------------------------------------ */

static bool all_is_back(const struct bh_rdma_link *link)
{
	return link->n_free == link->n_slots && link->free_sends == (1u << MESSAGES) - 1 &&
	       link->n_receives == 0;
}

/* After it the device touches no memory for this link. What the completion queue held is kept, to be
 * told before the rest is made up. */
static void destroy_qp(struct verbs *v, struct bh_rdma_link *link)
{
	if (link->qp) {
		take_completions(v, link->cq, UINT32_MAX);
		ibv_destroy_qp(link->qp);
		link->qp = NULL;
	}
	/* Some providers leave entries of a destroyed queue pair behind. */
	if (link->cq)
		take_completions(v, link->cq, UINT32_MAX);
	if (link->messages_mr)
		ibv_dereg_mr(link->messages_mr);
	link->messages_mr = NULL;
	link->n_receives = 0;
}

static void destroy_id(struct bh_rdma_link *link)
{
	if (!link->id)
		return;
	/* The peer's end would be told by the kernel too, but only after it has been asked. */
	if (link->was_up)
		rdma_disconnect(link->id);
	rdma_destroy_id(link->id);
	link->id = NULL;
}

/* What was told first is what counts. */
static void set_cause(struct bh_rdma_link *link, bh_status status,
		      const struct bh_rdma_fault *fault)
{
	if (link->has_fault || link->status)
		return;
	link->status = status;
	if (fault) {
		link->fault = *fault;
		link->has_fault = true;
	}
}

/* Ends it now. poll() tells the rest. */
static void cut(struct verbs *v, struct bh_rdma_link *link)
{
	destroy_qp(v, link);
	destroy_id(link);
	set_deadline(v, link, INT64_MAX);
	link->state = LINK_ENDED;
	link->next_ended = NULL;
	*v->ended_tail = link;
	v->ended_tail = &link->next_ended;
}

/* Ends it as soon as all that was posted has come back. */
static void fail(struct verbs *v, struct bh_rdma_link *link, bh_status status,
		 const struct bh_rdma_fault *fault)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (link->state == LINK_ENDED || link->state == LINK_OVER)
		return;
	set_cause(link, status, fault);
	if (link->state == LINK_FLUSHING)
		return;
	if (!link->was_up || ibv_modify_qp(link->qp, &attr, IBV_QP_STATE) != 0) {
		cut(v, link);
		return;
	}
	link->state = LINK_FLUSHING;
	set_deadline(v, link, now_ns() + FLUSH_NS);
	if (all_is_back(link))
		cut(v, link);
}

static void link_fault(struct bh_rdma_fault *fault, const struct bh_rdma_link *link,
		       bh_status status, const char *id, const char *text, const char *provider)
{
	bh_rdma_fault(fault, status, id, "%s: %s", bh_rdma_address_text(&link->peer).text, text);
	if (provider)
		snprintf(fault->status, sizeof(fault->status), "%s", provider);
}

static void fail_with(struct verbs *v, struct bh_rdma_link *link, bh_status status, const char *id,
		      const char *text, const char *provider)
{
	struct bh_rdma_fault fault;

	link_fault(&fault, link, status, id, text, provider);
	fail(v, link, status, &fault);
}

/* ---- completions ------------------------------------------------------------------------------ */

static bh_status status_of(enum ibv_wc_status status)
{
	switch ((int)status) {
	case IBV_WC_SUCCESS:
		return 0;
	case IBV_WC_REM_ACCESS_ERR:
		return -EACCES;
	case IBV_WC_REM_INV_REQ_ERR:
		return -EPROTO;
	case IBV_WC_REM_OP_ERR:
		return -EREMOTEIO;
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
		return -EFAULT;
	case IBV_WC_LOC_LEN_ERR:
		return -EMSGSIZE;
	case IBV_WC_RETRY_EXC_ERR: /* the link's fault, not the request's */
	case IBV_WC_LOC_QP_OP_ERR: /* Soft-RoCE's word for a port that is down */
	case IBV_WC_RNR_RETRY_EXC_ERR:
	case IBV_WC_WR_FLUSH_ERR:
		return -ECANCELED;
	default:
		return -EIO;
	}
}

/* A completion that says that something is wrong ends the link; the first one says why. */
static void note_error(struct verbs *v, struct bh_rdma_link *link, const struct ibv_wc *wc,
		       const char *what, struct bh_rdma_fault *ret_fault)
{
	const char *words = ibv_wc_status_str(wc->status);
	bh_status status = status_of(wc->status);

	bh_rdma_fault(ret_fault, status, "rdma.completion", "%s: %s: %s (vendor code 0x%x)",
		      bh_rdma_address_text(&link->peer).text, what, words, wc->vendor_err);
	snprintf(ret_fault->status, sizeof(ret_fault->status), "%s", words);
	fail(v, link, -ECONNRESET, ret_fault);
}

static uint32_t tell_done(struct verbs *v, struct bh_rdma_link *link, const struct ibv_wc *wc,
			  struct bh_rdma_event *event)
{
	uint32_t slot = wc->wr_id & 0xffff;
	bool read;

	if (slot >= link->n_slots || link->uses[slot] == SLOT_FREE)
		return 0;
	read = link->uses[slot] == SLOT_READ;
	*event = (struct bh_rdma_event){ .kind = BH_RDMA_DONE,
					 .link = link,
					 .cookie = link->cookies[slot],
					 .status = status_of(wc->status) };
	link->uses[slot] = SLOT_FREE;
	link->free_slots[link->n_free++] = (uint16_t)slot;
	link->n_reads -= read;
	if (wc->status == IBV_WC_WR_FLUSH_ERR) {
		event->fault = &v->flushed;
		/* The queue pair is in error, and what did that may be told last, or never. */
		fail(v, link, -ECONNRESET, &v->flushed);
	} else if (wc->status != IBV_WC_SUCCESS) {
		struct bh_rdma_fault fault;

		note_error(v, link, wc, read ? "a read" : "a write", &fault);
		event->fault = keep_fault(v, &fault);
	}
	return 1;
}

static uint32_t tell_message(struct verbs *v, struct bh_rdma_link *link, const struct ibv_wc *wc,
			     struct bh_rdma_event *event)
{
	uint32_t slot = wc->wr_id & 0xffff;
	struct bh_rdma_fault fault;

	if (link->n_receives)
		link->n_receives--;
	if (wc->status != IBV_WC_SUCCESS) {
		if (wc->status != IBV_WC_WR_FLUSH_ERR)
			note_error(v, link, wc, "a message", &fault);
		else
			fail(v, link, -ECONNRESET, &v->flushed);
		return 0;
	}
	if (wc->opcode != IBV_WC_RECV || wc->byte_len != BH_RDMA_MESSAGE_SIZE) {
		fail_with(v, link, -ECONNRESET, "rdma.message",
			  "the peer sent what is no message of ours", NULL);
		return 0;
	}
	*event = (struct bh_rdma_event){ .kind = BH_RDMA_MESSAGE, .link = link };
	memcpy(event->bytes, link->messages + (MESSAGES + slot) * BH_RDMA_MESSAGE_SIZE,
	       BH_RDMA_MESSAGE_SIZE);
	if (link->state == LINK_UP && post_receive(link, slot) != 0)
		fail_with(v, link, -ECONNRESET, "rdma.message", "a receive could not be posted",
			  NULL);
	return 1;
}

static void end_send(struct verbs *v, struct bh_rdma_link *link, const struct ibv_wc *wc)
{
	struct bh_rdma_fault fault;

	link->free_sends |= 1u << (wc->wr_id & 0xffff);
	if (wc->status == IBV_WC_WR_FLUSH_ERR)
		fail(v, link, -ECONNRESET, &v->flushed);
	else if (wc->status != IBV_WC_SUCCESS)
		note_error(v, link, wc, "a message", &fault);
}

static void set_up(struct verbs *v, struct bh_rdma_link *link, struct bh_rdma_event *event)
{
	link->state = LINK_UP;
	link->was_up = true;
	set_deadline(v, link, INT64_MAX);
	*event = (struct bh_rdma_event){ .kind = BH_RDMA_UP, .link = link };
	if (link->outbound)
		memcpy(event->bytes, link->hello, sizeof(event->bytes));
}

static bool has_room(const struct verbs *v, uint32_t n, uint32_t max)
{
	return n < max && v->n_faults < FAULTS;
}

/* Tells of what has been taken from the completion queues. */
static uint32_t tell_taken(struct verbs *v, struct bh_rdma_event *events, uint32_t max)
{
	uint32_t n = 0;

	while (v->n_taken && has_room(v, n, max)) {
		struct ibv_wc wc = v->taken[v->taken_first];
		struct bh_rdma_link *link = find_link(v, (uint32_t)(wc.wr_id >> 32));
		enum wr_kind kind = wc.wr_id >> 16 & 3;

		/* A first message may overtake the word that the link is up. */
		if (link && link->state == LINK_ACCEPTING && kind == WR_RECEIVE &&
		    wc.status == IBV_WC_SUCCESS) {
			set_up(v, link, &events[n++]);
			continue;
		}
		v->taken_first = (v->taken_first + 1) % v->taken_size;
		v->n_taken--;
		if (!link || link->state == LINK_OVER)
			continue;
		switch (kind) {
		case WR_WORK:
			n += tell_done(v, link, &wc, &events[n]);
			break;
		case WR_SEND:
			end_send(v, link, &wc);
			break;
		case WR_RECEIVE:
			n += tell_message(v, link, &wc, &events[n]);
			break;
		}
		if (link->state == LINK_FLUSHING && all_is_back(link))
			cut(v, link);
	}
	return n;
}

/* Links whose queue pairs are gone: makes up what never came back, then DOWN. Only when nothing taken
 * is left to tell, for that may be of them. */
static uint32_t tell_ended(struct verbs *v, struct bh_rdma_event *events, uint32_t max)
{
	uint32_t n = 0;

	while (v->ended && has_room(v, n, max)) {
		struct bh_rdma_link *link = v->ended;

		for (uint32_t slot = 0; slot < link->n_slots && link->n_free < link->n_slots;
		     slot++) {
			if (link->uses[slot] == SLOT_FREE)
				continue;
			if (!has_room(v, n, max))
				return n;
			events[n++] = (struct bh_rdma_event){ .kind = BH_RDMA_DONE,
							      .link = link,
							      .cookie = link->cookies[slot],
							      .status = -ECANCELED,
							      .fault = &v->made_up };
			link->uses[slot] = SLOT_FREE;
			link->free_slots[link->n_free++] = (uint16_t)slot;
		}
		if (!has_room(v, n, max))
			return n;
		v->ended = link->next_ended;
		if (!v->ended)
			v->ended_tail = &v->ended;
		link->state = LINK_OVER;
		/* All that was taken has been told by now: its share is free. */
		if (link->cq)
			link->cq->used -= link->share;
		link->cq = NULL;
		free(link->messages);
		link->messages = NULL;
		events[n] = (struct bh_rdma_event){ .kind = link->refused ? BH_RDMA_REFUSED
									  : BH_RDMA_DOWN,
						    .link = link,
						    .status = link->status };
		if (link->refused)
			memcpy(events[n].bytes, link->hello, sizeof(events[n].bytes));
		if (link->has_fault)
			events[n].fault = keep_fault(v, &link->fault);
		n++;
	}
	return n;
}

/* ---- connection events ------------------------------------------------------------------------ */

/* What rdma_cm's statuses mean for a link that is not up yet. */
static bh_status connect_status(int status)
{
	switch (status < 0 ? -status : status) {
	case ETIMEDOUT:
		return -ETIMEDOUT;
	case ECONNREFUSED:
		return -ECONNREFUSED;
	default:
		return -EHOSTUNREACH;
	}
}

static void fail_connect(struct verbs *v, struct bh_rdma_link *link, const char *what, int status)
{
	const char *words = strerror(status < 0 ? -status : status);
	bh_status result = connect_status(status);
	struct bh_rdma_fault fault;

	bh_rdma_fault(&fault, result, "rdma.connect", "%s: cannot connect: %s: %s (from %s)",
		      bh_rdma_address_text(&link->peer).text, what, words, v->device.text);
	snprintf(fault.status, sizeof(fault.status), "%s", words);
	fail(v, link, result, &fault);
}

static void go_routing(struct verbs *v, struct bh_rdma_link *link)
{
	if (!bh_rdma_verbs_is_of(&v->device, link->id)) {
		fail_connect(v, link, "the way there leads over another device or port",
			     EHOSTUNREACH);
		return;
	}
	link->state = LINK_ROUTING;
	if (rdma_resolve_route(link->id, (int)(v->connect_timeout_ns / 1000000)) < 0)
		fail_connect(v, link, "rdma_resolve_route", errno);
}

static uint8_t limit8(int wanted, int limit)
{
	int n = wanted < limit ? wanted : limit;

	/* 255 would mean "the most that there is". */
	return (uint8_t)(n > 254 ? 254 : n < 0 ? 0 : n);
}

static void go_connecting(struct verbs *v, struct bh_rdma_link *link)
{
	struct rdma_conn_param param = {
		.private_data = link->hello,
		.private_data_len = sizeof(link->hello),
		.responder_resources = 1, /* the peer posts nothing */
		.initiator_depth = limit8(v->device.device.max_qp_init_rd_atom, 254),
		.retry_count = RETRIES,
		.rnr_retry_count = RNR_RETRIES,
	};
	struct bh_rdma_fault fault;
	bh_status st = make_qp(v, link, &fault);

	if (st < 0) { /* what is missing is missing here: no word on the peer or the network */
		fail(v, link, st, &fault);
		return;
	}
	param.qp_num = link->qp->qp_num;
	link->state = LINK_CONNECTING;
	if (rdma_connect(link->id, &param) < 0)
		fail_connect(v, link, "rdma_connect", errno);
}

static uint32_t go_up(struct verbs *v, struct bh_rdma_link *link,
		      const struct rdma_conn_param *param, struct bh_rdma_event *event)
{
	int error = modify(link, IBV_QPS_RTR);

	if (!error)
		error = modify(link, IBV_QPS_RTS);
	if (!error && rdma_establish(link->id) < 0)
		error = errno;
	if (error) {
		fail_connect(v, link, "the queue pair could not be connected", error);
		return 0;
	}
	memset(link->hello, 0, sizeof(link->hello));
	if (param->private_data && param->private_data_len >= sizeof(link->hello))
		memcpy(link->hello, param->private_data, sizeof(link->hello));
	set_up(v, link, event);
	return 1;
}

static void be_refused(struct verbs *v, struct bh_rdma_link *link, int reason,
		       const struct rdma_conn_param *param)
{
	struct bh_rdma_fault fault;

	/* Reasons of the InfiniBand specification, 12.6.7.2. */
	if (reason == 28 && param->private_data && param->private_data_len >= sizeof(link->hello)) {
		memcpy(link->hello, param->private_data, sizeof(link->hello));
		link->refused = true;
		link_fault(&fault, link, -ECONNREFUSED, "rdma.connect",
			   "cannot connect: the peer refused", "consumer reject");
	} else if (reason == 8) {
		link_fault(&fault, link, -ECONNREFUSED, "rdma.connect",
			   "cannot connect: nobody listens there", "invalid service id");
	} else {
		bh_rdma_fault(&fault, -ECONNREFUSED, "rdma.connect",
			      "%s: cannot connect: reason %d of the connection manager",
			      bh_rdma_address_text(&link->peer).text, reason);
	}
	fail(v, link, -ECONNREFUSED, &fault);
}

static uint32_t be_requested(struct verbs *v, struct rdma_cm_id *id,
			     const struct rdma_conn_param *param, struct bh_rdma_event *event)
{
	struct bh_rdma_link *link = NULL;

	/* What has another size than our hello comes from no peer of ours. Requests that are not
	 * answered time out. */
	if (bh_rdma_verbs_is_of(&v->device, id) && param->private_data &&
	    param->private_data_len >= BH_RDMA_HELLO_SIZE)
		link = new_link(v, LINK_REQUESTED);
	if (!link) {
		rdma_reject(id, NULL, 0);
		rdma_destroy_id(id);
		return 0;
	}
	link->id = id;
	id->context = link;
	link->peer = address_of(rdma_get_peer_addr(id));
	link->depth_asked = param->responder_resources;
	link->depth_offered = param->initiator_depth;
	*event =
		(struct bh_rdma_event){ .kind = BH_RDMA_REQUEST, .link = link, .peer = link->peer };
	memcpy(event->bytes, param->private_data, sizeof(event->bytes));
	return 1;
}

static void be_disconnected(struct verbs *v, struct bh_rdma_link *link)
{
	/* What the queue pair has to say comes first: it knows whose fault it was. */
	if (link->cq)
		take_completions(v, link->cq, UINT32_MAX);
	fail_with(v, link, -ECONNRESET, "rdma.closed", "the peer has closed the link, or has ended",
		  "disconnected");
}

/* `event` is a copy; what it points to is valid as long. */
static uint32_t handle_cm_event(struct verbs *v, const struct rdma_cm_event *event,
				struct bh_rdma_event *ret)
{
	struct bh_rdma_link *link = event->id->context;

	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		return be_requested(v, event->id, &event->param.conn, ret);
	if (!link) { /* the listener's */
		if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
			tell_health(v, -ENODEV, "rdma.device_gone", "the device is being removed");
		return 0;
	}
	switch ((int)event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		go_routing(v, link);
		return 0;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		go_connecting(v, link);
		return 0;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		return link->state == LINK_CONNECTING ? go_up(v, link, &event->param.conn, ret) : 0;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (link->state != LINK_ACCEPTING)
			return 0;
		set_up(v, link, ret);
		return 1;
	case RDMA_CM_EVENT_ADDR_ERROR:
		fail_connect(v, link, "the address cannot be resolved", event->status);
		return 0;
	case RDMA_CM_EVENT_ROUTE_ERROR:
		fail_connect(v, link, "there is no route", event->status);
		return 0;
	case RDMA_CM_EVENT_UNREACHABLE:
		fail_connect(v, link, "no answer", event->status ? event->status : ETIMEDOUT);
		return 0;
	case RDMA_CM_EVENT_CONNECT_ERROR:
		fail_connect(v, link, "the connection failed", event->status);
		return 0;
	case RDMA_CM_EVENT_REJECTED:
		be_refused(v, link, event->status, &event->param.conn);
		return 0;
	case RDMA_CM_EVENT_DISCONNECTED:
		be_disconnected(v, link);
		return 0;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		fail_with(v, link, -ECONNRESET, "rdma.device_gone", "the device is being removed",
			  NULL);
		return 0;
	case RDMA_CM_EVENT_ADDR_CHANGE:
		fail_with(v, link, -ECONNRESET, "rdma.address_changed",
			  "the interface's address has changed", NULL);
		return 0;
	default: /* TIMEWAIT_EXIT, and what newer versions may say */
		return 0;
	}
}

static uint32_t take_cm_event(struct verbs *v, struct bh_rdma_event *ret, bool *ret_none)
{
	struct rdma_cm_event *event = NULL;
	struct rdma_cm_event copy;
	uint8_t data[256];

	*ret_none = rdma_get_cm_event(v->cm, &event) < 0;
	if (*ret_none)
		return 0;
	copy = *event;
	if (copy.param.conn.private_data && copy.param.conn.private_data_len) {
		memcpy(data, copy.param.conn.private_data, copy.param.conn.private_data_len);
		copy.param.conn.private_data = data;
	} else {
		copy.param.conn.private_data = NULL;
	}
	/* Now: an id that has an event out cannot be destroyed. */
	rdma_ack_cm_event(event);
	return handle_cm_event(v, &copy, ret);
}

/* ---- asynchronous events ---------------------------------------------------------------------- */

static void fail_all(struct verbs *v, const char *id, const char *text)
{
	for (uint32_t i = 0; i < v->links_size; i++)
		if (v->links[i])
			fail_with(v, v->links[i], -ECONNRESET, id, text, NULL);
}

/* The address may have gone, or come back. */
static void check_gid(struct verbs *v)
{
	struct ibv_gid_entry entry;
	bool gone = ibv_query_gid_ex(v->device.context, v->device.port_num, v->device.gid_index,
				     &entry, 0) != 0 ||
		    memcmp(&entry.gid, &v->device.gid, sizeof(entry.gid)) != 0;

	if (gone == v->gid_is_gone)
		return;
	v->gid_is_gone = gone;
	tell_health(v, gone ? -ENETDOWN : 0, gone ? "rdma.gid_gone" : "rdma.gid_back",
		    gone ? "its GID is gone: has the interface lost its address?"
			 : "its GID is back");
}

static void handle_async_event(struct verbs *v, const struct ibv_async_event *event)
{
	const char *words = ibv_event_type_str(event->event_type);
	struct bh_rdma_link *link = NULL;
	bool ours = event->element.port_num == v->device.port_num;

	switch ((int)event->event_type) {
	case IBV_EVENT_PORT_ERR:
		if (ours)
			tell_health(v, -ENETDOWN, "rdma.port_down",
				    "the port is down; transfers wait about 2 s before their link "
				    "ends");
		return;
	case IBV_EVENT_PORT_ACTIVE:
		if (ours)
			tell_health(v, 0, "rdma.port_up", "the port is active again");
		return;
	case IBV_EVENT_GID_CHANGE:
	case IBV_EVENT_LID_CHANGE:
		if (ours)
			check_gid(v);
		return;
	case IBV_EVENT_DEVICE_FATAL:
		tell_health(v, -ENODEV, "rdma.device_fatal", words);
		fail_all(v, "rdma.device_fatal", words);
		return;
	case IBV_EVENT_CQ_ERR:
		tell_health(v, -ENODEV, "rdma.device_fatal", words);
		fail_all(v, "rdma.device_fatal", words);
		return;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
		link = find_link(v, (uint32_t)(uintptr_t)event->element.qp->qp_context);
		break;
	default:
		return;
	}
	if (!link)
		return;
	if (event->event_type == IBV_EVENT_COMM_EST) {
		if (link->id)
			rdma_notify(link->id, IBV_EVENT_COMM_EST);
		return;
	}
	if (link->cq) /* what the queue pair has to say comes first */
		take_completions(v, link->cq, UINT32_MAX);
	fail_with(v, link, -ECONNRESET, "rdma.queue", words, words);
}

/* Connection events and asynchronous ones, as far as there is room. */
static uint32_t look_around(struct verbs *v, struct bh_rdma_event *events, uint32_t max)
{
	struct pollfd fds[2] = { { .fd = v->cm->fd, .events = POLLIN },
				 { .fd = v->device.context->async_fd, .events = POLLIN } };
	bool none = false;
	uint32_t n = 0;

	v->look = false;
	v->n_idle = 0;
	if (poll(fds, 2, 0) <= 0)
		return 0;
	if (fds[1].revents) {
		struct ibv_async_event event;

		while (ibv_get_async_event(v->device.context, &event) == 0) {
			handle_async_event(v, &event);
			ibv_ack_async_event(&event);
		}
	}
	while (fds[0].revents && !none) {
		if (!has_room(v, n, max)) {
			v->look = true;
			break;
		}
		n += take_cm_event(v, &events[n], &none);
	}
	return n;
}

/* ---- time ------------------------------------------------------------------------------------- */

static void time_out(struct verbs *v, struct bh_rdma_link *link)
{
	static const char *const stages[] = {
		[LINK_RESOLVING] = "cannot connect: its address could not be resolved in time",
		[LINK_ROUTING] = "cannot connect: no route was found in time",
		[LINK_CONNECTING] = "cannot connect: no answer in time: does a transport listen "
				    "there, and is the "
				    "way there free for RDMA?",
		[LINK_ACCEPTING] = "it asked for a link and did not take it in time",
	};
	struct bh_rdma_fault fault;

	if (link->state != LINK_FLUSHING) {
		link_fault(&fault, link, -ETIMEDOUT, "rdma.connect", stages[link->state], NULL);
		set_cause(link, -ETIMEDOUT, &fault);
	}
	cut(v, link);
}

static void check_deadlines(struct verbs *v)
{
	int64_t now = now_ns();

	for (uint32_t i = 0; i < v->links_size; i++)
		if (v->links[i] && v->links[i]->deadline_ns <= now)
			time_out(v, v->links[i]);
}

/* ---- the transport's functions ---------------------------------------------------------------- */

static uint32_t verbs_poll(struct bh_rdma_transport *transport, struct bh_rdma_event *events,
			   uint32_t max)
{
	struct verbs *v = verbs_of(transport);
	uint32_t n = 0, told = 0;

	v->n_faults = 0;
	if (v->look || ++v->n_idle >= IDLE_POLLS)
		n += look_around(v, events, max);
	if (v->n_timed)
		check_deadlines(v);
	while (told < v->n_health && has_room(v, n, max)) {
		events[n] = (struct bh_rdma_event){ .kind = BH_RDMA_HEALTH,
						    .status = v->health[told].status };
		events[n++].fault = keep_fault(v, &v->health[told++].fault);
	}
	v->n_health -= told;
	memmove(&v->health[0], &v->health[told], sizeof(v->health[0]) * v->n_health);

	n += tell_taken(v, events + n, max - n);
	if (v->n_taken)
		return n;
	n += tell_ended(v, events + n, max - n);
	for (uint32_t i = 0; i < v->n_cqs && has_room(v, n, max); i++)
		if (take_completions(v, v->cqs[i], max - n))
			n += tell_taken(v, events + n, max - n);
	if (n)
		v->n_idle = 0;
	return n;
}

static bool verbs_arm(struct bh_rdma_transport *transport)
{
	struct verbs *v = verbs_of(transport);
	struct ibv_cq *cq;
	void *context;

	v->look = true;
	if (v->n_taken || v->ended || v->n_health)
		return false;
	while (ibv_get_cq_event(v->channel, &cq, &context) == 0) {
		ibv_ack_cq_events(cq, 1);
		((struct completion_queue *)context)->armed = false;
	}
	for (uint32_t i = 0; i < v->n_cqs; i++) {
		if (v->cqs[i]->armed)
			continue;
		/* An error leaves it unarmed: poll() goes on, which is slow but loses nothing. */
		if (ibv_req_notify_cq(v->cqs[i]->cq, 0) != 0)
			return false;
		v->cqs[i]->armed = true;
		/* What came before it was armed has no event. */
		take_completions(v, v->cqs[i], UINT32_MAX);
	}
	return v->n_taken == 0;
}

static uint32_t verbs_descriptors(struct bh_rdma_transport *transport, int ret_fds[BH_RDMA_FDS])
{
	struct verbs *v = verbs_of(transport);

	ret_fds[0] = v->channel->fd;
	ret_fds[1] = v->cm->fd;
	ret_fds[2] = v->device.context->async_fd;
	return 3;
}

static int64_t verbs_timeout_ns(struct bh_rdma_transport *transport)
{
	struct verbs *v = verbs_of(transport);
	int64_t first = INT64_MAX, now;

	if (!v->n_timed)
		return INT64_MAX;
	for (uint32_t i = 0; i < v->links_size; i++)
		if (v->links[i] && v->links[i]->deadline_ns < first)
			first = v->links[i]->deadline_ns;
	now = now_ns();
	return first <= now ? 0 : first - now;
}

static bh_status verbs_connect(struct bh_rdma_transport *transport,
			       const struct bh_rdma_address *address,
			       const uint8_t hello[BH_RDMA_HELLO_SIZE],
			       struct bh_rdma_link **ret_link, struct bh_rdma_fault *fault)
{
	struct verbs *v = verbs_of(transport);
	int timeout_ms = (int)(v->connect_timeout_ns / 1000000);
	union {
		struct sockaddr any;
		struct sockaddr_in6 in6;
		uint8_t bytes[BH_RDMA_ADDRESS_MAX];
	} peer = { .bytes = { 0 } };
	struct bh_rdma_link *link;

	memcpy(peer.bytes, address->bytes, sizeof(peer.bytes));
	if (peer.any.sa_family != v->device.address.any.sa_family)
		return bh_rdma_fault(fault, -EHOSTUNREACH, "rdma.connect",
				     "%s is not of the family of this end's address, %s",
				     bh_rdma_address_text(address).text,
				     bh_rdma_address_text(&v->transport.address).text);
	link = new_link(v, LINK_RESOLVING);
	if (!link)
		return bh_rdma_fault(fault, -ENOMEM, "rdma.alloc", "no room for one more link (%u)",
				     v->n_links);
	link->outbound = true;
	link->peer = *address;
	memcpy(link->hello, hello, sizeof(link->hello));
	if (rdma_create_id(v->cm, &link->id, link, RDMA_PS_TCP) < 0 ||
	    rdma_resolve_addr(link->id, &v->device.address.any, &peer.any, timeout_ms) < 0) {
		int error = errno;

		destroy_id(link);
		free_link(v, link);
		return bh_rdma_fault(fault, connect_status(error), "rdma.connect",
				     "%s: cannot connect: not resolved from %s: %s",
				     bh_rdma_address_text(address).text, v->device.text,
				     strerror(error));
	}
	set_deadline(v, link, now_ns() + v->connect_timeout_ns);
	*ret_link = link;
	return 0;
}

static bh_status verbs_accept(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			      const uint8_t hello[BH_RDMA_HELLO_SIZE], struct bh_rdma_fault *fault)
{
	struct verbs *v = verbs_of(transport);
	struct rdma_conn_param param = {
		.private_data = hello,
		.private_data_len = BH_RDMA_HELLO_SIZE,
		.responder_resources = limit8(link->depth_asked, v->device.device.max_qp_rd_atom),
		.initiator_depth = limit8(link->depth_offered, 1),
		.rnr_retry_count = RNR_RETRIES,
	};
	struct bh_rdma_fault own;
	bh_status status;
	int error;

	if (link->state != LINK_REQUESTED)
		return bh_rdma_fault(fault, -EINVAL, "rdma.accept", "no peer waits on this link");
	status = make_qp(v, link, &own);
	if (!status) {
		error = modify(link, IBV_QPS_RTR);
		if (!error)
			error = modify(link, IBV_QPS_RTS);
		param.qp_num = link->qp->qp_num;
		if (!error && rdma_accept(link->id, &param) < 0)
			error = errno;
		if (error)
			status = bh_rdma_fault(&own, -EIO, "rdma.connect",
					       "%s: its request could not be accepted: %s",
					       bh_rdma_address_text(&link->peer).text,
					       strerror(error));
	}
	if (status < 0) {
		/* No fault of the caller's: DOWN says it, as it does when the peer has gone meanwhile. */
		set_cause(link, status, &own);
		cut(v, link);
		return 0;
	}
	link->state = LINK_ACCEPTING;
	set_deadline(v, link, now_ns() + v->connect_timeout_ns);
	return 0;
}

static void verbs_reject(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			 const uint8_t hello[BH_RDMA_HELLO_SIZE])
{
	rdma_reject(link->id, hello, BH_RDMA_HELLO_SIZE);
	destroy_id(link);
	free_link(verbs_of(transport), link);
}

static bh_status verbs_post(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			    const struct bh_rdma_work *work)
{
	struct verbs *v = verbs_of(transport);
	bool read = work->op == BH_RDMA_OP_READ;
	struct ibv_sge sge = { .addr = (uintptr_t)work->local, .length = work->length };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad = NULL;
	uint32_t slot;
	int error;

	if (link->state != LINK_UP)
		return -ENOTCONN;
	if (!link->n_free || (read && link->n_reads >= v->transport.max_reads))
		return -EAGAIN;
	slot = link->free_slots[link->n_free - 1];
	wr.wr_id = wr_id_of(link, WR_WORK, slot);
	wr.opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = work->remote;
	wr.wr.rdma.rkey = (uint32_t)work->key;
	assert(work->memory); /* this transport needs_memory */
	if (!read && work->length <= link->max_inline)
		wr.send_flags |= IBV_SEND_INLINE;
	else
		sge.lkey = ((struct memory *)work->memory->handle)->mr->lkey;
	error = ibv_post_send(link->qp, &wr, &bad);
	if (error) {
		if (error == ENOMEM && link->n_free < link->n_slots)
			return -EAGAIN;
		fail_with(v, link, -ECONNRESET, "rdma.post", "ibv_post_send failed",
			  strerror(error));
		return -error;
	}
	link->n_free--;
	link->uses[slot] = read ? SLOT_READ : SLOT_WRITE;
	link->cookies[slot] = work->cookie;
	link->n_reads += read;
	return 0;
}

static bh_status verbs_send(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			    const uint8_t message[BH_RDMA_MESSAGE_SIZE])
{
	struct verbs *v = verbs_of(transport);
	struct ibv_sge sge = { .length = BH_RDMA_MESSAGE_SIZE };
	/* Behind what was read, too: without the fence a message may overtake that. */
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE };
	struct ibv_send_wr *bad = NULL;
	uint32_t slot;
	int error;

	if (link->state != LINK_UP)
		return -ENOTCONN;
	if (!link->free_sends)
		return -EAGAIN;
	slot = (uint32_t)__builtin_ctz(link->free_sends);
	sge.addr = (uintptr_t)(link->messages + slot * BH_RDMA_MESSAGE_SIZE);
	sge.lkey = link->messages_mr->lkey;
	memcpy(link->messages + slot * BH_RDMA_MESSAGE_SIZE, message, BH_RDMA_MESSAGE_SIZE);
	wr.wr_id = wr_id_of(link, WR_SEND, slot);
	error = ibv_post_send(link->qp, &wr, &bad);
	if (error) {
		fail_with(v, link, -ECONNRESET, "rdma.post", "ibv_post_send failed",
			  strerror(error));
		return -error;
	}
	link->free_sends &= ~(1u << slot);
	return 0;
}

static void verbs_disconnect(struct bh_rdma_transport *transport, struct bh_rdma_link *link)
{
	if (link->state != LINK_ENDED && link->state != LINK_OVER)
		cut(verbs_of(transport), link);
}

static void verbs_release(struct bh_rdma_transport *transport, struct bh_rdma_link *link)
{
	free_link(verbs_of(transport), link);
}

/* ---- memory ----------------------------------------------------------------------------------- */

static bh_status verbs_register(struct bh_rdma_transport *transport, void *data, uint64_t length,
				uint32_t access, struct bh_rdma_memory *ret_memory,
				struct bh_rdma_fault *fault)
{
	struct verbs *v = verbs_of(transport);
	int flags = IBV_ACCESS_LOCAL_WRITE; /* what is read from a peer is written here */
	struct memory *memory;

	if (length == 0)
		return bh_rdma_fault(fault, -EINVAL, "rdma.register", "0 bytes to register");
	if (length > v->device.device.max_mr_size)
		return bh_rdma_fault(fault, -EINVAL, "rdma.register",
				     "%llu bytes to register; %s takes at most %llu",
				     (unsigned long long)length, v->device.text,
				     (unsigned long long)v->device.device.max_mr_size);
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return bh_rdma_fault(fault, -ENOMEM, "rdma.alloc", "out of memory");
	if (access & BH_RDMA_READ)
		flags |= IBV_ACCESS_REMOTE_READ;
	if (access & BH_RDMA_WRITE)
		flags |= IBV_ACCESS_REMOTE_WRITE;
	memory->mr = ibv_reg_mr(v->pd, data, length, flags);
	/* Memory that cannot be written can still be read from, here and by peers. */
	if (!memory->mr && errno == EFAULT && !(access & BH_RDMA_WRITE))
		memory->mr = ibv_reg_mr(v->pd, data, length, flags & ~IBV_ACCESS_LOCAL_WRITE);
	if (!memory->mr) {
		int error = errno;

		free(memory);
		return bh_rdma_verbs_memory_fault(fault, error, data, length);
	}
	pthread_mutex_lock(&v->lock);
	memory->next = v->memory;
	memory->link = &v->memory;
	if (memory->next)
		memory->next->link = &memory->next;
	v->memory = memory;
	pthread_mutex_unlock(&v->lock);
	*ret_memory = (struct bh_rdma_memory){ .data = data,
					       .length = length,
					       .base = (uintptr_t)data,
					       .key = memory->mr->rkey,
					       .handle = memory };
	return 0;
}

/* ibv_dereg_mr() returns when no access is under way any more. */
static bool verbs_deregister(struct bh_rdma_transport *transport, struct bh_rdma_memory *memory)
{
	struct verbs *v = verbs_of(transport);
	struct memory *own = memory->handle;
	bool over;

	pthread_mutex_lock(&v->lock);
	*own->link = own->next;
	if (own->next)
		own->next->link = own->link;
	pthread_mutex_unlock(&v->lock);
	over = ibv_dereg_mr(own->mr) == 0;
	free(own);
	memory->handle = NULL;
	return over;
}

/* ---- open and close --------------------------------------------------------------------------- */

static void verbs_close(struct bh_rdma_transport *transport)
{
	struct verbs *v = verbs_of(transport);

	if (!v)
		return;
	for (uint32_t i = 0; i < v->links_size; i++) {
		struct bh_rdma_link *link = v->links[i];

		if (!link)
			continue;
		destroy_qp(v, link);
		destroy_id(link);
		free(link->messages);
		free_link(v, link);
	}
	while (v->memory) {
		struct memory *memory = v->memory;

		v->memory = memory->next;
		ibv_dereg_mr(memory->mr);
		free(memory);
	}
	if (v->listener)
		rdma_destroy_id(v->listener);
	if (v->cm)
		rdma_destroy_event_channel(v->cm);
	for (uint32_t i = 0; i < v->n_cqs; i++) {
		ibv_destroy_cq(v->cqs[i]->cq);
		free(v->cqs[i]);
	}
	if (v->channel)
		ibv_destroy_comp_channel(v->channel);
	if (v->pd)
		ibv_dealloc_pd(v->pd);
	if (v->device.context)
		ibv_close_device(v->device.context);
	pthread_mutex_destroy(&v->lock);
	free(v->taken);
	free(v->links);
	free(v->generations);
	free(v);
}

/* What of the options the device bounds. */
static bh_status check_limits(struct verbs *v, const struct bh_rdma_config *config,
			      struct bh_rdma_fault *fault)
{
	const struct ibv_device_attr *device = &v->device.device;
	int64_t most = device->max_qp_wr < device->max_cqe ? device->max_qp_wr : device->max_cqe;
	uint32_t message = v->device.port.max_msg_sz;
	int64_t reads = device->max_qp_init_rd_atom;

	if (message > MESSAGE_MAX || message == 0)
		message = MESSAGE_MAX;
	most -= 2 * MESSAGES;
	if (most > UINT16_MAX)
		most = UINT16_MAX;
	if (config->queue_depth < 1 || config->queue_depth > most)
		return bh_rdma_fault(
			fault, -EINVAL, "rdma.queue_depth", "queue_depth = %lld: %s takes 1 … %lld",
			(long long)config->queue_depth, v->device.text, (long long)most);
	if (config->max_message < 0 || config->max_message > message)
		return bh_rdma_fault(fault, -EINVAL, "rdma.max_message",
				     "max_message = %lld: %s takes 1 … %u, or 0 for the most",
				     (long long)config->max_message, v->device.text, message);
	v->transport.max_message = config->max_message ? (uint32_t)config->max_message : message;
	v->transport.max_outstanding = (uint32_t)config->queue_depth;
	if (reads < 1)
		reads = 1;
	if (reads > config->queue_depth)
		reads = config->queue_depth;
	v->transport.max_reads = (uint32_t)reads;
	return 0;
}

static bh_status start_listening(struct verbs *v, const struct bh_rdma_config *config,
				 struct bh_rdma_fault *fault)
{
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} at;

	if (config->listen_port < 0 || config->listen_port > 65535)
		return bh_rdma_fault(fault, -EINVAL, "rdma.listen_port",
				     "listen_port = %lld: 0 … 65535 are accepted",
				     (long long)config->listen_port);
	memcpy(&at, &v->device.address, sizeof(at));
	if (at.any.sa_family == AF_INET)
		at.in.sin_port = htons((uint16_t)config->listen_port);
	else
		at.in6.sin6_port = htons((uint16_t)config->listen_port);
	v->transport.address = address_of(&at.any);
	v->cm = rdma_create_event_channel();
	if (!v->cm)
		return bh_rdma_fault(
			fault, -ENODEV, "rdma.no_device",
			"rdma_cm cannot be opened: %s (is the module rdma_ucm loaded?)",
			strerror(errno));
	if (rdma_create_id(v->cm, &v->listener, NULL, RDMA_PS_TCP) < 0 ||
	    rdma_bind_addr(v->listener, &at.any) < 0 || rdma_listen(v->listener, 1024) < 0) {
		if (errno == EADDRINUSE)
			return bh_rdma_fault(fault, -EADDRINUSE, "rdma.listen_port",
					     "listen_port = %lld: in use at %s; 0 takes a free one",
					     (long long)config->listen_port,
					     bh_rdma_address_text(&v->transport.address).text);
		return bh_rdma_fault(fault, errno == EACCES ? -EACCES : -ENODEV, "rdma.listen",
				     "%s of %s cannot be listened at: %s",
				     bh_rdma_address_text(&v->transport.address).text,
				     v->device.text, strerror(errno));
	}
	if (!bh_rdma_verbs_is_of(&v->device, v->listener))
		return bh_rdma_fault(fault, -ENODEV, "rdma.no_device", "%s is not an address of %s",
				     bh_rdma_address_text(&v->transport.address).text,
				     v->device.text);
	v->transport.address = address_of(rdma_get_local_addr(v->listener));
	return 0;
}

static bool set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

static bh_status open_resources(struct verbs *v, const struct bh_rdma_config *config,
				struct bh_rdma_fault *fault)
{
	bh_status status = bh_rdma_verbs_choose(config, &v->device, fault);

	if (!status)
		status = check_limits(v, config, fault);
	if (!status)
		status = start_listening(v, config, fault);
	if (status < 0)
		return status;
	snprintf(v->transport.device, sizeof(v->transport.device), "%s", v->device.text);
	v->pd = ibv_alloc_pd(v->device.context);
	v->channel = v->pd ? ibv_create_comp_channel(v->device.context) : NULL;
	if (!v->channel || !add_cq(v, CQ_DEPTH) || !set_nonblocking(v->channel->fd) ||
	    !set_nonblocking(v->cm->fd) || !set_nonblocking(v->device.context->async_fd))
		return bh_rdma_fault(fault, -ENOMEM, "rdma.queue",
				     "%s has no protection domain or completion queue: %s",
				     v->device.text, strerror(errno));
	return 0;
}

static bh_status verbs_open(const struct bh_rdma_config *config,
			    struct bh_rdma_transport **ret_transport, struct bh_rdma_fault *fault)
{
	struct verbs *v = calloc(1, sizeof(*v));
	bh_status status;

	if (!v)
		return bh_rdma_fault(fault, -ENOMEM, "rdma.alloc", "out of memory");
	v->transport.ops = &bh_rdma_verbs;
	v->transport.kind = BH_RDMA_VERBS;
	v->transport.needs_memory = true;
	v->connect_timeout_ns = config->connect_timeout_ns;
	v->ended_tail = &v->ended;
	v->look = true;
	pthread_mutex_init(&v->lock, NULL);
	bh_rdma_fault(&v->flushed, -ECANCELED, "rdma.flushed", "flushed with its link");
	snprintf(v->flushed.status, sizeof(v->flushed.status), "%s",
		 ibv_wc_status_str(IBV_WC_WR_FLUSH_ERR));
	bh_rdma_fault(&v->made_up, -ECANCELED, "rdma.flushed",
		      "its link was ended before the device gave it back");
	status = open_resources(v, config, fault);
	if (status < 0) {
		verbs_close(&v->transport);
		return status;
	}
	*ret_transport = &v->transport;
	return 0;
}

const struct bh_rdma_transport_ops bh_rdma_verbs = {
	.name = "verbs",
	.open = verbs_open,
	.close = verbs_close,
	.register_memory = verbs_register,
	.deregister = verbs_deregister,
	.connect = verbs_connect,
	.accept = verbs_accept,
	.reject = verbs_reject,
	.post = verbs_post,
	.send = verbs_send,
	.disconnect = verbs_disconnect,
	.release = verbs_release,
	.poll = verbs_poll,
	.arm = verbs_arm,
	.descriptors = verbs_descriptors,
	.timeout_ns = verbs_timeout_ns,
};
