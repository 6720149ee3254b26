/* SPDX-License-Identifier: BSD-3-Clause */
/* pool - see pool.h. Keeps: GIL-9. */
#include "config.h"

#include <Python.h>

#include "host/python/pool.h"

#include <structmember.h>

#include "host/python/convert.h"
#include "host/python/error.h"
#include "host/python/state.h"

/* ---- what a pool offers ---------------------------------------------------------------------- */

/* (name, type, accepted, writable, variadic, has_preset, preset) */
static PyObject *describe_parameter(const struct bh_parameter *p)
{
	PyObject *preset = p->has_preset ? bh_convert_value(&p->preset) : Py_NewRef(Py_None);

	if (!preset)
		return NULL;
	return Py_BuildValue("(sssNNNN)", p->name, bh_type_name(p->type),
			     bh_convert_accepts(p->type, p->marks),
			     PyBool_FromLong(p->marks & BH_MARK_WRITABLE),
			     PyBool_FromLong(p->variadic), PyBool_FromLong(p->has_preset), preset);
}

/* (name, doc, result type, [parameters]) */
static PyObject *describe_op(const struct bh_module_op *op)
{
	PyObject *parameters = PyList_New(0);

	for (uint32_t i = 0; parameters && i < op->signature.n; i++) {
		PyObject *parameter = describe_parameter(&op->signature.p[i]);

		if (!parameter || PyList_Append(parameters, parameter) < 0)
			Py_CLEAR(parameters);
		Py_XDECREF(parameter);
	}
	if (!parameters)
		return NULL;
	return Py_BuildValue("(szsN)", op->op->name, op->op->doc, bh_type_name(op->signature.ret),
			     parameters);
}

static PyObject *pool_ops(PyObject *object, PyObject *Py_UNUSED(none))
{
	uint32_t n;
	const struct bh_module_op *ops = bh_module_ops(((struct bh_pypool *)object)->module, &n);
	PyObject *list = PyList_New(0);

	for (uint32_t i = 0; list && i < n; i++) {
		PyObject *op = describe_op(&ops[i]);

		if (!op || PyList_Append(list, op) < 0)
			Py_CLEAR(list);
		Py_XDECREF(op);
	}
	return list;
}

static PyObject *get_label(PyObject *object, void *Py_UNUSED(closure))
{
	return PyUnicode_FromString(bh_module_label(((struct bh_pypool *)object)->module));
}

static PyObject *get_version(PyObject *object, void *Py_UNUSED(closure))
{
	return PyUnicode_FromString(bh_module_version(((struct bh_pypool *)object)->module));
}

static PyObject *get_workers(PyObject *object, void *Py_UNUSED(closure))
{
	return PyLong_FromUnsignedLong(bh_pool_workers(((struct bh_pypool *)object)->pool));
}

