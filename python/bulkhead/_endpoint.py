# SPDX-License-Identifier: BSD-3-Clause
"""Endpoints: which methods an app offers over HTTP, how a body becomes their arguments, and a result the reply."""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
import typing
import urllib.parse
from typing import Any, Callable, NamedTuple, Optional, TypeVar, Union, overload

from . import _convert

__all__ = ["endpoint"]

JSON = "application/json"
OCTETS = "application/octet-stream"

_MARK = "__bulkhead_endpoint__"
_F = TypeVar("_F", bound=Callable[..., Any])
# What `curl -d` and the like say of a JSON body when nobody tells them.
_JSON_TYPES = (JSON, "application/x-www-form-urlencoded", "text/plain", "text/json")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TIMEOUT_MAX = 1e9


class _Options(NamedTuple):
    timeout: Optional[float] = None
    limit: Optional[int] = None
    name: Optional[str] = None


@overload
def endpoint(function: _F) -> _F: ...


@overload
def endpoint(*, timeout: Optional[float] = None, limit: Optional[int] = None,
             name: Optional[str] = None) -> Callable[[_F], _F]: ...  # fmt: skip


def endpoint(function: Any = None, *, timeout: Optional[float] = None, limit: Optional[int] = None,
             name: Optional[str] = None) -> Any:  # fmt: skip
    """Marks a method as callable by POST /v1/apps/{app}/{method} and `bulkheadctl call`.

        @bulkhead.endpoint
        async def add(self, a: int, b: int = 1) -> int: ...

        @bulkhead.endpoint(timeout=5, limit=10)
        async def search(self, query: str, since: datetime.date | None = None) -> list[Hit]: ...

    The body is a JSON object of named arguments, or an array of positional ones; they are converted to what the
    annotations say, or the call is refused with 400 before the method runs. One that cannot be converted to is
    refused when the app is loaded. A parameter annotated `bytes`, `bytearray` or `memoryview` takes a body of
    application/octet-stream as it is; a result of these types goes back in the same way.

    timeout  seconds from the call's arrival; then it is cancelled and answered 504. Needs an `async def`
    limit    at most so many calls of it run at once; one more is refused with 429
    name     what it is called by, where that is not the method's name
    """
    options = _Options(timeout, limit, name)
    _check_options(options)
    if function is None:
        return lambda decorated: _mark(decorated, options)
    return _mark(function, options)


def _check_options(options: _Options) -> None:
    timeout, limit, name = options
    if timeout is not None:
        number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
        if not number or not 0 < timeout <= _TIMEOUT_MAX:
            raise ValueError(f"@bulkhead.endpoint(timeout={timeout!r}): seconds above 0, at most {_TIMEOUT_MAX:.0f}")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ValueError(f"@bulkhead.endpoint(limit={limit!r}): a whole number of 1 or more")
    if name is not None and (not isinstance(name, str) or not name or "/" in name or not name.isprintable()):
        raise ValueError(f"@bulkhead.endpoint(name={name!r}): a non-empty, printable string without a slash")


def _mark(function: Any, options: _Options) -> Any:
    if not callable(function):
        raise TypeError(f"@bulkhead.endpoint marks a method, not {function!r}; its options are timeout=, limit=, name=")
    if options.timeout is not None and not inspect.iscoroutinefunction(function):
        raise TypeError(f"@bulkhead.endpoint(timeout=…) needs an `async def`: {function.__qualname__} is a plain function, "
                        "which nothing can stop while it runs")  # fmt: skip
    setattr(function, _MARK, options)
    return function


