/* SPDX-License-Identifier: BSD-3-Clause */
/* test_cuda_launch - modules of plugins/cuda, and how a kernel's arguments reach it: against the test double, which
 * reads the parameters from PTX and has a kernel that tells what it was given. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugins/cuda/kernels.h"
#include "tests/unit/cuda_host.h"
#include "tests/unit/tap.h"

static const char ptx[] =
	".version 8.0\n"
	".target sm_75\n"
	".address_size 64\n"
	".visible .entry store_params(.param .u64 out, .param .u8 a, .param .u16 b,\n"
	"	.param .u32 c, .param .u64 d, .param .f32 e, .param .f64 f,\n"
	"	.param .align 4 .b8 g[12])\n"
	"{\n	ret;\n}\n"
	".visible .entry empty()\n"
	"{\n	ret;\n}\n";

static struct bh_task task;

static struct bh_value module_new(const void *image, size_t length)
{
	const struct bh_value args[] = { BYTES(image, length) };

	cuda_host_must(&task, "module", args);
	CU_ASSERT_EQUAL(task.value.type, BH_TYPE_HANDLE);
	return task.value;
}

static void module_close(struct bh_value module)
{
	cuda_host_must(&task, "module_close", &module);
}

/* launch(module, "store_params", [1], [1], args) must be refused, for what `args` at `index` is. */
static void arg_refused(struct bh_value module, const struct bh_value *args, size_t count,
			const char *error)
{
	const struct bh_value one[] = { INT(1) };
	const struct bh_value launch[] = {
		module,
		STR("store_params"),
		LIST(one),
		LIST(one),
		{ .type = BH_TYPE_LIST, .as.list = { args, count } },
		INT(0),
		NOTHING,
	};

	cuda_host_refused("launch", launch, -EINVAL, error);
}

/* Whatever fits, and in its place what does not. */
static void one_refused(struct bh_value module, struct bh_buffer *out, size_t index,
			struct bh_value wrong, const char *rest)
{
	const char bytes[12] = "";
	struct bh_value args[] = { BUFFER(*out), INT(1),   INT(1),   INT(1),
				   INT(1),	 FLOAT(1), FLOAT(1), BYTES(bytes, 12) };
	char error[256];

	args[index] = wrong;
	snprintf(error, sizeof(error), "cuda.launch parameter=args[%zu] %s", index, rest);
	arg_refused(module, args, 8, error);
}

/* ---- modules ---------------------------------------------------------------------------------------------- */

static void images_of_all_kinds_load(void)
{
	char text[sizeof(ptx) + 2];

	module_close(module_new(ptx, strlen(ptx)));
	memset(text, 0, sizeof(text)); /* one that was read with its NUL, and more of them */
	memcpy(text, ptx, strlen(ptx));
	module_close(module_new(text, sizeof(text)));
	if (bh_cuda_fatbin_size)
		module_close(module_new(bh_cuda_fatbin, bh_cuda_fatbin_size));
}

static void what_is_no_image_is_refused_before_the_driver_sees_it(void)
{
	static const unsigned char elf[64] = { 0x7f, 'E', 'L', 'F', 2, 1, 1 };
	unsigned char cut[64];
	char inner[sizeof(ptx)];

	cuda_host_refused(
		"module", (const struct bh_value[]){ BYTES("", 0) }, -EINVAL,
		"cuda.image parameter=image given=0 bytes: nothing accepted=PTX text, a whole "
		"cubin or a whole fatbin");
	cuda_host_refused("module", (const struct bh_value[]){ BYTES("hello", 5) }, -EINVAL,
			  "cuda.image parameter=image given=5 bytes: neither an ELF");
	memcpy(inner, ptx, sizeof(ptx));
	inner[20] = '\0';
	cuda_host_refused("module", (const struct bh_value[]){ BYTES(inner, strlen(ptx)) }, -EINVAL,
			  "cuda.image parameter=image given=");
	for (size_t n = 4; n <= sizeof(elf); n += 12) { /* a section table that is not there */
		unsigned char *exact = malloc(n);

		CU_ASSERT_PTR_NOT_NULL_FATAL(exact);
		memcpy(exact, elf, n);
		if (n == sizeof(elf))
			exact[0x3c] = 9; /* sections */
		cuda_host_refused("module", (const struct bh_value[]){ BYTES(exact, n) }, -EINVAL,
				  "cuda.image parameter=image given=");
		free(exact);
	}
	if (bh_cuda_fatbin_size == 0)
		return;
	memcpy(cut, bh_cuda_fatbin, sizeof(cut));
	cuda_host_refused("module", (const struct bh_value[]){ BYTES(cut, sizeof(cut)) }, -EINVAL,
			  "cuda.image parameter=image given=64 bytes: a fatbin that is cut short");
}

