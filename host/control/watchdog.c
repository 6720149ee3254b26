/* SPDX-License-Identifier: BSD-3-Clause */
/* watchdog - see watchdog.h. */
#include "config.h"

#include "host/control/watchdog.h"

#include <errno.h>

#include "host/core/sync.h"

struct bh_watchdog {
	uint64_t interval_ns;			      /* I */
	void (*tick)(uint64_t elapsed_ns, void *arg); /* I */
	void *arg;				      /* I */
	pthread_t thread;			      /* I: after start */
	struct bh_mutex lock;			      /* guards `stopping`; a leaf */
	struct bh_cond changed;			      /* `stopping` has become true */
	bool stopping;				      /* M */
};

/* False when the watchdog shall end. */
static bool sleep_until(struct bh_watchdog *watchdog, struct bh_deadline until)
{
	bool stopping;

	bh_mutex_lock(&watchdog->lock);
	while (!watchdog->stopping && bh_cond_wait(&watchdog->changed, &watchdog->lock, until))
		;
	stopping = watchdog->stopping;
	bh_mutex_unlock(&watchdog->lock);
	return !stopping;
}

static void *watch(void *arg)
{
	struct bh_watchdog *watchdog = arg;
	uint64_t last = bh_now_ns(), next = last + watchdog->interval_ns;

	while (sleep_until(watchdog, (struct bh_deadline){ next })) {
		uint64_t now = bh_now_ns();

		watchdog->tick(now - last, watchdog->arg);
		last = now;
		next += watchdog->interval_ns;
		now = bh_now_ns();
		if (next <= now) /* late: skip what was missed rather than catch up in a burst */
			next = now + watchdog->interval_ns;
	}
	return NULL;
}

static void watchdog_free(struct bh_watchdog *watchdog)
{
	bh_cond_fini(&watchdog->changed);
	bh_mutex_fini(&watchdog->lock);
	free(watchdog);
}

bh_status bh_watchdog_start(uint64_t interval_ns, void (*tick)(uint64_t, void *), void *arg,
			    struct bh_watchdog **ret_watchdog, struct bh_error *err)
{
	struct bh_watchdog *watchdog;
	bh_status st;

	if (interval_ns == 0) {
		*ret_watchdog = NULL;
		return 0;
	}
	watchdog = calloc(1, sizeof(*watchdog));
	if (!watchdog)
		return bh_raise(err, -ENOMEM, "watchdog.alloc");
	watchdog->interval_ns = interval_ns;
	watchdog->tick = tick;
	watchdog->arg = arg;
	bh_mutex_init(&watchdog->lock);
	bh_cond_init(&watchdog->changed);
	st = bh_thread_create(&watchdog->thread, "bh-watch", watch, watchdog, err);
	if (st < 0) {
		watchdog_free(watchdog);
		return st;
	}
	*ret_watchdog = watchdog;
	return 0;
}

void bh_watchdog_stop(struct bh_watchdog *watchdog)
{
	if (!watchdog)
		return;
	bh_mutex_lock(&watchdog->lock);
	watchdog->stopping = true;
	bh_cond_broadcast(&watchdog->changed);
	bh_mutex_unlock(&watchdog->lock);
}

bh_status bh_watchdog_join(struct bh_watchdog *watchdog, struct bh_deadline until,
			   struct bh_error *err)
{
	bh_status st;

	if (!watchdog)
		return 0;
	st = bh_thread_join(watchdog->thread, until, err);
	if (st < 0)
		return st;
	watchdog_free(watchdog);
	return 0;
}
