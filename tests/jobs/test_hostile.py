"""Hostile surroundings and wrong input: nothing is executed, errors are one clear line."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from jobs.backends.base import tmp_dir
from jobs.messages import UsageError
from jobs.supervisor.lock import Lock
from tests.jobs.said import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Scripts

pytestmark = pytest.mark.slow


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


def test_a_mistyped_setting_is_told(scripts: Scripts) -> None:
    """It would be without effect; those of the virtual cluster are the tests' own.

    An empty one has none anyway, and may be a setting.
    """
    others = {"DDP_CLUSTER_PREFIX": "n", "DDP_MATRIX_DIR": "/x", "DDP_ELASTIC": ""}
    result = scripts.run("prelaunch.sh", "--dry-run", DDP_RUNNAME="x", **others)
    warned = [line for line in result.err.splitlines() if "warning" in line]
    assert len(warned) == 1
    assert "there is no setting DDP_RUNNAME" in warned[0]


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


def test_output_directory_that_cannot_be_made(scripts: Scripts) -> None:
    """A read-only working directory: one line with the remedy."""
    out = unwritable(scripts.directory) / "out"
    result = scripts.run("prelaunch.sh", "--", "true", DDP_OUT=str(out))
    assert result.code == 64
    assert "set DDP_OUT" in one_line(result.err)


def test_output_directory_that_is_a_link_to_nothing(scripts: Scripts) -> None:
    """As to a disk that is not mounted: one line names the link, and nothing is left behind."""
    link = scripts.directory / "scratch"
    link.symlink_to(scripts.directory / "unmounted")
    for out in (link, link / "out"):
        result = scripts.run("prelaunch.sh", "--", "true", DDP_OUT=str(out))
        assert result.code == 64
        assert (
            f"found that {link} is a link to {scripts.directory}/unmounted, which is not there"
            in (one_line(result.err))
        )
        assert "set DDP_OUT" in result.err
        assert list(scripts.directory.iterdir()) == [link]


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("DEBUG", "maybe", "DEBUG must be"),
        ("DDP_NPROC_PER_NODE", "0", "from 1 to"),
        ("DDP_NPROC_PER_NODE", "two", "from 1 to"),
        ("DDP_NPROC_PER_NODE", "$(touch x)", "from 1 to"),
        ("MASTER_PORT", "65536", "from 1 to 65535"),
        ("MASTER_PORT", "x[$(touch x)]", "from 1 to 65535"),
        ("SRUN_CPUS_PER_TASK", "junk", "SRUN_CPUS_PER_TASK must be a whole number"),
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
        ("DDP_ELASTIC", "2:1", "DDP_ELASTIC must be MIN:MAX"),
        ("DDP_ELASTIC", "2:4", "the job must have the 2 nodes that DDP_ELASTIC=2:4 needs"),
        ("DDP_IMAGE", "./ddp.sqsh", "needs Slurm"),
        ("DDP_MONITOR_INTERVAL", "x[$(touch x)]", "from 1 to"),
        ("DDP_NPROC_PER_NODE", "08", "from 1 to"),
        ("DDP_OUT", "", "DDP_OUT must name a directory"),
        ("DDP_OUT", "a\nb", "must have no line break"),
        ("DDP_OUT", "~/out", "DDP_OUT must be a path"),
        ("DDP_RUN_NAME", "a\nb", "DDP_RUN_NAME must be"),
        ("MASTER_ADDR", "", "MASTER_ADDR must be"),
        ("DDP_PYTHON", "/no/such", "DDP_PYTHON must be a program"),
        ("DDP_PYTHON", "true", "DDP_PYTHON must be a Python; found that 'true -V' shows no"),
        ("TMPDIR", "/no/such", "a temporary directory"),
    ],
)
def test_wrong_settings(scripts: Scripts, name: str, value: str, rule: str) -> None:
    """A wrong setting is one line that names it, exit 64, and nothing is written."""
    result = scripts.run("prelaunch.sh", "--", "true", **{name: value})
    assert result.code == 64
    assert rule in one_line(result.err)
    assert list(scripts.directory.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("HF_TOKEN=SECRET", "python", "train.py"),
        ("--preflight", "--password=SECRET"),
        ("--", "--token=SECRET"),
    ],
)
def test_a_refusal_shows_no_secret(scripts: Scripts, words: tuple[str, ...]) -> None:
    """What is refused is named without its value: the line stands in the job's log."""
    result = scripts.run("prelaunch.sh", *words)
    assert result.code == 64
    assert words[0].partition("=")[0] in one_line(result.err)
    assert "SECRET" not in result.err


