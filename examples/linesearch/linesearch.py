# SPDX-License-Identifier: BSD-3-Clause
"""linesearch - finds the lines of text files that look most like a query.

A line becomes a vector: each piece of three bytes is hashed to one of DIMENSIONS places and counted
there. Lines that share pieces point in like directions, so the best answers are the vectors with
the greatest dot product with the query's. It survives typing errors and knows no language. Two
pieces may share a place, so a score below 0.3 or so means little.

What it shows of Bulkhead: the Python part runs as callables on one stream of the data plane, the
arithmetic as native kernels on another, without the GIL, and the control plane answers meanwhile.

Manifest: [app search] object = linesearch:Search, option.paths = files or directories (a blank or
a colon between them), option.score = cuda to score on the pool of that name: of the cuda plugin, with
the vectors in the device's memory. Standard library only.
"""

from __future__ import annotations

import functools
import math
import os
import time
import zlib
from collections import Counter
from typing import Iterator, NamedTuple

import bulkhead

DIMENSIONS = 1024
PIECE = 3  # bytes hashed together
BATCH = 512  # lines a callable: short enough that the GIL changes hands between two
LINE_MAX = 400  # characters of a line that are looked at; the rest is some table or blob
LINES_MAX = 250_000  # 1 GiB of vectors
K_MAX = 100
BUSY_MAX_MS = 60_000


class Line(NamedTuple):
    file: str
    line: int
    text: str


def find_files(paths: list[str]) -> list[str]:
    """All regular files at and below `paths`, each once, however many links lead to it."""
    found: dict[str, None] = {}
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(f"option.paths: {path!r} does not exist")
        for folder, folders, names in os.walk(path) if os.path.isdir(path) else [("", [], [path])]:
            folders.sort()
            for name in sorted(names):
                found[os.path.realpath(os.path.join(folder, name))] = None
    return [path for path in found if os.path.isfile(path)]


def normal(text: str) -> str:
    """What is compared of a line or a query."""
    return " ".join(text[:LINE_MAX].lower().split())


