# SPDX-License-Identifier: BSD-3-Clause
"""H01, H02, H03: who may take the GIL, who waits for it, and what goes on meanwhile."""

import contextlib
import http.client
import signal
import threading
import time

import pytest
from conftest import PROMPT, SLOW, test_plugins, until

OUTCOMES = ("done", "failed", "cancelled", "deadline", "abandoned")


def gil(h):
    return h.get("/v1/gil").json


def site(h, name):
    return next((s for s in gil(h)["sites"] if s["site"] == name), None)


def number(h, name, key):
    row = site(h, name)
    return row[key] if row else 0


def lines(h, message, **facts):
    return [line for line in h.log
            if line.get("msg") == message and all(line.get(k) == v for k, v in facts.items())]


def ends_clean(h, number=signal.SIGTERM):
    """The books of every pool balance, and the end is a clean one."""
    assert h.stop(number) == 0
    closed = lines(h, "pool closed")
    for line in closed:
        books = {k: int(v) for k, v in line.items() if v.isdigit()}
        assert books["submitted"] == sum(books[k] for k in OUTCOMES), line
        assert line["state"] == "clean"
    assert h.find("Py_FinalizeEx returned 0")
    assert h.log[-1]["msg"] == "stopped" and h.log[-1]["status"] == "0"
    return {line["pool"]: line for line in closed}


# ---- H01


HOLD = """
    [plugin hold]
    library = t_hold
    workers = 2
    [plugin count]
    library = t_count
    workers = 1
    [app app]
    object = app:App
"""

HOLD_APP = {
    "app.py": """
        import bulkhead

        class App:
            @bulkhead.endpoint
            async def hold(self, ms: int) -> None:
                self.kept = bulkhead.pool("hold").hold(ms)

            @bulkhead.endpoint
            async def hello(self) -> str:
                return "hello"
    """
}


def test_h01_health_and_metrics_while_a_c_call_holds_the_gil(host, report):
    h = host(HOLD, HOLD_APP)
    h.call("hold", 3000)
    until(lambda: (gil(h)["holder"] or {}).get("site") == "hold.hold", what="the hold")

    asked = time.monotonic()
    answers, took = [], {"/livez": [], "/metrics": []}
    caller = threading.Thread(target=lambda: answers.append((h.call("hello", timeout=60), time.monotonic())))
    caller.start()
    until(lambda: any(t["thread"] == "bulkheadd" and t["state"] == "waiting" for t in gil(h)["threads"]), what="main's wait")
    row, during = None, None
    while not answers:
        for path in ("/livez", "/metrics") if len(took["/livez"]) % 10 == 9 else ("/livez",):
            at = time.monotonic()
            reply = h.get(path)
            took[path].append(time.monotonic() - at)
            assert reply.status == 200
        seen = gil(h)
        holder = seen["holder"]
        waiting = [t for t in seen["threads"] if t["thread"] == "bulkheadd" and t["state"] == "waiting"]
        if holder and holder["site"] == "hold.hold" and waiting:
            row, during = waiting[0], holder
    caller.join()
    waited = answers[0][1] - asked

    assert answers[0][0] == "hello", "the call was not failed by the wait"
    assert during and row, "status showed both"
    assert during["thread"] in ("hold/0", "hold/1") and during["plane"] == "data" and during["label"] == "hold"
    assert row["site"] in ("host.dispatch", "host.drain") and row["since_s"] > 0.5 * waited
    for path, seconds in took.items():
        if not seconds:
            continue
        ordered = sorted(seconds)
        p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(len(ordered) * q))] for q in (0.5, 0.99))
        report(f"{len(ordered)} GET {path} while the GIL is held 3 s in one C call: "
               f"p50 {p50:.2f} p99 {p99:.2f} max {1000 * ordered[-1]:.2f} ms")
        assert p99 < 500 * PROMPT and ordered[-1] < PROMPT
    held = site(h, "hold.hold")
    assert held["entries"] == 1 and 2.8 <= held["held_s"] <= 3.2
    longest = max(number(h, "host.dispatch", "wait_max_s"), number(h, "host.drain", "wait_max_s"))
    assert longest == pytest.approx(waited, abs=0.3 * SLOW), "main's wait is in the books"
    assert gil(h)["unsanctioned"] == 0
    assert ends_clean(h)["hold"]["done"] == "1"


