/* SPDX-License-Identifier: BSD-3-Clause */
/* sites - the named reasons for taking the GIL, and what happens to those who have none.
 *
 * Accounts are the numbers that the ledger books under: sites (the host's, then the plugins'),
 * Python's own threads, and one for each library that uses the raw C-API without a site.
 *
 * Thread: any. Owns: the tables, for good. Keeps: GIL-2, GIL-3, GIL-4. */
#include "config.h"

#include "host/gil/internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "host/core/format.h"
#include "host/core/log.h"
#include "host/core/sync.h"

#define SITE_NAME_MAX (2 * BH_LABEL_MAX) /* "label.name" with its NUL */

struct site_class {
	const char *name;
	enum bh_site_policy policy;
};

struct site {
	char name[SITE_NAME_MAX];
	enum bh_site_policy policy;
};

/* A library seen at a raw call. */
struct library {
	_Atomic bool named; /* A: release after `name` */
	char name[128];	    /* "raw:libx.so", plain, no other's; a long one is cut */
};

static struct {
	struct bh_mutex lock; /* one registration at a time; a leaf, never taken under the GIL */
	_Atomic uint32_t n;   /* A: release after the row, so that readers need no lock */
	struct site rows[BH_GIL_SITES_MAX]; /* I: once counted */
} plugin_sites = { .lock = { PTHREAD_MUTEX_INITIALIZER } };

/* The last one stands for code that is in no library, and for what comes after 62 libraries. */
static struct library libraries[BH_GIL_RAW_LIBRARIES] = {
	[BH_GIL_RAW_LIBRARIES - 1] = { .name = "raw:(other code)" },
};
static _Atomic uint64_t library_paths[BH_GIL_RAW_LIBRARIES]; /* A: seq_cst; claims the row */
static _Atomic uint64_t library_names[BH_GIL_RAW_LIBRARIES]; /* A: seq_cst; claims a short name */

static _Atomic uint32_t unsanctioned_action = BH_GIL_LOG; /* A: relaxed; enum bh_gil_unsanctioned */
static _Atomic uint64_t unsanctioned_count;		  /* A: relaxed, statistics only */

static_assert(BH_SITE_TEST + 1 == BH_GIL_HOST_SITES,
	      "BH_GIL_HOST_SITES counts enum bh_gil_host_site");

/* Exhaustive on purpose: a new site does not compile before somebody has thought about it
 * (GIL-3). */
static struct site_class host_site_class(enum bh_gil_host_site site)
{
	switch (site) {
	case BH_SITE_BOOTSTRAP:
		return (struct site_class){ "host.bootstrap", BH_SITE_CONTROL_ALLOWED };
	case BH_SITE_APP_CONSTRUCT:
		return (struct site_class){ "host.app-construct", BH_SITE_CONTROL_ALLOWED };
	case BH_SITE_DISPATCH:
		return (struct site_class){ "host.dispatch", BH_SITE_CONTROL_ALLOWED };
	case BH_SITE_DRAIN:
		return (struct site_class){ "host.drain", BH_SITE_CONTROL_ALLOWED };
	case BH_SITE_SUPERVISE:
		return (struct site_class){ "host.supervise", BH_SITE_CONTROL_ALLOWED };
	case BH_SITE_RELEASE:
		return (struct site_class){ "host.release", BH_SITE_CONTROL_ALLOWED };
	case BH_SITE_WORKER_INIT:
		return (struct site_class){ "host.worker-init", BH_SITE_DATA_ONLY };
	case BH_SITE_ARGUMENT:
		return (struct site_class){ "host.argument", BH_SITE_DATA_ONLY };
	case BH_SITE_PROBE: /* a thread of no plane */
		return (struct site_class){ "host.probe", BH_SITE_DATA_ONLY };
	case BH_SITE_STOP:
		return (struct site_class){ "host.stop", BH_SITE_CONTROL_ALLOWED };
	case BH_SITE_CLEANUP:
		return (struct site_class){ "host.cleanup", BH_SITE_CONTROL_ALLOWED };
	case BH_SITE_TEST:
		return (struct site_class){ "host.test", BH_SITE_CONTROL_ALLOWED };
	}
	bh_unreachable();
}

