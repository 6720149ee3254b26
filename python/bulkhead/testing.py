# SPDX-License-Identifier: BSD-3-Clause
"""Runs an app under test in a real host: the installed bulkheadd, with a manifest, a socket and a log of its own.

    # test_search.py; run it with PYTHONPATH=PREFIX/share/bulkhead/python
    from bulkhead.testing import Host, host, run      # `host` is a pytest fixture

    def test_search(host):
        h = host("search:Search", plugins=["stream"], options={"paths": "/usr/share/doc"})
        assert h.call("count", text="abc") == 3

    def test_without_pytest():
        with Host("search:Search", plugins=["stream"]) as h:
            assert h.get("/v1/status").json["health"] == "ready"

    async def add(a, b):
        return await bulkhead.pool("stream").run(sum, [a, b])

    def test_one_coroutine():
        assert run(add, 1, 2, plugins=["stream"]) == 3

A host that does not get ready, or does not end with status 0, fails the test with the end of its log.
What an app imports must be importable by the host's Python: what is importable here is made so there,
the running virtual environment included. bulkheadd is the one that the variable BULKHEAD names, else the
one installed with this package, else the first on PATH. Needs the standard library only; times are seconds.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import importlib.util
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Awaitable, Callable, Iterable, Iterator, Mapping, Optional, TypeVar, Union

from ._errors import BulkheadError

__all__ = ["CallFailed", "Host", "HostFailed", "Reply", "find_bulkheadd", "host", "run"]

_T = TypeVar("_T")
_SOCKET_MAX = 107  # bytes of a unix socket's path
_TAIL = 40  # lines of a log that a failure shows
_STOP_S = 30.0  # the host's shutdown_timeout
_LATE_S = 10.0  # on top of that, for a machine that is busy
_PACKAGE_DIR = Path(__file__).resolve().parents[1]

_App = Union[str, type, Callable[..., Any]]
_Plugins = Union[Iterable[str], Mapping[str, Mapping[str, object]]]


class HostFailed(AssertionError):
    """The host could not be started, ended by itself, or did not end as it should; the text has the end of its log."""


class CallFailed(BulkheadError):
    """An endpoint's reply was not 200: `code` and `facts` as over HTTP, `status` is HTTP's."""

    def __init__(self, code: str, facts: Optional[Mapping[str, str]] = None, status: int = 500, message: str = "") -> None:
        self.status = status
        self.message = message
        super().__init__(code, facts)

    def _text(self) -> str:
        return f"{self.status} {self.code}: {self.message}"

    def __reduce__(self) -> tuple[type, Any]:
        return type(self), (self.code, self.facts, self.status, self.message)


class Reply:
    """What the admin socket answered: `status`, `headers`, `body` as bytes, `text`, and `json`."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<Reply {self.status} {self.text[:300]!r}>"


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


# ---- where things are ---------------------------------------------------------------------------


