"""All contestants take turns, round by round, so that a slow moment of the machine hits each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Self

from benchmarks import ours
from benchmarks.contestant import Lap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.task import Task

    Racer = Callable[[Task, Path], Lap]
    """Runs a round."""

_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the table."""

    label: str
    module: str
    """The contestant's module in benchmarks/; `ours` is the trainer."""
    tasks: str = "ab"
    divide_steps_by: int = 1
    """A slow contestant need not run as many steps for the same rate."""


PLAIN = "plain"
ENTRIES = (
    Entry(label="plain loop: `DataLoader` over tensors, Adam", module=PLAIN),
    Entry(
        label="plain loop with the tutorials' data: transforms per sample",
        module="tutorial",
        divide_steps_by=4,
    ),
    Entry(label="Lightning", module="lightning_loop"),
    Entry(label="Accelerate", module="accelerate_loop"),
    Entry(label="indexed tensors and fused Adam, by hand", module="indexed"),
    Entry(label="plain loop with the trainer's own form of the CNN", module="plain_cnn", tasks="a"),
    Entry(label="**`python -m trainer`**", module="ours"),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One contestant on one task, over all rounds."""

    steps_per_s: float
    """The median."""
    ratio: float
    """To the plain loop of the same round; the median of these."""
    cpu_ratio: float
    """The same ratio of steps per second of CPU time."""
    num_rounds: int


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How many rounds: no further one is begun once `budget_s` is spent."""

    min_rounds: int
    max_rounds: int
    budget_s: float


class _Contestant:
    """A process of `benchmarks.contestant.serve`."""

    def __init__(self, module: str, python: str) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [python, "-P", "-m", f"benchmarks.{module}"],
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._read()  # "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, task: Task, digits: Path) -> Lap:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"task": asdict(task), "digits": str(digits)}) + "\n")
        self._process.stdin.flush()
        return Lap(**json.loads(self._read()))

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"benchmarks.{self._module} ended; its last words are above")
        return line


def race(
    tasks: Mapping[str, Task], digits: Path, pace: Pace, python: str
) -> dict[str, dict[str, Result]]:
    """Run rounds of every task; a result for each task's name and entry's module.

    `python` is an interpreter that has Lightning and Accelerate beside torch.
    """
    laps: dict[str, dict[str, list[Lap]]] = {
        name: {entry.module: [] for entry in ENTRIES if name in entry.tasks} for name in tasks
    }
    with ExitStack() as stack:
        racers = {entry.module: _racer(entry.module, python, stack) for entry in ENTRIES}
        began_s = time.monotonic()
        for round_index in range(pace.max_rounds):
            if round_index >= pace.min_rounds and time.monotonic() - began_s > pace.budget_s:
                break
            for name, task in tasks.items():
                for entry in (e for e in ENTRIES if name in e.tasks):
                    steps = task.num_steps // entry.divide_steps_by
                    lap = racers[entry.module](replace(task, num_steps=steps), digits)
                    laps[name][entry.module].append(lap)
                    _print(f"round {round_index + 1}, ({name}) {entry.module}", lap)
    return {name: _results(laps_of_task) for name, laps_of_task in laps.items()}


def _racer(module: str, python: str, stack: ExitStack) -> Racer:
    if module == "ours":
        return ours.run_round
    return stack.enter_context(_Contestant(module, python)).run


def _results(laps: Mapping[str, Sequence[Lap]]) -> dict[str, Result]:
    def ratio(own: Sequence[Lap], rate: Callable[[Lap], float]) -> float:
        return median(rate(a) / rate(b) for a, b in zip(own, laps[PLAIN], strict=True))

    return {
        module: Result(
            steps_per_s=median(lap.steps_per_s for lap in own),
            ratio=ratio(own, lambda lap: lap.steps_per_s),
            cpu_ratio=ratio(own, lambda lap: lap.steps_per_cpu_s),
            num_rounds=len(own),
        )
        for module, own in laps.items()
    }


def _print(what: str, lap: Lap) -> None:
    print(f"bench: {what}: {lap.steps_per_s:.1f} steps/s, loss {lap.loss:.3f}", file=sys.stderr)
