# SPDX-License-Identifier: BSD-3-Clause
"""tests/device/figures.py, the program that takes the cuda plugin's figures on a GPU: that it runs, on the test double.

What it prints here says nothing, and it must not say that it does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SLOW, test_plugins

BUILD = test_plugins().parents[2]
DOUBLE = BUILD / "tests" / "fakecuda" / ".libs" / "libcuda.so.1"
PROGRAM = Path(__file__).resolve().parents[1] / "device" / "figures.py"
for needed in (BUILD / ".libs" / "cuda.so", BUILD / "tests" / "device" / "bare", DOUBLE):
    if not needed.exists():
        pytest.skip(f"no {needed}: configure found no CUDA headers, or make check TESTS= has not run", allow_module_level=True)


def figures(*args: str, **env: str) -> subprocess.CompletedProcess:
    base = {name: value for name, value in os.environ.items() if name not in ("BH_TEST_SRCDIR", "BH_TEST_DEVICE_LIBCUDA")}
    return subprocess.run([sys.executable, str(PROGRAM), *args], env=base | {"BH_TEST_BUILDDIR": str(BUILD)} | env,
                          capture_output=True, text=True, timeout=120 * SLOW)  # fmt: skip


def test_on_the_double_it_prints_every_figure_and_no_ratio():
    done = figures("--plumbing", "--rounds", "2", "--seconds", "0")  # so one round, which always is
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "on the test double, no GPU: these say nothing"
    assert lines[1].startswith("# 1 round, ") and "fakecuda" in lines[1]
    found = [re.fullmatch(r"figure (\w+) ([\d.]+) (\S+?)(?:, bare ([\d.]+) (\S+))?", line) for line in lines[2:]]
    assert all(found), done.stdout
    assert [match[1] for match in found] == ["h2d", "d2h", "launch", "launches_in_64", "nothing"]
    assert all(float(match[2]) > 0 for match in found)
    assert [match[4] is None for match in found] == [False, False, False, False, True]
    assert all(match[3] == match[5] for match in found[:4])


@pytest.mark.parametrize("env", [
    {"BH_TEST_DEVICE_LIBCUDA": str(DOUBLE)},
    {"LD_LIBRARY_PATH": str(DOUBLE.parent)},
], ids=["named", "found"])  # fmt: skip
def test_the_double_is_refused_as_a_gpu(env):
    done = figures("--rounds", "1", **env)
    assert (done.returncode, done.stdout) == (77, "skipped: the library is the test double\n"), done.stderr


def test_without_a_driver_it_measures_nothing_and_says_why():
    done = figures("--rounds", "1", BH_TEST_DEVICE_LIBCUDA="/nowhere/libcuda.so.1")
    assert done.returncode == 77 and done.stdout.startswith("skipped: ") and "/nowhere/libcuda.so.1" in done.stdout, done.stderr
