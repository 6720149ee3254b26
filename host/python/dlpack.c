/* SPDX-License-Identifier: BSD-3-Clause */
/* dlpack - see dlpack.h. Keeps: GIL-9, SUP-10. */
#include "config.h"

#include <Python.h>

#include "host/python/dlpack.h"

#include <string.h>
#ifdef HAVE_DLPACK_DLPACK_H
#include <dlpack/dlpack.h>
#endif

#include "host/python/error.h"
#include "host/python/memory.h"
#include "host/python/state.h"

#define PLAIN "dltensor"
#define PLAIN_USED "used_dltensor"
#define VERSIONED "dltensor_versioned"
#define VERSIONED_USED "used_dltensor_versioned"

/* ---- the structs ----------------------------------------------------------------------------- */

#ifndef HAVE_DLPACK_DLPACK_H
/* DLPack's stable part, as its header has it. */
typedef struct {
	int32_t device_type; /* an enum there */
	int32_t device_id;
} DLDevice;

typedef struct {
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
} DLDataType;

typedef struct {
	void *data;
	DLDevice device;
	int32_t ndim;
	DLDataType dtype;
	int64_t *shape;
	int64_t *strides;     /* in elements; NULL: C-contiguous */
	uint64_t byte_offset; /* of the first element from `data` */
} DLTensor;

typedef struct DLManagedTensor {
	DLTensor dl_tensor;
	void *manager_ctx;
	void (*deleter)(struct DLManagedTensor *self); /* may be NULL */
} DLManagedTensor;
#endif

/* Debian's header, 0.6, ends before these. */
#ifndef DLPACK_FLAG_BITMASK_READ_ONLY
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#endif
#ifndef DLPACK_FLAG_BITMASK_IS_COPIED
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)
#endif

#ifndef DLPACK_MAJOR_VERSION
typedef struct {
	uint32_t major;
	uint32_t minor;
} DLPackVersion;

typedef struct DLManagedTensorVersioned {
	DLPackVersion version;
	void *manager_ctx;
	void (*deleter)(struct DLManagedTensorVersioned *self);
	uint64_t flags; /* DLPACK_FLAG_BITMASK_* */
	DLTensor dl_tensor;
} DLManagedTensorVersioned;
#endif

static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, byte_offset) == 40, "DLPack's ABI");
static_assert(offsetof(DLManagedTensor, deleter) == 56, "DLPack's ABI");
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32, "DLPack's ABI, major 1");

/* ---- tensors of others ----------------------------------------------------------------------- */

struct pytensor {
	struct bh_buffer base;
	PyObject *object;	   /* G: strong, as given */
	struct bh_message message; /* its way to main once nobody holds it */
	/* G: one of them, to be deleted once */
	DLManagedTensor *plain;
	DLManagedTensorVersioned *versioned;
};

/* Main, or the courier once the loop is gone; GIL held. */
static void release(struct bh_message *message)
{
	struct pytensor *self = bh_container_of(message, struct pytensor, message);
	PyObject *object = self->object;

	if (self->plain && self->plain->deleter)
		self->plain->deleter(self->plain);
	if (self->versioned && self->versioned->deleter)
		self->versioned->deleter(self->versioned);
	if (PyErr_Occurred()) /* a deleter has nobody to raise to */
		PyErr_WriteUnraisable(object);
	Py_DECREF(object);
	free(self);
}

/* Any thread, with or without the GIL. */
static void tensor_free(struct bh_buffer *buffer)
{
	struct pytensor *self = bh_container_of(buffer, struct pytensor, base);

	self->message.deliver = release;
	bh_postbox_post(&bh_python_state()->releases, &self->message);
}

bool bh_pydlpack_offers(PyObject *object)
{
	PyObject *type = (PyObject *)Py_TYPE(object);

	return PyObject_HasAttrString(type, "__dlpack__") &&
	       PyObject_HasAttrString(type, "__dlpack_device__");
}

static int refuse_device(long device, long id)
{
	if (device == BH_DL_CUDA || device == BH_DL_CUDA_MANAGED)
		PyErr_Format(PyExc_BufferError,
			     "its memory is on the DLPack device (%ld, %ld), which is "
			     "CUDA's; " BH_PYDLPACK_IMPORT_FIRST,
			     device, id);
	else
		PyErr_Format(
			PyExc_BufferError,
			"its memory is on the DLPack device (%ld, %ld), and ops take memory of the "
			"CPU's; copy it there first, with tensor.cpu()",
			device, id);
	return -1;
}

