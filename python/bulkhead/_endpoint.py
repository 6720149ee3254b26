# SPDX-License-Identifier: BSD-3-Clause
"""Endpoints: which methods an app offers over HTTP, and how JSON becomes their arguments and results."""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from typing import Any, Callable, Optional, TypeVar, Union

__all__ = ["endpoint"]

_MARK = "__bulkhead_endpoint__"
_F = TypeVar("_F", bound=Callable[..., Any])


def endpoint(function: _F) -> _F:
    """Marks a method as callable by POST /v1/apps/{app}/{method} and `bulkheadctl call`.

    The body is a JSON object of named arguments, or an array of positional ones. Arguments are checked
    against the annotations bool, int, float, str, list, dict, Optional, Union, Literal and their
    combinations; other annotations are not checked. The result is anything that JSON can express.
    """
    if not callable(function):
        raise TypeError(f"@bulkhead.endpoint marks a method, not {function!r}")
    setattr(function, _MARK, True)
    return function


class BadRequest(Exception):
    """The body does not fit the endpoint: HTTP 400."""

    def __init__(self, code: str, message: str, **facts: str) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


class Endpoint:
    """A marked method of an app, bound."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self.signature = inspect.signature(function)
        self._hints = _hints(function)

    def bind(self, body: bytes) -> inspect.BoundArguments:
        """The arguments in `body`, checked; BadRequest when they do not fit."""
        args, kwargs = _decode(body)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadRequest("bad-arguments", str(error), accepted=self._accepted()) from None
        for name, value in bound.arguments.items():
            self._check(name, value)
        return bound

    def _check(self, name: str, value: Any) -> None:
        hint = self._hints.get(name, Any)
        kind = self.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            values = {f"{name}[{i}]": item for i, item in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            values = value
        else:
            values = {name: value}
        for where, item in values.items():
            if not _fits(item, hint):
                given, accepted = _describe(item), _spell(hint)
                raise BadRequest("bad-arguments", f"{where}: {given} was given; accepted: {accepted}",
                                 parameter=where, given=given, accepted=accepted)

    def _accepted(self) -> str:
        shown = []
        for name, parameter in self.signature.parameters.items():
            star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
            default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
            shown.append(f"{star}{name}: {_spell(self._hints.get(name, Any))}{default}")
        return ", ".join(shown) or "no arguments"


def collect(app: Any) -> dict[str, Endpoint]:
    """The endpoints of an app, by name."""
    found = {}
    for name in dir(type(app)):
        if getattr(inspect.getattr_static(type(app), name), _MARK, False):
            found[name] = Endpoint(name, getattr(app, name))
    return found


def encode(result: Any) -> bytes:
    """{"result": …}; TypeError or ValueError when JSON cannot express it."""
    return json.dumps({"result": result}, default=_to_json, allow_nan=False, ensure_ascii=False).encode()


def _to_json(value: Any) -> Any:
    """Dataclasses, and the scalars and arrays of number libraries."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"JSON cannot express a {type(value).__name__}")


def _decode(body: bytes) -> tuple[list[Any], dict[str, Any]]:
    if not body.strip():
        return [], {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("bad-json", f"the body is not JSON: {error}") from None
    if isinstance(value, dict):
        return [], value
    if isinstance(value, list):
        return value, {}
    raise BadRequest("bad-json", f"the body is {_describe(value)}",
                     accepted="an object of named arguments or an array of positional ones")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name that only the type checker can see: then nothing is checked
        return {}


def _is_union(origin: Any) -> bool:
    return origin is Union or origin is types.UnionType


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is what the annotation says; what JSON does not know is not judged."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if hint is bool or hint is str:
        return isinstance(value, hint)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if _is_union(origin):
        return any(_fits(value, choice) for choice in args)
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in args)
    if hint is list or origin is list:
        return isinstance(value, list) and (not args or all(_fits(item, args[0]) for item in value))
    if hint is dict or origin is dict:
        return isinstance(value, dict) and (not args or all(_fits(item, args[1]) for item in value.values()))
    return True


def _spell(hint: Any) -> str:
    if hint is Any:
        return "any"
    if hint is None or hint is type(None):
        return "None"
    if _is_union(typing.get_origin(hint)):
        return " or ".join(_spell(choice) for choice in typing.get_args(hint))
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "")


def _describe(value: Any) -> str:
    text: Optional[str] = json.dumps(value, ensure_ascii=False)
    if len(text) > 60:
        text = text[:59] + "…"
    return f"{type(value).__name__} {text}"
