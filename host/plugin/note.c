/* SPDX-License-Identifier: BSD-3-Clause */
/* note - see note.h.
 *
 * Thread: any. Owns: one image during the call. Keeps: PLG-2, PLG-5 (docs/architecture.md). */
#include "config.h"

#include "host/plugin/note.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "host/plugin/image.h"
#include "host/plugin/name.h"

/* Far more than any linker writes; it bounds the work that a hostile file can ask for. */
#define NOTES_MAX 1024

#define NOTE_HEAD offsetof(struct bh_note, abi) /* header and padded name */
#define NOTE_DESC (sizeof(struct bh_note) - NOTE_HEAD)
static_assert(sizeof(((struct bh_note_env *)0)->text) == BH_NOTE_ENV_MAX,
	      "the text is the whole of the descriptor");
static_assert(sizeof(ElfW(Nhdr)) == offsetof(struct bh_note, name),
	      "a note begins with its ELF header");

struct reading {
	struct bh_image image;
	unsigned n_notes; /* of any kind, seen so far */
	bool found;	  /* `note` is ours */
	struct bh_note note;
	bool found_env;
	char env[BH_NOTE_ENV_MAX];
};

/* Text behind its end would be text that nobody sees (MAN-3). */
static bool is_text(const char env[BH_NOTE_ENV_MAX])
{
	size_t length = strnlen(env, BH_NOTE_ENV_MAX);

	for (size_t i = length; i < BH_NOTE_ENV_MAX; i++)
		if (env[i] != '\0')
			return false;
	return length < BH_NOTE_ENV_MAX;
}

static bh_status take_env(struct reading *r, uint64_t length, uint64_t at, uint64_t desc,
			  struct bh_error *err)
{
	if (r->found_env)
		return bh_raise(err, -ENOEXEC, "note.two-env", BH_INT("at", at),
				BH_STR("accepted", "one BH_PLUGIN_ENV in a shared object"));
	if (length != sizeof(r->env) ||
	    !bh_image_read(&r->image, r->env, sizeof(r->env), at + desc))
		return bh_image_damaged(
			err,
			"the environment note has another length than it says or than this ABI's",
			at);
	if (!is_text(r->env))
		return bh_image_damaged(
			err, "the environment note's text has no end, or goes on behind it", at);
	r->found_env = true;
	return 0;
}

/* One note whose header is at `at`, of which `left` bytes of segment are left. Says where the next
 * begins. */
static bh_status read_note(struct reading *r, uint64_t at, uint64_t left, uint64_t align,
			   uint64_t *ret_length, struct bh_error *err)
{
	ElfW(Nhdr) h;
	char name[sizeof(BH_NOTE_NAME)];
	uint64_t desc, end;

	if (++r->n_notes > NOTES_MAX)
		return bh_image_damaged(err, "too many notes", at);
	if (!bh_image_read(&r->image, &h, sizeof(h), at))
		return bh_image_damaged(err, "a note reaches past the end of the file", at);
	/* 32-bit sizes in 64-bit sums: nothing wraps. */
	desc = (sizeof(h) + (uint64_t)h.n_namesz + align - 1) & ~(align - 1);
	end = desc + h.n_descsz;
	if (end > left)
		return bh_image_damaged(err, "a note reaches past its segment", at);
	end = (end + align - 1) & ~(align - 1);
	*ret_length = end < left ? end : left;

	if ((h.n_type != BH_NOTE_TYPE && h.n_type != BH_NOTE_ENV_TYPE) ||
	    h.n_namesz != sizeof(name))
		return 0;
	if (!bh_image_read(&r->image, name, sizeof(name), at + sizeof(h)))
		return bh_image_damaged(err, "a note reaches past the end of the file", at);
	if (memcmp(name, BH_NOTE_NAME, sizeof(name)) != 0)
		return 0;
	if (h.n_type == BH_NOTE_ENV_TYPE)
		return take_env(r, h.n_descsz, at, desc, err);
	if (r->found)
		return bh_raise(err, -ENOEXEC, "note.two", BH_INT("at", at),
				BH_STR("accepted", "one BH_PLUGIN in a shared object"));
	if (h.n_descsz != NOTE_DESC ||
	    !bh_image_read(&r->image, &r->note.abi, NOTE_DESC, at + desc))
		return bh_image_damaged(
			err, "the note has another length than it says or than this ABI's", at);
	r->found = true;
	return 0;
}

