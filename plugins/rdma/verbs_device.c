/* SPDX-License-Identifier: BSD-3-Clause */
/* verbs_device - see verbs_device.h. */
#include "config.h"

#include "plugins/rdma/verbs_device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define GIDS_MAX                                                                                   \
	1024 /* entries of one device that are looked at; the kernel's tables have 256 a port */

/* ---- words ------------------------------------------------------------------------------------ */

/* Appends, as far as there is room. */
static void append(char *text, size_t size, const char *what)
{
	size_t length = strlen(text);

	snprintf(text + length, size - length, "%s%s", length ? ", " : "", what);
}

static const char *gid_type_text(const struct ibv_gid_entry *entry)
{
	switch (entry->gid_type) {
	case IBV_GID_TYPE_IB:
		return "InfiniBand";
	case IBV_GID_TYPE_ROCE_V1:
		return "RoCE v1";
	case IBV_GID_TYPE_ROCE_V2:
		return "RoCE v2";
	default:
		return "of an unknown type";
	}
}

/* ---- addresses -------------------------------------------------------------------------------- */

static bool is_mapped(const union ibv_gid *gid)
{
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)gid->raw);
}

static bool is_link_local(const union ibv_gid *gid)
{
	return IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)gid->raw);
}

/* The address that a RoCE entry stands for. */
static void address_of_gid(const struct ibv_gid_entry *entry, struct bh_rdma_verbs_device *ret)
{
	memset(&ret->address, 0, sizeof(ret->address));
	if (is_mapped(&entry->gid)) {
		ret->address.in.sin_family = AF_INET;
		memcpy(&ret->address.in.sin_addr, entry->gid.raw + 12, 4);
		return;
	}
	ret->address.in6.sin6_family = AF_INET6;
	memcpy(&ret->address.in6.sin6_addr, entry->gid.raw, 16);
	if (is_link_local(&entry->gid))
		ret->address.in6.sin6_scope_id = entry->ndev_ifindex;
}

/* The GID that an address has on RoCE. */
static union ibv_gid gid_of_address(const struct sockaddr *address)
{
	union ibv_gid gid = { .raw = { 0 } };

	if (address->sa_family == AF_INET6) {
		memcpy(gid.raw, &((const struct sockaddr_in6 *)address)->sin6_addr, 16);
		return gid;
	}
	gid.raw[10] = gid.raw[11] = 0xff;
	memcpy(gid.raw + 12, &((const struct sockaddr_in *)address)->sin_addr, 4);
	return gid;
}

/* InfiniBand's GIDs are no IP addresses: the IPoIB interface of that port has the one to use. */
static bool find_ipoib_address(const char *device, uint8_t port, struct bh_rdma_verbs_device *ret)
{
	struct ifaddrs *all = NULL;
	bool found = false;

	if (getifaddrs(&all) < 0)
		return false;
	for (struct ifaddrs *i = all; i; i = i->ifa_next) {
		int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
		char path[PATH_MAX];
		unsigned number = 0;
		FILE *file;

		if (family != AF_INET && family != AF_INET6)
			continue;
		snprintf(path, sizeof(path), "/sys/class/net/%s/device/infiniband/%s", i->ifa_name,
			 device);
		if (access(path, F_OK) < 0)
			continue;
		snprintf(path, sizeof(path), "/sys/class/net/%s/dev_port", i->ifa_name);
		file = fopen(path, "re");
		if (!file || fscanf(file, "%u", &number) != 1)
			number = UINT_MAX;
		if (file)
			fclose(file);
		if (number != (unsigned)port - 1)
			continue;
		/* IPv4 first; an IPv6 one only while there is none. */
		if (family == AF_INET) {
			memcpy(&ret->address.in, i->ifa_addr, sizeof(ret->address.in));
			found = true;
			break;
		}
		if (!found)
			memcpy(&ret->address.in6, i->ifa_addr, sizeof(ret->address.in6));
		found = true;
	}
	freeifaddrs(all);
	return found;
}

