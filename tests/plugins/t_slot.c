/* SPDX-License-Identifier: BSD-3-Clause */
/* t_slot - keeps something for each buffer in the buffer's slot, as a transport keeps its registration,
 * and asks objects for their memory.
 *
 * An entry stands for a registration. The plugin knows its entries by a list, whose pointers to buffers
 * hold no reference; release() takes the entry out and leaves the rest to a thread of the plugin's. */
#include <bulkhead/plugin.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
	struct entry *next, **link; /* under lock; link: what points at it */
	struct bh_buffer *buffer;   /* no reference until release() has come with one */
	int64_t id;
	uint64_t sum; /* of its bytes, when it was made */
};

struct state {
	struct bh_context *ctx;
	const struct bh_services *host;
	pthread_mutex_t lock; /* held for a few steps, never across a service that waits */
	pthread_cond_t changed;
	struct entry *entries;	/* under lock: those whose slot is set, or whose release() comes */
	struct entry *released; /* under lock: to be undone by the thread */
	struct bh_buffer *kept; /* under lock */
	int64_t n_made, n_released, n_cleared, n_wrong; /* under lock */
	int ends;					/* under lock */
	int undo_at_once, leave;
	pid_t pid;
	pthread_t thread;
};

static struct state *only; /* release() is given no state */

static void list_add(struct entry **head, struct entry *entry)
{
	entry->next = *head;
	entry->link = head;
	if (entry->next)
		entry->next->link = &entry->next;
	*head = entry;
}

static void list_remove(struct entry *entry)
{
	*entry->link = entry->next;
	if (entry->next)
		entry->next->link = entry->link;
}

static uint64_t sum_of(const struct state *s, const struct bh_buffer *buffer)
{
	struct bh_buffer_info info = { .size = sizeof(info) };
	uint64_t sum = 0, step = 1;

	if (s->host->buffer_info(buffer, &info) < 0)
		return 0;
	for (uint32_t i = info.n_dims; i-- > 0; step *= (uint64_t)info.shape[i])
		if (info.strides[i] != (int64_t)(step * info.dtype_bits / 8))
			return 0; /* what lies between the elements is not ours to read */
	for (uint64_t i = 0; i < info.length; i++)
		sum = sum * 31 + ((const unsigned char *)info.data)[i];
	return sum;
}

