# SPDX-License-Identifier: BSD-3-Clause
"""One-sided transfers between hosts: `import bulkhead.rdma`.

    rdma = bulkhead.rdma.pool("rdma")                     # [plugin rdma]  library = rdma

    async with await rdma.register(table) as region:      # here: peers may read `table`
        await send_somehow(region.descriptor)             # about 70 bytes, by any means

    remote = await rdma.open(descriptor)                  # there
    await remote.read_into(rows, offset=4096)             # as many bytes as `rows` has
    total = await stream.sum(remote.read_into(rows))      # begins when the bytes are there

No Python runs on the owner's side while a peer reads or writes. Transfers are bulkhead.Tasks: start many, await them in
any order, give them to other ops as arguments. In which order they end is not promised, nor is it promised that one
sees what another, not yet awaited, has written.

Memory is whatever has the buffer protocol or DLPack, C-contiguous, on the host: bytearray, mmap, numpy, torch,
bulkhead.Buffer. Memory that is used again and again for transfers is best a Buffer, or registered: then a network card
learns of it once.

All offsets and lengths are bytes, all times seconds. Besides what ops raise always (Overloaded, Deadline, Cancelled,
Shutdown, BadArgument), these raise PluginError; its `code` tells what it was:

    rdma.range, rdma.local          past the end of the region, of local memory, or negative: nothing was sent
    rdma.region                     the region has been closed
    rdma.rights                     the region does not allow it: nothing was sent
    rdma.descriptor, rdma.transport not a descriptor's bytes; of another transport than this host's
    rdma.access                     the peer refused: the region is closed, or a forged descriptor asks for more
    rdma.stale                      the peer is another process now
    rdma.connect, rdma.lost         it cannot be reached or does not answer; the link broke again and again
    rdma.memlock                    not so much memory can be pinned; the limit is named

and the facts name peer, remote_address, offset, length, the network's own status, and what can be done.
"""

from __future__ import annotations

import asyncio
import dataclasses
import operator
import sys
import threading
import warnings
from types import TracebackType
from typing import Any, Iterable, Literal, Optional, Union

from ._buffer import Buffer
from ._errors import BulkheadError, PluginError
from ._pool import Pool, Task
from ._pool import pool as _pool

try:
    import _bulkhead
except ImportError:  # not in the host: NotInHost says so when it matters
    _bulkhead = None  # type: ignore[assignment]

__all__ = ["Access", "Info", "Rdma", "Region", "RemoteRegion", "pool"]

Access = Literal["read", "write", "read-write"]
"""What peers may do with a region."""

_Wait = Union[bool, float, None]
_OPS = ("register", "close", "uses", "open", "read", "write", "read_many", "write_many", "info")


@dataclasses.dataclass(frozen=True)
class Info:
    """What an rdma pool is, and is doing, at one moment."""

    transport: str
    """"verbs" or "software"."""

    device: str
    """What it works on."""

    address: str
    """Where peers connect to, "192.0.2.1:4791"."""

    why: str
    """Why this transport was taken."""

    instance: str
    """A random number of this host process's, in its descriptors."""

    max_message: int
    """Bytes of one work request; larger transfers are split."""

    max_outstanding: int
    """Work requests of one link that may be under way."""

    regions: int
    """Regions open."""

    registered_bytes: int
    """Bytes that the transport knows, for local use too."""

    links: int
    """Links to peers."""

    links_in: int
    """Links that peers have made."""

    in_flight: int
    """Transfers posted."""

    queued: int
    """Transfers that wait for a link or for room on one."""


class _Extent:
    """What a region is to both sides."""

    __slots__ = ("_access", "_descriptor", "_length")

    def __init__(self, length: int, access: Access, descriptor: bytes) -> None:
        self._length = length
        self._access: Access = access
        self._descriptor = descriptor

    @property
    def length(self) -> int:
        """Bytes."""
        return self._length

    def __len__(self) -> int:
        return self._length

    @property
    def access(self) -> Access:
        """What peers of its owner may do: "read", "write", "read-write"."""
        return self._access


