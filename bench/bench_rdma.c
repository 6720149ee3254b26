/* SPDX-License-Identifier: BSD-3-Clause */
/* bench_rdma - the software transport next to a bare program over the same library.
 *
 * bench_rdma [ROUNDS]: preset 101, at least 9. The bare one is libfabric's `tcp;ofi_rxm` as a program
 * would use it: one reliable datagram endpoint, writes complete on delivery like ours. Two processes,
 * both poll without sleeping. Every kind is timed in turn in each round, so that a noisy neighbour
 * meets both, and what is said is the median of the rounds' comparisons.
 * The last lines are for machines: "ratio NAME VALUE OP LIMIT ok|short". */
#include "config.h"

#include "plugins/rdma/transport.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define MOST_ROUNDS 1001u
#define MEMORY ((size_t)64 << 20)

/* The two processes' common memory. */
enum phase { STARTING, READY_TO_SERVE, SERVE_BARE, SERVE_OURS, LEAVE };
struct shared {
	_Atomic int phase;
	uint8_t bare_name[64];
	size_t bare_name_length;
	uint64_t bare_key, bare_base;
	struct bh_rdma_address address;
	uint64_t base, key;
};

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void must(long st, const char *what)
{
	if (st >= 0)
		return;
	fprintf(stderr, "bench_rdma: %s: %s\n", what, fi_strerror((int)-st));
	exit(1);
}

static uint8_t *memory_new(void)
{
	uint8_t *memory =
		mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		abort();
	memset(memory, 1, MEMORY);
	return memory;
}

/* ---- bare -------------------------------------------------------------------------------------- */

struct bare {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	void *description;
	uint8_t *memory;
	fi_addr_t peer;
	uint64_t base, key, flags;
};

static void bare_open(struct bare *bare, uint8_t *memory)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr cq = { .size = 4096, .format = FI_CQ_FORMAT_CONTEXT };
	struct fi_av_attr av = { .type = FI_AV_TABLE };

	hints->fabric_attr->prov_name = strdup("tcp;ofi_rxm");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = 0;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	must(fi_getinfo(FI_VERSION(1, 12), "127.0.0.1", "0", FI_SOURCE, hints, &bare->info),
	     "tcp;ofi_rxm");
	fi_freeinfo(hints);
	must(fi_fabric(bare->info->fabric_attr, &bare->fabric, NULL), "fabric");
	must(fi_domain(bare->fabric, bare->info, &bare->domain, NULL), "domain");
	must(fi_cq_open(bare->domain, &cq, &bare->cq, NULL), "completion queue");
	must(fi_av_open(bare->domain, &av, &bare->av, NULL), "address vector");
	must(fi_endpoint(bare->domain, bare->info, &bare->ep, NULL), "endpoint");
	must(fi_ep_bind(bare->ep, &bare->av->fid, 0), "bind");
	must(fi_ep_bind(bare->ep, &bare->cq->fid, FI_TRANSMIT | FI_RECV), "bind");
	must(fi_enable(bare->ep), "enable");
	must(fi_mr_reg(bare->domain, memory, MEMORY,
		       FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 4711, 0, &bare->mr,
		       NULL),
	     "register");
	bare->description = fi_mr_desc(bare->mr);
	bare->memory = memory;
}

static void bare_tell(const struct bare *bare, struct shared *shared)
{
	shared->bare_name_length = sizeof(shared->bare_name);
	must(fi_getname(&bare->ep->fid, shared->bare_name, &shared->bare_name_length), "name");
	shared->bare_key = fi_mr_key(bare->mr);
	shared->bare_base = bare->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR
				    ? (uint64_t)(uintptr_t)bare->memory
				    : 0;
}

static void bare_reap(struct bare *bare, uint32_t *n_out)
{
	struct fi_cq_entry entries[16];
	ssize_t n = fi_cq_read(bare->cq, entries, 16);

	if (n == -FI_EAGAIN)
		return;
	must(n, "completion");
	*n_out -= (uint32_t)n;
}

static ssize_t bare_give(struct bare *bare, bool write, size_t at, size_t length)
{
	struct iovec local = { bare->memory + at, length };
	struct fi_rma_iov remote = { bare->base + at, length, bare->key };
	struct fi_msg_rma message = { .msg_iov = &local,
				      .desc = &bare->description,
				      .iov_count = 1,
				      .addr = bare->peer,
				      .rma_iov = &remote,
				      .rma_iov_count = 1 };

	return write ? fi_writemsg(bare->ep, &message, FI_COMPLETION | bare->flags)
		     : fi_readmsg(bare->ep, &message, FI_COMPLETION);
}

