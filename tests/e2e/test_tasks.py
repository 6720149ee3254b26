# SPDX-License-Identifier: BSD-3-Clause
"""Tasks as an app's author meets them: with asyncio, from threads, how they end, and the first mistakes."""

import re

import pytest
from conftest import SLOW, CallError

POOLS = """
    [plugin hold]
    library = t_hold
    workers = 2
    queue = 64
    [app app]
    object = app:App
"""

HEAD = """
    import asyncio
    import bulkhead
    import gc
    import threading
    import time
    import traceback

    def fail(text="on the worker"):
        raise ZeroDivisionError(text)

    class App:
        async def start(self):
            self.hold = bulkhead.pool("hold")
            self.gate = threading.Event()

        def blocked(self):  # a task that runs until the gate opens
            self.gate.clear()
            return self.hold.call(self.gate.wait, 30)

        async def running(self):
            task = self.blocked()
            await self.hold.call(int)  # the other worker: by then the first has been taken
            return task
"""


def app(body: str) -> dict[str, str]:
    return {"app.py": HEAD + body}


ASYNCIO = """
        @bulkhead.endpoint
        async def gather(self) -> list:
            tasks = [self.hold.call(pow, 2, n) for n in range(5)]
            results = await asyncio.gather(*tasks, self.hold.call(fail), return_exceptions=True)
            return [repr(r) for r in results]

        @bulkhead.endpoint
        async def wait(self) -> list:
            slow, quick = self.blocked(), self.hold.call(pow, 2, 3)
            done, pending = await asyncio.wait([slow, quick], return_when=asyncio.FIRST_COMPLETED)
            seen = [done == {quick}, pending == {slow}]
            self.gate.set()
            done, pending = await asyncio.wait([slow, quick], timeout=30)
            return seen + [len(done), len(pending)]

        @bulkhead.endpoint
        async def wait_exception(self) -> list:
            slow, bad = self.blocked(), self.hold.call(fail)
            done, pending = await asyncio.wait([slow, bad], return_when=asyncio.FIRST_EXCEPTION)
            self.gate.set()
            return [done == {bad}, pending == {slow}, await slow]

        @bulkhead.endpoint
        async def as_completed(self) -> list:
            return sorted([await nth for nth in asyncio.as_completed([self.hold.call(pow, 2, n) for n in range(4)])])

        @bulkhead.endpoint
        async def group(self) -> list:
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(self.hold.call(pow, 2, n).as_coroutine()) for n in range(4)]
            return [task.result() for task in made]

        @bulkhead.endpoint
        async def failing_group(self) -> list:
            slow = self.hold.call(time.sleep, 0.2)
            caught = []
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(slow.as_coroutine())
                    await asyncio.sleep(0)  # it has begun to await
                    group.create_task(self.hold.call(fail).as_coroutine())
            except* ZeroDivisionError as errors:
                caught = [str(error) for error in errors.exceptions]
            return caught

        @bulkhead.endpoint
        async def wait_for(self) -> list:
            lane = self.hold.lane("x")
            first = lane.call(self.gate.wait, 30)
            queued = lane.call(int)
            try:
                await asyncio.wait_for(queued, 0.01)
            except asyncio.TimeoutError:
                seen = [queued.outcome, queued.cancelled(), type(queued.exception()).__name__]
            self.gate.set()
            return seen + [await asyncio.wait_for(first, 30)]

        @bulkhead.endpoint
        async def shield(self) -> list:
            lane = self.hold.lane("x")
            first = lane.call(self.gate.wait, 30)
            queued = lane.call(int)
            try:
                await asyncio.wait_for(asyncio.shield(queued), 0.01)
            except asyncio.TimeoutError:
                seen = [queued.outcome, queued.cancelled()]
            self.gate.set()
            return seen + [await queued, await first]

        @bulkhead.endpoint
        async def several(self) -> list:
            lane = self.hold.lane("x")
            first = lane.call(self.gate.wait, 30)
            queued = lane.call(int)
            awaiting = [asyncio.ensure_future(queued) for _ in range(3)]
            await asyncio.sleep(0)
            awaiting[0].cancel()
            ends = await asyncio.gather(*awaiting, return_exceptions=True)
            self.gate.set()
            await first
            return [type(end).__name__ for end in ends]
"""


