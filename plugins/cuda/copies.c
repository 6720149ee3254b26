/* SPDX-License-Identifier: BSD-3-Clause */
/* copies - the ops over memory: what the device is, allocation, pins, copies, and memory of other libraries.
 *
 * Every range is checked before the driver sees it: a copy that leaves its memory would take the device's context
 * with it.
 *
 * Thread: workers.
 * Fails:  cuda.shape, .dtype, .range, .overlap, .value, .kind, .import: the argument, what it was, what it may be.
 * Keeps:  GIL: `import_memory` alone takes it, at the site `import`. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugins/cuda/memory_private.h"

#define N_FACTS(facts) ((uint32_t)(sizeof(facts) / sizeof((facts)[0])))

static bh_status refuse_int(const struct bh_cuda_call *call, const char *id, const char *parameter,
			    int64_t given, const char *accepted)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRId64, given);
	return bh_cuda_refuse(call, id, parameter, text, accepted);
}

/* ---- what the device is ------------------------------------------------------------------------------- */

static struct bh_value int_value(int64_t integer)
{
	return (struct bh_value){ .type = BH_TYPE_INT, .as.integer = integer };
}

static struct bh_value text_value(const char *text)
{
	return (struct bh_value){ .type = BH_TYPE_STR, .as.text = { text, strlen(text) } };
}

static bh_status run_info(void *state, struct bh_task *task, const struct bh_value *args)
{
	const struct bh_cuda_device *device;
	struct bh_value list = { .type = BH_TYPE_LIST };
	size_t free_bytes = 0, total = 0;
	BH_CUDA_CALL call;
	bh_status st;

	(void)args;
	st = bh_cuda_call_begin(&call, state, task, "info");
	if (st < 0)
		return st;
	device = &call.cuda->device;
	st = bh_cuda_check(&call, device->driver->cuMemGetInfo_(&free_bytes, &total),
			   "cuMemGetInfo");
	if (st < 0)
		return st;
	const struct bh_value items[] = {
		int_value(device->ordinal),	    text_value(device->name),
		text_value(device->uuid),	    text_value(device->pci),
		int_value(device->major),	    int_value(device->minor),
		int_value(device->multiprocessors), int_value((int64_t)total),
		int_value((int64_t)free_bytes),	    int_value(device->driver->version),
		int_value(device->max_threads),	    int_value(device->max_shared),
	};

	list.as.list.items = items;
	list.as.list.count = N_FACTS(items);
	return call.cuda->services->result(task, &list);
}

/* ---- shape and element type -------------------------------------------------------------------------------- */

/* DLPack's codes: those above BH_DTYPE_OPAQUE are bfloat, complex and bool. */
static const struct {
	const char *name;
	uint8_t code, bits;
} dtypes[] = {
	{ "float32", BH_DTYPE_FLOAT, 32 },
	{ "float64", BH_DTYPE_FLOAT, 64 },
	{ "float16", BH_DTYPE_FLOAT, 16 },
	{ "int8", BH_DTYPE_INT, 8 },
	{ "int16", BH_DTYPE_INT, 16 },
	{ "int32", BH_DTYPE_INT, 32 },
	{ "int64", BH_DTYPE_INT, 64 },
	{ "uint8", BH_DTYPE_UINT, 8 },
	{ "uint16", BH_DTYPE_UINT, 16 },
	{ "uint32", BH_DTYPE_UINT, 32 },
	{ "uint64", BH_DTYPE_UINT, 64 },
	{ "bfloat16", 4, 16 },
	{ "complex64", 5, 64 },
	{ "complex128", 5, 128 },
	{ "bool", 6, 8 },
};

static bh_status parse_dtype(const struct bh_cuda_call *call, const char *name,
			     struct bh_buffer_info *info)
{
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		if (strcmp(dtypes[i].name, name) == 0) {
			info->dtype_code = dtypes[i].code;
			info->dtype_bits = dtypes[i].bits;
			return 0;
		}
	}
	return bh_cuda_refuse(
		call, "cuda.dtype", "dtype", name,
		"float16 float32 float64 bfloat16, int8 to int64, uint8 to uint64, bool, "
		"complex64 complex128");
}

