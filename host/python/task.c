/* SPDX-License-Identifier: BSD-3-Clause */
/* task - see task.h. Keeps: GIL-9, SUP-4 (as seen from Python).
 *
 * A task's ticket lies in a cell of its own, because the pool may still hold it when its Python
 * object is gone; from acceptance until main has seen the outcome the cell in turn keeps the Python
 * object alive. */
#include "config.h"

#include <Python.h>

#include "host/python/task.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <structmember.h>

#include "host/core/log.h"
#include "host/python/convert.h"
#include "host/python/error.h"
#include "host/python/object.h"
#include "host/python/pool.h"
#include "host/python/state.h"

#define COMPONENT "python"
#define WAIT_SLICE_NS (50 * BH_NS_PER_MS) /* between two looks for signals while a thread waits */

enum stage { STAGE_NEW, STAGE_SUBMITTING, STAGE_ACCEPTED };

struct task;

struct cell {
	struct bh_ticket ticket;
	struct bh_message message; /* its way to main */
	struct task *task;	   /* G: strong from acceptance to deliver(), else NULL */
	bool used;		   /* G: a task comes after it, and reports its failure */
	bool reported;		   /* G: its failure has been seen, or logged by one of those */
};

struct task {
	PyObject_HEAD struct cell *cell; /* I: a reference to its ticket */
	struct bh_pypool *pool;		 /* I: strong */
	struct bh_pylane *lane;		 /* I: strong, or NULL */
	const struct bh_module_op *op;	 /* I: the module's */
	uint32_t op_index;		 /* I */
	struct bh_deadline deadline;	 /* I */
	struct bh_args *args;		 /* G: owned until accepted */
	struct bh_convert_after after;	 /* G: owned until accepted; what the arguments stand for */
	enum stage stage;		 /* G */
	bool cancel_asked;		 /* G: while SUBMITTING */
	bool retrieved;			 /* G: somebody has seen the outcome */
	bool settled;			 /* G: value or error has been taken, the claim is gone */
	PyObject *waiters;		 /* G: list of futures, or NULL */
	PyObject *value, *error;	 /* G: what it returned, or raised, or was refused with */
	PyObject *traceback;		 /* G: of `error` as it came from the worker, or NULL */
};

/* ---- the ticket ------------------------------------------------------------------------------ */

/* Any thread; values and causes are references whose way to main needs no GIL. */
static void ticket_free(struct bh_ticket *ticket)
{
	struct cell *cell = bh_container_of(ticket, struct cell, ticket);

	bh_value_clear(&ticket->result);
	bh_object_unref(ticket->cause);
	free(cell);
}

static bool is_done(const struct task *self)
{
	if (self->error)
		return true;
	return self->stage == STAGE_ACCEPTED &&
	       bh_ticket_outcome(&self->cell->ticket) != BH_OUTCOME_NONE;
}

/* A future that has been cancelled meanwhile is left alone. */
static void wake_one(PyObject *waiter)
{
	PyObject *done = PyObject_CallMethod(waiter, "done", NULL), *result = NULL;

	if (done && done == Py_False)
		result = PyObject_CallMethod(waiter, "set_result", "O", Py_None);
	if (!done || (done == Py_False && !result))
		PyErr_WriteUnraisable(waiter);
	Py_XDECREF(result);
	Py_XDECREF(done);
}

/* Futures that await it. Main only: an asyncio future is set on its loop's thread. */
static void wake(struct task *self)
{
	PyObject *waiters = self->waiters;

	self->waiters = NULL;
	for (Py_ssize_t i = 0; waiters && i < PyList_GET_SIZE(waiters); i++)
		wake_one(PyList_GET_ITEM(waiters, i));
	Py_XDECREF(waiters);
}

/* Main, GIL held: the outcome has come back. */
static void deliver(struct bh_message *message)
{
	struct cell *cell = bh_container_of(message, struct cell, message);
	struct task *task = cell->task;

	cell->task = NULL;
	wake(task);
	Py_DECREF(task); /* perhaps the last, and the cell's with it */
}

