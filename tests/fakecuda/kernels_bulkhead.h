/* SPDX-License-Identifier: BSD-3-Clause */
/* kernels_bulkhead - the table of the plugin's kernels, for fake_kernel_tables. */
#ifndef BH_TESTS_FAKECUDA_KERNELS_BULKHEAD_H
#define BH_TESTS_FAKECUDA_KERNELS_BULKHEAD_H

#include "tests/fakecuda/kernels.h"

extern const struct fake_kernel fake_kernels_bulkhead[];

#endif