static bh_status parse_shape(const struct bh_cuda_call *call, const struct bh_items *shape,
			     struct bh_buffer_info *info, uint64_t *ret_bytes)
{
	static const char accepted[] =
		"a list of at most 8 numbers of elements, of 2**62 bytes in all";
	uint64_t bytes = info->dtype_bits / 8;
	bool empty = false;

	if (shape->count > BH_NDIM_MAX)
		return refuse_int(call, "cuda.shape", "shape, its length", (int64_t)shape->count,
				  accepted);
	info->n_dims = (uint32_t)shape->count;
	for (uint32_t i = 0; i < info->n_dims; i++) {
		int64_t n = shape->items[i].as.integer;

		if (shape->items[i].type != BH_TYPE_INT)
			return bh_cuda_refuse(call, "cuda.shape", "shape", "an item that is no int",
					      accepted);
		if (n < 0)
			return refuse_int(call, "cuda.shape", "shape, an item", n, accepted);
		info->shape[i] = n;
		empty = empty || n == 0;
	}
	for (uint32_t i = 0; !empty && i < info->n_dims; i++)
		if (__builtin_mul_overflow(bytes, (uint64_t)info->shape[i], &bytes) ||
		    bytes > UINT64_C(1) << 62)
			return refuse_int(call, "cuda.shape", "shape, an item", info->shape[i],
					  accepted);
	*ret_bytes = empty ? 0 : bytes;
	return 0;
}

/* The arguments shape and dtype: new memory that is to be written. */
static bh_status parse_array(const struct bh_cuda_call *call, const struct bh_value *args,
			     enum bh_buffer_kind kind, struct bh_buffer_info *ret_info,
			     uint64_t *ret_bytes)
{
	bh_status st;

	*ret_info = (struct bh_buffer_info){ .size = sizeof(*ret_info),
					     .kind = kind,
					     .flags = BH_BUFFER_WRITABLE };
	st = parse_dtype(call, args[1].as.text.data, ret_info);
	return st < 0 ? st : parse_shape(call, &args[0].as.list, ret_info, ret_bytes);
}

/* ---- alloc and free ------------------------------------------------------------------------------------------ */

struct giving {
	struct bh_cuda_pending pending;
	struct bh_buffer *buffer; /* a reference, until it is given */
};

static bh_status give_buffer(struct bh_cuda_pending *pending, struct bh_value *value)
{
	struct giving *giving = (struct giving *)pending;

	value->type = BH_TYPE_BUFFER;
	value->as.buffer = giving->buffer;
	giving->buffer = NULL;
	return 0;
}

static void drop_buffer(struct bh_cuda_pending *pending)
{
	struct giving *giving = (struct giving *)pending;

	if (giving->buffer)
		pending->cuda->services->buffer_unref(giving->buffer);
}

/* NULL: the task has been told. */
static struct giving *giving_new(const struct bh_cuda_call *call)
{
	struct giving *giving = (struct giving *)bh_cuda_pending_new(call, sizeof(*giving));

	if (!giving)
		return NULL;
	giving->pending.give = give_buffer;
	giving->pending.cleanup = drop_buffer;
	return giving;
}

static bh_status alloc_device(const struct bh_cuda_call *call, const struct bh_buffer_info *info,
			      uint64_t bytes, bool zero)
{
	struct bh_cuda *cuda = call->cuda;
	struct bh_cuda_record *record = NULL;
	struct giving *giving = giving_new(call);
	bh_status st;

	if (!giving)
		return -EIO;
	st = bh_cuda_memory_alloc(call, info, bytes, &record);
	if (st == 0) {
		giving->buffer = record->buffer;
		if (zero && bytes > 0)
			st = bh_cuda_check(call,
					   cuda->device.driver->cuMemsetD8Async_(
						   record->address, 0, bytes, cuda->memory->stream),
					   "cuMemsetD8Async");
	}
	if (st < 0) {
		bh_cuda_pending_drop(&giving->pending);
		return st;
	}
	return bh_cuda_post(&giving->pending, cuda->memory->stream);
}

static bh_status run_alloc(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_buffer_info info;
	uint64_t bytes = 0;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "alloc");
	if (st == 0)
		st = parse_array(&call, args, BH_BUFFER_CUDA, &info, &bytes);
	if (st < 0)
		return st;
	info.device = call.cuda->device.ordinal;
	return alloc_device(&call, &info, bytes, args[2].as.boolean);
}

