# SPDX-License-Identifier: BSD-3-Clause
"""The end of the process by exit(): who is taken down before whose handlers, and what a fork inherits."""

import os
import signal
import time

import pytest
from conftest import SLOW, CallError, python_version, until

MANIFEST = """
    [host]
    shutdown_timeout = {timeout}
    [plugin first]
    library = t_exit
    log = @FOLDER@/events
    [plugin hold]
    library = t_hold
    [plugin last]
    library = t_count
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import asyncio, atexit, ctypes, os, sys
        import bulkhead

        def in_c(library, status):
            library(None).exit(status)

        class App:
            async def start(self, app):
                atexit.register(print, "python atexit ran", flush=True)
                self.kept = []

            def pool(self, label="first"):
                return bulkhead.pool(label)

            @bulkhead.endpoint
            async def run(self, op: str, *args) -> object:
                return await getattr(self.pool(), op)(*args)

            @bulkhead.endpoint
            async def leave(self, op: str, *args) -> None:
                async def wait(future):
                    try:
                        await future
                    except bulkhead.BulkheadError as error:
                        print(f"outcome {op} {error.code}", flush=True)
                self.kept.append(asyncio.ensure_future(wait(getattr(self.pool(), op)(*args))))

            @bulkhead.endpoint
            async def on_main(self, status: int) -> None:
                in_c(ctypes.CDLL, status)

            @bulkhead.endpoint
            async def on_main_with_the_gil(self, status: int) -> None:
                in_c(ctypes.PyDLL, status)

            @bulkhead.endpoint
            async def on_worker(self, status: int) -> None:
                await self.pool("hold").call(in_c, ctypes.CDLL, status)

            @bulkhead.endpoint
            async def on_worker_with_the_gil(self, status: int) -> None:
                await self.pool("hold").call(in_c, ctypes.PyDLL, status)

            @bulkhead.endpoint
            async def in_another_interpreter(self, status: int) -> None:
                import _xxsubinterpreters
                _xxsubinterpreters.run_string(
                    _xxsubinterpreters.create(), f"import ctypes; ctypes.PyDLL(None).exit({status})")

            @bulkhead.endpoint
            async def system_exit(self, status: int) -> None:
                sys.exit(status)

            @bulkhead.endpoint
            async def bare(self, status: int) -> None:
                os._exit(status)

            @bulkhead.endpoint
            async def busy_then_exit_in_stop(self, status: int) -> None:
                self.kept.append(self.pool("slow").busy())
                self.in_stop = status

            async def exit_once_closed(self):
                while True:
                    try:
                        await self.pool("slow").go()
                    except bulkhead.Shutdown:
                        in_c(ctypes.CDLL, self.in_stop)
                    await asyncio.sleep(0.01)

            async def stop(self):
                print("stop ran", flush=True)
                if hasattr(self, "in_stop"):
                    self.kept.append(asyncio.ensure_future(self.exit_once_closed()))
    """
}


def start(host, timeout="30s", extra="", args=(), **more):
    return host(MANIFEST.format(timeout=timeout) + extra, APP, args=list(args), **more)


def events(h):
    path = h.folder / "events"
    return path.read_text().split() if path.exists() else []


def ask(h, endpoint, *args):
    """A call that the end of the process may cut off."""
    try:
        h.call(endpoint, *args)
    except (CallError, OSError, ValueError):
        pass


def closed(h):
    """The pools that the hook has closed, in order."""
    return [line["pool"] for line in h.log if line.get("component") == "exit" and line.get("msg") == "pool closed"]


HANDLERS = ["handler-late", "handler-open", "handler-load", "destructor"]


@pytest.mark.parametrize("where", ["on_main", "on_main_with_the_gil", "in_another_interpreter"])
def test_exit2_pools_are_closed_before_any_handler_of_their_libraries(host, where):
    """H09's order: everything of a plugin ends before its library's exit handlers, in reverse load order."""
    h = start(host)
    version = python_version(h)
    if where == "in_another_interpreter" and not version.startswith("3.11."):
        pytest.skip(f"the host has Python {version}: from 3.12 on ctypes cannot be imported into another interpreter")
    h.call("run", "late")
    before = events(h)
    assert before == ["open"]
    ask(h, where, 5)
    assert h.wait() == 5
    assert events(h) == ["open", "worker-stop", "worker-stop", "progress-stop", "close", *HANDLERS]
    assert closed(h) == ["last", "hold", "first"]
    assert h.log[-1].get("msg") == "stopped" and h.log[-1]["status"] == "5"
    assert "stop ran" not in h.text, "exit() in C is not the orderly stop"


def test_exit1_the_orderly_stop_leaves_nothing_to_the_hook(host):
    h = start(host)
    h.call("run", "late")
    assert h.stop() == 0
    assert events(h) == ["open", "worker-stop", "worker-stop", "progress-stop", "close", *HANDLERS]
    assert not h.find("exit() was called: closing the pools")