@pytest.mark.parametrize("name, expected", [
    ("gather", ["1", "2", "4", "8", "16", "ZeroDivisionError('on the worker')"]),
    ("wait", [True, True, 2, 0]),
    ("wait_exception", [True, True, True]),
    ("as_completed", [1, 2, 4, 8]),
    ("group", [1, 2, 4, 8]),
    ("failing_group", ["on the worker"]),
    ("wait_for", ["cancelled", True, "Cancelled", True]),
    ("shield", [None, False, 0, True]),
    ("several", ["CancelledError", "Cancelled", "Cancelled"]),
])  # fmt: skip
def test_tasks_work_with_asyncios(host, name, expected):
    h = host(POOLS, app(ASYNCIO))
    assert h.call(name) == expected


CALLBACKS = """
        @bulkhead.endpoint
        async def order(self) -> list:
            called = []
            task = await self.running()
            for name in "abc":
                task.add_done_callback(lambda t, name=name: called.append([name, t is task, t.done()]))
            gone = lambda t: called.append("removed")
            task.add_done_callback(gone)
            task.add_done_callback(gone)
            removed = task.remove_done_callback(gone)
            self.gate.set()
            await task
            await asyncio.sleep(0)
            late = []
            task.add_done_callback(late.append)  # ended already: soon, not at once
            called.append(len(late))
            await asyncio.sleep(0)
            return called + [late == [task], removed, task.remove_done_callback(print)]

        @bulkhead.endpoint
        async def of_a_thread(self) -> list:
            threads = []
            task = await self.running()
            await asyncio.to_thread(task.add_done_callback, lambda t: threads.append(threading.current_thread()))
            self.gate.set()
            await task
            await asyncio.sleep(0)
            return [thread is threading.main_thread() for thread in threads]

        @bulkhead.endpoint
        async def of_another_loop(self) -> bool:
            def other():
                async def run():
                    ended, seen = asyncio.Event(), []
                    task = self.hold.call(int)
                    task.add_done_callback(lambda t: (seen.append(threading.current_thread()), ended.set()))
                    await asyncio.wait_for(ended.wait(), 30)
                    return seen == [threading.current_thread()] and await task == 0
                return asyncio.run(run())
            return await asyncio.to_thread(other)

        @bulkhead.endpoint
        async def context(self) -> list:
            import contextvars
            var = contextvars.ContextVar("var", default="unset")
            seen = []
            task = await self.running()
            var.set("here")
            task.add_done_callback(lambda t: seen.append(var.get()))
            task.add_done_callback(lambda t: seen.append(var.get()), context=contextvars.Context())
            var.set("later")
            self.gate.set()
            await task
            await asyncio.sleep(0)
            return seen
"""


def test_callbacks_are_called_on_the_loop_of_who_asked_in_order_and_in_its_context(host):
    h = host(POOLS, app(CALLBACKS))
    assert h.call("order") == [["a", True, True], ["b", True, True], ["c", True, True], 0, True, 2, 0]
    assert h.call("of_a_thread") == [True]
    assert h.call("of_another_loop") is True
    assert h.call("context") == ["here", "unset"]


