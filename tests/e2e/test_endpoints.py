# SPDX-License-Identifier: BSD-3-Clause
"""Endpoints over the socket: typed arguments and results, octets, timeouts, limits, clients that hang up."""

import json
import os
import random
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import CallError, UnixConnection, until

MANIFEST = "[app app]\nobject = app:App\n"
OCTETS = {"Content-Type": "application/octet-stream"}

TYPED = {
    "app.py": """
        from __future__ import annotations

        import dataclasses
        import datetime
        import decimal
        import enum
        from typing import Literal, NamedTuple, Optional, TypedDict
        import uuid

        import bulkhead

        class Color(enum.Enum):
            RED = "red"
            BLUE = "blue"

        @dataclasses.dataclass
        class Item:
            name: str
            weight: float = 1.0
            parts: list[Item] = dataclasses.field(default_factory=list)

        class Pair(NamedTuple):
            left: int
            right: int

        class Options(TypedDict, total=False):
            depth: int
            color: Color

        class App:
            @bulkhead.endpoint
            async def order(self, items: list[Item], due: datetime.date, options: Options = {}, *, pairs: tuple[Pair, ...] = (),
                            price: Optional[decimal.Decimal] = None, ids: set[uuid.UUID] = frozenset(),
                            mode: Color | Literal[1] = 1, by: dict[int, datetime.datetime] = {}):
                \"\"\"Takes an order.

                Not shown.\"\"\"
                assert all(isinstance(item, Item) for item in items) and isinstance(due, datetime.date)
                return {"items": items, "due": due, "options": options, "pairs": pairs, "price": price, "ids": ids, "mode": mode,
                        "by": by}

            @bulkhead.endpoint(name="sum up")
            async def total(self, *numbers: float) -> float:
                return sum(numbers)

            @bulkhead.endpoint
            async def nan(self) -> dict:
                return {"scores": [1.0, float("nan")]}

            @bulkhead.endpoint
            async def forgot(self):
                return [self.total(1.0)]

            @bulkhead.endpoint
            async def store(self, data: bytes, name: str = "", n: int = 0, tags: list[str] = []) -> list:
                return [len(data), data.hex() if len(data) < 100 else "", name, n, tags]

            @bulkhead.endpoint
            async def fetch(self, n: int = 4) -> bytes:
                return b"\\xff{\\0\\n" * (n // 4)

            @bulkhead.endpoint
            async def echo(self, data: memoryview, how: Literal["bytes", "bytearray", "memoryview"] = "bytes"):
                return {"bytes": bytes, "bytearray": bytearray, "memoryview": memoryview}[how](data)
    """
}


def test_arguments_and_results_are_converted(host):
    h = host(MANIFEST, TYPED)
    made = h.call("order", items=[{"name": "a", "parts": [{"name": "b", "weight": 2}]}], due="2024-02-29", options={"color": "RED"},
                  pairs=[[1, 2], {"left": 3, "right": 4}], price="1.50", ids=["12345678123456781234567812345678"] * 2, mode="blue",
                  by={"7": "2024-02-29T10:00:00Z"})  # fmt: skip
    assert made == {
        "items": [{"name": "a", "weight": 1.0, "parts": [{"name": "b", "weight": 2.0, "parts": []}]}], "due": "2024-02-29",
        "options": {"color": "red"}, "pairs": [[1, 2], [3, 4]], "price": "1.50", "ids": ["12345678-1234-5678-1234-567812345678"],
        "mode": "blue", "by": {"7": "2024-02-29T10:00:00+00:00"}}  # fmt: skip
    assert h.post("/v1/apps/app/sum%20up", [1, 2.5]).json == {"result": 3.5}


