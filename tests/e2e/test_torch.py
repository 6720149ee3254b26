# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch in an app: its operators as callables of streams, its tensors as arguments of kernels, and a clean stop."""

import pytest
from conftest import SLOW

MANIFEST = """
    [plugin stream]
    library = stream
    workers = 2
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import asyncio
        import weakref

        import bulkhead

        try:
            import torch
        except ImportError:
            torch = None

        class Owner(bytearray):
            pass                     # a bytearray that can be referred to weakly

        def step(weights, x):
            return torch.relu(weights @ x)

        def gradient(n):
            x = torch.arange(n, dtype=torch.float32, requires_grad=True)
            (x * x).sum().backward()
            return x.grad

        class App:
            async def start(self, app):
                self.stream = bulkhead.pool("stream")

            @bulkhead.endpoint
            async def has_torch(self) -> bool:
                return torch is not None

            @bulkhead.endpoint
            async def layers(self, streams: int, depth: int) -> bool:
                weights = [torch.randn(64, 64) / 8 for _ in range(depth)]
                x = torch.randn(64, 16)
                ends = []
                for i in range(streams):
                    lane, y = self.stream.lane(f"s{i}"), x
                    for w in weights:
                        y = lane.run(step, w, y)          # the task before is the argument
                    ends.append(y)
                want = x
                for w in weights:
                    want = step(w, want)
                return all(torch.equal(got, want) for got in await asyncio.gather(*ends))

            @bulkhead.endpoint
            async def kernels(self) -> list:
                a, b = torch.randn(1000), torch.randn(1000)
                out = torch.empty(1000)
                await self.stream.add(out, a, b)
                dot = await self.stream.dot(a, b)
                grad = await self.stream.run(gradient, 5)
                tables = torch.randn(6, 4), torch.zeros(4, 3)    # strides that are no numpy's
                await self.stream.copy(tables[1], tables[0].t()[:, 1::2])
                strided = torch.equal(tables[1], tables[0].t()[:, 1::2])
                total = abs(await self.stream.sum(tables[0][1:, ::3]) - float(tables[0][1:, ::3].double().sum())) < 1e-4
                return [strided, total, torch.equal(out, a + b), abs(dot - float(a.double() @ b.double())) < 1e-3, grad.tolist()]

            @bulkhead.endpoint
            async def let_go(self) -> list:
                gone = []            # memory that nobody needs any more, the app and the host's tasks included

                def tensor(name):
                    # Of memory of Python's, which sees its last reference go with the tensor's storage.
                    owner = Owner(4 * 1000)
                    weakref.finalize(owner, gone.append, name)
                    return torch.frombuffer(owner, dtype=torch.float32)

                out, a = tensor("out"), tensor("a")
                await self.stream.axpy(out, 2.0, a)
                await self.stream.run(torch.relu, a)
                before = gone[:]
                del out, a
                for _ in range(3000):
                    if len(gone) == 2:
                        break
                    await asyncio.sleep(0.01)
                return [before, sorted(gone)]
    """
}


def test_torch_runs_on_streams_and_the_host_stops_cleanly(host):
    h = host(MANIFEST, APP, wait="answering")
    h.wait_ready(60)
    if not h.call("has_torch"):
        pytest.skip("PyTorch is not there for this Python (Debian: python3-torch)")
    assert h.call("layers", 4, 20, timeout=60) is True
    assert h.call("kernels", timeout=60) == [True, True, True, True, [0, 2, 4, 6, 8]]
    assert h.call("let_go", timeout=60) == [[], ["a", "out"]]
    assert h.get("/v1/gil").json["unsanctioned"] == 0
    assert h.stop(timeout=30 * SLOW) == 0
