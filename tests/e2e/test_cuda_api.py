# SPDX-License-Identifier: BSD-3-Clause
"""bulkhead.cuda, what apps see of the cuda plugin: by itself, over a pool that writes down what it is asked for.

tests/e2e/test_cuda_app.py has it over the plugin, on the test double of the driver.
"""

from __future__ import annotations

import array
import asyncio
import gc
import importlib
import mmap
import pathlib
import sys
import warnings

import pytest
from conftest import stage


@pytest.fixture(scope="module")
def bulkhead():
    """The staged package, in this process: outside a host."""
    sys.path.insert(0, str(stage() / "share/bulkhead/python"))
    try:
        importlib.import_module("bulkhead.cuda")
        yield importlib.import_module("bulkhead")
    finally:
        sys.path.pop(0)


class Run:
    """A task that has ended, or ends when it is told to."""

    _accepted = True

    def __init__(self, result=None, error=None, later=False):
        self.value, self.error = result, error
        self.callbacks = []
        self.outcome = None if later else "done" if error is None else "failed"

    def __await__(self):
        if self.outcome is None:
            yield from asyncio.get_running_loop().create_future()
        return self.result()

    def result(self):
        if self.error is not None:
            raise self.error
        return self.value

    def add_done_callback(self, function):
        self.callbacks.append(function)

    def end(self):
        self.outcome = "done"
        for function in self.callbacks:
            function(self)


OPS = ("info alloc alloc_host free pin unpin copy memset import_memory stream stream_close record wait synchronize event_close module "
       "module_file module_close launch fill scale axpy add mul sum max dot matvec top_k").split()  # fmt: skip


class Pool:
    """Writes down what it is asked for; `answers` says what comes of it: a result, an exception, a Run."""

    def __init__(self, label="cuda"):
        self.label = label
        self.asked = []
        self.answers = {}
        self.ops = {name: self.op(name) for name in OPS}

    def op(self, name):
        def run(*args, timeout=None, wait=False, **kwargs):
            self.asked.append((name, *args, *(v for v in kwargs.values() if v is not None)))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer if isinstance(answer, Run) else Run(answer)

        return run

    def __getattr__(self, name):
        return self.ops[name]


@pytest.fixture
def pool():
    return Pool()


@pytest.fixture
def cuda(bulkhead, pool):
    return bulkhead.cuda.Cuda(pool)


# ---- numbers


def test_typed_numbers_say_their_type_and_refuse_what_does_not_fit(bulkhead):
    c = bulkhead.cuda
    assert c.f32(2) == ("f32", 2.0) and isinstance(c.f32(2).value, float)
    assert c.f64(1e300) == ("f64", 1e300) and c.f32(float("inf")).value == float("inf")
    for name, least, most in (
        ("i8", -(1 << 7), (1 << 7) - 1), ("u8", 0, (1 << 8) - 1), ("i16", -(1 << 15), (1 << 15) - 1),
        ("u16", 0, (1 << 16) - 1), ("i32", -(1 << 31), (1 << 31) - 1), ("u32", 0, (1 << 32) - 1),
        ("i64", -(1 << 63), (1 << 63) - 1), ("u64", 0, (1 << 64) - 1), ("ptr", 0, (1 << 64) - 1),
    ):  # fmt: skip
        make = getattr(c, name)
        assert make(least) == (name, least) and make(most) == (name, most)
        for beyond in (least - 1, most + 1):
            with pytest.raises(OverflowError, match=f"{name}.*{least} to {most} fit"):
                make(beyond)
        for wrong in (1.0, "1", True, None):
            with pytest.raises(TypeError):
                make(wrong)
    with pytest.raises(OverflowError, match=r"f32\(1e\+300\).*32 bits"):
        c.f32(1e300)
    for wrong in ("1", True, None, [1]):
        with pytest.raises(TypeError):
            c.f32(wrong)
    for wrong in (1, 0.0, None, "True"):
        with pytest.raises(TypeError, match="True or False"):
            c.bool_(wrong)


def test_numpys_scalars_are_typed_numbers(bulkhead):
    numpy = pytest.importorskip("numpy")
    c = bulkhead.cuda
    for dtype, made in (("float32", c.f32), ("float64", c.f64), ("int8", c.i8), ("uint16", c.u16), ("int64", c.i64), ("uint64", c.u64)):
        assert c._argument(getattr(numpy, dtype)(7)) == made(7)
    assert c._argument(numpy.bool_(True)) == c.bool_(True) == ("bool", True)
    assert c._argument(numpy.uint64((1 << 64) - 1)) == ("i64", -1)  # an op's ints end at 2**63 - 1: the same 64 bits
    assert c._argument(numpy.float16(1)).dtype == "float16"  # the op says what it makes of it
    for same in (1, 1.5, True, "x", numpy.zeros(3), c.f32(1)):
        assert c._argument(same) is same


