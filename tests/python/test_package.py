# SPDX-License-Identifier: BSD-3-Clause
"""The package outside the host: it imports, says clearly what it cannot do, and checks endpoints' arguments."""

import dataclasses
import inspect
import json
import os
import pickle
import subprocess
import sys
from typing import Any, Literal, Optional, Union

import pytest

PACKAGE_DIR = os.path.join(os.path.dirname(__file__), "..", "..", "python")
sys.path.insert(0, PACKAGE_DIR)

import bulkhead  # noqa: E402
from bulkhead import _endpoint, _errors, gil  # noqa: E402


def test_pool_outside_a_host_says_what_to_do():
    with pytest.raises(bulkhead.NotInHost) as caught:
        bulkhead.pool("stream")
    assert "bulkheadd" in str(caught.value) and "stream" in caught.value.facts["asked"]
    assert isinstance(caught.value, RuntimeError)


def test_a_buffer_outside_a_host_says_what_to_do():
    with pytest.raises(bulkhead.NotInHost) as caught:
        bulkhead.Buffer.allocate((2, 3), "float32")
    assert "bulkheadd" in str(caught.value) and "allocate((2, 3))" in caught.value.facts["asked"]
    with pytest.raises(TypeError, match="Buffer.allocate"):
        bulkhead.Buffer(16)


