# SPDX-License-Identifier: BSD-3-Clause
"""Memory in and out of ops: the buffer protocol, DLPack, bulkhead.Buffer; whose it is and for how long.

The apps check for themselves and return "ok". Tensors are made by a DLPack producer in pure Python (TENSORS), so that
no tensor library is needed.
"""

import textwrap

import pytest
from conftest import SLOW, until

MANIFEST = """
    [plugin buffer]
    library = t_buffer
    [plugin types]
    library = t_types
    [app app]
    object = app:App
"""

TENSORS = '''
    """A DLPack producer by ctypes. A tensor that was handed out is in LIVE until its deleter is called."""

    import ctypes
    import threading

    class DLTensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                    ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                    ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]

    class Plain(ctypes.Structure):
        _fields_ = [("tensor", DLTensor), ("ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    class Versioned(ctypes.Structure):
        _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("ctx", ctypes.c_void_p),
                    ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor)]

    LIVE = {}       # address of the managed tensor -> what keeps it alive
    DELETED = []    # (name, thread, the memory as it was then)
    TWICE = []
    ON_DELETE = []  # called with the name

    def delete(address):
        kept = LIVE.pop(address, None)
        if kept is None:
            TWICE.append(address)
            return
        managed, tensor, memory = kept
        DELETED.append((tensor.name, threading.get_ident(), bytes(memory)))
        for call in ON_DELETE:
            call(tensor.name)

    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(delete)
    capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi))
    capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_GetName", ctypes.pythonapi))
    capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi))
    NAMES = {False: b"dltensor", True: b"dltensor_versioned"}  # a capsule borrows its name

    def destroy(capsule):
        name = capsule_name(capsule)
        if name in NAMES.values():  # nobody has taken the tensor
            delete(capsule_pointer(capsule, name))

    destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(destroy)

    def name_of(capsule):
        return capsule_name(id(capsule))

    class Tensor:
        """Of the code and bits of DLPack; `strides` in elements."""

        versioned, major, flags = False, 1, 0

        def __init__(self, shape, code=2, bits=32, strides=None, device=(1, 0), lanes=1, offset=0, name="", size=None,
                     says=None, null=False):
            self.shape, self.code, self.bits, self.strides = shape, code, bits, strides
            self.device, self.lanes, self.offset, self.name, self.null = device, lanes, offset, name, null
            self.says = says or device
            if size is None:
                size = bits // 8
                for n in shape:
                    size *= max(n, 0)
            self.memory = (ctypes.c_char * (size + offset + 1))()
            self.capsules = []  # names of those that were asked for, to see what became of them

        def __dlpack_device__(self):
            return self.says

        def make(self):
            managed = (Versioned if self.versioned else Plain)()
            if self.versioned:
                managed.major, managed.minor, managed.flags = self.major, 0, self.flags
            t = managed.tensor
            t.data = None if self.null else ctypes.addressof(self.memory)
            t.device_type, t.device_id = self.device
            t.ndim, t.code, t.bits, t.lanes = len(self.shape), self.code, self.bits, self.lanes
            t.shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
            if self.strides is not None:
                t.strides = (ctypes.c_int64 * len(self.shape))(*self.strides)
            t.byte_offset = self.offset
            managed.deleter = ctypes.cast(deleter, ctypes.c_void_p).value
            address = ctypes.addressof(managed)
            LIVE[address] = (managed, self, self.memory)
            return capsule_new(address, NAMES[self.versioned], ctypes.cast(destructor, ctypes.c_void_p).value)

        def __dlpack__(self, stream=None):
            assert stream is None
            return self.make()

    class Modern(Tensor):
        """Of DLPack 1.0: with a version and flags."""

        versioned = True

        def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
            assert stream is None and max_version is not None and max_version[0] >= 1, max_version
            return self.make()

    class Frozen(Modern):
        flags = 1

    class Copied(Modern):
        flags = 2

    class FromTheFuture(Modern):
        major = 2
'''

