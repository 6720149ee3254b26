/* SPDX-License-Identifier: BSD-3-Clause */
/* t_buffer - ops that return memory of the host's, keep a buffer, and write to one late, as a transfer
 * does whose task has been given up (SUP-10). Takes the GIL nowhere. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct keeper {
	struct bh_context *ctx;
	const struct bh_services *host;
	pthread_mutex_t lock;
	struct bh_buffer *kept; /* under lock */
};

static bh_status give(const struct keeper *k, struct bh_task *task, struct bh_buffer *buffer)
{
	struct bh_value value = { .type = BH_TYPE_BUFFER };

	value.as.buffer = buffer;
	return k->host->result(task, &value); /* the reference passes */
}

/* Every byte is `fill`. */
static bh_status run_make(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct keeper *k = state;
	const struct bh_items *shape = &args[0].as.list;
	struct bh_buffer_info info = { .size = sizeof(info), .kind = BH_BUFFER_HOST };
	struct bh_buffer *buffer;
	bh_status st;

	info.n_dims = (uint32_t)shape->count; /* the host has to cope with too many */
	for (uint64_t i = 0; i < shape->count && i < BH_NDIM_MAX; i++)
		info.shape[i] = shape->items[i].as.integer;
	info.dtype_code = (uint8_t)args[1].as.integer;
	info.dtype_bits = (uint8_t)args[2].as.integer;
	info.flags = args[3].as.boolean ? BH_BUFFER_WRITABLE : 0;
	st = k->host->buffer_alloc(k->ctx, &info, (uint64_t)args[4].as.integer, &buffer);
	if (st < 0)
		return k->host->task_fail(task, st, "t_buffer.make", NULL, 0);
	st = k->host->buffer_info(buffer, &info);
	if (st == 0)
		memset(info.data, (int)args[5].as.integer, (size_t)info.length);
	return give(k, task, buffer);
}

static bh_status run_echo(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct keeper *k = state;

	return give(k, task, k->host->buffer_ref(args[0].as.buffer));
}

static bh_status run_kind(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct keeper *k = state;
	struct bh_buffer_info info = { .size = sizeof(info) };
	struct bh_value kind = { .type = BH_TYPE_INT };
	bh_status st = k->host->buffer_info(args[0].as.buffer, &info);

	kind.as.integer = info.kind;
	return st < 0 ? st : k->host->result(task, &kind);
}

/* Keeps a reference beyond the task; none: lets go of it, on a worker. */
static bh_status run_keep(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct keeper *k = state;
	struct bh_buffer *before, *now = NULL;

	(void)task;
	if (args[0].type == BH_TYPE_BUFFER)
		now = k->host->buffer_ref(args[0].as.buffer);
	pthread_mutex_lock(&k->lock);
	before = k->kept;
	k->kept = now;
	pthread_mutex_unlock(&k->lock);
	k->host->buffer_unref(before);
	return 0;
}

struct late {
	struct keeper *keeper;
	uint64_t task_id;
	void *data;
	size_t length;
	char path[];
};

/* Nobody tells it that its task has been given up. */
static void *write_late(void *arg)
{
	struct late *late = arg;
	const struct timespec pause = { 0, 5000000 };

	while (access(late->path, F_OK) < 0)
		nanosleep(&pause, NULL);
	memset(late->data, 0xab, late->length);
	(void)late->keeper->host->complete(late->keeper->ctx, late->task_id, 0, NULL, NULL, NULL,
					   0);
	free(late);
	return NULL;
}

static bh_status run_late(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct keeper *k = state;
	struct bh_buffer_info info = { .size = sizeof(info) };
	size_t length = args[1].as.text.length;
	struct late *late = malloc(sizeof(*late) + length + 1);
	pthread_t thread;

	if (!late)
		return -ENOMEM;
	if (k->host->buffer_info(args[0].as.buffer, &info) < 0) {
		free(late);
		return -EINVAL;
	}
	*late = (struct late){ k, k->host->task_id(task), info.data, (size_t)info.length };
	memcpy(late->path, args[1].as.text.data, length + 1);
	if (pthread_create(&thread, NULL, write_late, late) != 0) {
		free(late);
		return -EAGAIN;
	}
	pthread_detach(thread);
	return BH_PENDING;
}

static bh_status run_break(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct keeper *k = state;

	(void)task;
	(void)args;
	k->host->report_failed(k->ctx, -EIO, "t_buffer.broken", NULL, 0);
	return 0;
}

static bh_status keeper_open(struct bh_context *ctx, const struct bh_services *host,
			     void **ret_state)
{
	struct keeper *k = calloc(1, sizeof(*k));

	if (!k)
		return host->fail(ctx, -ENOMEM, "t_buffer.alloc", NULL, 0);
	k->ctx = ctx;
	k->host = host;
	pthread_mutex_init(&k->lock, NULL);
	*ret_state = k;
	return 0;
}

static struct keeper *leftover; /* a late thread may still use it after close */

static bh_status keeper_close(void *state)
{
	struct keeper *k = state;

	k->host->buffer_unref(k->kept);
	k->kept = NULL;
	leftover = k;
	return 0;
}

static const struct bh_op ops[] = {
	{ .name = "make",
	  .args = "shape:list code:int=2 bits:int=32 writable:bool=true alignment:int=64 "
		  "fill:int=0",
	  .ret = "buffer",
	  .run = run_make,
	  .doc = "Memory of the host's, made and filled by the op." },
	{ .name = "echo",
	  .args = "value:buffer",
	  .ret = "buffer",
	  .run = run_echo,
	  .doc = "What it was given." },
	{ .name = "kind",
	  .args = "value:buffer",
	  .ret = "int",
	  .run = run_kind,
	  .doc = "enum bh_buffer_kind." },
	{ .name = "keep",
	  .args = "value:buffer=none",
	  .run = run_keep,
	  .doc = "Keeps a reference until the next call." },
	{ .name = "late",
	  .args = "target:buffer! go:str",
	  .run = run_late,
	  .doc = "Pending, never minding a cancel: writes to the buffer once the file is there." },
	{ .name = "break_pool", .run = run_break, .doc = "Reports the plugin as failed." },
};

BH_PLUGIN("t_buffer", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 4 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE,
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(ops),
	.open = keeper_open,
	.close = keeper_close,
};
