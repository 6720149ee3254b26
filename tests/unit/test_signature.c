/* SPDX-License-Identifier: BSD-3-Clause */
/* test_signature - the grammar of an op's arguments and result. */
#include "config.h"

#include "host/plugin/signature.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/tap.h"

static struct bh_signature parse(const char *args, const char *ret)
{
	struct bh_signature sig = { 0 };
	struct bh_error err = { 0 };

	CU_ASSERT_EQUAL_FATAL(bh_signature_parse(args, ret, &sig, &err), 0);
	return sig;
}

static void plg3_nothing(void)
{
	struct bh_signature sig = parse(NULL, NULL);

	CU_ASSERT_EQUAL(sig.n, 0);
	CU_ASSERT_EQUAL(sig.ret, BH_TYPE_NONE);
	sig = parse("  \t ", NULL);
	CU_ASSERT_EQUAL(sig.n, 0);
}

static void plg3_every_type(void)
{
	static const char *const names[] = { "bool",   "int",  "float",	 "str",	  "bytes",
					     "buffer", "list", "handle", "object" };

	for (uint32_t i = 0; i < BH_ARRAY_LEN(names); i++) {
		char args[32];
		struct bh_signature sig;

		snprintf(args, sizeof(args), "x:%s", names[i]);
		sig = parse(args, names[i]);
		CU_ASSERT_EQUAL(sig.n, 1);
		CU_ASSERT_EQUAL(sig.p[0].type, BH_TYPE_BOOL + i);
		CU_ASSERT_EQUAL(sig.ret, BH_TYPE_BOOL + i);
		CU_ASSERT(!sig.p[0].has_preset && !sig.p[0].variadic && sig.p[0].marks == 0);
		bh_signature_fini(&sig);
	}
}

static void plg3_a_whole_line(void)
{
	struct bh_signature sig =
		parse("dst:buffer! src:buffer  n:int=0 scale:float=-1.5e3 fast:bool=true "
		      "name:str=a=b peer:handle=none *rest:object",
		      "float");

	CU_ASSERT_EQUAL_FATAL(sig.n, 8);
	CU_ASSERT_STRING_EQUAL(sig.p[0].name, "dst");
	CU_ASSERT(sig.p[0].marks == BH_MARK_WRITABLE && sig.p[1].marks == 0);
	CU_ASSERT(!sig.p[1].has_preset && sig.p[2].has_preset);
	CU_ASSERT_EQUAL(sig.p[2].preset.as.integer, 0);
	CU_ASSERT_EQUAL(sig.p[3].preset.as.real, -1500.0);
	CU_ASSERT_EQUAL(sig.p[4].preset.as.boolean, 1);
	CU_ASSERT_EQUAL(sig.p[5].preset.type, BH_TYPE_STR);
	CU_ASSERT_STRING_EQUAL(sig.p[5].preset.as.text.data, "a=b");
	CU_ASSERT(sig.p[6].has_preset);
	CU_ASSERT_EQUAL(sig.p[6].preset.type, BH_TYPE_NONE);
	CU_ASSERT(sig.p[7].variadic && !sig.p[7].has_preset);
	CU_ASSERT_EQUAL(sig.p[7].type, BH_TYPE_OBJECT);
	CU_ASSERT_EQUAL(sig.ret, BH_TYPE_FLOAT);
	bh_signature_fini(&sig);
	CU_ASSERT_EQUAL(sig.n, 0);
}

static void plg3_strided(void)
{
	struct bh_signature sig =
		parse("a:buffer~ b:buffer!~ c:buffer! d:buffer~=none *e:buffer!~", "buffer");

	CU_ASSERT_EQUAL_FATAL(sig.n, 5);
	CU_ASSERT_EQUAL(sig.p[0].marks, BH_MARK_STRIDED);
	CU_ASSERT_EQUAL(sig.p[1].marks, BH_MARK_STRIDED | BH_MARK_WRITABLE);
	CU_ASSERT_EQUAL(sig.p[2].marks, BH_MARK_WRITABLE);
	CU_ASSERT(sig.p[3].marks == BH_MARK_STRIDED && sig.p[3].has_preset);
	CU_ASSERT(sig.p[4].marks == (BH_MARK_STRIDED | BH_MARK_WRITABLE) && sig.p[4].variadic);
	bh_signature_fini(&sig);
}

