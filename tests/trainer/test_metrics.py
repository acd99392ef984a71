import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.metrics import Interval, LiveBar, LogLines, MetricsFile, Sink

RESUMED = Interval(
    step=120,
    total_steps=200,
    epoch=2,
    loss=0.5,
    lr=0.1,
    samples_per_s=10.0,
    data_wait_pct=1.0,
    memory_mib=2.0,
    train_time_s=40.0,
)
"""20 steps since the resume took 40 s, so that the 80 that are left take 160 s."""


@pytest.mark.parametrize("sink", [LogLines, lambda step: LiveBar(200, step)])
def test_the_rest_takes_as_long_as_the_steps_of_this_attempt_did(
    sink: Callable[[int], Sink], capsys: pytest.CaptureFixture[str]
) -> None:
    """What came before a resume took none of its time."""
    opened = sink(100)
    opened.interval(RESUMED)
    opened.close()
    told = capsys.readouterr().out
    assert "120/200" in told
    assert "eta 0:02:40" in told


def test_the_bar_begins_where_the_run_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Also before the first interval has ended, when nobody knows how long it takes."""
    bar = LiveBar(200, 100)
    bar.close()
    told = capsys.readouterr().out
    assert "100/200" in told
    assert "eta -" in told


def test_a_line_of_the_file_tells_how_many_steps_there_are(tmp_path: Path) -> None:
    """Whoever reads along need not look for the log."""
    MetricsFile(tmp_path / "metrics.jsonl", attempt=2).interval(RESUMED)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["attempt"], line["step"], line["total_steps"]) == (2, 120, 200)
