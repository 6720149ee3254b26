/* SPDX-License-Identifier: BSD-3-Clause */
/* convert - Python objects to bh_values checked against an op's signature, and back.
 *
 * Thread: any. GIL: held. What is accepted: docs/python-api.md. */
#ifndef BH_HOST_PYTHON_CONVERT_H
#define BH_HOST_PYTHON_CONVERT_H

#include "host/core/pool.h"
#include "host/core/value.h"
#include "host/plugin/module.h"

/* The tickets of tasks whose results are arguments, in the order of their numbers in the values
 * (BH_TYPE_AFTER): a reference and a claim on each. Zero-initialize; fini accepts that too. */
struct bh_convert_after {
	struct bh_ticket **tickets;
	uint32_t n, room;
};
void bh_convert_after_fini(struct bh_convert_after *after);

/* Binds `args` (a tuple) and `kwargs` (a dict, or NULL) to the op's parameters. A Task stands for its
 * result, as an argument or in a list that is one; those without an outcome go to `after`. NULL with
 * a bulkhead.BadArgument raised that names pool, op, parameter, what was given and what is accepted.
 */
struct bh_args *bh_convert_args(const char *pool, const struct bh_module_op *op, PyObject *args,
				PyObject *kwargs, struct bh_convert_after *after);
/* One value, as an argument of `type` and with these enum bh_mark would be; None becomes BH_TYPE_NONE where `or_none`. -EINVAL,
 * perhaps with an exception raised, and what it was in `given`. */
bh_status bh_convert_one(PyObject *object, uint32_t type, uint32_t marks, bool or_none,
			 struct bh_value *ret_value, char *given, size_t size) BH_MUST_CHECK;
/* The memory behind an object, by the rules of an argument of type buffer: a reference. NULL with an
 * exception raised: TypeError where the object has no memory to give. */
struct bh_buffer *bh_convert_buffer(PyObject *object, uint32_t marks);
/* A new reference; NULL with an exception raised. Runs no Python code. */
PyObject *bh_convert_value(const struct bh_value *value);
/* A new tuple of `n` values; NULL with an exception raised. */
PyObject *bh_convert_tuple(const struct bh_value *values, uint32_t n);
/* "int", "buffer (writable, C-contiguous)" … for error messages. */
const char *bh_convert_accepts(uint32_t type, uint32_t marks);

#endif