static void what_the_compiler_says_is_in_the_error(void)
{
	static const char broken[] = ".version 8.0\n.target sm_75\n.address_size 64\nBROKEN\n";
	const struct bh_value args[] = { BYTES(broken, sizeof(broken) - 1) };

	cuda_host_refused("module", args, -EINVAL, "cuda.module parameter=image given=PTX of ");
	(void)cuda_host_run(&task, "module", args);
	CU_ASSERT_PTR_NOT_NULL(strstr(task.error, "status=CUDA_ERROR_INVALID_PTX"));
	CU_ASSERT_PTR_NOT_NULL(strstr(task.error, "reason=ptx"));
	CU_ASSERT_PTR_NULL(strchr(task.error, '\n'));
}

static void a_module_is_read_from_a_file(void)
{
	char folder[] = "/tmp/bh-cuda-XXXXXX", path[64];
	struct bh_value arg = { .type = BH_TYPE_STR };
	FILE *file;

	CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/a.ptx", folder);
	arg.as.text = (struct bh_text){ path, strlen(path) };
	cuda_host_refused("module_file", &arg, -ENOENT,
			  "cuda.file parameter=path given=/tmp/bh-cuda-");
	file = fopen(path, "w");
	CU_ASSERT_PTR_NOT_NULL_FATAL(file);
	fputs(ptx, file);
	fclose(file);
	cuda_host_must(&task, "module_file", &arg);
	module_close(task.value);
	file = fopen(path, "w");
	CU_ASSERT_PTR_NOT_NULL_FATAL(file);
	fclose(file);
	cuda_host_refused("module_file", &arg, -EINVAL,
			  "cuda.image parameter=path given=0 bytes: nothing");
	unlink(path);
	CU_ASSERT_EQUAL(mkfifo(path, 0600), 0);
	cuda_host_refused("module_file", &arg, -EINVAL, "cuda.file parameter=path given=");
	unlink(path);
	rmdir(folder);
}

static void a_module_that_is_closed_is_refused(void)
{
	struct bh_value module = module_new(ptx, strlen(ptx));
	const struct bh_value one[] = { INT(1) };
	const struct bh_value launch[] = {
		module, STR("empty"), LIST(one), LIST(one), { .type = BH_TYPE_LIST },
		INT(0), NOTHING
	};

	cuda_host_must(&task, "launch", launch);
	module_close(module);
	cuda_host_refused("launch", launch, -ENOENT, "cuda.handle parameter=module given=");
	cuda_host_refused("module_close", &module, -ENOENT, "cuda.handle parameter=module given=");
}

/* ---- launches ------------------------------------------------------------------------------------------------ */

