/* SPDX-License-Identifier: BSD-3-Clause */
/* test_descriptor - descriptors of all kinds of wrong, and of other sizes than this host's. */
#include "config.h"

#include "host/plugin/descriptor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/tap.h"

static bh_status never_open(struct bh_context *ctx, const struct bh_services *services,
			    void **ret_state)
{
	(void)ctx;
	(void)services;
	(void)ret_state;
	abort(); /* PLG-3: no callback runs before all is checked, nor afterwards here */
}

static bh_status never_close(void *state)
{
	(void)state;
	abort();
}

static bh_status never_run(void *state, struct bh_task *task, const struct bh_value *args)
{
	(void)state;
	(void)task;
	(void)args;
	abort();
}

/* A sound plugin with two rows in each table, for tests to spoil. */
struct sample {
	struct bh_plugin plugin;
	struct bh_note note;
	struct bh_site sites[2];
	struct bh_option options[2];
	struct bh_op ops[2];
	struct bh_metric metrics[2];
};

static void sample_init(struct sample *s)
{
	*s = (struct sample){
		.note = { .abi = BH_ABI, .plugin_size = sizeof(struct bh_plugin) },
		.sites = { { .name = "import", .policy = BH_SITE_DATA_ONLY },
			   { .name = "free-all", .policy = BH_SITE_CONTROL_ALLOWED } },
		.options = { { .name = "device", .type = BH_OPT_INT, .preset = "0", .max = 15 },
			     { .name = "mode",
			       .type = BH_OPT_ENUM,
			       .preset = "slow",
			       .choices = "slow|fast" } },
		.ops = { { .name = "copy",
			   .args = "dst:buffer! src:buffer",
			   .ret = "int",
			   .run = never_run },
			 { .name = "drop", .run = never_run, .flags = BH_OP_CLEANUP } },
		.metrics = { { .name = "frames_total",
			       .kind = BH_METRIC_COUNTER,
			       .doc = "Frames." },
			     { .name = "depth", .kind = BH_METRIC_GAUGE, .doc = "Frames." } },
	};
	s->plugin = (struct bh_plugin){
		.abi = BH_ABI,
		.size = sizeof(struct bh_plugin),
		.workers = { 1, 2, 8 },
		.sites = BH_TABLE(s->sites),
		.options = BH_TABLE(s->options),
		.ops = BH_TABLE(s->ops),
		.open = never_open,
		.close = never_close,
		.metrics = BH_TABLE(s->metrics),
	};
}

static struct bh_descriptor *read_sample(const struct sample *s, struct bh_faults *faults)
{
	struct bh_descriptor *d = NULL;
	struct bh_error err = { 0 };

	CU_ASSERT_EQUAL(
		bh_descriptor_read(&s->plugin, sizeof(s->plugin), &s->note, faults, &d, &err), 0);
	return d;
}

static void plg3_a_sound_one(void)
{
	struct bh_faults faults = { 0 };
	struct bh_descriptor *d;
	struct sample s;

	sample_init(&s);
	d = read_sample(&s, &faults);
	CU_ASSERT_EQUAL(faults.n, 0);
	CU_ASSERT_PTR_NOT_NULL_FATAL(d);
	CU_ASSERT_EQUAL(d->n_sites, 2);
	CU_ASSERT_EQUAL(d->n_options, 2);
	CU_ASSERT_EQUAL(d->n_ops, 2);
	CU_ASSERT_EQUAL(d->n_metrics, 2);
	CU_ASSERT_STRING_EQUAL(d->metrics[1].name, "depth");
	CU_ASSERT_STRING_EQUAL(d->ops[0].op->name, "copy");
	CU_ASSERT_EQUAL(d->ops[0].signature.n, 2);
	CU_ASSERT_EQUAL(d->ops[0].signature.ret, BH_TYPE_INT);
	CU_ASSERT_EQUAL(d->op_rows[1].flags, BH_OP_CLEANUP);
	bh_descriptor_free(d);
}

