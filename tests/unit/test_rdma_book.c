/* SPDX-License-Identifier: BSD-3-Clause */
/* test_rdma_book - plugins/rdma/book.c against buffers, a transport and an engine of our own: who shares
 * what, what ends when, and that nothing is deregistered or let go too early or twice. */
#include "config.h"

#include "plugins/rdma/book.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/tap.h"

/* ---- a host, a transport and an engine of our own ---------------------------------------------- */

struct bh_buffer {
	struct bh_buffer_info info;
	_Atomic int n_refs; /* the test's own is one */
	_Atomic(void *) slot;
	void (*release)(void *value, struct bh_buffer *buffer);
	_Atomic bool released, freed;
};

struct bh_rdma_engine {
	struct bh_rdma_revoke *waiting[64];
	unsigned n_waiting;
	bool over;
};

struct bh_context {
	unsigned n_warnings;
	char warning[512];
};

static struct fake {
	struct bh_context ctx;
	struct bh_rdma_engine engine;
	struct bh_rdma_transport transport;
	struct bh_rdma_book *book;
	_Atomic int n_known;	  /* registrations that the transport knows */
	_Atomic int n_registered; /* calls */
	_Atomic uint64_t next_key;
	bool quiet;		 /* what deregister() returns */
	bh_status refuses;	 /* what register_memory() returns */
	void (*between)(void);	 /* within register_memory() */
	_Atomic uint32_t access; /* of the last one */
} fake;

bh_status bh_rdma_engine_revoke(struct bh_rdma_engine *engine, struct bh_rdma_revoke *revoke)
{
	if (engine->over) {
		revoke->done(revoke);
		return -ESHUTDOWN;
	}
	CU_ASSERT_FATAL(engine->n_waiting < 64);
	engine->waiting[engine->n_waiting++] = revoke;
	return 0;
}

static void peers_answer(void)
{
	while (fake.engine.n_waiting > 0) {
		struct bh_rdma_revoke *revoke = fake.engine.waiting[--fake.engine.n_waiting];

		revoke->done(revoke);
	}
}

static bh_status fake_register(struct bh_rdma_transport *transport, void *data, uint64_t length,
			       uint32_t access, struct bh_rdma_memory *ret_memory,
			       struct bh_rdma_fault *fault)
{
	(void)transport;
	CU_ASSERT(length > 0);
	if (fake.refuses < 0)
		return bh_rdma_fault(fault, fake.refuses, "rdma.memlock", "%s", "no more");
	if (fake.between)
		fake.between();
	fake.access = access;
	atomic_fetch_add(&fake.n_known, 1);
	atomic_fetch_add(&fake.n_registered, 1);
	*ret_memory = (struct bh_rdma_memory){
		.data = data,
		.length = length,
		.base = (uintptr_t)data,
		.key = atomic_fetch_add(&fake.next_key, 1) + 1,
		.handle = data,
	};
	return 0;
}

static bool fake_deregister(struct bh_rdma_transport *transport, struct bh_rdma_memory *memory)
{
	(void)transport;
	CU_ASSERT(memory->handle != NULL); /* once */
	memory->handle = NULL;
	atomic_fetch_sub(&fake.n_known, 1);
	return fake.quiet;
}

static const struct bh_rdma_transport_ops fake_ops = {
	.name = "fake",
	.register_memory = fake_register,
	.deregister = fake_deregister,
};

static bh_status host_buffer_info(const struct bh_buffer *buffer, struct bh_buffer_info *ret_info)
{
	*ret_info = buffer->info;
	return 0;
}

static struct bh_buffer *host_buffer_ref(struct bh_buffer *buffer)
{
	CU_ASSERT(!buffer->freed);
	atomic_fetch_add(&buffer->n_refs, 1);
	return buffer;
}

