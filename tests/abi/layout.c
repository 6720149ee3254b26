/* SPDX-License-Identifier: BSD-3-Clause */
/* layout - ABI 1 as it was published, in numbers. A change here is a new ABI: fields are only
 * appended, so a line may be added and none may be changed. Valid C11 and C++17; there is nothing
 * to run. */
#include <bulkhead/plugin.h>

#define AT(type, field, offset)                                                                    \
	BH_ABI_ASSERT(offsetof(struct type, field) == (offset), "ABI 1: " #type "." #field)
#define SIZE(type, size) BH_ABI_ASSERT(sizeof(struct type) == (size), "ABI 1: " #type)
#define AT_LEAST(type, size) BH_ABI_ASSERT(sizeof(struct type) >= (size), "ABI 1: " #type)

BH_ABI_ASSERT(sizeof(void *) == 8 && sizeof(bh_status) == 4, "ABI 1 is for 64-bit machines");
BH_ABI_ASSERT(BH_ABI_MAJOR == 1 && BH_ABI >= 0x00010000u, "ABI 1");
BH_ABI_ASSERT(BH_LABEL_MAX == 32 && BH_VERSION_MAX == 24 && BH_NDIM_MAX == 8, "ABI 1");

/* Of a size that is fixed for ever: they lie in arrays that carry no row size. */
SIZE(bh_fact, 32);
AT(bh_fact, text, 8);
AT(bh_fact, number, 16);
AT(bh_fact, kind, 24);
SIZE(bh_text, 16);
SIZE(bh_items, 16);
SIZE(bh_value, 24);
AT(bh_value, as, 8);
SIZE(bh_table, 16);
AT(bh_table, count, 8);
AT(bh_table, row_size, 12);
SIZE(bh_worker_range, 12);
SIZE(bh_note, 88);
AT(bh_note, abi, 24);
AT(bh_note, plugin_size, 28);
AT(bh_note, label, 32);
AT(bh_note, version, 64);
SIZE(bh_note_env, 280);
AT(bh_note_env, text, 24);

AT_LEAST(bh_buffer_info, 168);
AT(bh_buffer_info, kind, 4);
AT(bh_buffer_info, flags, 8);
AT(bh_buffer_info, n_dims, 12);
AT(bh_buffer_info, data, 16);
AT(bh_buffer_info, length, 24);
AT(bh_buffer_info, dtype_code, 32);
AT(bh_buffer_info, dtype_bits, 33);
AT(bh_buffer_info, device, 36);
AT(bh_buffer_info, shape, 40);
AT(bh_buffer_info, strides, 104);

AT_LEAST(bh_site, 24);
AT(bh_site, policy, 8);
AT(bh_site, doc, 16);

AT_LEAST(bh_option, 56);
AT(bh_option, type, 8);
AT(bh_option, preset, 16);
AT(bh_option, min, 24);
AT(bh_option, max, 32);
AT(bh_option, choices, 40);
AT(bh_option, doc, 48);

AT_LEAST(bh_op, 48);
AT(bh_op, args, 8);
AT(bh_op, ret, 16);
AT(bh_op, run, 24);
AT(bh_op, flags, 32);
AT(bh_op, doc, 40);

AT_LEAST(bh_metric, 24);
AT(bh_metric, kind, 8);
AT(bh_metric, reserved, 12);
AT(bh_metric, doc, 16);

AT_LEAST(bh_services, 200);
AT(bh_services, abi, 4);
AT(bh_services, option_int, 8);
AT(bh_services, option_text, 16);
AT(bh_services, label, 24);
AT(bh_services, workers, 32);
AT(bh_services, fail, 40);
AT(bh_services, task_fail, 48);
AT(bh_services, log, 56);
AT(bh_services, now_ns, 64);
AT(bh_services, task_id, 72);
AT(bh_services, cancelled, 80);
AT(bh_services, remaining_ns, 88);
AT(bh_services, result, 96);
AT(bh_services, complete, 104);
AT(bh_services, buffer_info, 112);
AT(bh_services, buffer_ref, 120);
AT(bh_services, buffer_unref, 128);
AT(bh_services, object_ref, 136);
AT(bh_services, object_unref, 144);
AT(bh_services, run_gil, 152);
AT(bh_services, call_object, 160);
AT(bh_services, report_failed, 168);
AT(bh_services, adopt_thread, 176);
AT(bh_services, exit_hook_refresh, 184);
AT(bh_services, post, 192);
AT(bh_services, buffer_alloc, 200);
AT(bh_services, object_buffer, 208);
AT(bh_services, buffer_slot_set, 216);
AT(bh_services, buffer_slot_get, 224);
AT(bh_services, buffer_slot_clear, 232);
AT(bh_services, metric_add, 240);
AT(bh_services, metric_set, 248);
AT(bh_services, describe, 256);
AT(bh_services, report_health, 264);
AT(bh_services, buffer_wrap, 272);
AT(bh_services, buffer_revoke, 280);
AT(bh_services, object_cuda_buffer, 288);

AT_LEAST(bh_cuda_use, 24);
AT(bh_cuda_use, device, 4);
AT(bh_cuda_use, stream, 8);
AT(bh_cuda_use, after, 16);

AT_LEAST(bh_plugin, 120);
AT(bh_plugin, size, 4);
AT(bh_plugin, workers, 8);
AT(bh_plugin, progress_threads, 20);
AT(bh_plugin, sites, 24);
AT(bh_plugin, options, 40);
AT(bh_plugin, ops, 56);
AT(bh_plugin, open, 72);
AT(bh_plugin, close, 80);
AT(bh_plugin, worker_start, 88);
AT(bh_plugin, worker_stop, 96);
AT(bh_plugin, progress, 104);
AT(bh_plugin, cancel, 112);
AT(bh_plugin, metrics, 120);