THREADS = """
        @bulkhead.endpoint
        async def ask(self) -> list:
            def thread():
                bad, good, slow = self.hold.call(fail), self.hold.call(pow, 2, 5), self.blocked()
                seen = [good.result(30), good.exception(), repr(bad.exception(30))]
                try:
                    slow.exception(0.01)
                except TimeoutError as error:
                    seen.append(str(error))
                self.gate.set()
                return seen + [slow.exception(30), slow.result(), slow.cancelled()]
            return await asyncio.to_thread(thread)

        @bulkhead.endpoint
        async def on_the_loop(self) -> list:
            task, seen = await self.running(), []
            for ask in (task.result, task.exception):
                try:
                    ask()
                except RuntimeError as error:
                    seen.append(str(error))
            self.gate.set()
            await task
            return seen + [task.result(), task.exception()]

        @bulkhead.endpoint
        async def tracebacks(self) -> list:
            task, lengths = self.hold.call(fail), []
            for _ in range(4):
                try:
                    await task
                except ZeroDivisionError as error:
                    lengths.append(len(traceback.extract_tb(error.__traceback__)))
            last = traceback.extract_tb(task.exception().__traceback__)
            return [len(set(lengths)), [frame.name for frame in last]]
"""


def test_any_thread_may_ask_for_result_and_exception(host):
    h = host(POOLS, app(THREADS))
    assert h.call("ask") == [32, None, "ZeroDivisionError('on the worker')",
                             "the task has not ended in that time; it goes on", None, True, False]  # fmt: skip
    result, exception, *ended = h.call("on_the_loop")
    assert "result() of <bulkhead.Task hold.call pending>" in result and "await the task" in result
    assert "exception() of" in exception and ended == [True, None]


def test_who_asks_again_gets_the_workers_traceback_and_not_those_who_asked_before(host):
    h = host(POOLS, app(THREADS))
    assert h.call("tracebacks") == [1, ["fail"]]


MISTAKES = """
        @bulkhead.endpoint
        async def as_value(self) -> dict:
            task, said = self.hold.call(int), {}
            await task
            for name, use in {
                "if": lambda: bool(task), "int": lambda: int(task), "float": lambda: float(task),
                "+": lambda: task + 1, "r+": lambda: 1 + task, "<": lambda: task < 1, "for": lambda: list(task),
                "[]": lambda: task[0], "len": lambda: len(task), "in": lambda: 1 in task, "-": lambda: -task,
                "range": lambda: range(task), "sum": lambda: sum([task]),
            }.items():
                try:
                    use()
                except TypeError as error:
                    said[name] = str(error)
            try:
                task.shape
            except AttributeError as error:
                said["attribute"] = str(error)
            return said

        @bulkhead.endpoint
        async def still(self) -> list:  # what a task must go on to be able to do
            task = self.hold.call(int)
            return [len({task, task}), task == task, task != 0, repr(task).startswith("<bulkhead.Task hold.call"),
                    task is not None, hasattr(task, "tolist"), asyncio.isfuture(task), asyncio.iscoroutine(task),
                    isinstance(task, bulkhead.Task), await task]

        @bulkhead.endpoint
        async def forget(self, what: str) -> None:
            if what == "raised":
                tasks = [self.hold.call(fail, "forgotten")]
            elif what == "deadline":
                lane = self.hold.lane("x")
                tasks = [lane.call(self.gate.wait, 30), lane.call(int, timeout=0.01)]
            elif what == "asked":
                tasks = [self.hold.call(fail)]
                await asyncio.wait(tasks)
                tasks[0].exception()
            elif what == "cancelled":
                lane = self.hold.lane("x")
                tasks = [lane.call(self.gate.wait, 30), lane.call(int)]
                tasks[1].cancel()
            elif what in ("refused", "cancelled-waiting"):
                taken = threading.Semaphore(0)
                tasks = [self.hold.call(lambda: (taken.release(), self.gate.wait(30))) for _ in range(2)]
                for _ in tasks:  # both workers have theirs: what comes now stays in the queue
                    await asyncio.to_thread(taken.acquire, timeout=30)
                try:
                    while True:  # until the pool is full
                        tasks.append(self.hold.call(self.gate.wait, 30))
                except bulkhead.Overloaded:
                    tasks.append(self.hold.call(int, wait=0.01 if what == "refused" else 30))
                if what == "cancelled-waiting":
                    tasks[-1].cancel()
            while not all(task.done() for task in tasks[-1:]):
                await asyncio.sleep(0.01)
            self.gate.set()
            if what == "refused":
                box = [tasks[-1]]  # a cycle: the collector finds it
                box.append(box)
                del box
            del tasks
            gc.collect()
"""


