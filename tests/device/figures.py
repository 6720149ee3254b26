#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""figures - what the cuda plugin costs: the bare driver's figures next to an app's, in the same run.

usage: figures.py [--rounds N] [--seconds S] [--plumbing]

    --rounds    rounds, preset 7
    --seconds   no round is begun after so many, preset 60; the first always is
    --plumbing  on the test double instead of a GPU, and less of it: shows that this works, and says nothing else

In each round tests/device/bare runs on its own, then the same is awaited by an app on bulkhead.cuda, or the other way
round; each takes medians. Of the rounds' ratios, or differences, the median is held against the limit:

    cuda_h2d_64MiB, cuda_d2h_64MiB  bandwidth between pinned memory and the device, one awaited copy at a time
    cuda_launch_added_us            an empty kernel, from launch() until the app goes on, less the bare launch and its event
    cuda_launches_in_64             empty kernels a second, 64 launched before the first is awaited

`nothing` is the await of an op that does next to nothing and knows no device (the stream plugin's fill() of one number):
what Python, the pool's queue and the two wake-ups take of the above.

The last lines are for machines: "ratio NAME VALUE OP LIMIT ok|short". Exit status 0, 3 when one is short, 77 with the reason
where there is no GPU or the driver's library is the double, anything else where it could not be measured.

Runs what is in the build tree (BH_TEST_BUILDDIR, preset the working directory; BH_TEST_SRCDIR). BH_TEST_DEVICE_LIBCUDA: the
driver's library, preset libcuda.so.1.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

SOURCE = Path(os.environ.get("BH_TEST_SRCDIR") or Path(__file__).resolve().parents[2]).resolve()
BUILD = Path(os.environ.get("BH_TEST_BUILDDIR") or os.getcwd()).resolve()
sys.path.insert(0, str(SOURCE / "python"))

import bulkhead  # noqa: E402
import bulkhead.cuda  # noqa: E402
from bulkhead.testing import Host  # noqa: E402

BYTES = 64 << 20
BATCH = 64
# As often as tests/device/bare.c does it.
TIMES = {"copies": 31, "launches": 2001, "batches": 301}
PLUMBING = {"copies": 3, "launches": 51, "batches": 5}
BARE_S = 60
SHORT = 3
SKIPPED = 77

PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry empty() { ret; }
"""

# (bare, pool) of each, by figure.
Rounds = list[tuple[dict[str, float], dict[str, float]]]
UNITS = {"h2d": "GB/s", "d2h": "GB/s", "launch": "us", "launches_in_64": "1/s", "nothing": "us"}


class Figures:
    """The app."""

    async def start(self, app: bulkhead.App) -> None:
        self.cuda = bulkhead.cuda.pool("cuda")
        self.stream = bulkhead.pool("stream")

    @bulkhead.endpoint
    async def library(self) -> list[object]:
        """[path, is the double] of the driver's library that the plugin has opened."""
        maps = Path("/proc/self/maps").read_text().splitlines()
        found = {line.split(maxsplit=5)[5] for line in maps if re.search(r"/libcuda\.so[.\d]*$", line)}
        if len(found) != 1:
            raise RuntimeError(f"one libcuda.so.1 is wanted in the process, not {sorted(found)}")
        path = found.pop()
        return [path, hasattr(ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW), "fakecuda_inject")]

    @bulkhead.endpoint
    async def measure(self, copies: int, launches: int, batches: int) -> dict[str, float]:
        """By figure: the median."""
        device = await self.cuda.alloc(BYTES, "uint8")
        host = await self.cuda.alloc_host(BYTES, "uint8")
        one = bulkhead.Buffer.allocate(1, "float32")

        async with await self.cuda.module(PTX) as module:

            async def batch() -> None:
                for task in [module.launch("empty", 1, 1) for _ in range(BATCH)]:
                    await task

            figures = {
                "h2d": BYTES / await self.median_us(copies, lambda: self.cuda.copy(device, host)) / 1e3,
                "d2h": BYTES / await self.median_us(copies, lambda: self.cuda.copy(host, device)) / 1e3,
                "launch": await self.median_us(launches, lambda: module.launch("empty", 1, 1)),
                "launches_in_64": BATCH * 1e6 / await self.median_us(batches, batch),
                "nothing": await self.median_us(launches, lambda: self.stream.fill(one, 0.0)),
            }
        await self.cuda.free(device)
        return figures

    async def median_us(self, times: int, what: Callable[[], Awaitable[object]]) -> float:
        took = []
        await what()
        for _ in range(times):
            began = time.perf_counter_ns()
            await what()
            took.append((time.perf_counter_ns() - began) / 1e3)
        return statistics.median(took)


