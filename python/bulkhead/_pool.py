# SPDX-License-Identifier: BSD-3-Clause
"""Pools as apps see them: ops as methods, lanes as views, tasks as awaitables."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import difflib
import inspect
import textwrap
import threading
import time
import weakref
from types import GenericAlias, MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Generator, Generic, Mapping, NoReturn, Optional, Sequence, TypeVar, Union

from ._errors import Cancelled, Deadline, Interrupted, NotInHost, Overloaded, UnknownPool

try:
    import _bulkhead
except ImportError:  # not in the host: NotInHost says so when it matters
    _bulkhead = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from _bulkhead import Task as _NativeTask
else:
    _NativeTask = _bulkhead.Task if _bulkhead else type("Task", (), {"__slots__": ()})

__all__ = ["Pool", "Task", "pool"]

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

# The host's asyncio loop while it may run; _host sets it.
_host_loop: Optional[asyncio.AbstractEventLoop] = None


def _set_host_loop(loop: Optional[asyncio.AbstractEventLoop]) -> None:
    global _host_loop
    _host_loop = loop


def _running_loop() -> Optional[asyncio.AbstractEventLoop]:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Elsewhere:
    """A future of another thread's loop, as a waiter that main may wake."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
        self._loop = loop
        self._future = future

    def done(self) -> bool:
        return False  # only its own thread can tell

    def set_result(self, result: None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # that loop is closed: nobody awaits there any more

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class _Callback:
    """A function of add_done_callback(), as a waiter that main wakes; it hands on to the function's own loop."""

    __slots__ = ("task", "function", "loop", "context")

    def __init__(self, task: Task[Any], function: Callable[[Any], object], loop: asyncio.AbstractEventLoop,
                 context: Optional[contextvars.Context]) -> None:  # fmt: skip
        self.task = task
        self.function: Optional[Callable[[Any], object]] = function
        self.loop = loop
        self.context = contextvars.copy_context() if context is None else context  # an empty one is false

    def done(self) -> bool:
        return self.function is None  # removed

    def set_result(self, result: None) -> None:
        call = self.loop.call_soon if _running_loop() is self.loop else self.loop.call_soon_threadsafe
        try:
            call(self._run, context=self.context)
        except RuntimeError:
            pass  # that loop is closed

    def _run(self) -> None:
        if self.function is not None:
            self.function(self.task)


class Task(_NativeTask, Generic[_T_co]):
    """One run of an op: `await` it, or ask `result()` from a thread that may block.

    It runs whether or not somebody awaits it; a failure that nobody asks for is logged. What a Python
    callable raised is raised again as it is, with the traceback of the thread that ran it; a native
    op's failure is a PluginError; the other outcomes are Cancelled, Deadline and Abandoned.

    It may be awaited several times and by several coroutines; each gets the same result or exception.
    When one that awaits it is cancelled, so is the task, for all of them: asyncio.shield(task) awaits
    it without that. asyncio's wait_for, gather, shield, as_completed, wait and ensure_future take it
    as it is; TaskGroup.create_task takes as_coroutine().

    Given to an op as an argument, also in a list, it stands for its result; when it fails that task is
    a DependentError.
    """

    __slots__ = ("__weakref__", "_callbacks")
    _callbacks: list[_Callback]

    def __await__(self) -> Generator[Any, None, _T_co]:
        if not self.done():
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._add_waiter(future if loop is _host_loop else _Elsewhere(loop, future))
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        value: _T_co = self._value()
        return value

    async def as_coroutine(self) -> _T_co:
        """The same as a coroutine, for what insists on one: group.create_task(pool.run(f).as_coroutine())."""
        return await self

    def result(self, timeout: Optional[float] = None) -> _T_co:
        """What it returned; blocks until then, or for `timeout` seconds. Any thread but an event loop's.

        Raises what the task raised, or TimeoutError when it has not ended by then (it goes on). On a
        thread of the task's own pool a queued task is run here and now. Where an event loop runs, only
        an ended task can be asked: await it instead.
        """
        self._block(timeout, "result")
        value: _T_co = self._value()
        return value

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """What awaiting it raises, Cancelled included; None when it is done well. Blocks as result() does."""
        self._block(timeout, "exception")
        try:
            self._value()
        except Interrupted:
            raise  # meant for this thread
        except BaseException as error:
            return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        return None

    def _block(self, timeout: Optional[float], asked: str) -> None:
        if self.done():
            return
        if _running_loop() is not None:
            raise RuntimeError(f"{asked}() of {self!r} would stop this thread's event loop: await the task instead")
        self._wait(timeout)

    def cancelled(self) -> bool:
        """Whether it ended by being cancelled."""
        if self.outcome == "refused":
            return isinstance(self.exception(), Cancelled)
        return self.outcome == "cancelled"

    def add_done_callback(
        self, function: Callable[[Task[_T_co]], object], /, *, context: Optional[contextvars.Context] = None
    ) -> None:
        """Have function(task) called soon after the task has ended, as asyncio.Future does it.

        It is called on the thread whose event loop runs here and now; on the host's loop when this
        thread runs none. `context`: the contextvars.Context to call it in; preset: a copy of this one.
        """
        loop = _running_loop() or _host_loop
        if loop is None:
            raise RuntimeError(f"no event loop runs that could call back when {self!r} ends")
        callback = _Callback(self, function, loop, context)
        try:
            self._callbacks.append(callback)
        except AttributeError:
            self._callbacks = [callback]
        self._add_waiter(callback)

    def remove_done_callback(self, function: Callable[[Task[_T_co]], object], /) -> int:
        """Take back all that add_done_callback(function) asked for and that has not been called; how many it was."""
        try:
            removed = [c for c in self._callbacks if c.function == function]
        except AttributeError:
            return 0
        for callback in removed:
            callback.function = None
            self._callbacks.remove(callback)
        return len(removed)

    def cancel(self) -> bool:
        """Ask for its end: a queued task ends at once, a running one decides itself. False if it has ended."""
        if self.done():
            return False
        if not self._accepted:  # it waits for room, on the host's loop
            if _host_loop is None or _running_loop() is _host_loop:
                self._refuse_waiting()
            else:
                _host_loop.call_soon_threadsafe(self._cancel_waiting)
            return True
        return bool(self._cancel())

    def _refuse_waiting(self) -> None:
        self._refuse(Cancelled("task.cancelled", {"pool": self.pool, "op": self.op}))
        self.exception()  # nobody needs to ask for it: it was somebody's wish

    def _cancel_waiting(self) -> None:
        """On the host's loop, a little later: it may have got room or have ended meanwhile."""
        self.cancel()

    def __repr__(self) -> str:
        return f"<bulkhead.Task {self.pool}.{self.op} {self.outcome or 'pending'}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_"):
                text += f"; {self!r} is an op under way, not its result: await it first"
            raise AttributeError(text, name=name, obj=self)


