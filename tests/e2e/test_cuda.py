# SPDX-License-Identifier: BSD-3-Clause
"""The cuda plugin end to end, on the test double of libcuda.so.1 (tests/fakecuda): no GPU is involved.

What it computes is not looked at here; what it is asked, in which order, on which thread and until when, is.
"""

from __future__ import annotations

import ctypes
import http.client
import time
from pathlib import Path

import pytest
from conftest import SLOW, CallError, stage, test_plugins, until

DOUBLE = test_plugins().parents[1] / "fakecuda" / ".libs"
if not (stage() / "lib" / "bulkhead" / "plugins" / "cuda.so").exists():
    pytest.skip("built without the cuda plugin (configure found no CUDA headers)", allow_module_level=True)
if not (DOUBLE / "libcuda.so.1").exists():
    pytest.skip(f"no test double in {DOUBLE}: make check TESTS= builds it", allow_module_level=True)

NODE = '''
import asyncio, ctypes, gc, os, subprocess, sys, textwrap, threading, time, types
import bulkhead

async def failure(awaitable):
    """[class, code, facts] of what it raises; None when it is done well."""
    try:
        await awaitable
    except bulkhead.BulkheadError as error:
        return [type(error).__name__, error.code, error.facts]
    except BufferError as error:  # what an object that is asked for its memory raises
        return [type(error).__name__, str(error), {}]
    return None

class Array:
    """Another library's, over memory of ours."""
    def __init__(self, of, **more):
        self.of = of
        self.dict = dict(of.__cuda_array_interface__, **more)

    @property
    def __cuda_array_interface__(self):
        return self.dict

class Node:
    async def start(self, app):
        self.names = {"g": types.SimpleNamespace(), "failure": failure, **globals()}
        for label in app.options["pools"].split():
            self.names[label] = bulkhead.pool(label)

    @bulkhead.endpoint
    async def run(self, source: str, args: dict[str, object]) -> object:
        exec("async def run():\\n" + textwrap.indent(textwrap.dedent(source), "    "), self.names | args, names := {})
        return await names["run"]()
'''


class Node:
    """One host, what it is asked to do, and what its driver was asked."""

    def __init__(self, host, folder: Path):
        self.host = host
        self.folder = folder

    def run(self, source: str, timeout: float = 60.0, **args):
        return self.host.call("run", source=source, args=args, timeout=timeout)

    def control(self, *rules: str):
        """What goes wrong from now on; it replaces what was said before."""
        new = self.folder / "rules.new"
        new.write_text("".join(f"{rule}\n" for rule in rules))
        new.rename(self.folder / "rules")

    def calls(self) -> list[tuple[int, int, str, str, int, str]]:
        """(ns, tid, thread, function, result, remark) of each call."""
        found = []
        for line in (self.folder / "calls").read_text().splitlines():
            ns, tid, thread, _pid, function, result, *remark = line.split(" ", 6)
            found.append((int(ns), int(tid), thread, function, int(result), " ".join(remark)))
        return found

    def violations(self) -> str:
        path = self.folder / "violations"
        return path.read_text() if path.exists() else ""

    def metric(self, name: str, plugin: str = "cuda") -> float:
        for line in self.host.get("/metrics").text.splitlines():
            if line.startswith(f'bulkhead_plugin_cuda_{name}{{plugin="{plugin}"'):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)


@pytest.fixture
def node(host, tmp_path):
    """node(sections={label: lines}, rest="", env={}) -> Node: a host with these cuda plugins and the app above."""
    made = []

    def start(sections: dict[str, str] | None = None, rest: str = "", env=None, settings: str = "", **more) -> Node:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        sections = sections or {"cuda": ""}
        manifest = "".join(f"[plugin {label}]\nlibrary = cuda\n{lines}\n" for label, lines in sections.items())
        manifest += f"{rest}\n[app app]\nobject = node:Node\noption.pools = {' '.join(sections)}\n"
        environment = {
            "LD_LIBRARY_PATH": str(DOUBLE),
            "FAKECUDA_LOG": str(folder / "calls"),
            "FAKECUDA_VIOLATIONS": str(folder / "violations"),
            "FAKECUDA_CONTROL": str(folder / "rules"),
        }
        n = Node(host(settings + manifest, files={"node.py": NODE}, env=environment | (env or {}), **more), folder)
        made.append(n)
        return n

    yield start
    for n in made:
        assert n.violations() == ""


