/* SPDX-License-Identifier: BSD-3-Clause */
/* note - reads a plugin's ELF note from the file, before any of its code can run (PLG-2, PLG-5).
 *
 * Thread: any. Survives truncated and hostile files; refuses a file whose PT_LOAD segments reach
 * past its end, which dlopen would turn into a SIGBUS. */
#ifndef BH_HOST_PLUGIN_NOTE_H
#define BH_HOST_PLUGIN_NOTE_H

#include "host/core/error.h"

/* Errors: note.open, note.not-elf, note.machine, note.not-shared, note.damaged, note.missing,
 * note.two, note.abi (facts have, want) … each with path and what would be right. */
bh_status bh_note_read(const char *path, struct bh_note *ret_note,
		       struct bh_error *err) BH_MUST_CHECK;
/* The text of its BH_PLUGIN_ENV, of less than BH_NOTE_ENV_MAX bytes and ended; "" where it has none.
 * bh_environment_check() says whether it is in order. Errors as above, and note.two-env. */
bh_status bh_note_read_env(const char *path, char ret_text[BH_NOTE_ENV_MAX],
			   struct bh_error *err) BH_MUST_CHECK;
/* ABI major equal, minor not newer, label well formed. */
bh_status bh_note_check(const struct bh_note *note, struct bh_error *err) BH_MUST_CHECK;

#endif
