/* SPDX-License-Identifier: BSD-3-Clause */
/* not_plugin - a shared object that is no plugin: it has neither note nor descriptor. */
__attribute__((visibility("default"))) int not_plugin(void);

int not_plugin(void)
{
	return 0;
}