@pytest.mark.parametrize("change, parameter, accepted", [
    ({"items": [{"name": "a", "parts": [{"name": 1}]}]}, "items[0].parts[0].name", "str"),
    ({"items": [{"nme": "a"}]}, "items[0].nme", "name: str"), ({"items": [{}]}, "items[0].name", "str"), ({"due": "29.2.2024"}, "due", "ISO"),
    ({"options": {"depth": "x"}}, "options.depth", "int"), ({"pairs": [[1]]}, "pairs[0].right", "int"), ({"ids": ["x"]}, "ids[0]", "UUID"),
    ({"by": {"x": "2024-02-29"}}, 'by["x"]', "int"), ({"mode": "green"}, "mode", "Color or 1"),
])  # fmt: skip
def test_a_wrong_argument_is_named_by_its_place(host, change, parameter, accepted):
    h = host(MANIFEST, TYPED)
    reply = h.post("/v1/apps/app/order", {"items": [], "due": "2024-02-29"} | change)
    error = reply.json["error"]
    assert reply.status == 400 and error["code"] == "bad-arguments", reply
    assert error["facts"]["parameter"] == parameter and accepted in error["facts"]["accepted"] and error["facts"]["given"], reply
    assert parameter in error["message"]


def test_a_result_that_json_cannot_express_is_named(host):
    h = host(MANIFEST, TYPED)
    reply = h.post("/v1/apps/app/nan")
    assert reply.status == 500 and reply.json["error"]["code"] == "raised"
    assert reply.json["error"]["facts"]["where"] == "result['scores'][1]" and "nan" in reply.json["error"]["message"]
    reply = h.post("/v1/apps/app/forgot")
    assert reply.status == 500 and "await" in reply.json["error"]["message"] and "coroutine" in reply.json["error"]["message"]


def test_an_annotation_that_json_cannot_become_ends_the_start(host):
    h = host(MANIFEST, {"app.py": """
        import threading
        import bulkhead

        class App:
            @bulkhead.endpoint
            async def run(self, thread: list[threading.Thread]): ...
    """}, wait=None)  # fmt: skip
    assert h.wait() == 78
    for words in ("app app: endpoint run: parameter thread", "threading.Thread", "supported: bool, int"):
        assert words in h.text, words


def test_any_json_is_answered_200_or_400(host):
    h = host(MANIFEST, TYPED)
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    atoms = [None, True, 0, 1, -5, 10**25, 0.5, "", "red", "2024-02-29", "x", "\0", "ä", "1"]
    keys = ["name", "weight", "parts", "depth", "color", "left", "right", "1", "x"]

    def value(depth=0):
        kind = rng.randrange(4 if depth < 3 else 2)
        if kind < 2:
            return rng.choice(atoms)
        if kind == 2:
            return [value(depth + 1) for _ in range(rng.randrange(3))]
        return {rng.choice(keys): value(depth + 1) for _ in range(rng.randrange(4))}

    connection = UnixConnection(str(h.socket), 30)
    seen = set()
    for _ in range(300):
        body = {"items": [], "due": "2024-02-29"}
        for name in rng.sample(["items", "due", "options", "pairs", "price", "ids", "mode", "by", "other"], 2):
            if rng.random() < 0.8:
                body[name] = value()
        connection.request("POST", "/v1/apps/app/order", json.dumps(body))
        reply = connection.getresponse()
        text = reply.read()
        assert reply.status in (200, 400), (seed, body, text)
        seen.add(reply.status)
    connection.close()
    assert seen == {200, 400}


# ---- octets


def test_octets_go_in_and_out_as_they_are(host):
    h = host(MANIFEST, TYPED)
    reply = h.request("POST", "/v1/apps/app/store?name=a%20b&n=3&tags=x&tags=y", b"\xff{\0", headers=OCTETS)
    assert reply.status == 200 and reply.json == {"result": [3, "ff7b00", "a b", 3, ["x", "y"]]}
    assert h.request("POST", "/v1/apps/app/store", b"", headers=OCTETS).json["result"][0] == 0
    assert h.call("store", data="/3sA")[:2] == [3, "ff7b00"], "JSON has base64"
    reply = h.post("/v1/apps/app/fetch")
    assert reply.headers["Content-Type"] == "application/octet-stream" and reply.body == b"\xff{\0\n"
    assert h.post("/v1/apps/app/fetch", {"n": 0}).body == b""
    reply = h.request("POST", "/v1/apps/app/fetch", headers={"Accept": "application/json"})
    assert reply.json == {"result": "/3sACg=="}
    for how in ("bytes", "bytearray", "memoryview"):
        assert h.request("POST", f"/v1/apps/app/echo?how={how}", b"\0\1", headers=OCTETS).body == b"\0\1"


