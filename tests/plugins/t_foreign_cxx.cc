/* SPDX-License-Identifier: BSD-3-Clause */
/* t_foreign_cxx - a thread of C++ that takes the GIL raw in a loop, with guards on its stack as
 * binding libraries have them: one that takes it, one inside that lets go of it for a while and
 * takes it again in its destructor, which is noexcept; all under a mutex of its own.
 *
 * The thread outlives the plugin. Unwound while it waits for the GIL, it would abort the process. */
#include <bulkhead/plugin.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <random>
#include <thread>

#include <dlfcn.h>
#include <pthread.h>

namespace
{

int (*ensure)();
void (*release)(int);
void *(*save)();
void (*restore)(void *);

template <typename Function> bool find(Function *to, const char *name)
{
	void *symbol = dlsym(RTLD_DEFAULT, name);

	std::memcpy(to, &symbol, sizeof(symbol));
	return symbol != nullptr;
}

class gil
{
	int state = ensure();

      public:
	~gil()
	{
		release(state);
	}
};

class gil_release
{
	void *state = save();

      public:
	~gil_release()
	{
		restore(state);
	}
};

struct foreign {
	const struct bh_services *host = nullptr;
	std::mutex mutex;
	std::atomic<long long> rounds{ 0 };
	std::atomic<long long> stay_ms{ 0 }; /* of the next round, once */
	std::atomic<bool> staying{ false };
};

void one_round(foreign *f, std::chrono::microseconds pause)
{
	std::lock_guard<std::mutex> lock(f->mutex);
	gil inside;
	long long stay_ms = f->stay_ms.exchange(0);
	gil_release away;

	f->rounds++;
	f->staying = stay_ms > 0;
	std::this_thread::sleep_for(pause + std::chrono::milliseconds(stay_ms));
	f->staying = false;
}

void loop(foreign *f)
{
	std::mt19937 chance(static_cast<unsigned>(f->host->now_ns()));

	pthread_setname_np(pthread_self(), "t_foreign_cxx");
	for (;;) {
		std::chrono::microseconds pause(chance() % 500);

		try {
			one_round(f, pause);
		} catch (...) {
			std::terminate(); /* an unwinding that is swallowed would do the same */
		}
		std::this_thread::sleep_for(pause);
	}
}

bh_status foreign_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
{
	foreign *f;

	if (!find(&ensure, "PyGILState_Ensure") || !find(&release, "PyGILState_Release") ||
	    !find(&save, "PyEval_SaveThread") || !find(&restore, "PyEval_RestoreThread"))
		return host->fail(ctx, -ENOSYS, "t_foreign_cxx.no-python", nullptr, 0);
	f = new foreign;
	f->host = host;
	std::thread(loop, f).detach();
	*ret_state = f;
	return 0;
}

/* The thread goes on, and `f` is its. */
bh_status foreign_close(void *)
{
	return 0;
}

bh_status run_rounds(void *state, struct bh_task *task, const struct bh_value *)
{
	foreign *f = static_cast<foreign *>(state);
	struct bh_value n = {};

	n.type = BH_TYPE_INT;
	n.as.integer = f->rounds;
	return f->host->result(task, &n);
}

/* Done once the thread is there. */
bh_status run_stay(void *state, struct bh_task *task, const struct bh_value *args)
{
	foreign *f = static_cast<foreign *>(state);

	f->stay_ms = args[0].as.integer;
	while (!f->staying && !f->host->cancelled(task))
		std::this_thread::sleep_for(std::chrono::milliseconds(1));
	return 0;
}

const struct bh_op ops[] = {
	{ "rounds", nullptr, "int", run_rounds, 0, 0, "How often the thread has had the GIL." },
	{ "stay", "ms:int", nullptr, run_stay, 0, 0,
	  "Has the thread stay in its scope for that long, without the GIL." },
};

} // namespace

BH_PLUGIN("t_foreign_cxx", "1.0") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 1, .max = 1 },
	.progress_threads = 0,
	.sites = BH_NO_TABLE,
	.options = BH_NO_TABLE,
	.ops = BH_TABLE(ops),
	.open = foreign_open,
	.close = foreign_close,
	.worker_start = nullptr,
	.worker_stop = nullptr,
	.progress = nullptr,
	.cancel = nullptr,
	.metrics = BH_NO_TABLE,
};
