"""Where the ranks of a node leave their heartbeats."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from jobs.agent import heartbeats, rank
from jobs.loop import Loop

if TYPE_CHECKING:
    from pathlib import Path

ENVIRON = {"RANK": "3", "DDP_LAUNCH_ID": "7.1.2", "DDP_NODE": "n1"}


def test_in_memory_if_it_can_be(tmp_path: Path) -> None:
    """Private to the user; every rank of the node finds the same one."""
    first = heartbeats.open_directory(ENVIRON, str(tmp_path))
    second = heartbeats.open_directory(ENVIRON | {"RANK": "4"}, str(tmp_path))
    assert first is not None
    assert second is not None
    assert first.path == second.path == str(tmp_path / "ddp.7.1.2.n1")
    assert (tmp_path / "ddp.7.1.2.n1").stat().st_mode & 0o777 == 0o700
    assert first.socket_path != second.socket_path


def test_else_in_the_temporary_directory(tmp_path: Path) -> None:
    """And if that cannot be written either, nobody watches."""
    blocked = tmp_path / "file"
    blocked.touch()
    environ = ENVIRON | {"TMPDIR": str(tmp_path)}
    found = heartbeats.open_directory(environ, str(blocked))
    assert found is not None
    assert found.path.startswith(str(tmp_path))
    assert heartbeats.open_directory(environ | {"TMPDIR": str(blocked)}, str(blocked)) is None


def test_a_place_that_another_has_taken(tmp_path: Path) -> None:
    """The name can be guessed: a link, or a file, is not ours."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ddp.7.1.2.n1").symlink_to(tmp_path / "elsewhere")
    environ = ENVIRON | {"TMPDIR": str(tmp_path)}
    assert heartbeats.open_directory(environ, str(tmp_path)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a directory away needs root")
def test_a_directory_of_another_user(tmp_path: Path) -> None:
    """What it holds is that user's."""
    (tmp_path / "ddp.7.1.2.n1").mkdir(mode=0o777)
    os.chown(tmp_path / "ddp.7.1.2.n1", 1234, 1234)
    environ = ENVIRON | {"TMPDIR": str(tmp_path)}
    assert heartbeats.open_directory(environ, str(tmp_path)) is None


def test_the_commands_of_the_nodes_ranks(tmp_path: Path) -> None:
    """The monitor reads which process is whose; a rank's own is no peer."""
    mine = heartbeats.Directory(str(tmp_path), "0")
    other = heartbeats.Directory(str(tmp_path), "1")
    mine.add_child(11, 0, is_trainer=True)
    other.add_child(12, 1, is_trainer=False)
    (tmp_path / "child-2").write_text("half a li")
    assert (tmp_path / "child-0").read_text() == "11 0 trainer\n"
    assert (tmp_path / "child-1").read_text() == "12 1 command\n"
    assert mine.peers() == [12]
    assert mine.num_peers_started() == 2
    other.close(is_leader=False)
    assert mine.peers() == []
    assert mine.num_peers_started() == 2  # it was there: nobody has to wait for it
    mine.close(is_leader=True)
    assert not tmp_path.exists()
    mine.add_child(11, 0, is_trainer=True)  # too late, and no matter


def test_what_killed_agents_left_is_swept(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Once none of its commands runs, and not in the minutes in which one may be starting."""
    snapshots, own = "ddp-snapshots.8.1.n", "ddp-snapshots.9.1.n"
    gone = ("ddp.a", 0), (snapshots, 0), (own, 0), ("other", 0)
    for name, pid in (*gone, ("ddp.b", os.getpid()), ("ddp-snapshots.8.2.n", os.getpid())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "child-0").write_text(f"{pid or 2**22 + 1} 0 trainer\n")
    (tmp_path / "ddp.link").symlink_to(tmp_path / "other")

    def left() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    everything = left()
    fresh = tmp_path_factory.mktemp("fresh")
    heartbeats.sweep("9.2.1", str(fresh), str(tmp_path))
    assert left() == everything
    old_s = (tmp_path / "ddp.a").stat().st_mtime + 601
    os.utime(fresh, (old_s, old_s))
    heartbeats.sweep("9.2.1", str(fresh / "none"), str(tmp_path))
    assert left() == everything
    heartbeats.sweep("9.2.1", str(fresh), str(tmp_path))
    # Snapshots of the job's own starts are for the next one.
    assert left() == ["ddp-snapshots.8.2.n", own, "ddp.b", "ddp.link", "other"]
    heartbeats.sweep("9.2.1", str(fresh), str(tmp_path / "none"))


@pytest.mark.slow
def test_a_peer_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    """The first rank may have finished before: it stays with the monitor until the last has."""
    mine = heartbeats.Directory(str(tmp_path), "0")
    with subprocess.Popen(["sleep", "1.5"]) as peer:
        late = threading.Timer(
            0.5, lambda: (tmp_path / "child-1").write_text(f"{peer.pid} 1 command\n")
        )
        late.start()
        rank.wait_for_peers(mine, 1, Loop())
        assert peer.poll() == 0
