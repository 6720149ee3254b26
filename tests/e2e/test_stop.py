# SPDX-License-Identifier: BSD-3-Clause
"""The ordered stop: what ends, in which order, within which time, with which status."""

import signal
import time

import pytest
from conftest import PROMPT, SLOW, CallError, UnixConnection, until

TWO_POOLS = """
    [plugin first]
    library = t_count
    [plugin second]
    library = t_count
    [app app]
    object = app:App
"""

IDLE_APP = {
    "app.py": """
        import atexit
        import bulkhead

        class App:
            async def start(self, app):
                atexit.register(print, "atexit ran", flush=True)

            @bulkhead.endpoint
            async def hello(self) -> str:
                return "hello"

            async def stop(self):
                assert await bulkhead.pool("first").add(2, 3) == 5   # pools are still there
                print("stop ran", flush=True)
    """
}

ONE_WORKER = """
    [plugin count]
    library = t_count
    workers = 1
    drain_timeout = {drain}
    [app app]
    object = app:App
"""

# Endpoints that leave work in the pool `count` and return at once.
BUSY_APP = {
    "app.py": """
        import asyncio
        import bulkhead

        class App:
            async def start(self, app):
                self.pool = bulkhead.pool("count")
                self.kept = []
                self.ends = []

            def keep(self, name, future):
                async def wait():
                    try:
                        end = await future
                    except bulkhead.BulkheadError as error:
                        end = error.code
                    print(f"outcome {name} {end}", flush=True)
                self.kept.append(asyncio.ensure_future(wait()))

            @bulkhead.endpoint
            async def never(self) -> None:
                self.keep("never", self.pool.never())

            @bulkhead.endpoint
            async def lost(self) -> None:
                self.keep("lost", self.pool.lost())

            @bulkhead.endpoint
            async def pend(self, ms: int) -> None:
                self.keep("pend", self.pool.pend(ms))

            @bulkhead.endpoint
            async def sleep(self, ms: int, n: int = 1) -> None:
                for i in range(n):
                    self.keep(f"sleep{i}", self.pool.sleep(ms))

            @bulkhead.endpoint
            async def sleeps(self, ms: int, n: int) -> None:
                # all ends in one line: of a thousand lines the log may drop some
                async def wait(futures):
                    ends = await asyncio.gather(*futures, return_exceptions=True)
                    codes = [getattr(end, "code", "done") for end in ends]
                    print("outcomes", *(f"{c}={codes.count(c)}" for c in sorted(set(codes))), flush=True)
                self.kept.append(asyncio.ensure_future(wait([self.pool.sleep(ms) for _ in range(n)])))
    """
}


def order(h, *steps):
    """Asserts that the lines (msg, facts) are in the log in this order."""
    log = h.log
    at = 0
    for message, facts in steps:
        for i in range(at, len(log)):
            if log[i].get("msg") == message and all(log[i].get(k) == v for k, v in facts.items()):
                at = i + 1
                break
        else:
            pytest.fail(f"{message} {facts} is not in the log, or too early")


def end_by(h, how):
    if how == "ctl":
        done = h.ctl("stop")
        assert done.returncode == 0, done.stderr
    else:
        h.send(how)
    return h.wait()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, "ctl"], ids=["SIGTERM", "SIGINT", "bulkheadctl stop"])
def test_the_host_stops_in_order(host, how):
    """PLG-4, EXIT-1, GIL-5: apps, pools in reverse manifest order, Python's end, gate, Py_FinalizeEx."""
    h = host(TWO_POOLS, IDLE_APP)
    assert h.call("hello") == "hello"
    assert end_by(h, how) == 0
    order(
        h,
        ("pool ready", {"pool": "first"}),
        ("pool ready", {"pool": "second"}),
        ("app started", {"app": "app"}),
        ("stopping", {}),
        ("stop ran", {}),
        ("app stopped", {"app": "app"}),
        ("pool closed", {"pool": "second", "state": "clean"}),
        ("pool closed", {"pool": "first", "state": "clean"}),
        ("atexit ran", {}),
        ("python ended: threads joined, atexit functions run", {}),
        ("gate closed: nobody is inside the interpreter", {}),
        ("Py_FinalizeEx returned 0", {}),
        ("stopped", {"status": "0"}),
    )
    assert h.log[-1].get("msg") == "stopped"


