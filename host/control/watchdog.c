/* SPDX-License-Identifier: BSD-3-Clause */
/* watchdog - see watchdog.h.
 *
 * An episode begins when its subject has been stuck for the limit, and is over when it is stuck for
 * less than half of that: a lag that moves about the limit is one episode (CP-3). */
#include "config.h"

#include "host/control/watchdog.h"

#include <errno.h>

#include "host/core/sync.h"

#define LOOK_MAX_NS (50 * BH_NS_PER_MS) /* between two looks at the gauges */
#define LOOK_MIN_NS (1 * BH_NS_PER_MS)

struct beat {
	struct bh_beat beat;
	uint64_t last_ns, next_ns;
};

struct episode {
	bool open; /* false: an empty row */
	bool seen; /* at the present look */
	uint64_t key, since_ns, id;
};

struct bh_watchdog {
	struct bh_watchdog_config config; /* I */
	struct bh_gauge *gauges;	  /* I: owned */
	uint64_t least_limit_ns;	  /* I: of all gauges; 0: nothing is looked at */
	struct beat *beats;		  /* T: watchdog; owned; the last one is the look */
	size_t n_beats;			  /* I */
	/* T: watchdog; owned; BH_SUBJECTS_MAX rows a gauge, so that none takes another's */
	struct episode *episodes;
	uint64_t quiet_until_ns; /* T: watchdog; nobody is accused before */
	pthread_t thread;	 /* I: after start */
	struct bh_mutex lock;	 /* guards `stopping`; a leaf */
	struct bh_cond changed;	 /* `stopping` has become true */
	bool stopping;		 /* M */
};

/* ---- the gauges ------------------------------------------------------------------------------ */

static struct episode *episodes_of(struct bh_watchdog *watchdog, const struct bh_gauge *gauge)
{
	return &watchdog->episodes[(size_t)(gauge - watchdog->gauges) * BH_SUBJECTS_MAX];
}

static struct episode *find(struct bh_watchdog *watchdog, const struct bh_gauge *gauge,
			    uint64_t key)
{
	struct episode *episodes = episodes_of(watchdog, gauge);

	for (size_t i = 0; i < BH_SUBJECTS_MAX; i++)
		if (episodes[i].open && episodes[i].key == key)
			return &episodes[i];
	return NULL;
}

static void begin(struct bh_watchdog *watchdog, const struct bh_gauge *gauge,
		  const struct bh_stall_subject *subject)
{
	struct episode *episode = episodes_of(watchdog, gauge), *end = episode + BH_SUBJECTS_MAX;

	while (episode < end && episode->open)
		episode++;
	if (episode == end)
		return; /* there will be room at another look, if it is still stuck then */
	*episode = (struct episode){
		.open = true, .seen = true, .key = subject->key, .since_ns = subject->since_ns
	};
	episode->id = watchdog->config.begin(gauge, subject, watchdog->config.arg);
}

/* A report may take a while, and several may be due: a stop waits for the present one alone. */
static bool is_stopping(struct bh_watchdog *watchdog)
{
	bool stopping;

	bh_mutex_lock(&watchdog->lock);
	stopping = watchdog->stopping;
	bh_mutex_unlock(&watchdog->lock);
	return stopping;
}

static void look_at(struct bh_watchdog *watchdog, const struct bh_gauge *gauge)
{
	struct bh_stall_subject subjects[BH_SUBJECTS_MAX];
	uint64_t now = bh_now_ns(), half = gauge->limit_ns / 2;
	/* A limit may be longer than the machine has been up. */
	uint32_t n = gauge->look(now > half ? now - half : 0, subjects, gauge->arg);

	for (uint32_t i = 0; i < n; i++) {
		struct episode *episode = find(watchdog, gauge, subjects[i].key);

		if (episode)
			episode->seen = true;
		else if (now - subjects[i].since_ns >= gauge->limit_ns &&
			 now >= watchdog->quiet_until_ns && !is_stopping(watchdog))
			begin(watchdog, gauge, &subjects[i]);
	}
}

/* Ends what its gauge has not named any more. */
static void sweep(struct bh_watchdog *watchdog, const struct bh_gauge *gauge)
{
	struct episode *episodes = episodes_of(watchdog, gauge);
	uint64_t now = bh_now_ns();

	for (size_t i = 0; i < BH_SUBJECTS_MAX; i++) {
		struct episode *episode = &episodes[i];

		if (episode->open && !episode->seen) {
			episode->open = false;
			watchdog->config.end(gauge, episode->id, now - episode->since_ns,
					     watchdog->config.arg);
		}
		episode->seen = false;
	}
}

static uint32_t look(uint64_t elapsed_ns, void *arg)
{
	struct bh_watchdog *watchdog = arg;

	(void)elapsed_ns;
	for (size_t i = 0; i < watchdog->config.n_gauges; i++)
		if (watchdog->gauges[i].limit_ns > 0) {
			look_at(watchdog, &watchdog->gauges[i]);
			sweep(watchdog, &watchdog->gauges[i]);
		}
	return 0;
}

/* ---- the thread ------------------------------------------------------------------------------ */

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

