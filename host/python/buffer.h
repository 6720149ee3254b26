/* SPDX-License-Identifier: BSD-3-Clause */
/* buffer - memory of Python objects as bh_buffers, without a copy, through the buffer protocol.
 *
 * The export is taken on creation and given back by the same way as objects (GIL-9): the
 * memory stays where it is until the last task that may touch it has truly ended (SUP-10). */
#ifndef BH_HOST_PYTHON_BUFFER_H
#define BH_HOST_PYTHON_BUFFER_H

#include "host/core/value.h"

/* GIL: held. C-contiguous memory only, or with `strided` any that the exporter describes by strides;
 * `writable` asks for memory that may be written to. The buffer's `python` is the exporter. NULL with an exception raised (BufferError, TypeError,
 * ValueError): what is wrong with the memory and what to do where that can be seen, else as the
 * exporter says. */
struct bh_buffer *bh_pybuffer_new(PyObject *exporter, bool writable, bool strided);
/* DLPack's code and bits for one element of a buffer-protocol format; OPAQUE for what has none. */
void bh_pybuffer_dtype(const char *format, size_t itemsize, uint8_t *ret_code, uint8_t *ret_bits);

#endif
