/* SPDX-License-Identifier: BSD-3-Clause */
/* courier - see courier.h.
 *
 * Whoever posts may hold locks of its own and must not meet the GIL: it writes one slot of a ring
 * under a lock that nobody holds for longer than that. The courier takes one job at a time, lets go
 * of that lock, and only then asks for the GIL: so of all that was posted one job waits for it, and
 * nobody waits for the lock while holding it (GIL-9). A caller that holds the GIL runs its job itself
 * and never comes near the lock.
 *
 * Keeps: GIL-7, GIL-9, EXIT-5. */
#include "config.h"

#include <Python.h>

#include "host/gil/courier.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "host/core/log.h"
#include "host/core/post.h"
#include "host/core/sync.h"
#include "host/gil/internal.h"

#define COMPONENT "gil"
/* Bytes of an exception's text in a fact: a longer fact would be left out whole. */
#define TEXT_MAX 200

struct job {
	void (*fn)(void *arg);
	void *arg;
	bh_courier_guard_fn guard; /* NULL: none */
	bh_gil_site site;
};

static struct {
	struct bh_mutex lock; /* guards the M fields; a leaf, never asked for under the GIL */
	struct job ring[BH_COURIER_QUEUE]; /* M */
	uint32_t first;			   /* M: the oldest job */
	uint32_t n;	  /* M: jobs in the ring, the one in the courier's hands included */
	bool taking;	  /* M: posts are accepted */
	bool started;	  /* T: main; there is a thread to join */
	pthread_t thread; /* T: main */
	/* I: once made. Never closed: a post that was accepted may write to it late. */
	int fd;
	/* A: release by take_over, acquire by the courier, which alone waits on its fd then */
	_Atomic(struct bh_postbox *) releases;
	/* A: relaxed, what it is at; for whoever looks. 0: at nothing, waits for nothing. */
	_Atomic uint64_t began_ns, asked_ns;
	_Atomic uint32_t site;
	/* A: relaxed, statistics only */
	_Atomic uint64_t queued, ran, ran_inline, refused, dropped;
} courier = { .lock = { PTHREAD_MUTEX_INITIALIZER }, .fd = -1 };

static __thread bool is_courier;

static void count(_Atomic uint64_t *counter)
{
	atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static uint64_t get(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

static void set(_Atomic uint64_t *value, uint64_t to)
{
	atomic_store_explicit(value, to, memory_order_relaxed);
}

/* ---- a job, under the GIL -------------------------------------------------------------------- */

static PyObject *take_raised(void)
{
#if PY_VERSION_HEX >= 0x030c0000
	return PyErr_GetRaisedException();
#else
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (type)
		PyErr_NormalizeException(&type, &value, &traceback);
	if (value && traceback)
		PyException_SetTraceback(value, traceback);
	Py_XDECREF(type);
	Py_XDECREF(traceback);
	return value;
#endif
}

static void put_back_raised(PyObject *exception)
{
	if (!exception)
		return;
#if PY_VERSION_HEX >= 0x030c0000
	PyErr_SetRaisedException(exception);
#else
	PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exception)), exception,
		      PyException_GetTraceback(exception));
#endif
}

/* A posted job has nobody to raise to. */
static void log_left_over(bh_gil_site site)
{
	PyObject *exception = take_raised();
	PyObject *text = exception ? PyObject_Str(exception) : NULL;
	const char *utf8 = text ? PyUnicode_AsUTF8(text) : NULL;
	char cut[TEXT_MAX] = "(no text)";

	if (!exception)
		return;
	if (utf8 && strlen(utf8) < sizeof(cut))
		strcpy(cut, utf8);
	else if (utf8)
		strcpy(cut, "(a long text)");
	bh_log(BH_LOG_ERROR, COMPONENT, "posted work left a Python exception behind",
	       BH_STR("site", bh_gil_site_name(site)), BH_STR("type", Py_TYPE(exception)->tp_name),
	       BH_STR("message", cut));
	Py_XDECREF(text);
	Py_DECREF(exception);
	PyErr_Clear(); /* of its str() */
}

static void call(const struct job *job)
{
	if (job->guard)
		job->guard(job->site, job->fn, job->arg);
	else
		job->fn(job->arg);
	if (PyErr_Occurred())
		log_left_over(job->site);
}

/* ---- posting --------------------------------------------------------------------------------- */

/* The caller's own exception, if it is in the midst of one, is not the job's. */
static bh_status run_inline(const struct job *job, struct bh_error *err)
{
	struct bh_gil_scope scope;
	bh_status st = bh_gil_enter(job->site, BH_HERE, &scope, err);
	PyObject *raised;

	if (st < 0)
		return st;
	raised = take_raised();
	call(job);
	put_back_raised(raised);
	bh_gil_leave(&scope);
	count(&courier.ran_inline);
	return 0;
}

