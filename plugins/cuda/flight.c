/* SPDX-License-Identifier: BSD-3-Clause */
/* flight - follows works by events, one queue a stream, and looks at the first of each.
 *
 * Thread: see the header. `firsts` and what hangs on it is the progress thread's until that has ended, then of
 *         whoever frees the flight.
 * Fails:  cuEventCreate, in begin().
 * Keeps:  SUP-4, EXIT-4, H11: once the context is dead no work is reported done. */
#include "config.h"

#include "plugins/cuda/flight.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_US INT64_C(1000)
#define NAP_MAX_NS INT64_C(1000000)
#define NAP_SHARE 16
#define SPARE_MAX 256u /* events kept for later works */
#define LOOKS 64u      /* while polling, between two looks at the descriptors */
#define SLACK_NS 1000  /* how late the kernel may wake the progress thread; its preset is 50 us */

struct bh_cuda_flight {
	const struct bh_cuda_device *device;   /* I */
	struct bh_cuda_flight_options options; /* I */
	int wake_fd;			       /* I */
	_Atomic uint64_t n_works;	       /* A: relaxed: added and not ended */
	_Atomic int dead;		       /* A: relaxed: CUresult; the driver says the same */

	pthread_mutex_t lock;			/* a leaf */
	struct bh_cuda_work *incoming, *newest; /* M: added, not seen by the progress thread */
	bool asleep;				/* M: the progress thread has to be woken */
	CUevent spare[SPARE_MAX];		/* M */
	uint32_t n_spare;			/* M */
	struct bh_cuda_work *firsts;		/* T: the first work of each stream */
};

static int64_t now(const struct bh_cuda_flight *flight)
{
	return flight->options.now_ns(flight->options.user);
}

static void wake(struct bh_cuda_flight *flight)
{
	const uint64_t one = 1;
	/* It can fail only when the counter is full, and then the reader has been woken. */
	ssize_t n = write(flight->wake_fd, &one, sizeof(one));

	(void)n;
}

static CUresult dead(const struct bh_cuda_flight *flight)
{
	return (CUresult)atomic_load_explicit(&flight->dead, memory_order_relaxed);
}

/* ---- one work ----------------------------------------------------------------------------------- */

static void give_back(struct bh_cuda_flight *flight, CUevent event)
{
	bool kept;

	pthread_mutex_lock(&flight->lock);
	kept = flight->n_spare < SPARE_MAX;
	if (kept)
		flight->spare[flight->n_spare++] = event;
	pthread_mutex_unlock(&flight->lock);
	if (!kept)
		(void)flight->device->driver->cuEventDestroy_(event);
}

bh_status bh_cuda_flight_begin(struct bh_cuda_flight *flight, struct bh_cuda_work *work,
			       struct bh_cuda_fault *fault)
{
	CUresult result = dead(flight);
	CUevent event = NULL;

	assert(work->done);
	pthread_mutex_lock(&flight->lock);
	if (flight->n_spare > 0)
		event = flight->spare[--flight->n_spare];
	pthread_mutex_unlock(&flight->lock);
	if (!event && result == CUDA_SUCCESS)
		result = flight->device->driver->cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING);
	if (!event)
		return bh_cuda_result(flight->device->driver, result, "cuEventCreate", fault);
	work->event = event;
	work->stream = NULL;
	work->next = work->last = work->neighbour = NULL;
	return 0;
}

void bh_cuda_flight_drop(struct bh_cuda_flight *flight, struct bh_cuda_work *work)
{
	give_back(flight, work->event);
}

/* `work` is not touched any more. */
static void end(struct bh_cuda_flight *flight, struct bh_cuda_work *work, CUresult result)
{
	give_back(flight, work->event);
	atomic_fetch_sub_explicit(&flight->n_works, 1, memory_order_relaxed);
	flight->options.counted(flight->options.user, -1);
	work->done(work, result);
}

