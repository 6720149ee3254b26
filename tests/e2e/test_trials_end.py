# SPDX-License-Identifier: BSD-3-Clause
"""H06, H07, H08: threads that come for the GIL at the end, who takes the interpreter down, and what Python's exit
handlers find. BULKHEAD_ROUNDS raises the number of rounds of H06."""

import errno
import os
import random
import signal
import time

import pytest
from conftest import SLOW, test_plugins, until

OUTCOMES = ("done", "failed", "cancelled", "deadline", "abandoned")
ROUNDS = int(os.environ.get("BULKHEAD_ROUNDS", 15 if SLOW == 1 else 5))
LEAVING = "shutdown_timeout has passed: leaving by _exit"


def lines(h, message):
    return [line for line in h.log if line.get("msg") == message]


def check_end(h, status):
    """What every end of the host shows, whatever its status."""
    for line in lines(h, "pool closed"):
        books = {k: int(v) for k, v in line.items() if v.isdigit()}
        assert books["submitted"] == sum(books[k] for k in OUTCOMES), line
    for word in ("terminate called", "Fatal Python error", "Segmentation", "the host died", "Exception ignored"):
        assert word not in h.text
    assert len(lines(h, "stopped")) == 1
    assert h.log[-1]["msg"] == "stopped" and h.log[-1]["status"] == str(status)


def order(h, *messages):
    """These lines, each given as msg or (msg, facts), are in the log in this order."""
    log, at = h.log, 0
    for message in messages:
        text, facts = (message, {}) if isinstance(message, str) else message
        for i in range(at, len(log)):
            if log[i].get("msg") == text and all(log[i].get(k) == v for k, v in facts.items()):
                at = i + 1
                break
        else:
            pytest.fail(f"{message} is not in the log, or too early")


PYTHON_ENDED = "python ended: threads joined, atexit functions run"
GATE_CLOSED = "gate closed: nobody is inside the interpreter"
GATE_STUCK = "gate stuck: the interpreter is not finalized"
FINALIZED = "Py_FinalizeEx returned 0"


# ---- H06


def has_cxx():
    return (test_plugins() / "t_foreign_cxx.so").exists()


FOREIGN = {
    "C": "library = t_foreign\noutlive = yes",
    "C, adopted": "library = t_foreign\noutlive = yes\nadopt = yes",
    "C, by the host's service": "library = t_foreign\noutlive = yes\nway = service",
    "C++ with guards": "library = t_foreign_cxx",
}

FOREIGN_APP = {
    "app.py": """
        import bulkhead

        class App:
            @bulkhead.endpoint
            async def op(self, name: str, *args: int) -> None:
                self.kept = getattr(bulkhead.pool("foreign"), name)(*args)

            @bulkhead.endpoint
            async def done(self, name: str, *args: int) -> None:
                await getattr(bulkhead.pool("foreign"), name)(*args)
    """
}


def foreign(kind):
    if "C++" in kind and not has_cxx():
        pytest.skip("no C++ compiler")
    return f"[plugin foreign]\n{FOREIGN[kind]}\n[app app]\nobject = app:App\n"


@pytest.mark.parametrize("kind", FOREIGN)
def test_h06_a_foreign_thread_that_outlives_its_plugin_meets_the_closed_gate(host, kind, report):
    """SIGTERM at random moments: parked with what it owns, or refused; never ended, unwound or let in."""
    chance = random.Random(kind)
    n_met = 0
    for _ in range(ROUNDS):
        h = host(foreign(kind), FOREIGN_APP)
        name = "t_foreign_cxx" if "C++" in kind else "t_foreign"
        until(lambda: any(t["thread"] == name for t in h.get("/v1/gil").json["threads"]), what="the foreign thread")
        time.sleep(chance.uniform(0, 0.05))
        assert h.stop() == 0
        order(h, GATE_CLOSED, FINALIZED)
        check_end(h, 0)
        parked = lines(h, "a thread came for the GIL after the gate had closed; it is parked for good")
        refused = lines(h, "t_foreign was refused")
        assert all(line["errno"] == str(errno.ESHUTDOWN) for line in refused)
        assert len(parked) + len(refused) <= 1 and not (parked if "service" in kind else refused)
        n_met += len(parked) + len(refused)
    assert n_met > 0, "the thread has met the closed gate"
    report(f"H06, {kind}: {ROUNDS} stops, all clean; in {n_met} the thread was still seen after the gate had closed")


