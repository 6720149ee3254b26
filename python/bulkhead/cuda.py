# SPDX-License-Identifier: BSD-3-Clause
"""GPU memory, copies, kernels and streams: `import bulkhead.cuda`.

    cuda = bulkhead.cuda.pool("cuda")                     # [plugin cuda]  library = cuda

    x = await cuda.to_device(rows)                        # a bulkhead.Buffer on the device, shaped and typed as `rows`
    scores = await cuda.alloc(1000, "float32")
    await cuda.matvec(scores, matrix, x)
    best = await cuda.top_k(scores, 10)

    async with await cuda.module(ptx) as module, await cuda.stream() as stream:
        await module.launch("saxpy", grid=8, block=128, args=[scores, bulkhead.cuda.f32(2), x], stream=stream)
        host = await cuda.to_host(scores, stream=stream)

No thread that calls into the driver holds the GIL, and none of them is the event loop's. Ops are bulkhead.Tasks, which are
done when the device is done: start many, await them in any order, give them to other ops as arguments.

Memory on the device is a bulkhead.Buffer: it has shape, dtype and nbytes, goes to PyTorch and CuPy by DLPack or
__cuda_array_interface__, and is freed when the last reference, export and task that uses it have gone.

What is given to one stream is done in the order in which it was given, as long as the pool has one worker, which is the
preset; with no `stream=` all ops share the section's own. An op with a task as an argument is given to its stream when that
task is done. Between streams nothing is ordered but by events and by awaiting.

Offsets, lengths and sizes of memory are bytes, times seconds. Besides what ops raise always (Overloaded, Deadline,
Cancelled, Shutdown, BadArgument), these raise PluginError, whose `code` tells what it was and whose facts name the
parameter, what was given and what would be right; docs/cuda.md lists them. `cuda.out_of_memory` leaves all as it was. A
fault of the device's (an address that is none, a failed launch) spoils all that is in the context: it fails the pool, once
and with its cause, and each task under way with it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import operator
import os
import struct
import sys
import warnings
from types import TracebackType
from typing import (
    Any,
    Callable,
    ClassVar,
    NamedTuple,
    Optional,
    Sequence,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    Union,
    overload,
)

from ._buffer import Buffer
from ._errors import BulkheadError, DependentError, Overloaded, PluginError, Shutdown, UnknownPool
from ._pool import Pool, Task
from ._pool import pool as _pool

__all__ = [
    "Cuda", "Event", "Info", "Module", "Pinned", "Stream", "Typed", "bool_", "const", "f32", "f64", "i16", "i32", "i64", "i8",
    "pool", "ptr", "u16", "u32", "u64", "u8",
]  # fmt: skip

_T = TypeVar("_T")
_Wait = Union[bool, float, None]
_Shape = Union[SupportsIndex, Sequence[SupportsIndex]]
_Memory = Union[Buffer, Task[Buffer]]  # on the device; a task stands for what it will return
_Float = Union[SupportsFloat, SupportsIndex, Task[float]]
_OPS = ("alloc", "free", "copy", "memset", "stream", "record", "wait", "synchronize", "module", "launch", "info")


# ---- arguments of kernels ------------------------------------------------------------------------------


class Typed(NamedTuple):
    """An argument with the type that the kernel's parameter has. Made by f32(), i32() and the like."""

    type: str
    """"f32", "u64" …"""

    value: Any
    """What is passed."""


def _float(kind: str, code: str, value: Union[SupportsFloat, SupportsIndex]) -> Typed:
    if isinstance(value, (bool, str)):
        raise TypeError(f"{kind}(): a number is wanted, not {value!r:.80}")
    number = float(value)
    try:
        struct.pack(code, number)
    except OverflowError:
        raise OverflowError(f"{kind}({value!r:.80}): too large for a float of {8 * struct.calcsize(code)} bits") from None
    return Typed(kind, number)