# ---- H02


ROGUE = """
    [plugin rogue]
    library = t_rogue
    [app app]
    object = app:App
"""

ROGUE_APP = {
    "app.py": """
        import ctypes
        import threading
        import bulkhead

        class App:
            async def start(self, app):
                self.pool = bulkhead.pool("rogue")
                self.at = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(await self.pool.address_of_at())
                self.raw = ctypes.CFUNCTYPE(ctypes.c_int32)(await self.pool.address_of_raw())

            @bulkhead.endpoint
            async def main_at(self, site: int) -> int:
                return self.at(site)            # ctypes lets go of the GIL meanwhile

            @bulkhead.endpoint
            async def main_raw(self) -> int:
                return self.raw()

            @bulkhead.endpoint
            async def op(self, name: str) -> None:
                await getattr(self.pool, name)()
    """
}

UNSANCTIONED = "a control thread takes the GIL where it may not"


def test_h02_a_constructor_that_takes_the_gil_raw_on_main_is_counted_and_named(host):
    """The plugin code that runs on a control thread: a library's constructor, inside dlopen, the GIL not held."""
    h = host("[gil]\nunsanctioned = log\n[plugin raw]\nlibrary = bad_raw_ctor\n")
    assert gil(h)["unsanctioned"] == 2, "by PyGILState_Ensure, and by PyEval_RestoreThread"
    row = site(h, "raw:bad_raw_ctor.so")
    assert row["unsanctioned"] == row["entries"] == 2
    said = lines(h, UNSANCTIONED)
    assert len(said) == 2
    for line in said:
        assert line["site"] == "raw:bad_raw_ctor.so" and line["caller"].startswith("bad_raw_ctor.so+0x")
        assert line["thread"] == "bulkheadd" and line["plane"] == "control" and line["label"] == "python"
    assert h.pool("raw")["state"] == "ready", "let in and gone on"
    ends_clean(h)


def test_h02_an_unsanctioned_entry_is_the_end_where_the_manifest_says_so(host):
    h = host("[gil]\nunsanctioned = abort\n[plugin raw]\nlibrary = bad_raw_ctor\n", wait=None)
    h.ended_by_test = True
    assert h.process.wait(20 * SLOW) == -signal.SIGABRT
    (line,) = lines(h, UNSANCTIONED)
    assert line["site"] == "raw:bad_raw_ctor.so" and line["thread"] == "bulkheadd" and line["plane"] == "control"


def test_h02_unsanctioned_entries_are_counted_without_a_word_where_the_manifest_says_so(host):
    h = host("[gil]\nunsanctioned = count\n[plugin raw]\nlibrary = bad_raw_ctor\n")
    assert gil(h)["unsanctioned"] == 2 and not lines(h, UNSANCTIONED)
    ends_clean(h)


@pytest.mark.parametrize("call", ["site a", "site b", "raw"])
def test_h02_what_main_does_inside_its_wake_up_is_put_to_that(host, call):
    """A plugin's function that an app calls by ctypes: nested in host.dispatch, whatever it asks for."""
    h = host(ROGUE, ROGUE_APP)
    before = {s["site"]: s for s in gil(h)["sites"]}
    for _ in range(50):
        assert h.call("main_raw") == 0 if call == "raw" else h.call("main_at", "ab".index(call[-1])) == 0
    after = {s["site"]: s for s in gil(h)["sites"]}

    def grew(key, *sites):
        return sum(after[s][key] - before.get(s, {}).get(key, 0) for s in sites if s in after)

    assert grew("nested", "host.dispatch", "host.drain") >= 50
    assert grew("entries", "rogue.a", "rogue.b", "raw:t_rogue.so") == 0
    assert gil(h)["unsanctioned"] == 0 and not lines(h, UNSANCTIONED)
    ends_clean(h)


