# SPDX-License-Identifier: BSD-3-Clause
"""GET /metrics as a scraper sees it: the page is taken apart strictly, and what it says is true."""

from __future__ import annotations

import http.client
import math
import os
import re
import shutil
import subprocess
import time

import pytest

from conftest import SLOW, UnixConnection, until

MANIFEST = """
    [plugin stream]
    library = stream
    workers = 2
    [plugin hold]
    library = t_hold
    workers = 1
    queue = 3
    [app app]
    object = app:App
"""

APP = {
    "app.py": """
        import asyncio
        import time
        import bulkhead

        def spin(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass

        def fail():
            raise ValueError("on purpose")

        class App:
            async def start(self, app):
                self.kept = []

            @bulkhead.endpoint
            async def spin(self, n: int, seconds: float) -> None:
                pool = bulkhead.pool("stream")
                await asyncio.gather(*[pool.run(spin, seconds) for _ in range(n)])

            @bulkhead.endpoint
            async def fail(self) -> None:
                await bulkhead.pool("stream").run(fail)

            @bulkhead.endpoint
            async def hold(self, ms: int) -> None:
                self.kept.append(bulkhead.pool("hold").hold(ms))    # not awaited: main answers first
    """
}

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|NaN")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}


def unescape(value: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), value)


class Page:
    """A page of the text format 0.0.4; an AssertionError for whatever a strict reader would mind."""

    def __init__(self, text: str):
        self.text, self.types, self.samples = text, {}, {}
        self.helped: str | None = None
        self.present: str | None = None
        assert text == "" or text.endswith("\n")
        for line in text.split("\n")[:-1]:
            (self.comment if line.startswith("#") else self.sample)(line)
        for family, kind in self.types.items():
            if kind == "histogram":
                self.check_histogram(family)

    def comment(self, line: str):
        mark, what, name, rest = line.split(" ", 3)
        assert mark == "#" and what in ("HELP", "TYPE") and NAME.fullmatch(name), line
        if what == "HELP":
            assert name not in self.types and self.helped is None and rest, f"said twice: {line}"
            assert not re.search(r"\\(?![\\n])", rest), line
            self.helped = name
            return
        assert self.helped == name, f"its HELP comes right before: {line}"
        assert rest in SUFFIXES, line
        assert rest != "counter" or name.endswith("_total"), line
        assert rest == "counter" or not name.endswith("_total"), line
        self.types[name], self.present, self.helped = rest, name, None

    def sample(self, line: str):
        name = NAME.match(line)[0]
        rest, labels = line[len(name):], {}
        assert self.present is not None and self.helped is None, line
        if rest.startswith("{"):
            rest = rest[1:]
            while not rest.startswith("}"):
                found = LABEL.match(rest)
                assert found, line
                assert found[1] not in labels, f"a label twice: {line}"
                labels[found[1]] = unescape(found[2])
                rest = rest[found.end():]
                assert rest[0] in ",}", line
                rest = rest.removeprefix(",")
            rest = rest[1:]
        assert rest.startswith(" ") and NUMBER.fullmatch(rest[1:]), line
        family = self.present
        assert name in [family + suffix for suffix in SUFFIXES[self.types[family]]], f"not of {family}: {line}"
        assert ("le" in labels) == name.endswith("_bucket"), line
        key = (name, tuple(sorted(labels.items())))
        assert key not in self.samples, f"twice: {line}"
        value = float(rest[1:])
        assert self.types[family] == "gauge" or value >= 0, line
        self.samples[key] = value

    def check_histogram(self, family: str):
        series: dict[tuple, list[tuple[float, float]]] = {}
        for (name, labels), value in self.samples.items():
            if name == f"{family}_bucket":
                at = float(dict(labels)["le"])
                series.setdefault(tuple(l for l in labels if l[0] != "le"), []).append((at, value))
        counts = {labels for name, labels in self.samples if name == f"{family}_count"}
        assert counts == set(series) == {labels for name, labels in self.samples if name == f"{family}_sum"}
        for labels, buckets in series.items():
            assert buckets == sorted(buckets), f"{family}{labels}: {buckets}"
            assert [n for _, n in buckets] == sorted(n for _, n in buckets), f"{family}{labels}: {buckets}"
            assert buckets[-1] == (math.inf, self.samples[f"{family}_count", labels]), f"{family}{labels}"

    def get(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]

    def all(self, name: str) -> dict[tuple, float]:
        return {labels: value for (n, labels), value in self.samples.items() if n == name}