class BadRequest(Exception):
    """The call does not fit the endpoint: HTTP 400, or what `status` says."""

    def __init__(self, code: str, message: str, status: int = 400, **facts: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.facts = facts


# ---- media types --------------------------------------------------------------------------------


def media_type(header: Optional[str]) -> str:
    """`Application/JSON; charset=utf-8` -> application/json; "" for none."""
    return (header or "").partition(";")[0].strip().lower()


class Accept:
    """What the client takes, by its Accept header: JSON, octets, or both."""

    def __init__(self, header: Optional[str]) -> None:
        ranges = dict(self._range(part) for part in (header or "*/*").split(",") if part.strip()) or {"*/*": 1.0}
        self.json = self._quality(ranges, JSON)
        self.octets = self._quality(ranges, OCTETS)
        self.names_octets = ranges.get(OCTETS, 0.0) > 0 and self.octets >= ranges.get(JSON, 0.0)
        if not self.json and not self.octets:
            raise BadRequest("not-acceptable", f"the Accept header takes neither of what an endpoint gives: {header}", 406,
                             given=str(header)[:200], accepted=f"{JSON}, {OCTETS}")  # fmt: skip

    @staticmethod
    def _range(part: str) -> tuple[str, float]:
        name, *parameters = (text.strip().lower() for text in part.split(";"))
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    return name, float(parameter[2:])
                except ValueError:
                    break
        return name, 1.0

    @staticmethod
    def _quality(ranges: dict[str, float], kind: str) -> float:
        for name in (kind, kind.partition("/")[0] + "/*", "*/*"):
            if name in ranges:
                return ranges[name]
        return 0.0


@functools.lru_cache(maxsize=64)
def accept(header: Optional[str]) -> Accept:
    """Accept(header); most clients send one of a few."""
    return Accept(header)


# ---- endpoints ----------------------------------------------------------------------------------


class Endpoint:
    """A marked method of an app, bound. `function`, `timeout` (seconds or None), `limit` (or None) are the host's to
    use; `running` is its count."""

    def __init__(self, name: str, function: Callable[..., Any], options: _Options = _Options(),
                 compiler: Optional[_convert.Compiler] = None, names: Optional[dict[str, Any]] = None) -> None:  # fmt: skip
        self.name = name
        self.function = function
        self.timeout, self.limit = options.timeout, options.limit
        self.running = 0
        self.signature = inspect.signature(function)
        compiler = compiler or _convert.Compiler()
        self._converters = {parameter.name: self._compile(parameter, compiler, names or {})
                            for parameter in self.signature.parameters.values()}  # fmt: skip
        single = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        binary = [p.name for p in self.signature.parameters.values() if p.kind in single and self._converters[p.name].is_binary]
        self.binary = binary[0] if len(binary) == 1 else None  # the parameter that takes a body of octets
        self._no_binary = f"two such parameters: {', '.join(binary)}" if binary else "no parameter of bytes"

    def _compile(self, parameter: inspect.Parameter, compiler: _convert.Compiler, names: dict[str, Any]) -> _convert.Converter:
        hint = parameter.annotation
        where = f"endpoint {self.name}: parameter {parameter.name}: "
        if hint is parameter.empty:
            return compiler.compile(Any)
        try:
            hint = self._resolve(hint, names)
        except Exception as error:
            raise _convert.Unsupported(
                f"{where}the annotation {_convert.spell(parameter.annotation)} cannot be resolved "
                f"({type(error).__name__}: {error}): it must be importable when the app is loaded") from None  # fmt: skip
        try:
            return compiler.compile(hint)
        except _convert.Unsupported as error:
            written = _convert.spell(parameter.annotation)
            inner = "" if str(error) == written else f" ({error})"
            raise _convert.Unsupported(f"{where}JSON cannot become {written}{inner}; supported: {_convert.SUPPORTED}") from None

    def _resolve(self, hint: Any, names: dict[str, Any]) -> Any:
        """One annotation by itself: a name that only a result's needs is no fault. Text is looked up where the
        function was made, then in the app's class, whose methods may be called `list` or `set`."""
        function = inspect.unwrap(self.function)
        holder = types.SimpleNamespace(__annotations__={"hint": hint})
        space = getattr(function, "__globals__", {})
        try:
            return typing.get_type_hints(holder, globalns=space, localns={}, include_extras=True)["hint"]
        except NameError:
            return typing.get_type_hints(holder, globalns=space, localns=names, include_extras=True)["hint"]

    # -- arguments

    def bind(self, body: bytes, content_type: Optional[str] = None, query: Optional[str] = None) -> inspect.BoundArguments:
        """The arguments of a call, converted; BadRequest when they do not fit."""
        kind = media_type(content_type)
        if kind == OCTETS:
            return self._bind_octets(body, query or "")
        if body and kind and kind not in _JSON_TYPES and not kind.endswith("+json"):
            raise BadRequest("unsupported-media-type", f"the body is {kind}", 415, given=kind, accepted=self._media_types())
        args, kwargs = _decode(body)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadRequest("bad-arguments", str(error), accepted=self._accepted()) from None
        try:
            for name, value in bound.arguments.items():
                bound.arguments[name] = self._convert(name, value)
        except RecursionError:
            raise BadRequest("bad-json", "the body is nested too deeply", accepted=self._accepted()) from None
        return bound

    def _bind_octets(self, body: bytes, query: str) -> inspect.BoundArguments:
        if self.binary is None:
            raise BadRequest("unsupported-media-type", f"endpoint {self.name} takes no body of {OCTETS}: it has {self._no_binary}",
                             415, given=OCTETS, accepted=JSON)  # fmt: skip
        texts = self._query(query)
        try:
            bound = self.signature.bind(**texts, **{self.binary: body})
        except TypeError as error:
            raise BadRequest("bad-arguments", f"the query string: {error}", accepted=self._accepted()) from None
        for name, value in bound.arguments.items():
            parameter = self.signature.parameters[name]
            converter = self._converters[name]
            if name == self.binary:
                bound.arguments[name] = self._one(converter.convert, value, name)
            elif parameter.kind is parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: self._one(converter.from_text, item, key) for key, item in value.items()}
            else:
                bound.arguments[name] = self._one(converter.from_text, value, name)
        return bound

    def _query(self, query: str) -> dict[str, list[str]]:
        try:
            pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=10_000)
        except ValueError as error:
            raise BadRequest("bad-query", f"the query string cannot be read: {error}", accepted=self._accepted()) from None
        texts: dict[str, list[str]] = {}
        for key, text in pairs:
            texts.setdefault(key, []).append(text)
        if self.binary in texts:
            raise BadRequest("bad-arguments", f"{self.binary}: it is in the query string, but the body is it",
                             parameter=str(self.binary), accepted="each argument once")  # fmt: skip
        return texts

    def _convert(self, name: str, value: Any) -> Any:
        convert = self._converters[name].convert
        kind = self.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(self._one(convert, item, f"{name}[{i}]") for i, item in enumerate(value))
        if kind is inspect.Parameter.VAR_KEYWORD:
            return {key: self._one(convert, item, key) for key, item in value.items()}
        return self._one(convert, value, name)

    def _one(self, convert: Callable[[Any], Any], value: Any, name: str) -> Any:
        try:
            return convert(value)
        except _convert.Mismatch as mismatch:
            where = name + mismatch.path if len(mismatch.path) <= 300 else f"{name}{mismatch.path[:300]}…"
            raise BadRequest("bad-arguments", f"{where}: {mismatch.given} was given; accepted: {mismatch.accepted}",
                             parameter=where, given=mismatch.given, accepted=mismatch.accepted) from None  # fmt: skip

    def _media_types(self) -> str:
        return JSON if self.binary is None else f"{JSON}, {OCTETS}"

    def _accepted(self) -> str:
        return ", ".join(self._spell(parameter) for parameter in self.signature.parameters.values()) or "no arguments"

    def _spell(self, parameter: inspect.Parameter) -> str:
        stars: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        star = stars.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        return f"{star}{parameter.name}: {self._converters[parameter.name].spelled}{default}"

    # -- what it is, for GET /v1/apps

    def describe(self) -> dict[str, Any]:
        parameters = []
        for parameter in self.signature.parameters.values():
            many = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            has_default = parameter.default is not parameter.empty
            parameters.append({"name": parameter.name, "type": self._converters[parameter.name].spelled,
                               "kind": parameter.kind.name.lower().replace("_", "-"), "required": not has_default and not many,
                               "default": _printable(repr(parameter.default))[:200] if has_default else None})  # fmt: skip
        returns = self.signature.return_annotation
        return {
            "name": self.name, "parameters": parameters, "binary": self.binary, "timeout_s": self.timeout, "limit": self.limit,
            "returns": None if returns is self.signature.empty else _printable(_convert.spell(returns)),
            "doc": _printable((inspect.getdoc(self.function) or "").partition("\n\n")[0].replace("\n", " ")),
        }  # fmt: skip


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def collect(app: Any, app_name: str = "") -> dict[str, Endpoint]:
    """The endpoints of an app, by name. TypeError, with every fault, when there is one that cannot be."""
    found: dict[str, Endpoint] = {}
    faults = []
    compiler = _convert.Compiler()
    for attribute in dir(type(app)):
        options = getattr(inspect.getattr_static(type(app), attribute), _MARK, None)
        if not isinstance(options, _Options):
            continue
        name = options.name or attribute
        if name in found:
            faults.append(f"endpoint {name}: two methods have this name")
            continue
        try:
            found[name] = Endpoint(name, getattr(app, attribute), options, compiler, dict(vars(type(app))))
        except _convert.Unsupported as error:
            faults.append(str(error))
    if faults:
        raise TypeError(f"app {app_name or type(app).__name__}: {'; '.join(faults)}")
    return found


