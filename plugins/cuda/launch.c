/* SPDX-License-Identifier: BSD-3-Clause */
/* launch - see launch.h.
 *
 * The driver takes one pointer an argument and reads as many bytes there as the kernel's parameter has: it is
 * asked for number and sizes first, and what does not fit is refused. A driver that cannot be asked (before
 * 12.4) makes numbers without a type ambiguous, so that these are refused; whatever it then reads is ours.
 *
 * Fails: cuda.function: no such kernel. cuda.launch: module, grid, block, shared or args[n], what was given and
 *        what is accepted. */
#include "config.h"

#include "plugins/cuda/launch.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/cuda/handles.h"

#define PARAMS_MAX 256u /* arguments of a kernel */
#define CACHED 16u	/* kernels of a module that are known without asking */
#define NAME_MAX_ 128u	/* bytes of such a one's name with its NUL */
/* All parameters of a kernel together, in bytes, at most; and so their number, where it is not known. */
#define PARAM_BYTES_MAX 32768u
/* A kernel may have so much shared memory unasked. */
#define SHARED_UNASKED 49152

/* ---- kernels -------------------------------------------------------------------------------------- */

struct kernel {
	CUfunction function;
	int max_threads;   /* of a block, as its registers allow */
	int static_shared; /* bytes */
	bool known;	   /* what follows */
	uint32_t n_params;
	uint32_t sizes[PARAMS_MAX]; /* bytes */
};

struct bh_cuda_module {
	pthread_mutex_t lock; /* guards what follows; held while the driver is asked */
	uint32_t n_cached;
	struct {
		char name[NAME_MAX_];
		int opted; /* bytes of shared memory that it has been allowed */
		struct kernel kernel;
	} cached[CACHED];
};

struct bh_cuda_module *bh_cuda_module_new(void)
{
	struct bh_cuda_module *module = calloc(1, sizeof(*module));

	if (module) /* free() alone ends it: such a mutex holds nothing */
		module->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	return module;
}

static bh_status ask_sizes(const struct bh_cuda_call *call, struct kernel *kernel)
{
	const struct bh_cuda_driver *driver = call->cuda->device.driver;
	size_t offset, size;

	if (!driver->cuFuncGetParamInfo_)
		return 0;
	for (;; kernel->n_params++) {
		CUresult result = driver->cuFuncGetParamInfo_(kernel->function, kernel->n_params,
							      &offset, &size);

		if (result == CUDA_ERROR_INVALID_VALUE) /* there are no more */
			break;
		if (result != CUDA_SUCCESS)
			return bh_cuda_check(call, result, "cuFuncGetParamInfo");
		if (kernel->n_params == PARAMS_MAX)
			return bh_cuda_refuse(call, "cuda.function", "name",
					      "a kernel of more than 256 parameters",
					      "fewer: put them into a struct");
		kernel->sizes[kernel->n_params] = (uint32_t)size;
	}
	kernel->known = true;
	return 0;
}
static_assert(PARAMS_MAX == 256, "a text says so");

static bh_status ask_kernel(const struct bh_cuda_call *call, CUmodule module, const char *name,
			    struct kernel *ret_kernel)
{
	const struct bh_cuda_driver *driver = call->cuda->device.driver;
	CUresult result = driver->cuModuleGetFunction_(&ret_kernel->function, module, name);

	if (result == CUDA_ERROR_NOT_FOUND)
		return bh_cuda_refuse(
			call, "cuda.function", "name", name,
			"the name of a kernel of this module; one of C++ has its mangled "
			"name unless it is declared extern \"C\"");
	if (result != CUDA_SUCCESS)
		return bh_cuda_check(call, result, "cuModuleGetFunction");
	result = driver->cuFuncGetAttribute_(&ret_kernel->max_threads,
					     CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
					     ret_kernel->function);
	if (result == CUDA_SUCCESS)
		result = driver->cuFuncGetAttribute_(&ret_kernel->static_shared,
						     CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
						     ret_kernel->function);
	if (result != CUDA_SUCCESS)
		return bh_cuda_check(call, result, "cuFuncGetAttribute");
	return ask_sizes(call, ret_kernel);
}

