/* SPDX-License-Identifier: BSD-3-Clause */
/* fault - what went wrong, put in words, and what the driver's results mean; see driver.h.
 *
 * Thread: any; nothing is kept. */
#include "config.h"

#include "plugins/cuda/driver.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts off a last character that did not get all of its bytes; `text` is full. */
static void drop_half_character(char *text, size_t length)
{
	size_t begin = length;

	while (begin > 0 && ((unsigned char)text[begin - 1] & 0xc0) == 0x80)
		begin--;
	if (begin == 0)
		return;
	unsigned char lead = (unsigned char)text[--begin];
	size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;

	if (length - begin < need)
		text[begin] = '\0';
}

bh_status bh_cuda_fault(struct bh_cuda_fault *fault, bh_status status, const char *id,
			const char *format, ...)
{
	va_list arguments;
	int wanted;

	if (!fault)
		return status;
	memset(fault, 0, sizeof(*fault));
	fault->status = status;
	fault->result = CUDA_SUCCESS;
	snprintf(fault->id, sizeof(fault->id), "%s", id);
	va_start(arguments, format);
	wanted = vsnprintf(fault->text, sizeof(fault->text), format, arguments);
	va_end(arguments);
	if (wanted >= (int)sizeof(fault->text))
		drop_half_character(fault->text, sizeof(fault->text) - 1);
	return status;
}

/* Those of which cuda.h says that all further work in the context, or the process, returns the same. */
bool bh_cuda_is_sticky(CUresult result)
{
	switch ((int)result) {
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED: /* somebody has reset the device */
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_TENSOR_MEMORY_LEAK:
	case CUDA_ERROR_EXTERNAL_DEVICE:
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
		return true;
	default:
		return false;
	}
}

static bh_status status_of(CUresult result, const char **ret_id)
{
	switch ((int)result) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
		*ret_id = "cuda.memory";
		return -ENOMEM;
	case CUDA_ERROR_DEINITIALIZED:
		*ret_id = "cuda.shutdown";
		return -ESHUTDOWN;
	default:
		*ret_id = bh_cuda_is_sticky(result) ? "cuda.fault" : "cuda.driver";
		return -EIO;
	}
}

bh_status bh_cuda_result(const struct bh_cuda_driver *driver, CUresult result, const char *what,
			 struct bh_cuda_fault *fault)
{
	const char *id = "", *name = NULL, *words = NULL;
	bh_status st = status_of(result, &id);

	if (st == 0)
		return 0;
	if (result == CUDA_ERROR_DEINITIALIZED) { /* asked no more, not even for its name (H09) */
		st = bh_cuda_fault(fault, st, id, "%s: the driver has ended with the process",
				   what);
		name = "CUDA_ERROR_DEINITIALIZED";
	} else {
		if (driver->cuGetErrorName_(result, &name) != CUDA_SUCCESS)
			name = NULL;
		if (driver->cuGetErrorString_(result, &words) != CUDA_SUCCESS)
			words = NULL;
		st = bh_cuda_fault(fault, st, id, "%s: %s (%d)", what,
				   words ? words : "an error that the driver has no words for",
				   (int)result);
	}
	if (fault) {
		fault->result = result;
		snprintf(fault->name, sizeof(fault->name), "%s", name ? name : "");
	}
	return st;
}
