/* SPDX-License-Identifier: BSD-3-Clause */
/* convert - see convert.h. */
#include "config.h"

#include <Python.h>

#include "host/python/convert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/python/buffer.h"
#include "host/python/cuda_array.h"
#include "host/python/dlpack.h"
#include "host/python/error.h"
#include "host/python/memory.h"
#include "host/python/object.h"
#include "host/python/state.h"
#include "host/python/task.h"

#define LIST_DEPTH_MAX 32 /* of lists in lists: more is most likely a list that contains itself */

/* The way from a parameter to the element of it that does not fit. */
struct route {
	Py_ssize_t
		outer[2]; /* of a variadic parameter, of a list with tasks in it; outermost first */
	unsigned n_outer;
	Py_ssize_t inner[LIST_DEPTH_MAX]; /* of lists in it; innermost first */
	unsigned n_inner;
	char given[64]; /* of the innermost: its type, and what it was to become */
	uint32_t type;
};

/* Where an argument belongs, for the error that it may cause. */
struct place {
	const char *pool, *op, *parameter;
	const struct route *route; /* NULL: the parameter itself */
	uint32_t type;		   /* what the signature says */
	uint32_t marks;		   /* enum bh_mark, of the parameter's */
};

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *accepts_buffer(uint32_t marks)
{
	static const char *const texts[] = {
		"a C-contiguous buffer (a bulkhead.Buffer, a numpy array, a PyTorch tensor of the "
		"CPU's, bytes, array.array)",
		"a writable, C-contiguous buffer (a bulkhead.Buffer, a numpy array, a PyTorch "
		"tensor of the CPU's, a bytearray)",
		"a buffer, strided or not (a bulkhead.Buffer, a numpy array, a PyTorch tensor of "
		"the CPU's, bytes, array.array)",
		"a writable buffer, strided or not (a bulkhead.Buffer, a numpy array, a PyTorch "
		"tensor of the CPU's, a bytearray)",
		"a C-contiguous buffer, of a device's memory (a bulkhead.Buffer) or of the host's "
		"(that, a numpy array, a PyTorch tensor of the CPU's, bytes, array.array)",
		"a writable, C-contiguous buffer, of a device's memory (a bulkhead.Buffer) or of "
		"the host's (that, a numpy array, a PyTorch tensor of the CPU's, a bytearray)",
		"a buffer, strided or not, of a device's memory (a bulkhead.Buffer) or of the "
		"host's (that, a numpy array, a PyTorch tensor of the CPU's, bytes, array.array)",
		"a writable buffer, strided or not, of a device's memory (a bulkhead.Buffer) or of "
		"the host's (that, a numpy array, a PyTorch tensor of the CPU's, a bytearray)",
	};

	static_assert(BH_MARK_WRITABLE == 1 && BH_MARK_STRIDED == 2 && BH_MARK_DEVICE == 4,
		      "the marks are the texts' numbers");
	assert(marks < BH_ARRAY_LEN(texts));
	return texts[marks];
}

const char *bh_convert_accepts(uint32_t type, uint32_t marks)
{
	switch ((enum bh_type)type) {
	case BH_TYPE_NONE:
		return "None";
	case BH_TYPE_BOOL:
		return "bool";
	case BH_TYPE_INT:
		return "int, from -2**63 to 2**63-1";
	case BH_TYPE_FLOAT:
		return "float or int";
	case BH_TYPE_STR:
		return "str that UTF-8 can express";
	case BH_TYPE_BYTES:
		return "bytes, bytearray or memoryview";
	case BH_TYPE_BUFFER:
		return accepts_buffer(marks);
	case BH_TYPE_LIST:
		return "list or tuple";
	case BH_TYPE_HANDLE:
		return "a handle: int, from 0 to 2**64-1";
	case BH_TYPE_OBJECT:
		return "any object";
	}
	bh_unreachable();
}

