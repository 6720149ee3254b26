/* SPDX-License-Identifier: BSD-3-Clause */
/* tap - see tap.h. CUnit's own runners return success with failing tests and know no skip. */
#include "tests/unit/tap.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

const char *bh_tap_skip_reason;
static unsigned tap_n, tap_failed, tap_skipped;

static void on_start(const CU_pTest test, const CU_pSuite suite)
{
	(void)test;
	(void)suite;
	bh_tap_skip_reason = NULL;
}

static void on_complete(const CU_pTest test, const CU_pSuite suite, const CU_pFailureRecord failure)
{
	bool skip = bh_tap_skip_reason && !failure;

	tap_n++;
	tap_failed += failure != NULL;
	tap_skipped += skip;
	printf("%s %u - %s: %s%s%s\n", failure ? "not ok" : "ok", tap_n, suite->pName, test->pName,
	       skip ? " # SKIP " : "", skip ? bh_tap_skip_reason : "");
	for (CU_pFailureRecord f = failure; f && f->pTest == test; f = f->pNext)
		printf("#   %s:%u: %s\n", f->strFileName, f->uiLineNumber, f->strCondition);
}

static bool wanted(int argc, char **argv, const char *name)
{
	bool any = argc < 2;

	for (int i = 1; i < argc; i++)
		any |= strstr(name, argv[i]) != NULL;
	return any;
}

int bh_tap_main(int argc, char **argv, const char *suite_name, const struct bh_test *tests,
		unsigned n_tests)
{
	CU_pSuite suite;
	unsigned planned = 0;

	/* Line buffered: a sanitizer may end the process before stdio is flushed. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (CU_initialize_registry() != CUE_SUCCESS)
		return 99;
	suite = CU_add_suite(suite_name, NULL, NULL);
	for (unsigned i = 0; suite && i < n_tests; i++)
		if (wanted(argc, argv, tests[i].name) &&
		    CU_add_test(suite, tests[i].name, tests[i].run))
			planned++;
	printf("1..%u\n", planned);
	CU_set_test_start_handler(on_start);
	CU_set_test_complete_handler(on_complete);
	CU_run_all_tests();
	fprintf(stderr, "%u passed, %u failed, %u skipped\n", tap_n - tap_failed - tap_skipped,
		tap_failed, tap_skipped);
	planned = tap_failed || tap_n != planned || tap_n == 0 ||
		  CU_get_number_of_failure_records() != 0;
	CU_cleanup_registry();
	return planned ? 1 : 0;
}
