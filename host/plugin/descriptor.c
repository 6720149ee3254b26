/* SPDX-License-Identifier: BSD-3-Clause */
/* descriptor - see descriptor.h.
 *
 * Thread: main, while a plugin is loaded. GIL: not held. Blocks: no.
 * Keeps:  PLG-2 (sizes), PLG-3 (every fault is listed), GIL-3 (an unclassified site is refused). */
#include "config.h"

#include "host/plugin/descriptor.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "host/core/format.h"
#include "host/manifest/option.h"
#include "host/plugin/name.h"

/* What ABI 1.0 had: the least that a plugin of this major can be built with. These never change. */
#define PLUGIN_SIZE_MIN 120u
#define SITE_SIZE_MIN 24u
#define OPTION_SIZE_MIN 56u
#define OP_SIZE_MIN 48u
#define METRIC_SIZE_MIN 24u
static_assert(sizeof(struct bh_plugin) >= PLUGIN_SIZE_MIN, "ABI 1: fields are only appended");
static_assert(sizeof(struct bh_site) >= SITE_SIZE_MIN, "ABI 1: fields are only appended");
static_assert(sizeof(struct bh_option) >= OPTION_SIZE_MIN, "ABI 1: fields are only appended");
static_assert(sizeof(struct bh_op) >= OP_SIZE_MIN, "ABI 1: fields are only appended");
static_assert(sizeof(struct bh_metric) >= METRIC_SIZE_MIN, "ABI 1: fields are only appended");

#define METRICS_END (offsetof(struct bh_plugin, metrics) + sizeof(struct bh_table))
#define ROWS_MAX 512u
#define WORKERS_MAX 1024u
#define PROGRESS_MAX 64u
#define NAME_SIZE 32u /* with its NUL, as of a label */

const char *const bh_descriptor_host_keys[] = {
	"library", "optional", "workers",	"progress_threads", "queue",
	"cpus",	   "nice",     "drain_timeout", "stall_after",	    "restart",
};
const size_t bh_descriptor_n_host_keys = BH_ARRAY_LEN(bh_descriptor_host_keys);

/* Names the row in a message even when it has no name. */
static const char *shown(const char *name)
{
	return name ? name : "(no name)";
}

/* ---- the head: sizes, counts and required callbacks ----------------------------------------- */

static bool check_size(const struct bh_plugin *raw, size_t available, const struct bh_note *note,
		       struct bh_faults *faults)
{
	if (available < sizeof(raw->abi) + sizeof(raw->size)) {
		bh_faults_add(faults, "bh_plugin has %zu bytes: too few for a descriptor",
			      available);
		return false;
	}
	if (raw->abi != note->abi)
		bh_faults_add(faults, "abi is %u.%u, the note says %u.%u; accepted: BH_ABI in both",
			      raw->abi >> 16, raw->abi & 0xffff, note->abi >> 16,
			      note->abi & 0xffff);
	if (raw->size != note->plugin_size)
		bh_faults_add(faults,
			      "size is %u, the note says %u; accepted: sizeof(struct bh_plugin)",
			      raw->size, note->plugin_size);
	if (raw->size < PLUGIN_SIZE_MIN || raw->size > available) {
		bh_faults_add(faults,
			      "size is %u and the symbol has %zu bytes; accepted: "
			      "sizeof(struct bh_plugin), at least %u",
			      raw->size, available, PLUGIN_SIZE_MIN);
		return false;
	}
	return true;
}

static void check_counts(const struct bh_plugin *p, struct bh_faults *faults)
{
	const struct bh_worker_range *w = &p->workers;

	if (w->min < 1 || w->min > w->max || w->max > WORKERS_MAX)
		bh_faults_add(faults, "workers: min %u, max %u; accepted: 1 <= min <= max <= %u",
			      w->min, w->max, WORKERS_MAX);
	else if (w->preset != 0 && (w->preset < w->min || w->preset > w->max))
		bh_faults_add(faults, "workers: preset %u; accepted: 0 (auto) or %u to %u",
			      w->preset, w->min, w->max);
	if (p->progress_threads > PROGRESS_MAX)
		bh_faults_add(faults, "progress_threads is %u; accepted: 0 to %u",
			      p->progress_threads, PROGRESS_MAX);
}

static void check_callbacks(const struct bh_plugin *p, struct bh_faults *faults)
{
	if (!p->open)
		bh_faults_add(faults, "open is NULL; accepted: a function");
	if (!p->close)
		bh_faults_add(faults, "close is NULL; accepted: a function");
	if (p->progress_threads > 0 && !p->progress)
		bh_faults_add(faults,
			      "progress is NULL with progress_threads %u; accepted: a function, or "
			      "no progress threads",
			      p->progress_threads);
}

/* ---- tables --------------------------------------------------------------------------------- */

