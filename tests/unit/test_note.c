/* SPDX-License-Identifier: BSD-3-Clause */
/* test_note - a plugin's note, read from whole, cut, broken and hostile files. */
#include "config.h"

#include "host/plugin/note.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/plugin/environment.h"
#include "tests/unit/tap.h"

struct bytes {
	unsigned char *data;
	size_t size;
};

/* A private folder with one file in it. */
struct place {
	char dir[64];
	char file[80];
};

static bool place_init(struct place *place)
{
	snprintf(place->dir, sizeof(place->dir), "/tmp/bh-test-note-XXXXXX");
	if (!mkdtemp(place->dir))
		return false;
	snprintf(place->file, sizeof(place->file), "%s/p.so", place->dir);
	return true;
}

static void place_fini(struct place *place)
{
	unlink(place->file);
	rmdir(place->dir);
}

static bool place_write(const struct place *place, const void *data, size_t size)
{
	int fd = open(place->file, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
	bool done = fd >= 0 && write(fd, data, size) == (ssize_t)size;

	if (fd >= 0)
		close(fd);
	return done;
}

static const char *plugin_path(const char *name)
{
	static char path[4096];
	const char *dir = getenv("BH_TEST_PLUGINS");

	snprintf(path, sizeof(path), "%s/%s.so", dir ? dir : ".", name);
	return path;
}

static struct bytes read_file(const char *path)
{
	struct bytes bytes = { NULL, 0 };
	FILE *file = fopen(path, "re");
	long size;

	if (!file)
		return bytes;
	fseek(file, 0, SEEK_END);
	size = ftell(file);
	rewind(file);
	bytes.data = malloc((size_t)size);
	if (bytes.data && fread(bytes.data, 1, (size_t)size, file) == (size_t)size)
		bytes.size = (size_t)size;
	fclose(file);
	return bytes;
}

static void assert_refused(const char *path, bh_status status, const char *id)
{
	struct bh_error err = { 0 };
	struct bh_note note;

	CU_ASSERT_EQUAL(bh_note_read(path, &note, &err), status);
	CU_ASSERT_STRING_EQUAL(err.id, id);
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "path"), path);
}

/* ---- whole files ---------------------------------------------------------------------------- */

static void plg2_reads_the_note(void)
{
	struct bh_error err = { 0 };
	struct bh_note note;

	CU_ASSERT_EQUAL_FATAL(bh_note_read(plugin_path("t_count"), &note, &err), 0);
	CU_ASSERT_STRING_EQUAL(note.label, "t_count");
	CU_ASSERT_STRING_EQUAL(note.version, "1.0");
	CU_ASSERT_EQUAL(note.abi, BH_ABI);
	CU_ASSERT_EQUAL(note.plugin_size, sizeof(struct bh_plugin));
	CU_ASSERT_EQUAL(bh_note_check(&note, &err), 0);
}

static void plg2_refuses_another_abi(void)
{
	struct bh_error err = { 0 };
	struct bh_note note;

	CU_ASSERT_EQUAL_FATAL(bh_note_read(plugin_path("bad_abi"), &note, &err), 0);
	CU_ASSERT_EQUAL(bh_note_check(&note, &err), -ENOEXEC);
	CU_ASSERT_STRING_EQUAL(err.id, "note.abi");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "have"), "2.0");
	CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "want"), "1.0 to 1.0");
}

static void plg2_checks_versions_and_names(void)
{
	static const struct {
		uint32_t abi;
		const char *label, *version, *id;
	} rows[] = {
		{ BH_ABI, "a", "1", NULL },
		{ BH_ABI, "tensor-stream_2", "1.0~rc1", NULL },
		{ BH_ABI_MAJOR << 16 | (BH_ABI_MINOR + 1), "a", "1", "note.abi" },
		{ 0, "a", "1", "note.abi" },
		{ UINT32_MAX, "a", "1", "note.abi" },
		{ BH_ABI, "", "1", "note.label" },
		{ BH_ABI, "Stream", "1", "note.label" },
		{ BH_ABI, "2fast", "1", "note.label" },
		{ BH_ABI, "a b", "1", "note.label" },
		{ BH_ABI, "a\n", "1", "note.label" },
		{ BH_ABI, "a", "", "note.version" },
		{ BH_ABI, "a", "1 0", "note.version" },
		{ BH_ABI, "a", "1\xc3\xa9", "note.version" },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_note note = { .abi = rows[i].abi };
		struct bh_error err = { 0 };
		bh_status st;

		snprintf(note.label, sizeof(note.label), "%s", rows[i].label);
		snprintf(note.version, sizeof(note.version), "%s", rows[i].version);
		st = bh_note_check(&note, &err);
		CU_ASSERT_EQUAL(st, rows[i].id ? -ENOEXEC : 0);
		CU_ASSERT_STRING_EQUAL(err.id, rows[i].id ? rows[i].id : "");
	}
}

