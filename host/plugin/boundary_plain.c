/* SPDX-License-Identifier: BSD-3-Clause */
/* boundary_plain - boundary.h where there is no C++ compiler: the callbacks are called, nothing is
 * caught. */
#include "config.h"

#include "host/plugin/boundary.h"

bool bh_boundary_catches(void)
{
	return false;
}

bh_status bh_boundary_open(const struct bh_plugin *plugin, struct bh_context *ctx,
			   const struct bh_services *services, void **ret_state,
			   struct bh_thrown *ret_thrown)
{
	ret_thrown->thrown = false;
	return plugin->open(ctx, services, ret_state);
}

bh_status bh_boundary_close(const struct bh_plugin *plugin, void *state,
			    struct bh_thrown *ret_thrown)
{
	ret_thrown->thrown = false;
	return plugin->close(state);
}

bh_status bh_boundary_worker(bh_status (*fn)(void *state, uint32_t worker), void *state,
			     uint32_t worker, struct bh_thrown *ret_thrown)
{
	ret_thrown->thrown = false;
	return fn(state, worker);
}

bh_status bh_boundary_run(const struct bh_op *op, void *state, struct bh_task *task,
			  const struct bh_value *args, struct bh_thrown *ret_thrown)
{
	ret_thrown->thrown = false;
	return op->run(state, task, args);
}

void bh_boundary_cancel(const struct bh_plugin *plugin, void *state, uint64_t task_id,
			struct bh_thrown *ret_thrown)
{
	ret_thrown->thrown = false;
	plugin->cancel(state, task_id);
}

void bh_boundary_progress(const struct bh_plugin *plugin, void *state, uint32_t thread, int stop_fd,
			  struct bh_thrown *ret_thrown)
{
	ret_thrown->thrown = false;
	plugin->progress(state, thread, stop_fd);
}

void bh_boundary_posted(void (*fn)(void *arg), void *arg, struct bh_thrown *ret_thrown)
{
	ret_thrown->thrown = false;
	fn(arg);
}

void bh_boundary_release(void (*release)(void *value, struct bh_buffer *buffer), void *value,
			 struct bh_buffer *buffer, struct bh_thrown *ret_thrown)
{
	ret_thrown->thrown = false;
	release(value, buffer);
}

void bh_boundary_scoped(void (*fn)(void *arg), void *arg, void (*leave)(void *arg), void *leave_arg)
{
	fn(arg);
	leave(leave_arg);
}
