/* SPDX-License-Identifier: BSD-3-Clause */
/* table - cuGetProcAddress, and the names of errors. */
#include "config.h"

#include "tests/fakecuda/fake.h"

#include <ctype.h>
#include <string.h>

/* cuda.h gives some of these names to their newer versions. */
#undef cuCtxGetDevice
#undef cuCtxSynchronize
#undef cuDeviceGetUuid
#undef cuEventElapsedTime
#undef cuEventRecord
#undef cuLaunchHostFunc
#undef cuLaunchKernel
#undef cuMemcpyAsync
#undef cuMemsetD8Async
#undef cuStreamGetPriority
#undef cuStreamQuery
#undef cuStreamSynchronize
#undef cuStreamWaitEvent
#undef cuMemAllocFromPoolAsync
#undef cuMemFreeAsync

/* ROW(base name, version that brought it, symbol); of several versions of one the newest is last. */
#define FUNCTIONS                                                                                  \
	ROW("cuCtxEnablePeerAccess", 4000, cuCtxEnablePeerAccess)                                  \
	ROW("cuCtxGetCurrent", 4000, cuCtxGetCurrent)                                              \
	ROW("cuCtxGetDevice", 2000, cuCtxGetDevice)                                                \
	ROW("cuCtxGetDevice", 13000, cuCtxGetDevice_v2)                                            \
	ROW("cuCtxGetStreamPriorityRange", 5050, cuCtxGetStreamPriorityRange)                      \
	ROW("cuCtxPopCurrent", 4000, cuCtxPopCurrent_v2)                                           \
	ROW("cuCtxPushCurrent", 4000, cuCtxPushCurrent_v2)                                         \
	ROW("cuCtxSetCurrent", 4000, cuCtxSetCurrent)                                              \
	ROW("cuCtxSynchronize", 2000, cuCtxSynchronize)                                            \
	ROW("cuCtxSynchronize", 13000, cuCtxSynchronize_v2)                                        \
	ROW("cuDeviceCanAccessPeer", 4000, cuDeviceCanAccessPeer)                                  \
	ROW("cuDeviceGet", 2000, cuDeviceGet)                                                      \
	ROW("cuDeviceGetAttribute", 2000, cuDeviceGetAttribute)                                    \
	ROW("cuDeviceGetByPCIBusId", 4010, cuDeviceGetByPCIBusId)                                  \
	ROW("cuDeviceGetCount", 2000, cuDeviceGetCount)                                            \
	ROW("cuDeviceGetName", 2000, cuDeviceGetName)                                              \
	ROW("cuDeviceGetPCIBusId", 4010, cuDeviceGetPCIBusId)                                      \
	ROW("cuDeviceGetUuid", 9020, cuDeviceGetUuid)                                              \
	ROW("cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2)                                          \
	ROW("cuDevicePrimaryCtxRelease", 11000, cuDevicePrimaryCtxRelease_v2)                      \
	ROW("cuDevicePrimaryCtxRetain", 7000, cuDevicePrimaryCtxRetain)                            \
	ROW("cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2)                                         \
	ROW("cuDriverGetVersion", 2020, cuDriverGetVersion)                                        \
	ROW("cuEventCreate", 2000, cuEventCreate)                                                  \
	ROW("cuEventDestroy", 4000, cuEventDestroy_v2)                                             \
	ROW("cuEventElapsedTime", 2000, cuEventElapsedTime)                                        \
	ROW("cuEventElapsedTime", 12080, cuEventElapsedTime_v2)                                    \
	ROW("cuEventQuery", 2000, cuEventQuery)                                                    \
	ROW("cuEventRecord", 2000, cuEventRecord)                                                  \
	ROW("cuEventSynchronize", 2000, cuEventSynchronize)                                        \
	ROW("cuFuncGetAttribute", 2020, cuFuncGetAttribute)                                        \
	ROW("cuFuncGetParamInfo", 12040, cuFuncGetParamInfo)                                       \
	ROW("cuThreadExchangeStreamCaptureMode", 10010, cuThreadExchangeStreamCaptureMode)         \
	ROW("cuFuncSetAttribute", 9000, cuFuncSetAttribute)                                        \
	ROW("cuGetErrorName", 6000, cuGetErrorName)                                                \
	ROW("cuGetErrorString", 6000, cuGetErrorString)                                            \
	ROW("cuGetProcAddress", 12000, cuGetProcAddress_v2)                                        \
	ROW("cuInit", 2000, cuInit)                                                                \
	ROW("cuLaunchHostFunc", 10000, cuLaunchHostFunc)                                           \
	ROW("cuLaunchKernel", 4000, cuLaunchKernel)                                                \
	ROW("cuMemAlloc", 3020, cuMemAlloc_v2)                                                     \
	ROW("cuMemAllocFromPoolAsync", 11020, cuMemAllocFromPoolAsync)                             \
	ROW("cuMemFree", 3020, cuMemFree_v2)                                                       \
	ROW("cuMemFreeAsync", 11020, cuMemFreeAsync)                                               \
	ROW("cuMemFreeHost", 2000, cuMemFreeHost)                                                  \
	ROW("cuMemGetInfo", 3020, cuMemGetInfo_v2)                                                 \
	ROW("cuMemHostAlloc", 2020, cuMemHostAlloc)                                                \
	ROW("cuMemHostRegister", 6050, cuMemHostRegister_v2)                                       \
	ROW("cuMemHostUnregister", 4000, cuMemHostUnregister)                                      \
	ROW("cuMemPoolCreate", 11020, cuMemPoolCreate)                                             \
	ROW("cuMemPoolDestroy", 11020, cuMemPoolDestroy)                                           \
	ROW("cuMemPoolGetAttribute", 11020, cuMemPoolGetAttribute)                                 \
	ROW("cuMemPoolSetAttribute", 11020, cuMemPoolSetAttribute)                                 \
	ROW("cuMemPoolTrimTo", 11020, cuMemPoolTrimTo)                                             \
	ROW("cuMemcpyAsync", 4000, cuMemcpyAsync)                                                  \
	ROW("cuMemcpyDtoDAsync", 3020, cuMemcpyDtoDAsync_v2)                                       \
	ROW("cuMemcpyDtoH", 3020, cuMemcpyDtoH_v2)                                                 \
	ROW("cuMemcpyDtoHAsync", 3020, cuMemcpyDtoHAsync_v2)                                       \
	ROW("cuMemcpyHtoD", 3020, cuMemcpyHtoD_v2)                                                 \
	ROW("cuMemcpyHtoDAsync", 3020, cuMemcpyHtoDAsync_v2)                                       \
	ROW("cuMemsetD8Async", 3020, cuMemsetD8Async)                                              \
	ROW("cuModuleGetFunction", 2000, cuModuleGetFunction)                                      \
	ROW("cuModuleLoadData", 2000, cuModuleLoadData)                                            \
	ROW("cuModuleLoadDataEx", 2010, cuModuleLoadDataEx)                                        \
	ROW("cuModuleUnload", 2000, cuModuleUnload)                                                \
	ROW("cuPointerGetAttributes", 7000, cuPointerGetAttributes)                                \
	ROW("cuStreamCreate", 2000, cuStreamCreate)                                                \
	ROW("cuStreamCreateWithPriority", 5050, cuStreamCreateWithPriority)                        \
	ROW("cuStreamDestroy", 4000, cuStreamDestroy_v2)                                           \
	ROW("cuStreamGetPriority", 5050, cuStreamGetPriority)                                      \
	ROW("cuStreamQuery", 2000, cuStreamQuery)                                                  \
	ROW("cuStreamSynchronize", 2000, cuStreamSynchronize)                                      \
	ROW("cuStreamWaitEvent", 3020, cuStreamWaitEvent)

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx);
CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx);
CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent from, CUevent to);
CUresult CUDAAPI cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to);

