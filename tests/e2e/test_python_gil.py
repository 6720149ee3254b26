# SPDX-License-Identifier: BSD-3-Clause
"""What apps see of the GIL: its books, what the host tells them, and event loops that are not the host's."""

import os
import signal

import pytest
from conftest import CallError, until

# ---- the fitness test ---------------------------------------------------------------------------

EVERY_PLUGIN = """
    [plugin stream]
    library = stream
    [plugin count]
    library = t_count
    workers = 2
    [plugin hold]
    library = t_hold
    [plugin types]
    library = t_types
    [plugin foreign]
    library = t_foreign
    adopt = yes
    [app app]
    object = app:App
"""

FITNESS = {
    "app.py": """
        import array
        import asyncio
        import threading
        import bulkhead

        try:
            import numpy
        except ImportError:
            numpy = None

        def spin(n):
            total = sum(range(n))
            if numpy is not None:
                total += int(numpy.dot(numpy.ones((n % 64 + 1, 64)), numpy.ones(64)).sum())
            return total

        class App:
            async def start(self, app):
                self.pools = {label: bulkhead.pool(label) for label in ("stream", "count", "hold", "types", "foreign")}

            @bulkhead.endpoint
            async def work(self, rounds: int) -> int:
                stream, count, hold, types, foreign = self.pools.values()
                before = await foreign.rounds()
                for n in range(rounds):
                    on_main = spin(1000 + n)
                    x, y = array.array("f", [1, 2, 3]), array.array("f", [4, 5, 6])
                    marker = object()
                    done = await asyncio.gather(
                        stream.run(spin, 1000 + n), hold.call(spin, 1000 + n), hold.hold(1), stream.dot(x, y),
                        stream.scale(y, 2.0), count.echo_object(marker), count.add(n, 1), count.pend(1),
                        types.kinds([None, b"b", x, object()]), asyncio.to_thread(spin, 1000 + n),
                        count.note("n", lane="l", wait=True))
                    assert done[0] == done[1] == done[9] == on_main and done[5] is marker and done[6] == n + 1, done
                    for failing in (hold.call(lambda: 1 / 0), count.fail()):
                        try:
                            await failing
                        except (ZeroDivisionError, bulkhead.PluginError):
                            pass
                    thread = threading.Thread(target=lambda: count.echo_bytes(b"x", wait=True).result(30))
                    thread.start()
                    while thread.is_alive():
                        await asyncio.sleep(0.001)
                while await foreign.rounds() == before:     # raw calls from a data thread
                    await asyncio.sleep(0.001)
                return bulkhead.gil.unsanctioned()

            @bulkhead.endpoint
            async def books(self) -> dict:
                stats = bulkhead.gil.stats()
                return {"unsanctioned": [bulkhead.gil.unsanctioned(), stats.unsanctioned],
                        "sites": {name: [site.entries, site.unsanctioned] for name, site in stats.sites.items()},
                        "holder": stats.holder.thread, "gate": stats.gate}

            @bulkhead.endpoint
            async def force(self) -> int:
                bulkhead.gil.force_unsanctioned()
                return bulkhead.gil.unsanctioned()

            @bulkhead.endpoint
            async def reset(self) -> int:
                bulkhead.gil.reset_unsanctioned()
                return bulkhead.gil.unsanctioned()
    """
}
MESSAGE = "a control thread takes the GIL where it may not"


def test_gil4_a_run_over_every_plugin_at_hand_has_no_unsanctioned_entry_and_a_forced_one_is_seen(host):
    """The fitness test, read in the process that did the work."""
    h = host(EVERY_PLUGIN, FITNESS, args=["--set", "gil.unsanctioned=log"])
    assert h.call("work", 20, timeout=60) == 0
    books = h.call("books")
    assert books["unsanctioned"] == [0, 0] and books["gate"] == "open" and books["holder"] == "bulkheadd"
    assert h.get("/v1/gil").json["unsanctioned"] == 0
    assert all(unsanctioned == 0 for _, unsanctioned in books["sites"].values()), books
    for used in ("host.dispatch", "host.drain", "hold.call", "hold.hold", "stream.compute", "python"):
        assert books["sites"][used][0] > 0, f"{used} was used: {books['sites']}"
    assert not h.find(MESSAGE)

    assert h.call("force") == 1
    assert h.get("/v1/gil").json["unsanctioned"] == 1
    line = h.wait_log(MESSAGE, thread="bulkheadd", plane="control")
    assert line["site"].startswith("host.") and line["policy"] == "data-only" and line["caller"], line
    assert h.call("work", 2) == 1, "and main goes on as before"

    assert h.call("reset") == 0
    assert h.get("/v1/gil").json["unsanctioned"] == 0 and h.call("books")["unsanctioned"] == [0, 0]
    assert h.stop() == 0


