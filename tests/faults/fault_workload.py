"""A tiny workload that breaks on demand: in a chosen rank, in the middle of a step, once.

    PYTHONPATH=tests/faults FAULT_DIR=/some/folder … --workload fault_workload:Breakable

Every step looks for the file `strike` in FAULT_DIR, a line `RANK FAULT`. The rank that is meant
renames it to `struck`, which makes it strike once, and breaks.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from fault_files import NUM_FILES
from torch import nn
from torch.utils.data import Dataset

from trainer.workloads.base import TensorData, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from trainer.config import Config

NUM_INPUTS = 16
NUM_CLASSES = 10
NUM_SAMPLES = 400_000
STEP_S = 0.02
"""A step takes this long asleep: the tests share few cores."""


class Files(Dataset[Any]):
    """A sample is a file of one byte in the data folder; one that is gone is an error."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / f"{number}.sample" for number in range(NUM_FILES)]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        (value,) = self._paths[index].read_bytes()
        return torch.full((NUM_INPUTS,), float(value)), torch.tensor(value % NUM_CLASSES)


class Paced(nn.Module):
    """A module whose forward takes its time, and is where a rank breaks."""

    def __init__(self, inner: nn.Module, before: Callable[[], None]) -> None:
        super().__init__()
        self.inner = inner
        self._before = before

    def forward(self, inputs: Tensor) -> Tensor:
        """Wait, perhaps break, and compute."""
        self._before()
        outputs: Tensor = self.inner(inputs)
        return outputs


class Breakable(Workload):
    """A linear model on numbers; `--model wide` has 1.6 million parameters instead of 170.

    `--model wider` has four times as many: a slow link shows.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._rank = os.environ.get("RANK", "0")
        self._folder = Path(os.environ["FAULT_DIR"])
        self._step_s = STEP_S
        self._poison = False
        self._model: nn.Module

    def build_model(self) -> nn.Module:
        """Return the model."""
        hidden = {"wide": 60_000, "wider": 240_000}.get(self.config.model, 0)
        if hidden:
            inner = nn.Sequential(nn.Linear(NUM_INPUTS, hidden), nn.Linear(hidden, NUM_CLASSES))
        else:
            inner = nn.Linear(NUM_INPUTS, NUM_CLASSES)
        self._model = Paced(inner, self._begin_step)
        return self._model

    def train_data(self) -> TensorData | Dataset[Any]:
        """Return noise, or the files of --data-dir."""
        if self.config.data_dir is not None:
            return Files(self.config.data_dir)
        numbers = torch.arange(NUM_SAMPLES)
        inputs = (numbers.float() / NUM_SAMPLES).unsqueeze(1).expand(-1, NUM_INPUTS)
        return TensorData(inputs=inputs, targets=numbers % NUM_CLASSES)

    def test_data(self) -> None:
        """Return nothing: validation has its own tests."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, which is not finite if it was poisoned."""
        loss = super().loss(outputs, targets)
        if self._poison:
            self._poison = False
            return loss * float("nan")
        return loss

    def _begin_step(self) -> None:
        select.select([], [], [], self._step_s)  # libfaketime breaks time.sleep
        order = self._folder / "strike"
        try:
            rank, fault = order.read_text().split()
        except (FileNotFoundError, ValueError):
            return
        if rank != self._rank:
            return
        order.replace(self._folder / "struck")
        FAULTS[fault](self)


def _segfault(_: Breakable) -> None:
    ctypes.string_at(0)


def _abort(_: Breakable) -> None:
    os.abort()


def _exit(_: Breakable) -> None:
    os._exit(3)


def _raise(_: Breakable) -> None:
    raise ValueError("the sum of the parts is more than the whole")


def _hold_gil(_: Breakable) -> None:
    """Backtrack for ever: no other thread, and no handler written in Python, gets a turn."""
    re.match(r"(a|a)+$", "a" * 60 + "b")


def _other_collective(_: Breakable) -> None:
    """Wait for a message that is never sent, while the others reduce their gradients."""
    dist.recv(torch.zeros(1), src=int(os.environ["WORLD_SIZE"]) - 1 - dist.get_rank())


def _eat_memory(_: Breakable) -> None:
    eaten = []
    while True:
        eaten.append(b"x" * (8 << 20))


def _slow_down(workload: Breakable) -> None:
    workload._step_s = 4 * STEP_S  # noqa: SLF001 -- its own


def _speed_up(workload: Breakable) -> None:
    workload._step_s = STEP_S  # noqa: SLF001 -- its own


def _corrupt(workload: Breakable) -> None:
    """Turn one bit of a weight around, as a fault of the memory does."""
    weight = next(workload._model.parameters())  # noqa: SLF001 -- its own
    with torch.no_grad():
        weight.view(torch.int32).view(-1)[0] ^= 1


def _poison(workload: Breakable) -> None:
    workload._poison = True  # noqa: SLF001 -- its own


FAULTS: dict[str, Callable[[Breakable], None]] = {
    "segfault": _segfault,
    "abort": _abort,
    "exit": _exit,
    "raise": _raise,
    "hold-gil": _hold_gil,
    "other-collective": _other_collective,
    "eat-memory": _eat_memory,
    "slow-down": _slow_down,
    "speed-up": _speed_up,
    "poison": _poison,
    "corrupt": _corrupt,
}
