/* SPDX-License-Identifier: BSD-3-Clause */
/* t_types - says how arguments arrived: presets, untyped lists, buffers. Takes the GIL nowhere. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KINDS_MAX 64u

struct types {
	const struct bh_services *host;
};

static struct bh_value of_int(int64_t number)
{
	struct bh_value value = { .type = BH_TYPE_INT };

	value.as.integer = number;
	return value;
}

static bh_status give_list(const struct types *t, struct bh_task *task,
			   const struct bh_value *items, uint64_t n)
{
	struct bh_value list = { .type = BH_TYPE_LIST };

	list.as.list.items = items;
	list.as.list.count = n;
	return t->host->result(task, &list);
}

/* The values, or for what is none or has none to show, the type's number. */
static bh_status run_presets(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct bh_value items[] = {
		args[0], args[1], args[2], args[3], of_int(args[4].type), of_int(args[5].type)
	};

	return give_list(state, task, items, sizeof(items) / sizeof(items[0]));
}

static bh_status run_label(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct types *t = state;

	return t->host->result(task, &args[0]);
}

/* The type of each element. */
static bh_status run_kinds(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct types *t = state;
	const struct bh_items *list = &args[0].as.list;
	struct bh_value kinds[KINDS_MAX];

	if (list->count > KINDS_MAX)
		return t->host->task_fail(task, -E2BIG, "t_types.kinds", NULL, 0);
	for (uint64_t i = 0; i < list->count; i++)
		kinds[i] = of_int(list->items[i].type);
	return give_list(t, task, kinds, list->count);
}

/* [dtype code, bits, writable, bytes, elements of each dimension …] */
static bh_status run_info(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct types *t = state;
	struct bh_buffer_info info = { .size = sizeof(info) };
	struct bh_value items[4 + BH_NDIM_MAX];
	bh_status st = t->host->buffer_info(args[0].as.buffer, &info);

	if (st < 0)
		return st;
	items[0] = of_int(info.dtype_code);
	items[1] = of_int(info.dtype_bits);
	items[2] = of_int(info.flags & BH_BUFFER_WRITABLE ? 1 : 0);
	items[3] = of_int((int64_t)info.length);
	for (uint32_t i = 0; i < info.n_dims; i++)
		items[4 + i] = of_int(info.shape[i]);
	return give_list(t, task, items, 4 + info.n_dims);
}

/* The stride of each dimension. */
static bh_status run_strides(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct types *t = state;
	struct bh_buffer_info info = { .size = sizeof(info) };
	struct bh_value items[BH_NDIM_MAX];
	bh_status st = t->host->buffer_info(args[0].as.buffer, &info);

	if (st < 0)
		return st;
	for (uint32_t i = 0; i < info.n_dims; i++)
		items[i] = of_int(info.strides[i]);
	return give_list(t, task, items, info.n_dims);
}

/* Every element's first byte, through the strides of one dimension. */
static bh_status run_mark(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct types *t = state;
	struct bh_buffer_info info = { .size = sizeof(info) };
	bh_status st = t->host->buffer_info(args[0].as.buffer, &info);

	if (st < 0)
		return st;
	if (info.n_dims != 1)
		return t->host->task_fail(task, -EINVAL, "t_types.mark", NULL, 0);
	for (int64_t i = 0; i < info.shape[0]; i++)
		((uint8_t *)info.data)[i * info.strides[0]] = (uint8_t)args[1].as.integer;
	return 0;
}

static bh_status run_fill(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct types *t = state;
	struct bh_buffer_info info = { .size = sizeof(info) };
	bh_status st = t->host->buffer_info(args[0].as.buffer, &info);

	(void)task;
	if (st < 0)
		return st;
	if (info.length)
		memset(info.data, (int)args[1].as.integer, (size_t)info.length);
	return 0;
}

static bh_status types_open(struct bh_context *ctx, const struct bh_services *host,
			    void **ret_state)
{
	struct types *t = calloc(1, sizeof(*t));

	if (!t)
		return host->fail(ctx, -ENOMEM, "t_types.alloc", NULL, 0);
	t->host = host;
	*ret_state = t;
	return 0;
}

static bh_status types_close(void *state)
{
	free(state);
	return 0;
}

static const struct bh_op ops[] = {
	{ .name = "presets",
	  .args = "a:int=3 b:str=word c:float=1.5 d:bool=true e:str=none f:buffer=none",
	  .ret = "list",
	  .run = run_presets,
	  .doc = "What it was given, or not." },
	{ .name = "label",
	  .args = "self:int",
	  .ret = "int",
	  .run = run_label,
	  .doc = "What it was given; named like an attribute of bulkhead.Pool." },
	{ .name = "kinds",
	  .args = "values:list",
	  .ret = "list",
	  .run = run_kinds,
	  .doc = "The types of the elements." },
	{ .name = "info",
	  .args = "buffer:buffer",
	  .ret = "list",
	  .run = run_info,
	  .doc = "How a buffer arrived." },
	{ .name = "strides",
	  .args = "buffer:buffer~",
	  .ret = "list",
	  .run = run_strides,
	  .doc = "How a strided buffer arrived." },
	{ .name = "mark",
	  .args = "target:buffer!~ byte:int",
	  .run = run_mark,
	  .doc = "Writes to each element of a strided buffer." },
	{ .name = "fill",
	  .args = "target:buffer! byte:int",
	  .run = run_fill,
	  .doc = "Writes to the buffer." },
};

BH_PLUGIN("t_types", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 4 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE,
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(ops),
	.open = types_open,
	.close = types_close,
};
