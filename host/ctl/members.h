/* SPDX-License-Identifier: BSD-3-Clause */
/* members - one member of an answer, as a table's cell shows it. What is missing or of another type
 * is "-". */
#ifndef BH_HOST_CTL_MEMBERS_H
#define BH_HOST_CTL_MEMBERS_H

#include <jansson.h>

#include "host/ctl/ctl.h"

struct bh_cell {
	char bytes[32];
};

const char *bh_member_string(const json_t *object, const char *key);
bool bh_member_has_string(const json_t *object, const char *key);
double bh_member_number(const json_t *object, const char *key); /* NAN: none */
struct bh_cell bh_member_count(const json_t *object, const char *key);
struct bh_cell bh_member_id(const json_t *object, const char *key);
struct bh_cell bh_member_time(const json_t *object, const char *key);
/* Of a holder, a thread, a waiter: "data stream", "control python", "none". */
struct bh_cell bh_member_plane(const json_t *thread);
/* A unix time in the user's own time zone, as strftime() writes it. */
struct bh_cell bh_member_clock(const json_t *object, const char *key, const char *format);

struct bh_cell bh_cell_time(double s);
struct bh_cell bh_cell_count(double count);

#endif
