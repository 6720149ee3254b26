/* SPDX-License-Identifier: BSD-3-Clause */
/* pool_private - the inside of a pool, shared by the files that make it up.
 *
 *	pool.c        make and free, admission, what can be looked at
 *	task.c        task records: their life from acceptance to outcome and end
 *	lane.c        the ready queue and the lanes in it
 *	lane_books.c  the books of a lane
 *	heap.c        deadlines in order
 *	worker.c      the pool's own threads, and running a task on one
 *	depend.c      tasks that come after others: arming, firing, poison, values
 *	ticket.c      the submitter's side: cancel, wait (SUP-7)
 *	supervisor.c  the state machine; build, serve, take down
 *
 * Lock: one mutex a pool guards every M field of the pool, its tasks, lanes and threads. It is a
 * leaf: nothing is called under it but the log, which takes no lock. Functions that end in _locked
 * need it; those that let go of it in between say so. Callbacks (backend, notify, announce, free)
 * run without.
 *
 * A task has two ends, which mostly coincide. It is *told* when its outcome is set (exactly
 * once, SUP-4), and it has *truly ended* when nothing runs or completes it any more; only then
 * are its arguments released and its record reused (SUP-10). Told first: abandoned, or completed
 * from another thread while run() is still on its way out. */
#ifndef BH_HOST_CORE_POOL_PRIVATE_H
#define BH_HOST_CORE_POOL_PRIVATE_H

#include "host/core/pool.h"
#include "host/core/sync.h"

#define BH_INLINE_DEPTH_MAX 64
#define BH_NOT_IN_HEAP UINT32_MAX

enum bh_task_state { BH_TASK_FREE, BH_TASK_QUEUED, BH_TASK_RUNNING, BH_TASK_PENDING };

/* What stands in the ready queue (or a task in its lane's queue). */
struct bh_ready {
	struct bh_list link;
	bool is_lane; /* I */
};

struct bh_task {
	struct bh_ready ready;	     /* M: while queued: in pool->ready, or in lane->tasks */
	struct bh_list all;	     /* M: in pool->free, queued, active or lost */
	struct bh_list cancel_link;  /* M: in pool->cancels while the backend is to be told */
	struct bh_list waiters;	     /* M: struct bh_waiter */
	struct bh_pool *pool;	     /* I */
	uint64_t id;		     /* I from acceptance until the record is reused */
	uint64_t generation;	     /* M: how often the record has been used */
	enum bh_task_state state;    /* M */
	enum bh_outcome told;	     /* M: BH_OUTCOME_NONE until the outcome is set */
	bool completed;		     /* M: bh_pool_complete() has been called */
	bool has_place;		     /* M: counts in pool->n_places */
	bool cancel_asked;	     /* M: by submitter or stop, not only by its deadline */
	_Atomic bool cancelled;	     /* A: relaxed; a hint to the op that it should end soon */
	uint32_t op;		     /* I from acceptance */
	const char *op_name;	     /* I from acceptance; the backend's, lives as the pool */
	struct bh_deadline deadline; /* I from acceptance */
	uint32_t heap_index;	     /* M */
	struct bh_args *args;	     /* I from acceptance until it has truly ended */
	struct bh_lane *lane;	     /* I from acceptance until truly ended; a reference */
	struct bh_ticket *ticket;    /* M: a reference, NULL when told or nobody asks */
	struct bh_deps *deps; /* I from acceptance until truly ended; NULL: comes after none */
	bool blocked;	      /* M: queued, and one of those has no outcome yet */
	uint64_t search;      /* M: the last search that came by, see ticket.c */
	struct bh_task *search_next;	   /* M: during a search */
	struct bh_frame *frame;		   /* T: the thread that runs it */
	struct bh_task *outer;		   /* M: what its thread was running when it took it in */
	uint64_t submitted_ns, started_ns; /* M */
};

