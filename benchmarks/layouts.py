"""What a layout costs in the trainer, beside the same layout written by hand.

Both train the same Llama on ranks of this machine that talk over gloo, in turns, a lap of some
steps each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.turns import Crew, train_ours
from trainer.workloads.llama_hf import config_of
from trainer.workloads.llama_presets import LlamaShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.by_hand import Task
    from benchmarks.turns import Lap

_NUM_STARTS = 3
"""Of both sets of ranks: over the rounds of one start, the same program beside itself has differed
by 5 %, more than what is to be seen."""
_NUM_ROUNDS = 4
"""Of a start."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the table; `name` is also what benchmarks/by_hand.py calls it."""

    name: str
    num_ranks: int
    options: str
    """Of the trainer."""


ENTRIES = (
    Entry(name="ddp", num_ranks=2, options="--strategy ddp"),
    Entry(name="fsdp", num_ranks=2, options="--strategy fsdp"),
    Entry(name="tp", num_ranks=2, options="--tp 2"),
    Entry(name="hsdp", num_ranks=4, options="--strategy hsdp --dp-shard 2"),
    Entry(name="fsdp x tp", num_ranks=4, options="--strategy fsdp --tp 2"),
    Entry(name="pp", num_ranks=2, options="--strategy pp --micro-batch-size 2"),
    Entry(name="cp", num_ranks=2, options="--strategy fsdp --cp 2"),
)
_QUICK = {"ddp", "fsdp x tp"}  # between them they use all parts


@dataclass(frozen=True, kw_only=True)
class Row:
    """Both on one layout; a value a round."""

    name: str
    num_ranks: int
    steps_per_lap: int
    ours_s: Sequence[float]
    """Of a lap."""
    by_hand_s: Sequence[float]
    ours_cpu_s: Sequence[float]
    by_hand_cpu_s: Sequence[float]

    @property
    def cost_pct(self) -> float:
        """What ours takes more than the other, of the same round; the median."""
        return _cost_pct(self.ours_s, self.by_hand_s)

    @property
    def cpu_cost_pct(self) -> float:
        """The same of CPU time."""
        return _cost_pct(self.ours_cpu_s, self.by_hand_cpu_s)


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """All rows, and what they trained."""

    rows: Sequence[Row]
    num_parameters: int
    tokens_per_step: int


def _cost_pct(ours: Sequence[float], by_hand: Sequence[float]) -> float:
    return 100 * (median(a / b for a, b in zip(ours, by_hand, strict=True)) - 1)


def race(*, quick: bool, names: Sequence[str] = ()) -> Layouts:
    """Measure all rows, or those of these names; `quick`: some, once."""
    task = _task(quick=quick)
    chosen = names or [e.name for e in ENTRIES if not quick or e.name in _QUICK]
    entries = [entry for entry in ENTRIES if entry.name in chosen]
    return Layouts(
        rows=[_race(entry, task, quick=quick) for entry in entries],
        num_parameters=task.shape.num_parameters,
        tokens_per_step=task.global_batch_size * task.sequence_length,
    )


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
        steps_per_lap=2 if quick else 12,
    )


def _race(entry: Entry, task: Task, *, quick: bool) -> Row:
    """Measure a row, over several starts."""
    num_starts, num_rounds = (1, 1) if quick else (_NUM_STARTS, _NUM_ROUNDS)
    pairs = [pair for _ in range(num_starts) for pair in _turns(entry, task, num_rounds)]
    row = Row(
        name=entry.name,
        num_ranks=entry.num_ranks,
        steps_per_lap=task.steps_per_lap,
        ours_s=[own.wall_s for own, _ in pairs],
        by_hand_s=[other.wall_s for _, other in pairs],
        ours_cpu_s=[own.cpu_s for own, _ in pairs],
        by_hand_cpu_s=[other.cpu_s for _, other in pairs],
    )
    print(
        f"bench: {row.name} on {row.num_ranks} ranks: {row.cost_pct:+.1f} %, by CPU time "
        f"{row.cpu_cost_pct:+.1f} %, losses {pairs[-1][0].loss:.3f}, {pairs[-1][1].loss:.3f}",
        file=sys.stderr,
    )
    return row


def _turns(entry: Entry, task: Task, num_rounds: int) -> list[tuple[Lap, Lap]]:
    """Start both and let them take turns; who was first is last in the next round."""
    from benchmarks import by_hand  # noqa: PLC0415 -- imports torch

    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        argv = _options(entry, task, Path(folder))
        with (
            Crew(entry.num_ranks, lambda turns: train_ours(argv, turns)) as ours,
            Crew(entry.num_ranks, lambda turns: by_hand.train(entry.name, task, turns)) as hand,
        ):
            for crew in (ours, hand):
                crew.await_first_lap()
                crew.lap()  # buffers are there, caches are filled
            for number in range(num_rounds):
                if number % 2:
                    other = hand.lap()
                    pairs.append((ours.lap(), other))
                else:
                    pairs.append((ours.lap(), hand.lap()))
    return pairs


def _options(entry: Entry, task: Task, folder: Path) -> list[str]:
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
    return [*(f"--{name}={value}" for name, value in chosen.items()), *entry.options.split()]
