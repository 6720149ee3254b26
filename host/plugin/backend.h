/* SPDX-License-Identifier: BSD-3-Clause */
/* backend - a checked descriptor, made into what a pool runs on. Its self is the plugin's
 * context. */
#ifndef BH_HOST_PLUGIN_BACKEND_H
#define BH_HOST_PLUGIN_BACKEND_H

#include "host/core/pool.h"
#include "host/plugin/service.h"

/* The table for a plugin of this descriptor: callbacks that it lacks are NULL. */
struct bh_backend bh_backend_for(const struct bh_descriptor *descriptor);

#endif
