# SPDX-License-Identifier: BSD-3-Clause
"""Work from Python through a pool of a real plugin, and the account of it."""

import os
import re
from pathlib import Path

import pytest
from conftest import CallError, stage, until

MANIFEST = """
    [plugin count]
    library = t_count
    workers = 1
    queue = 4
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import asyncio
        import time
        import bulkhead

        class App:
            async def start(self, app):
                self.pool = bulkhead.pool("count")

            @bulkhead.endpoint
            async def add(self, a: int, b: int) -> int:
                return await self.pool.add(a, b)

            @bulkhead.endpoint
            async def pend(self, ms: int) -> float:
                began = time.monotonic()
                await self.pool.pend(ms)
                return time.monotonic() - began

            @bulkhead.endpoint
            async def fail(self) -> dict:
                try:
                    await self.pool.fail()
                except bulkhead.PluginError as error:
                    return {"code": error.code, "facts": error.facts, "text": str(error)}

            @bulkhead.endpoint
            async def unhandled(self) -> None:
                await self.pool.fail()

            @bulkhead.endpoint
            async def cancel_queued(self) -> list:
                busy = self.pool.sleep(400)
                queued = self.pool.sleep(60000)
                await asyncio.sleep(0.1)
                queued.cancel()
                began = time.monotonic()
                try:
                    await queued
                    end = "done"
                except (bulkhead.Cancelled, asyncio.CancelledError) as error:
                    end = type(error).__name__
                took = time.monotonic() - began
                await busy
                return [end, took]

            @bulkhead.endpoint
            async def cancel_pending(self) -> str:
                pending = self.pool.pend(60000)
                await asyncio.sleep(0.1)
                pending.cancel()
                try:
                    await pending
                except (bulkhead.Cancelled, asyncio.CancelledError) as error:
                    return type(error).__name__

            @bulkhead.endpoint
            async def deadline(self) -> list:
                busy = self.pool.sleep(700)
                began = time.monotonic()
                try:
                    await self.pool.sleep(1, timeout=0.1)
                    end = "done"
                except bulkhead.Deadline as error:
                    end = error.code
                took = time.monotonic() - began
                await busy
                return [end, took]

            @bulkhead.endpoint
            async def overload(self) -> dict:
                running = [self.pool.sleep(300)]
                try:
                    while len(running) < 20:
                        running.append(self.pool.sleep(1))
                    result = None
                except bulkhead.Overloaded as error:
                    result = {"code": error.code, "facts": error.facts, "accepted": len(running)}
                await asyncio.gather(*running)
                return result

            @bulkhead.endpoint
            async def unhandled_overload(self) -> None:
                running = [self.pool.sleep(200)]
                try:
                    while True:
                        running.append(self.pool.sleep(1))
                finally:
                    await asyncio.gather(*running)

            @bulkhead.endpoint
            async def wait_for_room(self, n: int) -> int:
                async def one():
                    await self.pool.sleep(1, wait=True)
                    return 1
                return sum(await asyncio.gather(*[one() for _ in range(n)]))

            @bulkhead.endpoint
            async def lanes(self) -> list:
                a, b = self.pool.lane("a"), self.pool.lane("b")
                await asyncio.gather(*[lane.note(f"{name}{i}", wait=True)
                                       for i in range(6) for name, lane in (("a", a), ("b", b))])
                return await self.pool.notes()

            @bulkhead.endpoint
            async def twice(self) -> None:
                await self.pool.twice()

            @bulkhead.endpoint
            async def wrong_type(self) -> str:
                try:
                    await self.pool.add(1, "two")
                except TypeError as error:
                    return str(error)

            @bulkhead.endpoint
            async def unknown_pool(self) -> str:
                try:
                    bulkhead.pool("cuont")
                except Exception as error:
                    return str(error)

            @bulkhead.endpoint
            async def unknown_op(self) -> str:
                try:
                    self.pool.adds(1, 2)
                except AttributeError as error:
                    return str(error)

            @bulkhead.endpoint
            async def from_a_thread(self) -> int:
                return await asyncio.to_thread(lambda: self.pool.add(20, 22).result(10))
    """
}


def balanced(h, label="count"):
    """SUP-4: the books of an idle pool add up."""

    def idle():
        pool = h.pool(label)
        return pool if not (pool["queued"] or pool["running"] or pool["pending"] or pool["in_transit"]) else None

    pool = until(idle, what="an idle pool")
    assert pool["submitted"] == sum(pool[k] for k in ("done", "failed", "cancelled", "deadline", "abandoned"))
    return pool


def test_a_native_op_answers(host):
    h = host(MANIFEST, APP)
    assert h.call("add", 2, 40) == 42
    assert h.call("add", a=-1, b=2**40) == 2**40 - 1
    assert h.call("from_a_thread") == 42
    assert balanced(h)["done"] == 3


def test_a_pending_op_is_completed_by_another_thread_and_keeps_no_worker(host):
    h = host(MANIFEST, APP)
    assert h.call("pend", 200) >= 0.19
    assert balanced(h)["done"] == 1


def test_a_failing_op_brings_its_code_and_facts(host):
    h = host(MANIFEST, APP)
    error = h.call("fail")
    assert error["code"] and error["facts"]
    with pytest.raises(CallError) as raised:
        h.call("unhandled")
    assert raised.value.status == 500
    assert balanced(h)["failed"] == 2


def test_sup3_a_queued_task_is_cancelled_at_once(host):
    h = host(MANIFEST, APP)
    end, took = h.call("cancel_queued")
    assert end in ("Cancelled", "CancelledError")
    assert took < 0.25
    assert balanced(h)["cancelled"] == 1


