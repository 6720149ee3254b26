/* SPDX-License-Identifier: BSD-3-Clause */
/* faults - see faults.h. */
#include "config.h"

#include "host/plugin/faults.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "host/core/log.h"

/* Leaves room in the error for the facts that callers add: path, label, file, line. */
#define LIST_MAX ((size_t)640)

void bh_faults_add(struct bh_faults *faults, const char *format, ...)
{
	bh_auto_mem char *line = NULL;
	size_t length;
	va_list ap;
	char *text;
	int n;

	faults->n++;
	va_start(ap, format);
	n = vasprintf(&line, format, ap);
	va_end(ap);
	if (n < 0) {
		line = NULL; /* left undefined by vasprintf */
		return;
	}
	length = (size_t)n;
	text = realloc(faults->text, faults->length + length + 2);
	if (!text)
		return;
	memcpy(text + faults->length, line, length);
	memcpy(text + faults->length + length, "\n", 2);
	faults->text = text;
	faults->length += length + 1;
}

void bh_faults_fini(struct bh_faults *faults)
{
	free(faults->text);
	*faults = (struct bh_faults){ 0 };
}

/* Copies whole lines as long as they fit, joined by "; "; returns where the rest begins. */
static const char *join_lines(const char *text, char *list, size_t size)
{
	size_t used = 0;

	while (*text) {
		size_t length = strcspn(text, "\n");
		const char *between = used ? "; " : "";

		if (used + strlen(between) + length >= size)
			break;
		used += (size_t)snprintf(list + used, size - used, "%s%.*s", between, (int)length,
					 text);
		text += length + 1;
	}
	return text;
}

static void log_lines(const char *text, const char *id)
{
	while (*text) {
		size_t length = strcspn(text, "\n");
		bh_auto_mem char *line = strndup(text, length);

		bh_log(BH_LOG_ERROR, "plugin", "one more fault", BH_STR("error", id),
		       BH_STR("fault", line));
		text += length + 1;
	}
}

bh_status bh_faults_raise(const struct bh_faults *faults, const char *id, struct bh_error *err)
{
	char list[LIST_MAX] = "";
	const char *rest;

	if (faults->n == 0)
		return 0;
	rest = join_lines(faults->text ? faults->text : "", list, sizeof(list));
	bh_error_raise(err, -EINVAL, id,
		       BH_FACTS_(BH_INT("faults", faults->n), BH_STR("list", list)));
	if (*rest) {
		bh_error_note(err, -EINVAL, BH_FACTS_(BH_STR("more", "in the log")));
		log_lines(rest, id);
	}
	return -EINVAL;
}