static void host_buffer_unref(struct bh_buffer *buffer)
{
	void *value;

	CU_ASSERT_FATAL(atomic_load(&buffer->n_refs) > 0);
	if (atomic_fetch_sub(&buffer->n_refs, 1) > 1)
		return;
	value = atomic_exchange(&buffer->slot, NULL);
	if (value) {
		atomic_store(&buffer->n_refs, 1);
		atomic_store(&buffer->released, true);
		buffer->release(value, buffer);
		return;
	}
	atomic_store(&buffer->freed, true);
}

static bh_status host_slot_set(struct bh_context *ctx, struct bh_buffer *buffer, void *value,
			       void (*release)(void *value, struct bh_buffer *buffer))
{
	void *none = NULL;

	(void)ctx;
	buffer->release = release;
	return atomic_compare_exchange_strong(&buffer->slot, &none, value) ? 0 : -EEXIST;
}

static void *host_slot_get(struct bh_context *ctx, struct bh_buffer *buffer)
{
	(void)ctx;
	return atomic_load(&buffer->slot);
}

static void *host_slot_clear(struct bh_context *ctx, struct bh_buffer *buffer)
{
	(void)ctx;
	CU_ASSERT(!buffer->freed);
	return atomic_exchange(&buffer->slot, NULL);
}

static void host_log(struct bh_context *ctx, uint32_t level, const char *message,
		     const struct bh_fact *facts, uint32_t n_facts)
{
	int used = snprintf(ctx->warning, sizeof(ctx->warning), "%s", message);

	CU_ASSERT_EQUAL(level, BH_LOG_WARNING);
	ctx->n_warnings++;
	for (uint32_t i = 0; i < n_facts; i++)
		used += snprintf(ctx->warning + used, sizeof(ctx->warning) - (size_t)used,
				 facts[i].kind == BH_FACT_STR ? " %s=%s" : " %s=%.0s%lld",
				 facts[i].key, facts[i].text ? facts[i].text : "",
				 (long long)facts[i].number);
}

static const char *host_label(struct bh_context *ctx)
{
	(void)ctx;
	return "fabric";
}

static const struct bh_services services = {
	.size = sizeof(services),
	.abi = BH_ABI,
	.label = host_label,
	.log = host_log,
	.buffer_info = host_buffer_info,
	.buffer_ref = host_buffer_ref,
	.buffer_unref = host_buffer_unref,
	.buffer_slot_set = host_slot_set,
	.buffer_slot_get = host_slot_get,
	.buffer_slot_clear = host_slot_clear,
};

static void begin(bool needs_memory)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(4791) };

	memset(&fake, 0, sizeof(fake));
	fake.transport.ops = &fake_ops;
	fake.transport.kind = BH_RDMA_SOFTWARE;
	fake.transport.needs_memory = needs_memory;
	inet_pton(AF_INET, "192.0.2.1", &in.sin_addr);
	memcpy(fake.transport.address.bytes, &in, sizeof(in));
	fake.transport.address.length = sizeof(in);
	CU_ASSERT_EQUAL_FATAL(bh_rdma_book_new(&fake.ctx, &services, &fake.transport, &fake.engine,
					       4711, &fake.book),
			      0);
}

static void end(void)
{
	fake.engine.over = true;
	peers_answer();
	CU_ASSERT_EQUAL(bh_rdma_book_free(fake.book), 0);
	CU_ASSERT_EQUAL(fake.n_known, 0);
}

static struct bh_buffer buffer_at(void *data, uint64_t length)
{
	return (struct bh_buffer){
		.info = { .size = sizeof(struct bh_buffer_info),
			  .kind = BH_BUFFER_HOST,
			  .data = data,
			  .length = length },
		.n_refs = 1,
	};
}

static struct bh_rdma_region_facts registered(struct bh_buffer *buffer, uint32_t access)
{
	struct bh_rdma_region_facts facts;
	struct bh_rdma_fault fault;

	memset(&facts, 0, sizeof(facts));
	CU_ASSERT_EQUAL(bh_rdma_book_register(fake.book, buffer, access, &facts, &fault), 0);
	return facts;
}

