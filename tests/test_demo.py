"""examples/demo.sh, as `make demo` runs it where no Slurm answers: tests/jobs has the rest."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo.sh"


@pytest.mark.slow
def test_the_demo_in_place(tmp_path: Path) -> None:
    """Without Slurm, root or network: two ranks train on digits, and the report is shown.

    Without any option they reach above 95 % on digits that they never trained on.
    """
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DDP_OUT": str(tmp_path / "out")}
    done = subprocess.run(
        [DEMO],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "host CPU %" in done.stdout  # the report's table
    (run,) = tmp_path.glob("out/*/run.json")
    assert json.loads(run.read_text())["summary"]["test_accuracy"] > 0.95
    assert (run.parent / "checkpoints" / "best").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("out", "code"), [("out", 0), ("a-file/out", 64)])
def test_the_demo_without_a_monitor(tmp_path: Path, out: str, code: int) -> None:
    """There is no log to report; the code is the run's own, also where it cannot begin."""
    (tmp_path / "a-file").touch()
    env = {"PATH": os.environ["PATH"], "DDP_OUT": str(tmp_path / out), "DDP_MONITOR": "0"}
    words = [DEMO, "--", "true"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, "The run lies in" in done.stdout) == (code, code == 0), done.stderr