/* CUDA_ERROR_NOT_READY: still on its way. */
static CUresult ask(const struct bh_cuda_flight *flight, const struct bh_cuda_work *work)
{
	CUresult result = dead(flight);

	if (result == CUDA_SUCCESS)
		result = flight->device->driver->cuEventQuery_(work->event);
	/* A capture of a graph elsewhere forbids the question: that tells nothing of the work. */
	return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? CUDA_ERROR_NOT_READY : result;
}

/* Looks for the end of the only work that is under way: a worker that waits for a few microseconds is back
 * before another thread would have been woken. */
static bool ended_at_once(struct bh_cuda_flight *flight, struct bh_cuda_work *work)
{
	int64_t until = now(flight) + flight->options.inline_ns;
	CUresult result;

	do {
		result = ask(flight, work);
		if (result != CUDA_ERROR_NOT_READY) {
			end(flight, work, result);
			return true;
		}
	} while (now(flight) < until);
	return false;
}

void bh_cuda_flight_add(struct bh_cuda_flight *flight, struct bh_cuda_work *work, CUstream stream)
{
	uint64_t others = atomic_fetch_add_explicit(&flight->n_works, 1, memory_order_relaxed);
	CUresult result = dead(flight);
	bool asleep;

	flight->options.counted(flight->options.user, 1);
	work->stream = stream;
	if (result == CUDA_SUCCESS)
		result = flight->device->driver->cuEventRecord_(work->event, stream);
	if (result != CUDA_SUCCESS) {
		end(flight, work, result);
		return;
	}
	if (others == 0 && flight->options.inline_ns > 0 && ended_at_once(flight, work))
		return;
	pthread_mutex_lock(&flight->lock);
	if (flight->incoming)
		flight->newest->next = work;
	else
		flight->incoming = work;
	flight->newest = work;
	asleep = flight->asleep;
	flight->asleep = false;
	pthread_mutex_unlock(&flight->lock);
	if (asleep)
		wake(flight);
}

void bh_cuda_flight_fail(struct bh_cuda_flight *flight, CUresult result)
{
	int none = CUDA_SUCCESS;

	(void)atomic_compare_exchange_strong_explicit(&flight->dead, &none, (int)result,
						      memory_order_relaxed, memory_order_relaxed);
	wake(flight);
}

/* ---- the progress thread ------------------------------------------------------------------------- */

static struct bh_cuda_work *first_of(const struct bh_cuda_flight *flight, CUstream stream)
{
	struct bh_cuda_work *first = flight->firsts;

	while (first && first->stream != stream)
		first = first->neighbour;
	return first;
}

static void take_incoming(struct bh_cuda_flight *flight)
{
	struct bh_cuda_work *work, *next;

	pthread_mutex_lock(&flight->lock);
	work = flight->incoming;
	flight->incoming = flight->newest = NULL;
	pthread_mutex_unlock(&flight->lock);
	for (; work; work = next) {
		struct bh_cuda_work *first = first_of(flight, work->stream);

		next = work->next;
		work->next = NULL;
		if (first) {
			first->last->next = work;
			first->last = work;
			continue;
		}
		work->last = work;
		work->first_ns = now(flight);
		work->neighbour = flight->firsts;
		flight->firsts = work;
	}
}

/* Ends what is over at the head of the stream whose first work `*at` is; false: the stream has no more. */
static bool look_at_stream(struct bh_cuda_flight *flight, struct bh_cuda_work **at)
{
	for (;;) {
		struct bh_cuda_work *first = *at, *second = first->next;
		CUresult result = ask(flight, first);

		if (result == CUDA_ERROR_NOT_READY)
			return true;
		if (!second) {
			*at = first->neighbour;
			end(flight, first, result);
			return false;
		}
		second->neighbour = first->neighbour;
		second->last = first->last;
		second->first_ns = now(flight);
		*at = second;
		end(flight, first, result);
	}
}