/* `use`: NULL: of the CPU's memory, else of what the CUDA device reaches. Managed and pinned memory is
 * reached by all of them; DLPack gives it the id 0. */
static int judge_device(const struct bh_cuda_use *use, long device, long id)
{
	bool pinned = device == BH_DL_CUDA_HOST;

	if (!use)
		return device == BH_DL_CPU || pinned ? 0 : refuse_device(device, id);
	if (pinned || device == BH_DL_CUDA_MANAGED)
		return 0;
	if (device == BH_DL_CUDA && (use->device < 0 || id == use->device))
		return 0;
	if (device == BH_DL_CUDA)
		PyErr_Format(PyExc_BufferError,
			     "its memory is on the device cuda:%ld and the op works on cuda:%d; "
			     "copy it there first, as tensor.to() does",
			     id, (int)use->device);
	else if (device == BH_DL_CPU)
		PyErr_SetString(PyExc_BufferError, BH_PYMEMORY_ON_HOST);
	else
		PyErr_Format(
			PyExc_BufferError,
			"its memory is on the DLPack device (%ld, %ld); accepted: CUDA's (2, n), "
			"its pinned (3, 0) and its managed memory (13, 0)",
			device, id);
	return -1;
}

/* Before __dlpack__(), which may wait for the device. Gets the device's type. */
static int ask_device(PyObject *object, const struct bh_cuda_use *use, long *ret_device)
{
	PyObject *pair = PyObject_CallMethod(object, "__dlpack_device__", NULL);
	long device, id;
	int parsed;

	if (!pair)
		return -1;
	/* The first may be an IntEnum. */
	parsed = PyTuple_Check(pair) && PyArg_ParseTuple(pair, "ll", &device, &id);
	Py_DECREF(pair);
	if (!parsed) {
		PyErr_Clear();
		PyErr_SetString(PyExc_TypeError,
				"its __dlpack_device__() must return (device type, device id)");
		return -1;
	}
	*ret_device = device;
	return judge_device(use, device, id);
}

/* The capsule. A producer older than DLPack 1.0 does not know max_version. `stream`: 0: none is named. */
static PyObject *ask_capsule(PyObject *object, uint64_t stream)
{
	PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
	PyObject *number = stream ? PyLong_FromUnsignedLongLong(stream) : NULL;
	PyObject *kwargs = method && (number || !stream)
				   ? Py_BuildValue("{s(ii)}", "max_version", 1, 0)
				   : NULL;
	PyObject *none = kwargs ? PyTuple_New(0) : NULL, *capsule = NULL;

	if (none && (!number || PyDict_SetItemString(kwargs, "stream", number) == 0))
		capsule = PyObject_Call(method, none, kwargs);
	if (none && !capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
		PyErr_Clear();
		if (PyDict_DelItemString(kwargs, "max_version") == 0)
			capsule = PyObject_Call(method, none, kwargs);
	}
	Py_XDECREF(number);
	Py_XDECREF(none);
	Py_XDECREF(kwargs);
	Py_XDECREF(method);
	return capsule;
}

/* How a tensor is wanted. */
struct wish {
	bool writable, strided, guarded;
	const struct bh_cuda_use *use; /* NULL: the CPU's */
	long device;		       /* with `use`: the type that __dlpack_device__() has told */
};

/* What is checked of a tensor before it is taken: until then the capsule's own destructor deletes it. */
static int check_elements(const DLTensor *t, const struct wish *wish)
{
	if (judge_device(wish->use, (long)t->device.device_type, t->device.device_id) < 0)
		return -1;
	/* It was told of a stream, or not, by what it said before. */
	if (wish->use && (long)t->device.device_type != wish->device) {
		PyErr_Format(
			PyExc_BufferError,
			"its __dlpack_device__() says %ld and its tensor is on a device of the "
			"type %d; both must be the same",
			wish->device, (int)t->device.device_type);
		return -1;
	}
	if (t->dtype.lanes != 1 || t->dtype.bits == 0 || t->dtype.bits % 8 != 0) {
		PyErr_Format(
			PyExc_BufferError,
			"elements of %d bits in %d lanes; whole bytes in one lane are accepted",
			t->dtype.bits, t->dtype.lanes);
		return -1;
	}
	if (t->ndim < 0 || t->ndim > (int)BH_NDIM_MAX) {
		PyErr_Format(PyExc_ValueError, "%d dimensions; at most %d are accepted: reshape it",
			     (int)t->ndim, (int)BH_NDIM_MAX);
		return -1;
	}
	return 0;
}

