# SPDX-License-Identifier: BSD-3-Clause
"""What a plugin tells operators of itself: numbers, facts, health; and the environment it wants (PLG-3, PLG-6, CP-1)."""

import re
import signal
import subprocess
import threading
import time

import pytest
from conftest import PROMPT, CallError, stage, until
from conftest import test_plugins as plugin_dir

PLUGIN = """
    [plugin a]
    library = t_report
"""
APP_SECTION = """
    [app app]
    object = app:App
"""
APP = {
    "app.py": """
        import os
        import subprocess
        import time
        import bulkhead

        class App:
            def start(self, app):
                self.events = []

            def supervise(self, event):
                self.events.append([event.kind, event.facts])

            @bulkhead.endpoint
            async def run(self, pool: str, op: str, args: list) -> str:
                return str(await getattr(bulkhead.pool(pool), op)(*args))

            @bulkhead.endpoint
            async def told(self) -> list:
                return self.events

            @bulkhead.endpoint
            async def block(self, seconds: float) -> None:
                time.sleep(seconds)

            @bulkhead.endpoint
            async def environ(self, name: str) -> list:
                child = subprocess.run(["/bin/sh", "-c", f"echo ${name}"], capture_output=True, text=True)
                return [os.environ.get(name), child.stdout.strip()]
    """
}


def run(h, op, *args, pool="a"):
    return h.call("run", pool, op, list(args))


def plugin(h, label="a"):
    return next(row for row in h.get("/v1/plugins").json["plugins"] if row["label"] == label)


def numbers(h, label="a"):
    return {row["name"]: row["value"] for row in plugin(h, label)["metrics"]}


def samples(h, name):
    """{plugin: value} of one family; fails unless it is told of once."""
    page = h.get("/metrics").text
    assert page.count(f"# TYPE {name} ") == page.count(f"# HELP {name} ") == 1
    return {m[1]: float(m[2]) for m in re.finditer(rf'^{name}\{{plugin="([^"]*)"\}} (\S+)$', page, re.M)}


# ---- numbers


def test_a_plugins_numbers_are_shown_in_both_places(host):
    h = host(PLUGIN + APP_SECTION, APP)
    run(h, "add", 0, 5)
    run(h, "add", 0, 7)
    run(h, "set", 1, 30)
    run(h, "add", 1, -40)
    assert plugin(h)["metrics"] == [
        {"name": "frames_total", "kind": "counter", "value": 12, "doc": "Frames sent."},
        {"name": "depth", "kind": "gauge", "value": -10, "doc": "Depth of the queue, frames."},
    ]
    page = h.get("/metrics").text
    assert "# HELP bulkhead_plugin_t_report_frames_total Frames sent.\n# TYPE bulkhead_plugin_t_report_frames_total counter\n" \
        'bulkhead_plugin_t_report_frames_total{plugin="a"} 12\n' in page  # fmt: skip
    assert "# TYPE bulkhead_plugin_t_report_depth gauge\n" in page
    assert 'bulkhead_plugin_t_report_depth{plugin="a"} -10\n' in page


def test_what_would_shrink_a_counter_or_has_no_row_is_refused_and_said(host):
    h = host(PLUGIN + APP_SECTION, APP)
    run(h, "add", 0, 5)
    for op, args, reason in [
        ("add", (0, -1), "a counter only grows"),
        ("set", (0, 9), "a counter is not set, it only grows"),
        ("add", (2, 1), "the descriptor has no such metric"),
        ("set", (2**32 - 1, 1), "the descriptor has no such metric"),
    ]:
        run(h, op, *args)
        h.wait_log("plugin misuses a service", plugin="a", service=f"metric_{op}", reason=reason)
    assert numbers(h) == {"frames_total": 5, "depth": 0}


