# SPDX-License-Identifier: BSD-3-Clause
"""bulkhead.cuda over the plugin, on the test double of libcuda.so.1 (tests/fakecuda): what apps do with it.

No GPU is needed, and none is used. What the plugin does below is tests/e2e/test_cuda.py's.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import stage, test_plugins, until

BUILT = test_plugins().parents[1] / "fakecuda"
DOUBLE = next((path.parent for path in sorted(BUILT.rglob("libcuda.so.1"))), None)
if not (stage() / "lib/bulkhead/plugins/cuda.so").exists():
    pytest.skip("built without the cuda plugin", allow_module_level=True)
if DOUBLE is None:
    pytest.skip(f"no test double of the driver in {BUILT}: make check builds it", allow_module_level=True)

APP = '''
import array, asyncio, gc, textwrap, types, warnings
import bulkhead, bulkhead.cuda
from bulkhead.cuda import const, f32, i32, ptr, u32, u64

PTX = b"""
.version 7.5
.target sm_75
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u32 n) { ret; }
.visible .entry spin(.param .u64 ns) { ret; }
.visible .entry empty() { ret; }
.visible .entry trap() { ret; }
.visible .entry store(.param .u64 where, .param .u32 value) { ret; }
"""

async def failure(awaitable):
    """[class, code, facts] of what it raises; None when it is done well."""
    try:
        await awaitable
    except bulkhead.BulkheadError as error:
        return [type(error).__name__, error.code, error.facts]
    return None

class Foreign:
    """Another library's array over memory of a Buffer's."""

    def __init__(self, buffer, **changes):
        self.buffer = buffer
        self.said = {"version": 3, "shape": buffer.shape, "typestr": "<f4", "strides": None,
                     "data": (buffer.address, False), "stream": None} | changes

    @property
    def __cuda_array_interface__(self):
        return self.said

class App:
    async def start(self, app):
        self.names = {"g": types.SimpleNamespace(), **globals()}
        for label in app.options.get("pools", "cuda").split():
            self.names[label] = bulkhead.cuda.pool(label)
        if "stream" in app.options:
            self.names["stream"] = bulkhead.pool("stream")

    @bulkhead.endpoint
    async def run(self, source: str, args: dict[str, object]) -> object:
        exec("async def run():\\n" + textwrap.indent(textwrap.dedent(source), "    "), self.names | args, names := {})
        return await names["run"]()
'''


@pytest.fixture
def app(host):
    """app(pools="cuda", options="", rest="", env={}) -> App: a host with that app over the double."""

    def start(pools: str = "cuda", options: str = "", rest: str = "", env: dict[str, str] | None = None):
        sections = "".join(
            f"[plugin {label}]\nlibrary = cuda\ndevice = {i}\n{options}\n" for i, label in enumerate(pools.split()))
        stream = "option.stream = yes\n" if "[plugin stream]" in rest else ""
        h = host(f"{sections}{rest}\n[app app]\nobject = device:App\noption.pools = {pools}\n{stream}", {"device.py": APP},
                 env={"LD_LIBRARY_PATH": str(DOUBLE)} | (env or {}))  # fmt: skip
        h.run = lambda source, timeout=60.0, **args: h.call("run", source=source, args=args, timeout=timeout)
        return h

    return start


def needs_kernels(code) -> None:
    if code == "cuda.kernels":
        pytest.skip("built without nvcc: the plugin has no arithmetic")


def metric(h, name: str, label: str = "cuda") -> float:
    for line in h.get("/metrics").text.splitlines():
        if line.startswith(f'bulkhead_plugin_cuda_{name}{{plugin="{label}"}}'):
            return float(line.rsplit(" ", 1)[1])
    raise KeyError(name)


STREAM = "[plugin stream]\nlibrary = stream\n"

# ---- memory


def test_arrays_come_back_as_they_went(app):
    h = app()
    assert h.run(
        """
        shown = []
        grid = memoryview(bytearray(range(24))).cast("i", (2, 3))
        flags = memoryview(b"\\1\\0").cast("?")
        for given in (b"abc", bytearray(0), array.array("d", [1.5, 2.5]), grid, flags):
            there = await cuda.to_device(given)
            here = await cuda.to_host(there)
            assert bytes(memoryview(here)) == bytes(memoryview(given)), given
            assert here.shape == there.shape and here.dtype == there.dtype
            shown.append([list(there.shape), there.dtype])
        return shown
        """) == [[[3], "uint8"], [[0], "uint8"], [[2], "float64"], [[2, 3], "int32"], [[2], "bool"]]  # fmt: skip
    until(lambda: metric(h, "buffers") == 0, what="all memory freed with its last reference")
    assert metric(h, "copied_in_bytes_total") == metric(h, "copied_out_bytes_total") == 3 + 16 + 24 + 2


def test_numpys_arrays_come_back_in_the_array_that_was_given(app, needs):
    needs("numpy")
    h = app()
    assert h.run(
        """
        import numpy
        given = numpy.arange(12, dtype="float32").reshape(3, 4)
        into = numpy.zeros((3, 4), "float32")
        there = cuda.to_device(given)
        result = await cuda.to_host(there, into)
        assert result is into and (into == given).all()
        scalar = await cuda.to_device(numpy.float64(2.5).reshape(()))
        assert scalar.shape == () and numpy.asarray(await cuda.to_host(scalar)) == 2.5
        refused = []
        for wrong in (given[:, ::2], given.T):
            try:
                await cuda.to_device(wrong)
            except bulkhead.BadArgument as error:
                refused.append(error.facts["parameter"])
        for wrong in (numpy.zeros(2, ">f4"), numpy.zeros(2, [("a", "i4")])):
            try:
                await cuda.to_device(wrong)
            except (ValueError, bulkhead.PluginError) as error:
                refused.append(type(error).__name__)
        return refused
        """)[2:] == ["ValueError", "PluginError"]  # fmt: skip


def test_memory_that_is_not_there_is_one_tasks_trouble(app):
    """to_device() is two ops inside, and fails as one."""
    h = app(env={"FAKECUDA_MEMORY": "1M"})
    alone, inside, after, works = h.run(
        """
        large = bytearray(2 << 20)
        alone = await failure(cuda.alloc(2 << 20, "uint8"))
        inside = await failure(cuda.to_device(large))
        after = await failure(cuda.memset(cuda.alloc(1 << 20), 0))
        return alone, inside, after, list(memoryview(await cuda.to_host(await cuda.to_device(b"on"))))
        """)  # fmt: skip
    for error in (alone, inside):
        assert error[:2] == ["PluginError", "cuda.out_of_memory"]
        assert error[2]["asked"] == str(2 << 20) and error[2]["total"] == str(1 << 20)
    assert after[0] == "DependentError" and after[2]["root_code"] == "cuda.out_of_memory"
    assert works == list(b"on")


def test_copies_and_sets_are_of_bytes_and_stay_within_bounds(app):
    h = app()
    text, errors = h.run(
        """
        x = await cuda.alloc(16, "uint8")
        await cuda.memset(x, 0x2e)
        assert await cuda.copy(x, b"0123456789", 4, 2, 3) is x
        y = await cuda.alloc(16, "uint8", zero=False)
        await cuda.copy(y, x)
        text = bytearray(16)
        assert await cuda.to_host(y, text) is text
        errors = [await failure(cuda.copy(x, b"12", 15)), await failure(cuda.copy(x, b"12", 0, 3)),
                  await failure(cuda.copy(x, b"12", 0, 0, 3)), await failure(cuda.memset(x, 256))]
        return text.decode(), errors
        """)  # fmt: skip
    assert text == "....234........."
    assert [error[1] for error in errors] == ["cuda.range", "cuda.range", "cuda.range", "cuda.value"]


def test_freed_memory_says_that_it_has_been_freed(app):
    h = app()
    errors = h.run(
        """
        x = await cuda.alloc(16)
        await cuda.free(x)
        errors = []
        for use in (lambda: cuda.memset(x, 0), lambda: cuda.to_host(x), lambda: cuda.free(x)):
            try:
                await use()
            except bulkhead.BulkheadError as error:
                errors.append(str(error))
        return errors
        """)  # fmt: skip
    assert len(errors) == 3 and all("freed" in error for error in errors), errors
    assert metric(h, "buffers") == 0


def test_pinned_memory_is_pinned_until_it_is_closed_or_gone(app):
    h = app()
    h.run(
        """
        g.kept = await cuda.alloc_host((64, 64))
        g.other = bulkhead.Buffer.allocate(4096, "uint8", alignment=4096)
        g.pin = await cuda.pin(g.other)
        import mmap
        g.more = await cuda.pin(mmap.mmap(-1, 8192))
        """)  # fmt: skip
    assert metric(h, "pinned_bytes") == 64 * 64 * 4 + 4096 + 8192
    h.run(
        """
        memoryview(g.other)[:] = bytes(range(256)) * 16
        there = await cuda.to_device(g.other)
        await cuda.copy(g.kept, there)
        assert bytes(memoryview(g.kept).cast("B")[:4096]) == bytes(memoryview(g.other))
        await g.pin.close()
        await g.more.close()
        del g.kept
        """)  # fmt: skip
    until(lambda: metric(h, "pinned_bytes") == 0, what="nothing pinned")


# ---- streams, events, modules


def test_arithmetic_takes_tasks_and_agrees_with_the_stream_plugin(app):
    h = app(rest=STREAM)
    said = h.run(
        """
        x, y = array.array("f", [3, 1, 4, 1, 5, 9, 2, 6]), array.array("f", [2, 7, 1, 8, 2, 8, 1, 8])
        a, b = await cuda.to_device(x), cuda.to_device(y)
        try:
            assert await cuda.dot(a, b) == await stream.dot(x, y)
        except bulkhead.PluginError as error:
            return error.code
        assert await cuda.sum(cuda.to_device(x)) == sum(x) and await cuda.max(a) == 9
        assert await cuda.top_k(a, 3) == await stream.top_k(x, 3)
        await cuda.axpy(a, 2, b)
        await stream.axpy(x, 2, y)
        await cuda.scale(a, 0.5)
        await stream.scale(x, 0.5)
        out = await cuda.alloc(8)
        await cuda.add(out, a, b)
        await cuda.mul(out, out, out)
        expected = array.array("f", bytes(32))
        await stream.add(expected, x, y)
        await stream.mul(expected, expected, expected)
        assert bytes(memoryview(await cuda.to_host(out)).cast("B")) == expected.tobytes()
        m = await cuda.to_device(memoryview(bytearray(array.array("f", range(16)).tobytes())).cast("f", (2, 8)))
        r = await cuda.alloc(2)
        await cuda.fill(out, 1)
        await cuda.matvec(r, m, out)
        assert list(memoryview(await cuda.to_host(r))) == [sum(range(8)), sum(range(8, 16))]
        return "same"
        """)  # fmt: skip
    needs_kernels(said)
    assert said == "same"


def test_kernels_get_their_arguments_and_their_memory_is_held(app):
    h = app()
    assert h.run(
        """
        async with await cuda.module(PTX) as module, await cuda.stream() as s:
            x = await cuda.to_device(array.array("I", range(100)))
            await module.launch("add_one", 1, 128, [x, 100])
            await module.launch("add_one", (1,), (64, 1, 1), [x, u32(50)], stream=s)
            last = module.launch("add_one", 1, 128, [cuda.copy(await cuda.alloc(100, "uint32"), x), 1], stream=s)
            await module.launch("empty", 1, 1)
            del x
            await last
            y = await cuda.to_device(array.array("I", [7]))
            await module.launch("store", 1, 1, [y, i32(-1)])
            return list(memoryview(await cuda.to_host(y)))
        """) == [0xFFFFFFFF]  # fmt: skip


def test_a_refused_argument_is_named(app):
    h = app()
    errors = h.run(
        """
        x = await cuda.to_device(array.array("I", [1]))
        async with await cuda.module(PTX) as module:
            launch = module.launch
            return [await failure(launch("nobody", 1, 1)), await failure(launch("empty", 0, 1)),
                    await failure(launch("empty", 1, [1, 2, 3, 4])), await failure(launch("empty", 1, 1, [1])),
                    await failure(launch("add_one", 1, 1, [x, 1 << 40])), await failure(launch("add_one", 1, 1, [x, f32(1), 2])),
                    await failure(launch("add_one", 1, 1, [True, 1])), await failure(launch("add_one", 1, 1, ["x", 1])),
                    await failure(launch("empty", 1, 1, shared=1 << 30)), await failure(cuda.module(b".version 7.5 BROKEN")),
                    await failure(cuda.module("/nowhere/k.ptx"))]
        """)  # fmt: skip
    told = [(error[1], error[2].get("parameter")) for error in errors]
    assert told[0] == ("cuda.function", "name")
    assert told[1] == ("cuda.launch", "grid") and told[2] == ("cuda.launch", "block")
    assert [code for code, _ in told[3:9]] == ["cuda.launch"] * 6
    assert [parameter for _, parameter in told[4:9]] == ["args[1]", "args", "args[0]", "args[0]", "shared"], told
    assert told[9][0] == "cuda.module" and told[10] == ("cuda.file", "path")


def test_an_event_orders_one_stream_behind_another(app, tmp_path):
    """The device is held up at the first thing that it is given, and nothing of Bulkhead's waits for it."""
    control = tmp_path / "control"
    control.write_text("")
    h = app(env={"FAKECUDA_CONTROL": str(control)})
    assert h.run(
        """
        async with await cuda.module(PTX) as module, await cuda.stream() as first, await cuda.stream(-1) as second:
            x = await cuda.to_device(array.array("I", [0]))
            y = await cuda.alloc(1, "uint32")
            with open(control, "w") as file:
                file.write("hang_op 1\\n")
            stored = module.launch("store", 1, 1, [x, 5], stream=first)
            async with await first.record() as event:
                await second.wait(event)
            copied = cuda.copy(y, x, stream=second)
            await cuda.info()  # one worker: what was submitted before has been given to the device
            pending = [stored.done(), copied.done()]
            with open(control, "w"):
                pass
            await copied
            await stored  # which of the two is told first is not promised
            await cuda.synchronize()
            await first.synchronize()
            return pending, list(memoryview(await cuda.to_host(y)))
        """,
        control=str(control)) == [[False, False], [5]]  # fmt: skip


