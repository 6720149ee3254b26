# SPDX-License-Identifier: BSD-3-Clause
"""What the host's main thread does in Python: the asyncio loop, the apps' lives, the control loop's requests.

Called by the host: prepare(), serve() and end(), in that order, once each.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import copy
import errno
import functools
import importlib
import inspect
import json
import math
import multiprocessing
import os
import select
import selectors
import signal
import sys
import threading
import time
import traceback
from types import CodeType, FrameType, FunctionType
from typing import Any, Awaitable, Callable, Coroutine, Iterator, Optional

import _bulkhead

from . import App, Event
from . import _convert, _endpoint, _pool
from ._errors import BulkheadError, Deadline, Interrupted, Overloaded, Shutdown

_QUICK_MAX = 20
_LEFT_SHOWN = 8  # tasks left at the stop, a log line each
_LEFTOVERS_S = 1.0  # for what is ready to run before the loop is left, and for cancelled tasks to end
_FILE_SHOWN = 190  # bytes of a long path's end that a report's frame has for certain
_EVENTS_MAX = 256  # that wait for one app's supervise()
_TURNS = 100  # of another's loop, for what is ready to run before it is left
_LATE_STOP_S = 0.2  # for a stop() that is over its time because another app kept main busy


# ---- the loop -----------------------------------------------------------------------------------


class _Selector(selectors.EpollSelector):
    """Waits through the host, which lets go of the GIL and accounts for it (GIL-1)."""

    on_idle: Optional[Callable[[], None]] = None  # called when nothing is ready to run
    _selector: select.epoll  # its base's, as CPython has them since 3.4
    _fd_to_key: dict[int, selectors.SelectorKey]

    def select(self, timeout: Optional[float] = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            milliseconds = -1
        else:  # away from zero, so that it is never too early
            milliseconds = min(math.ceil(max(timeout, 0) * 1000), 2**31 - 1)
        if self.on_idle is not None and milliseconds != 0:
            self.on_idle()
            milliseconds = 0
        ready = []
        for fd, event in _bulkhead.epoll_wait(self._selector.fileno(), milliseconds, max(len(self._fd_to_key), 1)):
            key = self._fd_to_key.get(fd)
            if key is None:
                continue
            events = 0
            if event & ~_EPOLLIN:
                events |= selectors.EVENT_WRITE
            if event & ~_EPOLLOUT:
                events |= selectors.EVENT_READ
            ready.append((key, events & key.events))
        return ready


_EPOLLIN, _EPOLLOUT = 1, 4


class _Loop(asyncio.SelectorEventLoop):
    """The host's own loop; the signals that stop the host stay the host's (H36)."""

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        if sig in (signal.SIGTERM, signal.SIGINT):
            _log(_bulkhead.WARNING, f"{signal.Signals(sig).name} stops the host in order: the app's handler is left "
                                    "out; stop() is called instead")
            return
        super().add_signal_handler(sig, callback, *args)


def _make_loop(spec: Optional[str]) -> asyncio.AbstractEventLoop:
    """The host's own, or what the manifest's `[python] event_loop = module:callable` gives."""
    if spec is None:
        return _Loop(_Selector())
    loop = _find(spec)()
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise TypeError(f"it returned {loop!r}, which is no asyncio.AbstractEventLoop")
    if loop.is_closed() or loop.is_running():
        raise ValueError(f"it returned {loop!r}: a loop that is neither closed nor running is needed")
    return loop


def _find(spec: str) -> Any:
    """What `module:attribute.attribute` names."""
    module_name, _, path = spec.partition(":")
    found: Any = importlib.import_module(module_name)
    for attribute in path.split("."):
        found = getattr(found, attribute)
    return found


@contextlib.contextmanager
def _at_site(site: int) -> Iterator[None]:
    """What main does in it is booked at this host site instead of at its wake-up's (GIL-1)."""
    before = _bulkhead.switch_site(site)
    try:
        yield
    finally:
        _bulkhead.switch_site(before)


# ---- saying what went wrong ---------------------------------------------------------------------


