# SPDX-License-Identifier: BSD-3-Clause
"""The exceptions of the package: a small tree, each with a `code` and `facts`.

The host's side makes them by `from_host`; the names it uses are the keys of `_KINDS`.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

__all__ = [
    "Abandoned",
    "BadArgument",
    "BulkheadError",
    "Cancelled",
    "Deadline",
    "DependentError",
    "Forked",
    "Interrupted",
    "NotInHost",
    "Overloaded",
    "PluginError",
    "Shutdown",
    "UnknownPool",
]


class BulkheadError(Exception):
    """Whatever the host or a plugin has to say.

    `code` identifies what went wrong ("pool.overloaded"); `facts` say the rest, text to text: what,
    where, and what would be right. Programs decide by class and code, people read str().
    """

    hint = ""  # what one can do about it; ends the text

    def __init__(self, code: str, facts: Optional[Mapping[str, str]] = None) -> None:
        self.code = code
        self.facts: dict[str, str] = dict(facts or {})
        super().__init__(self._text())

    def _text(self) -> str:
        facts = " ".join(f"{key}={_quoted(value)}" for key, value in self.facts.items())
        text = f"{self.code}: {facts}" if facts else self.code
        return f"{text} ({self.hint})" if self.hint else text

    def __str__(self) -> str:
        return self._text()

    def __reduce__(self) -> tuple[type, Any]:
        return type(self), (self.code, self.facts)


class Overloaded(BulkheadError):
    """The pool is full and refused the task; nothing has been done."""

    hint = "pass wait=True or wait=SECONDS to wait for room, or submit less at a time"


class Cancelled(BulkheadError):
    """The task was cancelled before it was done: by cancel(), by its caller's end, or by the stop.

    It is not asyncio.CancelledError: that one means that *your* coroutine is being cancelled.
    """


class Deadline(BulkheadError, TimeoutError):
    """The task's own timeout passed before it was done."""


class Abandoned(BulkheadError):
    """The host gave the task up at its stop; it may be running still, and its memory is kept."""


class PluginError(BulkheadError):
    """An op failed, or its pool has: `code` and `facts` are the plugin's.

    Where a Python callable raised something that would mean something else here (SystemExit,
    KeyboardInterrupt, CancelledError, StopIteration), that is the cause of this.
    """


class DependentError(BulkheadError):
    """The task was not run, because a task whose result it takes was not done.

    What failed first is told, however long the chain: `__cause__` is the exception of that task, as
    awaiting it would have raised it, and the facts name it: root_pool, root_op, root_task, root_code,
    root_outcome. after_op and after_task name the one in between, if there was one.
    """


class BadArgument(BulkheadError, TypeError):
    """An argument does not fit the op; the facts name it, what was given and what is accepted."""


class UnknownPool(BulkheadError, LookupError):
    """No plugin of that label is loaded."""


class Shutdown(BulkheadError):
    """The host is stopping, or the pool is closed: it takes no more work."""


class Forked(BulkheadError, RuntimeError):
    """This process is, or would become, a forked child of the host."""


class NotInHost(BulkheadError, RuntimeError):
    """The package was asked for something that only the host process has."""

    hint = ("run this as an app of bulkheadd: name it in the manifest as [app NAME] object = module:Class; in a test, "
            "bulkhead.testing runs it in a host")


class Interrupted(BaseException):
    """The host's stop, or a deadline, interrupts whatever Python code keeps its main thread busy.

    A BaseException, so that `except Exception` does not swallow it.
    """


_KINDS: dict[str, type[BulkheadError]] = {
    "abandoned": Abandoned,
    "argument": BadArgument,
    "cancelled": Cancelled,
    "deadline": Deadline,
    "dependent": DependentError,
    "error": BulkheadError,
    "failed": PluginError,
    "forked": Forked,
    "lane": BadArgument,
    "overloaded": Overloaded,
    "shutdown": Shutdown,
}


def from_host(kind: str, code: str, facts: dict[str, str]) -> BulkheadError:
    """The exception that the host's error becomes."""
    return _KINDS[kind](code, facts)


def _quoted(value: str) -> str:
    if value and not any(c.isspace() or c in '"=' for c in value):
        return value
    return '"' + value.replace('"', '\\"') + '"'