/* "rows[3][0]"; what does not fit ends in "…". */
static void name_place(const struct place *place, char *buffer, size_t size)
{
	const struct route *route = place->route;
	size_t used = (size_t)snprintf(buffer, size, "%s", place->parameter);
	unsigned n = route ? route->n_outer + route->n_inner : 0;

	for (unsigned i = 0; i < n && used < size; i++) {
		Py_ssize_t at = i < route->n_outer ? route->outer[i] : route->inner[n - 1 - i];
		char index[24];

		snprintf(index, sizeof(index), "[%zd]", at);
		if (used + strlen(index) + sizeof("…") > size)
			snprintf(index, sizeof(index), "…");
		used += (size_t)snprintf(buffer + used, size - used, "%s", index);
		if (index[0] != '[')
			return;
	}
}

/* Raises BadArgument; an exception that is raised already becomes its `reason`. */
static void refuse(const struct place *place, const char *given, const char *accepted)
{
	PyObject *cause = bh_pyerror_take();
	struct bh_error err = { 0 }, why = { 0 };
	char parameter[128];

	bh_raise(&err, -EINVAL, "op.argument", BH_STR("pool", place->pool),
		 BH_STR("op", place->op));
	if (place->parameter) {
		name_place(place, parameter, sizeof(parameter));
		bh_note(&err, -EINVAL, BH_STR("parameter", parameter));
	}
	bh_note(&err, -EINVAL, BH_STR("given", given), BH_STR("accepted", accepted));
	if (cause) {
		bh_pyerror_raise(&why, -EINVAL, "python.raised", cause);
		bh_note(&err, -EINVAL, BH_STR("reason", bh_error_fact(&why, "message")));
		Py_DECREF(cause);
	}
	bh_pyerror_set("argument", &err);
}

/* Running out of memory, or an interrupt in the middle, is not the argument's fault. */
static bool is_argument_fault(void)
{
	return !PyErr_Occurred() || (PyErr_ExceptionMatches(PyExc_Exception) &&
				     !PyErr_ExceptionMatches(PyExc_MemoryError));
}

/* Whether it would do if its elements lay one behind the other. */
static bool is_only_strided(const struct place *place, PyObject *object)
{
	PyObject *cause;
	Py_buffer view;
	bool only;

	if (place->type != BH_TYPE_BUFFER || place->marks & BH_MARK_STRIDED ||
	    !PyObject_CheckBuffer(object))
		return false;
	cause = bh_pyerror_take(); /* an exporter is not called with an exception raised */
	only = PyObject_GetBuffer(
		       object, &view,
		       PyBUF_STRIDES | (place->marks & BH_MARK_WRITABLE ? PyBUF_WRITABLE : 0)) == 0;
	if (only) {
		only = !PyBuffer_IsContiguous(&view, 'C');
		PyBuffer_Release(&view);
	}
	PyErr_Clear();
	if (cause) {
		PyErr_SetObject((PyObject *)Py_TYPE(cause), cause);
		Py_DECREF(cause);
	}
	return only;
}

static const char *accepted_by(const struct place *place, PyObject *object)
{
	if (!is_only_strided(place, object))
		return bh_convert_accepts(place->type, place->marks);
	return place->marks & BH_MARK_WRITABLE
		       ? "C-contiguous memory, which this is not: give the op x.copy(), then copy "
			 "what it wrote back into x"
		       : "C-contiguous memory, which this is not: give the op "
			 "numpy.ascontiguousarray(x), or bytes(x) of a memoryview";
}

static int refuse_value(const struct place *place, PyObject *object)
{
	const char *accepted;
	char given[128];

	if (!is_argument_fault())
		return -1;
	if (place->route && place->route->n_inner > 0) {
		refuse(place, place->route->given,
		       bh_convert_accepts(place->route->type, place->marks & BH_MARK_DEVICE));
		return -1;
	}
	accepted = accepted_by(place, object);
	snprintf(given, sizeof(given), "%s", object == Py_None ? "None" : Py_TYPE(object)->tp_name);
	refuse(place, given, accepted);
	return -1;
}

/* ---- tasks as arguments ----------------------------------------------------------------------- */

void bh_convert_after_fini(struct bh_convert_after *after)
{
	for (uint32_t i = 0; i < after->n; i++) {
		bh_ticket_disclaim(after->tickets[i]);
		bh_ticket_unref(after->tickets[i]);
	}
	free(after->tickets);
	*after = (struct bh_convert_after){ .tickets = NULL };
}

