# SPDX-License-Identifier: BSD-3-Clause
"""Streams against each other: record, wait and synchronize."""

import pytest

MANIFEST = """
    [plugin stream]
    library = stream
    workers = 4
    [plugin count]
    library = t_count
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import asyncio
        import threading

        import bulkhead

        def fail():
            raise ValueError("at the root")

        class App:
            async def start(self, app):
                self.stream = bulkhead.pool("stream")
                self.a, self.b = self.stream.lane("a"), self.stream.lane("b")
                self.gate, self.seen = threading.Event(), []

            def see(self, what):
                self.seen.append(what)

            def hold(self):
                assert self.gate.wait(60)

            @bulkhead.endpoint
            async def ordered(self) -> list:
                held = self.a.run(self.hold)
                self.a.run(self.see, "a")
                waits = self.b.wait(self.a.record())
                last = self.b.run(self.see, "b")
                await self.stream.lane("c").run(self.see, "c")       # others go on
                before = [waits.done(), last.done()]
                self.gate.set()
                await asyncio.gather(held, waits, last)
                return [before, self.seen]

            @bulkhead.endpoint
            async def unordered(self) -> list:
                held = self.a.run(self.hold)
                event = self.a.record()
                await self.b.run(self.see, "b")                      # no wait: b is not held up
                self.gate.set()
                await asyncio.gather(held, event)
                return self.seen

            @bulkhead.endpoint
            async def events_of_failed_work(self) -> list:
                failed = self.a.run(fail)
                await self.b.wait(self.a.record())                   # order, not success
                try:
                    await failed
                except ValueError as error:
                    await self.b.wait(self.a.record())               # nor is it held against the stream later
                    await self.a.synchronize()
                    return [str(error), await self.b.run(int, "7")]

            @bulkhead.endpoint
            async def synchronized(self) -> list:
                held = self.a.run(self.hold)
                self.a.run(self.see, "a")
                done = self.a.synchronize()
                done.add_done_callback(lambda task: self.see("synchronized"))
                await self.b.synchronize()                           # of what is in b: nothing
                before = [done.done(), self.seen[:]]
                self.gate.set()
                await asyncio.gather(held, done)
                await asyncio.sleep(0)
                return [before, self.seen]

            @bulkhead.endpoint
            async def every_event_counts(self, last: int) -> list:
                lanes = [self.stream.lane(f"e{i}") for i in range(3)]
                held = lanes[last].run(self.hold)
                waits = self.b.wait(*(lane.record() for lane in lanes))
                await asyncio.gather(*(lane.synchronize() for lane in lanes if lane is not lanes[last]))
                before = waits.done()
                self.gate.set()
                await asyncio.gather(held, waits)
                return [before]

            @bulkhead.endpoint
            async def never(self) -> list:
                held, said = self.a.run(self.hold), []
                event = self.a.record()
                waits, last = self.b.wait(event), self.b.run(self.see, "b")
                event.cancel()
                for task in (waits, self.b.wait(self.a.run(fail), timeout=30) if self.gate.set() is None else None):
                    try:
                        await task
                    except bulkhead.DependentError as error:
                        said.append([error.facts["root_op"], type(error.__cause__).__name__])
                await asyncio.gather(held, last)
                return said + [self.seen]

            @bulkhead.endpoint
            async def too_late(self) -> list:
                held = self.a.run(self.hold)
                try:
                    await self.b.wait(self.a.record(), timeout=0.1)
                except bulkhead.Deadline as error:
                    said = error.code
                await self.b.run(self.see, "b")
                self.gate.set()
                await held
                return [said, self.seen]

            @bulkhead.endpoint
            async def many(self, rounds: int) -> bool:
                lanes = [self.stream.lane(f"m{i}") for i in range(4)]
                for i in range(rounds):
                    lane = lanes[i % 4]
                    lane.wait(lanes[(i - 1) % 4].record(), wait=True)
                    lane.run(self.see, i, wait=True)
                    if i % 50 == 49:
                        await asyncio.gather(*(lane.synchronize() for lane in lanes))
                await asyncio.gather(*(lane.synchronize() for lane in lanes))
                return self.seen == list(range(rounds))

            @bulkhead.endpoint
            async def another_pools(self) -> list:
                naps = bulkhead.pool("count").sleep(200)
                await self.b.wait(naps, self.a.record())
                return [naps.outcome]
    """
}


@pytest.mark.parametrize("what, answer", [
    ("ordered", [[False, False], ["c", "a", "b"]]),
    ("unordered", ["b"]),
    ("events_of_failed_work", ["at the root", 7]),
    ("synchronized", [[False, []], ["a", "synchronized"]]),
    ("never", [["record", "Cancelled"], ["run", "ValueError"], ["b"]]),
    ("too_late", ["task.deadline", ["b"]]),
    ("another_pools", ["done"]),
])  # fmt: skip
def test_streams_are_ordered_by_events(host, what, answer):
    h = host(MANIFEST, APP)
    assert h.call(what, timeout=60) == answer


@pytest.mark.parametrize("last", [0, 1, 2])
def test_each_of_several_events_is_waited_for(host, last):
    assert host(MANIFEST, APP).call("every_event_counts", last, timeout=60) == [False]


def test_a_ring_of_streams_that_wait_for_the_one_before_runs_in_order(host):
    h = host(MANIFEST.replace("library = stream", "library = stream\n    queue = 4096"), APP)
    assert h.call("many", 400, timeout=120) is True
