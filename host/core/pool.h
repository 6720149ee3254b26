/* SPDX-License-Identifier: BSD-3-Clause */
/* pool - a fixed set of tagged workers fed from one bounded queue, built and taken down by its
 * supervisor.
 *
 * The pool knows its backend by a table of functions, so that it can be tested without plugins and
 * without Python. A submission is accepted (and then gets exactly one outcome) or refused at once.
 *
 * Thread: any for the functions here unless one says otherwise. GIL: not held where a function may
 *         block (GIL-9); bh_pool_submit has a way not to.
 * Owns:   its threads, queue, lanes and task records. Borrows: the backend (outlives it).
 * Lives:  from bh_pool_new to the end of the process, or bh_pool_free once joined. Tickets and late
 *         completions may use the handle until then (RI-5).
 * Keeps:  RI-3…RI-5, SUP-1…SUP-9 (docs/architecture.md). */
#ifndef BH_HOST_CORE_POOL_H
#define BH_HOST_CORE_POOL_H

#include <jansson.h>
#include <stdatomic.h>

#include "host/core/clock.h"
#include "host/core/cpus.h"
#include "host/core/histogram.h"
#include "host/core/list.h"
#include "host/core/value.h"

struct bh_pool;
struct bh_lane;
struct bh_edge;

enum bh_pool_state {
	BH_POOL_NEW,	  /* not started */
	BH_POOL_BUILDING, /* backend open, threads being made */
	BH_POOL_READY,
	BH_POOL_DRAINING,     /* closed to submissions; works off what it has */
	BH_POOL_EXITING,      /* workers told to end, then backend close */
	BH_POOL_CLEAN,	      /* ended, backend closed without an error */
	BH_POOL_FAILED,	      /* ended with a cause */
	BH_POOL_BUILD_FAILED, /* never got ready; what was built is undone */
	BH_POOL_WEDGED,	      /* given up at the deadline: some thread of it never came back */
};
#define BH_POOL_STATES 9

enum bh_outcome {
	BH_OUTCOME_NONE = 0, /* not yet */
	BH_OUTCOME_DONE,
	BH_OUTCOME_FAILED,
	BH_OUTCOME_CANCELLED,
	BH_OUTCOME_DEADLINE,
	BH_OUTCOME_ABANDONED, /* given up; the task may still be running (SUP-10) */
};
#define BH_OUTCOMES 6

enum bh_admission {
	BH_ACCEPTED,
	BH_OVERLOADED, /* the queue is full (SUP-8) */
	BH_CLOSED,     /* not ready, draining, or gone */
	BH_FORKED,     /* this process is a forked child (EXIT-5) */
	BH_BUSY,       /* only with BH_SUBMIT_TRYLOCK: ask again without the GIL */
};

const char *bh_pool_state_name(enum bh_pool_state state);
const char *bh_outcome_name(enum bh_outcome outcome);

/* What a pool runs on. Contracts as in bulkhead/plugin.h; `self` is bh_pool_config.backend_self. */
struct bh_backend {
	bh_status (*open)(void *self, struct bh_error *err);  /* supervisor */
	bh_status (*close)(void *self, struct bh_error *err); /* supervisor */
	bh_status (*worker_start)(void *self, uint32_t worker,
				  struct bh_error *err); /* worker; may be NULL */
	bh_status (*worker_stop)(void *self, uint32_t worker,
				 struct bh_error *err); /* worker; may be NULL */
	/* Worker, or a waiting thread of the pool. 0, BH_PENDING, or a negative errno with the
	 * task's error set (bh_task_error). */
	bh_status (*run)(void *self, struct bh_task *task);
	void (*cancel)(void *self, uint64_t task_id);		    /* supervisor; may be NULL */
	void (*progress)(void *self, uint32_t thread, int stop_fd); /* own thread; may be NULL */
	const char *(*op_name)(void *self, uint32_t op); /* any; valid as long as the pool */
};

