# SPDX-License-Identifier: BSD-3-Clause
"""The embedded interpreter: its modules, its environment, its children."""

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import stage, until

POOL = "[plugin hold]\nlibrary = t_hold\n[app app]\nobject = app:App\n"

C_MODULES = {
    "app.py": """
        import importlib
        import bulkhead

        NAMES = ["_struct", "_json", "math", "_ctypes", "numpy"]

        def load(names):
            return [importlib.import_module(name).__name__ for name in names]

        class App:
            @bulkhead.endpoint
            async def on_main(self) -> list:
                return load(NAMES)

            @bulkhead.endpoint
            async def on_pool(self) -> list:
                return await bulkhead.pool("hold").call(load, NAMES)
    """
}


@pytest.mark.parametrize("where", ["on_main", "on_pool"])
def test_h16_c_modules_of_python_can_be_imported(host, needs, where):
    needs("numpy")
    h = host(POOL, C_MODULES)
    assert h.call(where) == ["_struct", "_json", "math", "_ctypes", "numpy"]


def test_h16_an_installed_host_needs_nothing_of_its_build_tree(host, needs):
    """PLG-5: the staged files, moved elsewhere, and nothing mapped from where they were built."""
    needs("numpy")
    with tempfile.TemporaryDirectory(prefix="bh-") as folder:
        prefix = Path(folder) / "usr"
        shutil.copytree(stage(), prefix)
        h = host("[plugin stream]\nlibrary = stream\n[app app]\nobject = app:App\n",
                 {"app.py": C_MODULES["app.py"].replace('pool("hold").call', 'pool("stream").run')},
                 prefix=prefix)  # fmt: skip
        assert h.call("on_main") and h.call("on_pool")
        maps = Path(f"/proc/{h.process.pid}/maps").read_text()
        assert str(prefix / "lib/bulkhead/plugins/stream.so") in maps
        assert str(stage()) not in maps
        assert h.stop() == 0


LOOK = {
    "app.py": """
        import os
        import sys
        import bulkhead

        class App:
            @bulkhead.endpoint
            async def look(self) -> dict:
                import json
                return {"argv": sys.argv, "path": sys.path, "prefix": sys.prefix, "base": sys.base_prefix,
                        "executable": sys.executable, "json": json.__file__, "utf8": sys.flags.utf8_mode,
                        "encoding": sys.getfilesystemencoding(), "bytecode": sys.dont_write_bytecode}

            @bulkhead.endpoint
            async def load(self, name: str) -> str:
                return __import__(name).__file__
    """
}


