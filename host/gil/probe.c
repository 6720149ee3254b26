/* SPDX-License-Identifier: BSD-3-Clause */
/* probe - see probe.h. There is one GIL and the header hands out no handle, so the probe's state is
 * the process's. Keeps: GIL-5 (it ends at the gate), CP-3. */
#include "config.h"

#include "host/gil/probe.h"

#include <errno.h>

#include "host/core/log.h"
#include "host/core/sync.h"

static struct {
	uint64_t interval_ns; /* I after start; 0: off */
	pthread_t thread;     /* T: main */
	bool started;	      /* T: main */
	struct bh_mutex lock; /* guards `stopping`; a leaf */
	struct bh_cond changed;
	bool stopping;		   /* M */
	_Atomic uint64_t asked_ns; /* A: relaxed; written by the probe */
	struct bh_histogram answers;
	_Atomic uint64_t n, last_ns, total_ns, max_ns, max_at_ns; /* A: relaxed, by the probe */
} probe;

static uint64_t load(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

static void store(_Atomic uint64_t *value, uint64_t to)
{
	atomic_store_explicit(value, to, memory_order_relaxed);
}

static void count(uint64_t took, uint64_t now)
{
	bh_histogram_add(&probe.answers, took);
	store(&probe.last_ns, took);
	store(&probe.total_ns, load(&probe.total_ns) + took);
	if (took > load(&probe.max_ns)) {
		store(&probe.max_ns, took);
		store(&probe.max_at_ns, now);
	}
	store(&probe.n, load(&probe.n) + 1);
}

/* False when the gate has closed: there is nothing to measure any more (GIL-5). */
static bool ask(void)
{
	uint64_t asked = bh_now_ns(), now;
	struct bh_gil_scope scope;

	store(&probe.asked_ns, asked);
	if (bh_gil_enter(BH_SITE_PROBE, BH_HERE, &scope, NULL) < 0) {
		store(&probe.asked_ns, 0);
		return false;
	}
	now = bh_now_ns();
	store(&probe.asked_ns, 0);
	bh_gil_leave(&scope);
	count(now - asked, now);
	return true;
}

/* False when it shall end. */
static bool rest(void)
{
	struct bh_deadline until = bh_deadline_after(probe.interval_ns);
	bool stopping;

	bh_mutex_lock(&probe.lock);
	while (!probe.stopping && bh_cond_wait(&probe.changed, &probe.lock, until))
		;
	stopping = probe.stopping;
	bh_mutex_unlock(&probe.lock);
	return !stopping;
}

static void *run(void *arg)
{
	struct bh_error err = { 0 };

	(void)arg;
	/* What is measured is the wait, not the making of a thread state each time. */
	if (bh_gil_worker_start(&err) < 0)
		bh_log_error(BH_LOG_WARNING, "gil", "the probe keeps no thread state", &err);
	while (rest() && ask())
		;
	bh_gil_worker_stop();
	return NULL;
}

bh_status bh_gil_probe_start(uint64_t interval_ns, struct bh_error *err)
{
	bh_status st;

	if (interval_ns == 0 || probe.started)
		return 0;
	probe.interval_ns = interval_ns;
	probe.stopping = false;
	bh_mutex_init(&probe.lock);
	bh_cond_init(&probe.changed);
	st = bh_thread_create(&probe.thread, "bh-probe", run, NULL, err);
	if (st < 0) {
		bh_cond_fini(&probe.changed);
		bh_mutex_fini(&probe.lock);
		return st;
	}
	probe.started = true;
	return 0;
}

void bh_gil_probe_stop(void)
{
	if (!probe.started)
		return;
	bh_mutex_lock(&probe.lock);
	probe.stopping = true;
	bh_cond_broadcast(&probe.changed);
	bh_mutex_unlock(&probe.lock);
}

bh_status bh_gil_probe_join(struct bh_deadline until, struct bh_error *err)
{
	bh_status st;

	if (!probe.started)
		return 0;
	st = bh_thread_join(probe.thread, until, err);
	if (st < 0)
		return st;
	bh_cond_fini(&probe.changed);
	bh_mutex_fini(&probe.lock);
	probe.started = false;
	return 0;
}

uint64_t bh_gil_probe_waiting_since(void)
{
	return load(&probe.asked_ns);
}

void bh_gil_probe_read(struct bh_gil_probe_stats *ret_stats, struct bh_histogram_counts *counts)
{
	*ret_stats = (struct bh_gil_probe_stats){
		.n = load(&probe.n),
		.last_ns = load(&probe.last_ns),
		.total_ns = load(&probe.total_ns),
		.max_ns = load(&probe.max_ns),
		.max_at_ns = load(&probe.max_at_ns),
	};
	if (counts)
		bh_histogram_collect(&probe.answers, counts);
}
