/* SPDX-License-Identifier: BSD-3-Clause */
/* memory - see memory.h. */
#include "config.h"

#include <Python.h>

#include "host/python/memory.h"

#include <errno.h>
#include <string.h>
#include <structmember.h>

#include "host/core/memory.h"
#include "host/python/dlpack.h"
#include "host/python/state.h"

struct pymemory {
	PyObject_HEAD struct bh_buffer *buffer; /* I: a reference */
	Py_ssize_t shape[BH_NDIM_MAX];		/* I; exports point at these */
	Py_ssize_t strides[BH_NDIM_MAX];	/* I */
	char format[8];				/* I: the buffer protocol's; "" where it has none */
	PyObject *weakrefs;			/* G */
};

/* ---- element types --------------------------------------------------------------------------- */

static const struct element {
	const char *name;
	uint8_t code; /* enum bh_dl_code */
	uint8_t bits;
	const char *format; /* "": the buffer protocol has none */
} elements[] = {
	{ "float32", BH_DL_FLOAT, 32, "f" },
	{ "float64", BH_DL_FLOAT, 64, "d" },
	{ "float16", BH_DL_FLOAT, 16, "e" },
	{ "bfloat16", BH_DL_BFLOAT, 16, "" },
	{ "int8", BH_DL_INT, 8, "b" },
	{ "int16", BH_DL_INT, 16, "h" },
	{ "int32", BH_DL_INT, 32, "i" },
	{ "int64", BH_DL_INT, 64, "q" },
	{ "uint8", BH_DL_UINT, 8, "B" },
	{ "uint16", BH_DL_UINT, 16, "H" },
	{ "uint32", BH_DL_UINT, 32, "I" },
	{ "uint64", BH_DL_UINT, 64, "Q" },
	{ "bool", BH_DL_BOOL, 8, "?" },
	{ "complex64", BH_DL_COMPLEX, 64, "Zf" },
	{ "complex128", BH_DL_COMPLEX, 128, "Zd" },
	/* Python's own, as numpy takes them: below, so that no buffer is described by them. */
	{ "float", BH_DL_FLOAT, 64, "d" },
	{ "int", BH_DL_INT, 64, "q" },
	{ "complex", BH_DL_COMPLEX, 128, "Zd" },
};

static const struct element *find_element(uint8_t code, uint8_t bits)
{
	for (size_t i = 0; i < BH_ARRAY_LEN(elements); i++)
		if (elements[i].code == code && elements[i].bits == bits)
			return &elements[i];
	return NULL;
}

static const struct element *find_name(const char *name, size_t length)
{
	for (size_t i = 0; i < BH_ARRAY_LEN(elements); i++)
		if (strlen(elements[i].name) == length &&
		    memcmp(elements[i].name, name, length) == 0)
			return &elements[i];
	return NULL;
}

/* What a dtype calls itself: a str, numpy.dtype's `name`, the name of numpy.float32 or float, or, as
 * torch.float32, its text. A new reference. */
static PyObject *name_of(PyObject *dtype)
{
	PyObject *name;

	if (PyUnicode_Check(dtype))
		return Py_NewRef(dtype);
	if (PyType_Check(dtype))
		return PyObject_GetAttrString(dtype, "__name__");
	name = PyObject_GetAttrString(dtype, "name");
	if (name && PyUnicode_Check(name))
		return name;
	Py_XDECREF(name);
	PyErr_Clear();
	return PyObject_Str(dtype);
}

/* numpy's dtype of the other byte order has the same name. */
static bool is_swapped(PyObject *dtype)
{
	PyObject *native = PyObject_GetAttrString(dtype, "isnative");
	bool swapped = native == Py_False;

	if (!native)
		PyErr_Clear();
	Py_XDECREF(native);
	return swapped;
}

static const struct element *element_from(PyObject *dtype)
{
	PyObject *name = name_of(dtype);
	const struct element *found = NULL;
	Py_ssize_t length = 0;
	const char *text = name ? PyUnicode_AsUTF8AndSize(name, &length) : NULL;

	if (text && strncmp(text, "torch.", 6) == 0)
		found = find_name(text + 6, (size_t)length - 6);
	else if (text && !is_swapped(dtype))
		found = find_name(text, (size_t)length);
	Py_XDECREF(name);
	if (!text || found)
		return found;
	PyErr_Format(
		PyExc_ValueError,
		"dtype %R; accepted: float16 float32 float64 bfloat16, int8 to int64, uint8 to "
		"uint64, bool, complex64 complex128, in this machine's byte order",
		dtype);
	return NULL;
}

