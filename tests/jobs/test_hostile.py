"""Hostile surroundings and wrong input: nothing is executed, errors are one clear line."""

from __future__ import annotations

import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Scripts


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "quote'\"s",
        "$(touch x)",
        "semi;touch x",
        "back\\slash",
        "ünïcode",
        "-dash",
        "*",
    ],
)
def test_odd_directories(scripts: Scripts, name: str) -> None:
    """Paths with spaces, quotes and shell syntax are only names."""
    directory = scripts.directory / name
    directory.mkdir()
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", 'echo "$DDP_RUN_DIR"', cwd=directory)
    assert result.code == 0, result.err
    assert str(directory) in result.out
    assert [path.name for path in directory.iterdir()] == ["out"]
    assert not list(scripts.directory.glob("**/x"))
    assert result.setting  # the events are valid JSON whatever the path holds
    assert len(result.of("rank_end")) == 2


def test_odd_environment(scripts: Scripts) -> None:
    """IFS, CDPATH, POSIXLY_CORRECT, an unset HOME and a hostile job name do no harm."""
    del scripts.env["HOME"]
    (scripts.directory / "trap").mkdir()
    result = scripts.run(
        "prelaunch.sh",
        "--",
        "bash",
        "-c",
        "echo hello world",
        IFS="o/e",
        CDPATH=f"{scripts.directory}:/",
        POSIXLY_CORRECT="1",
        SLURM_JOB_NAME="$(touch x)",
        GREP_OPTIONS="--color=always",
        LC_ALL="C",
    )
    assert result.code == 0, result.err
    assert result.out.count("hello world") == 2
    assert not list(scripts.directory.glob("**/x"))


def test_private_umask(scripts: Scripts) -> None:
    """umask 077 is the user's wish: the run is private, and works."""
    process = subprocess.run(
        ["bash", "-c", f"umask 077; exec '{scripts.root}/jobs/prelaunch.sh' -- true"],
        cwd=scripts.directory,
        env=scripts.env,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    (events,) = scripts.directory.glob("out/*/events.jsonl")
    assert stat.S_IMODE(events.stat().st_mode) == 0o600


def test_secrets_stay_out_of_the_record(scripts: Scripts) -> None:
    """Tokens reach the ranks, and nothing that is written."""
    value = "hunter2"
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", 'echo "${#HF_TOKEN}"', HF_TOKEN=value)
    assert "[0] 7" in result.out
    assert "hunter2" not in (result.run_dir / "events.jsonl").read_text()
    assert "hunter2" not in result.err


def unwritable(directory: Path) -> Path:
    """A directory in which even root cannot write."""
    blocker = directory / "file"
    blocker.touch()
    return blocker


def one_line(text: str) -> str:
    """The only line that is not part of the printed settings."""
    lines = [line for line in text.splitlines() if line.startswith(("prelaunch: ", "launcher: "))]
    assert len(lines) == 1, text
    return lines[0]


def test_output_directory_that_cannot_be_made(scripts: Scripts) -> None:
    """A read-only working directory: one line with the remedy."""
    out = unwritable(scripts.directory) / "out"
    result = scripts.run("prelaunch.sh", "--", "true", DDP_OUT=str(out))
    assert result.code == 64
    assert "set DDP_OUT" in one_line(result.err)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("DEBUG", "maybe", "DEBUG must be"),
        ("DEBUG", "", "DEBUG must be"),
        ("DDP_NPROC_PER_NODE", "0", "from 1 to"),
        ("DDP_NPROC_PER_NODE", "two", "from 1 to"),
        ("DDP_NPROC_PER_NODE", "$(touch x)", "from 1 to"),
        ("MASTER_PORT", "65536", "from 1 to 65535"),
        ("MASTER_PORT", "x[$(touch x)]", "from 1 to 65535"),
        ("DDP_RUN_NAME", "../up", "DDP_RUN_NAME must be"),
        ("DDP_RUN_NAME", "", "DDP_RUN_NAME must be"),
        ("DDP_SEED", "-1", "DDP_SEED must be"),
        ("DDP_TIMESTAMP_INTERVAL", "0", "from 1 to"),
        ("DDP_GRACE", "soon", "from 0 to"),
        ("DDP_MAX_RESTARTS", "many", "from 0 to"),
        ("DDP_MAX_IDLE_RESTARTS", "-1", "from 0 to"),
        ("DDP_REQUEUE", "2", "DDP_REQUEUE must be"),
        ("DDP_NO_KILL", "x", "DDP_NO_KILL must be"),
        ("DDP_ON_BUSY", "ask", "DDP_ON_BUSY must be refuse or wait"),
        ("DDP_HANG_TIMEOUT", "1h", "from 0 to"),
        ("DDP_SPARE_NODES", "1", "from 0 to"),
        ("DDP_IMAGE", "./ddp.sqsh", "needs Slurm"),
    ],
)
def test_wrong_settings(scripts: Scripts, name: str, value: str, rule: str) -> None:
    """A wrong setting is one line that names it, exit 64, and nothing is written."""
    result = scripts.run("prelaunch.sh", "--", "true", **{name: value})
    assert result.code == 64
    assert rule in one_line(result.err)
    assert list(scripts.directory.iterdir()) == []


