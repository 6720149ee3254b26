/* SPDX-License-Identifier: BSD-3-Clause */
/* error - what went wrong: an identifier and key=value facts, in fixed storage.
 *
 * Thread: any; an error belongs to its holder. A bh_status says that a call failed, the error says
 * what. NULL is accepted everywhere as "not interested". The first raise wins; callers on the way
 * up add facts with bh_note(). A value that does not fit is cut between two characters, ends in
 * "…", and the facts behind it are left out: `cut` says so, and so does the rendered text. */
#ifndef BH_HOST_CORE_ERROR_H
#define BH_HOST_CORE_ERROR_H

#include "host/core/common.h"

#define BH_ERROR_FACTS 12
#define BH_ERROR_TEXT 960

struct bh_error {
	bh_status status; /* 0: nothing was raised */
	uint16_t used;	  /* bytes of text */
	uint8_t n_facts;
	bool cut;		       /* something did not fit */
	char id[48];		       /* "module.reason" */
	uint16_t keys[BH_ERROR_FACTS]; /* offsets into text, each NUL-terminated */
	uint16_t values[BH_ERROR_FACTS];
	char text[BH_ERROR_TEXT];
};

#define BH_STR(key, value) bh_fact_str((key), (value))
#define BH_INT(key, value) bh_fact_int((key), (int64_t)(value))
#define BH_FACTS_(...)                                                                             \
	(const struct bh_fact[]){ __VA_ARGS__ },                                                   \
		sizeof((const struct bh_fact[]){ __VA_ARGS__ }) / sizeof(struct bh_fact)

/* Both return `status`. bh_raise(err, -ENOMEM, "pool.alloc") or with facts behind it. */
#define bh_raise(err, status, id, ...)                                                             \
	BH_RAISE_PICK_(0 __VA_OPT__(, ) __VA_ARGS__)(err, status, id __VA_OPT__(, ) __VA_ARGS__)
#define BH_RAISE_PICK_(zero, ...) BH_RAISE_##__VA_OPT__(FACTS_)
#define BH_RAISE_(err, status, id) bh_error_raise((err), (status), (id), NULL, 0)
#define BH_RAISE_FACTS_(err, status, id, ...)                                                      \
	bh_error_raise((err), (status), (id), BH_FACTS_(__VA_ARGS__))
#define bh_note(err, status, ...) bh_error_note((err), (status), BH_FACTS_(__VA_ARGS__))

bh_status bh_error_raise(struct bh_error *err, bh_status status, const char *id,
			 const struct bh_fact *facts, size_t n_facts);
bh_status bh_error_note(struct bh_error *err, bh_status status, const struct bh_fact *facts,
			size_t n_facts);
void bh_error_clear(struct bh_error *err);
static inline bool bh_error_is_set(const struct bh_error *err)
{
	return err && err->status != 0;
}

/* NULL when there is no such fact; borrowed from `err`. */
const char *bh_error_fact(const struct bh_error *err, const char *key);
const char *bh_error_key(const struct bh_error *err, unsigned i); /* i < n_facts */
const char *bh_error_value(const struct bh_error *err, unsigned i);

/* "module.reason: key=value key="two words" (No such file or directory)". Never longer than `size`,
 * always NUL-terminated; returns the length written. */
size_t bh_error_render(const struct bh_error *err, char *buffer, size_t size);

#endif
