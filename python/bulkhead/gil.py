# SPDX-License-Identifier: BSD-3-Clause
"""Who holds the GIL, who waits for it, and how it has been shared until now: the host's books, in the process.

    stats = bulkhead.gil.stats()
    stats.sites["stream.compute"].wait_p99_s     # how long stream's workers wait for the GIL
    bulkhead.gil.unsanctioned()                  # 0 in a host that is in order

A thread takes the GIL at a *site*: "plugin.site" of a plugin's, "host.site" of the host's own,
"raw:LIBRARY" for a library that calls the C-API itself, "python" for threads that Python made. The
same as `GET /v1/gil` and `bulkheadctl gil` show; docs/admin-api.md says how it is measured. Seconds
end in `_s`; moments are Unix time and end in `_at`.

Any thread may ask, at any time; it costs a few tenths of a millisecond and stops nobody. Outside
bulkheadd every function here raises NotInHost.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any, Mapping, Optional, TypeVar

from . import _pool
from ._errors import NotInHost

try:
    import _bulkhead
except ImportError:  # not in the host: NotInHost says so when it matters
    _bulkhead = None  # type: ignore[assignment]

__all__ = ["Holder", "Share", "Site", "Stats", "Thread", "force_unsanctioned", "reset_unsanctioned", "stats",
           "unsanctioned"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds the GIL, by the interpreter's own record."""

    thread: str = ""
    """The thread's name, as the kernel has it; "" unknown."""
    tid: int = 0
    """Its kernel id; 0 unknown."""
    plane: str = "none"
    """"control", "data" (a pool's), or "none": nobody tagged it."""
    label: str = ""
    """The plugin whose thread it is; "" for none."""
    site: str = ""
    """The site of its outermost entry."""
    since_s: Optional[float] = None
    """For how long; None where the ledger is off."""
    library: Optional[str] = None
    """The library that took it by the C-API itself, past every site; None otherwise."""


@dataclasses.dataclass(frozen=True)
class Share:
    """What the threads of one plane did at a site."""

    entries: int = 0
    """Outermost entries."""
    nested: int = 0
    """Entries inside another; they count for the outermost one's site."""
    unsanctioned: int = 0
    """Entries of control-plane threads where only data-plane threads may enter."""
    held_s: float = 0.0
    """How long they were seen to hold the GIL, by sampling the interpreter's record."""
    wait_s: float = 0.0
    """How long they waited for it."""
    inside_s: float = 0.0
    """How long they were inside, whether they held the GIL all the while or gave it up now and then."""


@dataclasses.dataclass(frozen=True)
class Site(Share):
    """A site's books; the fields of Share are the sums over all planes.

    Quantiles are of a histogram and at most 7 % off; maxima are exact.
    """

    site: str = ""
    """Its name."""
    policy: str = ""
    """Who may enter: "control-allowed", "data-only", or "python" where there is no policy."""
    wait_count: int = 0
    """How often a thread waited for the GIL."""
    wait_p50_s: float = 0.0
    wait_p90_s: float = 0.0
    wait_p99_s: float = 0.0
    wait_max_s: float = 0.0
    """The longest wait."""
    wait_max_at: Optional[float] = None
    """When that ended; None unknown."""
    wait_max_thread: Optional[str] = None
    """Whose it was; None unknown."""
    inside_count: int = 0
    """How often an outermost scope has ended."""
    inside_p50_s: float = 0.0
    inside_p90_s: float = 0.0
    inside_p99_s: float = 0.0
    inside_max_s: float = 0.0
    """The longest scope."""
    inside_max_at: Optional[float] = None
    """When that ended; None unknown."""
    inside_max_thread: Optional[str] = None
    """Whose it was; None unknown."""
    planes: Mapping[str, Share] = dataclasses.field(default_factory=dict)
    """The same by plane: "control", "data", "none"; those that have come by."""