static bh_status scan_notes(struct reading *r, const ElfW(Phdr) * segment, struct bh_error *err)
{
	uint64_t align = segment->p_align == 8 ? 8 : 4, at = segment->p_offset,
		 left = segment->p_filesz;

	while (left >= sizeof(ElfW(Nhdr))) {
		uint64_t length = 0;
		bh_status st = read_note(r, at, left, align, &length, err);

		if (st < 0)
			return st;
		at += length;
		left -= length;
	}
	return 0;
}

static bh_status scan_segments(struct reading *r, struct bh_error *err)
{
	for (unsigned i = 0; i < r->image.header.e_phnum; i++) {
		ElfW(Phdr) segment;
		bh_status st;

		if (!bh_image_segment(&r->image, i, &segment))
			return bh_image_damaged(err, "the program header table cannot be read",
						r->image.header.e_phoff);
		if (segment.p_type != PT_LOAD && segment.p_type != PT_NOTE &&
		    segment.p_type != PT_DYNAMIC)
			continue;
		/* PLG-5: the loader would map it all the same and the first touch would be a
		 * SIGBUS. */
		if (!bh_image_has(&r->image, segment.p_offset, segment.p_filesz))
			return bh_image_damaged(err, "a segment reaches past the end of the file",
						segment.p_offset);
		if (segment.p_type != PT_NOTE)
			continue;
		st = scan_notes(r, &segment, err);
		if (st < 0)
			return st;
	}
	return 0;
}

static bh_status read_image(struct reading *r, const char *path, struct bh_error *err)
{
	bh_status st;

	st = bh_image_open(&r->image, path, err);
	if (st < 0)
		return st;
	st = scan_segments(r, err);
	bh_image_close(&r->image);
	if (st < 0)
		return st;
	if (!r->found)
		return bh_raise(err, -ENOEXEC, "note.missing",
				BH_STR("accepted",
				       "a Bulkhead plugin: a shared object with one BH_PLUGIN"));
	if (!memchr(r->note.label, '\0', sizeof(r->note.label)) ||
	    !memchr(r->note.version, '\0', sizeof(r->note.version)))
		return bh_image_damaged(err, "the note's text has no end", 0);
	return 0;
}

bh_status bh_note_read(const char *path, struct bh_note *ret_note, struct bh_error *err)
{
	struct reading reading = {
		.note = { .namesz = sizeof(BH_NOTE_NAME),
			  .descsz = NOTE_DESC,
			  .type = BH_NOTE_TYPE,
			  .name = BH_NOTE_NAME },
	};
	bh_status st = read_image(&reading, path, err);

	if (st < 0)
		return bh_note(err, st, BH_STR("path", path));
	*ret_note = reading.note;
	return 0;
}

bh_status bh_note_read_env(const char *path, char ret_text[BH_NOTE_ENV_MAX], struct bh_error *err)
{
	struct reading reading = { .found = false };
	bh_status st = read_image(&reading, path, err);

	if (st < 0)
		return bh_note(err, st, BH_STR("path", path));
	memcpy(ret_text, reading.env, sizeof(reading.env));
	return 0;
}

static bh_status check_abi(uint32_t abi, struct bh_error *err)
{
	char have[24], want[40];

	if (abi >> 16 == BH_ABI_MAJOR && (abi & 0xffff) <= BH_ABI_MINOR)
		return 0;
	snprintf(have, sizeof(have), "%u.%u", abi >> 16, abi & 0xffff);
	snprintf(want, sizeof(want), "%u.0 to %u.%u", BH_ABI_MAJOR, BH_ABI_MAJOR, BH_ABI_MINOR);
	return bh_raise(err, -ENOEXEC, "note.abi", BH_STR("have", have), BH_STR("want", want),
			BH_STR("accepted", "a plugin built against this host's bulkhead/plugin.h"));
}

static bool version_well_formed(const char *version)
{
	for (const char *p = version; *p; p++)
		if (*p <= ' ' || *p > '~')
			return false;
	return version[0] != '\0';
}

bh_status bh_note_check(const struct bh_note *note, struct bh_error *err)
{
	bh_status st = check_abi(note->abi, err);

	if (st < 0)
		return st;
	if (!bh_name_well_formed(note->label, sizeof(note->label), true))
		return bh_raise(err, -ENOEXEC, "note.label",
				BH_STR("accepted", "[a-z][a-z0-9_-]*, at most 31 bytes"));
	if (!version_well_formed(note->version))
		return bh_raise(
			err, -ENOEXEC, "note.version",
			BH_STR("accepted", "printable ASCII without blanks, at most 23 bytes"));
	return 0;
}
