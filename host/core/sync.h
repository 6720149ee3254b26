/* SPDX-License-Identifier: BSD-3-Clause */
/* sync - mutex, condition, and thread with one monotonic deadline (SUP-9).
 *
 * The only file that calls the timed primitives: TSan misjudges pthread_mutex_clocklock and
 * pthread_clockjoin_np, so waits go through pthread_cond_clockwait and joins through
 * pthread_tryjoin_np. Functions end the process on misuse (EINVAL, EDEADLK): that is our own fault.
 */
#ifndef BH_HOST_CORE_SYNC_H
#define BH_HOST_CORE_SYNC_H

#include <pthread.h>

#include "host/core/clock.h"
#include "host/core/error.h"

struct BH_CAPABILITY("mutex") bh_mutex {
	pthread_mutex_t m;
};

struct bh_cond {
	pthread_cond_t c;
};

void bh_mutex_init(struct bh_mutex *mutex);
void bh_mutex_fini(struct bh_mutex *mutex);
void bh_mutex_lock(struct bh_mutex *mutex) BH_ACQUIRES(*mutex);
bool bh_mutex_trylock(struct bh_mutex *mutex) BH_TRY_ACQUIRES(true, *mutex);
void bh_mutex_unlock(struct bh_mutex *mutex) BH_RELEASES(*mutex);

void bh_cond_init(struct bh_cond *cond);
void bh_cond_fini(struct bh_cond *cond);
void bh_cond_signal(struct bh_cond *cond);
void bh_cond_broadcast(struct bh_cond *cond);
/* false when `until` has passed; spurious returns are true, so wait in a loop on the condition. */
bool bh_cond_wait(struct bh_cond *cond, struct bh_mutex *mutex, struct bh_deadline until)
	BH_NEEDS(*mutex);

/* Starts a thread named `name` (at most 15 bytes, see bh_thread_name_pool) with every signal as the
 * caller has it. The result is joined with bh_thread_join() or never. Fault point: "thread". */
bh_status bh_thread_create(pthread_t *ret_thread, const char *name, void *(*fn)(void *), void *arg,
			   struct bh_error *err) BH_MUST_CHECK;
/* -ETIMEDOUT when it has not ended by `until` (the handle stays valid), -EDEADLK for oneself. */
bh_status bh_thread_join(pthread_t thread, struct bh_deadline until,
			 struct bh_error *err) BH_MUST_CHECK;
/* "<label>/<suffix>" in 15 bytes: a label that is too long becomes its first bytes, '~' and the
 * pool id. */
void bh_thread_name_pool(char out[16], const char *label, unsigned pool_id, const char *suffix);

#endif