static uint32_t site_count(void)
{
	return BH_GIL_HOST_SITES + atomic_load_explicit(&plugin_sites.n, memory_order_acquire);
}

bool bh_gil_site_exists(bh_gil_site site)
{
	return site < site_count();
}

static struct site_class site_class(bh_gil_site site)
{
	const struct site *row;

	if (site < BH_GIL_HOST_SITES)
		return host_site_class((enum bh_gil_host_site)site);
	if (!bh_gil_site_exists(site))
		return (struct site_class){ "none", BH_SITE_UNCLASSIFIED };
	row = &plugin_sites.rows[site - BH_GIL_HOST_SITES];
	return (struct site_class){ row->name, row->policy };
}

/* ---- registration ---------------------------------------------------------------------------- */

static bool is_name(const char *text)
{
	size_t length = text ? strnlen(text, BH_LABEL_MAX) : 0;

	if (length == 0 || length == BH_LABEL_MAX || text[0] < 'a' || text[0] > 'z')
		return false;
	return strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-") == length;
}

static bh_status site_check(const char *label, const char *name, enum bh_site_policy policy,
			    struct bh_error *err)
{
	if (!is_name(label) || strcmp(label, "host") == 0)
		return bh_raise(err, -EINVAL, "gil.site_label", BH_STR("label", label),
				BH_STR("site", name),
				BH_STR("want", "[a-z][a-z0-9_-]*, at most 31 bytes, not \"host\""));
	if (!is_name(name))
		return bh_raise(err, -EINVAL, "gil.site_name", BH_STR("label", label),
				BH_STR("site", name),
				BH_STR("want", "[a-z][a-z0-9_-]*, at most 31 bytes"));
	if (policy != BH_SITE_CONTROL_ALLOWED && policy != BH_SITE_DATA_ONLY)
		return bh_raise(err, -EINVAL, "gil.site_unclassified", BH_STR("label", label),
				BH_STR("site", name), BH_INT("policy", policy),
				BH_STR("want", "BH_SITE_CONTROL_ALLOWED or BH_SITE_DATA_ONLY"));
	return 0;
}

static bh_status site_add_locked(const struct site *site, bh_gil_site *ret_site,
				 struct bh_error *err) BH_NEEDS(plugin_sites.lock)
{
	uint32_t n = atomic_load_explicit(&plugin_sites.n, memory_order_relaxed);

	for (uint32_t i = 0; i < n; i++)
		if (strcmp(plugin_sites.rows[i].name, site->name) == 0)
			return bh_raise(err, -EEXIST, "gil.site_duplicate",
					BH_STR("site", site->name));
	if (n == BH_GIL_SITES_MAX - BH_GIL_HOST_SITES)
		return bh_raise(err, -ENOSPC, "gil.site_table_full", BH_STR("site", site->name),
				BH_INT("max", BH_GIL_SITES_MAX));
	plugin_sites.rows[n] = *site;
	atomic_store_explicit(&plugin_sites.n, n + 1, memory_order_release);
	*ret_site = BH_GIL_HOST_SITES + n;
	return 0;
}

bh_status bh_gil_site_add(const char *label, const char *name, enum bh_site_policy policy,
			  bh_gil_site *ret_site, struct bh_error *err)
{
	struct site site = { .policy = policy };
	bh_status st;

	st = site_check(label, name, policy, err);
	if (st < 0)
		return st;
	snprintf(site.name, sizeof(site.name), "%s.%s", label, name);
	bh_mutex_lock(&plugin_sites.lock);
	st = site_add_locked(&site, ret_site, err);
	bh_mutex_unlock(&plugin_sites.lock);
	return st;
}