def all_released(node: Node):
    """H09: what was made has been released, before the driver's exit handler, and nothing was called after it."""
    calls = node.calls()
    counts: dict[str, int] = {}
    for _, _, _, function, result, _ in calls:
        if result == 0:
            counts[function] = counts.get(function, 0) + 1
    for make, release in [
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"),
        ("cuStreamCreateWithPriority", "cuStreamDestroy"),
        ("cuEventCreate", "cuEventDestroy"),
        ("cuMemPoolCreate", "cuMemPoolDestroy"),
        ("cuMemAllocFromPoolAsync", "cuMemFreeAsync"),
        ("cuMemHostRegister", "cuMemHostUnregister"),
    ]:
        assert counts.get(make, 0) == counts.get(release, 0), (make, release)
    names = [function for _, _, _, function, _, _ in calls]
    assert names[-1] == "fakecuda:exit"
    assert names.count("fakecuda:exit") == 1
    assert node.violations() == ""
    # The context is the last to go.
    assert names[-2] in ("cuDevicePrimaryCtxRelease", "cuCtxSetCurrent"), names[-5:]


# ---- memory


def test_round_trips_of_all_sizes(node):
    n = node()
    assert n.run(
        """
        for size in (0, 1, 4095, 65536, (3 << 20) + 7):
            device = await cuda.alloc([size], "uint8")
            data = bytearray(os.urandom(size))
            back = bytearray(b"\\xa5" * (size + 8))
            await cuda.copy(device, data)
            await cuda.copy(back, device, 4)
            assert back == b"\\xa5" * 4 + data + b"\\xa5" * 4, size
            if size > 100:
                await cuda.copy(back, device, 0, 50, 20)
                assert back[:20] == data[50:70], size
            other = await cuda.copy(await cuda.alloc([size], "uint8", False), device)
            await cuda.memset(device, 7)
            twice = bytearray(size)
            await cuda.copy(twice, other)
            assert twice == data
            await cuda.copy(twice, device)
            assert twice == b"\\x07" * size
        host = bytearray(16)
        await cuda.copy(host, b"0123456789abcdef")
        return host.decode()
        """) == "0123456789abcdef"  # fmt: skip
    assert n.metric("copied_in_bytes_total") == sum((0, 1, 4095, 65536, (3 << 20) + 7))
    n.run("gc.collect()")
    until(lambda: n.metric("allocated_bytes") == 0, what="what nobody refers to is freed")
    assert n.metric("device_total_bytes") == 1 << 30
    assert n.host.stop() == 0
    all_released(n)


def test_new_memory_is_zero_and_typed(node):
    n = node()
    assert n.run(
        """
        b = await cuda.alloc([2, 3], "float64")
        back = bytearray(b"x" * 48)
        await cuda.copy(back, b)
        return [list(b.shape), str(b.dtype), len(back) == 48 and not any(back)]
        """) == [[2, 3], "float64", True]  # fmt: skip


def test_wrong_arguments_are_refused_with_what_would_be_right(node):
    n = node()
    refused = n.run(
        """
        b = await cuda.alloc([10], "uint8")
        host = bytearray(10)
        return [
            await failure(cuda.copy(b, host, 5)),
            await failure(cuda.copy(b, b, 1, 0, 5)),
            await failure(cuda.copy(b, host, -1)),
            await failure(cuda.memset(host, 1)),
            await failure(cuda.memset(b, 256)),
            await failure(cuda.alloc([-1])),
            await failure(cuda.alloc([1], "float12")),
            await failure(cuda.free(host)),
            await failure(cuda.unpin(host)),
            await failure(cuda.stream(7)),
            await failure(cuda.synchronize(12345)),
        ]
        """)  # fmt: skip
    text = str(refused)
    for word in ("cuda.range", "cuda.overlap", "cuda.kind", "cuda.value", "cuda.shape", "cuda.dtype", "cuda.foreign",
                 "cuda.not_pinned", "cuda.priority", "cuda.handle"):  # fmt: skip
        assert word in text, word
    assert n.run("return await failure(cuda.alloc([10]))") is None


