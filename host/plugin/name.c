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
