# SPDX-License-Identifier: BSD-3-Clause
"""Posted work, references that are dropped far from the GIL, and plugin code that Python runs at its end."""

import signal
import time

import pytest

from conftest import SLOW, until

POST = """
    [plugin post]
    library = t_post
    workers = 2
    [app app]
    object = app:App
"""

COMMON = """
    import asyncio
    import atexit
    import builtins
    import ctypes
    import os
    import sys
    import threading
    import time
    import bulkhead

    seen = []

    async def function(which, *arguments):
        return ctypes.CFUNCTYPE(None, *arguments)(await bulkhead.pool("post").address(which))

    def here():     # threads of Python's bear main's name
        if threading.get_native_id() == os.getpid():
            return "main"
        with open(f"/proc/self/task/{threading.get_native_id()}/comm") as comm:
            return comm.read().strip()
"""


def app(text):
    return {"app.py": COMMON + text}


def entries(h, name):
    return next((s["entries"] for s in h.get("/v1/gil").json["sites"] if s["site"] == name), 0)


def test_gil7_a_plugin_posts_while_it_holds_its_lock_and_python_sees_the_calls_in_order(host):
    h = host(
        POST,
        app("""
    class App:
        @bulkhead.endpoint
        async def burst(self, first: int, n: int) -> None:
            await bulkhead.pool("post").burst(first, n)

        @bulkhead.endpoint
        async def seen(self) -> list:
            return seen

        @bulkhead.endpoint
        async def inside(self, number: int) -> list:
            await bulkhead.pool("post").inside(number)
            return seen[-1:]

        @bulkhead.endpoint
        async def stray(self) -> None:
            await bulkhead.pool("post").stray()
    """),
    )
    h.call("burst", 0, 300)
    h.call("burst", 300, 300)
    until(lambda: len(h.call("seen")) == 600, what="what was posted")
    assert h.call("seen") == list(range(600))
    assert entries(h, "post.append") == 600
    assert h.call("inside", 1000) == [1001], "from inside a scope it has run when post() returns"
    with pytest.raises(Exception, match="EINVAL|Invalid|500"):
        h.call("stray")
    h.wait_log("plugin misuses a service", plugin="post", service="post")
    assert h.get("/v1/gil").json["unsanctioned"] == 0


def test_gil7_what_a_plugin_has_posted_runs_before_the_interpreter_ends(host):
    h = host(
        POST,
        app("""
    class App:
        async def stop(self):
            await bulkhead.pool("post").burst(0, 500)

    atexit.register(lambda: print("at exit", flush=True))
    """),
        args=["--set", "plugin post.workers=1"],
    )
    assert h.stop() == 0
    assert "Traceback" not in h.text and not h.find("posted work was dropped: the gate has closed")


def test_exit4_posted_work_that_does_not_end_is_named_and_nothing_is_finalized(host):
    h = host(
        POST,
        app("""
    class App:
        async def start(self):
            await bulkhead.pool("post").stick()
    """),
        args=["--set", f"host.shutdown_timeout={2 * SLOW}s"],
    )
    until(lambda: "t_post: stuck" in h.text, what="the posted work")
    assert h.stop() == 70
    cause = h.find("gate stuck: the interpreter is not finalized")
    assert cause and cause["error"] == "gil.courier_stuck" and cause["site"] == "post.append"
    assert cause["state"] == "inside" and h.find("pool closed", pool="post", state="clean")


def test_exit3_posted_work_may_call_exit(host):
    h = host(
        POST,
        app("""
    class App:
        @bulkhead.endpoint
        async def leave(self) -> None:
            await bulkhead.pool("post").leave(7)
    """),
    )
    try:
        h.call("leave")
    except Exception:
        pass  # the host may be gone before it answers
    assert h.wait() == 7
    assert h.find("stopped", status="7")
    assert not h.find("posted work has not ended"), "nobody waits for the one that called exit()"


def test_gil9_the_last_reference_to_an_object_is_dropped_off_the_gil(host):
    h = host(
        POST,
        app("""
    class Thing:
        def __del__(self):
            seen.append(here())

    class App:
        @bulkhead.endpoint
        async def keep(self) -> None:
            await bulkhead.pool("post").keep(Thing())

        @bulkhead.endpoint
        async def drop(self) -> None:
            await bulkhead.pool("post").drop()

        @bulkhead.endpoint
        async def seen(self) -> list:
            return seen
    """),
    )
    h.call("keep")
    assert h.call("seen") == []
    before = entries(h, "host.release")
    h.call("drop")
    until(lambda: h.call("seen"), what="the finalizer")
    assert h.call("seen") == ["main"]
    assert entries(h, "host.release") > before
    rows = [s for s in h.get("/v1/gil").json["sites"] if s["site"] == "host.release"]
    assert rows and rows[0]["policy"] == "control-allowed"


