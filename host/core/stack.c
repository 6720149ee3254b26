/* SPDX-License-Identifier: BSD-3-Clause */
/* stack - the native stack of another thread of this process.
 *
 * Thread: any. Keeps: EXIT-4, CP-3. File-scope state, because a signal handler has nothing to hang it on.
 *
 * dladdr() would wait for the loader's lock, which a thread inside a library's constructor holds
 * for as long as it likes: names come from _dl_find_object(), what was read of the object's file
 * when it was loaded, and the object's own dynamic symbol table. */
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
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "host/core/log.h"
#include "host/core/sync.h"

#define FRAMES_MAX 48
#define SYMBOLS_MAX 200000
#define SYMBOL_BYTES_MAX (16u << 20) /* of a file's symbols and their names together */
#define LOOK_BACK 64		     /* functions may lie in functions, but not many */
#define FRAMES_OF_HANDLER 2	     /* the handler itself and the signal trampoline */

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
	bh_stack_learn(&slot, "/proc/self/exe");
	return 0;
}

/* ---- names: what an object's file says ------------------------------------------------------- */

struct function {
	uint32_t start, size; /* relative to where the object lies */
	uint32_t name;	      /* in `names` */
	bool global, sizeless;
};

struct learned {
	struct learned *next;	    /* I: once published */
	const struct link_map *map; /* I: of an object that stays for good (PLG-5) */
	char *names;		    /* I: owned */
	size_t n;		    /* I */
	struct function functions[];
};

/* A: release by who adds, acquire by who looks. Nothing is ever changed or taken out. */
static _Atomic(struct learned *) all_learned;

static const struct learned *find_learned(const struct link_map *map)
{
	const struct learned *at = atomic_load_explicit(&all_learned, memory_order_acquire);

	while (at && at->map != map)
		at = at->next;
	return at;
}

