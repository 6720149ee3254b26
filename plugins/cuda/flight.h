/* SPDX-License-Identifier: BSD-3-Clause */
/* flight - work that has been given to the device and is not over: who awaits it, and how its end is noticed.
 *
 * Work is followed by an event on its stream. A progress thread asks the events and ends the work, so that a
 * kernel that runs holds no worker. It asks for the first work of each stream alone, as a stream goes in order.
 * It polls for a moment, then sleeps between two looks for a 16th of the time that the youngest of these has
 * been the first of its stream, never for more than a millisecond: a long kernel costs no CPU, a short one is
 * seen at once. The driver's own waits cannot be interrupted and are not used.
 *
 * Thread: add() on workers; done() on the progress thread, or on the worker within add(). One lock guards the
 *         list; it is held neither while the driver is called nor while done() runs.
 * Keeps:  SUP-4 (done() exactly once), SUP-10, EXIT-4 (what never ends is counted, not waited for). */
#ifndef BH_PLUGINS_CUDA_FLIGHT_H
#define BH_PLUGINS_CUDA_FLIGHT_H

#include "plugins/cuda/device.h"

struct bh_cuda_flight;

/* Embedded in what the op keeps; whoever calls done() does not touch it afterwards. */
struct bh_cuda_work {
	/* `result` CUDA_SUCCESS: all that was queued before is done. Else what the driver said: the context may
	 * be dead. Frees the work. Thread: a worker or the progress thread, with the context current. */
	void (*done)(struct bh_cuda_work *work, CUresult result);
	/* The flight's own. */
	CUevent event;
	CUstream stream;
	int64_t first_ns;		/* since when it has been the first of its stream */
	struct bh_cuda_work *next;	/* of the same stream */
	struct bh_cuda_work *last;	/* of a first one: the last of its stream */
	struct bh_cuda_work *neighbour; /* of a first one: the first of another stream */
};

struct bh_cuda_flight_options {
	int64_t inline_ns; /* how long add() itself looks for the end before it leaves it to the thread */
	int64_t spin_ns; /* how long the progress thread polls before it sleeps between looks */
	int64_t (*now_ns)(void *user);
	/* One work more, or one less, is under way. Any thread. */
	void (*counted)(void *user, int by);
	void *user;
};

bh_status bh_cuda_flight_new(const struct bh_cuda_device *device,
			     const struct bh_cuda_flight_options *options,
			     struct bh_cuda_flight **ret_flight);
/* Readies `work`, whose done is set, before anything is queued: what can fail without harm fails here, and then
 * nothing was kept. Ended by add() or drop(). */
bh_status bh_cuda_flight_begin(struct bh_cuda_flight *flight, struct bh_cuda_work *work,
			       struct bh_cuda_fault *fault);
void bh_cuda_flight_drop(struct bh_cuda_flight *flight, struct bh_cuda_work *work);
/* Follows what the caller has queued on `stream`. done() is called once, perhaps before this returns; also when
 * the driver refuses to, which it does only for a context that has died. */
void bh_cuda_flight_add(struct bh_cuda_flight *flight, struct bh_cuda_work *work, CUstream stream);
/* The progress thread: until `stop_fd` is readable. */
void bh_cuda_flight_run(struct bh_cuda_flight *flight, int stop_fd);
/* The context has died: each work ends with `result`, without asking the driver. Any thread. */
void bh_cuda_flight_fail(struct bh_cuda_flight *flight, CUresult result);
/* After all threads. Ends what is over by now; returns how many works never ended: their memory, and the
 * context, must stay. The flight is freed only when it returns 0. */
uint32_t bh_cuda_flight_free(struct bh_cuda_flight *flight);

#endif
