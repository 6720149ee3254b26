# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the end-to-end suite: each test runs the staged bulkheadd on a manifest of its own.

BULKHEAD_STAGE         the staged prefix: holds sbin/bulkheadd, bin/bulkheadctl, share/bulkhead
BULKHEAD_TEST_PLUGINS  the directory of the built test plugins
BULKHEAD_SLOW          set for sanitized builds: every wait may take longer

`scripts/test` sets them. Everything goes through what a user has: the command line, the manifest, the
socket, the log on stderr, the exit status.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

SLOW = 4 if os.environ.get("BULKHEAD_SLOW") else 1
# CP-1 promises 250 ms on 2 free CPUs; a test cannot know that they are free. What was measured is reported.
PROMPT = 1.5 * SLOW
SANITIZER_REPORT = re.compile(r"(Address|Leak|Thread)Sanitizer|runtime error:|Fatal Python error")

_report_lines: list[str] = []


def stage() -> Path:
    where = os.environ.get("BULKHEAD_STAGE")
    if not where:
        pytest.exit("BULKHEAD_STAGE is not set; run scripts/test, or see tests/e2e/conftest.py", 64)
    return Path(where)


def needs_rdma(transport: str) -> None:
    """Skips where the rdma plugin, or that transport of it, was not built."""
    file = stage() / "lib" / "bulkhead" / "plugins" / "rdma.so"
    if not file.exists():
        pytest.skip("built without the rdma plugin")
    library, package = {"software": ("libfabric.so", "libfabric-dev"), "verbs": ("libibverbs.so", "libibverbs-dev")}[transport]
    if library.encode() not in file.read_bytes():  # which it would be linked to
        pytest.skip(f"the rdma plugin was built without {transport} (Debian: {package})")


def test_plugins() -> Path:
    where = os.environ.get("BULKHEAD_TEST_PLUGINS")
    if not where:
        pytest.exit("BULKHEAD_TEST_PLUGINS is not set; run scripts/test, or see tests/e2e/conftest.py", 64)
    return Path(where)


test_plugins.__test__ = False  # type: ignore[attr-defined]  # not a test, whatever its name


def until(condition, timeout: float = 10.0, what: str = "the condition"):
    """The first true value of condition(), polled; fails the test after `timeout` seconds."""
    deadline = time.monotonic() + timeout * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {timeout * SLOW:.0f} s")
        time.sleep(0.02)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A non-blocking connect is refused while the listener's queue is full; a blocking one waits.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(self.timeout), 0))
        self.sock.connect(self.path)
        self.sock.settimeout(self.timeout)


class Reply:
    def __init__(self, status: int, headers, body: bytes):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    @property
    def json(self):
        return json.loads(self.text)

    def __repr__(self):
        return f"<{self.status} {self.text[:300]!r}>"


class CallError(Exception):
    def __init__(self, reply: Reply):
        super().__init__(repr(reply))
        self.status = reply.status
        self.error = reply.json["error"]


def parse_log(text: str) -> list[dict[str, str]]:
    """logfmt lines as dicts; what is no logfmt becomes {"raw": line}."""
    pair = re.compile(r'([A-Za-z_][\w.-]*)=("(?:[^"\\]|\\.)*"|[^ ]*)(?: |$)')
    lines = []
    for line in text.splitlines():
        if not line.startswith("time="):
            lines.append({"raw": line})
            continue
        lines.append({k: re.sub(r"\\(.)", r"\1", v[1:-1]) if v.startswith('"') else v for k, v in pair.findall(line)})
    return lines