def _log(level: int, message: str) -> None:
    _bulkhead.log(level, "python", message.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode())


def _log_exception(error: BaseException, what: str) -> None:
    """The traceback, a line each; the host's own frames at its ends are left out."""
    _log(_bulkhead.ERROR, what)
    shown = traceback.TracebackException.from_exception(error)
    for end in (0, -1):
        while len(shown.stack) > 1 and shown.stack[end].filename == __file__:
            del shown.stack[end]
    for part in shown.format():
        for line in part.rstrip("\n").split("\n"):
            _log(_bulkhead.ERROR, line)


def _facts(error: BaseException, **facts: str) -> dict[str, str]:
    """Type, message, and where it was raised, unless that is the import system or the host itself."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if not frame.filename.startswith("<frozen ") and frame.filename not in (importlib.__file__, __file__)]
    facts |= {"type": type(error).__name__, "message": str(error)[:400].replace("\0", "\\0")}
    if frames:
        facts["at"] = f"{frames[-1].filename}:{frames[-1].lineno}"
    return facts


def _exit_status(error: SystemExit) -> int:
    """As the interpreter does it: None is 0, a number is itself, anything else is printed and 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    _log(_bulkhead.ERROR, str(error.code))
    return 1


# ---- apps ---------------------------------------------------------------------------------------


class _AppRun:
    """An app of the manifest and where it is in its life."""

    def __init__(self, name: str, spec: str, options: dict[str, str]) -> None:
        self.info = App(name, options)
        self.spec = spec
        self.object: Any = None
        self.endpoints: dict[str, _endpoint.Endpoint] = {}
        self.starting: Optional[asyncio.Task[Any]] = None
        self.started = False
        self.loaded = False
        self.supervision = _Supervision(self)

    def load(self) -> None:
        found = _find(self.spec)
        self.object = found() if isinstance(found, type) or inspect.isroutine(found) else found
        self.endpoints = _endpoint.collect(self.object, self.info.name)
        self.loaded = True

    async def start(self) -> None:
        if not self.loaded:
            raise RuntimeError(f"app {self.info.name} has not been loaded")
        self.starting = asyncio.current_task()
        try:
            await _call_life(getattr(self.object, "start", None), self.info)
            self.started = True
        finally:
            self.starting = None

    async def stop(self) -> None:
        """stop() is owed to an app whose start() has come to its end, as in `async with`."""
        if self.starting is not None:
            starting = self.starting
            starting.cancel()
            await asyncio.wait([starting])
        if self.started:
            self.started = False
            await self.supervision.end()
            await _call_life(getattr(self.object, "stop", None), self.info)


_MARKS = (" in _Supervision.call", " in _Supervision.follow")  # of frames that run somebody's supervise()


def _runs_supervise(stall: dict[str, Any]) -> bool:
    """Whether main was in a supervise() when the report was made."""
    return any(frame.startswith(__file__[-_FILE_SHOWN:]) and frame.endswith(_MARKS)
               for row in stall.get("python") or () if row["tid"] == os.getpid() for frame in row["frames"])


