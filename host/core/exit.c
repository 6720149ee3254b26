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
	bool taken; /* M: somebody stops it */
};

struct bh_exit_registry {
	struct bh_mutex lock;	/* guards the M fields; a leaf: no other lock is taken under it */
	struct bh_list entries; /* M: struct entry, in load order */
	size_t n;		/* M: entries that nobody has taken */
	bool closed;		/* M */
	struct bh_list steps[BH_EXIT_PHASES]; /* M: struct bh_exit_step */
};

bh_status bh_exit_registry_new(struct bh_exit_registry **ret_registry, struct bh_error *err)
{
	struct bh_exit_registry *registry = calloc(1, sizeof(*registry));

	if (!registry)
		return bh_raise(err, -ENOMEM, "exit.alloc");
	bh_mutex_init(&registry->lock);
	bh_list_init(&registry->entries);
	for (unsigned i = 0; i < BH_EXIT_PHASES; i++)
		bh_list_init(&registry->steps[i]);
	*ret_registry = registry;
	return 0;
}

struct bh_exit_registry *bh_exit_registry_free(struct bh_exit_registry *registry)
{
	if (!registry)
		return NULL;
	assert(registry->n == 0); /* a pool would be forgotten (RI-7) */
	while (!bh_list_empty(&registry->entries)) {
		struct entry *entry = bh_container_of(registry->entries.next, struct entry, link);

		bh_list_remove(&entry->link);
		free(entry);
	}
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
	bool taken, closed;

	if (!entry)
		return bh_raise(err, -ENOMEM, "exit.alloc", BH_STR("pool", bh_pool_label(pool)));
	entry->pool = pool;
	entry->taken = false;
	bh_mutex_lock(&registry->lock);
	closed = registry->closed;
	taken = find_locked(registry, bh_pool_label(pool)) != NULL;
	if (!taken && !closed) {
		bh_list_push_back(&registry->entries, &entry->link);
		registry->n++;
	}
	bh_mutex_unlock(&registry->lock);
	if (closed) {
		free(entry);
		return bh_raise(err, -ESHUTDOWN, "exit.closed", BH_STR("pool", bh_pool_label(pool)),
				BH_STR("reason", "the process is ending"));
	}
	if (taken) { /* RI-5: labels are unique */
		free(entry);
		return bh_raise(err, -EEXIST, "exit.label-taken",
				BH_STR("pool", bh_pool_label(pool)));
	}
	return 0;
}

struct bh_pool *bh_exit_registry_take_last(struct bh_exit_registry *registry)
{
	struct bh_pool *pool = NULL;

	bh_mutex_lock(&registry->lock);
	for (struct bh_list *link = registry->entries.prev; link != &registry->entries && !pool;
	     link = link->prev) {
		struct entry *entry = bh_container_of(link, struct entry, link);

		if (entry->taken)
			continue;
		entry->taken = true;
		registry->n--;
		pool = entry->pool;
	}
	bh_mutex_unlock(&registry->lock);
	return pool;
}

struct bh_pool *bh_exit_registry_last(struct bh_exit_registry *registry)
{
	struct bh_pool *pool = NULL;

	bh_mutex_lock(&registry->lock);
	if (!bh_list_empty(&registry->entries))
		pool = bh_container_of(registry->entries.prev, struct entry, link)->pool;
	bh_mutex_unlock(&registry->lock);
	return pool;
}

void bh_exit_registry_remove(struct bh_exit_registry *registry, struct bh_pool *pool)
{
	struct entry *entry;

	bh_mutex_lock(&registry->lock);
	entry = find_locked(registry, bh_pool_label(pool));
	if (entry && entry->pool == pool) {
		bh_list_remove(&entry->link);
		registry->n -= !entry->taken;
	} else {
		entry = NULL; /* removed already, or another pool of that label */
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

void bh_exit_registry_close(struct bh_exit_registry *registry)
{
	bh_mutex_lock(&registry->lock);
	registry->closed = true;
	bh_mutex_unlock(&registry->lock);
}

void bh_exit_registry_add_step(struct bh_exit_registry *registry, enum bh_exit_phase phase,
			       struct bh_exit_step *step)
{
	assert(phase != BH_EXIT_POOLS);
	bh_mutex_lock(&registry->lock);
	bh_list_push_back(&registry->steps[phase], &step->link);
	bh_mutex_unlock(&registry->lock);
}

static struct bh_exit_step *take_step(struct bh_exit_registry *registry, enum bh_exit_phase phase)
{
	struct bh_list *steps = &registry->steps[phase];
	struct bh_exit_step *step = NULL;

	bh_mutex_lock(&registry->lock);
	if (!bh_list_empty(steps)) {
		step = bh_container_of(steps->prev, struct bh_exit_step, link);
		bh_list_remove(&step->link);
	}
	bh_mutex_unlock(&registry->lock);
	return step;
}

void bh_exit_registry_run(struct bh_exit_registry *registry, enum bh_exit_phase phase,
			  struct bh_deadline until)
{
	struct bh_exit_step *step;

	while ((step = take_step(registry, phase)))
		step->run(step->arg, until);
}
