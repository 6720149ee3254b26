/* SPDX-License-Identifier: BSD-3-Clause */
/* stack - the native stack of another thread of this process.
 *
 * Thread: any. Keeps: EXIT-4. File-scope state, because a signal handler has nothing to hang it on.
 *
 * dladdr() would wait for the loader's lock, which a thread inside a library's constructor holds
 * for as long as it likes: names come from _dl_find_object() and the object's own dynamic symbol
 * table. */
#include "config.h"

#include "host/core/stack.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/core/sync.h"

#define FRAMES_MAX 48
#define FRAMES_OF_HANDLER 2 /* the handler itself and the signal trampoline */

enum slot_state { SLOT_IDLE, SLOT_ASKED, SLOT_TAKING, SLOT_TAKEN };

static struct {
	struct bh_mutex lock; /* one request at a time; guards nothing that the handler touches */
	_Atomic int state;    /* A: acquire/release around the fields below */
	_Atomic uint32_t tid; /* who is asked; written before SLOT_ASKED */
	int n;		      /* written by the handler before SLOT_TAKEN */
	void *pc[FRAMES_MAX];
	sem_t taken;
} slot;

int bh_stack_signal(void)
{
	return SIGRTMIN + 2;
}

static void on_signal(int signo, siginfo_t *info, void *context)
{
	int saved = errno, asked = SLOT_ASKED;

	(void)signo;
	(void)info;
	(void)context;
	if (atomic_load(&slot.tid) == (uint32_t)syscall(SYS_gettid) &&
	    atomic_compare_exchange_strong(&slot.state, &asked, SLOT_TAKING)) {
		slot.n = backtrace(slot.pc, FRAMES_MAX);
		atomic_store(&slot.state, SLOT_TAKEN);
		sem_post(&slot.taken);
	}
	errno = saved;
}

bh_status bh_stack_init(struct bh_error *err)
{
	struct sigaction action = { .sa_sigaction = on_signal,
				    .sa_flags = SA_SIGINFO | SA_RESTART };
	void *warm[4];

	bh_mutex_init(&slot.lock);
	sem_init(&slot.taken, 0, 0);
	backtrace(warm, 4);
	sigemptyset(&action.sa_mask);
	if (sigaction(bh_stack_signal(), &action, NULL) != 0)
		return bh_raise(err, -errno, "stack.signal", BH_INT("signal", bh_stack_signal()));
	return 0;
}

/* ---- names ----------------------------------------------------------------------------------- */

struct symbols {
	const ElfW(Sym) * table;
	const char *names;
	uint32_t count;
};

/* The dynamic table has no count; the GNU hash table's last chain ends with the last symbol. */
static uint32_t count_symbols(const uint32_t *hash)
{
	uint32_t n_buckets = hash[0], first = hash[1], n_bloom = hash[2], last = 0;
	const uint32_t *buckets = hash + 4 + n_bloom * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chain = buckets + n_buckets;

	for (uint32_t i = 0; i < n_buckets; i++)
		if (buckets[i] > last)
			last = buckets[i];
	if (last < first)
		return 0;
	while (!(chain[last - first] & 1))
		last++;
	return last + 1;
}

static bool find_symbols(const struct link_map *map, struct symbols *ret)
{
	const uint32_t *hash = NULL;

	*ret = (struct symbols){ 0 };
	for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			ret->table = (const ElfW(Sym) *)d->d_un.d_ptr;
		else if (d->d_tag == DT_STRTAB)
			ret->names = (const char *)d->d_un.d_ptr;
		else if (d->d_tag == DT_GNU_HASH)
			hash = (const uint32_t *)d->d_un.d_ptr;
	}
	/* The kernel's vdso keeps unrelocated addresses here. */
	if (!ret->table || !ret->names || !hash || (uintptr_t)hash < map->l_addr)
		return false;
	ret->count = count_symbols(hash);
	return true;
}

