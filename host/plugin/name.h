/* SPDX-License-Identifier: BSD-3-Clause */
/* name - what a plugin may call things. Thread: any. Fails: by answer. */
#ifndef BH_HOST_PLUGIN_NAME_H
#define BH_HOST_PLUGIN_NAME_H

#include "host/core/common.h"

/* [a-z][a-z0-9_]* of fewer than `size` bytes; `dash`: '-' may stand inside as well. NULL is
 * none. */
bool bh_name_well_formed(const char *name, size_t size, bool dash);
/* A Python program could not write it: a keyword of the language. */
bool bh_name_is_keyword(const char *name);
/* One of the keyword arguments that every op takes (timeout, lane, wait). */
bool bh_name_is_call_option(const char *name);

#endif
