"""A start that is refused says one line, and leaves nothing of its own and all that was there."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.checks import Made, make_writable
from jobs.messages import UsageError
from jobs.supervisor import main, plan
from tests.jobs.said import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Scripts

pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="another user and a file system of its own need root"
)


def left(directory: Path) -> list[str]:
    """All that lies below a directory."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def refuse(
    scripts: Scripts, *before: str, first: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs the batch script after what a shell does first; it must end with 64."""
    line = f"{first}\nexec /bin/bash '{scripts.root}/jobs/prelaunch.sh' -- true"
    done = subprocess.run(
        [*before, "/bin/bash", "-c", line],
        cwd=scripts.directory,
        env=scripts.env | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def mount(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system in memory, with an option of its own."""
    place = tmp_path / "mounted"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", request.param, "none", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("lock", ["", "lock.3"])
def test_a_file_in_the_place_of_the_logs(scripts: Scripts, lock: str) -> None:
    """The lock is no longer held, and of what was there nothing is gone."""
    run_dir = scripts.directory / "out" / "r"
    run_dir.mkdir(parents=True)
    (run_dir / "logs").touch()
    if lock:
        (run_dir / lock).write_text("released\n")
    done = refuse(scripts, DDP_RUN_NAME="r")
    assert "must hold the directories logs" in one_line(done.stderr)
    assert left(run_dir) == (["lock.4", "logs"] if lock else ["logs"])
    if lock:
        assert (run_dir / "lock.4").read_text() == "released\n"


@needs_root
@pytest.mark.parametrize("mount", [f"nr_inodes={n}" for n in range(2, 8)], indirect=True)
def test_a_file_system_without_inodes(scripts: Scripts, mount: Path) -> None:
    """However far a start gets on it, what it made is taken away again."""
    done = refuse(scripts, DDP_OUT=str(mount / "a" / "out"))
    one_line(done.stderr)
    assert left(mount) == []


@needs_root
@pytest.mark.parametrize("mount", ["size=8k"], indirect=True)
def test_a_full_file_system(scripts: Scripts, mount: Path) -> None:
    """Parents of DDP_OUT that the start made go, too."""
    (mount / "full").write_bytes(bytes(8192))
    done = refuse(scripts, DDP_OUT=str(mount / "a" / "b" / "out"))
    assert "is the disk full" in one_line(done.stderr)
    assert left(mount) == ["full"]


@needs_root
@pytest.mark.parametrize("umask", ["777", "377", "577", "477"])
@pytest.mark.parametrize("there", ["", "out", "out/r"])
def test_a_umask_that_shuts_the_user_out(anybody: Scripts, umask: str, there: str) -> None:
    """A directory that nobody can use would stop every later start, too."""
    directory = anybody.directory
    for name in Path(there).parts:
        directory /= name
        directory.mkdir()
        os.chown(directory, 65534, 65534)
    before = left(anybody.directory)
    done = refuse(anybody, *NOBODY, first=f"umask {umask}", DDP_RUN_NAME="r")
    assert "umask" in one_line(done.stderr)
    assert left(anybody.directory) == before


def test_a_directory_of_the_users_stays(tmp_path: Path) -> None:
    """What a start did not make itself it does not take away, though it be empty."""
    (tmp_path / "mine").mkdir()
    made = Made()
    made.make(str(tmp_path / "mine" / "a" / "b"))
    made.make(str(tmp_path / "mine"))
    (tmp_path / "mine" / "c").mkdir()
    made.remove()
    assert left(tmp_path) == ["mine", "mine/c"]


