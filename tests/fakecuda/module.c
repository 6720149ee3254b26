/* SPDX-License-Identifier: BSD-3-Clause */
/* module - images, functions, launches.
 *
 * Of PTX the entries and their parameters are read. Of cubins and fatbins no more than that they are such: a
 * function is there when its name is in a table of kernels.c, and, where the image is not compressed, in it.
 * What has no C function can be asked about, not launched. */
#include "config.h"

#include "tests/fakecuda/fake.h"
#include "tests/fakecuda/kernels.h"

#include <ctype.h>
#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define EM_CUDA_NUMBER 190
#define NAME_BYTES 128
#define LOG_BYTES 512

struct entry {
	char name[NAME_BYTES];
	unsigned int n_params;
	uint32_t offset[FAKE_PARAMS_MAX], size[FAKE_PARAMS_MAX];
	struct entry *next;
};

struct module {
	struct fake_object object;
	bool is_ptx;
	struct entry *entries; /* of PTX */
	char *image;	       /* of others, to look for names; may be NULL */
	size_t image_size;
	struct function *functions;
};

struct function {
	struct fake_object object;
	struct module *module;
	const struct fake_kernel *kernel; /* NULL: cannot be launched */
	struct entry entry;
	int max_dynamic_shared, carveout;
	struct function *next;
};

struct log {
	char text[LOG_BYTES];
};

/* ---- PTX --------------------------------------------------------------------------------------------------- */