class _Supervision:
    """Tells one app of events, in their order and one at a time: a slow supervise() delays only its own app."""

    def __init__(self, app: _AppRun) -> None:
        self.app = app
        self.waiting: collections.deque[Event] = collections.deque()
        self.dropped = 0  # since the last time that none waited
        self.running: Optional[asyncio.Task[None]] = None

    def tell(self, event: Event) -> None:
        if not self.app.started:
            return
        if len(self.waiting) == _EVENTS_MAX:
            self.waiting.popleft()
            self.dropped += 1
            if self.dropped == 1:
                _log(_bulkhead.WARNING, f"app {self.app.info.name}: its supervise() does not keep up, {_EVENTS_MAX} events "
                                        "wait for it: the oldest are dropped")
        self.waiting.append(event)
        self.go_on()

    def go_on(self) -> None:
        while self.waiting and self.running is None:
            self.call(self.waiting.popleft())
        if not self.waiting:
            self.dropped = 0

    def call(self, event: Event) -> None:
        try:
            with _at_site(_bulkhead.SITE_SUPERVISE):
                function = getattr(self.app.object, "supervise", None)
                result = function(event) if function is not None else None
        except BaseException as error:
            self.raised(error, event)
            return
        if inspect.isawaitable(result):
            self.running = asyncio.get_running_loop().create_task(self.follow(result, event))
            self.running.add_done_callback(functools.partial(self.on_end, result))

    async def follow(self, result: Awaitable[Any], event: Event) -> None:
        try:
            await result
        except BaseException as error:
            self.raised(error, event)

    def on_end(self, result: Awaitable[Any], task: asyncio.Task[None]) -> None:
        if inspect.iscoroutine(result):
            result.close()  # it was cancelled before it had begun
        self.running = None
        self.go_on()

    def raised(self, error: BaseException, event: Event) -> None:
        name = self.app.info.name
        if isinstance(error, SystemExit):
            _bulkhead.exit_asked(_exit_status(error), name)
        elif isinstance(error, asyncio.CancelledError) and not self.app.started:
            _log(_bulkhead.WARNING, f"app {name}: its supervise() was cancelled at the stop (event {event.kind})")
        else:
            _log_exception(error, f"app {name} raised in supervise() (event {event.kind})")

    async def end(self) -> None:
        """The app is about to stop and is told of nothing more."""
        self.waiting.clear()
        if self.running is None:
            return
        self.running.cancel()
        _, late = await asyncio.wait([self.running], timeout=_LEFTOVERS_S)
        if late:
            _log(_bulkhead.WARNING, f"app {self.app.info.name}: its supervise() did not end when it was cancelled; "
                                    "stop() is called all the same")


async def _call_life(function: Optional[Callable[..., Any]], info: App) -> None:
    """start(app) or start(); a coroutine or a plain function; or none at all."""
    if function is None:
        return
    result = function(info) if _takes_an_argument(function) else function()
    if inspect.isawaitable(result):
        await result


