/* SPDX-License-Identifier: BSD-3-Clause */
/* test_imports - what a plugin's file imports, read from whole, cut and broken files. */
#include "config.h"

#include "host/plugin/imports.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/tap.h"

/* A private folder with a copy of a plugin in it, and the copy's bytes. */
struct copy {
	char dir[64], file[80];
	unsigned char *data;
	size_t size;
};

static const char *plugin_path(const char *name)
{
	static char path[4096];
	const char *dir = getenv("BH_TEST_PLUGINS");

	snprintf(path, sizeof(path), "%s/%s.so", dir ? dir : ".", name);
	return path;
}

static bool read_file(struct copy *copy, const char *path)
{
	FILE *file = fopen(path, "re");
	long size;

	if (!file)
		return false;
	fseek(file, 0, SEEK_END);
	size = ftell(file);
	rewind(file);
	copy->data = malloc((size_t)size);
	if (copy->data && fread(copy->data, 1, (size_t)size, file) == (size_t)size)
		copy->size = (size_t)size;
	fclose(file);
	return copy->size > 0;
}

static bool write_file(const char *path, const void *data, size_t size)
{
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
	bool done = fd >= 0 && write(fd, data, size) == (ssize_t)size;

	if (fd >= 0)
		close(fd);
	return done;
}

static void copy_init(struct copy *copy, const char *name)
{
	*copy = (struct copy){ .dir = "/tmp/bh-test-imports-XXXXXX" };
	CU_ASSERT_FATAL(read_file(copy, plugin_path(name)) && mkdtemp(copy->dir));
	snprintf(copy->file, sizeof(copy->file), "%s/p.so", copy->dir);
	CU_ASSERT_FATAL(write_file(copy->file, copy->data, copy->size));
}

static void copy_fini(struct copy *copy)
{
	unlink(copy->file);
	rmdir(copy->dir);
	free(copy->data);
}

static bool is_raw(const struct bh_imports *imports, const char *names)
{
	char text[320];

	bh_imports_list(imports, text, sizeof(text));
	return strcmp(text, names) == 0;
}

static void gil6_the_list_is_the_exports(void)
{
	char path[4096], line[64];
	const char *src = getenv("BH_TEST_SRCDIR");
	unsigned n = 0;
	FILE *list;

	snprintf(path, sizeof(path), "%s/host/gil/exports.list", src ? src : ".");
	list = fopen(path, "re");
	CU_ASSERT_PTR_NOT_NULL_FATAL(list);
	while (fgets(line, sizeof(line), list)) {
		line[strcspn(line, "\n")] = '\0';
		if (strcmp(line, "pthread_exit") == 0 || strcmp(line, "dlclose") == 0)
			continue;
		CU_ASSERT_PTR_NOT_NULL_FATAL(bh_imports_raw_name(n));
		CU_ASSERT_STRING_EQUAL(bh_imports_raw_name(n), line);
		n++;
	}
	CU_ASSERT_PTR_NULL(bh_imports_raw_name(n));
	fclose(list);
}

static void gil6_raw_imports_are_named(void)
{
	struct bh_imports imports = { 0 };
	struct bh_error err = { 0 };
	json_t *names;

	CU_ASSERT_EQUAL_FATAL(bh_imports_read(plugin_path("t_raw"), &imports, &err), 0);
	CU_ASSERT(is_raw(&imports, "PyGILState_Ensure PyGILState_Release"));
	CU_ASSERT_STRING_EQUAL(imports.libpython, "");
	names = bh_imports_render(&imports);
	CU_ASSERT_EQUAL_FATAL(json_array_size(names), 2);
	CU_ASSERT_STRING_EQUAL(json_string_value(json_array_get(names, 1)), "PyGILState_Release");
	json_decref(names);

	CU_ASSERT_EQUAL_FATAL(bh_imports_read(plugin_path("t_count"), &imports, &err), 0);
	CU_ASSERT(is_raw(&imports, ""));
	/* Names that are looked up at run time are in no table. */
	CU_ASSERT_EQUAL_FATAL(bh_imports_read(plugin_path("t_foreign"), &imports, &err), 0);
	CU_ASSERT(is_raw(&imports, ""));
}

static void gil6_long_lists_are_cut(void)
{
	const struct bh_imports all = { .raw = (1u << 10) - 1 };
	char whole[320], cut[40];

	bh_imports_list(&all, whole, sizeof(whole));
	CU_ASSERT(strstr(whole, "PyEval_AcquireThread ") == whole);
	CU_ASSERT(strlen(whole) < sizeof(whole) - 1);
	bh_imports_list(&all, cut, sizeof(cut));
	CU_ASSERT_EQUAL(strlen(cut), sizeof(cut) - 1);
	CU_ASSERT_EQUAL(strncmp(whole, cut, sizeof(cut) - 1), 0);
}

/* Called so that this very program needs the host's libpython: linkers leave out what is not used. */
extern const char *Py_GetVersion(void);

