/* SPDX-License-Identifier: BSD-3-Clause */
/* boundary - see boundary.h. C++, for the one thing that C cannot do.
 *
 * The callback is called from a try block in this file, so that no C frame without a landing pad
 * lies between. Keeps: SUP-5. */
#include "config.h"

#include "host/plugin/boundary.h"

#include <cstdlib>
#include <cstring>
#include <exception>

#include <cxxabi.h>

namespace
{

/* Cuts; memccpy would leave a cut text without its NUL. */
template <std::size_t size> void copy(char (&to)[size], const char *from)
{
	std::strncpy(to, from, size - 1);
	to[size - 1] = '\0';
}

/* Inside a handler. The type is NULL for an exception that is none of this C++ runtime's. */
void describe(struct bh_thrown *thrown, const char *what)
{
	const std::type_info *type = abi::__cxa_current_exception_type();
	const char *mangled = type ? type->name() : "an exception of another language";
	int status = -1;
	char *plain = type ? abi::__cxa_demangle(mangled, nullptr, nullptr, &status) : nullptr;

	thrown->thrown = true;
	copy(thrown->type, plain ? plain : mangled);
	copy(thrown->what, what);
	std::free(plain);
}

template <typename Call> auto guarded(struct bh_thrown *ret_thrown, Call call) -> decltype(call())
{
	ret_thrown->thrown = false;
	try {
		return call();
	} catch (abi::__forced_unwind &) {
		throw; /* the C library ends the thread; it aborts where this is swallowed */
	} catch (const std::exception &exception) {
		describe(ret_thrown, exception.what());
	} catch (...) {
		describe(ret_thrown, "");
	}
	return decltype(call())();
}

} // namespace

extern "C" {

bool bh_boundary_catches(void)
{
	return true;
}

bh_status bh_boundary_open(const struct bh_plugin *plugin, struct bh_context *ctx,
			   const struct bh_services *services, void **ret_state,
			   struct bh_thrown *ret_thrown)
{
	return guarded(ret_thrown, [=] { return plugin->open(ctx, services, ret_state); });
}

bh_status bh_boundary_close(const struct bh_plugin *plugin, void *state,
			    struct bh_thrown *ret_thrown)
{
	return guarded(ret_thrown, [=] { return plugin->close(state); });
}

bh_status bh_boundary_worker(bh_status (*fn)(void *state, uint32_t worker), void *state,
			     uint32_t worker, struct bh_thrown *ret_thrown)
{
	return guarded(ret_thrown, [=] { return fn(state, worker); });
}

bh_status bh_boundary_run(const struct bh_op *op, void *state, struct bh_task *task,
			  const struct bh_value *args, struct bh_thrown *ret_thrown)
{
	return guarded(ret_thrown, [=] { return op->run(state, task, args); });
}

void bh_boundary_cancel(const struct bh_plugin *plugin, void *state, uint64_t task_id,
			struct bh_thrown *ret_thrown)
{
	guarded(ret_thrown, [=] { plugin->cancel(state, task_id); });
}

void bh_boundary_progress(const struct bh_plugin *plugin, void *state, uint32_t thread, int stop_fd,
			  struct bh_thrown *ret_thrown)
{
	guarded(ret_thrown, [=] { plugin->progress(state, thread, stop_fd); });
}

void bh_boundary_posted(void (*fn)(void *arg), void *arg, struct bh_thrown *ret_thrown)
{
	guarded(ret_thrown, [=] { fn(arg); });
}

void bh_boundary_release(void (*release)(void *value, struct bh_buffer *buffer), void *value,
			 struct bh_buffer *buffer, struct bh_thrown *ret_thrown)
{
	guarded(ret_thrown, [=] { release(value, buffer); });
}

void bh_boundary_scoped(void (*fn)(void *arg), void *arg, void (*leave)(void *arg), void *leave_arg)
{
	try {
		fn(arg);
	} catch (abi::__forced_unwind &) {
		throw;
	} catch (...) {
		leave(leave_arg);
		throw;
	}
	leave(leave_arg);
}

} // extern "C"
