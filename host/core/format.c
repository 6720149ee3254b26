/* SPDX-License-Identifier: BSD-3-Clause */
/* format - see format.h. */
#include "config.h"

#include "host/core/format.h"

#include <string.h>

#define RESERVED (sizeof(BH_ELLIPSIS)) /* kept free for the mark of a cut and the NUL */

size_t bh_text_prefix(const char *text, size_t length, size_t max)
{
	size_t at = length < max ? length : max;

	/* A byte 10xxxxxx continues a character: step back to where one begins. */
	while (at > 0 && at < length && ((unsigned char)text[at] & 0xc0) == 0x80)
		at--;
	return at;
}

void bh_line_init(struct bh_line *line, char *out, size_t size)
{
	assert(size >= 2 * RESERVED);
	*line = (struct bh_line){ .out = out, .size = size };
	out[0] = '\0';
}

static void put_bytes(struct bh_line *line, const char *text, size_t length)
{
	size_t room = line->size - RESERVED - line->used;
	size_t take = bh_text_prefix(text, length, room);

	if (line->cut)
		return;
	memcpy(line->out + line->used, text, take);
	line->used += take;
	line->out[line->used] = '\0';
	line->cut = take < length;
}

void bh_line_put(struct bh_line *line, const char *text)
{
	put_bytes(line, text, strlen(text));
}

void bh_line_put_int(struct bh_line *line, int64_t number)
{
	char digits[24];
	char *at = digits + sizeof(digits);
	uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;

	*--at = '\0';
	do
		*--at = (char)('0' + rest % 10);
	while (rest /= 10);
	if (number < 0)
		*--at = '-';
	bh_line_put(line, at);
}

/* The escape for one byte, or NULL when it may stand as it is. */
static const char *escape(unsigned char c, char hex[5])
{
	static const char digits[] = "0123456789abcdef";

	switch ((int)c) {
	case '"':
		return "\\\"";
	case '\\':
		return "\\\\";
	case '\n':
		return "\\n";
	case '\r':
		return "\\r";
	case '\t':
		return "\\t";
	default:
		if (c >= 0x20 && c != 0x7f)
			return NULL;
		hex[0] = '\\';
		hex[1] = 'x';
		hex[2] = digits[c >> 4];
		hex[3] = digits[c & 15];
		hex[4] = '\0';
		return hex;
	}
}

void bh_line_put_quoted(struct bh_line *line, const char *text)
{
	const char *plain = text;
	char hex[5];

	bh_line_put(line, "\"");
	for (; *text; text++) {
		const char *escaped = escape((unsigned char)*text, hex);

		if (!escaped)
			continue;
		put_bytes(line, plain, (size_t)(text - plain));
		bh_line_put(line, escaped);
		plain = text + 1;
	}
	put_bytes(line, plain, (size_t)(text - plain));
	bh_line_put(line, "\"");
}

void bh_line_put_value(struct bh_line *line, const char *text)
{
	bool bare = *text != '\0';

	for (const char *p = text; *p; p++)
		if ((unsigned char)*p <= ' ' || *p == '"' || *p == '=' || *p == '\\' || *p == 0x7f)
			bare = false;
	if (bare)
		bh_line_put(line, text);
	else
		bh_line_put_quoted(line, text);
}

void bh_line_put_fact(struct bh_line *line, const struct bh_fact *fact)
{
	bh_line_put(line, " ");
	bh_line_put(line, fact->key);
	bh_line_put(line, "=");
	if (fact->kind == BH_FACT_INT)
		bh_line_put_int(line, fact->number);
	else
		bh_line_put_value(line, fact->text ? fact->text : "");
}

size_t bh_line_end(struct bh_line *line)
{
	if (line->cut) {
		memcpy(line->out + line->used, BH_ELLIPSIS, sizeof(BH_ELLIPSIS));
		line->used += sizeof(BH_ELLIPSIS) - 1;
	}
	return line->used;
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

void bh_text_make_plain(char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~') /* also above ASCII, where char is signed */
			*text = '?';
}
