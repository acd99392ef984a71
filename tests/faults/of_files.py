"""Faults of disks, checkpoints and data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults import injectors, places
from tests.faults.driver import LONG, Fault, Scenario, Then
from tests.faults.layout import on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.job import Event, FaultJob


# ---- disks and files -----------------------------------------------------------------------------

DISK_FULL = Scenario(
    name="disk-full",
    sbatch=on(1, ranks_per_node=2),
    options=(*LONG, "--checkpoint-every", "100", "--model", "wide"),
    prepare=places.small_disk,
    faults=(
        Fault(
            name="rank killed during a save",
            how="`kill -9` of a rank while a checkpoint of 19 MB is being written",
            inject=injectors.kill_during_save(0),
            then=Then.RESTART,
            code=137,
            failure_class="killed",
            message=r"rank 0 on fx1 was killed by signal 9 .*restart 1 of 3 from step \d+",
        ),
        Fault(
            name="disk full during a save",
            how="a tmpfs of 256 MiB for the checkpoints, filled when a save begins",
            inject=places.fill_disk,
            then=Then.NOTHING,
            signs=("checkpoint_failed",),
            check=places.reason_is("no space"),
            mend=places.free_disk,
            message=r"no space|No space",
        ),
    ),
)

STALL = Scenario(
    name="stall",
    sbatch=on(1, ranks_per_node=2),
    prepare=places.own_disk,
    faults=(
        Fault(
            name="file system stalls for 30 s",
            how="the run directory on an ext4 of its own, `fsfreeze` for 30 s",
            inject=places.freeze_for(30),
            then=Then.NOTHING,
            signs=(),
        ),
    ),
)


def _damaged(name: str, how: str, act: Callable[[Path], None]) -> Fault:
    return Fault(
        name=name,
        how=how + ", and a rank killed",
        inject=injectors.damage(act),
        then=Then.RESTART,
        code=137,
        failure_class="killed",
        message=r"restart \d of 99 from step \d+",
        num_saved=2,
        damages=True,
        check=_falls_back,
    )


def _falls_back(job: FaultJob, resume: Event) -> None:
    """The damaged checkpoint is named and skipped, and the one before it is used."""
    (skipped,) = resume["skipped"]
    damaged: Path = job.helpers["newest"]
    assert skipped["path"] == str(damaged), resume
    assert skipped["problem"], resume
    assert resume["step"] < int(damaged.name.removeprefix("step-"))
    job.until(lambda: damaged.name in job.log, "the damaged one is named")


def _loses_nothing(job: FaultJob, resume: Event) -> None:
    assert resume["skipped"] == [], resume
    assert resume["path"] == str(job.helpers["newest"]), resume


DAMAGE = Scenario(
    name="damage",
    sbatch=on(1, ranks_per_node=2),
    # Who falls back a checkpoint and is killed at the step of the damaged one has not got on.
    env={"DDP_MAX_RESTARTS": "99", "DDP_MAX_IDLE_RESTARTS": "9"},
    faults=(
        _damaged(
            "checkpoint truncated",
            "a file of the newest checkpoint cut to half its length",
            injectors.truncate,
        ),
        _damaged(
            "one bit of a checkpoint flipped",
            "one bit of a file of the newest checkpoint flipped",
            injectors.flip_bit,
        ),
        _damaged(
            "checkpoint file deleted",
            "a file of the newest checkpoint deleted",
            injectors.delete,
        ),
        _damaged(
            "checkpoint files swapped",
            "two files of the newest checkpoint swapped",
            injectors.swap,
        ),
        Fault(
            name="pointer file damaged",
            how="noise in `checkpoints/latest`, and a rank killed",
            inject=injectors.damage(injectors.damage_pointer),
            then=Then.RESTART,
            code=137,
            failure_class="killed",
            message=r"restart \d of 99",
            check=_loses_nothing,
        ),
    ),
)

DATA = Scenario(
    name="data",
    sbatch=on(1, ranks_per_node=2),
    env={"DDP_MAX_IDLE_RESTARTS": "0"},
    prepare=places.data_files,
    options=(
        *LONG,
        *("--num-workers", "0", "--data-dir", "data", "--global-batch-size", "8"),
    ),
    faults=(
        Fault(
            name="data file vanishes",
            how="half of the data files deleted in the middle of an epoch",
            inject=places.lose_data,
            then=Then.END,
            restarts_before=1,
            code=70,
            failure_class="storage",
            message=r"no new checkpoint",
        ),
    ),
)
