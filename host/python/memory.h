/* SPDX-License-Identifier: BSD-3-Clause */
/* memory - bulkhead.Buffer, the Python object that shows a bh_buffer which no Python object exports.
 *
 * It holds one reference to the buffer and gives its memory to others through the buffer protocol
 * and DLPack. One buffer has one such object at a time, so that an op that returns its argument
 * returns the same object. Thread: any. GIL: held. */
#ifndef BH_HOST_PYTHON_MEMORY_H
#define BH_HOST_PYTHON_MEMORY_H

#include "host/core/value.h"

/* What is said, with BufferError, of memory that cannot be had; the second takes the device as an int. */
#define BH_PYMEMORY_FREED "its memory has been freed; make a new Buffer"
#define BH_PYMEMORY_ON_DEVICE                                                                      \
	"its memory is on the device cuda:%d, where the host cannot read it; copy it first: "      \
	"await "                                                                                   \
	"bulkhead.cuda.pool(\"cuda\").to_host(x)"

#define BH_PYMEMORY_ON_HOST                                                                        \
	"its memory is the host's, which the device cannot reach; copy it there first: await "     \
	"bulkhead.cuda.pool(\"cuda\").to_device(x)"

/* Adds the type to the module. */
int bh_pymemory_init(PyObject *module);
/* The Python object of a buffer: the one that it came from, the bulkhead.Buffer that shows it, or a
 * new one. A new reference; NULL with an exception raised. Runs no Python code. */
PyObject *bh_pymemory_of(struct bh_buffer *buffer);
/* The buffer that a bulkhead.Buffer shows, borrowed; NULL, and nothing raised, for other objects. */
struct bh_buffer *bh_pymemory_get(PyObject *object);

#endif
