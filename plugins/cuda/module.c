/* SPDX-License-Identifier: BSD-3-Clause */
/* module - code of the app's own, as PTX text, cubin or fatbin: loaded, launched, let go.
 *
 * The driver reads an image without knowing where it ends, so that its own headers are held against its length
 * first; PTX is given the NUL that the driver looks for.
 *
 * Thread: workers. Loading PTX compiles it, which may take seconds, on the worker.
 * Fails:  cuda.image, .file: it is none of these, or cannot be read. cuda.module: the driver refuses it, with
 *         what its compiler says. */
#include "config.h"

#include "plugins/cuda/cuda.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugins/cuda/handles.h"
#include "plugins/cuda/launch.h"

#define LOG_MAX 8192u	    /* bytes of what the driver's compiler says */
#define SAID_MAX 600u	    /* of that, what an error has room for */
#define FILE_MAX (1u << 30) /* bytes of a module's file */
#define FATBIN_MAGIC 0xba55ed50u

/* ---- images ------------------------------------------------------------------------------------------ */

/* Of the toolkit's, before what it holds: little endian, as both machines are. */
struct fatbin_header {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size; /* bytes behind the header */
};

struct image {
	const char *parameter;	 /* for errors */
	const unsigned char *at; /* borrowed */
	size_t length;
	const char *kind; /* "PTX" */
	char *text;	  /* PTX with its NUL; ours */
};

static bh_status refuse_image(const struct bh_cuda_call *call, const struct image *image,
			      const char *given)
{
	char text[96];

	snprintf(text, sizeof(text), "%zu bytes: %s", image->length, given);
	return bh_cuda_refuse(call, "cuda.image", image->parameter, text,
			      "PTX text, a whole cubin or a whole fatbin, as nvcc -ptx, -cubin or "
			      "-fatbin writes them");
}

static bool fits(uint64_t offset, uint64_t size, size_t length)
{
	return offset <= length && size <= length - offset;
}

/* Its tables and all that they name lie within it. */
static bool elf_is_whole(const unsigned char *at, size_t length)
{
	Elf64_Ehdr header;

	if (length < sizeof(header))
		return false;
	memcpy(&header, at, sizeof(header));
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
	    !fits(header.e_shoff, (uint64_t)header.e_shnum * sizeof(Elf64_Shdr), length))
		return false;
	if (header.e_phnum > 0 &&
	    (header.e_phentsize != sizeof(Elf64_Phdr) ||
	     !fits(header.e_phoff, (uint64_t)header.e_phnum * sizeof(Elf64_Phdr), length)))
		return false;
	for (uint32_t i = 0; i < header.e_shnum; i++) {
		Elf64_Shdr section;

		memcpy(&section, at + header.e_shoff + i * sizeof(section), sizeof(section));
		if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL &&
		    !fits(section.sh_offset, section.sh_size, length))
			return false;
	}
	return true;
}

static bh_status look_at_ptx(const struct bh_cuda_call *call, struct image *image)
{
	const struct bh_cuda_fault fault = { .status = -ENOMEM,
					     .id = "cuda.host_memory",
					     .text = "the host has no memory for the module" };
	size_t length = image->length;

	while (length > 0 && image->at[length - 1] == '\0')
		length--;
	if (memchr(image->at, '\0', length) || !memmem(image->at, length, ".version", 8))
		return refuse_image(
			call, image,
			"neither an ELF nor a fatbin's beginning, nor text with .version");
	image->kind = "PTX";
	image->text = malloc(length + 1);
	if (!image->text)
		return bh_cuda_fail_by(call, &fault);
	memcpy(image->text, image->at, length);
	image->text[length] = '\0';
	return 0;
}

static bh_status look_at(const struct bh_cuda_call *call, struct image *image)
{
	struct fatbin_header fatbin = { 0 };

	if (image->length == 0)
		return refuse_image(call, image, "nothing");
	if (image->length >= sizeof(fatbin))
		memcpy(&fatbin, image->at, sizeof(fatbin));
	if (fatbin.magic == FATBIN_MAGIC) {
		image->kind = "fatbin";
		if (fatbin.header_size < sizeof(fatbin) ||
		    !fits(fatbin.header_size, fatbin.size, image->length))
			return refuse_image(call, image, "a fatbin that is cut short");
		return 0;
	}
	if (image->length >= SELFMAG && memcmp(image->at, ELFMAG, SELFMAG) == 0) {
		image->kind = "cubin";
		if (!elf_is_whole(image->at, image->length))
			return refuse_image(call, image, "an ELF file that is cut short");
		return 0;
	}
	return look_at_ptx(call, image);
}

/* ---- loading ------------------------------------------------------------------------------------------ */

