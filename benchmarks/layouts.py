"""What a layout costs in the trainer, beside the same layout written by hand.

Both train the same Llama on ranks of this machine that talk over gloo, in turns, a lap of some
steps each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

from benchmarks.turns import Crew, train_ours
from trainer.workloads.llama_hf import config_of
from trainer.workloads.llama_presets import LlamaShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.by_hand import Task
    from benchmarks.turns import Lap, Turns

_NUM_STARTS = 4
"""Of both sets of ranks, in one of the processes that forks.py runs. From one start to the next the
same program beside itself has differed by 9 %, and hardly within one: many starts, few rounds."""
_NUM_ROUNDS = 2
"""Of a start; either set is first in one of them."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the table."""

    name: str
    by_hand: str
    """What benchmarks/by_hand.py calls it."""
    num_ranks: int
    options: str | None
    """Of the trainer; None: the layout by hand takes its place, which shows what is noise."""


ENTRIES = (
    Entry(name="ddp", by_hand="ddp", num_ranks=2, options="--strategy ddp"),
    Entry(name="fsdp", by_hand="fsdp", num_ranks=2, options="--strategy fsdp"),
    Entry(name="tp", by_hand="tp", num_ranks=2, options="--tp 2"),
    Entry(name="hsdp", by_hand="hsdp", num_ranks=4, options="--strategy hsdp --dp-shard 2"),
    Entry(name="fsdp x tp", by_hand="fsdp x tp", num_ranks=4, options="--strategy fsdp --tp 2"),
    Entry(name="pp", by_hand="pp", num_ranks=2, options="--strategy pp --micro-batch-size 2"),
    Entry(
        name="cp, keys gathered",
        by_hand="cp",
        num_ranks=2,
        options="--strategy fsdp --cp 2 --cp-comm-type all_gather",
    ),
    Entry(
        name="cp, a ring beside keys gathered",
        by_hand="cp",
        num_ranks=2,
        options="--strategy fsdp --cp 2",
    ),
    Entry(name="fsdp by hand, twice", by_hand="fsdp", num_ranks=2, options=None),
)
_QUICK = {"ddp", "fsdp x tp"}  # between them they use all parts


@dataclass(frozen=True, kw_only=True)
class Row:
    """Both on one layout; a value a start, the sum of its laps."""

    name: str
    num_ranks: int
    num_steps: int
    """Of a start."""
    ours_s: Sequence[float]
    by_hand_s: Sequence[float]
    ours_cpu_s: Sequence[float]
    by_hand_cpu_s: Sequence[float]

    @property
    def costs_pct(self) -> tuple[float, float, float]:
        """What ours takes more: the first quartile of the starts, their median, the third."""
        return _quartiles(self.ours_s, self.by_hand_s)

    @property
    def cpu_cost_pct(self) -> float:
        """The median of the same of CPU time."""
        return _quartiles(self.ours_cpu_s, self.by_hand_cpu_s)[1]


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """All rows, and what they trained."""

    rows: Sequence[Row]
    num_parameters: int
    tokens_per_step: int
    steps_per_lap: int


def _quartiles(ours: Sequence[float], by_hand: Sequence[float]) -> tuple[float, float, float]:
    costs = [100 * (a / b - 1) for a, b in zip(ours, by_hand, strict=True)]
    if len(costs) == 1:
        return costs[0], costs[0], costs[0]
    first, middle, third = quantiles(costs, n=4, method="inclusive")
    return first, middle, third


def race(*, quick: bool, names: Sequence[str] = ()) -> Layouts:
    """Measure all rows, or those of these names; `quick`: some, once."""
    task = _task(quick=quick)
    chosen = names or [e.name for e in ENTRIES if not quick or e.name in _QUICK]
    entries = [entry for entry in ENTRIES if entry.name in chosen]
    return Layouts(
        rows=[_race(entry, task, quick=quick) for entry in entries],
        num_parameters=task.shape.num_parameters,
        tokens_per_step=task.global_batch_size * task.sequence_length,
        steps_per_lap=task.steps_per_lap,
    )