def test_exit1_sys_exit_in_an_app_is_the_orderly_stop(host):
    h = start(host)
    ask(h, "system_exit", 7)
    assert h.wait() == 7
    assert "stop ran" in h.text and "python atexit ran" in h.text
    assert not h.find("exit() was called: closing the pools")


def test_os_exit_in_an_app_runs_nothing_of_ours(host):
    h = start(host)
    try:
        h.call("bare", 9)
    except OSError:
        pass
    assert h.process.wait(10 * SLOW) == 9
    h.ended_by_test = True
    assert events(h) == ["open"]
    assert h.socket.exists(), "and the next start takes the socket over"


@pytest.mark.parametrize("use", ["late", "late_unseen"])
@pytest.mark.parametrize("op", ["exit_now", "exit_inside"])
def test_exit3_a_worker_that_calls_exit_ends_the_others_and_runs_no_handler(host, op, use):
    """Also by the C library's own call, which reaches the hook as the last handler registered, and with a
    handler that the host cannot see being registered, where the plugin says so."""
    h = start(host)
    h.call("run", use)
    h.call("leave", "busy")
    until(lambda: h.pool("first")["running"] == 1, what="a running task")
    began = time.monotonic()
    ask(h, "run", op, 5)
    assert h.wait() == 5
    assert time.monotonic() - began < 5 * SLOW, "the caller's own task is not waited for"
    # one worker is in exit(): the other one and the progress thread have ended, close cannot run under it
    assert events(h) == ["open", "worker-stop", "progress-stop"]
    assert closed(h) == ["last", "hold"]
    assert h.find("pool left open: a thread of it called exit()", pool="first")


@pytest.mark.parametrize("where", ["on_worker", "on_worker_with_the_gil"])
def test_exit3_a_python_callable_on_a_worker_may_call_exit(host, where):
    h = start(host)
    ask(h, where, 6)
    assert h.wait() == 6
    assert events(h) == ["open", "worker-stop", "worker-stop", "progress-stop", "close"]
    assert closed(h) == ["last", "first"]


@pytest.mark.parametrize("at", ["open", "close", "cancel", "progress", "own", "own-joined"])
def test_exit3_exit_from_each_of_a_plugins_threads(host, at):
    """From the supervisor (open, close, cancel), a progress thread, a thread of the plugin's own."""
    h = start(host, timeout="8s", args=["--set", f"plugin first.at={at}"], wait=None if at == "open" else "ready")
    began = time.monotonic()
    if at == "close":
        h.send(signal.SIGTERM)
    elif at == "cancel":
        h.call("leave", "busy")
        until(lambda: h.pool("first")["running"] == 1, what="a running task")
        h.send(signal.SIGTERM)  # drains for longer than this test: the second one cancels
        h.wait_log("app stopped", app="app")
        h.send(signal.SIGTERM)
    elif at != "open":
        ask(h, "run", "go")
    status = h.wait()
    assert time.monotonic() - began < 12 * SLOW
    seen = events(h)
    if at == "own":  # no pool's thread: everything is closed, then the handlers run
        assert status == 5
        assert seen == ["open", "worker-stop", "worker-stop", "progress-stop", "close", *HANDLERS[1:]]
    elif at == "own-joined":  # close() waits for the thread that waits for close(): reported, and ended in time
        assert status == 70
        assert h.find("pool did not end in time", pool="first", step="close")
        assert seen[-1] == "close"
    else:
        assert status == 5
        want = {
            "open": ["open"],
            "close": ["open", "worker-stop", "worker-stop", "progress-stop", "close"],
            "cancel": ["open", "worker-stop", "worker-stop", "progress-stop"],
            "progress": ["open", "worker-stop", "worker-stop"],
        }[at]
        assert seen == want
        assert h.find("pool left open: a thread of it called exit()", pool="first")


def test_exit3_a_pool_that_does_not_end_in_time_is_reported_and_no_handler_runs(host):
    h = start(host, timeout="4s")
    h.call("leave", "stuck")
    until(lambda: h.pool("first")["running"] == 1, what="a running task")
    began = time.monotonic()
    ask(h, "on_main", 5)
    assert h.wait() == 70
    assert time.monotonic() - began < 4 + 3 * SLOW
    assert h.find("pool did not end in time", pool="first", op="stuck")
    stuck = h.find("stuck thread", pool="first", op="stuck")
    assert stuck and "t_exit.so" in stuck["stack"]
    assert not set(events(h)) & {*HANDLERS, "close"}
    assert closed(h) == ["last", "hold"]
    assert h.log[-1].get("msg") == "stopped" and h.log[-1]["status"] == "70"


def test_exit3_a_handler_of_a_library_that_hangs_is_ended_all_the_same(host):
    h = start(host, timeout="3s")
    h.call("run", "late", True)
    began = time.monotonic()
    ask(h, "on_main", 5)
    assert h.wait() == 70
    assert time.monotonic() - began < 3 + 3 + 2 * SLOW
    assert events(h)[-2:] == ["close", "handler-hang"]