static size_t render_frame(uintptr_t pc, char *buffer, size_t size)
{
	struct dl_find_object object;
	const ElfW(Sym) *best = NULL;
	struct symbols symbols;
	const char *file;
	uintptr_t offset;
	int n;

	if (_dl_find_object((void *)pc, &object) != 0 || !object.dlfo_link_map)
		return (size_t)snprintf(buffer, size, "%#lx", (unsigned long)pc);
	offset = pc - object.dlfo_link_map->l_addr;
	file = object.dlfo_link_map->l_name;
	file = !file || !*file	    ? program_invocation_short_name
	       : strrchr(file, '/') ? strrchr(file, '/') + 1
				    : file;
	if (find_symbols(object.dlfo_link_map, &symbols))
		for (uint32_t i = 0; i < symbols.count && !best; i++)
			if (symbols.table[i].st_size &&
			    offset - symbols.table[i].st_value < symbols.table[i].st_size)
				best = &symbols.table[i];
	if (best)
		n = snprintf(buffer, size, "%s:%s+%#lx", file, symbols.names + best->st_name,
			     (unsigned long)(offset - best->st_value));
	else
		n = snprintf(buffer, size, "%s+%#lx", file, (unsigned long)offset);
	return n < 0 ? 0 : (size_t)n;
}

static size_t render_frames(char *buffer, size_t size)
{
	size_t used = 0;

	for (int i = FRAMES_OF_HANDLER; i < slot.n; i++) {
		char frame[256];
		size_t n;

		/* A return address may lie behind its function's end: look one byte before it. */
		render_frame((uintptr_t)slot.pc[i] - (i > FRAMES_OF_HANDLER), frame, sizeof(frame));
		n = (size_t)snprintf(buffer + used, size - used, "%s%s", used ? " < " : "", frame);
		if (n >= size - used)
			break;
		used += n;
	}
	buffer[used] = '\0';
	return used;
}

/* ---- the way without a stack ----------------------------------------------------------------- */

static void read_line(const char *path, char *buffer, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buffer, size - 1);

	if (fd >= 0)
		close(fd);
	buffer[n > 0 ? n : 0] = '\0';
	buffer[strcspn(buffer, "\n")] = '\0';
}

static size_t render_without(uint32_t tid, const char *why, char *buffer, size_t size)
{
	char path[64], wchan[64], call[64];
	int n;

	snprintf(path, sizeof(path), "/proc/self/task/%u/wchan", tid);
	read_line(path, wchan, sizeof(wchan));
	snprintf(path, sizeof(path), "/proc/self/task/%u/syscall", tid);
	read_line(path, call, sizeof(call));
	call[strcspn(call, " ")] = '\0';
	n = snprintf(buffer, size, "no stack (%s): wchan=%s syscall=%s", why,
		     wchan[0] ? wchan : "?", call[0] ? call : "?");
	return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static bool wait_taken(struct bh_deadline until)
{
	struct timespec ts = bh_deadline_timespec(until);

	while (sem_clockwait(&slot.taken, CLOCK_MONOTONIC, &ts) != 0)
		if (errno != EINTR)
			return false;
	return true;
}

static size_t ask_locked(uint32_t tid, struct bh_deadline until, char *buffer, size_t size)
{
	int idle = SLOT_IDLE, asked = SLOT_ASKED;

	/* A former request's thread may still be at it: it owns the slot until it is done. */
	if (atomic_load(&slot.state) == SLOT_TAKEN && sem_trywait(&slot.taken) == 0)
		atomic_store(&slot.state, SLOT_IDLE);
	atomic_store(&slot.tid, tid);
	if (!atomic_compare_exchange_strong(&slot.state, &idle, SLOT_ASKED))
		return render_without(tid, "another thread's stack is being taken", buffer, size);
	if (syscall(SYS_tgkill, getpid(), (pid_t)tid, bh_stack_signal()) != 0) {
		atomic_store(&slot.state, SLOT_IDLE);
		return render_without(tid, "thread is gone", buffer, size);
	}
	if (!wait_taken(until)) {
		if (atomic_compare_exchange_strong(&slot.state, &asked, SLOT_IDLE))
			return render_without(tid, "signals blocked or no CPU", buffer, size);
		return render_without(tid, "not taken in time", buffer, size);
	}
	/* TSan does not know sem_clockwait(): this orders the fields for it as well. */
	(void)atomic_load(&slot.state);
	size = render_frames(buffer, size);
	atomic_store(&slot.state, SLOT_IDLE);
	return size;
}

size_t bh_stack_render(uint32_t tid, struct bh_deadline until, char *buffer, size_t size)
{
	size_t n;

	bh_mutex_lock(&slot.lock);
	n = ask_locked(tid, until, buffer, size);
	bh_mutex_unlock(&slot.lock);
	return n;
}
