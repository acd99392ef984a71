import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.config import Config
from trainer.errors import UserError
from trainer.events import EventLog, append_line, utc_now
from trainer.schedule import LearningRate
from trainer.settings import RunSettings
from trainer.stop import StopRequest
from trainer.workloads.registry import build_workload


def test_the_cosine_rises_falls_and_ends_near_zero() -> None:
    """Linear warm-up to the peak, half of it in the middle, the last step above zero."""
    rate = LearningRate(peak=1.0, kind="cosine", warmup_steps=10, total_steps=110)
    assert [rate.at(0), rate.at(9), rate.at(10), rate.at(60)] == pytest.approx([0.1, 1.0, 1.0, 0.5])
    assert 0 < rate.at(109) < 0.001


def test_constant_stays() -> None:
    """After warm-up the rate does not move."""
    rate = LearningRate(peak=2.0, kind="constant", warmup_steps=2, total_steps=9)
    assert [rate.at(s) for s in (0, 1, 2, 8)] == [1.0, 2.0, 2.0, 2.0]


def test_settings_are_the_contracts_variables() -> None:
    """DDP_* as docs/architecture.md has them; without them, a run by hand."""
    env = {"DDP_RUN_DIR": "/r", "DDP_ATTEMPT": "3", "DDP_SEED": "7", "DDP_NODE": "n1"}
    assert RunSettings.from_environment(env, "h") == RunSettings(
        run_dir=Path("/r"), attempt=3, seed=7, node="n1"
    )
    assert RunSettings.from_environment({}, "h") == RunSettings(node="h")
    with pytest.raises(UserError, match="DDP_SEED"):
        RunSettings.from_environment({"DDP_SEED": "x"}, "h")


def test_an_event_has_the_contracts_keys_in_order(tmp_path: Path) -> None:
    """time, event, source, attempt, host, then the event's own; not-a-number becomes null."""
    log = EventLog(path=tmp_path / "events.jsonl", attempt=2, host="n1")
    log.write("checkpoint", step=5, seconds=float("nan"))
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert list(event) == ["time", "event", "source", "attempt", "host", "step", "seconds"]
    assert (event["source"], event["attempt"], event["host"]) == ("trainer", 2, "n1")
    assert event["seconds"] is None
    assert utc_now().endswith("Z")
    assert len(utc_now()) == len("2026-11-21T04:17:29.123Z")


def test_a_record_that_cannot_be_written_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk or a lost folder costs a line of the record, never the run."""
    append_line(Path("/nonexistent/events.jsonl"), {"a": 1})
    assert "could not write to /nonexistent/events.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["nonesuch", "nonesuch.module:Class", "json:JSONDecoder", "json:Nope"]
)
def test_an_unknown_workload_is_an_error_that_lists_the_known(name: str) -> None:
    """Neither a wrong name nor a class of another kind gets further than this."""
    with pytest.raises(UserError, match=f"--workload {name}: one of mnist, imagefolder"):
        build_workload(Config(workload=name))


def test_one_request_delivered_twice_is_one() -> None:
    """Slurm and the launcher may both deliver it."""
    stop = StopRequest()
    stop._handle(signal.SIGUSR1, None)  # noqa: SLF001 -- as the interpreter calls it
    stop._handle(signal.SIGTERM, None)  # noqa: SLF001
    assert stop.signal_name == "USR1"


def test_a_second_request_later_ends_at_once(patience: Callable[[float], float]) -> None:
    """With 128 + the signal's number."""
    code = (
        "import os, signal, time, trainer.stop as s; s._SAME_REQUEST_S = 0.01\n"
        "s.StopRequest().install(); os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.1)\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"
    )
    root = str(Path(__file__).parents[2])
    began_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, check=False
    )
    assert ended.returncode == 128 + signal.SIGTERM
    assert time.monotonic() - began_s < patience(8)
