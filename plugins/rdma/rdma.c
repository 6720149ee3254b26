/* SPDX-License-Identifier: BSD-3-Clause */
/* rdma - the plugin of one-sided transfers: its options, its transport, its threads and its end.
 *
 * Two progress threads: one runs the engine, which owns all links and transfers; the other deregisters
 * memory, which may block. Ops run on workers (ops.c): they check, register where
 * they must, hand over to the engine, and are completed by it.
 *
 * Thread: open and close on the supervisor; progress on its own two.
 * Fails:  open: option.rdma (status 78: the manifest is wrong), rdma.absent and what the transport says
 *         (69: nothing here to work with).
 * Keeps:  SUP-10, PLG-7 (see docs/architecture.md). */
#include "config.h"

#include "plugins/rdma/rdma.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

static const struct bh_site sites[] = {
	[BH_RDMA_SITE_REGISTER] = { .name = "register",
				    .policy = BH_SITE_DATA_ONLY,
				    .doc = "get at the memory of a Python object" },
};

static const struct bh_option options[] = {
	{ .name = "transport",
	  .type = BH_OPT_ENUM,
	  .preset = "auto",
	  .choices = "auto|verbs|software",
	  .doc = "auto: verbs where a device is active, else software" },
	{ .name = "device",
	  .type = BH_OPT_STR,
	  .preset = "auto",
	  .doc = "verbs: a device's name; auto: the first with an active port" },
	{ .name = "port",
	  .type = BH_OPT_INT,
	  .preset = "0",
	  .min = 0,
	  .max = 255,
	  .doc = "verbs: the device's port; 0: the first active one" },
	{ .name = "gid_index",
	  .type = BH_OPT_INT,
	  .preset = "-1",
	  .min = -1,
	  .max = 65535,
	  .doc = "verbs: in the port's table; -1: the best one" },
	{ .name = "address",
	  .type = BH_OPT_STR,
	  .preset = "",
	  .doc = "numeric, of an interface here, where peers connect to; empty: software "
		 "127.0.0.1, "
		 "verbs the GID's" },
	{ .name = "listen_port",
	  .type = BH_OPT_INT,
	  .preset = "0",
	  .min = 0,
	  .max = 65535,
	  .doc = "where peers connect to; 0: the kernel's choice" },
	{ .name = "queue_depth",
	  .type = BH_OPT_INT,
	  .preset = "256",
	  .min = 16,
	  .max = 4096,
	  .doc = "work requests outstanding on a link" },
	{ .name = "max_message",
	  .type = BH_OPT_SIZE,
	  .preset = "0",
	  .min = 0,
	  .max = 1 << 30,
	  .doc = "bytes of one work request; 0: the most that the device can" },
	{ .name = "connect_timeout",
	  .type = BH_OPT_DURATION,
	  .preset = "5s",
	  .min = 10 * NS_PER_MS,
	  .max = 300 * NS_PER_S,
	  .doc = "of one attempt to connect" },
	{ .name = "connect_retries",
	  .type = BH_OPT_INT,
	  .preset = "3",
	  .min = 0,
	  .max = 1000,
	  .doc = "further attempts" },
	{ .name = "retry_pause",
	  .type = BH_OPT_DURATION,
	  .preset = "50ms",
	  .min = NS_PER_MS,
	  .max = 2 * NS_PER_S,
	  .doc = "before the first further attempt; doubled for each, up to 2s" },
	{ .name = "abort_timeout",
	  .type = BH_OPT_DURATION,
	  .preset = "2s",
	  .min = NS_PER_MS,
	  .max = 300 * NS_PER_S,
	  .doc = "how long a transfer that is to end may go on before its link is cut" },
	{ .name = "revoke_timeout",
	  .type = BH_OPT_DURATION,
	  .preset = "2s",
	  .min = NS_PER_MS,
	  .max = 300 * NS_PER_S,
	  .doc = "how long peers have to confirm that a region is closed before their links are "
		 "cut" },
	{ .name = "idle_timeout",
	  .type = BH_OPT_DURATION,
	  .preset = "0s",
	  .min = 0,
	  .max = 86400 * NS_PER_S,
	  .doc = "a link without work is closed after that; 0s: kept" },
	{ .name = "spin",
	  .type = BH_OPT_DURATION,
	  .preset = "0s",
	  .min = 0,
	  .max = NS_PER_S,
	  .doc = "how long the engine polls before it sleeps" },
	{ .name = "busy_poll",
	  .type = BH_OPT_BOOL,
	  .preset = "no",
	  .doc = "the engine never sleeps: least latency, for one CPU" },
};