# What a result may be able to do and a task is not: each says that the `await` is missing.
_OF_VALUES = (
    "__abs__", "__add__", "__and__", "__bool__", "__bytes__", "__complex__", "__contains__", "__divmod__",
    "__float__", "__floordiv__", "__ge__", "__getitem__", "__gt__", "__index__", "__int__", "__invert__",
    "__iter__", "__le__", "__len__", "__lshift__", "__lt__", "__matmul__", "__mod__", "__mul__", "__neg__",
    "__or__", "__pos__", "__pow__", "__radd__", "__rand__", "__rdivmod__", "__rfloordiv__", "__rlshift__", "__rmatmul__",
    "__rmod__", "__rmul__", "__ror__", "__round__", "__rpow__", "__rrshift__", "__rshift__", "__rsub__", "__rtruediv__",
    "__rxor__", "__setitem__", "__sub__", "__truediv__", "__xor__",
)  # fmt: skip


def _not_awaited(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Task[Any], *args: Any) -> NoReturn:
        raise TypeError(f"{self!r} is an op under way, not its result: write `await {self.pool}.{self.op}(...)`, or ask "
                        f"result() on a thread that may block ({name} of a task)")  # fmt: skip

    refuse.__name__ = name
    return refuse


for _name in _OF_VALUES:
    setattr(Task, _name, _not_awaited(_name))


