"""`why`, asked about runs that really failed, were killed and were started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.growing import events_below
from tests.monitor.asked_why import ROOT, shown


def start(directory: Path, *args: str, **env: str) -> subprocess.Popen[bytes]:
    """Start the batch script with two ranks in place, in a session of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    settings = {"DDP_PYTHON": sys.executable, "DDP_NPROC_PER_NODE": "2"}
    return subprocess.Popen(
        [ROOT / "jobs/prelaunch.sh", *args],
        cwd=directory,
        env=kept | settings | {"DDP_MONITOR_INTERVAL": "1"} | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def test_a_run_that_goes_on_and_is_then_killed(tmp_path: Path, until: Any) -> None:
    """Still running while its ranks live; killed when everything of it got SIGKILL at once."""
    process = start(tmp_path, "--", "bash", "-c", "echo hello; exec sleep 60")
    try:
        until(lambda: len(events_below(tmp_path, "rank_up")) == 2)
        (run_dir,) = tmp_path.glob("out/*/")
        assert shown(run_dir)[0].startswith("STILL RUNNING: no step yet, last line ")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    pids = [event["pid"] for event in events_below(tmp_path, "rank_up")]
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))
    head = shown(run_dir)[0]
    assert head == "KILLED: the run was killed and could not say why [killed; no exit code]"


@pytest.mark.slow
def test_a_real_failure(tmp_path: Path) -> None:
    """Rank 1 raises; rank 0, which waits for it, is ended; the screen shows the traceback."""
    program_text = (
        "import os, time; time.sleep(0.3); 1 // (1 - int(os.environ['RANK'])); time.sleep(60)"
    )
    process = start(tmp_path, "--", sys.executable, "-c", program_text)
    assert process.wait(60) == 1
    (run_dir,) = tmp_path.glob("out/*/")
    lines = shown(run_dir)
    assert "failed: ZeroDivisionError: integer" in lines[0]
    assert lines[0].endswith("[program; code 1]")
    assert any("ZeroDivisionError: integer division" in line for line in lines[2:])
    assert any(line.startswith("node    ") for line in lines)


@pytest.mark.slow
def test_real_restarts(tmp_path: Path) -> None:
    """Two starts with causes of their own: each is reported by its own words."""
    program_text = (
        "import os, sys; first = os.environ['DDP_ATTEMPT'] == '1';"
        "sys.exit('OSError: [Errno 28] No space left on device' if first else 'KeyError: 7')"
    )
    process = start(
        tmp_path, "--", sys.executable, "-c", program_text, DDP_MAX_RESTARTS="1",
        DDP_MAX_IDLE_RESTARTS="9",
    )  # fmt: skip
    assert process.wait(60) == 1
    (run_dir,) = tmp_path.glob("out/*/")
    attempts = json.loads((run_dir / "run.json").read_text())["attempts"]
    assert [one["failure_class"] for one in attempts] == ["storage", "program"]
    assert [one["decision"]["decision"] for one in attempts] == ["restart", "fail"]
    text = " ".join(" ".join(shown(run_dir)).split())
    assert "start 2 of 2" in text
    assert "not started again: DDP_MAX_RESTARTS=1 is reached" in text
