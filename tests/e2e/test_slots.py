# SPDX-License-Identifier: BSD-3-Clause
"""A plugin's slots on buffers, and the memory behind objects that a worker asks for (plugins/t_slot.c).

As in test_buffers the apps check for themselves and return "ok".
"""

import textwrap

import pytest
from conftest import SLOW
from test_buffers import HEAD, TENSORS

MANIFEST = """
    [plugin slot]
    library = t_slot
    [plugin buffer]
    library = t_buffer
    [app app]
    object = app:App
"""

OWN = '''
        def start(self):
            self.slot, self.buffer = bulkhead.pool("slot"), bulkhead.pool("buffer")

        async def counted(self, made, released, cleared=0):
            """release() is called by whoever drops the buffer; what it stands for is undone later."""
            for _ in range(30000):
                seen = await self.slot.counts()
                assert seen[3] == 0, f"wrong: {seen}"
                if seen == [made, released, cleared, 0]:
                    return
                await asyncio.sleep(0.002)
            raise AssertionError(f"{seen}, not {[made, released, cleared, 0]}")

        async def fails(self, kind, task):
            try:
                await task
            except kind as error:
                return error
            raise AssertionError(f"no {kind.__name__}")
'''


def app(body: str) -> dict[str, str]:
    head = textwrap.dedent(HEAD)
    head = head[: head.index("    async def start(self):")]
    return {"app.py": head + textwrap.indent(textwrap.dedent(OWN), "    ") + textwrap.indent(textwrap.dedent(body), "    "),
            "tensors.py": TENSORS}  # fmt: skip


def check(host, body: str, manifest: str = MANIFEST, **more):
    """Runs `body` as an endpoint."""
    h = host(manifest, app("@bulkhead.endpoint\nasync def check(self):\n" + textwrap.indent(textwrap.dedent(body), "    ")
                           + "\n    return 'ok'\n"), **more)  # fmt: skip
    result = h.call("check", timeout=120)
    if result.startswith("without "):
        pytest.skip(f"the host's Python is {result}")
    assert result == "ok"
    return h


# ---- the memory behind an object


def test_the_memory_of_objects_of_all_kinds_is_given_without_a_copy(host, tmp_path):
    (tmp_path / "table").write_bytes(bytes(range(64)))
    h = check(
        host,
        f"""
        file = open({str(tmp_path / "table")!r}, "r+b")
        mapped = mmap.mmap(file.fileno(), 0)
        many = [bytearray(64), array.array("f", bytes(64)), memoryview(bytearray(64)).cast("d"), mmap.mmap(-1, 64),
                mapped, memoryview(mapped), memoryview(mapped).cast("I", (4, 4)), (ctypes.c_int16 * 32)(),
                bulkhead.Buffer.allocate(16), memoryview(bulkhead.Buffer.allocate(16))]
        if numpy is not None:
            many += [numpy.zeros((4, 4), numpy.float32), numpy.frombuffer(mapped, dtype="u1")]
        for fill, memory in enumerate(many, 1):
            await self.slot.write(memory, fill)
            assert bytes(memory) == bytes([fill]) * 64, memory
            assert await self.slot.echo(memory) is memory
        for tensor in Tensor((4, 4)), Modern((4, 4)):
            await self.slot.write(tensor, 9)
            assert bytes(tensor.memory) == b"\\x09" * 64 + b"\\0", "in place"
            assert await self.slot.echo(tensor) is tensor
            address, length, kind, flags, bits, *shape = await self.slot.look(tensor)
            assert [address, length, kind, bits, shape] == [ctypes.addressof(tensor.memory), 64, 1, 32, [4, 4, 16, 4]]
        assert (await self.slot.look(Tensor((2,), device=(3, 0))))[2] == 2, "pinned"
        tensor = many = memory = None
        await true(lambda: not tensors.LIVE)
        assert not tensors.TWICE
        assert {{thread for _, thread, _ in tensors.DELETED}} == {{threading.main_thread().ident}}, "on main"
        mapped.close()   # nothing is exported any more
        """,
    )
    sites = {site["site"]: site for site in h.get("/v1/gil").json["sites"]}
    assert sites["slot.memory"]["entries"] > 20 and sites["slot.memory"]["unsanctioned"] == 0
    written = (tmp_path / "table").read_bytes()
    assert len(written) == 64 and len(set(written)) == 1, "what was mapped is in the file"
    assert h.stop() == 0