static void plg3_the_least(void)
{
	struct bh_faults faults = { 0 };
	struct bh_descriptor *d;
	struct sample s;

	sample_init(&s);
	s.plugin.sites = s.plugin.options = s.plugin.ops = s.plugin.metrics =
		(struct bh_table)BH_NO_TABLE;
	d = read_sample(&s, &faults);
	CU_ASSERT_EQUAL(faults.n, 0);
	CU_ASSERT_PTR_NOT_NULL_FATAL(d);
	CU_ASSERT_EQUAL(d->n_sites + d->n_options + d->n_ops + d->n_metrics, 0);
	bh_descriptor_free(d);
}

/* ---- one fault each ------------------------------------------------------------------------- */

#define SPOIL(name, statement)                                                                     \
	static void name(struct sample *s)                                                         \
	{                                                                                          \
		statement;                                                                         \
	}

SPOIL(abi_of_the_note, s->note.abi ^= 1)
SPOIL(size_of_the_note, s->note.plugin_size += 8)
SPOIL(size_too_small, s->plugin.size = s->note.plugin_size = 112)
SPOIL(size_too_large, s->plugin.size = s->note.plugin_size = sizeof(s->plugin) + 8)
SPOIL(workers_none, s->plugin.workers.min = 0)
SPOIL(workers_reversed, s->plugin.workers.min = 9)
SPOIL(workers_too_many, s->plugin.workers.max = 1025)
SPOIL(workers_preset, s->plugin.workers.preset = 9)
SPOIL(progress_too_many, s->plugin.progress_threads = 65;
      s->plugin.progress = (void (*)(void *, uint32_t, int))abort)
SPOIL(progress_null, s->plugin.progress_threads = 1)
SPOIL(open_null, s->plugin.open = NULL)
SPOIL(close_null, s->plugin.close = NULL)
SPOIL(metrics_null, s->plugin.metrics.rows = NULL)
SPOIL(metrics_short, s->plugin.metrics.row_size = 16)
SPOIL(metric_name_null, s->metrics[1].name = NULL)
SPOIL(metric_name_bad, s->metrics[0].name = "Frames_total")
SPOIL(metric_name_long, s->metrics[1].name = "abcdefghijklmnopqrstuvwxyz_______")
SPOIL(metric_twice, s->metrics[1] = s->metrics[0])
SPOIL(metric_kind_none, s->metrics[1].kind = 0)
SPOIL(metric_kind_new, s->metrics[1].kind = 3)
SPOIL(metric_counter, s->metrics[1].kind = BH_METRIC_COUNTER)
SPOIL(metric_only_total, s->metrics[0].name = "_total")
SPOIL(metric_reserved, s->metrics[1].reserved = 1)
SPOIL(metric_doc_none, s->metrics[0].doc = NULL)
SPOIL(metric_doc_empty, s->metrics[0].doc = "")
SPOIL(metric_doc_lines, s->metrics[0].doc = "Frames\nsent.")
SPOIL(metric_doc_bytes, s->metrics[0].doc = "\xff")
SPOIL(table_null, s->plugin.ops.rows = NULL)
SPOIL(table_odd, s->plugin.sites.rows = (const char *)s->plugin.sites.rows + 1)
SPOIL(table_too_long, s->plugin.options.count = 100000)
SPOIL(row_too_small, s->plugin.ops.row_size = 40)
SPOIL(row_odd, s->plugin.ops.row_size = 49)
SPOIL(site_name_null, s->sites[0].name = NULL)
SPOIL(site_name_bad, s->sites[0].name = "Import")
SPOIL(site_twice, s->sites[1].name = "import")
SPOIL(site_unclassified, s->sites[1].policy = BH_SITE_UNCLASSIFIED)
SPOIL(site_policy, s->sites[1].policy = 3)
SPOIL(site_reserved, s->sites[0].reserved = 1)
SPOIL(site_doc, s->sites[0].doc = "\xc3\x28")
SPOIL(option_name_null, s->options[0].name = NULL)
SPOIL(option_name_dash, s->options[0].name = "de-vice")
SPOIL(option_name_long, s->options[0].name = "a_name_that_is_thirty_two_bytes_")
SPOIL(option_twice, s->options[1].name = "device")
SPOIL(option_of_the_host, s->options[0].name = "drain_timeout")
SPOIL(option_type, s->options[0].type = 8)
SPOIL(option_reserved, s->options[0].reserved = 7)
SPOIL(option_preset_null, s->options[0].preset = NULL)
SPOIL(option_preset_range, s->options[0].preset = "16")
SPOIL(option_preset_word, s->options[1].preset = "brisk")
SPOIL(option_range, s->options[0].min = 16)
SPOIL(option_choices, s->options[1].choices = NULL)
SPOIL(op_name_null, s->ops[0].name = NULL)
SPOIL(op_name_bad, s->ops[0].name = "copy!")
SPOIL(op_name_keyword, s->ops[0].name = "import")
SPOIL(op_twice, s->ops[1].name = "copy")
SPOIL(op_run_null, s->ops[1].run = NULL)
SPOIL(op_args, s->ops[0].args = "dst:buffer! src")
SPOIL(op_ret, s->ops[0].ret = "number")
SPOIL(op_flags, s->ops[0].flags = 6)
SPOIL(op_reserved, s->ops[0].reserved = 1)
SPOIL(op_doc, s->ops[0].doc = "\xed\xa0\x80")

