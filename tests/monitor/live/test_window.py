"""What a live view reports by the rules: the same as `diagnose`, as long as it is so."""

from dataclasses import replace
from pathlib import Path

import pytest

from monitor import cli
from monitor.analysis import engine
from monitor.analysis.engine import evaluate
from monitor.analysis.findings import Finding, Summary, summaries
from monitor.analysis.thresholds import Thresholds
from monitor.live import log as live_log
from monitor.live.fleet import Fleet, window
from monitor.live.log import LiveLog
from monitor.live.target import Target
from monitor.logs import series
from monitor.logs.log_events import LogEvent, Place
from tests.monitor.live_logs import NONE, LogWriter, gpu, log_of

STUCK = {"sm_pct": 100, "mem_pct": 0, "dram_active_pct": 0, "power_w": 150}
SLOW = {"sm_pct": 61, "sm_active_pct": 50}


def read(*logs: LogWriter) -> list[LiveLog]:
    """Read them as they are now."""
    found = [LiveLog(str(log.path)) for log in logs]
    live_log.poll(found)
    return found


def found_in(*logs: LogWriter) -> list[Finding]:
    """Evaluate what a live view knows of them."""
    return evaluate(window(read(*logs)))


def alerts_of(logs: list[LiveLog], quiet_s: float | None = None) -> list[Summary]:
    """Return the alerts, of logs that have not grown for so long; None: of a run that is over."""
    now_s = max(log.alive_s for log in logs) + (quiet_s or 0)
    now = window(logs, None, now_s, is_over=quiet_s is None)
    return summaries(now, evaluate(now))


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    """Three GPUs over 35 min: one slower than the others, another one stuck for the last 10."""
    log = log_of(tmp_path, "n1", letters="pumtc", memory_mib=60_000)
    for cycle in range(140):
        stuck = STUCK if cycle >= 100 else {}
        log.write(gpu(0, sm_pct=97 + cycle % 2), gpu(1, **SLOW), gpu(2, **stuck))
    return log


def test_it_finds_what_diagnose_finds(log: LogWriter) -> None:
    """The same findings, in all their parts, of the same readings, by every rule of both."""
    found = found_in(log)
    assert found == evaluate(series.load([str(log.path)]), Thresholds())
    assert {(one.rule, one.gpu) for one in found} == {("hung", 2), ("straggler", 1)}


def test_what_is_over_is_not_shown(log: LogWriter) -> None:
    """Five minutes after its end; `diagnose` still has it. An XID stays."""
    with log.path.open("a") as file:
        file.write("## event: 2026-11-21T12:00:00.000+01:00 xid gpu=0 xid=79\n")
    for _ in range(30):
        log.write(gpu(0), gpu(1, **SLOW), gpu(2))
    found = {(one.rule, one.gpu) for one in found_in(log)}
    assert found == {("straggler", 1), ("xid", 0)}
    assert cli.main(["diagnose", str(log.path)]) == 4
    assert "hung" in {one.rule for one in evaluate(series.load([str(log.path)]))}


def test_an_alert_has_its_evidence(log: LogWriter) -> None:
    """Worst first among the others, in a view that polls once."""
    fleet = Fleet(Target(files=(str(log.path),)))
    fleet.poll(is_only=True)
    assert [(alert.severity, alert.where, alert.rule) for alert in fleet.alerts] == [
        ("error", "n1 GPU 2", "hung"),
        ("warning", "n1 GPU 1", "straggler"),
    ]
    assert "up to the end of the log" in fleet.alerts[0].evidence