struct bh_lane {
	_Atomic uint32_t refs;	 /* A: as in value.h; each task in the lane holds one */
	struct bh_pool *pool;	 /* I: borrowed */
	char name[BH_LABEL_MAX]; /* I */
	struct bh_ready ready;	 /* M: in pool->ready while idle with a head that is not blocked */
	struct bh_list tasks;	 /* M: queued ones, in order */
	bool busy;		 /* M: one of its tasks is running or pending */

	struct bh_lane_books books; /* M */
};

/* A thread blocked in bh_ticket_wait(); on its stack. */
struct bh_waiter {
	struct bh_list link;	    /* M: in task->waiters */
	struct bh_list helper_link; /* M: in pool->helpers when it is a thread of the pool */
	struct bh_cond cond;
};

/* One run of a task; on the stack of the thread that runs it. */
struct bh_frame {
	struct bh_task *task;
	struct bh_frame *outer;
	unsigned depth; /* 1 for the outermost */
	struct bh_error error;
	struct bh_value result;
	struct bh_object *cause;
};

enum bh_thread_step {
	BH_THREAD_NONE,	    /* not made yet */
	BH_THREAD_STARTING, /* in worker_start */
	BH_THREAD_SERVING,  /* idle or running `task`; or in progress() */
	BH_THREAD_STOPPING, /* in worker_stop */
	BH_THREAD_ENDED,
};

struct bh_pool_thread {
	struct bh_pool *pool;	  /* I */
	uint32_t index;		  /* I: of its kind */
	bool is_worker;		  /* I: else it runs progress() */
	char name[16];		  /* I */
	pthread_t handle;	  /* T: supervisor */
	bool joinable;		  /* T: supervisor */
	uint32_t tid;		  /* M: 0 until it runs */
	enum bh_thread_step step; /* M */
	uint64_t since_ns;	  /* M: when it entered the step, or began the task */
	struct bh_task *task;	  /* M: the innermost task that it runs */
	bool exiting;		  /* M: it is in exit(), for ever */
};

/* Written under the pool's lock, so without a locked instruction; read without it. */
struct bh_op_times {
	struct bh_histogram histogram;
	_Atomic uint64_t total_ns; /* A: relaxed, statistics only */
};

struct bh_pool {
	char label[BH_LABEL_MAX];			/* I: copied (RI-5) */
	uint32_t id;					/* I: from 1, never used again */
	uint32_t n_workers, n_progress, queue, reserve; /* I */
	bool has_cpus, has_nice;			/* I */
	struct bh_cpus cpus;				/* I: with has_cpus */
	int nice;					/* I: with has_nice */
	const struct bh_backend *backend;		/* I: borrowed, outlives the pool */
	void *backend_self;				/* I */
	void (*announce)(struct bh_pool *pool, enum bh_pool_state state, void *arg); /* I */
	void *announce_arg;							     /* I */
	struct bh_pool_thread *threads; /* I: the workers, then the progress threads */
	uint32_t n_threads;		/* I */
	struct bh_op_times *op_times;	/* I: one an op, n_ops of them */
	uint32_t n_ops;			/* I */
	struct bh_task *tasks;		/* I: the records */
	uint32_t n_tasks;		/* I: queue + reserve + workers, see admit_locked() */
	_Atomic uint32_t n_lanes;	/* A: relaxed, statistics and an assertion */
	_Atomic uint32_t n_deps;   /* A: release on drop; bh_deps that may still look in here */
	struct bh_pool *next_kept; /* see bh_pool_free() */

	struct bh_mutex lock;	  /* guards the M fields */
	struct bh_cond work;	  /* a worker has something to do: ready, or exit_workers */
	struct bh_cond attention; /* the supervisor has something to do */
	struct bh_cond changed;	  /* the state, a thread's step, or joined has changed */
	struct bh_cond room;	  /* a place has become free, or the pool has closed */

