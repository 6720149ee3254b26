/* SPDX-License-Identifier: BSD-3-Clause */
/* rdma_ends - what the suites of the rdma transports have in common: ends that are polled, on the test's
 * own thread, until something is so.
 *
 * Included once, by a suite's one file, which defines `struct end` as it likes, and the two functions
 * that are declared here. */
#ifndef BH_TESTS_UNIT_RDMA_ENDS_H
#define BH_TESTS_UNIT_RDMA_ENDS_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "plugins/rdma/transport.h"

#define MIB ((size_t)1 << 20)
#define SECOND INT64_C(1000000000)
#define PATIENCE_NS (60 * SECOND) /* how long a broken build takes to fail */

struct end;
static struct bh_rdma_transport *transport_of(const struct end *end);
static void on_event(struct end *end, const struct bh_rdma_event *event);

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * SECOND + now.tv_nsec;
}

/* One poll. Returns how many events there were. */
static uint32_t step(struct end *end)
{
	struct bh_rdma_transport *transport = transport_of(end);
	struct bh_rdma_event events[16];
	uint32_t n = transport->ops->poll(transport, events, 16);

	for (uint32_t i = 0; i < n; i++)
		on_event(end, &events[i]);
	return n;
}

/* Sleeps on the descriptors of at most two ends until one of them has something, if none has at once; at
 * most 20 ms, for conditions that others make true. */
static void rest(struct end *const *ends, uint32_t n_ends)
{
	struct pollfd fds[2 * BH_RDMA_FDS];
	int64_t timeout_ns = SECOND / 50;
	nfds_t n = 0;

	for (uint32_t i = 0; i < n_ends; i++) {
		struct bh_rdma_transport *transport = transport_of(ends[i]);
		int some[BH_RDMA_FDS];
		uint32_t n_some = transport->ops->descriptors(transport, some);

		if (!transport->ops->arm(transport))
			return;
		for (uint32_t j = 0; j < n_some; j++)
			fds[n++] = (struct pollfd){ .fd = some[j], .events = POLLIN };
		if (transport->ops->timeout_ns(transport) < timeout_ns)
			timeout_ns = transport->ops->timeout_ns(transport);
	}
	(void)poll(fds, n, (int)(timeout_ns / 1000000));
}

/* Polls the ends that stand behind the condition until it holds; false: it never did. */
#define UNTIL(condition, ...)                                                                      \
	({                                                                                         \
		struct end *const ends_[] = { __VA_ARGS__ };                                       \
		const uint32_t n_ends_ = sizeof(ends_) / sizeof(ends_[0]);                         \
		int64_t until_ = now_ns() + PATIENCE_NS;                                           \
		while (!(condition) && now_ns() < until_) {                                        \
			uint32_t n_ = 0;                                                           \
			for (uint32_t i_ = 0; i_ < n_ends_; i_++)                                  \
				n_ += step(ends_[i_]);                                             \
			if (!n_ && !(condition))                                                   \
				rest(ends_, n_ends_);                                              \
		}                                                                                  \
		(condition);                                                                       \
	})

static struct bh_rdma_memory registered(struct end *end, void *data, uint64_t length,
					uint32_t access)
{
	struct bh_rdma_transport *transport = transport_of(end);
	struct bh_rdma_memory memory = { 0 };
	struct bh_rdma_fault fault = { 0 };

	if (transport->ops->register_memory(transport, data, length, access, &memory, &fault) < 0) {
		fprintf(stderr, "register: %s: %s\n", fault.id, fault.text);
		abort();
	}
	return memory;
}

#endif