static void look(struct bh_cuda_flight *flight)
{
	struct bh_cuda_work **at = &flight->firsts;

	take_incoming(flight);
	while (*at)
		if (look_at_stream(flight, at))
			at = &(*at)->neighbour;
}

/* Until the next look: 0: at once, -1: until something is added. */
static int64_t nap_of(const struct bh_cuda_flight *flight)
{
	int64_t youngest = INT64_MIN, age, nap;

	if (!flight->firsts)
		return -1;
	for (const struct bh_cuda_work *first = flight->firsts; first; first = first->neighbour)
		if (first->first_ns > youngest)
			youngest = first->first_ns;
	age = now(flight) - youngest;
	nap = age / NAP_SHARE;
	if (age < flight->options.spin_ns || nap < NS_PER_US)
		return 0;
	return nap < NAP_MAX_NS ? nap : NAP_MAX_NS;
}

/* Sleeps for `ns`, or until something is added; less than 0: for ever. True: `stop_fd` is readable. */
static bool nap(struct bh_cuda_flight *flight, int stop_fd, int64_t ns)
{
	struct timespec timeout = { .tv_nsec = (long)ns };
	struct pollfd fds[] = {
		{ .fd = stop_fd, .events = POLLIN },
		{ .fd = flight->wake_fd, .events = POLLIN },
	};
	uint64_t count;

	pthread_mutex_lock(&flight->lock);
	flight->asleep = !flight->incoming && ns != 0;
	if (!flight->asleep)
		ns = timeout.tv_nsec = 0;
	pthread_mutex_unlock(&flight->lock);
	(void)ppoll(fds, 2, ns < 0 ? NULL : &timeout, NULL);
	if (ns != 0) {
		pthread_mutex_lock(&flight->lock);
		flight->asleep = false;
		pthread_mutex_unlock(&flight->lock);
	}
	if (fds[1].revents && read(flight->wake_fd, &count, sizeof(count)) < 0)
		assert(errno == EAGAIN);
	return fds[0].revents != 0;
}

void bh_cuda_flight_run(struct bh_cuda_flight *flight, int stop_fd)
{
	unsigned n_looks = 0;

	(void)prctl(PR_SET_TIMERSLACK, SLACK_NS); /* of this thread; without it naps are late */
	for (;;) {
		int64_t ns;

		look(flight);
		ns = nap_of(flight);
		if (ns == 0 && ++n_looks % LOOKS != 0)
			continue;
		if (nap(flight, stop_fd, ns)) {
			look(flight); /* what has ended meanwhile, or what a fault has ended */
			return;
		}
	}
}

/* ---- the whole ------------------------------------------------------------------------------------ */

bh_status bh_cuda_flight_new(const struct bh_cuda_device *device,
			     const struct bh_cuda_flight_options *options,
			     struct bh_cuda_flight **ret_flight)
{
	struct bh_cuda_flight *flight = calloc(1, sizeof(*flight));

	if (!flight)
		return -ENOMEM;
	flight->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (flight->wake_fd < 0) {
		int number = errno;

		free(flight);
		return -number;
	}
	flight->device = device;
	flight->options = *options;
	pthread_mutex_init(&flight->lock, NULL);
	*ret_flight = flight;
	return 0;
}

uint32_t bh_cuda_flight_free(struct bh_cuda_flight *flight)
{
	uint64_t n;

	if (!flight)
		return 0;
	look(flight);
	n = atomic_load_explicit(&flight->n_works, memory_order_relaxed);
	if (n > 0)
		return (uint32_t)n;
	if (dead(flight) == CUDA_SUCCESS)
		while (flight->n_spare > 0)
			(void)flight->device->driver->cuEventDestroy_(
				flight->spare[--flight->n_spare]);
	close(flight->wake_fd);
	pthread_mutex_destroy(&flight->lock);
	free(flight);
	return 0;
}
