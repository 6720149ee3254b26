# SPDX-License-Identifier: BSD-3-Clause
"""linesearch under pytest, each test in a host of its own: PYTHONPATH=PREFIX/share/bulkhead/python pytest"""

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