class Host:
    """One bulkheadd under test. Made by the `host` fixture, which also ends it."""

    def __init__(self, folder: Path, manifest: str, files: dict[str, str], args=(), env=None, binary: Path | None = None,
                 prefix: Path | None = None):
        self.folder = folder
        self.prefix = prefix or stage()
        self.socket = folder / "run" / "test.sock"
        self.log_path = folder / "log"
        self.ended_by_test = False
        (folder / "run").mkdir()
        (folder / "apps").mkdir()
        for name, text in files.items():
            path = folder / "apps" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        self.base = folder / "base.ini"
        self.base.write_text(
            f"[host]\nname = test\nruntime_dir = {folder}/run\nshutdown_timeout = 30s\n[python]\npath = {folder}/apps\n")
        self.manifest = folder / "node.ini"
        self.manifest.write_text(textwrap.dedent(manifest).replace("@FOLDER@", str(folder)))
        self.command = [
            str(binary or self.prefix / "sbin" / "bulkheadd"),
            "-c", str(self.base), "-c", str(self.manifest),
            "--plugin-dir", str(test_plugins()), "--plugin-dir", str(self.prefix / "lib" / "bulkhead" / "plugins"),
            *args,
        ]  # fmt: skip
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                self.command, cwd="/", env=self.environment(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)  # fmt: skip

    def environment(self, extra=None) -> dict[str, str]:
        keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")
        env = {name: os.environ[name] for name in keep if name in os.environ}
        env["BULKHEAD_PACKAGE_DIR"] = str(self.prefix / "share" / "bulkhead" / "python")
        return env | (extra or {})

    # -- the admin socket

    def request(self, method: str, path: str, body: bytes | str | None = None, timeout: float = 15.0, headers=None) -> Reply:
        connection = UnixConnection(str(self.socket), timeout * SLOW)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, timeout: float = 15.0) -> Reply:
        return self.request("GET", path, timeout=timeout)

    def post(self, path: str, body=None, timeout: float = 15.0) -> Reply:
        """`body`: bytes or str as they are, anything else as JSON, None for none."""
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        return self.request("POST", path, body, timeout)

    def call(self, endpoint: str, /, *args, app: str = "app", timeout: float = 15.0, **kwargs):
        """The endpoint's result; CallError for anything but 200."""
        reply = self.post(f"/v1/apps/{app}/{endpoint}", list(args) if args else kwargs, timeout)
        if reply.status != 200:
            raise CallError(reply)
        return reply.json["result"]

    def pool(self, label: str) -> dict:
        return next(pool for pool in self.get("/v1/pools").json["pools"] if pool["label"] == label)

    def ctl(self, *args: str, timeout: float = 15.0, env=None, named: bool = True) -> subprocess.CompletedProcess:
        command = [str(self.prefix / "bin" / "bulkheadctl"), *(["-s", str(self.socket)] if named else []), *args]
        return subprocess.run(command, env=self.environment(env), capture_output=True, text=True, timeout=timeout * SLOW)

    def wait_answering(self, timeout: float = 10.0):
        """Until the socket answers, ready or not."""

        def answers():
            self.assert_alive()
            try:
                return self.get("/livez", timeout=2).status == 200
            except OSError:
                return False

        until(answers, timeout, "livez")

    def wait_ready(self, timeout: float = 20.0):
        def ready():
            self.assert_alive()
            try:
                return self.get("/readyz", timeout=2).status == 200
            except OSError:
                return False

        until(ready, timeout, "readyz")

    def assert_alive(self):
        if self.process.poll() is not None:
            pytest.fail(f"bulkheadd ended with status {self.process.returncode}")

    # -- the log

    @property
    def text(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def log(self) -> list[dict[str, str]]:
        return parse_log(self.text)

    def find(self, message: str, **facts: str) -> dict[str, str] | None:
        """The first line with this msg and these facts."""
        for line in self.log:
            if line.get("msg") == message and all(line.get(k) == str(v) for k, v in facts.items()):
                return line
        return None

    def wait_log(self, message: str, timeout: float = 10.0, **facts: str) -> dict[str, str]:
        return until(lambda: self.find(message, **facts), timeout, f"log line {message!r} {facts}")

    # -- the end

    def send(self, number: int):
        self.process.send_signal(number)

    def wait(self, timeout: float = 15.0) -> int:
        """The exit status; fails when bulkheadd is still there after `timeout`."""
        self.ended_by_test = True
        try:
            status = self.process.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            pytest.fail(f"bulkheadd is still running after {timeout * SLOW:.0f} s")
        assert not SANITIZER_REPORT.search(self.text)
        assert not self.socket.exists(), "the socket file was left behind"
        return status

    def stop(self, number: int = signal.SIGTERM, timeout: float = 15.0) -> int:
        self.send(number)
        return self.wait(timeout)

    def threads(self) -> dict[int, str]:
        """Kernel thread ids and names."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return {int(t.name): (t / "comm").read_text().strip() for t in tasks.iterdir()}

    def reap(self):
        """Ends what is left of it, whatever the test did."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # children that an app left behind
        except ProcessLookupError:
            pass


@pytest.fixture
def host():
    """host(manifest, files={name: text}, wait="ready"|"answering"|None, args=[], env={}) -> Host

    In a manifest @FOLDER@ is the test's own folder; `files` lie in @FOLDER@/apps, the socket is
    @FOLDER@/run/test.sock.
    """
    made: list[tuple[Host, Path]] = []

    def start(manifest: str = "", files: dict[str, str] | None = None, wait: str | None = "ready", args=(), env=None, **more):
        folder = Path(tempfile.mkdtemp(prefix="bh-"))  # short: a socket path has 107 bytes
        h = Host(folder, manifest, files or {}, args, env, **more)
        made.append((h, folder))
        if wait == "ready":
            h.wait_ready()
        elif wait == "answering":
            h.wait_answering()
        return h

    yield start
    try:
        for h, _ in reversed(made):
            # A test that did not care about the end still wants a clean one.
            if not h.ended_by_test:
                h.assert_alive()
                assert h.stop() == 0
    finally:
        for h, folder in made:
            h.reap()
            print(f"---- the log of {' '.join(h.command)}\n{h.text}")  # pytest shows it when the test failed
            shutil.rmtree(folder, ignore_errors=True)


_imports: dict[str, tuple[str, bool]] = {}


def python_version(h: Host) -> str:
    """Of the Python in the host, which need not be the one that runs the tests: "3.12.1"."""
    return h.get("/v1/python").json["version"].split()[0]


@pytest.fixture
def needs(host):
    """needs("numpy"): skips the test, with the reason, where the host's Python has no such module."""

    def check(module: str):
        if module not in _imports:
            h = host(
                "[app app]\nobject = app:App\n",
                {
                    "app.py": """
                        import importlib
                        import bulkhead

                        class App:
                            @bulkhead.endpoint
                            async def has(self, module: str) -> bool:
                                try:
                                    return bool(importlib.import_module(module))
                                except ImportError:
                                    return False
                    """
                },
            )
            _imports[module] = python_version(h), h.call("has", module, timeout=60)
            assert h.stop(timeout=60) == 0
        version, found = _imports[module]
        if not found:
            pytest.skip(f"the host has Python {version}, which has no {module} (Debian's Python has it: python3-{module})")

    return check


@pytest.fixture
def needs_own_python(host):
    """Skips the test where the host has another Python than the one that runs the tests."""
    own = ".".join(platform.python_version_tuple()[:2])
    if "" not in _imports:
        h = host()
        _imports[""] = python_version(h), True
        assert h.stop() == 0
    version = _imports[""][0]
    if not version.startswith(own + "."):
        pytest.skip(f"the host has Python {version}, and venvs are made by {own} here")


@pytest.fixture
def report():
    """report(line): a measurement that is worth reading; printed after the run."""
    return _report_lines.append


def pytest_terminal_summary(terminalreporter):
    if _report_lines:
        terminalreporter.section("measured")
        for line in _report_lines:
            terminalreporter.write_line(line)