static void arguments_reach_the_kernel_bit_by_bit(void)
{
	const char twelve[] = "twelve bytes";
	const struct bh_value typed[4][2] = {
		{ STR("u8"), INT(200) },
		{ STR("i16"), INT(-2) },
		{ STR("f32"), INT(3) },
		{ STR("ptr"), INT(0) },
	};
	unsigned char got[7][16];
	struct bh_buffer out = cuda_host_vector(NULL, sizeof(got) / 4, 32), only_read = out;
	struct bh_value module = module_new(ptx, strlen(ptx));
	const struct bh_value one[] = { INT(1) }, constant[] = { STR("const"), BUFFER(only_read) };
	const struct bh_value plain[] = {
		BUFFER(out),	INT(-1),    INT(65535),	 INT(-7),
		INT(INT64_MIN), FLOAT(1.5), FLOAT(-2.5), BYTES(twelve, 12)
	};
	const struct bh_value explicit[] = { LIST(constant), LIST(typed[0]),   LIST(typed[1]),
					     LIST(typed[2]), LIST(typed[3]),   FLOAT(NAN),
					     FLOAT(1e300),   BYTES(twelve, 12) };
	struct bh_value launch[] = { module,	  LIST(one), LIST(one), LIST(one),
				     LIST(plain), INT(0),    NOTHING };
	int32_t c;
	int64_t d;
	uint16_t b;
	float e;
	double f;

	launch[1] = (struct bh_value)STR("store_params");
	cuda_host_must(&task, "launch", launch);
	cuda_host_get(&out, got);
	memcpy(&b, got[1], 2);
	memcpy(&c, got[2], 4);
	memcpy(&d, got[3], 8);
	memcpy(&e, got[4], 4);
	memcpy(&f, got[5], 8);
	CU_ASSERT_EQUAL(got[0][0], 255);
	CU_ASSERT_EQUAL(got[0][1], 0);
	CU_ASSERT_EQUAL(b, 65535);
	CU_ASSERT_EQUAL(c, -7);
	CU_ASSERT_EQUAL(d, INT64_MIN);
	CU_ASSERT_EQUAL(e, 1.5f);
	CU_ASSERT_EQUAL(f, -2.5);
	CU_ASSERT_EQUAL(memcmp(got[6], twelve, 12), 0);

	only_read.info.flags = 0;
	launch[4] = (struct bh_value)LIST(explicit);
	cuda_host_must(&task, "launch", launch);
	cuda_host_get(&out, got);
	memcpy(&b, got[1], 2);
	memcpy(&e, got[2], 4);
	memcpy(&d, got[3], 8);
	memcpy(&f, got[5], 8);
	CU_ASSERT_EQUAL(got[0][0], 200);
	CU_ASSERT_EQUAL(b, 65534);
	CU_ASSERT_EQUAL(e, 3.0f);
	CU_ASSERT_EQUAL(d, 0);
	CU_ASSERT_EQUAL(f, 1e300);
	memcpy(&e, got[4], 4);
	CU_ASSERT_TRUE(isnan(e));
	module_close(module);
	cuda_host_free(&out);
}

static void arguments_that_do_not_fit_are_refused_by_number(void)
{
	struct bh_value module = module_new(ptx, strlen(ptx));
	struct bh_buffer out = cuda_host_vector(NULL, 28, 32), only_read = out, host = out;
	const struct bh_value u32[] = { STR("u32"), INT(-1) }, f32[] = { STR("f32"), FLOAT(1) },
			      odd[] = { STR("int"), INT(1) }, ptr[] = { STR("ptr"), FLOAT(1) },
			      three[] = { INT(1), INT(2), INT(3) },
			      constant[] = { STR("const"), INT(0) };

	only_read.info.flags = 0;
	host.info.kind = BH_BUFFER_HOST;
	one_refused(module, &out, 0, (struct bh_value)BUFFER(only_read),
		    "given=a read-only buffer accepted=one that may be written to; or [\"const\"");
	one_refused(module, &out, 0, (struct bh_value)LIST(constant),
		    "given=[\"const\", int] accepted=a buffer");
	one_refused(module, &out, 0, (struct bh_value)LIST(ptr),
		    "given=[\"ptr\", float] accepted=a buffer, or a device address");
	one_refused(module, &out, 0, (struct bh_value)BOOL(1),
		    "given=bool, which takes 1 byte accepted=the kernel's parameter has 8 bytes");
	one_refused(module, &out, 1, (struct bh_value)INT(256),
		    "given=256 accepted=-128 to 255, in 1 byte");
	one_refused(module, &out, 1, (struct bh_value)FLOAT(1), "given=float, which takes");
	one_refused(module, &out, 2, (struct bh_value)INT(-32769),
		    "given=-32769 accepted=-32768 to 65535, in 2 bytes");
	one_refused(module, &out, 3, (struct bh_value)BUFFER(out),
		    "given=the address of a buffer, which takes 8 bytes accepted=the "
		    "kernel's parameter has 4 bytes");
	one_refused(module, &out, 3, (struct bh_value)LIST(u32),
		    "given=-1 accepted=0 to 4294967295, in 4 bytes");
	one_refused(module, &out, 3, (struct bh_value)LIST(odd),
		    "given=type \"int\" accepted=i8 i16 i32");
	one_refused(module, &out, 3, (struct bh_value)LIST(three),
		    "given=a list that is no type and value accepted=[\"f32\", 1.5]");
	one_refused(module, &out, 3, (struct bh_value)STR("7"), "given=str accepted=int, float");
	one_refused(module, &out, 3, (struct bh_value)NOTHING, "given=None accepted=int, float");
	one_refused(
		module, &out, 4, (struct bh_value)LIST(f32),
		"given=\"f32\", which takes 4 bytes accepted=the kernel's parameter has 8 bytes");
	one_refused(module, &out, 5, (struct bh_value)FLOAT(1e39), "given=1e+39 accepted=-3.4");
	one_refused(
		module, &out, 7, (struct bh_value)BYTES("four", 4),
		"given=4 bytes, which takes 4 bytes accepted=the kernel's parameter has 12 bytes");
	one_refused(module, &out, 7, (struct bh_value)INT(0), "given=int, which takes 8 bytes");
	arg_refused(module,
		    (const struct bh_value[]){ BUFFER(host), INT(1), INT(1), INT(1), INT(1),
					       FLOAT(1), FLOAT(1), BYTES("twelve bytes", 12) },
		    8, "cuda.kind parameter=args[0] given=host memory accepted=memory of device 0");
	arg_refused(
		module, three, 3,
		"cuda.launch parameter=args given=3 arguments accepted=8: the kernel's parameters "
		"have 8, 1, 2, 4, 8, 4, 8, 12 bytes");
	module_close(module);
	cuda_host_free(&out);
}

