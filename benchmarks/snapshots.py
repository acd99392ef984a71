"""What snapshots in memory cost: ten steps with one taken before them, against ten without.

    python -m benchmarks.snapshots [--quick]

The model is that of benchmarks/checkpoint.py, 50 million parameters, as --snapshot-every 10 takes
it on one node; on several its file is sent to another node, too.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.checkpoint import FULL_LAYERS, QUICK_LAYERS, Run, position
from rundir.paths import MEMORY
from trainer.checkpoint.snapshots import Snapshots
from trainer.checkpoint.train_state import State
from trainer.distributed.mesh import Mesh
from trainer.environment import Ranks
from trainer.telemetry.events import EventLog

_EVERY = 10
_FULL_ROUNDS, _QUICK_ROUNDS = 40, 1


def main(*, quick: bool) -> None:
    """Measure in pairs, the order changing; print the ratio."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(dir=MEMORY) as memory,
    ):
        run = Run(Path(folder), QUICK_LAYERS if quick else FULL_LAYERS)
        snapshots = _open(Path(folder), Path(memory))
        run.step()
        _round(run, snapshots)  # the first one allocates
        pairs = []
        for number in range(_QUICK_ROUNDS if quick else _FULL_ROUNDS):
            order = (None, snapshots) if number % 2 else (snapshots, None)
            took_s = {each is not None: _round(run, each) for each in order}
            pairs.append((took_s[True], took_s[False]))
    ratios = sorted(with_s / without_s for with_s, without_s in pairs)
    print(
        f"a step: {1e3 * median(s for _, s in pairs) / _EVERY:.0f} ms without snapshots,"
        f" {1e3 * median(s for s, _ in pairs) / _EVERY:.0f} ms with one every {_EVERY} steps;"
        f" ratio {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(pairs)} pairs)"
    )


def _round(run: Run, snapshots: Snapshots | None) -> float:
    """Take ten steps, and before them a snapshot if there are any; seconds.

    The next one waits until this one is complete, so that time is part of the round.
    """
    began_s = time.perf_counter()
    if snapshots is not None:
        snapshots.take(run.tensors(), {}, position(run.num_steps))
    for _ in range(_EVERY):
        run.step(before_update=None if snapshots is None else snapshots.wait_for_copy)
    if snapshots is not None:
        snapshots.wait()
        assert snapshots.every, "snapshots were given up"
    return time.perf_counter() - began_s


def _open(folder: Path, memory: Path) -> Snapshots:
    return Snapshots(
        Mesh(ranks=Ranks(), device=torch.device("cpu"), backend="none", num_threads=1),
        EventLog(path=folder / "events.jsonl", attempt=1, host=""),
        every=_EVERY,
        launch_id="bench.1.1",
        run_dir=folder,
        state_of=lambda at: State(position=at, identity={}, world_size=1, serial=0),
        memory=memory,
    )


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