def test_no_app_and_no_plugin_is_a_host_too(host):
    h = host("")
    assert h.get("/v1/status").json["state"] == "ready"
    assert h.stop() == 0


def test_sys_exit_of_an_app_is_an_orderly_stop_with_its_status(host):
    h = host(
        TWO_POOLS,
        {
            "app.py": """
                import sys
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def leave(self, status: int) -> None:
                        sys.exit(status)

                    async def stop(self):
                        print("stop ran", flush=True)
            """
        },
    )
    h.post("/v1/apps/app/leave", {"status": 3})
    assert h.wait() == 3
    order(h, ("stop ran", {}), ("pool closed", {"pool": "second"}), ("pool closed", {"pool": "first"}),
          ("Py_FinalizeEx returned 0", {}), ("stopped", {"status": "3"}))  # fmt: skip


def test_a_pending_task_is_completed_by_another_thread_also_while_the_pool_drains(host):
    h = host(ONE_WORKER.format(drain="10s"), BUSY_APP)
    h.call("pend", 700)
    until(lambda: h.pool("count")["pending"] == 1, what="a pending task")
    assert h.stop() == 0
    assert "outcome pend " in h.text and "outcome pend task.cancelled" not in h.text
    assert h.find("pool closed", pool="count")["done"] == "1"


def test_sup4_what_is_still_queued_at_the_drain_deadline_is_cancelled(host):
    """H22 (a): 1 worker, 1000 tasks of 10 ms, one second to drain."""
    h = host(ONE_WORKER.format(drain="1s"), BUSY_APP)
    h.call("sleeps", ms=10, n=1000)
    began = time.monotonic()
    assert h.stop() == 0
    took = time.monotonic() - began
    books = {k: int(v) for k, v in h.find("pool closed", pool="count").items() if v.isdigit()}
    assert books["submitted"] == 1000
    assert books["done"] + books["cancelled"] == 1000 and books["abandoned"] == 0
    assert 20 <= books["done"] <= 130
    told = f"outcomes done={books['done']} task.cancelled={books['cancelled']}"
    assert h.text.count(told) == 1, "each outcome is told once"
    assert took < 8 * SLOW


@pytest.mark.parametrize("who", ["tasks", "threads"])
def test_h22_work_that_makes_more_work_does_not_keep_the_host_up(host, who):
    """SUP-4: tasks that submit two more each, and threads that never cease to submit."""
    h = host(
        """
        [plugin hold]
        library = t_hold
        queue = 256
        drain_timeout = 500ms
        [app app]
        object = app:App
        """,
        {
            "app.py": """
                import threading
                import bulkhead

                def breed():
                    for _ in range(2):
                        try:
                            bulkhead.pool("hold").call(breed)
                        except bulkhead.Overloaded:
                            pass

                def submit():
                    while True:
                        try:
                            bulkhead.pool("hold").call(int).result(10)
                        except bulkhead.Shutdown:
                            print("told that it is over", flush=True)
                            return
                        except bulkhead.BulkheadError:
                            pass

                class App:
                    @bulkhead.endpoint
                    async def tasks(self) -> None:
                        bulkhead.pool("hold").call(breed)

                    @bulkhead.endpoint
                    async def threads(self) -> None:
                        for _ in range(4):
                            threading.Thread(target=submit).start()
            """
        },
    )
    h.call(who)
    until(lambda: h.pool("hold")["done"] > 200, what="some work")
    assert h.stop() == 0
    books = {k: int(v) for k, v in h.find("pool closed", pool="hold").items() if v.isdigit()}
    assert books["submitted"] == sum(books[k] for k in ("done", "failed", "cancelled", "deadline", "abandoned"))
    if who == "threads":
        assert h.text.count("told that it is over") == 4