def test_what_is_read_only_or_strided_is_given_only_where_that_will_do(host):
    check(
        host,
        """
        text = b"abcdef"
        address, length, kind, flags, *_ = await self.slot.look(text)
        assert (length, flags) == (6, 0), "read-only, and said so"
        error = await self.fails(BufferError, self.slot.look(text, writable=True))
        assert "read-only" in str(error) and "bytearray(x)" in str(error), error
        assert "slot asked this bytes" in error.__notes__[0] and "a writable, C-contiguous" in error.__notes__[0]
        assert (await self.slot.look(bytearray(text), writable=True))[3] == 1
        every = memoryview(text)[::2]
        error = await self.fails(BufferError, self.slot.look(every))
        assert "not C-contiguous" in str(error) and "strides (2,)" in str(error), error
        assert (await self.slot.look(every, strided=True))[1:] == [3, 1, 0, 8, 3, 2]
        assert (await self.slot.look(every[::-1], strided=True))[-1] == -2
        closed = await self.buffer.make([4], writable=False)
        assert (await self.slot.look(closed))[3] == 0
        error = await self.fails(BufferError, self.slot.write(closed, 1))
        assert "read-only" in str(error) and "asked this bulkhead.Buffer" in error.__notes__[0], error
        error = await self.fails(BufferError, self.slot.write(Frozen((4,)), 1))
        assert "read-only" in str(error), error
        for wrong in 5, None, object(), "text", [1, 2]:
            error = await self.fails(TypeError, self.slot.look(wrong))
            assert "has no memory to give" in str(error) and "a numpy array" in str(error), error
        """,
    )


def test_what_an_object_raises_is_the_tasks_error_with_the_workers_traceback(host):
    h = check(
        host,
        """
        import traceback

        class Boom(Exception):
            pass

        def where():
            raise Boom("no memory today")

        class Refuses:
            def __dlpack_device__(self): return (1, 0)
            def __dlpack__(self, **more): where()

        error = await self.fails(Boom, self.slot.look(Refuses()))
        text = "".join(traceback.format_exception(error))
        assert "in where" in text and "in __dlpack__" in text and "no memory today" in text, text
        assert "(pool slot asked this Refuses for its memory" in text

        class Exits(Refuses):
            def __dlpack__(self, **more): sys.exit(3)

        error = await self.fails(bulkhead.PluginError, self.slot.look(Exits()))
        assert type(error.__cause__) is SystemExit, error
        class Lies(Refuses):
            def __dlpack__(self, **more): return "capsule"
        await self.fails(TypeError, self.slot.look(Lies()))
        assert (await self.slot.look(b"abc"))[1] == 3, "the worker is as it was"
        EINVAL = -22
        assert await self.slot.misuse(bytearray(1)) == [EINVAL] * 4 + [0]
        """,
    )
    misused = {"plugin": "slot", "service": "object_buffer"}
    h.wait_log("plugin misuses a service", **misused, reason="the descriptor has no such site")
    assert h.stop() == 0


def test_an_object_is_locked_while_the_plugin_has_its_memory_and_given_back_on_main(host):
    h = check(
        host,
        """
        def can(memory):
            try:
                memory.extend(b"1")
            except BufferError:
                return False
            return True

        memory = bytearray(8)
        await self.slot.keep(memory)          # the task has ended, the plugin still has it
        assert not can(memory)
        await self.slot.keep()                # dropped on a worker, without the GIL
        await true(lambda: can(memory))
        kept = Modern((4,), name="kept")
        await self.slot.keep(kept)
        del kept
        gc.collect()
        assert len(tensors.LIVE) == 1
        """,
    )
    assert h.stop() == 0, "and what it still has at the stop goes in order"


