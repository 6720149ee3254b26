# SPDX-License-Identifier: BSD-3-Clause
"""Bad input: nothing hangs, each fault says what and where, each status is the documented one."""

import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest
from conftest import CallError, UnixConnection, stage, test_plugins, until

FINE_APP = {"app.py": "class App:\n    pass\n"}


def bulkheadd(*args, timeout=30):
    """Runs it without a manifest of the fixture's."""
    return subprocess.run([str(stage() / "sbin" / "bulkheadd"), *args], capture_output=True, text=True, timeout=timeout, cwd="/")


def ends(host, manifest, files=None, args=(), env=None):
    """Starts a host that is to end by itself; its status and what it wrote."""
    h = host(manifest, files, wait=None, args=args, env=env)
    return h.wait(20), h


# ---- the command line


@pytest.mark.parametrize(
    "args, words",
    [
        ([], ["no manifest", "-c"]),
        (["--nonsense"], ["nonsense", "Usage"]),
        (["-c"], ["Usage"]),
        (["-c", "/dev/null", "more"], ["more", "Usage"]),
    ],
)
def test_a_wrong_command_line_is_usage(args, words):
    done = bulkheadd(*args)
    assert done.returncode == 64
    assert all(word in done.stderr for word in words), done.stderr


def test_version_and_help_go_to_stdout():
    version = bulkheadd("--version")
    assert version.returncode == 0 and re.match(r"bulkheadd \d+\.\d+", version.stdout) and not version.stderr
    usage = bulkheadd("--help")
    assert usage.returncode == 0 and "Usage" in usage.stdout and not usage.stderr


# ---- the manifest


@pytest.mark.parametrize(
    "kind, words",
    [("missing", ["nowhere.ini", "No such file"]), ("directory", ["directory"]), ("fifo", ["fifo.ini"])],
)
def test_a_manifest_that_is_no_file(tmp_path, kind, words):
    path = {"missing": tmp_path / "nowhere.ini", "directory": tmp_path, "fifo": tmp_path / "fifo.ini"}[kind]
    if kind == "fifo":
        os.mkfifo(path)
    done = bulkheadd("-c", str(path))
    assert done.returncode == 78
    assert str(path) in done.stderr
    assert all(word.lower() in done.stderr.lower() for word in words), done.stderr


BAD_MANIFESTS = [
    # text, words of the one line that tells
    ("[host]\nnaem = x\n", ["node.ini:2", "[host]", "naem", "unknown", "name"]),
    ("[hots]\nname = x\n", ["node.ini:1", "hots", "host"]),
    ("[host]\nshutdown_timeout = soon\n", ["node.ini:2", "[host]", "shutdown_timeout", "soon", "accepted"]),
    ("[host]\nshutdown_timeout = 1\n", ["node.ini:2", "shutdown_timeout", "accepted"]),
    ("[host]\nlog_level = loud\n", ["node.ini:2", "log_level", "loud", "debug", "error"]),
    ("[plugin p]\nlibrary = t_count\nworkers = many\n", ["node.ini:3", "[plugin p]", "workers", "many", "auto"]),
    ("[plugin p]\nlibrary = t_count\nworkers = 0\n", ["node.ini:3", "workers", "1"]),
    ("[plugin p]\nlibrary = t_count\nqueue = -3\n", ["node.ini:3", "queue", "-3", "accepted"]),
    ("[plugin p]\nworkers = 2\n", ["node.ini:1", "[plugin p]", "library"]),
    ("[plugin P!]\nlibrary = t_count\n", ["node.ini:1", "P!"]),
    ("[app a]\n", ["node.ini:1", "[app a]", "object"]),
    ("[app a]\nobject = no-colon\n", ["node.ini:2", "object", "no-colon", ":"]),
    ("name = x\n", ["node.ini:1"]),
    ("[host\nname = x\n", ["node.ini:1"]),
    ("[host]\nname\n", ["node.ini:2"]),
    ("[host]\nname = a\nname = b\n", ["node.ini:3", "name", "2"]),
    ("[gil]\nsample_interval = 1h\n", ["node.ini:2", "sample_interval", "1h"]),
]


@pytest.mark.parametrize("text, words", BAD_MANIFESTS, ids=[t.replace("\n", " ") for t, _ in BAD_MANIFESTS])
def test_man1_a_fault_of_the_manifest_names_file_line_section_key_value_and_what_is_accepted(host, text, words):
    status, h = ends(host, text)
    assert status == 78
    assert any(all(word in line for word in words) for line in h.text.splitlines())


def test_man1_all_faults_are_listed(host):
    status, h = ends(host, "[host]\nnaem = x\nlog_level = loud\n[plugin p]\nlibrary = t_count\nqueue = 0\n")
    assert status == 78
    assert len(re.findall(r"^\S*node\.ini:\d+: ", h.text, re.M)) == 3