/* Reference and claim of `ticket` pass over, also on failure. */
static int after_add(struct bh_convert_after *after, struct bh_ticket *ticket, struct bh_value *ret)
{
	if (after->n == after->room) {
		uint32_t room = after->room ? 2 * after->room : 4;
		struct bh_ticket **tickets =
			reallocarray(after->tickets, room, sizeof(struct bh_ticket *));

		if (!tickets) {
			bh_ticket_disclaim(ticket);
			bh_ticket_unref(ticket);
			PyErr_NoMemory();
			return -1;
		}
		after->tickets = tickets;
		after->room = room;
	}
	*ret = (struct bh_value){ .type = BH_TYPE_AFTER, .as.handle = after->n };
	after->tickets[after->n++] = ticket;
	return 0;
}

static bool is_task(PyObject *object)
{
	PyTypeObject *type = bh_python_state()->task_type;

	return type && PyObject_TypeCheck(object, type);
}

/* 1: `*ret` stands for the task's result. 0: it has been seen already, and is `*ret_seen`, a new
 * reference, to be converted as any value. -1: an exception is raised. */
static int from_task(const struct place *place, PyObject *object, struct bh_convert_after *after,
		     struct bh_value *ret, PyObject **ret_seen)
{
	struct bh_ticket *ticket = NULL;

	switch (bh_pytask_use(object, &ticket, ret_seen)) {
	case BH_PYTASK_TICKET:
		return after_add(after, ticket, ret) < 0 ? -1 : 1;
	case BH_PYTASK_SEEN:
		return 0;
	case BH_PYTASK_WAITS:
		refuse(place, "a task that still waits for room in its own pool",
		       "a task that its pool has accepted: await this one first");
		return -1;
	case BH_PYTASK_REFUSED:
		refuse(place, "a task that never got into its own pool",
		       "a task that its pool has accepted");
		return -1;
	case BH_PYTASK_ERROR:
		return -1;
	}
	bh_unreachable();
}

/* ---- one value ------------------------------------------------------------------------------- */

/* Each returns 0 with a deeply owned value, or -1 with an exception raised, perhaps none: then the
 * type alone is wrong. */

static int from_bool(PyObject *object, struct bh_value *ret)
{
	if (!PyBool_Check(object))
		return -1;
	ret->type = BH_TYPE_BOOL;
	ret->as.boolean = object == Py_True;
	return 0;
}

/* What says that it is an integer; True as a number is most likely a mistake. */
static PyObject *as_integer(PyObject *object)
{
	if (PyBool_Check(object) || !PyIndex_Check(object))
		return NULL;
	return PyNumber_Index(object);
}

static int from_int(PyObject *object, struct bh_value *ret)
{
	PyObject *number = as_integer(object);
	long long value = number ? PyLong_AsLongLong(number) : -1;

	Py_XDECREF(number);
	if (!number || (value == -1 && PyErr_Occurred()))
		return -1;
	ret->type = BH_TYPE_INT;
	ret->as.integer = value;
	return 0;
}

static int from_handle(PyObject *object, struct bh_value *ret)
{
	PyObject *number = as_integer(object);
	unsigned long long value =
		number ? PyLong_AsUnsignedLongLong(number) : (unsigned long long)-1;

	Py_XDECREF(number);
	if (!number || (value == (unsigned long long)-1 && PyErr_Occurred()))
		return -1;
	ret->type = BH_TYPE_HANDLE;
	ret->as.handle = value;
	return 0;
}

/* Numbers of any library, but not what is a sequence too: an array of one element is no float. */
static bool is_real(PyObject *object)
{
	const PyNumberMethods *number = Py_TYPE(object)->tp_as_number;

	if (PyFloat_Check(object))
		return true;
	return !PyBool_Check(object) && !PySequence_Check(object) && number &&
	       (number->nb_float || number->nb_index);
}

static int from_float(PyObject *object, struct bh_value *ret)
{
	double value;

	if (!is_real(object))
		return -1;
	value = PyFloat_AsDouble(object);
	if (value == -1.0 && PyErr_Occurred())
		return -1;
	ret->type = BH_TYPE_FLOAT;
	ret->as.real = value;
	return 0;
}