class _Room:
    """Tasks that wait for a place in one pool, oldest first. On the host's loop only.

    A full pool tells nobody when it has room again; it is asked again, soon at first.
    """

    _SOONEST, _LATEST = 0.001, 0.02

    def __init__(self) -> None:
        self._waiting: collections.deque[tuple[Task[Any], float]] = collections.deque()
        self._delay = self._SOONEST
        self._timer: Optional[asyncio.TimerHandle] = None

    def add(self, task: Task[Any], until: float) -> None:
        self._waiting.append((task, until))
        if self._timer is None:
            self._pump()

    def _pump(self) -> None:
        self._timer = None
        refusal = self._submit_oldest()
        if not self._waiting:
            self._delay = self._SOONEST
            return
        self._give_up(refusal)
        assert _host_loop is not None
        self._timer = _host_loop.call_later(self._delay, self._pump)
        self._delay = min(2 * self._delay, self._LATEST)

    def _submit_oldest(self) -> Optional[Overloaded]:
        """Submits in order until the pool is full: returns how it said so."""
        while self._waiting:
            task, _ = self._waiting[0]
            try:
                if not task.done():  # cancelled meanwhile
                    task._submit()
                    self._delay = self._SOONEST
            except Overloaded as refusal:
                return refusal.with_traceback(None)  # its frames would hold this task, and themselves
            except Exception as error:
                task._refuse(error)
            self._waiting.popleft()
        return None

    def _give_up(self, refusal: Optional[Overloaded]) -> None:
        """Ends those whose time has passed."""
        now = time.monotonic()
        late = [task for task, until in self._waiting if until <= now and not task.done()]
        for task in late:
            if task.deadline is not None and task.deadline <= now:
                facts = {"pool": task.pool, "op": task.op, "state": "waiting for room"}
                task._refuse(Deadline("task.deadline", facts))
            elif refusal is not None:
                task._refuse(Overloaded(refusal.code, refusal.facts))
        self._waiting = collections.deque(pair for pair in self._waiting if not pair[0].done())


class _Shared:
    """What a pool and its lanes' views have in common."""

    def __init__(self, native: _bulkhead.Pool) -> None:
        self.native = native
        self.room = _Room()
        self.lock = threading.Lock()
        self.lanes: weakref.WeakValueDictionary[str, _bulkhead.Lane] = weakref.WeakValueDictionary()

    def lane(self, name: str) -> _bulkhead.Lane:
        """The lane of that name; it lives as long as a view of it or a task in it."""
        with self.lock:
            lane = self.lanes.get(name)
            if lane is None:
                lane = self.lanes[name] = self.native.lane(name)
            return lane