def test_gil4_a_forced_entry_does_not_abort_whatever_the_manifest_says(host):
    h = host("[gil]\nunsanctioned = abort\n" + EVERY_PLUGIN, FITNESS)
    assert h.call("work", 2, timeout=60) == 0
    assert h.call("force") == 1
    h.wait_log(MESSAGE, thread="bulkheadd")
    assert h.call("work", 2, timeout=60) == 1
    assert h.stop() == 0


# ---- what the host tells ------------------------------------------------------------------------


def test_an_app_is_told_of_a_pool_that_failed(host):
    h = host(
        "[plugin count]\nlibrary = t_count\n[app app]\nobject = app:App\n[app slow]\nobject = app:Slow\n",
        {
            "app.py": """
                import asyncio
                import bulkhead

                class App:
                    told = []

                    @bulkhead.endpoint
                    async def spoil(self) -> None:
                        bulkhead.pool("count").break_pool()

                    @bulkhead.endpoint
                    async def seen(self) -> list:
                        return self.told

                    async def supervise(self, event):
                        assert isinstance(event, bulkhead.Event)
                        self.told.append([event.kind, event.facts])

                class Slow:
                    async def supervise(self, event):
                        await asyncio.sleep(1e6)
            """
        },
    )
    h.call("spoil")
    until(lambda: h.call("seen"), what="the event")
    (kind, facts), *more = h.call("seen")
    assert not more and kind == "pool-failed", (kind, more)
    assert facts["pool"] == "count" and facts["code"] == "t_count.broken" and facts["facts"], facts
    assert h.stop() == 0, "the other app's supervise() is cancelled"


# ---- another event loop -------------------------------------------------------------------------

LOOP = {
    "myloop.py": """
        import asyncio
        import selectors

        class Loop(asyncio.SelectorEventLoop):
            def run_forever(self):          # a frame of this file is always on main's stack
                super().run_forever()

        class NoReaders(asyncio.SelectorEventLoop):
            def add_reader(self, *args):
                raise NotImplementedError("files are not watched here")

        def make():
            return Loop(selectors.SelectSelector())

        def give_none():
            return None

        def give_closed():
            loop = make()
            loop.close()
            return loop

        def fail():
            raise LookupError("no loop today")

        def leave():
            raise SystemExit(3)
    """,
    "app.py": """
        import asyncio
        import os
        import signal
        import time
        import bulkhead

        class App:
            async def start(self, app):
                self.folder = app.options["folder"]
                self.count = bulkhead.pool("count")
                self.hold = bulkhead.pool("hold")
                self.left = asyncio.create_task(self.wait_for_ever())

            async def wait_for_ever(self):
                try:
                    await self.count.sleep(600_000)
                except bulkhead.Cancelled as error:
                    time.sleep(0.5)             # main is asked to leave the loop meanwhile
                    for _ in range(20):         # what follows on the outcome has its turns too
                        await asyncio.sleep(0)
                    with open(self.folder + "/left", "w") as file:
                        file.write(error.code)

            @bulkhead.endpoint
            async def loop(self) -> list:
                loop = asyncio.get_running_loop()
                return [type(loop).__name__, type(loop._selector).__name__]

            @bulkhead.endpoint
            async def work(self, n: int) -> int:
                results = await asyncio.gather(*(self.count.add(i, i, wait=True) for i in range(n)))
                assert results == [2 * i for i in range(n)]
                return await self.hold.call(sum, results)

            @bulkhead.endpoint
            async def coarse(self) -> list:
                return [thread.coarse for thread in bulkhead.gil.stats().threads if thread.tid == os.getpid()]

            @bulkhead.endpoint
            async def take_sigterm(self) -> None:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print, "the app has it")

            @bulkhead.endpoint
            async def block(self) -> None:
                time.sleep(1e6)
    """,
}
LOOP_MANIFEST = """
    [python]
    event_loop = {}
    [plugin count]
    library = t_count
    workers = 2
    drain_timeout = 200ms
    [plugin hold]
    library = t_hold
    [app app]
    object = app:App
    option.folder = @FOLDER@
"""


