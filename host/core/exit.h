/* SPDX-License-Identifier: BSD-3-Clause */
/* exit - what the end of the process walks: ordered phases, and in the middle one every pool (RI-7,
 * EXIT-1).
 *
 * The orderly stop takes pools one after the other, and each leaves the registry once its
 * supervisor has been joined. The process-exit hook (exit_hook.h) closes the registry, runs the
 * steps of the phases, and finds every pool that nobody has joined yet, whoever took it.
 *
 * Thread: any. Owns: its entries, not the pools. Entries are in load order and are walked in
 * reverse; the lock is never held while a pool is asked or waited for, or a step runs. */
#ifndef BH_HOST_CORE_EXIT_H
#define BH_HOST_CORE_EXIT_H

#include <jansson.h>

#include "host/core/pool.h"

struct bh_exit_registry;

enum bh_exit_phase {
	BH_EXIT_APPS,	   /* no new work from outside */
	BH_EXIT_POOLS,	   /* in reverse load order */
	BH_EXIT_LIBRARIES, /* nothing of a plugin runs; its libraries' handlers come next */
};
#define BH_EXIT_PHASES 3

/* One thing to do in a phase when the process ends by exit(); storage is the caller's, for good. */
struct bh_exit_step {
	struct bh_list link;
	/* Thread: whichever called exit(); no lock held. Returns by `until`. */
	void (*run)(void *arg, struct bh_deadline until);
	void *arg;
};

bh_status bh_exit_registry_new(struct bh_exit_registry **ret_registry,
			       struct bh_error *err) BH_MUST_CHECK;
/* Pools that were taken and never joined are forgotten; one that nobody took is a bug. */
struct bh_exit_registry *bh_exit_registry_free(struct bh_exit_registry *registry);
/* -EEXIST: the label is taken (RI-5). -ESHUTDOWN: the process is ending. */
bh_status bh_exit_registry_add(struct bh_exit_registry *registry, struct bh_pool *pool,
			       struct bh_error *err) BH_MUST_CHECK;
/* The last one added that nobody has taken, or NULL: a second drain finds nothing. It stays in
 * until it is removed. */
struct bh_pool *bh_exit_registry_take_last(struct bh_exit_registry *registry);
/* The last one that has not been removed, taken or not; NULL when every pool has been joined. */
struct bh_pool *bh_exit_registry_last(struct bh_exit_registry *registry);
/* Its supervisor has been joined. Again, or a pool that is not in: nothing happens. */
void bh_exit_registry_remove(struct bh_exit_registry *registry, struct bh_pool *pool);
size_t bh_exit_registry_count(struct bh_exit_registry *registry); /* that nobody has taken */

/* Nothing is added any more. */
void bh_exit_registry_close(struct bh_exit_registry *registry);
/* APPS or LIBRARIES: the pools are a phase of their own. */
void bh_exit_registry_add_step(struct bh_exit_registry *registry, enum bh_exit_phase phase,
			       struct bh_exit_step *step);
/* Runs the steps of a phase, the last one added first, each once. */
void bh_exit_registry_run(struct bh_exit_registry *registry, enum bh_exit_phase phase,
			  struct bh_deadline until);

#endif
