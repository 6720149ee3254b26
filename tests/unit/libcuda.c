/* SPDX-License-Identifier: BSD-3-Clause */
/* libcuda - see libcuda.h. */
#include "config.h"

#include "tests/unit/libcuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct libcuda cuda;

static const char *path(void)
{
	static char built[4096];
	const char *given = getenv("BH_TEST_LIBCUDA"), *dir = getenv("BH_TEST_BUILDDIR");

	if (given && *given)
		return given;
	snprintf(built, sizeof(built), "%s/tests/fakecuda/.libs/libcuda.so.1", dir ? dir : ".");
	return built;
}

static void *find(const char *name, int version)
{
	void *function = NULL;
	CUdriverProcAddressQueryResult found;

	return cuda.get(name, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) ==
			       CUDA_SUCCESS
		       ? function
		       : NULL;
}

bool libcuda_load(const char **ret_why)
{
	if (cuda.library)
		return true;
	cuda.library = dlopen(path(), RTLD_NOW | RTLD_LOCAL);
	if (!cuda.library) {
		*ret_why = dlerror();
		return false;
	}
	cuda.get = (PFN_cuGetProcAddress_v12000)dlsym(cuda.library, "cuGetProcAddress_v2");
	if (!cuda.get) {
		*ret_why = "the library has no cuGetProcAddress_v2: it is older than CUDA 12";
		return false;
	}
#define GET(name, version) cuda.name##_ = (PFN_##name##_v##version)find(#name, version);
	BH_CUDA_FUNCTIONS(GET, GET)
	LIBCUDA_MORE(GET)
#undef GET
	return true;
}

bool libcuda_is_double(void)
{
	return cuda.library && dlsym(cuda.library, "fakecuda_inject");
}

const char *libcuda_start(void)
{
	static bool started;
	static CUcontext context;
	const char *why = NULL;

	if (!libcuda_load(&why))
		return why;
	if (!started) {
		if (cuda.cuInit_(0) != CUDA_SUCCESS)
			return "cuInit failed";
		if (cuda.cuDevicePrimaryCtxRetain_(&context, 0) != CUDA_SUCCESS)
			return "cuDevicePrimaryCtxRetain failed";
		started = true;
	}
	return cuda.cuCtxSetCurrent_(context) == CUDA_SUCCESS ? NULL : "cuCtxSetCurrent failed";
}

int libcuda_child(const char *name, const char *const *environment)
{
	char option[80], self[4096];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int status;
	pid_t pid;

	if (length < 0)
		return -1;
	self[length] = '\0';
	snprintf(option, sizeof(option), "--case=%s", name);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		for (; environment && *environment; environment++)
			putenv((char *)*environment);
		execl(self, self, option, (char *)NULL);
		_exit(126);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void CUDA_CB gate_keep(void *user)
{
	struct libcuda_gate *gate = user;

	pthread_mutex_lock(&gate->lock);
	gate->entered = true;
	pthread_cond_broadcast(&gate->changed);
	while (!gate->open)
		pthread_cond_wait(&gate->changed, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

void libcuda_gate_close(struct libcuda_gate *gate, CUstream stream)
{
	pthread_mutex_init(&gate->lock, NULL);
	pthread_cond_init(&gate->changed, NULL);
	gate->entered = gate->open = false;
	if (cuda.cuLaunchHostFunc_(stream, gate_keep, gate) != CUDA_SUCCESS)
		abort();
	pthread_mutex_lock(&gate->lock);
	while (!gate->entered)
		pthread_cond_wait(&gate->changed, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

void libcuda_gate_open(struct libcuda_gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->open = true;
	pthread_cond_broadcast(&gate->changed);
	pthread_mutex_unlock(&gate->lock);
}

const char libcuda_ptx[] = "// add_one and what else the suites need\n"
			   ".version 7.0\n"
			   ".target sm_75\n"
			   ".address_size 64\n"
			   "\n"
			   ".visible .entry add_one(\n"
			   "	.param .u64 data, /* u32 * */\n"
			   "	.param .u32 n\n"
			   ")\n"
			   "{\n"
			   "	.reg .pred %p;\n"
			   "	.reg .b32 %r<6>;\n"
			   "	.reg .b64 %rd<4>;\n"
			   "	ld.param.u64 %rd0, [data];\n"
			   "	ld.param.u32 %r0, [n];\n"
			   "	mov.u32 %r1, %ctaid.x;\n"
			   "	mov.u32 %r2, %ntid.x;\n"
			   "	mov.u32 %r3, %tid.x;\n"
			   "	mad.lo.s32 %r4, %r1, %r2, %r3;\n"
			   "	setp.ge.u32 %p, %r4, %r0;\n"
			   "	@%p bra DONE;\n"
			   "	cvta.to.global.u64 %rd1, %rd0;\n"
			   "	mul.wide.u32 %rd2, %r4, 4;\n"
			   "	add.s64 %rd3, %rd1, %rd2;\n"
			   "	ld.global.u32 %r5, [%rd3];\n"
			   "	add.s32 %r5, %r5, 1;\n"
			   "	st.global.u32 [%rd3], %r5;\n"
			   "DONE:\n"
			   "	ret;\n"
			   "}\n"
			   ".visible .entry store(.param .u64 place, .param .u32 value)\n"
			   "{\n"
			   "	.reg .b32 %r;\n"
			   "	.reg .b64 %rd<2>;\n"
			   "	ld.param.u64 %rd0, [place];\n"
			   "	ld.param.u32 %r, [value];\n"
			   "	cvta.to.global.u64 %rd1, %rd0;\n"
			   "	st.global.u32 [%rd1], %r;\n"
			   "	ret;\n"
			   "}\n"
			   ".visible .entry spin(.param .u64 ns)\n"
			   "{\n"
			   "	.reg .pred %p;\n"
			   "	.reg .b64 %rd<4>;\n"
			   "	ld.param.u64 %rd0, [ns];\n"
			   "	mov.u64 %rd1, %globaltimer;\n"
			   "AGAIN:\n"
			   "	mov.u64 %rd2, %globaltimer;\n"
			   "	sub.s64 %rd3, %rd2, %rd1;\n"
			   "	setp.lt.u64 %p, %rd3, %rd0;\n"
			   "	@%p bra AGAIN;\n"
			   "	ret;\n"
			   "}\n"
			   ".visible .entry empty()\n"
			   "{\n"
			   "	ret;\n"
			   "}\n"
			   ".visible .entry odd(\n"
			   "	.param .u8 a,\n"
			   "	.param .align 8 .b8 b[24],\n"
			   "	.param .u16 c,\n"
			   "	.param .u64 .ptr .global .align 4 d,\n"
			   "	.param .align 16 .b8 e[16],\n"
			   "	.param .u64 f\n"
			   ")\n"
			   "{\n"
			   "	ret;\n"
			   "}\n";
