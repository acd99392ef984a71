"""The fault matrix: every fault, how it is brought about, and what must follow."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.faults import injectors, places
from tests.faults.driver import LONG, Fault, Scenario, Then

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.job import Event, FaultJob

PREFIX = "fx"
NUM_NODES = 11
SKEWED_NODE = "fx9"
SKEW_S = 3600


def on(*numbers: int, ranks_per_node: int = 1) -> tuple[str, ...]:
    """Give sbatch's options for these nodes."""
    names = ",".join(f"{PREFIX}{number}" for number in numbers)
    return (f"--nodelist={names}", f"--nodes={len(numbers)}", f"--ntasks-per-node={ranks_per_node}")


# ---- a process dies ------------------------------------------------------------------------------


def _crash(name: str, how: str, order: str, code: int, says: str) -> Fault:
    return Fault(
        name=name,
        how=how,
        inject=injectors.strike(order, 1),
        then=Then.RESTART,
        down_within_s=10,
        code=code,
        failure_class="program",
        says=rf"rank 1 on fx2 {says}.*restart \d of 99 from step \d+",
    )


CRASHES = Scenario(
    name="crashes",
    sbatch=on(1, 2),
    env={"DDP_MAX_RESTARTS": "99"},
    faults=(
        Fault(
            name="rank killed",
            how="`kill -9` of a rank",
            inject=injectors.signal_rank(1, signal.SIGKILL),
            then=Then.RESTART,
            down_within_s=10,
            code=137,
            failure_class="killed",
            says=r"rank 1 on fx2 was killed by signal 9 .*restart \d of 99 from step \d+",
        ),
        _crash(
            "segmentation fault",
            "a rank reads address 0",
            "segfault",
            139,
            r"was killed by signal 11",
        ),
        _crash("abort", "`os.abort()` in a rank", "abort", 134, r"was killed by signal 6"),
        _crash("silent exit", "`os._exit(3)` in a rank", "exit", 3, "ended with code 3"),
        _crash("exception", "`raise ValueError(…)` in a rank", "raise", 70, "ended with code 70"),
        Fault(
            name="launcher killed",
            how="`kill -9` of a rank's launcher",
            inject=injectors.kill_launcher(1),
            then=Then.RESTART,
            down_within_s=10,
            signs=("first_failure",),
            code=137,
            failure_class="killed",
            says=r"rank 1 on fx2 .*restart \d of 99 from step \d+",
        ),
        Fault(
            name="memory limit reached",
            how="the kernel's limit for a rank (cgroup), which then allocates more",
            inject=injectors.exhaust_memory(1),
            then=Then.RESTART,
            down_within_s=10,
            code=137,
            failure_class="program",
            says=r"rank 1 on fx2 .*memory.*restart \d of 99 from step \d+",
        ),
    ),
)

PORT = Scenario(
    name="port",
    sbatch=on(1, 2),
    prepare=places.take_port,
    faults=(
        Fault(
            name="port taken",
            how="another process binds MASTER_PORT after it was chosen, before rank 0 does",
            inject=places.port_was_taken,
            then=Then.RESTART,
            at_start=True,
            code=70,
            failure_class="network",
            says=r"rank 0 on fx1 .*restart 1 of 3",
        ),
    ),
)

# ---- a process lives, and does not go on ---------------------------------------------------------


def _hang(name: str, how: str, inject: injectors.Injector, says: str) -> Fault:
    return Fault(
        name=name,
        how=how,
        inject=inject,
        then=Then.RESTART,
        signs=("verdict",),
        code=76,
        failure_class="hung",
        says=says + r".*restart \d of 99 from step \d+",
    )


HANGS = Scenario(
    name="hangs",
    sbatch=on(1, 2),
    env={"DDP_MAX_RESTARTS": "99", "DDP_HANG_TIMEOUT": "8"},
    faults=(
        _hang(
            "rank stopped for ever",
            "SIGSTOP to a rank",
            injectors.signal_rank(1, signal.SIGSTOP),
            r"rank 1 on fx2",
        ),
        _hang(
            "rank holds the GIL",
            "a regular expression that backtracks for ever, in a rank",
            injectors.strike("hold-gil", 1),
            r"rank 1 on fx2",
        ),
        _hang(
            "ranks in different collectives",
            "a rank waits in `recv`, the others reduce their gradients",
            injectors.strike("other-collective", 1),
            r"rank 1 on fx2",
        ),
    ),
)

