/* SPDX-License-Identifier: BSD-3-Clause */
/* name - see name.h. */
#include "config.h"

#include "host/plugin/name.h"

#include <string.h>

/* Python 3.11 to 3.13; the soft ones (match, case, type, _) may be used as names. */
static const char *const keywords[] = {
	"and",	  "as",	  "assert", "async",  "await",	"break",   "class",    "continue",
	"def",	  "del",  "elif",   "else",   "except", "finally", "for",      "from",
	"global", "if",	  "import", "in",     "is",	"lambda",  "nonlocal", "not",
	"or",	  "pass", "raise",  "return", "try",	"while",   "with",     "yield",
};

static const char *const call_options[] = { "timeout", "lane", "wait" };

static bool is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

bool bh_name_well_formed(const char *name, size_t size, bool dash)
{
	size_t i;

	if (!name || !is_lower(name[0]))
		return false;
	for (i = 1; name[i] && i < size; i++)
		if (!is_lower(name[i]) && !(name[i] >= '0' && name[i] <= '9') && name[i] != '_' &&
		    !(dash && name[i] == '-'))
			return false;
	return i < size;
}

bool bh_name_is_keyword(const char *name)
{
	return is_one_of(name, keywords, BH_ARRAY_LEN(keywords));
}

bool bh_name_is_call_option(const char *name)
{
	return is_one_of(name, call_options, BH_ARRAY_LEN(call_options));
}

/* Bytes of the sequence that begins with `lead`, 0 for a byte that begins none; `ret_low` and
 * `ret_high` bound the second byte, which is where overlong forms, surrogates and too large numbers
 * show. */
static size_t utf8_sequence(unsigned char lead, unsigned char *ret_low, unsigned char *ret_high)
{
	*ret_low = 0x80;
	*ret_high = 0xbf;
	if (lead < 0x80)
		return 1;
	if (lead >= 0xc2 && lead <= 0xdf)
		return 2;
	if (lead >= 0xe0 && lead <= 0xef) {
		*ret_low = lead == 0xe0 ? 0xa0 : 0x80;
		*ret_high = lead == 0xed ? 0x9f : 0xbf;
		return 3;
	}
	if (lead >= 0xf0 && lead <= 0xf4) {
		*ret_low = lead == 0xf0 ? 0x90 : 0x80;
		*ret_high = lead == 0xf4 ? 0x8f : 0xbf;
		return 4;
	}
	return 0;
}

bool bh_utf8_valid(const char *text, size_t length)
{
	const unsigned char *p = (const unsigned char *)text, *end = p + length;

	while (p < end) {
		unsigned char low, high;
		size_t n = utf8_sequence(*p, &low, &high);

		if (n == 0 || n > (size_t)(end - p))
			return false;
		if (n > 1 && (p[1] < low || p[1] > high))
			return false;
		for (size_t i = 2; i < n; i++)
			if ((p[i] & 0xc0) != 0x80)
				return false;
		p += n;
	}
	return true;
}
