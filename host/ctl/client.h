/* SPDX-License-Identifier: BSD-3-Clause */
/* client - one HTTP request to a host's admin socket, by libcurl; and the wait for its end. */
#ifndef BH_HOST_CTL_CLIENT_H
#define BH_HOST_CTL_CLIENT_H

#include "host/core/clock.h"
#include "host/ctl/ctl.h"

#define BH_TYPE_JSON "application/json"
#define BH_TYPE_OCTETS "application/octet-stream"

struct bh_reply {
	long status; /* HTTP's */
	char *body;  /* owned; NUL-terminated */
	size_t length;
	bool is_octets; /* neither JSON nor text: for no terminal */
};

/* What is POSTed. Borrows all of it. */
struct bh_post {
	const char *type; /* Content-Type */
	const char *body;
	size_t length;
};

/* GET, or POST of `post` when there is one. `path` is escaped already. `timeout_ns` 0: no limit,
 * since an endpoint may take as long as it likes; connecting has its own. BH_CTL_OK: there is an
 * answer, of whatever status. Complains by itself. */
enum bh_ctl_exit bh_client_request(const char *socket, const char *path, const struct bh_post *post,
				   uint64_t timeout_ns, struct bh_reply *ret_reply) BH_MUST_CHECK;
void bh_reply_fini(struct bh_reply *reply);
/* One segment of a path. The caller frees it with free(). */
char *bh_client_escape(const char *segment);

/* A socket file as it is now, to notice that it has gone or is another's. */
struct bh_socket_mark {
	uint64_t device, inode;
	struct timespec changed;
};

/* False: there is no such file. */
bool bh_client_mark(const char *socket, struct bh_socket_mark *ret_mark);
/* Waits until the host that owns `mark` has removed it. Complains by itself. */
enum bh_ctl_exit bh_client_wait_gone(const char *socket, const struct bh_socket_mark *mark,
				     struct bh_deadline until) BH_MUST_CHECK;

#endif