static void plg2_refuses_what_is_no_plugin(void)
{
	struct place place;

	CU_ASSERT_FATAL(place_init(&place));
	assert_refused(plugin_path("not_plugin"), -ENOEXEC, "note.missing");
	assert_refused(place.file, -ENOENT, "note.open");
	assert_refused(place.dir, -ENOEXEC, "note.open");
	assert_refused("/dev/zero", -ENOEXEC, "note.open");
	CU_ASSERT_EQUAL_FATAL(mkfifo(place.file, 0600), 0);
	assert_refused(place.file, -ENOEXEC, "note.open");
	unlink(place.file);
	CU_ASSERT(place_write(&place, "", 0));
	assert_refused(place.file, -ENOEXEC, "note.not-elf");
	CU_ASSERT(place_write(&place, "#!/bin/sh\n", 10));
	assert_refused(place.file, -ENOEXEC, "note.not-elf");
	place_fini(&place);
}

/* ---- files made by hand --------------------------------------------------------------------- */

struct hand_made {
	ElfW(Ehdr) header;
	ElfW(Phdr) segments[2];
	struct bh_note notes[2];
};

static struct hand_made make_image(void)
{
	struct hand_made image = { 0 };
	struct bh_note note = {
		9, 64, BH_NOTE_TYPE, BH_NOTE_NAME, BH_ABI, sizeof(struct bh_plugin), "a", "1"
	};
	struct bytes real = read_file(plugin_path("t_count"));

	/* This machine's class, data and number, from a real one. */
	if (real.size > sizeof(image.header))
		memcpy(&image.header, real.data, sizeof(image.header));
	free(real.data);
	image.header.e_phoff = offsetof(struct hand_made, segments);
	image.header.e_phnum = 2;
	image.segments[0] = (ElfW(
		Phdr)){ .p_type = PT_LOAD, .p_filesz = sizeof(image), .p_memsz = sizeof(image) };
	image.segments[1] = (ElfW(Phdr)){ .p_type = PT_NOTE,
					  .p_offset = offsetof(struct hand_made, notes),
					  .p_filesz = sizeof(image.notes),
					  .p_align = 4 };
	image.notes[0] = note;
	image.notes[1] = note;
	memcpy(image.notes[1].name, "Elsewise", 9);
	return image;
}

static void write_image(const struct place *place, const struct hand_made *image)
{
	CU_ASSERT_FATAL(place_write(place, image, sizeof(*image)));
}

static void plg2_finds_it_among_others(void)
{
	struct hand_made image = make_image();
	struct bh_error err = { 0 };
	struct bh_note note;
	struct place place;

	CU_ASSERT_FATAL(place_init(&place));
	image.notes[1] = image.notes[0];
	memcpy(image.notes[0].name, "Elsewise", 9);
	strcpy(image.notes[1].label, "second");
	write_image(&place, &image);
	CU_ASSERT_EQUAL(bh_note_read(place.file, &note, &err), 0);
	CU_ASSERT_STRING_EQUAL(note.label, "second");
	CU_ASSERT_EQUAL(note.type, BH_NOTE_TYPE);
	place_fini(&place);
}

static void damage_machine(struct hand_made *image)
{
	image->header.e_machine ^= 0x7f;
}

static void damage_class(struct hand_made *image)
{
	image->header.e_ident[EI_CLASS] ^= 3;
}

static void damage_type(struct hand_made *image)
{
	image->header.e_type = ET_EXEC;
}

static void damage_phentsize(struct hand_made *image)
{
	image->header.e_phentsize--;
}

static void damage_phnum(struct hand_made *image)
{
	image->header.e_phnum = 0xffff;
}

static void damage_phoff(struct hand_made *image)
{
	image->header.e_phoff = UINT64_MAX - 8;
}

static void damage_load(struct hand_made *image)
{
	image->segments[0].p_filesz++;
}