static CUresult complain(struct log *log, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static CUresult complain(struct log *log, int line, const char *format, ...)
{
	int at = snprintf(log->text, sizeof(log->text), "ptx input, line %d; error: ", line);
	va_list args;

	va_start(args, format);
	vsnprintf(log->text + at, sizeof(log->text) - (size_t)at, format, args);
	va_end(args);
	return CUDA_ERROR_INVALID_PTX;
}

/* Comments become blanks, line ends stay. */
static char *without_comments(const char *text)
{
	char *copy = strdup(text), *c = copy;

	while (c && *c) {
		if (c[0] == '/' && c[1] == '/') {
			while (*c && *c != '\n')
				*c++ = ' ';
		} else if (c[0] == '/' && c[1] == '*') {
			*c++ = ' ';
			*c++ = ' ';
			while (*c && !(c[0] == '*' && c[1] == '/')) {
				*c = *c == '\n' ? '\n' : ' ';
				c++;
			}
			if (*c) {
				*c++ = ' ';
				*c++ = ' ';
			}
		} else {
			c++;
		}
	}
	return copy;
}

static int line_at(const char *text, const char *place)
{
	int line = 1;

	for (const char *c = text; c < place; c++)
		line += *c == '\n';
	return line;
}

static bool is_name(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

/* `word` as a whole: no letter before or behind it. */
static const char *find_word(const char *text, const char *word)
{
	size_t length = strlen(word);

	for (const char *c = strstr(text, word); c; c = strstr(c + 1, word))
		if ((c == text || !is_name(c[-1])) && !is_name(c[length]))
			return c;
	return NULL;
}

/* ".u64": 8. 0: no type. */
static uint32_t type_size(const char *word, size_t length)
{
	static const struct {
		const char *name;
		uint32_t size;
	} types[] = {
		{ ".b8", 1 },  { ".u8", 1 },	{ ".s8", 1 },	{ ".b16", 2 }, { ".u16", 2 },
		{ ".s16", 2 }, { ".f16", 2 },	{ ".bf16", 2 }, { ".b32", 4 }, { ".u32", 4 },
		{ ".s32", 4 }, { ".f32", 4 },	{ ".b64", 8 },	{ ".u64", 8 }, { ".s64", 8 },
		{ ".f64", 8 }, { ".b128", 16 },
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strlen(types[i].name) == length && memcmp(types[i].name, word, length) == 0)
			return types[i].size;
	return 0;
}

/* One of ".param .align 8 .b8 name[24]", ".param .u64 .ptr .global .align 4 name". */
static bool parse_param(const char *text, const char *end, struct entry *entry, uint32_t *at)
{
	uint32_t size = 0, align = 0, count = 1;
	bool named = false;

	while (text < end) {
		const char *word = text;

		if (*text == '[') {
			count = (uint32_t)strtoul(text + 1, NULL, 10);
			while (text < end && *text != ']')
				text++;
			text += text < end;
			continue;
		}
		if (*text != '.' && !is_name(*text)) {
			if (!isspace((unsigned char)*text))
				return false;
			text++;
			continue;
		}
		text++;
		while (text < end && is_name(*text))
			text++;
		if ((size_t)(text - word) == 6 && memcmp(word, ".align", 6) == 0) {
			uint32_t value = (uint32_t)strtoul(text, (char **)&text, 10);

			if (!size) /* behind the type it is the alignment of what the pointer points to */
				align = value;
		} else if (*word == '.') {
			uint32_t is = type_size(word, (size_t)(text - word));

			if (is)
				size = is;
		} else {
			named = true;
		}
	}
	if (!size || !named || count == 0 || entry->n_params == FAKE_PARAMS_MAX)
		return false;
	if (!align)
		align = size;
	*at = (*at + align - 1) / align * align;
	entry->offset[entry->n_params] = *at;
	entry->size[entry->n_params++] = size * count;
	*at += size * count;
	return true;
}

/* From behind ".entry". */
static CUresult parse_entry(const char *all, const char *text, struct entry **ret_entry,
			    struct log *log)
{
	struct entry *entry = calloc(1, sizeof(*entry));
	const char *begin, *end;
	uint32_t at = 0;

	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	text += strspn(text, " \t\r\n");
	for (begin = text; is_name(*text);)
		text++;
	if (text == begin || text - begin >= NAME_BYTES) {
		free(entry);
		return complain(log, line_at(all, begin),
				"an entry without a name, or with too long a one");
	}
	memcpy(entry->name, begin, (size_t)(text - begin));
	text += strspn(text, " \t\r\n");
	if (*text == '(') {
		begin = text + 1;
		for (end = begin; *end && *end != ')';)
			end++;
		while (begin < end) {
			const char *comma = begin;

			while (comma < end && *comma != ',')
				comma++;
			if (strspn(begin, " \t\r\n") >= (size_t)(comma - begin) && comma == end &&
			    entry->n_params == 0)
				break; /* () */
			if (!parse_param(begin, comma, entry, &at)) {
				CUresult result =
					complain(log, line_at(all, begin), "parameter %u of %s",
						 entry->n_params, entry->name);

				free(entry);
				return result;
			}
			begin = comma + 1;
		}
	}
	*ret_entry = entry;
	return CUDA_SUCCESS;
}

static CUresult parse_ptx(struct module *module, const char *image, struct log *log)
{
	char *text = without_comments(image);
	const char *place, *version;
	CUresult result = CUDA_SUCCESS;

	if (!text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	version = find_word(text, ".version");
	place = find_word(text, "BROKEN");
	if (!version || !find_word(text, ".target"))
		result = complain(log, 1, "missing .version or .target directive");
	else if (place)
		result = complain(log, line_at(text, place), "unexpected 'BROKEN'");
	else if (strtod(version + 8, NULL) > 9.0 + (fake.version % 1000) / 100.0 + 0.001)
		result = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	for (place = find_word(text, ".entry"); place && result == CUDA_SUCCESS;
	     place = find_word(place + 1, ".entry")) {
		struct entry *entry = NULL;

		result = parse_entry(text, place + 6, &entry, log);
		if (entry) {
			entry->next = module->entries;
			module->entries = entry;
		}
	}
	free(text);
	module->is_ptx = true;
	return result;
}

/* ---- other images --------------------------------------------------------------------------------------------- */

static CUresult read_elf(struct module *module, const unsigned char *image)
{
	Elf64_Ehdr header;
	size_t size;

	memcpy(&header, image, sizeof(header));
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_CUDA_NUMBER ||
	    !header.e_shoff)
		return CUDA_ERROR_INVALID_IMAGE;
	size = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
	module->image = malloc(size);
	if (!module->image)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(module->image, image, size);
	module->image_size = size;
	return CUDA_SUCCESS;
}

/* u32 magic, u16 version, u16 bytes of this header, u64 bytes that follow. They may be compressed: any name that a
 * table has is taken to be in there. */
static CUresult read_fatbin(const unsigned char *image)
{
	uint16_t version, header;
	uint64_t size;

	memcpy(&version, image + 4, sizeof(version));
	memcpy(&header, image + 6, sizeof(header));
	memcpy(&size, image + 8, sizeof(size));
	return version == 1 && header == 16 && size > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

static bool is_text(const unsigned char *image)
{
	for (size_t i = 0; i < 16 && image[i]; i++)
		if (!isprint(image[i]) && !isspace(image[i]))
			return false;
	return image[0] != '\0';
}

static CUresult read_image(struct module *module, const void *data, struct log *log)
{
	const unsigned char *image = data;
	uint32_t magic;

	/* Four bytes can be read of anything that is an image. */
	memcpy(&magic, image, sizeof(magic));
	if (magic == FATBIN_WRAPPER_MAGIC) {
		memcpy(&image, image + 8, sizeof(image));
		memcpy(&magic, image, sizeof(magic));
	}
	if (magic == FATBIN_MAGIC)
		return read_fatbin(image);
	if (memcmp(image, ELFMAG, SELFMAG) == 0)
		return read_elf(module, image);
	return is_text(image) ? parse_ptx(module, (const char *)image, log)
			      : CUDA_ERROR_INVALID_IMAGE;
}

/* ---- modules -------------------------------------------------------------------------------------------------- */

static void module_free(struct module *module)
{
	while (module->functions) {
		struct function *next = module->functions->next;

		fake_object_remove(&module->functions->object);
		free(module->functions);
		module->functions = next;
	}
	while (module->entries) {
		struct entry *next = module->entries->next;

		free(module->entries);
		module->entries = next;
	}
	free(module->image);
	free(module);
}

static void module_remove(struct fake_object *object, void *user)
{
	(void)user;
	fake_object_remove(object);
	fake.counts.modules--;
	module_free((struct module *)object);
}

void fake_modules_end(struct fake_context *ctx)
{
	fake_object_each(FAKE_MODULE, ctx, module_remove, NULL);
}

/* The log's text goes where the options say; the size becomes what was written. */
static void give_log(const struct log *log, unsigned int n, const CUjit_option *options,
		     void **values)
{
	char *buffer = NULL;
	void **size_value = NULL;
	size_t size, length = strlen(log->text);

	for (unsigned int i = 0; i < n; i++)
		switch ((int)options[i]) {
		case CU_JIT_ERROR_LOG_BUFFER:
			buffer = values[i];
			break;
		case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
			size_value = &values[i];
			break;
		case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
			values[i] = NULL; /* nothing was written */
			break;
		default:
			break;
		}
	if (!size_value)
		return;
	size = (uint32_t)(uintptr_t)*size_value;
	if (buffer && size > 0) {
		if (length >= size)
			length = size - 1;
		memcpy(buffer, log->text, length);
		buffer[length] = '\0';
	}
	*size_value = (void *)(uintptr_t)length;
}

FAKE_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *ret_module, const void *image,
						unsigned int n_options, CUjit_option *options,
						void **values)
{
	struct module *module;
	struct log log = { "" };

	FAKE_BEGIN(cuModuleLoadDataEx, FAKE_CONTEXT);
	if (!ret_module || !image || (n_options && (!options || !values)))
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	module = calloc(1, sizeof(*module));
	if (!module)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	result = read_image(module, image, &log);
	give_log(&log, n_options, options, values);
	if (result != CUDA_SUCCESS) {
		module_free(module);
		FAKE_END(result);
	}
	fake_object_add(&module->object, FAKE_MODULE, call.ctx);
	fake.counts.modules++;
	*ret_module = (CUmodule)module->object.handle;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule *ret_module, const void *image)
{
	return cuModuleLoadDataEx(ret_module, image, 0, NULL, NULL);
}

/* As the real one it waits for what may still use the code. */
FAKE_EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule handle)
{
	struct module *module;

	FAKE_BEGIN(cuModuleUnload, FAKE_CONTEXT);
	module = fake_object_find(handle, FAKE_MODULE);
	if (!module)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	result = fake_context_wait(module->object.ctx);
	module = fake_object_find(handle, FAKE_MODULE);
	if (module)
		module_remove(&module->object, NULL);
	FAKE_END(result);
}

static const struct fake_kernel *kernel_find(const char *name)
{
	for (const struct fake_kernel *const *table = fake_kernel_tables; *table; table++)
		for (const struct fake_kernel *kernel = *table; kernel->name; kernel++)
			if (strcmp(kernel->name, name) == 0)
				return kernel;
	return NULL;
}

static void entry_of_kernel(const struct fake_kernel *kernel, struct entry *entry)
{
	uint32_t at = 0;

	snprintf(entry->name, sizeof(entry->name), "%s", kernel->name);
	for (; entry->n_params < FAKE_PARAMS_MAX && kernel->params[entry->n_params];
	     entry->n_params++) {
		uint32_t size = kernel->params[entry->n_params], align = size > 8 ? 8 : size;

		at = (at + align - 1) / align * align;
		entry->offset[entry->n_params] = at;
		entry->size[entry->n_params] = size;
		at += size;
	}
}

static bool find_entry(struct module *module, const char *name, struct entry *ret_entry)
{
	const struct fake_kernel *kernel = kernel_find(name);

	if (module->is_ptx) {
		for (const struct entry *entry = module->entries; entry; entry = entry->next)
			if (strcmp(entry->name, name) == 0) {
				*ret_entry = *entry;
				return true;
			}
		return false;
	}
	if (!kernel ||
	    (module->image && !memmem(module->image, module->image_size, name, strlen(name) + 1)))
		return false;
	entry_of_kernel(kernel, ret_entry);
	return true;
}

FAKE_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *ret_function, CUmodule handle,
						 const char *name)
{
	struct module *module;
	struct function *function;

	FAKE_BEGIN(cuModuleGetFunction, FAKE_CONTEXT);
	module = fake_object_find(handle, FAKE_MODULE);
	if (!module)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (!ret_function || !name)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	for (function = module->functions; function; function = function->next)
		if (strcmp(function->entry.name, name) == 0) {
			*ret_function = (CUfunction)function->object.handle;
			FAKE_END(CUDA_SUCCESS);
		}
	function = calloc(1, sizeof(*function));
	if (!function)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	if (!find_entry(module, name, &function->entry)) {
		free(function);
		FAKE_END(CUDA_ERROR_NOT_FOUND);
	}
	function->module = module;
	function->kernel = kernel_find(name);
	function->max_dynamic_shared = fake_device_attribute(
		call.ctx->device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
	function->carveout = -1;
	function->next = module->functions;
	module->functions = function;
	fake_object_add(&function->object, FAKE_FUNCTION, module->object.ctx);
	*ret_function = (CUfunction)function->object.handle;
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset,
						size_t *size)
{
	struct function *function;

	FAKE_BEGIN(cuFuncGetParamInfo, FAKE_INIT);
	function = fake_object_find(handle, FAKE_FUNCTION);
	if (!function)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (!offset || index >= function->entry.n_params)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	*offset = function->entry.offset[index];
	if (size)
		*size = function->entry.size[index];
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute,
						CUfunction handle)
{
	struct function *function;
	const struct fake_device *device;

	FAKE_BEGIN(cuFuncGetAttribute, FAKE_CONTEXT);
	function = fake_object_find(handle, FAKE_FUNCTION);
	if (!function)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	if (!value)
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	device = function->object.ctx->device;
	switch ((int)attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = fake_device_attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
		break;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*value = 16;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*value =
			10 * fake_device_attribute(device,
						   CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
			fake_device_attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
		break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*value = function->max_dynamic_shared;
		break;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		*value = function->carveout;
		break;
	default:
		if ((int)attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
			FAKE_END(CUDA_ERROR_INVALID_VALUE);
		*value = 0;
		break;
	}
	FAKE_END(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute,
						int value)
{
	struct function *function;
	const struct fake_device *device;

	FAKE_BEGIN(cuFuncSetAttribute, FAKE_CONTEXT);
	function = fake_object_find(handle, FAKE_FUNCTION);
	if (!function)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	device = function->object.ctx->device;
	switch ((int)attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		if (value < 0 ||
		    value > fake_device_attribute(
				    device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN))
			FAKE_END(CUDA_ERROR_INVALID_VALUE);
		function->max_dynamic_shared = value;
		break;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		if (value < -1 || value > 100)
			FAKE_END(CUDA_ERROR_INVALID_VALUE);
		function->carveout = value;
		break;
	default:
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	}
	FAKE_END(CUDA_SUCCESS);
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

struct launch_op {
	struct fake_op op;
	const struct fake_kernel *kernel;
	struct fake_launch launch;
	char name[NAME_BYTES];
	unsigned char params[];
};

bool fake_param(const struct fake_launch *launch, unsigned int index, void *ret_value, size_t size)
{
	if (index >= launch->n_params || launch->size[index] != size)
		return false;
	memcpy(ret_value, launch->params + launch->offset[index], size);
	return true;
}

void *fake_pointer(const struct fake_launch *launch, CUdeviceptr address, size_t size)
{
	struct fake_device *device = NULL;
	void *memory;

	if (size == 0)
		return (void *)launch;
	pthread_mutex_lock(&fake.lock);
	memory = fake_memory_of_device(address, size, &device);
	if (memory && device != launch->ctx->device && !launch->ctx->peers[device->index])
		memory = NULL;
	else if (!memory && fake_memory_is_pinned((void *)address, size))
		memory = (void *)address;
	pthread_mutex_unlock(&fake.lock);
	return memory;
}

bool fake_spin(const struct fake_launch *launch, int64_t ns)
{
	int64_t until = fake_now_ns() + ns;
	bool alive = true;

	pthread_mutex_lock(&fake.lock);
	while (alive && fake_now_ns() < until) {
		struct timespec at = { .tv_sec = until / 1000000000,
				       .tv_nsec = until % 1000000000 };

		pthread_cond_timedwait(&fake.progress, &fake.lock, &at);
		alive = launch->ctx->sticky == CUDA_SUCCESS && launch->ctx->refs > 0;
	}
	pthread_mutex_unlock(&fake.lock);
	return alive;
}

static CUresult launch_run(struct fake_op *op, struct fake_context *ctx)
{
	struct launch_op *self = (struct launch_op *)op;

	(void)ctx;
	return (CUresult)self->kernel->run(&self->launch);
}

static bool dimensions_right(const struct fake_device *device, const unsigned int grid[3],
			     const unsigned int block[3])
{
	uint64_t threads = 1;

	for (int i = 0; i < 3; i++) {
		unsigned int max_block = (unsigned)fake_device_attribute(
				     device,
				     (CUdevice_attribute)(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i)),
			     max_grid = (unsigned)fake_device_attribute(
				     device,
				     (CUdevice_attribute)(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i));

		if (!grid[i] || grid[i] > max_grid || !block[i] || block[i] > max_block)
			return false;
		threads *= block[i];
	}
	return threads <=
	       (uint64_t)fake_device_attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
}

/* Either each parameter's address, or all of them in one piece of memory. */
static bool take_params(const struct entry *entry, unsigned char *to, size_t size, void **params,
			void **extra)
{
	const void *buffer = NULL;
	size_t given = 0;

	if (params) {
		for (unsigned int i = 0; i < entry->n_params; i++)
			memcpy(to + entry->offset[i], params[i], entry->size[i]);
		return true;
	}
	for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[1];
		else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
			given = *(size_t *)extra[1];
		else
			return false;
	}
	if (size && (!buffer || given < size))
		return false;
	if (size)
		memcpy(to, buffer, size);
	return true;
}

#undef cuLaunchKernel
FAKE_EXPORT CUresult CUDAAPI cuLaunchKernel(CUfunction handle, unsigned int grid_x,
					    unsigned int grid_y, unsigned int grid_z,
					    unsigned int block_x, unsigned int block_y,
					    unsigned int block_z, unsigned int shared,
					    CUstream stream_handle, void **params, void **extra)
{
	const unsigned int grid[3] = { grid_x, grid_y, grid_z },
			   block[3] = { block_x, block_y, block_z };
	struct function *function;
	struct fake_stream *stream;
	const struct entry *entry;
	struct launch_op *op;
	size_t size;

	FAKE_BEGIN(cuLaunchKernel, FAKE_CONTEXT);
	function = fake_object_find(handle, FAKE_FUNCTION);
	stream = fake_stream_find(call.ctx, stream_handle);
	if (!function || !stream || fake_stream_context(stream) != function->object.ctx)
		FAKE_END(CUDA_ERROR_INVALID_HANDLE);
	entry = &function->entry;
	if (!dimensions_right(function->object.ctx->device, grid, block) ||
	    shared > (unsigned)function->max_dynamic_shared || (params && extra) ||
	    (entry->n_params && !params && !extra))
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	if (!function->kernel) {
		fake_violation("cuLaunchKernel", "the double has no C function for this kernel");
		FAKE_END(CUDA_ERROR_NOT_SUPPORTED);
	}
	size = entry->n_params
		       ? entry->offset[entry->n_params - 1] + entry->size[entry->n_params - 1]
		       : 0;
	op = calloc(1, sizeof(*op) + size);
	if (!op)
		FAKE_END(CUDA_ERROR_OUT_OF_MEMORY);
	if (!take_params(entry, op->params, size, params, extra)) {
		free(op);
		FAKE_END(CUDA_ERROR_INVALID_VALUE);
	}
	op->op.run = launch_run;
	op->kernel = function->kernel;
	memcpy(op->name, entry->name, sizeof(op->name));
	op->launch = (struct fake_launch){ .name = op->name,
					   .shared = shared,
					   .n_params = entry->n_params,
					   .params = op->params,
					   .ctx = function->object.ctx };
	memcpy(op->launch.grid, grid, sizeof(grid));
	memcpy(op->launch.block, block, sizeof(block));
	memcpy(op->launch.offset, entry->offset, sizeof(entry->offset));
	memcpy(op->launch.size, entry->size, sizeof(entry->size));
	fake_stream_push(stream, &op->op);
	FAKE_END(CUDA_SUCCESS);
}