static struct bh_deadline next_beat(const struct bh_watchdog *watchdog)
{
	struct bh_deadline next = { watchdog->beats[0].next_ns };

	for (size_t i = 1; i < watchdog->n_beats; i++)
		next = bh_deadline_min(next, (struct bh_deadline){ watchdog->beats[i].next_ns });
	return next;
}

static void beat_if_due(struct beat *beat)
{
	uint64_t now = bh_now_ns();
	uint32_t left_out;

	if (now < beat->next_ns)
		return;
	left_out = beat->beat.tick(now - beat->last_ns, beat->beat.arg);
	beat->last_ns = now;
	beat->next_ns += beat->beat.interval_ns * (1 + (uint64_t)left_out);
	now = bh_now_ns();
	if (beat->next_ns <= now) /* late: skip what was missed rather than catch up in a burst */
		beat->next_ns = now + beat->beat.interval_ns;
}

/* Who wakes up late himself, in a process that was stopped or gets no CPU, does not accuse others of
 * the same: they are given some time to catch up, but no more than a limit. */
static bool sleep_until_next(struct bh_watchdog *watchdog)
{
	struct bh_deadline next = next_beat(watchdog);
	uint64_t now = bh_now_ns(), late_from = next.at_ns > now ? next.at_ns : now;

	if (!sleep_until(watchdog, next))
		return false;
	now = bh_now_ns();
	if (now - late_from >= watchdog->least_limit_ns)
		watchdog->quiet_until_ns = now + watchdog->least_limit_ns;
	return true;
}

static void *watch(void *arg)
{
	struct bh_watchdog *watchdog = arg;
	uint64_t now = bh_now_ns();

	for (size_t i = 0; i < watchdog->n_beats; i++) {
		watchdog->beats[i].last_ns = now;
		watchdog->beats[i].next_ns = now + watchdog->beats[i].beat.interval_ns;
	}
	while (sleep_until_next(watchdog))
		for (size_t i = 0; i < watchdog->n_beats; i++)
			beat_if_due(&watchdog->beats[i]);
	return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static void watchdog_free(struct bh_watchdog *watchdog)
{
	bh_cond_fini(&watchdog->changed);
	bh_mutex_fini(&watchdog->lock);
	free(watchdog->episodes);
	free(watchdog->gauges);
	free(watchdog->beats);
	free(watchdog);
}

static void add_beat(struct bh_watchdog *watchdog, const struct bh_beat *beat)
{
	if (beat->interval_ns > 0)
		watchdog->beats[watchdog->n_beats++].beat = *beat;
}

/* A limit is exceeded by no more than a quarter of it when it is noticed. */
static void add_look(struct bh_watchdog *watchdog)
{
	uint64_t least = 0, every;

	for (size_t i = 0; i < watchdog->config.n_gauges; i++) {
		uint64_t limit = watchdog->gauges[i].limit_ns;

		if (limit > 0 && (least == 0 || limit < least))
			least = limit;
	}
	watchdog->least_limit_ns = least;
	every = least / 4 < LOOK_MAX_NS ? least / 4 : LOOK_MAX_NS;
	if (least > 0)
		add_beat(watchdog, &(struct bh_beat){ every > LOOK_MIN_NS ? every : LOOK_MIN_NS,
						      look, watchdog });
}

static bool fill(struct bh_watchdog *watchdog, const struct bh_watchdog_config *config)
{
	watchdog->config = *config;
	watchdog->gauges = calloc(config->n_gauges + 1, sizeof(*watchdog->gauges));
	watchdog->beats = calloc(config->n_beats + 1, sizeof(*watchdog->beats));
	watchdog->episodes =
		calloc(config->n_gauges + 1, BH_SUBJECTS_MAX * sizeof(*watchdog->episodes));
	if (!watchdog->gauges || !watchdog->beats || !watchdog->episodes)
		return false;
	for (size_t i = 0; i < config->n_gauges; i++)
		watchdog->gauges[i] = config->gauges[i];
	for (size_t i = 0; i < config->n_beats; i++)
		add_beat(watchdog, &config->beats[i]);
	add_look(watchdog);
	return true;
}

bh_status bh_watchdog_start(const struct bh_watchdog_config *config,
			    struct bh_watchdog **ret_watchdog, struct bh_error *err)
{
	struct bh_watchdog *watchdog = calloc(1, sizeof(*watchdog));
	bh_status st = 0;

	if (!watchdog)
		return bh_raise(err, -ENOMEM, "watchdog.alloc");
	bh_mutex_init(&watchdog->lock);
	bh_cond_init(&watchdog->changed);
	if (!fill(watchdog, config))
		st = bh_raise(err, -ENOMEM, "watchdog.alloc");
	else if (watchdog->n_beats > 0)
		st = bh_thread_create(&watchdog->thread, "bh-watch", watch, watchdog, err);
	if (st < 0 || watchdog->n_beats == 0) {
		watchdog_free(watchdog);
		watchdog = NULL;
	}
	if (st == 0)
		*ret_watchdog = watchdog;
	return st;
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
