/* SPDX-License-Identifier: BSD-3-Clause */
/* listener - see listener.h. */
#include "config.h"

#include "host/control/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "host/core/log.h"

#define BACKLOG 128
#define DIRECTORY_MODE 0755
#define LOCK_TRIES 16 /* each lost try needs another host that ended in that very moment */

struct bh_listener {
	struct sockaddr_un address; /* I */
	char *lock_path;	    /* I */
	int lock_fd;		    /* -1: none */
	int fd;			    /* -1: none */
	bool made;		    /* the file at `address` is ours as long as its inode is … */
	dev_t device;
	ino_t inode; /* … this one */
};

static bh_status raise_errno(struct bh_error *err, const char *id, const char *path)
{
	int number = errno;

	return bh_raise(err, -number, id, BH_STR("path", path), BH_STR("reason", strerror(number)));
}

static bh_status parse_mode(const char *text, mode_t *ret_mode, struct bh_error *err)
{
	char *end;
	unsigned long mode;

	errno = 0;
	mode = strtoul(text, &end, 8);
	if (errno || end == text || *end || *text == '-' || *text == '+' || mode > 0777)
		return bh_raise(
			err, -EINVAL, "socket.mode", BH_STR("socket_mode", text),
			BH_STR("accepted", "octal permissions from 0 to 0777, such as 0660"));
	*ret_mode = (mode_t)mode;
	return 0;
}

/* ---- the directory --------------------------------------------------------------------------- */

static bh_status make_directory(const char *path, struct bh_error *err)
{
	struct stat st;

	if (mkdir(path, DIRECTORY_MODE) == 0)
		return 0;
	if (errno != EEXIST)
		return raise_errno(err, "socket.directory", path);
	if (stat(path, &st) < 0)
		return raise_errno(err, "socket.directory", path);
	if (!S_ISDIR(st.st_mode))
		return bh_raise(err, -ENOTDIR, "socket.directory", BH_STR("path", path),
				BH_STR("reason", "exists and is not a directory"));
	return 0;
}

/* Every directory above `path`, outermost first. */
static bh_status make_parents(const char *path, struct bh_error *err)
{
	bh_auto_mem char *copy = strdup(path);
	bh_status st;

	if (!copy)
		return bh_raise(err, -ENOMEM, "socket.alloc");
	for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		st = make_directory(copy, err);
		if (st < 0)
			return st;
		*slash = '/';
	}
	return 0;
}

/* ---- the lock -------------------------------------------------------------------------------- */

static bh_status raise_locked(const struct bh_listener *listener, int fd, struct bh_error *err)
{
	char pid[32] = "";
	ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);

	pid[n > 0 ? n : 0] = '\0';
	pid[strcspn(pid, "\n")] = '\0';
	return bh_raise(err, -EADDRINUSE, "socket.in-use",
			BH_STR("path", listener->address.sun_path),
			BH_STR("lock", listener->lock_path), BH_STR("pid", pid),
			BH_STR("reason", "another host of this name runs or is starting"));
}

/* The locked file may have been removed by its owner's end meanwhile: then it guards nothing. */
static bool lock_is_current(int fd, const char *path)
{
	struct stat locked, named;

	return fstat(fd, &locked) == 0 && stat(path, &named) == 0 &&
	       locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

static void write_pid(int fd)
{
	char pid[32];
	int n = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());

	/* Only for a second start's error message: a full disk must not keep this one down. */
	if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, (size_t)n, 0) < 0)
		bh_log(BH_LOG_WARNING, "listener", "cannot write the pid to the lock file",
		       BH_STR("reason", strerror(errno)));
}

static bh_status take_lock(struct bh_listener *listener, struct bh_error *err)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		int fd = open(listener->lock_path,
			      O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
		bh_status st;

		if (fd < 0)
			return raise_errno(err, "socket.lock", listener->lock_path);
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			st = errno == EWOULDBLOCK
				     ? raise_locked(listener, fd, err)
				     : raise_errno(err, "socket.lock", listener->lock_path);
			close(fd);
			return st;
		}
		if (lock_is_current(fd, listener->lock_path)) {
			write_pid(fd);
			listener->lock_fd = fd;
			return 0;
		}
		close(fd);
	}
	return bh_raise(err, -EADDRINUSE, "socket.in-use",
			BH_STR("path", listener->address.sun_path),
			BH_STR("reason", "other hosts of this name start and end all the time"));
}

/* ---- the file -------------------------------------------------------------------------------- */

static const char *kind_of(mode_t mode)
{
	return S_ISREG(mode)	? "a file"
	       : S_ISDIR(mode)	? "a directory"
	       : S_ISLNK(mode)	? "a symbolic link"
	       : S_ISFIFO(mode) ? "a FIFO"
				: "a device";
}

/* 0: a listener answers, or its backlog is full. Else why there is none, as an errno. */
static int probe(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int number = 0;

	if (fd < 0)
		return errno;
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 && errno != EAGAIN)
		number = errno;
	close(fd);
	return number;
}