static int own_text(uint32_t type, const char *data, size_t length, struct bh_value *ret)
{
	const struct bh_value text = { .type = type,
				       .as.text = { .data = data, .length = length } };

	if (bh_value_copy(&text, ret) < 0) {
		PyErr_NoMemory();
		return -1;
	}
	return 0;
}

static int from_str(PyObject *object, struct bh_value *ret)
{
	Py_ssize_t length;
	const char *utf8;

	if (!PyUnicode_Check(object))
		return -1;
	utf8 = PyUnicode_AsUTF8AndSize(object, &length);
	return utf8 ? own_text(BH_TYPE_STR, utf8, (size_t)length, ret) : -1;
}

static int from_bytes(PyObject *object, struct bh_value *ret)
{
	Py_buffer view;
	int result;

	if (!PyBytes_Check(object) && !PyByteArray_Check(object) && !PyMemoryView_Check(object))
		return -1;
	if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
		return -1;
	result = own_text(BH_TYPE_BYTES, view.buf, (size_t)view.len, ret);
	PyBuffer_Release(&view);
	return result;
}

/* The memory of a bulkhead.Buffer, which Python is not asked about. */
static struct bh_buffer *take_own(struct bh_buffer *buffer, uint32_t marks)
{
	const struct bh_buffer_info *info = &buffer->info;

	bh_buffer_ref(buffer); /* before the look at whether it was taken back */
	if (bh_buffer_is_revoked(buffer))
		PyErr_SetString(PyExc_BufferError, BH_PYMEMORY_FREED);
	else if (info->kind == BH_BUFFER_CUDA && !(marks & BH_MARK_DEVICE))
		PyErr_Format(PyExc_BufferError, BH_PYMEMORY_ON_DEVICE, (int)info->device);
	else if (marks & BH_MARK_WRITABLE && !(info->flags & BH_BUFFER_WRITABLE))
		PyErr_SetString(
			PyExc_BufferError,
			"it is read-only and the op writes to it; pass a Buffer that is not");
	else if (!(marks & BH_MARK_STRIDED) && !bh_buffer_is_contiguous(buffer))
		PyErr_SetString(PyExc_BufferError, "its memory is not C-contiguous");
	else
		return buffer;
	bh_buffer_unref(buffer);
	return NULL;
}

/* The buffer protocol first, as it can say that memory is read-only and needs no Python code; what it
 * cannot express may come through DLPack. When both refuse, the first one's reason is told. */
static struct bh_buffer *take_buffer(PyObject *object, uint32_t marks)
{
	bool writable = marks & BH_MARK_WRITABLE, strided = marks & BH_MARK_STRIDED;
	struct bh_buffer *own = bh_pymemory_get(object), *buffer;
	PyObject *refusal;

	if (own)
		return take_own(own, marks);
	if (!PyObject_CheckBuffer(object))
		return bh_pydlpack_new(object, writable, strided, false);
	buffer = bh_pybuffer_new(object, writable, strided);
	if (buffer || !is_argument_fault())
		return buffer;
	refusal = bh_pyerror_take(); /* looking for attributes would clear it */
	if (bh_pydlpack_offers(object))
		buffer = bh_pydlpack_new(object, writable, strided, true);
	if (buffer || !is_argument_fault()) {
		Py_DECREF(refusal);
		return buffer;
	}
	PyErr_Clear();
	bh_pyerror_restore(refusal);
	return NULL;
}

static int from_buffer(PyObject *object, uint32_t marks, struct bh_value *ret)
{
	struct bh_buffer *buffer;

	if (!PyObject_CheckBuffer(object) && !bh_pydlpack_offers(object)) {
		if (bh_pycuda_offers(object))
			PyErr_SetString(
				PyExc_BufferError,
				"its memory is on a CUDA device; " BH_PYDLPACK_IMPORT_FIRST);
		return -1;
	}
	buffer = take_buffer(object, marks);
	if (!buffer)
		return -1;
	ret->type = BH_TYPE_BUFFER;
	ret->as.buffer = buffer;
	return 0;
}