def _takes_an_argument(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    return True


# ---- requests -----------------------------------------------------------------------------------


class _Main:
    """The one object behind prepare(), serve() and end()."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        selector = getattr(loop, "_selector", None)
        self.selector = selector if isinstance(selector, _Selector) else None  # None: another's loop, main is coarse
        self.apps = [_AppRun(*app) for app in _bulkhead.apps()]
        self.running: dict[asyncio.Task[None], tuple[Any, float]] = {}  # for which request, and since when
        self.given_up: set[asyncio.Task[None]] = set()  # of these, calls that have been cancelled since their client is gone
        self.leaving = False
        self.own_stalls: set[Any] = set()  # by number: those that a supervise() made, and that are not over
        self.leave_at_last: Optional[asyncio.TimerHandle] = None
        self.handlers: dict[int, Callable[[_bulkhead.Request], None]] = {
            _bulkhead.PLUGIN_LOAD: lambda request: request.load_plugin(),
            _bulkhead.APP_LOAD: self.on_app_load,
            _bulkhead.APP_START: lambda request: self.run(request, self.app_life(request, _AppRun.start)),
            _bulkhead.APP_STOP: lambda request: self.run(request, self.app_life(request, _AppRun.stop)),
            _bulkhead.APP_CALL: lambda request: self.run(request, self.app_call(request)),
            _bulkhead.SUPERVISE: self.on_supervise,
            _bulkhead.GIVE_UP: self.on_give_up,
            _bulkhead.LEAVE: self.on_leave,
        }

    # -- what arrives

    def on_inbox(self) -> None:
        for request in _bulkhead.take_requests():
            try:
                self.handlers[request.kind](request)
            except BaseException as error:
                _log_exception(error, "a request of the control loop was not carried out")
                if not request.replied:
                    request.fail(errno.EIO, "request.failed", _facts(error))

    def run(self, request: Any, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.running[task] = request, self.loop.time()
        task.add_done_callback(self.on_run_end)

    def on_run_end(self, task: asyncio.Task[None]) -> None:
        request, _ = self.running.pop(task)
        self.given_up.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log_exception(error, "a request of the control loop was not carried out")
            if not request.replied:
                request.fail(errno.EIO, "request.failed", _facts(error))
        elif not request.replied:  # it was cancelled before it had begun
            self.fail(request, self.apps[request.index], asyncio.CancelledError(), "was cancelled")

    def on_supervise(self, request: Any) -> None:
        """The control loop waits for nobody's supervise(): it has its reply at once."""
        told = json.loads(request.body)
        kind, stall = told.pop("kind"), told.get("stall")
        request.ok()
        if isinstance(stall, dict) and self.is_own_stall(kind, stall):
            return
        for app in self.apps:  # each with facts of its own
            app.supervision.tell(Event(kind, copy.deepcopy(stall if isinstance(stall, dict) else told)))

    def is_own_stall(self, kind: str, stall: dict[str, Any]) -> bool:
        """Whether somebody's supervise() made it: told of that as well, it would make the next one, and so on."""
        number = stall.get("id")
        if kind == "stall" and _runs_supervise(stall):
            self.own_stalls.add(number)
            _log(_bulkhead.WARNING, f"stall {number} was made by a supervise() that kept main busy: the apps are not told")
        elif number not in self.own_stalls:
            return False
        elif kind == "stall-over":
            self.own_stalls.discard(number)
        return True

    def on_give_up(self, request: Any) -> None:
        for task, (asked, since) in list(self.running.items()):
            if not asked.given_up or task in self.given_up:
                continue
            left = since + _LATE_STOP_S - self.loop.time()
            if asked.kind == _bulkhead.APP_STOP and left > 0:
                self.loop.call_later(left, task.cancel)
            else:
                task.cancel()
            if asked.kind == _bulkhead.APP_CALL:
                self.given_up.add(task)  # once: what it does to end is not cancelled by the next client that goes
        request.ok()

    def on_leave(self, request: Any) -> None:
        """Leaves when nothing is ready to run: whoever awaited an outcome gets to act on it."""
        self.leaving = True
        request.ok()
        if self.selector is not None:
            self.selector.on_idle = self.loop.stop
        else:
            self.loop.call_soon(self.leave_when_idle, _TURNS)
        self.leave_at_last = self.loop.call_later(_LEFTOVERS_S, self.loop.stop)

    def leave_when_idle(self, turns: int) -> None:
        """On another's loop, which does not say when it is idle: what is ready now has had its turns by then."""
        if turns == 0:
            self.loop.stop()
        else:
            self.loop.call_soon(self.leave_when_idle, turns - 1)

    # -- apps: load, start, stop

    def exit_asked(self, error: SystemExit, app: Optional[str]) -> int:
        status = _exit_status(error)
        _bulkhead.exit_asked(status, app)
        return status

    def on_app_load(self, request: Any) -> None:
        app = self.apps[request.index]
        try:
            with _at_site(_bulkhead.SITE_APP_CONSTRUCT):
                app.load()
                told = json.dumps([endpoint.describe() for endpoint in app.endpoints.values()], allow_nan=False)
        except BaseException as error:
            self.fail(request, app, error, "did not load")
        else:
            request.answer(200, told.encode())  # for GET /v1/apps

    async def app_life(self, request: Any, step: Callable[[_AppRun], Coroutine[Any, Any, None]]) -> None:
        app = self.apps[request.index]
        try:
            await step(app)
        except BaseException as error:
            self.fail(request, app, error, f"raised in {step.__name__}()")
        else:
            request.ok()

    def fail(self, request: Any, app: _AppRun, error: BaseException, what: str) -> None:
        """The reply to a load, start or stop that raised. The traceback goes to the log."""
        name = app.info.name
        if request.kind == _bulkhead.APP_CALL:
            self.answer_error(request, error)
        elif isinstance(error, SystemExit):
            status = self.exit_asked(error, name)
            request.fail(errno.ECANCELED, "app.exit", {"app": name, "status": str(status)})
        elif isinstance(error, asyncio.CancelledError):
            _log(_bulkhead.WARNING, f"app {name}: cancelled at its deadline")
            request.fail(errno.ETIMEDOUT, "app.cancelled", {"app": name})
        else:
            _log_exception(error, f"app {name} {what}")
            code = "app.interrupted" if isinstance(error, Interrupted) else "app.raised"
            request.fail(errno.EIO, code, _facts(error, app=name))

    # -- endpoints

    async def app_call(self, request: Any) -> None:
        try:
            kind, body = await self.call_endpoint(request)
            if not request.replied:
                request.answer(200, body, kind == _endpoint.OCTETS)
        except BaseException as error:
            if not request.replied:
                self.answer_error(request, error)
            elif isinstance(error, SystemExit):
                self.exit_asked(error, None)
            elif not isinstance(error, asyncio.CancelledError):
                _log_exception(error, "an endpoint raised after its call had been answered: its timeout had passed")

    async def call_endpoint(self, request: Any) -> tuple[str, Any]:
        app = self.find_app(request.app)
        endpoint = app.endpoints.get(request.endpoint)
        if endpoint is None:
            raise _NotFound(
                f"app {request.app} has no endpoint {request.endpoint}", app=request.app, endpoint=request.endpoint,
                accepted=" ".join(app.endpoints) or "(it has none)")
        if not app.started:
            raise Shutdown("app.not-running", {"app": request.app})
        accept = _endpoint.accept(request.accept)
        bound = endpoint.bind(request.body, request.content_type, request.query)
        if endpoint.limit is not None and endpoint.running >= endpoint.limit:
            raise Overloaded("endpoint.limit", {"app": request.app, "endpoint": request.endpoint,
                                                "limit": str(endpoint.limit), "running": str(endpoint.running)})  # fmt: skip
        endpoint.running += 1
        timer = self.start_timer(request, endpoint)
        try:
            result = endpoint.function(*bound.args, **bound.kwargs)
            if inspect.isawaitable(result):
                result = await result
        finally:
            endpoint.running -= 1
            if timer is not None:
                timer.cancel()
        return _endpoint.encode(result, accept)

    def start_timer(self, request: Any, endpoint: _endpoint.Endpoint) -> Optional[asyncio.TimerHandle]:
        """At its timeout the call is cancelled, and answered at once: what it does to end is not waited for."""
        if endpoint.timeout is None:
            return None
        current = asyncio.current_task()
        assert current is not None
        task = current

        def on_time() -> None:
            if not request.replied and task not in self.given_up:
                facts = {"app": request.app, "endpoint": request.endpoint, "timeout_s": f"{endpoint.timeout:g}"}
                self.answer_error(request, Deadline("endpoint.timeout", facts))
                task.cancel()

        # An app's own loop may begin a task before it is known here.
        _, since = self.running.get(task, (None, self.loop.time()))
        return self.loop.call_at(since + endpoint.timeout, on_time)

    def find_app(self, name: str) -> _AppRun:
        for app in self.apps:
            if app.info.name == name:
                return app
        raise _NotFound(f"there is no app {name}", app=name,
                        accepted=" ".join(app.info.name for app in self.apps) or "(the manifest has none)")

    def answer_error(self, request: Any, error: BaseException) -> None:
        where = f"{request.app}/{request.endpoint}"
        status, code, message, facts = self.explain(request, error, where)
        body = json.dumps({"error": {"code": code, "message": message, "facts": facts}}, ensure_ascii=False)
        request.answer(status, body.encode("utf-8", "backslashreplace"))

    def explain(self, request: Any, error: BaseException, where: str) -> tuple[int, str, str, dict[str, str]]:
        """HTTP status, code, message and facts. What is the app's own fault goes to the log as well."""
        facts = {"app": request.app, "endpoint": request.endpoint}
        if isinstance(error, _NotFound):
            return 404, "unknown-endpoint", str(error), error.facts
        if isinstance(error, _endpoint.BadRequest):
            return error.status, error.code, str(error), facts | error.facts
        if isinstance(error, asyncio.CancelledError):
            return 503, "cancelled", "the call was cancelled: its client is gone, or the host is stopping", facts
        if isinstance(error, SystemExit):
            status = self.exit_asked(error, request.app)
            return 503, "exiting", f"the app asked for the host's end with status {status}", facts
        if isinstance(error, BulkheadError):
            for kind, status in ((Overloaded, 429), (Shutdown, 503), (Deadline, 504)):
                if isinstance(error, kind):
                    return status, error.code, str(error), facts | error.facts
        _log_exception(error, f"endpoint {where} raised")
        if isinstance(error, Interrupted):
            return 503, "interrupted", "the endpoint kept the host's main thread busy and was interrupted", facts
        if isinstance(error, _convert.BadResult):
            message = str(error)
            return 500, "raised", message, facts | {"type": "ValueError", "message": message, "where": error.where}
        return 500, "raised", f"{type(error).__name__}: {error}", facts | _facts(error)

    # -- the loop

    def serve(self) -> None:
        """Runs the loop until the request to leave it; nothing that an app raises or does ends it before."""
        quick = 0  # times in a row that the loop ended at once: it cannot run any more
        while not self.leaving:
            began = time.monotonic()
            try:
                self.loop.run_forever()
            except SystemExit as error:
                self.exit_asked(error, None)
            except BaseException as error:
                quick = quick + 1 if time.monotonic() - began < 0.05 else 0
                if quick == _QUICK_MAX:
                    raise
                _log_exception(error, "raised on the main thread; the event loop goes on")
            else:
                if not self.leaving:
                    _log(_bulkhead.WARNING, "an app stopped the host's event loop; it goes on")
            if self.loop.is_closed():
                raise RuntimeError("an app closed the host's event loop")
        if self.selector is not None:
            self.selector.on_idle = None
        if self.leave_at_last is not None:
            self.leave_at_last.cancel()

    def end(self, left: float) -> None:
        watch = _EndWatch(left)
        shutdown: Callable[[], None] = threading._shutdown  # type: ignore[attr-defined]
        for step in (self.cancel_leftovers, self.close, watch.start, shutdown, atexit._run_exitfuncs, _flush, watch.stop):
            try:
                step()
            except SystemExit as error:
                self.exit_asked(error, None)
            except BaseException as error:
                _log_exception(error, "raised while Python ended")

    def cancel_leftovers(self) -> None:
        """Ends what still runs on the loop, and waits for it, but not for ever."""
        until = time.monotonic() + _LEFTOVERS_S
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        for shown in sorted(map(repr, left))[:_LEFT_SHOWN]:
            _log(_bulkhead.INFO, f"an asyncio task was left at the stop and is cancelled (stop() may end it): {shown}")
        if len(left) > _LEFT_SHOWN:
            _log(_bulkhead.INFO, f"{len(left) - _LEFT_SHOWN} more asyncio tasks were left at the stop and are cancelled")
        while (tasks := asyncio.all_tasks(self.loop)) and time.monotonic() < until:
            try:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=max(until - time.monotonic(), 0)))
            except SystemExit as error:
                self.exit_asked(error, None)
            except BaseException as error:
                _log_exception(error, "raised on the main thread while it was ending")
        for task in tasks:
            _log(_bulkhead.WARNING, f"an asyncio task did not end when it was cancelled: {task!r}")
        self.loop.run_until_complete(asyncio.wait_for(self.loop.shutdown_asyncgens(), _LEFTOVERS_S))

    def close(self) -> None:
        _pool._set_host_loop(None)
        asyncio.set_event_loop(None)
        try:
            self.loop.close()
        finally:
            _bulkhead.loop_closed()


