# SPDX-License-Identifier: BSD-3-Clause
"""The rdma plugin end to end: two bulkheadd processes, regions of one, transfers of the other.

Each test runs on each transport: software here; verbs where RDMA_VM_DEVICE, RDMA_VM_ADDRESS and RDMA_VM_GID name a
device (scripts/rdma-vm sets them in its VM; tests/vm/rdma_e2e). What a node does is said by the test, as Python source
that it runs.

Where each trial is. U: tests/unit/; those of test_rdma_transport.c are done on both transports, the verbs ones and
test_rdma_device.c in the VM (tests/vm/rdma_verbs).

H13 (a) memory limit    test_h13_the_memory_limit_is_named, test_h13_a_memory_limit_that_has_no_room_for_a_link (both in
                        the VM); U test_rdma_device.c "H13: a small locked-memory limit ..."
H13 (b) wrong options   test_h13_options_that_cannot_be; U test_rdma_device.c "H13: a wrong option ..." (gid_index 99, port 2)
H13 (c) no answer       test_h13_a_peer_that_never_answers; U test_rdma_transport.c "a listener that never answers ..."
H14 flushed             test_h14_stop_with_a_thousand_in_flight
H14 and lost            test_h14_what_never_comes_back (a transport that loses work: tests/plugins/t_rdma.c); U
                        test_rdma_device.c "H14: work that is never given back ...", test_rdma_engine.c "SUP-10: what the ..."
killed in mid-transfer  test_a_peer_that_is_killed, test_either_side_is_killed_at_random_moments; U test_rdma_kill.c (both
                        sides, either transport: RDMA_KILLS), test_rdma_transport.c "a killed peer ..."
port down               U test_rdma_device.c "a port that goes down and up in mid-transfer ...", "a port that stays down ..."
device gone             test_a_device_that_is_gone
descriptor corrupted    test_a_corrupted_descriptor_is_refused; U test_rdma_descriptor.c "every byte with every other value ..."
region that is gone     test_after_close_a_peer_is_refused_and_memory_untouched, test_close_while_peers_write,
                        test_one_of_two_that_share; a whole process: test_a_peer_that_comes_again
memory unmapped         test_memory_that_python_dropped_stays, test_memory_that_is_unmapped_behind_pythons_back; what is not mapped
                        cannot be registered: U test_rdma_device.c "memory that is not there ..."
past the end            test_past_the_end; parts: test_many_parts_are_one_task; U test_rdma_transport.c "what a region ..."
10 000 rounds           test_ten_thousand_rounds_leave_nothing
two peers, one region   test_two_peers_hammer_one_region
"""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from conftest import SLOW, needs_rdma, stage, until

if stage() and not (stage() / "lib" / "bulkhead" / "plugins" / "rdma.so").exists():
    pytest.skip("built without the rdma plugin", allow_module_level=True)

NODE = '''
import asyncio, gc, hashlib, mmap, os, random, tempfile, textwrap, time, types, warnings
import bulkhead, bulkhead.rdma

async def failure(awaitable):
    """[class, code, facts] of what it raises; None when it is done well."""
    try:
        await awaitable
    except bulkhead.BulkheadError as error:
        return [type(error).__name__, error.code, error.facts]
    return None

def pattern(n, seed=1):
    """n bytes that tell where they belong."""
    return bytearray(random.Random(seed).randbytes(min(n, 65537)) * (n // 65537 + 1))[:n]

def digest(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()

class Node:
    async def start(self, app):
        self.names = {"g": types.SimpleNamespace(), "failure": failure, "pattern": pattern, "digest": digest, **globals()}
        if "rdma" in app.options.get("pools", "rdma"):
            self.names["rdma"] = bulkhead.rdma.pool("rdma")

    @bulkhead.endpoint
    async def run(self, source: str, args: dict[str, object]) -> object:
        exec("async def run():\\n" + textwrap.indent(textwrap.dedent(source), "    "), self.names | args, names := {})
        return await names["run"]()
'''


class Node:
    """One host, and what it is asked to do."""

    def __init__(self, host):
        self.host = host

    def run(self, source: str, timeout: float = 60.0, **args):
        for name, value in args.items():
            if isinstance(value, bytes):
                args[name] = value.hex()
        return self.host.call("run", source=source, args=args, timeout=timeout)

    def serve(self, size: int, access: str = "read", name: str = "region", seed: int = 1) -> str:
        """Registers `size` bytes of pattern as g.NAME, of g.NAME_data; returns the descriptor, in hex."""
        return self.run(
            f"""
            g.{name}_data = pattern(size, seed)
            g.{name} = await rdma.register(g.{name}_data, access)
            return g.{name}.descriptor.hex()
            """,
            size=size, access=access, seed=seed)  # fmt: skip

    def plugin(self) -> dict:
        return next(p for p in self.host.get("/v1/plugins").json["plugins"] if p["label"] == "rdma")

    def metric(self, name: str) -> float:
        for line in self.host.get("/metrics").text.splitlines():
            if line.startswith(f"bulkhead_plugin_rdma_{name}{{"):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)


@pytest.fixture(params=["software", "verbs"])
def transport(request) -> str:
    needs_rdma(request.param)
    if request.param == "verbs" and not os.environ.get("RDMA_VM_DEVICE"):
        pytest.skip("no verbs device here: scripts/rdma-vm boots a VM that has one")
    return request.param


@pytest.fixture
def node(host, transport):
    """node(options="", rest="") -> Node: a host with the rdma plugin and the app above."""

    def start(options: str = "", rest: str = "", queue: int = 4096, **more) -> Node:
        settings = {"transport": transport}
        if transport == "verbs":
            settings["device"] = os.environ["RDMA_VM_DEVICE"]
            if os.environ.get("RDMA_VM_GID"):
                settings["gid_index"] = os.environ["RDMA_VM_GID"]
        lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
        manifest = f"[plugin rdma]\nlibrary = rdma\nqueue = {queue}\n{lines}{options}\n{rest}\n[app app]\nobject = node:Node\n"
        return Node(host(manifest, files={"node.py": NODE}, **more))

    return start


# ---- round trips


def test_round_trips_of_all_sizes(node):
    """What is written arrives, what is read is what is there, and not a byte beside it is touched."""
    a, b = node(), node()
    for size in (0, 1, 8, 4095, 1 << 16, (8 << 20) + 1, 64 << 20):
        descriptor = a.serve(size, "read-write", seed=size)
        read = b.run(
            """
            remote = await rdma.open(bytes.fromhex(descriptor))
            assert remote.length == size and remote.access == "read-write", remote
            g.local = bytearray(b"\\xa5" * (size + 64))
            await remote.read_into(g.local, 0, size, local_offset=32)
            assert g.local[:32] == g.local[size + 32:] == b"\\xa5" * 32
            return digest(memoryview(g.local)[32:size + 32])
            """,
            descriptor=descriptor, size=size)  # fmt: skip
        assert read == a.run("return digest(g.region_data)"), size
        wrote = b.run(
            """
            remote = await rdma.open(bytes.fromhex(descriptor))
            data = pattern(size, size + 7)
            await remote.write_from(data)
            return digest(data)
            """,
            descriptor=descriptor, size=size)  # fmt: skip
        assert wrote == a.run("return digest(g.region_data)"), size
        a.run("await g.region.close()")
    until(lambda: b.metric("reads_total") == 6 and b.metric("writes_total") == 6, what="the metrics")
    assert b.metric("bytes_read_total") == sum((1, 8, 4095, 1 << 16, (8 << 20) + 1, 64 << 20))
    assert b.metric("in_flight") == b.metric("queued") == 0


