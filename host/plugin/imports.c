/* SPDX-License-Identifier: BSD-3-Clause */
/* imports - see imports.h.
 *
 * The dynamic section gives addresses; the segments say where in the file they lie. Undefined
 * symbols are the ones below the first that a GNU hash table knows; an old hash table counts them
 * all. A file whose tables lie outside of it is refused: the loader would follow them.
 *
 * Owns: one image and one copy of the string table during the call. Keeps: GIL-6, PLG-5. */
#include "config.h"

#include "host/plugin/imports.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/plugin/image.h"

/* host/gil/exports.list without what is not Python's. A test compares the two. */
static const char *const raw_names[] = {
	"PyEval_AcquireThread", "PyEval_ReleaseThread",	       "PyEval_RestoreThread",
	"PyEval_SaveThread",	"PyGILState_Ensure",	       "PyGILState_Release",
	"PyThreadState_Delete", "PyThreadState_DeleteCurrent", "PyThreadState_New",
	"PyThreadState_Swap",
};
static_assert(BH_ARRAY_LEN(raw_names) <= 32, "struct bh_imports has a bit for each");

/* Far more than any linker writes; they bound the work that a hostile file can ask for. */
#define DYNAMIC_MAX 4096u
#define STRINGS_MAX (64u << 20)
#define SYMBOLS_MAX (1u << 20)
#define SYMBOLS_AT_ONCE 128u

struct tables {
	uint64_t strings, strings_size, symbols, hash, gnu_hash; /* addresses; 0: none */
	unsigned n_dynamic;
	ElfW(Dyn) dynamic[DYNAMIC_MAX];
};

struct reading {
	struct bh_image image;
	struct tables tables;
	char *strings; /* owned; strings_size bytes and a NUL */
};

const char *bh_imports_raw_name(unsigned i)
{
	return i < BH_ARRAY_LEN(raw_names) ? raw_names[i] : NULL;
}

/* ---- the dynamic section --------------------------------------------------------------------- */

/* Where the byte at `address` lies in the file, if `length` bytes from there on do. */
static bool find_address(const struct bh_image *image, uint64_t address, uint64_t length,
			 uint64_t *ret_offset)
{
	for (unsigned i = 0; i < image->header.e_phnum; i++) {
		ElfW(Phdr) s;

		if (!bh_image_segment(image, i, &s))
			return false;
		if (s.p_type != PT_LOAD || address < s.p_vaddr ||
		    address - s.p_vaddr > s.p_filesz ||
		    length > s.p_filesz - (address - s.p_vaddr) ||
		    !bh_image_has(image, s.p_offset, s.p_filesz))
			continue;
		*ret_offset = s.p_offset + (address - s.p_vaddr);
		return true;
	}
	return false;
}

static void take_entry(struct tables *t, const ElfW(Dyn) * entry)
{
	switch (entry->d_tag) {
	case DT_STRTAB:
		t->strings = entry->d_un.d_ptr;
		break;
	case DT_STRSZ:
		t->strings_size = entry->d_un.d_val;
		break;
	case DT_SYMTAB:
		t->symbols = entry->d_un.d_ptr;
		break;
	case DT_HASH:
		t->hash = entry->d_un.d_ptr;
		break;
	case DT_GNU_HASH:
		t->gnu_hash = entry->d_un.d_ptr;
		break;
	default: /* the other tags are no business of ours */
		break;
	}
}

static bh_status read_dynamic(struct reading *r, const ElfW(Phdr) * segment, struct bh_error *err)
{
	struct tables *t = &r->tables;
	uint64_t n = segment->p_filesz / sizeof(ElfW(Dyn));

	if (n > DYNAMIC_MAX)
		return bh_image_damaged(err, "the dynamic section has an impossible size",
					segment->p_offset);
	if (!bh_image_read(&r->image, t->dynamic, n * sizeof(ElfW(Dyn)), segment->p_offset))
		return bh_image_damaged(err, "the dynamic section cannot be read",
					segment->p_offset);
	for (t->n_dynamic = 0; t->n_dynamic < n; t->n_dynamic++) {
		if (t->dynamic[t->n_dynamic].d_tag == DT_NULL)
			break;
		take_entry(t, &t->dynamic[t->n_dynamic]);
	}
	return 0;
}