static void damage_load_offset(struct hand_made *image)
{
	image->segments[0].p_offset = UINT64_MAX;
}

static void damage_note_segment(struct hand_made *image)
{
	image->segments[1].p_filesz = UINT64_MAX;
}

static void damage_namesz(struct hand_made *image)
{
	image->notes[0].namesz = UINT32_MAX;
}

static void damage_descsz(struct hand_made *image)
{
	image->notes[0].descsz = UINT32_MAX;
}

static void damage_desc_short(struct hand_made *image)
{
	image->notes[0].descsz = 60;
}

static void damage_two(struct hand_made *image)
{
	image->notes[1] = image->notes[0];
}

static void damage_name(struct hand_made *image)
{
	image->notes[0].name[0] = 'b';
}

static void damage_note_type(struct hand_made *image)
{
	image->notes[0].type = 3;
}

static void damage_label(struct hand_made *image)
{
	memset(image->notes[0].label, 'a', sizeof(image->notes[0].label));
}

static void damage_version(struct hand_made *image)
{
	memset(image->notes[0].version, '1', sizeof(image->notes[0].version));
}

static void plg2_refuses_hostile_files(void)
{
	static const struct {
		void (*damage)(struct hand_made *image);
		const char *id;
	} rows[] = {
		{ damage_machine, "note.machine" },
		{ damage_class, "note.machine" },
		{ damage_type, "note.not-shared" },
		{ damage_phentsize, "note.damaged" },
		{ damage_phnum, "note.damaged" },
		{ damage_phoff, "note.damaged" },
		{ damage_load, "note.damaged" },
		{ damage_load_offset, "note.damaged" },
		{ damage_note_segment, "note.damaged" },
		{ damage_namesz, "note.damaged" },
		{ damage_descsz, "note.damaged" },
		{ damage_desc_short, "note.damaged" },
		{ damage_two, "note.two" },
		{ damage_name, "note.missing" },
		{ damage_note_type, "note.missing" },
		{ damage_label, "note.damaged" },
		{ damage_version, "note.damaged" },
	};
	struct place place;

	CU_ASSERT_FATAL(place_init(&place));
	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct hand_made image = make_image();

		rows[i].damage(&image);
		write_image(&place, &image);
		assert_refused(place.file, -ENOEXEC, rows[i].id);
	}
	place_fini(&place);
}

/* A segment of empty notes asks for work in proportion to its size; that is bounded. */
static void plg2_bounds_the_work(void)
{
	struct hand_made image = make_image();
	size_t size = 4u << 20;
	unsigned char *file = calloc(1, size);
	struct place place;

	CU_ASSERT_FATAL(file && place_init(&place));
	image.segments[1].p_offset = sizeof(image);
	image.segments[1].p_filesz = size - sizeof(image);
	memcpy(file, &image, sizeof(image));
	CU_ASSERT(place_write(&place, file, size));
	assert_refused(place.file, -ENOEXEC, "note.damaged");
	free(file);
	place_fini(&place);
}

/* ---- a real one, cut and flipped ------------------------------------------------------------ */

/* Up to where the loader maps the file. */
static size_t mapped_size(const struct bytes *file)
{
	ElfW(Ehdr) header;
	size_t end = 0;

	memcpy(&header, file->data, sizeof(header));
	for (unsigned i = 0; i < header.e_phnum; i++) {
		ElfW(Phdr) segment;

		memcpy(&segment, file->data + header.e_phoff + i * sizeof(segment),
		       sizeof(segment));
		if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > end)
			end = segment.p_offset + segment.p_filesz;
	}
	return end;
}

static void plg5_refuses_every_truncation(void)
{
	struct bytes whole = read_file(plugin_path("t_count"));
	size_t needed, wrong = 0;
	struct place place;

	CU_ASSERT_FATAL(whole.size > 0 && place_init(&place));
	needed = mapped_size(&whole);
	CU_ASSERT_FATAL(needed > 0 && needed <= whole.size);
	CU_ASSERT(place_write(&place, whole.data, whole.size));
	for (size_t size = whole.size; size-- > 0;) {
		struct bh_note note;
		struct bh_error err = { 0 };
		bool taken;

		if (truncate(place.file, (off_t)size) < 0)
			break;
		taken = bh_note_read(place.file, &note, &err) == 0;
		wrong += taken != (size >= needed);
		wrong += taken ? strcmp(note.label, "t_count") != 0 : err.id[0] == '\0';
	}
	CU_ASSERT_EQUAL(wrong, 0);
	free(whole.data);
	place_fini(&place);
}

