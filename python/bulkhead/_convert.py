# SPDX-License-Identifier: BSD-3-Clause
"""JSON to Python by annotations, and Python to JSON: what an endpoint's arguments and results pass through.

compile_hint() reads an annotation once, when the app is loaded; Unsupported says what it cannot read. The Converter
that it gives turns a JSON value into what the annotation says, or raises Mismatch with the place in the value.
"""

from __future__ import annotations

import base64
import binascii
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import json
import math
import operator
import pathlib
import re
import types
import typing
import uuid
from typing import Any, Callable, Iterable, Iterator, Optional, Union

SUPPORTED = (
    "bool, int, float, str, None, Any, object, list, tuple, set, frozenset, dict, Sequence, Mapping and the like with "
    "their item types, Optional, Union, Literal, Enum, dataclasses, TypedDict, NamedTuple, datetime, date, time, "
    "timedelta, UUID, Decimal, Path, bytes, bytearray, memoryview, Annotated, NewType"
)

_ALIAS: Any = getattr(typing, "TypeAliasType", None)  # `type X = …`, from Python 3.12 on
_SHOWN_MAX = 60  # characters of a value in a message
_NAMES_MAX = 12  # of an enumeration's members in a message


class Unsupported(Exception):
    """An annotation that no JSON value can be converted to."""


class Mismatch(Exception):
    """A value that does not fit its annotation: where in it, what was given, what is accepted."""

    def __init__(self, given: str, accepted: str) -> None:
        super().__init__()
        self.path = ""  # from the value that convert() was called with: ".name[3]"
        self.depth = 0
        self.given = given
        self.accepted = accepted

    def inside(self, part: str) -> Mismatch:
        self.path = part + self.path
        self.depth += 1
        return self


_Convert = Callable[[Any], Any]


class Converter:
    """One annotation. `convert` takes a JSON value (as json.loads gives it) and raises Mismatch."""

    __slots__ = ("spelled", "convert", "is_key", "is_binary", "is_text")

    def __init__(self, spelled: str, convert: _Convert, *, key: bool = False, binary: bool = False, text: bool = False):
        self.spelled = spelled
        self.convert = convert
        self.is_key = key  # may be a dict's key: what it takes has a spelling in a JSON string
        self.is_binary = binary  # bytes and the like, or None or such: a body that is no JSON can become it
        self.is_text = text  # takes any text as it is

    def from_text(self, texts: list[str]) -> Any:
        """From a query string or a key: as text where that fits, else read as JSON; a list may be several texts."""
        one = texts[0] if len(texts) == 1 else None
        tries: list[Any] = []
        if one is not None:
            tries += [one, *_as_json(one)]
        tries += [texts, [next(_as_json(text), text) for text in texts]]
        first: Optional[Mismatch] = None
        for value in tries:
            try:
                return self.convert(value)
            except Mismatch as mismatch:
                first = first or mismatch
        assert first is not None
        raise first


def _as_json(text: str) -> Iterator[Any]:
    try:
        yield json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON; numbers are finite")


def describe(value: Any) -> str:
    """A JSON value in a message: its type, and as much of it as is readable."""
    kind = type(value).__name__
    if isinstance(value, (list, dict)):
        if not value:
            return f"{kind} {json.dumps(value)}"
        few = json.dumps(value, ensure_ascii=False) if len(value) <= 8 and _is_flat(value) else ""
        if 0 < len(few) <= _SHOWN_MAX:
            return f"{kind} {few}"
        return f"{kind} of {len(value)}"
    if isinstance(value, str):
        cut = len(value) > _SHOWN_MAX
        return f"str {json.dumps(value[:_SHOWN_MAX], ensure_ascii=False)}{'…' if cut else ''}"
    if isinstance(value, bytes):  # a body
        return f"{len(value)} bytes"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"int of {value.bit_length()} bits"
    return f"{kind} {json.dumps(value)}"


def _is_flat(value: Union[list[Any], dict[str, Any]]) -> bool:
    items: Iterable[Any] = value.values() if isinstance(value, dict) else value
    keys: Iterable[Any] = value if isinstance(value, dict) else ()
    return all(not isinstance(item, (list, dict)) and (not isinstance(item, str) or len(item) <= _SHOWN_MAX) and
               (not isinstance(item, int) or item.bit_length() <= 256) for item in (*items, *keys))  # fmt: skip


# ---- scalars ------------------------------------------------------------------------------------


