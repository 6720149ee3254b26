/* SPDX-License-Identifier: BSD-3-Clause */
/* tap - runs one CUnit suite and prints TAP. One binary a suite, so that a crash hides only itself.
 */
#ifndef BH_TESTS_UNIT_TAP_H
#define BH_TESTS_UNIT_TAP_H

#include <CUnit/CUnit.h>

struct bh_test {
	const char *name; /* a sentence: "SUP-6: a join before exit is refused" */
	void (*run)(void);
};

extern const char *bh_tap_skip_reason;
#define BH_SKIP(why)                                                                               \
	do {                                                                                       \
		bh_tap_skip_reason = (why);                                                        \
		return;                                                                            \
	} while (0)

/* With arguments, only the tests whose name contains one of them run. */
int bh_tap_main(int argc, char **argv, const char *suite, const struct bh_test *tests,
		unsigned n_tests);

#define BH_TAP_MAIN(suite, tests)                                                                  \
	int main(int argc, char **argv)                                                            \
	{                                                                                          \
		return bh_tap_main(argc, argv, (suite), (tests),                                   \
				   sizeof(tests) / sizeof((tests)[0]));                            \
	}

#endif