def test_check_reads_and_says(tmp_path):
    good = tmp_path / "good.ini"
    good.write_text("[host]\nruntime_dir = /tmp\n[plugin count]\nlibrary = t_count\n")
    done = bulkheadd("-c", str(good), "--check", "--plugin-dir", str(test_plugins()))
    assert done.returncode == 0, done.stderr
    assert "count" in done.stdout and "t_count" in done.stdout and "ok" in done.stdout
    bad = tmp_path / "bad.ini"
    bad.write_text("[host]\nruntime_dir = /tmp\nname = \n")
    assert bulkheadd("-c", str(bad), "--check").returncode == 78
    assert bulkheadd("-c", str(good), "--set", "plugin count.library=bad_abi", "--check", "--plugin-dir",
                     str(test_plugins())).returncode == 69  # fmt: skip


@pytest.mark.parametrize(
    "value, words",
    [
        ("nonsense", ["nonsense"]),
        ("=x", ["=x"]),
        ("host=x", ["host=x"]),
        ("host.naem=x", ["[host]", "naem", "name"]),
        ("host.log_level=loud", ["[host]", "log_level", "loud", "debug"]),
    ],
)
def test_a_bad_set_is_told_as_such(host, value, words):
    status, h = ends(host, "", args=["--set", value])
    assert status == 78
    assert any(line.startswith("--set:") and all(word in line for word in words) for line in h.text.splitlines())


# ---- plugins


PLUGINS = [
    # library, words of the log
    ("t_missing", ["t_missing", str(test_plugins()) if "BULKHEAD_TEST_PLUGINS" in os.environ else ""]),
    ("not_plugin", ["not_plugin", "note.missing"]),
    ("bad_abi", ["bad_abi", "note.abi"]),
    ("bad_null", ["run"]),
    ("bad_site", ["site", "polic"]),
    ("bad_open", ["bad_open"]),
    ("bad_start", ["worker"]),
    ("/nonexistent/x.so", ["/nonexistent/x.so"]),
    ("/etc/hostname", ["/etc/hostname", "note.not-elf"]),
]


@pytest.mark.parametrize("library, words", PLUGINS, ids=[os.path.basename(p) for p, _ in PLUGINS])
def test_h21_a_required_plugin_that_is_unusable_ends_the_start_with_69(host, library, words):
    """A comes up, B does not, C is never loaded, A is taken down: PLG-4."""
    status, h = ends(host, "".join(f"[plugin {label}]\nlibrary = {lib}\n" for label, lib in
                                   (("a", "t_count"), ("b", library), ("c", "t_count"))))  # fmt: skip
    assert status == 69
    cause = next(line for line in h.log if line.get("level") == "error" and line.get("plugin") == "b")
    assert all(word in str(cause) for word in words), cause
    assert h.find("pool ready", pool="a") and h.find("pool closed", pool="a", state="clean")
    assert not h.find("loading plugin", plugin="c")
    assert h.find("Py_FinalizeEx returned 0")


@pytest.mark.parametrize("library", ["t_missing", "bad_open"])
def test_plg7_an_optional_plugin_is_skipped_and_shown(host, library):
    h = host(
        f"""
        [plugin a]
        library = t_count
        [plugin b]
        library = {library}
        optional = yes
        [plugin c]
        library = t_count
        """
    )
    plugins = {p["label"]: p for p in h.get("/v1/status").json["plugins"]}
    assert plugins["b"]["state"] == "skipped" and plugins["b"]["error"]
    assert plugins["a"]["state"] == plugins["c"]["state"] == "up"


def test_plg7_optional_excuses_no_faulty_plugin(host):
    status, h = ends(host, "[plugin b]\nlibrary = bad_null\noptional = yes\n")
    assert status == 69


def test_an_unknown_key_of_a_plugin_is_refused_with_the_line(host):
    status, h = ends(host, "[plugin count]\nlibrary = t_count\nflavour = mint\n")
    assert status == 78
    assert "flavour" in h.text and "node.ini:3" in h.text


def test_a_close_that_fails_is_logged_and_the_rest_goes_on(host):
    h = host("[plugin a]\nlibrary = t_count\n[plugin b]\nlibrary = bad_close\n")
    assert h.stop() == 0
    assert h.find("pool closed", pool="b", state="failed") and h.find("pool closed", pool="a", state="clean")
    assert h.find("pool ended with a cause")


def test_plg6_a_plugin_that_takes_a_signal_loses_it_again(host):
    h = host("[plugin thief]\nlibrary = bad_signals\n")
    assert any("SIGTERM" in str(line) and "thief" in str(line) for line in h.log)
    assert h.stop() == 0


