# SPDX-License-Identifier: BSD-3-Clause
"""Bulkhead: the control program's side of the host.

    import bulkhead

    class Search:                          # [app search]  object = mymodule:Search
        async def start(self, app: bulkhead.App):
            self.stream = bulkhead.pool("stream")

        @bulkhead.endpoint
        async def add(self, a: int, b: int) -> int:
            return await self.stream.run(sum, [a, b], timeout=5)

        async def supervise(self, event: bulkhead.Event):
            ...                            # a stall, a pool that failed

        async def stop(self):
            ...

`start`, `supervise` and `stop` may be left out, and may be plain functions. The package imports anywhere; what needs
the host raises NotInHost outside bulkheadd.

    bulkhead.pool("stream")     the pool of the plugin that the manifest calls so; its ops are methods
    help(bulkhead.pool("x"))    lists them; help(bulkhead.Task) says what they return
    bulkhead.gil                who holds the GIL, and for how long
    bulkhead.testing            runs an app under pytest in a host of its own

Times are seconds, sizes are bytes. docs/python-api.md is the manual.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

if "_bulkhead" in sys.builtin_module_names:  # the host's Python has it built in, in each of its interpreters
    try:
        from _bulkhead import is_main_interpreter as _is_main
    except ImportError:  # an interpreter with a GIL of its own
        _is_main = bool
    if not _is_main():
        raise ImportError(
            "bulkhead works in the host's main interpreter only, and this is a sub-interpreter of it: submit from the "
            "main one, and hand the sub-interpreter what it needs", name=__name__)
    del _is_main

from . import gil
from ._buffer import Buffer
from ._endpoint import endpoint
from ._errors import (
    Abandoned,
    BadArgument,
    BulkheadError,
    Cancelled,
    Deadline,
    DependentError,
    Forked,
    Interrupted,
    NotInHost,
    Overloaded,
    PluginError,
    Shutdown,
    UnknownPool,
)
from ._pool import Pool, Task, pool

__all__ = [
    "Abandoned",
    "App",
    "BadArgument",
    "Buffer",
    "BulkheadError",
    "Cancelled",
    "Deadline",
    "DependentError",
    "Event",
    "Forked",
    "Interrupted",
    "NotInHost",
    "Overloaded",
    "PluginError",
    "Pool",
    "Shutdown",
    "Task",
    "UnknownPool",
    "endpoint",
    "gil",
    "pool",
]


@dataclasses.dataclass(frozen=True)
class App:
    """What the manifest says about an app; handed to its start()."""

    name: str
    """NAME of its section [app NAME]."""

    options: dict[str, str]
    """Its `option.KEY = value` lines, without the prefix."""


@dataclasses.dataclass(frozen=True)
class Event:
    """What the host tells an app's supervise()."""

    kind: str
    """"stall", "stall-over", "pool-failed", "degraded", "recovered"; more may come: leave alone what you do not know."""

    facts: dict[str, Any]
    """For the two of a stall the episode, as `GET /v1/stalls` has it; else what the host has to say."""


# Tracebacks and help() call things what authors import.
for _name in __all__:
    _thing = globals()[_name]
    if isinstance(_thing, type) and _thing.__module__ != __name__:
        _thing.__module__ = __name__
del _name, _thing