/* The device and port that `address` is on, as rdma_cm sees it. */
static bh_status find_by_address(const struct sockaddr *address, const char *text,
				 char ret_device[64], uint8_t *ret_port,
				 struct bh_rdma_fault *fault)
{
	struct rdma_cm_id *id = NULL;
	bh_status status = 0;

	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) < 0)
		return bh_rdma_fault(
			fault, -ENODEV, "rdma.no_device",
			"rdma_cm cannot be opened: %s (is the module rdma_ucm loaded?)",
			strerror(errno));
	if (rdma_bind_addr(id, (struct sockaddr *)address) < 0)
		status = errno == EADDRNOTAVAIL
				 ? bh_rdma_fault(fault, -EINVAL, "rdma.address",
						 "address = %s: no interface here has it", text)
				 : bh_rdma_fault(fault, -ENODEV, "rdma.address",
						 "address = %s: no RDMA device is on it (%s)", text,
						 strerror(errno));
	else if (!id->verbs)
		status = bh_rdma_fault(fault, -ENODEV, "rdma.address",
				       "address = %s: no RDMA device is on it", text);
	if (!status) {
		snprintf(ret_device, 64, "%s", ibv_get_device_name(id->verbs->device));
		*ret_port = id->port_num;
	}
	rdma_destroy_id(id);
	return status;
}

static bh_status parse_address(const char *text, struct bh_rdma_verbs_device *ret,
			       struct bh_rdma_fault *fault)
{
	const char *scope = strchr(text, '%');
	size_t length = scope ? (size_t)(scope - text) : strlen(text);
	char plain[INET6_ADDRSTRLEN] = "";

	memset(&ret->address, 0, sizeof(ret->address));
	if (inet_pton(AF_INET, text, &ret->address.in.sin_addr) == 1) {
		ret->address.in.sin_family = AF_INET;
		return 0;
	}
	if (length < sizeof(plain))
		memcpy(plain, text, length);
	if (inet_pton(AF_INET6, plain, &ret->address.in6.sin6_addr) != 1 ||
	    (scope && !(ret->address.in6.sin6_scope_id = if_nametoindex(scope + 1))))
		return bh_rdma_fault(fault, -EINVAL, "rdma.address",
				     "address = %.64s: a numeric IPv4 or IPv6 address of an "
				     "interface here is wanted, as 192.0.2.1",
				     text);
	ret->address.in6.sin6_family = AF_INET6;
	return 0;
}

/* ---- GIDs ------------------------------------------------------------------------------------- */

/* What is best: an IPv4 address over RoCE v2 is routed, and what clusters are set up for. */
static int gid_score(const struct ibv_gid_entry *entry)
{
	switch (entry->gid_type) {
	case IBV_GID_TYPE_ROCE_V2:
		return is_mapped(&entry->gid) ? 5 : is_link_local(&entry->gid) ? 2 : 4;
	case IBV_GID_TYPE_IB:
		return 3;
	case IBV_GID_TYPE_ROCE_V1:
		return is_mapped(&entry->gid) ? 1 : 0;
	default:
		return -1;
	}
}

static bool is_wanted(const struct bh_rdma_config *config, const struct bh_rdma_verbs_device *ret,
		      const struct ibv_gid_entry *entry)
{
	union ibv_gid gid;

	if (config->gid_index >= 0 && entry->gid_index != config->gid_index)
		return false;
	if (!config->address[0] || entry->gid_type == IBV_GID_TYPE_IB)
		return true;
	gid = gid_of_address(&ret->address.any);
	return memcmp(&gid, &entry->gid, sizeof(gid)) == 0;
}

/* What of that port's GID table could have been chosen. */
static bh_status no_gid(const struct bh_rdma_config *config, const struct ibv_gid_entry *entries,
			ssize_t n, const struct bh_rdma_verbs_device *ret, const char *device,
			struct bh_rdma_fault *fault)
{
	char there[96] = "";

