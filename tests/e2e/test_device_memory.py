# SPDX-License-Identifier: BSD-3-Clause
"""Device memory in and out of ops, and its end (plugins/t_devmem.c, whose device is the host in disguise).

As in test_buffers the apps check for themselves and return "ok".
"""

import textwrap

import pytest
from test_buffers import HEAD, TENSORS

MANIFEST = """
    [plugin dev]
    library = t_devmem
    [plugin slot]
    library = t_slot
    [plugin buffer]
    library = t_buffer
    [app app]
    object = app:App
"""

OWN = '''
        def start(self):
            self.dev, self.slot, self.buffer = bulkhead.pool("dev"), bulkhead.pool("slot"), bulkhead.pool("buffer")

        async def fails(self, kind, call):
            """`call` makes a task, or does not get that far."""
            try:
                await call()
            except kind as error:
                return error
            raise AssertionError(f"no {kind}")

        def raises(self, kind, call, *parts):
            try:
                call()
            except kind as error:
                for part in parts:
                    assert part in str(error), (part, error)
                return error
            raise AssertionError(f"no {kind}")
'''

ARRAYS = '''
    """Exporters of device memory, which is the host's in disguise."""

    import ctypes
    from tensors import Modern, Tensor

    class Mixin:
        """Remembers what it was asked."""

        device = None

        def ask(self, **kwargs):
            self.asked = kwargs
            return self.make()

    class OldCuda(Mixin, Tensor):
        def __dlpack__(self, stream=None):
            return self.ask(stream=stream)

    class NewCuda(Mixin, Modern):
        def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
            return self.ask(stream=stream, max_version=max_version)

    class FrozenCuda(NewCuda):
        flags = 1

    class Numb(Mixin, Tensor):
        """Knows no streams."""

        def __dlpack__(self):
            return self.ask()

    class Array:
        """Of __cuda_array_interface__; `more` replaces fields, and takes those away that are ..."""

        def __init__(self, shape=(2, 3), typestr="<f4", readonly=False, version=3, **more):
            self.block = (ctypes.c_char * 1024)()
            self.address = ctypes.addressof(self.block)
            fields = {"shape": shape, "typestr": typestr, "data": (self.address, readonly), "version": version, **more}
            self.fields = {key: value for key, value in fields.items() if value is not ...}

        @property
        def __cuda_array_interface__(self):
            return self.fields

    class Other(Array):
        """What is no dict."""

        __cuda_array_interface__ = [("shape", (1,))]

    class Broken(Array):
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("the array is on fire")
'''


def app(body: str) -> dict[str, str]:
    head = textwrap.dedent(HEAD)
    head = head[: head.index("    async def start(self):")]
    return {"app.py": head + textwrap.indent(textwrap.dedent(OWN), "    ") + textwrap.indent(textwrap.dedent(body), "    "),
            "tensors.py": TENSORS, "arrays.py": ARRAYS}  # fmt: skip


def check(host, body: str, **more):
    """Runs `body` as an endpoint."""
    h = host(MANIFEST, app("@bulkhead.endpoint\nasync def check(self):\n" + textwrap.indent(textwrap.dedent(body), "    ")
                           + "\n    return 'ok'\n"), **more)  # fmt: skip
    assert h.call("check", timeout=120) == "ok"
    return h