def test_out_of_memory_fails_the_task_alone(node):
    n = node(env={"FAKECUDA_MEMORY": "8M"})
    failed = n.run("return await failure(cuda.alloc([3 << 20]))")
    assert "cuda.out_of_memory" in str(failed)
    asked, free, total = (int(failed[2][key]) for key in ("asked", "free", "total"))
    assert asked == 12 << 20 and 0 < free <= 8 << 20 and total == 8 << 20
    # What nobody refers to any more is had before the device is said to be full.
    assert n.run(
        """
        for i in range(20):
            b = await cuda.alloc([4 << 20], "uint8")
            b = None
            gc.collect()
        return True
        """) is True  # fmt: skip
    assert n.host.pool("cuda")["state"] == "ready"


def test_free_now_and_use_after_it(node):
    n = node()
    failed = n.run(
        """
        b = await cuda.alloc([10])
        await cuda.free(b)
        async def use():
            await cuda.memset(b, 1)
        try:
            await use()
        except Exception as error:
            return [type(error).__name__, str(error)]
        """)  # fmt: skip
    assert "freed" in failed[1], failed
    assert n.metric("allocated_bytes") == 0


def test_pinned_memory(node):
    n = node()
    assert n.run(
        """
        g.host = await cuda.alloc_host([1000], "uint8")
        data = bytearray(os.urandom(5000))
        await cuda.pin(data)
        await cuda.pin(data)
        await cuda.unpin(data)
        b = await cuda.alloc([5000], "uint8")
        await cuda.copy(b, data)
        back = bytearray(5000)
        await cuda.copy(back, b)
        assert back == data
        await cuda.unpin(data)
        return await failure(cuda.unpin(data))
        """)[2]["given"] == "memory that is not pinned here"  # fmt: skip
    assert n.metric("pinned_bytes") == 4096
    n.run("g.host = None; gc.collect()")
    until(lambda: n.metric("pinned_bytes") == 0, what="the pin goes with its buffer")
    n.run("await cuda.pin(bytearray(100))")  # close takes it back
    assert n.host.stop() == 0
    all_released(n)


# ---- memory of other libraries


def test_imports_and_exports(node):
    n = node({"one": "device = 0", "two": "device = 0", "other": "device = 1"})
    told = n.run(
        """
        source = await one.alloc([4], "int32")
        seen = await two.import_memory(Array(source, stream=1), True)
        assert list(seen.shape) == [4] and str(seen.dtype) == "int32"
        await two.memset(seen, 1)
        back = bytearray(16)
        await one.copy(back, source)
        assert back == b"\\x01" * 16, back
        g.seen = await two.import_memory(seen)  # a bulkhead.Buffer is its own
        far = await other.alloc([4])
        wild = Array(source, data=(0x5ead0000, False))
        return [
            await failure(one.free(source)),
            await failure(two.import_memory(Array(far))),
            await failure(two.import_memory(wild)),
            await failure(two.import_memory(bytearray(5))),
        ]
        """)  # fmt: skip
    assert told[0][1] == "cuda.shared" or "cuda.shared" in str(told[0])
    assert "device 1" in str(told[1]), told[1]
    assert "does not know" in str(told[2]), told[2]
    assert told[3] is not None
    # What other code has been given the address of is freed when the device is done with all it has been given.
    n.run("g.seen = None; gc.collect()")
    until(lambda: any(call[3] == "cuCtxSynchronize" for call in n.calls()), what="the device is waited for")
    assert n.host.stop() == 0


# ---- streams and events


