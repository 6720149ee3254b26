# SPDX-License-Identifier: BSD-3-Clause
"""linesearch - finds the lines of text files that look most like a query.

A line becomes a vector: each piece of three bytes is hashed to one of DIMENSIONS places and counted
there. Lines that share pieces point in like directions, so the best answers are the vectors with
the greatest dot product with the query's. It survives typing errors and knows no language. Two
pieces may share a place, so a score below 0.3 or so means little.

What it shows of Bulkhead: the Python part runs as callables on one stream of the data plane, the
arithmetic as native kernels on another, without the GIL, and the control plane answers meanwhile.

Manifest: [app search] object = linesearch:Search, option.paths = files or directories (a blank or
a colon between them). Standard library only.
"""

from __future__ import annotations

import math
import os
import random
import time
import zlib
from array import array
from typing import NamedTuple

import bulkhead

DIMENSIONS = 1024
PIECE = 3  # bytes hashed together
BATCH = 512  # lines a callable: short enough that the GIL changes hands between two
LINE_MAX = 400  # characters of a line that are looked at; the rest is some table or blob
FLOAT = 4  # bytes
LINES_MAX = 250_000  # 1 GiB of vectors
K_MAX = 100
BUSY_MAX_MS = 60_000


class Line(NamedTuple):
    file: str
    number: int
    text: str


def find_files(paths: list[str]) -> list[str]:
    """All regular files at and below `paths`, each once, however many links lead to it."""
    found: dict[str, None] = {}
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(f"option.paths: {path!r} does not exist")
        if os.path.isdir(path):
            for folder, folders, names in os.walk(path):
                folders.sort()
                for name in sorted(names):
                    found[os.path.realpath(os.path.join(folder, name))] = None
        else:
            found[os.path.realpath(path)] = None
    return [path for path in found if os.path.isfile(path)]


def read_lines(path: str) -> list[Line]:
    """The lines of one text file that have anything on them; none of a binary or unreadable one."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        print(f"skipped {path}: {error.strerror}")
        return []
    if b"\0" in content[:4096]:
        return []
    name = os.fsencode(path).decode("utf-8", "replace")  # an answer must be valid JSON
    texts = enumerate(content.decode("utf-8", "replace").splitlines(), 1)
    return [Line(name, number, text.strip()) for number, text in texts if text.strip()]


def embed(text: str, vector: memoryview) -> None:
    """Writes the vector of `text`, of length 1, into `vector`, which is all zeros."""
    words = " ".join(text[:LINE_MAX].lower().split())
    pieces = f" {words} ".encode("utf-8", "replace")
    counts: dict[int, int] = {}
    for i in range(len(pieces) - PIECE + 1):
        place = zlib.crc32(pieces[i : i + PIECE]) % DIMENSIONS
        counts[place] = counts.get(place, 0) + 1
    length = math.sqrt(sum(n * n for n in counts.values())) or 1.0
    for place, n in counts.items():
        vector[place] = n / length


def embed_lines(lines: list[Line], vectors: memoryview, first: int, last: int) -> None:
    """Fills the rows `first` to `last` of `vectors`, a row a line."""
    for i in range(first, last):
        embed(lines[i].text, vectors[i * DIMENSIONS : (i + 1) * DIMENSIONS])


def embed_query(query: str) -> array:
    vector = zeros(DIMENSIONS)
    embed(query, memoryview(vector))
    return vector


def zeros(n: int) -> array:
    return array("f", [0.0]) * n


def sort_for(seconds: float) -> dict:
    """Holds the GIL for about so long: list.sort() is one C call, which lets go of it nowhere."""
    values = [random.random() for _ in range(1 << 16)]

    def timed_sort(repeats: int) -> float:
        floats = values * repeats
        began = time.perf_counter()
        floats.sort()
        return time.perf_counter() - began

    # Equal runs merge at next to no cost, so the time grows with the repeats and little more.
    repeats = max(1, math.ceil(seconds / (timed_sort(8) / 8)))
    held = timed_sort(repeats)
    return {"held_ms": round(held * 1e3), "floats": repeats * len(values)}


class Search:
    """The app: an index of lines, built at start, and what can be asked of it."""

    async def start(self, app: bulkhead.App) -> None:
        began = time.monotonic()
        paths = app.options.get("paths", "").replace(":", " ").split()
        if not paths:
            raise ValueError(f"[app {app.name}] option.paths: give files or directories to index")
        self.pool = bulkhead.pool("stream")
        # Two streams: what is submitted to one runs in order, and neither waits for the other.
        self.index = self.pool.lane("index")
        self.score = self.pool.lane("score")

        self.files = await self.index.run(find_files, paths)
        self.lines: list[Line] = []
        for path in self.files:
            self.lines += await self.index.run(read_lines, path)
        if not 1 <= len(self.lines) <= LINES_MAX:
            raise ValueError(
                f"[app {app.name}] option.paths: {len(self.lines)} lines of text in "
                f"{' '.join(paths)}; 1 to {LINES_MAX} accepted"
            )
        print(f"indexing {len(self.lines)} lines of {len(self.files)} files")

        self.vectors = zeros(len(self.lines) * DIMENSIONS)
        await self.embed_all(memoryview(self.vectors))
        # The kernels want rows and columns; a view gives them a shape and copies nothing.
        shape = [len(self.lines), DIMENSIONS]
        self.matrix = memoryview(self.vectors).cast("B").cast("f", shape)
        self.seconds = time.monotonic() - began
        print(f"indexed {len(self.lines)} lines in {self.seconds:.2f} s")

    async def embed_all(self, vectors: memoryview) -> None:
        told = time.monotonic()
        for first in range(0, len(self.lines), BATCH):
            last = min(first + BATCH, len(self.lines))
            await self.index.run(embed_lines, self.lines, vectors, first, last)
            if time.monotonic() - told >= 1:
                told = time.monotonic()
                print(f"indexed {last} of {len(self.lines)} lines")

    @bulkhead.endpoint
    async def search(self, query: str, k: int = 5) -> list[dict]:
        """The `k` lines most like `query`, best first; lines that share nothing are left out."""
        if not 1 <= k <= K_MAX:
            raise ValueError(f"k: {k} given, 1 to {K_MAX} accepted")
        vector = await self.index.run(embed_query, query)
        scores = zeros(len(self.lines))
        await self.score.matvec(scores, self.matrix, vector)
        best = await self.score.top_k(scores, k)
        return [self.answer(i, score) for i, score in best if score > 0]

    def answer(self, i: int, score: float) -> dict:
        line = self.lines[i]
        return {"file": line.file, "line": line.number, "score": round(score, 4), "text": line.text}

    @bulkhead.endpoint
    async def stats(self) -> dict:
        return {
            "files": len(self.files),
            "lines": len(self.lines),
            "dimensions": DIMENSIONS,
            "index_bytes": len(self.vectors) * FLOAT,
            "build_s": round(self.seconds, 3),
        }

    @bulkhead.endpoint
    async def busy(self, ms: int = 2000) -> dict:
        """Holds the GIL on a worker for about `ms`, to see who goes on meanwhile."""
        if not 1 <= ms <= BUSY_MAX_MS:
            raise ValueError(f"ms: {ms} given, 1 to {BUSY_MAX_MS} accepted")
        return await self.pool.run(sort_for, ms / 1e3)