	for (ssize_t i = 0; i < n; i++) {
		char text[24];

		if (entries[i].port_num != ret->port_num)
			continue;
		snprintf(text, sizeof(text), "%u", entries[i].gid_index);
		append(there, sizeof(there), text);
	}
	if (config->gid_index >= 0 && config->address[0])
		return bh_rdma_fault(fault, -EINVAL, "rdma.gid_index",
				     "gid_index = %lld with address = %.48s: that address has "
				     "another index of port %u of %s; give one of the two",
				     (long long)config->gid_index, config->address, ret->port_num,
				     device);
	if (config->gid_index >= 0)
		return bh_rdma_fault(fault, -EINVAL, "rdma.gid_index",
				     "gid_index = %lld: port %u of %s has %s",
				     (long long)config->gid_index, ret->port_num, device,
				     there[0] ? there : "none");
	if (config->address[0])
		return bh_rdma_fault(fault, -EINVAL, "rdma.address",
				     "address = %.48s: no GID of port %u of %s is of it",
				     config->address, ret->port_num, device);
	return bh_rdma_fault(fault, -ENODEV, "rdma.no_device",
			     "port %u of %s has no GID that can be used: has its interface an "
			     "address, and is it up?",
			     ret->port_num, device);
}

static bh_status choose_gid(const struct bh_rdma_config *config, struct bh_rdma_verbs_device *ret,
			    struct bh_rdma_fault *fault)
{
	const char *device = ibv_get_device_name(ret->context->device);
	struct ibv_gid_entry *entries = calloc(GIDS_MAX, sizeof(*entries));
	const struct ibv_gid_entry *best = NULL;
	bh_status status = 0;
	ssize_t n;

	if (!entries)
		return bh_rdma_fault(fault, -ENOMEM, "rdma.alloc", "out of memory");
	n = ibv_query_gid_table(ret->context, entries, GIDS_MAX, 0);
	if (n < 0) {
		status = bh_rdma_fault(fault, -ENODEV, "rdma.no_device",
				       "the GIDs of %s cannot be read: %s", device,
				       strerror((int)-n));
		goto done;
	}
	for (ssize_t i = 0; i < n; i++)
		if (entries[i].port_num == ret->port_num && is_wanted(config, ret, &entries[i]) &&
		    (!best || gid_score(&entries[i]) > gid_score(best)))
			best = &entries[i];
	if (!best) {
		status = no_gid(config, entries, n, ret, device, fault);
		goto done;
	}
	ret->gid_index = best->gid_index;
	ret->gid = best->gid;
	snprintf(ret->text, sizeof(ret->text), "%.24s port %u gid %u (%s)", device, ret->port_num,
		 best->gid_index, gid_type_text(best));
	if (config->address[0])
		goto done;
	if (best->gid_type != IBV_GID_TYPE_IB)
		address_of_gid(best, ret);
	else if (!find_ipoib_address(device, ret->port_num, ret))
		status = bh_rdma_fault(fault, -ENODEV, "rdma.no_device",
				       "port %u of %s is InfiniBand and none of its IPoIB "
				       "interfaces has an address: give one, or set address",
				       ret->port_num, device);
done:
	free(entries);
	return status;
}

/* ---- devices and ports ------------------------------------------------------------------------ */

/* The port that is asked for, or the first active one; `only`: the one that an address is on. */
static bh_status choose_port(const struct bh_rdma_config *config, uint8_t only,
			     struct bh_rdma_verbs_device *ret, struct bh_rdma_fault *fault)
{
	const char *device = ibv_get_device_name(ret->context->device);
	uint8_t n_ports = ret->device.phys_port_cnt;
	uint8_t first = 1, last = n_ports;

