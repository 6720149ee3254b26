# SPDX-License-Identifier: BSD-3-Clause
"""The admin socket and bulkheadctl."""

import json
import os
import socket
import stat

import pytest

MANIFEST = """
    [plugin count]
    library = t_count
    workers = 2
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import bulkhead

        class App:
            @bulkhead.endpoint
            async def add(self, a: int, b: int = 1) -> int:
                return await bulkhead.pool("count").add(a, b)
    """
}


def test_status_pools_and_gil_have_their_shapes(host):
    h = host(MANIFEST, APP)
    status = h.get("/v1/status").json
    assert status["name"] == "test" and status["pid"] == h.process.pid and status["state"] == "ready"
    assert status["version"] and status["uptime_s"] >= 0 and status["phase"] == "ready"
    assert status["python"].startswith("3.")
    (plugin,) = status["plugins"]
    assert plugin["label"] == "count" and plugin["state"] == "up" and plugin["error"] is None
    assert plugin["path"].endswith("/t_count.so") and os.path.isabs(plugin["path"])
    assert status["apps"] == [{"name": "app", "object": "app:App", "state": "up", "error": None}]

    pool = h.pool("count")
    assert pool["state"] == "ready" and pool["workers"] == 2 and pool["cause"] is None
    zero = ("busy", "queued", "running", "pending", "in_transit", "submitted", "done", "failed", "cancelled", "deadline",
            "abandoned", "refused")  # fmt: skip
    assert {k: pool[k] for k in zero} == dict.fromkeys(zero, 0)
    assert h.call("add", 1) == 2
    assert h.pool("count")["done"] == 1

    gil = h.get("/v1/gil").json
    assert gil["gate"] == "open" and gil["unsanctioned"] == 0 and gil["parked"] == 0
    names = {s["site"] for s in gil["sites"]}
    assert {"host.bootstrap", "host.dispatch"} <= names
    assert any(t["thread"] == "bulkheadd" and t["plane"] == "control" for t in gil["threads"])


def test_the_native_control_loop_never_enters_the_interpreter(host):
    h = host(MANIFEST, APP)
    for _ in range(20):
        h.get("/v1/gil")
    assert not any(t["thread"] == "bh-control" for t in h.get("/v1/gil").json["threads"])


def test_threads_have_their_names(host):
    h = host(MANIFEST, APP)
    names = list(h.threads().values())
    for name in ("bulkheadd", "bh-control", "bh-watch", "bh-log", "count/sup", "count/0", "count/1"):
        assert name in names, names
    assert len(names) == len(set(names)) or names.count("bulkheadd") == 1


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/nowhere", 404),
        ("GET", "/v1/apps/app/add", 405),
        ("POST", "/livez", 405),
        ("PUT", "/v1/status", 405),
        ("GET", "/v1/stop", 405),
    ],
)
def test_a_wrong_path_or_method_is_told(host, method, path, status):
    h = host(MANIFEST, APP)
    reply = h.request(method, path)
    assert reply.status == status
    error = reply.json["error"]
    assert error["code"] and error["message"]
    if status == 405:
        assert reply.headers["Allow"]
    else:
        assert "/v1/status" in reply.text, "a 404 lists what there is"


def test_the_socket_is_for_its_owner_and_group(host):
    h = host("")
    mode = os.stat(h.socket).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o660


def test_h31_200_clients_that_connect_and_close(host):
    h = host(MANIFEST, APP)
    fds = f"/proc/{h.process.pid}/fd"
    before = len(os.listdir(fds))
    for i in range(200):
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(h.socket))
        if i % 2:
            s.sendall(b"GET /v1/sta")
        s.close()
    assert h.get("/livez").status == 200
    from conftest import until

    until(lambda: len(os.listdir(fds)) <= before + 2, what="the descriptors")


# ---- bulkheadctl


def test_ctl_shows_tables_that_fit(host):
    h = host(MANIFEST, APP)
    for command, words in (("status", ["test", "ready", "count", "app"]), ("pools", ["count", "ready"]),
                           ("gil", ["host.dispatch", "open"])):  # fmt: skip
        done = h.ctl(command)
        assert done.returncode == 0, done.stderr
        assert all(word in done.stdout for word in words), done.stdout
        if command != "status":
            assert max(map(len, done.stdout.splitlines())) <= 80, done.stdout


@pytest.mark.parametrize("command", ["status", "pools", "gil"])
def test_ctl_json_is_the_reply(host, command):
    h = host(MANIFEST, APP)
    done = h.ctl("--json", command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == h.get(f"/v1/{command}").json.keys()


def test_ctl_calls_an_endpoint(host):
    h = host(MANIFEST, APP)
    done = h.ctl("call", "app", "add", '{"a": 41}')
    assert done.returncode == 0 and json.loads(done.stdout) == 42, done
    assert json.loads(h.ctl("call", "app", "add", "[1, 2]").stdout) == 3


@pytest.mark.parametrize(
    "args, status, words",
    [
        (["call", "app", "nothing"], 1, ["nothing"]),
        (["call", "nobody", "add"], 1, ["nobody"]),
        (["call", "app", "add", '{"a": "x"}'], 1, ["a", "int"]),
        (["call", "app", "add", "{"], 64, []),
        (["call"], 64, []),
        (["call", "nobody"], 1, ["nobody"]),
        (["frobnicate"], 64, ["frobnicate"]),
        ([], 64, []),
    ],
)
def test_ctl_tells_errors_by_text_and_status(host, args, status, words):
    h = host(MANIFEST, APP)
    done = h.ctl(*args)
    assert done.returncode in ((1, 64) if args[-1:] == ["{"] else (status,)), done
    assert done.stderr and all(word in done.stderr for word in words), done.stderr


def test_ctl_without_a_host_says_where_it_looked(host):
    h = host("")
    assert h.stop() == 0
    done = h.ctl("status")
    assert done.returncode == 2 and str(h.socket) in done.stderr


def test_ctl_finds_its_host(host):
    h = host("")
    by_env = h.ctl("--json", "status", named=False, env={"BULKHEAD_SOCKET": str(h.socket)})
    assert json.loads(by_env.stdout)["pid"] == h.process.pid
    runtime = {"RUNTIME_DIRECTORY": str(h.socket.parent)}
    by_name = h.ctl("-H", "test", "--json", "status", named=False, env=runtime)
    assert by_name.returncode == 0 and json.loads(by_name.stdout)["pid"] == h.process.pid, by_name
    only_one = h.ctl("--json", "status", named=False, env=runtime)
    assert only_one.returncode == 0 and json.loads(only_one.stdout)["pid"] == h.process.pid, only_one
