// SPDX-License-Identifier: BSD-3-Clause
// pybindish - takes and lets go of the GIL as pybind11's gil_scoped_acquire and gil_scoped_release do.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <chrono>
#include <thread>

namespace
{

// A state of its own for each scope: as gil_scoped_acquire on a thread that Python has never seen.
class scoped_acquire
{
      public:
	explicit scoped_acquire(PyInterpreterState *interpreter)
	    : state_(PyThreadState_New(interpreter))
	{
		PyEval_AcquireThread(state_);
	}
	~scoped_acquire()
	{
		PyThreadState_Clear(state_);
		PyThreadState_DeleteCurrent();
	}
	scoped_acquire(const scoped_acquire &) = delete;
	scoped_acquire &operator=(const scoped_acquire &) = delete;

      private:
	PyThreadState *state_;
};

class scoped_release
{
      public:
	scoped_release() : state_(PyEval_SaveThread())
	{
	}
	~scoped_release()
	{
		PyEval_RestoreThread(state_);
	}
	scoped_release(const scoped_release &) = delete;
	scoped_release &operator=(const scoped_release &) = delete;

      private:
	PyThreadState *state_;
};

PyObject *thread_takes(PyObject *, PyObject *args)
{
	PyInterpreterState *interpreter = PyInterpreterState_Get();
	long n;

	if (!PyArg_ParseTuple(args, "l", &n))
		return nullptr;
	{
		scoped_release outside;
		std::thread thread([interpreter, n] {
			for (long i = 0; i < n; i++)
				scoped_acquire inside(interpreter);
		});

		thread.join();
	}
	Py_RETURN_NONE;
}

PyObject *let_go(PyObject *, PyObject *args)
{
	long n;

	if (!PyArg_ParseTuple(args, "l", &n))
		return nullptr;
	for (long i = 0; i < n; i++) {
		scoped_release outside;

		std::this_thread::sleep_for(std::chrono::microseconds(1));
	}
	Py_RETURN_NONE;
}

PyMethodDef methods[] = {
	{ "thread_takes", thread_takes, METH_VARARGS, "A C++ thread takes the GIL n times." },
	{ "let_go", let_go, METH_VARARGS, "Lets go of the GIL n times." },
	{ nullptr, nullptr, 0, nullptr },
};

PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "pybindish", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr
};

} // namespace

PyMODINIT_FUNC PyInit_pybindish()
{
	return PyModule_Create(&module);
}
