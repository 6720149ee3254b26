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

        import bulkhead

        try:
            import torch
        except ImportError:
            torch = None

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
                return [torch.equal(out, a + b), abs(dot - float(a.double() @ b.double())) < 1e-3, grad.tolist()]
    """
}


def test_torch_runs_on_streams_and_the_host_stops_cleanly(host):
    h = host(MANIFEST, APP, wait="answering")
    h.wait_ready(60)
    if not h.call("has_torch"):
        pytest.skip("PyTorch is not there for this Python (Debian: python3-torch)")
    assert h.call("layers", 4, 20, timeout=60) is True
    assert h.call("kernels", timeout=60) == [True, True, [0, 2, 4, 6, 8]]
    assert h.get("/v1/gil").json["unsanctioned"] == 0
    assert h.stop(timeout=30 * SLOW) == 0
