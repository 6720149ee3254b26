# SPDX-License-Identifier: BSD-3-Clause
"""Fault points: the n-th allocation, thread, dlopen or plugin callback fails, and bulkheadd still ends well.

Each walk runs a small host through its whole life (start, tasks, admin calls, stop), once for each n. It
wants a build with --enable-faults and is skipped elsewhere. BULKHEAD_FAULT_WALK=full walks every n;
without it a walk takes the first 30 and a spread of the rest.
"""

import os
import struct
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import SLOW, Host, SANITIZER_REPORT, stage

VERSION = subprocess.run([stage() / "sbin" / "bulkheadd", "--version"], capture_output=True, text=True, check=True).stdout
if "faults on" not in VERSION:
    pytest.skip("bulkheadd was built without --enable-faults", allow_module_level=True)

KINDS = ("alloc", "thread", "dlopen", "callback")  # in the order of BULKHEAD_FAULT_COUNT
DOCUMENTED = (0, 69, 70, 75, 78)
SHUTDOWN_S = 5
# What a start may take, the stop's own bound, and a machine that has more to do.
DEADLINE_S = 20
FIRST, SPREAD = 30, 30

MANIFEST = f"""
    [host]
    shutdown_timeout = {SHUTDOWN_S}s
    env.BH_TEST = walked
    [plugin count]
    library = t_count
    workers = 2
    drain_timeout = 1s
    [app app]
    object = app:App
    start_timeout = 5s
    stop_timeout = 1s
"""

# Whatever a call comes to, the host is asked to stop after it; one that cannot be asked is signalled.
APP = {
    "app.py": """
        import asyncio
        import json
        import os
        import signal

        import bulkhead

        # Keys and types; who is inside the interpreter differs from one moment to the next.
        def shape(value):
            if isinstance(value, dict):
                return "{" + ",".join(f"{k}:{shape(value[k])}" for k in sorted(value) if k not in ("holder", "threads")) + "}"
            if isinstance(value, list):
                return f"[{len(value)} {'|'.join(sorted(set(map(shape, value))))}]"
            return "null" if value is None else type(value).__name__.replace("float", "number").replace("int", "number")

        async def ask(method, path, body=b""):
            reader, writer = await asyncio.open_unix_connection(os.environ["TEST_SOCKET"])
            writer.write(f"{method} {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
                         f"Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body)
            answer = await asyncio.wait_for(reader.read(), 2)
            writer.close()
            head, _, body = answer.partition(b"\\r\\n\\r\\n")
            status = head.split()[1].decode()
            if path == "/metrics" and status == "200":
                body = b"%d families" % body.count(b"# TYPE ")
            print("answer", method, path, status, shape(json.loads(body)) if body[:1] == b"{" else body, flush=True)
            return status

        class App:
            async def start(self, app):
                self.pool = bulkhead.pool("count")
                work = [self.pool.nop(), self.pool.add(1, 2), self.pool.echo("text"), self.pool.pend(1),
                        self.pool.echo_bytes(b"bytes"), self.pool.fail(), self.pool.echo_list(1, 2, 3)]
                lane = self.pool.lane("lane")
                work += [lane.note("a"), lane.note("b")]
                ends = await asyncio.gather(*work, return_exceptions=True)
                print("ends", [getattr(end, "code", type(end).__name__) for end in ends], flush=True)
                self.rest = asyncio.ensure_future(self.talk())

            @bulkhead.endpoint
            async def hello(self, name: str) -> str:
                return f"hello {name}"

            async def talk(self):
                try:
                    for path in ("/livez", "/readyz", "/v1/status", "/v1/pools", "/v1/gil", "/metrics", "/v1/no-such"):
                        await ask("GET", path)
                    await ask("POST", "/v1/apps/app/hello", b'["you"]')
                    if await ask("POST", "/v1/stop") == "202":
                        return
                except Exception as error:
                    print("asking failed:", repr(error), flush=True)
                os.kill(os.getpid(), signal.SIGTERM)

            async def stop(self):
                await self.pool.nop()
    """
}


# How the app's tasks end when nothing is made to fail.
ENDS = "ends ['NoneType', 'int', 'str', 'NoneType', 'bytes', 't_count.fail', 'list', 'NoneType', 'NoneType']"


