"""What `scontrol show job` tells, as each series of Slurm writes it, whatever words it holds."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from jobs.backends import scontrol
from tests.jobs.test_successor import options_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Scripts

# In the order of Slurm 26.05; SUBMITTED stands for what is different in older ones.
TOLD = """JobId=7 JobName=a Requeue=0 NodeList=x
   UserId=somebody(1000) GroupId=somebody(1000) MCS_label=N/A
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   NodeList=node1
   OverSubscribe=NO Exclusive=NO Contiguous=0 Licenses=(null) Network=(null)
   Command=COMMAND
SUBMITTED
   WorkDir=/home/a Nice=5 b
   Comment=x WorkDir=/y Reservation=z
   StdErr=/home/a b/C=d.out
   StdIn=/dev/null
   StdOut=/home/a b/C=d.out
   TresPerNode=gres:gpu:2
"""
SUBMIT_LINE = "   SubmitLine=sbatch --qos=q COMMAND Reason=None QOS=mine"


def told(command: str, *, is_new: bool) -> str:
    """Slurm's answer for a job of this command: by 26.05, or by one before it."""
    lines = SUBMIT_LINE if is_new else ""
    text = TOLD if is_new else TOLD.replace(" Exclusive=NO", "").replace("=NO ", "=OK ")
    return text.replace("SUBMITTED\n", lines and f"{lines}\n").replace("COMMAND", command)


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [False, True], ids=["22.05", "26.05"])
@pytest.mark.parametrize("folder", ["plain", "linked", "a link", "a Command=b", "prelaunch.sh.old"])
@pytest.mark.parametrize("arguments", ["", " --dry-run", " -- bash /b/jobs/prelaunch.sh x"])
def test_the_scripts_lie_beside_the_submitted_one(
    scripts: Scripts, tmp_path: Path, folder: str, arguments: str, *, is_new: bool
) -> None:
    """Slurm runs a copy from its spool directory, and tells where the script was."""
    jobs = tmp_path / folder / "jobs"
    for part in ("jobs", "rundir"):
        shutil.copytree(scripts.root / part, tmp_path / folder / part)
    spool = tmp_path / "spool"
    spool.mkdir()
    copy = shutil.copy(jobs / "prelaunch.sh", spool / "slurm_script")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "jobs").symlink_to(jobs)  # nothing lies beside a link
    (tmp_path / "mine" / "prelaunch.sh").symlink_to(jobs / "prelaunch.sh")
    jobs = {"linked": tmp_path / "mine" / "jobs", "a link": tmp_path / "mine"}.get(folder, jobs)
    answer = tmp_path / "answer"
    answer.write_text(told(f"{jobs}/prelaunch.sh{arguments}", is_new=is_new))
    one_line = f"tr -s '\\n ' ' ' <'{answer}'; echo"
    scripts.fake(
        "scontrol", f"""if [[ $1 == --oneliner ]]; then {one_line}; else cat '{answer}'; fi"""
    )
    done = subprocess.run(
        [copy, "--help"],
        env=scripts.env | {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": "/"},
        cwd=spool,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Once per job" in done.stdout


@pytest.mark.parametrize("is_new", [False, True], ids=["22.05", "26.05"])
def test_a_users_words_are_no_fields(*, is_new: bool) -> None:
    """Neither a job's name nor its arguments, its directory or its comment."""
    asked = ("Requeue", "NodeList", "QOS", "Nice", "Reason", "Reservation", "Licenses", "MCS_label")
    info = told("/x/prelaunch.sh --a WorkDir=/b StdOut=/c Nice=6", is_new=is_new)
    paths = ("WorkDir", "StdOut", "StdErr")
    found = [scontrol.field(info, name) for name in asked]
    assert [*found, *(scontrol.path_field(info, name) for name in paths)] == [
        *("1", "node1", "", "", "", "", "", ""),
        *("/home/a Nice=5 b", "/home/a b/C=d.out", "/home/a b/C=d.out"),
    ]


@pytest.mark.parametrize(
    ("shown", "is_exclusive"),
    [
        ("OverSubscribe=NO Contiguous=0", True),
        ("OverSubscribe=OK Contiguous=0", False),
        ("OverSubscribe=NO Exclusive=NO Contiguous=0", False),
        ("OverSubscribe=NO Exclusive=NODE Contiguous=0", True),
    ],
)
def test_a_successor_takes_whole_nodes_only_if_its_job_did(
    shown: str, *, is_exclusive: bool
) -> None:
    """From 26.05 on OverSubscribe=NO is true of every job, and Exclusive tells."""
    options = options_of(f"JobId=7\n   {shown}", {"SLURM_JOB_ID": "7"})
    assert ("--exclusive" in options) == is_exclusive
