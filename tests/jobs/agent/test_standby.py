"""An agent that waits for an attempt that may never come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rundir import procfs

ROOT = Path(__file__).resolve().parents[3]
AGENT = """
import os
from jobs.agent.child import Streams, start
from jobs.agent.standby import Standby
agent = object.__new__(Standby)
agent._child = start(["sleep", "600"], os.environ, Streams(2, 2), 0)
print(agent._child.pid, flush=True)
agent.wait({})
"""


def test_it_leaves_no_process_behind() -> None:
    """Slurm would look for what its task leaves, and end the step a second later."""
    words = [sys.executable, "-c", AGENT]
    done = subprocess.run(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
    )
    assert not procfs.is_alive(int(done.stdout))