def scrape(h, timeout: float = 15.0) -> Page:
    reply = h.get("/metrics", timeout)
    assert reply.status == 200, reply
    assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Page(reply.text)


# ---- the form


@pytest.mark.parametrize(
    "text",
    [
        "# HELP a b\n# TYPE a gauge\na 1",
        "a 1\n",
        "# TYPE a gauge\na 1\n",
        "# HELP a b\n# TYPE a gauge\na 1\na 1\n",
        "# HELP a b\n# TYPE a gauge\nb 1\n",
        "# HELP a b\n# TYPE a counter\na 1\n",
        "# HELP a_total b\n# TYPE a_total counter\na_total -1\n",
        '# HELP a b\n# TYPE a gauge\na{x="\n"} 1\n',
        '# HELP a b\n# TYPE a gauge\na{x="\\x"} 1\n',
        '# HELP a b\n# TYPE a gauge\na{x="1",x="2"} 1\n',
        "# HELP a b\n# TYPE a gauge\na 0,5\n",
        '# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n',
        '# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 1\na_bucket{le="+Inf"} 1\na_sum 1\na_count 2\n',
        '# HELP a b\n# TYPE a histogram\na_bucket{le="+Inf"} 1\na_count 1\n',
        "# HELP a b\n# TYPE a gauge\na 1\n# HELP b b\n# TYPE b gauge\nb 1\n# HELP a b\n# TYPE a gauge\na{x=\"1\"} 1\n",
    ],
)
def test_the_reader_of_pages_minds_what_is_wrong(text):
    with pytest.raises(AssertionError):
        Page(text)


def test_a_page_is_what_a_scraper_takes(host):
    h = host(MANIFEST, APP)
    h.call("spin", n=2, seconds=0.02)
    page = scrape(h)
    names = set(page.types)
    for name in ("entries_total", "nested_entries_total", "unsanctioned_total", "held_seconds_total", "wait_seconds",
                 "inside_seconds", "parked_threads", "probe_wait_seconds"):  # fmt: skip
        assert f"bulkhead_gil_{name}" in names, name
    for name in ("pool_tasks_total", "pool_refused_total", "pool_queued", "pool_running", "pool_pending", "pool_workers",
                 "pool_state", "build_info", "log_dropped_lines_total"):  # fmt: skip
        assert f"bulkhead_{name}" in names, name
    assert all(name.startswith(("bulkhead_", "process_")) for name in names)
    promtool = shutil.which("promtool")
    if promtool:
        done = subprocess.run([promtool, "check", "metrics"], input=page.text, text=True, capture_output=True)
        assert done.returncode == 0, done


def test_head_has_the_page_s_type_and_no_body(host):
    h = host("")
    reply = h.request("HEAD", "/metrics")
    assert reply.status == 200 and reply.text == "" and reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert h.post("/metrics").status == 405
    assert "GET /metrics" in h.get("/nowhere").text, "a 404 lists what there is"


def test_ctl_prints_the_page(host):
    h = host(MANIFEST, APP)
    done = h.ctl("metrics")
    assert done.returncode == 0 and done.stderr == ""
    assert Page(done.stdout).types.keys() == scrape(h).types.keys()


# ---- what it says


def test_sup4_pools_add_up(host):
    h = host(MANIFEST, APP)
    h.call("spin", n=3, seconds=0.001)
    with pytest.raises(Exception, match="on purpose"):
        h.call("fail")
    page = scrape(h)

    def outcomes(page, pool):
        return {o: page.get("bulkhead_pool_tasks_total", pool=pool, outcome=o)
                for o in ("done", "failed", "cancelled", "deadline", "abandoned")}  # fmt: skip

    assert outcomes(page, "stream") == {"done": 3, "failed": 1, "cancelled": 0, "deadline": 0, "abandoned": 0}
    assert page.get("bulkhead_pool_submitted_total", pool="stream") == 4
    assert page.get("bulkhead_pool_workers", pool="stream") == 2
    assert page.get("bulkhead_pool_queue_limit", pool="hold") == 3
    assert page.get("bulkhead_pool_state", pool="hold", state="ready") == 1
    for pool in ("stream", "hold"):
        states = [v for labels, v in page.all("bulkhead_pool_state").items() if dict(labels)["pool"] == pool]
        assert sum(states) == 1 and len(states) == 9
    assert page.get("bulkhead_op_seconds_count", pool="stream", op="run") == 4
    assert page.get("bulkhead_op_seconds_sum", pool="stream", op="run") >= 0.003
    assert {dict(labels)["op"] for labels in page.all("bulkhead_op_seconds_count")} == {"run"}, "what was not used is not there"
    before = page
    h.call("spin", n=5, seconds=0.001)
    page = scrape(h)
    assert outcomes(page, "stream")["done"] == 8
    for key, value in before.samples.items():
        if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
            assert page.samples[key] >= value, f"{key} went back"


