# SPDX-License-Identifier: BSD-3-Clause
"""bulkhead.testing as a third party has it: pytest in a directory of its own, with the installed package."""

import os
import platform
import shutil
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from conftest import SLOW, stage

ROOT = Path(__file__).resolve().parents[2]

APP = """
    import asyncio
    import os
    import bulkhead

    class App:
        async def start(self, app):
            self.app = app
            if "fail" in app.options:
                raise ValueError("the app's start() does not like this")
            self.stream = bulkhead.pool("stream") if "alone" not in app.options else None
            print("my app is there")

        @bulkhead.endpoint
        async def add(self, a: int, b: int) -> int:
            return await self.stream.run(sum, [a, b])

        @bulkhead.endpoint
        async def options(self) -> dict:
            return self.app.options

        @bulkhead.endpoint
        async def leave(self, status: int) -> None:
            raise SystemExit(status)

        @bulkhead.endpoint
        async def die(self) -> None:
            os.abort()
"""

GOOD = """
    import os
    import sys
    import pytest
    import bulkhead
    from bulkhead.testing import CallFailed, Host, HostFailed, find_bulkheadd, host, run
    from myapp import App

    class Here:
        @bulkhead.endpoint
        async def where(self) -> str:
            return __file__

    class Inner:
        class App(Here):
            pass

    async def add(a, b):
        return await bulkhead.pool("stream").run(sum, [a, b])

    class Odd(Exception):  # can be pickled, but not made again
        def __init__(self, a, b):
            super().__init__(f"{a} {b}")

    async def go_wrong(what):
        if what == "refused":
            await bulkhead.pool("stream").fill(5, 1)
        if what == "odd":
            raise Odd(1, 2)
        raise KeyError(what)

    def outside():
        bulkhead.pool("stream")

    def test_by_name(host):
        h = host("myapp:App", plugins=["stream"], options={"greeting": " a;b # c ", "n": 5})
        assert h.call("add", 1, 2) == 3 == h.call("app/add", a=1, b=2)
        assert h.call("options") == {"greeting": " a;b # c ", "n": "5"}
        assert h.get("/readyz").status == 200
        assert h.get("/v1/pools").json["pools"][0]["label"] == "stream"
        assert h.wait_log("my app is there")
        assert h.pid > 0 and os.path.exists(h.socket)

    def test_by_class(host):
        assert host(App, plugins={"s": {"library": "stream", "workers": 3}}, options={"alone": True}).call("options") == {"alone": "yes"}
        assert host(Here).call("where") == __file__
        assert host(Inner.App).call("where") == __file__

    def test_two_hosts_and_more_apps(host):
        one = host(App, plugins=["stream"], apps={"other": Here})
        two = host(Here, manifest="[host]\\nlog_level = error\\n")
        assert one.call("other/where") == __file__ and two.call("where") == __file__
        assert one.folder != two.folder and two.log == ""

    def test_text(host):
        h = host("app:App", files={"app.py": "import bulkhead\\nclass App:\\n @bulkhead.endpoint\\n def f(self): return 7\\n"})
        assert h.call("f") == 7

    def test_calls_that_fail(host):
        h = host(App, plugins=["stream"])
        with pytest.raises(CallFailed) as caught:
            h.call("add", 1)
        assert caught.value.status == 400 and caught.value.code == "bad-arguments" and "add" in caught.value.facts["endpoint"]
        with pytest.raises(CallFailed, match="404 unknown-endpoint"):
            h.call("nope")
        with pytest.raises(TypeError):
            h.call("add", 1, b=2)

    def test_context_manager_and_status():
        with Host(App, plugins=["stream"]) as h:
            folder = h.folder
            assert h.call("add", 2, 2) == 4
        assert h.status == 0 and "my app is there" in h.log and not folder.exists()
        with pytest.raises(HostFailed, match="status 7") as caught:
            with Host(App, plugins=["stream"]) as h:
                with pytest.raises(CallFailed):
                    h.call("leave", 7)
        assert "my app is there" in str(caught.value) and h.status == 7

    def test_an_own_error_is_the_one_to_see():
        with pytest.raises(ZeroDivisionError) as caught:
            with Host(App, plugins=["stream"]):
                1 / 0
        assert "my app is there" in caught.value.__notes__[0]

    def test_does_not_get_ready():
        with pytest.raises(HostFailed, match="status 78") as caught:
            Host(App, options={"fail": 1}).__enter__()
        assert "the app's start() does not like this" in str(caught.value)
        with pytest.raises(HostFailed, match="did not get ready"):
            Host("no_such_module:App").__enter__()

    def test_wrong_use_says_what_is_right(monkeypatch):
        class Local:
            pass
        with pytest.raises(ValueError, match="top level of a module"):
            Host(Local)
        with pytest.raises(ValueError, match="module:attribute"):
            Host("myapp.App")
        with pytest.raises(TypeError, match="list of labels"):
            Host(App, plugins="stream")
        with pytest.raises(ValueError, match="one line"):
            Host(App, options={"text": "a\\nb"})
        monkeypatch.setenv("BULKHEAD", "/nonexistent")
        with pytest.raises(HostFailed, match="BULKHEAD=/nonexistent"):
            Host(App)

    def test_the_socket_fits_below_a_deep_temporary_directory(host, tmp_path, monkeypatch):
        deep = tmp_path / ("d" * 90)
        deep.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(deep))
        assert host(Here).call("where") == __file__
        assert not any(deep.iterdir())

    def test_a_venv_is_the_hosts_too(host):
        folder = os.environ["MADE_VENV"]
        files = {"app.py": "import bulkhead, sys\\nclass App:\\n @bulkhead.endpoint\\n def f(self): return sys.prefix\\n"}
        assert host("app:App", files=files, venv=folder).call("f") == folder
        assert host("app:App", files=files).call("f") == sys.prefix
        assert host("app:App", files=files, venv=False).call("f") == sys.base_prefix

    def test_run():
        assert run(add, 1, 2, plugins=["stream"]) == 3

    def test_run_raises():
        with pytest.raises(KeyError) as caught:
            run(go_wrong, "here")
        assert caught.value.args == ("here",) and "in go_wrong" in caught.value.__notes__[0]
        with pytest.raises(bulkhead.BadArgument) as caught:
            run(go_wrong, "refused", plugins=["stream"])
        assert caught.value.facts["parameter"] == "out"
        with pytest.raises(RuntimeError, match="Odd: 1 2"):
            run(go_wrong, "odd")

    def test_outside_it_says_what_to_do():
        with pytest.raises(bulkhead.NotInHost, match="bulkhead.testing"):
            outside()
"""