static void plg3_device_memory(void)
{
	struct bh_signature sig = parse("a:buffer@ b:buffer!@ c:buffer~@ d:buffer!~@ e:list@ "
					"f:buffer@=none *g:buffer!~@",
					NULL);
	const uint32_t w = BH_MARK_WRITABLE, s = BH_MARK_STRIDED, d = BH_MARK_DEVICE;

	CU_ASSERT_EQUAL_FATAL(sig.n, 7);
	CU_ASSERT_EQUAL(sig.p[0].marks, d);
	CU_ASSERT_EQUAL(sig.p[1].marks, w | d);
	CU_ASSERT_EQUAL(sig.p[2].marks, s | d);
	CU_ASSERT_EQUAL(sig.p[3].marks, w | s | d);
	CU_ASSERT(sig.p[4].type == BH_TYPE_LIST && sig.p[4].marks == d);
	CU_ASSERT(sig.p[5].marks == d && sig.p[5].has_preset);
	CU_ASSERT(sig.p[6].marks == (w | s | d) && sig.p[6].variadic);
	bh_signature_fini(&sig);
}

static void plg3_extreme_presets(void)
{
	struct bh_signature sig =
		parse("a:int=-9223372036854775808 b:int=9223372036854775807 c:str= "
		      "d:str=none *e:buffer!",
		      NULL);

	CU_ASSERT_EQUAL(sig.p[0].preset.as.integer, INT64_MIN);
	CU_ASSERT_EQUAL(sig.p[1].preset.as.integer, INT64_MAX);
	CU_ASSERT_EQUAL(sig.p[2].preset.type, BH_TYPE_STR);
	CU_ASSERT_EQUAL(sig.p[2].preset.as.text.length, 0);
	CU_ASSERT_EQUAL(sig.p[3].preset.type, BH_TYPE_NONE);
	CU_ASSERT(sig.p[4].marks == BH_MARK_WRITABLE && sig.p[4].variadic);
	bh_signature_fini(&sig);
}