/* Whoever ended the task, no GIL: must not block. The cell lives until deliver() at least. */
static void notify(struct bh_ticket *ticket)
{
	struct cell *cell = bh_container_of(ticket, struct cell, ticket);

	cell->message.deliver = deliver;
	bh_postbox_post(&bh_python_state()->returns, &cell->message);
}

/* ---- submission ------------------------------------------------------------------------------ */

/* The pool has references and claims of its own on what the task comes after. */
static void let_go_of_after(struct task *self)
{
	for (uint32_t i = 0; i < self->after.n; i++)
		bh_container_of(self->after.tickets[i], struct cell, ticket)->used = true;
	bh_convert_after_fini(&self->after);
}

/* GIL-9: the pool's lock is tried for under the GIL and waited for without it. */
static enum bh_admission ask_pool(struct task *self, bool wait, struct bh_deadline until,
				  struct bh_error *err)
{
	struct bh_submission submission = {
		.op = self->op_index,
		.flags = self->op->op->flags & BH_OP_CLEANUP ? BH_SUBMIT_CLEANUP : 0,
		.args = self->args,
		.lane = self->lane ? self->lane->lane : NULL,
		.deadline = self->deadline,
		.ticket = &self->cell->ticket,
		.after = self->after.tickets,
		.n_after = self->after.n,
	};
	enum bh_admission admission = BH_BUSY;
	PyThreadState *off;

	if (!wait) {
		submission.flags |= BH_SUBMIT_TRYLOCK;
		admission = bh_pool_submit(self->pool->pool, &submission, err);
		submission.flags &= ~BH_SUBMIT_TRYLOCK;
	}
	if (admission != BH_BUSY)
		return admission;
	bh_error_clear(err);
	off = PyEval_SaveThread();
	admission = wait ? bh_pool_submit_wait(self->pool->pool, &submission, until, err)
			 : bh_pool_submit(self->pool->pool, &submission, err);
	PyEval_RestoreThread(off);
	return admission;
}

/* As ask_pool. */
static void ask_cancel(struct task *self)
{
	PyThreadState *off;

	if (bh_ticket_cancel(&self->cell->ticket, true))
		return;
	off = PyEval_SaveThread();
	/* Cannot say no without trylock. Also where it is cancelled by now: then those that come
	 * after it are told, which takes their pools' locks. */
	(void)bh_ticket_cancel(&self->cell->ticket, false);
	PyEval_RestoreThread(off);
}

static enum bh_admission submit(struct task *self, bool wait, struct bh_deadline until,
				struct bh_error *err)
{
	enum bh_admission admission;

	self->stage = STAGE_SUBMITTING;
	bh_ticket_init(&self->cell->ticket, notify, ticket_free);
	self->cell->task = (struct task *)Py_NewRef((PyObject *)self);
	admission = ask_pool(self, wait, until, err);
	if (admission == BH_ACCEPTED) {
		self->args = NULL; /* the pool's now */
		let_go_of_after(self);
		self->stage = STAGE_ACCEPTED;
		if (self->cancel_asked)
			ask_cancel(self);
	} else {
		self->cell->task = NULL;
		self->stage = STAGE_NEW;
		Py_DECREF(self);
	}
	return admission;
}

/* A pool that failed says so by its cause; otherwise it is not taking work, because the host stops.
 */
static const char *kind_of_closed(struct task *self)
{
	PyThreadState *off = PyEval_SaveThread();
	struct bh_error cause;
	bool failed = bh_pool_cause(self->pool->pool, &cause);

	PyEval_RestoreThread(off);
	return failed ? "failed" : "shutdown";
}

static PyObject *raise_refusal(struct task *self, enum bh_admission admission,
			       const struct bh_error *err)
{
	switch (admission) {
	case BH_OVERLOADED:
		return bh_pyerror_set("overloaded", err);
	case BH_CLOSED:
		return bh_pyerror_set(kind_of_closed(self), err);
	case BH_FORKED:
		return bh_pyerror_set("forked", err);
	case BH_ACCEPTED:
	case BH_BUSY:
		break;
	}
	bh_unreachable();
}