def test_what_is_collected_open_is_closed(app):
    h = app()
    names, refused = h.run(
        """
        s = await cuda.stream()
        number = s._handle
        event, module, pin = await s.record(), await cuda.module(PTX), await cuda.pin(bulkhead.Buffer.allocate(8))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del s, event, module, pin
            gc.collect()
        names = sorted(str(w.message).split(" ")[0] for w in caught if w.category is ResourceWarning)
        await cuda.info()  # one worker: what was submitted before has run
        return names, await failure(cuda.pool.synchronize(number))
        """)  # fmt: skip
    assert names == [f"<bulkhead.cuda.{kind}" for kind in ("Event", "Module", "Pinned", "Stream")]
    assert refused[1] == "cuda.handle" and "closed" in refused[2]["given"]
    assert h.stop() == 0
    assert h.find("cuda has ended")["handles_left_open"] == "0"


def test_the_stop_closes_what_is_open(app):
    h = app()
    h.run(
        """
        g.kept = [await cuda.stream(), await cuda.record(), await cuda.module(PTX), await cuda.alloc(100), await cuda.alloc_host(9)]
        """)  # fmt: skip
    assert h.stop() == 0
    ended = h.find("cuda has ended")
    assert ended["handles_left_open"] == "3" and ended["bytes_kept"] == "0", ended
    assert not [line for line in h.log if "ResourceWarning" in str(line)]


