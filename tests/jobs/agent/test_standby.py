"""An agent that waits for an attempt that may never come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rundir import procfs
from tests.conftest import Cluster

ROOT = Path(__file__).resolve().parents[3]
AGENT = """
import os
from jobs.agent.child import Streams, start
from jobs.agent.standby import Standby
agent = object.__new__(Standby)
agent._has_own_session = False
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


IN_A_SESSION = """
import os, sys
from jobs import programs
from jobs.agent import standby
programs.module_command = lambda *_: ["sleep", "600"]
standby._LOW_S = float(sys.argv[2])
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
session = sys.argv[1] or str(os.getsid(0))
place = dict(os.environ, **dict(zip(names, "001111")))
agent = standby.Standby(place, os.getcwd(), session)
show = lambda: print(open("/proc/self/autogroup").read().split()[-1], flush=True)
show()
agent.wait({})
show()
"""


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="this kernel does not weigh sessions"
)
@pytest.mark.parametrize(
    ("supervisor", "low_s", "priorities"),
    [("0", 600, ["19", "0"]), ("", 600, ["0", "0"]), ("0", 0, ["19", "0"])],
    ids=["own", "shared", "for long"],
)
def test_its_session_comes_last_while_it_waits(
    supervisor: str, low_s: float, priorities: list[str]
) -> None:
    """The priority of a process counts in its session only, and each step of Slurm's has one."""
    with subprocess.Popen(
        [sys.executable, "-c", IN_A_SESSION, supervisor, str(low_s)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stdout.readline().strip() == priorities[0]
        if not low_s:
            own = Path(f"/proc/{agent.pid}/autogroup")
            Cluster.until(lambda: own.read_text().split()[-1] == "0", 20, "it is as others are")
        agent.stdin.write('{"words": [], "environ": {}}\n')
        agent.stdin.close()
        assert agent.stdout.readline().strip() == priorities[1]
