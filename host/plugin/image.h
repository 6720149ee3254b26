/* SPDX-License-Identifier: BSD-3-Clause */
/* image - a shared object's file, read before anything of it is loaded.
 *
 * Reads by pread() at offsets that were compared with the file's size first, and maps nothing: a
 * file that shrinks meanwhile gives a short read, not a SIGBUS. It knows the program headers, which
 * the loader uses too; section headers may be stripped or lie.
 *
 * Thread: any; an image belongs to its holder. Owns: one descriptor. Survives hostile files. */
#ifndef BH_HOST_PLUGIN_IMAGE_H
#define BH_HOST_PLUGIN_IMAGE_H

#include <link.h>

#include "host/core/error.h"

struct bh_image {
	int fd; /* -1: not open */
	uint64_t size;
	ElfW(Ehdr) header;
};

/* Opens the file and checks its ELF header. Errors: note.open, note.not-elf, note.machine,
 * note.not-shared, note.damaged. On failure there is nothing to close. */
bh_status bh_image_open(struct bh_image *image, const char *path,
			struct bh_error *err) BH_MUST_CHECK;
void bh_image_close(struct bh_image *image);

bool bh_image_has(const struct bh_image *image, uint64_t offset, uint64_t length);
bool bh_image_read(const struct bh_image *image, void *to, size_t length, uint64_t offset);
/* The program header `i` < header.e_phnum. */
bool bh_image_segment(const struct bh_image *image, unsigned i, ElfW(Phdr) * ret_segment);
/* Raises note.damaged and returns its status. */
bh_status bh_image_damaged(struct bh_error *err, const char *what, uint64_t at);

#endif
