# SPDX-License-Identifier: BSD-3-Clause
"""What the package says where it is not used as meant: python -m, sub-interpreters, elements that do not fit."""

import os
import subprocess
import sys

import pytest
from conftest import SLOW, stage


def python_m(*args: str, **env: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BULKHEAD")}
    clean |= {"PYTHONPATH": str(stage() / "share/bulkhead/python"), "PYTHONDONTWRITEBYTECODE": "1"} | env
    return subprocess.run([sys.executable, "-m", "bulkhead", *args], env=clean, capture_output=True, text=True, timeout=60 * SLOW)


@pytest.mark.parametrize("argument", ([], ["-h"], ["--help"]))
def test_python_m_says_how_an_app_is_run_checked_and_tested(argument):
    done = python_m(*argument)
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("bulkheadd -c node.ini", "--check", "bulkheadctl call", "mypy --strict", "pytest", "docs/python-api.md",
                 str(stage() / "sbin/bulkheadd")):  # fmt: skip
        assert text in done.stdout


def test_python_m_refuses_what_it_does_not_know_with_what_it_does():
    done = python_m("run", "app.py")
    assert (done.returncode, done.stdout) == (64, "")
    assert "run app.py" in done.stderr and "--help, --version" in done.stderr and "bulkheadd -c" in done.stderr


def test_python_m_tells_the_hosts_version_or_why_there_is_none():
    done = python_m("--version")
    assert done.returncode == 0 and done.stdout.startswith("bulkheadd ") and "plugin ABI" in done.stdout
    done = python_m("--version", BULKHEAD="/no/such/bulkheadd")
    assert done.returncode == 0 and "/no/such/bulkheadd" in done.stdout


def test_a_sub_interpreter_is_told_that_it_cannot_have_the_package(host):
    h = host(
        "[plugin hold]\nlibrary = t_hold\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                import os
                import sys
                import bulkhead
                try:
                    import _interpreters as interpreters
                except ImportError:
                    import _xxsubinterpreters as interpreters

                SCRIPT = '''
                import sys
                sys.path[:0] = {path!r}
                try:
                    import bulkhead
                except ImportError as error:
                    told = f"{{error.name}}: {{error}}"
                else:
                    told = "imported"
                with open({file!r}, "w") as file:
                    file.write(told)
                '''

                class App:
                    @bulkhead.endpoint
                    async def told(self) -> str:
                        file = os.path.dirname(__file__) + "/told"
                        import textwrap
                        script = textwrap.dedent(SCRIPT).format(path=sys.path, file=file)
                        made = interpreters.create()
                        interpreters.run_string(made, script)
                        interpreters.destroy(made)
                        return open(file).read()

                    @bulkhead.endpoint
                    async def still_works(self) -> int:
                        return await bulkhead.pool("hold").call(len, "abc")
            """
        },
    )
    told = h.call("told")
    assert told.startswith("bulkhead: ") and "main interpreter only" in told and "sub-interpreter" in told
    assert h.call("still_works") == 3
    assert h.stop() == 0


def test_an_element_that_does_not_fit_is_named_by_its_place(host):
    h = host(
        "[plugin types]\nlibrary = t_types\n[plugin count]\nlibrary = t_count\n[plugin stream]\nlibrary = stream\n"
        "[app app]\nobject = app:App\n",
        {
            "app.py": """
                import bulkhead

                def nested(depth):
                    return [nested(depth - 1)] if depth else []

                class App:
                    @bulkhead.endpoint
                    async def faults(self) -> dict:
                        kinds, echo = bulkhead.pool("types").kinds, bulkhead.pool("count").echo_list
                        one = bulkhead.pool("stream").run(int, "1")
                        strided = memoryview(bytearray(8))[::2]
                        found = {}
                        for name, op, *args in [
                            ("flat", kinds, [1, "a", 2**70]),
                            ("deep", kinds, [1, [2, (3, "\\ud800")], 4]),
                            ("buffer", kinds, [b"a", strided]),
                            ("with a task", kinds, [one, 1, [0, 2**70]]),
                            ("with a task, flat", kinds, [one, 2**70]),
                            ("rest", echo, 1, one, "three"),
                            ("rest, first", echo, None),
                            ("too deep", kinds, nested(40)),
                            ("no list", kinds, 5),
                        ]:
                            try:
                                op(*args)
                            except bulkhead.BadArgument as error:
                                facts = error.facts
                                found[name] = [facts["parameter"], facts["given"], facts["accepted"], facts.get("reason", "")]
                        await one
                        try:
                            await kinds(bulkhead.pool("stream").run(lambda: [1, [2, 2**70]]))
                        except bulkhead.BadArgument as error:
                            found["a result"] = [error.facts["parameter"], error.facts["given"], "", ""]
                        found["well"] = await kinds([1, [2, "a"], None])
                        return found
            """
        },
    )
    found = h.call("faults")
    assert len(found.pop("well")) == 3
    places = {name: fault[:2] for name, fault in found.items()}
    deepest = places.pop("too deep")
    assert places == {
        "flat": ["values[2]", "int"],
        "deep": ["values[1][1][1]", "str"],
        "buffer": ["values[1]", "memoryview"],
        "with a task": ["values[2][1]", "int"],
        "with a task, flat": ["values[1]", "int"],
        "rest": ["value[2]", "str"],
        "rest, first": ["value[0]", "None"],
        "no list": ["values", "int"],
        "a result": ["values", "list with int at [1][1] that does not fit"],
    }
    assert deepest[0].startswith("values[0][0]") and deepest[0].endswith("[0]") and "deeper than 32" in found["too deep"][3]
    assert "2**63-1" in found["flat"][2] and "int too big" in found["flat"][3]
    assert "contiguous" in found["buffer"][2] and found["buffer"][3]
    assert found["rest"][2].startswith("int")


def test_pools_whose_workers_wait_for_each_other_go_on_after_a_timeout(host):
    h = host(
        "[plugin a]\nlibrary = stream\nworkers = 1\n[plugin b]\nlibrary = stream\nworkers = 1\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                import bulkhead

                def outer(seconds):
                    try:
                        return bulkhead.pool("b").run(inner, seconds).result()
                    except TimeoutError as error:
                        return type(error).__name__

                def inner(seconds):  # the one worker of `a` waits for this
                    return bulkhead.pool("a").run(len, "abc").result(seconds)

                class App:
                    @bulkhead.endpoint
                    async def circle(self) -> str:
                        return await bulkhead.pool("a").run(outer, 0.2)

                    @bulkhead.endpoint
                    async def argument(self) -> int:
                        a, b = bulkhead.pool("a"), bulkhead.pool("b")
                        return await a.run(abs, b.run(int, a.run(len, "abc")))
            """
        },
    )
    assert h.call("circle") == "TimeoutError"
    assert h.call("argument") == 3  # both pools work on
    assert h.stop() == 0