static PyObject *get_state(PyObject *object, void *Py_UNUSED(closure))
{
	PyThreadState *off = PyEval_SaveThread(); /* GIL-9: it takes the pool's lock */
	enum bh_pool_state state = bh_pool_state(((struct bh_pypool *)object)->pool);

	PyEval_RestoreThread(off);
	return PyUnicode_FromString(bh_pool_state_name(state));
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static PyObject *pool_lane(PyObject *object, PyObject *name)
{
	struct bh_pypool *self = (struct bh_pypool *)object;
	PyTypeObject *type = bh_python_state()->lane_type;
	const char *text = PyUnicode_AsUTF8(name);
	struct bh_error err = { 0 };
	struct bh_pylane *lane;

	if (!text)
		return NULL;
	lane = (struct bh_pylane *)type->tp_alloc(type, 0);
	if (!lane)
		return NULL;
	lane->pool = (struct bh_pypool *)Py_NewRef(object);
	if (bh_lane_new(self->pool, text, &lane->lane, &err) < 0) {
		Py_DECREF(lane);
		return bh_pyerror_set("lane", &err);
	}
	return (PyObject *)lane;
}

static void lane_dealloc(PyObject *object)
{
	struct bh_pylane *self = (struct bh_pylane *)object;
	PyTypeObject *type = Py_TYPE(object);

	if (self->weakrefs)
		PyObject_ClearWeakRefs(object);
	bh_lane_unref(self->lane);
	Py_XDECREF(self->pool);
	type->tp_free(object);
	Py_DECREF(type);
}

static PyObject *lane_stats(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct bh_lane_books books;
	PyThreadState *off = PyEval_SaveThread(); /* GIL-9: it takes the pool's lock */

	bh_lane_books(((struct bh_pylane *)object)->lane, &books);
	PyEval_RestoreThread(off);
	return Py_BuildValue(
		"{sKsKsKsKsKsKsIsIsdsz}", "submitted", (unsigned long long)books.submitted, "done",
		(unsigned long long)books.done, "failed", (unsigned long long)books.failed,
		"cancelled", (unsigned long long)books.cancelled, "deadline",
		(unsigned long long)books.deadline, "abandoned",
		(unsigned long long)books.abandoned, "queued", (unsigned int)books.queued,
		"running", (unsigned int)books.running, "busy_s", (double)books.busy_ns / 1e9,
		"last_error", books.last_error[0] ? books.last_error : NULL);
}

static PyMethodDef lane_methods[] = {
	{ "stats", lane_stats, METH_NOARGS, "What became of the lane's tasks, as a dict." },
	{ NULL, NULL, 0, NULL },
};

static PyMemberDef lane_members[] = {
	{ "__weaklistoffset__", T_PYSSIZET, offsetof(struct bh_pylane, weakrefs), READONLY, NULL },
	{ NULL, 0, 0, 0, NULL },
};

static PyType_Slot lane_slots[] = {
	{ Py_tp_doc, "An ordered lane of a pool." },
	{ Py_tp_dealloc, lane_dealloc },
	{ Py_tp_members, lane_members },
	{ Py_tp_methods, lane_methods },
	{ 0, NULL },
};

static PyType_Spec lane_spec = {
	.name = "_bulkhead.Lane",
	.basicsize = sizeof(struct bh_pylane),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = lane_slots,
};

/* ---- the type -------------------------------------------------------------------------------- */

static void pool_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	type->tp_free(object);
	Py_DECREF(type);
}

static PyMethodDef pool_methods[] = {
	{ "ops", pool_ops, METH_NOARGS, "The pool's ops: [(name, doc, result, parameters)]." },
	{ "lane", pool_lane, METH_O, "A new lane." },
	{ NULL, NULL, 0, NULL },
};

static PyGetSetDef pool_getset[] = {
	{ "label", get_label, NULL, NULL, NULL },
	{ "version", get_version, NULL, NULL, NULL },
	{ "workers", get_workers, NULL, NULL, NULL },
	{ "state", get_state, NULL, NULL, NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot pool_slots[] = {
	{ Py_tp_doc, "A plugin's pool." },
	{ Py_tp_dealloc, pool_dealloc },
	{ Py_tp_methods, pool_methods },
	{ Py_tp_getset, pool_getset },
	{ 0, NULL },
};

static PyType_Spec pool_spec = {
	.name = "_bulkhead.Pool",
	.basicsize = sizeof(struct bh_pypool),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = pool_slots,
};

int bh_pypool_init(PyObject *module)
{
	struct bh_python *python = bh_python_state();
	PyObject *pool_type = PyType_FromModuleAndSpec(module, &pool_spec, NULL);
	PyObject *lane_type = PyType_FromModuleAndSpec(module, &lane_spec, NULL);

	python->pool_type = (PyTypeObject *)pool_type;
	python->lane_type = (PyTypeObject *)lane_type;
	if (!pool_type || !lane_type || PyModule_AddObjectRef(module, "Pool", pool_type) < 0)
		return -1;
	return PyModule_AddObjectRef(module, "Lane", lane_type);
}

PyObject *bh_pypool_find(PyObject *Py_UNUSED(module), PyObject *label)
{
	struct bh_python *python = bh_python_state();
	const char *text = PyUnicode_AsUTF8(label);
	struct bh_module *module;
	struct bh_pypool *self;

	if (!text)
		return NULL;
	module = python->config.find_module(text, python->config.arg);
	if (!module)
		Py_RETURN_NONE;
	self = (struct bh_pypool *)python->pool_type->tp_alloc(python->pool_type, 0);
	if (!self)
		return NULL;
	self->module = module;
	self->pool = bh_module_pool(module);
	return (PyObject *)self;
}