def test_a_picture_has_it(log: LogWriter, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, too."""
    assert cli.main(["watch", str(log.path)]) == 0
    assert "n1 GPU 2: busy without work for" in capsys.readouterr().out


def test_a_gpu_is_idle_after_two_minutes_and_until_it_works(tmp_path: Path) -> None:
    """Without the minutes of a start-up: a view may begin at any time."""
    log = log_of(tmp_path, "n1")
    log.write(gpu(0), gpu(1))
    for _ in range(7):
        log.write(gpu(0, sm_pct=2), gpu(1))
    assert found_in(log) == []
    log.write(gpu(0, sm_pct=2), gpu(1))
    (idle,) = found_in(log)
    assert (idle.severity, idle.rule, idle.gpu) == ("warning", "idle", 0)
    assert idle.evidence.startswith("idle for 2 min")
    log.write(gpu(0), gpu(1))
    assert found_in(log) == []


def test_a_lost_gpu_is_an_alert(tmp_path: Path) -> None:
    """Also one whose last reading lies before what the view has read."""
    log = log_of(tmp_path, "n1")
    for _ in range(3):
        log.write(gpu(0), NONE.__class__(index=1))
    (lost,) = alerts_of(read(log))
    assert (lost.severity, lost.where) == ("error", "n1 GPU 1")
    assert lost.evidence == "no reading in any of 3 samples"


def test_a_power_cap_is_no_alert(tmp_path: Path) -> None:
    """It is how a busy GPU runs; heat is one."""
    log = log_of(tmp_path, "n1")
    for _ in range(9):
        log.write(gpu(0, throttle_bits=4), gpu(1, throttle_bits=64))
    assert [(one.rule, one.gpu) for one in found_in(log)] == [("thermal", 1)]


def test_logs_that_do_not_grow_are_one_alert(tmp_path: Path) -> None:
    """By their own interval; with their nodes as Slurm writes them; gone, where the file is."""
    writers = [log_of(tmp_path, f"gpu{i:03}") for i in range(9)]
    for log in writers:
        log.write(gpu(0), gpu(1))
    logs = read(*writers)
    assert alerts_of(logs, 74) == alerts_of(logs) == []
    (alert,) = alerts_of(logs, 90)
    assert (alert.severity, alert.rule, alert.where) == ("warning", "stale", "gpu[000-008]")
    assert "the log has not grown for 2 min" in alert.evidence
    writers[0].path.unlink()
    logs[0].poll()
    gone, stale = alerts_of(logs, 90)
    assert (gone.severity, gone.where, gone.evidence) == ("error", "gpu000", "the log is gone")
    assert stale.where == "gpu[001-008]"


def test_what_a_log_says_happened_is_an_alert() -> None:
    """With the number of an XID and its cause; what is no error is not shown as one."""
    log = LiveLog("slurm-7.n1.gutil")
    for kind, index, details in (
        ("xid", 3, {"xid": "79", "text": "GPU_has_fallen_off_the_bus"}),
        ("xid", 0, {"xid": "45"}),
        ("ecc", 0, {"bits": "single"}),
        ("slow", 3, {"call": "power"}),
        ("back", 3, {}),
    ):
        log.events.append(LogEvent(1.0, kind, index, details, Place("7", "n1")))
    now = window([log])
    assert [(one.severity, one.where, one.evidence) for one in summaries(now, evaluate(now))] == [
        ("error", "n1 GPU 3", "XID 79: the GPU has fallen off the bus (the hardware's fault)"),
        ("warning", "n1 GPU 3", "slow: call power"),
        ("hint", "n1 GPU 3", "back"),
        (
            "hint",
            "n1 GPU 0",
            "XID 45: a program was ended: look for what came before (no fault)",
        ),
    ]


def test_rules_take_a_small_share_of_a_core(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer an evaluation takes, the later the next one."""
    used, now = [0.0], [100.0]
    monkeypatch.setattr("time.thread_time", lambda: used[0])
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    evaluated = []

    def slow(_: object) -> list[Finding]:
        evaluated.append(now[0])
        used[0] += 0.2
        return []

    monkeypatch.setattr("monitor.live.fleet.evaluate", slow)
    fleet = Fleet(Target(files=(str(log.path),)))
    for _ in range(60):
        now[0] += 0.5
        fleet.poll()
    assert evaluated == [101.0, 111.0, 121.0]


def test_rules_of_the_whole_run_are_left_out(log: LogWriter) -> None:
    """And those of a live view are not evaluated afterwards."""
    run = series.load([str(log.path)])
    assert {rule.name for rule in engine.rules() if rule.scope == "live"} == {
        "reported",
        "driver",
        "stale",
    }
    event = {"event": "verdict", "text": "rank 3 hangs"}
    assert evaluate(replace(run, events=(event,))) == evaluate(run)