	if (config->port < 0 || config->port > n_ports)
		return bh_rdma_fault(fault, -EINVAL, "rdma.port", "port = %lld: %s has %u port%s",
				     (long long)config->port, device, n_ports,
				     n_ports == 1 ? "" : "s, from 1");
	if (config->port && only && config->port != only)
		return bh_rdma_fault(fault, -EINVAL, "rdma.port",
				     "port = %lld with address = %.48s: that address is on port %u "
				     "of %s",
				     (long long)config->port, config->address, only, device);
	if (config->port || only)
		first = last = config->port ? (uint8_t)config->port : only;
	for (ret->port_num = first; ret->port_num <= last; ret->port_num++) {
		int error = ibv_query_port(ret->context, ret->port_num, &ret->port);

		if (error) {
			bh_rdma_fault(fault, -ENODEV, "rdma.no_device",
				      "port %u of %s cannot be queried: %s", ret->port_num, device,
				      strerror(error));
			continue;
		}
		if (ret->port.state == IBV_PORT_ACTIVE)
			return 0;
		bh_rdma_fault(
			fault, -ENODEV, "rdma.no_device",
			"port %u of %s is not active but %s: is its cable in, its interface up, "
			"a subnet manager there?",
			ret->port_num, device, ibv_port_state_str(ret->port.state));
	}
	if (first > last)
		bh_rdma_fault(fault, -ENODEV, "rdma.no_device", "%s has no port", device);
	return -ENODEV;
}

static bh_status try_device(const struct bh_rdma_config *config, struct ibv_device *device,
			    uint8_t only, struct bh_rdma_verbs_device *ret,
			    struct bh_rdma_fault *fault)
{
	bh_status status;
	int error;

	ret->context = ibv_open_device(device);
	if (!ret->context)
		return bh_rdma_fault(fault, -ENODEV, "rdma.no_device", "%s cannot be opened: %s",
				     ibv_get_device_name(device), strerror(errno));
	error = ibv_query_device(ret->context, &ret->device);
	status = error ? bh_rdma_fault(fault, -ENODEV, "rdma.no_device", "%s cannot be queried: %s",
				       ibv_get_device_name(device), strerror(error))
		       : choose_port(config, only, ret, fault);
	if (!status)
		status = choose_gid(config, ret, fault);
	if (status < 0) {
		ibv_close_device(ret->context);
		ret->context = NULL;
	}
	return status;
}

/* Registered memory must stay where it is in this process when it forks, or the device goes on with
 * pages that have become the child's. Kernels from 5.12 see to that themselves. */
static bh_status prepare_fork(struct bh_rdma_fault *fault)
{
	int error = ibv_fork_init();

	if (!error || ibv_is_fork_initialized() != IBV_FORK_DISABLED)
		return 0;
	return bh_rdma_fault(
		fault, -EBUSY, "rdma.fork",
		"ibv_fork_init: %s: a library here has registered memory before, and a "
		"fork would corrupt it; set env.RDMAV_FORK_SAFE = 1 in [host]",
		strerror(error));
}

bh_status bh_rdma_verbs_choose(const struct bh_rdma_config *config,
			       struct bh_rdma_verbs_device *ret_device, struct bh_rdma_fault *fault)
{
	const char *wanted = strcmp(config->device, "auto") == 0 ? "" : config->device;
	char there[128] = "", by_address[64] = "";
	struct ibv_device **list;
	bool known = false;
	uint8_t only = 0;
	bh_status status;
	int n = 0;

