"""What snapshots cost: the command, in its short form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_it_prints_what_it_measured() -> None:
    """Once: a test, no numbers."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.snapshots", "--quick"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"a step: \d+ ms .* ratio \d+\.\d{3} \(.*, 1 pairs\)", done.stdout), done.stdout
