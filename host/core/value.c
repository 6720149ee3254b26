/* SPDX-License-Identifier: BSD-3-Clause */
/* value - see value.h. */
#include "config.h"

#include "host/core/value.h"

#include <errno.h>
#include <string.h>

#include "host/core/slot.h"

/* Deeper lists are refused: copying recurses, and what a plugin hands in must not end our stack. */
#define DEPTH_MAX 64

struct bh_buffer *bh_buffer_ref(struct bh_buffer *buffer)
{
	/* For the count alone relaxed would do: who takes a reference has one already, or a lock that
	 * orders it. Sequentially consistent for those that look at `use` next (device_memory.c). */
	uint32_t before = atomic_fetch_add(&buffer->refs, 1);

	assert(before > 0); /* from 0 only bh_slot_release() leads back */
	(void)before;
	return buffer;
}

void bh_buffer_show(struct bh_buffer *buffer)
{
	uint32_t before = atomic_fetch_add(&buffer->refs, BH_REF_SHOWN + 1);

	assert(before > 0 && !(before & BH_REF_SHOWN));
	(void)before;
}

void bh_buffer_hide(struct bh_buffer *buffer)
{
	uint32_t before = atomic_fetch_sub(&buffer->refs, BH_REF_SHOWN);

	assert(before > BH_REF_SHOWN);
	(void)before;
}

bool bh_buffer_share(struct bh_buffer *buffer)
{
	return !(atomic_fetch_or(&buffer->use, BH_USE_SHARED) & BH_USE_REVOKED);
}

/* `what`: 1, or BH_REF_SHOWN + 1. */
static void drop(struct bh_buffer *buffer, uint32_t what)
{
	/* Release for what was done with the memory, acquire by the last for what all others did.
	 * Again: what release() has left may be the last reference in turn, perhaps with a slot that
	 * was set meanwhile. */
	do {
		if (atomic_fetch_sub_explicit(&buffer->refs, what, memory_order_acq_rel) != what)
			return;
		what = 1;
	} while (bh_slot_release(buffer));
	bh_slot_free(buffer);
	buffer->free(buffer);
}

void bh_buffer_unref(struct bh_buffer *buffer)
{
	if (buffer)
		drop(buffer, 1);
}

void bh_buffer_unref_shown(struct bh_buffer *buffer)
{
	drop(buffer, BH_REF_SHOWN + 1);
}

bool bh_buffer_is_contiguous(const struct bh_buffer *buffer)
{
	const struct bh_buffer_info *info = &buffer->info;
	int64_t n = 1, expected;

	if (info->length == 0) /* the product may be any */
		return true;
	for (uint32_t i = 0; i < info->n_dims; i++)
		n *= info->shape[i];
	if (n < 1)
		return true;
	expected = (int64_t)info->length / n; /* of one element: dtype_bits does not tell of all */
	for (uint32_t i = info->n_dims; i-- > 0;) {
		if (info->shape[i] != 1 && info->strides[i] != expected)
			return false;
		expected *= info->shape[i];
	}
	return true;
}

struct bh_object *bh_object_ref(struct bh_object *object)
{
	atomic_fetch_add_explicit(&object->refs, 1, memory_order_relaxed);
	return object;
}

void bh_object_unref(struct bh_object *object)
{
	if (!object || atomic_fetch_sub_explicit(&object->refs, 1, memory_order_acq_rel) != 1)
		return;
	object->free(object);
}

const char *bh_type_name(uint32_t type)
{
	static const char *const names[] = {
		[BH_TYPE_NONE] = "none",     [BH_TYPE_BOOL] = "bool", [BH_TYPE_INT] = "int",
		[BH_TYPE_FLOAT] = "float",   [BH_TYPE_STR] = "str",   [BH_TYPE_BYTES] = "bytes",
		[BH_TYPE_BUFFER] = "buffer", [BH_TYPE_LIST] = "list", [BH_TYPE_HANDLE] = "handle",
		[BH_TYPE_OBJECT] = "object",
	};

	return type < BH_ARRAY_LEN(names) ? names[type] : NULL;
}

static bh_status copy_text(const struct bh_value *from, struct bh_value *ret)
{
	uint64_t length = from->as.text.length;
	char *data;

	if (length >= PTRDIFF_MAX)
		return -ENOMEM;
	data = malloc((size_t)length + 1);
	if (!data)
		return -ENOMEM;
	if (length)
		memcpy(data, from->as.text.data, (size_t)length);
	data[length] = '\0';
	*ret = (struct bh_value){ .type = from->type, .as.text = { data, length } };
	return 0;
}

