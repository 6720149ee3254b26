/* SPDX-License-Identifier: BSD-3-Clause */
/* t_devmem - "device" memory that is malloc'ed and of the kind BH_BUFFER_CUDA: wrapped, imported, taken back.
 * What is freed is freed at once, so that the sanitizers see who uses it too late. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* One allocation; the value of the slot. */
struct entry {
	struct entry *next, **link;
	struct bh_buffer *buffer; /* without a reference */
	void *data;
};

struct state {
	struct bh_context *ctx;
	const struct bh_services *host;
	pthread_mutex_t lock;  /* guards what follows */
	struct entry *entries; /* those that have not been released */
	struct entry *busy;    /* those that somebody had when they were taken back */
	int64_t n_made, n_released, n_revoked, n_busy;
	struct bh_buffer *kept;
};

static struct state *only; /* release() is given no state */

static struct bh_value number(int64_t n)
{
	struct bh_value value = { .type = BH_TYPE_INT, .as = { .integer = n } };

	return value;
}

static bh_status give_ints(struct state *s, struct bh_task *task, const int64_t *n, uint64_t count)
{
	struct bh_value items[32] = { { 0 } }, list = { .type = BH_TYPE_LIST };

	for (uint64_t i = 0; i < count; i++)
		items[i] = number(n[i]);
	list.as.list = (struct bh_items){ items, count };
	return s->host->result(task, &list);
}

static bh_status give_buffer(struct state *s, struct bh_task *task, struct bh_buffer *buffer)
{
	const struct bh_value value = { .type = BH_TYPE_BUFFER, .as = { .buffer = buffer } };

	return s->host->result(task, &value);
}

/* Under the lock. */
static void strike_out(struct entry *entry)
{
	*entry->link = entry->next;
	if (entry->next)
		entry->next->link = entry->link;
}

static void release(void *value, struct bh_buffer *buffer)
{
	struct entry *entry = value;

	pthread_mutex_lock(&only->lock);
	strike_out(entry);
	only->n_released++;
	pthread_mutex_unlock(&only->lock);
	free(entry->data);
	free(entry);
	only->host->buffer_unref(buffer);
}

/* `entry` has its data, which is gone on failure. */
static bh_status wrap(struct state *s, struct entry *entry, struct bh_buffer_info *info)
{
	bh_status st;

	/* The lock until it is in the list: release() takes it out. */
	pthread_mutex_lock(&s->lock);
	st = s->host->buffer_wrap(s->ctx, info, entry, release, &entry->buffer);
	if (st == 0) {
		entry->next = s->entries;
		entry->link = &s->entries;
		if (entry->next)
			entry->next->link = &entry->next;
		s->entries = entry;
		s->n_made++;
	}
	pthread_mutex_unlock(&s->lock);
	if (st < 0) {
		free(entry->data);
		free(entry);
	}
	return st;
}

static bh_status run_alloc(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer_info info = { .size = sizeof(info), .kind = BH_BUFFER_CUDA };
	struct entry *entry = calloc(1, sizeof(*entry));
	struct bh_buffer *buffer;
	uint64_t n = 1;
	bh_status st;

	if (!entry)
		return -ENOMEM;
	info.n_dims = (uint32_t)args[0].as.list.count;
	for (uint32_t i = 0; i < info.n_dims && i < BH_NDIM_MAX; i++) {
		info.shape[i] = args[0].as.list.items[i].as.integer;
		n *= (uint64_t)info.shape[i];
	}
	info.dtype_code = (uint8_t)args[1].as.integer;
	info.dtype_bits = (uint8_t)args[2].as.integer;
	info.flags = args[3].as.boolean ? BH_BUFFER_WRITABLE : 0;
	info.device = (int32_t)args[4].as.integer;
	entry->data = calloc(n ? n : 1, info.dtype_bits / 8);
	info.data = n ? entry->data : NULL;
	st = wrap(s, entry, &info);
	if (st < 0)
		return st;
	buffer = entry->buffer;
	return give_buffer(s, task, buffer);
}

static bh_status fetch(struct state *s, struct bh_task *task, const struct bh_value *args,
		       struct bh_cuda_use *use, struct bh_buffer **ret_buffer)
{
	uint32_t flags = (args[1].as.boolean ? BH_BUFFER_WRITABLE : 0) |
			 (args[2].as.boolean ? BH_BUFFER_STRIDED : 0);

	*use = (struct bh_cuda_use){ .size = sizeof(*use),
				     .device = (int32_t)args[3].as.integer,
				     .stream = (uint64_t)args[4].as.integer,
				     .after = 99 };
	return s->host->object_cuda_buffer(task, 0, args[0].as.object, flags, use, ret_buffer);
}