def test_import_needs_nothing_and_warns_of_nothing():
    code = "import bulkhead, sys; sys.exit('_bulkhead' in sys.modules)"
    env = {"PYTHONPATH": PACKAGE_DIR, "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-B", "-W", "error", "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_everything_public_is_listed_documented_and_annotated():
    for name in bulkhead.__all__:
        thing = getattr(bulkhead, name)
        assert inspect.getdoc(thing), name
    assert bulkhead.pool.__annotations__["return"] == "Pool"
    assert os.path.exists(os.path.join(PACKAGE_DIR, "bulkhead", "py.typed"))


@pytest.mark.parametrize("name", ["stats", "unsanctioned", "reset_unsanctioned", "force_unsanctioned"])
def test_the_gils_books_outside_a_host_say_what_to_do(name):
    with pytest.raises(bulkhead.NotInHost) as caught:
        getattr(gil, name)()
    assert "bulkheadd" in str(caught.value) and name in caught.value.facts["asked"]


def test_the_gils_books_are_documented_annotated_and_have_their_units_in_their_names():
    for name in gil.__all__:
        thing = getattr(gil, name)
        assert inspect.getdoc(thing), name
        if isinstance(thing, type):
            for field in dataclasses.fields(thing):
                assert field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
                if "float" in field.type:
                    assert field.name.endswith(("_s", "_at")), field.name
        else:
            assert "return" in thing.__annotations__, name


TOLD = {
    "holder": {"thread": "hold/0", "tid": 7, "plane": "data", "label": "hold", "site": "hold.call", "since_s": None,
               "shoe_size": 43},
    "gate": "open", "unsanctioned": 2, "later": {},
    "sites": [{"site": "hold.call", "policy": "data-only", "entries": 3, "wait_p99_s": 0.25, "wait_max_at": None,
               "later": 1, "planes": {"data": {"entries": 3, "later": 1}}}],
    "threads": [{"thread": "bulkheadd", "tid": 1, "state": "inside", "site": "host.dispatch", "coarse": True}],
}  # fmt: skip


def test_the_gils_books_take_what_they_know_and_leave_the_rest():
    stats = gil._make_stats(TOLD)
    assert stats.holder.tid == 7 and stats.holder.since_s is None and stats.holder.library is None
    assert (stats.gate, stats.unsanctioned, stats.ledger, stats.parked) == ("open", 2, "full", 0)
    site = stats.sites["hold.call"]
    assert (site.entries, site.nested, site.wait_p99_s, site.inside_max_at) == (3, 0, 0.25, None)
    assert site.planes == {"data": gil.Share(entries=3)}
    assert stats.threads == (gil.Thread("bulkheadd", 1, state="inside", site="host.dispatch", coarse=True),)
    assert gil._make_stats({}) == gil.Stats() and gil._make_stats({"holder": None}).holder is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.parked = 5


@pytest.mark.parametrize("kind", sorted(_errors._KINDS))
def test_errors_carry_code_and_facts_through_text_and_pickle(kind):
    error = _errors.from_host(kind, "pool.overloaded", {"pool": "a b", "queue": "64", "empty": "", "said": 'x"y'})
    assert isinstance(error, bulkhead.BulkheadError)
    assert error.code == "pool.overloaded" and error.facts["queue"] == "64"
    assert str(error).startswith('pool.overloaded: pool="a b" queue=64 empty="" said="x\\"y"')
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and again.facts == error.facts and str(again) == str(error)


def test_errors_are_what_callers_expect_them_to_be():
    assert issubclass(bulkhead.Deadline, TimeoutError)
    assert issubclass(bulkhead.BadArgument, TypeError)
    assert issubclass(bulkhead.Forked, RuntimeError)
    assert not issubclass(bulkhead.Interrupted, Exception)


class Sample:
    @bulkhead.endpoint
    async def typed(self, query: str, k: int = 5, *, weight: float = 1, maybe: Optional[list[int]] = None,
                    either: Union[int, str] = 0, mode: Literal["a", 1] = "a", table: dict[str, list[str]] = {},
                    whatever: Any = None):
        ...

    @bulkhead.endpoint
    def plain(self, on: bool, text: str | None = None, value: Any = None, pair: tuple = ()):
        ...

    def unmarked(self):
        ...

    @property
    def explosive(self):
        raise AssertionError("collecting endpoints runs no properties")


def endpoints():
    return _endpoint.collect(Sample())


def test_only_marked_methods_are_endpoints():
    assert set(endpoints()) == {"typed", "plain"}
    with pytest.raises(TypeError):
        bulkhead.endpoint(5)


@pytest.mark.parametrize("body", [
    {"on": True}, {"on": False, "text": None}, {"on": True, "text": "x", "value": {"a": [1]}}, [True, "x", 1, [1, 2]],
])
def test_arguments_that_fit_are_bound(body):
    bound = endpoints()["plain"].bind(json.dumps(body).encode())
    assert bound.arguments["on"] in (True, False)


@pytest.mark.parametrize("body, parameter", [
    ({"on": 1}, "on"), ({"on": None}, "on"), ({"on": True, "text": 5}, "text"), (["yes"], "on"),
])
def test_arguments_that_do_not_fit_are_named(body, parameter):
    with pytest.raises(_endpoint.BadRequest) as caught:
        endpoints()["plain"].bind(json.dumps(body).encode())
    assert caught.value.code == "bad-arguments" and caught.value.facts["parameter"] == parameter
    assert caught.value.facts["given"] and caught.value.facts["accepted"]


@pytest.mark.parametrize("body", [{}, [], [True, "x", 1, [], 5], {"on": True, "nope": 1}])
def test_too_many_too_few_or_unknown_arguments_list_what_is_accepted(body):
    with pytest.raises(_endpoint.BadRequest) as caught:
        endpoints()["plain"].bind(json.dumps(body).encode())
    assert caught.value.facts["accepted"].startswith("on: bool, text: str or None = None")


@pytest.mark.parametrize("body", [b"{", b"\xff", b"nul", b"5", b'"text"', b"null", b"[" * 100_000, b'{"a": NaN}', b'["\\ud800"]'],
                         ids=lambda body: repr(body[:10]))
def test_bodies_that_are_no_arguments_are_refused(body):
    with pytest.raises(_endpoint.BadRequest) as caught:
        endpoints()["plain"].bind(body)
    assert caught.value.code == "bad-json"


def test_results_are_what_json_can_express():
    @dataclasses.dataclass
    class Line:
        text: str
        score: float

    class Scalar:
        def tolist(self):
            return 7

    kind, body = _endpoint.encode([Line("ä", 0.5), Scalar()])
    assert kind == "application/json" and json.loads(body) == {"result": [{"text": "ä", "score": 0.5}, 7]}
    for bad in (object(), float("nan"), Line):
        with pytest.raises(ValueError):
            _endpoint.encode(bad)
