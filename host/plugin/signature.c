/* SPDX-License-Identifier: BSD-3-Clause */
/* signature - see signature.h.
 *
 * A hand-written scanner over one line of text: the grammar has no nesting, and every refusal can
 * say at which byte. Presets are parsed in the C locale, whatever a library has made of the
 * process's. */
#include "config.h"

#include "host/plugin/signature.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host/core/format.h"
#include "host/plugin/name.h"

#define TYPES "bool int float str bytes buffer list handle object"

struct scanner {
	const char *text; /* all of it */
	const char *at;	  /* what is next */
	const char *in;	  /* "args" or "ret" */
};

struct span {
	const char *start;
	size_t length;
};

static bh_status refuse(const struct scanner *s, const char *at, const char *reason,
			const char *accepted, struct bh_error *err)
{
	return bh_raise(err, -EINVAL, "signature.syntax", BH_STR("in", s->in),
			BH_INT("at", at - s->text), BH_STR("reason", reason),
			BH_STR("accepted", accepted));
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n';
}

static void skip_blanks(struct scanner *s)
{
	while (is_blank(*s->at))
		s->at++;
}

static bool skip(struct scanner *s, char c)
{
	if (*s->at != c)
		return false;
	s->at++;
	return true;
}

/* Up to the next blank, the end, or one of `stops`. */
static struct span take_until(struct scanner *s, const char *stops)
{
	struct span span = { s->at, 0 };

	while (*s->at && !is_blank(*s->at) && !strchr(stops, *s->at))
		s->at++;
	span.length = (size_t)(s->at - span.start);
	return span;
}

static bool span_is(struct span span, const char *text)
{
	return strlen(text) == span.length && memcmp(span.start, text, span.length) == 0;
}

/* BH_TYPE_NONE for no type that can be named. */
static uint32_t type_of(struct span span)
{
	for (uint32_t type = BH_TYPE_BOOL; type <= BH_TYPE_OBJECT; type++)
		if (span_is(span, bh_type_name(type)))
			return type;
	return BH_TYPE_NONE;
}

/* ---- presets -------------------------------------------------------------------------------- */

static bool parse_bool(const char *text, struct bh_value *ret_value)
{
	bool yes = strcmp(text, "true") == 0 || strcmp(text, "yes") == 0 || strcmp(text, "1") == 0;
	bool no = strcmp(text, "false") == 0 || strcmp(text, "no") == 0 || strcmp(text, "0") == 0;

	if (!yes && !no)
		return false;
	*ret_value = (struct bh_value){ .type = BH_TYPE_BOOL, .as.boolean = yes };
	return true;
}

static bool starts_number(const char *text)
{
	const char *p = text + (*text == '-' || *text == '+');

	return (*p >= '0' && *p <= '9') || *p == '.';
}

static bool parse_int(const char *text, struct bh_value *ret_value)
{
	char *end;
	long long number;

	errno = 0;
	number = strtoll(text, &end, 10);
	if (!starts_number(text) || *end || end == text || errno)
		return false;
	*ret_value = (struct bh_value){ .type = BH_TYPE_INT, .as.integer = number };
	return true;
}

static bool parse_float(const char *text, struct bh_value *ret_value)
{
	locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
	double number;
	char *end;

	if (plain == (locale_t)0)
		return false;
	number = strtod_l(text, &end, plain);
	freelocale(plain);
	if (!starts_number(text) || *end || end == text || !isfinite(number))
		return false;
	*ret_value = (struct bh_value){ .type = BH_TYPE_FLOAT, .as.real = number };
	return true;
}

static bool parse_str(const char *text, struct bh_value *ret_value)
{
	const struct bh_value borrowed = {
		.type = BH_TYPE_STR,
		.as.text = { text, strlen(text) },
	};

	return bh_utf8_valid(text, strlen(text)) && bh_value_copy(&borrowed, ret_value) == 0;
}

static bool parse_literal(uint32_t type, const char *text, struct bh_value *ret_value)
{
	switch ((int)type) {
	case BH_TYPE_BOOL:
		return parse_bool(text, ret_value);
	case BH_TYPE_INT:
		return parse_int(text, ret_value);
	case BH_TYPE_FLOAT:
		return parse_float(text, ret_value);
	case BH_TYPE_STR:
		return parse_str(text, ret_value);
	default:
		return false; /* the others have no literal but `none` */
	}
}

static bh_status parse_preset(struct scanner *s, struct bh_parameter *p, struct bh_error *err)
{
	struct span span = take_until(s, "");
	bh_auto_mem char *text = NULL;

	p->has_preset = true;
	if (span_is(span, "none"))
		return 0; /* `preset` is BH_TYPE_NONE already */
	text = strndup(span.start, span.length);
	if (!text)
		return bh_raise(err, -ENOMEM, "signature.alloc");
	if (!parse_literal(p->type, text, &p->preset))
		return refuse(s, span.start, "the preset is no value of its type",
			      "none; or a literal for a bool, int, float or str", err);
	return 0;
}

/* ---- parameters ----------------------------------------------------------------------------- */

static const struct bh_parameter *find_parameter(const struct bh_signature *sig, const char *name)
{
	for (uint32_t i = 0; i < sig->n; i++)
		if (strcmp(sig->p[i].name, name) == 0)
			return &sig->p[i];
	return NULL;
}

static bh_status parse_name(struct scanner *s, const struct bh_signature *sig,
			    struct bh_parameter *p, struct bh_error *err)
{
	struct span span = take_until(s, ":=!");

