# SPDX-License-Identifier: BSD-3-Clause
"""Endpoints' conversions without a host, on annotations and JSON that hypothesis makes up.

A value either becomes what its annotation says, by a check of its own here, or is refused with place, given and accepted
in text that any reply can hold; never anything else. What comes out as JSON can be given again.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import math
import os
import pathlib
import pickle
import sys
import typing
import uuid
from typing import Any, Literal, NamedTuple, Optional, TypedDict, Union

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "python"))

import bulkhead  # noqa: E402
from bulkhead import _convert, _endpoint  # noqa: E402

hypothesis = pytest.importorskip("hypothesis", reason="Debian's python3-hypothesis is not installed")
from hypothesis import given, note, settings, strategies as st  # noqa: E402

EXAMPLES = settings(deadline=None, derandomize=True, database=None, print_blob=False,
                    suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip


class Color(enum.Enum):
    RED = "red"
    BLUE = 2
    HALF = 0.5


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Point:
    x: float
    y: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Tree:
    name: str
    children: list[Tree] = dataclasses.field(default_factory=list)


class Options(TypedDict, total=False):
    depth: typing.Required[int]
    note: Optional[str]


class Pair(NamedTuple):
    left: int
    right: str = "r"


# ---- annotations, and values of them -----------------------------------------------------------------

ZONES = st.one_of(st.none(), st.integers(-1439, 1439).map(lambda m: datetime.timezone(datetime.timedelta(minutes=m))))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=8)

LEAVES = {
    bool: st.booleans(), int: st.integers(), float: FINITE, str: TEXT, type(None): st.none(),
    datetime.datetime: st.datetimes(timezones=ZONES), datetime.date: st.dates(), datetime.time: st.times(timezones=ZONES),
    datetime.timedelta: st.timedeltas(datetime.timedelta(days=-36500), datetime.timedelta(days=36500)),
    uuid.UUID: st.uuids(), decimal.Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    pathlib.Path: st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=8).map(pathlib.Path),
    bytes: st.binary(max_size=8), bytearray: st.binary(max_size=8).map(bytearray), Color: st.sampled_from(Color),
    Bits: st.sampled_from([Bits.A, Bits.B, Bits.A | Bits.B]), Literal["a", 1, True, None]: st.sampled_from(["a", 1, True, None]),
    Point: st.builds(Point, FINITE, st.integers(), st.lists(TEXT, max_size=2)),
    Tree: st.recursive(st.builds(Tree, TEXT), lambda t: st.builds(Tree, TEXT, st.lists(t, max_size=2)), max_leaves=4),
    Options: st.fixed_dictionaries({"depth": st.integers()}, optional={"note": st.one_of(st.none(), TEXT)}),
    Pair: st.builds(Pair, st.integers(), TEXT),
}  # fmt: skip
HASHED = (bool, int, float, str, datetime.date, uuid.UUID, decimal.Decimal, Color, pathlib.Path)
KEYS = (str, int, datetime.date, uuid.UUID, Color, datetime.time, bool, float, datetime.datetime)


def containers(inner):
    """Of (annotation, its values)."""
    hashed = st.sampled_from([(hint, LEAVES[hint]) for hint in HASHED])
    keys = st.sampled_from([(hint, LEAVES[hint]) for hint in KEYS])
    return st.one_of(
        inner.map(lambda p: (list[p[0]], st.lists(p[1], max_size=3))),
        inner.map(lambda p: (tuple[p[0], ...], st.lists(p[1], max_size=3).map(tuple))),
        st.tuples(inner, inner).map(lambda pp: (tuple[pp[0][0], pp[1][0]], st.tuples(pp[0][1], pp[1][1]))),
        inner.map(lambda p: (Optional[p[0]], st.one_of(st.none(), p[1]))),
        st.tuples(keys, inner).map(lambda kp: (dict[kp[0][0], kp[1][0]], st.dictionaries(kp[0][1], kp[1][1], max_size=3))),
        hashed.map(lambda p: (set[p[0]], st.sets(p[1], max_size=3))),
        hashed.map(lambda p: (frozenset[p[0]], st.frozensets(p[1], max_size=3))),
    )


TYPED = st.recursive(st.sampled_from(list(LEAVES.items())), containers, max_leaves=4)
# More than what can be told back from JSON: what is tried in turn, or takes anything.
HINTS = st.one_of(
    TYPED.map(lambda p: p[0]),
    st.sampled_from([Any, object, list, dict, tuple, Union[int, str], Union[datetime.date, list[int], str], Union[Point, list[Point], None],
                     Union[float, int, bool], Union[Color, Bits], memoryview, dict[Literal["a", 1], bytes], dict[Optional[int], str]]),
)  # fmt: skip

CORNERS = [
    "red", "RED", "2", "0.5", "true", "null", "2024-02-29", "2024-02-29T10:00:00Z", "10:00",
    "9999-12-31T23:59:59.999999+23:59", "0000-00-00", "{}", "[]", "PT5S", "-P1W", "P99999999999W", "PT1e9S", "AP8=",
    "1e400", "1e999999999999999999999", "9" * 5000, "Infinity", "-0", "\0", "\ud800", "x" * 100,
    "12345678-1234-5678-1234-567812345678", 2**63, -1, 10**80, 10**400, -(10**400), 1e308, -1e300, 5e-324, -0.0,
    math.inf, -math.inf, math.nan, 3, 0.5, 2,
]  # fmt: skip
LIKELY = st.sampled_from(CORNERS)
NAMED = ["x", "y", "tags", "name", "children", "depth", "note", "left", "right", "1", "red", "2024-02-29", "\udfff"]
NAMES = st.one_of(st.sampled_from(NAMED), TEXT)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), FINITE, LIKELY, st.text(st.characters(blacklist_categories=()), max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)), max_leaves=8)  # fmt: skip


def conforms(hint, value) -> bool:
    """Whether `value` is what `hint` says, by Python's own rules; a class of its own for each value."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return True
    if origin is Union:
        return any(conforms(arg, value) for arg in args)
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if origin is tuple and args[1:] != (Ellipsis,):
        return type(value) is tuple and len(value) == len(args) and all(map(conforms, args, value))
    if origin in (list, tuple, set, frozenset):
        return type(value) is origin and all(conforms(args[0], item) for item in value)
    if origin is dict:
        return type(value) is dict and all(conforms(args[0], key) and conforms(args[1], item) for key, item in value.items())
    if hint is Options:
        return type(value) is dict and conforms(int, value["depth"]) and value.keys() <= {"depth", "note"} and \
            conforms(Optional[str], value.get("note"))  # fmt: skip
    if hint is Point:
        return type(value) is Point and conforms(float, value.x) and conforms(int, value.y) and conforms(list[str], value.tags)
    if hint is Tree:
        return type(value) is Tree and conforms(str, value.name) and conforms(list[Tree], value.children)
    if hint is Pair:
        return type(value) is Pair and conforms(int, value.left) and conforms(str, value.right)
    if hint is float:
        return type(value) is float and math.isfinite(value)
    if hint is decimal.Decimal:
        return type(value) is decimal.Decimal and value.is_finite()
    return isinstance(value, hint) if hint in (pathlib.Path, Bits, Color) else type(value) is hint