def test_a_task_used_as_if_it_were_its_result_says_await_it(host):
    h = host(POOLS, app(MISTAKES))
    said = h.call("as_value")
    assert len(said) == 14
    for use, text in said.items():
        if use != "attribute":
            assert "write `await hold.call(...)`" in text, (use, text)
    assert "'shape'" in said["attribute"] and "await it first" in said["attribute"]
    assert h.call("still") == [1, True, True, True, True, False, False, False, True, 0]


NEVER = "a task failed and its exception was never retrieved"


@pytest.mark.parametrize("what, code", [("raised", "python.raised"), ("deadline", "task.deadline"), ("refused", "task.refused")])
def test_a_failure_that_nobody_asked_for_is_one_line_that_says_what_to_do(host, what, code):
    h = host(POOLS, app(MISTAKES))
    h.call("forget", what=what)
    line = h.wait_log(NEVER)
    assert line["level"] == "warning" and line["error"] == code
    assert line["pool"] == "hold" and line["op"] == "call" and "await it" in line["hint"]
    assert (int(line["task"]) > 0) == (what != "refused")
    if what == "refused":
        assert line["type"] == "Overloaded"
    if what == "raised":
        assert (line["type"], line["message"]) == ("ZeroDivisionError", "forgotten") and "app.py:" in line["at"]
    assert len([line for line in h.log if line.get("msg") == NEVER]) == 1


@pytest.mark.parametrize("what", ["asked", "cancelled", "cancelled-waiting"])
def test_what_somebody_asked_for_or_cancelled_is_not_in_the_log(host, what):
    h = host(POOLS, app(MISTAKES))
    h.call("forget", what=what)
    assert h.stop() == 0
    assert not h.find(NEVER)


# ---- how they end ----------------------------------------------------------------------------------

ENDS = {
    "app.py": """
        import asyncio
        import bulkhead
        import gc
        import threading
        import time

        def fail():
            raise ZeroDivisionError("on the worker")

        def draining():
            while bulkhead.pool("hold").state == "ready":
                time.sleep(0.01)

        def fail_while_draining():
            draining()
            fail()

        def outlast(deadline):
            draining()
            while time.monotonic() < deadline + 0.1:
                time.sleep(0.01)

        class App:
            async def start(self):
                self.count, self.hold, self.frail = map(bulkhead.pool, ("count", "hold", "frail"))
                self.kept, self.ends = [], []

            # Three who wait for it, each in another way; each says once what it got.
            def watch(self, name, task):
                def end(how, error):
                    code = getattr(error, "code", str(error))
                    self.ends.append([name, how, type(error).__name__, code, task.outcome])
                    print(f"end {name} {how} {type(error).__name__} {code} {task.outcome}", flush=True)

                async def awaiting():
                    try:
                        end("await", await task)
                    except BaseException as error:
                        end("await", error)

                def asking():
                    try:
                        end("result", task.result())
                    except BaseException as error:
                        end("result", error)

                self.kept.append(asyncio.ensure_future(awaiting()))
                thread = threading.Thread(target=asking)
                thread.start()
                task.add_done_callback(lambda t: end("callback", t.exception()))
                return thread

            @bulkhead.endpoint
            async def run(self) -> list:
                lane = self.hold.lane("x")
                gate = threading.Event()
                first = lane.call(gate.wait, 30)
                tasks = {
                    "failed": self.hold.call(fail), "native": self.count.fail(), "done": self.count.add(2, 3),
                    "cancelled": lane.call(int), "deadline": lane.call(int, timeout=0.01), "pending": self.count.pend(60000),
                    "poisoned": self.count.add(self.hold.call(fail), 1), "abandoned": self.frail.lost(),
                }
                threads = [self.watch(name, task) for name, task in tasks.items()]
                tasks["cancelled"].cancel()
                tasks["pending"].cancel()
                try:
                    await self.frail.break_pool()  # a pool that fails gives up what does not end
                except bulkhead.BulkheadError:
                    pass
                await asyncio.wait(list(tasks.values()))
                gate.set()
                await first
                for thread in threads:
                    await asyncio.to_thread(thread.join)
                await asyncio.gather(*self.kept)
                return self.ends

            @bulkhead.endpoint
            async def leave(self) -> None:
                self.watch("abandoned", self.count.lost())
                self.watch("cancelled", self.count.pend(60000))
                self.watch("failed", self.hold.call(fail_while_draining))
                self.watch("poisoned", self.count.add(self.hold.call(fail_while_draining), 1))
                lane = self.hold.lane("x")
                first = lane.call(outlast, time.monotonic() + 2)
                self.watch("deadline", lane.call(int, timeout=2))
    """
}