# ---- results ------------------------------------------------------------------------------------


def encode(result: Any, accepted: Optional[Accept] = None) -> tuple[str, Union[bytes, memoryview]]:
    """The reply's type and body: octets for bytes and contiguous buffers where the client takes them, else JSON.
    BadResult when JSON cannot express it; BadRequest (406) when the client does not take what it is."""
    accepted = accepted or accept(None)
    octets = _octets(result, accepted)
    if octets is not None:
        return OCTETS, octets
    if not accepted.json:
        raise BadRequest("not-acceptable", f"the result is a {type(result).__name__}, which goes as {JSON}", 406,
                         given=OCTETS, accepted=JSON)  # fmt: skip
    return JSON, _convert.to_json(result)


def _octets(result: Any, accept: Accept) -> Optional[memoryview]:
    """What JSON could express too, such as numpy's arrays, goes as octets only where the client names them."""
    if not accept.octets or isinstance(result, type):
        return None
    if not accept.names_octets and not isinstance(result, (bytes, bytearray, memoryview)) and hasattr(result, "tolist"):
        return None
    try:
        view = memoryview(result)
    except (TypeError, ValueError, BufferError):
        return None
    return view if view.c_contiguous else memoryview(view.tobytes())


# ---- bodies -------------------------------------------------------------------------------------


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _decode(body: bytes) -> tuple[list[Any], dict[str, Any]]:
    if not body.strip():
        return [], {}
    try:
        value = json.loads(body, parse_constant=_no_constant)
        if _SURROGATE.search(body):  # half of a pair is no text: no reply could hold it
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadRequest("bad-json", f"the body is not JSON: {error}") from None
    if isinstance(value, dict):
        return [], value
    if isinstance(value, list):
        return value, {}
    raise BadRequest("bad-json", f"the body is {_convert.describe(value)}",
                     accepted="an object of named arguments or an array of positional ones")  # fmt: skip
