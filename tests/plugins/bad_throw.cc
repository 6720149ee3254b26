/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_throw - C++ exceptions out of every callback, by option and by op (SUP-5). */
#include <bulkhead/plugin.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include <poll.h>
#include <pthread.h>

namespace
{

struct thrower {
	struct bh_context *ctx;
	const struct bh_services *host;
	const char *where; /* the callback that throws; "none" */
	std::atomic<int> unwound;
	std::atomic<bool> used; /* an op has run: progress() may throw */
};

void throw_if(const thrower *t, const char *callback)
{
	if (std::strcmp(t->where, callback) == 0)
		throw std::runtime_error(std::string("thrown by ") + callback);
}

/* What unwinding must not leave out. */
struct guard {
	thrower *t;
	~guard()
	{
		t->unwound++;
	}
};

/* Its destructor is this library's code, run by the C library when the worker's thread ends, after
 * worker_stop (H19). */
struct local {
	thrower *t = nullptr;
	~local()
	{
		if (t)
			t->host->log(t->ctx, BH_LOG_INFO, "thread_local destroyed", nullptr, 0);
	}
};
thread_local local at_thread_end;

bh_status run_nop(void *state, struct bh_task *, const struct bh_value *)
{
	static_cast<thrower *>(state)->used = true;
	return 0;
}

bh_status run_error(void *state, struct bh_task *, const struct bh_value *)
{
	guard g = { static_cast<thrower *>(state) };

	throw std::out_of_range("index 7 of 3");
}

bh_status run_number(void *state, struct bh_task *, const struct bh_value *)
{
	guard g = { static_cast<thrower *>(state) };

	throw 42;
}

bh_status run_fail_and_error(void *state, struct bh_task *task, const struct bh_value *)
{
	thrower *t = static_cast<thrower *>(state);
	const struct bh_fact fact = bh_fact_int("device", 3);

	t->host->task_fail(task, -EIO, "bad_throw.device", &fact, 1);
	throw std::runtime_error("and then this");
}

void throw_inside(void *)
{
	throw std::runtime_error("thrown with the GIL held");
}

bh_status run_in_gil(void *state, struct bh_task *, const struct bh_value *)
{
	thrower *t = static_cast<thrower *>(state);

	return t->host->run_gil(t->ctx, 0, throw_inside, nullptr);
}

/* The plugin itself catches what it threw past the host's service. */
bh_status run_in_gil_caught(void *state, struct bh_task *, const struct bh_value *)
{
	thrower *t = static_cast<thrower *>(state);

	try {
		t->host->run_gil(t->ctx, 0, throw_inside, nullptr);
	} catch (const std::runtime_error &) {
		return 0;
	}
	return -EPROTO;
}

/* Nobody is there to catch it: not on the courier, and not below a post() that runs it inline. */
bh_status run_post(void *state, struct bh_task *, const struct bh_value *)
{
	thrower *t = static_cast<thrower *>(state);

	return t->host->post(t->ctx, 0, throw_inside, nullptr);
}

void post_inside(void *state)
{
	thrower *t = static_cast<thrower *>(state);

	if (t->host->post(t->ctx, 0, throw_inside, nullptr) < 0)
		throw std::runtime_error("post() has failed");
}

bh_status run_post_inside(void *state, struct bh_task *, const struct bh_value *)
{
	thrower *t = static_cast<thrower *>(state);

	return t->host->run_gil(t->ctx, 0, post_inside, t);
}

/* Below it is the host's unref, and below that whoever dropped the last reference. */
const struct bh_services *services;

void throw_release(void *, struct bh_buffer *buffer)
{
	services->buffer_unref(buffer);
	throw std::runtime_error("thrown by release");
}

bh_status run_slot(void *state, struct bh_task *, const struct bh_value *)
{
	thrower *t = static_cast<thrower *>(state);
	struct bh_buffer_info info = {};
	struct bh_buffer *buffer;
	bh_status st;

	info.size = sizeof(info);
	info.kind = BH_BUFFER_HOST;
	info.dtype_bits = 8;
	st = t->host->buffer_alloc(t->ctx, &info, 1, &buffer);
	if (st < 0)
		return st;
	services = t->host;
	st = t->host->buffer_slot_set(t->ctx, buffer, t, throw_release);
	t->host->buffer_unref(buffer);
	return st;
}

bh_status run_unwound(void *state, struct bh_task *task, const struct bh_value *)
{
	thrower *t = static_cast<thrower *>(state);
	struct bh_value n = {};

	n.type = BH_TYPE_INT;
	n.as.integer = t->unwound.load();
	return t->host->result(task, &n);
}

/* Forced unwinding: no exception, and not to be taken for one. */
bh_status run_vanish(void *state, struct bh_task *, const struct bh_value *)
{
	guard g = { static_cast<thrower *>(state) };

	pthread_exit(nullptr);
}

bh_status run_pend(void *, struct bh_task *, const struct bh_value *)
{
	return BH_PENDING;
}

bh_status throw_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	thrower *t = new thrower{ ctx, host, host->option_text(ctx, "where"), {}, {} };

