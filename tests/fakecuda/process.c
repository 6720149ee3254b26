/* SPDX-License-Identifier: BSD-3-Clause */
/* process - what each call begins and ends with: the log, the rules of tests, forks, and the driver's end. */
#include "config.h"

#include "tests/fakecuda/fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define N_RULES 64
#define N_FUNCTIONS 160

enum rule_kind {
	RULE_FAIL,
	RULE_FAULT,
	RULE_LATENCY,
	RULE_OP_LATENCY,
	RULE_HANG,
	RULE_HANG_OP,
	RULE_STICKY, /* done at once, never kept */
	RULE_EXIT,
	RULE_LATE,
};
enum end_kind { END_MARK, END_ABORT, END_HANG, END_SLEEP };

struct rule {
	enum rule_kind kind;
	char function[48];
	uint64_t nth, count, seen;
	int64_t ns;
	int code;
	int device; /* -1: all */
	enum end_kind end;
	bool of_file;
	uint64_t id;
};

struct fake fake = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
};
_Thread_local bool fake_is_stream_thread;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int log_fd = -1, violation_fd = STDERR_FILENO;
static _Atomic pid_t driver_pid; /* 0: cuInit has not been called */
static _Atomic bool gone;	 /* the driver's exit handler has run */
static _Atomic uint64_t n_calls, n_violations;

/* A lock of their own: a rule may hold up a call that holds none. Taken after fake.lock. */
static pthread_mutex_t rule_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[N_RULES];
static unsigned n_rules;
static uint64_t next_rule = 1;
static char control_path[4096];
static struct stat control_seen;
static struct {
	char name[48];
	uint64_t calls;
} functions[N_FUNCTIONS];

