/* SPDX-License-Identifier: BSD-3-Clause */
/* test_cuda_driver - plugins/cuda/driver.c and device.c against the test double of libcuda.so.1: which driver is
 * taken, which device, and what is said where there is none. Each test is a process of its own, as a process has
 * one driver. */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugins/cuda/device.h"
#include "tests/unit/tap.h"

/* Within a child: its line is what the parent sees. */
#define NEED(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "# %s:%d: %s\n", __FILE__, __LINE__, #condition);          \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

static const struct bh_cuda_driver *driver;
static struct bh_cuda_device device;
static struct bh_cuda_fault fault;

static void in_child(int (*run)(void))
{
	int status = -1;
	pid_t child = fork();

	if (child == 0)
		_exit(run());
	CU_ASSERT_FATAL(child > 0);
	CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
	CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Found by its name from then on. */
static bool open_double(void)
{
	if (dlopen(BH_TEST_FAKECUDA, RTLD_NOW | RTLD_LOCAL))
		return true;
	fprintf(stderr, "# %s\n", dlerror());
	return false;
}

static int fills_the_table(void)
{
	const struct bh_cuda_driver *again = NULL;

	NEED(open_double());
	NEED(!bh_cuda_driver_usable());
	NEED(bh_cuda_driver_get(&driver, &fault) == 0);
	NEED(driver->version == 13000);
	NEED(bh_cuda_driver_usable());
	NEED(driver->cuMemcpyHtoDAsync_ && driver->cuMemPoolCreate_);
	NEED(bh_cuda_driver_get(&again, &fault) == 0 && again == driver);
	NEED(bh_cuda_result(driver, CUDA_ERROR_ILLEGAL_ADDRESS, "cuX", &fault) == -EIO);
	NEED(strcmp(fault.id, "cuda.fault") == 0);
	NEED(strcmp(fault.name, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
	NEED(strncmp(fault.text, "cuX: ", 5) == 0);
	NEED(bh_cuda_result(driver, CUDA_ERROR_OUT_OF_MEMORY, "cuX", &fault) == -ENOMEM);
	NEED(bh_cuda_result(driver, CUDA_ERROR_DEINITIALIZED, "cuX", &fault) == -ESHUTDOWN);
	NEED(bh_cuda_result(driver, (CUresult)12345, "cuX", &fault) == -EIO);
	NEED(bh_cuda_result(driver, CUDA_SUCCESS, "cuX", &fault) == 0);
	return 0;
}

static int is_dead_in_a_fork(void)
{
	int status = -1;
	pid_t child;

	NEED(open_double());
	NEED(bh_cuda_driver_get(&driver, &fault) == 0);
	child = fork();
	if (child == 0)
		_exit(bh_cuda_driver_usable() || bh_cuda_driver_get(&driver, &fault) != -ENOSYS ||
		      strcmp(fault.id, "cuda.forked") != 0);
	NEED(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	NEED(bh_cuda_driver_usable());
	return 0;
}

static int says_too_old(void)
{
	setenv("FAKECUDA_VERSION", "11080", 1);
	NEED(open_double());
	NEED(bh_cuda_driver_get(&driver, &fault) == -ENOSYS);
	NEED(strcmp(fault.id, "cuda.driver_old") == 0);
	NEED(strstr(fault.text, "has CUDA 11.8") && strstr(fault.text, "needs 12.0"));
	return 0;
}

static int takes_a_driver_without_the_new(void)
{
	setenv("FAKECUDA_VERSION", "12000", 1);
	NEED(open_double());
	NEED(bh_cuda_driver_get(&driver, &fault) == 0);
	NEED(driver->version == 12000 && !driver->cuFuncGetParamInfo_);
	return 0;
}

static int says_no_device(void)
{
	setenv("FAKECUDA_DEVICES", "0", 1);
	NEED(open_double());
	NEED(bh_cuda_driver_get(&driver, &fault) == -ENODEV);
	NEED(strcmp(fault.id, "cuda.no_device") == 0);
	NEED(strstr(fault.text, "CUDA_VISIBLE_DEVICES"));
	NEED(!bh_cuda_driver_usable());
	return 0;
}

static int says_that_init_failed(void)
{
	setenv("FAKECUDA_INJECT", "fail cuInit 1 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 1);
	NEED(open_double());
	NEED(bh_cuda_driver_get(&driver, &fault) == -ENODEV);
	NEED(strcmp(fault.id, "cuda.init") == 0);
	NEED(strcmp(fault.name, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH") == 0);
	NEED(bh_cuda_driver_get(&driver, &fault) == 0); /* and tries again for the next section */
	return 0;
}

static int says_no_driver(void)
{
	NEED(bh_cuda_driver_get(&driver, &fault) == -ENODEV);
	NEED(strcmp(fault.id, "cuda.no_driver") == 0);
	NEED(strstr(fault.text, "libcuda.so.1") && strstr(fault.text, "install the NVIDIA driver"));
	return 0;
}

/* ---- devices ------------------------------------------------------------------------------------------ */

static bh_status open_device(const char *wanted)
{
	bh_status st = bh_cuda_device_open(driver, wanted, &device, &fault);

	if (st == 0)
		bh_cuda_device_close(&device);
	return st;
}

static int finds_a_device(void)
{
	static const char *const nonsense[] = {
		"",	 "x",  "-1", "0x1",	     "GPU-",   "0000:3b", "3b:00",	  "1 ",
		"99999", "::", ":",  "0000:zz:00.0", "3b:00.", "a:b:c",	  "0000:3b:00.0x"
	};
	char uuid[48], pci[32], part[41];
	struct bh_cuda_device first;

	NEED(open_double());
	NEED(bh_cuda_driver_get(&driver, &fault) == 0);
	NEED(open_device("0") == 0 && device.ordinal == 0);
	NEED(device.max_threads > 0 && device.multiprocessors > 0 && device.memory > 0);
	NEED(open_device("1") == 0 && device.ordinal == 1);
	NEED(strncmp(device.uuid, "GPU-", 4) == 0);
	strcpy(uuid, device.uuid);
	strcpy(pci, device.pci);
	NEED(open_device(uuid) == 0 && device.ordinal == 1);
	for (char *c = uuid + 4; *c; c++) /* as people may write it */
		if (*c >= 'a' && *c <= 'f')
			*c = (char)(*c - 'a' + 'A');
	NEED(open_device(uuid) == 0 && device.ordinal == 1);
	NEED(open_device(pci) == 0 && device.ordinal == 1);
	NEED(open_device(strchr(pci, ':') + 1) == 0 && device.ordinal == 1);
	NEED(open_device("2") == -ENODEV && strcmp(fault.id, "cuda.device") == 0);
	NEED(strstr(fault.text, "0 GPU-") && strstr(fault.text, pci));
	NEED(open_device("ffff:ff:1f.0") == -ENODEV);
	NEED(open_device("GPU-00000000-ffff") == -ENODEV);
	for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++) {
		bh_status st = open_device(nonsense[i]);

		if (st != -EINVAL)
			fprintf(stderr, "# \"%s\": %d\n", nonsense[i], st);
		NEED(st == -EINVAL && strcmp(fault.id, "cuda.device") == 0);
		NEED(strstr(fault.text, "0000:3b:00.0"));
	}
	/* Beginnings, until one tells the two apart. */
	NEED(bh_cuda_device_open(driver, "0", &first, &fault) == 0);
	bh_cuda_device_close(&first);
	for (size_t n = 5; n < sizeof(part); n++) {
		snprintf(part, n + 1, "%s", uuid);
		if (strncasecmp(first.uuid, part, n) == 0)
			NEED(open_device(part) == -EINVAL && strstr(fault.text, "beginning of 2"));
		else
			NEED(open_device(part) == 0 && device.ordinal == 1);
	}
	return 0;
}

static int sees_what_is_visible(void)
{
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	NEED(open_double());
	NEED(bh_cuda_driver_get(&driver, &fault) == 0);
	NEED(open_device("0") == 0);
	NEED(open_device("1") == -ENODEV);
	return 0;
}

static int leaves_nothing_current(void)
{
	CUcontext current = NULL;

	NEED(open_double());
	NEED(bh_cuda_driver_get(&driver, &fault) == 0);
	NEED(bh_cuda_device_open(driver, "0", &device, &fault) == 0);
	NEED(driver->cuCtxGetCurrent_(&current) == CUDA_SUCCESS && !current);
	NEED(bh_cuda_device_enter(&device, &fault) == 0);
	NEED(driver->cuCtxGetCurrent_(&current) == CUDA_SUCCESS && current == device.context);
	bh_cuda_device_leave(&device);
	NEED(driver->cuCtxGetCurrent_(&current) == CUDA_SUCCESS && !current);
	bh_cuda_device_close(&device);
	return 0;
}

#define IN_CHILD(name)                                                                             \
	static void test_##name(void)                                                              \
	{                                                                                          \
		in_child(name);                                                                    \
	}
IN_CHILD(fills_the_table)
IN_CHILD(is_dead_in_a_fork)
IN_CHILD(says_too_old)
IN_CHILD(takes_a_driver_without_the_new)
IN_CHILD(says_no_device)
IN_CHILD(says_that_init_failed)
IN_CHILD(finds_a_device)
IN_CHILD(sees_what_is_visible)
IN_CHILD(leaves_nothing_current)

static void test_says_no_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (library)
		BH_SKIP("this machine has a driver");
	in_child(says_no_driver);
}

static const struct bh_test tests[] = {
	{ "the table is filled, once a process", test_fills_the_table },
	{ "H10: a forked child has no driver", test_is_dead_in_a_fork },
	{ "a driver that is too old: what is there, and what is needed", test_says_too_old },
	{ "a driver that lacks the newest functions serves", test_takes_a_driver_without_the_new },
	{ "PLG-7: no device is said as that", test_says_no_device },
	{ "PLG-7: a driver that does not begin is said with its name for it",
	  test_says_that_init_failed },
	{ "PLG-7: no driver is said as that", test_says_no_driver },
	{ "a device by ordinal, uuid, its beginning, or PCI address; others are listed",
	  test_finds_a_device },
	{ "CUDA_VISIBLE_DEVICES decides what there is", test_sees_what_is_visible },
	{ "H12: a context is current between enter and leave alone", test_leaves_nothing_current },
};
BH_TAP_MAIN("cuda driver", tests)