static void plg3_each_fault(void)
{
	static const struct {
		void (*spoil)(struct sample *s);
		const char *says;
	} rows[] = {
		{ abi_of_the_note, "abi is 1.0, the note says 1.1" },
		{ size_of_the_note, "size is 136, the note says 144" },
		{ size_too_small, "size is 112 and the symbol has 136 bytes" },
		{ size_too_large, "size is 144 and the symbol has 136 bytes" },
		{ workers_none, "workers: min 0, max 8" },
		{ workers_reversed, "workers: min 9, max 8" },
		{ workers_too_many, "max 1025" },
		{ workers_preset, "workers: preset 9; accepted: 0 (auto) or 1 to 8" },
		{ progress_too_many, "progress_threads is 65; accepted: 0 to 64" },
		{ progress_null, "progress is NULL" },
		{ open_null, "open is NULL" },
		{ close_null, "close is NULL" },
		{ table_null, "ops: 2 rows at NULL" },
		{ table_odd, "sites: 2 rows at an odd address" },
		{ table_too_long, "options: 100000 rows" },
		{ row_too_small, "ops: 2 rows of 40 bytes" },
		{ row_odd, "ops: 2 rows of 49 bytes" },
		{ site_name_null, "sites[0]: name is NULL" },
		{ site_name_bad, "sites[0]: ill-formed name" },
		{ site_twice, "sites[0] and [1] are both named import" },
		{ site_unclassified, "sites[1] free-all: no policy" },
		{ site_policy, "sites[1] free-all: unknown policy 3" },
		{ site_reserved, "sites[0] import: reserved is not 0" },
		{ site_doc, "sites[0] import: doc is not UTF-8" },
		{ option_name_null, "options[0]: name is NULL" },
		{ option_name_dash, "options[0]: ill-formed name" },
		{ option_name_long, "options[0]: ill-formed name" },
		{ option_twice, "options[0] and [1] are both named device" },
		{ option_of_the_host, "options[0] drain_timeout: the host has a key of this name" },
		{ option_type, "options[0] device: unknown type 8" },
		{ option_reserved, "options[0] device: reserved is not 0" },
		{ option_preset_null, "options[0] device: preset is NULL" },
		{ option_preset_range,
		  "options[0] device: its own type refuses the preset \"16\"" },
		{ option_preset_word,
		  "options[1] mode: its own type refuses the preset \"brisk\"" },
		{ option_range, "options[0] device: min 16 is above max 15" },
		{ option_choices, "options[1] mode: no choices" },
		{ op_name_null, "ops[0]: name is NULL" },
		{ op_name_bad, "ops[0]: ill-formed name" },
		{ op_name_keyword, "ops[0] import: a keyword of Python" },
		{ op_twice, "ops[0] and [1] are both named copy" },
		{ op_run_null, "ops[1] drop: run is NULL" },
		{ op_args, "ops[0] copy: args, byte 15: a parameter without a type" },
		{ op_ret, "ops[0] copy: ret, byte 0: unknown type" },
		{ op_flags, "ops[0] copy: unknown flags 0x6" },
		{ op_reserved, "ops[0] copy: reserved is not 0" },
		{ op_doc, "ops[0] copy: doc is not UTF-8" },
		{ metrics_null, "metrics: 2 rows at NULL" },
		{ metrics_short, "metrics: 2 rows of 16 bytes" },
		{ metric_name_null, "metrics[1]: name is NULL" },
		{ metric_name_bad, "metrics[0]: ill-formed name" },
		{ metric_name_long, "metrics[1]: ill-formed name" },
		{ metric_twice, "metrics[0] and [1] are both named frames_total" },
		{ metric_kind_none, "metrics[1] depth: unknown kind 0" },
		{ metric_kind_new, "metrics[1] depth: unknown kind 3" },
		{ metric_counter,
		  "metrics[1] depth: the name of a counter; accepted: one that ends in "
		  "_total" },
		{ metric_only_total, "metrics[0]: ill-formed name" },
		{ metric_reserved, "metrics[1] depth: reserved is not 0" },
		{ metric_doc_none, "metrics[0] frames_total: doc is missing" },
		{ metric_doc_empty, "metrics[0] frames_total: doc is missing" },
		{ metric_doc_lines, "metrics[0] frames_total: doc is several lines" },
		{ metric_doc_bytes, "metrics[0] frames_total: doc is not UTF-8" },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_faults faults = { 0 };
		struct sample s;
		bool right;

		sample_init(&s);
		rows[i].spoil(&s);
		CU_ASSERT_PTR_NULL(read_sample(&s, &faults));
		right = faults.n == 1 && faults.text && strstr(faults.text, rows[i].says);
		if (!right)
			printf("# wanted: %s; got %u: %s\n", rows[i].says, faults.n,
			       faults.text ? faults.text : "");
		CU_ASSERT(right);
		bh_faults_fini(&faults);
	}
}

