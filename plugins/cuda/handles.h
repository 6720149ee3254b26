/* SPDX-License-Identifier: BSD-3-Clause */
/* handles - streams, events and modules by the numbers that Python has of them.
 *
 * A number has a generation, so that one that was closed is refused for ever and never means another. What is
 * closed while an op uses it goes with the last of its uses, on the reaper, since the driver may block there.
 *
 * Thread: any of the pool's. One lock guards the table; it is not held while the driver is called. */
#ifndef BH_PLUGINS_CUDA_HANDLES_H
#define BH_PLUGINS_CUDA_HANDLES_H

#include "plugins/cuda/cuda.h"

enum bh_cuda_handle_kind { BH_CUDA_STREAM, BH_CUDA_EVENT, BH_CUDA_MODULE };
#define BH_CUDA_HANDLE_KINDS 3u

/* One thing and who uses it: the table while it is open, calls and pendings. */
struct bh_cuda_held;

bh_status bh_cuda_handles_new(struct bh_cuda *cuda, struct bh_cuda_handles **ret_handles);
/* After all threads and works. `release`: destroys what is left, by kind: BH_CUDA_MODULE, then events, then streams
 * (`only` one kind a call); else it is forgotten. Returns how many there were that nobody had closed. */
uint32_t bh_cuda_handles_drain(struct bh_cuda_handles *handles, enum bh_cuda_handle_kind only,
			       bool release);
void bh_cuda_handles_free(struct bh_cuda_handles *handles);

/* Takes over `object` (CUstream, CUevent, CUmodule); it is destroyed by its kind's function of the driver. `user`
 * is free()d with it; NULL is fine. -ENOMEM: nothing was taken over. */
bh_status bh_cuda_handle_add(struct bh_cuda_handles *handles, enum bh_cuda_handle_kind kind,
			     void *object, void *user, uint64_t *ret_handle);
/* The same, as the result of the call's task. When it fails, which the task is told, `object` has been destroyed and
 * `user` freed. */
bh_status bh_cuda_handle_give(struct bh_cuda_call *call, enum bh_cuda_handle_kind kind,
			      void *object, void *user);
/* Looks up a parameter `name:handle`; `call` holds what is found. -ENOENT (the task has been told): no such thing,
 * closed already, or of another kind. `ret_user` may be NULL. */
bh_status bh_cuda_handle_of(struct bh_cuda_call *call, enum bh_cuda_handle_kind kind,
			    const char *name, const struct bh_value *arg, void **ret_object,
			    void **ret_user);
/* The number means nothing from its return on. -ENOENT (told), as above. */
bh_status bh_cuda_handle_close(struct bh_cuda_call *call, enum bh_cuda_handle_kind kind,
			       const char *name, const struct bh_value *arg);

/* For calls and pendings. */
void bh_cuda_held_ref(struct bh_cuda_held *held);
void bh_cuda_held_unref(struct bh_cuda_held *held);

#endif
