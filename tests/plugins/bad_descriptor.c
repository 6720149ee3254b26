/* SPDX-License-Identifier: BSD-3-Clause */
/* bad_descriptor - a note that promises a plugin, and no descriptor behind it. */
#include <bulkhead/plugin.h>

static const struct bh_note note BH_NOTE_KEEP = {
	9,	(uint32_t)(sizeof(struct bh_note) - 24), BH_NOTE_TYPE,	   BH_NOTE_NAME,
	BH_ABI, (uint32_t)sizeof(struct bh_plugin),	 "bad_descriptor", "1.0",
};

__attribute__((visibility("default"))) int not_bh_plugin(void);

int not_bh_plugin(void)
{
	return 0;
}