def test_sections_are_apart_and_copy_to_each_other(app):
    h = app("one two")
    text, errors = h.run(
        """
        x = await one.to_device(b"over there")
        y = await two.alloc(x.shape, x.dtype)
        await two.copy(y, x)
        errors = [await failure(two.sum(await one.alloc(4)))]
        async with await one.stream() as s:
            try:
                two.memset(y, 0, stream=s)
            except ValueError as error:
                errors.append(str(error))
        return [(await one.info()).device, (await two.info()).device, bytes(memoryview(await two.to_host(y))).decode()], errors
        """)  # fmt: skip
    assert text == [0, 1, "over there"]
    assert errors[0][1] in ("cuda.kind", "cuda.kernels") and "each pool has its own" in errors[1]


# ---- other libraries


def test_memory_goes_out_and_comes_in_without_a_copy(app):
    h = app()
    assert h.run(
        """
        x = await cuda.to_device(array.array("f", [1, 2, 3]))
        assert x.__dlpack_device__() == (2, 0) and x.device == "cuda:0"
        assert x.__cuda_array_interface__["data"][0] == x.address
        y = await cuda.import_(Foreign(x), writable=True)
        assert y.address == x.address and y.shape == (3,) and y.dtype == "float32"
        await cuda.memset(y, 0)
        assert bytes(memoryview(await cuda.to_host(x))) == bytes(12)
        same = await cuda.import_(x)
        assert same.address == x.address
        try:
            memoryview(x)
        except BufferError as error:
            return str(error)
        """)  # fmt: skip