HEAD = """
    import array, asyncio, ctypes, gc, mmap, os, sys, threading, weakref
    import bulkhead
    try:
        import numpy
    except ImportError:
        numpy = None
    import tensors
    from tensors import Tensor, Modern, Frozen, Copied, FromTheFuture

    def refused(call, *args, code="op.argument"):
        try:
            call(*args)
        except bulkhead.BadArgument as error:
            assert error.code == code, error
            return error.facts
        raise AssertionError("not refused")

    def raises(kind, call, *args, **kwargs):
        try:
            call(*args, **kwargs)
        except kind as error:
            return str(error)
        raise AssertionError(f"no {kind.__name__}")

    async def true(condition):
        \"\"\"Waits for what comes through the release queue, on this thread's loop.\"\"\"
        for _ in range(30000):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError("it does not become true")

    class App:
        async def start(self):
            self.types, self.buffer = bulkhead.pool("types"), bulkhead.pool("buffer")
            self.info, self.echo, self.make = self.types.info, self.buffer.echo, self.buffer.make
"""


def app(body: str) -> dict[str, str]:
    return {"app.py": textwrap.dedent(HEAD) + textwrap.indent(textwrap.dedent(body), "    "), "tensors.py": TENSORS}


def check(host, body: str, **more):
    """Runs `body` as an endpoint."""
    h = host(MANIFEST, app("@bulkhead.endpoint\nasync def check(self):\n" + textwrap.indent(textwrap.dedent(body), "    ")
                           + "\n    return 'ok'\n"), **more)  # fmt: skip
    result = h.call("check", timeout=120)
    if result.startswith("without "):
        pytest.skip(f"the host's Python is {result}")
    assert result == "ok"
    return h


# ---- the buffer protocol


def test_exporters_of_all_kinds_are_written_to_without_a_copy(host):
    check(
        host,
        """
        many = [bytearray(64), array.array("f", bytes(64)), memoryview(bytearray(64)).cast("d"), mmap.mmap(-1, 64),
                (ctypes.c_int16 * 32)(), memoryview(bytearray(64)).cast("B").cast("I", (4, 4))]
        for memory in many:
            await self.types.fill(memory, 7)
            assert bytes(memory) == b"\\7" * 64, memory
            assert await self.echo(memory) is memory
        assert await self.info(many[4]) == [0, 16, 1, 64, 32], "its format says the byte order"
        assert await self.info(many[5]) == [1, 32, 1, 64, 4, 4]
        grid = ((ctypes.c_int16 * 3) * 4)()   # ctypes says nothing of strides
        assert await self.types.strides(grid) == [6, 2] and await self.info(grid) == [0, 16, 1, 24, 4, 3]
        assert await self.info(ctypes.c_double()) == [2, 64, 1, 8]
        """,
    )


def test_an_exporter_is_locked_while_a_task_may_touch_it_and_no_longer(host):
    check(
        host,
        """
        def resize(memory):
            if isinstance(memory, mmap.mmap):
                memory.close()
            else:
                memory.extend(b"1234")

        def can(memory):
            try:
                resize(memory)
            except BufferError:
                return False
            return True

        for memory in (bytearray(8), array.array("I", [1, 2]), mmap.mmap(-1, 8)):
            await self.buffer.keep(memory)            # the task has ended, the plugin still has it
            raises(BufferError, resize, memory)
            for _ in range(3):
                await asyncio.sleep(0)
            raises(BufferError, resize, memory)
            await self.buffer.keep()                  # dropped on a worker, without the GIL
            await true(lambda: can(memory))
        """,
    )