/* ---- making one ------------------------------------------------------------------------------ */

static void describe(struct pymemory *self)
{
	const struct bh_buffer_info *info = &self->buffer->info;
	const struct element *element = find_element(self->buffer->element, info->dtype_bits);

	for (uint32_t i = 0; i < info->n_dims; i++) {
		self->shape[i] = (Py_ssize_t)info->shape[i];
		self->strides[i] = (Py_ssize_t)info->strides[i];
	}
	if (element)
		snprintf(self->format, sizeof(self->format), "%s", element->format);
	else /* opaque: bytes that belong together */
		snprintf(self->format, sizeof(self->format), "%ds", info->dtype_bits / 8);
}

/* Takes a reference of its own. */
static PyObject *show(PyTypeObject *type, struct bh_buffer *buffer)
{
	struct pymemory *self = (struct pymemory *)type->tp_alloc(type, 0);

	if (!self)
		return NULL;
	bh_buffer_show(buffer);
	self->buffer = buffer;
	describe(self);
	buffer->python = self;
	return (PyObject *)self;
}

PyObject *bh_pymemory_of(struct bh_buffer *buffer)
{
	if (buffer->python)
		return Py_NewRef(buffer->python);
	return show(bh_python_state()->memory_type, buffer);
}

struct bh_buffer *bh_pymemory_get(PyObject *object)
{
	if (!Py_IS_TYPE(object, bh_python_state()->memory_type))
		return NULL;
	return ((struct pymemory *)object)->buffer;
}

/* One dimension from a Python integer. */
static int dimension_from(PyObject *object, int64_t *ret)
{
	Py_ssize_t n = PyNumber_AsSsize_t(object, PyExc_MemoryError);

	if (n == -1 && PyErr_Occurred())
		return -1;
	if (n < 0) {
		PyErr_Format(PyExc_ValueError,
			     "shape has a dimension of %zd elements; 0 or more "
			     "are accepted",
			     n);
		return -1;
	}
	*ret = n;
	return 0;
}

static int shape_from(PyObject *shape, struct bh_buffer_info *info)
{
	PyObject *items;
	int result = 0;

	if (PyIndex_Check(shape)) {
		info->n_dims = 1;
		return dimension_from(shape, &info->shape[0]);
	}
	if (!PyTuple_Check(shape) && !PyList_Check(shape)) {
		PyErr_Format(PyExc_TypeError, "shape must be an int or a tuple of ints, not %.100s",
			     Py_TYPE(shape)->tp_name);
		return -1;
	}
	items = PySequence_Tuple(shape); /* an element's __index__ may change the list */
	if (!items)
		return -1;
	if (PyTuple_GET_SIZE(items) > (Py_ssize_t)BH_NDIM_MAX) {
		PyErr_Format(PyExc_ValueError, "shape has %zd dimensions; at most %d are accepted",
			     PyTuple_GET_SIZE(items), (int)BH_NDIM_MAX);
		result = -1;
	}
	for (Py_ssize_t i = 0; result == 0 && i < PyTuple_GET_SIZE(items); i++)
		result = dimension_from(PyTuple_GET_ITEM(items, i), &info->shape[i]);
	info->n_dims = (uint32_t)PyTuple_GET_SIZE(items);
	Py_DECREF(items);
	return result;
}

static int check_alignment(Py_ssize_t alignment)
{
	if (alignment > 0 && alignment <= (Py_ssize_t)BH_MEMORY_ALIGNMENT_MAX &&
	    (alignment & (alignment - 1)) == 0)
		return 0;
	PyErr_Format(PyExc_ValueError,
		     "alignment is %zd bytes; a power of two from 1 to %zd is accepted", alignment,
		     (Py_ssize_t)BH_MEMORY_ALIGNMENT_MAX);
	return -1;
}

static PyObject *memory_allocate(PyObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "shape", "dtype", "alignment", NULL };
	struct bh_buffer_info info = { .flags = BH_BUFFER_WRITABLE };
	PyObject *shape, *dtype = NULL;
	Py_ssize_t alignment = 64;
	const struct element *element = &elements[0];
	struct bh_buffer *buffer;
	PyObject *made;
	bh_status st;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|On:allocate", names, &shape, &dtype,
					 &alignment))
		return NULL;
	if (dtype)
		element = element_from(dtype);
	if (!element || shape_from(shape, &info) < 0 || check_alignment(alignment) < 0)
		return NULL;
	info.dtype_code = element->code <= BH_DL_FLOAT ? element->code : (uint8_t)BH_DTYPE_OPAQUE;
	info.dtype_bits = element->bits;
	st = bh_memory_new(&info, (uint64_t)alignment, &buffer);
	if (st < 0)
		return PyErr_Format(PyExc_MemoryError, "no memory for shape %R of %s", shape,
				    element->name);
	buffer->element = element->code;
	made = show((PyTypeObject *)type, buffer);
	bh_buffer_unref(buffer);
	return made;
}