def test_exit4_a_worker_that_never_returns_ends_the_host_with_70_in_time(host):
    h = host(ONE_WORKER.format(drain="500ms"), BUSY_APP, args=["--set", "host.shutdown_timeout=3s"])
    h.call("never")
    until(lambda: h.pool("count")["running"] == 1, what="a running task")
    running = h.pool("count")["running_tasks"][0]
    assert running["op"] == "never"
    began = time.monotonic()
    assert h.stop() == 70
    assert time.monotonic() - began < 3 + 5 * SLOW
    stuck = h.find("stuck thread", pool="count")
    assert stuck and stuck["op"] == "never" and stuck["thread"] == "count/0"
    assert stuck["task"] == str(running["task"])
    assert "outcome never task.abandoned" in h.text
    assert h.log[-1].get("msg") == "stopped" and h.log[-1]["status"] == "70"


def test_the_other_pools_are_still_closed_in_order_when_one_is_wedged(host):
    h = host(
        """
        [host]
        shutdown_timeout = 4s
        [plugin first]
        library = t_count
        [plugin count]
        library = t_count
        workers = 1
        drain_timeout = 200ms
        [app app]
        object = app:App
        """,
        BUSY_APP,
    )
    h.call("never")
    until(lambda: h.pool("count")["running"] == 1, what="a running task")
    assert h.stop() == 70
    order(h, ("pool is wedged", {"pool": "count"}), ("pool closed", {"pool": "first", "state": "clean"}))


def test_a_task_that_is_never_completed_is_abandoned_and_told_by_status_75(host):
    h = host(ONE_WORKER.format(drain="300ms"), BUSY_APP)
    h.call("lost")
    until(lambda: h.pool("count")["pending"] == 1, what="a pending task")
    assert h.stop() == 75
    assert h.find("pool closed", pool="count")["abandoned"] == "1"
    assert "outcome lost task.abandoned" in h.text


def test_a_second_signal_makes_every_drain_deadline_now(host):
    """H29 (d)"""
    h = host(ONE_WORKER.format(drain="25s"), BUSY_APP)
    h.call("pend", 60000)
    until(lambda: h.pool("count")["pending"] == 1, what="a pending task")
    h.send(signal.SIGTERM)
    h.wait_log("app stopped", app="app")
    time.sleep(0.3)
    h.assert_alive()
    h.send(signal.SIGTERM)
    assert h.wait(timeout=8) == 0
    assert "outcome pend task.cancelled" in h.text


def test_h29_a_signal_during_a_slow_start_ends_it(host):
    h = host(
        "[app app]\nobject = app:App\n",
        {
            "app.py": """
                import asyncio

                class App:
                    async def start(self, app):
                        print("start runs", flush=True)
                        await asyncio.sleep(3600)
            """
        },
        wait="answering",
    )
    until(lambda: "start runs" in h.text, what="start()")
    assert h.get("/v1/status").json["state"] == "starting"
    assert h.get("/readyz").status == 503
    assert h.stop() == 0


STUCK_APPS = """
    [host]
    shutdown_timeout = {total}
    app_stop_timeout = 1s
    [plugin count]
    library = t_count
    [app fine]
    object = apps:Fine
    [app stuck]
    object = apps:Stuck
"""

STUCK_FILES = {
    "apps.py": """
        import threading
        import time
        import bulkhead
        from collections import deque
        from itertools import repeat

        class Fine:
            async def stop(self):
                print("fine stopped", flush=True)

        class Stuck:
            @bulkhead.endpoint
            async def spin(self) -> None:
                while True:
                    pass

            @bulkhead.endpoint
            async def sleep(self) -> None:
                time.sleep(1e6)

            @bulkhead.endpoint
            async def event(self) -> None:
                threading.Event().wait()

            @bulkhead.endpoint
            async def one_c_call(self) -> None:
                deque(repeat(0), maxlen=0)      # never looks at signals, never lets go of the GIL
    """
}


