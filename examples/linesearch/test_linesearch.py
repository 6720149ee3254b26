# SPDX-License-Identifier: BSD-3-Clause
"""linesearch under pytest, each test in a host of its own: PYTHONPATH=PREFIX/share/bulkhead/python pytest"""

import asyncio
import math
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bulkhead.testing import CallFailed, HostFailed, host  # noqa: F401  # a fixture
from linesearch import Search

TEXT = """The quick brown fox
jumps over the lazy dog.

Pack my box with five dozen liquor jugs.
"""


@pytest.fixture
def search(host, tmp_path):  # noqa: F811
    (tmp_path / "pangrams").write_text(TEXT)
    return host(Search, plugins=["stream"], options={"paths": tmp_path})


def test_the_line_most_like_the_query_is_found_whatever_its_case(search, tmp_path):
    best = search.call("search", query="THE LAZY DOG", k=1)
    assert [(hit["file"], hit["line"]) for hit in best] == [(str(tmp_path / "pangrams"), 2)]


def test_empty_lines_are_not_indexed(search):
    assert search.call("stats")["lines"] == 3


def test_a_k_out_of_range_is_refused(search):
    with pytest.raises(CallFailed, match="1 to 100 accepted"):
        search.call("search", query="fox", k=0)


def test_without_paths_it_does_not_start(host):  # noqa: F811
    with pytest.raises(HostFailed, match="give files or directories to index"):
        host(Search, plugins=["stream"])


# ---- every answer, next to what the module's first lines say an answer is -------------------------


def counted(text):
    pieces = f" {' '.join(text[:400].lower().split())} ".encode("utf-8", "replace")
    return Counter(zlib.crc32(pieces[i : i + 3]) % 1024 for i in range(len(pieces) - 2))


def length(counts):
    return math.sqrt(sum(n * n for n in counts.values())) or 1.0


def check(query, k, answer, lines):
    """`lines`: {(file, number): (text, counts)}. Equal scores may come in any order."""
    wanted = counted(query)
    scores = {where: sum(n * wanted[place] for place, n in counts.items()) / length(counts) / length(wanted)
              for where, (_, counts) in lines.items()}  # fmt: skip
    found = [(hit["file"], hit["line"]) for hit in answer]
    assert len(set(found)) == len(found) == min(k, sum(score > 0 for score in scores.values()))
    assert [hit["text"] for hit in answer] == [lines[where][0] for where in found]
    best = sorted(scores.values(), reverse=True)
    for hit, where, score in zip(answer, found, best):
        assert scores[where] == pytest.approx(score, abs=1e-6)  # none that is left out is better
        assert hit["score"] == pytest.approx(score, abs=0.6e-4)


QUERIES = ["import sys", "raise ValueError", "RAISE  valueerrer", "def", "x", "", " \t", "no such thing: \u00e9\u4e16\U0001f600", "a" * 1000]


def test_every_answer_is_the_best_there_is_also_when_all_are_asked_at_once(host, tmp_path):  # noqa: F811
    (tmp_path / "odd").write_text("a\n\na\n  A \n" + "a" * 999 + "\n\u0130\u00e9\u4e16\U0001f600\nimport\tsys\n", "utf-8")
    (tmp_path / "latin").write_bytes(b"caf\xe9 au lait\n")
    (tmp_path / "binary").write_bytes(b"import sys\n\0")
    paths = [Path(asyncio.__file__).parent / "events.py", tmp_path / "odd", tmp_path / "latin"]
    lines = {(str(path), number): (text.strip(), counted(text.strip())) for path in paths
             for number, text in enumerate(path.read_text("utf-8", "replace").splitlines(), 1) if text.strip()}  # fmt: skip
    h = host(Search, plugins=["stream"], options={"paths": f"{paths[0]} {tmp_path}"})
    assert h.call("stats")["lines"] == len(lines)
    asked = [(query, k) for query in QUERIES for k in (1, 7, 100)]
    for query, k in asked:
        check(query, k, h.call("search", query=query, k=k), lines)
    with ThreadPoolExecutor(len(asked)) as threads:
        answers = list(threads.map(lambda pair: h.call("search", query=pair[0], k=pair[1]), asked * 2))
    for (query, k), answer in zip(asked * 2, answers):
        check(query, k, answer, lines)


def test_a_small_queue_only_makes_it_slower(host, tmp_path):  # noqa: F811
    (tmp_path / "pangrams").write_text(TEXT)
    h = host(Search, plugins={"stream": {"library": "stream", "queue": 4}}, options={"paths": tmp_path})
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: h.call("search", query="jumps over the LAZY dog", k=1), range(16)))
    assert [answer[0]["line"] for answer in answers] == [2] * 16