/* A callable comes with a copy of its submitter's context (GIL-8). */
static int from_object(PyObject *object, struct bh_value *ret)
{
	struct bh_object *reference = bh_pyobject_new(object, PyCallable_Check(object));

	if (!reference)
		return -1;
	ret->type = BH_TYPE_OBJECT;
	ret->as.object = reference;
	return 0;
}

/* The type that an element of an untyped list gets. */
static uint32_t natural_type(PyObject *object)
{
	if (object == Py_None)
		return BH_TYPE_NONE;
	if (PyBool_Check(object))
		return BH_TYPE_BOOL;
	if (PyLong_Check(object))
		return BH_TYPE_INT;
	if (PyFloat_Check(object))
		return BH_TYPE_FLOAT;
	if (PyUnicode_Check(object))
		return BH_TYPE_STR;
	if (PyBytes_Check(object))
		return BH_TYPE_BYTES;
	if (PyList_Check(object) || PyTuple_Check(object))
		return BH_TYPE_LIST;
	return PyObject_CheckBuffer(object) || bh_pydlpack_offers(object) ? BH_TYPE_BUFFER
									  : BH_TYPE_OBJECT;
}

static int from_list(PyObject *object, uint32_t marks, unsigned depth, struct route *route,
		     struct bh_value *ret);

/* `route`: gets the way to what does not fit. */
static int from_python(PyObject *object, uint32_t type, uint32_t marks, unsigned depth,
		       struct route *route, struct bh_value *ret)
{
	switch ((enum bh_type)type) {
	case BH_TYPE_NONE:
		*ret = (struct bh_value){ .type = BH_TYPE_NONE };
		return object == Py_None ? 0 : -1;
	case BH_TYPE_BOOL:
		return from_bool(object, ret);
	case BH_TYPE_INT:
		return from_int(object, ret);
	case BH_TYPE_FLOAT:
		return from_float(object, ret);
	case BH_TYPE_STR:
		return from_str(object, ret);
	case BH_TYPE_BYTES:
		return from_bytes(object, ret);
	case BH_TYPE_BUFFER:
		return from_buffer(object, marks, ret);
	case BH_TYPE_LIST:
		return from_list(object, marks, depth, route, ret);
	case BH_TYPE_HANDLE:
		return from_handle(object, ret);
	case BH_TYPE_OBJECT:
		return from_object(object, ret);
	}
	bh_unreachable();
}

/* A list value with room for `n` elements, all none, that bh_value_clear() frees. */
static struct bh_value *list_new(size_t n, struct bh_value *ret)
{
	struct bh_value *items = calloc(n ? n : 1, sizeof(*items));

	if (!items) {
		PyErr_NoMemory();
		return NULL;
	}
	*ret = (struct bh_value){ .type = BH_TYPE_LIST, .as.list = { .items = items, .count = n } };
	return items;
}

static void add_step(struct route *route, Py_ssize_t index, PyObject *element, uint32_t type)
{
	if (route->n_inner == 0) {
		snprintf(route->given, sizeof(route->given), "%s", Py_TYPE(element)->tp_name);
		route->type = type;
	}
	route->inner[route->n_inner++] = index; /* LIST_DEPTH_MAX lists at most */
}

/* Of the marks the device's is for what is in the list as well. */
static int from_list(PyObject *object, uint32_t marks, unsigned depth, struct route *route,
		     struct bh_value *ret)
{
	PyObject *elements;
	struct bh_value list = { .type = BH_TYPE_NONE }, *items;

	if (!PyList_Check(object) && !PyTuple_Check(object))
		return -1;
	if (depth == LIST_DEPTH_MAX) {
		PyErr_Format(PyExc_ValueError, "lists nested deeper than %d", LIST_DEPTH_MAX);
		return -1;
	}
	elements = PySequence_Tuple(object); /* an element's __index__ may change the list */
	items = elements ? list_new((size_t)PyTuple_GET_SIZE(elements), &list) : NULL;
	for (Py_ssize_t i = 0; items && i < PyTuple_GET_SIZE(elements); i++) {
		PyObject *element = PyTuple_GET_ITEM(elements, i);
		uint32_t type = natural_type(element);

		if (from_python(element, type, marks & BH_MARK_DEVICE, depth + 1, route,
				&items[i]) < 0) {
			add_step(route, i, element, type);
			bh_value_clear(&list);
			items = NULL;
		}
	}
	Py_XDECREF(elements);
	*ret = list;
	return items ? 0 : -1;
}