def test_streams_and_events(node):
    n = node(env={"FAKECUDA_INJECT": "op_latency 2000000"})
    assert n.run(
        """
        a, b = await cuda.stream(), await cuda.stream(-1)
        memory = await cuda.alloc([64], "uint8")
        back = bytearray(64)
        for i in range(5):
            first = cuda.memset(memory, i, a)
            event = await cuda.record(a)
            await cuda.wait(b, event)
            second = cuda.copy(back, memory, 0, 0, None, b)
            await second
            assert back == bytes([i]) * 64, i
            await cuda.event_close(event)
        await cuda.synchronize(a)
        await cuda.stream_close(a)
        late = await failure(cuda.memset(memory, 1, a))
        await cuda.memset(memory, 9, b)
        return late
        """)[2]["given"].endswith("it has been closed")  # fmt: skip
    assert n.host.stop() == 0  # b was left open: close releases it
    assert n.host.find("cuda has ended", handles_left_open="1")
    all_released(n)


def test_a_running_work_holds_no_worker(node):
    n = node({"cuda": "inline_wait = 0s"})
    n.run("g.m = await cuda.alloc([4]); g.s = await cuda.stream()")
    n.control("hang_op 1")
    assert n.run(
        """
        g.t = cuda.memset(g.m, 1, g.s)  # one worker, and the device is busy with this
        await cuda.info()
        other = await cuda.stream()
        return g.t.done()
        """) is False  # fmt: skip
    n.control()
    assert n.run("await g.t; return True") is True


def test_two_devices_over_one_library(node):
    n = node({"left": "device = 0", "right": "device = 1"})
    assert n.run(
        """
        a = await left.alloc([100], "uint8")
        b = await right.alloc([100], "uint8")
        data, back = bytearray(os.urandom(100)), bytearray(100)
        await left.copy(a, data)
        await left.copy(b, a)
        await right.copy(back, b)
        assert back == data
        wrong = await failure(left.memset(b, 1))
        return [(await left.info())[0], (await right.info())[0], wrong[2]["given"]]
        """) == [0, 1, "memory of device 1"]  # fmt: skip
    assert n.host.stop() == 0
    all_released(n)


# ---- H11: a fault that stays


def test_h11_a_fault_fails_its_pool_once_and_no_other(node):
    n = node({"bad": "device = 0\ninline_wait = 0s", "good": "device = 1"})
    n.run("g.m = await bad.alloc([1000]); g.k = await good.alloc([1000])")
    n.control("op_latency 200000000")
    n.run("g.tasks = [bad.memset(g.m, i) for i in range(8)]")
    until(lambda: n.metric("in_flight", "bad") >= 8, what="works in flight")
    n.control("sticky CUDA_ERROR_ILLEGAL_ADDRESS 0")
    ended = n.run("return [await failure(t) for t in g.tasks]")
    assert all(e is not None for e in ended), "nothing is done after the fault"
    assert any("CUDA_ERROR_ILLEGAL_ADDRESS" in str(e) for e in ended)
    n.host.wait_log("cuda has ended", component="bad")
    assert n.host.pool("bad")["state"] != "ready"
    with pytest.raises(CallError, match="cause=cuda.fault"):
        n.run("await bad.info()")
    ready = n.host.get("/readyz")
    assert ready.status != 200 and "bad" in ready.text
    assert n.run("await good.memset(g.k, 1); return True") is True
    assert n.host.stop() == 0


def test_h11_the_host_can_end_with_it(node):
    n = node(settings="[host]\non_pool_failure = exit\n")
    n.run("g.m = await cuda.alloc([10])")
    n.control("sticky CUDA_ERROR_ECC_UNCORRECTABLE")
    try:
        n.run("await failure(cuda.memset(g.m, 1))")
    except (CallError, OSError):
        pass  # the host may be stopping by then
    assert n.host.wait() == 69
    assert "CUDA_ERROR_ECC_UNCORRECTABLE" in n.host.text