/* Copies the rows of one table into the host's own layout. NULL when there is nothing to check
 * further: an empty table, a faulty one (listed), or no memory (`*out_of_memory`). */
static void *copy_table(const struct bh_table *table, const char *name, uint32_t size_min,
			uint32_t align, size_t size_ours, struct bh_faults *faults,
			bool *out_of_memory)
{
	size_t take = table->row_size < size_ours ? table->row_size : size_ours;
	char *rows;

	if (table->count == 0)
		return NULL;
	if (!table->rows || (uintptr_t)table->rows % align != 0) {
		bh_faults_add(faults, "%s: %u rows at %s; accepted: BH_TABLE(array) or BH_NO_TABLE",
			      name, table->count, table->rows ? "an odd address" : "NULL");
		return NULL;
	}
	if (table->count > ROWS_MAX || table->row_size < size_min || table->row_size % align != 0) {
		bh_faults_add(faults,
			      "%s: %u rows of %u bytes; accepted: BH_TABLE(array) with at "
			      "most %u rows of at least %u bytes",
			      name, table->count, table->row_size, ROWS_MAX, size_min);
		return NULL;
	}
	rows = calloc(table->count, size_ours);
	if (!rows) {
		*out_of_memory = true;
		return NULL;
	}
	for (uint32_t i = 0; i < table->count; i++)
		memcpy(rows + i * size_ours,
		       (const char *)table->rows + (size_t)i * table->row_size, take);
	return rows;
}

static void check_doc(const char *doc, const char *table, uint32_t i, const char *name,
		      struct bh_faults *faults)
{
	if (doc && !bh_utf8_valid(doc, strlen(doc)))
		bh_faults_add(faults, "%s[%u] %s: doc is not UTF-8", table, i, name);
}

/* Whether the name can be shown and compared. */
static bool check_name(const char *name, bool dash, const char *table, uint32_t i,
		       struct bh_faults *faults)
{
	if (!name)
		bh_faults_add(faults, "%s[%u]: name is NULL", table, i);
	else if (!bh_name_well_formed(name, NAME_SIZE, dash))
		bh_faults_add(
			faults,
			"%s[%u]: ill-formed name; accepted: [a-z][a-z0-9_%s]*, at most %u bytes",
			table, i, dash ? "-" : "", NAME_SIZE - 1);
	else
		return true;
	return false;
}

static void list_twins(const char *table, uint32_t first, uint32_t second, const char *name,
		       struct bh_faults *faults)
{
	bh_faults_add(faults, "%s[%u] and [%u] are both named %s; accepted: unique names", table,
		      first, second, name);
}

/* ---- sites ---------------------------------------------------------------------------------- */

static void check_site(const struct bh_descriptor *d, uint32_t i, struct bh_faults *faults)
{
	const struct bh_site *site = &d->sites[i];

	if (!check_name(site->name, true, "sites", i, faults))
		return;
	for (uint32_t j = 0; j < i; j++)
		if (d->sites[j].name && strcmp(d->sites[j].name, site->name) == 0)
			list_twins("sites", j, i, site->name, faults);
	if (site->policy == BH_SITE_UNCLASSIFIED) /* GIL-3 */
		bh_faults_add(faults,
			      "sites[%u] %s: no policy; accepted: BH_SITE_CONTROL_ALLOWED, "
			      "BH_SITE_DATA_ONLY",
			      i, site->name);
	else if (site->policy != BH_SITE_CONTROL_ALLOWED && site->policy != BH_SITE_DATA_ONLY)
		bh_faults_add(faults,
			      "sites[%u] %s: unknown policy %u; accepted: BH_SITE_CONTROL_ALLOWED, "
			      "BH_SITE_DATA_ONLY",
			      i, site->name, site->policy);
	if (site->reserved)
		bh_faults_add(faults, "sites[%u] %s: reserved is not 0", i, site->name);
	check_doc(site->doc, "sites", i, site->name, faults);
}

/* ---- options -------------------------------------------------------------------------------- */

static bool is_host_key(const char *name)
{
	for (size_t i = 0; i < bh_descriptor_n_host_keys; i++)
		if (strcmp(name, bh_descriptor_host_keys[i]) == 0)
			return true;
	return false;
}

static void check_preset(const struct bh_option *option, uint32_t i, struct bh_faults *faults)
{
	struct bh_option_value value;
	struct bh_error why = { 0 };
	const char *accepted;

	if (!option->preset) {
		bh_faults_add(faults, "options[%u] %s: preset is NULL", i, option->name);
		return;
	}
	if (bh_option_parse(option, option->preset, &value, &why) == 0) {
		bh_option_value_fini(&value);
		return;
	}
	if (why.status == -ENOMEM) {
		bh_faults_add(faults, "options[%u] %s: no memory to check its preset", i,
			      option->name);
		return;
	}
	accepted = bh_error_fact(&why, "accepted");
	bh_faults_add(faults,
		      "options[%u] %s: its own type refuses the preset \"%s\"; accepted: %s", i,
		      option->name, option->preset, accepted ? accepted : "a value of its type");
}