/* ---- binding --------------------------------------------------------------------------------- */

struct binding {
	const char *pool;
	const struct bh_module_op *op;
	PyObject *args, *kwargs; /* borrowed; kwargs may be NULL */
	struct bh_convert_after *after;
	struct route *route; /* where binding is; of one parameter at a time */
};

static struct place place_of(const struct binding *b, const struct bh_parameter *p)
{
	return (struct place){ .pool = b->pool,
			       .op = b->op->op->name,
			       .parameter = p->name,
			       .route = b->route,
			       .type = p->type,
			       .marks = p->marks };
}

static int bind_plain(const struct binding *b, const struct bh_parameter *p, PyObject *object,
		      struct bh_value *ret)
{
	const struct place place = place_of(b, p);

	if (object == Py_None && p->has_preset && p->preset.type == BH_TYPE_NONE)
		return 0; /* `=none`: None says the same as leaving it out */
	return from_python(object, p->type, p->marks, 0, b->route, ret) == 0
		       ? 0
		       : refuse_value(&place, object);
}

/* As an element of the parameter's list, of a type that nobody has named. */
static int bind_element(const struct binding *b, const struct bh_parameter *p, PyObject *object,
			struct bh_value *ret)
{
	const struct place place = place_of(b, p);
	PyObject *seen = NULL;
	int result = 0;

	if (is_task(object))
		result = from_task(&place, object, b->after, ret, &seen);
	if (result != 0)
		return result < 0 ? -1 : 0;
	if (seen)
		object = seen;
	result = from_python(object, natural_type(object), p->marks & BH_MARK_DEVICE, 1, b->route,
			     ret);
	if (result < 0)
		refuse_value(&place, object);
	Py_XDECREF(seen);
	return result;
}

static bool holds_task(PyObject *elements)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(elements); i++)
		if (is_task(PyTuple_GET_ITEM(elements, i)))
			return true;
	return false;
}

/* A list with tasks in it, one level deep. */
static int bind_elements(const struct binding *b, const struct bh_parameter *p, PyObject *elements,
			 struct bh_value *ret)
{
	struct bh_value *items = list_new((size_t)PyTuple_GET_SIZE(elements), ret);
	unsigned level = b->route->n_outer++;

	for (Py_ssize_t i = 0; items && i < PyTuple_GET_SIZE(elements); i++) {
		b->route->outer[level] = i;
		if (bind_element(b, p, PyTuple_GET_ITEM(elements, i), &items[i]) < 0)
			return -1; /* the caller clears what has been bound */
	}
	b->route->n_outer = level;
	return items ? 0 : -1;
}

static int bind_list(const struct binding *b, const struct bh_parameter *p, PyObject *list,
		     struct bh_value *ret)
{
	PyObject *elements = PySequence_Tuple(list);
	int result = -1;

	if (elements)
		result = holds_task(elements) ? bind_elements(b, p, elements, ret)
					      : bind_plain(b, p, elements, ret);
	Py_XDECREF(elements);
	return result;
}

static int bind_value(const struct binding *b, const struct bh_parameter *p, PyObject *object,
		      struct bh_value *ret)
{
	const struct place place = place_of(b, p);
	PyObject *seen = NULL;
	int result = 0;

	if (is_task(object))
		result = from_task(&place, object, b->after, ret, &seen);
	if (result != 0)
		return result < 0 ? -1 : 0;
	if (seen) /* may be a task in turn, but then that is the value */
		result = bind_plain(b, p, seen, ret);
	else if (p->type == BH_TYPE_LIST && (PyList_Check(object) || PyTuple_Check(object)))
		result = bind_list(b, p, object, ret);
	else
		result = bind_plain(b, p, object, ret);
	Py_XDECREF(seen);
	return result;
}

static int bind_preset(const struct binding *b, const struct bh_parameter *p, struct bh_value *ret)
{
	const struct place place = place_of(b, p);

	if (!p->has_preset) {
		refuse(&place, "nothing", bh_convert_accepts(p->type, p->marks));
		return -1;
	}
	if (bh_value_copy(&p->preset, ret) < 0) {
		PyErr_NoMemory();
		return -1;
	}
	return 0;
}

