/* SPDX-License-Identifier: BSD-3-Clause */
/* memory - buffers whose memory is the host's own: bulkhead.Buffer.allocate(), services->buffer_alloc.
 *
 * One block holds the record and the memory behind it, and goes back when the last reference does,
 * on whatever thread that is: it needs neither the GIL nor Python. Thread: any. Keeps: SUP-10 (a task
 * that was given up still holds a reference). */
#ifndef BH_HOST_CORE_MEMORY_H
#define BH_HOST_CORE_MEMORY_H

#include "host/core/value.h"

#define BH_MEMORY_ALIGNMENT_MAX (2u << 20) /* bytes: a huge page */

/* Bytes of `info`'s elements as C-contiguous memory. -EINVAL: more than BH_NDIM_MAX dimensions, a
 * negative one, or elements that are no whole number of bytes. -ENOMEM: more than can be addressed. */
bh_status bh_memory_length(const struct bh_buffer_info *info, uint64_t *ret_length) BH_MUST_CHECK;
/* Makes of a zeroed record one of C-contiguous memory at `data`, with one reference: bh_memory_length() has
 * given `length` for `from`, of which n_dims, shape, dtype and BH_BUFFER_WRITABLE are read. `free` is left
 * to the caller. */
void bh_memory_describe(struct bh_buffer *buffer, const struct bh_buffer_info *from,
			enum bh_buffer_kind kind, void *data, uint64_t length);
/* Zeroed, C-contiguous host memory with one reference, which the caller owns. Of `info` only n_dims,
 * shape, dtype and flags are read. `alignment`: of the first byte, a power of two from 1 to
 * BH_MEMORY_ALIGNMENT_MAX. -EINVAL as above, or for the alignment; -ENOMEM. */
bh_status bh_memory_new(const struct bh_buffer_info *info, uint64_t alignment,
			struct bh_buffer **ret_buffer) BH_MUST_CHECK;

#endif