static int check_new(const struct task *self)
{
	if (self->stage == STAGE_NEW && !self->error)
		return 0;
	PyErr_SetString(PyExc_RuntimeError, "this task was submitted already");
	return -1;
}

static PyObject *task_submit(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct task *self = (struct task *)object;
	struct bh_error err = { 0 };
	enum bh_admission admission;

	if (check_new(self) < 0)
		return NULL;
	admission = submit(self, false, bh_deadline_after(0), &err);
	if (admission != BH_ACCEPTED)
		return raise_refusal(self, admission, &err);
	Py_RETURN_NONE;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* None is never; else seconds from now. */
static int deadline_from(PyObject *seconds, const char *what, struct bh_deadline *ret)
{
	double value;

	if (seconds == Py_None) {
		*ret = BH_NEVER; /* the caller sets no limit of its own */
		return 0;
	}
	value = PyFloat_AsDouble(seconds);
	if (value == -1.0 && PyErr_Occurred()) {
		if (PyErr_ExceptionMatches(PyExc_TypeError))
			PyErr_Format(PyExc_TypeError,
				     "%s must be None or a number of seconds, not %R", what,
				     seconds);
		return -1;
	}
	if (isnan(value) || value < 0) {
		PyErr_Format(PyExc_ValueError,
			     "%s must be None or a number of seconds that is not negative, not %R",
			     what, seconds);
		return -1;
	}
	*ret = value * 1e9 >= (double)INT64_MAX ? BH_NEVER
						: bh_deadline_after((uint64_t)(value * 1e9));
	return 0;
}

static bool on_own_pool(const struct task *self)
{
	const struct bh_identity *me = bh_identity_get();

	return me->plane == BH_PLANE_DATA && me->pool_id == bh_pool_id(self->pool->pool);
}

/* Another thread has cancelled what still waits for room. -1 with the exception raised. */
static int check_cancel(struct task *self)
{
	struct bh_error err = { 0 };

	if (self->cancel_asked && !self->error) {
		bh_raise(&err, -ECANCELED, "task.cancelled", BH_STR("op", self->op->op->name));
		self->error = bh_pyerror_new("cancelled", &err);
		if (!self->error)
			return -1;
		self->retrieved = true; /* its submitter gets it now */
	}
	if (!self->error)
		return 0;
	bh_pyerror_restore(Py_NewRef(self->error));
	return -1;
}

/* Its own deadline has passed while it waited for room. */
static PyObject *raise_late(struct task *self)
{
	struct bh_error err = { 0 };

	bh_raise(&err, -ETIMEDOUT, "task.deadline", BH_STR("pool", bh_pool_label(self->pool->pool)),
		 BH_STR("op", self->op->op->name), BH_STR("state", "waiting for room"));
	return bh_pyerror_set("deadline", &err);
}

/* Submits from a thread that may block, waiting for room. A worker of that very pool does not wait:
 * it might be the one that has to make the room. */
static PyObject *task_submit_wait(PyObject *object, PyObject *seconds)
{
	struct task *self = (struct task *)object;
	enum bh_admission admission;
	struct bh_deadline until, slice;
	struct bh_error err = { 0 };

	if (check_new(self) < 0 || deadline_from(seconds, "wait", &until) < 0)
		return NULL;
	if (on_own_pool(self))
		until = bh_deadline_after(0);
	until = bh_deadline_min(until, self->deadline);
	do {
		slice = bh_deadline_min(until, bh_deadline_after(WAIT_SLICE_NS));
		bh_error_clear(&err);
		admission = submit(self, true, slice, &err);
		if (admission == BH_OVERLOADED &&
		    (PyErr_CheckSignals() < 0 || check_cancel(self) < 0))
			return NULL;
	} while (admission == BH_OVERLOADED && slice.at_ns != until.at_ns);
	if (admission == BH_OVERLOADED && bh_deadline_passed(self->deadline))
		return raise_late(self);
	if (admission != BH_ACCEPTED)
		return raise_refusal(self, admission, &err);
	Py_RETURN_NONE;
}

static PyObject *raise_wait(bh_status st, const struct bh_error *err)
{
	if (st == -ETIMEDOUT) {
		PyErr_SetString(PyExc_TimeoutError,
				"the task has not ended in that time; it goes on");
		return NULL;
	}
	return bh_pyerror_set("error", err);
}

/* Waits for the outcome in slices, so that a signal's handler gets its turn. */
static PyObject *task_wait(PyObject *object, PyObject *seconds)
{
	struct task *self = (struct task *)object;
	struct bh_deadline until, slice;
	struct bh_error err = { 0 };
	PyThreadState *off;
	bh_status st;

	if (deadline_from(seconds, "timeout", &until) < 0)
		return NULL;
	while (!is_done(self)) {
		if (self->stage != STAGE_ACCEPTED) {
			PyErr_SetString(PyExc_RuntimeError,
					"the task waits for room in its pool: await it");
			return NULL;
		}
		slice = bh_deadline_min(until, bh_deadline_after(WAIT_SLICE_NS));
		bh_error_clear(&err);
		off = PyEval_SaveThread();
		st = bh_ticket_wait(&self->cell->ticket, slice, &err);
		PyEval_RestoreThread(off);
		if (st < 0 && (st != -ETIMEDOUT || slice.at_ns == until.at_ns))
			return raise_wait(st, &err);
		if (PyErr_CheckSignals() < 0)
			return NULL;
	}
	Py_RETURN_NONE;
}

/* ---- the outcome ----------------------------------------------------------------------------- */

/* Makes the result or the exception from the ticket's, once, and with no other Python code in
 * between (the collector could run some), so that two threads that ask at once see the same. Then the
 * ticket's own may go, when no task that comes after this one is still to read it: kept in there, an
 * object could never be collected together with what refers to this task. */
static int settle(struct task *self)
{
	struct bh_ticket *ticket = &self->cell->ticket;
	int collecting = PyGC_Disable();
	bool taken = false;

	if (bh_ticket_outcome(ticket) == BH_OUTCOME_DONE && !self->settled) {
		self->value = bh_convert_value(&ticket->result);
		taken = self->value;
	} else if (bh_ticket_outcome(ticket) == BH_OUTCOME_FAILED && !self->settled) {
		if (ticket->cause)
			self->error = Py_XNewRef(bh_pyobject_get(ticket->cause));
		self->traceback = self->error ? PyException_GetTraceback(self->error) : NULL;
		taken = true;
	}
	self->settled |= taken;
	if (collecting)
		PyGC_Enable();
	if (taken)
		bh_ticket_disclaim(ticket);
	return PyErr_Occurred() ? -1 : 0;
}

/* An exception that a callable raised is raised again as it is, with the worker's traceback; but
 * what means something to the thread that it is raised in (SystemExit, KeyboardInterrupt,
 * CancelledError, StopIteration …) comes as the cause of a PluginError. */
static bool may_be_raised(PyObject *error)
{
	return PyErr_GivenExceptionMatches(error, PyExc_Exception) &&
	       !PyErr_GivenExceptionMatches(error, PyExc_StopIteration) &&
	       !PyErr_GivenExceptionMatches(error, PyExc_StopAsyncIteration);
}

static const char *kind_of(enum bh_outcome outcome, const struct bh_error *err)
{
	switch (outcome) {
	case BH_OUTCOME_FAILED:
		return strcmp(err->id, "task.argument") == 0 ? "argument" : "failed";
	case BH_OUTCOME_CANCELLED:
		return "cancelled";
	case BH_OUTCOME_DEADLINE:
		return "deadline";
	case BH_OUTCOME_ABANDONED:
		return "abandoned";
	case BH_OUTCOME_NONE:
	case BH_OUTCOME_DONE:
		break;
	}
	bh_unreachable();
}

/* What the end of a task looks like to who awaits it; `raised` is what its callable raised, or NULL.
 * A new reference; NULL with another exception raised. */
static PyObject *exception_of(const struct bh_ticket *ticket, PyObject *raised)
{
	PyObject *exception;

	if (raised && may_be_raised(raised))
		return Py_NewRef(raised);
	exception =
		bh_pyerror_new(kind_of(bh_ticket_outcome(ticket), &ticket->error), &ticket->error);
	if (exception && raised)
		PyException_SetCause(exception, Py_NewRef(raised));
	return exception;
}

/* The task was not run, because what it comes after was not done: what the first of those raises is
 * the cause. */
static PyObject *dependent_error(struct task *self)
{
	const struct bh_ticket *ticket = &self->cell->ticket;
	PyObject *cause = exception_of(ticket->root, self->error);
	PyObject *exception = cause ? bh_pyerror_new("dependent", &ticket->error) : NULL;

	if (!exception) {
		Py_XDECREF(cause);
		return NULL;
	}
	PyException_SetCause(exception, cause);
	return exception;
}

/* The root of what poisoned it. Every ticket in this process is a cell's. */
static struct cell *root_of(const struct task *self)
{
	struct bh_ticket *root = self->cell->ticket.root;

	return root ? bh_container_of(root, struct cell, ticket) : NULL;
}

static PyObject *raise_outcome(struct task *self)
{
	struct cell *root = root_of(self);
	PyObject *exception;

	(root ? root : self->cell)->reported = true;
	exception = root ? dependent_error(self) : exception_of(&self->cell->ticket, self->error);
	/* Whoever asks gets the worker's traceback and his own frames on top of it, not those of all
	 * who asked before him. */
	if (exception && exception == self->error && self->traceback)
		(void)PyException_SetTraceback(exception, self->traceback);
	if (exception)
		bh_pyerror_restore(exception);
	return NULL;
}

static PyObject *task_value(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct task *self = (struct task *)object;

	if (!is_done(self)) {
		PyErr_SetString(
			PyExc_RuntimeError,
			"the task has not ended: await it, or ask result() on another thread");
		return NULL;
	}
	self->retrieved = true;
	if (self->stage == STAGE_ACCEPTED && settle(self) < 0)
		return NULL;
	if (self->value)
		return Py_NewRef(self->value);
	if (self->stage != STAGE_ACCEPTED) { /* refused with it */
		bh_pyerror_restore(Py_NewRef(self->error));
		return NULL;
	}
	if (bh_ticket_outcome(&self->cell->ticket) == BH_OUTCOME_DONE)
		Py_RETURN_NONE; /* asked again by what the collector has cleared */
	return raise_outcome(self);
}

static PyObject *task_done(PyObject *object, PyObject *Py_UNUSED(none))
{
	return PyBool_FromLong(is_done((struct task *)object));
}

static PyObject *task_cancel(PyObject *object, PyObject *Py_UNUSED(none))
{
	struct task *self = (struct task *)object;

	if (is_done(self))
		Py_RETURN_FALSE;
	if (self->stage == STAGE_ACCEPTED)
		ask_cancel(self);
	else
		self->cancel_asked = true;
	Py_RETURN_TRUE;
}

/* Main: it will not be submitted, and whoever awaits it gets this exception. */
static PyObject *task_refuse(PyObject *object, PyObject *exception)
{
	struct task *self = (struct task *)object;

	if (!PyExceptionInstance_Check(exception)) {
		PyErr_SetString(PyExc_TypeError, "an exception is wanted");
		return NULL;
	}
	if (check_new(self) < 0)
		return NULL;
	self->error = Py_NewRef(exception);
	wake(self);
	Py_RETURN_NONE;
}

/* The future is woken by set_result(None) on main once the task is done; at once when it is. */
static PyObject *task_add_waiter(PyObject *object, PyObject *future)
{
	struct task *self = (struct task *)object;

	if (is_done(self)) { /* its message may have come and gone; the others are main's to wake */
		wake_one(future);
		Py_RETURN_NONE;
	}
	if (!self->waiters)
		self->waiters = PyList_New(0);
	if (!self->waiters || PyList_Append(self->waiters, future) < 0)
		return NULL;
	Py_RETURN_NONE;
}

/* ---- what it is ------------------------------------------------------------------------------ */

static PyObject *get_outcome(PyObject *object, void *Py_UNUSED(closure))
{
	struct task *self = (struct task *)object;

	if (self->stage != STAGE_ACCEPTED)
		return self->error ? PyUnicode_FromString("refused") : Py_NewRef(Py_None);
	if (!is_done(self))
		Py_RETURN_NONE;
	return PyUnicode_FromString(bh_outcome_name(bh_ticket_outcome(&self->cell->ticket)));
}

static PyObject *get_id(PyObject *object, void *Py_UNUSED(closure))
{
	struct task *self = (struct task *)object;

	if (self->stage != STAGE_ACCEPTED)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(self->cell->ticket.task_id);
}

static PyObject *get_op(PyObject *object, void *Py_UNUSED(closure))
{
	return PyUnicode_FromString(((struct task *)object)->op->op->name);
}

static PyObject *get_pool(PyObject *object, void *Py_UNUSED(closure))
{
	return PyUnicode_FromString(bh_pool_label(((struct task *)object)->pool->pool));
}

/* Seconds on the monotonic clock (time.monotonic()), or None. */
static PyObject *get_deadline(PyObject *object, void *Py_UNUSED(closure))
{
	struct bh_deadline deadline = ((struct task *)object)->deadline;

	if (deadline.at_ns == BH_NEVER.at_ns)
		Py_RETURN_NONE;
	return PyFloat_FromDouble((double)deadline.at_ns / 1e9);
}

static PyObject *get_accepted(PyObject *object, void *Py_UNUSED(closure))
{
	return PyBool_FromLong(((struct task *)object)->stage != STAGE_NEW);
}

/* ---- life ------------------------------------------------------------------------------------ */

static struct cell *cell_new(void)
{
	struct cell *cell = calloc(1, sizeof(*cell));

	if (cell)
		bh_ticket_init(&cell->ticket, notify, ticket_free);
	else
		PyErr_NoMemory();
	return cell;
}

/* Its failure has been taken from its ticket: another ticket, that has ended in the same way, for a
 * task that comes after it. NULL with an exception raised. */
static struct bh_ticket *replay(struct task *self)
{
	struct bh_object *cause = self->error ? bh_pyobject_new(self->error, false) : NULL;
	struct cell *cell;

	if (self->error && !cause)
		return NULL;
	cell = cell_new();
	if (!cell) {
		bh_object_unref(cause);
		return NULL;
	}
	bh_ticket_init_replay(&cell->ticket, &self->cell->ticket, cause, ticket_free);
	return &cell->ticket;
}

enum bh_pytask_use bh_pytask_use(PyObject *object, struct bh_ticket **ret_ticket,
				 PyObject **ret_value)
{
	struct task *self = (struct task *)object;

	if (self->stage != STAGE_ACCEPTED)
		return self->error ? BH_PYTASK_REFUSED : BH_PYTASK_WAITS;
	if (self->value) {
		*ret_value = Py_NewRef(self->value);
		return BH_PYTASK_SEEN;
	}
	if (self->settled) {
		*ret_ticket = replay(self);
		return *ret_ticket ? BH_PYTASK_TICKET : BH_PYTASK_ERROR;
	}
	*ret_ticket = bh_ticket_ref(&self->cell->ticket);
	bh_ticket_claim(&self->cell->ticket); /* its own stands as long as it is not settled */
	return BH_PYTASK_TICKET;
}

static const struct bh_module_op *find_op(const struct bh_pypool *pool, uint32_t index)
{
	uint32_t n;
	const struct bh_module_op *ops = bh_module_ops(pool->module, &n);

	if (index < n)
		return &ops[index];
	PyErr_Format(PyExc_IndexError, "the pool has %u ops", (unsigned)n);
	return NULL;
}

static int check_lane(const struct bh_pypool *pool, PyObject *lane)
{
	if (lane == Py_None)
		return 0;
	if (!PyObject_TypeCheck(lane, bh_python_state()->lane_type)) {
		PyErr_Format(PyExc_TypeError, "lane must be None or a lane of the pool, not %.200s",
			     Py_TYPE(lane)->tp_name);
		return -1;
	}
	if (((struct bh_pylane *)lane)->pool->pool == pool->pool)
		return 0;
	PyErr_Format(PyExc_ValueError, "the lane belongs to pool %s, not to %s",
		     bh_pool_label(((struct bh_pylane *)lane)->pool->pool),
		     bh_pool_label(pool->pool));
	return -1;
}

/* Task(pool, op index, args, kwargs, lane, timeout): bound and checked, not submitted. */
static PyObject *task_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
	PyObject *pool, *op_args, *op_kwargs, *lane, *timeout;
	struct bh_deadline deadline;
	unsigned index;
	const struct bh_module_op *op;
	struct task *self;

	if (!PyArg_ParseTuple(args, "O!IO!O!OO", bh_python_state()->pool_type, &pool, &index,
			      &PyTuple_Type, &op_args, &PyDict_Type, &op_kwargs, &lane, &timeout))
		return NULL;
	op = find_op((struct bh_pypool *)pool, index);
	if (!op || check_lane((struct bh_pypool *)pool, lane) < 0 ||
	    deadline_from(timeout, "timeout", &deadline) < 0)
		return NULL;
	self = (struct task *)type->tp_alloc(type, 0);
	if (!self)
		return NULL;
	self->pool = (struct bh_pypool *)Py_NewRef(pool);
	self->lane = lane == Py_None ? NULL : (struct bh_pylane *)Py_NewRef(lane);
	self->op = op;
	self->op_index = index;
	self->deadline = deadline;
	self->cell = cell_new();
	if (self->cell)
		self->args = bh_convert_args(bh_pool_label(self->pool->pool), op, op_args,
					     op_kwargs, &self->after);
	if (!self->args) {
		Py_DECREF(self);
		return NULL;
	}
	return (PyObject *)self;
}

