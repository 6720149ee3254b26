/* SPDX-License-Identifier: BSD-3-Clause */
/* handles - the table of numbers, and what each stands for.
 *
 * A handle is generation << 32 | index, never 0. What it stands for is counted: once for the table, and once
 * for each op and each work that uses it.
 *
 * Thread: see the header.
 * Fails:  cuda.handle: what was given, and what it is or was. */
#include "config.h"

#include "plugins/cuda/handles.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "plugins/cuda/reaper.h"

#define NO_PLACE UINT32_MAX

struct bh_cuda_held {
	struct bh_cuda_reap reap;      /* first */
	struct bh_cuda *cuda;	       /* I */
	enum bh_cuda_handle_kind kind; /* I */
	void *object, *user;	       /* I */
	_Atomic uint32_t n_refs;       /* A: the last one acquires what all others released */
};

struct place {
	struct bh_cuda_held *held; /* NULL: free */
	uint32_t generation;
	uint32_t next_free;
};

struct bh_cuda_handles {
	struct bh_cuda *cuda; /* I */
	pthread_mutex_t lock; /* a leaf */
	struct place *places; /* M */
	uint32_t size, first_free;
};

static const char *const kind_names[] = {
	[BH_CUDA_STREAM] = "stream",
	[BH_CUDA_EVENT] = "event",
	[BH_CUDA_MODULE] = "module",
};
static_assert(sizeof(kind_names) / sizeof(kind_names[0]) == BH_CUDA_HANDLE_KINDS, "a name a kind");

/* ---- what a handle stands for -------------------------------------------------------------------- */

/* Of a context that has died nothing is released one by one: it goes with the context. */
static void destroy_object(struct bh_cuda *cuda, enum bh_cuda_handle_kind kind, void *object)
{
	const struct bh_cuda_driver *driver = cuda->device.driver;
	CUresult result = CUDA_SUCCESS;
	const char *what = "";

	if (atomic_load_explicit(&cuda->dead, memory_order_relaxed) == CUDA_SUCCESS) {
		switch (kind) {
		case BH_CUDA_STREAM:
			result = driver->cuStreamDestroy_(object);
			what = "cuStreamDestroy";
			break;
		case BH_CUDA_EVENT:
			result = driver->cuEventDestroy_(object);
			what = "cuEventDestroy";
			break;
		case BH_CUDA_MODULE:
			result = driver->cuModuleUnload_(object);
			what = "cuModuleUnload";
			break;
		}
	}
	bh_cuda_note_result(cuda, result, what);
}

static void destroy(struct bh_cuda_held *held)
{
	destroy_object(held->cuda, held->kind, held->object);
	free(held->user);
	free(held);
}

static void reap(struct bh_cuda_reap *reap)
{
	destroy((struct bh_cuda_held *)reap);
}

void bh_cuda_held_ref(struct bh_cuda_held *held)
{
	atomic_fetch_add_explicit(&held->n_refs, 1, memory_order_relaxed);
}

void bh_cuda_held_unref(struct bh_cuda_held *held)
{
	if (atomic_fetch_sub_explicit(&held->n_refs, 1, memory_order_acq_rel) == 1)
		bh_cuda_reaper_push(held->cuda->reaper, &held->reap);
}

/* ---- the table ------------------------------------------------------------------------------------ */

static bool reserve_locked(struct bh_cuda_handles *handles)
{
	uint32_t size = handles->size ? 2 * handles->size : 16;
	struct place *grown;

	if (handles->first_free != NO_PLACE)
		return true;
	grown = reallocarray(handles->places, size, sizeof(*grown));
	if (!grown)
		return false;
	handles->places = grown;
	for (uint32_t i = size; i-- > handles->size;) {
		handles->places[i] = (struct place){ .next_free = handles->first_free };
		handles->first_free = i;
	}
	handles->size = size;
	return true;
}

static struct place *place_of_locked(const struct bh_cuda_handles *handles, uint64_t handle)
{
	uint32_t index = (uint32_t)handle;

	if (index >= handles->size || !handles->places[index].held ||
	    handles->places[index].generation != handle >> 32)
		return NULL;
	return &handles->places[index];
}

/* Whether there has ever been such a number. */
static bool was_known_locked(const struct bh_cuda_handles *handles, uint64_t handle)
{
	uint32_t index = (uint32_t)handle;

	return index < handles->size && handle >> 32 != 0 &&
	       handle >> 32 <= handles->places[index].generation;
}

bh_status bh_cuda_handle_add(struct bh_cuda_handles *handles, enum bh_cuda_handle_kind kind,
			     void *object, void *user, uint64_t *ret_handle)
{
	struct bh_cuda_held *held = calloc(1, sizeof(*held));
	struct place *place;
	bool room;

	if (!held)
		return -ENOMEM;
	held->reap.reap = reap;
	held->cuda = handles->cuda;
	held->kind = kind;
	held->object = object;
	held->user = user;
	atomic_init(&held->n_refs, 1);
	pthread_mutex_lock(&handles->lock);
	room = reserve_locked(handles);
	if (room) {
		uint32_t index = handles->first_free;

		place = &handles->places[index];
		handles->first_free = place->next_free;
		place->held = held;
		if (++place->generation == 0)
			place->generation = 1;
		*ret_handle = (uint64_t)place->generation << 32 | index;
	}
	pthread_mutex_unlock(&handles->lock);
	if (!room)
		free(held);
	return room ? 0 : -ENOMEM;
}