def test_gil_use_is_booked_by_site_and_plane(host):
    h = host(MANIFEST, APP)
    h.call("spin", n=4, seconds=0.05)
    page = scrape(h)
    assert page.get("bulkhead_gil_entries_total", site="stream.compute", plane="data") >= 4
    assert page.get("bulkhead_gil_entries_total", site="host.dispatch", plane="control") >= 1
    inside = page.get("bulkhead_gil_inside_seconds_sum", site="stream.compute", plane="data")
    assert inside >= 0.2, "four times 50 ms, whoever held it in between"
    count = page.get("bulkhead_gil_inside_seconds_count", site="stream.compute", plane="data")
    assert count >= 4
    below = page.get("bulkhead_gil_inside_seconds_bucket", site="stream.compute", plane="data", le="0.016777216")
    assert count - below >= 4, "these four took longer than 16 ms"
    assert page.get("bulkhead_gil_unsanctioned_total") == 0
    assert page.get("bulkhead_gil_parked_threads") == 0 and page.get("bulkhead_gil_gate_closed") == 0
    sites = {s["site"]: s for s in h.get("/v1/gil").json["sites"]}
    assert sites["stream.compute"]["entries"] >= page.get("bulkhead_gil_entries_total", site="stream.compute", plane="data")


def test_the_process_is_told_truly(host):
    h = host("")
    page = scrape(h)
    pid = h.process.pid
    assert page.get("process_threads") == len(os.listdir(f"/proc/{pid}/task"))
    assert 1 << 20 < page.get("process_resident_memory_bytes") < page.get("process_virtual_memory_bytes")
    assert page.get("process_cpu_seconds_total") > 0
    assert abs(page.get("process_start_time_seconds") - (time.time() - page.get("bulkhead_uptime_seconds"))) < 5 * SLOW
    assert 0 < page.get("process_open_fds") <= page.get("process_max_fds")
    (labels, value), = page.all("bulkhead_build_info").items()
    version = h.get("/v1/status").json
    assert value == 1 and dict(labels) == {"version": version["version"], "python": version["python"].split()[0]}


# ---- CP-1


def test_cp1_a_scrape_needs_neither_the_gil_nor_a_pool(host, report):
    h = host(MANIFEST, APP)
    seconds = 3
    h.call("hold", ms=seconds * 1000)  # holds the GIL in C
    until(lambda: scrape(h).get("bulkhead_pool_running", pool="hold") == 1, what="the task runs")
    connection, took, texts = UnixConnection(str(h.socket), 10 * SLOW), [], []
    while h.pool("hold")["busy"] and len(took) < 200:
        begin = time.monotonic()
        connection.request("GET", "/metrics")
        texts.append(connection.getresponse().read().decode())
        took.append(time.monotonic() - begin)
    connection.close()
    assert Page(texts[0]).all("bulkhead_gil_holder_seconds"), "somebody holds it"
    assert len(took) >= 5
    took.sort()
    report(f"/metrics with the GIL held: p50 {1000 * took[len(took) // 2]:.1f} ms, max {1000 * took[-1]:.1f} ms, "
           f"page {len(texts[0])} bytes")  # fmt: skip
    assert took[-1] < 1 * SLOW, "it was answered while the GIL was held"


def test_metrics_are_served_from_the_first_to_the_last_moment(host):
    h = host(MANIFEST, APP, wait="answering")
    pages = [scrape(h)]
    h.wait_ready()
    pages.append(scrape(h))
    h.ctl("stop", timeout=30)
    assert h.wait() == 0
    assert pages[1].types.keys() >= pages[0].types.keys()


def test_many_scrapers_at_once_get_whole_pages(host):
    h = host(MANIFEST, APP)
    connections = [UnixConnection(str(h.socket), 15 * SLOW) for _ in range(20)]
    for connection in connections:
        connection.request("GET", "/metrics")
    for connection in connections:
        response: http.client.HTTPResponse = connection.getresponse()
        Page(response.read().decode())
        connection.close()