class Unanswered:
    """A POST whose answer is read later, or never."""

    def __init__(self, h, path):
        self.connection = UnixConnection(str(h.socket), 60)
        self.connection.request("POST", path)

    def status(self):
        return self.connection.getresponse().status

    def close(self):
        self.connection.close()


def held(h):
    """Whether the interpreter says that somebody has held it for a while."""
    holder = h.get("/v1/gil").json["holder"]
    return holder and holder["since_s"] > 0.1


@pytest.mark.parametrize("what", ["spin", "sleep", "event"])
def test_h35_an_app_that_blocks_main_is_interrupted_and_the_stop_is_orderly(host, what):
    h = host(STUCK_APPS.format(total="20s"), STUCK_FILES)
    asked = Unanswered(h, f"/v1/apps/stuck/{what}")
    if what == "spin":
        until(lambda: held(h), what="a spinning main")
    else:
        time.sleep(0.5)
    began = time.monotonic()
    h.send(signal.SIGTERM)
    h.wait_log("stopping")
    assert h.get("/livez").status == 200
    assert h.wait() == 0
    asked.close()
    assert time.monotonic() - began < 10 * SLOW
    assert "Interrupted" in h.text and "Traceback" in h.text and f"in {what}" in h.text
    assert "fine stopped" in h.text
    order(h, ("stopping", {}), ("app stopped", {"app": "fine"}), ("pool closed", {"pool": "count"}),
          ("Py_FinalizeEx returned 0", {}))  # fmt: skip


def test_h35_a_c_call_that_keeps_the_gil_for_ever_ends_the_host_at_shutdown_timeout(host):
    h = host(STUCK_APPS.format(total="8s"), STUCK_FILES)
    asked = Unanswered(h, "/v1/apps/stuck/one_c_call")
    until(lambda: held(h), what="main in one C call")
    began = time.monotonic()
    h.send(signal.SIGTERM)
    while h.process.poll() is None and time.monotonic() - began < 7:
        assert h.get("/livez", timeout=2).status == 200, "health answers all the while"
        time.sleep(0.1)
    assert h.wait() == 70
    asked.close()
    assert time.monotonic() - began < 8 + 5 * SLOW
    assert h.find("main is stuck: going on without it", waiting_for="stuck")
    assert h.find("pool closed", pool="count", state="clean")
    overdue = h.find("shutdown_timeout has passed: leaving by _exit")
    assert overdue and overdue["gil_holder"] == "bulkheadd" and "libpython" in overdue["main_stack"]