/* Whether min, max and choices fit the type, so that values can be parsed with them. */
static bool check_option_type(const struct bh_option *option, uint32_t i, struct bh_faults *faults)
{
	switch ((int)option->type) {
	case BH_OPT_INT:
	case BH_OPT_SIZE:
	case BH_OPT_DURATION:
		if (option->min <= option->max)
			return true;
		bh_faults_add(faults, "options[%u] %s: min %" PRId64 " is above max %" PRId64, i,
			      option->name, option->min, option->max);
		return false;
	case BH_OPT_ENUM:
		if (option->choices && option->choices[0])
			return true;
		bh_faults_add(faults,
			      "options[%u] %s: no choices; accepted: words separated by '|'", i,
			      option->name);
		return false;
	case BH_OPT_BOOL:
	case BH_OPT_STR:
	case BH_OPT_PATH:
		return true;
	default:
		bh_faults_add(faults, "options[%u] %s: unknown type %u; accepted: BH_OPT_*", i,
			      option->name, option->type);
		return false;
	}
}

static void check_option(const struct bh_descriptor *d, uint32_t i, struct bh_faults *faults)
{
	const struct bh_option *option = &d->options[i];

	if (!check_name(option->name, false, "options", i, faults))
		return;
	for (uint32_t j = 0; j < i; j++)
		if (d->options[j].name && strcmp(d->options[j].name, option->name) == 0)
			list_twins("options", j, i, option->name, faults);
	if (is_host_key(option->name))
		bh_faults_add(faults, "options[%u] %s: the host has a key of this name", i,
			      option->name);
	if (option->reserved)
		bh_faults_add(faults, "options[%u] %s: reserved is not 0", i, option->name);
	if (check_option_type(option, i, faults))
		check_preset(option, i, faults);
	check_doc(option->doc, "options", i, option->name, faults);
}

/* ---- ops ------------------------------------------------------------------------------------ */

static void check_signature(struct bh_descriptor *d, uint32_t i, struct bh_faults *faults)
{
	const struct bh_op *op = &d->op_rows[i];
	struct bh_error why = { 0 };
	const char *in, *at, *reason, *accepted;

	if (bh_signature_parse(op->args, op->ret, &d->ops[i].signature, &why) == 0)
		return;
	in = bh_error_fact(&why, "in");
	at = bh_error_fact(&why, "at");
	reason = bh_error_fact(&why, "reason");
	accepted = bh_error_fact(&why, "accepted");
	bh_faults_add(faults, "ops[%u] %s: %s, byte %s: %s; accepted: %s", i, shown(op->name),
		      in ? in : "signature", at ? at : "0", reason ? reason : why.id,
		      accepted ? accepted : "");
}

static void check_op(struct bh_descriptor *d, uint32_t i, struct bh_faults *faults)
{
	const struct bh_op *op = &d->op_rows[i];

	if (check_name(op->name, false, "ops", i, faults)) {
		for (uint32_t j = 0; j < i; j++)
			if (d->op_rows[j].name && strcmp(d->op_rows[j].name, op->name) == 0)
				list_twins("ops", j, i, op->name, faults);
		if (bh_name_is_keyword(op->name))
			bh_faults_add(faults, "ops[%u] %s: a keyword of Python", i, op->name);
		check_doc(op->doc, "ops", i, op->name, faults);
	}
	if (!op->run)
		bh_faults_add(faults, "ops[%u] %s: run is NULL; accepted: a function", i,
			      shown(op->name));
	if (op->flags & ~BH_OP_CLEANUP)
		bh_faults_add(faults,
			      "ops[%u] %s: unknown flags 0x%" PRIx32 "; accepted: BH_OP_CLEANUP", i,
			      shown(op->name), op->flags);
	if (op->reserved)
		bh_faults_add(faults, "ops[%u] %s: reserved is not 0", i, shown(op->name));
	check_signature(d, i, faults);
}

/* ---- metrics -------------------------------------------------------------------------------- */

static bool ends_in_total(const char *name)
{
	size_t length = strlen(name), tail = strlen("_total");

	return length > tail && strcmp(name + length - tail, "_total") == 0;
}

