"""Checkpoints that count only when they are complete.

One is written into a hidden folder beside its place, flushed, and renamed; then the pointer files
`latest` and `best` move. The tensors are a distributed checkpoint, written by all ranks together;
the rest is `state.json`, which also lists the size of every file, so that a torn one shows.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
import warnings
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from trainer.events import EventLog
    from trainer.mesh import Mesh

_STATE_FILE = "state.json"


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands: all that is not a tensor."""

    step: int = 0
    seed: int
    global_batch_size: int
    num_train_samples: int
    last_loss: float | None = None
    best_accuracy: float | None = None
    last_accuracy: float | None = None
    num_validations_without_gain: int = 0
    scaler: dict[str, float] | None = None


class Checkpoints:
    """The folder `checkpoints/` of a run directory."""

    def __init__(self, folder: Path, mesh: Mesh, events: EventLog, num_kept: int) -> None:
        self._folder = folder
        self._mesh = mesh
        self._events = events
        self._num_kept = num_kept
        self.latest_step: int | None = None
        if mesh.ranks.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".step-*"):  # of a run that died while writing
                shutil.rmtree(leftover, ignore_errors=True)
        mesh.max([0.0])  # nobody writes before the leftovers are gone

    def save(self, tensors: dict[str, Tensor], position: Position, *, is_best: bool) -> None:
        """Write a checkpoint of that step, all ranks together; a second one only moves `best`."""
        name = f"step-{position.step}"
        if self.latest_step != position.step:
            started_s = time.monotonic()
            partial = self._folder / f".{name}.partial"
            _write_tensors(tensors, partial, is_distributed=self._mesh.is_distributed)
            if self._mesh.ranks.is_main:
                _seal(partial, self._folder / name, position)
                self._point("latest", name)
                path, seconds = str(self._folder / name), round(time.monotonic() - started_s, 3)
                self._events.write("checkpoint", step=position.step, path=path, seconds=seconds)
            self.latest_step = position.step
        if self._mesh.ranks.is_main:
            if is_best:
                self._point("best", name)
            self._prune()

    def load(self, wish: str) -> tuple[dict[str, Tensor], Position] | None:
        """Load what `--resume` asks for: `auto`, `none` or a path; None means a fresh start.

        A torn checkpoint is skipped with a warning that names it, and the one before it is used.
        Raises UserError when a path was given and cannot be loaded.
        """
        if wish == "none":
            return None
        candidates = self._candidates() if wish == "auto" else iter([_existing(wish, self._folder)])
        for path in candidates:
            problem, loaded = _try_load(path)
            # A point of synchronisation: all ranks take it, or none.
            (failed,) = self._mesh.max([float(loaded is None)])
            if not failed and loaded is not None:
                self.latest_step = loaded[1].step if path.parent == self._folder else None
                return loaded
            problem = problem or "another rank could not read it"
            if wish != "auto":
                raise UserError(
                    f"--resume {wish}",
                    rule="a complete checkpoint",
                    found=problem,
                    remedy="name another one, or --resume auto",
                )
            if self._mesh.ranks.is_main:
                print(f"trainer: skipped checkpoint {path}: {problem}", file=sys.stderr, flush=True)
        return None

    def _candidates(self) -> Iterator[Path]:
        """Checkpoints in the folder, newest first, as rank 0 sees them: the same on all ranks."""
        steps = sorted(_steps(self._folder), reverse=True) if self._mesh.ranks.is_main else []
        (count,) = self._mesh.max([float(len(steps))])
        for i in range(int(count)):
            (step,) = self._mesh.max([float(steps[i]) if steps else -1.0])
            yield self._folder / f"step-{int(step)}"

    def _point(self, pointer: str, name: str) -> None:
        beside = self._folder / f".{pointer}.partial"
        beside.write_text(name + "\n", encoding="utf-8")
        _flush(beside)
        beside.replace(self._folder / pointer)
        _flush(self._folder)

    def _prune(self) -> None:
        best = self._folder / "best"
        kept = {best.read_text(encoding="utf-8").strip()} if best.exists() else set()
        for step in sorted(_steps(self._folder), reverse=True)[self._num_kept :]:
            if f"step-{step}" not in kept:
                shutil.rmtree(self._folder / f"step-{step}", ignore_errors=True)


def _steps(folder: Path) -> list[int]:
    names = [entry.name.removeprefix("step-") for entry in folder.glob("step-*")]
    return [int(name) for name in names if name.isdecimal()]


def _existing(wish: str, folder: Path) -> Path:
    path = type(folder)(wish).expanduser()
    return path if path.exists() else folder / wish


@contextlib.contextmanager
def _as_exception() -> Iterator[None]:
    """Make torch's CheckpointException, which is no Exception, one; and keep it to the point."""
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415 -- see below

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            warnings.filterwarnings("ignore", category=FutureWarning)
            yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise RuntimeError(f"{type(first).__name__}: {first}") from error


def _write_tensors(tensors: dict[str, Tensor], folder: Path, *, is_distributed: bool) -> None:
    # An import of a second, not before it is needed.
    from torch.distributed.checkpoint.filesystem import FileSystemWriter  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415

    with _as_exception():
        save(
            tensors,
            storage_writer=FileSystemWriter(folder, sync_files=True),
            no_dist=not is_distributed,
        )


def _seal(partial: Path, final: Path, position: Position) -> None:
    """Complete the folder that all ranks have written, and give it its name."""
    sizes = {entry.name: entry.stat().st_size for entry in partial.iterdir()}
    state = {"position": asdict(position), "sizes": sizes}
    file = partial / _STATE_FILE
    file.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    _flush(file)
    _flush(partial)
    if final.exists():  # a torn one that was skipped at the start
        shutil.rmtree(final)
    partial.rename(final)
    _flush(final.parent)


def _try_load(path: Path) -> tuple[str, tuple[dict[str, Tensor], Position] | None]:
    """Return ("", what it holds), or (what is wrong with it, None)."""
    try:
        state = json.loads((path / _STATE_FILE).read_text(encoding="utf-8"))
        for name, size_bytes in state["sizes"].items():
            found_bytes = (path / name).stat().st_size
            if found_bytes != size_bytes:
                return f"{name} has {found_bytes} of {size_bytes} bytes", None
        position = replace(
            Position(seed=0, global_batch_size=1, num_train_samples=1), **state["position"]
        )
        return "", (_read_tensors(path), position)
    except Exception as error:  # noqa: BLE001 -- whatever a torn file makes a reader raise
        return " ".join(f"{type(error).__name__}: {error}".split())[:300], None


def _read_tensors(path: Path) -> dict[str, Tensor]:
    # The same import.
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    from trainer.safe_reader import SafeReader  # noqa: PLC0415

    reader = SafeReader(path)
    tensors = reader.empty_state()
    with _as_exception():
        # Every rank reads all by itself: a replica needs all, and nobody waits for anybody.
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def _flush(path: Path) -> None:
    """Force a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