def test_sup1_an_open_that_never_returns_hangs_nothing(host):
    h = host("[host]\nshutdown_timeout = 3s\n[plugin slow]\nlibrary = bad_open_hang\n", wait="answering")
    until(lambda: h.get("/v1/status").json["phase"] == "plugin-open", what="the open")
    assert h.get("/livez").status == 200
    unready = h.get("/readyz")
    assert unready.status == 503 and "slow" in unready.text
    began = time.monotonic()
    assert h.stop() == 70
    assert time.monotonic() - began < 5
    wedged = h.find("pool is wedged", pool="slow")
    assert wedged and "open" in wedged["step"]


# ---- Python and apps


def test_h32_a_python_home_that_does_not_exist(host):
    status, h = ends(host, "", args=["--set", "python.home=/nonexistent/py"])
    assert status == 78
    assert "/nonexistent/py" in h.text and "home" in h.text
    assert "Fatal Python error" not in h.text and h.log[-1].get("msg") == "stopped"


def test_h32_a_venv_that_is_none(host, tmp_path):
    status, h = ends(host, "", args=["--set", f"python.venv={tmp_path}"])
    assert status == 78
    assert str(tmp_path) in h.text and "pyvenv.cfg" in h.text


BAD_APPS = [
    # name, object, module text, words
    ("raises on import", "app:App", "raise RuntimeError('no such luck')", ["Traceback", "no such luck", "app.py"]),
    ("syntax error", "app:App", "def f(:\n", ["SyntaxError", "app.py"]),
    ("no module", "nothere:App", "", ["nothere"]),
    ("no attribute", "app:Nothing", "class App: pass", ["Nothing"]),
    ("raises in __init__", "app:App", "class App:\n def __init__(self): raise ValueError('born bad')", ["born bad", "Traceback"]),
    ("raises in start", "app:App", "class App:\n async def start(self, app): raise ValueError('bad start')",
     ["bad start", "Traceback"]),
    ("raises in a plain start", "app:App", "class App:\n def start(self, app): raise ValueError('bad start')",
     ["bad start", "Traceback"]),
]  # fmt: skip


@pytest.mark.parametrize("name, obj, text, words", BAD_APPS, ids=[a[0] for a in BAD_APPS])
def test_an_app_that_does_not_come_up_ends_the_start_with_78(host, name, obj, text, words):
    status, h = ends(host, f"[plugin count]\nlibrary = t_count\n[app bad]\nobject = {obj}\n", {"app.py": text})
    assert status == 78
    assert all(word in h.text for word in words)
    failed = next(line for line in h.log if line.get("level") == "error" and line.get("app") == "bad")
    assert failed["object"] == obj
    assert h.find("pool closed", pool="count", state="clean") and h.find("Py_FinalizeEx returned 0")


def test_an_app_that_starts_too_slowly_is_given_up(host):
    status, h = ends(
        host,
        "[app slow]\nobject = app:App\nstart_timeout = 500ms\n",
        {"app.py": "import asyncio\nclass App:\n async def start(self, app): await asyncio.sleep(3600)\n"},
    )
    assert status == 78
    assert "app.start-timeout" in h.text


# ---- endpoint calls


CALLED = {
    "app.py": """
        import asyncio
        import sys
        from typing import Optional
        import bulkhead

        class App:
            def __init__(self):
                self.cancelled = 0

            @bulkhead.endpoint
            async def search(self, query: str, k: int = 5, near: Optional[float] = None, tags: list = ()) -> list:
                return [query, k, near, list(tags)]

            @bulkhead.endpoint
            async def raises(self) -> None:
                raise KeyError("lost it")

            @bulkhead.endpoint
            async def unserialisable(self):
                return object()

            @bulkhead.endpoint
            async def wait(self) -> None:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise

            @bulkhead.endpoint
            async def n_cancelled(self) -> int:
                return self.cancelled

            @bulkhead.endpoint
            async def leave(self, how: str) -> None:
                sys.exit({"three": 3, "none": None, "text": "so long"}[how])

            async def hidden(self) -> None:
                pass
    """
}

CALLED_MANIFEST = "[app app]\nobject = app:App\n"


def test_arguments_come_by_name_or_by_place(host):
    h = host(CALLED_MANIFEST, CALLED)
    assert h.call("search", query="x") == ["x", 5, None, []]
    assert h.call("search", "x", 3, 0.5, ["t"]) == ["x", 3, 0.5, ["t"]]
    assert h.post("/v1/apps/app/n_cancelled").json == {"result": 0}, "no body is no argument"