BAD = """
    from bulkhead.testing import host
    from myapp import App

    def test_leaves(host):
        h = host(App, plugins=["stream"])
        try:
            h.call("leave", 9)
        except Exception:
            pass

    def test_dies(host):
        h = host(App, plugins=["stream"])
        try:
            h.call("die")
        except Exception:
            pass

    def test_fails(host):
        assert host(App, plugins=["stream"]).call("add", 1, 1) == 3
"""


def environment(package: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BULKHEAD", "PYTEST"))}
    return env | {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}


def run_pytest(folder: Path, *args: str):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit2",
               "--junit-xml=out.xml", *args]  # fmt: skip
    done = subprocess.run(command, cwd=folder, env=environment(stage() / "share/bulkhead/python"), capture_output=True,
                          text=True, timeout=120 * SLOW)  # fmt: skip
    cases = ElementTree.parse(folder / "out.xml").getroot().iter("testcase")
    return done, {case.get("name"): {child.tag for child in case} for case in cases}


def project(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder


def test_a_third_partys_tests_run_in_a_real_host(host, tmp_path, monkeypatch):
    version = host().find("interpreter up")["version"]
    if version != platform.python_version():  # the host imports the module of the tests, and pytest with it
        pytest.skip(f"the host has Python {version}, pytest here has {platform.python_version()}")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    monkeypatch.setenv("MADE_VENV", str(venv))
    done, cases = run_pytest(project(tmp_path, myapp=APP, test_good=GOOD))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(cases) == GOOD.count("def test_")


def test_an_end_that_is_not_clean_fails_the_test_and_shows_the_log(tmp_path):
    done, cases = run_pytest(project(tmp_path, myapp=APP, test_bad=BAD))
    assert done.returncode == 1
    ends = {name: tags & {"error", "failure"} for name, tags in cases.items()}
    assert ends == {"test_leaves": {"error"}, "test_dies": {"error"}, "test_fails": {"failure"}}, done.stdout
    assert "bulkheadd ended with status 9 instead of status 0" in done.stdout
    assert "bulkheadd ended with signal SIGABRT instead of status 0" in done.stdout
    assert done.stdout.count("my app is there") >= 3


def test_the_package_alone_says_where_it_looked_for_the_host(tmp_path):
    package = tmp_path / "a" / "b" / "c"
    shutil.copytree(stage() / "share/bulkhead/python/bulkhead", package / "bulkhead")
    code = "from bulkhead import testing\ntry: testing.Host()\nexcept testing.HostFailed as e: print(e)"
    env = environment(package) | {"PATH": ""}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True)
    if "found" not in done.stdout and not done.stderr:
        pytest.skip("a bulkheadd is installed on this machine")
    assert "not at" in done.stdout and "set BULKHEAD to its path" in done.stdout, done.stderr


def test_the_examples_own_tests_pass(tmp_path):
    shutil.copytree(stage() / "share/bulkhead/examples/linesearch", tmp_path / "linesearch")
    done, cases = run_pytest(tmp_path / "linesearch")
    assert done.returncode == 0 and len(cases) >= 3, done.stdout + done.stderr