const char *bh_gil_site_name(bh_gil_site site)
{
	return site_class(site).name;
}

/* ---- accounts -------------------------------------------------------------------------------- */

const char *bh_gil_account_name(uint32_t account)
{
	const struct library *library;

	if (account < BH_GIL_SITES_MAX)
		return site_class(account).name;
	if (account == BH_GIL_ACCOUNT_PYTHON)
		return "python";
	if (account == BH_GIL_ACCOUNT_UNKNOWN)
		return "unknown";
	library = &libraries[account - BH_GIL_ACCOUNT_RAW];
	return atomic_load_explicit(&library->named, memory_order_acquire) ? library->name
									   : "raw:(unknown)";
}

const char *bh_gil_account_policy(uint32_t account)
{
	enum bh_site_policy policy = BH_SITE_UNCLASSIFIED;

	if (account == BH_GIL_ACCOUNT_PYTHON || account == BH_GIL_ACCOUNT_UNKNOWN)
		return "python";
	if (account < BH_GIL_SITES_MAX)
		policy = site_class(account).policy;
	/* The raw C-API has no site that could allow it on the control plane. */
	return policy == BH_SITE_CONTROL_ALLOWED ? "control-allowed" : "data-only";
}

static bool account_in_use(uint32_t account)
{
	if (account < BH_GIL_SITES_MAX)
		return account < site_count();
	if (account == BH_GIL_ACCOUNT_PYTHON)
		return true;
	if (account == BH_GIL_ACCOUNT_UNKNOWN)
		return bh_gil_rowless() > 0;
	return atomic_load_explicit(&libraries[account - BH_GIL_ACCOUNT_RAW].named,
				    memory_order_acquire);
}

bool bh_gil_account_next(uint32_t *cursor, uint32_t *ret_account)
{
	while (*cursor < BH_GIL_ACCOUNTS) {
		uint32_t account = (*cursor)++;

		if (account_in_use(account)) {
			*ret_account = account;
			return true;
		}
	}
	return false;
}

/* The executable's own link_map has an empty name. */
static const char *library_name(const struct link_map *map)
{
	const char *slash = strrchr(map->l_name, '/');

	if (slash)
		return slash + 1;
	return map->l_name[0] ? map->l_name : "host";
}

/* The library that `address` lies in. Not dladdr: it blocks while another thread's dlopen runs a
 * constructor. */
static const struct link_map *find_library(const void *address)
{
	struct dl_find_object found;

	if (_dl_find_object((void *)(uintptr_t)address, &found) != 0)
		return NULL;
	return found.dlfo_link_map;
}

/* FNV-1a; never 0. */
static uint64_t key_of(const char *text)
{
	uint64_t key = 0xcbf29ce484222325;

	for (; *text; text++)
		key = (key ^ (unsigned char)*text) * 0x100000001b3;
	return key ? key : 1;
}

/* Where `key` has its place among `n`, which it takes when it has none: `*ret_taken`. `n` when there
 * is no more room. Two who come at once meet at one place. */
static uint32_t place_of(_Atomic uint64_t *keys, uint32_t n, uint64_t key, bool *ret_taken)
{
	*ret_taken = false;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t owner = atomic_load(&keys[i]);

		if (owner == 0 && atomic_compare_exchange_strong(&keys[i], &owner, key)) {
			*ret_taken = true;
			return i;
		}
		if (owner == key)
			return i;
	}
	return n;
}

/* By its file's name; by its path when another library has that name already. */
static void library_make_name(struct library *library, uint32_t number, const struct link_map *map)
{
	const char *text = library_name(map);
	size_t room = sizeof(library->name) - sizeof("raw:") - sizeof("#62"), length;
	bool first;

	place_of(library_names, BH_GIL_RAW_LIBRARIES, key_of(text), &first);
	if (!first)
		text = map->l_name;
	length = strlen(text);
	if (length <= room)
		snprintf(library->name, sizeof(library->name), "raw:%s", text);
	else if (first)
		snprintf(library->name, sizeof(library->name), "raw:%.*s#%u", (int)room, text,
			 number);
	else
		snprintf(library->name, sizeof(library->name), "raw:%s#%u", text + length - room,
			 number);
	bh_text_make_plain(
		library->name); /* a file may have any name, and a cut one may end anywhere */
}