	_Atomic int state;	 /* A: enum bh_pool_state; one writer, under the lock */
	bool was_ready;		 /* M */
	bool stop_asked;	 /* M */
	bool cancelling;	 /* M: nothing queued is started any more */
	bool abandoning;	 /* M: what turns pending now is abandoned at once */
	bool giving_up;		 /* M: bh_pool_give_up() is telling; it publishes next */
	bool exit_workers;	 /* M: the workers are told to end */
	bool progress_told;	 /* M: so are the progress threads */
	bool exiting;		 /* M: some thread of it is in exit() */
	bool supervisor_exiting; /* M: its supervisor is */
	struct bh_deadline drain_until, cancel_until; /* M: BH_NEVER until asked to end */
	struct bh_error cause;			      /* M: the first one counts */
	const char *step;	/* M: what the supervisor is in, if it is stuck */
	uint64_t step_since_ns; /* M */

	struct bh_list ready;	/* M: struct bh_ready: lane-less tasks, and lanes */
	struct bh_list free;	/* M: records nobody uses */
	struct bh_list queued;	/* M: accepted, not started, oldest first */
	struct bh_list active;	/* M: running or pending, not told abandoned */
	struct bh_list lost;	/* M: told abandoned, not truly ended (SUP-10) */
	struct bh_list cancels; /* M: the backend is to be told to cancel these */
	struct bh_list helpers; /* M: struct bh_waiter of the pool's own threads */
	struct bh_task **heap;	/* M: tasks with a deadline, the earliest first */
	uint32_t n_heap;	/* M */

	uint32_t n_live;	    /* M: records in use */
	uint32_t n_places;	    /* M: records that count against queue and reserve */
	uint32_t n_blocked;	    /* M: queued ones that wait for others' outcomes */
	uint64_t n_searches;	    /* M: see ticket.c */
	uint32_t n_idle;	    /* M: workers waiting for work */
	uint32_t n_room_waiters;    /* M */
	struct bh_pool_books books; /* M */

	pthread_t supervisor; /* M */
	bool has_supervisor;  /* M */
	bool joining, joined; /* M */
	bool opened;	      /* T: supervisor; the backend is to be closed */
	int stop_fd;	      /* T: supervisor; -1 when there is none */
};

/* What is left to do for a task once the lock is let go. Zero-initialize. */
struct bh_aftermath {
	struct bh_args *args;
	struct bh_lane *lane;
	struct bh_ticket *ticket;
	struct bh_value result;
	struct bh_object *cause;
	struct bh_deps *deps;
	struct bh_ticket *root;
};

/* How a task ends. `result`, `cause` and `root` are moved out. */
struct bh_verdict {
	enum bh_outcome outcome;
	bh_status status;	      /* for a general error; 0: by the outcome */
	const struct bh_error *error; /* NULL or unset: a general one is made */
	struct bh_value result;
	struct bh_object *cause;
	struct bh_ticket *root; /* of what is poisoned */
};

/* pool.c */
bool bh_pool_is_forked(void);
bh_status bh_pool_raise_forked(const struct bh_pool *pool, struct bh_error *err);
static inline enum bh_pool_state bh_pool_state_now(struct bh_pool *pool)
{
	return (enum bh_pool_state)atomic_load_explicit(&pool->state, memory_order_acquire);
}
struct bh_thread_sight { /* one thread as seen under the lock */
	char name[16];
	uint32_t tid, index;
	bool is_worker, cancelled;
	enum bh_thread_step step;
	const char *op; /* NULL: runs no task */
	uint64_t task_id, since_ns;
};
uint32_t bh_pool_see_threads_locked(struct bh_pool *pool, struct bh_thread_sight *sights)
	BH_NEEDS(pool->lock);
json_t *bh_pool_render_sight(const struct bh_thread_sight *sight, uint64_t now_ns);