/* What is accepted can be given to dlopen, which a shorter file would make a SIGBUS of. */
static void plg5_the_shortest_accepted_one_loads(void)
{
	struct bytes whole = read_file(plugin_path("t_count"));
	struct bh_error err = { 0 };
	struct bh_note note;
	struct place place;
	void *library;

	CU_ASSERT_FATAL(whole.size > 0 && place_init(&place));
	CU_ASSERT(place_write(&place, whole.data, mapped_size(&whole)));
	CU_ASSERT_EQUAL(bh_note_read(place.file, &note, &err), 0);
	library = dlopen(place.file, RTLD_NOW | RTLD_LOCAL);
	CU_ASSERT_PTR_NOT_NULL(library);
	CU_ASSERT_PTR_NOT_NULL(library ? dlsym(library, "bh_plugin") : NULL);
	free(whole.data);
	place_fini(&place);
}

static uint32_t next_random(uint32_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 17;
	*seed ^= *seed << 5;
	return *seed;
}

/* Whatever the bytes: a refusal with an error, or a note whose text ends. */
static void plg2_survives_flipped_bytes(void)
{
	struct bytes whole = read_file(plugin_path("t_count"));
	uint32_t seed = 0x2545f491;
	size_t front, wrong = 0;
	struct place place;
	int fd;

	CU_ASSERT_FATAL(whole.size > 0 && place_init(&place));
	CU_ASSERT(place_write(&place, whole.data, whole.size));
	fd = open(place.file, O_WRONLY | O_CLOEXEC);
	CU_ASSERT_FATAL(fd >= 0);
	front = whole.size < 1024 ? whole.size : 1024; /* headers and notes lie there */
	for (int round = 0; round < 20000; round++) {
		unsigned char copy[1024];
		struct bh_error err = { 0 };
		struct bh_note note;

		memcpy(copy, whole.data, front);
		for (uint32_t i = next_random(&seed) % 6 + 1; i > 0; i--)
			copy[next_random(&seed) % front] ^=
				(unsigned char)(1 + next_random(&seed) % 255);
		wrong += pwrite(fd, copy, front, 0) != (ssize_t)front;
		if (bh_note_read(place.file, &note, &err) == 0)
			wrong += !memchr(note.label, 0, sizeof(note.label)) ||
				 !memchr(note.version, 0, sizeof(note.version));
		else
			wrong += err.id[0] == '\0' || !bh_error_fact(&err, "path");
	}
	CU_ASSERT_EQUAL(wrong, 0);
	close(fd);
	free(whole.data);
	place_fini(&place);
}

/* ---- the environment note --------------------------------------------------------------------- */

static void plg6_reads_the_environment(void)
{
	char text[BH_NOTE_ENV_MAX] = "?";
	struct bh_error err = { 0 };

	CU_ASSERT_EQUAL(bh_note_read_env(plugin_path("t_report"), text, &err), 0);
	CU_ASSERT_STRING_EQUAL(text, "T_REPORT_A=from the note\nT_REPORT_SHARED=first\n");
	CU_ASSERT_EQUAL(bh_note_read_env(plugin_path("t_report_twin"), text, &err), 0);
	CU_ASSERT_STRING_EQUAL(text, "T_REPORT_SHARED=second\nT_REPORT_B=twin's");
	CU_ASSERT_EQUAL(bh_note_read_env(plugin_path("t_count"), text, &err), 0);
	CU_ASSERT_STRING_EQUAL(text, "");
	CU_ASSERT_EQUAL(bh_note_read_env(plugin_path("not_plugin"), text, &err), -ENOEXEC);
	CU_ASSERT_STRING_EQUAL(err.id, "note.missing");
}

/* A file with a plugin's note, and two of the environment's. */
struct with_env {
	struct hand_made made;
	struct bh_note_env env[2];
};

static struct with_env make_with_env(void)
{
	struct with_env image = { .made = make_image() };
	const struct bh_note_env env = { 9, BH_NOTE_ENV_MAX, BH_NOTE_ENV_TYPE, BH_NOTE_NAME,
					 "A=1" };

