"""`python -m trainer.preflight`, as an agent starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from rundir.preflight import verdict

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (sys.executable, "-m", "trainer.preflight")


def test_a_slow_import_is_a_note(tmp_path: Path) -> None:
    """A cold file system is no fault of the node, which says that it was not checked."""
    env = os.environ | {
        "DDP_RUN_DIR": str(tmp_path),
        "DDP_NODE": "gpu1",
        "DDP_ATTEMPT": "1",
        "DDP_PREFLIGHT_STEP": "1",
        "DDP_PREFLIGHT_LIMITS": "start_s=0.01",
    }
    done = subprocess.run(COMMAND, env=env, timeout=60, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("events*.jsonl")
    report = verdict.from_event(json.loads(path.read_text()))
    assert report is not None
    assert [one.check for one in report.readings] == ["start_s"]
    found = verdict.compose([report, report._replace(node="gpu2", readings=())], ["gpu1", "gpu2"])
    assert not found.bad


def test_by_hand_it_says_what_to_run(tmp_path: Path) -> None:
    """One line, 64."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DDP_")}
    done = subprocess.run(
        COMMAND, env=env, cwd=tmp_path, timeout=60, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (64, "", 1)
    assert "run jobs/prelaunch.sh --preflight" in done.stderr
