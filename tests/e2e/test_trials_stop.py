# SPDX-License-Identifier: BSD-3-Clause
"""H04: the stop is asked for from places that the stop itself needs (SUP-3)."""

import pytest
from conftest import Host, until

MANIFEST = """
    [plugin count]
    library = t_count
    workers = 2
    [plugin hold]
    library = t_hold
    workers = 2
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import asyncio
        import os
        import signal
        import threading
        import bulkhead

        def ask():
            os.kill(os.getpid(), signal.SIGTERM)

        class App:
            async def start(self, app):
                self.kept = []
                self.twice = True       # the second time makes every drain deadline now

            def keep(self, coroutine):
                self.kept.append(asyncio.ensure_future(coroutine))

            async def then_ask(self, future):
                await future
                ask()

            @bulkhead.endpoint
            async def in_a_completion(self) -> None:
                self.keep(self.then_ask(bulkhead.pool("count").pend(50)))

            @bulkhead.endpoint
            async def in_a_task_whose_pool_is_full(self) -> None:
                # two more wait behind the two that ask, and need the GIL to finish
                self.kept += [bulkhead.pool("hold").call(ask) for _ in range(4)]

            @bulkhead.endpoint
            async def in_a_thread_that_waits_for_a_task(self) -> None:
                def wait():
                    task = bulkhead.pool("count").sleep(300)
                    ask()
                    task.result(20)
                    print("the task is done", flush=True)
                self.twice = False
                threading.Thread(target=wait).start()

            @bulkhead.endpoint
            async def under_the_gil(self) -> None:
                ask()
                sum(range(3_000_000))       # main keeps the GIL for a while after it has asked

            async def stop(self):
                assert await bulkhead.pool("count").add(40, 2) == 42    # the pools are still there
                if self.twice:
                    ask()
                print("stop ran", flush=True)
    """
}


@pytest.mark.parametrize(
    "where", ["in_a_completion", "in_a_task_whose_pool_is_full", "in_a_thread_that_waits_for_a_task", "under_the_gil"])
def test_h04_whoever_asks_does_not_wait_for_himself(host, where):
    h: Host = host(MANIFEST, APP)
    try:
        h.call(where)
    except Exception as error:  # the answer may lose the race with the end
        print(error)
    assert h.wait() == 0
    assert "stop ran" in h.text
    assert h.text.count("msg=\"stopping\"") == 1, "asked more than once, stopped once"
    closed = [line for line in h.log if line.get("msg") == "pool closed"]
    assert [line["pool"] for line in closed] == ["hold", "count"], "each exit state is published once, in reverse order"
    for line in closed:
        books = {k: int(v) for k, v in line.items() if v.isdigit()}
        assert line["state"] == "clean"
        assert books["submitted"] == sum(books[k] for k in ("done", "failed", "cancelled", "deadline", "abandoned"))
        assert books["failed"] == books["abandoned"] == 0
    if where == "in_a_task_whose_pool_is_full":
        assert closed[0]["submitted"] == "4"
    if where == "in_a_thread_that_waits_for_a_task":
        assert "the task is done" in h.text
    assert h.find("Py_FinalizeEx returned 0")


def test_h04_a_pool_that_is_down_is_not_stopped_again(host):
    """A pool that its own plugin has ended before: the stop finds it ended, and its end is said once."""
    h = host(
        MANIFEST,
        {
            "app.py": """
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def break_it(self) -> None:
                        await bulkhead.pool("count").break_pool()
            """
        },
    )
    h.call("break_it")
    until(lambda: h.find("pool closed", pool="count"), what="the pool's end")
    assert h.stop() == 0
    assert len([line for line in h.log if line.get("msg") == "pool closed" and line["pool"] == "count"]) == 1
    assert h.find("pool closed", pool="count", state="failed") and h.find("pool closed", pool="hold", state="clean")