def find_bulkheadd() -> Path:
    """The host's program: $BULKHEAD, else the one installed with this package, else the first on PATH.

    Raises HostFailed, with the places where it was looked for, when there is none.
    """
    named = os.environ.get("BULKHEAD")
    if named:
        if os.access(named, os.X_OK) and os.path.isfile(named):
            return Path(named).resolve()
        raise HostFailed(f"BULKHEAD={named}: no program; give the path of bulkheadd, or unset it")
    beside = _PACKAGE_DIR.parents[2] / "sbin" / "bulkheadd"  # PREFIX/share/bulkhead/python
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("bulkheadd", path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin")
    if found:
        return Path(found).resolve()
    raise HostFailed(f"bulkheadd was not found: not at {beside}, not on PATH; install Bulkhead, or set BULKHEAD to its path")


def _object_name(thing: _App, what: str) -> str:
    """`module:attribute` of what the host is to import."""
    if isinstance(thing, str):
        if not re.fullmatch(r"[\w.]+:[\w.]+", thing):
            raise ValueError(f"{what}: {thing!r} is not module:attribute, such as 'search:Search'")
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError(f"{what}: {thing!r} is neither 'module:attribute' nor a class or function")
    if module == "__main__" or "<" in name:
        raise ValueError(f"{what}: the host cannot import {module}.{name}; define it at the top level of a module, or put "
                         "its text into files={'app.py': ...}")  # fmt: skip
    return f"{module}:{name}"


def _import_dir(spec: str) -> Optional[str]:
    """The directory that must be on the host's sys.path to import it; None: it is found without, or only there."""
    top = spec.partition(":")[0].partition(".")[0]
    loaded = sys.modules.get(top)
    found = getattr(loaded, "__spec__", None) or importlib.util.find_spec(top)
    origin = getattr(found, "origin", None) or getattr(loaded, "__file__", None)
    where = Path(origin) if origin and origin not in ("built-in", "frozen") else None
    if where is None:
        return None
    folder = where.parent.parent if where.name == "__init__.py" else where.parent
    return str(folder.resolve())


def _short_dir() -> Path:
    """A directory of one's own in which a socket's path is short enough."""
    folder = tempfile.mkdtemp(prefix="bh-")
    if len(os.fsencode(folder)) + len("/run/test.sock") <= _SOCKET_MAX:
        return Path(folder)
    os.rmdir(folder)
    return Path(tempfile.mkdtemp(prefix="bh-", dir="/tmp"))


# ---- the manifest -------------------------------------------------------------------------------


def _ini(value: object) -> str:
    """A value as the manifest has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    if "\n" in text or "\r" in text:
        raise ValueError(f"a value in the manifest is one line: {text!r}")
    if text.startswith('"') or text != text.strip():
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _section(header: str, values: Mapping[str, object]) -> str:
    return f"[{header}]\n" + "".join(f"{key} = {_ini(value)}\n" for key, value in values.items())


def _plugin_sections(plugins: _Plugins) -> str:
    if isinstance(plugins, str):
        raise TypeError(f"plugins= takes a list of labels or a mapping of labels to keys, not {plugins!r}")
    if not isinstance(plugins, Mapping):
        plugins = {label: {} for label in plugins}
    return "".join(_section(f"plugin {label}", {"library": label, **keys}) for label, keys in plugins.items())


# ---- the host -----------------------------------------------------------------------------------


class Host:
    """One bulkheadd that runs an app; as a context manager it is started, and stopped with status 0.

    app       "module:Class", a class, or a factory; its name in the manifest is "app"
    plugins   labels (each is its library's name too), or {label: {"library": …, "workers": 2, …}}
    options   the app's option.KEY lines
    apps      further apps: {name: "module:Class"}
    files     {name: text} of modules that are written for this host and found by it
    path      further directories for the host's sys.path
    venv      True: the running virtual environment, if any; False: none; or the path of one. It must be made by
              the Python that the host embeds
    manifest  more of the manifest, as text: it overrides what this makes
    args      more arguments of bulkheadd, such as ["--set", "host.log_level=debug"]
    env       more environment; plugin directories by BULKHEAD_PLUGIN_PATH
    timeout   for getting ready, and for a call
    bulkheadd the program; preset: find_bulkheadd()

    One thread at a time may use it. Its folder, socket and log are gone after the end.
    """

    def __init__(self, app: Optional[_App] = None, *, plugins: _Plugins = (), options: Optional[Mapping[str, object]] = None,
                 apps: Optional[Mapping[str, _App]] = None, files: Optional[Mapping[str, str]] = None,
                 path: Iterable[Union[str, os.PathLike[str]]] = (), venv: Union[bool, str, os.PathLike[str]] = True,
                 manifest: str = "", args: Iterable[str] = (),
                 env: Optional[Mapping[str, str]] = None, timeout: float = 30.0,
                 bulkheadd: Union[None, str, os.PathLike[str]] = None) -> None:  # fmt: skip
        self.timeout = timeout
        self.status: Optional[int] = None
        """The exit status; None while it runs. Negative: the signal that ended it."""
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._log = ""  # once the folder is gone
        if isinstance(venv, bool):
            venv = sys.prefix if venv and sys.prefix != sys.base_prefix else ""
        objects = {} if app is None else {"app": _object_name(app, "app")}
        objects |= {name: _object_name(thing, f"apps[{name!r}]") for name, thing in (apps or {}).items()}
        own = {Path(name).parts[0].removesuffix(".py") for name in files or {}}
        found = [_import_dir(spec) for spec in objects.values() if spec.partition(":")[0].partition(".")[0] not in own]
        program = Path(bulkheadd).resolve() if bulkheadd is not None else find_bulkheadd()
        sections = _plugin_sections(plugins)
        for name, spec in objects.items():
            keys = {f"option.{key}": value for key, value in ((options or {}) if name == "app" else {}).items()}
            sections += _section(f"app {name}", {"object": spec, **keys})
        self.folder = _short_dir()
        """Its own directory, with the socket, the log and `files`."""
        try:
            places = [str(self.folder / "apps"), *(os.fspath(place) for place in path), *filter(None, found)]
            python = {"path": ":".join(dict.fromkeys(places))} | ({"venv": os.fspath(venv)} if venv else {})
            self._write(_section("python", python) + sections, files or {}, manifest)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._command = [str(program), "-c", str(self.folder / "base.ini"), "-c", str(self.folder / "more.ini")]
        beside = program.parents[1] / "lib" / "bulkhead" / "plugins"
        if beside.is_dir():
            self._command += ["--plugin-dir", str(beside)]
        self._command += args
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self._env |= {"BULKHEAD_PACKAGE_DIR": str(_PACKAGE_DIR), **(env or {})}

    def _write(self, sections: str, files: Mapping[str, str], manifest: str) -> None:
        (self.folder / "run").mkdir()
        (self.folder / "apps").mkdir()
        for name, text in files.items():
            file = self.folder / "apps" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        host = {"name": "test", "runtime_dir": self.folder / "run", "shutdown_timeout": f"{_STOP_S:.0f}s"}
        (self.folder / "base.ini").write_text(_section("host", host) + sections, "utf-8")
        (self.folder / "more.ini").write_text(manifest, "utf-8")

    # -- its life

    def start(self) -> Host:
        """Starts it and waits until it is ready; HostFailed when it is not within `timeout`. Returns itself."""
        if self._process is not None:
            raise RuntimeError("this host was started already: make another Host")
        with open(self.folder / "log", "wb") as log:
            self._process = subprocess.Popen(self._command, cwd="/", env=self._env, stdin=subprocess.DEVNULL, stdout=log,
                                             stderr=log, start_new_session=True)  # fmt: skip
        until = time.monotonic() + self.timeout
        while not self._is_ready(max(until - time.monotonic(), 0.1)):
            status = self._process.poll()
            if status is not None:
                self._end(status)
                raise HostFailed(self._told(f"bulkheadd did not get ready: it ended with {_spell(status)}"))
            if time.monotonic() > until:
                self._kill()
                raise HostFailed(self._told(f"bulkheadd did not get ready within {self.timeout:g} s"))
            time.sleep(0.02)
        return self

    def stop(self) -> int:
        """Stops it in order, as SIGTERM does, and returns the exit status. Harmless when it has ended."""
        if self._process is None or self.status is not None:
            return self.status or 0
        self._process.send_signal(signal.SIGTERM)
        return self.wait(_STOP_S + _LATE_S)

    def wait(self, timeout: float) -> int:
        """Waits for its end, which something else brings about, and returns the exit status."""
        if self._process is None:
            raise RuntimeError("this host has not been started: call start(), or use it in a `with`")
        if self.status is None:
            try:
                status = self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._kill()
                raise HostFailed(self._told(f"bulkheadd had not ended after {timeout:g} s and was killed")) from None
            self._end(status)
        assert self.status is not None
        return self.status

    def check_stop(self) -> None:
        """Stops it; HostFailed, with the end of the log, unless the exit status is 0."""
        status = self.stop()
        if status != 0:
            raise HostFailed(self._told(f"bulkheadd ended with {_spell(status)} instead of status 0"))

    def close(self) -> None:
        """Ends what is left of it, whatever its state, and removes its folder."""
        if self._process is not None and self.status is None:
            self._kill()
        self._log = self.log
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Host:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:  # fmt: skip
        try:
            if error is None:
                self.check_stop()
            else:
                with contextlib.suppress(HostFailed):  # the test's own error is the one to see
                    self.stop()
                error.add_note(self._told("the host that this ran against"))
        finally:
            self.close()

    def _is_ready(self, left: float) -> bool:
        try:
            return self.request("GET", "/readyz", timeout=min(left, 5.0)).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def _end(self, status: int) -> None:
        self.status = status
        with contextlib.suppress(ProcessLookupError):  # children that an app left behind
            os.killpg(self._pid(), signal.SIGKILL)

    def _kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._end(self._process.wait())

    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    # -- talking to it

    @property
    def socket(self) -> Path:
        """Its admin socket, for curl and bulkheadctl -s."""
        return self.folder / "run" / "test.sock"

    @property
    def pid(self) -> int:
        """Its process id."""
        if self._process is None:
            raise RuntimeError("this host has not been started: call start(), or use it in a `with`")
        return self._process.pid

    def request(self, method: str, path: str, body: Union[None, bytes, str] = None, *, timeout: Optional[float] = None) -> Reply:
        """One HTTP request on the admin socket. OSError when nobody answers."""
        connection = _Connection(str(self.socket), timeout or self.timeout)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, *, timeout: Optional[float] = None) -> Reply:
        """GET `path`, such as "/v1/status"."""
        return self.request("GET", path, timeout=timeout)

    def post(self, path: str, body: Any = None, *, timeout: Optional[float] = None) -> Reply:
        """POST `path`; `body`: bytes or str as they are, anything else as JSON, None for none."""
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        return self.request("POST", path, body, timeout=timeout)

    def call(self, endpoint: str, /, *args: Any, **kwargs: Any) -> Any:
        """An endpoint's result, from JSON; "endpoint" of the app `app`, or "name/endpoint" of another.

        Arguments are by position or by name, not both. CallFailed when it does not answer with 200.
        """
        if args and kwargs:
            raise TypeError(f"call({endpoint!r}): arguments by position or by name, not both")
        path = endpoint if "/" in endpoint else f"app/{endpoint}"
        reply = self.post(f"/v1/apps/{path}", list(args) if args else kwargs)
        if reply.status == 200:
            return reply.json["result"]
        error = reply.json["error"]
        raise CallFailed(error["code"], error["facts"], reply.status, error["message"])

    @property
    def log(self) -> str:
        """Its log until now, print() of the app included."""
        try:
            return (self.folder / "log").read_text("utf-8", "replace")
        except FileNotFoundError:
            return self._log

    def wait_log(self, text: str, timeout: Optional[float] = None) -> str:
        """The first line of the log with `text` in it; HostFailed when none comes within `timeout`."""
        until = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            over = self.status is not None or time.monotonic() > until
            for line in self.log.splitlines():
                if text in line:
                    return line
            if over:
                raise HostFailed(self._told(f"no line of the log has {text!r}"))
            time.sleep(0.02)

    def _told(self, what: str) -> str:
        lines = self.log.splitlines()
        shown = "\n".join("    " + line for line in lines[-_TAIL:]) or "    (nothing)"
        return f"{what}\n  {' '.join(self._command)}\n  the end of its log, {len(lines)} lines in all:\n{shown}"

    def __repr__(self) -> str:
        state = "not started" if self._process is None else "running" if self.status is None else _spell(self.status)
        return f"<bulkhead.testing.Host {state}>"


def _spell(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


# ---- one coroutine ------------------------------------------------------------------------------


def run(function: Callable[..., Awaitable[_T]], /, *args: Any, plugins: _Plugins = (), **host: Any) -> _T:
    """Runs `await function(*args)` on the event loop of a host of its own, and returns its result.

    The function must be importable: at the top level of a module. Arguments, result and exception are
    pickled. Its exception is raised here, with the host's traceback as a note. `host`: as Host has it.
    """
    name = _object_name(function, "run()")
    payload = base64.b64encode(pickle.dumps(args)).decode()
    where = _import_dir(name)
    host["path"] = [*host.get("path", ()), *([where] if where else [])]
    with Host("bulkhead._runner:Runner", plugins=plugins, **host) as made:
        answer = json.loads(made.call("run", name, payload))
    if "raised" in answer:
        error = pickle.loads(base64.b64decode(answer["raised"]))
        error.add_note("in the host:\n" + answer["traceback"])
        raise error
    result: _T = pickle.loads(base64.b64decode(answer["result"]))
    return result


# ---- pytest -------------------------------------------------------------------------------------


def _hosts() -> Iterator[Callable[..., Host]]:
    """host(app, plugins=[…], …) -> a started bulkhead.testing.Host; all are stopped, with status 0, after the test."""
    made: list[Host] = []

    def start(app: Optional[_App] = None, **more: Any) -> Host:
        made.append(Host(app, **more))
        return made[-1].start()

    yield start
    failures: list[str] = []
    for each in reversed(made):
        try:
            if each.status is None:  # a test that stopped it has looked at the status itself
                each.check_stop()
        except HostFailed as failure:
            failures.append(str(failure))
        finally:
            each.close()
            print(each._told("a host of this test"))  # pytest shows it when the test failed
    if failures:
        raise HostFailed("\n".join(failures))


try:
    import pytest
except ImportError:
    host: Any = None
else:
    host = pytest.fixture(name="host")(_hosts)