/* Bytes of its elements; -1 with an exception raised. */
static int measure(const DLTensor *t, uint64_t *ret_length)
{
	uint64_t length = t->dtype.bits / 8;
	bool sound = t->ndim == 0 || t->shape, empty = false;

	for (int i = 0; sound && i < t->ndim; i++) {
		sound = t->shape[i] >= 0;
		empty = empty || t->shape[i] == 0;
	}
	for (int i = 0; sound && !empty && i < t->ndim; i++)
		sound = !__builtin_mul_overflow(length, (uint64_t)t->shape[i], &length) &&
			length <= PTRDIFF_MAX;
	if (sound && !empty)
		sound = t->data;
	if (!sound) {
		PyErr_SetString(PyExc_BufferError,
				"its DLPack tensor has no sound shape, or no memory");
		return -1;
	}
	*ret_length = empty ? 0 : length;
	return 0;
}

/* Bytes from one element to the next of each dimension; for a tensor that has elements. A dimension of
 * one element is never stepped along: what its stride says may be anything. */
static int byte_strides(const DLTensor *t, int64_t strides[BH_NDIM_MAX])
{
	int64_t size = t->dtype.bits / 8, step = size;

	for (int i = t->ndim - 1; i >= 0; i--) {
		strides[i] = step;
		if (t->strides && t->shape[i] != 1 &&
		    __builtin_mul_overflow(t->strides[i], size, &strides[i])) {
			PyErr_SetString(PyExc_BufferError,
					"its DLPack tensor has no sound strides");
			return -1;
		}
		step *= t->shape[i];
	}
	return 0;
}

static int check_contiguous(const DLTensor *t, const int64_t strides[BH_NDIM_MAX])
{
	int64_t step = t->dtype.bits / 8;

	for (int i = t->ndim - 1; i >= 0; i--) {
		if (strides[i] != step) {
			PyErr_Format(PyExc_BufferError,
				     "its memory is not C-contiguous (dimension %d steps by %lld "
				     "bytes, not %lld); pass a contiguous copy: x.contiguous(), "
				     "numpy.ascontiguousarray(x) or x.copy()",
				     i, (long long)strides[i], (long long)step);
			return -1;
		}
		step *= t->shape[i];
	}
	return 0;
}

static uint32_t kind_of(const DLTensor *t)
{
	switch ((int)t->device.device_type) {
	case BH_DL_CUDA:
	case BH_DL_CUDA_MANAGED:
		return BH_BUFFER_CUDA;
	case BH_DL_CUDA_HOST:
		return BH_BUFFER_PINNED;
	default:
		return BH_BUFFER_HOST;
	}
}

static void describe(struct bh_buffer_info *info, const DLTensor *t, uint64_t length, bool readonly)
{
	info->size = sizeof(*info);
	info->kind = kind_of(t);
	info->device = (int)t->device.device_type == BH_DL_CUDA ? t->device.device_id : 0;
	info->flags = readonly ? 0 : BH_BUFFER_WRITABLE;
	info->n_dims = (uint32_t)t->ndim;
	info->data = t->data ? (char *)t->data + t->byte_offset : NULL;
	info->length = length;
	info->dtype_code = t->dtype.code <= BH_DL_FLOAT ? t->dtype.code : (uint8_t)BH_DTYPE_OPAQUE;
	info->dtype_bits = t->dtype.bits;
	for (int i = 0; i < t->ndim; i++)
		info->shape[i] = t->shape[i];
}

/* Fills `self` from the tensor; -1 with an exception raised. */
static int take_description(struct pytensor *self, const DLTensor *t, const struct wish *wish,
			    bool readonly)
{
	int64_t strides[BH_NDIM_MAX] = { 0 };
	uint64_t length;

	if (check_elements(t, wish) < 0 || measure(t, &length) < 0)
		return -1;
	if (length > 0 &&
	    (byte_strides(t, strides) < 0 || (!wish->strided && check_contiguous(t, strides) < 0)))
		return -1;
	memcpy(self->base.info.strides, strides, sizeof(strides));
	describe(&self->base.info, t, length, readonly);
	self->base.element = t->dtype.code;
	/* Managed memory is on whichever device uses it. */
	if (wish->use && (int)t->device.device_type == BH_DL_CUDA_MANAGED && wish->use->device > 0)
		self->base.info.device = wish->use->device;
	return 0;
}