static void memory_dealloc(PyObject *object)
{
	struct pymemory *self = (struct pymemory *)object;
	PyTypeObject *type = Py_TYPE(object);

	assert(self->buffer->python == self); /* it has one such object at a time */
	self->buffer->python = NULL;
	if (self->weakrefs) {
		/* First: what a callback runs may ask for the buffer's object, and then gets a
		 * new one. */
		bh_buffer_hide(self->buffer);
		PyObject_ClearWeakRefs(object);
		bh_buffer_unref(self->buffer);
	} else {
		bh_buffer_unref_shown(self->buffer);
	}
	type->tp_free(object);
	Py_DECREF(type);
}

/* ---- the buffer protocol --------------------------------------------------------------------- */

static void raise_not_the_hosts(const struct bh_buffer *buffer)
{
	if (bh_buffer_is_revoked(buffer))
		PyErr_SetString(PyExc_BufferError, BH_PYMEMORY_FREED);
	else
		PyErr_Format(PyExc_BufferError, BH_PYMEMORY_ON_DEVICE, (int)buffer->info.device);
}

/* In the order of Fortran: only where no two dimensions have more than one element. */
static bool is_fortran(const struct pymemory *self)
{
	const struct bh_buffer_info *info = &self->buffer->info;
	int wide = 0;

	for (uint32_t i = 0; i < info->n_dims; i++)
		wide += info->shape[i] > 1;
	return wide < 2 || info->length == 0;
}

static const char *why_not(const struct pymemory *self, int flags)
{
	const struct bh_buffer_info *info = &self->buffer->info;

	if ((flags & PyBUF_WRITABLE) && !(info->flags & BH_BUFFER_WRITABLE))
		return "the buffer is read-only";
	if ((flags & PyBUF_FORMAT) && !self->format[0])
		return "the buffer protocol has no format for bfloat16: use DLPack, as "
		       "torch.from_dlpack(x) does";
	if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !is_fortran(self))
		return "the buffer is C-contiguous, not in Fortran's order";
	return NULL;
}

static int memory_getbuffer(PyObject *object, Py_buffer *view, int flags)
{
	struct pymemory *self = (struct pymemory *)object;
	const struct bh_buffer_info *info = &self->buffer->info;
	const char *reason = why_not(self, flags);
	bool shaped = (flags & PyBUF_ND) == PyBUF_ND;

	view->obj = NULL;
	if (info->kind == BH_BUFFER_CUDA) {
		raise_not_the_hosts(self->buffer);
		return -1;
	}
	if (reason) {
		PyErr_SetString(PyExc_BufferError, reason);
		return -1;
	}
	*view = (Py_buffer){
		.buf = info->data,
		.obj = Py_NewRef(object),
		.len = (Py_ssize_t)info->length,
		.itemsize = info->dtype_bits / 8,
		.readonly = !(info->flags & BH_BUFFER_WRITABLE),
		.ndim = shaped ? (int)info->n_dims : 1,
		.format = flags & PyBUF_FORMAT ? self->format : NULL,
		.shape = shaped ? self->shape : NULL,
		.strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL,
	};
	return 0;
}

static const struct bh_buffer_info *info_of(PyObject *object)
{
	return &((struct pymemory *)object)->buffer->info;
}

/* ---- DLPack ---------------------------------------------------------------------------------- */

/* The consumer's stream is not waited for, nor need it wait: a task's outcome is told after the device is
 * done with it. So what it says is only checked. Of the CPU's memory there is none. */
