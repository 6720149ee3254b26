# SPDX-License-Identifier: BSD-3-Clause
"""Tasks as arguments of tasks: values of every type, poison, and every end, as an app sees them."""

from conftest import SLOW

POOLS = """
[plugin count]
library = t_count
workers = 2
[plugin types]
library = t_types
[plugin stream]
library = stream
[plugin hold]
library = t_hold
[app app]
object = app:App
"""

APP = {
    "app.py": """
        import array
        import asyncio
        import gc
        import threading
        import time
        import weakref
        import bulkhead

        async def raises(kind, awaitable):
            try:
                await awaitable
            except kind as error:
                return error
            raise AssertionError(f"{kind.__name__} was not raised")

        class Gate:
            def __init__(self):
                self.event = threading.Event()

            def __call__(self, value=None):
                assert self.event.wait(60)
                return value

        class Thing:
            pass

        class App:
            async def start(self, app):
                self.count, self.types = bulkhead.pool("count"), bulkhead.pool("types")
                self.stream, self.hold = bulkhead.pool("stream"), bulkhead.pool("hold")

            @bulkhead.endpoint
            async def values(self):
                count = self.count
                for value in ("", "grüß dich", "x" * 100_000):
                    first = count.echo(value)
                    assert await count.echo(count.echo(first)) == value and await first == value
                for value in (True, False):
                    assert await count.echo_bool(count.echo_bool(value)) is value
                for value in (-1, 2**63 - 1):
                    assert await count.echo_int(count.echo_int(value)) == value
                assert await count.echo_float(count.echo_float(0.5)) == 0.5
                assert await count.echo_float(count.echo_int(3)) == 3.0
                assert await count.echo_handle(count.echo_handle(2**64 - 1)) == 2**64 - 1
                assert await count.echo_int(count.echo_handle(7)) == 7
                assert await count.echo_bytes(count.echo_bytes(b"a\\0b")) == b"a\\0b"
                marker = Thing()
                assert await count.echo_object(count.echo_object(marker)) is marker
                numbers = array.array("f", [1, 2])
                first = count.echo_buffer(numbers)
                assert await count.echo_buffer(first) is numbers and await first is numbers
                assert await count.add(count.add(1, 2), b=count.add(3, 4)) == 10
                assert await count.add(*[count.add(1, 1)] * 2) == 4
                return "ok"

            @bulkhead.endpoint
            async def lists(self):
                count, types = self.count, self.types
                assert await count.echo_list(1, count.add(1, 1), 3) == [1, 2, 3]
                mixed = [count.nop(), count.echo_bool(True), count.echo_int(5), 0.5, count.echo("s"),
                         count.echo_bytes(b"b"), count.echo_buffer(array.array("f")), count.echo_list(1), [1],
                         count.echo_object(Thing())]
                assert await types.kinds(mixed) == [0, 1, 2, 3, 4, 5, 6, 7, 7, 9]
                assert await types.kinds(tuple(mixed)) == [0, 1, 2, 3, 4, 5, 6, 7, 7, 9]
                assert await types.kinds(count.echo_list(1, 2)) == [2, 2]
                assert [await task for task in mixed[1:3]] == [True, 5]
                return "ok"

            @bulkhead.endpoint
            async def callables(self):
                stream, count = self.stream, self.count
                thing = Thing()
                assert await stream.run(lambda x: x, stream.run(lambda: thing)) is thing
                assert await stream.run(lambda *a: list(a), count.add(1, 2), count.echo("s"), count.nop(),
                                        count.echo_bytes(b"b"), count.echo_list(1, 2), count.echo_bool(True)) \\
                    == [3, "s", None, b"b", [1, 2], True]
                numbers = array.array("f", [1, 2])
                assert await stream.run(lambda x: x, count.echo_buffer(numbers)) is numbers
                # What a task returns may be called in turn; another pool's is as good.
                assert await stream.run(self.hold.call(lambda: sum), [1, 2]) == 3
                # Made from a native value, and not needed by anybody.
                assert await stream.run(lambda: 1) == 1
                assert await count.echo_object(count.echo("s")) == "s"
                total = stream.run(sum, [1, 2, 3])
                assert await stream.run(lambda a, b: a + b, total, total) == 12
                # A chain, submitted at once.
                task = stream.run(lambda: 0)
                for _ in range(200):
                    task = stream.run(lambda x: x + 1, task)
                assert await task == 200
                return "ok"

            @bulkhead.endpoint
            async def native_takes_what_python_made(self):
                stream = self.stream
                vector = stream.run(lambda: array.array("f", [1, 2, 3]))
                assert await stream.dot(vector, vector) == 14.0
                assert await self.count.add(stream.run(lambda: 2), 3) == 5
                assert await self.count.echo(stream.run(lambda: "s")) == "s"
                error = await raises(bulkhead.BadArgument, self.count.echo(stream.run(lambda: 5)))
                assert error.code == "task.argument" and error.facts["given"] == "int", error
                error = await raises(bulkhead.BadArgument, self.types.fill(stream.run(lambda: b"abc"), 1))
                assert error.facts["given"] == "bytes" and error.facts["accepted"] == "writable buffer", error
                assert await self.types.presets(f=stream.run(lambda: None)) == [3, "word", 1.5, True, 0, 0]
                target = bytearray(3)
                await self.types.fill(stream.run(lambda: target), 7)
                assert target == b"\\x07" * 3, target
                return "ok"

            @bulkhead.endpoint
            async def seen(self):
                # One that has been awaited is its value, checked like any.
                count = self.count
                task = count.add(1, 2)
                assert await task == 3
                assert await count.add(task, 1) == 4 and await task == 3
                try:
                    count.echo(task)
                except bulkhead.BadArgument as error:
                    assert error.facts["given"] == "int", error
                else:
                    raise AssertionError
                return "ok"

            @bulkhead.endpoint
            async def mismatch(self):
                count = self.count
                first = count.add(1, 2)
                error = await raises(bulkhead.BadArgument, count.echo(value=first))
                wanted = {"pool": "count", "op": "echo", "parameter": "value", "given": "int", "accepted": "str",
                          "from_pool": "count", "from_op": "add", "from_task": str(first.id)}
                assert error.code == "task.argument" and wanted.items() <= error.facts.items(), error
                error = await raises(bulkhead.BadArgument, count.echo_list(1, count.echo("s")))
                assert error.facts["given"] == "str" and error.facts["accepted"] == "int", error
                error = await raises(bulkhead.BadArgument, count.echo(count.nop()))
                assert error.facts["given"] == "none", error
                error = await raises(bulkhead.BadArgument, self.types.fill(count.echo_buffer(b"abc"), 1))
                assert error.facts["given"] == "read-only buffer", error
                assert error.facts["accepted"] == "writable buffer", error
                error = await raises(bulkhead.BadArgument, count.echo_handle(count.echo_int(-1)))
                assert error.facts["given"] == "int", error
                return "ok"

            @bulkhead.endpoint
            async def poison(self):
                count, stream = self.count, self.stream
                root = count.fail()
                last = stream.run(print, stream.run(print, root))
                error = await raises(bulkhead.DependentError, last)
                facts = error.facts
                assert error.code == "task.dependent" and last.outcome == "failed", error
                assert (facts["root_pool"], facts["root_op"]) == ("count", "fail") and facts["root_task"] == str(root.id)
                assert facts["after_op"] == "run" and facts["task"] == str(last.id), error
                plain = await raises(bulkhead.PluginError, root)
                assert type(error.__cause__) is type(plain) and error.__cause__.facts == plain.facts, error.__cause__
                assert facts["root_code"] == plain.code
                # A Python exception is the very object, traceback and all.
                boom = ValueError("boom")
                def explode():
                    raise boom
                root = stream.run(explode)
                middle = count.echo_object(root)
                error = await raises(bulkhead.DependentError, stream.run(print, middle))
                assert error.__cause__ is boom and error.__cause__.__traceback__ is not None
                assert await raises(ValueError, root) is boom
                assert (await raises(bulkhead.DependentError, middle)).__cause__ is boom
                # One that was awaited and failed still poisons, with the same.
                error = await raises(bulkhead.DependentError, stream.run(print, root))
                assert error.__cause__ is boom and "after_op" not in error.facts, error
                error = await raises(bulkhead.DependentError, stream.run(print, middle))
                assert error.__cause__ is boom and error.facts["root_op"] == "run", error
                # What must not be raised here comes wrapped, as it would from the root.
                def leave():
                    raise SystemExit(3)
                error = await raises(bulkhead.DependentError, stream.run(print, stream.run(leave)))
                assert type(error.__cause__) is bulkhead.PluginError
                assert type(error.__cause__.__cause__) is SystemExit
                return "ok"

            @bulkhead.endpoint
            async def other_ends(self):
                count, stream = self.count, self.stream
                root = count.pend(60_000)
                blocked = count.add(stream.run(lambda: 1), 1)
                after = [stream.run(print, root), count.echo_object(root)]
                assert root.cancel()
                for task in after:
                    error = await raises(bulkhead.DependentError, task)
                    assert type(error.__cause__) is bulkhead.Cancelled, error.__cause__
                    assert error.facts["root_outcome"] == "cancelled"
                root = count.pend(60_000, timeout=0.01)
                error = await raises(bulkhead.DependentError, stream.run(print, root))
                assert type(error.__cause__) is bulkhead.Deadline
                root = count.pend(60_000)
                late = stream.run(print, root, timeout=0.01)
                await raises(bulkhead.Deadline, late)
                cancelled = stream.run(print, root)
                assert cancelled.cancel()
                await raises(bulkhead.Cancelled, cancelled)
                try:
                    await asyncio.wait_for(stream.run(print, root), 0.01)
                except asyncio.TimeoutError:
                    pass
                root.cancel()
                await raises(bulkhead.Cancelled, root)
                try:
                    await blocked
                except bulkhead.BadArgument:
                    pass
                return "ok"

            @bulkhead.endpoint
            async def cancel_of_a_queued_root(self):
                # Under the GIL a cancellation may not wait for the pools of those that come after.
                gate = Gate()
                holds = [self.hold.call(gate) for _ in range(self.hold.workers)]
                root = self.hold.call(print)
                after = [self.stream.run(print, root) for _ in range(50)]
                assert root.cancel()
                for task in after:
                    assert type((await raises(bulkhead.DependentError, task)).__cause__) is bulkhead.Cancelled
                gate.event.set()
                await asyncio.gather(*holds)
                return "ok"

            @bulkhead.endpoint
            async def lanes_and_threads(self):
                stream = self.stream
                lane, other = stream.lane("a"), stream.lane("b")
                gate, seen = Gate(), []
                root = stream.run(gate, 1)
                tasks = [lane.run(seen.append, root), lane.run(seen.append, 2), lane.run(seen.append, 3)]
                await other.run(seen.append, 0)
                gate.event.set()
                await asyncio.gather(*tasks)
                assert seen == [0, 1, 2, 3], seen
                # A worker waits for a chain on its own pool.
                def inside():
                    first = stream.run(lambda: 1)
                    return stream.run(lambda x: x + 1, stream.run(lambda x: x + 1, first)).result(60)
                assert await asyncio.gather(*[stream.run(inside) for _ in range(10)]) == [3] * 10
                def on_lane():
                    behind = lane.run(lambda: 1)
                    try:
                        stream.run(lambda x: x, behind).result(60)
                    except bulkhead.BulkheadError as error:
                        return error.code
                assert await lane.run(on_lane) == "task.deadlock"
                return "ok"

            @bulkhead.endpoint
            async def room(self):
                stream = self.stream
                gate = Gate()
                tasks = [stream.run(gate) for _ in range(stream.workers)]
                waiting = None
                while waiting is None:
                    task = stream.run(int, wait=True)
                    tasks.append(task)
                    waiting = None if task._accepted else task
                try:
                    self.count.echo_object(waiting)
                except bulkhead.BadArgument as error:
                    assert "await this one first" in error.facts["accepted"], error
                else:
                    raise AssertionError
                gate.event.set()
                await asyncio.gather(*tasks)
                return "ok"

            @bulkhead.endpoint
            async def memory(self):
                # A result goes when the last who may read it is through, and cycles are collected.
                stream = self.stream
                class Cycle:
                    pass
                def make():
                    return Cycle()
                def fail():
                    raise ValueError
                async def use():
                    task = stream.run(make)
                    after = stream.run(lambda x: x, task)
                    thing = await task
                    assert await after is thing
                    thing.task = task
                    thing.after = after
                    error = await raises(bulkhead.DependentError, stream.run(print, stream.run(fail)))
                    error.__cause__.error = error
                    return weakref.ref(thing)
                seen = await use()
                until = time.monotonic() + 20
                while seen() is not None and time.monotonic() < until:
                    gc.collect()
                    await asyncio.sleep(0.01)
                assert seen() is None
                return "ok"

            @bulkhead.endpoint
            async def many(self):
                # 10 000 pairs after the first thousand: nothing of them stays.
                def resident():
                    with open("/proc/self/statm") as file:
                        return int(file.read().split()[1]) * 4096
                async def pairs(n):
                    for _ in range(n // 100):
                        firsts = [self.count.echo("x" * 10_000) for _ in range(100)]
                        await asyncio.gather(*[self.count.echo(first) for first in firsts])
                await pairs(1000)
                before = resident()
                await pairs(10_000)
                grown = resident() - before
                assert grown < 32 << 20, grown  # 200 MB of text went through
                return "ok"

            @bulkhead.endpoint
            async def unseen(self):
                def fail(text):
                    raise ValueError(text)
                # Nobody asks for any of them: said once, by the one that is last.
                self.stream.run(print, self.stream.run(print, self.stream.run(fail, "nobody asked")))
                # Somebody asks for the last: not said at all.
                await raises(bulkhead.DependentError, self.stream.run(print, self.stream.run(fail, "was asked")))
                # Two come after it, and nobody asks.
                root = self.stream.run(fail, "twice used")
                self.stream.run(print, root)
                self.stream.run(print, root)
                del root
                await self.stream.lane("x").run(int)
                for _ in range(20):
                    await asyncio.sleep(0.01)
                return "ok"

            @bulkhead.endpoint
            async def leave_blocked(self):
                self.kept = self.count.lost()
                self.blocked = [self.stream.run(print, self.kept) for _ in range(20)]
                return len(self.blocked)

            async def stop(self):
                if hasattr(self, "blocked"):
                    asyncio.get_running_loop().create_task(self.tell())

            async def tell(self):
                results = await asyncio.gather(*self.blocked, return_exceptions=True)
                print("blocked:", sorted({type(result).__name__ for result in results}), len(results))
    """
}

