"""A job's successor: sbatch's options for a job like this one, and its comment."""

from __future__ import annotations

import time

import pytest

from jobs.backends.requeue import Successor, submit, successor_options, with_reason
from jobs.backends.slurm import Slurm


def options_of(info: str, environ: dict[str, str], **asked: object) -> list[str]:
    """The options of sbatch for a job like this one."""
    given = {"num_nodes": 2, "exclude": (), "is_no_kill": False} | asked
    successor = Successor("/jobs/prelaunch.sh", [], environ, {}, **given)
    return successor_options(Slurm(environ), info, successor)


@pytest.mark.parametrize(
    ("comment", "after"),
    [
        ("(null)", "ddp: n2 is bad"),
        ("", "ddp: n2 is bad"),
        ("project=x", "project=x; ddp: n2 is bad"),
        ("project=x; ddp: n1 is bad", "project=x; ddp: n2 is bad"),
        ("ddp: n1 is bad", "ddp: n2 is bad"),
    ],
)
def test_a_reason_in_a_comment(comment: str, after: str) -> None:
    """What the user wrote there stays; our own is written anew."""
    assert with_reason(comment, "n2 is bad") == after


def test_options_of_a_successor() -> None:
    """It is a job like this one; paths with spaces stay whole, unset fields are left out."""
    info = (
        "JobId=7 JobName=x\n Account=(null) QOS=low Requeue=0 TimeLimit=01:00:00 Partition=gpu "
        "ReqNodeList=(null) ExcNodeList=n9 NumNodes=2 NumTasks=4 MinMemoryNode=100M "
        "OverSubscribe=NO Features=(null) MinTmpDiskNode=2G Switches=1@00:05:00 WCKey=*usual\n "
        "Command=/x\n Comment=for the paper \n WorkDir=/a b\n "
        "StdErr=/a b/C d.out\n StdIn=/dev/null\n StdOut=/a b/C d.out\n TresPerNode=gres:gpu:1\n "
        "MailUser=me@here MailType=END,FAIL\n TresBind=gres/gpu:verbose,closest\n"
    )
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS_PER_NODE": "2",
        "DDP_SBATCH_ARGS": "--hint=nomultithread --deadline='now + 1day'",
    }
    options = options_of(info, environ, num_nodes=3, exclude=("n2", "n3"), is_no_kill=True)
    assert set(options) == {
        "--dependency=afterany:7", "--job-name=ddp", "--open-mode=append", "--no-requeue",
        "--nodes=3", "--ntasks=4", "--partition=gpu", "--qos=low", "--time=01:00:00",
        "--mem=100M", "--gres=gpu:1", "--ntasks-per-node=2", "--exclusive", "--no-kill",
        "--tmp=2G", "--switches=1@00:05:00", "--wckey=usual", "--comment=for the paper",
        "--mail-user=me@here", "--mail-type=END,FAIL", "--gpu-bind=verbose,closest",
        "--hint=nomultithread", "--deadline=now + 1day",
        "--exclude=n9,n2,n3", "--chdir=/a b", "--output=/a b/C d.out", "--error=/a b/C d.out",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "told", "option"),
    [
        ("TresPerNode", "gpu:8", "--gres=gpu:8"),
        ("TresPerNode", "gres/gpu:a100:4,gres/shard=2", "--gres=gpu:a100:4,shard:2"),
        ("TresPerTask", "cpu=7,gres/gpu=1", "--gpus-per-task=1"),
        ("TresPerTask", "cpu=8", ""),
        ("TresPerTask", "gres:gpu:h100:1", "--gpus-per-task=h100:1"),
        ("TresPerJob", "gres/gpu=4", "--gpus=4"),
        ("TresPerSocket", "gres:gpu:1", "--gpus-per-socket=1"),
        ("CpusPerTres", "gres:gpu:12", "--cpus-per-gpu=12"),
        ("MemPerTres", "gres/gpu:65536", "--mem-per-gpu=65536"),
        ("MinMemoryNode", "0", "--mem=0"),
    ],
)
def test_gpus_of_a_successor(field: str, told: str, option: str) -> None:
    """Each series of Slurm writes them in its own way, and newer ones the CPUs beside them."""
    info = (
        f"JobId=7 {field}={told}\n WorkDir=/a\n StdErr=\n StdIn=/dev/null\n StdOut=/a/b\n Power= "
    )
    options = options_of(info, {"SLURM_JOB_ID": "7"})
    assert options[:4] == [
        "--dependency=afterany:7", "--job-name=ddp", "--open-mode=append", "--nodes=2"
    ]  # fmt: skip
    assert options[4:] == [*([option] if option else []), "--chdir=/a", "--output=/a/b"]


def test_where_sbatch_is_not(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in a container into which no sbatch is mounted: a line, and no traceback."""
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    environ = {"PATH": "/no/such"}
    successor = Successor("/jobs/prelaunch.sh", [], environ, {}, 1, (), is_no_kill=False)
    assert submit(Slurm(environ), successor) is None
    assert capfd.readouterr().err.endswith("sbatch cannot be run: No such file or directory\n")