def test_h06_a_stop_in_the_middle_of_a_foreign_threads_hold_waits_for_its_end(host):
    h = host("[plugin foreign]\nlibrary = t_foreign\n[app app]\nobject = app:App\n", FOREIGN_APP)
    h.call("op", "hold", 3000)
    until(lambda: (h.get("/v1/gil").json["holder"] or {}).get("thread") == "t_foreign", what="the hold")
    began = time.monotonic()
    assert h.stop() == 0
    assert time.monotonic() - began > 1
    order(h, "stopping", GATE_CLOSED, FINALIZED)
    check_end(h, 0)


def test_h06_a_foreign_thread_that_keeps_the_gil_past_the_deadline_is_named(host):
    h = host("[host]\nshutdown_timeout = 2s\n[plugin foreign]\nlibrary = t_foreign\noutlive = yes\n"
             "[app app]\nobject = app:App\n", FOREIGN_APP)  # fmt: skip
    h.call("op", "hold", 60_000)
    until(lambda: (h.get("/v1/gil").json["holder"] or {}).get("thread") == "t_foreign", what="the hold")
    began = time.monotonic()
    assert h.stop() == 70
    assert time.monotonic() - began < 2 + (0.5 if SLOW == 1 else 3)
    assert h.find(LEAVING)["gil_holder"] == "t_foreign"
    assert not h.find(FINALIZED)
    check_end(h, 70)


def test_h06_a_foreign_thread_that_is_still_inside_at_the_deadline_is_named(host):
    """Inside its scope, away from the GIL: nothing waits for it but the gate."""
    if not has_cxx():
        pytest.skip("no C++ compiler")
    h = host("[host]\nshutdown_timeout = 2s\n[plugin foreign]\nlibrary = t_foreign_cxx\n[app app]\nobject = app:App\n",
             FOREIGN_APP)  # fmt: skip
    h.call("done", "stay", 60_000)
    began = time.monotonic()
    assert h.stop() == 70
    assert time.monotonic() - began < 2 + (0.5 if SLOW == 1 else 3)
    order(h, ("pool closed", {"pool": "foreign", "state": "clean"}), PYTHON_ENDED)
    stuck = h.find(GATE_STUCK)
    assert stuck["thread"] == "t_foreign_cxx" and stuck["state"] == "inside"
    assert stuck["site"] == "raw:t_foreign_cxx.so" and int(stuck["since_ms"]) > 1000
    assert not h.find(FINALIZED)
    check_end(h, 70)


# ---- H07


OWNER = """
    [host]
    on_pool_failure = exit
    [plugin count]
    library = t_count
    [app app]
    object = app:App
"""

OWNER_APP = {
    "app.py": """
        import asyncio
        import ctypes
        import os
        import sys
        import threading
        import bulkhead

        class Last:
            '''Destroyed while the interpreter is being taken down.'''
            def __del__(self, tid=threading.get_native_id, write=os.write, now=sys.is_finalizing):
                write(2, b"destroyed on %d, finalizing: %d\\n" % (tid(), now()))

        def leave():
            sys.exit(3)

        class App:
            async def start(self, app):
                import _ctypes
                thread = threading.Thread(target=lambda: threading.current_thread())
                thread.start()
                thread.join()
                print(f"initialized on {threading.main_thread().native_id}", flush=True)
                sys.the_last = Last()

            @bulkhead.endpoint
            async def timer(self) -> None:
                asyncio.get_running_loop().call_later(0.05, leave)

            @bulkhead.endpoint
            async def break_pool(self) -> None:
                await bulkhead.pool("count").break_pool()

            @bulkhead.endpoint
            async def interpreter(self) -> list:
                import _struct
                try:
                    import numpy
                except ImportError:
                    numpy = None
                return [id(sys.modules), id(_struct), id(numpy), id(self), ctypes.pythonapi.PyInterpreterState_Main()]
    """
}


