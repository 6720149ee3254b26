/* SPDX-License-Identifier: BSD-3-Clause */
/* ops - what Python can ask of the rdma plugin: register, close, open, transfers.
 *
 * A transfer's op checks everything that can be known here, hands over to the engine and is pending: no
 * worker waits for a network. What a peer is asked for comes as its descriptor each time, so that a remote
 * region needs no state here and leaves none behind.
 *
 * Thread: workers; done() of transfers and of closes on the engine's thread or the reaper's; cancel on
 *         the supervisor.
 * Fails:  rdma.descriptor, .transport, .rights, .range, .local, .kind, .parts, .parameter, .region: what was
 *         given, where, and what is accepted; nothing was sent. Then what the engine says, with peer,
 *         address and length.
 * Keeps:  SUP-10. */
#include "config.h"

#include "plugins/rdma/rdma.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_FACTS(facts) (sizeof(facts) / sizeof((facts)[0]))

/* How long an op waits for the plugin's threads, which start when the workers do. */
#define START_MS 5000

/* One run of an op. */
struct call {
	struct bh_rdma *rdma;
	struct bh_task *task;
};

/* One transfer on its way; of the engine's until done(). */
struct transfer {
	struct bh_rdma_transfer engine;
	struct bh_rdma *rdma;
	struct bh_buffer *local; /* the task's: held until it has ended */
	struct bh_rdma_use *use;
	struct bh_rdma_part parts[];
};

/* One close() that is pending. `told`: cancelled meanwhile; the end goes on without it. */
struct bh_rdma_closing {
	struct bh_rdma *rdma;
	uint64_t task_id;
	bool told;			       /* M */
	struct bh_rdma_closing *newer, *older; /* M */
};

static bh_status fail(const struct call *call, bh_status status, const char *id,
		      const struct bh_fact *facts, size_t n_facts)
{
	call->rdma->services->task_fail(call->task, status, id, facts, (uint32_t)n_facts);
	return status;
}

static bh_status fail_by(const struct call *call, bh_status status,
			 const struct bh_rdma_fault *fault)
{
	const struct bh_fact facts[] = { bh_fact_str("reason", fault->text),
					 bh_fact_str("status", fault->status) };

	return fail(call, status, fault->id[0] ? fault->id : "rdma.failed", facts,
		    fault->status[0] ? 2 : 1);
}

/* A manifest may give the pool fewer threads than it needs, and they may just be starting. */
static bh_status check_threads(const struct call *call)
{
	const uint32_t all = (1u << BH_RDMA_THREADS) - 1;
	const struct bh_fact facts[] = {
		bh_fact_str("reason", "the plugin's progress threads do not run"),
		bh_fact_str("accepted", "progress_threads = 2 in the manifest, or nothing"),
	};

	for (unsigned ms = 0; ms < START_MS; ms++) {
		if (atomic_load_explicit(&call->rdma->threads, memory_order_relaxed) == all)
			return 0;
		(void)poll(NULL, 0, 1);
	}
	return fail(call, -EINVAL, "rdma.progress", facts, N_FACTS(facts));
}

static struct bh_value int_value(uint64_t integer)
{
	return (struct bh_value){ .type = BH_TYPE_INT, .as.integer = (int64_t)integer };
}

static struct bh_value text_value(const char *text)
{
	return (struct bh_value){ .type = BH_TYPE_STR, .as.text = { text, strlen(text) } };
}

static bh_status return_list(const struct call *call, const struct bh_value *items, size_t count)
{
	struct bh_value list = { .type = BH_TYPE_LIST, .as.list = { items, count } };

	return call->rdma->services->result(call->task, &list);
}

/* ---- rights ---------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	uint32_t access;
} accesses[] = {
	{ "read", BH_RDMA_READ },
	{ "write", BH_RDMA_WRITE },
	{ "read-write", BH_RDMA_READ | BH_RDMA_WRITE },
};

static const char *access_name(uint32_t access)
{
	for (size_t i = 0; i < sizeof(accesses) / sizeof(accesses[0]); i++)
		if (accesses[i].access == access)
			return accesses[i].name;
	return "none";
}

static bh_status parse_access(const struct call *call, const char *name, uint32_t *ret_access)
{
	const struct bh_fact facts[] = { bh_fact_str("parameter", "access"),
					 bh_fact_str("given", name),
					 bh_fact_str("accepted", "read, write or read-write") };

	for (size_t i = 0; i < sizeof(accesses) / sizeof(accesses[0]); i++) {
		if (strcmp(accesses[i].name, name) == 0) {
			*ret_access = accesses[i].access;
			return 0;
		}
	}
	return fail(call, -EINVAL, "rdma.parameter", facts, N_FACTS(facts));
}

/* ---- regions --------------------------------------------------------------------------------- */

