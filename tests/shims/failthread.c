/* SPDX-License-Identifier: BSD-3-Clause */
/* failthread - preloaded into bulkheadd: one creation of a thread fails, as at the limit of a
 * cgroup or of RLIMIT_NPROC.
 *
 * FAILTHREAD=NAME:N: on the thread that the kernel knows as NAME, the N-th creation (from 1) gives
 * EAGAIN. The others go through. */
#define _GNU_SOURCE 1

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main_fn)(void *),
		   void *arg)
{
	static atomic_int n;
	const char *spec = getenv("FAILTHREAD"), *colon = spec ? strrchr(spec, ':') : NULL;
	void *symbol = dlsym(RTLD_NEXT, "pthread_create");
	char name[16] = "";
	create_fn *create;

	memcpy(&create, &symbol, sizeof(create));
	prctl(PR_GET_NAME, name);
	if (colon && strlen(name) == (size_t)(colon - spec) &&
	    memcmp(name, spec, strlen(name)) == 0 && atomic_fetch_add(&n, 1) + 1 == atoi(colon + 1))
		return EAGAIN;
	return create(thread, attr, main_fn, arg);
}
