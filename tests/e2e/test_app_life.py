# SPDX-License-Identifier: BSD-3-Clause
"""The apps' lives: their order, deadlines, options, servers of their own, what they leave behind; and a Python set-up
that CPython would take in silence though it is wrong."""

import glob
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import until

LIVES = {
    "app.py": """
        import asyncio
        import bulkhead

        class App:
            async def start(self, app: bulkhead.App):
                self.app = app
                await self.step("start")

            async def stop(self):
                await self.step("stop")

            async def step(self, step):
                with open(self.app.options["book"], "a") as book:
                    print(step, self.app.name, file=book)
                    book.flush()
                    await asyncio.sleep(float(self.app.options.get(step, 0)))
                    print(step, "done", self.app.name, file=book)

            @bulkhead.endpoint
            async def options(self) -> dict[str, str]:
                return self.app.options
    """
}


def app(name: str, more: str = "") -> str:
    return f"[app {name}]\nobject = app:App\noption.book = @FOLDER@/book\n{more}\n"


def book(h) -> list[str]:
    return (h.folder / "book").read_text().splitlines()


def test_apps_start_in_the_manifests_order_and_stop_in_reverse_one_at_a_time(host):
    h = host(app("zeta", "option.start = 0.05\noption.stop = 0.05") + app("alpha") + app("mid", "option.more = a = b ; c"), LIVES)
    assert book(h) == [line for name in ("zeta", "alpha", "mid") for line in (f"start {name}", f"start done {name}")]
    assert h.post("/v1/apps/mid/options").json["result"] == {"book": f"{h.folder}/book", "more": "a = b ; c"}
    assert [row["name"] for row in h.get("/v1/apps").json["apps"]] == ["zeta", "alpha", "mid"]
    before = len(book(h))
    assert h.stop() == 0
    assert book(h)[before:] == [line for name in ("mid", "alpha", "zeta") for line in (f"stop {name}", f"stop done {name}")]


def test_the_deadline_of_one_apps_stop_does_not_eat_the_others(host):
    h = host(app("first", "option.stop = 0.4\nstop_timeout = 20s") + app("hangs", "option.stop = 3600\nstop_timeout = 500ms") +
             app("last", "option.stop = 0.4\nstop_timeout = 20s"), LIVES)  # fmt: skip
    before, began = len(book(h)), time.monotonic()
    h.stop(timeout=30)
    assert time.monotonic() - began < 20, "the one that hangs is given up at its own deadline"
    assert book(h)[before:] == ["stop last", "stop done last", "stop hangs", "stop first", "stop done first"]
    assert h.find("app hangs: cancelled at its deadline")
    assert h.find("Py_FinalizeEx returned 0")


def test_an_app_that_does_not_start_has_those_before_it_stopped(host):
    h = host(app("good") + app("late", "option.start = 3600\nstart_timeout = 300ms") + app("never"), LIVES, wait=None)
    assert h.wait(30) == 78
    assert book(h) == ["start good", "start done good", "start late", "stop good", "stop done good"]


SERVER = {
    "app.py": """
        import asyncio
        import bulkhead

        class App:
            async def start(self):
                self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
                self.served = 0

            async def serve(self, reader, writer):
                while line := await reader.readline():
                    writer.write((await bulkhead.pool("hold").call(line.upper)))
                    await writer.drain()
                    self.served += 1
                writer.close()

            async def stop(self):
                self.server.close()

            @bulkhead.endpoint
            async def port(self) -> int:
                return self.server.sockets[0].getsockname()[1]

            @bulkhead.endpoint
            async def count(self) -> int:
                return self.served
    """
}


def test_an_apps_own_asyncio_server_works_unchanged(host):
    h = host("[plugin hold]\nlibrary = t_hold\n[app app]\nobject = app:App\n", SERVER)
    port = h.call("port")
    clients = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(20)]
    for i, client in enumerate(clients):
        client.sendall(b"hello %d\n" % i)
    for i, client in enumerate(clients):
        client.settimeout(20)
        assert client.makefile("rb").readline() == b"HELLO %d\n" % i
    assert h.call("count") == 20
    for client in clients[1:]:
        client.close()
    assert h.stop() == 0, "with one client connected still"
    assert h.find("Py_FinalizeEx returned 0")
    clients[0].close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1)


FORGETFUL = {
    "app.py": """
        import asyncio
        import bulkhead

        async def tidy_up():
            pass

        class App:
            @bulkhead.endpoint
            async def forgets(self) -> None:
                tidy_up()

            @bulkhead.endpoint
            async def leaves(self, n: int) -> None:
                self.tasks = [asyncio.create_task(asyncio.sleep(3600), name=f"left-{i:02}") for i in range(n)]

            @bulkhead.endpoint
            async def raises_behind(self) -> None:
                async def fail():
                    raise KeyError("nobody asked")
                asyncio.create_task(fail())
    """
}