enum metric {
	METRIC_REGIONS,
	METRIC_REGISTERED_BYTES,
	METRIC_LINKS,
	METRIC_LINKS_IN,
	METRIC_IN_FLIGHT,
	METRIC_QUEUED,
	METRIC_BYTES_READ,
	METRIC_BYTES_WRITTEN,
	METRIC_READS,
	METRIC_WRITES,
	METRIC_ERRORS,
	METRIC_CANCELLED,
	METRIC_RECONNECTS,
	METRIC_CUT
};
#define METRICS 14

static const struct bh_metric metrics[] = {
	[METRIC_REGIONS] = { "regions", BH_METRIC_GAUGE, 0, "Regions that are open." },
	[METRIC_REGISTERED_BYTES] = { "registered_bytes", BH_METRIC_GAUGE, 0,
				      "Bytes of memory that the transport knows." },
	[METRIC_LINKS] = { "links", BH_METRIC_GAUGE, 0, "Links made to peers, now." },
	[METRIC_LINKS_IN] = { "links_in", BH_METRIC_GAUGE, 0, "Links made by peers, now." },
	[METRIC_IN_FLIGHT] = { "in_flight", BH_METRIC_GAUGE, 0, "Transfers that are posted, now." },
	[METRIC_QUEUED] = { "queued", BH_METRIC_GAUGE, 0,
			    "Transfers that wait for a link or for room on it, now." },
	[METRIC_BYTES_READ] = { "bytes_read_total", BH_METRIC_COUNTER, 0,
				"Bytes read from peers by transfers that ended well." },
	[METRIC_BYTES_WRITTEN] = { "bytes_written_total", BH_METRIC_COUNTER, 0,
				   "Bytes written to peers by transfers that ended well." },
	[METRIC_READS] = { "reads_total", BH_METRIC_COUNTER, 0, "Reads that ended well." },
	[METRIC_WRITES] = { "writes_total", BH_METRIC_COUNTER, 0, "Writes that ended well." },
	[METRIC_ERRORS] = { "errors_total", BH_METRIC_COUNTER, 0, "Transfers that failed." },
	[METRIC_CANCELLED] = { "cancelled_total", BH_METRIC_COUNTER, 0,
			       "Transfers that were cancelled, or were past their deadline." },
	[METRIC_RECONNECTS] = { "reconnects_total", BH_METRIC_COUNTER, 0,
				"Links that were made again." },
	[METRIC_CUT] = { "links_cut_total", BH_METRIC_COUNTER, 0,
			 "Links that a timeout of this host's has ended." },
};
static_assert(sizeof(metrics) / sizeof(metrics[0]) == METRICS, "one row per metric");

/* ---- metrics --------------------------------------------------------------------------------- */

static void publish_counter(const struct bh_rdma *rdma, enum metric row, uint64_t now,
			    uint64_t *was)
{
	if (now > *was) {
		rdma->services->metric_add(rdma->ctx, row, (int64_t)(now - *was));
		*was = now;
	}
}

static void publish_gauge(const struct bh_rdma *rdma, enum metric row, uint64_t now)
{
	rdma->services->metric_set(rdma->ctx, row, (int64_t)now);
}

