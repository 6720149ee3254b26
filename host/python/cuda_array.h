/* SPDX-License-Identifier: BSD-3-Clause */
/* cuda_array - memory that a CUDA device reaches, of other libraries, as bh_buffers, without a copy.
 *
 * Through DLPack where the object offers it, since that tells the device and the stream, else through
 * __cuda_array_interface__, versions 2 and 3: a dict with shape, typestr, data, strides, mask, stream.
 * Thread: any. GIL: held. */
#ifndef BH_HOST_PYTHON_CUDA_ARRAY_H
#define BH_HOST_PYTHON_CUDA_ARRAY_H

#include "host/core/value.h"

/* Whether its type has __cuda_array_interface__. Raises nothing, and clears what is raised. */
bool bh_pycuda_offers(PyObject *object);
/* As services->object_cuda_buffer(); `flags` are its, and have been checked, as has `use`, whose `after` is
 * set. Runs the object's Python code. The buffer holds the object until its last reference has gone, which
 * main learns of (GIL-9, SUP-10). NULL with an exception raised: what is wrong with which field. */
struct bh_buffer *bh_pycuda_new(PyObject *object, uint32_t flags, struct bh_cuda_use *use);

#endif