def test_a_coroutine_that_nobody_awaits_is_told(host):
    h = host("[app app]\nobject = app:App\n", FORGETFUL)
    h.call("forgets")
    until(lambda: re.search(r"coroutine 'tidy_up' was never awaited", h.text), what="the warning")
    assert "app.py" in h.text


def test_an_exception_of_a_task_that_nobody_awaits_is_told(host):
    h = host("[app app]\nobject = app:App\n", FORGETFUL)
    h.call("raises_behind")
    until(lambda: "nobody asked" in h.text and "never retrieved" in h.text, what="the traceback")


def test_tasks_that_are_left_at_the_stop_are_told_and_cancelled(host):
    h = host("[app app]\nobject = app:App\n", FORGETFUL)
    h.call("leaves", n=10)
    assert h.stop() == 0
    told = [line["msg"] for line in h.log if "was left at the stop" in line.get("msg", "")]
    assert len(told) == 8 and "left-00" in told[0] and "sleep" in told[0]
    assert h.find("2 more asyncio tasks were left at the stop and are cancelled")


# ---- [python] home, venv, path: CPython takes the wrong ones in silence


def refused(host, *settings, manifest=""):
    h = host(manifest, args=[arg for setting in settings for arg in ("--set", setting)], wait=None)
    assert h.wait() == 78
    assert "Fatal Python error" not in h.text and h.log[-1].get("msg") == "stopped"
    return h


def own_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def venv(tmp_path):
    where = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(where)], check=True)
    return where


def test_h32_a_home_without_a_library(host, tmp_path):
    h = refused(host, f"python.home={tmp_path}")
    failed = next(line for line in h.log if line.get("home") == str(tmp_path))
    assert "os.py" in failed["accepted"]


def test_h32_a_home_and_a_venv_at_once(host, venv):
    h = refused(host, f"python.venv={venv}", "python.home=/usr")
    assert "one of the two" in h.text and str(venv) in h.text


def test_h32_a_venv_that_does_not_exist(host):
    h = refused(host, "python.venv=/nonexistent/venv")
    assert "/nonexistent/venv" in h.text and "pyvenv.cfg" in h.text and "python3 -m venv" in h.text


@pytest.mark.parametrize("version", ["3.9.2", "3.99.0", "", "2.7"])
def test_h32_a_venv_of_another_version(host, venv, version):
    config = venv / "pyvenv.cfg"
    text = re.sub(r"(?m)^version.*\n", f"version = {version}\n" if version else "", config.read_text())
    config.write_text(text)
    h = refused(host, f"python.venv={venv}")
    failed = next(line for line in h.log if line.get("venv") == str(venv))
    assert failed["given"].startswith(version or "no version") and re.search(r"Python 3\.\d+", failed["accepted"])


def test_h32_a_venv_of_another_interpreter_of_this_version(host, needs_own_python, tmp_path):
    """CPython would run this host's libpython on the other one's standard library."""
    own = os.path.realpath(sys.executable)
    pattern = os.path.expanduser(f"~/.pyenv/versions/{own_version()}.*/bin/python{own_version()}")
    others = [python for python in glob.glob(pattern) if os.path.realpath(python) != own]
    if others:
        venv = tmp_path / "venv"
        subprocess.run([others[0], "-m", "venv", "--without-pip", str(venv)], check=True)
    else:  # its configuration says as much
        venv = tmp_path / "venv"
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / f"python{own_version()}").write_text("")
        venv.mkdir()
        (venv / "pyvenv.cfg").write_text(f"home = {tmp_path}/other\nversion = {own_version()}.1\n")
    h = refused(host, f"python.venv={venv}")
    failed = next(line for line in h.log if line.get("venv") == str(venv))
    assert failed["given"] and "python3" in failed["accepted"]


def test_h32_a_venv_that_has_lost_its_interpreter(host, needs_own_python, venv):
    for link in (venv / "bin").glob("python*"):
        link.unlink()
    h = refused(host, f"python.venv={venv}")
    assert "no bin/python in it" in h.text


def test_h32_a_path_that_does_not_exist(host, tmp_path):
    h = refused(host, manifest=f"[python]\npath = {tmp_path}:{tmp_path}/nothing\n")
    failed = next(line for line in h.log if line.get("path") == f"{tmp_path}/nothing")
    assert "No such file" in failed["reason"] and failed["accepted"]


def test_a_second_signal_does_not_skip_the_apps(host):
    h = host(app("slow", "option.stop = 1"), LIVES)
    h.send(signal.SIGTERM)
    until(lambda: "stop slow" in book(h), what="stop()")
    h.send(signal.SIGTERM)
    h.wait(30)
    assert "stop slow" in book(h) and h.find("Py_FinalizeEx returned 0")