static int task_traverse(PyObject *object, visitproc visit, void *arg)
{
	struct task *self = (struct task *)object;

	Py_VISIT(Py_TYPE(object));
	Py_VISIT(self->pool);
	Py_VISIT(self->lane);
	Py_VISIT(self->waiters);
	Py_VISIT(self->value);
	Py_VISIT(self->error);
	Py_VISIT(self->traceback);
	return 0;
}

static int task_clear(PyObject *object)
{
	struct task *self = (struct task *)object;

	Py_CLEAR(self->waiters);
	Py_CLEAR(self->value);
	Py_CLEAR(self->error);
	Py_CLEAR(self->traceback);
	return 0;
}

/* Whether nobody asked for an outcome that somebody should have seen. A cancelled task was somebody's
 * wish. */
static bool is_unseen(const struct task *self)
{
	enum bh_outcome outcome;

	if (self->retrieved || !self->cell)
		return false;
	if (self->stage != STAGE_ACCEPTED)
		return self->error != NULL;
	outcome = bh_ticket_outcome(&self->cell->ticket);
	return outcome == BH_OUTCOME_FAILED || outcome == BH_OUTCOME_DEADLINE ||
	       outcome == BH_OUTCOME_ABANDONED;
}

/* A failure that nobody has looked at would be lost: one line, as asyncio has it. Pool and op come
 * first, so that a long text of the plugin's cannot take their room. */
