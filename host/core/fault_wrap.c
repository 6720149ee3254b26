/* SPDX-License-Identifier: BSD-3-Clause */
/* fault_wrap - what the linker's --wrap puts in front of the functions that fault points fail.
 *
 * Part of bulkheadd only, and only with --enable-faults. --wrap redirects the calls of the
 * executable's own objects: libraries, Python and plugins keep the real functions.
 *
 * Thread: any. Blocks: as the wrapped function does. Fails: as the wrapped function does when there
 * is nothing to be had. */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/core/fault.h"

#define HIT(kind, what) bh_fault_hit(kind, what, __builtin_return_address(0))
#define NO_MEMORY(what) (HIT(BH_FAULT_ALLOC, what) && (errno = ENOMEM, true))

/* NAME of type TYPE, whose failed call has the value FAILED. */
#define WRAP(type, name, failed, kind, parameters, arguments)                                      \
	type __real_##name parameters;                                                             \
	type __wrap_##name parameters;                                                             \
	type __wrap_##name parameters                                                              \
	{                                                                                          \
		return HIT(kind, #name) ? (errno = ENOMEM, (failed)) : __real_##name arguments;    \
	}

WRAP(void *, malloc, NULL, BH_FAULT_ALLOC, (size_t size), (size))
WRAP(void *, calloc, NULL, BH_FAULT_ALLOC, (size_t n, size_t size), (n, size))
WRAP(void *, realloc, NULL, BH_FAULT_ALLOC, (void *old, size_t size), (old, size))
WRAP(void *, reallocarray, NULL, BH_FAULT_ALLOC, (void *old, size_t n, size_t size), (old, n, size))
WRAP(char *, strdup, NULL, BH_FAULT_ALLOC, (const char *text), (text))
WRAP(char *, strndup, NULL, BH_FAULT_ALLOC, (const char *text, size_t length), (text, length))
WRAP(FILE *, open_memstream, NULL, BH_FAULT_ALLOC, (char **text, size_t *size), (text, size))
WRAP(FILE *, fdopen, NULL, BH_FAULT_ALLOC, (int fd, const char *mode), (fd, mode))
/* glibc's header makes getline() of it. */
WRAP(ssize_t, __getdelim, -1, BH_FAULT_ALLOC, (char **line, size_t *size, int end, FILE *file),
     (line, size, end, file))
WRAP(int, setenv, -1, BH_FAULT_ALLOC, (const char *name, const char *value, int over),
     (name, value, over))
WRAP(int, pthread_create, EAGAIN, BH_FAULT_THREAD,
     (pthread_t * thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg),
     (thread, attr, fn, arg))

/* dlerror() has nothing of a dlopen that was not made, so a name that cannot be is what fails. */
void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags)
{
	return __real_dlopen(HIT(BH_FAULT_DLOPEN, "dlopen") ? "/dev/null/fault" : path, flags);
}

int __wrap_vasprintf(char **ret_text, const char *format, va_list args);
int __real_vasprintf(char **ret_text, const char *format, va_list args);
int __wrap_vasprintf(char **ret_text, const char *format, va_list args)
{
	return NO_MEMORY("vasprintf") ? -1 : __real_vasprintf(ret_text, format, args);
}

int __wrap_asprintf(char **ret_text, const char *format, ...) BH_PRINTF(2, 3);
int __wrap_asprintf(char **ret_text, const char *format, ...)
{
	va_list args;
	int length = -1;

	va_start(args, format);
	if (!NO_MEMORY("asprintf"))
		length = __real_vasprintf(ret_text, format, args);
	va_end(args);
	return length;
}