def _int(kind: str, value: SupportsIndex, signed: bool) -> Typed:
    if isinstance(value, bool):
        raise TypeError(f"{kind}(): an int is wanted, not {value!r}; a bool is given as it is")
    number, bits = operator.index(value), int(kind[1:]) if kind != "ptr" else 64
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if not least <= number <= most:
        raise OverflowError(f"{kind}({number}): {least} to {most} fit")
    return Typed(kind, number)


def f32(value: Union[SupportsFloat, SupportsIndex]) -> Typed:
    """A float of 32 bits: C's float."""
    return _float("f32", "<f", value)


def f64(value: Union[SupportsFloat, SupportsIndex]) -> Typed:
    """A float of 64 bits: C's double."""
    return _float("f64", "<d", value)


def i8(value: SupportsIndex) -> Typed:
    """A signed int of 8 bits."""
    return _int("i8", value, True)


def i16(value: SupportsIndex) -> Typed:
    """A signed int of 16 bits."""
    return _int("i16", value, True)


def i32(value: SupportsIndex) -> Typed:
    """A signed int of 32 bits: C's int."""
    return _int("i32", value, True)


def i64(value: SupportsIndex) -> Typed:
    """A signed int of 64 bits: C's long."""
    return _int("i64", value, True)


def u8(value: SupportsIndex) -> Typed:
    """An unsigned int of 8 bits."""
    return _int("u8", value, False)


def u16(value: SupportsIndex) -> Typed:
    """An unsigned int of 16 bits."""
    return _int("u16", value, False)


def u32(value: SupportsIndex) -> Typed:
    """An unsigned int of 32 bits: C's unsigned."""
    return _int("u32", value, False)


def u64(value: SupportsIndex) -> Typed:
    """An unsigned int of 64 bits: C's size_t."""
    return _int("u64", value, False)


def bool_(value: bool) -> Typed:
    """C++'s bool: of 8 bits, 0 or 1."""
    if not isinstance(value, bool):
        raise TypeError(f"bool_(): True or False is wanted, not {value!r:.80}")
    return Typed("bool", value)


def const(memory: Buffer) -> Typed:
    """Memory that the kernel only reads, so that it may be read-only, as what import_() gives is. No task: await it."""
    if isinstance(memory, Task):
        raise TypeError(f"const(): a bulkhead.Buffer is wanted, so await the task that returns it, not {memory!r:.80}")
    return Typed("const", memory)


def ptr(address: SupportsIndex) -> Typed:
    """An address, such as another library's, that is not looked at: 0 for NULL.

    Where the memory is a Buffer or a tensor give that, or what import_() makes of it: then it is held until the kernel
    has ended, and is checked.
    """
    return _int("ptr", address, False)


_NUMPY: dict[str, Callable[[Any], Any]] = {
    "float32": f32, "float64": f64, "int8": i8, "int16": i16, "int32": i32, "int64": i64, "uint8": u8, "uint16": u16,
    "uint32": u32, "uint64": u64, "bool_": bool_, "bool": bool_, "longlong": i64, "ulonglong": u64,
}  # fmt: skip


def _argument(arg: Any) -> Any:
    """A kernel's argument as the op takes it: numpy's scalars say their type themselves."""
    kind = type(arg)
    if kind.__module__ == "numpy" and kind.__name__ in _NUMPY:
        arg = _NUMPY[kind.__name__](arg.item())
    if isinstance(arg, Typed) and arg.type in ("u64", "ptr") and arg.value >= 1 << 63:
        return Typed("i64", arg.value - (1 << 64))  # the same bits; an op's ints end at 2**63 - 1
    return arg


# ---- shapes and types ----------------------------------------------------------------------------------


def _extents(shape: _Shape) -> list[int]:
    try:
        return [operator.index(shape)]  # type: ignore[arg-type]
    except TypeError:
        pass
    try:
        return [operator.index(extent) for extent in shape]  # type: ignore[union-attr]
    except TypeError:
        raise TypeError(f"shape: an int, or a tuple of at most 8, is wanted, not {shape!r:.80}") from None


_PYTHONS = {"float": "float64", "int": "int64", "complex": "complex128"}  # as numpy takes them