TWO = """
    [plugin count]
    library = t_count
    workers = 2
    drain_timeout = 300ms
    [plugin frail]
    library = t_count
    drain_timeout = 300ms
    [plugin hold]
    library = t_hold
    workers = 2
    drain_timeout = 20s
    [app app]
    object = app:App
"""

HOW = ("await", "callback", "result")


def test_each_outcome_reaches_everyone_who_waits_as_the_documented_exception_once(host):
    h = host(TWO, ENDS)
    expected = {
        "failed": ["ZeroDivisionError", "on the worker", "failed"],
        "native": ["PluginError", "t_count.fail", "failed"],
        "cancelled": ["Cancelled", "task.cancelled", "cancelled"],
        "deadline": ["Deadline", "task.deadline", "deadline"],
        "pending": ["Cancelled", "task.cancelled", "cancelled"],
        "poisoned": ["DependentError", "task.dependent", "failed"],
        "abandoned": ["Abandoned", "task.abandoned", "abandoned"],
    }
    ends = h.call("run")
    assert sorted(end for end in ends if end[0] != "done") == sorted([name, how, *end] for name, end in expected.items() for how in HOW)
    assert sorted(end for end in ends if end[0] == "done") == [
        ["done", "await", "int", "5", "done"], ["done", "callback", "NoneType", "None", "done"], ["done", "result", "int", "5", "done"],
    ]  # fmt: skip
    assert h.stop() == 75 and not h.find(NEVER)  # a task was abandoned


def test_each_outcome_reaches_everyone_who_waits_once_during_the_stop_too(host):
    h = host(TWO, ENDS)
    h.call("leave")
    assert h.stop(timeout=40) == 75  # a task was abandoned
    expected = {
        "abandoned": "Abandoned task.abandoned abandoned",
        "cancelled": "Cancelled task.cancelled cancelled",
        "failed": "ZeroDivisionError on the worker failed",
        "deadline": "Deadline task.deadline deadline",
        "poisoned": "DependentError task.dependent failed",
    }
    ends = sorted(line["msg"] for line in h.log if line.get("msg", "").startswith("end "))
    assert ends == sorted(f"end {name} {how} {end}" for name, end in expected.items() for how in HOW)
    assert not h.find(NEVER)


# ---- what the other mistakes, and help, say ---------------------------------------------------------