# ---- slots


def test_a_plugin_finds_what_it_keeps_for_a_buffer_until_python_drops_it(host):
    h = check(
        host,
        """
        one, two = bulkhead.Buffer.allocate(1000), bulkhead.Buffer.allocate(1000)
        first = await self.slot.remember(one)
        assert [await self.slot.remember(one) for _ in range(5)] == [first] * 5
        assert await self.slot.remember_buffer(one) == first, "the same buffer, as argument or as object"
        second = await self.slot.remember(two)
        assert second != first
        assert len(set(await asyncio.gather(*[self.slot.remember(two) for _ in range(50)]))) == 1
        made = await self.buffer.make([100], fill=7)      # memory that another plugin has made
        third = await self.slot.remember(made)
        assert await self.slot.remember(await self.buffer.echo(made)) == third
        await self.counted(3, 0)
        seen = memoryview(one)
        del one
        gc.collect()
        await self.counted(3, 0)                          # an export holds it
        seen.release()
        del seen
        await self.counted(3, 1)
        assert await self.slot.forget(two) == second and await self.slot.forget(two) == 0
        del two
        await self.counted(3, 1, 1)
        kept = self.buffer.keep(made)
        await kept
        del made, kept
        gc.collect()
        await self.counted(3, 1, 1)                       # another plugin still has it
        await self.buffer.keep()
        await self.counted(3, 2, 1)
        """,
    )
    assert h.stop() == 0
    assert h.find("slots closed", made="3", released="2", cleared="1", wrong="0")


def test_the_result_of_a_task_is_the_same_buffer_as_an_object(host):
    check(
        host,
        """
        task = self.buffer.make([100], fill=7)
        first = await self.slot.remember(task)       # the worker sees it before Python does
        made = await task
        assert await self.slot.remember(made) == first and bytes(made)[:1] == b"\7"
        assert await self.slot.echo(self.slot.echo(made)) is made
        del task, made
        gc.collect()
        await self.counted(1, 1)
        """,
    )


@pytest.mark.parametrize("at_once", ["no", "yes"])
def test_slots_of_exported_and_dlpack_memory_end_with_their_buffer(host, at_once):
    """Each call asks anew and so has a buffer of its own; the memory is there until what it stands for is undone."""
    h = check(
        host,
        """
        memory = bytearray(b"xyz" * 100)
        for i in range(20):
            assert await self.slot.remember(memory) == 2 * i + 1
            assert await self.slot.remember(Modern((16,))) == 2 * i + 2
        await self.counted(40, 40)
        await true(lambda: not tensors.LIVE)
        assert not tensors.TWICE
        memory.extend(b"1")           # nothing is exported any more
        assert await self.slot.remember_buffer(memory) == 41   # an argument of the task
        await self.counted(41, 41)
        own = bulkhead.Buffer.allocate(10)
        assert await self.slot.remember(own) == 42
        del own                       # dropped on main, with the GIL
        await self.counted(42, 42)
        """,
        args=["--set", f"plugin slot.undo_at_once={at_once}"],
    )
    assert h.stop() == 0
    assert h.find("slots closed", made="42", released="42", cleared="0", wrong="0")


def test_buffers_are_dropped_on_many_threads_while_a_plugin_finds_them(host):
    h = check(
        host,
        """
        async def one(i):
            for _ in range(40):
                mine = bulkhead.Buffer.allocate(100)
                ids = await asyncio.gather(*[self.slot.remember(mine) for _ in range(3)], self.slot.remember_buffer(mine))
                assert len(set(ids)) == 1, ids
                if i % 3 == 0:
                    dropper = [mine]
                    thread = threading.Thread(target=dropper.clear)
                    del mine
                    thread.start()
                    thread.join()
                elif i % 3 == 1:
                    last = self.slot.keep(mine)      # a worker drops the last one
                    del mine
                    await last
        await asyncio.gather(*[one(i) for i in range(12)])
        await self.slot.keep()
        await self.counted(480, 480)
        """,
    )
    assert h.stop() == 0