def test_a_big_body_goes_in_and_out(host):
    h = host(MANIFEST, TYPED)
    body = random.Random(1).randbytes(15 << 20)
    assert h.request("POST", "/v1/apps/app/echo", body, headers=OCTETS, timeout=60).body == body
    assert h.get("/livez").status == 200
    assert len(h.post("/v1/apps/app/fetch", {"n": 64 << 20}, timeout=60).body) == 64 << 20


@pytest.mark.parametrize("path, headers, status, code, words", [
    ("order", OCTETS, 415, "unsupported-media-type", "no parameter of bytes"),
    ("store", {"Content-Type": "text/csv"}, 415, "unsupported-media-type", "application/octet-stream"),
    ("store?n=x", OCTETS, 400, "bad-arguments", "n: "), ("store?data=x", OCTETS, 400, "bad-arguments", "data"),
    ("store?nope=x", OCTETS, 400, "bad-arguments", "nope"), ("store?n=%ff", OCTETS, 400, "bad-query", "query"),
    ("store", {**OCTETS, "Accept": "application/octet-stream"}, 406, "not-acceptable", "application/json"),
    ("store", {**OCTETS, "Accept": "text/html"}, 406, "not-acceptable", "application/octet-stream"),
])  # fmt: skip
def test_octets_and_types_that_do_not_fit_are_told(host, path, headers, status, code, words):
    h = host(MANIFEST, TYPED)
    reply = h.request("POST", f"/v1/apps/app/{path}", b"\xff", headers=headers)
    assert (reply.status, reply.json["error"]["code"]) == (status, code), reply
    assert words in reply.text and reply.json["error"]["facts"]["accepted"]


# ---- what there is


def test_apps_and_their_endpoints_are_listed(host):
    h = host(MANIFEST, TYPED)
    reply = h.get("/v1/apps")
    (app,) = reply.json["apps"]
    assert (app["name"], app["object"], app["state"]) == ("app", "app:App", "up")
    listed = {endpoint["name"]: endpoint for endpoint in app["endpoints"]}
    assert set(listed) == {"order", "sum up", "nan", "forgot", "store", "fetch", "echo"}
    assert listed["order"]["doc"] == "Takes an order." and listed["store"]["binary"] == "data"
    assert listed["order"]["parameters"][0] == {"name": "items", "type": "list[Item]", "kind": "positional-or-keyword",
                                                "required": True, "default": None}  # fmt: skip
    assert listed["fetch"]["parameters"][0]["default"] == "4" and listed["fetch"]["returns"] == "bytes"
    wrong = h.get("/v1/apps/app/order")
    assert wrong.status == 405 and wrong.headers["Allow"] == "POST"


def test_ctl_lists_what_an_app_has(host):
    h = host(MANIFEST, TYPED)
    done = h.ctl("call", "app")
    assert done.returncode == 0, done
    assert "store(data: bytes, name: str = '', n: int = 0, tags: list[str] = []) -> list" in done.stdout.replace("\n", " "), done.stdout
    assert "    Takes an order." in done.stdout and "*, pairs: tuple[Pair, ...] = ()" in done.stdout.replace("\n", " ")
    assert "sum up(*numbers: float) -> float" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert json.loads(h.ctl("-j", "call", "app").stdout)["name"] == "app"