def read_lines(path: str, alike: dict[str, list[Line]]) -> None:
    """Puts the lines of one text file that have anything on them with those that compare equal: there are many such
    in licences and logs. There are none in a binary or unreadable file."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        return print(f"skipped {path}: {error.strerror}")
    if b"\0" in content[:4096]:
        return
    name = os.fsencode(path).decode("utf-8", "replace")  # an answer must be valid JSON
    for number, text in enumerate(map(str.strip, content.decode("utf-8", "replace").splitlines()), 1):
        if text:
            alike.setdefault(normal(text), []).append(Line(name, number, text))


@functools.lru_cache(1 << 16)
def place_of(piece: tuple[int, ...]) -> int:
    return zlib.crc32(bytes(piece)) % DIMENSIONS


def places(text: str) -> Iterator[int]:
    """Where the pieces of a normal text are counted."""
    pieces = f" {text} ".encode("utf-8", "replace")
    return map(place_of, zip(*(pieces[i:] for i in range(PIECE))))


def count_pieces(texts: list[str], first: int, rows: list[memoryview]) -> None:
    """Counts the pieces of a batch of normal texts, from `first` on: a column of `rows` each."""
    for i, text in enumerate(texts[first : first + BATCH], first):
        for place in places(text):
            rows[place][i] += 1


def invert_roots(values: memoryview) -> None:
    for i, value in enumerate(values):
        values[i] = 1 / math.sqrt(value)


def sum_for(seconds: float) -> dict:
    """Holds the GIL for about so long: sum() of a range is one C call, which lets go of it nowhere."""

    def timed_sum(n: int) -> float:
        began = time.perf_counter()
        sum(range(n))
        return time.perf_counter() - began

    n = max(1, round((1 << 18) * seconds / timed_sum(1 << 18)))
    return {"held_ms": round(timed_sum(n) * 1e3), "summed": n}


class Search:
    """The app: an index of lines, built at start, and what can be asked of it."""

    async def start(self, app: bulkhead.App) -> None:
        began = time.monotonic()
        paths = app.options.get("paths", "").replace(":", " ").split()
        if not paths:
            raise ValueError(f"[app {app.name}] option.paths: give files or directories to index")
        self.pool = bulkhead.pool("stream")
        scorer = bulkhead.pool(app.options.get("score", "stream"))
        self.on_device = "alloc" in scorer.ops  # it computes in memory of its own
        # Two streams: what is submitted to one runs in order, and neither waits for the other.
        self.index = self.pool.lane("index")
        self.score = scorer.lane("score")

        self.files = await self.index.run(find_files, paths)
        alike: dict[str, list[Line]] = {}
        for path in self.files:
            await self.index.run(read_lines, path, alike)
        self.lines = sum(map(len, alike.values()))
        if not 1 <= self.lines <= LINES_MAX:
            raise ValueError(f"[app {app.name}] option.paths: {self.lines} lines of text in {' '.join(paths)}; "
                             f"1 to {LINES_MAX} accepted")  # fmt: skip
        print(f"indexing {self.lines} lines of {len(self.files)} files")

        texts, self.alike = list(alike), list(alike.values())
        # A row a place, a column a text: a query reads the rows of its own places and no others.
        self.rows = [self.row() for _ in range(DIMENSIONS)]
        views = [memoryview(row) for row in self.rows]
        for first in range(0, len(texts), BATCH):
            await self.index.run(count_pieces, texts, first, views)
        self.scales, squares = self.row(), self.row()
        for row in self.rows:  # with room, nothing is to be awaited: a stream keeps its order
            self.index.mul(squares, row, row, wait=True)
            self.index.add(self.scales, self.scales, squares, wait=True)
        await self.index.run(invert_roots, memoryview(self.scales), wait=True)
        if self.on_device:
            self.rows = [await self.to_device(row) for row in self.rows]
            self.scales = await self.to_device(self.scales)
        self.seconds = time.monotonic() - began
        print(f"indexed {self.lines} lines in {self.seconds:.2f} s")

    def row(self) -> bulkhead.Buffer:
        return bulkhead.Buffer.allocate(len(self.alike))  # float32 zeros

    async def to_device(self, row: bulkhead.Buffer) -> bulkhead.Buffer:
        there = await self.zeros()
        await self.score.copy(there, row)
        return there

    async def zeros(self) -> bulkhead.Buffer:
        """A row where scores are computed."""
        return await self.score.alloc([len(self.alike)]) if self.on_device else self.row()

    @bulkhead.endpoint
    async def search(self, query: str, k: int = 5) -> list[dict]:
        """The `k` lines most like `query`, best first; lines that share nothing are left out."""
        if not 1 <= k <= K_MAX:
            raise ValueError(f"k: {k} given, 1 to {K_MAX} accepted")
        counts, scores = Counter(places(normal(query))), await self.zeros()
        length = math.hypot(*counts.values())
        for place, n in counts.items():
            self.score.axpy(scores, n, self.rows[place], wait=True)
        self.score.mul(scores, scores, self.scales, wait=True)
        best = await self.score.top_k(scores, k, wait=True)
        found = [(line, score) for i, score in best if score > 0 for line in self.alike[i][:k]]
        return [line._asdict() | {"score": round(score / length, 4)} for line, score in found[:k]]

    @bulkhead.endpoint
    async def stats(self) -> dict:
        return {
            "files": len(self.files),
            "lines": self.lines,
            "dimensions": DIMENSIONS,
            "index_bytes": sum(row.nbytes for row in self.rows),
            "build_s": round(self.seconds, 3),
        }

    @bulkhead.endpoint
    async def busy(self, ms: int = 2000) -> dict:
        """Holds the GIL on a worker for about `ms`, to see who goes on meanwhile."""
        if not 1 <= ms <= BUSY_MAX_MS:
            raise ValueError(f"ms: {ms} given, 1 to {BUSY_MAX_MS} accepted")
        return await self.pool.run(sum_for, ms / 1e3)