def test_gil9_the_courier_drops_references_once_the_loop_is_gone(host):
    """A thread that outlives the loop lets go of a task, and with it of the last reference to its result."""
    h = host(
        POST,
        app("""
    class Thing:
        def __del__(self):
            seen.append(here())

    def outlive(loop, tasks):
        while not loop.is_closed():
            time.sleep(0.01)
        assert not seen
        tasks.clear()
        end = time.monotonic() + 20
        while not seen and time.monotonic() < end:
            time.sleep(0.01)
        print("dropped on", *seen, flush=True)

    class App:
        async def start(self):
            tasks = [bulkhead.pool("hold").call(Thing)]
            while not tasks[0].done():      # a result that is asked for becomes Python's
                await asyncio.sleep(0.01)
            threading.Thread(target=outlive, args=(asyncio.get_running_loop(), tasks)).start()
    """),
        args=["--set", "plugin hold.library=t_hold"],
    )
    assert h.stop(timeout=25) == 0
    assert "dropped on bh-courier" in h.text


def test_gil5_a_destructor_that_is_plugin_code_runs_during_finalization(host):
    """The plugin's code takes the GIL by itself, on the thread that finalizes."""
    h = host(
        POST,
        app("""
    class Handle:
        def __init__(self, touch):
            self.touch = touch

        def __del__(self):
            self.touch()

    class App:
        async def start(self):
            builtins.kept = Handle(await function(0))
    """),
    )
    assert "touched" not in h.text
    assert h.stop() == 0
    assert "t_post: touched while finalizing" in h.text
    assert h.find("Py_FinalizeEx returned 0")


DAEMON = """
    class App:
        async def start(self):
            block = await function(1, ctypes.c_int)
            threading.Thread(target=block, args=({ms},), daemon=True).start()
"""


@pytest.mark.parametrize("ms", [2000, -1], ids=["2s", "for_ever"])
def test_gil5_a_daemon_thread_of_pythons_inside_plugin_code_does_not_hold_up_the_stop(host, ms):
    h = host(POST, app(DAEMON.format(ms=ms)))
    until(lambda: "t_post: blocking" in h.text, what="the thread in the plugin's code")
    began = time.monotonic()
    assert h.stop() == 0
    assert time.monotonic() - began < 10 * SLOW
    assert h.find("Py_FinalizeEx returned 0")


def test_gil5_a_daemon_thread_that_leaves_plugin_code_during_finalization_is_parked(host):
    h = host(
        POST,
        app("""
    class Late:
        def __init__(self, unblock):
            self.unblock = unblock
            self.sleep = time.sleep

        def __del__(self):
            self.unblock()
            self.sleep(0.5)     # lets go of the GIL: whoever comes could take it

    def blocked(block):
        block(-1)
        print("it came back")

    class App:
        async def start(self):
            builtins.kept = Late(await function(2))
            block = await function(1, ctypes.c_int)
            threading.Thread(target=blocked, args=(block,), daemon=True).start()
    """),
    )
    until(lambda: "t_post: blocking" in h.text, what="the thread in the plugin's code")
    assert h.stop() == 0
    assert "it came back" not in h.text
    assert h.find("a thread came for the GIL after the gate had closed; it is parked for good")


def test_gil5_a_daemon_thread_of_pythons_that_waits_for_a_task_does_not_hold_up_the_stop(host):
    h = host(
        POST,
        app("""
    class App:
        async def start(self):
            nap = lambda: bulkhead.pool("post").nap(2000).result()
            threading.Thread(target=nap, daemon=True).start()
    """),
    )
    until(lambda: "t_post: napping" in h.text, what="the task")
    began = time.monotonic()
    assert h.stop() == 0
    assert time.monotonic() - began < 12 * SLOW


def test_gil1_an_app_is_imported_and_constructed_at_a_site_of_its_own(host):
    h = host(POST, app("""
    time.sleep(0.3)

    class App:
        def __init__(self):
            time.sleep(0.2)
    """))
    gil = h.get("/v1/gil").json
    row = next(s for s in gil["sites"] if s["site"] == "host.app-construct")
    assert row["entries"] == 1 and row["inside_s"] >= 0.5
    dispatch = next(s for s in gil["sites"] if s["site"] == "host.dispatch")
    assert dispatch["inside_s"] < row["inside_s"]


def test_gil1_pythons_own_end_is_booked_at_host_stop(host):
    h = host(
        "[app app]\nobject = app:App\n",
        app("""
    def linger():
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
            time.sleep(0.01)

    class App:
        async def start(self):
            atexit.register(linger)
            self.leftover = asyncio.ensure_future(asyncio.sleep(1000))      # the loop runs once more at the end
    """),
    )
    h.send(signal.SIGTERM)

    def main():
        rows = h.get("/v1/gil").json["threads"]
        return next((r["site"] for r in rows if r["tid"] == h.process.pid), None)

    until(lambda: main() == "host.stop", what="main at host.stop")
    (h.folder / "apps" / "go").touch()
    assert h.wait() == 0