static void grids_blocks_and_names_are_checked(void)
{
	struct bh_value module = module_new(ptx, strlen(ptx));
	const struct bh_value one[] = { INT(1) }, zero[] = { INT(1), INT(0) },
			      four[] = { INT(1), INT(1), INT(1), INT(1) }, real[] = { FLOAT(1) },
			      many[] = { INT(64), INT(64) }, huge[] = { INT(INT64_C(1) << 40) };
	const struct bh_value none = { .type = BH_TYPE_LIST };
	struct bh_value launch[] = { module, STR("empty"), LIST(one), LIST(one),
				     none,   INT(0),	   NOTHING };
	const struct {
		int at;
		struct bh_value value;
		const char *error;
	} wrong[] = {
		{ 1, STR("full"),
		  "cuda.function parameter=name given=full accepted=the name of a kernel" },
		{ 1, STR("empty\0full"), "cuda.function parameter=name given=a name with a NUL" },
		{ 2, LIST(zero),
		  "cuda.launch parameter=grid given=[1, 0] accepted=a list of 1 to 3 ints" },
		{ 2, LIST(four), "cuda.launch parameter=grid given=[1, 1, 1, 1] accepted=" },
		{ 2, none, "cuda.launch parameter=grid given=[] accepted=" },
		{ 2, LIST(real), "cuda.launch parameter=grid given=[no int] accepted=" },
		{ 2, LIST(huge), "cuda.launch parameter=grid given=[1099511627776] accepted=" },
		{ 3, LIST(huge), "cuda.launch parameter=block given=[1099511627776] accepted=" },
		{ 3, LIST(many),
		  "cuda.launch parameter=block given=[64, 64]: 4096 threads accepted=at "
		  "most 1024 threads a block" },
		{ 5, INT(-1), "cuda.launch parameter=shared given=-1 accepted=0 to " },
		{ 5, INT(1 << 30), "cuda.launch parameter=shared given=1073741824 accepted=0 to " },
	};

	cuda_host_must(&task, "launch", launch);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct bh_value args[7];

		memcpy(args, launch, sizeof(args));
		args[wrong[i].at] = wrong[i].value;
		cuda_host_refused("launch", args, -EINVAL, wrong[i].error);
	}
	cuda_host_must(&task, "launch", launch); /* none of them has hurt it */
	module_close(module);
}

