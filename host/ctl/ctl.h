/* SPDX-License-Identifier: BSD-3-Clause */
/* ctl - what the files of bulkheadctl share: exit statuses and complaints. One thread, one
 * request. */
#ifndef BH_HOST_CTL_CTL_H
#define BH_HOST_CTL_CTL_H

#include "host/core/common.h"

enum bh_ctl_exit {
	BH_CTL_OK = 0,
	BH_CTL_REFUSED = 1,	/* the host answered, with an error */
	BH_CTL_UNREACHABLE = 2, /* no host, or no answer in time */
	BH_CTL_USAGE = 64,
	BH_CTL_INTERNAL = 70, /* out of memory */
};

/* Makes '?' of every control character in place: text from anywhere may go to somebody's
 * terminal. */
void bh_ctl_defuse(char *text);
/* "bulkheadctl: …" and a line end on stderr, defused. */
void bh_ctl_complain(const char *format, ...) BH_PRINTF(1, 2);
/* `pointer`, unless there is no memory: then the program ends here. Nothing of it needs undoing. */
void *bh_ctl_must(void *pointer);

#endif