static int check_stream(const struct bh_buffer *buffer, PyObject *stream)
{
	long long value;
	int overflow;

	if (stream == Py_None)
		return 0;
	if (buffer->info.kind != BH_BUFFER_CUDA) {
		PyErr_SetString(PyExc_BufferError, "stream must be None: the memory is the CPU's");
		return -1;
	}
	if (!PyLong_Check(stream) || PyBool_Check(stream)) {
		PyErr_Format(PyExc_TypeError, "stream must be None or an int, not %.100s",
			     Py_TYPE(stream)->tp_name);
		return -1;
	}
	value = PyLong_AsLongLongAndOverflow(stream, &overflow);
	if (overflow == 0 && (value == -1 || value > 0))
		return 0;
	if (overflow > 0 && (PyLong_AsUnsignedLongLong(stream) != ULLONG_MAX || !PyErr_Occurred()))
		return 0;
	PyErr_Clear();
	PyErr_Format(PyExc_ValueError,
		     "stream is %R; accepted: None, -1 (no synchronization), 1 (CUDA's legacy "
		     "default stream), 2 (the per-thread one), or a stream's address",
		     stream);
	return -1;
}

static int check_dlpack(PyObject *object, PyObject *stream, PyObject *device, PyObject *copy)
{
	PyObject *own;
	int same;

	if (check_stream(((struct pymemory *)object)->buffer, stream) < 0)
		return -1;
	if (copy != Py_None && copy != Py_False) {
		PyErr_SetString(PyExc_BufferError,
				"copy=True is not offered; copy what you have made of the tensor");
		return -1;
	}
	if (device == Py_None)
		return 0;
	own = bh_pydlpack_device(((struct pymemory *)object)->buffer);
	same = own ? PyObject_RichCompareBool(own, device, Py_EQ) : -1;
	if (same == 0)
		PyErr_Format(PyExc_BufferError, "the memory is on device %R, not on %R", own,
			     device);
	Py_XDECREF(own);
	return same == 1 ? 0 : -1;
}

static PyObject *memory_dlpack(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "stream", "max_version", "dl_device", "copy", NULL };
	PyObject *stream = Py_None, *max_version = Py_None, *device = Py_None, *copy = Py_None;
	int major = 0, minor = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$OOO:__dlpack__", names, &stream,
					 &max_version, &device, &copy) ||
	    check_dlpack(object, stream, device, copy) < 0)
		return NULL;
	if (max_version != Py_None && !PyTuple_Check(max_version))
		return PyErr_Format(PyExc_TypeError,
				    "max_version must be None or a pair of ints, not %.100s",
				    Py_TYPE(max_version)->tp_name);
	if (max_version != Py_None && !PyArg_ParseTuple(max_version, "ii", &major, &minor))
		return NULL;
	return bh_pydlpack_export(((struct pymemory *)object)->buffer, major >= 1);
}

static PyObject *memory_dlpack_device(PyObject *object, PyObject *Py_UNUSED(none))
{
	return bh_pydlpack_device(((struct pymemory *)object)->buffer);
}

/* ---- what it is ------------------------------------------------------------------------------ */

static PyObject *get_shape(PyObject *object, void *Py_UNUSED(closure))
{
	PyObject *shape = PyTuple_New((Py_ssize_t)info_of(object)->n_dims);

	for (uint32_t i = 0; shape && i < info_of(object)->n_dims; i++) {
		PyObject *n = PyLong_FromLongLong(info_of(object)->shape[i]);

		if (!n) {
			Py_DECREF(shape);
			return NULL;
		}
		PyTuple_SET_ITEM(shape, (Py_ssize_t)i, n);
	}
	return shape;
}

static PyObject *get_dtype(PyObject *object, void *Py_UNUSED(closure))
{
	const struct bh_buffer *buffer = ((struct pymemory *)object)->buffer;
	const struct element *element = find_element(buffer->element, buffer->info.dtype_bits);

	if (element)
		return PyUnicode_FromString(element->name);
	return PyUnicode_FromFormat("opaque%d", buffer->info.dtype_bits);
}

static PyObject *get_ndim(PyObject *object, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLong(info_of(object)->n_dims);
}

static PyObject *get_nbytes(PyObject *object, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLongLong(info_of(object)->length);
}

static PyObject *get_itemsize(PyObject *object, void *Py_UNUSED(closure))
{
	return PyLong_FromLong(info_of(object)->dtype_bits / 8);
}

static PyObject *get_address(PyObject *object, void *Py_UNUSED(closure))
{
	return PyLong_FromVoidPtr(info_of(object)->data);
}

/* The lowest bit of the address. */
static PyObject *get_alignment(PyObject *object, void *Py_UNUSED(closure))
{
	uintptr_t address = (uintptr_t)info_of(object)->data | BH_MEMORY_ALIGNMENT_MAX;

	return PyLong_FromUnsignedLongLong(address & -address);
}