def test_a_read_is_an_argument_of_a_kernel(node):
    """The kernel runs when the rows have arrived; nobody awaits in between."""
    a, b = node(), node(rest="[plugin stream]\nlibrary = stream")
    descriptor = a.run(
        """
        import array
        g.table = array.array("f", range(1000))
        g.region = await rdma.register(g.table)
        return g.region.descriptor.hex()
        """)  # fmt: skip
    assert b.run(
        """
        remote, stream = await rdma.open(bytes.fromhex(descriptor)), bulkhead.pool("stream")
        rows = bulkhead.Buffer.allocate(100, "float32")
        return await stream.sum(remote.read_into(rows, 400))
        """,
        descriptor=descriptor) == sum(range(100, 200))  # fmt: skip


def test_many_parts_are_one_task(node):
    a, b = node(), node()
    descriptor = a.serve(1 << 20, "read-write")
    got = b.run(
        """
        remote = await rdma.open(bytes.fromhex(descriptor))
        rows = [random.Random(i).randrange(0, (1 << 20) - 100) for i in range(1000)]
        local = bytearray(100 * 1000)
        await remote.read_many(local, [(row, 100 * i, 100) for i, row in enumerate(rows)])
        whole = bytearray(1 << 20)
        await remote.read_into(whole)
        assert all(local[100 * i:100 * i + 100] == whole[row:row + 100] for i, row in enumerate(rows))
        await remote.write_many(bytes(range(256)), [(4096 * i, i, 1) for i in range(256)])
        await remote.read_into(whole)
        assert [whole[4096 * i] for i in range(256)] == list(range(256))
        await remote.read_many(local, [])
        return [await failure(remote.read_many(local, [(0, 0, 1), ((1 << 20) - 1, 0, 2)])),
                await failure(rdma.pool.read_many(remote.descriptor, local, [1, 2])),
                await failure(rdma.pool.read_many(remote.descriptor, local, [1, 2, "3"]))]
        """,
        descriptor=descriptor)  # fmt: skip
    assert [error[1] for error in got] == ["rdma.range", "rdma.parts", "rdma.parts"]
    assert got[0][2]["part"] == "1" and got[0][2]["region_length"] == str(1 << 20)
    assert got[2][2]["at"] == "2"


# ---- what must not be


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def forged(descriptor: str, **fields: int) -> str:
    """With other fields, and a checksum that is right."""
    places = {"access": (6, 1), "instance": (8, 8), "base": (16, 8), "length": (24, 8), "key": (32, 8)}
    raw = bytearray.fromhex(descriptor)[:-4]
    for name, value in fields.items():
        at, size = places[name]
        raw[at:at + size] = value.to_bytes(size, "little")
    return (raw + crc32c(raw).to_bytes(4, "little")).hex()


def elsewhere(descriptor: str, address: str, port: int) -> str:
    """Of the same region, at another IPv4 address."""
    raw = bytearray.fromhex(descriptor)[:-4]
    assert raw[7] == 16
    raw[42:48] = port.to_bytes(2, "big") + socket.inet_aton(address)
    return (raw + crc32c(raw).to_bytes(4, "little")).hex()


READ = """
    remote = await rdma.open(bytes.fromhex(descriptor))
    return await failure(remote.read_into(bytearray(size), offset))
    """
WRITE = """
    remote = await rdma.open(bytes.fromhex(descriptor))
    return await failure(remote.write_from(b"\\xff" * size, offset))
    """


def test_parts_are_counted_without_overflow(node, transport):
    """2**64 bytes together are not none."""
    if transport != "software":
        pytest.skip("verbs pins what is registered")
    error = node().run(
        """
        try:
            memory = mmap.mmap(-1, 1 << 46, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
        except OSError:
            return "no room"
        async with await rdma.register(memory, "read") as region:
            return await failure(rdma.pool.read_many(region.descriptor, memory, [0, 0, 1 << 46] * (1 << 18)))
        """)  # fmt: skip
    if error == "no room":
        pytest.skip("no 64 TiB of address space here")
    assert error[1] == "rdma.parts" and "2^63" in error[2]["reason"], error


def test_access_rights(node):
    """They are checked here before anything is sent, and by the peer, who does not believe a forged descriptor."""
    a, b = node(), node()
    size = 4096
    readable, writable = a.serve(size, "read", "readable"), a.serve(size, "write", "writable")
    before = a.run("return [digest(g.readable_data), digest(g.writable_data)]")

    error = b.run(WRITE, descriptor=readable, size=size, offset=0)
    assert error[:2] == ["PluginError", "rdma.rights"] and error[2]["needs"] == "write" and error[2]["allowed"] == "read"
    error = b.run(READ, descriptor=writable, size=size, offset=0)
    assert error[:2] == ["PluginError", "rdma.rights"] and error[2]["needs"] == "read"

    error = b.run(WRITE, descriptor=forged(readable, access=3), size=size, offset=0)
    assert error[:2] == ["PluginError", "rdma.access"], error
    assert {"peer", "remote_address", "length", "advice", "op"} <= set(error[2]), error
    error = b.run(READ, descriptor=forged(writable, access=3), size=size, offset=0)
    assert error[:2] == ["PluginError", "rdma.access"], error
    assert a.run("return [digest(g.readable_data), digest(g.writable_data)]") == before
    # And what is allowed goes on, on a link that had been broken by it.
    assert b.run(READ, descriptor=readable, size=size, offset=0) is None
    assert b.run(WRITE, descriptor=writable, size=size, offset=0) is None


def test_the_op_itself_registers_for_reading(node):
    """The pool's op without Rdma around it: its preset is what its signature says."""
    a = node()
    assert a.run("return len((await rdma.pool.register(bytes(64)))[3])") > 32
    assert a.run("import inspect; return inspect.signature(rdma.pool.register).parameters['access'].default") == "read"


