/* SPDX-License-Identifier: BSD-3-Clause */
/* boundary - calls of a plugin's callbacks that a C++ exception does not get past.
 *
 * One function for each kind of callback. Each returns what the callback returned; when it threw,
 * `*ret_thrown` says what, and the returned status means nothing. Forced unwinding (pthread_exit,
 * cancellation) is not caught: it goes on, and the cleanup handlers below see it.
 *
 * boundary.cc is the one C++ file of the host. Where no C++ compiler was found boundary_plain.c
 * takes its place: nothing is caught then, and an exception ends the process.
 *
 * Thread, GIL, blocking: as the callback's (bulkhead/plugin.h). */
#ifndef BH_HOST_PLUGIN_BOUNDARY_H
#define BH_HOST_PLUGIN_BOUNDARY_H

#include <stdbool.h>

#include <bulkhead/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bh_thrown {
	bool thrown;
	char type[96];	/* "std::runtime_error", cut where it is longer */
	char what[256]; /* what(); empty for what is no std::exception. Not checked for UTF-8. */
};

/* Whether this build catches. */
bool bh_boundary_catches(void);

bh_status bh_boundary_open(const struct bh_plugin *plugin, struct bh_context *ctx,
			   const struct bh_services *services, void **ret_state,
			   struct bh_thrown *ret_thrown);
bh_status bh_boundary_close(const struct bh_plugin *plugin, void *state,
			    struct bh_thrown *ret_thrown);
bh_status bh_boundary_worker(bh_status (*fn)(void *state, uint32_t worker), void *state,
			     uint32_t worker, struct bh_thrown *ret_thrown);
bh_status bh_boundary_run(const struct bh_op *op, void *state, struct bh_task *task,
			  const struct bh_value *args, struct bh_thrown *ret_thrown);
void bh_boundary_cancel(const struct bh_plugin *plugin, void *state, uint64_t task_id,
			struct bh_thrown *ret_thrown);
void bh_boundary_progress(const struct bh_plugin *plugin, void *state, uint32_t thread, int stop_fd,
			  struct bh_thrown *ret_thrown);

/* fn(arg), which was posted: there is no plugin below it that the exception could go on to. */
void bh_boundary_posted(void (*fn)(void *arg), void *arg, struct bh_thrown *ret_thrown);

/* release() of a slot on a buffer: below it is whoever has dropped the last reference. */
void bh_boundary_release(void (*release)(void *value, struct bh_buffer *buffer), void *value,
			 struct bh_buffer *buffer, struct bh_thrown *ret_thrown);

/* fn(arg), then leave(leave_arg), also when fn throws: the exception then goes on to the plugin
 * that gave `fn`. Not under forced unwinding. */
void bh_boundary_scoped(void (*fn)(void *arg), void *arg, void (*leave)(void *arg),
			void *leave_arg);

#ifdef __cplusplus
}
#endif

#endif
