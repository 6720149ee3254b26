/* SPDX-License-Identifier: BSD-3-Clause */
/* cuda_array - see cuda_array.h. Keeps: GIL-9, SUP-10.
 *
 * What the dict says is believed only as far as it can be: that the address is one of the device's is
 * for the plugin to ask the driver. */
#include "config.h"

#include <Python.h>

#include "host/python/cuda_array.h"

#include <string.h>

#include "host/core/memory.h"
#include "host/python/dlpack.h"
#include "host/python/memory.h"
#include "host/python/state.h"

#define INTERFACE "__cuda_array_interface__"

struct pyarray {
	struct bh_buffer base;
	struct bh_message message; /* its way to main once nobody holds it */
	PyObject *object;	   /* G: strong, as given */
};

/* Main, or the courier once the loop is gone; GIL held. */
static void release(struct bh_message *message)
{
	struct pyarray *self = bh_container_of(message, struct pyarray, message);

	Py_DECREF(self->object);
	free(self);
}

/* Any thread, with or without the GIL. */
static void array_free(struct bh_buffer *buffer)
{
	struct pyarray *self = bh_container_of(buffer, struct pyarray, base);

	self->message.deliver = release;
	bh_postbox_post(&bh_python_state()->releases, &self->message);
}

bool bh_pycuda_offers(PyObject *object)
{
	return PyObject_HasAttrString((PyObject *)Py_TYPE(object), INTERFACE);
}

/* ---- the dict's fields ------------------------------------------------------------------------ */

/* Raises BufferError that names the field, what it is, and what would be right. Returns -1. */
static int refuse(const char *field, PyObject *given, const char *accepted)
{
	PyErr_Clear();
	if (given)
		PyErr_Format(PyExc_BufferError, "its " INTERFACE "['%s'] is %.200R; accepted: %s",
			     field, given, accepted);
	else
		PyErr_Format(PyExc_BufferError, "its " INTERFACE " has no '%s'; accepted: %s",
			     field, accepted);
	return -1;
}

/* Borrowed; NULL where it is absent. */
static PyObject *field(PyObject *dict, const char *name)
{
	return PyDict_GetItemString(dict, name);
}

static bool is_none(PyObject *value)
{
	return !value || value == Py_None;
}

/* An int, but no bool: 0 to 2**64-1. */
static bool unsigned_from(PyObject *object, uint64_t *ret)
{
	PyObject *number = NULL;
	unsigned long long value = (unsigned long long)-1;

	if (object && !PyBool_Check(object) && PyIndex_Check(object))
		number = PyNumber_Index(object);
	if (number)
		value = PyLong_AsUnsignedLongLong(number);
	Py_XDECREF(number);
	if (!number || (value == (unsigned long long)-1 && PyErr_Occurred())) {
		PyErr_Clear();
		return false;
	}
	*ret = value;
	return true;
}

static bool signed_from(PyObject *object, int64_t *ret)
{
	PyObject *number = NULL;
	long long value = -1;

	if (!PyBool_Check(object) && PyIndex_Check(object))
		number = PyNumber_Index(object);
	if (number)
		value = PyLong_AsLongLong(number);
	Py_XDECREF(number);
	if (!number || (value == -1 && PyErr_Occurred())) {
		PyErr_Clear();
		return false;
	}
	*ret = value;
	return true;
}

static int take_version(PyObject *dict)
{
	uint64_t version;
	PyObject *given = field(dict, "version");

	if (unsigned_from(given, &version) && (version == 2 || version == 3))
		return 0;
	return refuse("version", given, "2 or 3");
}

static int take_shape(PyObject *dict, struct bh_buffer_info *info)
{
	static const char accepted[] = "a tuple of at most 8 ints, none negative";
	PyObject *shape = field(dict, "shape");

	if (!shape || !PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) > (Py_ssize_t)BH_NDIM_MAX)
		return refuse("shape", shape, accepted);
	info->n_dims = (uint32_t)PyTuple_GET_SIZE(shape);
	for (uint32_t i = 0; i < info->n_dims; i++)
		if (!signed_from(PyTuple_GET_ITEM(shape, (Py_ssize_t)i), &info->shape[i]) ||
		    info->shape[i] < 0)
			return refuse("shape", shape, accepted);
	return 0;
}

/* DLPack's code of numpy's letter; the sizes in bytes as bits of a number. */
static const struct {
	char letter;
	uint8_t code;
	uint32_t sizes;
} letters[] = {
	{ 'i', BH_DL_INT, 1 | 2 | 4 | 8 },
	{ 'u', BH_DL_UINT, 1 | 2 | 4 | 8 },
	{ 'f', BH_DL_FLOAT, 2 | 4 | 8 },
	{ 'c', BH_DL_COMPLEX, 8 | 16 },
	{ 'b', BH_DL_BOOL, 1 },
};