def is_shown(mismatch) -> bool:
    """In words, and not too many of them."""
    return bool(mismatch.given and mismatch.accepted) and len(mismatch.given) < 500 and len(mismatch.accepted) < 2000


def test_whatever_json_meets_whatever_annotation_it_becomes_that_or_is_refused_in_words():
    made = {True: 0, False: 0}

    def holds(hint, value):
        converter = _convert.Compiler().compile(hint)
        before = pickle.dumps(value)
        try:
            result = converter.convert(value)
        except _convert.Mismatch as mismatch:
            made[False] += 1
            assert is_shown(mismatch), (mismatch.path, mismatch.given, mismatch.accepted)
        else:
            made[True] += 1
            assert conforms(hint, result), result
        assert pickle.dumps(value) == before, "what was given was changed"

    for hint in LEAVES:  # each meets each corner
        for value in [*CORNERS, None, True, [], {}, [[]]]:
            holds(hint, value)
            holds(list[hint], [value, value])
    settings(EXAMPLES, max_examples=1000)(given(HINTS, JSON)(holds))()
    assert made[True] > 100 and made[False] > 100, made


def test_what_goes_out_as_json_comes_in_again_as_the_same():
    kinds = set()

    @settings(EXAMPLES, max_examples=800)
    @given(st.data())
    def holds(data):
        hint, values = data.draw(TYPED)
        value = data.draw(values)
        kinds.add(hint if hint in LEAVES else typing.get_origin(hint))
        kind, body = _endpoint.encode([value], _endpoint.Accept("application/json"))
        back = json.loads(bytes(body))["result"][0]
        converter = _convert.Compiler().compile(hint)
        note(f"{converter.spelled} {back!r}")
        again = converter.convert(back)
        assert conforms(hint, again) and again == value

    holds()
    assert kinds >= {list, tuple, dict, set, frozenset} and len(kinds) >= 20, kinds


def test_any_text_of_a_key_or_a_query_string_becomes_what_its_annotation_says_or_is_refused():
    @settings(EXAMPLES, max_examples=500)
    @given(HINTS, st.lists(st.one_of(TEXT, LIKELY.map(str), JSON.map(json.dumps)), min_size=1, max_size=3))
    def holds(hint, texts):
        converter = _convert.Compiler().compile(hint)
        try:
            result = converter.from_text(texts)
        except _convert.Mismatch as mismatch:
            assert is_shown(mismatch)
        else:
            assert conforms(hint, result)

    holds()