	memset(ret_device, 0, sizeof(*ret_device));
	if ((status = prepare_fork(fault)) < 0)
		return status;
	if (config->address[0] && (status = parse_address(config->address, ret_device, fault)) < 0)
		return status;
	list = ibv_get_device_list(&n);
	if (!list || n == 0) {
		status = bh_rdma_fault(fault, -ENODEV, "rdma.no_device",
				       "no RDMA device: /sys/class/infiniband %s",
				       list ? "is empty" : strerror(errno));
		goto done;
	}
	if (config->address[0]) {
		status = find_by_address(&ret_device->address.any, config->address, by_address,
					 &only, fault);
		if (status < 0)
			goto done;
	}
	status = -ENODEV;
	for (int i = 0; i < n && status < 0; i++) {
		const char *name = ibv_get_device_name(list[i]);

		append(there, sizeof(there), name);
		if (wanted[0] && strcmp(name, wanted) != 0)
			continue;
		known = true;
		if (by_address[0] && strcmp(name, by_address) != 0) {
			if (wanted[0])
				status = bh_rdma_fault(
					fault, -EINVAL, "rdma.address",
					"address = %.48s is on %s, not on device = %s",
					config->address, by_address, wanted);
			continue;
		}
		status = try_device(config, list[i], only, ret_device, fault);
	}
	if (!known)
		status = bh_rdma_fault(fault, -EINVAL, "rdma.device",
				       "device = %.48s: not here; there is %s", wanted, there);
done:
	if (list)
		ibv_free_device_list(list);
	return status;
}

bool bh_rdma_verbs_is_of(const struct bh_rdma_verbs_device *device, const struct rdma_cm_id *id)
{
	return id->verbs && id->port_num == device->port_num &&
	       strcmp(ibv_get_device_name(id->verbs->device),
		      ibv_get_device_name(device->context->device)) == 0;
}

/* ---- memory ----------------------------------------------------------------------------------- */

/* A field of /proc/self/status; 0 where it has none. */
static uint64_t own_status(const char *field, int base)
{
	FILE *file = fopen("/proc/self/status", "re");
	size_t length = strlen(field);
	char line[128];
	uint64_t value = 0;

	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, field, length) == 0)
			value = strtoull(line + length, NULL, base);
	if (file)
		fclose(file);
	return value;
}

/* The library and some drivers say ENOMEM where they mean EFAULT. */
static bool is_mapped_whole(const void *data, uint64_t length)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t at = (uintptr_t)data & ~(page - 1), end = (uintptr_t)data + length;
	unsigned char resident[1024];

	while (at < end) {
		uintptr_t n = (end - at + page - 1) / page;

		if (n > sizeof(resident))
			n = sizeof(resident);
		if (mincore((void *)at, n * page, resident) < 0 && errno == ENOMEM)
			return false;
		at += n * page;
	}
	return true;
}

bh_status bh_rdma_verbs_memory_fault(struct bh_rdma_fault *fault, int error, const void *data,
				     uint64_t length)
{
	const uint64_t ipc_lock = UINT64_C(1) << 14; /* CAP_IPC_LOCK: no limit applies */
	bool exempt = own_status("CapEff:", 16) & ipc_lock;
	uint64_t pinned = own_status("VmPin:", 10) * 1024;
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (error == EFAULT || !is_mapped_whole(data, length))
		return bh_rdma_fault(fault, -EFAULT, "rdma.register",
				     "%llu bytes to register are not all mapped, or not writable",
				     (unsigned long long)length);
	if ((error == ENOMEM || error == EAGAIN) && !exempt && limit.rlim_cur != RLIM_INFINITY &&
	    pinned + length > limit.rlim_cur)
		return bh_rdma_fault(fault, -ENOMEM, "rdma.memlock",
				     "%llu bytes to register, %llu already pinned, but "
				     "RLIMIT_MEMLOCK is %llu: set LimitMEMLOCK=infinity in the "
				     "service's unit, or ulimit -l, to at least %llu KiB",
				     (unsigned long long)length, (unsigned long long)pinned,
				     (unsigned long long)limit.rlim_cur,
				     (unsigned long long)(pinned + length + 1023) / 1024);
	return bh_rdma_fault(
		fault, -error, "rdma.register",
		"%llu bytes could not be registered: %s (%llu bytes are pinned by this "
		"process; the device or the kernel has no more to give)",
		(unsigned long long)length, strerror(error), (unsigned long long)pinned);
}
