/* SPDX-License-Identifier: BSD-3-Clause */
/* reader - one manifest file, line by line, through inih.
 *
 * inih asks for one line at a time and calls back for it before it asks for the next, so
 * counting the lines handed out is counting them exactly (its own line numbers exist in Debian's
 * build only). A line with a fault is handed out as a blank one, so that all faults of a file
 * are found in one pass.
 *
 * Thread: main, before any other. Owns: the stream while it reads. Keeps: MAN-1, MAN-3. */
#include <config.h> /* not "…": this directory has a config.h of its own */

#include "host/manifest/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX_BYTES (1 << 20) /* a manifest is written by hand; more is a wrong file */
#define LINE_MAX_BYTES 65536	 /* for an inih that lets us say so */
#define SECTION_MAX_BYTES 49	 /* inih's section buffer, in every build */

struct reader {
	const struct bh_reader_sink *sink;
	FILE *stream;
	char *buffer; /* getline's */
	size_t buffer_size;
	uint32_t line;	  /* the one that inih has in hand */
	bool in_section;  /* a good header came before */
	bool skipping;	  /* the last header, or the lack of one, is a fault told already */
	bh_status status; /* the first failure, which ends the reading */
};

static void reader_fault(struct reader *reader, const char *key, const char *what)
{
	if (reader->status == 0)
		reader->status = reader->sink->fault(reader->sink->arg, reader->line, key, what);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character at `text`; 0 when it is none (overlong, a surrogate, cut short). */
static size_t utf8_length(const unsigned char *text, size_t left)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t length = text[0] < 0x80	 ? 1
			: text[0] < 0xC0 ? 0
			: text[0] < 0xE0 ? 2
			: text[0] < 0xF0 ? 3
			: text[0] < 0xF8 ? 4
					 : 0;
	uint32_t code;

	if (length < 2 || length > left)
		return length > left ? 0 : length;
	code = text[0] & (0x7Fu >> length);
	for (size_t i = 1; i < length; i++) {
		if ((text[i] & 0xC0) != 0x80)
			return 0;
		code = code << 6 | (text[i] & 0x3Fu);
	}
	if (code < least[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
		return 0;
	return length;
}

/* NULL, or what is wrong with these bytes. */
static const char *bytes_fault(const char *text, size_t length)
{
	for (size_t i = 0, step; i < length; i += step) {
		unsigned char byte = (unsigned char)text[i];

		if (byte == '\0')
			return "a NUL byte; accepted: UTF-8 text";
		if (byte == '\r')
			return "a carriage return inside the line; accepted: lines that end in LF "
			       "or CR LF";
		if ((byte < 0x20 && byte != '\t') || byte == 0x7F)
			return "a control character; accepted: UTF-8 text, with tabs";
		step = utf8_length((const unsigned char *)text + i, length - i);
		if (step == 0)
			return "not UTF-8; accepted: UTF-8 text";
	}
	return NULL;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static char *trim(char *text)
{
	size_t length;

	while (is_blank(*text))
		text++;
	length = strlen(text);
	while (length > 0 && is_blank(text[length - 1]))
		length--;
	text[length] = '\0';
	return text;
}

/* Takes the quotes off `value` in place; returns NULL or what is wrong with them. */
static const char *unquote(char *value)
{
	char *to = value, *from = value + 1;

	if (*value != '"')
		return NULL;
	for (; *from != '"'; *to++ = *from++) {
		if (*from == '\\' && from[1] != '"' && from[1] != '\\')
			return "a backslash in quotes that escapes nothing; accepted: \\\" and "
			       "\\\\";
		if (*from == '\\')
			from++;
		if (*from == '\0')
			return "a quote that is never closed; accepted: \"text\", with \\\" for a "
			       "quote inside";
	}
	if (from[1] != '\0')
		return "text behind the closing quote; accepted: the whole value in quotes, or "
		       "none";
	*to = '\0';
	return NULL;
}

bh_status bh_reader_value(const char *text, char **ret_value, const char **ret_fault)
{
	const char *fault = bytes_fault(text, strlen(text));
	bh_auto_mem char *copy = strdup(text);
	char *value;

	if (!copy)
		return -ENOMEM;
	value = trim(copy);
	if (!fault)
		fault = unquote(value);
	*ret_fault = fault;
	*ret_value = NULL;
	if (fault)
		return 0;
	*ret_value = strdup(value);
	return *ret_value ? 0 : -ENOMEM;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Turns "[  app   search ]" into "[app search]" in place; returns NULL or what is wrong. */
static const char *header_normalise(char *line)
{
	char *end = line + strlen(line) - 1;
	char *to = line + 1, *from = line + 1;
	char *close = strchr(line, ']');

	if (!close)
		return "header without its ]; accepted: [section] or [section name]";
	if (close != end)
		return "text behind the ] of a header; accepted: [section] alone, comments on "
		       "lines of their own";
	for (; from < end; from++) {
		bool between =
			to > line + 1 && from + 1 < end && !is_blank(from[1]) && from[1] != ']';

		if (!is_blank(*from))
			*to++ = *from;
		else if (between)
			*to++ = ' ';
	}
	*to++ = ']';
	*to = '\0';
	if (to - line == 2)
		return "header without a name; accepted: [section] or [section name]";
	if (to - line - 2 > SECTION_MAX_BYTES)
		return "header too long; accepted: at most 49 bytes between [ and ]";
	return NULL;
}

static void header_take(struct reader *reader, char *line)
{
	const char *what = header_normalise(line);
	size_t length = strlen(line);

	reader->in_section = !what;
	reader->skipping = what != NULL;
	if (what) {
		reader_fault(reader, NULL, what);
		return;
	}
	line[length - 1] =
		'\0'; /* inih tells of a section only through its entries: tell it here */
	if (reader->status == 0)
		reader->status = reader->sink->section(reader->sink->arg, reader->line, line + 1);
	line[length - 1] = ']';
}

/* NULL when inih will read `line` as one key and its whole value. */
static const char *entry_fault(const char *line)
{
	const char *separator = strpbrk(line, "=:");

	if (!separator)
		return "neither a [section] nor key = value; a comment begins with # or ;";
	if (*separator == ':')
		return "a : where = is expected; accepted: key = value";
	if (separator == line)
		return "no key before the =; accepted: key = value";
#if !HAVE_DECL_INI_ALLOW_INLINE_COMMENTS
	/* This inih takes " ;" as the begin of a comment, whatever we do. */
	if (strstr(line, " ;") || strstr(line, "\t;"))
		return "a ; behind a blank, which this build's inih library would cut off; write "
		       "it without the blank";
#endif
	return NULL;
}

/* What inih shall see of the line: itself, or nothing. */
static const char *line_take(struct reader *reader, char *line, size_t length, size_t room)
{
	const char *what = bytes_fault(line, length);
	char too_long[96];

	if (what) {
		reader_fault(reader, NULL, what);
		/* A header that cannot be read: better no section than the one before it. */
		reader->skipping |= line[strspn(line, " \t")] == '[';
		return "";
	}
	line = trim(line);
	if (*line == '\0' || *line == '#' || *line == ';')
		return "";
	if (*line == '[') {
		header_take(reader, line);
		return reader->skipping ? "" : line;
	}
	if (reader->skipping)
		return "";
	what = entry_fault(line);
	if (!what && !reader->in_section) {
		what = "a key before any [section]";
		reader->skipping = true; /* once is enough */
	}
	if (!what && strlen(line) + 2 > room) { /* a line end and a NUL */
		snprintf(too_long, sizeof(too_long),
			 "line too long for this build's inih library; accepted: at most %zu bytes",
			 room - 2);
		what = too_long;
	}
	if (what)
		reader_fault(reader, NULL, what);
	return what ? "" : line;
}

/* inih's reader: fgets-like. */
static char *reader_line(char *out, int room, void *arg)
{
	struct reader *reader = arg;
	char *line;
	ssize_t length;

	if (reader->status < 0)
		return NULL;
	errno = 0;
	length = getline(&reader->buffer, &reader->buffer_size, reader->stream);
	if (length < 0) {
		if (!feof(reader->stream))
			reader->status = errno ? -errno : -EIO;
		return NULL;
	}
	line = reader->buffer;
	reader->line++;
	if (reader->line == 1 && length >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
		line += 3;
		length -= 3;
	}
	if (length > 0 && line[length - 1] == '\n')
		line[--length] = '\0';
	if (length > 0 && line[length - 1] == '\r')
		line[--length] = '\0';
	snprintf(out, (size_t)room, "%s\n", line_take(reader, line, (size_t)length, (size_t)room));
	return out;
}

static int reader_entry(void *arg, const char *section, const char *key, const char *raw)
{
	struct reader *reader = arg;
	bh_auto_mem char *value = NULL;
	const char *what = NULL;
	bh_status st;

	(void)section; /* header_take has told it */
	if (reader->status < 0)
		return 1;
	st = bh_reader_value(raw, &value, &what);
	if (st < 0)
		reader->status = st;
	else if (what)
		reader_fault(reader, key, what);
	else
		reader->status = reader->sink->entry(reader->sink->arg, reader->line, key, value);
	return 1;
}

/* ---- files ----------------------------------------------------------------------------------- */

static void inih_set_up(void)
{
#if HAVE_DECL_INI_ALLOW_INLINE_COMMENTS
	ini_allow_inline_comments = false;
#endif
#if HAVE_DECL_INI_ALLOW_MULTILINE
	ini_allow_multiline = false;
#endif
#if HAVE_DECL_INI_USE_STACK
	ini_use_stack = false;
#endif
#if HAVE_DECL_INI_MAX_LINE
	ini_max_line = LINE_MAX_BYTES;
	ini_initial_alloc =
		LINE_MAX_BYTES; /* of the same patch; the buffer on the heap never grows */
#endif
}

static const char *file_fault(int fd)
{
	struct stat info;

	if (fstat(fd, &info) < 0)
		return strerror(errno);
	if (S_ISDIR(info.st_mode))
		return "is a directory; accepted: a regular file";
	if (S_ISFIFO(info.st_mode))
		return "is a FIFO; accepted: a regular file";
	if (!S_ISREG(info.st_mode))
		return "is a device; accepted: a regular file";
	return info.st_size > FILE_MAX_BYTES ? "is bigger than 1 MiB, so it is no manifest" : NULL;
}

/* NULL, or why this is no manifest. Never blocks on a FIFO. */
static const char *stream_open(const char *path, FILE **ret_stream)
{
	const char *what;
	FILE *stream;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0)
		return strerror(errno);
	what = file_fault(fd);
	if (what) {
		close(fd);
		return what;
	}
	stream = fdopen(fd, "r");
	if (!stream) {
		close(fd);
		return strerror(errno);
	}
	*ret_stream = stream;
	return NULL;
}

bh_status bh_reader_file(const char *path, const struct bh_reader_sink *sink)
{
	struct reader reader = { .sink = sink };
	const char *what = stream_open(path, &reader.stream);
	int refused;

	if (what)
		return sink->fault(sink->arg, 0, NULL, what);
	inih_set_up();
	refused = ini_parse_stream(reader_line, &reader, reader_entry, &reader);
	fclose(reader.stream);
	free(reader.buffer);
	if (reader.status == -ENOMEM || refused == -2)
		return -ENOMEM;
	if (reader.status < 0)
		return sink->fault(sink->arg, reader.line + 1, NULL, strerror(-reader.status));
	if (refused > 0) { /* what entry_fault let through and inih did not: never in silence */
		reader.line = (uint32_t)refused;
		reader_fault(&reader, NULL, "the inih library does not understand this line");
	}
	return reader.status;
}
