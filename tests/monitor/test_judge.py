"""What a live view says by the rules of `diagnose`: the same, as long as it is so."""

from pathlib import Path

import pytest

from monitor import cli
from monitor.diagnosis.diagnose import RULES
from monitor.diagnosis.thresholds import Thresholds
from monitor.live import alerts
from monitor.live import log as live_log
from monitor.live.fleet import Fleet
from monitor.live.judge import LOOKED_AT, judge
from monitor.live.log import LiveLog
from monitor.live.target import Target
from monitor.logs import series
from tests.monitor.live_logs import LogWriter, gpu, log_of

STUCK = {"sm_pct": 100, "mem_pct": 0, "dram_active_pct": 0, "power_w": 150}
SLOW = {"sm_pct": 61, "sm_active_pct": 50}


def read(*logs: LogWriter) -> list[LiveLog]:
    """Read them as they are now."""
    found = [LiveLog(str(log.path)) for log in logs]
    live_log.poll(found)
    return found


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    """Three GPUs over 35 min: one slower than the others, another one stuck for the last 10."""
    log = log_of(tmp_path, "n1", letters="pumtc", memory_mib=60_000)
    for cycle in range(140):
        stuck = STUCK if cycle >= 100 else {}
        log.write(gpu(0, sm_pct=97 + cycle % 2), gpu(1, **SLOW), gpu(2, **stuck))
    return log


def test_it_finds_what_diagnose_finds(log: LogWriter) -> None:
    """The same findings, in all their parts, of the same readings."""
    run = series.load([str(log.path)])
    rules = [rule for rule in RULES if rule.name in LOOKED_AT]
    wanted = [one for rule in rules for one in rule.check(run, Thresholds())]
    found = judge(read(log))
    assert found == wanted
    assert {(one.rule, one.gpu) for one in found} == {("hung", 2), ("straggler", 1)}


def test_what_is_over_is_not_told(log: LogWriter) -> None:
    """Five minutes after its end; `diagnose` still has it."""
    for _ in range(30):
        log.write(gpu(0), gpu(1, **SLOW), gpu(2))
    assert {(one.rule, one.gpu) for one in judge(read(log))} == {("straggler", 1)}
    assert cli.main(["diagnose", str(log.path)]) == 3


def test_an_alert_has_its_evidence(log: LogWriter) -> None:
    """Worst first among the others, in a view that looks once."""
    fleet = Fleet(Target(files=(str(log.path),)))
    fleet.poll(is_only=True)
    found = alerts.folded(alerts.of_findings(fleet.findings))
    assert [(alert.severity, alert.where, alert.rule) for alert in found] == [
        ("error", "n1 GPU 2", "hung"),
        ("warning", "n1 GPU 1", "straggler"),
    ]
    assert "up to the end of the log" in found[0].text


def test_a_picture_has_it(log: LogWriter, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, too."""
    assert cli.main(["watch", str(log.path)]) == 0
    assert "n1 GPU 2: busy without work for" in capsys.readouterr().out
