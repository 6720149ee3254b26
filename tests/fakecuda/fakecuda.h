/* SPDX-License-Identifier: BSD-3-Clause */
/* fakecuda - how a test speaks to the double of libcuda.so.1 that it runs against.
 *
 * The double is no GPU and simulates none: it keeps the contracts of the driver API, so that what calls them
 * can be tested where there is no device. "Device" memory is a range of addresses that the host cannot touch;
 * streams are threads; kernels are C functions (kernels.c).
 *
 * Environment, read at the first call:
 *   FAKECUDA_DEVICES=2          how many there are; 0: cuInit says CUDA_ERROR_NO_DEVICE
 *   FAKECUDA_MEMORY=1G          bytes of each, K M G; a list is one a device
 *   FAKECUDA_VERSION=13000      the driver's; functions that are newer are not there
 *   FAKECUDA_ATTRIBUTES=75=8,1:memory_pools=0
 *                               number or name (device.c) = value, of all devices or, N:, of one
 *   FAKECUDA_PEER=no            no device reaches another's memory
 *   FAKECUDA_INJECT=rules       as below, `;` between them
 *   FAKECUDA_CONTROL=path       rules, one a line; read again when the file changes, which ends what the former
 *                               file's rules held up
 *   FAKECUDA_LOG=path           one line a call, appended by one write: ns (CLOCK_MONOTONIC), tid, thread's name
 *                               (blanks are _), pid, function, result's number, and perhaps a remark
 *   FAKECUDA_VIOLATIONS=path    the calls that no sound program makes; without it stderr
 *   CUDA_VISIBLE_DEVICES        as the driver reads it, at cuInit
 *
 * Rules; F is a function without its version suffix or `*`, N counts calls from when the rule was made (1: the
 * next, 0: every one), CODE is a number or a name (CUDA_ERROR_…), times are in ns:
 *   fail F N CODE [COUNT]       call N, and COUNT-1 more, return CODE and do nothing
 *   fault F N CODE              call N succeeds and its context is dead with CODE from then on
 *   sticky CODE [DEVICE]        the context of DEVICE (preset: of all) is dead now
 *   latency F NS                each call takes NS longer
 *   op_latency NS               so does each thing done on a stream
 *   hang F N                    call N stays in the driver until the rule is gone
 *   hang_op N                   so does the N-th thing that begins on any stream
 *   exit mark|abort|hang|sleep:NS
 *                               what the driver's exit handler does besides refusing calls from then on
 *   late error|abort|hang       what a call after that does besides being reported
 *
 * Thread: any. */
#ifndef BH_TESTS_FAKECUDA_FAKECUDA_H
#define BH_TESTS_FAKECUDA_FAKECUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

/* What the double says it is: cuDeviceGetName. */
#define FAKECUDA_DEVICE_NAME "test double, no GPU"

/* Each is exported; a test gets it with dlsym() from the library it has opened. */
typedef int fakecuda_inject_fn(const char *rules); /* adds; -1: not understood, nothing is added */
typedef void fakecuda_clear_fn(void);		   /* no rule but the control file's any more */
/* How many there are now, over all devices. */
struct fakecuda_counts {
	size_t size; /* in: of the caller's struct */
	uint64_t calls, violations;
	uint64_t streams, events, modules, allocations, pools, registrations;
	uint64_t allocated_bytes;
};
typedef void fakecuda_count_fn(struct fakecuda_counts *counts);
/* Calls of one function so far. */
typedef uint64_t fakecuda_calls_fn(const char *function);

#endif