/* In one line, as an error is, without what stands at its ends. */
static void tidy_log(char *log, char *said, size_t size)
{
	size_t used = 0;

	for (const char *at = log; *at && used + 1 < size; at++) {
		char c = *at == '\n' || *at == '\r' || *at == '\t' ? ' ' : *at;

		if ((unsigned char)c < ' ' || (c == ' ' && (used == 0 || said[used - 1] == ' ')))
			continue;
		said[used++] = c;
	}
	while (used > 0 && said[used - 1] == ' ')
		used--;
	said[used] = '\0';
}

/* What would be right, where that can be told from how the driver refuses. */
static void advise(const struct bh_cuda_call *call, CUresult result, char *text, size_t size)
{
	const struct bh_cuda_device *device = &call->cuda->device;

	if (result == CUDA_ERROR_NO_BINARY_FOR_GPU)
		snprintf(text, size,
			 "code for compute capability %d.%d, or PTX for that or less, as nvcc "
			 "-arch=sm_%d%d "
			 "makes it",
			 device->major, device->minor, device->major, device->minor);
	else if (result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
		snprintf(text, size,
			 "PTX of a toolkit no newer than the driver, which is of CUDA %d.%d",
			 device->driver->version / 1000, device->driver->version % 1000 / 10);
	else
		snprintf(text, size,
			 "what this device's driver can load: capability %d.%d, CUDA %d.%d",
			 device->major, device->minor, device->driver->version / 1000,
			 device->driver->version % 1000 / 10);
}

static bh_status refuse_module(const struct bh_cuda_call *call, const struct image *image,
			       CUresult result, char *log)
{
	struct bh_cuda_fault fault;
	char given[64], accepted[160], said[SAID_MAX];

	(void)bh_cuda_result(call->cuda->device.driver, result, "cuModuleLoadDataEx", &fault);
	snprintf(given, sizeof(given), "%s of %zu bytes", image->kind, image->length);
	advise(call, result, accepted, sizeof(accepted));
	tidy_log(log, said, sizeof(said));
	const struct bh_fact facts[] = {
		bh_fact_str("parameter", image->parameter),
		bh_fact_str("given", given),
		bh_fact_str("accepted", accepted),
		bh_fact_str("status", fault.name),
		bh_fact_str("reason", said[0] ? said : fault.text),
	};

	call->cuda->services->metric_add(call->cuda->ctx, BH_CUDA_METRIC_ERRORS, 1);
	return call->cuda->services->task_fail(call->task, -EINVAL, "cuda.module", facts,
					       sizeof(facts) / sizeof(facts[0]));
}

/* It is the image's fault, and not the device's state. */
static bool is_refused_image(CUresult result)
{
	return result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY &&
	       result != CUDA_ERROR_DEINITIALIZED && result != CUDA_ERROR_NOT_INITIALIZED &&
	       result != CUDA_ERROR_INVALID_CONTEXT && !bh_cuda_is_sticky(result);
}

static bh_status load(const struct bh_cuda_call *call, const struct image *image,
		      CUmodule *ret_module)
{
	char log[LOG_MAX] = "";
	CUjit_option options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
	void *values[] = { log, (void *)(uintptr_t)(sizeof(log) - 1) };
	CUresult result = call->cuda->device.driver->cuModuleLoadDataEx_(
		ret_module, image->text ? (const void *)image->text : image->at, 2, options,
		values);

	if (is_refused_image(result))
		return refuse_module(call, image, result, log);
	return bh_cuda_check(call, result, "cuModuleLoadDataEx");
}

static bh_status load_and_give(struct bh_cuda_call *call, const struct image *image)
{
	const struct bh_cuda_fault fault = { .status = -ENOMEM,
					     .id = "cuda.host_memory",
					     .text = "the host has no memory for the module" };
	struct bh_cuda_module *known = bh_cuda_module_new();
	CUmodule module;
	bh_status st;

	if (!known)
		return bh_cuda_fail_by(call, &fault);
	st = load(call, image, &module);
	if (st < 0) {
		free(known);
		return st;
	}
	return bh_cuda_handle_give(call, BH_CUDA_MODULE, module, known);
}

static bh_status module_of(struct bh_cuda_call *call, struct image *image)
{
	bh_status st = look_at(call, image);

	if (st == 0)
		st = load_and_give(call, image);
	free(image->text);
	return st;
}

/* ---- files -------------------------------------------------------------------------------------------- */

static bh_status fail_file(const struct bh_cuda_call *call, int error, const char *path,
			   const char *reason)
{
	const struct bh_fact facts[] = {
		bh_fact_str("parameter", "path"),
		bh_fact_str("given", path),
		bh_fact_str("reason", reason),
		bh_fact_str("accepted", "a file of PTX, cubin or fatbin that the host can read"),
	};

	return call->cuda->services->task_fail(call->task, -error, "cuda.file", facts,
					       sizeof(facts) / sizeof(facts[0]));
}

/* `*ret_at` is for free(). */
static bh_status read_all(const struct bh_cuda_call *call, const char *path, int fd,
			  unsigned char **ret_at, size_t *ret_length)
{
	unsigned char *at;
	struct stat stat;
	size_t length = 0;
	ssize_t n = 0;

	if (fstat(fd, &stat) < 0)
		return fail_file(call, errno, path, strerror(errno));
	if (!S_ISREG(stat.st_mode))
		return fail_file(call, EINVAL, path, "it is no regular file");
	if (stat.st_size > FILE_MAX)
		return fail_file(call, EFBIG, path, "it is larger than 1 GiB");
	at = malloc((size_t)stat.st_size + 1);
	if (!at)
		return fail_file(call, ENOMEM, path, strerror(ENOMEM));
	while (length < (size_t)stat.st_size &&
	       (n = read(fd, at + length, (size_t)stat.st_size - length)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			int error = errno;

			free(at);
			return fail_file(call, error, path, strerror(error));
		}
		length += (size_t)n;
	}
	*ret_at = at;
	*ret_length = length;
	return 0;
}

static bh_status read_file(const struct bh_cuda_call *call, const struct bh_text *path,
			   unsigned char **ret_at, size_t *ret_length)
{
	bh_status st;
	int fd;

	if (strlen(path->data) != path->length)
		return fail_file(call, EINVAL, path->data, "the path has a NUL in it");
	fd = open(path->data, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return fail_file(call, errno, path->data, strerror(errno));
	st = read_all(call, path->data, fd, ret_at, ret_length);
	close(fd);
	return st;
}

/* ---- ops ---------------------------------------------------------------------------------------------- */

static bh_status op_module(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct image image = { .parameter = "image",
			       .at = (const unsigned char *)args[0].as.text.data,
			       .length = args[0].as.text.length };
	BH_CUDA_CALL call;
	bh_status st = bh_cuda_call_begin(&call, state, task, "module");

	return st < 0 ? st : module_of(&call, &image);
}

static bh_status op_module_file(void *state, struct bh_task *task, const struct bh_value *args)
{
	struct image image = { .parameter = "path" };
	unsigned char *content = NULL;
	BH_CUDA_CALL call;
	bh_status st = bh_cuda_call_begin(&call, state, task, "module_file");

	if (st == 0)
		st = read_file(&call, &args[0].as.text, &content, &image.length);
	if (st < 0)
		return st;
	image.at = content;
	st = module_of(&call, &image);
	free(content);
	return st;
}

static bh_status op_module_close(void *state, struct bh_task *task, const struct bh_value *args)
{
	BH_CUDA_CALL call;
	bh_status st = bh_cuda_call_begin(&call, state, task, "module_close");

	return st < 0 ? st : bh_cuda_handle_close(&call, BH_CUDA_MODULE, "module", &args[0]);
}

#define IMAGES                                                                                     \
	"PTX text, a cubin or a fatbin. PTX is compiled for the device, which may take seconds "   \
	"and holds a worker; what the compiler says against it is in the error. It is loaded "     \
	"until module_close()."

const struct bh_op bh_cuda_module_ops[BH_CUDA_MODULE_OPS] = {
	{ .name = "module",
	  .args = "image:bytes",
	  .ret = "handle",
	  .run = op_module,
	  .doc = "Loads code onto the device and returns its number for launch(). image: " IMAGES },
	{ .name = "module_file",
	  .args = "path:str",
	  .ret = "handle",
	  .run = op_module_file,
	  .doc = "As module(), of a file that the host can read, at most 1 GiB: " IMAGES },
	{ .name = "module_close",
	  .args = "module:handle",
	  .run = op_module_close,
	  .flags = BH_OP_CLEANUP,
	  .doc = "Lets a module go. Kernels of it that are still running end first; its number is "
		 "refused from now on." },
	{ .name = "launch",
	  .args = BH_CUDA_LAUNCH_ARGS,
	  .run = bh_cuda_op_launch,
	  .doc = "Runs a kernel of a module; done when the device has done it. grid (blocks) and "
		 "block (threads): 1 to 3 ints. args: a buffer of this device for a pointer, an "
		 "int, "
		 "a float or a bool for a number of the parameter's size, bytes for a struct, or "
		 "[type, value] with one of i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 bool ptr const "
		 "(const: a buffer that the kernel only reads). An int is passed as an integer and "
		 "a "
		 "float as a floating-point number, whatever the kernel makes of it. A driver "
		 "before "
		 "12.4 takes numbers with their type only. shared: bytes of dynamic shared memory. "
		 "The kernel may reach beyond a buffer's end, which nobody can check: then the "
		 "device's context is lost, and the pool fails." },
};
