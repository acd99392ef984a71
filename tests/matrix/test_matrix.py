"""The main job, a resume, a kill and a requeue with the Slurm and Python of another Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT_SCRIPT = Path(__file__).with_name("root.sh")
SLICE = (
    "tests/jobs/test_training.py::test_scancel_leaves_a_checkpoint",
    "tests/jobs/test_recovery.py::test_a_killed_rank_costs_seconds",
    "tests/jobs/test_requeue.py::test_a_preempted_job_comes_back[preempted]",
)
"""`make matrix` runs whole folders, also on Debian unstable, which changes from day to day."""


def _why_no_root() -> str | None:
    if os.geteuid() != 0:
        return "another Debian's root needs root"
    if not shutil.which("mmdebstrap"):
        return "another Debian's root needs mmdebstrap: run tests/provision.sh"
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    if subprocess.run(namespaces, capture_output=True, check=False).returncode:
        return "another Debian's root needs the right to make namespaces"
    return None


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_slice_on_another_debian() -> None:
    """Each of these tests passes there, and none is skipped."""
    reason = _why_no_root()
    if reason:
        pytest.skip(reason)
    _root("build", "trixie")
    output = _root("run", "trixie", "python", "-m", "pytest", "-p", "no:cacheprovider", *SLICE)
    assert f" {len(SLICE)} passed in " in output, output


def _root(*args: str) -> str:
    """`root.sh ARGS`; its output."""
    ended = subprocess.run(
        [ROOT_SCRIPT, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    return ended.stdout


@pytest.mark.parametrize("args", [("build", "bookworm"), ("run",), ("mount", "sid")])
def test_what_it_does_not_know_is_refused(args: tuple[str, ...]) -> None:
    """One line, code 64."""
    ended = subprocess.run([ROOT_SCRIPT, *args], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (64, 1)
