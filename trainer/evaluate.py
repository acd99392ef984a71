"""python -m trainer.evaluate CHECKPOINT: measure its model on the samples that are held out.

The options that made the model are the checkpoint's own; where the data lie is not among them:
--data-dir is what the run was given, and --workload must name a class of your own, whose code then
runs. One process is enough, whatever number of ranks wrote it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rundir import codes, events
from rundir.text import counted
from trainer import command
from trainer.checkpoint.layout import STATE_FILE
from trainer.checkpoint.lookup import find
from trainer.checkpoint.train_state import OPTIONS
from trainer.errors import UserError
from trainer.options import from_table
from trainer.telemetry.metrics import figures_of
from trainer.workloads.registry import BUILT_IN, build_workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


_BATCH_SIZE = 8
"""Samples at a time: a global batch may be of thousands, and only many GPUs have room for it."""
_MEASURED_IN = {"fp8": "bf16", "tf32": "fp32"}
"""What a run was trained in, and what any machine has that is as exact at least."""


def main(argv: Sequence[str]) -> int:
    """Measure. Raises UserError for wrong input."""
    parser = command.Parser(prog="python -m trainer.evaluate", description=__doc__)
    parser.add_argument("checkpoint", type=command.path, help=command.CHECKPOINT_HELP)
    parser.add_argument("--data-dir", type=command.path, help="where the data lie, as of the run")
    parser.add_argument("--workload", help="the run's, if it is a class of your own")
    parser.add_argument("--json", action="store_true", help="one JSON document, for programs")
    options = parser.parse_args(argv)
    checkpoint = find(options.checkpoint)
    measured = _measure(checkpoint, options.data_dir, options.workload)
    if options.json:
        line = events.encode({"checkpoint": str(checkpoint), **measured})
        print(line.decode(), end="")
        return codes.FINISHED
    figures = figures_of({n: value for n, value in measured.items() if isinstance(value, float)})
    samples = counted(measured["num_samples"], "sample")
    print(f"{checkpoint}: {', '.join(figures)}, of {samples}")
    return codes.FINISHED


def _check_workload(checkpoint: Path, found: str, wanted: str | None) -> None:
    """Raise UserError where a checkpoint, perhaps a stranger's, would choose what code runs."""
    is_allowed = found == wanted if wanted else found in BUILT_IN
    if not is_allowed:
        raise UserError(
            str(checkpoint),
            rule="be of a workload that comes with the trainer, or of the class that --workload"
            " names, whose code then runs",
            found=found,
            remedy=f"if that code is yours, add --workload {found}",
        )


def _measure(
    checkpoint: Path, data_dir: Path | None, wanted: str | None
) -> Mapping[str, float | None]:
    """Return what a validation would, by the names that metrics.jsonl has for it."""
    # All of these import torch: wrong input is reported before.
    from trainer.checkpoint import loading  # noqa: PLC0415
    from trainer.data.batch_plan import plan_batches  # noqa: PLC0415
    from trainer.data.batches import build_batches  # noqa: PLC0415
    from trainer.distributed.mesh import open_mesh  # noqa: PLC0415
    from trainer.environment import Ranks  # noqa: PLC0415
    from trainer.loop.evaluation import Evaluation  # noqa: PLC0415
    from trainer.loop.stop import StopConsensus, StopRequest  # noqa: PLC0415
    from trainer.parallel.precision import set_up  # noqa: PLC0415
    from trainer.telemetry.heartbeat import Heartbeat  # noqa: PLC0415
    from trainer.workloads.checks import test_data_of  # noqa: PLC0415

    stored = loading.open_verified(checkpoint)
    named = stored.state.identity.items()
    known: dict[str, Any] = {n: v for n, v in named if n in OPTIONS and v is not None}
    if known.get("precision") in [*_MEASURED_IN]:  # it may be anything, such as a list
        known["precision"] = _MEASURED_IN[known["precision"]]
    config = replace(from_table(known, checkpoint / STATE_FILE), data_dir=data_dir)
    _check_workload(checkpoint, config.workload, wanted)
    weights = loading.read_weights(stored)
    workload = build_workload(config)
    workload.check()
    mesh = open_mesh(Ranks(), dict(os.environ))
    set_up(config.precision, mesh.device)
    workload.prepare()
    workload.check()  # what was fetched is no better than what was there
    data = test_data_of(workload)
    if data is None:
        raise UserError(
            f"--workload {config.workload}",
            rule="have held-out samples to measure on",
            found="none",
            remedy="name a --data-dir that has some",
        )
    try:
        model = workload.build_model().to(mesh.device)
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(
            str(checkpoint),
            rule="have weights of the model that the workload builds from these data",
            found=str(error)[:200],
            remedy="name the run's own --data-dir",
        ) from error
    plan = plan_batches(global_batch_size=_BATCH_SIZE, micro_batch_size=None, dp_rank=0, dp_size=1)
    test = build_batches(data, plan, seed=0, device=mesh.device, num_workers=0)
    measured = Evaluation(
        workload=workload,
        model=model,
        test=test,
        precision=config.precision,
        mesh=mesh,
        consensus=StopConsensus(mesh, StopRequest(), Heartbeat()),
        heartbeat=Heartbeat(),
    ).measure()
    assert measured is not None  # noqa: S101 -- it was not asked to stop
    return {
        "step": stored.state.position.step,
        "test_accuracy": measured.accuracy,
        "test_loss": measured.loss,
        **workload.derived(measured.loss),
        "num_samples": test.num_samples,
    }


if __name__ == "__main__":
    sys.exit(command.run(main, sys.argv[1:]))