def test_what_cannot_be_taken_is_refused_with_what_to_do(host):
    check(
        host,
        """
        if numpy is None:
            return "without numpy (Debian: python3-numpy)"
        facts = refused(self.types.fill, b"abc", 1)
        assert (facts["pool"], facts["op"], facts["parameter"], facts["given"]) == ("types", "fill", "target", "bytes")
        assert "read-only" in facts.get("reason", facts) and "bytearray(x) or x.copy()" in facts["reason"], facts
        assert "writable" in facts["accepted"] and "bulkhead.Buffer" in facts["accepted"]
        table = numpy.zeros((3, 4), numpy.float32)
        table.flags.writeable = False
        assert "read-only" in refused(self.types.fill, table, 1)["reason"]
        facts = refused(self.info, table.T)
        for text in ("not C-contiguous", "shape (4, 3)", "strides (4, 16)"):
            assert text in facts["reason"], facts
        assert "numpy.ascontiguousarray(x)" in facts["accepted"], facts
        assert await self.info(numpy.ascontiguousarray(table.T)) == [2, 32, 1, 48, 4, 3], "as it was told"
        assert "strides (-4,)" in refused(self.info, numpy.zeros(3, numpy.float32)[::-1])["reason"]
        assert "strides (2,)" in refused(self.info, memoryview(b"abcdef")[::2])["reason"]
        assert "at most 8" in refused(self.info, numpy.zeros((1,) * 9))["reason"]
        assert "reason" not in refused(self.info, 5) and refused(self.info, None)["given"] == "None"
        assert refused(self.info, object())["given"] == "object"
        # Where another step than the element's could be taken for one, none is taken.
        assert await self.info(numpy.zeros((5, 1), numpy.float32)[::5]) == [2, 32, 1, 4, 1, 1]
        assert await self.info(numpy.zeros((0, 3), numpy.float32).T) == [2, 32, 1, 0, 3, 0]
        """,
    )


# ---- DLPack in


def test_a_dlpack_tensor_is_taken_without_a_copy_and_given_back_once_on_main(host):
    h = check(
        host,
        """
        for kind in Tensor, Modern:
            for shape, code, bits, seen in (
                ((2, 3), 2, 32, [2, 32, 1, 24, 2, 3]),
                ((), 0, 64, [0, 64, 1, 8]),
                ((4,), 1, 16, [1, 16, 1, 8, 4]),
                ((0, 5), 2, 64, [2, 64, 1, 0, 0, 5]),
                ((3,), 4, 16, [3, 16, 1, 6, 3]),      # bfloat16
                ((3,), 5, 128, [3, 128, 1, 48, 3]),   # complex
                ((3,), 6, 8, [3, 8, 1, 3, 3]),        # bool
                ((3,), 99, 24, [3, 24, 1, 9, 3]),     # of tomorrow
                ((1,) * 8, 2, 32, [2, 32, 1, 4] + [1] * 8),
            ):
                tensor = kind(shape, code, bits, offset=8)
                assert await self.info(tensor) == seen, (kind, shape, code, bits)
            tensor = kind((4,), name="written")
            await self.types.fill(tensor, 7)
            assert bytes(tensor.memory)[:16] == b"\\7" * 16, "in place"
            tensor = kind((2,), offset=4)
            await self.types.fill(tensor, 9)
            assert bytes(tensor.memory) == b"\\0" * 4 + b"\\x09" * 8 + b"\\0", "from the offset on, and no further"
            assert await self.echo(tensor) is tensor, "the object that was given"
            strided = kind((2, 1, 3), strides=(3, 77, 1))   # a dimension of one element may step anyhow
            assert await self.info(strided) == [2, 32, 1, 24, 2, 1, 3]
            assert await self.info(kind((0, 3), strides=(1, 1))) == [2, 32, 1, 0, 0, 3]
            assert await self.types.strides(kind((2, 3), strides=(1, 2))) == [4, 8], "where the op takes strides"
            assert await self.types.strides(kind((2, 3))) == [12, 4]
            turned = kind((3,), code=1, bits=8, strides=(-2,), offset=4, size=5)
            await self.types.mark(turned, 9)
            assert bytes(turned.memory)[:5] == b"\\x09\\0\\x09\\0\\x09" and await self.types.strides(turned) == [-2]
            turned = None
        assert await self.types.strides(bulkhead.Buffer.allocate((2, 3, 4), "int16")) == [24, 8, 2]
        assert await self.types.strides(await self.make([2, 3])) == [12, 4]
        pinned = Tensor((2,), device=(3, 0))
        assert await self.info(pinned) == [2, 32, 1, 8, 2]
        assert await self.buffer.kind(pinned) == 2 and await self.buffer.kind(Tensor((2,))) == 1
        tensor = pinned = strided = None
        await true(lambda: not tensors.LIVE)
        assert not tensors.TWICE
        assert {thread for _, thread, _ in tensors.DELETED} == {threading.main_thread().ident}, "on main"
        assert await self.types.kinds([Tensor((1,)), 5]) == [6, 2], "a buffer in a list as well"
        await true(lambda: not tensors.LIVE)
        """,
    )
    assert h.stop() == 0


