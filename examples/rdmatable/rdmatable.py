# SPDX-License-Identifier: BSD-3-Clause
"""rdmatable - one host serves a table of numbers, another reads its rows by RDMA and computes on them.

The table is a file of float32 rows, as make_table.py writes it. `Serve` maps the file and registers
it, a region a shard; no Python of its runs when rows are read. `Pull` gets the regions' descriptors by
whatever means (here as the argument of an endpoint), reads shards straight into its own buffers, many
at once, and runs stream kernels on each as it arrives.

Manifest of the one: [app serve] object = rdmatable:Serve, option.file, option.columns.
Of the other: [app pull] object = rdmatable:Pull. Both: [plugin rdma]; pull also: [plugin stream].
"""

from __future__ import annotations

import array
import asyncio
import base64
import heapq
import mmap
from typing import NamedTuple

import bulkhead
import bulkhead.rdma

ITEM = 4  # bytes of a float32
SHARD_ROWS = 256
AT_ONCE = 16  # shards on their way or being computed on: what bounds the memory
K_MAX = 100


class Serve:
    """Offers the file's rows for reading."""

    async def start(self, app: bulkhead.App) -> None:
        path, self.columns = app.options["file"], int(app.options["columns"])
        row_bytes = self.columns * ITEM
        with open(path, "rb") as file:
            table = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.rows, rest = divmod(len(table), row_bytes)
        if rest or not self.rows:
            raise ValueError(f"{path}: {len(table)} bytes are no rows of {self.columns} float32")
        rdma = bulkhead.rdma.pool("rdma")
        memory = memoryview(table)
        self.shards = [
            await rdma.register(memory[at : at + SHARD_ROWS * row_bytes], access="read")
            for at in range(0, len(table), SHARD_ROWS * row_bytes)
        ]
        print(f"serving {self.rows} rows of {path} as {len(self.shards)} regions")

    @bulkhead.endpoint
    async def table(self) -> dict:
        """What `Pull.attach` wants."""
        descriptors = [base64.b64encode(shard.descriptor).decode() for shard in self.shards]
        return {"columns": self.columns, "shards": descriptors}

    async def stop(self) -> None:
        for shard in self.shards:
            await shard.close()


class Shard(NamedTuple):
    first: int
    rows: int
    remote: bulkhead.rdma.RemoteRegion


class Pull:
    """Reads the rows of another host, and never asks its Python for any."""

    async def start(self) -> None:
        self.rdma = bulkhead.rdma.pool("rdma")
        self.stream = bulkhead.pool("stream")
        self.columns = 0
        self.shards: list[Shard] = []

    @bulkhead.endpoint
    async def attach(self, table: dict) -> dict:
        """Opens the regions of a table: the result of the other host's `Serve.table`."""
        shards, first = [], 0
        for text in table["shards"]:
            remote = await self.rdma.open(base64.b64decode(text))
            rows = remote.length // (table["columns"] * ITEM)
            shards.append(Shard(first, rows, remote))
            first += rows
        self.columns, self.shards = table["columns"], shards
        return {"rows": first, "shards": len(shards)}

    async def read(self, shard: Shard) -> bulkhead.Buffer:
        rows = bulkhead.Buffer.allocate((shard.rows, self.columns))
        await shard.remote.read_into(rows, timeout=30)
        return rows

    async def each_shard(self, work) -> list:
        """The results of `work(shard)` in order, at most AT_ONCE of them under way."""
        room = asyncio.Semaphore(AT_ONCE)

        async def one(shard: Shard):
            async with room:
                return await work(shard)

        return await asyncio.gather(*map(one, self.shards))

    @bulkhead.endpoint
    async def best(self, row: list[float], k: int = 3) -> list[dict]:
        """The `k` rows with the greatest dot product with `row`."""
        if len(row) != self.columns or not 1 <= k <= K_MAX:
            raise ValueError(f"{self.columns} numbers and a k of 1 to {K_MAX} are accepted")
        wanted = bulkhead.Buffer.allocate(self.columns)
        memoryview(wanted)[:] = array.array("f", row)

        async def score(shard: Shard) -> list[tuple[float, int]]:
            rows = await self.read(shard)
            scores = bulkhead.Buffer.allocate(shard.rows)
            await self.stream.matvec(scores, rows, wanted)
            best = await self.stream.top_k(scores, min(k, shard.rows))
            return [(score, shard.first + i) for i, score in best]

        found = heapq.nlargest(k, (hit for hits in await self.each_shard(score) for hit in hits))
        return [{"row": i, "score": round(score, 4)} for score, i in found]

    @bulkhead.endpoint
    async def verify(self, path: str) -> dict:
        """Compares every row, as it was read, with the file that the other host serves."""
        with open(path, "rb") as file:
            table = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

        def differs(rows: bulkhead.Buffer, first: int) -> bool:
            at = first * self.columns * ITEM
            return bytes(rows) != table[at : at + rows.nbytes]

        async def compare(shard: Shard) -> tuple[int, bool, float]:
            rows = await self.read(shard)
            total = await self.stream.sum(rows)
            return rows.nbytes, await self.stream.run(differs, rows, shard.first), total

        parts = await self.each_shard(compare)
        read = sum(nbytes for nbytes, _, _ in parts)
        return {
            "bytes": read,
            "equal": read == len(table) and not any(wrong for _, wrong, _ in parts),
            "sum": sum(total for _, _, total in parts),
        }