def test_h32_python_is_isolated_from_the_environment(host, tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError('poisoned')")
    h = host("[app app]\nobject = app:App\n", LOOK,
             env={"PYTHONHOME": "/nonexistent", "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/nonexistent"})  # fmt: skip
    seen = h.call("look")
    assert str(tmp_path) not in seen["path"] and not seen["json"].startswith(str(tmp_path))
    assert len(seen["argv"]) >= 1
    assert seen["utf8"] == 1 and seen["encoding"] == "utf-8" and seen["bytecode"]
    assert any(path.endswith("/apps") for path in seen["path"])
    assert not any(path in ("", ".") for path in seen["path"])


def test_h32_packages_of_a_venv_are_found(host, needs_own_python, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next(venv.glob("lib/python3.*/site-packages"))
    (site / "only_in_venv.py").write_text("")
    h = host("[app app]\nobject = app:App\n", LOOK, args=["--set", f"python.venv={venv}"])
    assert h.call("look")["prefix"] == str(venv)
    assert h.call("load", name="only_in_venv") == str(site / "only_in_venv.py")


def test_gil8_context_variables_come_with_the_task_and_stay_with_it(host):
    h = host(
        POOL,
        {
            "app.py": """
                import contextvars
                import bulkhead

                var = contextvars.ContextVar("var", default="unset")

                def look_and_set():
                    seen = var.get()
                    var.set("set by a task")
                    return seen

                class App:
                    @bulkhead.endpoint
                    async def look(self, value: str) -> list:
                        before = await bulkhead.pool("hold").call(look_and_set)
                        var.set(value)
                        return [before, await bulkhead.pool("hold").call(look_and_set), var.get()]
            """
        },
        args=["--set", "plugin hold.workers=1"],
    )
    assert h.call("look", value="mine") == ["unset", "mine", "mine"]
    assert h.call("look", value="other") == ["unset", "other", "other"]


def test_an_exception_of_a_callable_reaches_its_caller_with_the_workers_traceback(host):
    h = host(
        POOL,
        {
            "app.py": """
                import traceback
                import bulkhead

                def deep():
                    raise ZeroDivisionError("on the worker")

                class App:
                    @bulkhead.endpoint
                    async def look(self) -> str:
                        try:
                            await bulkhead.pool("hold").call(deep)
                        except ZeroDivisionError:
                            return traceback.format_exc()
            """
        },
    )
    text = h.call("look")
    assert "on the worker" in text and "in deep" in text and "in look" in text


CHILDREN = {
    "app.py": """
        import asyncio
        import multiprocessing
        import os
        import signal
        import subprocess
        import bulkhead

        def terminate():
            child = subprocess.Popen(["sleep", "60"])
            child.terminate()
            return child.wait(10)

        def leave_with_3():
            return subprocess.run(["sh", "-c", "exit 3"]).returncode

        def mask_of_child():
            return subprocess.run(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"], capture_output=True, text=True).stdout

        class App:
            async def start(self, app):
                self.pool = bulkhead.pool("hold")

            @bulkhead.endpoint
            async def terminate(self) -> list:
                return [terminate(), await self.pool.call(terminate)]

            @bulkhead.endpoint
            async def status(self) -> list:
                return [leave_with_3(), await self.pool.call(leave_with_3)]

            @bulkhead.endpoint
            async def masks(self) -> list:
                return [mask_of_child(), await self.pool.call(mask_of_child)]

            @bulkhead.endpoint
            async def own_handler(self) -> None:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print, "the app's handler ran")

            @bulkhead.endpoint
            async def default_handler(self) -> None:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

            @bulkhead.endpoint
            async def fork(self) -> str:
                try:
                    if os.fork() == 0:
                        os._exit(0)
                except Exception as error:
                    return f"{type(error).__name__}: {error}"
                return "forked"

            @bulkhead.endpoint
            async def fork_context(self) -> str:
                import helper
                try:
                    process = multiprocessing.get_context("fork").Process(target=helper.double, args=(1,))
                    process.start()
                    process.join(10)
                except Exception as error:
                    return f"{type(error).__name__}: {error}"
                return "forked"

            @bulkhead.endpoint
            async def spawn(self) -> list:
                import helper
                def run():
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        return pool.map(helper.double, [1, 2, 3])
                return await asyncio.to_thread(run)
    """,
    "helper.py": """
        def double(n):
            return 2 * n
    """,
}


def test_h36_a_child_dies_at_once_when_it_is_told_to(host):
    h = host(POOL, CHILDREN)
    assert h.call("terminate") == [-signal.SIGTERM, -signal.SIGTERM]


def test_h29_a_childs_status_is_its_own(host):
    h = host(POOL, CHILDREN)
    assert h.call("status") == [3, 3]


def test_h29_children_and_threads_have_no_blocked_signals(host):
    h = host(POOL, CHILDREN)
    for text in h.call("masks"):
        assert int(text.split("SigBlk:")[1].split()[0], 16) == 0
    for task in Path(f"/proc/{h.process.pid}/task").iterdir():
        status = (task / "status").read_text()
        assert int(status.split("SigBlk:")[1].split()[0], 16) & (1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1)) == 0


@pytest.mark.parametrize("handler", ["own_handler", "default_handler"])
def test_h36_an_apps_own_sigterm_handler_does_not_take_the_hosts(host, handler):
    h = host(POOL, CHILDREN)
    h.call(handler)
    until(lambda: any("SIGTERM" in str(line) and line.get("level") == "warning" for line in h.log), timeout=5,
          what="the log line about SIGTERM")  # fmt: skip
    assert h.stop() == 0
    assert h.find("Py_FinalizeEx returned 0")


@pytest.mark.parametrize("how", ["fork", "fork_context"])
def test_h36_fork_is_refused_with_a_reason(host, how):
    h = host(POOL, CHILDREN)
    text = h.call(how)
    assert text.startswith("Forked") and "os.fork" in text and "spawn" in text


def test_h36_spawn_works(host):
    h = host(POOL, CHILDREN)
    assert h.call("spawn", timeout=60) == [2, 4, 6]
