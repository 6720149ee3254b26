/* SPDX-License-Identifier: BSD-3-Clause */
/* error - see error.h. Uses no heap, so that it works when memory does not. */
#include "config.h"

#include "host/core/error.h"

#include <stdio.h>
#include <string.h>

#include "host/core/format.h"

static_assert(BH_ERROR_TEXT <= UINT16_MAX, "offsets into the text are 16 bits wide");

void bh_error_clear(struct bh_error *err)
{
	if (!err)
		return;
	err->status = 0;
	err->used = 0;
	err->n_facts = 0;
	err->cut = false;
	err->id[0] = '\0';
}

/* Appends `length` bytes and a NUL; the caller has checked that they fit. */
static uint16_t text_push(struct bh_error *err, const char *text, size_t length)
{
	uint16_t at = err->used;

	memcpy(err->text + at, text, length);
	err->text[at + length] = '\0';
	err->used = (uint16_t)(at + length + 1);
	return at;
}

static void fact_push(struct bh_error *err, const char *key, const char *value)
{
	size_t key_length = strlen(key), value_length = strlen(value);
	size_t room = BH_ERROR_TEXT - err->used;

	/* A value that is cut needs room for its mark; a key is never cut. */
	if (err->cut || err->n_facts == BH_ERROR_FACTS ||
	    key_length + sizeof(BH_ELLIPSIS) + 2 > room) {
		err->cut = true;
		return;
	}
	err->keys[err->n_facts] = text_push(err, key, key_length);
	room -= key_length + 1;
	if (value_length < room) {
		err->values[err->n_facts] = text_push(err, value, value_length);
	} else {
		value_length = bh_text_prefix(value, value_length, room - sizeof(BH_ELLIPSIS));
		err->values[err->n_facts] = text_push(err, value, value_length);
		err->used--; /* the mark goes where the NUL is */
		text_push(err, BH_ELLIPSIS, sizeof(BH_ELLIPSIS) - 1);
		err->cut = true;
	}
	err->n_facts++;
}

static void facts_push(struct bh_error *err, const struct bh_fact *facts, size_t n_facts)
{
	for (size_t i = 0; i < n_facts; i++) {
		char digits[24];

		/* What was said nearer to the fault stands (the first raise wins). */
		if (bh_error_fact(err, facts[i].key))
			continue;
		if (facts[i].kind == BH_FACT_INT) {
			snprintf(digits, sizeof(digits), "%lld", (long long)facts[i].number);
			fact_push(err, facts[i].key, digits);
		} else {
			fact_push(err, facts[i].key, facts[i].text ? facts[i].text : "");
		}
	}
}

bh_status bh_error_raise(struct bh_error *err, bh_status status, const char *id,
			 const struct bh_fact *facts, size_t n_facts)
{
	assert(status < 0);
	if (!err || bh_error_is_set(err))
		return status;
	bh_error_clear(err);
	err->status = status;
	snprintf(err->id, sizeof(err->id), "%s", id);
	facts_push(err, facts, n_facts);
	return status;
}

bh_status bh_error_note(struct bh_error *err, bh_status status, const struct bh_fact *facts,
			size_t n_facts)
{
	if (!err)
		return status;
	/* A callee that failed without a word still leaves the facts of those who called it. */
	if (!bh_error_is_set(err))
		return bh_error_raise(err, status, "error.unexplained", facts, n_facts);
	facts_push(err, facts, n_facts);
	return status;
}

const char *bh_error_key(const struct bh_error *err, unsigned i)
{
	assert(i < err->n_facts);
	return err->text + err->keys[i];
}

const char *bh_error_value(const struct bh_error *err, unsigned i)
{
	assert(i < err->n_facts);
	return err->text + err->values[i];
}

const char *bh_error_fact(const struct bh_error *err, const char *key)
{
	if (!bh_error_is_set(err))
		return NULL;
	for (unsigned i = 0; i < err->n_facts; i++)
		if (strcmp(bh_error_key(err, i), key) == 0)
			return bh_error_value(err, i);
	return NULL;
}

size_t bh_error_render(const struct bh_error *err, char *buffer, size_t size)
{
	struct bh_line line;
	const char *meaning;

	bh_line_init(&line, buffer, size);
	if (!bh_error_is_set(err)) {
		bh_line_put(&line, "no error");
		return bh_line_end(&line);
	}
	bh_line_put(&line, err->id);
	for (unsigned i = 0; i < err->n_facts; i++) {
		struct bh_fact fact = bh_fact_str(bh_error_key(err, i), bh_error_value(err, i));

		bh_line_put(&line, i == 0 ? ":" : "");
		bh_line_put_fact(&line, &fact);
	}
	if (err->cut)
		bh_line_put(&line, " " BH_ELLIPSIS);
	/* Not strerror(): it may allocate and take the locale's lock. */
	meaning = strerrordesc_np(-err->status);
	bh_line_put(&line, " (");
	bh_line_put(&line, meaning ? meaning : "unknown status");
	bh_line_put(&line, ")");
	return bh_line_end(&line);
}