static bh_status find_dynamic(struct reading *r, struct bh_error *err)
{
	for (unsigned i = 0; i < r->image.header.e_phnum; i++) {
		ElfW(Phdr) segment;

		if (!bh_image_segment(&r->image, i, &segment))
			return bh_image_damaged(err, "the program header table cannot be read",
						r->image.header.e_phoff);
		if (segment.p_type == PT_DYNAMIC)
			return read_dynamic(r, &segment, err);
	}
	return 0; /* such a file asks for nothing, and dlopen will say what it lacks */
}

static bh_status read_strings(struct reading *r, struct bh_error *err)
{
	const struct tables *t = &r->tables;
	uint64_t at = 0;

	if (t->strings_size > STRINGS_MAX ||
	    !find_address(&r->image, t->strings, t->strings_size, &at))
		return bh_image_damaged(err, "the string table lies outside of the file",
					t->strings);
	r->strings = calloc(1, t->strings_size + 1);
	if (!r->strings)
		return bh_raise(err, -ENOMEM, "note.alloc");
	if (!bh_image_read(&r->image, r->strings, t->strings_size, at))
		return bh_image_damaged(err, "the string table cannot be read", at);
	return 0;
}

/* "" where there is none: such a name is nobody's. */
static const char *string_at(const struct reading *r, uint64_t offset)
{
	return offset < r->tables.strings_size ? r->strings + offset : "";
}

/* ---- what is needed, and what is undefined --------------------------------------------------- */

static void find_libpython(const struct reading *r, struct bh_imports *imports)
{
	for (unsigned i = 0; i < r->tables.n_dynamic; i++) {
		const ElfW(Dyn) *entry = &r->tables.dynamic[i];
		const char *name;

		if (entry->d_tag != DT_NEEDED)
			continue;
		name = string_at(r, entry->d_un.d_val);
		if (strncmp(name, "libpython", 9) != 0)
			continue;
		snprintf(imports->libpython, sizeof(imports->libpython), "%s", name);
		return;
	}
}

/* How many symbols of the table there are to look at. */
static bh_status count_symbols(const struct reading *r, uint32_t *ret_n, struct bh_error *err)
{
	const struct tables *t = &r->tables;
	/* GNU: buckets, first symbol known, …; System V: buckets, symbols, … */
	uint64_t table = t->gnu_hash ? t->gnu_hash : t->hash, at = 0;
	uint32_t head[2];

	*ret_n = 0;
	if (!table || !t->symbols)
		return 0;
	if (!find_address(&r->image, table, sizeof(head), &at) ||
	    !bh_image_read(&r->image, head, sizeof(head), at))
		return bh_image_damaged(err, "the hash table lies outside of the file", table);
	if (head[1] > SYMBOLS_MAX)
		return bh_image_damaged(err, "the symbol table has an impossible size", at);
	*ret_n = head[1];
	return 0;
}

static void take_symbol(const struct reading *r, const ElfW(Sym) * symbol,
			struct bh_imports *imports)
{
	const char *name;

	if (symbol->st_shndx != SHN_UNDEF)
		return;
	name = string_at(r, symbol->st_name);
	if (name[0] != 'P' || name[1] != 'y')
		return;
	for (unsigned i = 0; i < BH_ARRAY_LEN(raw_names); i++)
		if (strcmp(name, raw_names[i]) == 0)
			imports->raw |= 1u << i;
}