class Pool:
    """A plugin's pool: its ops are methods of it (help(pool) lists them).

    Each op takes, besides its own arguments,
      timeout=SECONDS  the task's deadline: Deadline is raised when it is not done by then;
      lane=LANE        a lane of this pool, or a lane's name: tasks of a lane run in order, one at a time;
      wait=True        wait for room where the pool is full, rather than raise Overloaded;
      wait=SECONDS     the same, but no longer than that;
    and returns a Task. Submitting never blocks a thread whose event loop runs. A Task as an argument
    stands for its result: the op starts when that is there, and DependentError tells when it never is.
    """

    def __init__(self, shared: _Shared, lane_name: Optional[str] = None) -> None:
        """Made by bulkhead.pool() and lane()."""
        self._shared = shared
        self._lane_name = lane_name
        self._lane = shared.lane(lane_name) if lane_name is not None else None

    @property
    def label(self) -> str:
        """The plugin's label in the manifest."""
        return self._shared.native.label

    @property
    def version(self) -> str:
        """The plugin's version."""
        return self._shared.native.version

    @property
    def workers(self) -> int:
        """How many workers it has."""
        return self._shared.native.workers

    @property
    def state(self) -> str:
        """Its state: "ready", "draining", "failed" …"""
        return self._shared.native.state

    @property
    def name(self) -> Optional[str]:
        """The lane's name; None for the pool itself."""
        return self._lane_name

    @property
    def ops(self) -> Mapping[str, Callable[..., Task[Any]]]:
        """The ops by name, also those whose names this class has for itself."""
        return MappingProxyType({name: function.__get__(self) for name, function in self._ops.items()})

    _ops: Mapping[str, Any] = {}

    def lane(self, name: str) -> Pool:
        """A view of this pool whose ops run on the lane `name`: in order, one at a time."""
        if not isinstance(name, str):
            raise TypeError(f"a lane's name is a str, not {type(name).__name__}")
        return type(self)(self._shared, name)

    def stats(self) -> dict[str, Any]:
        """What became of this lane's tasks since it was made; only for a view that lane() gave.

        submitted, done, failed, cancelled, deadline, abandoned, queued, running: tasks; the first is the
        sum of the others. busy_s: seconds from start to end of those that have ended. last_error: the
        code of the last failure, or None.
        """
        if self._lane is None:
            raise TypeError(f"stats() is for a lane: bulkhead.pool({self.label!r}).lane(NAME).stats()")
        stats: dict[str, Any] = self._lane.stats()
        return stats

    def __getattr__(self, name: str) -> Callable[..., Task[Any]]:
        near = difflib.get_close_matches(name, self._ops, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(self._ops) or 'none'}"
        raise AttributeError(f"pool {self.label!r} has no op {name!r}; {hint}", name=name, obj=self)

    def __repr__(self) -> str:
        lane = f" lane {self._lane_name!r}" if self._lane_name is not None else ""
        return f"<bulkhead.Pool {self.label!r}{lane}>"

    def _native_lane(self, lane: Union[None, str, Pool]) -> Optional[_bulkhead.Lane]:
        if lane is None:
            return self._lane
        if isinstance(lane, str):
            return self._shared.lane(lane)
        if isinstance(lane, Pool) and lane._lane is not None:
            return lane._lane
        raise TypeError(f"lane= takes a lane of this pool or a lane's name, not {lane!r}")

    def _submit(
        self,
        index: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: Optional[float],
        lane: Union[None, str, Pool],
        wait: Union[bool, float, None],
    ) -> Task[Any]:
        room = None if wait is False or wait is None else _seconds_of(wait)
        task: Task[Any] = Task(self._shared.native, index, args, kwargs, self._native_lane(lane), timeout)
        if room is None:
            task._submit()
        elif _running_loop() is None:
            task._submit_wait(room)
        else:
            self._wait_for_room(task, room)
        return task

    def _wait_for_room(self, task: Task[Any], seconds: float) -> None:
        if _host_loop is None:
            task._submit()  # at the host's end nothing is waited for
            return
        until = time.monotonic() + seconds
        if task.deadline is not None:
            until = min(until, task.deadline)
        if _running_loop() is _host_loop:
            self._shared.room.add(task, until)
        else:
            _host_loop.call_soon_threadsafe(self._shared.room.add, task, until)


def _seconds_of(wait: Union[bool, float]) -> float:
    """How long `wait` waits for room. Alike whether there is room or not, and whether a loop runs or not."""
    if wait is True:
        return float("inf")
    if not hasattr(type(wait), "__float__") and not hasattr(type(wait), "__index__"):  # a str is none, though float() takes it
        raise TypeError(f"wait must be True, False, None or a number of seconds, not {wait!r:.80}")
    seconds = float(wait)
    if not seconds >= 0:  # NaN neither
        raise ValueError(f"wait must be True, False, None or a number of seconds that is not negative, not {wait!r:.80}")
    return seconds


_TYPES: dict[str, Any] = {
    "none": None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "list": list,
    "handle": int,
    "buffer": object,
    "object": object,
}


