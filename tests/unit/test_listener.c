/* SPDX-License-Identifier: BSD-3-Clause */
/* test_listener - the suite of host/control/listener.c. */
#include "config.h"

#include "host/control/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/tap.h"

struct place {
	char dir[64], socket[96], lock[112];
};

static void place_make(struct place *place)
{
	snprintf(place->dir, sizeof(place->dir), "/tmp/bh-listener-XXXXXX");
	CU_ASSERT_FATAL(mkdtemp(place->dir) != NULL);
	snprintf(place->socket, sizeof(place->socket), "%s/host.sock", place->dir);
	snprintf(place->lock, sizeof(place->lock), "%s.lock", place->socket);
}

/* Empty but for what the test removes itself. */
static void place_remove(const struct place *place)
{
	unlink(place->lock);
	CU_ASSERT(rmdir(place->dir) == 0);
}

static struct sockaddr_un address_of(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	return address;
}

/* 0, or why it cannot be reached. */
static int reach(const char *path)
{
	struct sockaddr_un address = address_of(path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int number = connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? errno : 0;

	close(fd);
	return number;
}

/* A socket file as a killed host leaves it, or, with `live`, as another program has it. */
static int make_socket(const char *path, bool live)
{
	struct sockaddr_un address = address_of(path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CU_ASSERT_FATAL(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	if (live)
		CU_ASSERT_FATAL(listen(fd, 4) == 0);
	return fd;
}

static mode_t mode_of(const char *path)
{
	struct stat st = { 0 };

	return lstat(path, &st) == 0 ? st.st_mode & 07777 : 0;
}

static void listens_and_cleans_up(void)
{
	struct bh_listener *listener = NULL;
	struct place place;

	place_make(&place);
	CU_ASSERT_FATAL(bh_listener_open(place.socket, "0660", &listener, NULL) == 0);
	CU_ASSERT(reach(place.socket) == 0);
	CU_ASSERT(fcntl(bh_listener_fd(listener), F_GETFD) & FD_CLOEXEC);
	CU_ASSERT_PTR_NULL(bh_listener_close(listener));
	CU_ASSERT(reach(place.socket) == ENOENT);
	CU_ASSERT(access(place.lock, F_OK) < 0);
	place_remove(&place);
}

static void mode_is_exact(void)
{
	static const char *const modes[] = { "0600", "0660", "666", "0622" };
	static const mode_t umasks[] = { 0, 022, 077 };
	struct place place;

	place_make(&place);
	for (size_t m = 0; m < BH_ARRAY_LEN(modes); m++) {
		for (size_t u = 0; u < BH_ARRAY_LEN(umasks); u++) {
			struct bh_listener *listener = NULL;
			mode_t before = umask(umasks[u]);

			CU_ASSERT_FATAL(bh_listener_open(place.socket, modes[m], &listener, NULL) ==
					0);
			CU_ASSERT(umask(before) == umasks[u]);
			CU_ASSERT(mode_of(place.socket) == strtoul(modes[m], NULL, 8));
			bh_listener_close(listener);
		}
	}
	place_remove(&place);
}

/* The premise of "never wider": a file that is bound has the descriptor's mode less the umask. */
static void bound_file_has_the_descriptors_mode(void)
{
	mode_t before = umask(0);
	struct place place;
	struct sockaddr_un address;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	place_make(&place);
	address = address_of(place.socket);
	CU_ASSERT(fchmod(fd, 0600) == 0);
	CU_ASSERT(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	CU_ASSERT(mode_of(place.socket) == 0600);
	umask(before);
	close(fd);
	unlink(place.socket);
	place_remove(&place);
}

static void bad_modes_are_refused(void)
{
	static const char *const modes[] = { "", "abc", "0668", "01777", "-1", "0660 ", "+660" };
	struct place place;

	place_make(&place);
	for (size_t i = 0; i < BH_ARRAY_LEN(modes); i++) {
		struct bh_listener *listener = NULL;
		struct bh_error err = { 0 };

		CU_ASSERT(bh_listener_open(place.socket, modes[i], &listener, &err) == -EINVAL);
		CU_ASSERT_STRING_EQUAL(err.id, "socket.mode");
		CU_ASSERT_PTR_NOT_NULL(bh_error_fact(&err, "accepted"));
		CU_ASSERT_PTR_NULL(listener);
	}
	place_remove(&place);
}

static void makes_missing_directories(void)
{
	struct bh_listener *listener = NULL;
	struct place place;
	char deep[128], middle[96];

	place_make(&place);
	snprintf(middle, sizeof(middle), "%s/a", place.dir);
	snprintf(deep, sizeof(deep), "%s/a/b/host.sock", place.dir);
	CU_ASSERT(bh_listener_open(deep, "0660", &listener, NULL) == 0);
	CU_ASSERT(reach(deep) == 0);
	CU_ASSERT((mode_of(middle) & 0755) == mode_of(middle));
	bh_listener_close(listener);
	snprintf(deep, sizeof(deep), "%s/a/b", place.dir);
	CU_ASSERT(rmdir(deep) == 0 && rmdir(middle) == 0);
	place_remove(&place);
}

static void names_an_unusable_directory(void)
{
	struct bh_listener *listener = NULL;
	struct bh_error err = { 0 };
	struct place place;
	char file[96], below[128];
	int fd;

	place_make(&place);
	snprintf(file, sizeof(file), "%s/file", place.dir);
	snprintf(below, sizeof(below), "%s/host.sock", file);
	fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	close(fd);
	CU_ASSERT(bh_listener_open(below, "0660", &listener, &err) == -ENOTDIR);
	CU_ASSERT_STRING_EQUAL(err.id, "socket.directory");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "path"), file);
	unlink(file);
	place_remove(&place);
}

static void refuses_a_long_path(void)
{
	struct bh_listener *listener = NULL;
	struct bh_error err = { 0 };
	char path[300];

	memset(path, 'x', sizeof(path) - 1);
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	CU_ASSERT(bh_listener_open(path, "0660", &listener, &err) == -ENAMETOOLONG);
	CU_ASSERT_STRING_EQUAL(err.id, "socket.path");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "max"), "107");
}