static void plg5_the_hosts_libpython_is_known(void)
{
	struct bh_imports imports = { 0 };
	struct bh_error err = { 0 };

	CU_ASSERT_EQUAL(strncmp(Py_GetVersion(), "3.", 2), 0);
	CU_ASSERT_EQUAL(strncmp(bh_imports_host_libpython(), "libpython3.", 11), 0);
	if (bh_imports_read("/proc/self/exe", &imports, &err) < 0)
		BH_SKIP("this program is not position-independent");
	CU_ASSERT_STRING_EQUAL(imports.libpython, bh_imports_host_libpython());
	CU_ASSERT_EQUAL(bh_imports_check(&imports, bh_imports_host_libpython(), &err), 0);
}

static void plg5_another_libpython_is_refused(void)
{
	struct bh_imports other = { .libpython = "libpython3.9.so.1.0" };
	struct bh_error err = { 0 };

	CU_ASSERT_EQUAL(bh_imports_check(&other, "libpython3.11.so.1.0", &err), -ENOEXEC);
	CU_ASSERT_STRING_EQUAL(err.id, "plugin.libpython");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "needs"), "libpython3.9.so.1.0");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "host"), "libpython3.11.so.1.0");
	CU_ASSERT_PTR_NOT_NULL(bh_error_fact(&err, "want"));
	other.libpython[0] = '\0';
	CU_ASSERT_EQUAL(bh_imports_check(&other, "libpython3.11.so.1.0", NULL), 0);
}

/* ---- a real one, cut and flipped ------------------------------------------------------------- */

static size_t judge(const char *path)
{
	struct bh_imports imports = { .raw = UINT32_MAX };
	struct bh_error err = { 0 };
	char text[320];

	if (bh_imports_read(path, &imports, &err) < 0)
		return imports.raw != UINT32_MAX || err.id[0] == '\0' ||
		       !bh_error_fact(&err, "path");
	bh_imports_list(&imports, text, sizeof(text));
	return imports.raw >= 1u << 10 ||
	       !memchr(imports.libpython, '\0', sizeof(imports.libpython));
}

static void plg5_survives_every_truncation(void)
{
	struct copy copy;
	size_t wrong = 0;

	copy_init(&copy, "t_raw");
	for (size_t size = copy.size; size-- > 0;) {
		if (truncate(copy.file, (off_t)size) < 0)
			break;
		wrong += judge(copy.file);
	}
	CU_ASSERT_EQUAL(wrong, 0);
	copy_fini(&copy);
}

/* Where the tables lie that are read: the front with its headers, symbols and strings, and the
 * dynamic section. */
static void find_parts(const struct copy *copy, size_t parts[2][2])
{
	ElfW(Ehdr) header;

	memcpy(&header, copy->data, sizeof(header));
	parts[0][0] = 0;
	parts[0][1] = copy->size < 2048 ? copy->size : 2048;
	for (unsigned i = 0; i < header.e_phnum; i++) {
		ElfW(Phdr) segment;

		memcpy(&segment, copy->data + header.e_phoff + i * sizeof(segment),
		       sizeof(segment));
		if (segment.p_type != PT_DYNAMIC)
			continue;
		parts[1][0] = segment.p_offset;
		parts[1][1] = segment.p_filesz;
	}
}

static uint32_t next_random(uint32_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	*seed ^= *seed << 5;
	return *seed;
}

static void flip(unsigned char *data, size_t size, uint32_t *seed)
{
	for (uint32_t i = next_random(seed) % 6 + 1; i > 0; i--)
		data[next_random(seed) % size] ^= (unsigned char)(1 + next_random(seed) % 255);
}

static void plg5_survives_flipped_bytes(void)
{
	size_t parts[2][2] = { { 0 } }, wrong = 0;
	uint32_t seed = 0x2545f491;
	struct copy copy;
	int fd;

	copy_init(&copy, "t_raw");
	find_parts(&copy, parts);
	CU_ASSERT_FATAL(parts[1][1] > 0);
	fd = open(copy.file, O_WRONLY | O_CLOEXEC);
	CU_ASSERT_FATAL(fd >= 0);
	for (int round = 0; round < 20000; round++) {
		size_t at = parts[round % 2][0], size = parts[round % 2][1];
		unsigned char part[4096];

		size = size < sizeof(part) ? size : sizeof(part);
		memcpy(part, copy.data + at, size);
		flip(part, size, &seed);
		wrong += pwrite(fd, part, size, (off_t)at) != (ssize_t)size;
		wrong += judge(copy.file);
		wrong += pwrite(fd, copy.data + at, size, (off_t)at) != (ssize_t)size;
	}
	CU_ASSERT_EQUAL(wrong, 0);
	close(fd);
	copy_fini(&copy);
}

static const struct bh_test tests[] = {
	{ "GIL-6: the names looked for are the interposed ones of Python's",
	  gil6_the_list_is_the_exports },
	{ "GIL-6: a plugin's raw imports are named", gil6_raw_imports_are_named },
	{ "GIL-6: a list that does not fit is cut", gil6_long_lists_are_cut },
	{ "PLG-5: the host's own libpython is known and is no fault",
	  plg5_the_hosts_libpython_is_known },
	{ "PLG-5: another libpython is refused with both names",
	  plg5_another_libpython_is_refused },
	{ "PLG-5: no truncated file is more than an error", plg5_survives_every_truncation },
	{ "PLG-5: no flipped byte is more than an error or another list",
	  plg5_survives_flipped_bytes },
};

BH_TAP_MAIN("imports", tests)