static PyObject *get_device(PyObject *object, void *Py_UNUSED(closure))
{
	if (info_of(object)->kind == BH_BUFFER_CUDA)
		return PyUnicode_FromFormat("cuda:%d", (int)info_of(object)->device);
	return PyUnicode_FromString("cpu");
}

static PyObject *get_readonly(PyObject *object, void *Py_UNUSED(closure))
{
	return PyBool_FromLong(!(info_of(object)->flags & BH_BUFFER_WRITABLE));
}

static Py_ssize_t memory_length(PyObject *object)
{
	if (info_of(object)->n_dims > 0)
		return (Py_ssize_t)info_of(object)->shape[0];
	PyErr_SetString(PyExc_TypeError, "a Buffer without dimensions has no length");
	return -1;
}

static PyObject *memory_repr(PyObject *object)
{
	PyObject *shape = get_shape(object, NULL), *dtype = get_dtype(object, NULL), *text = NULL;
	const struct bh_buffer *buffer = ((struct pymemory *)object)->buffer;
	char where[40] = "";

	if (buffer->info.kind == BH_BUFFER_CUDA)
		snprintf(where, sizeof(where), " device=cuda:%d", (int)buffer->info.device);
	if (shape && dtype && bh_buffer_is_revoked(buffer))
		text = PyUnicode_FromFormat("<bulkhead.Buffer shape=%R dtype=%U%s freed>", shape,
					    dtype, where);
	else if (shape && dtype)
		text = PyUnicode_FromFormat(
			"<bulkhead.Buffer shape=%R dtype=%U%s%s at %p>", shape, dtype, where,
			buffer->info.flags & BH_BUFFER_WRITABLE ? "" : " read-only",
			buffer->info.data);
	Py_XDECREF(shape);
	Py_XDECREF(dtype);
	return text;
}

/* ---- __cuda_array_interface__ ---------------------------------------------------------------- */

static PyObject *tuple_of(const Py_ssize_t *numbers, uint32_t n)
{
	PyObject *tuple = PyTuple_New((Py_ssize_t)n);

	for (uint32_t i = 0; tuple && i < n; i++) {
		PyObject *number = PyLong_FromSsize_t(numbers[i]);

		if (!number)
			Py_CLEAR(tuple);
		else
			PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, number);
	}
	return tuple;
}

/* numpy's letter for an element; 0: it has none. */
static char letter_of(uint8_t code)
{
	switch (code) {
	case BH_DL_INT:
		return 'i';
	case BH_DL_UINT:
		return 'u';
	case BH_DL_FLOAT:
		return 'f';
	case BH_DL_COMPLEX:
		return 'c';
	case BH_DL_BOOL:
		return 'b';
	default:
		return '\0';
	}
}

/* Version 3. No stream: there is nothing to wait for, see check_stream(). Whoever asks for the attribute
 * may keep the address, so that the memory is shared from then on. */
static PyObject *get_cuda_array(PyObject *object, void *Py_UNUSED(closure))
{
	const struct pymemory *self = (struct pymemory *)object;
	struct bh_buffer *buffer = self->buffer;
	const struct bh_buffer_info *info = &buffer->info;
	int bytes = info->dtype_bits / 8;
	char typestr[8], letter = letter_of(buffer->element);
	PyObject *shape, *strides;

	if (info->kind != BH_BUFFER_CUDA || !letter)
		return PyErr_Format(PyExc_AttributeError,
				    info->kind != BH_BUFFER_CUDA
					    ? "a Buffer of the host's memory has no "
					      "__cuda_array_interface__"
					    : "__cuda_array_interface__ has no name for elements "
					      "of this type: use DLPack");
	if (!bh_buffer_share(buffer)) {
		PyErr_SetString(PyExc_BufferError, BH_PYMEMORY_FREED);
		return NULL;
	}
	snprintf(typestr, sizeof(typestr), "%c%c%d", bytes == 1 ? '|' : '<', letter, bytes);
	shape = tuple_of(self->shape, info->n_dims);
	strides = bh_buffer_is_contiguous(buffer) ? Py_NewRef(Py_None)
						  : tuple_of(self->strides, info->n_dims);
	if (!shape || !strides) {
		Py_XDECREF(shape);
		Py_XDECREF(strides);
		return NULL;
	}
	return Py_BuildValue("{sN ss s(KO) si sN sO}", "shape", shape, "typestr", typestr, "data",
			     info->length ? (unsigned long long)(uintptr_t)info->data : 0ULL,
			     info->flags & BH_BUFFER_WRITABLE ? Py_False : Py_True, "version", 3,
			     "strides", strides, "stream", Py_None);
}

