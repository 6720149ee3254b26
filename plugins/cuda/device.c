/* SPDX-License-Identifier: BSD-3-Clause */
/* device - finds the device that the manifest means, reads what it is, and retains its primary context.
 *
 * Thread: open and close on a supervisor; enter and leave on the thread that they are for.
 * Fails:  cuda.device: with a list of those that are there.
 * Keeps:  H12: enter() on each thread of a pool. */
#include "config.h"

#include "plugins/cuda/device.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- what a device is called -------------------------------------------------------------------- */

enum form { FORM_NONE, FORM_ORDINAL, FORM_UUID, FORM_PCI };

struct place {
	unsigned domain, bus, slot, function;
};

static bool all_hex(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (!isxdigit((unsigned char)text[i]))
			return false;
	return length > 0;
}

/* "0000:3b:00.0", "3b:00.0"; the driver may write a domain of 8 digits. */
static bool parse_pci(const char *text, struct place *ret_place)
{
	struct place place = { .domain = 0 };
	const char *colon = strchr(text, ':');
	const char *rest = text;
	int end = 0;

	if (colon && strchr(colon + 1, ':')) {
		if (!all_hex(text, (size_t)(colon - text)) || colon - text > 8)
			return false;
		place.domain = (unsigned)strtoul(text, NULL, 16);
		rest = colon + 1;
	}
	if (!isxdigit((unsigned char)*rest) ||
	    sscanf(rest, "%2x:%2x.%1x%n", &place.bus, &place.slot, &place.function, &end) != 3 ||
	    rest[end])
		return false;
	*ret_place = place;
	return true;
}

static bool same_place(const struct place *a, const struct place *b)
{
	return a->domain == b->domain && a->bus == b->bus && a->slot == b->slot &&
	       a->function == b->function;
}

static enum form form_of(const char *wanted, struct place *ret_place)
{
	size_t length = strlen(wanted);

	if (length > 0 && length <= 4 && strspn(wanted, "0123456789") == length)
		return FORM_ORDINAL;
	if (strncasecmp(wanted, "GPU-", 4) == 0 && wanted[4])
		return FORM_UUID;
	return parse_pci(wanted, ret_place) ? FORM_PCI : FORM_NONE;
}

static void write_uuid(const CUuuid *uuid, char *text, size_t size)
{
	const unsigned char *b = (const unsigned char *)uuid->bytes;

	snprintf(text, size,
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
		 b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
		 b[14], b[15]);
}

/* What tells one device from another. */
static CUresult read_names(const struct bh_cuda_driver *driver, int32_t ordinal,
			   struct bh_cuda_device *ret_device)
{
	CUuuid uuid;
	CUresult result;

	memset(&uuid, 0, sizeof(uuid));
	ret_device->driver = driver;
	ret_device->ordinal = ordinal;
	result = driver->cuDeviceGet_(&ret_device->device, ordinal);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGetName_(ret_device->name, sizeof(ret_device->name),
						  ret_device->device);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGetUuid_(&uuid, ret_device->device);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceGetPCIBusId_(ret_device->pci, sizeof(ret_device->pci),
						      ret_device->device);
	if (result != CUDA_SUCCESS)
		return result;
	write_uuid(&uuid, ret_device->uuid, sizeof(ret_device->uuid));
	for (char *c = ret_device->pci; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	return CUDA_SUCCESS;
}

static bool matches(const struct bh_cuda_device *device, enum form form, const char *wanted,
		    const struct place *wanted_place)
{
	struct place place;

	switch (form) {
	case FORM_ORDINAL:
		return device->ordinal == (int32_t)strtol(wanted, NULL, 10);
	case FORM_UUID:
		return strncasecmp(device->uuid, wanted, strlen(wanted)) == 0;
	case FORM_PCI:
		return parse_pci(device->pci, &place) && same_place(&place, wanted_place);
	case FORM_NONE:
		break;
	}
	return false;
}

/* Adds one to the list of those that are there; a list that is too long ends with dots. */
static void list_device(char *list, size_t size, const struct bh_cuda_device *device)
{
	size_t length = strlen(list);

	if (length + 64 < size)
		snprintf(list + length, size - length, "%s%" PRId32 " %.12s %.20s",
			 length ? ", " : "", device->ordinal, device->uuid, device->pci);
	else if (list[length - 1] != '.')
		snprintf(list + length, size - length, ", ...");
}

static bh_status find(const struct bh_cuda_driver *driver, const char *wanted,
		      struct bh_cuda_device *ret_device, struct bh_cuda_fault *fault)
{
	struct bh_cuda_device device;
	struct place place = { 0 };
	enum form form = form_of(wanted, &place);
	char there[256] = "";
	int count = 0, n_found = 0;
	CUresult result;