static bh_status run_free(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_cuda_operand operand;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "free");
	if (st == 0)
		st = bh_cuda_operand(&call, "memory", &args[0], &operand);
	if (st < 0)
		return st;
	return bh_cuda_memory_free_now(&call, operand.buffer, &operand.info);
}

/* ---- pinned host memory ---------------------------------------------------------------------------------------- */

static bh_status run_alloc_host(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_value value = { .type = BH_TYPE_BUFFER };
	struct bh_buffer_info info;
	struct bh_cuda_fault fault;
	uint64_t bytes = 0;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "alloc_host");
	if (st == 0)
		st = parse_array(&call, args, BH_BUFFER_HOST, &info, &bytes);
	if (st < 0)
		return st;
	/* Pages of its own: the driver pins none twice. */
	st = call.cuda->services->buffer_alloc(call.cuda->ctx, &info,
					       (uint64_t)sysconf(_SC_PAGESIZE), &value.as.buffer);
	if (st < 0) {
		(void)bh_cuda_fault(&fault, st, "cuda.host_memory",
				    "the host has no %" PRIu64 " bytes of memory", bytes);
		return bh_cuda_fail_by(&call, &fault);
	}
	(void)call.cuda->services->buffer_info(value.as.buffer, &info);
	st = bh_cuda_memory_pin(&call, value.as.buffer, &info, false);
	if (st < 0) {
		call.cuda->services->buffer_unref(value.as.buffer);
		return st;
	}
	return call.cuda->services->result(task, &value);
}

static bh_status run_pin(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_cuda_operand operand;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "pin");
	if (st == 0)
		st = bh_cuda_operand(&call, "memory", &args[0], &operand);
	if (st < 0)
		return st;
	return bh_cuda_memory_pin(&call, operand.buffer, &operand.info, true);
}

static bh_status run_unpin(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_cuda_operand operand;
	BH_CUDA_CALL call;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "unpin");
	if (st == 0)
		st = bh_cuda_operand(&call, "memory", &args[0], &operand);
	if (st < 0)
		return st;
	return bh_cuda_memory_unpin(&call, &operand.info);
}

/* ---- copies -------------------------------------------------------------------------------------------------------- */

static bh_status refuse_range(const struct bh_cuda_call *call, const char *parameter, int64_t given,
			      const struct bh_cuda_operand *operand, const char *accepted)
{
	const struct bh_fact facts[] = {
		bh_fact_str("parameter", parameter),
		bh_fact_int("given", given),
		bh_fact_str("memory", operand->name),
		bh_fact_int("memory_bytes", (int64_t)operand->info.length),
		bh_fact_str("accepted", accepted),
	};

	return call->cuda->services->task_fail(call->task, -EINVAL, "cuda.range", facts,
					       N_FACTS(facts));
}

static bh_status check_range(const struct bh_cuda_call *call, const struct bh_cuda_operand *operand,
			     const char *offset_name, int64_t offset, int64_t length)
{
	uint64_t size = operand->info.length;

	if (offset < 0 || (uint64_t)offset > size)
		return refuse_range(call, offset_name, offset, operand,
				    "bytes from the memory's beginning, within it");
	if (length < 0 || (uint64_t)length > size - (uint64_t)offset)
		return refuse_range(
			call, "length", length, operand,
			"bytes that both have behind their offsets; none: all that `source` "
			"has there");
	return 0;
}

static bool overlap(CUdeviceptr a, CUdeviceptr b, uint64_t length)
{
	return a < b ? b - a < length : a - b < length;
}

struct copy {
	struct bh_cuda_operand to, from;
	CUdeviceptr to_at, from_at;
	uint64_t length;
};

static bh_status parse_copy(const struct bh_cuda_call *call, const struct bh_value *args,
			    struct copy *copy)
{
	int64_t to_offset = args[2].as.integer, from_offset = args[3].as.integer, length;
	bh_status st;

