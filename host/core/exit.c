/* SPDX-License-Identifier: BSD-3-Clause */
/* exit - see exit.h. */
#include "config.h"

#include "host/core/exit.h"

#include <errno.h>
#include <string.h>

#include "host/core/sync.h"

struct entry {
	struct bh_list link;
	struct bh_pool *pool;
};

struct bh_exit_registry {
	struct bh_mutex lock;	/* guards the M fields; a leaf: no other lock is taken under it */
	struct bh_list entries; /* M: struct entry, in load order */
	size_t n;		/* M */
};

bh_status bh_exit_registry_new(struct bh_exit_registry **ret_registry, struct bh_error *err)
{
	struct bh_exit_registry *registry = calloc(1, sizeof(*registry));

	if (!registry)
		return bh_raise(err, -ENOMEM, "exit.alloc");
	bh_mutex_init(&registry->lock);
	bh_list_init(&registry->entries);
	*ret_registry = registry;
	return 0;
}

struct bh_exit_registry *bh_exit_registry_free(struct bh_exit_registry *registry)
{
	if (!registry)
		return NULL;
	assert(bh_list_empty(&registry->entries)); /* a pool would be forgotten (RI-7) */
	bh_mutex_fini(&registry->lock);
	free(registry);
	return NULL;
}

static struct entry *find_locked(struct bh_exit_registry *registry, const char *label)
	BH_NEEDS(registry->lock);
static struct entry *find_locked(struct bh_exit_registry *registry, const char *label)
{
	for (struct bh_list *link = registry->entries.next; link != &registry->entries;
	     link = link->next) {
		struct entry *entry = bh_container_of(link, struct entry, link);

		if (strcmp(bh_pool_label(entry->pool), label) == 0)
			return entry;
	}
	return NULL;
}

bh_status bh_exit_registry_add(struct bh_exit_registry *registry, struct bh_pool *pool,
			       struct bh_error *err)
{
	struct entry *entry = malloc(sizeof(*entry));
	bool taken;

	if (!entry)
		return bh_raise(err, -ENOMEM, "exit.alloc", BH_STR("pool", bh_pool_label(pool)));
	entry->pool = pool;
	bh_mutex_lock(&registry->lock);
	taken = find_locked(registry, bh_pool_label(pool)) != NULL;
	if (!taken) {
		bh_list_push_back(&registry->entries, &entry->link);
		registry->n++;
	}
	bh_mutex_unlock(&registry->lock);
	if (taken) { /* RI-5: labels are unique */
		free(entry);
		return bh_raise(err, -EEXIST, "exit.label-taken",
				BH_STR("pool", bh_pool_label(pool)));
	}
	return 0;
}

struct bh_pool *bh_exit_registry_take_last(struct bh_exit_registry *registry)
{
	struct entry *entry = NULL;
	struct bh_pool *pool = NULL;

	bh_mutex_lock(&registry->lock);
	if (!bh_list_empty(&registry->entries)) {
		entry = bh_container_of(registry->entries.prev, struct entry, link);
		bh_list_remove(&entry->link);
		registry->n--;
		pool = entry->pool;
	}
	bh_mutex_unlock(&registry->lock);
	free(entry);
	return pool;
}

void bh_exit_registry_remove(struct bh_exit_registry *registry, struct bh_pool *pool)
{
	struct entry *entry;

	bh_mutex_lock(&registry->lock);
	entry = find_locked(registry, bh_pool_label(pool));
	if (entry && entry->pool == pool) {
		bh_list_remove(&entry->link);
		registry->n--;
	} else {
		entry = NULL; /* taken already, or another pool of that label */
	}
	bh_mutex_unlock(&registry->lock);
	free(entry);
}

size_t bh_exit_registry_count(struct bh_exit_registry *registry)
{
	size_t n;

	bh_mutex_lock(&registry->lock);
	n = registry->n;
	bh_mutex_unlock(&registry->lock);
	return n;
}