static bh_status copy_deep(const struct bh_value *from, struct bh_value *ret, unsigned depth);

static bh_status copy_list(const struct bh_value *from, struct bh_value *ret, unsigned depth)
{
	uint64_t count = from->as.list.count;
	struct bh_value list = { .type = BH_TYPE_LIST };
	struct bh_value *items;

	if (depth == DEPTH_MAX)
		return -EINVAL;
	if (count == 0) {
		*ret = list;
		return 0;
	}
	if (count > PTRDIFF_MAX / sizeof(*items))
		return -ENOMEM;
	items = calloc(count, sizeof(*items));
	if (!items)
		return -ENOMEM;
	list.as.list = (struct bh_items){ items, count };
	for (uint64_t i = 0; i < count; i++) {
		bh_status st = copy_deep(&from->as.list.items[i], &items[i], depth + 1);

		if (st < 0) {
			bh_value_clear(&list);
			return st;
		}
	}
	*ret = list;
	return 0;
}

/* `*ret` is BH_TYPE_NONE on entry and stays so on failure. */
static bh_status copy_deep(const struct bh_value *from, struct bh_value *ret, unsigned depth)
{
	switch ((int)from->type) { /* the number comes from a plugin: any may arrive */
	case BH_TYPE_NONE:
		return 0;
	case BH_TYPE_BOOL:
	case BH_TYPE_INT:
	case BH_TYPE_FLOAT:
	case BH_TYPE_HANDLE:
		*ret = *from;
		ret->reserved = 0;
		return 0;
	case BH_TYPE_STR:
	case BH_TYPE_BYTES:
		return copy_text(from, ret);
	case BH_TYPE_LIST:
		return copy_list(from, ret, depth);
	case BH_TYPE_BUFFER:
		if (!from->as.buffer)
			return -EINVAL;
		*ret = (struct bh_value){ .type = BH_TYPE_BUFFER,
					  .as.buffer = bh_buffer_ref(from->as.buffer) };
		return 0;
	case BH_TYPE_OBJECT:
		if (!from->as.object)
			return -EINVAL;
		*ret = (struct bh_value){ .type = BH_TYPE_OBJECT,
					  .as.object = bh_object_ref(from->as.object) };
		return 0;
	default:
		return -EINVAL;
	}
}

bh_status bh_value_copy(const struct bh_value *from, struct bh_value *ret)
{
	*ret = (struct bh_value){ .type = BH_TYPE_NONE };
	return copy_deep(from, ret, 0);
}

/* Drops the references that a borrowed value carries; its text and lists are not ours to free. */
static void drop_references(const struct bh_value *value)
{
	if (value->type == BH_TYPE_BUFFER)
		bh_buffer_unref(value->as.buffer);
	else if (value->type == BH_TYPE_OBJECT)
		bh_object_unref(value->as.object);
	else if (value->type == BH_TYPE_LIST)
		for (uint64_t i = 0; i < value->as.list.count; i++)
			drop_references(&value->as.list.items[i]);
}

bh_status bh_value_take(const struct bh_value *from, struct bh_value *ret)
{
	/* Copy, then drop: a failure in the middle then needs no book of what has passed over
	 * yet. */
	bh_status st = bh_value_copy(from, ret);

	drop_references(from);
	return st;
}

void bh_value_clear(struct bh_value *value)
{
	struct bh_value old = bh_value_steal(value);

	switch ((int)old.type) {
	case BH_TYPE_STR:
	case BH_TYPE_BYTES:
		free((char *)old.as.text.data);
		break;
	case BH_TYPE_LIST:
		for (uint64_t i = 0; i < old.as.list.count; i++)
			bh_value_clear((struct bh_value *)&old.as.list.items[i]);
		free((struct bh_value *)old.as.list.items);
		break;
	case BH_TYPE_BUFFER:
		bh_buffer_unref(old.as.buffer);
		break;
	case BH_TYPE_OBJECT:
		bh_object_unref(old.as.object);
		break;
	default:
		break;
	}
}

struct bh_args *bh_args_new(uint32_t n)
{
	struct bh_args *args = calloc(1, sizeof(*args) + n * sizeof(args->v[0]));

	if (args)
		args->n = n;
	return args;
}

struct bh_args *bh_args_free(struct bh_args *args)
{
	for (uint32_t i = 0; args && i < args->n; i++)
		bh_value_clear(&args->v[i]);
	free(args);
	return NULL;
}
