/* SPDX-License-Identifier: BSD-3-Clause */
/* imports - what a plugin's file asks the loader for, as far as the GIL is concerned: the raw
 * functions of Python's C API that the host interposes (GIL-6), and a libpython (PLG-5).
 *
 * Read from the file before dlopen, so that it can still be refused. It sees what the dynamic
 * symbol table names; what is looked up by dlsym at run time is in no table.
 *
 * Thread: any. Survives truncated and hostile files. */
#ifndef BH_HOST_PLUGIN_IMPORTS_H
#define BH_HOST_PLUGIN_IMPORTS_H

#include <jansson.h>

#include "host/core/error.h"

#define BH_IMPORTS_SONAME_MAX 64

struct bh_imports {
	uint32_t raw;			       /* a bit for each name of bh_imports_raw_name() */
	char libpython[BH_IMPORTS_SONAME_MAX]; /* the first one that is needed; "" none */
};

/* The interposed names of Python's, in exports.list's order; NULL past the last one. */
const char *bh_imports_raw_name(unsigned i);

/* Errors: those of bh_image_open(), note.damaged; with path. */
bh_status bh_imports_read(const char *path, struct bh_imports *ret_imports,
			  struct bh_error *err) BH_MUST_CHECK;
/* The SONAME of the libpython that the executable is linked with; "" when it is linked with none.
 * For good. */
const char *bh_imports_host_libpython(void);
/* A second interpreter's library in this process would end it sooner or later: plugin.libpython
 * with what is needed and what the host has. The host's own is no fault, nor is none. */
bh_status bh_imports_check(const struct bh_imports *imports, const char *host_libpython,
			   struct bh_error *err) BH_MUST_CHECK;

/* "PyGILState_Ensure PyGILState_Release", cut at `size`. */
void bh_imports_list(const struct bh_imports *imports, char *out, size_t size);
json_t *bh_imports_render(const struct bh_imports *imports); /* the names; NULL without memory */

#endif
