/* SPDX-License-Identifier: BSD-3-Clause */
/* call - runs Python callables on a pool's threads, for services->call_object. */
#ifndef BH_HOST_PYTHON_CALL_H
#define BH_HOST_PYTHON_CALL_H

#include "host/plugin/module.h"

/* The table for bh_module_set_python(). */
const struct bh_python_services *bh_call_services(void);

#endif