def test_a_pending_task_is_cancelled_by_its_plugin(host):
    h = host(MANIFEST, APP)
    assert h.call("cancel_pending") in ("Cancelled", "CancelledError")
    assert balanced(h)["cancelled"] == 1


def test_a_deadline_passes_while_the_task_is_queued(host):
    h = host(MANIFEST, APP)
    end, took = h.call("deadline")
    assert "deadline" in end and took < 0.6
    assert balanced(h)["deadline"] == 1


def test_sup8_a_full_pool_refuses_at_once_and_says_how_full(host):
    h = host(MANIFEST, APP)
    refused = h.call("overload")
    assert refused["accepted"] <= 5
    assert refused["facts"]["queue"] in (4, "4")
    assert balanced(h)["refused"] == 1
    with pytest.raises(CallError) as raised:
        h.call("unhandled_overload")
    assert raised.value.status == 429


def test_sup8_a_caller_may_wait_for_room(host):
    h = host(MANIFEST, APP)
    assert h.call("wait_for_room", 50) == 50
    assert balanced(h)["done"] == 50


def test_tasks_of_a_lane_run_in_order(host):
    h = host(MANIFEST, APP, args=["--set", "plugin count.workers=3", "--set", "plugin count.queue=64"])
    notes = h.call("lanes")
    assert [n for n in notes if n.startswith("a")] == [f"a{i}" for i in range(6)]
    assert [n for n in notes if n.startswith("b")] == [f"b{i}" for i in range(6)]


def test_sup4_a_task_that_is_completed_twice_counts_once_and_is_logged(host):
    h = host(MANIFEST, APP)
    h.call("twice")
    pool = balanced(h)
    assert pool["submitted"] == 1 and pool["done"] == 1
    assert any("twice" in str(line) and line.get("level") in ("warning", "error") for line in h.log)


@pytest.mark.parametrize(
    "endpoint, words",
    [
        ("wrong_type", ["count", "add", "b", "str", "int"]),
        ("unknown_pool", ["cuont", "count"]),
        ("unknown_op", ["count", "adds", "add"]),
    ],
)
def test_a_wrong_use_is_told_with_what_would_be_right(host, endpoint, words):
    h = host(MANIFEST, APP)
    text = h.call(endpoint)
    assert text and all(word in text for word in words), text


def test_many_calls_at_once_balance(host):
    """SUP-4 over a mix, through the socket."""
    h = host(MANIFEST, APP, args=["--set", "plugin count.workers=3", "--set", "plugin count.queue=1024"])
    for i in range(40):
        assert h.call("add", i, i) == 2 * i
    with pytest.raises(CallError):
        h.call("unhandled")
    pool = balanced(h)
    assert (pool["done"], pool["failed"]) == (40, 1)


PLACED = """
    [plugin placed]
    library = t_count
    workers = 2
    progress_threads = 1
    cpus = {cpus}
    nice = {nice}
"""


def test_cpus_and_nice_reach_every_thread_of_the_pool_and_no_other(host):
    cpu = max(os.sched_getaffinity(0))
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    nice = min(mine + 3, 19)
    h = host(PLACED.format(cpus=cpu, nice=nice))
    seen = {}
    for tid, name in h.threads().items():
        task = Path(f"/proc/{h.process.pid}/task/{tid}")
        allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", (task / "status").read_text(), re.M).group(1)
        seen[name] = (allowed, int((task / "stat").read_text().rpartition(")")[2].split()[16]))
    for name in ("placed/0", "placed/1", "placed/p0"):
        assert seen.pop(name) == (str(cpu), nice)
    del seen["bh-control"]  # is more eager, where it may be
    assert seen == {name: (seen["bulkheadd"][0], mine) for name in seen}
    if len(os.sched_getaffinity(0)) > 1:
        assert str(cpu) not in {allowed for allowed, _ in seen.values()}


def test_a_pool_is_no_more_eager_than_the_process(host):
    h = host("[plugin plain]\nlibrary = t_count\nworkers = 1\nprogress_threads = 1\n")
    nice = {name: os.getpriority(os.PRIO_PROCESS, tid) for tid, name in h.threads().items()}
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert [nice[name] for name in ("plain/sup", "plain/0", "plain/p0")] == [mine] * 3


def test_cpus_that_the_host_may_not_use_end_the_start(host):
    h = host(PLACED.format(cpus="0-8191", nice=0 if os.getpriority(os.PRIO_PROCESS, 0) <= 0 else 19), wait=None)
    assert h.wait() == 78
    line = next(line for line in h.log if line.get("error") == "option.cpus")
    assert line["cpus"] == "0-8191" and line["missing"].endswith("-8191") and line["accepted"]


def test_a_nice_value_that_is_not_permitted_ends_the_start(host, tmp_path):
    # The host without its privilege: root keeps everything else, others never had it.
    drop = "setpriv --bounding-set=-sys_nice " if os.geteuid() == 0 else ""
    wrapper = tmp_path / "without-sys-nice"
    wrapper.write_text(f'#!/bin/sh\nexec prlimit --nice=0:0 {drop}{stage()}/sbin/bulkheadd "$@"\n')
    wrapper.chmod(0o755)
    h = host(PLACED.format(cpus=max(os.sched_getaffinity(0)), nice=-20), wait=None, binary=wrapper)
    assert h.wait() == 69
    line = next(line for line in h.log if line.get("error") == "pool.nice")
    assert line["nice"] == "-20" and line["RLIMIT_NICE"] == "0" and "CAP_SYS_NICE" in line["hint"]
    assert line["thread"].startswith("placed/")