/* How often the end was told. */
static void told(void *user, bh_status status)
{
	CU_ASSERT_EQUAL(status, 0);
	atomic_fetch_add((_Atomic int *)user, 1);
}

static bool has_work(void)
{
	struct pollfd fd = { .fd = bh_rdma_book_descriptor(fake.book), .events = POLLIN };

	return poll(&fd, 1, 0) > 0;
}

static uint64_t key_of(const struct bh_rdma_region_facts *facts)
{
	struct bh_rdma_descriptor descriptor;
	const char *why;

	CU_ASSERT_EQUAL_FATAL(bh_rdma_descriptor_decode(facts->descriptor, facts->descriptor_length,
							&descriptor, &why),
			      0);
	CU_ASSERT_EQUAL(descriptor.instance, 4711);
	CU_ASSERT_EQUAL(descriptor.length, facts->length);
	CU_ASSERT_EQUAL(descriptor.access, facts->access);
	return descriptor.key;
}

/* ---- regions ---------------------------------------------------------------------------------- */

static char memory[65536];

static void the_same_bytes_are_registered_once(void)
{
	struct bh_buffer a = buffer_at(memory, 4096), same = buffer_at(memory, 4096);
	struct bh_buffer cut = buffer_at(memory, 4095);
	struct bh_rdma_region_facts one, two, other, shorter;
	_Atomic int n_told = 0;

	begin(false);
	one = registered(&a, BH_RDMA_READ);
	two = registered(&same, BH_RDMA_READ);
	CU_ASSERT_EQUAL(fake.n_registered, 1);
	CU_ASSERT_NOT_EQUAL(one.handle, two.handle);
	CU_ASSERT_EQUAL(two.n_sharing, 2);
	CU_ASSERT_EQUAL(key_of(&one), key_of(&two));
	CU_ASSERT_EQUAL(a.n_refs, 2);
	CU_ASSERT_EQUAL(same.n_refs, 1);
	other = registered(&a, BH_RDMA_READ | BH_RDMA_WRITE);
	CU_ASSERT_EQUAL(fake.n_registered, 2);
	CU_ASSERT_NOT_EQUAL(key_of(&one), key_of(&other));
	shorter = registered(&cut, BH_RDMA_READ);
	CU_ASSERT_EQUAL(fake.n_registered, 3);
	CU_ASSERT_NOT_EQUAL(key_of(&one), key_of(&shorter));
	/* The first of two: over at once, and the other one stays. */
	CU_ASSERT_EQUAL(bh_rdma_book_close(fake.book, one.handle, told, &n_told), 0);
	CU_ASSERT_EQUAL(fake.n_known, 3);
	CU_ASSERT_EQUAL(bh_rdma_book_facts(fake.book, two.handle, &two), 0);
	CU_ASSERT_EQUAL(two.n_sharing, 1);
	CU_ASSERT_EQUAL(bh_rdma_book_facts(fake.book, one.handle, &one), -ENOENT);
	CU_ASSERT_EQUAL(bh_rdma_book_close(fake.book, one.handle, told, &n_told), -ENOENT);
	CU_ASSERT_EQUAL(n_told, 0);
	end();
	CU_ASSERT_EQUAL(a.n_refs, 1);
	CU_ASSERT_EQUAL(same.n_refs, 1);
}

