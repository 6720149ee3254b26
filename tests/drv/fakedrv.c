/* SPDX-License-Identifier: BSD-3-Clause */
/* fakedrv - see fakedrv.h.
 *
 * Thread: any. Owns: its callback thread, which is detached: a callback may be stopped for good, and
 * the exit handler must not wait for it. */
#define _GNU_SOURCE
#include "fakedrv.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct callback {
	void (*fn)(void *arg);
	void *arg;
};

static struct {
	pthread_mutex_t inner; /* the driver's lock: guards all of this */
	pthread_cond_t work, idle;
	pid_t pid;     /* 0: not initialized */
	int unloading; /* atomic, seq_cst: the exit handler takes no lock */
	int faulty;
	int log_fd; /* -1: none */
	struct callback queue[FD_CALLBACKS_MAX];
	unsigned first, n;
	int running; /* a callback, with the inner lock held by its thread */
} driver = {
	.inner = PTHREAD_MUTEX_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
	.idle = PTHREAD_COND_INITIALIZER,
	.log_fd = -1,
};

/* A key rather than _Thread_local: the leak checker of gcc 12 crashes on the dynamic thread-local storage
 * of a thread that outlives main. */
static pthread_key_t device_key; /* the device and 1; NULL: none */
static pthread_once_t device_once = PTHREAD_ONCE_INIT;

static void make_device_key(void)
{
	if (pthread_key_create(&device_key, NULL) != 0)
		abort();
}

static int current_device(void)
{
	pthread_once(&device_once, make_device_key);
	return (int)(intptr_t)pthread_getspecific(device_key) - 1;
}

/* One write a line, so that threads do not mix. */
static int told(const char *name, int status)
{
	char line[160];
	int n;

	if (driver.log_fd < 0)
		return status;
	n = snprintf(line, sizeof(line), "%s thread=%d pid=%d device=%d status=%d\n", name,
		     (int)gettid(), (int)getpid(), current_device(), status);
	if (write(driver.log_fd, line, (size_t)n) != n)
		abort(); /* the log is what the test looks at */
	return status;
}

static int usable_locked(void)
{
	if (__atomic_load_n(&driver.unloading, __ATOMIC_SEQ_CST))
		return FD_UNLOADING;
	if (driver.pid == 0)
		return FD_NO_INIT;
	if (driver.pid != getpid())
		return FD_FORKED;
	return driver.faulty ? FD_STICKY : FD_OK;
}

static int enter(void)
{
	pthread_mutex_lock(&driver.inner);
	return usable_locked();
}

static int enter_on_device(void)
{
	int status = enter();

	return status == FD_OK && current_device() < 0 ? FD_NO_DEVICE : status;
}

static int leave(const char *name, int status)
{
	told(name, status);
	pthread_mutex_unlock(&driver.inner);
	return status;
}

static void *run_callbacks(void *unused)
{
	(void)unused;
	pthread_setname_np(pthread_self(), "fakedrv");
	pthread_mutex_lock(&driver.inner);
	for (;;) {
		struct callback callback;

		while (driver.n == 0) {
			pthread_cond_broadcast(&driver.idle);
			pthread_cond_wait(&driver.work, &driver.inner);
		}
		callback = driver.queue[driver.first];
		driver.first = (driver.first + 1) % FD_CALLBACKS_MAX;
		driver.n--;
		driver.running = 1;
		callback.fn(callback.arg);
		driver.running = 0;
		told("callback", FD_OK);
	}
	return NULL;
}

/* Not locked: whoever holds the lock may never come back, and the process is to end. */
static void unload(void)
{
	told("exit-handler", FD_OK);
	__atomic_store_n(&driver.unloading, 1, __ATOMIC_SEQ_CST);
}

static int init_locked(void)
{
	const char *path = getenv("FAKEDRV_LOG");
	pthread_t thread;

	if (__atomic_load_n(&driver.unloading, __ATOMIC_SEQ_CST))
		return FD_UNLOADING;
	if (driver.pid == getpid())
		return FD_OK;
	if (driver.pid != 0)
		return FD_FORKED;
	if (path && driver.log_fd < 0)
		driver.log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (atexit(unload) != 0 || pthread_create(&thread, NULL, run_callbacks, NULL) != 0)
		return FD_MEMORY;
	pthread_detach(thread);
	driver.pid = getpid();
	return FD_OK;
}

int fd_init(void)
{
	pthread_mutex_lock(&driver.inner);
	return leave("init", init_locked());
}

int fd_device_count(int *ret_n)
{
	int status = enter();

	if (status == FD_OK)
		*ret_n = FD_DEVICES;
	return leave("device_count", status);
}

int fd_set_device(int device)
{
	int status = enter();

	if (status == FD_OK && (device < 0 || device >= FD_DEVICES))
		status = FD_INVALID;
	if (status == FD_OK) {
		(void)current_device(); /* makes the key */
		if (pthread_setspecific(device_key, (void *)(intptr_t)(device + 1)) != 0)
			status = FD_MEMORY;
	}
	return leave("set_device", status);
}

int fd_get_device(int *ret_device)
{
	int status = enter_on_device();

	if (status == FD_OK)
		*ret_device = current_device();
	return leave("get_device", status);
}

int fd_alloc(size_t size, void **ret_memory)
{
	int status = enter_on_device();
	void *memory = NULL;

	if (status == FD_OK) {
		memory = malloc(size ? size : 1);
		status = memory ? FD_OK : FD_MEMORY;
	}
	if (status == FD_OK)
		*ret_memory = memory;
	return leave("alloc", status);
}

int fd_free(void *memory)
{
	int status = enter_on_device();

	if (status == FD_OK)
		free(memory);
	return leave("free", status);
}

int fd_copy(void *to, const void *from, size_t size)
{
	int status = enter_on_device();

	if (status == FD_OK && size > 0)
		memmove(to, from, size);
	return leave("copy", status);
}

int fd_callback(void (*fn)(void *arg), void *arg)
{
	int status = enter_on_device();

	if (status == FD_OK && driver.n == FD_CALLBACKS_MAX)
		status = FD_MEMORY;
	if (status == FD_OK) {
		driver.queue[(driver.first + driver.n++) % FD_CALLBACKS_MAX] =
			(struct callback){ fn, arg };
		pthread_cond_signal(&driver.work);
	}
	return leave("enqueue", status);
}

int fd_synchronize(void)
{
	int status = enter_on_device();

	/* Callbacks run to the end also after a fault. */
	while ((status == FD_OK || status == FD_STICKY) && (driver.n > 0 || driver.running)) {
		pthread_cond_wait(&driver.idle, &driver.inner);
		status = usable_locked();
	}
	return leave("synchronize", status);
}

int fd_fault(void)
{
	int status = enter_on_device();

	if (status == FD_OK)
		driver.faulty = 1;
	return leave("fault", status);
}
