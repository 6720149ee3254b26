/* SPDX-License-Identifier: BSD-3-Clause */
/* rdma - what the plugin's own files share: its state, and the ops.
 *
 * Thread: any of the pool's, as each function says. GIL: only `register` takes it, at the site
 *         `register`, to get at the memory of a Python object.
 * Owns:   transport, engine and book, from open() to close(). */
#ifndef BH_PLUGINS_RDMA_RDMA_H
#define BH_PLUGINS_RDMA_RDMA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include <bulkhead/plugin.h>

#include "plugins/rdma/book.h"
#include "plugins/rdma/engine.h"
#include "plugins/rdma/transport.h"

enum bh_rdma_site { BH_RDMA_SITE_REGISTER };

enum bh_rdma_thread { BH_RDMA_THREAD_ENGINE, BH_RDMA_THREAD_REAPER };
#define BH_RDMA_THREADS 2u

struct bh_rdma_closing; /* ops.c */

/* I: fixed after open(). M: under `lock`. A: atomic. P: under `publishing`. */
struct bh_rdma {
	struct bh_context *ctx;		     /* I */
	const struct bh_services *services;  /* I */
	struct bh_rdma_transport *transport; /* I */
	struct bh_rdma_engine *engine;	     /* I */
	struct bh_rdma_book *book;	     /* I */
	uint64_t instance;	  /* I: random: what tells a restarted host from the old one */
	char why[320];		  /* I: this transport and not the other one */
	_Atomic uint32_t threads; /* A: bit n: progress thread n has come; relaxed */

	pthread_mutex_t publishing;	 /* a leaf; short: numbers are copied */
	struct bh_rdma_counts published; /* P: what the metrics' counters have been told */

	pthread_mutex_t lock;		  /* a leaf */
	struct bh_rdma_closing *closings; /* M: close() tasks that are pending */
};

#define BH_RDMA_OPS 9u
extern const struct bh_op bh_rdma_ops[BH_RDMA_OPS];

/* Brings the metrics up to date. Thread: any of the pool's. */
void bh_rdma_publish(struct bh_rdma *rdma);

/* The descriptor's: ends what `task_id` is waiting for, soon. Thread: supervisor. */
void bh_rdma_cancel(void *state, uint64_t task_id);

#endif