	if (std::strcmp(t->where, "open") == 0) {
		delete t;
		throw std::bad_alloc();
	}
	*ret_state = t;
	return 0;
}

bh_status throw_close(void *state)
{
	thrower *t = static_cast<thrower *>(state);
	bool throws = std::strcmp(t->where, "close") == 0;

	delete t;
	if (throws)
		throw std::runtime_error("thrown by close");
	return 0;
}

bh_status throw_worker_start(void *state, uint32_t worker)
{
	at_thread_end.t = static_cast<thrower *>(state);
	if (worker == 1)
		throw_if(static_cast<thrower *>(state), "worker_start");
	return 0;
}

bh_status throw_worker_stop(void *state, uint32_t)
{
	throw_if(static_cast<thrower *>(state), "worker_stop");
	return 0;
}

void throw_progress(void *state, uint32_t, int stop_fd)
{
	struct pollfd fd = { stop_fd, POLLIN, 0 };
	thrower *t = static_cast<thrower *>(state);

	while (poll(&fd, 1, 10) < 1)
		if (t->used)
			throw_if(t, "progress");
}

void throw_cancel(void *state, uint64_t)
{
	throw_if(static_cast<thrower *>(state), "cancel");
}

const struct bh_site sites[] = { { "inside", BH_SITE_DATA_ONLY, 0, "throws" } };

const struct bh_option options[] = {
	{ "where", BH_OPT_ENUM, 0, "none", 0, 0,
	  "none|open|close|worker_start|worker_stop|progress|cancel", "the callback that throws" },
};

const struct bh_op ops[] = {
	{ "nop", nullptr, nullptr, run_nop, 0, 0, nullptr },
	{ "error", nullptr, nullptr, run_error, 0, 0, nullptr },
	{ "number", nullptr, nullptr, run_number, 0, 0, nullptr },
	{ "fail_and_error", nullptr, nullptr, run_fail_and_error, 0, 0, nullptr },
	{ "in_gil", nullptr, nullptr, run_in_gil, 0, 0, nullptr },
	{ "in_gil_caught", nullptr, nullptr, run_in_gil_caught, 0, 0, nullptr },
	{ "post", nullptr, nullptr, run_post, 0, 0, nullptr },
	{ "post_inside", nullptr, nullptr, run_post_inside, 0, 0, nullptr },
	{ "slot", nullptr, nullptr, run_slot, 0, 0, nullptr },
	{ "unwound", nullptr, "int", run_unwound, 0, 0, nullptr },
	{ "vanish", nullptr, nullptr, run_vanish, 0, 0, nullptr },
	{ "pend", nullptr, nullptr, run_pend, 0, 0, nullptr },
};

} // namespace

BH_PLUGIN("bad_throw", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 4 },
	.progress_threads = 1,
	.sites = BH_TABLE(sites),
	.options = BH_TABLE(options),
	.ops = BH_TABLE(ops),
	.open = throw_open,
	.close = throw_close,
	.worker_start = throw_worker_start,
	.worker_stop = throw_worker_stop,
	.progress = throw_progress,
	.cancel = throw_cancel,
	.metrics = BH_NO_TABLE,
};
