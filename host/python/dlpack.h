/* SPDX-License-Identifier: BSD-3-Clause */
/* dlpack - tensors of other libraries as bh_buffers, and bh_buffers as tensors for them, without a copy.
 *
 * DLPack is C structs in a Python capsule: "dltensor" (up to 0.8) or "dltensor_versioned" (from 1.0,
 * with a read-only flag). Who takes the tensor out of the capsule renames it and calls its deleter,
 * once. Thread: any. GIL: held. */
#ifndef BH_HOST_PYTHON_DLPACK_H
#define BH_HOST_PYTHON_DLPACK_H

#include "host/core/value.h"

/* Codes and devices of DLPack that the host knows; the numbers are the standard's. */
enum bh_dl_code {
	BH_DL_INT = 0,
	BH_DL_UINT = 1,
	BH_DL_FLOAT = 2,
	BH_DL_OPAQUE = 3,
	BH_DL_BFLOAT = 4,
	BH_DL_COMPLEX = 5,
	BH_DL_BOOL = 6
};
enum bh_dl_device { BH_DL_CPU = 1, BH_DL_CUDA = 2, BH_DL_CUDA_HOST = 3, BH_DL_CUDA_MANAGED = 13 };

/* What is to be done, told with BufferError, with another library's memory of a CUDA device. */
#define BH_PYDLPACK_IMPORT_FIRST                                                                   \
	"for an op that takes such make it a Buffer first, with await "                            \
	"bulkhead.cuda.pool(\"cuda\").import_(x); for any other copy it to the CPU, as "           \
	"tensor.cpu() does"

/* Whether its type has __dlpack__ and __dlpack_device__. Raises nothing, and clears what is raised. */
bool bh_pydlpack_offers(PyObject *object);
/* Its memory, taken through DLPack: on the CPU (BH_BUFFER_HOST) or pinned by CUDA (BH_BUFFER_PINNED),
 * C-contiguous or, with `strided`, of any strides. Runs the object's Python code. The tensor's deleter is called on main, or by the
 * courier once the loop is gone, when the last reference has gone (GIL-9, SUP-10). `writable`: the
 * memory will be written to; `guarded`: the object has refused that elsewhere, so only a tensor that
 * can say whether it is read-only is believed. NULL with an exception raised. */
struct bh_buffer *bh_pydlpack_new(PyObject *object, bool writable, bool strided, bool guarded);

/* The same for what a CUDA device reaches: its memory and managed memory (BH_BUFFER_CUDA), pinned memory
 * (BH_BUFFER_PINNED). The object is told of `use->stream`; `use->after` is left alone. The Python object
 * of the buffer is not this one but a bulkhead.Buffer. */
struct bh_buffer *bh_pydlpack_new_cuda(PyObject *object, bool writable, bool strided,
				       const struct bh_cuda_use *use);

/* A capsule with the buffer's memory, for __dlpack__(). It holds a reference; its deleter may be
 * called on any thread, with or without the GIL. `versioned`: of DLPack 1.0. BufferError for what
 * cannot be said: opaque elements, read-only memory without `versioned`, memory that was taken back. */
PyObject *bh_pydlpack_export(struct bh_buffer *buffer, bool versioned);
/* The pair that __dlpack_device__() returns. */
PyObject *bh_pydlpack_device(const struct bh_buffer *buffer);

#endif
