# SPDX-License-Identifier: BSD-3-Clause
"""Raw use of the GIL (GIL-6): code that has never heard of the host is in the books by its library's name.

The same counts are expected of every libpython, whether it routes its own calls through the interposed
names or not.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import stage, test_plugins, until

EXT = test_plugins().parents[1] / "ext" / ".libs"

RAW = f"""
    [python]
    path = @FOLDER@/apps:{EXT}
    [plugin raw]
    library = t_raw
    [plugin hold]
    library = t_hold
    workers = 1
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import importlib
        import threading
        import bulkhead

        class App:
            async def start(self, app):
                self.raw = bulkhead.pool("raw")
                self.hold = bulkhead.pool("hold")

            @bulkhead.endpoint
            async def has(self, name: str) -> bool:
                try:
                    importlib.import_module(name)
                except ImportError:
                    return False
                return True

            @bulkhead.endpoint
            async def raw_thread(self, n: int) -> None:
                await self.raw.thread(n)

            @bulkhead.endpoint
            async def raw_here(self, n: int) -> None:
                await self.raw.here(n)

            # function of module, on main, on a worker, or on a thread of Python's

            @bulkhead.endpoint
            async def on_main(self, module: str, function: str, n: int) -> None:
                getattr(importlib.import_module(module), function)(n)

            @bulkhead.endpoint
            async def on_worker(self, module: str, function: str, n: int) -> None:
                await self.hold.call(getattr(importlib.import_module(module), function), n)

            @bulkhead.endpoint
            async def on_thread(self, module: str, function: str, n: int) -> None:
                target = getattr(importlib.import_module(module), function)
                thread = threading.Thread(target=target, args=(n,))
                thread.start()
                thread.join()
    """,
    "numbers_.py": """
        import numpy

        def add(n):
            a = numpy.zeros(100_000)
            for _ in range(n):
                a += 1.0                            # numpy lets go of the GIL around its loop
    """,
}  # fmt: skip


def site(h, name):
    """A row of /v1/gil; zeroes for one that nobody has come by yet."""
    rows = [row for row in h.get("/v1/gil").json["sites"] if row["site"] == name]
    assert len(rows) <= 1, "a library has one row"
    return rows[0] if rows else {"entries": 0, "nested": 0, "unsanctioned": 0, "wait_s": 0.0, "inside_s": 0.0, "planes": {}}


def plane(row, name):
    return row["planes"].get(name, {"entries": 0, "nested": 0, "unsanctioned": 0})


class Growth:
    """What is added to a row while its block runs."""

    def __init__(self, h, name):
        self.h, self.name = h, name

    def __enter__(self):
        self.before = site(self.h, self.name)
        return self

    def __exit__(self, *exc):
        self.after = site(self.h, self.name)

    def __getitem__(self, key):
        return self.after[key] - self.before[key]

    def on(self, name, key):
        return plane(self.after, name)[key] - plane(self.before, name)[key]


@pytest.fixture
def raw(host):
    h = host(RAW, APP)
    if not h.call("has", name="rawext"):
        pytest.skip("the test's extension modules are not built for this Python")
    return h


def test_gil6_a_plugins_raw_calls_are_booked_under_its_file_and_its_threads_plane(raw):
    with Growth(raw, "raw:t_raw.so") as grown:
        raw.call("raw_thread", n=1000)
    assert grown["entries"] == 1000 and grown["nested"] == 0
    assert grown.on("none", "entries") == 1000
    with Growth(raw, "raw:t_raw.so") as grown:
        raw.call("raw_here", n=500)
    assert grown["entries"] == 500
    assert grown.on("data", "entries") == 500
    assert site(raw, "raw:t_raw.so")["inside_s"] > 0
    assert raw.get("/v1/gil").json["unsanctioned"] == 0, "no control thread was among them"


@pytest.mark.parametrize("module", ["rawext", "pybindish"])
def test_gil6_an_extensions_threads_are_booked_under_its_file(raw, module):
    if not raw.call("has", name=module):
        pytest.skip(f"{module} is not built: there is no C++ compiler")
    account = f"raw:{module}.so"
    with Growth(raw, account) as grown:
        raw.call("on_worker", module=module, function="thread_takes", n=1000)
    assert grown["entries"] == 1000
    assert grown["nested"] == 1, "the worker came back to the GIL once, inside its own scope"
    assert grown.on("none", "entries") == 1000 and grown.on("data", "nested") == 1
    assert raw.get("/v1/gil").json["unsanctioned"] == 0


@pytest.mark.parametrize("module", ["rawext", "pybindish"])
@pytest.mark.parametrize("where, label", [("on_main", "control"), ("on_worker", "data"), ("on_thread", "none")])
def test_gil6_who_lets_go_of_the_gil_is_booked_as_nested_under_its_file(raw, module, where, label):
    """GIL-1: the entry is its caller's; the library is named all the same."""
    if not raw.call("has", name=module):
        pytest.skip(f"{module} is not built: there is no C++ compiler")
    with Growth(raw, f"raw:{module}.so") as grown, Growth(raw, "python") as python:
        raw.call(where, module=module, function="let_go", n=100)
    assert grown["entries"] == 0 and grown["nested"] == 100
    assert grown.on(label, "nested") == 100
    if where == "on_thread":
        assert python["entries"] >= 100, "a thread of Python's comes back under Python's own name"
    assert raw.get("/v1/gil").json["unsanctioned"] == 0