def _accepted(type_name: str, or_none: bool) -> Any:
    """A parameter's annotation: for each argument a task may stand, whose result is then taken."""
    kind = _TYPES[type_name]
    if kind is object:  # a task is one already
        return kind
    return kind | Task | None if or_none else kind | Task


def _signature(result: str, parameters: Sequence[tuple[Any, ...]]) -> inspect.Signature:
    """What inspect and help() show. No parameter is called like one of these: the host sees to that."""
    kind = inspect.Parameter
    shown = [kind("_self", kind.POSITIONAL_ONLY)]
    for name, type_name, _, _, variadic, has_preset, preset in parameters:
        how = kind.VAR_POSITIONAL if variadic else kind.POSITIONAL_OR_KEYWORD
        default = preset if has_preset and not variadic else kind.empty
        shown.append(kind(name, how, default=default, annotation=_accepted(type_name, has_preset and preset is None)))
    for name, default in (("timeout", None), ("lane", None), ("wait", False)):
        shown.append(kind(name, kind.KEYWORD_ONLY, default=default))
    return inspect.Signature(shown, return_annotation=GenericAlias(Task, _TYPES[result]))  # Task[None] as text, too


_WIDTH = 90  # of what help() shows


def _docstring(doc: Optional[str], result: str, parameters: Sequence[tuple[Any, ...]]) -> str:
    lines = [textwrap.fill(doc or "An op of the plugin.", _WIDTH), ""]
    lines += ["Arguments, for each of which a Task of any pool may stand, whose result is then taken:"]
    lines += [f"    {'*' if p[4] else ''}{p[0]}: {p[2]}" for p in parameters]
    lines += ["    timeout: the task's deadline, seconds from now; None for none",
              "    lane: a lane of the pool or its name; None for the view's own",
              "    wait: for room in a full pool: True, or for how many seconds at most",
              "", f"Result of the task: {result}",
              "Raises BadArgument, Overloaded, Shutdown, or PluginError for a pool that has failed;",
              "the Task raises what help(bulkhead.Task) says."]  # fmt: skip
    return "\n".join(lines)


def _make_op(index: int, name: str, doc: Optional[str], result: str, parameters: Sequence[tuple[Any, ...]]) -> Any:
    def op(self: Pool, /, *args: Any, timeout: Optional[float] = None, lane: Union[None, str, Pool] = None,
           wait: Union[bool, float, None] = False, **kwargs: Any) -> Task[Any]:  # fmt: skip
        return self._submit(index, args, kwargs, timeout, lane, wait)

    op.__name__ = name
    op.__qualname__ = f"Pool.{name}"
    op.__doc__ = _docstring(doc, result, parameters)
    op.__signature__ = _signature(result, parameters)  # type: ignore[attr-defined]
    return op


def _make_pool(native: _bulkhead.Pool) -> Pool:
    ops = {name: _make_op(index, name, doc, result, parameters)
           for index, (name, doc, result, parameters) in enumerate(native.ops())}
    methods = {name: op for name, op in ops.items() if not hasattr(Pool, name)}
    made: type[Pool] = type("Pool", (Pool,), {"_ops": ops, "__module__": "bulkhead", "__doc__": Pool.__doc__, **methods})
    return made(_Shared(native))


_pools: dict[str, Pool] = {}


def pool(label: str) -> Pool:
    """The pool of the plugin that the manifest calls `label`, with its ops as methods.

    Raises UnknownPool when no such plugin is loaded (an optional one may have been skipped), and
    NotInHost outside bulkheadd.
    """
    if _bulkhead is None:
        raise NotInHost("host.none", {"asked": f"pool({label!r})"})
    made = _pools.get(label)
    if made is not None:
        return made
    native = _bulkhead.pool(label)
    if native is None:
        labels = _bulkhead.pool_labels()
        state = "in the manifest, but not loaded" if label in labels else "not in the manifest"
        known = " ".join(labels) or "(no plugin)"
        raise UnknownPool("pool.unknown", {"pool": label, "state": state, "manifest": known})
    return _pools.setdefault(label, _make_pool(native))