static bh_status enqueue_locked(const struct job *job, bool *ret_wake) BH_NEEDS(courier.lock)
{
	if (!courier.taking)
		return -ESHUTDOWN;
	if (courier.n == BH_COURIER_QUEUE)
		return -EAGAIN;
	courier.ring[(courier.first + courier.n) % BH_COURIER_QUEUE] = *job;
	*ret_wake = courier.n++ == 0; /* else it is awake, and looks again before it sleeps */
	set(&courier.queued, courier.n);
	return 0;
}

static bh_status enqueue(const struct job *job, struct bh_error *err)
{
	bool must_wake = false;
	bh_status st;

	bh_mutex_lock(&courier.lock);
	st = enqueue_locked(job, &must_wake);
	bh_mutex_unlock(&courier.lock);
	if (must_wake)
		bh_wake_fd(courier.fd);
	if (st == 0)
		return 0;
	count(&courier.refused);
	return bh_raise(err, st, st == -EAGAIN ? "gil.courier_full" : "gil.courier_closed",
			BH_STR("site", bh_gil_site_name(job->site)),
			BH_INT("queue", BH_COURIER_QUEUE));
}

bh_status bh_courier_post_guarded(bh_gil_site site, bh_courier_guard_fn guard,
				  void (*fn)(void *arg), void *arg, struct bh_error *err)
{
	const struct job job = { fn, arg, guard, site };

	if (!bh_gil_site_exists(site))
		return bh_raise(err, -EINVAL, "gil.site_unknown", BH_INT("site", site));
	/* Not merely "inside a scope": a scope that has let go of the GIL would have to wait for
	 * it. */
	return bh_gil_holds() ? run_inline(&job, err) : enqueue(&job, err);
}

bh_status bh_courier_post(bh_gil_site site, void (*fn)(void *arg), void *arg, struct bh_error *err)
{
	return bh_courier_post_guarded(site, NULL, fn, arg, err);
}

/* ---- the courier's own thread ---------------------------------------------------------------- */

enum next { NEXT_JOB, NEXT_NONE, NEXT_OVER };

static enum next look(struct job *ret_job)
{
	enum next next = NEXT_JOB;

	bh_mutex_lock(&courier.lock);
	if (courier.n > 0)
		*ret_job = courier.ring[courier.first];
	else
		next = courier.taking ? NEXT_NONE : NEXT_OVER;
	bh_mutex_unlock(&courier.lock);
	return next;
}

static void job_done(void)
{
	bh_mutex_lock(&courier.lock);
	courier.first = (courier.first + 1) % BH_COURIER_QUEUE;
	courier.n--;
	set(&courier.queued, courier.n);
	bh_mutex_unlock(&courier.lock);
}

/* Waits for the GIL. False: the gate has closed. */
static bool enter(bh_gil_site site, struct bh_gil_scope *scope)
{
	uint64_t now = bh_now_ns();
	struct bh_error err = { 0 };
	bh_status st;

	atomic_store_explicit(&courier.site, site, memory_order_relaxed);
	set(&courier.began_ns, now);
	set(&courier.asked_ns, now);
	st = bh_gil_enter(site, BH_HERE, scope, &err);
	set(&courier.asked_ns, 0);
	if (st == 0)
		return true;
	set(&courier.began_ns, 0);
	return false;
}

static void leave(struct bh_gil_scope *scope)
{
	bh_gil_leave(scope);
	set(&courier.began_ns, 0);
}

static void run(const struct job *job)
{
	struct bh_gil_scope scope;

	if (!enter(job->site, &scope)) {
		/* Main joins the courier before it closes the gate, so this is our own fault. */
		count(&courier.dropped);
		bh_log(BH_LOG_ERROR, COMPONENT, "posted work was dropped: the gate has closed",
		       BH_STR("site", bh_gil_site_name(job->site)));
		return;
	}
	call(job);
	leave(&scope);
	count(&courier.ran);
}

static bool has_releases(void)
{
	struct bh_postbox *box = atomic_load_explicit(&courier.releases, memory_order_acquire);

	return box && atomic_load_explicit(&box->head, memory_order_relaxed);
}

static void deliver_releases(void)
{
	struct bh_gil_scope scope;

	if (!enter(BH_SITE_RELEASE, &scope)) {
		/* Nobody may drop them any more: they stay where they are. */
		atomic_store_explicit(&courier.releases, NULL, memory_order_relaxed);
		return;
	}
	bh_postbox_deliver(atomic_load_explicit(&courier.releases, memory_order_acquire));
	if (PyErr_Occurred())
		log_left_over(BH_SITE_RELEASE);
	leave(&scope);
}

/* Without a deadline, because there is nothing to do until somebody posts or closes, and both write
 * to an fd. True when there may be releases: the fd says so, and only a delivery clears it. */
static bool sleep_until_woken(void)
{
	struct bh_postbox *box = atomic_load_explicit(&courier.releases, memory_order_acquire);
	struct pollfd fds[] = { { .fd = courier.fd, .events = POLLIN },
				{ .fd = box ? box->fd : -1, .events = POLLIN } };
	uint64_t n;

	if (poll(fds, BH_ARRAY_LEN(fds), -1) < 0)
		return false; /* a signal */
	if (fds[0].revents && read(courier.fd, &n, sizeof(n)) < 0)
		assert(errno == EAGAIN || errno == EINTR);
	return fds[1].revents != 0;
}

static void *courier_main(void *arg)
{
	bool released = false;
	struct bh_error err = { 0 };
	enum next next;
	struct job job;

	(void)arg;
	is_courier = true;
	/* GIL-8, for the same reasons as a worker's. Without memory each job has a state of its
	 * own. */
	if (bh_gil_worker_start(&err) < 0)
		bh_log_error(BH_LOG_WARNING, COMPONENT, "the courier keeps no thread state", &err);
	do {
		next = look(&job);
		if (next == NEXT_JOB) {
			run(&job);
			job_done();
		}
		/* After each job, so that neither waits for the other's end. */
		if (released || has_releases()) {
			deliver_releases();
			released = false;
		} else if (next == NEXT_NONE) {
			released = sleep_until_woken();
		}
	} while (next != NEXT_OVER);
	while (has_releases()) /* what is released may release more */
		deliver_releases();
	bh_gil_worker_stop();
	return NULL;
}

/* ---- its life -------------------------------------------------------------------------------- */

/* EXIT-5: the child has no courier; whoever held the lock is gone. What was posted is the parent's. */
static void forked(void)
{
	courier.lock = (struct bh_mutex){ PTHREAD_MUTEX_INITIALIZER };
	courier.taking = false;
	courier.started = false;
	courier.first = courier.n = 0;
	set(&courier.queued, 0);
	set(&courier.began_ns, 0);
	set(&courier.asked_ns, 0);
	atomic_store_explicit(&courier.releases, NULL, memory_order_relaxed);
}

static void set_taking(bool taking)
{
	bh_mutex_lock(&courier.lock);
	courier.taking = taking;
	bh_mutex_unlock(&courier.lock);
}

bh_status bh_courier_start(struct bh_error *err)
{
	bh_status st;

	assert(!courier.started);
	if (courier.fd < 0) {
		courier.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (courier.fd < 0)
			return bh_raise(err, -errno, "gil.courier_eventfd");
		if (pthread_atfork(NULL, NULL, forked) != 0)
			return bh_raise(err, -ENOMEM, "gil.atfork");
	}
	set_taking(true);
	st = bh_thread_create(&courier.thread, "bh-courier", courier_main, NULL, err);
	if (st < 0)
		set_taking(false);
	else
		courier.started = true;
	return st;
}

void bh_courier_take_over(struct bh_postbox *releases)
{
	atomic_store_explicit(&courier.releases, releases, memory_order_release);
	if (courier.fd >= 0)
		bh_wake_fd(courier.fd); /* it polls what it knew before */
}

void bh_courier_close(void)
{
	set_taking(false);
	if (courier.fd >= 0)
		bh_wake_fd(courier.fd);
}

bh_status bh_courier_join(struct bh_deadline until, struct bh_error *err)
{
	uint64_t began, now;
	bh_status st;

	if (!courier.started)
		return 0;
	st = bh_thread_join(courier.thread, until, NULL);
	if (st == 0) {
		courier.started = false;
		atomic_store_explicit(&courier.releases, NULL, memory_order_relaxed);
		return 0;
	}
	began = get(&courier.began_ns);
	now = bh_now_ns();
	st = bh_raise(err, st, "gil.courier_stuck", BH_INT("queued", get(&courier.queued)));
	if (began == 0)
		return st;
	return bh_note(err, st,
		       BH_STR("site", bh_gil_site_name(atomic_load_explicit(&courier.site,
									    memory_order_relaxed))),
		       BH_STR("state", get(&courier.asked_ns) ? "waiting" : "inside"),
		       BH_INT("since_ms", now > began ? (now - began) / BH_NS_PER_MS : 0));
}

bool bh_courier_settle(struct bh_deadline until)
{
	const struct timespec pause = { .tv_nsec = (long)BH_NS_PER_MS };

	bh_courier_close();
	while (get(&courier.queued) > 0 && !is_courier) {
		if (bh_deadline_passed(until))
			return false;
		nanosleep(&pause, NULL);
	}
	return true;
}

json_t *bh_courier_render(void)
{
	uint64_t asked = get(&courier.asked_ns), now = bh_now_ns();
	double waiting = asked && now > asked ? (double)(now - asked) / BH_NS_PER_S : 0;

	return json_pack(
		"{s:I, s:f, s:I, s:I, s:I, s:I}", "queued", (json_int_t)get(&courier.queued),
		"waiting_s", waiting, "ran", (json_int_t)get(&courier.ran), "inline",
		(json_int_t)get(&courier.ran_inline), "refused", (json_int_t)get(&courier.refused),
		"dropped", (json_int_t)get(&courier.dropped));
}