	st = bh_cuda_operand(call, "to", &args[0], &copy->to);
	if (st == 0)
		st = bh_cuda_operand(call, "source", &args[1], &copy->from);
	if (st < 0)
		return st;
	if (args[4].type == BH_TYPE_INT)
		length = args[4].as.integer;
	else /* a wrong offset is told as that */
		length = from_offset >= 0 && (uint64_t)from_offset <= copy->from.info.length
				 ? (int64_t)(copy->from.info.length - (uint64_t)from_offset)
				 : 0;
	st = check_range(call, &copy->from, "source_offset", from_offset, length);
	if (st == 0)
		st = check_range(call, &copy->to, "to_offset", to_offset, length);
	if (st < 0)
		return st;
	copy->to_at = copy->to.address + (uint64_t)to_offset;
	copy->from_at = copy->from.address + (uint64_t)from_offset;
	copy->length = (uint64_t)length;
	if (copy->length > 0 && overlap(copy->to_at, copy->from_at, copy->length))
		return bh_cuda_refuse(call, "cuda.overlap", "to",
				      "memory that `source` lies in too",
				      "parts that do not overlap");
	return 0;
}

/* Host memory that is not pinned is staged by the driver, which may block here until it is read. */
static CUresult queue_copy(const struct bh_cuda *cuda, const struct copy *copy, CUstream stream,
			   const char **ret_what)
{
	const struct bh_cuda_driver *driver = cuda->device.driver;
	int32_t own = cuda->device.ordinal;
	bool to_own = copy->to.on_device && copy->to.info.device == own;
	bool from_own = copy->from.on_device && copy->from.info.device == own;

	if (to_own && !copy->from.on_device) {
		*ret_what = "cuMemcpyHtoDAsync";
		return driver->cuMemcpyHtoDAsync_(copy->to_at, (void *)(uintptr_t)copy->from_at,
						  copy->length, stream);
	}
	if (from_own && !copy->to.on_device) {
		*ret_what = "cuMemcpyDtoHAsync";
		return driver->cuMemcpyDtoHAsync_((void *)(uintptr_t)copy->to_at, copy->from_at,
						  copy->length, stream);
	}
	if (to_own && from_own) {
		*ret_what = "cuMemcpyDtoDAsync";
		return driver->cuMemcpyDtoDAsync_(copy->to_at, copy->from_at, copy->length, stream);
	}
	*ret_what = "cuMemcpyAsync"; /* it looks at the addresses */
	return driver->cuMemcpyAsync_(copy->to_at, copy->from_at, copy->length, stream);
}

static void count_copy(const struct bh_cuda *cuda, const struct copy *copy)
{
	uint32_t row = BH_CUDA_METRIC_COPIED_WITHIN;

	if (copy->to.on_device && !copy->from.on_device)
		row = BH_CUDA_METRIC_COPIED_IN;
	else if (copy->from.on_device && !copy->to.on_device)
		row = BH_CUDA_METRIC_COPIED_OUT;
	else if (!copy->to.on_device)
		return; /* the device had no part in it */
	cuda->services->metric_add(cuda->ctx, row, (int64_t)copy->length);
}

static bh_status run_copy(void *state, struct bh_task *task, const struct bh_value *args)
{
	const char *what = NULL;
	struct giving *giving;
	BH_CUDA_CALL call;
	struct copy copy;
	CUstream stream;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "copy");
	if (st == 0)
		st = parse_copy(&call, args, &copy);
	if (st == 0)
		st = bh_cuda_stream_of(&call, &args[5], &stream);
	if (st < 0)
		return st;
	giving = giving_new(&call);
	if (!giving)
		return -EIO;
	giving->buffer = call.cuda->services->buffer_ref(copy.to.buffer);
	if (copy.length > 0) {
		CUresult result = queue_copy(call.cuda, &copy, stream, &what);

		st = bh_cuda_check(&call, result, what);
	}
	if (st < 0) {
		bh_cuda_pending_drop(&giving->pending);
		return st;
	}
	count_copy(call.cuda, &copy);
	return bh_cuda_post(&giving->pending, stream);
}

static bh_status run_memset(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct bh_cuda_pending *pending;
	struct bh_cuda_operand memory;
	int64_t value = args[1].as.integer;
	BH_CUDA_CALL call;
	CUstream stream;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "memset");
	if (st == 0)
		st = bh_cuda_device_operand(&call, "memory", &args[0], &memory);
	if (st == 0 && (value < 0 || value > 255))
		st = refuse_int(&call, "cuda.value", "value", value, "a byte, 0 to 255");
	if (st == 0)
		st = bh_cuda_stream_of(&call, &args[2], &stream);
	if (st < 0)
		return st;
	pending = bh_cuda_pending_new(&call, sizeof(*pending));
	if (!pending)
		return -EIO;
	if (memory.info.length > 0)
		st = bh_cuda_check(
			&call,
			call.cuda->device.driver->cuMemsetD8Async_(
				memory.address, (unsigned char)value, memory.info.length, stream),
			"cuMemsetD8Async");
	if (st < 0) {
		bh_cuda_pending_drop(pending);
		return st;
	}
	return bh_cuda_post(pending, stream);
}

