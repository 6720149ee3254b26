/* SPDX-License-Identifier: BSD-3-Clause */
/* find - which host's admin socket is meant. */
#ifndef BH_HOST_CTL_FIND_H
#define BH_HOST_CTL_FIND_H

#include "host/ctl/ctl.h"

/* `socket` (-s) as it is; else `name` (-H) in the runtime directory; else $BULKHEAD_SOCKET; else
 * the only *.sock in the runtime directory. The caller frees the path; it need not exist.
 * Complains by itself. */
enum bh_ctl_exit bh_find_socket(const char *socket, const char *name,
				char **ret_path) BH_MUST_CHECK;

#endif
