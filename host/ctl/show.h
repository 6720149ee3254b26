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
/* What each plugin tells of itself: health, facts, numbers. */
void bh_show_plugins(FILE *out, const json_t *reply);
void bh_show_pools(FILE *out, const json_t *reply);
/* By site, what held the GIL for longest first. `before` (NULL: none) is an answer of `elapsed_s`
 * ago: rates and shares are then of that time. */
void bh_show_gil(FILE *out, const json_t *reply, const json_t *before, double elapsed_s);
void bh_show_gil_threads(FILE *out, const json_t *reply);
/* All that are kept, in one line each. */
void bh_show_stalls(FILE *out, const json_t *reply);
/* One of them, with the stacks. */
void bh_show_stall(FILE *out, const json_t *stall);
/* What an endpoint returned, indented. */
void bh_show_result(FILE *out, const json_t *reply);
/* One of `apps` of GET /v1/apps: its endpoints, as Python would write them. */
void bh_show_app(FILE *out, const json_t *app);
/* "code: message (key=value …)" of {"error": …}, on stderr; what the message says already is not said
 * again. False: the reply has no such thing. */
bool bh_show_error(const json_t *reply);

#endif
