# SPDX-License-Identifier: BSD-3-Clause
"""What `make install DESTDIR=` puts in place, used as its readers use it: headers, examples, README."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import stage

ROOT = Path(__file__).resolve().parents[2]


def installed():
    return sorted(str(p.relative_to(stage())) for p in stage().rglob("*") if p.is_file())


def test_what_is_installed():
    files = installed()
    for name in (
        "bin/bulkheadctl",
        "include/bulkhead/plugin.h",
        "lib/bulkhead/plugins/stream.so",
        "lib/pkgconfig/bulkhead.pc",
        "sbin/bulkheadd",
        "share/bulkhead/examples/linesearch/linesearch.py",
        "share/bulkhead/examples/plugin-template/template.c",
        "share/bulkhead/python/bulkhead/__init__.py",
        "share/bulkhead/examples/linesearch/test_linesearch.py",
        "share/bulkhead/python/_bulkhead.pyi",
        "share/bulkhead/python/bulkhead/py.typed",
        "share/bulkhead/python/bulkhead/testing.py",
        "share/doc/bulkhead/README.md",
    ):
        assert name in files, files
    assert not [name for name in files if name.endswith((".la", ".a", ".pyc"))]
    assert os.access(stage() / "sbin/bulkheadd", os.X_OK)


def test_h33_no_installed_file_knows_the_stage():
    where = str(stage().parent).encode()
    for name in installed():
        if name.endswith((".so", "bulkheadd", "bulkheadctl")):
            continue  # their debug information names the sources, which may lie beside the stage
        assert where not in (stage() / name).read_bytes(), name


def test_h33_an_outside_plugin_is_built_from_what_is_installed_and_runs(host, tmp_path):
    """The template, copied as its author would, with pkg-config alone."""
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config")
    folder = tmp_path / "template"
    shutil.copytree(stage() / "share/bulkhead/examples/plugin-template", folder)
    env = os.environ | {
        "PKG_CONFIG": f"pkg-config --define-variable=prefix={stage()}",
        "PKG_CONFIG_PATH": str(stage() / "lib/pkgconfig"),
        "CFLAGS": "-Werror",
    }
    # The staged .pc has the final prefix; a plugin author's has the true one.
    subprocess.run(["make", "-C", str(folder)], env=env, check=True, capture_output=True, text=True)
    h = host(
        "[plugin mine]\nlibrary = template\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                from array import array
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def sum(self) -> float:
                        return await bulkhead.pool("mine").sum(array("f", [1.5, 2, 4]))
            """
        },
        args=["--plugin-dir", str(folder)],
    )
    assert h.call("sum") == 7.5
    status = h.get("/v1/status").json
    assert status["plugins"][0]["path"] == str(folder / "template.so")


def test_the_linesearch_example_finds_lines(host):
    texts = Path("/usr/share/common-licenses")
    if not (texts / "GPL-3").exists():
        pytest.skip(f"no {texts}/GPL-3")
    h = host(
        f"""
        [plugin stream]
        library = stream
        workers = 2
        [app search]
        object = linesearch:Search
        option.paths = {texts}
        """,
        args=["--set", f"python.path={stage()}/share/bulkhead/examples/linesearch"],
        wait="answering",
    )
    h.wait_ready(60)
    hits = h.call("search", app="search", query="WARRANTY OF MERCHANTABILITY", k=3, timeout=60)
    assert len(hits) == 3
    for hit in hits:
        assert "merchantability" in hit["text"].lower()
        line = Path(hit["file"]).read_text(errors="replace").splitlines()[hit["line"] - 1]
        assert hit["text"].split()[0] in line
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert {s["site"] for s in h.get("/v1/gil").json["sites"]} >= {"stream.compute"}


def test_the_readmes_smallest_host_works(host):
    readme = (ROOT / "README.md").read_text()
    (manifest,) = re.findall(r"```ini\n(.*?)```", readme, re.S)
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    h = host(manifest.replace("path = .", "path = @FOLDER@/apps"), {"hello.py": program})
    # README: bulkheadctl call hello count '{"limit": 20000}'
    done = h.ctl("call", "hello", "count", '{"limit": 2000}')
    assert done.returncode == 0 and done.stdout.strip() == "303"