def test_h35_a_start_that_never_returns_is_interrupted_at_stop(host):
    h = host(
        "[host]\napp_stop_timeout = 1s\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                class App:
                    def start(self, app):
                        print("start runs", flush=True)
                        while True:
                            pass
            """
        },
        wait="answering",
    )
    until(lambda: "start runs" in h.text, what="start()")
    assert h.stop() == 0
    assert "Interrupted" in h.text


def test_h29_signals_are_heard_while_a_worker_keeps_the_gil(host):
    """H29 (a): SIGTERM, then SIGINT, during 60 s in one C call on a worker."""
    h = host(
        """
        [host]
        shutdown_timeout = 3s
        [plugin hold]
        library = t_hold
        drain_timeout = 500ms
        [app app]
        object = app:App
        """,
        {
            "app.py": """
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def hold(self) -> None:
                        self.kept = bulkhead.pool("hold").hold(60_000)
            """
        },
    )
    h.call("hold")
    until(lambda: held(h), what="the hold")
    began = time.monotonic()
    h.send(signal.SIGTERM)
    h.wait_log("stopping")
    assert time.monotonic() - began < PROMPT
    h.send(signal.SIGINT)
    assert h.wait() == 70
    assert time.monotonic() - began < 3 + 5 * SLOW
    overdue = h.find("shutdown_timeout has passed: leaving by _exit")
    assert overdue["gil_site"] == "hold.hold" and overdue["gil_holder"].startswith("hold/")
    assert h.find("stuck thread", pool="hold", op="hold")


# ---- H04: asking for the stop from the wrong place


ASKING = {
    "app.py": """
        import http.client, os, signal, socket
        import bulkhead

        class Connection(http.client.HTTPConnection):
            def __init__(self, path):
                super().__init__("localhost", timeout=10)
                self.path = path

            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.connect(self.path)

        def ask(path):
            connection = Connection(path)
            connection.request("POST", "/v1/stop")
            print("answered", connection.getresponse().status, flush=True)

        def kill():
            os.kill(os.getpid(), signal.SIGTERM)

        class App:
            async def start(self, app):
                self.path = app.options["socket"]

            @bulkhead.endpoint
            async def on_main(self) -> None:
                ask(self.path)

            @bulkhead.endpoint
            async def on_worker(self) -> None:
                await bulkhead.pool("hold").call(ask, self.path)

            @bulkhead.endpoint
            async def kill_on_main(self) -> None:
                kill()

            @bulkhead.endpoint
            async def kill_on_worker(self) -> None:
                await bulkhead.pool("hold").call(kill)
    """
}


@pytest.mark.parametrize("where", ["on_main", "on_worker", "kill_on_main", "kill_on_worker"])
def test_h04_a_stop_asked_for_from_inside_is_orderly(host, where):
    """SUP-3: from main with the GIL held, from a task of a pool that is to stop."""
    h = host(
        """
        [plugin hold]
        library = t_hold
        [app app]
        object = app:App
        option.socket = @FOLDER@/run/test.sock
        """,
        ASKING,
    )
    try:
        h.call(where)
    except (CallError, OSError, ValueError):
        pass  # the answer may lose the race with the end
    assert h.wait() == 0
    if not where.startswith("kill"):
        assert "answered 202" in h.text
    assert h.find("Py_FinalizeEx returned 0")


def test_h04_two_clients_that_ask_at_once_are_both_answered(host):
    h = host(TWO_POOLS, IDLE_APP)
    first, second = Unanswered(h, "/v1/stop"), Unanswered(h, "/v1/stop")
    assert first.status() == 202
    assert second.status() == 202
    assert h.wait() == 0
    assert h.text.count('msg=stopping ') + h.text.count('msg="stopping" ') == 1


def test_cp2_a_late_answer_of_main_does_not_overtake_the_pools(host):
    """Main is given up as stuck in an app's stop(), and answers after all while a pool still drains."""
    h = host(
        ONE_WORKER.format(drain="25s") + "    stop_timeout = 100ms\n",
        {
            "app.py": """
                import asyncio
                import ctypes
                import os
                import threading
                import time

                import bulkhead

                # The C library's: a wait for it cannot be interrupted, as one for Python's locks can.
                libc = ctypes.CDLL(None)
                lock = ctypes.create_string_buffer(64)

                def hold(held):
                    libc.pthread_mutex_lock(lock)
                    held.set()
                    while not os.path.exists(os.path.dirname(__file__) + "/go"):
                        time.sleep(0.01)
                    libc.pthread_mutex_unlock(lock)

                class App:
                    async def start(self, app):
                        held = threading.Event()
                        threading.Thread(target=hold, args=(held,), daemon=True).start()
                        held.wait()
                        self.busy = bulkhead.pool("count").sleep(60000)

                    async def stop(self):
                        # By then the answer to the stop has been given.
                        asyncio.get_running_loop().call_later(0.2, lambda: print("main is back", flush=True))
                        libc.pthread_mutex_lock(lock)
            """
        },
    )
    h.send(signal.SIGTERM)
    h.wait_log("main is stuck: going on without it")
    (h.folder / "apps" / "go").touch()
    h.wait_log("main is back")
    assert h.get("/v1/status").json["phase"] == "pool-stop"
    assert h.pool("count")["state"] == "draining"
    assert h.stop() == 0  # the second signal: the drain deadline is now
    order(h, ("main is back", {}), ("pool closed", {"cancelled": "1"}), ("python ended: threads joined, atexit functions run", {}))