static bh_status check_host_memory(const struct call *call, const char *parameter,
				   const struct bh_buffer *buffer, struct bh_buffer_info *ret_info)
{
	const struct bh_fact facts[] = {
		bh_fact_str("parameter", parameter),
		bh_fact_str("given", "device memory"),
		bh_fact_str("accepted", "host memory: copy it there first, into pinned memory"),
	};
	bh_status st;

	ret_info->size = sizeof(*ret_info);
	st = call->rdma->services->buffer_info(buffer, ret_info);
	if (st < 0)
		return fail(call, st, "rdma.buffer", facts, 1);
	if (ret_info->kind != BH_BUFFER_HOST && ret_info->kind != BH_BUFFER_PINNED)
		return fail(call, -EINVAL, "rdma.kind", facts, N_FACTS(facts));
	return 0;
}

static bh_status register_buffer(const struct call *call, struct bh_buffer *buffer, uint32_t access)
{
	struct bh_rdma_region_facts region;
	struct bh_rdma_fault fault;
	struct bh_buffer_info info;
	struct bh_value items[4];
	bh_status st;

	st = check_host_memory(call, "memory", buffer, &info);
	if (st < 0)
		return st;
	memset(&fault, 0, sizeof(fault));
	st = bh_rdma_book_register(call->rdma->book, buffer, access, &region, &fault);
	if (st < 0)
		return fail_by(call, st, &fault);
	items[0] = (struct bh_value){ .type = BH_TYPE_INT, .as.integer = (int64_t)region.handle };
	items[1] = int_value(region.address);
	items[2] = int_value(region.length);
	items[3] = (struct bh_value){ .type = BH_TYPE_BYTES,
				      .as.text = { (const char *)region.descriptor,
						   region.descriptor_length } };
	st = return_list(call, items, 4);
	if (st < 0) /* nobody will know its handle */
		(void)bh_rdma_book_close(call->rdma->book, region.handle, NULL, NULL);
	bh_rdma_publish(call->rdma);
	return st;
}

static bh_status run_register(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct call call = { state, task };
	const struct bh_services *services = call.rdma->services;
	struct bh_buffer *buffer = NULL;
	uint32_t access = 0;
	bh_status st;

	st = parse_access(&call, args[1].as.text.data, &access);
	if (st == 0)
		st = check_threads(&call);
	if (st < 0)
		return st;
	st = services->object_buffer(task, BH_RDMA_SITE_REGISTER, args[0].as.object,
				     access & BH_RDMA_WRITE ? BH_BUFFER_WRITABLE : 0, &buffer);
	if (st < 0) /* the exception is with the task */
		return st;
	st = register_buffer(&call, buffer, access);
	services->buffer_unref(buffer); /* the book has its own */
	return st;
}

static bh_status no_region(const struct call *call)
{
	const struct bh_fact facts[] = {
		bh_fact_str("reason", "no such region is open: it has been closed already"),
		bh_fact_str("accepted", "what register() returned, once"),
	};

	return fail(call, -ENOENT, "rdma.region", facts, N_FACTS(facts));
}

static void link_closing(struct bh_rdma_closing *closing)
{
	struct bh_rdma *rdma = closing->rdma;

	pthread_mutex_lock(&rdma->lock);
	closing->older = rdma->closings;
	if (closing->older)
		closing->older->newer = closing;
	rdma->closings = closing;
	pthread_mutex_unlock(&rdma->lock);
}

/* Whether its task is still waiting. */
static bool unlink_closing(struct bh_rdma_closing *closing)
{
	struct bh_rdma *rdma = closing->rdma;
	bool waits;

	pthread_mutex_lock(&rdma->lock);
	if (closing->newer)
		closing->newer->older = closing->older;
	else
		rdma->closings = closing->older;
	if (closing->older)
		closing->older->newer = closing->newer;
	waits = !closing->told;
	pthread_mutex_unlock(&rdma->lock);
	return waits;
}