class _EndWatch:
    """Says, shortly before the host leaves without it, for whom Python's end waits."""

    def __init__(self, left: float) -> None:
        self.left = left  # seconds until the host leaves
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, name="bh-end", daemon=True)  # a daemon: not waited for

    def start(self) -> None:
        if self.left < threading.TIMEOUT_MAX:
            self.thread.start()

    def stop(self) -> None:
        self.over.set()
        if self.thread.ident is not None:
            self.thread.join(1.0)

    def run(self) -> None:
        if self.over.wait(self.left - min(0.5, self.left / 4)):
            return
        main = threading.main_thread()
        waited_for = [t for t in threading.enumerate() if not t.daemon and t is not main]
        if waited_for:
            _log(_bulkhead.ERROR, f"Python waits for threads that are no daemons: {', '.join(t.name for t in waited_for)}")
        frames = sys._current_frames()
        for thread in (main, *waited_for):
            frame = frames.get(thread.ident or 0)
            if frame is None:
                continue
            _log(_bulkhead.ERROR, f"Python does not end; thread {thread.name} (most recent call last):")
            for line in "".join(traceback.format_stack(frame)).rstrip("\n").split("\n"):
                _log(_bulkhead.ERROR, line)


class _NotFound(Exception):
    def __init__(self, message: str, **facts: str) -> None:
        super().__init__(message)
        self.facts = facts


