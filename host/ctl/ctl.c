/* SPDX-License-Identifier: BSD-3-Clause */
/* ctl - what the files of bulkheadctl share: exit statuses and complaints. */
#include "config.h"

#include "host/ctl/ctl.h"

#include <stdarg.h>
#include <stdio.h>

void *bh_ctl_must(void *pointer)
{
	if (pointer)
		return pointer;
	fputs("bulkheadctl: out of memory\n", stderr);
	exit(BH_CTL_INTERNAL);
}

/* C0, DEL and C1 (which is 0xC2 and one byte more). */
void bh_ctl_defuse(char *text)
{
	for (unsigned char *byte = (unsigned char *)text; *byte; byte++) {
		if (*byte < 0x20 || *byte == 0x7F)
			*byte = '?';
		else if (byte[0] == 0xC2 && byte[1] >= 0x80 && byte[1] < 0xA0)
			byte[0] = byte[1] = '?';
	}
}

void bh_ctl_complain(const char *format, ...)
{
	bh_auto_mem char *text = NULL;
	va_list args;

	va_start(args, format);
	bh_ctl_must(vasprintf(&text, format, args) < 0 ? NULL : text);
	va_end(args);
	bh_ctl_defuse(text);
	fprintf(stderr, "bulkheadctl: %s\n", text);
}