static void log_unseen(const struct task *self)
{
	const struct bh_ticket *ticket = &self->cell->ticket;
	struct cell *root = root_of(self);
	const struct bh_error *why = &ticket->error;
	bool accepted = self->stage == STAGE_ACCEPTED;
	struct bh_error err = { 0 };

	if (self->cell->used || (root && root->reported))
		return; /* once, by the last of a chain */
	if (root)
		root->reported = true;
	bh_raise(&err, accepted ? why->status : -ECANCELED, accepted ? why->id : "task.refused",
		 BH_STR("pool", bh_pool_label(self->pool->pool)), BH_STR("op", self->op->op->name),
		 BH_INT("task", (int64_t)(accepted ? ticket->task_id : 0)),
		 BH_STR("hint", "keep what the op returns and await it, or ask its exception()"));
	if (!accepted)
		bh_note(&err, err.status, BH_STR("type", Py_TYPE(self->error)->tp_name));
	for (unsigned i = 0; accepted && i < why->n_facts; i++)
		if (!bh_error_fact(&err, bh_error_key(why, i)))
			bh_note(&err, err.status,
				BH_STR(bh_error_key(why, i), bh_error_value(why, i)));
	bh_log_error(BH_LOG_WARNING, COMPONENT,
		     "a task failed and its exception was never retrieved", &err);
}

/* The collector finalizes all of a cycle before it clears any of it: `error` is still there. */
static void task_finalize(PyObject *object)
{
	struct task *self = (struct task *)object;

	if (is_unseen(self))
		log_unseen(self);
	self->retrieved = true;
}

static void task_dealloc(PyObject *object)
{
	struct task *self = (struct task *)object;
	PyTypeObject *type = Py_TYPE(object);

	PyObject_GC_UnTrack(object);
	task_finalize(object); /* once: a second time there is nothing unseen */
	task_clear(object);
	bh_args_free(self->args);
	bh_convert_after_fini(&self->after);
	/* The ticket may live on as the root of what it has poisoned: without what it holds, which
	 * may well refer to those. */
	if (self->stage == STAGE_ACCEPTED && !self->settled)
		bh_ticket_disclaim(&self->cell->ticket);
	if (self->cell)
		bh_ticket_unref(&self->cell->ticket);
	Py_XDECREF(self->lane);
	Py_XDECREF(self->pool);
	type->tp_free(object);
	Py_DECREF(type);
}

static PyMethodDef task_methods[] = {
	{ "_submit", task_submit, METH_NOARGS, "Submit it; raises when the pool refuses." },
	{ "_submit_wait", task_submit_wait, METH_O,
	  "Submit it, blocking until there is room; None or seconds." },
	{ "_wait", task_wait, METH_O, "Block until it has ended; None or seconds." },
	{ "_value", task_value, METH_NOARGS, "What it returned, or raise what it raised." },
	{ "_cancel", task_cancel, METH_NOARGS, "Ask for its end." },
	{ "_refuse", task_refuse, METH_O, "End it unsubmitted with an exception." },
	{ "_add_waiter", task_add_waiter, METH_O,
	  "Have a future's set_result(None) called when it is done." },
	{ "done", task_done, METH_NOARGS, "Whether it has ended, one way or another." },
	{ NULL, NULL, 0, NULL },
};

static PyGetSetDef task_getset[] = {
	{ "outcome", get_outcome, NULL,
	  "None until it has ended; then 'done', 'failed', 'cancelled', 'deadline', 'abandoned' or "
	  "'refused'.",
	  NULL },
	{ "id", get_id, NULL, "The task's number in the process; None until it is accepted.",
	  NULL },
	{ "op", get_op, NULL, "The op's name.", NULL },
	{ "pool", get_pool, NULL, "The pool's label.", NULL },
	{ "deadline", get_deadline, NULL,
	  "When it must have ended, on time.monotonic()'s clock; None: no limit.", NULL },
	{ "_accepted", get_accepted, NULL, NULL, NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

static PyType_Slot task_slots[] = {
	{ Py_tp_doc, "One submission to a pool." },
	{ Py_tp_new, task_new },
	{ Py_tp_finalize, task_finalize },
	{ Py_tp_dealloc, task_dealloc },
	{ Py_tp_traverse, task_traverse },
	{ Py_tp_clear, task_clear },
	{ Py_tp_methods, task_methods },
	{ Py_tp_getset, task_getset },
	{ 0, NULL },
};

static PyType_Spec task_spec = {
	.name = "_bulkhead.Task",
	.basicsize = sizeof(struct task),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.slots = task_slots,
};

int bh_pytask_init(PyObject *module)
{
	PyObject *type = PyType_FromModuleAndSpec(module, &task_spec, NULL);

	bh_python_state()->task_type = (PyTypeObject *)type;
	return type ? PyModule_AddObjectRef(module, "Task", type) : -1;
}