def _flush() -> None:
    for stream in {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}:
        if stream is not None:
            stream.flush()


# ---- interrupts ---------------------------------------------------------------------------------

# Code of these only waits for apps' code, or hands on to it: what interrupts it would break the loop.
_INTERNAL = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<frozen ")
_APPS = tuple(os.path.join(_INTERNAL[0], name) + os.sep for name in ("site-packages", "dist-packages"))


_loop_code: set[CodeType] = set()  # another's event loop: wherever it lies, it is no app either


def _know_loop(loop: asyncio.AbstractEventLoop) -> None:
    for thing in (loop, getattr(loop, "_selector", None)):
        for kind in type(thing).__mro__:
            _loop_code.update(made.__code__ for made in vars(kind).values() if isinstance(made, FunctionType))


def _runs_an_app(frame: Optional[FrameType]) -> bool:
    while frame is not None:
        name = frame.f_code.co_filename
        if (name.startswith(_APPS) or not name.startswith(_INTERNAL)) and frame.f_code not in _loop_code:
            return True
        frame = frame.f_back
    return False


def _on_interrupt(number: int, frame: Optional[FrameType]) -> None:
    """An app has kept main busy for too long: raise in it. A loop that merely waits is left alone."""
    if _runs_an_app(frame):
        raise Interrupted("the host interrupted this code, which had kept its main thread busy for too long")