static double bare_time(struct bare *bare, bool write, size_t length, uint32_t n, uint32_t window)
{
	double began = now_s();
	uint32_t n_out = 0;

	for (uint32_t i = 0; i < n;) {
		ssize_t given = -FI_EAGAIN;

		if (n_out < window)
			given = bare_give(bare, write, i % (MEMORY / 2 / length) * length, length);
		if (given != -FI_EAGAIN) {
			must(given, "post");
			n_out++;
			i++;
		}
		if (given == -FI_EAGAIN || n_out == window)
			bare_reap(bare, &n_out);
	}
	while (n_out)
		bare_reap(bare, &n_out);
	return (now_s() - began) / n;
}

/* ---- ours -------------------------------------------------------------------------------------- */

struct ours {
	const struct bh_rdma_transport_ops *ops;
	struct bh_rdma_transport *transport;
	struct bh_rdma_link *link;
	bool up;
	uint8_t *memory;
	struct bh_rdma_memory local;
	uint64_t base, key;
};

static void ours_must(bh_status st, const struct bh_rdma_fault *fault)
{
	if (st >= 0)
		return;
	fprintf(stderr, "bench_rdma: %s: %s\n", fault->id, fault->text);
	exit(1);
}

static void ours_open(struct ours *ours, uint8_t *memory)
{
	const char *most = getenv("BENCH_MAX_MESSAGE");
	struct bh_rdma_config config = { .label = "bench",
					 .queue_depth = 256,
					 .connect_timeout_ns = 10000000000,
					 .max_message = most ? atol(most) : 0 };
	struct bh_rdma_fault fault;

	ours->ops = &bh_rdma_software;
	ours->memory = memory;
	ours_must(ours->ops->open(&config, &ours->transport, &fault), &fault);
	ours_must(ours->ops->register_memory(ours->transport, memory, MEMORY,
					     BH_RDMA_READ | BH_RDMA_WRITE, &ours->local, &fault),
		  &fault);
}

/* Returns how many works were done. */
static uint32_t ours_poll(struct ours *ours)
{
	struct bh_rdma_event events[16];
	uint32_t n = ours->ops->poll(ours->transport, events, 16), n_done = 0;
	struct bh_rdma_fault fault;

	for (uint32_t i = 0; i < n; i++) {
		switch (events[i].kind) {
		case BH_RDMA_DONE:
			must(events[i].status, "work");
			n_done++;
			break;
		case BH_RDMA_REQUEST:
			ours_must(ours->ops->accept(ours->transport, events[i].link,
						    events[i].bytes, &fault),
				  &fault);
			break;
		case BH_RDMA_UP:
			ours->up = true;
			break;
		case BH_RDMA_DOWN:
		case BH_RDMA_REFUSED:
			ours->ops->release(ours->transport, events[i].link);
			break;
		case BH_RDMA_MESSAGE:
		case BH_RDMA_HEALTH:
			break;
		}
	}
	return n_done;
}

/* As the engine does: pieces of at most max_message, as many as the queue takes. */
static double ours_time(struct ours *ours, bool write, size_t length, uint32_t n, uint32_t window)
{
	size_t piece =
		length < ours->transport->max_message ? length : ours->transport->max_message;
	uint64_t total = (uint64_t)n * (length / piece);
	uint64_t most = (uint64_t)window * (length / piece), posted = 0, done = 0;
	double began = now_s();

	while (done < total) {
		bh_status st = -EAGAIN;

		if (posted < total && posted - done < most) {
			size_t at = posted % (MEMORY / 2 / piece) * piece;
			struct bh_rdma_work work = { .op = write ? BH_RDMA_OP_WRITE
								 : BH_RDMA_OP_READ,
						     .length = (uint32_t)piece,
						     .local = ours->memory + at,
						     .memory = &ours->local,
						     .remote = ours->base + at,
						     .key = ours->key };

			st = ours->ops->post(ours->transport, ours->link, &work);
			if (st != -EAGAIN)
				must(st, "post");
		}
		if (st == 0)
			posted++;
		if (st != 0 || posted == total || posted - done == most)
			done += ours_poll(ours);
	}
	return (now_s() - began) / n;
}

/* ---- both sides ----------------------------------------------------------------------------------- */

static void serve(struct shared *shared)
{
	struct bare bare = { 0 };
	struct ours ours = { 0 };
	uint32_t none = 0;

	bare_open(&bare, memory_new());
	bare_tell(&bare, shared);
	ours_open(&ours, memory_new());
	shared->address = ours.transport->address;
	shared->base = ours.local.base;
	shared->key = ours.local.key;
	shared->phase = READY_TO_SERVE;
	while (shared->phase != LEAVE && getppid() != 1)
		if (shared->phase == SERVE_BARE)
			bare_reap(&bare, &none);
		else
			(void)ours_poll(&ours);
	_exit(0);
}

