/* SPDX-License-Identifier: BSD-3-Clause */
/* rawext - an extension module that has never heard of Bulkhead: a C thread of its own that takes
 * the GIL, and a call that lets go of it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <time.h>

static void *take(void *arg)
{
	const long *n = arg;

	for (long i = 0; i < *n; i++) {
		PyGILState_STATE state = PyGILState_Ensure();

		PyGILState_Release(state);
	}
	return NULL;
}

static PyObject *thread_takes(PyObject *self, PyObject *args)
{
	pthread_t thread;
	int error;
	long n;

	(void)self;
	if (!PyArg_ParseTuple(args, "l", &n))
		return NULL;
	error = pthread_create(&thread, NULL, take, &n);
	if (error) {
		errno = error;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	Py_BEGIN_ALLOW_THREADS pthread_join(thread, NULL);
	Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *let_go(PyObject *self, PyObject *args)
{
	const struct timespec pause = { 0, 1000 };
	long n;

	(void)self;
	if (!PyArg_ParseTuple(args, "l", &n))
		return NULL;
	for (long i = 0; i < n; i++) {
		Py_BEGIN_ALLOW_THREADS nanosleep(&pause, NULL);
		Py_END_ALLOW_THREADS
	}
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
	{ "thread_takes", thread_takes, METH_VARARGS, "A C thread takes the GIL n times." },
	{ "let_go", let_go, METH_VARARGS, "Lets go of the GIL n times." },
	{ NULL, NULL, 0, NULL },
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "rawext", NULL, -1, methods, NULL, NULL, NULL, NULL
};

PyMODINIT_FUNC PyInit_rawext(void);
PyMODINIT_FUNC PyInit_rawext(void)
{
	return PyModule_Create(&module);
}