static bh_status find_raw(const struct reading *r, struct bh_imports *imports, struct bh_error *err)
{
	ElfW(Sym) symbols[SYMBOLS_AT_ONCE];
	uint64_t at = 0;
	uint32_t n = 0;
	bh_status st;

	st = count_symbols(r, &n, err);
	if (st < 0 || n == 0)
		return st;
	if (!find_address(&r->image, r->tables.symbols, (uint64_t)n * sizeof(*symbols), &at))
		return bh_image_damaged(err, "the symbol table lies outside of the file",
					r->tables.symbols);
	for (uint32_t i = 0; i < n; i += SYMBOLS_AT_ONCE) {
		uint32_t some = n - i < SYMBOLS_AT_ONCE ? n - i : SYMBOLS_AT_ONCE;

		if (!bh_image_read(&r->image, symbols, some * sizeof(*symbols),
				   at + (uint64_t)i * sizeof(*symbols)))
			return bh_image_damaged(err, "the symbol table cannot be read", at);
		for (uint32_t k = 0; k < some; k++)
			take_symbol(r, &symbols[k], imports);
	}
	return 0;
}

static bh_status read_tables(struct reading *r, struct bh_imports *imports, struct bh_error *err)
{
	bh_status st;

	st = find_dynamic(r, err);
	if (st < 0 || r->tables.n_dynamic == 0)
		return st;
	st = read_strings(r, err);
	if (st < 0)
		return st;
	find_libpython(r, imports);
	return find_raw(r, imports, err);
}

bh_status bh_imports_read(const char *path, struct bh_imports *ret_imports, struct bh_error *err)
{
	bh_auto_mem struct reading *r = calloc(1, sizeof(*r)); /* too large for a small stack */
	struct bh_imports imports = { 0 };
	bh_status st;

	if (!r)
		return bh_raise(err, -ENOMEM, "note.alloc");
	st = bh_image_open(&r->image, path, err);
	if (st == 0) {
		st = read_tables(r, &imports, err);
		bh_image_close(&r->image);
		free(r->strings);
	}
	if (st < 0)
		return bh_note(err, st, BH_STR("path", path));
	*ret_imports = imports;
	return 0;
}

/* ---- the host's libpython -------------------------------------------------------------------- */

/* Libraries come in load order, so the first is the executable's own, whatever came in later. */
static int find_loaded_libpython(struct dl_phdr_info *object, size_t size, void *ret)
{
	const char *slash = object->dlpi_name ? strrchr(object->dlpi_name, '/') : NULL;
	const char *name = slash ? slash + 1 : object->dlpi_name;

	(void)size;
	if (!name || strncmp(name, "libpython", 9) != 0)
		return 0;
	*(const char **)ret = name;
	return 1;
}

const char *bh_imports_host_libpython(void)
{
	const char *name = ""; /* the loader keeps its own for as long as the library */

	dl_iterate_phdr(find_loaded_libpython, &name);
	return name;
}

bh_status bh_imports_check(const struct bh_imports *imports, const char *host_libpython,
			   struct bh_error *err)
{
	if (!imports->libpython[0] || strcmp(imports->libpython, host_libpython) == 0)
		return 0;
	return bh_raise(err, -ENOEXEC, "plugin.libpython", BH_STR("needs", imports->libpython),
			BH_STR("host", host_libpython),
			BH_STR("want", "a plugin that is not linked with a libpython: the host "
				       "brings Python's functions"));
}

/* ---- showing --------------------------------------------------------------------------------- */

void bh_imports_list(const struct bh_imports *imports, char *out, size_t size)
{
	size_t used = 0;

	out[0] = '\0';
	for (unsigned i = 0; i < BH_ARRAY_LEN(raw_names) && used < size; i++)
		if (imports->raw & 1u << i)
			used += (size_t)snprintf(out + used, size - used, "%s%s", used ? " " : "",
						 raw_names[i]);
}

json_t *bh_imports_render(const struct bh_imports *imports)
{
	json_t *names = json_array();

	for (unsigned i = 0; names && i < BH_ARRAY_LEN(raw_names); i++)
		if (imports->raw & 1u << i &&
		    json_array_append_new(names, json_string(raw_names[i])) < 0) {
			json_decref(names);
			return NULL;
		}
	return names;
}