def test_a_tensor_that_does_not_fit_is_refused_with_what_to_do_and_deleted_by_its_capsule(host):
    check(
        host,
        """
        class Wrong(Tensor):
            def __dlpack__(self, stream=None):
                return "capsule"

        class Raises(Tensor):
            def __dlpack__(self, stream=None):
                raise RuntimeError("cannot export a tensor that requires a gradient, use detach()")

        class Used(Tensor):
            def __dlpack__(self, stream=None):
                if not hasattr(self, "capsule"):
                    self.capsule = self.make()
                return self.capsule

        class Shapeless(Tensor):
            def __dlpack_device__(self):
                return "cpu"

        for tensor, text in (
            (Tensor((2,), device=(2, 1)), "(2, 1)"),
            (Tensor((2,), device=(2, 1)), "tensor.cpu()"),
            (Tensor((2,), device=(2, 1), says=(1, 0)), "(2, 1)"),
            (Tensor((2, 3), strides=(1, 2)), "x.contiguous()"),
            (Tensor((2, 3), strides=(3, 0)), "not C-contiguous"),
            (Tensor((2, 3), strides=(3, -1)), "not C-contiguous"),
            (Tensor((2, 3), strides=(2**62, 1)), "no sound strides"),
            (Tensor((2,), lanes=4), "4 lanes"),
            (Tensor((2,), bits=4), "4 bits"),
            (Tensor((2,), bits=0), "0 bits"),
            (Tensor((1,) * 9), "at most 8"),
            (Tensor((-1,)), "no sound shape"),
            (Tensor((2**62, 2**62), size=8), "no sound shape"),
            (Tensor((2**61,), size=8), "no sound shape"),
            (Tensor((2,), null=True), "no memory"),
            (FromTheFuture((2,)), "2.0"),
            (Wrong((2,)), "fresh capsule"),
            (Raises((2,)), "use detach()"),
            (Shapeless((2,)), "device type, device id"),
        ):
            facts = refused(self.info, tensor)
            assert text in facts["reason"], (text, facts)
            assert facts["given"] == type(tensor).__name__ and facts["parameter"] == "buffer", facts
        for tensor in Frozen((2,)), Copied((2,)):
            text = "read-only" if tensor.flags == 1 else "copy"
            facts = refused(self.types.fill, tensor, 1)
            assert text in facts["reason"] and facts["op"] == "fill", facts
            assert await self.info(tensor) == [2, 32, int(tensor.flags != 1), 8, 2]
        used = Used((2,))
        assert await self.info(used) == [2, 32, 1, 8, 2]
        assert tensors.name_of(used.capsule) == b"used_dltensor"
        assert "fresh capsule" in refused(self.info, used)["reason"]
        tensor = used = None
        await true(lambda: not tensors.LIVE)
        assert not tensors.TWICE, "each once, by whoever had it"
        """,
    )


def test_the_buffer_protocol_comes_first_and_its_no_to_writing_is_believed(host):
    check(
        host,
        """
        if numpy is None:
            return "without numpy (Debian: python3-numpy)"
        class Both(numpy.ndarray):
            asked = 0
            def __dlpack_device__(self):
                return (1, 0)
            def __dlpack__(self, stream=None):
                Both.asked += 1
                return Tensor(self.shape).make()

        both = numpy.zeros(3, numpy.float32).view(Both)
        assert await self.info(both) == [2, 32, 1, 12, 3] and Both.asked == 0
        both.flags.writeable = False
        facts = refused(self.types.fill, both, 1)   # an unversioned tensor cannot say that it is read-only
        assert "read-only" in facts["reason"] and Both.asked == 1, facts
        assert await self.info(numpy.zeros((2, 2), numpy.float32)) == [2, 32, 1, 16, 2, 2]
        await true(lambda: not tensors.LIVE)

        dates = numpy.zeros(2, "datetime64[s]").view(Both)   # a type that the buffer protocol cannot name
        assert await self.info(dates) == [2, 32, 1, 8, 2] and Both.asked == 2
        refused(self.info, numpy.zeros(2, "datetime64[s]"))  # neither can numpy's DLPack
        assert await self.info(numpy.zeros(2, "datetime64[s]").view("int64")) == [0, 64, 1, 16, 2]
        dates = None
        await true(lambda: not tensors.LIVE)
        """,
    )