static void a_region_ends_when_no_peer_can_touch_it(void)
{
	struct bh_buffer a = buffer_at(memory, 4096);
	struct bh_rdma_region_facts facts, again;
	_Atomic int n_told = 0;

	begin(false);
	facts = registered(&a, BH_RDMA_WRITE);
	CU_ASSERT_EQUAL(fake.access, BH_RDMA_WRITE);
	CU_ASSERT_EQUAL(bh_rdma_book_close(fake.book, facts.handle, told, &n_told), 1);
	CU_ASSERT_EQUAL(fake.n_known, 1); /* not here: it may block */
	CU_ASSERT(has_work());
	bh_rdma_book_reap(fake.book);
	CU_ASSERT_EQUAL(fake.n_known, 0);
	CU_ASSERT_EQUAL(n_told, 0);
	CU_ASSERT_EQUAL(a.n_refs, 2); /* a peer's access may be under way */
	/* The same bytes meanwhile: another key, as the old one must mean nothing. */
	again = registered(&a, BH_RDMA_WRITE);
	CU_ASSERT_NOT_EQUAL(key_of(&again), key_of(&facts));
	CU_ASSERT_NOT_EQUAL(again.handle, facts.handle);
	/* The engine's thread tells the reaper, and lets go of nothing itself: that may take long. */
	peers_answer();
	CU_ASSERT_EQUAL(n_told, 0);
	CU_ASSERT_EQUAL(a.n_refs, 3);
	CU_ASSERT(has_work());
	bh_rdma_book_reap(fake.book);
	CU_ASSERT_EQUAL(n_told, 1);
	CU_ASSERT_EQUAL(a.n_refs, 2);
	fake.quiet = true; /* a transport that can tell at once */
	CU_ASSERT_EQUAL(bh_rdma_book_close(fake.book, again.handle, told, &n_told), 1);
	bh_rdma_book_reap(fake.book);
	CU_ASSERT_EQUAL(n_told, 2);
	CU_ASSERT_EQUAL(a.n_refs, 1);
	end();
}

static void a_region_ends_after_its_local_uses(void)
{
	struct bh_buffer a = buffer_at(memory, 4096), part = buffer_at(memory + 100, 200);
	struct bh_rdma_use *one = NULL, *two = NULL, *three = NULL;
	const struct bh_rdma_memory *of = NULL;
	struct bh_rdma_region_facts facts;
	struct bh_rdma_fault fault;
	_Atomic int n_told = 0;

	begin(true);
	fake.quiet = true;
	facts = registered(&a, BH_RDMA_READ);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &part, &one, &of, &fault), 0);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &a, &two, &of, &fault), 0);
	CU_ASSERT(one && one == two);
	CU_ASSERT(of && of->data == memory && of->length == 4096);
	CU_ASSERT_EQUAL(fake.n_registered, 1);
	CU_ASSERT_EQUAL(bh_rdma_book_facts(fake.book, facts.handle, &facts), 0);
	CU_ASSERT_EQUAL(facts.n_uses, 2);
	CU_ASSERT_EQUAL(bh_rdma_book_close(fake.book, facts.handle, told, &n_told), 1);
	bh_rdma_book_reap(fake.book);
	CU_ASSERT_EQUAL(fake.n_known, 1);
	/* A transfer that comes now does not make it live on. */
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &part, &three, &of, &fault), 0);
	CU_ASSERT(three && three != one);
	bh_rdma_book_unuse(fake.book, three);
	bh_rdma_book_unuse(fake.book, one);
	bh_rdma_book_reap(fake.book);
	CU_ASSERT_EQUAL(n_told, 0);
	bh_rdma_book_unuse(fake.book, two);
	CU_ASSERT_EQUAL(n_told, 0);
	bh_rdma_book_reap(fake.book);
	CU_ASSERT_EQUAL(n_told, 1);
	CU_ASSERT_EQUAL(a.n_refs, 1);
	end();
	CU_ASSERT_EQUAL(part.n_refs, 1);
}

static void no_bytes_need_no_registration(void)
{
	struct bh_buffer none = buffer_at(NULL, 0);
	struct bh_rdma_region_facts facts;
	struct bh_rdma_use *use = NULL;
	const struct bh_rdma_memory *of = NULL;
	struct bh_rdma_fault fault;
	_Atomic int n_told = 0;

	begin(true);
	facts = registered(&none, BH_RDMA_READ);
	CU_ASSERT_EQUAL(facts.length, 0);
	CU_ASSERT_EQUAL(fake.n_registered, 0);
	(void)key_of(&facts);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &none, &use, &of, &fault), 0);
	CU_ASSERT(!use && !of);
	bh_rdma_book_unuse(fake.book, use);
	CU_ASSERT_EQUAL(bh_rdma_book_close(fake.book, facts.handle, told, &n_told), 1);
	bh_rdma_book_reap(fake.book);
	CU_ASSERT_EQUAL(n_told, 1);
	end();
	CU_ASSERT_EQUAL(none.n_refs, 1);
}

