/* SPDX-License-Identifier: BSD-3-Clause */
/* note - see note.h.
 *
 * Reads by pread() at offsets that were compared with the file's size first, and maps nothing: a
 * file that shrinks meanwhile gives a short read, not a SIGBUS. It walks the program headers, which
 * the loader uses too; section headers may be stripped or lie.
 *
 * Thread: any. Owns: one descriptor during the call. Keeps: PLG-2, PLG-5 (docs/architecture.md). */
#include "config.h"

#include "host/plugin/note.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/plugin/name.h"

#if defined(__x86_64__)
#define NATIVE_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define NATIVE_MACHINE EM_AARCH64
#elif defined(__riscv)
#define NATIVE_MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define NATIVE_MACHINE EM_PPC64
#else
#error "name this machine's ELF number here"
#endif
#define NATIVE_CLASS (__ELF_NATIVE_CLASS == 64 ? ELFCLASS64 : ELFCLASS32)
#define NATIVE_DATA (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB)

/* Far more than any linker writes; they bound the work that a hostile file can ask for. */
#define SEGMENTS_MAX 512
#define NOTES_MAX 1024

#define NOTE_HEAD offsetof(struct bh_note, abi) /* header and padded name */
#define NOTE_DESC (sizeof(struct bh_note) - NOTE_HEAD)
static_assert(sizeof(ElfW(Nhdr)) == offsetof(struct bh_note, name),
	      "a note begins with its ELF header");

struct image {
	int fd;
	uint64_t size;
	unsigned n_notes; /* of any kind, seen so far */
	bool found;	  /* `note` is ours */
	struct bh_note note;
};

static void image_fini(struct image *image)
{
	if (image->fd >= 0)
		close(image->fd);
}

static bh_status damaged(struct bh_error *err, const char *what, uint64_t at)
{
	return bh_raise(err, -ENOEXEC, "note.damaged", BH_STR("reason", what), BH_INT("at", at),
			BH_STR("accepted", "a whole shared object, as the linker wrote it"));
}

static bool lies_within(const struct image *image, uint64_t offset, uint64_t length)
{
	return offset <= image->size && length <= image->size - offset;
}

