"""What /proc shows of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from rundir import procfs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/pod/rank", {"cpu.max": "150000 100000", "pod/cpu.max": "max 100000"}, 1),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 64),
        ("0::/pod", {"cpu.max": "800000 100000", "pod/cpu.max": "350000 100000"}, 3),
        ("4:cpuacct,cpu:/docker/1\n3:cpuset:/x", {"cpu/cpu.cfs_quota_us": "250000"}, 2),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1"}, 64),
        ("", {}, 64),
    ],
)
def test_a_quota_is_as_good_as_fewer_cpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    files: dict[str, str],
    expected: int,
) -> None:
    """Of any cgroup above this process, and of the one that a container shows as the root."""
    for name, text in {"cpu/cpu.cfs_period_us": "100000", **files}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")
    text = procfs._text  # noqa: SLF001 -- of what is in /proc
    monkeypatch.setattr(procfs, "_text", lambda p: group if p.startswith("/proc") else text(p))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: range(64))
    assert procfs.num_cpus(str(tmp_path)) == expected


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