/* By its path, not by its link_map: that of a library that was closed may be another's by now, and a
 * library that is opened again is the same one. */
uint32_t bh_gil_account_raw(const void *address)
{
	const struct link_map *map = find_library(address);
	const uint32_t last = BH_GIL_RAW_LIBRARIES - 1;
	uint32_t at = last;
	bool taken = false;

	if (map)
		at = place_of(library_paths, last, key_of(map->l_name), &taken);
	if (taken)
		library_make_name(&libraries[at], at, map);
	if (taken || at == last)
		atomic_store_explicit(&libraries[at].named, true, memory_order_release);
	return BH_GIL_ACCOUNT_RAW + at;
}

void bh_gil_describe_address(const void *address, char *out, size_t size)
{
	const struct link_map *map = find_library(address);

	if (map)
		snprintf(out, size, "%s+0x%zx", library_name(map),
			 (size_t)((uintptr_t)address - map->l_addr));
	else
		snprintf(out, size, "%p", address);
}

/* ---- policy ---------------------------------------------------------------------------------- */

void bh_gil_set_unsanctioned(enum bh_gil_unsanctioned what)
{
	atomic_store_explicit(&unsanctioned_action, what, memory_order_relaxed);
}

uint64_t bh_gil_unsanctioned_count(void)
{
	return atomic_load_explicit(&unsanctioned_count, memory_order_relaxed);
}

void bh_gil_reset_unsanctioned(void)
{
	atomic_store_explicit(&unsanctioned_count, 0, memory_order_relaxed);
	bh_gil_books_reset_unsanctioned();
}

static bool is_sanctioned(const struct bh_gil_thread *self, uint32_t account)
{
	if (self->plane != BH_PLANE_CONTROL || account == BH_GIL_ACCOUNT_PYTHON)
		return true;
	if (account < BH_GIL_SITES_MAX)
		return site_class(account).policy == BH_SITE_CONTROL_ALLOWED;
	/* Main runs Python's own code outside of any scope while the interpreter comes and goes. But
	 * where it has left its scope it runs none: there a plugin is loaded, whose constructors run. */
	return self->exempt && self->left_depth == 0;
}

static void report_unsanctioned(struct bh_gil_thread *self, uint32_t account,
				const struct bh_gil_caller *caller)
{
	char address[96], thread[16];
	const char *where = caller->where;

	if (!where) {
		bh_gil_describe_address(caller->address, address, sizeof(address));
		where = address;
	}
	bh_log(BH_LOG_WARNING, "gil", "a control thread takes the GIL where it may not",
	       BH_STR("site", bh_gil_account_name(account)),
	       BH_STR("policy", bh_gil_account_policy(account)),
	       BH_STR("thread", bh_gil_ledger_thread_name(self, thread)),
	       BH_STR("plane", bh_plane_name(self->plane)),
	       BH_STR("label", bh_identity_get()->label), BH_STR("caller", where));
}

void bh_gil_police(struct bh_gil_thread *self, uint32_t account, const struct bh_gil_caller *caller)
{
	uint32_t action = atomic_load_explicit(&unsanctioned_action, memory_order_relaxed);

	if (is_sanctioned(self, account))
		return;
	atomic_fetch_add_explicit(&unsanctioned_count, 1, memory_order_relaxed);
	bh_gil_books_unsanctioned(self, account);
	if (action == BH_GIL_COUNT && !self->forced)
		return;
	report_unsanctioned(self, account, caller);
	if (action == BH_GIL_ABORT && !self->forced) {
		bh_log_flush(bh_deadline_after(BH_NS_PER_S));
		abort();
	}
}
