/* SPDX-License-Identifier: BSD-3-Clause */
/* fault - see fault.h.
 *
 * Thread: bh_fault_start() on main while it is alone; bh_fault_hit() on any. */
#include "config.h"

#include "host/core/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct count {
	_Atomic uint64_t seen;	 /* A: relaxed; the value that fetch_add gives is what counts */
	_Atomic uint64_t failed; /* A: relaxed, statistics only */
};
static_assert(sizeof(struct count) == 16, "what BULKHEAD_FAULT_COUNT holds for one kind");

static const char *const kind_names[] = {
	[BH_FAULT_ALLOC] = "alloc",
	[BH_FAULT_THREAD] = "thread",
	[BH_FAULT_DLOPEN] = "dlopen",
	[BH_FAULT_CALLBACK] = "callback",
};
static_assert(BH_ARRAY_LEN(kind_names) == BH_FAULT_KINDS, "one name per kind");

static struct count own_counts[BH_FAULT_KINDS];
/* I: these three are written by bh_fault_start() before there is a second thread. */
static struct count *counts = own_counts;
static struct {
	uint64_t at; /* 0: none */
	bool onwards;
} chosen[BH_FAULT_KINDS];

/* One "KIND:N" or "KIND:N+" of `length` bytes. */
static bool choose(const char *text, size_t length)
{
	for (size_t kind = 0; kind < BH_FAULT_KINDS; kind++) {
		size_t name = strlen(kind_names[kind]), at = name + 1;
		uint64_t n = 0;

		if (length < name + 2 || memcmp(text, kind_names[kind], name) != 0 ||
		    text[name] != ':')
			continue;
		for (; at < length && text[at] >= '0' && text[at] <= '9'; at++)
			if (__builtin_mul_overflow(n, 10u, &n) ||
			    __builtin_add_overflow(n, (uint64_t)(text[at] - '0'), &n))
				return false;
		chosen[kind].at = n;
		chosen[kind].onwards = at < length && text[at] == '+';
		return n > 0 && at + chosen[kind].onwards == length;
	}
	return false;
}

static bool read_choice(const char *text)
{
	const char *rest = text;

	while (*rest) {
		size_t length = strcspn(rest, ",");

		if (!choose(rest, length)) {
			fprintf(stderr,
				"bulkheadd: BULKHEAD_FAULT=%s: \"%.*s\" is not accepted; accepted: "
				"alloc:N, thread:N, dlopen:N, callback:N, N from 1, \"+\" after it "
				"for each from the N-th on, several separated by commas\n",
				text, (int)length, rest);
			return false;
		}
		rest += length;
		rest += *rest == ',';
	}
	return true;
}

static bool map_counts(const char *path)
{
	void *map = MAP_FAILED;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd >= 0 && ftruncate(fd, 0) == 0 && ftruncate(fd, sizeof(own_counts)) == 0)
		map = mmap(NULL, sizeof(own_counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		fprintf(stderr, "bulkheadd: BULKHEAD_FAULT_COUNT=%s: %s\n", path, strerror(errno));
	else
		counts = map; /* for the life of the process */
	if (fd >= 0)
		close(fd);
	return map != MAP_FAILED;
}

bool bh_fault_start(void)
{
	const char *choice = getenv("BULKHEAD_FAULT"), *path = getenv("BULKHEAD_FAULT_COUNT");

	memset(chosen, 0, sizeof(chosen));
	counts = own_counts;
	for (size_t kind = 0; kind < BH_FAULT_KINDS; kind++) {
		atomic_store_explicit(&own_counts[kind].seen, 0, memory_order_relaxed);
		atomic_store_explicit(&own_counts[kind].failed, 0, memory_order_relaxed);
	}
	return (!choice || read_choice(choice)) && (!path || map_counts(path));
}

bool bh_fault_hit(enum bh_fault_kind kind, const char *what, const void *caller)
{
	extern const char __executable_start; /* the linker's */
	uint64_t n = atomic_fetch_add_explicit(&counts[kind].seen, 1, memory_order_relaxed) + 1;
	int kept_errno = errno;
	char line[160];
	int length;

	if (chosen[kind].at == 0 ||
	    (chosen[kind].onwards ? n < chosen[kind].at : n != chosen[kind].at))
		return false;
	atomic_fetch_add_explicit(&counts[kind].failed, 1, memory_order_relaxed);
	/* One write, past the log: that may be what lacks memory. The address is addr2line's. */
	length = snprintf(line, sizeof(line), "fault: %s %llu fails: %s at 0x%zx\n",
			  kind_names[kind], (unsigned long long)n, what,
			  (size_t)((const char *)caller - &__executable_start));
	if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
		errno = kept_errno; /* nobody reads it; the fault happens all the same */
	errno = kept_errno;
	return true;
}