def test_pytorchs_tensors_go_in_and_buffers_come_out(host):
    check(
        host,
        """
        try:
            import torch
        except ImportError:
            return "without torch (Debian: python3-torch)"
        tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
        assert await self.info(tensor) == [2, 32, 1, 24, 2, 3]
        assert await self.echo(tensor) is tensor
        await self.types.fill(tensor, 0)
        assert tensor.abs().sum().item() == 0
        assert "contiguous" in refused(self.info, tensor.T)["reason"]
        assert "detach" in refused(self.info, tensor.clone().requires_grad_())["reason"]
        memory = bulkhead.Buffer.allocate((2, 3), torch.float32)
        view = torch.from_dlpack(memory)
        await self.types.fill(memory, 1)
        assert view.view(torch.uint8).tolist() == [[1] * 12] * 2 and view.data_ptr() == memory.address
        assert torch.from_dlpack(bulkhead.Buffer.allocate(2, torch.bfloat16)).dtype == torch.bfloat16
        """,
    )


# ---- bulkhead.Buffer


def test_a_buffer_of_the_hosts_is_what_was_asked_for(host):
    check(
        host,
        """
        Buffer = bulkhead.Buffer
        one = Buffer.allocate((2, 3))
        assert (one.shape, one.ndim, one.dtype, one.itemsize, one.nbytes, len(one)) == ((2, 3), 2, "float32", 4, 24, 2)
        assert one.readonly is False and one.address % 64 == 0 and one.alignment >= 64
        assert repr(one).startswith("<bulkhead.Buffer shape=(2, 3) dtype=float32 at 0x")
        view = memoryview(one)
        assert (view.format, view.shape, view.strides, view.readonly) == ("f", (2, 3), (12, 4), False)
        assert view.tolist() == [[0.0] * 3] * 2 and view.c_contiguous
        view[1, 2] = 5.0
        assert memoryview(one)[1, 2] == 5.0 and bytes(one)[-4:] == b"\\0\\0\\xa0\\x40"
        assert await self.info(one) == [2, 32, 1, 24, 2, 3] and await self.echo(one) is one
        await self.types.fill(one, 1)
        assert bytes(one) == b"\\1" * 24
        empty = Buffer.allocate(())
        assert empty.shape == () and empty.nbytes == 4 and memoryview(empty)[()] == 0.0
        raises(TypeError, len, empty)
        assert Buffer.allocate([3, 0, 2**40]).nbytes == 0 and await self.info(Buffer.allocate(0)) == [2, 32, 1, 0, 0]
        assert memoryview(Buffer.allocate((3, 0, 2**40))).tolist() == [[], [], []]
        for alignment in (1, 2, 4096, 2 << 20):
            assert Buffer.allocate(10, alignment=alignment).address % alignment == 0
        names = {"float16": "e", "float32": "f", "float64": "d", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
                 "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "bool": "?"}
        for name, format in names.items():
            made = Buffer.allocate(3, name)
            assert made.dtype == name and memoryview(made).format == format
            assert memoryview(made).itemsize == made.itemsize == len(bytes(made)) / 3
            assert format == "e" or memoryview(made).tolist() == [0, 0, 0]   # some memoryviews cannot read halves
        assert Buffer.allocate(1, float).dtype == "float64" and Buffer.allocate(1, int).dtype == "int64"
        assert Buffer.allocate(1, bool).dtype == "bool" and Buffer.allocate(1, dtype=complex).dtype == "complex128"
        half = Buffer.allocate(2, "bfloat16")
        assert "DLPack" in raises(BufferError, memoryview, half) and await self.info(half) == [3, 16, 1, 4, 2]
        await self.types.fill(half, 1)
        assert weakref.ref(half)() is half

        assert "power of two" in raises(ValueError, Buffer.allocate, 1, alignment=48)
        for bad in (0, -64, 4 << 20):
            raises(ValueError, Buffer.allocate, 1, alignment=bad)
        raises(OverflowError, Buffer.allocate, 1, alignment=2**70)
        raises(ValueError, Buffer.allocate, -1)
        raises(ValueError, Buffer.allocate, (0, -1))
        assert "at most 8" in raises(ValueError, Buffer.allocate, (1,) * 9)
        assert "int8" in raises(ValueError, Buffer.allocate, 1, "int7")
        for bad in ("", "float32 ", "\\0", "float32\\0", "a.float32", "torch.", None, object(), 5, "é" * 1000):
            raises(ValueError, Buffer.allocate, 1, bad)
        raises(UnicodeEncodeError, Buffer.allocate, 1, "\\udc80")
        assert "tuple of ints" in raises(TypeError, Buffer.allocate, "3")
        raises(TypeError, Buffer.allocate, 1.5)
        raises(TypeError, Buffer.allocate, (1, "2"))
        raises(TypeError, Buffer.allocate)
        raises(TypeError, Buffer)
        for huge in (2**62, (2**40, 2**40), 2**80, (2**31, 2**31), 1 << (70 if os.environ.get("SANITIZED") else 50)):
            assert raises(MemoryError, Buffer.allocate, huge) is not None
        raises(TypeError, lambda: setattr(Buffer, "x", 1))
        """,
        env={"SANITIZED": "1"} if SLOW > 1 else None,  # its allocator ends the process rather than say no
    )