static void a_refusal_leaves_nothing(void)
{
	struct bh_buffer a = buffer_at(memory, 4096);
	struct bh_rdma_region_facts facts;
	struct bh_rdma_use *use;
	const struct bh_rdma_memory *of;
	struct bh_rdma_fault fault = { .id = "" };

	begin(true);
	fake.refuses = -ENOMEM;
	CU_ASSERT_EQUAL(bh_rdma_book_register(fake.book, &a, BH_RDMA_READ, &facts, &fault),
			-ENOMEM);
	CU_ASSERT_STRING_EQUAL(fault.id, "rdma.memlock");
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &a, &use, &of, &fault), -ENOMEM);
	CU_ASSERT_EQUAL(a.n_refs, 1);
	CU_ASSERT_PTR_NULL(a.slot);
	end();
}

static struct bh_buffer rival;

static void register_between(void)
{
	fake.between = NULL;
	(void)registered(&rival, BH_RDMA_READ);
}

static void two_at_once_share_too(void)
{
	struct bh_buffer a = buffer_at(memory, 4096);
	struct bh_rdma_region_facts facts;

	begin(false);
	rival = buffer_at(memory, 4096);
	fake.between = register_between;
	facts = registered(&a, BH_RDMA_READ);
	CU_ASSERT_EQUAL(facts.n_sharing, 2);
	CU_ASSERT_EQUAL(fake.n_registered, 2);
	CU_ASSERT_EQUAL(fake.n_known, 1);
	CU_ASSERT_EQUAL(a.n_refs, 1);
	CU_ASSERT_EQUAL(rival.n_refs, 2);
	end();
	CU_ASSERT_EQUAL(rival.n_refs, 1);
}

/* Any number, in any order, with lengths and overlaps of all kinds: what lies around what is found as a
 * plain search finds it. */
static void what_lies_around_is_found(void)
{
	enum { N = 200 };
	static struct bh_buffer buffers[N];
	static struct bh_rdma_region_facts facts[N];
	unsigned seed = 7;
	_Atomic int n_told = 0;

	begin(true);
	fake.quiet = true;
	for (unsigned i = 0; i < N; i++) {
		uint64_t from = (uint64_t)rand_r(&seed) % 60000;
		uint64_t length = 1 + (uint64_t)rand_r(&seed) % (i % 10 ? 200 : 5000);

		buffers[i] = buffer_at(memory + from, length);
		facts[i] = registered(&buffers[i], 1 + (uint32_t)rand_r(&seed) % 3);
	}
	for (unsigned i = 0; i < N; i += 2) /* half of them go again */
		CU_ASSERT(bh_rdma_book_close(fake.book, facts[i].handle, told, &n_told) >= 0);
	bh_rdma_book_reap(fake.book);
	for (unsigned round = 0; round < 3000; round++) {
		struct bh_buffer part = buffer_at(memory + (uint64_t)rand_r(&seed) % 60000,
						  1 + (uint64_t)rand_r(&seed) % 300);
		const char *first = part.info.data, *end_of = first + part.info.length;
		const struct bh_rdma_memory *of = NULL;
		struct bh_rdma_use *use = NULL;
		struct bh_rdma_fault fault;
		bool expected = false;
		int before = fake.n_registered;

		for (unsigned i = 1; i < N; i += 2) {
			const char *from = buffers[i].info.data;

			expected |= from <= first && from + buffers[i].info.length >= end_of;
		}
		CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &part, &use, &of, &fault), 0);
		CU_ASSERT_EQUAL(fake.n_registered == before, expected);
		CU_ASSERT(of && (const char *)of->data <= first &&
			  (const char *)of->data + of->length >= end_of);
		bh_rdma_book_unuse(fake.book, use);
		host_buffer_unref(&part);
		bh_rdma_book_reap(fake.book);
		CU_ASSERT(part.freed);
	}
	end();
	for (unsigned i = 0; i < N; i++)
		CU_ASSERT_EQUAL(buffers[i].n_refs, 1);
}