static bool element_from(const char *text, uint8_t *ret_code, uint8_t *ret_bits)
{
	char order = text[0], letter = order ? text[1] : '\0', *end;
	unsigned long size = letter >= 'a' ? strtoul(text + 2, &end, 10) : 0;

	/* strtoul takes signs and blanks, too. */
	if (size == 0 || size > 16 || *end || text[2] < '1' || text[2] > '9')
		return false;
	if (order != '<' && (size > 1 || !strchr("|>=", order)))
		return false;
	for (size_t i = 0; i < BH_ARRAY_LEN(letters); i++) {
		if (letters[i].letter != letter || !(letters[i].sizes & size) ||
		    (size & (size - 1)))
			continue;
		*ret_code = letters[i].code;
		*ret_bits = (uint8_t)(size * 8);
		return true;
	}
	return false;
}

static int take_typestr(PyObject *dict, struct bh_buffer *buffer)
{
	PyObject *typestr = field(dict, "typestr");
	Py_ssize_t length = 0;
	const char *text = typestr && PyUnicode_Check(typestr)
				   ? PyUnicode_AsUTF8AndSize(typestr, &length)
				   : NULL;

	if (!text || strlen(text) != (size_t)length ||
	    !element_from(text, &buffer->element, &buffer->info.dtype_bits))
		return refuse("typestr", typestr,
			      "little-endian elements: '<f2' '<f4' '<f8', '|i1' to '<i8', '|u1' to "
			      "'<u8', '<c8' '<c16', '|b1'; view others as bytes, '|u1'");
	buffer->info.dtype_code =
		buffer->element <= BH_DL_FLOAT ? buffer->element : (uint8_t)BH_DTYPE_OPAQUE;
	return 0;
}

/* After shape and typestr. */
static int take_data(PyObject *dict, struct bh_buffer_info *info)
{
	static const char accepted[] =
		"a tuple (address, read-only) of an int and a bool, the address 0 only where there "
		"are no elements";
	PyObject *data = field(dict, "data"), *readonly;
	uint64_t address;

	if (!data || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2 ||
	    !unsigned_from(PyTuple_GET_ITEM(data, 0), &address))
		return refuse("data", data, accepted);
	readonly = PyTuple_GET_ITEM(data, 1);
	if (!PyBool_Check(readonly) || (address == 0 && info->length > 0) ||
	    (info->length > 0 && address > UINT64_MAX - info->length))
		return refuse("data", data, accepted);
	info->data = (void *)(uintptr_t)address;
	info->flags = readonly == Py_True ? 0 : BH_BUFFER_WRITABLE;
	return 0;
}

static int take_mask(PyObject *dict)
{
	PyObject *mask = field(dict, "mask");

	return is_none(mask) ? 0 : refuse("mask", mask, "None: masked arrays are not");
}

/* C-contiguous ones, where `given` does not say otherwise. */
static void fill_strides(struct bh_buffer_info *info)
{
	int64_t step = info->dtype_bits / 8;

	for (uint32_t i = info->n_dims; i-- > 0;) {
		info->strides[i] = step;
		if (info->length > 0) /* else the product may be any */
			step *= info->shape[i];
	}
}

static int take_strides(PyObject *dict, bool strided, struct bh_buffer *buffer)
{
	static const char accepted[] = "None, or a tuple of as many ints as there are dimensions, "
				       "in bytes, each a multiple "
				       "of the element's";
	struct bh_buffer_info *info = &buffer->info;
	PyObject *strides = field(dict, "strides");

	fill_strides(info);
	if (is_none(strides))
		return 0;
	if (!PyTuple_Check(strides) || PyTuple_GET_SIZE(strides) != (Py_ssize_t)info->n_dims)
		return refuse("strides", strides, accepted);
	for (uint32_t i = 0; i < info->n_dims; i++) {
		int64_t stride;

		if (!signed_from(PyTuple_GET_ITEM(strides, (Py_ssize_t)i), &stride) ||
		    stride % (info->dtype_bits / 8) != 0)
			return refuse("strides", strides, accepted);
		/* Of one element, or none, it may say anything. */
		if (info->length > 0 && info->shape[i] != 1)
			info->strides[i] = stride;
	}
	if (strided || bh_buffer_is_contiguous(buffer))
		return 0;
	return refuse("strides", strides,
		      "C-contiguous memory: pass a contiguous copy, such as "
		      "cupy.ascontiguousarray(x)");
}

static int take_stream(PyObject *dict, uint64_t *ret_stream)
{
	PyObject *stream = field(dict, "stream");
	uint64_t value = 0;

	if (!is_none(stream) && (!unsigned_from(stream, &value) || value == 0))
		return refuse(
			"stream", stream,
			"None, 1 (CUDA's legacy default stream), 2 (the per-thread one), or a "
			"stream's address");
	*ret_stream = value;
	return 0;
}