	image.made.segments[0].p_filesz = image.made.segments[0].p_memsz = sizeof(image);
	image.made.segments[1].p_filesz = sizeof(image) - offsetof(struct with_env, made.notes);
	image.env[0] = image.env[1] = env;
	memcpy(image.env[1].name, "Elsewise", 9);
	return image;
}

static void env_fine(struct with_env *image)
{
	(void)image;
}

static void env_of_others(struct with_env *image)
{
	image->env[0].type = 9;
}

static void env_two(struct with_env *image)
{
	image->env[1] = image->env[0];
}

static void env_endless(struct with_env *image)
{
	memset(image->env[0].text, 'A', sizeof(image->env[0].text));
}

static void env_goes_on(struct with_env *image)
{
	image->env[0].text[BH_NOTE_ENV_MAX - 1] = 'x';
}

static void env_short(struct with_env *image)
{
	image->env[0].descsz = 128;
}

static void env_long(struct with_env *image)
{
	image->env[0].descsz = 260;
}

static void env_huge(struct with_env *image)
{
	image->env[0].descsz = UINT32_MAX;
}

static void plg2_refuses_hostile_environments(void)
{
	static const struct {
		void (*damage)(struct with_env *image);
		const char *id, *text;
	} rows[] = {
		{ env_fine, NULL, "A=1" },
		{ env_of_others, NULL, "" },
		{ env_two, "note.two-env", NULL },
		{ env_endless, "note.damaged", NULL },
		{ env_goes_on, "note.damaged", NULL },
		{ env_short, "note.damaged", NULL },
		{ env_long, "note.damaged", NULL },
		{ env_huge, "note.damaged", NULL },
	};
	struct place place;

	CU_ASSERT_FATAL(place_init(&place));
	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct with_env image = make_with_env();
		char text[BH_NOTE_ENV_MAX] = "?";
		struct bh_error err = { 0 };
		bh_status st;

		rows[i].damage(&image);
		CU_ASSERT_FATAL(place_write(&place, &image, sizeof(image)));
		st = bh_note_read_env(place.file, text, &err);
		CU_ASSERT_EQUAL(st, rows[i].id ? -ENOEXEC : 0);
		CU_ASSERT_STRING_EQUAL(err.id, rows[i].id ? rows[i].id : "");
		if (rows[i].text)
			CU_ASSERT_STRING_EQUAL(text, rows[i].text);
		if (rows[i].id)
			assert_refused(place.file, -ENOEXEC, rows[i].id);
	}
	place_fini(&place);
}

static void man1_lists_what_a_note_may_not_set(void)
{
	static const struct {
		const char *text, *faults, *says; /* NULL: it is in order */
	} rows[] = {
		{ "", NULL, NULL },
		{ "\n\n", NULL, NULL },
		{ "A=1", NULL, NULL },
		{ "_a9=", NULL, NULL },
		{ "UCX_TLS=tcp,self\nFI_PROVIDER=tcp;ofi_rxm\nLDX=a=b\nPATHS=/\n", NULL, NULL },
		{ "A", "1", "line 1: \"A\"; accepted: NAME=VALUE" },
		{ "A=1\n=2", "1", "line 2: the name \"\"" },
		{ "1A=1", "1", "line 1: the name \"1A\"" },
		{ " A=1", "1", "line 1: the name \" A\"" },
		{ "A B=1", "1", "line 1: the name \"A B\"" },
		{ "\xff\x1b=1", "1", "line 1: the name \"??\"" },
		{ "A=\xff", "1", "line 1: the value of A" },
		{ "A=1\tx", "1", "line 1: the value of A" },
		{ "A=1\r\n", "1", "line 1: the value of A" },
		{ "A=1\nB=1\n\nA=2", "1", "lines 1 and 4: both set A" },
		{ "LD_PRELOAD=/x", "1", "line 1: LD_PRELOAD is not a plugin's to set" },
		{ "GLIBC_TUNABLES=x", "1", "[host] env.GLIBC_TUNABLES in the manifest" },
		{ "MALLOC_ARENA_MAX=1", "1", "MALLOC_ARENA_MAX" },
		{ "PYTHONPATH=/x", "1", "PYTHONPATH is not" },
		{ "BULKHEAD_PACKAGE_DIR=/", "1", "BULKHEAD_PACKAGE_DIR is not" },
		{ "PATH=/x", "1", "PATH is not" },
		{ "HOME=/x", "1", "HOME is not" },
		{ "LC_ALL=C", "1", "LC_ALL is not" },
		{ "NOTIFY_SOCKET=/x", "1", "NOTIFY_SOCKET is not" },
		{ "RUNTIME_DIRECTORY=/x", "1", "RUNTIME_DIRECTORY is not" },
		{ "XDG_RUNTIME_DIR=/x", "1", "XDG_RUNTIME_DIR is not" },
		{ "LD_X=1\nB\n2=\nHOME=", "4", "line 3: the name \"2\"" },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_error err = { 0 };
		bh_status st = bh_environment_check(rows[i].text, &err);
		const char *list = bh_error_fact(&err, "list");

		CU_ASSERT_EQUAL(st, rows[i].faults ? -EINVAL : 0);
		if (!rows[i].faults)
			continue;
		CU_ASSERT_STRING_EQUAL(err.id, "note.environment");
		CU_ASSERT_STRING_EQUAL(bh_error_fact(&err, "faults"), rows[i].faults);
		CU_ASSERT_PTR_NOT_NULL_FATAL(list);
		if (!strstr(list, rows[i].says))
			printf("# wanted: %s; got: %s\n", rows[i].says, list);
		CU_ASSERT_PTR_NOT_NULL(strstr(list, rows[i].says));
	}
}

