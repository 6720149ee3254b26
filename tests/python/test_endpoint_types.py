# SPDX-License-Identifier: BSD-3-Clause
"""Endpoints' arguments and results without a host: what annotations make of JSON, and what JSON is made of results."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import json
import os
import pathlib
import random
import sys
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, Union

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "python"))

import bulkhead  # noqa: E402
from bulkhead import _convert, _endpoint  # noqa: E402


class Color(enum.Enum):
    RED = "red"
    BLUE = 2
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0

    def __post_init__(self):
        if self.x > 1000:
            raise ValueError("x is beyond the edge")


@dataclasses.dataclass
class Tree:
    name: str
    children: list[Tree] = dataclasses.field(default_factory=list)
    at: Optional[Point] = None
    made: float = dataclasses.field(default=0.0, init=False)


class Options(TypedDict, total=False):
    depth: typing.Required[int]
    note: str


class Wide(Options):
    extra: NotRequired[list[int]]
    must: bool


class Pair(NamedTuple):
    left: int
    right: str = "r"


UserId = NewType("UserId", int)

DAY = datetime.date(2024, 2, 29)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")

GOOD = [
    (bool, True, True), (int, 5, 5), (int, 10**30, 10**30), (float, 5, 5.0), (float, 0.5, 0.5), (str, "ä\0", "ä\0"),
    (None, None, None), (Any, [1, {"a": None}], [1, {"a": None}]), (object, 1, 1),
    (list, [1, "x"], [1, "x"]), (list[int], [1], [1]), (list[float], [0.5, 2], [0.5, 2.0]), (list[float], [0.5], [0.5]), (list[bool], [], []), (typing.List[float], [1], [1.0]),
    (tuple, [1, "x"], (1, "x")), (typing.Tuple, [1], (1,)), (tuple[int, ...], [1, 2], (1, 2)), (tuple[()], [], ()),
    (tuple[int, str], [1, "x"], (1, "x")), (set[int], [1, 1, 2], {1, 2}), (frozenset[str], ["a"], frozenset("a")),
    (collections.abc.Sequence[int], [1], [1]), (collections.abc.Iterable[int], [1], [1]),
    (collections.abc.Mapping[str, int], {"a": 1}, {"a": 1}),
    (dict, {"a": [1]}, {"a": [1]}), (dict[str, float], {"a": 1}, {"a": 1.0}), (dict[int, str], {"7": "x"}, {7: "x"}),
    (dict[Color, int], {"red": 1, "2": 3}, {Color.RED: 1, Color.BLUE: 3}), (dict[datetime.date, int], {"2024-02-29": 1}, {DAY: 1}),
    (Optional[int], None, None), (Optional[int], 5, 5), (Union[int, str], "5", "5"), (float | int, 5, 5),
    (datetime.date | str, "2024-02-29", DAY), (datetime.date | str, "never", "never"),
    (list[Point] | Point, {"x": 1}, Point(1)), (Literal["a", 1, None], "a", "a"), (Literal["a", 1, None], None, None),
    (Literal[Level.LOW], 1, Level.LOW), (Color, "red", Color.RED), (Color, "RED", Color.RED), (Color, 2, Color.BLUE),
    (Color, "PAIR", Color.PAIR), (Level, 2, Level.HIGH), (Level, "HIGH", Level.HIGH), (Bits, 3, Bits.A | Bits.B),
    (Point, {"x": 1, "y": 2}, Point(1.0, 2.0)), (Tree, {"name": "a", "children": [{"name": "b", "at": {"x": 1}}]},
                                                 Tree("a", [Tree("b", at=Point(1.0))])),
    (Options, {"depth": 1}, {"depth": 1}), (Wide, {"depth": 1, "must": True, "extra": [2]}, {"depth": 1, "must": True, "extra": [2]}),
    (Pair, {"left": 1}, Pair(1)), (Pair, [1, "x"], Pair(1, "x")),
    (datetime.datetime, "2024-02-29T12:00:00Z", datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc)),
    (datetime.datetime, "2024-02-29", datetime.datetime(2024, 2, 29)), (datetime.date, "2024-02-29", DAY),
    (datetime.time, "12:30", datetime.time(12, 30)), (datetime.timedelta, 1.5, datetime.timedelta(seconds=1.5)),
    (datetime.timedelta, "P1DT2H0.5S", datetime.timedelta(days=1, hours=2, seconds=0.5)),
    (datetime.timedelta, "-PT1M", datetime.timedelta(minutes=-1)), (uuid.UUID, str(ID), ID),
    (decimal.Decimal, "1.50", decimal.Decimal("1.50")), (decimal.Decimal, 0.1, decimal.Decimal("0.1")),
    (pathlib.Path, "/a/b", pathlib.Path("/a/b")), (bytes, "AP8=", b"\0\xff"), (bytearray, "AP8=", bytearray(b"\0\xff")),
    (memoryview, "AP8=", memoryview(b"\0\xff")), (Annotated[int, "a note", []], 5, 5), (UserId, 5, 5),
]  # fmt: skip


@pytest.mark.parametrize("hint, given, made", GOOD, ids=lambda v: repr(v)[:40])
def test_a_value_that_fits_becomes_what_the_annotation_says(hint, given, made):
    got = _convert.Compiler().compile(hint).convert(given)
    assert got == made and type(got) is type(made)


BAD = [
    # annotation, given, path, words of what is accepted
    (bool, 1, "", "bool"), (int, True, "", "int"), (int, 1.0, "", "int"), (int, "1", "", "int"), (float, "1", "", "float"),
    (float, True, "", "float"), (float, 10**400, "", "finite"), (float, float("inf"), "", "finite"), (str, None, "", "str"),
    (list[int], [1] * 50 + [True], "[50]", "int"), (list[float], [0.5, 1, float("inf")], "[2]", "finite"), (list[float], [float("nan")], "[0]", "finite"),
    (None, 0, "", "None"), (list, {}, "", "list"), (list[int], [1, "x"], "[1]", "int"), (list[list[int]], [[1], [2, None]], "[1][1]", "int"),
    (tuple[int, str], [1], "", "a list of 2"), (tuple[int, str], [1, 2], "[1]", "str"), (set[Any], [1, []], "[1]", "set"),
    (dict[str, list[int]], {"a b": [1, "x"]}, '["a b"][1]', "int"), (dict[int, str], {"x": "y"}, '["x"]', "a key that is int"),
    (Optional[int], "x", "", "int or None"), (Optional[list[int]], [1, "x"], "[1]", "int"), (int | str, [], "", "int or str"),
    (list[int] | dict[str, int], {"a": "x"}, '["a"]', "int"), (Literal["a", 1], True, "", "'a' or 1"),
    (Color, "green", "", "'red' or 2 or 'PAIR'"), (Level, True, "", "1 or 2"), (Level, 3, "", "1 or 2"), (Bits, 8, "", "1 or 2"),
    (Bits, -1, "", "1 or 2"), (Color, True, "", "'red'"),
    (Point, [1], "", "an object of x: float, y: float (may be left out)"), (Point, {}, ".x", "float"), (Point, {"x": 1, "z": 2}, ".z", "x: float"),
    (Point, {"x": 2000}, "", "x is beyond the edge"), (Tree, {"name": "a", "children": [{"name": 1}]}, ".children[0].name", "str"),
    (Tree, {"name": "a", "made": 1.0}, ".made", "fields of Tree"), (Options, {}, ".depth", "int"), (Wide, {"depth": 1, "must": 1}, ".must", "bool"),
    (Options, {"depth": 1, "deep": 2}, ".deep", "depth: int"), (Pair, [1, "x", 2], "", "Pair"), (Pair, {"right": "x"}, ".left", "int"),
    (datetime.datetime, "yesterday", "", "ISO 8601"), (datetime.datetime, "2024-02-29x10:00", "", "ISO 8601"), (datetime.datetime, 5, "", "ISO"),
    (datetime.date, "2023-02-29", "", "ISO 8601"), (datetime.time, "25:00", "", "ISO 8601"), (datetime.timedelta, "P1Y", "", "seconds"),
    (datetime.timedelta, "P", "", "seconds"), (datetime.timedelta, "PT", "", "seconds"), (datetime.timedelta, 1e300, "", "seconds"),
    (datetime.timedelta, True, "", "seconds"), (uuid.UUID, "1234", "", "UUID"), (decimal.Decimal, "NaN", "", "finite"),
    (decimal.Decimal, True, "", "number"), (pathlib.Path, "a\0b", "", "NUL"), (bytes, "AP8", "", "base64"), (bytes, "ä", "", "base64"),
    (bytes, [1], "", "base64"),
]  # fmt: skip


@pytest.mark.parametrize("hint, given, path, words", BAD, ids=lambda v: repr(v)[:40])
def test_a_value_that_does_not_fit_is_named_by_its_place(hint, given, path, words):
    with pytest.raises(_convert.Mismatch) as caught:
        _convert.Compiler().compile(hint).convert(given)
    assert caught.value.path == path and words in caught.value.accepted and caught.value.given


def unsupported_class():
    class App:
        @bulkhead.endpoint
        async def one(self, a: int, b: collections.abc.Callable[[], int]): ...

        @bulkhead.endpoint
        async def two(self, c: list[threading.Thread]): ...  # noqa: F821

        @bulkhead.endpoint
        async def three(self, d: dict[tuple[int, int], str], *e: complex): ...

        @bulkhead.endpoint
        async def five(self, wrong: [int]): ...

        @bulkhead.endpoint
        async def four(self, fine: int) -> OnlyForTypeCheckers: ...  # noqa: F821

    return App()


def test_annotations_that_json_cannot_become_are_refused_when_the_app_is_loaded():
    with pytest.raises(TypeError) as caught:
        _endpoint.collect(unsupported_class(), "search")
    text = str(caught.value)
    assert text.startswith("app search: ") and "supported: bool, int" in text
    for words in ("endpoint one: parameter b", "Callable", "endpoint two: parameter c", "list[threading.Thread]", "NameError",
                  "endpoint three: parameter d", "keys", "endpoint five: parameter wrong"):  # fmt: skip
        assert words in text, words
    assert "four" not in text, "a result's annotation is not needed"


class Nested:
    class Inner(TypedDict):
        n: int

    @bulkhead.endpoint
    async def list(self, ids: list[int] = []): ...  # a name of the class that hides no type

    @bulkhead.endpoint
    async def f(self, inner: Inner, *rest: int, **more: datetime.date): ...


def test_names_of_the_class_are_found_and_rest_arguments_are_converted_each():
    endpoint = _endpoint.collect(Nested())["f"]
    bound = endpoint.bind(b'{"inner": {"n": 1}, "day": "2024-02-29"}')
    assert bound.kwargs == {"day": DAY} and bound.args == ({"n": 1},)
    assert endpoint.bind(b'[{"n": 1}, 2, 3]').args == ({"n": 1}, 2, 3)
    for body, parameter in ((b'[{"n": 1}, 2, "x"]', "rest[1]"), (b'{"inner": {"n": "x"}}', "inner.n"), (b'{"inner": {"n": 1}, "d": 5}', "d")):
        with pytest.raises(_endpoint.BadRequest) as caught:
            endpoint.bind(body)
        assert caught.value.facts["parameter"] == parameter and parameter in str(caught.value)


class Files:
    @bulkhead.endpoint
    async def put(self, data: bytes, name: str = "x", n: int = 1, tags: list[str] = [], deep: dict[str, int] = {}, **more: float):
        ...

    @bulkhead.endpoint
    async def maybe(self, data: Optional[bytearray] = None): ...

    @bulkhead.endpoint
    async def first(self, data: None | bytes): ...

    @bulkhead.endpoint
    async def two(self, a: bytes, b: memoryview): ...

    @bulkhead.endpoint
    async def none(self, a: str): ...


def octets(endpoint, body, query=None):
    return _endpoint.collect(Files())[endpoint].bind(body, "Application/Octet-Stream; x=y", query).arguments


def test_octets_become_the_one_parameter_of_bytes_and_the_query_the_others():
    assert octets("put", b"\xff{") == {"data": b"\xff{"}
    got = octets("put", b"", "name=12&n=3&tags=a&tags=b&deep=%7B%22a%22:1%7D&half=0.5")
    assert got == {"data": b"", "name": "12", "n": 3, "tags": ["a", "b"], "deep": {"a": 1}, "more": {"half": 0.5}}
    assert octets("put", b"", "tags=a")["tags"] == ["a"] and octets("put", b"", 'tags=["a","b"]')["tags"] == ["a", "b"]
    assert octets("first", b"x")["data"] == b"x"
    assert type(octets("maybe", b"x")["data"]) is bytearray
    assert _endpoint.collect(Files())["put"].bind(b'{"data": "AP8="}').arguments["data"] == b"\0\xff"


@pytest.mark.parametrize("endpoint, query, status, words", [
    ("two", None, 415, "a, b"), ("none", "a=x", 415, "no parameter of bytes"), ("put", "data=x", 400, "data"),
    ("put", "n=x", 400, "n: str"), ("put", "n=1&n=2", 400, "n"), ("put", "name=%ff", 400, "query"), ("put", "half=NaN", 400, "half"),
    ("maybe", "other=1", 400, "other"),
])  # fmt: skip
def test_octets_that_do_not_fit_are_told(endpoint, query, status, words):
    with pytest.raises(_endpoint.BadRequest) as caught:
        octets(endpoint, b"x", query)
    assert caught.value.status == status and words in str(caught.value) and caught.value.facts["accepted"]


def test_other_media_types_are_refused_with_what_is_accepted():
    endpoint = _endpoint.collect(Files())["put"]
    for kind in ("text/csv", "multipart/form-data; boundary=x", "image/png"):
        with pytest.raises(_endpoint.BadRequest) as caught:
            endpoint.bind(b"{}", kind)
        assert caught.value.status == 415 and caught.value.facts["accepted"] == "application/json, application/octet-stream"
    for kind in (None, "", "application/json; charset=utf-8", "application/x-www-form-urlencoded", "application/problem+json"):
        endpoint.bind(b'{"data": ""}', kind)
    _endpoint.collect(Files())["maybe"].bind(b"", "image/png")  # of nothing


def test_results_become_json():
    def made(result):
        kind, body = _endpoint.encode(result)
        assert kind == "application/json"
        return json.loads(body)["result"]

    assert made([DAY, datetime.datetime(2024, 2, 29, 1), datetime.time(1), datetime.timedelta(minutes=1)]) == [
        "2024-02-29", "2024-02-29T01:00:00", "01:00:00", 60.0]  # fmt: skip
    assert made({"id": ID, "d": decimal.Decimal("1.50"), "p": pathlib.Path("/a"), "b": b"\0\xff", "v": bytearray(b"x")}) == {
        "id": str(ID), "d": "1.50", "p": "/a", "b": "AP8=", "v": "eA=="}  # fmt: skip
    assert made([{3, 1, 2}, frozenset({"a"}), (1, 2), Color.PAIR, Color.RED, Level.HIGH]) == [[1, 2, 3], ["a"], [1, 2], [1, 2], "red", 2]
    assert made(Tree("a", [Tree("b")], Point(1.0))) == {
        "name": "a", "children": [{"name": "b", "children": [], "at": None, "made": 0.0}], "at": {"x": 1.0, "y": 0.0}, "made": 0.0}  # fmt: skip
    assert made(Pair(1)) == [1, "r"]
    assert made({1: "a", Color.RED: "b", DAY: "c", ID: "d", True: "e", None: "f"}) == {
        "1": "e", "red": "b", "2024-02-29": "c", str(ID): "d", "null": "f"}  # fmt: skip
    assert made(collections.deque([1])) == [1] and made(None) is None


@pytest.mark.parametrize("hint, value", [
    (list[Point], [Point(1.0)]), (Tree, Tree("a", [Tree("b")])), (Pair, Pair(1)), (set[int], {1, 2}), (Color, Color.PAIR),
    (datetime.datetime, datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)), (datetime.timedelta, datetime.timedelta(seconds=90)),
    (decimal.Decimal, decimal.Decimal("0.10")), (dict[uuid.UUID, list[datetime.date]], {ID: [DAY]}), (list[bytes], [b"\xff"]),
], ids=lambda v: repr(v)[:40])  # fmt: skip
def test_what_comes_back_can_be_given_again(hint, value):
    if value is Color.PAIR:
        pytest.skip("an Enum of other values than text and numbers goes by its name only")
    given = json.loads(_endpoint.encode(value)[1])["result"]
    if isinstance(given, dict) and isinstance(value, Tree):
        del given["made"], given["children"][0]["made"]  # init=False
    assert _convert.Compiler().compile(hint).convert(given) == value


async def unawaited():
    ...


@pytest.mark.parametrize("make, words", [
    (lambda: {"a": [0.0, float("nan")]}, ["result['a'][1]", "nan"]),
    (lambda: Point(1.0, float("-inf")), ["result.y", "-inf"]),
    (lambda: [1, object()], ["result[1]", "a object", "return None, numbers"]),
    (lambda: {"a": decimal.Decimal("Infinity")}, ["result['a']", "Infinity"]),
    (lambda: {(1, 2): 3}, ["result", "key (1, 2)", "tuple"]),
    (lambda: ["\ud800"], ["result[0]", "UTF-8"]),
    (lambda: [{"\ud800": 1}], ["result[0]", "key", "UTF-8"]),
    (lambda: [unawaited()], ["result[0]", "coroutine", "await"]),
    (lambda: Point, ["result", "type"]),
])  # fmt: skip
def test_a_result_that_json_cannot_express_is_named_by_its_place(make, words):
    with pytest.raises(_convert.BadResult) as caught:
        _endpoint.encode(make())
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.where == words[0]


def test_a_result_that_holds_itself_is_told():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(_convert.BadResult, match="itself"):
        _endpoint.encode(loop)


def test_bytes_go_as_octets_unless_the_client_takes_json_only():
    octets, text = "application/octet-stream", "application/json"
    for header in (None, "*/*", "application/*", "application/octet-stream", "text/html, application/octet-stream;q=0.5"):
        kind, body = _endpoint.encode(b"\xff", _endpoint.Accept(header))
        assert (kind, bytes(body)) == (octets, b"\xff"), header
    for header in ("application/json", "application/json, application/octet-stream;q=0"):
        assert _endpoint.encode(b"\xff", _endpoint.Accept(header)) == (text, b'{"result": "/w=="}'), header
    with pytest.raises(_endpoint.BadRequest) as caught:
        _endpoint.encode([1], _endpoint.Accept("application/octet-stream"))
    assert caught.value.status == 406 and caught.value.facts["accepted"] == "application/json"
    with pytest.raises(_endpoint.BadRequest) as caught:
        _endpoint.Accept("text/html")
    assert caught.value.status == 406


def test_an_array_goes_as_numbers_or_as_octets_where_the_client_names_them():
    import array

    numbers = array.array("b", [1, 2])
    assert _endpoint.encode(numbers) == ("application/json", b'{"result": [1, 2]}')
    kind, body = _endpoint.encode(numbers, _endpoint.Accept("application/octet-stream"))
    assert kind == "application/octet-stream" and bytes(body) == b"\1\2"
    assert bytes(_endpoint.encode(memoryview(b"abcd")[::2])[1]) == b"ac" and _endpoint.encode([memoryview(b"abcd")[::2]])[1]


def test_options_of_the_decorator():
    class App:
        @bulkhead.endpoint(timeout=5, limit=2, name="look up")
        async def find(self): ...

    endpoint = _endpoint.collect(App())["look up"]
    assert (endpoint.timeout, endpoint.limit) == (5, 2)
    for bad in ({"timeout": 0}, {"timeout": "5"}, {"timeout": float("nan")}, {"timeout": True}, {"limit": 0}, {"limit": 1.5},
                {"limit": True}, {"name": ""}, {"name": "a/b"}, {"name": "a\n"}):  # fmt: skip
        with pytest.raises(ValueError, match="bulkhead.endpoint"):
            bulkhead.endpoint(**bad)
    with pytest.raises(TypeError, match="async def"):
        bulkhead.endpoint(timeout=1)(lambda self: None)

    class Twice:
        @bulkhead.endpoint(name="same")
        def a(self): ...

        @bulkhead.endpoint(name="same")
        def b(self): ...

    with pytest.raises(TypeError, match="same"):
        _endpoint.collect(Twice())


def test_an_endpoint_describes_itself():
    told = json.loads(json.dumps(_endpoint.collect(Files())["put"].describe(), allow_nan=False))
    assert told["name"] == "put" and told["binary"] == "data" and told["parameters"][1] == {
        "name": "name", "type": "str", "kind": "positional-or-keyword", "required": False, "default": "'x'"}  # fmt: skip
    assert [p["required"] for p in told["parameters"]] == [True, False, False, False, False, False]


class Complex:
    @bulkhead.endpoint
    async def f(self, tree: Tree, options: Wide, pairs: list[Pair], when: datetime.datetime | datetime.date, by: dict[Level, set[int]],
                how: Color | Literal["x", 1] = "x", span: datetime.timedelta = datetime.timedelta(), raw: Optional[bytes] = None,
                either: list[Point] | Point | None = None, **more: decimal.Decimal): ...  # fmt: skip


def random_json(rng, depth=0):
    kinds = 8 if depth < 4 else 6
    match rng.randrange(kinds):
        case 0:
            return rng.choice([None, True, False])
        case 1:
            return rng.choice([0, 1, 2, -1, 10**30, 10**400])
        case 2:
            return rng.choice([0.5, -1e300, 5e-324])
        case 3 | 4 | 5:
            return rng.choice(["", "red", "x", "HIGH", "2024-02-29", "2024-02-29T10:00:00Z", "PT5S", "AP8=", "1.5", "\0", "ä\U0001f600"])
        case 6:
            return [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    names = ["tree", "name", "children", "at", "x", "y", "options", "depth", "must", "extra", "pairs", "left", "when", "by", "1", "HIGH"]
    return {rng.choice(names): random_json(rng, depth + 1) for _ in range(rng.randrange(5))}


def mutate(rng, value):
    """The value with a random place in it replaced."""
    if rng.random() < 0.3 or not isinstance(value, (list, dict)) or not value:
        return random_json(rng)
    if isinstance(value, list):
        i = rng.randrange(len(value))
        return [mutate(rng, item) if i == j else item for j, item in enumerate(value)]
    key = rng.choice(sorted(value))
    if rng.random() < 0.1:
        return {k: v for k, v in value.items() if k != key}
    return {k: mutate(rng, v) if k == key else v for k, v in value.items()}


FITS = {
    "tree": {"name": "a", "children": [{"name": "b", "at": {"x": 1}}]}, "options": {"depth": 1, "must": True, "extra": [1]},
    "pairs": [[1, "x"], {"left": 2}], "when": "2024-02-29", "by": {"1": [1, 2], "HIGH": []}, "how": "red", "span": "PT5S", "raw": "AP8=",
    "either": [{"x": 1}], "price": "1.50",
}  # fmt: skip


def test_whatever_json_comes_it_is_bound_or_refused_with_its_place():
    endpoint = _endpoint.collect(Complex())["f"]
    endpoint.bind(json.dumps(FITS).encode())
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    bound = refused = 0
    for _ in range(4000):
        value = mutate(rng, FITS)
        body = json.dumps(value).encode()
        try:
            endpoint.bind(body)
            bound += 1
        except _endpoint.BadRequest as error:
            refused += 1
            json.dumps(error.facts, ensure_ascii=False).encode()
            if error.code == "bad-arguments":
                assert error.facts["accepted"], (seed, body)
        except Exception as error:
            pytest.fail(f"seed {seed}, body {body[:500]!r}: {type(error).__name__}: {error}")
    assert bound > 50 and refused > 500, (seed, bound, refused)


@pytest.mark.parametrize("depth", [300, 2000, 100_000])
def test_deep_json_is_refused_and_not_followed_to_the_end(depth):
    endpoint = _endpoint.collect(Complex())["f"]
    tree = b'{"name":"a","children":[' * depth + b"]}" * depth
    with pytest.raises(_endpoint.BadRequest):  # deep enough the depth is the reason, else the missing arguments
        endpoint.bind(b'{"tree":' + tree + b"}")