/* ---- all faults at once --------------------------------------------------------------------- */

static void plg3_all_are_listed(void)
{
	struct bh_faults faults = { 0 };
	struct bh_error err = { 0 };
	struct sample s;
	const char *list;

	sample_init(&s);
	close_null(&s);
	workers_none(&s);
	site_unclassified(&s);
	option_preset_null(&s);
	op_run_null(&s);
	CU_ASSERT_PTR_NULL(read_sample(&s, &faults));
	CU_ASSERT_EQUAL(faults.n, 5);
	CU_ASSERT_EQUAL(bh_faults_raise(&faults, "descriptor.invalid", &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(err.id, "descriptor.invalid");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "faults"), "5");
	list = bh_error_fact(&err, "list");
	CU_ASSERT_PTR_NOT_NULL_FATAL(list);
	CU_ASSERT(strstr(list, "close is NULL") && strstr(list, "workers") &&
		  strstr(list, "free-all") && strstr(list, "device") && strstr(list, "drop"));
	CU_ASSERT_PTR_NULL(bh_error_fact(&err, "more"));
	bh_faults_fini(&faults);
}

/* More than an error can hold: it says how many and where the others are. */
static void plg3_too_many_to_hold(void)
{
	static struct bh_op ops[20]; /* each without a name and without run */
	struct bh_faults faults = { 0 };
	struct bh_error err = { 0 };
	struct sample s;

	sample_init(&s);
	s.plugin.ops = (struct bh_table)BH_TABLE(ops);
	CU_ASSERT_PTR_NULL(read_sample(&s, &faults));
	CU_ASSERT_EQUAL(faults.n, 40);
	CU_ASSERT_EQUAL(bh_faults_raise(&faults, "descriptor.invalid", &err), -EINVAL);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "faults"), "40");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "more"), "in the log");
	CU_ASSERT(!err.cut);
	bh_faults_fini(&faults);
}

/* ---- other sizes ---------------------------------------------------------------------------- */

/* A later plugin of this major: longer rows, a longer descriptor; what we do not know is
 * ignored. */