def test_a_family_is_told_of_once_for_all_of_its_plugins(host):
    h = host("""
        [plugin a]
        library = t_report
        [plugin b]
        library = t_report
    """ + APP_SECTION, APP)  # fmt: skip
    run(h, "add", 0, 1)
    run(h, "add", 0, 2, pool="b")
    assert samples(h, "bulkhead_plugin_t_report_frames_total") == {"a": 1, "b": 2}
    assert samples(h, "bulkhead_plugin_healthy") == {"a": 1, "b": 1}


def test_a_family_has_the_kind_of_the_first_plugin(host):
    h = host("""
        [plugin a]
        library = t_report
        [plugin twin]
        library = t_report_twin
    """ + APP_SECTION, APP)  # fmt: skip
    line = h.wait_log("a metric is left out of /metrics: another plugin's has its name and another kind")
    assert line["level"] == "warning" and line["plugin"] == "twin" and line["other_plugin"] == "a"
    assert line["metric"] == "bulkhead_plugin_t_report_frames_total"
    assert samples(h, "bulkhead_plugin_t_report_frames_total") == {"a": 0}
    assert samples(h, "bulkhead_plugin_t_report_depth") == {"a": 0, "twin": -5}, "the other one is not left out"
    assert numbers(h, "twin") == {"frames_total": 77, "depth": -5}, "nothing is left out of /v1/plugins"


def test_cp1_a_scrape_waits_for_no_plugin_and_for_no_python(host):
    h = host(PLUGIN + APP_SECTION, APP)
    run(h, "add", 0, 3)
    assert h.post("/v1/apps/app/block", {"seconds": 0.01}).status == 200
    caller = threading.Thread(target=lambda: h.post("/v1/apps/app/block", {"seconds": 3}, timeout=30))
    caller.start()
    try:
        for path in ("/v1/plugins", "/metrics", "/v1/plugins"):
            began = time.monotonic()
            assert "frames_total" in h.get(path).text
            assert time.monotonic() - began < PROMPT
        assert caller.is_alive(), "main was blocked all the while"
    finally:
        caller.join()


def test_the_numbers_stay_after_the_plugin_has_closed(host):
    h = host(PLUGIN + """
        [plugin last]
        library = t_report
    """ + APP_SECTION, APP)  # fmt: skip
    run(h, "add", 0, 3, pool="last")
    run(h, "fail", pool="last")
    until(lambda: plugin(h, "last")["state"] == "failed", what="the pool failed")
    until(lambda: numbers(h, "last")["frames_total"] == 1003, what="close() has counted, and is shown")
    assert samples(h, "bulkhead_plugin_t_report_frames_total") == {"a": 0, "last": 1003}


# ---- facts


def test_a_plugin_describes_itself(host):
    h = host(PLUGIN + APP_SECTION, APP)
    assert plugin(h)["facts"] == {"device": "sim0", "lanes": 4}
    run(h, "describe", "new", 2)
    assert plugin(h)["facts"] == {"k_a": "new", "k_b": "new"}, "the whole is replaced"
    run(h, "describe", "new", 0)
    assert plugin(h)["facts"] == {}


def test_facts_are_bounded_and_made_plain(host):
    h = host(PLUGIN + APP_SECTION, APP)
    run(h, "describe", "ä" * 500, 20)
    facts = plugin(h)["facts"]
    assert list(facts) == [f"k_{c}" for c in "abcdefghijklmnop"]
    assert set(facts.values()) == {"ä" * 120 + "…"}
    h.wait_log("plugin misuses a service", plugin="a", service="describe", reason="more than 16 facts: the rest is left out")
    run(h, "describe_badly")
    assert plugin(h)["facts"] == {"text": "(not UTF-8)", "fact": ""}


# ---- health