@pytest.mark.parametrize("how, status",
                         [("SIGTERM", 0), ("bulkheadctl stop", 0), ("timer", 3), ("failed plugin", 69)])  # fmt: skip
def test_h07_the_thread_that_initialized_also_finalizes(host, how, status):
    h = host(OWNER, OWNER_APP)
    if how == "SIGTERM":
        h.send(signal.SIGTERM)
    elif how == "bulkheadctl stop":
        assert h.ctl("stop").returncode == 0
    elif how == "timer":
        h.call("timer")
    else:
        h.post("/v1/apps/app/break_pool", {})
    assert h.wait() == status
    main = h.process.pid
    assert f"initialized on {main}" in h.text
    assert f"destroyed on {main}, finalizing: 1\n" in h.text
    assert "Traceback" not in h.text and "AssertionError" not in h.text
    order(h, "stopping", PYTHON_ENDED, GATE_CLOSED, FINALIZED)
    check_end(h, status)


def test_h07_sighup_neither_ends_the_host_nor_begins_it_anew(host):
    h = host(OWNER, OWNER_APP)
    before = h.call("interpreter")
    said = "SIGHUP: the manifest is read at the start only; nothing is reloaded"
    for n in range(20):
        h.send(signal.SIGHUP)
        until(lambda: sum(int(line["signals"]) for line in lines(h, said)) > n, what="the line about it")
    assert h.call("interpreter") == before
    assert h.get("/v1/status").json["state"] == "ready"
    assert len(lines(h, "interpreter up")) == 1
    assert h.stop() == 0
    check_end(h, 0)


def test_h07_an_apps_own_sighup_handler_is_the_apps(host):
    h = host(
        "[app app]\nobject = app:App\n",
        {
            "app.py": """
                import asyncio
                import signal
                import bulkhead

                class App:
                    async def start(self, app):
                        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, print, "read anew")
            """
        },
    )
    began = time.monotonic()
    n = 0
    while time.monotonic() - began < 2.5:  # the control loop looks once a second: it finds nothing to restore
        n += 1
        h.send(signal.SIGHUP)
        until(lambda: h.text.count("read anew") == n, what="the app's handler")
        time.sleep(0.1)
    assert not h.find("somebody changed a signal that the host owns; restored")
    assert h.stop() == 0
    check_end(h, 0)


# ---- H08


EXIT = """
    [host]
    shutdown_timeout = {timeout}
    on_pool_failure = exit
    [plugin count]
    library = t_count
    [plugin bad]
    library = bad_worker
    drain_timeout = 200ms
    [plugin hold]
    library = t_hold
    drain_timeout = 200ms
    [app app]
    object = app:App
"""

EXIT_APP = {
    "app.py": """
        import atexit
        import threading
        import time
        import bulkhead

        class App:
            async def start(self, app):
                self.path = app.options["file"]
                self.kept = []
                self.told = threading.Event()
                self.thread = threading.Thread(target=self.told.wait, daemon=True)
                self.thread.start()
                atexit.register(self.at_exit)       # runs last
                atexit.register(self.told.set)      # runs first

            def at_exit(self):
                self.thread.join()
                began = time.monotonic()
                try:
                    bulkhead.pool("count").add(1, 2)
                    said = "accepted"
                except bulkhead.BulkheadError as error:
                    said = f"{type(error).__name__} {error.code}"
                with open(self.path, "a") as file:
                    file.write(f"{said} {time.monotonic() - began < 1}\\n")

            @bulkhead.endpoint
            async def op(self, pool: str, name: str) -> None:
                self.kept.append(getattr(bulkhead.pool(pool), name)())

            @bulkhead.endpoint
            async def sleep_on_a_worker(self) -> None:
                self.kept.append(bulkhead.pool("hold").call(time.sleep, 600))

            async def stop(self):
                print("stop ran", flush=True)
    """
}

IN_ORDER = ("stopping", "stop ran", ("pool closed", {"pool": "hold"}), ("pool closed", {"pool": "bad"}),
            ("pool closed", {"pool": "count"}), PYTHON_ENDED)  # fmt: skip