/* ---- memory of other libraries ------------------------------------------------------------------------------- */

/* What an exporter says is not believed: an address that the device does not have would cost the context. */
static bh_status check_import(const struct bh_cuda_call *call, struct bh_buffer *buffer)
{
	const struct bh_cuda_device *device = &call->cuda->device;
	struct bh_buffer_info info = { .size = sizeof(info) };
	unsigned int type = 0, managed = 0;
	int ordinal = -1;
	CUdeviceptr begin = 0, at;
	size_t size = 0;
	CUpointer_attribute attributes[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_IS_MANAGED,
	};
	void *data[] = { &type, &ordinal, &begin, &size, &managed };
	char given[96];
	CUresult result;

	if (call->cuda->services->buffer_info(buffer, &info) < 0 || info.length == 0 ||
	    info.kind != BH_BUFFER_CUDA)
		return 0;
	result = device->driver->cuPointerGetAttributes_(5, attributes, data,
							 (CUdeviceptr)(uintptr_t)info.data);
	if (bh_cuda_is_sticky(result))
		return bh_cuda_check(call, result, "cuPointerGetAttributes");
	at = (CUdeviceptr)(uintptr_t)info.data;
	/* What is managed is reached by every device, wherever it was made. */
	if (result == CUDA_SUCCESS &&
	    (managed || (type == CU_MEMORYTYPE_DEVICE && ordinal == device->ordinal))) {
		if (at >= begin && at - begin <= size && info.length <= size - (at - begin))
			return 0;
		snprintf(given, sizeof(given), "%" PRIu64 " bytes where the driver knows of %zu",
			 info.length,
			 at >= begin && at - begin <= size ? size - (size_t)(at - begin) : 0);
	} else if (result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE)
		snprintf(given, sizeof(given), "an address of device %d", ordinal);
	else
		snprintf(given, sizeof(given),
			 "an address that the driver does not know as a "
			 "device's");
	return bh_cuda_refuse(
		call, "cuda.import", "memory", given,
		"memory of this pool's device, made in this process and not yet freed");
}

/* What the object's library has queued on it comes before what is queued on `stream` from now on. */
static bh_status order_behind(const struct bh_cuda_call *call, uint64_t after, CUstream stream)
{
	const struct bh_cuda_driver *driver = call->cuda->device.driver;
	CUevent event = NULL;
	CUresult result;
	bh_status st;

	if (after == 0)
		return 0;
	/* Of the exporter's thread, which is not this one: the legacy stream waits for those of all threads. */
	if ((CUstream)(uintptr_t)after == CU_STREAM_PER_THREAD)
		after = (uint64_t)(uintptr_t)CU_STREAM_LEGACY;
	st = bh_cuda_check(call, driver->cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING),
			   "cuEventCreate");
	if (st < 0)
		return st;
	result = driver->cuEventRecord_(event, (CUstream)(uintptr_t)after);
	/* Were it the context that is gone, the next call would say so. */
	if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_HANDLE)
		st = bh_cuda_refuse(call, "cuda.import", "memory",
				    "an object that names no stream of this device",
				    "a stream that is there, or None, in its "
				    "__cuda_array_interface__");
	else
		st = bh_cuda_check(
			call, result,
			"cuEventRecord on the stream that __cuda_array_interface__ names");
	if (st == 0)
		st = bh_cuda_check(call,
				   driver->cuStreamWaitEvent_(stream, event, CU_EVENT_WAIT_DEFAULT),
				   "cuStreamWaitEvent");
	(void)driver->cuEventDestroy_(event); /* the wait has been noted */
	return st;
}

/* The object's library may have made a context of its own current here (H12). */
static bh_status enter_again(const struct bh_cuda_call *call)
{
	struct bh_cuda_fault fault;

	if (bh_cuda_device_enter(&call->cuda->device, &fault) == 0)
		return 0;
	bh_cuda_note_result(call->cuda, fault.result, "cuCtxSetCurrent");
	return bh_cuda_fail_by(call, &fault);
}