def together(parts: Sequence[Layouts]) -> Layouts:
    """Put the starts of several races together, which had the same rows."""
    rows = [
        replace(
            same[0],
            ours_s=[x for row in same for x in row.ours_s],
            by_hand_s=[x for row in same for x in row.by_hand_s],
            ours_cpu_s=[x for row in same for x in row.ours_cpu_s],
            by_hand_cpu_s=[x for row in same for x in row.by_hand_cpu_s],
        )
        for same in zip(*(part.rows for part in parts), strict=True)
    ]
    return replace(parts[0], rows=rows)


def _task(*, quick: bool) -> Task:
    """A step of some 0.2 s on two cores: what a trainer adds to it can be seen."""
    from benchmarks.by_hand import Task  # noqa: PLC0415 -- imports torch

    dim = 32 if quick else 192
    shape = LlamaShape(
        vocab_size=256 if quick else 1024,
        dim=dim,
        num_layers=2 if quick else 4,
        num_heads=8,
        num_kv_heads=4,
        ffn_dim=3 * dim,
        rope_theta=10_000,
        max_sequence_length=128,
    )
    return Task(
        shape=shape,
        sequence_length=128,
        global_batch_size=8,
        num_tokens=1_000_000,
        lr=1e-3,
        weight_decay=0.01,
        steps_per_lap=2 if quick else 8,
    )


def _race(entry: Entry, task: Task, *, quick: bool) -> Row:
    """Measure a row, over several starts."""
    num_starts, num_rounds = (1, 1) if quick else (_NUM_STARTS, _NUM_ROUNDS)
    starts = [_turns(entry, task, num_rounds, number) for number in range(num_starts)]
    row = Row(
        name=entry.name,
        num_ranks=entry.num_ranks,
        num_steps=num_rounds * task.steps_per_lap,
        ours_s=[sum(own.wall_s for own, _ in pairs) for pairs in starts],
        by_hand_s=[sum(other.wall_s for _, other in pairs) for pairs in starts],
        ours_cpu_s=[sum(own.cpu_s for own, _ in pairs) for pairs in starts],
        by_hand_cpu_s=[sum(other.cpu_s for _, other in pairs) for pairs in starts],
    )
    last_own, last_other = starts[-1][-1]
    low, middle, high = row.costs_pct
    print(
        f"bench: {row.name} on {row.num_ranks} ranks: {middle:+.1f} % ({low:+.1f} to {high:+.1f}), "
        f"by CPU time {row.cpu_cost_pct:+.1f} %, losses {last_own.loss:.3f}, {last_other.loss:.3f}",
        file=sys.stderr,
    )
    return row


def _turns(entry: Entry, task: Task, num_rounds: int, number: int) -> list[tuple[Lap, Lap]]:
    """Start both and let them take turns; who is first changes with starts and with rounds."""
    from benchmarks import by_hand  # noqa: PLC0415 -- imports torch

    def train_by_hand(turns: Turns) -> None:
        by_hand.train(entry.by_hand, task, turns)

    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        train = train_by_hand
        if entry.options is not None:
            argv = [*_options(task, Path(folder)), *entry.options.split()]
            train = partial(train_ours, argv)
        order = (train, train_by_hand) if number % 2 else (train_by_hand, train)
        with Crew(entry.num_ranks, order[0]) as first, Crew(entry.num_ranks, order[1]) as second:
            ours, hand = (first, second) if number % 2 else (second, first)
            for crew in (first, second):
                crew.await_first_lap()
                crew.lap()  # buffers are there, caches are filled
            for turn in range(num_rounds):
                if turn % 2:
                    other = hand.lap()
                    pairs.append((ours.lap(), other))
                else:
                    pairs.append((ours.lap(), hand.lap()))
    return pairs


def _options(task: Task, folder: Path) -> list[str]:
    """Return the trainer's options; the model's shape comes as a folder of Hugging Face's does."""
    described = config_of(task.shape, task.sequence_length)
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    chosen = {
        "workload": "lm",
        "model": folder,
        "out": folder / "run",
        "sequence-length": task.sequence_length,
        "mock-tokens": task.num_tokens,
        "global-batch-size": task.global_batch_size,
        "lr": task.lr,
        "weight-decay": task.weight_decay,
        "schedule": "constant",
        "max-steps": 1_000_000,  # it is ended before
        "log-every": task.steps_per_lap,
        "checkpoint-minutes": 0,
    }
    return [f"--{name}={value}" for name, value in chosen.items()]
