import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.telemetry.events import EventLog, append_line


def test_an_event_has_the_contracts_keys_in_order(tmp_path: Path) -> None:
    """time, event, source, attempt, host, then the event's own; not-a-number becomes null."""
    log = EventLog(path=tmp_path / "events.jsonl", attempt=2, host="n1")
    log.write("checkpoint", step=5, seconds=float("nan"))
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert list(event) == ["time", "event", "source", "attempt", "host", "step", "seconds"]
    assert (event["source"], event["attempt"], event["host"]) == ("trainer", 2, "n1")
    assert event["seconds"] is None


def test_half_a_line_spoils_no_other_one(tmp_path: Path) -> None:
    """On a nearly full disk what fits is written: that is reported; the next line is whole."""
    path = tmp_path / "events.jsonl"
    limited = (
        "import resource, sys; from pathlib import Path\n"
        "from trainer.telemetry.events import append_line\n"
        "path = Path(sys.argv[1])\n"
        "append_line(path, {'n': 1})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (15, -1))\n"
        "append_line(path, {'n': 2, 'more': 'than fits'})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "append_line(path, {'n': 3})\n"
        "append_line(path, {'n': 4})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", limited, path], capture_output=True, text=True, check=True
    )
    assert path.read_text() == '{"n": 1}\n{"n": \n{"n": 3}\n{"n": 4}\n'
    reported = f"trainer: could not write to {path}: [Errno 28] No space left on device: "
    assert ended.stderr.startswith(reported)
    assert ended.stderr.count("\n") == 1


def test_a_record_that_cannot_be_written_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk or a lost folder costs a line of the record, never the run."""
    append_line(Path("/nonesuch/events.jsonl"), {"a": 1})
    assert "could not write to /nonesuch/events.jsonl" in capsys.readouterr().err
