# SPDX-License-Identifier: BSD-3-Clause
"""bulkheadctl against a made-up host: every answer, also those that a real host gives only when it is ill.

BULKHEADCTL names the program; without it the staged one is taken (BULKHEAD_STAGE). No daemon is started.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
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
        "wait_s": 0.5, "wait_count": 99, "wait_p50_s": 2e-6, "wait_p90_s": 5e-5, "wait_p99_s": 0.0012,
        "wait_max_s": 0.5, "wait_max_at": 1700000000.5, "wait_max_thread": "bulkheadd", "inside_s": 83,
        "inside_count": 99, "inside_p50_s": 1e-5, "inside_p90_s": 1e-5, "inside_p99_s": 1e-5, "inside_max_s": 5e-6,
        "inside_max_at": None, "inside_max_thread": None, "held_s": 1.5, "planes": {}}  # fmt: skip
OLD_SITE = {"site": "host.dispatch", "policy": "control-allowed", "entries": 99, "nested": 0, "unsanctioned": 0,
            "wait_s": 0.5, "wait_max_s": 0.00012, "inside_s": 83, "inside_max_s": 5e-6, "held_s": 1e5}  # fmt: skip
GIL = {
    "holder": {"thread": "stream/0", "tid": 77, "plane": "data", "label": "stream", "site": "stream.compute",
               "since_s": 2.5, "library": "/usr/lib/libbig.so"},
    "gate": "open", "ledger": "full", "unsanctioned": 1, "parked": 0, "sampled_s": 12.3,
    "courier": {"queued": 3, "waiting_s": 0.5, "ran": 20, "inline": 4, "refused": 1},
    "sites": [SITE, {**SITE, "site": "a-label-of-the-greatest-length0.compute", "policy": "data-only", "held_s": 7,
                     "unsanctioned": 1}],
    "threads": [{"thread": "bulkheadd", "tid": 70, "plane": "control", "label": "python", "state": "waiting",
                 "site": "host.dispatch", "since_s": 2.4, "coarse": False}],
}  # fmt: skip

STALL = {
    "id": 7, "kind": "gil", "began": 1700000000.25, "ended": 1700000003.25, "lag_s": 3.0, "limit_s": 1.0,
    "pool": None, "thread": "bh-probe", "tid": 79, "op": None, "task": None,
    "holder": {"thread": "hold/0", "tid": 77, "plane": "data", "label": "hold", "site": "hold.site", "since_s": 1.1,
               "library": None, "pool": "hold", "op": "hold", "task": 4294967301,
               "changed": True},
    "waiters": [{"thread": "bulkheadd", "tid": 70, "plane": "control", "label": "python", "site": "host.dispatch",
                 "since_s": 1.05}],
    "native": [{"thread": "hold/0", "tid": 77, "stack": "t_hold.so:burn+0x12 < bulkheadd:worker_run+0xa0"}],
    "python": [{"tid": 70, "thread": "bulkheadd", "holds": False, "cut": True, "frames": ["/a/app.py:7 in search"]},
               {"tid": 77, "thread": "hold/0", "holds": True, "cut": False, "frames": []}],
}  # fmt: skip
LAG = {"now_s": 0, "n": 50, "last_s": 2e-5, "p50_s": 2e-5, "p99_s": 0.003, "max_s": 3.0, "max_at": 1700000000.25}
STALLS = {
    "limits": {"gil_s": 1.0, "asyncio_s": 1.0, "control_s": 0.25},
    "lags": {"gil": LAG, "asyncio": LAG, "control": {**LAG, "max_at": None}},
    "counts": {"gil": 1, "asyncio": 0, "control": 0, "task": 1},
    "stalls": [{**STALL, "id": 8, "kind": "task", "ended": None, "lag_s": 12.0, "pool": "stream", "thread": "stream/1",
                "tid": 80, "op": "matvec-with-a-name-that-is-long-enough-to-be-cut", "task": 9, "holder": None}, STALL],
}  # fmt: skip

PLUGIN = {
    "label": "stream", "version": "1.0", "path": "/x/stream.so", "state": "up", "pool": "ready", "optional": False, "raw_gil": [],
    "error": None, "health": {"state": "ok", "cause": None, "since_s": None}, "facts": {}, "metrics": [],
}  # fmt: skip
PLUGINS = {
    "plugins": [
        PLUGIN,
        {**PLUGIN, "label": "a-label-of-the-greatest-length0", "version": "a-version-of-23-bytes-0", "state": "starting",
         "health": {"state": "degraded", "since_s": 123.4,
                    "cause": {"id": "rdma.port-down", "facts": {"port": "x"}, "text": "rdma.port-down: port=x " * 9}},
         "facts": {"transport": "verbs " * 30, "lanes": 4, "odd": [1, None]},
         "metrics": [{"name": "reads_total", "kind": "counter", "value": 9223372036854775807, "doc": "Reads completed."},
                     {"name": "depth", "kind": "gauge", "doc": "Without a value."}]},
        {**PLUGIN, "label": "gone", "state": "skipped", "version": None, "pool": None, "error": "find.missing: name=gone",
         "health": {"state": None, "cause": None, "since_s": None}},
    ]
}  # fmt: skip
QUERIES = [("status", STATUS), ("plugins", PLUGINS), ("pools", POOLS), ("gil", GIL), ("stalls", STALLS)]


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


def test_plugins_show_health_facts_and_numbers(scene):
    scene.host().answers["GET /v1/plugins"] = (200, PLUGINS)
    out = scene.ctl("plugins").stdout
    table, long, gone = out.split("\n\n")
    assert "stream" in table and "ok" in table and "stream" not in long + gone, "who has nothing to say has no paragraph"
    assert "degraded for 123s: rdma.port-down: port=x" in long or "degraded for 2m" in long
    assert "transport: verbs verbs" in long and "lanes: 4" in long and "odd: [1, null]" in long
    assert "reads_total 9223372036854775807  Reads completed." in long and "depth -  Without a value." in long
    assert gone.splitlines() == ["gone", "    find.missing: name=gone"]


def test_gil_shows_the_holder_and_the_sites_by_what_they_held(scene):
    host = scene.host()
    host.answers["GET /v1/gil"] = (200, GIL)
    out = scene.ctl("gil", env={"TZ": "UTC"}).stdout
    head, table = out.split("\n\n")
    assert "holder: stream/0 (tid 77, data stream) at stream.compute for 2.50s, taken by" in head
    assert "gate open, 1 unsanctioned, 0 parked, sampled for 12.3s, ledger full" in head
    assert "courier: 20 ran, 4 inline, 3 queued, 1 refused" in head
    titles, first, second, *notes = table.splitlines()
    assert titles.split() == ["SITE", "POLICY", "ENTRIES", "WAIT50", "WAIT99", "WAITMAX", "INSIDE", "HELD", "SHARE"]
    assert first.startswith("a-label-of-the") and first.split()[-2:] == ["7.00s", "56.9%"]
    assert second.split() == ["host.dispatch", "control", "99", "2us", "1.2ms", "500ms", "83.0s", "1.50s", "12.2%"]
    assert "a-label-of-the-greatest-length0.compute: 1 unsanctioned" in out
    assert "longest wait: 500ms by bulkheadd at a-label-of-the" in out and "11-14 22:13:20" in out
    assert not any("longest inside" in note for note in notes), "nobody knows whose that was"
    assert "control python" not in out
    host.answers["GET /v1/gil"] = (200, {**GIL, "holder": None})
    assert "holder: nobody" in scene.ctl("gil").stdout


def test_gil_of_an_older_host_shows_what_there_is(scene):
    gil = {key: value for key, value in GIL.items() if key not in ("ledger", "courier")}
    gil["sites"] = [OLD_SITE]
    scene.host().answers["GET /v1/gil"] = (200, gil)
    out = scene.ctl("gil").stdout
    assert "sampled for 12.3s\n" in out and "courier" not in out and "longest" not in out
    assert out.splitlines()[-1].split() == ["host.dispatch", "control", "99", "-", "-", "120us", "83.0s", "27h46m", ">999%"]


def test_gil_by_thread(scene):
    coarse = {**GIL["threads"][0], "thread": "other", "coarse": True}
    scene.host().answers["GET /v1/gil"] = (200, {**GIL, "threads": [*GIL["threads"], coarse]})
    out = scene.ctl("gil", "--threads").stdout
    assert narrow(out) and "holder: stream/0" in out and "POLICY" not in out
    lines = [line.split() for line in out.splitlines()]
    assert ["bulkheadd", "70", "control", "python", "waiting", "2.40s", "host.dispatch"] in lines
    assert ["other", "70", "control", "python", "waiting", "2.40s", "host.dispatch", "(coarse)"] in lines


class Watch:
    """`bulkheadctl gil --watch`, its output read as it comes."""

    def __init__(self, scene, *args):
        env = {"PATH": os.environ["PATH"], "RUNTIME_DIRECTORY": str(scene.dir)}
        self.process = subprocess.Popen([program(), "gil", *args], env=env, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)  # fmt: skip

    def line(self, word: str) -> str:
        """The next line with `word` in it."""
        for line in self.process.stdout:
            if word in line:
                return line
        raise AssertionError(f"the output has ended without {word!r}: {self.process.stderr.read()}")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=30 * SLOW)
        return self.process.returncode, out, err


@pytest.fixture
def watch():
    made = []

    def start(*args):
        made.append(Watch(*args))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.communicate()


def test_gil_watch_shows_what_has_come_since_and_ends_by_ctrl_c(scene, watch):
    host = scene.host()
    looks = iter(range(100))

    def growing():
        i = next(looks)
        site = {**SITE, "entries": 1000 * i, "held_s": 0.5 * i}
        new = {**SITE, "site": "late.site", "entries": 7, "held_s": 3 * 0.25}
        return 200, {**GIL, "sampled_s": 2.0 * i, "sites": [{**SITE, "site": "idle"}, site] + [new] * (i > 0)}

    host.answers["GET /v1/gil"] = growing
    run = watch(scene, "--watch=100ms")
    assert "ENTRIES" in run.line("SITE"), "there is nothing to compare with yet"
    assert "ENTRY/S" in run.line("SITE")
    # A share of the time looked at, the greatest first; a new site has begun at nothing.
    assert run.line("late.site").split()[-1] == "37.5%"
    first = run.line("host.dispatch").split()
    assert first[-1] == "25.0%" and 0 < float(first[2]) <= 10000, first
    assert run.line("idle").split()[-1] == "0.0%"
    run.line("SITE")
    run.process.send_signal(signal.SIGINT)
    status, out, err = run.end()
    assert status == 0 and err == "" and "\x1b" not in out


def test_gil_watch_of_a_host_that_was_started_anew_shows_no_nonsense(scene, watch):
    counts = iter([100, 5] + [6] * 100)
    scene.host().answers["GET /v1/gil"] = lambda: (200, {**GIL, "sites": [{**SITE, "entries": next(counts)}]})
    run = watch(scene, "--watch=100ms")
    run.line("SITE")
    run.line("ENTRY/S")
    row = run.line("host.dispatch").split()
    assert row[2] == "-" and row[-1] == "-", row


def test_gil_watch_ends_with_its_host(scene, watch):
    host = scene.host()
    host.answers["GET /v1/gil"] = (200, GIL)
    run = watch(scene, "--watch=100ms")
    run.line("ENTRY/S")
    host.close()
    status, _, err = run.end()
    assert status == 2 and "is bulkheadd running?" in err


def test_gil_watch_in_json_is_a_reply_a_line(scene, watch):
    scene.host().answers["GET /v1/gil"] = (200, GIL)
    run = watch(scene, "--json", "--watch=100ms", "--threads")
    assert json.loads(run.line("{")) == GIL and json.loads(run.line("{")) == GIL


def test_gil_watch_clears_a_terminal(scene):
    scene.host().answers["GET /v1/gil"] = (200, GIL)
    ours, theirs = pty.openpty()
    env = {"PATH": os.environ["PATH"], "RUNTIME_DIRECTORY": str(scene.dir)}
    with subprocess.Popen([program(), "gil", "--watch=100ms"], env=env, stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        while shown.count(b"\x1b[H\x1b[2J") < 2:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        while True:  # what it still writes, so that it is not held up
            try:
                if not os.read(ours, 4096):
                    break
            except OSError:
                break
        assert process.wait(30 * SLOW) == 0
    os.close(ours)
    assert shown.startswith(b"\x1b[H\x1b[2J")


def test_gil_watch_that_is_refused_at_once_is_a_failure(scene):
    scene.host().answers["GET /v1/gil"] = (503, {"error": {"code": "x", "message": "not yet", "facts": {}}})
    done = scene.ctl("gil", "--watch")
    assert done.returncode == 1 and "x: not yet" in done.stderr


# ---- stalls and metrics


def test_stalls_are_a_line_each(scene):
    scene.host().answers["GET /v1/stalls"] = (200, STALLS)
    out = scene.ctl("stalls", env={"TZ": "UTC"}).stdout
    lags, episodes = (part.splitlines() for part in out.split("\n\n"))
    assert lags[1].split() == ["gil", "0", "20us", "20us", "3.0ms", "3.00s", "11-14", "22:13:20", "1.00s", "1"]
    assert lags[3].split() == ["control", "0", "20us", "20us", "3.0ms", "3.00s", "-", "250ms", "0"]
    assert lags[4].split() == ["task", *["-"] * 7, "1"]
    assert episodes[1].split()[:5] == ["8", "11-14", "22:13:20", "task", "12.0s"] and "on stream/1: matvec" in episodes[1]
    assert episodes[1].endswith("…")
    assert episodes[2].split() == ["7", "11-14", "22:13:20", "gil", "3.00s", "hold/0", "at", "hold.site:", "hold",
                                   "4294967301"]  # fmt: skip
    scene.hosts[0].answers["GET /v1/stalls"] = (200, {**STALLS, "stalls": []})
    assert scene.ctl("stalls").stdout.endswith("\nno stalls\n")


def test_one_stall_is_shown_with_its_stacks(scene):
    scene.host().answers["GET /v1/stalls"] = (200, STALLS)
    done = scene.ctl("stalls", "7", env={"TZ": "UTC"})
    assert done.returncode == 0 and narrow(done.stdout)
    lines = done.stdout.splitlines()
    assert lines[0] == "stall 7: gil, 2023-11-14 22:13:20 to 22:13:23, 3.00s (limit 1.00s)"
    assert lines[1] == "stuck: bh-probe (tid 79)"
    assert lines[2] == "the GIL was held by hold/0 (tid 77, data hold) at hold.site for 1.10s, pool"
    assert lines[3] == "hold, op hold, task 4294967301"
    assert lines[4] == "(no longer, when the stacks were taken)"
    rest = done.stdout.split("\n\n", 1)[1]
    assert rest == (
        "WAITING    TID  PLANE             FOR  SITE\n"
        "bulkheadd   70  control python  1.05s  host.dispatch\n"
        "\nnative stack of hold/0 (tid 77):\n  t_hold.so:burn+0x12\n  bulkheadd:worker_run+0xa0\n"
        "\nPython stack of bulkheadd (tid 70):\n  /a/app.py:7 in search\n  …\n"
        "\nPython stack of hold/0 (tid 77, holds the GIL):\n")
    assert json.loads(scene.ctl("--json", "stalls", "7").stdout) == STALL
    out = " ".join(scene.ctl("stalls", "8").stdout.split())
    assert "until now" in out and "stuck: stream/1 (tid 80), pool stream, op matvec" in out
    assert "the GIL was held by nobody" in out


@pytest.mark.parametrize("stall", [{"id": 7}, {"id": 7, "holder": 3, "waiters": [1], "native": [{}], "python": [{"frames": 1}]}])
def test_a_strange_stall_is_shown_as_far_as_it_goes(scene, stall):
    scene.host().answers["GET /v1/stalls"] = (200, {"stalls": [None, stall]})
    for args in (["stalls"], ["stalls", "7"]):
        done = scene.ctl(*args)
        assert done.returncode == 0 and done.stdout and "nan" not in done.stdout, done


def test_a_stall_that_is_not_kept_is_told(scene):
    scene.host().answers["GET /v1/stalls"] = (200, STALLS)
    done = scene.ctl("stalls", "6")
    assert done.returncode == 1 and "knows of no stall 6" in done.stderr and done.stdout == ""
    done = scene.ctl("stalls", "last")
    assert done.returncode == 64 and '"last" is no stall\'s number' in done.stderr and done.stdout == ""


PAGE = '# HELP up Whether.\n# TYPE up gauge\nup{library="a"} 1\n'


def test_metrics_prints_the_page(scene):
    host = scene.host()
    host.answers["GET /metrics"] = (200, PAGE.encode())
    done = scene.ctl("metrics")
    assert done.returncode == 0 and done.stdout == PAGE
    host.answers["GET /metrics"] = (200, PAGE.replace("a", "a\x1b[2J").encode())
    assert "\x1b" not in scene.ctl("metrics").stdout and "\x1b" in scene.ctl("--json", "metrics").stdout


def test_metrics_of_a_host_without_them_is_refused(scene):
    scene.host()
    done = scene.ctl("metrics")
    assert done.returncode == 1 and "no such path" in done.stderr and done.stdout == ""


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
        (["call"], "call takes APP [ENDPOINT [JSON]]"),
        (["call", "a", "b", "c", "d"], "call takes APP [ENDPOINT [JSON]]"),
        (["call", "a", "b", "-d", "text"], '"text" is not @FILE or -'),
        (["-s", "/nonexistent", "call", "a", "b", "-d", "@/nonexistent/file"], "cannot read /nonexistent/file"),
        (["-s", "/nonexistent", "call", "a", "b", "[1]", "-d", "@/dev/null"], "a JSON object"),
        (["-s", "/nonexistent", "call", "a", "b", "-d", "@/dev/zero"], "16 MiB"),
        (["-s", "/nonexistent", "call", "a", "-o", "x"], "call APP ENDPOINT"),
        (["status", "-d", "-"], "status takes no --data-binary"),
        (["pools", "-o", "x"], "pools takes no --output"),
        (["--nonsense"], "nonsense"),
        (["-s", "a", "-H", "b", "status"], "give one"),
        (["-t", "soon", "status"], '"soon" is not a duration'),
        (["-t", "0", "status"], '"0" is out of range'),
        (["gil", "--watch=soon"], '--watch: "soon" is not a duration'),
        (["gil", "--watch=0"], '"0" is out of range'),
        (["gil", "--watch", "2"], "gil takes no arguments"),
        (["status", "--watch"], "status takes no --watch"),
        (["pools", "--threads"], "pools takes no --threads"),
        (["stalls", "1", "2"], "stalls takes [ID]"),
        (["metrics", "x"], "metrics takes no arguments"),
    ],
)
def test_wrong_usage_is_64_and_says_why(scene, args, words):
    done = scene.ctl(*args)
    assert done.returncode == 64 and words in done.stderr and done.stdout == "", done


def test_help_and_version(scene):
    done = scene.ctl("--help")
    assert done.returncode == 0 and narrow(done.stdout) and "call APP [ENDPOINT [JSON]]" in done.stdout
    done = scene.ctl("--version")
    assert done.returncode == 0 and done.stdout.startswith("bulkheadctl ")


def test_an_answer_that_cannot_be_written_is_a_failure(scene):
    scene.host().answers["GET /v1/status"] = (200, STATUS)
    with open("/dev/full", "w") as full:
        done = subprocess.run([program(), "-s", str(scene.dir / "one.sock"), "status"], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=30)  # fmt: skip
    assert done.returncode == 70 and "cannot write" in done.stderr
