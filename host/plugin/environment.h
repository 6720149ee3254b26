/* SPDX-License-Identifier: BSD-3-Clause */
/* environment - variables that libraries want before they are loaded: the manifest's `[host] env.NAME`,
 * and what plugins' notes preset (BH_PLUGIN_ENV).
 *
 * What is there already wins over a note, and the manifest over all. A note comes with a file that
 * somebody installed for what it computes: it may not set what the loader, Python, the host or the
 * service manager go by.
 *
 * Thread: main, while there is no other (setenv). Blocks: on the file system.
 * Keeps:  PLG-2 (nothing of a plugin runs), PLG-6, MAN-1 (every fault of a note is listed). */
#ifndef BH_HOST_PLUGIN_ENVIRONMENT_H
#define BH_HOST_PLUGIN_ENVIRONMENT_H

#include "host/core/error.h"
#include "host/manifest/config.h"

/* A note's text: NAME=VALUE lines; empty ones are nothing. 0, or -EINVAL `note.environment` with every
 * fault listed. Thread: any. */
bh_status bh_environment_check(const char *text, struct bh_error *err) BH_MUST_CHECK;

/* Sets them all, and logs each. A plugin whose file is missing, or whose notes are at fault, sets
 * nothing: what is wrong with it is told when it is loaded. Only -ENOMEM. */
bh_status bh_environment_set(const struct bh_config *config, struct bh_error *err) BH_MUST_CHECK;

/* Why the manifest's variable of that name will do less than its writer expects; NULL: it will not. */
const char *bh_environment_remark(const char *name);

#endif
