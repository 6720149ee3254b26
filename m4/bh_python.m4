# SPDX-License-Identifier: BSD-3-Clause
# BH_PYTHON_EMBED(FLOOR)
# ----------------------
# Headers, library and interpreter of one Python, that of $(PYTHON), asked from that interpreter alone:
# python3-config and pkg-config on a developer's machine often belong to another one. Sets PYTHON (its
# true path), PYTHON_VERSION, BH_PYTHON_CPPFLAGS and BH_PYTHON_LIBS; ends configure when the three do
# not belong together.
AC_DEFUN([BH_PYTHON_EMBED], [
AC_ARG_VAR([PYTHON], [interpreter whose libpython is embedded (preset /usr/bin/python3)])
AS_IF([test -z "$PYTHON" && test -x /usr/bin/python3], [PYTHON=/usr/bin/python3])
AS_IF([test -n "$PYTHON"], [
	AS_IF([! "$PYTHON" -c 'pass' >/dev/null 2>&1],
		[AC_MSG_ERROR([PYTHON=$PYTHON does not run; give the path of a Python $1 or newer])])
	AS_IF([! "$PYTHON" -c 'import sys; want = "$1".split("."); sys.exit(list(sys.version_info) < list(map(int, want)))'],
		[AC_MSG_ERROR([PYTHON=$PYTHON is older than $1; give the path of a Python $1 or newer])])])
AM_PATH_PYTHON([$1])

AC_MSG_CHECKING([where $PYTHON keeps its headers and library])
bh_py_facts=`"$PYTHON" -I -c '
import sys
from sysconfig import get_config_var as var, get_path
print(sys.executable)
print(var("Py_ENABLE_SHARED"))
print(get_path("include"))
print(var("LIBDIR"))
print(var("LDVERSION"))
print(var("MULTIARCH") or "")
print(sys.version.replace("\n", " "))'` || AC_MSG_ERROR([$PYTHON cannot tell (no sysconfig?)])
bh_py_line () { AS_ECHO(["$bh_py_facts"]) | sed -n "${1}p"; }
# sys.executable undoes shims, so that the host later finds the very same installation.
PYTHON=`bh_py_line 1`
bh_py_shared=`bh_py_line 2`
bh_py_include=`bh_py_line 3`
bh_py_libdir=`bh_py_line 4`
bh_py_ldversion=`bh_py_line 5`
bh_py_multiarch=`bh_py_line 6`
bh_py_version=`bh_py_line 7`
AC_MSG_RESULT([$bh_py_include, $bh_py_libdir])

AS_IF([test "x$bh_py_shared" != x1],
	[AC_MSG_ERROR([$PYTHON was built without a shared libpython, so it cannot be embedded; give another one with PYTHON=])])
AS_IF([test ! -f "$bh_py_include/Python.h"],
	[AC_MSG_ERROR([$bh_py_include/Python.h is missing; install the headers of this very Python (Debian: python3-dev) or give another one with PYTHON=])])

BH_PYTHON_CPPFLAGS="-isystem $bh_py_include"
BH_PYTHON_LIBS="-lpython$bh_py_ldversion"
AS_CASE([$bh_py_libdir],
	[/usr/lib|/usr/lib64|/lib|/lib64|"/usr/lib/$bh_py_multiarch"], [],
	[BH_PYTHON_LIBS="-L$bh_py_libdir -Wl,-rpath,$bh_py_libdir $BH_PYTHON_LIBS"])

AC_MSG_CHECKING([that headers, library and interpreter are of one Python])
bh_save_CPPFLAGS=$CPPFLAGS bh_save_LIBS=$LIBS
CPPFLAGS="$CPPFLAGS $BH_PYTHON_CPPFLAGS"
LIBS="$BH_PYTHON_LIBS $LIBS"
rm -f conftest.version
AC_RUN_IFELSE([AC_LANG_PROGRAM([[
#include <Python.h>
#include <stdio.h>
#include <string.h>
]], [[
	FILE *f = fopen("conftest.version", "w");
	const char *c = Py_GetVersion();

	if (!f)
		return 1;
	/* First line: the library's own words. Second: whether the headers are of that version. */
	for (; *c; c++)
		fputc(*c == '\n' ? ' ' : *c, f);
	fprintf(f, "\n%s\n", PY_VERSION);
	return fclose(f) != 0;
]])], [
	bh_lib_version=`sed -n 1p conftest.version`
	bh_header_version=`sed -n 2p conftest.version`
	bh_py_short=`AS_ECHO(["$bh_py_version"]) | sed 's/ .*//'`
	AS_IF([test "x$bh_lib_version" != "x$bh_py_version" || test "x$bh_header_version" != "x$bh_py_short"], [
		AC_MSG_RESULT([no])
		AC_MSG_ERROR([mixed Pythons:
  interpreter $PYTHON is $bh_py_version
  library     $BH_PYTHON_LIBS is $bh_lib_version
  headers     $bh_py_include are $bh_header_version
All three must come from one installation. LD_LIBRARY_PATH, LIBRARY_PATH, CPPFLAGS or LDFLAGS may bring in another one.])])
	AC_MSG_RESULT([yes, $bh_header_version])
], [
	AC_MSG_RESULT([no])
	AC_MSG_ERROR([a program with $BH_PYTHON_CPPFLAGS $BH_PYTHON_LIBS does not build or run (see config.log); Debian: install python3-dev])
], [
	AC_MSG_RESULT([not checked: cross compiling])
])
rm -f conftest.version
CPPFLAGS=$bh_save_CPPFLAGS LIBS=$bh_save_LIBS

AC_SUBST([BH_PYTHON_CPPFLAGS])
AC_SUBST([BH_PYTHON_LIBS])
])
