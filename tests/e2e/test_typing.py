# SPDX-License-Identifier: BSD-3-Clause
"""mypy --strict, as an app's author runs it: on the installed package, and on an app that uses it."""

import ast
import os
import shutil
import subprocess
import textwrap

import pytest
from conftest import SLOW, stage

APP = """
    from __future__ import annotations

    import asyncio
    from typing import Any

    import bulkhead


    class App:
        async def start(self, app: bulkhead.App) -> None:
            self.stream: bulkhead.Pool = bulkhead.pool("stream")
            self.size = int(app.options.get("size", "8"))

        @bulkhead.endpoint
        async def total(self, values: list[float]) -> float:
            task: bulkhead.Task[float] = self.stream.run(sum, values, timeout=5, wait=True)
            one, two = await asyncio.gather(task, self.stream.lane("a").run(len, values))
            return await asyncio.wait_for(task, 5) + float(one) + float(two)

        @bulkhead.endpoint
        async def ends(self) -> list[Any]:
            task = self.stream.run(len, "abc")
            task.add_done_callback(print)
            async with asyncio.TaskGroup() as group:
                group.create_task(task.as_coroutine())
            one: bulkhead.Task[int] = self.stream.run(len, "a")  # a later task takes its result
            later: bulkhead.Task[list[list[float]]] = self.stream.top_k(self.stream.run(bytes, 0), one)
            print(await later, await self.stream.run(sum, [one, 2]))
            shielded = await asyncio.shield(asyncio.ensure_future(task))
            error = task.exception()
            said = error.facts if isinstance(error, bulkhead.BulkheadError) else {}
            return [shielded, task.result(0), said, task.outcome, task.cancelled(), bulkhead.gil.unsanctioned()]

        async def supervise(self, event: bulkhead.Event) -> None:
            print(event.kind, event.facts)
"""

CUDA = """
    from __future__ import annotations

    import array
    from pathlib import Path

    import bulkhead
    import bulkhead.cuda
    from bulkhead.cuda import f32


    class Device:
        async def start(self) -> None:
            self.cuda: bulkhead.cuda.Cuda = bulkhead.cuda.pool()
            self.names: list[str] = [(await self.cuda.info()).name]

        @bulkhead.endpoint
        async def best(self, rows: list[float]) -> list[list[float]]:
            cuda = self.cuda
            x: bulkhead.Buffer = await cuda.to_device(array.array("f", rows))
            out = cuda.alloc(x.shape, x.dtype)  # a task: it stands for the memory
            async with await cuda.module(Path("/srv/k.ptx")) as module, await cuda.stream(-1) as stream:
                async with await stream.record() as event:
                    await stream.wait(event)
                done: bulkhead.Task[None] = module.launch("k", 8, (32, 4), [out, f32(2), x, 1], stream=stream)
                await done
            async with await cuda.pin(await cuda.alloc_host(4)) as pinned:
                print(pinned.memory)
            host: bulkhead.Buffer = await cuda.to_host(await out)
            text: bytearray = await cuda.to_host(out, bytearray(x.nbytes))
            print(host.nbytes, len(text), await cuda.sum(out) + 1.0)
            return await cuda.top_k(out, 5)
"""

TEST = """
    from bulkhead.testing import Host, run

    from app import App


    async def seven() -> int:
        return 7


    def test_seven() -> None:
        number: int = run(seven)
        with Host(App, plugins=["stream"], options={"size": 8}) as host:
            assert host.call("total", values=[number]) == host.get("/v1/status").status
"""

WRONG = {
    'bulkhead.pool(5)': "arg-type",
    'bulkhead.pool("x").lane(5)': "arg-type",
    'bulkhead.pool("x").dot(1, 2) + 1': "operator",
    'int(bulkhead.pool("x").dot(1, 2))': "call-overload",
    'bulkhead.pool("x").dot(1, 2).shape': "attr-defined",
    'bulkhead.pool("x").dot(1, 2).cancel(5)': "call-arg",
    'bulkhead.App("x", {}).optoins': "attr-defined",
    'bulkhead.cuda.pool().sum(1)': "arg-type",
    'bulkhead.cuda.pool().alloc("8")': "arg-type",
    'bulkhead.cuda.pool().to_host(bulkhead.cuda.pool().alloc(8))': "call-overload",
    'bulkhead.cuda.f32("1")': "arg-type",
}  # fmt: skip


@pytest.fixture
def mypy(tmp_path):
    if not shutil.which("mypy"):
        pytest.skip("Debian's mypy is not installed")

    def check(*args: str, **files: str) -> subprocess.CompletedProcess:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        env = os.environ | {"MYPYPATH": str(stage() / "share/bulkhead/python")}
        return subprocess.run(["mypy", "--strict", f"--cache-dir={tmp_path}/cache", *args], cwd=tmp_path, env=env,
                              capture_output=True, text=True, timeout=300 * SLOW)  # fmt: skip

    return check


def test_the_package_and_its_stub_are_strictly_typed(mypy):
    package = stage() / "share/bulkhead/python"
    done = mypy(str(package / "bulkhead"), str(package / "_bulkhead.pyi"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_app_and_its_test_are_strictly_typed_by_it(mypy):
    done = mypy("app.py", "test_app.py", app=APP, test_app=TEST)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_app_over_cuda_is_strictly_typed_by_it(mypy):
    done = mypy("device.py", device=CUDA)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_are_found_by_it(mypy):
    done = mypy("wrong.py", wrong="import bulkhead, bulkhead.cuda\n\n" + "\n".join(WRONG))
    found = {int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]") for line in done.stdout.splitlines() if ": error:" in line}
    assert found == {number: code for number, code in enumerate(WRONG.values(), 3)}, done.stdout


def test_the_stub_has_what_the_host_has_and_nothing_else(host):
    h = host(
        "[plugin hold]\nlibrary = t_hold\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                import bulkhead
                import _bulkhead

                class App:
                    @bulkhead.endpoint
                    def names(self) -> dict:
                        def public(thing):
                            return sorted(n for n in vars(thing) if not n.startswith("__"))
                        found = {"": public(_bulkhead)}
                        for name in ("Pool", "Task", "Request"):
                            found[name] = public(getattr(_bulkhead, name))
                        return found
            """
        },
    )
    tree = ast.parse((stage() / "share/bulkhead/python/_bulkhead.pyi").read_text())

    def names(body):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.AnnAssign):
                yield node.target.id

    def without_dunders(body):
        return sorted(name for name in set(names(body)) if not name.startswith("__"))

    told = h.call("names")
    inside = {"Writer", "_Parameter"}  # the host's own
    assert [n for n in told[""] if n not in inside] == without_dunders(tree.body)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in told:
            assert told[node.name] == without_dunders(node.body), node.name