def test_exit5_a_forked_child_drops_a_buffer_without_the_plugin(host):
    h = check(
        host,
        """
        fork = ctypes.PyDLL(None).fork     # by C, for os.fork() is refused; with the GIL held, so that the child has it
        held = [bulkhead.Buffer.allocate(100)]
        await self.slot.remember(held[0])
        child = fork()
        if child == 0:
            held.clear()
            os._exit(7)
        status = None
        for _ in range(15000):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            await asyncio.sleep(0.002)
        assert pid == child and os.waitstatus_to_exitcode(status) == 7, status
        await self.counted(1, 0)
        held.clear()
        await self.counted(1, 1)
        """,
        args=["--set", "plugin slot.undo_at_once=yes"],
    )
    assert h.stop() == 0


@pytest.mark.parametrize("leave", ["no", "yes"])
def test_slots_that_are_set_when_the_plugin_closes_are_cleared_or_told_of(host, leave):
    h = check(
        host,
        """
        global KEPT
        KEPT = [bulkhead.Buffer.allocate(100) for _ in range(3)]    # until the interpreter ends
        for memory in KEPT:
            await self.slot.remember(memory)
        """,
        args=["--set", f"plugin slot.leave={leave}"],
    )
    assert h.stop() == 0
    told = h.find("plugin has left slots on buffers")
    if leave == "no":
        assert told is None
        assert h.find("slots closed", made="3", released="0", cleared="3", wrong="0")
    else:
        assert (told["level"], told["plugin"], told["step"], told["slots"]) == ("error", "slot", "close", "3"), told
        assert len([line for line in h.log if line.get("msg") == "plugin has left slots on buffers"]) == 1


def test_ten_thousand_buffers_with_slots_leave_nothing_behind(host, report):
    """One buffer whose slot is set and cleared, many that come and go: after one round nothing grows."""
    h = host(
        MANIFEST,
        app(
            """
            async def round(self, n):
                one = bulkhead.Buffer.allocate(4096)
                for _ in range(n // 100):
                    tasks = []
                    for i in range(25):
                        tasks += [self.slot.remember(bulkhead.Buffer.allocate(4096)), self.slot.remember(bytearray(4096)),
                                  self.slot.remember(Modern((1024,))), self.slot.remember(one)]
                    await asyncio.gather(*tasks)
                    await self.slot.forget(one)
                    await self.settled()            # or what waits to be undone grows and grows
                    tensors.DELETED.clear()
                last = bytearray(1)
                await self.slot.remember(last)
                await self.settled()
                await true(lambda: not tensors.LIVE and self.can(last))   # and main has dropped all that came before
                tensors.DELETED.clear()             # copies of what was deleted last
                assert not tensors.TWICE

            async def settled(self):
                for _ in range(30000):
                    made, released, cleared, wrong = await self.slot.counts()
                    if made == released + cleared:
                        return
                    await asyncio.sleep(0.002)
                raise AssertionError(f"{made} made, {released} released, {cleared} cleared")

            def can(self, memory):
                try:
                    memory.extend(b"1")
                except BufferError:
                    return False
                return True

            @bulkhead.endpoint
            async def soak(self, n: int):
                import tracemalloc

                def rss():
                    with open("/proc/self/statm") as file:
                        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

                tracemalloc.start()
                await self.round(2000)
                gc.collect()
                traced, resident = tracemalloc.get_traced_memory()[0], rss()
                await self.round(n)
                gc.collect()
                return tracemalloc.get_traced_memory()[0] - traced, rss() - resident, await self.slot.counts()
            """
        ),
    )
    traced, resident, (made, released, cleared, wrong) = h.call("soak", n=10_000, timeout=240)
    report(f"10 000 buffers with slots: {traced} bytes traced, {resident / 1024:.0f} KiB resident")
    assert wrong == 0 and made - cleared == released and released == 2 + 9000, (made, released, cleared)
    assert traced < 200_000
    if SLOW == 1:  # a sanitizer keeps what is freed
        assert resident < 8 << 20
    assert h.stop() == 0
    assert h.find("slots closed", released="9002", wrong="0")
