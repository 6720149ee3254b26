/* SPDX-License-Identifier: BSD-3-Clause */
/* fault - what went wrong, put in words; see transport.h.
 *
 * Thread: any; nothing is kept. */
#include "config.h"

#include "plugins/rdma/transport.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts off a last character that did not get all of its bytes; `text` is full. */
static void drop_half_character(char *text, size_t length)
{
	size_t begin = length;

	while (begin > 0 && ((unsigned char)text[begin - 1] & 0xc0) == 0x80)
		begin--;
	if (begin == 0)
		return;
	unsigned char lead = (unsigned char)text[--begin];
	size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;

	if (length - begin < need)
		text[begin] = '\0';
}

bh_status bh_rdma_fault(struct bh_rdma_fault *fault, bh_status status, const char *id,
			const char *format, ...)
{
	va_list arguments;
	int wanted;

	if (!fault)
		return status;
	memset(fault, 0, sizeof(*fault));
	snprintf(fault->id, sizeof(fault->id), "%s", id);
	va_start(arguments, format);
	wanted = vsnprintf(fault->text, sizeof(fault->text), format, arguments);
	va_end(arguments);
	if (wanted >= (int)sizeof(fault->text))
		drop_half_character(fault->text, sizeof(fault->text) - 1);
	return status;
}
