# SPDX-License-Identifier: BSD-3-Clause
"""What never comes back: a worker, a callback, main, a thread of Python's. The stop ends all the same (EXIT-4, CP-2)."""

import signal
import time

import pytest
from conftest import SLOW, until

# How much longer than shutdown_timeout the whole may take: the report and the process's own end.
GRACE = 0.5 if SLOW == 1 else 3

WORKER = """
    [host]
    shutdown_timeout = 2s
    [plugin first]
    library = t_count
    [plugin bad]
    library = bad_worker
    drain_timeout = 200ms
    wedge = {wedge}
    [plugin last]
    library = t_count
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import bulkhead

        class App:
            async def start(self, app):
                self.kept = []

            @bulkhead.endpoint
            async def op(self, name: str) -> None:
                await getattr(bulkhead.pool("bad"), name)()

            @bulkhead.endpoint
            async def leave(self, name: str) -> None:
                self.kept.append(getattr(bulkhead.pool("bad"), name)())
    """
}


def stop_in_time(h, status, limit):
    """SIGTERM; the exit status within `limit` seconds and the grace, health answering all the while."""
    began = time.monotonic()
    h.send(signal.SIGTERM)
    answered = 0
    while h.process.poll() is None and time.monotonic() - began < limit - 0.5:
        try:
            assert h.get("/livez", timeout=2).status == 200
            answered += 1
        except OSError:
            break  # the end of the host, seen by the socket
        time.sleep(0.02)
    assert h.wait(limit + 10) == status
    took = time.monotonic() - began
    assert took < limit + GRACE, f"the stop took {took:.2f} s"
    assert answered > 0 or took < 0.1
    return took


def others_are_closed(h, *labels):
    for label in labels:
        closed = h.find("pool closed", pool=label)
        assert closed and closed["state"] == "clean", label


def test_h25_a_worker_out_of_reach_without_the_gil(host):
    """(a): all signals blocked, so no stack: the report says where the kernel has it."""
    h = host(WORKER.format(wedge="none"), APP)
    h.call("leave", "block")
    until(lambda: h.pool("bad")["running"] == 1, what="a running task")
    task = h.pool("bad")["running_tasks"][0]
    stop_in_time(h, 70, 2)
    stuck = h.find("stuck thread", pool="bad")
    assert stuck["op"] == "block" and stuck["task"] == str(task["task"])
    assert stuck["thread"] in ("bad/0", "bad/1") and stuck["worker"] == stuck["thread"][-1]
    assert float(stuck["for_s"]) > 0.2
    assert "signals blocked" in stuck["stack"] and "wchan=" in stuck["stack"] and "syscall=" in stuck["stack"]
    closed = h.find("pool closed", pool="bad")
    assert closed["state"] == "wedged" and closed["submitted"] == closed["abandoned"] == "1"
    assert not h.find("bad_worker is closed"), "close must not run under the stuck thread"
    others_are_closed(h, "first", "last")
    assert h.find("Py_FinalizeEx returned 0"), "the thread is nowhere near the interpreter"


def test_h25_a_worker_out_of_reach_with_the_gil(host):
    """(b): the interpreter cannot be finalized; the report says who holds it."""
    h = host(WORKER.format(wedge="none"), APP)
    h.call("leave", "block_gil")
    until(lambda: (h.get("/v1/gil").json["holder"] or {}).get("site") == "bad.block", what="the hold")
    stop_in_time(h, 70, 2)
    stuck = h.find("stuck thread", pool="bad", op="block_gil")  # the other worker waits for the GIL to end
    assert stuck and stuck["thread"] in ("bad/0", "bad/1") and int(stuck["task"]) > 0
    overdue = h.find("shutdown_timeout has passed: leaving by _exit")
    assert overdue["gil_site"] == "bad.block"
    assert overdue["gil_holder"] == stuck["thread"] and overdue["gil_holder_tid"] == stuck["tid"]
    assert not h.find("Py_FinalizeEx returned 0") and not h.find("bad_worker is closed")
    others_are_closed(h, "first", "last")
    assert h.log[-1]["msg"] == "stopped" and h.log[-1]["status"] == "70"


