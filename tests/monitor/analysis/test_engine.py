"""A rule is written once and shows everywhere."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor import cli
from monitor.analysis import readings, rules_work
from monitor.analysis.findings import Finding
from monitor.analysis.rules import Rule
from monitor.analysis.thresholds import Thresholds
from monitor.logs.series import Run
from tests.monitor.live_logs import gpu, log_of


def hot(run: Run, at: Thresholds) -> Iterator[Finding]:
    """Find GPUs that ever were as hot as 90 C."""
    del at
    for series in readings.gpus(run):
        temp_c = series.column("mtemp")
        if temp_c is not None and temp_c.max() > 90:
            text = f"memory at up to {temp_c.max():.0f} C"
            yield readings.finding("error", series, temp_c > 90, text, "open a window")


HOT = Rule(name="hot", meaning="a GPU's memory is hot", check=hot, needs=("mtemp",))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A GPU of two has hot memory."""
    log = log_of(tmp_path, "n1", letters="pumt")
    for _ in range(9):
        log.write(gpu(0), gpu(1, mem_temp_c=99))
    return log.path


def test_a_rule_is_added_in_one_file(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An entry in one `RULES`: in the list, text and JSON of `diagnose`, in `watch`, in `html`."""
    page = log.with_suffix(".html")
    assert cli.main(["diagnose", str(log)]) == 0
    monkeypatch.setattr(rules_work, "RULES", (*rules_work.RULES, HOT))
    assert cli.main(["diagnose", "--list-rules"]) == 0
    assert "  hot          a GPU's memory is hot\n" in capsys.readouterr().out
    assert cli.main(["diagnose", str(log)]) == 4
    output = capsys.readouterr().out
    assert "ERROR    hot: n1 GPU 1, 2026-11-21 12:00:00 to 12:02:00\n" in output
    assert "memory at up to 99 C\n         -> open a window\n" in output
    assert cli.main(["diagnose", "--json", str(log)]) == 4
    (one,) = json.loads(capsys.readouterr().out)["findings"]
    assert (one["rule"], one["gpu"], one["evidence"]) == ("hot", 1, "memory at up to 99 C")
    assert cli.main(["watch", str(log)]) == 0
    assert "! n1 GPU 1: memory at up to 99 C\n" in capsys.readouterr().out
    assert cli.main(["html", str(log), "--out", str(page)]) == 0
    found = re.search(r'"findings": ?(\[.*?\}\])', page.read_text())
    assert found
    (shown,) = json.loads(found[1])
    assert (shown["rule"], shown["where"], shown["suggestion"]) == (
        "hot",
        "n1 GPU 1",
        "open a window",
    )