static bool read_at(const struct image *image, void *to, size_t length, uint64_t offset)
{
	size_t done = 0;

	if (!lies_within(image, offset, length))
		return false;
	while (done < length) {
		off_t at = (off_t)(offset + done);
		ssize_t n = pread(image->fd, (char *)to + done, length - done, at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

static bh_status image_open(struct image *image, const char *path, struct bh_error *err)
{
	struct stat st;

	/* O_NONBLOCK: a FIFO without a writer must not hold us up before fstat() names it. */
	image->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (image->fd < 0)
		return bh_raise(err, -errno, "note.open", BH_STR("reason", strerrordesc_np(errno)));
	if (fstat(image->fd, &st) < 0)
		return bh_raise(err, -errno, "note.open", BH_STR("reason", strerrordesc_np(errno)));
	if (!S_ISREG(st.st_mode))
		return bh_raise(err, -ENOEXEC, "note.open", BH_STR("reason", "not a regular file"),
				BH_STR("accepted", "a shared object"));
	image->size = (uint64_t)st.st_size;
	return 0;
}

static bh_status check_header(const struct image *image, ElfW(Ehdr) * ret_header,
			      struct bh_error *err)
{
	ElfW(Ehdr) h;

	if (!read_at(image, &h, sizeof(h), 0) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
		return bh_raise(err, -ENOEXEC, "note.not-elf", BH_INT("bytes", image->size),
				BH_STR("accepted", "an ELF shared object"));
	if (h.e_ident[EI_CLASS] != NATIVE_CLASS || h.e_ident[EI_DATA] != NATIVE_DATA ||
	    h.e_machine != NATIVE_MACHINE)
		return bh_raise(err, -ENOEXEC, "note.machine", BH_INT("machine", h.e_machine),
				BH_INT("want", NATIVE_MACHINE),
				BH_STR("accepted", "a shared object built for this machine"));
	if (h.e_type != ET_DYN)
		return bh_raise(err, -ENOEXEC, "note.not-shared", BH_INT("type", h.e_type),
				BH_STR("accepted", "a shared object (linked with -shared)"));
	if (h.e_phentsize != sizeof(ElfW(Phdr)) || h.e_phnum == 0 || h.e_phnum > SEGMENTS_MAX)
		return damaged(err, "the program header table has an impossible size", h.e_phoff);
	if (!lies_within(image, h.e_phoff, (uint64_t)h.e_phnum * sizeof(ElfW(Phdr))))
		return damaged(err, "the program header table reaches past the end of the file",
			       h.e_phoff);
	*ret_header = h;
	return 0;
}

/* One note whose header is at `at`, of which `left` bytes of segment are left. Says where the next
 * begins. */
static bh_status read_note(struct image *image, uint64_t at, uint64_t left, uint64_t align,
			   uint64_t *ret_length, struct bh_error *err)
{
	ElfW(Nhdr) h;
	char name[sizeof(BH_NOTE_NAME)];
	uint64_t desc, end;

	if (++image->n_notes > NOTES_MAX)
		return damaged(err, "too many notes", at);
	if (!read_at(image, &h, sizeof(h), at))
		return damaged(err, "a note reaches past the end of the file", at);
	/* 32-bit sizes in 64-bit sums: nothing wraps. */
	desc = (sizeof(h) + (uint64_t)h.n_namesz + align - 1) & ~(align - 1);
	end = desc + h.n_descsz;
	if (end > left)
		return damaged(err, "a note reaches past its segment", at);
	end = (end + align - 1) & ~(align - 1);
	*ret_length = end < left ? end : left;

	if (h.n_type != BH_NOTE_TYPE || h.n_namesz != sizeof(name))
		return 0;
	if (!read_at(image, name, sizeof(name), at + sizeof(h)))
		return damaged(err, "a note reaches past the end of the file", at);
	if (memcmp(name, BH_NOTE_NAME, sizeof(name)) != 0)
		return 0;
	if (image->found)
		return bh_raise(err, -ENOEXEC, "note.two", BH_INT("at", at),
				BH_STR("accepted", "one BH_PLUGIN in a shared object"));
	if (h.n_descsz != NOTE_DESC || !read_at(image, &image->note.abi, NOTE_DESC, at + desc))
		return damaged(err, "the note has another length than it says or than this ABI's",
			       at);
	image->found = true;
	return 0;
}

static bh_status scan_notes(struct image *image, const ElfW(Phdr) * segment, struct bh_error *err)
{
	uint64_t align = segment->p_align == 8 ? 8 : 4, at = segment->p_offset,
		 left = segment->p_filesz;

	while (left >= sizeof(ElfW(Nhdr))) {
		uint64_t length = 0;
		bh_status st = read_note(image, at, left, align, &length, err);

		if (st < 0)
			return st;
		at += length;
		left -= length;
	}
	return 0;
}

static bh_status scan_segments(struct image *image, const ElfW(Ehdr) * header, struct bh_error *err)
{
	for (unsigned i = 0; i < header->e_phnum; i++) {
		ElfW(Phdr) segment;
		uint64_t at = header->e_phoff + i * sizeof(segment);
		bh_status st;

		if (!read_at(image, &segment, sizeof(segment), at))
			return damaged(err, "the program header table cannot be read", at);
		if (segment.p_type != PT_LOAD && segment.p_type != PT_NOTE &&
		    segment.p_type != PT_DYNAMIC)
			continue;
		/* PLG-5: the loader would map it all the same and the first touch would be a
		 * SIGBUS. */
		if (!lies_within(image, segment.p_offset, segment.p_filesz))
			return damaged(err, "a segment reaches past the end of the file",
				       segment.p_offset);
		if (segment.p_type != PT_NOTE)
			continue;
		st = scan_notes(image, &segment, err);
		if (st < 0)
			return st;
	}
	return 0;
}

static bh_status image_read(struct image *image, const char *path, struct bh_error *err)
{
	ElfW(Ehdr) header = { 0 };
	bh_status st;

	st = image_open(image, path, err);
	if (st == 0)
		st = check_header(image, &header, err);
	if (st == 0)
		st = scan_segments(image, &header, err);
	if (st < 0)
		return st;
	if (!image->found)
		return bh_raise(err, -ENOEXEC, "note.missing",
				BH_STR("accepted",
				       "a Bulkhead plugin: a shared object with one BH_PLUGIN"));
	if (!memchr(image->note.label, '\0', sizeof(image->note.label)) ||
	    !memchr(image->note.version, '\0', sizeof(image->note.version)))
		return damaged(err, "the note's text has no end", 0);
	return 0;
}

bh_status bh_note_read(const char *path, struct bh_note *ret_note, struct bh_error *err)
{
	struct image image = {
		.fd = -1,
		.note = { .namesz = sizeof(BH_NOTE_NAME),
			  .descsz = NOTE_DESC,
			  .type = BH_NOTE_TYPE,
			  .name = BH_NOTE_NAME },
	};
	bh_status st = image_read(&image, path, err);

	image_fini(&image);
	if (st < 0)
		return bh_note(err, st, BH_STR("path", path));
	*ret_note = image.note;
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