def test_a_degraded_plugin_is_shown_everywhere_and_recovers(host):
    h = host(PLUGIN + APP_SECTION, APP)
    assert plugin(h)["health"] == {"state": "ok", "cause": None, "since_s": None}
    run(h, "degrade", "mlx5_0")
    until(lambda: plugin(h)["health"]["state"] == "degraded", what="degraded")
    health = plugin(h)["health"]
    assert health["cause"]["id"] == "t_report.port-down" and health["cause"]["facts"] == {"port": "mlx5_0"}
    assert 0 <= health["since_s"] < 60
    reply = h.get("/readyz")
    assert reply.status == 503 and reply.json["error"]["code"] == "not-ready"
    (reason,) = reply.json["error"]["facts"]["reasons"]
    assert reason.startswith("plugin a: degraded: t_report.port-down: port=mlx5_0")
    assert samples(h, "bulkhead_plugin_healthy") == {"a": 0}
    assert plugin(h)["state"] == "up" and h.get("/livez").status == 200
    assert run(h, "environment", "T_REPORT_NONE") == "(unset)", "it works on"
    assert h.wait_log("plugin is degraded", plugin="a", port="mlx5_0")["level"] == "warning"

    run(h, "recover")
    until(lambda: h.get("/readyz").status == 200, what="ready again")
    assert plugin(h)["health"]["state"] == "ok" and plugin(h)["health"]["cause"] is None
    assert samples(h, "bulkhead_plugin_healthy") == {"a": 1}
    h.wait_log("plugin has recovered", plugin="a")
    events = until(lambda: len(h.call("told")) == 2 and h.call("told"), what="two events")
    assert events == [
        ["degraded", {"pool": "a", "code": "t_report.port-down", "facts": {"port": "mlx5_0"}}],
        ["recovered", {"pool": "a", "code": None, "facts": {}}],
    ]


def test_only_a_change_is_told(host):
    h = host(PLUGIN + APP_SECTION, APP)
    for op, args in [("recover", ()), ("degrade", ("p1",)), ("degrade", ("p1",)), ("degrade", ("p2",)), ("degrade", ("p2",)),
                     ("recover", ()), ("recover", ())]:  # fmt: skip
        run(h, op, *args)
    until(lambda: len(h.call("told")) >= 3, what="three events")
    assert [(kind, facts["facts"].get("port")) for kind, facts in h.call("told")] == [
        ("degraded", "p1"), ("degraded", "p2"), ("recovered", None)]  # fmt: skip
    h.wait_log("plugin has recovered")
    assert len([line for line in h.log if line.get("msg") == "plugin is degraded"]) == 2
    assert len([line for line in h.log if line.get("msg") == "plugin has recovered"]) == 1


def test_of_a_storm_of_changes_the_last_one_counts(host):
    h = host(PLUGIN + APP_SECTION, APP)
    run(h, "storm", 5000)
    until(lambda: (plugin(h)["health"]["cause"] or {}).get("id") == "t_report.last", what="the last one")
    assert h.get("/readyz").status == 503


def test_a_plugin_that_opens_degraded_holds_back_readiness(host):
    h = host("""
        [plugin a]
        library = t_report
        degraded = yes
    """ + APP_SECTION, APP, wait="answering")  # fmt: skip
    until(lambda: h.get("/v1/status").json["state"] == "ready", what="the start is over")
    (reason,) = h.get("/readyz").json["error"]["facts"]["reasons"]
    assert reason.startswith("plugin a: degraded: t_report.slow-start")
    run(h, "recover")
    until(lambda: h.get("/readyz").status == 200, what="ready")


def test_a_failed_pool_stays_failed(host):
    h = host(PLUGIN + APP_SECTION, APP)
    run(h, "degrade", "p1")
    run(h, "fail")
    until(lambda: plugin(h)["health"]["state"] == "failed", what="failed")
    assert plugin(h)["health"]["cause"]["id"] == "t_report.failed"
    assert samples(h, "bulkhead_plugin_healthy") == {"a": 0}
    (reason,) = h.get("/readyz").json["error"]["facts"]["reasons"]
    assert reason.startswith("plugin a: failed: t_report.failed")
    with pytest.raises(CallError):
        run(h, "recover")


