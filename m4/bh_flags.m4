# SPDX-License-Identifier: BSD-3-Clause
# BH_ADD_CFLAGS(VARIABLE, FLAG...)
# --------------------------------
# Appends each of the flags that the compiler takes without a complaint.
AC_DEFUN([BH_ADD_CFLAGS], [
m4_foreach_w([bh_flag], [$2], [
AC_MSG_CHECKING([whether $CC takes bh_flag])
bh_save_CFLAGS=$CFLAGS
CFLAGS="$CFLAGS -Werror bh_flag"
AC_LINK_IFELSE([AC_LANG_PROGRAM([[]], [[]])],
	[AC_MSG_RESULT([yes]); $1="$$1 bh_flag"],
	[AC_MSG_RESULT([no])])
CFLAGS=$bh_save_CFLAGS])
])
