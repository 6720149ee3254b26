# SPDX-License-Identifier: BSD-3-Clause
"""Modules, launches and arithmetic of the cuda plugin end to end, and the example that scores on it. On the test double
of libcuda.so.1 (tests/fakecuda): no GPU is involved, and the kernels are twins in C. What the real ones compute is
for tests/device/."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from conftest import CallError, stage, test_plugins

ROOT = Path(__file__).parents[2]
DOUBLE = test_plugins().parents[1] / "fakecuda" / ".libs"
if not (stage() / "lib" / "bulkhead" / "plugins" / "cuda.so").exists():
    pytest.skip("built without the cuda plugin (configure found no CUDA headers)", allow_module_level=True)
if not (DOUBLE / "libcuda.so.1").exists():
    pytest.skip(f"no test double in {DOUBLE}: make check TESTS= builds it", allow_module_level=True)
NVCC = shutil.which("nvcc", path=f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin:{os.environ.get('PATH', '')}")

MANIFEST = """
[plugin cuda]
library = cuda
[app app]
object = node:Node
"""

NODE = '''
import array, asyncio, textwrap
import bulkhead

PTX = b"""
.version 8.0
.target sm_75
.address_size 64
.visible .entry store_params(.param .u64 out, .param .u32 n, .param .f32 x, .param .f64 y) { ret; }
.visible .entry bh_axpy_f32(.param .u64 y, .param .f32 a, .param .u64 x, .param .u64 n) { ret; }
.visible .entry trap() { ret; }
"""

async def failure(awaitable):
    """[class, code, facts] of what it raises; None when it is done well."""
    try:
        await awaitable
    except bulkhead.BulkheadError as error:
        return [type(error).__name__, error.code, error.facts]
    return None

class Node:
    async def start(self, app):
        self.pool = bulkhead.pool("cuda")

    async def to_device(self, values, dtype="float32"):
        there = await self.pool.alloc([len(values)], dtype)
        await self.pool.copy(there, array.array("f" if dtype == "float32" else "d", values))
        return there

    async def to_host(self, buffer):
        here = array.array("f" if buffer.dtype == "float32" else "d", [0] * len(buffer))
        await self.pool.copy(here, buffer)
        return list(here)

    @bulkhead.endpoint
    async def run(self, source: str, args: dict[str, object]) -> object:
        names = {**globals(), "cuda": self.pool, "to_device": self.to_device, "to_host": self.to_host, **args}
        exec("async def run():\\n" + textwrap.indent(textwrap.dedent(source), "    "), names)
        return await names["run"]()
'''


@pytest.fixture
def node(host, tmp_path):
    """run(source, **args) on a host with the plugin; afterwards the driver has nothing to complain about."""
    violations = tmp_path / "violations"

    def start(settings: str = ""):
        h = host(settings + MANIFEST, files={"node.py": NODE},
                 env={"LD_LIBRARY_PATH": str(DOUBLE), "FAKECUDA_VIOLATIONS": str(violations)})  # fmt: skip
        return lambda source, **args: h.call("run", source=source, args=args, timeout=60)

    yield start
    assert not violations.exists() or violations.read_text() == ""


HAS_KERNELS = "#define HAVE_NVCC 1" in (test_plugins().parents[2] / "config.h").read_text()
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="built without nvcc: the plugin has no kernels of its own")


@needs_kernels
def test_arithmetic_has_the_stream_plugins_names_and_results(node):
    assert node()("""
        a, out = await to_device([1, 2, 3, 4]), await cuda.alloc([4])
        await cuda.fill(out, 0.5)
        await cuda.axpy(out, 2, a)
        await cuda.scale(out, -1)
        await cuda.add(out, out, a)
        await cuda.mul(out, out, out)
        m = await cuda.alloc([2, 4])
        await cuda.fill(m, 2)
        rows = await cuda.alloc([2])
        await cuda.matvec(rows, m, a)
        return [await to_host(out), await to_host(rows), await cuda.sum(a), await cuda.max(a), await cuda.dot(a, a),
                await cuda.top_k(a, 2)]
        """) == [[2.25, 6.25, 12.25, 20.25], [20, 20], 10, 4, 30, [[3, 4.0], [2, 3.0]]]  # fmt: skip


@needs_kernels
def test_arithmetic_on_many_streams_at_once_does_not_mix(node):
    assert node("[host]\n")("""
        async def one(i):
            stream = await cuda.stream()
            there = await cuda.alloc([1000], "float64")
            await cuda.fill(there, i, stream=stream)
            sums = await asyncio.gather(*(cuda.sum(there, stream=stream) for _ in range(20)))
            best = await cuda.top_k(there, 3, stream=stream)
            await cuda.stream_close(stream)
            return sums == [1000.0 * i] * 20 and best == [[0, i], [1, i], [2, i]]
        return all(await asyncio.gather(*map(one, range(30))))
        """) is True  # fmt: skip


@needs_kernels
def test_a_host_buffer_is_refused_with_what_to_do(node):
    kind, code, facts = node()("return await failure(cuda.sum(array.array('f', [1, 2])))")
    assert (kind, code) == ("PluginError", "cuda.kind")
    assert facts["parameter"] == "a" and "copy()" in facts["accepted"]


def test_a_launch_takes_device_memory_and_numbers_by_the_kernels_own_sizes(node):
    assert node()("""
        module = await cuda.module(PTX)
        x, y = await to_device([1, 2, 3]), await to_device([10, 20, 30])
        await cuda.launch(module, "bh_axpy_f32", [1], [256], [y, 0.5, ["const", x], 3])
        await cuda.launch(module, "bh_axpy_f32", [1], [256], [y, ["f32", 1], x, ["u64", 3]])
        await cuda.module_close(module)
        return await to_host(y)
        """) == [11.5, 23.0, 34.5]  # fmt: skip


def test_a_task_stands_for_its_result_in_a_launchs_arguments(node):
    assert node()("""
        module = cuda.module(PTX)
        y = cuda.alloc([8], "float64")
        await cuda.launch(module, "store_params", [1], [1], [y, 7, 1.5, -2.5])
        return (await to_host(await y))[4]
        """) == -2.5  # fmt: skip


def test_what_does_not_fit_a_kernel_is_refused_by_its_number(node):
    refusals = node()("""
        module = await cuda.module(PTX)
        out = await cuda.alloc([8])
        async def said(*args, grid=[1], block=[1], name="store_params", shared=0):
            _, code, facts = await failure(cuda.launch(module, name, list(grid), list(block), list(args), shared))
            return [code, facts["parameter"], facts["given"], facts["accepted"]]
        return [await said(out, 1), await said(out, 1 << 40, 1.0, 1.0), await said(out, "x", 1.0, 1.0),
                await said(array.array("f", [1]), 1, 1.0, 1.0), await said(out, 1, 1.0, 1.0, grid=[0]),
                await said(out, 1, 1.0, 1.0, block=[2048]), await said(name="nothing")]
        """)  # fmt: skip
    assert [refusal[:2] for refusal in refusals] == [
        ["cuda.launch", "args"], ["cuda.launch", "args[1]"], ["cuda.launch", "args[1]"], ["cuda.kind", "args[0]"],
        ["cuda.launch", "grid"], ["cuda.launch", "block"], ["cuda.function", "name"],
    ]  # fmt: skip
    assert "8, 4, 4, 8 bytes" in refusals[0][3]


def test_the_compilers_words_are_in_the_error(node, tmp_path):
    said = node()("""
        return [await failure(cuda.module(PTX + b"BROKEN")), await failure(cuda.module(b"no code")),
                await failure(cuda.module_file(path))]
        """, path=str(tmp_path / "none.ptx"))  # fmt: skip
    assert [code for _, code, _ in said] == ["cuda.module", "cuda.image", "cuda.file"]
    assert "error" in said[0][2]["reason"] and said[0][2]["status"] == "CUDA_ERROR_INVALID_PTX"
    assert "PTX text" in said[1][2]["accepted"]
    assert "No such file" in said[2][2]["reason"]


def test_a_module_that_is_closed_under_its_kernel_goes_after_it(node):
    assert node()("""
        spin = b".version 8.0\\n.target sm_75\\n.address_size 64\\n.visible .entry spin(.param .u64 ns) { ret; }\\n"
        module = await cuda.module(spin)
        running = cuda.launch(module, "spin", [1], [1], [100_000_000])
        await cuda.module_close(module)
        await running
        return (await failure(cuda.launch(module, "spin", [1], [1], [1])))[1]
        """) == "cuda.handle"  # fmt: skip


@needs_kernels
def test_a_kernel_that_faults_takes_sums_under_way_with_it_and_all_of_it_ends(node):
    assert node()("""
        module, a = await cuda.module(PTX), await cuda.alloc([100000])
        await cuda.sum(a)
        tasks = [cuda.launch(module, "trap", [1], [1], [])] + [cuda.sum(a) for _ in range(5)]
        said = [await failure(task) for task in tasks]
        return [said[0][1], all(said)]
        """) == ["cuda.fault", True]  # fmt: skip


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
def test_ptx_of_nvcc_is_read_and_launched(node, tmp_path):
    ptx = tmp_path / "kernels.ptx"
    subprocess.run([NVCC, "-ptx", "-arch=compute_75", f"-I{ROOT}", "-o", ptx, ROOT / "plugins/cuda/kernels.cu"],
                   check=True, capture_output=True)  # fmt: skip
    assert node()("""
        module = await cuda.module_file(path)
        y = await to_device([1, 2, 3], "float64")
        await cuda.launch(module, "bh_scale_f64", [1], [256], [y, 2.0, 3])
        wrong = await failure(cuda.launch(module, "bh_scale_f64", [1], [256], [y, 2.0]))
        return [await to_host(y), wrong[2]["accepted"]]
        """, path=str(ptx)) == [[2, 4, 6], "3: the kernel's parameters have 8, 8, 8 bytes"]  # fmt: skip


# ---- the example -----------------------------------------------------------------------------------------

QUERIES = ["WARRANTY OF MERCHANTABILITY", "you may convey covered works", "x", "", "free software"]


@needs_kernels
def test_linesearch_finds_the_same_on_cuda_by_one_line_of_the_manifest(host, tmp_path):
    lines = (ROOT / "LICENSE").read_text() + textwrap.dedent((ROOT / "tests/e2e/conftest.py").read_text())
    (tmp_path / "lines").write_text(lines)
    manifest = f"""
        [plugin stream]
        library = stream
        [plugin cuda]
        library = cuda
        [app cpu]
        object = linesearch:Search
        option.paths = {tmp_path / "lines"}
        [app gpu]
        object = linesearch:Search
        option.paths = {tmp_path / "lines"}
        option.score = cuda
        """
    h = host(manifest, args=["--set", f"python.path={ROOT}/examples/linesearch"], env={"LD_LIBRARY_PATH": str(DOUBLE)},
             wait="answering")  # fmt: skip
    h.wait_ready(60)
    for query in QUERIES:
        found = [h.call("search", app=app, query=query, k=20, timeout=60) for app in ("cpu", "gpu")]
        assert found[0] == found[1]
    metrics = h.get("/metrics").text
    launches = next(line for line in metrics.splitlines() if line.startswith("bulkhead_plugin_cuda_launches_total{"))
    assert float(launches.rsplit(" ", 1)[1]) > len(QUERIES)
    with pytest.raises(CallError, match="1 to 100 accepted"):
        h.call("search", app="gpu", query="fox", k=0)
