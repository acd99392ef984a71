"""Training speed on one GPU, beside the same model in plain loops; where there is no GPU: None.

A quick run takes all of this at toy size on the CPU, which gives no numbers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.turns import CPU, WorkerPool, train_ours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.turns import Turns

_NUM_ROUNDS, _NUM_LAPS = 3, 4
CONTESTANTS = ("trainer", "plain", "expert")
"""The trainer; the loop of a tutorial; and the loop of an expert (`gpu_plain`)."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What both train; what does not concern a workload stays 0."""

    name: str
    label: str
    workload: str
    model: str
    global_batch_size: int
    micro_batch_size: int
    lr: float
    optimizer: str
    steps_per_lap: int
    unit: str
    """Of speed."""
    target_per_s: int
    sequence_length: int = 0
    image_size: int = 0
    num_classes: int = 0
    compile: bool = True

    @property
    def units_per_step(self) -> int:
        """Tokens, or images."""
        return self.global_batch_size * max(1, self.sequence_length)


JOBS = (
    Job(
        name="lm",
        label="tinyllama-1.1b, 2048 tokens, bf16, nothing recomputed",
        workload="lm",
        model="tinyllama-1.1b",
        sequence_length=2048,
        micro_batch_size=10,
        global_batch_size=40,
        lr=1e-4,
        optimizer="adamw",
        steps_per_lap=4,
        unit="tokens/s",
        target_per_s=55_000,
    ),
    Job(
        name="images",
        label="resnet50, made-up images of 224 x 224, bf16, channels last",
        workload="fake-images",
        model="resnet50",
        image_size=224,
        num_classes=1000,
        micro_batch_size=256,
        global_batch_size=256,
        lr=0.1,
        optimizer="sgd",
        steps_per_lap=8,
        unit="images/s",
        target_per_s=3_000,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """All on one job; a value a round, the median of its laps."""

    label: str
    unit: str
    target_per_s: int
    ours_per_s: Sequence[float]
    plain_per_s: Sequence[float]
    expert_per_s: Sequence[float]

    @property
    def ratio(self) -> float:
        """Ours to the plain loop, within a round; the median."""
        return _ratio(self.ours_per_s, self.plain_per_s)

    @property
    def expert_ratio(self) -> float:
        """The same of the expert's loop."""
        return _ratio(self.ours_per_s, self.expert_per_s)


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return median(a / b for a, b in zip(ours, theirs, strict=True))


@dataclass(frozen=True, kw_only=True)
class OnGpu:
    """All rows, and on what."""

    device: str
    rows: Sequence[Row]


def race(*, quick: bool) -> OnGpu | None:
    """Measure all jobs, if there is a GPU."""
    import torch  # noqa: PLC0415 -- the report needs none

    if quick:
        return OnGpu(device="a CPU, at toy size", rows=[_race(job, 1, quick=True) for job in JOBS])
    if not torch.cuda.is_available():
        return None
    rows = [_race(job, _NUM_ROUNDS, quick=False) for job in JOBS]
    return OnGpu(device=torch.cuda.get_device_name(), rows=rows)


def _toy(job: Job) -> Job:
    small = replace(job, micro_batch_size=2, steps_per_lap=1, compile=False)
    if job.workload == "lm":
        return replace(small, model="toy", sequence_length=16, global_batch_size=4)
    # Not a resnet, which takes seconds a step in bf16 on a CPU.
    return replace(small, model="squeezenet1_1", image_size=32, num_classes=10, global_batch_size=2)


def _race(job: Job, num_rounds: int, *, quick: bool) -> Row:
    rounds = [
        [speed(job, name, 1 if quick else _NUM_LAPS, quick=quick) for name in CONTESTANTS]
        for _ in range(num_rounds)
    ]
    ours, plain, expert = zip(*rounds, strict=True)
    row = Row(
        label=job.label,
        unit=job.unit,
        target_per_s=job.target_per_s,
        ours_per_s=ours,
        plain_per_s=plain,
        expert_per_s=expert,
    )
    print(
        f"bench: {row.label}: {row.ours_per_s} {row.unit}, "
        f"{row.ratio:.2f} of plain, {row.expert_ratio:.2f} of expert",
        file=sys.stderr,
    )
    return row


def speed(job: Job, contestant: str, num_laps: int, *, quick: bool) -> float:
    """Return units per second, the median of the laps; compiling is in none.

    In a process of its own that is gone afterwards: two would not fit the memory together. It
    is spawned, as CUDA wants it, and computes on the first GPU that is visible.
    """
    if quick:
        job = _toy(job)
    env = CPU if quick else {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    with tempfile.TemporaryDirectory() as folder:
        train = partial(_train, job, contestant, folder)
        with WorkerPool(1, train, env=env, method="spawn") as workers:
            workers.await_first_lap()  # with all compiling
            laps_s = [workers.lap().wall_s for _ in range(num_laps)]
    return job.steps_per_lap * job.units_per_step / median(laps_s)


def _train(job: Job, contestant: str, folder: str, turns: Turns) -> None:
    if contestant == "trainer":
        train_ours(_options(job, folder), turns)
        return
    from benchmarks import gpu_plain  # noqa: PLC0415 -- imports torch

    gpu_plain.train(job, turns, as_expert=contestant == "expert")


def _options(job: Job, folder: str) -> list[str]:
    """Return the trainer's options; an epoch is longer than all laps, which no save may disturb."""
    num_steps = job.steps_per_lap * (_NUM_LAPS + 2)
    chosen = {
        "workload": job.workload,
        "model": job.model,
        "out": folder,
        "global-batch-size": job.global_batch_size,
        "micro-batch-size": job.micro_batch_size,
        "lr": job.lr,
        "optimizer": job.optimizer,
        "weight-decay": 0.01 if job.optimizer == "adamw" else 0,
        "schedule": "constant",
        "precision": "bf16",
        "max-steps": 1_000_000,  # it is ended before
        "log-every": job.steps_per_lap,
        "checkpoint-minutes": 0,
    }
    if job.workload == "lm":
        num_tokens = num_steps * job.units_per_step + 1
        chosen |= {"sequence-length": job.sequence_length, "mock-tokens": num_tokens}
    else:
        num_samples = num_steps * job.global_batch_size
        chosen |= {"image-size": job.image_size, "num-samples": num_samples}
        chosen |= {"num-classes": job.num_classes}
    words = [f"--{name}={value}" for name, value in chosen.items()]
    return [*words, "--compile"] if job.compile else words