def _simple(kind: type, spelled: str) -> _Convert:
    """bool, int, str: JSON has them; True is no int."""

    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise Mismatch(describe(value), spelled)

    return convert


def _float(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            pass
    raise Mismatch(describe(value), "float (a finite number)")


def _none(value: Any) -> None:
    if value is not None:
        raise Mismatch(describe(value), "None")


def _from_str(spelled: str, make: Callable[[str], Any]) -> _Convert:
    def convert(value: Any) -> Any:
        if type(value) is str:
            try:
                return make(value)
            except (ValueError, ArithmeticError):
                pass
        raise Mismatch(describe(value), spelled)

    return convert


# What datetime.fromisoformat() takes besides ISO 8601 ("2024-01-01x10:00") is refused.
_ISO_DATETIME = re.compile(r"[0-9W-]+([T ][0-9:.,]+(Z|[+-][0-9:.]+)?)?")
_ISO_DURATION = re.compile(
    r"([+-])?P(?=.)(?:(\d+(?:[.,]\d+)?)W)?(?:(\d+(?:[.,]\d+)?)D)?"
    r"(?:T(?=.)(?:(\d+(?:[.,]\d+)?)H)?(?:(\d+(?:[.,]\d+)?)M)?(?:(\d+(?:[.,]\d+)?)S)?)?",
    re.ASCII,
)


def _datetime(text: str) -> datetime.datetime:
    if not _ISO_DATETIME.fullmatch(text):
        raise ValueError
    return datetime.datetime.fromisoformat(text)


def _timedelta(value: Any) -> datetime.timedelta:
    """Seconds, or an ISO 8601 duration without years and months, which have no fixed length."""
    try:
        if type(value) in (int, float):
            return datetime.timedelta(seconds=value)
        if type(value) is str and (found := _ISO_DURATION.fullmatch(value)):
            w, d, h, m, s = (float((part or "0").replace(",", ".")) for part in found.groups()[1:])
            length = datetime.timedelta(weeks=w, days=d, hours=h, minutes=m, seconds=s)
            return -length if found.group(1) == "-" else length
    except (OverflowError, ValueError):
        pass
    raise Mismatch(describe(value), 'timedelta (seconds, or ISO 8601 such as "PT1H30M")')


def _decimal(value: Any) -> decimal.Decimal:
    try:
        if type(value) in (int, float):
            number = decimal.Decimal(str(value))
        elif type(value) is str:
            number = decimal.Decimal(value)
        else:
            raise Mismatch(describe(value), "Decimal (a number, or a string of one)")
        if number.is_finite():
            return number
    except (decimal.InvalidOperation, ValueError):
        pass
    raise Mismatch(describe(value), "Decimal (a finite number, or a string of one)")


def _path(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def make(text: str) -> Any:
        if "\0" in text:
            raise ValueError
        return kind(text)

    return make


def _bytes(kind: Callable[[bytes], Any], name: str) -> _Convert:
    """From base64; a body of octets is handed through as bytes."""

    def convert(value: Any) -> Any:
        if type(value) is bytes:
            return kind(value)
        if type(value) is str:
            try:
                return kind(base64.b64decode(value, validate=True))
            except (binascii.Error, ValueError):
                pass
        raise Mismatch(describe(value), f"{name} (a string of base64)")

    return convert


def _any(value: Any) -> Any:
    return value


_PLAIN: dict[Any, Converter] = {
    Any: Converter("any", _any, key=True, text=True),
    object: Converter("any", _any, key=True, text=True),
    bool: Converter("bool", _simple(bool, "bool"), key=True),
    int: Converter("int", _simple(int, "int"), key=True),
    float: Converter("float", _float, key=True),
    str: Converter("str", _simple(str, "str"), key=True, text=True),
    type(None): Converter("None", _none),
    datetime.datetime: Converter("datetime", _from_str("datetime (ISO 8601)", _datetime), key=True),
    datetime.date: Converter("date", _from_str("date (ISO 8601)", datetime.date.fromisoformat), key=True),
    datetime.time: Converter("time", _from_str("time (ISO 8601)", datetime.time.fromisoformat), key=True),
    datetime.timedelta: Converter("timedelta", _timedelta, key=True),
    uuid.UUID: Converter("UUID", _from_str("UUID", uuid.UUID), key=True),
    decimal.Decimal: Converter("Decimal", _decimal, key=True),
    bytes: Converter("bytes", _bytes(bytes, "bytes"), binary=True),
    bytearray: Converter("bytearray", _bytes(bytearray, "bytearray"), binary=True),
    memoryview: Converter("memoryview", _bytes(memoryview, "memoryview"), binary=True),
    **{kind: Converter(kind.__name__, _from_str("Path (a string without NUL)", _path(kind)), key=True)
       for kind in (pathlib.Path, pathlib.PurePath, pathlib.PosixPath, pathlib.PurePosixPath)},
}  # fmt: skip


# ---- containers ---------------------------------------------------------------------------------

_SEQUENCES: dict[Any, Callable[[Any], Any]] = {
    list: list, set: set, frozenset: frozenset,
    collections.abc.Sequence: list, collections.abc.MutableSequence: list, collections.abc.Collection: list,
    collections.abc.Iterable: list, collections.abc.Set: frozenset, collections.abc.MutableSet: set,
}  # fmt: skip
# Of these a JSON value of the right type is the argument.
_AS_THEY_ARE: dict[Converter, type] = {_PLAIN[kind]: kind for kind in (bool, int, float, str)}
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _convert_items(value: list[Any], item: Converter) -> list[Any]:
    kind = _AS_THEY_ARE.get(item)
    if kind is not None and set(map(type, value)) <= {kind} and (kind is not float or all(map(math.isfinite, value))):
        return value  # long lists of numbers: not one by one
    convert, items = item.convert, []
    for i, each in enumerate(value):
        try:
            items.append(convert(each))
        except Mismatch as mismatch:
            raise mismatch.inside(f"[{i}]") from None
    return items


def _sequence(make: Callable[[Any], Any], item: Converter, spelled: str) -> _Convert:
    hashed = make in (set, frozenset)

    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise Mismatch(describe(value), spelled)
        items = _convert_items(value, item)
        if not hashed:
            return items
        for i, each in enumerate(items):
            try:
                hash(each)
            except TypeError:
                raise Mismatch(describe(value[i]), "what a set can hold, such as text and numbers").inside(f"[{i}]") from None
        return make(items)

    return convert


def _fixed_tuple(parts: list[Converter], spelled: str) -> _Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list or len(value) != len(parts):
            raise Mismatch(describe(value), f"{spelled}: a list of {len(parts)}")
        items = []
        for i, part in enumerate(parts):
            try:
                items.append(part.convert(value[i]))
            except Mismatch as mismatch:
                raise mismatch.inside(f"[{i}]") from None
        return tuple(items)

    return convert


def _mapping(key: Converter, item: Converter, spelled: str) -> _Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch(describe(value), spelled)
        made = {}
        for name, each in value.items():
            try:
                made[name if key.is_text else _convert_key(key, name)] = item.convert(each)
            except Mismatch as mismatch:
                raise mismatch.inside(f"[{_quote(name)}]") from None
        return made

    return convert


def _convert_key(key: Converter, name: str) -> Any:
    try:
        return key.from_text([name])
    except Mismatch as mismatch:
        raise Mismatch(f"the key {_quote(name)}", f"a key that is {mismatch.accepted}") from None


def _quote(name: str) -> str:
    return json.dumps(name if len(name) <= _SHOWN_MAX else name[:_SHOWN_MAX] + "…", ensure_ascii=False)


def _union(parts: list[Converter], spelled: str) -> _Convert:
    # In the order written; but an int that a float would take as well stays one.
    ordered = sorted(parts, key=lambda part: part.convert is _float)

    def convert(value: Any) -> Any:
        deeper = []
        for part in ordered:
            try:
                return part.convert(value)
            except Mismatch as mismatch:
                if mismatch.depth:
                    deeper.append(mismatch)
        if len(deeper) == 1:  # the only alternative whose outer form fits
            raise deeper[0]
        raise Mismatch(describe(value), spelled)

    return convert


def _literal(choices: tuple[Any, ...], spelled: str) -> _Convert:
    members = [_enum(type(choice), [choice], spelled) for choice in choices if isinstance(choice, enum.Enum)]
    plain = [choice for choice in choices if not isinstance(choice, enum.Enum)]

    def convert(value: Any) -> Any:
        for choice in plain:
            if type(value) is type(choice) and value == choice:
                return choice
        for member in members:
            try:
                return member(value)
            except Mismatch:
                pass
        raise Mismatch(describe(value), spelled)

    return convert


def _enum(kind: Any, members: list[Any], accepted: str, flags: int = 0) -> _Convert:
    """`flags`: the values that may be combined, of a Flag."""

    def convert(value: Any) -> Any:
        for member in members:
            plain = member.value
            if isinstance(plain, enum.Enum) or type(plain) not in (str, int, float, bool, type(None)):
                continue
            if plain == value and (type(plain) is type(value) or {type(plain), type(value)} == {int, float}):
                return member
        if type(value) is str and value in kind.__members__ and kind.__members__[value] in members:
            return kind.__members__[value]
        if flags and type(value) is int and value >= 0 and value & ~flags == 0:
            return kind(value)
        raise Mismatch(describe(value), accepted)

    return convert


# ---- objects with fields ------------------------------------------------------------------------


@dataclasses.dataclass
class _Field:
    name: str
    converter: Converter
    required: bool


def _object(make: Callable[..., Any], fields: list[_Field], spelled: str, positional: bool) -> _Convert:
    known = {field.name: field for field in fields}

    def names() -> str:
        return ", ".join(f"{f.name}: {f.converter.spelled}{'' if f.required else ' (may be left out)'}" for f in fields)

    def convert(value: Any) -> Any:
        if positional and type(value) is list and len(value) <= len(fields):
            value = {field.name: each for field, each in zip(fields, value)}
        if type(value) is not dict:
            raise Mismatch(describe(value), f"{spelled}, an object of {names() or 'nothing'}")
        made = {}
        for name, each in value.items():
            field = known.get(name)
            if field is None:
                raise Mismatch(f"the unknown field {_quote(name)}", f"fields of {spelled}: {names() or 'none'}").inside(
                    f".{name[:_SHOWN_MAX]}")  # fmt: skip
            try:
                made[name] = field.converter.convert(each)
            except Mismatch as mismatch:
                raise mismatch.inside(f".{name}") from None
        for field in fields:
            if field.required and field.name not in made:
                raise Mismatch("nothing (a field is missing)", field.converter.spelled).inside(f".{field.name}")
        try:
            return make(**made)
        except (ValueError, TypeError) as error:  # its __post_init__ looks at values as well
            raise Mismatch(describe(value), f"{spelled}: {error}") from None

    return convert


class Compiler:
    """Reads annotations; one for an app, so that each type is read once and may refer to itself."""

    def __init__(self) -> None:
        self.made: dict[Any, Converter] = {}

    def compile(self, hint: Any) -> Converter:
        if hint is None:
            hint = type(None)
        try:
            known = _PLAIN.get(hint) or self.made.get(hint)
        except TypeError:  # Annotated and Literal may hold what has no hash
            return self.read(hint)
        return known or self.read(hint)

    def read(self, hint: Any) -> Converter:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated or origin in (typing.Required, typing.NotRequired):
            return self.compile(args[0])
        if isinstance(hint, typing.NewType):
            return self.compile(hint.__supertype__)
        if _ALIAS is not None and isinstance(hint, _ALIAS):
            return self.later(hint, hint.__name__, lambda: self.compile(hint.__value__).convert)
        if origin is Union or origin is types.UnionType:
            return self.read_union(args)
        if origin is typing.Literal:
            return self.read_literal(args)
        kind = origin or hint
        if type(kind).__hash__ is None:  # no type at all, such as [int]
            raise Unsupported(spell(hint))
        if kind is tuple:
            return self.read_tuple(args, bare=hint in (tuple, typing.Tuple))
        if kind in _SEQUENCES:
            return self.read_sequence(kind, args)
        if kind in _MAPPINGS:
            return self.read_mapping(kind, args)
        if isinstance(kind, type) and not args:
            return self.read_class(kind)
        raise Unsupported(spell(hint))

    def later(self, hint: Any, spelled: str, read: Callable[[], _Convert], **flags: bool) -> Converter:
        """The converter is known before it is read: what it consists of may mention it."""
        converter = self.made[hint] = Converter(spelled, _any, **flags)
        try:
            converter.convert = read()
        except BaseException:
            del self.made[hint]
            raise
        # Nobody has taken the provisional `convert` out of it: what is built of it looks when it is called.
        return converter

    def read_union(self, args: tuple[Any, ...]) -> Converter:
        parts = [self.compile(arg) for arg in args]
        spelled = " or ".join(part.spelled for part in parts)
        some = [part for part in parts if part is not _PLAIN[type(None)]]
        return Converter(spelled, _union(parts, spelled), key=bool(some) and all(part.is_key for part in some),
                         binary=bool(some) and all(part.is_binary for part in some),
                         text=any(part.is_text for part in parts[:1]))  # fmt: skip

    def read_literal(self, choices: tuple[Any, ...]) -> Converter:
        for choice in choices:
            if not isinstance(choice, (str, int, bool, type(None), enum.Enum)):
                raise Unsupported(f"Literal[{choice!r}]")
        shown = [repr(choice) if not isinstance(choice, enum.Enum) else str(choice) for choice in choices]
        spelled = " or ".join(shown)
        return Converter(spelled, _literal(choices, spelled), key=True)

    def read_tuple(self, args: tuple[Any, ...], bare: bool) -> Converter:
        if bare or len(args) == 2 and args[1] is Ellipsis:
            item = self.compile(args[0] if args else Any)
            spelled = "tuple" if bare else f"tuple[{item.spelled}, ...]"
            convert = _sequence(list, item, f"{spelled}: a list")
            return Converter(spelled, lambda value: tuple(convert(value)))
        parts = [self.compile(arg) for arg in args]
        spelled = f"tuple[{', '.join(part.spelled for part in parts) or '()'}]"
        return Converter(spelled, _fixed_tuple(parts, spelled))

    def read_sequence(self, kind: Any, args: tuple[Any, ...]) -> Converter:
        item = self.compile(args[0] if args else Any)
        make = _SEQUENCES[kind]
        name = make.__name__
        spelled = f"{name}[{item.spelled}]" if args else name
        return Converter(spelled, _sequence(make, item, spelled if make is list else f"{spelled}: a list"))

    def read_mapping(self, kind: Any, args: tuple[Any, ...]) -> Converter:
        key, item = (self.compile(arg) for arg in args or (str, Any))
        if not key.is_key:
            raise Unsupported(f"dict with keys of {key.spelled}: a JSON object's keys are text")
        spelled = f"dict[{key.spelled}, {item.spelled}]" if args else "dict"
        return Converter(spelled, _mapping(key, item, spelled))

    def read_class(self, kind: Any) -> Converter:
        if issubclass(kind, enum.Enum):
            members = list(kind)
            names = [_plain_or_name(member) for member in members]
            more = " …" if len(names) > _NAMES_MAX else ""
            accepted = f"{kind.__name__}: {' or '.join(names[:_NAMES_MAX])}{more}"
            flags = functools.reduce(operator.or_, (m.value for m in members), 0) if issubclass(kind, enum.Flag) else 0
            return self.later(kind, kind.__name__, lambda: _enum(kind, members, accepted, flags), key=True)
        if dataclasses.is_dataclass(kind):
            return self.later(kind, kind.__name__, lambda: self.read_dataclass(kind))
        if typing.is_typeddict(kind):
            return self.later(kind, kind.__name__, lambda: self.read_typed_dict(kind))
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self.later(kind, kind.__name__, lambda: self.read_named_tuple(kind))
        raise Unsupported(spell(kind))

    def fields(self, kind: Any, names: Iterable[tuple[str, bool]]) -> list[_Field]:
        """Their annotations, resolved where the class was made."""
        try:
            hints = typing.get_type_hints(kind, include_extras=True)
        except Exception as error:
            raise Unsupported(f"{spell(kind)}, whose annotations cannot be resolved ({type(error).__name__}: {error})") from None
        found = []
        for name, required in names:
            try:
                found.append(_Field(name, self.compile(hints.get(name, Any)), required))
            except Unsupported as error:
                raise Unsupported(f"{error} (in {kind.__name__}.{name})") from None
        return found

    def read_dataclass(self, kind: Any) -> _Convert:
        for name, field in kind.__dataclass_fields__.items():
            if getattr(field._field_type, "name", "") == "_FIELD_INITVAR":
                raise Unsupported(f"{spell(kind)}, whose {name} is an InitVar")
        if not kind.__dataclass_params__.init:
            raise Unsupported(f"{spell(kind)}, which is a dataclass with init=False")
        missing = dataclasses.MISSING
        names = [(f.name, f.default is missing and f.default_factory is missing) for f in dataclasses.fields(kind) if f.init]
        return _object(kind, self.fields(kind, names), kind.__name__, positional=False)

    def read_typed_dict(self, kind: Any) -> _Convert:
        hints = typing.get_type_hints(kind, include_extras=True)
        names = []
        for name, hint in hints.items():
            # With postponed annotations __required_keys__ has not seen the two.
            origin: Any = typing.get_origin(hint)
            marked = True if origin is typing.Required else False if origin is typing.NotRequired else None
            names.append((name, name in kind.__required_keys__ if marked is None else marked))
        return _object(dict, self.fields(kind, names), kind.__name__, positional=False)

    def read_named_tuple(self, kind: Any) -> _Convert:
        names = [(name, name not in kind._field_defaults) for name in kind._fields]
        return _object(kind, self.fields(kind, names), kind.__name__, positional=True)


def _plain_or_name(member: enum.Enum) -> str:
    return repr(member.value) if type(member.value) in (str, int, float, bool) else repr(member.name)


def spell(hint: Any) -> str:
    """An annotation as its author wrote it, about."""
    if isinstance(hint, str):
        return hint
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__qualname__ if hint.__module__ == "builtins" else f"{hint.__module__}.{hint.__qualname__}"
    return str(hint).replace("typing.", "")


# ---- results ------------------------------------------------------------------------------------


class BadResult(ValueError):
    """JSON cannot express a result; `where` is the place in it."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where} {what}")
        self.where = where


def to_json(result: Any) -> bytes:
    """{"result": …}; BadResult when JSON cannot express it."""
    try:
        return _dump(result)
    except (TypeError, ValueError, RecursionError):
        pass  # the quick way cannot say where, and knows keys of text and numbers only
    try:
        return _dump(_plain(result, "result"))
    except RecursionError:
        raise BadResult("result", "refers to itself, or is nested too deeply for JSON") from None
    except BadResult:
        raise
    except (TypeError, ValueError) as error:
        raise BadResult("result", f"is not what JSON can express: {error}") from None


def _dump(result: Any) -> bytes:
    return _encoder.encode({"result": result}).encode()


def _default(value: Any) -> Any:
    """What json does not know, one step nearer to what it knows. TypeError when there is none."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset, collections.abc.Set)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            raise TypeError
        return str(value)
    if isinstance(value, (uuid.UUID, pathlib.PurePath)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")  # also of memory with gaps
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    if isinstance(value, collections.abc.Sequence) or isinstance(value, (collections.abc.KeysView, collections.abc.ValuesView)):
        return list(value)
    raise TypeError


_encoder = json.JSONEncoder(default=_default, allow_nan=False, ensure_ascii=False)


def _plain(value: Any, where: str) -> Any:
    """The same in what json knows, step by step, so that what does not fit can be named."""
    if value is None or isinstance(value, (bool, int)) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadResult(where, f"is {value!r}, which JSON does not have: return None or text in its place")
        return value
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadResult(where, f"is text that UTF-8 cannot express: {value[:_SHOWN_MAX]!r}") from None
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {_plain_key(key, where): _plain(item, f"{where}[{key!r:.60}]") for key, item in value.items()}
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise BadResult(where, f"is a {type(value).__name__} that nobody has awaited: write `await` before the call that made it")
    try:
        nearer = _default(value)
    except TypeError:
        kind = type(value)
        shown = f"{value!r:.60}" if isinstance(value, decimal.Decimal) else f"a {spell(kind)}"
        raise BadResult(where, f"is {shown}, which JSON cannot express: return {_RESULTS}") from None
    if type(nearer) is type(value):
        raise BadResult(where, f"is a {type(value).__qualname__}, which stays what it is: JSON cannot express it")
    if dataclasses.is_dataclass(value) and isinstance(nearer, dict) and not isinstance(value, enum.Enum):
        return {name: _plain(item, f"{where}.{name}") for name, item in nearer.items()}
    return _plain(nearer, where)


_RESULTS = (
    "None, numbers, text, lists, tuples, sets, dicts, dataclasses, Enum, datetime and its like, UUID, Decimal, Path, "
    "bytes, or what has tolist()"
)


def _plain_key(key: Any, where: str) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, (str, int, float, bool, type(None))):
        if isinstance(key, float) and not math.isfinite(key):
            raise BadResult(where, f"has the key {key!r}, which JSON does not have")
        plain = key if isinstance(key, str) else json.dumps(key)
        try:
            plain.encode()
        except UnicodeEncodeError:
            raise BadResult(where, f"has a key that UTF-8 cannot express: {plain[:_SHOWN_MAX]!r}") from None
        return plain
    if isinstance(key, (datetime.datetime, datetime.date, datetime.time)):
        return key.isoformat()
    if isinstance(key, (uuid.UUID, decimal.Decimal, pathlib.PurePath)):
        return str(key)
    if isinstance(key, datetime.timedelta):
        return str(key.total_seconds())
    raise BadResult(where, f"has the key {key!r:.60} of type {type(key).__qualname__}, but a JSON object's keys are text")
