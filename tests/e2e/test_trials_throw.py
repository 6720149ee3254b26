# SPDX-License-Identifier: BSD-3-Clause
"""C++ exceptions out of a plugin's callbacks: each fails what it belongs to, none ends the process (SUP-5)."""

import pytest
from conftest import test_plugins, until

pytestmark = pytest.mark.skipif(
    not (test_plugins() / "bad_throw.so").exists(), reason="the build had no C++ compiler")  # fmt: skip

MANIFEST = """
    [plugin first]
    library = t_count
    [plugin bad]
    library = bad_throw
    where = {where}
    drain_timeout = 300ms
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import bulkhead

        class App:
            async def start(self, app):
                self.kept = []

            @bulkhead.endpoint
            async def op(self, name: str):
                try:
                    return await getattr(bulkhead.pool("bad"), name)()
                except bulkhead.PluginError as error:
                    return {"code": error.code, "facts": error.facts}

            @bulkhead.endpoint
            async def leave(self, name: str) -> None:
                self.kept.append(getattr(bulkhead.pool("bad"), name)())

            @bulkhead.endpoint
            async def add(self) -> int:
                return await bulkhead.pool("first").add(40, 2)
    """
}


def fails(h, op):
    """The error with which the op's task failed."""
    error = h.call("op", op)
    assert isinstance(error, dict), f"{op} has not failed: {error}"
    return error


@pytest.mark.parametrize(
    "op, code, facts",
    [
        ("error", "plugin.exception", {"exception": "std::out_of_range", "what": "index 7 of 3"}),
        ("number", "plugin.exception", {"exception": "int"}),
        ("fail_and_error", "bad_throw.device",
         {"device": "3", "exception": "std::runtime_error", "what": "and then this"}),
        ("in_gil", "plugin.exception", {"what": "thrown with the GIL held"}),
    ],
)  # fmt: skip
def test_sup5_an_op_that_throws_fails_its_task_and_nothing_else(host, op, code, facts):
    h = host(MANIFEST.format(where="none"), APP)
    error = fails(h, op)
    assert error["code"] == code
    told = {key: str(value) for key, value in error["facts"].items()}
    assert facts.items() <= told.items(), error
    assert told["op"] == op
    assert h.pool("bad")["state"] == "ready"
    assert h.call("op", "nop") is None, "the worker goes on"
    assert h.pool("bad")["failed"] == 1
    assert h.stop() == 0


def test_sup5_what_lies_between_is_unwound(host):
    """The destructors of the op's frames run; forty times, so that both workers have thrown."""
    h = host(MANIFEST.format(where="none"), APP)
    for _ in range(20):
        fails(h, "error")
        fails(h, "number")
    assert h.call("op", "unwound") == 40


def test_sup5_an_exception_gives_the_gil_back_on_its_way(host):
    """Thrown inside run_gil(): past the host's scope into the plugin, which catches it there, or not."""
    h = host(MANIFEST.format(where="none"), APP)
    fails(h, "in_gil")
    assert h.call("op", "in_gil_caught") is None
    site = next(s for s in h.get("/v1/gil").json["sites"] if s["site"] == "bad.inside")
    assert site["entries"] == 2
    assert h.call("add") == 42, "main has the GIL"
    assert h.stop() == 0


@pytest.mark.parametrize("op", ["post", "post_inside"])
def test_gil7_posted_work_that_throws_is_logged_and_the_next_one_runs(host, op):
    """On the courier, and inline below post(): nobody is there to catch it."""
    h = host(MANIFEST.format(where="none"), APP)
    for _ in range(2):
        assert h.call("op", op) is None

    def thrown():
        return [line for line in h.log if line.get("msg") == "posted work threw a C++ exception"]

    until(lambda: len(thrown()) == 2, what="both exceptions")
    assert thrown()[0]["site"] == "bad.inside" and thrown()[0]["type"] == "std::runtime_error"
    assert thrown()[0]["what"] == "thrown with the GIL held"
    assert h.call("add") == 42, "main has the GIL"
    assert h.stop() == 0


