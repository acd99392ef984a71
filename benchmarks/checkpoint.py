"""How long training stands still for a checkpoint: written at once, against behind the training.

    python -m benchmarks.checkpoint

prints one line of JSON. It is run as a process of its own, as a training is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from trainer.checkpoint.checkpoints import Checkpoints
    from trainer.checkpoint.train_state import TrainState

_ROOT = Path(__file__).parent.parent
_WIDTH = 1024
FULL_LAYERS, QUICK_LAYERS = 48, 2
"""48 layers of 1024 x 1024 are 50 million parameters."""
_MODES = ("sync", "async")
_TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class Saves:
    """One process that saved in turns, a value a repetition."""

    num_parameters: int
    size_bytes: int
    """Of one checkpoint."""
    stall_s: dict[str, list[float]]
    """By mode: from the call to the return of a save."""
    written_s: dict[str, list[float]]
    """By mode: until the checkpoint is complete; of async, with training behind."""
    slowed_s: list[float]
    """What steps took longer than usual while one was written behind them, in sum."""
    first_stall_s: float
    """The very first asynchronous one, which also allocates the buffers."""


def measure(*, quick: bool) -> Saves:
    """Measure in a process of its own."""
    command = [sys.executable, "-P", "-m", "benchmarks.checkpoint"]
    ended = subprocess.run(
        [*command, *(["--quick"] if quick else [])],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        timeout=_TIMEOUT_S,
    )
    return Saves(**json.loads(ended.stdout.splitlines()[-1]))


def main(*, quick: bool) -> None:
    """Save in turns, a training between; print what it took."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), QUICK_LAYERS if quick else FULL_LAYERS)
        run.step()
        first_stall_s = run.save("async")[0]
        run.save("sync")
        for _ in range(1 if quick else 5):
            for mode in _MODES:
                run.save(mode, is_counted=True)
        saves = Saves(
            num_parameters=sum(p.numel() for p in run.model.parameters()),
            size_bytes=run.size_bytes(),
            stall_s=run.stall_s,
            written_s=run.written_s,
            slowed_s=run.slowed_s,
            first_stall_s=first_stall_s,
        )
    print(json.dumps(asdict(saves)))


class Run:
    """A model, AdamW, and the checkpoints of a run in both modes."""

    def __init__(self, folder: Path, num_layers: int) -> None:
        import torch  # noqa: PLC0415 -- only in the process that measures
        from torch import nn  # noqa: PLC0415

        from trainer.loop.compiler import without_compiler  # noqa: PLC0415

        layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(num_layers)]
        self.model = nn.Sequential(*layers)
        with without_compiler():
            self._optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self._inputs = torch.randn(4, _WIDTH)
        self._folders = {mode: folder / mode for mode in _MODES}
        self._checkpoints = {mode: _open(path, mode) for mode, path in self._folders.items()}
        self.num_steps = 0
        self.stall_s: dict[str, list[float]] = {mode: [] for mode in _MODES}
        self.written_s: dict[str, list[float]] = {mode: [] for mode in _MODES}
        self.slowed_s: list[float] = []

    def step(self, before_update: Callable[[], None] | None = None) -> float:
        """Take a step; return its seconds."""
        began_s = time.perf_counter()
        self.model(self._inputs).square().mean().backward()
        if before_update is not None:
            before_update()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.num_steps += 1
        return time.perf_counter() - began_s

    def save(self, mode: str, *, is_counted: bool = False) -> tuple[float, float]:
        """Save, and train on until it is written; return the stall and the time in all."""
        usual_s = sorted(self.step() for _ in range(5))[2]
        checkpoints, tensors = self._checkpoints[mode], self.tensors()
        os.sync()  # nothing of the save before is still on its way
        began_s = time.perf_counter()
        checkpoints.save(tensors, position(self.num_steps), is_best=False)
        stall_s = time.perf_counter() - began_s
        slowed_s = 0.0
        while any(thread.name == "checkpoint" for thread in threading.enumerate()):
            slowed_s += self.step() - usual_s
        written_s = time.perf_counter() - began_s
        assert checkpoints.wait()
        if is_counted:
            self.stall_s[mode].append(stall_s)
            self.written_s[mode].append(written_s)
            if mode == "async":
                self.slowed_s.append(slowed_s)
        return stall_s, written_s

    def size_bytes(self) -> int:
        """Return the size of the last checkpoint."""
        files = self._folders["sync"].glob("step-*/*")
        return sum(file.stat().st_size for file in files)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all that a checkpoint holds."""
        from trainer.checkpoint.tensors import gather_tensors  # noqa: PLC0415 -- as above

        return gather_tensors(self.model, self._optimizer)


def _open(folder: Path, mode: str) -> Checkpoints:
    import torch  # noqa: PLC0415 -- as above

    from trainer.checkpoint.checkpoints import Checkpoints  # noqa: PLC0415
    from trainer.distributed.mesh import Mesh  # noqa: PLC0415
    from trainer.environment import Ranks  # noqa: PLC0415
    from trainer.telemetry.events import EventLog  # noqa: PLC0415

    return Checkpoints(
        folder,
        Mesh(ranks=Ranks(), device=torch.device("cpu"), backend="none", num_threads=1),
        EventLog(path=folder.with_suffix(".jsonl"), attempt=1, host=""),
        num_kept=1,
        is_async=mode == "async",
        identity={},
    )


def position(step: int) -> TrainState:
    """Return where a run is after so many steps."""
    from trainer.checkpoint.train_state import TrainState  # noqa: PLC0415 -- as above

    return TrainState(step=step, seed=1, global_batch_size=1, num_train_samples=1)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
