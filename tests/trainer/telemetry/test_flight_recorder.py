"""What a rank remembers of its collectives, with torch's own recorder under gloo."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.parallel.test_layouts import Server, server  # noqa: F401 -- a fixture
from trainer.config import Config
from trainer.telemetry import flight_recorder
from trainer.telemetry.flight_recorder import FlightRecorder, remember


def entries(path: Path) -> list[dict[str, Any]]:
    """What a file of one rank holds, the oldest first; torch wrote it."""
    record: dict[str, Any] = pickle.loads(path.read_bytes())  # noqa: S301 -- our own
    reported: list[dict[str, Any]] = record["entries"]
    return reported


@pytest.mark.slow
def test_the_last_collectives_lie_beside_the_trace(server: Server) -> None:  # noqa: F811
    """As many as asked for, with the lines of ours that began them.

    A rank that is not traced writes none, nor does anybody without the option.
    """
    options = "--max-steps 3 --profile-steps 2:2 --profile-ranks 1 --flight-recorder 12"
    codes, run, output = server.train(2, options, "remembered")
    assert codes == [0] * 2, output
    names = sorted(path.name for path in (run.path / "debug").iterdir())
    assert names == ["nccl-trace-rank-1", "trace-rank-1.json"]
    reported = entries(run.path / "debug/nccl-trace-rank-1")
    assert len(reported) == 12
    assert reported[-1]["record_id"] - reported[0]["record_id"] == 11
    assert any("all_reduce" in entry["profiling_name"] for entry in reported)
    lines = {frame["filename"] for entry in reported for frame in entry["frames"]}
    assert any(line.endswith("trainer/loop/train_step.py") for line in lines)

    codes, run, output = server.train(2, "--max-steps 2 --profile-steps 2:2", "forgotten")
    assert codes == [0] * 2, output
    assert [path.name for path in (run.path / "debug").iterdir()] == ["trace-rank-0.json"]


@pytest.mark.slow
def test_a_rank_that_fails_leaves_its_collectives(server: Server) -> None:  # noqa: F811
    """Each rank its own, of the time until then."""
    options = "--max-steps 90 --flight-recorder 50 --workload tests.trainer.poisoned:Poisoned"
    codes, run, output = server.train(2, options, "failed")
    assert codes == [70, 70], output
    assert "loss" in output
    for rank in range(2):
        assert entries(run.path / f"debug/nccl-trace-rank-{rank}")


def test_torch_is_configured_before_the_rendezvous(tmp_path: Path) -> None:
    """How many, and where what it writes by itself is to lie; what a user has set stays."""
    env: dict[str, str] = {}
    remember(Config(), tmp_path, env)
    assert env == {}
    remember(Config(flight_recorder=300), tmp_path, env)
    assert env == {
        "TORCH_FR_BUFFER_SIZE": "300",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/debug/nccl-trace-rank-",
    }
    env = {"TORCH_FR_DUMP_TEMP_FILE": "/elsewhere/r", "TORCH_FR_BUFFER_SIZE": "2000"}
    remember(Config(flight_recorder=0), None, env)
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == "/elsewhere/r"
    assert env["TORCH_FR_BUFFER_SIZE"] == "0"


def test_a_record_that_cannot_be_had_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older torches have none of gloo, and disks are full: it is reported."""
    recorder = FlightRecorder(Config(flight_recorder=5), tmp_path / "debug", 3, "gloo")
    monkeypatch.setattr(flight_recorder, "c10d", SimpleNamespace())
    recorder.write()
    (tmp_path / "debug").rmdir()
    monkeypatch.setattr(flight_recorder, "c10d", SimpleNamespace(_dump_fr_trace=lambda: b"dumped"))
    recorder.write()
    first, second = capsys.readouterr().err.splitlines()
    place = tmp_path / "debug/nccl-trace-rank-3"
    assert first.startswith(f"trainer: could not write to {place}: AttributeError")
    assert second.startswith(f"trainer: could not write to {place}: FileNotFoundError")


def test_a_folder_that_cannot_be_made_ends_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody has a file of that name: it is reported when there is something to write."""
    (tmp_path / "debug").write_text("somebody else's")
    FlightRecorder(Config(flight_recorder=5), tmp_path / "debug", 0, "gloo").write()
    assert "NotADirectoryError" in capsys.readouterr().err


@pytest.mark.slow
def test_a_refused_start_leaves_nothing(server: Server, tmp_path: Path) -> None:  # noqa: F811
    """Not the folder either, in which collectives would have been written."""
    options = f"--max-steps 2 --flight-recorder 5 --resume {tmp_path / 'none'}"
    codes, run, output = server.train(2, options, "refused")
    assert codes == [64, 64], output
    assert not run.path.exists()


@pytest.mark.parametrize(
    ("backend", "reported"), [("nccl", b"of nccl"), ("gloo", b"of gloo"), ("none", None)]
)
def test_each_backend_has_a_record_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any, reported: bytes | None
) -> None:
    """And one process alone has none."""
    dumps = {"_dump_nccl_trace": lambda: b"of nccl", "_dump_fr_trace": lambda: b"of gloo"}
    monkeypatch.setattr(flight_recorder, "c10d", SimpleNamespace(**dumps))
    FlightRecorder(Config(flight_recorder=5), tmp_path / "debug", 0, backend).write()
    found = [path.read_bytes() for path in tmp_path.glob("debug/*")]
    assert found == ([] if reported is None else [reported])