class Life:
    """One bulkheadd that ran to its end by itself."""

    def __init__(self, fault: str | None):
        self.fault = fault
        with tempfile.TemporaryDirectory(prefix="bh-") as name:
            folder = Path(name)
            env = {"BULKHEAD_FAULT_COUNT": f"{folder}/counts", "TEST_SOCKET": f"{folder}/run/test.sock"}
            if fault:
                env["BULKHEAD_FAULT"] = fault
            host = Host(folder, MANIFEST, APP, env=env)
            try:
                self.status: int | None = host.process.wait(DEADLINE_S * SLOW)
            except subprocess.TimeoutExpired:
                self.status = None
            finally:
                host.reap()
            self.text = host.text
            self.log = host.log
            words = struct.unpack("8Q", (folder / "counts").read_bytes())
            self.seen = dict(zip(KINDS, words[0::2]))
            self.failed = dict(zip(KINDS, words[1::2]))
            self.left = sorted(p.name for p in (folder / "run").iterdir() if p.name != "test.sock.lock")

    def told(self) -> bool:
        """A cause was told, by the host (or its Python side to the app) and not by the fault point."""
        return any(
            line.get("level") in ("error", "warning") or line.get("msg", "").startswith("asking failed")
            or ("raw" in line and not line["raw"].startswith("fault:"))
            or (line.get("msg", "").startswith("ends ") and line["msg"] != ENDS)
            for line in self.log)  # fmt: skip

    def answers(self) -> dict[str, str]:
        """What the admin API answered: request -> status and the shape of the body."""
        lines = [line["msg"].split(" ", 3)[1:] for line in self.log if line.get("msg", "").startswith("answer ")]
        return {f"{method} {path}": rest for method, path, rest in lines}

    def untrue(self, whole: "Life") -> list[str]:
        """Answers that are neither as they are without a fault nor a 500, and a loss that nobody was told of.

        A library may do without some memory: what then is as ever needs no telling."""
        got, want = self.answers(), whole.answers()
        wrong = [f"{request} answered {got[request]}, without a fault {want[request]}"
                 for request in got
                 if got[request] != want[request] and not got[request].startswith("500 {error:{code:str")]  # fmt: skip
        if "no memory for a plugin's path and version: status shows null" in self.text:
            wrong = []
        if self.status == 0 and got != want and not self.told():
            wrong.append("answers are missing or refused, and no cause was told")
        return wrong

    def books(self) -> list[str]:
        """What does not balance in the pools that were closed."""
        wrong = []
        for line in self.log:
            if line.get("msg") == "pool closed":
                ends = sum(int(line[k]) for k in ("done", "failed", "cancelled", "deadline", "abandoned"))
                if ends != int(line["submitted"]):
                    wrong.append(f"{line['pool']}: submitted {line['submitted']}, ended {ends}")
        return wrong

    def complaints(self) -> list[str]:
        wrong = self.books()
        if self.status is None:
            wrong.append(f"it did not end within {DEADLINE_S * SLOW} s")
        elif self.status not in DOCUMENTED:
            wrong.append(f"status {self.status} is none of {DOCUMENTED}")
        if SANITIZER_REPORT.search(self.text):
            wrong.append("a sanitizer reported")
        if self.left:
            wrong.append(f"left behind: {self.left}")
        if self.status and not self.told():
            wrong.append("no cause was told")
        if self.status == 0 and not any(line.get("msg") == "pool closed" for line in self.log):
            wrong.append("status 0, and the pool was never closed")
        return wrong


def chosen(count: int) -> list[int]:
    if os.environ.get("BULKHEAD_FAULT_WALK") == "full" or count <= FIRST + SPREAD:
        return list(range(1, count + 1))
    rest = count - FIRST
    return list(range(1, FIRST + 1)) + sorted({FIRST + 1 + i * (rest - 1) // (SPREAD - 1) for i in range(SPREAD)})


def walk(kind: str, onwards: bool = False) -> list[Life]:
    whole = Life(None)
    assert whole.complaints() == [] and whole.status == 0 and not whole.told(), whole.text
    assert whole.seen[kind] > 0, f"no {kind} was seen"
    names = [f"{kind}:{n}{'+' if onwards else ''}" for n in chosen(whole.seen[kind])]
    with ThreadPoolExecutor(max_workers=int(os.environ.get("BULKHEAD_FAULT_JOBS", "2"))) as threads:
        lives = list(threads.map(Life, names))
    wrong = [(life, complaints) for life in lives if (complaints := life.complaints() + life.untrue(whole))]
    assert not wrong, f"{len(wrong)} of {len(lives)} went wrong:\n" + "\n".join(
        f"{life.fault}: {'; '.join(complaints)}\n{life.text}" for life, complaints in wrong)  # fmt: skip
    return lives


@pytest.mark.parametrize("kind", KINDS)
def test_sup2_exit1_each_single_fault_is_clean(kind, report):
    lives = walk(kind)
    assert lives[0].failed[kind] == 1, "the first call did not fail: the walk shows nothing"
    report(f"{kind}:N: {len(lives)} runs, statuses {dict(sorted(Counter(life.status for life in lives).items()))}")


@pytest.mark.parametrize("kind", KINDS)
def test_sup2_exit1_from_some_call_on_all_fail(kind, report):
    lives = walk(kind, onwards=True)
    assert lives[0].failed[kind] >= 1, "the first call did not fail: the walk shows nothing"
    report(f"{kind}:N+: {len(lives)} runs, statuses {dict(sorted(Counter(life.status for life in lives).items()))}")


@pytest.mark.parametrize("choice", ["alloc", "alloc:0", "memory:1", "alloc:1x"])
def test_a_wrong_choice_is_refused(choice):
    done = subprocess.run([stage() / "sbin" / "bulkheadd", "-c", "/nonexistent"], env={"BULKHEAD_FAULT": choice},
                          capture_output=True, text=True, timeout=30)  # fmt: skip
    assert done.returncode == 64
    assert f'BULKHEAD_FAULT={choice}: "{choice}" is not accepted; accepted: alloc:N' in done.stderr