class App:
    @bulkhead.endpoint
    async def many(self, a: Point, b: dict[Color, list[datetime.date]], *rest: Union[int, str], c: Optional[bytes] = None,
                   d: Union[Pair, Options, None] = None, **more: decimal.Decimal): ...  # fmt: skip

    @bulkhead.endpoint
    async def trees(self, tree: Tree, where: pathlib.Path = pathlib.Path("/"), when: datetime.datetime | datetime.time | None = None): ...


POINTS = st.fixed_dictionaries({"x": FINITE}, optional={"y": st.integers(), "tags": st.one_of(st.lists(TEXT, max_size=2), JSON)})
MANY = st.fixed_dictionaries({"a": POINTS, "b": st.one_of(st.just({"red": ["2024-02-29"]}), JSON)}, optional={
    "c": st.one_of(st.none(), JSON), "d": st.one_of(st.just([5]), JSON), "e": st.one_of(FINITE, JSON)})  # fmt: skip
TREES = st.fixed_dictionaries({"tree": st.one_of(st.just({"name": "a"}), JSON)}, optional={"where": st.one_of(TEXT, JSON), "when": JSON})
ARGUMENTS = st.one_of(MANY, TREES)
BODIES = st.one_of(ARGUMENTS.map(json.dumps).map(str.encode), ARGUMENTS.map(json.dumps).map(str.encode), st.lists(JSON, max_size=4).map(json.dumps).map(str.encode),
                   JSON.map(json.dumps).map(str.encode), st.binary(max_size=12), st.just(b"[" * 5000),
                   st.just(b'[{"x": ' + b"1" * 5000 + b"}]"))  # fmt: skip


def test_any_body_and_query_is_bound_or_answered_with_what_is_accepted():
    endpoints = _endpoint.collect(App())
    kinds = st.sampled_from([None, "application/json", "application/octet-stream", "text/csv", "Application/JSON; x", ""])
    queries = st.one_of(st.none(), st.text(st.sampled_from("abcdex=&%1f0[]{\":"), max_size=20))
    codes = {}

    def holds(name, body, kind, query):
        try:
            endpoints[name].bind(body, kind, query)
            code = None
        except _endpoint.BadRequest as error:
            code = error.code
            # As the reply has it: text that UTF-8 can hold.
            json.dumps({"message": str(error), "facts": error.facts}, ensure_ascii=False).encode()
            assert error.status in (400, 406, 415) and str(error)
            assert code == "bad-json" or error.facts["accepted"]
        codes[code] = codes.get(code, 0) + 1

    fits = {"many": {"a": {"x": 1}, "b": {"red": ["2024-02-29"]}, "c": None, "d": [5], "e": 1},
            "trees": {"tree": {"name": "a"}, "where": "/", "when": None}}
    for name, arguments in fits.items():  # each corner in each place
        for place, value in itertools.product(arguments, CORNERS):
            for worse in (value, [value], {value: value} if isinstance(value, str) else {"x": value}):
                holds(name, json.dumps(arguments | {place: worse}).encode(), None, None)
    settings(EXAMPLES, max_examples=800)(given(st.sampled_from(sorted(endpoints)), BODIES, kinds, queries)(holds))()
    assert {None, "bad-json", "bad-arguments", "unsupported-media-type"} <= codes.keys() and codes[None] > 20, codes


RESULTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(blacklist_categories=()), max_size=4),
              st.none().map(lambda none: 10**5000), st.builds(object), *LEAVES.values(), st.decimals(), st.complex_numbers()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(inner, max_size=2).map(tuple),
                            st.dictionaries(st.one_of(NAMES, st.integers(), FINITE, st.none(), st.dates(),
                                                      st.tuples(st.integers())), inner, max_size=3),
                            st.sets(st.one_of(st.integers(), TEXT, st.dates()), max_size=3)), max_leaves=6)  # fmt: skip


def test_any_result_is_json_or_named_by_its_place():
    made = {True: 0, False: 0}

    @settings(EXAMPLES, max_examples=800)
    @given(RESULTS)
    def holds(result):
        try:
            body = _convert.to_json(result)
        except _convert.BadResult as error:
            made[False] += 1
            assert error.where.startswith("result") and len(str(error)) > len(error.where)
            str(error).encode()  # it goes into a reply, too
        else:
            made[True] += 1
            json.loads(body.decode(), parse_constant=pytest.fail)

    holds()
    assert made[True] > 100 and made[False] > 100, made