static bool read_at(int fd, void *to, size_t size, uint64_t offset)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = pread(fd, (char *)to + done, size - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

/* The sections of a file that is being read. */
struct sections {
	ElfW(Shdr) * table; /* owned */
	size_t n;
	const ElfW(Shdr) * symbols, *names; /* in `table` */
};

static bool read_sections(int fd, struct sections *ret)
{
	ElfW(Ehdr) head;

	if (!read_at(fd, &head, sizeof(head), 0) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
	    head.e_shentsize != sizeof(ElfW(Shdr)) || head.e_shnum == 0)
		return false;
	ret->n = head.e_shnum;
	ret->table = calloc(ret->n, sizeof(*ret->table));
	if (!ret->table || !read_at(fd, ret->table, ret->n * sizeof(*ret->table), head.e_shoff))
		return false;
	for (size_t i = 0; i < ret->n && !ret->symbols; i++)
		if (ret->table[i].sh_type == SHT_SYMTAB && ret->table[i].sh_link < ret->n)
			ret->symbols = &ret->table[i];
	if (!ret->symbols || ret->symbols->sh_entsize != sizeof(ElfW(Sym)))
		return false;
	ret->names = &ret->table[ret->symbols->sh_link];
	return ret->names->sh_size > 0;
}

/* Those of one start are neighbours, the one to keep first: a name that others may use too. */
static int by_start(const void *left, const void *right)
{
	const struct function *a = left, *b = right;

	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	if (a->global != b->global)
		return a->global ? -1 : 1;
	if (a->sizeless != b->sizeless)
		return a->sizeless ? 1 : -1;
	return a->name < b->name ? -1 : a->name > b->name;
}

static bool is_function(const ElfW(Sym) * symbol)
{
	unsigned char type = ELF64_ST_TYPE(symbol->st_info);

	return (type == STT_FUNC || type == STT_GNU_IFUNC) && symbol->st_shndx != SHN_UNDEF;
}

/* A function written in assembly may have no size: it may go on to its section's end. */
static bool take_symbol(const ElfW(Sym) * symbol, const struct sections *sections,
			struct function *ret)
{
	uint64_t size = symbol->st_size;

	if (!is_function(symbol) || symbol->st_name >= sections->names->sh_size)
		return false;
	if (size == 0) {
		const ElfW(Shdr) * in;

		if (symbol->st_shndx >= sections->n)
			return false;
		in = &sections->table[symbol->st_shndx];
		size = in->sh_addr + in->sh_size - symbol->st_value;
	}
	if (symbol->st_value > UINT32_MAX || size > UINT32_MAX)
		return false;
	*ret = (struct function){
		.start = (uint32_t)symbol->st_value,
		.size = (uint32_t)size,
		.name = symbol->st_name,
		.global = ELF64_ST_BIND(symbol->st_info) == STB_GLOBAL,
		.sizeless = symbol->st_size == 0,
	};
	return true;
}

static void sort_functions(struct learned *learned)
{
	struct function *f = learned->functions;
	size_t n = 0;

	qsort(f, learned->n, sizeof(*f), by_start);
	for (size_t i = 0; i < learned->n; i++)
		if (n == 0 || f[n - 1].start != f[i].start)
			f[n++] = f[i];
	for (size_t i = 0; i + 1 < n; i++)
		if (f[i].sizeless && f[i].size > f[i + 1].start - f[i].start)
			f[i].size = f[i + 1].start - f[i].start;
	learned->n = n;
}

static struct learned *learned_free(struct learned *learned)
{
	if (learned)
		free(learned->names);
	free(learned);
	return NULL;
}

/* NULL when there is nothing to be learnt. */
static struct learned *read_functions(int fd, const struct sections *sections, const char *path)
{
	size_t n = sections->symbols->sh_size / sizeof(ElfW(Sym));
	size_t size = sections->names->sh_size;
	struct learned *learned = NULL;
	ElfW(Sym) * symbols;

	if (n > SYMBOLS_MAX || size > SYMBOL_BYTES_MAX ||
	    size + n * sizeof(*symbols) > SYMBOL_BYTES_MAX) {
		bh_log(BH_LOG_INFO, "stack",
		       "too many symbols: stacks show its functions by their offsets",
		       BH_STR("path", path), BH_INT("symbols", n), BH_INT("accepted", SYMBOLS_MAX));
		return NULL;
	}
	symbols = calloc(n + 1, sizeof(*symbols));
	learned = calloc(1, sizeof(*learned) + n * sizeof(learned->functions[0]));
	if (learned)
		learned->names = malloc(size);
	if (!symbols || !learned || !learned->names ||
	    !read_at(fd, symbols, n * sizeof(*symbols), sections->symbols->sh_offset) ||
	    !read_at(fd, learned->names, size, sections->names->sh_offset)) {
		free(symbols);
		return learned_free(learned);
	}
	learned->names[size - 1] = '\0'; /* whatever the file says */
	for (size_t i = 0; i < n; i++)
		learned->n += take_symbol(&symbols[i], sections, &learned->functions[learned->n]);
	free(symbols);
	if (learned->n == 0)
		return learned_free(learned);
	sort_functions(learned);
	return learned;
}

static struct learned *read_file(const char *path)
{
	struct sections sections = { 0 };
	struct learned *learned = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	if (fd < 0)
		return NULL;
	if (read_sections(fd, &sections))
		learned = read_functions(fd, &sections, path);
	free(sections.table);
	close(fd);
	return learned;
}

void bh_stack_learn(const void *address_in_object, const char *path)
{
	struct dl_find_object object;
	struct learned *learned;

	if (_dl_find_object((void *)(uintptr_t)address_in_object, &object) != 0 ||
	    !object.dlfo_link_map || find_learned(object.dlfo_link_map))
		return;
	learned = read_file(path);
	if (!learned)
		return;
	learned->map = object.dlfo_link_map;
	learned->next = atomic_load_explicit(&all_learned, memory_order_acquire);
	while (!atomic_compare_exchange_weak_explicit(&all_learned, &learned->next, learned,
						      memory_order_release, memory_order_acquire))
		;
}

/* The function that contains `offset`, the innermost where functions lie in one another. */
static const char *find_function(const struct learned *learned, uintptr_t offset, uintptr_t *ret_at)
{
	size_t low = 0, high = learned->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (learned->functions[middle].start <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	for (size_t i = low; i > 0 && low - i < LOOK_BACK; i--) {
		const struct function *f = &learned->functions[i - 1];

		if (offset - f->start < f->size) {
			*ret_at = offset - f->start;
			return learned->names + f->name;
		}
	}
	return NULL;
}

/* ---- names: what an object says itself -------------------------------------------------------- */

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

static const char *find_dynamic(const struct link_map *map, uintptr_t offset, uintptr_t *ret_at)
{
	const ElfW(Sym) *best = NULL;
	struct symbols symbols;

	if (!find_symbols(map, &symbols))
		return NULL;
	for (uint32_t i = 0; i < symbols.count; i++) {
		const ElfW(Sym) *symbol = &symbols.table[i];

		if (is_function(symbol) && offset - symbol->st_value < symbol->st_size &&
		    (!best || symbol->st_value > best->st_value ||
		     (symbol->st_value == best->st_value &&
		      ELF64_ST_BIND(best->st_info) != STB_GLOBAL)))
			best = symbol;
	}
	if (!best)
		return NULL;
	*ret_at = offset - best->st_value;
	return symbols.names + best->st_name;
}

static size_t render_frame(uintptr_t pc, char *buffer, size_t size)
{
	const struct learned *learned;
	struct dl_find_object object;
	const char *file, *name = NULL;
	uintptr_t offset, at = 0;
	int n;

	if (_dl_find_object((void *)pc, &object) != 0 || !object.dlfo_link_map)
		return (size_t)snprintf(buffer, size, "%#lx", (unsigned long)pc);
	offset = pc - object.dlfo_link_map->l_addr;
	file = object.dlfo_link_map->l_name;
	file = !file || !*file	    ? program_invocation_short_name
	       : strrchr(file, '/') ? strrchr(file, '/') + 1
				    : file;
	learned = find_learned(object.dlfo_link_map);
	if (learned)
		name = find_function(learned, offset, &at);
	if (!name)
		name = find_dynamic(object.dlfo_link_map, offset, &at);
	if (name)
		n = snprintf(buffer, size, "%s:%s+%#lx", file, name, (unsigned long)at);
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

/* ---- from outside ---------------------------------------------------------------------------- */

#define STACK_WORDS 2048 /* of a stack, from its inner end */

static bool read_memory(uintptr_t at, void *to, size_t size, size_t *ret_read)
{
	struct iovec local = { to, size };
	struct iovec remote = { (void *)at, size };
	ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);

	*ret_read = n > 0 ? (size_t)n : 0;
	return n > 0;
}

/* Where the thread's system call returns to and its stack ends. False when it is in none, or the
 * kernel does not say. */
static bool in_system_call(uint32_t tid, uintptr_t *ret_pc, uintptr_t *ret_sp)
{
	char path[64], line[256];
	unsigned long sp, pc;
	long number;

	snprintf(path, sizeof(path), "/proc/self/task/%u/syscall", tid);
	read_line(path, line, sizeof(line));
	if (sscanf(line, "%ld %*x %*x %*x %*x %*x %*x %lx %lx", &number, &sp, &pc) != 3)
		return false;
	*ret_pc = pc;
	*ret_sp = sp;
	return number >= 0 && sp != 0;
}

/* Whether a call stands before `pc`. */
static bool follows_call(uintptr_t pc)
{
#if defined(__x86_64__)
	struct dl_find_object object;
	unsigned char code[7];
	size_t n;

	if (_dl_find_object((void *)pc, &object) != 0 ||
	    !read_memory(pc - sizeof(code), code, sizeof(code), &n) || n != sizeof(code))
		return false;
	if (code[2] == 0xe8) /* to an address that is in the code */
		return true;
	for (size_t length = 2; length <= sizeof(code);
	     length++) { /* to one in a register or memory */
		const unsigned char *call = &code[sizeof(code) - length];

		if (call[0] == 0xff && (call[1] >> 3 & 7) == 2)
			return true;
	}
	return false;
#else
	struct dl_find_object object;

	return _dl_find_object((void *)pc, &object) == 0;
#endif
}

static size_t put_frame(uintptr_t pc, const char *before, char *buffer, size_t size)
{
	char frame[256];
	size_t n;

	render_frame(pc, frame, sizeof(frame));
	n = (size_t)snprintf(buffer, size, "%s%s", before, frame);
	if (n < size)
		return n;
	buffer[0] = '\0';
	return 0;
}

static size_t render_from_outside(uintptr_t pc, uintptr_t sp, char *buffer, size_t size)
{
	size_t used = put_frame(pc, "", buffer, size), n_read, n_frames = 1;
	bh_auto_mem uintptr_t *words = calloc(STACK_WORDS, sizeof(*words));

	if (!words || !read_memory(sp, words, STACK_WORDS * sizeof(*words), &n_read))
		return used;
	for (size_t i = 0; i < n_read / sizeof(*words) && n_frames < FRAMES_MAX; i++) {
		size_t n;

		if (!follows_call(words[i]))
			continue;
		n = put_frame(words[i] - 1, " < ~", buffer + used, size - used);
		if (n == 0)
			break;
		used += n;
		n_frames++;
	}
	return used;
}

size_t bh_stack_observe(uint32_t tid, struct bh_deadline until, char *buffer, size_t size)
{
	uintptr_t pc, sp;

	if (in_system_call(tid, &pc, &sp))
		return render_from_outside(pc, sp, buffer, size);
	return bh_stack_render(tid, until, buffer, size);
}