def test_buffers_of_the_hosts_are_shared_with_numpy_and_others_by_dlpack(host):
    check(
        host,
        """
        if numpy is None:
            return "without numpy (Debian: python3-numpy)"
        Buffer = bulkhead.Buffer
        one = Buffer.allocate((2, 3), numpy.dtype("f8"))
        seen = numpy.asarray(one)
        assert seen.dtype == numpy.float64 and seen.shape == (2, 3) and seen.flags.writeable
        assert seen.__array_interface__["data"][0] == one.address
        seen[:] = [[1, 2, 3], [4, 5, 6]]
        assert Buffer.allocate(1, numpy.int16).dtype == "int16"
        assert "byte order" in raises(ValueError, Buffer.allocate, 1, numpy.dtype(">f8"))
        assert numpy.asarray(Buffer.allocate(2, "complex64")).dtype == numpy.complex64
        assert numpy.asarray(Buffer.allocate(2, "complex128")).dtype == numpy.complex128
        assert numpy.asarray(Buffer.allocate((), "int8")).shape == ()
        assert numpy.asarray(Buffer.allocate((0, 7), "int8")).shape == (0, 7)
        raises(ValueError, lambda: numpy.asfortranarray(numpy.frombuffer(one, dtype="f8")).reshape(7))

        shared = numpy.from_dlpack(one)
        assert shared.tolist() == [[1, 2, 3], [4, 5, 6]] and shared.__array_interface__["data"][0] == one.address
        assert one.__dlpack_device__() == (1, 0)
        address = one.address
        gone = weakref.ref(one)
        del one, seen
        assert gone() is None, "numpy keeps the memory, not the object"
        again = numpy.from_dlpack(await_none := Buffer.allocate(6, "float64"))
        assert shared.tolist() == [[1, 2, 3], [4, 5, 6]], "and it is alive"
        del shared, again, await_none

        one = Buffer.allocate(3, "uint8")
        assert tensors.name_of(one.__dlpack__()) == b"dltensor"
        assert tensors.name_of(one.__dlpack__(max_version=(1, 0))) == b"dltensor_versioned"
        assert tensors.name_of(one.__dlpack__(max_version=(0, 8))) == b"dltensor"
        assert tensors.name_of(one.__dlpack__(None, dl_device=(1, 0), copy=False)) == b"dltensor"
        raises(BufferError, one.__dlpack__, stream=1)
        raises(BufferError, one.__dlpack__, copy=True)
        raises(BufferError, one.__dlpack__, dl_device=(2, 0))
        raises(TypeError, one.__dlpack__, max_version=1)
        raises(TypeError, one.__dlpack__, max_version=(1,))

        class Wrapper:   # a buffer of the host's through DLPack into an op, by the versioned capsule
            def __init__(self, of): self.of = of
            def __dlpack_device__(self): return self.of.__dlpack_device__()
            def __dlpack__(self, **more): return self.of.__dlpack__(**more)
        await self.types.fill(Wrapper(one), 3)
        assert bytes(one) == b"\\3\\3\\3"
        closed = await self.make([2], writable=False)
        assert "read-only" in refused(self.types.fill, Wrapper(closed), 1)["reason"]
        assert "max_version" in raises(BufferError, closed.__dlpack__)
        """,
    )


