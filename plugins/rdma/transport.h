/* SPDX-License-Identifier: BSD-3-Clause */
/* transport - what the engine needs of a network, and verbs.c and software.c give.
 *
 * A transport makes links (connections) to peers, posts one-sided reads and writes on them, and says
 * with events what became of each. It never calls back and never blocks, but for open(), close() and
 * what is said of register_memory(). A link belongs to the side that connected it: that side alone
 * posts on it; both may send messages.
 *
 * Thread: open and close on the supervisor. register_memory, deregister: any thread, at any time
 *         between the two. All else: the engine's thread alone, so that a transport needs no lock.
 * Fails:  a bh_status, and a fault that says what in words. */
#ifndef BH_PLUGINS_RDMA_TRANSPORT_H
#define BH_PLUGINS_RDMA_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include <bulkhead/plugin.h>

#include "plugins/rdma/descriptor.h"

#define BH_RDMA_HELLO_SIZE                                                                         \
	32u /* bytes of private data that a connection request and its answer carry */
#define BH_RDMA_MESSAGE_SIZE 32u /* bytes of a message */
#define BH_RDMA_FDS 4u

struct bh_rdma_link; /* a transport's own */

/* What went wrong, in words; never truncated in the middle of a character. */
struct bh_rdma_fault {
	char id[32];	 /* "rdma.memlock": what to look up in docs/rdma.md */
	char text[256];	 /* with the numbers: what was asked, what there is, what to do */
	char status[64]; /* the provider's own words: "remote access error" */
};

/* From the manifest; text is valid until close(). What cannot be so is refused by open(), which names
 * option, value and what is accepted, before any thread is made (H13). */
struct bh_rdma_config {
	const char *label;
	const char
		*device;   /* verbs: a device's name; "" or "auto": the first with an active port */
	int64_t port;	   /* verbs: 1 … the device's; 0: the first active one */
	int64_t gid_index; /* verbs: in the port's table; -1: the best one for RoCE v2 or IB */
	const char *
		address; /* numeric, of an interface here; "": software 127.0.0.1, verbs the GID's */
	int64_t listen_port; /* 0: the kernel's choice */
	int64_t queue_depth; /* work requests outstanding a link, 16 … 4096 */
	int64_t connect_timeout_ns;
	int64_t max_message; /* bytes of one work request; 0: the most that the device can */
};

/* Memory that a transport knows. */
struct bh_rdma_memory {
	void *data;
	uint64_t length;
	uint64_t base; /* of a descriptor: the remote address of the first byte */
	uint64_t key;  /* of a descriptor */
	void *handle;  /* the transport's */
};

enum bh_rdma_op { BH_RDMA_OP_READ = 1, BH_RDMA_OP_WRITE = 2 };

/* One work request. A write's DONE means that the bytes are in the peer's memory. */
struct bh_rdma_work {
	enum bh_rdma_op op;
	uint32_t length; /* 1 … max_message */
	void *local;
	const struct bh_rdma_memory *memory; /* that `local` lies in; NULL unless needs_memory */
	uint64_t remote;
	uint64_t key;
	uint64_t cookie; /* comes back with DONE */
};

enum bh_rdma_event_kind {
	BH_RDMA_DONE = 1, /* link, cookie, status: 0; -EACCES: the peer's memory refused it;
			   * -ECANCELED: flushed, nothing is known of it; others as errno has them */
	BH_RDMA_REQUEST,  /* link, hello: a peer connects; answer with accept() or reject() */
	BH_RDMA_UP,	  /* link, hello (the acceptor's, for who connected) */
	BH_RDMA_REFUSED,  /* link, hello if the peer said any: it answered with reject(); as DOWN */
	BH_RDMA_DOWN,	  /* link, status, fault: over; all that was posted has had its DONE before.
			   * Only release() may follow. status: -ECONNREFUSED, -ETIMEDOUT,
			   * -EHOSTUNREACH: was never up; -ENOMEM, others: neither, for lack of
			   * something here; -ECONNRESET: broke; 0: disconnected */
	BH_RDMA_MESSAGE,  /* link, message */
	BH_RDMA_HEALTH	  /* status: 0: fine again; -ENETDOWN: a port is down; -ENODEV: fatal, the
			   * device is gone; fault */
};

struct bh_rdma_event {
	enum bh_rdma_event_kind kind;
	bh_status status;
	struct bh_rdma_link *link;
	uint64_t cookie;		     /* DONE: the work's */
	const struct bh_rdma_fault *fault;   /* may be NULL; valid until the next poll() */
	struct bh_rdma_address peer;	     /* REQUEST: who connects, as far as it is known */
	uint8_t bytes[BH_RDMA_MESSAGE_SIZE]; /* hello or message */
};