static int measure(PyObject *dict, struct bh_buffer_info *info)
{
	if (bh_memory_length(info, &info->length) == 0)
		return 0;
	return refuse("shape", field(dict, "shape"), "one whose elements can be addressed");
}

static int take_fields(struct bh_buffer *buffer, PyObject *dict, uint32_t flags,
		       struct bh_cuda_use *use)
{
	struct bh_buffer_info *info = &buffer->info;
	uint64_t after;

	info->size = sizeof(*info);
	info->kind = BH_BUFFER_CUDA;
	info->device = use->device < 0 ? 0 : use->device; /* it does not say */
	if (take_version(dict) < 0 || take_shape(dict, info) < 0 ||
	    take_typestr(dict, buffer) < 0 || measure(dict, info) < 0 ||
	    take_data(dict, info) < 0 || take_mask(dict) < 0 ||
	    take_strides(dict, flags & BH_BUFFER_STRIDED, buffer) < 0 ||
	    take_stream(dict, &after) < 0)
		return -1;
	if (flags & BH_BUFFER_WRITABLE && !(info->flags & BH_BUFFER_WRITABLE)) {
		PyErr_SetString(PyExc_BufferError,
				"its memory is read-only and the op writes to it; pass memory that "
				"may be written to, such as x.copy()");
		return -1;
	}
	use->after = after;
	return 0;
}

static struct bh_buffer *array_new(PyObject *object, uint32_t flags, struct bh_cuda_use *use)
{
	PyObject *dict = PyObject_GetAttrString(object, INTERFACE);
	struct pyarray *self;

	if (!dict)
		return NULL;
	if (!PyDict_Check(dict)) {
		PyErr_Format(PyExc_BufferError, "its " INTERFACE " is a %.100s; accepted: a dict",
			     Py_TYPE(dict)->tp_name);
		Py_DECREF(dict);
		return NULL;
	}
	/* A copy holds what is read of it, whatever its numbers' __index__ do to the exporter's own. */
	Py_SETREF(dict, PyDict_Copy(dict));
	if (!dict)
		return NULL;
	self = calloc(1, sizeof(*self));
	if (!self)
		PyErr_NoMemory();
	if (!self || take_fields(&self->base, dict, flags, use) < 0) {
		Py_DECREF(dict);
		free(self);
		return NULL;
	}
	Py_DECREF(dict);
	self->base.refs = 1;
	self->base.free = array_free;
	self->object = Py_NewRef(object);
	return &self->base;
}

/* ---- the ways there --------------------------------------------------------------------------- */

static struct bh_buffer *take_own(struct bh_buffer *buffer, uint32_t flags,
				  const struct bh_cuda_use *use)
{
	const struct bh_buffer_info *info = &buffer->info;

	bh_buffer_ref(buffer); /* before the look at whether it was taken back */
	if (bh_buffer_is_revoked(buffer))
		PyErr_SetString(PyExc_BufferError, BH_PYMEMORY_FREED);
	else if (info->kind == BH_BUFFER_HOST)
		PyErr_SetString(PyExc_BufferError, BH_PYMEMORY_ON_HOST);
	else if (info->kind == BH_BUFFER_CUDA && use->device >= 0 && info->device != use->device)
		PyErr_Format(
			PyExc_BufferError,
			"its memory is on the device cuda:%d and the op works on cuda:%d; copy "
			"it there first",
			(int)info->device, (int)use->device);
	else if (flags & BH_BUFFER_WRITABLE && !(info->flags & BH_BUFFER_WRITABLE))
		PyErr_SetString(
			PyExc_BufferError,
			"it is read-only and the op writes to it; pass a Buffer that is not");
	else if (!(flags & BH_BUFFER_STRIDED) && !bh_buffer_is_contiguous(buffer))
		PyErr_SetString(PyExc_BufferError, "its memory is not C-contiguous");
	else
		return buffer;
	bh_buffer_unref(buffer);
	return NULL;
}

struct bh_buffer *bh_pycuda_new(PyObject *object, uint32_t flags, struct bh_cuda_use *use)
{
	struct bh_buffer *own = bh_pymemory_get(object);

	use->after = 0;
	if (own)
		return take_own(own, flags, use);
	if (bh_pydlpack_offers(object))
		return bh_pydlpack_new_cuda(object, flags & BH_BUFFER_WRITABLE,
					    flags & BH_BUFFER_STRIDED, use);
	if (bh_pycuda_offers(object))
		return array_new(object, flags, use);
	if (PyObject_CheckBuffer(object))
		PyErr_SetString(PyExc_BufferError, BH_PYMEMORY_ON_HOST);
	else
		PyErr_Format(PyExc_TypeError,
			     "%s has no memory of a CUDA device to give; accepted: an object with "
			     "__dlpack__ or " INTERFACE ", or a bulkhead.Buffer",
			     object == Py_None ? "None" : Py_TYPE(object)->tp_name);
	return NULL;
}
