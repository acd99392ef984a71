"""Disks that are full: real ones, small and in memory."""

import errno
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rundir import plain
from trainer.checkpoint import manifest, saving
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.process_group import ProcessGroup
from trainer.checkpoint.resume import load_requested
from trainer.checkpoint.train_state import TrainState
from trainer.distributed.mesh import Mesh
from trainer.environment import Ranks
from trainer.telemetry.events import EventLog

# Since Python 3.13 the end of torch's writer, whose file is closed by then, is reported.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored .*<torch:pytest.PytestUnraisableExceptionWarning"
)

ALONE = Mesh(ranks=Ranks(), device=torch.device("cpu"), backend="none", num_threads=1)
_MIB = 1 << 20


@dataclass
class Disk:
    """A small disk, and a file for events elsewhere."""

    path: Path
    events: Path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", path], check=True)
    yield Disk(path, tmp_path / "events.jsonl")
    subprocess.run(["umount", "--lazy", path], check=True)


def open_folder(disk: Disk, *, is_async: bool = True) -> Checkpoints:
    """Checkpoints on the small disk."""
    return Checkpoints(
        disk.path / "checkpoints",
        ALONE,
        EventLog(path=disk.events, attempt=1, host="h"),
        num_kept=5,
        is_async=is_async,
        identity={},
    )


def save(checkpoints: Checkpoints, step: int, size_bytes: int) -> bool:
    """Save so many bytes; return whether that worked."""
    tensors = {"model/w": torch.full((size_bytes // 4,), float(step))}
    position = TrainState(step=step, seed=1, global_batch_size=1, num_train_samples=1)
    checkpoints.save(tensors, position, is_best=False)
    return checkpoints.wait()


def loaded_step(disk: Disk) -> int:
    """What a new start would take."""
    loaded = load_requested(
        open_folder(disk),
        "auto",
        lambda stored: {k: torch.empty(s, dtype=d) for k, (s, d) in stored.entries.items()},
    )
    assert loaded is not None
    assert loaded[0]["model/w"].unique().tolist() == [loaded[1].step]
    return loaded[1].step


def failures(events: Path) -> list[dict[str, Any]]:
    """The failed saves that were reported."""
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return [line for line in lines if line["event"] == "checkpoint_failed"]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("is_foreseen", [True, False])
def test_a_full_disk_is_reported_and_harms_nothing(
    small_disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_foreseen: bool,
    is_async: bool,
) -> None:
    """Whether it shows before writing or in the middle; with room again, saves go on."""
    checkpoints = open_folder(small_disk, is_async=is_async)
    assert save(checkpoints, 1, 3 * _MIB)
    with monkeypatch.context() as patch:
        if not is_foreseen:  # somebody else fills it while we write
            patch.setattr(saving, "num_free_bytes", lambda _path: 1 << 40)
        assert not save(checkpoints, 2, 6 * _MIB)
    (reported,) = failures(small_disk.events)
    assert (reported["step"], reported["reason"]) == (2, "no space")
    assert ("MiB needed" in reported["error"]) is is_foreseen
    line = capsys.readouterr().err
    assert line.startswith("trainer: the checkpoint of step 2 was not written: no space: ")
    assert line.endswith("the last one: step 1\n")
    assert line.count("\n") == 1
    assert checkpoints.latest_step == 1
    assert {e.name for e in (small_disk.path / "checkpoints").iterdir()} == {"step-1", "latest"}
    assert loaded_step(small_disk) == 1
    assert save(checkpoints, 3, _MIB)
    assert loaded_step(small_disk) == 3


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EDQUOT, "no space"), (errno.ENOSPC, "no space"), (errno.EIO, "write error")],
)
def test_a_quota_is_asked_for_by_writing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, reason: str
) -> None:
    """The file system has room, the user has none, and torch reports positions only."""

    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    reported = saving._explain(RuntimeError("unexpected pos 704 vs 598"), tmp_path)  # noqa: SLF001 -- a race
    assert reported[0] == reason
    assert os.strerror(number) in reported[1]
    known = saving._explain(OSError(errno.EACCES, "Permission denied"), tmp_path)  # noqa: SLF001 -- as above
    assert known == ("write error", "PermissionError: [Errno 13] Permission denied")
    assert not list(tmp_path.iterdir())


