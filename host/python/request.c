/* SPDX-License-Identifier: BSD-3-Clause */
/* request - see request.h. */
#include "config.h"

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "host/python/request.h"

#include <errno.h>
#include <string.h>

#include "host/gil/gil.h"
#include "host/python/error.h"
#include "host/python/state.h"

struct request {
	PyObject_HEAD struct bh_request *request; /* owned until it is replied to, then NULL */
	enum bh_request_kind kind;		  /* I */
};

static struct bh_request *open_request(PyObject *object)
{
	struct bh_request *request = ((struct request *)object)->request;

	if (!request)
		PyErr_SetString(PyExc_RuntimeError, "this request has had its reply");
	return request;
}

static void reply(PyObject *object)
{
	struct request *self = (struct request *)object;
	struct bh_request *request = self->request;

	self->request = NULL;
	bh_request_reply(request); /* the control loop's from here on */
}

/* An endpoint's call that gets no body of its own. */
static void answer_plainly(struct bh_request *request)
{
	static const char body[] =
		"{\"error\":{\"code\":\"no-answer\",\"message\":\"the call ended without an "
		"answer: see the host's log\",\"facts\":{}}}";

	if (request->kind != BH_REQUEST_APP_CALL)
		return;
	request->http_status = 500;
	request->reply = strdup(body);
	request->reply_len = request->reply ? sizeof(body) - 1 : 0;
}

/* ---- replies --------------------------------------------------------------------------------- */

static PyObject *request_ok(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct bh_request *request = open_request(object);

	if (!request)
		return NULL;
	request->status = 0;
	reply(object);
	Py_RETURN_NONE;
}

/* fail(errno, id, facts) */
static PyObject *request_fail(PyObject *object, PyObject *args)
{
	struct bh_request *request = open_request(object);
	PyObject *facts;
	const char *id;
	int number;

	if (!request || !PyArg_ParseTuple(args, "isO!", &number, &id, &PyDict_Type, &facts))
		return NULL;
	request->status = bh_raise(&request->error, -number, id);
	bh_pyerror_note(&request->error, facts);
	answer_plainly(request);
	reply(object);
	Py_RETURN_NONE;
}

/* answer(HTTP status, body, octets=False): any contiguous buffer; it is copied. */
static PyObject *request_answer(PyObject *object, PyObject *args)
{
	struct bh_request *request = open_request(object);
	int status, octets = 0;
	Py_buffer body;
	char *copy;

	if (!request || !PyArg_ParseTuple(args, "iy*|p", &status, &body, &octets))
		return NULL;
	copy = malloc((size_t)body.len + 1);
	if (!copy) {
		PyBuffer_Release(&body);
		return PyErr_NoMemory();
	}
	memcpy(copy, body.buf, (size_t)body.len);
	copy[body.len] = '\0';
	request->http_status = status;
	request->reply = copy;
	request->reply_len = (size_t)body.len;
	request->reply_is_octets = octets;
	PyBuffer_Release(&body);
	reply(object);
	Py_RETURN_NONE;
}

/* Passes a PLUGIN_LOAD on. dlopen runs a library's constructors and may take long: not under the
 * GIL (PLG-5). */
static PyObject *request_load_plugin(PyObject *object, PyObject *Py_UNUSED(none))
{
	const struct bh_python_config *config = &bh_python_state()->config;
	struct bh_request *request = open_request(object);

	if (!request)
		return NULL;
	((struct request *)object)->request = NULL;
	bh_gil_main_leave();
	config->plugin_load(request, config->arg); /* replies itself */
	bh_gil_main_enter(BH_SITE_DISPATCH);
	Py_RETURN_NONE;
}

/* ---- what is asked --------------------------------------------------------------------------- */

static PyObject *get_kind(PyObject *object, void *Py_UNUSED(closure))
{
	return PyLong_FromLong(((struct request *)object)->kind);
}

static PyObject *get_index(PyObject *object, void *Py_UNUSED(closure))
{
	struct bh_request *request = open_request(object);

	return request ? PyLong_FromUnsignedLong(request->index) : NULL;
}

static PyObject *text_or_empty(const char *text)
{
	return PyUnicode_DecodeUTF8(text ? text : "", (Py_ssize_t)(text ? strlen(text) : 0),
				    "replace");
}

static PyObject *get_app(PyObject *object, void *Py_UNUSED(closure))
{
	struct bh_request *request = open_request(object);

	return request ? text_or_empty(request->app) : NULL;
}

static PyObject *get_endpoint(PyObject *object, void *Py_UNUSED(closure))
{
	struct bh_request *request = open_request(object);

	return request ? text_or_empty(request->endpoint) : NULL;
}