def test_past_the_end(node):
    """Refused here with the numbers; a forged length is refused there, and nothing is touched."""
    a, b = node(), node()
    descriptor = a.run(
        """
        g.whole = pattern(3 * 65536)
        g.region = await rdma.register(memoryview(g.whole)[65536:2 * 65536], "read-write")
        return g.region.descriptor.hex()
        """)  # fmt: skip
    before = a.run("return digest(g.whole)")
    for offset, size in ((65536, 1), (65535, 2), (0, 65537), (-1, 1), (1 << 62, 8)):
        for source in (READ, WRITE):
            error = b.run(source, descriptor=descriptor, size=size, offset=offset)
            assert error[:2] == ["PluginError", "rdma.range"], error
            assert error[2]["region_length"] == "65536" and error[2]["offset"] == str(offset), error
            assert error[2]["length"] == str(size), error
    local = b.run(
        """
        remote = await rdma.open(bytes.fromhex(descriptor))
        local = bytearray(100)
        return [await failure(remote.read_into(local, 0, 101)), await failure(remote.read_into(local, 0, 1, local_offset=100)),
                await failure(remote.read_into(local, 0, local_offset=-1)), await failure(remote.read_into(local, 0, local_offset=101))]
        """,
        descriptor=descriptor)  # fmt: skip
    assert all(error[1] == "rdma.local" and error[2]["local_length"] == "100" for error in local), local
    past = "it ends past local memory"
    assert [error[2]["reason"] for error in local] == [past, past, "local_offset is negative", past]
    for length, offset, local_offset, reason in ((-1, 0, 0, "length is negative"), (-1, -1, -1, "length is negative"),
                                                 (1, -1, 0, "offset is negative"), (1, -1, 100, "offset is negative")):  # fmt: skip
        errors = b.run(
            """
            remote = await rdma.open(bytes.fromhex(descriptor))
            local = bytearray(100)
            return [await failure(remote.read_into(local, offset, length, local_offset=local_offset)),
                    await failure(remote.write_from(local, offset, length, local_offset=local_offset)),
                    await failure(remote.read_many(local, [(offset, local_offset, length)]))]
            """,
            descriptor=descriptor, length=length, offset=offset, local_offset=local_offset)  # fmt: skip
        assert all(error[:2] == ["PluginError", "rdma.range"] and error[2]["reason"] == reason for error in errors), errors
    for source in (READ, WRITE):
        error = b.run(source, descriptor=forged(descriptor, length=65536 + 1), size=2, offset=65535)
        assert error[:2] == ["PluginError", "rdma.access"], error
    assert a.run("return digest(g.whole)") == before
    assert b.run(WRITE, descriptor=descriptor, size=65536, offset=0) is None


def test_arguments_that_do_not_fit(node):
    a = node()
    got = a.run(
        """
        async def raised(call):
            try:
                await call()
            except Exception as error:
                return [type(error).__name__, str(error)]
        region = await rdma.register(bytearray(64), "read-write")
        remote = await rdma.open(region.descriptor)
        return [await raised(lambda: rdma.register(5)), await raised(lambda: rdma.register(b"abc", "write")),
                await raised(lambda: rdma.register(memoryview(bytearray(64))[::2])),
                await raised(lambda: rdma.register(bytearray(8), "rw")),
                await raised(lambda: remote.read_into(b"readonly")), await raised(lambda: rdma.pool.close(12345)),
                await raised(lambda: rdma.open(b"")), repr(region), repr(remote), await region.uses(), await region.sharing()]
        """)  # fmt: skip
    assert got[0][0] in ("BadArgument", "TypeError"), got[0]
    assert "writable" in got[1][1] or "read-only" in got[1][1], got[1]
    assert "contiguous" in got[2][1], got[2]
    assert "rdma.parameter" in got[3][1] and "read-write" in got[3][1], got[3]
    assert got[4][0] == "BadArgument" and "local" in got[4][1], got[4]
    assert "rdma.region" in got[5][1], got[5]
    assert "rdma.descriptor" in got[6][1], got[6]
    assert got[7].startswith("<bulkhead.rdma.Region 64 bytes at 0x") and "64 bytes" in got[8]
    assert got[9:] == [0, 1]


def test_wrong_labels_and_times_say_what_is_wanted(node):
    """Whatever is wrong with the call itself is said by the call, whether there is room in the pool or not."""
    a = node()
    got = a.run(
        """
        def raised(call):
            try:
                call()
            except Exception as error:
                return [type(error).__name__, str(error)]
        region = await rdma.register(bytearray(64), "read-write")
        remote = await rdma.open(region.descriptor)
        local = bytearray(8)
        calls = {"label": [lambda: bulkhead.rdma.pool(3), lambda: bulkhead.rdma.pool(None), lambda: bulkhead.rdma.pool(["rdma"])]}
        calls["timeout"] = [lambda v=v: remote.read_into(local, timeout=v) for v in ("soon", b"5", [], -1, float("nan"))]
        calls["wait"] = [lambda v=v: remote.write_from(local, wait=v) for v in ("soon", "5", b"5", [], "", -1, float("nan"))]
        ended = [await remote.read_into(local, timeout=v, wait=w) is None
                 for v, w in ((None, None), (60, True), (2**200, 60), (60.5, 0), (60, float("inf")))]
        def elsewhere():
            return [raised(lambda v=v: remote.write_from(local, wait=v)) for v in ("soon", -1)]
        return [{name: [raised(call) for call in some] for name, some in calls.items()}, len(ended),
                await asyncio.to_thread(elsewhere), (await rdma.info()).in_flight]
        """)  # fmt: skip
    for name, some in got[0].items():
        for error in some:
            assert error and error[0] in ("TypeError", "ValueError") and name in error[1], (name, error)
    assert all("library = rdma" in error[1] for error in got[0]["label"]), got[0]
    assert "'soon'" in got[0]["timeout"][0][1] and "number of seconds" in got[0]["timeout"][0][1]
    assert [error[0] for error in got[0]["wait"]] == 5 * ["TypeError"] + 2 * ["ValueError"], got[0]["wait"]
    assert "True" in got[0]["wait"][0][1] and "'soon'" in got[0]["wait"][0][1]
    assert got[1] == 5 and got[3] == 0
    assert [error[0] for error in got[2]] == ["TypeError", "ValueError"]


def test_a_closed_region(node):
    """It cannot be entered again; closing it again does nothing, while the first close waits too."""
    a = node()
    got = a.run(
        """
        region = await rdma.register(bytearray(4096))
        async with region as same:
            assert same is region and not region.closed
        await region.close()
        await region.close(timeout=5)
        async def enter():
            async with region:
                raise AssertionError("entered")
        again = await rdma.register(bytearray(4096))
        first = asyncio.ensure_future(again.close())
        await asyncio.sleep(0)
        assert again.closed
        await asyncio.wait_for(again.close(), 60)
        await first
        return [region.closed, await failure(enter()), await failure(region.uses()), (await rdma.info()).regions]
        """)  # fmt: skip
    assert got[0] is True and got[3] == 0
    assert got[1][:2] == ["PluginError", "rdma.region"], got[1]
    assert "4096 bytes" in got[1][2]["given"] and "closed" in got[1][2]["reason"] and "register()" in got[1][2]["accepted"]
    assert got[2][:2] == ["PluginError", "rdma.region"], got[2]