def test_ctl_sends_and_writes_files(host, tmp_path):
    h = host(MANIFEST, TYPED)
    given, made = tmp_path / "given", tmp_path / "made"
    given.write_bytes(b"\xff{\0\n" * 1000)
    done = h.ctl("call", "app", "echo", "-d", f"@{given}", "-o", str(made))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and made.read_bytes() == given.read_bytes()
    done = h.ctl("call", "app", "store", '{"name": "a&b c", "n": 3, "tags": ["x", "y"]}', "--data-binary", f"@{given}")
    assert json.loads(done.stdout) == [4000, "", "a&b c", 3, ["x", "y"]], done
    command = [str(h.prefix / "bin" / "bulkheadctl"), "-s", str(h.socket), "call", "app", "echo", "-d", "-"]
    with open(given, "rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout == given.read_bytes(), "also without -o, to what is no terminal"
    made.write_text("as it was")
    done = h.ctl("call", "app", "nan", "-o", str(made))
    assert done.returncode == 1 and "nan" in done.stderr and made.read_text() == "as it was"
    done = h.ctl("call", "app", "sum up", "[1, 2]", "-o", str(made))
    assert done.returncode == 0 and json.loads(made.read_text()) == 3.0
    done = h.ctl("call", "app", "fetch", "-o", str(tmp_path / "no" / "where"))
    assert done.returncode == 70 and "cannot write" in done.stderr


def test_ctl_writes_no_octets_to_a_terminal(host):
    h = host(MANIFEST, TYPED)
    main, other = os.openpty()
    command = [str(h.prefix / "bin" / "bulkheadctl"), "-s", str(h.socket), "call", "app", "fetch"]
    done = subprocess.run(command, stdout=other, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(main)
    os.close(other)
    assert done.returncode == 70 and "-o FILE" in done.stderr


# ---- timeouts, limits, hang-ups

WAITS = {
    "app.py": """
        import asyncio
        import time
        import bulkhead

        class App:
            def __init__(self):
                self.seen = []
                self.go = asyncio.Event()
                self.running = self.most = 0

            @bulkhead.endpoint(timeout=0.2)
            async def slow(self):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    self.seen.append("cancelled")
                    raise

            @bulkhead.endpoint(timeout=0.2, limit=1)
            async def stubborn(self):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    self.seen.append("cancelled")
                await self.go.wait()
                self.seen.append("ended")
                return "late"

            @bulkhead.endpoint(timeout=30)
            async def quick(self):
                return "in time"

            @bulkhead.endpoint(limit=3)
            async def few(self):
                self.running += 1
                self.most = max(self.most, self.running)
                try:
                    await self.go.wait()
                finally:
                    self.running -= 1
                return "done"

            @bulkhead.endpoint(limit=1)
            async def fails(self):
                raise ValueError("as ever")

            @bulkhead.endpoint
            async def wait(self, n: int):
                self.seen.append(f"begun {n}")
                try:
                    await asyncio.sleep(3600)
                finally:
                    self.seen.append(f"ending {n}")
                    await self.go.wait()
                    self.seen.append(f"ended {n}")

            @bulkhead.endpoint(timeout=0.5)
            async def wait_in_time(self, n: int):
                await self.wait(n)

            @bulkhead.endpoint
            async def block(self, seconds: float):
                self.seen.append("blocking")
                open("BLOCKING", "w").close()
                until = time.monotonic() + seconds
                while time.monotonic() < until and not self.let_go():
                    time.sleep(0.01)

            def let_go(self):
                import os
                return os.path.exists("LET_GO")

            @bulkhead.endpoint
            async def look(self) -> list:
                return [self.seen, self.running, self.most]

            @bulkhead.endpoint
            async def go_on(self) -> None:
                self.go.set()
    """
}


def test_a_timeout_cancels_the_call_and_is_answered_504(host):
    h = host(MANIFEST, WAITS)
    with pytest.raises(CallError) as caught:
        h.call("slow")
    assert caught.value.status == 504 and caught.value.error["code"] == "endpoint.timeout"
    assert caught.value.error["facts"] == {"app": "app", "endpoint": "slow", "timeout_s": "0.2"}
    assert h.call("look")[0] == ["cancelled"] and h.call("quick") == "in time"


def test_a_call_that_ignores_its_cancellation_is_answered_at_its_timeout_and_keeps_its_place(host):
    h = host(MANIFEST, WAITS)
    with pytest.raises(CallError) as caught:
        h.call("stubborn")
    assert caught.value.status == 504
    with pytest.raises(CallError) as caught:
        h.call("stubborn")
    assert caught.value.status == 429, "it runs on"
    h.call("go_on")
    until(lambda: "ended" in h.call("look")[0], what="the end of the first")
    with pytest.raises(CallError) as caught:
        h.call("stubborn")
    assert caught.value.status == 504


def test_200_calls_at_once_of_an_endpoint_for_3(host):
    h = host(MANIFEST, WAITS)
    refused = threading.Semaphore(0)

    def call(_):
        try:
            return h.call("few", timeout=60)
        except CallError as error:
            assert (error.status, error.error["code"]) == (429, "endpoint.limit"), error
            assert error.error["facts"]["limit"] == error.error["facts"]["running"] == "3"
            refused.release()
            return "refused"

    with ThreadPoolExecutor(200) as pool:
        results = pool.map(call, range(200))
        for _ in range(197):
            assert refused.acquire(timeout=60), "refused at once, while 3 wait"
        h.call("go_on")
        results = list(results)
    assert results.count("done") == 3 and results.count("refused") == 197
    assert h.call("look")[1:] == [0, 3]
    assert h.call("few") == "done"
    for _ in range(3):  # a failure gives its place back
        with pytest.raises(CallError) as caught:
            h.call("fails")
        assert caught.value.status == 500


def hung_up(h, path, body="{}"):
    """A connection whose call is under way, to be closed."""
    connection = UnixConnection(str(h.socket), 10)
    connection.request("POST", f"/v1/apps/app/{path}", body)
    return connection


def test_a_hang_up_cancels_once_and_lets_the_call_clean_up(host):
    h = host(MANIFEST, WAITS)
    first, second = (hung_up(h, "wait", f'{{"n": {n}}}') for n in (1, 2))
    until(lambda: {"begun 1", "begun 2"} <= set(h.call("look")[0]), what="both calls")
    first.close()
    until(lambda: "ending 1" in h.call("look")[0], what="the first one's cancellation")
    second.close()  # tells main once more to give up what nobody waits for
    until(lambda: "ending 2" in h.call("look")[0], what="the second one's cancellation")
    h.call("go_on")
    until(lambda: {"ended 1", "ended 2"} <= set(h.call("look")[0]), what="the end of both")


def test_a_timeout_does_not_cancel_the_clean_up_of_a_call_that_was_given_up(host):
    h = host(MANIFEST, WAITS)
    connection = hung_up(h, "wait_in_time", '{"n": 1}')
    until(lambda: "begun 1" in h.call("look")[0], what="the call")
    connection.close()
    with pytest.raises(CallError) as caught:
        h.call("wait_in_time", n=2)  # begun later: when its time is up, so is the first one's
    assert caught.value.status == 504
    h.call("go_on")
    until(lambda: {"ended 1", "ended 2"} <= set(h.call("look")[0]), what="the end of both")


def test_a_call_whose_client_has_gone_before_it_began_never_begins(host):
    files = {"app.py": WAITS["app.py"].replace('"BLOCKING"', "FOLDER + '/blocking'").replace('"LET_GO"', "FOLDER + '/let_go'")}
    files["app.py"] = files["app.py"].replace("class App:\n", "FOLDER = __file__.rpartition('/')[0]\n\n        class App:\n", 1)
    h = host(MANIFEST, files)
    blocker = threading.Thread(target=lambda: h.call("block", seconds=30, timeout=60))
    blocker.start()
    until((h.folder / "apps" / "blocking").exists, what="main to be busy")
    connection = hung_up(h, "wait", '{"n": 1}')
    assert h.get("/livez").status == 200  # the control loop has read the call by then, or does before the next
    connection.close()
    h.wait_log("client hung up during a call", endpoint="wait")
    (h.folder / "apps" / "let_go").touch()
    blocker.join(60)
    assert h.call("look")[0] == ["blocking"]


def test_half_closing_gives_a_call_up_too(host):
    h = host(MANIFEST, WAITS)
    connection = hung_up(h, "wait", '{"n": 1}')
    until(lambda: "begun 1" in h.call("look")[0], what="the call")
    connection.sock.shutdown(socket.SHUT_WR)
    until(lambda: "ending 1" in h.call("look")[0], what="the cancellation")
    connection.close()
    h.call("go_on")
