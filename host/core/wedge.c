/* SPDX-License-Identifier: BSD-3-Clause */
/* wedge - see wedge.h. */
#include "config.h"

#include "host/core/wedge.h"

#include <stdio.h>

#include "host/core/log.h"
#include "host/core/pool.h"
#include "host/core/stack.h"

void bh_wedge_log_thread(const char *component, const struct bh_pool *pool, const json_t *row,
			 struct bh_deadline stack_until)
{
	const char *thread = "", *doing = "", *op = "";
	json_int_t tid = 0, task = 0, worker = -1;
	double since = 0;
	char since_text[32], stack[2048];

	json_unpack((json_t *)row, "{s?s, s?I, s?s, s?I, s?s, s?I, s?F}", "thread", &thread, "tid",
		    &tid, "step", &doing, "worker", &worker, "op", &op, "task", &task, "since_s",
		    &since);
	snprintf(since_text, sizeof(since_text), "%.3f", since);
	bh_stack_render((uint32_t)tid, stack_until, stack, sizeof(stack));
	bh_log(BH_LOG_ERROR, component, "stuck thread", BH_STR("pool", bh_pool_label(pool)),
	       BH_STR("thread", thread), BH_INT("tid", tid), BH_STR("step", doing),
	       BH_INT("worker", worker), BH_STR("op", op), BH_INT("task", task),
	       BH_STR("for_s", since_text), BH_STR("stack", stack));
}
