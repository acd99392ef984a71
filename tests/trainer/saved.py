"""Saves, loads and reads checkpoints of one process."""

import json
import os
from pathlib import Path
from typing import Any

import torch

from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.loading import Stored
from trainer.checkpoint.resume import load_requested
from trainer.checkpoint.train_state import TrainState
from trainer.distributed.mesh import Mesh
from trainer.environment import Ranks
from trainer.telemetry.events import EventLog

CPU = torch.device("cpu")
ALONE = Mesh(ranks=Ranks(), device=CPU, backend="none", num_threads=1)


def open_folder(
    path: Path, num_kept: int = 3, *, is_async: bool = True, mesh: Mesh = ALONE
) -> Checkpoints:
    """The checkpoints folder of a run, as one rank opens it."""
    return Checkpoints(
        path / "checkpoints",
        mesh,
        EventLog(path=path / "events.jsonl", attempt=1, host="h"),
        num_kept=num_kept,
        is_async=is_async,
        identity={"lr": 0.1},
    )


def state_at(step: int, **further: Any) -> TrainState:
    """A train state at `step`."""
    return TrainState(
        step=step, seed=1, global_batch_size=8, num_train_samples=80, last_loss=0.5, **further
    )


def save(checkpoints: Checkpoints, *steps: int, best: int = -1) -> bool:
    """Save each of `steps`, its tensor full of the step; return whether the last is complete."""
    for step in steps:
        tensors = {"model/w": torch.full((3,), float(step))}
        checkpoints.save(tensors, state_at(step), is_best=step == best)
    return checkpoints.wait()


def all_of(stored: Stored) -> dict[str, torch.Tensor]:
    """Ask for every tensor that there is."""
    return {name: torch.empty(shape, dtype=d) for name, (shape, d) in stored.entries.items()}


def load(path: Path, request: str = "auto") -> tuple[dict[str, torch.Tensor], TrainState] | None:
    """Load as a new process would."""
    return load_requested(open_folder(path), request, all_of)


def loaded_step(path: Path, request: str = "auto") -> int | None:
    """The step that a new process would begin with, after reading the values."""
    loaded = load(path, request)
    if loaded is None:
        return None
    assert loaded[0]["model/w"].tolist() == [loaded[1].step] * 3
    return loaded[1].step


def events(path: Path, name: str) -> list[dict[str, Any]]:
    """Events of that name, without what all have."""
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    common = ("time", "event", "source", "attempt", "host")
    return [
        {k: v for k, v in line.items() if k not in common}
        for line in lines
        if line["event"] == name
    ]


def pointer(path: Path, name: str) -> str:
    """What the file `name` points to."""
    return (path / "checkpoints" / name).read_text().strip()


def tensor_file(folder: Path) -> Path:
    """The file that holds the tensors of a checkpoint."""
    return next(folder.glob("*.distcp"))


def shorten(folder: Path) -> str:
    """Cut the tensors' file; what the damage is called."""
    file = tensor_file(folder)
    os.truncate(file, file.stat().st_size - 1)
    return f"{file.name} has {file.stat().st_size} of {file.stat().st_size + 1} bytes"
