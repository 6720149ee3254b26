/* SPDX-License-Identifier: BSD-3-Clause */
/* memory - see memory.h. */
#include "config.h"

#include "host/core/memory.h"

#include <errno.h>
#include <stdlib.h>

bh_status bh_memory_length(const struct bh_buffer_info *info, uint64_t *ret_length)
{
	uint64_t length = info->dtype_bits / 8;
	bool empty = false;

	if (info->n_dims > BH_NDIM_MAX || info->dtype_bits == 0 || info->dtype_bits % 8 != 0)
		return -EINVAL;
	for (uint32_t i = 0; i < info->n_dims; i++) {
		if (info->shape[i] < 0)
			return -EINVAL;
		empty = empty || info->shape[i] == 0;
	}
	for (uint32_t i = 0; !empty && i < info->n_dims; i++)
		if (__builtin_mul_overflow(length, (uint64_t)info->shape[i], &length) ||
		    length > PTRDIFF_MAX)
			return -ENOMEM;
	*ret_length = empty ? 0 : length;
	return 0;
}

/* What crosses is what is described; nothing else of the caller's struct is kept. */
void bh_memory_describe(struct bh_buffer *buffer, const struct bh_buffer_info *from,
			enum bh_buffer_kind kind, void *data, uint64_t length)
{
	int64_t step = from->dtype_bits / 8;

	buffer->refs = 1;
	buffer->element = from->dtype_code;
	buffer->info = (struct bh_buffer_info){ .size = sizeof(buffer->info),
						.kind = kind,
						.flags = from->flags & BH_BUFFER_WRITABLE,
						.n_dims = from->n_dims,
						.data = data,
						.length = length,
						.dtype_code = from->dtype_code,
						.dtype_bits = from->dtype_bits };
	for (uint32_t i = from->n_dims; i-- > 0;) {
		buffer->info.shape[i] = from->shape[i];
		buffer->info.strides[i] = step;
		if (length > 0) /* else the product may be any */
			step *= from->shape[i];
	}
}

static void memory_free(struct bh_buffer *buffer)
{
	free(buffer); /* the record is the block's beginning */
}

bh_status bh_memory_new(const struct bh_buffer_info *info, uint64_t alignment,
			struct bh_buffer **ret_buffer)
{
	uint64_t length, whole;
	struct bh_buffer *buffer;
	uintptr_t data;
	bh_status st;

	if (alignment == 0 || alignment > BH_MEMORY_ALIGNMENT_MAX ||
	    (alignment & (alignment - 1)) != 0)
		return -EINVAL;
	st = bh_memory_length(info, &length);
	if (st < 0)
		return st;
	whole = sizeof(*buffer) + alignment + length; /* PTRDIFF_MAX at most, and little more */
	if (whole > PTRDIFF_MAX)
		return -ENOMEM;
	/* calloc, so that pages of a large one are made when they are touched. */
	buffer = calloc(1, whole);
	if (!buffer)
		return -ENOMEM;
	data = ((uintptr_t)(buffer + 1) + alignment - 1) & ~(uintptr_t)(alignment - 1);
	bh_memory_describe(buffer, info, BH_BUFFER_HOST, (void *)data, length);
	buffer->free = memory_free;
	*ret_buffer = buffer;
	return 0;
}