static PyObject *get_body(PyObject *object, void *Py_UNUSED(closure))
{
	struct bh_request *request = open_request(object);

	return request ? PyBytes_FromStringAndSize(request->body ? request->body : "",
						   (Py_ssize_t)request->body_len)
		       : NULL;
}

static PyObject *text_or_none(const char *text)
{
	if (!text)
		Py_RETURN_NONE;
	return text_or_empty(text);
}

static PyObject *get_content_type(PyObject *object, void *Py_UNUSED(closure))
{
	struct bh_request *request = open_request(object);

	return request ? text_or_none(request->content_type) : NULL;
}

static PyObject *get_accept(PyObject *object, void *Py_UNUSED(closure))
{
	struct bh_request *request = open_request(object);

	return request ? text_or_none(request->accept) : NULL;
}

static PyObject *get_query(PyObject *object, void *Py_UNUSED(closure))
{
	struct bh_request *request = open_request(object);

	return request ? text_or_none(request->query) : NULL;
}

static PyObject *get_given_up(PyObject *object, void *Py_UNUSED(closure))
{
	struct bh_request *request = ((struct request *)object)->request;

	return PyBool_FromLong(request &&
			       atomic_load_explicit(&request->given_up, memory_order_relaxed));
}

static PyObject *get_replied(PyObject *object, void *Py_UNUSED(closure))
{
	return PyBool_FromLong(!((struct request *)object)->request);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Nobody will reply any more: that is the reply. */
static void request_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);
	struct bh_request *request = ((struct request *)object)->request;

	if (request) {
		request->status = bh_raise(&request->error, -ECANCELED, "request.dropped");
		answer_plainly(request);
		reply(object);
	}
	type->tp_free(object);
	Py_DECREF(type);
}

static PyMethodDef request_methods[] = {
	{ "ok", request_ok, METH_NOARGS, "Reply that it is done." },
	{ "fail", request_fail, METH_VARARGS, "fail(errno, id, facts): reply that it failed." },
	{ "answer", request_answer, METH_VARARGS,
	  "answer(status, body, octets=False): reply to an endpoint's call, or to a load with "
	  "JSON." },
	{ "load_plugin", request_load_plugin, METH_NOARGS,
	  "Load the plugin that it names; that replies." },
	{ NULL, NULL, 0, NULL },
};

static PyGetSetDef request_getset[] = {
	{ "kind", get_kind, NULL, NULL, NULL },
	{ "index", get_index, NULL, "The plugin's or app's number in the manifest.", NULL },
	{ "app", get_app, NULL, NULL, NULL },
	{ "endpoint", get_endpoint, NULL, NULL, NULL },
	{ "body", get_body, NULL, NULL, NULL },
	{ "content_type", get_content_type, NULL, "The header, or None.", NULL },
	{ "accept", get_accept, NULL, "The header, or None.", NULL },
	{ "query", get_query, NULL, "The query string, still encoded, or None.", NULL },
	{ "given_up", get_given_up, NULL, "Whether the asker no longer cares.", NULL },
	{ "replied", get_replied, NULL, NULL, NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot request_slots[] = {
	{ Py_tp_doc, "A request of the control loop." },
	{ Py_tp_dealloc, request_dealloc },
	{ Py_tp_methods, request_methods },
	{ Py_tp_getset, request_getset },
	{ 0, NULL },
};

static PyType_Spec request_spec = {
	.name = "_bulkhead.Request",
	.basicsize = sizeof(struct request),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = request_slots,
};

int bh_pyrequest_init(PyObject *module)
{
	PyObject *type = PyType_FromModuleAndSpec(module, &request_spec, NULL);

	bh_python_state()->request_type = (PyTypeObject *)type;
	return type ? PyModule_AddObjectRef(module, "Request", type) : -1;
}

/* Without memory for its object a request is refused like one that nobody replies to. */
static int append(PyObject *list, struct bh_request *request)
{
	PyTypeObject *type = bh_python_state()->request_type;
	struct request *self = (struct request *)type->tp_alloc(type, 0);
	int result;

	if (!self) {
		request->status = bh_raise(&request->error, -ENOMEM, "request.alloc");
		answer_plainly(request);
		bh_request_reply(request);
		return -1;
	}
	self->request = request;
	self->kind = request->kind;
	result = PyList_Append(list, (PyObject *)self);
	Py_DECREF(self);
	return result;
}

PyObject *bh_pyrequest_take(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
	PyObject *list = PyList_New(0);
	struct bh_message *message = list ? bh_postbox_take(bh_python_state()->config.inbox) : NULL;

	while (message) {
		struct bh_message *next = message->next;

		/* Only requests are posted to main. */
		if (append(list, bh_container_of(message, struct bh_request, message)) < 0)
			PyErr_Clear();
		message = next;
	}
	return list;
}
