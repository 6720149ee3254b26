/* SPDX-License-Identifier: BSD-3-Clause */
/* cuda_host - a host of our own under ops of plugins/cuda: services that keep what they are told, a section on
 * device 0 of whatever driver there is (make check: the test double), and its threads.
 *
 * Thread: the test's own; an op that is pending ends on the flight's thread. */
#ifndef BH_TESTS_UNIT_CUDA_HOST_H
#define BH_TESTS_UNIT_CUDA_HOST_H

#include <stdbool.h>

#include "plugins/cuda/cuda.h"

struct bh_buffer {
	struct bh_buffer_info info;
};

/* One run of an op. */
struct bh_task {
	bool ended;
	bh_status status;
	struct bh_value value; /* a list's items are copied to `pairs` */
	double pairs[1024][2];
	uint64_t n_pairs;
	char error[2048]; /* "id key=value key=value", in full */
};

extern struct bh_cuda cuda_host;
/* Its copy of the table: a test may take out what only ops call. */
extern struct bh_cuda_driver cuda_host_driver;

/* NULL: the section is there. Else why not: there is no driver or no device. */
const char *cuda_host_start(void);
/* All works must be over; false: they are not. Outside a suite. */
bool cuda_host_stop(void);

/* Runs an op of the tables of math.c and module.c with as many arguments as it takes, and waits for its end. */
bh_status cuda_host_run(struct bh_task *task, const char *op, const struct bh_value *args);
/* As run, when it must succeed; the error is printed where it does not. */
void cuda_host_must(struct bh_task *task, const char *op, const struct bh_value *args);
/* It must fail with `status`, its error beginning as `error` does. */
void cuda_host_refused(const char *op, const struct bh_value *args, bh_status status,
		       const char *error);

/* Device memory of `n` elements of `bits` bits, C-contiguous, with what `from` holds (NULL: zeros). */
struct bh_buffer cuda_host_vector(const void *from, int64_t n, uint8_t bits);
void cuda_host_get(const struct bh_buffer *buffer, void *to);
void cuda_host_free(struct bh_buffer *buffer);

#define BUFFER(b)                                                                                  \
	{                                                                                          \
		.type = BH_TYPE_BUFFER, .as.buffer = &(b)                                          \
	}
#define FLOAT(x)                                                                                   \
	{                                                                                          \
		.type = BH_TYPE_FLOAT, .as.real = (x)                                              \
	}
#define INT(x)                                                                                     \
	{                                                                                          \
		.type = BH_TYPE_INT, .as.integer = (x)                                             \
	}
#define BOOL(x)                                                                                    \
	{                                                                                          \
		.type = BH_TYPE_BOOL, .as.boolean = (x)                                            \
	}
#define STR(x)                                                                                     \
	{                                                                                          \
		.type = BH_TYPE_STR, .as.text = {(x), sizeof(x) - 1 }                              \
	}
#define BYTES(at, n)                                                                               \
	{                                                                                          \
		.type = BH_TYPE_BYTES, .as.text = {(const char *)(at), (n) }                       \
	}
#define LIST(array)                                                                                \
	{                                                                                          \
		.type = BH_TYPE_LIST, .as.list = {(array), sizeof(array) / sizeof((array)[0]) }    \
	}
#define NOTHING                                                                                    \
	{                                                                                          \
		.type = BH_TYPE_NONE                                                               \
	}

#endif