NOT_A_NUMBER = Scenario(
    name="nan",
    sbatch=on(1, 2),
    options=(*LONG, "--on-nan", "stop"),
    env={"DDP_MAX_RESTARTS": "99"},
    faults=(
        Fault(
            name="NaN in one rank's batch",
            how="the loss of one microbatch on one rank is NaN, `--on-nan stop`",
            inject=injectors.strike("poison", 1),
            then=Then.RESTART,
            signs=("non_finite",),
            code=70,
            failure_class="program",
            says=r"restart \d of 99 from step \d+",
        ),
    ),
)

# ---- what a run must bear ------------------------------------------------------------------------

ENDURED = Scenario(
    name="endured",
    sbatch=on(1, 2),
    options=(*LONG, "--log-every", "10"),
    env={"DDP_HANG_TIMEOUT": "60"},
    faults=(
        Fault(
            name="monitor killed",
            how="`kill -9` of a node's monitor",
            inject=injectors.kill_monitor,
            then=Then.NOTHING,
            signs=(),
        ),
        Fault(
            name="rank stopped for 20 s",
            how="SIGSTOP to a rank, SIGCONT after 20 s",
            inject=injectors.stop_for(1, 20),
            then=Then.NOTHING,
            signs=(),
        ),
        Fault(
            name="rank three times slower",
            how="a rank sleeps in each step until it takes three times as long as the others",
            inject=injectors.strike("slow-down", 1),
            then=Then.NOTHING,
            signs=(),
            notice=places.slow_rank_is_named,
        ),
        Fault(
            name="scancel",
            how="`scancel` of the job",
            inject=injectors.cancel,
            then=Then.END,
            signs=("signal",),
            code=75,
            failure_class="cancelled",
            says=r"the newest checkpoint is step-\d+;.*start again with DDP_RUN_NAME=fault-endured",
        ),
    ),
)

# ---- nodes and their network ---------------------------------------------------------------------


def _heal(job: FaultJob) -> None:
    job.cluster.script("heal", f"{PREFIX}4")


NETWORK = Scenario(
    name="network",
    sbatch=on(3, 4),
    env={"DDP_MAX_RESTARTS": "99", "DDP_HANG_TIMEOUT": "8"},  # below Slurm's own timeout
    prepare=places.heal_after(3, 4),
    faults=(
        Fault(
            name="network cut for 3 s",
            how="the cable of a node pulled, and plugged in again within the timeout",
            inject=injectors.cut_for(1, 3),
            then=Then.NOTHING,
            signs=(),
        ),
        Fault(
            name="network cut beyond the timeout",
            how="the cable of a node pulled, and plugged in again when the verdict is there",
            inject=injectors.cut(1),
            then=Then.RESTART,
            signs=("verdict",),
            mend=_heal,
            code=76,
            failure_class="network",
            says=r"fx4.*restart \d of 99 from step \d+",
        ),
    ),
)

SHRINKING = Scenario(
    name="shrinking",
    sbatch=on(10, 11),
    env={"DDP_MAX_RESTARTS": "99", "SBATCH_NO_KILL": "set"},
    prepare=places.heal_after(11),
    faults=(
        Fault(
            name="node lost, the rest goes on",
            how="slurmd and all processes of a node killed and its cable pulled; `--no-kill`",
            inject=injectors.kill_node(1),
            then=Then.RESTART,
            signs=("lost_node",),
            code=137,
            failure_class="hardware",
            says=r"node fx11 is lost.*restart \d of 99 on 1 nodes? from step \d+",
        ),
    ),
)

LOST_NODE = Scenario(
    name="lost-node",
    sbatch=("--exclude=fx[1-4,8-11]", "--nodes=2", "--ntasks-per-node=1"),
    prepare=places.heal_after(5, 6, 7),
    faults=(
        Fault(
            name="node lost, requeued elsewhere",
            how="slurmd and all processes of a node killed and its cable pulled",
            inject=injectors.kill_node(1),
            then=Then.REQUEUE,
            signs=("lost_node",),
            code=137,
            failure_class="hardware",
            says=r"node fx\d is lost with rank 1 .*will go on from step \d+",
            check=places.runs_elsewhere,
        ),
    ),
)

# ---- Slurm wants the nodes back ------------------------------------------------------------------

