/* SPDX-License-Identifier: BSD-3-Clause */
/* list - intrusive doubly linked list with a sentinel. A link that is in no list points to itself.
 */
#ifndef BH_HOST_CORE_LIST_H
#define BH_HOST_CORE_LIST_H

#include "host/core/common.h"

struct bh_list {
	struct bh_list *next, *prev;
};

static inline void bh_list_init(struct bh_list *list)
{
	list->next = list->prev = list;
}

static inline bool bh_list_empty(const struct bh_list *list)
{
	return list->next == list;
}

static inline void bh_list_push_back(struct bh_list *list, struct bh_list *link)
{
	link->next = list;
	link->prev = list->prev;
	list->prev->next = link;
	list->prev = link;
}

static inline void bh_list_remove(struct bh_list *link)
{
	link->prev->next = link->next;
	link->next->prev = link->prev;
	bh_list_init(link);
}

static inline struct bh_list *bh_list_pop_front(struct bh_list *list)
{
	struct bh_list *first = list->next;

	if (first == list)
		return NULL;
	bh_list_remove(first);
	return first;
}

#endif