def test_exit3_exit_in_the_middle_of_an_orderly_stop(host):
    """The conductor waits for a pool to drain; the hook takes over, and nothing is closed twice."""
    h = start(
        host,
        extra="""
    [plugin slow]
    library = t_exit
    drain_timeout = 25s
""",
    )
    h.call("busy_then_exit_in_stop", 5)
    until(lambda: h.pool("slow")["running"] == 1, what="a running task")
    began = time.monotonic()
    h.send(signal.SIGTERM)
    assert h.wait() == 5
    assert time.monotonic() - began < 10 * SLOW
    assert "stop ran" in h.text, "the orderly stop had begun"
    assert events(h).count("open") == 2, "both plugins are one library, and write to one log"
    assert events(h).count("close") == 2
    assert closed(h) == ["slow", "last", "hold", "first"]
    assert h.log[-1].get("msg") == "stopped" and h.log[-1]["status"] == "5"


def test_exit2_many_registrations_from_many_workers(host):
    """The hook stays the first to run however many handlers are registered, and at once."""
    h = start(host, args=["--set", "plugin first.workers=8"])
    for _ in range(16):
        h.call("leave", "burst", 500)
    until(lambda: h.pool("first")["done"] == 16, what="the bursts")
    ask(h, "on_main", 5)
    assert h.wait() == 5
    seen = events(h)
    assert seen.index("close") < seen.index("handler-load")
    assert seen.count("handler-load") == 16 * 500, "one by the constructor, all but one by the bursts"
    assert seen.count("close") == 1


# ---- EXIT-5: fork


def test_exit5_a_child_that_calls_exit_takes_nothing_down(host):
    """H10 (c)"""
    h = start(host)
    assert h.call("run", "fork_exit", 7) == 7
    assert "child" in events(h)
    assert not set(events(h)) & {"close", "worker-stop"}
    assert h.socket.exists() and h.get("/readyz").status == 200
    assert not h.find("exit() was called: closing the pools")
    assert h.call("run", "late") is None, "the pool goes on"
    assert h.stop() == 0


FORKS = {
    "app.py": """
        import ctypes, os, subprocess, sys, threading, time
        import bulkhead

        # By C, for os.fork() is refused; with the GIL held, so that the child has it.
        fork = ctypes.PyDLL(None).fork

        def child_status(how):
            child = fork()
            if child == 0:
                try:
                    bulkhead.pool("hold").call(int)
                except bulkhead.Forked as error:
                    if how == "exit":
                        ctypes.PyDLL(None).exit(40)
                    os._exit(41)
                os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        def hammer(end):
            n = 0
            while time.monotonic() < end[0]:
                blocks = [bytearray(4096) for _ in range(50)]
                print("hammering", flush=True) if n % 50 == 0 else None
                n += len(blocks)
            return n

        class App:
            @bulkhead.endpoint
            async def on_main(self, how: str) -> int:
                return child_status(how)

            @bulkhead.endpoint
            async def on_worker(self, how: str) -> int:
                return await bulkhead.pool("hold").call(child_status, how)

            @bulkhead.endpoint
            async def subprocesses(self, n: int) -> list:
                end = [time.monotonic() + 600]
                work = [bulkhead.pool("hold").call(hammer, end) for _ in range(4)]
                codes = [subprocess.run(["/bin/sh", "-c", f"exit {i % 256}"], timeout=60).returncode for i in range(n)]
                end[0] = 0
                for task in work:
                    assert await task > 0
                return codes
    """
}

# t_exit ends such a child after the host's handlers, before those of a sanitizer.
FORK_MANIFEST = """
    [plugin exit]
    library = t_exit
    [plugin hold]
    library = t_hold
    workers = 4
    [app app]
    object = app:App
"""


@pytest.mark.parametrize("where", ["on_main", "on_worker"])
@pytest.mark.parametrize("how", ["exit", "_exit"])
def test_exit5_a_submission_in_a_forked_child_is_refused(host, where, how):
    h = host(FORK_MANIFEST, FORKS)
    assert h.call(where, how) == (40 if how == "exit" else 41)
    assert h.socket.exists() and h.get("/readyz").status == 200
    assert not h.find("exit() was called: closing the pools")


def test_h10_subprocesses_while_workers_hammer_malloc_the_log_and_the_gil(host):
    """H10 (b): 200 of them, each with its own status, and no child left behind."""
    h = host(FORK_MANIFEST, FORKS)
    assert h.call("subprocesses", 200, timeout=120) == [i % 256 for i in range(200)]
    children = f"/proc/{h.process.pid}/task/{h.process.pid}/children"
    if os.path.exists(children):
        with open(children) as f:
            assert f.read().split() == []