/* What lies at the path: nothing, what a dead host left, or something that is not ours to touch. */
static bh_status clear_path(const struct bh_listener *listener, struct bh_error *err)
{
	const char *path = listener->address.sun_path;
	struct stat st;
	int number;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : raise_errno(err, "socket.path", path);
	if (!S_ISSOCK(st.st_mode))
		return bh_raise(err, -EEXIST, "socket.not-a-socket", BH_STR("path", path),
				BH_STR("found", kind_of(st.st_mode)),
				BH_STR("reason", "it is left alone; remove it, or choose another "
						 "name or runtime_dir"));
	number = probe(&listener->address);
	if (number == ENOENT)
		return 0;
	if (number != ECONNREFUSED)
		return bh_raise(
			err, -EADDRINUSE, "socket.in-use", BH_STR("path", path),
			BH_STR("reason", number ? strerror(number) : "somebody answers there"));
	bh_log(BH_LOG_INFO, "listener", "taking over a socket that nobody listens on",
	       BH_STR("path", path));
	if (unlink(path) < 0 && errno != ENOENT)
		return raise_errno(err, "socket.path", path);
	return 0;
}

static bh_status bind_and_listen(struct bh_listener *listener, mode_t mode, struct bh_error *err)
{
	const char *path = listener->address.sun_path;
	struct stat st;

	listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (listener->fd < 0)
		return raise_errno(err, "socket.create", path);
	/* bind() gives the file the descriptor's mode less the umask, so it never is open wider
	 * than it shall be, and the umask, which is the whole process's, is left alone. */
	if (fchmod(listener->fd, mode) < 0 ||
	    bind(listener->fd, (const struct sockaddr *)&listener->address,
		 sizeof(listener->address)) < 0)
		return raise_errno(err, "socket.bind", path);
	if (lstat(path, &st) < 0)
		return raise_errno(err, "socket.bind", path);
	listener->device = st.st_dev;
	listener->inode = st.st_ino;
	listener->made = true;
	if (chmod(path, mode) < 0 || listen(listener->fd, BACKLOG) < 0)
		return raise_errno(err, "socket.bind", path);
	return 0;
}

static bh_status listener_new(const char *path, struct bh_listener **ret_listener,
			      struct bh_error *err)
{
	size_t length = strlen(path);
	struct bh_listener *listener;

	if (length == 0 || length >= sizeof(listener->address.sun_path))
		return bh_raise(err, length ? -ENAMETOOLONG : -EINVAL, "socket.path",
				BH_STR("path", path), BH_INT("length", length),
				BH_INT("max", sizeof(listener->address.sun_path) - 1),
				BH_STR("reason", "choose a shorter name or runtime_dir"));
	listener = calloc(1, sizeof(*listener));
	if (!listener)
		return bh_raise(err, -ENOMEM, "socket.alloc");
	listener->fd = listener->lock_fd = -1;
	listener->address.sun_family = AF_UNIX;
	memcpy(listener->address.sun_path, path, length + 1);
	if (asprintf(&listener->lock_path, "%s.lock", path) < 0) {
		free(listener);
		return bh_raise(err, -ENOMEM, "socket.alloc");
	}
	*ret_listener = listener;
	return 0;
}

bh_status bh_listener_open(const char *path, const char *mode, struct bh_listener **ret_listener,
			   struct bh_error *err)
{
	bh_auto(bh_listener_close) struct bh_listener *listener = NULL;
	mode_t bits = 0;
	bh_status st;

	st = parse_mode(mode, &bits, err);
	if (st < 0)
		return st;
	st = listener_new(path, &listener, err);
	if (st < 0)
		return st;
	st = make_parents(path, err);
	if (st < 0)
		return st;
	st = take_lock(listener, err);
	if (st < 0)
		return st;
	st = clear_path(listener, err);
	if (st < 0)
		return st;
	st = bind_and_listen(listener, bits, err);
	if (st < 0)
		return st;
	*ret_listener = bh_steal(&listener);
	return 0;
}

int bh_listener_fd(const struct bh_listener *listener)
{
	return listener->fd;
}

void bh_listener_unlink(struct bh_listener *listener)
{
	struct stat st;

	if (!listener->made)
		return;
	listener->made = false;
	if (lstat(listener->address.sun_path, &st) == 0 && st.st_dev == listener->device &&
	    st.st_ino == listener->inode)
		unlink(listener->address.sun_path);
}

struct bh_listener *bh_listener_close(struct bh_listener *listener)
{
	if (!listener)
		return NULL;
	bh_listener_unlink(listener);
	if (listener->fd >= 0)
		close(listener->fd);
	if (listener->lock_fd >= 0) {
		/* While still locked: whoever opened it before sees that it is not current. */
		if (lock_is_current(listener->lock_fd, listener->lock_path))
			unlink(listener->lock_path);
		close(listener->lock_fd);
	}
	free(listener->lock_path);
	free(listener);
	return NULL;
}
