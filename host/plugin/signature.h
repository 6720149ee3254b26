/* SPDX-License-Identifier: BSD-3-Clause */
/* signature - an op's `args` and `ret` text, parsed once at load (bulkhead/plugin.h, struct
 * bh_op). */
#ifndef BH_HOST_PLUGIN_SIGNATURE_H
#define BH_HOST_PLUGIN_SIGNATURE_H

#include "host/core/value.h"

#define BH_PARAMETERS_MAX 16

/* What a parameter takes or does besides, as its text says behind the type. */
enum bh_mark {
	BH_MARK_WRITABLE = 1, /* buffer!: it is written to */
	BH_MARK_STRIDED = 2,  /* buffer~: memory of any strides */
	BH_MARK_DEVICE = 4    /* buffer@, list@: device memory too */
};

struct bh_parameter {
	char name[32];
	uint32_t type;	/* enum bh_type */
	uint32_t marks; /* enum bh_mark, or-ed */
	bool variadic;	/* *name: the rest, as one list of `type` */
	bool has_preset;
	struct bh_value preset; /* owned */
};

struct bh_signature {
	uint32_t n;
	uint32_t ret; /* enum bh_type */
	struct bh_parameter p[BH_PARAMETERS_MAX];
};

/* Error facts: at (byte offset), reason. */
bh_status bh_signature_parse(const char *args, const char *ret, struct bh_signature *ret_signature,
			     struct bh_error *err) BH_MUST_CHECK;
void bh_signature_fini(struct bh_signature *signature);
/* "ret_int" promises an int; a BH_TYPE_NONE result fits only `none`. */
bool bh_signature_returns(const struct bh_signature *signature, const struct bh_value *value);

#endif