def test_no_command_after_the_dashes(scripts: Scripts) -> None:
    """`prelaunch.sh --` asks for nothing."""
    result = scripts.run("prelaunch.sh", "--")
    assert result.code == 64
    assert "command must follow" in one_line(result.err)


def test_mistyped_setting_is_said(scripts: Scripts) -> None:
    """A setting nobody knows would be silently without effect."""
    result = scripts.run("prelaunch.sh", "--dry-run", DDP_RUNNAME="x")
    assert "no setting DDP_RUNNAME" in result.err


def test_launcher_refuses_a_rank_that_disagrees(scripts: Scripts) -> None:
    """RANK from somebody else is never silently overwritten."""
    slurm = {
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURMD_NODENAME": "n1",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "12345",
    }
    del scripts.env["DDP_NPROC_PER_NODE"]
    agreeing = scripts.run(
        "launcher.sh", "--", "bash", "-c", "echo $RANK/$WORLD_SIZE", RANK="1", **slurm
    )
    assert (agreeing.code, agreeing.out) == (0, "[1] 1/2\n")
    result = scripts.run("launcher.sh", "--", "true", RANK="0", **slurm)
    assert result.code == 64
    assert "found RANK=0 and expected 1" in one_line(result.err)


def test_launcher_alone_is_a_single_process(scripts: Scripts) -> None:
    """By hand, without any variables, it is rank 0 of 1."""
    result = scripts.run("launcher.sh", "--", "bash", "-c", "echo $RANK/$WORLD_SIZE $MASTER_ADDR")
    assert (result.code, result.out) == (0, "[0] 0/1 127.0.0.1\n")


def test_launcher_needs_all_of_the_contract(scripts: Scripts) -> None:
    """A half-set contract is named."""
    result = scripts.run("launcher.sh", "--", "true", RANK="0", WORLD_SIZE="2")
    assert result.code == 64
    assert "without LOCAL_RANK" in one_line(result.err)


@pytest.mark.parametrize(
    ("spec", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2(x2),8", [1, 2, 2, 8])]
)
def test_tasks_of_a_node(scripts: Scripts, spec: str, counts: list[int]) -> None:
    """Slurm's compressed list of tasks per node is read for every node."""
    command = (
        f"LOG_NAME=t; source {scripts.root}/jobs/lib.sh; source {scripts.root}/jobs/lib/ranks.sh;"
        f'for i in $(seq 0 {len(counts) - 1}); do tasks_of_node "{spec}" "$i"; done'
    )
    done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, check=True)
    assert [int(word) for word in done.stdout.split()] == counts