static bh_status run_import(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_buffer *buffer;
	struct bh_cuda_use use;
	bh_status st = fetch(state, task, args, &use, &buffer);

	return st < 0 ? st : give_buffer(state, task, buffer);
}

static bh_status tell(struct state *s, struct bh_task *task, struct bh_buffer *buffer,
		      uint64_t after)
{
	struct bh_buffer_info info = { .size = sizeof(info) };
	int64_t n[10 + 2 * BH_NDIM_MAX];
	uint32_t i;

	if (s->host->buffer_info(buffer, &info) < 0)
		return -EIO;
	n[0] = info.kind;
	n[1] = info.device;
	n[2] = info.flags;
	n[3] = (int64_t)(uintptr_t)info.data;
	n[4] = (int64_t)info.length;
	n[5] = info.dtype_code;
	n[6] = info.dtype_bits;
	n[7] = (int64_t)after;
	for (i = 0; i < info.n_dims; i++) {
		n[8 + i] = info.shape[i];
		n[8 + info.n_dims + i] = info.strides[i];
	}
	return give_ints(s, task, n, 8 + 2 * info.n_dims);
}

static bh_status run_look(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer *buffer;
	struct bh_cuda_use use;
	bh_status st = fetch(s, task, args, &use, &buffer);

	if (st < 0)
		return st;
	st = tell(s, task, buffer, use.after);
	s->host->buffer_unref(buffer);
	return st;
}

static bh_status run_info(void *state, struct bh_task *task, const struct bh_value *args)
{
	return tell(state, task, args[0].as.buffer, 0);
}

static bh_status run_fill(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer_info info = { .size = sizeof(info) };

	(void)task;
	if (s->host->buffer_info(args[0].as.buffer, &info) < 0)
		return -EIO;
	if (info.length)
		memset(info.data, (int)args[1].as.integer, info.length);
	return 0;
}

static bh_status run_read(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer_info info = { .size = sizeof(info) };
	struct bh_value bytes = { .type = BH_TYPE_BYTES };

	if (s->host->buffer_info(args[0].as.buffer, &info) < 0)
		return -EIO;
	bytes.as.text = (struct bh_text){ info.data, info.length };
	return s->host->result(task, &bytes);
}

/* Under the lock, with an entry that is in the list. 0: its memory is gone. */
static bh_status take_back(struct state *s, struct entry *entry, uint32_t held)
{
	bh_status st = s->host->buffer_revoke(s->ctx, entry->buffer, held);

	if (st == -ENOENT)
		return st; /* release() waits for the lock */
	strike_out(entry);
	if (st == 0) {
		free(entry->data);
		free(entry);
		s->n_revoked++;
		return 0;
	}
	/* It stays for the rest of the process; in a list, so that no sanitizer takes it for lost. */
	entry->next = s->busy;
	s->busy = entry;
	s->n_busy++;
	return st;
}

static bh_status run_free(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	bh_status st = -ENOENT;
	struct entry *entry;

	pthread_mutex_lock(&s->lock);
	for (entry = s->entries; entry && entry->buffer != args[0].as.buffer; entry = entry->next)
		;
	if (entry)
		st = take_back(s, entry, 1);
	pthread_mutex_unlock(&s->lock);
	if (st == 0) {
		const struct bh_value yes = { .type = BH_TYPE_BOOL, .as = { .boolean = 1 } };

		return s->host->result(task, &yes);
	}
	if (st == -EBUSY) {
		const struct bh_value no = { .type = BH_TYPE_BOOL, .as = { .boolean = 0 } };

		return s->host->result(task, &no);
	}
	return s->host->task_fail(task, st, "t_devmem.gone", NULL, 0);
}

static bh_status run_keep(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer *old;

	(void)task;
	pthread_mutex_lock(&s->lock);
	old = s->kept;
	s->kept = args[0].type == BH_TYPE_BUFFER ? s->host->buffer_ref(args[0].as.buffer) : NULL;
	pthread_mutex_unlock(&s->lock);
	s->host->buffer_unref(old); /* without the lock: release() takes it */
	return 0;
}

static int64_t total_of(struct state *s, const struct bh_value *value)
{
	struct bh_buffer_info info = { .size = sizeof(info) };
	int64_t n = 0;

	if (value->type == BH_TYPE_BUFFER && s->host->buffer_info(value->as.buffer, &info) == 0)
		return (int64_t)info.length;
	for (uint64_t i = 0; value->type == BH_TYPE_LIST && i < value->as.list.count; i++)
		n += total_of(s, &value->as.list.items[i]);
	return n;
}

static bh_status run_total(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	const struct bh_value n = number(total_of(s, &args[0]));

	return s->host->result(task, &n);
}

