/* SPDX-License-Identifier: BSD-3-Clause */
/* descriptor - a plugin's descriptor, checked whole and copied before any of its callbacks runs
 * (PLG-3).
 *
 * The copy has this host's layout whatever the plugin was built with: fields that an older plugin
 * does not have are zero, fields of ours that it does not know are never read from it (PLG-2).
 * Thread: one at a time while it is read, any afterwards: fixed. Owns: its tables, not the text
 * that their rows point to, which lies in the library and so lives as long as the process. */
#ifndef BH_HOST_PLUGIN_DESCRIPTOR_H
#define BH_HOST_PLUGIN_DESCRIPTOR_H

#include "host/core/error.h"
#include "host/plugin/faults.h"
#include "host/plugin/module.h"

struct bh_descriptor {
	struct bh_plugin plugin; /* table rows: NULL, see below */
	uint32_t n_sites, n_options, n_ops, n_metrics;
	struct bh_site *sites;
	struct bh_option *options;
	struct bh_op *op_rows;
	struct bh_metric *metrics;
	struct bh_module_op *ops; /* ops[i].op is &op_rows[i] */
};

/* Keys of a [plugin] section that are the host's; a plugin's option may not be named so. */
extern const char *const bh_descriptor_host_keys[];
extern const size_t bh_descriptor_n_host_keys;

/* `raw` is what the library exports, of which `available` bytes may be read; `note` is its own
 * note. Every fault goes to `faults`; without one `*ret_descriptor` is the copy. -ENOMEM is raised
 * in `err`. */
bh_status bh_descriptor_read(const struct bh_plugin *raw, size_t available,
			     const struct bh_note *note, struct bh_faults *faults,
			     struct bh_descriptor **ret_descriptor,
			     struct bh_error *err) BH_MUST_CHECK;
struct bh_descriptor *bh_descriptor_free(struct bh_descriptor *descriptor);
BH_DEFINE_AUTO(struct bh_descriptor, bh_descriptor_free)

#endif
