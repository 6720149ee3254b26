#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""bench_rdma_app - what an app notices of the rdma plugin: the lateness of its loop, and what registering again costs.

usage: bench_rdma_app.py [ROUNDS], preset 11

Two hosts on the software transport. In each round of two seconds an app has first nothing, then 1000 transfers of 64 KiB
in flight, each awaited by a coroutine of its own that starts the next; how much later than asked a callback of its loop
comes is sampled every millisecond. Of each half the p99 is taken, of all rounds the median. Then 1 GiB is registered
again and again: whole awaits, next to awaits of an op that only looks at a region.
The last line is for machines: "ratio NAME VALUE OP LIMIT ok|short".

Runs what is in the build tree (BH_TEST_BUILDDIR, BH_TEST_SRCDIR).
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

SOURCE = Path(os.environ.get("BH_TEST_SRCDIR") or Path(__file__).resolve().parents[1])
BUILD = Path(os.environ.get("BH_TEST_BUILDDIR") or os.getcwd())
sys.path.insert(0, str(SOURCE / "python"))

import bulkhead  # noqa: E402
import bulkhead.rdma  # noqa: E402
from bulkhead.testing import Host  # noqa: E402

IN_FLIGHT = 1000
PIECE = 64 << 10
BIG = 1 << 30
AGAIN = 500
LAG_MS = 5.0


class Table:
    async def start(self, app: bulkhead.App) -> None:
        self.rdma = bulkhead.rdma.pool("rdma")
        self.memory = bulkhead.Buffer.allocate(IN_FLIGHT * PIECE, "uint8")

    @bulkhead.endpoint
    async def serve(self) -> str:
        self.region = await self.rdma.register(self.memory)
        return self.region.descriptor.hex()

    @bulkhead.endpoint
    async def pull(self, descriptor: str, seconds: float, in_flight: int) -> list[float]:
        """Milliseconds that callbacks were late."""
        remote = await self.rdma.open(bytes.fromhex(descriptor))
        loop = asyncio.get_running_loop()
        over = loop.time() + seconds
        late = []

        async def puller(i: int) -> None:
            while loop.time() < over:
                await remote.read_into(self.memory, i * PIECE, PIECE, local_offset=i * PIECE)

        pulling = []
        for i in range(in_flight):
            pulling.append(asyncio.ensure_future(puller(i)))
            if i % 20 == 0:  # an app that starts a thousand in one go makes its loop late itself
                await asyncio.sleep(0)
        while (began := loop.time()) < over:
            await asyncio.sleep(0.001)
            late.append((loop.time() - began - 0.001) * 1e3)
        await asyncio.gather(*pulling)
        return late

    @bulkhead.endpoint
    async def again(self) -> list[list[float]]:
        """Microseconds of each await: of a registration that is shared, and of an op that only looks at it."""
        big = bulkhead.Buffer.allocate(BIG, "uint8")
        took: list[list[float]] = [[], []]
        async with await self.rdma.register(big) as first:
            for _ in range(AGAIN):
                began = time.perf_counter()
                region = await self.rdma.register(big)
                took[0].append((time.perf_counter() - began) * 1e6)
                await region.close()
                began = time.perf_counter()
                await first.uses()
                took[1].append((time.perf_counter() - began) * 1e6)
        return took


def p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    plugin = {"library": str(BUILD / ".libs/rdma.so"), "transport": "software", "queue": 4096}
    settings = {"plugins": {"rdma": plugin}, "path": [SOURCE / "bench"], "timeout": 300, "bulkheadd": BUILD / "bulkheadd"}
    app = f"{Path(__file__).stem}:Table"
    with Host(app, **settings) as owner, Host(app, **settings) as puller:
        descriptor = owner.call("serve")
        late = {0: [], IN_FLIGHT: []}
        for _ in range(rounds):
            for in_flight, seen in late.items():
                seen.append(p99(puller.call("pull", descriptor=descriptor, seconds=1, in_flight=in_flight)))
        again, look = owner.call("again")
    for in_flight, seen in late.items():
        print(f"loop lag, {in_flight:4} in flight: p99 {statistics.median(seen):.2f} ms, best round {min(seen):.2f}, worst {max(seen):.2f}")
    for what, took in (("register 1 GiB again", again), ("look at a region", look)):
        print(f"await, {what}: p50 {statistics.median(took):.2f} us, best {min(took):.2f}")
    value = statistics.median(late[IN_FLIGHT])
    print(f"ratio rdma_loop_lag_p99_ms {value:.3f} <= {LAG_MS} {'ok' if value <= LAG_MS else 'short'}")
    return int(value > LAG_MS)


if __name__ == "__main__":
    sys.exit(main())
