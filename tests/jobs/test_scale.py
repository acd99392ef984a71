"""4,096 ranks on 512 nodes: their agents' reports, without the ranks."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Scripts

pytestmark = pytest.mark.slow

NUM_NODES, NUM_LOCAL = 512, 8
NUM_RANKS = NUM_NODES * NUM_LOCAL
CULPRIT = 1717
STEP = f"""
import os, random, sys
sys.path.insert(0, {{root!r}})
from rundir import channel, events

attempt, count = int(os.environ["DDP_ATTEMPT"]), 0
out = []


def report(rank, name, **keys):
    global count
    count += 1
    node = f"n{{{{rank // {NUM_LOCAL}}}}}"
    log = events.EventLog(out.append, "launcher", attempt, node)
    log.write(name, rank=rank, node=node, **keys)
    sys.stdout.buffer.write(b"[%d] a line without end" % rank)
    sys.stdout.buffer.write(channel.frames(out.pop(), f"{{{{rank}}}}.{{{{count}}}}"))


ranks = list(range({NUM_RANKS}))
random.Random(7).shuffle(ranks)
for rank in ranks:
    report(rank, "rank_up", local_rank=rank % {NUM_LOCAL}, pid=1, log_offset=0, step_id=0)
followers = [rank for rank in ranks if rank != {CULPRIT}]
for rank in followers[:9]:  # who lost the culprit tells it before the culprit's own agent
    report(rank, "failure", error="RuntimeError: Connection closed by peer [10.0.0.1]:1")
    report(rank, "rank_end", code=70, signal=None, requested=False, oom=False)
report({CULPRIT}, "rank_end", code=137, signal="KILL", requested=False, oom=False)
for rank in followers[9:]:
    report(rank, "rank_end", code=143, signal="TERM", requested=True, oom=False)
sys.stdout.flush()
sys.exit(137)
"""


MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=open("used", "w"))
sys.exit(code)
"""


def test_one_failure_among_thousands(scripts: Scripts, patience: Callable[[float], float]) -> None:
    """It is classified right, in seconds, by less than one core and 500 MB."""
    scripts.fake_slurm(*(f"n{node}" for node in range(NUM_NODES)))
    scripts.fake("getent", 'echo "10.1.2.3 STREAM $2"')
    program = scripts.directory / "step.py"
    program.write_text(STEP.format(root=str(scripts.root)))
    scripts.fake("srun", f"exec '{sys.executable}' '{program}'")
    words = [sys.executable, "-c", MEASURE, scripts.root / "jobs" / "prelaunch.sh", "--", "true"]
    began_s = time.monotonic()
    done = subprocess.run(
        words,
        env=scripts.env | {"SLURM_NTASKS": str(NUM_RANKS), "SLURMD_NODENAME": "n0"},
        cwd=scripts.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    took_s = time.monotonic() - began_s
    busy_s, peak_mib = map(float, (scripts.directory / "used").read_text().split())
    print(f"{took_s:.1f} s, {busy_s:.1f} of them busy, {peak_mib:.0f} MiB")
    assert done.returncode == 137
    told = done.stderr.splitlines()[-1]
    assert f"rank {CULPRIT} on n{CULPRIT // NUM_LOCAL} was killed by signal 9" in told
    assert done.stdout.count("a line without end") == 2 * NUM_RANKS + 9
    (path,) = scripts.directory.glob("out/*/events.jsonl")
    assert path.read_text().count('"event": "rank_end"') == NUM_RANKS
    assert took_s < patience(10)
    assert busy_s < patience(10)
    assert peak_mib < 500