def start_exit(host, timeout="20s"):
    h = host(EXIT.format(timeout=timeout) + "    option.file = @FOLDER@/at-exit\n", EXIT_APP)
    h.file = h.folder / "at-exit"
    return h


def at_exit(h):
    return h.file.read_text().splitlines() if h.file.exists() else []


ONCE = ["Shutdown pool.closed True"]  # closed, and told so at once


@pytest.mark.parametrize("how, status", [("SIGTERM", 0), ("SIGINT", 0), ("bulkheadctl stop", 0), ("failed pool", 69)])
def test_h08_exit_handlers_run_once_and_find_the_pools_closed(host, how, status):
    h = start_exit(host)
    if how == "bulkheadctl stop":
        assert h.ctl("stop").returncode == 0
    elif how == "failed pool":
        h.post("/v1/apps/app/op", ["count", "break_pool"])
    else:
        h.send(getattr(signal, how))
    assert h.wait() == status
    assert at_exit(h) == (ONCE if status == 0 else ["PluginError pool.closed True"])
    pools = [line["pool"] for line in lines(h, "pool closed")]
    if how == "failed pool":
        assert pools == ["count", "hold", "bad"], "the one that failed has ended before"
        order(h, "stop ran", PYTHON_ENDED, GATE_CLOSED, FINALIZED)
    else:
        order(h, *IN_ORDER, GATE_CLOSED, FINALIZED)
    check_end(h, status)


def test_h08_the_interpreter_is_taken_down_when_a_required_plugin_fails_at_the_start(host):
    """No app has been imported by then, so there are no handlers; the promise is finalization."""
    h = host("[plugin count]\nlibrary = t_count\n[plugin bad]\nlibrary = bad_open\n[app app]\nobject = app:App\n",
             EXIT_APP, wait=None)  # fmt: skip
    assert h.wait() == 69
    order(h, ("pool closed", {"pool": "count", "state": "clean"}), PYTHON_ENDED, GATE_CLOSED, FINALIZED)
    check_end(h, 69)


def test_h08_a_worker_stuck_outside_the_interpreter_keeps_no_handler_from_running(host):
    """The pool's deadline has passed, the status says so; the interpreter is not where the thread is."""
    h = start_exit(host, "3s")
    h.call("op", "bad", "block")
    until(lambda: h.pool("bad")["running"] == 1, what="the stuck task")
    assert h.stop() == 70
    assert at_exit(h) == ONCE
    assert h.find("pool closed", pool="bad", state="wedged")
    order(h, *IN_ORDER, GATE_CLOSED, FINALIZED)
    check_end(h, 70)


def test_h08_a_worker_stuck_in_the_interpreter_leaves_it_unfinalized_and_the_log_says_so(host):
    """It has let go of the GIL, so handlers run; the gate finds it inside."""
    h = start_exit(host, "3s")
    h.call("sleep_on_a_worker")
    until(lambda: h.pool("hold")["running"] == 1, what="the stuck task")
    assert h.stop() == 70
    assert at_exit(h) == ONCE
    assert h.find("pool closed", pool="hold", state="wedged")["abandoned"] == "1"
    order(h, *IN_ORDER)
    stuck = h.find(GATE_STUCK)
    assert stuck["thread"] == h.find("stuck thread", pool="hold", op="call")["thread"]
    assert stuck["site"] == "hold.call" and stuck["state"] == "inside"
    assert not h.find(GATE_CLOSED) and not h.find(FINALIZED)
    check_end(h, 70)


def test_h08_a_worker_that_keeps_the_gil_leaves_no_handler_to_run_and_the_log_says_so(host):
    h = start_exit(host, "3s")
    h.call("op", "bad", "block_gil")
    until(lambda: (h.get("/v1/gil").json["holder"] or {}).get("site") == "bad.block", what="the hold")
    assert h.stop() == 70
    assert at_exit(h) == []
    assert h.find(LEAVING)["gil_site"] == "bad.block"
    assert not h.find(PYTHON_ENDED) and not h.find(FINALIZED)
    assert [line["pool"] for line in lines(h, "pool closed")] == ["hold", "bad", "count"]
    check_end(h, 70)
