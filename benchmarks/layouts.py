"""What a layout costs in the trainer, beside the same layout written by hand.

Both train the same Llama in the same processes, on ranks of this machine that talk over gloo: a
step of one, then a step of the other.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

from benchmarks.turns import WorkerPool, train_ours
from trainer.workloads.llama_hf import config_of
from trainer.workloads.llama_presets import LlamaShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.by_hand import Task
    from benchmarks.turns import Lap, Turns

_NUM_STARTS = 2
_NUM_ROUNDS = 7
"""Of a start; each is as many steps of both as lie between two lines of the log."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of the table."""

    name: str
    by_hand: str
    """What benchmarks/by_hand_layouts.py calls it."""
    num_ranks: int
    options: str | None
    """Of the trainer; None: the layout by hand takes its place, which shows what is noise."""
    is_same: bool = True
    """Whether both do the same, so that what ours takes more is its own."""


def _same(name: str, num_ranks: int, options: str) -> Entry:
    return Entry(name=name, by_hand=name, num_ranks=num_ranks, options=options)


ENTRIES = (
    _same("ddp", 2, "--strategy ddp"),
    _same("fsdp", 2, "--strategy fsdp"),
    _same("fsdp with offload", 2, "--strategy fsdp --cpu-offload"),
    _same("hsdp", 4, "--strategy hsdp --dp-shard 2"),
    _same("tp", 2, "--tp 2"),
    _same("tp with sp", 2, "--tp 2 --sequence-parallel"),
    _same("pp", 2, "--strategy pp --micro-batch-size 2"),
    _same("pp, gpipe", 2, "--strategy pp --pp-schedule gpipe --micro-batch-size 2"),
    _same("pp, interleaved", 2, "--strategy pp --pp-schedule interleaved --micro-batch-size 2"),
    _same("ddp x tp", 4, "--dp-replicate 2 --tp 2"),
    _same("fsdp x tp", 4, "--strategy fsdp --tp 2"),
    _same("pp x fsdp", 4, "--strategy fsdp --pp 2 --micro-batch-size 1"),
    _same("pp x tp", 4, "--pp 2 --tp 2 --micro-batch-size 2"),
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
        is_same=False,
    ),
    Entry(name="fsdp by hand, twice", by_hand="fsdp", num_ranks=2, options=None, is_same=False),
)
_QUICK = {"ddp", "fsdp x tp"}  # between them they use all parts


@dataclass(frozen=True, kw_only=True)
class Row:
    """Both on one layout; a value a round, the sum of its steps."""

    name: str
    num_ranks: int
    num_steps: int
    """Of a round."""
    has_target: bool = True
    ours_s: Sequence[float]
    by_hand_s: Sequence[float]
    ours_cpu_s: Sequence[float]
    by_hand_cpu_s: Sequence[float]

    @property
    def costs_pct(self) -> tuple[float, float, float]:
        """What ours takes more: the first quartile of the rounds, their median, the third."""
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
    log_every: int


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
        log_every=task.log_every,
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
        log_every=2 if quick else 8,
    )


def _race(entry: Entry, task: Task, *, quick: bool) -> Row:
    """Measure a row, over several starts."""
    num_starts, num_rounds = (1, 1) if quick else (_NUM_STARTS, _NUM_ROUNDS)
    rounds = [pairs for _ in range(num_starts) for pairs in _rounds(entry, task, num_rounds)]
    row = Row(
        name=entry.name,
        num_ranks=entry.num_ranks,
        num_steps=task.log_every,
        has_target=entry.is_same,
        ours_s=[sum(own.wall_s for own, _ in pairs) for pairs in rounds],
        by_hand_s=[sum(other.wall_s for _, other in pairs) for pairs in rounds],
        ours_cpu_s=[sum(own.cpu_s for own, _ in pairs) for pairs in rounds],
        by_hand_cpu_s=[sum(other.cpu_s for _, other in pairs) for pairs in rounds],
    )
    last_own, last_other = rounds[-1][-1]
    low, middle, high = row.costs_pct
    print(
        f"bench: {row.name} on {row.num_ranks} ranks: {middle:+.1f} % ({low:+.1f} to {high:+.1f}), "
        f"by CPU time {row.cpu_cost_pct:+.1f} %, losses {last_own.loss:.3f}, {last_other.loss:.3f}",
        file=sys.stderr,
    )
    return row


def _rounds(entry: Entry, task: Task, num_rounds: int) -> list[list[tuple[Lap, Lap]]]:
    """Start both and let them take turns, a step each."""
    from benchmarks import by_hand  # noqa: PLC0415 -- imports torch

    def train_by_hand(turns: Turns) -> None:
        for loss in by_hand.steps(entry.by_hand, task):
            turns.lap_done(loss)

    with tempfile.TemporaryDirectory() as folder:
        train = train_by_hand
        if entry.options is not None:
            argv = [*_options(task, Path(folder)), *entry.options.split()]
            train = partial(train_ours, argv, lap_ends="step")
        with WorkerPool(entry.num_ranks, train, by_hand.steps(entry.by_hand, task)) as workers:
            workers.await_first_lap()
            workers.lap(of_other=True)
            _round(workers, task.log_every)  # buffers are there, caches are filled
            return [_round(workers, task.log_every) for _ in range(num_rounds)]


def _round(workers: WorkerPool, num_steps: int) -> list[tuple[Lap, Lap]]:
    """Take as many steps of both; which is first changes from one to the next."""
    pairs = []
    for step in range(num_steps):
        first = workers.lap(of_other=bool(step % 2))
        second = workers.lap(of_other=not step % 2)
        pairs.append((second, first) if step % 2 else (first, second))
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
        "log-every": task.log_every,
        "checkpoint-minutes": 0,
    }
    return [f"--{name}={value}" for name, value in chosen.items()]