static bh_status run_counts(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	int64_t n[4];

	(void)args;
	pthread_mutex_lock(&s->lock);
	n[0] = s->n_made;
	n[1] = s->n_released;
	n[2] = s->n_revoked;
	n[3] = s->n_busy;
	pthread_mutex_unlock(&s->lock);
	return give_ints(s, task, n, 4);
}

static bh_status devmem_open(struct bh_context *ctx, const struct bh_services *host,
			     void **ret_state)
{
	struct state *s = calloc(1, sizeof(*s));

	if (!s)
		return host->fail(ctx, -ENOMEM, "t_devmem.alloc", NULL, 0);
	s->ctx = ctx;
	s->host = host;
	pthread_mutex_init(&s->lock, NULL);
	only = s;
	*ret_state = s;
	return 0;
}

/* The memory goes although Python still has its Buffers; what is left in the list after that is being
 * released at this moment. */
static bh_status devmem_close(void *state)
{
	struct state *s = state;
	struct bh_fact facts[4];
	bool waiting;

	s->host->buffer_unref(s->kept);
	s->kept = NULL;
	do {
		pthread_mutex_lock(&s->lock);
		for (struct entry *entry = s->entries, *next; entry; entry = next) {
			next = entry->next;
			(void)take_back(s, entry, 0);
		}
		waiting = s->entries != NULL;
		pthread_mutex_unlock(&s->lock);
	} while (waiting);
	facts[0] = bh_fact_int("made", s->n_made);
	facts[1] = bh_fact_int("released", s->n_released);
	facts[2] = bh_fact_int("revoked", s->n_revoked);
	facts[3] = bh_fact_int("busy", s->n_busy);
	s->host->log(s->ctx, BH_LOG_INFO, "memory closed", facts, 4);
	return 0; /* the state stays: `only` leads to it */
}

static const struct bh_site sites[] = {
	{ "import", BH_SITE_DATA_ONLY, 0, "asks an object for its memory" },
};

#define IMPORT_ARGS                                                                                \
	"memory:object writable:bool=false strided:bool=false device:int=-1 stream:int=2"

static const struct bh_op ops[] = {
	{ .name = "alloc",
	  .args = "shape:list code:int=2 bits:int=32 writable:bool=true device:int=0",
	  .ret = "buffer",
	  .run = run_alloc,
	  .doc = "Zeroed memory." },
	{ .name = "import_",
	  .args = IMPORT_ARGS,
	  .ret = "buffer",
	  .run = run_import,
	  .doc = "Another library's memory." },
	{ .name = "look",
	  .args = IMPORT_ARGS,
	  .ret = "list",
	  .run = run_look,
	  .doc = "As info, of another library's memory, with the stream to wait for." },
	{ .name = "info",
	  .args = "memory:buffer~@",
	  .ret = "list",
	  .run = run_info,
	  .doc = "Kind, device, flags, address, bytes, code, bits, 0, shape, strides." },
	{ .name = "fill",
	  .args = "memory:buffer!@ value:int",
	  .run = run_fill,
	  .doc = "Sets bytes." },
	{ .name = "read",
	  .args = "memory:buffer@",
	  .ret = "bytes",
	  .run = run_read,
	  .doc = "What is in it." },
	{ .name = "read_host",
	  .args = "memory:buffer",
	  .ret = "bytes",
	  .run = run_read,
	  .doc = "What is in the host's memory." },
	{ .name = "free",
	  .args = "memory:buffer@",
	  .ret = "bool",
	  .run = run_free,
	  .flags = BH_OP_CLEANUP,
	  .doc = "Takes the memory back; false: it is busy, and stays." },
	{ .name = "keep",
	  .args = "memory:buffer@=none",
	  .run = run_keep,
	  .doc = "Keeps a reference until the next call." },
	{ .name = "total",
	  .args = "items:list@",
	  .ret = "int",
	  .run = run_total,
	  .doc = "Bytes of all buffers in a list." },
	{ .name = "total_host",
	  .args = "items:list",
	  .ret = "int",
	  .run = run_total,
	  .doc = "Bytes of all buffers of the host's in a list." },
	{ .name = "total_rest",
	  .args = "*items:buffer~@",
	  .ret = "int",
	  .run = run_total,
	  .doc = "Bytes of all buffers." },
	{ .name = "counts",
	  .ret = "list",
	  .run = run_counts,
	  .doc = "Made, released, revoked, busy." },
};

BH_PLUGIN("t_devmem", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 8 },
	.progress_threads = 0,
	.sites = BH_TABLE(sites),
	.ops = BH_TABLE(ops),
	.open = devmem_open,
	.close = devmem_close,
};
