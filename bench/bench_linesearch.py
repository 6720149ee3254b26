#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""bench_linesearch - examples/linesearch next to what it was before buffers, streams and the package were whole.

usage: bench_linesearch.py [ROUNDS], preset 11

Both apps (linesearch_before.py is the other one) are in one host, with the same files and the same pool. In each
round each of them builds its index, answers QUERIES queries one after the other and 32 at once, both through the
admin socket and by asyncio.gather inside of the app; who begins changes from round to round. What is said are the
rounds' medians. The last lines are for machines: "ratio NAME VALUE OP LIMIT ok|short", VALUE the new time over the old.

Runs what is in the build tree (BH_TEST_BUILDDIR, BH_TEST_SRCDIR), on the asyncio and email packages of the Python
that is embedded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import email
import json
import os
import statistics
import sys
import time
from pathlib import Path

SOURCE = Path(os.environ.get("BH_TEST_SRCDIR") or Path(__file__).resolve().parents[1])
BUILD = Path(os.environ.get("BH_TEST_BUILDDIR") or os.getcwd())
for place in ("python", "bench", "examples/linesearch"):
    sys.path.insert(0, str(SOURCE / place))

import bulkhead  # noqa: E402
import linesearch  # noqa: E402
import linesearch_before  # noqa: E402
from bulkhead.testing import Host  # noqa: E402

ROUNDS = 11
TOGETHER = 32
LIMIT = 0.8
APPS = ("before", "now")
QUERIES = [
    "raise ValueError", "import sys", "the event loop is closed", "def __init__(self, *args, **kwargs)",
    "wait for the transport to be closed", "return None", "header folding", "self._loop.call_soon(callback)",
    "quoted printable encodign", "Content-Transfer-Encoding: base64", "if not isinstance(value, str):", "charset",
    "cancelled while it was waiting for the lock", "async def read(self, n=-1):", "subprocess", "parse the address list",
]  # fmt: skip


class Timed:
    """What the bench asks of both apps; mixed into each."""

    async def start(self, app: bulkhead.App) -> None:
        self.app = app
        await super().start(app)

    @bulkhead.endpoint
    async def build(self) -> float:
        app = self.app
        vars(self).clear()  # the memory of the last index first
        began = time.perf_counter()
        await self.start(app)
        return time.perf_counter() - began

    @bulkhead.endpoint
    async def gather(self, queries: list[str]) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(self.search(query) for query in queries))
        return time.perf_counter() - began


class Before(Timed, linesearch_before.Search):
    pass


class Now(Timed, linesearch.Search):
    pass


def ask(host: Host, name: str, query: str) -> list[dict]:
    return host.call(f"{name}/search", query=query)


def measure(host: Host, name: str, threads: concurrent.futures.Executor) -> dict[str, float]:
    """Seconds of each kind, once."""
    many = (QUERIES * TOGETHER)[:TOGETHER]
    times = {"build": host.call(f"{name}/build")}
    ask(host, name, QUERIES[0])
    began = time.perf_counter()
    for query in QUERIES:
        ask(host, name, query)
    times["query"] = (time.perf_counter() - began) / len(QUERIES)
    began = time.perf_counter()
    list(threads.map(lambda query: ask(host, name, query), many))
    times[f"query_{TOGETHER}"] = time.perf_counter() - began
    times[f"gather_{TOGETHER}"] = host.call(f"{name}/gather", queries=many)
    return times


def check_same(host: Host) -> None:
    """Scores differ by their last digit at most: they are summed in another order."""
    for query in QUERIES:
        before, now = ([hit["score"] for hit in ask(host, name, query)] for name in APPS)
        if len(before) != len(now) or any(abs(a - b) > 1.01e-4 for a, b in zip(before, now)):
            raise SystemExit(f"bench_linesearch: {query!r}: other answers than before: {now}, which were {before}")


def show(rounds: dict[str, list[dict[str, float]]]) -> bool:
    lines, short = [], False
    for kind in rounds["now"][0]:
        before, now = (statistics.median(times[kind] for times in rounds[name]) for name in APPS)
        ratio = now / before
        short |= ratio > LIMIT
        print(f"{kind:10} before {before * 1e3:9.2f} ms   now {now * 1e3:9.2f} ms")
        lines.append(f"ratio linesearch_{kind} {ratio:.3f} <= {LIMIT} {'short' if ratio > LIMIT else 'ok'}")
    print("\n".join(lines))
    return short


def main() -> int:
    n_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    paths = " ".join(str(Path(module.__file__).parent) for module in (asyncio, email))
    stream = {"library": str(BUILD / ".libs/stream.so"), "workers": 2}
    manifest = "".join(f"[app {name}]\noption.paths = {paths}\n" for name in APPS)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in APPS}
    with Host(apps={"before": f"{Path(__file__).stem}:Before", "now": f"{Path(__file__).stem}:Now"}, plugins={"stream": stream},
              path=[SOURCE / "bench", SOURCE / "examples/linesearch"], manifest=manifest, env={"BH_TEST_SRCDIR": str(SOURCE)},
              timeout=300, bulkheadd=BUILD / "bulkheadd") as host:  # fmt: skip
        print(json.dumps(host.call("now/stats")))
        check_same(host)
        with concurrent.futures.ThreadPoolExecutor(TOGETHER) as threads:
            for number in range(n_rounds):
                for name in APPS if number % 2 else reversed(APPS):
                    rounds[name].append(measure(host, name, threads))
    return 1 if show(rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