CHECKS = [
    "values",
    "lists",
    "callables",
    "native_takes_what_python_made",
    "seen",
    "mismatch",
    "poison",
    "other_ends",
    "cancel_of_a_queued_root",
    "lanes_and_threads",
    "room",
    "memory",
    "many",
]


def test_a_task_is_an_argument(host):
    h = host(POOLS, APP)
    for check in CHECKS:
        if check == "many" and SLOW > 1:
            continue  # a sanitizer keeps freed memory, and looks for leaks itself
        assert h.call(check, timeout=120) == "ok", check
    assert h.stop() == 0
    assert not any("exception was never retrieved" in str(line) and "boom" in str(line) for line in h.log)


def test_a_failure_that_nobody_asked_for_is_told_once(host):
    h = host(POOLS, APP)
    assert h.call("unseen", timeout=60) == "ok"
    assert h.stop() == 0
    told = [str(line) for line in h.log if "exception was never retrieved" in str(line)]
    assert sum("ValueError" in line for line in told) == 2, told
    assert not any("was asked" in line for line in told)


def test_sup4_blocked_tasks_end_with_the_host(host):
    h = host(POOLS, APP, args=["--set", "host.shutdown_timeout=8s"])
    assert h.call("leave_blocked", timeout=60) == 20
    h.stop()
    told = [str(line) for line in h.log if "blocked:" in str(line)]
    assert len(told) == 1 and "20" in told[0], h.log[-30:]