def test_torchrun_around_the_script(scripts: Scripts) -> None:
    """It starts the ranks itself: torchrun's port would only look as if it were taken."""
    result = scripts.run("prelaunch.sh", "--", "true", TORCHELASTIC_RUN_ID="none", RANK="1")
    assert result.code == 64
    assert "let torchrun start jobs/launcher.sh" in one_line(result.err)
    assert list(scripts.directory.iterdir()) == []


def test_a_run_directory_that_is_none(scripts: Scripts) -> None:
    """A file in its place, or in the place of one of its directories, is one line."""
    (scripts.directory / "out" / "mine").mkdir(parents=True)
    (scripts.directory / "out" / "file").touch()
    (scripts.directory / "out" / "mine" / "logs").touch()
    for name, told in (("file", "must be writable"), ("mine", "must hold the directories")):
        result = scripts.run("prelaunch.sh", "--", "true", DDP_RUN_NAME=name)
        assert result.code == 64
        assert told in one_line(result.err)
        assert "line " not in result.err


@pytest.mark.parametrize("name", ["events.jsonl", "checkpoints/latest"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/hostname")])
def test_a_pipe_or_a_link_in_a_files_place(
    scripts: Scripts, name: str, make: Callable[[Path], object]
) -> None:
    """Whoever reads the one would wait for ever; the other may lead to a file of this user's."""
    file = scripts.directory / "out" / "mine" / name
    file.parent.mkdir(parents=True)
    make(file)
    result = scripts.run("prelaunch.sh", "--", "true", DDP_RUN_NAME="mine")
    assert result.code == 64
    assert f"found something else at {file}" in result.err


def test_no_space_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is told as one, and the directory that was there stays as it was."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Lock, "_own", fail)
    lock = Lock(str(run_dir), "1", None, job="", restarts="0", grace_s=25)
    with pytest.raises(UsageError, match="is the disk full"):
        lock.take(time.sleep, lambda: False, may_wait=True, report_every_s=1)
    assert list(run_dir.iterdir()) == []


def test_a_log_on_a_full_disk(scripts: Scripts) -> None:
    """What cannot be said does not end the job."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 -- a device
        code = subprocess.call(
            [scripts.root / "jobs" / "prelaunch.sh", "--", "true"],
            cwd=scripts.directory,
            env=scripts.env,
            stdout=full,
            stderr=full,
        )
    assert code == 0
    assert len(list(scripts.directory.glob("out/*/events.jsonl"))) == 1


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As FAT and many that are made of objects, or without free inodes: no other job is blamed."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()

    def fail(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    lock = Lock(str(run_dir), "1", None, job="", restarts="0", grace_s=25)
    with pytest.raises(UsageError, match="can make hard links; found Operation not permitted"):
        lock.take(time.sleep, lambda: False, may_wait=False, report_every_s=1)
    assert list(run_dir.iterdir()) == []


def test_a_working_directory_that_is_gone(scripts: Scripts) -> None:
    """It was removed, or its file system unmounted, since the shell went there."""
    (scripts.directory / "gone").mkdir()
    line = f"cd gone && rmdir ../gone && exec '{scripts.root}/jobs/prelaunch.sh' -- true"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=scripts.directory,
        env=scripts.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert "the working directory must exist; found" in done.stderr
    assert "Traceback" not in done.stderr


def test_noise_in_the_events(scripts: Scripts) -> None:
    """Zeros that a crash left in the file do not hide what follows them."""
    events = scripts.directory / "out" / "mine" / "events.jsonl"
    events.parent.mkdir(parents=True)
    events.write_bytes(b"\0" * 5000 + b"\n")
    result = scripts.run(
        "prelaunch.sh", "--", "bash", "-c", "exit $((RANK + 3))", DDP_RUN_NAME="mine"
    )
    assert result.code in {3, 4}
    assert "ended with code" in result.err
    assert "logs/rank-" in result.err.splitlines()[-1]


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "SLURM_CPUS_PER_TASK"])
@pytest.mark.parametrize("value", ["x", "0"])
def test_half_of_slurm(scripts: Scripts, name: str, value: str) -> None:
    """Numbers that Slurm would never set are one line, not an error of bash's."""
    result = scripts.run("prelaunch.sh", "--", "true", **{"SLURM_JOB_ID": "5", name: value})
    assert result.code == 64
    assert f"{name} must be a whole number" in one_line(result.err)
    assert len(result.err.splitlines()) == 1


def test_a_task_of_an_array_without_its_job(scripts: Scripts) -> None:
    """A left-over SLURM_ARRAY_TASK_ID alone is no array."""
    assert scripts.run("prelaunch.sh", "--dry-run", SLURM_ARRAY_TASK_ID="3").code == 0


def test_through_a_symbolic_link(scripts: Scripts) -> None:
    """The script finds its parts where it lies, not where a link to it lies."""
    link = scripts.directory / "train"
    link.symlink_to(scripts.root / "jobs" / "prelaunch.sh")
    done = subprocess.run(
        [link, "--dry-run"],
        cwd=scripts.directory,
        env=scripts.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_only_a_look(scripts: Scripts) -> None:
    """--check starts nothing, --help lists the trainer's options, --dry-run comes first."""
    result = scripts.run("prelaunch.sh", "--check", "--epochs", "2")
    assert (result.code, "nothing was started" in one_line(result.err)) == (0, True)
    result = scripts.run("prelaunch.sh", "--epochs", "2", "--help")
    assert (result.code, "--global-batch-size" in result.out) == (0, True)
    result = scripts.run("prelaunch.sh", "--epochs", "2", "--dry-run")
    assert result.code == 64
    assert "--dry-run must be the first word" in one_line(result.err)
    assert list(scripts.directory.iterdir()) == []


@pytest.mark.parametrize("option", ["--resume", "--init-from"])
def test_what_a_run_began_with_may_be_gone_once_it_goes_on(scripts: Scripts, option: str) -> None:
    """A requeued job has the command line that it was submitted with."""
    words = ("prelaunch.sh", option, "gone/checkpoints/step-9", "--check")
    assert scripts.run(*words, DDP_RUN_NAME="r").code == 64
    (scripts.directory / "out" / "r" / "checkpoints" / "step-5").mkdir(parents=True)
    result = scripts.run(*words, DDP_RUN_NAME="r")
    assert (result.code, "nothing was started" in one_line(result.err)) == (0, True)


def test_no_command_after_the_dashes(scripts: Scripts) -> None:
    """`prelaunch.sh --` asks for nothing."""
    result = scripts.run("prelaunch.sh", "--")
    assert result.code == 64
    assert "command must follow" in one_line(result.err)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["python", "train.py"], "found 'python'; write -- python"),
        (["--epochs", "3", "--", "python", "train.py"], "-- must be the first word"),
        (["--", "/"], "found the directory '/'; name a program in it"),
        (["--", "./train"], "correct the path"),
        (["--epochs", "3", "--out=/x"], "must be named by DDP_OUT and DDP_RUN_NAME"),
    ],
)
def test_a_command_without_its_dashes(scripts: Scripts, words: list[str], told: str) -> None:
    """What was meant is said, before anything is written."""
    result = scripts.run("prelaunch.sh", *words)
    assert (result.code, told in one_line(result.err)) == (64, True), result.err
    assert not list(scripts.directory.glob("out"))


def test_a_temporary_directory_of_the_hosts(tmp_path: Path) -> None:
    """A site's prolog makes one for each job, and nobody mounts it into the container."""
    gone, there = {"TMPDIR": "/scratch/4711"}, {"TMPDIR": str(tmp_path)}
    assert tmp_dir(gone, is_in_container=True) == "/tmp"
    assert tmp_dir(gone, is_in_container=False) == "/scratch/4711"
    assert tmp_dir(there, is_in_container=True) == str(tmp_path)