def bare(library: str, *args: str) -> dict[str, float]:
    """By figure. Ends the program where the driver has nothing to measure."""
    done = subprocess.run([str(BUILD / "tests/device/bare"), *args], env=os.environ | {"BH_TEST_LIBCUDA": library},
                          stdout=subprocess.PIPE, text=True, timeout=BARE_S)  # fmt: skip
    if done.returncode == SKIPPED:
        print(done.stdout.strip())
        sys.exit(SKIPPED)
    figures = {name: float(value) for name, value in re.findall(r"^figure (\w+) ([\d.]+) ", done.stdout, re.MULTILINE)}
    if done.returncode != 0 or set(figures) != set(UNITS) - {"nothing"}:
        sys.exit(f"figures: {BUILD}/tests/device/bare ended with {done.returncode}, having printed {done.stdout!r}")
    return figures


def rounds_of(host: Host, library: str, args: argparse.Namespace) -> Rounds:
    rounds: Rounds = []
    times = PLUMBING if args.plumbing else TIMES
    over = time.monotonic() + args.seconds
    while len(rounds) < args.rounds and (not rounds or time.monotonic() < over):
        # What the first one leaves behind, a warm device for one, is not always the same one's gain.
        pool = host.call("measure", **times) if len(rounds) % 2 else None
        alone = bare(library, *["--plumbing"] * args.plumbing)
        rounds.append((alone, pool or host.call("measure", **times)))
    return rounds


def ratios(rounds: Rounds) -> list[tuple[str, float, str, float]]:
    """(name, value, op, limit) of each line: the median of what the rounds have, not what their medians have."""

    def ratio(name: str) -> float:
        return statistics.median(pool[name] / alone[name] for alone, pool in rounds)

    return [
        ("cuda_h2d_64MiB", ratio("h2d"), ">=", 0.97),
        ("cuda_d2h_64MiB", ratio("d2h"), ">=", 0.97),
        ("cuda_launch_added_us", statistics.median(pool["launch"] - alone["launch"] for alone, pool in rounds), "<=", 10),
        ("cuda_launches_in_64", ratio("launches_in_64"), ">=", 0.95),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="figures.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds, 1 or more; preset 7")
    parser.add_argument("--seconds", type=float, default=60, help="no round is begun after so many; preset 60")
    parser.add_argument("--plumbing", action="store_true", help="on the test double: says nothing of any GPU")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds: 1 or more is wanted, not {args.rounds}")
    missing = [name for name in (".libs/cuda.so", ".libs/stream.so", "tests/device/bare") if not (BUILD / name).exists()]
    if missing:
        print(f"skipped: {BUILD} has no {', '.join(missing)}: configure found no CUDA headers, or make check has not run")
        return SKIPPED

    if args.plumbing:
        library = str(BUILD / "tests/fakecuda/.libs/libcuda.so.1")
    else:
        library = os.environ.get("BH_TEST_DEVICE_LIBCUDA") or "libcuda.so.1"
        bare(library)  # ends it where there is no GPU; else not counted
    # The plugin takes the one that the loader finds.
    folders = [str(Path(library).resolve().parent)] if "/" in library else []
    folders += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    plugins = {name: {"library": BUILD / f".libs/{name}.so", "queue": 4 * BATCH} for name in ("cuda", "stream")}
    with Host(f"{Path(__file__).stem}:Figures", plugins=plugins, path=[Path(__file__).resolve().parent],
              bulkheadd=BUILD / "bulkheadd", env={"LD_LIBRARY_PATH": ":".join(folders)} if folders else {},
              timeout=120) as host:  # fmt: skip
        opened, is_double = host.call("library")
        if is_double and not args.plumbing:
            print(f"skipped: the plugin has opened {opened}, which is the test double")
            return SKIPPED
        if args.plumbing and not is_double:
            sys.exit(f"figures: --plumbing wants the test double, but the plugin has opened {opened}")
        rounds = rounds_of(host, str(opened), args)

    if args.plumbing:
        print("on the test double, no GPU: these say nothing")
    print(f"# {len(rounds)} round{'s' * (len(rounds) > 1)}, {opened}")
    for name, unit in UNITS.items():
        digits = 0 if unit == "1/s" else 2
        alone = f", bare {statistics.median(b[name] for b, _ in rounds):.{digits}f} {unit}" if name != "nothing" else ""
        print(f"figure {name} {statistics.median(p[name] for _, p in rounds):.{digits}f} {unit}{alone}")
    if args.plumbing:
        return 0
    short = False
    for name, value, op, limit in ratios(rounds):
        holds = value >= limit if op == ">=" else value <= limit
        short = short or not holds
        print(f"ratio {name} {value:.3f} {op} {limit} {'ok' if holds else 'short'}")
    return SHORT if short else 0


if __name__ == "__main__":
    sys.exit(main())