@pytest.mark.parametrize("step", ["close", "worker_stop"])
def test_sup1_an_end_that_never_returns_is_a_wedge(host, step):
    h = host(WORKER.format(wedge=step), APP)
    stop_in_time(h, 70, 2)
    wedged = h.find("pool is wedged", pool="bad")
    assert wedged["step"] == {"close": "close", "worker_stop": "join"}[step]
    if step == "worker_stop":
        stuck = h.find("stuck thread", pool="bad")
        assert stuck["thread"] == "bad/1" and stuck["worker"] == "1" and stuck["step"] == "worker_stop"
    assert h.find("pool closed", pool="bad", state="wedged")
    others_are_closed(h, "first", "last")


@pytest.mark.parametrize("step", ["open", "worker_start"])
def test_sup1_a_start_that_never_returns_hangs_nothing(host, step):
    """H21, a slow init: health says "starting" and who, SIGTERM works."""
    h = host(WORKER.format(wedge=step), APP, wait="answering")

    def opening():
        status = h.get("/v1/status").json  # of one moment: the plugin before was opened, too
        return status["phase"] == "plugin-open" and status["waiting_for"] == "bad"

    until(opening, what="the open of bad")
    assert h.get("/v1/status").json["state"] == "starting"
    assert "bad" in h.get("/readyz").text
    stop_in_time(h, 70, 2)
    assert h.find("pool is wedged", pool="bad")["step"] == {"open": "open", "worker_start": "join"}[step]
    if step == "worker_start":
        stuck = h.find("stuck thread", pool="bad")
        assert stuck["thread"] == "bad/1" and stuck["step"] == "worker_start"
    assert not h.find("loading plugin", plugin="last")
    others_are_closed(h, "first")


def test_exit4_two_wedged_pools_leave_time_for_the_others(host):
    """One of them keeps the GIL, so that main answers nothing either."""
    h = host(
        """
        [host]
        shutdown_timeout = 2s
        [plugin first]
        library = t_count
        [plugin bad]
        library = bad_worker
        drain_timeout = 200ms
        [plugin worse]
        library = bad_worker
        [app app]
        object = app:App
        """,
        APP,
    )
    h.call("leave", "block_gil")
    until(lambda: (h.get("/v1/gil").json["holder"] or {}).get("site") == "bad.block", what="the hold")
    stop_in_time(h, 70, 2)
    assert h.find("pool is wedged", pool="worse"), "its workers have thread states that only the GIL's holder could end"
    assert h.find("stuck thread", pool="bad", op="block_gil")
    others_are_closed(h, "first")


# ---- H35: Python's own end


PYTHON_END = """
    [host]
    shutdown_timeout = 3s
    [plugin first]
    library = t_count
    [plugin last]
    library = t_count
    [app fine]
    object = app:Fine
    [app app]
    object = app:App
"""

PYTHON_END_APP = {
    "app.py": """
        import atexit
        import threading
        import bulkhead

        def wait_for_ever():
            threading.Event().wait()

        class Fine:
            async def stop(self):
                print("fine stopped", flush=True)

        class App:
            @bulkhead.endpoint
            async def thread(self) -> None:
                threading.Thread(target=wait_for_ever, name="the-waiter").start()

            @bulkhead.endpoint
            async def handler(self) -> None:
                atexit.register(wait_for_ever)
    """
}


@pytest.mark.parametrize("what", ["thread", "handler"])
def test_h35_what_python_waits_for_at_its_end_is_named(host, what):
    """(e) a thread that is no daemon, (f) an atexit function, each waiting on an event."""
    h = host(PYTHON_END, PYTHON_END_APP)
    h.call(what)
    stop_in_time(h, 70, 3)
    assert "fine stopped" in h.text
    order = [line["pool"] for line in h.log if line.get("msg") == "pool closed"]
    assert order == ["last", "first"]
    others_are_closed(h, "first", "last")
    overdue = h.find("shutdown_timeout has passed: leaving by _exit")
    assert overdue["phase"] == "python-end" and overdue["main_stack"]
    if what == "thread":
        assert h.find("Python waits for threads that are no daemons: the-waiter")
    shown = [line.get("msg", "") for line in h.log]
    who = {"thread": "the-waiter", "handler": "MainThread"}[what]
    at = shown.index(f"Python does not end; thread {who} (most recent call last):")
    assert any("in wait_for_ever" in line for line in shown[at:]), "the Python stack of who waits"
    assert h.log[-1]["msg"] == "stopped" and h.log[-1]["status"] == "70"