static bh_status import_object(struct bh_cuda_call *call, const struct bh_value *args,
			       CUstream stream, struct giving *giving)
{
	struct bh_cuda_use use = {
		.size = sizeof(use),
		.device = call->cuda->device.ordinal,
		.stream = (uint64_t)(uintptr_t)stream,
	};
	bh_status st, entered;

	st = call->cuda->services->object_cuda_buffer(
		call->task, BH_CUDA_SITE_IMPORT, args[0].as.object,
		args[1].as.boolean ? BH_BUFFER_WRITABLE : 0, &use, &giving->buffer);
	entered = enter_again(call);
	if (st < 0) /* the exception is with the task */
		return st;
	if (entered < 0)
		return entered;
	st = check_import(call, giving->buffer);
	if (st == 0)
		st = order_behind(call, use.after, stream);
	return st;
}

static bh_status run_import(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct giving *giving;
	BH_CUDA_CALL call;
	CUstream stream;
	bh_status st;

	st = bh_cuda_call_begin(&call, state, task, "import_memory");
	if (st == 0)
		st = bh_cuda_stream_of(&call, &args[2], &stream);
	if (st < 0)
		return st;
	giving = giving_new(&call);
	if (!giving)
		return -EIO;
	st = import_object(&call, args, stream, giving);
	if (st < 0) {
		bh_cuda_pending_drop(&giving->pending);
		return st;
	}
	return bh_cuda_post(&giving->pending, stream);
}

const struct bh_op bh_cuda_memory_ops[BH_CUDA_MEMORY_OPS] = {
	{ .name = "info",
	  .ret = "list",
	  .run = run_info,
	  .doc = "What the device is: ordinal, name, uuid, PCI address, compute capability (major, "
		 "minor), "
		 "multiprocessors, bytes of memory, bytes free now, the driver's version (13000 is "
		 "CUDA "
		 "13.0), threads a block at most, bytes of shared memory a block at most." },
	{ .name = "alloc",
	  .args = "shape:list dtype:str=float32 zero:bool=true",
	  .ret = "buffer",
	  .run = run_alloc,
	  .doc = "New device memory, zeroed unless zero=False. It is freed when nothing refers to "
		 "it any "
		 "more, or by free()." },
	{ .name = "free",
	  .args = "memory:buffer!@",
	  .run = run_free,
	  .flags = BH_OP_CLEANUP,
	  .doc = "Frees memory of alloc() now, whoever still refers to it: they are told that it "
		 "has been "
		 "freed. Refused while other code has its address." },
	{ .name = "alloc_host",
	  .args = "shape:list dtype:str=float32",
	  .ret = "buffer",
	  .run = run_alloc_host,
	  .doc = "New pinned host memory, zeroed: copies to and from it do not block a worker." },
	{ .name = "pin",
	  .args = "memory:buffer",
	  .run = run_pin,
	  .doc = "Pins host memory, whole pages of it, and holds it, until unpin() of the same "
		 "memory: copies "
		 "to and from it do not block a worker." },
	{ .name = "unpin",
	  .args = "memory:buffer",
	  .run = run_unpin,
	  .flags = BH_OP_CLEANUP,
	  .doc = "Undoes one pin() of the same memory. Await the copies that use it first." },
	{ .name = "copy",
	  .args = "to:buffer!@ source:buffer@ to_offset:int=0 source_offset:int=0 length:int=none "
		  "stream:handle=none",
	  .ret = "buffer",
	  .run = run_copy,
	  .doc = "Copies bytes between host and device memory in any direction, also between two "
		 "devices; "
		 "gives `to` when the device is done. Offsets and length are bytes. Host memory "
		 "that is not "
		 "pinned is staged by the driver and may hold the worker meanwhile." },
	{ .name = "memset",
	  .args = "memory:buffer!@ value:int stream:handle=none",
	  .run = run_memset,
	  .doc = "Sets each byte of device memory." },
	{ .name = "import_memory",
	  .args = "memory:object writable:bool=false stream:handle=none",
	  .ret = "buffer",
	  .run = run_import,
	  .doc = "The device memory of another library's array (DLPack, __cuda_array_interface__), "
		 "without a "
		 "copy. What that library has queued on it comes first. It is held until nothing "
		 "refers to "
		 "the buffer." },
};
