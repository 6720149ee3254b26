# SPDX-License-Identifier: BSD-3-Clause
"""The examples of docs/python-api.md do what it says.

A block that begins with ```python app is a module, named by its first line: it is put into a host with
the plugin stream, all its endpoints that need no arguments are called, and where a `return` ends with a
comment in Python that is what they answer. One that begins with ```python test is run by pytest beside
those. Other Python must at least be Python.
"""

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import SLOW, needs_rdma, stage

DOC = Path(__file__).resolve().parents[2] / "docs" / "python-api.md"
FENCED = re.compile(r"^```python *(\w*)\n(.*?)^```$", re.M | re.S)


def blocks(mark: str) -> dict[str, str]:
    """{file name: text} of the blocks with that mark; without a mark the name is a number."""
    found = {}
    for number, (kind, text) in enumerate(FENCED.findall(DOC.read_text())):
        if kind == mark:
            named = re.match(r"# (\w+\.py)\n", text)
            assert named or not mark, f"the first line of a `python {mark}` block names its file: {text[:60]!r}"
            found[named[1] if named else str(number)] = text
    return found


APPS, TESTS, REST = blocks("app"), blocks("test"), blocks("")


def test_there_are_examples_and_each_has_a_known_mark():
    assert APPS and TESTS
    assert len(APPS) + len(TESTS) + len(REST) == len(FENCED.findall(DOC.read_text()))


@pytest.mark.parametrize("name", APPS)
def test_an_app_runs_and_answers_as_it_says(host, name):
    tree = ast.parse(APPS[name])
    (app,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    h = host(
        f"[plugin stream]\nlibrary = stream\n[app app]\nobject = {name.removesuffix('.py')}:{app.name}\noption.paths = /\n", APPS)
    called = 0
    for method in app.body:
        marked = any(ast.unparse(mark).startswith("bulkhead.endpoint") for mark in getattr(method, "decorator_list", ()))
        if not marked or len(method.args.args) - len(method.args.defaults) > 1:
            continue
        result = h.call(method.name)
        called += 1
        last = APPS[name].splitlines()[method.end_lineno - 1]
        said = re.match(r"\s*return .*?\s{2,}# (.+)$", last)
        if said:
            assert result == ast.literal_eval(said[1]), last
    assert called and h.stop() == 0
    assert not [line for line in h.log if line.get("level") in ("warning", "error") and line.get("component") != "gil"]


def test_the_tests_pass_beside_the_apps(tmp_path):
    for name, text in (APPS | TESTS).items():
        (tmp_path / name).write_text(text)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("BULKHEAD", "PYTEST"))}
    env |= {"PYTHONPATH": str(stage() / "share/bulkhead/python"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], cwd=tmp_path, env=env,
                          capture_output=True, text=True, timeout=120 * SLOW)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_other_python_is_python():
    for number, text in REST.items():
        compile(textwrap.dedent(text), f"block {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


# ---- docs/rdma.md, docs/cuda.md

RDMA_DOC, CUDA_DOC = DOC.with_name("rdma.md"), DOC.with_name("cuda.md")
RDMA, CUDA = DOC.parents[1] / "plugins" / "rdma", DOC.parents[1] / "plugins" / "cuda"


def rows(heading: str, doc: Path = RDMA_DOC) -> list[list[str]]:
    """The cells of all tables under that heading."""
    part = doc.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| `")]


def test_rdma_manifest_keys_and_presets_are_the_plugins():
    source = (RDMA / "rdma.c").read_text().split("bh_option options[] = {")[1].split("\n};")[0]
    have = dict(re.findall(r'\.name = "(\w+)",.*?\.preset = "(.*?)"', source, re.S))
    assert {row[0].strip("`"): row[1].strip("`") for row in rows("Manifest")} == have


def test_rdma_metrics_are_the_plugins():
    source = (RDMA / "rdma.c").read_text()
    have = {name: kind.lower() for name, kind in re.findall(r'\{ "(\w+)", BH_METRIC_(\w+)', source)}
    assert have and {row[0].strip("`"): row[1] for row in rows("Watching it")} == have


def test_rdma_error_codes_are_all_told_of_and_no_others():
    said = set(re.findall(r"`((?:rdma|option)\.[a-z_]+)`", RDMA_DOC.read_text().split("\n## Errors\n")[1]))
    sources = [*RDMA.glob("*.c"), DOC.parents[1] / "python" / "bulkhead" / "rdma.py"]
    assert said == set().union(*(re.findall(r'"((?:rdma|option)\.[a-z_]+)"', path.read_text()) for path in sources))


def test_the_rdma_example_does_what_it_says(host):
    needs_rdma("software")
    text = next(text for _, text in FENCED.findall(RDMA_DOC.read_text()))
    app = f"""
import ast, bulkhead, bulkhead.rdma
class App:
    @bulkhead.endpoint
    async def example(self) -> str:
        names = {{"bulkhead": bulkhead, "buffer": bytes(4096) + b"here" * 16, "local": bytearray(64)}}
        names["send_it_by_any_means"] = lambda descriptor: names.update(descriptor=descriptor)
        await eval(compile({text!r}, "rdma.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        await names["region"].close()
        return names["local"].decode()
"""
    manifest = "[plugin rdma]\nlibrary = rdma\ntransport = software\n[app app]\nobject = rdma_doc:App\n"
    h = host(manifest, {"rdma_doc.py": app})
    assert h.call("example") == "here" * 16
    assert h.stop() == 0


def test_cuda_python_is_python():
    blocks = re.findall(r"^ *```python\n(.*?)^ *```$", CUDA_DOC.read_text(), re.M | re.S)
    assert blocks
    for number, text in enumerate(blocks):
        compile(textwrap.dedent(text), f"block {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_cuda_manifest_keys_and_presets_are_the_plugins():
    source = (CUDA / "cuda.c").read_text().split("bh_option options[] = {")[1].split("\n};")[0]
    have = dict(re.findall(r'\.name = "(\w+)",.*?\.preset = "(.*?)"', source, re.S))
    assert have and {row[0].strip("`"): row[1].strip("`") for row in rows("Manifest", CUDA_DOC)} == have


def test_cuda_metrics_are_the_plugins():
    source = (CUDA / "cuda.c").read_text()
    have = {name: kind.lower() for name, kind in re.findall(r'\{ "(\w+)", BH_METRIC_(\w+)', source)}
    assert have and {row[0].strip("`"): row[1] for row in rows("Watching it", CUDA_DOC)} == have


def test_cuda_error_codes_are_all_told_of_and_no_others():
    errors = CUDA_DOC.read_text().split("\n## Errors\n")[1].split("\n## ")[0]
    said = set(re.findall(r"`((?:cuda|option)\.[a-z_]+)`", errors))
    sources = [*CUDA.glob("*.c"), DOC.parents[1] / "python" / "bulkhead" / "cuda.py"]
    assert said == set().union(*(re.findall(r'"((?:cuda|option)\.[a-z_]+)"', path.read_text()) for path in sources))