@dataclasses.dataclass(frozen=True)
class Thread:
    """A thread that has come for the GIL."""

    thread: str = ""
    """Its name, as the kernel has it."""
    tid: int = 0
    """Its kernel id."""
    plane: str = "none"
    """"control", "data" or "none"."""
    label: str = ""
    """The plugin whose thread it is; "" for none."""
    state: str = "outside"
    """"outside", "waiting" for the GIL, "inside" a scope, or "parked": it came after the end."""
    site: Optional[str] = None
    """The site of its outermost entry; None outside."""
    since_s: Optional[float] = None
    """For how long it has been in that state; None where the ledger is off."""
    coarse: bool = False
    """Its waits are not seen, only that it is inside: main on an event loop that is not the host's."""


@dataclasses.dataclass(frozen=True)
class Stats:
    """The books at one moment. Writers are not stopped for it: entries under way may be missing."""

    holder: Optional[Holder] = None
    """Who holds the GIL; None when nobody does, or the interpreter's record cannot be read."""
    gate: str = "open"
    """"open", or "closed" once Python is being finalized."""
    ledger: str = "full"
    """What is booked, as `[gil] ledger` says: "full", "sites" (no raw calls), or "off"."""
    unsanctioned: int = 0
    """Unsanctioned entries in all."""
    parked: int = 0
    """Threads that came after the gate had closed."""
    sampled_s: float = 0.0
    """For how long the holder has been sampled, 0 where it is not: what `held_s` is a part of."""
    sites: Mapping[str, Site] = dataclasses.field(default_factory=dict)
    """By name; those that have come by."""
    threads: tuple[Thread, ...] = ()
    """The threads that have come by and still live."""


_Made = TypeVar("_Made")


def _make(kind: type[_Made], told: Mapping[str, Any], **made: Any) -> _Made:
    """What the host tells, as `kind`: a field that it does not tell has its preset, one too many is left out."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{key: value for key, value in told.items() if key in names} | made)


def _make_site(told: Mapping[str, Any]) -> Site:
    return _make(Site, told, planes={plane: _make(Share, share) for plane, share in told.get("planes", {}).items()})


def _make_stats(told: Mapping[str, Any]) -> Stats:
    holder = told.get("holder")
    return _make(
        Stats, told,
        holder=None if holder is None else _make(Holder, holder),
        sites={site["site"]: _make_site(site) for site in told.get("sites", ())},
        threads=tuple(_make(Thread, thread) for thread in told.get("threads", ())),
    )  # fmt: skip


def _host(asked: str) -> Any:
    if _bulkhead is None:
        raise NotInHost("host.none", {"asked": f"gil.{asked}()"})
    return _bulkhead


def stats() -> Stats:
    """The books as they are now."""
    return _make_stats(json.loads(_host("stats").gil_stats()))


def unsanctioned() -> int:
    """How often a control-plane thread took the GIL where only data-plane threads may.

    In a host that is in order this stays 0, so that a test can ask for it after its work; the log
    names site, thread and caller of each.
    """
    count: int = _host("unsanctioned").gil_unsanctioned()
    return count


def reset_unsanctioned() -> None:
    """For tests: counts from 0 again. On the host's event loop only."""
    _on_main("reset_unsanctioned").gil_reset_unsanctioned()


def force_unsanctioned() -> None:
    """For tests: one unsanctioned entry, which is counted and logged, to show that a test would notice.

    It never ends the process, whatever `[gil] unsanctioned` says. On the host's event loop only: it is
    the main thread that enters, and lets go of the GIL for it.
    """
    _on_main("force_unsanctioned").gil_force_unsanctioned()


def _on_main(asked: str) -> Any:
    host = _host(asked)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None or loop is not _pool._host_loop:
        raise RuntimeError(f"bulkhead.gil.{asked}() works only on the host's main thread, inside its event loop: call it "
                           "from a coroutine or callback of an app, not from a pool's worker or a thread")  # fmt: skip
    return host