	if (span.length < sizeof(p->name))
		memcpy(p->name, span.start, span.length);
	if (!bh_name_well_formed(p->name, sizeof(p->name), false))
		return refuse(s, span.start, "ill-formed parameter name",
			      "[a-z][a-z0-9_]*, at most 31 bytes", err);
	if (bh_name_is_keyword(p->name) || bh_name_is_call_option(p->name))
		return refuse(s, span.start, "the name is Python's or the host's",
			      "no keyword of Python, nor timeout, lane, wait", err);
	if (find_parameter(sig, p->name))
		return refuse(s, span.start, "two parameters have the same name",
			      "a name that is unique in the op", err);
	return 0;
}

/* In the order in which they stand. */
static const struct {
	char c;
	uint32_t mark;
	bool on_list;
	const char *reason, *accepted;
} marks[] = {
	{ '!', BH_MARK_WRITABLE, false, "only a buffer can be written to", "buffer!" },
	{ '~', BH_MARK_STRIDED, false, "only a buffer can be strided", "buffer~" },
	{ '@', BH_MARK_DEVICE, true, "only a buffer, or what is in a list, can be device memory",
	  "buffer@, list@" },
};

static bh_status parse_type(struct scanner *s, struct bh_parameter *p, struct bh_error *err)
{
	struct span span;

	if (!skip(s, ':'))
		return refuse(s, s->at, "a parameter without a type", "name:type", err);
	span = take_until(s, "=!~@");
	p->type = type_of(span);
	if (p->type == BH_TYPE_NONE)
		return refuse(s, span.start, "unknown type", TYPES, err);
	for (size_t i = 0; i < BH_ARRAY_LEN(marks); i++) {
		if (*s->at != marks[i].c)
			continue;
		if (p->type != BH_TYPE_BUFFER && !(marks[i].on_list && p->type == BH_TYPE_LIST))
			return refuse(s, s->at, marks[i].reason, marks[i].accepted, err);
		p->marks |= marks[i].mark;
		s->at++;
	}
	return 0;
}

/* What a parameter may be depends on those before it. */
static bh_status check_order(const struct scanner *s, const char *start,
			     const struct bh_signature *sig, const struct bh_parameter *p,
			     struct bh_error *err)
{
	const struct bh_parameter *before = sig->n > 0 ? &sig->p[sig->n - 1] : NULL;

	if (before && before->variadic)
		return refuse(s, start, "a parameter after the variadic one",
			      "*name:type as the last", err);
	if (p->variadic && p->has_preset)
		return refuse(s, start, "a variadic parameter with a preset", "*name:type", err);
	if (before && before->has_preset && !p->has_preset && !p->variadic)
		return refuse(s, start, "a parameter without a preset after one with",
			      "those with a preset last", err);
	return 0;
}

static bh_status parse_parameter(struct scanner *s, const struct bh_signature *sig,
				 struct bh_parameter *p, struct bh_error *err)
{
	const char *start = s->at;
	bh_status st;

	p->variadic = skip(s, '*');
	st = parse_name(s, sig, p, err);
	if (st == 0)
		st = parse_type(s, p, err);
	if (st == 0 && skip(s, '='))
		st = parse_preset(s, p, err);
	if (st < 0)
		return st;
	if (*s->at && !is_blank(*s->at))
		return refuse(s, s->at, "something behind the type",
			      "name:type, name:type=preset, *name:type; behind buffer any of !~@ "
			      "in this order, behind list @",
			      err);
	return check_order(s, start, sig, p, err);
}

static bh_status parse_args(const char *args, struct bh_signature *sig, struct bh_error *err)
{
	struct scanner s = { args, args, "args" };

	for (skip_blanks(&s); *s.at; skip_blanks(&s)) {
		bh_status st;

		if (sig->n == BH_PARAMETERS_MAX)
			return refuse(&s, s.at, "too many parameters", "at most 16", err);
		st = parse_parameter(&s, sig, &sig->p[sig->n], err);
		if (st < 0) {
			bh_value_clear(&sig->p[sig->n].preset);
			return st;
		}
		sig->n++;
	}
	return 0;
}

static bh_status parse_ret(const char *ret, struct bh_signature *sig, struct bh_error *err)
{
	struct scanner s = { ret, ret, "ret" };

	sig->ret = type_of((struct span){ ret, strlen(ret) });
	if (sig->ret == BH_TYPE_NONE)
		return refuse(&s, ret, "unknown type", TYPES ", or NULL for none", err);
	return 0;
}

bh_status bh_signature_parse(const char *args, const char *ret, struct bh_signature *ret_signature,
			     struct bh_error *err)
{
	struct bh_signature sig = { .ret = BH_TYPE_NONE };
	bh_status st = 0;

	static_assert(BH_PARAMETERS_MAX == 16, "the message of parse_args says so");
	if (args)
		st = parse_args(args, &sig, err);
	if (st == 0 && ret)
		st = parse_ret(ret, &sig, err);
	if (st < 0) {
		bh_signature_fini(&sig);
		return st;
	}
	*ret_signature = sig;
	return 0;
}

void bh_signature_fini(struct bh_signature *signature)
{
	for (uint32_t i = 0; i < signature->n; i++)
		bh_value_clear(&signature->p[i].preset);
	*signature = (struct bh_signature){ .ret = BH_TYPE_NONE };
}

bool bh_signature_returns(const struct bh_signature *signature, const struct bh_value *value)
{
	return value->type == signature->ret;
}