static void on_closed(void *user, bh_status status)
{
	struct bh_rdma_closing *closing = user;
	struct bh_rdma *rdma = closing->rdma;

	bh_rdma_publish(rdma);
	if (unlink_closing(closing))
		(void)rdma->services->complete(rdma->ctx, closing->task_id, status, NULL, NULL,
					       NULL, 0);
	free(closing);
}

static bh_status run_close(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct call call = { state, task };
	struct bh_rdma_closing *closing;
	bool waits;
	bh_status st;

	st = check_threads(&call);
	if (st < 0)
		return st;
	closing = calloc(1, sizeof(*closing));
	if (!closing)
		return fail(&call, -ENOMEM, "rdma.memory", NULL, 0);
	closing->rdma = call.rdma;
	closing->task_id = call.rdma->services->task_id(task);
	link_closing(closing); /* first: on_closed() may come at once */
	st = bh_rdma_book_close(call.rdma->book, args[0].as.handle, on_closed, closing);
	if (st > 0)
		return BH_PENDING;
	waits = unlink_closing(closing);
	free(closing);
	bh_rdma_publish(call.rdma);
	if (!waits) /* cancelled just now: that was its outcome */
		return BH_PENDING;
	return st < 0 ? no_region(&call) : 0;
}

static bh_status run_uses(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct call call = { state, task };
	struct bh_rdma_region_facts region;
	struct bh_value items[2];

	if (bh_rdma_book_facts(call.rdma->book, args[0].as.handle, &region) < 0)
		return no_region(&call);
	items[0] = int_value(region.n_uses);
	items[1] = int_value(region.n_sharing);
	return return_list(&call, items, 2);
}

/* A close that somebody does not want to wait for any longer goes on, and its memory is kept. */
static bool cancel_closing(struct bh_rdma *rdma, uint64_t task_id)
{
	static const char reason[] = "the region is closed for new uses; its end goes on, and its "
				     "memory is kept until then";
	const struct bh_fact fact = bh_fact_str("reason", reason);
	struct bh_rdma_closing *closing;

	pthread_mutex_lock(&rdma->lock);
	closing = rdma->closings;
	while (closing && closing->task_id != task_id)
		closing = closing->older;
	if (closing && !closing->told)
		closing->told = true;
	else
		closing = NULL;
	pthread_mutex_unlock(&rdma->lock);
	if (closing) /* not looked at any more: it may have gone */
		(void)rdma->services->complete(rdma->ctx, task_id, -ECANCELED, NULL, "rdma.closing",
					       &fact, 1);
	return closing != NULL;
}

