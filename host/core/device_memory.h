/* SPDX-License-Identifier: BSD-3-Clause */
/* device_memory - buffers over memory of a device that a plugin has allocated: services->buffer_wrap and
 * buffer_revoke.
 *
 * The record is the host's and goes with the last reference; the memory is the plugin's, which learns
 * of that by its slot (slot.h). Thread: any. GIL: held or not. Blocks: no. */
#ifndef BH_HOST_CORE_DEVICE_MEMORY_H
#define BH_HOST_CORE_DEVICE_MEMORY_H

#include "host/core/slot.h"
#include "host/core/value.h"

/* A buffer over `info->data`, C-contiguous, with `owner`'s slot set and one reference, which is the
 * caller's. Of `info` kind (BH_BUFFER_CUDA), flags (BH_BUFFER_WRITABLE), data, device, n_dims, shape and
 * dtype are read; dtype_code may be any of DLPack's. -EINVAL: not that. -ENOMEM. -ESHUTDOWN: the owner has
 * been closed. Then nothing has become of the memory. */
bh_status bh_device_memory_new(const struct bh_buffer_info *info, struct bh_slot_owner *owner,
			       void *value, bh_slot_fn release,
			       struct bh_buffer **ret_buffer) BH_MUST_CHECK;
/* Whether it is one of bh_device_memory_new(). */
bool bh_device_memory_is(const struct bh_buffer *buffer);
/* As services->buffer_revoke(). */
bh_status bh_device_memory_revoke(struct bh_slot_owner *owner, struct bh_buffer *buffer,
				  uint32_t held) BH_MUST_CHECK;

#endif
