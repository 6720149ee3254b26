/* SPDX-License-Identifier: BSD-3-Clause */
/* log - logfmt lines on stderr, written by a thread of its own ("bh-log").
 *
 * Thread: any, also with the GIL or a lock held: bh_log never blocks. A line goes into a bounded
 * ring; when it is full the line is dropped and counted, and the count is told in the next line
 * that fits. Before bh_log_start and after bh_log_stop lines are written directly. Keeps: CP-1. */
#ifndef BH_HOST_CORE_LOG_H
#define BH_HOST_CORE_LOG_H

#include "host/core/clock.h"
#include "host/core/error.h"

bh_status bh_log_start(enum bh_log_level threshold, struct bh_error *err) BH_MUST_CHECK;
void bh_log_stop(struct bh_deadline until);  /* writes what is queued, bounded */
void bh_log_flush(struct bh_deadline until); /* waits until what is queued has been written */
void bh_log_set_level(enum bh_log_level threshold);
bool bh_log_wants(enum bh_log_level level);
uint64_t bh_log_dropped(void);

/* time=2026-01-02T03:04:05.678Z level=info component=pool msg="…" key=value …; control characters
 * are escaped, so that one call is one line. */
#define bh_log(level, component, message, ...)                                                     \
	BH_LOG_PICK_(0 __VA_OPT__(, ) __VA_ARGS__)                                                 \
	(level, component, message __VA_OPT__(, ) __VA_ARGS__)
#define BH_LOG_PICK_(zero, ...) BH_LOG_CALL_##__VA_OPT__(FACTS_)
#define BH_LOG_CALL_(level, component, message)                                                    \
	bh_log_write((level), (component), (message), NULL, 0)
#define BH_LOG_CALL_FACTS_(level, component, message, ...)                                         \
	bh_log_write((level), (component), (message), BH_FACTS_(__VA_ARGS__))

void bh_log_write(enum bh_log_level level, const char *component, const char *message,
		  const struct bh_fact *facts, size_t n_facts);
/* The error's id and facts follow as error=… and its own keys. */
void bh_log_error(enum bh_log_level level, const char *component, const char *message,
		  const struct bh_error *err);

#endif
