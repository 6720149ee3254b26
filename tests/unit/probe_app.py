# SPDX-License-Identifier: BSD-3-Clause
"""The app that test_python.c loads: each endpoint is one check, made from within; "ok" when it holds."""

import array
import asyncio
import contextvars
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref
from typing import Literal, Optional

import bulkhead

request_id = contextvars.ContextVar("request_id", default="none")
local = threading.local()


def raises(kind, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def raises_async(kind, awaitable):
    try:
        await awaitable
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


async def until(condition):
    """Waits for what another thread brings about; the conductor's deadline stands behind it."""
    while not condition():
        await asyncio.sleep(0.002)


class Probe:
    async def start(self, app):
        assert app.name == "probe", app
        assert app.options == {"greeting": "hello there"}, app.options
        self.main = threading.get_ident()
        self.count = bulkhead.pool("count")
        self.hold = bulkhead.pool("hold")
        self.types = bulkhead.pool("types")
        self.kept = []
        self.told = []
        self.release = asyncio.Event()

    @bulkhead.endpoint
    def identity(self):
        assert threading.get_ident() == self.main
        assert sys.argv == ["bulkheadd"], sys.argv
        assert sys.flags.isolated and sys.flags.utf8_mode and not sys.flags.safe_path - 1
        assert sys.getfilesystemencoding() == "utf-8"
        assert sys.stdout is sys.__stdout__ and sys.stdout.fileno() == 1 and not sys.stdout.isatty()
        assert sys.dont_write_bytecode
        assert os.path.exists(sys.executable), sys.executable
        assert subprocess.run([sys.executable, "-c", "import sys; print(sys.version)"], capture_output=True,
                              text=True, check=True).stdout.strip() == sys.version
        return "ok"

    @bulkhead.endpoint
    async def typed(self, query: str, k: int = 5, weight: float = 1.0, tags: Optional[list[str]] = None,
                    mode: Literal["fast", "slow"] = "fast", more: dict[str, int] | None = None):
        return [query, k, weight, tags, mode, more]

    @bulkhead.endpoint
    async def rest(self, *numbers: int, **named: str):
        return [list(numbers), named]

    @bulkhead.endpoint
    async def raise_value_error(self):
        raise ValueError("no good: äöü")

    @bulkhead.endpoint
    async def unspeakable(self):
        return object()

    @bulkhead.endpoint
    async def refuse(self, kind: str):
        raise getattr(bulkhead, kind)("test." + kind.lower(), {"why": "asked to"})

    # -- values

    @bulkhead.endpoint
    async def round_trips(self):
        count = self.count
        assert await count.nop() is None
        for value in ("", "grüß dich\0!", "x" * 100_000):
            assert await count.echo(value) == value
        for value in (True, False):
            assert await count.echo_bool(value) is value
        for value in (0, -1, 2**63 - 1, -(2**63)):
            assert await count.echo_int(value) == value
        for value in (0.5, float("inf"), 3):
            assert await count.echo_float(value) == value
        for value in (b"", b"a\0b", bytearray(b"abc"), memoryview(b"xyz")):
            assert await count.echo_bytes(value) == bytes(value)
        for value in (0, 2**64 - 1):
            assert await count.echo_handle(value) == value
        marker = object()
        assert await count.echo_object(marker) is marker
        assert await count.echo_object(None) is None
        numbers = array.array("f", [1, 2])
        assert await count.echo_buffer(numbers) is numbers
        assert await count.echo_list(1, 2, 3) == [1, 2, 3]
        assert await count.echo_list() == []
        assert await count.add(2, 5) == 7 and await count.add(b=1, a=2) == 3
        types = self.types
        assert await types.presets() == [3, "word", 1.5, True, 0, 0]
        assert await types.presets(d=False, a=-1) == [-1, "word", 1.5, False, 0, 0]
        assert await types.presets(1, "x", 2, True, "y", b"z") == [1, "x", 2.0, True, 4, 6]
        assert await types.presets(e=None, f=None) == [3, "word", 1.5, True, 0, 0]
        assert types.label == "types" and await types.ops["label"](self=40) == 40
        mixed = [None, True, 5, 0.5, "s", b"b", array.array("f"), [1, [2]], (), object()]
        assert await types.kinds(mixed) == [0, 1, 2, 3, 4, 5, 6, 7, 7, 9]
        assert await types.kinds(()) == []
        return "ok"

    @bulkhead.endpoint
    async def bad_arguments(self):
        count = self.count
        for call, parameter, given in (
            (lambda: count.add("x"), "a", "str"),
            (lambda: count.add(True), "a", "bool"),
            (lambda: count.add(2**63), "a", "int"),
            (lambda: count.add(1, b=None), "b", "None"),
            (lambda: count.add(1), "b", "nothing"),
            (lambda: count.add(1, a=1), "a", "a positional and a named value"),
            (lambda: count.add(1, c=1), "c", "a name that it does not have"),
            (lambda: count.add(1, 2, 3), None, "3 positional arguments"),
            (lambda: count.echo(b"x"), "value", "bytes"),
            (lambda: count.echo("\udc80"), "value", "str"),
            (lambda: count.echo_bool(1), "value", "int"),
            (lambda: count.echo_float("1.5"), "value", "str"),
            (lambda: count.echo_float(array.array("f", [1])), "value", "array.array"),
            (lambda: count.echo_bytes("x"), "value", "str"),
            (lambda: count.echo_handle(-1), "value", "int"),
            (lambda: count.echo_buffer("x"), "value", "str"),
            (lambda: count.echo_buffer(memoryview(bytes(8))[::2]), "value", "memoryview"),
            (lambda: count.echo_list(1, "2"), "value[1]", "str"),
        ):
            error = raises(bulkhead.BadArgument, call)
            assert isinstance(error, TypeError) and error.code == "op.argument", error
            assert error.facts["pool"] == "count" and error.facts["op"] in count.ops, error
            assert error.facts.get("parameter") == parameter, error
            assert error.facts["given"] == given and error.facts["accepted"], error
        loop = []
        loop.append(loop)
        assert "nested deeper" in raises(bulkhead.BadArgument, self.types.kinds, loop).facts["reason"]
        assert raises(bulkhead.BadArgument, self.types.kinds, {1, 2}).facts["given"] == "set"
        assert "surrogates" in raises(bulkhead.BadArgument, count.echo, "\udc80").facts["reason"]
        raises(ValueError, count.nop, timeout=-1)
        raises(ValueError, count.nop, timeout=float("nan"))
        raises(TypeError, count.nop, lane=5)
        raises(ValueError, count.nop, lane=self.hold.lane("x"))
        near = raises(AttributeError, lambda: count.ecko)
        assert "did you mean echo?" in str(near), near
        return "ok"

    @bulkhead.endpoint
    async def looks(self):
        count = self.count
        assert bulkhead.pool("count") is count and count.label == "count" and count.state == "ready"
        assert str(inspect.signature(count.add)) == \
            "(a: int | bulkhead.Task, b: int | bulkhead.Task, *, timeout=None, lane=None, wait=False)" \
            " -> bulkhead.Task[int]", inspect.signature(count.add)
        assert str(inspect.signature(self.types.presets)).replace(" | bulkhead.Task", "").startswith(
            "(a: int = 3, b: str = 'word', c: float = 1.5, d: bool = True, e: str | None = None, f: object = None, *, timeout")
        assert str(inspect.signature(self.types.ops["label"])).startswith("(self: int | bulkhead.Task, *, timeout")
        assert "The sum." in count.add.__doc__ and "a: int" in count.add.__doc__
        assert repr(count.lane("l")) == "<bulkhead.Pool 'count' lane 'l'>"
        unknown = raises(bulkhead.UnknownPool, bulkhead.pool, "nope")
        assert unknown.facts["manifest"] == "count hold types", unknown
        assert await count.ops["add"](1, 2) == 3
        return "ok"

    # -- buffers

    @bulkhead.endpoint
    async def buffers(self):
        memory = bytearray(64)
        task = self.count.echo_buffer(memory)
        raises(BufferError, memory.extend, b"x")  # exported: not a copy
        assert await task is memory
        del task

        def released():
            try:
                memory.extend(b"x")
            except BufferError:
                return False
            return True

        await until(released)  # through the release queue, on main
        for given, seen in (
            (array.array("f", [1, 2]), [2, 32, 1, 8, 2]),
            (array.array("d"), [2, 64, 1, 0, 0]),
            (array.array("q", [1]), [0, 64, 1, 8, 1]),
            (array.array("H", [1, 2, 3]), [1, 16, 1, 6, 3]),
            (b"abc", [1, 8, 0, 3, 3]),
            (memoryview(bytes(24)).cast("B", (2, 3, 4)), [1, 8, 0, 24, 2, 3, 4]),
            (memoryview(bytes(4)).cast("?"), [3, 8, 0, 4, 4]),
            (memoryview(bytes(4)).cast("c"), [3, 8, 0, 4, 4]),
        ):
            assert await self.types.info(given) == seen, (given, seen)
        memory = bytearray(5)
        await self.types.fill(memory, 7)
        assert memory == b"\7" * 5
        error = raises(bulkhead.BadArgument, self.types.fill, bytes(5), 7)
        assert "writable" in error.facts["accepted"] and error.facts["parameter"] == "target", error
        grid = memoryview(bytearray(24)).cast("B", (2, 3, 4))
        assert await self.types.strides(grid) == [12, 4, 1]
        row = bytearray(6)
        assert await self.types.strides(memoryview(row)[::-2]) == [-2]
        await self.types.mark(memoryview(row)[::-2], 9)
        assert row == bytes([0, 9, 0, 9, 0, 9])
        assert "strided" in raises(bulkhead.BadArgument, self.types.mark, b"abc", 1).facts["accepted"]
        assert "strided" in raises(bulkhead.BadArgument, self.types.strides, 5).facts["accepted"]
        error = raises(bulkhead.BadArgument, self.types.info, memoryview(row)[::2])
        assert "bytes(x)" in error.facts["accepted"] and "contiguous" in error.facts["reason"], error
        error = raises(bulkhead.BadArgument, self.types.fill, memoryview(row)[::2], 1)
        assert "x.copy()" in error.facts["accepted"] and error.facts["given"] == "memoryview", error
        try:
            import numpy
        except ImportError:
            return "ok"
        table = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
        assert await self.types.info(table) == [2, 32, 1, 48, 3, 4]
        assert await self.types.info(table[1:]) == [2, 32, 1, 32, 2, 4]
        assert await self.types.info(table.astype(">f4")) == [3, 32, 1, 48, 3, 4]
        assert await self.types.info(numpy.float32(1.5)) == [2, 32, 0, 4]
        error = raises(bulkhead.BadArgument, self.types.info, table.T)
        assert "contiguous" in error.facts["reason"] and error.facts["given"] == "numpy.ndarray", error
        assert "ascontiguousarray" in error.facts["accepted"], error
        assert await self.types.strides(table.T[::-1]) == [-4, 16]
        assert await self.types.strides(numpy.broadcast_to(numpy.float32(1), (5,))) == [0]
        raises(bulkhead.BadArgument, self.types.info, numpy.zeros((1,) * 9))
        assert await self.count.add(numpy.int32(1), numpy.uint8(2)) == 3
        assert await self.count.echo_float(numpy.float32(0.5)) == 0.5
        raises(bulkhead.BadArgument, self.count.echo_float, numpy.zeros(1))
        return "ok"

    @bulkhead.endpoint
    async def lane_stats(self):
        lane = self.hold.lane("counted")
        assert lane.stats()["submitted"] == 0
        assert await lane.call(lambda: 1) == 1
        try:
            await lane.call(lambda: 1 / 0)
        except ZeroDivisionError:
            pass
        stats = lane.stats()
        assert stats.pop("busy_s") > 0
        assert stats.pop("last_error") == "python.raised", stats
        assert stats == {"submitted": 2, "done": 1, "failed": 1, "cancelled": 0, "deadline": 0, "abandoned": 0,
                         "queued": 0, "running": 0}, stats  # fmt: skip
        assert "lane(NAME)" in str(raises(TypeError, self.hold.stats))
        return "ok"

    @bulkhead.endpoint
    async def own_memory(self):
        class Tensor:  # takes part in DLPack, but not in the buffer protocol
            def __init__(self, of, **how):
                self.of, self.how, self.asked = of, how, []

            def __dlpack_device__(self):
                return self.how.get("device", self.of.__dlpack_device__())

            def __dlpack__(self, **more):
                self.asked.append(more)
                if self.how.get("old") and more:
                    raise TypeError("unexpected keyword")
                return self.of.__dlpack__(**more)

        memory = bulkhead.Buffer.allocate((2, 3), "int16", alignment=4096)
        assert memory.address % 4096 == 0 and memory.shape == (2, 3) and bytes(memory) == bytes(12)
        assert await self.types.info(memory) == [0, 16, 1, 12, 2, 3]
        assert await self.count.echo_buffer(memory) is memory
        await self.types.fill(memory, 1)
        assert memoryview(memory).tolist() == [[257] * 3] * 2
        for how in {"old": True}, {"old": False}:
            tensor = Tensor(memory, **how)
            await self.types.fill(tensor, 2)
            assert bytes(memory) == b"\2" * 12 and await self.count.echo_buffer(tensor) is tensor
            assert tensor.asked[0] == {"max_version": (1, 0)} and (tensor.asked[1] == {}) == how["old"], tensor.asked
        error = raises(bulkhead.BadArgument, self.types.fill, Tensor(memory, device=(2, 0)), 1)
        assert "tensor.cpu()" in error.facts["reason"] and error.facts["parameter"] == "target", error
        raises(ValueError, bulkhead.Buffer.allocate, 1, "float31")
        raises(MemoryError, bulkhead.Buffer.allocate, 1 << 62)
        gone = weakref.ref(tensor)
        del tensor
        await until(lambda: gone() is None)
        return "ok"

    @bulkhead.endpoint
    async def references(self):
        class Thing:
            pass

        thing = Thing()
        gone = weakref.ref(thing)
        assert await self.count.echo_object(thing) is thing
        assert await self.hold.call(lambda it: it, thing) is thing
        del thing
        await until(lambda: gone() is None)
        return "ok"

    # -- callables

    @bulkhead.endpoint
    async def contexts(self):
        def look():
            before = request_id.get()
            request_id.set("the worker's")
            return before, threading.get_ident() != self.main

        request_id.set("mine")
        assert await self.hold.call(look) == ("mine", True)
        assert await self.hold.call(look) == ("mine", True)
        assert request_id.get() == "mine"
        return "ok"

    @bulkhead.endpoint
    async def thread_states(self):
        def count_up():
            local.n = getattr(local, "n", 0) + 1
            return local.n, threading.get_ident()

        lane = self.hold.lane("local")
        seen = [await lane.call(count_up) for _ in range(20)]
        by_thread = {}
        for n, ident in seen:
            by_thread[ident] = by_thread.get(ident, 0) + 1
            assert n == by_thread[ident], seen
        return "ok"

    @bulkhead.endpoint
    async def exceptions(self):
        def fail_deep():
            raise KeyError("original")

        error = await raises_async(KeyError, self.hold.call(fail_deep))
        assert error.args == ("original",)
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert frames[-1] == "fail_deep", frames
        for kind in (SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration):
            def leave():
                raise kind("from a worker")

            error = await raises_async(bulkhead.PluginError, self.hold.call(leave))
            assert type(error.__cause__) is kind and error.code == "python.raised", error
            assert error.facts["type"] == kind.__name__ and "probe_app.py:" in error.facts["at"], error.facts
        error = await raises_async(TypeError, self.hold.call(5))
        assert "not callable" in str(error)
        task = self.hold.call(fail_deep)
        await raises_async(KeyError, task)
        await raises_async(KeyError, task)  # as often as it is asked
        return "ok"

    @bulkhead.endpoint
    async def cycles(self):
        """A task whose exception's traceback refers to the task is collected."""
        def fail():
            raise ValueError("kept by nobody")

        async def hold_on():
            task = self.hold.call(fail)
            try:
                await task
            except ValueError:
                pass
            return weakref.ref(task)

        gone = await hold_on()

        def collected():
            gc.collect()
            return gone() is None

        await until(collected)
        return "ok"

    @bulkhead.endpoint
    async def native_failures(self):
        error = await raises_async(bulkhead.PluginError, self.count.fail())
        assert error.facts and error.code, error
        return "ok"

    # -- outcomes

    @bulkhead.endpoint
    async def cancelling(self):
        task = self.count.sleep(60_000)
        assert not task.done() and task.outcome is None
        raises(RuntimeError, task.result)  # it would stop the loop
        assert task.cancel()
        error = await raises_async(bulkhead.Cancelled, task)
        assert error.code and task.outcome == "cancelled" and not task.cancel()

        async def wait_for_it(task):
            await task

        task = self.count.sleep(60_000)
        awaiting = asyncio.create_task(wait_for_it(task))
        await asyncio.sleep(0)
        awaiting.cancel()
        await raises_async(asyncio.CancelledError, awaiting)
        await until(task.done)
        assert task.outcome == "cancelled"
        raises(bulkhead.Cancelled, task.result)
        error = await raises_async(bulkhead.Deadline, self.count.sleep(60_000, timeout=0.02))
        assert isinstance(error, TimeoutError)
        await raises_async(asyncio.TimeoutError, asyncio.wait_for(self.count.sleep(60_000), 0.02))
        return "ok"

    @bulkhead.endpoint
    async def ordering(self):
        lane = self.count.lane("notes")
        tasks = [lane.note(f"{i}") for i in range(50)]
        await asyncio.gather(*tasks)
        notes = await self.count.notes()
        assert notes[-50:] == [str(i) for i in range(50)], notes
        await asyncio.gather(*(self.count.note(f"s{i}", lane="notes") for i in range(20)))
        assert (await self.count.notes())[-20:] == [f"s{i}" for i in range(20)]
        return "ok"

    @bulkhead.endpoint
    async def batches(self):
        """Many tasks, awaited in every way."""
        results = await asyncio.gather(*(self.count.add(i, i, wait=True) for i in range(2000)))
        assert results == [2 * i for i in range(2000)]
        tasks = [self.count.pend(1, wait=True) for _ in range(200)]
        for task in tasks:
            await task
        return "ok"

    @bulkhead.endpoint
    async def room(self):
        """The queue has 64 places and the pool 2 workers."""
        filled = []

        def fills_up():  # both workers have one, and the queue its 64
            try:
                while len(filled) < 66:
                    filled.append(self.count.sleep(60_000))
            except bulkhead.Overloaded:
                return False
            return True

        await until(fills_up)
        refused = raises(bulkhead.Overloaded, self.count.nop)
        assert refused.facts["pool"] == "count", refused
        assert "wait=True" in str(refused)
        late = await raises_async(bulkhead.Overloaded, self.count.nop(wait=0.05))
        assert late.code == refused.code
        expired = await raises_async(bulkhead.Deadline, self.count.nop(wait=True, timeout=0.05))
        assert expired.facts["state"] == "waiting for room"
        from_thread = []
        thread = threading.Thread(target=lambda: from_thread.extend((
            raises(bulkhead.Overloaded, self.count.nop, wait=0.05),
            raises(bulkhead.Deadline, self.count.nop, wait=True, timeout=0.05))))
        thread.start()
        await until(lambda: not thread.is_alive())
        assert [error.code for error in from_thread] == [refused.code, "task.deadline"], from_thread
        gone = self.count.nop(wait=True)
        assert gone.cancel() and gone.outcome == "refused"
        await raises_async(bulkhead.Cancelled, gone)
        lane = self.count.lane("waiting")
        waiting = [lane.note(f"w{i}", wait=True) for i in range(30)]
        assert not any(task.done() for task in waiting)
        for task in filled:
            task.cancel()
        await asyncio.gather(*waiting)
        assert (await self.count.notes())[-30:] == [f"w{i}" for i in range(30)]
        for task in filled:
            await raises_async(bulkhead.Cancelled, task)
        return "ok"

    @bulkhead.endpoint
    async def threads(self):
        """result(), wait= and await from threads that are not main."""
        outcome = []

        def block():
            assert self.count.add(1, 2).result() == 3
            assert self.count.add(1, 2, wait=True).result(timeout=30) == 3
            task = self.count.sleep(60_000)
            raises(TimeoutError, task.result, 0.01)
            assert task.cancel()
            raises(bulkhead.Cancelled, task.result, 30)
            outcome.append("blocked")

        async def elsewhere():
            assert await self.count.add(1, 2) == 3
            assert await self.count.add(3, 4, wait=True) == 7
            outcome.append("awaited")

        for work in (block, lambda: asyncio.run(elsewhere())):
            thread = threading.Thread(target=work)
            thread.start()
            await until(lambda: not thread.is_alive())
        assert outcome == ["blocked", "awaited"], outcome
        return "ok"

    @bulkhead.endpoint
    async def inlined(self):
        """SUP-7: workers that wait for queued tasks of their own pool, more of them than there are workers."""
        def outer(depth):
            return depth if depth == 0 else self.hold.call(outer, depth - 1).result(30) + 1

        assert await self.hold.call(outer, 10) == 10
        lane = self.hold.lane("self")

        def deadlock():
            error = raises(bulkhead.BulkheadError, self.hold.call(int, lane=lane).result, 30)
            return error.code

        assert await lane.call(deadlock) == "task.deadlock"
        return "ok"

    # -- the books of the GIL

    @bulkhead.endpoint
    async def gil_stats(self):
        before = bulkhead.gil.stats()
        assert await self.hold.call(time.sleep, 0.01) is None
        stats = bulkhead.gil.stats()
        assert isinstance(stats, bulkhead.gil.Stats) and stats.gate == "open" and stats.parked == 0
        call = stats.sites["hold.call"]
        entered = call.entries - (before.sites["hold.call"].entries if "hold.call" in before.sites else 0)
        assert entered == 1 and call.policy == "data-only" and call.site == "hold.call", call
        assert call.inside_s >= call.inside_max_s >= 0.01 and call.unsanctioned == 0, call
        assert stats.holder.tid == os.getpid() and stats.holder.plane == "control", stats.holder
        assert stats.holder.site in ("host.dispatch", "host.drain"), stats.holder
        mine = [thread for thread in stats.threads if thread.tid == os.getpid()]
        assert [thread.state for thread in mine] == ["inside"] and not mine[0].coarse, mine
        on_worker = await self.hold.call(bulkhead.gil.stats)
        assert on_worker.holder.site == "hold.call" and on_worker.holder.label == "hold", on_worker.holder
        assert on_worker.holder.plane == "data"
        return "ok"

    @bulkhead.endpoint
    async def unsanctioned(self):
        assert bulkhead.gil.unsanctioned() == 0
        for hook in (bulkhead.gil.force_unsanctioned, bulkhead.gil.reset_unsanctioned):
            error = await raises_async(RuntimeError, self.hold.call(hook))
            assert "inside its event loop" in str(error), error
        assert bulkhead.gil.unsanctioned() == 0, "those did nothing"
        bulkhead.gil.force_unsanctioned()
        assert bulkhead.gil.unsanctioned() == bulkhead.gil.stats().unsanctioned == 1
        assert await self.hold.call(bulkhead.gil.unsanctioned) == 1, "main goes on as before"
        assert bulkhead.gil.stats().holder.site in ("host.dispatch", "host.drain")
        bulkhead.gil.reset_unsanctioned()
        assert bulkhead.gil.unsanctioned() == bulkhead.gil.stats().unsanctioned == 0
        return "ok"

    # -- what the host tells

    async def supervise(self, event):
        assert isinstance(event, bulkhead.Event), event
        self.told.append(["begins", event.kind, event.facts])
        if event.kind == "wait":
            await self.release.wait()
        if event.kind == "raise":
            raise ValueError("supervise cannot cope")
        if event.kind == "exit":
            sys.exit(event.facts["status"])
        self.told.append(["ends", event.kind])

    @bulkhead.endpoint
    async def was_told(self, n: int):
        """The first `n` entries, once they are there."""
        await until(lambda: len(self.told) >= n)
        told, self.told[:] = self.told[:n], self.told[n:]
        return told

    @bulkhead.endpoint
    async def let_supervise_go_on(self):
        self.release.set()

    @bulkhead.endpoint
    async def plainly_told(self, n: int):
        await until(lambda: len(PlainSupervisor.told) >= n)
        told, PlainSupervisor.told[:] = PlainSupervisor.told[:n], PlainSupervisor.told[n:]
        return told

    # -- the host around it

    @bulkhead.endpoint
    async def forks(self):
        for call in (os.fork, os.forkpty):
            error = raises(RuntimeError, call)
            assert isinstance(error, bulkhead.Forked) and "spawn" in error.facts["accepted"], error
        assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
        import multiprocessing
        assert multiprocessing.get_start_method() == "spawn"
        raises(RuntimeError, multiprocessing.get_context("fork").Process(target=int).start)
        child = subprocess.Popen(["sleep", "60"])
        child.terminate()
        assert child.wait() == -15
        return "ok"

    @bulkhead.endpoint
    def prints(self):
        print("a line", "of stdout")
        print("half", end="")
        print(" a line")
        print("x" * 5000)
        print("to stderr\nand more", file=sys.stderr)
        print("no newline \udc80", end="", flush=True)
        raises(TypeError, sys.stdout.write, b"bytes")
        return "ok"

    @bulkhead.endpoint
    async def leave(self, status: int, how: str):
        if how == "endpoint":
            sys.exit(status)
        if how == "text":
            sys.exit("a text")
        if how == "none":
            sys.exit()
        loop = asyncio.get_running_loop()
        if how == "callback":
            loop.call_soon(sys.exit, status)
        elif how == "task":
            async def work():
                sys.exit(status)

            self.kept.append(asyncio.create_task(work()))
        elif how == "callback-interrupt":
            def interrupt():
                raise KeyboardInterrupt

            loop.call_soon(interrupt)
        elif how == "stop":
            loop.stop()
        await asyncio.sleep(0.01)
        return "ok"

    @bulkhead.endpoint
    async def spin(self, how: str, begun: str):
        """Keeps main busy; the file `begun` says that it does."""
        def block():
            open(begun, "w").close()
            if how == "sleep":
                time.sleep(1e6)
            elif how == "event":
                threading.Event().wait()
            while how != "loop":
                time.monotonic()
            while True:
                pass

        if how != "callback":
            block()
        asyncio.get_running_loop().call_soon(block)
        await asyncio.sleep(0.01)
        return "ok"

    @bulkhead.endpoint
    async def wait_for_ever(self):
        try:
            await self.count.sleep(600_000)
        except asyncio.CancelledError:
            self.kept.append("given up")
            raise

    @bulkhead.endpoint
    async def was_given_up(self):
        await until(lambda: "given up" in self.kept)
        return "ok"

    @bulkhead.endpoint
    async def leave_things_behind(self, path: str):
        import atexit

        async def stubborn():
            try:
                await asyncio.sleep(1e6)
            finally:
                with open(path, "a") as file:
                    print("leftover cancelled", file=file)

        def at_exit():
            with open(path, "a") as file:
                print("atexit ran", file=file)
            try:
                self.count.nop()
            except bulkhead.Shutdown:
                with open(path, "a") as file:
                    print("late submission refused", file=file)

        def thread():
            time.sleep(0.05)
            with open(path, "a") as file:
                print("thread joined", file=file)

        atexit.register(at_exit)
        threading.Thread(target=thread).start()
        self.kept.append(asyncio.create_task(stubborn()))
        self.kept.append(self)  # a cycle with tasks in it, for finalization to deal with
        return "ok"

    async def stop(self, app):
        assert app.name == "probe"
        print("probe stops")


class Broken:
    def __init__(self):
        raise OSError("cannot be made")


class BadStart:
    def start(self):
        raise LookupError("cannot start")


class NeverStarts:
    async def start(self, app):
        await asyncio.sleep(1e6)

    def stop(self):
        raise AssertionError("stop() is not owed")


class Plain:
    """start and stop may be plain functions, and need not take the app."""

    def start(self):
        self.up = True

    def stop(self):
        assert self.up


class PlainSupervisor:
    """supervise may be a plain function; what is not one is said, and harms nobody."""

    told = []
    kept = []

    def supervise(self, event):
        self.told.append([event.kind, bulkhead.gil.stats().holder.site])
        if event.kind == "raise":
            raise LookupError("plainly")
        if event.kind == "hang":
            event.facts["seen"] = True  # the facts are this app's own
            self.kept.append("hang")
            return self.hang()

    async def hang(self):
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            self.told.append(["cancelled", "" if self.kept == ["hang"] else "after stop"])
            raise

    def stop(self):
        self.kept.append("stopped")


class Leaves:
    def start(self):
        sys.exit(3)
