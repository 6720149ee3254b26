# SPDX-License-Identifier: BSD-3-Clause
"""bulkheadctl against a made-up host: every answer, also those that a real host gives only when it is ill.

BULKHEADCTL names the program; without it the staged one is taken (BULKHEAD_STAGE). No daemon is started.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

SLOW = 4 if os.environ.get("BULKHEAD_SLOW") else 1


def program() -> str:
    named = os.environ.get("BULKHEADCTL")
    staged = os.environ.get("BULKHEAD_STAGE")
    path = named or (staged and os.path.join(staged, "bin", "bulkheadctl"))
    if not path:
        pytest.skip("neither BULKHEADCTL nor BULKHEAD_STAGE is set")
    return path


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        host = self.server.host
        host.requests.append((self.command, self.path, self.rfile.read(length), dict(self.headers)))
        answer = host.answers.get(f"{self.command} {self.path}")
        if callable(answer):
            answer = answer()
        status, body = answer or (404, {"error": {"code": "http.not-found", "message": "no such path", "facts": {}}})
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass  # it gave up waiting, as it should

    do_GET = do_POST = answer

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *args) -> None:
        pass


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False


class FakeHost:
    def __init__(self, path: Path):
        self.path, self.requests, self.answers = path, [], {}
        self.server = Server(str(path), Handler)
        self.server.host = self
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self, unlink: bool = True) -> None:
        if self.thread:
            self.server.shutdown()
            self.thread.join()
            self.server.server_close()
            self.thread = None
        if unlink:
            self.path.unlink(missing_ok=True)


class Scene:
    """A runtime directory with any number of hosts in it."""

    def __init__(self):
        # Not pytest's tmp_path: the path of a socket has 107 bytes at most.
        self.dir = Path(tempfile.mkdtemp(prefix="bh-ctl-"))
        self.hosts: list[FakeHost] = []

    def host(self, name: str = "one") -> FakeHost:
        host = FakeHost(self.dir / f"{name}.sock")
        self.hosts.append(host)
        return host

    def ctl(self, *args: str, env=None, timeout: float = 30) -> subprocess.CompletedProcess:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BULKHEAD_")}
        environment["RUNTIME_DIRECTORY"] = str(self.dir)
        environment.update(env or {})
        return subprocess.run([program(), *args], env=environment, capture_output=True, text=True,
                              timeout=timeout * SLOW)  # fmt: skip


@pytest.fixture
def scene():
    made = Scene()
    yield made
    for host in made.hosts:
        host.close()
    shutil.rmtree(made.dir)


STATUS = {
    "name": "default", "version": "0.1.0", "pid": 4321, "python": "3.11.2 (main, Apr 2025) [GCC 12]", "state": "ready",
    "phase": "ready", "uptime_s": 3725.4,
    "plugins": [
        {"label": "stream", "version": "1.0", "state": "up", "pool": "ready", "error": None,
         "path": "/usr/local/lib/x86_64-linux-gnu/bulkhead/plugins/a/rather/long/way/down/stream.so"},
        {"label": "cuda", "version": None, "path": None, "state": "skipped", "pool": None,
         "error": "cuda.no-device: library=libcuda.so.1 hint=\"install the driver\" " + "x" * 90},
    ],
    "apps": [{"name": "search", "object": "linesearch:Search", "state": "up", "error": None}],
}  # fmt: skip

POOL = {
    "label": "stream", "id": 1, "state": "ready", "workers": 2, "busy": 1, "queue": 1024, "queued": 3, "running": 1,
    "pending": 0, "in_transit": 0, "submitted": 123456789, "done": 123456000, "failed": 2, "cancelled": 1,
    "deadline": 0, "abandoned": 0, "refused": 7, "lanes": 2, "cause": None,
    "running_tasks": [{"thread": "stream/0", "tid": 77, "worker": 0, "op": "matvec", "task": 4294967301,
                       "since_s": 0.0123, "cancelled": True}],
}  # fmt: skip
POOLS = {"pools": [POOL, {**POOL, "label": "a-label-of-the-greatest-length0", "state": "failed", "running_tasks": [],
                          "cause": {"id": "cuda.sticky", "facts": {}, "text": "cuda.sticky: code=700"}}]}  # fmt: skip

SITE = {"site": "host.dispatch", "policy": "control-allowed", "entries": 99, "nested": 0, "unsanctioned": 0,
        "wait_s": 0.5, "wait_max_s": 0.00012, "inside_s": 83, "inside_max_s": 5e-6, "held_s": 1e5}  # fmt: skip
GIL = {
    "holder": {"thread": "stream/0", "tid": 77, "plane": "data", "label": "stream", "site": "stream.compute",
               "since_s": 2.5},
    "gate": "open", "unsanctioned": 1, "parked": 0, "sampled_s": 12.3,
    "sites": [SITE, {**SITE, "site": "a-label-of-the-greatest-length0.compute", "policy": "data-only"}],
    "threads": [{"thread": "bulkheadd", "tid": 70, "plane": "control", "label": "python", "state": "waiting",
                 "site": "host.dispatch", "since_s": 2.4}],
}  # fmt: skip

QUERIES = [("status", STATUS), ("pools", POOLS), ("gil", GIL)]


def narrow(text: str) -> bool:
    return max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command, reply", QUERIES)
def test_tables_fit_80_columns_and_json_is_the_reply(scene, command, reply):
    host = scene.host()
    host.answers[f"GET /v1/{command}"] = (200, reply)
    done = scene.ctl(command)
    assert done.returncode == 0 and done.stderr == "", done
    assert narrow(done.stdout), done.stdout
    done = scene.ctl("--json", command)
    assert done.stdout == json.dumps(reply) + "\n"


def test_status_shows_state_plugins_apps_and_errors(scene):
    scene.host().answers["GET /v1/status"] = (200, STATUS)
    out = scene.ctl("status").stdout
    assert "default: ready, up 1h02m\npid 4321, bulkhead 0.1.0, Python 3.11.2\n" in out
    assert "…" in out and "/way/down/stream.so\n" in out
    assert "cuda: cuda.no-device: library=libcuda.so.1" in out and "x" * 80 in out.replace("\n", "")
    assert out.rstrip().endswith("linesearch:Search")


def test_status_says_what_a_start_waits_for(scene):
    status = {**STATUS, "state": "starting", "phase": "plugin-open", "waiting_for": "stream"}
    scene.host().answers["GET /v1/status"] = (200, status)
    assert "default: starting (plugin-open stream), up" in scene.ctl("status").stdout


def test_pools_show_counts_causes_and_running_tasks(scene):
    scene.host().answers["GET /v1/pools"] = (200, POOLS)
    out = scene.ctl("pools").stdout
    assert "1/2" in out and "3/1024" in out and "123.5M" in out
    assert "stream/0 runs matvec, task 4294967301, for 12ms, told to end" in out
    assert "a-label-of-the-greatest-length0: cuda.sticky: code=700" in out
    assert "stream: 1 cancelled, 0 past their deadline, 0 abandoned" in out


def test_gil_shows_the_holder_sites_and_threads(scene):
    host = scene.host()
    host.answers["GET /v1/gil"] = (200, GIL)
    out = scene.ctl("gil").stdout
    assert "holder: stream/0 (tid 77, data stream) at stream.compute for 2.50s" in out
    assert "gate open, 1 unsanctioned, 0 parked, sampled for 12.3s" in out
    for word in ("500ms", "120us", "83.0s", "27h46m", "host.dispatch", "control python", "waiting"):
        assert word in out, (word, out)
    host.answers["GET /v1/gil"] = (200, {**GIL, "holder": None})
    assert "holder: nobody" in scene.ctl("gil").stdout


def test_gil_leaves_out_sites_that_nobody_has_come_by(scene):
    idle = {**SITE, "site": "host.idle", "entries": 0, "nested": 0, "unsanctioned": 0, "held_s": 0}
    scene.host().answers["GET /v1/gil"] = (200, {**GIL, "sites": [{**idle, "site": "held.only", "held_s": 0.5}, idle]})
    out = scene.ctl("gil").stdout
    assert "held.only" in out and "host.idle" not in out
    assert "host.idle" in scene.ctl("--json", "gil").stdout


@pytest.mark.parametrize("command", [command for command, _ in QUERIES])
@pytest.mark.parametrize("reply", [{}, {"plugins": 3, "pools": [None, 7], "sites": [{}], "threads": {}, "holder": 1}])
def test_strange_replies_are_shown_as_far_as_they_go(scene, command, reply):
    scene.host().answers[f"GET /v1/{command}"] = (200, reply)
    done = scene.ctl(command)
    assert done.returncode == 0 and done.stdout and "nan" not in done.stdout, done


def test_control_characters_never_reach_the_terminal(scene):
    host = scene.host()
    evil = "a\x1b[2Jb\x9bc\r\n"
    host.answers["GET /v1/status"] = (200, {**STATUS, "name": evil, "apps": [{"name": evil, "error": evil}]})
    host.answers["POST /v1/apps/a/e"] = (500, {"error": {"code": "x", "message": evil, "facts": {"k": evil}}})
    shown = scene.ctl("status").stdout + scene.ctl("call", "a", "e").stderr
    assert not set(shown) & set("\x1b\x9b\r"), shown
    assert "a?[2Jb??c??" in shown


# ---- call


def test_call_posts_the_json_and_prints_the_result(scene):
    host = scene.host()
    host.answers["POST /v1/apps/search/search"] = (200, {"result": [{"line": 3, "score": 0.1, "text": "grüße"}]})
    done = scene.ctl("call", "search", "search", '{"query": "gnu"}')
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"line": 3, "score": 0.1, "text": "grüße"}]
    assert '\n    "line": 3' in done.stdout and "0.1," in done.stdout and "grüße" in done.stdout
    method, path, body, headers = host.requests[0]
    assert body == b'{"query": "gnu"}' and headers["Content-Type"] == "application/json"
    assert "Expect" not in headers


@pytest.mark.parametrize("result", [None, True, 3, "text", [], 1.5])
def test_any_result_is_printed_as_json(scene, result):
    scene.host().answers["POST /v1/apps/a/e"] = (200, {"result": result})
    assert json.loads(scene.ctl("call", "a", "e").stdout) == result


def test_a_number_too_big_for_the_parser_is_printed_as_it_came(scene):
    scene.host().answers["POST /v1/apps/a/e"] = (200, b'{"result": 123456789012345678901234567890}')
    done = scene.ctl("call", "a", "e")
    assert done.returncode == 0 and json.loads(done.stdout)["result"] == 123456789012345678901234567890


def test_call_without_json_sends_an_empty_body(scene):
    host = scene.host()
    host.answers["POST /v1/apps/a/e"] = (200, {"result": None})
    assert scene.ctl("call", "a", "e").returncode == 0
    assert host.requests[0][2] == b""


def test_names_are_escaped(scene):
    host = scene.host()
    scene.ctl("call", "a/../b", "x?y z")
    assert host.requests[0][1] == "/v1/apps/a%2F..%2Fb/x%3Fy%20z"


def test_a_long_call_is_waited_for(scene):
    def slow():
        time.sleep(6)
        return 200, {"result": "late"}

    scene.host().answers["POST /v1/apps/a/e"] = slow
    assert json.loads(scene.ctl("call", "a", "e").stdout) == "late"


def test_an_error_is_told_with_code_message_and_facts(scene):
    error = {"error": {"code": "pool.overloaded", "message": "the queue is full", "facts": {"queue": 16, "pool": "s"}}}
    scene.host().answers["POST /v1/apps/a/e"] = (429, error)
    done = scene.ctl("call", "a", "e")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "bulkheadctl: pool.overloaded: the queue is full (queue=16 pool=s)\n"
    done = scene.ctl("--json", "call", "a", "e")
    assert done.returncode == 1 and json.loads(done.stdout) == error


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"error": 3}', b"\xff\xfe"])
def test_an_error_that_is_not_ours_is_told_by_its_status(scene, body):
    scene.host().answers["POST /v1/apps/a/e"] = (502, body)
    done = scene.ctl("call", "a", "e")
    assert done.returncode == 1 and "HTTP status 502" in done.stderr


# ---- stop


def test_stop_waits_until_the_socket_is_gone(scene):
    host = scene.host()

    def stop():
        threading.Timer(0.5, host.close).start()
        return 202, {"state": "stopping"}

    host.answers["POST /v1/stop"] = stop
    done = scene.ctl("stop")
    assert done.returncode == 0 and done.stderr == "", done
    assert not host.path.exists()


def test_stop_notices_that_the_socket_is_another_hosts(scene):
    host = scene.host()

    def stop():
        def replace():
            second = FakeHost(scene.dir / "two.sock")
            scene.hosts.append(second)
            os.rename(second.path, host.path)

        threading.Timer(0.3, replace).start()
        return 202, {"state": "stopping"}

    host.answers["POST /v1/stop"] = stop
    assert scene.ctl("stop").returncode == 0


def test_stop_gives_up_in_time(scene):
    scene.host().answers["POST /v1/stop"] = (202, {"state": "stopping"})
    begin = time.monotonic()
    done = scene.ctl("--timeout", "1s", "stop")
    assert done.returncode == 2 and "has not ended in time" in done.stderr
    assert time.monotonic() - begin >= 1


def test_stop_notices_a_host_that_died(scene):
    host = scene.host()

    def stop():
        threading.Timer(0.2, host.close, kwargs={"unlink": False}).start()
        return 202, {"state": "stopping"}

    host.answers["POST /v1/stop"] = stop
    done = scene.ctl("stop")
    assert done.returncode == 1 and "without removing" in done.stderr
    host.path.unlink()


# ---- finding the host


def test_the_only_socket_is_taken_and_other_files_are_not(scene):
    scene.host("one").answers["GET /v1/status"] = (200, STATUS)
    (scene.dir / "file.sock").write_text("")
    (scene.dir / "one.sock.lock").write_text("")
    (scene.dir / "dir.sock").mkdir()
    assert scene.ctl("status").returncode == 0


def test_several_hosts_are_listed(scene):
    scene.host("a")
    scene.host("b").answers["GET /v1/status"] = (200, STATUS)
    done = scene.ctl("status")
    assert done.returncode == 2 and f"several hosts in {scene.dir}: a, b; choose one with -H NAME" in done.stderr
    assert scene.ctl("-H", "b", "status").returncode == 0
    assert scene.ctl("status", "-H", "b").returncode == 0
    assert scene.ctl("status", env={"BULKHEAD_SOCKET": str(scene.dir / "b.sock")}).returncode == 0
    # What is said on the command line wins over the environment.
    done = scene.ctl("-H", "b", "status", env={"BULKHEAD_SOCKET": "/nonexistent"})
    assert done.returncode == 0


def test_no_host_says_where_it_looked(scene):
    done = scene.ctl("status")
    assert done.returncode == 2 and f"no host in {scene.dir}" in done.stderr
    done = scene.ctl("status", env={"RUNTIME_DIRECTORY": "/nonexistent"})
    assert done.returncode == 2 and "no host in /nonexistent: No such file or directory" in done.stderr
    done = scene.ctl("-H", "gone", "status")
    assert done.returncode == 2 and f"{scene.dir}/gone.sock" in done.stderr and "is bulkheadd running?" in done.stderr


def test_a_stale_socket_is_told_apart(scene):
    path = scene.dir / "one.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    done = scene.ctl("status")
    assert done.returncode == 2 and f"nobody listens on {path}" in done.stderr


def test_a_silent_host_does_not_hang_it(scene):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(scene.dir / "one.sock"))
        listener.listen(1)
        done = scene.ctl("-t", "500ms", "status")
    assert done.returncode == 2 and "in time" in done.stderr


def test_a_host_that_hangs_up_is_told(scene):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(scene.dir / "one.sock"))
    listener.listen(1)

    def hang_up():
        connection, _ = listener.accept()
        connection.recv(4096)
        connection.close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    done = scene.ctl("status")
    thread.join()
    listener.close()
    assert done.returncode == 2 and "no answer from" in done.stderr


def test_a_proxy_in_the_environment_is_not_asked(scene):
    scene.host().answers["GET /v1/status"] = (200, STATUS)
    proxies = {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}
    assert scene.ctl("status", env=proxies).returncode == 0


def test_a_path_too_long_for_a_socket_is_refused(scene):
    done = scene.ctl("-s", "/" + "x" * 108, "status")
    assert done.returncode == 2 and "longer than the 107 bytes" in done.stderr


# ---- the command line


@pytest.mark.parametrize(
    "args, words",
    [
        ([], "no command"),
        (["statsu"], "did you mean status?"),
        (["frobnicate"], '"frobnicate" is no command'),
        (["status", "x"], "status takes no arguments"),
        (["call", "a"], "call takes APP ENDPOINT [JSON]"),
        (["call", "a", "b", "c", "d"], "call takes APP ENDPOINT [JSON]"),
        (["--nonsense"], "nonsense"),
        (["-s", "a", "-H", "b", "status"], "give one"),
        (["-t", "soon", "status"], '"soon" is not a duration'),
        (["-t", "0", "status"], '"0" is out of range'),
    ],
)
def test_wrong_usage_is_64_and_says_why(scene, args, words):
    done = scene.ctl(*args)
    assert done.returncode == 64 and words in done.stderr and done.stdout == "", done


def test_help_and_version(scene):
    done = scene.ctl("--help")
    assert done.returncode == 0 and narrow(done.stdout) and "call APP ENDPOINT [JSON]" in done.stdout
    done = scene.ctl("--version")
    assert done.returncode == 0 and done.stdout.startswith("bulkheadctl ")


def test_an_answer_that_cannot_be_written_is_a_failure(scene):
    scene.host().answers["GET /v1/status"] = (200, STATUS)
    with open("/dev/full", "w") as full:
        done = subprocess.run([program(), "-s", str(scene.dir / "one.sock"), "status"], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=30)  # fmt: skip
    assert done.returncode == 70 and "cannot write" in done.stderr