static void shared_memory_beyond_48_kib_is_opted_in(void)
{
	struct bh_value module = module_new(ptx, strlen(ptx));
	const struct bh_value one[] = { INT(1) };
	struct bh_value launch[] = {
		module, STR("empty"), LIST(one), LIST(one), { .type = BH_TYPE_LIST },
		INT(0), NOTHING
	};

	launch[5].as.integer = 49152;
	cuda_host_must(&task, "launch", launch);
	if (cuda_host.device.max_shared > 49152) {
		launch[5].as.integer = cuda_host.device.max_shared;
		cuda_host_must(&task, "launch", launch);
		cuda_host_must(&task, "launch", launch);
	}
	module_close(module);
}

/* As a driver before 12.4, which lacks the function. */
static void without_sizes_numbers_need_a_type(void)
{
	PFN_cuFuncGetParamInfo_v12040 had = cuda_host_driver.cuFuncGetParamInfo_;
	unsigned char got[7][16];
	struct bh_buffer out = cuda_host_vector(NULL, sizeof(got) / 4, 32);
	struct bh_value module = module_new(ptx, strlen(ptx));
	const struct bh_value u8[] = { STR("u8"), INT(200) }, i32[] = { STR("i32"), INT(-7) };
	const struct bh_value typed[] = { BUFFER(out), LIST(u8), LIST(u8), LIST(i32), LIST(i32) };
	const struct bh_value one[] = { INT(1) }, plain[] = { BUFFER(out), INT(1) },
			      real_[] = { BUFFER(out), FLOAT(1) }, bytes[] = { BYTES("abcd", 4) };
	struct bh_value launch[] = { module,	STR("store_params"), LIST(one),
				     LIST(one), LIST(typed),	     INT(0),
				     NOTHING };
	int32_t c;

	cuda_host_driver.cuFuncGetParamInfo_ = NULL;
	/* Fewer than it takes: what it then reads is zeros, and ours. */
	cuda_host_must(&task, "launch", launch);
	cuda_host_get(&out, got);
	memcpy(&c, got[2], 4);
	CU_ASSERT_EQUAL(got[0][0], 200);
	CU_ASSERT_EQUAL(c, -7);
	for (int i = 0; i < 12; i++)
		CU_ASSERT_EQUAL(got[6][i], 0);
	arg_refused(
		module, plain, 2,
		"cuda.launch parameter=args[1] given=int accepted=with its type, as [\"i32\", 7]");
	arg_refused(
		module, real_, 2,
		"cuda.launch parameter=args[1] given=float accepted=with its type, as [\"f32\"");
	arg_refused(module, bytes, 1,
		    "cuda.launch parameter=args[0] given=bytes accepted=with its");
	cuda_host_driver.cuFuncGetParamInfo_ = had;
	module_close(module);
	cuda_host_free(&out);
}

/* ---- the suite ------------------------------------------------------------------------------------------- */

static const struct bh_test tests[] = {
	{ "images of all kinds load", images_of_all_kinds_load },
	{ "what is no image is refused before the driver sees it",
	  what_is_no_image_is_refused_before_the_driver_sees_it },
	{ "what the compiler says is in the error", what_the_compiler_says_is_in_the_error },
	{ "a module is read from a file", a_module_is_read_from_a_file },
	{ "a module that is closed is refused", a_module_that_is_closed_is_refused },
	{ "arguments reach the kernel bit by bit", arguments_reach_the_kernel_bit_by_bit },
	{ "arguments that do not fit are refused by number",
	  arguments_that_do_not_fit_are_refused_by_number },
	{ "grids, blocks and names are checked", grids_blocks_and_names_are_checked },
	{ "shared memory beyond 48 KiB is opted in", shared_memory_beyond_48_kib_is_opted_in },
	{ "without sizes numbers need a type", without_sizes_numbers_need_a_type },
};

int main(int argc, char **argv)
{
	const char *why = cuda_host_start();
	int st;

	if (why) {
		printf("1..0 # SKIP %s\n", why);
		return 0;
	}
	st = bh_tap_main(argc, argv, "cuda launch", tests, sizeof(tests) / sizeof(tests[0]));
	return cuda_host_stop() ? st : 1;
}