/* ---- slots ------------------------------------------------------------------------------------- */

static void local_use_is_kept_in_the_slot(void)
{
	struct bh_buffer a = buffer_at(memory, 4096);
	struct bh_rdma_use *one = NULL, *two = NULL;
	const struct bh_rdma_memory *of = NULL;
	struct bh_rdma_book_counts counts;
	struct bh_rdma_fault fault;

	begin(true);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &a, &one, &of, &fault), 0);
	CU_ASSERT_EQUAL(fake.access, 0);
	CU_ASSERT_EQUAL(a.n_refs, 2);
	bh_rdma_book_unuse(fake.book, one);
	CU_ASSERT_EQUAL(a.n_refs, 1); /* the slot holds none */
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &a, &two, &of, &fault), 0);
	CU_ASSERT_PTR_EQUAL(one, two);
	CU_ASSERT_EQUAL(fake.n_registered, 1);
	bh_rdma_book_counts(fake.book, &counts);
	CU_ASSERT_EQUAL(counts.registrations, 1);
	CU_ASSERT_EQUAL(counts.bytes, 4096);
	CU_ASSERT_EQUAL(counts.regions, 0);
	host_buffer_unref(&a); /* all others: the transfer is the last */
	CU_ASSERT(!a.released);
	bh_rdma_book_unuse(fake.book, two);
	CU_ASSERT(a.released && !a.freed);
	CU_ASSERT_EQUAL(fake.n_known, 1); /* not on that thread */
	CU_ASSERT(has_work());
	bh_rdma_book_reap(fake.book);
	CU_ASSERT(a.freed);
	CU_ASSERT_EQUAL(fake.n_known, 0);
	bh_rdma_book_counts(fake.book, &counts);
	CU_ASSERT_EQUAL(counts.registrations, 0);
	CU_ASSERT_EQUAL(counts.bytes, 0);
	end();
}

static void slots_that_are_left_are_cleared(void)
{
	struct bh_buffer a = buffer_at(memory, 4096), b = buffer_at(memory + 8192, 4096);
	const struct bh_rdma_memory *of = NULL;
	struct bh_rdma_use *use = NULL;
	struct bh_rdma_fault fault;

	begin(true);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &a, &use, &of, &fault), 0);
	bh_rdma_book_unuse(fake.book, use);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &b, &use, &of, &fault), 0);
	bh_rdma_book_unuse(fake.book, use);
	host_buffer_unref(&b); /* its release() has been, and nobody has reaped */
	end();
	CU_ASSERT(b.freed);
	CU_ASSERT_PTR_NULL(a.slot);
	CU_ASSERT_EQUAL(a.n_refs, 1);
}

static void *release_later(void *arg)
{
	struct bh_buffer *buffer = arg;

	host_buffer_unref(buffer);
	return NULL;
}

static void a_release_on_its_way_is_waited_for(void)
{
	for (unsigned round = 0; round < 200; round++) {
		struct bh_buffer a = buffer_at(memory, 4096);
		const struct bh_rdma_memory *of = NULL;
		struct bh_rdma_use *use = NULL;
		struct bh_rdma_fault fault;
		pthread_t thread;

		begin(true);
		CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &a, &use, &of, &fault), 0);
		bh_rdma_book_unuse(fake.book, use);
		CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, release_later, &a), 0);
		end();
		pthread_join(thread, NULL);
		CU_ASSERT(a.freed);
		CU_ASSERT_EQUAL(a.n_refs, 0);
	}
}