def test_h02_workers_are_not_policed_and_a_site_that_is_not_declared_is_refused(host):
    h = host(ROGUE, ROGUE_APP)
    for op in ("b", "b_in_a", "raw"):
        h.call("op", op)
    assert number(h, "rogue.b", "entries") == 1, "b inside a is a's"
    assert number(h, "rogue.a", "entries") == number(h, "rogue.a", "nested") == 1
    assert number(h, "raw:t_rogue.so", "entries") == 1
    books = {s["site"]: s["entries"] for s in gil(h)["sites"] if not s["site"].startswith(("host.", "python", "raw:_"))}

    with pytest.raises(Exception, match="rogue"):
        h.call("op", "stray")
    assert h.call("main_at", 2) == -22, "-EINVAL"

    def refusals():
        return [line for line in h.log if "the descriptor has no such site" in str(line)]

    until(lambda: len(refusals()) >= 2, what="both lines, for the log may be a little behind")
    refused = refusals()
    assert len(refused) == 2 and all("rogue" in str(line) for line in refused)
    assert books == {s["site"]: s["entries"] for s in gil(h)["sites"]
                     if not s["site"].startswith(("host.", "python", "raw:_"))}, "filed under no other"  # fmt: skip
    assert gil(h)["unsanctioned"] == 0
    assert ends_clean(h)["rogue"]["failed"] == "1"


def test_h02_the_counters_are_read_while_a_worker_holds_the_gil(host):
    h = host("[plugin raw]\nlibrary = bad_raw_ctor\n" + HOLD.replace("    ", ""), HOLD_APP)
    h.call("hold", 2000)
    until(lambda: (gil(h)["holder"] or {}).get("site") == "hold.hold", what="the hold")
    at = time.monotonic()
    seen = gil(h)
    assert time.monotonic() - at < PROMPT
    assert seen["holder"]["site"] == "hold.hold", "still held when it was read"
    assert seen["unsanctioned"] == 2
    ends_clean(h)


# ---- H03


LOCK = """
    [plugin lock]
    library = t_lock
    workers = 2
    drain_timeout = 500ms
    [app app]
    object = app:App
"""

LOCK_APP = {
    "app.py": """
        import asyncio
        import ctypes
        import random
        import bulkhead

        class App:
            async def start(self, app):
                self.pool = bulkhead.pool("lock")
                address = await self.pool.address()
                self.take = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int32)(address)       # lets go of the GIL
                self.take_holding = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int32)(address)

            @bulkhead.endpoint
            async def rounds(self, n: int) -> list:
                workers = [self.pool.rounds(n // 2), self.pool.rounds(n - n // 2)]
                for i in range(n):
                    self.take(random.randrange(201))
                    if i % 20 == 0:
                        await asyncio.sleep(0)
                return [await w for w in workers]

            @bulkhead.endpoint
            async def break_the_rule(self) -> None:
                self.kept = self.pool.hold()
                while not await self.pool.is_held():
                    await asyncio.sleep(0.01)
                self.take_holding(0)            # for ever: the worker has the mutex and waits for the GIL
    """
}


def stalls(h):
    return h.get("/v1/stalls").json


def test_h03_a_plugin_that_waits_for_the_gil_without_its_lock_never_stalls(host, report):
    """(a): mutex and GIL are taken in opposite order by a worker and by main, each let go of in between."""
    n = 20_000 if SLOW == 1 else 2_000
    h = host(LOCK, LOCK_APP)
    began = time.monotonic()
    assert sum(h.call("rounds", n, timeout=240)) == n
    report(f"H03 (a): {n} rounds of mutex and GIL in opposite order: {time.monotonic() - began:.1f} s")
    assert number(h, "lock.note", "entries") == n
    seen = stalls(h)
    assert seen["counts"]["gil"] == seen["counts"]["asyncio"] == 0, seen["stalls"]
    assert ends_clean(h)["lock"]["done"] == "3"


def test_h03_a_plugin_that_waits_for_the_gil_with_its_lock_is_named(host):
    """The rule broken on purpose: a deadlock. Health answers, both threads are named, the stop ends by its deadline."""
    h = host("[host]\nshutdown_timeout = 3s\n" + LOCK.replace("    ", ""), LOCK_APP)

    def ask():
        with contextlib.suppress(OSError, http.client.HTTPException):  # never answered
            h.post("/v1/apps/app/break_the_rule", {}, timeout=60)

    caller = threading.Thread(target=ask)
    caller.start()

    def stuck():
        waiting = [t for t in gil(h)["threads"] if t["state"] == "waiting" and t["site"] == "lock.hold"]
        return waiting[0] if waiting else None

    until(stuck, what="the worker's wait")
    since = stuck()["since_s"]
    until(lambda: stuck()["since_s"] > since, what="its age to grow")
    seen, waiter = gil(h), stuck()
    assert waiter["thread"] in ("lock/0", "lock/1") and waiter["plane"] == "data" and waiter["label"] == "lock"
    holder = seen["holder"]
    assert holder["thread"] == "bulkheadd" and holder["plane"] == "control" and holder["tid"] == h.process.pid
    assert holder["site"] in ("host.dispatch", "host.drain") and holder["since_s"] > 0
    at = time.monotonic()
    assert h.get("/livez").status == 200 and time.monotonic() - at < PROMPT

    def told():
        return next((s for s in stalls(h)["stalls"] if s["kind"] == "gil" and s["holder"] and s["waiters"]), None)

    stall = until(told, timeout=10, what="the stall's report")
    assert stall["holder"]["thread"] == "bulkheadd"
    assert any(w["thread"] == waiter["thread"] and w["site"] == "lock.hold" for w in stall["waiters"])

    began = time.monotonic()
    h.send(signal.SIGTERM)
    assert h.wait(20) == 70
    assert time.monotonic() - began < 3 + (0.5 if SLOW == 1 else 3)
    caller.join()
    overdue = h.find("shutdown_timeout has passed: leaving by _exit")
    assert overdue["gil_holder"] == "bulkheadd" and overdue["gil_site"] == holder["site"]
    worker = h.find("stuck thread", pool="lock", op="hold")
    assert worker and worker["thread"] == waiter["thread"]
    closed = h.find("pool closed", pool="lock")
    assert closed["state"] == "wedged" and closed["abandoned"] == "1" and closed["failed"] == "0"
    assert int(closed["submitted"]) == sum(int(closed[k]) for k in OUTCOMES)
    assert h.log[-1]["msg"] == "stopped" and h.log[-1]["status"] == "70"


DRIVER = """
    [plugin drv]
    library = t_drv
    driver = {driver}
    adopt = {adopt}
    [plugin hold]
    library = t_hold
    [app app]
    object = app:App
"""

DRIVER_APP = {
    "app.py": """
        import asyncio
        import bulkhead

        def spin(n):
            return sum(range(n))

        class App:
            @bulkhead.endpoint
            async def work(self, n: int) -> list:
                drv, hold = bulkhead.pool("drv"), bulkhead.pool("hold")
                spinning = hold.call(spin, 3_000_000)
                done = await asyncio.gather(*(drv.work(n) for _ in range(4)))
                await spinning
                return done
    """
}


@pytest.mark.parametrize("adopt, plane, label", [("no", "none", ""), ("yes", "data", "drv")])
def test_h03_a_drivers_callback_thread_is_booked_with_its_waits(host, adopt, plane, label):
    """(b): the driver's thread wants the GIL with the driver's inner lock held, while workers call the driver."""
    driver = test_plugins().parents[1] / "drv" / ".libs" / "libfakedrv.so"
    n = 500 if SLOW == 1 else 100
    h = host(DRIVER.format(driver=driver, adopt=adopt), DRIVER_APP, args=["--set", "gil.stall_after=10s"], env={"FAKEDRV_LOG": "/dev/null"})
    assert max(h.call("work", n, timeout=120)) == 4 * n
    rows = [t for t in gil(h)["threads"] if t["thread"] == "fakedrv"]
    assert [(r["plane"], r["label"] or "") for r in rows] == [(plane, label)]
    booked = site(h, "drv.callback")
    assert booked["entries"] == 4 * n and booked["wait_s"] > 0
    assert list(booked["planes"]) == [plane] and booked["planes"][plane]["entries"] == 4 * n
    assert booked["wait_count"] == 4 * n and booked["wait_max_thread"] == "fakedrv"
    assert gil(h)["unsanctioned"] == 0
    seen = stalls(h)
    assert seen["counts"]["gil"] == 0, seen["stalls"]
    assert ends_clean(h)["drv"]["done"] == "4"
    assert h.find("t_drv is closed")["refused"] == "0"