static void check_metric(const struct bh_descriptor *d, uint32_t i, struct bh_faults *faults)
{
	const struct bh_metric *metric = &d->metrics[i];

	if (!check_name(metric->name, false, "metrics", i, faults))
		return;
	for (uint32_t j = 0; j < i; j++)
		if (d->metrics[j].name && strcmp(d->metrics[j].name, metric->name) == 0)
			list_twins("metrics", j, i, metric->name, faults);
	if (metric->kind != BH_METRIC_COUNTER && metric->kind != BH_METRIC_GAUGE)
		bh_faults_add(faults,
			      "metrics[%u] %s: unknown kind %u; accepted: BH_METRIC_COUNTER, "
			      "BH_METRIC_GAUGE",
			      i, metric->name, metric->kind);
	if (metric->kind == BH_METRIC_COUNTER && !ends_in_total(metric->name))
		bh_faults_add(faults,
			      "metrics[%u] %s: the name of a counter; accepted: one that ends in "
			      "_total",
			      i, metric->name);
	if (metric->reserved)
		bh_faults_add(faults, "metrics[%u] %s: reserved is not 0", i, metric->name);
	if (!metric->doc || !metric->doc[0] || strpbrk(metric->doc, "\r\n"))
		bh_faults_add(faults,
			      "metrics[%u] %s: doc is %s; accepted: one line, with the unit", i,
			      metric->name,
			      !metric->doc || !metric->doc[0] ? "missing" : "several lines");
	check_doc(metric->doc, "metrics", i, metric->name, faults);
}

/* ---- all of it ------------------------------------------------------------------------------ */

static bool copy_tables(struct bh_descriptor *d, struct bh_faults *faults)
{
	const struct bh_plugin *p = &d->plugin;
	bool out_of_memory = false;

	d->sites = copy_table(&p->sites, "sites", SITE_SIZE_MIN, _Alignof(struct bh_site),
			      sizeof(*d->sites), faults, &out_of_memory);
	d->n_sites = d->sites ? p->sites.count : 0;
	d->options = copy_table(&p->options, "options", OPTION_SIZE_MIN, _Alignof(struct bh_option),
				sizeof(*d->options), faults, &out_of_memory);
	d->n_options = d->options ? p->options.count : 0;
	d->op_rows = copy_table(&p->ops, "ops", OP_SIZE_MIN, _Alignof(struct bh_op),
				sizeof(*d->op_rows), faults, &out_of_memory);
	d->metrics = copy_table(&p->metrics, "metrics", METRIC_SIZE_MIN, _Alignof(struct bh_metric),
				sizeof(*d->metrics), faults, &out_of_memory);
	d->n_metrics = d->metrics ? p->metrics.count : 0;
	if (out_of_memory)
		return false;
	if (!d->op_rows)
		return true;
	d->ops = calloc(p->ops.count, sizeof(*d->ops));
	if (!d->ops)
		return false;
	d->n_ops = p->ops.count;
	for (uint32_t i = 0; i < d->n_ops; i++)
		d->ops[i].op = &d->op_rows[i];
	return true;
}

bh_status bh_descriptor_read(const struct bh_plugin *raw, size_t available,
			     const struct bh_note *note, struct bh_faults *faults,
			     struct bh_descriptor **ret_descriptor, struct bh_error *err)
{
	bh_auto(bh_descriptor_free) struct bh_descriptor *d = calloc(1, sizeof(*d));
	unsigned before = faults->n;

	if (!d)
		return bh_raise(err, -ENOMEM, "descriptor.alloc");
	if (!check_size(raw, available, note, faults))
		return 0;
	memcpy(&d->plugin, raw, raw->size < sizeof(d->plugin) ? raw->size : sizeof(d->plugin));
	/* A table of which only a part was there would be nonsense. */
	if (raw->size < METRICS_END)
		d->plugin.metrics = (struct bh_table){ 0 };
	check_counts(&d->plugin, faults);
	check_callbacks(&d->plugin, faults);
	if (!copy_tables(d, faults))
		return bh_raise(err, -ENOMEM, "descriptor.alloc");
	for (uint32_t i = 0; i < d->n_sites; i++)
		check_site(d, i, faults);
	for (uint32_t i = 0; i < d->n_options; i++)
		check_option(d, i, faults);
	for (uint32_t i = 0; i < d->n_ops; i++)
		check_op(d, i, faults);
	for (uint32_t i = 0; i < d->n_metrics; i++)
		check_metric(d, i, faults);
	if (faults->n == before)
		*ret_descriptor = bh_steal(&d);
	return 0;
}

struct bh_descriptor *bh_descriptor_free(struct bh_descriptor *descriptor)
{
	if (!descriptor)
		return NULL;
	for (uint32_t i = 0; i < descriptor->n_ops; i++)
		bh_signature_fini(&descriptor->ops[i].signature);
	free(descriptor->metrics);
	free(descriptor->ops);
	free(descriptor->op_rows);
	free(descriptor->options);
	free(descriptor->sites);
	free(descriptor);
	return NULL;
}