def _name_of(dtype: Any) -> str:
    """The name of a dtype that is a str, or of numpy or torch. The op refuses what is none of its own."""
    if isinstance(dtype, str):
        return dtype
    if getattr(dtype, "isnative", True) is False:
        raise ValueError(f"dtype {dtype!r:.80}: not in this machine's byte order; accepted: its newbyteorder()")
    name = dtype.__name__ if isinstance(dtype, type) else getattr(dtype, "name", None)
    text = (name if isinstance(name, str) else str(dtype)).removeprefix("torch.")
    return _PYTHONS.get(text, text) if isinstance(dtype, type) else text


_LETTERS = {**dict.fromkeys("bhilqn", "int"), **dict.fromkeys("BHILQNc", "uint"), **dict.fromkeys("efd", "float"),
            "?": "bool", "Zf": "complex", "Zd": "complex"}  # fmt: skip
_NATIVE = "@=<" if sys.byteorder == "little" else "@=>!"


def _described(memory: Any) -> tuple[list[int], str]:
    """Shape and dtype of a host's array."""
    shape, dtype = getattr(memory, "shape", None), getattr(memory, "dtype", None)
    if shape is not None and dtype is not None:
        return _extents(tuple(shape)), _name_of(dtype)
    try:
        view = memoryview(memory)
    except TypeError:
        raise TypeError("memory of the host is wanted: a bulkhead.Buffer, an array of numpy, a CPU tensor of torch, "
                        f"bytes or what else has the buffer protocol, not {memory!r:.80}") from None  # fmt: skip
    kind = _LETTERS.get(view.format.lstrip(_NATIVE))
    if kind is None:
        raise ValueError(f"memory with elements of the format {view.format!r}; accepted: ints, floats, bool and complex in "
                         "this machine's byte order, or such memory as bytes: memoryview(x).cast('B')")  # fmt: skip
    return list(view.shape or ()), kind if kind == "bool" else f"{kind}{8 * view.itemsize}"


class _Copied(Task[_T]):
    """A copy into memory that another op makes for it: both are one to whoever awaits it, and fail as one."""

    __slots__ = ()

    def _value(self) -> Any:
        try:
            return super()._value()
        except DependentError as error:
            if isinstance(error.__cause__, BulkheadError) and "after_op" not in error.facts:
                raise error.__cause__ from None
            raise


# ---- what is open until it is closed -------------------------------------------------------------------


class _Open:
    """Something of the plugin's, by its number. `async with` closes it.

    One that is garbage-collected open is closed then, with a ResourceWarning; one that is open at the stop, or when the
    pool fails, is released by that.
    """

    __slots__ = ("_closed", "_cuda", "_handle")
    _closing: ClassVar[str]

    def __init__(self, cuda: Cuda, handle: Any) -> None:
        self._closed = False
        self._cuda = cuda
        self._handle = handle

    @property
    def closed(self) -> bool:
        """Whether close() has been called."""
        return self._closed

    async def close(self) -> None:
        """Ends it; what was queued with it goes on to its own end. Closing it again does nothing."""
        if self._closed:
            return
        try:
            ending = self._cuda._op(self._closing)(self._handle)  # what is refused, as by a full pool, is still open
        except (PluginError, Shutdown):  # the pool has failed, or is closed: its own end releases it
            self._closed = True
            return
        self._closed = True
        await ending

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                        traceback: Optional[TracebackType]) -> None:  # fmt: skip
        await self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._closed = True
            if not sys.is_finalizing():  # else the pool's end has released it
                self._cuda._close_unasked(self._closing, self._handle)  # first: the warning may be an error
                warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def _of(self, cuda: Cuda, parameter: str) -> Any:
        """The number, for an op of `cuda`."""
        if self._closed:
            raise ValueError(f"{parameter}: {self!r} has been closed; give one that is open")
        if self._cuda.pool.label != cuda.pool.label:
            raise ValueError(f"{parameter}: {self!r} is given to an op of {cuda.pool.label!r}; each pool has its own")
        return self._handle

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<bulkhead.cuda.{type(self).__name__} of {self._cuda.pool.label!r}{state}>"


