"""What a start that is refused leaves behind: nothing of its own, and all that was there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.checks import Made, make_writable
from jobs.messages import UsageError
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
    scripts: Scripts, *before: str, umask: str = "022", **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs the batch script, which must end with 64."""
    line = f"umask {umask}; exec '{scripts.root}/jobs/prelaunch.sh' -- true"
    done = subprocess.run(
        [*before, "bash", "-c", line],
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
def anybody(scripts: Scripts) -> Scripts:
    """Scripts in a directory in which every user can write."""
    scripts.directory.chmod(0o777)
    for parent in list(scripts.directory.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    return scripts


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
    done = refuse(anybody, *NOBODY, umask=umask, DDP_RUN_NAME="r")
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
