/* SPDX-License-Identifier: BSD-3-Clause */
/* driver - the CUDA driver API as a table that is filled at run time.
 *
 * The plugin has no link dependency on the driver (PLG-5): libcuda.so.1 is opened by bh_cuda_driver_get(), and
 * each function is asked for with the version whose prototype it is called by. A machine without a driver
 * loads the plugin all the same and is told what is missing.
 *
 * The library is opened once a process, however many sections of the manifest use it, and never closed: its
 * threads and exit handlers do not come back from that.
 *
 * Thread: any, once it has been got. After a fork the child has no driver: bh_cuda_driver_usable() is false
 *         there, and nothing may be called (H10). */
#ifndef BH_PLUGINS_CUDA_DRIVER_H
#define BH_PLUGINS_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cudaTypedefs.h>

#include <bulkhead/plugin.h>

/* What the plugin cannot do without: drivers have all of it from this version on. */
#define BH_CUDA_DRIVER_MIN 12000

/* NEED(name, version of its prototype) and MAY: pointers that may be NULL. */
#define BH_CUDA_FUNCTIONS(NEED, MAY)                                                               \
	NEED(cuInit, 2000)                                                                         \
	NEED(cuDriverGetVersion, 2020)                                                             \
	NEED(cuGetErrorName, 6000)                                                                 \
	NEED(cuGetErrorString, 6000)                                                               \
	NEED(cuDeviceGetCount, 2000)                                                               \
	NEED(cuDeviceGet, 2000)                                                                    \
	NEED(cuDeviceGetName, 2000)                                                                \
	NEED(cuDeviceGetUuid, 11040)                                                               \
	NEED(cuDeviceGetPCIBusId, 4010)                                                            \
	NEED(cuDeviceGetAttribute, 2000)                                                           \
	NEED(cuDeviceTotalMem, 3020)                                                               \
	NEED(cuDevicePrimaryCtxRetain, 7000)                                                       \
	NEED(cuDevicePrimaryCtxRelease, 11000)                                                     \
	NEED(cuCtxSetCurrent, 4000)                                                                \
	NEED(cuCtxGetCurrent, 4000)                                                                \
	NEED(cuCtxSynchronize, 2000)                                                               \
	NEED(cuCtxGetStreamPriorityRange, 5050)                                                    \
	NEED(cuMemGetInfo, 3020)                                                                   \
	NEED(cuMemAlloc, 3020)                                                                     \
	NEED(cuMemFree, 3020)                                                                      \
	NEED(cuMemHostRegister, 6050)                                                              \
	NEED(cuMemHostUnregister, 4000)                                                            \
	NEED(cuMemcpyAsync, 4000)                                                                  \
	NEED(cuMemcpyHtoDAsync, 3020)                                                              \
	NEED(cuMemcpyDtoHAsync, 3020)                                                              \
	NEED(cuMemcpyDtoDAsync, 3020)                                                              \
	NEED(cuMemsetD8Async, 3020)                                                                \
	NEED(cuStreamCreateWithPriority, 5050)                                                     \
	NEED(cuStreamDestroy, 4000)                                                                \
	NEED(cuStreamWaitEvent, 3020)                                                              \
	NEED(cuStreamQuery, 2000)                                                                  \
	NEED(cuEventCreate, 2000)                                                                  \
	NEED(cuEventDestroy, 4000)                                                                 \
	NEED(cuEventRecord, 2000)                                                                  \
	NEED(cuEventQuery, 2000)                                                                   \
	NEED(cuModuleLoadDataEx, 2010)                                                             \
	NEED(cuModuleUnload, 2000)                                                                 \
	NEED(cuModuleGetFunction, 2000)                                                            \
	NEED(cuFuncGetAttribute, 2020)                                                             \
	NEED(cuFuncSetAttribute, 9000)                                                             \
	NEED(cuLaunchKernel, 4000)                                                                 \
	NEED(cuPointerGetAttributes, 7000)                                                         \
	MAY(cuMemPoolCreate, 11020)                                                                \
	MAY(cuMemPoolDestroy, 11020)                                                               \
	MAY(cuMemPoolSetAttribute, 11020)                                                          \
	MAY(cuMemPoolTrimTo, 11020)                                                                \
	MAY(cuMemAllocFromPoolAsync, 11020)                                                        \
	MAY(cuMemFreeAsync, 11020)                                                                 \
	MAY(cuFuncGetParamInfo, 12040)                                                             \
	MAY(cuThreadExchangeStreamCaptureMode, 10010)

/* cuda.h renames some of these names, so that a member would be called cuMemAlloc_v2: hence the `_`. */
#define BH_CUDA_MEMBER(name, version) PFN_##name##_v##version name##_;
struct bh_cuda_driver {
	int version; /* 13000 is CUDA 13.0 */
	BH_CUDA_FUNCTIONS(BH_CUDA_MEMBER, BH_CUDA_MEMBER)
};
#undef BH_CUDA_MEMBER

/* What went wrong: `id` and text for an error's facts. */
struct bh_cuda_fault {
	bh_status status;
	CUresult result; /* CUDA_SUCCESS: not the driver's word */
	char id[32];	 /* "cuda.memory" */
	char text[320];
	char name[48]; /* the driver's: "CUDA_ERROR_ILLEGAL_ADDRESS"; "" */
};

/* The process's one table, with cuInit() done. Owned by this file, valid for ever. -ENODEV: no driver, or no
 * device (id cuda.no_driver, cuda.no_device); -ENOSYS: the driver is too old (cuda.driver_old, the text says
 * which is there and which is needed); both say what to do. Thread: a supervisor; may block for seconds. */
bh_status bh_cuda_driver_get(const struct bh_cuda_driver **ret_driver, struct bh_cuda_fault *fault);
/* False in a forked child. Wait-free. */
bool bh_cuda_driver_usable(void);

/* Fills `fault` as printf does; returns `status`. */
bh_status bh_cuda_fault(struct bh_cuda_fault *fault, bh_status status, const char *id,
			const char *format, ...) __attribute__((format(printf, 4, 5)));
/* What `result` of the call named `what` means: its errno, with the driver's name and words in `fault`. 0 for
 * CUDA_SUCCESS. -ENOMEM: out of memory; -ESHUTDOWN: the driver is going down with the process; else -EIO. */
bh_status bh_cuda_result(const struct bh_cuda_driver *driver, CUresult result, const char *what,
			 struct bh_cuda_fault *fault);
/* The context is gone for good: illegal address, launch failure, ECC and their kind. */
bool bh_cuda_is_sticky(CUresult result);

#endif