class Event(_Open):
    """A point in what a stream was given. Made by record() of a Stream or of Cuda; Stream.wait() orders another stream
    behind it.

    Closing it takes nothing back: a stream that waits for it goes on to do so.
    """

    __slots__ = ()
    _closing = "event_close"

    async def __aenter__(self) -> Event:
        return self


class Stream(_Open):
    """A queue of the device's. Made by Cuda.stream(); `async with` closes it.

    What it is given is done in that order; between streams only events order. Most ops of Cuda and Module.launch() take
    one as `stream=`. Closing it waits for nothing: what it was given is done, and the tasks end as they would have.
    """

    __slots__ = ("_priority",)
    _closing = "stream_close"

    def __init__(self, cuda: Cuda, handle: int, priority: int) -> None:
        """Made by Cuda.stream()."""
        super().__init__(cuda, handle)
        self._priority = priority

    @property
    def priority(self) -> int:
        """As it was asked for."""
        return self._priority

    async def record(self, timeout: Optional[float] = None) -> Event:
        """An event behind all that this stream has been given so far. It does not wait for that to be done."""
        return await self._cuda._record(self._of(self._cuda, "record()"), timeout)

    def wait(self, event: Event, *, timeout: Optional[float] = None, wait: _Wait = False) -> Task[None]:
        """What this stream is given from now on begins when the event is done. The task is done when that is queued."""
        if not isinstance(event, Event):
            raise TypeError(f"event: what Stream.record() returns is wanted (await it), not {event!r:.80}")
        handles = self._of(self._cuda, "wait()"), event._of(self._cuda, "event")
        task: Task[None] = self._cuda.pool.ops["wait"](*handles, timeout=timeout, wait=wait)
        return task

    def synchronize(self, *, timeout: Optional[float] = None, wait: _Wait = False) -> Task[None]:
        """Done when all is done that this stream has been given so far."""
        task: Task[None] = self._cuda.pool.synchronize(self._of(self._cuda, "synchronize()"), timeout=timeout, wait=wait)
        return task

    async def __aenter__(self) -> Stream:
        return self


class Module(_Open):
    """Kernels that have been loaded. Made by Cuda.module(); `async with` closes it.

    Close it when its kernels have ended, that is, when their tasks have been awaited.
    """

    __slots__ = ()
    _closing = "module_close"

    def launch(self, name: str, grid: _Shape, block: _Shape, args: Sequence[Any] = (), *, shared: int = 0,
               stream: Optional[Stream] = None, timeout: Optional[float] = None,
               wait: _Wait = False) -> Task[None]:  # fmt: skip
        """Runs the kernel `name` (of C++ without extern "C" the mangled name) on `grid` blocks of `block` threads.

        `grid`, `block`: an int, or up to 3 of them, as dim3 has them. `shared`: bytes of dynamic shared memory a block.
        `args`: one for each parameter:

          memory on the device   a writable Buffer of this pool, or a task that will return one: its address
          const(memory)          a Buffer, no task, that the kernel only reads
          int, float, bool       of the parameter's size, where the driver tells it (12.4 and later); what does not fit is
                                 refused. An int is passed as an integer, a float as a floating-point number, whatever
                                 the kernel makes of it
          f32(x), i32(x), …      of that type. Needed with older drivers; also numpy's scalars, as numpy.float32(x)
          bytes                  a struct
          ptr(address)           an address that is not looked at

        They are held until the kernel has ended, and the task is done when it has. A kernel that was launched cannot be
        taken back: a cancelled task, or one whose `timeout` has passed, ends when the kernel does. One that reads or writes
        where no memory is fails the whole pool.
        """
        cuda = self._cuda
        given = [_argument(arg) for arg in args]
        task: Task[None] = cuda.pool.launch(
            self._of(cuda, "launch()"), name, _extents(grid), _extents(block), given, shared, cuda._queue(stream),
            timeout=timeout, wait=wait)  # fmt: skip
        return task

    async def __aenter__(self) -> Module:
        return self