def test_a_release_of_a_slot_that_throws_is_logged_and_the_drop_goes_on(host):
    h = host(MANIFEST.format(where="none"), APP)
    assert h.call("op", "slot") is None
    told = h.wait_log("release of a buffer's slot threw a C++ exception", plugin="bad")
    assert told["type"] == "std::runtime_error" and told["what"] == "thrown by release"
    assert h.call("add") == 42
    assert h.stop() == 0
    assert h.find("plugin has left slots on buffers") is None


def test_sup5_forced_unwinding_is_no_exception(host):
    """pthread_exit in a C++ op: the boundary lets it pass, and the pool knows that a worker has gone."""
    h = host(MANIFEST.format(where="none"), APP)
    error = fails(h, "vanish")
    assert error["code"] == "pool.thread-lost" and error["facts"]["op"] == "vanish"
    until(lambda: h.pool("bad")["state"] == "failed", what="the pool's end")
    assert h.call("add") == 42
    assert h.stop() == 0
    assert h.find("pool ended with a cause", error="pool.thread-lost")


@pytest.mark.parametrize(
    "where, exception, what",
    [("open", "std::bad_alloc", "std::bad_alloc"), ("worker_start", "std::runtime_error", "thrown by worker_start")],
)
def test_sup5_a_start_that_throws_is_a_failed_build(host, where, exception, what):
    h = host(MANIFEST.format(where=where), APP, wait=None)
    assert h.wait() == 69
    cause = h.find("plugin did not open", plugin="bad")
    assert cause["error"] == "plugin.exception" and cause["step"] == where
    assert cause["exception"] == exception and cause["what"] == what
    assert h.find("pool closed", pool="first", state="clean")


@pytest.mark.parametrize("where", ["worker_stop", "close"])
def test_sup5_an_end_that_throws_is_the_pools_cause(host, where):
    h = host(MANIFEST.format(where=where), APP)
    assert h.stop() == 0
    cause = h.find("pool ended with a cause", pool="bad")
    assert cause["error"] == "plugin.exception" and cause["step"] == where and cause["what"] == f"thrown by {where}"
    assert h.find("pool closed", pool="bad", state="failed")
    assert h.find("pool closed", pool="first", state="clean")
    assert h.find("Py_FinalizeEx returned 0")


def test_sup5_a_progress_thread_that_throws_fails_its_pool(host):
    h = host(MANIFEST.format(where="progress"), APP)
    h.call("leave", "nop")  # from now on it may throw
    cause = h.wait_log("pool failed", pool="bad")
    assert cause["error"] == "plugin.exception" and cause["step"] == "progress" and cause["plugin"] == "bad"
    until(lambda: h.pool("bad")["state"] == "failed", what="the pool's end")
    assert h.get("/readyz").status == 503
    assert h.call("add") == 42
    assert h.stop() == 0


def test_sup5_a_cancel_that_throws_fails_its_pool(host):
    h = host(MANIFEST.format(where="cancel"), APP)
    h.call("leave", "pend")
    until(lambda: h.pool("bad")["pending"] == 1, what="a pending task")
    assert h.stop() == 75, "nobody completes the task: abandoned"
    cause = h.find("pool ended with a cause", pool="bad")
    assert cause["error"] == "plugin.exception" and cause["step"] == "cancel"
    assert h.find("pool closed", pool="first", state="clean")


def test_h19_a_thread_local_object_is_destroyed_while_its_library_is_there(host):
    """(b): on each worker, after worker_stop and before close."""
    h = host(MANIFEST.format(where="none"), APP)
    assert h.stop() == 0
    log = h.log
    destroyed = [i for i, line in enumerate(log) if line.get("msg") == "thread_local destroyed"]
    closed = next(i for i, line in enumerate(log) if line.get("msg") == "pool closed" and line["pool"] == "bad")
    assert len(destroyed) == 2 and destroyed[-1] < closed
