/* SPDX-License-Identifier: BSD-3-Clause */
/* show - the host's answers for people: at most 80 columns wide, in units that people read.
 *
 * A member that is missing or of another type is shown as "-": a newer or older host is no
 * reason to show nothing. */
#ifndef BH_HOST_CTL_SHOW_H
#define BH_HOST_CTL_SHOW_H

#include <jansson.h>
#include <stdio.h>

#include "host/ctl/ctl.h"

void bh_show_status(FILE *out, const json_t *reply);
void bh_show_pools(FILE *out, const json_t *reply);
void bh_show_gil(FILE *out, const json_t *reply);
/* What an endpoint returned, indented. */
void bh_show_result(FILE *out, const json_t *reply);
/* "code: message (key=value …)" of {"error": …}, on stderr; what the message says already is not said
 * again. False: the reply has no such thing. */
bool bh_show_error(const json_t *reply);

#endif