def test_what_an_exporter_says_is_checked(app):
    h = app()
    errors = h.run(
        """
        x = await cuda.to_device(array.array("f", [1, 2, 3]))
        shown = []
        for changes in ({"data": (12345678, False)}, {"shape": (-1,)}, {"typestr": "nonsense"}, {"strides": (8,)}, {"stream": 0}):
            try:
                await cuda.import_(Foreign(x, **changes))
            except Exception as error:
                shown.append(f"{type(error).__name__} {error}")
            else:
                shown.append("")
        try:
            await cuda.import_(b"host memory")
        except Exception as error:
            shown.append(f"{type(error).__name__} {error}")
        return shown
        """)  # fmt: skip
    assert len(errors) == 6 and all(errors), errors


def test_other_pools_refuse_memory_of_a_device_and_say_what_to_do(app):
    h = app(rest=STREAM)
    said = h.run(
        """
        x = await cuda.to_device(array.array("f", [1, 2, 3]))
        try:
            await stream.sum(x)
        except bulkhead.BadArgument as error:
            return str(error)
        """)  # fmt: skip
    assert "device" in said and "sum" in said, said


# ---- the end of a device


def test_after_a_fault_each_op_says_what_it_was(app):
    h = app(rest=STREAM)
    first, later, closing = h.run(
        """
        g.module, g.s, g.x = await cuda.module(PTX), await cuda.stream(), await cuda.alloc(10)
        first = await failure(g.module.launch("trap", 1, 1))
        for _ in range(1000):  # the pool is told of it a moment later
            later = None
            try:
                later = await failure(cuda.alloc(1))
            except bulkhead.BulkheadError as error:
                later = [type(error).__name__, error.code, error.facts]
                break
            await asyncio.sleep(0.01)
        async with g.module, g.s:
            pass
        return first, later, [g.module.closed, g.s.closed]
        """)  # fmt: skip
    assert first[1] == "cuda.fault" and first[2]["status"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert later[0] == "PluginError" and "fault" in str(later), later
    assert closing == [True, True]
    until(lambda: h.get("/readyz").status != 200, what="the pool's failure in /readyz")
    assert h.stop() == 0


def test_info_says_what_it_is(app):
    info = app().run("return dataclasses.asdict(await cuda.info())".replace("dataclasses", "__import__('dataclasses')"))
    assert info["name"] == "test double, no GPU" and info["device"] == 0 and info["uuid"].startswith("GPU-")
    assert 0 < info["free"] <= info["memory"] and info["driver"] >= 12000 and len(info["capability"]) == 2


def test_without_a_device_an_optional_pool_is_not_there_and_says_so(host):
    h = host("[plugin cuda]\nlibrary = cuda\noptional = yes\n[app app]\nobject = device:App\noption.pools =\n", {"device.py": APP},
             env={"LD_LIBRARY_PATH": str(DOUBLE), "FAKECUDA_DEVICES": "0"})  # fmt: skip
    source = """
        try:
            bulkhead.cuda.pool()
        except bulkhead.UnknownPool as error:
            return error.facts
        """
    facts = h.call("run", source=source, args={})
    assert facts["pool"] == "cuda" and "skipped" in facts["state"] and "bulkheadctl" in facts["advice"]


def test_another_plugins_pool_is_no_cuda_pool(app):
    assert app(rest=STREAM).run(
        """
        try:
            bulkhead.cuda.pool("stream")
        except bulkhead.PluginError as error:
            return error.code
        """) == "cuda.pool"  # fmt: skip


def test_the_first_example_of_the_manual_does_what_it_says(app):
    text = (Path(__file__).resolve().parents[2] / "docs" / "cuda.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    h = app()
    said = h.run(
        """
        import ast
        names = {"bulkhead": bulkhead, "rows": array.array("f", [1, 3])}
        try:
            await eval(compile(example, "cuda.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        except bulkhead.PluginError as error:
            return error.code
        return list(memoryview(names["host"]))
        """,
        example=example)  # fmt: skip
    needs_kernels(said)
    assert said == [0.25, 0.75]