@pytest.mark.parametrize("where", ["on_main", "on_worker", "on_thread"])
def test_gil6_numpy_is_in_the_books_by_its_name(raw, where):
    if not raw.call("has", name="numpy"):
        pytest.skip("this Python has no numpy")
    raw.call("has", name="numbers_")

    def rows():
        return [row for row in raw.get("/v1/gil").json["sites"] if row["site"].startswith("raw:_multiarray_umath")]

    before = sum(row["nested"] for row in rows())
    raw.call(where, module="numbers_", function="add", n=200)
    assert len(rows()) == 1 and rows()[0]["site"].endswith(".so")
    assert rows()[0]["nested"] - before >= 200


def test_gil6_a_plugins_raw_calls_by_names_looked_up_at_run_time_are_seen_too(host):
    h = host(
        "[plugin foreign]\nlibrary = t_foreign\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def rounds(self) -> int:
                        return await bulkhead.pool("foreign").rounds()
            """
        },
    )
    n = until(lambda: h.call("rounds"), what="a round")
    row = until(lambda: site(h, "raw:t_foreign.so") if site(h, "raw:t_foreign.so")["entries"] >= n else None)
    assert row["entries"] <= h.call("rounds") + 1, "at most the one under way is more than the plugin counted"
    assert row["nested"] == 0
    assert set(row["planes"]) == {"none"}


def plugin_row(h, label):
    return next(p for p in h.get("/v1/status").json["plugins"] if p["label"] == label)


def test_gil6_a_plugin_that_imports_the_raw_functions_is_told_of(raw):
    line = raw.wait_log("plugin uses the raw GIL functions; what they do is booked under their library", plugin="raw")
    assert line["names"] == "PyGILState_Ensure PyGILState_Release"
    assert line["site"] == "raw:t_raw.so" and line["library"].endswith("/t_raw.so")
    assert line["level"] == "info"
    assert plugin_row(raw, "raw")["raw_gil"] == ["PyGILState_Ensure", "PyGILState_Release"]
    assert plugin_row(raw, "hold")["raw_gil"] == []
    assert not raw.find("plugin uses the raw GIL functions; what they do is booked under their library", plugin="hold")


def host_libpython():
    binary = stage() / "sbin" / "bulkheadd"
    dynamic = subprocess.run(["readelf", "-dW", binary], capture_output=True, text=True, check=True).stdout
    return next(line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "NEEDED" in line and "libpython" in line)


def test_plg5_another_libpython_is_refused_before_it_is_loaded(host, tmp_path):
    """The plugin's libc.so.6 becomes a library of as many letters."""
    library = tmp_path / "t_count.so"
    data = (test_plugins() / "t_count.so").read_bytes()
    library.write_bytes(data.replace(b"\0libc.so.6\0", b"\0libpython\0"))
    library.chmod(0o755)
    os.chmod(tmp_path, 0o755)
    h = host(f"[plugin brings]\nlibrary = {library}\n", wait=None)
    assert h.wait() == 69
    line = h.wait_log("plugin was not loaded", plugin="brings")
    assert line["error"] == "plugin.libpython" and line["library"] == str(library)
    assert line["needs"] == "libpython" and line["host"] == host_libpython()
    check = subprocess.run([*h.command, "--check"], env=h.environment(), capture_output=True, text=True)
    assert check.returncode == 69 and "plugin.libpython" in check.stderr and "node.ini:" in check.stderr


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_plg5_the_hosts_own_libpython_is_worth_a_warning(host, tmp_path):
    """A plugin linked with a stand-in of the same SONAME: the loader takes the one that is there."""
    source = tmp_path / "empty.c"
    source.write_text("void Py_Stub(void);\nvoid Py_Stub(void) {}\n")
    name = host_libpython()
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", tmp_path / "libstub.so", source], check=True)
    plugin = tmp_path / "linked.c"
    plugin.write_text(LINKED)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-fvisibility=hidden", f"-I{stage() / 'include'}", "-o", tmp_path / "linked.so", plugin,
         "-Wl,--no-as-needed", tmp_path / "libstub.so"],
        check=True)  # fmt: skip
    os.chmod(tmp_path, 0o755)
    h = host(f"[plugin linked]\nlibrary = {tmp_path / 'linked.so'}\n")
    line = h.wait_log("plugins must not link libpython: the host brings Python's functions", plugin="linked")
    assert line["level"] == "warning" and line["needs"] == name
    assert Path(line["library"]) == tmp_path / "linked.so"
    assert plugin_row(h, "linked")["pool"] == "ready"


LINKED = """
    #include <bulkhead/plugin.h>

    static bh_status linked_open(struct bh_context *ctx, const struct bh_services *host, void **ret_state)
    {
            (void)ctx, (void)host;
            *ret_state = (void *)1;
            return 0;
    }

    static bh_status linked_close(void *state)
    {
            (void)state;
            return 0;
    }

    static bh_status run_nothing(void *state, struct bh_task *task, const struct bh_value *args)
    {
            (void)state, (void)task, (void)args;
            return 0;
    }

    static const struct bh_op ops[] = { { .name = "nothing", .run = run_nothing, .doc = "Nothing." } };

    BH_PLUGIN("linked", "1.0") = {
            .abi = BH_ABI,
            .size = sizeof(struct bh_plugin),
            .workers = { .min = 1, .preset = 1, .max = 1 },
            .sites = BH_NO_TABLE,
            .options = BH_NO_TABLE,
            .ops = BH_TABLE(ops),
            .open = linked_open,
            .close = linked_close,
    };
"""