/* The positional arguments from `first` on, as one list. */
static int bind_rest(const struct binding *b, const struct bh_parameter *p, Py_ssize_t first,
		     struct bh_value *ret)
{
	Py_ssize_t given = PyTuple_GET_SIZE(b->args), n = given > first ? given - first : 0;
	struct bh_value *items = list_new((size_t)n, ret);

	b->route->n_outer = 1;
	for (Py_ssize_t i = 0; items && i < n; i++) {
		b->route->outer[0] = i;
		if (bind_value(b, p, PyTuple_GET_ITEM(b->args, first + i), &items[i]) < 0)
			return -1;
	}
	return items ? 0 : -1;
}

static int bind_parameter(const struct binding *b, uint32_t index, struct bh_value *ret)
{
	const struct bh_parameter *p = &b->op->signature.p[index];
	bool positional = (Py_ssize_t)index < PyTuple_GET_SIZE(b->args);
	PyObject *named =
		b->kwargs ? PyDict_GetItemString(b->kwargs, p->name) : NULL; /* borrowed */
	const struct place place = place_of(b, p);

	*b->route = (struct route){ .n_outer = 0 };
	if (p->variadic)
		return bind_rest(b, p, (Py_ssize_t)index, ret);
	if (positional && named) {
		refuse(&place, "a positional and a named value", "one of them");
		return -1;
	}
	if (positional)
		return bind_value(b, p, PyTuple_GET_ITEM(b->args, index), ret);
	return named ? bind_value(b, p, named, ret) : bind_preset(b, p, ret);
}

/* "a, b, c" for messages. */
static void name_parameters(const struct bh_signature *s, char *buffer, size_t size)
{
	size_t used = 0;

	snprintf(buffer, size, "no arguments");
	for (uint32_t i = 0; i < s->n && used < size; i++)
		used += (size_t)snprintf(buffer + used, size - used, "%s%s%s", i ? ", " : "",
					 s->p[i].variadic ? "*" : "", s->p[i].name);
}

static int check_count(const struct binding *b)
{
	const struct bh_signature *s = &b->op->signature;
	const struct place place = { .pool = b->pool, .op = b->op->op->name };
	bool variadic = s->n && s->p[s->n - 1].variadic;
	char given[64], accepted[BH_PARAMETERS_MAX * 36];

	if (variadic || PyTuple_GET_SIZE(b->args) <= (Py_ssize_t)s->n)
		return 0;
	snprintf(given, sizeof(given), "%zd positional arguments", PyTuple_GET_SIZE(b->args));
	name_parameters(s, accepted, sizeof(accepted));
	refuse(&place, given, accepted);
	return -1;
}

static bool knows(const struct bh_signature *s, const char *name)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (!s->p[i].variadic && strcmp(s->p[i].name, name) == 0)
			return true;
	return false;
}

static int check_names(const struct binding *b)
{
	char accepted[BH_PARAMETERS_MAX * 36];
	Py_ssize_t at = 0;
	PyObject *key;

	while (b->kwargs && PyDict_Next(b->kwargs, &at, &key, NULL)) {
		const char *name = PyUnicode_AsUTF8(key);
		const struct place place = { .pool = b->pool,
					     .op = b->op->op->name,
					     .parameter = name };

		if (!name)
			return -1;
		if (knows(&b->op->signature, name))
			continue;
		name_parameters(&b->op->signature, accepted, sizeof(accepted));
		refuse(&place, "a name that it does not have", accepted);
		return -1;
	}
	return 0;
}

struct bh_args *bh_convert_args(const char *pool, const struct bh_module_op *op, PyObject *args,
				PyObject *kwargs, struct bh_convert_after *after)
{
	struct route route = { .n_outer = 0 };
	const struct binding b = { .pool = pool,
				   .op = op,
				   .args = args,
				   .kwargs = kwargs,
				   .after = after,
				   .route = &route };
	bh_auto(bh_args_free) struct bh_args *bound = NULL;

	if (check_count(&b) < 0 || check_names(&b) < 0)
		return NULL;
	bound = bh_args_new(op->signature.n);
	if (!bound) {
		PyErr_NoMemory();
		return NULL;
	}
	for (uint32_t i = 0; i < op->signature.n; i++)
		if (bind_parameter(&b, i, &bound->v[i]) < 0)
			return NULL;
	return bh_steal(&bound);
}