	result = driver->cuDeviceGetCount_(&count);
	for (int32_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		memset(&device, 0, sizeof(device));
		result = read_names(driver, i, &device);
		if (result != CUDA_SUCCESS)
			break;
		list_device(there, sizeof(there), &device);
		if (!matches(&device, form, wanted, &place))
			continue;
		n_found++;
		*ret_device = device;
	}
	if (result != CUDA_SUCCESS)
		return bh_cuda_result(driver, result, "asking for the devices that are there",
				      fault);
	if (form == FORM_NONE)
		return bh_cuda_fault(fault, -EINVAL, "cuda.device",
				     "an ordinal as 0, a uuid as GPU-…, or a PCI address as "
				     "0000:3b:00.0; there is: %s",
				     there);
	if (n_found == 0)
		return bh_cuda_fault(fault, -ENODEV, "cuda.device", "one that is here: %s", there);
	if (n_found > 1)
		return bh_cuda_fault(fault, -EINVAL, "cuda.device",
				     "more of the uuid: this is the beginning of %d; there is: %s",
				     n_found, there);
	return 0;
}

/* ---- what it is --------------------------------------------------------------------------------- */

static CUresult read_facts(struct bh_cuda_device *device)
{
	const struct bh_cuda_driver *driver = device->driver;
	int pools = 0;
	size_t bytes = 0;
	const struct {
		int *number;
		CUdevice_attribute attribute;
	} facts[] = {
		{ &device->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR },
		{ &device->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR },
		{ &device->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT },
		{ &device->max_threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK },
		{ &device->max_block[0], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X },
		{ &device->max_block[1], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y },
		{ &device->max_block[2], CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z },
		{ &device->max_grid[0], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X },
		{ &device->max_grid[1], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y },
		{ &device->max_grid[2], CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z },
		{ &device->max_shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN },
		{ &pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED },
	};
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; result == CUDA_SUCCESS && i < sizeof(facts) / sizeof(facts[0]); i++)
		result = driver->cuDeviceGetAttribute_(facts[i].number, facts[i].attribute,
						       device->device);
	if (result == CUDA_SUCCESS)
		result = driver->cuDeviceTotalMem_(&bytes, device->device);
	device->memory = bytes;
	device->has_pools = pools && driver->cuMemPoolCreate_ && driver->cuMemPoolDestroy_ &&
			    driver->cuMemPoolSetAttribute_ && driver->cuMemPoolTrimTo_ &&
			    driver->cuMemAllocFromPoolAsync_ && driver->cuMemFreeAsync_;
	return result;
}

bh_status bh_cuda_device_open(const struct bh_cuda_driver *driver, const char *wanted,
			      struct bh_cuda_device *ret_device, struct bh_cuda_fault *fault)
{
	struct bh_cuda_device device;
	CUresult result;
	bh_status st;

	memset(&device, 0, sizeof(device));
	st = find(driver, wanted, &device, fault);
	if (st < 0)
		return st;
	result = read_facts(&device);
	if (result != CUDA_SUCCESS)
		return bh_cuda_result(driver, result, "asking what the device is", fault);
	result = driver->cuDevicePrimaryCtxRetain_(&device.context, device.device);
	if (result != CUDA_SUCCESS)
		return bh_cuda_result(driver, result, "cuDevicePrimaryCtxRetain", fault);
	*ret_device = device;
	return 0;
}

void bh_cuda_device_close(struct bh_cuda_device *device)
{
	if (!device->context)
		return;
	(void)device->driver->cuDevicePrimaryCtxRelease_(device->device);
	device->context = NULL;
}

bh_status bh_cuda_device_enter(const struct bh_cuda_device *device, struct bh_cuda_fault *fault)
{
	const struct bh_cuda_driver *driver = device->driver;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult result = driver->cuCtxSetCurrent_(device->context);

	/* Else the capture of a graph by another library forbids this thread its calls, and is spoiled by them. */
	if (result == CUDA_SUCCESS && driver->cuThreadExchangeStreamCaptureMode_)
		(void)driver->cuThreadExchangeStreamCaptureMode_(&mode);
	return bh_cuda_result(driver, result, "cuCtxSetCurrent", fault);
}

void bh_cuda_device_leave(const struct bh_cuda_device *device)
{
	(void)device->driver->cuCtxSetCurrent_(NULL);
}
