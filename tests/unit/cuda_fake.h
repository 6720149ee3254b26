/* SPDX-License-Identifier: BSD-3-Clause */
/* cuda_fake - a host and a driver of our own, for the cuda plugin's unit suites: a table of functions that counts
 * what is alive, and streams whose work is over when the test says so. It is no device: nothing is computed.
 *
 * Thread: any, unless a function says otherwise. */
#ifndef BH_TESTS_UNIT_CUDA_FAKE_H
#define BH_TESTS_UNIT_CUDA_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "plugins/cuda/cuda.h"

/* ---- the driver ------------------------------------------------------------------------------------- */

struct fake_stream {
	uint64_t given, done; /* under fake.lock */
};

#define FAKE_TASKS 4096u

struct fake_outcome {
	uint32_t n; /* how often it has ended */
	bh_status status;
	char id[48];
	struct bh_buffer *buffer;
};

struct bh_task {
	uint64_t id;
	bh_status status; /* of task_fail() */
	char fail_id[48];
	char text[1024]; /* its facts */
	struct bh_value result;
	bool has_result;
};

struct bh_context {
	_Atomic int64_t metrics[BH_CUDA_METRICS];
	_Atomic uint32_t n_failed; /* report_failed() */
	char failed_id[48];
	_Atomic uint32_t n_completed;
	struct fake_outcome outcomes[FAKE_TASKS]; /* by task id; under fake.lock */
	_Atomic uint64_t next_task;
};

struct bh_buffer {
	struct bh_buffer_info info;
	_Atomic int n_refs; /* the test's, as Python's, is one */
	_Atomic(void *) slot;
	void (*release)(void *value, struct bh_buffer *buffer);
	_Atomic bool revoked, freed;
	bool busy; /* what buffer_revoke() finds */
	struct bh_buffer *next;
};

extern struct fake {
	pthread_mutex_t lock;
	struct bh_cuda_driver driver;
	struct bh_services services;
	struct bh_context ctx;
	_Atomic int sticky;  /* what every call returns from now on */
	_Atomic int once;    /* what the next call that can fail returns, once */
	_Atomic bool manual; /* streams are done when fake_finish() says so; else at once */
	_Atomic int64_t streams, events, modules, allocated, pins; /* alive */
	_Atomic int64_t memory;					   /* bytes that can be allocated */
	_Atomic uint32_t n_synchronized, n_trimmed, n_queries;
	struct bh_buffer *buffers; /* under lock */
} fake;

/* Fresh, with everything zero. Thread: the test's, alone. */
void fake_begin(void);
/* All that was made has gone; frees what the host still has. */
void fake_end(void);
/* All that a stream has been given so far is over. */
void fake_finish(CUstream stream);

/* A struct bh_cuda with reaper, flight, handles, memory and both threads "come". */
struct bh_cuda *fake_cuda(int64_t inline_ns);
/* As close() does it; true: nothing was left. */
bool fake_cuda_free(struct bh_cuda *cuda);

/* What a module is to the driver. */
void *fake_module(void);
/* Runs the op `name` of a table with `args`; the task is fresh. */
bh_status fake_run(struct bh_cuda *cuda, const struct bh_op *ops, uint32_t n_ops, const char *name,
		   const struct bh_value *args, struct bh_task *ret_task);

struct bh_task fake_task(void);
struct bh_buffer *fake_buffer(uint64_t length);
struct fake_outcome fake_outcome(uint64_t task_id);

#endif