@pytest.mark.parametrize(
    "path, body, status, words",
    [
        ("app/saerch", {}, 404, ["saerch", "search"]),
        ("app/hidden", {}, 404, ["hidden"]),
        ("app/start", {}, 404, ["start"]),
        ("app/__init__", {}, 404, []),
        ("apq/search", {}, 404, ["apq"]),
        ("app/search", {}, 400, ["query"]),
        ("app/search", {"query": 3}, 400, ["query", "str", "int"]),
        ("app/search", {"query": "x", "k": "five"}, 400, ["k", "int", "str"]),
        ("app/search", {"query": "x", "k": True}, 400, ["k", "int", "bool"]),
        ("app/search", {"query": "x", "tags": "t"}, 400, ["tags", "list"]),
        ("app/search", {"query": "x", "limit": 1}, 400, ["limit"]),
        ("app/search", ["x", 1, 2.0, [], "more"], 400, []),
        ("app/search", b'{"query": ', 400, ["JSON"]),
        ("app/search", b"query=x", 400, ["JSON"]),
        ("app/search", b'"x"', 400, []),
        ("app/search", b"\xff\xfe", 400, []),
        ("app/raises", {}, 500, ["KeyError", "lost it"]),
        ("app/unserialisable", {}, 500, []),
    ],
)
def test_a_wrong_call_is_answered_with_what_is_wrong(host, path, body, status, words):
    h = host(CALLED_MANIFEST, CALLED)
    reply = h.post(f"/v1/apps/{path}", body)
    assert reply.status == status, reply
    error = reply.json["error"]
    assert error["code"] and error["message"] and isinstance(error["facts"], dict)
    assert all(word.lower() in reply.text.lower() for word in words), reply
    assert h.call("search", query="still here") == ["still here", 5, None, []]


def test_an_endpoint_that_raises_leaves_its_traceback_in_the_log(host):
    h = host(CALLED_MANIFEST, CALLED)
    with pytest.raises(CallError):
        h.call("raises")
    until(lambda: "Traceback" in h.text and "lost it" in h.text and "in raises" in h.text, what="the traceback")


def test_a_client_that_hangs_up_in_the_middle_cancels_its_call(host):
    h = host(CALLED_MANIFEST, CALLED)
    connection = UnixConnection(str(h.socket), 10)
    connection.request("POST", "/v1/apps/app/wait", "{}")
    time.sleep(0.2)
    connection.close()
    until(lambda: h.call("n_cancelled") == 1, what="the cancellation")


def test_a_client_that_hangs_up_in_its_request_harms_nobody(host):
    h = host(CALLED_MANIFEST, CALLED)
    for part in (b"", b"POST /v1/ap", b"POST /v1/apps/app/search HTTP/1.1\r\nContent-Length: 100\r\n\r\n{", b"\0\0\0\0\r\n\r\n"):
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(h.socket))
        s.sendall(part)
        s.close()
    assert h.call("search", query="x")


@pytest.mark.parametrize("how, status", [("three", 3), ("none", 0), ("text", 1)])
def test_sys_exit_in_an_endpoint(host, how, status):
    h = host(CALLED_MANIFEST, CALLED)
    h.post("/v1/apps/app/leave", {"how": how})
    assert h.wait() == status
    assert h.find("Py_FinalizeEx returned 0")
    if how == "text":
        assert "so long" in h.text


# ---- the socket


def test_h30_a_second_host_of_the_same_name_is_refused(host):
    first = host("")
    second = subprocess.run(first.command, env=first.environment(), capture_output=True, text=True, timeout=30, cwd="/")
    assert second.returncode == 78, second.stderr
    assert str(first.socket) in second.stderr
    assert first.get("/livez").status == 200


def test_h30_a_stale_socket_is_taken_over(host):
    first = host("")
    first.process.kill()
    first.process.wait()
    assert first.socket.exists()
    again = subprocess.Popen(first.command, env=first.environment(), stderr=subprocess.PIPE, text=True, cwd="/")
    try:
        def answers():
            try:
                return first.get("/readyz", timeout=2).status == 200
            except OSError:
                return False

        until(answers, what="the second life")
        again.send_signal(signal.SIGTERM)
        assert again.wait(20) == 0
    finally:
        again.kill()
        again.communicate()
    first.ended_by_test = True


def test_h30_what_is_no_socket_is_left_alone(host, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "test.sock").write_text("mine")
    status, h = ends(host, "", args=["--set", f"host.runtime_dir={run}"])
    assert status == 78
    assert str(run / "test.sock") in h.text
    assert (run / "test.sock").read_text() == "mine"


def test_log_lines_are_one_record_each(host):
    """What an app prints cannot forge or break a line of the log."""
    h = host(
        "[app app]\nobject = app:App\n",
        {"app.py": "class App:\n def start(self, app): print('one\\ntwo \"quoted\"\\ttab level=error\\x1b[31m')\n"},
    )
    assert h.stop() == 0
    assert all("raw" not in line for line in h.log), [line for line in h.log if "raw" in line]
    assert "\x1b" not in h.text
    assert json.dumps(h.log)