static void without_need_nothing_is_registered(void)
{
	struct bh_buffer a = buffer_at(memory, 4096);
	const struct bh_rdma_memory *of = NULL;
	struct bh_rdma_use *use = NULL;
	struct bh_rdma_fault fault;

	begin(false);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &a, &use, &of, &fault), 0);
	CU_ASSERT(!use && !of);
	(void)registered(&a, BH_RDMA_READ);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &a, &use, &of, &fault), 0);
	CU_ASSERT(use && !of); /* counted, as close() waits for it */
	bh_rdma_book_unuse(fake.book, use);
	end();
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void regions_that_are_left_are_reported_once(void)
{
	struct bh_buffer a = buffer_at(memory, 4096), b = buffer_at(memory + 8192, 100);

	begin(false);
	(void)registered(&a, BH_RDMA_READ);
	(void)registered(&a, BH_RDMA_READ);
	(void)registered(&b, BH_RDMA_READ);
	end();
	CU_ASSERT_EQUAL(fake.ctx.n_warnings, 1);
	CU_ASSERT_PTR_NOT_NULL(strstr(fake.ctx.warning, "plugin=fabric"));
	CU_ASSERT_PTR_NOT_NULL(strstr(fake.ctx.warning, "regions=3"));
	CU_ASSERT_PTR_NOT_NULL(strstr(fake.ctx.warning, "bytes=4196"));
	CU_ASSERT_EQUAL(a.n_refs, 1);
	CU_ASSERT_EQUAL(b.n_refs, 1);
	begin(false);
	end();
	CU_ASSERT_EQUAL(fake.ctx.n_warnings, 0);
}

static void memory_outlives_doubt(void)
{
	struct bh_buffer a = buffer_at(memory, 4096), b = buffer_at(memory + 8192, 100);
	const struct bh_rdma_memory *of = NULL;
	struct bh_rdma_use *use = NULL, *slot = NULL;
	struct bh_rdma_region_facts facts;
	struct bh_rdma_fault fault;
	_Atomic int n_told = 0;

	begin(true);
	facts = registered(&a, BH_RDMA_READ);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &a, &use, &of, &fault), 0);
	CU_ASSERT_EQUAL(bh_rdma_book_use(fake.book, &b, &slot, &of, &fault), 0);
	fake.engine.over = true;
	/* Two transfers that never came back: one in a region, one in a slot. */
	CU_ASSERT_EQUAL(bh_rdma_book_free(fake.book), 2);
	CU_ASSERT_EQUAL(fake.n_known, 2);
	CU_ASSERT_EQUAL(a.n_refs, 2);
	CU_ASSERT_EQUAL(b.n_refs, 2);
	CU_ASSERT_PTR_NULL(b.slot); /* release() is not called after the plugin has been closed */
	/* Here they do come back, or it would be a leak to a sanitizer. */
	bh_rdma_book_unuse(fake.book, use);
	CU_ASSERT(bh_rdma_book_close(fake.book, facts.handle, told, &n_told) == 1);
	bh_rdma_book_unuse(fake.book, slot);
	CU_ASSERT_EQUAL(host_slot_set(&fake.ctx, &b, slot, b.release), 0);
	CU_ASSERT_EQUAL(bh_rdma_book_free(fake.book), 0);
	CU_ASSERT_EQUAL(fake.n_known, 0);
}

static _Atomic bool stop_reaping;

static void *reaper(void *arg)
{
	struct pollfd fd = { .fd = bh_rdma_book_descriptor(fake.book), .events = POLLIN };

	(void)arg;
	while (!atomic_load(&stop_reaping))
		if (poll(&fd, 1, 10) > 0)
			bh_rdma_book_reap(fake.book);
	return NULL;
}

