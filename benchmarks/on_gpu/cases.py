"""The cases, in the order in which they run: what must be right first, then how fast it is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks import gpu
from benchmarks.on_gpu import correctness, device, jobs
from benchmarks.on_gpu.case import Case

if TYPE_CHECKING:
    from benchmarks.on_gpu.case import Place, Values

_NUM_LAPS = 2
_NUM_ROUNDS = 3
"""Of speed, if the budget allows."""


def _speed(job: gpu.Job, contestant: str, place: Place) -> Values:
    quick = place.is_rehearsal
    per_s = gpu.speed(job, contestant, 1 if quick else _NUM_LAPS, quick=quick)
    return {job.unit.replace("/", "_per_"): round(per_s, 1)}


CASES = (
    Case(
        name="machine",
        about="the GPU, its software, and what its memory and matrix units give",
        run=device.machine,
        limit_s=60,
    ),
    Case(
        name="mnist",
        about="`python -m trainer` learns the shipped digits",
        run=correctness.mnist,
        limit_s=60,
    ),
    Case(
        name="resume",
        about="`--deterministic`: a run in two pieces is the whole run, bit by bit",
        run=correctness.resume,
        limit_s=90,
    ),
    Case(
        name="precision",
        about="tf32, bf16 and fp16 learn what fp32 learns",
        run=correctness.precision,
        limit_s=60,
    ),
    Case(
        name="options",
        about="recomputing, accumulating, snapshots, profiles: the losses stay what they are",
        run=correctness.options,
        limit_s=90,
    ),
    Case(
        name="compile",
        about="`--compile` gives the losses that there are without it",
        run=correctness.compiled,
        limit_s=90,
    ),
    Case(
        name="nccl",
        about="a group of one rank over NCCL: collectives, DDP, fully_shard, flight recorder",
        run=device.nccl,
        limit_s=60,
    ),
    Case(
        name="hang",
        about="the watchdog names the line of a rank that is stuck in a kernel",
        run=jobs.hang,
        limit_s=90,
    ),
    Case(
        name="recorder",
        about="the recorder's columns beside `nvidia-smi dmon` of the same seconds",
        run=jobs.recorder,
        limit_s=90,
    ),
    Case(
        name="preflight",
        about="`prelaunch.sh --preflight` finds nothing wrong",
        run=jobs.preflight,
        limit_s=90,
    ),
    Case(
        name="broken",
        about="`why` names what a GPU's errors are",
        run=jobs.broken,
        limit_s=120,
    ),
    Case(
        name="restart",
        about="from a rank's death to its successor's first step",
        run=jobs.restart,
        limit_s=120,
    ),
    *(
        Case(
            name=f"speed-{job.name}-{contestant}-{number}",
            about=f"{contestant}: {job.label}",
            run=partial(_speed, job, contestant),
            limit_s=150,
            number=number,
        )
        for number in range(1, _NUM_ROUNDS + 1)
        for job in gpu.JOBS
        for contestant in gpu.CONTESTANTS
    ),
)
