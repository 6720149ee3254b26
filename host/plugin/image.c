/* SPDX-License-Identifier: BSD-3-Clause */
/* image - see image.h. */
#include "config.h"

#include "host/plugin/image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Far more than any linker writes. */
#define SEGMENTS_MAX 512

bh_status bh_image_damaged(struct bh_error *err, const char *what, uint64_t at)
{
	return bh_raise(err, -ENOEXEC, "note.damaged", BH_STR("reason", what), BH_INT("at", at),
			BH_STR("accepted", "a whole shared object, as the linker wrote it"));
}

bool bh_image_has(const struct bh_image *image, uint64_t offset, uint64_t length)
{
	return offset <= image->size && length <= image->size - offset;
}

bool bh_image_read(const struct bh_image *image, void *to, size_t length, uint64_t offset)
{
	size_t done = 0;

	if (!bh_image_has(image, offset, length))
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

static bh_status open_file(struct bh_image *image, const char *path, struct bh_error *err)
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

static bh_status read_header(struct bh_image *image, struct bh_error *err)
{
	ElfW(Ehdr) h;

	if (!bh_image_read(image, &h, sizeof(h), 0) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
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
		return bh_image_damaged(err, "the program header table has an impossible size",
					h.e_phoff);
	if (!bh_image_has(image, h.e_phoff, (uint64_t)h.e_phnum * sizeof(ElfW(Phdr))))
		return bh_image_damaged(err,
					"the program header table reaches past the end of the file",
					h.e_phoff);
	image->header = h;
	return 0;
}

bh_status bh_image_open(struct bh_image *image, const char *path, struct bh_error *err)
{
	bh_status st;

	*image = (struct bh_image){ .fd = -1 };
	st = open_file(image, path, err);
	if (st == 0)
		st = read_header(image, err);
	if (st < 0)
		bh_image_close(image);
	return st;
}

void bh_image_close(struct bh_image *image)
{
	if (image->fd >= 0)
		close(image->fd);
	image->fd = -1;
}

bool bh_image_segment(const struct bh_image *image, unsigned i, ElfW(Phdr) * ret_segment)
{
	return bh_image_read(image, ret_segment, sizeof(*ret_segment),
			     image->header.e_phoff + i * sizeof(*ret_segment));
}