static void meet(struct bare *bare, struct ours *ours, const struct shared *shared)
{
	static const uint8_t hello[BH_RDMA_HELLO_SIZE] = "bench";
	struct bh_rdma_fault fault;

	bare_open(bare, memory_new());
	if (fi_av_insert(bare->av, shared->bare_name, 1, &bare->peer, 0, NULL) != 1)
		must(-FI_EINVAL, "address");
	bare->base = shared->bare_base;
	bare->key = shared->bare_key;
	ours_open(ours, memory_new());
	ours->base = shared->base;
	ours->key = shared->key;
	ours_must(ours->ops->connect(ours->transport, &shared->address, hello, &ours->link, &fault),
		  &fault);
	while (!ours->up)
		(void)ours_poll(ours);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
	qsort(values, n, sizeof(values[0]), by_value);
	return values[n / 2];
}

/* `values` are in order. */
static double best(const double *values)
{
	return values[0];
}

static const struct kind {
	const char *name;
	bool write, is_latency;
	size_t length;
	uint32_t n, window;
	double limit;
} kinds[] = {
	{ "rdma_sw_write_lat_8B", true, true, 8, 50, 1, 1.3 },
	{ "rdma_sw_read_lat_8B", false, true, 8, 50, 1, 1.3 },
	{ "rdma_sw_write_bw_64KiB", true, false, 65536, 100, 16, 0.9 },
	{ "rdma_sw_read_bw_64KiB", false, false, 65536, 100, 16, 0.9 },
	{ "rdma_sw_write_bw_16MiB", true, false, (size_t)16 << 20, 3, 2, 0.9 },
	{ "rdma_sw_read_bw_16MiB", false, false, (size_t)16 << 20, 3, 2, 0.9 },
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

enum { BARE, OURS, BARE_SENT, SIDES };
static double took[KINDS][SIDES][MOST_ROUNDS], ratios[KINDS][MOST_ROUNDS];

static void one_round(struct bare *bare, struct ours *ours, struct shared *shared, uint32_t round)
{
	for (uint32_t k = 0; k < KINDS; k++) {
		const struct kind *kind = &kinds[k];

		shared->phase = SERVE_BARE;
		bare->flags = FI_DELIVERY_COMPLETE;
		took[k][BARE][round] =
			bare_time(bare, kind->write, kind->length, kind->n, kind->window);
		bare->flags = FI_TRANSMIT_COMPLETE; /* for information */
		took[k][BARE_SENT][round] =
			bare_time(bare, kind->write, kind->length, kind->n, kind->window);
		shared->phase = SERVE_OURS;
		took[k][OURS][round] =
			ours_time(ours, kind->write, kind->length, kind->n, kind->window);
		ratios[k][round] = kind->is_latency ? took[k][OURS][round] / took[k][BARE][round]
						    : took[k][BARE][round] / took[k][OURS][round];
	}
}

static void print_side(const struct kind *kind, const char *name, double *seconds, uint32_t n)
{
	double middle = median(seconds, n);

	if (kind->is_latency)
		printf("  %-20s %9.2f us, best %9.2f us\n", name, middle * 1e6,
		       best(seconds) * 1e6);
	else
		printf("  %-20s %9.3f GB/s, best %7.3f GB/s\n", name,
		       (double)kind->length / middle / 1e9,
		       (double)kind->length / best(seconds) / 1e9);
}

int main(int argc, char **argv)
{
	uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 101;
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct bare bare = { 0 };
	struct ours ours = { 0 };
	int all_well = 1;
	pid_t child;

	rounds = rounds < 9 ? 9 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds | 1;
	if (shared == MAP_FAILED)
		return 1;
	child = fork();
	if (child == 0)
		serve(shared);
	while (shared->phase == STARTING)
		if (waitpid(child, NULL, WNOHANG) == child)
			return 1;
	meet(&bare, &ours, shared);
	one_round(&bare, &ours, shared, 0); /* connections, caches: not counted */
	for (uint32_t round = 0; round < rounds; round++)
		one_round(&bare, &ours, shared, round);
	shared->phase = LEAVE;
	waitpid(child, NULL, 0);
	printf("%u rounds; max_message %u\n", rounds, ours.transport->max_message);
	for (uint32_t k = 0; k < KINDS; k++) {
		printf("%s\n", kinds[k].name);
		print_side(&kinds[k], "bare, delivered", took[k][BARE], rounds);
		print_side(&kinds[k], "ours", took[k][OURS], rounds);
		if (kinds[k].write)
			print_side(&kinds[k], "bare, transmitted", took[k][BARE_SENT], rounds);
	}
	for (uint32_t k = 0; k < KINDS; k++) {
		double ratio = median(ratios[k], rounds);
		bool well = kinds[k].is_latency ? ratio <= kinds[k].limit : ratio >= kinds[k].limit;

		all_well &= well;
		printf("ratio %s %.3f %s %.2f %s\n", kinds[k].name, ratio,
		       kinds[k].is_latency ? "<=" : ">=", kinds[k].limit, well ? "ok" : "short");
	}
	return all_well ? 0 : 1;
}