static int check_write(const DLManagedTensorVersioned *t, bool guarded)
{
	if (!t && guarded)
		PyErr_SetString(
			PyExc_BufferError,
			"its memory is read-only, or cannot say that it is not, and the op "
			"writes to it; pass memory that may be written to, such as x.copy()");
	else if (t && t->flags & DLPACK_FLAG_BITMASK_READ_ONLY)
		PyErr_SetString(PyExc_BufferError,
				"its memory is read-only and the op writes to it; pass memory that "
				"may be written to, such as x.copy()");
	else if (t && t->flags & DLPACK_FLAG_BITMASK_IS_COPIED)
		PyErr_SetString(
			PyExc_BufferError,
			"its __dlpack__() gives a copy, so what the op writes would be lost");
	else
		return 0;
	return -1;
}

/* Moves the tensor out of its capsule. What is refused stays there. */
static int take_tensor(struct pytensor *self, PyObject *capsule, const struct wish *wish)
{
	DLManagedTensorVersioned *versioned = NULL;
	DLManagedTensor *plain = NULL;

	if (PyCapsule_IsValid(capsule, VERSIONED)) {
		versioned = PyCapsule_GetPointer(capsule, VERSIONED);
		if (versioned->version.major != 1) {
			PyErr_Format(PyExc_BufferError,
				     "its DLPack version is %u.%u; 1.x and the unversioned one are "
				     "accepted",
				     (unsigned)versioned->version.major,
				     (unsigned)versioned->version.minor);
			return -1;
		}
	} else if (PyCapsule_IsValid(capsule, PLAIN)) {
		plain = PyCapsule_GetPointer(capsule, PLAIN);
	} else {
		PyErr_Format(PyExc_TypeError,
			     "its __dlpack__() must return a fresh capsule called " PLAIN
			     " or " VERSIONED ", not %.100s",
			     Py_TYPE(capsule)->tp_name);
		return -1;
	}
	if (wish->writable && check_write(versioned, wish->guarded) < 0)
		return -1;
	if (take_description(self, versioned ? &versioned->dl_tensor : &plain->dl_tensor, wish,
			     versioned && versioned->flags & DLPACK_FLAG_BITMASK_READ_ONLY) < 0 ||
	    PyCapsule_SetName(capsule, versioned ? VERSIONED_USED : PLAIN_USED) < 0)
		return -1;
	self->versioned = versioned;
	self->plain = plain;
	return 0;
}

static struct bh_buffer *take(PyObject *object, struct wish *wish)
{
	struct pytensor *self;
	PyObject *capsule;
	uint64_t stream = 0;

	if (ask_device(object, wish->use, &wish->device) < 0)
		return NULL;
	if (wish->use &&
	    wish->device != BH_DL_CUDA_HOST) /* pinned memory is the CPU's: it has none */
		stream = wish->use->stream;
	self = calloc(1, sizeof(*self));
	if (!self) {
		PyErr_NoMemory();
		return NULL;
	}
	capsule = ask_capsule(object, stream);
	if (!capsule || take_tensor(self, capsule, wish) < 0) {
		PyObject *why = bh_pyerror_take(); /* the tensor's deleter may run Python code */

		Py_XDECREF(capsule);
		bh_pyerror_restore(why);
		free(self);
		return NULL;
	}
	Py_DECREF(capsule);
	self->base.refs = 1;
	self->base.free = tensor_free;
	self->object = Py_NewRef(object);
	/* What an op returns is the object that it was given, but for the memory of a device: ops take
	 * that as a bulkhead.Buffer only. */
	if (!wish->use)
		self->base.python = object;
	return &self->base;
}

struct bh_buffer *bh_pydlpack_new(PyObject *object, bool writable, bool strided, bool guarded)
{
	struct wish wish = { .writable = writable, .strided = strided, .guarded = guarded };

	return take(object, &wish);
}

struct bh_buffer *bh_pydlpack_new_cuda(PyObject *object, bool writable, bool strided,
				       const struct bh_cuda_use *use)
{
	struct wish wish = { .writable = writable, .strided = strided, .use = use };

	return take(object, &wish);
}

/* ---- ours, for others ------------------------------------------------------------------------ */

struct export
{
	DLManagedTensor plain;
	DLManagedTensorVersioned versioned; /* one of them is used */
	struct bh_buffer *buffer;	    /* a reference */
	int64_t shape[BH_NDIM_MAX], strides[BH_NDIM_MAX];
};