static void plg2_survives_flipped_environments(void)
{
	struct bytes whole = read_file(plugin_path("t_report"));
	uint32_t seed = 0x1234567;
	size_t front, wrong = 0, taken = 0;
	struct place place;
	int fd;

	CU_ASSERT_FATAL(whole.size > 0 && place_init(&place));
	CU_ASSERT(place_write(&place, whole.data, whole.size));
	fd = open(place.file, O_WRONLY | O_CLOEXEC);
	CU_ASSERT_FATAL(fd >= 0);
	front = whole.size < 1536 ? whole.size : 1536;
	for (int round = 0; round < 10000; round++) {
		unsigned char copy[1536];
		char text[BH_NOTE_ENV_MAX];
		struct bh_error err = { 0 };

		memcpy(copy, whole.data, front);
		for (uint32_t i = next_random(&seed) % 3 + 1; i > 0; i--)
			copy[next_random(&seed) % front] ^=
				(unsigned char)(1 + next_random(&seed) % 255);
		wrong += pwrite(fd, copy, front, 0) != (ssize_t)front;
		if (bh_note_read_env(place.file, text, &err) < 0) {
			wrong += err.id[0] == '\0' || !bh_error_fact(&err, "path");
			continue;
		}
		taken++;
		wrong += !memchr(text, 0, sizeof(text));
		if (bh_environment_check(text, &err) < 0)
			wrong += !bh_error_fact(&err, "list");
	}
	CU_ASSERT_EQUAL(wrong, 0);
	CU_ASSERT(taken > 1000);
	close(fd);
	free(whole.data);
	place_fini(&place);
}

static const struct bh_test tests[] = {
	{ "PLG-6: a plugin's environment is read from the file", plg6_reads_the_environment },
	{ "PLG-2: hostile environment notes are refused", plg2_refuses_hostile_environments },
	{ "MAN-1: all that a note may not set is listed", man1_lists_what_a_note_may_not_set },
	{ "PLG-2: flipped bytes give an error or an environment that ends",
	  plg2_survives_flipped_environments },
	{ "PLG-2: label, version, ABI and size are read from the file", plg2_reads_the_note },
	{ "PLG-2: another ABI is refused with both versions, before any code runs",
	  plg2_refuses_another_abi },
	{ "PLG-2: versions, label and version text are checked", plg2_checks_versions_and_names },
	{ "PLG-2: what is no plugin is refused by what it is", plg2_refuses_what_is_no_plugin },
	{ "PLG-2: the note is found among others", plg2_finds_it_among_others },
	{ "PLG-2: hostile files are refused", plg2_refuses_hostile_files },
	{ "PLG-2: a segment full of empty notes costs bounded work", plg2_bounds_the_work },
	{ "PLG-5: a file cut inside what the loader maps is refused, at every length",
	  plg5_refuses_every_truncation },
	{ "PLG-5: the shortest file that is accepted can be loaded",
	  plg5_the_shortest_accepted_one_loads },
	{ "PLG-2: flipped bytes give an error or a well-formed note", plg2_survives_flipped_bytes },
};

BH_TAP_MAIN("note", tests)