static void plg3_refusals(void)
{
	static const struct {
		const char *args, *ret;
		const char *in, *at;
	} rows[] = {
		{ "x", NULL, "args", "1" },
		{ "x:", NULL, "args", "2" },
		{ ":int", NULL, "args", "0" },
		{ "x :int", NULL, "args", "1" },
		{ "x: int", NULL, "args", "2" },
		{ "x:integer", NULL, "args", "2" },
		{ "x:none", NULL, "args", "2" },
		{ "x:Int", NULL, "args", "2" },
		{ "X:int", NULL, "args", "0" },
		{ "2x:int", NULL, "args", "0" },
		{ "x-y:int", NULL, "args", "0" },
		{ "abcdefghijklmnopqrstuvwxyz_abcdef:int", NULL, "args", "0" },
		{ "x:int!", NULL, "args", "5" },
		{ "x:int?", NULL, "args", "2" },
		{ "x:buffer!!", NULL, "args", "9" },
		{ "x:buffer~!", NULL, "args", "9" },
		{ "x:buffer~~", NULL, "args", "9" },
		{ "x:buffer@!", NULL, "args", "9" },
		{ "x:buffer@~", NULL, "args", "9" },
		{ "x:buffer@@", NULL, "args", "9" },
		{ "x:int@", NULL, "args", "5" },
		{ "x:object@", NULL, "args", "8" },
		{ "x:list!@", NULL, "args", "6" },
		{ "x:int", "buffer@", "ret", "0" },
		{ "x:int~", NULL, "args", "5" },
		{ "x:list~", NULL, "args", "6" },
		{ "x~:buffer", NULL, "args", "0" },
		{ "x:int", "buffer~", "ret", "0" },
		{ "x:buffer=abc", NULL, "args", "9" },
		{ "x:list=[]", NULL, "args", "7" },
		{ "x:int=", NULL, "args", "6" },
		{ "x:int=one", NULL, "args", "6" },
		{ "x:int=1.5", NULL, "args", "6" },
		{ "x:int=0x10", NULL, "args", "6" },
		{ "x:int=9223372036854775808", NULL, "args", "6" },
		{ "x:float=inf", NULL, "args", "8" },
		{ "x:float=nan", NULL, "args", "8" },
		{ "x:float=1e999", NULL, "args", "8" },
		{ "x:float=1,5", NULL, "args", "8" },
		{ "x:bool=2", NULL, "args", "7" },
		{ "x:str=\xff", NULL, "args", "6" },
		{ "x:int x:int", NULL, "args", "6" },
		{ "x:int=1 y:int", NULL, "args", "8" },
		{ "*x:int y:int", NULL, "args", "7" },
		{ "*x:int *y:int", NULL, "args", "7" },
		{ "*x:int=1", NULL, "args", "0" },
		{ "**x:int", NULL, "args", "1" },
		{ "from:int", NULL, "args", "0" },
		{ "lambda:int", NULL, "args", "0" },
		{ "timeout:int", NULL, "args", "0" },
		{ "lane:str", NULL, "args", "0" },
		{ "a:int b:int c:int d:int e:int f:int g:int h:int i:int j:int k:int l:int m:int "
		  "n:int o:int p:int q:int",
		  NULL, "args", "96" },
		{ NULL, "", "ret", "0" },
		{ NULL, "none", "ret", "0" },
		{ NULL, "buffer!", "ret", "0" },
		{ NULL, "int float", "ret", "0" },
		{ "x:int", "number", "ret", "0" },
	};

	for (size_t i = 0; i < BH_ARRAY_LEN(rows); i++) {
		struct bh_signature sig;
		struct bh_error err = { 0 };
		bh_status st = bh_signature_parse(rows[i].args, rows[i].ret, &sig, &err);
		bool right = st == -EINVAL && strcmp(err.id, "signature.syntax") == 0 &&
			     strcmp(bh_error_fact(&err, "in"), rows[i].in) == 0 &&
			     strcmp(bh_error_fact(&err, "at"), rows[i].at) == 0 &&
			     bh_error_fact(&err, "accepted");

		if (!right)
			printf("# %s -> %s: in %s at %s\n", rows[i].args ? rows[i].args : "",
			       rows[i].ret ? rows[i].ret : "", bh_error_fact(&err, "in"),
			       bh_error_fact(&err, "at"));
		CU_ASSERT(right);
	}
}

static void plg3_sixteen_are_enough(void)
{
	struct bh_signature sig = parse(
		"a:int b:int c:int d:int e:int f:int g:int h:int i:int j:int k:int l:int m:int "
		"n:int o:int p:int",
		NULL);

	CU_ASSERT_EQUAL(sig.n, BH_PARAMETERS_MAX);
	bh_signature_fini(&sig);
}

static void plg3_result_types(void)
{
	struct bh_signature none = parse(NULL, NULL), number = parse(NULL, "int");
	const struct bh_value nothing = { .type = BH_TYPE_NONE }, one = { .type = BH_TYPE_INT },
			      real = { .type = BH_TYPE_FLOAT };

	CU_ASSERT(bh_signature_returns(&none, &nothing));
	CU_ASSERT(!bh_signature_returns(&none, &one));
	CU_ASSERT(bh_signature_returns(&number, &one));
	CU_ASSERT(!bh_signature_returns(&number, &nothing));
	CU_ASSERT(!bh_signature_returns(&number, &real));
}

static const struct bh_test tests[] = {
	{ "PLG-3: no arguments and no result", plg3_nothing },
	{ "PLG-3: every type, as argument and as result", plg3_every_type },
	{ "PLG-3: writable, presets and a variadic one in a line", plg3_a_whole_line },
	{ "PLG-3: strided buffers, read and written", plg3_strided },
	{ "PLG-3: device memory, in buffers and lists", plg3_device_memory },
	{ "PLG-3: presets at the ends of their range", plg3_extreme_presets },
	{ "PLG-3: a bad signature is refused at its byte, with what is accepted", plg3_refusals },
	{ "PLG-3: sixteen parameters fit", plg3_sixteen_are_enough },
	{ "PLG-3: a result must have the promised type", plg3_result_types },
};

BH_TAP_MAIN("signature", tests)