struct row {
	const char *base;
	int version;
	void *symbol;
};
#define ROW(base, version, symbol) { base, version, (void *)symbol },
static const struct row functions[] = { FUNCTIONS };
#undef ROW
#define N_FUNCTIONS (sizeof(functions) / sizeof(functions[0]))

FAKE_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **function, int version,
						 cuuint64_t flags,
						 CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;

	FAKE_BEGIN(cuGetProcAddress, FAKE_NOTHING);
	if (!name || !function || version > fake.version ||
	    flags > (CU_GET_PROC_ADDRESS_LEGACY_STREAM |
		     CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*function = NULL;
	for (size_t i = 0; i < N_FUNCTIONS; i++) {
		if (strcmp(functions[i].base, name) != 0 || functions[i].version > fake.version)
			continue;
		if (functions[i].version > version) {
			if (!*function)
				found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
			continue;
		}
		*function = functions[i].symbol;
		found = CU_GET_PROC_ADDRESS_SUCCESS;
	}
	if (status)
		*status = found;
	FAKE_END(CUDA_SUCCESS); /* also when there is none: *function says so */
}

#define ERRORS                                                                                     \
	ROW(CUDA_SUCCESS)                                                                          \
	ROW(CUDA_ERROR_INVALID_VALUE)                                                              \
	ROW(CUDA_ERROR_OUT_OF_MEMORY)                                                              \
	ROW(CUDA_ERROR_NOT_INITIALIZED)                                                            \
	ROW(CUDA_ERROR_DEINITIALIZED)                                                              \
	ROW(CUDA_ERROR_PROFILER_DISABLED)                                                          \
	ROW(CUDA_ERROR_PROFILER_NOT_INITIALIZED)                                                   \
	ROW(CUDA_ERROR_PROFILER_ALREADY_STARTED)                                                   \
	ROW(CUDA_ERROR_PROFILER_ALREADY_STOPPED)                                                   \
	ROW(CUDA_ERROR_STUB_LIBRARY)                                                               \
	ROW(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)                                                 \
	ROW(CUDA_ERROR_DEVICE_UNAVAILABLE)                                                         \
	ROW(CUDA_ERROR_NO_DEVICE)                                                                  \
	ROW(CUDA_ERROR_INVALID_DEVICE)                                                             \
	ROW(CUDA_ERROR_DEVICE_NOT_LICENSED)                                                        \
	ROW(CUDA_ERROR_INVALID_IMAGE)                                                              \
	ROW(CUDA_ERROR_INVALID_CONTEXT)                                                            \
	ROW(CUDA_ERROR_CONTEXT_ALREADY_CURRENT)                                                    \
	ROW(CUDA_ERROR_MAP_FAILED)                                                                 \
	ROW(CUDA_ERROR_UNMAP_FAILED)                                                               \
	ROW(CUDA_ERROR_ARRAY_IS_MAPPED)                                                            \
	ROW(CUDA_ERROR_ALREADY_MAPPED)                                                             \
	ROW(CUDA_ERROR_NO_BINARY_FOR_GPU)                                                          \
	ROW(CUDA_ERROR_ALREADY_ACQUIRED)                                                           \
	ROW(CUDA_ERROR_NOT_MAPPED)                                                                 \
	ROW(CUDA_ERROR_NOT_MAPPED_AS_ARRAY)                                                        \
	ROW(CUDA_ERROR_NOT_MAPPED_AS_POINTER)                                                      \
	ROW(CUDA_ERROR_ECC_UNCORRECTABLE)                                                          \
	ROW(CUDA_ERROR_UNSUPPORTED_LIMIT)                                                          \
	ROW(CUDA_ERROR_CONTEXT_ALREADY_IN_USE)                                                     \
	ROW(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)                                                    \
	ROW(CUDA_ERROR_INVALID_PTX)                                                                \
	ROW(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT)                                                   \
	ROW(CUDA_ERROR_NVLINK_UNCORRECTABLE)                                                       \
	ROW(CUDA_ERROR_JIT_COMPILER_NOT_FOUND)                                                     \
	ROW(CUDA_ERROR_UNSUPPORTED_PTX_VERSION)                                                    \
	ROW(CUDA_ERROR_JIT_COMPILATION_DISABLED)                                                   \
	ROW(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)                                                  \
	ROW(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC)                                                   \
	ROW(CUDA_ERROR_CONTAINED)                                                                  \
	ROW(CUDA_ERROR_INVALID_SOURCE)                                                             \
	ROW(CUDA_ERROR_FILE_NOT_FOUND)                                                             \
	ROW(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND)                                             \
	ROW(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED)                                                  \
	ROW(CUDA_ERROR_OPERATING_SYSTEM)                                                           \
	ROW(CUDA_ERROR_INVALID_HANDLE)                                                             \
	ROW(CUDA_ERROR_ILLEGAL_STATE)                                                              \
	ROW(CUDA_ERROR_LOSSY_QUERY)                                                                \
	ROW(CUDA_ERROR_NOT_FOUND)                                                                  \
	ROW(CUDA_ERROR_NOT_READY)                                                                  \
	ROW(CUDA_ERROR_ILLEGAL_ADDRESS)                                                            \
	ROW(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)                                                    \
	ROW(CUDA_ERROR_LAUNCH_TIMEOUT)                                                             \
	ROW(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING)                                              \
	ROW(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)                                                \
	ROW(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)                                                    \
	ROW(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE)                                                     \
	ROW(CUDA_ERROR_CONTEXT_IS_DESTROYED)                                                       \
	ROW(CUDA_ERROR_ASSERT)                                                                     \
	ROW(CUDA_ERROR_TOO_MANY_PEERS)                                                             \
	ROW(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)                                             \
	ROW(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)                                                 \
	ROW(CUDA_ERROR_HARDWARE_STACK_ERROR)                                                       \
	ROW(CUDA_ERROR_ILLEGAL_INSTRUCTION)                                                        \
	ROW(CUDA_ERROR_MISALIGNED_ADDRESS)                                                         \
	ROW(CUDA_ERROR_INVALID_ADDRESS_SPACE)                                                      \
	ROW(CUDA_ERROR_INVALID_PC)                                                                 \
	ROW(CUDA_ERROR_LAUNCH_FAILED)                                                              \
	ROW(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)                                               \
	ROW(CUDA_ERROR_TENSOR_MEMORY_LEAK)                                                         \
	ROW(CUDA_ERROR_NOT_PERMITTED)                                                              \
	ROW(CUDA_ERROR_NOT_SUPPORTED)                                                              \
	ROW(CUDA_ERROR_SYSTEM_NOT_READY)                                                           \
	ROW(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)                                                     \
	ROW(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE)                                             \
	ROW(CUDA_ERROR_MPS_CONNECTION_FAILED)                                                      \
	ROW(CUDA_ERROR_MPS_RPC_FAILURE)                                                            \
	ROW(CUDA_ERROR_MPS_SERVER_NOT_READY)                                                       \
	ROW(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED)                                                    \
	ROW(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED)                                                \
	ROW(CUDA_ERROR_MPS_CLIENT_TERMINATED)                                                      \
	ROW(CUDA_ERROR_CDP_NOT_SUPPORTED)                                                          \
	ROW(CUDA_ERROR_CDP_VERSION_MISMATCH)                                                       \
	ROW(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)                                                 \
	ROW(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)                                                 \
	ROW(CUDA_ERROR_STREAM_CAPTURE_MERGE)                                                       \
	ROW(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)                                                   \
	ROW(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)                                                    \
	ROW(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)                                                   \
	ROW(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)                                                    \
	ROW(CUDA_ERROR_CAPTURED_EVENT)                                                             \
	ROW(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)                                                \
	ROW(CUDA_ERROR_TIMEOUT)                                                                    \
	ROW(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)                                                  \
	ROW(CUDA_ERROR_EXTERNAL_DEVICE)                                                            \
	ROW(CUDA_ERROR_INVALID_CLUSTER_SIZE)                                                       \
	ROW(CUDA_ERROR_FUNCTION_NOT_LOADED)                                                        \
	ROW(CUDA_ERROR_INVALID_RESOURCE_TYPE)                                                      \
	ROW(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)                                             \
	ROW(CUDA_ERROR_KEY_ROTATION)                                                               \
	ROW(CUDA_ERROR_UNKNOWN)

#define ROW(code) { code, #code },
static const struct {
	CUresult code;
	const char *name;
} errors[] = { ERRORS };
#undef ROW
#define N_ERRORS (sizeof(errors) / sizeof(errors[0]))

/* Neither is logged: they look at nothing that a driver's end could take. */
FAKE_EXPORT CUresult CUDAAPI cuGetErrorName(CUresult code, const char **name)
{
	for (size_t i = 0; i < N_ERRORS; i++)
		if (errors[i].code == code) {
			*name = errors[i].name;
			return CUDA_SUCCESS;
		}
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

/* The name in small letters, which is enough for a test: made before anybody can ask, and valid for ever. */
static char words[N_ERRORS][80];

__attribute__((constructor)) static void words_make(void)
{
	for (size_t i = 0; i < N_ERRORS; i++) {
		const char *name = errors[i].name + sizeof("CUDA") - 1;

		name += strncmp(name, "_ERROR_", 7) == 0 ? 7 : 1;
		for (size_t k = 0; name[k] && k < sizeof(words[i]) - 1; k++)
			words[i][k] = name[k] == '_' ? ' ' : (char)tolower((unsigned char)name[k]);
	}
}

FAKE_EXPORT CUresult CUDAAPI cuGetErrorString(CUresult code, const char **text)
{
	for (size_t i = 0; i < N_ERRORS; i++)
		if (errors[i].code == code) {
			*text = words[i];
			return CUDA_SUCCESS;
		}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}
