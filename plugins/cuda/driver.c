/* SPDX-License-Identifier: BSD-3-Clause */
/* driver - finds the driver, and fills the table.
 *
 * Thread: see the header. One lock is held while the driver is opened, which may take seconds: only supervisors
 *         wait for it.
 * Fails:  cuda.no_driver, .driver_old, .driver_broken, .no_device, .init.
 * Keeps:  PLG-5: nothing of the driver is linked. */
#include "config.h"

#include "plugins/cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libcuda.so.1"

/* The process's one driver: dlopen() gives the same library each time, and it has one state. */
static struct {
	pthread_mutex_t lock;
	void *library;		      /* M: never closed */
	struct bh_cuda_driver driver; /* M until `pid` is set, then fixed */
	_Atomic pid_t pid; /* release: of the process that has called cuInit(); 0: none */
} the = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- the table -------------------------------------------------------------------------------- */

struct function {
	const char *name; /* as cuGetProcAddress knows it, without a suffix */
	int version;	  /* of the prototype that it is called by */
	size_t offset;	  /* of the pointer in the table */
	bool needed;
};

#define NEEDED(function, version)                                                                  \
	{ #function, version, offsetof(struct bh_cuda_driver, function##_), true },
#define OPTIONAL(function, version)                                                                \
	{ #function, version, offsetof(struct bh_cuda_driver, function##_), false },
static const struct function functions[] = { BH_CUDA_FUNCTIONS(NEEDED, OPTIONAL) };
#undef NEEDED
#undef OPTIONAL

static bh_status too_old(struct bh_cuda_fault *fault, int version, const char *missing)
{
	return bh_cuda_fault(
		fault, -ENOSYS, "cuda.driver_old",
		"the driver here has CUDA %d.%d%s%s, this plugin needs %d.%d or later: "
		"update the NVIDIA driver",
		version / 1000, version % 1000 / 10, missing ? " without " : "",
		missing ? missing : "", BH_CUDA_DRIVER_MIN / 1000, BH_CUDA_DRIVER_MIN % 1000 / 10);
}

static bh_status fill_table(PFN_cuGetProcAddress_v12000 get, struct bh_cuda_driver *driver,
			    struct bh_cuda_fault *fault)
{
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		const struct function *function = &functions[i];
		CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
		void *address = NULL;
		CUresult result = get(function->name, &address, function->version,
				      CU_GET_PROC_ADDRESS_DEFAULT, &found);

		if (result != CUDA_SUCCESS || found != CU_GET_PROC_ADDRESS_SUCCESS)
			address = NULL;
		if (!address && function->needed)
			return too_old(fault, driver->version, function->name);
		memcpy((char *)driver + function->offset, &address, sizeof(address));
	}
	return 0;
}

/* POSIX: functions have addresses of the size of data. */
static void *symbol(void *library, const char *name)
{
	return dlsym(library, name);
}

static bh_status open_driver_locked(struct bh_cuda_fault *fault)
{
	PFN_cuDriverGetVersion_v2020 get_version;
	PFN_cuGetProcAddress_v12000 get_address;
	int version = 0;
	void *address;

	if (!the.library) {
		the.library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
		if (!the.library)
			return bh_cuda_fault(
				fault, -ENODEV, "cuda.no_driver",
				"%s: install the NVIDIA driver, or give the container its "
				"libraries",
				dlerror());
	}
	address = symbol(the.library, "cuDriverGetVersion");
	memcpy(&get_version, &address, sizeof(address));
	if (!get_version || get_version(&version) != CUDA_SUCCESS)
		return bh_cuda_fault(fault, -ENODEV, "cuda.driver_broken",
				     "the " LIBRARY " here does not tell its version: install the "
				     "NVIDIA driver again");
	the.driver.version = version;
	address = symbol(the.library, "cuGetProcAddress_v2");
	memcpy(&get_address, &address, sizeof(address));
	if (!get_address || version < BH_CUDA_DRIVER_MIN)
		return too_old(fault, version, NULL);
	return fill_table(get_address, &the.driver, fault);
}

static bh_status init_driver_locked(struct bh_cuda_fault *fault)
{
	CUresult result = the.driver.cuInit_(0);
	int count = 0;

	if (result == CUDA_SUCCESS)
		result = the.driver.cuDeviceGetCount_(&count);
	if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && count == 0))
		return bh_cuda_fault(
			fault, -ENODEV, "cuda.no_device",
			"the driver (CUDA %d.%d) sees no device here: look at nvidia-smi, at "
			"the container's devices and at CUDA_VISIBLE_DEVICES",
			the.driver.version / 1000, the.driver.version % 1000 / 10);
	if (result != CUDA_SUCCESS) {
		struct bh_cuda_fault why;

		(void)bh_cuda_result(&the.driver, result, "cuInit", &why);
		bh_cuda_fault(fault, -ENODEV, "cuda.init", "%.200s: look at nvidia-smi and dmesg",
			      why.text);
		if (fault)
			memcpy(fault->name, why.name, sizeof(fault->name));
		return -ENODEV;
	}
	return 0;
}

bh_status bh_cuda_driver_get(const struct bh_cuda_driver **ret_driver, struct bh_cuda_fault *fault)
{
	pid_t pid;
	bh_status st = 0;

	pthread_mutex_lock(&the.lock);
	pid = atomic_load_explicit(&the.pid, memory_order_relaxed);
	if (pid == 0) {
		st = open_driver_locked(fault);
		if (st == 0)
			st = init_driver_locked(fault);
		if (st == 0)
			atomic_store_explicit(&the.pid, getpid(), memory_order_release);
	} else if (pid != getpid()) {
		st = bh_cuda_fault(fault, -ENOSYS, "cuda.forked",
				   "this is a forked child: the driver works in the process that "
				   "opened it alone");
	}
	pthread_mutex_unlock(&the.lock);
	if (st == 0)
		*ret_driver = &the.driver;
	return st;
}

bool bh_cuda_driver_usable(void)
{
	return atomic_load_explicit(&the.pid, memory_order_acquire) == getpid();
}
