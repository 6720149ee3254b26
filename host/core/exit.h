/* SPDX-License-Identifier: BSD-3-Clause */
/* exit - the registry of pools that the orderly stop walks (RI-7, EXIT-1).
 *
 * Thread: any. Owns: its entries, not the pools. Entries are in load order and are walked in
 * reverse; the lock is never held while a pool is asked or waited for. */
#ifndef BH_HOST_CORE_EXIT_H
#define BH_HOST_CORE_EXIT_H

#include <jansson.h>

#include "host/core/pool.h"

struct bh_exit_registry;

bh_status bh_exit_registry_new(struct bh_exit_registry **ret_registry,
			       struct bh_error *err) BH_MUST_CHECK;
struct bh_exit_registry *bh_exit_registry_free(struct bh_exit_registry *registry);
/* -EEXIST: the label is taken (RI-5). */
bh_status bh_exit_registry_add(struct bh_exit_registry *registry, struct bh_pool *pool,
			       struct bh_error *err) BH_MUST_CHECK;
/* The last one added, which leaves the registry, or NULL: a second drain finds nothing. */
struct bh_pool *bh_exit_registry_take_last(struct bh_exit_registry *registry);
void bh_exit_registry_remove(struct bh_exit_registry *registry, struct bh_pool *pool);
size_t bh_exit_registry_count(struct bh_exit_registry *registry);

#endif
