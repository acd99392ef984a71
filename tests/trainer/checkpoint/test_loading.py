"""What a node cannot read is no damage: nothing is begun over it, nothing older is taken."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rundir import plain
from tests.trainer.saved import all_of, load, open_folder, save, tensor_file
from trainer.checkpoint import loading, manifest
from trainer.checkpoint.layout import CheckpointFolder
from trainer.checkpoint.loading import read_together
from trainer.checkpoint.resume import load_requested
from trainer.errors import RunFailedError


class Threads:
    """Two ranks as threads of one process."""

    world_size = 2
    group = None

    def __init__(self, rank: int, meeting: threading.Barrier, reported: list[Any]) -> None:
        self.rank = rank
        self._meeting = meeting
        self._reported = reported

    def gather(self, value: Any) -> list[Any]:
        """Return both ranks' values."""
        self._reported[self.rank] = value
        self._meeting.wait(20)
        values = list(self._reported)
        self._meeting.wait(20)
        return values

    def share(self, value: Any) -> Any:
        """Return rank 0's value."""
        return self.gather(value)[0]


def read_on_two(paths: tuple[Path, Path]) -> list[Any]:
    """What each of two ranks gets, or how it ends; each sees the checkpoint at its own path."""
    meeting, reported = threading.Barrier(2), [None, None]

    def rank(number: int) -> Any:
        try:
            return read_together(paths[number], all_of, Threads(number, meeting, reported))
        except RunFailedError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(rank, range(2)))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, which are not made."""
    made: list[float] = []
    monkeypatch.setattr(loading.time, "sleep", made.append)
    return made


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A whole checkpoint, with one before it."""
    save(open_folder(tmp_path), 5, 10)
    return tmp_path / "checkpoints" / "step-10"


Refuse = Callable[..., None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Let reading a file of a name fail, `times` times."""

    def refuse(name: str, error: BaseException, times: int = 10**6) -> None:
        left = [times]

        def failing(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(path: Path, *args: Any, **further: Any) -> Any:
                if path.name == name and left[0]:
                    left[0] -= 1
                    raise error
                return function(path, *args, **further)

            return call

        for module, function in (
            (manifest, "examine"),
            (plain, "size_bytes"),
            (plain, "read_text"),
        ):
            monkeypatch.setattr(module, function, failing(getattr(module, function)))

    return refuse


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("name", ["manifest.json", "__0_0.distcp"])
def test_what_cannot_be_read_is_tried_again_and_then_ends_the_run(
    whole: Path, refuse: Refuse, pauses: list[float], number: int, name: str
) -> None:
    """The one before is not taken, and nothing is removed."""
    refuse(name, OSError(number, os.strerror(number)))
    reported = (
        rf"checkpoint {whole} must be readable by every rank; found on rank 0: {name}: "
        rf"{os.strerror(number)}; it may be whole, so nothing is begun over it: "
        "look at the file system of that node"
    )
    checkpoints = open_folder(whole.parents[1], num_kept=1)
    with pytest.raises(RunFailedError, match=reported):
        load_requested(checkpoints, "auto", all_of)
    assert pauses == [2.0, 2.0]
    assert checkpoints.damaged == []  # else it is removed later
    assert whole.is_dir()


def test_what_can_be_read_again_is_read(whole: Path, refuse: Refuse, pauses: list[float]) -> None:
    """A stale handle of NFS is a matter of seconds."""
    refuse("manifest.json", OSError(errno.ESTALE, os.strerror(errno.ESTALE)), times=2)
    loaded = load(whole.parents[1])
    assert loaded is not None
    assert loaded[1].step == 10
    assert pauses == [2.0, 2.0]


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), MemoryError(), PermissionError(13, "no")]
)
def test_what_torch_meets_while_reading_is_no_damage_either(
    whole: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float], error: Exception
) -> None:
    """It wraps the system's message."""
    from torch.distributed.checkpoint import state_dict_loader  # noqa: PLC0415 -- only here

    def fail(*_args: object, **_further: object) -> None:
        try:
            raise error
        except (OSError, MemoryError) as cause:
            raise RuntimeError("PytorchStreamReader failed") from cause

    monkeypatch.setattr(state_dict_loader, "load", fail)
    with pytest.raises(RunFailedError, match=type(error).__name__):
        load(whole.parents[1])
    assert len(pauses) == 2


@pytest.mark.parametrize("is_mounted", [True, False])
def test_what_only_one_rank_does_not_see_is_no_damage(
    whole: Path, tmp_path: Path, pauses: list[float], *, is_mounted: bool
) -> None:
    """Rank 0 sees it whole: nothing is mounted on that node, or what it sees there is old."""
    elsewhere = tmp_path / "node" / "step-10"
    if is_mounted:
        shutil.copytree(whole, elsewhere)
        os.truncate(tensor_file(elsewhere), 10)
    one, other = read_on_two((whole, elsewhere))
    assert "found on rank 1: " in one
    assert one == other.replace(str(elsewhere), str(whole))
    assert len(pauses) == 4


def test_what_rank_0_finds_damaged_in_anothers_part_is_damage(
    whole: Path, pauses: list[float]
) -> None:
    """Each rank verifies a part; a file that only another one has read is read again."""
    names = sorted(manifest.read(whole))
    file = whole / names[1]  # rank 1's
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    results = read_on_two((whole, whole))
    reported = f"{file.name} has changed since it was written: its SHA-256 differs"
    assert results == [(None, reported), (None, reported)]
    assert not pauses


def test_two_ranks_read_what_is_whole(whole: Path, pauses: list[float]) -> None:
    """Both get all of it."""
    for loaded, problem in read_on_two((whole, whole)):
        assert problem == ""
        assert loaded[1]["model/w"].tolist() == [10.0] * 3
    assert not pauses


def test_a_folder_that_cannot_be_listed_is_no_fresh_start(
    whole: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """Without permission it is unknown whether there is nothing."""
    checkpoints = open_folder(whole.parents[1])

    def refuse(path: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(
        RunFailedError, match="checkpoints must be a folder that rank 0 can read; found"
    ):
        load_requested(checkpoints, "auto", all_of)
    assert len(pauses) == 2
    folder = CheckpointFolder(whole.parent)
    with pytest.raises(PermissionError):
        folder.next_serial()
    folder.prune(1, kept=(), damaged=[])
    monkeypatch.undo()
    assert set(folder.names()) == {"step-5", "step-10"}


def test_no_folder_is_a_fresh_start(tmp_path: Path) -> None:
    """That is what a first start finds."""
    assert CheckpointFolder(tmp_path / "none").names() == []
    assert load(tmp_path) is None


def test_one_process_tells_it_as_what_it_is(whole: Path, refuse: Refuse) -> None:
    """Inspect and export name the file and the error."""
    refuse("state.json", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(manifest.UnreadableError, match="Input/output error"):
        loading.verify(whole)
    with pytest.raises(manifest.UnreadableError, match="Input/output error"):
        loading.read_index(whole)