def test_what_is_reported_behind_a_failure_is_nothing(host):
    h = host(PLUGIN + APP_SECTION, APP)
    go_on = h.folder / "go-on"
    caller = threading.Thread(target=lambda: h.post("/v1/apps/app/run", ["a", "fail_and_degrade", [str(go_on)]], timeout=60))
    caller.start()
    try:
        until(lambda: (h.folder / "go-on.here").exists(), what="it has reported both")
        for _ in range(3):  # the loop has come by what was reported
            assert plugin(h)["health"]["state"] != "degraded"
    finally:
        go_on.touch()
        caller.join()
    until(lambda: plugin(h)["health"]["state"] == "failed", what="failed")
    h.wait_log("pool failed")
    assert not h.find("plugin is degraded")
    events = until(lambda: h.call("told"), what="an event")
    assert [kind for kind, _ in events] == ["pool-failed"]


def test_a_thread_that_reports_until_the_end_harms_nobody(host):
    h = host(PLUGIN + APP_SECTION, APP)
    run(h, "never_stop")
    h.wait_log("plugin is degraded")
    began = time.monotonic()
    assert h.get("/v1/plugins").status == 200 and time.monotonic() - began < PROMPT
    assert h.stop() == 0


def test_bulkheadctl_shows_facts_health_and_numbers(host):
    h = host(PLUGIN + APP_SECTION, APP)
    run(h, "add", 0, 12)
    run(h, "degrade", "mlx5_0")
    until(lambda: plugin(h)["health"]["state"] == "degraded", what="degraded")
    shown = h.ctl("plugins")
    assert shown.returncode == 0
    head, row, *rest = shown.stdout.splitlines()
    assert head.split() == ["PLUGIN", "VERSION", "STATE", "HEALTH", "POOL"]
    assert row.split() == ["a", "1.0", "up", "degraded", "ready"]
    text = "\n".join(rest)
    assert "t_report.port-down: port=mlx5_0" in text and "device: sim0" in text and "lanes: 4" in text
    assert "frames_total 12  Frames sent." in text
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    assert h.ctl("--json", "plugins").stdout.startswith("{")


def test_nothing_is_told_of_a_plugin_that_is_not_there(host):
    h = host("""
        [plugin gone]
        library = t_missing
        optional = yes
    """ + PLUGIN)  # fmt: skip
    row = plugin(h, "gone")
    assert row["state"] == "skipped" and row["health"] == {"state": None, "cause": None, "since_s": None}
    assert row["facts"] == {} and row["metrics"] == []
    assert samples(h, "bulkhead_plugin_healthy") == {"a": 1}
    assert h.stop(signal.SIGTERM) == 0


# ---- environment (PLG-6)


def source_of(h, name):
    line = h.find("environment variable set", name=name)
    return line and (line["source"], line.get("plugin"), line["level"])


def test_plg6_a_notes_variables_are_there_for_library_python_and_children(host):
    h = host(PLUGIN + APP_SECTION, APP)
    assert run(h, "environment", "T_REPORT_A") == "from the note"
    assert h.call("environ", name="T_REPORT_A") == ["from the note", "from the note"]
    assert source_of(h, "T_REPORT_A") == ("plugin", "a", "info")
    first = next(i for i, line in enumerate(h.log) if line.get("msg") == "environment variable set")
    starting = next(i for i, line in enumerate(h.log) if line.get("msg") == "starting")
    assert first < starting


@pytest.mark.parametrize(
    "manifest, process, value, source",
    [
        (None, None, "from the note", ("plugin", "a", "info")),
        (None, "the process's", "the process's", None),
        (None, "", "", None),
        ("the manifest's", None, "the manifest's", ("manifest", None, "info")),
        ("the manifest's", "the process's", "the manifest's", ("manifest", None, "info")),
    ],
)
def test_plg6_the_manifest_wins_then_the_process_then_the_note(host, manifest, process, value, source):
    text = f"[host]\nenv.T_REPORT_A = {manifest}\n" if manifest else ""
    h = host(text + "[plugin a]\nlibrary = t_report\n[app app]\nobject = app:App\n", APP,
             env={"T_REPORT_A": process} if process is not None else {})  # fmt: skip
    assert run(h, "environment", "T_REPORT_A") == value
    assert source_of(h, "T_REPORT_A") == source
    assert run(h, "environment", "T_REPORT_SHARED") == "first", "each name is decided for itself"