struct bh_pool_config {
	const char *label;   /* copied (RI-5) */
	uint32_t n_workers;  /* 1 … 1024 */
	uint32_t n_progress; /* 0 … 64 */
	uint32_t queue;	     /* tasks that may wait or be pending, 1 … 1 << 20 */
	uint32_t reserve;    /* places more for clean-up tasks */
	/* What each thread of the pool, the supervisor excepted, gives itself before it runs
	 * anything of the backend; one that cannot fails the build. NULL: the CPUs of its maker;
	 * false: the main thread's nice value. */
	const struct bh_cpus *cpus; /* copied; not empty */
	bool has_nice;
	int nice; /* -20 … 19 */
	const struct bh_backend *backend;
	void *backend_self;
	uint32_t n_ops; /* whose times are measured: 0 … n_ops - 1; 0: none */
	/* Called after Ready or an end state has been published, by whoever published it and
	 * without a lock: the supervisor as the last thing it does, or the caller of
	 * bh_pool_give_up (WEDGED), or of the stop or failure of a pool that was never started. Not
	 * for a bh_pool_start that returned an error. Must not block and must not call the pool.
	 * May be NULL. */
	void (*announce)(struct bh_pool *pool, enum bh_pool_state state, void *arg);
	void *announce_arg;
};

/* ---- tickets: the submitter's side of a task ------------------------------------------------- */

/* Storage is the submitter's; bh_ticket_init before each use. The pool holds a reference from
 * acceptance until it has told the outcome. */
struct bh_ticket {
	_Atomic uint32_t refs;	  /* the last unref calls `free` */
	_Atomic uint32_t outcome; /* A: enum bh_outcome; release after the fields below */
	uint64_t task_id;	  /* I: from acceptance; 0 when refused */
	struct bh_pool *pool;	  /* I: from acceptance */
	uint32_t op;		  /* I */
	const char *op_name;	  /* I: from acceptance; lives as long as the pool */
	/* Who made the ticket has a claim on the two, and each task that comes after this one has
	 * another until it has read them. The last who lets go clears them (bh_ticket_disclaim), so
	 * none of them finds them gone. */
	_Atomic uint32_t claims; /* A: release on drop, acquire by the last */
	struct bh_value result;	 /* valid once outcome is DONE; read-only while others have a claim,
				  * else the holder's to take */
	struct bh_object
		*cause;	       /* the exception a Python callable raised; reference, may be NULL */
	struct bh_error error; /* valid for every outcome but DONE */
	/* Poisoned, or a replay: the task that failed first and made this one fail, never itself
	 * poisoned; a reference, let go of with the ticket. Valid with the outcome; NULL for every
	 * other end. */
	struct bh_ticket *root;
	/* Tasks that wait for this one's outcome (host/core/depend.c). */
	_Atomic(struct bh_edge *) dependents; /* A: see depend.c */
	struct bh_ticket *next_fired;	      /* T: the thread that fires */
	/* Called once, on the thread that ended the task, when the outcome is set; no lock held.
	 * Must not block. NULL: nobody asks. */
	void (*notify)(struct bh_ticket *ticket);
	void (*free)(struct bh_ticket *ticket);
	struct bh_ticket *next;			     /* the notified party's, for its own queue */
	uint64_t submitted_ns, started_ns, ended_ns; /* monotonic; 0: did not happen */
};

void bh_ticket_init(struct bh_ticket *ticket, void (*notify)(struct bh_ticket *),
		    void (*free)(struct bh_ticket *));
/* As init, but of a task that did not end in done: it is that one over again, with a cause of its own
 * (a reference that passes over; may be NULL). For who has let go of the first one's claim. */
void bh_ticket_init_replay(struct bh_ticket *ticket, struct bh_ticket *ended,
			   struct bh_object *cause, void (*free)(struct bh_ticket *));
struct bh_ticket *bh_ticket_ref(struct bh_ticket *ticket);
void bh_ticket_unref(struct bh_ticket *ticket);
static inline enum bh_outcome bh_ticket_outcome(const struct bh_ticket *ticket)
{
	return (enum bh_outcome)atomic_load_explicit(&ticket->outcome, memory_order_acquire);
}
/* Another claim on result and cause; the caller has one. */
void bh_ticket_claim(struct bh_ticket *ticket);
/* Lets go of a claim; the last one clears result and cause. */
void bh_ticket_disclaim(struct bh_ticket *ticket);
/* Asks for cancellation: queued → cancelled before this returns; running → the plugin is told.
 * `trylock`: returns false instead of waiting for a pool's lock (for callers that hold the GIL): the
 * caller then asks again without, also where the task has its outcome by now, because those that
 * come after it are still to be told. */
bool bh_ticket_cancel(struct bh_ticket *ticket, bool trylock);
/* Waits for the outcome. On a thread of the same pool, a queued task is stolen and run inline, or
 * what it comes after in that pool (SUP-7); -EDEADLK: it waits for its own lane, or for what comes
 * after a task of that lane, -ELOOP: nested deeper than 64, -ETIMEDOUT. GIL: not held. */
bh_status bh_ticket_wait(struct bh_ticket *ticket, struct bh_deadline until,
			 struct bh_error *err) BH_MUST_CHECK;

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Tasks of a lane run in order, one at a time, a pending one until it is completed; lanes are fair
 * to each other and to tasks without one. Reference counted; a lane outlives its tasks by itself.
 */
bh_status bh_lane_new(struct bh_pool *pool, const char *name, struct bh_lane **ret_lane,
		      struct bh_error *err) BH_MUST_CHECK;
struct bh_lane *bh_lane_ref(struct bh_lane *lane);
void bh_lane_unref(struct bh_lane *lane);

struct bh_lane_books { /* submitted = the five + queued + running */
	uint64_t submitted, done, failed, cancelled, deadline, abandoned;
	uint32_t queued, running; /* running: or pending */
	uint64_t busy_ns;	  /* from start to true end, of those that have ended */
	char last_error[48];	  /* the identifier of the last failure; "" without one */
};
/* Since the lane was made. Takes the pool's lock. */
void bh_lane_books(struct bh_lane *lane, struct bh_lane_books *ret_books);

/* ---- life ------------------------------------------------------------------------------------ */

bh_status bh_pool_new(const struct bh_pool_config *config, struct bh_pool **ret_pool,
		      struct bh_error *err) BH_MUST_CHECK;
/* Makes the supervisor and returns; the rest is announced (SUP-1, SUP-2). */
bh_status bh_pool_start(struct bh_pool *pool, struct bh_error *err) BH_MUST_CHECK;
/* Waits for Ready or BuildFailed; a build failure is returned with its cause. */
bh_status bh_pool_wait_started(struct bh_pool *pool, struct bh_deadline until,
			       struct bh_error *err) BH_MUST_CHECK;
/* Asks for the end and returns at once, from any thread, any number of times; the earliest deadline
 * counts (SUP-3). Closes submissions, works off what it has until `drain_until`, then cancels what
 * is queued and tells what runs; at `cancel_until` what is pending is abandoned. Then workers end.
 */
void bh_pool_stop(struct bh_pool *pool, struct bh_deadline drain_until,
		  struct bh_deadline cancel_until);
/* The pool fails at run time with this cause: closed, queued cancelled, then it ends as FAILED. */
void bh_pool_fail(struct bh_pool *pool, const struct bh_error *cause);
/* Gives the pool up: state WEDGED, every task without an outcome abandoned (queued ones:
 * cancelled). `ret_report` (may be NULL; set to NULL without memory) says which thread is stuck in
 * what, since when: {pool, state, step, step_since_s, threads: [{thread, tid, step, since_s,
 * cancelled, worker?, op?, task?}]}. False: it had ended meanwhile, or was never started. */
bool bh_pool_give_up(struct bh_pool *pool, json_t **ret_report);
/* Waits for the exit state (a Ready pool never has one). -ETIMEDOUT is not a failure. The pool's
 * own outcome is in bh_pool_state() and bh_pool_cause(). */
bh_status bh_pool_wait_ended(struct bh_pool *pool, struct bh_deadline until,
			     struct bh_error *err) BH_MUST_CHECK;
/* Joins the supervisor. Refused with -EBUSY before the exit is published, with -EDEADLK on the
 * supervisor itself; a second join replays the first result (SUP-6). */
bh_status bh_pool_join(struct bh_pool *pool, struct bh_deadline until,
		       struct bh_error *err) BH_MUST_CHECK;
/* The calling thread is in exit() and comes back no more. True when it is a pool's own (a worker,
 * progress or its supervisor): who ends the process then does not wait for it. */
bool bh_pool_exits(void);
enum bh_pool_rest {
	BH_POOL_REST_NONE,    /* it has ended: to be joined */
	BH_POOL_REST_EXITING, /* the threads that are left are in exit(); the backend stays open */
	BH_POOL_REST_STUCK,   /* `until` has passed */
};
/* For the end of the process, after bh_pool_stop(): waits as bh_pool_wait_ended() does, but for
 * threads that are in exit() only until all the others have ended (EXIT-3). */
enum bh_pool_rest bh_pool_wait_rest(struct bh_pool *pool, struct bh_deadline until) BH_MUST_CHECK;
/* Never started, or joined, and no ticket left. What still has a task that has not truly ended, or
 * a lane, or was not joined, is kept for ever instead and logged (SUP-10). */
struct bh_pool *bh_pool_free(struct bh_pool *pool);
BH_DEFINE_AUTO(struct bh_pool, bh_pool_free)

/* ---- work ------------------------------------------------------------------------------------ */

#define BH_SUBMIT_TRYLOCK 1u /* BH_BUSY rather than wait for the pool's lock */
#define BH_SUBMIT_CLEANUP 2u /* may use the reserve */

struct bh_submission {
	uint32_t op;
	uint32_t flags;
	struct bh_args *args;	     /* passes to the pool on acceptance only; may be NULL */
	struct bh_lane *lane;	     /* borrowed; NULL: none */
	struct bh_deadline deadline; /* BH_NEVER: none */
	struct bh_ticket *ticket;    /* NULL: nobody asks for the outcome */
	/* Accepted tasks of any pool that this one comes after: it is queued, but not started, until
	 * all of them are done, and fails unrun as `task.dependent` (-EPIPE) as soon as one of them
	 * has ended otherwise. Borrowed for the call; the caller has a claim on each (bh_ticket). */
	struct bh_ticket *const *after;
	uint32_t n_after;
};

/* Never blocks for room. For everything but BH_ACCEPTED the error says what and what to do. */
enum bh_admission bh_pool_submit(struct bh_pool *pool, const struct bh_submission *submission,
				 struct bh_error *err) BH_MUST_CHECK;
/* As submit, but waits for room until `until`. GIL: not held. */
enum bh_admission bh_pool_submit_wait(struct bh_pool *pool, const struct bh_submission *submission,
				      struct bh_deadline until, struct bh_error *err) BH_MUST_CHECK;
/* Ends a pending task (services->complete): the reference of `value` passes over. -ESRCH as
 * documented there. */
bh_status bh_pool_complete(struct bh_pool *pool, uint64_t task_id, bh_status status,
			   struct bh_value *value, const struct bh_error *error) BH_MUST_CHECK;

/* Which op a task that has not ended runs; -ESRCH when it has, or never was (stale ids are safe).
 */
bh_status bh_pool_task_op(struct bh_pool *pool, uint64_t task_id, uint32_t *ret_op) BH_MUST_CHECK;

/* ---- a task, as seen by the backend that runs it ----------------------------------------------
 */

uint64_t bh_task_id(const struct bh_task *task);
uint32_t bh_task_op(const struct bh_task *task);
struct bh_pool *bh_task_pool(const struct bh_task *task);
const struct bh_args *bh_task_args(const struct bh_task *task);
bool bh_task_cancelled(const struct bh_task *task);
struct bh_deadline bh_task_deadline(const struct bh_task *task);
struct bh_error *bh_task_error(struct bh_task *task); /* to raise into; its running thread only */
void bh_task_set_result(struct bh_task *task, struct bh_value value);  /* deeply owned, moved in */
void bh_task_set_cause(struct bh_task *task, struct bh_object *cause); /* reference moved in */
/* The task that the calling thread runs (innermost), or NULL. */
struct bh_task *bh_task_current(void);
/* Puts results in the place of the arguments that stand for them (BH_TYPE_AFTER in value.h), at the
 * top and one list deep. Each is a copy: text and lists are the task's own, buffers and objects new
 * references. `accept` then checks it or makes it fit: `parameter` is its argument's index,
 * `element` says that it stands in that argument's list. Stops at the first that fails, with what
 * was raised in bh_task_error(). Called again it has nothing to do. Thread: runs the task. */
typedef bh_status (*bh_accept_fn)(void *arg, struct bh_task *task, uint32_t parameter, bool element,
				  const struct bh_ticket *from, struct bh_value *value);
bh_status bh_task_fill(struct bh_task *task, bh_accept_fn accept, void *arg) BH_MUST_CHECK;

/* ---- looking --------------------------------------------------------------------------------- */

struct bh_pool_books { /* submitted = the five + queued + running + pending + in_transit */
	uint64_t submitted, done, failed, cancelled, deadline, abandoned;
	uint64_t refused; /* overloaded; not part of submitted */
	uint32_t queued, running, pending, in_transit;
	uint32_t abandoned_alive; /* told abandoned, not truly ended yet (SUP-10) */
};

/* How long the tasks of one op took, from the start on a thread to the outcome, whatever that is; what a
 * task was pending for counts. Adds the copy to `*counts`, which begins zeroed, and returns the sum in ns; a
 * little older than the counts, perhaps. `op` is one of bh_pool_config.n_ops. */
uint64_t bh_pool_op_times(const struct bh_pool *pool, uint32_t op,
			  struct bh_histogram_counts *counts);

/* A task that runs, or is pending (`tid` is 0 then), as seen from outside. */
struct bh_task_sight {
	uint64_t task_id, started_ns;
	const char *op; /* lives as long as the pool */
	uint32_t tid;
	char thread[16]; /* "" when pending */
};
/* Those that started before `before_ns` and have not ended, the oldest first; abandoned ones are
 * counted elsewhere. Returns how many are in `ret_sights`, at most `room`. */
uint32_t bh_pool_overdue_tasks(struct bh_pool *pool, uint64_t before_ns,
			       struct bh_task_sight *ret_sights, uint32_t room);
/* What the pool's thread `tid` runs, the innermost task; false when that is none. */
bool bh_pool_task_of_thread(struct bh_pool *pool, uint32_t tid, struct bh_task_sight *ret_sight);

const char *bh_pool_label(const struct bh_pool *pool);
uint32_t bh_pool_id(const struct bh_pool *pool);
uint32_t bh_pool_workers(const struct bh_pool *pool);
void *bh_pool_backend_self(const struct bh_pool *pool); /* bh_pool_config.backend_self */
enum bh_pool_state bh_pool_state(struct bh_pool *pool);
void bh_pool_books(struct bh_pool *pool, struct bh_pool_books *ret_books);
/* The cause of FAILED, BUILD_FAILED or WEDGED; false when there is none. */
bool bh_pool_cause(struct bh_pool *pool, struct bh_error *ret_cause);
/* One pool's object of /v1/pools (docs/admin-api.md); NULL without memory. */
json_t *bh_pool_render(struct bh_pool *pool);

/* Marks the process as a forked child, for pthread_atfork (EXIT-5). Async-signal-safe. */
void bh_pool_forked(void);

#endif
