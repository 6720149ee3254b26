/* SPDX-License-Identifier: BSD-3-Clause */
/* watch - the pauses between two looks, and their end by Ctrl-C. */
#ifndef BH_HOST_CTL_WATCH_H
#define BH_HOST_CTL_WATCH_H

#include "host/ctl/ctl.h"

/* From now on the first SIGINT ends the watch rather than the program; a second one the program, for
 * a host may take its time to answer. */
enum bh_ctl_exit bh_watch_begin(void) BH_MUST_CHECK;
/* False: the watch has been ended. */
bool bh_watch_pause(uint64_t ns) BH_MUST_CHECK;

#endif