struct bh_rdma_transport {
	const struct bh_rdma_transport_ops *ops;
	enum bh_rdma_kind kind;
	struct bh_rdma_address address; /* where peers connect to */
	uint32_t max_message;		/* bytes of one work request */
	uint32_t max_outstanding;	/* work requests on one link */
	uint32_t max_reads;		/* of them reads */
	bool needs_memory;		/* local memory must be registered too */
	char device[64];		/* "rxe0 port 1 gid 1 (RoCE v2)", "tcp 127.0.0.1" */
};

struct bh_rdma_transport_ops {
	const char *name; /* "verbs", "software" */

	/* -ENODEV: there is nothing here to work with; `fault` says why. Leaves nothing behind when it
	 * fails. */
	bh_status (*open)(const struct bh_rdma_config *config,
			  struct bh_rdma_transport **ret_transport, struct bh_rdma_fault *fault);
	/* After the engine's thread has ended. Links and memory that are left go with it, and their
	 * peers notice. */
	void (*close)(struct bh_rdma_transport *transport);

	/* `access`: what peers may do; 0: only local use. May block as long as pinning takes. The
	 * key cannot be guessed where the network leaves the choice. -ENOMEM: the fault names
	 * RLIMIT_MEMLOCK, its value and the need where that is the cause. */
	bh_status (*register_memory)(struct bh_rdma_transport *transport, void *data,
				     uint64_t length, uint32_t access,
				     struct bh_rdma_memory *ret_memory,
				     struct bh_rdma_fault *fault);
	/* No access begins any more. One that had begun may still touch the memory until the links
	 * that peers have here have been flushed (see the engine's revoke) unless `true` is returned:
	 * then none does. */
	bool (*deregister)(struct bh_rdma_transport *transport, struct bh_rdma_memory *memory);

	/* Begins; UP, REFUSED or DOWN follows within connect_timeout. */
	bh_status (*connect)(struct bh_rdma_transport *transport,
			     const struct bh_rdma_address *address,
			     const uint8_t hello[BH_RDMA_HELLO_SIZE],
			     struct bh_rdma_link **ret_link, struct bh_rdma_fault *fault);
	/* After REQUEST. UP or DOWN follows accept(), unless it fails: then reject() is still owed.
	 * Nothing follows reject(), the link is gone. */
	bh_status (*accept)(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			    const uint8_t hello[BH_RDMA_HELLO_SIZE], struct bh_rdma_fault *fault);
	void (*reject)(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
		       const uint8_t hello[BH_RDMA_HELLO_SIZE]);
	/* On a link that is up. 0: DONE follows. -EAGAIN: full; try again after a DONE. Others:
	 * nothing was posted, and DOWN follows. */
	bh_status (*post)(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			  const struct bh_rdma_work *work);
	/* As post(), without DONE: messages arrive in order, behind the data of what this side had
	 * posted before or had been asked for by the peer. -EAGAIN: try again after a poll(). */
	bh_status (*send)(struct bh_rdma_transport *transport, struct bh_rdma_link *link,
			  const uint8_t message[BH_RDMA_MESSAGE_SIZE]);
	/* Ends a link in whatever state. From its return on the link neither reads nor writes
	 * memory here, whatever the peer does. DONE for all that was posted, then DOWN follow. */
	void (*disconnect)(struct bh_rdma_transport *transport, struct bh_rdma_link *link);
	void (*release)(struct bh_rdma_transport *transport, struct bh_rdma_link *link);

	/* Takes up to `max` events; makes progress for peers too. Does not wait. */
	uint32_t (*poll)(struct bh_rdma_transport *transport, struct bh_rdma_event *events,
			 uint32_t max);
	/* Before sleeping: true: a wait on the descriptors for POLLIN wakes for whatever poll() would
	 * find from now on. false: poll() again. */
	bool (*arm)(struct bh_rdma_transport *transport);
	/* Returns how many; they do not change between open and close. */
	uint32_t (*descriptors)(struct bh_rdma_transport *transport, int ret_fds[BH_RDMA_FDS]);
	/* How long a sleep may be at most, in ns; INT64_MAX: any. Asked after arm(). */
	int64_t (*timeout_ns)(struct bh_rdma_transport *transport);
};

extern const struct bh_rdma_transport_ops bh_rdma_software; /* where libfabric was found */
extern const struct bh_rdma_transport_ops bh_rdma_verbs;    /* where libibverbs was found */

/* Fills `fault` as printf does; returns `status`. */
bh_status bh_rdma_fault(struct bh_rdma_fault *fault, bh_status status, const char *id,
			const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