int64_t fake_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void sleep_ns(int64_t ns)
{
	struct timespec left = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

	while (ns > 0 && nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

/* ---- the log ------------------------------------------------------------------------------------- */

static void write_line(int fd, int64_t ns, const char *function, int result, const char *remark)
{
	char line[400], name[17] = "";
	int length;

	if (fd < 0)
		return;
	prctl(PR_GET_NAME, name);
	for (char *c = name; *c; c++)
		if (*c <= ' ')
			*c = '_';
	length = snprintf(line, sizeof(line), "%lld %ld %s %ld %s %d%s%s\n", (long long)ns,
			  (long)syscall(SYS_gettid), name[0] ? name : "-", (long)getpid(), function,
			  result, remark ? " " : "", remark ? remark : "");
	if (length >= (int)sizeof(line))
		length = sizeof(line) - 1;
	while (write(fd, line, (size_t)length) < 0 && errno == EINTR)
		;
}

void fake_note(const char *function, const char *remark)
{
	write_line(log_fd, fake_now_ns(), function, 0, remark);
}

void fake_violation(const char *function, const char *remark)
{
	char text[160];

	snprintf(text, sizeof(text), "VIOLATION %s", remark);
	atomic_fetch_add_explicit(&n_violations, 1, memory_order_relaxed);
	write_line(violation_fd, fake_now_ns(), function, -1, text);
	if (log_fd >= 0)
		write_line(log_fd, fake_now_ns(), function, -1, text);
}

/* ---- rules ----------------------------------------------------------------------------------------- */

static int code_of(const char *text)
{
	char *end;
	long number = strtol(text, &end, 0);
	const char *name;

	if (end != text && !*end)
		return (int)number;
	for (int i = 0; i <= CUDA_ERROR_UNKNOWN; i++)
		if (cuGetErrorName((CUresult)i, &name) == CUDA_SUCCESS && strcmp(name, text) == 0)
			return i;
	return -1;
}

static bool end_of(const char *text, struct rule *rule)
{
	if (strncmp(text, "sleep:", 6) == 0) {
		rule->end = END_SLEEP;
		rule->ns = atoll(text + 6);
		return rule->ns > 0;
	}
	rule->end = strcmp(text, "abort") == 0	? END_ABORT
		    : strcmp(text, "hang") == 0 ? END_HANG
						: END_MARK;
	return rule->end != END_MARK || strcmp(text, "mark") == 0 || strcmp(text, "error") == 0;
}

/* Cuts `text` up. */
static bool rule_parse(char *text, struct rule *rule)
{
	char *word[6], *save = NULL;
	int n = 0;

	for (char *w = strtok_r(text, " \t\r", &save); w && n < 6;
	     w = strtok_r(NULL, " \t\r", &save))
		word[n++] = w;
	*rule = (struct rule){ .count = 1, .device = -1 };
	if (n == 0)
		return false;
	if ((n == 4 || n == 5) && strcmp(word[0], "fail") == 0)
		rule->kind = RULE_FAIL;
	else if (n == 4 && strcmp(word[0], "fault") == 0)
		rule->kind = RULE_FAULT;
	else if (n == 3 && strcmp(word[0], "latency") == 0)
		rule->kind = RULE_LATENCY;
	else if (n == 3 && strcmp(word[0], "hang") == 0)
		rule->kind = RULE_HANG;
	else if (n == 2 && strcmp(word[0], "op_latency") == 0)
		rule->kind = RULE_OP_LATENCY;
	else if (n == 2 && strcmp(word[0], "hang_op") == 0)
		rule->kind = RULE_HANG_OP;
	else if ((n == 2 || n == 3) && strcmp(word[0], "sticky") == 0)
		rule->kind = RULE_STICKY;
	else if (n == 2 && strcmp(word[0], "exit") == 0)
		rule->kind = RULE_EXIT;
	else if (n == 2 && strcmp(word[0], "late") == 0)
		rule->kind = RULE_LATE;
	else
		return false;
	switch (rule->kind) {
	case RULE_FAIL:
	case RULE_FAULT:
		snprintf(rule->function, sizeof(rule->function), "%s", word[1]);
		rule->nth = strtoull(word[2], NULL, 0);
		rule->code = code_of(word[3]);
		rule->count = n == 5 ? strtoull(word[4], NULL, 0) : 1;
		return rule->code > 0;
	case RULE_LATENCY:
		snprintf(rule->function, sizeof(rule->function), "%s", word[1]);
		rule->ns = atoll(word[2]);
		return rule->ns > 0;
	case RULE_HANG:
		snprintf(rule->function, sizeof(rule->function), "%s", word[1]);
		rule->nth = strtoull(word[2], NULL, 0);
		return true;
	case RULE_OP_LATENCY:
		rule->ns = atoll(word[1]);
		return rule->ns > 0;
	case RULE_HANG_OP:
		rule->nth = strtoull(word[1], NULL, 0);
		return true;
	case RULE_STICKY:
		rule->code = code_of(word[1]);
		rule->device = n == 3 ? atoi(word[2]) : -1;
		return rule->code > 0;
	case RULE_EXIT:
	case RULE_LATE:
		return end_of(word[1], rule);
	}
	return false;
}

static void kill_contexts(int code, int device)
{
	pthread_mutex_lock(&fake.lock);
	for (int i = 0; i < fake.n_devices; i++)
		if (device < 0 || device == i)
			fake_context_kill(&fake.devices[i].primary, (CUresult)code);
	pthread_mutex_unlock(&fake.lock);
}

/* No lock is held. -1: a line is not understood, and none was taken. */
static int rules_add(const char *text, bool of_file)
{
	struct rule draft[N_RULES];
	unsigned n = 0;
	char *copy = strdup(text), *save = NULL;
	int status = copy ? 0 : -1;

	for (char *line = copy ? strtok_r(copy, ";\n", &save) : NULL; line && status == 0;
	     line = strtok_r(NULL, ";\n", &save)) {
		line += strspn(line, " \t\r");
		if (!*line || *line == '#')
			continue;
		if (n == N_RULES || !rule_parse(line, &draft[n]))
			status = -1;
		else
			n++;
	}
	free(copy);
	pthread_mutex_lock(&rule_lock);
	if (of_file) { /* also when it cannot be read: the former one's are over */
		unsigned kept = 0;

		for (unsigned i = 0; i < n_rules; i++)
			if (!rules[i].of_file)
				rules[kept++] = rules[i];
		n_rules = kept;
	}
	for (unsigned i = 0; status == 0 && i < n; i++) {
		if (draft[i].kind == RULE_STICKY)
			continue;
		if (n_rules == N_RULES) {
			status = -1;
			break;
		}
		draft[i].of_file = of_file;
		draft[i].id = next_rule++;
		rules[n_rules++] = draft[i];
	}
	pthread_mutex_unlock(&rule_lock);
	for (unsigned i = 0; status == 0 && i < n; i++)
		if (draft[i].kind == RULE_STICKY)
			kill_contexts(draft[i].code, draft[i].device);
	return status;
}

static void control_read(void)
{
	struct stat now = { 0 };
	bool changed;
	char text[16384];
	ssize_t length = 0;
	int fd;

	if (!control_path[0])
		return;
	if (stat(control_path, &now) < 0)
		memset(&now, 0, sizeof(now));
	pthread_mutex_lock(&rule_lock);
	changed = now.st_ino != control_seen.st_ino || now.st_size != control_seen.st_size ||
		  now.st_mtim.tv_sec != control_seen.st_mtim.tv_sec ||
		  now.st_mtim.tv_nsec != control_seen.st_mtim.tv_nsec;
	control_seen = now;
	pthread_mutex_unlock(&rule_lock);
	if (!changed)
		return;
	fd = open(control_path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		length = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	text[length > 0 ? length : 0] = '\0';
	if (rules_add(text, true) < 0)
		fake_violation("fakecuda:control", "the control file is not understood");
}

/* The rule is its turn's now. */
static bool rule_due(struct rule *rule)
{
	rule->seen++;
	return rule->nth == 0 || (rule->seen >= rule->nth && rule->seen < rule->nth + rule->count);
}

static bool rule_is(const struct rule *rule, enum rule_kind kind, const char *function)
{
	return rule->kind == kind &&
	       (strcmp(rule->function, function) == 0 || strcmp(rule->function, "*") == 0);
}

static bool rule_there(uint64_t id)
{
	bool there = false;

	pthread_mutex_lock(&rule_lock);
	for (unsigned i = 0; i < n_rules; i++)
		there |= rules[i].id == id;
	pthread_mutex_unlock(&rule_lock);
	return there;
}

static const struct rule *rule_last_locked(enum rule_kind kind)
{
	const struct rule *found = NULL;

	for (unsigned i = 0; i < n_rules; i++)
		if (rules[i].kind == kind)
			found = &rules[i];
	return found;
}

static enum end_kind end_choice(enum rule_kind kind, int64_t *ret_ns)
{
	const struct rule *rule;
	enum end_kind end = END_MARK;

	pthread_mutex_lock(&rule_lock);
	rule = rule_last_locked(kind);
	if (rule) {
		end = rule->end;
		*ret_ns = rule->ns;
	}
	pthread_mutex_unlock(&rule_lock);
	return end;
}

static void end_do(enum rule_kind kind)
{
	int64_t ns = 0;

	switch (end_choice(kind, &ns)) {
	case END_MARK:
		break;
	case END_ABORT:
		abort();
	case END_HANG:
		for (;;)
			pause();
	case END_SLEEP:
		sleep_ns(ns);
		break;
	}
}

static void hang(uint64_t id, const struct fake_context *ctx)
{
	bool dead = false;

	while (rule_there(id) && !dead) {
		sleep_ns(1000000);
		control_read();
		if (ctx) {
			pthread_mutex_lock(&fake.lock);
			dead = ctx->sticky != CUDA_SUCCESS || ctx->refs == 0;
			pthread_mutex_unlock(&fake.lock);
		}
	}
}

void fake_before_op(const struct fake_context *ctx)
{
	int64_t ns = 0;
	uint64_t held = 0;

	control_read();
	pthread_mutex_lock(&rule_lock);
	for (unsigned i = 0; i < n_rules; i++) {
		if (rules[i].kind == RULE_OP_LATENCY)
			ns += rules[i].ns;
		else if (rules[i].kind == RULE_HANG_OP && rule_due(&rules[i]))
			held = rules[i].id;
	}
	pthread_mutex_unlock(&rule_lock);
	sleep_ns(ns);
	if (held) {
		fake_note("fakecuda:hang_op", "begins");
		hang(held, ctx);
		fake_note("fakecuda:hang_op", "ends");
	}
}

/* ---- one call ----------------------------------------------------------------------------------------- */

static void setup(void)
{
	const char *path = getenv("FAKECUDA_LOG"), *text;
	pthread_condattr_t clock;
	const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;

	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&fake.progress, &clock);
	pthread_condattr_destroy(&clock);
	if (path && *path)
		log_fd = open(path, flags, 0644);
	path = getenv("FAKECUDA_VIOLATIONS");
	if (path && *path)
		violation_fd = open(path, flags, 0644);
	text = getenv("FAKECUDA_VERSION");
	fake.version = text && *text ? atoi(text) : CUDA_VERSION;
	fake_devices_setup();
	text = getenv("FAKECUDA_INJECT");
	if (text && rules_add(text, false) < 0)
		fake_violation("fakecuda:inject", "FAKECUDA_INJECT is not understood");
	path = getenv("FAKECUDA_CONTROL");
	snprintf(control_path, sizeof(control_path), "%s", path ? path : "");
}

/* What the rules say of this call. */
static CUresult apply_rules(struct fake_call *call)
{
	CUresult failed = CUDA_SUCCESS;
	int64_t ns = 0;
	uint64_t held = 0;

	control_read();
	pthread_mutex_lock(&rule_lock);
	for (unsigned i = 0; i < N_FUNCTIONS; i++) {
		if (functions[i].name[0] && strcmp(functions[i].name, call->name) != 0)
			continue;
		if (!functions[i].name[0])
			snprintf(functions[i].name, sizeof(functions[i].name), "%s", call->name);
		functions[i].calls++;
		break;
	}
	for (unsigned i = 0; i < n_rules; i++) {
		struct rule *rule = &rules[i];

		if (rule_is(rule, RULE_LATENCY, call->name))
			ns += rule->ns;
		else if (rule_is(rule, RULE_HANG, call->name) && rule_due(rule))
			held = rule->id;
		else if (rule_is(rule, RULE_FAIL, call->name) && rule_due(rule))
			failed = (CUresult)rule->code;
		else if (rule_is(rule, RULE_FAULT, call->name) && rule_due(rule))
			call->fault = (CUresult)rule->code;
	}
	pthread_mutex_unlock(&rule_lock);
	sleep_ns(ns);
	if (held) {
		fake_note("fakecuda:hang", call->name);
		hang(held, NULL);
	}
	if (failed != CUDA_SUCCESS)
		call->remark = "injected";
	return failed;
}

CUresult fake_enter(struct fake_call *call, const char *name, enum fake_needs needs)
{
	pid_t owner = atomic_load_explicit(&driver_pid, memory_order_acquire);
	CUresult result;

	*call = (struct fake_call){ .name = name };
	/* In a forked child of a process that has the driver nothing is touched, no lock either (H10). */
	if (owner != 0 && owner != getpid()) {
		if (needs != FAKE_NOTHING)
			fake_violation(name, "in a forked child");
		call->began_ns = fake_now_ns();
		return needs != FAKE_NOTHING ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
	}
	pthread_once(&once, setup);
	call->began_ns = fake_now_ns();
	atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
	if (atomic_load_explicit(&gone, memory_order_acquire)) {
		fake_violation(name, "after the driver's exit handler");
		end_do(RULE_LATE);
		return CUDA_ERROR_DEINITIALIZED;
	}
	if (fake_is_stream_thread && needs != FAKE_NOTHING) {
		fake_violation(name, "from a function that a stream called");
		return CUDA_ERROR_NOT_PERMITTED;
	}
	result = apply_rules(call);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&fake.lock);
	call->locked = true;
	if (needs == FAKE_NOTHING)
		return CUDA_SUCCESS;
	if (!fake.initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (needs == FAKE_INIT)
		return CUDA_SUCCESS;
	call->ctx = fake_context_current();
	if (!call->ctx) {
		call->remark = "no current context";
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (call->ctx->refs == 0) {
		call->remark = "the current context is gone";
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	return call->ctx->sticky;
}

CUresult fake_leave(struct fake_call *call, CUresult result)
{
	if (call->locked) {
		if (result == CUDA_SUCCESS && call->fault != CUDA_SUCCESS) {
			struct fake_context *ctx = call->ctx ? call->ctx : fake_context_current();

			if (ctx)
				fake_context_kill(ctx, call->fault);
		}
		pthread_mutex_unlock(&fake.lock);
	}
	write_line(log_fd, call->began_ns, call->name, (int)result, call->remark);
	return result;
}

/* ---- the driver's beginning and end ------------------------------------------------------------------- */

extern int __cxa_atexit(void (*fn)(void *), void *arg, void *dso);
extern void *__dso_handle __attribute__((visibility("hidden")));

static void driver_end(const char *which)
{
	if (atomic_load(&driver_pid) != getpid() || atomic_exchange(&gone, true))
		return;
	fake_note("fakecuda:exit", which);
	end_do(RULE_EXIT);
}

static void exit_handler(void *unused)
{
	(void)unused;
	driver_end("handler");
}

__attribute__((destructor)) static void destructor(void)
{
	driver_end("destructor");
}

FAKE_EXPORT CUresult CUDAAPI cuInit(unsigned int flags)
{
	FAKE_BEGIN(cuInit, FAKE_NOTHING);
	if (!call.locked) { /* a forked child */
		fake_violation("cuInit", "in a forked child");
		FAKE_END(CUDA_ERROR_NOT_INITIALIZED);
	}
	if (flags != 0)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	if (fake.initialized)
		FAKE_END(CUDA_SUCCESS);
	result = fake_devices_visible();
	if (result != CUDA_SUCCESS)
		FAKE_END(result);
	if (__cxa_atexit(exit_handler, NULL, &__dso_handle) != 0)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	atomic_store_explicit(&driver_pid, getpid(), memory_order_release);
	fake.initialized = true;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDriverGetVersion(int *version)
{
	FAKE_BEGIN(cuDriverGetVersion, FAKE_NOTHING);
	if (!version)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*version = fake.version;
	FAKE_END(CUDA_SUCCESS);
}

/* ---- for tests ---------------------------------------------------------------------------------------- */

FAKE_EXPORT fakecuda_inject_fn fakecuda_inject;
FAKE_EXPORT fakecuda_clear_fn fakecuda_clear;
FAKE_EXPORT fakecuda_count_fn fakecuda_count;
FAKE_EXPORT fakecuda_calls_fn fakecuda_calls;

int fakecuda_inject(const char *text)
{
	pthread_once(&once, setup);
	return rules_add(text, false);
}

void fakecuda_clear(void)
{
	unsigned kept = 0;

	pthread_mutex_lock(&rule_lock);
	for (unsigned i = 0; i < n_rules; i++)
		if (rules[i].of_file)
			rules[kept++] = rules[i];
	n_rules = kept;
	pthread_mutex_unlock(&rule_lock);
}

void fakecuda_count(struct fakecuda_counts *counts)
{
	struct fakecuda_counts all;
	size_t size = counts->size < sizeof(all) ? counts->size : sizeof(all);

	pthread_mutex_lock(&fake.lock);
	all = fake.counts;
	pthread_mutex_unlock(&fake.lock);
	all.calls = atomic_load(&n_calls);
	all.violations = atomic_load(&n_violations);
	all.size = size;
	memcpy(counts, &all, size);
}

uint64_t fakecuda_calls(const char *function)
{
	uint64_t calls = 0;

	pthread_mutex_lock(&rule_lock);
	for (unsigned i = 0; i < N_FUNCTIONS; i++)
		if (strcmp(functions[i].name, function) == 0)
			calls = functions[i].calls;
	pthread_mutex_unlock(&rule_lock);
	return calls;
}
