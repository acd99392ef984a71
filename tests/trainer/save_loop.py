"""Save one checkpoint after another until killed; python save_loop.py, driven by stdin.

For every line `FOLDER SIZE` a process is forked that saves tensors of SIZE numbers, full of the
step, and appends each step to FOLDER/acknowledged when it is complete. Its pid is printed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
from torch.distributed import checkpoint as _  # noqa: F401 -- before the forks, not in each

from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.resume import load_requested
from trainer.checkpoint.train_state import TrainState
from trainer.distributed.mesh import Mesh
from trainer.environment import Ranks
from trainer.telemetry.events import EventLog

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Fork for each line."""
    die_with_parent()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # nothing before a fork may start threads
    for line in sys.stdin:
        folder, size = line.split()
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            save_for_ever(Path(folder), int(size))
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("ended", flush=True)


def die_with_parent() -> None:
    """Leave nothing behind where the tests themselves are killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def save_for_ever(folder: Path, size: int) -> None:
    """Save steps from the last one on."""
    checkpoints = Checkpoints(
        folder / "checkpoints",
        Mesh(ranks=Ranks(), device=torch.device("cpu"), backend="none", num_threads=1),
        EventLog(path=folder / "events.jsonl", attempt=1, host="h"),
        num_kept=2,
        is_async=size % 2 == 0,
        identity={},
    )
    loaded = load_requested(
        checkpoints,
        "auto",
        lambda stored: {k: torch.empty(s, dtype=d) for k, (s, d) in stored.entries.items()},
    )
    step = loaded[1].step if loaded else 0
    acknowledged = os.open(folder / "acknowledged", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        step += 1
        tensors = {f"model/{i}": torch.full((size,), float(step)) for i in range(3)}
        for validated_step in (0, step)[: 1 + step % 2]:  # some are replaced by a later state
            position = TrainState(
                step=step,
                seed=1,
                global_batch_size=1,
                num_train_samples=1,
                validated_step=validated_step,
            )
            checkpoints.save(tensors, position, is_best=step % 7 == 0)
        if checkpoints.wait():
            os.write(acknowledged, f"{step}\n".encode())


if __name__ == "__main__":
    main()