def loop_host(host, spec="myloop:make", **more):
    return host(LOOP_MANIFEST.format(spec), LOOP, **more)


def test_another_event_loop_serves_and_stops_as_the_hosts_own(host):
    h = loop_host(host)
    assert h.call("loop") == ["Loop", "SelectSelector"]
    assert h.call("work", 500) == 2 * sum(range(500))
    assert h.call("work", 500) == 2 * sum(range(500))
    assert h.stop() == 0
    assert (h.folder / "left").read_text(), "who awaited an outcome got to act on it before the loop was left"
    assert not h.find("an app stopped the host's event loop; it goes on")


def test_gil1_main_on_another_event_loop_is_coarse_and_says_so(host):
    h = loop_host(host)
    h.call("work", 10)
    gil = h.get("/v1/gil").json
    (main,) = (row for row in gil["threads"] if row["tid"] == h.process.pid)
    assert main["state"] == "inside" and main["site"] == "host.dispatch"
    assert main["coarse"] is True and h.call("coarse") == [True]
    own = host("[plugin count]\nlibrary = t_count\ndrain_timeout = 200ms\n[plugin hold]\nlibrary = t_hold\n"
               "[app app]\nobject = app:App\noption.folder = @FOLDER@\n", LOOP)  # fmt: skip
    assert own.call("coarse") == [False]


def test_cp2_interrupts_break_what_keeps_another_event_loop_busy_and_not_the_loop(host):
    h = loop_host(host, args=["--set", "host.app_stop_timeout=1s"])
    for _ in range(50):
        os.kill(h.process.pid, signal.SIGRTMIN + 1)
    assert h.call("work", 10) == 2 * sum(range(10))
    assert not h.find("raised on the main thread; the event loop goes on"), "an idle loop is not harmed"
    with pytest.raises((CallError, TimeoutError, OSError)):
        h.call("block", timeout=1)
    assert h.stop(timeout=30) == 0
    assert h.find("endpoint app/block raised")


def test_h36_sigterm_stops_the_host_also_when_an_app_took_it_on_another_event_loop(host):
    h = loop_host(host)
    h.call("take_sigterm")
    h.wait_log("somebody changed a signal that the host owns; restored", signal="SIGTERM")
    assert h.stop() == 0


@pytest.mark.parametrize("spec, kind, message", [
    ("no_such_module:make", "ModuleNotFoundError", "no_such_module"),
    ("myloop:no_such", "AttributeError", "no_such"),
    ("myloop:fail", "LookupError", "no loop today"),
    ("myloop:leave", "SystemExit", "3"),
    ("myloop:give_none", "TypeError", "None"),
    ("myloop:give_closed", "ValueError", "closed"),
    ("myloop:NoReaders", "NotImplementedError", "files are not watched here"),
])
def test_an_event_loop_that_cannot_be_had_ends_the_start_with_78(host, spec, kind, message):
    h = loop_host(host, spec, wait=None)
    assert h.wait() == 78
    line = h.find("python did not start", error="python.event_loop")
    assert line and line["section"] == "python" and line["key"] == "event_loop" and line["value"] == spec, h.text
    assert line["type"] == kind and message in line["message"], line
    assert "asyncio.AbstractEventLoop" in line["accepted"]
    assert ("myloop.py:" in line.get("at", "")) == (spec.rpartition(":")[2] in ("fail", "leave", "NoReaders")), line


@pytest.mark.parametrize("spec", ["myloop", ":make", "myloop:", "my loop:make"])
def test_man1_an_event_loop_that_names_no_callable_is_refused_by_the_manifest(host, spec):
    h = loop_host(host, spec, wait=None)
    assert h.wait() == 78
    assert "event_loop" in h.text and "uvloop:new_event_loop" in h.text