def test_a_loop_that_is_blocked_is_told_what_to_do(host):
    h = host(
        "[python]\nstall_after = 100ms\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                import time
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def block(self) -> None:
                        time.sleep(1)
            """
        },
    )
    h.call("block")
    line = h.wait_log("stall", kind="asyncio")
    assert "await asyncio.to_thread" in line["hint"] and "await pool.run" in line["hint"] and "asyncio.sleep" in line["hint"]
    assert "in block" in h.text or "block" in h.text


WRONG_TYPES = {
    "echo_bool": (1, "int", "bool"),
    "echo_int": ("5", "str", "int, from -2**63 to 2**63-1"),
    "echo_float": ("x", "str", "float or int"),
    "echo": (5, "int", "str that UTF-8 can express"),
    "echo_bytes": ("text", "str", "bytes, bytearray or memoryview"),
    "echo_buffer": (5, "int", "buffer"),
    "echo_handle": (-1, "int", "from 0 to 2**64-1"),
}


def test_a_task_or_coroutine_that_an_endpoint_returns_without_an_await_is_named(host):
    h = host(
        POOLS,
        app("""
        async def helper(self):
            return 5

        @bulkhead.endpoint
        async def task(self):
            return self.hold.call(int)

        @bulkhead.endpoint
        async def inside(self):
            return {"sizes": [self.helper()]}
"""),
    )
    for name, where, what in (("task", "result ", "Task"), ("inside", "result['sizes'][0] ", "coroutine")):
        with pytest.raises(CallError) as caught:
            h.call(name)
        said = caught.value.error["message"]
        assert caught.value.status == 500 and f"{where}is a {what} that nobody has awaited: write `await`" in said, said


def test_a_wrong_type_names_op_parameter_given_and_accepted(host):
    h = host(
        "[plugin count]\nlibrary = t_count\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def give(self, op: str, value) -> dict:
                        try:
                            getattr(bulkhead.pool("count"), op)(value)
                        except TypeError as error:
                            return {"text": str(error), "facts": error.facts}
            """
        },
    )
    for op, (value, given, accepted) in WRONG_TYPES.items():
        said = h.call("give", op, value)
        assert said["facts"] | {"accepted": ""} == {
            "pool": "count", "op": op, "parameter": "value", "given": given, "accepted": "",
        } | ({"reason": said["facts"]["reason"]} if "reason" in said["facts"] else {}), op  # fmt: skip
        assert accepted in said["facts"]["accepted"] and accepted in said["text"], op


