"""Training speed on one GPU, beside the same model in a plain loop; where there is no GPU: None.

A quick run takes all of this at toy size on the CPU, which gives no numbers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.turns import CPU, Crew, train_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.turns import Turns

_NUM_ROUNDS, _NUM_LAPS = 3, 4


@dataclass(frozen=True, kw_only=True)
class Job:
    """What both train; what does not concern a workload stays 0."""

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
    """Both on one job; a value a round, the median of its laps."""

    label: str
    unit: str
    target_per_s: int
    ours_per_s: Sequence[float]
    plain_per_s: Sequence[float]

    @property
    def ratio(self) -> float:
        """Ours to plain, within a round; the median."""
        return median(a / b for a, b in zip(self.ours_per_s, self.plain_per_s, strict=True))


@dataclass(frozen=True, kw_only=True)
class OnGpu:
    """All rows, and on what."""

    device: str
    rows: Sequence[Row]


def race(*, quick: bool) -> OnGpu | None:
    """Measure all jobs, if there is a GPU."""
    import torch  # noqa: PLC0415 -- the report needs none

    if quick:
        return OnGpu(
            device="a CPU, at toy size", rows=[_race(_toy(job), 1, 1, CPU) for job in JOBS]
        )
    if not torch.cuda.is_available():
        return None
    env = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "CUDA_VISIBLE_DEVICES": "0"}
    rows = [_race(job, _NUM_ROUNDS, _NUM_LAPS, env) for job in JOBS]
    return OnGpu(device=torch.cuda.get_device_name(0), rows=rows)  # only now may CUDA begin here


def _toy(job: Job) -> Job:
    small = replace(job, micro_batch_size=2, steps_per_lap=1, compile=False)
    if job.workload == "lm":
        return replace(small, model="toy", sequence_length=16, global_batch_size=4)
    # Not a resnet, which takes seconds a step in bf16 on a CPU.
    return replace(small, model="squeezenet1_1", image_size=32, num_classes=10, global_batch_size=2)


def _race(job: Job, num_rounds: int, num_laps: int, env: Mapping[str, str]) -> Row:
    """One after the other, as the two do not fit the memory together."""
    from benchmarks import gpu_plain  # noqa: PLC0415 -- imports torch

    def ours() -> float:
        with tempfile.TemporaryDirectory() as folder:
            argv = _options(job, folder)
            return _speed(job, lambda turns: train_ours(argv, turns), num_laps, env)

    def plain() -> float:
        return _speed(job, lambda turns: gpu_plain.train(job, turns), num_laps, env)

    rounds = [(ours(), plain()) for _ in range(num_rounds)]
    row = Row(
        label=job.label,
        unit=job.unit,
        target_per_s=job.target_per_s,
        ours_per_s=[own for own, _ in rounds],
        plain_per_s=[other for _, other in rounds],
    )
    print(f"bench: {row.label}: {row.ours_per_s} {row.unit}, {row.ratio:.2f}", file=sys.stderr)
    return row


def _speed(
    job: Job, train: Callable[[Turns], object], num_laps: int, env: Mapping[str, str]
) -> float:
    with Crew(1, train, env=env) as crew:
        crew.await_first_lap()  # with all compiling
        laps_s = [crew.lap().wall_s for _ in range(num_laps)]
    return job.steps_per_lap * job.units_per_step / median(laps_s)


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