def test_a_relative_name_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused as any other."""
    monkeypatch.chdir(tmp_path)
    name = "n" * 256
    with pytest.raises(UsageError, match=r"must be writable; found that user .*too long"):
        make_writable(f"{name}/x", Made(), "here", lambda *_: "do something")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"found that file is not a directory on here"):
        make_writable("file/x", Made(), "here", lambda *_: "do something")


def test_a_read_only_file_system_is_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No permission would help."""
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("os.statvfs", lambda _: types.SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(UsageError, match=r"on here \(Read-only file system\); do something"):
        make_writable(str(tmp_path), Made(), "here", lambda *_: "do something")


@pytest.mark.parametrize("value", ["²", "٣", "1" * 5000, "1_0"])
@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_CPUS_ON_NODE"])
def test_a_number_that_slurm_would_not_set(scripts: Scripts, name: str, value: str) -> None:
    """Python's own words for digits, and more of them than it takes, are none here."""
    done = refuse(scripts, **{"SLURM_JOB_ID": "5", name: value})
    assert f"{name} must be a whole number" in one_line(done.stderr)


@pytest.mark.parametrize("value", ["a/b", "²", "1" * 5000])
def test_what_is_left_of_slurm_without_a_job(scripts: Scripts, value: str) -> None:
    """Without SLURM_JOB_ID the others mean nothing."""
    names = ("SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_CPUS_PER_NODE", "SLURM_RESTART_COUNT")
    result = scripts.run("prelaunch.sh", "--dry-run", "--", "true", **dict.fromkeys(names, value))
    assert (result.code, result.setting("WORLD_SIZE")) == (0, "2"), result.err


@needs_root
def test_a_run_directory_that_cannot_be_listed(anybody: Scripts) -> None:
    """Its locks are found by their names."""
    run_dir = anybody.directory / "out" / "r"
    run_dir.mkdir(parents=True)
    run_dir.chmod(0o333)
    done = refuse(anybody, *NOBODY, DDP_RUN_NAME="r")
    assert f"user 65534 cannot read {run_dir} of user 0" in one_line(done.stderr)
    assert left(run_dir) == []


def test_a_very_deep_directory(scripts: Scripts) -> None:
    """It is made, however many parents it needs."""
    try:
        result = scripts.run("prelaunch.sh", "--", "true", DDP_OUT="d/" * 1200)
    finally:  # pytest could not
        subprocess.run(["rm", "-rf", scripts.directory / "d"], check=True)
    assert result.code == 0, result.err


def test_no_bash_on_path(scripts: Scripts) -> None:
    """What probes the port is a script of its own."""
    programs = scripts.directory / "bin"
    programs.mkdir()
    for name in ("dirname", "env", "readlink", "true"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    done = refuse(scripts, DDP_PYTHON=sys.executable, PATH=str(programs))
    assert f"found No such file or directory in '{programs}'" in one_line(done.stderr)
    assert not (scripts.directory / "out").exists()


@pytest.mark.parametrize("most", [6, 9, 31])
def test_too_few_open_files(scripts: Scripts, most: int) -> None:
    """They would be missing in the middle of the start."""
    done = refuse(scripts, first=f"ulimit -n {most}")
    assert f"open files; found a limit of {most}; raise it" in one_line(done.stderr)
    assert left(scripts.directory) == []


@pytest.mark.parametrize("error", [OSError(7, "Argument list too long"), RecursionError("deep")])
def test_whatever_else_fails_before_the_ranks_start(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is one line, too."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(plan, "prepare", fail)
    with pytest.raises(UsageError, match=r"before the ranks start; found .*(too long|deep); corr"):
        main.supervise("", "", [], {})


def test_an_output_directory_that_leads_to_itself(scripts: Scripts) -> None:
    """One line says so, and no warning of the file of bad nodes in it."""
    link = scripts.directory / "loop"
    link.symlink_to("loop")
    done = refuse(scripts, DDP_OUT=str(link))
    assert f"found that {link} is a link to loop, which leads back to it" in one_line(done.stderr)
    assert left(scripts.directory) == ["loop"]


def test_an_output_directory_with_too_long_a_name(scripts: Scripts) -> None:
    """The same."""
    done = refuse(scripts, DDP_OUT="n" * 256)
    assert "File name too long" in one_line(done.stderr)
    assert left(scripts.directory) == []


@needs_root
def test_an_output_directory_that_cannot_be_searched(anybody: Scripts) -> None:
    """The same, of another user's."""
    out = anybody.directory / "out"
    out.mkdir(mode=0o700)
    done = refuse(anybody, *NOBODY)
    assert f"user 65534 cannot write to {out} of user 0" in one_line(done.stderr)