def test_device_memory_says_what_it_is_and_is_never_read_by_the_host(host):
    h = check(
        host,
        """
        made = await self.dev.alloc([2, 3], device=1)
        assert (made.device, made.shape, made.dtype, made.nbytes, len(made), made.readonly) == ("cuda:1", (2, 3), "float32", 24, 2, False)
        assert "shape=(2, 3) dtype=float32 device=cuda:1 at 0x" in repr(made), repr(made)
        assert bulkhead.Buffer.allocate(3).device == "cpu"
        assert (await self.dev.alloc([2], 4, 16)).dtype == "bfloat16" and (await self.dev.alloc([2], 6, 8)).dtype == "bool"
        todo = 'device cuda:1, where the host cannot read it; copy it first: await bulkhead.cuda.pool("cuda").to_host(x)'
        for call in (memoryview, bytes, bytearray):
            self.raises(BufferError, lambda: call(made), todo)
        if numpy is not None:
            self.raises(BufferError, lambda: numpy.asarray(memoryview(made)), todo)
        # With its mark an op takes it, and the same object comes back.
        await self.dev.fill(made, 0x41)
        assert await self.dev.read(made) == b"A" * 24
        assert await self.dev.total([made, [1, made]]) == 48 and await self.dev.total_rest(made, made) == 48
        # Without the mark it does not, however it comes.
        error = self.raises(bulkhead.BadArgument, lambda: self.dev.read_host(made))
        assert error.facts["parameter"] == "memory" and error.facts["given"] == "bulkhead.Buffer", error
        assert todo in error.facts["reason"] and error.facts["accepted"].startswith("a C-contiguous buffer ("), error
        assert "of a device's memory" in self.raises(bulkhead.BadArgument, lambda: self.dev.read("x")).facts["accepted"]
        error = self.raises(bulkhead.BadArgument, lambda: self.dev.total_host([1, [made]]))
        assert error.facts["parameter"] == "items[1][0]" and todo in error.facts["reason"], error
        error = await self.fails(BufferError, lambda: self.slot.look(made))
        assert todo in str(error), error
        task = self.dev.alloc([5])
        error = await self.fails(bulkhead.BadArgument, lambda: self.dev.read_host(task))
        assert error.facts["given"] == "buffer on a CUDA device" and error.facts["accepted"] == "buffer of the host's memory", error
        for call in (lambda: self.dev.total_host([task]), lambda: self.dev.total_host([self.dev.alloc([1])])):
            await self.fails(bulkhead.BadArgument, call)
        assert await self.dev.total([self.dev.alloc([5]), task]) == 40
        locked = await self.dev.alloc([2], writable=False)
        assert locked.readonly and "read-only" in self.raises(bulkhead.BadArgument, lambda: self.dev.fill(locked, 1)).facts["reason"]
        """,
    )
    assert h.stop() == 0


def test_device_memory_goes_out_by_dlpack_and_cuda_array_interface(host):
    h = check(
        host,
        """
        import tensors
        made = await self.dev.alloc([2, 3], device=1)
        address, SHARED = made.address, 4
        assert (await self.dev.info(made))[2] & SHARED == 0
        assert made.__dlpack_device__() == (2, 1)
        for stream in (None, -1, 1, 2, 3, 2**63, 2**64 - 1):
            assert tensors.name_of(made.__dlpack__(stream=stream)) == b"dltensor"
        for stream in (0, -2, -2**63, -2**70, 2**64, 2**70):
            self.raises(ValueError, lambda: made.__dlpack__(stream=stream), f"stream is {stream}; accepted: None, -1")
        for stream in ("1", 1.0, True):
            self.raises(TypeError, lambda: made.__dlpack__(stream=stream), "stream must be None or an int")
        capsule = made.__dlpack__(stream=1, max_version=(1, 0), dl_device=(2, 1), copy=False)
        assert tensors.name_of(capsule) == b"dltensor_versioned"
        t = tensors.Versioned.from_address(tensors.capsule_pointer(id(capsule), b"dltensor_versioned")).tensor
        assert (t.data, t.device_type, t.device_id, t.ndim, t.code, t.bits) == (address, 2, 1, 2, 2, 32)
        assert (t.shape[0], t.shape[1], t.strides[0], t.strides[1]) == (2, 3, 3, 1)
        self.raises(BufferError, lambda: made.__dlpack__(dl_device=(1, 0)), "(2, 1), not on (1, 0)")
        self.raises(BufferError, lambda: made.__dlpack__(copy=True), "copy")
        assert (await self.dev.info(made))[2] & SHARED

        made = await self.dev.alloc([2, 3], 5, 128, False)
        want = {"shape": (2, 3), "typestr": "<c16", "data": (made.address, True), "version": 3, "strides": None, "stream": None}
        assert made.__cuda_array_interface__ == want, made.__cuda_array_interface__
        assert (await self.dev.info(made))[2] == SHARED
        for code, bits, typestr in ((0, 8, "|i1"), (1, 64, "<u8"), (2, 16, "<f2"), (6, 8, "|b1")):
            assert (await self.dev.alloc([1], code, bits)).__cuda_array_interface__["typestr"] == typestr
        assert (await self.dev.alloc([0, 2])).__cuda_array_interface__["data"] == (0, False)
        for other in (bulkhead.Buffer.allocate(2), await self.dev.alloc([2], 4, 16), await self.dev.alloc([2], 3, 24)):
            assert not hasattr(other, "__cuda_array_interface__"), other
            self.raises(AttributeError, lambda: other.__cuda_array_interface__, "__cuda_array_interface__")
        self.raises(BufferError, lambda: bulkhead.Buffer.allocate(2).__dlpack__(stream=1), "stream must be None")
        """,
    )
    assert h.stop() == 0


