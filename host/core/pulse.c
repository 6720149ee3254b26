/* SPDX-License-Identifier: BSD-3-Clause */
/* pulse - see pulse.h. */
#include "config.h"

#include "host/core/pulse.h"

#include <unistd.h>

#include "host/core/clock.h"

static uint64_t load(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

static void store(_Atomic uint64_t *value, uint64_t to)
{
	atomic_store_explicit(value, to, memory_order_relaxed);
}

/* On the loop's thread: the only one that writes the statistics. */
static void answer(struct bh_message *message)
{
	struct bh_pulse *pulse = bh_container_of(message, struct bh_pulse, message);
	uint64_t now = bh_now_ns(), took = now - load(&pulse->asked_ns);

	if (atomic_load_explicit(&pulse->tid, memory_order_relaxed) == 0)
		atomic_store_explicit(&pulse->tid, (uint32_t)gettid(), memory_order_relaxed);
	bh_histogram_add(&pulse->answers, took);
	store(&pulse->last_ns, took);
	store(&pulse->total_ns, load(&pulse->total_ns) + took);
	if (took > load(&pulse->max_ns)) {
		store(&pulse->max_ns, took);
		store(&pulse->max_at_ns, now);
	}
	store(&pulse->n, load(&pulse->n) + 1);
	/* From here on the message may be posted again. */
	atomic_store_explicit(&pulse->asked_ns, 0, memory_order_release);
}

void bh_pulse_init(struct bh_pulse *pulse, void (*post)(struct bh_message *message, void *arg),
		   void *arg)
{
	*pulse = (struct bh_pulse){ .post = post, .arg = arg };
	pulse->message.deliver = answer;
	bh_mutex_init(&pulse->lock);
}

void bh_pulse_fini(struct bh_pulse *pulse)
{
	bh_mutex_fini(&pulse->lock);
}

void bh_pulse_ask(struct bh_pulse *pulse)
{
	if (atomic_load_explicit(&pulse->asked_ns, memory_order_acquire) != 0)
		return;
	bh_mutex_lock(&pulse->lock);
	if (!pulse->closed) {
		store(&pulse->asked_ns, bh_now_ns());
		pulse->post(&pulse->message, pulse->arg);
	}
	bh_mutex_unlock(&pulse->lock);
}

void bh_pulse_close(struct bh_pulse *pulse)
{
	bh_mutex_lock(&pulse->lock);
	pulse->closed = true;
	bh_mutex_unlock(&pulse->lock);
	atomic_store_explicit(&pulse->ignored, true, memory_order_relaxed);
}

uint64_t bh_pulse_silent_since(const struct bh_pulse *pulse)
{
	if (atomic_load_explicit(&pulse->ignored, memory_order_relaxed))
		return 0;
	return load(&pulse->asked_ns);
}

void bh_pulse_read(const struct bh_pulse *pulse, struct bh_stall_lag *ret_lag,
		   struct bh_histogram_counts *counts)
{
	uint64_t since = bh_pulse_silent_since(pulse), now = bh_now_ns();

	*ret_lag = (struct bh_stall_lag){
		.now_ns = since && now > since ? now - since : 0,
		.n = load(&pulse->n),
		.last_ns = load(&pulse->last_ns),
		.total_ns = load(&pulse->total_ns),
		.max_ns = load(&pulse->max_ns),
		.max_at_ns = load(&pulse->max_at_ns),
	};
	if (counts)
		bh_histogram_collect(&pulse->answers, counts);
}
