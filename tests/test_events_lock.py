"""All who write events wait for each other: on NFS a lock alone keeps two nodes apart."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WRITERS = {
    "jobs": [
        "bash",
        "-euc",
        (
            f"source {ROOT}/jobs/lib.sh; DDP_RUN_DIR=$1 LOG_NAME=t DDP_ATTEMPT=1 DDP_NODE=n1\n"
            "event_write note"
        ),
        "bash",
    ],
    "trainer": [
        sys.executable,
        "-c",
        (
            "import sys; from pathlib import Path; from trainer.events import EventLog\n"
            "EventLog(path=Path(sys.argv[1], 'events.jsonl'), attempt=1, host='n1').write('note')"
        ),
    ],
    "monitor": [
        sys.executable,
        "-c",
        (
            "import sys; from monitor.events import EventLog\n"
            "EventLog(sys.argv[1] + '/events.jsonl', 1, 'n1').append('note')"
        ),
    ],
}


def lock(path: Path) -> int:
    """Hold the file's lock until what is returned is closed."""
    held = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def events(path: Path) -> list[str]:
    """What was written."""
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_waits_for_another(tmp_path: Path, writer: str) -> None:
    """Nothing is written as long as somebody else does."""
    path = tmp_path / "events.jsonl"
    held = lock(path)
    began_s = time.monotonic()
    process = subprocess.Popen([*WRITERS[writer], tmp_path], cwd=ROOT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    seen, waited_s = events(path), time.monotonic() - began_s
    os.close(held)
    assert process.wait(30) == 0
    assert events(path) == ["note"]
    assert seen == [] or waited_s > 2, "it did not wait"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_lock_that_nobody_lets_go_of_costs_no_event(tmp_path: Path, writer: str) -> None:
    """Such as that of a node that was lost: the event is written without."""
    path = tmp_path / "events.jsonl"
    held = lock(path)
    subprocess.run([*WRITERS[writer], tmp_path], cwd=ROOT, check=True, timeout=30)
    os.close(held)
    assert events(path) == ["note"]
