# SPDX-License-Identifier: BSD-3-Clause
"""tests/device/figures.py, the program that takes the cuda plugin's figures on a GPU: that it runs, on the test double.

What it prints here says nothing, and it must not say that it does.
"""

from __future__ import annotations

import importlib.util
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


def test_each_ratio_is_the_median_of_the_rounds_ratios():
    spec = importlib.util.spec_from_file_location("figures", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    bare = {"h2d": 50.0, "d2h": 40.0, "launch": 6.0, "launches_in_64": 400000.0}
    half = {name: value / 2 for name, value in bare.items()}  # a round in which the machine was slow for both
    pool = {"h2d": 49.0, "d2h": 30.0, "launch": 18.0, "launches_in_64": 100000.0}
    rounds = [(bare, pool), (half, {name: value / 2 for name, value in pool.items()}), (bare, bare)]
    assert program.ratios(rounds) == [
        ("cuda_h2d_64MiB", 0.98, ">=", 0.97),
        ("cuda_d2h_64MiB", 0.75, ">=", 0.97),
        ("cuda_launch_added_us", 6.0, "<=", 10),
        ("cuda_launches_in_64", 0.25, ">=", 0.95),
    ]


# ---- tests/device/run, which calls it

RATIOS = "ratio cuda_h2d_64MiB 0.990 >= 0.97 ok\nratio cuda_launch_added_us 12.000 <= 10 short\n"


def device_run(folder: Path, printed: str, status: int) -> subprocess.CompletedProcess:
    """It, over a build tree in which one suite passes and the figures are what is said here; nothing runs on any device."""
    programs = {
        "tests/unit/test_fakecuda": 'test "$1" = --case=probe && echo made up || printf "1..1\\nok 1 - made up\\n"',
        "tests/device/bare": "exit 1",
        ".libs/cuda.so": "exit 1",
        "python": f'test -f "$1" || exit 9; shift; echo "given $*"; printf "{printed}"; exit {status}',
    }
    for name, text in programs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    (folder / "Makefile").write_text(f"PYTHON = {folder}/python\n")
    return subprocess.run([str(PROGRAM.with_name("run")), str(folder)], capture_output=True, text=True, timeout=60 * SLOW)


def test_the_device_script_says_which_figures_are_short_and_passes(tmp_path):
    done = device_run(tmp_path, RATIOS.replace("\n", "\\n"), 3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^given --seconds \d+$", done.stdout, re.MULTILINE)
    assert RATIOS in done.stdout and "# figures: 1 of 4 are short\n" in done.stdout
    assert re.search(r"^1 passed, 0 failed, 0 skipped, 1 suites, ", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("status", [1, 77, 124])
def test_the_device_script_fails_where_there_is_a_gpu_and_figures_cannot_be_taken(tmp_path, status):
    done = device_run(tmp_path, "", status)
    assert done.returncode != 0 and f"# figures: exit status {status}" in done.stdout, done.stdout + done.stderr
    assert re.search(r"^1 passed, 1 failed, 0 skipped, 1 suites, ", done.stdout, re.MULTILINE)
