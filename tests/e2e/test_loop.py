# SPDX-License-Identifier: BSD-3-Clause
"""What apps do to main's event loop, on purpose or not, and what the host makes of it."""

import signal

from conftest import until

POOL = """
    [plugin count]
    library = t_count
    [app app]
    object = app:App
"""


def test_cp2_an_app_that_ignores_its_cancellation_is_no_stuck_main(host):
    """The other app, which is behind it and keeps main busy, is still interrupted (H35)."""
    h = host(
        """
        [host]
        shutdown_timeout = 20s
        app_stop_timeout = 1s
        [plugin count]
        library = t_count
        [app busy]
        object = app:Busy
        [app deaf]
        object = app:Deaf
        """,
        {
            "app.py": """
                import asyncio

                class Busy:
                    async def stop(self):
                        while True:
                            pass

                class Deaf:
                    async def stop(self):
                        while True:
                            try:
                                await asyncio.sleep(3600)
                            except asyncio.CancelledError:
                                pass
            """
        },
    )
    assert h.stop(timeout=30) == 0
    assert h.find("it ignores its cancellation: going on without it", waiting_for="deaf")
    assert h.find("main does not answer: interrupting it", waiting_for="busy")
    assert not h.find("main is stuck: going on without it", phase="app-stop")
    assert h.find("pool closed", pool="count", state="clean")


def test_plg4_a_loop_that_cannot_run_any_more_stops_the_host_in_order(host):
    h = host(
        POOL,
        {
            "app.py": """
                import asyncio
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def spoil(self) -> None:
                        loop = asyncio.get_running_loop()
                        loop.call_later(0.2, loop._selector._selector.close)
            """
        },
    )
    h.call("spoil")
    assert h.wait(20) == 70
    assert h.find("main's event loop has failed")
    assert h.find("pool closed", pool="count", state="clean")
    assert h.find("Py_FinalizeEx returned 0")
    assert len(h.log) < 2000, "it was not tried again and again without an end"
    assert not h.socket.exists()


def test_h36_an_apps_asyncio_handler_does_not_take_sigterm_from_the_host(host):
    h = host(
        POOL,
        {
            "app.py": """
                import asyncio
                import signal

                class App:
                    async def start(self, app):
                        loop = asyncio.get_running_loop()
                        loop.add_signal_handler(signal.SIGTERM, print, "the app's handler ran")
                        loop.add_signal_handler(signal.SIGUSR2, print, "the app's own signal")
            """
        },
    )
    h.send(signal.SIGUSR2)
    h.wait_log("the app's own signal")
    assert h.stop() == 0  # at once: nothing had to be put back first
    assert not h.find("the app's handler ran")


def test_man3_text_behind_a_nul_is_not_dropped(host):
    h = host(
        POOL,
        {
            "app.py": """
                import bulkhead

                class App:
                    async def start(self, app):
                        print("before\\0after", flush=True)

                    @bulkhead.endpoint
                    async def fail(self) -> None:
                        raise RuntimeError("left\\0right")
            """
        },
    )
    until(lambda: "before\\\\0after" in h.text or "before\\0after" in h.text, what="the whole line")
    reply = h.post("/v1/apps/app/fail", {})
    assert reply.status == 500 and "right" in reply.json["error"]["message"]
    shown = h.ctl("call", "app", "fail")
    assert shown.returncode == 1 and "right" in shown.stderr
    assert h.stop() == 0


def test_h32_a_module_of_an_apps_does_not_become_the_hosts(host):
    h = host(
        POOL,
        {
            "json.py": "raise ImportError('poisoned')\n",
            "app.py": """
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def hello(self) -> str:
                        return "hello"
            """,
        },
    )
    assert h.call("hello") == "hello"
    assert h.stop() == 0


def test_a_task_that_waits_for_room_is_cancelled_from_a_worker(host):
    """On the loop's own thread: asyncio's debug mode refuses anything else."""
    h = host(
        """
        [plugin hold]
        library = t_hold
        [plugin count]
        library = t_count
        workers = 1
        queue = 1
        [app app]
        object = app:App
        """,
        {
            "app.py": """
                import asyncio
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def run(self) -> str:
                        asyncio.get_running_loop().set_debug(True)
                        count = bulkhead.pool("count")
                        held = [count.sleep(60000)]
                        while len(held) < 2:                 # one that runs, one that takes the only place
                            try:
                                held.append(count.sleep(60000))
                            except bulkhead.Overloaded:
                                await asyncio.sleep(0.001)
                        waiting = count.nop(wait=True)
                        waiter = asyncio.ensure_future(self.outcome(waiting))
                        await asyncio.sleep(0)
                        assert await bulkhead.pool("hold").call(waiting.cancel)
                        end = await asyncio.wait_for(waiter, 20)
                        for task in held:
                            task.cancel()
                        return end

                    async def outcome(self, task):
                        try:
                            await task
                        except bulkhead.Cancelled as error:
                            return error.code
            """
        },
    )
    assert h.call("run", timeout=40) == "task.cancelled"
    assert "Non-thread-safe" not in h.text
    assert h.stop() == 0
