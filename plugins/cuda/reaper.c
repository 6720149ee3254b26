/* SPDX-License-Identifier: BSD-3-Clause */
/* reaper - a stack that anybody pushes to without a lock, and a descriptor that says that there is something.
 *
 * Thread: see the header. */
#include "config.h"

#include "plugins/cuda/reaper.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* How long the end waits for a push() that has begun: a few instructions, bounded all the same. */
#define PUSH_WAIT_MS 1000u

struct bh_cuda_reaper {
	int wake_fd; /* I */
	_Atomic(struct bh_cuda_reap *) pushed;
	_Atomic uint32_t n_pushing;
};

bh_status bh_cuda_reaper_new(struct bh_cuda_reaper **ret_reaper)
{
	struct bh_cuda_reaper *reaper = calloc(1, sizeof(*reaper));

	if (!reaper)
		return -ENOMEM;
	reaper->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (reaper->wake_fd < 0) {
		int number = errno;

		free(reaper);
		return -number;
	}
	*ret_reaper = reaper;
	return 0;
}

bool bh_cuda_reaper_free(struct bh_cuda_reaper *reaper)
{
	const struct timespec nap = { .tv_nsec = 100000 };

	if (!reaper)
		return true;
	for (uint32_t n = 0; n < PUSH_WAIT_MS * 10; n++) {
		if (atomic_load_explicit(&reaper->n_pushing, memory_order_acquire) == 0) {
			close(reaper->wake_fd);
			free(reaper);
			return true;
		}
		nanosleep(&nap, NULL);
	}
	return false;
}

void bh_cuda_reaper_push(struct bh_cuda_reaper *reaper, struct bh_cuda_reap *reap)
{
	const uint64_t one = 1;
	ssize_t n;

	atomic_fetch_add_explicit(&reaper->n_pushing, 1, memory_order_relaxed);
	reap->next = atomic_load_explicit(&reaper->pushed, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&reaper->pushed, &reap->next, reap,
						      memory_order_release, memory_order_relaxed))
		;
	/* `reap` may be gone by now, but the reaper is not. It can fail only when the counter is full, and
	 * then the reader has been woken. */
	n = write(reaper->wake_fd, &one, sizeof(one));
	(void)n;
	atomic_fetch_sub_explicit(&reaper->n_pushing, 1, memory_order_release);
}

int bh_cuda_reaper_descriptor(const struct bh_cuda_reaper *reaper)
{
	return reaper->wake_fd;
}

void bh_cuda_reaper_run(struct bh_cuda_reaper *reaper)
{
	struct bh_cuda_reap *reap, *first = NULL;
	uint64_t count;

	/* Read first: what comes behind it is seen now, or wakes again. */
	if (read(reaper->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
		return;
	reap = atomic_exchange_explicit(&reaper->pushed, NULL, memory_order_acquire);
	while (reap) { /* oldest first */
		struct bh_cuda_reap *next = reap->next;

		reap->next = first;
		first = reap;
		reap = next;
	}
	while (first) {
		reap = first;
		first = reap->next;
		reap->reap(reap);
	}
}
