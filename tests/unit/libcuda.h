/* SPDX-License-Identifier: BSD-3-Clause */
/* libcuda - the driver that a suite speaks to: the double, or where BH_TEST_LIBCUDA names one, a real driver.
 *
 * Thread: the main one opens it; the table may be used by any. */
#ifndef BH_TESTS_UNIT_LIBCUDA_H
#define BH_TESTS_UNIT_LIBCUDA_H

#include <pthread.h>
#include <stdbool.h>

#include "plugins/cuda/driver.h"

#define LIBCUDA_MORE(GET)                                                                          \
	GET(cuDeviceGetByPCIBusId, 4010)                                                           \
	GET(cuDeviceCanAccessPeer, 4000)                                                           \
	GET(cuCtxGetDevice, 2000)                                                                  \
	GET(cuCtxEnablePeerAccess, 4000)                                                           \
	GET(cuCtxPushCurrent, 4000)                                                                \
	GET(cuCtxPopCurrent, 4000)                                                                 \
	GET(cuStreamSynchronize, 2000)                                                             \
	GET(cuStreamGetPriority, 5050)                                                             \
	GET(cuEventSynchronize, 2000)                                                              \
	GET(cuEventElapsedTime, 2000)                                                              \
	GET(cuLaunchHostFunc, 10000)                                                               \
	GET(cuMemHostAlloc, 2020)                                                                  \
	GET(cuMemFreeHost, 2000)                                                                   \
	GET(cuMemPoolGetAttribute, 11020)                                                          \
	GET(cuMemcpyHtoD, 3020)                                                                    \
	GET(cuMemcpyDtoH, 3020)

#define LIBCUDA_MEMBER(name, version) PFN_##name##_v##version name##_;
struct libcuda {
	void *library;
	PFN_cuGetProcAddress_v12000 get;
	BH_CUDA_FUNCTIONS(LIBCUDA_MEMBER, LIBCUDA_MEMBER)
	LIBCUDA_MORE(LIBCUDA_MEMBER)
};
#undef LIBCUDA_MEMBER
extern struct libcuda cuda;

/* Fills `cuda` as far as the driver has it. False: no library, `*ret_why` says which was looked for. */
bool libcuda_load(const char **ret_why);
/* The library is the double. */
bool libcuda_is_double(void);
/* cuInit, and device 0's primary context current on this thread. Once; the context stays. NULL: all is well, else
 * what failed. */
const char *libcuda_start(void);
/* Runs this program again as `--case=NAME`, with the environment "NAME=value" … up to NULL on top of its own; its exit
 * status, 256 and the signal that ended it, or -1. */
int libcuda_child(const char *name, const char *const *environment);

/* A thing on a stream that does not end before it is let go: the stream's work behind it waits. */
struct libcuda_gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool entered, open;
};
void libcuda_gate_close(struct libcuda_gate *gate, CUstream stream);
void libcuda_gate_open(struct libcuda_gate *gate);

/* PTX that any driver of CUDA 12 compiles: add_one(u32 *data, u32 n); store(u32 *where, u32 value); spin(u64 ns);
 * empty(); odd(s8, {24 bytes, align 8}, s16, u64, {16 bytes, align 16}, u64). */
extern const char libcuda_ptx[];

#define OK(call) CU_ASSERT_EQUAL((call), CUDA_SUCCESS)
#define OK_FATAL(call) CU_ASSERT_EQUAL_FATAL((call), CUDA_SUCCESS)
#define GIVES(code, call) CU_ASSERT_EQUAL((call), (code))

#endif