def test_memory_that_was_taken_back_is_told_of_and_never_reached(host):
    h = check(
        host,
        """
        import arrays
        made = await self.dev.alloc([4])
        assert await self.dev.free(made) is True        # Python's Buffer is no use of the memory
        assert "freed" in repr(made) and "0x" not in repr(made) and made.shape == (4,) and len(made) == 4, repr(made)
        freed = "its memory has been freed"
        self.raises(BufferError, lambda: memoryview(made), freed)
        self.raises(BufferError, lambda: made.__dlpack__(), freed)
        self.raises(BufferError, lambda: made.__dlpack__(max_version=(1, 0)), freed)
        self.raises(BufferError, lambda: made.__cuda_array_interface__, freed)
        for call in (self.dev.read, self.dev.free, lambda x: self.dev.total([x]), self.dev.read_host, lambda x: self.dev.fill(x, 1)):
            assert freed in self.raises(bulkhead.BadArgument, lambda: call(made)).facts["reason"]
        for call in (self.dev.import_, self.slot.look):
            assert freed in str(await self.fails(BufferError, lambda: call(made)))
        task = self.dev.alloc([4])
        made = await task
        assert await self.dev.free(made) is True
        assert freed in str(self.raises(bulkhead.BadArgument, lambda: self.dev.read(task)))
        assert await self.dev.counts() == [2, 0, 2, 0]

        # Whoever else has it, or has been told where it lies, keeps it.
        kept = await self.dev.alloc([4])
        await self.dev.keep(kept)
        assert await self.dev.free(kept) is False and freed in str(self.raises(BufferError, lambda: memoryview(kept)))
        for export in (lambda x: x.__dlpack__(), lambda x: x.__cuda_array_interface__):
            told = await self.dev.alloc([4])
            export(told)
            gc.collect()
            assert await self.dev.free(told) is False
        await self.dev.keep()
        assert await self.dev.counts() == [5, 0, 2, 3]
        # What nobody has any more is released, as ever.
        made = told = kept = task = None
        await self.dev.alloc([4])
        for _ in range(30000):
            if await self.dev.counts() == [6, 1, 2, 3]:
                break
            await asyncio.sleep(0.002)
        assert await self.dev.counts() == [6, 1, 2, 3]
        global KEPT
        KEPT = [await self.dev.alloc([4]) for _ in range(3)]    # until the interpreter ends
        KEPT[0].__dlpack__()
        """,
    )
    assert h.stop() == 0
    assert h.find("memory closed", made="9", released="1", revoked="4", busy="4"), h.log


