/* SPDX-License-Identifier: BSD-3-Clause */
/* common - macros that every file of the host may use. */
#ifndef BH_HOST_CORE_COMMON_H
#define BH_HOST_CORE_COMMON_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <bulkhead/plugin.h> /* bh_status, struct bh_fact, struct bh_value */

#define BH_ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))
#define BH_MUST_CHECK __attribute__((warn_unused_result))
#define BH_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define bh_unreachable() abort()

/* bh_auto(bh_thing_free) struct bh_thing *thing = NULL; frees on every way out; bh_steal(&thing) is
 * the one way out for the value. The destructor takes the pointer and returns NULL. */
#define BH_DEFINE_AUTO(type, destructor)                                                           \
	static inline void destructor##_auto(type **object)                                        \
	{                                                                                          \
		if (*object)                                                                       \
			destructor(*object);                                                       \
	}
#define bh_auto(destructor) __attribute__((cleanup(destructor##_auto)))
#define bh_steal(pointer)                                                                          \
	({                                                                                         \
		__typeof__(pointer) bh_from_ = (pointer);                                          \
		__typeof__(*bh_from_) bh_value_ = *bh_from_;                                       \
		*bh_from_ = NULL;                                                                  \
		bh_value_;                                                                         \
	})
#define bh_container_of(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

static inline void bh_free_auto(void *pointer)
{
	free(*(void **)pointer);
}
#define bh_auto_mem __attribute__((cleanup(bh_free_auto)))

/* clang's -Wthread-safety; nothing elsewhere. */
#if defined(__clang__)
#define BH_TSA(x) __attribute__((x))
#else
#define BH_TSA(x)
#endif
#define BH_CAPABILITY(name) BH_TSA(capability(name))
#define BH_ACQUIRES(...) BH_TSA(acquire_capability(__VA_ARGS__))
#define BH_TRY_ACQUIRES(...) BH_TSA(try_acquire_capability(__VA_ARGS__))
#define BH_RELEASES(...) BH_TSA(release_capability(__VA_ARGS__))
#define BH_NEEDS(...) BH_TSA(requires_capability(__VA_ARGS__))
#define BH_WITHOUT(...) BH_TSA(locks_excluded(__VA_ARGS__))
#define BH_NO_TSA BH_TSA(no_thread_safety_analysis)

#endif