class Region(_Extent):
    """Memory that peers may reach. Made by Rdma.register(); `async with` closes it.

    It holds its memory: what was registered may be dropped, but not resized, while it is open. One that is
    garbage-collected open is closed then, with a ResourceWarning; one that is open at the stop is released by it.
    """

    __slots__ = ("_address", "_closed", "_handle", "_rdma")

    def __init__(self, rdma: Rdma, handle: int, address: int, length: int, descriptor: bytes, access: Access) -> None:
        """Made by Rdma.register()."""
        self._closed = False
        self._rdma = rdma
        self._handle = handle
        self._address = address
        super().__init__(length, access, descriptor)

    @property
    def address(self) -> int:
        """Where its first byte lies, in this process."""
        return self._address

    @property
    def descriptor(self) -> bytes:
        """What a peer gives to Rdma.open(). Who has it can reach the memory, as long as the region is open."""
        return self._descriptor

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return self._closed

    async def uses(self) -> int:
        """How many transfers that were started here use its memory right now."""
        return int((await self._rdma.pool.uses(self._handle))[0])

    async def sharing(self) -> int:
        """How many regions have the same bytes with the same access, this one too: they have one descriptor between
        them, which is good until the last of them is closed."""
        return int((await self._rdma.pool.uses(self._handle))[1])

    async def close(self, timeout: Optional[float] = None) -> None:
        """Ends it: returns when the transfers that use its memory here have ended, and no peer can touch it any more.

        A peer's access then fails, and touches nothing. Where a region shares its bytes with others this is so when
        the last one is closed. Deadline after `timeout` seconds: it is closed for new uses, its end goes on, and its
        memory is kept until then. Closing it again does nothing: it does not wait for the first one either.
        """
        if not self._closed:
            ending = self._rdma.pool.close(self._handle, timeout=timeout)  # what it refuses is still open
            self._closed = True
            await ending
            _let_go()

    async def __aenter__(self) -> Region:
        if self._closed:
            raise PluginError("rdma.region", {"given": repr(self), "reason": "it has been closed already",
                                              "accepted": "an open region: what register() returned, once"})  # fmt: skip
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                        traceback: Optional[TracebackType]) -> None:  # fmt: skip
        await self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._closed = True
            if not sys.is_finalizing():  # else the pool's end has released it
                warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
                self._rdma._close_unasked(self._handle)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<bulkhead.rdma.Region {self._length} bytes at {self._address:#x} {self._access}{state}>"


class RemoteRegion(_Extent):
    """A peer's region, as its descriptor says. Made by Rdma.open(); there is nothing to close, as nothing is held.

    `timeout`, `wait`: as for every op of a pool. `local` must be writable where it is read into. A transfer that fails
    or is cancelled may have been carried out in part; when its task has ended, nothing of it goes on.
    """

    __slots__ = ("_peer", "_pool")

    def __init__(self, rdma_pool: Pool, descriptor: bytes, length: int, access: Access, peer: str) -> None:
        """Made by Rdma.open()."""
        self._pool = rdma_pool
        self._peer = peer
        super().__init__(length, access, descriptor)

    @property
    def peer(self) -> str:
        """Where its owner can be reached."""
        return self._peer

    @property
    def descriptor(self) -> bytes:
        """The bytes it was opened with."""
        return self._descriptor

    def read_into(self, local: Any, offset: int = 0, length: Optional[int] = None, *, local_offset: int = 0,
                  timeout: Optional[float] = None, wait: _Wait = False) -> Task[Buffer]:  # fmt: skip
        """Reads `length` bytes at `offset` of the region into `local`, from `local_offset` on.

        `length` None: as many as `local` has from there. The task's result is the memory of `local`, so that an op that
        is given the task as an argument begins when the bytes are there: stream.sum(remote.read_into(rows)).
        """
        task: Task[Buffer] = self._pool.read(
            self._descriptor, local, offset, length, local_offset, timeout=timeout, wait=wait)  # fmt: skip
        return task

    def write_from(self, local: Any, offset: int = 0, length: Optional[int] = None, *, local_offset: int = 0,
                   timeout: Optional[float] = None, wait: _Wait = False) -> Task[None]:  # fmt: skip
        """Writes `length` bytes of `local`, from `local_offset` on, to `offset` of the region.

        Done when they lie in the peer's memory. `local` must not change until then. After a broken link they may be
        written twice, but never after the task has ended.
        """
        task: Task[None] = self._pool.write(
            self._descriptor, local, offset, length, local_offset, timeout=timeout, wait=wait)  # fmt: skip
        return task

    def read_many(self, local: Any, parts: Iterable[tuple[int, int, int]], *, timeout: Optional[float] = None,
                  wait: _Wait = False) -> Task[Buffer]:  # fmt: skip
        """Reads many parts as one task: each is (offset, local_offset, length). The first failure ends it.

        The task's result is the memory of `local`, as of read_into().
        """
        task: Task[Buffer] = self._pool.read_many(self._descriptor, local, _flat(parts), timeout=timeout, wait=wait)
        return task

    def write_many(self, local: Any, parts: Iterable[tuple[int, int, int]], *, timeout: Optional[float] = None,
                   wait: _Wait = False) -> Task[None]:  # fmt: skip
        """Writes many parts as one task: each is (offset, local_offset, length). The first failure ends it."""
        task: Task[None] = self._pool.write_many(self._descriptor, local, _flat(parts), timeout=timeout, wait=wait)
        return task

    def __repr__(self) -> str:
        return f"<bulkhead.rdma.RemoteRegion {self._length} bytes at {self._peer} {self._access}>"


def _let_go() -> None:
    """Drops what the host has let go of: an outcome that was there at once has not waited for the loop to do so."""
    if _bulkhead is not None and threading.current_thread() is threading.main_thread():
        _bulkhead.release()


def _flat(parts: Iterable[tuple[int, int, int]]) -> list[int]:
    flat: list[int] = []
    for part in parts:
        try:
            offset, local_offset, length = map(operator.index, part)
        except (TypeError, ValueError):
            raise TypeError(
                f"parts[{len(flat) // 3}]: (offset, local_offset, length), three ints, are wanted, not {part!r:.80}"
            ) from None
        flat += (offset, local_offset, length)
    return flat


class Rdma:
    """A pool of the rdma plugin's, with its regions as objects. Made by bulkhead.rdma.pool()."""

    __slots__ = ("_pool",)

    def __init__(self, rdma_pool: Pool) -> None:
        """Made by pool()."""
        self._pool = rdma_pool

    @property
    def pool(self) -> Pool:
        """The pool itself, with its ops: bulkhead.pool() returns the same."""
        return self._pool

    async def register(self, memory: Any, access: Access = "read", timeout: Optional[float] = None) -> Region:
        """Lets peers reach this memory. `access`: what they may do, "read", "write" or "read-write".

        Memory that peers may write must be writable. It may take long, as a network card has it pinned; the loop runs
        on meanwhile. Regions on the same bytes with the same access share a registration: that is quick.
        """
        task: Task[list[Any]] = self._pool.register(memory, access, timeout=timeout)
        try:
            handle, address, length, descriptor = await task
        except asyncio.CancelledError:
            task.add_done_callback(self._close_orphan)  # it may have been too late to stop it
            raise
        return Region(self, handle, address, length, descriptor, access)

    async def open(self, descriptor: Union[bytes, bytearray, memoryview], timeout: Optional[float] = None) -> RemoteRegion:
        """A peer's region, from the bytes of its `descriptor`.

        They are checked; nothing is sent, so a region that is gone shows at the first transfer.
        """
        if not isinstance(descriptor, (bytes, bytearray, memoryview)):
            raise TypeError(f"descriptor: bytes are wanted, as Region.descriptor has them, not {descriptor!r:.80}")
        kept = bytes(descriptor)
        length, access, peer = await self._pool.open(kept, timeout=timeout)
        return RemoteRegion(self._pool, kept, length, access, peer)

    async def info(self) -> Info:
        """What it is and what it is doing."""
        return Info(*await self._pool.info())

    def _close_orphan(self, task: Task[list[Any]]) -> None:
        if task.outcome == "done":
            self._close_unasked(task.result()[0])

    def _close_unasked(self, handle: int) -> None:
        """From any thread; nobody asks for what becomes of it."""
        try:
            self._pool.close(handle)
        except BulkheadError:
            pass  # the pool is closed, or full: its own end releases it

    def __repr__(self) -> str:
        return f"<bulkhead.rdma.Rdma {self._pool.label!r}>"


def pool(label: str = "rdma") -> Rdma:
    """The rdma pool that the manifest calls `label`.

    Raises UnknownPool when no such plugin is loaded (an optional one may have been skipped), NotInHost outside
    bulkheadd, and PluginError when it is another plugin's pool.
    """
    if not isinstance(label, str):
        raise TypeError("label: a str is wanted, the name of a [plugin …] section with library = rdma, "
                        f"not {label!r:.80}")  # fmt: skip
    made = _pool(label)
    missing = [name for name in _OPS if name not in made.ops]
    if missing:
        raise PluginError("rdma.pool", {"pool": label, "given": "a pool without the ops " + " ".join(missing),
                                        "accepted": "the label of a [plugin …] section with library = rdma"})  # fmt: skip
    return Rdma(made)