def test_all_64_bits_of_a_number_get_through(bulkhead):
    c = bulkhead.cuda
    assert c._argument(c.u64((1 << 63) - 1)) == ("u64", (1 << 63) - 1)
    assert c._argument(c.u64(1 << 63)) == ("i64", -(1 << 63)) and c._argument(c.ptr((1 << 64) - 1)) == ("i64", -1)


# ---- what an array of the host's becomes


@pytest.mark.parametrize(
    "memory, shape, dtype",
    [
        (b"abc", [3], "uint8"), (bytearray(0), [0], "uint8"), (array.array("f", [1, 2]), [2], "float32"),
        (array.array("d", [1]), [1], "float64"), (array.array("h", [1]), [1], "int16"), (array.array("Q", [1]), [1], "uint64"),
        (memoryview(bytearray(24)).cast("i", (2, 3)), [2, 3], "int32"), (memoryview(b"\1\0").cast("?"), [2], "bool"),
        (memoryview(b"ab").cast("c"), [2], "uint8"), (mmap.mmap(-1, 4096), [4096], "uint8"),
    ],
)  # fmt: skip
def test_shape_and_type_are_those_of_the_array(bulkhead, memory, shape, dtype):
    assert bulkhead.cuda._described(memory) == (shape, dtype)


def test_arrays_of_numpy_and_torch_say_them_themselves(bulkhead):
    numpy = pytest.importorskip("numpy")
    described = bulkhead.cuda._described
    assert described(numpy.zeros((2, 3))) == ([2, 3], "float64")
    assert described(numpy.zeros((), "complex64")) == ([], "complex64")
    assert described(numpy.zeros((0, 5), "bool")) == ([0, 5], "bool")
    with pytest.raises(ValueError, match="byte order"):
        described(numpy.zeros(2, ">f4"))
    torch = pytest.importorskip("torch")
    assert described(torch.zeros(4, 1, dtype=torch.bfloat16)) == ([4, 1], "bfloat16")


@pytest.mark.parametrize("wrong", [None, 5, "text", [1.0], object()])
def test_what_is_no_memory_is_refused_before_anything_is_asked(cuda, pool, wrong):
    with pytest.raises(TypeError, match="memory of the host is wanted"):
        cuda.to_device(wrong)
    assert pool.asked == []


def test_shapes_and_types_reach_alloc_as_lists_and_names(cuda, pool):
    cuda.alloc(5)
    cuda.alloc((2, 3), "int8", False)
    cuda.alloc([], float)
    cuda.alloc(1, type("float16", (), {}))
    cuda.alloc_host((4, 4))
    assert pool.asked == [("alloc", [5], "float32", True), ("alloc", [2, 3], "int8", False), ("alloc", [], "float64", True),
                          ("alloc", [1], "float16", True), ("alloc_host", [4, 4], "float32")]  # fmt: skip
    for wrong in (1.5, "3", None, (1, 2.5)):
        with pytest.raises(TypeError, match="shape"):
            cuda.alloc(wrong)


# ---- what is open until it is closed


def made(pool, cuda):
    """One of each."""

    async def make():
        pool.answers |= {"stream": 7, "record": 8, "module": 9}
        stream = await cuda.stream(-1)
        return stream, await stream.record(), await cuda.module(b"image"), await cuda.pin(bytearray(1))

    return asyncio.run(make())


CLOSING = ("stream_close", "event_close", "module_close", "unpin")


def test_each_is_closed_once(cuda, pool):
    opened = made(pool, cuda)

    async def close():
        for thing in opened:
            assert not thing.closed
            async with thing as same:
                assert same is thing
            assert thing.closed
            await thing.close()

    pool.asked.clear()
    asyncio.run(close())
    assert [asked[0] for asked in pool.asked] == list(CLOSING)
    for thing in opened:
        assert "closed" in repr(thing)


def test_what_is_collected_open_is_closed_with_a_warning(cuda, pool):
    opened = made(pool, cuda)
    pool.asked.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del opened
        gc.collect()
    assert sorted(str(w.message).split(" ")[0] for w in caught if w.category is ResourceWarning) == [
        f"<bulkhead.cuda.{name}" for name in ("Event", "Module", "Pinned", "Stream")]  # fmt: skip
    assert sorted(asked[0] for asked in pool.asked) == sorted(CLOSING)


def test_what_a_failed_pool_had_is_closed(bulkhead, cuda, pool):
    opened = made(pool, cuda)
    pool.answers |= {name: bulkhead.PluginError("cuda.fault") for name in CLOSING}

    async def close():
        for thing in opened:
            await thing.close()

    asyncio.run(close())
    assert all(thing.closed for thing in opened)


def test_what_a_full_pool_does_not_close_is_open(bulkhead, cuda, pool):
    stream, *rest = made(pool, cuda)
    pool.answers["stream_close"] = bulkhead.Overloaded("pool.overloaded")
    with pytest.raises(bulkhead.Overloaded):
        asyncio.run(stream.close())
    assert not stream.closed
    pool.answers.clear()
    for thing in (stream, *rest):
        asyncio.run(thing.close())


