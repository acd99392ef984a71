"""The host as the preflight reads it, from made roots: what is wrong is read, what is well too."""

import errno
import os
import resource
import time
from pathlib import Path

import pytest

from monitor.preflight import host
from rundir.paths import RunDir


def values(readings: object) -> dict[str, object]:
    """Each reading by its name."""
    return {one.check: one.value for one in readings}  # type: ignore[attr-defined]


def port(root: Path, name: str, state: str = "4: ACTIVE", rate: int = 400) -> None:
    """Make an InfiniBand port."""
    at = root / "sys/class/infiniband" / name / "ports/1"
    at.mkdir(parents=True)
    for file, text in (("link_layer", "InfiniBand"), ("state", state)):
        (at / file).write_text(f"{text}\n")
    (at / "rate").write_text(f"{rate} Gb/sec (4X NDR)\n")


def test_ports_that_are_up_count_and_have_a_rate(tmp_path: Path) -> None:
    """One that is down does not count; a node without any reads nothing."""
    assert list(host.fabric(tmp_path)) == []
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1", rate=200)
    port(tmp_path, "mlx5_2", state="1: DOWN")
    read = [(one.check, one.value, one.what) for one in host.fabric(tmp_path)]
    assert read == [
        ("ib_ports", 2, ""),
        ("ib_gbit_per_s", 400.0, "mlx5_0 port 1"),
        ("ib_gbit_per_s", 200.0, "mlx5_1 port 1"),
    ]


def test_room_in_memory_and_for_temporary_files(tmp_path: Path) -> None:
    """None where nothing is."""
    (tmp_path / "dev/shm").mkdir(parents=True)
    read = values(host.memory(tmp_path, str(tmp_path)))
    assert set(read) == {"shm_mib", "tmp_mib"}
    assert all(read.values())
    assert values(host.memory(tmp_path / "dev", "/nowhere")) == {"shm_mib": 0, "tmp_mib": 0}


@pytest.mark.parametrize(
    ("soft", "read"), [(8 << 20, {"memlock_mib": 8}), (resource.RLIM_INFINITY, {})]
)
def test_memory_that_may_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: int, read: dict[str, object]
) -> None:
    """It is read only where there is a limit, and InfiniBand, which needs it."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert "memlock_mib" not in values(host.memory(tmp_path, str(tmp_path)))
    port(tmp_path, "mlx5_0")
    found = values(host.memory(tmp_path, str(tmp_path)))
    assert {name: found[name] for name in found if name == "memlock_mib"} == read


def test_a_temporary_directory_that_is_only_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs in a container take /tmp in its place: nothing is wrong."""
    monkeypatch.setenv("TMPDIR", "/nowhere")
    found: list[object] = []
    host.read(str(tmp_path), "n1", "7.1.1", found.append)
    assert values(found)["tmp_mib"] != 0


def kmsg(path: Path, *xids: tuple[float, int]) -> Path:
    """The kernel's log with Xids, each so many seconds ago."""
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    lines = [
        f"4,12,{int((now_s - ago_s) * 1e6)},-;NVRM: Xid (PCI:0000:1b:00): {xid}, pid=7"
        for ago_s, xid in xids
    ]
    path.write_text("".join(f"{line}\n" for line in ["6,11,5,-;hello", *lines]))
    return path


def test_new_xids_of_the_hardware_count(tmp_path: Path) -> None:
    """Not old ones, not a program's own fault; and none where the log may not be read."""
    log = kmsg(tmp_path / "kmsg", (60, 79), (30, 79), (660, 48), (10, 31))
    read = [(one.check, one.value, one.what) for one in host.xids_of(log)]
    assert read == [("xids", 2, "Xid 79 of 0000:1b:00")]
    assert list(host.xids_of(kmsg(tmp_path / "kmsg", (660, 79)))) == []
    assert list(host.xids_of(tmp_path / "nothing")) == []


def test_what_the_ranks_run_in(tmp_path: Path) -> None:
    """Distribution and Python."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nPRETTY_NAME="Debian 12"\n')
    assert str(values(host.versions(tmp_path))["image"]).startswith("Debian 12, Python 3.")
    assert str(values(host.versions(tmp_path / "etc"))["image"]).startswith("unknown, ")


@pytest.mark.parametrize("start", ["7.1.5", "another job's", None])
def test_the_run_directory_is_written_and_the_supervisors_file_seen(
    tmp_path: Path, start: str | None
) -> None:
    """A file of another start does not count; without the directory nothing can be written."""
    files = RunDir(str(tmp_path))
    if start:
        Path(files.preflight("x")).parent.mkdir()
        Path(files.preflight("supervisor")).write_text(start)
    read = values(host.run_directory(str(tmp_path), "n1", "7.1.5"))
    assert read["run_dir_unseen"] == int(start != "7.1.5")
    if start:
        assert Path(files.preflight("n1")).read_text() == "7.1.5"


def test_a_write_to_the_run_directory_is_timed_and_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is there only once all of it is; how much is free is read, too."""
    folder = tmp_path / ".preflight"
    folder.mkdir()
    (folder / "supervisor").write_text("7.1.5")
    names = []

    def slow(_descriptor: int) -> None:
        names.append(sorted(path.name for path in folder.iterdir()))
        time.sleep(0.3)

    monkeypatch.setattr(os, "fsync", slow)
    read = values(host.run_directory(str(tmp_path), "n1", "7.1.5"))
    assert names == [["n1.new", "supervisor"]]
    assert sorted(path.name for path in folder.iterdir()) == ["n1", "supervisor"]
    assert set(read) == {"run_dir_mib", "run_dir_s", "run_dir_unseen"}
    assert 0.3 <= float(str(read["run_dir_s"])) < 60
    assert read["run_dir_mib"]


def test_a_disk_or_a_quota_that_is_full_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's error of a write has no name in it."""

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", fail)
    (tmp_path / ".preflight").mkdir()
    *_, last = host.run_directory(str(tmp_path), "n1", "7.1.5")
    assert last == ("run_dir_unseen", 1, f"Disk quota exceeded: {tmp_path}/.preflight/n1")


def test_a_link_in_the_place_of_a_nodes_file_is_not_followed(tmp_path: Path) -> None:
    """Where others may write, it may lead to a file of this user's."""
    (tmp_path / ".preflight").mkdir()
    (tmp_path / "mine").write_text("kept")
    (tmp_path / ".preflight/n1.new").symlink_to(tmp_path / "mine")
    assert values(host.run_directory(str(tmp_path), "n1", "7.1.5"))["run_dir_unseen"] == 1
    assert (tmp_path / "mine").read_text() == "kept"