class Pinned(_Open):
    """Memory of the host's that copies go straight to and from. Made by Cuda.pin(); `async with` unpins it.

    It holds the memory as long as it is open. Await the copies that use it before it is closed.
    """

    __slots__ = ()
    _closing = "unpin"

    @property
    def memory(self) -> Any:
        """What was pinned."""
        return self._handle

    async def __aenter__(self) -> Pinned:
        return self


# ---- the pool ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Info:
    """What a cuda pool works on, at one moment."""

    device: int
    """The device's ordinal, as the driver counts those that are visible."""

    name: str
    """As its maker calls it."""

    uuid: str
    """"GPU-…", as nvidia-smi -L prints it."""

    pci: str
    """Its place, "0000:3b:00.0"."""

    capability: tuple[int, int]
    """Compute capability: (9, 0) is sm_90."""

    multiprocessors: int
    """How many it has."""

    memory: int
    """Bytes that it has."""

    free: int
    """Bytes that nobody uses now."""

    driver: int
    """The newest CUDA that the driver knows: 13000 is 13.0."""

    max_threads: int
    """Threads of a block, at most."""

    max_shared: int
    """Bytes of shared memory of a block, at most."""


class Cuda:
    """A pool of the cuda plugin's: one device. Made by bulkhead.cuda.pool().

    All methods but those that are coroutines return a Task at once, which can be awaited, or given to another op as an
    argument that stands for its result. `timeout`, `wait`: as for every op of a pool. `stream`: a Stream of this pool;
    None: the section's own.
    """

    __slots__ = ("_pool",)

    def __init__(self, cuda_pool: Pool) -> None:
        """Made by pool()."""
        self._pool = cuda_pool

    @property
    def pool(self) -> Pool:
        """The pool itself, with its ops: bulkhead.pool() returns the same."""
        return self._pool

    # -- memory

    def alloc(self, shape: _Shape, dtype: Any = "float32", zero: bool = True, *, timeout: Optional[float] = None,
              wait: _Wait = False) -> Task[Buffer]:  # fmt: skip
        """New memory on the device, C-contiguous.

        `shape`: an int, or a tuple of at most 8. `dtype`: as Buffer.allocate() takes them. `zero`: whether it is cleared;
        else it holds whatever was there. It is freed with its last reference, or by free().
        """
        task: Task[Buffer] = self._pool.alloc(_extents(shape), _name_of(dtype), zero, timeout=timeout, wait=wait)
        return task

    def free(self, memory: _Memory, *, timeout: Optional[float] = None, wait: _Wait = False) -> Task[None]:
        """Frees memory now, whoever still has the Buffer: using it from then on is an error that says so.

        Refused where somebody may still use it: another task, or code that was given its address by DLPack or
        __cuda_array_interface__.
        """
        task: Task[None] = self._pool.free(memory, timeout=timeout, wait=wait)
        return task

    def to_device(self, memory: Any, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
                  wait: _Wait = False) -> Task[Buffer]:  # fmt: skip
        """A copy of an array of the host's on the device, of the same shape and dtype.

        `memory`: anything C-contiguous with the buffer protocol or DLPack: an array of numpy, a CPU tensor of torch, a
        bulkhead.Buffer, bytes (an array of uint8). It must not change until the task is done.
        `wait` works from threads; on an event loop a full pool is Overloaded, as two ops follow each other here.
        """
        queue = self._queue(stream)
        shape, dtype = _described(memory)
        made = self._pool.alloc(shape, dtype, False, timeout=timeout, wait=wait)
        if not made._accepted:  # it waits for room, and nothing can come after it before it has some
            made.cancel()
            raise Overloaded("pool.overloaded", {
                "pool": self._pool.label, "op": "alloc",
                "advice": "to_device() cannot wait for room on an event loop: await alloc(..., wait=True), then copy()",
            })  # fmt: skip
        task: Task[Buffer] = self._pool.copy(made, memory, stream=queue, timeout=timeout, wait=wait)
        task.__class__ = _Copied
        return task

    @overload
    def to_host(self, memory: Buffer, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
                wait: _Wait = False) -> Task[Buffer]: ...  # fmt: skip

    @overload
    def to_host(self, memory: _Memory, into: _T, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
                wait: _Wait = False) -> Task[_T]: ...  # fmt: skip

    def to_host(self, memory: _Memory, into: Any = None, *, stream: Optional[Stream] = None,
                timeout: Optional[float] = None, wait: _Wait = False) -> Task[Any]:  # fmt: skip
        """A copy of the device's memory in the host's: in `into`, or in a new Buffer of the same shape and dtype.

        `into`: writable and C-contiguous, of as many bytes; it is what the task returns. `memory` may be a task only where
        `into` is given, as it is not known before how large it will be.
        """
        if into is None:
            if not isinstance(memory, Buffer):
                raise TypeError("to_host(): a bulkhead.Buffer is wanted (await the task that returns it, or say `into` "
                                f"what memory it is to go), not {memory!r:.80}")  # fmt: skip
            into = Buffer.allocate(memory.shape, memory.dtype)
        return self.copy(into, memory, stream=stream, timeout=timeout, wait=wait)

    def copy(self, to: Any, source: Any, to_offset: int = 0, source_offset: int = 0, length: Optional[int] = None, *,
             stream: Optional[Stream] = None, timeout: Optional[float] = None,
             wait: _Wait = False) -> Task[Any]:  # fmt: skip
        """Copies `length` bytes from `source_offset` of `source` to `to_offset` of `to`; returns `to`.

        Each of them is memory of this device, of another one that has a section and that this one reaches, or of the
        host. `length` None: all of `source` from there on. Memory of the host that is not pinned is copied through the
        driver's own, by the worker: pin() what is copied again and again.
        """
        return self._pool.copy(to, source, to_offset, source_offset, length, self._queue(stream), timeout=timeout, wait=wait)

    def memset(self, memory: _Memory, value: int, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
               wait: _Wait = False) -> Task[None]:  # fmt: skip
        """Sets each byte to `value`, 0 to 255."""
        task: Task[None] = self._pool.memset(memory, value, self._queue(stream), timeout=timeout, wait=wait)
        return task

    def alloc_host(self, shape: _Shape, dtype: Any = "float32", *, timeout: Optional[float] = None,
                   wait: _Wait = False) -> Task[Buffer]:  # fmt: skip
        """New memory of the host's, of zeros, pinned as by pin() until it is freed with its last reference.

        numpy.asarray(buffer) is a view of it.
        """
        task: Task[Buffer] = self._pool.alloc_host(_extents(shape), _name_of(dtype), timeout=timeout, wait=wait)
        return task

    async def pin(self, memory: Any, timeout: Optional[float] = None) -> Pinned:
        """Pins memory of the host's, so that copies to and from it are the fastest, and hold no worker.

        `memory`: a bulkhead.Buffer, an array of numpy, whatever has the buffer protocol or DLPack; C-contiguous. It is held
        until it is unpinned. Whole pages are pinned: Buffer.allocate(..., alignment=4096) shares none with other memory, and
        alloc_host() is that and pinned in one. Pinning is slow: do it once for memory that is used again and again.
        """
        task: Task[Any] = self._pool.pin(memory, timeout=timeout)
        try:
            await task
        except asyncio.CancelledError:
            task.add_done_callback(functools.partial(self._unpin_orphan, memory))
            raise
        return Pinned(self, memory)

    def import_(self, memory: Any, writable: bool = False, *, stream: Optional[Stream] = None,
                timeout: Optional[float] = None, wait: _Wait = False) -> Task[Buffer]:  # fmt: skip
        """Another library's memory on this device as a Buffer that ops take; nothing is copied.

        `memory`: a CUDA tensor of torch, an array of CuPy, whatever has DLPack or __cuda_array_interface__; C-contiguous.
        It is held as long as the Buffer. `stream`, or the section's own, is made to wait for what the library has queued
        on the memory so far, and the task is done when that is done; import it again when the library has queued more.
        A library with a current stream for each thread, as torch is, is asked on a worker, where that is its default one:
        synchronize first what was queued on another.
        `writable`: whether ops may write it.
        """
        task: Task[Buffer] = self._pool.import_memory(
            memory, writable, self._queue(stream), timeout=timeout, wait=wait)  # fmt: skip
        return task

    # -- streams and modules

    async def stream(self, priority: int = 0, timeout: Optional[float] = None) -> Stream:
        """A new stream. `priority`: 0 is the least, negative numbers are more urgent, as far as the device has them. Where
        work of two streams waits for the device the more urgent goes first."""
        return Stream(self, await self._made(self._pool.stream(priority, timeout=timeout), Stream._closing), priority)

    async def record(self, timeout: Optional[float] = None) -> Event:
        """As Stream.record(), of the section's own stream."""
        return await self._record(None, timeout)

    def synchronize(self, *, timeout: Optional[float] = None, wait: _Wait = False) -> Task[None]:
        """As Stream.synchronize(), of the section's own stream."""
        task: Task[None] = self._pool.synchronize(timeout=timeout, wait=wait)
        return task

    async def module(self, image: Union[bytes, bytearray, memoryview, str, os.PathLike[str]],
                     timeout: Optional[float] = None) -> Module:  # fmt: skip
        """Loads kernels: PTX, a cubin or a fatbin, as bytes or as the path of a file (a relative one is the process's).

        The driver compiles PTX, which may take seconds; what it says of an error is in the PluginError `cuda.module`.
        """
        if isinstance(image, (bytes, bytearray, memoryview)):
            task = self._pool.module(bytes(image), timeout=timeout)
        elif isinstance(image, (str, os.PathLike)):
            path = os.fspath(image)
            if not isinstance(path, str) or "\n" in path:
                raise TypeError("image: PTX is given as bytes (text.encode()), a path as str or pathlib.Path, not "
                                f"{image!r:.80}")  # fmt: skip
            task = self._pool.module_file(os.path.abspath(path), timeout=timeout)
        else:
            raise TypeError(f"image: bytes of PTX, cubin or fatbin, or a file's path, are wanted, not {image!r:.80}")
        return Module(self, await self._made(task, Module._closing))

    # -- arithmetic: float32 and float64, C-contiguous memory of this device

    def fill(self, out: _Memory, value: _Float, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
             wait: _Wait = False) -> Task[None]:  # fmt: skip
        """out[...] = value"""
        return self._math("fill", out, value, stream=stream, timeout=timeout, wait=wait)

    def scale(self, y: _Memory, a: _Float, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
              wait: _Wait = False) -> Task[None]:  # fmt: skip
        """y *= a"""
        return self._math("scale", y, a, stream=stream, timeout=timeout, wait=wait)

    def axpy(self, y: _Memory, a: _Float, x: _Memory, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
             wait: _Wait = False) -> Task[None]:  # fmt: skip
        """y += a * x"""
        return self._math("axpy", y, a, x, stream=stream, timeout=timeout, wait=wait)

    def add(self, out: _Memory, a: _Memory, b: _Memory, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
            wait: _Wait = False) -> Task[None]:  # fmt: skip
        """out[...] = a + b, of equal shape"""
        return self._math("add", out, a, b, stream=stream, timeout=timeout, wait=wait)

    def mul(self, out: _Memory, a: _Memory, b: _Memory, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
            wait: _Wait = False) -> Task[None]:  # fmt: skip
        """out[...] = a * b, of equal shape"""
        return self._math("mul", out, a, b, stream=stream, timeout=timeout, wait=wait)

    def sum(self, a: _Memory, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
            wait: _Wait = False) -> Task[float]:  # fmt: skip
        """The sum of all elements; 0 of none."""
        return self._math("sum", a, stream=stream, timeout=timeout, wait=wait)

    def max(self, a: _Memory, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
            wait: _Wait = False) -> Task[float]:  # fmt: skip
        """The greatest element; NaN where there is one; of none an error."""
        return self._math("max", a, stream=stream, timeout=timeout, wait=wait)

    def dot(self, a: _Memory, b: _Memory, *, stream: Optional[Stream] = None, timeout: Optional[float] = None,
            wait: _Wait = False) -> Task[float]:  # fmt: skip
        """The dot product of two vectors of equal length."""
        return self._math("dot", a, b, stream=stream, timeout=timeout, wait=wait)

    def matvec(self, out: _Memory, m: _Memory, x: _Memory, *, stream: Optional[Stream] = None,
               timeout: Optional[float] = None, wait: _Wait = False) -> Task[None]:  # fmt: skip
        """out[...] = m @ x, for a matrix `m` of shape [rows, columns]; `out` overlaps neither."""
        return self._math("matvec", out, m, x, stream=stream, timeout=timeout, wait=wait)

    def top_k(self, scores: _Memory, k: Union[int, Task[int]], *, stream: Optional[Stream] = None,
              timeout: Optional[float] = None, wait: _Wait = False) -> Task[list[list[Any]]]:  # fmt: skip
        """The `k` greatest of a vector as [[index, score], ...], greatest first, equal ones by index; NaN left out."""
        return self._math("top_k", scores, k, stream=stream, timeout=timeout, wait=wait)

    # -- about it

    async def info(self) -> Info:
        """What it works on and how much memory there is."""
        device, name, uuid, pci, major, minor, *rest = await self._pool.info()
        return Info(device, name, uuid, pci, (major, minor), *rest)

    def __repr__(self) -> str:
        return f"<bulkhead.cuda.Cuda {self._pool.label!r}>"

    # -- inside

    def _op(self, name: str) -> Any:
        """An op, also one whose name Python or Pool has for itself."""
        return self._pool.ops[name]

    def _queue(self, stream: Optional[Stream]) -> Any:
        if stream is None:
            return None
        if not isinstance(stream, Stream):
            raise TypeError(f"stream: a Stream of Cuda.stream() is wanted (await it), or None, not {stream!r:.80}")
        return stream._of(self, "stream")

    def _math(self, op: str, *args: Any, stream: Optional[Stream], timeout: Optional[float], wait: _Wait) -> Task[Any]:
        return self._op(op)(*args, stream=self._queue(stream), timeout=timeout, wait=wait)  # type: ignore[no-any-return]

    async def _record(self, handle: Optional[int], timeout: Optional[float]) -> Event:
        return Event(self, await self._made(self._pool.record(handle, timeout=timeout), Event._closing))

    async def _made(self, task: Task[int], closing: str) -> int:
        """The number of something that is to be closed."""
        try:
            return await task
        except asyncio.CancelledError:  # it may have been too late to stop it
            task.add_done_callback(functools.partial(self._close_orphan, closing))
            raise

    def _close_orphan(self, closing: str, task: Task[int]) -> None:
        if task.outcome == "done":
            self._close_unasked(closing, task.result())

    def _unpin_orphan(self, memory: Any, task: Task[Any]) -> None:
        if task.outcome == "done":
            self._close_unasked(Pinned._closing, memory)

    def _close_unasked(self, closing: str, handle: Any) -> None:
        """From any thread; nobody asks for what becomes of it."""
        try:
            self._op(closing)(handle)
        except BulkheadError:
            pass  # the pool is closed, or full: its own end releases it


def pool(label: str = "cuda") -> Cuda:
    """The cuda pool that the manifest calls `label`.

    Raises UnknownPool when no such plugin is loaded, or an optional one was skipped, as where there is no GPU; NotInHost
    outside bulkheadd, and PluginError when it is another plugin's pool.
    """
    made = _pool(label)
    if made.state == "build-failed":
        raise UnknownPool("pool.unknown", {"pool": label, "state": "in the manifest, but skipped: it could not be opened",
                                           "advice": "the log and `bulkheadctl plugins` say why"})  # fmt: skip
    missing = [name for name in _OPS if name not in made.ops]
    if missing:
        raise PluginError("cuda.pool", {"pool": label, "given": "a pool without the ops " + " ".join(missing),
                                        "accepted": "the label of a [plugin …] section with library = cuda"})  # fmt: skip
    return Cuda(made)