def test_tensors_and_arrays_of_a_device_come_in_without_a_copy(host):
    h = check(
        host,
        """
        import tensors, weakref
        from arrays import Array, FrozenCuda, NewCuda, Numb, OldCuda
        HOST, PINNED, CUDA, WRITABLE = 1, 2, 3, 1
        for kind in (OldCuda, NewCuda):
            tensor = kind((2, 3), device=(2, 1), offset=8)
            address = ctypes.addressof(tensor.memory) + 8
            seen = await self.dev.look(tensor, writable=True, device=1, stream=7)
            assert seen == [CUDA, 1, WRITABLE, address, 24, 2, 32, 0, 2, 3, 12, 4], seen
            assert tensor.asked["stream"] == 7 and tensor.asked.get("max_version", (1, 0)) == (1, 0), tensor.asked
            assert (await self.dev.look(tensor))[1] == 1 and tensor.asked["stream"] == 2
        # Managed memory is on whichever device uses it; pinned memory knows no stream.
        seen = await self.dev.look(NewCuda((4,), device=(13, 0)), device=1)
        assert seen[:2] == [CUDA, 1] and seen[4] == 16, seen
        pinned = NewCuda((4,), device=(3, 0))
        assert (await self.dev.look(pinned, device=1))[:2] == [PINNED, 0] and pinned.asked["stream"] is None
        assert (await self.dev.look(Numb((4,), device=(3, 0))))[0] == PINNED
        turned = NewCuda((2, 3), device=(2, 0), strides=(1, 2))
        assert (await self.dev.look(turned, strided=True))[8:] == [2, 3, 4, 8]
        assert (await self.dev.look(FrozenCuda((2,), device=(2, 0))))[2] == 0

        array = Array(stream=5)
        seen = await self.dev.look(array, writable=True, device=1)
        assert seen == [CUDA, 1, WRITABLE, array.address, 24, 2, 32, 5, 2, 3, 12, 4], seen
        for more, after in (({"version": 2}, 0), ({"stream": None}, 0), ({"stream": 1}, 1), ({"stream": 2}, 2),
                            ({"strides": None}, 0), ({"strides": (12, 4)}, 0), ({"mask": None, "descr": [("", "<f4")]}, 0)):
            seen = await self.dev.look(Array(**more))
            assert seen[7:] == [after, 2, 3, 12, 4], (more, seen)
        assert (await self.dev.look(Array(strides=(4, 8)), strided=True))[8:] == [2, 3, 4, 8]
        assert (await self.dev.look(Array(strides=(77 * 4, 4), shape=(1, 3))))[8:] == [1, 3, 12, 4]
        assert (await self.dev.look(Array((0, 3), data=(0, False))))[4] == 0
        assert (await self.dev.look(Array((), "|b1", readonly=True)))[4:] == [1, 3, 8, 0]
        for typestr, code, bits in (("|i1", 0, 8), ("<i8", 0, 64), ("|u1", 1, 8), ("=u1", 1, 8), ("<f2", 2, 16),
                                    ("<f8", 2, 64), ("<c8", 3, 64), ("<c16", 3, 128), ("|b1", 3, 8)):
            assert (await self.dev.look(Array((1,), typestr)))[5:7] == [code, bits], typestr

        # What comes in is a Buffer of its own, the same memory, for ops that take a device's.
        for make in (lambda: NewCuda((2, 3), device=(2, 0), name="in"), Array):
            source = make()
            where = source.address if isinstance(source, Array) else ctypes.addressof(source.memory)
            gone = weakref.ref(source)
            inside = await self.dev.import_(source, writable=True, device=0)
            assert type(inside) is bulkhead.Buffer and (inside.device, inside.dtype, inside.shape, inside.address) == ("cuda:0", "float32", (2, 3), where)
            await self.dev.fill(inside, 0x42)
            assert ctypes.string_at(where, 24) == b"B" * 24
            assert (await self.dev.import_(inside)) is inside
            assert inside.__cuda_array_interface__["data"] == (where, False) and inside.__dlpack_device__() == (2, 0)
            del source
            gc.collect()
            assert gone() is not None
            inside = None
            for _ in range(30000):
                if gone() is None:
                    break
                await asyncio.sleep(0.002)
            assert gone() is None
        assert [d[0] for d in tensors.DELETED].count("in") == 1 and not tensors.LIVE and not tensors.TWICE, tensors.LIVE
        main = threading.main_thread().ident
        assert all(d[1] == main for d in tensors.DELETED if d[0] == "in")
        turned = await self.dev.import_(NewCuda((2, 3), device=(2, 0), strides=(1, 2)), strided=True)
        assert turned.__cuda_array_interface__["strides"] == (4, 8)
        assert (await self.dev.info(turned))[8:] == [2, 3, 4, 8]
        assert "C-contiguous" in self.raises(bulkhead.BadArgument, lambda: self.dev.read(turned)).facts["reason"]
        half = await self.dev.import_(NewCuda((2,), code=4, bits=16, device=(2, 0)))
        assert half.dtype == "bfloat16" and not hasattr(half, "__cuda_array_interface__")
        """,
    )
    assert h.stop() == 0