# ---- called by the host -------------------------------------------------------------------------

_main: Optional[_Main] = None


def prepare(loop_spec: Optional[str]) -> Optional[dict[str, str]]:
    """The interpreter is up. Returns the facts when the loop that the manifest asks for cannot be had."""
    global _main
    try:
        _main = _Main(_make_loop(loop_spec))
        _main.loop.add_reader(_bulkhead.INBOX_FD, _main.on_inbox)
        _main.loop.add_reader(_bulkhead.RETURNS_FD, _bulkhead.drain)
        _main.loop.add_reader(_bulkhead.RELEASES_FD, _bulkhead.release)
    except BaseException as error:
        if loop_spec is None:
            raise
        _log_exception(error, f"[python] event_loop = {loop_spec} gave no event loop")
        return _facts(error)
    asyncio.set_event_loop(_main.loop)
    _pool._set_host_loop(_main.loop)
    _know_loop(_main.loop)
    if _main.selector is None:
        _bulkhead.main_is_coarse()
    signal.signal(_bulkhead.INTERRUPT_SIGNAL, _on_interrupt)
    multiprocessing.set_start_method("spawn")  # os.fork is refused
    return None


def serve() -> None:
    """Returns after the request to leave."""
    assert _main is not None
    _main.serve()


def end(left: float) -> None:
    """Python's own end: threads are joined, atexit functions run. May take as long as they like; after `left`
    seconds the host leaves without it, and whom it waited for has been said before."""
    assert _main is not None
    try:
        _main.end(left)
    finally:
        # Finalization puts back what has a Python handler: an interrupt would then end the process.
        signal.signal(_bulkhead.INTERRUPT_SIGNAL, signal.SIG_IGN)
