/* SPDX-License-Identifier: BSD-3-Clause */
/* sync - see sync.h. */
#include "config.h"

#include "host/core/sync.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NAME_MAX_BYTES 15 /* the kernel's, without the NUL */
#define JOIN_POLL_FIRST_NS (20 * BH_NS_PER_US)
#define JOIN_POLL_LAST_NS (2 * BH_NS_PER_MS)

/* A misused primitive has no safe way on: the state that it guards is lost. */
static void check(int rc, const char *what)
{
	if (rc == 0)
		return;
	fprintf(stderr, "bulkhead: %s: %s\n", what, strerrordesc_np(rc));
	abort();
}

void bh_mutex_init(struct bh_mutex *mutex)
{
	pthread_mutexattr_t attr;

	check(pthread_mutexattr_init(&attr), "pthread_mutexattr_init");
#ifdef BH_DEBUG
	check(pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK),
	      "pthread_mutexattr_settype");
#endif
	check(pthread_mutex_init(&mutex->m, &attr), "pthread_mutex_init");
	check(pthread_mutexattr_destroy(&attr), "pthread_mutexattr_destroy");
}

void bh_mutex_fini(struct bh_mutex *mutex)
{
	check(pthread_mutex_destroy(&mutex->m), "pthread_mutex_destroy");
}

/* The analysis knows bh_mutex, not the pthread_mutex_t inside: these three are its ground. */
BH_NO_TSA void bh_mutex_lock(struct bh_mutex *mutex)
{
	check(pthread_mutex_lock(&mutex->m), "pthread_mutex_lock");
}

BH_NO_TSA bool bh_mutex_trylock(struct bh_mutex *mutex)
{
	int rc = pthread_mutex_trylock(&mutex->m);

	if (rc == EBUSY)
		return false;
	check(rc, "pthread_mutex_trylock");
	return true;
}

BH_NO_TSA void bh_mutex_unlock(struct bh_mutex *mutex)
{
	check(pthread_mutex_unlock(&mutex->m), "pthread_mutex_unlock");
}

void bh_cond_init(struct bh_cond *cond)
{
	check(pthread_cond_init(&cond->c, NULL), "pthread_cond_init");
}

void bh_cond_fini(struct bh_cond *cond)
{
	check(pthread_cond_destroy(&cond->c), "pthread_cond_destroy");
}

void bh_cond_signal(struct bh_cond *cond)
{
	check(pthread_cond_signal(&cond->c), "pthread_cond_signal");
}

void bh_cond_broadcast(struct bh_cond *cond)
{
	check(pthread_cond_broadcast(&cond->c), "pthread_cond_broadcast");
}

bool bh_cond_wait(struct bh_cond *cond, struct bh_mutex *mutex, struct bh_deadline until)
{
	struct timespec at;
	int rc;

	if (until.at_ns == UINT64_MAX) {
		check(pthread_cond_wait(&cond->c, &mutex->m), "pthread_cond_wait");
		return true;
	}
	at = bh_deadline_timespec(until);
	rc = pthread_cond_clockwait(&cond->c, &mutex->m, CLOCK_MONOTONIC, &at); /* SUP-9 */
	if (rc == ETIMEDOUT)
		return false;
	check(rc, "pthread_cond_clockwait");
	return true;
}

/* What a new thread needs before its function runs; freed by it. */
struct thread_start {
	void *(*fn)(void *);
	void *arg;
	char name[NAME_MAX_BYTES + 1];
};

static void *thread_main(void *arg)
{
	struct thread_start start = *(struct thread_start *)arg;

	free(arg);
	/* Named by itself, so that nobody ever sees it under its creator's name. */
	check(pthread_setname_np(pthread_self(), start.name), "pthread_setname_np");
	return start.fn(start.arg);
}

bh_status bh_thread_create(pthread_t *ret_thread, const char *name, void *(*fn)(void *), void *arg,
			   struct bh_error *err)
{
	struct thread_start *start;
	int rc;

	assert(strlen(name) <= NAME_MAX_BYTES);
	start = malloc(sizeof(*start));
	if (!start)
		return bh_raise(err, -ENOMEM, "thread.alloc", BH_STR("thread", name));
	start->fn = fn;
	start->arg = arg;
	snprintf(start->name, sizeof(start->name), "%s", name);
	rc = pthread_create(ret_thread, NULL, thread_main, start);
	if (rc != 0) {
		free(start);
		return bh_raise(err, -rc, "thread.create", BH_STR("thread", name));
	}
	return 0;
}

static bh_status join_result(int rc, struct bh_error *err)
{
	return rc == 0 ? 0 : bh_raise(err, -rc, "thread.join");
}

bh_status bh_thread_join(pthread_t thread, struct bh_deadline until, struct bh_error *err)
{
	uint64_t poll_ns = JOIN_POLL_FIRST_NS;
	int rc;

	if (pthread_equal(thread, pthread_self()))
		return bh_raise(err, -EDEADLK, "thread.join-self");
	if (until.at_ns == UINT64_MAX)
		return join_result(pthread_join(thread, NULL), err);
	/* Polls, because TSan misjudges the timed join; a deadline that has passed still tries
	 * once. */
	while ((rc = pthread_tryjoin_np(thread, NULL)) == EBUSY) {
		uint64_t left_ns = bh_deadline_left_ns(until);
		struct timespec pause;

		if (left_ns == 0)
			return bh_raise(err, -ETIMEDOUT, "thread.join-timeout");
		poll_ns = poll_ns * 2 < JOIN_POLL_LAST_NS ? poll_ns * 2 : JOIN_POLL_LAST_NS;
		pause.tv_sec = 0;
		pause.tv_nsec = (long)(poll_ns < left_ns ? poll_ns : left_ns);
		nanosleep(&pause, NULL); /* an early return only polls once more */
	}
	return join_result(rc, err);
}

void bh_thread_name_pool(char out[16], const char *label, unsigned pool_id, const char *suffix)
{
	char tail[NAME_MAX_BYTES + 1];
	int n = snprintf(out, NAME_MAX_BYTES + 1, "%s/%s", label, suffix);
	size_t room;

	if (n <= NAME_MAX_BYTES)
		return;
	n = snprintf(tail, sizeof(tail), "~%u/%s", pool_id, suffix);
	room = n < NAME_MAX_BYTES ? (size_t)(NAME_MAX_BYTES - n) : 0;
	if (room > 8)
		room = 8; /* so that the names of one pool's threads begin alike */
	if (room > strlen(label))
		room = strlen(label);
	memcpy(out, label, room);
	memcpy(out + room, tail, strlen(tail) + 1);
}
