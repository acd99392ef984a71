"""Programs with torch's @record: what they write of a failure is the job's word for it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Scripts

pytestmark = pytest.mark.slow

PROGRAM = """
import os, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        print("Error: a guess from the log")
        raise ValueError("shard 7 is bad,\\nand so is 8")
    dist.barrier()

try:
    main()
except ValueError:
    os._exit(1)  # as where a log has nothing of it
"""
ONE_TASK_A_NODE = """if [[ $1 == --help ]]; then exit; fi
while [[ $1 == -* ]]; do shift; done
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_ID=0
export SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=1
exec "$@" """


@pytest.mark.parametrize("is_node_task", [False, True])
def test_what_record_wrote_is_the_failures_word(scripts: Scripts, *, is_node_task: bool) -> None:
    """In the job's last line and in `why`, exactly; under torchrun in its summary, too.

    Nothing is left in TMPDIR, where torchrun keeps a directory for it.
    """
    (scripts.directory / "program.py").write_text(PROGRAM)
    env = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": "/nowhere/of-the-job.json"}
    if is_node_task:
        scripts.fake_slurm(socket.gethostname())
        scripts.fake("srun", ONE_TASK_A_NODE)
        env |= {"SLURM_NTASKS": "1", "DDP_NPROC_PER_NODE": "2", "MASTER_ADDR": "127.0.0.1"}
    own = scripts.directory / "tmp"
    own.mkdir()
    env["TMPDIR"] = str(own)
    result = scripts.run("prelaunch.sh", "--", sys.executable, "program.py", **env)
    assert result.code == 1, result.err
    told = "ValueError: shard 7 is bad, and so is 8"
    assert f"ended with code 1: {told}; its log: " in result.err.splitlines()[-1]
    (failure,) = [event for event in result.of("failure") if event["rank"] == 1]
    assert failure["error"] == told
    assert result.of("first_failure")[0]["rank"] == 1
    kept = result.run_dir / "debug" / "error-1-rank-1.json"
    assert json.loads(kept.read_text())["message"]["message"].startswith("ValueError: shard 7")
    why = [sys.executable, "-m", "monitor", "why", result.run_dir]
    shown = subprocess.run(why, capture_output=True, text=True, check=False, cwd=scripts.root)
    assert told in " ".join(shown.stdout.split()), shown.stdout + shown.stderr
    if is_node_task:
        (log,) = (result.run_dir / "logs").glob("torchrun-*.log")
        assert 'raise ValueError("shard 7 is bad' in log.read_text()
    assert not list(own.iterdir())