/* What the value stands for is undone while the memory is there, then the memory may go. */
static void undo(struct state *s, struct entry *entry)
{
	int wrong = sum_of(s, entry->buffer) != entry->sum;

	s->host->buffer_unref(entry->buffer);
	free(entry);
	pthread_mutex_lock(&s->lock);
	s->n_released++;
	s->n_wrong += wrong;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

/* Any thread, perhaps with the GIL. */
static void release(void *value, struct bh_buffer *buffer)
{
	struct state *s = only;
	struct entry *entry = value;

	if (getpid() != s->pid)
		_exit(86); /* nobody may call it in a forked child */
	pthread_mutex_lock(&s->lock);
	list_remove(entry);
	s->n_wrong += entry->buffer != buffer || s->host->buffer_slot_get(s->ctx, buffer) ||
		      s->host->buffer_slot_clear(s->ctx, buffer);
	if (!s->undo_at_once) {
		list_add(&s->released, entry);
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&s->lock);
	if (s->undo_at_once)
		undo(s, entry);
}

static void *undo_all(void *arg)
{
	struct state *s = arg;

	pthread_mutex_lock(&s->lock);
	while (!s->ends || s->released) {
		struct entry *entry = s->released;

		if (!entry) {
			pthread_cond_wait(&s->changed, &s->lock);
			continue;
		}
		list_remove(entry);
		pthread_mutex_unlock(&s->lock);
		undo(s, entry);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- ops ------------------------------------------------------------------------------------- */

static bh_status give_int(const struct state *s, struct bh_task *task, int64_t n)
{
	struct bh_value value = { .type = BH_TYPE_INT };

	value.as.integer = n;
	return s->host->result(task, &value);
}

static bh_status give_ints(const struct state *s, struct bh_task *task, const int64_t *n,
			   uint32_t count)
{
	struct bh_value items[32] = { { .type = BH_TYPE_INT } }, list = { .type = BH_TYPE_LIST };

	for (uint32_t i = 0; i < count; i++) {
		items[i].type = BH_TYPE_INT;
		items[i].as.integer = n[i];
	}
	list.as.list.items = items;
	list.as.list.count = count;
	return s->host->result(task, &list);
}

/* The entry of a buffer that the caller has a reference to: the one that is there, or a new one. Its
 * number is read under the lock, because another task may clear the slot and free it. */
static bh_status find_or_make(struct state *s, struct bh_buffer *buffer, int64_t *ret_id)
{
	struct entry *entry;
	bh_status st = 0;

	pthread_mutex_lock(&s->lock);
	entry = s->host->buffer_slot_get(s->ctx, buffer);
	if (!entry) {
		entry = calloc(1, sizeof(*entry));
		if (!entry) {
			pthread_mutex_unlock(&s->lock);
			return -ENOMEM;
		}
		entry->buffer = buffer;
		entry->id = ++s->n_made;
		entry->sum = sum_of(s, buffer);
		list_add(&s->entries, entry);
		st = s->host->buffer_slot_set(s->ctx, buffer, entry, release);
		if (st == 0 && s->host->buffer_slot_set(s->ctx, buffer, entry, release) != -EEXIST)
			s->n_wrong++;
	}
	*ret_id = entry->id;
	if (st < 0) {
		list_remove(entry);
		free(entry);
	}
	pthread_mutex_unlock(&s->lock);
	return st;
}

static bh_status run_remember(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer *buffer;
	int64_t id = 0;
	bh_status st;

	st = s->host->object_buffer(task, 0, args[0].as.object, BH_BUFFER_STRIDED, &buffer);
	if (st < 0)
		return st;
	st = find_or_make(s, buffer, &id);
	s->host->buffer_unref(buffer); /* the last one of what was exported for this op */
	return st < 0 ? st : give_int(s, task, id);
}

static bh_status run_remember_buffer(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	int64_t id = 0;
	bh_status st = find_or_make(s, args[0].as.buffer, &id);

	return st < 0 ? st : give_int(s, task, id);
}

static bh_status run_forget(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer *buffer;
	struct entry *entry;
	int64_t id = 0;
	bh_status st = s->host->object_buffer(task, 0, args[0].as.object, 0, &buffer);

	if (st < 0)
		return st;
	pthread_mutex_lock(&s->lock);
	entry = s->host->buffer_slot_clear(s->ctx, buffer);
	if (entry) {
		list_remove(entry);
		s->n_cleared++;
		id = entry->id;
		free(entry);
	}
	pthread_mutex_unlock(&s->lock);
	s->host->buffer_unref(buffer);
	return give_int(s, task, id);
}

static uint32_t flags_from(const struct bh_value *args)
{
	return (args[0].as.boolean ? BH_BUFFER_WRITABLE : 0) |
	       (args[1].as.boolean ? BH_BUFFER_STRIDED : 0);
}

static bh_status run_look(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer_info info = { .size = sizeof(info) };
	struct bh_buffer *buffer;
	int64_t seen[6 + 2 * BH_NDIM_MAX];
	uint32_t n = 0;
	bh_status st =
		s->host->object_buffer(task, 0, args[0].as.object, flags_from(args + 1), &buffer);

	if (st == 0)
		st = s->host->buffer_info(buffer, &info);
	if (st < 0)
		return st;
	seen[n++] = (int64_t)(uintptr_t)info.data;
	seen[n++] = (int64_t)info.length;
	seen[n++] = info.kind;
	seen[n++] = info.flags;
	seen[n++] = info.dtype_bits;
	for (uint32_t i = 0; i < info.n_dims; i++)
		seen[n++] = info.shape[i];
	for (uint32_t i = 0; i < info.n_dims; i++)
		seen[n++] = info.strides[i];
	s->host->buffer_unref(buffer);
	return give_ints(s, task, seen, n);
}

static bh_status run_write(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer_info info = { .size = sizeof(info) };
	struct bh_buffer *buffer;
	bh_status st =
		s->host->object_buffer(task, 0, args[0].as.object, BH_BUFFER_WRITABLE, &buffer);

	if (st == 0)
		st = s->host->buffer_info(buffer, &info);
	if (st < 0)
		return st;
	memset(info.data, (int)args[1].as.integer, (size_t)info.length);
	s->host->buffer_unref(buffer);
	return 0;
}

static bh_status run_echo(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_value value = { .type = BH_TYPE_BUFFER };
	bh_status st = s->host->object_buffer(task, 0, args[0].as.object, 0, &value.as.buffer);

	return st < 0 ? st : s->host->result(task, &value);
}

/* Keeps the memory beyond the task; none: lets go of it, on a worker. */
static bh_status run_keep(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_buffer *before, *now = NULL;
	bh_status st = 0;

	if (args[0].type == BH_TYPE_OBJECT)
		st = s->host->object_buffer(task, 0, args[0].as.object, BH_BUFFER_STRIDED, &now);
	if (st < 0)
		return st;
	pthread_mutex_lock(&s->lock);
	before = s->kept;
	s->kept = now;
	pthread_mutex_unlock(&s->lock);
	s->host->buffer_unref(before);
	return 0;
}

/* What is misuse, and must be refused. */
static bh_status run_misuse(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	struct bh_object *object = args[0].as.object;
	struct bh_buffer *buffer = NULL;
	const int64_t seen[] = {
		s->host->object_buffer(task, 7, object, 0, &buffer),
		s->host->object_buffer(task, 0, object, 4, &buffer),
		s->host->object_buffer(task, 0, NULL, 0, &buffer),
		s->host->object_buffer(task, 0, object, 0, NULL),
		buffer != NULL,
	};

	return give_ints(s, task, seen, 5);
}

static bh_status run_counts(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct state *s = state;
	int64_t n[4];

	(void)args;
	pthread_mutex_lock(&s->lock);
	n[0] = s->n_made;
	n[1] = s->n_released;
	n[2] = s->n_cleared;
	n[3] = s->n_wrong;
	pthread_mutex_unlock(&s->lock);
	return give_ints(s, task, n, 4);
}

/* ---- open and close -------------------------------------------------------------------------- */

static bh_status slot_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	struct state *s = calloc(1, sizeof(*s));

	if (!s)
		return host->fail(ctx, -ENOMEM, "t_slot.alloc", NULL, 0);
	s->ctx = ctx;
	s->host = host;
	s->pid = getpid();
	s->undo_at_once = (int)host->option_int(ctx, "undo_at_once");
	s->leave = (int)host->option_int(ctx, "leave");
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	only = s;
	if (pthread_create(&s->thread, NULL, undo_all, s) != 0)
		return host->fail(ctx, -EAGAIN, "t_slot.thread", NULL, 0);
	*ret_state = s;
	return 0;
}

/* Every slot is cleared by the pointer alone: under the lock it is good, because release() takes the
 * lock before it returns. What cannot be cleared is released by somebody at this moment. */
static void clear_all(struct state *s)
{
	pthread_mutex_lock(&s->lock);
	for (struct entry *entry = s->entries, *next; entry; entry = next) {
		next = entry->next;
		if (!s->host->buffer_slot_clear(s->ctx, entry->buffer))
			continue;
		list_remove(entry);
		free(entry);
		s->n_cleared++;
	}
	while (s->entries || s->released)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

static bh_status slot_close(void *state)
{
	struct state *s = state;
	struct bh_fact facts[] = { bh_fact_int("made", 0), bh_fact_int("released", 0),
				   bh_fact_int("cleared", 0), bh_fact_int("wrong", 0) };

	s->host->buffer_unref(s->kept);
	s->kept = NULL;
	if (!s->leave)
		clear_all(s);
	pthread_mutex_lock(&s->lock);
	s->ends = 1;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	facts[0].number = s->n_made;
	facts[1].number = s->n_released;
	facts[2].number = s->n_cleared;
	facts[3].number = s->n_wrong;
	s->host->log(s->ctx, BH_LOG_INFO, "slots closed", facts, 4);
	return 0; /* the state stays: `only` leads to it */
}

static const struct bh_site sites[] = {
	{ "memory", BH_SITE_DATA_ONLY, 0, "asks an object for its memory" },
};

static const struct bh_option options[] = {
	{ .name = "undo_at_once",
	  .type = BH_OPT_BOOL,
	  .preset = "no",
	  .doc = "release() undoes and drops its reference itself." },
	{ .name = "leave", .type = BH_OPT_BOOL, .preset = "no", .doc = "close() clears nothing." },
};

static const struct bh_op ops[] = {
	{ .name = "remember",
	  .args = "memory:object",
	  .ret = "int",
	  .run = run_remember,
	  .doc = "The number of what is kept for the memory's buffer." },
	{ .name = "remember_buffer",
	  .args = "memory:buffer",
	  .ret = "int",
	  .run = run_remember_buffer,
	  .doc = "As remember, of a buffer that the host has taken." },
	{ .name = "forget",
	  .args = "memory:object",
	  .ret = "int",
	  .run = run_forget,
	  .doc = "Clears the slot: the number, or 0." },
	{ .name = "look",
	  .args = "memory:object writable:bool=false strided:bool=false",
	  .ret = "list",
	  .run = run_look,
	  .doc = "Address, bytes, kind, flags, bits, shape and strides." },
	{ .name = "write",
	  .args = "memory:object fill:int",
	  .run = run_write,
	  .doc = "Fills every byte." },
	{ .name = "echo",
	  .args = "memory:object",
	  .ret = "buffer",
	  .run = run_echo,
	  .doc = "The memory as a buffer." },
	{ .name = "keep",
	  .args = "memory:object=none",
	  .run = run_keep,
	  .doc = "Keeps the memory until the next call." },
	{ .name = "misuse",
	  .args = "memory:object",
	  .ret = "list",
	  .run = run_misuse,
	  .doc = "What misuse gets." },
	{ .name = "counts",
	  .ret = "list",
	  .run = run_counts,
	  .doc = "Made, released, cleared, wrong." },
};

BH_PLUGIN("t_slot", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 8 },
	.progress_threads = 0,
	.sites = BH_TABLE(sites),
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = slot_open,
	.close = slot_close,
};