def test_plg6_of_two_notes_that_differ_the_first_wins(host):
    both = """
        [plugin {}]
        library = t_report{}
        [plugin {}]
        library = t_report{}
        [app app]
        object = app:App
    """
    h = host(both.format("a", "", "b", "_twin"), APP)
    assert h.call("environ", name="T_REPORT_SHARED")[0] == "first"
    assert h.call("environ", name="T_REPORT_B")[0] == "twin's"
    line = h.wait_log("two plugins want different values: the first in the manifest has its way; [host] env.NAME decides otherwise")
    assert line["level"] == "warning" and (line["name"], line["plugin"], line["other_plugin"]) == ("T_REPORT_SHARED", "a", "b")
    h = host(both.format("b", "_twin", "a", ""), APP)
    assert h.call("environ", name="T_REPORT_SHARED")[0] == "second"
    h = host(both.format("a", "", "b", "_twin"), APP, args=["--set", "host.env.T_REPORT_SHARED=mine"])
    assert h.call("environ", name="T_REPORT_SHARED")[0] == "mine"
    assert not any("two plugins" in line.get("msg", "") for line in h.log), "the administrator has decided"
    h = host(both.format("a", "", "b", ""), APP)
    assert not any("two plugins" in line.get("msg", "") for line in h.log), "one library twice wants the same"


def test_plg6_a_note_may_not_set_what_others_go_by(host):
    h = host("[plugin a]\nlibrary = bad_env\noptional = yes\n", wait=None)
    assert h.wait() == 69
    line = h.find("plugin was not loaded")
    assert line["error"] == "note.environment" and line["faults"] == "3", "optional does not make it right"
    for part in ("LD_PRELOAD is not a plugin's to set", '"2BAD"', "PYTHONHOME is not"):
        assert part in line["list"]
    assert not any(line.get("msg") == "environment variable set" for line in h.log), "nor is the rest of it set"


def test_plg6_an_optional_plugin_that_is_not_there_sets_nothing(host):
    h = host("""
        [plugin a]
        library = t_missing
        optional = yes
        [app app]
        object = app:App
    """, APP)  # fmt: skip
    assert h.call("environ", name="T_REPORT_A") == [None, ""]


def test_the_manifest_may_set_anything_and_is_told_what_comes_too_late(host):
    h = host("[host]\nenv.LD_PRELOAD =\nenv.PYTHONHASHSEED = 7\nenv.MY_OWN = secret\n[app app]\nobject = app:App\n", APP)
    assert h.call("environ", name="PYTHONHASHSEED") == ["7", "7"]
    late = "an environment variable of the manifest comes too late for the host"
    assert h.find(late, name="LD_PRELOAD")["level"] == "warning"
    assert h.find(late, name="PYTHONHASHSEED") and not h.find(late, name="MY_OWN")
    assert source_of(h, "MY_OWN") == ("manifest", None, "info")
    assert "secret" not in h.text, "values of the manifest are nobody's business"


def test_man1_check_lists_a_notes_faults(tmp_path):
    manifest = tmp_path / "node.ini"
    command = [str(stage() / "sbin" / "bulkheadd"), "-c", str(manifest), "--check", "--plugin-dir", str(plugin_dir())]
    manifest.write_text(f"[host]\nruntime_dir = {tmp_path}\nenv.LD_LIBRARY_PATH = /x\n[plugin a]\nlibrary = bad_env\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 69
    assert "note.environment" in done.stderr and "LD_PRELOAD" in done.stderr and "2BAD" in done.stderr
    assert f"{manifest}:3: [host] env.LD_LIBRARY_PATH: remark: the loader and libc have read it" in done.stderr
    manifest.write_text(f"[host]\nruntime_dir = {tmp_path}\n[plugin a]\nlibrary = t_report\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr
