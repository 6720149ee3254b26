# SPDX-License-Identifier: BSD-3-Clause
"""Pools under bad plugins and bad luck: per-thread set-up, what threads leave behind, starts that fail half-way,
building, overload, workers that vanish, crash or poison their device."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import SLOW, CallError, test_plugins, until

OUTCOMES = ("done", "failed", "cancelled", "deadline", "abandoned")

OPS = {
    "app.py": """
        import asyncio
        import threading
        import time
        import bulkhead

        class App:
            async def start(self, app):
                self.kept = []

            @bulkhead.endpoint
            async def op(self, pool: str, name: str, args: list = ()):
                try:
                    return await getattr(bulkhead.pool(pool), name)(*args)
                except bulkhead.BulkheadError as error:
                    return {"code": error.code, "facts": error.facts}

            @bulkhead.endpoint
            async def leave(self, pool: str, name: str, args: list = ()) -> None:
                self.kept.append(getattr(bulkhead.pool(pool), name)(*args))

            @bulkhead.endpoint
            async def many(self, pool: str, name: str, args: list, n: int) -> list:
                return await asyncio.gather(*[getattr(bulkhead.pool(pool), name)(*args) for _ in range(n)])

            @bulkhead.endpoint
            async def produce(self, seconds: float) -> None:
                def submit():
                    pool = bulkhead.pool("count")
                    end = time.monotonic() + seconds
                    self.accepted = self.refused = 0
                    self.producing = True
                    while time.monotonic() < end:
                        try:
                            pool.sleep(10)
                            self.accepted += 1
                        except bulkhead.Overloaded:
                            self.refused += 1
                    self.producing = False
                self.thread = threading.Thread(target=submit)
                self.thread.start()

            @bulkhead.endpoint
            async def produced(self) -> list:
                return [self.producing, self.accepted, self.refused]
    """
}

APP = "[app app]\nobject = app:App\n"


def books(h, label):
    closed = h.find("pool closed", pool=label)
    assert closed, f"{label} was not closed"
    numbers = {k: int(v) for k, v in closed.items() if v.isdigit()}
    assert numbers["submitted"] == sum(numbers[k] for k in OUTCOMES), closed
    return closed["state"], numbers


# ---- H12: what belongs to a thread


def test_h12_the_thread_hooks_run_on_each_worker_once_with_its_index(host):
    h = host(f"[plugin gpu]\nlibrary = t_device\nworkers = 4\n{APP}", OPS)
    seen = h.call("many", pool="gpu", name="where", args=[30], n=40)
    assert set(seen) == {0, 1, 2, 3}, "every worker ran tasks, each with its own device set"
    assert h.stop() == 0
    devices = h.find("devices", component="gpu")
    assert devices["threads"] == "4" and devices["unequal"] == "0"
    assert devices["strangers"] == "0", "stop ran on the thread of its start, and no other thread had a device"
    assert books(h, "gpu")[0] == "clean"


def test_h12_a_start_hook_that_fails_fails_the_start(host):
    """SUP-2: the hooks that ran are undone on their own threads."""
    h = host("[plugin gpu]\nlibrary = t_device\nworkers = 4\nfail_worker = 2\n", wait=None)
    assert h.wait() == 69
    cause = h.find("plugin did not open", plugin="gpu")
    assert cause["error"] == "t_device.set" and cause["worker"] == "2" and cause["step"] == "worker_start"
    devices = h.find("devices", component="gpu")
    assert devices["unequal"] == "0" and devices["strangers"] == "0" and int(devices["threads"]) <= 3


# ---- H19: what a thread leaves behind


def test_h19_key_destructors_and_threads_meet_their_library(host):
    """(a), (c): a library is never unmapped, so what ends late still finds its code."""
    for _ in range(4 if SLOW > 1 else 8):
        h = host("[plugin gpu]\nlibrary = t_device\nlinger_ms = 1\n")
        assert h.stop() == 0
        assert books(h, "gpu")[0] == "clean"


def test_h19_a_thread_that_outlives_close_may_still_call_the_host(host):
    h = host(
        f"""
        [plugin count]
        library = t_count
        [plugin gpu]
        library = t_device
        linger_ms = 200
        {APP.replace(chr(10), chr(10) + " " * 8)}
        """,
        OPS,
    )
    h.call("leave", pool="count", name="sleep", args=[1500])  # keeps the host up after gpu is closed
    until(lambda: h.pool("count")["running"] == 1, what="a running task")
    assert h.stop() == 0
    at = [line.get("msg") for line in h.log]
    assert at.index("a thread outlived close") > at.index("pool closed")
    assert books(h, "gpu")[0] == books(h, "count")[0] == "clean"


def test_h19_a_thread_that_outlives_the_host_does_not_hold_it_up(host):
    h = host("[plugin gpu]\nlibrary = t_device\nlinger_ms = 60000\n")
    assert h.stop() == 0
    assert "a thread outlived close" not in h.text


# ---- H21: a start that fails half-way


FAILURES = [
    # section of B, the id of its cause, an op and its arguments
    ("library = bad_open\n", "bad_open.device", ()),
    ("library = bad_start\n", "bad_start.worker", ()),
    ("library = t_device\nfail_worker = 1\n", "t_device.set", ("where", 0)),
    ("library = t_missing\n", "find.missing", ()),
]  # fmt: skip
if (test_plugins() / "bad_throw.so").exists():
    FAILURES += [("library = bad_throw\nwhere = open\n", "plugin.exception", ("nop",)),
                 ("library = bad_throw\nwhere = worker_start\n", "plugin.exception", ("nop",))]  # fmt: skip
IDS = ["-".join(line.split(" = ")[1] for line in b.splitlines()) for b, _, _ in FAILURES]


def three(b, optional):
    return f"[plugin a]\nlibrary = t_count\n[plugin b]\n{b}optional = {optional}\n[plugin c]\nlibrary = t_count\n{APP}"


@pytest.mark.parametrize("b, cause, op", FAILURES, ids=IDS)
def test_h21_an_optional_plugin_that_fails_leaves_nothing_behind(host, b, cause, op):
    """PLG-7, SUP-2: A and C run, B is named, and has neither threads nor sites."""
    h = host(three(b, "yes"), OPS)
    plugins = {p["label"]: p for p in h.get("/v1/status").json["plugins"]}
    assert plugins["a"]["state"] == plugins["c"]["state"] == "up"
    assert plugins["b"]["state"] == "skipped" and cause in plugins["b"]["error"]
    assert not [name for name in h.threads().values() if name.startswith("b/")]
    sites = h.get("/v1/gil").json["sites"]
    assert sum(s["entries"] for s in sites if s["site"].startswith("b.")) == 0, "a site stays known, nobody was there"
    assert not [p for p in h.get("/v1/pools").json["pools"] if p["label"] == "b" and p["state"] != "build-failed"]
    assert h.call("op", pool="a", name="add", args=[1, 2]) == h.call("op", pool="c", name="add", args=[1, 2]) == 3
    if op:
        refused = h.call("op", pool="b", name=op[0], args=list(op[1:]))
        assert refused["code"] == "shutdown" or refused["facts"], refused
    assert h.stop() == 0


@pytest.mark.parametrize("b, cause", [row[:2] for row in FAILURES], ids=IDS)
def test_h21_a_required_plugin_that_fails_ends_the_start(host, b, cause):
    """PLG-4: C is never loaded, A is taken down."""
    h = host(three(b, "no"), OPS, wait=None)
    assert h.wait() == 69
    assert any(line.get("error") == cause and line.get("plugin") == "b" for line in h.log)
    assert not h.find("loading plugin", plugin="c")
    assert books(h, "a")[0] == "clean"
    assert h.find("Py_FinalizeEx returned 0")


LAST_WORDS = "the process dies by a signal"


def died_of(h, number):
    """The host is to die of the signal: it leaves its socket, as any crashed process does."""
    h.ended_by_test = True
    status = h.process.wait(20 * SLOW)
    assert status == -number or SLOW > 1  # a sanitizer makes a report and a status of its own of it


def comes_up_again(host, first):
    """H30: the next start takes the stale socket over."""
    assert first.socket.exists()
    again = subprocess.Popen(first.command, env=first.environment(), cwd="/", stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        until(lambda: again.poll() is None and answers(first), 20, "the second start")
    finally:
        again.send_signal(signal.SIGTERM)
        assert again.wait(20 * SLOW) == 0
    assert not first.socket.exists()


def answers(h):
    try:
        return h.get("/readyz", timeout=2).status == 200
    except OSError:
        return False


def test_h21_an_open_that_aborts_is_the_last_that_the_log_tells(host):
    h = host("[plugin a]\nlibrary = t_count\n[plugin b]\nlibrary = bad_worker\nwedge = abort\n", wait=None)
    died_of(h, signal.SIGABRT)
    assert h.find("pool ready", pool="a")
    if SLOW == 1 or h.find(LAST_WORDS):
        last = h.log[-1]
        assert last["msg"] == LAST_WORDS and last["signal"] == "SIGABRT"
        assert last["pool"] == "b" and last["step"] == "open" and last["thread"] == "b/sup"


def test_a_crash_in_an_op_is_told_by_the_signal_and_the_next_start_works(host):
    h = host(f"[plugin bad]\nlibrary = bad_worker\n{APP}", OPS)
    try:
        h.call("op", pool="bad", name="crash")
    except (OSError, ValueError, CallError):
        pass  # there is nobody left to answer
    died_of(h, signal.SIGSEGV)
    if SLOW == 1:
        last = h.log[-1]
        assert last["msg"] == LAST_WORDS and last["signal"] == "SIGSEGV"
        assert last["pool"] == "bad" and last["op"] == "crash" and int(last["task"]) > 0
        assert last["thread"] in ("bad/0", "bad/1")
    comes_up_again(host, h)


# ---- workers that vanish, devices that are lost


def test_sup5_a_worker_that_ends_itself_fails_its_pool_and_no_other(host):
    h = host(f"[plugin count]\nlibrary = t_count\n[plugin bad]\nlibrary = bad_worker\nworkers = 2\n{APP}", OPS)
    lost = h.call("op", pool="bad", name="vanish")
    assert lost["code"] == "pool.thread-lost" and lost["facts"]["op"] == "vanish"
    until(lambda: h.pool("bad")["state"] == "failed", what="the pool's end")
    assert h.get("/livez").status == 200 and h.get("/readyz").status == 503
    assert h.call("op", pool="count", name="add", args=[40, 2]) == 42
    assert h.call("op", pool="bad", name="nop")["code"], "refused, with a reason"
    assert h.stop() == 0
    assert books(h, "bad")[1]["failed"] == 1


def test_h11_a_poisoned_plugin_closes_its_pool_with_the_cause(host):
    h = host(f"[plugin count]\nlibrary = t_count\n[plugin bad]\nlibrary = bad_worker\n{APP}", OPS)
    assert h.call("op", pool="bad", name="poison")["code"]
    until(lambda: h.pool("bad")["state"] == "failed", what="the pool's end")
    unready = h.get("/readyz")
    assert unready.status == 503 and "bad_worker.poisoned" in unready.text and "sticky error 700" in unready.text
    assert h.call("op", pool="count", name="add", args=[40, 2]) == 42
    assert h.stop() == 0
    state, numbers = books(h, "bad")
    assert state == "failed" and numbers["failed"] == 1
    assert h.find("pool ended with a cause", pool="bad", error="bad_worker.poisoned")


def test_h29_a_plugin_that_takes_sigterm_at_run_time_does_not_keep_it(host):
    h = host(f"[plugin bad]\nlibrary = bad_worker\n{APP}", OPS)
    assert h.call("op", pool="bad", name="take_signals") is None

    def ignored():
        status = Path(f"/proc/{h.process.pid}/status").read_text()
        mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
        return int(mask, 16) >> (signal.SIGTERM - 1) & 1

    until(lambda: not ignored(), 5, "SIGTERM being the host's again")
    assert h.stop() == 0


# ---- H22: work that never ceases


@pytest.mark.parametrize("workers", [1, 4])
def test_h22_native_submitters_that_never_cease_are_told_that_it_is_over(host, workers):
    """(c) with native ops: each submission after the close is refused, no task is half booked (SUP-4)."""
    h = host(
        f"[plugin count]\nlibrary = t_count\nworkers = {workers}\nqueue = 128\ndrain_timeout = 500ms\n{APP}",
        {
            "app.py": """
                import threading
                import bulkhead

                def submit(ends):
                    pool = bulkhead.pool("count")
                    while True:
                        try:
                            pool.nop()
                        except bulkhead.Overloaded:
                            pass
                        except bulkhead.Shutdown as error:
                            ends.append(error.code)
                            if len(ends) == 4:
                                print("told", *ends, flush=True)
                            return

                class App:
                    async def start(self, app):
                        ends = []
                        for _ in range(4):
                            threading.Thread(target=submit, args=(ends,)).start()
            """
        },
    )
    until(lambda: h.pool("count")["done"] > 500, what="some work")
    assert h.stop() == 0
    state, numbers = books(h, "count")
    assert state == "clean" and numbers["done"] > 500 and numbers["failed"] == numbers["abandoned"] == 0
    assert h.text.count("told ") == 1


# ---- H23: building a pool


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer's runtime does not go with a preloaded library")
@pytest.mark.parametrize("n", [1, 3, 8])
def test_h23_a_worker_that_cannot_be_created_fails_the_build(host, n):
    """(a), SUP-2: those that were made are stopped and joined."""
    shim = test_plugins().parent.parent / "shims" / ".libs" / "failthread.so"
    h = host("[plugin a]\nlibrary = t_count\n[plugin gpu]\nlibrary = t_device\nworkers = 8\n", wait=None,
             env={"LD_PRELOAD": str(shim), "FAILTHREAD": f"gpu/sup:{n}"})  # fmt: skip
    assert h.wait() == 69
    cause = h.find("plugin did not open", plugin="gpu")
    assert cause["error"] == "thread.create" and cause["step"] == "thread" and cause["errno"] == "EAGAIN"
    assert cause["thread"] == f"gpu/{n - 1}"
    devices = h.find("devices", component="gpu")
    assert devices["threads"] == str(n - 1) and devices["unequal"] == devices["strangers"] == "0"
    assert books(h, "a")[0] == "clean"


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer's runtime does not go with a preloaded library")
def test_h23_a_supervisor_that_cannot_be_created_fails_the_start(host):
    shim = test_plugins().parent.parent / "shims" / ".libs" / "failthread.so"
    h = host("[plugin a]\nlibrary = t_count\n[plugin b]\nlibrary = t_count\n", wait=None,
             env={"LD_PRELOAD": str(shim), "FAILTHREAD": "bh-control:2"})  # fmt: skip
    assert h.wait() == 69
    cause = h.find("plugin did not open", plugin="b")
    assert cause["error"] == "thread.create" and cause["errno"] == "EAGAIN" and cause["step"] == "supervisor"
    assert books(h, "a")[0] == "clean"


def test_h23_threads_of_long_labels_can_be_told_apart(host):
    """(b): at most 15 bytes, pool and worker apart, the whole label in the status."""
    labels = ["accelerator-of-the-first-board", "accelerator-of-the-second-board"]
    h = host("".join(f"[plugin {label}]\nlibrary = t_count\nworkers = 3\n" for label in labels))
    pools = {pool["label"]: pool["id"] for pool in h.get("/v1/pools").json["pools"]}
    assert set(pools) == set(labels)
    names = [name for name in h.threads().values() if name.startswith("acceler")]
    assert len(names) == len(set(names)) == 2 * 5, "three workers, one progress thread, one supervisor each"
    for number in pools.values():
        assert {f"accelera~{number}/{what}" for what in ("0", "1", "2", "p0", "sup")} <= set(names), names
    assert all(len(name) <= 15 for name in names)


@pytest.mark.parametrize("value", ["0", "-1", "1e3", "100000", "2.5", ""])
def test_h23_a_bad_number_of_workers_is_refused_with_the_key(host, value):
    """(c), MAN-1."""
    h = host(f"[plugin count]\nlibrary = t_count\nworkers = {value}\n", wait=None)
    assert h.wait() in (69, 78)
    told = next(line for line in h.text.splitlines() if "workers" in line and "accepted" in line)
    assert "count" in told and value in told


def test_h23_auto_is_what_the_process_may_use(host):
    one = min(os.sched_getaffinity(0))
    for cpus in ({one}, os.sched_getaffinity(0)):
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)
        try:
            h = host("[plugin count]\nlibrary = t_count\nworkers = auto\n")
        finally:
            os.sched_setaffinity(0, mine)
        if len(cpus) == 1:
            assert h.pool("count")["workers"] == 1
        assert h.pool("count")["workers"] <= len(cpus)
        assert h.stop() == 0


# ---- H24: a producer that is faster than the workers


def rss_kib(h):
    status = Path(f"/proc/{h.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


def test_h24_a_producer_without_end_meets_a_bound(host, report):
    """SUP-8, CP-1: the queue stops at its bound, memory is flat, health is quick, the books balance."""
    seconds = 4
    h = host(f"[plugin count]\nlibrary = t_count\nworkers = 1\nqueue = 64\ndrain_timeout = 2s\n{APP}", OPS)
    h.call("produce", seconds)
    until(lambda: h.pool("count")["refused"] > 100, what="refusals")
    before, worst, queued = rss_kib(h), 0.0, 0
    end = time.monotonic() + seconds - 1
    while time.monotonic() < end:
        at = time.monotonic()
        assert h.get("/livez").status == 200
        pool = h.pool("count")
        worst = max(worst, time.monotonic() - at)
        queued = max(queued, pool["queued"] + pool["running"])
    after = rss_kib(h)
    assert queued <= 64 + 1
    # A sanitizer keeps what is freed for a while.
    assert SLOW > 1 or after - before < 4096, f"memory went from {before} to {after} KiB"
    assert worst < 0.5 * SLOW
    producing, accepted, refused = until(lambda: (r := h.call("produced")) and not r[0] and r, what="the producer's end")
    pool = h.pool("count")
    assert pool["submitted"] == accepted and pool["refused"] == refused
    assert h.stop() == 0
    state, numbers = books(h, "count")
    assert state == "clean" and numbers["submitted"] == accepted
    report(f"H24: {accepted} accepted, {refused} refused in {seconds} s, two requests at worst {1000 * worst:.1f} ms, "
           f"memory {before} to {after} KiB")  # fmt: skip
