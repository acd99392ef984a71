import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trainer.telemetry.metrics import (
    Interval,
    LiveBar,
    LogLines,
    MetricsFile,
    Sink,
    Sinks,
    open_sinks,
)

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
    output = capsys.readouterr().out
    assert "120/200" in output
    assert "eta 0:02:40" in output


@pytest.mark.parametrize("sink", [LogLines, lambda step: LiveBar(200, step)])
def test_a_run_without_an_end_has_a_line_too(
    sink: Callable[[int], Sink], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its time left is more than a timedelta holds."""
    opened = sink(100)
    opened.interval(replace(RESUMED, total_steps=2**63))
    opened.close()
    assert "eta 115740740 days" in capsys.readouterr().out


def test_the_bar_begins_where_the_run_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Also before the first interval has ended, when its length is unknown."""
    bar = LiveBar(200, 100)
    bar.close()
    output = capsys.readouterr().out
    assert "100/200" in output
    assert "eta -" in output


def test_a_line_of_the_file_tells_how_many_steps_there_are(tmp_path: Path) -> None:
    """A reader need not look for the log."""
    MetricsFile(tmp_path / "metrics.jsonl", attempt=2).interval(RESUMED)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["attempt"], line["step"], line["total_steps"]) == (2, 120, 200)


class FullDisk:
    """A sink whose disk is full, such as that of TensorBoard."""

    num_asked = 0

    def interval(self, _interval: object) -> None:
        """Fail."""
        self.num_asked += 1
        raise OSError(28, "No space left on device")

    validation = interval

    def close(self) -> None:
        """Fail."""
        self.interval(None)


def test_a_sink_that_fails_is_reported_once_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others, also those after it, are reported as before."""
    full = FullDisk()
    sinks = Sinks([full, MetricsFile(tmp_path / "metrics.jsonl", attempt=1)])
    sinks.interval(RESUMED)
    sinks.interval(RESUMED)
    sinks.close()
    assert full.num_asked == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    output = capsys.readouterr().err
    assert "no more metrics to FullDisk" in output
    assert output.count("\n") == 1


def test_tensorboard_that_cannot_be_opened_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first file is written when it is opened."""
    (tmp_path / "tensorboard").write_text("somebody else's")
    sinks = open_sinks(tmp_path, attempt=1, started_step=0, total_steps=9, tensorboard=True)
    sinks.interval(RESUMED)
    sinks.close()
    assert (tmp_path / "metrics.jsonl").exists()
    assert "no more metrics to TensorBoard" in capsys.readouterr().err