static bh_status find_kernel_locked(const struct bh_cuda_call *call, struct bh_cuda_module *known,
				    CUmodule module, const char *name, struct kernel *ret_kernel)
{
	bh_status st;

	for (uint32_t i = 0; i < known->n_cached; i++) {
		if (strcmp(known->cached[i].name, name) == 0) {
			*ret_kernel = known->cached[i].kernel;
			return 0;
		}
	}
	memset(ret_kernel, 0, sizeof(*ret_kernel));
	st = ask_kernel(call, module, name, ret_kernel);
	if (st == 0 && known->n_cached < CACHED && strlen(name) < NAME_MAX_) {
		snprintf(known->cached[known->n_cached].name, NAME_MAX_, "%s", name);
		known->cached[known->n_cached++].kernel = *ret_kernel;
	}
	return st;
}

/* ---- grid, block and shared memory -------------------------------------------------------------------- */

/* "[4096, 2]", of what may be anything. */
static void list_text(const struct bh_value *list, char *text, size_t size)
{
	size_t used = (size_t)snprintf(text, size, "[");

	for (uint64_t i = 0; i < list->as.list.count && i < 4 && used < size; i++) {
		const struct bh_value *item = &list->as.list.items[i];

		if (item->type == BH_TYPE_INT)
			used += (size_t)snprintf(text + used, size - used, "%s%" PRId64,
						 i > 0 ? ", " : "", item->as.integer);
		else
			used += (size_t)snprintf(text + used, size - used, "%s%s",
						 i > 0 ? ", " : "", "no int");
	}
	if (used < size)
		snprintf(text + used, size - used, "%s", list->as.list.count > 4 ? ", ...]" : "]");
}

static bh_status refuse_extent(const struct bh_cuda_call *call, const char *name,
			       const struct bh_value *list, const int max[3])
{
	char given[96], accepted[128];

	list_text(list, given, sizeof(given));
	snprintf(accepted, sizeof(accepted),
		 "a list of 1 to 3 ints, at least 1 and at most %d, %d, %d on this device", max[0],
		 max[1], max[2]);
	return bh_cuda_refuse(call, "cuda.launch", name, given, accepted);
}

static bh_status extent_of(const struct bh_cuda_call *call, const char *name,
			   const struct bh_value *list, const int max[3], unsigned ret_extent[3])
{
	const struct bh_items *items = &list->as.list;

	if (items->count < 1 || items->count > 3)
		return refuse_extent(call, name, list, max);
	for (unsigned i = 0; i < 3; i++) {
		ret_extent[i] = 1;
		if (i >= items->count)
			continue;
		if (items->items[i].type != BH_TYPE_INT || items->items[i].as.integer < 1 ||
		    items->items[i].as.integer > max[i])
			return refuse_extent(call, name, list, max);
		ret_extent[i] = (unsigned)items->items[i].as.integer;
	}
	return 0;
}

static bh_status check_threads(const struct bh_cuda_call *call, const struct kernel *kernel,
			       const struct bh_value *list, const unsigned block[3])
{
	const struct bh_cuda_device *device = &call->cuda->device;
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
	int max = kernel->max_threads < device->max_threads ? kernel->max_threads
							    : device->max_threads;
	char extent[96], given[160], accepted[128];

	if (threads <= (uint64_t)max)
		return 0;
	list_text(list, extent, sizeof(extent));
	snprintf(given, sizeof(given), "%s: %" PRIu64 " threads", extent, threads);
	snprintf(accepted, sizeof(accepted), "at most %d threads a block, %s", max,
		 kernel->max_threads < device->max_threads
			 ? "as this kernel's registers or launch bounds allow"
			 : "as this device allows");
	return bh_cuda_refuse(call, "cuda.launch", "block", given, accepted);
}

static bh_status check_shared(const struct bh_cuda_call *call, const struct kernel *kernel,
			      int64_t shared)
{
	int max = call->cuda->device.max_shared - kernel->static_shared;
	char given[32], accepted[128];

	if (shared >= 0 && shared <= max)
		return 0;
	snprintf(given, sizeof(given), "%" PRId64, shared);
	snprintf(accepted, sizeof(accepted),
		 "0 to %d bytes: the device has %d a block, the kernel's own variables take %d",
		 max, call->cuda->device.max_shared, kernel->static_shared);
	return bh_cuda_refuse(call, "cuda.launch", "shared", given, accepted);
}

/* More than a kernel has unasked: allowed once, and remembered where the kernel is. */
static bh_status allow_shared_locked(const struct bh_cuda_call *call, struct bh_cuda_module *known,
				     const struct kernel *kernel, int shared)
{
	const struct bh_cuda_driver *driver = call->cuda->device.driver;
	/* All that there is: less could take back what another worker is about to use. */
	int most = call->cuda->device.max_shared - kernel->static_shared;
	int uncached = 0, *opted = &uncached;
	bh_status st;

	if (shared + kernel->static_shared <= SHARED_UNASKED)
		return 0;
	for (uint32_t i = 0; i < known->n_cached; i++)
		if (known->cached[i].kernel.function == kernel->function)
			opted = &known->cached[i].opted;
	if (shared <= *opted)
		return 0;
	st = bh_cuda_check(
		call,
		driver->cuFuncSetAttribute_(kernel->function,
					    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most),
		"cuFuncSetAttribute");
	if (st == 0)
		*opted = most;
	return st;
}

/* ---- arguments ---------------------------------------------------------------------------------------- */

enum shape { SHAPE_SIGNED, SHAPE_UNSIGNED, SHAPE_REAL, SHAPE_BOOL, SHAPE_POINTER, SHAPE_CONST };

static const struct type {
	const char *name;
	uint32_t size;
	enum shape shape;
} types[] = {
	{ "i8", 1, SHAPE_SIGNED },    { "i16", 2, SHAPE_SIGNED },   { "i32", 4, SHAPE_SIGNED },
	{ "i64", 8, SHAPE_SIGNED },   { "u8", 1, SHAPE_UNSIGNED },  { "u16", 2, SHAPE_UNSIGNED },
	{ "u32", 4, SHAPE_UNSIGNED }, { "u64", 8, SHAPE_UNSIGNED }, { "f32", 4, SHAPE_REAL },
	{ "f64", 8, SHAPE_REAL },     { "bool", 1, SHAPE_BOOL },    { "ptr", 8, SHAPE_POINTER },
	{ "const", 8, SHAPE_CONST },
};
#define TYPE_NAMES "i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 bool ptr const"

/* What the driver is given. Where sizes are not known it may read up to PARAM_BYTES_MAX from any of `at`, and
 * as many of them: all zeros behind what was given. */
struct packed {
	void *heap; /* NULL: none */
	void **at;
	void *known_at[PARAMS_MAX];
	uint64_t known_bits[PARAMS_MAX];
	uint64_t *bits;
};

/* One argument on its way. */
struct argument {
	const struct bh_cuda_call *call;
	const struct kernel *kernel;
	uint32_t index;
	char name[16]; /* "args[12]" */
};

static const char *type_text(uint32_t type)
{
	switch ((int)type) { /* a newer host may have more */
	case BH_TYPE_NONE:
		return "None";
	case BH_TYPE_BOOL:
		return "bool";
	case BH_TYPE_INT:
		return "int";
	case BH_TYPE_FLOAT:
		return "float";
	case BH_TYPE_STR:
		return "str";
	case BH_TYPE_BYTES:
		return "bytes";
	case BH_TYPE_BUFFER:
		return "a buffer";
	case BH_TYPE_LIST:
		return "a list";
	default:
		return "an object";
	}
}

static bh_status refuse_argument(const struct argument *argument, const char *given,
				 const char *accepted)
{
	return bh_cuda_refuse(argument->call, "cuda.launch", argument->name, given, accepted);
}

/* 0: not known. */
static uint32_t size_of(const struct argument *argument)
{
	return argument->kernel->known ? argument->kernel->sizes[argument->index] : 0;
}

static bh_status refuse_size(const struct argument *argument, const char *given, uint32_t size)
{
	char text[96], accepted[96];

	snprintf(text, sizeof(text), "%s, which takes %" PRIu32 " byte%s", given, size,
		 size == 1 ? "" : "s");
	snprintf(accepted, sizeof(accepted), "the kernel's parameter has %" PRIu32 " byte%s",
		 size_of(argument), size_of(argument) == 1 ? "" : "s");
	return refuse_argument(argument, text, accepted);
}

static bh_status refuse_untyped(const struct argument *argument, const char *given,
				const char *example)
{
	char accepted[160];

	snprintf(accepted, sizeof(accepted),
		 "with its type, as %s: this driver does not tell the sizes of parameters (12.4 "
		 "and later do)",
		 example);
	return refuse_argument(argument, given, accepted);
}

/* `size` 1, 2, 4 or 8. */
static bh_status pack_integer(const struct argument *argument, int64_t value, uint32_t size,
			      bool may_be_negative, bool may_be_large, uint64_t *ret_bits)
{
	unsigned bits = size * 8;
	int64_t low = may_be_negative ? (bits == 64 ? INT64_MIN : -(INT64_C(1) << (bits - 1))) : 0;
	int64_t high = bits == 64 ? INT64_MAX : (INT64_C(1) << (bits - (may_be_large ? 0 : 1))) - 1;
	char given[32], accepted[96];

	if (value >= low && value <= high) {
		*ret_bits =
			(uint64_t)value; /* little endian: a shorter parameter is its first bytes */
		return 0;
	}
	snprintf(given, sizeof(given), "%" PRId64, value);
	snprintf(accepted, sizeof(accepted), "%" PRId64 " to %" PRId64 ", in %" PRIu32 " byte%s",
		 low, high, size, size == 1 ? "" : "s");
	return refuse_argument(argument, given, accepted);
}
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "an integer's first bytes are taken to be its low ones"
#endif

static bh_status pack_real(const struct argument *argument, double value, uint32_t size,
			   uint64_t *ret_bits)
{
	char given[32];
	float f32;

	*ret_bits = 0;
	if (size == 8) {
		memcpy(ret_bits, &value, sizeof(value));
		return 0;
	}
	if (isfinite(value) && fabs(value) > (double)FLT_MAX) {
		snprintf(given, sizeof(given), "%g", value);
		return refuse_argument(argument, given,
				       "-3.4028235e38 to 3.4028235e38, inf or nan");
	}
	f32 = (float)value;
	memcpy(ret_bits, &f32, sizeof(f32));
	return 0;
}

/* A kernel may write to what it is given a pointer to, so that only memory that may be written to is passed
 * without a word. */
static bh_status pack_buffer(const struct argument *argument, const struct bh_value *value,
			     bool only_read, uint64_t *ret_bits)
{
	struct bh_cuda_operand operand;
	bh_status st;

	if (size_of(argument) != 0 && size_of(argument) != 8)
		return refuse_size(argument, "the address of a buffer", 8);
	st = bh_cuda_device_operand(argument->call, argument->name, value, &operand);
	if (st < 0)
		return st;
	if (!only_read && !(operand.info.flags & BH_BUFFER_WRITABLE))
		return refuse_argument(
			argument, "a read-only buffer",
			"one that may be written to; or [\"const\", buffer], where the "
			"kernel only reads it");
	*ret_bits = operand.address;
	return 0;
}

static bh_status pack_plain_int(const struct argument *argument, int64_t value, uint64_t *ret_bits)
{
	uint32_t size = size_of(argument);

	if (size == 0)
		return refuse_untyped(argument, "int", "[\"i32\", 7]");
	if (size != 1 && size != 2 && size != 4 && size != 8)
		return refuse_size(argument, "int", 8);
	return pack_integer(argument, value, size, true, true, ret_bits);
}

static bh_status pack_plain_real(const struct argument *argument, double value, uint64_t *ret_bits)
{
	uint32_t size = size_of(argument);

	if (size == 0)
		return refuse_untyped(argument, "float", "[\"f32\", 1.5]");
	if (size != 4 && size != 8)
		return refuse_size(argument, "float", 4);
	return pack_real(argument, value, size, ret_bits);
}

static bh_status refuse_typed(const struct argument *argument, const struct type *type,
			      const struct bh_value *value)
{
	static const char *const accepted[] = {
		[SHAPE_SIGNED] = "an int",
		[SHAPE_UNSIGNED] = "an int",
		[SHAPE_REAL] = "a float or an int",
		[SHAPE_BOOL] = "a bool",
		[SHAPE_POINTER] = "a buffer, or a device address as an int, such as 0",
		[SHAPE_CONST] = "a buffer",
	};
	char given[48];

	snprintf(given, sizeof(given), "[\"%s\", %s]", type->name, type_text(value->type));
	return refuse_argument(argument, given, accepted[type->shape]);
}

static bh_status pack_as(const struct argument *argument, const struct type *type,
			 const struct bh_value *value, uint64_t *ret_bits)
{
	char given[24];

	snprintf(given, sizeof(given), "\"%s\"", type->name);
	if (size_of(argument) != 0 && size_of(argument) != type->size)
		return refuse_size(argument, given, type->size);
	switch (type->shape) {
	case SHAPE_SIGNED:
		if (value->type == BH_TYPE_INT)
			return pack_integer(argument, value->as.integer, type->size, true, false,
					    ret_bits);
		break;
	case SHAPE_UNSIGNED:
		if (value->type == BH_TYPE_INT)
			return pack_integer(argument, value->as.integer, type->size, false, true,
					    ret_bits);
		break;
	case SHAPE_REAL:
		if (value->type == BH_TYPE_FLOAT)
			return pack_real(argument, value->as.real, type->size, ret_bits);
		if (value->type == BH_TYPE_INT)
			return pack_real(argument, (double)value->as.integer, type->size, ret_bits);
		break;
	case SHAPE_BOOL:
		if (value->type == BH_TYPE_BOOL) {
			*ret_bits = value->as.boolean != 0;
			return 0;
		}
		break;
	case SHAPE_POINTER:
		if (value->type == BH_TYPE_INT)
			return pack_integer(argument, value->as.integer, type->size, false, true,
					    ret_bits);
		if (value->type == BH_TYPE_BUFFER)
			return pack_buffer(argument, value, false, ret_bits);
		break;
	case SHAPE_CONST:
		if (value->type == BH_TYPE_BUFFER)
			return pack_buffer(argument, value, true, ret_bits);
		break;
	}
	return refuse_typed(argument, type, value);
}

static bh_status pack_typed(const struct argument *argument, const struct bh_items *pair,
			    uint64_t *ret_bits)
{
	char given[64];

	if (pair->count != 2 || pair->items[0].type != BH_TYPE_STR)
		return refuse_argument(argument, "a list that is no type and value",
				       "[\"f32\", 1.5] or the like; types: " TYPE_NAMES);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(types[i].name, pair->items[0].as.text.data) == 0)
			return pack_as(argument, &types[i], &pair->items[1], ret_bits);
	snprintf(given, sizeof(given), "type \"%.40s\"", pair->items[0].as.text.data);
	return refuse_argument(argument, given, TYPE_NAMES);
}

/* A struct by value: the driver reads it where it is. */
static bh_status pack_bytes(const struct argument *argument, const struct bh_text *text,
			    void **ret_at)
{
	char given[48];

	if (size_of(argument) == 0)
		return refuse_untyped(argument, "bytes", "[\"u64\", 7]");
	if (text->length != size_of(argument)) {
		snprintf(given, sizeof(given), "%" PRIu64 " bytes", text->length);
		return refuse_size(argument, given, (uint32_t)text->length);
	}
	*ret_at = (void *)text->data;
	return 0;
}

static bh_status pack_one(const struct argument *argument, const struct bh_value *value,
			  struct packed *packed)
{
	uint64_t *bits = &packed->bits[argument->index];

	packed->at[argument->index] = bits;
	switch ((int)value->type) { /* a newer host may have more */
	case BH_TYPE_INT:
		return pack_plain_int(argument, value->as.integer, bits);
	case BH_TYPE_FLOAT:
		return pack_plain_real(argument, value->as.real, bits);
	case BH_TYPE_BOOL:
		*bits = value->as.boolean != 0;
		if (size_of(argument) > 1)
			return refuse_size(argument, "bool", 1);
		return 0;
	case BH_TYPE_BUFFER:
		return pack_buffer(argument, value, false, bits);
	case BH_TYPE_BYTES:
		return pack_bytes(argument, &value->as.text, &packed->at[argument->index]);
	case BH_TYPE_LIST:
		return pack_typed(argument, &value->as.list, bits);
	default:
		return refuse_argument(
			argument, type_text(value->type),
			"int, float, bool, a buffer, bytes, or [type, value] such as "
			"[\"f32\", 1.5] or [\"ptr\", 0]");
	}
}

static bh_status refuse_count(const struct bh_cuda_call *call, const struct kernel *kernel,
			      uint64_t count)
{
	char given[48], accepted[160];
	size_t used;

	snprintf(given, sizeof(given), "%" PRIu64 " argument%s", count, count == 1 ? "" : "s");
	if (!kernel->known)
		return bh_cuda_refuse(call, "cuda.launch", "args", given, "at most 256");
	used = (size_t)snprintf(accepted, sizeof(accepted),
				"%" PRIu32 ": the kernel's parameters have ", kernel->n_params);
	if (kernel->n_params == 0)
		snprintf(accepted, sizeof(accepted), "none: the kernel has no parameters");
	for (uint32_t i = 0; i < kernel->n_params && used < sizeof(accepted) - 24; i++)
		used += (size_t)snprintf(accepted + used, sizeof(accepted) - used, "%s%" PRIu32,
					 i > 0 ? ", " : "", kernel->sizes[i]);
	if (kernel->n_params > 0)
		snprintf(accepted + used, sizeof(accepted) - used, " bytes");
	return bh_cuda_refuse(call, "cuda.launch", "args", given, accepted);
}

static bh_status packed_init(const struct bh_cuda_call *call, const struct kernel *kernel,
			     struct packed *packed)
{
	const struct bh_cuda_fault fault = { .status = -ENOMEM,
					     .id = "cuda.host_memory",
					     .text = "the host has no memory for the arguments" };
	size_t values = PARAMS_MAX * sizeof(uint64_t) + PARAM_BYTES_MAX;

	packed->heap = NULL;
	packed->at = packed->known_at;
	packed->bits = packed->known_bits;
	if (kernel->known)
		return 0;
	packed->heap = calloc(1, values + PARAM_BYTES_MAX * sizeof(void *));
	if (!packed->heap)
		return bh_cuda_fail_by(call, &fault);
	packed->bits = packed->heap;
	packed->at = (void **)(void *)((char *)packed->heap + values);
	for (size_t i = 0; i < PARAM_BYTES_MAX; i++)
		packed->at[i] = (char *)packed->heap + PARAMS_MAX * sizeof(uint64_t);
	return 0;
}

static void packed_fini(struct packed *packed)
{
	free(packed->heap);
}

static bh_status pack(const struct bh_cuda_call *call, const struct kernel *kernel,
		      const struct bh_items *args, struct packed *packed)
{
	bh_status st = 0;

	if (kernel->known ? args->count != kernel->n_params : args->count > PARAMS_MAX)
		return refuse_count(call, kernel, args->count);
	for (uint32_t i = 0; i < args->count && st == 0; i++) {
		struct argument argument = { .call = call, .kernel = kernel, .index = i };

		snprintf(argument.name, sizeof(argument.name), "args[%" PRIu32 "]", i);
		st = pack_one(&argument, &args->items[i], packed);
	}
	return st;
}

/* ---- the op ------------------------------------------------------------------------------------------- */

struct launch {
	struct bh_cuda_call *call;
	CUstream stream;
	struct kernel kernel;
	unsigned grid[3], block[3], shared;
	struct packed packed;
};

static bh_status queue(struct launch *l)
{
	struct bh_cuda *cuda = l->call->cuda;
	struct bh_cuda_pending *pending = bh_cuda_pending_new(l->call, sizeof(*pending));
	bh_status st;

	if (!pending)
		return -ENOMEM;
	st = bh_cuda_check(l->call,
			   cuda->device.driver->cuLaunchKernel_(l->kernel.function, l->grid[0],
								l->grid[1], l->grid[2], l->block[0],
								l->block[1], l->block[2], l->shared,
								l->stream, l->packed.at, NULL),
			   "cuLaunchKernel");
	if (st < 0) {
		bh_cuda_pending_drop(pending);
		return st;
	}
	cuda->services->metric_add(cuda->ctx, BH_CUDA_METRIC_LAUNCHES, 1);
	return bh_cuda_post(pending, l->stream);
}

static bh_status pack_and_queue(struct launch *l, const struct bh_items *args)
{
	bh_status st = packed_init(l->call, &l->kernel, &l->packed);

	if (st < 0)
		return st;
	st = pack(l->call, &l->kernel, args, &l->packed);
	if (st == 0)
		st = queue(l);
	packed_fini(&l->packed);
	return st;
}

static bh_status kernel_of(struct launch *l, const struct bh_value *args)
{
	void *module, *known;
	bh_status st =
		bh_cuda_handle_of(l->call, BH_CUDA_MODULE, "module", &args[0], &module, &known);

	if (st == 0 && strlen(args[1].as.text.data) != args[1].as.text.length)
		st = bh_cuda_refuse(l->call, "cuda.function", "name", "a name with a NUL in it",
				    "the name of a kernel of this module");
	if (st == 0)
		st = bh_cuda_stream_of(l->call, &args[6], &l->stream);
	if (st < 0)
		return st;
	pthread_mutex_lock(&((struct bh_cuda_module *)known)->lock);
	st = find_kernel_locked(l->call, known, module, args[1].as.text.data, &l->kernel);
	if (st == 0)
		st = check_shared(l->call, &l->kernel, args[5].as.integer);
	if (st == 0)
		st = allow_shared_locked(l->call, known, &l->kernel, (int)args[5].as.integer);
	pthread_mutex_unlock(&((struct bh_cuda_module *)known)->lock);
	l->shared = (unsigned)args[5].as.integer;
	return st;
}

bh_status bh_cuda_op_launch(void *state, struct bh_task *task, const struct bh_value *args)
{
	BH_CUDA_CALL call;
	struct launch l = { .call = &call };
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "launch");
	if (st == 0)
		st = kernel_of(&l, args);
	if (st == 0)
		st = extent_of(&call, "grid", &args[2], call.cuda->device.max_grid, l.grid);
	if (st == 0)
		st = extent_of(&call, "block", &args[3], call.cuda->device.max_block, l.block);
	if (st == 0)
		st = check_threads(&call, &l.kernel, &args[3], l.block);
	if (st == 0)
		st = pack_and_queue(&l, &args[4].as.list);
	return st;
}