/* task.c */
struct bh_task *bh_task_find_locked(struct bh_pool *pool, uint64_t id) BH_NEEDS(pool->lock);
/* Takes a record, fills it from the submission, queues it. There is one: admission has counted.
 * Takes `deps` over; what comes after a task that has failed ends in here. */
void bh_task_accept_locked(struct bh_pool *pool, const struct bh_submission *submission,
			   const char *op_name, uint64_t now_ns, struct bh_deps *deps,
			   struct bh_aftermath *after) BH_NEEDS(pool->lock);
/* Queued → running, after it has been taken from the ready queue. `thread` runs it. */
void bh_task_start_locked(struct bh_pool *pool, struct bh_task *task, struct bh_pool_thread *thread,
			  uint64_t now_ns) BH_NEEDS(pool->lock);
/* run() has returned. */
void bh_task_ran_locked(struct bh_pool *pool, struct bh_task *task, bh_status status,
			struct bh_frame *frame, struct bh_aftermath *after) BH_NEEDS(pool->lock);
/* The thread that ran the task has vanished. */
void bh_task_lost_locked(struct bh_pool *pool, struct bh_task *task, const struct bh_error *cause,
			 struct bh_aftermath *after) BH_NEEDS(pool->lock);
/* Told and truly ended without having been run. It must have left the ready queue. */
void bh_task_drop_locked(struct bh_pool *pool, struct bh_task *task, struct bh_verdict *verdict,
			 struct bh_aftermath *after) BH_NEEDS(pool->lock);
/* Told abandoned; stays alive until it truly ends. */
void bh_task_abandon_locked(struct bh_pool *pool, struct bh_task *task, struct bh_aftermath *after)
	BH_NEEDS(pool->lock);
/* Flags it, and has the supervisor tell the backend. */
void bh_task_request_cancel_locked(struct bh_pool *pool, struct bh_task *task, bool asked)
	BH_NEEDS(pool->lock);
/* Without the lock: releases, then notifies. What comes after the task, and the ticket's reference,
 * are left to the caller. */
void bh_aftermath_release(struct bh_aftermath *after);
/* Without the lock: releases, notifies, then lets on what comes after the task, which takes the
 * locks of their pools, one at a time. */
void bh_aftermath_run(struct bh_aftermath *after);
/* As above, but takes no lock. False: what comes after the task is still to be let on, with
 * bh_ticket_fire(). */
bool bh_aftermath_run_lockless(struct bh_aftermath *after) BH_MUST_CHECK;
/* The verdict of a task that is cancelled while queued; carries the pool's cause if it has
 * failed. */
void bh_task_cancel_error_locked(struct bh_pool *pool, const struct bh_task *task,
				 struct bh_error *ret_error) BH_NEEDS(pool->lock);

/* lane.c */
void bh_ready_add_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
/* The next task to run, off the queue, its lane busy; NULL when there is none. */
struct bh_task *bh_ready_take_locked(struct bh_pool *pool) BH_NEEDS(pool->lock);
/* Its last predecessor is done. */
void bh_ready_unblock_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
/* The first of the lane's queued tasks, or NULL. */
struct bh_task *bh_lane_head_locked(struct bh_pool *pool, struct bh_lane *lane)
	BH_NEEDS(pool->lock);
/* Takes out a queued task, wherever it stands. Its lane is not made busy. */
void bh_ready_remove_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
/* The head of an idle lane, off the queue, the lane busy. */
struct bh_task *bh_lane_take_head_locked(struct bh_pool *pool, struct bh_lane *lane)
	BH_NEEDS(pool->lock);
/* The task that kept the lane busy has truly ended. */
void bh_lane_release_locked(struct bh_pool *pool, struct bh_lane *lane) BH_NEEDS(pool->lock);

/* lane_books.c: a task was accepted, has been started, got its outcome (`error` may be NULL) */
void bh_lane_count_in_locked(struct bh_pool *pool, struct bh_lane *lane) BH_NEEDS(pool->lock);
void bh_lane_count_start_locked(struct bh_pool *pool, struct bh_lane *lane) BH_NEEDS(pool->lock);
void bh_lane_count_out_locked(struct bh_pool *pool, struct bh_task *task, enum bh_outcome outcome,
			      const struct bh_error *error) BH_NEEDS(pool->lock);

