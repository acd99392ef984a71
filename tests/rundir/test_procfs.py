"""What /proc shows of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from rundir import procfs


def test_what_proc_tells() -> None:
    """State, identity, time and handlers of a process; nothing of one that is gone."""
    sleeper = subprocess.Popen(["sleep", "60"])
    pid = sleeper.pid
    assert procfs.identity(pid) == procfs.identity(pid)
    assert procfs.cpu_s(pid) is not None
    assert not procfs.catches(pid, signal.SIGUSR2)
    assert not procfs.is_python(pid)
    assert procfs.is_python(os.getpid())
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while procfs.state(pid) != "T":
        assert time.monotonic() < deadline
    sleeper.kill()
    while procfs.state(pid) is not None:  # a zombie has ended
        assert time.monotonic() < deadline
    sleeper.wait()
    assert procfs.identity(pid) is None
    assert procfs.cpu_s(pid) is None
    assert procfs.environment(pid) == {}
    assert not procfs.catches(pid, signal.SIGUSR2)