@pytest.mark.parametrize("make, op, closing", [
    (lambda cuda: cuda.stream(), "stream", "stream_close"), (lambda cuda: cuda.module(b"x"), "module", "module_close"),
    (lambda cuda: cuda.pin(bytearray(1)), "pin", "unpin"),
])  # fmt: skip
def test_what_comes_after_its_waiter_was_cancelled_is_closed(cuda, pool, make, op, closing):
    pool.answers[op] = run = Run(5, later=True)

    async def cancelled():
        waiter = asyncio.ensure_future(make(cuda))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    asyncio.run(cancelled())
    assert [asked[0] for asked in pool.asked] == [op]
    run.end()
    assert [asked[0] for asked in pool.asked] == [op, closing]


def test_a_stream_of_another_pool_and_a_closed_one_are_refused(bulkhead, cuda, pool):
    stream, event, module, pinned = made(pool, cuda)
    other = bulkhead.cuda.Cuda(Pool("other"))
    with pytest.raises(ValueError, match="of 'cuda'.*op of 'other'.*its own"):
        other.memset(b"", 0, stream=stream)

    async def close():
        for thing in (stream, event, module, pinned):
            await thing.close()

    asyncio.run(close())
    for use in (lambda: cuda.memset(b"", 0, stream=stream), lambda: stream.synchronize(), lambda: stream.wait(event),
                lambda: module.launch("f", 1, 1)):  # fmt: skip
        with pytest.raises(ValueError, match="has been closed"):
            use()
    for wrong in (5, "stream", cuda.stream):
        with pytest.raises(TypeError, match="a Stream of Cuda.stream"):
            cuda.memset(b"", 0, stream=wrong)
    with pytest.raises(TypeError, match="Stream.record"):
        stream.wait(5)


# ---- what ops are asked for


def test_ops_get_what_the_methods_were_given(bulkhead, cuda, pool):
    stream, event, module, pinned = made(pool, cuda)
    pool.asked.clear()
    cuda.copy("to", "from", 1, 2, 3, stream=stream)
    cuda.memset("m", 5)
    cuda.import_("tensor", True, stream=stream)
    cuda.fill("out", 1.5, stream=stream)
    cuda.top_k("scores", 3)
    stream.wait(event)
    stream.synchronize()
    cuda.synchronize()
    module.launch("f", 8, (32, 4), [1, bulkhead.cuda.f32(2)], shared=64, stream=stream)
    assert pool.asked == [
        ("copy", "to", "from", 1, 2, 3, 7), ("memset", "m", 5, None), ("import_memory", "tensor", True, 7), ("fill", "out", 1.5, 7),
        ("top_k", "scores", 3), ("wait", 7, 8), ("synchronize", 7), ("synchronize",),
        ("launch", 9, "f", [8], [32, 4], [1, ("f32", 2.0)], 64, 7),
    ]  # fmt: skip
    for thing in (stream, event, module, pinned):
        asyncio.run(thing.close())


def test_an_image_is_bytes_or_a_path(cuda, pool):
    async def load(image):
        await (await cuda.module(image)).close()

    for image in (b"ptx", bytearray(b"ptx"), memoryview(b"ptx")):
        asyncio.run(load(image))
        assert pool.asked[-2] == ("module", b"ptx")
    for image in ("/a/b.ptx", pathlib.Path("/a/b.ptx")):
        asyncio.run(load(image))
        assert pool.asked[-2] == ("module_file", "/a/b.ptx")
    asyncio.run(load("b.ptx"))
    assert pool.asked[-2] == ("module_file", str(pathlib.Path.cwd() / "b.ptx"))
    pool.asked.clear()
    for wrong in (".version 8.0\n.target sm_75\n", 5, None, pathlib.PurePath):
        with pytest.raises(TypeError, match="image"):
            asyncio.run(load(wrong))
    assert pool.asked == []


def test_a_copy_to_the_host_needs_to_know_where_to(cuda, pool):
    for wrong in (Run(), b"bytes", None):
        with pytest.raises(TypeError, match="to_host.*await the task.*`into`"):
            cuda.to_host(wrong)
    assert pool.asked == []
    cuda.to_host("task", "into")
    assert pool.asked == [("copy", "into", "task", 0, 0, None, None)]


def test_info_says_what_is_what(bulkhead, cuda, pool):
    pool.answers["info"] = [1, "a name", "GPU-1", "0000:3b:00.0", 9, 0, 132, 1 << 37, 1 << 36, 13000, 1024, 232448]
    info = asyncio.run(cuda.info())
    assert info == bulkhead.cuda.Info(
        device=1, name="a name", uuid="GPU-1", pci="0000:3b:00.0", capability=(9, 0), multiprocessors=132, memory=1 << 37,
        free=1 << 36, driver=13000, max_threads=1024, max_shared=232448)  # fmt: skip


def test_outside_a_host_it_says_so(bulkhead):
    with pytest.raises(bulkhead.NotInHost):
        bulkhead.cuda.pool()