/* depend.c */

/* "This task, when that one has ended": in the stack of that one's ticket from arming to firing. */
struct bh_edge {
	struct bh_edge *next;	  /* in the stack */
	struct bh_deps *deps;	  /* I: it is in there; a reference while it is in the stack */
	struct bh_ticket *before; /* I until let go of: a reference, and a claim */
};

/* All that one task comes after; one block, made at its submission, with a reference for the task
 * and one for each edge in a stack: an edge cannot be taken out of the middle of a stack, so the
 * block outlives a task that ends before those. It is small, and holds nothing else by then. */
struct bh_deps {
	_Atomic uint32_t refs;	 /* A: as in value.h */
	_Atomic uint32_t n_open; /* A: acq_rel; edges not done, and one more while arming */
	_Atomic uint32_t inside; /* A: acq_rel; threads that look into the pool, see depend.c */
	struct bh_pool *pool;	 /* I: valid inside only */
	uint64_t task_id;	 /* I from arming */
	bool held;		 /* T: submitter, then runner, then who ends it; `before` is held */
	uint32_t n;		 /* I */
	struct bh_edge edges[];
};

/* `*ret_deps` is NULL where the submission comes after none. -ENOMEM. */
bh_status bh_deps_new(struct bh_pool *pool, const struct bh_submission *submission,
		      struct bh_deps **ret_deps, struct bh_error *err) BH_MUST_CHECK;
/* The task has ended, or was refused: lets go of claims, predecessors, and the task's reference.
 * Without a lock. NULL is fine. */
void bh_deps_release(struct bh_deps *deps);
/* Of a task that has just been queued as blocked: lets it on or ends it where there is nothing to
 * wait for. */
void bh_deps_arm_locked(struct bh_pool *pool, struct bh_task *task, struct bh_aftermath *after)
	BH_NEEDS(pool->lock);
/* The task has ended: nobody may look into the pool for it any more. */
void bh_deps_detach_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
/* The ticket has its outcome: lets on, or ends, what comes after. Any number of times, from any
 * thread, without a lock. */
void bh_ticket_fire(struct bh_ticket *ticket);
/* True: nothing comes after the ticket, and nothing will any more. */
bool bh_ticket_close(struct bh_ticket *ticket) BH_MUST_CHECK;

/* heap.c */
void bh_heap_push_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
void bh_heap_remove_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
static inline struct bh_task *bh_heap_first(const struct bh_pool *pool)
{
	return pool->n_heap ? pool->heap[0] : NULL;
}

/* worker.c */
void *bh_worker_main(void *arg);
void *bh_progress_main(void *arg);
/* Runs a task that has been taken off the queue on the calling thread; when its deadline has
 * passed it gets that outcome instead. Lets go of the lock in between. */
void bh_worker_run_locked(struct bh_pool *pool, struct bh_task *task) BH_NEEDS(pool->lock);
struct bh_frame *bh_worker_frame(void);		/* the calling thread's innermost, or NULL */
struct bh_pool_thread *bh_worker_self(void);	/* the calling thread, if some pool's */
const struct bh_pool *bh_supervisor_self(void); /* what the calling thread supervises, or NULL */
/* "worker_start", "run", "worker_stop", "progress", …; the thread's own business, so without the
 * lock on the thread itself only. */
const char *bh_thread_step_name(const struct bh_pool_thread *thread);

/* supervisor.c */
bool bh_pool_state_is_end(enum bh_pool_state state);
/* As bh_pool_fail(), for a cause found inside. */
void bh_pool_fail_locked(struct bh_pool *pool, const struct bh_error *cause) BH_NEEDS(pool->lock);

#endif