def test_help_of_the_package_a_pool_and_its_ops_says_what_one_needs(host):
    h = host(
        "[plugin stream]\nlibrary = stream\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                import inspect
                import pydoc
                import bulkhead

                class App:
                    @bulkhead.endpoint
                    async def help(self, what: str) -> str:
                        pool = bulkhead.pool("stream")
                        thing = {"package": bulkhead, "pool": pool, "op": pool.axpy, "task": bulkhead.Task}[what]
                        return pydoc.plain(pydoc.render_doc(thing))

                    @bulkhead.endpoint
                    async def signature(self) -> list:
                        pool = bulkhead.pool("stream")
                        return [str(inspect.signature(pool.run)), str(inspect.signature(pool.top_k))]
            """
        },
    )
    assert "bulkhead.testing" in h.call("help", "package") and "class Overloaded" in h.call("help", "package")
    pool = h.call("help", "pool")
    flat = " ".join(re.sub("^ *\\|", "", pool, flags=re.M).split()).replace("( ", "(").replace(" )", ")")  # 3.13 breaks long ones
    for text in ("axpy(_self, /, y: object, a: float | bulkhead.Task, x: object, *, timeout=None, lane=None, wait=False) -> bulkhead.Task[None]",
                 "lane(self, name", "y = a x + y"):  # fmt: skip
        assert text in flat, pool
    op = h.call("help", "op")
    for text in ("y: a writable", "timeout: the task's deadline, seconds", "Result of the task:", "BadArgument"):
        assert text in op, op
    assert "as_coroutine" in h.call("help", "task") and "asyncio.shield" in h.call("help", "task")
    run, top_k = h.call("signature")
    assert run == "(fn: object, *args: object, timeout=None, lane=None, wait=False) -> bulkhead.Task[object]"
    assert top_k == "(scores: object, k: int | bulkhead.Task, *, timeout=None, lane=None, wait=False) -> bulkhead.Task[list]"


LEAK = {
    "app.py": """
        import asyncio
        import bulkhead
        import gc
        import tracemalloc

        def fail():
            raise ZeroDivisionError("on the worker")

        def rss_kib():
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

        class App:
            async def some(self, n):  # 10 tasks a turn
                pool = bulkhead.pool("hold")
                lane = pool.lane("x")
                for _ in range(n):
                    tasks = [pool.call(pow, 2, 100, wait=True) for _ in range(4)] + [pool.call(fail, wait=True) for _ in range(2)]
                    tasks += [lane.call(len, "abc", wait=True) for _ in range(3)] + [lane.call(int, timeout=0, wait=True)]
                    for task in tasks:
                        task.add_done_callback(lambda t: t.exception())
                    tasks[8].cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    await asyncio.wait(tasks)
                    assert tasks[4].exception() is not None and tasks[0].exception() is None

            async def level(self) -> list:
                for _ in range(3):  # what the last turn left is let go of on this loop, a little later
                    await asyncio.sleep(0.02)
                    gc.collect()
                return [tracemalloc.get_traced_memory()[0], rss_kib()]

            @bulkhead.endpoint
            async def grow(self) -> list:
                await self.some(200)
                tracemalloc.start()
                await self.some(20)  # tracemalloc's own
                levels = [await self.level()]
                for _ in range(2):
                    await self.some(1000)
                    levels.append(await self.level())
                return levels + [sum(isinstance(o, bulkhead.Task) for o in gc.get_objects())]
    """
}


def test_10_000_tasks_of_every_outcome_leave_nothing_behind(host, report):
    """Twice: the first time queues and caches get as big as they will be, the second time nothing grows."""
    h = host("[plugin hold]\nlibrary = t_hold\n[app app]\nobject = app:App\n", LEAK)
    *levels, tasks = h.call("grow", timeout=240)
    (first, rss), (second, _) = ([b - a for a, b in zip(*pair)] for pair in zip(levels, levels[1:]))
    report(f"10 000 tasks: {first} bytes more in Python, 10 000 more: {second}; {rss} KiB more resident, {tasks} task objects left")
    assert tasks <= 10  # of the last turn
    assert first < 300_000 and second < 40_000, "not even one task in ten may leave an object"
    if SLOW == 1:  # a sanitizer keeps what was freed
        assert rss < 8192


def test_gil8_each_callable_sees_its_own_submitters_context(host):
    """Of coroutines that run at once, of threads, and of a callable that submits another; a change stays with it."""
    h = host(
        "[plugin hold]\nlibrary = t_hold\nworkers = 2\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                import asyncio
                import contextvars
                import bulkhead

                var = contextvars.ContextVar("var", default="unset")

                def look():
                    return var.get()

                def look_and_set(value):
                    seen = var.get()
                    var.set(value)
                    return seen

                def submit_another():
                    var.set("the callable's")
                    return bulkhead.pool("hold").call(look).result(30)

                class App:
                    @bulkhead.endpoint
                    async def look(self) -> list:
                        pool = bulkhead.pool("hold")

                        async def one(value):
                            var.set(value)
                            seen = [await pool.call(look_and_set, "lost")]
                            await asyncio.sleep(0)
                            return seen + [await pool.call(look), await asyncio.to_thread(lambda: pool.call(look).result(30))]

                        def bare():
                            return pool.call(look).result(30)

                        return [*await asyncio.gather(*map(one, "ab")), await pool.call(submit_another),
                                await asyncio.get_running_loop().run_in_executor(None, bare), var.get()]
            """
        },
    )
    assert h.call("look") == [["a"] * 3, ["b"] * 3, "the callable's", "unset", "unset"]


def test_what_would_mean_something_to_the_awaiting_side_prints_as_the_cause_of_a_plugin_error(host):
    h = host(
        "[plugin hold]\nlibrary = t_hold\n[app app]\nobject = app:App\n",
        {
            "app.py": """
                import traceback
                import bulkhead

                def leave():
                    raise SystemExit(5)

                class App:
                    @bulkhead.endpoint
                    async def look(self) -> str:
                        try:
                            await bulkhead.pool("hold").call(leave)
                        except bulkhead.PluginError:
                            return traceback.format_exc()
            """
        },
    )
    text = h.call("look")
    cause, between, error = text.partition("The above exception was the direct cause of the following exception")
    assert between and "in leave" in cause and "SystemExit: 5" in cause
    assert "in look" in error and "bulkhead.PluginError: python.raised" in error and "type=SystemExit" in error