def test_what_a_device_cannot_reach_or_nobody_can_read_is_refused_with_what_and_where(host):
    h = check(
        host,
        """
        import tensors
        from arrays import Array, Broken, FrozenCuda, NewCuda, Numb, OldCuda, Other
        field = lambda name: f"its __cuda_array_interface__['{name}'] is "
        no = lambda name: f"its __cuda_array_interface__ has no '{name}'; accepted: "
        class Index:
            def __index__(self):
                raise ZeroDivisionError
        table = [
            (Array(version=...), no("version") + "2 or 3"),
            (Array(version=1), field("version") + "1; accepted: 2 or 3"),
            (Array(version=4), field("version") + "4"),
            (Array(version="3"), field("version") + "'3'"),
            (Array(version=True), field("version") + "True"),
            (Array(shape=...), no("shape")),
            (Array(shape=[2, 3]), field("shape") + "[2, 3]; accepted: a tuple"),
            (Array(shape=(2, -1)), field("shape")), (Array(shape=(2.0,)), field("shape")), (Array(shape=(True,)), field("shape")),
            (Array(shape=("2",)), field("shape")), (Array(shape=(None,)), field("shape")), (Array(shape=(1,) * 9), field("shape")),
            (Array(shape=(2**63,)), field("shape")), (Array(shape=(2**62, 4)), field("shape")), (Array(shape=(Index(),)), field("shape")),
            (Array(typestr=...), no("typestr") + "little-endian"),
            (Array(typestr=4), field("typestr") + "4"), (Array(typestr=b"<f4"), field("typestr")),
            *((Array(typestr=t), field("typestr") + repr(t)) for t in (
                "", "<", "<f", "f4", "f", ">f4", "!f4", "|f4", "<f3", "<f16", "<f-4", "<f 4", "<f+4", "<f04", "<f4x", "<i16", "<u3",
                "<c4", "<b2", "|V4", "<O8", "<M8", "<U4", "|S4", "<F4", "<\\u20ac4", "\\ud800f4", "<f4\\0", "<f44444444444444444444")),
            (Array(data=...), no("data") + "a tuple (address, read-only)"),
            *((Array(data=d), field("data")) for d in (
                None, 5, [5, False], (), (5,), (5, False, 1), (-5, False), (2**64, False), (5.0, False), ("5", False), (True, False),
                (None, False), (0, False), (5, 0), (5, None), (2**64 - 8, False), (Index(), False))),
            (Array(mask=Array()), field("mask")), (Array(mask=()), field("mask")), (Array(mask=0), field("mask")),
            (Array(strides=(4, 8)), "accepted: C-contiguous memory: pass a contiguous copy"),
            *((Array(strides=s), field("strides")) for s in ((12,), (12, 4, 1), [12, 4], 12, (12, 3), (12, 4.0), (12, None), (2**63, 4), ("12", "4"))),
            *((Array(stream=s), field("stream")) for s in (0, -1, 2**64, "1", 1.0, True, ())),
            (Array(readonly=True), "its memory is read-only and the op writes to it"),
            (Other(), "its __cuda_array_interface__ is a list; accepted: a dict"),
            (OldCuda((2,), device=(1, 0)), 'copy it there first: await bulkhead.cuda.pool("cuda").to_device(x)'),
            (NewCuda((2,), device=(2, 1)), "on the device cuda:1 and the op works on cuda:0"),
            (NewCuda((2,), device=(2, 0), says=(3, 0)), "__dlpack_device__() says 3 and its tensor is on a device of the type 2"),
            (NewCuda((2,), device=(2, 1), says=(2, 0)), "on the device cuda:1 and the op works on cuda:0"),
            (NewCuda((2,), device=(1, 0), says=(2, 0)), "to_device(x)"),
            (NewCuda((2,), device=(10, 0)), "on the DLPack device (10, 0); accepted: CUDA's (2, n)"),
            (NewCuda((2,), device=(2, 0), says="cuda"), "must return (device type, device id)"),
            (NewCuda((2, 3), device=(2, 0), strides=(1, 2)), "not C-contiguous"),
            (NewCuda((2,), device=(2, 0), lanes=4), "4 lanes"), (NewCuda((2,), device=(2, 0), bits=4), "4 bits"),
            (NewCuda((2, -1), device=(2, 0)), "no sound shape"), (NewCuda((2,), device=(2, 0), null=True), "or no memory"),
            (NewCuda((1,) * 9, device=(2, 0)), "at most 8"), (FrozenCuda((2,), device=(2, 0)), "read-only"),
            (Numb((2,), device=(2, 0)), "unexpected keyword argument"),
            (bytearray(4), "to_device(x)"), (bulkhead.Buffer.allocate(4), "to_device(x)"),
            (await self.dev.alloc([2], device=1), "on the device cuda:1 and the op works on cuda:0; copy it there first"),
            (await self.dev.alloc([2], writable=False), "read-only"),
            (None, "None has no memory of a CUDA device to give"), (7, "int has no memory"), ("x", "str has no memory"),
            (Broken(), "the array is on fire"),
        ]
        for given, part in table:
            call = lambda: self.dev.look(given, writable=True, device=0)
            shown = getattr(given, "fields", given)
            try:
                error = await self.fails((BufferError, TypeError, ValueError, RuntimeError), call)
            except AssertionError:
                raise AssertionError(f"taken: {shown}")
            assert part in str(error), (shown, part, error)
            assert "(pool dev asked this " in "".join(error.__notes__) and "writable memory that a CUDA device reaches" in error.__notes__[0]
        gc.collect()
        # What a plugin gets wrong is refused before the object is asked.
        asked = OldCuda((2,), device=(2, 0))
        for more in ({"stream": 0}, {"device": -2}):
            await self.fails(bulkhead.PluginError, lambda: self.dev.look(asked, **more))
        assert not hasattr(asked, "asked")
        # A tensor of a device is no argument; what to do is said.
        todo = 'await bulkhead.cuda.pool("cuda").import_(x)'
        for given in (NewCuda((2,), device=(2, 0)), OldCuda((2,), device=(13, 0)), Array()):
            for op in (self.dev.read, self.dev.read_host):
                error = self.raises(bulkhead.BadArgument, lambda: op(given))
                assert todo in error.facts["reason"] and error.facts["parameter"] == "memory", error
            assert todo in str(await self.fails(BufferError, lambda: self.slot.look(given)))
        table = given = asked = shown = None
        gc.collect()
        assert not tensors.TWICE
        for _ in range(30000):
            if not tensors.LIVE:
                break
            await asyncio.sleep(0.002)
        assert not tensors.LIVE, tensors.LIVE
        """,
    )
    assert h.stop() == 0


@pytest.mark.parametrize("rounds", [300])
def test_frees_race_with_uses_and_exports_and_nobody_reads_what_is_gone(host, rounds):
    """Several threads use, export and drop what a task frees: each is served or told that it has been freed."""
    h = check(
        host,
        f"""
        def use(memory, out):
            pool = self.dev
            try:
                while True:
                    pool.read(memory).result(30)
                    out.append("read")
            except (bulkhead.BadArgument, bulkhead.Cancelled) as error:
                assert "freed" in str(error), error
            if len(out) % 2:
                try:
                    memory.__cuda_array_interface__
                    out.append("shared")
                except BufferError:
                    pass
        outcomes = []
        for i in range({rounds}):
            memory, seen = await self.dev.alloc([64]), []
            threads = [threading.Thread(target=use, args=(memory, seen)) for _ in range(2)]
            for thread in threads:
                thread.start()
            while i % 3 and not seen:
                await asyncio.sleep(0)
            outcomes.append(await self.dev.free(memory))
            for thread in threads:
                await asyncio.to_thread(thread.join)
        assert len(outcomes) == {rounds}
        """,
    )
    assert h.stop() == 0