def test_an_error_that_passes_fails_the_task_alone(node):
    n = node()
    n.run("g.m = await cuda.alloc([10])")
    n.control("fail cuMemsetD8Async 1 CUDA_ERROR_INVALID_VALUE")
    failed = n.run("return await failure(cuda.memset(g.m, 1))")
    assert failed[2]["status"] == "CUDA_ERROR_INVALID_VALUE"
    assert n.run("return await failure(cuda.memset(g.m, 1))") is None
    assert n.metric("errors_total") == 1


def test_a_capture_of_a_graph_elsewhere_ends_no_work(node):
    """SUP-10: while another library captures, the driver forbids to ask for events: that tells nothing of the work."""
    n = node({"cuda": "inline_wait = 0s"})
    n.run("g.m = await cuda.alloc([10])")
    n.control("fail cuEventQuery 1 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
    assert n.run("return await failure(cuda.memset(g.m, 1))") is None
    assert sum(call[4] == 900 for call in n.calls() if call[3] == "cuEventQuery") == 1


def test_a_failed_copy_names_the_call(node):
    n = node()
    n.run("g.m = await cuda.alloc([10])")
    n.control("fail cuMemcpyHtoDAsync 1 CUDA_ERROR_INVALID_VALUE")
    failed = n.run("return await failure(cuda.copy(g.m, bytearray(40)))")
    assert failed[2]["reason"].startswith("cuMemcpyHtoDAsync"), failed


def test_what_an_exporter_says_is_not_believed(node):
    """A shape that is larger than the memory, and a stream that is none, cost the task and not the context."""
    n = node()
    n.run("g.m = await cuda.alloc([1024], 'uint8')")
    failed = n.run("return await failure(cuda.import_memory(Array(g.m, shape=(1 << 20,))))")
    assert failed[1] == "cuda.import" and "1024" in failed[2]["given"], failed
    n.control("fail cuEventRecord 1 CUDA_ERROR_CONTEXT_IS_DESTROYED")
    failed = n.run("return await failure(cuda.import_memory(Array(g.m, stream=1)))")
    assert failed[1] == "cuda.import" and "stream" in failed[2]["given"], failed
    assert n.run("return await failure(cuda.import_memory(Array(g.m, stream=2)))") is None  # not the worker's own stream
    assert n.host.pool("cuda")["state"] == "ready"


def test_a_fault_that_the_end_meets_first_is_survived(node):
    """The device dies under a kernel of another library, and nobody asks it before close()."""
    n = node()
    n.run("g.m = await cuda.alloc([10])")
    n.control("fail cuMemFreeAsync 1 CUDA_ERROR_ILLEGAL_ADDRESS")
    assert n.host.stop() in (0, 69)
    n.host.wait_log("cuda has ended")


def test_h11_the_call_that_caused_the_fault_reports_success_and_its_task_does_not(node):
    n = node({"cuda": "inline_wait = 0s"})
    n.run("g.m = await cuda.alloc([10])")
    n.control("fault cuMemsetD8Async 3 CUDA_ERROR_LAUNCH_FAILED")
    ended = n.run(
        """
        async def one(i):
            await cuda.memset(g.m, i)
        return [await failure(one(i)) for i in range(6)]
        """)  # fmt: skip
    assert [call[4] for call in n.calls() if call[3] == "cuMemsetD8Async"] == [0, 0, 0, 0]  # alloc's own is the first
    assert ended[:2] == [None, None] and all(e is not None for e in ended[2:]), ended
    n.host.wait_log("cuda has ended")
    assert n.host.text.count("error=cuda.fault") >= 1
    assert n.host.stop() == 0


def test_a_driver_that_is_going_down_says_so(node):
    n = node()
    n.run("g.m = await cuda.alloc([10])")
    n.control("fail cuMemsetD8Async 1 CUDA_ERROR_DEINITIALIZED")
    failed = n.run("return await failure(cuda.memset(g.m, 1))")
    assert "cuda.shutdown" in str(failed) and "CUDA_ERROR_DEINITIALIZED" in str(failed)


# ---- H09: the end


@pytest.mark.parametrize("how", ["SIGTERM", "exit"])
def test_h09_all_is_released_before_the_driver_ends(node, how):
    n = node({"one": "device = 0", "two": "device = 0\nworkers = 3", "three": "device = 1"})
    n.run(
        """
        g.kept = []
        for pool in (one, two, three):
            for i in range(5):
                g.kept.append(await pool.alloc([1000]))
                g.kept.append(await pool.alloc_host([10]))
            g.kept.append(await pool.stream())
            g.kept.append(await pool.record())
            await pool.memset(g.kept[-4], 1)
        """)  # fmt: skip
    if how == "SIGTERM":
        assert n.host.stop() == 0
    else:
        with pytest.raises((OSError, http.client.HTTPException)):  # the host ends within the call
            n.run("ctypes.CDLL(None).exit(7)", timeout=30)
        assert n.host.wait(timeout=40) == 7
    all_released(n)


def test_sup10_memory_whose_address_is_known_elsewhere_stays(node):
    n = node()
    n.run("g.b = await cuda.alloc([4]); g.seen = g.b.__cuda_array_interface__; g.mine = await cuda.alloc([4])")
    assert n.host.stop() == 0
    ended = n.host.find("cuda has ended")
    assert ended["buffers_kept"] == "1" and ended["bytes_kept"] == "16" and ended["level"] == "warning"
    names = [call[3] for call in n.calls()]
    assert names.count("cuMemFreeAsync") == 1 and "cuDevicePrimaryCtxRelease" not in names


# ---- H12: threads


def test_h12_the_context_is_current_on_each_thread_of_the_pool(node):
    n = node({"cuda": "workers = 4\ninline_wait = 0s"})
    n.run("await asyncio.gather(*(cuda.alloc([10]) for i in range(200)))")
    assert n.host.stop() == 0
    by_thread: dict[int, list[tuple[str, str]]] = {}
    for _, tid, thread, function, _, remark in n.calls():
        if thread.startswith("cuda/") and not thread.endswith("sup"):
            by_thread.setdefault(tid, []).append((function, thread))
            assert "no current context" not in remark
    names = {calls[0][1] for calls in by_thread.values()}
    assert {"cuda/0", "cuda/1", "cuda/2", "cuda/3", "cuda/p0", "cuda/p1"} <= names
    for calls in by_thread.values():
        assert calls[0][0] == "cuCtxSetCurrent" and calls[-1][0] == "cuCtxSetCurrent", calls[0]
    all_released(n)


# ---- H10: forks


def test_h10_subprocesses_while_workers_work(node):
    n = node({"cuda": "workers = 4"})
    assert n.run(
        """
        memory = [await cuda.alloc([1000], "uint8") for _ in range(4)]
        over = False
        async def hammer(m):
            n = 0
            while not over:
                await cuda.memset(m, n % 256)
                n += 1
            return n
        tasks = [asyncio.ensure_future(hammer(m)) for m in memory]
        def children():
            return [subprocess.run(["/bin/sh", "-c", "exit 3"]).returncode for _ in range(50)]
        codes = await asyncio.to_thread(children)
        over = True
        done = await asyncio.gather(*tasks)
        return [set(codes) == {3}, all(n > 0 for n in done)]
        """, timeout=120) == [True, True]  # fmt: skip
    assert n.host.stop() == 0
    all_released(n)


def test_h10_a_forked_child_is_refused(node):
    n = node()
    told = n.run(
        """
        g.m = await cuda.alloc([4])
        read, write = os.pipe()
        child = ctypes.PyDLL(None).fork()  # os.fork() is refused
        if child == 0:
            try:
                try:
                    cuda.memset(g.m, 1)
                    said = "accepted"
                except BaseException as error:
                    said = type(error).__name__ + ": " + str(error)
                os.write(write, said.encode())
            finally:
                os._exit(0)
        os.close(write)
        said = os.read(read, 4096).decode()
        os.close(read)
        os.waitpid(child, 0)
        await cuda.memset(g.m, 2)
        return said
        """)  # fmt: skip
    assert told.startswith("Forked"), told
    assert n.host.stop() == 0
    all_released(n)


# ---- EXIT-4: what never ends


def test_exit4_a_call_that_never_returns_is_a_wedge(node):
    n = node(settings="[host]\nshutdown_timeout = 4s\n", sections={"cuda": "drain_timeout = 1s"})
    n.run("g.m = await cuda.alloc([4])")
    n.control("hang cuMemsetD8Async 1")
    n.run("g.t = cuda.memset(g.m, 1)")
    until(lambda: n.host.pool("cuda")["running"] == 1, what="the op is in the driver")
    assert n.host.stop(timeout=30) == 70
    wedged = n.host.find("pool is wedged", pool="cuda")
    assert wedged and "memset" in n.host.text


def test_exit4_a_work_that_never_ends_is_lost_and_the_stop_is_in_time(node):
    n = node(settings="[host]\nshutdown_timeout = 10s\n", sections={"cuda": "drain_timeout = 1s"})
    n.run("g.m = await cuda.alloc([4]); g.k = await cuda.alloc([4])")
    n.control("hang_op 1")
    n.run("g.t = cuda.memset(g.m, 1)")
    until(lambda: n.metric("in_flight") >= 1, what="the work is in flight")
    began = time.monotonic()
    status = n.host.stop(timeout=30)
    assert time.monotonic() - began < 15 * SLOW
    assert status == 75
    ended = n.host.find("cuda has ended")
    assert ended and ended["works_lost"] == "1" and ended["level"] == "warning"


# ---- what there is to open


def there(node: Node) -> list:
    return node.run("return await cuda.info()")


def test_device_by_uuid_and_by_pci(node):
    first = there(node({"cuda": "device = 1"}))
    assert first[0] == 1
    assert there(node({"cuda": f"device = {first[2]}"}))[0] == 1
    assert there(node({"cuda": f"device = {first[3]}"}))[0] == 1


@pytest.mark.parametrize("device", ["7", "GPU-ffffffff", "0000:77:00.0", "first"])
def test_a_device_that_is_not_here(node, device):
    n = node({"cuda": f"device = {device}"}, wait=None)
    assert n.host.wait() == 78
    error = n.host.find("plugin did not open", error="option.cuda")
    assert error and error["section"] == "[plugin cuda]" and error["key"] == "device" and error["value"] == device
    assert "GPU-" in error["accepted"]


NOTHING = {
    "no driver": ({"LD_LIBRARY_PATH": ""}, "cuda.no_driver"),
    "no device": ({"FAKECUDA_DEVICES": "0"}, "cuda.no_device"),
    "too old": ({"FAKECUDA_VERSION": "11080"}, "cuda.driver_old"),
    "no init": ({"FAKECUDA_INJECT": "fail cuInit 0 CUDA_ERROR_UNKNOWN"}, "cuda.init"),
}


def needs_no_driver(what: str):
    if what == "no driver":
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return
        pytest.skip("this machine has a driver")


@pytest.mark.parametrize("what", NOTHING)
def test_plg7_nothing_to_work_with(node, what):
    needs_no_driver(what)
    env, code = NOTHING[what]
    n = node(env=env, wait=None)
    assert n.host.wait() == 69
    error = n.host.find("plugin did not open", error=code)
    assert error, n.host.text
    if what == "too old":
        assert "11.8" in error["reason"] and "12.0" in error["reason"]


@pytest.mark.parametrize("what", NOTHING)
def test_plg7_an_optional_section_is_skipped(host, what):
    needs_no_driver(what)
    env, code = NOTHING[what]
    h = host("[plugin cuda]\nlibrary = cuda\noptional = yes\n", env={"LD_LIBRARY_PATH": str(DOUBLE)} | env)
    h.wait_log("optional plugin skipped", error=code)
    assert h.stop() == 0


def test_the_device_is_shown(node):
    n = node()
    shown = next(p for p in n.host.get("/v1/plugins").json["plugins"] if p["label"] == "cuda")
    assert "test double, no GPU" in str(shown), shown