def test_what_an_op_returns_as_a_buffer_is_one_that_python_can_use(host):
    check(
        host,
        """
        made = await self.make([2, 3], fill=1)
        assert type(made) is bulkhead.Buffer and made.shape == (2, 3) and made.dtype == "float32"
        assert bytes(made) == b"\\1" * 24 and made.address % 64 == 0 and not made.readonly
        assert await self.echo(made) is made, "the same memory is the same object"
        gone = weakref.ref(made)
        del made
        await true(lambda: gone() is None)

        closed = await self.make([4], 1, 8, writable=False, fill=7)
        assert closed.readonly and bytes(closed) == b"\\7" * 4 and "read-only" in repr(closed)
        assert memoryview(closed).readonly
        raises(TypeError, lambda: memoryview(closed).__setitem__(0, 1))
        facts = refused(self.types.fill, closed, 1)
        assert "read-only" in facts["reason"] and facts["op"] == "fill" and facts["given"] == "bulkhead.Buffer", facts
        assert await self.info(closed) == [1, 8, 0, 4, 4]

        odd = await self.make([2], 3, 24)
        assert odd.dtype == "opaque24" and memoryview(odd).format == "3s" and odd.itemsize == 3
        assert "opaque" in raises(BufferError, odd.__dlpack__)
        assert (await self.make([2], 3, 8)).dtype == "opaque8", "not everything of one byte is a bool"
        assert (await self.make([])).shape == () and (await self.make([0])).nbytes == 0
        assert (await self.make([1], alignment=2 << 20)).address % (2 << 20) == 0

        # A buffer that only the plugin and a task hold any more, shown anew.
        first = await self.make([3], fill=5)
        address = first.address
        await self.buffer.keep(first)
        raw = memoryview(first)
        del first
        assert bytes(raw) == b"\\5" * 12
        del raw
        await self.buffer.keep()

        for shape, code, bits, alignment in (([1] * 9, 2, 32, 64), ([-1], 2, 32, 64), ([1], 7, 32, 64), ([1], 2, 31, 64),
                                             ([1], 2, 0, 64), ([1], 2, 32, 3), ([2**62], 2, 32, 64)):
            try:
                await self.make(shape, code, bits, alignment=alignment)
            except bulkhead.PluginError as error:
                assert error.code == "t_buffer.make", error
            else:
                raise AssertionError((shape, code, bits, alignment))
        """,
    )


def test_a_buffer_outlives_its_object_while_something_uses_its_memory(host):
    check(
        host,
        """
        one = bulkhead.Buffer.allocate(1 << 20, "uint8")
        gone = weakref.ref(one)
        memory = memoryview(one)
        task = self.types.fill(one, 9)
        del one
        await task
        assert gone() is not None, "an export holds the object, as of any exporter"
        assert bytes(memory[:4]) == b"\\x09" * 4 and memory[-1] == 9
        memory.release()
        assert gone() is None
        two = bulkhead.Buffer.allocate(1 << 20, "uint8")
        address, kept = two.address, self.buffer.keep(two)
        del two
        await kept
        await self.buffer.keep()
        """,
    )