static void *churn(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	_Atomic int n_told = 0;
	int n_last = 0;

	for (unsigned round = 0; round < 2000; round++) {
		uint64_t from = 64 * ((uint64_t)rand_r(&seed) % 8);
		struct bh_buffer *a = malloc(sizeof(*a));
		const struct bh_rdma_memory *of = NULL;
		struct bh_rdma_region_facts facts;
		struct bh_rdma_use *use = NULL;
		struct bh_rdma_fault fault;

		*a = buffer_at(memory + from, 64);
		memset(&facts, 0, sizeof(facts));
		if (bh_rdma_book_register(fake.book, a, BH_RDMA_READ, &facts, &fault) < 0 ||
		    bh_rdma_book_use(fake.book, a, &use, &of, &fault) < 0)
			abort();
		n_last += bh_rdma_book_close(fake.book, facts.handle, told, &n_told);
		bh_rdma_book_unuse(fake.book, use);
		while (atomic_load(&a->n_refs) > 1) /* until nobody needs it: shared ones wait */
			if (poll(NULL, 0, 1) < 0)
				abort();
		free(a);
	}
	while (atomic_load(&n_told) < n_last) /* each close that was to be told is told */
		if (poll(NULL, 0, 1) < 0)
			abort();
	return NULL;
}

static void many_threads_agree(void)
{
	pthread_t threads[4], reaps;

	begin(false);
	fake.quiet = true;
	atomic_store(&stop_reaping, false);
	CU_ASSERT_EQUAL_FATAL(pthread_create(&reaps, NULL, reaper, NULL), 0);
	for (uintptr_t i = 0; i < 4; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&stop_reaping, true);
	pthread_join(reaps, NULL);
	CU_ASSERT_EQUAL(fake.n_known, 0);
	end();
	CU_ASSERT_EQUAL(fake.ctx.n_warnings, 0);
}

static void ten_thousand_rounds_leave_nothing(void)
{
	struct bh_rdma_book_counts counts;
	_Atomic int n_told = 0;

	begin(false);
	fake.quiet = true;
	for (unsigned round = 0; round < 10000; round++) {
		struct bh_buffer a = buffer_at(memory + round % 4096, 4096);
		struct bh_rdma_region_facts facts = registered(&a, BH_RDMA_READ);

		CU_ASSERT_EQUAL(bh_rdma_book_close(fake.book, facts.handle, told, &n_told), 1);
		bh_rdma_book_reap(fake.book);
		CU_ASSERT_EQUAL(a.n_refs, 1);
	}
	bh_rdma_book_counts(fake.book, &counts);
	CU_ASSERT_EQUAL(counts.regions, 0);
	CU_ASSERT_EQUAL(counts.registrations, 0);
	CU_ASSERT_EQUAL(n_told, 10000);
	end();
}

static const struct bh_test tests[] = {
	{ "regions on the same bytes with the same rights share one registration, which goes with "
	  "the "
	  "last",
	  the_same_bytes_are_registered_once },
	{ "SUP-10: a region's memory is let go when no peer can touch it, and only then its end is "
	  "told",
	  a_region_ends_when_no_peer_can_touch_it },
	{ "a region ends after the transfers that use it here",
	  a_region_ends_after_its_local_uses },
	{ "no bytes need no registration", no_bytes_need_no_registration },
	{ "what the transport refuses leaves nothing behind", a_refusal_leaves_nothing },
	{ "two that register the same bytes at once share, too", two_at_once_share_too },
	{ "what lies around a transfer's memory is found, whatever overlaps what",
	  what_lies_around_is_found },
	{ "memory for local use is registered once, as long as its buffer lives",
	  local_use_is_kept_in_the_slot },
	{ "slots that are left at the end are cleared", slots_that_are_left_are_cleared },
	{ "a slot's release that is on its way at the end is waited for",
	  a_release_on_its_way_is_waited_for },
	{ "a transport that needs no local memory gets none registered",
	  without_need_nothing_is_registered },
	{ "regions that were left open are released and reported in one line",
	  regions_that_are_left_are_reported_once },
	{ "SUP-10: what a lost transfer uses stays registered, referenced, and counted",
	  memory_outlives_doubt },
	{ "threads that register, use and close the same bytes agree", many_threads_agree },
	{ "10 000 rounds of register and close leave nothing", ten_thousand_rounds_leave_nothing },
};

BH_TAP_MAIN("rdma_book", tests)