PREEMPTION = Scenario(
    name="preempted",
    sbatch=on(8),
    faults=(
        Fault(
            name="preemption",
            how="a job of a higher partition needs the node",
            inject=injectors.preempt,
            then=Then.REQUEUE,
            signs=("signal",),
            mend=places.let_urgent_job_end,
            code=75,
            failure_class="preempted",
            says=r"the newest checkpoint is step-\d+; .*requeued job \d+, .* from step \d+",
        ),
    ),
)

TIME_LIMIT = Scenario(
    name="time-limit",
    sbatch=(*on(1), "--time=2", "--signal=B:USR1@25"),
    faults=(
        Fault(
            name="time limit",
            how="`--time=2 --signal=B:USR1@25`",
            inject=injectors.await_time_limit,
            then=Then.REQUEUE,
            signs=("signal",),
            code=75,
            failure_class="time limit",
            says=r"the newest checkpoint is step-\d+; .*is requeued .* from step \d+",
        ),
    ),
)

SCRIPT = Scenario(
    name="script",
    sbatch=on(1, 2),
    faults=(
        Fault(
            name="batch script killed",
            how="`kill -9` of the batch script",
            inject=injectors.kill_script,
            then=Then.END,
            code=None,
            failure_class="killed",
            nobody_speaks=True,
            says=r"KILLED.*To go on from step \d+: DDP_RUN_NAME=fault-script",
        ),
    ),
)

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
            says=r"rank 0 on fx1 was killed by signal 9 .*restart 1 of 3 from step \d+",
        ),
        Fault(
            name="disk full during a save",
            how="a tmpfs of 256 MiB for the checkpoints, filled when a save begins",
            inject=places.fill_disk,
            then=Then.NOTHING,
            signs=("checkpoint_failed",),
            check=places.reason_is("no space"),
            mend=places.free_disk,
            says=r"no space|No space",
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
        says=r"restart \d of 99 from step \d+",
        num_saved=2,
        damages=True,
        check=_falls_back,
    )


def _falls_back(job: FaultJob, resume: Event) -> None:
    """The damaged checkpoint is named and skipped, and the one before it is used."""
    (skipped,) = resume["skipped"]
    damaged = injectors.checkpoint_before(job, resume)
    assert skipped["path"].endswith(damaged.name), resume
    assert skipped["problem"], resume
    assert resume["step"] < int(damaged.name.removeprefix("step-"))
    assert f"{damaged.name}" in job.log


def _loses_nothing(job: FaultJob, resume: Event) -> None:
    assert resume["skipped"] == [], resume
    assert resume["path"] == str(injectors.checkpoint_before(job, resume)), resume


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
            says=r"restart \d of 99",
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
            says=r"no new checkpoint",
        ),
    ),
)

CLOCK = Scenario(
    name="clock",
    sbatch=on(7, 9),
    faults=(
        Fault(
            name="clock of a node an hour ahead",
            how="libfaketime in every process of the node's ranks",
            inject=places.clock_is_off,
            then=Then.NOTHING,
            signs=(),
            notice=places.wall_time_is_sane,
        ),
    ),
)

SCENARIOS = (
    TIME_LIMIT,
    PREEMPTION,
    LOST_NODE,
    SHRINKING,
    CRASHES,
    NETWORK,
    HANGS,
    DAMAGE,
    ENDURED,
    STALL,
    DATA,
    NOT_A_NUMBER,
    PORT,
    SCRIPT,
    DISK_FULL,
    CLOCK,
)
"""In the order in which they are started: the longest first."""

ROWS = (
    *CRASHES.faults,
    *ENDURED.faults[:1],
    *SCRIPT.faults,
    *NETWORK.faults,
    *SHRINKING.faults,
    *LOST_NODE.faults,
    *HANGS.faults,
    *ENDURED.faults[1:],
    *TIME_LIMIT.faults,
    *PREEMPTION.faults,
    *DISK_FULL.faults[1:],
    *DISK_FULL.faults[:1],
    *DAMAGE.faults,
    *PORT.faults,
    *STALL.faults,
    *CLOCK.faults,
    *NOT_A_NUMBER.faults,
    *DATA.faults,
)
SAVE_KILLS = "save killed at 20 random instants"
NAMES = (*(fault.name for fault in ROWS), SAVE_KILLS)
"""In the order of docs/faults.md."""
