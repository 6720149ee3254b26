/* SPDX-License-Identifier: BSD-3-Clause */
/* client - one HTTP request to a host's admin socket, by libcurl; and the wait for its end. */
#include "config.h"

#include "host/ctl/client.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_MS 2000L
#define REPLY_MAX_BYTES (256u << 20) /* a host that answers more is none of ours */
#define GONE_POLL_NS (20 * BH_NS_PER_MS)
#define GONE_POLLS_A_CONNECT 25 /* a host that died keeps its socket file: try it now and then */

/* curl's writer: a short return ends the transfer with CURLE_WRITE_ERROR. */
static size_t reply_append(char *data, size_t one, size_t n, void *arg)
{
	struct bh_reply *reply = arg;
	size_t length = one * n;

	if (length > REPLY_MAX_BYTES - reply->length)
		return 0;
	reply->body = bh_ctl_must(realloc(reply->body, reply->length + length + 1));
	memcpy(reply->body + reply->length, data, length);
	reply->length += length;
	reply->body[reply->length] = '\0';
	return length;
}

void bh_reply_fini(struct bh_reply *reply)
{
	free(reply->body);
	*reply = (struct bh_reply){ 0 };
}

static void request_set_up(CURL *curl, const char *socket, const char *url,
			   const struct bh_post *post, uint64_t timeout_ns,
			   const struct curl_slist *headers, struct bh_reply *reply)
{
	curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, socket);
	curl_easy_setopt(curl, CURLOPT_URL, url);
	curl_easy_setopt(curl, CURLOPT_NOPROXY,
			 "*"); /* http_proxy in the environment is not for us */
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
	curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
			 (long)((timeout_ns + BH_NS_PER_MS - 1) / BH_NS_PER_MS));
	curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, reply_append);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, reply);
	if (post) {
		curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)post->length);
		curl_easy_setopt(curl, CURLOPT_POSTFIELDS, post->body);
	}
}

static void complain_no_answer(CURL *curl, CURLcode code, const char *socket, const char *detail)
{
	long connect_errno = 0;
	double connected = 0;

	curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &connect_errno);
	curl_easy_getinfo(curl, CURLINFO_CONNECT_TIME, &connected);
	if (code == CURLE_OPERATION_TIMEDOUT)
		bh_ctl_complain("no answer from %s in time", socket);
	else if (code == CURLE_WRITE_ERROR)
		bh_ctl_complain("the answer from %s is too long", socket);
	else if (code != CURLE_COULDNT_CONNECT)
		bh_ctl_complain("no answer from %s: %s", socket,
				*detail ? detail : curl_easy_strerror(code));
	else if (connect_errno == ECONNREFUSED)
		bh_ctl_complain("nobody listens on %s: the host that made it has ended", socket);
	else
		bh_ctl_complain("cannot reach %s: %s%s", socket, strerror((int)connect_errno),
				connect_errno == ENOENT ? "; is bulkheadd running?" : "");
}

enum bh_ctl_exit bh_client_request(const char *socket, const char *path, const struct bh_post *post,
				   uint64_t timeout_ns, struct bh_reply *ret_reply)
{
	char detail[CURL_ERROR_SIZE] = "";
	struct bh_reply reply = { 0 };
	struct curl_slist *headers;
	bh_auto_mem char *url = NULL, *type = NULL;
	const char *replied = NULL;
	CURLcode code;
	CURL *curl;

	if (strlen(socket) >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
		bh_ctl_complain("%s: longer than the %zu bytes that a socket's path may have",
				socket, sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
		return BH_CTL_UNREACHABLE;
	}
	bh_ctl_must(asprintf(&url, "http://bulkhead%s", path) < 0 ? NULL : url);
	curl = bh_ctl_must(curl_easy_init());
	/* No "Expect: 100-continue": it would cost a second where the host does not answer it. */
	headers = bh_ctl_must(curl_slist_append(NULL, "Expect:"));
	bh_ctl_must(asprintf(&type, "Content-Type: %s", post ? post->type : BH_TYPE_JSON) < 0
			    ? NULL
			    : type);
	headers = bh_ctl_must(curl_slist_append(headers, type));
	curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
	request_set_up(curl, socket, url, post, timeout_ns, headers, &reply);
	code = curl_easy_perform(curl);
	if (code == CURLE_OK) {
		curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply.status);
		curl_easy_getinfo(curl, CURLINFO_CONTENT_TYPE, &replied);
		reply.is_octets = replied &&
				  strncasecmp(replied, BH_TYPE_OCTETS, strlen(BH_TYPE_OCTETS)) == 0;
	} else {
		complain_no_answer(curl, code, socket, detail);
	}
	curl_slist_free_all(headers);
	curl_easy_cleanup(curl);
	if (code != CURLE_OK) {
		bh_reply_fini(&reply);
		return BH_CTL_UNREACHABLE;
	}
	if (!reply.body)
		reply.body = bh_ctl_must(strdup(""));
	*ret_reply = reply;
	return BH_CTL_OK;
}

char *bh_client_escape(const char *segment)
{
	char *escaped = bh_ctl_must(curl_easy_escape(NULL, segment, 0));
	char *copy = bh_ctl_must(strdup(escaped));

	curl_free(escaped);
	return copy;
}

/* ---- the end of a host ----------------------------------------------------------------------- */

bool bh_client_mark(const char *socket, struct bh_socket_mark *ret_mark)
{
	struct stat info;

	if (stat(socket, &info) < 0)
		return false;
	*ret_mark = (struct bh_socket_mark){ info.st_dev, info.st_ino, info.st_ctim };
	return true;
}

static bool is_gone(const char *socket, const struct bh_socket_mark *mark)
{
	struct bh_socket_mark now;

	return !bh_client_mark(socket, &now) || now.device != mark->device ||
	       now.inode != mark->inode || now.changed.tv_sec != mark->changed.tv_sec ||
	       now.changed.tv_nsec != mark->changed.tv_nsec;
}

static bool is_refused(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool refused;

	if (fd < 0)
		return false;
	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	refused = connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 &&
		  errno == ECONNREFUSED;
	close(fd);
	return refused;
}

enum bh_ctl_exit bh_client_wait_gone(const char *socket, const struct bh_socket_mark *mark,
				     struct bh_deadline until)
{
	const struct timespec pause = { 0, GONE_POLL_NS };

	for (unsigned polls = 1; !is_gone(socket, mark); polls++) {
		if (bh_deadline_passed(until)) {
			bh_ctl_complain(
				"the host on %s was told to stop, but has not ended in time",
				socket);
			return BH_CTL_UNREACHABLE;
		}
		/* It closes its socket and then removes the file: look at the file once more. */
		if (polls % GONE_POLLS_A_CONNECT == 0 && is_refused(socket)) {
			nanosleep(&pause, NULL);
			if (is_gone(socket, mark))
				break;
			bh_ctl_complain("the host has ended without removing %s: see its log",
					socket);
			return BH_CTL_REFUSED;
		}
		nanosleep(&pause, NULL);
	}
	return BH_CTL_OK;
}