/* ---- the type -------------------------------------------------------------------------------- */

#define DLPACK_DOC                                                                                 \
	"__dlpack__($self, stream=None, *, max_version=None, dl_device=None, copy=None)\n--\n\n"   \
	"A capsule with the memory for DLPack's consumers: numpy.from_dlpack(x), "                 \
	"torch.from_dlpack(x).\nIt keeps the memory alive. BufferError where DLPack cannot say "   \
	"what "                                                                                    \
	"is asked for."

static PyMethodDef memory_methods[] = {
	{ "allocate", (PyCFunction)(void (*)(void))memory_allocate,
	  METH_VARARGS | METH_KEYWORDS | METH_CLASS,
	  "allocate($type, shape, dtype='float32', alignment=64)\n--\n\n"
	  "A new Buffer of zeros, C-contiguous.\n\n"
	  "shape: an int, or a tuple of at most 8. dtype: float16 float32 float64 bfloat16, int8 … "
	  "int64,\nuint8 … uint64, bool, complex64 complex128, by name or as numpy and torch have "
	  "them.\nalignment: of the first byte, a power of two from 1 to 2 MiB. ValueError, "
	  "TypeError "
	  "for what is\nnone of these; MemoryError when there is not so much." },
	{ "__dlpack__", (PyCFunction)(void (*)(void))memory_dlpack, METH_VARARGS | METH_KEYWORDS,
	  DLPACK_DOC },
	{ "__dlpack_device__", memory_dlpack_device, METH_NOARGS,
	  "__dlpack_device__($self)\n--\n\n(1, 0): the CPU; (2, n): the CUDA device n; (3, 0): "
	  "pinned by "
	  "CUDA." },
	{ NULL, NULL, 0, NULL },
};

static PyGetSetDef memory_getset[] = {
	{ "shape", get_shape, NULL, "Elements of each dimension.", NULL },
	{ "ndim", get_ndim, NULL, "How many dimensions.", NULL },
	{ "dtype", get_dtype, NULL, "The elements' type, as 'float32'.", NULL },
	{ "itemsize", get_itemsize, NULL, "Bytes of an element.", NULL },
	{ "nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL },
	{ "address", get_address, NULL, "Where the first byte lies.", NULL },
	{ "alignment", get_alignment, NULL,
	  "The largest power of two, up to 2 MiB, that divides the address.", NULL },
	{ "device", get_device, NULL, "'cpu', or 'cuda:0' and so on for a device's memory.", NULL },
	{ "__cuda_array_interface__", get_cuda_array, NULL,
	  "A device's memory for CuPy, Numba and others, version 3. AttributeError for the host's, "
	  "and for elements\nthat it has no name for.",
	  NULL },
	{ "readonly", get_readonly, NULL, "Whether it may only be read.", NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyMemberDef memory_members[] = {
	{ "__weaklistoffset__", T_PYSSIZET, offsetof(struct pymemory, weakrefs), READONLY, NULL },
	{ NULL, 0, 0, 0, NULL },
};

static PyType_Slot memory_slots[] = {
	{ Py_tp_doc,
	  "Memory of the host's: what Buffer.allocate() makes, and what ops return as a buffer.\n\n"
	  "Ops take it without a copy and without Python's help. Others read and write it through "
	  "the buffer\nprotocol (memoryview(x), numpy.asarray(x)) and DLPack "
	  "(torch.from_dlpack(x)). It goes when the last\nreference, export and task that uses it "
	  "have gone." },
	{ Py_tp_dealloc, memory_dealloc },
	{ Py_tp_repr, memory_repr },
	{ Py_tp_methods, memory_methods },
	{ Py_tp_getset, memory_getset },
	{ Py_tp_members, memory_members },
	{ Py_sq_length, memory_length },
	{ Py_bf_getbuffer, memory_getbuffer },
	{ 0, NULL },
};

/* Not collected by the garbage collector: it leads to no Python object. */
static PyType_Spec memory_spec = {
	.name = "bulkhead.Buffer",
	.basicsize = sizeof(struct pymemory),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = memory_slots,
};

int bh_pymemory_init(PyObject *module)
{
	PyObject *type = PyType_FromModuleAndSpec(module, &memory_spec, NULL);

	bh_python_state()->memory_type = (PyTypeObject *)type;
	return type ? PyModule_AddObjectRef(module, "Buffer", type) : -1;
}