/* ---- for ops --------------------------------------------------------------------------------------- */

static bh_status refuse(const struct bh_cuda_call *call, enum bh_cuda_handle_kind kind,
			const char *name, uint64_t handle, const char *given)
{
	char number[96], accepted[64];
	const struct bh_fact facts[] = {
		bh_fact_str("parameter", name),
		bh_fact_str("given", number),
		bh_fact_str("accepted", accepted),
	};

	snprintf(number, sizeof(number), "%" PRIu64 ": %s", handle, given);
	snprintf(accepted, sizeof(accepted), "what this pool's %s gave, before it is closed",
		 kind == BH_CUDA_EVENT	  ? "record()"
		 : kind == BH_CUDA_STREAM ? "stream()"
					  : "module()");
	return call->cuda->services->task_fail(call->task, -ENOENT, "cuda.handle", facts, 3);
}

static bh_status look_up(struct bh_cuda_call *call, enum bh_cuda_handle_kind kind, const char *name,
			 uint64_t handle, bool close, struct bh_cuda_held **ret_held)
{
	struct bh_cuda_handles *handles = call->cuda->handles;
	struct bh_cuda_held *held = NULL;
	struct place *place;
	const char *given = "a number that this pool has not given";
	char other[32];

	pthread_mutex_lock(&handles->lock);
	place = place_of_locked(handles, handle);
	if (place && place->held->kind == kind) {
		held = place->held;
		if (close) {
			place->held = NULL;
			place->next_free = handles->first_free;
			handles->first_free = (uint32_t)handle;
		} else {
			bh_cuda_held_ref(held);
		}
	} else if (place) {
		snprintf(other, sizeof(other), "a %s", kind_names[place->held->kind]);
		given = other;
	} else if (was_known_locked(handles, handle)) {
		given = "it has been closed";
	}
	pthread_mutex_unlock(&handles->lock);
	if (!held)
		return refuse(call, kind, name, handle, given);
	*ret_held = held;
	return 0;
}

bh_status bh_cuda_handle_of(struct bh_cuda_call *call, enum bh_cuda_handle_kind kind,
			    const char *name, const struct bh_value *arg, void **ret_object,
			    void **ret_user)
{
	struct bh_cuda_held *held;
	bh_status st;

	st = look_up(call, kind, name, arg->as.handle, false, &held);
	if (st < 0)
		return st;
	assert(call->n_held < BH_CUDA_HELD_MAX);
	call->held[call->n_held++] = held;
	*ret_object = held->object;
	if (ret_user)
		*ret_user = held->user;
	return 0;
}

bh_status bh_cuda_handle_close(struct bh_cuda_call *call, enum bh_cuda_handle_kind kind,
			       const char *name, const struct bh_value *arg)
{
	struct bh_cuda_held *held;
	bh_status st;

	st = look_up(call, kind, name, arg->as.handle, true, &held);
	if (st < 0)
		return st;
	bh_cuda_held_unref(held);
	return 0;
}

bh_status bh_cuda_handle_give(struct bh_cuda_call *call, enum bh_cuda_handle_kind kind,
			      void *object, void *user)
{
	struct bh_value value = { .type = BH_TYPE_HANDLE };
	struct bh_cuda_held *held;
	struct bh_cuda_fault fault;
	bh_status st;

	st = bh_cuda_handle_add(call->cuda->handles, kind, object, user, &value.as.handle);
	if (st < 0) {
		destroy_object(call->cuda, kind, object);
		free(user);
		(void)bh_cuda_fault(&fault, st, "cuda.host_memory",
				    "the host has no memory for a handle; end other programs");
		return bh_cuda_fail_by(call, &fault);
	}
	st = call->cuda->services->result(call->task, &value);
	/* Nobody will know its number. */
	if (st < 0 && look_up(call, kind, "", value.as.handle, true, &held) == 0)
		bh_cuda_held_unref(held);
	return st;
}

/* ---- the whole ------------------------------------------------------------------------------------ */

bh_status bh_cuda_handles_new(struct bh_cuda *cuda, struct bh_cuda_handles **ret_handles)
{
	struct bh_cuda_handles *handles = calloc(1, sizeof(*handles));

	if (!handles)
		return -ENOMEM;
	handles->cuda = cuda;
	handles->first_free = NO_PLACE;
	pthread_mutex_init(&handles->lock, NULL);
	*ret_handles = handles;
	return 0;
}

uint32_t bh_cuda_handles_drain(struct bh_cuda_handles *handles, enum bh_cuda_handle_kind only,
			       bool release)
{
	uint32_t n = 0;

	if (!handles)
		return 0;
	for (uint32_t i = 0; i < handles->size; i++) {
		struct bh_cuda_held *held = handles->places[i].held;

		if (!held || held->kind != only)
			continue;
		n++;
		if (!release) /* what never ended may be using it */
			continue;
		handles->places[i].held = NULL;
		destroy(held);
	}
	return n;
}

void bh_cuda_handles_free(struct bh_cuda_handles *handles)
{
	if (!handles)
		return;
	pthread_mutex_destroy(&handles->lock);
	free(handles->places);
	free(handles);
}