def test_a_corrupted_descriptor_is_refused(node):
    """Each byte, changed in three ways, and each length: by open(), and by a transfer that is given it."""
    a, b = node(), node()
    descriptor = a.serve(4096, "read-write")
    before = a.run("return digest(g.region_data)")
    codes = b.run(
        """
        good = bytes.fromhex(descriptor)
        bad = [good[:n] for n in range(len(good))] + [good + b"\\0"]
        for i in range(len(good)):
            bad += [good[:i] + bytes([good[i] ^ x]) + good[i + 1:] for x in (1, 0x80, 0xff)]
        codes = set()
        for each in bad:
            codes.add((await failure(rdma.open(each)))[1])
            codes.add((await failure(rdma.pool.write(each, b"\\xff" * 8)))[1])
        return [sorted(codes), await failure(rdma.open(good[:-1]))]
        """,
        descriptor=descriptor)  # fmt: skip
    assert codes[0] == ["rdma.descriptor"]
    assert "reason" in codes[1][2] and "accepted" in codes[1][2] and codes[1][2]["given_bytes"] == str(len(descriptor) // 2 - 1)
    assert a.run("return digest(g.region_data)") == before


# ---- the end of regions


def test_after_close_a_peer_is_refused_and_memory_untouched(node):
    a, b = node(), node()
    descriptor = a.serve(65536, "read-write")
    assert b.run(READ, descriptor=descriptor, size=65536, offset=0) is None
    before = a.run("await g.region.close(); return digest(g.region_data)")
    for source in (READ, WRITE):
        error = b.run(source, descriptor=descriptor, size=65536, offset=0)
        assert error[:2] == ["PluginError", "rdma.access"], error
        assert error[2]["length"] == "65536" and error[2]["peer"] and error[2]["advice"], error
    assert a.run("return [digest(g.region_data), await g.region.close()]") == [before, None]
    assert a.run("return bytes(g.region_data[:0] + b'x' * 3).decode()") == "xxx"
    a.run("g.region_data.append(1)")  # nothing exports it any more


def test_close_while_peers_write(node):
    """From the return of close() on not a byte changes, though writes were under way."""
    a, b = node(), node()
    for round_ in range(5):
        descriptor = a.serve(32 << 20, "read-write", seed=round_)
        b.run(
            """
            remote = await rdma.open(bytes.fromhex(descriptor))
            g.data = b"\\xee" * (32 << 20)
            g.tasks = [remote.write_from(g.data) for _ in range(8)]
            """,
            descriptor=descriptor)  # fmt: skip
        digest = a.run("await asyncio.sleep(random.random() * 0.02); await g.region.close(); return digest(g.region_data)")
        outcomes = b.run("return [await failure(task) for task in g.tasks]")
        assert all(error is None or error[1] == "rdma.access" for error in outcomes), outcomes
        assert a.run("return digest(g.region_data)") == digest
    assert b.run("return (await rdma.info()).in_flight") == 0


def test_close_waits_for_local_transfers(node):
    """A region that is here the local side of a transfer ends behind it."""
    a, b = node(), node()
    descriptor = a.serve(64 << 20)
    assert b.run(
        """
        remote = await rdma.open(bytes.fromhex(descriptor))
        local = bytearray(64 << 20)
        region = await rdma.register(local, "read")
        tasks = [remote.read_into(local) for _ in range(3)]
        while await region.uses() + sum(task.done() for task in tasks) < 3:  # none is still to begin
            await asyncio.sleep(0)
        await region.close()
        arrived = digest(local)
        await asyncio.gather(*tasks)
        return arrived
        """,
        descriptor=descriptor) == a.run("return digest(g.region_data)")  # fmt: skip


def test_one_of_two_that_share(node):
    a, b = node(), node()
    descriptors = a.run(
        """
        g.data = pattern(4096)
        g.one, g.two = await rdma.register(g.data), await rdma.register(g.data)
        g.other = await rdma.register(memoryview(g.data)[:4095])
        assert [await g.one.sharing(), await g.other.sharing()] == [2, 1]
        await g.one.close()
        return [g.one.descriptor.hex(), g.two.descriptor.hex(), g.other.descriptor.hex()]
        """)  # fmt: skip
    assert descriptors[0] == descriptors[1] != descriptors[2]
    assert b.run(READ, descriptor=descriptors[0], size=4096, offset=0) is None
    a.run("await g.two.close()")
    assert b.run(READ, descriptor=descriptors[0], size=4096, offset=0)[1] == "rdma.access"
    assert b.run(READ, descriptor=descriptors[2], size=4095, offset=0) is None
    # The same bytes again: a key of their own, and the old descriptor stays without meaning.
    again = a.run("g.one = await rdma.register(g.data); return g.one.descriptor.hex()")
    assert again != descriptors[0]
    assert b.run(READ, descriptor=descriptors[0], size=4096, offset=0)[1] == "rdma.access"
    assert b.run(READ, descriptor=again, size=4096, offset=0) is None


def test_memory_that_python_dropped_stays(node):
    """Of a bytearray, of an mmap whose file has gone, of a Buffer: until the region is closed."""
    a, b = node(), node()
    descriptors = a.run(
        """
        data = pattern(1 << 20)
        g.digest = digest(data)
        g.one = await rdma.register(data)
        buffer = bulkhead.Buffer.allocate(1 << 20, "uint8")
        memoryview(buffer).cast("B")[:] = data
        g.two = await rdma.register(buffer)
        file = tempfile.TemporaryFile()
        file.write(data)
        file.flush()
        g.map = mmap.mmap(file.fileno(), 1 << 20)
        file.close()
        g.three = await rdma.register(g.map)
        del data, buffer, file
        gc.collect()
        junk = [bytearray(1 << 20) for _ in range(64)]      # would take its place
        try:
            g.map.close()
        except BufferError:
            pass                                            # the region exports it
        else:
            raise AssertionError("an mmap was unmapped under its region")
        return [r.descriptor.hex() for r in (g.one, g.two, g.three)]
        """)  # fmt: skip
    expected = a.run("return g.digest")
    for descriptor in descriptors:
        assert b.run(
            """
            remote = await rdma.open(bytes.fromhex(descriptor))
            local = bytearray(remote.length)
            await remote.read_into(local)
            return digest(local)
            """,
            descriptor=descriptor) == expected  # fmt: skip
    assert a.run("await g.three.close(); g.map.close(); return g.map.closed")


def test_memory_that_is_unmapped_behind_pythons_back(node, transport):
    """What no exporter allows, done in C: the owner lives, each read ends by its timeout, and others are served.

    Not so with a write on the software transport: libfabric copies what it brings, and the owner ends by SIGSEGV.
    """
    a, b = node(), node("abort_timeout = 300ms")
    descriptor = a.run(
        """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
        at = libc.mmap(None, ctypes.c_size_t(1 << 20), 3, 0x22, -1, 0)
        g.region = await rdma.register((ctypes.c_char * (1 << 20)).from_address(at), "read-write")
        assert libc.munmap(at, 1 << 20) == 0
        return g.region.descriptor.hex()
        """)  # fmt: skip
    other = a.serve(4096, "read-write", "other")
    outcomes = b.run(
        """
        remote = await rdma.open(bytes.fromhex(descriptor))
        calls = [remote.read_into, remote.write_from] if transport == "verbs" else [remote.read_into]
        return [await failure(call(bytearray(size), timeout=2.0)) for call in calls for size in (8, 4096, 1 << 20)]
        """,
        descriptor=descriptor, transport=transport)  # fmt: skip
    if transport == "verbs":  # it pins the pages: they are there until the region is closed
        assert outcomes == [None] * 6, outcomes
    else:
        assert all(x and (x[0] == "Deadline" or x[1].startswith("rdma.")) for x in outcomes), outcomes
    assert b.run(READ, descriptor=other, size=4096, offset=0) is None
    assert a.run("await g.region.close(); return (await rdma.info()).regions", timeout=20) == 1
    assert a.host.get("/readyz").status == b.host.get("/readyz").status == 200


def test_memory_is_free_when_close_returns(node):
    """500 times, with a link that has to be asked: an mmap can be unmapped in the very next statement."""
    a, b = node(), node()
    assert b.run(READ, descriptor=a.serve(4096), size=4096, offset=0) is None
    a.run(
        """
        for i in range(500):
            memory = mmap.mmap(-1, 65536)
            region = await rdma.register(memory)
            await region.close()
            memory.close()
        """)  # fmt: skip


def test_a_close_that_was_refused_has_closed_nothing(node):
    """A wrong argument of close() leaves the region as it was: open, and to be closed."""
    a = node()
    assert a.run(
        """
        region = await rdma.register(bytearray(4096))
        try:
            await region.close(timeout="soon")
        except TypeError:
            still = region.closed, (await rdma.info()).regions
        await region.close()
        return [*still, region.closed, (await rdma.info()).regions]
        """) == [False, 1, True, 0]  # fmt: skip


def test_a_region_that_nobody_closed(node):
    """Garbage-collected: warned of, and closed. Left at the stop: released, and reported in one line."""
    a = node()
    a.run(
        """
        warnings.simplefilter("always")
        region = await rdma.register(bytearray(4096))
        del region
        gc.collect()
        """)  # fmt: skip
    until(lambda: a.run("return (await rdma.info()).regions") == 0, what="its end")
    until(lambda: any("ResourceWarning" in line.get("msg", "") for line in a.host.log), what="the warning")
    a.run("g.kept = [await rdma.register(bytearray(100)) for _ in range(10)]")
    until(lambda: a.metric("regions") == 10, what="the metric")
    assert a.metric("registered_bytes") == 1000
    assert a.host.stop() == 0
    line = a.host.find("regions were left open; they are released now", plugin="rdma")
    assert line and line["regions"] == "10" and line["bytes"] == "1000"
    assert a.host.find("rdma has ended")["registrations_left"] == "0"


def test_ten_thousand_rounds_leave_nothing(node):
    """10 000 register/close rounds: no growth of memory or mappings."""
    a = node()
    rounds = """
        data = bytearray(1 << 20)
        for i in range(0, n, 50):
            regions = await asyncio.gather(*(rdma.register(memoryview(data)[64 * j:65536 + 64 * j]) for j in range(50)))
            await asyncio.gather(*(region.close() for region in regions))
        gc.collect()
        status = dict(line.split(":") for line in open("/proc/self/status") if line.startswith("VmRSS"))
        return [int(status["VmRSS"].split()[0]), len(open("/proc/self/maps").readlines()), len(os.listdir("/proc/self/fd"))]
        """
    first = a.run(rounds, n=2000)
    last = a.run(rounds, n=10000, timeout=120)
    info = a.run("i = await rdma.info(); return [i.regions, i.registered_bytes]")
    assert info == [0, 0]
    if SLOW == 1:  # a sanitizer keeps what was freed
        assert last[0] - first[0] < 6 * 1024, (first, last)  # KiB; a leak of 1 KiB a round would be 10 MiB
    assert last[1] - first[1] < 20 and last[2] - first[2] <= 2, (first, last)


# ---- peers that go


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_a_peer_that_is_killed(node):
    """In the middle of transfers: each task has one outcome and names the peer, and this side is healthy."""
    a, b, c = node(), node("connect_retries = 2"), node()
    dying, living = a.serve(8 << 20, "read-write"), c.serve(4096)
    b.run(
        """
        remote = await rdma.open(bytes.fromhex(descriptor))
        g.locals = [bytearray(8 << 20) for _ in range(20)]
        await remote.read_into(g.locals[0])
        g.tasks = [(remote.write_from if i % 2 else remote.read_into)(local) for _ in range(5) for i, local in enumerate(g.locals)]
        """,
        descriptor=dying)  # fmt: skip
    a.host.ended_by_test = True
    a.host.process.kill()
    a.host.process.wait()
    outcomes = b.run("return [await failure(task) for task in g.tasks]")
    failed = [error for error in outcomes if error]
    assert failed, "the kill came too late"
    peer = b.run("return (await rdma.open(bytes.fromhex(descriptor))).peer", descriptor=dying)
    for error in failed:
        assert error[0] == "PluginError" and error[1] in ("rdma.connect", "rdma.lost"), error
        assert error[2]["peer"] == peer and error[2]["length"] == str(8 << 20) and error[2]["advice"], error
    assert b.run(READ, descriptor=living, size=4096, offset=0) is None
    pool = b.host.pool("rdma")
    assert pool["pending"] == pool["running"] == pool["queued"] == 0
    assert pool["submitted"] == pool["done"] + pool["failed"], pool
    assert b.run("return (await rdma.info()).in_flight") == 0


def only_software(transport: str) -> None:
    if transport == "verbs":
        pytest.skip("a device serves for a process that is stopped, too: nothing hangs")


def test_a_peer_that_stands_still(node, transport):
    """Stopped: a timeout and a cancellation end the waiting, the memory is free again, and it works on when it goes on."""
    only_software(transport)
    a, b = node(), node("abort_timeout = 200ms")
    descriptor = a.serve(4 << 20, "read-write")
    assert b.run(READ, descriptor=descriptor, size=4096, offset=0) is None
    a.host.send(signal.SIGSTOP)
    try:
        began = time.monotonic()
        got = b.run(
            """
            remote = await rdma.open(bytes.fromhex(descriptor))
            local = bytearray(4 << 20)
            late = remote.read_into(local, timeout=0.3)
            cancelled = remote.write_from(local)
            await asyncio.sleep(0.05)
            cancelled.cancel()
            result = [await failure(late), await failure(cancelled)]
            del late, cancelled
            gc.collect()
            local.append(0)         # BufferError while anybody uses it
            return result
            """,
            descriptor=descriptor)  # fmt: skip
        assert got[0][0] == "Deadline" and got[1][0] == "Cancelled", got
        assert time.monotonic() - began < 10 * SLOW
        assert b.host.get("/readyz").status == 200
    finally:
        a.host.send(signal.SIGCONT)
    assert b.run(READ, descriptor=descriptor, size=4 << 20, offset=0) is None


def test_a_close_with_a_timeout(node, transport):
    """A transfer that hangs keeps the region's end waiting, not its closer; the end comes when the transfer does."""
    only_software(transport)
    a, b = node(), node()
    descriptor = a.serve(4 << 20)
    assert b.run(READ, descriptor=descriptor, size=4096, offset=0) is None
    a.host.send(signal.SIGSTOP)
    try:
        got = b.run(
            """
            remote = await rdma.open(bytes.fromhex(descriptor))
            g.local = bytearray(4 << 20)
            g.region = await rdma.register(g.local)
            g.task = remote.read_into(g.local)
            while await g.region.uses() == 0:
                await asyncio.sleep(0.01)
            return [await failure(g.region.close(timeout=0.2)), await g.region.close(), g.task.done(),
                    await failure(rdma.pool.uses(g.region._handle))]
            """,
            descriptor=descriptor)  # fmt: skip
        assert got[0][0] == "Deadline" and got[1:3] == [None, False] and got[3][1] == "rdma.region", got
    finally:
        a.host.send(signal.SIGCONT)
    b.run(
        """
        await g.task
        del g.task
        while (await rdma.info()).registered_bytes:
            await asyncio.sleep(0.01)
        """)  # fmt: skip


def test_a_peer_that_comes_again(node, transport):
    """On the same port: the old descriptor is told to be stale, the new one works."""
    port = free_port()
    a, b = node(f"listen_port = {port}"), node()
    old = a.serve(65536, "read-write")
    assert b.run(READ, descriptor=old, size=65536, offset=0) is None
    assert a.host.stop() == 0
    again = node(f"listen_port = {port}")
    new = again.serve(65536, "read-write")
    before = again.run("return digest(g.region_data)")
    for source in (READ, WRITE):
        error = b.run(source, descriptor=old, size=65536, offset=0)
        assert error[:2] == ["PluginError", "rdma.stale"], error
        assert error[2]["peer"].endswith(f":{port}")
    assert again.run("return digest(g.region_data)") == before
    assert b.run(WRITE, descriptor=new, size=65536, offset=0) is None
    assert again.run("return bytes(g.region_data) == b'\\xff' * 65536")


def test_two_peers_hammer_one_region(node):
    """Each has its own half, writes it and reads it back; in the end both halves are what they wrote last."""
    a, b, c = node(), node(), node()
    descriptor = a.serve(2 << 20, "read-write")
    hammer = """
        remote = await rdma.open(bytes.fromhex(descriptor))
        half = 1 << 20
        async def strip(k, size=half // 16):
            rng, local = random.Random(k), bytearray(half // 16)
            for i in range(40):
                data = rng.randbytes(size)
                await remote.write_from(data, first + k * size)
                await remote.read_into(local, first + k * size)
                assert local == data, (k, i)
            return data
        return digest(b"".join(await asyncio.gather(*(strip(k) for k in range(16)))))
        """
    got = {}
    threads = [
        threading.Thread(target=lambda n=n, x=x: got.update({n: x.run(hammer, descriptor=descriptor, first=n << 20)}))
        for n, x in enumerate((b, c))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got.get(0), got.get(1)] == a.run("return [digest(g.region_data[:1 << 20]), digest(g.region_data[1 << 20:])]")


def test_either_side_is_killed_at_random_moments(node):
    """Whoever is left is healthy, and each of its tasks has one outcome. BULKHEAD_RDMA_KILLS: how often (100 in full)."""
    rng = random.Random(1)
    port = free_port()
    server, client = node(f"listen_port = {port}"), node("connect_retries = 3")
    load = """
        remote = await rdma.open(bytes.fromhex(descriptor))
        g.over, g.outcomes = False, []
        async def pull(local):
            while not g.over:
                call = random.choice((remote.read_into, remote.write_from))
                g.outcomes.append(await failure(call(local, 0, random.choice((8, 4096, 1 << 20)))))
                if g.outcomes[-1]:
                    return
        g.pulls = asyncio.gather(*(pull(bytearray(1 << 20)) for _ in range(20)))
        """
    for round_ in range(int(os.environ.get("BULKHEAD_RDMA_KILLS", "4"))):
        descriptor = server.serve(1 << 20, "read-write")
        client.run(load, descriptor=descriptor)
        time.sleep(rng.random() * 0.05)  # the random moment
        dying = (server, client)[round_ % 2].host
        dying.ended_by_test = True
        dying.process.kill()
        dying.process.wait()
        if dying is server.host:
            client.run("g.over = True; await g.pulls")
            outcomes = client.run("return [x for x in g.outcomes if x]")
            assert all(x[1] in ("rdma.connect", "rdma.lost") and x[2]["peer"] for x in outcomes), outcomes
            assert client.run("i = await rdma.info(); return [i.in_flight, i.queued]") == [0, 0]
            pool = client.host.pool("rdma")
            assert pool["submitted"] == sum(pool[k] for k in ("done", "failed", "cancelled", "deadline")), pool
            server = node(f"listen_port = {port}")
        else:
            until(lambda: server.run("return (await rdma.info()).links_in") == 0, what="the end of its links")
            server.run("await g.region.close()", timeout=20)
            client = node("connect_retries = 3")
        descriptor = server.serve(4096)
        assert client.run(READ, descriptor=descriptor, size=4096, offset=0) is None


# ---- load, and the stop


def test_a_thousand_transfers_leave_the_loop_alone(node, report, transport):
    """1000 in flight from one app: all arrive; how late the loop's callbacks were is recorded."""
    a, b = node(), node()
    descriptor = a.serve(64 << 20)
    lag = b.run(
        """
        remote = await rdma.open(bytes.fromhex(descriptor))
        local = bytearray(64 << 20)
        lags, over = [], asyncio.Event()
        async def watch():
            while not over.is_set():
                begin = time.perf_counter()
                await asyncio.sleep(0.001)
                lags.append(time.perf_counter() - begin - 0.001)
        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0.1)
        async def puller(i):
            for _ in range(3):
                await remote.read_into(local, i << 16, 1 << 16, local_offset=i << 16)
        pulling = []
        for i in range(1000):       # all in flight, as soon as the loop has had its turns
            pulling.append(asyncio.ensure_future(puller(i)))
            if i % 20 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*pulling)
        over.set()
        await watching
        lags.sort()
        return [len(lags), lags[len(lags) // 2] * 1e3, lags[int(len(lags) * 0.99)] * 1e3]
        """,
        descriptor=descriptor)  # fmt: skip
    report(f"rdma {transport}: the loop's lag with 1000 transfers in flight: p50 {lag[1]:.2f} ms, p99 {lag[2]:.2f} ms "
           f"({lag[0]} samples)")  # fmt: skip
    until(lambda: b.metric("reads_total") == 3000, what="the metric")


def test_h14_stop_with_a_thousand_in_flight(node):
    """The host ends in time, each task has one outcome, the books are exact, and one line tells of all of them."""
    a, b = node(), node("drain_timeout = 300ms\nabort_timeout = 500ms")
    descriptor = a.serve(1 << 20, "read-write")
    b.run(
        """
        remote = await rdma.open(bytes.fromhex(descriptor))
        g.local = bytearray(1 << 20)
        g.region = await rdma.register(g.local)
        await remote.read_into(g.local)
        g.task = asyncio.ensure_future(asyncio.gather(*(remote.read_into(g.local) for _ in range(1000)), return_exceptions=True))
        """,
        descriptor=descriptor)  # fmt: skip
    a.host.send(signal.SIGSTOP)
    try:
        status = b.host.stop(timeout=20)
    finally:
        a.host.send(signal.SIGCONT)
    assert status == 0
    line = b.host.find("pool closed", pool="rdma")
    counts = {k: int(line[k]) for k in ("submitted", "done", "failed", "cancelled", "deadline", "abandoned")}
    assert counts["submitted"] == sum(counts.values()) - counts["submitted"] == 1003, counts
    assert counts["abandoned"] == int(line["abandoned_alive"]) == 0 and counts["failed"] == 0, counts
    ended = [line for line in b.host.log if line.get("msg") == "rdma has ended"]
    assert len(ended) == 1 and ended[0]["lost"] == ended[0]["registrations_left"] == "0"
    assert int(ended[0]["cancelled"]) == counts["cancelled"]
    assert len([line for line in b.host.log if line.get("level") in ("error", "warning")]) < 10
    assert a.run("return (await rdma.info()).regions") == 1


@pytest.fixture
def odd(host):
    """odd(what, options="") -> Node: the plugin over a transport that does `what`, to itself (tests/plugins/t_rdma.c).

    One worker: the first transfer that is submitted is the first that is posted, which alone comes back.
    """

    def start(what: str, options: str = "", **more) -> Node:
        plugin = f"[plugin rdma]\nlibrary = t_rdma\nworkers = 1\ntransport = software\ndevice = {what}\n{options}\n"
        return Node(host(f"{plugin}[app app]\nobject = node:Node\n", files={"node.py": NODE}, **more))

    return start


def test_h14_what_never_comes_back(odd):
    """100 posted, stop: 1 done, 98 flushed, 1 never. Each told once, one line of all, and its memory is named and stays."""
    # What is kept for good is a leak to a sanitizer.
    a = odd("loses", "drain_timeout = 300ms\nabort_timeout = 300ms", env={"ASAN_OPTIONS": "detect_leaks=0:exitcode=99"})
    a.run(
        """
        data, g.local = pattern(4096), bytearray(4096)
        region = await rdma.register(data)
        remote = await rdma.open(region.descriptor)
        g.tasks = [remote.read_into(g.local) for _ in range(100)]
        await g.tasks[0]
        assert g.local == data
        while (await rdma.info()).in_flight < 99:
            await asyncio.sleep(0.01)
        g.region = region
        """)  # fmt: skip
    before = a.host.pool("rdma")
    assert before["pending"] == 99, before
    assert a.host.stop(timeout=30) == 75  # tasks were abandoned
    line = a.host.find("pool closed", pool="rdma")
    counts = {k: int(line[k]) for k in ("submitted", "done", "failed", "cancelled", "deadline", "abandoned")}
    assert counts["submitted"] == before["submitted"] == sum(counts.values()) - counts["submitted"], counts
    assert counts["cancelled"] == 98 and counts["abandoned"] == 1 and counts["failed"] == counts["deadline"] == 0, counts
    assert counts["done"] == before["done"] and line["abandoned_alive"] == "1", line
    ended = [line for line in a.host.log if line.get("msg") == "rdma has ended"]
    assert len(ended) == 1 and ended[0]["level"] == "warning" and ended[0]["component"] == "rdma", ended
    told = [ended[0][k] for k in ("reads", "cancelled", "failed", "lost", "registrations_left")]
    assert told == ["1", "98", "0", "1", "1"], ended
    loud = [line for line in a.host.log if line.get("level") in ("error", "warning")]
    assert len(loud) < 10, loud  # not one for each


def test_a_device_that_is_gone(odd):
    """For good: the pool fails with the device's name, each task has one outcome, and the host is alive to say so."""
    a = odd("gone", "abort_timeout = 300ms")
    outcomes = a.run(
        """
        region = await rdma.register(pattern(4096))
        remote = await rdma.open(region.descriptor)
        local = bytearray(4096)
        return [await failure(task) for task in [remote.read_into(local) for _ in range(20)]]
        """)  # fmt: skip
    assert outcomes[0] is None and all(x is not None for x in outcomes[1:]), outcomes
    pool = until(lambda: (p := a.host.pool("rdma"))["state"] == "failed" and p, what="the pool's failure")
    assert pool["submitted"] == sum(pool[k] for k in ("done", "failed", "cancelled", "deadline")), pool
    assert "rdma.device" in str(a.plugin()) and "the device is gone" in str(a.plugin()), a.plugin()
    assert a.host.get("/livez").status == 200 and a.host.get("/readyz").status == 503
    error = a.run("return await failure(rdma.register(bytearray(8)))")
    assert error[1] == "pool.closed" and error[2]["cause"] == "rdma.device", error


# ---- set-up


def test_h13_a_peer_that_never_answers(node, transport):
    """(c) Health stays quick while a connection hangs, the waiting is bounded, and SIGTERM in the middle ends in time."""
    a = node("connect_timeout = 1s\nconnect_retries = 0")
    b = node("connect_timeout = 60s\ndrain_timeout = 300ms")
    descriptor = a.serve(4096)
    with socket.socket() as silent:  # the kernel accepts, and nobody ever says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        if transport == "software":
            hanging = elsewhere(descriptor, "127.0.0.1", silent.getsockname()[1])
        else:  # a neighbour that is not there
            near = os.environ["RDMA_VM_ADDRESS"].rsplit(".", 1)[0]
            hanging = elsewhere(descriptor, f"{near}.251", 4791)
        began = time.monotonic()
        error = a.run(READ, descriptor=hanging, size=4096, offset=0)
        assert error[:2] == ["PluginError", "rdma.connect"], error
        assert error[2]["peer"] and error[2]["advice"] and "reason" in error[2], error
        assert time.monotonic() - began < 15 * SLOW
        b.run(
            """
            remote = await rdma.open(bytes.fromhex(descriptor))
            g.tasks = [remote.read_into(bytearray(4096)) for _ in range(50)]
            """,
            descriptor=hanging)  # fmt: skip
        slowest = 0.0
        for _ in range(20):
            asked = time.monotonic()
            assert b.host.get("/livez").status == 200
            slowest = max(slowest, time.monotonic() - asked)
        assert slowest < 1.5 * SLOW
        assert b.run("return [task.done() for task in g.tasks]") == [False] * 50
        asked = time.monotonic()
        assert b.host.stop(timeout=20) == 0
        assert time.monotonic() - asked < 10 * SLOW
        line = b.host.find("pool closed", pool="rdma")
        assert line["cancelled"] == "50" and line["abandoned"] == "0", line


def may_lock(tmp_path: Path, limit: int) -> Path:
    """A bulkheadd that may lock `limit` bytes, whoever runs it: root may any amount, unless CAP_IPC_LOCK is taken."""
    binary = tmp_path / f"may-lock-{limit}"
    drop = "setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock" if os.geteuid() == 0 else ""
    binary.write_text(f'#!/bin/sh\nexec {drop} prlimit --memlock={limit} {stage()}/sbin/bulkheadd "$@"\n')
    binary.chmod(0o755)
    return binary


def test_h13_the_memory_limit_is_named(node, transport, tmp_path):
    """(a) The limit, its value and what was asked, each time; less still registers; other plugins are up and work."""
    if transport != "verbs":
        pytest.skip("libfabric's tcp pins nothing")
    a = node(binary=may_lock(tmp_path, 524288), rest="[plugin stream]\nlibrary = stream")
    for _ in range(2):
        error = a.run("return await failure(rdma.register(bytearray(1 << 20)))")
        assert error[1] == "rdma.memlock", error
        for each in ("1048576 bytes to register", "already pinned", "RLIMIT_MEMLOCK is 524288", "LimitMEMLOCK="):
            assert each in error[2]["reason"], error
    assert a.host.pool("rdma")["failed"] == 2
    assert a.run("return (await rdma.info()).registered_bytes") == 0
    assert a.run("return await bulkhead.pool('stream').sum(bulkhead.Buffer.allocate(4, 'float32'))") == 0
    assert a.run("async with await rdma.register(bytearray(4096)) as region: return len(region.descriptor)") > 0
    assert a.host.get("/readyz").status == 200


def test_h13_a_memory_limit_that_has_no_room_for_a_link(node, transport, tmp_path):
    """(a) A link's own page cannot be locked: the transfer says so with the numbers, and its memory is free again."""
    if transport != "verbs":
        pytest.skip("libfabric's tcp pins nothing")
    a, b = node(), node("connect_retries = 0", binary=may_lock(tmp_path, 4096))
    error = b.run(
        """
        local = mmap.mmap(-1, 4096)
        remote = await rdma.open(bytes.fromhex(descriptor))
        error = await failure(remote.read_into(local))
        for i in range(1000):       # its registration ends soon
            try:
                local.close()
            except BufferError:
                gc.collect()
                await asyncio.sleep(0.01)
        assert local.closed
        return error
        """,
        descriptor=a.serve(4096))  # fmt: skip
    assert error[1] == "rdma.memlock" and error[2]["peer"], error
    assert "RLIMIT_MEMLOCK is 4096" in error[2]["reason"] and "LimitMEMLOCK=" in error[2]["reason"], error
    assert b.host.get("/readyz").status == 200


@pytest.mark.parametrize("options, says", [
    ("gid_index = three", ["gid_index", "three"]),
    ("gid_index = -2", ["gid_index", "-2", "-1"]),
    ("port = 256", ["port", "256", "255"]),
    ("queue_depth = 8", ["queue_depth", "8", "16"]),
    ("listen_port = 70000", ["listen_port", "70000", "65535"]),
    ("transport = ucx", ["transport", "ucx", "auto", "verbs", "software"]),
    ("connect_timeout = 1", ["connect_timeout"]),
    ("address = localhost", ["[plugin rdma]", "address", "localhost", "numeric"]),
    ("max_message = 100", ["[plugin rdma]", "max_message", "4KiB"]),
    ("address = 203.0.113.7", ["address", "203.0.113.7"]),
])  # fmt: skip
def test_h13_options_that_cannot_be(host, options, says):
    """(b) Section, key, value and what is accepted; status 78; no worker was ever made."""
    if not options.startswith("transport"):
        needs_rdma("software")
    lines = options if options.startswith("transport") else f"transport = software\n{options}"
    h = host(f"[plugin rdma]\nlibrary = rdma\n{lines}\n", wait=None)
    assert h.wait() == 78, h.text
    for each in says:
        assert each in h.text, (each, h.text)
    assert "pool ready" not in h.text


def test_auto_says_which_transport_and_why(host):
    needs_rdma("verbs" if os.environ.get("RDMA_VM_DEVICE") else "software")
    h = host("[plugin rdma]\nlibrary = rdma\n", files={})
    plugin = next(p for p in h.get("/v1/plugins").json["plugins"] if p["label"] == "rdma")
    text = str(plugin)
    assert "auto: " in text and ("software" in text or "verbs" in text), plugin
    assert h.wait_log("rdma is ready")["why"].startswith("auto: ")


def test_no_verbs_device(host):
    """Required: status 69 and a reason. Optional: skipped, shown, and the host is up."""
    if os.environ.get("RDMA_VM_DEVICE"):
        pytest.skip("there is one here")
    h = host("[plugin rdma]\nlibrary = rdma\ntransport = verbs\n", wait=None)
    assert h.wait() == 69, h.text
    assert "verbs" in h.text and "reason=" in h.text
    h = host("[plugin rdma]\nlibrary = rdma\ntransport = verbs\noptional = yes\n")
    plugin = next(p for p in h.get("/v1/plugins").json["plugins"] if p["label"] == "rdma")
    assert plugin["state"] == "skipped", plugin


def test_another_transports_descriptor_is_told(node, transport):
    a = node()
    descriptor = bytearray.fromhex(a.serve(64))[:-4]
    descriptor[5] = 3 - descriptor[5]
    other = (descriptor + crc32c(descriptor).to_bytes(4, "little")).hex()
    error = a.run("return await failure(rdma.open(bytes.fromhex(descriptor)))", descriptor=other)
    assert error[:2] == ["PluginError", "rdma.transport"], error
    assert {error[2]["given"], error[2]["accepted"]} == {"verbs", "software"} and "advice" in error[2]


def test_too_few_threads_are_told(node):
    a = node("progress_threads = 1")
    error = a.run("return await failure(rdma.register(bytearray(8)))")
    assert error[1] == "rdma.progress" and "progress_threads = 2" in error[2]["accepted"], error
