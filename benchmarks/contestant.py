"""A contestant is a process that stays: it prints "ready", then runs a task per line it reads.

So imports are paid once, and rounds of different contestants can take turns.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.task import Stopwatch, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    Train = Callable[[Task, Path, Stopwatch], None]
    """Trains a task on the digits in a folder, and reports every step to the clock."""


@dataclass(frozen=True, kw_only=True)
class Lap:
    """What a round gave."""

    steps_per_s: float
    steps_per_cpu_s: float
    loss: float
    """The loss last read, to see that something was learnt."""


def serve(train: Train) -> None:
    """Answer each line of stdin, a task and a folder, with a lap on stdout, until it closes."""
    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        task = Task(**question["task"])
        watch = Stopwatch(task)
        train(task, Path(question["digits"]), watch)
        lap = Lap(
            steps_per_s=watch.steps_per_s,
            steps_per_cpu_s=watch.steps_per_cpu_s,
            loss=watch.last_loss,
        )
        print(json.dumps(asdict(lap)), flush=True)