void bh_rdma_cancel(void *state, uint64_t task_id)
{
	struct bh_rdma *rdma = state;

	if (!cancel_closing(rdma, task_id))
		bh_rdma_engine_cancel(rdma->engine, task_id);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static const char *kind_name(enum bh_rdma_kind kind)
{
	return kind == BH_RDMA_VERBS ? "verbs" : "software";
}

static bh_status refuse_descriptor(const struct call *call, uint64_t length, const char *why)
{
	const struct bh_fact facts[] = {
		bh_fact_str("parameter", "descriptor"),
		bh_fact_int("given_bytes", (int64_t)length),
		bh_fact_str("reason", why),
		bh_fact_str("accepted", "the bytes of a region's descriptor, all and unchanged"),
	};

	return fail(call, -EINVAL, "rdma.descriptor", facts, N_FACTS(facts));
}

static bh_status refuse_kind(const struct call *call, const struct bh_rdma_descriptor *descriptor)
{
	struct bh_rdma_address_text peer = bh_rdma_address_text(&descriptor->address);
	const struct bh_fact facts[] = {
		bh_fact_str("peer", peer.text),
		bh_fact_str("given", kind_name(descriptor->kind)),
		bh_fact_str("accepted", kind_name(call->rdma->transport->kind)),
		bh_fact_str("advice",
			    "give `transport` alike on both hosts; /v1/plugins says which "
			    "one each has taken, and why"),
	};

	return fail(call, -EPROTONOSUPPORT, "rdma.transport", facts, N_FACTS(facts));
}

static bh_status read_descriptor(const struct call *call, const struct bh_value *value,
				 struct bh_rdma_descriptor *ret_descriptor)
{
	const struct bh_text *bytes = &value->as.text;
	const char *why = NULL;

	if (bh_rdma_descriptor_decode(bytes->data, bytes->length, ret_descriptor, &why) < 0)
		return refuse_descriptor(call, bytes->length, why);
	if (ret_descriptor->kind != call->rdma->transport->kind)
		return refuse_kind(call, ret_descriptor);
	return 0;
}

static bh_status run_open(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct call call = { state, task };
	struct bh_rdma_descriptor descriptor;
	struct bh_rdma_address_text peer;
	struct bh_value items[3];
	bh_status st;

	st = read_descriptor(&call, &args[0], &descriptor);
	if (st < 0)
		return st;
	peer = bh_rdma_address_text(&descriptor.address);
	items[0] = int_value(descriptor.length);
	items[1] = text_value(access_name(descriptor.access));
	items[2] = text_value(peer.text);
	return return_list(&call, items, 3);
}

/* ---- the end of a transfer ------------------------------------------------------------------- */

/* What a failure is called, whatever transport it was, and what can be done. The last is for all others:
 * they go by the name that the engine or the transport has for them, if any. */
static const struct advice {
	bh_status status;
	const char *id, *text;
} advices[] = {
	{ -EACCES, "rdma.access",
	  "the region has been closed or does not allow this: ask its owner for a new descriptor" },
	{ -ESTALE, "rdma.stale",
	  "another process answers there now: ask its owner for a new descriptor" },
	{ -ECONNREFUSED, "rdma.connect",
	  "nobody listens there: is that host up, and its rdma plugin loaded?" },
	{ -EHOSTUNREACH, "rdma.connect",
	  "look at the network between the hosts, and at `address` and `gid_index` of both" },
	{ -ENETUNREACH, "rdma.connect",
	  "look at the network between the hosts, and at `address` and `gid_index` of both" },
	{ -ETIMEDOUT, "rdma.connect",
	  "that host does not answer: is it stopped, or is a firewall between? connect_timeout and "
	  "connect_retries say how long it is tried" },
	{ -ECONNRESET, "rdma.lost",
	  "the link broke more than once; part of the transfer may have been carried out" },
	{ -ECANCELED, "rdma.cancelled", "part of the transfer may have been carried out" },
	{ 0, "rdma.failed", "see the status" },
};

static const struct advice *advice_for(bh_status status)
{
	const struct advice *advice = advices;

	while (advice->status != 0 && advice->status != status)
		advice++;
	return advice;
}

static void complete_failed(const struct transfer *transfer, bh_status status,
			    const struct bh_rdma_fault *fault, uint32_t failed)
{
	const struct bh_rdma *rdma = transfer->rdma;
	const struct bh_rdma_descriptor *target = &transfer->engine.target;
	struct bh_rdma_address_text peer = bh_rdma_address_text(&target->address);
	uint32_t n = transfer->engine.n_parts;
	const struct bh_rdma_part *part = &transfer->parts[failed < n ? failed : 0];
	const struct advice *advice = advice_for(status);
	bool has_name = advice->status == 0 && fault && fault->id[0];
	const char *id = has_name ? fault->id : advice->id;
	struct bh_fact facts[9];
	uint32_t n_facts = 0;
	char remote[24];

	snprintf(remote, sizeof(remote), "0x%" PRIx64, target->base + part->remote);
	facts[n_facts++] = bh_fact_str("peer", peer.text);
	facts[n_facts++] = bh_fact_str("remote_address", remote);
	facts[n_facts++] = bh_fact_int("offset", (int64_t)part->remote);
	facts[n_facts++] = bh_fact_int("length", (int64_t)part->length);
	if (n > 1)
		facts[n_facts++] = bh_fact_int("part", failed);
	if (fault && fault->status[0])
		facts[n_facts++] = bh_fact_str("status", fault->status);
	if (fault && fault->text[0])
		facts[n_facts++] = bh_fact_str("reason", fault->text);
	facts[n_facts++] = bh_fact_str("advice", advice->text);
	assert(n_facts <= N_FACTS(facts));
	(void)rdma->services->complete(rdma->ctx, transfer->engine.id, status, NULL, id, facts,
				       n_facts);
}

/* A read returns the memory that it filled, so that what computes with it can take the task as its
 * argument and starts when the bytes are there. */
static struct bh_value result_of(const struct bh_rdma *rdma, enum bh_rdma_op op,
				 struct bh_buffer *local)
{
	struct bh_value value = { .type = BH_TYPE_NONE };

	if (op == BH_RDMA_OP_READ) {
		value.type = BH_TYPE_BUFFER;
		value.as.buffer = rdma->services->buffer_ref(local);
	}
	return value;
}

static void complete_well(const struct transfer *transfer)
{
	const struct bh_rdma *rdma = transfer->rdma;
	struct bh_value value = result_of(rdma, transfer->engine.op, transfer->local);

	(void)rdma->services->complete(rdma->ctx, transfer->engine.id, 0,
				       value.type == BH_TYPE_NONE ? NULL : &value, NULL, NULL, 0);
}

/* On the engine's thread: nothing touches the memory any more. */
static void on_done(struct bh_rdma_transfer *engine, bh_status status,
		    const struct bh_rdma_fault *fault, uint32_t failed)
{
	struct transfer *transfer = engine->user;
	struct bh_rdma *rdma = transfer->rdma;

	/* First, so that who awaits it finds its region without a use. */
	bh_rdma_book_unuse(rdma->book, transfer->use);
	if (status == 0)
		complete_well(transfer);
	else
		complete_failed(transfer, status, fault, failed);
	free(transfer);
}

/* ---- the begin of a transfer ------------------------------------------------------------------ */

struct request {
	struct call call;
	enum bh_rdma_op op;
	struct bh_rdma_descriptor target;
	struct bh_buffer *local;
	struct bh_buffer_info info;
};

/* As the caller gave it; not checked yet. */
struct wish {
	int64_t offset, local_offset, length;
};

static bh_status check_rights(const struct request *request)
{
	uint32_t needs = request->op == BH_RDMA_OP_READ ? BH_RDMA_READ : BH_RDMA_WRITE;
	struct bh_rdma_address_text peer = bh_rdma_address_text(&request->target.address);
	const struct bh_fact facts[] = {
		bh_fact_str("peer", peer.text),
		bh_fact_str("needs", access_name(needs)),
		bh_fact_str("allowed", access_name(request->target.access)),
		bh_fact_str("advice",
			    "its owner registers it with access=\"read-write\" where both "
			    "are wanted"),
	};

	if (request->target.access & needs)
		return 0;
	return fail(&request->call, -EACCES, "rdma.rights", facts, N_FACTS(facts));
}

static bh_status refuse_range(const struct request *request, const struct wish *wish, uint32_t part,
			      const char *reason)
{
	struct bh_rdma_address_text peer = bh_rdma_address_text(&request->target.address);
	const struct bh_fact facts[] = {
		bh_fact_str("peer", peer.text),
		bh_fact_int("region_length", (int64_t)request->target.length),
		bh_fact_int("offset", wish->offset),
		bh_fact_int("length", wish->length),
		bh_fact_int("part", part),
		bh_fact_str("reason", reason),
		bh_fact_str("accepted", "offset and length of at least 0 whose sum is at most "
					"region_length"),
	};

	return fail(&request->call, -ERANGE, "rdma.range", facts, N_FACTS(facts));
}

static bh_status refuse_local(const struct request *request, const struct wish *wish, uint32_t part,
			      const char *reason)
{
	const struct bh_fact facts[] = {
		bh_fact_int("local_length", (int64_t)request->info.length),
		bh_fact_int("local_offset", wish->local_offset),
		bh_fact_int("length", wish->length),
		bh_fact_int("part", part),
		bh_fact_str("reason", reason),
		bh_fact_str("accepted", "local_offset of at least 0 whose sum with length is at "
					"most local_length"),
	};

	return fail(&request->call, -ERANGE, "rdma.local", facts, N_FACTS(facts));
}

static bool lies_within(int64_t offset, int64_t length, uint64_t whole)
{
	return offset >= 0 && length >= 0 && (uint64_t)offset <= whole &&
	       (uint64_t)length <= whole - (uint64_t)offset;
}

/* The one place that makes a part: what it says has been checked. */
static bh_status make_part(const struct request *request, const struct wish *wish, uint32_t number,
			   struct bh_rdma_part *ret_part)
{
	/* First what is wrong by itself, whatever the memory is. */
	if (wish->length < 0)
		return refuse_range(request, wish, number, "length is negative");
	if (wish->offset < 0)
		return refuse_range(request, wish, number, "offset is negative");
	if (wish->local_offset < 0)
		return refuse_local(request, wish, number, "local_offset is negative");
	if (!lies_within(wish->local_offset, wish->length, request->info.length))
		return refuse_local(request, wish, number, "it ends past local memory");
	if (!lies_within(wish->offset, wish->length, request->target.length))
		return refuse_range(request, wish, number, "it ends past the region");
	*ret_part = (struct bh_rdma_part){
		.remote = (uint64_t)wish->offset,
		.local = (char *)request->info.data + wish->local_offset,
		.length = (uint64_t)wish->length,
	};
	return 0;
}

static bh_status read_request(struct request *request, void *state, struct bh_task *task,
			      enum bh_rdma_op op, const struct bh_value *args)
{
	bh_status st;

	request->call = (struct call){ state, task };
	request->op = op;
	request->local = args[1].as.buffer;
	st = read_descriptor(&request->call, &args[0], &request->target);
	if (st == 0)
		st = check_rights(request);
	if (st == 0)
		st = check_host_memory(&request->call, "local", request->local, &request->info);
	if (st == 0)
		st = check_threads(&request->call);
	return st;
}

static struct transfer *transfer_new(uint32_t n_parts)
{
	return calloc(1, sizeof(struct transfer) + n_parts * sizeof(struct bh_rdma_part));
}

static int64_t deadline_of(const struct call *call)
{
	const struct bh_services *services = call->rdma->services;
	int64_t remaining = services->remaining_ns(call->task);
	int64_t now = (int64_t)services->now_ns();

	return remaining > INT64_MAX - now ? INT64_MAX : now + remaining;
}

static bool has_bytes(const struct transfer *transfer, uint32_t n_parts)
{
	for (uint32_t i = 0; i < n_parts; i++)
		if (transfer->parts[i].length > 0)
			return true;
	return false;
}

/* There is nothing to transfer: done, without a word to the peer. */
static bh_status finish_at_once(const struct request *request)
{
	const struct call *call = &request->call;
	struct bh_value value = result_of(call->rdma, request->op, request->local);

	return value.type == BH_TYPE_NONE ? 0 : call->rdma->services->result(call->task, &value);
}

/* Takes `transfer`, whose parts are checked. */
static bh_status submit(const struct request *request, struct transfer *transfer, uint32_t n_parts)
{
	struct bh_rdma *rdma = request->call.rdma;
	const struct bh_rdma_memory *memory = NULL;
	struct bh_rdma_fault fault;
	bh_status st;

	if (!has_bytes(transfer, n_parts)) {
		free(transfer);
		return finish_at_once(request);
	}
	memset(&fault, 0, sizeof(fault));
	st = bh_rdma_book_use(rdma->book, request->local, &transfer->use, &memory, &fault);
	if (st < 0) {
		free(transfer);
		return fail_by(&request->call, st, &fault);
	}
	for (uint32_t i = 0; i < n_parts; i++)
		transfer->parts[i].memory = memory;
	transfer->rdma = rdma;
	transfer->local = request->local;
	transfer->engine.op = request->op;
	transfer->engine.target = request->target;
	transfer->engine.parts = transfer->parts;
	transfer->engine.n_parts = n_parts;
	transfer->engine.id = rdma->services->task_id(request->call.task);
	transfer->engine.deadline_ns = deadline_of(&request->call);
	transfer->engine.done = on_done;
	transfer->engine.user = transfer;
	st = bh_rdma_engine_submit(rdma->engine, &transfer->engine);
	if (st < 0) {
		bh_rdma_book_unuse(rdma->book, transfer->use);
		free(transfer);
		return fail(&request->call, st, "rdma.ended", NULL, 0);
	}
	return BH_PENDING;
}

static bh_status run_one(void *state, struct bh_task *task, enum bh_rdma_op op,
			 const struct bh_value *args)
{
	struct request request = { .op = op };
	struct transfer *transfer;
	struct wish wish;
	bh_status st;

	st = read_request(&request, state, task, op, args);
	if (st < 0)
		return st;
	wish.offset = args[2].as.integer;
	wish.local_offset = args[4].as.integer;
	if (args[3].type == BH_TYPE_INT)
		wish.length = args[3].as.integer;
	else /* what there is of local memory; a wrong offset is told of by make_part() */
		wish.length = lies_within(wish.local_offset, 0, request.info.length)
				      ? (int64_t)request.info.length - wish.local_offset
				      : 0;
	transfer = transfer_new(1);
	if (!transfer)
		return fail(&request.call, -ENOMEM, "rdma.memory", NULL, 0);
	st = make_part(&request, &wish, 0, &transfer->parts[0]);
	if (st < 0) {
		free(transfer);
		return st;
	}
	return submit(&request, transfer, 1);
}

static bh_status run_read(void *state, struct bh_task *task, const struct bh_value *args)
{
	return run_one(state, task, BH_RDMA_OP_READ, args);
}

static bh_status run_write(void *state, struct bh_task *task, const struct bh_value *args)
{
	return run_one(state, task, BH_RDMA_OP_WRITE, args);
}

/* ---- many parts ------------------------------------------------------------------------------- */

#define PARTS_MAX (1u << 24)

static bh_status refuse_parts(const struct call *call, uint64_t count, uint64_t at,
			      const char *reason)
{
	const struct bh_fact facts[] = {
		bh_fact_str("parameter", "parts"),
		bh_fact_int("given_items", (int64_t)count),
		bh_fact_int("at", (int64_t)at),
		bh_fact_str("reason", reason),
		bh_fact_str("accepted",
			    "a flat list of ints: offset, local_offset, length of each part"),
	};

	return fail(call, -EINVAL, "rdma.parts", facts, N_FACTS(facts));
}

static bh_status make_parts(const struct request *request, const struct bh_items *list,
			    struct transfer *transfer)
{
	uint64_t left = INT64_MAX; /* each part fits into memory; all together need not */

	for (uint64_t i = 0; i < list->count; i += 3) {
		const struct bh_value *item = &list->items[i];
		struct wish wish;
		bh_status st;

		for (uint64_t j = 0; j < 3; j++)
			if (item[j].type != BH_TYPE_INT)
				return refuse_parts(&request->call, list->count, i + j,
						    "it is no int");
		wish = (struct wish){ item[0].as.integer, item[1].as.integer, item[2].as.integer };
		st = make_part(request, &wish, (uint32_t)(i / 3), &transfer->parts[i / 3]);
		if (st < 0)
			return st;
		if ((uint64_t)wish.length > left)
			return refuse_parts(&request->call, list->count, i + 2,
					    "the parts have more than 2^63 - 1 bytes together");
		left -= (uint64_t)wish.length;
	}
	return 0;
}

static bh_status run_many(void *state, struct bh_task *task, enum bh_rdma_op op,
			  const struct bh_value *args)
{
	const struct bh_items *list = &args[2].as.list;
	struct request request = { .op = op };
	struct transfer *transfer;
	bh_status st;

	st = read_request(&request, state, task, op, args);
	if (st < 0)
		return st;
	if (list->count % 3 != 0)
		return refuse_parts(&request.call, list->count, list->count,
				    "its length is no multiple of 3");
	if (list->count / 3 > PARTS_MAX)
		return refuse_parts(&request.call, list->count, 3ull * PARTS_MAX,
				    "more than 16777216 parts");
	transfer = transfer_new((uint32_t)(list->count / 3));
	if (!transfer)
		return fail(&request.call, -ENOMEM, "rdma.memory", NULL, 0);
	st = make_parts(&request, list, transfer);
	if (st < 0) {
		free(transfer);
		return st;
	}
	return submit(&request, transfer, (uint32_t)(list->count / 3));
}

static bh_status run_read_many(void *state, struct bh_task *task, const struct bh_value *args)
{
	return run_many(state, task, BH_RDMA_OP_READ, args);
}

static bh_status run_write_many(void *state, struct bh_task *task, const struct bh_value *args)
{
	return run_many(state, task, BH_RDMA_OP_WRITE, args);
}

/* ---- info ------------------------------------------------------------------------------------ */

static bh_status run_info(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct call call = { state, task };
	const struct bh_rdma_transport *transport = call.rdma->transport;
	struct bh_rdma_address_text address = bh_rdma_address_text(&transport->address);
	struct bh_rdma_book_counts book;
	struct bh_rdma_counts counts;
	char instance[24];
	struct bh_value items[14];
	size_t n = 0;

	(void)args;
	bh_rdma_engine_counts(call.rdma->engine, &counts);
	bh_rdma_book_counts(call.rdma->book, &book);
	snprintf(instance, sizeof(instance), "%016" PRIx64, call.rdma->instance);
	items[n++] = text_value(transport->ops->name);
	items[n++] = text_value(transport->device);
	items[n++] = text_value(address.text);
	items[n++] = text_value(call.rdma->why);
	items[n++] = text_value(instance);
	items[n++] = int_value(transport->max_message);
	items[n++] = int_value(transport->max_outstanding);
	items[n++] = int_value(book.regions);
	items[n++] = int_value(book.bytes);
	items[n++] = int_value(counts.links);
	items[n++] = int_value(counts.links_in);
	items[n++] = int_value(counts.in_flight);
	items[n++] = int_value(counts.queued);
	assert(n <= N_FACTS(items));
	return return_list(&call, items, n);
}

#define TRANSFER                                                                                   \
	" Completion order is not promised. Bounds and rights are checked before anything is "     \
	"sent."

const struct bh_op bh_rdma_ops[BH_RDMA_OPS] = {
	{ .name = "register",
	  .args = "memory:object access:str=read",
	  .ret = "list",
	  .run = run_register,
	  .doc = "Lets peers reach this memory: whatever has the buffer protocol or DLPack, "
		 "C-contiguous, on the host. `access`: what they may do, \"read\", \"write\" or "
		 "\"read-write\". Returns [handle, address, length, descriptor]; the memory is "
		 "held "
		 "until close(handle)." },
	{ .name = "close",
	  .args = "region:handle",
	  .run = run_close,
	  .flags = BH_OP_CLEANUP,
	  .doc = "Ends a region: done when the transfers that use it here have ended and no peer "
		 "can touch its memory any more. A timeout ends the waiting only." },
	{ .name = "uses",
	  .args = "region:handle",
	  .ret = "list",
	  .run = run_uses,
	  .doc = "Returns [transfers under way here that use the region's memory, regions that "
		 "share "
		 "its registration, this one too]." },
	{ .name = "open",
	  .args = "descriptor:bytes",
	  .ret = "list",
	  .run = run_open,
	  .doc = "Checks a peer's descriptor and returns [length, access, peer]. Nothing is sent, "
		 "and there is nothing to close." },
	{ .name = "read",
	  .args = "descriptor:bytes local:buffer! offset:int=0 length:int=none local_offset:int=0",
	  .ret = "buffer",
	  .run = run_read,
	  .doc = "Reads `length` bytes at `offset` of a peer's region into local memory at "
		 "`local_offset`; preset: as many as local memory has from there. Returns `local`, "
		 "so that "
		 "another op can take the task as its argument." TRANSFER },
	{ .name = "write",
	  .args = "descriptor:bytes local:buffer offset:int=0 length:int=none local_offset:int=0",
	  .run = run_write,
	  .doc = "Writes `length` bytes of local memory at `local_offset` to `offset` of a peer's "
		 "region; preset: as many as local memory has from there. Done when they lie in "
		 "the "
		 "peer's memory; after a broken link they may be written twice." TRANSFER },
	{ .name = "read_many",
	  .args = "descriptor:bytes local:buffer! parts:list",
	  .ret = "buffer",
	  .run = run_read_many,
	  .doc = "Reads parts of a peer's region as one task. `parts` is a flat list of ints: "
		 "offset, local_offset, length of each. Returns `local`." TRANSFER },
	{ .name = "write_many",
	  .args = "descriptor:bytes local:buffer parts:list",
	  .run = run_write_many,
	  .doc = "Writes parts of a peer's region as one task; `parts` as for "
		 "read_many." TRANSFER },
	{ .name = "info",
	  .ret = "list",
	  .run = run_info,
	  .doc = "Returns [transport, device, address, why this transport, instance, bytes of one "
		 "work request, work requests of a link, regions, registered bytes, links, links "
		 "of "
		 "peers, transfers in flight, transfers queued]." },
};
