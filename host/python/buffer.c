/* SPDX-License-Identifier: BSD-3-Clause */
/* buffer - see buffer.h. Keeps: GIL-9, SUP-10. */
#include "config.h"

#include <Python.h>

#include "host/python/buffer.h"

#include <string.h>

#include "host/python/state.h"

struct pybuffer {
	struct bh_buffer base;
	struct bh_message message; /* its way to main once nobody holds it */
	Py_buffer view;		   /* G */
	PyObject *exporter;	   /* G: strong; as given, where view.obj may be what it wraps */
};

/* Main, or the courier once the loop is gone; GIL held. */
static void release(struct bh_message *message)
{
	struct pybuffer *self = bh_container_of(message, struct pybuffer, message);

	PyBuffer_Release(&self->view);
	Py_DECREF(self->exporter);
	free(self);
}

/* Any thread, with or without the GIL. */
static void pybuffer_free(struct bh_buffer *buffer)
{
	struct pybuffer *self = bh_container_of(buffer, struct pybuffer, base);

	self->message.deliver = release;
	bh_postbox_post(&bh_python_state()->releases, &self->message);
}

void bh_pybuffer_dtype(const char *format, size_t itemsize, uint8_t *ret_code, uint8_t *ret_bits)
{
	char order = format && strchr("@=<>!", format[0]) && format[0] ? *format++ : '@';
	char letter = format ? format[0] : 'B';
	bool foreign = (order == '>' || order == '!') && itemsize > 1; /* we are little-endian */
	bool single = !format || (letter && !format[1]);

	*ret_bits = itemsize <= UINT8_MAX / 8 ? (uint8_t)(itemsize * 8) : 0;
	if (foreign || !single)
		*ret_code = BH_DTYPE_OPAQUE;
	else if (strchr("bhilqn", letter))
		*ret_code = BH_DTYPE_INT;
	else if (strchr("BHILQN", letter))
		*ret_code = BH_DTYPE_UINT;
	else if (strchr("efd", letter))
		*ret_code = BH_DTYPE_FLOAT;
	else
		*ret_code = BH_DTYPE_OPAQUE; /* bool, char, long double, pointers, structures */
}

static void fill_info(struct pybuffer *self)
{
	struct bh_buffer_info *info = &self->base.info;
	const Py_buffer *view = &self->view;

	info->size = sizeof(*info);
	info->kind = BH_BUFFER_HOST;
	info->flags = view->readonly ? 0 : BH_BUFFER_WRITABLE;
	info->n_dims = (uint32_t)view->ndim;
	info->data = view->buf;
	info->length = (uint64_t)view->len;
	bh_pybuffer_dtype(view->format, (size_t)view->itemsize, &info->dtype_code,
			  &info->dtype_bits);
	for (int i = 0; i < view->ndim; i++) {
		info->shape[i] = view->shape[i];
		info->strides[i] = view->strides[i];
	}
}

struct bh_buffer *bh_pybuffer_new(PyObject *exporter, bool writable, bool strided)
{
	struct pybuffer *self = calloc(1, sizeof(*self));
	int flags = (strided ? PyBUF_STRIDES : PyBUF_C_CONTIGUOUS) | PyBUF_FORMAT |
		    (writable ? PyBUF_WRITABLE : 0);

	if (!self) {
		PyErr_NoMemory();
		return NULL;
	}
	if (PyObject_GetBuffer(exporter, &self->view, flags) < 0) {
		free(self);
		return NULL;
	}
	if (self->view.ndim > (int)BH_NDIM_MAX) {
		PyErr_Format(PyExc_ValueError, "%d dimensions; at most %d are accepted",
			     self->view.ndim, (int)BH_NDIM_MAX);
		PyBuffer_Release(&self->view);
		free(self);
		return NULL;
	}
	self->base.refs = 1;
	self->base.free = pybuffer_free;
	self->exporter = Py_NewRef(exporter);
	fill_info(self);
	return &self->base;
}

PyObject *bh_pybuffer_get(struct bh_buffer *buffer)
{
	if (!buffer || buffer->free != pybuffer_free) {
		PyErr_SetString(PyExc_SystemError, "a buffer that is not a Python object's memory");
		return NULL;
	}
	return bh_container_of(buffer, struct pybuffer, base)->exporter;
}