def test_where_there_is_room_torchs_own_word_is_reported(tmp_path: Path) -> None:
    """The probe leaves nothing behind."""
    reported = saving._explain(RuntimeError("unexpected pos 704 vs 598"), tmp_path)  # noqa: SLF001 -- a race
    assert reported == ("write error", "RuntimeError: unexpected pos 704 vs 598")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_async", [True, False])
def test_a_folder_that_is_gone_is_reported_like_any_other_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_async: bool
) -> None:
    """Neither asking for room nor explaining raises; the line names what the write has met."""
    disk = Disk(tmp_path / "disk", tmp_path / "events.jsonl")
    checkpoints = open_folder(disk, is_async=is_async)
    shutil.rmtree(disk.path)
    disk.path.write_text("somebody else's")
    assert not save(checkpoints, 1, _MIB)
    (reported,) = failures(disk.events)
    assert (reported["step"], reported["reason"]) == (1, "write error")
    assert "NotADirectoryError" in reported["error"]
    assert capsys.readouterr().err.count("\n") == 1


class OtherDisk(ProcessGroup):
    """Rank 0, after a report of a file that another node has written to a disk of its own."""

    def gather(self, value: Any) -> list[Any]:
        """Return what both ranks report of their files, and what this one alone holds."""
        other = (None, {"__1_0.distcp": manifest.FileRecord(100, "0" * 64)})
        return [value, other] if isinstance(value, tuple) else [value]


def test_files_on_a_disk_of_another_node_are_no_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Complete is what rank 0 sees all files of; a load would report it too late."""
    disk = Disk(tmp_path, tmp_path / "events.jsonl")
    checkpoints = open_folder(disk, is_async=False)
    checkpoints.group = OtherDisk(ALONE)
    assert not save(checkpoints, 1, 400)
    (reported,) = failures(disk.events)
    assert reported["reason"] == "write error"
    assert reported["error"].startswith("not on one shared file system? ")
    assert reported["error"].endswith("__1_0.distcp: No such file or directory")
    assert not list((tmp_path / "checkpoints").iterdir())
    assert capsys.readouterr().err.count("\n") == 1


def test_the_size_is_asked_of_an_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """stat() is answered by NFS from a cache; opening asks the server."""
    (tmp_path / "file").write_text("12345")

    def old(*_args: object, **_further: object) -> None:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", old)
        assert plain.size_bytes(tmp_path / "file") == 5
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises((plain.NotPlainError, IsADirectoryError)):
            plain.size_bytes(other)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_that_flushes_no_folders_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Such as SMB; of a file it is an error as ever."""
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        flush(descriptor)

    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    disk = Disk(tmp_path, tmp_path / "events.jsonl")
    monkeypatch.setattr(os, "fsync", fsync)
    assert save(open_folder(disk), 1, 400)
    assert loaded_step(disk) == 1
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        manifest.flush(tmp_path / "events.jsonl")


def test_a_folder_that_the_disk_does_not_take_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is not supported is passed over."""

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        manifest.flush(tmp_path)


@pytest.mark.slow
def test_a_run_goes_on_without_checkpoints_but_does_not_end_well(
    small_disk: Disk,
    train: Callable[..., tuple[int, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All steps are trained; at the end 70, and one line says which checkpoint there is."""
    options = ("--model", "cnn", "--global-batch-size", "50", "--log-every", "1")
    code, run = train(
        *options, "--max-steps", "5", "--checkpoint-every", "1", out=str(small_disk.path / "run")
    )
    assert code == 70  # 14 MiB were needed at once
    assert [line["step"] for line in run.metrics()] == [1, 2, 3, 4, 5]
    assert run.summary()["outcome"] == "failed"
    assert "the last checkpoint, of step 5, could not be written (no space: " in (
        reported := capsys.readouterr().err
    )
    assert "Traceback" not in reported
    assert "there is none" in reported