# ---- how long


def test_sup10_an_abandoned_tasks_tensor_stays_until_the_late_write_has_come(host, tmp_path):
    h = host(
        MANIFEST.replace("library = t_buffer", "library = t_buffer\n    drain_timeout = 100ms"),
        app(
            """
            @bulkhead.endpoint
            async def lose(self, go: str):
                tasks = [self.buffer.late(Tensor((4,), name="tensor"), go),
                         self.buffer.late(bytearray(16), go), self.buffer.late(bulkhead.Buffer.allocate(4), go)]
                await self.buffer.break_pool()
                outcomes = []
                for task in tasks:
                    try:
                        await task
                    except bulkhead.Abandoned as error:
                        outcomes.append(error.code)
                return outcomes

            @bulkhead.endpoint
            async def deleted(self):
                gc.collect()
                return [[name, memory.hex()] for name, _, memory in tensors.DELETED], len(tensors.LIVE), len(tensors.TWICE)
            """
        ),
    )
    assert h.call("lose", go=str(tmp_path / "go"), timeout=60) == ["task.abandoned"] * 3
    assert h.call("deleted") == [[], 1, 0], "the plugin may write to it still"
    (tmp_path / "go").touch()
    until(lambda: h.call("deleted")[0], what="the deleter's call")
    assert h.call("deleted") == [[["tensor", "ab" * 16 + "00"]], 0, 0], "what came late came into memory that was ours"
    assert h.stop() == 75


def test_gil9_what_a_plugin_still_holds_at_the_stop_is_given_back_once(host, tmp_path):
    h = host(
        MANIFEST,
        app(
            """
            @bulkhead.endpoint
            async def keep(self, path: str):
                def note(name):
                    with open(path, "a") as file:
                        print(name, threading.current_thread().name, file=file)
                tensors.ON_DELETE.append(note)
                await self.buffer.keep(Modern((4,), name="kept"))
                return "ok"
            """
        ),
    )
    assert h.call("keep", path=str(tmp_path / "deleted")) == "ok"
    assert not (tmp_path / "deleted").exists()
    assert h.stop() == 0
    assert (tmp_path / "deleted").read_text() == "kept MainThread\n"


def test_ten_thousand_tasks_with_buffers_leave_nothing_behind(host, report):
    """tracemalloc sees Python's memory, RSS sees the rest; both after one round for what is made once."""
    h = host(
        MANIFEST,
        app(
            """
            async def round(self, n):
                data = bytearray(4096)
                own = bulkhead.Buffer.allocate(1024)
                for start in range(0, n, 100):
                    tasks = []
                    for i in range(start, start + 100, 5):
                        tasks += [self.types.fill(data, i & 127),             # the buffer protocol
                                  self.info(Modern((64, 16), name="round")),  # DLPack
                                  self.types.fill(own, i & 127),              # the host's
                                  self.make([1024], fill=i & 127),            # a result of the host's
                                  self.echo(Tensor((64,)))]
                    made = await asyncio.gather(*tasks)
                    assert await self.echo(made[3]) is made[3] and await self.echo(made[4]) is made[4]
                    del made, tasks
                    tensors.DELETED.clear()
                await true(lambda: not tensors.LIVE)
                assert not tensors.TWICE

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
                entries = bulkhead.gil.stats().sites["host.release"].entries
                await self.round(n)
                entries = bulkhead.gil.stats().sites["host.release"].entries - entries
                assert entries < n, "references are dropped in batches"
                gc.collect()
                grown = tracemalloc.get_traced_memory()[0] - traced, rss() - resident
                return grown  # no stop(): CPython 3.11's races with threads that allocate without the GIL
            """
        ),
    )
    traced, resident = h.call("soak", n=10_000, timeout=240)
    report(f"10 000 tasks with buffers: {traced} bytes traced, {resident / 1024:.0f} KiB resident")
    # 10 000 leaked tensors would be 20 MB of 4 KiB each, and a leaked object a task at least 500 kB.
    assert traced < 200_000
    if SLOW == 1:  # a sanitizer keeps what is freed
        assert resident < 8 << 20