static void takes_over_the_dead(void)
{
	struct bh_listener *listener = NULL;
	struct place place;

	place_make(&place);
	close(make_socket(place.socket, false));
	CU_ASSERT(reach(place.socket) == ECONNREFUSED);
	CU_ASSERT_FATAL(bh_listener_open(place.socket, "0660", &listener, NULL) == 0);
	CU_ASSERT(reach(place.socket) == 0);
	bh_listener_close(listener);
	place_remove(&place);
}

static void leaves_the_living_alone(void)
{
	struct bh_listener *listener = NULL;
	struct bh_error err = { 0 };
	struct place place;
	int fd;

	place_make(&place);
	fd = make_socket(place.socket, true);
	CU_ASSERT(bh_listener_open(place.socket, "0660", &listener, &err) == -EADDRINUSE);
	CU_ASSERT_STRING_EQUAL(err.id, "socket.in-use");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "path"), place.socket);
	CU_ASSERT(reach(place.socket) == 0);
	close(fd);
	unlink(place.socket);
	place_remove(&place);
}

static void leaves_the_doubtful_alone(void)
{
	struct sockaddr_un address;
	struct bh_listener *listener = NULL;
	struct bh_error err = { 0 };
	struct place place;
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	place_make(&place);
	address = address_of(place.socket);
	CU_ASSERT_FATAL(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	CU_ASSERT(bh_listener_open(place.socket, "0660", &listener, &err) == -EADDRINUSE);
	CU_ASSERT_PTR_NOT_NULL(bh_error_fact(&err, "reason"));
	CU_ASSERT(access(place.socket, F_OK) == 0);
	close(fd);
	unlink(place.socket);
	place_remove(&place);
}

static void second_start_names_the_first(void)
{
	struct bh_listener *first = NULL, *second = NULL;
	struct bh_error err = { 0 };
	struct place place;
	char pid[24];

	place_make(&place);
	snprintf(pid, sizeof(pid), "%ld", (long)getpid());
	CU_ASSERT_FATAL(bh_listener_open(place.socket, "0660", &first, NULL) == 0);
	CU_ASSERT(bh_listener_open(place.socket, "0660", &second, &err) == -EADDRINUSE);
	CU_ASSERT_STRING_EQUAL(err.id, "socket.in-use");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "pid"), pid);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "lock"), place.lock);
	CU_ASSERT(reach(place.socket) == 0);
	bh_listener_close(first);
	CU_ASSERT_FATAL(bh_listener_open(place.socket, "0660", &second, NULL) == 0);
	bh_listener_close(second);
	place_remove(&place);
}

static void never_removes_what_is_no_socket(void)
{
	static const char *const kinds[] = { "a file", "a directory", "a symbolic link", "a FIFO" };
	struct place place;
	char target[112];

	place_make(&place);
	snprintf(target, sizeof(target), "%s/nowhere", place.dir);
	for (size_t i = 0; i < BH_ARRAY_LEN(kinds); i++) {
		struct bh_listener *listener = NULL;
		struct bh_error err = { 0 };
		int made = i == 0 ? close(open(place.socket, O_CREAT | O_WRONLY | O_CLOEXEC, 0600))
			   : i == 1 ? mkdir(place.socket, 0700)
			   : i == 2 ? symlink(target, place.socket)
				    : mkfifo(place.socket, 0600);

		CU_ASSERT_FATAL(made == 0);
		CU_ASSERT(bh_listener_open(place.socket, "0660", &listener, &err) == -EEXIST);
		CU_ASSERT_STRING_EQUAL(err.id, "socket.not-a-socket");
		CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "found"), kinds[i]);
		CU_ASSERT(access(place.lock, F_OK) < 0);
		CU_ASSERT(remove(place.socket) == 0);
	}
	place_remove(&place);
}