static void plg2_longer_rows(void)
{
	struct {
		struct bh_op op;
		uint64_t unknown[2];
	} ops[2];
	struct {
		struct bh_plugin plugin;
		uint64_t unknown;
	} longer;
	struct bh_faults faults = { 0 };
	struct bh_descriptor *d = NULL;
	struct bh_error err = { 0 };
	struct sample s;

	sample_init(&s);
	memset(ops, 0xa5, sizeof(ops));
	ops[0].op = s.ops[0];
	ops[1].op = s.ops[1];
	longer.plugin = s.plugin;
	longer.unknown = UINT64_MAX;
	longer.plugin.size = s.note.plugin_size = sizeof(longer);
	longer.plugin.ops = (struct bh_table){ ops, 2, sizeof(ops[0]) };
	CU_ASSERT_EQUAL(
		bh_descriptor_read(&longer.plugin, sizeof(longer), &s.note, &faults, &d, &err), 0);
	CU_ASSERT_EQUAL(faults.n, 0);
	CU_ASSERT_PTR_NOT_NULL_FATAL(d);
	CU_ASSERT_STRING_EQUAL(d->ops[1].op->name, "drop");
	bh_descriptor_free(d);
}

/* The symbol's size bounds what is read, whatever the descriptor says; a sanitizer sees it if
 * not. */
static void plg2_never_reads_past_the_symbol(void)
{
	struct bh_faults faults = { 0 };
	struct bh_descriptor *d = NULL;
	struct bh_error err = { 0 };
	struct sample s;

	sample_init(&s);
	for (size_t size = 0; size < sizeof(s.plugin); size++) {
		struct bh_plugin *cut = malloc(size ? size : 1);

		CU_ASSERT_PTR_NOT_NULL_FATAL(cut);
		memcpy(cut, &s.plugin, size);
		CU_ASSERT_EQUAL(bh_descriptor_read(cut, size, &s.note, &faults, &d, &err), 0);
		CU_ASSERT_PTR_NULL(d);
		free(cut);
	}
	CU_ASSERT_EQUAL(faults.n, sizeof(s.plugin));
	bh_faults_fini(&faults);
}

/* A plugin of the first hour: its descriptor ends before the table, wherever exactly. */
static void plg2_an_older_one_has_no_metrics(void)
{
	for (uint32_t size = 120; size < offsetof(struct bh_plugin, metrics) + 16; size += 4) {
		struct bh_faults faults = { 0 };
		struct bh_descriptor *d = NULL;
		struct bh_error err = { 0 };
		struct sample s;

		sample_init(&s);
		s.plugin.size = s.note.plugin_size = size;
		CU_ASSERT_EQUAL(bh_descriptor_read(&s.plugin, size, &s.note, &faults, &d, &err), 0);
		CU_ASSERT_EQUAL(faults.n, 0);
		CU_ASSERT_PTR_NOT_NULL_FATAL(d);
		CU_ASSERT_EQUAL(d->n_metrics, 0);
		bh_descriptor_free(d);
	}
}

static void plg2_longer_metrics(void)
{
	struct {
		struct bh_metric metric;
		uint64_t unknown;
	} rows[2];
	struct bh_faults faults = { 0 };
	struct bh_descriptor *d;
	struct sample s;

	sample_init(&s);
	memset(rows, 0xa5, sizeof(rows));
	rows[0].metric = s.metrics[0];
	rows[1].metric = s.metrics[1];
	s.plugin.metrics = (struct bh_table){ rows, 2, sizeof(rows[0]) };
	d = read_sample(&s, &faults);
	CU_ASSERT_EQUAL(faults.n, 0);
	CU_ASSERT_PTR_NOT_NULL_FATAL(d);
	CU_ASSERT_STRING_EQUAL(d->metrics[1].name, "depth");
	bh_descriptor_free(d);
}

static const struct bh_test tests[] = {
	{ "PLG-2: a descriptor that ends before the metrics has none",
	  plg2_an_older_one_has_no_metrics },
	{ "PLG-2: what a row of metrics has that this host does not know is ignored",
	  plg2_longer_metrics },
	{ "PLG-3: a sound descriptor is copied whole", plg3_a_sound_one },
	{ "PLG-3: a descriptor without tables is sound", plg3_the_least },
	{ "PLG-3: each fault is named, and no callback runs", plg3_each_fault },
	{ "PLG-3: all faults are listed in one error", plg3_all_are_listed },
	{ "PLG-3: more faults than an error holds are counted, and the rest is logged",
	  plg3_too_many_to_hold },
	{ "PLG-2: fields that are unknown to this host are ignored", plg2_longer_rows },
	{ "PLG-2: nothing is read past the descriptor's symbol", plg2_never_reads_past_the_symbol },
};

BH_TAP_MAIN("descriptor", tests)