static void export_free(struct export *self)
{
	bh_buffer_unref(self->buffer);
	free(self);
}

/* Any thread, with or without the GIL. */
static void delete_plain(DLManagedTensor *tensor)
{
	export_free(tensor->manager_ctx);
}

static void delete_versioned(DLManagedTensorVersioned *tensor)
{
	export_free(tensor->manager_ctx);
}

/* Nobody has taken the tensor out. */
static void capsule_free(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, PLAIN))
		delete_plain(PyCapsule_GetPointer(capsule, PLAIN));
	else if (PyCapsule_IsValid(capsule, VERSIONED))
		delete_versioned(PyCapsule_GetPointer(capsule, VERSIONED));
}

/* DLPack's device of a kind of memory; 0 with BufferError raised. */
static int device_of(const struct bh_buffer *buffer)
{
	switch ((int)buffer->info.kind) {
	case BH_BUFFER_HOST:
		return BH_DL_CPU;
	case BH_BUFFER_PINNED:
		return BH_DL_CUDA_HOST;
	case BH_BUFFER_CUDA:
		return BH_DL_CUDA;
	default:
		PyErr_SetString(PyExc_BufferError, "DLPack has no device for the buffer's memory");
		return 0;
	}
}

static void fill_tensor(DLTensor *t, struct export *self, int device)
{
	const struct bh_buffer_info *info = &self->buffer->info;
	int64_t size = info->dtype_bits / 8;

	t->data = info->data;
	t->device.device_type = device;
	t->device.device_id = info->device;
	t->ndim = (int)info->n_dims;
	t->dtype.code = self->buffer->element;
	t->dtype.bits = info->dtype_bits;
	t->dtype.lanes = 1;
	t->shape = self->shape;
	t->strides = self->strides; /* some readers do not know NULL */
	t->byte_offset = 0;
	for (uint32_t i = 0; i < info->n_dims; i++) {
		self->shape[i] = info->shape[i];
		self->strides[i] = info->strides[i] / size; /* whole: cuda_array.c sees to it */
	}
}

static PyObject *export_capsule(struct export *self, bool versioned, int device)
{
	if (!versioned) {
		fill_tensor(&self->plain.dl_tensor, self, device);
		self->plain.manager_ctx = self;
		self->plain.deleter = delete_plain;
		return PyCapsule_New(&self->plain, PLAIN, capsule_free);
	}
	fill_tensor(&self->versioned.dl_tensor, self, device);
	self->versioned.version = (DLPackVersion){ 1, 0 };
	self->versioned.manager_ctx = self;
	self->versioned.deleter = delete_versioned;
	self->versioned.flags =
		self->buffer->info.flags & BH_BUFFER_WRITABLE ? 0 : DLPACK_FLAG_BITMASK_READ_ONLY;
	return PyCapsule_New(&self->versioned, VERSIONED, capsule_free);
}

PyObject *bh_pydlpack_export(struct bh_buffer *buffer, bool versioned)
{
	int device = device_of(buffer);
	struct export *self;
	PyObject *capsule;

	if (!device)
		return NULL;
	if (buffer->element == BH_DL_OPAQUE)
		return PyErr_Format(
			PyExc_BufferError,
			"DLPack has no type for its opaque elements of %d bits: use the "
			"buffer protocol, as memoryview and numpy do",
			buffer->info.dtype_bits);
	if (!versioned && !(buffer->info.flags & BH_BUFFER_WRITABLE))
		return PyErr_Format(
			PyExc_BufferError,
			"the buffer is read-only, which DLPack can say from 1.0 on only: "
			"ask with max_version=(1, 0), or use the buffer protocol");
	self = calloc(1, sizeof(*self));
	if (!self)
		return PyErr_NoMemory();
	if (!bh_buffer_share(buffer)) {
		free(self);
		PyErr_SetString(PyExc_BufferError, BH_PYMEMORY_FREED);
		return NULL;
	}
	self->buffer = bh_buffer_ref(buffer);
	capsule = export_capsule(self, versioned, device);
	if (!capsule)
		export_free(self);
	return capsule;
}

PyObject *bh_pydlpack_device(const struct bh_buffer *buffer)
{
	int device = device_of(buffer);

	return device ? Py_BuildValue("(ii)", device, (int)buffer->info.device) : NULL;
}
