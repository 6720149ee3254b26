/* SPDX-License-Identifier: BSD-3-Clause */
/* verbs_device - which device, port and address the verbs transport works with, and why not.
 *
 * All that a manifest can get wrong is found here, before any thread, queue or memory is made (H13):
 * the fault names option, value and what is there instead.
 *
 * Thread: the supervisor, but for bh_rdma_verbs_memory_fault(): any. */
#ifndef BH_PLUGINS_RDMA_VERBS_DEVICE_H
#define BH_PLUGINS_RDMA_VERBS_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "plugins/rdma/transport.h"

struct bh_rdma_verbs_device {
	struct ibv_context *context; /* opened; the caller closes it */
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	uint8_t port_num;
	uint32_t gid_index;
	union ibv_gid gid;
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} address;     /* to listen on and to connect from; its port is 0 */
	char text[64]; /* "rxe0 port 1 gid 1 (RoCE v2)" */
};

/* -ENODEV: there is no device, no active port, or no address on it: another transport may do.
 * -EINVAL: an option names what is not there. -EBUSY: a fork would corrupt registered memory. */
bh_status bh_rdma_verbs_choose(const struct bh_rdma_config *config,
			       struct bh_rdma_verbs_device *ret_device,
			       struct bh_rdma_fault *fault);

/* Whether `id`, once bound or resolved, is of that device's port. */
bool bh_rdma_verbs_is_of(const struct bh_rdma_verbs_device *device, const struct rdma_cm_id *id);

/* Why these bytes could not be registered; `error` is errno's. Returns the status. */
bh_status bh_rdma_verbs_memory_fault(struct bh_rdma_fault *fault, int error, const void *data,
				     uint64_t length);

#endif
