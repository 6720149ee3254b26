/* SPDX-License-Identifier: BSD-3-Clause */
/* crash - see crash.h.
 *
 * Thread: the handler runs on whichever thread crashes. It reads that thread's own thread-locals and
 * what that thread alone writes, logs (no lock, no allocation: log.h), and waits for the log's
 * writer, with a deadline. Blocks: at most FLUSH_NS. Keeps: SUP-5 (a crash names its plugin). */
#include "config.h"

#include "host/core/crash.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "host/core/log.h"
#include "host/core/pool_private.h"

#define FLUSH_NS (500 * BH_NS_PER_MS)

static const struct {
	int number;
	const char *name; /* strsignal() would allocate */
} signals[] = {
	{ SIGSEGV, "SIGSEGV" }, { SIGBUS, "SIGBUS" },	{ SIGILL, "SIGILL" },
	{ SIGFPE, "SIGFPE" },	{ SIGABRT, "SIGABRT" },
};

static const char *signal_name(int number)
{
	for (size_t i = 0; i < BH_ARRAY_LEN(signals); i++)
		if (signals[i].number == number)
			return signals[i].name;
	return "?";
}

static void log_crash(int number, const char *name)
{
	const struct bh_pool_thread *thread = bh_worker_self();
	const struct bh_pool *pool = thread ? thread->pool : bh_supervisor_self();
	const struct bh_frame *frame = bh_worker_frame();

	if (frame)
		bh_log(BH_LOG_ERROR, "crash", "the process dies by a signal",
		       BH_STR("signal", signal_name(number)), BH_STR("thread", name),
		       BH_STR("pool", pool->label), BH_STR("step", "run"),
		       BH_STR("op", frame->task->op_name), BH_INT("task", frame->task->id));
	else if (pool)
		bh_log(BH_LOG_ERROR, "crash", "the process dies by a signal",
		       BH_STR("signal", signal_name(number)), BH_STR("thread", name),
		       BH_STR("pool", pool->label),
		       BH_STR("step", thread ? bh_thread_step_name(thread) : pool->step));
	else
		bh_log(BH_LOG_ERROR, "crash", "the process dies by a signal",
		       BH_STR("signal", signal_name(number)), BH_STR("thread", name));
}

/* SA_RESETHAND has put the default back: the signal raised here is delivered on return and ends the
 * process, whoever sent the first one. */
static void on_crash(int number)
{
	char name[16] = "";

	prctl(PR_GET_NAME, name);
	log_crash(number, name);
	bh_log_flush(bh_deadline_after(FLUSH_NS));
	raise(number);
}

bh_status bh_crash_init(struct bh_error *err)
{
	struct sigaction action = { .sa_handler = on_crash,
				    .sa_flags = (int)(SA_RESETHAND | SA_ONSTACK) };

	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < BH_ARRAY_LEN(signals); i++) {
		struct sigaction now;

		if (sigaction(signals[i].number, NULL, &now) == 0 && now.sa_handler != SIG_DFL)
			continue;
		if (sigaction(signals[i].number, &action, NULL) != 0)
			return bh_raise(err, -errno, "crash.signal",
					BH_STR("signal", signals[i].name));
	}
	return 0;
}