bh_status bh_convert_one(PyObject *object, uint32_t type, uint32_t marks, bool or_none,
			 struct bh_value *ret_value, char *given, size_t size)
{
	struct bh_value value = { .type = BH_TYPE_NONE };
	struct route route = { .n_outer = 0 };

	if ((object == Py_None && or_none) ||
	    from_python(object, type, marks, 0, &route, &value) == 0) {
		*ret_value = value;
		return 0;
	}
	if (route.n_inner > 0) {
		const struct place place = { .parameter = "", .route = &route };
		char at[64];

		name_place(&place, at, sizeof(at));
		snprintf(given, size, "%s with %s at %s that does not fit",
			 Py_TYPE(object)->tp_name, route.given, at);
		return -EINVAL;
	}
	snprintf(given, size, "%s", object == Py_None ? "None" : Py_TYPE(object)->tp_name);
	return -EINVAL;
}

struct bh_buffer *bh_convert_buffer(PyObject *object, uint32_t marks)
{
	if (PyObject_CheckBuffer(object) || bh_pydlpack_offers(object))
		return take_buffer(object, marks);
	if (bh_pycuda_offers(object))
		PyErr_SetString(PyExc_BufferError,
				"its memory is on a CUDA device; " BH_PYDLPACK_IMPORT_FIRST);
	else
		PyErr_Format(PyExc_TypeError, "%s has no memory to give; accepted is %s",
			     object == Py_None ? "None" : Py_TYPE(object)->tp_name,
			     bh_convert_accepts(BH_TYPE_BUFFER, marks));
	return NULL;
}

/* ---- back ------------------------------------------------------------------------------------ */

static PyObject *to_list(const struct bh_items *items)
{
	PyObject *list = PyList_New((Py_ssize_t)items->count);

	for (uint64_t i = 0; list && i < items->count; i++) {
		PyObject *element = bh_convert_value(&items->items[i]);

		if (!element) {
			Py_DECREF(list);
			return NULL;
		}
		PyList_SET_ITEM(list, (Py_ssize_t)i, element);
	}
	return list;
}

PyObject *bh_convert_value(const struct bh_value *value)
{
	switch ((enum bh_type)value->type) {
	case BH_TYPE_NONE:
		return Py_NewRef(Py_None);
	case BH_TYPE_BOOL:
		return PyBool_FromLong(value->as.boolean);
	case BH_TYPE_INT:
		return PyLong_FromLongLong(value->as.integer);
	case BH_TYPE_FLOAT:
		return PyFloat_FromDouble(value->as.real);
	case BH_TYPE_STR:
		return PyUnicode_DecodeUTF8(value->as.text.data, (Py_ssize_t)value->as.text.length,
					    "replace");
	case BH_TYPE_BYTES:
		return PyBytes_FromStringAndSize(value->as.text.data,
						 (Py_ssize_t)value->as.text.length);
	case BH_TYPE_BUFFER:
		return bh_pymemory_of(value->as.buffer);
	case BH_TYPE_LIST:
		return to_list(&value->as.list);
	case BH_TYPE_HANDLE:
		return PyLong_FromUnsignedLongLong(value->as.handle);
	case BH_TYPE_OBJECT:
		return Py_XNewRef(bh_pyobject_get(value->as.object));
	}
	PyErr_Format(PyExc_SystemError, "a value of unknown type %u", (unsigned)value->type);
	return NULL;
}

PyObject *bh_convert_tuple(const struct bh_value *values, uint32_t n)
{
	PyObject *tuple = PyTuple_New((Py_ssize_t)n);

	for (uint32_t i = 0; tuple && i < n; i++) {
		PyObject *element = bh_convert_value(&values[i]);

		if (!element) {
			Py_DECREF(tuple);
			return NULL;
		}
		PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, element);
	}
	return tuple;
}