static void removes_only_its_own(void)
{
	struct bh_listener *listener = NULL;
	struct place place;
	int fd;

	place_make(&place);
	CU_ASSERT_FATAL(bh_listener_open(place.socket, "0660", &listener, NULL) == 0);
	unlink(place.socket);
	fd = make_socket(place.socket, true); /* somebody else's, at the same place */
	bh_listener_unlink(listener);
	CU_ASSERT(reach(place.socket) == 0);
	bh_listener_close(listener);
	CU_ASSERT(reach(place.socket) == 0);
	close(fd);
	unlink(place.socket);
	place_remove(&place);
}

/* ---- starts at once -------------------------------------------------------------------------- */

#define RACERS 6
#define ROUNDS 25

struct race {
	const char *path;
	pthread_barrier_t start, tried, closed;
	_Atomic unsigned winners, refused;
};

static void *racer(void *arg)
{
	struct race *race = arg;

	for (int i = 0; i < ROUNDS; i++) {
		struct bh_listener *listener = NULL;
		struct bh_error err = { 0 };
		bh_status st;

		pthread_barrier_wait(&race->start);
		st = bh_listener_open(race->path, "0660", &listener, &err);
		if (st == 0)
			atomic_fetch_add(&race->winners, 1);
		else if (st == -EADDRINUSE)
			atomic_fetch_add(&race->refused, 1);
		pthread_barrier_wait(&race->tried); /* the winner holds on until all have tried */
		bh_listener_close(listener);
		pthread_barrier_wait(&race->closed);
	}
	return NULL;
}

static void one_of_many_wins(void)
{
	pthread_t threads[RACERS];
	struct place place;
	struct race race = { 0 };

	place_make(&place);
	close(make_socket(place.socket,
			  false)); /* and the first round has a dead one to take over */
	race.path = place.socket;
	pthread_barrier_init(&race.start, NULL, RACERS);
	pthread_barrier_init(&race.tried, NULL, RACERS);
	pthread_barrier_init(&race.closed, NULL, RACERS);
	for (int i = 0; i < RACERS; i++)
		CU_ASSERT_FATAL(pthread_create(&threads[i], NULL, racer, &race) == 0);
	for (int i = 0; i < RACERS; i++)
		pthread_join(threads[i], NULL);
	CU_ASSERT(atomic_load(&race.winners) == ROUNDS);
	CU_ASSERT(atomic_load(&race.refused) == (RACERS - 1) * ROUNDS);
	pthread_barrier_destroy(&race.start);
	pthread_barrier_destroy(&race.tried);
	pthread_barrier_destroy(&race.closed);
	place_remove(&place);
}

static void a_killed_host_leaves_no_obstacle(void)
{
	struct bh_listener *listener = NULL;
	struct place place;
	int status = 0;
	pid_t child;

	place_make(&place);
	child = fork();
	CU_ASSERT_FATAL(child >= 0);
	if (child == 0)
		_exit(bh_listener_open(place.socket, "0660", &listener, NULL) == 0 ? 0 : 1);
	CU_ASSERT(waitpid(child, &status, 0) == child);
	CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CU_ASSERT(access(place.socket, F_OK) == 0 && access(place.lock, F_OK) == 0);
	CU_ASSERT_FATAL(bh_listener_open(place.socket, "0660", &listener, NULL) == 0);
	CU_ASSERT(reach(place.socket) == 0);
	bh_listener_close(listener);
	place_remove(&place);
}

static const struct bh_test tests[] = {
	{ "a socket is listened on, and removed at the end with its lock", listens_and_cleans_up },
	{ "the socket has the manifest's mode whatever the umask", mode_is_exact },
	{ "a bound socket file is never wider than its descriptor's mode",
	  bound_file_has_the_descriptors_mode },
	{ "MAN-1: a bad socket_mode is refused with what is accepted", bad_modes_are_refused },
	{ "missing directories are made", makes_missing_directories },
	{ "a directory that is none is named", names_an_unusable_directory },
	{ "MAN-3: a path that is too long is refused, not cut", refuses_a_long_path },
	{ "a socket that nobody listens on is taken over", takes_over_the_dead },
	{ "a socket that somebody listens on is left alone", leaves_the_living_alone },
	{ "a socket that cannot be told to be dead is left alone", leaves_the_doubtful_alone },
	{ "a second start is refused and names the first", second_start_names_the_first },
	{ "what is no socket is never removed", never_removes_what_is_no_socket },
	{ "a socket that another one put there is not removed", removes_only_its_own },
	{ "of several starts at once exactly one wins", one_of_many_wins },
	{ "a killed host's socket and lock are no obstacle", a_killed_host_leaves_no_obstacle },
};

BH_TAP_MAIN("listener", tests)
