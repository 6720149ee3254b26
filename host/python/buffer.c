/* SPDX-License-Identifier: BSD-3-Clause */
/* buffer - see buffer.h. Keeps: GIL-9, SUP-10. */
#include "config.h"

#include <Python.h>

#include "host/python/buffer.h"

#include <stdio.h>
#include <string.h>

#include "host/python/error.h"
#include "host/python/state.h"

struct pybuffer {
	struct bh_buffer base;
	struct bh_message message; /* its way to main once nobody holds it */
	Py_buffer view;		   /* G */
	/* base.python: strong; the exporter as given, where view.obj may be what it wraps */
};

/* Main, or the courier once the loop is gone; GIL held. */
static void release(struct bh_message *message)
{
	struct pybuffer *self = bh_container_of(message, struct pybuffer, message);
	PyObject *exporter = self->base.python;

	PyBuffer_Release(&self->view);
	Py_DECREF(exporter);
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
	int64_t step = view->itemsize;

	info->size = sizeof(*info);
	info->kind = BH_BUFFER_HOST;
	info->flags = view->readonly ? 0 : BH_BUFFER_WRITABLE;
	info->n_dims = (uint32_t)view->ndim;
	info->data = view->buf;
	info->length = (uint64_t)view->len;
	bh_pybuffer_dtype(view->format, (size_t)view->itemsize, &info->dtype_code,
			  &info->dtype_bits);
	for (int i = view->ndim - 1; i >= 0; i--) {
		info->shape[i] = view->shape[i];
		/* ctypes describes none, whatever it is asked for: then it is C-contiguous. */
		info->strides[i] = view->strides ? view->strides[i] : step;
		if (view->len > 0) /* else the product may be any */
			step *= view->shape[i];
	}
}

/* "(3, 4)" into `text`. */
static void render(char *text, size_t size, const Py_ssize_t *numbers, int n)
{
	size_t used = (size_t)snprintf(text, size, "(");

	for (int i = 0; i < n && used < size; i++)
		used += (size_t)snprintf(text + used, size - used, "%s%zd", i ? ", " : "",
					 numbers[i]);
	if (used < size)
		snprintf(text + used, size - used, n == 1 ? ",)" : ")");
}

/* What is wrong with memory that its exporter would show to somebody who asks for less, and what to
 * do. False: nothing that can be seen. */
static bool find_fault(const Py_buffer *view, bool writable, char *text, size_t size)
{
	char shape[128], strides[128];

	if (writable && view->readonly) {
		snprintf(text, size,
			 "its memory is read-only and the op writes to it; pass memory that may be "
			 "written to, such as bytearray(x) or x.copy()");
		return true;
	}
	if (PyBuffer_IsContiguous(view, 'C') || !view->shape || !view->strides)
		return false;
	render(shape, sizeof(shape), view->shape, view->ndim);
	render(strides, sizeof(strides), view->strides, view->ndim);
	snprintf(text, size, "its memory is not C-contiguous (shape %s, strides %s)", shape,
		 strides);
	return true;
}

/* The exporter has refused, in words of its own: better ones take their place where there are. */
static void explain_refusal(PyObject *exporter, bool writable)
{
	PyObject *refusal = bh_pyerror_take();
	char text[400];
	Py_buffer view;
	bool found = false;

	if (PyObject_GetBuffer(exporter, &view, PyBUF_FULL_RO) == 0) {
		found = find_fault(&view, writable, text, sizeof(text));
		PyBuffer_Release(&view);
	}
	PyErr_Clear();
	if (!found) {
		bh_pyerror_restore(refusal);
		return;
	}
	Py_DECREF(refusal);
	PyErr_SetString(PyExc_BufferError, text);
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
		if (PyErr_ExceptionMatches(PyExc_Exception) &&
		    !PyErr_ExceptionMatches(PyExc_MemoryError))
			explain_refusal(exporter, writable);
		free(self);
		return NULL;
	}
	if (self->view.ndim > (int)BH_NDIM_MAX) {
		PyErr_Format(PyExc_ValueError, "%d dimensions; at most %d are accepted: reshape it",
			     self->view.ndim, (int)BH_NDIM_MAX);
		PyBuffer_Release(&self->view);
		free(self);
		return NULL;
	}
	self->base.refs = 1;
	self->base.free = pybuffer_free;
	self->base.python = Py_NewRef(exporter);
	fill_info(self);
	return &self->base;
}