void bh_rdma_publish(struct bh_rdma *rdma)
{
	struct bh_rdma_counts *was = &rdma->published, now;
	struct bh_rdma_book_counts book;

	pthread_mutex_lock(&rdma->publishing);
	bh_rdma_engine_counts(rdma->engine, &now);
	bh_rdma_book_counts(rdma->book, &book);
	publish_gauge(rdma, METRIC_REGIONS, book.regions);
	publish_gauge(rdma, METRIC_REGISTERED_BYTES, book.bytes);
	publish_gauge(rdma, METRIC_LINKS, now.links);
	publish_gauge(rdma, METRIC_LINKS_IN, now.links_in);
	publish_gauge(rdma, METRIC_IN_FLIGHT, now.in_flight);
	publish_gauge(rdma, METRIC_QUEUED, now.queued);
	publish_counter(rdma, METRIC_BYTES_READ, now.bytes_read, &was->bytes_read);
	publish_counter(rdma, METRIC_BYTES_WRITTEN, now.bytes_written, &was->bytes_written);
	publish_counter(rdma, METRIC_READS, now.reads, &was->reads);
	publish_counter(rdma, METRIC_WRITES, now.writes, &was->writes);
	publish_counter(rdma, METRIC_ERRORS, now.errors, &was->errors);
	publish_counter(rdma, METRIC_CANCELLED, now.cancelled, &was->cancelled);
	publish_counter(rdma, METRIC_RECONNECTS, now.reconnects, &was->reconnects);
	publish_counter(rdma, METRIC_CUT, now.cut, &was->cut);
	pthread_mutex_unlock(&rdma->publishing);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void reap_until(struct bh_rdma *rdma, int stop_fd)
{
	struct pollfd fds[] = {
		{ .fd = stop_fd, .events = POLLIN },
		{ .fd = bh_rdma_book_descriptor(rdma->book), .events = POLLIN },
	};

	do {
		fds[0].revents = fds[1].revents = 0;
		(void)poll(fds, 2, -1); /* until the stop at the latest */
		if (fds[1].revents)
			bh_rdma_book_reap(rdma->book);
		bh_rdma_publish(rdma);
	} while (!fds[0].revents);
}

static void progress(void *state, uint32_t thread, int stop_fd)
{
	struct bh_rdma *rdma = state;
	struct pollfd fd = { .fd = stop_fd, .events = POLLIN };

	if (thread < BH_RDMA_THREADS)
		atomic_fetch_or_explicit(&rdma->threads, 1u << thread, memory_order_relaxed);
	if (thread == BH_RDMA_THREAD_ENGINE)
		bh_rdma_engine_run(rdma->engine, stop_fd);
	else if (thread == BH_RDMA_THREAD_REAPER)
		reap_until(rdma, stop_fd);
	else /* the manifest's progress_threads gives more than there is work for */
		while (poll(&fd, 1, -1) < 0 && errno == EINTR)
			;
}

/* ---- what the engine tells -------------------------------------------------------------------- */

static void on_log(void *user, uint32_t level, const char *message, const struct bh_fact *facts,
		   uint32_t n_facts)
{
	const struct bh_rdma *rdma = user;

	rdma->services->log(rdma->ctx, level, message, facts, n_facts);
}

static void on_counted(void *user)
{
	bh_rdma_publish(user);
}

static void on_health(void *user, bh_status status, const struct bh_rdma_fault *fault)
{
	const struct bh_rdma *rdma = user;
	const struct bh_fact facts[] = {
		bh_fact_str("device", rdma->transport->device),
		bh_fact_str("reason", fault ? fault->text : ""),
	};
	const char *id = fault && fault->id[0] ? fault->id : "rdma.port";

	if (status == 0)
		rdma->services->report_health(rdma->ctx, 0, NULL, NULL, 0);
	else if (status == -ENODEV) /* for good: a restart may find another device */
		rdma->services->report_failed(rdma->ctx, status, id, facts, 2);
	else
		rdma->services->report_health(rdma->ctx, status, id, facts, 2);
}

/* ---- open ------------------------------------------------------------------------------------ */

static int64_t number(const struct bh_rdma *rdma, const char *name)
{
	return rdma->services->option_int(rdma->ctx, name);
}

static const char *text(const struct bh_rdma *rdma, const char *name)
{
	return rdma->services->option_text(rdma->ctx, name);
}

/* An option whose value cannot be; "option." makes it a fault of the manifest's (status 78). */
static bh_status refuse_option(const struct bh_rdma *rdma, const char *key, const char *value,
			       const char *accepted)
{
	char section[BH_LABEL_MAX + 16];
	const struct bh_fact facts[] = {
		bh_fact_str("section", section),
		bh_fact_str("key", key),
		bh_fact_str("value", value),
		bh_fact_str("accepted", accepted),
	};

	snprintf(section, sizeof(section), "[plugin %s]", rdma->services->label(rdma->ctx));
	return rdma->services->fail(rdma->ctx, -EINVAL, "option.rdma", facts, 4);
}

/* What a transport says of itself when it cannot be opened. */
static bh_status refuse_transport(const struct bh_rdma *rdma, const char *transport,
				  bh_status status, const struct bh_rdma_fault *fault)
{
	char section[BH_LABEL_MAX + 16];
	const char *id = fault->id[0] ? fault->id : "rdma.device";
	const struct bh_fact facts[] = {
		bh_fact_str("section", section),
		bh_fact_str("transport", transport),
		bh_fact_str("reason", fault->text),
		bh_fact_str("status", fault->status),
	};

	snprintf(section, sizeof(section), "[plugin %s]", rdma->services->label(rdma->ctx));
	/* The manifest asks for what is not so. */
	if (status == -EINVAL || strcmp(id, "rdma.option") == 0)
		id = "option.rdma";
	return rdma->services->fail(rdma->ctx, status, id, facts, fault->status[0] ? 4 : 3);
}

/* What configure found is built in. */
#if !defined(HAVE_VERBS) || !defined(HAVE_LIBFABRIC)
static bh_status absent(struct bh_rdma_fault *fault, const char *name, const char *packages)
{
	return bh_rdma_fault(fault, -ENODEV, "rdma.absent",
			     "this plugin was built without the transport %s (Debian: %s)", name,
			     packages);
}
#endif

static bh_status open_verbs(const struct bh_rdma_config *config,
			    struct bh_rdma_transport **ret_transport, struct bh_rdma_fault *fault)
{
#ifdef HAVE_VERBS
	return bh_rdma_verbs.open(config, ret_transport, fault);
#else
	(void)config;
	(void)ret_transport;
	return absent(fault, "verbs", "libibverbs-dev librdmacm-dev");
#endif
}

static bh_status open_software(const struct bh_rdma_config *config,
			       struct bh_rdma_transport **ret_transport,
			       struct bh_rdma_fault *fault)
{
#ifdef HAVE_LIBFABRIC
	return bh_rdma_software.open(config, ret_transport, fault);
#else
	(void)config;
	(void)ret_transport;
	return absent(fault, "software", "libfabric-dev");
#endif
}

/* `auto` takes software only where there is nothing for verbs: a device that is set up wrongly is a fault
 * that somebody wants to know of. */
static bh_status open_transport(struct bh_rdma *rdma, const struct bh_rdma_config *config)
{
	const char *asked = text(rdma, "transport");
	struct bh_rdma_fault fault, none;
	bh_status st;

	memset(&fault, 0, sizeof(fault));
	memset(&none, 0, sizeof(none));
	if (strcmp(asked, "software") != 0) {
		st = open_verbs(config, &rdma->transport, &none);
		if (st == 0)
			snprintf(rdma->why, sizeof(rdma->why), "%s",
				 strcmp(asked, "auto") == 0 ? "auto: a device is active"
							    : "the manifest asks for it");
		if (st == 0)
			return 0;
		if (st != -ENODEV || strcmp(asked, "verbs") == 0)
			return refuse_transport(rdma, "verbs", st, &none);
		snprintf(rdma->why, sizeof(rdma->why), "auto: no verbs: %s", none.text);
	} else {
		snprintf(rdma->why, sizeof(rdma->why), "the manifest asks for it");
	}
	st = open_software(config, &rdma->transport, &fault);
	return st < 0 ? refuse_transport(rdma, "software", st, &fault) : 0;
}

static bool is_numeric_address(const char *address)
{
	struct in6_addr any;

	return inet_pton(AF_INET, address, &any) == 1 || inet_pton(AF_INET6, address, &any) == 1;
}

static bh_status check_options(const struct bh_rdma *rdma)
{
	const char *address = text(rdma, "address");
	int64_t message = number(rdma, "max_message");

	if (*address && !is_numeric_address(address))
		return refuse_option(
			rdma, "address", address,
			"a numeric IPv4 or IPv6 address of an interface here, or nothing");
	if (message > 0 && message < 4096)
		return refuse_option(rdma, "max_message", "less than 4KiB", "0, or 4KiB to 1GiB");
	return 0;
}

/* What came into the ABI with this plugin; a host that lacks it would be called at NULL. */
static bool host_is_complete(const struct bh_services *services)
{
	return services->size >= sizeof(*services) && services->object_buffer &&
	       services->buffer_slot_set && services->buffer_slot_get &&
	       services->buffer_slot_clear && services->metric_add && services->metric_set &&
	       services->describe && services->report_health;
}

static void describe(const struct bh_rdma *rdma)
{
	const struct bh_rdma_transport *transport = rdma->transport;
	struct bh_rdma_address_text address = bh_rdma_address_text(&transport->address);
	const struct bh_fact facts[] = {
		bh_fact_str("transport", transport->ops->name),
		bh_fact_str("device", transport->device),
		bh_fact_str("address", address.text),
		bh_fact_str("why", rdma->why),
		bh_fact_int("max_message", transport->max_message),
		bh_fact_int("queue_depth", transport->max_outstanding),
	};

	rdma->services->describe(rdma->ctx, facts, sizeof(facts) / sizeof(facts[0]));
	rdma->services->log(rdma->ctx, BH_LOG_INFO, "rdma is ready", facts, 4);
}

static bh_status open_engine(struct bh_rdma *rdma)
{
	const struct bh_rdma_engine_options engine_options = {
		.connect_timeout_ns = number(rdma, "connect_timeout"),
		.connect_retries = (uint32_t)number(rdma, "connect_retries"),
		.retry_pause_ns = number(rdma, "retry_pause"),
		.abort_timeout_ns = number(rdma, "abort_timeout"),
		.revoke_timeout_ns = number(rdma, "revoke_timeout"),
		.idle_timeout_ns = number(rdma, "idle_timeout"),
		.spin_ns = number(rdma, "busy_poll") ? INT64_MAX : number(rdma, "spin"),
	};
	const struct bh_rdma_engine_calls calls = {
		.user = rdma,
		.now_ns = rdma->services->now_ns,
		.log = on_log,
		.health = on_health,
		.counted = on_counted,
	};
	bh_status st;

	st = bh_rdma_engine_new(rdma->transport, rdma->instance, &engine_options, &calls,
				&rdma->engine);
	if (st < 0)
		return rdma->services->fail(rdma->ctx, st, "rdma.engine", NULL, 0);
	st = bh_rdma_book_new(rdma->ctx, rdma->services, rdma->transport, rdma->engine,
			      rdma->instance, &rdma->book);
	if (st < 0) {
		(void)bh_rdma_engine_free(rdma->engine);
		return rdma->services->fail(rdma->ctx, st, "rdma.book", NULL, 0);
	}
	return 0;
}

static bh_status open_parts(struct bh_rdma *rdma)
{
	const struct bh_rdma_config config = {
		.label = rdma->services->label(rdma->ctx),
		.device = text(rdma, "device"),
		.port = number(rdma, "port"),
		.gid_index = number(rdma, "gid_index"),
		.address = text(rdma, "address"),
		.listen_port = number(rdma, "listen_port"),
		.queue_depth = number(rdma, "queue_depth"),
		.connect_timeout_ns = number(rdma, "connect_timeout"),
		.max_message = number(rdma, "max_message"),
	};
	bh_status st;

	st = check_options(rdma);
	if (st < 0)
		return st;
	if (getrandom(&rdma->instance, sizeof(rdma->instance), 0) != sizeof(rdma->instance))
		return rdma->services->fail(rdma->ctx, -errno, "rdma.random", NULL, 0);
	st = open_transport(rdma, &config);
	if (st < 0)
		return st;
	st = open_engine(rdma);
	if (st < 0)
		rdma->transport->ops->close(rdma->transport);
	return st;
}

static bh_status rdma_open(struct bh_context *ctx, const struct bh_services *services,
			   void **ret_state)
{
	struct bh_rdma *rdma;
	bh_status st;

	if (!host_is_complete(services)) {
		const struct bh_fact facts[] = {
			bh_fact_str("reason", "this host is older than the plugin"),
			bh_fact_str("accepted", "host and plugin of one version"),
		};

		return services->fail(ctx, -ENOSYS, "rdma.host", facts, 2);
	}
	rdma = calloc(1, sizeof(*rdma));
	if (!rdma)
		return services->fail(ctx, -ENOMEM, "rdma.memory", NULL, 0);
	rdma->ctx = ctx;
	rdma->services = services;
	pthread_mutex_init(&rdma->lock, NULL);
	pthread_mutex_init(&rdma->publishing, NULL);
	st = open_parts(rdma);
	if (st < 0) {
		pthread_mutex_destroy(&rdma->publishing);
		pthread_mutex_destroy(&rdma->lock);
		free(rdma);
		return st;
	}
	describe(rdma);
	*ret_state = rdma;
	return 0;
}

/* ---- close ----------------------------------------------------------------------------------- */

/* H14: one line for all that was done and given back. */
static void summarise(const struct bh_rdma *rdma, uint32_t n_lost, uint32_t n_left)
{
	const struct bh_rdma_counts *counts = &rdma->published;
	const struct bh_fact facts[] = {
		bh_fact_str("transport", rdma->transport->ops->name),
		bh_fact_int("reads", (int64_t)counts->reads),
		bh_fact_int("writes", (int64_t)counts->writes),
		bh_fact_int("bytes_read", (int64_t)counts->bytes_read),
		bh_fact_int("bytes_written", (int64_t)counts->bytes_written),
		bh_fact_int("failed", (int64_t)counts->errors),
		bh_fact_int("cancelled", (int64_t)counts->cancelled),
		bh_fact_int("lost", n_lost),
		bh_fact_int("registrations_left", n_left),
	};

	rdma->services->log(rdma->ctx, n_lost || n_left ? BH_LOG_WARNING : BH_LOG_INFO,
			    "rdma has ended", facts, sizeof(facts) / sizeof(facts[0]));
}

static bh_status rdma_close(void *state)
{
	struct bh_rdma *rdma = state;
	uint32_t n_lost, n_left;

	bh_rdma_book_reap(rdma->book); /* closes that came after the reaper's thread had ended */
	bh_rdma_publish(rdma);
	n_left = bh_rdma_book_free(rdma->book);
	n_lost = bh_rdma_engine_free(rdma->engine);
	summarise(rdma, n_lost, n_left);
	if (n_lost > 0 || n_left > 0)
		return 0; /* SUP-10: the transport never gave them back, so it keeps what it knows */
	rdma->transport->ops->close(rdma->transport);
	pthread_mutex_destroy(&rdma->publishing);
	pthread_mutex_destroy(&rdma->lock);
	free(rdma);
	return 0;
}

/* libfabric brings libpsm_infinipath in, which at its load takes SIGSEGV, SIGTERM and others. */
BH_PLUGIN_ENV("IPATH_NO_BACKTRACE=1");

BH_PLUGIN("rdma", "0.1") = {
	.abi = BH_ABI,
	.size = sizeof(struct bh_plugin),
	.workers = { .min = 1, .preset = 2, .max = 64 },
	.progress_threads = BH_RDMA_THREADS,
	.sites = BH_TABLE(sites),
	.options = BH_TABLE(options),
	.ops = BH_TABLE(bh_rdma_ops),
	.open = rdma_open,
	.close = rdma_close,
	.progress = progress,
	.cancel = bh_rdma_cancel,
	.metrics = BH_TABLE(metrics),
};
